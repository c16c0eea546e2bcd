//! `/v2/events` and `/v2/logs`: what happened, filtered, in pages, newest first.

use crate::support::server::{START_MS, TOKEN};
use crate::support::{Backend, EventStream, Lines, Receiver, Reply, Setup, TestServer, eventually};
use serde_json::{Value, json};

/// Four messages that end in every way there is, one second after the other.
async fn four_stories(server: &TestServer, receiver: &Receiver) -> Vec<String> {
    receiver.script("/failed", [Reply::status(500)]);
    receiver.script("/retried", [Reply::status(503)]);
    let mut ids = Vec::new();
    let stories: [(&str, Lines<'_>, &[&str]); 4] = [
        ("/delivered?q", &[("Upstash-Label", "red,first")], &["CREATED", "ACTIVE", "DELIVERED"]),
        ("/failed", &[("Upstash-Label", "red"), ("Upstash-Retries", "0")], &["CREATED", "ACTIVE", "ERROR", "FAILED"]),
        ("/retried", &[("Upstash-Retry-Delay", "86400000")], &["CREATED", "ACTIVE", "ERROR", "RETRY"]),
        ("/cancelled", &[("Upstash-Delay", "1h")], &["CREATED"]),
    ];
    for (path, headers, states) in stories {
        let id = server.publish_with(&receiver.url(path), headers, "body").await;
        server.reaches(&id, states).await;
        ids.push(id);
        server.advance(1_000).await;
    }
    server.delete(&format!("/v2/messages/{}", ids[3])).expect(202).await;
    ids
}

/// The story's lines as `number of the message:state`, oldest first.
const ALL: [&str; 14] = [
    "0:CREATED",
    "0:ACTIVE",
    "0:DELIVERED",
    "1:CREATED",
    "1:ACTIVE",
    "1:ERROR",
    "1:FAILED",
    "2:CREATED",
    "2:ACTIVE",
    "2:ERROR",
    "2:RETRY",
    "3:CREATED",
    "3:CANCEL_REQUESTED",
    "3:CANCELED",
];

fn lines(events: &[Value], ids: &[String]) -> Vec<String> {
    let line = |event: &Value| {
        let number = ids.iter().position(|id| event["messageId"] == *id).expect("a message of this test");
        format!("{number}:{}", event["state"].as_str().expect("a state is text"))
    };
    events.iter().map(line).collect()
}

fn selected(keep: impl Fn(&str) -> bool) -> Vec<&'static str> {
    ALL.into_iter().filter(|line| keep(line)).collect()
}

#[tokio::test]
async fn filters_select_log_lines() {
    for backend in Backend::ALL {
        let server = TestServer::with(Setup::dev().on(backend)).await;
        let receiver = Receiver::start().await;
        let ids = four_stories(&server, &receiver).await;
        let of = |numbers: &'static str| selected(move |line| numbers.contains(&line[..1]));
        let state = |states: &'static [&'static str]| selected(move |line| states.contains(&&line[2..]));
        let host = receiver.address();
        let cases: Vec<(String, Vec<&str>)> = vec![
            (String::new(), ALL.to_vec()),
            (format!("messageId={}", ids[1]), of("1")),
            (format!("messageIds={},{}&messageIds={}", ids[0], ids[3], ids[1]), of("013")),
            ("messageId=msg_unknown".into(), vec![]),
            ("state=CREATED".into(), state(&["CREATED"])),
            ("state=ACTIVE".into(), state(&["ACTIVE"])),
            ("state=ERROR".into(), state(&["ERROR"])),
            ("state=RETRY".into(), state(&["RETRY"])),
            ("state=DELIVERED".into(), state(&["DELIVERED"])),
            ("state=FAILED".into(), state(&["FAILED"])),
            ("state=CANCEL_REQUESTED".into(), state(&["CANCEL_REQUESTED"])),
            ("state=CANCELED".into(), state(&["CANCELED"])),
            ("state=CANCELLED".into(), state(&["CANCELED"])),
            ("state=IN_PROGRESS".into(), state(&["ACTIVE", "RETRY", "ERROR"])),
            (format!("state=DELIVERED&messageId={}", ids[0]), vec!["0:DELIVERED"]),
            (format!("state=DELIVERED&messageId={}", ids[1]), vec![]),
            (format!("url={}", receiver.url("/delivered%3Fq")), of("0")),
            (format!("url={}", receiver.url("/delivered")), vec![]),
            ("host=127.0.0.1".into(), ALL.to_vec()),
            (format!("host={host}"), ALL.to_vec()),
            ("host=example.com".into(), vec![]),
            ("path=/failed,/retried".into(), of("12")),
            ("path=/delivered".into(), of("0")),
            ("label=red".into(), of("01")),
            ("label=first&label=unknown".into(), of("0")),
            ("label=red&state=FAILED".into(), vec!["1:FAILED"]),
            ("callerIp=127.0.0.1".into(), ALL.to_vec()),
            ("callerIP=10.0.0.1".into(), vec![]),
            ("queueName=q".into(), vec![]),
            ("topicName=t".into(), vec![]),
            ("scheduleId=s".into(), vec![]),
            ("flowControlKey=k".into(), vec![]),
            // Event times, both ends included.
            (format!("fromDate={}", START_MS + 2_000), of("23")),
            (format!("toDate={START_MS}"), of("0")),
            (format!("fromDate={0}&toDate={0}", START_MS + 1_000), of("1")),
            (format!("fromDate={}&toDate={}", START_MS + 1_001, START_MS + 1_999), vec![]),
            (format!("fromDate={}&state=CANCELED", START_MS + 4_000), vec!["3:CANCELED"]),
            // Unknown keys mean nothing here.
            ("api=llm&something=else".into(), ALL.to_vec()),
        ];
        for (query, expected) in cases {
            let query = query.as_str();
            let found = lines(&server.events(&format!("{query}&order=earliestFirst")).await, &ids);
            assert_eq!(found, expected, "{backend:?} {query}");
            let mut newest_first = lines(&server.events(query).await, &ids);
            newest_first.reverse();
            assert_eq!(newest_first, expected, "{backend:?} newest first: {query}");
            let logs = server.get(&format!("/v2/logs?{query}&order=earliestFirst")).expect(200).await.json();
            let logs = logs["logs"].as_array().expect("logs are a list");
            assert_eq!(lines(logs, &ids), expected, "{backend:?} under the other name: {query}");
        }
        server.delete("/v2/messages").expect(202).await;
        server.finish().await;
    }
}

#[tokio::test]
async fn what_makes_no_sense_is_refused() {
    let server = TestServer::start().await;
    let queries = [
        "state=UNHEARD_OF",
        "state=",
        "count=0",
        "count=-1",
        "count=x",
        "cursor=x",
        "order=newest",
        "fromDate=x",
        "toDate=99999999999999999999",
        "trimBody=-2",
        "groupBy=state",
        "messageId=",
        "label=,",
    ];
    for path in ["/v2/events", "/v2/logs"] {
        for query in queries {
            server.get(&format!("{path}?{query}")).expect(400).await.error();
        }
    }
    server.finish().await;
}

#[tokio::test]
async fn pages_follow_each_other_without_gap_or_repetition() {
    for backend in Backend::ALL {
        let server = TestServer::with(Setup::dev().on(backend)).await;
        let receiver = Receiver::start().await;
        let ids = four_stories(&server, &receiver).await;
        for (order, filter) in [("latestFirst", ""), ("earliestFirst", ""), ("latestFirst", "&state=ACTIVE,CREATED")] {
            let whole = server.events(&format!("order={order}{filter}")).await;
            for count in 1..=whole.len() {
                let (mut seen, mut cursor) = (Vec::new(), String::new());
                loop {
                    let target = format!("/v2/events?order={order}&count={count}{filter}{cursor}");
                    let page = server.get(&target).expect(200).await.json();
                    let events = page["events"].as_array().expect("a list").clone();
                    assert!(events.len() <= count);
                    seen.extend(events);
                    match page.get("cursor") {
                        Some(next) => cursor = format!("&cursor={}", next.as_str().expect("a cursor is text")),
                        None => break,
                    }
                }
                assert_eq!(lines(&seen, &ids), lines(&whole, &ids), "{backend:?} {order} {count}{filter}");
            }
        }
        server.delete("/v2/messages").expect(202).await;
        server.finish().await;
    }
}

#[tokio::test]
async fn a_cursor_holds_while_new_lines_arrive() {
    let server = TestServer::start().await;
    let receiver = Receiver::start().await;
    let first = server.publish_with(&receiver.url("/"), &[], "").await;
    server.reaches(&first, &["CREATED", "ACTIVE", "DELIVERED"]).await;
    let page = server.get("/v2/events?count=1").expect(200).await.json();
    let second = server.publish_with(&receiver.url("/"), &[], "").await;
    server.reaches(&second, &["CREATED", "ACTIVE", "DELIVERED"]).await;
    let cursor = page["cursor"].as_str().expect("there is more");
    let rest = server.events(&format!("cursor={cursor}")).await;
    assert_eq!(lines(&rest, &[first]), ["0:ACTIVE", "0:CREATED"]);
    server.finish().await;
}

#[tokio::test]
async fn a_page_has_a_thousand_lines_or_ten_messages() {
    let server = TestServer::start().await;
    let receiver = Receiver::start().await;
    let items = vec![json!({ "destination": receiver.url("/") }); 340];
    server.post("/v2/batch").json(&json!(items)).expect(200).await;
    eventually("all are delivered", || async { (server.counts().live == 0).then_some(()) }).await;
    for query in ["", "count=5000"] {
        let page = server.get(&format!("/v2/events?{query}")).expect(200).await.json();
        assert_eq!(page["events"].as_array().map(Vec::len), Some(1_000), "{query}");
        let cursor = page["cursor"].as_str().expect("there is more");
        assert_eq!(server.events(&format!("cursor={cursor}")).await.len(), 20);
    }
    let page = server.get("/v2/logs?groupBy=messageId").expect(200).await.json();
    assert_eq!(page["messages"].as_array().map(Vec::len), Some(10));
    assert!(page["cursor"].is_string());
    server.finish().await;
}

#[tokio::test]
async fn odd_urls_can_be_asked_for() {
    let server = TestServer::start().await;
    let receiver = Receiver::start().await;
    for path in ["/a,b?c=d,e", "/with%20space", "/plus+plus"] {
        let id = server.publish_with(&receiver.url(path), &[], "").await;
        server.reaches(&id, &["CREATED", "ACTIVE", "DELIVERED"]).await;
        let encoded: String = url::form_urlencoded::byte_serialize(receiver.url(path).as_bytes()).collect();
        assert_eq!(server.events(&format!("url={encoded}")).await.len(), 3, "{path}");
    }
    for (path, count) in [("/with%2520space", 3), ("/with%20space", 0), ("/plus%2Bplus", 3)] {
        assert_eq!(server.events(&format!("path={path}")).await.len(), count, "{path}");
    }
    server.finish().await;
}

#[tokio::test]
async fn history_and_dead_letters_are_kept_as_long_as_configured() {
    for backend in Backend::ALL {
        let mut setup = Setup::dev().on(backend);
        setup.settings.log_retention = Some("3d".to_owned());
        setup.settings.dlq_retention = Some("20d".to_owned());
        let server = TestServer::with(setup).await;
        let receiver = Receiver::start().await;
        receiver.script("/fails", [Reply::status(500)]);
        let id = server.publish_with(&receiver.url("/fails"), &[("Upstash-Retries", "0")], "body").await;
        let letter = server.dead_letter_of(&id).await;
        const DAY: u64 = 86_400_000;
        server.advance(3 * DAY).await;
        server.retain();
        assert_eq!(server.events("").await.len(), 4);
        // Whole days are dropped, so a line may stay a little longer.
        server.advance(2 * DAY).await;
        server.retain();
        assert!(server.events("").await.is_empty());
        assert_eq!(server.dead_letters("").await, std::slice::from_ref(&letter));
        server.advance(14 * DAY).await;
        server.retain();
        assert_eq!(server.dead_letters("").await, [letter], "older than its history");
        server.advance(10 * DAY).await;
        server.retain();
        assert!(server.dead_letters("").await.is_empty());
        server.finish().await;
    }
}

#[tokio::test]
async fn a_clock_that_jumps_ahead_deletes_nothing() {
    let server = TestServer::start().await;
    let receiver = Receiver::start().await;
    receiver.script("/", [Reply::status(500)]);
    let id = server.publish_with(&receiver.url("/"), &[("Upstash-Retries", "0")], "").await;
    server.dead_letter_of(&id).await;
    server.advance(3_600_000).await;
    server.jump(365 * 86_400_000).await;
    server.advance(3_600_000).await;
    assert_eq!((server.events("").await.len(), server.dead_letters("").await.len()), (4, 1));
    let server = server.restart_after(365 * 86_400_000).await;
    server.settle().await;
    assert_eq!((server.events("").await.len(), server.dead_letters("").await.len()), (4, 1));
    server.finish().await;
}

#[tokio::test]
async fn cursors_and_dates_at_the_edges_are_harmless() {
    let server = TestServer::start().await;
    let receiver = Receiver::start().await;
    receiver.script("/", [Reply::status(500)]);
    let id = server.publish_with(&receiver.url("/"), &[("Upstash-Retries", "0")], "").await;
    server.dead_letter_of(&id).await;
    let last = i64::MAX;
    // (query, whether what there is lies behind it when the newest, or the oldest, comes first)
    let cases = [
        ("cursor=0-0".to_owned(), false, true),
        (format!("cursor=0-{last}"), false, true),
        (format!("cursor={last}-0"), true, false),
        (format!("cursor={last}-{last}"), true, false),
        (format!("fromDate=0&toDate={last}"), true, true),
        (format!("fromDate={last}"), false, false),
        ("toDate=0".to_owned(), false, false),
        ("cursor=".to_owned(), true, true),
    ];
    for (query, newest_first, oldest_first) in cases {
        for (order, found) in [("latestFirst", newest_first), ("earliestFirst", oldest_first)] {
            let query = format!("{query}&order={order}");
            assert_eq!(server.events(&query).await.len(), if found { 4 } else { 0 }, "{query}");
            assert_eq!(server.dead_letters(&query).await.len(), usize::from(found), "{query}");
            let grouped = server.get(&format!("/v2/logs?groupBy=messageId&{query}")).expect(200).await.json();
            assert_eq!(grouped["messages"].as_array().map(Vec::len), Some(usize::from(found)), "{query}");
        }
    }
    server.finish().await;
}

#[tokio::test]
async fn a_time_is_a_cursor_too() {
    let server = TestServer::start().await;
    let receiver = Receiver::start().await;
    let ids = four_stories(&server, &receiver).await;
    // The loop in the JavaScript SDK's documentation starts with the time of day.
    let now = START_MS + 4_000;
    assert_eq!(server.events(&format!("cursor={now}")).await, server.events("").await);
    let found = lines(&server.events(&format!("cursor={}", START_MS + 1_000)).await, &ids);
    let expected: Vec<&str> = selected(|line| ["0", "1"].contains(&&line[..1])).into_iter().rev().collect();
    assert_eq!(found, expected, "that millisecond and what came before");
    server.delete("/v2/messages").expect(202).await;
    server.finish().await;
}

#[tokio::test]
async fn both_endpoints_answer_under_both_names() {
    let server = TestServer::start().await;
    let receiver = Receiver::start().await;
    let empty = json!({ "events": [], "logs": [] });
    for path in ["/v2/events", "/v2/logs", "/v1/events", "/v2/events/"] {
        assert_eq!(server.get(path).expect(200).await.json(), empty, "{path}");
    }
    let id = server.publish_with(&receiver.url("/"), &[], "").await;
    server.reaches(&id, &["CREATED", "ACTIVE", "DELIVERED"]).await;
    let answer = server.get("/v2/events").expect(200).await.json();
    assert_eq!(answer, server.get("/v2/logs").expect(200).await.json());
    assert_eq!(answer["events"], answer["logs"]);
    assert_eq!(answer["events"].as_array().map(Vec::len), Some(3));
    assert_eq!(answer.as_object().map(serde_json::Map::len), Some(2), "no cursor at the end");
    server.finish().await;
}

#[tokio::test]
async fn logs_of_one_message_are_grouped_for_the_mcp_server() {
    let server = TestServer::start().await;
    let receiver = Receiver::start().await;
    let id = server.publish_with(&receiver.url("/"), &[], "").await;
    server.reaches(&id, &["CREATED", "ACTIVE", "DELIVERED"]).await;
    // Contract E34: `messages` is also sent when /v2/logs is asked for one message.
    let answer = server.get(&format!("/v2/logs?messageId={id}")).expect(200).await.json();
    assert_eq!(answer["messages"], json!([{ "messageId": id, "events": answer["events"] }]));
    // Which does not change what `events` and `logs` are: filtered and paged as asked.
    let page = server.get(&format!("/v2/logs?messageId={id}&count=2")).expect(200).await.json();
    assert_eq!(
        lines(page["events"].as_array().expect("a list"), std::slice::from_ref(&id)),
        ["0:DELIVERED", "0:ACTIVE"]
    );
    assert_eq!(page["events"], page["logs"]);
    let cursor = page["cursor"].as_str().expect("there is more");
    let rest = server.get(&format!("/v2/logs?messageId={id}&count=2&cursor={cursor}")).expect(200).await.json();
    assert_eq!(lines(rest["logs"].as_array().expect("a list"), &[id]), ["0:CREATED"]);
    server.finish().await;
}

#[tokio::test]
async fn bodies_are_base64_and_can_be_cut_short() {
    let server = TestServer::start().await;
    let receiver = Receiver::start().await;
    let id = server.publish_with(&receiver.url("/"), &[], "hello world").await;
    server.reaches(&id, &["CREATED", "ACTIVE", "DELIVERED"]).await;
    let cases = [
        ("", json!("aGVsbG8gd29ybGQ=")),
        ("trimBody=5", json!("aGVsbG8=")),
        ("trimBody=100", json!("aGVsbG8gd29ybGQ=")),
        ("trimBody=0", Value::Null),
        ("trimBody=-1", Value::Null),
    ];
    for (query, expected) in cases {
        for event in server.events(query).await {
            assert_eq!(event["body"], expected, "{query}");
        }
    }
    server.finish().await;
}

#[tokio::test]
async fn lines_can_be_grouped_by_message() {
    for backend in Backend::ALL {
        let server = TestServer::with(Setup::dev().on(backend)).await;
        let receiver = Receiver::start().await;
        let ids = four_stories(&server, &receiver).await;
        let grouped = |answer: &Value| -> Vec<Vec<String>> {
            let groups = answer["messages"].as_array().expect("a list");
            groups
                .iter()
                .map(|group| {
                    let events = group["events"].as_array().expect("a list");
                    assert!(events.iter().all(|event| event["messageId"] == group["messageId"]));
                    lines(events, &ids)
                })
                .collect()
        };
        let answer = server.get("/v2/logs?groupBy=messageId&order=earliestFirst").expect(200).await.json();
        let expected: Vec<Vec<&str>> = ["0", "1", "2", "3"].map(|n| selected(|line| line.starts_with(n))).to_vec();
        assert_eq!(grouped(&answer), expected);
        // A filter says which messages; their other lines are shown too.
        let answer = server.get("/v2/events?groupBy=messageId&state=ERROR").expect(200).await.json();
        let newest_first = |n: usize| expected[n].iter().rev().copied().collect::<Vec<_>>();
        assert_eq!(grouped(&answer), [newest_first(2), newest_first(1)]);
        // Every message is on one page only.
        for count in 1..=4 {
            let (mut seen, mut cursor) = (Vec::new(), String::new());
            loop {
                let target = format!("/v2/logs?groupBy=messageId&count={count}{cursor}");
                let page = server.get(&target).expect(200).await.json();
                let groups = grouped(&page);
                assert!(groups.len() <= count);
                seen.extend(groups);
                match page.get("cursor") {
                    Some(next) => cursor = format!("&cursor={}", next.as_str().expect("a cursor is text")),
                    None => break,
                }
            }
            assert_eq!(seen, [3, 2, 1, 0].map(newest_first), "{backend:?} {count}");
        }
        server.delete("/v2/messages").expect(202).await;
        server.finish().await;
    }
}

#[tokio::test]
async fn an_attempt_says_what_its_time_was_spent_on() {
    for backend in Backend::ALL {
        let server = TestServer::with(Setup::dev().on(backend)).await;
        let receiver = Receiver::start().await;
        receiver.script("/", [Reply::status(200), Reply::status(200), Reply::status(500), Reply::status(200)]);
        let mut ends = Vec::new();
        for retries in ["3", "3", "0"] {
            let id = server.publish_with(&receiver.url("/"), &[("Upstash-Retries", retries)], "").await;
            receiver.next().await;
            ends.push(
                eventually("the attempt ends", || async {
                    server.events_of(&id).await.into_iter().find(|line| line["duration"].is_u64())
                })
                .await,
            );
        }
        let fresh = &ends[0]["connection"];
        assert_eq!((&fresh["reused"], &fresh["address"]), (&json!(false), &json!(receiver.address().to_string())));
        assert!(fresh["connectMicros"].is_u64() && fresh["firstByteMicros"].is_u64(), "{fresh}");
        assert_eq!((fresh.get("dnsMicros"), fresh.get("tlsMicros")), (None, None), "an address, without TLS");
        let reused = ends[1]["connection"].as_object().expect("a connection");
        let names: Vec<&str> = reused.keys().map(String::as_str).collect();
        assert_eq!(names, ["firstByteMicros", "reused"], "{backend:?}: there was nothing else to wait for");
        assert!(reused["reused"] == true && reused["firstByteMicros"].is_u64(), "{reused:?}");
        let failed = &ends[2]["connection"];
        assert_eq!((&failed["reused"], failed.get("connectMicros")), (&json!(true), None), "{failed}");
        assert!(failed["firstByteMicros"].is_u64());

        let nobody = server.publish_with("http://127.0.0.1:1/", &[("Upstash-Retries", "0")], "").await;
        let refused = eventually("it fails", || async {
            server.events_of(&nobody).await.into_iter().find(|line| line["state"] == "ERROR")
        })
        .await;
        let tried = &refused["connection"];
        assert!(tried["connectMicros"].is_u64() && tried.get("firstByteMicros").is_none(), "{tried}");
        server.finish().await;
    }
}

#[tokio::test]
async fn addresses_of_the_operators_network_are_told_in_development_alone() {
    let receiver = Receiver::start().await;
    for (setup, told) in [(Setup::dev(), Some(receiver.address().to_string())), (Setup::serve(), None)] {
        let server = TestServer::with(setup).await;
        let authorization = ("Authorization", &*format!("Bearer {TOKEN}"));
        let target = "/v2/events/stream?state=DELIVERED";
        let mut stream = EventStream::open(server.address, target, &[authorization]).await;
        let id = server.publish_with(&receiver.url("/"), &[], "").await;
        receiver.next().await;
        server.reaches(&id, &["CREATED", "ACTIVE", "DELIVERED"]).await;
        let logs = server.get(&format!("/v2/logs?messageId={id}")).expect(200).await.json();
        let (_, streamed) = stream.next().await.expect("the stream goes on");
        let streamed = serde_json::from_str(&streamed).expect("a line is JSON");
        for line in [&logs["logs"][0], &logs["messages"][0]["events"][0], &streamed] {
            assert!(line["connection"]["connectMicros"].is_u64(), "{line}");
            assert_eq!(line["connection"].get("address").and_then(Value::as_str), told.as_deref(), "{line}");
        }
        server.finish().await;
    }
}

#[tokio::test]
async fn a_page_may_be_told_how_far_to_look() {
    for backend in Backend::ALL {
        let server = TestServer::with(Setup::dev().on(backend)).await;
        let receiver = Receiver::start().await;
        let wanted = server.publish_with(&receiver.url("/"), &[("Upstash-Label", "old")], "").await;
        server.reaches(&wanted, &["CREATED", "ACTIVE", "DELIVERED"]).await;
        for _ in 0..10 {
            server.publish_with(&receiver.url("/"), &[], "").await;
        }
        receiver.take(11).await;
        eventually("all are delivered", || async { (server.counts().live == 0).then_some(()) }).await;
        let (mut cursor, mut pages, mut found) = (String::new(), 0, Vec::new());
        loop {
            let query = format!("groupBy=messageId&label=old&scanLimit=7&cursor={cursor}");
            let page = server.get(&format!("/v2/logs?{query}")).expect(200).await.json();
            pages += 1;
            found.extend(page["messages"].as_array().expect("a list").iter().map(|group| group["messageId"].clone()));
            match page["cursor"].as_str() {
                Some(next) => cursor = next.to_owned(),
                None => break,
            }
        }
        assert_eq!(found, [json!(wanted)], "{backend:?}");
        assert!((5..=6).contains(&pages), "30 lines are passed over, 7 at a time: {pages}");
        server.get("/v2/logs?scanLimit=0").expect(400).await;
        server.finish().await;
    }
}
