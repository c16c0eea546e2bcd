//! Schedules fire: at their minute, once, over restarts, clock jumps and whatever happens to what they need.

use crate::support::server::{START_MS, TOKEN_B};
use crate::support::{Backend, Receiver, Reply, Setup, TestServer, eventually};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};

const MINUTE: u64 = 60_000;
const EVERY_MINUTE: (&str, &str) = ("Upstash-Cron", "* * * * *");
const HOURLY: (&str, &str) = ("Upstash-Cron", "0 * * * *");

/// The ids and states of the messages of the last firing.
fn last_states(schedule: &Value) -> Vec<(String, Value)> {
    let states = schedule["lastScheduleStates"].as_object();
    states.into_iter().flatten().map(|(id, state)| (id.clone(), state.clone())).collect()
}

/// Waits until the one message of the last firing is in this state, and gives its id.
async fn last_message_is(server: &TestServer, schedule: &str, state: &str) -> String {
    eventually(&format!("the last message of {schedule} is {state}"), || async {
        match last_states(&server.schedule(schedule).await).as_slice() {
            [(id, last)] if last == state => Some(id.clone()),
            _ => None,
        }
    })
    .await
}

async fn switch(server: &TestServer, id: &str, action: &str) {
    server.request("PATCH", &format!("/v2/schedules/{id}/{action}")).expect(200).await;
}

#[tokio::test]
async fn a_schedule_fires_at_its_minute_and_at_every_one_that_follows() {
    for backend in Backend::ALL {
        let server = TestServer::with(Setup::dev().on(backend)).await;
        let receiver = Receiver::start().await;
        let headers =
            [EVERY_MINUTE, ("Upstash-Method", "PUT"), ("Upstash-Forward-X", "1"), ("Content-Type", "text/plain")];
        let id = server.schedule_with(&receiver.url("/a?b=c"), &headers, "tick").await;
        server.advance(MINUTE - 1).await;
        assert_eq!((receiver.count(), server.counts().live), (0, 0));
        for minute in 1..=3 {
            server.advance(if minute == 1 { 1 } else { MINUTE }).await;
            let delivery = receiver.next().await;
            assert_eq!((delivery.method.as_str(), delivery.target.as_str()), ("PUT", "/a?b=c"));
            assert_eq!(delivery.header("upstash-schedule-id"), Some(id.as_str()));
            assert_eq!(delivery.header("upstash-caller-ip"), Some("127.0.0.1"));
            assert_eq!((delivery.header("x"), delivery.text().as_str()), (Some("1"), "tick"));
            let message = last_message_is(&server, &id, "SUCCESS").await;
            assert_eq!(delivery.header("upstash-message-id"), Some(message.as_str()));
            let shown = server.schedule(&id).await;
            assert_eq!(shown["lastScheduleTime"], START_MS + minute * MINUTE);
            assert_eq!(shown["nextScheduleTime"], START_MS + (minute + 1) * MINUTE);
            let log = server.events(&format!("scheduleId={id}&state=CREATED&count=1")).await;
            assert_eq!((&log[0]["messageId"], &log[0]["scheduleId"]), (&json!(message), &json!(id)));
        }
        server.delete(&format!("/v2/schedules/{id}")).expect(200).await;
        server.advance(MINUTE).await;
        server.finish().await;
        assert_eq!(receiver.count(), 3);
    }
}

#[tokio::test]
async fn what_became_of_the_last_messages_is_told() {
    let server = TestServer::start().await;
    let receiver = Receiver::start().await;
    let (held, gate) = Reply::status(500).held();
    receiver.script("/", [held]);
    let id = server.schedule_with(&receiver.url("/"), &[EVERY_MINUTE, ("Upstash-Retries", "0")], "").await;
    assert_eq!(server.schedule(&id).await.get("lastScheduleStates"), None);
    server.advance(MINUTE).await;
    last_message_is(&server, &id, "IN_PROGRESS").await;
    gate.open();
    let failed = last_message_is(&server, &id, "FAIL").await;
    assert_eq!(server.dead_letter_of(&failed).await["scheduleId"], json!(id));

    let delay = [("Upstash-Schedule-Id", id.as_str()), EVERY_MINUTE, ("Upstash-Delay", "90s")];
    server.schedule_with(&receiver.url("/"), &delay, "").await;
    server.advance(MINUTE).await;
    let delayed = last_message_is(&server, &id, "IN_PROGRESS").await;
    assert_eq!(server.message(&delayed).await["notBefore"], START_MS + 2 * MINUTE + 90_000);
    server.delete(&format!("/v2/schedules/{id}")).expect(200).await;
    server.delete(&format!("/v2/messages/{delayed}")).expect(202).await;
    server.finish().await;
}

#[tokio::test]
async fn what_became_of_the_last_messages_is_told_without_reading_their_bodies() {
    for backend in [Backend::Sqlite, Backend::Journal] {
        let server = TestServer::with(Setup::dev().on(backend)).await;
        let receiver = Receiver::start().await;
        let id = server.schedule_with(&receiver.url("/"), &[EVERY_MINUTE], "a body").await;
        server.advance(MINUTE).await;
        let message = last_message_is(&server, &id, "SUCCESS").await;
        assert_eq!(server.message(&message).await["body"], "a body");
        server.ruin_bodies();
        server.get(&format!("/v2/messages/{message}")).expect(500).await.error();
        let shown = server.get("/v2/schedules").expect(200).await.json()[0].clone();
        for shown in [shown, server.schedule(&id).await] {
            assert_eq!(last_states(&shown), [(message.clone(), json!("SUCCESS"))], "{backend:?}");
        }
        server.finish().await;
    }
}

#[tokio::test]
async fn a_group_is_resolved_when_the_schedule_fires() {
    for backend in Backend::ALL {
        let server = TestServer::with(Setup::dev().on(backend)).await;
        let receiver = Receiver::start().await;
        let endpoint =
            |name: &str| json!({ "endpoints": [{ "name": name, "url": receiver.url(&format!("/{name}")) }] });
        server.post("/v2/topics/orders/endpoints").json(&endpoint("one")).expect(200).await;
        let id = server.schedule_with("orders", &[EVERY_MINUTE], "hello").await;
        server.post("/v2/topics/orders/endpoints").json(&endpoint("two")).expect(200).await;
        server.advance(MINUTE).await;
        let mut targets: Vec<String> = receiver.take(2).await.into_iter().map(|delivery| delivery.target).collect();
        targets.sort();
        assert_eq!(targets, ["/one", "/two"]);
        let shown = server.schedule(&id).await;
        assert_eq!((last_states(&shown).len(), &shown["destination"]), (2, &json!("orders")));

        server.delete("/v2/topics/orders").expect(200).await;
        server.advance(MINUTE).await;
        let shown = server.schedule(&id).await;
        assert_eq!(shown["error"], "topic orders not found");
        assert_eq!(shown.get("lastScheduleStates"), None);
        assert_eq!(shown["lastScheduleTime"], START_MS + 2 * MINUTE);
        assert_eq!(shown["nextScheduleTime"], START_MS + 3 * MINUTE);

        server.post("/v2/topics/orders/endpoints").json(&endpoint("three")).expect(200).await;
        server.advance(MINUTE).await;
        let delivery = receiver.next().await;
        assert_eq!((delivery.target.as_str(), delivery.header("upstash-topic-name")), ("/three", Some("orders")));
        assert_eq!(server.schedule(&id).await.get("error"), None);
        server.finish().await;
        assert_eq!(receiver.count(), 3);
    }
}

#[tokio::test]
async fn messages_of_a_schedule_go_into_its_queue() {
    let server = TestServer::start().await;
    let receiver = Receiver::start().await;
    let (held, gate) = Reply::status(200).held();
    receiver.script("/", [held, Reply::status(200)]);
    let headers = [EVERY_MINUTE, ("Upstash-Queue-Name", "jobs")];
    let id = server.schedule_with(&receiver.url("/"), &headers, "").await;
    assert_eq!(server.schedule(&id).await["queueName"], "jobs");
    server.advance(MINUTE).await;
    receiver.next().await;
    server.advance(MINUTE).await;
    assert_eq!(receiver.count(), 1, "the second waits for the first");
    let queue = server.get("/v2/queues/jobs").expect(200).await.json();
    assert_eq!((&queue["lag"], &queue["parallelism"]), (&json!(2), &json!(1)));
    gate.open();
    receiver.next().await;
    server.finish().await;
}

#[tokio::test]
async fn a_firing_over_a_quota_makes_no_message_and_says_so() {
    let mut setup = Setup::dev();
    setup.settings.max_queues = Some(1);
    let server = TestServer::with(setup).await;
    let receiver = Receiver::start().await;
    let id = server.schedule_with(&receiver.url("/"), &[EVERY_MINUTE, ("Upstash-Queue-Name", "late")], "").await;
    server.post("/v2/queues").json(&json!({ "queueName": "first" })).expect(200).await;
    server.advance(MINUTE).await;
    let shown = server.schedule(&id).await;
    assert_eq!(shown["error"], "quota maxQueues exceeded, current limit: 1");
    assert_eq!((receiver.count(), &shown["nextScheduleTime"]), (0, &json!(START_MS + 2 * MINUTE)));
    server.delete("/v2/queues/first").expect(200).await;
    server.advance(MINUTE).await;
    receiver.next().await;
    assert_eq!(server.schedule(&id).await.get("error"), None);
    server.finish().await;
}

#[tokio::test]
async fn a_paused_schedule_stays_paused_over_a_restart_and_does_not_catch_up() {
    for backend in Backend::ALL {
        let server = TestServer::with(Setup::dev().on(backend)).await;
        let receiver = Receiver::start().await;
        let id = server.schedule_with(&receiver.url("/"), &[EVERY_MINUTE], "").await;
        switch(&server, &id, "pause").await;
        let server = server.restart().await;
        server.advance(5 * MINUTE).await;
        let shown = server.schedule(&id).await;
        assert_eq!((&shown["isPaused"], &shown["nextScheduleTime"]), (&json!(true), &json!(START_MS + 6 * MINUTE)));
        assert_eq!(shown.get("lastScheduleTime"), None);
        switch(&server, &id, "resume").await;
        let server = server.restart().await;
        assert_eq!(server.schedule(&id).await["isPaused"], false);
        server.advance(MINUTE - 1).await;
        assert_eq!(receiver.count(), 0);
        server.advance(1).await;
        receiver.next().await;
        server.finish().await;
        assert_eq!(receiver.count(), 1);
    }
}

#[tokio::test]
async fn of_what_was_missed_while_nobody_ran_the_latest_is_made_up_for() {
    for backend in Backend::ALL {
        let server = TestServer::with(Setup::dev().on(backend)).await;
        let receiver = Receiver::start().await;
        let id = server.schedule_with(&receiver.url("/"), &[EVERY_MINUTE], "").await;
        let rare = server.schedule_with(&receiver.url("/rare"), &[HOURLY], "").await;
        let server = server.restart_after(10 * MINUTE + 30_000).await;
        assert_eq!(receiver.next().await.target, "/");
        let shown = server.schedule(&id).await;
        assert_eq!(shown["lastScheduleTime"], START_MS + 10 * MINUTE);
        assert_eq!(shown["nextScheduleTime"], START_MS + 11 * MINUTE);
        assert_eq!(server.schedule(&rare).await.get("lastScheduleTime"), None);
        let server = server.restart().await;
        server.advance(29_999).await;
        assert_eq!(receiver.count(), 1, "a restart repeats nothing");
        server.advance(1).await;
        receiver.next().await;
        server.finish().await;
        assert_eq!(receiver.count(), 2);
    }
}

#[tokio::test]
async fn no_minute_comes_twice_when_the_clock_jumps() {
    let server = TestServer::start().await;
    let receiver = Receiver::start().await;
    let id = server.schedule_with(&receiver.url("/"), &[EVERY_MINUTE], "").await;
    server.jump(10 * MINUTE).await;
    receiver.next().await;
    assert_eq!(server.schedule(&id).await["lastScheduleTime"], START_MS + 10 * MINUTE);
    server.jump_back(5 * MINUTE).await;
    for _ in 0..5 {
        server.advance(MINUTE).await;
    }
    switch(&server, &id, "pause").await;
    switch(&server, &id, "resume").await;
    assert_eq!(receiver.count(), 1, "these minutes are over");
    server.advance(MINUTE).await;
    receiver.next().await;
    assert_eq!(server.schedule(&id).await["lastScheduleTime"], START_MS + 11 * MINUTE);

    // Nor does it when the schedule is replaced meanwhile, twice and over a restart.
    let replace = [("Upstash-Schedule-Id", id.as_str()), EVERY_MINUTE];
    server.jump_back(3 * MINUTE).await;
    server.schedule_with(&receiver.url("/new"), &replace, "").await;
    let server = server.restart().await;
    server.schedule_with(&receiver.url("/new"), &replace, "").await;
    assert_eq!(server.schedule(&id).await["nextScheduleTime"], START_MS + 12 * MINUTE);
    for _ in 0..3 {
        server.advance(MINUTE).await;
    }
    assert_eq!(receiver.count(), 2);
    server.advance(MINUTE).await;
    assert_eq!(receiver.next().await.target, "/new");
    server.finish().await;
}

#[tokio::test]
async fn a_replaced_schedule_fires_as_the_new_one_only() {
    let server = TestServer::start().await;
    let receiver = Receiver::start().await;
    let named = ("Upstash-Schedule-Id", "job");
    server.schedule_with(&receiver.url("/old"), &[named, EVERY_MINUTE], "old").await;
    server.advance(MINUTE).await;
    assert_eq!(receiver.next().await.target, "/old");
    switch(&server, "job", "pause").await;
    server.schedule_with(&receiver.url("/new"), &[named, ("Upstash-Cron", "*/2 * * * *")], "").await;
    let shown = server.schedule("job").await;
    assert_eq!((&shown["isPaused"], &shown["createdAt"]), (&json!(false), &json!(START_MS + MINUTE)));
    assert_eq!(shown.get("lastScheduleTime"), None);
    server.advance(MINUTE).await;
    let delivery = receiver.next().await;
    assert_eq!((delivery.target.as_str(), delivery.text().as_str()), ("/new", ""));
    server.advance(MINUTE).await;
    server.finish().await;
    assert_eq!(receiver.count(), 2);
}

#[tokio::test]
async fn many_schedules_of_one_minute_fire_once_each_and_hold_up_nobody() {
    const COUNT: usize = 600;
    let server = TestServer::start().await;
    let receiver = Receiver::start().await;
    for n in 0..COUNT {
        server.schedule_with(&receiver.url(&format!("/{n}")), &[EVERY_MINUTE], "").await;
    }
    let other = server.post(&format!("/v2/schedules/{}", receiver.url("/other"))).token(TOKEN_B);
    other.headers(&[EVERY_MINUTE]).expect(201).await;
    server.advance(MINUTE).await;
    let mut arrived = BTreeMap::new();
    for delivery in receiver.take(COUNT + 1).await {
        *arrived.entry(delivery.target).or_insert(0) += 1;
    }
    assert_eq!((arrived.len(), arrived["/other"]), (COUNT + 1, 1));
    server.finish().await;
    assert_eq!(receiver.count(), COUNT + 1);
}

#[tokio::test]
async fn nothing_fires_while_the_disk_is_nearly_full_and_one_is_made_up_for() {
    let server = TestServer::start().await;
    let receiver = Receiver::start().await;
    let id = server.schedule_with(&receiver.url("/"), &[EVERY_MINUTE], "").await;
    let server = server.restart_with(|settings| settings.disk_reserve_bytes = Some(u64::MAX)).await;
    let other = Receiver::start().await;
    let refused = || async { (server.publish(&other.url("/")).send().await.status == 503).then_some(()) };
    eventually("the disk is found to be full", refused).await;
    server.advance(3 * MINUTE).await;
    assert_eq!((receiver.count(), server.schedule(&id).await.get("lastScheduleTime")), (0, None));
    let server = server.restart_with(|settings| settings.disk_reserve_bytes = Some(0)).await;
    last_message_is(&server, &id, "SUCCESS").await;
    assert_eq!(server.schedule(&id).await["lastScheduleTime"], START_MS + 3 * MINUTE);
    server.finish().await;
    assert_eq!(receiver.count(), 1);
}

#[tokio::test]
async fn a_schedule_without_room_on_the_disk_stays_due_and_does_not_delay_others() {
    const RESERVE: u64 = 1 << 30;
    static FREE: AtomicU64 = AtomicU64::new(RESERVE + 20 * 1024 * 1024);
    // The memory keeps nothing on the disk, so only the figure below counts.
    let mut setup = Setup::dev().on(Backend::Memory);
    setup.settings.disk_reserve_bytes = Some(RESERVE);
    setup.free_bytes = |_| Some(FREE.load(Ordering::Relaxed));
    let server = TestServer::with(setup).await;
    let receiver = Receiver::start().await;
    server.schedule_with(&receiver.url("/large"), &[EVERY_MINUTE], &"x".repeat(5 * 1024 * 1024)).await;
    let small = server.post(&format!("/v2/schedules/{}", receiver.url("/small"))).token(TOKEN_B);
    small.header(EVERY_MINUTE.0, EVERY_MINUTE.1).body("x").expect(201).await;
    FREE.store(RESERVE + 10 * 1024 * 1024, Ordering::Relaxed);
    for _ in 0..3 {
        server.advance(MINUTE).await;
        assert_eq!(receiver.next().await.target, "/small", "the large one has no room");
    }
    FREE.store(2 * RESERVE, Ordering::Relaxed);
    server.advance(MINUTE).await;
    let paths: BTreeSet<String> = receiver.take(2).await.into_iter().map(|delivery| delivery.target).collect();
    assert_eq!(paths, BTreeSet::from(["/large".to_owned(), "/small".to_owned()]));
    server.finish().await;
}

#[tokio::test]
async fn a_schedule_is_run_by_hand_and_its_times_stay() {
    for backend in Backend::ALL {
        let server = TestServer::with(Setup::dev().on(backend)).await;
        let receiver = Receiver::start().await;
        let headers =
            [HOURLY, ("Upstash-Method", "PUT"), ("Upstash-Forward-X", "1"), ("Upstash-Callback", &receiver.url("/cb"))];
        let id = server.schedule_with(&receiver.url("/a"), &headers, "tick").await;
        switch(&server, &id, "pause").await;
        let before = server.schedule(&id).await;
        let answer = server.post(&format!("/v2/schedules/{id}/run/")).expect(201).await.json();
        let message = answer["messages"][0]["messageId"].as_str().expect("an id").to_owned();
        let made = json!([{ "messageId": message, "url": receiver.url("/a") }]);
        assert_eq!(answer, json!({ "scheduleId": id, "messages": made }));
        let delivery = receiver.next().await;
        assert_eq!((delivery.method.as_str(), delivery.text().as_str()), ("PUT", "tick"));
        assert_eq!((delivery.header("x"), delivery.header("upstash-schedule-id")), (Some("1"), Some(id.as_str())));
        assert_eq!(delivery.header("upstash-message-id"), Some(message.as_str()));
        server.reaches(&message, &["CREATED", "ACTIVE", "DELIVERED"]).await;
        for line in server.events_of(&message).await {
            assert_eq!((&line["scheduleId"], &line["scheduleRunByHand"]), (&json!(id), &json!(true)));
        }
        assert_eq!(server.message(&message).await["scheduleRunByHand"], true);
        // Neither what follows from it nor what fires by itself is by hand.
        let callback = receiver.next().await;
        let callback = callback.header("upstash-message-id").expect("an id").to_owned();
        assert_eq!(server.message(&callback).await.get("scheduleRunByHand"), None);
        assert_eq!(server.schedule(&id).await, before);

        switch(&server, &id, "resume").await;
        server.advance(60 * MINUTE).await;
        receiver.next().await;
        let fired = last_message_is(&server, &id, "SUCCESS").await;
        assert_ne!(fired, message);
        assert_eq!(server.message(&fired).await.get("scheduleRunByHand"), None);
        receiver.next().await;
        server.finish().await;
    }
}

#[tokio::test]
async fn a_run_by_hand_goes_to_the_whole_group_within_the_quotas() {
    let mut setup = Setup::serve();
    setup.settings.messages_per_day = Some(3);
    let server = TestServer::with(setup).await;
    let receiver = Receiver::start().await;
    let two = json!({ "endpoints": [{ "url": receiver.url("/1") }, { "url": receiver.url("/2") }] });
    server.post("/v2/topics/group/endpoints").json(&two).expect(200).await;
    let id = server.schedule_with("group", &[HOURLY], "").await;
    let run = || server.post(&format!("/v2/schedules/{id}/run"));
    let made = run().expect(201).await.json()["messages"].clone();
    assert_eq!((&made[0]["url"], &made[1]["url"]), (&json!(receiver.url("/1")), &json!(receiver.url("/2"))));
    receiver.next().await;
    receiver.next().await;
    run().token(TOKEN_B).expect(404).await.error();
    run().token(crate::support::server::READ_ONLY).expect(403).await.error();
    // Two more would be four of three.
    run().expect(429).await.error();
    server.delete("/v2/topics/group").expect(200).await;
    assert_eq!(run().expect(404).await.error(), "topic group not found");
    server.finish().await;
}

#[tokio::test]
async fn other_times_hold_at_once_and_repeat_nothing() {
    let server = TestServer::start().await;
    let receiver = Receiver::start().await;
    let id = server.schedule_with(&receiver.url("/"), &[HOURLY], "").await;
    let change = async |cron: &str| {
        server.request("PATCH", &format!("/v2/schedules/{id}")).header("Upstash-Cron", cron).expect(200).await;
    };
    server.advance(60 * MINUTE).await;
    receiver.next().await;
    last_message_is(&server, &id, "SUCCESS").await;
    // This minute has fired; what came of it is still told.
    server.jump_back(1_000).await;
    change("* * * * *").await;
    server.jump(1_000).await;
    assert_eq!(receiver.count(), 1);
    last_message_is(&server, &id, "SUCCESS").await;
    server.advance(MINUTE).await;
    receiver.next().await;
    change("@yearly").await;
    server.advance(60 * MINUTE).await;
    assert_eq!(receiver.count(), 2);
    server.finish().await;
}
