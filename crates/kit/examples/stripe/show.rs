//! The demo: Stripe, a mail provider, and a service that is killed at the worst moment.

use super::provider::{Keys, Provider};
use super::service::Invoice;
use posthaste_kit::call::CallError;
use posthaste_kit::service::ServiceClient;
use posthaste_kit::testing::webhook;
use serde_json::{Value, json};
use sqlx::PgPool;
use std::error::Error;
use std::net::TcpListener;
use std::process::{Child, Command};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::time::{sleep, timeout};

/// The secret of the webhook, which only Stripe and the service know.
pub(crate) const STRIPE_SECRET: &str = "whsec_of_the_show";

/// Longest duration of any step.
const PATIENCE: Duration = Duration::from_secs(60);
/// Interval of polling where there is no notification.
const ASK_AGAIN: Duration = Duration::from_millis(20);

/// Runs the demo. `program` is the command that starts the service.
pub(crate) async fn run(database_url: &str, program: impl Fn() -> Command) -> Result<(), Box<dyn Error>> {
    let provider = Provider::start(Keys::Honoured).await?;
    provider.keep_silent();
    let address = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
    let base_url = format!("http://{address}");
    let start = || {
        let mut command = program();
        command.envs([("DATABASE_URL", database_url), ("BASE_URL", &base_url), ("STRIPE_SECRET", STRIPE_SECRET)]);
        command.envs([("LISTEN", address.to_string()), ("MAIL_URL", format!("http://{}", provider.address))]);
        command.envs([("LOCK_SECONDS", "2"), ("RETRY_DELAY", "1000")]);
        command.spawn().map(Service)
    };

    let now = SystemTime::now().duration_since(UNIX_EPOCH)?;
    let invoice = format!("in_{}", now.as_nanos());
    let mut service = start()?;
    println!("Stripe says three times that {invoice} is paid");
    for _ in 0..3 {
        within("Stripe's event was taken", send_until_accepted(&base_url, &event("first", &invoice))).await?;
    }
    within("a mail left", provider.called(&invoice)).await?;
    println!("the mail is out; the service is killed before it hears of that");
    service.kill()?;
    provider.answer();
    service = start()?;
    println!("another one takes over, and Stripe comes again with an event of another name");
    within("Stripe's event was taken", send_until_accepted(&base_url, &event("second", &invoice))).await?;
    let pool = PgPool::connect(database_url).await?;
    within("the mail was marked as sent", is_marked(&pool, &invoice)).await??;
    service.kill()?;

    let rows: i64 =
        sqlx::query_scalar("SELECT count(*) FROM payments WHERE invoice = $1").bind(&invoice).fetch_one(&pool).await?;
    let (calls, mails) = provider.calls_and_mails(&invoice);
    println!("rows: {rows}; the provider was asked for a mail {calls} times; mails: {mails}");
    if (rows, mails) == (1, 1) && calls > 1 { Ok(()) } else { Err("that is not what was promised".into()) }
}

/// An event as Stripe sends it. Each name is a different event of the same payment.
pub(crate) fn event(name: &str, invoice: &str) -> Value {
    let id = format!("evt_{name}_{invoice}");
    let object = Invoice {
        id: invoice.to_owned(),
        customer: "cus_7".to_owned(),
        customer_email: "ada@example.com".to_owned(),
        amount_paid: 1_200,
    };
    json!({ "id": id, "type": "invoice.paid", "created": 1_780_315_200, "livemode": false, "data": { "object": object } })
}

/// Sends an event once, signed with the current time.
pub(crate) async fn send_event(base_url: &str, event: &Value) -> Result<(), CallError> {
    let signed = webhook::stripe(STRIPE_SECRET, event.to_string().as_bytes(), SystemTime::now());
    let service = ServiceClient::new(base_url).map_err(CallError::invalid)?;
    let mut request = service.post("/hooks/stripe").json(event);
    for (name, value) in &signed {
        request = request.header(name.clone(), value.to_str().map_err(CallError::invalid)?);
    }
    request.send().await.map(drop)
}

/// Sends an event until it is accepted, as Stripe does.
pub(crate) async fn send_until_accepted(base_url: &str, event: &Value) {
    while send_event(base_url, event).await.is_err() {
        sleep(ASK_AGAIN).await;
    }
}

async fn is_marked(pool: &PgPool, invoice: &str) -> Result<(), sqlx::Error> {
    let marks = "SELECT count(*) FROM idempotency_keys WHERE domain = 'mail' AND key LIKE $1 AND status = 'completed'";
    let pattern = format!("%:{invoice}:%");
    while sqlx::query_scalar::<_, i64>(marks).bind(&pattern).fetch_one(pool).await? == 0 {
        sleep(ASK_AGAIN).await;
    }
    Ok(())
}

async fn within<T>(what: &str, future: impl Future<Output = T>) -> Result<T, String> {
    timeout(PATIENCE, future).await.map_err(|_| format!("it did not happen in time that {what}"))
}

/// The service as a process, which is killed when this value is dropped.
struct Service(Child);

impl Service {
    /// Sends SIGKILL: the service has no time to clean up.
    fn kill(&mut self) -> std::io::Result<()> {
        self.0.kill()?;
        self.0.wait().map(drop)
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        // It may have exited already.
        drop(self.kill());
    }
}
