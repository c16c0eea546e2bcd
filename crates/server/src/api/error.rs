//! Errors as callers see them: `{"error": "…"}` with the status that the SDKs expect.

use super::allowance::Exhausted;
use crate::app::ReadError;
use crate::bulk::BulkError;
use crate::core::CoreError;
use crate::credentials::Unreadable;
use crate::reads::{NoTurn, READ_WAIT_MAX, TENANT_READS_MAX};
use axum::extract::Request;
use axum::http::uri::Authority;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Version, header};
use axum::response::{IntoResponse, Response};
use posthaste_store::StoreError;
use posthaste_wire::destination::InvalidDestination;
use posthaste_wire::rejection::{Rejection, RejectionKind, quota_exceeded};

/// Most bytes of a request's path and query; over it the answer is 414.
const REQUEST_LINE_BYTES_MAX: usize = 64 * 1024;
/// Most headers of a request; over it the answer is 431.
const REQUEST_HEADERS_MAX: usize = 256;
/// Most bytes of names and values of a request's headers; over it the answer is 431.
const REQUEST_HEADER_BYTES_MAX: usize = 64 * 1024;

/// A request that could not be served, and why.
#[derive(Debug)]
pub(super) struct ApiError {
    status: StatusCode,
    message: String,
    /// Headers of the answer, besides the usual ones.
    headers: Vec<(HeaderName, HeaderValue)>,
}

/// Headers of a 429: limit, remaining and the Unix second of the reset. The SDKs tell the two apart by them.
const DAILY_HEADERS: [&str; 3] = ["ratelimit-limit", "ratelimit-remaining", "ratelimit-reset"];
const BURST_HEADERS: [&str; 3] = ["burst-ratelimit-limit", "burst-ratelimit-remaining", "burst-ratelimit-reset"];

impl ApiError {
    fn new(status: StatusCode, message: impl Into<String>) -> Self {
        ApiError { status, message: message.into(), headers: Vec::new() }
    }

    /// 400: the request is wrong; the text names the field and says what is accepted.
    pub(super) fn invalid(message: impl Into<String>) -> Self {
        ApiError::new(StatusCode::BAD_REQUEST, message)
    }

    /// 401. The text begins with that of the hosted service, then says what to do.
    pub(super) fn unauthenticated(why: &str) -> Self {
        ApiError::new(StatusCode::UNAUTHORIZED, format!("unable to authenticate: invalid token: {why}"))
    }

    /// 403: the token may read only.
    pub(super) fn read_only() -> Self {
        ApiError::new(
            StatusCode::FORBIDDEN,
            "this is a read-only token: it cannot publish, change or delete anything, or read signing keys",
        )
    }

    /// 403: whoever asks may not, whatever token they have.
    pub(super) fn forbidden(message: impl Into<String>) -> Self {
        ApiError::new(StatusCode::FORBIDDEN, message)
    }

    /// 489, after which a delivery is not retried: it was sent by this server to itself.
    pub(super) fn came_back() -> Self {
        let status = StatusCode::from_u16(489).unwrap_or(StatusCode::LOOP_DETECTED);
        let headers = vec![(HeaderName::from_static("upstash-nonretryable-error"), HeaderValue::from_static("true"))];
        let text = "this delivery came back to the server that sent it; a message cannot be delivered to the API of its own server";
        ApiError { headers, ..ApiError::new(status, text) }
    }

    /// 404.
    pub(super) fn not_found(message: impl Into<String>) -> Self {
        ApiError::new(StatusCode::NOT_FOUND, message)
    }

    /// 408: the body did not arrive in time.
    pub(super) fn timed_out(message: impl Into<String>) -> Self {
        ApiError::new(StatusCode::REQUEST_TIMEOUT, message)
    }

    /// 412: a limit like the plans of the hosted service.
    pub(super) fn quota(message: impl Into<String>) -> Self {
        ApiError::new(StatusCode::PRECONDITION_FAILED, message)
    }

    /// 412: a message is larger than messages may be.
    pub(super) fn message_too_large(bytes_max: usize) -> Self {
        ApiError::quota(quota_exceeded("maxMessageSize", bytes_max as u64))
    }

    /// Whether a quota is exceeded.
    pub(super) fn is_quota(&self) -> bool {
        self.status == StatusCode::PRECONDITION_FAILED
    }

    /// 413.
    pub(super) fn too_large(message: impl Into<String>) -> Self {
        ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, message)
    }

    /// 500: a fault of the server, which has logged it. Whether the request took effect is open.
    pub(super) fn internal() -> Self {
        ApiError::new(
            StatusCode::INTERNAL_SERVER_ERROR,
            "internal error: this request failed, and the server's log has the cause; it may have taken effect, so retry \
             it with the same deduplication id",
        )
    }

    /// 502: whom we asked for the caller did not answer.
    pub(super) fn bad_gateway(message: impl Into<String>) -> Self {
        ApiError::new(StatusCode::BAD_GATEWAY, message)
    }

    /// 503: nothing was stored; try again.
    pub(super) fn overloaded(message: impl Into<String>) -> Self {
        let headers = vec![(header::RETRY_AFTER, HeaderValue::from(1))];
        ApiError { headers, ..ApiError::new(StatusCode::SERVICE_UNAVAILABLE, message) }
    }

    /// 429: too many of something are open at once.
    pub(super) fn too_many(message: impl Into<String>) -> Self {
        let headers = vec![(header::RETRY_AFTER, HeaderValue::from(1))];
        ApiError { headers, ..ApiError::new(StatusCode::TOO_MANY_REQUESTS, message) }
    }

    /// 429: too many different wrong tokens from one address.
    pub(super) fn too_many_guesses(exhausted: Exhausted) -> Self {
        let seconds = exhausted.wait_seconds();
        let text = format!(
            "more than {} different wrong tokens were tried from your address in this minute; try again in {seconds} s",
            exhausted.limit
        );
        let headers = vec![(header::RETRY_AFTER, HeaderValue::from(seconds))];
        ApiError { headers, ..ApiError::new(StatusCode::TOO_MANY_REQUESTS, text) }
    }

    /// 503: the disk has less room than it must keep.
    pub(super) fn disk_low() -> Self {
        ApiError::overloaded("the server's disk is nearly full: nothing was stored, try again later")
    }

    /// 429: no more messages today.
    pub(super) fn daily_quota(exhausted: Exhausted) -> Self {
        let text = format!("quota maxRequestsPerDay exceeded, current limit: {}", exhausted.limit);
        ApiError::exhausted(text, DAILY_HEADERS, exhausted)
    }

    /// 429: no more requests this second.
    pub(super) fn burst_quota(exhausted: Exhausted) -> Self {
        let text = format!("too many requests per second, current limit: {}; try again", exhausted.limit);
        ApiError::exhausted(text, BURST_HEADERS, exhausted)
    }

    fn exhausted(message: String, names: [&'static str; 3], exhausted: Exhausted) -> Self {
        let reset_seconds = exhausted.reset.as_millis() / 1_000;
        let values = [exhausted.limit, exhausted.remaining, reset_seconds];
        let names = names.into_iter().map(HeaderName::from_static);
        let mut headers: Vec<_> = names.zip(values.map(HeaderValue::from)).collect();
        headers.push((header::RETRY_AFTER, HeaderValue::from(exhausted.wait_seconds())));
        ApiError { headers, ..ApiError::new(StatusCode::TOO_MANY_REQUESTS, message) }
    }

    /// The same error with 412 instead of 400, for what an endpoint sends in a run: its client takes 400 for the news
    /// that the run has ended, and would never tell anybody what was wrong.
    pub(super) fn told_to_a_run(self) -> Self {
        match self.status {
            StatusCode::BAD_REQUEST => ApiError { status: StatusCode::PRECONDITION_FAILED, ..self },
            _ => self,
        }
    }

    /// The same error, told of one item of a batch.
    pub(super) fn at(self, index: usize) -> Self {
        let message = format!("item {index}: {}", self.message);
        ApiError { message, ..self }
    }

    /// The text alone, for an entry of a batch.
    pub(super) fn into_message(self) -> String {
        self.message
    }
}

impl From<Rejection> for ApiError {
    fn from(rejection: Rejection) -> Self {
        let status = match rejection.status {
            RejectionKind::Invalid => StatusCode::BAD_REQUEST,
            RejectionKind::Quota => StatusCode::PRECONDITION_FAILED,
        };
        ApiError::new(status, rejection.message)
    }
}

impl From<InvalidDestination> for ApiError {
    fn from(invalid: InvalidDestination) -> Self {
        ApiError::invalid(invalid.to_string())
    }
}

/// 500: only the operator can help, and the text says how. There is no log line, because clients decide how often this happens;
/// attempts that fail for the same reason write one per minute.
impl From<Unreadable> for ApiError {
    fn from(unreadable: Unreadable) -> Self {
        ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, unreadable.to_string())
    }
}

impl From<CoreError> for ApiError {
    fn from(error: CoreError) -> Self {
        match error {
            CoreError::Overloaded => ApiError::overloaded(
                "the server is overloaded: too many requests are waiting; nothing was stored, try again",
            ),
            CoreError::Late => ApiError::overloaded(
                "the server is overloaded: too many of your requests are waiting to be stored; nothing was stored, try again with fewer at once",
            ),
            CoreError::Stopped => ApiError::overloaded(
                "the server is stopping: it is not known whether this request took effect, try again with the same deduplication id",
            ),
            CoreError::Quota(quota) => ApiError::quota(quota.to_string()),
            CoreError::DiskLow => ApiError::disk_low(),
        }
    }
}

impl From<BulkError> for ApiError {
    fn from(error: BulkError) -> Self {
        match error {
            BulkError::Store(error) => error.into(),
            BulkError::Core(error) => error.into(),
            BulkError::DiskLow => ApiError::disk_low(),
        }
    }
}

impl From<ReadError> for ApiError {
    fn from(error: ReadError) -> Self {
        let seconds = READ_WAIT_MAX.as_secs();
        match error {
            ReadError::NoTurn(NoTurn::Own) => ApiError::too_many(format!(
                "too many reads of this tenant are in progress: {TENANT_READS_MAX} run at once, and the others wait up to {seconds} s; send fewer at once or request shorter pages, and try again"
            )),
            ReadError::NoTurn(NoTurn::Others) => ApiError::overloaded(format!(
                "the server is overloaded: this read waited {seconds} s for reads of other tenants; try again"
            )),
            ReadError::Store(error) => error.into(),
        }
    }
}

impl From<StoreError> for ApiError {
    fn from(error: StoreError) -> Self {
        tracing::error!(error = %error, cause = ?std::error::Error::source(&error), "the store failed");
        match error {
            StoreError::Corrupt { .. } => ApiError::new(
                StatusCode::INTERNAL_SERVER_ERROR,
                "stored data could not be read; the cause is in the server's log",
            ),
            StoreError::Fenced | StoreError::Unknown(_) | StoreError::Unavailable(_) => {
                ApiError::overloaded("the store is unavailable, try again")
            }
        }
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = (self.status, axum::Json(serde_json::json!({ "error": self.message }))).into_response();
        response.headers_mut().extend(self.headers);
        response
    }
}

/// What HTTP itself forbids and the framework lets through.
pub(super) fn refuse_malformed(request: &Request) -> Option<ApiError> {
    let headers = request.headers();
    if request.method() == Method::CONNECT {
        return Some(ApiError::new(StatusCode::METHOD_NOT_ALLOWED, "CONNECT: this server is not a proxy"));
    }
    if request.version() == Version::HTTP_11 && !has_one_host(headers) {
        return Some(ApiError::invalid("Host: send exactly one header, with a host and optionally a port"));
    }
    if request.uri().path_and_query().is_some_and(|path| path.as_str().len() > REQUEST_LINE_BYTES_MAX) {
        let text = format!(
            "the path and query are longer than {REQUEST_LINE_BYTES_MAX} bytes; send long lists in a JSON body"
        );
        return Some(ApiError::new(StatusCode::URI_TOO_LONG, text));
    }
    let bytes: usize = headers.iter().map(|(name, value)| name.as_str().len() + value.len()).sum();
    if headers.len() > REQUEST_HEADERS_MAX || bytes > REQUEST_HEADER_BYTES_MAX {
        let text = format!(
            "the request has {} headers with {bytes} bytes; at most {REQUEST_HEADERS_MAX} with {REQUEST_HEADER_BYTES_MAX} bytes are accepted",
            headers.len()
        );
        return Some(ApiError::new(StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE, text));
    }
    // We know one expectation, and every other one must be refused.
    let known = |expectation: &HeaderValue| expectation.as_bytes().eq_ignore_ascii_case(b"100-continue");
    if headers.get(header::EXPECT).is_some_and(|expectation| !known(expectation)) {
        return Some(ApiError::new(StatusCode::EXPECTATION_FAILED, "Expect: only 100-continue is supported"));
    }
    None
}

fn has_one_host(headers: &HeaderMap) -> bool {
    let mut lines = headers.get_all(header::HOST).iter();
    let is_authority = |line: &HeaderValue| line.to_str().is_ok_and(|text| text.parse::<Authority>().is_ok());
    lines.next().is_some_and(is_authority) && lines.next().is_none()
}

/// Gives errors that the framework made (405, 404 …) the envelope too; their other headers stay.
pub(super) fn enveloped(response: Response) -> Response {
    let status = response.status();
    let is_json = |kind: &HeaderValue| kind.as_bytes().starts_with(b"application/json");
    let is_json = response.headers().get(header::CONTENT_TYPE).is_some_and(is_json);
    if is_json || !(status.is_client_error() || status.is_server_error()) {
        return response;
    }
    let text = match (status, response.headers().get(header::ALLOW)) {
        (StatusCode::METHOD_NOT_ALLOWED, Some(allowed)) => method_not_allowed(allowed),
        _ => status.canonical_reason().unwrap_or("error").to_owned(),
    };
    let mut enveloped = ApiError::new(status, text).into_response();
    for (name, value) in response.headers() {
        if name != header::CONTENT_LENGTH && name != header::CONTENT_TYPE {
            enveloped.headers_mut().insert(name, value.clone());
        }
    }
    enveloped
}

/// `method not allowed: use GET or POST`. HEAD is not named where there is GET.
fn method_not_allowed(allowed: &HeaderValue) -> String {
    let allowed = allowed.to_str().unwrap_or_default();
    let mut methods: Vec<&str> = allowed.split(',').map(str::trim).filter(|method| !method.is_empty()).collect();
    if methods.contains(&"GET") {
        methods.retain(|method| *method != "HEAD");
    }
    match methods.as_slice() {
        [] => "method not allowed".to_owned(),
        [only] => format!("method not allowed: use {only}"),
        [first @ .., last] => format!("method not allowed: use {} or {last}", first.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use posthaste_wire::time::Timestamp;

    #[test]
    fn a_wrong_method_is_answered_with_the_right_ones() {
        for (allowed, expected) in [
            ("POST", "method not allowed: use POST"),
            ("GET,HEAD", "method not allowed: use GET"),
            ("GET,HEAD,POST,DELETE", "method not allowed: use GET, POST or DELETE"),
            ("HEAD", "method not allowed: use HEAD"),
            ("", "method not allowed"),
        ] {
            assert_eq!(method_not_allowed(&HeaderValue::from_static(allowed)), expected);
        }
    }

    #[test]
    fn who_is_refused_for_now_hears_when_to_come_again() {
        let exhausted = Exhausted { limit: 5, remaining: 0, reset: Timestamp(90_000), now: Timestamp(500) };
        let cases = [
            (ApiError::from(CoreError::Overloaded), 503, "1"),
            (ApiError::from(CoreError::Late), 503, "1"),
            (ApiError::from(CoreError::Stopped), 503, "1"),
            (ApiError::from(ReadError::NoTurn(NoTurn::Own)), 429, "1"),
            (ApiError::from(ReadError::NoTurn(NoTurn::Others)), 503, "1"),
            (ApiError::daily_quota(exhausted), 429, "90"),
            (ApiError::burst_quota(exhausted), 429, "90"),
        ];
        for (error, status, seconds) in cases {
            let message = error.message.clone();
            let response = error.into_response();
            assert_eq!(response.status().as_u16(), status, "{message}");
            assert_eq!(response.headers()[header::RETRY_AFTER], seconds, "{message}");
            assert!(!message.is_empty());
        }
    }
}
