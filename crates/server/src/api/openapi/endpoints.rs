//! Every endpoint of the router, by resource and in its order.

use super::parameters::{
    BULK_ACTIONS, DELIVERY, DESTINATION, DLQ_BULK, FORECAST, ID, KEY, LIST_PAGE, NAME_IN_PATH, NEW_CRON, ONCE, PIN,
    Parameter, QUEUE, RETRY_DELAY, SCHEDULE, SEARCH, TRIM_BODY, UNPIN, cancel_filters, dlq_filters, dlq_list,
    dlq_selection, log_filters, stream_filters,
};
use super::schemas::{done, list_of, object, reference, text};
use super::{Endpoint, RequestBody, runs, workflows};
use posthaste_api_types::bulk_action::{BegunBulkAction, BulkAction, BulkActionPage};
use posthaste_api_types::cause::Causes;
use posthaste_api_types::flow_control::{FlowControlKey, GlobalParallelism};
use posthaste_api_types::keys::Keys;
use posthaste_api_types::log::LogPage;
use posthaste_api_types::message::{Cancelled, DeadLetter, Deleted, Message, Published, Retried, SentNow};
use posthaste_api_types::queue::Queue;
use posthaste_api_types::receiver::{Cleared, TestReceiver};
use posthaste_api_types::retry_plan::RetryPlan;
use posthaste_api_types::schedule::{Forecast, Schedule, ScheduleId, ScheduleRun};
use posthaste_api_types::settings::Settings;
use posthaste_api_types::stats::Stats;
use posthaste_api_types::url_group::UrlGroup;
use posthaste_api_types::why::Why;
use posthaste_api_types::{schema, url_group};
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
    let endpoint = |path, summary| Endpoint::new("POST", path, "Publishing", summary);
    let one_or_group = || json!({ "anyOf": [schema::reference::<Published>(), schema::list::<Published>(), schema::of::<ScheduleId>()] });
    let refused = object(&["error"], &[("error", text())]);
    let results = json!({ "type": "array", "items": { "anyOf": [schema::reference::<Published>(), schema::list::<Published>(), refused] } });
    let publish = |endpoint: Endpoint| {
        endpoint
            .with(DELIVERY)
            .with(ONCE)
            .body(RequestBody::Raw)
            .answers(200, "The stored message, or one for each endpoint of a URL group.", one_or_group())
            .answers(202, "Duplicates only. Nothing new was stored.", one_or_group())
            .errors(&[404, 412])
    };
    vec![
        publish(endpoint("/v2/publish/{destination}", "Publish a message to a URL, a URL group or api/llm"))
            .route("/v2/publish/{*destination}")
            .alias_of_route("/v1/publish/{*destination}", "/v1/publish/{destination}")
            .with(SCHEDULE)
            .with(&[DESTINATION])
            .answers(201, "The schedule that was created, if the request has `Upstash-Cron`.", one_or_group()),
        endpoint("/v2/publish", "Rejected: the destination is missing").alias("/v1/publish"),
        publish(endpoint("/v2/enqueue/{queue}/{destination}", "Publish a message to a queue"))
            .route("/v2/enqueue/{queue}/{*destination}")
            .with(&[QUEUE, DESTINATION]),
        endpoint("/v2/enqueue", "Rejected: the queue is missing"),
        endpoint("/v2/enqueue/{queue}", "Rejected: the destination is missing").with(&[QUEUE]),
        endpoint("/v2/batch", "Publish a batch of messages")
            .body(RequestBody::Json(list_of("BatchItem")))
            .answers(200, "One result for each item, in the same order.", results.clone())
            .answers(202, "Duplicates only. Nothing new was stored.", results)
            .errors(&[404, 412]),
    ]
}

fn messages() -> Vec<Endpoint> {
    let tag = "Messages";
    vec![
        Endpoint::new("GET", "/v2/messages/{id}", tag, "Get a message")
            .alias("/v1/messages/{id}")
            .with(&[ID])
            .answers(200, "The message.", schema::reference::<Message>())
            .errors(&[404]),
        Endpoint::new("DELETE", "/v2/messages/{id}", tag, "Cancel a message")
            .alias("/v1/messages/{id}")
            .with(&[ID])
            .answers(202, "Cancelled. A running attempt finishes first.", schema::reference::<Cancelled>())
            .errors(&[404]),
        Endpoint::new("POST", "/v2/messages/{id}/retry", tag, "Send a delayed or retrying message now")
            .with(&[ID])
            .answers(200, "The message is due and starts as soon as its limits allow.", schema::of::<SentNow>())
            .errors(&[404]),
        Endpoint::new("GET", "/v2/messages/{id}/why", tag, "Explain what a message is waiting for or how it ended")
            .with(&[ID])
            .answers(200, "One sentence, and the facts it is made of.", schema::reference::<Why>())
            .errors(&[404]),
        Endpoint::new("DELETE", "/v2/messages", tag, "Cancel messages that match filters, or all messages")
            .with(&cancel_filters())
            .body(RequestBody::OptionalJson(reference("Filters")))
            .answers(
                202,
                "Number of cancelled messages; with `async`, number of matches.",
                schema::reference::<Cancelled>(),
            )
            .errors(&[412]),
        Endpoint::new("GET", "/v2/bulkActions", tag, "List bulk actions").with(BULK_ACTIONS).answers(
            200,
            "One page, newest first.",
            schema::of::<BulkActionPage>(),
        ),
        Endpoint::new("GET", "/v2/bulkActions/{id}", tag, "Get a bulk action")
            .with(&[ID])
            .answers(200, "The bulk action and its progress.", schema::reference::<BulkAction>())
            .errors(&[404]),
        Endpoint::new("DELETE", "/v2/bulkActions/{id}", tag, "Stop a bulk action")
            .with(&[ID])
            .answers(200, "The stopped bulk action. Completed work is not undone.", schema::reference::<BulkAction>())
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
        Endpoint::new("POST", path, tag, summary).with(&[NAME_IN_PATH]).answers(200, "Done.", done()).errors(&[404])
    };
    vec![
        Endpoint::new("GET", "/v2/queues", tag, "List queues").with(LIST_PAGE).answers(
            200,
            "Queues, sorted by name.",
            schema::list::<Queue>(),
        ),
        Endpoint::new("POST", "/v2/queues", tag, "Create or update a queue")
            .body(RequestBody::Json(object(&["queueName"], &wanted)))
            .answers(200, "Done.", done())
            .errors(&[412]),
        Endpoint::new("GET", "/v2/queues/{name}", tag, "Get a queue")
            .with(&[NAME_IN_PATH])
            .answers(200, "The queue.", schema::reference::<Queue>())
            .errors(&[404]),
        Endpoint::new("DELETE", "/v2/queues/{name}", tag, "Delete a queue and cancel its messages")
            .with(&[NAME_IN_PATH])
            .answers(
                200,
                "Number of cancelled messages; 0 if the queue does not exist.",
                schema::reference::<Cancelled>(),
            ),
        switch("/v2/queues/{name}/pause", "Pause a queue"),
        switch("/v2/queues/{name}/resume", "Resume a queue"),
    ]
}

fn schedules() -> Vec<Endpoint> {
    let tag = "Schedules";
    let rest = "/v2/schedules/{*rest}";
    let switch = |method, path, summary| {
        Endpoint::new(method, path, tag, summary).route(rest).with(&[ID]).answers(200, "Done.", done()).errors(&[404])
    };
    vec![
        Endpoint::new("GET", "/v2/schedules", tag, "List schedules")
            .alias("/v1/schedules")
            .with(&[TRIM_BODY])
            .with(LIST_PAGE)
            .answers(200, "Schedules, sorted by id.", schema::list::<Schedule>()),
        Endpoint::new("POST", "/v2/schedules", tag, "Rejected: the destination is missing").errors(&[404]),
        Endpoint::new("POST", "/v2/schedules/{destination}", tag, "Create or replace a schedule")
            .route(rest)
            .with(&[DESTINATION])
            .with(SCHEDULE)
            .with(DELIVERY)
            .body(RequestBody::Raw)
            .answers(201, "The id of the stored schedule.", schema::of::<ScheduleId>())
            .errors(&[404, 412]),
        Endpoint::new("GET", "/v2/schedules/{id}", tag, "Get a schedule")
            .route(rest)
            .alias_of_route("/v1/schedules/{*rest}", "/v1/schedules/{id}")
            .with(&[ID, TRIM_BODY])
            .answers(200, "The schedule.", schema::reference::<Schedule>())
            .errors(&[404]),
        Endpoint::new("DELETE", "/v2/schedules/{id}", tag, "Delete a schedule, but not its messages")
            .route(rest)
            .alias_of_route("/v1/schedules/{*rest}", "/v1/schedules/{id}")
            .with(&[ID])
            .answers(200, "Deleted.", done())
            .errors(&[404]),
        Endpoint::new("PATCH", "/v2/schedules/{id}", tag, "Change the cron expression of a schedule")
            .route(rest)
            .with(&[ID])
            .with(NEW_CRON)
            .answers(200, "The id of the updated schedule.", schema::of::<ScheduleId>())
            .errors(&[404]),
        Endpoint::new("POST", "/v2/schedules/{id}/run", tag, "Run a schedule now")
            .route(rest)
            .with(&[ID])
            .answers(201, "The messages that were published.", schema::of::<ScheduleRun>())
            .errors(&[404, 412]),
        Endpoint::new("GET", "/v2/cron", tag, "Preview when a cron expression fires").with(FORECAST).answers(
            200,
            "The next firing times.",
            schema::reference::<Forecast>(),
        ),
        switch("POST", "/v2/schedules/{id}/pause", "Pause a schedule"),
        switch("PATCH", "/v2/schedules/{id}/pause", "Pause a schedule"),
        switch("POST", "/v2/schedules/{id}/resume", "Resume a schedule"),
        switch("PATCH", "/v2/schedules/{id}/resume", "Resume a schedule"),
    ]
}

fn flow_control() -> Vec<Endpoint> {
    let tag = "Flow control";
    let edit = |path, summary, parameters: &[Parameter]| {
        Endpoint::new("POST", path, tag, summary)
            .route("/v2/flowControl/{*key}")
            .with(&[KEY])
            .with(parameters)
            .answers(200, "Done.", done())
            .errors(&[404, 412])
    };
    vec![
        Endpoint::new("GET", "/v2/flowControl", tag, "List flow-control keys").with(SEARCH).with(LIST_PAGE).answers(
            200,
            "Flow-control keys.",
            schema::list::<FlowControlKey>(),
        ),
        Endpoint::new("GET", "/v2/flowControl/{key}", tag, "Get a flow-control key")
            .route("/v2/flowControl/{*key}")
            .with(&[KEY])
            .answers(200, "The flow-control key.", schema::reference::<FlowControlKey>())
            .errors(&[404]),
        edit("/v2/flowControl/{key}/pause", "Pause a flow-control key", &[]),
        edit("/v2/flowControl/{key}/resume", "Resume a flow-control key", &[]),
        edit("/v2/flowControl/{key}/pin", "Pin limits, so messages cannot change them", PIN),
        edit("/v2/flowControl/{key}/unpin", "Unpin limits, so messages can change them again", UNPIN),
        edit("/v2/flowControl/{key}/resetRate", "Reset the rate of a flow-control key", &[]),
        edit("/v2/flowControl/{key}/reset", "Reset the rate and the parallelism of a flow-control key", &[]),
        Endpoint::new("GET", "/v2/globalParallelism", tag, "Get the number of deliveries in flight").answers(
            200,
            "Maximum and current number of deliveries in flight.",
            schema::of::<GlobalParallelism>(),
        ),
    ]
}

fn url_groups() -> Vec<Endpoint> {
    let tag = "URL groups";
    let some = |item: Value| json!({ "type": "array", "items": item, "minItems": 1 });
    let added = object(&["endpoints"], &[("endpoints", some(schema::reference::<url_group::Endpoint>()))]);
    let removed = object(&[], &[("url", text()), ("name", text())]);
    let removed = object(&["endpoints"], &[("endpoints", some(removed))]);
    let header_value = json!({ "anyOf": [text(), { "type": "array", "items": text() }] });
    let defaults =
        object(&["headers"], &[("headers", json!({ "type": "object", "additionalProperties": header_value }))]);
    let one = |method, path, summary| Endpoint::new(method, path, tag, summary).with(&[NAME_IN_PATH]);
    vec![
        Endpoint::new("GET", "/v2/topics", tag, "List URL groups").alias("/v1/topics").with(LIST_PAGE).answers(
            200,
            "URL groups, sorted by name.",
            schema::list::<UrlGroup>(),
        ),
        one("GET", "/v2/topics/{name}", "Get a URL group")
            .alias("/v1/topics/{name}")
            .answers(200, "The URL group.", schema::reference::<UrlGroup>())
            .errors(&[404]),
        one("DELETE", "/v2/topics/{name}", "Delete a URL group, or the endpoints named in the body")
            .alias("/v1/topics/{name}")
            .body(RequestBody::OptionalJson(removed.clone()))
            .answers(200, "Deleted, or the group did not exist.", done())
            .errors(&[404]),
        one("PATCH", "/v2/topics/{name}", "Replace the default headers of a URL group")
            .body(RequestBody::Json(defaults))
            .answers(200, "Done.", done())
            .errors(&[404, 412]),
        one(
            "POST",
            "/v2/topics/{name}/endpoints",
            "Add endpoints to a URL group, which is created if it does not exist",
        )
        .alias("/v2/topics/{name}")
        .body(RequestBody::Json(added))
        .answers(200, "Done.", done())
        .errors(&[412]),
        one("DELETE", "/v2/topics/{name}/endpoints", "Remove endpoints; removing the last one deletes the URL group")
            .body(RequestBody::Json(removed))
            .answers(200, "Done.", done())
            .errors(&[404]),
    ]
}

fn dlq() -> Vec<Endpoint> {
    let tag = "DLQ";
    // Of runs with `source=workflow`.
    let either = json!({ "anyOf": [schema::reference::<DeadLetter>(), reference("FailedRun")] });
    let messages = json!({ "type": "array", "items": either });
    let page = object(&["messages"], &[("messages", messages), ("cursor", text())]);
    let begun = schema::of::<BegunBulkAction>;
    vec![
        Endpoint::new("GET", "/v2/dlq", tag, "List dead letters").alias("/v2/dlq/messages").with(&dlq_list()).answers(
            200,
            "One page of dead letters.",
            page,
        ),
        Endpoint::new("GET", "/v2/dlq/causes", tag, "Group the newest dead letters by cause")
            .with(&dlq_selection())
            .answers(200, "Causes, those with the most dead letters first.", schema::of::<Causes>()),
        Endpoint::new("DELETE", "/v2/dlq", tag, "Delete dead letters by page, or in the background")
            .with(&dlq_filters())
            .with(DLQ_BULK)
            .body(RequestBody::OptionalJson(reference("Filters")))
            .answers(200, "Number of deleted dead letters.", schema::of::<Deleted>())
            .answers(202, "With `async`: the id of the bulk action and the number of matches.", begun())
            .errors(&[412]),
        Endpoint::new("POST", "/v2/dlq/retry", tag, "Retry dead letters by page, or in the background")
            .with(&dlq_filters())
            .with(DLQ_BULK)
            .with(DELIVERY)
            .with(ONCE)
            .body(RequestBody::OptionalJson(reference("Filters")))
            .answers(201, "The messages that were published again.", schema::of::<Retried>())
            .answers(202, "With `async`: the id of the bulk action and the number of matches.", begun())
            .errors(&[404, 412]),
        Endpoint::new("POST", "/v2/dlq/retry/{id}", tag, "Retry a dead letter")
            .with(&[ID])
            .with(DELIVERY)
            .with(ONCE)
            .answers(201, "The message that was published again.", schema::reference::<Published>())
            .errors(&[404, 412]),
        Endpoint::new("GET", "/v2/dlq/{id}", tag, "Get a dead letter")
            .with(&[ID])
            .answers(200, "The dead letter.", schema::reference::<DeadLetter>())
            .errors(&[404]),
        Endpoint::new("DELETE", "/v2/dlq/{id}", tag, "Delete a dead letter")
            .alias("/v2/dlq/messages/{id}")
            .with(&[ID])
            .answers(200, "Deleted.", schema::of::<Deleted>())
            .errors(&[404]),
    ]
}

fn logs() -> Vec<Endpoint> {
    vec![
        Endpoint::new("GET", "/v2/logs", "Logs", "List log lines")
            .alias("/v2/events")
            .alias("/v1/logs")
            .alias("/v1/events")
            .with(&log_filters())
            .answers(200, "One page of log lines.", schema::of::<LogPage>()),
        Endpoint::new("GET", "/v2/events/stream", "Logs", "Stream log lines").with(&stream_filters()).answers_text(
            200,
            "Server-sent events: `line` with a LogLine, and `missed` with the number of skipped lines.",
            "text/event-stream",
        ),
    ]
}

fn keys() -> Vec<Endpoint> {
    let tag = "Signing keys";
    vec![
        Endpoint::new("GET", "/v2/keys", tag, "Get the signing keys").alias("/v1/keys").answers(
            200,
            "The signing keys.",
            schema::reference::<Keys>(),
        ),
        Endpoint::new("POST", "/v2/keys/rotate", tag, "Rotate the signing keys: the next key becomes the current one")
            .alias("/v1/keys/rotate")
            .alias("/v2/rotate")
            .answers(200, "The new signing keys.", schema::reference::<Keys>()),
    ]
}

fn trying() -> Vec<Endpoint> {
    vec![
        Endpoint::new("GET", "/v2/retryDelay", "Publishing", "Preview when a message is retried")
            .with(RETRY_DELAY)
            .answers(
                200,
                "Time of each attempt, if the receiver sends no `Retry-After`.",
                schema::reference::<RetryPlan>(),
            )
            .errors(&[412]),
        Endpoint::new(
            "GET",
            "/v2/receiver",
            "Test receiver",
            "List the deliveries that the test receiver has received",
        )
        .answers(
            200,
            "URL of the receiver for this tenant, and its last deliveries, newest first.",
            schema::reference::<TestReceiver>(),
        )
        .errors(&[404]),
        Endpoint::new("DELETE", "/v2/receiver", "Test receiver", "Clear the deliveries of the test receiver")
            .answers(200, "Number of cleared deliveries.", schema::of::<Cleared>())
            .errors(&[404]),
        Endpoint::new("GET", "/v2/settings", "Operators", "Get the effective configuration, without secrets").answers(
            200,
            "The configuration, and the names of the tenant's tokens.",
            schema::reference::<Settings>(),
        ),
    ]
}

fn language_model() -> Vec<Endpoint> {
    let path = "/llm/v1/chat/completions";
    let summary = "Forward a chat completion request to the language model of the operator";
    vec![
        Endpoint::new("POST", path, "Language model", summary)
            .body(RequestBody::Json(json!({ "type": "object" })))
            .answers(200, "The response of the model; server-sent events if the request has `stream`.", json!({}))
            .errors(&[404, 502]),
    ]
}

fn operators() -> Vec<Endpoint> {
    let status = |status: &str| object(&["status"], &[("status", json!({ "const": status }))]);
    let endpoint = |path, summary| Endpoint::new("GET", path, "Operators", summary);
    vec![
        endpoint("/v2/stats", "Get the tenant's statistics, and the last 5 minutes by second").answers(
            200,
            "Statistics of the tenant.",
            schema::reference::<Stats>(),
        ),
        endpoint("/health", "Check that the process is alive").answers(200, "The process is alive.", status("ok")),
        endpoint("/ready", "Check that the server accepts messages").answers(
            200,
            "The server accepts messages.",
            status("ready"),
        ),
        endpoint("/metrics", "Get metrics for Prometheus")
            .answers_text(200, "Metrics in the Prometheus text format.", "text/plain; version=0.0.4; charset=utf-8")
            .errors(&[404]),
        endpoint("/openapi.json", "Get this OpenAPI document").answers(
            200,
            "The OpenAPI document.",
            json!({ "type": "object" }),
        ),
    ]
}
