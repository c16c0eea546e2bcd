//! Automation of this repository: `cargo xtask tidy` checks rules that the compiler and Clippy do not, `cargo xtask
//! fuzz` fuzzes one parser of untrusted bytes, and `cargo xtask dist` builds the shipped binary.

mod dist;
mod fuzz;
mod tidy;
mod tree;

use std::process::ExitCode;

const USAGE: &str = "usage: cargo xtask tidy | fuzz TARGET SECONDS | fuzz-keep TARGET | dist";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let result = match arguments[..] {
        ["tidy"] => tidy::run(),
        ["fuzz", target, seconds] => seconds
            .parse()
            .map_err(|_| anyhow::anyhow!("{seconds} is not a number of seconds"))
            .and_then(|seconds| fuzz::run(target, seconds))
            .map(|()| Vec::new()),
        ["dist"] => dist::run().map(|()| Vec::new()),
        ["fuzz-keep", target] => fuzz::keep(target).map(|()| Vec::new()),
        _ => Err(anyhow::anyhow!(USAGE)),
    };
    match result {
        Ok(problems) if problems.is_empty() => ExitCode::SUCCESS,
        Ok(problems) => {
            for problem in &problems {
                eprintln!("{problem}");
            }
            eprintln!("tidy: {} problems", problems.len());
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}
