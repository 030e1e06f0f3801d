//! Everything drawn at random comes from the seed, one independent stream for each thread.

use oorandom::Rand64;

/// A stream of random numbers.
pub struct Random(Rand64);

impl Random {
    /// Makes the stream of one of many threads.
    pub fn new(seed: u64, stream: usize) -> Self {
        Self(Rand64::new(u128::from(seed) << 64 | stream as u128))
    }

    /// Draws from 0 to `limit`, the limit excluded; 0 if the limit is 0.
    pub fn below(&mut self, limit: u64) -> u64 {
        if limit == 0 { 0 } else { self.0.rand_range(0..limit) }
    }

    /// Draws uniformly from half to one and a half times the mean.
    pub fn around(&mut self, mean: u64) -> u64 {
        mean - mean / 2 + self.below(mean + 1)
    }

    /// Draws whether something happens that happens in a part of all cases.
    pub fn chance(&mut self, part: f64) -> bool {
        const STEPS: u64 = 1 << 32;
        (self.below(STEPS) as f64) < part * STEPS as f64
    }

    /// Draws the time to the next of events that come by chance, so many apart on average (exponentially).
    pub fn exponential(&mut self, mean: f64) -> u64 {
        (-mean * (1.0 - self.0.rand_float()).ln()) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::Random;

    fn draw(seed: u64, stream: usize) -> Vec<u64> {
        let mut random = Random::new(seed, stream);
        (0..100).map(|_| random.around(1000)).collect()
    }

    #[test]
    fn the_seed_decides() {
        assert_eq!(draw(1, 0), draw(1, 0));
        assert_ne!(draw(1, 0), draw(2, 0));
        assert_ne!(draw(1, 0), draw(1, 1));
    }

    #[test]
    fn around_keeps_its_mean_and_bounds() {
        let mut random = Random::new(3, 0);
        let draws: Vec<u64> = (0..10_000).map(|_| random.around(1000)).collect();
        assert!(draws.iter().all(|draw| (500..=1500).contains(draw)));
        let mean = draws.iter().sum::<u64>() / 10_000;
        assert!((990..=1010).contains(&mean), "{mean}");
        assert_eq!(Random::new(1, 0).around(0), 0);
    }

    #[test]
    fn chance_and_exponential_keep_their_means() {
        let mut random = Random::new(5, 0);
        let hits = (0..10_000).filter(|_| random.chance(0.25)).count();
        assert!((2_400..=2_600).contains(&hits), "{hits}");
        assert!(!random.chance(0.0) && random.chance(1.0));
        let draws: Vec<u64> = (0..10_000).map(|_| random.exponential(1e6)).collect();
        let mean = draws.iter().sum::<u64>() / 10_000;
        assert!((970_000..=1_030_000).contains(&mean), "{mean}");
        // Without memory: 1 - 1/e of them come before the mean.
        let before = draws.iter().filter(|&&draw| draw < 1_000_000).count();
        assert!((6_200..=6_450).contains(&before), "{before}");
    }
}
