//! What a browser needs to see in an answer before a page of another origin may read it (CORS).
//!
//! Which origins may is decided in `browsers`; an answer to any other page has none of these headers.

use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};

const METHODS: HeaderValue = HeaderValue::from_static("GET, POST, PUT, PATCH, DELETE, OPTIONS");
/// What scripts may read besides the usual headers.
const EXPOSED: HeaderValue = HeaderValue::from_static(
    "RateLimit-Limit, RateLimit-Remaining, RateLimit-Reset, Burst-RateLimit-Limit, Burst-RateLimit-Remaining, \
     Burst-RateLimit-Reset, Retry-After, Allow, Upstash-Cursor",
);
/// Seconds for which a browser may remember the answer to a preflight.
const MAX_AGE: HeaderValue = HeaderValue::from_static("600");
const ANY: HeaderValue = HeaderValue::from_static("*");
const ORIGIN: HeaderValue = HeaderValue::from_static("Origin");
const REQUEST_PRIVATE_NETWORK: HeaderName = HeaderName::from_static("access-control-request-private-network");
const ALLOW_PRIVATE_NETWORK: HeaderName = HeaderName::from_static("access-control-allow-private-network");

/// Whether a browser asks if it may send a request, before it does.
pub(super) fn is_preflight(method: &Method, headers: &HeaderMap) -> bool {
    *method == Method::OPTIONS && headers.contains_key(header::ACCESS_CONTROL_REQUEST_METHOD)
}

/// Marks an answer as readable by pages of an allowed origin.
pub(super) fn permit(mut response: Response, origin: HeaderValue) -> Response {
    let headers = response.headers_mut();
    headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin);
    headers.insert(header::ACCESS_CONTROL_EXPOSE_HEADERS, EXPOSED);
    headers.append(header::VARY, ORIGIN);
    response
}

/// The answer to a preflight of an allowed origin; it has no token.
pub(super) fn preflight(asked: &HeaderMap, origin: HeaderValue) -> Response {
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
    permit(response, origin)
}
