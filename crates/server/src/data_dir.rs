//! The directory that holds all data: made if missing, private, and locked by the one process that uses it.

use rustix::fs::{FlockOperation, flock};
use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// A locked data directory. The lock ends with this value, or with the process.
#[derive(Debug)]
pub struct DataDir {
    path: PathBuf,
    _lock: File,
}

/// Why the data directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum DataDirError {
    /// Another process has it.
    #[error("the data directory {path} is in use by another posthaste process{holder}; stop that one or choose another --data-dir")]
    Locked {
        /// Which directory.
        path: PathBuf,
        /// ` (pid N)`, if it said so.
        holder: String,
    },
    /// It could not be made or opened.
    #[error("the data directory {path} cannot be used")]
    Io {
        /// Which directory.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
}

impl DataDir {
    /// Makes the directory if needed and takes its lock.
    pub fn lock(path: &Path) -> Result<DataDir, DataDirError> {
        let io = |source| DataDirError::Io { path: path.to_owned(), source };
        DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(io)?;
        let lock_path = path.join("lock");
        let mut lock = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&lock_path)
            .map_err(io)?;
        match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => {
                let pid = std::fs::read_to_string(&lock_path).unwrap_or_default();
                let holder = pid.trim().parse::<u32>().map(|pid| format!(" (pid {pid})")).unwrap_or_default();
                return Err(DataDirError::Locked { path: path.to_owned(), holder });
            }
            Err(error) => return Err(io(error.into())),
        }
        lock.set_len(0).map_err(io)?;
        writeln!(lock, "{}", std::process::id()).map_err(io)?;
        Ok(DataDir { path: path.to_owned(), _lock: lock })
    }

    /// Where the embedded store lives.
    pub fn database(&self) -> PathBuf {
        self.path.join("posthaste.db")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_lock_is_refused_and_names_the_holder() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("data");
        let first = DataDir::lock(&path).unwrap();
        let error = DataDir::lock(&path).unwrap_err().to_string();
        assert!(error.contains("in use by another posthaste process") && error.contains("pid"), "{error}");
        drop(first);
        DataDir::lock(&path).unwrap();
    }
}
