//! The server as it is shipped: a release build that names, inside the binary, every crate it was built from, so that
//! `cargo audit bin` and image scanners find its advisories years later.

use crate::tree::root;
use anyhow::{Context, Result, bail};
use std::process::{Command, Stdio};

/// Builds `target/release/posthaste` with `cargo auditable`.
pub(crate) fn run() -> Result<()> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut installed = Command::new(&cargo);
    installed.args(["auditable", "--version"]).stdout(Stdio::null()).stderr(Stdio::null());
    if !installed.status().context("cargo cannot be run")?.success() {
        bail!("cargo-auditable is missing; install it with: cargo install cargo-auditable --locked");
    }
    let mut build = Command::new(&cargo);
    build.current_dir(root()?).args(["auditable", "build", "--release", "--locked", "-p", "posthaste"]);
    if !build.status().context("cargo cannot be run")?.success() {
        bail!("the release build failed");
    }
    println!("target/release/posthaste names its dependencies: cargo audit bin target/release/posthaste");
    Ok(())
}
