//! The objects of the API, as JSON Schema.

use super::{runs, workflows};
use serde_json::{Map, Value, json};

/// A schema by its name.
pub(super) fn reference(name: &str) -> Value {
    json!({ "$ref": format!("#/components/schemas/{name}") })
}

/// A list of what a schema describes.
pub(super) fn list_of(name: &str) -> Value {
    json!({ "type": "array", "items": reference(name) })
}

/// An object: its fields, and which of them are always there.
pub(super) fn object(required: &[&str], fields: &[(&str, Value)]) -> Value {
    let fields: Map<String, Value> = fields.iter().map(|(name, schema)| ((*name).to_owned(), schema.clone())).collect();
    match required {
        [] => json!({ "type": "object", "properties": fields }),
        _ => json!({ "type": "object", "required": required, "properties": fields }),
    }
}

/// An object without fields: it was done.
pub(super) fn done() -> Value {
    json!({ "type": "object", "maxProperties": 0 })
}

pub(super) fn text() -> Value {
    json!({ "type": "string" })
}

pub(super) fn whole() -> Value {
    json!({ "type": "integer", "minimum": 0 })
}

pub(super) fn millis() -> Value {
    json!({ "type": "integer", "minimum": 0, "description": "Unix milliseconds." })
}

pub(super) fn texts() -> Value {
    json!({ "type": "array", "items": { "type": "string" } })
}

/// For each name a list of values.
pub(super) fn headers() -> Value {
    json!({ "type": "object", "additionalProperties": { "type": "array", "items": { "type": "string" } } })
}

pub(super) fn boolean() -> Value {
    json!({ "type": "boolean" })
}

/// All schemas that the endpoints refer to.
pub(super) fn all() -> Value {
    let mut schemas = json!({
        "Error": object(&["error"], &[("error", text())]),
        "Published": published(),
        "BatchItem": batch_item(),
        "Message": message(),
        "DeadLetter": dead_letter(),
        "LogLine": log_line(),
        "Cancelled": object(&["cancelled"], &[("cancelled", whole()), ("actionId", text())]),
        "BulkAction": bulk_action(),
        "Queue": queue(),
        "Schedule": schedule(),
        "FlowControlKey": flow_control_key(),
        "UrlGroup": url_group(),
        "Endpoint": object(&["url"], &[("url", text()), ("name", text())]),
        "Keys": object(&["current", "next"], &[("current", text()), ("next", text())]),
        "Filters": filters(),
    });
    for (name, schema) in workflows::schemas().into_iter().chain(runs::schemas()) {
        schemas[name] = schema;
    }
    schemas
}

fn published() -> Value {
    let fields = [
        ("messageId", text()),
        ("url", json!({ "type": "string", "description": "Where it goes; told for the messages of a URL group." })),
        ("deduplicated", json!({ "const": true, "description": "Nothing was stored: this message exists already." })),
        ("workflowRunId", json!({ "type": "string", "description": "The workflow run that it starts." })),
        ("workflowCreatedAt", millis()),
    ];
    object(&["messageId"], &fields)
}

fn batch_item() -> Value {
    let header_value = json!({ "anyOf": [text(), texts()] });
    let optional_text = || json!({ "type": ["string", "null"] });
    let fields = [
        ("destination", json!({ "type": "string", "minLength": 1 })),
        ("headers", json!({ "type": ["object", "null"], "additionalProperties": header_value })),
        ("body", optional_text()),
        ("queue", optional_text()),
    ];
    object(&["destination"], &fields)
}

/// What messages, dead letters, log lines and schedules have in common.
fn common_fields() -> Vec<(&'static str, Value)> {
    vec![
        ("url", text()),
        ("method", text()),
        ("header", headers()),
        ("body", text()),
        ("callerIP", text()),
        ("queueName", text()),
        ("callback", text()),
        ("failureCallback", text()),
        ("label", text()),
        ("labels", texts()),
        ("flowControlKey", text()),
        ("parallelism", whole()),
        ("rate", whole()),
        ("period", whole()),
        ("retryDelayExpression", text()),
        ("timeout", whole()),
    ]
}

fn message_fields() -> Vec<(&'static str, Value)> {
    let mut fields = common_fields();
    fields.extend([
        ("messageId", text()),
        ("bodyBase64", text()),
        ("maxRetries", whole()),
        ("notBefore", millis()),
        ("createdAt", millis()),
        ("topicName", text()),
        ("endpointName", text()),
        ("scheduleId", text()),
        ("callbackHeader", headers()),
        ("failureCallbackHeader", headers()),
        ("api", text()),
    ]);
    fields
}

const MESSAGE_ALWAYS: [&str; 7] = ["messageId", "url", "method", "maxRetries", "notBefore", "createdAt", "callerIP"];

fn message() -> Value {
    object(&MESSAGE_ALWAYS, &message_fields())
}

fn dead_letter() -> Value {
    let mut fields = message_fields();
    fields.extend([
        ("dlqId", text()),
        ("responseStatus", whole()),
        ("responseHeader", headers()),
        ("responseBody", text()),
        ("responseBodyBase64", text()),
        ("error", text()),
    ]);
    let always: Vec<&str> = MESSAGE_ALWAYS.into_iter().chain(["dlqId", "responseStatus"]).collect();
    object(&always, &fields)
}

fn log_line() -> Value {
    let mut fields = common_fields();
    let states = ["CREATED", "ACTIVE", "ERROR", "RETRY", "DELIVERED", "FAILED", "CANCEL_REQUESTED", "CANCELED"];
    fields.extend([
        ("time", millis()),
        ("state", json!({ "type": "string", "enum": states })),
        ("messageId", text()),
        ("maxRetries", whole()),
        ("topicName", text()),
        ("endpointName", text()),
        ("scheduleId", text()),
        ("api", text()),
        ("callbackHeaders", headers()),
        ("failureCallbackHeaders", headers()),
        ("retryDelayExpr", text()),
        ("nextDeliveryTime", millis()),
        ("error", text()),
        ("dlqId", text()),
        ("duration", whole()),
        ("responseStatus", whole()),
        ("responseHeader", headers()),
        ("responseHeaders", headers()),
        ("responseBody", text()),
    ]);
    object(&["time", "state", "messageId", "url", "method", "maxRetries", "callerIP"], &fields)
}

fn bulk_action() -> Value {
    let fields = [
        ("actionId", text()),
        ("kind", json!({ "const": "cancel" })),
        ("state", json!({ "type": "string", "enum": ["IN_PROGRESS", "FINISHED"] })),
        ("total", whole()),
        ("processed", whole()),
        ("createdAt", millis()),
        ("completedAt", millis()),
        ("filter", headers()),
    ];
    object(&["actionId", "kind", "state", "total", "processed", "createdAt", "filter"], &fields)
}

fn queue() -> Value {
    let fields = [
        ("name", text()),
        ("parallelism", whole()),
        ("paused", boolean()),
        ("lag", whole()),
        ("createdAt", millis()),
        ("updatedAt", millis()),
    ];
    object(&fields.each_ref().map(|(name, _)| *name), &fields)
}

fn schedule() -> Value {
    let mut fields = common_fields();
    fields.retain(|(name, _)| *name != "url");
    let states = json!({ "type": "string", "enum": ["IN_PROGRESS", "SUCCESS", "FAIL"] });
    fields.extend([
        ("scheduleId", text()),
        ("cron", text()),
        ("destination", text()),
        ("createdAt", millis()),
        ("retries", whole()),
        ("isPaused", boolean()),
        ("bodyBase64", text()),
        ("delay", whole()),
        ("callbackHeader", headers()),
        ("failureCallbackHeader", headers()),
        ("lastScheduleTime", millis()),
        ("nextScheduleTime", millis()),
        ("lastScheduleStates", json!({ "type": "object", "additionalProperties": states })),
        ("error", text()),
    ]);
    let always = ["scheduleId", "cron", "destination", "method", "createdAt", "retries", "isPaused", "callerIP"];
    object(&always, &fields)
}

fn flow_control_key() -> Value {
    let fields = [
        ("flowControlKey", text()),
        ("waitListSize", whole()),
        ("parallelismMax", whole()),
        ("parallelismCount", whole()),
        ("rateMax", whole()),
        ("rateCount", whole()),
        ("ratePeriod", whole()),
        ("ratePeriodStart", whole()),
        ("isPaused", boolean()),
        ("isPinnedParallelism", boolean()),
        ("isPinnedRate", boolean()),
    ];
    object(&fields.each_ref().map(|(name, _)| *name), &fields)
}

fn url_group() -> Value {
    let fields = [
        ("name", text()),
        ("createdAt", millis()),
        ("updatedAt", millis()),
        ("endpoints", list_of("Endpoint")),
        ("headers", headers()),
    ];
    object(&["name", "createdAt", "updatedAt", "endpoints"], &fields)
}

/// The filters of the query, as older SDKs send them: in the body.
fn filters() -> Value {
    let scalar = json!({ "type": ["string", "integer", "boolean"] });
    let values = json!({ "anyOf": [scalar, { "type": "array", "items": scalar, "minItems": 1 }] });
    json!({
        "type": "object",
        "additionalProperties": values,
        "description": "The parameters of the query, with text, numbers or lists as values. The query wins.",
    })
}
