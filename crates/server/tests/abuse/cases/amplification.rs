//! Small requests that cause much work: callbacks, retry expressions, and batches of many items.

use super::{Case, expect_success_or_limit};
use crate::client::elapse;
use crate::stage::{Attack, Stage};
use crate::verdict::Limits;
use serde_json::{Value, json};
use std::time::Duration;
use tokio::time::Instant;

/// The body whose callbacks repeat it, and the retries after which there is one each.
const CALLBACK_BODY_BYTES: usize = 5_000_000;
const CALLBACK_RETRIES: usize = 30;
/// Most bytes that may be written meanwhile: the body three times (journal, WAL, database), as much for its callbacks, and
/// what the neighbour publishes. They were 660 MB.
const CALLBACK_WRITTEN_MAX: u64 = 60_000_000;
/// A body that is just small enough to be in each callback and to be sent again at once.
const SMALL_BODY_BYTES: usize = 1024 * 1024 - 1;
/// Most bytes that a tenant with a quota of 20 MB may write: three times the quota, some callbacks that were in flight, and
/// what the neighbour publishes.
const QUOTA_WRITTEN_MAX: u64 = 120_000_000;
/// How long it is watched.
const CALLBACK_WATCHED: Duration = Duration::from_secs(8);
/// Items of the largest batch.
const ITEMS: usize = 10_000;
/// Bytes of each item's body in the largest batch: 61 MB in all, just under what is accepted.
const ITEM_BYTES: usize = 6_000;
/// A batch with a costly expression may take this much more processor time than one with a simple expression.
const EXPRESSION_FACTOR: u32 = 2;
const EXPRESSION_SLACK: Duration = Duration::from_millis(200);

pub(super) fn cases() -> Vec<Case> {
    let few_bytes = Limits { written: Some(CALLBACK_WRITTEN_MAX), ..Limits::default() };
    let over_quota = Limits { written: Some(QUOTA_WRITTEN_MAX), ..Limits::default() };
    vec![
        Case::new("callback amplification", |stage| Box::pin(callbacks(stage))).limited(few_bytes),
        Case {
            settings: "max_stored_bytes = 20000000\n",
            ..Case::new("callbacks over the quota", |stage| Box::pin(quick_retries(stage))).limited(over_quota)
        },
        Case::new("one costly expression", |stage| Box::pin(one_expression(stage))),
        Case::new("distinct costly expressions", |stage| Box::pin(distinct_expressions(stage))),
        Case::new("batch of 10,000 items", |stage| Box::pin(large_batch(stage))),
    ]
}

/// Every attempt fails at once, and its callback carries the body.
async fn callbacks(stage: &Stage) -> Attack {
    let mut attack = Attack::default();
    let target = format!("/v2/publish/{}", stage.sink.url("/fail"));
    let headers = format!(
        "Upstash-Retries: {CALLBACK_RETRIES}\r\nUpstash-Retry-Delay: 1\r\nUpstash-Callback: {}\r\n",
        stage.sink.url("/ok")
    );
    let (sent, reply) = stage.attack("POST", &target, &headers, &vec![b'x'; CALLBACK_BODY_BYTES]).await;
    attack.bytes = sent;
    expect_success_or_limit(&mut attack, "publish", &reply);
    let until = Instant::now() + CALLBACK_WATCHED;
    while stage.sink.succeeded() <= CALLBACK_RETRIES && Instant::now() < until {
        elapse(Duration::from_millis(50)).await;
    }
    attack.note(format!("{} attempts, {} callbacks", stage.sink.failed(), stage.sink.succeeded()));
    attack
}

/// Every attempt fails at once and is repeated at once, until the callbacks have used up the quota.
async fn quick_retries(stage: &Stage) -> Attack {
    let mut attack = Attack::default();
    let target = format!("/v2/publish/{}", stage.sink.url("/fail"));
    let headers =
        format!("Upstash-Retries: 1000\r\nUpstash-Retry-Delay: 1\r\nUpstash-Callback: {}\r\n", stage.sink.url("/ok"));
    let (sent, reply) = stage.attack("POST", &target, &headers, &vec![b'x'; SMALL_BODY_BYTES]).await;
    attack.bytes = sent;
    expect_success_or_limit(&mut attack, "publish", &reply);
    elapse(CALLBACK_WATCHED).await;
    attack.note(format!("{} attempts, {} callbacks", stage.sink.failed(), stage.sink.succeeded()));
    attack
}

/// As costly as 256 bytes allow: powers with a fraction, which have to be computed for each of 1,000 retries.
fn costly(number: usize) -> String {
    let terms: Vec<String> = (10..24).map(|tenth| format!("pow(retried,{:.1})", f64::from(tenth) / 10.0)).collect();
    // The first number makes an expression different from the others.
    terms.join("+").replacen("1.0", &format!("1.{number:04}"), 1)
}

fn batch_with(expression: impl Fn(usize) -> String) -> String {
    let item = |number| {
        json!({
            "destination": "http://127.0.0.1:8099/never",
            "headers": {
                "Upstash-Delay": "1h",
                "Upstash-Retries": "1000",
                "Upstash-Retry-Delay": expression(number),
            },
            "body": "x",
        })
    };
    Value::Array((0..ITEMS).map(item).collect()).to_string()
}

/// Sends a batch; returns the processor time that the server took until it answered.
async fn timed(stage: &Stage, attack: &mut Attack, what: &str, batch: &str) -> Duration {
    let before = stage.server.proc.cpu().unwrap_or_default();
    let (sent, reply) = stage.attack("POST", "/v2/batch", "", batch.as_bytes()).await;
    attack.bytes += sent;
    expect_success_or_limit(attack, what, &reply);
    let spent = stage.server.proc.cpu().unwrap_or_default().saturating_sub(before);
    attack.note(format!("{what}: {:.2} s of processor time", spent.as_secs_f64()));
    spent
}

/// The same costly expression in every item costs little more than a simple one: it is checked once.
async fn one_expression(stage: &Stage) -> Attack {
    let mut attack = Attack::default();
    let simple = timed(stage, &mut attack, "simple", &batch_with(|_| "1000".to_owned())).await;
    let costly = timed(stage, &mut attack, "costly", &batch_with(|_| costly(0))).await;
    let most = simple * EXPRESSION_FACTOR + EXPRESSION_SLACK;
    if costly > most {
        let (costly, most) = (costly.as_secs_f64(), most.as_secs_f64());
        attack.complain(format!("a costly expression takes {costly:.2} s of processor time, limit {most:.2}"));
    }
    attack
}

/// Another costly expression in every item: the work is there, but the neighbour must not notice.
async fn distinct_expressions(stage: &Stage) -> Attack {
    let mut attack = Attack::default();
    timed(stage, &mut attack, "distinct", &batch_with(costly)).await;
    attack
}

/// As many items, and as many bytes, as one batch may have.
async fn large_batch(stage: &Stage) -> Attack {
    let mut attack = Attack::default();
    let item = json!({
        "destination": "http://127.0.0.1:8099/never",
        "headers": { "Upstash-Delay": "1h" },
        "body": "x".repeat(ITEM_BYTES),
    });
    let batch = Value::Array(vec![item; ITEMS]).to_string();
    timed(stage, &mut attack, "batch", &batch).await;
    attack
}

#[test]
fn costly_expressions_are_as_long_as_allowed_and_differ() {
    assert_ne!(costly(1), costly(9_999));
    assert!((240..=256).contains(&costly(9_999).len()), "{}", costly(9_999).len());
}
