//! `posthaste sim`: runs seeds of the simulation on all cores and says what they came to.
//!
//! What is simulated and judged is in `posthaste_sim`; here are arguments, threads and words.

use anyhow::bail;
use posthaste_sim::{Counts, Report, run};
use std::io::{IsTerminal, Write};
use std::num::NonZero;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Seeds that a thread takes at once.
const SEEDS_AT_ONCE: u64 = 32;
/// Seeds between two words about progress.
const PROGRESS_SEEDS: u64 = 4_096;

/// Text of the help after the flags.
pub const HELP: &str = "\
The seed decides everything in a run: what is published, what fails, how clocks jump. The same seed gives the same run \
on every machine. The engine is the one that the server uses. The store, the network, the receivers and the clocks \
are simulated.

The first broken rule ends the run. It is printed with the story of the message and the command that repeats it, and \
the exit code is 1.";

/// Flags of `posthaste sim`.
#[derive(clap::Args, Debug)]
pub struct Arguments {
    /// Number of seeds to run; each is an independent run
    #[arg(long, default_value_t = 10_000)]
    pub seeds: u64,
    /// First seed
    #[arg(long, default_value_t = 1)]
    pub first_seed: u64,
    /// Number of threads [default: number of cores]
    #[arg(long)]
    pub threads: Option<NonZero<usize>>,
    /// Print every event; requires a single seed
    #[arg(long)]
    pub trace: bool,
}

/// Runs the seeds; an error if a rule was broken or nothing was delivered. `elapsed` returns how long it has run.
pub fn simulate(arguments: &Arguments, elapsed: &(dyn Fn() -> Duration + Sync)) -> anyhow::Result<()> {
    if arguments.trace {
        return trace(arguments);
    }
    announce_panics();
    let threads = arguments.threads.or_else(|| std::thread::available_parallelism().ok()).map_or(1, NonZero::get);
    let progress = Progress::new(arguments);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| progress.work(elapsed));
        }
    });
    let took = elapsed();
    let total = progress.total.into_inner().unwrap_or_else(PoisonError::into_inner);
    if let Some(broken) = &total.broken {
        explain(broken.seed);
        bail!("seed {} breaks a rule", broken.seed);
    }
    println!("{}", summary(&total, threads, took));
    if total.counts.delivered == 0 {
        bail!("nothing was delivered: run at least one seed");
    }
    Ok(())
}

/// State that the threads share.
struct Progress {
    next: AtomicU64,
    end: u64,
    stop: AtomicBool,
    shows: bool,
    total: Mutex<Total>,
}

#[derive(Default)]
struct Total {
    seeds: u64,
    counts: Counts,
    /// The run with the lowest seed that broke a rule.
    broken: Option<Report>,
}

impl Progress {
    fn new(arguments: &Arguments) -> Progress {
        Progress {
            next: AtomicU64::new(arguments.first_seed),
            end: arguments.first_seed.saturating_add(arguments.seeds),
            stop: AtomicBool::new(false),
            shows: std::io::stderr().is_terminal(),
            total: Mutex::default(),
        }
    }

    fn work(&self, elapsed: &(dyn Fn() -> Duration + Sync)) {
        while !self.stop.load(Ordering::Relaxed) {
            let first = self.next.fetch_add(SEEDS_AT_ONCE, Ordering::Relaxed);
            let end = first.saturating_add(SEEDS_AT_ONCE).min(self.end);
            if first >= end {
                return;
            }
            let mut counts = Counts::default();
            for seed in first..end {
                SEED.set(seed);
                let report = run(seed, false);
                counts.add(&report.counts);
                if report.violation.is_some() {
                    self.stop.store(true, Ordering::Relaxed);
                    self.total().broken.get_or_insert(report);
                    return;
                }
            }
            self.add(end - first, &counts, elapsed);
        }
    }

    fn add(&self, seeds: u64, counts: &Counts, elapsed: &(dyn Fn() -> Duration + Sync)) {
        let mut total = self.total();
        let before = total.seeds / PROGRESS_SEEDS;
        total.seeds += seeds;
        total.counts.add(counts);
        if self.shows && total.seeds / PROGRESS_SEEDS != before {
            let line = format!("\r{} seeds in {} s", total.seeds, elapsed().as_secs());
            // Progress that cannot be shown is no reason to stop.
            drop(std::io::stderr().write_all(line.as_bytes()));
        }
    }

    fn total(&self) -> std::sync::MutexGuard<'_, Total> {
        self.total.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

std::thread_local! {
    static SEED: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
}

/// The engine checks itself too: if it panics, the seed must be known.
fn announce_panics() {
    let default = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        default(panic);
        eprintln!("\nthe engine panicked; repeat with: {}", command(SEED.get()));
    }));
}

fn command(seed: u64) -> String {
    format!("posthaste sim --first-seed {seed} --seeds 1 --trace")
}

/// Runs a seed again and prints its events.
fn explain(seed: u64) {
    let report = run(seed, true);
    if let Some(violation) = &report.violation {
        println!(
            "\nbroken rule: {}\n{}\n\nevents of the message, and other events in between:\n",
            violation.rule, violation.text
        );
    }
    println!("{}\n\nrepeat with: {}", report.story.join("\n"), command(seed));
}

fn trace(arguments: &Arguments) -> anyhow::Result<()> {
    if arguments.seeds != 1 {
        bail!("--trace needs a single seed: add --seeds 1");
    }
    announce_panics();
    SEED.set(arguments.first_seed);
    let report = run(arguments.first_seed, true);
    println!("{}\n\n{}\n", report.drawn, report.trace.join("\n"));
    match report.violation {
        Some(violation) => bail!("broken rule: {} ({})", violation.rule, violation.text),
        None => println!("no rule is broken; {:?}", report.counts),
    }
    Ok(())
}

fn summary(total: &Total, threads: usize, took: Duration) -> String {
    let counts = &total.counts;
    let per_minute = total.seeds as f64 * 60.0 / took.as_secs_f64().max(0.001);
    let rows = [
        ("seeds, all clean", total.seeds),
        ("seeds per minute", per_minute as u64),
        ("threads", threads as u64),
        ("messages created", counts.created),
        ("  delivered", counts.delivered),
        ("  failed (in the DLQ)", counts.failed),
        ("  cancelled", counts.cancelled),
        ("  of these, callbacks", counts.callbacks),
        ("attempts", counts.attempts),
        ("  of owners without a lease", counts.late_attempts),
        ("publishes acknowledged", counts.acknowledged),
        ("  duplicates", counts.deduplicated),
        ("  without a response", counts.unknown),
        ("dead letters published again", counts.replayed),
        ("firings of schedules", counts.fired),
        ("runs of workflows", counts.runs),
        ("  returned", counts.runs_finished),
        ("  failed", counts.runs_failed),
        ("  cancelled", counts.runs_cancelled),
        ("  invoked by others", counts.runs_invoked),
        ("  resumed", counts.runs_resumed),
        ("steps executed", counts.steps),
        ("owners of the shard", counts.owners),
        ("commits of earlier owners rejected", counts.fenced),
        ("power cuts", counts.power_cuts),
    ];
    let lines: Vec<String> = rows.iter().map(|(name, count)| format!("{name:<36}{count:>14}")).collect();
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn simulated(seeds: u64, trace: bool) -> Result<(), String> {
        let arguments = Arguments { seeds, first_seed: 1, threads: NonZero::new(2), trace };
        simulate(&arguments, &|| Duration::from_secs(1)).map_err(|error| error.to_string())
    }

    #[test]
    fn seeds_are_run_and_none_at_all_is_an_error() {
        assert_eq!(simulated(40, false), Ok(()));
        assert_eq!(simulated(0, false), Err("nothing was delivered: run at least one seed".to_owned()));
    }

    #[test]
    fn a_trace_shows_one_seed() {
        assert_eq!(simulated(1, true), Ok(()));
        assert_eq!(simulated(2, true), Err("--trace needs a single seed: add --seeds 1".to_owned()));
    }
}
