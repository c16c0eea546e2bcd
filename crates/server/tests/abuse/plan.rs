//! How a run is configured, from the environment.

use std::path::PathBuf;

/// Memory above idle at which the suite kills the server, so that a broken build cannot exhaust the machine.
const KILL_MB_DEFAULT: u64 = 1_500;

#[derive(Clone, Debug)]
pub(crate) struct Plan {
    /// More of everything; by hand with `ABUSE=long`.
    pub(crate) long: bool,
    /// Another binary to attack (`ABUSE_SERVER`), such as an older or a release build.
    pub(crate) binary: PathBuf,
    /// Whether the binary is the debug build that this test was compiled with: it gets an allowance.
    pub(crate) is_debug: bool,
    /// Only these cases (`ABUSE_ONLY`, separated by commas); empty for all.
    only: Vec<String>,
    /// The server is killed above this much memory over idle (`ABUSE_KILL_MB`).
    pub(crate) kill_bytes: u64,
    /// Where the measurements go as JSON (`ABUSE_OUT`).
    pub(crate) out: PathBuf,
}

impl Plan {
    pub(crate) fn from_environment() -> Plan {
        let text = |name| std::env::var(name).ok().filter(|text: &String| !text.is_empty());
        let long = match text("ABUSE").as_deref() {
            None | Some("short") => false,
            Some("long") => true,
            Some(other) => panic!("ABUSE must be short or long, not {other}"),
        };
        let other = text("ABUSE_SERVER").map(PathBuf::from);
        let kill_mb = text("ABUSE_KILL_MB").map(|text| text.parse().expect("ABUSE_KILL_MB is a number"));
        let only = text("ABUSE_ONLY").unwrap_or_default();
        let default_out = || PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("abuse.json");
        Plan {
            long,
            is_debug: other.is_none() && cfg!(debug_assertions),
            binary: other.unwrap_or_else(|| env!("CARGO_BIN_EXE_posthaste").into()),
            only: only.split(',').map(str::trim).filter(|name| !name.is_empty()).map(str::to_owned).collect(),
            kill_bytes: kill_mb.unwrap_or(KILL_MB_DEFAULT) * 1_000_000,
            out: text("ABUSE_OUT").map_or_else(default_out, PathBuf::from),
        }
    }

    pub(crate) fn wants(&self, case: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|only| only == case)
    }

    /// Names in `ABUSE_ONLY` that are no case.
    pub(crate) fn unknown(&self, cases: &[&str]) -> Vec<String> {
        self.only.iter().filter(|only| !cases.contains(&only.as_str())).cloned().collect()
    }
}
