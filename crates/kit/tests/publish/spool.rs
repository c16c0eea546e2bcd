//! A publisher that is killed repeatedly while it spools and drains. Every message that it reported as safe is safe.

use crate::receiver::{Receiver, Reply};
use crate::server::TOKEN;
use posthaste_kit::publish::{FallbackQueue, Message, QueueClient, QueueService, Route, Spool};
use posthaste_kit::retry::RetryPolicy;
use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;
use tempfile::TempDir;

/// Where the child spools, and the URL of its queue.
const DIRECTORY: &str = "POSTHASTE_KIT_TEST_SPOOL";
const QUEUE: &str = "POSTHASTE_KIT_TEST_QUEUE";
const FIRST: &str = "POSTHASTE_KIT_TEST_FIRST";
/// The child's output for a message that is safe, and for one that is safe on disk.
const SAFE: &str = "safe ";
const SPOOLED: &str = "safe, on the disk ";
const KILLS: usize = 8;
const PATH: &str = "/v2/publish/https://app.example.com/job";

/// The child's part: publishes and drains until it is killed. Without its environment variables it does nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_publisher_that_is_killed() {
    let Ok(directory) = std::env::var(DIRECTORY) else { return };
    let retry = RetryPolicy { attempts: 1, ..RetryPolicy::default() };
    let client = Arc::new(QueueClient::new(std::env::var(QUEUE).unwrap(), TOKEN).unwrap().retry(retry));
    let spool = Arc::new(Spool::open(directory).await.unwrap());
    let queue = FallbackQueue::with_spool(client.clone(), spool.clone()).pause(Duration::ZERO);
    let draining = async {
        loop {
            spool.drain_step(&*client).await.unwrap();
            tokio::task::yield_now().await;
        }
    };
    let publishing = async {
        let first: usize = std::env::var(FIRST).unwrap().parse().unwrap();
        for number in first.. {
            let message = Message::bytes("https://app.example.com/job", number, number.to_string());
            match queue.publish(&message).await.unwrap().route {
                Route::Spool => println!("{SPOOLED}{number}"),
                _ => println!("{SAFE}{number}"),
            }
        }
    };
    tokio::join!(publishing, draining);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_reported_as_safe_survive_every_kill() {
    let (directory, queue) = (TempDir::new().unwrap(), Receiver::start().await);
    let taken = || Reply::json(r#"{"messageId":"msg_1"}"#);
    // Unavailable for two of three requests, in every way.
    let script = (0..10_000).map(|number| match number % 6 {
        0 | 3 => Reply::status(503),
        1 => Reply::Close,
        4 => Reply::status(507),
        _ => taken(),
    });
    queue.script(PATH, script.chain([taken()]));
    let (mut safe, mut spooled, mut next) = (BTreeSet::new(), 0, 0);
    for kill in 0..KILLS {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "spool::the_publisher_that_is_killed", "--nocapture"])
            .env(DIRECTORY, directory.path())
            .env(QUEUE, queue.url(""))
            .env(FIRST, next.to_string())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
        let mut said = 0;
        // The moment differs each time. Output after that moment counts too.
        for line in lines {
            let Some((words, number)) = line.split_once(SPOOLED).or_else(|| line.split_once(SAFE)) else { continue };
            spooled += usize::from(line.contains(SPOOLED));
            assert!(words.is_empty() || words.ends_with("... "), "{line}");
            safe.insert(number.parse::<usize>().unwrap());
            said += 1;
            if said == 10 + 7 * kill {
                child.kill().unwrap();
            }
        }
        child.wait().unwrap();
        assert!(said >= 10 + 7 * kill, "the child ended by itself after {said} messages");
        next = safe.last().unwrap() + 2;
    }
    assert!(spooled > 0 && spooled < safe.len(), "{spooled} of {}", safe.len());
    let spool = Spool::open(directory.path()).await.unwrap();
    let aside = std::fs::read_dir(directory.path())
        .unwrap()
        .filter(|file| file.as_ref().unwrap().path().extension().is_some_and(|end| end == "aside"));
    assert_eq!(aside.count(), 0, "a file was torn");
    queue.script(PATH, [taken()]);
    let client = QueueClient::new(queue.url(""), TOKEN).unwrap();
    while !spool.is_empty() {
        spool.drain_step(&client).await.unwrap();
    }
    let seen = queue.seen();
    let taken = seen.iter().filter(|request| request.status == Some(200)).map(|request| &request.body);
    let arrived: BTreeSet<usize> = taken.map(|body| std::str::from_utf8(body).unwrap().parse().unwrap()).collect();
    let lost: Vec<_> = safe.difference(&arrived).collect();
    assert!(lost.is_empty(), "{lost:?} were safe, and are lost");
}
