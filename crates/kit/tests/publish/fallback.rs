//! Nothing is lost when the real server is killed and restarted.

use crate::receiver::Receiver;
use crate::server::TOKEN;
use crate::{World, within};
use posthaste_kit::publish::{FallbackQueue, Message, QueueClient, QueueService, Route, Spool};
use posthaste_kit::retry::{CancellationToken, RetryPolicy};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use tempfile::TempDir;

const PUBLISHERS: usize = 4;
const MESSAGES_EACH: usize = 40;

fn impatient(url: String) -> QueueClient {
    let retry = RetryPolicy {
        attempts: 2,
        base: Duration::from_millis(1),
        timeout: Duration::from_secs(10),
        ..RetryPolicy::default()
    };
    QueueClient::new(url, TOKEN).unwrap().retry(retry)
}

fn job(receiver: &Receiver, name: &str) -> Message {
    Message::bytes(receiver.url("/job"), name, name.to_owned())
}

fn bodies(receiver: &Receiver) -> BTreeSet<String> {
    receiver.seen().into_iter().map(|seen| String::from_utf8(seen.body).unwrap()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_publish_that_returned_ok_is_delivered_even_if_the_server_is_killed() {
    let World { mut server, receiver, .. } = World::start().await;
    let directory = TempDir::new().unwrap();
    let client = Arc::new(impatient(server.url()));
    let spool = Arc::new(Spool::open(directory.path()).await.unwrap());
    let queue = FallbackQueue::with_spool(client.clone(), spool.clone()).pause(Duration::ZERO);
    let (queue, receiver) = (Arc::new(queue), Arc::new(receiver));
    let (half, mut at_half) = tokio::sync::mpsc::channel(PUBLISHERS);
    let gone = CancellationToken::new();
    let publishers: Vec<_> = (0..PUBLISHERS)
        .map(|publisher| {
            let (queue, receiver, half, gone) = (queue.clone(), receiver.clone(), half.clone(), gone.clone());
            tokio::spawn(async move {
                let (mut taken, mut spooled) = (Vec::new(), 0);
                for number in 0..MESSAGES_EACH {
                    if number == MESSAGES_EACH / 2 {
                        half.send(()).await.unwrap();
                    }
                    if number == MESSAGES_EACH - 5 {
                        // At least some publishes happen while it is certainly down.
                        gone.cancelled().await;
                    }
                    let name = format!("{publisher}-{number}");
                    let published = queue.publish(&job(&receiver, &name)).await.unwrap();
                    spooled += usize::from(published.route == Route::Spool);
                    taken.push(name);
                }
                (taken, spooled)
            })
        })
        .collect();
    // Waits until the publishers are in the middle of their work.
    for _ in 0..PUBLISHERS {
        within("half of the messages", at_half.recv()).await.unwrap();
    }
    server.kill();
    gone.cancel();
    let (mut taken, mut spooled) = (BTreeSet::new(), 0);
    for publisher in publishers {
        let (names, count) = within("the publishers", publisher).await.unwrap();
        taken.extend(names);
        spooled += count;
    }
    assert!(spooled >= PUBLISHERS * 5 && spool.len() == spooled, "{spooled} of {}", spool.len());
    // The publisher crashes too; the messages are on disk.
    drop((queue, spool));
    let spool = Arc::new(Spool::open(directory.path()).await.unwrap());
    assert_eq!(spool.len(), spooled);
    server.restart();
    let stop = CancellationToken::new();
    let (draining, until) = (spool.clone(), stop.clone());
    let drain = tokio::spawn(async move { draining.drain(&*client, &until).await });
    let mut count = taken.len();
    while bodies(&receiver) != taken {
        // A crash may cause duplicates, but nothing may be missing.
        receiver.after(count).await;
        count += 1;
    }
    stop.cancel();
    within("the end of draining", drain).await.unwrap();
    assert!(spool.is_empty());
}

#[tokio::test]
async fn a_message_that_both_have_is_delivered_once() {
    let World { server: _server, client, receiver } = World::start().await;
    let directory = TempDir::new().unwrap();
    let spool = Spool::open(directory.path()).await.unwrap();
    // As if the response of the server had been lost.
    client.publish(&job(&receiver, "same")).await.unwrap();
    spool.publish(&job(&receiver, "same")).await.unwrap();
    spool.publish(&job(&receiver, "other")).await.unwrap();
    while !spool.is_empty() {
        spool.drain_step(&client).await.unwrap();
    }
    receiver.after(2).await;
    assert_eq!(bodies(&receiver), BTreeSet::from(["other".to_owned(), "same".to_owned()]));
    assert_eq!(receiver.seen().len(), 2);
}
