//! A mail provider for the demo and the test. It records mails instead of sending them.

use axum::extract::State;
use axum::routing::post;
use axum::{Json, Router};
use http::{HeaderMap, StatusCode};
use serde_json::Value;
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::net::TcpListener;
use tokio::sync::watch;

/// How the provider handles a repeated `Idempotency-Key`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Keys {
    /// It responds with success and sends nothing.
    Honoured,
    /// It sends another mail.
    Ignored,
}

/// A request to send a mail.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    key: String,
    /// The invoice of the mail.
    pub(crate) invoice: String,
    /// Whether the provider sent a mail for it.
    pub(crate) is_sent: bool,
}

/// A provider that runs until the program ends.
pub(crate) struct Provider {
    pub(crate) address: SocketAddr,
    shared: Arc<Shared>,
}

struct Shared {
    keys: Keys,
    /// Whether it responds. While it is false, all callers wait.
    answers: watch::Sender<bool>,
    calls: watch::Sender<Vec<Call>>,
}

impl Provider {
    pub(crate) async fn start(keys: Keys) -> std::io::Result<Provider> {
        let shared = Arc::new(Shared { keys, answers: watch::Sender::new(true), calls: watch::Sender::default() });
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let routes = Router::new().route("/mails", post(take)).with_state(Arc::clone(&shared));
        tokio::spawn(async move { axum::serve(listener, routes).await });
        Ok(Provider { address, shared })
    }

    /// Stops responding. Mails are still sent, but callers wait for the response until `answer` is called.
    pub(crate) fn keep_silent(&self) {
        self.shared.answers.send_replace(false);
    }

    /// Responds to all waiting and future callers.
    pub(crate) fn answer(&self) {
        self.shared.answers.send_replace(true);
    }

    /// Returns when a mail about this invoice was requested.
    pub(crate) async fn called(&self, invoice: &str) {
        let mut calls = self.shared.calls.subscribe();
        // The sender is in `shared`, so the channel stays open.
        drop(calls.wait_for(|calls| calls.iter().any(|call| call.invoice == invoice)).await);
    }

    /// How many mails about this invoice were requested, and how many were sent.
    pub(crate) fn calls_and_mails(&self, invoice: &str) -> (usize, usize) {
        let calls = self.shared.calls.borrow();
        let about = || calls.iter().filter(|call| call.invoice == invoice);
        (about().count(), about().filter(|call| call.is_sent).count())
    }
}

async fn take(State(shared): State<Arc<Shared>>, headers: HeaderMap, Json(mail): Json<Value>) -> StatusCode {
    let key = headers.get("idempotency-key").and_then(|key| key.to_str().ok());
    let (Some(key), Some(invoice)) = (key, mail["id"].as_str()) else { return StatusCode::BAD_REQUEST };
    shared.calls.send_modify(|calls| {
        let is_known = calls.iter().any(|call| call.key == key);
        let is_sent = !is_known || shared.keys == Keys::Ignored;
        calls.push(Call { key: key.to_owned(), invoice: invoice.to_owned(), is_sent });
    });
    // The sender is in `shared`, so the channel stays open.
    drop(shared.answers.subscribe().wait_for(|answers| *answers).await);
    StatusCode::OK
}
