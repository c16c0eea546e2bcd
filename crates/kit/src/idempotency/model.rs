//! The life of a key as pure decisions: the current state and the time go in, the new state comes out.
//!
//! [`MemoryStore`](super::MemoryStore) uses it. The stores on Redis and PostgreSQL implement the same rules and are
//! tested against it.

use super::millis;
use posthaste_wire::time::Timestamp;
use std::fmt;
use std::time::Duration;

/// The state of a key that is not free. A free key is `None`, and so is one whose time has expired.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// It is held.
    UnderWay {
        /// Identifies the holder.
        token: [u8; 16],
        /// When its lock expires.
        until: Timestamp,
    },
    /// The work is done.
    Done {
        /// Identifies the holder that completed it.
        token: [u8; 16],
        /// When it is forgotten.
        until: Timestamp,
    },
}

/// The result of an attempt to take a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    /// The key was taken, and this is its new state.
    Acquired(State),
    /// Another holder has it, for this many milliseconds unless they extend it.
    UnderWay {
        /// Milliseconds.
        left_ms: u64,
    },
    /// The work was already done.
    Done,
}

impl State {
    /// Takes the key if it is free.
    ///
    /// ```
    /// use posthaste_kit::idempotency::model::{State, Taken};
    /// use posthaste_wire::time::Timestamp;
    /// use std::time::Duration;
    ///
    /// let lock = Duration::from_millis(10);
    /// let Taken::Acquired(state) = State::begin(None, [1; 16], Timestamp(0), lock) else { panic!("it was free") };
    /// assert_eq!(State::begin(Some(state), [2; 16], Timestamp(4), lock), Taken::UnderWay { left_ms: 6 });
    /// assert!(matches!(State::begin(Some(state), [2; 16], Timestamp(10), lock), Taken::Acquired(_)));
    /// ```
    pub fn begin(current: Option<State>, token: [u8; 16], now: Timestamp, lock: Duration) -> Taken {
        match State::current(current, now) {
            None => Taken::Acquired(State::UnderWay { token, until: now.plus_millis(millis(lock)) }),
            Some(State::UnderWay { until, .. }) => Taken::UnderWay { left_ms: until.millis_since(now) },
            Some(State::Done { .. }) => Taken::Done,
        }
    }

    /// Extends the lock; `None` if the caller no longer holds the key.
    pub fn extend(current: Option<State>, by: [u8; 16], now: Timestamp, lock: Duration) -> Option<State> {
        match State::current(current, now)? {
            State::UnderWay { token, .. } if token == by => {
                Some(State::UnderWay { token, until: now.plus_millis(millis(lock)) })
            }
            _ => None,
        }
    }

    /// Marks the key as done; `None` if another holder has it or has completed it. Repeating it does no harm. A late
    /// call while the key is free also counts, because the effect has happened.
    pub fn complete(current: Option<State>, by: [u8; 16], now: Timestamp, keep: Duration) -> Option<State> {
        match State::current(current, now) {
            Some(State::UnderWay { token, .. } | State::Done { token, .. }) if token != by => None,
            _ => Some(State::Done { token: by, until: now.plus_millis(millis(keep)) }),
        }
    }

    /// Whether the caller may release the key, which is then free.
    pub fn release(current: Option<State>, by: [u8; 16], now: Timestamp) -> bool {
        matches!(State::current(current, now), Some(State::UnderWay { token, .. }) if token == by)
    }

    /// When the state expires.
    pub fn until(self) -> Timestamp {
        match self {
            State::UnderWay { until, .. } | State::Done { until, .. } => until,
        }
    }

    fn current(state: Option<State>, now: Timestamp) -> Option<State> {
        state.filter(|state| now < state.until())
    }
}

impl fmt::Debug for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self {
            State::UnderWay { .. } => "UnderWay",
            State::Done { .. } => "Done",
        };
        f.debug_struct(name).field("until", &self.until()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const A: [u8; 16] = [1; 16];
    const B: [u8; 16] = [2; 16];
    const T: Timestamp = Timestamp(1_000_000);
    const TEN: Duration = Duration::from_millis(10);

    fn under_way(token: [u8; 16], until: u64) -> Option<State> {
        Some(State::UnderWay { token, until: T.plus_millis(until) })
    }

    fn done(token: [u8; 16], until: u64) -> Option<State> {
        Some(State::Done { token, until: T.plus_millis(until) })
    }

    #[test]
    fn a_key_has_one_holder_until_its_lock_expires() {
        let cases = [
            (None, Taken::Acquired(under_way(A, 10).unwrap())),
            (under_way(B, 1), Taken::UnderWay { left_ms: 1 }),
            (under_way(A, 1), Taken::UnderWay { left_ms: 1 }),
            (under_way(B, 0), Taken::Acquired(under_way(A, 10).unwrap())),
            (done(B, 1), Taken::Done),
            (done(A, 1), Taken::Done),
            (done(B, 0), Taken::Acquired(under_way(A, 10).unwrap())),
        ];
        for (state, expected) in cases {
            assert_eq!(State::begin(state, A, T, TEN), expected, "{state:?}");
        }
    }

    #[test]
    fn only_the_holder_extends_and_releases() {
        let cases = [
            (None, false),
            (under_way(A, 1), true),
            (under_way(A, 0), false),
            (under_way(B, 1), false),
            (done(A, 1), false),
            (done(B, 1), false),
        ];
        for (state, is_holder) in cases {
            assert_eq!(State::extend(state, A, T, TEN), under_way(A, 10).filter(|_| is_holder), "{state:?}");
            assert_eq!(State::release(state, A, T), is_holder, "{state:?}");
        }
    }

    #[test]
    fn late_completions_count_unless_another_holder_has_the_key() {
        let cases = [
            (None, true),
            (under_way(A, 1), true),
            (under_way(A, 0), true),
            (under_way(B, 0), true),
            (under_way(B, 1), false),
            (done(A, 1), true),
            (done(B, 1), false),
            (done(B, 0), true),
        ];
        for (state, is_marked) in cases {
            assert_eq!(State::complete(state, A, T, TEN), done(A, 10).filter(|_| is_marked), "{state:?}");
        }
    }

    #[test]
    fn tokens_are_not_shown() {
        assert_eq!(format!("{:?}", under_way(A, 0)), "Some(UnderWay { until: Timestamp(1000000), .. })");
    }

    proptest! {
        /// Whatever the order of events, a key is never acquired before the lock of the last holder expires.
        #[test]
        fn holders_never_overlap(steps in prop::collection::vec((0_u8..4, 0_u8..3, 0_u64..30, 1_u64..20), 1..60)) {
            let (mut state, mut now, mut holder) = (None, T, None::<([u8; 16], Timestamp)>);
            for (step, actor, pause, length) in steps {
                let (token, length) = ([actor; 16], Duration::from_millis(length));
                now = now.plus_millis(pause);
                let lasting = |until: &Timestamp| now < *until;
                match step {
                    0 => if let Taken::Acquired(new) = State::begin(state, token, now, length) {
                        prop_assert!(!holder.as_ref().is_some_and(|(_, until)| lasting(until)), "two holders");
                        (state, holder) = (Some(new), Some((token, new.until())));
                    },
                    1 => if let Some(new) = State::extend(state, token, now, length) {
                        prop_assert!(holder.as_ref().is_some_and(|(held, until)| *held == token && lasting(until)));
                        (state, holder) = (Some(new), Some((token, new.until())));
                    },
                    2 => if let Some(new) = State::complete(state, token, now, length) {
                        let other = holder.as_ref().is_some_and(|(held, until)| *held != token && lasting(until));
                        prop_assert!(!other, "completed the work of another");
                        (state, holder) = (Some(new), Some((token, new.until())));
                    },
                    _ => if State::release(state, token, now) {
                        prop_assert!(holder.as_ref().is_some_and(|(held, until)| *held == token && lasting(until)));
                        (state, holder) = (None, None);
                    },
                }
            }
        }
    }
}
