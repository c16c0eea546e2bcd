//! Percentiles of one run, and medians over several.

use serde::{Deserialize, Serialize};

/// The distribution of one kind of latency, in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Percentiles {
    pub(crate) p50_ms: f64,
    pub(crate) p90_ms: f64,
    pub(crate) p99_ms: f64,
    pub(crate) p999_ms: f64,
    pub(crate) max_ms: f64,
}

impl Percentiles {
    /// The percentiles of samples in nanoseconds, which get sorted; `None` if there are none.
    pub(crate) fn of(samples_ns: &mut [u64]) -> Option<Self> {
        if samples_ns.is_empty() {
            return None;
        }
        samples_ns.sort_unstable();
        let at = |share: f64| {
            let rank = ((samples_ns.len() - 1) as f64 * share).round() as usize;
            samples_ns[rank] as f64 / 1e6
        };
        Some(Self { p50_ms: at(0.5), p90_ms: at(0.9), p99_ms: at(0.99), p999_ms: at(0.999), max_ms: at(1.0) })
    }
}

/// The middle value, or the mean of the two middle values; `None` if there are none.
pub(crate) fn median(values: impl IntoIterator<Item = f64>) -> Option<f64> {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_unstable_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => None,
        len if len % 2 == 1 => Some(values[middle]),
        _ => Some((values[middle - 1] + values[middle]) / 2.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_the_nearest_rank_in_milliseconds() {
        let mut samples: Vec<u64> = (0..=1000).rev().map(|ms| ms * 1_000_000).collect();
        let found = Percentiles::of(&mut samples).unwrap();
        let expected = Percentiles { p50_ms: 500.0, p90_ms: 900.0, p99_ms: 990.0, p999_ms: 999.0, max_ms: 1000.0 };
        assert_eq!(found, expected);
    }

    #[test]
    fn one_sample_is_every_percentile_and_none_is_none() {
        let found = Percentiles::of(&mut [2_500_000]).unwrap();
        assert_eq!((found.p50_ms, found.p99_ms, found.max_ms), (2.5, 2.5, 2.5));
        assert_eq!(Percentiles::of(&mut []), None);
    }

    #[test]
    fn the_median_ignores_order_and_outliers() {
        let cases: [(&[f64], Option<f64>); 4] =
            [(&[], None), (&[3.0], Some(3.0)), (&[900.0, 1.0, 2.0], Some(2.0)), (&[4.0, 1.0, 2.0, 3.0], Some(2.5))];
        for (values, expected) in cases {
            assert_eq!(median(values.iter().copied()), expected, "{values:?}");
        }
    }
}
