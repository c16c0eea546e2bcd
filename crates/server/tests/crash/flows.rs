//! What flow-control keys promise: how many requests begin within a period, and how many go on at once. Pure.

use crate::checker::Violation;
use crate::history::{Arrival, FLOWS, FlowLimits, History, Micros, Millis};
use crate::overlap::{Span, beyond};
use std::collections::HashMap;

/// Requests may arrive this much closer together than they were started: a start counts from the moment it is
/// committed, and is then sent by a machine that is busy with much else. On a quiet one it is milliseconds.
const JITTER_MS: Millis = 400;

pub(crate) fn check(history: &History) -> Vec<Violation> {
    let keyed = history.publishes.iter().filter_map(|publish| Some((publish.key.as_str(), publish.terms.flow?)));
    let flows: HashMap<&str, usize> = keyed.collect();
    let mut violations = Vec::new();
    for (flow, limits) in FLOWS.into_iter().enumerate() {
        let is_its = |arrival: &&Arrival| flows.get(arrival.key.as_str()) == Some(&flow);
        let arrivals: Vec<&Arrival> = history.arrivals.iter().filter(is_its).collect();
        violations.extend(check_key(limits, arrivals, history));
    }
    violations
}

/// The requests of one key. Killed servers leave no request behind: their connections break.
fn check_key(limits: FlowLimits, mut arrivals: Vec<&Arrival>, history: &History) -> Vec<Violation> {
    let mut violations = Vec::new();
    if let Some(parallelism) = limits.parallelism {
        let span = |arrival: &&'_ Arrival| (arrival.began_us, arrival.ended_us);
        let spans = arrivals.iter().map(|arrival| {
            let (began_us, ended_us) = span(arrival);
            Span { key: &arrival.key, began_us, ended_us }
        });
        let found = beyond(spans.collect(), parallelism);
        violations.extend(found.into_iter().map(|key| Violation::OverParallelism(key.to_owned())));
    }
    if let Some((rate, period_ms)) = limits.rate {
        let least_us: Micros = (period_ms - JITTER_MS) * 1_000;
        arrivals.sort_unstable_by_key(|arrival| arrival.began_us);
        let windows = arrivals.windows(rate + 1).map(|window| (window[0], window[rate]));
        let still_us =
            |first: &Arrival, last: &Arrival| history.still_ms(first.at().saturating_sub(period_ms), last.at()) * 1_000;
        let full = windows.filter(|(first, last)| last.began_us - first.began_us + still_us(first, last) < least_us);
        violations.extend(full.map(|(_, last)| Violation::OverRate(last.key.clone())));
    }
    violations
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::Stall;

    /// One request of 3 ms at each of these times.
    fn arrivals(times: impl IntoIterator<Item = Millis>) -> Vec<Arrival> {
        let arrival = |at: Millis| Arrival {
            key: format!("k{at}"),
            id: String::new(),
            began_us: at * 1_000,
            ended_us: at * 1_000 + 3_000,
            status: 200,
            intact: true,
        };
        times.into_iter().map(arrival).collect()
    }

    fn found(limits: FlowLimits, times: &[Millis]) -> Vec<Violation> {
        check_key(limits, arrivals(times.iter().copied()).iter().collect(), &History::default())
    }

    #[test]
    fn more_starts_within_a_period_than_the_rate_are_seen_wherever_they_begin() {
        let limits = FlowLimits { parallelism: None, rate: Some((2, 1_000)) };
        assert_eq!(found(limits, &[0, 900, 1_100, 1_900]), []);
        assert_eq!(found(limits, &[2_000, 0, 1]), []);
        let late = Violation::OverRate("k500".to_owned());
        assert_eq!(found(limits, &[0, 1, 500]), [late]);
        let late = Violation::OverRate("k1400".to_owned());
        assert_eq!(found(limits, &[0, 900, 1_200, 1_400]), [late]);
    }

    #[test]
    fn what_a_stall_has_kept_together_is_no_violation() {
        let limits = FlowLimits { parallelism: None, rate: Some((2, 1_000)) };
        let judged = |from: Millis, until: Millis| {
            let history = History { stalls: vec![Stall { from, until }], ..History::default() };
            check_key(limits, arrivals([5_000, 5_001, 5_500]).iter().collect(), &history)
        };
        assert_eq!(judged(4_100, 4_990), [], "they were kept from arriving until then");
        for (from, until) in [(2_000, 3_900), (5_600, 6_000), (4_900, 4_990)] {
            assert_eq!(judged(from, until), [Violation::OverRate("k5500".to_owned())]);
        }
    }

    #[test]
    fn more_at_once_than_the_parallelism_are_seen() {
        let limits = FlowLimits { parallelism: Some(2), rate: None };
        assert_eq!(found(limits, &[0, 1, 3, 4]), []);
        assert_eq!(found(limits, &[0, 1, 2]), [Violation::OverParallelism("k2".to_owned())]);
    }
}
