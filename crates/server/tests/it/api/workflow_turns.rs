//! What concerns many runs at once takes turns with all else: nobody waits until it is done, and it is done all the same.

use crate::support::{TestServer, eventually, runs};
use bytes::Bytes;
use posthaste::core::{Again, Room, StartRun};
use posthaste_engine::workflow::{NewEntry, Overrides};
use posthaste_wire::id::DlqId;
use posthaste_wire::time::Timestamp;
use serde_json::json;
use std::cell::RefCell;

/// Where nobody answers.
const APP: &str = "http://127.0.0.1:9/wf";
/// More than some turns reach, so that there is time to come in between.
const MANY: usize = 1_000;

async fn start_many(server: &TestServer, count: usize, due: Timestamp) -> Vec<String> {
    let ids: Vec<String> = (0..count).map(|number| format!("wfr_{number}")).collect();
    for some in ids.chunks(50) {
        let start = |id: &String| StartRun {
            id: id.clone(),
            url: APP.to_owned(),
            config: runs::config(),
            first: NewEntry::step(Bytes::from_static(b"{}"), Vec::new(), due),
            dedup: None,
            is_by_client: false,
            invoked_by: None,
        };
        let started =
            server.core().start_runs(server.tenant(), some.iter().map(start).collect(), Room::default()).await;
        started.expect("the core answers").expect("they are accepted");
    }
    ids
}

async fn wait_many(server: &TestServer, ids: &[String]) {
    for id in ids {
        server.wait_in(id, "event", json!({ "stepId": 1, "stepName": "w", "stepType": "Wait", "concurrent": 1 })).await;
    }
}

async fn failed_many(server: &TestServer, count: usize) -> Vec<DlqId> {
    start_many(server, count, Timestamp(0)).await;
    eventually("all runs have failed", || async {
        let failed = failed_runs(server).await;
        (failed.len() == count).then_some(failed)
    })
    .await
}

async fn failed_runs(server: &TestServer) -> Vec<DlqId> {
    let mut ids = Vec::new();
    let mut cursor = String::new();
    loop {
        let page = server.get(&format!("/v2/workflows/dlq?count=100{cursor}")).expect(200).await.json();
        let failed = page["messages"].as_array().expect("failed runs are a list").iter();
        ids.extend(failed.map(|run| run["dlqId"].as_str().expect("an id").parse::<DlqId>().expect("a DLQ id")));
        match page["cursor"].as_str().filter(|cursor| !cursor.is_empty()) {
            Some(next) => cursor = format!("&cursor={next}"),
            None => return ids,
        }
    }
}

/// What a long command answers; those that came behind it, the last one when it was begun, must be answered first.
async fn overtaken<T>(server: &TestServer, long: impl Future<Output = T>) -> T {
    let answered = RefCell::new(Vec::new());
    let long = async {
        let answer = long.await;
        answered.borrow_mut().push("long");
        answer
    };
    let short = async {
        for _ in 0..2 {
            server.finish_run("wfr_nobody").await;
        }
        answered.borrow_mut().push("short");
    };
    let (answer, ()) = tokio::join!(long, short);
    assert_eq!(*answered.borrow(), ["short", "long"], "it waited until the other was done");
    answer
}

fn commits(server: &TestServer) -> f64 {
    ["synced", "lazy"]
        .map(|how| server.metric(&format!("posthaste_commit_seconds_count{{durability=\"{how}\"}}")))
        .iter()
        .sum()
}

#[tokio::test]
async fn an_event_for_many_reaches_all_of_them_and_holds_nobody_up() {
    let server = TestServer::start().await;
    let ids = start_many(&server, MANY, Timestamp(u64::MAX / 4)).await;
    wait_many(&server, &ids).await;
    let notified = overtaken(&server, server.core().notify(server.tenant(), "event".into(), b"data".to_vec())).await;
    let reached: Vec<String> = notified.expect("the core answers").into_iter().map(|notified| notified.id).collect();
    assert_eq!(reached, ids, "in the order of asking");
    assert_eq!(server.get("/v2/waiters/event").expect(200).await.json(), json!([]));
    server.finish_with_pending().await;
}

#[tokio::test]
async fn the_response_to_an_event_is_bounded_and_the_event_reaches_all() {
    let server = TestServer::start().await;
    let ids = start_many(&server, 600, Timestamp(u64::MAX / 4)).await;
    let name = "w".repeat(16_000);
    for id in &ids {
        server
            .wait_in(id, "event", json!({ "stepId": 1, "stepName": name, "stepType": "Wait", "concurrent": 1 }))
            .await;
    }
    let notified = server.core().notify(server.tenant(), "event".into(), b"data".to_vec()).await;
    let listed = notified.expect("the core answers").len();
    assert!((400..600).contains(&listed), "8 MiB hold {listed} of them");
    assert_eq!(server.get("/v2/waiters/event").expect(200).await.json(), json!([]), "no run waits any more");
    server.finish_with_pending().await;
}

#[tokio::test]
async fn an_event_that_came_before_a_deadline_ends_the_wait() {
    let server = TestServer::start().await;
    let ids = start_many(&server, MANY, Timestamp(u64::MAX / 4)).await;
    wait_many(&server, &ids).await;
    // While they are being told, the time of all of them is over; and somebody else has the same event for them.
    let notify = |data: &'static [u8]| server.core().notify(server.tenant(), "event".into(), data.to_vec());
    let (first, second, ()) = tokio::join!(notify(b"first"), notify(b"second"), server.advance(3_600_001));
    let (first, second) = (first.expect("the core answers"), second.expect("the core answers"));
    assert_eq!(first.len() + second.len(), MANY, "each hears one of them, and nobody that none came");
    server.finish_with_pending().await;
}

#[tokio::test]
async fn failed_runs_that_begin_again_or_are_dropped_hold_nobody_up() {
    let server = TestServer::start().await;
    let failed = failed_many(&server, 2 * MANY).await;
    assert_eq!(failed.len(), 2 * MANY);
    let (again, dropped) = failed.split_at(MANY);
    let (tenant, overrides) = (server.tenant(), Overrides { delay_ms: 3_600_000, ..Overrides::default() });
    let begin = server.core().begin_again(tenant, again.to_vec(), Again::Resume, overrides);
    let begun = overtaken(&server, begin).await.expect("the core answers");
    assert_eq!((begun.begun.len(), begun.begun.iter().flatten().count()), (MANY, MANY));
    let before = commits(&server);
    let drop_all = server.core().drop_failed_runs(tenant, failed.clone());
    assert_eq!(overtaken(&server, drop_all).await.expect("the core answers") as usize, dropped.len());
    let made = commits(&server) - before;
    assert!((1.0..20.0).contains(&made), "{made} commits");
    assert_eq!(server.failed_runs("").await.len(), 0);
    server.finish_with_pending().await;
}
