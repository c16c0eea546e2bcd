//! Random numbers that a seed decides, and nothing else.

/// SplitMix64: small, fast, and good enough to choose what happens next.
#[derive(Clone, Debug)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ 0x5DEE_CE66_D1CE_4E5B)
    }

    pub(crate) fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// A number less than `end`, which is not zero.
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        ((u128::from(self.next_u64()) * u128::from(end)) >> 64) as u64
    }

    /// A number from `first` to `last`.
    pub(crate) fn within(&mut self, first: u64, last: u64) -> u64 {
        first + self.below(last - first + 1)
    }

    /// A number from `first`, at least 1, to `last`: each magnitude is as likely as any other.
    pub(crate) fn any_size(&mut self, first: u64, last: u64) -> u64 {
        let doublings = (last / first).ilog2();
        let low = first << self.below(u64::from(doublings) + 1);
        self.within(low, (low * 2).min(last))
    }

    /// True so many times in a thousand.
    pub(crate) fn permille(&mut self, share: u64) -> bool {
        self.below(1_000) < share
    }

    /// One of several.
    pub(crate) fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len() as u64) as usize]
    }

    /// The index of one of several, each as likely as its weight says.
    pub(crate) fn weighted(&mut self, weights: &[u64]) -> usize {
        let mut point = self.below(weights.iter().sum());
        for (index, weight) in weights.iter().enumerate() {
            match point.checked_sub(*weight) {
                Some(rest) => point = rest,
                None => return index,
            }
        }
        weights.len() - 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_stay_within_their_bounds_and_reach_them() {
        let mut random = Random::new(1);
        let drawn: Vec<u64> = (0..1_000).map(|_| random.within(3, 7)).collect();
        assert_eq!((drawn.iter().min(), drawn.iter().max()), (Some(&3), Some(&7)));
        assert!((0..1_000).all(|_| (1..=86_400_000).contains(&random.any_size(1, 86_400_000))));
        assert!((0..1_000).all(|_| random.weighted(&[0, 1, 0]) == 1));
    }
}
