//! What the server counts, in Prometheus text at `/metrics`.

use posthaste_engine::event::Op;
use posthaste_engine::outcome::{ErrorClass, Outcome, Verdict};
use posthaste_engine::shard::Accepted;
use posthaste_engine::workflow::Change;
use posthaste_engine::workflow::run::RunState;
use posthaste_store::{Counts, Durability};
use posthaste_wire::time::Timestamp;
use prometheus_client::encoding::{EncodeLabelSet, text};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Every metric of the server.
pub struct Metrics {
    registry: Registry,
    published: Family<PublishLabel, Counter>,
    attempts: Family<AttemptLabel, Counter>,
    attempt_seconds: Histogram,
    request_seconds: Family<RequestLabel, Histogram>,
    cancelled: Counter,
    dead_lettered: Counter,
    pending: Gauge,
    dead_letters: Gauge,
    /// Failed runs among them.
    runs_in_dlq: AtomicU64,
    in_flight: Gauge,
    held: Gauge,
    commit_ops: Histogram,
    commit_seconds: Family<CommitLabel, Histogram>,
    runs_started: Counter,
    runs_ended: Family<RunLabel, Counter>,
    runs_live: Gauge,
    steps_accepted: Counter,
    recent: Mutex<Recent>,
}

/// Texts that are made anew in a second; more requests get the last one.
const METRICS_PER_SECOND_MAX: u32 = 20;

/// The text that was made last.
#[derive(Default)]
struct Recent {
    second: u64,
    made: u32,
    text: Option<Arc<str>>,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct PublishLabel {
    result: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct AttemptLabel {
    outcome: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct RequestLabel {
    route: &'static str,
    status: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct CommitLabel {
    durability: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct RunLabel {
    state: &'static str,
}

impl Metrics {
    /// Metrics that all stand at zero.
    pub fn new() -> Metrics {
        let metrics = Metrics {
            registry: Registry::with_prefix("posthaste"),
            published: Family::default(),
            attempts: Family::default(),
            attempt_seconds: seconds_histogram(),
            request_seconds: Family::new_with_constructor(seconds_histogram),
            cancelled: Counter::default(),
            dead_lettered: Counter::default(),
            pending: Gauge::default(),
            dead_letters: Gauge::default(),
            runs_in_dlq: AtomicU64::new(0),
            in_flight: Gauge::default(),
            held: Gauge::default(),
            commit_ops: Histogram::new(exponential_buckets(1.0, 2.0, 14)),
            commit_seconds: Family::new_with_constructor(seconds_histogram),
            runs_started: Counter::default(),
            runs_ended: Family::default(),
            runs_live: Gauge::default(),
            steps_accepted: Counter::default(),
            recent: Mutex::default(),
        };
        for state in ["success", "failed", "canceled"] {
            // Who waits for the first failure needs the zero before it.
            metrics.runs_ended.get_or_create(&RunLabel { state }).inc_by(0);
        }
        metrics.registered()
    }

    fn registered(mut self) -> Metrics {
        let r = &mut self.registry;
        r.register("published", "Published messages, by result: accepted or deduplicated", self.published.clone());
        r.register("attempts", "Finished delivery attempts, by outcome", self.attempts.clone());
        r.register("attempt_seconds", "Duration of delivery attempts in seconds", self.attempt_seconds.clone());
        r.register(
            "request_seconds",
            "Duration of API requests in seconds, by route and status",
            self.request_seconds.clone(),
        );
        r.register("cancelled", "Cancelled messages", self.cancelled.clone());
        r.register("dead_lettered", "Messages and workflow runs moved to the DLQ", self.dead_lettered.clone());
        r.register("pending", "Messages that have not ended", self.pending.clone());
        r.register("dead_letters", "Messages and failed workflow runs in the DLQ", self.dead_letters.clone());
        r.register("in_flight", "Delivery attempts in flight", self.in_flight.clone());
        r.register("held", "Messages held in RAM", self.held.clone());
        r.register("commit_ops", "Operations per commit", self.commit_ops.clone());
        r.register(
            "commit_seconds",
            "Duration of commits in seconds, by durability: synced (with fsync) or lazy",
            self.commit_seconds.clone(),
        );
        let ended = "Finished workflow runs, by state: success, failed or canceled";
        r.register("runs_started", "Started workflow runs", self.runs_started.clone());
        r.register("runs_ended", ended, self.runs_ended.clone());
        r.register("runs_live", "Active workflow runs", self.runs_live.clone());
        r.register("steps_accepted", "Entries appended to workflow runs", self.steps_accepted.clone());
        self
    }

    /// The last text, if enough were made in this second: in `dev` anybody may ask for it, and it takes a query.
    pub(crate) fn recent_text(&self, now: Timestamp) -> Option<Arc<str>> {
        let second = now.as_millis() / 1_000;
        let mut recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        if recent.second != second {
            *recent = Recent { second, ..Recent::default() };
        }
        recent.text.clone().filter(|_| recent.made >= METRICS_PER_SECOND_MAX)
    }

    /// Remembers a text.
    pub(crate) fn keep_text(&self, text: Arc<str>) {
        let mut recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        recent.made += 1;
        recent.text = Some(text);
    }

    pub(crate) fn published(&self, accepted: &[Accepted]) {
        let duplicates = accepted.iter().filter(|accepted| accepted.deduplicated).count();
        self.published.get_or_create(&PublishLabel { result: "accepted" }).inc_by((accepted.len() - duplicates) as u64);
        if duplicates > 0 {
            self.published.get_or_create(&PublishLabel { result: "deduplicated" }).inc_by(duplicates as u64);
        }
    }

    pub(crate) fn attempted(&self, outcome: &Outcome, took: Duration) {
        self.attempts.get_or_create(&AttemptLabel { outcome: outcome_kind(outcome) }).inc();
        self.attempt_seconds.observe(took.as_secs_f64());
    }

    pub(crate) fn requested(&self, route: &'static str, status: u16, took: Duration) {
        let status = match status {
            ..300 => "2xx",
            300..400 => "3xx",
            400..500 => "4xx",
            500.. => "5xx",
        };
        self.request_seconds.get_or_create(&RequestLabel { route, status }).observe(took.as_secs_f64());
    }

    pub(crate) fn cancelled(&self, count: u32) {
        self.cancelled.inc_by(u64::from(count));
    }

    pub(crate) fn committed(&self, ops: &[Op], durability: Durability, took: Duration) {
        let durability = match durability {
            Durability::Synced => "synced",
            Durability::Lazy => "lazy",
        };
        self.commit_ops.observe(ops.len() as f64);
        self.commit_seconds.get_or_create(&CommitLabel { durability }).observe(took.as_secs_f64());
        let buried = ops.iter().filter(|op| matches!(op, Op::InsertDeadLetter(_))).count();
        self.dead_lettered.inc_by(buried as u64);
    }

    pub(crate) fn set_load(&self, in_flight: u32, held: usize) {
        self.in_flight.set(i64::from(in_flight));
        self.held.set(held as i64);
    }

    /// Runs that went on when the process started, and failed runs in the DLQ.
    pub(crate) fn set_runs(&self, live: u64, failed: u64) {
        self.runs_live.set(live as i64);
        self.runs_in_dlq.store(failed, Ordering::Relaxed);
    }

    /// A run went to the DLQ.
    pub(crate) fn run_dead_lettered(&self) {
        self.dead_lettered.inc();
        self.runs_in_dlq.fetch_add(1, Ordering::Relaxed);
    }

    /// Runs left the DLQ: they were resumed, restarted, deleted or dropped after their retention.
    pub(crate) fn runs_left_dlq(&self, count: u64) {
        let less = |runs: u64| Some(runs.saturating_sub(count));
        // The closure always gives a value.
        let _ = self.runs_in_dlq.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
    }

    pub(crate) fn run_started(&self) {
        self.runs_started.inc();
        self.runs_live.inc();
    }

    /// A run that was in one state has made these changes, and is in another or the same.
    pub(crate) fn run_decided(&self, before: RunState, after: RunState, changes: &[Change]) {
        // The first entry is the trigger, which may come twice.
        let is_step = |change: &&Change| matches!(change, Change::Entry { entry, .. } if entry.index > 0);
        self.steps_accepted.inc_by(changes.iter().filter(is_step).count() as u64);
        let state = match after {
            _ if before != RunState::Started => return,
            RunState::Started => return,
            RunState::Success => "success",
            RunState::Failed => "failed",
            RunState::Canceled => "canceled",
        };
        self.runs_ended.get_or_create(&RunLabel { state }).inc();
        self.runs_live.dec();
    }

    /// The text that a scrape gets.
    pub fn text(&self, counts: Counts) -> Result<String, fmt::Error> {
        self.pending.set(counts.live as i64);
        self.dead_letters.set((counts.dead_letters + self.runs_in_dlq.load(Ordering::Relaxed)) as i64);
        let mut out = String::new();
        text::encode(&mut out, &self.registry)?;
        Ok(out)
    }
}

impl Default for Metrics {
    fn default() -> Self {
        Metrics::new()
    }
}

fn seconds_histogram() -> Histogram {
    Histogram::new(exponential_buckets(0.000_25, 2.0, 18))
}

fn outcome_kind(outcome: &Outcome) -> &'static str {
    match (&outcome.result, outcome.verdict()) {
        (_, Verdict::Success) => "delivered",
        (_, Verdict::Refused) => "refused",
        (Ok(_), Verdict::Failure) => "failed_status",
        (Err(error), Verdict::Failure) => match error.class {
            ErrorClass::Dns => "failed_dns",
            ErrorClass::Blocked => "failed_blocked",
            ErrorClass::Connect => "failed_connect",
            ErrorClass::Tls => "failed_tls",
            ErrorClass::Timeout => "failed_timeout",
            ErrorClass::Protocol => "failed_protocol",
            ErrorClass::Closed => "failed_closed",
        },
    }
}
