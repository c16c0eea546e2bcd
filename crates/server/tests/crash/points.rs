//! Death at every named place of the server, under the same load.

use crate::bulk::{self, Bulk};
use crate::load::Phase;
use crate::process::Launch;
use crate::random::Random;
use crate::report::Row;
use crate::round::Round;
use posthaste_faults::crash_point::{ALL, CRASH_AT};
use std::collections::BTreeSet;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::Duration;

pub(crate) const KIND: &str = "crash point";
/// A place that is not passed within this time is not passed in this life.
const PATIENCE: Duration = Duration::from_secs(30);
/// What is acknowledged before a server is told to end, or left alone.
const ACKNOWLEDGED_BEFORE: u64 = 40;
/// In the first pass a server dies at one of the first so many passings of a place, later at later ones.
const PASSINGS: u64 = 8;
const SIGKILL: i32 = 9;

/// Places that other kinds of fault come to: they need a minute to pass, or old data.
const ELSEWHERE: [&str; 5] =
    ["schedule_fired", "schedules_committed", "before_retain", "after_retain", "retention_in_transaction"];

/// Places that are passed a few times in a life, or once.
const RARE: [&str; 10] = [
    "page_loaded",
    "journal_next_segment",
    "journal_flushed",
    "journal_released",
    "journal_before_checkpoint",
    "journal_checkpointed",
    "queue_changed",
    "run_waits",
    "run_heard",
    "run_cancelled",
];

/// What has to happen so that a place is passed.
#[derive(Clone, Copy)]
enum Stimulus {
    /// Publishers and receivers do it.
    Load,
    /// The server is told to end.
    Stop,
    /// Something is done to many messages or dead letters in the background.
    Bulk(Bulk),
    /// Nobody asks for anything for a while.
    Quiet,
}

/// Dies at every place, so many times at each.
pub(crate) async fn run(passes: u64, seed: u64) -> Row {
    let mut row = Row::new(KIND);
    let mut reached = BTreeSet::new();
    for pass in 1..=passes {
        let data_dir = tempfile::tempdir().expect("a temporary directory");
        let launch = Launch::on(data_dir.path());
        for point in ALL.into_iter().filter(|point| point.starts_with("start_")) {
            // Each of these finds what the one before has left of the first start of all.
            let mut server = armed(&launch, point, 1).spawn();
            let is_reached = server.wait_for(PATIENCE).await.is_some_and(was_killed);
            assert!(is_reached, "{point} was not passed at the first start:\n{}", server.last_words());
            row.cycles += 1;
        }
        let mut round = Round::begin(launch, seed + pass).await;
        for point in ALL.into_iter().filter(|point| !ELSEWHERE.contains(point)) {
            for stimulus in stimuli(point) {
                let passing = passing(point, pass, &mut round.random);
                if die_at(&mut round, stimulus, point, passing).await {
                    reached.insert(point);
                    row.cycles += 1;
                } else {
                    row.note(format!("{point} was not passed {passing} times within {PATIENCE:?}"));
                }
            }
        }
        row.add(&round.end().await);
        row.progress(row.cycles / pass * passes);
    }
    let missed: Vec<&str> =
        ALL.into_iter().filter(|point| !reached.contains(point) && !ELSEWHERE.contains(point)).collect();
    if !missed.is_empty() {
        row.complain(format!("never passed: {missed:?}"));
    }
    row.note(format!("{} of {} places, besides {ELSEWHERE:?}", reached.len(), ALL.len() - ELSEWHERE.len()));
    row.expect_deliveries();
    row
}

/// A server that is to die there.
pub(crate) fn armed(launch: &Launch, point: &str, passing: u64) -> Launch {
    launch.clone().with(CRASH_AT, format!("{point}:{passing}"))
}

pub(crate) fn was_killed(status: ExitStatus) -> bool {
    status.signal() == Some(SIGKILL)
}

/// One life; says whether it ended at that place.
async fn die_at(round: &mut Round, stimulus: Stimulus, point: &'static str, passing: u64) -> bool {
    if let Stimulus::Bulk(bulk) = stimulus {
        // In a quiet life before, in which earlier bulk actions end: it is this one that must come to the place.
        let (mut server, address) = round.start(&round.launch.clone()).await;
        let address = address.unwrap_or_else(|| panic!("the server did not start:\n{}", server.last_words()));
        round.load.phase.send_replace(Phase::Down);
        bulk::prepare(&round.load, address, bulk).await;
        round.kill(&mut server);
    }
    let launch = armed(&round.launch, point, passing);
    let (mut server, address) = round.start(&launch).await;
    if let Some(address) = address {
        match stimulus {
            Stimulus::Load => {}
            Stimulus::Stop => {
                round.acknowledge(ACKNOWLEDGED_BEFORE, &server).await;
                server.terminate();
            }
            Stimulus::Bulk(bulk) => bulk::begin(&round.load, address, bulk).await,
            Stimulus::Quiet => {
                round.acknowledge(ACKNOWLEDGED_BEFORE, &server).await;
                round.load.phase.send_replace(Phase::Down);
            }
        }
    }
    let status = round.wait(&mut server, PATIENCE).await;
    assert!(!server.output().contains("panicked"), "the server is unwell:\n{}", server.last_words());
    status.is_some_and(was_killed)
}

/// Each of them leads to the place.
fn stimuli(point: &str) -> Vec<Stimulus> {
    match point {
        _ if point.starts_with("stop_") => vec![Stimulus::Stop],
        _ if point.starts_with("bulk_") => Bulk::ALL.map(Stimulus::Bulk).to_vec(),
        "before_flush" | "after_flush" => vec![Stimulus::Quiet],
        _ => vec![Stimulus::Load],
    }
}

/// At which passing to die.
fn passing(point: &str, pass: u64, random: &mut Random) -> u64 {
    let is_rare = ["start_", "stop_", "bulk_"].iter().any(|prefix| point.starts_with(prefix))
        || point.ends_with("_flush")
        || RARE.contains(&point);
    if is_rare { 1 } else { 1 + random.below(PASSINGS * pass) }
}
