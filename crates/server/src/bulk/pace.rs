//! How fast a bulk action may go.

use super::PIECE;
use std::time::Duration;

/// Pieces per second of an action with a pace, as far as whole messages allow.
const PIECES_PER_SECOND: u32 = 10;

/// How much at once, and how long from the beginning of one piece to that of the next.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Pace {
    pub(super) piece: usize,
    pub(super) pause: Duration,
}

impl Pace {
    /// That of so many messages per second; without a rate, as fast as it goes.
    pub(super) fn of(rate: Option<u32>) -> Pace {
        let Some(rate) = rate.map(|rate| rate.max(1)) else { return Pace { piece: PIECE, pause: Duration::ZERO } };
        let piece = (rate / PIECES_PER_SECOND).clamp(1, PIECE as u32);
        Pace {
            piece: piece as usize,
            pause: Duration::from_micros((u64::from(piece) * 1_000_000).div_ceil(rate.into())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_and_pauses_make_the_rate() {
        for (rate, piece, millis) in [(1, 1, 1_000), (2, 1, 500), (10, 1, 100), (50, 5, 100), (1_000, 100, 100)] {
            assert_eq!(Pace::of(Some(rate)), Pace { piece, pause: Duration::from_millis(millis) }, "{rate}");
        }
        assert_eq!(Pace::of(None), Pace { piece: PIECE, pause: Duration::ZERO });
        for rate in 0..5_000 {
            let Pace { piece, pause } = Pace::of(Some(rate));
            assert!(piece as f64 / pause.as_secs_f64() <= f64::from(rate.max(1)), "{rate}");
        }
    }
}
