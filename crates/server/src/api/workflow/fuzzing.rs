//! The readers of this module that take bytes from outside, for the targets of `fuzz/`. Nothing else calls them.

use super::protocol::Protocol;
use super::shape::{self, View};
use super::translate::{self, Bounds, Item, Wanted};
use super::{events, selection, wait};
use crate::api::error::ApiError;
use crate::api::params::Params;
use crate::api::publish::{Line, PUBLISH_LIMITS, expression_checks};
use crate::api::shape::Shaped;
use crate::api::viewer::Viewer;
use crate::core::StartRun;
use crate::credentials::Credentials;
use crate::tenants::Scope;
use bytes::Bytes;
use posthaste_engine::limits::{DELAY_MS_MAX, WORKFLOW_DEPTH_MAX};
use posthaste_engine::workflow::entry::OwnTerms;
use posthaste_engine::workflow::run::{Invoker, RunConfig, StepText};
use posthaste_engine::workflow::{NewEntry, Record};
use posthaste_store::FailedRun;
use posthaste_wire::id::TenantId;
use posthaste_wire::redact::Marks;
use posthaste_wire::retry_delay::RetryDelayChecks;
use posthaste_wire::time::Timestamp;
use serde_json::Value;

/// Longest id of a run or an event.
pub use posthaste_engine::limits::WORKFLOW_NAME_BYTES_MAX as NAME_BYTES_MAX;
/// Longest wait.
pub const WAIT_MS_MAX: u64 = DELAY_MS_MAX;

/// What a publish asks of runs.
#[derive(Clone, Debug)]
pub enum Asked {
    /// To start one.
    Start {
        /// Its id.
        id: String,
        /// What was chosen for it.
        config: Box<RunConfig>,
        /// Its first entry.
        first: Box<NewEntry>,
        /// The step of another run that waits for it.
        invoker: Option<Box<Invoker>>,
    },
    /// To append an entry to this one.
    Append(String, Box<NewEntry>),
}

/// A wait.
#[derive(Clone, Debug)]
pub struct AskedWait {
    /// The run.
    pub run: String,
    /// The event.
    pub event: String,
    /// The step that waits.
    pub step: StepText,
    /// How long, as it was sent and in milliseconds.
    pub timeout: (String, u64),
    /// Headers to deliver the result with.
    pub headers: Vec<(String, Vec<String>)>,
    /// What else is said about that delivery.
    pub terms: OwnTerms,
}

/// A publish with the headers of a run.
pub fn publish(url: &str, lines: &[(&str, &[u8])], body: &[u8], now: Timestamp) -> Result<Asked, String> {
    let protocol = Protocol::read(lines).map_err(|rejection| rejection.message)?;
    let wanted = translate::wanted(&protocol, item(url, lines, body), &bounds(now, &expression_checks()));
    Ok(match wanted.map_err(|rejection| rejection.message)? {
        Wanted::Start(run) => asked(*run),
        Wanted::Append(run, entry) => Asked::Append(run.id, entry),
    })
}

/// A trigger without a client.
pub fn trigger(url: &str, lines: &[(&str, &[u8])], body: &[u8], now: Timestamp) -> Result<Asked, String> {
    translate::triggered(item(url, lines, body), &bounds(now, &expression_checks()))
        .map(asked)
        .map_err(|rejection| rejection.message)
}

/// A wait for an event.
pub fn wait(event: &str, lines: &[(&str, &[u8])], body: &[u8], now: Timestamp) -> Result<AskedWait, String> {
    let (run, wait) =
        wait::read(event, lines, body, &bounds(now, &expression_checks())).map_err(|rejection| rejection.message)?;
    let (timeout, headers) = ((wait.timeout, wait.timeout_ms), wait.headers);
    Ok(AskedWait { run: run.id, event: wait.event, step: wait.step, timeout, headers, terms: wait.terms })
}

/// A query for runs or failed runs.
pub fn filters(query: &str) -> Result<(), String> {
    let params = Params::from_query(Some(query));
    let read = || -> Result<(), ApiError> {
        selection::states(&params)?;
        selection::of_logs(&params)?;
        selection::of_dlq(&params)?;
        Ok(())
    };
    read().map_err(ApiError::into_message)
}

fn viewer() -> Viewer {
    Viewer::with((Marks::of(&[0; 32], TenantId(1)), Credentials::default()), TenantId(1), Scope::ReadOnly)
}

/// How a run is shown: whole, and how many lines its log has.
pub fn shown(record: &Record, now: Timestamp) -> (Value, usize) {
    let view = View { trim_body: None, now, viewer: viewer() };
    (shape::run(record, view), events::lines(record, view).len())
}

/// How it is shown in the DLQ, if it has failed.
pub fn shown_failed(record: &Record) -> Option<Value> {
    let Record { workflow, bodies, answer, told, .. } = record;
    let failed = workflow.run.failure.as_ref()?.entry as usize;
    let failed = FailedRun {
        run: workflow.run.clone(),
        first: workflow.entries.first()?.clone(),
        payload: bodies.first()?.clone(),
        failed: workflow.entries.get(failed)?.clone(),
        answer: answer.clone(),
        told: told.clone(),
    };
    let view = View { trim_body: None, now: Timestamp(0), viewer: viewer() };
    shape::failed_run(&failed, view).map(Shaped::into_value)
}

fn item<'a>(url: &'a str, lines: &'a [Line<'a>], body: &[u8]) -> Item<'a> {
    Item { url, lines, body: Bytes::copy_from_slice(body) }
}

fn bounds(now: Timestamp, checks: &RetryDelayChecks) -> Bounds<'_> {
    Bounds {
        limits: PUBLISH_LIMITS,
        retries_default: 3,
        depth_max: WORKFLOW_DEPTH_MAX,
        now,
        caller_ip: "192.0.2.1",
        checks,
        fresh_id: &|| "wfr_fresh".to_owned(),
    }
}

fn asked(run: StartRun) -> Asked {
    let StartRun { id, config, first, invoked_by, .. } = run;
    let invoker = invoked_by.map(|by| Invoker {
        run_id: by.run.id,
        created_at: by.run.created_at,
        url: by.url,
        step: by.step,
        headers: by.headers,
        terms: by.terms,
    });
    Asked::Start { id, config: Box::new(config), first: Box::new(first), invoker: invoker.map(Box::new) }
}
