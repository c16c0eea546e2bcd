//! The summary of a run: the only data of it that is committed. It has the figures and plots, and for each measurement the
//! median and the range over its rounds. The raw reports of the single runs are written elsewhere. Pure.

use super::figure::TARGET;
use super::workflows;
use crate::load::Report;
use crate::stats::median;
use serde::{Serialize, Serializer};

/// One measurement, with its values over all rounds.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Measurement {
    /// The label of its runs, without the number of the round.
    pub(super) label: String,
    pub(super) rounds: usize,
    #[serde(flatten)]
    values: Values,
}

/// The values of a measurement by name, in a fixed order.
#[derive(Clone, Debug, PartialEq)]
struct Values(Vec<(&'static str, Range)>);

impl Serialize for Values {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(name, range)| (name, [range.median, range.least, range.most])))
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Range {
    median: f64,
    least: f64,
    most: f64,
}

impl Range {
    fn of(values: &[f64]) -> Option<Self> {
        let extreme = |pick: fn(f64, f64) -> f64| values.iter().copied().reduce(pick);
        Some(Self {
            median: rounded(median(values.iter().copied())?),
            least: rounded(extreme(f64::min)?),
            most: rounded(extreme(f64::max)?),
        })
    }
}

/// Values of one run by name; those that it does not have are missing.
type Sample = Vec<(&'static str, Option<f64>)>;

/// The measurements of a run, in the order of their first rounds.
pub(super) fn measurements(runs: &[Report], workflows: &[workflows::Report]) -> Vec<Measurement> {
    let of_runs = runs.iter().map(|run| (run.label.as_str(), sample(run)));
    let of_workflows = workflows.iter().map(|run| (run.label.as_str(), workflow_sample(run)));
    let mut groups: Vec<(String, Vec<Sample>)> = Vec::new();
    for (label, sample) in of_runs.chain(of_workflows) {
        let label = without_round(label);
        match groups.iter_mut().find(|(known, _)| *known == label) {
            Some((_, samples)) => samples.push(sample),
            None => groups.push((label, vec![sample])),
        }
    }
    groups.into_iter().map(|(label, samples)| measurement(label, &samples)).collect()
}

fn measurement(label: String, samples: &[Sample]) -> Measurement {
    let names = samples.first().into_iter().flatten().map(|(name, _)| *name);
    let values = names.filter_map(|name| {
        let named = |sample: &Sample| sample.iter().find(|(other, _)| *other == name)?.1;
        let values: Vec<f64> = samples.iter().filter_map(named).collect();
        Some((name, Range::of(&values)?))
    });
    Measurement { label, rounds: samples.len(), values: Values(values.collect()) }
}

fn sample(report: &Report) -> Sample {
    let delivery = report.delivery.as_ref();
    let e2e = delivery.and_then(|delivery| delivery.e2e);
    let cpu = delivery.map_or(&report.cpu_publish_us_per_msg, |delivery| &delivery.cpu_us_per_msg);
    vec![
        ("publish_per_s", Some(report.publish_per_s)),
        ("publish_p50_ms", report.publish.map(|p| p.p50_ms)),
        ("publish_p99_ms", report.publish.map(|p| p.p99_ms)),
        ("delivered_per_s", delivery.map(|delivery| delivery.delivered_per_s)),
        ("arrival_p50_ms", e2e.map(|p| p.p50_ms)),
        ("arrival_p99_ms", e2e.map(|p| p.p99_ms)),
        ("cpu_us_per_msg", cpu.get(TARGET).copied()),
        ("written_bytes_per_msg", delivery.and_then(|delivery| delivery.written_bytes_per_msg.get(TARGET).copied())),
        ("rss_peak_mb", report.usage.get(TARGET).map(|usage| usage.rss_peak_mb)),
        ("foreign_cpu_pct", Some(report.foreign_cpu_pct)),
    ]
}

fn workflow_sample(report: &workflows::Report) -> Sample {
    vec![
        ("steps_per_s", Some(report.steps_per_s)),
        ("run_p50_ms", report.tally.took.map(|p| p.p50_ms)),
        ("run_p99_ms", report.tally.took.map(|p| p.p99_ms)),
        ("cpu_us_per_step", report.cpu_us_per_step.get(TARGET).copied()),
        ("foreign_cpu_pct", Some(report.foreign_cpu_pct)),
    ]
}

/// `saturation 1/5, relay` is a round of `saturation, relay`.
fn without_round(label: &str) -> String {
    let is_round = |word: &str| {
        let parts = word.trim_end_matches(',').split_once('/');
        parts.is_some_and(|(round, rounds)| round.parse::<u32>().is_ok() && rounds.parse::<u32>().is_ok())
    };
    let mut words: Vec<String> = Vec::new();
    for word in label.split(' ') {
        match words.last_mut() {
            _ if !is_round(word) => words.push(word.to_owned()),
            Some(last) if word.ends_with(',') && !last.ends_with(',') => last.push(','),
            _ => {}
        }
    }
    words.join(" ").trim_end_matches(',').to_owned()
}

/// Four significant digits, which is more than the measurements are worth.
fn rounded(value: f64) -> f64 {
    format!("{value:.3e}").parse().unwrap_or(value)
}

/// A member of a JSON object.
pub(super) enum Member {
    One(String),
    List(Vec<String>),
}

impl Member {
    pub(super) fn one(value: &impl Serialize) -> serde_json::Result<Self> {
        Ok(Self::One(serde_json::to_string(value)?))
    }

    pub(super) fn list<T: Serialize>(elements: &[T]) -> serde_json::Result<Self> {
        Ok(Self::List(elements.iter().map(serde_json::to_string).collect::<serde_json::Result<_>>()?))
    }
}

/// A JSON object with one line for each member and for each element of a list. It is short, and differences between two
/// summaries are readable.
pub(super) fn layout(members: &[(&str, Member)]) -> String {
    let lines = members.iter().map(|(name, member)| match member {
        Member::List(elements) if !elements.is_empty() => {
            format!("  \"{name}\": [\n    {}\n  ]", elements.join(",\n    "))
        }
        Member::List(_) => format!("  \"{name}\": []"),
        Member::One(value) => format!("  \"{name}\": {value}"),
    });
    format!("{{\n{}\n}}\n", lines.collect::<Vec<_>>().join(",\n"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::figure::tests::report;
    use serde_json::{Value, json};
    use std::path::Path;

    /// Longest summary in the repository.
    const SUMMARY_BYTES_MAX: u64 = 64 * 1024;

    fn labelled(label: &str, delivered_per_s: f64) -> Report {
        Report { label: label.to_owned(), ..report(delivered_per_s, 0, 20.0) }
    }

    #[test]
    fn labels_lose_the_number_of_their_round() {
        for (label, expected) in [
            ("saturation 1/5, relay", "saturation, relay"),
            ("500/s 3/5, server", "500/s, server"),
            ("delayed, 1,000 stored, 2/5", "delayed, 1,000 stored"),
            ("delayed, with backlog 4/5", "delayed, with backlog"),
            ("delayed, with backlog 4/5, publish", "delayed, with backlog, publish"),
            ("peers 10/10, BullMQ on Redis, 500/s", "peers, BullMQ on Redis, 500/s"),
            ("fanout", "fanout"),
        ] {
            assert_eq!(without_round(label), expected);
        }
    }

    #[test]
    fn rounds_of_a_measurement_become_a_median_and_a_range() {
        let runs = [
            labelled("saturation 1/3, relay", 100.0),
            labelled("saturation 1/3, server", 1_234.567),
            labelled("saturation 2/3, server", 3_000.0),
            labelled("saturation 3/3, server", 2_000.0),
        ];
        let found = measurements(&runs, &[]);
        assert_eq!(
            found.iter().map(|m| (m.label.as_str(), m.rounds)).collect::<Vec<_>>(),
            [("saturation, relay", 1), ("saturation, server", 3)]
        );
        let text = serde_json::to_value(&found[1]).unwrap();
        assert_eq!(text["delivered_per_s"], json!([2_000.0, 1_235.0, 3_000.0]));
        assert_eq!(text["cpu_us_per_msg"], json!([20.0, 20.0, 20.0]));
        assert_eq!(text["rss_peak_mb"], Value::Null, "values that no run has are left out");
    }

    #[test]
    fn a_summary_has_one_line_per_figure_and_is_json() {
        let figures = [json!({ "a": 1 }), json!({ "b": [1, 2] })];
        let members = [
            ("lost", Member::one(&0).unwrap()),
            ("plan", Member::one(&json!({ "rounds": 5 })).unwrap()),
            ("figures", Member::list(&figures).unwrap()),
            ("warnings", Member::list::<String>(&[]).unwrap()),
        ];
        let text = layout(&members);
        let expected = json!({ "lost": 0, "plan": { "rounds": 5 }, "figures": figures, "warnings": [] });
        assert_eq!(serde_json::from_str::<Value>(&text).unwrap(), expected);
        assert_eq!(text.lines().count(), 9, "{text}");
    }

    #[test]
    fn committed_results_are_small_summaries() {
        let results = Path::new(env!("CARGO_MANIFEST_DIR")).join("results");
        let mut count = 0;
        for entry in std::fs::read_dir(results).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_none_or(|extension| extension != "json") {
                continue;
            }
            let text = std::fs::read_to_string(&path).unwrap();
            let summary: Value = serde_json::from_str(&text).unwrap();
            let has = |name: &str| summary.get(name).is_some();
            assert!(["started", "machine", "commit", "figures", "measurements"].into_iter().all(has), "{path:?}");
            assert!(!has("runs") && (text.len() as u64) <= SUMMARY_BYTES_MAX, "{path:?} has raw data");
            count += 1;
        }
        assert!(count > 0, "there are no results");
    }
}
