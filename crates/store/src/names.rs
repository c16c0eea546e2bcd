//! Pages of named objects: schedules, URL groups and queues, sorted by name.

use super::Part;
use posthaste_engine::limits::{LIST_PAGE_MAX, PAGE_BYTES_MAX};
use posthaste_engine::schedule::Schedule;
use std::ops::ControlFlow;

/// Selects a page of a list of names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamePage {
    /// Continue after this name, which need not exist; `None` starts at the first.
    pub after: Option<String>,
    /// At most this many entries. A page also ends at `limits::PAGE_BYTES_MAX`, not counting bodies.
    pub count: usize,
    /// Whether to include bodies.
    pub part: Part,
}

impl NamePage {
    /// The first page, with bodies and the greatest length.
    pub const FIRST: NamePage = NamePage { after: None, count: LIST_PAGE_MAX, part: Part::Whole };

    /// The start of the list: the comparison operator, and the name to compare with.
    pub(super) fn start(&self) -> (&'static str, &str) {
        self.after.as_deref().map_or((">=", ""), |after| (">", after))
    }
}

/// One page of named objects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Names<T> {
    /// The entries, by name.
    pub entries: Vec<T>,
    /// The last name on the page; `None` if this is the last page.
    pub next: Option<String>,
}

/// A schedule on a page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedSchedule {
    /// The schedule. Its body is empty if it was left out.
    pub schedule: Schedule,
    /// Length of its body in bytes.
    pub body_bytes: usize,
}

impl ListedSchedule {
    /// Whether its body was left out, because it did not fit or was not requested.
    pub fn is_without_body(&self) -> bool {
        self.schedule.body.len() < self.body_bytes
    }
}

/// Collects entries until the page is full.
pub(super) struct NamesBuilder<T> {
    names: Names<T>,
    count: usize,
    bytes: usize,
    bodies: usize,
    last: Option<String>,
}

impl<T> NamesBuilder<T> {
    /// Starts a page with the requested number of entries, but at least one.
    pub(super) fn new(page: &NamePage) -> Self {
        let bodies = if page.part == Part::Whole { PAGE_BYTES_MAX } else { 0 };
        NamesBuilder {
            names: Names { entries: Vec::new(), next: None },
            count: page.count.max(1),
            bytes: 0,
            bodies,
            last: None,
        }
    }

    /// Whether an entry of this size, not counting its body, is on the page. If not, the page ends and there is a next
    /// one.
    pub(super) fn admits(&mut self, bytes: usize) -> ControlFlow<()> {
        let entries = self.names.entries.len();
        self.bytes += bytes;
        if entries > 0 && (entries == self.count || self.bytes > PAGE_BYTES_MAX) {
            self.names.next = self.last.take();
            return ControlFlow::Break(());
        }
        ControlFlow::Continue(())
    }

    /// Whether a body of this size fits into the rest of the page.
    pub(super) fn takes_body(&mut self, bytes: usize) -> bool {
        let takes = bytes <= self.bodies;
        if takes {
            self.bodies -= bytes;
        }
        takes
    }

    /// Adds an entry that was admitted.
    pub(super) fn push(&mut self, name: &str, entry: T) {
        self.last = Some(name.to_owned());
        self.names.entries.push(entry);
    }

    /// Finishes the page.
    pub(super) fn finish(self) -> Names<T> {
        self.names
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listed(page: &NamePage, sizes: &[(usize, usize)]) -> (Vec<bool>, Option<String>) {
        let mut builder = NamesBuilder::new(page);
        for (place, (bytes, body)) in sizes.iter().enumerate() {
            if builder.admits(*bytes).is_break() {
                break;
            }
            let has_body = builder.takes_body(*body);
            builder.push(&place.to_string(), has_body);
        }
        let Names { entries, next } = builder.finish();
        (entries, next)
    }

    #[test]
    fn a_page_ends_by_count_and_by_bytes_and_a_large_body_is_left_out_of_it() {
        let page = |count, part| NamePage { after: None, count, part };
        let whole = page(3, Part::Whole);
        assert_eq!(listed(&whole, &[(1, 1); 3]), (vec![true; 3], None));
        assert_eq!(listed(&whole, &[(1, 1); 4]), (vec![true; 3], Some("2".to_owned())));
        let (half, most) = (PAGE_BYTES_MAX / 2 + 1, PAGE_BYTES_MAX);
        assert_eq!(
            listed(&whole, &[(1, half), (1, half), (1, 9)]),
            (vec![true, false, true], None),
            "a smaller one fits"
        );
        assert_eq!(listed(&whole, &[(half, 0), (half, 0)]), (vec![true], Some("0".to_owned())));
        assert_eq!(listed(&whole, &[(most + 1, most + 1)]), (vec![false], None), "one is always listed");
        assert_eq!(listed(&page(0, Part::Whole), &[(1, 0); 2]), (vec![true], Some("0".to_owned())));
        assert_eq!(
            listed(&page(9, Part::Head), &[(1, 1), (1, 0)]),
            (vec![false, true], None),
            "nobody asked for bodies"
        );
    }
}
