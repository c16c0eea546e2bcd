//! Error responses for programs and people: `application/problem+json` (RFC 9457).

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use http::{Response, StatusCode};
use http_body_util::Full;
use serde::Serialize;
use std::time::Duration;

/// The body of every response that the kit creates.
pub type ResponseBody = Full<Bytes>;

/// Header that asks a queue not to retry.
pub const NON_RETRYABLE_HEADER: &str = "upstash-nonretryable-error";
/// Status that must accompany that header.
pub const NON_RETRYABLE_STATUS: u16 = 489;

/// An error response. Details that callers must not see stay in the logs.
#[derive(Clone, Debug, Serialize)]
pub struct Problem {
    /// URI that identifies the kind of problem; `about:blank` if the status is enough.
    #[serde(rename = "type")]
    pub kind: String,
    /// Summary of the kind of problem, always the same text for one kind.
    pub title: String,
    /// Status of the response.
    pub status: u16,
    /// The problem of this occurrence, and how to fix it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
    /// Identifies the request, to find it in the logs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub instance: Option<String>,
    #[serde(skip)]
    retry_after: Option<Duration>,
    #[serde(skip)]
    is_final: bool,
}

impl Problem {
    /// A problem with this status and summary.
    pub fn new(status: StatusCode, title: impl Into<String>) -> Problem {
        Problem {
            kind: "about:blank".to_owned(),
            title: title.into(),
            status: status.as_u16(),
            detail: None,
            instance: None,
            retry_after: None,
            is_final: false,
        }
    }

    /// A problem that a retry cannot solve: [`NON_RETRYABLE_STATUS`] with [`NON_RETRYABLE_HEADER`].
    pub fn non_retryable(title: impl Into<String>) -> Problem {
        let status = StatusCode::from_u16(NON_RETRYABLE_STATUS).unwrap_or(StatusCode::BAD_REQUEST);
        Problem { is_final: true, ..Problem::new(status, title) }
    }

    /// Sets the description of this occurrence: what went wrong, and how to fix it.
    pub fn detail(mut self, detail: impl Into<String>) -> Problem {
        self.detail = Some(detail.into());
        self
    }

    /// Sets what identifies the request, to find it in the logs.
    pub fn instance(mut self, instance: impl Into<String>) -> Problem {
        self.instance = Some(instance.into());
        self
    }

    /// Sets the time after which a retry makes sense, rounded up to whole seconds.
    pub fn retry_after(mut self, after: Duration) -> Problem {
        self.retry_after = Some(after);
        self
    }

    /// Converts to a response.
    pub fn into_response(self) -> Response<ResponseBody> {
        let body = serde_json::to_vec(&self).unwrap_or_default();
        let mut response = Response::new(Full::from(body));
        *response.status_mut() = StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        if let Some(after) = self.retry_after {
            let seconds = after.as_secs().saturating_add(u64::from(after.subsec_nanos() > 0));
            headers.insert(RETRY_AFTER, seconds.into());
        }
        if self.is_final {
            headers.insert(NON_RETRYABLE_HEADER, HeaderValue::from_static("true"));
        }
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http_body_util::BodyExt as _;
    use serde_json::{Value, json};

    async fn answer(problem: Problem) -> (u16, http::HeaderMap, Value) {
        let (parts, body) = problem.into_response().into_parts();
        let body = serde_json::from_slice(&body.collect().await.unwrap().to_bytes()).unwrap();
        (parts.status.as_u16(), parts.headers, body)
    }

    #[tokio::test]
    async fn a_problem_contains_the_detail_and_the_retry_time() {
        let problem = Problem::new(StatusCode::CONFLICT, "under way").detail("by another").instance("msg_1");
        let (status, headers, body) = answer(problem.retry_after(Duration::from_millis(1_001))).await;
        assert_eq!((status, headers["retry-after"].as_bytes()), (409, &b"2"[..]));
        assert_eq!(headers["content-type"], "application/problem+json");
        let expected = json!({"type": "about:blank", "title": "under way", "status": 409, "detail": "by another", "instance": "msg_1"});
        assert_eq!(body, expected);
        assert!(!headers.contains_key(NON_RETRYABLE_HEADER));
        let (_, headers, _) = answer(Problem::new(StatusCode::CONFLICT, "never").retry_after(Duration::MAX)).await;
        assert_eq!(headers["retry-after"], u64::MAX.to_string());
    }

    #[tokio::test]
    async fn a_permanent_problem_asks_the_queue_not_to_retry() {
        let (status, headers, body) = answer(Problem::non_retryable("no JSON")).await;
        assert_eq!((status, &body["status"]), (489, &json!(489)));
        assert_eq!(headers[NON_RETRYABLE_HEADER], "true");
    }
}
