//! The start and end of pages in a list, the same for all backends.

use super::{Order, Page, PageRequest};
use posthaste_engine::limits;
use posthaste_wire::id::Position;
use posthaste_wire::time::Timestamp;
use std::ops::ControlFlow;

/// The positions that a page may contain: from `first` up to, but not including, `end`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Bounds {
    /// The lowest position.
    pub first: Position,
    /// One past the highest position.
    pub end: Position,
}

impl Bounds {
    /// Combines the date range of a filter, `from` and `to`, with the cursor.
    pub(super) fn new((from, to): (Option<Timestamp>, Option<Timestamp>), page: &PageRequest) -> Bounds {
        let mut first = Position { at: from.unwrap_or(Timestamp(0)).min(Timestamp::MAX), n: 0 };
        let mut end = to.map_or(Position::MAX, |to| Position { at: to.plus_millis(1), n: 0 });
        match (page.cursor, page.order) {
            (Some(cursor), Order::LatestFirst) => end = end.min(cursor),
            (Some(cursor), Order::EarliestFirst) => first = first.max(successor(cursor)),
            (None, _) => {}
        }
        Bounds { first, end }
    }

    /// Whether the range is empty.
    pub(super) fn is_empty(&self) -> bool {
        self.first >= self.end
    }
}

/// The first position after `position`.
fn successor(position: Position) -> Position {
    if position.n >= Position::MAX.n {
        Position { at: position.at.plus_millis(1), n: 0 }
    } else {
        Position { at: position.at, n: position.n + 1 }
    }
}

/// Collects entries until the page is full.
pub(super) struct PageBuilder<T> {
    page: Page<T>,
    count: usize,
    bytes: usize,
    last: Option<Position>,
    skipped: usize,
    skips_max: usize,
}

impl<T> PageBuilder<T> {
    /// Starts a page with the requested number of entries, but at least one.
    pub(super) fn new(request: &PageRequest) -> Self {
        PageBuilder {
            page: Page { entries: Vec::new(), next: None },
            count: request.count.max(1),
            bytes: 0,
            last: None,
            skipped: 0,
            skips_max: request.skips_max,
        }
    }

    /// Adds the next matching entry. If the page is full, notes that there is a next page and breaks.
    pub(super) fn offer(&mut self, position: Position, body_bytes: usize, entry: T) -> ControlFlow<()> {
        let entries = self.page.entries.len();
        let bytes = self.bytes + body_bytes;
        if entries > 0 && (entries == self.count || bytes > limits::PAGE_BYTES_MAX) {
            self.page.next = self.last;
            return ControlFlow::Break(());
        }
        self.page.entries.push(entry);
        self.bytes = bytes;
        self.last = Some(position);
        ControlFlow::Continue(())
    }

    /// Skips an entry that does not match. Breaks when the page has skipped too many; the caller can continue with the
    /// next page.
    pub(super) fn skip(&mut self, position: Position) -> ControlFlow<()> {
        self.skipped += 1;
        if self.skipped < self.skips_max {
            return ControlFlow::Continue(());
        }
        self.page.next = Some(position);
        ControlFlow::Break(())
    }

    /// Finishes the page.
    pub(super) fn finish(self) -> Page<T> {
        self.page
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(at: u64, n: u64) -> Position {
        Position { at: Timestamp(at), n }
    }

    #[test]
    fn a_page_ends_after_too_many_skipped_entries() {
        let mut builder = PageBuilder::<()>::new(&PageRequest::new(None, 10, Order::LatestFirst));
        for n in 1..limits::PAGE_SKIPS_MAX {
            assert!(builder.skip(at(1, n as u64)).is_continue());
        }
        let last = at(1, limits::PAGE_SKIPS_MAX as u64);
        assert!(builder.skip(last).is_break());
        assert_eq!(builder.finish(), Page { entries: Vec::new(), next: Some(last) });
    }

    #[test]
    fn the_cursor_and_the_dates_both_narrow_a_page() {
        let dates = (Some(Timestamp(10)), Some(Timestamp(20)));
        let cases = [
            (None, Order::LatestFirst, (at(10, 0), at(21, 0))),
            (Some(at(15, 3)), Order::LatestFirst, (at(10, 0), at(15, 3))),
            (Some(at(15, 3)), Order::EarliestFirst, (at(15, 4), at(21, 0))),
            (Some(at(5, 3)), Order::EarliestFirst, (at(10, 0), at(21, 0))),
            (Some(at(30, 0)), Order::LatestFirst, (at(10, 0), at(21, 0))),
        ];
        for (cursor, order, (first, end)) in cases {
            let request = PageRequest::new(cursor, 1, order);
            assert_eq!(Bounds::new(dates, &request), Bounds { first, end }, "{request:?}");
        }
    }
}
