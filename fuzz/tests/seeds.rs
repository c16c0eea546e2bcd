//! Every target holds for its seeds and its stored inputs, and names are unique.

use posthaste_engine::bulk_action::BulkAction;
use posthaste_engine::event::{EventDetail, Response};
use posthaste_engine::flow::Flow;
use posthaste_engine::message::MessageSpec;
use posthaste_engine::schedule::{SchedulePlan, ScheduleState};
use posthaste_engine::url_group::UrlGroup;
use posthaste_engine::workflow::entry::{Delivery, Terms};
use posthaste_engine::workflow::run::Run;
use posthaste_fuzz::run::attempt;
use posthaste_fuzz::{TARGETS, corpus, seeds, target};
use posthaste_store::journal::frame;
use std::collections::HashSet;
use std::path::Path;

#[test]
fn targets_hold_for_their_seeds_and_stored_inputs() {
    let kept = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus");
    for target in TARGETS {
        let mut inputs = (target.seeds)();
        assert!(inputs.len() >= 5, "{} has {} seeds", target.name, inputs.len());
        inputs.extend(corpus::read(&kept.join(format!("{}.txt", target.name))).expect("the inputs can be read"));
        for input in inputs {
            if let Err(failure) = attempt(target.run, &input) {
                panic!("{}: {}: {}", target.name, failure.reason, input.escape_ascii());
            }
        }
    }
}

#[test]
fn names_are_unique() {
    let names: HashSet<&str> = TARGETS.iter().map(|target| target.name).collect();
    assert_eq!(names.len(), TARGETS.len());
    assert!(names.iter().all(|name| target(name).is_some_and(|target| target.name == *name)));
    assert!(target("nothing").is_none());
}

#[test]
fn seeds_of_stored_records_are_complete() {
    for seed in seeds::journal() {
        let read = frame::ops(&seed);
        assert!(read.is_ok(), "{read:?}: {}", seed.escape_ascii());
    }
    let mut kinds = HashSet::new();
    for seed in seeds::stored() {
        let (kind, rest) = seed.split_first().expect("a seed has a kind");
        let Ok(text) = std::str::from_utf8(rest) else { continue };
        let read = match kind {
            0 => serde_json::from_str::<MessageSpec>(text).map(drop),
            1 => serde_json::from_str::<EventDetail>(text).map(drop),
            2 => serde_json::from_str::<Response>(text).map(drop),
            3 => serde_json::from_str::<SchedulePlan>(text).map(drop),
            4 => serde_json::from_str::<ScheduleState>(text).map(drop),
            5 => serde_json::from_str::<Flow>(text).map(drop),
            6 => serde_json::from_str::<UrlGroup>(text).map(drop),
            7 => serde_json::from_str::<BulkAction>(text).map(drop),
            9 => serde_json::from_str::<Run>(text).map(drop),
            10 => serde_json::from_str::<Terms>(text).map(drop),
            11 => serde_json::from_str::<Delivery>(text).map(drop),
            _ => continue,
        };
        assert!(read.is_ok(), "{read:?}: {text}");
        kinds.insert(*kind);
    }
    assert_eq!(kinds.len(), 11, "a kind of record has no seed");
}
