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
    "A URL, as it is or percent-encoded as a whole; the name of a URL group; or api/llm. Its own query is the query of the request.",
);
pub(super) const QUEUE: Parameter = path("queue", NAME, "The queue; made if there is none.");
pub(super) const ID: Parameter = path("id", Kind::Text, "The id, as the server gave it.");
pub(super) const NAME_IN_PATH: Parameter = path("name", NAME, "The name.");
pub(super) const KEY: Parameter = path("key", Kind::Text, "The flow-control key.");

/// How a message is to be delivered. `Upstash-Forward-*`, `Upstash-Callback-*` and
/// `Upstash-Failure-Callback-*` have no fixed names, so they cannot be listed.
pub(super) const DELIVERY: &[Parameter] = &[
    header("Upstash-Method", Kind::OneOf(&["GET", "POST", "PUT", "PATCH", "DELETE"]), "Method of the delivery."),
    header("Upstash-Delay", DURATION, "How long after now the first attempt is due."),
    header("Upstash-Retries", Kind::Whole(0, 1_000), "How many attempts may follow the first."),
    header("Upstash-Retry-Delay", Kind::Text, "Milliseconds between attempts, an expression over `retried`."),
    header("Upstash-Timeout", DURATION, "How long one attempt may take."),
    header("Upstash-Callback", Kind::Text, "URL that hears of every attempt; `Upstash-Callback-*` configures it."),
    header(
        "Upstash-Failure-Callback",
        Kind::Text,
        "URL that hears of the final failure; `Upstash-Failure-Callback-*` configures it.",
    ),
    header("Upstash-Label", Kind::Text, "Labels for filtering, separated by commas."),
    header("Upstash-Redact-Fields", Kind::Text, "What answers of the API hide: body, header, header[Name]."),
    header("Upstash-Flow-Control-Key", Kind::Text, "Messages with the same key share limits."),
    header("Upstash-Flow-Control-Value", Kind::Text, "The limits: parallelism=N, rate=N, period=DURATION."),
    header("Upstash-Header-Forward", Kind::Boolean, "Whether all headers of the request are sent on."),
];
/// When it is published once.
pub(super) const ONCE: &[Parameter] = &[
    header("Upstash-Not-Before", TIME, "Unix second before which nothing is attempted; wins over the delay."),
    header("Upstash-Deduplication-Id", Kind::Text, "A publish with the same id within 10 minutes is a duplicate."),
    header("Upstash-Content-Based-Deduplication", Kind::Boolean, "The same, by destination, headers and body."),
];
/// When it is published again and again.
pub(super) const SCHEDULE: &[Parameter] = &[
    header("Upstash-Cron", Kind::Text, "The cron expression, with an optional CRON_TZ= before it."),
    header("Upstash-Schedule-Id", NAME, "The id of the schedule; one of the same id is replaced."),
    header("Upstash-Queue-Name", NAME, "The queue that its messages are put into."),
];

/// What a plan of retries is asked for.
pub(super) const RETRY_DELAY: &[Parameter] = &[
    query("expression", Kind::Text, "As in Upstash-Retry-Delay; without it, the default back-off."),
    query("retries", Kind::Whole(0, 1_000), "As in Upstash-Retries."),
];
/// What can be changed of a schedule.
pub(super) const NEW_CRON: &[Parameter] = &[header("Upstash-Cron", Kind::Text, "The cron expression.")];
/// When an expression fires.
pub(super) const FORECAST: &[Parameter] = &[
    query("expression", Kind::Text, "The cron expression; required."),
    query("count", Kind::Whole(1, 100), "At most so many times; 10 unless it is said."),
    query(
        "after",
        Kind::Whole(0, i64::MAX),
        "Times after this one, in Unix milliseconds; after now unless it is said.",
    ),
];

pub(super) const RUN: Parameter = path("run", Kind::Text, "The id of a workflow run, as it is or percent-encoded.");
pub(super) const USER: Parameter = path("user", Kind::Text, "The tenant: the user that its token names.");
pub(super) const RUN_ID: Parameter = header(
    "Upstash-Workflow-RunId",
    Kind::Text,
    "The id of the run; made if there is none, unique while the run goes on.",
);
pub(super) const CANCEL: Parameter =
    query("cancel", Kind::Boolean, "false: the run has succeeded, and the body is its result.");

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
        "The endpoint may have any client: it is asked to trigger the run once more, its own way.",
    ));
    parameters
}

/// Which runs a bulk cancel means.
pub(super) fn run_filters() -> Vec<Parameter> {
    let mut parameters = vec![
        query("workflowRunIds", Kind::Texts, "These runs, whatever else is said."),
        query("workflowRunId", Kind::Texts, "These runs, if they match the other filters."),
        query("workflowUrl", Kind::Texts, "Runs whose URL begins like this."),
        query("workflowUrlExactMatch", Kind::Boolean, "Runs whose URL is exactly that."),
        query(
            "count",
            Kind::Whole(1, i64::MAX),
            "At most so many, the oldest first; 500 is the most, 100 the default.",
        ),
    ];
    let names = ["label", "flowControlKey", "callerIp", "fromDate", "toDate"];
    parameters.extend(COMMON_FILTERS.into_iter().filter(|it| names.contains(&it.name)));
    parameters.extend(PLACE_FILTERS);
    parameters
}

const MESSAGE_IDS: Parameter = query("messageIds", Kind::Texts, "These messages.");
const COMMON_FILTERS: [Parameter; 10] = [
    query("url", Kind::Texts, "The destination, exactly."),
    query("topicName", Kind::Texts, "The URL group it was published to."),
    query("urlGroup", Kind::Texts, "The same, as older SDKs say it."),
    query("queueName", Kind::Texts, "The queue it is in."),
    query("scheduleId", Kind::Texts, "The schedule that made it."),
    query("label", Kind::Texts, "Any label of the message."),
    query("flowControlKey", Kind::Texts, "Its flow-control key."),
    query("callerIp", Kind::Texts, "The address that published it."),
    query("fromDate", TIME, "Not before this Unix millisecond."),
    query("toDate", TIME, "Not after this Unix millisecond."),
];
const PLACE_FILTERS: [Parameter; 2] = [
    query("host", Kind::Texts, "Host of the destination, with or without its port."),
    query("path", Kind::Texts, "Path of the destination, without its query."),
];
const PAGE: [Parameter; 2] = [
    query("cursor", Kind::Text, "Where the page starts, as the page before said."),
    query("order", Kind::OneOf(&["latestFirst", "earliestFirst"]), "Which end comes first."),
];
pub(super) const TRIM_BODY: Parameter =
    query("trimBody", Kind::Whole(-1, i64::MAX), "Bytes of each body; 0 or -1 for none.");

/// Which page of a bare list is meant; the header `Upstash-Cursor` of a response says where the next one begins.
pub(super) const LIST_PAGE: &[Parameter] = &[
    query("cursor", Kind::Text, "Where the page starts: the Upstash-Cursor header of the page before."),
    query("count", Kind::Whole(1, i64::MAX), "At most so many; 10000 is the most, and the default."),
];
/// The same of those who wait for an event.
pub(super) const WAITERS_PAGE: &[Parameter] = &[
    query("cursor", Kind::Text, "Where the page starts: the Upstash-Cursor header of the page before."),
    query("count", Kind::Whole(1, i64::MAX), "At most so many; 1000 is the most, and the default."),
];

/// Which messages a bulk cancel means.
pub(super) fn cancel_filters() -> Vec<Parameter> {
    let mut parameters = vec![MESSAGE_IDS];
    parameters.extend(COMMON_FILTERS);
    parameters.extend(PLACE_FILTERS);
    parameters.push(query("count", Kind::Whole(1, 500), "At most so many, the oldest first."));
    parameters.push(query("async", Kind::Boolean, "Do it in the background and answer at once."));
    parameters
}

/// Which dead letters are meant.
pub(super) fn dlq_selection() -> Vec<Parameter> {
    let mut parameters = vec![
        query("dlqIds", Kind::Texts, "These dead letters."),
        query("messageId", Kind::Text, "This message."),
        MESSAGE_IDS,
        query("responseStatus", Kind::Wholes, "Status of the last answer; 0 for none."),
        query("cause", Kind::Texts, "What they died of, as /v2/dlq/causes names it."),
    ];
    parameters.extend(COMMON_FILTERS);
    parameters
}

/// Which dead letters are meant, a page at a time.
pub(super) fn dlq_filters() -> Vec<Parameter> {
    let mut parameters = dlq_selection();
    parameters.push(query("count", Kind::Whole(1, i64::MAX), "At most so many; 100 is the most, and the default."));
    parameters.extend(PAGE);
    parameters
}

/// How many dead letters are dealt with at once.
pub(super) const DLQ_BULK: &[Parameter] = &[
    query(
        "async",
        Kind::Boolean,
        "Do it in the background, with all that match or `count` of them, and answer at once.",
    ),
    query("rate", Kind::Whole(1, 1_000), "With async: at most so many per second."),
];

pub(super) fn dlq_list() -> Vec<Parameter> {
    let mut parameters = dlq_filters();
    parameters.push(TRIM_BODY);
    parameters.push(query(
        "source",
        Kind::OneOf(&["workflow"]),
        "Failed runs of workflows instead, with their filters.",
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
        query("messageId", Kind::Text, "This message."),
        MESSAGE_IDS,
        query("state", Kind::OneOf(&STATES), "This state; IN_PROGRESS stands for ACTIVE, RETRY and ERROR."),
        query("groupBy", Kind::OneOf(&["messageId"]), "Lines by message."),
        query("sourceMessageId", Kind::Texts, "Messages that this one led to: its callbacks, and what was sent again."),
        query(
            "scanLimit",
            Kind::Whole(1, i64::MAX),
            "The page ends when so many lines did not match; 500000 is the most.",
        ),
        query(
            "count",
            Kind::Whole(1, i64::MAX),
            "At most so many; 1000 is the most, and the default (10 when grouped).",
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
        "Bytes of each body; 0 or -1 for none. 4096 by default.",
    ));
    parameters.push(query(
        "maxPerSecond",
        Kind::Whole(1, 1_000),
        "At most so many; what is more is left out. 1000 by default.",
    ));
    parameters
}

/// What runs of workflows are found by.
const RUN_FILTERS: [Parameter; 10] = [
    query("workflowRunId", Kind::Texts, "Runs of this name."),
    query("workflowCreatedAt", TIME, "The run of this name that was created then."),
    query("workflowUrl", Kind::Texts, "Where its steps are executed, exactly."),
    query("label", Kind::Texts, "Any label of the run."),
    query("flowControlKey", Kind::Texts, "Its flow-control key."),
    query("callerIp", Kind::Texts, "The address that triggered it."),
    query("host", Kind::Texts, "Host of its URL, with or without the port."),
    query("path", Kind::Texts, "Path of its URL, without the query."),
    query("fromDate", TIME, "Not before this Unix millisecond: of its creation, in the DLQ of its failure."),
    query("toDate", TIME, "Not after this Unix millisecond."),
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
        query("groupBy", Kind::OneOf(&["workflowRunId"]), "Runs with their steps, instead of lines."),
        query("state", Kind::OneOf(&RUN_LOG_STATES), "Runs, or lines, in this state."),
        query("messageId", Kind::Text, "The run that this message belongs to."),
        query("workflowRuns", Kind::Texts, "These runs, each as id@createdAt; no other filter counts then."),
        query("count", Kind::Whole(1, i64::MAX), "At most so many: 10 runs, or 1000 lines."),
        query("cursor", Kind::Text, "Where the page starts, as the page before said."),
        query("usage", Kind::Boolean, "Runs also tell how much they have of what they may have."),
        TRIM_BODY,
    ];
    parameters.extend(RUN_FILTERS);
    parameters
}

/// Which failed runs are meant.
pub(super) fn failed_run_filters() -> Vec<Parameter> {
    let mut parameters = vec![
        query("dlqIds", Kind::Texts, "These failed runs; no other filter counts then."),
        query("url", Kind::Texts, "The same as workflowUrl."),
        query("responseStatus", Kind::Wholes, "Status of the last answer; 503 or 504 when there was none."),
        query("failureFunctionState", Kind::Texts, "How telling of the failure stands."),
        query("failureCallbackState", Kind::Texts, "The same, as the documentation also says it."),
        query("count", Kind::Whole(1, i64::MAX), "At most so many: 100, or 50 that begin again."),
        query("cursor", Kind::Text, "Where the page starts, as the page before said."),
    ];
    parameters.extend(RUN_FILTERS);
    parameters
}

pub(super) fn failed_run_list() -> Vec<Parameter> {
    let mut parameters = failed_run_filters();
    parameters.push(TRIM_BODY);
    parameters
}

pub(super) const DLQ_ID: Parameter = path("id", Kind::Text, "The dlqId of the failed run.");
pub(super) const EVENT: Parameter = path("event", Kind::Text, "The event, slashes included.");

/// What may be chosen anew for a run that begins again.
pub(super) const RUN_OVERRIDES: &[Parameter] = &[
    header("Upstash-Retries", Kind::Whole(0, 1_000), "How many attempts may follow the first of each delivery."),
    header("Upstash-Retry-Delay", Kind::Text, "Milliseconds between attempts, an expression over `retried`."),
    header("Upstash-Delay", DURATION, "How long after now the first delivery is due."),
    header("Upstash-Label", Kind::Text, "Labels for filtering, separated by commas."),
    header("Upstash-Flow-Control-Key", Kind::Text, "Deliveries with the same key share limits."),
    header("Upstash-Flow-Control-Value", Kind::Text, "The limits: parallelism=N, rate=N, period=DURATION."),
    header("Upstash-Failure-Callback", Kind::Text, "URL that hears of the failure of the new run."),
];

pub(super) const BULK_ACTIONS: &[Parameter] = &[
    query("cursor", Kind::Text, "Where the page starts, as the page before said."),
    query("count", Kind::Whole(1, i64::MAX), "At most so many; 1000 is the most, 100 the default."),
    query("state", Kind::OneOf(&["IN_PROGRESS", "FINISHED"]), "Only those of the page in this state."),
];
pub(super) const SEARCH: &[Parameter] = &[query("search", Kind::Text, "Only keys that hold this text.")];
pub(super) const PIN: &[Parameter] = &[
    query("parallelism", Kind::Whole(1, 1_000_000_000), "Most deliveries under way at once."),
    query("rate", Kind::Whole(1, 1_000_000_000), "Most deliveries started within a period."),
    query("period", Kind::Whole(1, 604_800), "Length of the period in seconds; only beside a rate."),
];
pub(super) const UNPIN: &[Parameter] = &[
    query("parallelism", Kind::Boolean, "Whether the parallelism follows the messages again."),
    query("rate", Kind::Boolean, "Whether the rate and its period do."),
];
