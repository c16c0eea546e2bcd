//! Other programs that the torture needs: mount, a C compiler, and what it makes of our two C files.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Runs a program to its end; otherwise says what it said.
pub(crate) fn run(command: &mut Command) -> Result<(), String> {
    let output = command.stdin(Stdio::null()).output();
    match output {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => {
            let said = String::from_utf8_lossy(&output.stderr);
            Err(format!("{command:?}: {}", said.lines().next().unwrap_or_default()))
        }
        Err(error) => Err(format!("{command:?}: {error}")),
    }
}

/// Whether file systems can be mounted; otherwise says why not.
pub(crate) fn may_mount() -> Result<(), String> {
    match rustix::process::geteuid().is_root() {
        true => Ok(()),
        false => Err("only root may mount file systems".to_owned()),
    }
}

/// Compiles a C file of this directory.
pub(crate) fn compile(source: &str, flags: &[&str], directory: &Path) -> Result<PathBuf, String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/crash").join(source);
    let target = directory.join(source).with_extension("so");
    run(Command::new("cc").args(["-O1", "-Wall", "-Werror"]).args(flags).arg("-o").arg(&target).arg(path))?;
    Ok(target)
}
