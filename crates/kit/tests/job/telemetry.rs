//! The telemetry of a run: span fields, the log line of a message that failed permanently, traces, and no secrets.
//! secrets.

use crate::support::{Fault, Harness, KEY, NEXT_KEY, message};
use opentelemetry::trace::{SpanContext, SpanId, SpanKind, TraceContextExt as _, TraceFlags, TraceId, TraceState};
use opentelemetry::trace::{Status, TracerProvider as _};
use opentelemetry_sdk::trace::{InMemorySpanExporter, SdkTracerProvider, SpanData};
use posthaste_kit::Failure;
use posthaste_kit::telemetry::{Relation, TraceContext};
use serde_json::Value;
use std::io;
use std::sync::{Arc, Mutex};
use tracing::subscriber::DefaultGuard;
use tracing_opentelemetry::OpenTelemetrySpanExt as _;
use tracing_subscriber::fmt::format::FmtSpan;
use tracing_subscriber::layer::SubscriberExt as _;

/// Everything that is logged on this thread, including spans, as JSON.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Log {
    fn start() -> (Log, DefaultGuard) {
        let log = Log::default();
        let writer = log.clone();
        let subscriber = tracing_subscriber::fmt()
            .json()
            .with_max_level(tracing::Level::TRACE)
            .with_span_events(FmtSpan::CLOSE)
            .with_writer(move || writer.clone())
            .finish();
        let guard = tracing::subscriber::set_default(subscriber);
        (log, guard)
    }

    fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }

    fn lines(&self) -> Vec<Value> {
        self.text().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    /// The fields of the spans of deliveries, in the order of their ends.
    fn spans(&self) -> Vec<Value> {
        let ends = self.lines().into_iter().filter(|line| line["fields"]["message"] == "close");
        ends.map(|line| line["span"].clone()).filter(|span| span["name"] == "qstash.job").collect()
    }

    fn at_level(&self, level: &str) -> Vec<Value> {
        let lines = self.lines().into_iter().filter(|line| line["level"] == level);
        lines.map(|line| line["fields"].clone()).collect()
    }
}

#[tokio::test]
async fn a_span_describes_the_delivery_and_its_outcome() {
    let (log, _guard) = Log::start();
    let harness = Harness::good();
    let delivery = message()
        .retried(2)
        .header("x-request-id", "req_7")
        .header("x-event-id", "evt_9")
        .header("x-deduplication-id", "mail-7")
        .header("x-max-retries", "4");
    harness.deliver(&delivery).await;
    let spans = log.spans();
    assert_eq!(spans.len(), 1, "{}", log.text());
    let expected = [
        ("job_type", Value::from("mail")),
        ("request_id", "req_7".into()),
        ("qstash.message_id", "msg_1".into()),
        ("qstash.attempt", 3.into()),
        ("qstash.max_retries", 4.into()),
        ("qstash.final_attempt", false.into()),
        ("qstash.dedup_id", "mail-7".into()),
        ("qstash.dlq", false.into()),
        ("event.key", "evt_9".into()),
        ("idempotency_key", "delivery:msg_1".into()),
        ("outcome", "succeeded".into()),
        ("http_status", 204.into()),
        ("retryable", false.into()),
    ];
    for (name, value) in expected {
        assert_eq!(spans[0][name], value, "{name}");
    }
    assert!(spans[0]["latency_ms"].is_u64());
    assert!(log.at_level("ERROR").is_empty() && log.at_level("WARN").is_empty());
}

#[tokio::test]
async fn only_the_last_failure_is_logged_as_an_error_and_with_all_details() {
    let (log, _guard) = Log::start();
    let harness = Harness::new(|job| async move {
        match job.payload["to"].as_str() {
            Some("nobody") => Err(Failure::permanent("no such user")),
            _ => Err(Failure::retryable(io::Error::other("the mail server is down"))),
        }
    });
    for retried in 0..=5 {
        harness.deliver(&message().retried(retried).header("x-event-id", "evt_9")).await;
        let expected = usize::from(retried == 5);
        assert_eq!(log.at_level("ERROR").len(), expected, "retried {retried}");
    }
    assert_eq!(log.at_level("WARN").len(), 5);
    let last = &log.at_level("ERROR")[0];
    for (name, value) in [
        ("job_type", Value::from("mail")),
        ("qstash.message_id", "msg_1".into()),
        ("qstash.attempt", 6.into()),
        ("qstash.max_retries", 5.into()),
        ("qstash.final_attempt", true.into()),
        ("qstash.dlq", true.into()),
        ("event.key", "evt_9".into()),
        ("outcome", "failed".into()),
        ("error", "the mail server is down".into()),
        ("http_status", 503.into()),
        ("retryable", true.into()),
    ] {
        assert_eq!(last[name], value, "{name}");
    }
    // A permanent failure ends the message at its first attempt.
    harness.deliver(&message().body(r#"{"to":"nobody"}"#)).await;
    let permanent = &log.at_level("ERROR")[1];
    assert_eq!((&permanent["qstash.attempt"], &permanent["outcome"]), (&1.into(), &"failed_for_good".into()));
    assert_eq!(log.spans().iter().filter(|span| span["qstash.dlq"] == true).count(), 2);
}

#[tokio::test(start_paused = true)]
async fn no_secret_and_no_body_is_ever_logged() {
    let (log, _guard) = Log::start();
    let harness = Harness::new(|_| async { Err(Failure::retryable("no")) }).configure(|jobs| {
        jobs.validate(|payload| match payload["to"].as_str() {
            Some("") => Err(format!("{payload} is addressed to nobody")),
            _ => Ok(()),
        })
    });
    let delivery = message().body(r#"{"to":"body-canary@example.com"}"#).header("authorization", "Bearer token-canary");
    harness.deliver(&delivery).await;
    harness.deliver(&delivery.clone().body(r#"{"to":body-canary"#)).await;
    harness.deliver(&delivery.clone().body(r#"{"to":"","text":"body-canary"}"#)).await;
    let mut tampered = harness.signed(&delivery);
    *tampered.body_mut() = "body-canary".into();
    harness.jobs.handle(tampered).await;
    let wrong = delivery.sign("sig_wrong_canary", harness.clock.now());
    harness.jobs.handle(wrong).await;
    for fault in [Fault::Down, Fault::Silent] {
        harness.store.fails("begin", fault);
        harness.deliver(&delivery).await;
    }
    let text = log.text() + &format!("{:?} {:?}", harness.jobs, delivery.sign(KEY, harness.clock.now()).uri());
    assert!(log.spans().len() == 7 && text.contains("invalid signature: body (token "), "{text}");
    let token = delivery.signature(KEY, harness.clock.now());
    let parts = token.split('.').collect::<Vec<_>>();
    for secret in [KEY, NEXT_KEY, "canary", &token, parts[1], parts[2]] {
        assert!(!text.contains(secret), "{secret} in {text}");
    }
}

const PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

/// The code of an application that adds its deliveries to the traces of their publishers.
fn relate(span: &tracing::Span, relation: Relation) {
    let remote = |context: &TraceContext| {
        let (trace, span) = (TraceId::from(context.trace_id()), SpanId::from(context.span_id()));
        let flags = if context.is_sampled() { TraceFlags::SAMPLED } else { TraceFlags::default() };
        SpanContext::new(trace, span, flags, true, TraceState::default())
    };
    match relation {
        Relation::ChildOf(context) => {
            let parent = opentelemetry::Context::new().with_remote_span_context(remote(&context));
            span.set_parent(parent).unwrap();
        }
        Relation::LinkedTo(context) => span.add_link(remote(&context)),
        Relation::None => {}
    }
}

async fn exported(retried: u32, work: fn() -> Result<(), Failure>) -> SpanData {
    let exporter = InMemorySpanExporter::default();
    let provider = SdkTracerProvider::builder().with_simple_exporter(exporter.clone()).build();
    let layer = tracing_opentelemetry::layer().with_tracer(provider.tracer("kit"));
    let guard = tracing::subscriber::set_default(tracing_subscriber::registry().with(layer));
    let harness = Harness::new(move |_| async move { work() }).configure(|jobs| jobs.on_span(relate));
    harness.deliver(&message().retried(retried).header("traceparent", PARENT)).await;
    drop(guard);
    provider.force_flush().unwrap();
    let spans = exporter.get_finished_spans().unwrap();
    assert_eq!(spans.len(), 1);
    spans.into_iter().next().unwrap()
}

#[tokio::test]
async fn the_first_attempt_continues_the_publishers_trace_and_a_retry_links_to_it() {
    let (trace, parent) = ("0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331");
    let first = exported(0, || Ok(())).await;
    assert_eq!((first.name.as_ref(), first.span_kind.clone()), ("qstash.job", SpanKind::Consumer));
    assert_eq!(first.span_context.trace_id().to_string(), trace);
    assert_eq!(first.parent_span_id.to_string(), parent);
    assert!(first.links.is_empty() && first.status == Status::Unset);

    let retry = exported(1, || Err(Failure::retryable("no"))).await;
    assert_ne!(retry.span_context.trace_id().to_string(), trace);
    assert_eq!(retry.parent_span_id, SpanId::INVALID);
    let links: Vec<_> = retry.links.iter().map(|link| link.span_context.clone()).collect();
    assert_eq!(links.len(), 1);
    assert_eq!((links[0].trace_id().to_string(), links[0].span_id().to_string()), (trace.into(), parent.into()));
    assert!(matches!(retry.status, Status::Error { .. }), "{:?}", retry.status);
}
