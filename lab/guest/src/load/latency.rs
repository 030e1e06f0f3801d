//! Latency samples: kept one by one, so that percentiles are exact and a zero counts as a zero.

use serde::Serialize;

/// Samples in ns. They are signed: a negative latency would say that the machine's clock is not causal, and
/// must be seen.
#[derive(Default)]
pub struct Samples(Vec<i64>);

/// What is reported of a set of samples, ns. A percentile is the smallest sample that at least that share
/// of all samples does not exceed (nearest rank).
#[derive(Debug, PartialEq, Eq, Serialize)]
pub struct Summary {
    pub count: usize,
    pub min: i64,
    pub mean: i64,
    pub p50: i64,
    pub p90: i64,
    pub p99: i64,
    pub p999: i64,
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

/// Nearest rank among sorted samples.
fn percentile(sorted: &[i64], per_mille: usize) -> i64 {
    let rank = (sorted.len() * per_mille).div_ceil(1000).max(1);
    sorted[rank - 1]
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
        let expected =
            Summary { count: 1000, min: 1, mean: 500, p50: 500, p90: 900, p99: 990, p999: 999, max: 1000 };
        assert_eq!(summary((1..=1000).rev()), Some(expected));
    }

    #[test]
    fn few_samples_and_zeros_count() {
        assert_eq!(summary([]), None);
        let one = summary([7]).unwrap();
        assert_eq!((one.min, one.p50, one.p999, one.max), (7, 7, 7, 7));
        let two = summary([0, 10]).unwrap();
        assert_eq!((two.p50, two.mean, two.p99), (0, 5, 10));
    }
}
