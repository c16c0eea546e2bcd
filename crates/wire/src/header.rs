//! Header names: those of the protocol, their canonical spelling, and which of them may not be forwarded.

/// The publisher's API token.
pub const AUTHORIZATION: &str = "authorization";
/// MIME type of a body; stored and forwarded.
pub const CONTENT_TYPE: &str = "content-type";
/// Compressions that the sender of a request can decode; hop-by-hop.
pub const ACCEPT_ENCODING: &str = "accept-encoding";
/// The sender of a delivery.
pub const USER_AGENT: &str = "user-agent";

/// The prefix of every header of the protocol.
pub const PREFIX: &str = "upstash-";
/// The prefix of a header to forward: `Upstash-Forward-<Name>`.
pub const FORWARD_PREFIX: &str = "upstash-forward-";
/// The prefix of a setting of the callback.
pub const CALLBACK_PREFIX: &str = "upstash-callback-";
/// The prefix of a setting of the failure callback.
pub const FAILURE_CALLBACK_PREFIX: &str = "upstash-failure-callback-";
/// The prefix of telemetry that SDKs send; never stored.
pub const TELEMETRY_PREFIX: &str = "upstash-telemetry-";

/// Method of the delivery.
pub const METHOD: &str = "upstash-method";
/// Relative delay of the first attempt.
pub const DELAY: &str = "upstash-delay";
/// Absolute earliest time of the first attempt, Unix seconds.
pub const NOT_BEFORE: &str = "upstash-not-before";
/// Longest duration of one attempt.
pub const TIMEOUT: &str = "upstash-timeout";
/// Number of retries after the first attempt.
pub const RETRIES: &str = "upstash-retries";
/// Expression for the wait before each retry.
pub const RETRY_DELAY: &str = "upstash-retry-delay";
/// Whether to forward all plain headers of the publish.
pub const HEADER_FORWARD: &str = "upstash-header-forward";
/// URL that is called after every attempt.
pub const CALLBACK: &str = "upstash-callback";
/// URL that is called when the message has failed for good.
pub const FAILURE_CALLBACK: &str = "upstash-failure-callback";
/// Explicit deduplication id.
pub const DEDUPLICATION_ID: &str = "upstash-deduplication-id";
/// Whether to derive the deduplication id from the content.
pub const CONTENT_BASED_DEDUPLICATION: &str = "upstash-content-based-deduplication";
/// Labels for filtering.
pub const LABEL: &str = "upstash-label";
/// Flow-control key: messages with the same key share its rate and parallelism.
pub const FLOW_CONTROL_KEY: &str = "upstash-flow-control-key";
/// The limits of that key.
pub const FLOW_CONTROL_VALUE: &str = "upstash-flow-control-value";
/// Fields that API responses must hide.
pub const REDACT_FIELDS: &str = "upstash-redact-fields";
/// Turns a publish into a schedule.
pub const CRON: &str = "upstash-cron";
/// Turns a publish into an enqueue.
pub const QUEUE_NAME: &str = "upstash-queue-name";

/// The prefix of every header about a workflow run.
pub const WORKFLOW_PREFIX: &str = "upstash-workflow-";
/// Whether a publish starts a run or appends to one.
pub const WORKFLOW_INIT: &str = "upstash-workflow-init";
/// The run of a publish or a delivery.
pub const WORKFLOW_RUN_ID: &str = "upstash-workflow-runid";
/// The instance of that run: its creation time in Unix milliseconds.
pub const WORKFLOW_CREATED_AT: &str = "upstash-workflow-createdat";
/// The kind of entry that a publish appends.
pub const WORKFLOW_CALL_TYPE: &str = "upstash-workflow-calltype";
/// Whether a step of another run starts this one.
pub const WORKFLOW_INVOKE: &str = "upstash-workflow-invoke";
/// The depth of invocations that led to this run.
pub const WORKFLOW_INVOKE_COUNT: &str = "upstash-workflow-invoke-count";
/// The client of the endpoint is unknown: the endpoint must trigger the run again with its own client.
pub const WORKFLOW_UNKNOWN_SDK: &str = "upstash-workflow-unknown-sdk";
/// Set by an endpoint that triggers the run with its own client; see [`WORKFLOW_UNKNOWN_SDK`].
pub const WORKFLOW_TRIGGER_BY_SDK: &str = "upstash-workflow-trigger-by-sdk";
/// Set on a delivery: the body is a list of entries.
pub const WORKFLOW_SDK_VERSION: &str = "upstash-workflow-sdk-version";
/// The step that makes a call.
pub const WORKFLOW_STEP_ID: &str = "upstash-workflow-stepid";
/// Set on a delivery: the run has failed.
pub const WORKFLOW_IS_FAILURE: &str = "upstash-workflow-is-failure";
/// Set on a delivery: the run has failed, for newer clients.
pub const WORKFLOW_FAILURE_CALLBACK: &str = "upstash-workflow-failure-callback";
/// Features that the client of a run supports.
pub const FEATURE_SET: &str = "upstash-feature-set";

/// Set on a delivery: the signature.
pub const SIGNATURE: &str = "upstash-signature";
/// Set on a delivery: the message.
pub const MESSAGE_ID: &str = "upstash-message-id";
/// Set on a delivery: the number of retries before this attempt.
pub const RETRIED: &str = "upstash-retried";
/// Set on a delivery: the schedule that produced the message.
pub const SCHEDULE_ID: &str = "upstash-schedule-id";
/// Set on a delivery: the URL group that the message was published to.
pub const TOPIC_NAME: &str = "upstash-topic-name";
/// Set on a delivery: the address of the publisher.
pub const CALLER_IP: &str = "upstash-caller-ip";
/// Set on a delivery: the region of the server.
pub const REGION: &str = "upstash-region";

/// Set on a delivery: how many deliveries led to it, including this one. This is the number of hops of its message plus
/// one.
///
/// A publish that repeats the header continues the count. A proxy or another server that forwards headers does so. The
/// new message has as many hops as the header says. Every delivery carries the header, because a loop can only be
/// detected if its first delivery starts the count.
pub const HOPS: &str = "posthaste-hops";

/// In a response with status 489: do not retry.
pub const NON_RETRYABLE_ERROR: &str = "upstash-nonretryable-error";
/// In a response: when to try again.
pub const RETRY_AFTER: &str = "retry-after";
/// In a response: when the rate limit resets.
pub const RATE_LIMIT_RESET: &str = "x-ratelimit-reset";
/// In a response: when the limit on requests resets.
pub const RATE_LIMIT_RESET_REQUESTS: &str = "x-ratelimit-reset-requests";
/// In a response: when the limit on tokens resets.
pub const RATE_LIMIT_RESET_TOKENS: &str = "x-ratelimit-reset-tokens";

const HOP_BY_HOP_OR_FRAMING: [&str; 12] = [
    "connection",
    "keep-alive",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "content-length",
    "host",
    "expect",
    "upgrade",
    "proxy-authenticate",
    "proxy-authorization",
];

const SET_BY_SERVER: [&str; 8] = [SIGNATURE, MESSAGE_ID, RETRIED, SCHEDULE_ID, TOPIC_NAME, CALLER_IP, REGION, HOPS];

/// The spelling that Go and thus the hosted service use: `x-api-KEY` becomes `X-Api-Key`.
///
/// A text that is not a header name stays as it is.
pub fn canonical(name: &str) -> String {
    if !is_valid_name(name) {
        return name.to_owned();
    }
    let mut starts_word = true;
    let spell = |c: char| {
        let c = if starts_word { c.to_ascii_uppercase() } else { c.to_ascii_lowercase() };
        starts_word = c == '-';
        c
    };
    name.chars().map(spell).collect()
}

/// Whether the text can be a header name (a `token` of RFC 9110).
pub fn is_valid_name(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte))
}

/// Whether the header belongs to one connection or to the framing of one request, and therefore must not be forwarded.
pub fn is_hop_by_hop_or_framing(name: &str) -> bool {
    HOP_BY_HOP_OR_FRAMING.iter().any(|known| known.eq_ignore_ascii_case(name))
}

/// Whether the server sets this header on deliveries. Publishers may not set it.
pub fn is_set_by_server(name: &str) -> bool {
    SET_BY_SERVER.iter().any(|known| known.eq_ignore_ascii_case(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_spelled_as_go_spells_them() {
        for (name, expected) in [
            ("content-type", "Content-Type"),
            ("X-API-KEY", "X-Api-Key"),
            ("te", "Te"),
            ("x--y", "X--Y"),
            ("-a", "-A"),
            ("my_header", "My_header"),
            ("1x", "1x"),
            ("a b", "a b"),
            ("", ""),
        ] {
            assert_eq!(canonical(name), expected);
        }
    }

    #[test]
    fn names_are_tokens() {
        for name in ["a", "X-1", "!#$%&'*+-.^_`|~"] {
            assert!(is_valid_name(name), "{name}");
        }
        for name in ["", " ", "a b", "a:", "a\r\n", "é", "a\0", "(a)", "a[b]"] {
            assert!(!is_valid_name(name), "{name}");
        }
    }

    #[test]
    fn some_names_may_not_be_forwarded() {
        for name in ["Connection", "TE", "transfer-encoding", "HOST", "Proxy-Authorization"] {
            assert!(is_hop_by_hop_or_framing(name), "{name}");
        }
        for name in ["Upstash-Signature", "UPSTASH-REGION", "Posthaste-Hops"] {
            assert!(is_set_by_server(name), "{name}");
        }
        for name in ["Authorization", "Cookie", "Upstash-Workflow-Url", "Hosts"] {
            assert!(!is_hop_by_hop_or_framing(name) && !is_set_by_server(name), "{name}");
        }
    }
}
