//! Turns: tenants take turns, and the tasks of a tenant take turns among themselves, so that many tasks of one tenant do not slow
//! those of another.

use posthaste_wire::id::TenantId;
use std::collections::VecDeque;

/// See the module's text.
pub struct Turns<T> {
    /// Each tenant that has tasks is here once.
    tenants: VecDeque<(TenantId, VecDeque<T>)>,
}

impl<T> Default for Turns<T> {
    fn default() -> Turns<T> {
        Turns { tenants: VecDeque::new() }
    }
}

impl<T> Turns<T> {
    /// Whether there is no task.
    pub fn is_empty(&self) -> bool {
        self.tenants.is_empty()
    }

    /// Adds a new task of a tenant, or one that was taken and is not done: it is the last of its tenant's.
    pub fn push(&mut self, tenant: TenantId, task: T) {
        match self.tenants.iter_mut().find(|(other, _)| *other == tenant) {
            Some((_, tasks)) => tasks.push_back(task),
            None => self.tenants.push_back((tenant, VecDeque::from([task]))),
        }
    }

    /// Takes the next task; its tenant becomes the last one.
    pub fn pop(&mut self) -> Option<(TenantId, T)> {
        let (tenant, mut tasks) = self.tenants.pop_front()?;
        let task = tasks.pop_front()?;
        if !tasks.is_empty() {
            self.tenants.push_back((tenant, tasks));
        }
        Some((tenant, task))
    }

    /// All tasks.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.tenants.iter_mut().flat_map(|(_, tasks)| tasks)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tenants_take_turns_however_many_tasks_each_has() {
        let (greedy, other) = (TenantId(1), TenantId(2));
        let mut tasks = Turns::default();
        for task in ["a", "b", "c"] {
            tasks.push(greedy, task);
        }
        tasks.push(other, "x");
        let mut taken = String::new();
        for _ in 0..8 {
            let (tenant, task) = tasks.pop().unwrap();
            taken += task;
            tasks.push(tenant, task);
        }
        assert_eq!(taken, "axbxcxax");
        let rest: Vec<_> = std::iter::from_fn(|| tasks.pop()).map(|(tenant, _)| tenant).collect();
        assert_eq!(rest, [greedy, other, greedy, greedy]);
        assert!(tasks.is_empty());
    }
}
