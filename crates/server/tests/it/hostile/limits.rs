//! The cases that are not one request but many: load, floods and counts. Sizes are those of a test; the benchmark
//! and the crash test have the large ones.

use super::{Case, tests_of_cases};
use crate::support::server::{CURRENT_KEY, START_MS, TOKEN_B, message_id};
use crate::support::{Answer, Receiver, Reply, Setup, TestServer, eventually, jwt};
use serde_json::{Value, json};
use std::collections::HashSet;
use tokio::task::JoinSet;

tests_of_cases! {
    "lim-publish-10x" => what_is_acknowledged_under_overload_is_delivered_once,
    "lim-slow-destination-flood" => a_flood_to_a_hanging_receiver_holds_up_nobody_else,
    "lim-max-in-flight" => deliveries_under_way_stay_below_every_limit,
    "lim-shutdown" => a_stopping_server_refuses_and_loses_nothing,
    "lim-clock-back" => a_clock_that_goes_back_neither_repeats_nor_hurries,
    "lim-dedup-memory" => deduplication_ids_go_with_their_window,
    "lim-groups" => groups_and_endpoints_have_limits,
    "lim-huge-forward-headers" => the_bound_on_forwarded_headers_is_one_on_their_sum,
    "queue-too-many" => one_queue_too_many_is_refused,
    "dlq-bulk-10000" => many_dead_letters_are_sent_again_in_pieces,
}

/// The answer is one that the case knows; a refusal says when to come back.
fn check(case: &Case, answer: &Answer) {
    assert!(case.expected().contains(&answer.status), "{}: {} {}", case.id, answer.status, answer.text());
    if [429, 503].contains(&answer.status) {
        assert!(answer.header("retry-after").is_some(), "{}: {} without Retry-After", case.id, answer.status);
    }
}

/// The ids of all deliveries so far, each of them once.
async fn delivered_once(receiver: &Receiver) -> HashSet<String> {
    receiver.rewind();
    let mut ids = HashSet::new();
    for delivery in receiver.take(receiver.count()).await {
        let id = delivery.header("upstash-message-id").expect("an id").to_owned();
        assert!(ids.insert(id.clone()), "{id} was sent twice");
    }
    ids
}

async fn what_is_acknowledged_under_overload_is_delivered_once(case: Case) {
    const PUBLISHERS: usize = 100;
    const EACH: usize = 30;
    let mut setup = Setup::dev();
    // A tenth of what is asked for.
    setup.settings.messages_per_day = Some((PUBLISHERS * EACH / 10) as u64);
    let server = TestServer::with(setup).await;
    let receiver = Receiver::start().await;
    let mut publishers = JoinSet::new();
    for _ in 0..PUBLISHERS {
        let request = server.publish(&receiver.url("/")).body("x");
        publishers.spawn(async move {
            let mut answers = Vec::new();
            for _ in 0..EACH {
                answers.push(request.clone().send().await);
            }
            answers
        });
    }
    let answers: Vec<Answer> = publishers.join_all().await.into_iter().flatten().collect();
    answers.iter().for_each(|answer| check(&case, answer));
    let acknowledged: HashSet<String> = answers.iter().filter(|answer| answer.status == 200).map(message_id).collect();
    assert_eq!(acknowledged.len(), PUBLISHERS * EACH / 10);
    eventually("all have ended", || async { (server.counts().live == 0).then_some(()) }).await;
    assert_eq!(delivered_once(&receiver).await, acknowledged);
    server.finish().await;
}

async fn a_flood_to_a_hanging_receiver_holds_up_nobody_else(case: Case) {
    const FLOOD: usize = 2_500;
    let server = TestServer::start().await;
    let (hanging, other) = (Receiver::start().await, Receiver::start().await);
    let (held, gate) = Reply::status(200).held();
    hanging.script("/", [held]);
    let items = vec![json!({ "destination": hanging.url("/") }); FLOOD];
    check(&case, &server.post("/v2/batch").json(&json!(items)).send().await);
    hanging.take(200).await;
    let ids = [server.publish(&other.url("/a")), server.publish(&other.url("/b")).token(TOKEN_B)];
    for request in ids {
        let answer = request.send().await;
        check(&case, &answer);
        assert_eq!(other.next().await.header("upstash-message-id"), Some(message_id(&answer).as_str()));
    }
    assert_eq!(hanging.count(), 200, "no more than one destination may have");
    gate.open();
    eventually("the flood has ended", || async { (server.counts().live == 0).then_some(()) }).await;
    assert_eq!(delivered_once(&hanging).await.len(), FLOOD);
    server.finish().await;
}

async fn deliveries_under_way_stay_below_every_limit(case: Case) {
    const OF_TENANT: usize = 5;
    let mut setup = Setup::dev();
    setup.settings.tenant_parallelism = Some(OF_TENANT as u32);
    let server = TestServer::with(setup).await;
    let receivers = [Receiver::start().await, Receiver::start().await];
    let mut gates = Vec::new();
    for receiver in &receivers {
        let (held, gate) = Reply::status(200).held();
        receiver.script("/", [held]);
        gates.push(gate);
    }
    let requests = (0..40).map(|n| {
        let request = server.publish(&receivers[n % 2].url("/"));
        if n < 20 { request } else { request.token(TOKEN_B) }
    });
    for request in requests {
        check(&case, &request.send().await);
    }
    let started = || receivers.iter().map(Receiver::count).sum::<usize>();
    eventually("both tenants are at their limit", || async { (started() == 2 * OF_TENANT).then_some(()) }).await;
    server.settle().await;
    assert_eq!(started(), 2 * OF_TENANT);
    assert_eq!(server.metric("posthaste_in_flight"), (2 * OF_TENANT) as f64);
    gates.iter().for_each(|gate| gate.open());
    server.finish().await;
    assert_eq!(started(), 40);
}

async fn a_stopping_server_refuses_and_loses_nothing(case: Case) {
    let server = TestServer::start().await;
    let receiver = Receiver::start().await;
    let (held, _gate) = Reply::status(200).held();
    receiver.script("/held", [held, Reply::status(200)]);
    let under_way = server.publish_with(&receiver.url("/held"), &[], "x").await;
    receiver.next().await;
    let request = server.publish(&receiver.url("/")).body("x");
    let publisher = tokio::spawn(async move {
        let mut answers = Vec::new();
        while let Ok(answer) = request.clone().try_send().await {
            answers.push(answer);
        }
        answers
    });
    receiver.take(20).await;
    let server = server.restart().await;
    let answers = publisher.await.expect("it does not panic");
    answers.iter().for_each(|answer| check(&case, answer));
    let acknowledged: HashSet<String> = answers.iter().filter(|answer| answer.status == 200).map(message_id).collect();
    eventually("all have ended", || async { (server.counts().live == 0).then_some(()) }).await;
    receiver.rewind();
    let arrived = receiver.take(receiver.count()).await;
    let arrived: Vec<&str> = arrived.iter().filter_map(|delivery| delivery.header("upstash-message-id")).collect();
    assert!(acknowledged.len() >= 20 && acknowledged.iter().all(|id| arrived.contains(&id.as_str())));
    assert_eq!(arrived.iter().filter(|id| **id == under_way).count(), 2, "what was handed back is made again");
    server.finish().await;
}

async fn a_clock_that_goes_back_neither_repeats_nor_hurries(case: Case) {
    let server = TestServer::start().await;
    let receiver = Receiver::start().await;
    let cron = [("Upstash-Cron", "* * * * *")];
    server.schedule_with(&receiver.url("/schedule"), &cron, "").await;
    server.advance(60_000).await;
    assert_eq!(receiver.next().await.target, "/schedule");
    server.jump_back(3_600_000).await;
    let answer = server.publish(&receiver.url("/now")).send().await;
    check(&case, &answer);
    let delivery = receiver.next().await;
    assert_eq!(delivery.target, "/now");
    let claims = delivery.header("upstash-signature").and_then(|token| jwt::verify(token, CURRENT_KEY));
    let now = (START_MS + 60_000 - 3_600_000) / 1_000;
    assert_eq!(
        claims.map(|claims| (claims["iat"].clone(), claims["exp"].clone())),
        Some((now.into(), (now + 300).into()))
    );
    check(&case, &server.publish(&receiver.url("/later")).header("Upstash-Delay", "1m").send().await);
    server.advance(59_999).await;
    assert_eq!(receiver.count(), 2, "neither the schedule nor the delayed message is early");
    server.advance(1).await;
    assert_eq!(receiver.next().await.target, "/later");
    server.finish().await;
    assert_eq!(receiver.count(), 3);
}

async fn deduplication_ids_go_with_their_window(case: Case) {
    const IDS: usize = 1_000;
    let server = TestServer::start().await;
    let receiver = Receiver::start().await;
    let items = |first: usize| -> Value {
        let item = |n| json!({ "destination": receiver.url("/"), "headers": { "Upstash-Deduplication-Id": format!("id-{n}") } });
        (first..first + IDS).map(item).collect()
    };
    let publish = |first: usize| server.post("/v2/batch").json(&items(first)).send();
    check(&case, &publish(0).await);
    let again = publish(0).await;
    check(&case, &again);
    let duplicates =
        again.json().as_array().expect("a list").iter().filter(|item| item["deduplicated"] == true).count();
    assert_eq!((again.status, duplicates), (202, IDS));
    eventually("all have ended", || async { (server.counts().live == 0).then_some(()) }).await;
    assert_eq!(receiver.count(), IDS);
    server.advance(600_000).await;
    check(&case, &publish(0).await);
    eventually("all have ended", || async { (receiver.count() == 2 * IDS).then_some(()) }).await;
    server.finish().await;
}

async fn groups_and_endpoints_have_limits(case: Case) {
    let mut setup = Setup::dev();
    setup.settings.max_url_groups = Some(3);
    setup.settings.max_group_endpoints = Some(4);
    let server = TestServer::with(setup).await;
    let add = |group: usize, endpoints: usize| {
        let urls: Vec<Value> =
            (0..endpoints).map(|n| json!({ "url": format!("http://nowhere.example/{n}") })).collect();
        server.post(&format!("/v2/topics/group-{group}/endpoints")).json(&json!({ "endpoints": urls })).send()
    };
    for group in 0..6 {
        let answer = add(group, 4).await;
        check(&case, &answer);
        assert_eq!(answer.status, if group < 3 { 200 } else { 412 });
    }
    let answer = add(0, 5).await;
    check(&case, &answer);
    assert_eq!(answer.status, 412);
    let group = server.get("/v2/topics/group-0").expect(200).await.json();
    assert_eq!(group["endpoints"].as_array().map(Vec::len), Some(4), "refused as a whole");
    server.finish().await;
}

async fn the_bound_on_forwarded_headers_is_one_on_their_sum(case: Case) {
    let server = TestServer::start().await;
    let receiver = Receiver::start().await;
    let with = |count: usize, bytes: usize| {
        let value = "a".repeat(bytes);
        let name = |n: usize| format!("Upstash-Forward-X-{n:03}");
        (0..count).fold(server.publish(&receiver.url("/")), |request, n| request.header(name(n), &value))
    };
    let fits = with(30, 1_000).send().await;
    check(&case, &fits);
    let delivery = receiver.next().await;
    assert_eq!(delivery.header("x-029").map(str::len), Some(1_000));
    for (count, bytes) in [(34, 1_000), (101, 1), (1, 33_000)] {
        let answer = with(count, bytes).expect(400).await;
        assert!(answer.error().contains("headers are forwarded"), "{}", answer.text());
    }
    check(&case, &with(2_000, 1).send().await);
    server.finish().await;
    assert_eq!(receiver.count(), 1);
}

async fn one_queue_too_many_is_refused(case: Case) {
    const LIMIT: usize = 20;
    let mut setup = Setup::dev();
    setup.settings.max_queues = Some(LIMIT);
    let server = TestServer::with(setup).await;
    let put =
        |n: usize| server.post("/v2/queues").json(&json!({ "queueName": format!("queue-{n}"), "parallelism": 1 }));
    for n in 0..LIMIT {
        put(n).expect(200).await;
    }
    check(&case, &put(LIMIT).send().await);
    let queues = server.get("/v2/queues").expect(200).await.json();
    assert_eq!(queues.as_array().map(Vec::len), Some(LIMIT));
    server.finish().await;
}

async fn many_dead_letters_are_sent_again_in_pieces(case: Case) {
    const LETTERS: usize = 2_000;
    let server = TestServer::start().await;
    let item = json!({ "destination": "http://nowhere.example/", "headers": { "Upstash-Retries": "0" } });
    server.post("/v2/batch").json(&json!(vec![item; LETTERS])).expect(200).await;
    let failed = || async { (server.counts().dead_letters == LETTERS as u64).then_some(()) };
    eventually("all have failed", failed).await;
    let mut cursor = None;
    let mut replayed = 0;
    loop {
        let query = cursor.map(|cursor| format!("?cursor={cursor}")).unwrap_or_default();
        let answer = server.post(&format!("/v2/dlq/retry{query}")).send().await;
        check(&case, &answer);
        let answer = answer.json();
        let responses = answer["responses"].as_array().map_or(0, Vec::len);
        assert!(responses <= 1_000, "one answer has {responses}");
        replayed += responses;
        cursor = answer["cursor"].as_str().filter(|cursor| !cursor.is_empty()).map(str::to_owned);
        if cursor.is_none() {
            break;
        }
    }
    assert_eq!(replayed, LETTERS, "every dead letter was sent again once");
    server.finish().await;
}
