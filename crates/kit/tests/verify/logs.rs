//! The contents of a webhook's logs: the events, and no secrets.

use crate::support::{CURRENT, Mood, NEXT, NOW, STRIPE_SECRET, Store, ask, at, delivery, stripe};
use posthaste_kit::webhook::{Event, Stripe, Webhook};
use posthaste_kit::{Failure, Receiver};
use std::io::Write;
use std::sync::{Arc, Mutex};
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::fmt::format::FmtSpan;

/// Records the log lines.
#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<u8>>>);

impl Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Lines {
    type Writer = Lines;

    fn make_writer(&'a self) -> Lines {
        self.clone()
    }
}

#[tokio::test]
async fn logs_describe_events_and_contain_no_secrets() {
    let lines = Lines::default();
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(tracing::Level::TRACE)
        .with_span_events(FmtSpan::FULL)
        .with_ansi(false)
        .with_writer(lines.clone())
        .finish();
    // With a single subscriber, a line that is first reached on a thread without one would be disabled for all threads.
    let _second = tracing::Dispatch::new(tracing_subscriber::registry());
    let _guard = tracing::subscriber::set_default(subscriber);
    let store = Arc::new(Store::new());
    let fail = |event: Event<()>| async move {
        tracing::info!(?event, "handling");
        Err(Failure::retryable("the handler says so"))
    };
    let stripe_route = Webhook::raw(Stripe::new(STRIPE_SECRET).unwrap(), store.clone(), fail).clock(at(NOW));
    let receiver = Receiver::new(CURRENT, NEXT).unwrap().at_base("https://app.example.com");
    let queue_route = Webhook::raw(receiver, store.clone(), fail).clock(at(NOW));

    let body = r#"{"id":"evt_1","type":"invoice.paid","table":"orders","card":"canary of a card"}"#;
    assert_eq!(ask(&stripe_route, stripe(body)).await.status, 500);
    let delivered = delivery("msg_1", body);
    assert_eq!(ask(&queue_route, delivered.clone()).await.status, 500);
    let mut forged = stripe(body);
    forged.headers_mut().insert("stripe-signature", format!("t={NOW},v1=canary-of-a-mac").parse().unwrap());
    assert_eq!(ask(&stripe_route, forged).await.status, 401);
    store.be(Mood::Down);
    assert_eq!(ask(&stripe_route, stripe(body)).await.status, 503);

    let text = String::from_utf8(lines.0.lock().unwrap().clone()).unwrap();
    let mac = stripe(body).headers()["stripe-signature"].to_str().unwrap().split_once("v1=").unwrap().1.to_owned();
    let token = delivered.headers()["upstash-signature"].to_str().unwrap().to_owned();
    let token_mac = token.rsplit_once('.').unwrap().1;
    for secret in ["canary", STRIPE_SECRET, CURRENT, NEXT, &mac, &token, token_mac] {
        assert!(!text.contains(secret), "{secret} is in the logs:\n{text}");
    }
    for said in
        ["evt_1", "msg_1", "invoice.paid", "orders", "the handler says so", "reason=signature", "http_status=401"]
    {
        assert!(text.contains(said), "{said} is not in the logs:\n{text}");
    }
}
