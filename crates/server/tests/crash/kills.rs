//! Kill -9 at random moments, again and again, under a mixed load.

use crate::checker::{self, Counts, Violation};
use crate::disk::Shim;
use crate::history::{FLOWS, History, Kind, Millis, Publish, SHORT_WINDOW};
use crate::process::{Launch, Process};
use crate::report::Row;
use crate::round::{Round, assert_sound};
use std::time::Duration;
use tokio::time::timeout;

pub(crate) const KIND: &str = "kill";
/// Deaths of one round; more rounds keep histories small and judgements early.
const ROUND_KILLS: u64 = 50;
/// Each server lives until it has acknowledged a random number of messages below this, …
const ACKNOWLEDGED_MAX: u64 = 300;
/// … and one in this many lives longer, …
const LONG_LIVES: u64 = 12;
/// … up to this.
const ACKNOWLEDGED_MAX_LONG: u64 = 1_500;
/// One server in this many is killed while it starts.
const KILLED_AT_START: u64 = 6;
const START_MS_MAX: u64 = 60;
/// One server in this many lives on until the short window of a flow-control key is full, and is killed then: its
/// successor must know.
const KILLED_WITH_FULL_WINDOW: u64 = 10;
/// How long that may take; a window that was full at the start opens after a second.
const WINDOW_PATIENCE: Duration = Duration::from_millis(2_500);
/// One server in this many has a disk each of whose writes takes so much longer, so that many kills come in the middle
/// of a commit. (A sync may take as long as it likes: the system keeps what was written before a kill.)
const KILLED_ON_SLOW_DISK: u64 = 3;
const WRITE_MS: Millis = 2;

/// A round with more publishes than this has to show something of everything.
const PUBLISHES_MIN: usize = 2_000;

/// Kills it so many times.
pub(crate) async fn run(kills: u64, seed: u64) -> Row {
    let mut row = Row::new(KIND);
    let shim = Shim::make();
    if let Err(reason) = &shim {
        row.note(format!("without slow disks: {reason}"));
    }
    while row.cycles < kills {
        let data_dir = tempfile::tempdir().expect("a temporary directory");
        let mut round = Round::begin(Launch::on(data_dir.path()), seed + row.cycles).await;
        // The life that made the queues and schedules was killed, too.
        row.cycles += 1;
        let last = kills.min(row.cycles + ROUND_KILLS - 1);
        while row.cycles < last {
            one(&mut round, shim.as_ref().ok()).await;
            row.cycles += 1;
        }
        let verdict = round.end().await;
        row.add(&verdict);
        if verdict.history.publishes.len() > PUBLISHES_MIN {
            let too_little = it_was_no_test(&verdict.history);
            too_little.into_iter().for_each(|reason| row.complain(reason));
        }
        row.progress(kills);
    }
    row.expect_deliveries();
    row
}

/// One life and its end.
pub(crate) async fn one(round: &mut Round, shim: Option<&Shim>) {
    if round.random.below(KILLED_AT_START) == 0 {
        let mut server = round.launch.spawn();
        // The moment is the input of the test, not something to wait for.
        tokio::time::sleep(Duration::from_millis(round.random.below(START_MS_MAX))).await;
        server.kill();
        return;
    }
    let mut launch = round.launch.clone();
    if let Some(shim) = shim.filter(|_| round.random.below(KILLED_ON_SLOW_DISK) == 0) {
        launch = shim.slow(&launch, "write", WRITE_MS);
    }
    let (mut server, address) = round.start(&launch).await;
    assert!(address.is_some(), "the server did not start:\n{}", server.last_words());
    live(round, &server).await;
    round.kill(&mut server);
    assert_sound(&server);
}

/// Lives until a random moment.
pub(crate) async fn live(round: &mut Round, server: &Process) {
    let is_long = round.random.below(LONG_LIVES) == 0;
    let most = if is_long { ACKNOWLEDGED_MAX_LONG } else { ACKNOWLEDGED_MAX };
    let count = round.random.below(most);
    round.acknowledge(count, server).await;
    if round.random.below(KILLED_WITH_FULL_WINDOW) == 0 {
        let rate = FLOWS[SHORT_WINDOW].rate.map_or(0, |(rate, _)| rate as u64);
        let mut throttled = round.load.witness.throttled.subscribe();
        let full = *throttled.borrow() + rate;
        // Without enough messages the window does not fill: then this is a life like any other.
        drop(timeout(WINDOW_PATIENCE, throttled.wait_for(|count| *count >= full)).await);
    }
    for _ in 0..round.random.below(100_000) {
        std::hint::spin_loop();
    }
}

/// Why a round proves little: little happened, or the checker does not see a planted loss.
fn it_was_no_test(history: &History) -> Option<String> {
    let counts = checker::count(history);
    let Counts { acknowledged, delivered, dead, cancelled, .. } = counts;
    let queued = history.publishes.iter().filter(|publish| publish.terms.queue.is_some()).count();
    let throttled = history.publishes.iter().filter(|publish| publish.terms.flow.is_some()).count();
    let (pauses, callbacks) = (history.pauses.len(), history.callbacks.len());
    let is_enough = acknowledged > 500 && delivered > 300 && dead > 10 && cancelled > 10;
    if !is_enough || counts.runs < 20 || queued < 100 || throttled < 50 || pauses == 0 || callbacks < 20 {
        return Some(format!("too little happened: {counts:?} {queued} {throttled} {pauses} {callbacks}"));
    }
    let victim = history.runs.iter().find(|start| start.answer.id().is_some());
    let mut planted = history.clone();
    planted.run_states.clear();
    let is_seen = victim.is_some_and(|start| checker::check(&planted).contains(&Violation::Lost(start.key.clone())));
    if !is_seen {
        return Some("the checker does not see that runs are lost".to_owned());
    }
    let mut planted = history.clone();
    let victim = history.publishes.iter().find(|publish| is_surely_delivered(publish, history));
    let Some(Publish { key: victim, .. }) = victim else { return Some("no message was surely delivered".to_owned()) };
    planted.arrivals.retain(|arrival| arrival.key != *victim);
    planted.dead_letters.clear();
    let is_seen = checker::check(&planted).contains(&Violation::Lost(victim.clone()));
    (!is_seen).then(|| "the checker does not see a planted loss".to_owned())
}

/// Nothing but an arrival at the witness keeps it from being lost.
fn is_surely_delivered(publish: &Publish, history: &History) -> bool {
    let Some(id) = publish.answer.id() else { return false };
    let is_cancelled = history.cancels.contains_key(id) || history.cancel_sent.contains(id);
    matches!(publish.kind, Kind::Plain { .. }) && !is_cancelled
}
