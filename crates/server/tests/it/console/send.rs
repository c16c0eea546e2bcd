//! The page Send: its form publishes, a refused form keeps its input, and the test receiver shows deliveries.

use super::{Browser, expect_marked, expect_texts, location};
use crate::support::server::{READ_ONLY, TOKEN};
use crate::support::{Receiver, Setup, TestServer, eventually};

#[tokio::test]
async fn a_form_with_every_option_becomes_a_message() {
    let server = TestServer::start().await;
    let receiver = Receiver::start().await;
    let browser = Browser::of_tenant(&server, "tenant-a");
    let destination = receiver.url("/hook?a=b&c=d");
    let callback = receiver.url("/callback");
    let fields = [
        ("do", "send"),
        ("destination", destination.as_str()),
        ("queue", "orders"),
        ("method", "PUT"),
        ("content_type", "text/plain"),
        ("body", "a body &\r\nmore"),
        ("headers", "X-One: 1\r\nX-Two: 2"),
        ("delay", "10s"),
        ("retries", "5"),
        ("retry_delay", "1000 * retried"),
        ("timeout", "30s"),
        ("dedup_id", "only-once"),
        ("callback", callback.as_str()),
        ("failure_callback", callback.as_str()),
        ("flow_key", "key"),
        ("flow_rate", "10"),
        ("flow_period", "1m"),
        ("label", "blue"),
        ("redact", "header[X-Two]"),
        ("options", "Upstash-Callback-Retries: 1\r\nUpstash-Callback-Forward-X-Kind: yes"),
    ];
    let sent = browser.send("/console/send", &fields).await;
    let back = location(&sent);
    let id = back.split("sent=").nth(1).expect("the id is in the query").to_owned();
    assert!(back.starts_with("/console/send?") && !back.contains("body") && !back.contains("X-One"), "{back}");
    assert!(!back.contains("X-Kind") && !back.contains("only-once"), "{back}");
    let page = browser.see(back).await;
    assert!(page.contains(&format!("<a href=\"/console/messages/{}\"", id)), "{page}");
    assert!(page.contains("value=\"1000 * retried\"") && page.contains(">PUT<"), "what was typed is still there");
    expect_texts(&page, &[">\na body &amp;\nmore</textarea>", ">\nX-One: 1</textarea>"]);
    expect_texts(&page, &[">\nUpstash-Callback-Retries: 1\nUpstash-Callback-Forward-X-Kind: yes</textarea>"]);
    expect_texts(&page, &["X-Two (hidden), deduplication ID (only its hash is stored)."]);

    let message = server.get(&format!("/v2/messages/{id}")).expect(200).await.json();
    for (name, expected) in [
        ("url", destination.as_str()),
        ("queueName", "orders"),
        ("method", "PUT"),
        ("body", "a body &\nmore"),
        ("retryDelayExpression", "1000 * retried"),
        ("callback", callback.as_str()),
        ("failureCallback", callback.as_str()),
        ("flowControlKey", "key"),
        ("label", "blue"),
    ] {
        assert_eq!(message[name], expected, "{name} of {message}");
    }
    assert_eq!((&message["maxRetries"], &message["timeout"], &message["rate"]), (&5.into(), &30.into(), &10.into()));
    assert_eq!(message["header"]["X-One"][0], "1");
    assert_eq!(message["callbackHeader"]["X-Kind"][0], "yes", "{message}");
    // With the same id something else is a duplicate too: the page says so, and what was typed stays.
    let fields = fields.map(|(name, value)| if name == "body" { (name, "another") } else { (name, value) });
    let again = browser.refused("/console/send", &fields, 200).await;
    expect_texts(&again, &["Duplicate: the same message", ">\nanother</textarea>", "value=\"only-once\"", &id]);
    server.delete(&format!("/v2/messages/{id}")).expect(202).await;
    server.finish().await;
}

#[tokio::test]
async fn a_refused_form_keeps_its_input_and_marks_the_field() {
    let server = TestServer::start().await;
    let browser = Browser::of_tenant(&server, "tenant-a");
    let hostile = "</textarea><script>alert(1)</script>";
    let fields = [
        ("do", "send"),
        ("destination", "ftp://x/\"><script>alert(2)</script>"),
        ("body", hostile),
        ("headers", "no colon"),
        ("label", "\"><img src=x onerror=alert(3)>"),
    ];
    let answer = browser.refused("/console/send", &fields, 400).await;
    let text = "Headers for the receiver: &quot;no colon&quot; is not a header; write Name: value, one per line";
    expect_marked(&answer, "headers", text);
    let fields: Vec<(&str, &str)> = fields.into_iter().filter(|(name, _)| *name != "headers").collect();
    let page = browser.refused("/console/send", &fields, 400).await;
    assert!(page.contains("role=\"alert\"") && page.contains("invalid scheme"), "{page}");
    expect_marked(&page, "destination", "invalid scheme");
    assert!(
        page.contains("&lt;/textarea&gt;&lt;script&gt;alert(1)") && page.contains("&lt;script&gt;alert(2)"),
        "{page}"
    );
    assert!(!page.contains("<script>alert") && !page.contains("<img src=x"), "{page}");
    // A form that was left with a body that begins with an empty line keeps it.
    let page = browser.refused("/console/send", &[("do", "plan"), ("body", "\nx")], 200).await;
    assert!(page.contains("\n\nx</textarea>"), "{page}");
    server.finish().await;
}

#[tokio::test]
async fn each_field_that_the_api_refuses_is_marked() {
    let server = TestServer::start().await;
    let browser = Browser::of_tenant(&server, "tenant-a");
    for (field, value, text) in [
        ("destination", "no-group", "topic no-group not found"),
        ("destination", "", "a non-empty destination"),
        ("queue", "a b", "the name of a queue"),
        ("delay", "soon", "Upstash-Delay: "),
        ("delay", "9999d", "quota maxDelay exceeded"),
        ("not_before", "tomorrow", "Upstash-Not-Before: "),
        ("timeout", "99h", "quota timeout exceeded"),
        ("retries", "many", "Upstash-Retries: "),
        ("retries", "5000", "quota maxRetries exceeded"),
        ("retry_delay", "log(1)", "Upstash-Retry-Delay: "),
        ("callback", "elsewhere", "Upstash-Callback: "),
        ("failure_callback", "elsewhere", "Upstash-Failure-Callback: "),
        ("flow_period", "soon", "Upstash-Flow-Control-Value: "),
        ("flow_rate", "many", "Upstash-Flow-Control-Value: "),
        ("redact", "passwords", "Upstash-Redact-Fields: "),
        ("options", "Upstash-Callback-Retries: many", "Upstash-Callback-Retries: "),
        ("options", "no colon", "API headers: "),
    ] {
        let url = "https://example.com/";
        let rest = [("do", "send"), ("destination", url), ("flow_key", "k"), ("flow_rate", "1"), ("callback", url)];
        let rest = rest.into_iter().filter(|(name, _)| *name != field);
        let fields: Vec<(&str, &str)> = rest.chain([(field, value)]).collect();
        let answer = browser.send("/console/send", &fields).await;
        let page = answer.text();
        assert!((400..500).contains(&answer.status), "{field} {value}: {page}");
        expect_texts(&page, &["role=\"alert\""]);
        expect_marked(&page, field, text);
    }
    assert_eq!(server.counts().live, 0, "nothing was sent");
    server.finish().await;
}

#[tokio::test]
async fn the_attempts_are_previewed_without_sending() {
    let server = TestServer::start().await;
    let browser = Browser::of_tenant(&server, "tenant-a");
    let page = browser.see("/console/send?destination=https%3A%2F%2Fexample.com%2F").await;
    assert!(page.contains("value=\"https://example.com/\""));
    assert!(page.contains("Attempts at 0 s, 12 s, 2 min 40 s, 32 min 48 s; gives up after 32 min 48 s."), "{page}");
    let fields = [("do", "plan"), ("retries", "2"), ("retry_delay", "500"), ("body", "kept")];
    let page = browser.refused("/console/send", &fields, 200).await;
    assert!(page.contains("Attempts at 0 s, 500 ms, 1 s; gives up after 1 s.") && page.contains("kept"), "{page}");
    let piece = browser.see("/console/send/plan?retries=1&retry_delay=sqrt(-1)").await;
    assert!(piece.contains("id=\"retry-plan\"") && piece.contains("not a number when retried is 0"), "{piece}");
    assert_eq!(server.counts().live, 0, "nothing was sent");
    server.finish().await;
}

#[tokio::test]
async fn the_test_receiver_is_filled_in_and_shows_deliveries_as_text() {
    let server = TestServer::start().await;
    let browser = Browser::of_tenant(&server, "tenant-a");
    let url = server.get("/v2/receiver").expect(200).await.json()["url"].as_str().expect("text").to_owned();
    let page = browser.see("/console/send").await;
    assert!(page.contains(&format!("value=\"{url}/200\"")) && page.contains("No deliveries yet"), "{page}");
    let page = browser.refused("/console/send", &[("do", "use:500,500,200"), ("body", "kept")], 200).await;
    assert!(page.contains(&format!("value=\"{url}/500,500,200\"")) && page.contains("kept"), "{page}");
    assert!(page.contains("Attempts at 0 s, 1 s, 2 s, 3 s"), "a first try takes seconds: {page}");
    let choice = [("do", "use"), ("script_status", "418"), ("script_delay", "3s")];
    let page = browser.refused("/console/send", &choice, 200).await;
    assert!(page.contains(&format!("value=\"{url}/418+3s\"")), "{page}");
    let wrong = [("do", "use"), ("script_status", "9"), ("script_delay", "")];
    assert!(browser.refused("/console/send", &wrong, 400).await.contains("200 to 599"));

    let hostile = "<script>alert(1)</script>";
    let fields =
        [("do", "send"), ("destination", &format!("{url}/489")), ("body", hostile), ("headers", "X-Evil: <b>")];
    browser.send("/console/send", &fields).await;
    let piece = eventually("the delivery is shown", || async {
        let piece = browser.see("/console/send/received").await;
        piece.contains("attempt 1").then_some(piece)
    });
    let piece = piece.await;
    assert!(piece.contains("valid signature, current key") && piece.contains(">489<"), "{piece}");
    assert!(piece.contains("&lt;script&gt;alert(1)") && piece.contains("X-Evil: &lt;b&gt;"), "{piece}");
    assert!(!piece.contains("<script>") && !piece.to_lowercase().contains("upstash-signature"), "{piece}");
    assert!(!Browser::of_tenant(&server, "tenant-b").see("/console/send").await.contains("alert(1)"));
    browser.send("/console/send/forget", &[]).await;
    assert!(browser.see("/console/send").await.contains("No deliveries yet"));
    server.finish().await;
}

#[tokio::test]
async fn a_message_about_an_action_is_shown_once() {
    let server = TestServer::start().await;
    let page = |fetched: Option<&'static str>| {
        let request = server.get("/console/send").without("Authorization");
        let request = request.header("Cookie", "posthaste-tenant=tenant-a; posthaste-flash=It%20is%20done");
        fetched.into_iter().fold(request, |request, what| request.header("Sec-Fetch-Dest", what)).send()
    };
    for fetched in [None, Some("document")] {
        let answer = page(fetched).await;
        assert!(answer.text().contains("<p class=\"flash\" role=\"status\">It is done</p>"));
        let cookie = answer.header("set-cookie").expect("it is taken away");
        assert!(cookie.starts_with("posthaste-flash=;") && cookie.ends_with("Max-Age=0"), "{cookie}");
    }
    assert_eq!(page(Some("empty")).await.header("set-cookie"), None, "a part of a page shows no message");
    let other = server.get("/console/send").without("Authorization").header("Cookie", "posthaste-tenant=tenant-a");
    assert_eq!(other.send().await.header("set-cookie"), None);
    server.finish().await;
}

#[tokio::test]
async fn a_read_only_token_cannot_send() {
    let mut setup = Setup::serve();
    setup.settings.console_receiver = Some(true);
    let server = TestServer::with(setup).await;
    let reader = Browser::log_in(&server, READ_ONLY).await;
    let page = reader.see("/console/send").await;
    assert!(page.contains("value=\"send\" disabled"), "{page}");
    let forged = format!("Authorization: Bearer {TOKEN}");
    let fields = [("do", "send"), ("destination", "https://example.com/"), ("options", &forged)];
    assert!(
        reader
            .refused("/console/send", &fields, 400)
            .await
            .contains("Authorization is not an option; option names start with Upstash-")
    );
    let fields = [("do", "send"), ("destination", "https://example.com/"), ("body", "kept")];
    let page = reader.refused("/console/send", &fields, 403).await;
    assert!(page.contains("read-only token") && page.contains("kept"), "{page}");
    assert!(!page.contains("aria-invalid"), "no field is at fault: {page}");
    reader.refused("/console/send/forget", &[], 403).await;
    let foreign = server.post("/console/send").header("Origin", "https://evil.example").body("do=send");
    foreign.expect(403).await;
    assert_eq!(server.counts().live, 0, "nothing was sent");
    server.finish().await;

    let off = TestServer::with(Setup::serve()).await;
    let page = Browser::log_in(&off, TOKEN).await.see("/console/send").await;
    assert!(page.contains("console_receiver = true"), "it says how to switch it on: {page}");
    off.finish().await;
}
