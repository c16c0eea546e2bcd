//! Bulk actions of the operator, in two lives: one in which what they are about comes to be, and one in which they begin,
//! which may be their last.

use crate::history::{Kind, Millis};
use crate::load::Load;
use bytes::Bytes;
use hyper::Method;
use serde_json::{Value, json};
use std::collections::HashSet;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::time::timeout;

/// A bulk action is about more messages than one piece of it takes.
const BATCHES: usize = 11;
const BATCH: u64 = 100;
/// Cancelled messages are due long after that.
const CANCELLED: Kind = Kind::Cancelled { delay_ms: CANCELLED_DELAY_MS };
const CANCELLED_DELAY_MS: Millis = 120_000;
/// How often and how long something is waited for.
const POLL_EVERY: Duration = Duration::from_millis(100);
const PATIENCE: Duration = Duration::from_secs(60);

/// What is done to many.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bulk {
    Cancel,
    Delete,
    Retry,
}

impl Bulk {
    pub(crate) const ALL: [Bulk; 3] = [Bulk::Cancel, Bulk::Delete, Bulk::Retry];

    /// The label of all that it is about.
    pub(crate) fn label(self) -> &'static str {
        match self {
            Bulk::Cancel => "doomed",
            Bulk::Delete => "buried",
            Bulk::Retry => "revived",
        }
    }

    fn kind(self) -> Kind {
        match self {
            Bulk::Cancel => CANCELLED,
            Bulk::Delete => Kind::Buried,
            Bulk::Retry => Kind::Revived,
        }
    }

    /// The request that begins it.
    fn request(self) -> (Method, String) {
        let (method, path) = match self {
            Bulk::Cancel => (Method::DELETE, "/v2/messages"),
            Bulk::Delete => (Method::DELETE, "/v2/dlq"),
            Bulk::Retry => (Method::POST, "/v2/dlq/retry"),
        };
        (method, format!("{path}?label={}&async=true", self.label()))
    }
}

/// Publishes what a bulk action is to be about, and waits until all of that can begin: dead letters are dead, and no
/// other bulk action is under way. The server is not killed meanwhile.
pub(crate) async fn prepare(load: &Load, server: SocketAddr, bulk: Bulk) {
    let headers = match bulk {
        Bulk::Cancel => {
            json!({ "upstash-label": bulk.label(), "upstash-delay": format!("{}s", CANCELLED_DELAY_MS / 1_000) })
        }
        Bulk::Delete | Bulk::Retry => json!({ "upstash-label": bulk.label(), "upstash-retries": "0" }),
    };
    let before: HashSet<String> = keys_and_ids(load, bulk).into_iter().map(|(key, _)| key).collect();
    for _ in 0..BATCHES {
        load.batch_of(server, BATCH, bulk.kind(), headers.clone()).await;
    }
    if bulk != Bulk::Cancel {
        let new = keys_and_ids(load, bulk).into_iter().filter(|(key, _)| !before.contains(key));
        let ids: HashSet<String> = new.filter_map(|(_, id)| id).collect();
        let target = format!("/v2/dlq?label={}&count=100&trimBody=0", bulk.label());
        until("all are dead letters", || async {
            let letters = load.client.pages(server, &target, "messages").await;
            let dead: HashSet<&str> = letters.iter().filter_map(|letter| letter["messageId"].as_str()).collect();
            ids.iter().all(|id| dead.contains(id.as_str()))
        })
        .await;
    }
    finished(load, server).await;
}

/// Begins it; the server may die of it.
pub(crate) async fn begin(load: &Load, server: SocketAddr, bulk: Bulk) {
    let about = keys_and_ids(load, bulk);
    load.note(|history| match bulk {
        Bulk::Cancel => history.cancel_sent.extend(about.iter().filter_map(|(_, id)| id.clone())),
        Bulk::Delete | Bulk::Retry => about.iter().for_each(|(key, _)| {
            history.letters_asked.entry(key.clone()).or_default();
        }),
    });
    let (method, target) = bulk.request();
    let answer = load.client.send(method, server, &target, &[], Bytes::new()).await;
    if answer.is_some_and(|answer| (200..300).contains(&answer.status)) {
        let at = load.witness.now();
        load.note(|history| match bulk {
            Bulk::Cancel => {
                history.cancels.extend(about.into_iter().filter_map(|(_, id)| Some((id?, at))));
            }
            Bulk::Delete | Bulk::Retry => history.letters_asked.extend(about.into_iter().map(|(key, _)| (key, true))),
        });
    }
}

/// Returns when no bulk action has anything left to do.
pub(crate) async fn finished(load: &Load, server: SocketAddr) {
    until("all bulk actions are finished", || async {
        let actions = load.client.pages(server, "/v2/bulkActions?count=100", "bulkActions").await;
        actions.iter().all(|action: &Value| action["state"] == "FINISHED")
    })
    .await;
}

/// What was published for such bulk actions so far: keys, and ids where they are known.
fn keys_and_ids(load: &Load, bulk: Bulk) -> Vec<(String, Option<String>)> {
    let mut found = Vec::new();
    load.note(|history| {
        let about = history.publishes.iter().filter(|publish| publish.kind == bulk.kind());
        found = about.map(|publish| (publish.key.clone(), publish.answer.id().map(str::to_owned))).collect();
    });
    found
}

/// Asks until it is so.
pub(crate) async fn until<F: Future<Output = bool>>(what: &str, mut is_so: impl FnMut() -> F) {
    let wait = async {
        while !is_so().await {
            tokio::time::sleep(POLL_EVERY).await;
        }
    };
    assert!(timeout(PATIENCE, wait).await.is_ok(), "{what}: not within {PATIENCE:?}");
}
