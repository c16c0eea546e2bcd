//! Every endpoint of the router, by resource and in its order.

use super::parameters::{
    BULK_ACTIONS, DELIVERY, DESTINATION, DLQ_BULK, FORECAST, ID, KEY, LIST_PAGE, NAME_IN_PATH, NEW_CRON, ONCE, PIN,
    Parameter, QUEUE, RETRY_DELAY, SCHEDULE, SEARCH, TRIM_BODY, UNPIN, cancel_filters, dlq_filters, dlq_list,
    dlq_selection, log_filters, stream_filters,
};
use super::schemas::{done, list_of, object, reference, text, whole};
use super::{Access, Endpoint, RequestBody, runs, workflows};
use serde_json::{Value, json};

/// The whole table.
pub(super) fn all() -> Vec<Endpoint> {
    let resources = [
        publishing(),
        messages(),
        queues(),
        schedules(),
        flow_control(),
        url_groups(),
        dlq(),
        logs(),
        runs::endpoints(),
        workflows::endpoints(),
        keys(),
        trying(),
        language_model(),
        operators(),
    ];
    resources.into_iter().flatten().collect()
}

fn publishing() -> Vec<Endpoint> {
    let endpoint = |path, summary| Endpoint::new("POST", path, Access::Write, "Publishing", summary);
    let one_or_group = || {
        let scheduled = object(&["scheduleId"], &[("scheduleId", text())]);
        json!({ "anyOf": [reference("Published"), list_of("Published"), scheduled] })
    };
    let refused = object(&["error"], &[("error", text())]);
    let results =
        json!({ "type": "array", "items": { "anyOf": [reference("Published"), list_of("Published"), refused] } });
    let publish = |endpoint: Endpoint| {
        endpoint
            .with(DELIVERY)
            .with(ONCE)
            .body(RequestBody::Raw)
            .answers(200, "It is stored: one message, or one for each endpoint of a group.", one_or_group())
            .answers(202, "All are duplicates: nothing new was stored.", one_or_group())
            .errors(&[404, 412])
    };
    vec![
        publish(endpoint("/v2/publish/{destination}", "Publish a message to a URL, a URL group or api/llm"))
            .route("/v2/publish/{*destination}")
            .alias_of_route("/v1/publish/{*destination}", "/v1/publish/{destination}")
            .with(SCHEDULE)
            .with(&[DESTINATION])
            .answers(201, "There was a cron expression: a schedule was made.", one_or_group()),
        endpoint("/v2/publish", "Without a destination: refused").alias("/v1/publish"),
        publish(endpoint("/v2/enqueue/{queue}/{destination}", "Publish a message into a queue"))
            .route("/v2/enqueue/{queue}/{*destination}")
            .with(&[QUEUE, DESTINATION]),
        endpoint("/v2/enqueue", "Without a queue: refused"),
        endpoint("/v2/enqueue/{queue}", "Without a destination: refused").with(&[QUEUE]),
        endpoint("/v2/batch", "Publish many messages in one transaction")
            .body(RequestBody::Json(list_of("BatchItem")))
            .answers(200, "One result for each item, in their order.", results.clone())
            .answers(202, "All are duplicates: nothing new was stored.", results)
            .errors(&[404, 412]),
    ]
}

fn messages() -> Vec<Endpoint> {
    let tag = "Messages";
    let page = object(&["bulkActions"], &[("bulkActions", list_of("BulkAction")), ("cursor", text())]);
    let sent_now = object(&["messageId"], &[("messageId", text())]);
    vec![
        Endpoint::new("GET", "/v2/messages/{id}", Access::Read, tag, "Look at a message")
            .alias("/v1/messages/{id}")
            .with(&[ID])
            .answers(200, "The message.", reference("Message"))
            .errors(&[404]),
        Endpoint::new("DELETE", "/v2/messages/{id}", Access::Write, tag, "Cancel a message")
            .alias("/v1/messages/{id}")
            .with(&[ID])
            .answers(202, "It is cancelled, or will be when its attempt ends.", reference("Cancelled"))
            .errors(&[404]),
        Endpoint::new(
            "POST",
            "/v2/messages/{id}/retry",
            Access::Write,
            tag,
            "Send a message now that is delayed or retried",
        )
        .with(&[ID])
        .answers(200, "It is due, and is sent as soon as limits allow.", sent_now)
        .errors(&[404]),
        Endpoint::new(
            "GET",
            "/v2/messages/{id}/why",
            Access::Read,
            tag,
            "What a message waits for, or what became of it",
        )
        .with(&[ID])
        .answers(200, "One sentence, and the facts behind it.", reference("Why"))
        .errors(&[404]),
        Endpoint::new("DELETE", "/v2/messages", Access::Write, tag, "Cancel many messages; without a filter, all")
            .with(&cancel_filters())
            .body(RequestBody::OptionalJson(reference("Filters")))
            .answers(202, "How many were cancelled, or with async how many match.", reference("Cancelled"))
            .errors(&[412]),
        Endpoint::new("GET", "/v2/bulkActions", Access::Read, tag, "List what is done to many in the background")
            .with(BULK_ACTIONS)
            .answers(200, "A page, newest first.", page),
        Endpoint::new("GET", "/v2/bulkActions/{id}", Access::Read, tag, "Look at a bulk action")
            .with(&[ID])
            .answers(200, "How far it is.", reference("BulkAction"))
            .errors(&[404]),
        Endpoint::new("DELETE", "/v2/bulkActions/{id}", Access::Write, tag, "Stop a bulk action where it is")
            .with(&[ID])
            .answers(200, "How far it came. It does nothing more.", reference("BulkAction"))
            .errors(&[404]),
    ]
}

fn queues() -> Vec<Endpoint> {
    let tag = "Queues";
    let wanted = [
        ("queueName", json!({ "type": "string", "pattern": "^[A-Za-z0-9_.-]{1,256}$" })),
        ("parallelism", json!({ "type": "integer", "minimum": 1 })),
        ("paused", json!({ "type": "boolean" })),
    ];
    let switch = |path, summary| {
        Endpoint::new("POST", path, Access::Write, tag, summary)
            .with(&[NAME_IN_PATH])
            .answers(200, "It is so now.", done())
            .errors(&[404])
    };
    vec![
        Endpoint::new("GET", "/v2/queues", Access::Read, tag, "List the queues").with(LIST_PAGE).answers(
            200,
            "The queues, by name.",
            list_of("Queue"),
        ),
        Endpoint::new("POST", "/v2/queues", Access::Write, tag, "Make a queue, or change it")
            .body(RequestBody::Json(object(&["queueName"], &wanted)))
            .answers(200, "It is so now.", done())
            .errors(&[412]),
        Endpoint::new("GET", "/v2/queues/{name}", Access::Read, tag, "Look at a queue")
            .with(&[NAME_IN_PATH])
            .answers(200, "The queue.", reference("Queue"))
            .errors(&[404]),
        Endpoint::new("DELETE", "/v2/queues/{name}", Access::Write, tag, "Cancel a queue's messages and forget it")
            .with(&[NAME_IN_PATH])
            .answers(200, "How many were cancelled; also when there was no such queue.", reference("Cancelled")),
        switch("/v2/queues/{name}/pause", "Start nothing of a queue"),
        switch("/v2/queues/{name}/resume", "Go on with a queue"),
    ]
}

fn schedules() -> Vec<Endpoint> {
    let tag = "Schedules";
    let rest = "/v2/schedules/{*rest}";
    let run = object(&["scheduleId", "messages"], &[("scheduleId", text()), ("messages", list_of("Published"))]);
    let switch = |method, path, summary| {
        Endpoint::new(method, path, Access::Write, tag, summary)
            .route(rest)
            .with(&[ID])
            .answers(200, "It is so now.", done())
            .errors(&[404])
    };
    vec![
        Endpoint::new("GET", "/v2/schedules", Access::Read, tag, "List the schedules")
            .alias("/v1/schedules")
            .with(&[TRIM_BODY])
            .with(LIST_PAGE)
            .answers(200, "The schedules, by id.", list_of("Schedule")),
        Endpoint::new("POST", "/v2/schedules", Access::Write, tag, "Without a destination: refused").errors(&[404]),
        Endpoint::new("POST", "/v2/schedules/{destination}", Access::Write, tag, "Make a schedule, or replace it")
            .route(rest)
            .with(&[DESTINATION])
            .with(SCHEDULE)
            .with(DELIVERY)
            .body(RequestBody::Raw)
            .answers(201, "It is stored.", object(&["scheduleId"], &[("scheduleId", text())]))
            .errors(&[404, 412]),
        Endpoint::new("GET", "/v2/schedules/{id}", Access::Read, tag, "Look at a schedule")
            .route(rest)
            .alias_of_route("/v1/schedules/{*rest}", "/v1/schedules/{id}")
            .with(&[ID, TRIM_BODY])
            .answers(200, "The schedule.", reference("Schedule"))
            .errors(&[404]),
        Endpoint::new("DELETE", "/v2/schedules/{id}", Access::Write, tag, "Delete a schedule; its messages stay")
            .route(rest)
            .alias_of_route("/v1/schedules/{*rest}", "/v1/schedules/{id}")
            .with(&[ID])
            .answers(200, "It is gone.", done())
            .errors(&[404]),
        Endpoint::new("PATCH", "/v2/schedules/{id}", Access::Write, tag, "Give a schedule another cron expression")
            .route(rest)
            .with(&[ID])
            .with(NEW_CRON)
            .answers(200, "It fires by it from now on.", object(&["scheduleId"], &[("scheduleId", text())]))
            .errors(&[404]),
        Endpoint::new("POST", "/v2/schedules/{id}/run", Access::Write, tag, "Publish what a schedule would, once, now")
            .route(rest)
            .with(&[ID])
            .answers(201, "Its messages are stored.", run)
            .errors(&[404, 412]),
        Endpoint::new("GET", "/v2/cron", Access::Read, tag, "When a cron expression fires").with(FORECAST).answers(
            200,
            "The next times.",
            reference("Forecast"),
        ),
        switch("POST", "/v2/schedules/{id}/pause", "Let a schedule not fire"),
        switch("PATCH", "/v2/schedules/{id}/pause", "Let a schedule not fire"),
        switch("POST", "/v2/schedules/{id}/resume", "Let a schedule fire again"),
        switch("PATCH", "/v2/schedules/{id}/resume", "Let a schedule fire again"),
    ]
}

fn flow_control() -> Vec<Endpoint> {
    let tag = "Flow control";
    let edit = |path, summary, parameters: &[Parameter]| {
        Endpoint::new("POST", path, Access::Write, tag, summary)
            .route("/v2/flowControl/{*key}")
            .with(&[KEY])
            .with(parameters)
            .answers(200, "It is so now.", done())
            .errors(&[404, 412])
    };
    let parallelism = [("parallelismMax", whole()), ("parallelismCount", whole())];
    vec![
        Endpoint::new("GET", "/v2/flowControl", Access::Read, tag, "List the flow-control keys")
            .with(SEARCH)
            .with(LIST_PAGE)
            .answers(200, "The keys.", list_of("FlowControlKey")),
        Endpoint::new("GET", "/v2/flowControl/{key}", Access::Read, tag, "Look at a flow-control key")
            .route("/v2/flowControl/{*key}")
            .with(&[KEY])
            .answers(200, "The key.", reference("FlowControlKey"))
            .errors(&[404]),
        edit("/v2/flowControl/{key}/pause", "Start nothing with this key", &[]),
        edit("/v2/flowControl/{key}/resume", "Go on with this key", &[]),
        edit("/v2/flowControl/{key}/pin", "Fix limits, whatever messages say", PIN),
        edit("/v2/flowControl/{key}/unpin", "Let messages set the limits again", UNPIN),
        edit("/v2/flowControl/{key}/resetRate", "Forget what was started in this period", &[]),
        edit("/v2/flowControl/{key}/reset", "Forget what was started and what is under way", &[]),
        Endpoint::new("GET", "/v2/globalParallelism", Access::Read, tag, "How many deliveries are under way").answers(
            200,
            "At most, and now.",
            object(&["parallelismMax", "parallelismCount"], &parallelism),
        ),
    ]
}

fn url_groups() -> Vec<Endpoint> {
    let tag = "URL groups";
    let some = |item: Value| json!({ "type": "array", "items": item, "minItems": 1 });
    let added = object(&["endpoints"], &[("endpoints", some(reference("Endpoint")))]);
    let removed = object(&[], &[("url", text()), ("name", text())]);
    let removed = object(&["endpoints"], &[("endpoints", some(removed))]);
    let header_value = json!({ "anyOf": [text(), { "type": "array", "items": text() }] });
    let defaults =
        object(&["headers"], &[("headers", json!({ "type": "object", "additionalProperties": header_value }))]);
    let one = |method, path, access, summary| Endpoint::new(method, path, access, tag, summary).with(&[NAME_IN_PATH]);
    vec![
        Endpoint::new("GET", "/v2/topics", Access::Read, tag, "List the URL groups")
            .alias("/v1/topics")
            .with(LIST_PAGE)
            .answers(200, "The groups, by name.", list_of("UrlGroup")),
        one("GET", "/v2/topics/{name}", Access::Read, "Look at a URL group")
            .alias("/v1/topics/{name}")
            .answers(200, "The group.", reference("UrlGroup"))
            .errors(&[404]),
        one("DELETE", "/v2/topics/{name}", Access::Write, "Remove a URL group, or with a body endpoints of it")
            .alias("/v1/topics/{name}")
            .body(RequestBody::OptionalJson(removed.clone()))
            .answers(200, "It is gone; also when there was none.", done())
            .errors(&[404]),
        one("PATCH", "/v2/topics/{name}", Access::Write, "Replace a URL group's default headers")
            .body(RequestBody::Json(defaults))
            .answers(200, "It is so now.", done())
            .errors(&[404, 412]),
        one("POST", "/v2/topics/{name}/endpoints", Access::Write, "Add endpoints; makes the URL group")
            .alias("/v2/topics/{name}")
            .body(RequestBody::Json(added))
            .answers(200, "It is so now.", done())
            .errors(&[412]),
        one("DELETE", "/v2/topics/{name}/endpoints", Access::Write, "Remove endpoints; the group goes with the last")
            .body(RequestBody::Json(removed))
            .answers(200, "It is so now.", done())
            .errors(&[404]),
    ]
}

fn dlq() -> Vec<Endpoint> {
    let tag = "DLQ";
    // Of runs with `source=workflow`.
    let either = json!({ "anyOf": [reference("DeadLetter"), reference("FailedRun")] });
    let messages = json!({ "type": "array", "items": either });
    let page = object(&["messages"], &[("messages", messages), ("cursor", text())]);
    let deleted = || object(&["deleted"], &[("deleted", whole()), ("cursor", text())]);
    let retried = object(&["responses"], &[("responses", list_of("Published")), ("cursor", text())]);
    let begun = || object(&["actionId", "total"], &[("actionId", text()), ("total", whole())]);
    let causes = [
        ("causes", list_of("Cause")),
        ("leftOut", whole()),
        ("looked", whole()),
        ("more", json!({ "type": "boolean" })),
    ];
    vec![
        Endpoint::new("GET", "/v2/dlq", Access::Read, tag, "List dead letters")
            .alias("/v2/dlq/messages")
            .with(&dlq_list())
            .answers(200, "A page.", page),
        Endpoint::new("GET", "/v2/dlq/causes", Access::Read, tag, "Group the newest dead letters by what they died of")
            .with(&dlq_selection())
            .answers(
                200,
                "The causes of most dead letters first.",
                object(&causes.each_ref().map(|(name, _)| *name), &causes),
            ),
        Endpoint::new(
            "DELETE",
            "/v2/dlq",
            Access::Write,
            tag,
            "Delete dead letters, a page at a time or in the background",
        )
        .with(&dlq_filters())
        .with(DLQ_BULK)
        .body(RequestBody::OptionalJson(reference("Filters")))
        .answers(200, "How many are gone.", deleted())
        .answers(202, "With async: what was begun, and how many match.", begun())
        .errors(&[412]),
        Endpoint::new(
            "POST",
            "/v2/dlq/retry",
            Access::Write,
            tag,
            "Publish dead letters again, a page at a time or in the background",
        )
        .with(&dlq_filters())
        .with(DLQ_BULK)
        .with(DELIVERY)
        .with(ONCE)
        .body(RequestBody::OptionalJson(reference("Filters")))
        .answers(201, "The new messages.", retried)
        .answers(202, "With async: what was begun, and how many match.", begun())
        .errors(&[404, 412]),
        Endpoint::new("POST", "/v2/dlq/retry/{id}", Access::Write, tag, "Publish a dead letter again")
            .with(&[ID])
            .with(DELIVERY)
            .with(ONCE)
            .answers(201, "The new message.", reference("Published"))
            .errors(&[404, 412]),
        Endpoint::new("GET", "/v2/dlq/{id}", Access::Read, tag, "Look at a dead letter")
            .with(&[ID])
            .answers(200, "The dead letter.", reference("DeadLetter"))
            .errors(&[404]),
        Endpoint::new("DELETE", "/v2/dlq/{id}", Access::Write, tag, "Delete a dead letter")
            .alias("/v2/dlq/messages/{id}")
            .with(&[ID])
            .answers(200, "It is gone.", deleted())
            .errors(&[404]),
    ]
}

fn logs() -> Vec<Endpoint> {
    let group = object(&["messageId", "events"], &[("messageId", text()), ("events", list_of("LogLine"))]);
    let fields = [
        ("logs", list_of("LogLine")),
        ("events", list_of("LogLine")),
        ("messages", json!({ "type": "array", "items": group })),
        ("cursor", text()),
    ];
    vec![
        Endpoint::new("GET", "/v2/logs", Access::Read, "Logs", "List what happened to messages")
            .alias("/v2/events")
            .alias("/v1/logs")
            .alias("/v1/events")
            .with(&log_filters())
            .answers(200, "A page.", object(&["logs", "events"], &fields)),
        Endpoint::new("GET", "/v2/events/stream", Access::Read, "Logs", "Follow what happens to messages")
            .with(&stream_filters())
            .answers_text(200, "Events `line`, whose data is a LogLine, and `missed`.", "text/event-stream"),
    ]
}

fn keys() -> Vec<Endpoint> {
    let tag = "Signing keys";
    vec![
        Endpoint::new("GET", "/v2/keys", Access::Write, tag, "Show the keys that sign deliveries")
            .alias("/v1/keys")
            .answers(200, "The keys.", reference("Keys")),
        Endpoint::new("POST", "/v2/keys/rotate", Access::Write, tag, "Make the next key the current one")
            .alias("/v1/keys/rotate")
            .alias("/v2/rotate")
            .answers(200, "The new keys.", reference("Keys")),
    ]
}

fn trying() -> Vec<Endpoint> {
    let forgotten = object(&["deleted"], &[("deleted", whole())]);
    vec![
        Endpoint::new("GET", "/v2/retryDelay", Access::Read, "Publishing", "When a message would be tried again")
            .with(RETRY_DELAY)
            .answers(200, "The plan, if no receiver names a time.", reference("RetryPlan"))
            .errors(&[412]),
        Endpoint::new("GET", "/v2/receiver", Access::Read, "Test receiver", "What the test receiver has received")
            .answers(200, "Its URL for this tenant, and the last deliveries, newest first.", reference("TestReceiver"))
            .errors(&[404]),
        Endpoint::new("DELETE", "/v2/receiver", Access::Write, "Test receiver", "Forget what it has received")
            .answers(200, "How many deliveries are forgotten.", forgotten)
            .errors(&[404]),
        Endpoint::new("GET", "/v2/settings", Access::Read, "Operators", "The configuration in effect, without secrets")
            .answers(200, "It, and the tenant's own tokens by name.", reference("Settings")),
    ]
}

fn language_model() -> Vec<Endpoint> {
    let path = "/llm/v1/chat/completions";
    let summary = "Pass a request on to the operator's language model; the answer is what it says";
    vec![
        Endpoint::new("POST", path, Access::Write, "Language model", summary)
            .body(RequestBody::Json(json!({ "type": "object" })))
            .answers(200, "The answer of the model; with stream, as server-sent events.", json!({}))
            .errors(&[404, 502]),
    ]
}

fn operators() -> Vec<Endpoint> {
    let status = |status: &str| object(&["status"], &[("status", json!({ "const": status }))]);
    let endpoint = |path, access, summary| Endpoint::new("GET", path, access, "Operators", summary);
    vec![
        endpoint("/v2/stats", Access::Read, "How the tenant stands, and the last five minutes second by second")
            .answers(200, "Figures.", reference("Stats")),
        endpoint("/health", Access::Open, "Whether the process answers").answers(200, "It does.", status("ok")),
        endpoint("/ready", Access::Open, "Whether messages are accepted").answers(200, "They are.", status("ready")),
        endpoint("/metrics", Access::Metrics, "Figures for Prometheus")
            .answers_text(200, "Prometheus text.", "text/plain; version=0.0.4; charset=utf-8")
            .errors(&[404]),
        endpoint("/openapi.json", Access::Open, "This document").answers(200, "It.", json!({ "type": "object" })),
    ]
}
