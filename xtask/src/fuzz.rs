//! `cargo xtask fuzz`: runs one target of `fuzz/` under libFuzzer, guided by coverage. Works with the stable compiler.

use crate::tree;
use anyhow::{Context, Result, bail};
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The version to install if it is missing.
const CARGO_FUZZ: &str = "0.13.2";
/// The directory of the program and of all its findings, which are not committed.
const PACKAGE: &str = "fuzz/libfuzzer";
/// Longest input. Parsers reject longer ones by their length.
const INPUT_BYTES_MAX: usize = 4096;
/// Longest input that is kept in the repository.
const KEPT_BYTES_MAX: usize = 160;

/// Runs a target for some seconds. If an input fails, returns an error that explains how to repeat it.
pub(crate) fn run(target: &str, seconds: u32) -> Result<()> {
    let session = Session::prepare(target)?;
    let folders = [session.corpus.clone().into()];
    let artifacts = session.root.join(PACKAGE).join("artifacts").join(target);
    fs::create_dir_all(&artifacts)?;
    let mut options: Vec<OsString> = vec![
        format!("-max_total_time={seconds}").into(),
        format!("-max_len={INPUT_BYTES_MAX}").into(),
        "-timeout=10".into(),
        "-rss_limit_mb=2048".into(),
        "-malloc_limit_mb=256".into(),
        "-print_final_stats=1".into(),
    ];
    options.push(flag("-dict=", &session.dictionary));
    options.push(flag("-artifact_prefix=", &artifacts.join("")));
    if session.libfuzzer(&folders, &options)? {
        return Ok(());
    }
    bail!(
        "{target} failed; the input is in {}; repeat with: cargo run -p posthaste-fuzz -- repeat {target} FILE",
        artifacts.display()
    )
}

/// Keeps some of the smallest inputs that reach all known coverage, so that all tests try them.
pub(crate) fn keep(target: &str) -> Result<()> {
    let session = Session::prepare(target)?;
    let smallest = session.corpus.with_extension("smallest");
    if smallest.exists() {
        fs::remove_dir_all(&smallest)?;
    }
    fs::create_dir_all(&smallest)?;
    let folders = [smallest.clone().into(), session.corpus.clone().into()];
    let options = ["-merge=1".into(), format!("-max_len={KEPT_BYTES_MAX}").into()];
    if !session.libfuzzer(&folders, &options)? {
        bail!("the inputs of {target} could not be merged");
    }
    let mut keep = session.cargo(&["run", "--quiet", "--locked", "-p", "posthaste-fuzz", "--", "keep", target]);
    if succeeds(keep.arg(&smallest))? { Ok(()) } else { bail!("the inputs of {target} could not be kept") }
}

fn flag(name: &str, path: &Path) -> OsString {
    let mut flag = OsString::from(name);
    flag.push(path);
    flag
}

/// The environment of a libFuzzer run.
struct Session<'a> {
    root: PathBuf,
    target: &'a str,
    corpus: PathBuf,
    dictionary: PathBuf,
}

impl<'a> Session<'a> {
    fn prepare(target: &'a str) -> Result<Session<'a>> {
        let root = tree::root()?;
        let corpus = root.join(PACKAGE).join("corpus").join(target);
        let dictionary = root.join(PACKAGE).join("corpus").join(format!("{target}.dict"));
        let session = Session { root, target, corpus, dictionary };
        let mut seeds = session.cargo(&["run", "--quiet", "--locked", "-p", "posthaste-fuzz", "--", "seeds", target]);
        seeds.arg(&session.corpus).arg(&session.dictionary);
        if !succeeds(&mut seeds)? {
            bail!("there are no seeds");
        }
        let mut version = session.cargo(&["fuzz", "--version"]);
        if !version.output().context("cargo cannot be run")?.status.success() {
            let mut install = session.cargo(&["install", "--locked", "cargo-fuzz", "--version", CARGO_FUZZ]);
            if !succeeds(&mut install)? {
                bail!("cargo-fuzz cannot be installed");
            }
        }
        Ok(session)
    }

    /// Runs libFuzzer. Without a sanitizer, because the project has no unsafe code, and it is several times faster.
    fn libfuzzer(&self, folders: &[OsString], options: &[OsString]) -> Result<bool> {
        let mut command = self.cargo(&["fuzz", "run", "--sanitizer", "none", "--fuzz-dir", PACKAGE, "any"]);
        command.args(folders).arg("--").args(options).env("POSTHASTE_FUZZ_TARGET", self.target);
        succeeds(&mut command)
    }

    fn cargo(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        command.current_dir(&self.root).args(arguments);
        // cargo's variables about this program would make build scripts rerun.
        let is_ours = |name: &str| name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_");
        for (name, _) in std::env::vars().filter(|(name, _)| is_ours(name)) {
            command.env_remove(name);
        }
        command
    }
}

fn succeeds(command: &mut Command) -> Result<bool> {
    Ok(command.status().with_context(|| format!("{command:?} cannot be run"))?.success())
}
