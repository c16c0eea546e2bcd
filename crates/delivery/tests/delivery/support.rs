//! A scripted resolver, and helpers to make one attempt.

use bytes::Bytes;
use posthaste_delivery::egress::EgressPolicy;
use posthaste_delivery::resolve::{Lookup, Resolve};
use posthaste_delivery::{AnswerRoom, Attempt, Deliverer, DeliveryConfig};
use posthaste_engine::message::{Message, MessageSpec};
use posthaste_engine::outcome::Outcome;
use posthaste_wire::id::{MessageId, Seq, TenantId};
use posthaste_wire::redact::RedactFields;
use posthaste_wire::signature::{SigningKey, SigningKeys};
use posthaste_wire::time::Timestamp;
use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

pub(crate) const NOW: Timestamp = Timestamp(1_780_315_200_999);

/// Returns the next entry of a name's list; the last one repeats. Unknown names do not exist.
#[derive(Default)]
pub(crate) struct ScriptedDns {
    answers: Mutex<HashMap<String, VecDeque<Vec<IpAddr>>>>,
    lookups: AtomicUsize,
    hangs: bool,
}

impl ScriptedDns {
    pub(crate) fn of<const N: usize>(host: &str, sequence: [&[&str]; N]) -> Arc<ScriptedDns> {
        let parse = |answer: &[&str]| answer.iter().map(|text| text.parse().expect("address")).collect();
        let answers = HashMap::from([(host.to_owned(), sequence.iter().map(|answer| parse(answer)).collect())]);
        Arc::new(ScriptedDns { answers: Mutex::new(answers), ..ScriptedDns::default() })
    }

    /// Never resolves.
    pub(crate) fn hanging() -> Arc<ScriptedDns> {
        Arc::new(ScriptedDns { hangs: true, ..ScriptedDns::default() })
    }

    pub(crate) fn lookups(&self) -> usize {
        self.lookups.load(Ordering::SeqCst)
    }
}

impl Resolve for ScriptedDns {
    fn resolve(&self, host: &str) -> Lookup {
        self.lookups.fetch_add(1, Ordering::SeqCst);
        if self.hangs {
            return Box::pin(std::future::pending());
        }
        let mut answers = self.answers.lock().expect("lock");
        let answer = match answers.get_mut(host) {
            Some(sequence) if sequence.len() > 1 => Ok(sequence.pop_front().expect("not empty")),
            Some(sequence) => Ok(sequence.front().cloned().unwrap_or_default()),
            None => Err(io::Error::other("NXDOMAIN")),
        };
        Box::pin(std::future::ready(answer))
    }
}

/// Timeouts that are short but long enough for a machine that stalls for a moment. Loopback is allowed.
pub(crate) fn config() -> DeliveryConfig {
    DeliveryConfig {
        egress: EgressPolicy { allow_loopback: true, explain: true, ..EgressPolicy::default() },
        dns_timeout: Duration::from_millis(100),
        tls_timeout: Duration::from_secs(3),
        body_grace: Duration::from_secs(2),
        ..DeliveryConfig::default()
    }
}

pub(crate) fn deliverer() -> Deliverer {
    Deliverer::new(config(), Arc::new(ScriptedDns::default())).expect("deliverer")
}

pub(crate) fn message(url: &str) -> Message {
    Message {
        id: MessageId { seq: Seq(1_780_315_200_000 << 20), tag: 7 },
        tenant: TenantId(1),
        created_at: NOW,
        not_before: NOW,
        spec: MessageSpec {
            url: url.to_owned(),
            method: "POST".into(),
            headers: vec![("Content-Type".into(), "text/plain".into())],
            retries: 3,
            retry_delay: None,
            timeout_ms: None,
            labels: Vec::new(),
            redact: RedactFields::default(),
            caller_ip: "203.0.114.9".into(),
            topic: None,
            ..MessageSpec::default()
        },
        body: Bytes::from_static(b"hello"),
    }
}

pub(crate) fn keys() -> SigningKeys {
    SigningKeys { current: SigningKey::new("sig_current"), next: SigningKey::new("sig_next") }
}

/// Makes one attempt with a generous timeout.
pub(crate) async fn attempt(deliverer: &Deliverer, message: &Message) -> Outcome {
    attempt_within(deliverer, message, 10_000, false).await
}

pub(crate) async fn attempt_within(
    deliverer: &Deliverer,
    message: &Message,
    timeout_ms: u64,
    needs_body: bool,
) -> Outcome {
    let room = AnswerRoom::new(Arc::default(), message.tenant);
    attempt_in(deliverer, message, timeout_ms, needs_body, &room).await
}

/// Makes an attempt with room of a shared budget.
pub(crate) async fn attempt_in(
    deliverer: &Deliverer,
    message: &Message,
    timeout_ms: u64,
    needs_body: bool,
    room: &AnswerRoom,
) -> Outcome {
    static NONCE: AtomicU8 = AtomicU8::new(0);
    let nonce = [NONCE.fetch_add(1, Ordering::SeqCst); 20];
    let keys = keys();
    let attempt = Attempt { message, retried: 0, keys: &keys, now: NOW, nonce, timeout_ms, needs_body, room };
    let outcome = deliverer.attempt(&attempt).await;
    // Lets the connection's task see the end of the response, so that the next attempt can reuse the connection.
    for _ in 0..10 {
        tokio::task::yield_now().await;
    }
    outcome
}
