//! The publishers of `overload`: a closed loop that measures how much the server can store, and an open loop that
//! offers more. Start at [`Flood::capacity`] and [`Flood::offer`].

use super::scenario::{AUTHORIZATION, Bench, Target};
use crate::clock::{NS_PER_S, now_ns, seconds_between};
use crate::http::{Connection, split_url};
use crate::load::excerpt;
use crate::marker::{Marker, noise};
use crate::template::Template;
use anyhow::{Context, Result, bail};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::Duration;
use tokio::task::JoinSet;

/// Large, so that waiting requests would fill the memory of a server without limits.
const BODY_BYTES: usize = 32 * 1024;
/// Connections of the closed loop: twice as many as the server stores for a tenant at once, so that the next ones are
/// always waiting. Some may wait until they are rejected, and retry immediately.
const CAPACITY_CONNECTIONS: usize = 512;
/// Most connections of the open loop. A message that is due while all are busy is not offered. The server accepts
/// 10,000.
const CONNECTIONS_MAX: usize = 9_000;
/// Most open connections without a response, which the server may not have accepted yet. The kernel queues 4,096 of
/// them. It may drop or reset further ones, which says nothing about the server. A message that would need one more is
/// not offered.
const FRESH_MAX: usize = 1_024;
/// An idle connection is not reused after this time. The server closes connections that are idle for 10 s, and a
/// request at that moment would fail for an uninteresting reason.
const IDLE_MAX: Duration = Duration::from_secs(5);
/// Sleep of the open loop while nothing is due.
const TICK: Duration = Duration::from_millis(1);
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);

/// The state that the publishers share.
pub(super) struct Flood {
    pub(super) run: u32,
    template: Template,
    noise: Vec<u8>,
    next: AtomicU32,
}

/// The outcomes of the publishes.
#[derive(Default)]
pub(super) struct Totals {
    /// The numbers of messages with a 2xx response.
    pub(super) accepted: Vec<u32>,
    /// From their due time to that response.
    pub(super) latencies_ns: Vec<u64>,
    /// Rejections with `Retry-After` and a reason.
    pub(super) refused: u64,
    /// Other rejections.
    pub(super) unclear: u64,
    pub(super) broken: u64,
    /// Messages that were due while no connection was free and no more could be opened.
    pub(super) not_offered: u64,
    /// The first unexpected outcome.
    pub(super) first_problem: Option<String>,
    pub(super) seconds: f64,
}

/// The outcome of one publish.
enum Answer {
    Accepted { sequence: u32, took_ns: u64 },
    Refused,
    Unclear(String),
    Broken(String),
}

impl Totals {
    fn add(&mut self, answer: Answer) {
        match answer {
            Answer::Accepted { sequence, took_ns } => {
                self.accepted.push(sequence);
                self.latencies_ns.push(took_ns);
            }
            Answer::Refused => self.refused += 1,
            Answer::Unclear(problem) => {
                self.unclear += 1;
                self.first_problem.get_or_insert(problem);
            }
            Answer::Broken(problem) => {
                self.broken += 1;
                self.first_problem.get_or_insert(problem);
            }
        }
    }

    pub(super) fn offered(&self) -> f64 {
        self.accepted.len() as f64 + (self.refused + self.unclear + self.broken) as f64
    }

    pub(super) fn accepted_per_s(&self) -> f64 {
        self.accepted.len() as f64 / self.seconds.max(1e-9)
    }

    fn checked(self) -> Result<Self> {
        if self.accepted.is_empty() {
            let problem = self.first_problem.as_deref().unwrap_or("no problem was told");
            bail!("nothing was accepted: {} refused, {} broken, {problem}", self.refused, self.broken);
        }
        Ok(self)
    }
}

/// The idle connections of the open loop, with the start of their idle time. The next one to use is in front.
#[derive(Default)]
struct Pool {
    idle: VecDeque<(Connection, u64)>,
    /// Connections opened for a message that has no response yet.
    fresh: usize,
}

impl Pool {
    /// Returns a connection, or `Some(None)` as permission to open one while `busy` are in use. Returns `None` if there
    /// is neither.
    fn take(&mut self, now: u64, busy: usize) -> Option<Option<Connection>> {
        while let Some((connection, since_ns)) = self.idle.pop_front() {
            if seconds_between(since_ns, now) < IDLE_MAX.as_secs_f64() {
                return Some(Some(connection));
            }
        }
        let may_open = busy < CONNECTIONS_MAX && self.fresh < FRESH_MAX;
        self.fresh += usize::from(may_open);
        may_open.then_some(None)
    }

    fn give_back(&mut self, connection: Option<Connection>, is_fresh: bool, now: u64) {
        self.fresh -= usize::from(is_fresh);
        self.idle.extend(connection.map(|connection| (connection, now)));
    }
}

impl Flood {
    pub(super) fn new(bench: &Bench, target: &Target) -> Result<Self> {
        let url = format!("{}/v2/publish/{}/x", target.child.base, bench.sink());
        split_url(&url)?;
        let template = Template::new("POST", &url, &[AUTHORIZATION.to_owned()], "{{payload}}", BODY_BYTES)?;
        let noise = noise(256 * 1024 + BODY_BYTES * 2);
        Ok(Self { run: (now_ns() / 1_000_000) as u32, template, noise, next: AtomicU32::new(0) })
    }

    /// Closed loop: this many publishes are always in flight, and each response starts the next one.
    pub(super) async fn capacity(self: &Arc<Self>, time: Duration) -> Result<Totals> {
        let pool = self.connections(CAPACITY_CONNECTIONS).await?;
        let start_ns = now_ns();
        let end_ns = start_ns + time.as_nanos() as u64;
        let mut publishers = JoinSet::new();
        for (connection, _) in pool.idle {
            let flood = self.clone();
            publishers.spawn(async move {
                let (mut answers, mut connection) = (Vec::new(), Some(connection));
                while now_ns() < end_ns {
                    let answer;
                    (connection, answer) = flood.publish(connection.take(), now_ns()).await;
                    answers.push(answer);
                }
                answers
            });
        }
        let mut totals = Totals::default();
        while let Some(answers) = publishers.join_next().await {
            answers.context("a publisher ended early")?.into_iter().for_each(|answer| totals.add(answer));
        }
        totals.seconds = seconds_between(start_ns, now_ns());
        totals.checked()
    }

    /// Open loop: message i is due at i/rate, whatever the outcome of earlier ones is. Connections take turns, so that
    /// none is idle long enough to be closed. Calls `each_second` once per second.
    pub(super) async fn offer(
        self: &Arc<Self>,
        per_s: f64,
        time: Duration,
        mut each_second: impl FnMut(),
    ) -> Result<Totals> {
        let mut pool = self.connections((per_s as usize).min(CONNECTIONS_MAX)).await?;
        let mut totals = Totals::default();
        let mut under_way = JoinSet::new();
        let (start_ns, mut next, mut second) = (now_ns(), 0_u64, 0_u64);
        let end_ns = start_ns + time.as_nanos() as u64;
        let interval_ns = NS_PER_S as f64 / per_s;
        loop {
            let now = now_ns().min(end_ns);
            while let Some(done) = under_way.try_join_next() {
                let (is_fresh, (connection, answer)) = done.context("a publisher ended early")?;
                pool.give_back(connection, is_fresh, now);
                totals.add(answer);
            }
            loop {
                let due_ns = start_ns + (next as f64 * interval_ns) as u64;
                if due_ns >= now {
                    break;
                }
                next += 1;
                match pool.take(now, under_way.len()) {
                    Some(connection) => {
                        let (flood, is_fresh) = (self.clone(), connection.is_none());
                        under_way.spawn(async move { (is_fresh, flood.publish(connection, due_ns).await) });
                    }
                    None => totals.not_offered += 1,
                }
            }
            if now >= start_ns + second * NS_PER_S {
                second += 1;
                each_second();
            }
            if now == end_ns {
                break;
            }
            tokio::time::sleep(TICK).await;
        }
        totals.seconds = seconds_between(start_ns, now_ns());
        while let Some(done) = under_way.join_next().await {
            let (_, (_, answer)) = done.context("a publisher ended early")?;
            totals.add(answer);
        }
        totals.checked()
    }

    /// Opens this many connections that the server has accepted: each has got a response.
    async fn connections(&self, count: usize) -> Result<Pool> {
        let mut pool = Pool::default();
        while pool.idle.len() < count {
            let mut opening = JoinSet::new();
            for _ in pool.idle.len()..count.min(pool.idle.len() + FRESH_MAX) {
                let host = self.template.host.clone();
                opening.spawn(async move {
                    let mut connection = Connection::open(&host).await?;
                    connection.call(format!("GET /ready HTTP/1.1\r\nHost: {host}\r\n\r\n").as_bytes()).await?;
                    anyhow::Ok(connection)
                });
            }
            while let Some(opened) = opening.join_next().await {
                pool.idle.push_back((opened.context("a publisher ended early")??, now_ns()));
            }
        }
        Ok(pool)
    }

    /// Publishes one message, on a new connection if none is given. Returns the connection if it is reusable.
    async fn publish(&self, connection: Option<Connection>, due_ns: u64) -> (Option<Connection>, Answer) {
        let sequence = self.next.fetch_add(1, Relaxed);
        let mut template = self.template.clone();
        let call = async {
            let mut open = match connection {
                Some(open) => open,
                None => Connection::open(&template.host).await?,
            };
            let request = template.fill(Marker { run: self.run, sequence, sent_ns: due_ns }, &self.noise);
            let answer = open.call(request).await?;
            anyhow::Ok((open, answer))
        };
        match tokio::time::timeout(ANSWER_TIMEOUT, call).await {
            Ok(Ok((open, (200..300, _)))) => {
                (Some(open), Answer::Accepted { sequence, took_ns: now_ns().saturating_sub(due_ns) })
            }
            Ok(Ok((open, (status, body)))) => {
                let is_clear = [429, 503].contains(&status) && open.retry_after.is_some() && has_reason(&body);
                let unclear = || Answer::Unclear(format!("{status}: {}", excerpt(&body)));
                let answer = if is_clear { Answer::Refused } else { unclear() };
                (Some(open), answer)
            }
            Ok(Err(error)) => (None, Answer::Broken(format!("{error:#}"))),
            Err(_) => (None, Answer::Broken(format!("no answer in {ANSWER_TIMEOUT:?}"))),
        }
    }

    /// The slowest of a few sequential publishes, in milliseconds.
    pub(super) async fn probe(&self, publishes: usize) -> Result<f64> {
        let mut template = self.template.clone();
        let mut connection = Connection::open(&template.host).await?;
        let mut slowest_ms: f64 = 0.0;
        for _ in 0..publishes {
            let sequence = self.next.fetch_add(1, Relaxed);
            let start_ns = now_ns();
            // Probes have their own run number: nothing waits for their arrival.
            let marker = Marker { run: self.run.wrapping_add(1), sequence, sent_ns: start_ns };
            let (status, _) = connection.call(template.fill(marker, &self.noise)).await?;
            let took_ms = if status < 300 { (now_ns() - start_ns) as f64 / 1e6 } else { f64::INFINITY };
            slowest_ms = slowest_ms.max(took_ms);
        }
        Ok(slowest_ms)
    }
}

/// `{"error": "…"}` with a text.
fn has_reason(body: &[u8]) -> bool {
    let json: Option<serde_json::Value> = serde_json::from_slice(body).ok();
    json.is_some_and(|json| json["error"].as_str().is_some_and(|text| !text.is_empty()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_needs_a_reason() {
        assert!(has_reason(br#"{"error":"too many"}"#));
        for body in [&b""[..], b"{}", br#"{"error":""}"#, br#"{"error":1}"#, b"too many"] {
            assert!(!has_reason(body));
        }
    }

    #[tokio::test]
    async fn connections_are_used_in_turn_until_they_are_old_and_few_are_opened_at_a_time() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let host = listener.local_addr().unwrap().to_string();
        let mut pool = Pool::default();
        let since_ns = now_ns();
        for _ in 0..2 {
            pool.give_back(Some(Connection::open(&host).await.unwrap()), false, since_ns);
        }
        assert!(pool.take(since_ns + NS_PER_S, 0).unwrap().is_some());
        let late_ns = since_ns + IDLE_MAX.as_nanos() as u64;
        assert!(pool.take(late_ns, CONNECTIONS_MAX).is_none(), "the other is too old, and no more may be opened");
        for _ in 0..FRESH_MAX {
            assert!(pool.take(late_ns, 0).unwrap().is_none(), "one may be opened");
        }
        assert!(pool.take(late_ns, 0).is_none(), "so many have not been accepted yet");
        pool.give_back(None, true, late_ns);
        assert!(pool.take(late_ns, 0).unwrap().is_none());
    }

    #[test]
    fn all_offered_messages_count_and_the_first_problem_is_recorded() {
        let mut totals = Totals { seconds: 2.0, ..Totals::default() };
        let problems = [Answer::Broken("first".into()), Answer::Unclear("second".into())];
        let accepted = [7, 9].map(|sequence| Answer::Accepted { sequence, took_ns: 5 });
        problems.into_iter().chain(accepted).chain([Answer::Refused]).for_each(|answer| totals.add(answer));
        assert_eq!((totals.offered(), totals.accepted_per_s()), (5.0, 1.0));
        assert_eq!((totals.refused, totals.unclear, totals.broken), (1, 1, 1));
        assert_eq!(totals.first_problem.as_deref(), Some("first"));
        assert!(totals.checked().is_ok() && Totals::default().checked().is_err());
    }
}
