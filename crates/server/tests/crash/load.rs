//! Publishers: many at once, each with its own mix, each noting what it asked and what it was told.

use crate::client::{Client, Response};
use crate::endpoint::{Endpoint, Script, run_id};
use crate::history::{
    Answer, FLOWS, FlowLimits, History, Kind, LONG_WINDOW, Publish, QUEUE_SLOTS, SHORT_WINDOW, Start, Terms,
};
use crate::random::Random;
use crate::witness::{Witness, body_of, flow_name, member_key};
use bytes::Bytes;
use hyper::Method;
use serde_json::{Value, json};
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
    /// Where runs of workflows are executed.
    pub(crate) endpoint: Arc<Endpoint>,
    /// How many schedules there are.
    pub(crate) schedules: usize,
    history: Mutex<History>,
    keys: AtomicU64,
}

impl Load {
    pub(crate) fn new(witness: Arc<Witness>, schedules: usize) -> Arc<Load> {
        Arc::new(Load {
            client: Client::new(),
            endpoint: Endpoint::start(witness.clone()),
            witness,
            phase: watch::Sender::new(Phase::Down),
            acknowledged: watch::Sender::new(0),
            schedules,
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
                0..14 => self.one(server, Kind::Plain { delay_ms: 0 }).await,
                14..22 => self.run(server, &mut random).await,
                22..34 => self.one(server, Kind::Plain { delay_ms: random.below(4) * 1_000 }).await,
                34..44 => self.one(server, Kind::Flaky).await,
                44..51 => self.one(server, Kind::Dead { retries: random.below(2) as u32 }).await,
                51..58 => self.cancelled(server, 2_000 + random.below(2) * 1_000).await,
                58..66 => self.twice(server).await,
                66..72 => self.batch(server, 2 + random.below(8)).await,
                72..88 => self.queued(server, &mut random).await,
                88..94 => self.throttled(server, &mut random).await,
                _ => self.group(server).await,
            }
        }
    }

    /// Waits for a server; `None` when the run is over.
    pub(crate) async fn server(&self) -> Option<SocketAddr> {
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
        self.publish(server, &key, kind, Terms::default()).await;
    }

    /// Through a queue: most are delivered at once, some are retried, some fail, some tell how they went.
    async fn queued(&self, server: SocketAddr, random: &mut Random) {
        let terms = Terms {
            queue: Some(random.below(QUEUE_SLOTS.len() as u64) as usize),
            flow: (random.below(6) == 0).then_some(PARALLEL),
            callback: random.below(3) == 0,
        };
        let key = self.new_key();
        self.publish(server, &key, eventful(random), terms).await;
    }

    /// Under a flow-control key.
    async fn throttled(&self, server: SocketAddr, random: &mut Random) {
        let flow = match random.below(10) {
            0..6 => SHORT_WINDOW,
            6..9 => PARALLEL,
            _ => LONG_WINDOW,
        };
        let terms = Terms { flow: Some(flow), callback: random.below(8) == 0, ..Terms::default() };
        let key = self.new_key();
        self.publish(server, &key, eventful(random), terms).await;
    }

    /// A run of a workflow; some are cancelled, and some get the event early that they will wait for.
    async fn run(&self, server: SocketAddr, random: &mut Random) {
        let script = Script::ALL[random.below(Script::ALL.len() as u64) as usize];
        let (key, sent_at) = (self.new_key(), self.witness.now());
        let batch = self.endpoint.trigger(script, &key);
        let response = self.client.send(Method::POST, server, "/v2/batch", &[], batch.into()).await;
        let answer = answer_of(response.as_ref(), |told| told[0]["messageId"].as_str().map(str::to_owned));
        let is_acknowledged = answer.id().is_some();
        if answer == Answer::Unknown {
            self.is_gone(server);
        }
        let start = Start { key: key.clone(), script, sent_at, answered_at: self.witness.now(), answer };
        self.note(|history| history.runs.push(start));
        if !is_acknowledged {
            return;
        }
        self.acknowledged.send_modify(|count| *count += 1);
        if random.below(CANCELLED_RUNS) == 0 {
            self.note(|history| history.run_cancels.extend([key.clone()]));
            let target = format!("/v2/workflows/runs/{}?cancel=true", run_id(&key));
            // Unanswered or not: it may be cancelled.
            drop(self.client.send(Method::DELETE, server, &target, &[], Bytes::new()).await);
        } else if script == Script::Wait && random.below(2) == 0 {
            // It is kept until the run waits for it; should it get lost, the wait ends by itself.
            let target = format!("/v2/notify/{}/{key}", run_id(&key));
            drop(self.client.send(Method::POST, server, &target, &[], key.into()).await);
        }
    }

    /// To every endpoint of the group.
    async fn group(&self, server: SocketAddr) {
        let (key, sent_at) = (self.new_key(), self.witness.now());
        let target = format!("/v2/publish/{GROUP}");
        let headers = headers(self, &key, Kind::Member, Terms::default());
        let response = self.client.send(Method::POST, server, &target, &headers, body_of(&key).into()).await;
        for place in 0..GROUP_SIZE {
            let answer = answer_of(response.as_ref(), |told| told[place]["messageId"].as_str().map(str::to_owned));
            let key = member_key(&key, &place.to_string());
            let publish = Publish {
                key,
                kind: Kind::Member,
                terms: Terms::default(),
                sent_at,
                answered_at: self.witness.now(),
                answer,
            };
            self.answered(server, publish);
        }
    }

    /// Publishes and cancels at once, long before the message is due.
    async fn cancelled(&self, server: SocketAddr, delay_ms: u64) {
        let key = self.new_key();
        let Answer::Acknowledged { id } =
            self.publish(server, &key, Kind::Cancelled { delay_ms }, Terms::default()).await
        else {
            return;
        };
        self.note(|history| {
            history.cancel_sent.insert(id.clone());
        });
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
        let publish = || self.publish(server, &key, Kind::Dedup, Terms::default());
        let (mut first, second) = tokio::join!(publish(), publish());
        if first == Answer::Unknown {
            first = second;
        }
        while first == Answer::Unknown {
            let Some(server) = self.server().await else { return };
            first = self.publish(server, &key, Kind::Dedup, Terms::default()).await;
        }
    }

    async fn publish(&self, server: SocketAddr, key: &str, kind: Kind, terms: Terms) -> Answer {
        let sent_at = self.witness.now();
        let url = self.url(key, kind, terms);
        let target = match terms.queue {
            Some(queue) => format!("/v2/enqueue/{}/{url}", queue_name(queue)),
            None => format!("/v2/publish/{url}"),
        };
        let headers = headers(self, key, kind, terms);
        let response = self.client.send(Method::POST, server, &target, &headers, body_of(key).into()).await;
        let answer = answer_of(response.as_ref(), |told| told["messageId"].as_str().map(str::to_owned));
        let answered_at = self.witness.now();
        let publish = Publish { key: key.to_owned(), kind, terms, sent_at, answered_at, answer: answer.clone() };
        self.answered(server, publish);
        answer
    }

    async fn batch(&self, server: SocketAddr, count: u64) {
        self.batch_of(server, count, Kind::Plain { delay_ms: 0 }, json!({})).await;
    }

    /// A batch of messages of one kind, all with the same headers.
    pub(crate) async fn batch_of(&self, server: SocketAddr, count: u64, kind: Kind, headers: Value) {
        let sent_at = self.witness.now();
        let keys: Vec<String> = (0..count).map(|_| self.new_key()).collect();
        let item = |key: &String| {
            let destination = self.url(key, kind, Terms::default());
            json!({ "destination": destination, "body": body_of(key), "headers": headers })
        };
        let body = Value::from(keys.iter().map(item).collect::<Vec<_>>()).to_string();
        let response = self.client.send(Method::POST, server, "/v2/batch", &[], body.into()).await;
        for (index, key) in keys.into_iter().enumerate() {
            let answer = answer_of(response.as_ref(), |told| told[index]["messageId"].as_str().map(str::to_owned));
            let (terms, answered_at) = (Terms::default(), self.witness.now());
            self.answered(server, Publish { key, kind, terms, sent_at, answered_at, answer });
        }
    }

    fn url(&self, key: &str, kind: Kind, terms: Terms) -> String {
        let path = match kind {
            Kind::Plain { .. } | Kind::Cancelled { .. } | Kind::Dedup | Kind::Member => "plain",
            Kind::Flaky | Kind::Revived => "flaky",
            Kind::Dead { .. } | Kind::Buried => "dead",
        };
        let url = format!("http://{}/{path}/{key}", self.witness.address);
        match (terms.queue, terms.flow) {
            (None, None) => url,
            (_, Some(flow)) => format!("{url}/{LIMITED_PAUSE_MS}/{}", flow_name(flow)),
            (Some(_), None) => format!("{url}/{LIMITED_PAUSE_MS}"),
        }
    }

    fn answered(&self, server: SocketAddr, publish: Publish) {
        let acknowledged = matches!(publish.answer, Answer::Acknowledged { .. });
        if publish.answer == Answer::Unknown {
            self.is_gone(server);
        }
        self.note(|history| history.publishes.push(publish));
        if acknowledged {
            self.acknowledged.send_modify(|count| *count += 1);
        }
    }

    /// Nobody asks a server any more that did not answer.
    fn is_gone(&self, server: SocketAddr) {
        self.phase.send_if_modified(|phase| {
            let is_its = *phase == Phase::Up(server);
            if is_its {
                *phase = Phase::Down;
            }
            is_its
        });
    }

    pub(crate) fn note(&self, note: impl FnOnce(&mut History)) {
        note(&mut self.history.lock().expect("no publisher panics"));
    }
}

/// The URL group of a run, and how many endpoints it has.
pub(crate) const GROUP: &str = "crew";
pub(crate) const GROUP_SIZE: usize = 3;
/// One run in this many is cancelled.
const CANCELLED_RUNS: u64 = 10;
/// The flow-control key that limits only how many are under way.
const PARALLEL: usize = 1;
/// How long the witness takes to answer a message of a queue or a flow-control key.
const LIMITED_PAUSE_MS: u64 = 4;

pub(crate) fn queue_name(queue: usize) -> String {
    format!("q{queue}")
}

/// The value of the header that brings these limits.
pub(crate) fn flow_value(limits: FlowLimits) -> String {
    let parallelism = limits.parallelism.map(|parallelism| format!("parallelism={parallelism}"));
    let rate = limits.rate.map(|(rate, period_ms)| format!("rate={rate},period={}s", period_ms / 1_000));
    parallelism.into_iter().chain(rate).collect::<Vec<_>>().join(",")
}

/// A kind that makes something happen in a queue.
fn eventful(random: &mut Random) -> Kind {
    match random.below(8) {
        0 => Kind::Flaky,
        1 => Kind::Dead { retries: random.below(2) as u32 },
        _ => Kind::Plain { delay_ms: 0 },
    }
}

fn headers(load: &Load, key: &str, kind: Kind, terms: Terms) -> Vec<(&'static str, String)> {
    let retries = if let Kind::Dead { retries } = kind { retries } else { 5 };
    let mut headers = vec![("upstash-retries", retries.to_string()), ("upstash-retry-delay", "50".to_owned())];
    if kind.delay_ms() > 0 {
        headers.push(("upstash-delay", format!("{}s", kind.delay_ms() / 1_000)));
    }
    if kind == Kind::Dedup {
        headers.push(("upstash-deduplication-id", key.to_owned()));
    }
    if let Some(flow) = terms.flow {
        headers.push(("upstash-flow-control-key", flow_name(flow)));
        headers.push(("upstash-flow-control-value", flow_value(FLOWS[flow])));
    }
    if terms.callback {
        let url = format!("http://{}/callback/{key}", load.witness.address);
        headers.extend([("upstash-callback", url.clone()), ("upstash-failure-callback", url)]);
    }
    headers
}

fn answer_of(response: Option<&Response>, id: impl FnOnce(&Value) -> Option<String>) -> Answer {
    let Some(response) = response else { return Answer::Unknown };
    let unexpected = || Answer::Unexpected(format!("{} {}", response.status, String::from_utf8_lossy(&response.body)));
    match response.status {
        200 | 202 => id(&response.json()).map_or_else(unexpected, |id| Answer::Acknowledged { id }),
        503 => Answer::Overloaded,
        _ => unexpected(),
    }
}
