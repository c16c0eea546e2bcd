//! The pages about the DLQ: what they show, and what their buttons do.

use super::{Browser, expect_marked, expect_texts};
use crate::support::server::READ_ONLY;
use crate::support::{Receiver, Reply, Setup, TestServer, eventually};
use serde_json::{Value, json};

/// Makes a dead letter at each path, with this label.
async fn bury(server: &TestServer, receiver: &Receiver, label: &str, paths: &[&str]) -> Vec<String> {
    let mut letters = Vec::new();
    for path in paths {
        let headers = [
            ("Upstash-Retries", "0"),
            ("Upstash-Label", label),
            ("Upstash-Forward-X-Key", "old"),
            ("Upstash-Forward-X-Other", "stays"),
        ];
        let id = server.publish_with(&receiver.url(path), &headers, "the body").await;
        letters.push(server.dead_letter_of(&id).await["dlqId"].as_str().expect("an id").to_owned());
        receiver.next().await;
    }
    letters
}

/// Two causes: `/pay` thrice and `/mail` once.
async fn fail(server: &TestServer, receiver: &Receiver) -> Vec<String> {
    for n in 1..=3 {
        receiver.script(&format!("/pay/100{n}"), [Reply::status(500).with_body(format!("order 100{n} is locked"))]);
    }
    receiver.script("/mail", [Reply::Close]);
    let letters = bury(server, receiver, "red", &["/pay/1001", "/pay/1002", "/pay/1003", "/mail"]).await;
    // A connection that was used before and is closed is tried once more.
    receiver.take(receiver.count() - letters.len()).await;
    letters
}

async fn causes(server: &TestServer) -> Vec<Value> {
    server.get("/v2/dlq/causes").expect(200).await.json()["causes"].as_array().expect("a list").clone()
}

fn id_of(cause: &Value) -> &str {
    cause["cause"].as_str().expect("an id")
}

async fn all_finished(server: &TestServer) -> Vec<Value> {
    eventually("bulk actions are finished", || async {
        let page = server.get("/v2/bulkActions").expect(200).await.json();
        let actions = page["bulkActions"].as_array().expect("a list").clone();
        actions.iter().all(|action| action["state"] == "FINISHED").then_some(actions)
    })
    .await
}

#[tokio::test]
async fn causes_lead_to_dead_letters_and_messages() {
    let server = TestServer::start().await;
    let receiver = Receiver::start().await;
    let browser = Browser::open(&server);
    expect_texts(&browser.see("/console/dlq").await, &["The DLQ is empty", "data-copy", "Upstash-Retries: 0"]);
    let letters = fail(&server, &receiver).await;

    let page = browser.see("/console/dlq").await;
    let origin = receiver.url("");
    let pay = format!("{origin}/pay/#");
    expect_texts(
        &page,
        &[&pay, "order # is locked", "order 1003 is locked", ">500<", ">closed<", "<strong>3</strong>"],
    );
    expect_texts(
        &page,
        &["data-ask=\"/console/dlq/question/delete\"", "Show all (4)", "href=\"/console/workflows?state=RUN_FAILED\""],
    );
    let cause = id_of(&causes(&server).await[0]).to_owned();
    let entries = format!("/console/dlq/entries?cause={cause}");
    expect_texts(&page, &[&entries, &cause, &format!("/console/dlq/{}", letters[2])]);

    let page = browser.see(&entries).await;
    expect_texts(&page, &[&letters[0], &letters[1], &letters[2], "order 1001 is locked", "data-select-all=\"dlqIds\""]);
    assert!(!page.contains(&letters[3]));
    let page = browser.see("/console/dlq/entries?responseStatus=0&label=red").await;
    expect_texts(&page, &[&letters[3], "no response", "the connection was closed", "label red"]);
    for (query, text) in [
        ("label=blue", "No dead letters match"),
        ("responseStatus=x", "is not an HTTP status"),
        ("cause=x", "use one from /v2/dlq/causes"),
    ] {
        expect_texts(&browser.see(&format!("/console/dlq/entries?{query}")).await, &[text]);
        expect_texts(&browser.see(&format!("/console/dlq?{query}")).await, &[text]);
    }

    let letter = server.dead_letters("responseStatus=500&count=1").await.remove(0);
    let page = browser.see(&format!("/console/dlq/{}", letters[2])).await;
    let message = letter["messageId"].as_str().expect("an id");
    expect_texts(
        &page,
        &[&format!("/console/messages/{message}"), "the body", "order 1003 is locked", "X-Key", "old", &entries],
    );
    let link = format!("<a class=\"cut mono\" href=\"{entries}\" title=\"{pay}\">{pay}</a>");
    expect_texts(&page, &[&link, "<span class=\"cut\" title=\"order # is locked\">order # is locked</span>"]);
    assert_eq!(browser.look("/console/dlq/1-1").await.status, 404);
    server.finish().await;
}

#[tokio::test]
async fn questions_name_the_count_and_the_effect() {
    let server = TestServer::start().await;
    let receiver = Receiver::start().await;
    let browser = Browser::open(&server);
    let letters = fail(&server, &receiver).await;
    let cause = id_of(&causes(&server).await[0]).to_owned();
    for (action, query, expected) in [
        (
            "delete",
            format!("what=all&cause={cause}&cursor=1-1"),
            "Delete 3 dead letters with this cause? Deleted dead letters cannot be retried.".to_owned(),
        ),
        (
            "retry",
            format!("what=all&cause={cause}"),
            "Retry 3 dead letters with this cause? Each is sent again as a new message.".to_owned(),
        ),
        (
            "delete",
            "what=all".to_owned(),
            "Delete every dead letter of this tenant? This deletes 4 dead letters.".to_owned(),
        ),
        (
            "delete",
            format!("what=ticked&dlqIds={}&dlqIds={}", letters[0], letters[1]),
            "Delete 2 selected dead letters?".to_owned(),
        ),
    ] {
        let asked = browser.see(&format!("/console/dlq/question/{action}?{query}")).await;
        assert!(asked.contains(&expected), "{query}: {asked}");
    }
    for (query, expected) in [
        ("delete?what=ticked", "No dead letters are selected. Nothing was changed."),
        ("delete?what=all&label=none", "No dead letters match. Nothing was changed."),
        ("burn?what=all", "Unknown action."),
    ] {
        let answer = browser.look(&format!("/console/dlq/question/{query}")).await;
        assert_eq!((answer.status, answer.text().as_str()), (404, expected));
    }
    server.finish().await;
}

#[tokio::test]
async fn a_cause_is_retried_in_the_background_at_a_rate() {
    let server = TestServer::start().await;
    let receiver = Receiver::start().await;
    let browser = Browser::open(&server);
    fail(&server, &receiver).await;
    for n in 1..=3 {
        receiver.script(&format!("/pay/100{n}"), [Reply::status(200)]);
    }
    let cause = id_of(&causes(&server).await[0]).to_owned();
    let fields = [("what", "all"), ("cause", &cause), ("rate", "1000"), ("next", "/console/dlq?label=red")];
    assert_eq!(browser.press("/console/dlq/retry", &fields).await, "Retrying 3 dead letters in the background.");
    let actions = all_finished(&server).await;
    assert_eq!((&actions[0]["processed"], &actions[0]["rate"]), (&json!(3), &json!(1_000)));
    receiver.take(3).await;
    expect_texts(&browser.see("/console/dlq/background").await, &["Retry 3 dead letters", "finished", "3 of 3 done"]);
    assert_eq!(server.dead_letters("").await.len(), 1);
    server.finish().await;
}

#[tokio::test]
async fn selected_dead_letters_are_retried_or_deleted_and_no_selection_changes_nothing() {
    let server = TestServer::start().await;
    let receiver = Receiver::start().await;
    let browser = Browser::open(&server);
    let letters = fail(&server, &receiver).await;
    for path in ["/console/dlq/retry", "/console/dlq/delete"] {
        for fields in [vec![("what", "ticked"), ("label", "red")], vec![], vec![("what", "one")]] {
            assert!(browser.press(path, &fields).await.contains("Nothing was changed"), "{path} {fields:?}");
        }
    }
    assert_eq!(browser.look("/console/dlq/retry?what=ticked").await.status, 303);
    assert_eq!(server.dead_letters("").await.len(), 4);
    let two = [("what", "ticked"), ("dlqIds", &letters[0]), ("dlqIds", &letters[3]), ("next", "/console/dlq/entries")];
    assert_eq!(browser.press("/console/dlq/delete", &two).await, "Deleted 2 dead letters.");
    receiver.script("/pay/1002", [Reply::status(200)]);
    let one = [("what", "ticked"), ("dlqIds", letters[1].as_str())];
    assert_eq!(browser.press("/console/dlq/retry", &one).await, "Retried 1 dead letter.");
    assert_eq!(receiver.next().await.target, "/pay/1002");
    let rest = [("what", "one"), ("id", letters[2].as_str())];
    assert_eq!(browser.press("/console/dlq/delete", &rest).await, format!("Deleted {}.", letters[2]));
    browser.refused("/console/dlq/delete", &rest, 404).await;
    server.finish().await;
}

#[tokio::test]
async fn all_matching_dead_letters_are_deleted_and_the_delete_can_be_stopped() {
    let server = TestServer::start().await;
    let receiver = Receiver::start().await;
    let browser = Browser::open(&server);
    fail(&server, &receiver).await;
    bury(&server, &receiver, "blue", &["/mail"]).await;
    let fields = [("what", "all"), ("label", "red"), ("rate", "1")];
    assert_eq!(browser.press("/console/dlq/delete", &fields).await, "Deleting 4 dead letters in the background.");
    let page = browser.see("/console/dlq").await;
    expect_texts(&page, &["Delete 4 dead letters", "in progress", "<progress", "up to 1 per second", ">Stop<"]);
    let action = server.get("/v2/bulkActions").expect(200).await.json()["bulkActions"][0]["actionId"].clone();
    let stop = [("id", action.as_str().expect("an id")), ("next", "/console/dlq")];
    assert!(browser.press("/console/dlq/stop", &stop).await.starts_with("Stopped after "));
    expect_texts(&browser.see("/console/dlq").await, &["stopped"]);
    let fields = [("what", "all"), ("label", "red")];
    browser.press("/console/dlq/delete", &fields).await;
    all_finished(&server).await;
    let left = server.dead_letters("").await;
    assert_eq!((left.len(), &left[0]["label"]), (1, &json!("blue")));
    server.finish().await;
}

#[tokio::test]
async fn headers_and_settings_are_edited_before_a_retry() {
    let server = TestServer::start().await;
    let receiver = Receiver::start().await;
    let browser = Browser::open(&server);
    let letters = fail(&server, &receiver).await;
    let page = browser.see(&format!("/console/dlq/retry?what=one&id={}", letters[0])).await;
    expect_texts(&page, &["X-Key: old\nX-Other: stays", "name=\"headersBefore\"", "unchanged (POST)"]);
    receiver.script("/pay/1001", [Reply::status(200)]);
    let before = "X-Key: old\nX-Other: stays";
    let mut fields = vec![
        ("what", "one"),
        ("id", letters[0].as_str()),
        ("method", "PUT"),
        ("headersBefore", before),
        ("headers", "X-Key: new\r\nX-Other: stays\r\nX-More: yes"),
    ];
    let said = browser.press("/console/dlq/retry", &fields).await;
    assert!(said.starts_with("Retried as msg_"), "{said}");
    let delivery = receiver.next().await;
    let header = |name| delivery.header(name);
    assert_eq!(
        (delivery.method.as_str(), header("x-key"), header("x-other"), header("x-more")),
        ("PUT", Some("new"), Some("stays"), Some("yes"))
    );
    fields[1].1 = &letters[1];
    fields[4].1 = "X-Other: stays";
    let refused = browser.refused("/console/dlq/retry", &fields, 400).await;
    expect_texts(&refused, &["X-Key cannot be removed"]);
    fields[4].1 = before;
    fields.push(("retries", "many"));
    browser.refused("/console/dlq/retry", &fields, 400).await;
    // Of all that match, the same, kept with what goes on in the background.
    let all = [("what", "all"), ("headers", "X-Key: newer"), ("delay", "1h")];
    expect_texts(&browser.see("/console/dlq/retry?what=all&label=red").await, &["label red", "name=\"rate\""]);
    assert_eq!(browser.press("/console/dlq/retry", &all).await, "Retrying 3 dead letters in the background.");
    let actions = all_finished(&server).await;
    assert_eq!(
        (&actions[0]["processed"], &actions[0]["changes"]),
        (&json!(3), &json!(["Upstash-Delay", "Upstash-Forward-X-Key"]))
    );
    server.finish_with_pending().await;
}

#[tokio::test]
async fn hidden_headers_are_not_shown_and_are_kept() {
    let server = TestServer::start().await;
    let receiver = Receiver::start().await;
    receiver.script("/", [Reply::status(500), Reply::status(200)]);
    let headers = [("Upstash-Retries", "0"), ("Upstash-Forward-X-Key", "s3cret"), ("Upstash-Redact-Fields", "header")];
    let id = server.publish_with(&receiver.url("/"), &headers, "").await;
    let letter = server.dead_letter_of(&id).await["dlqId"].as_str().expect("an id").to_owned();
    receiver.next().await;
    let browser = Browser::open(&server);
    let page = browser.see(&format!("/console/dlq/retry?what=one&id={letter}")).await;
    expect_texts(&page, &["Hidden headers are sent unchanged", "X-Key"]);
    assert!(!page.contains("REDACTED") && !page.contains("s3cret"), "{page}");
    let fields = [("what", "one"), ("id", letter.as_str()), ("headers", ""), ("headersBefore", "")];
    browser.press("/console/dlq/retry", &fields).await;
    assert_eq!(receiver.next().await.header("x-key"), Some("s3cret"));
    server.finish().await;
}

#[tokio::test]
async fn read_only_tokens_and_other_tenants_change_nothing() {
    let server = TestServer::with(Setup::serve()).await;
    let receiver = Receiver::start().await;
    let letters = fail(&server, &receiver).await;
    let browser = Browser::log_in(&server, READ_ONLY).await;
    expect_texts(&browser.see("/console/dlq").await, &["order # is locked", "disabled", "Your token is read-only"]);
    expect_texts(&browser.see("/console/dlq/entries").await, &[&letters[0]]);
    let one = [("what", "one"), ("id", letters[0].as_str())];
    for path in ["/console/dlq/retry", "/console/dlq/delete"] {
        browser.refused(path, &one, 403).await;
        browser.refused(path, &[("what", "all")], 403).await;
    }
    browser.refused("/console/dlq/stop", &[("id", "bulk_1")], 403).await;

    let other = Browser::log_in(&server, crate::support::server::TOKEN_B).await;
    expect_texts(&other.see("/console/dlq").await, &["The DLQ is empty"]);
    assert_eq!(other.look(&format!("/console/dlq/{}", letters[0])).await.status, 404);
    other.refused("/console/dlq/retry", &one, 404).await;
    other.press("/console/dlq/delete", &[("what", "ticked"), ("dlqIds", &letters[0])]).await;
    assert_eq!(server.dead_letters("").await.len(), 4);
    server.finish().await;
}

#[tokio::test]
async fn untrusted_content_is_text() {
    let server = TestServer::start().await;
    let receiver = Receiver::start().await;
    let hostile = "\"><script>alert(document.domain)</script><img src=x onerror=alert(1)>";
    receiver.script("/evil", [Reply::status(500).with_body(hostile).with_header("X-Evil", hostile)]);
    let headers = [("Upstash-Retries", "0"), ("Upstash-Label", hostile), ("Upstash-Forward-X-Evil", hostile)];
    let url = receiver.url("/evil?q=%22%3E%3Cscript%3E");
    let id = server.publish_with(&url, &headers, hostile).await;
    let letter = server.dead_letter_of(&id).await;
    let dlq_id = letter["dlqId"].as_str().expect("an id");
    let browser = Browser::open(&server);
    let query = "label=%22%3E%3Cscript%3Ealert(1)%3C/script%3E";
    for path in [
        "/console/dlq".to_owned(),
        "/console/dlq/entries".to_owned(),
        format!("/console/dlq/entries?{query}"),
        format!("/console/dlq?{query}"),
        format!("/console/dlq/{dlq_id}"),
        format!("/console/dlq/retry?what=one&id={dlq_id}&next=javascript:alert(1)"),
        format!("/console/dlq/retry?what=all&{query}"),
    ] {
        let page = browser.see(&path).await;
        assert!(page.contains("&lt;script&gt;"), "{path} shows it");
        let page = page.replace("<script src=\"/console/assets/", "");
        assert!(
            !page.contains("<script") && !page.contains("<img src=x") && !page.contains("javascript:"),
            "{path}: {page}"
        );
    }
    server.finish().await;
}

#[tokio::test]
async fn a_refused_change_is_shown_again_with_its_input() {
    let server = TestServer::start().await;
    let receiver = Receiver::start().await;
    let browser = Browser::open(&server);
    let letters = fail(&server, &receiver).await;
    let one = [("what", "one"), ("id", letters[0].as_str()), ("next", "/console/dlq")];
    let all = [("what", "all"), ("label", "red"), ("rate", "7")];
    let typed = [("headers", "X-Key: precious\nX-Other: stays"), ("headersBefore", "X-Key: old\nX-Other: stays")];
    let rest = [("method", "PUT"), ("retries", "many"), ("newLabel", "later")];
    for meant in [one, all] {
        let form = [&meant[..], &typed, &rest].concat();
        let page = browser.refused("/console/dlq/retry", &form, 400).await;
        expect_texts(
            &page,
            &["role=\"alert\"", "Upstash-Retries", "X-Key: precious", "value=\"many\"", "value=\"later\""],
        );
        expect_texts(&page, &["<option selected>PUT</option>", &format!("name=\"what\" value=\"{}\"", meant[0].1)]);
        expect_marked(&page, "retries", "Upstash-Retries: ");
    }
    // A header that is taken away is refused by the page itself.
    let form = [&one[..], &[("headers", "X-Key: precious"), typed[1]]].concat();
    let page = browser.refused("/console/dlq/retry", &form, 400).await;
    expect_texts(&page, &["X-Other cannot be removed", "X-Key: precious"]);
    expect_marked(&page, "headers", "X-Other cannot be removed");
    assert_eq!(server.dead_letters("").await.len(), 4, "nothing was sent");

    // A label that is given is no label that is looked for.
    receiver.script("/mail", [Reply::status(200)]);
    let form = [("what", "all"), ("responseStatus", "0"), ("headersBefore", ""), ("newLabel", "later")];
    assert_eq!(browser.press("/console/dlq/retry", &form).await, "Retrying 1 dead letter in the background.");
    all_finished(&server).await;
    let sent = receiver.next().await;
    assert_eq!(sent.target, "/mail");
    server.finish().await;
}

#[tokio::test]
async fn bulk_actions_show_on_their_own_pages_and_an_empty_list_of_causes_refreshes() {
    let server = TestServer::start().await;
    let receiver = Receiver::start().await;
    let browser = Browser::open(&server);
    let places = ["id=\"background\"", "id=\"causes\" data-refresh"];
    expect_texts(&browser.see("/console/dlq").await, &places);
    fail(&server, &receiver).await;
    expect_texts(&browser.see("/console/dlq").await, &places);
    let later = [("Upstash-Delay", "1h"), ("Upstash-Label", "later")];
    server.publish_with(&receiver.url("/later"), &later, "").await;
    browser.press("/console/dlq/delete", &[("what", "all"), ("rate", "1")]).await;
    let page = browser.see("/console/messages?label=x").await;
    expect_texts(&page, &["id=\"background\"", "/console/messages/background?next=%2Fconsole%2Fmessages%3Flabel%3Dx"]);
    assert!(!page.contains("<progress") && !page.contains("in progress"), "{page}");
    browser.press("/console/messages/cancel-matching", &[("label", "later")]).await;
    // Behind more than a few that are newer.
    for _ in 0..6 {
        server.delete("/v2/dlq?label=none&async=true").expect(202).await;
    }
    let page = eventually("the cancel has ended", || async {
        let page = browser.see("/console/messages/background?next=/console/messages").await;
        page.contains("finished").then_some(page)
    });
    expect_texts(&page.await, &["Cancel 1 message", "1 of 1 done"]);
    assert!(!browser.see("/console/dlq").await.contains("Cancel 1 message"));
    let actions = server.get("/v2/bulkActions?count=100").expect(200).await.json()["bulkActions"].clone();
    for action in actions.as_array().expect("a list") {
        let stop = [("id", action["actionId"].as_str().expect("an id")), ("next", "/console/messages?label=x")];
        assert!(browser.press("/console/messages/stop", &stop).await.starts_with("Stopped after "));
    }
    server.finish().await;
}
