//! Pages of what has a name: schedules, URL groups and queues, in the order of their names.

use super::Part;
use posthaste_engine::limits::{LIST_PAGE_MAX, PAGE_BYTES_MAX};
use posthaste_engine::schedule::Schedule;
use std::ops::ControlFlow;

/// Which page of a list of names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamePage {
    /// Behind this name, which need not exist; from the first one if there is none.
    pub after: Option<String>,
    /// At most so many entries. A page also ends at `limits::PAGE_BYTES_MAX`, bodies not counted.
    pub count: usize,
    /// Whether bodies are wanted.
    pub part: Part,
}

impl NamePage {
    /// The first page, as long as a page may be, with bodies.
    pub const FIRST: NamePage = NamePage { after: None, count: LIST_PAGE_MAX, part: Part::Whole };

    /// Where the list begins: how a name is to compare, and with what.
    pub(super) fn start(&self) -> (&'static str, &str) {
        self.after.as_deref().map_or((">=", ""), |after| (">", after))
    }
}

/// One page of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Names<T> {
    /// The entries, by name.
    pub entries: Vec<T>,
    /// The last name on the page; `None` when there is nothing more.
    pub next: Option<String>,
}

/// A schedule in a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedSchedule {
    /// The schedule; its body is empty where it was left out.
    pub schedule: Schedule,
    /// How long its body is.
    pub body_bytes: usize,
}

impl ListedSchedule {
    /// Its body did not fit into the page, or was not asked for.
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
    /// A page of at most so many entries as asked for, but always of one.
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

    /// Whether an entry of so many bytes, its body not counted, is on the page. Otherwise there is a next page, and this one
    /// ends.
    pub(super) fn admits(&mut self, bytes: usize) -> ControlFlow<()> {
        let entries = self.names.entries.len();
        self.bytes += bytes;
        if entries > 0 && (entries == self.count || self.bytes > PAGE_BYTES_MAX) {
            self.names.next = self.last.take();
            return ControlFlow::Break(());
        }
        ControlFlow::Continue(())
    }

    /// Whether a body of so many bytes fits into what is left of the page.
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

    /// The page.
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
