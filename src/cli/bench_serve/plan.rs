//! The requests and the times when they are sent: random tokens and random pauses, the same for the same seed.

use std::time::Duration;

/// A small random generator (SplitMix64).
pub(super) struct Random(u64);

impl Random {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Random tokens of a vocabulary.
    pub(super) fn tokens(&mut self, count: usize, vocabulary: u32) -> Vec<u32> {
        let vocabulary = u64::from(vocabulary.max(1));
        (0..count)
            .map(|_| (self.bits() % vocabulary) as u32)
            .collect()
    }

    /// The time until the next request of a Poisson process of `rate` per second.
    fn pause(&mut self, rate: f64) -> Duration {
        // From above 0 to 1.
        let uniform = ((self.bits() >> 11) + 1) as f64 / (1u64 << 53) as f64;
        Duration::try_from_secs_f64(-uniform.ln() / rate).unwrap_or(Duration::MAX)
    }

    /// The times of requests after the first: `rate` per second, or all at once.
    pub(super) fn arrivals(&mut self, count: usize, rate: Option<f64>) -> Vec<Duration> {
        let mut at = Duration::ZERO;
        let mut arrivals = vec![];
        for _ in 0..count {
            arrivals.push(at);
            if let Some(rate) = rate {
                at = at.saturating_add(self.pause(rate));
            }
        }
        arrivals
    }
}

/// The times of `count` requests that are spread evenly over some time.
pub(super) fn spread(count: usize, over: Duration) -> Vec<Duration> {
    let all = count.max(1) as f64;
    (0..count).map(|i| over.mul_f64(i as f64 / all)).collect()
}

/// Requests per second: a number above 0, or `inf`, which is `None`.
pub(super) fn rate(text: &str) -> Result<Rate, String> {
    match text.parse::<f64>() {
        Ok(rate) if rate == f64::INFINITY => Ok(None),
        Ok(rate) if rate > 0.0 => Ok(Some(rate)),
        _ => Err("not a number above 0, or inf for all at once".to_owned()),
    }
}

/// Requests per second. `None` is all at once. The type has a name because clap would take a bare `Option` for a flag that may be missing.
pub(super) type Rate = Option<f64>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_come_at_their_rate_and_the_same_for_the_same_seed() {
        let arrivals = Random::new(7).arrivals(20_001, Some(50.0));
        let last = arrivals.last().expect("there are some").as_secs_f64();
        assert!((last - 400.0).abs() < 12.0, "{last}");
        assert!(arrivals.windows(2).all(|two| two[0] <= two[1]));
        assert_eq!(arrivals, Random::new(7).arrivals(20_001, Some(50.0)));
        assert_ne!(arrivals, Random::new(8).arrivals(20_001, Some(50.0)));
        let at_once = Random::new(7).arrivals(3, None);
        assert_eq!(at_once, [Duration::ZERO; 3]);
        let even = spread(4, Duration::from_secs(60));
        assert_eq!(even, [0, 15, 30, 45].map(Duration::from_secs));
        let tokens = Random::new(7).tokens(1000, 10);
        assert!((0..10).all(|token| tokens.contains(&token)));
    }

    #[test]
    fn rates_are_above_0() {
        assert_eq!(rate("inf"), Ok(None));
        assert_eq!(rate("2.5"), Ok(Some(2.5)));
        for wrong in ["0", "-1", "nan", "x", "-inf"] {
            assert!(rate(wrong).is_err(), "{wrong}");
        }
    }
}
