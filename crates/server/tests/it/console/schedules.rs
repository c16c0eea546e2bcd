//! The pages of schedules.

use super::{Browser, expect_marked, expect_texts};
use crate::support::server::{READ_ONLY, START_MS, TOKEN_B};
use crate::support::{Receiver, Reply, Setup, TestServer, eventually};
use serde_json::json;

const PAGE: &str = "/console/schedules";
const NEW: &str = "/console/schedules/make/new";
const MINUTE: u64 = 60_000;

#[tokio::test]
async fn a_schedule_is_created_paused_resumed_and_deleted() {
    let server = TestServer::start().await;
    let receiver = Receiver::start().await;
    let browser = Browser::open(&server);
    expect_texts(&browser.see(PAGE).await, &["No schedules yet", NEW]);
    let fields = [
        ("id", "tick"),
        ("expression", "* * * * *"),
        ("destination", &receiver.url("/a?b=c")),
        ("method", "PUT"),
        ("body", "one\r\ntwo"),
        ("retries", "0"),
        ("headers", "Upstash-Forward-X: 1\r\nContent-Type: text/plain"),
    ];
    assert_eq!(browser.press(PAGE, &fields).await, "Schedule tick saved.");
    expect_texts(&browser.see(PAGE).await, &["tick", "* * * * *", "not yet", "in 60 s"]);
    receiver.script("/a", [Reply::status(500)]);
    server.advance(MINUTE).await;
    let delivery = receiver.next().await;
    assert_eq!((delivery.method.as_str(), delivery.text().as_str()), ("PUT", "one\ntwo"));
    assert_eq!(delivery.header("x"), Some("1"));
    eventually("the failure shows", || async { browser.see(PAGE).await.contains("failed</span>").then_some(()) }).await;

    let page = browser.see(&format!("{PAGE}/tick")).await;
    let message =
        server.schedule("tick").await["lastScheduleStates"].as_object().and_then(|m| m.keys().next().cloned());
    expect_texts(&page, &["Next times", "X: 1", "one\ntwo", &format!("/console/messages/{}", message.unwrap())]);
    assert_eq!(page.matches("Mon 2026-06-01 12:").count(), 10, "{page}");

    browser.press(&format!("{PAGE}/tick/pause"), &[("next", PAGE)]).await;
    expect_texts(&browser.see(PAGE).await, &["paused</span>", "would fire"]);
    browser.press(&format!("{PAGE}/tick/resume"), &[]).await;
    assert_eq!(server.schedule("tick").await["isPaused"], false);
    browser.press(&format!("{PAGE}/tick/delete"), &[]).await;
    server.get("/v2/schedules/tick").expect(404).await;
    browser.refused(&format!("{PAGE}/tick/run"), &[], 404).await;
    assert_eq!(browser.look(&format!("{PAGE}/tick")).await.status, 404);
    server.finish().await;
}

#[tokio::test]
async fn the_times_of_an_expression_are_previewed() {
    let server = TestServer::start().await;
    let browser = Browser::open(&server);
    // The clocks of Troll go back on 25 October: the day is too far to be among the next ten of a daily one.
    let page = browser.see(&format!("{NEW}?expression=CRON_TZ%3DAntarctica/Troll+30+1+25+10+*&body=kept")).await;
    expect_texts(&page, &["Antarctica/Troll", "Sun 2026-10-25 01:30", "2026-10-24 23:30", "repeated time", "kept"]);
    expect_texts(&page, &["01:00 to 03:00 occurs twice; it fires only the first time", "data-preview=\"preview\""]);
    let page = browser.see(&format!("{NEW}?expression=61+*+*+*+*")).await;
    let text = "Upstash-Cron: invalid cron expression: minute does not accept &quot;61&quot;";
    expect_texts(&page, &[text, "id=\"preview\""]);
    expect_texts(&browser.see(NEW).await, &["The next times appear here."]);
    let evil = browser.see(&format!("{NEW}?expression=%3Cscript%3E&destination=%22%3E%3Cimg%3E")).await;
    assert!(!evil.contains("<script>") && !evil.contains("<img>"), "{evil}");
    server.finish().await;
}

#[tokio::test]
async fn a_refused_schedule_is_shown_again_with_its_input_and_the_field_is_marked() {
    let server = TestServer::start().await;
    let browser = Browser::open(&server);
    let url = "https://example.com";
    for (expression, destination, id, headers, status, field, text) in [
        ("* * * *", url, "", "", 400, "expression", "Upstash-Cron: invalid cron expression: 4 fields"),
        ("@daily", "ftp://example.com", "", "", 400, "destination", "endpoint has invalid scheme"),
        ("@daily", "no-group", "", "", 404, "destination", "topic no-group not found"),
        ("@daily", "https://example.com/a b", "", "", 400, "destination", "invalid uri character"),
        ("@daily", "", "", "", 400, "destination", "is neither a URL nor the name of a URL group"),
        ("@daily", url, "a/b", "", 400, "id", "Upstash-Schedule-Id"),
        ("@daily", url, "", "nothing", 400, "headers", "is not a header"),
        ("@daily", url, "", "Upstash-Header-Forward: x", 400, "headers", "Upstash-Header-Forward"),
    ] {
        let fields = [("expression", expression), ("destination", destination), ("id", id), ("headers", headers)];
        let page = browser.refused(PAGE, &[&fields[..], &[("body", "kept")]].concat(), status).await;
        expect_texts(&page, &[text, "role=\"alert\"", "kept", &format!("value=\"{expression}\"")]);
        expect_marked(&page, field, text);
    }
    // A path that pauses something is no destination.
    server.schedule_with(url, &[("Upstash-Cron", "@daily"), ("Upstash-Schedule-Id", "named")], "").await;
    for destination in ["named/pause", "named/run", "api/run", "https:/pause"] {
        browser.refused(PAGE, &[("expression", "@daily"), ("destination", destination)], 400).await;
    }
    assert_eq!((server.schedule("named").await["isPaused"].as_bool(), server.counts().live), (Some(false), 0));
    assert_eq!(server.get("/v2/schedules").expect(200).await.json().as_array().map(Vec::len), Some(1));
    server.finish().await;
}

#[tokio::test]
async fn the_times_are_changed_and_everything_else_is_kept() {
    let server = TestServer::start().await;
    let browser = Browser::open(&server);
    let headers = [
        ("Upstash-Cron", "@daily"),
        ("Upstash-Schedule-Id", "named"),
        ("Upstash-Callback", "https://example.com/callback"),
        ("Upstash-Callback-Retries", "9"),
        ("Upstash-Redact-Fields", "body"),
    ];
    server.schedule_with("https://example.com", &headers, "secret").await;
    let before = server.schedule("named").await;
    let page = browser.see(&format!("{PAGE}/named?expression=CRON_TZ%3DEurope/Berlin+0+8+*+*+*")).await;
    expect_texts(&page, &["Europe/Berlin", "2026-06-02 08:00", "2026-06-02 06:00", "REDACTED:"]);
    let times = format!("{PAGE}/named/times");
    let refused = browser.refused(&times, &[("expression", "soon")], 400).await;
    expect_texts(&refused, &["1 fields", "value=\"soon\""]);
    expect_marked(&refused, "expression", "Upstash-Cron: ");
    assert_eq!(server.schedule("named").await, before);
    browser.press(&times, &[("expression", "0 8 * * *")]).await;
    let mut expected = before;
    expected["cron"] = json!("0 8 * * *");
    expected["nextScheduleTime"] = json!(START_MS + 20 * 60 * MINUTE);
    assert_eq!(server.schedule("named").await, expected);

    // A copy says what it does not have.
    let page = browser.see(&format!("{NEW}?from=named")).await;
    expect_texts(
        &page,
        &["Not copied: the body, which is hidden; settings of the callbacks", "value=\"https://example.com/callback\""],
    );
    assert!(!page.contains("REDACTED"), "{page}");
    server.finish().await;
}

#[tokio::test]
async fn a_replaced_schedule_keeps_its_redaction() {
    let server = TestServer::start().await;
    let browser = Browser::open(&server);
    let headers = [
        ("Upstash-Cron", "@daily"),
        ("Upstash-Schedule-Id", "named"),
        ("Upstash-Forward-X-Secret", "in the header"),
        ("Upstash-Redact-Fields", "header[x-secret],body"),
        ("Upstash-Callback", "https://example.com/callback"),
        ("Upstash-Callback-Redact-Fields", "header"),
    ];
    server.schedule_with("https://example.com", &headers, "in the body").await;
    let before = server.schedule("named").await;
    assert_eq!(
        (&before["redactFields"], &before["callbackRedactFields"]),
        (&json!("body, header[X-Secret]"), &json!("header"))
    );
    assert_eq!(before.get("failureCallbackRedactFields"), None);
    let (redact, of_callback) = ("body, header[X-Secret]", "Upstash-Callback-Redact-Fields: header");
    let page = browser.see(&format!("{NEW}?from=named")).await;
    expect_texts(&page, &[&format!("name=\"redact\" value=\"{redact}\""), of_callback]);
    expect_texts(&browser.see(&format!("{PAGE}/named")).await, &["<dt>Redact</dt>", redact]);
    let headers = format!("{of_callback}\r\nUpstash-Forward-X-Secret: in the header");
    let fields = [
        ("from", "named"),
        ("id", "named"),
        ("expression", "@daily"),
        ("destination", "https://example.com"),
        ("method", "POST"),
        ("body", "in the body"),
        ("retries", "3"),
        ("redact", redact),
        ("callback", "https://example.com/callback"),
        ("headers", &headers),
    ];
    browser.press(PAGE, &fields).await;
    assert_eq!(server.schedule("named").await, before, "all of it, the marks too");
    server.finish().await;
}

#[tokio::test]
async fn a_schedule_is_run_now() {
    let server = TestServer::start().await;
    let receiver = Receiver::start().await;
    let browser = Browser::open(&server);
    let headers = [("Upstash-Cron", "@daily"), ("Upstash-Schedule-Id", "named")];
    server.schedule_with(&receiver.url("/"), &headers, "now").await;
    let said = browser.press(&format!("{PAGE}/named/run"), &[]).await;
    let delivery = receiver.next().await;
    assert_eq!(delivery.text(), "now");
    assert!(said.contains(delivery.header("upstash-message-id").expect("an id")), "{said}");
    server.finish().await;
}

#[tokio::test]
async fn read_only_tokens_and_other_tenants_change_nothing() {
    let server = TestServer::with(Setup::serve()).await;
    let headers = [("Upstash-Cron", "@daily"), ("Upstash-Schedule-Id", "named")];
    server.schedule_with("https://example.com", &headers, "").await;
    let before = server.schedule("named").await;
    let reader = Browser::log_in(&server, READ_ONLY).await;
    expect_texts(&reader.see(&format!("{PAGE}/named")).await, &["Your token is read-only", "Next times"]);
    let fields = [("expression", "@hourly"), ("destination", "https://example.com"), ("id", "named")];
    for path in ["", "/named/times", "/named/run", "/named/pause", "/named/delete"] {
        reader.refused(&format!("{PAGE}{path}"), &fields, 403).await;
    }
    let other = Browser::log_in(&server, TOKEN_B).await;
    expect_texts(&other.see(PAGE).await, &["No schedules yet"]);
    for path in ["/named/times", "/named/run", "/named/pause", "/named/delete"] {
        other.refused(&format!("{PAGE}{path}"), &fields, 404).await;
    }
    assert_eq!(other.look(&format!("{NEW}?from=named")).await.status, 404);
    assert_eq!(server.schedule("named").await, before);
    assert_eq!(server.counts().live, 0);
    server.finish().await;
}
