//! Publishers: many at once, each with its own mix, each noting what it asked and what it was told.

use crate::client::{Client, Response};
use crate::history::{Answer, History, Kind, Publish};
use crate::random::Random;
use crate::witness::{Witness, body_of};
use bytes::Bytes;
use hyper::Method;
use serde_json::json;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use tokio::sync::watch;

/// Whether there is a server to talk to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    Down,
    Up(SocketAddr),
    Over,
}

pub(crate) struct Load {
    pub(crate) client: Client,
    pub(crate) witness: Arc<Witness>,
    pub(crate) phase: watch::Sender<Phase>,
    /// Publishes acknowledged so far.
    pub(crate) acknowledged: watch::Sender<u64>,
    history: Mutex<History>,
    keys: AtomicU64,
}

impl Load {
    pub(crate) fn new(witness: Arc<Witness>) -> Arc<Load> {
        Arc::new(Load {
            client: Client::new(),
            witness,
            phase: watch::Sender::new(Phase::Down),
            acknowledged: watch::Sender::new(0),
            history: Mutex::default(),
            keys: AtomicU64::new(0),
        })
    }

    /// What the publishers have noted.
    pub(crate) fn history(&self) -> History {
        self.history.lock().expect("no publisher panics").clone()
    }

    /// Publishes until the run is over.
    pub(crate) async fn publish_all(self: Arc<Load>, mut random: Random) {
        while let Some(server) = self.server().await {
            match random.below(100) {
                0..30 => self.one(server, Kind::Plain { delay_ms: 0 }).await,
                30..45 => self.one(server, Kind::Plain { delay_ms: random.below(4) * 1_000 }).await,
                45..60 => self.one(server, Kind::Flaky).await,
                60..70 => self.one(server, Kind::Dead { retries: random.below(2) as u32 }).await,
                70..80 => self.cancelled(server, 2_000 + random.below(2) * 1_000).await,
                80..90 => self.twice(server).await,
                _ => self.batch(server, 2 + random.below(8)).await,
            }
        }
    }

    /// Waits for a server; `None` when the run is over.
    async fn server(&self) -> Option<SocketAddr> {
        let mut phase = self.phase.subscribe();
        let phase = *phase.wait_for(|phase| *phase != Phase::Down).await.ok()?;
        match phase {
            Phase::Up(address) => Some(address),
            Phase::Down | Phase::Over => None,
        }
    }

    fn new_key(&self) -> String {
        format!("k{}", self.keys.fetch_add(1, Ordering::Relaxed))
    }

    async fn one(&self, server: SocketAddr, kind: Kind) {
        let key = self.new_key();
        self.publish(server, &key, kind).await;
    }

    /// Publishes and cancels at once, long before the message is due.
    async fn cancelled(&self, server: SocketAddr, delay_ms: u64) {
        let key = self.new_key();
        let Answer::Acknowledged { id } = self.publish(server, &key, Kind::Cancelled { delay_ms }).await else {
            return;
        };
        self.note(|history| history.cancel_sent.push(id.clone()));
        let target = format!("/v2/messages/{id}");
        let answer = self.client.send(Method::DELETE, server, &target, &[], Bytes::new()).await;
        if answer.is_some_and(|answer| answer.status == 202) {
            let at = self.witness.now();
            self.note(|history| {
                history.cancels.insert(id, at);
            });
        }
    }

    /// Publishes under one deduplication id: twice at the same time, and again until it is acknowledged, as
    /// a careful publisher does whose first answers were lost in a crash.
    async fn twice(&self, server: SocketAddr) {
        let key = self.new_key();
        let publish = || self.publish(server, &key, Kind::Dedup);
        let (mut first, second) = tokio::join!(publish(), publish());
        if first == Answer::Unknown {
            first = second;
        }
        while first == Answer::Unknown {
            let Some(server) = self.server().await else { return };
            first = self.publish(server, &key, Kind::Dedup).await;
        }
    }

    async fn publish(&self, server: SocketAddr, key: &str, kind: Kind) -> Answer {
        let sent_at = self.witness.now();
        let target = format!("/v2/publish/{}", self.url(key, kind));
        let headers = headers(key, kind);
        let response = self.client.send(Method::POST, server, &target, &headers, body_of(key).into()).await;
        let answer = match response {
            None => Answer::Unknown,
            Some(response) => answer_of(&response, |response| response.json()["messageId"].as_str().map(str::to_owned)),
        };
        self.answered(Publish { key: key.to_owned(), kind, sent_at, answer: answer.clone() });
        answer
    }

    async fn batch(&self, server: SocketAddr, count: u64) {
        let sent_at = self.witness.now();
        let keys: Vec<String> = (0..count).map(|_| self.new_key()).collect();
        let kind = Kind::Plain { delay_ms: 0 };
        let item = |key: &String| json!({ "destination": self.url(key, kind), "body": body_of(key) });
        let body = serde_json::Value::from(keys.iter().map(item).collect::<Vec<_>>()).to_string();
        let response = self.client.send(Method::POST, server, "/v2/batch", &[], body.into()).await;
        for (index, key) in keys.into_iter().enumerate() {
            let answer = match &response {
                None => Answer::Unknown,
                Some(response) => {
                    answer_of(response, |response| response.json()[index]["messageId"].as_str().map(str::to_owned))
                }
            };
            self.answered(Publish { key, kind, sent_at, answer });
        }
    }

    fn url(&self, key: &str, kind: Kind) -> String {
        let path = match kind {
            Kind::Plain { .. } | Kind::Cancelled { .. } | Kind::Dedup => "plain",
            Kind::Flaky => "flaky",
            Kind::Dead { .. } => "dead",
        };
        format!("http://{}/{path}/{key}", self.witness.address)
    }

    fn answered(&self, publish: Publish) {
        let acknowledged = matches!(publish.answer, Answer::Acknowledged { .. });
        self.note(|history| history.publishes.push(publish));
        if acknowledged {
            self.acknowledged.send_modify(|count| *count += 1);
        }
    }

    fn note(&self, note: impl FnOnce(&mut History)) {
        note(&mut self.history.lock().expect("no publisher panics"));
    }
}

fn headers(key: &str, kind: Kind) -> Vec<(&'static str, String)> {
    let retries = if let Kind::Dead { retries } = kind { retries } else { 5 };
    let mut headers = vec![("upstash-retries", retries.to_string()), ("upstash-retry-delay", "50".to_owned())];
    if kind.delay_ms() > 0 {
        headers.push(("upstash-delay", format!("{}s", kind.delay_ms() / 1_000)));
    }
    if kind == Kind::Dedup {
        headers.push(("upstash-deduplication-id", key.to_owned()));
    }
    headers
}

fn answer_of(response: &Response, id: impl FnOnce(&Response) -> Option<String>) -> Answer {
    let unexpected = || Answer::Unexpected(format!("{} {}", response.status, String::from_utf8_lossy(&response.body)));
    match response.status {
        200 | 202 => id(response).map_or_else(unexpected, |id| Answer::Acknowledged { id }),
        503 => Answer::Overloaded,
        _ => unexpected(),
    }
}
