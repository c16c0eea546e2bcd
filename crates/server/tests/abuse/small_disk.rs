//! A file system of a fixed size, in RAM. Needs root.

use std::path::Path;
use std::process::{Command, Stdio};

pub(crate) struct SmallDisk {
    mount_point: tempfile::TempDir,
}

impl SmallDisk {
    /// Mounts one; otherwise says why this machine cannot.
    pub(crate) fn mount(bytes: u64) -> Result<SmallDisk, String> {
        if !rustix::process::geteuid().is_root() {
            return Err("only root may mount file systems".to_owned());
        }
        let mount_point = tempfile::tempdir().map_err(|error| error.to_string())?;
        let size = format!("size={bytes}");
        run(Command::new("mount").args(["-t", "tmpfs", "-o", &size, "tmpfs"]).arg(mount_point.path()))?;
        Ok(SmallDisk { mount_point })
    }

    pub(crate) fn path(&self) -> &Path {
        self.mount_point.path()
    }

    /// Bytes that are left.
    pub(crate) fn free_bytes(&self) -> u64 {
        let disk = rustix::fs::statvfs(self.path()).expect("it is mounted");
        disk.f_bavail * disk.f_frsize
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        drop(run(Command::new("umount").arg("-l").arg(self.path())));
    }
}

fn run(command: &mut Command) -> Result<(), String> {
    match command.stdin(Stdio::null()).output() {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => Err(format!("{command:?}: {}", String::from_utf8_lossy(&output.stderr).trim())),
        Err(error) => Err(format!("{command:?}: {error}")),
    }
}
