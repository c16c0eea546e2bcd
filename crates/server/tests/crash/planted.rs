//! Bugs in the server on purpose: the torture has to find them, or it proves nothing.

use crate::checker::Violation;
use crate::disk::Shim;
use crate::history::Millis;
use crate::kills;
use crate::points::{armed, was_killed};
use crate::power::{self, Disk};
use crate::process::Launch;
use crate::report::Row;
use crate::round::Round;
use posthaste_faults::crash_point::{ANSWER_BEFORE_COMMIT, ANSWER_BEFORE_SYNC, PLANT, SEND_DONE_STEPS};
use std::time::Duration;

pub(crate) const KIND: &str = "planted bug";
/// A server that is to die at the end of a delivery of a run dies within this time, …
const PATIENCE: Duration = Duration::from_secs(60);
/// … at one of the first so many.
const RUN_OUTCOMES: u64 = 20;
/// A bug that is not found in so many cycles is not found.
const CYCLES_MAX: u64 = 25;
/// How much longer each write of the one that answers before it commits takes: the first kill may find it.
const WRITE_MS: Millis = 5;
/// Kills that a server which only forgets to sync has to survive: the system keeps what it was given.
const KILLS_SURVIVED: u64 = 3;

/// Deaths between the acceptance of a step and the end of its delivery.
const STEP_DEATHS: u64 = 4;

/// All bugs: two that kills find, and one that only a power cut finds.
pub(crate) async fn run(seed: u64) -> Row {
    let mut row = Row::new(KIND);
    let data_dir = tempfile::tempdir().expect("a temporary directory");
    let launch = Launch::on(data_dir.path()).with(PLANT, ANSWER_BEFORE_COMMIT);
    let mut round = Round::begin(launch, seed).await;
    let shim = Shim::make();
    if let Ok(shim) = &shim {
        round.launch = shim.slow(&round.launch, "write", WRITE_MS);
    }
    let before = row.cycles;
    while !round.is_broken() && row.cycles - before < CYCLES_MAX {
        kills::one(&mut round, None).await;
        row.cycles += 1;
    }
    judge(&mut row, ANSWER_BEFORE_COMMIT, "kill", round.is_broken(), before);
    round.abandon().await;

    send_done_steps(&mut row, seed).await;

    let mut disk = match Disk::make() {
        Ok(disk) => disk,
        Err(reason) => {
            row.note(format!("{ANSWER_BEFORE_SYNC} is skipped: {reason}"));
            return row;
        }
    };
    let mut round = Round::begin(Launch::on(&disk.data_dir()).with(PLANT, ANSWER_BEFORE_SYNC), seed).await;
    for _ in 0..KILLS_SURVIVED {
        kills::one(&mut round, shim.as_ref().ok()).await;
    }
    if round.is_broken() {
        row.complain(format!("{ANSWER_BEFORE_SYNC} is found by a kill: it is another bug"));
    }
    let before = row.cycles;
    let mut starts = true;
    while starts && !round.is_broken() && row.cycles - before < CYCLES_MAX {
        starts = power::one(&mut round, &mut disk).await;
        row.cycles += 1;
    }
    judge(&mut row, ANSWER_BEFORE_SYNC, "power cut", round.is_broken() || !starts, before);
    round.abandon().await;
    row
}

/// A server that executes steps again whose results it has: the endpoint's own record shows it.
async fn send_done_steps(row: &mut Row, seed: u64) {
    let data_dir = tempfile::tempdir().expect("a temporary directory");
    let mut round = Round::begin(Launch::on(data_dir.path()).with(PLANT, SEND_DONE_STEPS), seed).await;
    let before = row.cycles;
    for _ in 0..STEP_DEATHS {
        kills::one(&mut round, None).await;
        let launch = armed(&round.launch, "run_outcome", 1 + round.random.below(RUN_OUTCOMES));
        let (mut server, _) = round.start(&launch).await;
        let status = round.wait(&mut server, PATIENCE).await;
        assert!(status.is_some_and(was_killed), "run_outcome was not passed:\n{}", server.last_words());
        row.cycles += 2;
    }
    let verdict = round.end().await;
    let is_it = |violation: &Violation| matches!(violation, Violation::ExecutedAgain(_));
    judge(row, SEND_DONE_STEPS, "kill", verdict.violations.iter().any(is_it), before);
}

fn judge(row: &mut Row, bug: &str, fault: &str, is_found: bool, before: u64) {
    let cycles = row.cycles - before;
    match is_found {
        true => row.note(format!("{bug} was found by {fault} number {cycles}")),
        false => row.complain(format!("{bug} was not found by {fault} in {cycles} cycles")),
    }
}
