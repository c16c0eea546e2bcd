//! The pages of flow-control keys.

use super::{Browser, expect_marked, expect_texts};
use crate::support::server::{READ_ONLY, TOKEN_B};
use crate::support::{Receiver, Setup, TestServer};
use serde_json::json;

const PAGE: &str = "/console/flow-control";
const KEY: &str = "/console/flow-control/key";
/// A key that is no path, no query and no HTML.
const EVIL: &str = "a/b?c=<img src=x>&d";
const EVIL_SHOWN: &str = "a/b?c=&lt;img src=x&gt;&amp;d";

fn flow_path(key: &str) -> String {
    format!("/v2/flowControl/{}", percent_encoding::utf8_percent_encode(key, percent_encoding::NON_ALPHANUMERIC))
}

#[tokio::test]
async fn keys_are_shown_paused_pinned_and_reset() {
    let server = TestServer::start().await;
    let receiver = Receiver::start().await;
    let browser = Browser::open(&server);
    let page = browser.see(PAGE).await;
    expect_texts(&page, &["No flow-control keys", "of 1\u{202f}000 allowed"]);
    let list = "id=\"flow-list\" data-refresh=\"10000\" data-also=\"flow-figures flow-search\"";
    expect_texts(&page, &[list]);

    let headers =
        [("Upstash-Flow-Control-Key", EVIL), ("Upstash-Flow-Control-Value", "rate=1, period=1h, parallelism=4")];
    let first = server.publish_with(&receiver.url("/"), &headers, "").await;
    receiver.next().await;
    server.reaches(&first, &["CREATED", "ACTIVE", "DELIVERED"]).await;
    for _ in 0..2 {
        server.publish_with(&receiver.url("/"), &headers, "").await;
    }
    let page = browser.see(PAGE).await;
    expect_texts(&page, &[EVIL_SHOWN, "1 of 1 per hour", "<td class=\"number\">2</td>"]);
    assert!(!page.contains("<img src=x"), "{page}");
    expect_texts(&page, &[list]);
    assert_eq!(page.matches("data-refresh").count(), 1, "one request brings all: {page}");

    let of_key =
        format!("{KEY}?key={}", percent_encoding::utf8_percent_encode(EVIL, percent_encoding::NON_ALPHANUMERIC));
    expect_texts(&browser.see(&of_key).await, &[EVIL_SHOWN, "due but not in flight", "value=\"3600s\"", "value=\"4\""]);

    let act = async |action: &str, more: &[(&str, &str)]| {
        browser.press(KEY, &[&[("key", EVIL), ("action", action)], more].concat()).await
    };
    let shown = async || server.get(&flow_path(EVIL)).expect(200).await.json();
    act("pause", &[]).await;
    assert_eq!(shown().await["isPaused"], true);
    act("resume", &[]).await;
    assert_eq!(shown().await["isPaused"], false);
    act("pin", &[("parallelism", "9"), ("rate", ""), ("period", "1s")]).await;
    let pinned = shown().await;
    assert_eq!((&pinned["parallelismMax"], &pinned["isPinnedParallelism"]), (&json!(9), &json!(true)));
    assert_eq!((&pinned["rateMax"], &pinned["isPinnedRate"]), (&json!(1), &json!(false)));
    expect_texts(&browser.see(&of_key).await, &["parallelism pinned", "Unpin parallelism"]);
    act("unpin", &[("parallelism", "true")]).await;
    assert_eq!(shown().await["isPinnedParallelism"], false);
    act("resetRate", &[]).await;
    receiver.next().await;
    act("reset", &[]).await;
    receiver.next().await;
    browser.refused(KEY, &[("key", EVIL), ("action", "drop")], 404).await;
    server.finish().await;
}

#[tokio::test]
async fn a_key_can_be_pinned_before_its_first_message() {
    let server = TestServer::start().await;
    let browser = Browser::open(&server);
    expect_texts(&browser.see(&format!("{KEY}?key=fresh")).await, &["No message uses this key now", "Pause"]);
    let page =
        browser.refused(KEY, &[("key", "fresh"), ("action", "pin"), ("rate", "5"), ("period", "soon")], 400).await;
    expect_texts(&page, &["role=\"alert\"", "value=\"soon\"", "value=\"5\""]);
    expect_marked(&page, "period", "period must be a duration");
    browser.press(KEY, &[("key", "fresh"), ("action", "pin"), ("rate", "5"), ("period", "1m")]).await;
    let key = server.flow("fresh").await;
    assert_eq!((&key["rateMax"], &key["ratePeriod"], &key["isPinnedRate"]), (&json!(5), &json!(60), &json!(true)));
    expect_texts(&browser.see(&format!("{PAGE}?search=res")).await, &["fresh", "rate pinned"]);
    expect_texts(&browser.see(&format!("{PAGE}?search=old")).await, &["No keys match"]);
    server.finish().await;
}

#[tokio::test]
async fn read_only_tokens_and_other_tenants_change_nothing() {
    let server = TestServer::with(Setup::serve()).await;
    server.post("/v2/flowControl/key/pin?parallelism=2").expect(200).await;
    let reader = Browser::log_in(&server, READ_ONLY).await;
    expect_texts(&reader.see(&format!("{KEY}?key=key")).await, &["Your token is read-only"]);
    for action in ["pause", "unpin", "resetRate", "reset"] {
        reader.refused(KEY, &[("key", "key"), ("action", action), ("parallelism", "true")], 403).await;
    }
    let other = Browser::log_in(&server, TOKEN_B).await;
    expect_texts(&other.see(PAGE).await, &["No flow-control keys"]);
    other.press(KEY, &[("key", "key"), ("action", "pause")]).await;
    let key = server.flow("key").await;
    assert_eq!((&key["isPaused"], &key["isPinnedParallelism"]), (&json!(false), &json!(true)));
    server.finish().await;
}
