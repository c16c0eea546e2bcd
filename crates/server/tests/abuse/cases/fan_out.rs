//! Fan-out bombs: one request that becomes many large messages.

use super::{Case, expect_success_or_limit};
use crate::client::elapse;
use crate::stage::{Attack, Stage};
use crate::verdict::Limits;
use serde_json::json;
use std::time::Duration;
use tokio::time::Instant;

/// Endpoints of the group: as many as a group may have by default.
const ENDPOINTS: usize = 100;
/// Bytes of one body, just below the default limit of a message.
const BODY_BYTES: usize = 9_500_000;
const LARGE_BODY_BYTES: usize = 10_000_000;
/// Messages of the batch: more than 4 GiB over all endpoints.
const BATCH_ITEMS: usize = 5;
/// How long deliveries of a fan-out are watched.
const DELIVERING: Duration = Duration::from_secs(6);
/// Size of the small disk.
const DISK_BYTES: u64 = 256_000_000;
/// Its reserve, by default 64 MiB, and what may be missing of it for what was accepted just before.
const FREE_BYTES_MIN: u64 = 20_000_000;
/// Large publishes to the small disk.
const PUBLISHES: usize = 40;

pub(super) fn cases() -> Vec<Case> {
    let group = |case: Case| case.prepared(|stage| Box::pin(make_group(stage)));
    let refusing = Limits { may_refuse_neighbour: true, ..Limits::default() };
    vec![
        group(Case::new("fan-out batch", |stage| Box::pin(batch(stage)))),
        group(Case::new("fan-out publish", |stage| Box::pin(publish(stage)))),
        Case {
            disk_bytes: Some(DISK_BYTES),
            ..group(Case::new("fan-out on a small disk", |stage| Box::pin(small_disk(stage)))).limited(refusing)
        },
    ]
}

async fn make_group(stage: &Stage) -> Attack {
    let endpoint = |number| json!({ "name": format!("e{number}"), "url": stage.sink.url(&format!("/ok/{number}")) });
    let endpoints: Vec<_> = (0..ENDPOINTS).map(endpoint).collect();
    let body = json!({ "endpoints": endpoints }).to_string();
    stage.prepare("POST", "/v2/topics/all/endpoints", "", body.as_bytes()).await;
    Attack::default()
}

/// Five messages to a hundred endpoints: a frame of 4.75 GB, if nothing stops it.
async fn batch(stage: &Stage) -> Attack {
    let mut attack = Attack::default();
    let item = json!({
        "destination": "all",
        "headers": { "Upstash-Delay": "1h" },
        "body": "x".repeat(BODY_BYTES),
    });
    let body = serde_json::Value::Array(vec![item; BATCH_ITEMS]).to_string();
    let (sent, reply) = stage.attack("POST", "/v2/batch", "", body.as_bytes()).await;
    attack.bytes += sent;
    expect_success_or_limit(&mut attack, "batch", &reply);
    attack
}

/// One large message to a hundred endpoints, which are delivered at once.
async fn publish(stage: &Stage) -> Attack {
    let mut attack = Attack::default();
    let (sent, reply) = stage.attack("POST", "/v2/publish/all", "", &vec![b'x'; LARGE_BODY_BYTES]).await;
    attack.bytes += sent;
    expect_success_or_limit(&mut attack, "publish", &reply);
    if reply.is_ok_and(|reply| reply.is_success()) {
        let until = Instant::now() + DELIVERING;
        while stage.sink.succeeded() < ENDPOINTS && Instant::now() < until {
            elapse(Duration::from_millis(50)).await;
        }
        attack.note(format!("{} of {ENDPOINTS} delivered", stage.sink.succeeded()));
    }
    attack
}

/// Large publishes, to the group and alone, until the disk is below its reserve, and then some.
async fn small_disk(stage: &Stage) -> Attack {
    let mut attack = Attack::default();
    let body = vec![b'x'; LARGE_BODY_BYTES];
    let alone = format!("/v2/publish/{}", stage.sink.url("/ok"));
    let mut statuses = Vec::new();
    for number in 0..PUBLISHES {
        let target = if number % 4 == 0 { "/v2/publish/all" } else { &alone };
        let (sent, reply) = stage.attack("POST", target, "Upstash-Delay: 1h\r\n", &body).await;
        attack.bytes += sent;
        match reply {
            Ok(reply) if reply.is_success() || [412, 413, 503, 507].contains(&reply.status) => {
                statuses.push(reply.status);
            }
            Ok(reply) => attack.complain(format!("publish {number}: {} {}", reply.status, reply.text())),
            Err(error) => {
                attack.complain(format!("publish {number}: no response: {error}"));
                break;
            }
        }
    }
    attack.note(format!("responses: {}", crate::proc::tally(statuses.iter())));
    if !statuses.iter().any(|status| (200..300).contains(status)) {
        attack.complain("nothing was accepted");
    }
    if let Some(free) = stage.disk.as_ref().map(|disk| disk.free_bytes()) {
        attack.note(format!("{} MB of the disk are free", free / 1_000_000));
        if free < FREE_BYTES_MIN {
            attack.complain(format!("only {} MB of the reserve are left", free / 1_000_000));
        }
    }
    attack
}
