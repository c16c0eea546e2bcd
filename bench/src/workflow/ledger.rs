//! The endpoint's record of the runs of each measurement. Pure.

use super::protocol::RunKey;
use crate::stats::Percentiles;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;

/// Runs above this number of a measurement are wrong, so that memory stays bounded.
const RUNS_MAX: u32 = 1 << 20;

/// An application's record of a measurement, as `/_tally?run=R` shows it. Applications in other languages show the
/// same, or a part of it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Tally {
    /// Calls of the application for any reason.
    pub(crate) deliveries: u64,
    /// Calls whose entries had been delivered before.
    pub(crate) repeated: u64,
    /// Steps whose result the server accepted, each counted once.
    pub(crate) steps: u64,
    /// Runs whose end the server accepted.
    pub(crate) ended: u64,
    /// Runs that failed according to the server.
    pub(crate) failed: u64,
    /// Deliveries that no correct server makes.
    pub(crate) wrong: u64,
    /// Publishes without a successful response.
    pub(crate) errors: u64,
    pub(crate) first_problem: Option<String>,
    /// From the first start to the last end.
    pub(crate) seconds: f64,
    /// From the start of a run to its end.
    pub(crate) took: Option<Percentiles>,
}

/// By measurement.
#[derive(Default)]
pub(super) struct Ledger(HashMap<u32, Measurement>);

#[derive(Default)]
struct Measurement {
    /// All counts except times.
    tally: Tally,
    runs: Vec<Run>,
    took_ns: Vec<u64>,
    first_start_ns: u64,
    last_end_ns: u64,
}

#[derive(Clone, Default)]
struct Run {
    entries: Vec<Entry>,
    ended: bool,
}

#[derive(Clone, Default)]
struct Entry {
    /// The id that the server used first, in a delivery or in the response to a publish.
    id: Option<Box<str>>,
    delivered: bool,
    published: bool,
}

impl Ledger {
    pub(super) fn tally(&self, measurement: u32) -> Tally {
        let Some(found) = self.0.get(&measurement) else { return Tally::default() };
        let seconds = crate::clock::seconds_between(found.first_start_ns, found.last_end_ns);
        Tally { seconds, took: Percentiles::of(&mut found.took_ns.clone()), ..found.tally.clone() }
    }

    /// Counts a call of the application.
    pub(super) fn called(&mut self, measurement: u32) {
        self.of(measurement).tally.deliveries += 1;
    }

    pub(super) fn wrong(&mut self, measurement: u32, problem: String) {
        let tally = &mut self.of(measurement).tally;
        tally.wrong += 1;
        tally.first_problem.get_or_insert(problem);
    }

    pub(super) fn error(&mut self, measurement: u32, problem: String) {
        let tally = &mut self.of(measurement).tally;
        tally.errors += 1;
        tally.first_problem.get_or_insert(problem);
    }

    pub(super) fn failed(&mut self, measurement: u32, problem: String) {
        let tally = &mut self.of(measurement).tally;
        tally.failed += 1;
        tally.first_problem.get_or_insert(problem);
    }

    /// Checks a delivery of entries with these ids, the last of which is new. Returns the problem, if any.
    pub(super) fn delivered<'a>(
        &mut self,
        key: RunKey,
        ids: impl Iterator<Item = &'a str>,
        sent_ns: u64,
    ) -> Result<(), String> {
        let mut last = 0;
        for (position, id) in ids.enumerate() {
            self.entry(key, position)?.confirm(position, id)?;
            last = position;
        }
        let entry = self.entry(key, last)?;
        let repeated = std::mem::replace(&mut entry.delivered, true);
        let measurement = self.of(key.measurement);
        measurement.tally.repeated += u64::from(repeated);
        if measurement.first_start_ns == 0 || sent_ns < measurement.first_start_ns {
            measurement.first_start_ns = sent_ns;
        }
        Ok(())
    }

    /// Records that the server accepted the `nth` step, and the id of its entry.
    pub(super) fn published(&mut self, key: RunKey, nth: usize, id: &str) -> Result<(), String> {
        let entry = self.entry(key, nth)?;
        entry.confirm(nth, id)?;
        let repeated = std::mem::replace(&mut entry.published, true);
        self.of(key.measurement).tally.steps += u64::from(!repeated);
        Ok(())
    }

    /// Records that the server accepted the end of a run.
    pub(super) fn ended(&mut self, key: RunKey, sent_ns: u64, now_ns: u64) -> Result<(), String> {
        if !std::mem::replace(&mut self.run(key)?.ended, true) {
            let measurement = self.of(key.measurement);
            measurement.tally.ended += 1;
            measurement.took_ns.push(now_ns.saturating_sub(sent_ns));
            measurement.last_end_ns = measurement.last_end_ns.max(now_ns);
        }
        Ok(())
    }

    fn of(&mut self, measurement: u32) -> &mut Measurement {
        self.0.entry(measurement).or_default()
    }

    fn run(&mut self, key: RunKey) -> Result<&mut Run, String> {
        if key.number >= RUNS_MAX {
            return Err(format!("there are too many runs: {}", key.id()));
        }
        let runs = &mut self.of(key.measurement).runs;
        let index = key.number as usize;
        if runs.len() <= index {
            runs.resize((index + 1).next_power_of_two(), Run::default());
        }
        Ok(&mut runs[index])
    }

    fn entry(&mut self, key: RunKey, position: usize) -> Result<&mut Entry, String> {
        let entries = &mut self.run(key)?.entries;
        if entries.len() <= position {
            entries.resize(position + 1, Entry::default());
        }
        Ok(&mut entries[position])
    }
}

impl Entry {
    /// Checks that an entry keeps its first id.
    fn confirm(&mut self, position: usize, id: &str) -> Result<(), String> {
        match &self.id {
            Some(known) if **known == *id => Ok(()),
            Some(known) => Err(format!("entry {position} was {known} and is {id} now")),
            None => {
                self.id = Some(id.into());
                Ok(())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: RunKey = RunKey { measurement: 1, number: 3 };

    #[test]
    fn repeated_deliveries_count_once() {
        let mut ledger = Ledger::default();
        for _ in 0..2 {
            ledger.called(1);
            ledger.delivered(KEY, ["a"].into_iter(), 1_000_000).unwrap();
            ledger.published(KEY, 1, "b").unwrap();
            ledger.ended(KEY, 1_000_000, 3_000_000).unwrap();
        }
        let found = ledger.tally(1);
        assert_eq!((found.deliveries, found.repeated, found.steps, found.ended), (2, 1, 1, 1));
        assert_eq!((found.seconds, found.took.unwrap().max_ms), (0.002, 2.0));
        assert_eq!(ledger.tally(2), Tally::default());
    }

    #[test]
    fn an_entry_keeps_its_first_id() {
        let mut ledger = Ledger::default();
        ledger.delivered(KEY, ["a", "b"].into_iter(), 1).unwrap();
        assert!(ledger.published(KEY, 1, "c").unwrap_err().contains("was b and is c"));
        ledger.published(KEY, 2, "d").unwrap();
        let problem = ledger.delivered(KEY, ["a", "b", "e"].into_iter(), 1).unwrap_err();
        assert!(problem.contains("entry 2 was d and is e"), "{problem}");
    }

    #[test]
    fn runs_above_the_limit_are_wrong() {
        let mut ledger = Ledger::default();
        let key = RunKey { number: RUNS_MAX, ..KEY };
        assert!(ledger.delivered(key, ["a"].into_iter(), 1).is_err());
        ledger.delivered(RunKey { number: RUNS_MAX - 1, ..KEY }, ["a"].into_iter(), 1).unwrap();
    }
}
