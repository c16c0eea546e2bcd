//! The limits of every case, and whether a measurement keeps them.

use crate::neighbour::Seen;
use crate::plan::Plan;
use crate::proc::tally;
use crate::stage::Measured;
use std::time::Duration;

/// Most memory above idle that any attack may take.
pub(crate) const RSS_BYTES_MAX: u64 = 200_000_000;
/// Slowest publish, and slowest read, of the neighbour in 99 of 100.
pub(crate) const P99_MAX: Duration = Duration::from_millis(500);
/// A debug build runs the same code with checks and without optimization.
const DEBUG_FACTOR: u32 = 2;
/// A busy machine slows the neighbour down on its own: so many times its p99 alone is allowed.
const ALONE_FACTOR: u32 = 10;
/// However busy the machine is, this is too slow.
const P99_CEILING: Duration = Duration::from_secs(2);
/// Fewer requests of the neighbour than this prove nothing.
const PROBES_MIN: usize = 50;

/// Limits of one case besides those of all.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Limits {
    /// Most processor time, if the attack is about that.
    pub(crate) cpu: Option<Duration>,
    /// Most bytes written to disk, if the attack is about that.
    pub(crate) written: Option<u64>,
    /// The neighbour may be refused, because the disk is full for all.
    pub(crate) may_refuse_neighbour: bool,
}

/// The neighbour on an idle server of this machine, in this run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Alone {
    pub(crate) publish_p99: Duration,
    pub(crate) read_p99: Duration,
}

/// The most that a p99 may be.
fn p99_limit(plan: &Plan, alone: Duration) -> Duration {
    let by_build = if plan.is_debug { P99_MAX * DEBUG_FACTOR } else { P99_MAX };
    by_build.max(alone * ALONE_FACTOR).min(P99_CEILING)
}

/// Everything that is wrong with a measurement.
#[derive(Clone, Debug, Default)]
pub(crate) struct Problems {
    /// These fail the case.
    pub(crate) certain: Vec<String>,
    /// These may be due to a machine that was busy with something else, so the case is tried once more.
    pub(crate) by_time: Vec<String>,
}

impl Problems {
    /// Whether a second try may have another result.
    pub(crate) fn are_of_time_only(&self) -> bool {
        self.certain.is_empty() && !self.by_time.is_empty()
    }

    pub(crate) fn all(self) -> Vec<String> {
        self.certain.into_iter().chain(self.by_time).collect()
    }
}

/// Compares a measurement with the limits.
pub(crate) fn judge(plan: &Plan, limits: &Limits, alone: &Alone, measured: &Measured) -> Problems {
    let mut problems = Problems { certain: measured.attack.complaints.clone(), by_time: Vec::new() };
    let used = &measured.used;
    if used.rss_over_idle > RSS_BYTES_MAX && !used.was_killed {
        problems.certain.push(format!("{} MB of memory over idle, limit 200", used.rss_over_idle / 1_000_000));
    }
    let factor = if plan.is_debug { DEBUG_FACTOR } else { 1 };
    if let Some(most) = limits.cpu.map(|cpu| cpu * factor).filter(|most| used.cpu > *most) {
        problems.by_time.push(format!(
            "{:.1} s of processor time, limit {:.1}",
            used.cpu.as_secs_f64(),
            most.as_secs_f64()
        ));
    }
    if let Some(most) = limits.written.filter(|most| used.written > *most) {
        problems.certain.push(format!("{} MB written, limit {}", used.written / 1_000_000, most / 1_000_000));
    }
    if let Some(seen) = &measured.seen {
        judge_neighbour(plan, limits, alone, seen, &mut problems);
    }
    problems
}

fn judge_neighbour(plan: &Plan, limits: &Limits, alone: &Alone, seen: &Seen, problems: &mut Problems) {
    let pairs = [
        ("publish", seen.publish_p99(), p99_limit(plan, alone.publish_p99)),
        ("read", seen.read_p99(), p99_limit(plan, alone.read_p99)),
    ];
    for (kind, p99, most) in pairs {
        if p99 > most {
            problems.by_time.push(format!("neighbour's {kind} p99 {} ms, limit {}", p99.as_millis(), most.as_millis()));
        }
    }
    if seen.count() < PROBES_MIN {
        problems.by_time.push(format!("only {} requests of the neighbour", seen.count()));
    }
    let failures = seen.failures();
    if !failures.is_empty() && !limits.may_refuse_neighbour {
        let (count, all) = (failures.len(), seen.count());
        problems
            .by_time
            .push(format!("{count} of {all} requests of the neighbour failed: {}", tally(failures.into_iter())));
    }
}
