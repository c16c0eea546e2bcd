//! The service: a webhook that publishes to a queue, and two jobs.

use axum::Router;
use posthaste_kit::idempotency::LOCK_DEFAULT;
use posthaste_kit::idempotency::key::InvalidKey;
use posthaste_kit::idempotency::postgres::{PostgresStore, create_tables};
use posthaste_kit::idempotency::table::{Entry, IdempotencyTable, RequestHash, TableKey};
use posthaste_kit::idempotency::{BusinessKey, IdempotencyStore};
use posthaste_kit::job::{Job, JobHandler};
use posthaste_kit::publish::{Message, PublishPolicy, QueueClient, QueueService, RETRY_DELAY};
use posthaste_kit::service::ServiceClient;
use posthaste_kit::webhook::{Stripe, StripeEvent, Webhook};
use posthaste_kit::{Failure, HandlerResult, Receiver};
use serde::{Deserialize, Serialize};
use sqlx::PgPool;
use std::env;
use std::error::Error;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;

/// In your service, add a unique key on the invoice. Here only the kit prevents a second row.
const PAYMENTS: &str =
    "CREATE TABLE IF NOT EXISTS payments (invoice text NOT NULL, customer text NOT NULL, cents bigint NOT NULL)";

/// How long a payment is remembered. Stripe retries for three days, and people retry dead letters even later.
const KEEP: Duration = Duration::from_secs(30 * 86_400);

/// The settings of the service. The four `QSTASH_` variables set the queue and its keys.
pub(crate) struct Settings {
    database_url: String,
    listen: SocketAddr,
    /// The URL under which the queue reaches the service.
    base_url: String,
    stripe_secret: String,
    mail_url: String,
    /// How long a message and a mail stay locked if the service dies. The next attempt has to wait that long.
    lock: Duration,
    /// The delay before a retry in milliseconds.
    retry_delay: String,
    /// Whether the queue is `posthaste dev` on this machine, whose signing keys are public.
    is_development: bool,
}

impl Settings {
    pub(crate) fn from_env() -> Result<Settings, Box<dyn Error>> {
        Ok(Settings {
            database_url: variable("DATABASE_URL")?,
            listen: variable("LISTEN")?.parse()?,
            base_url: variable("BASE_URL")?,
            stripe_secret: variable("STRIPE_SECRET")?,
            mail_url: variable("MAIL_URL")?,
            lock: match env::var("LOCK_SECONDS") {
                Ok(seconds) => Duration::from_secs(seconds.parse()?),
                Err(_) => LOCK_DEFAULT,
            },
            retry_delay: env::var("RETRY_DELAY").unwrap_or_else(|_| RETRY_DELAY.to_owned()),
            is_development: env::var("DEVELOPMENT").is_ok_and(|value| value == "true"),
        })
    }
}

fn variable(name: &str) -> Result<String, String> {
    env::var(name).map_err(|_| format!("{name} is not set"))
}

/// Serves until the process ends.
pub(crate) async fn serve(settings: &Settings) -> Result<(), Box<dyn Error>> {
    let pool = PgPool::connect(&settings.database_url).await?;
    create_tables(&mut *pool.acquire().await?).await?;
    sqlx::query(PAYMENTS).execute(&pool).await?;
    let listener = TcpListener::bind(settings.listen).await?;
    axum::serve(listener, routes(settings, pool)?).await?;
    Ok(())
}

fn routes(settings: &Settings, pool: PgPool) -> Result<Router, Box<dyn Error>> {
    let policy = PublishPolicy { retry_delay: settings.retry_delay.clone(), ..PublishPolicy::default() };
    let queue: Arc<dyn QueueService> = Arc::new(QueueClient::from_env()?.policy(policy));
    let keys = [variable("QSTASH_CURRENT_SIGNING_KEY")?, variable("QSTASH_NEXT_SIGNING_KEY")?];
    let receiver = if settings.is_development {
        Receiver::for_development(&keys[0], &keys[1])?
    } else {
        Receiver::new(&keys[0], &keys[1])?
    };
    let receiver = receiver.at_base(&settings.base_url);
    let store: Arc<dyn IdempotencyStore> = Arc::new(PostgresStore::new(pool.clone()));
    let payment_url = format!("{}/jobs/payment", settings.base_url);
    let shop = Arc::new(Shop {
        pool,
        queue: Arc::clone(&queue),
        mail: ServiceClient::new(&settings.mail_url)?,
        table: IdempotencyTable::new().lock(settings.lock).keep(KEEP),
        receipt_url: format!("{}/jobs/receipt", settings.base_url),
    });

    let hook = Webhook::publish(Stripe::new(&settings.stripe_secret)?, queue, payment_url).events(["invoice.paid"]);
    let for_payments = Arc::clone(&shop);
    let payments = JobHandler::json("payment", receiver.clone(), Arc::clone(&store), move |job| {
        let shop = Arc::clone(&for_payments);
        async move { shop.record_payment(job).await }
    })?;
    let receipts = JobHandler::json("receipt", receiver, store, move |job| {
        let shop = Arc::clone(&shop);
        async move { shop.send_receipt(job).await }
    })?;
    Ok(Router::new()
        .route("/hooks/stripe", hook.route())
        .route("/jobs/payment", payments.lock(settings.lock).route())
        .route("/jobs/receipt", receipts.lock(settings.lock).route()))
}

/// The fields of a Stripe invoice that the shop needs.
#[derive(Serialize, Deserialize)]
pub(crate) struct Invoice {
    pub(crate) id: String,
    pub(crate) customer: String,
    pub(crate) customer_email: String,
    pub(crate) amount_paid: i64,
}

impl Invoice {
    /// The key of an operation on the invoice. It does not contain the event, because Stripe may create two events for
    /// one payment.
    fn key(&self, domain: &str, operation: &str) -> Result<BusinessKey, InvalidKey> {
        BusinessKey::new(domain, &self.customer, &self.id, operation, "v1")
    }
}

struct Shop {
    pool: PgPool,
    queue: Arc<dyn QueueService>,
    mail: ServiceClient,
    table: IdempotencyTable,
    receipt_url: String,
}

impl Shop {
    /// Writes the row, then publishes the order of the mail. If the service dies in between, the queue retries, the
    /// handler finds the row, and publishes the order.
    async fn record_payment(&self, job: Job<StripeEvent<Invoice>>) -> HandlerResult {
        let invoice = job.payload.data.object;
        let key = invoice.key("billing", "record").map_err(Failure::permanent)?;
        let mut transaction = self.pool.begin().await?;
        match self.table.begin(&mut transaction, &TableKey::from(&key), RequestHash::of_json(&invoice)?).await? {
            Entry::Claimed(claim) => {
                sqlx::query("INSERT INTO payments (invoice, customer, cents) VALUES ($1, $2, $3)")
                    .bind(&invoice.id)
                    .bind(&invoice.customer)
                    .bind(invoice.amount_paid)
                    .execute(&mut *transaction)
                    .await?;
                claim.complete(&mut transaction, b"").await?;
                transaction.commit().await?;
            }
            Entry::Completed(_) => {} // The row exists. The mail may not be ordered yet.
            entry => return Err(not_now(&entry)),
        }
        let mail = invoice.key("mail", "receipt").map_err(Failure::permanent)?;
        let message = Message::json(&self.receipt_url, &mail, &invoice)?.request_id(job.delivery.request_id());
        self.queue.publish(&message).await.map_err(Failure::retryable)?;
        Ok(())
    }

    /// Sends the mail. The mail provider is not in this database, so the mail cannot be committed together with its
    /// mark. If the service dies in between, the queue retries, and the mail is sent again with the same key.
    async fn send_receipt(&self, job: Job<Invoice>) -> HandlerResult {
        let invoice = job.payload;
        let key = invoice.key("mail", "receipt").map_err(Failure::permanent)?;
        let mut transaction = self.pool.begin().await?;
        let request = RequestHash::of_json(&invoice)?;
        let entry = self.table.begin(&mut transaction, &TableKey::from(&key), request).await?;
        transaction.commit().await?;
        let claim = match entry {
            Entry::Claimed(claim) => claim,
            Entry::Completed(_) => return Ok(()),
            entry => return Err(not_now(&entry)),
        };
        let sent = self.mail.post("/mails").json(&invoice).idempotency_key(&key).send().await;
        let mut transaction = self.pool.begin().await?;
        match &sent {
            Ok(_) => claim.complete(&mut transaction, b"").await?,
            Err(_) => claim.release(&mut transaction).await?,
        }
        transaction.commit().await?;
        sent.map(drop).map_err(|error| error.into_failure())
    }
}

/// The failure for the queue if this handler neither owns the work nor finds it done.
fn not_now(entry: &Entry) -> Failure {
    match entry {
        Entry::UnderWay { retry_after } => Failure::retryable("somebody else is at it").after(*retry_after),
        Entry::Failed(error) => Failure::permanent(error.clone()),
        _ => Failure::permanent("the same invoice came before, with other content"),
    }
}
