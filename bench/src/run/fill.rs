//! Fills a server with messages that are due in a week, in batches over several connections.

use super::figure::{TARGET, number};
use super::scenario::{AUTHORIZATION, Bench, Target};
use super::work::FAR;
use crate::account::Account;
use crate::clock::{now_ns, seconds_between};
use crate::http::{Connection, get, split_url};
use crate::load::excerpt;
use crate::marker::{Marker, noise};
use crate::process::NamedPid;
use crate::template::fill_payload;
use anyhow::{Context, Result, bail};
use serde::Deserialize;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::Duration;
use tokio::task::JoinSet;

const BATCH_ITEMS: u32 = 500;
const CONNECTIONS: usize = 4;
const FILL_TIMEOUT: Duration = Duration::from_secs(3600);
const BATCH_TIMEOUT: Duration = Duration::from_secs(60);
/// How many messages of a filling are remembered, to be looked up later.
const SAMPLES: usize = 200;

/// How many of `ids` the server no longer knows.
pub(super) async fn count_gone(target: &Target, ids: &[String]) -> Result<u64> {
    let mut gone = 0;
    for id in ids {
        let path = format!("/v2/messages/{id}");
        match get(&target.child.base, &path, &[AUTHORIZATION], Duration::from_secs(10)).await? {
            (200, _) => {}
            (404, _) => gone += 1,
            (status, body) => bail!("GET {path} was answered {status}: {}", excerpt(&body)),
        }
    }
    Ok(gone)
}

/// The messages of one backlog, which can be filled in several steps.
pub(super) struct Backlog {
    /// The run number of its messages.
    pub(super) run: u32,
    pub(super) stored: u32,
    body_bytes: usize,
    destination: String,
}

/// The cost of one filling.
pub(super) struct Filled {
    pub(super) messages: u32,
    pub(super) seconds: f64,
    pub(super) cpu_us_per_message: f64,
    pub(super) foreign_cpu_pct: f64,
    /// Ids of messages from all parts of it.
    pub(super) samples: Vec<String>,
}

impl Backlog {
    pub(super) fn new(bench: &Bench) -> Self {
        Self {
            run: (now_ns() / 1_000_000) as u32,
            stored: 0,
            body_bytes: bench.plan.delayed_body_bytes as usize,
            destination: format!("{}/x", bench.sink()),
        }
    }

    /// Stores messages until there are `until`.
    pub(super) async fn fill(&mut self, target: &Target, until: u32) -> Result<Filled> {
        let (host, _) = split_url(&target.child.base)?;
        let fill = Arc::new(Fill {
            run: self.run,
            first: self.stored,
            until,
            body_bytes: self.body_bytes,
            host: host.to_owned(),
            destination: self.destination.clone(),
            noise: noise(256 * 1024 + self.body_bytes),
            next: AtomicU32::new(self.stored),
        });
        let filled = fill.run(target.child.pid).await?;
        self.stored = until;
        Ok(filled)
    }
}

/// One filling, shared by its connections.
struct Fill {
    run: u32,
    first: u32,
    until: u32,
    body_bytes: usize,
    /// `address:port` of the server.
    host: String,
    destination: String,
    noise: Vec<u8>,
    next: AtomicU32,
}

#[derive(Deserialize)]
struct Accepted {
    #[serde(rename = "messageId")]
    message_id: String,
}

impl Fill {
    async fn run(self: Arc<Self>, server_pid: u32) -> Result<Filled> {
        let account = Account::of_processes(vec![
            NamedPid { name: TARGET.into(), pid: server_pid },
            NamedPid { name: "fill".into(), pid: std::process::id() },
        ]);
        let start_ns = now_ns();
        let mut connections = JoinSet::new();
        for _ in 0..CONNECTIONS {
            connections.spawn(self.clone().connection());
        }
        let mut samples = Vec::new();
        let all = async {
            while let Some(ids) = connections.join_next().await {
                samples.extend(ids.context("a connection ended early")??);
            }
            anyhow::Ok(())
        };
        tokio::time::timeout(FILL_TIMEOUT, all).await.with_context(|| format!("not filled in {FILL_TIMEOUT:?}"))??;
        let seconds = seconds_between(start_ns, now_ns());
        let spent = account.read();
        let step = samples.len().div_ceil(SAMPLES).max(1);
        let messages = self.until - self.first;
        Ok(Filled {
            messages,
            seconds,
            cpu_us_per_message: spent.cpu_s_of(TARGET) * 1e6 / f64::from(messages),
            foreign_cpu_pct: spent.foreign_cpu_pct,
            samples: samples.into_iter().step_by(step).collect(),
        })
    }

    /// Sends batches until none is left, and returns one id per batch.
    async fn connection(self: Arc<Self>) -> Result<Vec<String>> {
        let mut connection = Connection::open(&self.host).await?;
        let mut samples = Vec::new();
        loop {
            let first = self.next.fetch_add(BATCH_ITEMS, Relaxed);
            if first >= self.until {
                return Ok(samples);
            }
            let items = BATCH_ITEMS.min(self.until - first);
            let request = self.request(first, items);
            let answer = tokio::time::timeout(BATCH_TIMEOUT, connection.call(&request)).await;
            let (status, body) = answer.with_context(|| format!("no answer to a batch in {BATCH_TIMEOUT:?}"))??;
            if !(200..300).contains(&status) {
                bail!("a batch was answered {status}: {}", excerpt(&body));
            }
            let mut accepted: Vec<Accepted> = serde_json::from_slice(&body)
                .with_context(|| format!("unexpected answer to a batch: {}", excerpt(&body)))?;
            if accepted.len() != items as usize {
                bail!("a batch of {items} was answered with {} ids", accepted.len());
            }
            samples.push(accepted.swap_remove(first as usize / BATCH_ITEMS as usize % accepted.len()).message_id);
            self.log_progress(first, items);
        }
    }

    fn log_progress(&self, first: u32, items: u32) {
        let tenth = |done: u32| u64::from(done - self.first) * 10 / u64::from(self.until - self.first);
        if tenth(first + items) > tenth(first) {
            eprintln!("delayed: {}% of {} stored", tenth(first + items) * 10, number(f64::from(self.until)));
        }
    }

    /// The request that publishes `items` messages, starting with number `first`.
    fn request(&self, first: u32, items: u32) -> Vec<u8> {
        let head = format!(
            r#"{{"destination":"{}","headers":{{"Upstash-Delay":"{FAR}","Content-Type":"text/plain"}},"body":""#,
            self.destination
        );
        let mut body = Vec::with_capacity(items as usize * (head.len() + self.body_bytes + 3) + 2);
        for sequence in first..first + items {
            body.push(if sequence == first { b'[' } else { b',' });
            body.extend_from_slice(head.as_bytes());
            let at = body.len();
            body.resize(at + self.body_bytes, 0);
            fill_payload(&mut body[at..], Marker { run: self.run, sequence, sent_ns: now_ns() }, &self.noise);
            body.extend_from_slice(br#""}"#);
        }
        body.push(b']');
        let mut request = format!(
            "POST /v2/batch HTTP/1.1\r\nHost: {}\r\n{AUTHORIZATION}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
            self.host,
            body.len()
        )
        .into_bytes();
        request.append(&mut body);
        request
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_request_is_valid_json_of_marked_bodies() {
        let fill = Fill {
            run: 7,
            first: 0,
            until: 10,
            body_bytes: 256,
            host: "127.0.0.1:1".into(),
            destination: "http://127.0.0.1:2/x".into(),
            noise: noise(1024),
            next: AtomicU32::new(0),
        };
        let request = String::from_utf8(fill.request(5, 3)).unwrap();
        let (head, body) = request.split_once("\r\n\r\n").unwrap();
        assert!(head.contains(&format!("Content-Length: {}", body.len())), "{head}");
        let items: Vec<serde_json::Value> = serde_json::from_str(body).unwrap();
        assert_eq!(items.len(), 3);
        for (item, sequence) in items.iter().zip(5..) {
            assert_eq!(item["destination"], "http://127.0.0.1:2/x");
            assert_eq!(item["headers"]["Upstash-Delay"], "7d");
            let text = item["body"].as_str().unwrap();
            assert_eq!(text.len(), 256);
            assert_eq!(Marker::find(text.as_bytes()).map(|m| (m.run, m.sequence)), Some((7, sequence)));
        }
    }
}
