//! Builds the server as it is shipped and measured: with whole-program optimization, with jemalloc, and with the names
//! of all its crates inside the binary, so that `cargo audit bin` and image scanners can find advisories years later.

use crate::tree::root;
use anyhow::{Context, Result, bail};
use std::env::{join_paths, split_paths, var_os};
use std::path::Path;
use std::process::{Command, Stdio};

/// The version of `cargo auditable` to install if it is missing.
const AUDITABLE_VERSION: &str = "0.7.7";

/// Builds `target/dist/posthaste`.
pub(crate) fn run() -> Result<()> {
    let root = root()?;
    let cargo = var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let tools = root.join("target/tools");
    let path = var_os("PATH").unwrap_or_default();
    let path = join_paths(split_paths(&path).chain([tools.join("bin")])).context("PATH is malformed")?;
    let in_root = |arguments: &[&str]| {
        let mut command = Command::new(&cargo);
        command.current_dir(&root).env("PATH", &path).args(arguments);
        command
    };
    let mut installed = in_root(&["auditable", "--version"]);
    installed.stdout(Stdio::null()).stderr(Stdio::null());
    if !installed.status().context("cargo cannot be run")?.success() {
        install(
            &mut in_root(&["install", "cargo-auditable", "--version", AUDITABLE_VERSION, "--locked", "--root"]),
            &tools,
        )?;
    }
    let mut build =
        in_root(&["auditable", "build", "--profile", "dist", "--features", "jemalloc", "--locked", "-p", "posthaste"]);
    build.env("POSTHASTE_PROFILE", "dist");
    if !build.status().context("cargo cannot be run")?.success() {
        bail!("the build failed");
    }
    println!("built target/dist/posthaste; check its crates with: cargo audit bin target/dist/posthaste");
    Ok(())
}

fn install(command: &mut Command, tools: &Path) -> Result<()> {
    match command.arg(tools).status().context("cargo cannot be run")?.success() {
        true => Ok(()),
        false => bail!("cargo-auditable cannot be installed; install it with: cargo install cargo-auditable --locked"),
    }
}
