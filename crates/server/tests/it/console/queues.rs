//! The page of queues.

use super::{Browser, expect_marked, expect_texts};
use crate::support::server::READ_ONLY;
use crate::support::{Setup, TestServer};
use serde_json::json;

const PAGE: &str = "/console/queues";
const URL: &str = "https://example.com";

#[tokio::test]
async fn queues_are_created_updated_paused_and_deleted() {
    let server = TestServer::start().await;
    let browser = Browser::open(&server);
    expect_texts(&browser.see(PAGE).await, &["No queues yet", "/v2/enqueue/orders/"]);

    browser.press(PAGE, &[("queueName", "orders"), ("parallelism", "2"), ("paused", "on")]).await;
    for _ in 0..3 {
        server.enqueue_with("orders", URL, &[]).await;
    }
    let page = browser.see(PAGE).await;
    expect_texts(&page, &["1 queue, 3 messages, 1 paused", "paused</span>", "value=\"2\"", "queueName=orders"]);
    expect_texts(&page, &["This cancels 3 pending messages and deletes the settings of the queue."]);

    // The page may be old: the parallelism changes nothing but itself.
    let said = browser.press(&format!("{PAGE}/orders/parallelism"), &[("parallelism", "7"), ("next", PAGE)]).await;
    assert_eq!(said, "Queue orders now has parallelism 7.");
    let queue = server.queue("orders").await;
    assert_eq!((&queue["parallelism"], &queue["paused"]), (&json!(7), &json!(true)));

    browser.press(&format!("{PAGE}/orders/resume"), &[]).await;
    assert_eq!(server.queue("orders").await["paused"], false);
    browser.press(&format!("{PAGE}/orders/pause"), &[]).await;
    assert_eq!(server.queue("orders").await["paused"], true);
    let said = browser.press(&format!("{PAGE}/orders/delete"), &[]).await;
    assert!(said.starts_with("Queue orders deleted, "), "{said}");
    server.get("/v2/queues/orders").expect(404).await;
    browser.refused(&format!("{PAGE}/orders/burn"), &[], 404).await;
    server.finish().await;
}

#[tokio::test]
async fn a_refused_queue_is_shown_again_with_its_input_and_the_field_is_marked() {
    let server = TestServer::start().await;
    let browser = Browser::open(&server);
    for (name, parallelism, status, field, text) in [
        ("a<b>", "1", 400, "queueName", "the name of a queue must have"),
        ("jobs", "0", 400, "parallelism", "parallelism must be at least 1"),
        ("jobs", "many", 400, "parallelism", "Parallelism: &quot;many&quot; is not a whole number"),
        ("jobs", "1001", 412, "parallelism", "quota maxParallelism exceeded"),
    ] {
        let page = browser.refused(PAGE, &[("queueName", name), ("parallelism", parallelism)], status).await;
        let entered = [format!("value=\"{}\"", name.replace('<', "&lt;").replace('>', "&gt;"))];
        expect_texts(&page, &[text, &entered[0], "role=\"alert\""]);
        expect_marked(&page, field, text);
        assert!(!page.contains("a<b>"), "{page}");
    }
    assert_eq!(server.get("/v2/queues").expect(200).await.json(), json!([]));
    server.finish().await;
}

#[tokio::test]
async fn long_lists_are_searched_and_sorted() {
    let server = TestServer::start().await;
    for name in ["mail", "orders-eu", "orders-us"] {
        server.post("/v2/queues").json(&json!({ "queueName": name, "paused": true })).expect(200).await;
    }
    server.enqueue_with("orders-us", URL, &[]).await;
    let browser = Browser::open(&server);
    let page = browser.see(&format!("{PAGE}?search=orders&order=lag")).await;
    let place = |name: &str| page.find(&format!("title=\"{name}\""));
    assert!(place("orders-us") < place("orders-eu") && place("orders-us").is_some(), "{page}");
    assert_eq!(place("mail"), None);
    expect_texts(&page, &["2 of 3", "value=\"orders\""]);
    expect_texts(&browser.see(&format!("{PAGE}?search=zzz")).await, &["No queues match"]);
    server.finish_with_pending().await;
}

#[tokio::test]
async fn read_only_tokens_and_other_tenants_change_nothing() {
    let server = TestServer::with(Setup::serve()).await;
    server.post("/v2/queues").json(&json!({ "queueName": "orders", "parallelism": 3 })).expect(200).await;
    let reader = Browser::log_in(&server, READ_ONLY).await;
    let page = reader.see(PAGE).await;
    expect_texts(&page, &["orders", "Your token is read-only"]);
    for (path, fields) in [
        (PAGE.to_owned(), vec![("queueName", "orders"), ("parallelism", "9")]),
        (format!("{PAGE}/orders/parallelism"), vec![("parallelism", "9")]),
        (format!("{PAGE}/orders/pause"), vec![]),
        (format!("{PAGE}/orders/delete"), vec![]),
    ] {
        reader.refused(&path, &fields, 403).await;
    }
    let other = Browser::log_in(&server, crate::support::server::TOKEN_B).await;
    expect_texts(&other.see(PAGE).await, &["No queues yet"]);
    other.refused(&format!("{PAGE}/orders/pause"), &[], 404).await;
    let queue = server.queue("orders").await;
    assert_eq!((&queue["parallelism"], &queue["paused"]), (&json!(3), &json!(false)));
    server.finish().await;
}
