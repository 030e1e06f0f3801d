//! Latency samples: kept one by one, so that percentiles are exact and a zero counts as a zero.

use serde::Serialize;

/// Samples in ns. They are signed: a negative latency would say that the machine's clock is not causal, and
/// must be seen.
#[derive(Default)]
pub struct Samples(Vec<i64>);

/// How many samples lie beyond a percentile at least: of fewer, it would be the luck of those few.
const BEYOND: usize = 10;

/// What is reported of a set of samples, ns. A percentile is the smallest sample that at least that share
/// of all samples does not exceed (nearest rank); one with fewer than [`BEYOND`] samples beyond it is left out.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub struct Summary {
    pub count: usize,
    pub min: i64,
    pub mean: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub p50: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub p90: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub p99: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub p999: Option<i64>,
    pub max: i64,
}

impl Samples {
    /// Makes room for `count` samples and touches it, so that no page fault falls into the measurement.
    pub fn with_room(count: usize) -> Self {
        let mut samples = vec![1; count];
        samples.clear();
        Self(samples)
    }

    pub fn add(&mut self, ns: i64) {
        self.0.push(ns);
    }

    pub fn append(&mut self, other: Self) {
        self.0.extend(other.0);
    }

    /// Summarises the samples; none if there are none.
    pub fn summary(mut self) -> Option<Summary> {
        self.0.sort_unstable();
        let samples = &self.0;
        let sum: i128 = samples.iter().map(|&sample| i128::from(sample)).sum();
        Some(Summary {
            count: samples.len(),
            min: *samples.first()?,
            mean: i64::try_from(sum / samples.len() as i128).ok()?,
            p50: percentile(samples, 500),
            p90: percentile(samples, 900),
            p99: percentile(samples, 990),
            p999: percentile(samples, 999),
            max: *samples.last()?,
        })
    }
}

/// Nearest rank among sorted samples; none if too few lie beyond it.
fn percentile(sorted: &[i64], per_mille: usize) -> Option<i64> {
    let rank = (sorted.len() * per_mille).div_ceil(1000);
    (sorted.len() - rank >= BEYOND).then(|| sorted[rank - 1])
}

#[cfg(test)]
mod tests {
    use super::{Samples, Summary};

    fn summary(samples: impl IntoIterator<Item = i64>) -> Option<Summary> {
        let mut all = Samples::default();
        samples.into_iter().for_each(|sample| all.add(sample));
        all.summary()
    }

    #[test]
    fn percentiles_are_nearest_ranks() {
        let all = summary((1..=10_000).rev()).unwrap();
        assert_eq!((all.count, all.min, all.mean, all.max), (10_000, 1, 5000, 10_000));
        assert_eq!((all.p50, all.p90, all.p99, all.p999), (Some(5000), Some(9000), Some(9900), Some(9990)));
    }

    #[test]
    fn few_samples_and_zeros_count() {
        assert_eq!(summary([]), None);
        let two = summary([0, 10]).unwrap();
        assert_eq!((two.count, two.min, two.mean, two.max), (2, 0, 5, 10));
    }

    #[test]
    fn a_percentile_needs_ten_samples_beyond_it() {
        let known = |count| {
            let all = summary(0..count).unwrap();
            [all.p50, all.p90, all.p99, all.p999].map(|percentile| percentile.is_some())
        };
        assert_eq!(known(19), [false; 4]);
        assert_eq!(known(20), [true, false, false, false]);
        assert_eq!(known(999), [true, true, false, false]);
        assert_eq!(known(1000), [true, true, true, false]);
        assert_eq!(known(10_000), [true; 4]);
        let json = serde_json::to_string(&summary(0..20)).unwrap();
        assert_eq!(json, r#"{"count":20,"min":0,"mean":9,"p50":9,"max":19}"#);
    }
}
