//! A disk that fails at the n-th write or sync, or is slow: `disk_shim.c` stands between the server and its files.
//!
//! A server that cannot write its log has to end at once and say why; its successor has everything that was
//! acknowledged.

use crate::history::{Answer, Kind, Millis};
use crate::process::{Launch, Process};
use crate::report::Row;
use crate::round::Round;
use crate::tools::compile;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;

pub(crate) const FAILING: &str = "failing disk";
pub(crate) const SLOW: &str = "slow disk";

/// Faults of one round.
const ROUND_FAULTS: u64 = 30;
/// A server that has acknowledged so many messages without an end goes on in spite of the fault.
const ACKNOWLEDGED_ENOUGH: u64 = 600;
/// How long each sync of the slow disk takes.
const DELAY_MS: Millis = 100;
/// On the slow disk a message may wait for this many syncs before its first attempt: that of its own commit, and
/// those of what was before it.
const SYNCS_MAX: Millis = 20;
/// What is acknowledged on the slow disk.
const ACKNOWLEDGED_SLOWLY: u64 = 300;

/// What goes wrong.
#[derive(Clone, Copy, Debug)]
struct Fault {
    call: &'static str,
    fault: &'static str,
    /// It stays so.
    is_lasting: bool,
    /// It happens at one of the first so many calls.
    calls: u64,
}

const fn fault(call: &'static str, fault: &'static str, is_lasting: bool, calls: u64) -> Fault {
    Fault { call, fault, is_lasting, calls }
}

const FAULTS: [Fault; 10] = [
    // The second sync would succeed: the first failure has to be enough.
    fault("sync", "EIO", false, 40),
    fault("write", "EIO", false, 400),
    fault("write", "torn", false, 400),
    fault("sync", "EIO", true, 40),
    fault("write", "short", false, 400),
    fault("write", "ENOSPC", false, 400),
    fault("write", "ENOSPC", true, 400),
    fault("write", "EIO", true, 400),
    fault("sync", "EIO", false, 12),
    fault("truncate", "EIO", false, 3),
];

impl Fault {
    /// Whether the server may go on. It writes to its log before anything else; what it cannot write elsewhere (such
    /// as in the database, when the log is emptied into it) it can write again later.
    fn may_go_on(&self, file: &str) -> bool {
        let is_log = file.ends_with("-wal") || file.contains("journal");
        self.fault == "short" || (!self.is_lasting && !is_log) || self.call == "truncate"
    }
}

/// The library that stands between a server and its files.
pub(crate) struct Shim {
    directory: tempfile::TempDir,
    library: PathBuf,
}

impl Shim {
    /// Compiles it; otherwise says why this machine cannot.
    pub(crate) fn make() -> Result<Shim, String> {
        let directory = tempfile::tempdir().map_err(|error| error.to_string())?;
        let library = compile("disk_shim.c", &["-shared", "-fPIC", "-ldl"], directory.path())?;
        Ok(Shim { directory, library })
    }

    /// A server each of whose writes, or syncs, takes this much longer.
    pub(crate) fn slow(&self, launch: &Launch, call: &str, delay_ms: Millis) -> Launch {
        let launch = self.before(launch, call, "slow", 1);
        launch.with("DISK_DELAY_MS", delay_ms.to_string())
    }

    fn before(&self, launch: &Launch, call: &str, fault: &str, at: u64) -> Launch {
        let directory = launch.data_dir().display().to_string();
        let launch = launch.clone().with("LD_PRELOAD", self.library.display().to_string());
        let launch = launch.with("DISK_DIRECTORY", directory).with("DISK_CALL", call);
        launch.with("DISK_FAULT", fault).with("DISK_AT", at.to_string())
    }
}

/// Makes so many faults.
pub(crate) async fn run_failing(faults: u64, seed: u64) -> Row {
    let mut row = Row::new(FAILING);
    let shim = match Shim::make() {
        Ok(shim) => shim,
        Err(reason) => return Row::skipped(FAILING, reason),
    };
    let (mut ended, mut missed) = (0, 0);
    while row.cycles < faults {
        let data_dir = tempfile::tempdir().expect("a temporary directory");
        let mut round = Round::begin(Launch::on(data_dir.path()), seed + row.cycles).await;
        let last = faults.min(row.cycles + ROUND_FAULTS);
        while row.cycles < last {
            let fault = FAULTS[row.cycles as usize % FAULTS.len()];
            let mark = shim.directory.path().join(format!("mark-{}", row.cycles));
            let at = 1 + round.random.below(fault.calls);
            match one(&mut round, fault, at, &shim, &mark).await {
                Ok(End::Ended) => ended += 1,
                Ok(End::WentOn) => {}
                Ok(End::NotReached) => missed += 1,
                Err(problem) => row.complain(format!("{fault:?} at call {at}: {problem}")),
            }
            row.cycles += 1;
        }
        row.add(&round.end().await);
        row.progress(faults);
    }
    row.note(format!("{ended} ended by themselves, {missed} did not come to the fault"));
    if ended == 0 {
        row.complain("no server has ended");
    }
    row.expect_deliveries();
    row
}

enum End {
    Ended,
    WentOn,
    NotReached,
}

/// One life on a disk with this fault.
async fn one(round: &mut Round, fault: Fault, at: u64, shim: &Shim, mark: &Path) -> Result<End, String> {
    let launch = shim.before(&round.launch, fault.call, fault.fault, at);
    let mut launch = launch.with("DISK_MARK", mark.display().to_string());
    if fault.is_lasting {
        launch = launch.with("DISK_LASTING", "1");
    }
    let (mut server, _) = round.start(&launch).await;
    let status = round.wait_unless(&mut server, ACKNOWLEDGED_ENOUGH).await;
    if status.is_none() {
        round.kill(&mut server);
    }
    let hit = std::fs::read_to_string(mark).unwrap_or_default();
    let Some(file) = hit.split_whitespace().nth(1) else {
        return if status.is_none() { Ok(End::NotReached) } else { Err(format!("ended:\n{}", server.last_words())) };
    };
    match status {
        None if fault.may_go_on(file) => Ok(End::WentOn),
        None => Err(format!("goes on after a fault in {file}")),
        Some(status) => ended_with_a_reason(&server, status).map(|()| End::Ended),
    }
}

fn ended_with_a_reason(server: &Process, status: ExitStatus) -> Result<(), String> {
    let output = server.output();
    let is_told = output.lines().any(|line| line.starts_with("posthaste: "));
    if status.code().is_none_or(|code| code == 0) || output.contains("panicked") || !is_told {
        return Err(format!("ended with {status} and without a reason:\n{}", server.last_words()));
    }
    Ok(())
}

/// A life on a disk that takes its time, and one after it on a disk that does not.
pub(crate) async fn run_slow(seed: u64) -> Row {
    let mut row = Row::new(SLOW);
    let shim = match Shim::make() {
        Ok(shim) => shim,
        Err(reason) => return Row::skipped(SLOW, reason),
    };
    let data_dir = tempfile::tempdir().expect("a temporary directory");
    let mut round = Round::begin(Launch::on(data_dir.path()), seed).await;
    let launch = shim.slow(&round.launch, "sync", DELAY_MS);
    let from = round.load.witness.now();
    let (mut server, _) = round.start(&launch).await;
    round.acknowledge(ACKNOWLEDGED_SLOWLY, &server).await;
    let until = round.load.witness.now();
    row.cycles += 1;
    round.kill(&mut server);
    let mut server = round.start_sound().await;
    round.acknowledge(ACKNOWLEDGED_SLOWLY, &server).await;
    round.kill(&mut server);
    let verdict = round.end().await;
    let latest_ms = latest(&verdict.history, from, until.saturating_sub(SYNCS_MAX * DELAY_MS));
    row.note(format!("syncs of {DELAY_MS} ms: a delivery begins at most {latest_ms} ms after its acknowledgement"));
    if latest_ms > SYNCS_MAX * DELAY_MS {
        row.complain(format!("a delivery began {latest_ms} ms after its acknowledgement"));
    }
    row.add(&verdict);
    row.expect_deliveries();
    row
}

/// The longest time from the acknowledgement of a message that nothing holds back to its arrival, among those
/// acknowledged in this time, without that in which the machine stood still.
fn latest(history: &crate::history::History, from: Millis, until: Millis) -> Millis {
    let first_arrival =
        |id: &str| history.arrivals.iter().filter(|arrival| arrival.id == id).map(|arrival| arrival.at()).min();
    let plain = history.publishes.iter().filter(|publish| {
        publish.kind == Kind::Plain { delay_ms: 0 }
            && publish.terms == Default::default()
            && publish.answered_at >= from
    });
    let waits = plain.filter(|publish| publish.answered_at <= until).filter_map(|publish| match &publish.answer {
        Answer::Acknowledged { id } => {
            let (answered_at, arrived_at) = (publish.answered_at, first_arrival(id)?);
            let still_ms = history.still_ms(answered_at, arrived_at);
            Some(arrived_at.saturating_sub(answered_at).saturating_sub(still_ms))
        }
        Answer::Overloaded | Answer::Unexpected(_) | Answer::Unknown => None,
    });
    waits.max().unwrap_or(Millis::MAX)
}
