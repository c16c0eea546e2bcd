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
        "Connection": connection(),
        "Why": why(),
        "Cancelled": object(&["cancelled"], &[("cancelled", whole()), ("actionId", text())]),
        "BulkAction": bulk_action(),
        "Cause": cause(),
        "Queue": queue(),
        "Schedule": schedule(),
        "Forecast": forecast(),
        "FlowControlKey": flow_control_key(),
        "UrlGroup": url_group(),
        "Endpoint": object(&["url"], &[("url", text()), ("name", text())]),
        "Keys": object(&["current", "next"], &[("current", text()), ("next", text())]),
        "Filters": filters(),
        "Stats": stats(),
        "RetryPlan": retry_plan(),
        "TestReceiver": test_receiver(),
        "Settings": settings(),
    });
    for (name, schema) in workflows::schemas().into_iter().chain(runs::schemas()) {
        schemas[name] = schema;
    }
    schemas
}

fn stats() -> Value {
    let counted = |name: &'static str| {
        let at_least = json!({ "type": "boolean", "description": "There may be more than that." });
        object(&[name, "hasMore"], &[(name, whole()), ("hasMore", at_least), ("oldest", millis())])
    };
    let storage = [("bytes", whole()), ("freeBytes", whole()), ("diskLow", boolean()), ("takesWrites", boolean())];
    let messages = [
        ("live", json!({ "type": "integer", "description": "Messages that have not ended." })),
        (
            "liveHasMore",
            json!({ "type": "boolean", "description": "There may be more than that: not all were looked at." }),
        ),
        ("inFlight", json!({ "type": "integer", "description": "Attempts under way." })),
        ("waiting", json!({ "type": "integer", "description": "Messages that are due and not under way." })),
        ("waitingHasMore", boolean()),
        ("oldestDue", json!({ "type": "integer", "description": "When the one that waits longest was due." })),
        ("pausedQueues", whole()),
        ("pausedFlowControlKeys", whole()),
        (
            "partial",
            json!({ "type": "boolean", "description": "Only a part was looked at, of what waits and is paused." }),
        ),
    ];
    let next = object(&["scheduleId", "time"], &[("scheduleId", text()), ("time", millis())]);
    let schedules = [("count", whole()), ("next", json!({ "type": "array", "items": next }))];
    let runs = [("live", whole()), ("hasMore", boolean()), ("dlq", counted("size"))];
    let figures = || json!({ "type": "array", "items": whole() });
    let lists = ["published", "delivered", "failed", "deadLettered", "p50", "p99"].map(|name| (name, figures()));
    let last =
        ("last", json!({ "type": "integer", "description": "The Unix second of the last figure of each list." }));
    let seconds: Vec<_> = std::iter::once(last).chain(lists).collect();
    let fields = [
        ("time", millis()),
        ("version", text()),
        ("uptime", json!({ "type": "integer", "description": "Milliseconds." })),
        ("storage", object(&["diskLow", "takesWrites"], &storage)),
        ("messages", object(&["live", "liveHasMore", "inFlight", "waiting", "waitingHasMore", "partial"], &messages)),
        ("dlq", counted("size")),
        ("runs", object(&["live", "hasMore", "dlq"], &runs)),
        ("schedules", object(&["count", "next"], &schedules)),
        ("latency", object(&["p50", "p99"], &[("p50", whole()), ("p99", whole())])),
        ("seconds", object(&["last"], &seconds)),
    ];
    object(&["time", "version", "uptime", "storage", "messages", "dlq", "runs", "schedules", "seconds"], &fields)
}

fn retry_plan() -> Value {
    let attempt = [
        ("delayMs", json!({ "type": "integer", "description": "The wait before it." })),
        ("atMs", json!({ "type": "integer", "description": "How long after the first, if attempts took no time." })),
    ];
    let attempts = json!({ "type": "array", "items": object(&["delayMs", "atMs"], &attempt), "minItems": 1 });
    let jitter = json!({ "type": "number", "description": "Waits are stretched at random by up to this share." });
    let fields = [
        ("retries", whole()),
        ("expression", text()),
        ("attempts", attempts),
        ("givesUpAtMs", whole()),
        ("jitter", jitter),
    ];
    object(&["retries", "attempts", "givesUpAtMs", "jitter"], &fields)
}

fn test_receiver() -> Value {
    let signature = object(
        &["isValid"],
        &[("isValid", boolean()), ("key", json!({ "enum": ["current", "next"] })), ("problem", text())],
    );
    let delivery = [
        ("time", millis()),
        ("messageId", text()),
        ("attempt", whole()),
        ("method", text()),
        ("script", json!({ "type": "string", "description": "What its URL asked for." })),
        ("answer", json!({ "type": "string", "description": "A status, perhaps with a delay, or hang." })),
        ("header", headers()),
        ("body", text()),
        ("bodyBase64", text()),
        ("bodyBytes", whole()),
        ("isCut", json!({ "type": "boolean", "description": "Only the start of the body is here." })),
        ("signature", signature),
    ];
    let required = ["time", "attempt", "method", "script", "answer", "bodyBytes", "isCut", "signature"];
    let deliveries = json!({ "type": "array", "items": object(&required, &delivery) });
    object(&["url", "deliveries"], &[("url", text()), ("deliveries", deliveries)])
}

fn settings() -> Value {
    let token = [
        ("name", text()),
        ("scope", json!({ "enum": ["full", "readOnly"] })),
        ("lastUsed", json!({ "type": "integer", "description": "Unix milliseconds; absent if it was never used." })),
    ];
    let setting = [
        ("name", text()),
        ("value", json!({})),
        ("note", json!({ "type": "string", "description": "Why there is no value." })),
        ("source", json!({ "enum": ["default", "flag", "environment", "file", "given"] })),
    ];
    let list = |item: Value| json!({ "type": "array", "items": item });
    let fields = [
        ("version", text()),
        ("mode", json!({ "enum": ["dev", "serve"] })),
        ("startedAt", millis()),
        ("tenant", text()),
        ("tokens", list(object(&["name", "scope"], &token))),
        ("settings", list(object(&["name", "source"], &setting))),
    ];
    object(&["version", "mode", "startedAt", "tenant", "tokens", "settings"], &fields)
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
        ("scheduleRunByHand", boolean()),
        ("callbackHeader", headers()),
        ("failureCallbackHeader", headers()),
        ("api", text()),
    ]);
    fields.extend(ancestry());
    fields
}

/// What led to a message, and what makes others duplicates of it.
fn ancestry() -> [(&'static str, Value); 3] {
    [
        ("sourceMessageId", json!({ "type": "string", "description": "The message that led to it." })),
        ("sourceKind", json!({ "type": "string", "enum": ["callback", "failureCallback", "dlqRetry"] })),
        ("deduplication", json!({ "type": "string", "enum": ["id", "content"] })),
    ]
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
        ("scheduleRunByHand", boolean()),
        ("api", text()),
        ("callbackHeaders", headers()),
        ("failureCallbackHeaders", headers()),
        ("retryDelayExpr", text()),
        ("attempt", json!({ "type": "integer", "minimum": 1, "description": "Which attempt the line is about, if it is about one; 1 in lines of versions that did not tell." })),
        ("nextDeliveryTime", millis()),
        ("error", text()),
        ("dlqId", text()),
        ("duration", whole()),
        ("connection", reference("Connection")),
        ("responseStatus", whole()),
        ("responseHeader", headers()),
        ("responseHeaders", headers()),
        ("responseBody", text()),
    ]);
    fields.extend(ancestry());
    object(&["time", "state", "messageId", "url", "method", "maxRetries", "callerIP"], &fields)
}

fn connection() -> Value {
    let fields = [
        ("reused", boolean()),
        (
            "address",
            json!({ "type": "string", "description": "The address that was connected to, unless it is the operator's own." }),
        ),
        ("dnsMicros", whole()),
        ("connectMicros", whole()),
        ("tlsMicros", whole()),
        ("firstByteMicros", whole()),
    ];
    object(&["reused"], &fields)
}

fn why() -> Value {
    let kinds = ["time", "queue", "flowControl", "destination", "room", "attempt", "nothing"];
    let limit = || json!({ "type": ["integer", "null"], "minimum": 0 });
    let queue = [
        ("name", text()),
        ("paused", boolean()),
        ("parallelism", whole()),
        ("underWay", whole()),
        ("updatedAt", millis()),
    ];
    let flow = [
        ("key", text()),
        ("paused", boolean()),
        ("parallelism", limit()),
        ("underWay", whole()),
        ("rate", limit()),
        ("periodMs", whole()),
    ];
    let counted = "Publishes that were answered with this message, as far as the server has counted them in RAM.";
    let duplicates = [
        ("count", json!({ "type": "integer", "minimum": 1, "description": counted })),
        ("firstAt", millis()),
        ("lastAt", millis()),
    ];
    let fields = [
        ("messageId", text()),
        ("sentence", text()),
        ("state", json!({ "type": "string", "description": "That of its last log line." })),
        ("waitsFor", json!({ "type": "string", "enum": kinds })),
        ("attempts", json!({ "type": "integer", "description": "Those that have ended." })),
        ("maxAttempts", whole()),
        ("dueAt", millis()),
        ("endedAt", millis()),
        ("estimateMs", json!({ "type": "integer", "description": "Milliseconds until it may start." })),
        ("position", json!({ "type": "integer", "minimum": 1, "description": "Its place in line; 1 is next." })),
        ("positionMoreThan", json!({ "type": "integer", "description": "At least so many are before it." })),
        ("cancelRequested", json!({ "const": true })),
        ("lastStatus", whole()),
        ("lastError", text()),
        ("dlqId", text()),
        ("queue", object(&[], &queue)),
        ("flowControl", object(&[], &flow)),
        ("destination", object(&[], &[("underWay", whole()), ("max", whole())])),
        ("duplicates", object(&["count", "firstAt", "lastAt"], &duplicates)),
    ];
    object(&["messageId", "sentence", "state", "waitsFor", "maxAttempts"], &fields)
}

fn bulk_action() -> Value {
    let fields = [
        ("actionId", text()),
        ("kind", json!({ "type": "string", "enum": ["cancel", "dlqRetry", "dlqDelete"] })),
        ("state", json!({ "type": "string", "enum": ["IN_PROGRESS", "FINISHED"] })),
        ("total", whole()),
        ("processed", whole()),
        ("createdAt", millis()),
        ("completedAt", millis()),
        ("filter", headers()),
        ("changes", texts()),
        ("rate", whole()),
        ("refused", whole()),
        ("problem", text()),
        ("stopped", boolean()),
    ];
    object(&["actionId", "kind", "state", "total", "processed", "createdAt", "filter"], &fields)
}

fn cause() -> Value {
    let fields = [
        ("cause", text()),
        ("destination", text()),
        ("text", text()),
        ("count", whole()),
        ("firstSeen", millis()),
        ("lastSeen", millis()),
        ("sample", object(&["dlqId", "text"], &[("dlqId", text()), ("text", text())])),
        ("responseStatus", whole()),
        ("errorClass", text()),
    ];
    let optional = "errorClass";
    let names: Vec<&str> = fields.iter().map(|(name, _)| *name).filter(|name| *name != optional).collect();
    object(&names, &fields)
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
        (
            "bodyOmitted",
            json!({ "type": "boolean", "description": "In a list: the body did not fit, ask for the schedule." }),
        ),
        ("bodyBytes", json!({ "type": "integer", "description": "How long a body is that was left out." })),
        ("delay", whole()),
        ("callbackHeader", headers()),
        ("failureCallbackHeader", headers()),
        ("redactFields", json!({ "type": "string", "description": "What it hides, as in Upstash-Redact-Fields." })),
        ("callbackRedactFields", text()),
        ("failureCallbackRedactFields", text()),
        ("lastScheduleTime", millis()),
        ("nextScheduleTime", millis()),
        ("lastScheduleStates", json!({ "type": "object", "additionalProperties": states })),
        ("error", text()),
    ]);
    let always = ["scheduleId", "cron", "destination", "method", "createdAt", "retries", "isPaused", "callerIP"];
    object(&always, &fields)
}

fn forecast() -> Value {
    let fields = [
        ("time", millis()),
        ("local", json!({ "type": "string", "description": "What the clock of the zone shows, with its offset." })),
        ("clockChange", json!({ "type": "string", "enum": ["skipped", "repeated"] })),
        ("remark", text()),
    ];
    let fires = json!({ "type": "array", "items": object(&["time", "local"], &fields) });
    object(&["expression", "zone", "fires"], &[("expression", text()), ("zone", text()), ("fires", fires)])
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
