//! `/v2/dlq`: looking at dead letters, deleting them, all at once and in pages.

use crate::support::server::{READ_ONLY, START_MS};
use crate::support::{Backend, Receiver, Reply, Setup, TestServer, eventually};
use serde_json::{Value, json};

/// Publishes a message that fails, and gives its dead letter.
pub(super) async fn failed(server: &TestServer, url: &str, headers: &[(&str, &str)], body: &str) -> Value {
    let headers = [headers, &[("Upstash-Retries", "0")]].concat();
    let id = server.publish_with(url, &headers, body).await;
    server.dead_letter_of(&id).await
}

pub(super) fn dlq_id(letter: &Value) -> &str {
    letter["dlqId"].as_str().expect("a dead letter has an id")
}

pub(super) fn ids(letters: &[Value]) -> Vec<&str> {
    letters.iter().map(dlq_id).collect()
}

/// Makes so many dead letters, a second apart, and gives their ids, oldest first.
pub(super) async fn many_failed(server: &TestServer, receiver: &Receiver, count: usize) -> Vec<String> {
    receiver.script("/fails", [Reply::status(500)]);
    let step = 50;
    let mut made = Vec::new();
    for start in (0..count).step_by(step) {
        let item = |n: usize| {
            let headers = json!({ "Upstash-Retries": "0", "Upstash-Label": format!("n{n}") });
            json!({ "destination": receiver.url("/fails"), "headers": headers })
        };
        let end = count.min(start + step);
        let items: Vec<Value> = (start..end).map(item).collect();
        let answers = server.post("/v2/batch").json(&json!(items)).expect(200).await.json();
        eventually("all have failed", || async { (server.counts().dead_letters as usize == end).then_some(()) }).await;
        for answer in answers.as_array().expect("a list") {
            let letter = server.dead_letter_of(answer["messageId"].as_str().expect("an id")).await;
            made.push(dlq_id(&letter).to_owned());
        }
        server.advance(1_000).await;
    }
    made
}

#[tokio::test]
async fn a_dead_letter_shows_the_message_and_the_last_answer() {
    for backend in Backend::ALL {
        let server = TestServer::with(Setup::dev().on(backend)).await;
        let receiver = Receiver::start().await;
        let last = Reply::status(404).with_header("X-Why", "gone").with_body("404 Not Found");
        receiver.script("/", [Reply::status(500).with_body("first answer"), last]);
        let url = receiver.url("/?q=1");
        let headers = [
            ("Upstash-Retries", "1"),
            ("Upstash-Retry-Delay", "1000"),
            ("Upstash-Label", "a,b"),
            ("Upstash-Timeout", "1m"),
            ("Upstash-Forward-X", "1"),
        ];
        let id = server.publish_with(&url, &headers, "body").await;
        server.reaches(&id, &["CREATED", "ACTIVE", "ERROR", "RETRY"]).await;
        server.advance(1_000).await;
        let failed = ["CREATED", "ACTIVE", "ERROR", "RETRY", "ACTIVE", "ERROR", "FAILED"];
        server.reaches(&id, &failed).await;

        let expected = json!({
            "dlqId": "<dlq>",
            "messageId": "<message>",
            "url": url,
            "method": "POST",
            "header": { "X": ["1"] },
            "body": "body",
            "maxRetries": 1,
            "notBefore": START_MS,
            "createdAt": START_MS,
            "callerIP": "127.0.0.1",
            "label": "a",
            "labels": ["a", "b"],
            "retryDelayExpression": "1000",
            "timeout": 60,
            "responseStatus": 404,
            "responseHeader": { "Content-Length": ["13"], "X-Why": ["gone"] },
            "responseBody": "404 Not Found",
        });
        let list = server.get("/v2/dlq").expect(200).await;
        assert_eq!(list.redacted(), json!({ "messages": [expected] }));
        let letter = list.json()["messages"][0].clone();
        let one = server.get(&format!("/v2/dlq/{}", dlq_id(&letter))).expect(200).await;
        assert_eq!(one.json(), letter);
        assert_eq!(letter["messageId"], id);
        assert_eq!(server.events_of(&id).await[6]["dlqId"], letter["dlqId"]);
        server.finish().await;
    }
}

#[tokio::test]
async fn an_answer_that_is_no_text_is_shown_as_base64() {
    let server = TestServer::start().await;
    let receiver = Receiver::start().await;
    receiver.script("/", [Reply::status(500).with_body(vec![0xff, 0xfe, 0])]);
    let letter = failed(&server, &receiver.url("/"), &[], "x").await;
    assert_eq!((letter.get("responseBody"), &letter["responseBodyBase64"]), (None, &json!("//4A")));
    server.finish().await;
}

#[tokio::test]
async fn filters_select_dead_letters() {
    for backend in Backend::ALL {
        let server = TestServer::with(Setup::dev().on(backend)).await;
        let receiver = Receiver::start().await;
        for (path, status) in [("/0", 500), ("/1", 404), ("/2", 404)] {
            receiver.script(path, [Reply::status(status)]);
        }
        receiver.script("/3", [Reply::Close]);
        let mut letters = Vec::new();
        for (n, labels) in ["red,first", "red", "blue", "green"].into_iter().enumerate() {
            letters.push(failed(&server, &receiver.url(&format!("/{n}")), &[("Upstash-Label", labels)], "").await);
            server.advance(1_000).await;
        }
        let (first, third) = (dlq_id(&letters[0]), dlq_id(&letters[2]));
        let from = START_MS + 1_000;
        let message = letters[1]["messageId"].as_str().expect("an id");
        let cases: Vec<(String, &[usize])> = vec![
            (String::new(), &[3, 2, 1, 0]),
            ("order=latestFirst".into(), &[3, 2, 1, 0]),
            ("order=earliestFirst".into(), &[0, 1, 2, 3]),
            (format!("messageId={message}"), &[1]),
            ("messageId=msg_unknown".into(), &[]),
            (format!("dlqIds={first},{third}"), &[0, 2]),
            (format!("dlqIds={third}&dlqIds=1-1"), &[2]),
            (format!("url={}", receiver.url("/1")), &[1]),
            (format!("url={}&url={}", receiver.url("/1"), receiver.url("/3")), &[3, 1]),
            ("label=red".into(), &[1, 0]),
            ("label=first,green".into(), &[3, 0]),
            ("responseStatus=404".into(), &[2, 1]),
            ("responseStatus=500&responseStatus=0".into(), &[3, 0]),
            ("responseStatus=404&label=red".into(), &[1]),
            ("callerIp=127.0.0.1".into(), &[3, 2, 1, 0]),
            ("callerIP=10.0.0.1".into(), &[]),
            (format!("fromDate={from}"), &[3, 2, 1]),
            (format!("toDate={from}"), &[1, 0]),
            (format!("fromDate={from}&toDate={from}"), &[1]),
            ("count=2".into(), &[3, 2]),
            ("count=1000".into(), &[3, 2, 1, 0]),
            ("queueName=q".into(), &[]),
            ("urlGroup=t&topicName=t".into(), &[]),
            ("scheduleId=s".into(), &[]),
            ("flowControlKey=k".into(), &[]),
            ("api=llm".into(), &[3, 2, 1, 0]),
        ];
        for (query, expected) in cases {
            let found = server.dead_letters(&query).await;
            let expected: Vec<&str> = expected.iter().map(|n| dlq_id(&letters[*n])).collect();
            assert_eq!(ids(&found), expected, "{backend:?} {query}");
        }
        server.finish().await;
    }
}

#[tokio::test]
async fn a_dead_letter_belongs_to_its_schedule_also_when_it_is_sent_again() {
    for backend in Backend::ALL {
        let server = TestServer::with(Setup::dev().on(backend)).await;
        let receiver = Receiver::start().await;
        receiver.script("/fails", [Reply::status(500), Reply::status(200)]);
        let headers = [("Upstash-Cron", "* * * * *"), ("Upstash-Retries", "0")];
        let id = server.schedule_with(&receiver.url("/fails"), &headers, "body").await;
        server.advance(60_000).await;
        assert_eq!(receiver.next().await.header("upstash-schedule-id"), Some(id.as_str()));
        let by_schedule = format!("scheduleId={id}");
        let letter = eventually("a dead letter", || async { server.dead_letters(&by_schedule).await.pop() }).await;
        assert_eq!(letter["scheduleId"], id);
        server.delete(&format!("/v2/schedules/{id}")).expect(200).await;
        assert_eq!(server.dead_letters("scheduleId=another").await.len(), 0);

        let retry = server.post(&format!("/v2/dlq/retry?{by_schedule}")).header("Upstash-Delay", "1h");
        let again = retry.expect(201).await.json()["responses"][0]["messageId"].clone();
        assert_eq!(server.message(again.as_str().expect("an id")).await["scheduleId"], id);
        for (query, count) in [("scheduleId=another", 0), (by_schedule.as_str(), 1)] {
            let answer = server.delete(&format!("/v2/messages?{query}")).expect(202).await.json();
            assert_eq!(answer, json!({ "cancelled": count }), "{query}");
        }
        server.finish().await;
    }
}

#[tokio::test]
async fn filters_narrow_a_list_of_ids() {
    let server = TestServer::start().await;
    let receiver = Receiver::start().await;
    receiver.script("/", [Reply::status(500)]);
    let letter = failed(&server, &receiver.url("/"), &[("Upstash-Label", "red")], "").await;
    let query = |label: &str| format!("/v2/dlq?dlqIds={}&label={label}", dlq_id(&letter));
    // AND between keys (contract 2.6): the id alone must not decide.
    assert_eq!(server.get(&query("blue")).expect(200).await.json(), json!({ "messages": [] }));
    assert_eq!(server.delete(&query("blue")).expect(200).await.json(), json!({ "deleted": 0 }));
    assert_eq!(server.delete(&query("red")).expect(200).await.json(), json!({ "deleted": 1 }));
    server.finish().await;
}

#[tokio::test]
async fn what_is_unclear_is_refused_and_changes_nothing() {
    let server = TestServer::start().await;
    let receiver = Receiver::start().await;
    receiver.script("/", [Reply::status(500)]);
    let letter = failed(&server, &receiver.url("/"), &[("Upstash-Label", "red")], "").await;
    let queries = [
        "labeel=red&count=100",
        "host=127.0.0.1",
        "path=/",
        "state=FAILED",
        "label=",
        "dlqIds=",
        "messageId=",
        "count=0",
        "count=x",
        "cursor=none",
        "order=sideways",
        "fromDate=x",
        "responseStatus=teapot",
    ];
    // Upstash's MCP server sends these with its lists; whatever changes something stays strict.
    assert_eq!(server.dead_letters("region=local&local_mode_port=8080&QSTASH_TOKEN=x").await.len(), 1);
    for name in ["region=local", "local_mode_port=8080"] {
        server.delete(&format!("/v2/dlq?{name}")).expect(400).await.error();
        server.post(&format!("/v2/dlq/retry?{name}")).expect(400).await.error();
    }
    for query in queries {
        server.get(&format!("/v2/dlq?{query}")).expect(400).await.error();
        server.delete(&format!("/v2/dlq?{query}")).expect(400).await.error();
        server.post(&format!("/v2/dlq/retry?{query}")).expect(400).await.error();
    }
    for body in [r#"{"dlqIds":[]}"#, r#"{"dlqIds":[""]}"#, r#"{"dlqIDs":["x"]}"#, r#"["x"]"#, "{"] {
        server.delete("/v2/dlq").body(body).expect(400).await.error();
        server.post("/v2/dlq/retry").body(body).expect(400).await.error();
    }
    let target = format!("/v2/dlq/retry/{}", dlq_id(&letter));
    server.post(&target).header("Upstash-Retries", "-1").expect(400).await.error();
    server.post("/v2/dlq/retry").header("Upstash-Delay", "soon").expect(400).await.error();
    assert_eq!(server.dead_letters("").await, [letter]);
    server.finish().await;
}

#[tokio::test]
async fn pages_follow_each_other_without_gap_or_repetition() {
    let server = TestServer::start().await;
    let receiver = Receiver::start().await;
    let mut made = many_failed(&server, &receiver, 250).await;
    for (order, count, pages) in [("earliestFirst", 100, 3), ("latestFirst", 100, 3), ("latestFirst", 50, 5)] {
        let (mut seen, mut cursor, mut sizes) = (Vec::new(), String::new(), Vec::new());
        loop {
            let target = format!("/v2/dlq?order={order}&count={count}{cursor}");
            let page = server.get(&target).expect(200).await.json();
            let letters = page["messages"].as_array().expect("a list");
            sizes.push(letters.len());
            seen.extend(letters.iter().map(|letter| dlq_id(letter).to_owned()));
            match page.get("cursor") {
                Some(next) => cursor = format!("&cursor={}", next.as_str().expect("a cursor is text")),
                None => break,
            }
        }
        assert_eq!(seen, made, "{order} {count}");
        assert_eq!(sizes.len(), pages, "{order} {count}: {sizes:?}");
        made.reverse();
        if order == "latestFirst" {
            made.reverse();
        }
    }
    server.finish().await;
}

#[tokio::test]
async fn all_dead_letters_are_deleted_page_by_page() {
    let server = TestServer::start().await;
    let receiver = Receiver::start().await;
    many_failed(&server, &receiver, 250).await;
    let mut deleted = Vec::new();
    let mut cursor = String::new();
    loop {
        let answer = server.delete(&format!("/v2/dlq?{cursor}")).expect(200).await.json();
        deleted.push(answer["deleted"].as_u64().expect("a number"));
        match answer.get("cursor") {
            Some(next) => cursor = format!("cursor={}", next.as_str().expect("a cursor is text")),
            None => break,
        }
    }
    assert_eq!(deleted, [100, 100, 50]);
    assert_eq!(server.delete("/v2/dlq").expect(200).await.json(), json!({ "deleted": 0 }));
    server.finish().await;
}

#[tokio::test]
async fn all_dead_letters_are_published_again_page_by_page() {
    let server = TestServer::start().await;
    let receiver = Receiver::start().await;
    many_failed(&server, &receiver, 120).await;
    receiver.script("/fails", [Reply::status(200)]);
    let first = server.post("/v2/dlq/retry").expect(201).await.json();
    let cursor = first["cursor"].as_str().expect("a cursor is text");
    assert_eq!(first["responses"].as_array().map(Vec::len), Some(100));
    let second = server.post(&format!("/v2/dlq/retry?cursor={cursor}")).expect(201).await;
    assert_eq!(second.json()["responses"].as_array().map(Vec::len), Some(20));
    assert_eq!(second.json()["cursor"], "");
    let nothing = server.post("/v2/dlq/retry").expect(201).await.json();
    assert_eq!(nothing, json!({ "responses": [], "cursor": "" }));
    server.finish().await;
    assert_eq!(receiver.count(), 240);
}

#[tokio::test]
async fn one_dead_letter_is_deleted_once() {
    for backend in Backend::ALL {
        let server = TestServer::with(Setup::dev().on(backend)).await;
        let receiver = Receiver::start().await;
        receiver.script("/", [Reply::status(500)]);
        let letter = failed(&server, &receiver.url("/"), &[], "").await;
        let target = format!("/v2/dlq/{}", dlq_id(&letter));
        server.delete(&target).expect(200).await.json();
        for gone in [server.delete(&target), server.get(&target)] {
            gone.expect(404).await.error();
        }
        server.post(&format!("/v2/dlq/retry/{}", dlq_id(&letter))).expect(404).await.error();
        for unknown in ["none", "1-1", "%00", "99999999999999999999-1"] {
            server.delete(&format!("/v2/dlq/{unknown}")).expect(404).await.error();
            server.get(&format!("/v2/dlq/{unknown}")).expect(404).await.error();
            server.post(&format!("/v2/dlq/retry/{unknown}")).expect(404).await.error();
        }
        server.finish().await;
    }
}

#[tokio::test]
async fn many_are_deleted_by_ids_or_by_filter() {
    for backend in Backend::ALL {
        let server = TestServer::with(Setup::dev().on(backend)).await;
        let receiver = Receiver::start().await;
        let made = many_failed(&server, &receiver, 10).await;
        // In the query, in the body, and with ids that are not there: those are skipped.
        let query = format!("/v2/dlq?dlqIds={},{}&dlqIds={}", made[0], made[1], made[0]);
        assert_eq!(server.delete(&query).expect(200).await.json(), json!({ "deleted": 2 }));
        let body = json!({ "dlqIds": [made[0], made[2], made[3], "1-1", "none"] });
        assert_eq!(server.delete("/v2/dlq").json(&body).expect(200).await.json(), json!({ "deleted": 2 }));
        let filter = "/v2/dlq?label=n4&label=n5,n0";
        assert_eq!(server.delete(filter).expect(200).await.json(), json!({ "deleted": 2 }));
        let some = server.delete("/v2/dlq?count=1&order=earliestFirst").expect(200).await.json();
        assert_eq!(some["deleted"], 1);
        let left = server.dead_letters("order=earliestFirst").await;
        assert_eq!(ids(&left), made[7..], "{backend:?}");
        server.finish().await;
    }
}

#[tokio::test]
async fn a_page_is_also_bounded_in_bytes() {
    let server = TestServer::start().await;
    let receiver = Receiver::start().await;
    receiver.script("/", [Reply::status(500)]);
    let body = "x".repeat(5 * 1024 * 1024);
    for _ in 0..3 {
        failed(&server, &receiver.url("/"), &[], &body).await;
    }
    let mut seen = Vec::new();
    let mut cursor = String::new();
    loop {
        let page = server.get(&format!("/v2/dlq?{cursor}")).expect(200).await.json();
        let letters = page["messages"].as_array().expect("a list");
        assert_eq!(letters.len(), 1, "two of them would be over 8 MiB");
        seen.push(dlq_id(&letters[0]).to_owned());
        match page.get("cursor") {
            Some(next) => cursor = format!("cursor={}", next.as_str().expect("a cursor is text")),
            None => break,
        }
    }
    assert_eq!(seen.len(), 3);
    server.finish().await;
}

#[tokio::test]
async fn bodies_in_lists_can_be_cut_short() {
    let server = TestServer::start().await;
    let receiver = Receiver::start().await;
    receiver.script("/", [Reply::status(500)]);
    failed(&server, &receiver.url("/"), &[], "aé tail").await;
    let cases =
        [("", json!("aé tail")), ("trimBody=2", json!("a")), ("trimBody=3", json!("aé")), ("trimBody=0", Value::Null)];
    for (query, expected) in cases {
        assert_eq!(server.dead_letters(query).await[0]["body"], expected, "{query}");
    }
    server.finish().await;
}

#[tokio::test]
async fn a_forgotten_id_does_not_mean_all() {
    let server = TestServer::start().await;
    let receiver = Receiver::start().await;
    receiver.script("/", [Reply::status(500)]);
    let letter = failed(&server, &receiver.url("/"), &[], "").await;
    // Contract P10: a delete with an empty id is a mistake, not a bulk action.
    server.delete("/v2/dlq/").expect(400).await.error();
    server.post("/v2/dlq/retry/").expect(400).await.error();
    for (method, path) in [("DELETE", "/v2/dlq/"), ("POST", "/v2/dlq/retry/"), ("GET", "/v2/messages/")] {
        server.request(method, path).without("Authorization").expect(401).await.error();
    }
    server.delete("/v2/dlq/").token(READ_ONLY).expect(403).await.error();
    for path in ["/v2/dlq//", "/v2/dlq/%20", "/v2/dlq/messages/", "/v2/dlq/."] {
        let answer = server.delete(path).send().await;
        assert!([400, 404, 405].contains(&answer.status), "{path}: {}", answer.status);
    }
    assert_eq!(server.dead_letters("").await, [letter]);
    server.finish().await;
}

#[tokio::test]
async fn the_paths_of_old_sdks_work() {
    let server = TestServer::start().await;
    let receiver = Receiver::start().await;
    receiver.script("/", [Reply::status(500)]);
    let letter = failed(&server, &receiver.url("/"), &[], "").await;
    assert_eq!(server.get("/v2/dlq/messages").expect(200).await.json(), json!({ "messages": [letter] }));
    assert_eq!(server.get("/v2/dlq/").expect(200).await.json(), json!({ "messages": [letter] }));
    let target = format!("/v2/dlq/messages/{}", dlq_id(&letter));
    server.delete(&target).expect(200).await;
    server.delete(&target).expect(404).await;
    server.finish().await;
}
