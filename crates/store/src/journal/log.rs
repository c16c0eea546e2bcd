//! The files of the journal. Frames are appended to the newest file, and a file is reused once all its frames are safe
//! in the database.
//!
//! A segment is a file named by its number. A reused file gets a new number. Its blocks are already allocated, so a
//! sync writes only data. Frames from its former use are ignored, because the checksums include the number.

use super::frame::{self, Frame, Seal};
use crate::ShardId;
use posthaste_engine::event::Op;
use posthaste_faults::crash_point::{ANSWER_BEFORE_SYNC, crash_point, is_planted};
use std::collections::VecDeque;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read as _};
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// A segment that is this old and holds at least [`SHORT_BYTES`] is followed by another, even if it is not full.
/// Syncing a reused file costs less than half of syncing a new one, and with little traffic it could take hours until
/// the first reuse.
const SEGMENT_AGE: Duration = Duration::from_secs(1);
/// Enough data to be worth a rename and a sync of the directory.
const SHORT_BYTES: u64 = 1024 * 1024;
/// Files kept for reuse. Further files are deleted.
const SPARE_MAX: usize = 2;
/// Buffer capacity that is kept for the next frame.
const FRAME_KEPT_BYTES: usize = 1024 * 1024;

/// The journal, open for appending.
pub(super) struct Log {
    directory: Directory,
    /// Once a segment has this length, the next one starts.
    segment_bytes: u64,
    /// The seal of the current segment.
    seal: Seal,
    file: File,
    begun: Instant,
    end: u64,
    /// The number of the last frame.
    last: u64,
    /// All frames up to this one are on disk.
    synced_to: u64,
    /// Segments that are complete.
    complete: VecDeque<Complete>,
    /// Files whose frames are no longer needed, by their old numbers. They stay open, because there may be no free
    /// descriptor when one is needed.
    spare: Vec<(u64, File)>,
    frame: Vec<u8>,
}

struct Complete {
    segment: u64,
    file: File,
    /// Its last frame.
    last: u64,
}

/// The directory of the journal.
struct Directory {
    path: PathBuf,
    file: File,
}

impl Directory {
    fn open(path: &Path) -> io::Result<Directory> {
        Ok(Directory { path: path.to_owned(), file: File::open(path)? })
    }

    fn segment(&self, number: u64) -> PathBuf {
        self.path.join(format!("{number:012}.log"))
    }

    /// A file name is on disk only after a sync of its directory.
    fn sync(&self) -> io::Result<()> {
        self.file.sync_all()
    }
}

/// Why the journal cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// The file system returned an error.
    #[error("the journal in {} cannot be used", .path.display())]
    Io {
        /// The directory or file.
        path: PathBuf,
        /// The error of the file system.
        #[source]
        source: io::Error,
    },
    /// A frame that was on disk is missing.
    #[error(
        "the journal in {} is damaged: batch {missing} was on disk and cannot be read any more, although later ones can. \
         Starting without it would lose messages that were accepted. Restore the disk or a backup; or accept the loss of \
         batch {missing} and all later ones, and start with --discard-damaged-journal",
        .path.display()
    )]
    Damaged {
        /// The directory.
        path: PathBuf,
        /// The first frame that is missing.
        missing: u64,
    },
    /// A file starts with the mark of another release, or a complete frame cannot be decoded.
    #[error(
        "the journal in {} was written by another release: start that release, shut it down cleanly, then start this one. \
         If there was no other release, the disk has damaged the journal: restore the disk or a backup",
        .path.display()
    )]
    Foreign {
        /// The directory.
        path: PathBuf,
        /// The problem.
        #[source]
        source: frame::Undecodable,
    },
}

impl Log {
    /// Creates a journal that continues after the recovered frames; `last` is the last valid one.
    pub(super) fn create(path: &Path, last: u64, seal: Seal, segment_bytes: u64) -> io::Result<Log> {
        let directory = Directory::open(path)?;
        let file = open(&directory.segment(seal.segment))?;
        directory.sync()?;
        Ok(Log {
            directory,
            segment_bytes,
            seal,
            file,
            begun: Instant::now(),
            end: 0,
            last,
            synced_to: last,
            complete: VecDeque::new(),
            spare: Vec::new(),
            frame: Vec::new(),
        })
    }

    /// Appends one frame and returns its number and length. Returns `None` and writes nothing if it would be longer
    /// than a frame may be. After an error the contents of the disk are unknown, so the caller must stop.
    pub(super) fn append(&mut self, shard: ShardId, ops: &[Op], sync: bool) -> io::Result<Option<(u64, usize)>> {
        if is_time_for_another(self.end, self.segment_bytes, self.begun.elapsed()) {
            self.next_segment()?;
        }
        crash_point("journal_before_append");
        let number = self.last + 1;
        let encoded = frame::encode(self.seal, number, self.synced_to, shard, ops, &mut self.frame);
        if matches!(encoded, Err(frame::Unencodable::TooLong)) {
            self.frame = Vec::new();
            return Ok(None);
        }
        encoded.map_err(io::Error::other)?;
        self.file.write_all_at(&self.frame, self.end)?;
        let length = self.frame.len();
        self.frame.clear();
        self.frame.shrink_to(FRAME_KEPT_BYTES);
        self.end += length as u64;
        self.last = number;
        crash_point("journal_appended");
        if sync {
            self.sync()?;
            crash_point("journal_synced");
        }
        Ok(Some((number, length)))
    }

    /// Syncs all frames to disk.
    pub(super) fn sync(&mut self) -> io::Result<()> {
        if self.synced_to < self.last && !is_planted(ANSWER_BEFORE_SYNC) {
            self.file.sync_data()?;
            self.synced_to = self.last;
        }
        Ok(())
    }

    /// Whether a file becomes free if all frames up to this one are safe in the database.
    pub(super) fn would_release(&self, applied: u64) -> bool {
        self.complete.front().is_some_and(|complete| complete.last <= applied)
    }

    /// Releases files: all frames up to this one are safe in the database.
    pub(super) fn release(&mut self, applied: u64) -> io::Result<()> {
        while let Some(complete) = self.complete.pop_front_if(|complete| complete.last <= applied) {
            let Complete { segment, file, .. } = complete;
            if self.spare.len() < SPARE_MAX && file.metadata()?.len() <= 2 * self.segment_bytes {
                self.spare.push((segment, file));
            } else {
                fs::remove_file(self.directory.segment(segment))?;
            }
            crash_point("journal_released");
        }
        Ok(())
    }

    /// Deletes the files, because everything is in the database.
    pub(super) fn remove(&mut self) -> io::Result<()> {
        let complete = self.complete.iter().map(|complete| complete.segment);
        let spare = self.spare.iter().map(|(segment, _)| *segment);
        for segment in complete.chain(spare).chain([self.seal.segment]) {
            fs::remove_file(self.directory.segment(segment))?;
        }
        self.directory.sync()
    }

    /// The last frame of a segment is synced before the first frame of the next one is written.
    fn next_segment(&mut self) -> io::Result<()> {
        self.sync()?;
        let next = self.seal.segment + 1;
        let path = self.directory.segment(next);
        let file = match self.spare.pop() {
            Some((spare, file)) => {
                fs::rename(self.directory.segment(spare), &path)?;
                file
            }
            None => match open(&path) {
                // The current segment grows until a descriptor is free again.
                Err(error) if is_out_of_descriptors(&error) => return Ok(()),
                opened => opened?,
            },
        };
        self.directory.sync()?;
        crash_point("journal_next_segment");
        let file = std::mem::replace(&mut self.file, file);
        self.complete.push_back(Complete { segment: self.seal.segment, file, last: self.last });
        self.seal.segment = next;
        self.begun = Instant::now();
        self.end = 0;
        Ok(())
    }
}

/// Whether the next segment starts after one with this many bytes and this age.
fn is_time_for_another(bytes: u64, full: u64, age: Duration) -> bool {
    bytes >= full || bytes >= SHORT_BYTES && age >= SEGMENT_AGE
}

/// The contents of the journal of an earlier process.
pub(super) struct Found {
    directory: Directory,
    key: u64,
    segments: Vec<u64>,
    /// The last frame that counts: all frames up to it are in the database or in these files.
    pub(super) last: u64,
    /// Whether a frame that was on disk is missing.
    pub(super) is_damaged: bool,
}

/// Returns an error if a release with another frame format left files.
pub(super) fn refuse_foreign(path: &Path) -> Result<(), JournalError> {
    let io = |source| JournalError::Io { path: path.to_owned(), source };
    let directory = match Directory::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        opened => opened.map_err(io)?,
    };
    for segment in list(path).map_err(io)? {
        let mut start = Vec::new();
        let file = File::open(directory.segment(segment)).map_err(io)?;
        file.take(frame::HEADER_BYTES as u64).read_to_end(&mut start).map_err(io)?;
        if frame::is_foreign(&start) {
            let source = frame::Undecodable("it has another form");
            return Err(JournalError::Foreign { path: path.to_owned(), source });
        }
    }
    Ok(())
}

/// Examines a journal whose frames up to `applied` are in the database. Creates the directory if it is missing.
pub(super) fn find(path: &Path, key: u64, applied: u64) -> Result<Found, JournalError> {
    let io = |source| JournalError::Io { path: path.to_owned(), source };
    DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(io)?;
    if let Some(parent) = path.parent() {
        Directory::open(parent).and_then(|parent| parent.sync()).map_err(io)?;
    }
    let directory = Directory::open(path).map_err(io)?;
    let segments = list(path).map_err(io)?;
    let (mut last, mut synced_to) = (applied, 0);
    for segment in &segments {
        let bytes = fs::read(directory.segment(*segment)).map_err(io)?;
        for frame in frames(Seal { key, segment: *segment }, &bytes) {
            synced_to = synced_to.max(frame.synced_to);
            if frame.number == last + 1 {
                last = frame.number;
            }
        }
    }
    // A gap after the last synced frame is the end: those frames were being written when the power failed.
    Ok(Found { directory, key, segments, last, is_damaged: synced_to > last })
}

impl Found {
    /// Passes the frames after `applied` to `take`, in order.
    pub(super) fn replay<E: From<JournalError>>(
        &self,
        applied: u64,
        mut take: impl FnMut(u64, usize, ShardId, &[Op]) -> Result<(), E>,
    ) -> Result<(), E> {
        let path = || self.directory.path.clone();
        for segment in &self.segments {
            let bytes = fs::read(self.directory.segment(*segment))
                .map_err(|source| JournalError::Io { path: path(), source })?;
            for frame in frames(Seal { key: self.key, segment: *segment }, &bytes) {
                if frame.number > applied && frame.number <= self.last {
                    let (shard, ops) =
                        frame::ops(frame.payload).map_err(|source| JournalError::Foreign { path: path(), source })?;
                    take(frame.number, frame.bytes(), shard, &ops)?;
                }
            }
        }
        Ok(())
    }

    /// The number of the next file.
    pub(super) fn next_segment(&self) -> u64 {
        self.segments.last().map_or(1, |segment| segment + 1)
    }

    /// Deletes all files, because their contents are safe in the database.
    pub(super) fn remove(&self) -> io::Result<()> {
        for segment in &self.segments {
            fs::remove_file(self.directory.segment(*segment))?;
        }
        self.directory.sync()
    }

    /// Renames all files to free names, so that the server can start without them and an operator can examine them.
    pub(super) fn set_aside(&self) -> io::Result<()> {
        for segment in &self.segments {
            let path = self.directory.segment(*segment);
            let names = (1..u32::MAX).map(|n| path.with_extension(format!("{n}.damaged")));
            if let Some(free) = names.into_iter().find(|name| !name.exists()) {
                fs::rename(&path, free)?;
            }
        }
        self.directory.sync()
    }

    /// The error that explains the damage.
    pub(super) fn damage(&self) -> JournalError {
        JournalError::Damaged { path: self.directory.path.clone(), missing: self.last + 1 }
    }
}

/// The readable frames, in order. Bytes between them are skipped.
fn frames(seal: Seal, bytes: &[u8]) -> impl Iterator<Item = Frame<'_>> {
    let mut rest = bytes;
    std::iter::from_fn(move || {
        loop {
            if let Some(frame) = frame::decode(seal, rest) {
                rest = &rest[frame.bytes()..];
                return Some(frame);
            }
            let skipped = rest.get(1..)?;
            rest = &skipped[frame::next_magic(skipped)?..];
        }
    })
}

/// The numbers of the segments in a directory, in order.
fn list(directory: &Path) -> io::Result<Vec<u64>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory)? {
        let name = entry?.file_name();
        let number: Option<u64> =
            name.to_str().and_then(|name| name.strip_suffix(".log")).and_then(|name| name.parse().ok());
        found.extend(number);
    }
    found.sort_unstable();
    Ok(found)
}

fn is_out_of_descriptors(error: &io::Error) -> bool {
    matches!(rustix::io::Errno::from_io_error(error), Some(rustix::io::Errno::MFILE | rustix::io::Errno::NFILE))
}

fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new().create(true).truncate(false).write(true).mode(0o600).open(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_segment_ends_when_it_is_full_or_old_and_worth_it() {
        let full = 16 << 20;
        let (young, old) = (Duration::from_millis(999), SEGMENT_AGE);
        assert!(is_time_for_another(full, full, Duration::ZERO));
        assert!(!is_time_for_another(full - 1, full, young));
        assert!(is_time_for_another(SHORT_BYTES, full, old));
        assert!(
            !is_time_for_another(SHORT_BYTES - 1, full, old),
            "too little for a rename and a sync of the directory"
        );
    }
}
