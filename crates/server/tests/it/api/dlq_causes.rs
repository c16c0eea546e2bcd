//! `GET /v2/dlq/causes`: dead letters by what they died of, and the filter that selects those of one cause.

use crate::support::server::{READ_ONLY, START_MS, TOKEN_B};
use crate::support::{Backend, Receiver, Reply, Setup, TestServer, eventually};
use posthaste_engine::limits::CAUSES_LISTED_MAX;
use serde_json::{Value, json};
use tokio::task::JoinSet;

/// Looks that take longer together than any of them waits.
const LOOKS: usize = 400;

/// Publishes messages that fail, one to each path, in this order and a second apart.
async fn fail_at(server: &TestServer, receiver: &Receiver, paths: &[&str]) -> Vec<String> {
    let mut letters = Vec::new();
    for path in paths {
        let headers = [("Upstash-Retries", "0"), ("Upstash-Label", "made")];
        let id = server.publish_with(&receiver.url(path), &headers, "body").await;
        letters.push(server.dead_letter_of(&id).await["dlqId"].as_str().expect("an id").to_owned());
        server.advance(1_000).await;
    }
    letters
}

async fn causes(server: &TestServer, query: &str) -> Value {
    server.get(&format!("/v2/dlq/causes{query}")).expect(200).await.json()
}

fn answers(receiver: &Receiver, path: &str, status: u16, body: &str) {
    receiver.script(path, [Reply::status(status).with_body(body)]);
}

#[tokio::test]
async fn dead_letters_of_one_cause_are_one_group() {
    for backend in Backend::ALL {
        let server = TestServer::with(Setup::dev().on(backend)).await;
        let receiver = Receiver::start().await;
        answers(&receiver, "/pay/1001", 500, "order 1001 is locked by \"anna\"");
        answers(&receiver, "/pay/1002", 500, "order 1002 is locked by \"bert\"");
        answers(&receiver, "/mail", 500, "order 1 is locked by \"anna\"");
        receiver.script("/gone", [Reply::Close]);
        let letters = fail_at(&server, &receiver, &["/pay/1001?x=1", "/mail", "/pay/1002", "/gone"]).await;

        let answer = causes(&server, "").await;
        let origin = receiver.url("");
        let expected = json!([
            {
                "cause": answer["causes"][0]["cause"],
                "destination": format!("{origin}/pay/#"),
                "responseStatus": 500,
                "text": "order # is locked by \"…\"",
                "count": 2,
                "firstSeen": START_MS,
                "lastSeen": START_MS + 2_000,
                "sample": { "dlqId": letters[2], "text": "order 1002 is locked by \"bert\"" },
            },
            {
                "cause": answer["causes"][1]["cause"],
                "destination": format!("{origin}/gone"),
                "responseStatus": 0,
                "errorClass": "closed",
                "text": "the connection was closed before the response",
                "count": 1,
                "firstSeen": START_MS + 3_000,
                "lastSeen": START_MS + 3_000,
                "sample": { "dlqId": letters[3], "text": "the connection was closed before the response" },
            },
            {
                "cause": answer["causes"][2]["cause"],
                "destination": format!("{origin}/mail"),
                "responseStatus": 500,
                "text": "order # is locked by \"…\"",
                "count": 1,
                "firstSeen": START_MS + 1_000,
                "lastSeen": START_MS + 1_000,
                "sample": { "dlqId": letters[1], "text": "order 1 is locked by \"anna\"" },
            },
        ]);
        assert_eq!(answer, json!({ "causes": expected, "leftOut": 0, "looked": 4, "more": false }), "{backend:?}");

        let cause = |n: usize| answer["causes"][n]["cause"].as_str().expect("an id");
        let found = |query: String| {
            let server = &server;
            async move {
                let letters = server.dead_letters(&query).await;
                letters.iter().map(|letter| letter["dlqId"].as_str().expect("an id").to_owned()).collect::<Vec<_>>()
            }
        };
        assert_eq!(found(format!("cause={}", cause(0))).await, [letters[2].clone(), letters[0].clone()]);
        assert_eq!(found(format!("cause={},{}", cause(1), cause(2))).await, [letters[3].clone(), letters[1].clone()]);
        assert_eq!(found(format!("cause={}&label=other", cause(0))).await, [""; 0]);
        let one = causes(&server, &format!("?cause={}&toDate={START_MS}", cause(0))).await;
        assert_eq!((one["looked"].clone(), one["causes"][0]["count"].clone()), (json!(1), json!(1)));

        let again = server.post(&format!("/v2/dlq/retry?cause={}", cause(1))).header("Upstash-Delay", "1h");
        assert_eq!(again.expect(201).await.json()["responses"].as_array().map(Vec::len), Some(1));
        let deleted = server.delete(&format!("/v2/dlq?cause={}", cause(0))).expect(200).await.json();
        assert_eq!(deleted, json!({ "deleted": 2 }));
        assert_eq!(found(String::new()).await, [letters[1].clone()]);
        server.finish_with_pending().await;
    }
}

#[tokio::test]
async fn causes_belong_to_their_tenant_and_may_be_read() {
    let server = TestServer::start().await;
    let receiver = Receiver::start().await;
    answers(&receiver, "/", 500, "no");
    fail_at(&server, &receiver, &["/"]).await;
    let nothing = json!({ "causes": [], "leftOut": 0, "looked": 0, "more": false });
    let others = server.get("/v2/dlq/causes").token(TOKEN_B).expect(200).await.json();
    assert_eq!(others, nothing);
    let seen = server.get("/v2/dlq/causes").token(READ_ONLY).expect(200).await.json();
    assert_eq!(seen["causes"][0]["count"], 1);
    let cause = seen["causes"][0]["cause"].as_str().expect("an id");
    assert_eq!(server.delete(&format!("/v2/dlq?cause={cause}")).token(TOKEN_B).expect(200).await.json()["deleted"], 0);
    for query in ["count=1", "cursor=1-1", "order=latestFirst", "trimBody=1", "cause=", "cause=x", "labeel=x"] {
        server.get(&format!("/v2/dlq/causes?{query}")).expect(400).await.error();
    }
    for query in ["cause=", "cause=cause_0", "cause=0"] {
        server.get(&format!("/v2/dlq?{query}")).expect(400).await.error();
        server.delete(&format!("/v2/dlq?{query}")).expect(400).await.error();
        server.post(&format!("/v2/dlq/retry?{query}")).expect(400).await.error();
    }
    server.get("/v2/messages?cause=x").expect(405).await.error();
    server.delete(&format!("/v2/messages?cause={cause}")).expect(400).await.error();
    server.finish().await;
}

#[tokio::test]
async fn of_very_many_causes_the_largest_are_listed() {
    let server = TestServer::start().await;
    let receiver = Receiver::start().await;
    // Without digits, which are no part of a cause.
    let words = |n: usize| [n / 26, n % 26].map(|n| char::from(b'a' + n as u8)).iter().collect::<String>();
    let count = CAUSES_LISTED_MAX + 5;
    let mut items = Vec::new();
    for n in 0..count {
        let path = format!("/p{}", words(n));
        answers(&receiver, &path, 500, "no");
        let item = json!({ "destination": receiver.url(&path), "headers": { "Upstash-Retries": "0" } });
        // The last one twice.
        items.extend(vec![item; if n == count - 1 { 2 } else { 1 }]);
    }
    server.post("/v2/batch").json(&items.into()).expect(200).await;
    eventually("all have failed", || async { (server.counts().dead_letters as usize == count + 1).then_some(()) })
        .await;
    let answer = causes(&server, "").await;
    let listed = answer["causes"].as_array().expect("a list");
    assert_eq!((listed.len(), &answer["leftOut"], &answer["more"]), (CAUSES_LISTED_MAX, &json!(5), &json!(false)));
    assert_eq!((&listed[0]["count"], &listed[1]["count"]), (&json!(2), &json!(1)));
    server.finish().await;
}

#[tokio::test]
async fn very_many_dead_letters_are_looked_at_in_pieces_and_for_one_caller_at_a_time() {
    /// More than one piece.
    const LETTERS: usize = 1_500;
    for backend in Backend::ALL {
        let server = TestServer::with(Setup::dev().on(backend)).await;
        // Nobody listens there.
        let item = |n: usize| json!({ "destination": format!("http://127.0.0.1:1/{n}"), "headers": { "Upstash-Retries": "0" } });
        server.post("/v2/batch").json(&(0..LETTERS).map(item).collect()).expect(200).await;
        eventually("all have failed", || async { (server.counts().dead_letters as usize == LETTERS).then_some(()) })
            .await;
        let answer = causes(&server, "").await;
        assert_eq!((&answer["looked"], &answer["more"]), (&json!(LETTERS), &json!(false)), "{backend:?}");
        assert_eq!(answer["causes"][0]["count"], LETTERS, "{backend:?}");

        let mut looks = JoinSet::new();
        for _ in 0..LOOKS {
            looks.spawn(server.get("/v2/dlq/causes").send());
        }
        let other = server.get("/v2/dlq/causes").token(TOKEN_B).send().await;
        assert_eq!(other.status, 200, "another tenant does not wait for them");
        let looks = looks.join_all().await;
        let (done, refused): (Vec<_>, Vec<_>) = looks.iter().partition(|look| look.status == 200);
        assert!(!done.is_empty() && !refused.is_empty(), "{} were done at once", done.len());
        for look in refused {
            assert_eq!((look.status, look.header("retry-after")), (429, Some("1")), "{}", look.text());
            assert!(look.error().contains("another request for causes is in progress"), "{}", look.text());
        }
        causes(&server, "").await;
        server.finish().await;
    }
}
