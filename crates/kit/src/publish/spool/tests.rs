//! Restarts, damaged files, and full or failing disks.

use super::*;
use crate::publish::{Dedup, RecordingQueue};
use std::time::{SystemTime, UNIX_EPOCH};
use tempfile::TempDir;

fn message(key: usize) -> Message {
    Message::bytes("https://app.example.com/job", key, format!("body {key}"))
}

fn status(status: u16) -> CallError {
    CallError::from_status(status, &http::HeaderMap::new())
}

async fn spool(directory: &TempDir) -> Spool {
    Spool::open(directory.path()).await.unwrap()
}

/// The names of all files except the lock.
fn files(directory: &TempDir) -> Vec<String> {
    let names =
        std::fs::read_dir(directory.path()).unwrap().map(|file| file.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = names.filter(|name| name != "lock").collect();
    names.sort();
    names
}

/// Drains until nothing is left.
async fn drain_all(spool: &Spool, queue: &RecordingQueue) {
    while !matches!(spool.drain_step(queue).await.unwrap(), Drained::Empty | Drained::Blocked(_)) {}
}

#[tokio::test]
async fn messages_survive_a_restart_and_keep_their_order() {
    let (directory, queue) = (TempDir::new().unwrap(), RecordingQueue::default());
    let first = spool(&directory).await;
    for key in 0..5 {
        assert_eq!(first.publish(&message(key)).await.unwrap().route, Route::Spool);
    }
    drop(first);
    let second = spool(&directory).await;
    assert_eq!(second.len(), 5);
    second.publish(&message(5)).await.unwrap();
    drain_all(&second, &queue).await;
    assert_eq!(queue.messages(), (0..6).map(message).collect::<Vec<_>>());
    assert!(second.is_empty() && files(&directory).is_empty());
    drop(second);
    assert!(spool(&directory).await.is_empty());
}

#[tokio::test]
async fn a_message_stays_until_the_queue_has_taken_it() {
    let (directory, queue) = (TempDir::new().unwrap(), RecordingQueue::default());
    let spool = spool(&directory).await;
    spool.publish(&message(1)).await.unwrap();
    spool.publish(&message(2)).await.unwrap();
    let strangers = [status(404).unexpected_responder(), CallError::unreadable("<html>")];
    queue.then([status(503), CallError::network("away"), status(401), status(429)].map(Some));
    queue.then(strangers.map(Some));
    for _ in 0..6 {
        assert!(matches!(spool.drain_step(&queue).await.unwrap(), Drained::Blocked(_)));
        assert_eq!((spool.len(), files(&directory).len()), (2, 2));
    }
    drain_all(&spool, &queue).await;
    assert_eq!(queue.messages(), [message(1), message(2)]);
}

#[tokio::test]
async fn messages_that_no_queue_accepts_are_set_aside_and_kept() {
    let (directory, queue) = (TempDir::new().unwrap(), RecordingQueue::default());
    let told = Arc::new(Mutex::new(Vec::new()));
    let hook = told.clone();
    let hook = AlertHook::new(move |alert| {
        if let Alert::PutAside { file, error } = alert {
            hook.lock().unwrap().push(((*file).to_owned(), error.status()));
        }
    });
    let spool = spool(&directory).await.alerts(hook);
    spool.publish(&message(1)).await.unwrap();
    spool.publish(&message(2)).await.unwrap();
    queue.then([Some(status(400))]);
    assert!(matches!(spool.drain_step(&queue).await.unwrap(), Drained::PutAside(_)));
    drain_all(&spool, &queue).await;
    assert_eq!(queue.messages(), [message(2)]);
    assert_eq!(files(&directory), ["00000000000000000000.aside"]);
    let told = told.lock().unwrap().clone();
    assert!(matches!(told.as_slice(), [(file, Some(400))] if file.ends_with("0.aside")), "{told:?}");
    drop(spool);
    // Its number is not reused.
    let spool = self::spool(&directory).await;
    spool.publish(&message(3)).await.unwrap();
    assert_eq!(files(&directory), ["00000000000000000000.aside", "00000000000000000001.message"]);
}

#[tokio::test]
async fn messages_without_deduplication_are_set_aside_if_the_queue_may_have_them() {
    let (directory, queue) = (TempDir::new().unwrap(), RecordingQueue::default());
    let spool = spool(&directory).await;
    let off = message(1).dedup(Dedup::Off);
    spool.publish(&off).await.unwrap();
    // The queue cannot have it, so it stays.
    let untouched = [CallError::network("refused").before_anything_was_sent(), status(429), status(401)];
    queue.then(untouched.map(Some));
    for _ in 0..3 {
        assert!(matches!(spool.drain_step(&queue).await.unwrap(), Drained::Blocked(_)));
    }
    drain_all(&spool, &queue).await;
    assert_eq!(queue.take(), std::slice::from_ref(&off));
    for unknown in [CallError::timeout(Duration::from_secs(1)), status(503), CallError::unreadable("<html>")] {
        spool.publish(&off).await.unwrap();
        queue.then([Some(unknown)]);
        assert!(matches!(spool.drain_step(&queue).await.unwrap(), Drained::PutAside(_)));
        assert!(matches!(spool.drain_step(&queue).await.unwrap(), Drained::Empty));
    }
    assert!(queue.messages().is_empty());
    assert_eq!(files(&directory).iter().filter(|name| name.ends_with(".aside")).count(), 3);
}

#[tokio::test]
async fn damaged_files_block_nothing_and_are_kept() {
    let content = file::encode(&message(7)).unwrap();
    // Truncated anywhere, and with any single bit flipped.
    let cut = (0..content.len()).map(|length| content[..length].to_vec());
    let changed = (0..content.len()).map(|place| {
        let mut changed = content.clone();
        changed[place] ^= 1 << (place % 8);
        changed
    });
    for damaged in cut.chain(changed) {
        assert!(file::decode(&damaged).is_err(), "{}", String::from_utf8_lossy(&damaged));
    }
    assert_eq!(file::decode(&content).unwrap(), message(7));

    let (directory, queue) = (TempDir::new().unwrap(), RecordingQueue::default());
    let first = spool(&directory).await;
    first.publish(&message(1)).await.unwrap();
    first.publish(&message(2)).await.unwrap();
    drop(first);
    std::fs::write(directory.path().join("00000000000000000000.message"), b"torn").unwrap();
    std::fs::write(directory.path().join("00000000000000000009.new"), b"never finished").unwrap();
    let second = spool(&directory).await;
    drain_all(&second, &queue).await;
    assert_eq!(queue.messages(), [message(2)]);
    assert_eq!(files(&directory), ["00000000000000000000.aside"]);
}

#[tokio::test]
async fn only_one_process_can_open_a_spool() {
    let directory = TempDir::new().unwrap();
    let first = spool(&directory).await;
    assert!(Spool::open(directory.path()).await.unwrap_err().is_in_use());
    drop(first);
    assert!(Spool::open(directory.path()).await.is_ok());
}

#[tokio::test]
async fn a_full_spool_returns_an_error_until_there_is_room() {
    let (directory, queue) = (TempDir::new().unwrap(), RecordingQueue::default());
    let limits = SpoolLimits { messages: 2, ..SpoolLimits::default() };
    let spool = spool(&directory).await.limits(limits);
    spool.publish(&message(1)).await.unwrap();
    spool.publish(&message(2)).await.unwrap();
    assert!(spool.publish(&message(3)).await.unwrap_err().chain().to_string().contains("full"));
    spool.drain_step(&queue).await.unwrap();
    spool.publish(&message(3)).await.unwrap();

    let bytes = file::encode(&message(1)).unwrap().len() as u64;
    let spool = spool.limits(SpoolLimits { messages: 100, bytes: 3 * bytes - 1 });
    assert!(spool.publish(&message(4)).await.is_err());
    let spool = spool.limits(SpoolLimits { messages: 100, bytes: 3 * bytes });
    spool.publish(&message(4)).await.unwrap();
    assert_eq!(spool.len(), 3);
}

#[tokio::test]
async fn a_disk_error_is_returned_and_leaves_no_file() {
    let directory = TempDir::new().unwrap();
    let spool = spool(&directory).await;
    let taken = directory.path().join("00000000000000000000.new");
    // The file cannot be created, as on a full disk.
    std::fs::create_dir(&taken).unwrap();
    let error = spool.publish(&message(1)).await.unwrap_err();
    assert!(error.to_string().contains("could not be written"), "{error}");
    assert!(spool.is_empty() && spool.is_quiet());
    std::fs::remove_dir(&taken).unwrap();
    spool.publish(&message(2)).await.unwrap();
    assert_eq!(files(&directory), ["00000000000000000001.message"]);
}

/// Manipulates the disk while it has the message, and then responds.
struct Saboteur<F>(F, Mutex<Option<CallError>>, RecordingQueue);

impl<F: Fn() + Send + Sync + 'static> QueueService for Saboteur<F> {
    fn publish<'a>(&'a self, message: &'a Message) -> PublishFuture<'a, Published> {
        (self.0)();
        match self.1.lock().unwrap().take() {
            Some(error) => Box::pin(async { Err(error) }),
            None => self.2.publish(message),
        }
    }
}

#[tokio::test]
async fn an_accepted_message_is_not_published_again_although_its_file_stays() {
    let directory = TempDir::new().unwrap();
    let file = directory.path().join("00000000000000000000.message");
    let spool = spool(&directory).await;
    spool.publish(&message(1)).await.unwrap();
    // Replaces the file by a directory, so that it cannot be removed as a file.
    let sabotage = move || {
        std::fs::remove_file(&file).unwrap();
        std::fs::create_dir(&file).unwrap();
    };
    let queue = Saboteur(sabotage, Mutex::default(), RecordingQueue::default());
    assert!(matches!(spool.drain_step(&queue).await.unwrap(), Drained::Published(_)));
    assert!(matches!(spool.drain_step(&queue).await.unwrap(), Drained::Empty));
    assert_eq!((queue.2.messages(), spool.shared.index().bytes), (vec![message(1)], 0));
    assert_eq!(files(&directory), ["00000000000000000000.message"]);
}

#[tokio::test]
async fn a_directory_that_cannot_be_synced_blocks_nothing() {
    for refused in [None, Some(status(400))] {
        let parent = TempDir::new().unwrap();
        let (here, there) = (parent.path().join("here"), parent.path().join("there"));
        let spool = Spool::open(&here).await.unwrap();
        spool.publish(&message(1)).await.unwrap();
        let is_refused = refused.is_some();
        // The directory is gone, so nothing in it can be renamed, removed or synced.
        let sabotage = move || std::fs::rename(&here, &there).unwrap();
        let queue = Saboteur(sabotage, Mutex::new(refused), RecordingQueue::default());
        let step = spool.drain_step(&queue).await.unwrap();
        assert_eq!(matches!(step, Drained::PutAside(_)), is_refused, "{step:?}");
        assert_eq!(matches!(step, Drained::Published(_)), !is_refused, "{step:?}");
        assert!(matches!(spool.drain_step(&queue).await.unwrap(), Drained::Empty));
    }
}

#[tokio::test]
async fn a_file_that_cannot_be_set_aside_blocks_nothing() {
    let (directory, queue) = (TempDir::new().unwrap(), RecordingQueue::default());
    let told = Arc::new(Mutex::new(Vec::new()));
    let hook = told.clone();
    let hook = AlertHook::new(move |alert| hook.lock().unwrap().push(format!("{alert:?}")));
    let spool = spool(&directory).await.alerts(hook);
    spool.publish(&message(1)).await.unwrap();
    spool.publish(&message(2)).await.unwrap();
    std::fs::create_dir(directory.path().join("00000000000000000000.aside")).unwrap();
    queue.then([Some(status(400))]);
    assert!(matches!(spool.drain_step(&queue).await.unwrap(), Drained::PutAside(_)));
    drain_all(&spool, &queue).await;
    assert_eq!((queue.messages(), spool.len()), (vec![message(2)], 0));
    let told = told.lock().unwrap();
    assert!(told.len() == 1 && told[0].contains("00000000000000000000.message"), "{told:?}");
}

#[tokio::test]
async fn a_removed_file_blocks_nothing() {
    let (directory, queue) = (TempDir::new().unwrap(), RecordingQueue::default());
    let spool = spool(&directory).await;
    for key in 0..3 {
        spool.publish(&message(key)).await.unwrap();
    }
    std::fs::remove_file(directory.path().join("00000000000000000000.message")).unwrap();
    std::fs::remove_file(directory.path().join("00000000000000000002.message")).unwrap();
    drain_all(&spool, &queue).await;
    assert_eq!(queue.messages(), [message(1)]);
    assert_eq!((spool.len(), spool.shared.index().bytes), (0, 0));
}

#[tokio::test]
async fn delays_are_counted_from_the_publish() {
    let (directory, queue) = (TempDir::new().unwrap(), RecordingQueue::default());
    let now: fn() -> SystemTime = || UNIX_EPOCH + Duration::from_secs(1_000);
    let spool = spool(&directory).await.clock(Clock::from_fn(now));
    spool.publish(&message(1).delay(Duration::from_secs(60))).await.unwrap();
    drain_all(&spool, &queue).await;
    assert_eq!(queue.messages(), [message(1).not_before(UNIX_EPOCH + Duration::from_secs(1_060))]);
}

#[cfg(unix)]
#[tokio::test]
async fn files_are_readable_only_by_their_owner() {
    use std::os::unix::fs::PermissionsExt as _;
    let directory = TempDir::new().unwrap();
    let place = directory.path().join("deep/spool");
    let spool = Spool::open(&place).await.unwrap();
    spool.publish(&message(1).header("authorization", "Bearer secret")).await.unwrap();
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&place), 0o700);
    assert_eq!(mode(&place.join("00000000000000000000.message")), 0o600);
}

#[tokio::test]
async fn a_cancelled_publish_leaves_a_whole_message_or_none() {
    let (directory, queue) = (TempDir::new().unwrap(), RecordingQueue::default());
    let spool = spool(&directory).await;
    let message = message(1);
    {
        // Started, and dropped while the disk is working.
        let mut publish = spool.publish(&message);
        let waker = std::task::Waker::noop();
        let _ = publish.as_mut().poll(&mut std::task::Context::from_waker(waker));
    }
    while !spool.is_quiet() && spool.is_empty() {
        tokio::task::yield_now().await;
    }
    drain_all(&spool, &queue).await;
    assert!(queue.messages().len() <= 1 && files(&directory).is_empty());
}

#[tokio::test(start_paused = true)]
async fn the_loop_drains_when_the_queue_is_back_and_stops_when_cancelled() {
    let (directory, queue) = (TempDir::new().unwrap(), Arc::new(RecordingQueue::default()));
    let spool = Arc::new(spool(&directory).await);
    spool.publish(&message(1)).await.unwrap();
    queue.then([Some(status(503)), Some(status(503))]);
    let stop = CancellationToken::new();
    let (draining, to, until) = (spool.clone(), queue.clone(), stop.clone());
    let task = tokio::spawn(async move { draining.drain(&*to, &until).await });
    let drained = async {
        while queue.messages().is_empty() {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    tokio::time::timeout(10 * DRAIN_EVERY, drained).await.expect("it is drained after two waits");
    stop.cancel();
    task.await.unwrap();
    assert!(spool.is_empty());
}
