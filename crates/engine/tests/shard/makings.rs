//! The contents of the world's messages, and the outcomes of their attempts.

use crate::world::{How, New};
use posthaste_engine::event::Response;
use posthaste_engine::message::{CallbackSpec, FlowSpec, MessageSpec};
use posthaste_engine::outcome::{AttemptError, ErrorClass, Outcome};

pub(crate) fn queue_name(queue: u8) -> String {
    format!("queue-{queue}")
}

pub(crate) fn flow_name(key: u8) -> String {
    format!("key-{key}")
}

/// The settings of such a publish.
pub(crate) fn spec(new: &New) -> MessageSpec {
    let callback = || {
        Box::new(CallbackSpec {
            url: "https://example.org/done".into(),
            method: "POST".into(),
            headers: Vec::new(),
            retries: Some(1),
            retry_delay: Some("1000".into()),
            timeout_ms: None,
            delay_ms: 0,
            labels: Vec::new(),
            redact: Default::default(),
            flow: None,
        })
    };
    MessageSpec {
        url: "https://example.com/".into(),
        method: "POST".into(),
        retries: new.retries,
        retry_delay: Some("2000".into()),
        queue: new.queue.map(queue_name),
        flow: new.flow.map(|flow| FlowSpec {
            key: flow_name(flow.key),
            parallelism: flow.parallelism,
            rate: flow.rate,
            period_ms: flow.period_ms,
        }),
        callback: new.callback.then(callback),
        failure_callback: new.failure_callback.then(callback),
        hops: new.hops,
        ..MessageSpec::default()
    }
}

/// The outcome of an attempt.
pub(crate) fn outcome(how: How) -> Outcome {
    let answer = |status: u16, header: Option<(&str, String)>| {
        let headers = header.map(|(name, value)| (name.to_owned(), value)).into_iter().collect();
        Ok(Response { status, headers, ..Response::default() })
    };
    let result = match how {
        How::Ok => answer(200, None),
        How::Fail => answer(500, None),
        How::FailWithRetryAfter(seconds) => answer(429, Some(("Retry-After", seconds.to_string()))),
        How::Refuse => answer(489, Some(("Upstash-NonRetryable-Error", "true".into()))),
        How::NoAnswer => Err(AttemptError { class: ErrorClass::Timeout, message: "context deadline exceeded".into() }),
    };
    Outcome { result, duration_ms: 1, phases: None }
}
