//! How much of each kind of fault a run makes, from the environment; `./torture` sets it.

use std::str::FromStr;
use std::time::SystemTime;

/// A run. Without anything in the environment it is the short one, which is a part of `./test`.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) seed: u64,
    pub(crate) kills: u64,
    /// Deaths at each crash point.
    pub(crate) passes: u64,
    pub(crate) power_cuts: u64,
    pub(crate) disk_faults: u64,
    /// Only these kinds of fault, by name; empty for all.
    only: Vec<String>,
}

impl Plan {
    pub(crate) fn from_environment() -> Plan {
        let only = std::env::var("TORTURE_ONLY").unwrap_or_default();
        Plan {
            seed: number("TORTURE_SEED").unwrap_or_else(fresh_seed),
            kills: number("TORTURE_KILLS").unwrap_or(20),
            passes: number("TORTURE_PASSES").unwrap_or(1),
            power_cuts: number("TORTURE_POWER_CUTS").unwrap_or(3),
            disk_faults: number("TORTURE_DISK_FAULTS").unwrap_or(10),
            only: only.split(',').map(str::trim).filter(|kind| !kind.is_empty()).map(str::to_owned).collect(),
        }
    }

    pub(crate) fn wants(&self, kind: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|only| only == kind)
    }

    /// Kinds that were asked for and do not exist.
    pub(crate) fn strangers(&self, kinds: &[&str]) -> Vec<String> {
        self.only.iter().filter(|only| !kinds.contains(&only.as_str())).cloned().collect()
    }

    /// The command that makes the same run.
    pub(crate) fn command(&self) -> String {
        let Plan { seed, kills, passes, power_cuts, disk_faults, only } = self;
        let only = if only.is_empty() { String::new() } else { format!(" --only '{}'", only.join(",")) };
        format!(
            "./torture --seed {seed} --kills {kills} --passes {passes} --power-cuts {power_cuts} --disk-faults {disk_faults}{only}"
        )
    }
}

fn number<T: FromStr>(name: &str) -> Option<T> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name} must be a number, not {text}")))
}

fn fresh_seed() -> u64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("after 1970");
    now.as_nanos() as u64 % 1_000_000_000
}
