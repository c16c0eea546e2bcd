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
        let at_least = json!({ "type": "boolean", "description": "True if there may be more." });
        object(&[name, "hasMore"], &[(name, whole()), ("hasMore", at_least), ("oldest", millis())])
    };
    let storage = [("bytes", whole()), ("freeBytes", whole()), ("diskLow", boolean()), ("takesWrites", boolean())];
    let messages = [
        ("live", json!({ "type": "integer", "description": "Messages that have not ended." })),
        (
            "liveHasMore",
            json!({ "type": "boolean", "description": "True if there may be more, because not all were counted." }),
        ),
        ("inFlight", json!({ "type": "integer", "description": "Attempts in flight." })),
        ("waiting", json!({ "type": "integer", "description": "Messages that are due but not in flight." })),
        ("waitingHasMore", boolean()),
        (
            "oldestDue",
            json!({ "type": "integer", "description": "Due time of the message that has waited longest, in Unix milliseconds." }),
        ),
        ("pausedQueues", whole()),
        ("pausedFlowControlKeys", whole()),
        (
            "partial",
            json!({ "type": "boolean", "description": "True if the counts of waiting messages and paused keys and queues are incomplete." }),
        ),
    ];
    let next = object(&["scheduleId", "time"], &[("scheduleId", text()), ("time", millis())]);
    let schedules = [("count", whole()), ("next", json!({ "type": "array", "items": next }))];
    let runs = [("live", whole()), ("hasMore", boolean()), ("dlq", counted("size"))];
    let figures = || json!({ "type": "array", "items": whole() });
    let lists = ["published", "delivered", "failed", "deadLettered", "p50", "p99"].map(|name| (name, figures()));
    let last =
        ("last", json!({ "type": "integer", "description": "Time of the last value of each list, in Unix seconds." }));
    let seconds: Vec<_> = std::iter::once(last).chain(lists).collect();
    let fields = [
        ("time", millis()),
        ("version", text()),
        ("uptime", json!({ "type": "integer", "description": "Uptime in milliseconds." })),
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
        ("delayMs", json!({ "type": "integer", "description": "Delay before this attempt, in milliseconds." })),
        (
            "atMs",
            json!({ "type": "integer", "description": "Time since the first attempt, in milliseconds, if attempts take no time." }),
        ),
    ];
    let attempts = json!({ "type": "array", "items": object(&["delayMs", "atMs"], &attempt), "minItems": 1 });
    let jitter =
        json!({ "type": "number", "description": "Maximum random share that is added to each delay, such as 0.05." });
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
        ("script", json!({ "type": "string", "description": "Responses that the URL asks for." })),
        (
            "answer",
            json!({ "type": "string", "description": "Response that was sent: a status, optionally with a delay, or `hang`." }),
        ),
        ("header", headers()),
        ("body", text()),
        ("bodyBase64", text()),
        ("bodyBytes", whole()),
        ("isCut", json!({ "type": "boolean", "description": "True if `body` holds only the first bytes." })),
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
        (
            "lastUsed",
            json!({ "type": "integer", "description": "Time of the last use, in Unix milliseconds; absent if the token was never used." }),
        ),
    ];
    let setting = [
        ("name", text()),
        ("value", json!({})),
        ("note", json!({ "type": "string", "description": "Why `value` is absent." })),
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
        ("url", json!({ "type": "string", "description": "Destination URL; present for messages of a URL group." })),
        (
            "deduplicated",
            json!({ "const": true, "description": "True if the message is a duplicate and nothing was stored. `messageId` is that of the first message." }),
        ),
        (
            "workflowRunId",
            json!({ "type": "string", "description": "Id of the workflow run that the message starts." }),
        ),
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
        ("sourceMessageId", json!({ "type": "string", "description": "Id of the message that led to this one." })),
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
        ("attempt", json!({ "type": "integer", "minimum": 1, "description": "Number of the attempt, starting at 1; absent if the line is not about an attempt. Always 1 in lines of older versions." })),
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
            json!({ "type": "string", "description": "IP address of the receiver; absent if it is internal to the operator." }),
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
    let counted = "Number of publishes that were duplicates of this message. Counted in RAM, so a restart resets it.";
    let duplicates = [
        ("count", json!({ "type": "integer", "minimum": 1, "description": counted })),
        ("firstAt", millis()),
        ("lastAt", millis()),
    ];
    let fields = [
        ("messageId", text()),
        ("sentence", text()),
        ("state", json!({ "type": "string", "description": "State of the last log line." })),
        ("waitsFor", json!({ "type": "string", "enum": kinds })),
        ("attempts", json!({ "type": "integer", "description": "Number of attempts that have ended." })),
        ("maxAttempts", whole()),
        ("dueAt", millis()),
        ("endedAt", millis()),
        (
            "estimateMs",
            json!({ "type": "integer", "description": "Estimated time until the message starts, in milliseconds." }),
        ),
        ("position", json!({ "type": "integer", "minimum": 1, "description": "Position in line; 1 is next." })),
        (
            "positionMoreThan",
            json!({ "type": "integer", "description": "At least this number of messages are ahead in line. Replaces `position` if the position is not known." }),
        ),
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
            json!({ "type": "boolean", "description": "In lists: true if the body is omitted because the page is full. `GET /v2/schedules/{id}` returns it." }),
        ),
        ("bodyBytes", json!({ "type": "integer", "description": "Length of the omitted body in bytes." })),
        ("delay", whole()),
        ("callbackHeader", headers()),
        ("failureCallbackHeader", headers()),
        ("redactFields", json!({ "type": "string", "description": "Redacted parts, as in `Upstash-Redact-Fields`." })),
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
        ("local", json!({ "type": "string", "description": "Local time in the time zone, with its UTC offset." })),
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
        "description": "Filters as in the query, with text, numbers, booleans or lists as values. The query takes precedence.",
    })
}
