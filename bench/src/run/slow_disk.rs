//! A disk that is slow for one server, on demand: `slow_disk.c` intercepts the server's syncs.
//!
//! A slow sync limits how much can be stored, and costs no CPU time. This machine can then offer many times what the
//! server can store, although both share its processors. It needs the C compiler that also links Rust programs, and a
//! dynamically linked server.

use anyhow::{Context, Result, bail};
use std::path::{Path, PathBuf};
use tokio::process::Command;

const SOURCE: &str = include_str!("slow_disk.c");

pub(super) struct SlowDisk {
    library: PathBuf,
    /// The disk is slow while this file exists.
    sign: PathBuf,
    sync_ms: u32,
}

impl SlowDisk {
    /// Compiles the library in a directory. The disk is not slow yet.
    pub(super) async fn make(directory: &Path, sync_ms: u32) -> Result<Self> {
        let directory = std::path::absolute(directory)?;
        let (source, library) = (directory.join("slow_disk.c"), directory.join("slow_disk.so"));
        std::fs::write(&source, SOURCE)?;
        let mut compiler = Command::new("cc");
        compiler.args(["-O1", "-Wall", "-Werror", "-shared", "-fPIC", "-o"]).arg(&library).arg(&source).arg("-ldl");
        let output = compiler.output().await.context("a slow disk needs a C compiler, cc")?;
        if !output.status.success() {
            bail!("cc: {}", String::from_utf8_lossy(&output.stderr).trim());
        }
        Ok(Self { library, sign: directory.join("slow"), sync_ms })
    }

    /// The words that start a server on this disk, to be put in front of its command.
    pub(super) fn words(&self) -> Vec<String> {
        vec![
            "env".into(),
            format!("LD_PRELOAD={}", self.library.display()),
            format!("SLOW_DISK_WHILE={}", self.sign.display()),
            format!("SLOW_DISK_SYNC_MS={}", self.sync_ms),
        ]
    }

    pub(super) fn slow_down(&self) -> Result<()> {
        std::fs::write(&self.sign, "").context("the disk cannot be made slow")
    }

    pub(super) fn recover(&self) -> Result<()> {
        std::fs::remove_file(&self.sign).context("the disk cannot be made fast again")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::{now_ns, seconds_between};

    #[tokio::test]
    async fn syncs_are_slow_while_the_file_exists() {
        let directory = tempfile::tempdir().unwrap();
        let disk = SlowDisk::make(directory.path(), 300).await.unwrap();
        let sync = async || {
            let start_ns = now_ns();
            let words = disk.words();
            let sync = Command::new(&words[0]).args(&words[1..]).args(["sync", "--data"]).arg(&disk.library).status();
            assert!(sync.await.unwrap().success());
            seconds_between(start_ns, now_ns())
        };
        disk.slow_down().unwrap();
        assert!(sync().await >= 0.3);
        disk.recover().unwrap();
        // There is no upper limit, because the machine's own disk may be slow too.
        sync().await;
    }
}
