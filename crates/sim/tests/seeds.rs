//! Seeds without planted bugs: clean, repeatable, and everything that can happen happens in them.
//!
//! More with `POSTHASTE_SIM_SEEDS`, other ones with `POSTHASTE_SIM_FIRST_SEED`.

use posthaste_sim::{Counts, Violation, run};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// Seeds that are run unless the environment says otherwise.
const SEEDS: u64 = 3_000;
/// Seeds that are run twice.
const REPEATED_SEEDS: u64 = 300;

fn from_environment(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().expect("a number of seeds"))
}

#[test]
fn seeds_are_clean_and_much_happens_in_them() {
    let first = from_environment("POSTHASTE_SIM_FIRST_SEED", 1);
    let end = first + from_environment("POSTHASTE_SIM_SEEDS", SEEDS);
    let next = AtomicU64::new(first);
    let results: Mutex<(Counts, Vec<(u64, Violation)>)> = Mutex::default();
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= end {
                        return;
                    }
                    let report = run(seed, false);
                    let mut results = results.lock().unwrap();
                    results.0.add(&report.counts);
                    results.1.extend(report.violation.map(|violation| (seed, violation)));
                }
            });
        }
    });
    let (counts, mut broken) = results.into_inner().unwrap();
    broken.sort_by_key(|(seed, _)| *seed);
    println!("{counts:?}");
    for (seed, violation) in broken.iter().take(20) {
        println!("seed {seed}: {}: {}", violation.rule, violation.text);
    }
    if let Some((seed, violation)) = broken.first() {
        let story = run(*seed, true).story.join("\n");
        panic!(
            "{} seeds break rules; seed {seed}: {}: {}\n{story}\nrepeat with: posthaste sim --first-seed {seed} --seeds 1 --trace",
            broken.len(),
            violation.rule,
            violation.text
        );
    }
    let shown = format!("{counts:?}");
    assert!(!shown.contains(": 0,") && !shown.contains(": 0 }"), "something never happens: {shown}");
}

#[test]
fn a_seed_is_a_run() {
    for seed in 1..=REPEATED_SEEDS {
        let (plain, told) = (run(seed, false), run(seed, true));
        assert_eq!((plain.hash, plain.counts), (told.hash, told.counts), "seed {seed} ran differently");
    }
}
