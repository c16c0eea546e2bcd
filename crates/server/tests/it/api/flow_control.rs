//! `/v2/flowControl`: what keys show, how they limit deliveries, and what operators do to them.

use crate::support::server::{START_MS, TOKEN_B, message_id};
use crate::support::{Backend, Lines, Receiver, Reply, Setup, TestServer, eventually};
use serde_json::{Value, json};

/// A publish under a key, with these limits.
async fn publish(server: &TestServer, url: &str, key: &str, limits: &str) -> String {
    let headers = [("Upstash-Flow-Control-Key", key), ("Upstash-Flow-Control-Value", limits)];
    server.publish_with(url, &headers, "").await
}

/// `POST /v2/flowControl/{key}/{edit}`.
async fn edit(server: &TestServer, key: &str, edit: &str) {
    server.post(&format!("/v2/flowControl/{key}/{edit}")).expect(200).await;
}

/// Some fields of a key.
async fn fields<const N: usize>(server: &TestServer, key: &str, names: [&str; N]) -> [Value; N] {
    let flow = server.flow(key).await;
    names.map(|name| flow[name].clone())
}

/// Waits until a field of a key has this value.
async fn becomes(server: &TestServer, key: &str, name: &str, value: Value) {
    let what = format!("{name} of {key} is {value}");
    eventually(&what, || async { (server.flow(key).await[name] == value).then_some(()) }).await;
}

/// Waits until these fields of a key have these values. Who ends while the key is looked at may be missing from those who
/// wait; a moment later the number is right.
async fn shows<const N: usize>(server: &TestServer, key: &str, names: [&str; N], values: [usize; N]) {
    let what = format!("{names:?} of {key} are {values:?}");
    eventually(&what, || async { (fields(server, key, names).await == values).then_some(()) }).await;
}

#[tokio::test]
async fn a_key_is_there_when_the_publish_is_answered() {
    for backend in Backend::ALL {
        let server = TestServer::with(Setup::dev().on(backend)).await;
        let receiver = Receiver::start().await;
        let (held, gate) = Reply::status(200).held();
        receiver.script("/", [held]);
        assert_eq!(server.get("/v2/flowControl").expect(200).await.json(), json!([]));
        for _ in 0..3 {
            publish(&server, &receiver.url("/"), "k", "parallelism=2, rate=5, period=1m").await;
        }
        let expected = json!({
            "flowControlKey": "k",
            "waitListSize": 1,
            "parallelismMax": 2,
            "parallelismCount": 2,
            "rateMax": 5,
            "rateCount": 2,
            "ratePeriod": 60,
            "ratePeriodStart": START_MS / 1_000,
            "isPaused": false,
            "isPinnedParallelism": false,
            "isPinnedRate": false,
        });
        assert_eq!(server.flow("k").await, expected);
        assert_eq!(server.flow("k/").await, expected);
        for path in ["/v2/flowControl", "/v2/flowControl/", "/v2/flowcontrol?search=k"] {
            assert_eq!(server.get(path).expect(200).await.json(), json!([expected]), "{path}");
        }
        server.get("/v2/flowControl/other").expect(404).await.error();
        gate.open();
        receiver.take(3).await;
        becomes(&server, "k", "parallelismCount", json!(0)).await;
        assert_eq!(fields(&server, "k", ["waitListSize", "rateCount"]).await, [0, 3]);
        server.finish().await;
    }
}

#[tokio::test]
async fn limits_show_up_in_messages_dead_letters_and_logs() {
    let server = TestServer::start().await;
    let receiver = Receiver::start().await;
    receiver.script("/", [Reply::status(500)]);
    let cases = [
        (Some("parallelism=5"), json!({ "flowControlKey": "k", "parallelism": 5, "period": 1 })),
        (Some("rate=7"), json!({ "flowControlKey": "k", "rate": 7, "period": 1 })),
        (
            Some("rate=7,period=1h30m3s,parallelism=1"),
            json!({ "flowControlKey": "k", "parallelism": 1, "rate": 7, "period": 5_403 }),
        ),
        (Some("rate=9,period=1d"), json!({ "flowControlKey": "k", "rate": 9, "period": 86_400 })),
        (None, json!({ "flowControlKey": "k", "period": 1 })),
    ];
    for (limits, expected) in cases {
        let mut headers = vec![("Upstash-Flow-Control-Key", "k"), ("Upstash-Retries", "0")];
        headers.extend(limits.map(|limits| ("Upstash-Flow-Control-Value", limits)));
        let id = server.publish_with(&receiver.url("/"), &headers, "").await;
        let letter = server.dead_letter_of(&id).await;
        let shown = [server.message(&id).await, letter, server.events_of(&id).await[0].clone()];
        for object in shown {
            for name in ["flowControlKey", "parallelism", "rate", "period"] {
                assert_eq!(object.get(name), expected.get(name), "{limits:?} {name}: {object}");
            }
        }
    }
    server.finish().await;
}

#[tokio::test]
async fn no_more_are_under_way_than_the_key_allows() {
    let server = TestServer::start().await;
    let receiver = Receiver::start().await;
    let mut gates = Vec::new();
    for n in 0..4 {
        let (held, gate) = Reply::status(200).held();
        receiver.script(&format!("/{n}"), [held]);
        gates.push(gate);
        publish(&server, &receiver.url(&format!("/{n}")), "k", "parallelism=1").await;
    }
    // The key is not tied to a destination, and others do not wait for it.
    server.publish_with(&receiver.url("/free"), &[], "").await;
    let mut started = [receiver.next().await.target, receiver.next().await.target];
    started.sort();
    assert_eq!(started, ["/0", "/free"]);
    for n in 1..4 {
        server.settle().await;
        assert_eq!(receiver.count(), n + 1);
        assert_eq!(fields(&server, "k", ["parallelismCount", "waitListSize"]).await, [1, 4 - n]);
        gates[n - 1].open();
        assert_eq!(receiver.next().await.target, format!("/{n}"));
    }
    gates[3].open();
    server.finish().await;
}

#[tokio::test]
async fn no_more_start_within_a_period_than_the_rate() {
    for backend in Backend::ALL {
        let server = TestServer::with(Setup::dev().on(backend)).await;
        let receiver = Receiver::start().await;
        for n in 0..5 {
            publish(&server, &receiver.url(&format!("/{n}")), "k", "rate=2,period=10s").await;
        }
        for (already, then) in [(0, 2), (2, 4), (4, 5)] {
            receiver.take(then - already).await;
            server.settle().await;
            assert_eq!(receiver.count(), then);
            shows(&server, "k", ["rateCount", "waitListSize"], [then - already, 5 - then]).await;
            // A stretch of ten seconds has both its ends.
            server.advance(10_000).await;
            assert_eq!(receiver.count(), then);
            server.advance(1).await;
        }
        receiver.rewind();
        let targets: Vec<String> = receiver.take(5).await.into_iter().map(|delivery| delivery.target).collect();
        for (n, pair) in [["/0", "/1"], ["/2", "/3"]].into_iter().enumerate() {
            let mut seen = targets[2 * n..2 * n + 2].to_vec();
            seen.sort();
            assert_eq!(seen, pair);
        }
        server.finish().await;
    }
}

#[tokio::test]
async fn a_long_wait_list_holds_up_nobody_else() {
    const COUNT: usize = 2_500;
    for backend in Backend::ALL {
        let server = TestServer::with(Setup::dev().on(backend)).await;
        let receiver = Receiver::start().await;
        edit(&server, "k", "pause").await;
        let headers = json!({ "Upstash-Flow-Control-Key": "k", "Upstash-Flow-Control-Value": "parallelism=50" });
        let items: Value =
            (0..COUNT).map(|_| json!({ "destination": receiver.url("/k"), "headers": headers })).collect();
        server.post("/v2/batch").json(&items).expect(200).await;
        let server = server.restart().await;
        assert_eq!(server.flow("k").await["waitListSize"], COUNT);
        // The same destination, with another key and with none.
        let other = [("Upstash-Flow-Control-Key", "other")];
        server.publish_with(&receiver.url("/other"), &other, "").await;
        server.publish_with(&receiver.url("/none"), &[], "").await;
        let mut started = [receiver.next().await.target, receiver.next().await.target];
        started.sort();
        assert_eq!(started, ["/none", "/other"]);
        edit(&server, "k", "resume").await;
        receiver.take(COUNT).await;
        server.finish().await;
    }
}

#[tokio::test]
async fn what_is_not_due_is_not_waiting_and_takes_no_room() {
    let server = TestServer::start().await;
    let receiver = Receiver::start().await;
    let limits = [("Upstash-Flow-Control-Key", "k"), ("Upstash-Flow-Control-Value", "parallelism=1,rate=1,period=1d")];
    let delayed = [&limits[..], &[("Upstash-Delay", "1h")]].concat();
    server.publish_with(&receiver.url("/later"), &delayed, "").await;
    server.publish_with(&receiver.url("/now"), &limits, "").await;
    assert_eq!(receiver.next().await.target, "/now");
    shows(&server, "k", ["waitListSize", "rateCount"], [0, 1]).await;
    server.advance(3_600_000).await;
    shows(&server, "k", ["waitListSize", "rateCount"], [1, 1]).await;
    server.advance(82_800_001).await;
    assert_eq!(receiver.next().await.target, "/later");
    server.finish().await;
}

#[tokio::test]
async fn a_rate_holds_over_a_restart_and_for_retries() {
    for backend in Backend::ALL {
        let server = TestServer::with(Setup::dev().on(backend)).await;
        let receiver = Receiver::start().await;
        receiver.script("/", [Reply::status(500), Reply::status(200)]);
        let headers = [
            ("Upstash-Flow-Control-Key", "k"),
            ("Upstash-Flow-Control-Value", "rate=1,period=1h"),
            ("Upstash-Retry-Delay", "1000"),
        ];
        let id = server.publish_with(&receiver.url("/"), &headers, "").await;
        server.reaches(&id, &["CREATED", "ACTIVE", "ERROR", "RETRY"]).await;
        let server = server.restart_after(1_800_000).await;
        server.settle().await;
        assert_eq!(receiver.count(), 1);
        assert_eq!(fields(&server, "k", ["rateCount", "waitListSize"]).await, [1, 1]);
        // Nobody knows how long the commit before that start took; 5 s is the most.
        server.advance(1_805_000).await;
        assert_eq!(receiver.count(), 1);
        server.advance(1).await;
        receiver.take(2).await;
        server.finish().await;
    }
}

#[tokio::test]
async fn a_paused_key_takes_messages_and_starts_none_over_restarts_too() {
    for backend in Backend::ALL {
        let server = TestServer::with(Setup::dev().on(backend)).await;
        let receiver = Receiver::start().await;
        // Pausing makes the key.
        edit(&server, "k", "pause").await;
        publish(&server, &receiver.url("/"), "k", "rate=10").await;
        let server = server.restart().await;
        publish(&server, &receiver.url("/"), "k", "rate=10").await;
        server.advance(3_600_000).await;
        assert_eq!(receiver.count(), 0);
        let shown = fields(&server, "k", ["isPaused", "waitListSize", "rateMax"]).await;
        assert_eq!(shown, [json!(true), json!(2), json!(10)]);
        edit(&server, "k", "resume/").await;
        receiver.take(2).await;
        assert_eq!(server.flow("k").await["isPaused"], false);
        server.finish().await;
    }
}

#[tokio::test]
async fn pinned_limits_are_not_changed_by_messages() {
    let server = TestServer::start().await;
    let receiver = Receiver::start().await;
    let names = ["parallelismMax", "rateMax", "ratePeriod", "isPinnedParallelism", "isPinnedRate"];
    let shown = |flow: Value| names.map(|name| flow[name].clone());
    // Pinning makes the key.
    edit(&server, "k", "pin?parallelism=3&rate=20&period=60").await;
    assert_eq!(shown(server.flow("k").await), [json!(3), json!(20), json!(60), json!(true), json!(true)]);
    publish(&server, &receiver.url("/"), "k", "parallelism=9,rate=9,period=9s").await;
    let server = server.restart().await;
    assert_eq!(shown(server.flow("k").await), [json!(3), json!(20), json!(60), json!(true), json!(true)]);
    // Each part is pinned by itself, and stays as it is until a message says otherwise.
    edit(&server, "k", "unpin?parallelism=True&rate=False").await;
    assert_eq!(shown(server.flow("k").await), [json!(3), json!(20), json!(60), json!(false), json!(true)]);
    publish(&server, &receiver.url("/"), "k", "parallelism=9,rate=9,period=9s").await;
    assert_eq!(shown(server.flow("k").await), [json!(9), json!(20), json!(60), json!(false), json!(true)]);
    edit(&server, "k", "unpin?rate=true").await;
    publish(&server, &receiver.url("/"), "k", "rate=9,period=9s").await;
    assert_eq!(shown(server.flow("k").await), [json!(0), json!(9), json!(9), json!(false), json!(false)]);
    edit(&server, "k", "pin?rate=4&period=1m30s").await;
    assert_eq!(shown(server.flow("k").await), [json!(0), json!(4), json!(90), json!(false), json!(true)]);
    receiver.take(3).await;
    server.finish().await;
}

#[tokio::test]
async fn resetting_the_rate_lets_waiting_messages_go() {
    let server = TestServer::start().await;
    let receiver = Receiver::start().await;
    let mut ids = Vec::new();
    for _ in 0..4 {
        ids.push(publish(&server, &receiver.url("/"), "k", "rate=1,period=1h").await);
    }
    for (count, reset) in [(1, "resetRate"), (2, "reset"), (3, "pin?rate=1&period=3600")] {
        receiver.next().await;
        // A reset forgets who is under way.
        server.reaches(&ids[count - 1], &["CREATED", "ACTIVE", "DELIVERED"]).await;
        assert_eq!(receiver.count(), count);
        shows(&server, "k", ["rateCount", "waitListSize"], [1, 4 - count]).await;
        server.advance(1_000).await;
        edit(&server, "k", reset).await;
    }
    receiver.next().await;
    let start = server.flow("k").await["ratePeriodStart"].clone();
    assert_eq!(start, START_MS / 1_000 + 3);
    // With nothing waiting, a reset leaves the count at zero.
    edit(&server, "k", "resetRate").await;
    assert_eq!(server.flow("k").await["rateCount"], 0);
    server.finish().await;
}

#[tokio::test]
async fn a_reset_forgets_what_is_under_way() {
    let server = TestServer::start().await;
    let receiver = Receiver::start().await;
    let (held, gate) = Reply::status(200).held();
    receiver.script("/stuck", [held]);
    publish(&server, &receiver.url("/stuck"), "k", "parallelism=1").await;
    publish(&server, &receiver.url("/next"), "k", "parallelism=1").await;
    assert_eq!(receiver.next().await.target, "/stuck");
    edit(&server, "k", "reset").await;
    assert_eq!(receiver.next().await.target, "/next");
    becomes(&server, "k", "parallelismCount", json!(0)).await;
    gate.open();
    server.finish().await;
    assert_eq!(receiver.count(), 2);
}

#[tokio::test]
async fn keys_may_hold_anything_and_are_searched() {
    let server = TestServer::start().await;
    let receiver = Receiver::start().await;
    let keys = [
        ("plain", "plain"),
        ("a/b/pause", "a/b/pause"),
        ("a/b", "a%2Fb"),
        ("https://example.com/x", "https://example.com/x"),
        ("with space", "with%20space"),
        ("a+b?c", "a+b%3Fc"),
        ("schlüssel", "schl%C3%BCssel"),
    ];
    for (key, in_path) in keys {
        let id = publish(&server, &receiver.url("/"), key, "rate=100").await;
        assert_eq!(server.message(&id).await["flowControlKey"], key);
        assert_eq!(server.flow(in_path).await["flowControlKey"], key);
        edit(&server, in_path, "pause").await;
        assert_eq!(server.flow(in_path).await["isPaused"], true, "{key}");
        edit(&server, in_path, "resume").await;
    }
    let found = |list: Value| -> Vec<String> {
        let list = list.as_array().expect("a list").iter();
        list.map(|flow| flow["flowControlKey"].as_str().expect("a key").to_owned()).collect()
    };
    let mut all: Vec<&str> = keys.iter().map(|(key, _)| *key).collect();
    all.sort_unstable();
    assert_eq!(found(server.get("/v2/flowControl?search=").expect(200).await.json()), all);
    let some = server.get("/v2/flowControl?search=a%2Fb").expect(200).await.json();
    assert_eq!(found(some), ["a/b", "a/b/pause"]);
    assert_eq!(found(server.get("/v2/flowControl?search=nothing").expect(200).await.json()), Vec::<String>::new());
    receiver.take(keys.len()).await;
    server.finish().await;
}

#[tokio::test]
async fn messages_are_found_and_cancelled_by_their_key() {
    for backend in Backend::ALL {
        let server = TestServer::with(Setup::dev().on(backend)).await;
        let receiver = Receiver::start().await;
        receiver.script("/fails", [Reply::status(500)]);
        edit(&server, "waits", "pause").await;
        for _ in 0..3 {
            publish(&server, &receiver.url("/"), "waits", "parallelism=1").await;
        }
        let headers: Lines<'_> = &[("Upstash-Flow-Control-Key", "runs"), ("Upstash-Retries", "0")];
        let failed = server.publish_with(&receiver.url("/fails"), headers, "").await;
        server.dead_letter_of(&failed).await;
        for (query, letters, events) in
            [("flowControlKey=runs", 1, 1), ("flowControlKey=waits,runs", 1, 4), ("flowControlKey=x", 0, 0)]
        {
            assert_eq!(server.dead_letters(query).await.len(), letters, "{query}");
            assert_eq!(server.events(&format!("{query}&state=CREATED")).await.len(), events, "{query}");
        }
        assert_eq!(server.flow("waits").await["waitListSize"], 3);
        for (query, count) in [("flowControlKey=runs", 0), ("flowControlKey=waits", 3)] {
            let answer = server.delete(&format!("/v2/messages?{query}")).expect(202).await.json();
            assert_eq!(answer, json!({ "cancelled": count }), "{query}");
        }
        assert_eq!(server.flow("waits").await["waitListSize"], 0);
        server.finish().await;
    }
}

#[tokio::test]
async fn a_queued_message_needs_its_turn_and_its_key() {
    let server = TestServer::start().await;
    let receiver = Receiver::start().await;
    edit(&server, "k", "pause").await;
    let headers = [("Upstash-Flow-Control-Key", "k"), ("Upstash-Flow-Control-Value", "parallelism=1")];
    server.enqueue_with("q", &receiver.url("/first"), &headers).await;
    server.enqueue_with("q", &receiver.url("/second"), &[]).await;
    server.publish_with(&receiver.url("/other"), &[], "").await;
    assert_eq!(receiver.next().await.target, "/other");
    server.settle().await;
    assert_eq!(receiver.count(), 1, "the first keeps its turn while it waits for the key");
    edit(&server, "k", "resume").await;
    assert_eq!(receiver.next().await.target, "/first");
    assert_eq!(receiver.next().await.target, "/second");
    server.finish().await;
}

#[tokio::test]
async fn a_dead_letter_goes_under_its_key_or_under_another() {
    let server = TestServer::start().await;
    let receiver = Receiver::start().await;
    receiver.script("/", [Reply::status(500)]);
    let flow = |limits| [("Upstash-Flow-Control-Key", "k"), ("Upstash-Flow-Control-Value", limits)];
    let other = [("Upstash-Flow-Control-Key", "other"), ("Upstash-Flow-Control-Value", "rate=8")];
    let same = flow("parallelism=2");
    let cases: [(Lines<'_>, Value); 3] =
        [(&[], json!(["k", 3, 50, 2])), (&other, json!(["other", null, 8, 1])), (&same, json!(["k", 2, null, 1]))];
    for (headers, expected) in cases {
        let published = [&flow("parallelism=3,rate=50,period=2s")[..], &[("Upstash-Retries", "0")]].concat();
        let failed = server.publish_with(&receiver.url("/"), &published, "").await;
        let letter = server.dead_letter_of(&failed).await;
        let retry = format!("/v2/dlq/retry/{}", letter["dlqId"].as_str().expect("an id"));
        let again = message_id(&server.post(&retry).headers(headers).header("Upstash-Delay", "1h").expect(201).await);
        let message = server.message(&again).await;
        let shown = ["flowControlKey", "parallelism", "rate", "period"].map(|name| message[name].clone());
        assert_eq!(json!(shown), expected, "{headers:?}");
    }
    server.delete("/v2/messages").expect(202).await;
    server.finish().await;
}

#[tokio::test]
async fn what_makes_no_sense_is_refused_and_changes_nothing() {
    let server = TestServer::start().await;
    let long = "k".repeat(257);
    let cases = [
        ("k/pin".to_owned(), 400),
        ("k/pin?rate=0".to_owned(), 400),
        ("k/pin?parallelism=0".to_owned(), 400),
        ("k/pin?rate=fast".to_owned(), 400),
        ("k/pin?rate=1.5".to_owned(), 400),
        ("k/pin?rate=".to_owned(), 400),
        ("k/pin?rate=1&rate=2".to_owned(), 400),
        ("k/pin?period=60".to_owned(), 400),
        ("k/pin?parallelism=1&period=60".to_owned(), 400),
        ("k/pin?rate=1&period=0".to_owned(), 400),
        ("k/pin?rate=1&period=8d".to_owned(), 400),
        ("k/pin?rate=1&period=soon".to_owned(), 400),
        ("k/pin?rates=1&rate=1".to_owned(), 400),
        ("k/unpin?rate=maybe".to_owned(), 400),
        ("k/unpin?period=true".to_owned(), 400),
        ("k/pause?for=1h".to_owned(), 400),
        ("/pause".to_owned(), 400),
        ("pause".to_owned(), 400),
        (format!("{long}/pause"), 400),
        ("%FF/pause".to_owned(), 400),
        ("k/resume".to_owned(), 404),
        ("k/unpin?rate=true".to_owned(), 404),
        ("k/resetRate".to_owned(), 404),
        ("k/reset".to_owned(), 404),
        ("k/stop".to_owned(), 404),
        ("k".to_owned(), 404),
    ];
    for (rest, status) in cases {
        server.post(&format!("/v2/flowControl/{rest}")).expect(status).await.error();
    }
    server.delete("/v2/flowControl/k").expect(405).await.error();
    let alone = server.publish("https://example.com/").header("Upstash-Flow-Control-Value", "rate=1");
    alone.expect(400).await.error();
    server.publish("https://example.com/").header("Upstash-Flow-Control-Key", &long).expect(400).await.error();
    assert_eq!(server.get("/v2/flowControl").expect(200).await.json(), json!([]));
    server.finish().await;
}

#[tokio::test]
async fn keys_belong_to_their_tenant() {
    let server = TestServer::start().await;
    let receiver = Receiver::start().await;
    publish(&server, &receiver.url("/"), "k", "rate=100").await;
    let other = |method: &str, path: &str| server.request(method, path).token(TOKEN_B);
    other("GET", "/v2/flowControl/k").expect(404).await.error();
    assert_eq!(other("GET", "/v2/flowControl").expect(200).await.json(), json!([]));
    other("POST", "/v2/flowControl/k/pause").expect(200).await;
    publish(&server, &receiver.url("/"), "k", "rate=100").await;
    receiver.take(2).await;
    assert_eq!(server.flow("k").await["isPaused"], false);
    server.finish().await;
}

#[tokio::test]
async fn the_parallelism_of_the_tenant_is_shown() {
    let server = TestServer::start().await;
    let receiver = Receiver::start().await;
    let (held, gate) = Reply::status(200).held();
    receiver.script("/", [held]);
    let parallelism = |token: &'static str| server.get("/v2/globalParallelism").token(token).expect(200);
    for _ in 0..3 {
        server.publish_with(&receiver.url("/"), &[], "").await;
    }
    let expected = |count: u32| json!({ "parallelismMax": 1_000, "parallelismCount": count });
    receiver.take(3).await;
    assert_eq!(parallelism(crate::support::server::TOKEN).await.json(), expected(3));
    assert_eq!(parallelism(TOKEN_B).await.json(), expected(0));
    gate.open();
    server.finish().await;
}
