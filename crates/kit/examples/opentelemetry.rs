//! Deliveries in the traces of their publishers, exported by OpenTelemetry.
//!
//! `cargo run -p posthaste-kit --features testing --example opentelemetry` delivers a message twice, prints the
//! exported spans, and exits. In a service, replace the in-memory exporter with that of your collector.

use opentelemetry::trace::{
    SpanContext, SpanId, TraceContextExt as _, TraceFlags, TraceId, TraceState, TracerProvider as _,
};
use opentelemetry_sdk::trace::{InMemorySpanExporter, SdkTracerProvider};
use posthaste_kit::idempotency::MemoryStore;
use posthaste_kit::job::{Job, JobHandler};
use posthaste_kit::telemetry::{Relation, TraceContext};
use posthaste_kit::testing::{ManualClock, TestDelivery};
use posthaste_kit::{Failure, Receiver};
use serde_json::Value;
use std::error::Error;
use std::str::FromStr as _;
use std::sync::Arc;
use tracing_opentelemetry::OpenTelemetrySpanExt as _;
use tracing_subscriber::layer::SubscriberExt as _;

/// The first attempt is a child of the publisher's span; a retry has a link to it.
fn relate(span: &tracing::Span, relation: Relation) {
    match relation {
        Relation::ChildOf(context) => {
            let parent = opentelemetry::Context::new().with_remote_span_context(remote(&context));
            if let Err(error) = span.set_parent(parent) {
                tracing::debug!(%error, "the delivery is not in its publisher's trace");
            }
        }
        Relation::LinkedTo(context) => span.add_link(remote(&context)),
        Relation::None => {}
    }
}

fn remote(context: &TraceContext) -> SpanContext {
    let flags = if context.is_sampled() { TraceFlags::SAMPLED } else { TraceFlags::default() };
    let state = context.state().and_then(|state| TraceState::from_str(state).ok()).unwrap_or_default();
    SpanContext::new(TraceId::from(context.trace_id()), SpanId::from(context.span_id()), flags, true, state)
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let exporter = InMemorySpanExporter::default();
    let provider = SdkTracerProvider::builder().with_simple_exporter(exporter.clone()).build();
    let layer = tracing_opentelemetry::layer().with_tracer(provider.tracer("mails"));
    tracing::subscriber::set_global_default(tracing_subscriber::registry().with(layer))?;

    let clock = ManualClock::new();
    let receiver =
        Receiver::for_development("sig_current", "sig_next")?.at_base("https://app.example.com").clock(clock.clock());
    let store = Arc::new(MemoryStore::with_clock(clock.clock()));
    let jobs = JobHandler::json("mail", receiver, store, |job: Job<Value>| async move {
        if job.delivery.attempt() == 1 { Err(Failure::retryable("the mail server is down")) } else { Ok(()) }
    })?
    .on_span(relate);

    // In production the queue does this, and the publisher forwards its `traceparent`.
    let message = TestDelivery::to("https://app.example.com/jobs/mail")
        .header("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
        .json(&serde_json::json!({"to": "ada@example.com"}))?;
    for retried in 0..2 {
        let request = message.clone().retried(retried).sign("sig_current", clock.now());
        println!("attempt {}: {}", retried + 1, jobs.handle(request).await.status());
    }

    provider.force_flush()?;
    for span in exporter.get_finished_spans()? {
        println!("\n{} in trace {}", span.name, span.span_context.trace_id());
        println!("  parent {}", span.parent_span_id);
        for link in span.links.iter() {
            println!("  link to {} in trace {}", link.span_context.span_id(), link.span_context.trace_id());
        }
        for attribute in &span.attributes {
            println!("  {} = {}", attribute.key, attribute.value);
        }
    }
    Ok(())
}
