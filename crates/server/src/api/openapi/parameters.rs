//! The parameters of requests, in the groups in which endpoints have them.

use serde_json::{Value, json};

/// Where a parameter stands.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    Path,
    Query,
    Header,
}

/// What a parameter may be.
#[derive(Clone, Copy)]
pub(super) enum Kind {
    Text,
    /// One or more texts: repeated, or separated by commas.
    Texts,
    /// A whole number from the first to the second.
    Whole(i64, i64),
    /// One or more whole numbers.
    Wholes,
    Boolean,
    OneOf(&'static [&'static str]),
    /// A text of this form.
    Pattern(&'static str),
}

/// One parameter.
#[derive(Clone, Copy)]
pub(super) struct Parameter {
    pub(super) name: &'static str,
    pub(super) place: Place,
    kind: Kind,
    meaning: &'static str,
}

impl Parameter {
    pub(super) fn describe(&self) -> Value {
        let schema = match self.kind {
            Kind::Text => json!({ "type": "string", "minLength": 1 }),
            Kind::Texts => json!({ "type": "array", "items": { "type": "string", "minLength": 1 }, "minItems": 1 }),
            Kind::Whole(min, max) => json!({ "type": "integer", "minimum": min, "maximum": max }),
            Kind::Wholes => {
                json!({ "type": "array", "items": { "type": "integer", "minimum": 0, "maximum": 999 }, "minItems": 1 })
            }
            Kind::Boolean => json!({ "type": "boolean" }),
            Kind::OneOf(values) => json!({ "type": "string", "enum": values }),
            Kind::Pattern(pattern) => json!({ "type": "string", "pattern": pattern }),
        };
        let place = match self.place {
            Place::Path => "path",
            Place::Query => "query",
            Place::Header => "header",
        };
        let required = self.place == Place::Path;
        json!({ "name": self.name, "in": place, "required": required, "schema": schema, "description": self.meaning })
    }
}

const fn path(name: &'static str, kind: Kind, meaning: &'static str) -> Parameter {
    Parameter { name, place: Place::Path, kind, meaning }
}

const fn query(name: &'static str, kind: Kind, meaning: &'static str) -> Parameter {
    Parameter { name, place: Place::Query, kind, meaning }
}

const fn header(name: &'static str, kind: Kind, meaning: &'static str) -> Parameter {
    Parameter { name, place: Place::Header, kind, meaning }
}

const NAME: Kind = Kind::Pattern("^[A-Za-z0-9_.-]{1,256}$");
const DURATION: Kind = Kind::Pattern("^([0-9]{1,8}|([0-9]{1,4}[smhd]){1,4})$");
const TIME: Kind = Kind::Whole(0, i64::MAX);

pub(super) const DESTINATION: Parameter = path(
    "destination",
    Kind::Text,
    "A URL (as it is, or percent-encoded as a whole), the name of a URL group, or `api/llm`. The query of the request becomes the query of the URL.",
);
pub(super) const QUEUE: Parameter = path("queue", NAME, "Name of the queue, which is created if it does not exist.");
pub(super) const ID: Parameter = path("id", Kind::Text, "Id of the object.");
pub(super) const NAME_IN_PATH: Parameter = path("name", NAME, "Name of the object.");
pub(super) const KEY: Parameter = path("key", Kind::Text, "Flow-control key.");

/// How a message is to be delivered. `Upstash-Forward-*`, `Upstash-Callback-*` and
/// `Upstash-Failure-Callback-*` have no fixed names, so they cannot be listed.
pub(super) const DELIVERY: &[Parameter] = &[
    header(
        "Upstash-Method",
        Kind::OneOf(&["GET", "POST", "PUT", "PATCH", "DELETE"]),
        "HTTP method of the delivery. Default: POST.",
    ),
    header(
        "Upstash-Delay",
        DURATION,
        "Delay before the first attempt, such as 50s or 1d12h. A number without a unit is in seconds. Default: none; maximum: 365d.",
    ),
    header("Upstash-Retries", Kind::Whole(0, 1_000), "Maximum number of retries. Default: 3."),
    header(
        "Upstash-Retry-Delay",
        Kind::Text,
        "Expression for the delay before each retry, in milliseconds, such as `1000 * (1 + retried)`. Default: exponential back-off; maximum: 1 day.",
    ),
    header("Upstash-Timeout", DURATION, "Time limit of one attempt, from 1s to 2h. Default: 2h."),
    header(
        "Upstash-Callback",
        Kind::Text,
        "URL that is called with the response of each attempt. `Upstash-Callback-*` headers configure it.",
    ),
    header(
        "Upstash-Failure-Callback",
        Kind::Text,
        "URL that is called if the message fails permanently. `Upstash-Failure-Callback-*` headers configure it.",
    ),
    header("Upstash-Label", Kind::Text, "Labels to filter by, separated by commas. At most 32, of 256 bytes each."),
    header(
        "Upstash-Redact-Fields",
        Kind::Text,
        "Parts of the message to redact in API responses: `body`, `header` or `header[Name]`, separated by commas.",
    ),
    header(
        "Upstash-Flow-Control-Key",
        Kind::Text,
        "Flow-control key. Messages with the same key share limits. At most 256 bytes.",
    ),
    header(
        "Upstash-Flow-Control-Value",
        Kind::Text,
        "Limits of the flow-control key: `rate=N`, `period=DURATION` and `parallelism=N`, separated by commas. Default period: 1s.",
    ),
    header("Upstash-Header-Forward", Kind::Boolean, "Forward all plain headers of this request. Default: false."),
];
/// When it is published once.
pub(super) const ONCE: &[Parameter] = &[
    header(
        "Upstash-Not-Before",
        TIME,
        "Earliest time of the first attempt, in Unix seconds. Takes precedence over `Upstash-Delay`. At most 365 days ahead.",
    ),
    header(
        "Upstash-Deduplication-Id",
        Kind::Text,
        "Deduplication id, at most 1024 bytes. A second publish with this id within 10 minutes is a duplicate.",
    ),
    header(
        "Upstash-Content-Based-Deduplication",
        Kind::Boolean,
        "Deduplicate by destination, forwarded headers and body. Default: false.",
    ),
];
/// When it is published again and again.
pub(super) const SCHEDULE: &[Parameter] = &[
    header(
        "Upstash-Cron",
        Kind::Text,
        "Cron expression. `CRON_TZ=ZONE` before it sets the time zone. Default zone: UTC.",
    ),
    header(
        "Upstash-Schedule-Id",
        NAME,
        "Id of the schedule. A schedule with the same id is replaced. Default: a new id.",
    ),
    header("Upstash-Queue-Name", NAME, "Queue for the messages of the schedule."),
];

/// What a plan of retries is asked for.
pub(super) const RETRY_DELAY: &[Parameter] = &[
    query("expression", Kind::Text, "Expression as in `Upstash-Retry-Delay`. Default: exponential back-off."),
    query("retries", Kind::Whole(0, 1_000), "Number of retries, as in `Upstash-Retries`. Default: 3."),
];
/// What can be changed of a schedule.
pub(super) const NEW_CRON: &[Parameter] = &[header("Upstash-Cron", Kind::Text, "New cron expression.")];
/// When an expression fires.
pub(super) const FORECAST: &[Parameter] = &[
    query("expression", Kind::Text, "Cron expression. Required."),
    query("count", Kind::Whole(1, 100), "Number of firing times to return. Default: 10."),
    query("after", Kind::Whole(0, i64::MAX), "Return times after this one, in Unix milliseconds. Default: now."),
];

pub(super) const RUN: Parameter = path("run", Kind::Text, "Id of the workflow run, optionally percent-encoded.");
pub(super) const USER: Parameter = path("user", Kind::Text, "Name of the tenant.");
pub(super) const RUN_ID: Parameter =
    header("Upstash-Workflow-RunId", Kind::Text, "Id of the run, unique among active runs. Default: a new id.");
pub(super) const CANCEL: Parameter =
    query("cancel", Kind::Boolean, "`false` ends the run as a success, with the body as its result.");

/// How a run may be triggered: what a message can have, but for what a run does its own way.
pub(super) fn trigger() -> Vec<Parameter> {
    const NOT_OF_RUNS: [&str; 5] = [
        "Upstash-Method",
        "Upstash-Callback",
        "Upstash-Header-Forward",
        "Upstash-Deduplication-Id",
        "Upstash-Content-Based-Deduplication",
    ];
    let of_messages = DELIVERY.iter().chain(ONCE).copied();
    let mut parameters: Vec<Parameter> = of_messages.filter(|it| !NOT_OF_RUNS.contains(&it.name)).collect();
    parameters.push(RUN_ID);
    parameters.push(header(
        "Upstash-Workflow-Unknown-Sdk",
        Kind::Boolean,
        "Let the SDK of the endpoint trigger the run, whatever its version.",
    ));
    parameters
}

/// Which runs a bulk cancel means.
pub(super) fn run_filters() -> Vec<Parameter> {
    let mut parameters = vec![
        query("workflowRunIds", Kind::Texts, "Cancel these runs and ignore all other filters."),
        query("workflowRunId", Kind::Texts, "Only these runs, combined with the other filters."),
        query("workflowUrl", Kind::Texts, "Prefix of the workflow URL."),
        query(
            "workflowUrlExactMatch",
            Kind::Boolean,
            "Match `workflowUrl` exactly instead of as a prefix. Default: false.",
        ),
        query(
            "count",
            Kind::Whole(1, i64::MAX),
            "Maximum number of runs to cancel, oldest first. Default: 100; maximum: 500.",
        ),
    ];
    let names = ["label", "flowControlKey", "callerIp", "fromDate", "toDate"];
    parameters.extend(COMMON_FILTERS.into_iter().filter(|it| names.contains(&it.name)));
    parameters.extend(PLACE_FILTERS);
    parameters
}

const MESSAGE_IDS: Parameter = query("messageIds", Kind::Texts, "Message ids.");
const COMMON_FILTERS: [Parameter; 10] = [
    query("url", Kind::Texts, "Destination URL, exact match."),
    query("topicName", Kind::Texts, "URL group that the message was published to."),
    query("urlGroup", Kind::Texts, "Alias of `topicName`, for older SDKs."),
    query("queueName", Kind::Texts, "Queue of the message."),
    query("scheduleId", Kind::Texts, "Schedule that created the message."),
    query("label", Kind::Texts, "Labels; matches messages with any of them."),
    query("flowControlKey", Kind::Texts, "Flow-control key."),
    query("callerIp", Kind::Texts, "IP address that published the message."),
    query("fromDate", TIME, "Start of the time range, in Unix milliseconds, inclusive."),
    query("toDate", TIME, "End of the time range, in Unix milliseconds, inclusive."),
];
const PLACE_FILTERS: [Parameter; 2] = [
    query("host", Kind::Texts, "Host of the destination, with or without the port."),
    query("path", Kind::Texts, "Path of the destination, without the query."),
];
const PAGE: [Parameter; 2] = [
    query("cursor", Kind::Text, "Cursor from the previous page."),
    query("order", Kind::OneOf(&["latestFirst", "earliestFirst"]), "Sort order by time. Default: latestFirst."),
];
pub(super) const TRIM_BODY: Parameter = query(
    "trimBody",
    Kind::Whole(-1, i64::MAX),
    "Maximum number of bytes of each body; 0 or -1 omits bodies. Default: whole bodies.",
);

/// Which page of a bare list is meant; the header `Upstash-Cursor` of a response says where the next one begins.
pub(super) const LIST_PAGE: &[Parameter] = &[
    query("cursor", Kind::Text, "Cursor from the `Upstash-Cursor` header of the previous page."),
    query("count", Kind::Whole(1, i64::MAX), "Maximum number of items on the page. Default and maximum: 10000."),
];
/// The same of those who wait for an event.
pub(super) const WAITERS_PAGE: &[Parameter] = &[
    query("cursor", Kind::Text, "Cursor from the `Upstash-Cursor` header of the previous page."),
    query("count", Kind::Whole(1, i64::MAX), "Maximum number of items on the page. Default and maximum: 1000."),
];

/// Which messages a bulk cancel means.
pub(super) fn cancel_filters() -> Vec<Parameter> {
    let mut parameters = vec![MESSAGE_IDS];
    parameters.extend(COMMON_FILTERS);
    parameters.extend(PLACE_FILTERS);
    parameters.push(query(
        "count",
        Kind::Whole(1, 500),
        "Maximum number of messages to cancel, oldest first. Default: no limit.",
    ));
    parameters.push(query("async", Kind::Boolean, "Cancel in the background and respond immediately. Default: false."));
    parameters
}

/// Which dead letters are meant.
pub(super) fn dlq_selection() -> Vec<Parameter> {
    let mut parameters = vec![
        query("dlqIds", Kind::Texts, "Ids of dead letters."),
        query("messageId", Kind::Text, "Message id."),
        MESSAGE_IDS,
        query("responseStatus", Kind::Wholes, "Status of the last response; 0 if there was none."),
        query("cause", Kind::Texts, "Id of a cause, from `GET /v2/dlq/causes`."),
    ];
    parameters.extend(COMMON_FILTERS);
    parameters
}

/// Which dead letters are meant, a page at a time.
pub(super) fn dlq_filters() -> Vec<Parameter> {
    let mut parameters = dlq_selection();
    parameters.push(query(
        "count",
        Kind::Whole(1, i64::MAX),
        "Maximum number of dead letters on the page. Default and maximum: 100.",
    ));
    parameters.extend(PAGE);
    parameters
}

/// How many dead letters are dealt with at once.
pub(super) const DLQ_BULK: &[Parameter] = &[
    query(
        "async",
        Kind::Boolean,
        "Process all matches, or `count` of them, in the background and respond immediately. Default: false.",
    ),
    query("rate", Kind::Whole(1, 1_000), "With `async`: maximum number of dead letters per second. Default: no limit."),
];

pub(super) fn dlq_list() -> Vec<Parameter> {
    let mut parameters = dlq_filters();
    parameters.push(TRIM_BODY);
    parameters.push(query(
        "source",
        Kind::OneOf(&["workflow"]),
        "`workflow` lists failed workflow runs instead, with their own filters.",
    ));
    parameters
}

const STATES: [&str; 10] = [
    "CREATED",
    "ACTIVE",
    "ERROR",
    "RETRY",
    "DELIVERED",
    "FAILED",
    "CANCEL_REQUESTED",
    "CANCELED",
    "CANCELLED",
    "IN_PROGRESS",
];

/// Which log lines are meant.
pub(super) fn log_filters() -> Vec<Parameter> {
    let mut parameters = vec![
        query("messageId", Kind::Text, "Message id."),
        MESSAGE_IDS,
        query("state", Kind::OneOf(&STATES), "State of the line. `IN_PROGRESS` matches ACTIVE, RETRY and ERROR."),
        query("groupBy", Kind::OneOf(&["messageId"]), "Group the lines by message."),
        query(
            "sourceMessageId",
            Kind::Texts,
            "Messages that this message led to: its callbacks and its retries from the DLQ.",
        ),
        query(
            "scanLimit",
            Kind::Whole(1, i64::MAX),
            "End the page after this number of lines that do not match. Default and maximum: 500000.",
        ),
        query(
            "count",
            Kind::Whole(1, i64::MAX),
            "Maximum number of lines on the page. Default and maximum: 1000. With `groupBy`, number of messages; default: 10.",
        ),
        TRIM_BODY,
    ];
    parameters.extend(COMMON_FILTERS);
    parameters.extend(PLACE_FILTERS);
    parameters.extend(PAGE);
    parameters
}

/// Which log lines are meant as they come.
pub(super) fn stream_filters() -> Vec<Parameter> {
    let otherwise = ["groupBy", "count", "order", "cursor", TRIM_BODY.name];
    let mut parameters = log_filters();
    parameters.retain(|parameter| !otherwise.contains(&parameter.name));
    parameters.push(query(
        "trimBody",
        Kind::Whole(-1, i64::MAX),
        "Maximum number of bytes of each body; 0 or -1 omits bodies. Default: 4096.",
    ));
    parameters.push(query(
        "maxPerSecond",
        Kind::Whole(1, 1_000),
        "Maximum number of lines that the stream examines per second; more are skipped. Default: 1000.",
    ));
    parameters
}

/// What runs of workflows are found by.
const RUN_FILTERS: [Parameter; 10] = [
    query("workflowRunId", Kind::Texts, "Ids of runs."),
    query(
        "workflowCreatedAt",
        TIME,
        "Creation time of the run, in Unix milliseconds, to tell apart runs with the same id.",
    ),
    query("workflowUrl", Kind::Texts, "Workflow URL, exact match."),
    query("label", Kind::Texts, "Labels; matches runs with any of them."),
    query("flowControlKey", Kind::Texts, "Flow-control key."),
    query("callerIp", Kind::Texts, "IP address that triggered the run."),
    query("host", Kind::Texts, "Host of the workflow URL, with or without the port."),
    query("path", Kind::Texts, "Path of the workflow URL, without the query."),
    query(
        "fromDate",
        TIME,
        "Start of the time range, in Unix milliseconds, inclusive. Applies to the creation of the run; in the DLQ, to its failure.",
    ),
    query("toDate", TIME, "End of the time range, in Unix milliseconds, inclusive."),
];

/// States of runs and steps.
const RUN_LOG_STATES: [&str; 9] = [
    "RUN_STARTED",
    "RUN_SUCCESS",
    "RUN_FAILED",
    "RUN_CANCELED",
    "STEP_PROGRESS",
    "STEP_SUCCESS",
    "STEP_RETRY",
    "STEP_FAILED",
    "STEP_CANCELED",
];

/// Which runs a log is asked for.
pub(super) fn run_log_filters() -> Vec<Parameter> {
    let mut parameters = vec![
        query("groupBy", Kind::OneOf(&["workflowRunId"]), "Return runs with their steps instead of log lines."),
        query("state", Kind::OneOf(&RUN_LOG_STATES), "State of the run, or of the line."),
        query("messageId", Kind::Text, "Message id; matches the run that the message belongs to."),
        query("workflowRuns", Kind::Texts, "Runs, each as `id@createdAt`. All other filters are ignored."),
        query(
            "count",
            Kind::Whole(1, i64::MAX),
            "Maximum number of items on the page. Default and maximum: 10 runs or 1000 lines.",
        ),
        query("cursor", Kind::Text, "Cursor from the previous page."),
        query("usage", Kind::Boolean, "Include the usage and the limits of each run. Default: false."),
        TRIM_BODY,
    ];
    parameters.extend(RUN_FILTERS);
    parameters
}

/// Which failed runs are meant.
pub(super) fn failed_run_filters() -> Vec<Parameter> {
    let mut parameters = vec![
        query("dlqIds", Kind::Texts, "Ids of failed runs. All other filters are ignored."),
        query("url", Kind::Texts, "Alias of `workflowUrl`."),
        query("responseStatus", Kind::Wholes, "Status of the last response; 503 or 504 if there was none."),
        query("failureFunctionState", Kind::Texts, "State of the failure function."),
        query("failureCallbackState", Kind::Texts, "Alias of `failureFunctionState`."),
        query(
            "count",
            Kind::Whole(1, i64::MAX),
            "Maximum number of runs. Default and maximum: 100; for resume and restart: 50.",
        ),
        query("cursor", Kind::Text, "Cursor from the previous page."),
    ];
    parameters.extend(RUN_FILTERS);
    parameters
}

pub(super) fn failed_run_list() -> Vec<Parameter> {
    let mut parameters = failed_run_filters();
    parameters.push(TRIM_BODY);
    parameters
}

pub(super) const DLQ_ID: Parameter = path("id", Kind::Text, "The `dlqId` of the failed run.");
pub(super) const EVENT: Parameter = path("event", Kind::Text, "Id of the event. It can contain slashes.");

/// What may be chosen anew for a run that begins again.
pub(super) const RUN_OVERRIDES: &[Parameter] = &[
    header(
        "Upstash-Retries",
        Kind::Whole(0, 1_000),
        "Maximum number of retries of each delivery. Default: as in the failed run.",
    ),
    header(
        "Upstash-Retry-Delay",
        Kind::Text,
        "Expression for the delay before each retry, in milliseconds, such as `1000 * (1 + retried)`. Default: as in the failed run; maximum: 1 day.",
    ),
    header(
        "Upstash-Delay",
        DURATION,
        "Delay before the first delivery, such as 50s or 1d12h. A number without a unit is in seconds. Default: none; maximum: 365d.",
    ),
    header("Upstash-Label", Kind::Text, "Labels to filter by, separated by commas. At most 32, of 256 bytes each."),
    header(
        "Upstash-Flow-Control-Key",
        Kind::Text,
        "Flow-control key. Deliveries with the same key share limits. At most 256 bytes.",
    ),
    header(
        "Upstash-Flow-Control-Value",
        Kind::Text,
        "Limits of the flow-control key: `rate=N`, `period=DURATION` and `parallelism=N`, separated by commas. Default period: 1s.",
    ),
    header("Upstash-Failure-Callback", Kind::Text, "URL that is called if the new run fails."),
];

pub(super) const BULK_ACTIONS: &[Parameter] = &[
    query("cursor", Kind::Text, "Cursor from the previous page."),
    query(
        "count",
        Kind::Whole(1, i64::MAX),
        "Maximum number of bulk actions on the page. Default: 100; maximum: 1000.",
    ),
    query(
        "state",
        Kind::OneOf(&["IN_PROGRESS", "FINISHED"]),
        "Return only bulk actions in this state. A page may be empty while there is a cursor.",
    ),
];
pub(super) const SEARCH: &[Parameter] = &[query("search", Kind::Text, "Return only keys that contain this text.")];
pub(super) const PIN: &[Parameter] = &[
    query("parallelism", Kind::Whole(1, 1_000_000_000), "Maximum number of deliveries in flight."),
    query("rate", Kind::Whole(1, 1_000_000_000), "Maximum number of deliveries started per period."),
    query(
        "period",
        Kind::Whole(1, 604_800),
        "Length of the period in seconds. Requires `rate`. Default: 1; maximum: 604800 (7 days).",
    ),
];
pub(super) const UNPIN: &[Parameter] = &[
    query("parallelism", Kind::Boolean, "Unpin the parallelism."),
    query("rate", Kind::Boolean, "Unpin the rate and its period."),
];
