//! The list of messages, and the page of one.

use super::{Browser, expect_texts, location};
use crate::support::server::{READ_ONLY, TOKEN};
use crate::support::{Receiver, Reply, Setup, TestServer, eventually};
use serde_json::json;

const PAGE: &str = "/console/messages";
const HOSTILE: &str = "<script>alert(1)</script>";

fn page_of(id: &str) -> String {
    format!("{PAGE}/{id}")
}

#[tokio::test]
async fn the_list_shows_the_state_of_messages_and_filters_them() {
    let server = TestServer::start().await;
    let browser = Browser::open(&server);
    expect_texts(&browser.see(PAGE).await, &["No messages yet", "/v2/publish/"]);
    let receiver = Receiver::start().await;
    receiver.script("/failed", [Reply::status(500)]);
    let delivered = server.publish_with(&receiver.url("/ok"), &[("Upstash-Label", "red")], "").await;
    server.reaches(&delivered, &["CREATED", "ACTIVE", "DELIVERED"]).await;
    let once = [("Upstash-Retries", "0")];
    let failed = server.publish_with(&receiver.url("/failed"), &once, "").await;
    server.reaches(&failed, &["CREATED", "ACTIVE", "ERROR", "FAILED"]).await;
    let delayed = server.publish_with(&receiver.url("/later"), &[("Upstash-Delay", "1h")], "").await;
    let page = browser.see(PAGE).await;
    expect_texts(&page, &[&delivered, &failed, &delayed, ">delivered</span>", ">failed</span>", ">scheduled</span>"]);
    expect_texts(&page, &["title=\"500\"", "Send now", &format!("value=\"{delayed}\" form=\"selection\"")]);
    assert!(!page.contains(&format!("value=\"{failed}\" form")), "ended messages cannot be selected");

    for (query, expected) in [
        ("label=red", vec![&delivered]),
        ("state=FAILED", vec![&failed]),
        ("path=%2Flater", vec![&delayed]),
        (&format!("messageId={failed}"), vec![&failed]),
        ("fromDate=2026-06-01T11%3A00&toDate=2026-06-01T13%3A00", vec![&delivered, &failed, &delayed]),
        ("fromDate=2026-06-01T13%3A00", vec![]),
        ("label=&state=&host=", vec![&delivered, &failed, &delayed]),
    ] {
        let page = browser.see(&format!("{PAGE}?{query}")).await;
        for id in [&delivered, &failed, &delayed] {
            assert_eq!(page.contains(&format!("{PAGE}/{id}\"")), expected.contains(&id), "{query}: {id}");
        }
        assert_eq!(page.contains("No messages match"), expected.is_empty(), "{query}");
    }
    let page = browser.see(&format!("{PAGE}?fromDate=soon")).await;
    expect_texts(&page, &["role=\"alert\"", "is not a time; write it as", "name=\"fromDate\""]);
    let others = Browser::of_tenant(&server, "tenant-b");
    expect_texts(&others.see(PAGE).await, &["No messages yet"]);
    server.delete(&format!("/v2/messages/{delayed}")).expect(202).await;
    server.finish().await;
}

#[tokio::test]
async fn a_long_list_has_pages() {
    let server = TestServer::start().await;
    let receiver = Receiver::start().await;
    let mut ids = Vec::new();
    for _ in 0..60 {
        ids.push(server.publish_with(&receiver.url("/"), &[("Upstash-Label", "all")], "").await);
    }
    receiver.take(60).await;
    eventually("all are delivered", || async { (server.counts().live == 0).then_some(()) }).await;
    let browser = Browser::open(&server);
    let first = browser.see(&format!("{PAGE}?label=all")).await;
    let next =
        first.split("href=\"").find(|part| part.contains("rel=\"next\"")).and_then(|part| part.split('"').next());
    let next = next.expect("there is a next page").replace("&amp;", "&");
    assert!(next.contains("label=all"), "{next}");
    let second = browser.see(&next).await;
    let on = |page: &str| ids.iter().filter(|id| page.contains(&format!("{PAGE}/{id}\""))).count();
    assert_eq!((on(&first), on(&second)), (50, 10));
    assert!(ids.iter().all(|id| first.contains(id.as_str()) || second.contains(id.as_str())));
    server.finish().await;
}

#[tokio::test]
async fn the_question_before_a_cancel_of_all_counts_all_pending_messages() {
    let server = TestServer::start().await;
    let item = json!({ "destination": "http://127.0.0.1:9/", "headers": { "Upstash-Delay": "1h" } });
    let batch = serde_json::Value::from(vec![item; 111]);
    let answer = server.post("/v2/batch").body(batch.to_string()).send().await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    let browser = Browser::open(&server);
    expect_texts(&browser.see(&format!("{PAGE}/question/matching")).await, &["This cancels 111 messages."]);
    let other = Browser::of_tenant(&server, "tenant-b");
    assert_eq!(other.look(&format!("{PAGE}/question/matching")).await.status, 404, "another tenant has none");
    server.finish_with_pending().await;
}

#[tokio::test]
async fn messages_are_cancelled_singly_by_selection_and_by_filter() {
    let server = TestServer::start().await;
    let receiver = Receiver::start().await;
    let publish = async |label| {
        server.publish_with(&receiver.url("/"), &[("Upstash-Delay", "1h"), ("Upstash-Label", label)], "").await
    };
    let browser = Browser::open(&server);
    let ids = [publish("a").await, publish("a").await, publish("a").await, publish("b").await, publish("c").await];
    let next = format!("{PAGE}?label=a");
    let said = browser.press(&format!("{}/cancel", page_of(&ids[0])), &[("next", &next)]).await;
    assert_eq!(said, format!("Cancelled {}.", ids[0]));
    server.reaches(&ids[0], &["CREATED", "CANCEL_REQUESTED", "CANCELED"]).await;
    let said = browser.press(&format!("{PAGE}/cancel"), &[("id", &ids[0]), ("id", &ids[1]), ("next", &next)]).await;
    assert_eq!(said, "Cancelled 1 of 2 messages. The others had already ended.");
    for nothing in [&[("next", next.as_str())][..], &[("id", ""), ("next", &next)], &[("id", " "), ("next", &next)]] {
        let said = browser.press(&format!("{PAGE}/cancel"), nothing).await;
        assert_eq!(said, "No messages are selected. Nothing was changed.", "and not everything");
    }
    assert_eq!(server.counts().live, 3);

    let page = browser.see(&next).await;
    expect_texts(
        &page,
        &[&format!("data-ask=\"{PAGE}/question/matching\""), "data-ask=\"/console/messages/question/ticked\""],
    );
    for (query, expected) in [
        ("label=a&toDate=", "with Label: a? This cancels 1 message."),
        ("label=a,b&cursor=1-1", "with Label: a,b? This cancels 2 messages."),
        (
            "label=a&fromDate=1",
            "This cancels 1 message. Running attempts will finish; there will be no retries. The dates apply to the time of \
             publishing.",
        ),
        ("", "This cancels 3 messages."),
    ] {
        expect_texts(&browser.see(&format!("{PAGE}/question/matching?{query}")).await, &[expected]);
    }
    for (query, status, expected) in [
        ("fromDate=2026-06-01T13%3A00", 404, "No messages match. Nothing was changed."),
        (
            "state=CREATED",
            400,
            "messages cannot be cancelled by “State”; remove that filter or select messages in the list",
        ),
    ] {
        let answer = browser.look(&format!("{PAGE}/question/matching?{query}")).await;
        assert_eq!((answer.status, answer.text().as_str()), (status, expected));
    }
    let asked = browser.see(&format!("{PAGE}/question/ticked?id={}&id={}", ids[1], ids[2])).await;
    assert!(asked.starts_with("Cancel 2 selected messages?"), "{asked}");
    let answer = browser.look(&format!("{PAGE}/question/ticked?next=%2Fconsole&id=+")).await;
    assert_eq!((answer.status, answer.text().as_str()), (404, "No messages are selected. Nothing was changed."));
    let said = browser.press(&format!("{PAGE}/cancel-matching"), &[("label", "a"), ("next", &next)]).await;
    assert!(said.starts_with("Cancelling 1 message in the background (bulk_"), "{said}");
    eventually("it is cancelled", || async { (server.counts().live == 2).then_some(()) }).await;
    let refused = browser.refused(&format!("{PAGE}/cancel-matching"), &[("state", "CREATED")], 400).await;
    expect_texts(&refused, &["cannot be cancelled by “State”"]);
    expect_texts(&browser.see(&format!("{PAGE}?state=CREATED")).await, &["cannot be cancelled by “State”", "disabled"]);
    assert_eq!(server.counts().live, 2);

    let page = browser.see(&page_of(&ids[3])).await;
    expect_texts(&page, &["Send now", "Cancel this message? A running attempt will finish; there will be no retries."]);
    let said = browser.press(&format!("{}/retry", page_of(&ids[3])), &[]).await;
    assert_eq!(said, format!("Sending {} now.", ids[3]));
    receiver.next().await;
    eventually("it is delivered", || async { (server.counts().live == 1).then_some(()) }).await;
    let asked = browser.see(&format!("{PAGE}/question/matching")).await;
    expect_texts(&asked, &["Cancel every pending message of this tenant", "This cancels 1 message."]);
    browser.press(&format!("{PAGE}/cancel-matching"), &[]).await;
    server.finish().await;
}

#[tokio::test]
async fn a_delivery_on_an_open_connection_shows_the_time_to_the_first_byte() {
    let server = TestServer::start().await;
    let receiver = Receiver::start().await;
    let browser = Browser::open(&server);
    for (shown, hidden) in [("connect ", "connection reused"), ("connection reused", "connect ")] {
        let id = server.publish_with(&receiver.url("/"), &[], "").await;
        server.reaches(&id, &["CREATED", "ACTIVE", "DELIVERED"]).await;
        let page = browser.see(&page_of(&id)).await;
        let (_, attempt) = page.split_once("Attempt 1").expect("an attempt");
        expect_texts(attempt, &[shown, "first byte "]);
        assert!(!attempt.contains(hidden), "{attempt}");
    }
    server.finish().await;
}

#[tokio::test]
async fn a_message_shows_its_timeline_request_and_callbacks() {
    let server = TestServer::start().await;
    let receiver = Receiver::start().await;
    let angry = Reply::status(500).with_header("X-Trace", HOSTILE).with_body(format!("down {HOSTILE}"));
    receiver.script("/", [angry, Reply::status(200)]);
    let headers = [
        ("Content-Type", "text/plain"),
        ("Upstash-Retry-Delay", "1000"),
        ("Upstash-Label", HOSTILE),
        ("Upstash-Forward-X-Evil", HOSTILE),
        ("Upstash-Forward-Authorization", "Bearer top-secret"),
        ("Upstash-Redact-Fields", "header[Authorization]"),
        ("Upstash-Deduplication-Id", "order-7"),
        ("Upstash-Callback", &receiver.url("/told")),
    ];
    let id = server.publish_with(&receiver.url("/"), &headers, HOSTILE).await;
    server.reaches(&id, &["CREATED", "ACTIVE", "ERROR", "RETRY"]).await;
    receiver.take(2).await;
    let browser = Browser::open(&server);
    let page = browser.see(&page_of(&id)).await;
    let waiting = format!("attempt 2 of 4 is due in 1.0 s, after 500 from http://{}", receiver.address());
    expect_texts(&page, &[&waiting, "data-refresh", "Attempt 1", "connect ", "first byte ", "Next attempt due <time"]);
    expect_texts(&page, &["by ID (only its hash is stored)", "duplicates return this message for another 10 min"]);
    server.advance(1_000).await;
    server.reaches(&id, &["CREATED", "ACTIVE", "ERROR", "RETRY", "ACTIVE", "DELIVERED"]).await;
    receiver.take(2).await;
    server.advance(60_000).await;
    let page = browser.see(&page_of(&id)).await;
    expect_texts(
        &page,
        &["delivered on the 2nd attempt after 1.0 s", "Next attempt was due <time", "Attempt 2", ">Callbacks</h2>"],
    );
    assert!(!page.contains("data-refresh"), "what has ended stays as it is");
    let escaped = HOSTILE.replace('<', "&lt;").replace('>', "&gt;");
    assert!(!page.contains(HOSTILE), "{page}");
    for text in
        [format!("down {escaped}"), format!("<pre tabindex=\"0\">{escaped}</pre>"), format!("X-Evil: {escaped}")]
    {
        expect_texts(&page, &[&text]);
    }
    assert!(!page.contains("top-secret") && page.contains("REDACTED:"), "hidden as the API hides it");
    // The claims are those that were signed.
    let claims = server_claims(&receiver).await;
    for claim in ["iss", "sub", "body"] {
        let value = claims[claim].as_str().expect("text").replace('&', "&amp;");
        expect_texts(&page, &[&format!("<dt>{claim}</dt><dd><code>{value}</code>")]);
    }
    for claim in ["iat", "exp", "nbf"] {
        expect_texts(&page, &[&format!("<dt>{claim}</dt><dd><code>{}</code>", claims[claim])]);
    }
    // From a callback to what it tells of.
    let callback = server.events(&format!("sourceMessageId={id}&state=CREATED")).await;
    assert_eq!(callback.len(), 2);
    for line in &callback {
        let callback = line["messageId"].as_str().expect("an id");
        expect_texts(&page, &[&page_of(callback)]);
        let page = browser.see(&page_of(callback)).await;
        expect_texts(&page, &["<dt>Source</dt>", &page_of(&id), "this message is its callback"]);
    }
    server.finish().await;
}

/// What the last signed delivery of the message said.
async fn server_claims(receiver: &Receiver) -> serde_json::Value {
    receiver.rewind();
    let deliveries = receiver.take(4).await;
    let last = deliveries.iter().rfind(|delivery| delivery.target == "/").expect("it was delivered");
    let token = last.header("Upstash-Signature").expect("it is signed");
    let claims = token.split('.').nth(1).expect("claims");
    let text = posthaste_wire::encoding::from_base64(&pad(claims)).expect("base64");
    serde_json::from_slice(&text).expect("JSON")
}

fn pad(text: &str) -> String {
    let text = text.replace('-', "+").replace('_', "/");
    format!("{text}{}", "=".repeat((4 - text.len() % 4) % 4))
}

#[tokio::test]
async fn the_curl_command_publishes_the_same_message() {
    let server = TestServer::start().await;
    let receiver = Receiver::start().await;
    let browser = Browser::open(&server);
    let told = receiver.url("/told");
    let rich = [
        ("Content-Type", "text/plain; charset=utf-8"),
        ("Upstash-Method", "PUT"),
        ("Upstash-Retries", "7"),
        ("Upstash-Retry-Delay", "1000 * (1 + retried)"),
        ("Upstash-Timeout", "30s"),
        ("Upstash-Label", "one,two"),
        ("Upstash-Flow-Control-Key", "gently"),
        ("Upstash-Flow-Control-Value", "parallelism=3, rate=7, period=1m"),
        ("Upstash-Callback", &told),
        ("Upstash-Callback-Forward-X-Told", "it's"),
        ("Upstash-Failure-Callback", &told),
        ("Upstash-Forward-X-Evil", HOSTILE),
        ("Upstash-Forward-X-Shell", "$(touch x) `id` \\ 'a' \"b\" !"),
    ];
    let odd = receiver.url("/a/b;c?ids[]=1&set={x,y}&q='");
    for (path, headers, body) in [
        (format!("/v2/publish/{odd}"), &rich[..], "@it's \"me\" $HOME\n\\ % "),
        (format!("/v2/enqueue/line.1/{odd}"), &[][..], "x"),
        (format!("/v2/publish/{odd}"), &[("Content-Type", "a/b")], "\u{1}\u{0}"),
        (format!("/v2/publish/{odd}"), &[("Upstash-Method", "GET")], ""),
    ] {
        let request = headers.iter().fold(server.post(&path), |request, (name, value)| request.header(name, *value));
        let answer = request.body(body.to_owned()).expect(200).await.json();
        let id = answer["messageId"].as_str().expect("an id").to_owned();
        let page = browser.see(&page_of(&id)).await;
        let command = page.split("data-copy=\"").nth(1).and_then(|rest| rest.split('"').next()).expect("a command");
        let command = command.replace("&lt;", "<").replace("&gt;", ">").replace("&quot;", "\"").replace("&amp;", "&");
        let run = command.clone();
        let shell = move || std::process::Command::new("sh").arg("-c").arg(run).env("QSTASH_TOKEN", TOKEN).output();
        let output = tokio::task::spawn_blocking(shell).await.expect("it does not panic").expect("a shell");
        let answer: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
        let copy = answer["messageId"].as_str().unwrap_or_else(|| panic!("{command}\n{output:?}"));
        let about = async |id: &str| {
            let mut line = server.events(&format!("messageId={id}&state=CREATED")).await.remove(0);
            for name in ["messageId", "time", "nextDeliveryTime"] {
                line.as_object_mut().expect("an object").remove(name);
            }
            line
        };
        assert_eq!(about(copy).await, about(&id).await, "{command}");
    }
    eventually("all are delivered", || async { (server.counts().live == 0).then_some(()) }).await;
    server.finish().await;
}

#[tokio::test]
async fn long_bodies_are_downloads() {
    let server = TestServer::start().await;
    let receiver = Receiver::start().await;
    let browser = Browser::open(&server);
    for (length, is_shown) in [(64 * 1024, true), (64 * 1024 + 1, false)] {
        let body = "x".repeat(length);
        let id = server.publish_with(&receiver.url("/"), &[], &body).await;
        server.reaches(&id, &["CREATED", "ACTIVE", "DELIVERED"]).await;
        for _ in 0..2 {
            let page = browser.see(&page_of(&id)).await;
            assert_eq!(page.contains(&body[..64 * 1024]), is_shown);
            assert_eq!(page.contains("Download the body first"), !is_shown, "the command reads a file");
            let file = browser.look(&format!("{}/body", page_of(&id))).await;
            assert_eq!((file.status, file.text() == body), (200, true));
            let headers = ["content-type", "content-disposition", "x-content-type-options", "content-security-policy"];
            let headers = headers.map(|name| file.header(name).unwrap_or_default().to_owned());
            let attachment = "attachment; filename=\"body.bin\"";
            assert_eq!(headers, ["application/octet-stream", attachment, "nosniff", "default-src 'none'; sandbox"]);
            // Once more when only the logs have it.
            server.advance(60_000).await;
        }
    }
    let hidden = server.publish_with(&receiver.url("/"), &[("Upstash-Redact-Fields", "body")], "top-secret").await;
    server.reaches(&hidden, &["CREATED", "ACTIVE", "DELIVERED"]).await;
    let file = browser.look(&format!("{}/body", page_of(&hidden))).await.text();
    assert!(file.starts_with("REDACTED:"), "{file}");
    assert!(!browser.see(&page_of(&hidden)).await.contains("top-secret"));
    server.finish().await;
}

#[tokio::test]
async fn read_only_tokens_change_nothing_and_other_tenants_see_nothing() {
    let server = TestServer::with(Setup::serve()).await;
    let receiver = Receiver::start().await;
    let id = server.publish_with(&receiver.url("/"), &[("Upstash-Delay", "1h")], "").await;
    let reader = Browser::log_in(&server, READ_ONLY).await;
    for path in [PAGE.to_owned(), page_of(&id)] {
        let page = reader.see(&path).await;
        expect_texts(&page, &[&id, "disabled", "Your token is read-only"]);
    }
    for action in ["cancel", "retry"] {
        reader.refused(&format!("{}/{action}", page_of(&id)), &[], 403).await;
    }
    reader.refused(&format!("{PAGE}/cancel"), &[("id", &id)], 403).await;
    reader.refused(&format!("{PAGE}/cancel-matching"), &[], 403).await;
    assert_eq!(server.states_of(&id).await, ["CREATED"]);

    let stranger = Browser::log_in(&server, crate::support::server::TOKEN_B).await;
    let answer = stranger.look(&page_of(&id)).await;
    assert_eq!(answer.status, 404);
    expect_texts(&answer.text(), &["Message not found", "tenant-b", "kept for 7 days"]);
    assert_eq!(stranger.look(&format!("{}/body", page_of(&id))).await.status, 404);
    stranger.refused(&format!("{}/cancel", page_of(&id)), &[], 404).await;
    let said = stranger.press(&format!("{PAGE}/cancel"), &[("id", &id)]).await;
    assert_eq!(said, "Cancelled 0 of 1 message. The others had already ended.");
    assert_eq!(server.states_of(&id).await, ["CREATED"]);

    let owner = Browser::log_in(&server, TOKEN).await;
    assert_eq!(owner.look(&page_of(&format!("{id}%3Cscript%3E"))).await.status, 404);
    assert!(!owner.look(&page_of("%3Cscript%3E")).await.text().contains("<script>"));
    owner.press(&format!("{}/cancel", page_of(&id)), &[]).await;
    assert_eq!(server.events_of(&id).await.last().map(|line| line["state"].clone()), Some(json!("CANCELED")));
    server.finish().await;
}

#[tokio::test]
async fn a_bulk_cancel_can_be_stopped() {
    let server = TestServer::start().await;
    let browser = Browser::open(&server);
    let later = json!({ "Upstash-Delay": "1h", "Upstash-Label": "later" });
    let item = json!({ "destination": "http://127.0.0.1:9/", "headers": later });
    // A thousand are cancelled at a time: the button is pressed long before the last of them.
    for _ in 0..2 {
        server.post("/v2/batch").json(&vec![item.clone(); 10_000].into()).expect(200).await;
    }
    let said = browser.press("/console/messages/cancel-matching", &[("label", "later")]).await;
    assert!(said.starts_with("Cancelling 20\u{202f}000 messages in the background"), "{said}");
    let panel = "/console/messages/background?next=%2Fconsole%2Fmessages%3Flabel%3Dlater";
    let page = browser.see(panel).await;
    expect_texts(&page, &["Cancel 20\u{202f}000 messages", "in progress", "<progress"]);
    let form = page.split("<form").find(|form| form.contains("action=\"/console/messages/stop\"")).expect("a button");
    assert!(form.contains(">Stop</button>"), "{form}");
    let field = |name: &str| {
        let value = form.split(&format!("name=\"{name}\" value=\"")).nth(1).expect("a field");
        value.split('"').next().expect("a value").to_owned()
    };
    let (id, next) = (field("id"), field("next"));
    assert_eq!(next, "/console/messages?label=later");
    let stopped = browser.send("/console/messages/stop", &[("id", &id), ("next", &next)]).await;
    assert_eq!(location(&stopped), next);
    let action = server.get(&format!("/v2/bulkActions/{id}")).expect(200).await.json();
    let done = action["processed"].as_u64().expect("a count");
    assert!(action["stopped"] == true && done < 20_000, "{action}");
    let page = browser.see(panel).await;
    expect_texts(&page, &[">stopped<"]);
    assert!(!page.contains(">Stop<") && !page.contains("<progress"), "{page}");
    let left = server.delete("/v2/messages?label=later&async=true").expect(202).await.json();
    assert_eq!(left["cancelled"], 20_000 - done, "what was left is as it was");
    server.finish().await;
}

#[tokio::test]
async fn a_message_shows_its_duplicates_and_a_duplicate_leads_to_it() {
    let server = TestServer::start().await;
    let receiver = Receiver::start().await;
    let browser = Browser::open(&server);
    let url = receiver.url("/once");
    let form = [("do", "send"), ("destination", url.as_str()), ("dedup_id", "once")];
    browser.send("/console/send", &form).await;
    let id = receiver.next().await.header("upstash-message-id").expect("it has an id").to_owned();
    let page = format!("/console/messages/{id}");
    assert!(!browser.see(&page).await.contains("id=\"duplicates\""), "there was none");
    server.advance(60_000).await;
    let answer = browser.send("/console/send", &form).await.text();
    let link = format!("Existing message: <a href=\"/console/messages/{id}\">");
    expect_texts(&answer, &["Duplicate: the same message", &link]);
    server.advance(60_000).await;
    expect_texts(&browser.see(&page).await, &["1 duplicate publish returned this message", "(60 s ago)"]);
    browser.send("/console/send", &form).await;
    let told = [
        "2 duplicate publishes returned this message since",
        "2026-06-01 12:01:00.000 UTC",
        "resets when the server restarts",
    ];
    expect_texts(&browser.see(&page).await, &told);
    server.finish().await;
}
