//! The directory that holds all data: made if missing, private, locked by the one process that uses it, and
//! watched for room.

use crate::config::Config;
use posthaste_store::journal::CHECKPOINT_BYTES;
use posthaste_store::{DiskOutlook, Store};
use posthaste_wire::id::TenantId;
use rustix::fs::{FlockOperation, flock};
use std::collections::HashMap;
use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::task::JoinHandle;

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
    #[error(
        "the data directory {path} is in use by another posthaste process{holder}; stop that one or choose another --data-dir"
    )]
    Locked {
        /// Which directory.
        path: PathBuf,
        /// ` (pid N)`, if it said so.
        holder: String,
    },
    /// It is a file, or would be inside one.
    #[error("{file} is a file, and the data directory must be a directory: choose another --data-dir")]
    NotADirectory {
        /// Which file.
        file: PathBuf,
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
        DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(|error| match file_in(path) {
            Some(file) => DataDirError::NotADirectory { file: file.to_owned() },
            None => io(error),
        })?;
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

    /// Where the journal in front of it lives.
    pub fn journal(&self) -> PathBuf {
        self.path.join("journal")
    }
}

/// The part of a path that should be a directory and is not.
fn file_in(path: &Path) -> Option<&Path> {
    path.ancestors().find(|part| part.exists()).filter(|part| !part.is_dir())
}

/// How often the free space is looked at.
const WATCH_EVERY: Duration = Duration::from_secs(1);
/// Bytes that a byte of a request takes on the disk until it is in its place: the journal, the WAL and the database.
const WRITTEN_PER_BYTE: u64 = 3;
/// Of these, the bytes that the file system must have room for even if the database has free pages: the journal and the WAL.
const WRITTEN_BESIDES: u64 = 2;
/// How long the WAL may get. With less room than this besides the reserve, the store keeps it short.
const WAL_BYTES_MAX: u64 = 2 * CHECKPOINT_BYTES;

/// The room on the disk, as requests take it: what was promised to those that are being stored is not there for others.
#[derive(Debug)]
pub struct DiskRoom {
    path: PathBuf,
    measure: FreeBytes,
    reserve: u64,
    outlook: Arc<DiskOutlook>,
    /// What was free at the last look, less what was stored since.
    free: AtomicU64,
    /// Bytes of requests that are being stored.
    promised: AtomicU64,
    /// The same for each tenant that has such requests.
    promised_to: Mutex<HashMap<TenantId, u64>>,
}

impl DiskRoom {
    /// Bytes that the store has accepted and the database does not have yet.
    pub fn pending_bytes(&self) -> u64 {
        self.outlook.pending.load(Ordering::Relaxed)
    }

    /// The room in a data directory, of which `reserve` bytes are for outcomes; 0 means that nothing is kept and nothing is
    /// refused.
    pub fn new(path: &Path, reserve: u64, outlook: Arc<DiskOutlook>, measure: FreeBytes) -> Arc<DiskRoom> {
        let (free, promised, promised_to) = (AtomicU64::new(u64::MAX), AtomicU64::new(0), Mutex::default());
        let room = Arc::new(DiskRoom { path: path.to_owned(), measure, reserve, outlook, free, promised, promised_to });
        room.look();
        room
    }

    /// Reserves room for the bytes of a request until the promise is dropped; `None` if that would use the disk's reserve.
    pub fn take(self: &Arc<Self>, tenant: TenantId, bytes: u64) -> Option<DiskPromise> {
        let promised = self.promised.fetch_add(bytes, Ordering::Relaxed).saturating_add(bytes);
        let earlier = {
            let mut promised_to = self.promised_to();
            let of_tenant = promised_to.entry(tenant).or_default();
            std::mem::replace(of_tenant, of_tenant.wrapping_add(bytes))
        };
        let promise = DiskPromise { room: self.clone(), tenant, bytes, earlier, is_kept: true };
        if self.reserve == 0 || self.has_room_for(promised) {
            return Some(promise);
        }
        self.look();
        if self.has_room_for(promised) {
            return Some(promise);
        }
        promise.give_back();
        None
    }

    fn promised_to(&self) -> MutexGuard<'_, HashMap<TenantId, u64>> {
        self.promised_to.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the reserve stays when these bytes of requests are stored. Free pages of the database count, because nothing but
    /// the database grows for good; but half of the reserve is on the disk itself, for the journal and the WAL.
    fn has_room_for(&self, bytes: u64) -> bool {
        let free = self.free.load(Ordering::Relaxed);
        let reusable = self.outlook.reusable.load(Ordering::Relaxed);
        let all = bytes.saturating_mul(WRITTEN_PER_BYTE).saturating_add(self.reserve);
        let besides = bytes.saturating_mul(WRITTEN_BESIDES).saturating_add(self.reserve / 2);
        free >= besides && free.saturating_add(reusable) >= all
    }

    /// Looks whether the reserve is there, and logs when that changes.
    fn watch(&self, low: &AtomicBool) {
        self.look();
        let is_low = !self.has_room_for(0);
        if low.swap(is_low, Ordering::Relaxed) == is_low {
            return;
        }
        let free = self.free.load(Ordering::Relaxed);
        let reusable = self.outlook.reusable.load(Ordering::Relaxed);
        let reserve = self.reserve;
        if is_low {
            tracing::error!(
                free,
                reusable,
                reserve,
                "the disk is nearly full: new messages are refused until there is room"
            );
        } else {
            tracing::info!(free, reusable, reserve, "the disk has room again");
        }
    }

    /// Asks the file system what is free, besides what the store has yet to write. Without an answer the last one counts.
    fn look(&self) {
        if let Some(free) = (self.measure)(&self.path) {
            let is_tight = self.reserve > 0 && free < self.reserve.saturating_add(WAL_BYTES_MAX);
            self.outlook.is_tight.store(is_tight, Ordering::Relaxed);
            let backlog = self.outlook.backlog.load(Ordering::Relaxed);
            self.free.store(free.saturating_sub(backlog), Ordering::Relaxed);
        }
    }
}

/// Room that a request may take until it is stored.
#[derive(Debug)]
pub struct DiskPromise {
    room: Arc<DiskRoom>,
    tenant: TenantId,
    bytes: u64,
    earlier: u64,
    /// Whether the request may have stored its bytes.
    is_kept: bool,
}

impl DiskPromise {
    /// Bytes that requests of the same tenant were about to store when this one came.
    pub fn earlier(&self) -> u64 {
        self.earlier
    }

    /// Ends the promise of a request that has stored nothing.
    pub fn give_back(mut self) {
        self.is_kept = false;
    }

    /// A promise of its own for some of the bytes, which are stored earlier than the others.
    pub fn split(&mut self, bytes: u64) -> DiskPromise {
        let bytes = bytes.min(self.bytes);
        self.bytes -= bytes;
        DiskPromise { room: self.room.clone(), bytes, ..*self }
    }
}

impl Drop for DiskPromise {
    fn drop(&mut self) {
        self.room.promised.fetch_sub(self.bytes, Ordering::Relaxed);
        let mut promised_to = self.room.promised_to();
        if let Some(of_tenant) = promised_to.get_mut(&self.tenant) {
            *of_tenant = of_tenant.wrapping_sub(self.bytes);
            if *of_tenant == 0 {
                promised_to.remove(&self.tenant);
            }
        }
        drop(promised_to);
        if !self.is_kept {
            return;
        }
        let written = self.bytes.saturating_mul(WRITTEN_PER_BYTE);
        let less = |free: u64| Some(free.saturating_sub(written));
        // A look in between may make it too small, until the next one.
        let _ = self.room.free.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
    }
}

/// The default of what a tenant may store: half of what the disk has for the data directory.
pub fn half_of_disk(path: &Path) -> Option<u64> {
    let Usage { bytes, free_bytes } = usage(path);
    Some((bytes.unwrap_or(0) + free_bytes?) / 2)
}

/// The disk that the store is on.
#[derive(Clone, Debug)]
pub struct Disk {
    /// Set while it has less room than it must keep.
    pub low: Arc<AtomicBool>,
    pub room: Arc<DiskRoom>,
}

/// Watches the room on the disk, so that publishing stops while outcomes can still be written.
#[derive(Debug)]
pub struct DiskWatch(Option<JoinHandle<()>>);

impl DiskWatch {
    /// Sets `low` whenever the disk has less room than it must keep. Ends with this value.
    pub fn start(config: &Config, store: &dyn Store, measure: FreeBytes) -> (Disk, DiskWatch) {
        let reserve = config.disk_reserve_bytes;
        let low = Arc::new(AtomicBool::new(false));
        let room = DiskRoom::new(&config.data_dir, reserve, store.disk_outlook(), measure);
        if reserve == 0 || measure(&room.path).is_none() {
            return (Disk { low, room }, DiskWatch(None));
        }
        // Before anything is accepted, or fires.
        room.watch(&low);
        let disk = Disk { low, room };
        let Disk { low, room: watched } = disk.clone();
        let watch = tokio::spawn(async move {
            let mut ticks = tokio::time::interval(WATCH_EVERY);
            loop {
                ticks.tick().await;
                watched.watch(&low);
            }
        });
        (disk, DiskWatch(Some(watch)))
    }
}

impl Drop for DiskWatch {
    fn drop(&mut self) {
        if let Some(task) = &self.0 {
            task.abort();
        }
    }
}

/// How much room the data takes, and how much there is. What the file system does not say is `None`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Bytes of all files in the data directory.
    pub bytes: Option<u64>,
    /// Bytes that may still be written.
    pub free_bytes: Option<u64>,
}

/// Files of a data directory that are looked at; there are a dozen.
const FILES_MAX: usize = 10_000;

/// Looks at the files of a data directory.
pub fn usage(path: &Path) -> Usage {
    Usage { bytes: bytes_of(path).ok(), free_bytes: free_bytes(path) }
}

/// Files that vanish meanwhile take no room.
fn bytes_of(path: &Path) -> io::Result<u64> {
    let mut directories = vec![path.to_owned()];
    let (mut bytes, mut files) = (0, 0);
    while let Some(directory) = directories.pop() {
        for entry in std::fs::read_dir(directory)?.take(FILES_MAX - files) {
            files += 1;
            let entry = entry?;
            match entry.metadata() {
                Ok(found) if found.is_dir() => directories.push(entry.path()),
                Ok(found) => bytes += found.len(),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
    }
    Ok(bytes)
}

/// How the free bytes of a file system are found; `None` if it does not say.
pub type FreeBytes = fn(&Path) -> Option<u64>;

/// The bytes that an unprivileged process may still write.
pub fn free_bytes(path: &Path) -> Option<u64> {
    let stat = rustix::fs::statvfs(path).ok()?;
    stat.f_bavail.checked_mul(stat.f_frsize)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: TenantId = TenantId(1);
    const OTHER: TenantId = TenantId(2);

    #[test]
    fn room_is_promised_once_and_never_from_the_reserve() {
        let dir = tempfile::tempdir().unwrap();
        let free = free_bytes(dir.path()).unwrap();
        // Others write to this disk: the figures leave them a gigabyte, or half of what there is.
        let slack = (free / 2).min(1 << 30);
        let room = DiskRoom::new(dir.path(), free / 4, Arc::default(), free_bytes);
        let most = (free - free / 4 - slack) / WRITTEN_PER_BYTE;
        let promise = room.take(ONE, most).unwrap();
        assert!(room.take(OTHER, most).is_none(), "the room is promised to another");
        drop(promise);
        assert!(room.take(ONE, most).is_some(), "it was not used: a look at the disk finds it again");
        assert!(room.take(ONE, u64::MAX).is_none());
        assert!(room.take(ONE, free).is_none());
        let without_reserve = DiskRoom::new(dir.path(), 0, Arc::default(), free_bytes);
        assert!(without_reserve.take(ONE, u64::MAX).is_some(), "without a reserve nothing is refused");
        assert!(room.promised_to().is_empty() && without_reserve.promised_to().is_empty());
    }

    #[test]
    fn requests_of_a_tenant_see_the_bytes_of_its_earlier_ones() {
        let dir = tempfile::tempdir().unwrap();
        let room = DiskRoom::new(dir.path(), 0, Arc::default(), free_bytes);
        let take = |tenant, bytes| room.take(tenant, bytes).unwrap();
        let (first, second, other) = (take(ONE, 5), take(ONE, 7), take(OTHER, 9));
        assert_eq!([first.earlier(), second.earlier(), other.earlier()], [0, 5, 0]);
        first.give_back();
        assert_eq!(take(ONE, 1).earlier(), 7);
        let mut second = second;
        drop(second.split(4));
        assert_eq!(take(ONE, 1).earlier(), 3);
        drop(second);
        assert_eq!(take(ONE, 1).earlier(), 0);
    }

    #[test]
    fn free_pages_of_the_database_are_room_but_the_journal_needs_the_disk_itself() {
        let dir = tempfile::tempdir().unwrap();
        let room = |free: u64, reusable: u64| {
            let outlook = Arc::new(DiskOutlook { reusable: reusable.into(), ..DiskOutlook::default() });
            let (path, promised) = (dir.path().to_owned(), AtomicU64::new(0));
            let promised_to = Mutex::default();
            DiskRoom { path, measure: free_bytes, reserve: 100, outlook, free: free.into(), promised, promised_to }
        };
        assert!(room(100, 0).has_room_for(0) && !room(99, 0).has_room_for(0));
        assert!(room(50, 50).has_room_for(0) && !room(50, 49).has_room_for(0));
        assert!(!room(49, 1_000_000).has_room_for(0), "half of the reserve is on the disk itself");
        assert!(room(130, 0).has_room_for(10) && !room(130, 0).has_room_for(11));
        assert!(room(70, 60).has_room_for(10) && !room(69, 60).has_room_for(10));
    }

    #[test]
    fn all_files_are_counted() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("journal")).unwrap();
        for (name, bytes) in [("posthaste.db", 5_000), ("journal/1", 700), ("journal/2", 0)] {
            std::fs::write(dir.path().join(name), vec![0; bytes]).unwrap();
        }
        let usage = usage(dir.path());
        assert_eq!(usage.bytes, Some(5_700));
        assert!(usage.free_bytes.is_some_and(|free| free > 0));
        assert_eq!(super::usage(&dir.path().join("absent")), Usage::default());
    }

    #[test]
    fn a_file_in_the_place_of_the_directory_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("data");
        std::fs::write(&file, "mine").unwrap();
        for path in [file.clone(), file.join("inside"), file.join("deep/inside")] {
            let error = DataDir::lock(&path).unwrap_err().to_string();
            let expected = "is a file, and the data directory must be a directory: choose another --data-dir";
            assert_eq!(error, format!("{} {expected}", file.display()), "{}", path.display());
        }
        assert_eq!(std::fs::read(&file).unwrap(), b"mine");
    }

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
