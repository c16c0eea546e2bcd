//! What the official clients send, and what it means: the requests of their own tests, and the generations of the wire.
//!
//! Only requests to a server are here; what clients do with deliveries is theirs.

mod entries;
mod properties;
mod starts;

use super::protocol::{Protocol, concerns_a_run};
use super::translate::{self, Bounds, Item, Wanted};
use crate::api::publish::{Line, PUBLISH_LIMITS, expression_checks};
use crate::core::{InvokedBy, StartRun};
use bytes::Bytes;
use posthaste_engine::message::FlowSpec;
use posthaste_engine::workflow::NewEntry;
use posthaste_engine::workflow::entry::OwnTerms;
use posthaste_engine::workflow::run::{FailureCall, Trigger};
use posthaste_wire::duration::Units;
use posthaste_wire::publish::PublishLimits;
use posthaste_wire::rejection::Rejection;
use posthaste_wire::time::Timestamp;
use posthaste_wire::workflow::Features;
use serde_json::{Map, Value, json};

const NOW: Timestamp = Timestamp(1_767_225_600_000);
const U: &str = "https://requestcatcher.com/api";
/// What JavaScript's client can do since 1.0.
const F4: &str = "LazyFetch,InitialBody,WF_DetectTrigger,WF_TriggerOnConfig";
/// The same for Python's, and JavaScript's before 1.0.
const F3: &str = "LazyFetch,InitialBody,WF_DetectTrigger";

/// A request: destination, headers and body.
struct Given<'a>(&'a str, Value, &'a str);

/// JSON objects, one over the other.
fn over(base: Value, added: Value) -> Value {
    let (Value::Object(mut base), Value::Object(added)) = (base, added) else { panic!("objects are merged") };
    base.extend(added);
    base.into()
}

/// The headers of every step, as 1.2 and later send them.
fn base() -> Value {
    json!({
        "upstash-workflow-init": "false", "upstash-workflow-runid": "wfr_W", "upstash-workflow-url": U,
        "upstash-workflow-sdk-version": "1", "upstash-feature-set": F4, "upstash-method": "POST",
        "upstash-forward-upstash-workflow-sdk-version": "1", "content-type": "application/json",
        "upstash-telemetry-sdk": "@upstash/workflow@v1.3.2", "upstash-telemetry-runtime": "unknown, node@v20",
    })
}

/// The headers of a trigger without any option.
fn trigger() -> Value {
    over(base(), json!({ "upstash-workflow-init": "true" }))
}

fn failure() -> Value {
    json!({
        "upstash-failure-callback": U, "upstash-failure-callback-workflow-runid": "wfr_W",
        "upstash-failure-callback-workflow-init": "false", "upstash-failure-callback-workflow-url": U,
        "upstash-failure-callback-workflow-calltype": "failureCall", "upstash-failure-callback-feature-set": F4,
        "upstash-failure-callback-forward-upstash-workflow-is-failure": "true",
        "upstash-failure-callback-forward-upstash-workflow-failure-callback": "true",
    })
}

/// The headers of a call for step 3.
fn call() -> Value {
    json!({
        "upstash-workflow-init": "false", "upstash-workflow-runid": "wfr_W", "upstash-workflow-url": U,
        "upstash-workflow-sdk-version": "1", "upstash-feature-set": "WF_NoDelete,InitialBody",
        "upstash-workflow-calltype": "toCallback", "content-type": "application/json", "upstash-retries": "0",
        "upstash-method": "GET", "upstash-callback": U, "upstash-callback-workflow-runid": "wfr_W",
        "upstash-callback-workflow-calltype": "fromCallback", "upstash-callback-workflow-init": "false",
        "upstash-callback-workflow-url": U, "upstash-callback-feature-set": F4,
        "upstash-callback-forward-upstash-workflow-callback": "true",
        "upstash-callback-forward-upstash-workflow-stepid": "3",
        "upstash-callback-forward-upstash-workflow-stepname": "ship",
        "upstash-callback-forward-upstash-workflow-steptype": "Call",
        "upstash-callback-forward-upstash-workflow-concurrent": "1",
        "upstash-callback-forward-upstash-workflow-contenttype": "application/json",
    })
}

fn called(url: &str, method: &str) -> Value {
    json!({
        "url": url, "method": method, "step": 3, "isForgiven": true,
        "resultHeaders": {
            "Upstash-Workflow-Callback": "true", "Upstash-Workflow-Stepid": "3", "Upstash-Workflow-Stepname": "ship",
            "Upstash-Workflow-Steptype": "Call", "Upstash-Workflow-Concurrent": "1",
            "Upstash-Workflow-Contenttype": "application/json",
        },
    })
}

fn read(Given(url, headers, body): &Given<'_>) -> Result<Wanted, Rejection> {
    let lists: Vec<(&str, Vec<&str>)> = headers
        .as_object()
        .unwrap()
        .iter()
        .map(|(name, value)| match value {
            Value::Array(values) => (name.as_str(), values.iter().map(|value| value.as_str().unwrap()).collect()),
            value => (name.as_str(), vec![value.as_str().unwrap()]),
        })
        .collect();
    let lines: Vec<Line<'_>> =
        lists.iter().flat_map(|(name, values)| values.iter().map(|value| (*name, value.as_bytes()))).collect();
    assert!(concerns_a_run(lines.iter().map(|(name, _)| *name)), "{headers}");
    let item = Item { url, lines: &lines, body: Bytes::copy_from_slice(body.as_bytes()) };
    translate::wanted(&Protocol::read(&lines)?, item, &bounds())
}

pub(super) fn bounds() -> Bounds<'static> {
    Bounds {
        limits: PublishLimits { delay_units: Units::Long, ..PUBLISH_LIMITS },
        retries_default: 3,
        depth_max: 100,
        now: NOW,
        caller_ip: "10.0.0.4",
        checks: Box::leak(Box::new(expression_checks())),
        fresh_id: &|| "wfr_fresh".to_owned(),
    }
}

/// What was read, without what is as everywhere.
fn shown(wanted: &Wanted) -> Value {
    let shown = match wanted {
        Wanted::Start(run) => {
            json!({ "start": run.id, "url": run.url, "run": run_json(run), "first": entry_json(&run.first) })
        }
        Wanted::Append(run, entry) => {
            let created_at = run.created_at.map(Timestamp::as_millis);
            json!({ "append": run.id, "createdAt": created_at, "entry": entry_json(entry) })
        }
    };
    without_nothing(shown)
}

fn run_json(run: &StartRun) -> Value {
    let config = &run.config;
    assert_eq!(config.caller_ip, "10.0.0.4");
    json!({
        "features": Some(features(config.features)).filter(|names| names != F4),
        "labels": config.labels,
        "headers": object(&config.headers),
        "retries": Some(config.retries).filter(|retries| *retries != 3),
        "retryDelay": config.retry_delay,
        "flow": config.flow.as_ref().map(flow_json),
        "failure": config.failure.as_ref().map(failure_json),
        "redact": config.redact,
        "trigger": Some(config.trigger).filter(|trigger| *trigger != Trigger::Client).map(|trigger| json!(trigger)),
        "depth": Some(config.depth).filter(|depth| *depth > 0),
        "isUnique": run.dedup.map(|_| true),
        "byClient": Some(true).filter(|_| run.is_by_client),
        "invokedBy": run.invoked_by.as_ref().map(invoker_json),
    })
}

fn entry_json(entry: &NewEntry) -> Value {
    json!({
        "callType": Some(entry.call_type.name()).filter(|name| *name != "step"),
        "contentType": Some(&entry.content_type).filter(|kind| *kind != "application/json"),
        "body": String::from_utf8_lossy(&entry.body),
        "headers": object(&entry.headers),
        "dueIn": Some(entry.due.millis_since(NOW)).filter(|millis| *millis > 0),
        "retries": entry.retries,
        "retryDelay": entry.retry_delay,
        "timeout": entry.timeout_ms,
        "flow": entry.flow.as_ref().map(flow_json),
        "failure": entry.failure.as_ref().map(failure_json),
        "call": entry.call.as_ref().map(|call| json!({
            "url": call.url,
            "method": call.method,
            "step": call.step,
            "isForgiven": call.is_forgiven,
            "resultHeaders": object(&call.result_headers),
            "resultRetries": call.result_retries,
        })),
    })
}

fn failure_json(call: &FailureCall) -> Value {
    json!({
        "url": call.url,
        "headers": object(&call.headers),
        "retries": call.retries,
        "retryDelay": call.retry_delay,
        "flow": call.flow.as_ref().map(flow_json),
    })
}

fn flow_json(flow: &FlowSpec) -> Value {
    json!([flow.key, flow.parallelism, flow.rate, flow.period_ms])
}

fn invoker_json(by: &InvokedBy) -> Value {
    let created_at = by.run.created_at.map(Timestamp::as_millis);
    json!({
        "run": by.run.id, "createdAt": created_at, "url": by.url, "step": by.step, "headers": object(&by.headers),
        "body": by.body, "terms": terms_json(&by.terms),
    })
}

fn terms_json(terms: &OwnTerms) -> Value {
    json!({ "retries": terms.retries, "retryDelay": terms.retry_delay, "flow": terms.flow.as_ref().map(flow_json) })
}

fn object(headers: &[(String, String)]) -> Map<String, Value> {
    headers.iter().map(|(name, value)| (name.clone(), value.clone().into())).collect()
}

fn features(features: Features) -> String {
    let all = [
        (features.lazy_fetch, "LazyFetch"),
        (features.initial_body, "InitialBody"),
        (features.detect_trigger, "WF_DetectTrigger"),
        (features.trigger_on_config, "WF_TriggerOnConfig"),
        (features.no_delete, "WF_NoDelete"),
    ];
    all.into_iter().filter(|(has, _)| *has).map(|(_, name)| name).collect::<Vec<_>>().join(",")
}

/// Without nulls and what is empty.
fn without_nothing(value: Value) -> Value {
    let is_something = |value: &Value| match value {
        Value::Null => false,
        Value::Object(map) => !map.is_empty(),
        Value::Array(list) => !list.is_empty(),
        Value::String(text) => !text.is_empty(),
        _ => true,
    };
    match value {
        Value::Object(map) => {
            let map = map.into_iter().map(|(name, value)| (name, without_nothing(value)));
            map.filter(|(_, value)| is_something(value)).collect()
        }
        value => value,
    }
}

fn check(cases: Vec<(&str, Given<'_>, Value)>) {
    for (id, given, expected) in cases {
        let wanted = read(&given).unwrap_or_else(|rejection| panic!("{id}: {rejection}"));
        assert_eq!(shown(&wanted), expected, "{id}");
    }
}

const SDK: &str = "Upstash-Workflow-Sdk-Version";

fn flags() -> Value {
    json!({ "Upstash-Workflow-Is-Failure": "true", "Upstash-Workflow-Failure-Callback": "true" })
}
