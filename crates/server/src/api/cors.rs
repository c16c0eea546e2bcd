//! Lets web pages call a development server, as the hosted console does with the official one.
//!
//! In `dev` only: its credentials are published anyway, and it listens on loopback. In `serve` a browser
//! sees no such header, so pages of other origins cannot read answers.

use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};

const METHODS: HeaderValue = HeaderValue::from_static("GET, POST, PUT, PATCH, DELETE, OPTIONS");
/// What scripts may read besides the usual headers.
const EXPOSED: HeaderValue = HeaderValue::from_static(
    "RateLimit-Limit, RateLimit-Remaining, RateLimit-Reset, Burst-RateLimit-Limit, Burst-RateLimit-Remaining, \
     Burst-RateLimit-Reset, Retry-After, Allow",
);
/// Seconds for which a browser may remember the answer to a preflight.
const MAX_AGE: HeaderValue = HeaderValue::from_static("600");
const ANY: HeaderValue = HeaderValue::from_static("*");
const REQUEST_PRIVATE_NETWORK: HeaderName = HeaderName::from_static("access-control-request-private-network");
const ALLOW_PRIVATE_NETWORK: HeaderName = HeaderName::from_static("access-control-allow-private-network");

/// Marks an answer as readable by all.
pub(super) fn permit(mut response: Response) -> Response {
    let headers = response.headers_mut();
    headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, ANY);
    headers.insert(header::ACCESS_CONTROL_EXPOSE_HEADERS, EXPOSED);
    response
}

/// The answer to a preflight, which has no token.
pub(super) fn preflight(asked: &HeaderMap) -> Response {
    let mut response = StatusCode::NO_CONTENT.into_response();
    let headers = response.headers_mut();
    headers.insert(header::ACCESS_CONTROL_ALLOW_METHODS, METHODS);
    // `*` would leave out Authorization.
    let names = asked.get(header::ACCESS_CONTROL_REQUEST_HEADERS).cloned().unwrap_or(ANY);
    headers.insert(header::ACCESS_CONTROL_ALLOW_HEADERS, names);
    headers.insert(header::ACCESS_CONTROL_MAX_AGE, MAX_AGE);
    if asked.contains_key(REQUEST_PRIVATE_NETWORK) {
        headers.insert(ALLOW_PRIVATE_NETWORK, HeaderValue::from_static("true"));
    }
    permit(response)
}
