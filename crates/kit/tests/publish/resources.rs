//! URL groups, queues and schedules at the real server.

use crate::World;
use posthaste_kit::call::Class;
use posthaste_kit::publish::{Endpoint, Message, QueueService};
use std::time::Duration;

#[tokio::test]
async fn url_groups_are_kept_and_published_to() {
    let World { server: _server, client, receiver } = World::start().await;
    let groups = client.url_groups();
    let named = Endpoint { name: Some("first".into()), ..Endpoint::new(receiver.url("/a")) };
    groups.add("orders", &[named.clone(), Endpoint::new(receiver.url("/b"))]).await.unwrap();
    let group = groups.get("orders").await.unwrap().unwrap();
    assert_eq!((group.name.as_str(), group.endpoints.len(), &group.endpoints[0]), ("orders", 2, &named));
    assert_eq!(groups.list().await.unwrap(), [group]);
    let published = client.publish(&Message::bytes("orders", "k", "x")).await.unwrap();
    assert_eq!(published.receipts.len(), 2);
    assert_eq!(published.receipts[0].url, Some(receiver.url("/a")));
    let seen = receiver.after(2).await;
    assert!(seen.iter().all(|request| request.header("upstash-topic-name") == Some("orders")));
    groups.remove("orders", &[&receiver.url("/a")]).await.unwrap();
    assert_eq!(groups.get("orders").await.unwrap().unwrap().endpoints, [Endpoint::new(receiver.url("/b"))]);
    groups.delete("orders").await.unwrap();
    groups.delete("orders").await.unwrap();
    assert_eq!(groups.get("orders").await.unwrap(), None);
    assert_eq!(groups.get("../queues").await.unwrap_err().class(), Class::Invalid);
}

#[tokio::test]
async fn queues_are_created_paused_and_removed() {
    let World { server: _server, client, receiver } = World::start().await;
    let queues = client.queues();
    queues.put("q", 3).await.unwrap();
    assert!(queues.pause("q").await.unwrap());
    client.publish(&Message::bytes(receiver.url("/"), "k", "").in_queue("q")).await.unwrap();
    let queue = queues.get("q").await.unwrap().unwrap();
    assert_eq!((queue.name.as_str(), queue.parallelism, queue.paused, queue.lag), ("q", 3, true, 1));
    assert!(receiver.seen().is_empty());
    assert!(queues.resume("q").await.unwrap());
    receiver.after(1).await;
    assert_eq!(queues.list().await.unwrap().len(), 1);
    queues.delete("q").await.unwrap();
    assert_eq!(queues.get("q").await.unwrap(), None);
    assert!(!queues.pause("q").await.unwrap());
    assert_eq!(queues.put("a b", 1).await.unwrap_err().class(), Class::Invalid);
}

#[tokio::test]
async fn schedules_can_be_put_at_every_start() {
    let World { server: _server, client, receiver } = World::start().await;
    let schedules = client.schedules();
    let message = Message::bytes(receiver.url("/nightly"), "k", "x").timeout(Duration::from_secs(5)).in_queue("nights");
    for cron in ["0 2 * * *", "0 3 * * *"] {
        schedules.put("nightly", cron, &message).await.unwrap();
    }
    let all = schedules.list().await.unwrap();
    assert_eq!(all.len(), 1);
    let schedule = schedules.get("nightly").await.unwrap().unwrap();
    assert_eq!((schedule.schedule_id.as_str(), schedule.cron.as_str(), schedule.retries), ("nightly", "0 3 * * *", 5));
    assert_eq!((schedule.destination, schedule.queue_name.as_deref()), (receiver.url("/nightly"), Some("nights")));
    assert!(!schedule.is_paused && schedule.next_schedule_time.is_some());
    assert!(schedules.pause("nightly").await.unwrap());
    assert!(schedules.get("nightly").await.unwrap().unwrap().is_paused);
    assert!(schedules.resume("nightly").await.unwrap());
    assert!(schedules.delete("nightly").await.unwrap());
    assert!(!schedules.delete("nightly").await.unwrap());
    assert_eq!(schedules.get("nightly").await.unwrap(), None);
    let error = schedules.put("nightly", "every day", &message).await.unwrap_err();
    assert_eq!(error.status(), Some(400), "{error}");
}
