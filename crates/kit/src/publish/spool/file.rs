//! The files of a spool.
//!
//! `<number>.message` is a message, `<number>.aside` is one that was set aside, and `<number>.new` is one that was
//! never finished. `lock` keeps other processes out. A message file is a line with the version and the SHA-256 of the
//! rest, followed by JSON.

use super::SpoolError;
use crate::publish::message::{MESSAGE_BYTES_MAX, Message};
use posthaste_wire::encoding::hex;
use sha2::{Digest, Sha256};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};

const FORMAT: &str = "posthaste-spool/1";
const MESSAGE: &str = "message";
const ASIDE: &str = "aside";
const UNFINISHED: &str = "new";
/// No file of the kit is longer: the body in base64, and all settings.
const FILE_BYTES_MAX: u64 = 2 * MESSAGE_BYTES_MAX as u64 + 4 * 1024 * 1024;

/// A directory that is locked until it is dropped.
#[derive(Debug)]
pub(super) struct Directory {
    path: PathBuf,
    next_free: u64,
    /// Locked as long as it is open.
    _lock: File,
}

/// A stored message.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) sequence: u64,
    pub(super) bytes: u64,
}

/// A file that is not as the kit wrote it.
#[derive(Debug, thiserror::Error)]
#[error("the file is damaged: {0}")]
pub(super) struct Damage(&'static str);

impl Directory {
    /// Opens or creates the directory, takes the lock, removes unfinished files, and lists the others.
    pub(super) fn open(path: &Path) -> Result<(Directory, Vec<Entry>), SpoolError> {
        let failed = |error| SpoolError::new("cannot be opened", error);
        make_directory(path).map_err(failed)?;
        let lock = private(OpenOptions::new().create(true).truncate(false).write(true)).open(path.join("lock"));
        let lock = lock.map_err(failed)?;
        lock.try_lock().map_err(|error| SpoolError::new("is in use by another process", error.into()))?;
        let mut directory = Directory { path: path.to_owned(), next_free: 0, _lock: lock };
        let entries = directory.list().map_err(failed)?;
        for place in [Some(path), path.parent().filter(|parent| !parent.as_os_str().is_empty())].into_iter().flatten() {
            sync(place).map_err(failed)?;
        }
        Ok((directory, entries))
    }

    /// Greater than every number that was used, including those of files that were set aside.
    pub(super) fn next_free(&self) -> u64 {
        self.next_free
    }

    fn list(&mut self) -> io::Result<Vec<Entry>> {
        let mut entries = Vec::new();
        for file in fs::read_dir(&self.path)? {
            let file = file?;
            let name = file.file_name();
            let Some((number, kind)) = name.to_str().and_then(|name| name.split_once('.')) else { continue };
            let Ok(sequence) = number.parse::<u64>() else { continue };
            self.next_free = self.next_free.max(sequence.saturating_add(1));
            match kind {
                UNFINISHED => fs::remove_file(file.path())?,
                // A damaged file is listed too, and is set aside when its turn comes.
                MESSAGE => entries.push(Entry { sequence, bytes: file.metadata()?.len() }),
                _ => {}
            }
        }
        Ok(entries)
    }

    /// Writes a message. After a success the message survives a power cut; after a failure nothing of it remains.
    pub(super) fn write(&self, sequence: u64, content: &[u8]) -> io::Result<()> {
        let (unfinished, finished) = (self.file(sequence, UNFINISHED), self.file(sequence, MESSAGE));
        let written = (|| {
            let mut file = private(OpenOptions::new().create_new(true).write(true)).open(&unfinished)?;
            file.write_all(content)?;
            file.sync_all()?;
            fs::rename(&unfinished, &finished)?;
            sync(&self.path)
        })();
        if written.is_err() {
            // The caller gets an error, so the message must not reappear. If the removal fails too, there may be a
            // duplicate.
            for left in [unfinished, finished] {
                match fs::remove_file(&left) {
                    Err(error) if error.kind() != io::ErrorKind::NotFound => {
                        tracing::error!(file = %left.display(), %error, "cannot remove a failed file of the spool");
                    }
                    _ => {}
                }
            }
        }
        written
    }

    /// Reads a message; `None` if its file was removed. The outer error comes from the disk and may be temporary; the
    /// inner one is permanent.
    pub(super) fn read(&self, sequence: u64) -> io::Result<Option<Result<Message, Damage>>> {
        let mut content = Vec::new();
        let file = match File::open(self.file(sequence, MESSAGE)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            file => file?,
        };
        file.take(FILE_BYTES_MAX + 1).read_to_end(&mut content)?;
        Ok(Some(match content.len() as u64 > FILE_BYTES_MAX {
            true => Err(Damage("it is longer than any message")),
            false => decode(&content),
        }))
    }

    pub(super) fn remove(&self, sequence: u64) -> io::Result<()> {
        match fs::remove_file(self.file(sequence, MESSAGE)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        // Otherwise the file could reappear after a power cut, long after the deduplication window.
        sync(&self.path)
    }

    /// Renames the file, so that it stays until a person examines it.
    pub(super) fn put_aside(&self, sequence: u64) -> io::Result<()> {
        fs::rename(self.file(sequence, MESSAGE), self.file(sequence, ASIDE))?;
        sync(&self.path)
    }

    /// The path of a message that was set aside.
    pub(super) fn place(&self, sequence: u64) -> String {
        let aside = self.file(sequence, ASIDE);
        let place = if aside.is_file() { aside } else { self.file(sequence, MESSAGE) };
        place.display().to_string()
    }

    fn file(&self, sequence: u64, kind: &str) -> PathBuf {
        self.path.join(format!("{sequence:020}.{kind}"))
    }
}

pub(super) fn encode(message: &Message) -> Result<Vec<u8>, serde_json::Error> {
    let json = serde_json::to_vec(message)?;
    let mut content = format!("{FORMAT} {}\n", hex(&Sha256::digest(&json))).into_bytes();
    content.extend_from_slice(&json);
    Ok(content)
}

pub(super) fn decode(content: &[u8]) -> Result<Message, Damage> {
    let end = content.iter().position(|byte| *byte == b'\n').ok_or(Damage("it has no first line"))?;
    let (first, json) = (&content[..end], &content[end + 1..]);
    let first = std::str::from_utf8(first).ok().and_then(|line| line.split_once(' '));
    let (format, sum) = first.ok_or(Damage("its first line is malformed"))?;
    if format != FORMAT {
        return Err(Damage("it has another format"));
    }
    if sum != hex(&Sha256::digest(json)) {
        return Err(Damage("its checksum is wrong"));
    }
    serde_json::from_slice(json).map_err(|_| Damage("its JSON is not a message"))
}

/// Readable only by the owner, because messages may contain secrets.
#[cfg(unix)]
fn private(options: &mut OpenOptions) -> &mut OpenOptions {
    use std::os::unix::fs::OpenOptionsExt as _;
    options.mode(0o600)
}

#[cfg(not(unix))]
fn private(options: &mut OpenOptions) -> &mut OpenOptions {
    options
}

#[cfg(unix)]
fn make_directory(path: &Path) -> io::Result<()> {
    use std::os::unix::fs::DirBuilderExt as _;
    fs::DirBuilder::new().recursive(true).mode(0o700).create(path)
}

#[cfg(not(unix))]
fn make_directory(path: &Path) -> io::Result<()> {
    fs::create_dir_all(path)
}

/// Makes created and removed names survive a power cut.
#[cfg(unix)]
fn sync(directory: &Path) -> io::Result<()> {
    File::open(directory)?.sync_all()
}

/// Other systems have no such call.
#[cfg(not(unix))]
fn sync(_: &Path) -> io::Result<()> {
    Ok(())
}
