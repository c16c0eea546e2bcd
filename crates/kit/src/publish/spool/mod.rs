//! A spool: messages on disk until the queue is available again.
//!
//! Each message is a file, which is written completely before it gets its name. The files are the truth; the list in
//! memory only names them. Start at [`Spool::open`]; [`Spool::drain_step`] publishes the oldest message. The format of
//! a file is in `file`.

mod file;

use super::alert::{Alert, AlertHook};
use super::message::Message;
use super::policy::PublishPolicy;
use super::{PublishFuture, Published, QueueService, Route};
use crate::call::{CallError, Class};
use crate::clock::Clock;
use crate::retry::CancellationToken;
use file::{Directory, Entry};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Default maximum number of messages in a spool. Beyond it `publish` returns an error.
pub const SPOOL_MESSAGES_MAX: usize = 100_000;
/// Default maximum size of a spool, in bytes. Beyond it `publish` returns an error.
pub const SPOOL_BYTES_MAX: u64 = 1024 * 1024 * 1024;
/// How long [`Spool::drain`] waits if the spool is empty or the queue is unavailable.
pub const DRAIN_EVERY: Duration = Duration::from_secs(5);

/// Limits of a spool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpoolLimits {
    /// Maximum number of messages.
    pub messages: usize,
    /// Maximum number of bytes.
    pub bytes: u64,
}

impl Default for SpoolLimits {
    fn default() -> Self {
        SpoolLimits { messages: SPOOL_MESSAGES_MAX, bytes: SPOOL_BYTES_MAX }
    }
}

/// Keeps messages in a directory until a queue accepts them.
///
/// As a [`QueueService`] it accepts a message by writing and syncing it to disk, so it survives a crash and a power
/// cut. The file is removed only after the queue has accepted the message. After a crash in between, the message is
/// published again. That is a duplicate if it happens within [`DEDUP_WINDOW`](super::DEDUP_WINDOW) and without
/// [`Dedup::Off`](super::Dedup::Off). The files contain bodies and forwarded headers in plain text and are readable
/// only by their owner.
///
/// ```no_run
/// # use posthaste_kit::publish::{FallbackQueue, QueueService, Spool};
/// # use posthaste_kit::retry::CancellationToken;
/// # use std::sync::Arc;
/// # async fn example(client: Arc<dyn QueueService>) -> Result<(), Box<dyn std::error::Error>> {
/// let spool = Arc::new(Spool::open("/var/lib/app/spool").await?);
/// let queue = FallbackQueue::with_spool(client.clone(), spool.clone());
/// let stop = CancellationToken::new();
/// tokio::spawn(async move { spool.drain(&*client, &stop).await });
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct Spool {
    shared: Arc<Shared>,
    limits: SpoolLimits,
    policy: PublishPolicy,
    clock: Clock,
    alerts: AlertHook,
    /// Only one task drains at a time, because two would publish the same message.
    draining: tokio::sync::Mutex<()>,
}

/// The state that blocking threads share, so that they finish their work even if the caller stops waiting.
#[derive(Debug)]
struct Shared {
    directory: Directory,
    index: Mutex<Index>,
}

/// The stored messages, in the order of their arrival.
#[derive(Debug, Default)]
struct Index {
    /// The length of each file.
    entries: BTreeMap<u64, u64>,
    /// Of all files, including those being written.
    bytes: u64,
    /// Number of files being written.
    unfinished: usize,
    next: u64,
}

impl Shared {
    fn index(&self) -> MutexGuard<'_, Index> {
        self.index.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes a message for which there is room.
    fn write(&self, sequence: u64, content: &[u8]) -> std::io::Result<()> {
        let written = self.directory.write(sequence, content);
        let (mut index, bytes) = (self.index(), content.len() as u64);
        index.unfinished -= 1;
        match written {
            Ok(()) => drop(index.entries.insert(sequence, bytes)),
            Err(_) => index.bytes -= bytes,
        }
        written
    }

    /// Removes a message that the queue has, or sets it aside. It is forgotten even if the disk fails: with its entry
    /// it would be published again and again, with its file at most once more, after the next start.
    fn finish(&self, sequence: u64, change: fn(&Directory, u64) -> std::io::Result<()>) {
        if let Err(error) = change(&self.directory, sequence) {
            tracing::error!(sequence, %error, "a file of the spool is done but could not be removed; it may be published again after a restart");
        }
        self.forget(sequence);
    }

    /// Drops the entry of the file.
    fn forget(&self, sequence: u64) {
        let mut index = self.index();
        if let Some(bytes) = index.entries.remove(&sequence) {
            index.bytes -= bytes;
        }
    }
}

/// The directory of a spool cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("the spool {what}")]
pub struct SpoolError {
    what: &'static str,
    #[source]
    source: std::io::Error,
}

impl SpoolError {
    fn new(what: &'static str, source: std::io::Error) -> SpoolError {
        SpoolError { what, source }
    }

    /// Whether another process has the spool open.
    pub fn is_in_use(&self) -> bool {
        self.source.kind() == std::io::ErrorKind::WouldBlock
    }
}

/// The result of a step of draining.
#[derive(Debug)]
#[non_exhaustive]
pub enum Drained {
    /// The spool is empty.
    Empty,
    /// The queue accepted the oldest message.
    Published(Published),
    /// The oldest message was set aside: the queue will never accept it, or may already have it and could not detect a
    /// duplicate, see [`Dedup::Off`](super::Dedup::Off).
    PutAside(CallError),
    /// The queue is unavailable; the message stays.
    Blocked(CallError),
}

impl Spool {
    /// Opens the directory, or creates it. Only one process can have it open.
    pub async fn open(directory: impl AsRef<Path>) -> Result<Spool, SpoolError> {
        let path = directory.as_ref().to_owned();
        let opened = blocking(move || Ok(Directory::open(&path))).await;
        let (directory, entries) = opened.map_err(|error| SpoolError::new("cannot be opened", error))??;
        let mut index = Index { next: directory.next_free(), ..Index::default() };
        for Entry { sequence, bytes } in entries {
            index.bytes += bytes;
            index.entries.insert(sequence, bytes);
        }
        if !index.entries.is_empty() {
            tracing::info!(messages = index.entries.len(), "the spool has messages from an earlier run");
        }
        Ok(Spool {
            shared: Arc::new(Shared { directory, index: Mutex::new(index) }),
            limits: SpoolLimits::default(),
            policy: PublishPolicy::default(),
            clock: Clock::system(),
            alerts: AlertHook::default(),
            draining: tokio::sync::Mutex::new(()),
        })
    }

    /// Sets the limits.
    pub fn limits(mut self, limits: SpoolLimits) -> Spool {
        self.limits = limits;
        self
    }

    /// Sets a hook that is called when a message is set aside.
    pub fn alerts(mut self, hook: AlertHook) -> Spool {
        self.alerts = hook;
        self
    }

    /// Sets the clock, from which the delays of messages are counted.
    pub fn clock(mut self, clock: Clock) -> Spool {
        self.clock = clock;
        self
    }

    /// Number of waiting messages.
    pub fn len(&self) -> usize {
        self.shared.index().entries.len()
    }

    /// Whether no message waits.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether no message waits or is being written, so that a new one overtakes none.
    pub(super) fn is_quiet(&self) -> bool {
        let index = self.shared.index();
        index.entries.is_empty() && index.unfinished == 0
    }

    /// Publishes the oldest message. Its file is removed only after the queue has accepted it. If it cannot be removed,
    /// this is logged, and the message is published again after the next [`open`](Self::open).
    pub async fn drain_step(&self, queue: &(impl QueueService + ?Sized)) -> Result<Drained, SpoolError> {
        let _alone = self.draining.lock().await;
        let (sequence, message) = loop {
            let Some(sequence) = self.shared.index().entries.keys().next().copied() else {
                return Ok(Drained::Empty);
            };
            let shared = self.shared.clone();
            let read = blocking(move || shared.directory.read(sequence)).await;
            match read.map_err(|error| SpoolError::new("cannot be read", error))? {
                Some(Ok(message)) => break (sequence, message),
                Some(Err(damage)) => return self.put_aside(sequence, CallError::invalid(damage)).await,
                None => {
                    tracing::error!(
                        sequence,
                        "a file of the spool was removed by another process; its message is not published"
                    );
                    self.shared.forget(sequence);
                }
            }
        };
        match queue.publish(&message).await {
            Ok(published) => {
                self.finish(sequence, Directory::remove).await?;
                Ok(Drained::Published(published))
            }
            Err(error) if is_about_the_message(&error) || !message.is_repeatable_after(&error) => {
                self.put_aside(sequence, error).await
            }
            Err(error) => Ok(Drained::Blocked(error)),
        }
    }

    /// Publishes messages as they arrive, until the token is cancelled.
    pub async fn drain(&self, queue: &(impl QueueService + ?Sized), cancelled: &CancellationToken) {
        while !cancelled.is_cancelled() {
            match self.drain_step(queue).await {
                Ok(Drained::Published(_) | Drained::PutAside(_)) => continue,
                Ok(Drained::Empty) => {}
                Ok(Drained::Blocked(error)) => {
                    tracing::warn!(waiting = self.len(), error = %error.chain(), "the spool cannot be drained yet");
                }
                Err(error) => tracing::error!(error = &error as &dyn std::error::Error, "the spool cannot be drained"),
            }
            // A wake-up would only be a hint; this check at intervals is the guarantee.
            let _ = tokio::time::timeout(DRAIN_EVERY, cancelled.cancelled()).await;
        }
    }

    async fn append(&self, mut message: Message) -> Result<Published, CallError> {
        message.check(&self.policy)?;
        message.fix_delay(self.clock.now());
        let encoded = file::encode(&message).map_err(CallError::invalid)?;
        let sequence = self.reserve(encoded.len() as u64)?;
        let shared = self.shared.clone();
        let written = blocking(move || shared.write(sequence, &encoded)).await;
        written.map_err(|error| CallError::network(error).with_detail("the spool could not be written"))?;
        Ok(Published::by(Route::Spool, Vec::new()))
    }

    /// Reserves a number and room for a message of this length.
    fn reserve(&self, bytes: u64) -> Result<u64, CallError> {
        let mut index = self.shared.index();
        let is_full = index.entries.len() + index.unfinished >= self.limits.messages;
        if is_full || index.bytes.saturating_add(bytes) > self.limits.bytes {
            let text = format!("the spool is full: {} messages, {} bytes", index.entries.len(), index.bytes);
            return Err(CallError::network(text).give_up());
        }
        index.unfinished += 1;
        index.bytes += bytes;
        let sequence = index.next;
        index.next += 1;
        Ok(sequence)
    }

    async fn put_aside(&self, sequence: u64, error: CallError) -> Result<Drained, SpoolError> {
        self.finish(sequence, Directory::put_aside).await?;
        let shared = self.shared.clone();
        let place = blocking(move || Ok(shared.directory.place(sequence))).await;
        let file = place.map_err(|error| SpoolError::new("cannot be read", error))?;
        self.alerts.fire(&Alert::PutAside { file: &file, error: &error });
        Ok(Drained::PutAside(error))
    }

    async fn finish(
        &self,
        sequence: u64,
        change: fn(&Directory, u64) -> std::io::Result<()>,
    ) -> Result<(), SpoolError> {
        let shared = self.shared.clone();
        let finished = blocking(move || {
            shared.finish(sequence, change);
            Ok(())
        });
        finished.await.map_err(|error| SpoolError::new("cannot be changed", error))
    }
}

impl QueueService for Spool {
    fn publish<'a>(&'a self, message: &'a Message) -> PublishFuture<'a, Published> {
        Box::pin(self.append(message.clone()))
    }
}

/// Whether no queue will ever accept this message, so that later messages need not wait. A rejected token does not
/// count, because the message can be accepted with another token. Responses of other servers in the queue's place do
/// not count either.
fn is_about_the_message(error: &CallError) -> bool {
    match (error.class(), error.status()) {
        _ if error.is_outage() => false,
        (Class::Invalid, _) => true,
        (Class::Refused, Some(status)) => matches!(status, 400 | 404..=406 | 410..=417 | 422 | 431 | 489),
        _ => false,
    }
}

/// Runs disk operations where blocking is allowed. They finish even if the caller stops waiting.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> std::io::Result<T> + Send + 'static) -> std::io::Result<T> {
    tokio::task::spawn_blocking(work).await.map_err(std::io::Error::other)?
}

#[cfg(test)]
mod tests;
