//! The cost of a measurement: CPU and disk writes of its processes, and the CPU that all other programs used.

use crate::clock::{now_ns, seconds_between};
use crate::process::{NamedPid, Usage, cores, machine_busy_s};
use std::collections::BTreeMap;

/// The usage of process trees and of the machine at the start of a measurement.
pub(crate) struct Account {
    processes: Vec<NamedPid>,
    /// How to read a process: with or without its descendants.
    usage: fn(u32) -> Usage,
    before: Vec<Usage>,
    machine_before_s: f64,
    start_ns: u64,
}

/// The usage since then, per process tree.
pub(crate) struct Spent {
    cpu_s: BTreeMap<String, f64>,
    written_mb: BTreeMap<String, f64>,
    pub(crate) now: BTreeMap<String, Usage>,
    pub(crate) foreign_cpu_pct: f64,
}

impl Account {
    /// Measures process trees.
    pub(crate) fn open(processes: Vec<NamedPid>) -> Self {
        Self::new(processes, Usage::of_tree)
    }

    /// Measures single processes. Use it for the process that started the others.
    pub(crate) fn of_processes(processes: Vec<NamedPid>) -> Self {
        Self::new(processes, Usage::of_process)
    }

    fn new(processes: Vec<NamedPid>, usage: fn(u32) -> Usage) -> Self {
        let before = processes.iter().map(|process| usage(process.pid)).collect();
        Self { processes, usage, before, machine_before_s: machine_busy_s(), start_ns: now_ns() }
    }

    pub(crate) fn read(&self) -> Spent {
        let machine_s = machine_busy_s() - self.machine_before_s;
        let capacity_s = seconds_between(self.start_ns, now_ns()) * cores() as f64;
        let mut spent =
            Spent { cpu_s: BTreeMap::new(), written_mb: BTreeMap::new(), now: BTreeMap::new(), foreign_cpu_pct: 0.0 };
        for (process, before) in self.processes.iter().zip(&self.before) {
            let now = (self.usage)(process.pid);
            spent.cpu_s.insert(process.name.clone(), now.cpu_s - before.cpu_s);
            spent.written_mb.insert(process.name.clone(), now.written_mb - before.written_mb);
            spent.now.insert(process.name.clone(), now);
        }
        let foreign_s = machine_s - spent.cpu_s.values().sum::<f64>();
        // Ticks are 10 ms, so a value below zero is rounding.
        spent.foreign_cpu_pct = round1((foreign_s / capacity_s.max(1e-9) * 100.0).max(0.0));
        spent
    }
}

impl Spent {
    pub(crate) fn cpu_us_per(&self, messages: u64) -> BTreeMap<String, f64> {
        let per = |(name, cpu_s): (&String, &f64)| (name.clone(), round1(cpu_s * 1e6 / messages.max(1) as f64));
        self.cpu_s.iter().map(per).collect()
    }

    pub(crate) fn written_bytes_per(&self, messages: u64) -> BTreeMap<String, f64> {
        let per = |(name, mb): (&String, &f64)| (name.clone(), (mb * 1e6 / messages.max(1) as f64).round());
        self.written_mb.iter().map(per).collect()
    }

    pub(crate) fn cpu_s_of(&self, name: &str) -> f64 {
        self.cpu_s.get(name).copied().unwrap_or(0.0)
    }
}

fn round1(value: f64) -> f64 {
    (value * 10.0).round() / 10.0
}
