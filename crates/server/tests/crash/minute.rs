//! Deaths while schedules fire: at the turn of a minute, in the middle of a round, and in the rounds that catch up.

use crate::checker::Counts;
use crate::load::Load;
use crate::points::{armed, was_killed};
use crate::process::Launch;
use crate::report::Row;
use crate::round::Round;
use crate::witness::Witness;
use std::collections::HashSet;
use std::time::Duration;

pub(crate) const KIND: &str = "schedule";
/// More than fire in one round of the server.
const SCHEDULES: usize = 300;
/// The turn of a minute comes within this time.
const MINUTE: Duration = Duration::from_secs(75);

/// Nearly all of it is waiting, so it runs beside the other kinds.
pub(crate) async fn run() -> Row {
    let mut row = Row::new(KIND);
    let data_dir = tempfile::tempdir().expect("a temporary directory");
    let load = Load::new(Witness::start().await, SCHEDULES);
    let mut round = Round::begin_quietly(load, Launch::on(data_dir.path())).await;
    // In the first round of the minute, behind that round, and in the one that catches up with the rest.
    for (point, passing) in [("schedule_fired", 150), ("schedules_committed", 1), ("schedule_fired", 20)] {
        let launch = armed(&round.launch, point, passing);
        let (mut server, _) = round.start(&launch).await;
        let status = round.wait(&mut server, MINUTE).await;
        assert!(status.is_some_and(was_killed), "{point} was not passed:\n{}", server.last_words());
        row.cycles += 1;
    }
    let verdict = round.end().await;
    row.add(&verdict);
    let fired = &verdict.history.fired;
    let schedules: HashSet<&str> = fired.iter().map(|arrival| arrival.key.as_str()).collect();
    let ids: HashSet<&str> = fired.iter().map(|arrival| arrival.id.as_str()).collect();
    if schedules.len() != SCHEDULES {
        row.complain(format!("only {} of {SCHEDULES} schedules have fired", schedules.len()));
    }
    let (made, duplicates) = (verdict.history.fired_at.len(), fired.len() - ids.len());
    row.add_counts(&Counts { acknowledged: made, delivered: ids.len(), duplicates, ..Counts::default() });
    row.expect_deliveries();
    row
}
