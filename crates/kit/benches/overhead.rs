//! The cost of the job handler: CPU time per delivery of 1 KiB, with a handler that does nothing and a store in memory.
//!
//! `cargo bench -p posthaste-kit --features testing --bench overhead`. Exits with an error if a delivery costs more
//! than [`BUDGET`]. Signing is not measured, because the queue does that.

use bytes::Bytes;
use http::Request;
use http_body_util::Full;
use posthaste_kit::Receiver;
use posthaste_kit::idempotency::MemoryStore;
use posthaste_kit::job::{Job, JobHandler};
use posthaste_kit::testing::{ManualClock, TestDelivery};
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

const BUDGET: Duration = Duration::from_micros(15);
const BODY_BYTES: usize = 1_024;
const ROUNDS: usize = 20;
const DELIVERIES: usize = 5_000;
const URL: &str = "https://app.example.com/jobs/mail";

#[derive(Serialize, Deserialize)]
struct Mail {
    to: String,
    subject: String,
    lines: Vec<String>,
}

/// A mail whose JSON is [`BODY_BYTES`] long.
fn mail() -> Mail {
    let mut mail = Mail {
        to: "ada@example.com".to_owned(),
        subject: "the analytical engine".to_owned(),
        lines: (0..12).map(|number| format!("line {number} of a letter that is neither short nor long")).collect(),
    };
    let length = serde_json::to_vec(&mail).expect("a mail can be JSON").len();
    mail.lines.push("x".repeat(BODY_BYTES.saturating_sub(length + 3)));
    mail
}

fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).expect("less than a second"))
}

fn main() -> ExitCode {
    let clock = ManualClock::new();
    let receiver =
        Receiver::for_development("sig_current", "sig_next").expect("keys").at_base("https://app.example.com");
    let store = Arc::new(MemoryStore::with_clock(clock.clock()));
    let receiver = receiver.clock(clock.clock());
    let jobs = JobHandler::json("mail", receiver, store, |job: Job<Mail>| async move {
        std::hint::black_box(&job.payload.lines);
        Ok(())
    })
    .expect("the receiver knows its URL");
    let message = TestDelivery::to(URL).json(&mail()).expect("a mail can be JSON");
    assert_eq!(message.bytes().len(), BODY_BYTES);

    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
    let mut best = Duration::MAX;
    let mut total = Duration::ZERO;
    for round in 0..ROUNDS {
        let sign =
            |number| message.clone().message_id(&format!("msg_{round}_{number}")).sign("sig_current", clock.now());
        let requests: Vec<Request<Full<Bytes>>> = (0..DELIVERIES).map(sign).collect();
        let before = cpu_time();
        runtime.block_on(async {
            for request in requests {
                assert_eq!(jobs.handle(request).await.status(), 204);
            }
        });
        let spent = cpu_time() - before;
        total += spent;
        best = best.min(spent);
    }
    let deliveries = u32::try_from(DELIVERIES).expect("not that many");
    let (mean, best) = (total / (deliveries * u32::try_from(ROUNDS).expect("not that many")), best / deliveries);
    println!("job handler, {BODY_BYTES} bytes, memory store: {mean:?} CPU per delivery (best round {best:?})");
    if mean > BUDGET {
        println!("over the budget of {BUDGET:?}");
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}
