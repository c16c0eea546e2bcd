//! Describes the machine in one line, and the start of the measurements.

use crate::process::{cores, machine_busy_s, machine_stolen_s};
use anyhow::{Context, Result};
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The machine in one line, and warnings about conditions that make figures doubtful.
pub(super) fn describe(work_dir: &Path) -> Result<(String, Vec<String>)> {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let cpu = value(&read("/proc/cpuinfo"), "model name").unwrap_or("unknown CPU".into());
    let memory = value(&read("/proc/meminfo"), "MemTotal").unwrap_or_default();
    let memory_gb = memory.trim_end_matches(" kB").parse::<f64>().unwrap_or(0.0) * 1024.0 / 1e9;
    let kernel = read("/proc/sys/kernel/osrelease");
    let dir = work_dir.canonicalize()?;
    let mounts = read("/proc/self/mounts");
    let filesystem = filesystem(&mounts, &dir.to_string_lossy()).unwrap_or("unknown file system");
    let line = format!("{} cores, {cpu}, {memory_gb:.0} GB, Linux {}, {filesystem}", cores(), kernel.trim());
    let mut warnings = Vec::new();
    if filesystem == "tmpfs" {
        warnings.push(format!("{} is in memory: fsync costs nothing here", dir.display()));
    }
    if cfg!(debug_assertions) {
        warnings.push("this is a debug build of posthaste-bench: use `cargo run --profile dist`".into());
    }
    Ok((line, warnings))
}

/// The commit of the sources in the working directory, with `-dirty` for uncommitted changes; `None` if there is no
/// repository or no git.
pub(super) fn commit() -> Option<String> {
    let args = ["describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"];
    let output = std::process::Command::new("git").args(args).output().ok()?;
    let commit = String::from_utf8(output.stdout).ok()?.trim().to_owned();
    (output.status.success() && !commit.is_empty()).then_some(commit)
}

/// Free bytes in the file system of `path`.
pub(super) fn free_bytes(path: &Path) -> Result<u64> {
    let space = rustix::fs::statvfs(path).with_context(|| format!("cannot ask for the space of {}", path.display()))?;
    Ok(space.f_bavail * space.f_frsize)
}

/// The load of this machine before the measurements.
pub(super) struct Unrest {
    pub(super) busy_pct: f64,
    /// The part that the hypervisor gave to others.
    pub(super) stolen_pct: f64,
}

impl Unrest {
    /// Watches the machine for some time without any measurement.
    pub(super) async fn watch(time: Duration) -> Self {
        let (busy_s, stolen_s) = (machine_busy_s(), machine_stolen_s());
        tokio::time::sleep(time).await;
        let share = |seconds: f64| seconds / (time.as_secs_f64() * cores() as f64) * 100.0;
        Self { busy_pct: share(machine_busy_s() - busy_s), stolen_pct: share(machine_stolen_s() - stolen_s) }
    }

    /// A warning if the load is more than `limit_pct`.
    pub(super) fn warning(&self, limit_pct: f64) -> Option<String> {
        let Self { busy_pct, stolen_pct } = self;
        (*busy_pct > limit_pct).then(|| {
            format!(
                "the machine was {busy_pct:.0}% busy before anything was started ({stolen_pct:.0}% of it stolen by the \
                 hypervisor): figures of this run will not be comparable"
            )
        })
    }
}

/// The value of the first `name : value` line.
fn value(text: &str, name: &str) -> Option<String> {
    let (_, value) = text.lines().find(|line| line.starts_with(name))?.split_once(':')?;
    Some(value.split_whitespace().collect::<Vec<_>>().join(" "))
}

/// The type of the file system that contains `path`, from the text of `/proc/self/mounts`.
fn filesystem<'a>(mounts: &'a str, path: &str) -> Option<&'a str> {
    let mounts = mounts.lines().filter_map(|line| {
        let mut words = line.split(' ').skip(1);
        Some((words.next()?, words.next()?))
    });
    let holds =
        |point: &str| point == "/" || path.strip_prefix(point).is_some_and(|r| r.is_empty() || r.starts_with('/'));
    // Of equal mount points, the last one is on top.
    mounts.filter(|(point, _)| holds(point)).max_by_key(|(point, _)| point.len()).map(|(_, kind)| kind)
}

/// `2026-01-31T12:00:00Z`
pub(super) fn utc(time: SystemTime) -> String {
    let seconds = time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    // Years that begin in March have the leap day at their end. 400 of them are 146,097 days.
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let march_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * march_month + 2) / 5 + 1;
    let month = if march_month < 10 { march_month + 3 } else { march_month - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}Z", rest / 3_600, rest / 60 % 60, rest % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unrest_above_the_limit_is_a_warning() {
        let unrest = Unrest { busy_pct: 40.0, stolen_pct: 3.0 };
        assert_eq!(unrest.warning(40.0), None);
        assert!(unrest.warning(15.0).unwrap().contains("40% busy"));
    }

    #[test]
    fn dates_are_right_around_leap_days_and_centuries() {
        let cases = [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_399, "2000-02-28T23:59:59Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (951_868_800, "2000-03-01T00:00:00Z"),
            (1_735_689_599, "2024-12-31T23:59:59Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
        ];
        for (seconds, expected) in cases {
            assert_eq!(utc(UNIX_EPOCH + Duration::from_secs(seconds)), expected);
        }
    }

    #[test]
    fn the_longest_mount_point_holds_a_path() {
        let mounts = "/dev/vda / ext4 rw 0 0\ntmpfs /tmp tmpfs rw 0 0\n/dev/vdb /tmp/disk xfs rw 0 0\n";
        let cases =
            [("/work", "ext4"), ("/tmp", "tmpfs"), ("/tmp/x", "tmpfs"), ("/tmp/disk/a", "xfs"), ("/tmpx", "ext4")];
        for (path, expected) in cases {
            assert_eq!(filesystem(mounts, path), Some(expected), "{path}");
        }
    }
}
