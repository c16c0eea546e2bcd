//! Is the simulation blind? Every planted bug must be found, and soon.
//!
//! `POSTHASTE_SIM_BUG=NAME` hunts only the bugs whose name contains this.

use posthaste_engine::planted;
use posthaste_sim::{Bug, run_with};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Seeds within which each bug must be found.
const SEEDS_MAX: u64 = 10_000;

/// A bug, of the engine or of what is around it.
#[derive(Clone, Copy, Debug)]
enum Planted {
    Engine(planted::Bug),
    Around(Bug),
}

/// The rule that the first seed breaks which finds the bug, and how many seeds that took.
fn hunt(bug: Planted) -> Option<(u64, String)> {
    let around = match bug {
        Planted::Engine(bug) => {
            planted::plant(Some(bug));
            None
        }
        Planted::Around(bug) => {
            planted::plant(None);
            Some(bug)
        }
    };
    // The engine checks itself too: a panic finds the bug as well.
    let found = (1..=SEEDS_MAX).find_map(|seed| match std::panic::catch_unwind(|| run_with(seed, around, false)) {
        Ok(report) => report.violation.map(|violation| (seed, violation.rule.to_owned())),
        Err(_) => Some((seed, "the engine panics".to_owned())),
    });
    planted::plant(None);
    found
}

#[test]
fn every_planted_bug_is_found() {
    let engine = planted::Bug::ALL.into_iter().map(Planted::Engine);
    let name = std::env::var("POSTHASTE_SIM_BUG").unwrap_or_default();
    let all = engine.chain(Bug::ALL.into_iter().map(Planted::Around));
    let bugs: Vec<Planted> = all.filter(|bug| format!("{bug:?}").contains(&name)).collect();
    assert!(!bugs.is_empty(), "no bug has {name} in its name");
    let next = AtomicUsize::new(0);
    let found = Mutex::new(Vec::new());
    std::panic::set_hook(Box::new(|_| {}));
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                while let Some(bug) = bugs.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let result = hunt(*bug);
                    found.lock().unwrap().push((*bug, result));
                }
            });
        }
    });
    drop(std::panic::take_hook());
    let found = found.into_inner().unwrap();
    let mut missed = Vec::new();
    for (bug, result) in &found {
        match result {
            Some((seeds, rule)) => println!("{seeds:>6} seeds: {bug:?} breaks \"{rule}\""),
            None => missed.push(bug),
        }
    }
    assert_eq!(found.len(), bugs.len());
    assert!(missed.is_empty(), "not found within {SEEDS_MAX} seeds: {missed:?}");
}
