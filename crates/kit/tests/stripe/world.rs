//! The environment of an invoice: the queue, the database, the service, the mail provider, and the proxies between
//! them.

use super::example::provider::{Keys, Provider};
use super::example::show::{STRIPE_SECRET, event};
use super::hop::Hop;
use super::server::{SIGNING_KEYS, Server, TOKEN};
use super::statement;
use super::support::postgres::Postgres;
use super::support::wait::until;
use super::worker::Worker;
use posthaste_kit::publish::{DeadLetterFilter, Dedup, Message, QueueClient, QueueService};
use std::collections::BTreeSet;
use std::sync::Mutex;

pub(crate) struct World {
    pub(crate) server: Server,
    pub(crate) postgres: Postgres,
    pub(crate) provider: Provider,
    client: QueueClient,
    /// From the service to the queue.
    pub(crate) to_queue: Hop,
    /// From the queue, and from Stripe, to the service.
    pub(crate) to_service: Hop,
    /// From the service to the provider.
    pub(crate) to_provider: Hop,
    /// Messages that were not published by the service.
    published: Mutex<BTreeSet<String>>,
}

impl World {
    pub(crate) async fn start(keys: Keys) -> World {
        let server = Server::start();
        let provider = Provider::start(keys).await.unwrap();
        let postgres = Postgres::start().await;
        statement::prepare(&postgres).await;
        World {
            client: QueueClient::new(server.url(), TOKEN).unwrap(),
            to_queue: Hop::start(Some(server.url().trim_start_matches("http://").parse().unwrap())).await,
            to_service: Hop::start(None).await,
            to_provider: Hop::start(Some(provider.address)).await,
            server,
            postgres,
            provider,
            published: Mutex::default(),
        }
    }

    /// Starts a service, which gets all further requests.
    pub(crate) fn start_worker(&self) -> Worker {
        let worker = Worker::start(&[
            ("DATABASE_URL", self.postgres.url()),
            ("BASE_URL", self.to_service.url()),
            ("STRIPE_SECRET", STRIPE_SECRET.to_owned()),
            ("MAIL_URL", self.to_provider.url()),
            ("QSTASH_URL", self.to_queue.url()),
            ("QSTASH_TOKEN", TOKEN.to_owned()),
            ("QSTASH_CURRENT_SIGNING_KEY", SIGNING_KEYS[0].to_owned()),
            ("QSTASH_NEXT_SIGNING_KEY", SIGNING_KEYS[1].to_owned()),
            ("DEVELOPMENT", "true".to_owned()),
            ("LOCK_SECONDS", "2".to_owned()),
            ("RETRY_DELAY", "500".to_owned()),
        ]);
        self.to_service.lead_to(Some(worker.address));
        worker
    }

    /// Publishes the payment as a separate message that the queue cannot recognize as a duplicate: as if Stripe had
    /// repeated the event after the queue forgot the first one.
    pub(crate) async fn publish_again(&self, invoice: &str) {
        let destination = format!("{}/jobs/payment", self.to_service.url());
        let message = Message::json(destination, "", &event("late", invoice)).unwrap();
        let message = message.dedup(Dedup::Off).retry_delay("500");
        let published = self.client.publish(&message).await.unwrap();
        self.published.lock().unwrap().insert(published.message_id().unwrap().to_owned());
    }

    /// Returns when every message was delivered. Once the payment was delivered, the message that it caused is known.
    pub(crate) async fn settled(&self) {
        until("the end of all messages", || async {
            let delivered = self.to_service.delivered();
            let published = self.to_queue.published().union(&self.published.lock().unwrap()).cloned().collect();
            let left: BTreeSet<String> = &published - &delivered;
            if left.is_empty() && !delivered.is_empty() { Ok(()) } else { Err(format!("{left:?} are on their way")) }
        })
        .await;
        let dead = self.client.dead_letters().list(&DeadLetterFilter::default()).await.unwrap();
        assert!(dead.letters.is_empty(), "{dead:?}");
    }

    /// Rows in the database, and mails that the provider sent.
    pub(crate) async fn rows_and_mails(&self, invoice: &str) -> (i64, usize) {
        let rows = self.postgres.count(format!("SELECT count(*) FROM payments WHERE invoice = '{invoice}'")).await;
        (rows, self.provider.calls_and_mails(invoice).1)
    }
}
