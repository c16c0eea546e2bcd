//! Forbidden dependencies. The pure crates depend on no clock, network or disk, the shipped program contains no planted
//! bugs, and the library for handlers does not depend on the server.

use anyhow::{Context, Result, bail};
use std::path::Path;
use std::process::Command;

/// A crate, and the crates that must not be among its direct or indirect dependencies.
const FORBIDDEN: [(&str, &[&str]); 9] = [
    ("posthaste-wire", &["tokio", "hyper", "axum", "rusqlite", "getrandom", "tracing", "posthaste-engine"]),
    ("posthaste-engine", &["tokio", "hyper", "axum", "rusqlite", "getrandom", "tracing"]),
    // It cannot call a store: its driver reads and commits.
    (
        "posthaste-node",
        &["tokio", "hyper", "axum", "rusqlite", "getrandom", "tracing", "posthaste-store", "posthaste-delivery"],
    ),
    ("posthaste-sim", &["tokio", "hyper", "axum", "rusqlite", "getrandom", "tracing"]),
    ("posthaste-faults", &["tokio", "hyper", "axum", "rusqlite", "posthaste-engine"]),
    // Storage blocks, and does not know the network.
    ("posthaste-store", &["tokio", "hyper", "axum", "getrandom", "posthaste", "posthaste-delivery"]),
    // An attempt stores nothing: its outcome is an event for the node.
    ("posthaste-delivery", &["axum", "rusqlite", "posthaste", "posthaste-store"]),
    // Data alone: how an object is made and who may see it is decided elsewhere.
    (
        "posthaste-api-types",
        &["tokio", "hyper", "axum", "rusqlite", "getrandom", "posthaste-engine", "posthaste-store"],
    ),
    // A library for others: it shares types with the server, but does not depend on it.
    ("posthaste-kit", &["posthaste", "posthaste-engine", "rusqlite"]),
];

pub(super) fn check(root: &Path) -> Result<Vec<String>> {
    let mut problems = Vec::new();
    for (part, forbidden) in FORBIDDEN {
        let names = names(&listing(root, part, &["--all-features", "--format", "{p}"])?);
        if !names.iter().any(|name| name == part) {
            bail!("cargo tree does not know {part}");
        }
        problems.extend(intruders(&names, forbidden).map(|name| {
            format!("{part}: depends on {name}, which it must not; see: cargo tree -p {part} -e normal -i {name}")
        }));
    }
    problems.extend(planted_bugs(&listing(root, SHIPPED, &["--format", "{p} {f}"])?));
    Ok(problems)
}

/// The shipped crate, and the feature that it must not have.
const SHIPPED: &str = "posthaste";
const PLANTED_BUGS: &str = "planted-bugs";

fn planted_bugs(listing: &str) -> Option<String> {
    let line = listing.lines().find(|line| line.contains(PLANTED_BUGS))?;
    Some(format!("{SHIPPED}: is built with {PLANTED_BUGS}, which is for tests only: {line}"))
}

/// The dependency tree of a crate, one line each.
fn listing(root: &Path, part: &str, options: &[&str]) -> Result<String> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.current_dir(root).args(["tree", "--locked", "-e", "normal", "--prefix", "none", "-p", part]).args(options);
    let output = command.output().context("cargo tree cannot be run")?;
    if !output.status.success() {
        bail!("cargo tree -p {part}: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// `tokio v1.2.3 (*)` becomes `tokio`.
fn names(listing: &str) -> Vec<String> {
    listing.lines().filter_map(|line| line.split_whitespace().next()).map(str::to_owned).collect()
}

fn intruders<'a>(names: &[String], forbidden: &'a [&str]) -> impl Iterator<Item = &'a str> {
    forbidden.iter().copied().filter(|name| names.iter().any(|other| other == name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn planted_bugs_are_not_shipped() {
        assert_eq!(planted_bugs("posthaste v0.1.0 (path)\nposthaste-engine v0.1.0 (path) \n"), None);
        assert!(planted_bugs("posthaste v0.1.0 (path)\nposthaste-engine v0.1.0 (path) planted-bugs\n").is_some());
    }

    #[test]
    fn forbidden_crates_are_found_by_their_whole_name() {
        let names = names("posthaste-engine v0.1.0 (path)\ntokio-util v0.7.0\nserde v1.0.0 (*)\n\n");
        assert_eq!(names, ["posthaste-engine", "tokio-util", "serde"]);
        assert_eq!(intruders(&names, &["tokio"]).count(), 0);
        assert_eq!(intruders(&names, &["tokio", "serde"]).collect::<Vec<_>>(), ["serde"]);
    }
}
