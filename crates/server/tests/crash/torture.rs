//! The whole torture as one test: every kind of fault, then one table.

use crate::plan::Plan;
use crate::report::{self, Row, say};
use crate::{disk, full, kills, minute, planted, points, power, upgrade};
use std::future::Future;
use std::path::PathBuf;
use std::time::Instant;

const KINDS: [&str; 9] = [
    kills::KIND,
    points::KIND,
    planted::KIND,
    power::KIND,
    disk::FAILING,
    disk::SLOW,
    full::KIND,
    upgrade::KIND,
    minute::KIND,
];

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn nothing_acknowledged_is_lost_whatever_fails() {
    let plan = Plan::from_environment();
    let strangers = plan.strangers(&KINDS);
    assert!(strangers.is_empty(), "there is no kind of fault {strangers:?}; there are {KINDS:?}");
    say(&format!("torture: to repeat: {}", plan.command()));
    let seed = plan.seed;
    // Each of the three waits a lot, so they run beside one another.
    let (mut rows, others, minute) =
        tokio::join!(deaths(plan.clone()), disks(plan.clone()), wanted(&plan, minute::KIND, 1, minute::run()));
    rows.extend(others.into_iter().chain(minute));
    say(&report::table(&rows));
    let path = std::env::var_os("TORTURE_OUT").map_or_else(default_out, PathBuf::from);
    std::fs::write(&path, format!("{:#}\n", report::json(seed, &rows))).expect("the report can be written");
    let broken: Vec<&str> = rows.iter().filter(|row| !row.is_sound()).map(|row| row.kind).collect();
    assert!(broken.is_empty(), "broken by {broken:?}, see above; to repeat: {}", plan.command());
}

/// The process ends while its disk is well.
async fn deaths(plan: Plan) -> Vec<Row> {
    let Plan { seed, kills, passes, .. } = plan;
    let rows = [
        wanted(&plan, kills::KIND, kills, kills::run(kills, seed)).await,
        wanted(&plan, points::KIND, passes, points::run(passes, seed)).await,
        wanted(&plan, planted::KIND, 1, planted::run(seed)).await,
    ];
    rows.into_iter().flatten().collect()
}

/// The disk fails, or has old data.
async fn disks(plan: Plan) -> Vec<Row> {
    let Plan { seed, power_cuts, disk_faults, .. } = plan;
    let rows = [
        wanted(&plan, power::KIND, power_cuts, power::run_cuts(power_cuts, seed)).await,
        wanted(&plan, disk::FAILING, disk_faults, disk::run_failing(disk_faults, seed)).await,
        wanted(&plan, disk::SLOW, 1, disk::run_slow(seed)).await,
        wanted(&plan, full::KIND, 1, full::run_both()).await,
        wanted(&plan, upgrade::KIND, 1, upgrade::run(seed)).await,
    ];
    rows.into_iter().flatten().collect()
}

fn default_out() -> PathBuf {
    PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("torture.json")
}

/// Runs one kind, if it is wanted. Whatever panics in it is a violation, and the other kinds go on.
async fn wanted(
    plan: &Plan,
    kind: &'static str,
    count: u64,
    run: impl Future<Output = Row> + Send + 'static,
) -> Option<Row> {
    if count == 0 || !plan.wants(kind) {
        return None;
    }
    let started = Instant::now();
    let mut row = tokio::spawn(run).await.unwrap_or_else(|error| {
        let mut row = Row::new(kind);
        row.complain(reason(error));
        row
    });
    row.seconds = started.elapsed().as_secs_f64();
    Some(row)
}

fn reason(error: tokio::task::JoinError) -> String {
    let Ok(panic) = error.try_into_panic() else { return "it was cancelled".to_owned() };
    let text = panic.downcast_ref::<String>().cloned();
    text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned())).unwrap_or_default()
}
