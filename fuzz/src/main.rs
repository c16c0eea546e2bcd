//! Runs the targets with any compiler: `cargo run -p posthaste-fuzz -- --help`.

use anyhow::{Context, Result, bail};
use clap::{Parser, Subcommand};
use posthaste_fuzz::run::{self, Failure};
use posthaste_fuzz::{TARGETS, Target, corpus, mutate, target};
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// Targets that run at the same time.
const AT_ONCE: usize = 2;
/// Most memory of the whole process. Inputs are small, so a target that needs more has no limit.
const RESIDENT_KIB_MAX: u64 = 1024 * 1024;
/// Inputs that once found a bug, and the smallest inputs that together reach all known coverage.
const CORPUS: &str = "fuzz/corpus";
const FAILURES: &str = "target/fuzz-failures";

/// Fuzz every parser of untrusted input. Run it from the root of the repository.
#[derive(Parser)]
#[command(name = "posthaste-fuzz")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// List the targets.
    List,
    /// Fuzz all targets, or the named ones, for some time.
    Run {
        /// Targets to run; all if none is named.
        targets: Vec<String>,
        /// Seconds per target.
        #[arg(long, default_value_t = 5.0)]
        seconds: f64,
        /// Seed of the sequence of inputs.
        #[arg(long, default_value_t = 1)]
        seed: u64,
    },
    /// Repeat the inputs in some files.
    Repeat {
        /// The target.
        target: String,
        /// The files.
        files: Vec<PathBuf>,
    },
    /// Copy some inputs of each size from a folder into the repository.
    Keep {
        /// The target.
        target: String,
        /// Where the inputs are, one file each.
        folder: PathBuf,
    },
    /// Write the seeds and a dictionary of a target for libFuzzer.
    Seeds {
        /// The target.
        target: String,
        /// Where the seeds go, one file each.
        folder: PathBuf,
        /// Where the dictionary goes.
        dictionary: PathBuf,
    },
}

fn main() -> Result<()> {
    match Cli::parse().command {
        Command::List => {
            for target in TARGETS {
                println!("{}", target.name);
            }
            Ok(())
        }
        Command::Run { targets, seconds, seed } => {
            let chosen = targets.iter().map(|name| named(name)).collect::<Result<Vec<Target>>>()?;
            let chosen = if chosen.is_empty() { TARGETS.to_vec() } else { chosen };
            run_all(&chosen, Duration::from_secs_f64(seconds), seed)
        }
        Command::Repeat { target, files } => repeat(&named(&target)?, &files),
        Command::Keep { target, folder } => keep(&named(&target)?, &folder),
        Command::Seeds { target, folder, dictionary } => write_seeds(&named(&target)?, &folder, &dictionary),
    }
}

fn named(name: &str) -> Result<Target> {
    let names: Vec<&str> = TARGETS.iter().map(|target| target.name).collect();
    target(name).with_context(|| format!("there is no target {name}; there are: {}", names.join(", ")))
}

/// Runs targets, several at a time, and fails if one of them does.
fn run_all(targets: &[Target], budget: Duration, seed: u64) -> Result<()> {
    let next = AtomicUsize::new(0);
    let failed = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                while let Some(target) = targets.get(next.fetch_add(1, Ordering::Relaxed)) {
                    if let Err(error) = run_one(target, budget, seed) {
                        println!("{error:#}");
                        failed.lock().expect("no thread panics with the lock").push(target.name);
                    }
                }
            });
        }
    });
    let failed = failed.into_inner().expect("no thread panics with the lock");
    if !failed.is_empty() {
        bail!("failed: {}", failed.join(", "));
    }
    let resident = resident_kib_max().context("the memory that was needed is not known")?;
    if resident > RESIDENT_KIB_MAX {
        bail!("{resident} KiB of memory were needed, at most {RESIDENT_KIB_MAX} KiB are expected");
    }
    println!("all held; {} MiB of memory at most", resident / 1024);
    Ok(())
}

fn run_one(target: &Target, budget: Duration, seed: u64) -> Result<()> {
    let mut inputs = (target.seeds)();
    inputs.extend(kept(target)?);
    if inputs.is_empty() {
        bail!("{} has no seeds", target.name);
    }
    let seeds = inputs.len();
    match run::fuzz(target, inputs, seed, budget) {
        Ok(report) => {
            let per_second = report.executions as f64 / report.elapsed.as_secs_f64();
            println!("{:16} {:9} inputs, {per_second:8.0}/s, {seeds} seeds", target.name, report.executions);
            Ok(())
        }
        Err(failure) => Err(reported(target, &failure, seed)),
    }
}

/// Saves the input of a failure, and returns an error that explains how to repeat it.
fn reported(target: &Target, failure: &Failure, seed: u64) -> anyhow::Error {
    let saved = match failure.save(target.name, Path::new(FAILURES)) {
        Ok(path) => path.display().to_string(),
        Err(error) => return anyhow::anyhow!("{}: the input could not be saved: {error}", target.name),
    };
    anyhow::anyhow!(
        "{} failed with seed {seed}: {}\n  input:  {}\n  repeat: cargo run -p posthaste-fuzz -- repeat {} {saved}",
        target.name,
        failure.reason,
        failure.input.escape_ascii(),
        target.name,
    )
}

fn repeat(target: &Target, files: &[PathBuf]) -> Result<()> {
    if files.is_empty() {
        bail!("name the files to try");
    }
    for file in files {
        let input = fs::read(file).with_context(|| file.display().to_string())?;
        if let Err(failure) = run::attempt(target.run, &input) {
            bail!("{}: {}\n  input: {}", file.display(), failure.reason, input.escape_ascii());
        }
        println!("{}: holds", file.display());
    }
    Ok(())
}

/// The stored inputs of a target.
fn kept(target: &Target) -> Result<Vec<Vec<u8>>> {
    corpus::read(&path_of(target)).context(CORPUS)
}

fn path_of(target: &Target) -> PathBuf {
    Path::new(CORPUS).join(format!("{}.txt", target.name))
}

fn keep(target: &Target, folder: &Path) -> Result<()> {
    let inputs = corpus::read_folder(folder).with_context(|| folder.display().to_string())?;
    fs::create_dir_all(CORPUS)?;
    let count = corpus::write(&path_of(target), inputs)?;
    println!("{}: {count} inputs are kept", target.name);
    Ok(())
}

fn write_seeds(target: &Target, folder: &Path, dictionary: &Path) -> Result<()> {
    let mut seeds = (target.seeds)();
    seeds.extend(kept(target)?);
    fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
    for (number, seed) in seeds.iter().enumerate() {
        fs::write(folder.join(format!("seed-{number:04}")), seed)?;
    }
    let mut text = String::new();
    for token in mutate::tokens(&seeds).iter().filter(|token| !token.is_empty()) {
        let escaped: String = token.iter().map(|byte| format!("\\x{byte:02x}")).collect();
        writeln!(text, "\"{escaped}\"")?;
    }
    fs::write(dictionary, text).with_context(|| dictionary.display().to_string())
}

/// The peak memory of this process, in KiB.
fn resident_kib_max() -> Result<u64> {
    let status = fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).context("VmHWM is missing")?;
    Ok(line.trim().trim_end_matches("kB").trim().parse()?)
}
