//! How many things went on at once. Pure.

use crate::history::Micros;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Something that took time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Span<'a> {
    pub(crate) key: &'a str,
    pub(crate) began_us: Micros,
    pub(crate) ended_us: Micros,
}

/// Those that began while `max` others were going on. What ends in the microsecond in which another begins was
/// before it.
pub(crate) fn beyond(mut spans: Vec<Span<'_>>, max: usize) -> Vec<&str> {
    spans.sort_unstable_by_key(|span| span.began_us);
    let mut open: BinaryHeap<Reverse<Micros>> = BinaryHeap::new();
    let mut found = Vec::new();
    for span in spans {
        while open.peek().is_some_and(|Reverse(end)| *end <= span.began_us) {
            open.pop();
        }
        if open.len() >= max {
            found.push(span.key);
        }
        open.push(Reverse(span.ended_us));
    }
    found
}

#[test]
fn what_begins_beyond_the_limit_is_found() {
    let span = |key, began_us, ended_us| Span { key, began_us, ended_us };
    let spans = vec![span("d", 30, 31), span("a", 0, 10), span("b", 5, 20), span("c", 10, 30)];
    assert_eq!(beyond(spans.clone(), 1), ["b", "c"]);
    assert_eq!(beyond(spans.clone(), 2), [""; 0]);
    assert_eq!(beyond(vec![span("x", 0, Micros::MAX), span("y", 9, 10)], 1), ["y"]);
}
