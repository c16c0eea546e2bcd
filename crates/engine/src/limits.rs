//! All limits of the system, and what happens when they are exceeded. `docs/limits.md` lists them for users.

/// Largest message body by default; over it a publish is refused with 412. Configurable.
pub const MESSAGE_BYTES_MAX: usize = 10 * 1024 * 1024;
/// Largest batch, as it is sent; over it a batch is refused with 413.
pub const BATCH_BYTES_MAX: usize = 64 * 1024 * 1024;
/// The most that `message_bytes_max` can be set to.
pub const MESSAGE_BYTES_CEILING: usize = 100 * 1024 * 1024;
/// Bytes that one request may store: its bodies, each once, and the settings of each of its messages. Over it a request is
/// refused with 413. Where `message_bytes_max` is larger, one message of that size is accepted.
pub const REQUEST_STORED_BYTES_MAX: usize = 64 * 1024 * 1024;
/// Most items in one batch; over it the batch is refused with 400.
pub const BATCH_ITEMS_MAX: usize = 10_000;
/// Longest destination; over it a publish is refused with 400.
pub const URL_BYTES_MAX: usize = 8 * 1024;
/// Longest delay; over it a publish is refused with 412. One year, as on the hosted service.
pub const DELAY_MS_MAX: u64 = 365 * 86_400_000;
/// Most retries; over it a publish is refused with 412.
pub const RETRIES_MAX: u32 = 1_000;
/// Default number of retries.
pub const RETRIES_DEFAULT: u32 = 3;
/// Longest timeout of one attempt, and the default; over it a publish is refused with 412.
pub const TIMEOUT_MS_MAX: u64 = 2 * 3_600_000;
/// Shortest timeout; under it a publish is refused with 400.
pub const TIMEOUT_MS_MIN: u64 = 1_000;
/// Longest wait between two attempts: longer expressions are cut to it, longer `Retry-After` is ignored, or cut for a step of a
/// workflow.
pub const RETRY_DELAY_MS_MAX: u64 = 86_400_000;
/// A body of at least this size is not sent again immediately: the wait between two attempts is at least one second for
/// each [`RETRY_BYTES_PER_SECOND`], whatever the expression or `Retry-After` says.
pub const RETRY_FLOOR_BYTES_MIN: usize = 1024 * 1024;
/// See [`RETRY_FLOOR_BYTES_MIN`].
pub const RETRY_BYTES_PER_SECOND: usize = 1024 * 1024;
/// The wait before a retry is at least this long while the tenant's storage quota is used up, or the disk is nearly
/// full.
pub const FULL_RETRY_MS_MIN: u64 = 60_000;
/// Steps of checking the distinct retry-delay expressions of one request. A step is a number, operator or call for one
/// retry. A request that needs more is refused with 400.
pub const RETRY_EXPRESSION_STEPS_MAX: u64 = 10_000_000;
/// Shortest wait that a receiver can request: a shorter `Retry-After`, or one in the past, is extended to it.
pub const RETRY_AFTER_MS_MIN: u64 = 100;
/// Most forwarded headers; over it a publish is refused with 400.
pub const FORWARD_HEADERS_MAX: usize = 100;
/// Most bytes of forwarded header names and values; over it a publish is refused with 400.
pub const FORWARD_HEADER_BYTES_MAX: usize = 32 * 1024;
/// Most labels; over it a publish is refused with 400.
pub const LABELS_MAX: usize = 32;
/// Longest label; over it a publish is refused with 400.
pub const LABEL_BYTES_MAX: usize = 256;
/// Longest deduplication id; over it a publish is refused with 400.
pub const DEDUP_ID_BYTES_MAX: usize = 1_024;
/// How long a duplicate is recognized after the first publish.
pub const DEDUP_WINDOW_MS: u64 = 600_000;

/// Most endpoints of a URL group; over it a change is refused with 412. A publish creates a message for each.
pub const GROUP_ENDPOINTS_MAX: usize = 100;
/// Longest name of a URL group or of an endpoint; over it a change is refused with 400.
pub const NAME_BYTES_MAX: usize = 256;

/// Longest queue name, schedule id or flow-control key; over it a request is refused with 400.
pub const KEY_BYTES_MAX: usize = 256;
/// Queues of a tenant, by default; one more is refused with 412. Configurable.
pub const QUEUES_MAX: usize = 100_000;
/// Largest parallelism of a queue, by default; over it a change is refused with 412. Configurable.
pub const QUEUE_PARALLELISM_MAX: u32 = 1_000;
/// Waiting messages of a queue that are kept in RAM; the rest waits in the store.
pub const QUEUE_HELD_MAX: usize = 64;
/// Flow-control keys of a tenant; one more is refused with 412 until idle ones have been forgotten.
pub const FLOW_KEYS_MAX: usize = 100_000;
/// Longest period of a flow-control rate; over it a request is refused with 400.
pub const FLOW_PERIOD_MS_MAX: u64 = 7 * 86_400_000;
/// Default period of a flow-control rate.
pub const FLOW_PERIOD_MS_DEFAULT: u64 = 1_000;
/// How long an unused flow-control key is remembered.
pub const FLOW_IDLE_MS: u64 = 3_600_000;
/// Schedules of a tenant, by default; one more is refused with 412. Configurable.
pub const SCHEDULES_MAX: usize = 100_000;
/// Bulk actions of a tenant in progress at once; one more is refused with 412.
pub const BULK_ACTIONS_MAX: usize = 10;
/// Highest `rate` of a bulk action in dead letters per second; a higher one is refused with 400.
pub const BULK_RATE_MAX: u32 = 1_000;
/// How long a bulk action is visible after its start.
pub const BULK_ACTION_MS: u64 = 7 * 86_400_000;
/// Bulk actions on a page by default.
pub const BULK_ACTION_PAGE_DEFAULT: usize = 100;
/// Most bulk actions on a page; a larger `count` means this.
pub const BULK_ACTION_PAGE_MAX: usize = 1_000;
/// Most deliveries that may lead to one another; a message beyond that goes to the DLQ as a loop.
pub const HOPS_MAX: u32 = 16;

/// Events that a run keeps until a step waits for them; one more is refused.
pub const WORKFLOW_EARLY_EVENTS_MAX: usize = 1_000;
/// Runs that may wait for the end of a run that they have invoked; one more is refused with 412.
pub const WORKFLOW_INVOKERS_MAX: usize = 64;
/// Longest step that waits for an event or invokes a run, as JSON; a longer one is refused with 412.
pub const WORKFLOW_STEP_BYTES_MAX: usize = 16 * 1024;
/// Entries of a workflow run, by default; one more ends the run, and is refused with 412. Configurable.
pub const WORKFLOW_STEPS_MAX: u32 = 10_000;
/// Bytes of the entries of a workflow run, by default; more ends the run, and is refused with 412. Configurable.
pub const WORKFLOW_BYTES_MAX: u64 = 100 * 1024 * 1024;
/// How long a workflow run may last, by default; a later append ends it, and is refused with 412. Configurable.
pub const WORKFLOW_MS_MAX: u64 = 365 * 86_400_000;
/// Depth of workflow runs that invoke one another, by default; one more is refused with 412. Configurable.
pub const WORKFLOW_DEPTH_MAX: u32 = 100;
/// Bytes of entries that a delivery carries, by default. If there are more, the client fetches them, if it can.
/// Configurable.
pub const WORKFLOW_LAZY_BYTES: usize = 3 * 1024 * 1024;
/// Largest value that can be configured for that.
pub const WORKFLOW_LAZY_BYTES_MAX: usize = 64 * 1024 * 1024;
/// Longest id of a workflow run or of an event; over it a request is refused with 400, or 412 within a run.
pub const WORKFLOW_NAME_BYTES_MAX: usize = 1_024;
/// Default time for which a workflow run waits for an event.
pub const WORKFLOW_WAIT_MS_DEFAULT: u64 = 7 * 86_400_000;
/// Runs that one event reaches; an event that more runs wait for is refused with 412.
pub const NOTIFIED_RUNS_MAX: usize = 250_000;
/// Bytes of the runs that the response to an event lists; the event reaches the others too, but the response does not name them.
pub const NOTIFIED_LISTED_BYTES_MAX: usize = 8 * 1024 * 1024;
/// Runs that a bulk cancel ends when no `count` is given.
pub const WORKFLOW_CANCEL_COUNT_DEFAULT: usize = 100;

/// Most bytes of a receiver's response that are kept (dead letters); the rest is read and dropped.
pub const RESPONSE_BYTES_MAX: usize = 1024 * 1024;
/// A larger body is left out of callbacks (`sourceBody`), which would store it again for each attempt.
pub const SOURCE_BODY_BYTES_MAX: usize = 1024 * 1024;
/// How many bytes of a response a workflow run gets: from a call, from its endpoint when it fails, or from its failure
/// function.
pub const WORKFLOW_RESPONSE_BYTES_MAX: usize = 16 * 1024 * 1024;
/// Most bytes of a response that a log line keeps.
pub const LOG_RESPONSE_BYTES_MAX: usize = 16 * 1024;
/// Bytes of failed responses that one workflow run keeps; of later ones only the status is kept.
pub const WORKFLOW_ERROR_BYTES_MAX: u64 = 4 * 1024 * 1024;
/// Most bytes of a receiver's header block; over it the attempt fails.
pub const RESPONSE_HEADER_BYTES_MAX: usize = 64 * 1024;
/// Most headers in a receiver's response; over it the attempt fails.
pub const RESPONSE_HEADERS_MAX: usize = 100;
/// Most interim (1xx) responses before the final one; over it the attempt fails. They do not extend its timeout either.
/// On HTTP/2 one more may go unnoticed, and all attempts on the connection fail.
pub const RESPONSE_INTERIM_MAX: u32 = 16;
/// Frames without body bytes that a receiver may send on an otherwise idle HTTP/2 connection; with one more the
/// connection is closed, and its attempts fail.
pub const CONTROL_FRAMES_MAX: u32 = 1_000;
/// After this time the same number is allowed again.
pub const CONTROL_FRAMES_REFILL_MS: u64 = 60_000;
/// Bytes transferred on the connection, requests and response bodies, that allow one more frame at once.
pub const CONTROL_FRAME_BYTES: usize = 32;
/// Most frames that transferred bytes may allow; further bytes allow no more.
pub const CONTROL_FRAMES_SAVED_MAX: u32 = 50_000;
/// How long the body of a 2xx response is read before it is dropped.
pub const RESPONSE_BODY_GRACE_MS: u64 = 5_000;

/// Deliveries in flight per tenant; others that are due wait.
pub const TENANT_IN_FLIGHT_MAX: u32 = 1_000;
/// Deliveries in flight per tenant and destination origin; others that are due wait.
pub const ORIGIN_IN_FLIGHT_MAX: u32 = 200;
/// Deliveries in flight in total; others that are due wait.
pub const IN_FLIGHT_MAX: u32 = 10_000;
/// Bytes of bodies in flight in total; other due messages wait, except one message of each tenant that has none in
/// flight, up to twice as many bytes.
pub const IN_FLIGHT_BYTES_MAX: u64 = 256 * 1024 * 1024;
/// Bytes of bodies in flight per tenant; other due messages wait (one message may always start).
pub const TENANT_IN_FLIGHT_BYTES_MAX: u64 = 64 * 1024 * 1024;
/// Bytes of bodies in flight per tenant and destination origin; other due messages wait (one message may always start).
pub const ORIGIN_IN_FLIGHT_BYTES_MAX: u64 = 16 * 1024 * 1024;
/// Live messages kept in RAM; the rest waits in the store and is loaded as these end.
pub const HELD_MAX: usize = 400_000;
/// Due messages kept in RAM per tenant and destination origin; the rest waits in the store.
pub const LANE_HELD_MAX: usize = 2_000;
/// How far ahead of their due time messages are loaded into RAM.
pub const HORIZON_MS: u64 = 60_000;
/// Nested times when the clock went back that are remembered. One more replaces the one that reaches the least far:
/// messages that were due before that one, and were left to the store, wait for their time again.
pub const STEPS_BACK_MAX: usize = 8;
/// Live rows read from the store at once.
pub const LOAD_PAGE: usize = 10_000;

/// Most entries on a page of logs, and the default.
pub const LOG_PAGE_MAX: usize = 1_000;
/// Default number of messages on a page of grouped logs.
pub const GROUPED_PAGE_DEFAULT: usize = 10;
/// Most dead letters on a page, and the default.
pub const DLQ_PAGE_MAX: usize = 100;
/// Dead letters, newest first, that are examined for their causes; the response says that there are more.
pub const CAUSES_LOOK_MAX: usize = 10_000;
/// Most items that the console counts before it asks whether to change all matches; it shows a larger number as "more
/// than".
pub const CONSOLE_COUNT_MAX: usize = 100_000;
/// Bytes of responses that are examined for causes; the response says that there are more.
pub const CAUSES_BYTES_MAX: usize = 64 * 1024 * 1024;
/// Most causes of dead letters that are listed: those with the most dead letters. The response contains the number of
/// others.
pub const CAUSES_LISTED_MAX: usize = 200;
/// Most runs of workflows on a page of logs, and the default; a larger `count` means this.
pub const RUN_PAGE_MAX: usize = 10;
/// Most failed runs that one request restarts: a larger `count` means this, more ids are refused with 400.
pub const RUNS_AGAIN_MAX: usize = 50;
/// Most waits for an event that are listed: the oldest ones.
pub const WAITERS_LISTED_MAX: usize = 1_000;
/// Most schedules, URL groups, queues or flow-control keys on a page, and the default; a larger `count` means this.
pub const LIST_PAGE_MAX: usize = 10_000;
/// A page ends early when its entries have this many bytes of bodies, headers and responses. In a list of schedules,
/// bodies that exceed it are left out instead.
pub const PAGE_BYTES_MAX: usize = 8 * 1024 * 1024;
/// A workflow run whose bodies have more bytes than this is shown without them in logs.
pub const RUN_SHOWN_BYTES_MAX: usize = 16 * 1024 * 1024;
/// A page ends early when it has skipped this many entries that do not match; its cursor continues after them.
pub const PAGE_SKIPS_MAX: usize = 500_000;
/// Highest `count` of a bulk cancel of messages; for workflow runs, a larger one means this.
pub const BULK_CANCEL_COUNT_MAX: usize = 500;
/// Most entries of `X-Forwarded-For` that are examined; beyond that the peer is the caller.
pub const PROXIES_MAX: usize = 32;
/// Most values of one filter field; over it the request is refused with 400.
pub const FILTER_VALUES_MAX: usize = 1_000;

/// Bytes of disk kept free by default: below it publishes are refused with 503, and deliveries continue.
pub const DISK_RESERVE_BYTES: u64 = 64 * 1024 * 1024;

/// How long a message stays readable after it has ended.
pub const ENDED_GRACE_MS: u64 = 10_000;
/// How long messages and logs are kept after they have ended, by default.
pub const HISTORY_MS_DEFAULT: u64 = 7 * 86_400_000;
/// How long dead letters are kept, by default.
pub const DLQ_MS_DEFAULT: u64 = 30 * 86_400_000;

const _: () = {
    assert!(MESSAGE_BYTES_MAX <= BATCH_BYTES_MAX);
    assert!(MESSAGE_BYTES_MAX as u64 <= TENANT_IN_FLIGHT_BYTES_MAX);
    assert!(ORIGIN_IN_FLIGHT_BYTES_MAX <= TENANT_IN_FLIGHT_BYTES_MAX);
    assert!(TENANT_IN_FLIGHT_BYTES_MAX <= IN_FLIGHT_BYTES_MAX);
    assert!(
        WORKFLOW_LAZY_BYTES <= WORKFLOW_LAZY_BYTES_MAX && WORKFLOW_LAZY_BYTES_MAX as u64 <= TENANT_IN_FLIGHT_BYTES_MAX
    );
    assert!(WORKFLOW_WAIT_MS_DEFAULT <= DELAY_MS_MAX && WORKFLOW_CANCEL_COUNT_DEFAULT <= BULK_CANCEL_COUNT_MAX);
    assert!(LOG_RESPONSE_BYTES_MAX <= RESPONSE_BYTES_MAX);
    assert!(CONTROL_FRAMES_MAX <= CONTROL_FRAMES_SAVED_MAX);
    assert!(ORIGIN_IN_FLIGHT_MAX <= TENANT_IN_FLIGHT_MAX && TENANT_IN_FLIGHT_MAX <= IN_FLIGHT_MAX);
    assert!(LOAD_PAGE <= HELD_MAX && LANE_HELD_MAX <= HELD_MAX);
    assert!(ORIGIN_IN_FLIGHT_MAX as usize <= LANE_HELD_MAX / 2);
    assert!(RETRY_AFTER_MS_MIN <= RETRY_DELAY_MS_MAX);
    assert!(ENDED_GRACE_MS < HISTORY_MS_DEFAULT);
};
