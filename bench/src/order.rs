//! Checks whether the messages of a key arrived in the order in which they were published. Pure.
//!
//! Publishes that overlap have no order: a message must arrive before another one only if it was acknowledged before
//! the other one was sent.

use crate::sink::Arrival;
use std::collections::HashMap;

/// When an acknowledged message was sent, and when it was acknowledged.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Acknowledged {
    pub(crate) sequence: u32,
    pub(crate) sent_ns: u64,
    pub(crate) acked_ns: u64,
}

/// How many messages overtook an earlier one of their key. Messages use `keys` keys in turn.
pub(crate) fn overtakers(acknowledged: &[Acknowledged], arrivals: &[Arrival], keys: u32) -> u64 {
    let mut places: HashMap<u32, usize> = HashMap::new();
    for (place, arrival) in arrivals.iter().enumerate() {
        places.entry(arrival.sequence).or_insert(place);
    }
    let mut lines: HashMap<u32, Vec<Acknowledged>> = HashMap::new();
    for message in acknowledged {
        lines.entry(message.sequence % keys.max(1)).or_default().push(*message);
    }
    let place = |message: &Acknowledged| places.get(&message.sequence).copied().unwrap_or(usize::MAX);
    lines.into_values().map(|line| overtakers_of(line, place)).sum()
}

/// Like [`overtakers`], for the messages of one key.
fn overtakers_of(mut line: Vec<Acknowledged>, place: impl Fn(&Acknowledged) -> usize) -> u64 {
    let mut earlier = line.clone();
    earlier.sort_unstable_by_key(|message| message.acked_ns);
    line.sort_unstable_by_key(|message| message.sent_ns);
    let mut earlier = earlier.iter().peekable();
    let (mut last, mut count) = (0, 0);
    for message in &line {
        while let Some(before) = earlier.next_if(|before| before.acked_ns < message.sent_ns) {
            last = last.max(place(before));
        }
        count += u64::from(place(message) < last);
    }
    count
}

#[cfg(test)]
mod tests {
    use super::*;

    fn acknowledged(times: &[(u32, u64, u64)]) -> Vec<Acknowledged> {
        times.iter().map(|&(sequence, sent_ns, acked_ns)| Acknowledged { sequence, sent_ns, acked_ns }).collect()
    }

    fn arrivals(sequences: &[u32]) -> Vec<Arrival> {
        sequences.iter().map(|&sequence| Arrival { sequence, place: 0, at_ns: 0 }).collect()
    }

    #[test]
    fn each_key_has_its_own_order() {
        // Keys 0 and 1 in turn. Each message is sent after the last one was acknowledged.
        let published = acknowledged(&[(0, 0, 1), (1, 2, 3), (2, 4, 5), (3, 6, 7), (4, 8, 9)]);
        let cases: [(&[u32], u64); 6] = [
            (&[0, 1, 2, 3, 4], 0),
            (&[1, 3, 0, 2, 4], 0),
            (&[0, 0, 1, 2, 0, 3, 4], 0),
            (&[2, 1, 0, 3, 4], 1),
            (&[4, 2, 0, 3, 1], 3),
            (&[1, 2, 3, 4], 2),
        ];
        for (order, expected) in cases {
            assert_eq!(overtakers(&published, &arrivals(order), 2), expected, "{order:?}");
        }
    }

    #[test]
    fn publishes_that_overlap_have_no_order() {
        let published = acknowledged(&[(0, 0, 10), (1, 5, 6), (2, 11, 12)]);
        assert_eq!(overtakers(&published, &arrivals(&[1, 0, 2]), 1), 0);
        assert_eq!(overtakers(&published, &arrivals(&[1, 2, 0]), 1), 1);
    }
}
