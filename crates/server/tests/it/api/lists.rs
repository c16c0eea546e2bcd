//! How long lists get, whom they make wait, and what they show to those who may only read.

use super::workflow_runs::{APP, Runs, call, start, step};
use crate::support::server::{READ_ONLY, TOKEN_B};
use crate::support::{Answer, Backend, Receiver, Reply, Setup, TestServer, eventually};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use posthaste_engine::limits::PAGE_BYTES_MAX;
use serde_json::{Value, json};
use std::time::{Duration, Instant};
use tokio::task::JoinSet;

const DAILY: (&str, &str) = ("Upstash-Cron", "0 0 * * *");
const MEGABYTE: usize = 1_000_000;

/// Makes schedules `s00`, `s01` … with bodies of this size.
async fn make_schedules(server: &TestServer, count: usize, bytes: usize) -> Vec<String> {
    let ids: Vec<String> = (0..count).map(|number| format!("s{number:02}")).collect();
    for id in &ids {
        let headers = [DAILY, ("Upstash-Schedule-Id", id.as_str())];
        let request = server.post("/v2/schedules/https://example.com").headers(&headers);
        request.body(vec![b'x'; bytes]).expect(201).await;
    }
    ids
}

fn ids_of(answer: &Answer) -> Vec<String> {
    let list = answer.json();
    let ids = list.as_array().expect("a bare list").iter().map(|schedule| schedule["scheduleId"].as_str());
    ids.map(|id| id.expect("an id").to_owned()).collect()
}

#[tokio::test]
async fn large_schedules_are_all_listed_and_the_list_is_short() {
    for backend in Backend::ALL {
        let server = TestServer::with(Setup::dev().on(backend)).await;
        let ids = make_schedules(&server, 12, MEGABYTE).await;
        let answer = server.get("/v2/schedules").expect(200).await;
        assert_eq!(ids_of(&answer), ids);
        assert_eq!(answer.header("upstash-cursor"), None, "there is nothing more");
        assert!(answer.body.len() < PAGE_BYTES_MAX + 100_000, "{} bytes", answer.body.len());
        assert_eq!(answer.header("content-length"), Some(answer.body.len().to_string().as_str()));
        let listed = answer.json();
        let listed = listed.as_array().expect("a list");
        let fitting = PAGE_BYTES_MAX / MEGABYTE;
        for (place, schedule) in listed.iter().enumerate() {
            let has_body = schedule["body"].as_str().is_some_and(|body| body.len() == MEGABYTE);
            let is_marked = (&schedule["bodyOmitted"], &schedule["bodyBytes"]) == (&json!(true), &json!(MEGABYTE));
            assert_eq!((has_body, is_marked), (place < fitting, place >= fitting), "{place}");
        }
        assert_eq!(server.schedule("s11").await["body"].as_str().map(str::len), Some(MEGABYTE), "one alone is whole");
        let heads = server.get("/v2/schedules?trimBody=0").expect(200).await;
        assert!(ids_of(&heads) == ids && !heads.text().contains("body"), "nobody asked for bodies");
        let cut = server.get("/v2/schedules?trimBody=3").expect(200).await.json();
        assert_eq!(cut[0]["body"], "xxx");
        server.finish().await;
    }
}

#[tokio::test]
async fn bare_lists_say_in_a_header_where_they_go_on() {
    let server = TestServer::start().await;
    let names = ["a", "b", "c", "d", "e"];
    let endpoints = json!({ "endpoints": [{ "url": "https://example.com" }] });
    for name in names {
        let headers = [DAILY, ("Upstash-Schedule-Id", name)];
        server.schedule_with("https://example.com", &headers, "").await;
        server.post("/v2/queues").json(&json!({ "queueName": name })).expect(200).await;
        server.post(&format!("/v2/topics/{name}/endpoints")).json(&endpoints).expect(200).await;
    }
    for (path, member) in [("/v2/schedules", "scheduleId"), ("/v2/queues", "name"), ("/v2/topics", "name")] {
        let (mut seen, mut sizes, mut cursor) = (Vec::new(), Vec::new(), String::new());
        loop {
            let answer = server.get(&format!("{path}?count=2&cursor={cursor}")).expect(200).await;
            let page = answer.json();
            let page = page.as_array().expect("a bare list");
            sizes.push(page.len());
            seen.extend(page.iter().map(|it| it[member].as_str().expect("a name").to_owned()));
            assert!(sizes.len() < 10, "{path}: the cursor does not move");
            match answer.header("upstash-cursor") {
                Some(next) => cursor = next.to_owned(),
                None => break,
            }
        }
        assert_eq!(
            (seen.iter().map(String::as_str).collect::<Vec<_>>(), sizes),
            (names.to_vec(), vec![2, 2, 1]),
            "{path}"
        );
        let whole = server.get(path).expect(200).await;
        assert_eq!((whole.json().as_array().map(Vec::len), whole.header("upstash-cursor")), (Some(5), None), "{path}");
        server.get(&format!("{path}?count=0")).expect(400).await.error();
    }
    server.finish().await;
}

#[tokio::test]
async fn a_large_body_arrives_as_it_is_wherever_it_is_shown() {
    let server = TestServer::start().await;
    let receiver = Receiver::start().await;
    receiver.script("/fails", [Reply::status(500)]);
    let odd: String = (0..0x300).filter_map(char::from_u32).collect::<String>() + "\u{2028}😀\"\\";
    let text = odd.repeat(200);
    let bytes: Vec<u8> = (0..=255).cycle().take(200_000).collect();
    for (body, is_text) in [(text.clone().into_bytes(), true), (bytes, false)] {
        let publish = server.publish(&receiver.url("/fails")).header("Upstash-Retries", "0").body(body.clone());
        let id = publish.expect(200).await.json()["messageId"].as_str().expect("an id").to_owned();
        let letter = server.dead_letter_of(&id).await;
        for shown in [server.message(&id).await, letter] {
            match is_text {
                true => assert!(shown["body"] == text, "the text is another one"),
                false => assert!(shown["bodyBase64"] == STANDARD.encode(&body), "the bytes are others"),
            }
        }
        let answer = server.get(&format!("/v2/logs?messageId={id}")).expect(200).await.json();
        let lines = answer["events"].as_array().expect("a list");
        assert_eq!(lines.len(), 4, "created, active, error, failed");
        assert!(answer["logs"] == answer["events"] && answer["messages"][0]["events"] == answer["events"]);
        assert!(lines.iter().all(|line| line["body"] == STANDARD.encode(&body)), "the bytes are others");
        let heads = server.get(&format!("/v2/logs?messageId={id}&trimBody=0")).expect(200).await;
        assert!(heads.body.len() < 20_000, "{} bytes", heads.body.len());
    }
    server.finish().await;
}

/// Requests of the tenant that floods; each reads some megabytes.
const FLOOD: usize = 200;

#[tokio::test(flavor = "multi_thread")]
async fn a_tenant_that_reads_much_waits_for_itself_and_not_the_others_for_it() {
    let server = TestServer::start().await;
    make_schedules(&server, 8, MEGABYTE).await;
    let one = [DAILY, ("Upstash-Schedule-Id", "neighbour")];
    server.post("/v2/schedules/https://example.com").token(TOKEN_B).headers(&one).expect(201).await;
    let small = || server.get("/v2/schedules").token(TOKEN_B).expect(200);
    small().await;
    let begun = Instant::now();
    let mut flood = JoinSet::new();
    for _ in 0..FLOOD {
        flood.spawn(server.get("/v2/schedules?trimBody=3").send());
    }
    // Until all have come, some are done: the neighbour is measured while others wait.
    let (mut answered, mut refused, mut slowest) = (0, 0, Duration::ZERO);
    while let Some(answer) = flood.join_next().await {
        let answer = answer.expect("it ends");
        match answer.status {
            200 => answered += 1,
            429 => {
                assert_eq!(answer.header("retry-after"), Some("1"));
                assert!(answer.error().contains("this tenant"), "{}", answer.error());
                refused += 1;
            }
            other => panic!("{other}: {}", answer.text()),
        }
        if flood.len() > FLOOD / 4 {
            let asked = Instant::now();
            small().await;
            slowest = slowest.max(asked.elapsed());
        }
    }
    let took = begun.elapsed();
    assert!(answered >= 10 && answered + refused == FLOOD, "{answered} answered, {refused} refused");
    assert!(slowest < took / 5, "the neighbour waited {slowest:?} while the flood took {took:?}");
    server.finish().await;
}

#[tokio::test]
async fn marks_of_hidden_values_are_keyed_and_outlive_a_restart() {
    for backend in Backend::ALL {
        let server = TestServer::with(Setup::dev().on(backend)).await;
        let headers = [DAILY, ("Upstash-Schedule-Id", "s"), ("Upstash-Redact-Fields", "body")];
        server.schedule_with("https://example.com", &headers, "1234").await;
        let theirs = server.post("/v2/schedules/https://example.com").token(TOKEN_B).headers(&headers).body("1234");
        theirs.expect(201).await;
        let mark = server.schedule("s").await["body"].clone();
        assert_eq!(mark, server.mark("1234"));
        // What anybody could compute by trying all numbers of four digits.
        assert_ne!(mark, "REDACTED:03ac674216f3e15c761ee1a5e255f067953623c8b388b4459e13f978d7c846f4");
        let other = server.get("/v2/schedules/s").token(TOKEN_B).expect(200).await.json();
        assert_ne!(mark, other["body"], "another tenant has other marks");
        let server = server.restart().await;
        assert_eq!(server.schedule("s").await["body"], mark);
        server.finish().await;
    }
}

#[tokio::test]
async fn who_may_only_read_sees_no_credentials() {
    let server = TestServer::start().await;
    let receiver = Receiver::start().await;
    receiver.script("/fails", [Reply::status(500).with_header("Set-Cookie", "s3cret-answer")]);
    let told = receiver.url("/told");
    let headers = [
        ("Upstash-Retries", "0"),
        ("Upstash-Forward-Authorization", "Bearer s3cret"),
        ("Upstash-Forward-Cookie", "a=s3cret"),
        ("Upstash-Forward-X-Plain", "plain"),
        ("Upstash-Callback", told.as_str()),
        ("Upstash-Callback-Forward-Authorization", "Bearer s3cret-callback"),
        ("Upstash-Failure-Callback", told.as_str()),
        ("Upstash-Failure-Callback-Forward-X-Api-Key", "s3cret-failure"),
    ];
    let id = server.publish_with(&receiver.url("/fails"), &headers, "body").await;
    let letter = server.dead_letter_of(&id).await;
    let dlq_id = letter["dlqId"].as_str().expect("an id").to_owned();
    server
        .schedule_with("https://example.com", &[&headers[..], &[DAILY, ("Upstash-Schedule-Id", "s")]].concat(), "")
        .await;
    let endpoints = json!({ "endpoints": [{ "url": "https://example.com" }] });
    server.post("/v2/topics/g/endpoints").json(&endpoints).expect(200).await;
    let defaults =
        json!({ "headers": { "Upstash-Forward-Authorization": "Bearer s3cret-group", "Upstash-Retries": "1" } });
    server.request("PATCH", "/v2/topics/g").json(&defaults).expect(200).await;
    // Its attempts and callbacks are over.
    for _ in 0..3 {
        receiver.next().await;
    }
    let paths = [
        format!("/v2/messages/{id}"),
        "/v2/events?trimBody=-1".to_owned(),
        "/v2/events".to_owned(),
        "/v2/logs?groupBy=messageId".to_owned(),
        "/v2/dlq".to_owned(),
        format!("/v2/dlq/{dlq_id}"),
        "/v2/schedules".to_owned(),
        "/v2/schedules/s".to_owned(),
        "/v2/topics".to_owned(),
        "/v2/topics/g".to_owned(),
    ];
    for path in &paths {
        let whole = server.get(path).expect(200).await.text();
        assert!(whole.contains("s3cret"), "{path}: a token that may do everything sees it");
        let shown = server.get(path).token(READ_ONLY).expect(200).await.json();
        let texts = texts_in(&shown);
        assert!(!texts.iter().any(|text| text.contains("s3cret")), "{path}: {shown}");
        assert!(texts.iter().any(|text| text.starts_with("REDACTED:")), "{path}: {shown}");
    }
    let read_only = server.get(&paths[0]).token(READ_ONLY).expect(200).await.json();
    assert_eq!(read_only["header"]["X-Plain"], json!(["plain"]), "what is no credential is shown");
    assert_eq!(read_only["header"]["Authorization"], json!([server.mark("Bearer s3cret")]));
    assert_eq!(read_only["body"], "body");
    server.finish().await;
}

#[tokio::test]
async fn who_may_only_read_sees_no_credentials_in_the_response_to_a_call_of_a_run() {
    let server = TestServer::start().await;
    let receiver = Receiver::start().await;
    receiver
        .script("/called", [Reply::status(200).with_header("Set-Cookie", "s3cret").with_header("X-Plain", "plain")]);
    server.started(&["wfr_a"]).await;
    let call = call("wfr_a", &receiver.url("/called"));
    server.batch(json!([call])).expect(200).await;
    let path = "/v2/workflows/logs";
    eventually("the call is answered", || async {
        server.get(path).expect(200).await.text().contains("s3cret").then_some(())
    })
    .await;
    let shown = server.get(path).token(READ_ONLY).expect(200).await.json();
    let texts = texts_in(&shown);
    assert!(!texts.iter().any(|text| text.contains("s3cret")), "{shown}");
    assert!(texts.contains(&server.mark("s3cret")) && texts.iter().any(|text| text == "plain"), "{shown}");
    server.finish_with_pending().await;
}

/// All texts in a value, those in base64 as well.
fn texts_in(value: &Value) -> Vec<String> {
    match value {
        Value::String(text) => {
            let decoded = STANDARD.decode(text).ok().map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
            std::iter::once(text.clone()).chain(decoded).collect()
        }
        Value::Array(values) => values.iter().flat_map(texts_in).collect(),
        Value::Object(members) => members.values().flat_map(texts_in).collect(),
        Value::Null | Value::Bool(_) | Value::Number(_) => Vec::new(),
    }
}

#[tokio::test]
async fn what_a_single_step_asks_to_hide_is_hidden_wherever_it_is_shown() {
    for backend in Backend::ALL {
        let server = TestServer::with(Setup::dev().on(backend)).await;
        server.started(&["wfr_a", "wfr_b"]).await;
        let result = |number: u32, out: &str| {
            json!({ "stepId": number, "stepName": "n", "stepType": "Run", "out": out, "concurrent": 1 }).to_string()
        };
        let mut hiding = step("wfr_a", &result(1, "s3cret-out"));
        hiding["headers"]["upstash-redact-fields"] = "body,header[X-Key]".into();
        hiding["headers"]["upstash-forward-x-key"] = "s3cret-key".into();
        hiding["headers"]["upstash-forward-x-open"] = "open".into();
        server.batch(json!([hiding])).expect(200).await;
        server.batch(json!([step("wfr_a", &result(2, "shown"))])).expect(200).await;
        // The result of a wait holds what its step asked to hide, and so does the list of those who wait.
        let wait_headers = json!({
            "Upstash-Workflow-RunId": ["wfr_a"], "Upstash-Redact-Fields": ["body,header[X-Key]"],
            "Upstash-Forward-X-Key": ["s3cret-key"],
        });
        let waiting = json!({ "stepId": 3, "stepName": "w", "stepType": "Wait", "concurrent": 1 });
        let wait =
            json!({ "url": APP, "timeout": "1h", "timeoutUrl": APP, "timeoutHeaders": wait_headers, "step": waiting });
        server.post("/v2/wait/approved").header("Upstash-Workflow-RunId", "wfr_a").json(&wait).expect(200).await;
        let waiters = server.get("/v2/waiters/approved").expect(200).await.text();
        assert!(waiters.contains("REDACTED:") && !waiters.contains("s3cret"), "{waiters}");
        let notified = server.post("/v2/notify/approved").body("s3cret-event").expect(200).await.text();
        assert!(!notified.contains("s3cret"), "{notified}");
        for path in ["/v2/workflows/logs", "/v2/workflows/events", "/v2/workflows/events?groupBy=workflowRunId"] {
            let shown = server.get(path).expect(200).await.json();
            let texts = texts_in(&shown);
            assert!(!texts.iter().any(|text| text.contains("s3cret")), "{path}: {shown}");
            // Steps whose delivery is not due yet have no lines.
            if path != "/v2/workflows/events" {
                for hidden in ["s3cret-key", "s3cret-out"] {
                    assert!(texts.contains(&server.mark(hidden)), "{path}: {shown}");
                }
                for open in ["open", "shown"] {
                    assert!(texts.iter().any(|text| text == open), "{path}: {shown}");
                }
            }
            assert!(texts.iter().any(|text| text.contains("order")), "{path}: the run hides nothing");
        }
        // The entries are originals: only who can execute the run gets them.
        server.get("/v2/workflows/runs/wfr_a").token(READ_ONLY).expect(403).await.error();
        server.get("/v2/workflows/runs/wfr_b").token(READ_ONLY).expect(200).await;
        assert_eq!(server.entries("wfr_a").await[1]["out"], "s3cret-out");
        server.finish_with_pending().await;
    }
}

#[tokio::test]
async fn the_entries_of_a_run_are_sent_as_the_endpoint_gets_them() {
    let server = TestServer::start().await;
    let mut large = start("wfr_large");
    large["body"] = "x".repeat(3 * MEGABYTE).into();
    server.batch(json!([large])).expect(200).await;
    let answer = server.get("/v2/workflows/runs/wfr_large").expect(200).await;
    let entries = answer.json();
    assert_eq!(entries[0]["body"], STANDARD.encode("x".repeat(3 * MEGABYTE)));
    assert_eq!((&entries[0]["callType"], entries[0]["createdAt"].is_u64()), (&json!("step"), true));
    let mut members: Vec<&String> = entries[0].as_object().expect("an entry").keys().collect();
    members.sort();
    assert_eq!(members, ["body", "callType", "createdAt", "messageId"]);
    server.finish_with_pending().await;
}
