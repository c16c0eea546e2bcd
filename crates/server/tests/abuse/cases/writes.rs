//! Small writes without end, and requests that start many workflow runs.

use super::{Case, expect_success_or_limit, flood};
use crate::client::{Reply, elapse, request};
use crate::server::ATTACKER_TOKEN;
use crate::stage::{Attack, Stage};
use crate::verdict::Limits;
use serde_json::{Value, json};
use std::time::Duration;
use tokio::time::Instant;

/// Connections that send small writes in a loop, and for how long.
const LOOPS: usize = 400;
const LOOPING: Duration = Duration::from_secs(4);
/// The body of the schedule that is changed.
const SCHEDULE_BYTES: usize = 10_000_000;
/// Most bytes that thousands of changes of the schedule may write. With its body, each would write 10 MB or more.
const CHANGES_WRITTEN_MAX: u64 = 1_000_000_000;
/// Batches that start small runs at the same time, and the runs of each.
const BATCHES: usize = 4;
const RUNS: usize = 2_500;
/// Runs of a large batch, and the bytes of each body: 61 MB in all, just under the largest that is accepted.
const LARGE_RUNS: usize = 10_000;
const LARGE_RUN_BYTES: usize = 5_700;

/// Connections that send the largest batch of the smallest items in a loop: the server holds more of each item than was sent.
const BATCH_LOOPS: usize = 16;
const BATCH_ITEMS: usize = 10_000;
const BATCH_LOOPING: Duration = Duration::from_secs(2);
/// Steps of a run that fails, and the bytes of the result of each: nearly as much as a run may have.
const STEPS: usize = 10;
const STEP_BYTES: usize = 10_000_000;
/// How long it may take until the delivery of its last step has failed.
const FAILED_WITHIN: Duration = Duration::from_secs(30);

pub(super) fn cases() -> Vec<Case> {
    let few_bytes = Limits { written: Some(CHANGES_WRITTEN_MAX), ..Limits::default() };
    vec![
        Case::new("small writes", |stage| Box::pin(small_writes(stage))).prepared(|stage| Box::pin(schedule(stage))),
        Case::new("changes of a large schedule", |stage| Box::pin(changes(stage)))
            .prepared(|stage| Box::pin(schedule(stage)))
            .limited(few_bytes),
        Case::new("batches of tiny items", |stage| Box::pin(tiny_items(stage, "/v2/batch"))),
        Case::new("batches of tiny runs", |stage| Box::pin(tiny_items(stage, "/v2/batch/trigger"))),
        Case::new("batches of runs", |stage| Box::pin(batches_of_runs(stage))),
        Case::new("large batch of runs", |stage| Box::pin(large_batch_of_runs(stage))),
        Case::new("resume of a large run", |stage| Box::pin(resume(stage)))
            .prepared(|stage| Box::pin(large_failed_run(stage))),
    ]
}

async fn schedule(stage: &Stage) -> Attack {
    let target = format!("/v2/schedules/{}", stage.sink.url("/ok"));
    let headers = "Upstash-Cron: 0 0 1 1 *\r\nUpstash-Schedule-Id: large\r\n";
    stage.prepare("POST", &target, headers, &vec![b'x'; SCHEDULE_BYTES]).await;
    Attack::default()
}

/// Each of these is one commit, however little it changes.
async fn small_writes(stage: &Stage) -> Attack {
    let write = |method, target| request(method, target, Some(ATTACKER_TOKEN), "", b"");
    let writes = [
        write("POST", "/v2/schedules/large/pause"),
        write("DELETE", "/v2/messages/msg_26hZCxZCuWyyTWPmSVBrNB1882AS"),
        write("POST", "/v2/schedules/large/resume"),
        write("POST", "/v2/queues/orders/pause"),
    ];
    flood(stage, &writes, LOOPS, LOOPING, &[200, 202, 404, 503]).await
}

/// Another expression for the same schedule, again and again.
async fn changes(stage: &Stage) -> Attack {
    let change = |cron: &str| {
        let headers = format!("Upstash-Cron: {cron}\r\n");
        request("PATCH", "/v2/schedules/large", Some(ATTACKER_TOKEN), &headers, b"")
    };
    flood(stage, &[change("0 0 1 1 *"), change("0 0 2 1 *")], LOOPS, LOOPING, &[200, 503]).await
}

fn batch_of_runs(runs: usize, bytes: usize) -> Vec<u8> {
    let run = json!({
        "destination": "http://127.0.0.1:8099/never",
        "headers": { "Upstash-Delay": "1h" },
        "body": "x".repeat(bytes),
    });
    Value::Array(vec![run; runs]).to_string().into_bytes()
}

async fn tiny_items(stage: &Stage, target: &str) -> Attack {
    let item = json!({ "destination": "http://127.0.0.1:8099/x", "headers": { "Upstash-Delay": "1h" } });
    let batch = Value::Array(vec![item; BATCH_ITEMS]).to_string();
    let batch = request("POST", target, Some(ATTACKER_TOKEN), "", batch.as_bytes());
    flood(stage, &[batch], BATCH_LOOPS, BATCH_LOOPING, &[200, 201, 412, 413, 503]).await
}

async fn batches_of_runs(stage: &Stage) -> Attack {
    let batch = batch_of_runs(RUNS, 10);
    let start = || stage.attack("POST", "/v2/batch/trigger", "", &batch);
    let mut attack = Attack::default();
    let mut accepted = 0;
    for (sent, reply) in <[_; BATCHES]>::from(tokio::join!(start(), start(), start(), start())) {
        attack.bytes += sent;
        match reply {
            // On a busy machine a batch may wait for its turn for too long. It is rejected before anything of it is stored.
            Ok(reply) if reply.status == 503 => attack.note("batch: 503"),
            reply => {
                accepted += usize::from(reply.as_ref().is_ok_and(Reply::is_success));
                expect_success_or_limit(&mut attack, "batch", &reply);
            }
        }
    }
    if accepted == 0 {
        attack.complain("no batch was accepted");
    }
    attack
}

async fn large_batch_of_runs(stage: &Stage) -> Attack {
    let mut attack = Attack::default();
    let batch = batch_of_runs(LARGE_RUNS, LARGE_RUN_BYTES);
    let (sent, reply) = stage.attack("POST", "/v2/batch/trigger", "", &batch).await;
    attack.bytes = sent;
    expect_success_or_limit(&mut attack, "batch", &reply);
    attack
}

/// Starts a run, gives it its steps, and waits until it has failed.
async fn large_failed_run(stage: &Stage) -> Attack {
    let url = stage.sink.url("/fail");
    let item = |init: &str, delay: &str, body: String| {
        let headers = json!({
            "Upstash-Workflow-Init": init, "Upstash-Workflow-RunId": "wfr_large", "Upstash-Workflow-Url": url,
            "Upstash-Delay": delay, "Upstash-Retries": "0", "Upstash-Feature-Set": "LazyFetch,InitialBody",
        });
        json!([{ "destination": url, "body": body, "headers": headers }]).to_string()
    };
    stage.prepare("POST", "/v2/batch", "", item("true", "1h", "{}".to_owned()).as_bytes()).await;
    for number in 1..=STEPS {
        let out = "x".repeat(STEP_BYTES);
        let step = json!({ "stepId": number, "stepName": "s", "stepType": "Run", "out": out, "concurrent": 1 });
        // Only the last one is delivered.
        let delay = if number == STEPS { "0s" } else { "1h" };
        stage.prepare("POST", "/v2/batch", "", item("false", delay, step.to_string()).as_bytes()).await;
    }
    let until = Instant::now() + FAILED_WITHIN;
    while failed_run(stage).await.is_none() {
        assert!(Instant::now() < until, "the run has not failed");
        elapse(Duration::from_millis(100)).await;
    }
    Attack::default()
}

/// The id of the failed run in the DLQ.
async fn failed_run(stage: &Stage) -> Option<String> {
    let (_, reply) = stage.attack("GET", "/v2/workflows/dlq?trimBody=0", "", b"").await;
    let text = reply.ok()?.text();
    let (_, rest) = text.split_once("\"dlqId\":\"")?;
    Some(rest.split_once('"')?.0.to_owned())
}

/// All steps are copied into the new run.
async fn resume(stage: &Stage) -> Attack {
    let mut attack = Attack::default();
    let Some(dlq_id) = failed_run(stage).await else {
        attack.complain("the failed run is not in the DLQ");
        return attack;
    };
    let (sent, reply) = stage.attack("POST", &format!("/v2/workflows/dlq/resume/{dlq_id}"), "", b"").await;
    attack.bytes = sent;
    expect_success_or_limit(&mut attack, "resume", &reply);
    attack
}
