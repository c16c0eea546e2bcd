//! The queue of those that want to be loaded from the store, first come, first served.

use std::collections::{BTreeSet, HashMap};
use std::hash::Hash;

/// How urgently a load is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Want {
    /// Not at all.
    Nothing,
    /// There is room.
    More,
    /// Nothing could start without it, so it is loaded even in a full shard.
    Anything,
}

/// All entries that want a load. Every step takes logarithmic time in their number.
#[derive(Debug)]
pub(crate) struct LoadQueue<K> {
    tickets: HashMap<K, (u64, Want)>,
    hungry: BTreeSet<(u64, K)>,
    starving: BTreeSet<(u64, K)>,
    last: u64,
}

impl<K> Default for LoadQueue<K> {
    fn default() -> Self {
        LoadQueue { tickets: HashMap::new(), hungry: BTreeSet::new(), starving: BTreeSet::new(), last: 0 }
    }
}

impl<K: Copy + Ord + Hash> LoadQueue<K> {
    /// Sets what an entry wants. An entry that wanted something before keeps its place.
    pub(crate) fn set(&mut self, key: K, want: Want) {
        let before = self.tickets.get(&key).copied();
        if before.map_or(Want::Nothing, |(_, want)| want) == want {
            return;
        }
        let ticket = before.map_or_else(
            || {
                self.last += 1;
                self.last
            },
            |(ticket, _)| ticket,
        );
        match want {
            Want::Nothing => drop(self.tickets.remove(&key)),
            _ => drop(self.tickets.insert(key, (ticket, want))),
        }
        put(&mut self.hungry, (ticket, key), want != Want::Nothing);
        put(&mut self.starving, (ticket, key), want == Want::Anything);
    }

    /// The next entry; in a full shard only one that could start nothing.
    pub(crate) fn first(&self, full: bool) -> Option<K> {
        let line = if full { &self.starving } else { &self.hungry };
        line.first().map(|(_, key)| *key)
    }
}

fn put<T: Ord>(set: &mut BTreeSet<T>, entry: T, is_in: bool) {
    if is_in {
        set.insert(entry);
    } else {
        set.remove(&entry);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_come_first_served() {
        let mut load_queue = LoadQueue::default();
        assert_eq!(load_queue.first(false), None);
        for (key, want) in [('a', Want::More), ('b', Want::Anything), ('c', Want::Anything), ('d', Want::Nothing)] {
            load_queue.set(key, want);
        }
        assert_eq!((load_queue.first(false), load_queue.first(true)), (Some('a'), Some('b')));
        load_queue.set('a', Want::Anything);
        assert_eq!(load_queue.first(true), Some('a'), "it keeps its place");
        load_queue.set('a', Want::Nothing);
        load_queue.set('a', Want::Anything);
        assert_eq!(load_queue.first(true), Some('b'), "who was served stands behind");
        for key in ['a', 'b', 'c'] {
            load_queue.set(key, Want::Nothing);
        }
        assert_eq!((load_queue.first(false), load_queue.first(true)), (None, None));
    }
}
