//! The usage of processes (CPU, memory, bytes written), read from `/proc`, and how children are tied to this process.

use anyhow::{Context, Result, bail};
use rustix::process::{Resource, Rlimit, Signal};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap};
use std::os::unix::process::CommandExt;

#[derive(clap::Args)]
pub(crate) struct PsArgs {
    /// Processes as name=pid.
    #[arg(required = true)]
    processes: Vec<NamedPid>,
}

/// `name=pid`, as on the command line.
#[derive(Clone, Debug)]
pub(crate) struct NamedPid {
    pub(crate) name: String,
    pub(crate) pid: u32,
}

impl std::str::FromStr for NamedPid {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let (name, pid) = text.split_once('=').ok_or("expected name=pid")?;
        Ok(Self { name: name.into(), pid: pid.parse().map_err(|_| "the pid is not a number")? })
    }
}

/// `ps`: prints the usage of each process tree so far.
pub(crate) fn ps(args: &PsArgs) -> Result<()> {
    let usages: BTreeMap<&str, Usage> =
        args.processes.iter().map(|p| (p.name.as_str(), Usage::of_tree(p.pid))).collect();
    println!("{}", serde_json::to_string(&usages)?);
    Ok(())
}

/// CPU, memory and disk writes of a process, or of a process and all its descendants. Megabytes are 10^6.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Usage {
    pub(crate) cpu_s: f64,
    /// Resident set. In a tree, shared pages count once per process.
    pub(crate) rss_mb: f64,
    /// Largest resident set so far.
    pub(crate) rss_peak_mb: f64,
    /// Proportional set: shared pages are divided among their users.
    pub(crate) pss_mb: f64,
    pub(crate) written_mb: f64,
}

impl Usage {
    /// The usage of one process; zeros if it has ended.
    pub(crate) fn of_process(pid: u32) -> Self {
        let Some(stat) = stat_fields(pid) else { return Self::default() };
        let status = read_proc(pid, "status");
        Self {
            // utime, stime, and those of reaped children.
            cpu_s: stat[11..15].iter().sum::<u64>() as f64 / rustix::param::clock_ticks_per_second() as f64,
            rss_mb: megabytes(&status, "VmRSS:"),
            rss_peak_mb: megabytes(&status, "VmHWM:"),
            pss_mb: megabytes(&read_proc(pid, "smaps_rollup"), "Pss:"),
            written_mb: field(&read_proc(pid, "io"), "write_bytes:") / 1e6,
        }
    }

    /// The usage of a process and all its descendants.
    pub(crate) fn of_tree(root: u32) -> Self {
        let mut children: HashMap<u32, Vec<u32>> = HashMap::new();
        for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
            let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
            if let Some(stat) = stat_fields(pid) {
                children.entry(stat[1] as u32).or_default().push(pid);
            }
        }
        let (mut sum, mut todo) = (Self::default(), vec![root]);
        while let Some(pid) = todo.pop() {
            let one = Self::of_process(pid);
            sum.cpu_s += one.cpu_s;
            sum.rss_mb += one.rss_mb;
            sum.rss_peak_mb += one.rss_peak_mb;
            sum.pss_mb += one.pss_mb;
            sum.written_mb += one.written_mb;
            todo.extend(children.remove(&pid).into_iter().flatten());
        }
        sum
    }
}

/// The resident set of one process, in megabytes; 0 if it has ended. Cheaper than the whole [`Usage`].
pub(crate) fn rss_mb(pid: u32) -> f64 {
    megabytes(&read_proc(pid, "status"), "VmRSS:")
}

fn read_proc(pid: u32, file: &str) -> String {
    std::fs::read_to_string(format!("/proc/{pid}/{file}")).unwrap_or_default()
}

/// The fields of `/proc/PID/stat` after the name, so that index 0 is the state and 1 the parent.
fn stat_fields(pid: u32) -> Option<Vec<u64>> {
    let text = read_proc(pid, "stat");
    let rest = text.get(text.rfind(')')? + 2..)?;
    let fields: Vec<u64> = rest.split_whitespace().map(|value| value.parse().unwrap_or(0)).collect();
    (fields.len() > 21).then_some(fields)
}

/// The number after a name at the start of a line; 0 if there is none.
fn field(text: &str, name: &str) -> f64 {
    let value = text.lines().find_map(|line| line.strip_prefix(name)?.split_whitespace().next()?.parse().ok());
    value.unwrap_or(0.0)
}

/// Like [`field`], for a size in KiB.
fn megabytes(text: &str, name: &str) -> f64 {
    field(text, name) * 1024.0 / 1e6
}

/// Busy CPU seconds of the whole machine: everything except idle and waiting for the disk. Stolen time counts as busy,
/// because it is noise like any other.
pub(crate) fn machine_busy_s() -> f64 {
    const BUSY: [usize; 6] = [0, 1, 2, 5, 6, STOLEN];
    machine_s(&BUSY)
}

/// CPU seconds that the hypervisor gave to other machines while this one needed them.
pub(crate) fn machine_stolen_s() -> f64 {
    machine_s(&[STOLEN])
}

/// The index of stolen time in the first line of `/proc/stat`.
const STOLEN: usize = 7;

/// The sum of some fields of the first line of `/proc/stat`: user, nice, system, idle, iowait, irq, softirq, steal.
fn machine_s(fields: &[usize]) -> f64 {
    let text = std::fs::read_to_string("/proc/stat").unwrap_or_default();
    let values = text.lines().next().unwrap_or_default().split_whitespace().skip(1).enumerate();
    let ticks = values.filter(|(field, _)| fields.contains(field)).map(|(_, value)| value.parse().unwrap_or(0.0));
    ticks.sum::<f64>() / rustix::param::clock_ticks_per_second() as f64
}

pub(crate) fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Lets this process open as many connections as the system permits.
pub(crate) fn raise_open_files() {
    let maximum = rustix::process::getrlimit(Resource::Nofile).maximum;
    // A failure only means fewer connections, which a run reports as errors.
    let _ = rustix::process::setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
}

#[derive(clap::Args)]
pub(crate) struct TiedArgs {
    /// Process id of the expected parent.
    #[arg(long)]
    parent: u32,
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    command: Vec<std::ffi::OsString>,
}

/// Becomes the command, and is killed when the parent ends in whatever way (the setting survives `exec`).
pub(crate) fn tied(args: &TiedArgs) -> Result<()> {
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
    let parent = rustix::process::getppid().map(|pid| pid.as_raw_nonzero().get() as u32);
    if parent != Some(args.parent) {
        bail!("the parent ended before its child began");
    }
    let program = &args.command[0];
    let error = std::process::Command::new(program).args(&args.command[1..]).exec();
    Err(error).with_context(|| format!("cannot start {}", program.to_string_lossy()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_read_by_their_whole_name() {
        let status = "VmPeak:\t 9 kB\nVmHWM:\t  2048 kB\nVmRSS:\t  1024 kB\n";
        assert_eq!(field(status, "VmRSS:"), 1024.0);
        assert_eq!(field(status, "VmHWM:"), 2048.0);
        assert_eq!(field(status, "VmSwap:"), 0.0);
    }

    #[test]
    fn our_own_usage_is_not_zero_and_that_of_a_missing_process_is() {
        let ours = Usage::of_process(std::process::id());
        assert!(ours.rss_mb > 0.0 && ours.rss_peak_mb >= ours.rss_mb);
        assert_eq!(Usage::of_process(u32::MAX).rss_mb, 0.0);
    }
}
