//! The page of queues.

use super::{Browser, expect_texts};
use crate::support::server::READ_ONLY;
use crate::support::{Setup, TestServer};
use serde_json::json;

const PAGE: &str = "/console/queues";
const URL: &str = "https://example.com";

#[tokio::test]
async fn queues_are_made_changed_paused_and_deleted() {
    let server = TestServer::start().await;
    let browser = Browser::open(&server);
    expect_texts(&browser.see(PAGE).await, &["There are no queues yet", "/v2/enqueue/orders/"]);

    browser.press(PAGE, &[("queueName", "orders"), ("parallelism", "2"), ("paused", "on")]).await;
    for _ in 0..3 {
        server.enqueue_with("orders", URL, &[]).await;
    }
    let page = browser.see(PAGE).await;
    expect_texts(
        &page,
        &["1 in all, 3 messages in them, 1 paused", "paused</span>", "value=\"2\"", "queueName=orders"],
    );
    expect_texts(&page, &["Its 3 messages that have not ended are cancelled and lost"]);

    // The page may be old: the parallelism changes nothing but itself.
    let said = browser.press(&format!("{PAGE}/orders/parallelism"), &[("parallelism", "7"), ("next", PAGE)]).await;
    assert_eq!(said, "The queue orders has a parallelism of 7 now.");
    let queue = server.queue("orders").await;
    assert_eq!((&queue["parallelism"], &queue["paused"]), (&json!(7), &json!(true)));

    browser.press(&format!("{PAGE}/orders/resume"), &[]).await;
    assert_eq!(server.queue("orders").await["paused"], false);
    browser.press(&format!("{PAGE}/orders/pause"), &[]).await;
    assert_eq!(server.queue("orders").await["paused"], true);
    let said = browser.press(&format!("{PAGE}/orders/delete"), &[]).await;
    assert!(said.starts_with("The queue orders is gone;"), "{said}");
    server.get("/v2/queues/orders").expect(404).await;
    browser.refused(&format!("{PAGE}/orders/burn"), &[], 404).await;
    server.finish().await;
}

#[tokio::test]
async fn a_queue_that_is_refused_is_told_with_what_was_entered() {
    let server = TestServer::start().await;
    let browser = Browser::open(&server);
    for (name, parallelism, status, text) in [
        ("a<b>", "1", 400, "the name of a queue must have"),
        ("jobs", "0", 400, "parallelism must be at least 1"),
        ("jobs", "many", 400, "is not a number of messages"),
        ("jobs", "1001", 412, "quota maxParallelism exceeded"),
    ] {
        let page = browser.refused(PAGE, &[("queueName", name), ("parallelism", parallelism)], status).await;
        let entered = [format!("value=\"{}\"", name.replace('<', "&lt;").replace('>', "&gt;"))];
        expect_texts(&page, &[text, &entered[0], "role=\"alert\""]);
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
    expect_texts(&browser.see(&format!("{PAGE}?search=zzz")).await, &["No queue has such a name"]);
    server.finish_with_pending().await;
}

#[tokio::test]
async fn readers_and_other_tenants_change_nothing() {
    let server = TestServer::with(Setup::serve()).await;
    server.post("/v2/queues").json(&json!({ "queueName": "orders", "parallelism": 3 })).expect(200).await;
    let reader = Browser::log_in(&server, READ_ONLY).await;
    let page = reader.see(PAGE).await;
    expect_texts(&page, &["orders", "a read-only token may only look"]);
    for (path, fields) in [
        (PAGE.to_owned(), vec![("queueName", "orders"), ("parallelism", "9")]),
        (format!("{PAGE}/orders/parallelism"), vec![("parallelism", "9")]),
        (format!("{PAGE}/orders/pause"), vec![]),
        (format!("{PAGE}/orders/delete"), vec![]),
    ] {
        reader.refused(&path, &fields, 403).await;
    }
    let other = Browser::log_in(&server, crate::support::server::TOKEN_B).await;
    expect_texts(&other.see(PAGE).await, &["There are no queues yet"]);
    other.refused(&format!("{PAGE}/orders/pause"), &[], 404).await;
    let queue = server.queue("orders").await;
    assert_eq!((&queue["parallelism"], &queue["paused"]), (&json!(3), &json!(false)));
    server.finish().await;
}
