//! Live logs: log lines as rows, as they come.

use crate::support::{EventStream, Receiver, Reply, Setup, TestServer};
use std::collections::HashMap;

const COOKIE: (&str, &str) = ("Cookie", "posthaste-tenant=tenant-a");

async fn page(server: &TestServer, query: &str) -> String {
    let request = server.get(&format!("/console/tail?{query}")).without("Authorization").headers(&[COOKIE]);
    request.expect(200).await.text()
}

async fn rows(stream: &mut EventStream) -> String {
    let (name, rows) = stream.next().await.expect("the stream is open");
    assert_eq!(name, "row", "{rows}");
    rows
}

#[tokio::test]
async fn the_page_starts_with_the_last_lines_and_the_stream_adds_new_ones() {
    let server = TestServer::start().await;
    let receiver = Receiver::start().await;
    receiver.script("/fails", [Reply::status(500).with_body("no"), Reply::status(500).with_body("no")]);
    let empty = page(&server, "").await;
    assert!(empty.contains("No log lines yet") && empty.contains("data-tail=\"/console/tail/stream?\""), "{empty}");

    let headers = [
        ("Upstash-Label", "<img src=x>"),
        ("Upstash-Retries", "1"),
        ("Upstash-Retry-Delay", "1000"),
        ("Upstash-Flow-Control-Key", "stripe"),
        ("Upstash-Flow-Control-Value", "parallelism=5"),
    ];
    let first = server.publish_with(&receiver.url("/fails?a&b"), &headers, "").await;
    server.reaches(&first, &["CREATED", "ACTIVE", "ERROR", "RETRY"]).await;
    server.advance(1_000).await;
    server.dead_letter_of(&first).await;
    let shown = page(&server, "").await;
    for state in ["created", "in flight", "error", "failed"] {
        assert!(shown.contains(&format!(">{state}</span>")), "{state}: {shown}");
    }
    assert!(shown.contains("returned 500") && shown.contains("&lt;img src=x&gt;"), "{shown}");
    let cell = |row: &str, place: usize| row.split("<td").nth(place).map(str::to_owned).unwrap_or_default();
    let attempts: Vec<String> =
        shown.split("<tr>").filter(|row| row.contains("/fails?a")).map(|row| cell(row, 7)).collect();
    let is_number = |cell: &String, number: &str| cell.contains(&format!(">{number}<span class=\"quiet\"> / 2<"));
    assert!(attempts.iter().take(3).all(|cell| is_number(cell, "2")), "failed, error, active: {attempts:?}");
    assert!(attempts.iter().skip(3).take(3).all(|cell| is_number(cell, "1")), "retry, error, active: {attempts:?}");
    assert!(attempts.len() == 7 && !attempts[6].contains("/ 2"), "it was created without one: {attempts:?}");
    let failed = shown.split("<tr>").find(|row| row.contains("/fails?a")).unwrap_or_default();
    assert!(cell(failed, 6).contains(">stripe<"), "{failed}");
    assert!(!shown.contains("<img src=x>") && shown.contains("/fails?a&amp;b"), "{shown}");

    let mut stream = EventStream::open(server.address, "/console/tail/stream", &[COOKIE]).await;
    let mut of_another =
        EventStream::open(server.address, "/console/tail/stream", &[("Cookie", "posthaste-tenant=tenant-b")]).await;
    let second = server.publish_with(&receiver.url("/"), &[("Upstash-Label", "<i>")], "").await;
    let mut seen = String::new();
    while !seen.contains(">delivered</span>") {
        seen = rows(&mut stream).await + &seen;
    }
    assert!(seen.contains(&format!("title=\"{second}\"")) && !seen.contains("<i>"), "{seen}");
    let link = format!("href=\"/console/messages/{}\"", second);
    assert_eq!(seen.matches(&link).count(), 3, "{seen}");
    let places: HashMap<&str, Option<usize>> =
        ["created", "in flight", "delivered"].map(|state| (state, seen.find(&format!(">{state}</span>")))).into();
    assert!(
        places["delivered"] < places["in flight"] && places["in flight"] < places["created"],
        "the newest first: {seen}"
    );
    server.finish().await;
    assert_eq!((stream.next().await, of_another.next().await), (None, None), "nothing for others, and the end");
}

#[tokio::test]
async fn filters_are_those_of_the_api() {
    let server = TestServer::start().await;
    let receiver = Receiver::start().await;
    for label in ["red", "blue"] {
        let id = server.publish_with(&receiver.url("/"), &[("Upstash-Label", label)], "").await;
        server.reaches(&id, &["CREATED", "ACTIVE", "DELIVERED"]).await;
    }
    let red = page(&server, "label=red&state=DELIVERED&url=").await;
    assert_eq!(red.matches("class=\"state good\"").count(), 1, "{red}");
    assert!(red.contains("data-tail=\"/console/tail/stream?state=DELIVERED&amp;label=red\""), "{red}");
    assert!(red.contains("name=\"label\" value=\"red\"") && red.contains("value=\"DELIVERED\" selected"), "{red}");
    let none = page(&server, "label=%22%3E%3Cb%3E").await;
    assert!(none.contains("No log lines match") && none.contains("value=\"&quot;&gt;&lt;b&gt;\""), "{none}");
    for (query, count) in [("path=%2F", 2), ("path=%2Fother", 0), ("callerIp=127.0.0.1", 2), ("callerIp=10.0.0.9", 0)] {
        let found = page(&server, query).await;
        assert_eq!(found.matches("class=\"state good\"").count(), count, "{query}: {found}");
    }
    assert!(page(&server, "sourceMessageId=msg_x").await.contains("name=\"sourceMessageId\" value=\"msg_x\""));
    let wrong = page(&server, "state=NO").await;
    assert!(wrong.contains("state NO does not exist") && !wrong.contains("data-tail="), "{wrong}");

    let target = "/console/tail/stream?state=CREATED&label=red";
    let mut stream = EventStream::open(server.address, target, &[COOKIE]).await;
    for label in ["blue", "red"] {
        server.publish_with(&receiver.url("/"), &[("Upstash-Label", label)], "").await;
    }
    let rows = rows(&mut stream).await;
    assert!(rows.contains(">red<") && !rows.contains("blue"), "{rows}");
    server.finish().await;
}

#[tokio::test]
async fn a_rejected_stream_has_a_reason() {
    let server = TestServer::start().await;
    let mut streams = Vec::new();
    for _ in 0..8 {
        streams.push(EventStream::open(server.address, "/console/tail/stream", &[COOKIE]).await);
    }
    let answer = server.get("/console/tail/stream").without("Authorization").headers(&[COOKIE]).expect(200).await;
    let text = answer.text();
    assert!(text.contains("retry: 10000\nevent: problem\ndata: 8 streams of this tenant are open"), "{text}");
    drop(streams);
    server.finish().await;

    let closed = TestServer::with(Setup::serve()).await;
    let answer = closed.get("/console/tail/stream").without("Authorization").send().await;
    assert!(answer.header("location").is_some_and(|to| to.starts_with("/console/login")), "{}", answer.status);
    closed.finish().await;
}
