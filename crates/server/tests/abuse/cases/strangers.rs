//! Callers without a token, or with a wrong one: whatever they send is cheap, and malformed requests are rejected.

use super::Case;
use crate::client::{ATTACKER, Reply, connect, exchange_within, read_reply, request};
use crate::proc::tally;
use crate::stage::{Attack, Beside, PATIENCE, Stage};
use crate::verdict::Limits;
use std::io;
use std::time::Duration;
use tokio::io::{AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// Connections that pipeline, and requests of each: 38 KB in all.
const PIPELINES: usize = 8;
const PIPELINED: usize = 119;
/// Processor time that they may take. Each request once took 17 ms.
const PIPELINED_CPU: Duration = Duration::from_millis(1_500);
/// An open route may cost this many times as much as `/health`.
const HEALTH_FACTOR: u64 = 3;
/// Requests that the cost of a route is measured with; the best of several rounds counts.
const COST_REQUESTS: usize = 150;
const COST_REQUESTS_LONG: usize = 2_000;
const COST_ROUNDS: usize = 3;
/// Wrong tokens: connections, and requests of each.
const GUESSERS: usize = 8;
const GUESSES: usize = 500;

pub(super) fn cases() -> Vec<Case> {
    let cheap = Limits { cpu: Some(PIPELINED_CPU), ..Limits::default() };
    let costs = Case::new("open routes", |stage| Box::pin(open_routes(stage)));
    vec![
        Case::new("pipelined openapi.json", |stage| Box::pin(pipelined(stage))).limited(cheap),
        Case { beside: Beside::Nobody, ..costs },
        Case::new("wrong tokens", |stage| Box::pin(wrong_tokens(stage))),
        Case { beside: Beside::Nobody, ..Case::new("malformed framing", |stage| Box::pin(framing(stage))) },
    ]
}

/// Many requests for the largest open document, written at once and read as they come.
async fn pipelined(stage: &Stage) -> Attack {
    let mut attack = Attack::default();
    let server = stage.server.address;
    let requests = b"GET /openapi.json HTTP/1.1\r\nHost: a\r\n\r\n".repeat(PIPELINED);
    attack.bytes = (requests.len() * PIPELINES) as u64;
    let tasks: Vec<_> = (0..PIPELINES)
        .map(|_| {
            let requests = requests.clone();
            tokio::spawn(timeout(PATIENCE, async move {
                let mut stream = BufReader::new(connect(ATTACKER, server).await?);
                stream.write_all(&requests).await?;
                let mut answered = 0;
                // A server may close a connection that asks for too much at once.
                while answered < PIPELINED && read_reply(&mut stream, true).await.is_ok() {
                    answered += 1;
                }
                io::Result::Ok(answered)
            }))
        })
        .collect();
    let mut answered = 0;
    for task in tasks {
        match task.await.expect("no panic") {
            Ok(Ok(count)) => answered += count,
            Ok(Err(error)) => attack.note(format!("a connection failed: {error}")),
            Err(_) => attack.complain(format!("not answered within {} s", PATIENCE.as_secs())),
        }
    }
    attack.note(format!("{answered} of {} requests were answered", PIPELINES * PIPELINED));
    if answered == 0 {
        attack.complain("nothing was answered");
    }
    attack
}

/// Requests that need no token: their names for people, and their bytes.
fn open_requests() -> Vec<(String, Vec<u8>)> {
    let wrong = Some("wrong-0123456789abcdef");
    let requests = [
        ("GET", "/ready", None),
        ("GET", "/metrics", None),
        ("GET", "/openapi.json", None),
        ("HEAD", "/openapi.json", None),
        ("GET", "/no/such/page", None),
        ("GET", "/v2/no-such-resource", None),
        ("POST", "/v2/publish/https://example.com/", None),
        ("POST", "/v2/publish/https://example.com/", wrong),
        ("POST", "/v2/batch", None),
        ("GET", "/v2/schedules", None),
        ("GET", "/v2/logs", wrong),
        ("OPTIONS", "/v2/publish/https://example.com/", None),
        ("POST", "/v2/workflows/hooks/user/run/event", None),
        ("GET", "/console", None),
        ("GET", "/console/login", None),
        ("GET", "/console/no-such-page", None),
    ];
    requests
        .into_iter()
        .map(|(method, target, token)| {
            let by = if token.is_some() { " (wrong token)" } else { "" };
            (format!("{method} {target}{by}"), request(method, target, token, "", b""))
        })
        .collect()
}

/// Compares the processor time of every open route with that of `/health`.
async fn open_routes(stage: &Stage) -> Attack {
    let mut attack = Attack::default();
    let health = request("GET", "/health", None, "", b"");
    // The first requests fill caches.
    cost(stage, &health).await;
    let mut measured = Vec::new();
    for (name, request) in open_requests() {
        let (Some(route), Some(health)) = (cost(stage, &request).await, cost(stage, &health).await) else {
            attack.complain(format!("{name}: no response"));
            continue;
        };
        attack.bytes += (request.len() * COST_REQUESTS * COST_ROUNDS) as u64;
        measured.push((route, health, name));
    }
    measured.sort_by_key(|(route, health, _)| std::cmp::Reverse(*route * 1_000 / health));
    for (route, health, name) in &measured {
        let figures = format!("{name} {:.1} × /health ({} µs)", *route as f64 / *health as f64, route / 1_000);
        if *route > HEALTH_FACTOR * health {
            attack.complain(figures);
        }
    }
    if let Some((route, health, name)) = measured.first() {
        attack.note(format!(
            "the most expensive of {}: {name}, {:.1} × /health",
            measured.len(),
            *route as f64 / *health as f64
        ));
    }
    attack
}

/// Processor time of the server per request, in nanoseconds: the least of several rounds.
async fn cost(stage: &Stage, request: &[u8]) -> Option<u64> {
    let count = if stage.plan.long { COST_REQUESTS_LONG } else { COST_REQUESTS };
    let has_body = !request.starts_with(b"HEAD");
    let mut best = None;
    for _ in 0..COST_ROUNDS {
        let mut stream = open(stage).await?;
        let before = stage.server.proc.cpu_nanos();
        for _ in 0..count {
            stream.write_all(request).await.ok()?;
            let reply = timeout(PATIENCE, read_reply(&mut stream, has_body)).await.ok()?.ok()?;
            if reply.closes {
                stream = open(stage).await?;
            }
        }
        let spent = stage.server.proc.cpu_nanos().saturating_sub(before) / count as u64;
        best = Some(best.map_or(spent, |best: u64| best.min(spent)));
    }
    best
}

async fn open(stage: &Stage) -> Option<BufReader<TcpStream>> {
    Some(BufReader::new(connect(ATTACKER, stage.server.address).await.ok()?))
}

/// Guesses tokens as fast as the server answers: from some point on it has to answer 429.
async fn wrong_tokens(stage: &Stage) -> Attack {
    let mut attack = Attack::default();
    let server = stage.server.address;
    let tasks: Vec<_> = (0..GUESSERS)
        .map(|guesser| {
            tokio::spawn(timeout(PATIENCE, async move {
                let (mut sent, mut statuses) = (0, Vec::new());
                let mut stream = BufReader::new(connect(ATTACKER, server).await?);
                for guess in 0..GUESSES {
                    let token = format!("guess-{guesser}-{guess}-0123456789abcdef");
                    let request = request("GET", "/v2/queues", Some(&token), "", b"");
                    stream.write_all(&request).await?;
                    sent += request.len() as u64;
                    let reply = read_reply(&mut stream, true).await?;
                    statuses.push(reply.status);
                    if reply.closes {
                        stream = BufReader::new(connect(ATTACKER, server).await?);
                    }
                }
                io::Result::Ok((sent, statuses))
            }))
        })
        .collect();
    let mut statuses = Vec::new();
    for task in tasks {
        match task.await.expect("no panic") {
            Ok(Ok((sent, some))) => {
                attack.bytes += sent;
                statuses.extend(some);
            }
            // Callers that guess may be disconnected.
            Ok(Err(error)) => attack.note(format!("a connection failed: {error}")),
            Err(_) => attack.complain(format!("not answered within {} s", PATIENCE.as_secs())),
        }
    }
    attack.note(format!("responses: {}", tally(statuses.iter())));
    if !statuses.contains(&429) {
        attack.complain("wrong tokens are not limited: no 429");
    }
    if let Some(status) = statuses.iter().find(|status| ![401, 429].contains(*status)) {
        attack.complain(format!("a wrong token was answered with {status}"));
    }
    attack
}

/// Requests whose framing two servers could read differently, and heads that are too large: rejected, with JSON.
async fn framing(stage: &Stage) -> Attack {
    let mut attack = Attack::default();
    let large = format!("X-Large: {}\r\n", "a".repeat(600_000));
    let many = "X-Many: a\r\n".repeat(2_000);
    let requests = [
        (
            "Transfer-Encoding after Content-Length",
            "Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
            400,
        ),
        (
            "Content-Length after Transfer-Encoding",
            "Transfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n0\r\n\r\n",
            400,
        ),
        ("bare LF after a header", "X-One: 1\nX-Two: 2\r\nContent-Length: 0\r\n\r\n", 400),
        ("bare LF at the end of the head", "Content-Length: 0\r\n\n", 400),
        ("head of 600 KB", large.as_str(), 431),
        ("2,000 headers", many.as_str(), 431),
    ];
    for (name, rest, expected) in requests {
        let request = format!(
            "POST /v2/publish/http://127.0.0.1:8099/x HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {}\r\n{rest}\r\n",
            crate::server::ATTACKER_TOKEN
        );
        expect_refusal(&mut attack, stage, name, request.as_bytes(), expected).await;
    }
    let all_lf = b"GET /health HTTP/1.1\nHost: a\n\n";
    expect_refusal(&mut attack, stage, "bare LF everywhere", all_lf, 400).await;
    attack
}

async fn expect_refusal(attack: &mut Attack, stage: &Stage, name: &str, request: &[u8], expected: u16) {
    attack.bytes += request.len() as u64;
    let reply: io::Result<Reply> = exchange_within(PATIENCE, ATTACKER, stage.server.address, request).await;
    match reply {
        Ok(reply) if reply.status == expected && reply.error().is_some() => {}
        Ok(reply) => {
            attack.complain(format!("{name}: {}, not {expected} with a JSON error: {}", reply.status, reply.text()))
        }
        Err(error) => attack.complain(format!("{name}: no response: {error}")),
    }
}
