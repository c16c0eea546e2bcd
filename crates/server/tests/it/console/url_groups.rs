//! The pages of URL groups.

use super::{Browser, expect_marked, expect_texts};
use crate::support::server::{READ_ONLY, TOKEN_B};
use crate::support::{Setup, TestServer};
use serde_json::json;

const PAGE: &str = "/console/url-groups";

#[tokio::test]
async fn groups_are_created_filled_and_emptied() {
    let server = TestServer::start().await;
    let browser = Browser::open(&server);
    expect_texts(&browser.see(PAGE).await, &["No URL groups yet", "/v2/topics/orders/endpoints"]);
    browser.press(PAGE, &[("group", "orders"), ("url", "https://example.com/billing"), ("name", "billing")]).await;
    let evil = "<script>alert(1)</script>";
    browser.press(&format!("{PAGE}/orders/add"), &[("url", "https://example.com/x"), ("name", evil)]).await;
    browser.press(&format!("{PAGE}/orders/add"), &[("url", "https://example.com/y"), ("name", "")]).await;
    let group = async || server.get("/v2/topics/orders").expect(200).await.json();
    let expected = json!([
        { "name": "billing", "url": "https://example.com/billing" },
        { "name": evil, "url": "https://example.com/x" },
        { "url": "https://example.com/y" },
    ]);
    assert_eq!(group().await["endpoints"], expected);

    let defaults = "Upstash-Retries: 5\r\nUpstash-Forward-X: a\r\nUpstash-Forward-X: b";
    browser.press(&format!("{PAGE}/orders/headers"), &[("headers", defaults)]).await;
    assert_eq!(group().await["headers"], json!({ "Upstash-Forward-X": ["a", "b"], "Upstash-Retries": ["5"] }));
    let page = browser.see(&format!("{PAGE}/orders")).await;
    let escaped = "&lt;script&gt;alert(1)&lt;/script&gt;";
    expect_texts(
        &page,
        &["Upstash-Retries: 5\n", escaped, "/console/send?destination=orders", "https://example.com/y"],
    );
    assert!(!page.contains(evil) && !page.contains("href=\"https://example.com"), "{page}");
    expect_texts(&browser.see(PAGE).await, &[escaped, "/console/send?destination=orders"]);

    for (url, name) in [("https://example.com/x", evil), ("https://example.com/y", "")] {
        let said = browser.press(&format!("{PAGE}/orders/remove"), &[("url", url), ("name", name)]).await;
        assert_eq!(said, "Endpoint removed.");
    }
    assert_eq!(group().await["endpoints"].as_array().map(Vec::len), Some(1));
    expect_texts(
        &browser.see(&format!("{PAGE}/orders")).await,
        &["Remove the last endpoint? This also deletes the group orders."],
    );
    let last = [("url", "https://example.com/billing"), ("name", "billing")];
    let said = browser.press(&format!("{PAGE}/orders/remove"), &last).await;
    assert_eq!(said, "Endpoint removed. It was the last one, so the group was deleted.");
    server.get("/v2/topics/orders").expect(404).await;
    assert_eq!(browser.look(&format!("{PAGE}/orders")).await.status, 404);

    browser.press(PAGE, &[("group", "mail"), ("url", "https://example.com/")]).await;
    browser.press(&format!("{PAGE}/mail/delete"), &[]).await;
    server.get("/v2/topics/mail").expect(404).await;
    server.finish().await;
}

#[tokio::test]
async fn a_refused_form_keeps_its_input_and_marks_the_field() {
    let server = TestServer::start().await;
    let browser = Browser::open(&server);
    for (group, url, field, text) in [
        ("", "https://example.com", "group", "the name of the group is missing"),
        ("a b", "https://example.com", "group", "the name of a URL group can contain only"),
        ("orders", "ftp://example.com", "url", "endpoint has invalid scheme"),
    ] {
        let page = browser.refused(PAGE, &[("group", group), ("url", url), ("name", "kept")], 400).await;
        expect_texts(&page, &[text, &format!("value=\"{url}\""), "value=\"kept\"", "role=\"alert\""]);
        expect_marked(&page, field, text);
    }
    browser.press(PAGE, &[("group", "orders"), ("url", "https://example.com/")]).await;
    let headers = format!("{PAGE}/orders/headers");
    for (lines, text) in [
        ("no header", "is not a header; write Name: value"),
        ("Upstash-Cron: @daily", "it applies to a single publish"),
        ("Upstash-Retries: many", "Upstash-Retries"),
    ] {
        let page = browser.refused(&headers, &[("headers", lines)], 400).await;
        expect_texts(&page, &[text, lines, "role=\"alert\""]);
        expect_marked(&page, "headers", text);
    }
    let add = format!("{PAGE}/orders/add");
    let page = browser.refused(&add, &[("url", "nowhere")], 400).await;
    expect_texts(&page, &["value=\"nowhere\"", "role=\"alert\""]);
    expect_marked(&page, "url", "endpoint has invalid scheme");
    let long = "n".repeat(257);
    let page = browser.refused(&add, &[("url", "https://example.com/"), ("name", &long)], 400).await;
    expect_marked(&page, "name", "name must have at most");
    assert_eq!(server.get("/v2/topics/orders").expect(200).await.json().get("headers"), None);
    server.finish().await;
}

#[tokio::test]
async fn read_only_tokens_and_other_tenants_change_nothing() {
    let server = TestServer::with(Setup::serve()).await;
    let one = json!({ "endpoints": [{ "url": "https://example.com/" }] });
    server.post("/v2/topics/orders/endpoints").json(&one).expect(200).await;
    let before = server.get("/v2/topics/orders").expect(200).await.json();
    let reader = Browser::log_in(&server, READ_ONLY).await;
    expect_texts(&reader.see(&format!("{PAGE}/orders")).await, &["Your token is read-only"]);
    let endpoint = [("url", "https://example.com/"), ("group", "orders"), ("headers", "Upstash-Retries: 1")];
    for path in ["", "/orders/add", "/orders/remove", "/orders/headers", "/orders/delete"] {
        reader.refused(&format!("{PAGE}{path}"), &endpoint, 403).await;
    }
    let other = Browser::log_in(&server, TOKEN_B).await;
    assert_eq!(other.look(&format!("{PAGE}/orders")).await.status, 404);
    other.press(&format!("{PAGE}/orders/delete"), &[]).await;
    assert_eq!(server.get("/v2/topics/orders").expect(200).await.json(), before);
    server.finish().await;
}
