//! Reads: lists of large things, and reads without end.

use super::{Case, flood};
use crate::client::{ATTACKER, connect, elapse, read_reply, request};
use crate::proc::tally;
use crate::server::ATTACKER_TOKEN;
use crate::stage::{Attack, PATIENCE, Stage};
use serde_json::json;
use std::io;
use std::time::Duration;
use tokio::io::{AsyncWriteExt, BufReader};
use tokio::time::timeout;

/// Schedules with a large body.
const SCHEDULES: usize = 14;
const SCHEDULES_LONG: usize = 40;
const SCHEDULE_BYTES: usize = 10_000_000;
/// Requests for the whole list at once.
const READERS: usize = 4;
/// Most bytes of one response: a page, and room for the one body that does not fit.
const RESPONSE_BYTES_MAX: u64 = 32_000_000;
/// Messages whose logs are read.
const MESSAGES: usize = 3_000;
/// Connections that read logs in a loop, and for how long.
const LOOPS: usize = 32;
const LOOPING: Duration = Duration::from_secs(3);

/// Flow-control keys, with names as long as they may be, and how many one batch makes.
const KEYS: usize = 30_000;
const KEYS_AT_ONCE: usize = 10_000;
const KEY_BYTES: usize = 256;
/// Connections that ask for a list and read nothing of it for this long.
const SILENT: usize = 400;
const SILENCE: Duration = Duration::from_secs(8);
/// What they ask for: mostly keys, which the core knows, and some that the store does.
const SILENT_READS: [&str; 4] =
    ["/v2/flowControl?count=10000", "/v2/flowControl?count=10000&search=9", "/v2/logs?count=1000", "/v2/stats"];

pub(super) fn cases() -> Vec<Case> {
    vec![
        Case::new("large list", |stage| Box::pin(large_list(stage))).prepared(|stage| Box::pin(make_schedules(stage))),
        Case::new("read flood", |stage| Box::pin(read_flood(stage))).prepared(|stage| Box::pin(make_logs(stage))),
        Case::new("key list flood", |stage| Box::pin(key_list_flood(stage)))
            .prepared(|stage| Box::pin(make_keys(stage))),
    ]
}

async fn make_schedules(stage: &Stage) -> Attack {
    let count = if stage.plan.long { SCHEDULES_LONG } else { SCHEDULES };
    let target = format!("/v2/schedules/{}", stage.sink.url("/ok"));
    let body = vec![b'x'; SCHEDULE_BYTES];
    for _ in 0..count {
        let (_, reply) = stage.attack("POST", &target, "Upstash-Cron: 0 0 1 1 *\r\n", &body).await;
        match reply {
            Ok(reply) if reply.is_success() => {}
            // The tenant's quota of stored bytes.
            Ok(reply) if reply.status == 412 => break,
            Ok(reply) => panic!("a schedule: {} {}", reply.status, reply.text()),
            Err(error) => panic!("a schedule: {error}"),
        }
    }
    Attack::default()
}

async fn large_list(stage: &Stage) -> Attack {
    let mut attack = Attack::default();
    let replies = tokio::join!(
        stage.attack("GET", "/v2/schedules", "", b""),
        stage.attack("GET", "/v2/schedules", "", b""),
        stage.attack("GET", "/v2/schedules", "", b""),
        stage.attack("GET", "/v2/schedules", "", b""),
    );
    for (sent, reply) in <[_; READERS]>::from(replies) {
        attack.bytes += sent;
        match reply {
            Ok(reply) if reply.is_success() && reply.body_bytes <= RESPONSE_BYTES_MAX => {}
            // Reads are admitted per tenant.
            Ok(reply) if [429, 503].contains(&reply.status) => {}
            Ok(reply) if reply.is_success() => {
                let (mb, most) = (reply.body_bytes / 1_000_000, RESPONSE_BYTES_MAX / 1_000_000);
                attack.complain(format!("one response has {mb} MB, limit {most}"));
            }
            Ok(reply) => attack.complain(format!("{} {}", reply.status, reply.text())),
            Err(error) => attack.complain(format!("no response: {error}")),
        }
    }
    attack
}

async fn make_logs(stage: &Stage) -> Attack {
    let item = json!({
        "destination": "http://127.0.0.1:8099/never",
        "headers": { "Upstash-Delay": "1h" },
        "body": "x".repeat(1_000),
    });
    let body = serde_json::Value::Array(vec![item; MESSAGES]).to_string();
    stage.prepare("POST", "/v2/batch", "", body.as_bytes()).await;
    Attack::default()
}

/// Reads full pages of logs in a loop on many connections.
async fn read_flood(stage: &Stage) -> Attack {
    let read = request("GET", "/v2/logs?count=1000", Some(ATTACKER_TOKEN), "", b"");
    flood(stage, &[read], LOOPS, LOOPING, &[200, 429, 503]).await
}

async fn make_keys(stage: &Stage) -> Attack {
    for begin in (0..KEYS).step_by(KEYS_AT_ONCE) {
        let item = |number: usize| {
            json!({
                "destination": "http://127.0.0.1:8099/never",
                "headers": {
                    "Upstash-Delay": "1h",
                    "Upstash-Flow-Control-Key": format!("{number:0>KEY_BYTES$}"),
                    "Upstash-Flow-Control-Value": "parallelism=1",
                },
            })
        };
        let items: serde_json::Value = (begin..begin + KEYS_AT_ONCE).map(item).collect();
        stage.prepare("POST", "/v2/batch", "", items.to_string().as_bytes()).await;
    }
    Attack::default()
}

/// Asks for long lists on many connections at once, reads nothing of them for a while, and then how they begin.
async fn key_list_flood(stage: &Stage) -> Attack {
    let mut attack = Attack::default();
    let server = stage.server.address;
    let tasks: Vec<_> = (0..SILENT)
        .map(|number| {
            let read = request("GET", SILENT_READS[number % SILENT_READS.len()], Some(ATTACKER_TOKEN), "", b"");
            let sent = read.len() as u64;
            let status = tokio::spawn(async move {
                let mut stream = BufReader::new(connect(ATTACKER, server).await?);
                stream.write_all(&read).await?;
                elapse(SILENCE).await;
                io::Result::Ok(read_reply(&mut stream, false).await?.status)
            });
            (sent, status)
        })
        .collect();
    let mut statuses = Vec::new();
    for (sent, status) in tasks {
        attack.bytes += sent;
        match timeout(PATIENCE, status).await.map(|status| status.expect("no panic")) {
            Ok(Ok(status)) => statuses.push(status),
            Ok(Err(error)) => attack.complain(format!("a connection failed: {error}")),
            Err(_) => attack.complain("a reader was not answered"),
        }
    }
    attack.note(format!("responses: {}", tally(statuses.iter())));
    if let Some(status) = statuses.iter().find(|status| ![200, 429, 503].contains(*status)) {
        attack.complain(format!("a read was answered with {status}"));
    }
    if !statuses.contains(&200) {
        attack.complain("nobody was answered");
    }
    attack
}
