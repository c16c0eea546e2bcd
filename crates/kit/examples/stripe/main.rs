//! An invoice is paid at Stripe. The result is one row in PostgreSQL and one mail, no matter what is repeated or
//! killed.
//!
//! ```text
//! Stripe ─► /hooks/stripe ─► queue ─► /jobs/payment ─► row and mark, one transaction
//!                              ▲            │
//!                              └─ publishes ┘ ─► /jobs/receipt ─► mail, with an idempotency key
//! ```
//!
//! Needs a PostgreSQL, in which it creates missing tables, and a Posthaste (`cargo run -- dev` in another terminal; for
//! another queue, set the four variables that `dev` prints, and `DEVELOPMENT=false`). Then
//!
//! ```text
//! DATABASE_URL=postgres://postgres@localhost/postgres \
//!     cargo run -p posthaste-kit --example stripe --features axum,client,postgres,testing
//! ```
//!
//! starts the service in its own process, sends it the event of a payment four times, and kills it with SIGKILL right
//! after the mail was sent but not yet recorded. It then starts the service again and counts: one row, one mail. With
//! `serve` after `--` it runs only the service. `docs/handlers.md` explains what is guaranteed and what is not.
//!
//! `service` is the code to copy. `provider` is a mail provider for the demo, and `show` is the demo.

pub(crate) mod provider;
pub(crate) mod service;
pub(crate) mod show;

use service::Settings;
use std::error::Error;
use std::process::Command;

/// The published user of `posthaste dev`, and the permission to use its keys.
const DEV: [(&str, &str); 5] = [
    ("DEVELOPMENT", "true"),
    ("QSTASH_URL", "http://127.0.0.1:8080"),
    ("QSTASH_TOKEN", "eyJVc2VySUQiOiJkZWZhdWx0VXNlciIsIlBhc3N3b3JkIjoiZGVmYXVsdFBhc3N3b3JkIn0="),
    ("QSTASH_CURRENT_SIGNING_KEY", "sig_7kYjw48mhY7kAjqNGcy6cr29RJ6r"),
    ("QSTASH_NEXT_SIGNING_KEY", "sig_5ZB6DVzB1wjE8S6rZ7eenA8Pdnhs"),
];

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    tracing_subscriber::fmt().with_max_level(tracing::Level::WARN).with_writer(std::io::stderr).init();
    match std::env::args().nth(1).as_deref() {
        Some("serve") => service::serve(&Settings::from_env()?).await,
        Some(other) => Err(format!("{other} is neither nothing nor serve").into()),
        None => {
            let program = std::env::current_exe()?;
            let database_url = std::env::var("DATABASE_URL").map_err(|_| "DATABASE_URL is not set")?;
            show::run(&database_url, || {
                let mut command = Command::new(&program);
                command.arg("serve").envs(DEV.into_iter().filter(|(name, _)| std::env::var_os(name).is_none()));
                command
            })
            .await
        }
    }
}
