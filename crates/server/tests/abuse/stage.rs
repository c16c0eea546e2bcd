//! One case from start to end: a server of its own, a neighbour, the attack, and the measurements.

use crate::client::{ATTACKER, NEIGHBOUR, Reply, exchange_within, request};
use crate::neighbour::{Neighbour, Seen};
use crate::plan::Plan;
use crate::server::{ATTACKER_TOKEN, Server, Used};
use crate::sink::Sink;
use crate::small_disk::SmallDisk;
use std::future::Future;
use std::io;
use std::path::Path;
use std::pin::Pin;
use std::time::Duration;
use tokio::time::{Instant, timeout, timeout_at};

/// How long one request of an attack may take.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);
/// The neighbour works at least this long: enough requests for a percentile.
const WATCHED_MIN: Duration = Duration::from_secs(3);
/// The neighbour works this long before and after an attack.
const MARGIN: Duration = Duration::from_millis(300);
/// How long the server may take to answer `/health` at the end.
const HEALTH_PATIENCE: Duration = Duration::from_secs(5);

/// The result of an attack, as the attacker sees it.
#[derive(Debug, Default)]
pub(crate) struct Attack {
    /// Bytes that the attacker has sent.
    pub(crate) bytes: u64,
    /// Responses, or their absence, that break a rule.
    pub(crate) complaints: Vec<String>,
    /// For people.
    pub(crate) notes: Vec<String>,
}

impl Attack {
    pub(crate) fn complain(&mut self, problem: impl Into<String>) {
        self.complaints.push(problem.into());
    }

    pub(crate) fn note(&mut self, note: impl Into<String>) {
        self.notes.push(note.into());
    }
}

pub(crate) type Step = for<'a> fn(&'a Stage) -> Pin<Box<dyn Future<Output = Attack> + Send + 'a>>;

/// A server and what is around it.
pub(crate) struct Stage {
    pub(crate) server: Server,
    pub(crate) sink: Sink,
    pub(crate) disk: Option<SmallDisk>,
    pub(crate) plan: Plan,
    _directory: tempfile::TempDir,
}

impl Stage {
    /// A fresh server; on a disk of this many bytes, if given.
    pub(crate) async fn set(plan: &Plan, settings: &str, disk_bytes: Option<u64>) -> Result<Stage, String> {
        let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).map_err(|error| error.to_string())?;
        let disk = disk_bytes.map(SmallDisk::mount).transpose()?;
        let place: &Path = disk.as_ref().map_or(directory.path(), SmallDisk::path);
        let server = Server::start(&plan.binary, place, settings);
        Ok(Stage { server, sink: Sink::start().await, disk, plan: plan.clone(), _directory: directory })
    }

    /// A request of the attacker, with its token.
    pub(crate) async fn attack(
        &self,
        method: &str,
        target: &str,
        headers: &str,
        body: &[u8],
    ) -> (u64, io::Result<Reply>) {
        let request = request(method, target, Some(ATTACKER_TOKEN), &format!("{headers}Connection: close\r\n"), body);
        let reply = exchange_within(PATIENCE, ATTACKER, self.server.address, &request).await;
        (request.len() as u64, reply)
    }

    /// A request that has to succeed before an attack can begin.
    pub(crate) async fn prepare(&self, method: &str, target: &str, headers: &str, body: &[u8]) {
        let (_, reply) = self.attack(method, target, headers, body).await;
        match reply {
            Ok(reply) if reply.is_success() => {}
            Ok(reply) => panic!("{method} {target}: {} {}", reply.status, reply.text()),
            Err(error) => panic!("{method} {target}: {error}"),
        }
    }

    /// Whether the process runs and answers.
    async fn is_healthy(&self) -> Result<(), String> {
        if let Some(status) = self.server.ended() {
            return Err(format!("the server has ended ({status}):\n{}", self.server.last_words()));
        }
        let health = request("GET", "/health", None, "Connection: close\r\n", b"");
        match exchange_within(HEALTH_PATIENCE, NEIGHBOUR, self.server.address, &health).await {
            Ok(reply) if reply.status == 200 => Ok(()),
            Ok(reply) => Err(format!("/health answers {}", reply.status)),
            Err(error) => Err(format!("/health does not answer: {error}")),
        }
    }
}

/// Everything that was measured in one case.
pub(crate) struct Measured {
    pub(crate) attack: Attack,
    pub(crate) used: Used,
    /// `None` when there was no neighbour.
    pub(crate) seen: Option<Seen>,
}

/// Whether a case has a neighbour. One that measures processor time to the microsecond must have none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Beside {
    Neighbour,
    Nobody,
}

/// Runs an attack and measures, beside a neighbour of this many publishes and reads per second. After `limit` the attack is over, whatever it still wanted.
pub(crate) async fn perform(stage: &Stage, attack: Step, limit: Duration, rate: Option<u32>) -> Measured {
    let neighbour = rate.map(|rate| Neighbour::start(stage.server.address, rate));
    crate::client::elapse(MARGIN).await;
    let watch = stage.server.watch(stage.plan.kill_bytes);
    let until = Instant::now() + WATCHED_MIN;
    let mut attack = timeout(limit, attack(stage)).await.unwrap_or_else(|_| {
        let mut attack = Attack::default();
        attack.complain(format!("the attack was not over after {} s", limit.as_secs()));
        attack
    });
    crate::client::elapse(MARGIN).await;
    if neighbour.is_some() {
        drop(timeout_at(until, std::future::pending::<()>()).await);
    }
    let seen = match neighbour {
        Some(neighbour) => Some(neighbour.end().await),
        None => None,
    };
    let used = watch.end();
    match used.was_killed {
        true => attack.complain(format!("killed by this suite at {} MB over idle", used.rss_over_idle / 1_000_000)),
        false => attack.complaints.extend(stage.is_healthy().await.err()),
    }
    Measured { attack, used, seen }
}
