//! Errors of an attempt without a response, in short words for people.

use super::egress::Refusal;
use posthaste_engine::attempt_error::TIMED_OUT;
use posthaste_engine::outcome::{AttemptError, ErrorClass};
use std::error::Error;
use std::io;
use std::time::Duration;

pub(super) fn failure(class: ErrorClass, message: impl Into<String>) -> AttemptError {
    AttemptError { class, message: message.into() }
}

/// The whole attempt took too long. The words are those of the hosted service.
pub(super) fn timed_out() -> AttemptError {
    failure(ErrorClass::Timeout, TIMED_OUT)
}

/// One phase took too long.
pub(super) fn phase_timed_out(class: ErrorClass, what: &str, limit: Duration) -> AttemptError {
    failure(class, format!("{what} timed out after {limit:?}"))
}

/// The failure is ours, not the receiver's.
pub(super) fn no_room(limit: Duration) -> AttemptError {
    let text =
        format!("the server had no room for the response within {limit:?}, because it holds too many large responses");
    failure(ErrorClass::Closed, text)
}

/// The egress policy does not allow the destination. `explain` says whether the tenant may see why.
pub(super) fn refused(refusal: &Refusal, explain: bool) -> AttemptError {
    failure(ErrorClass::Blocked, format!("destination refused: {}", refusal.shown(explain)))
}

/// The error that tenants see for a failed connection into the operator's network.
pub(super) const NOT_CONNECTED: &str = "could not connect";
/// The error that tenants see if such a connection was not tried.
pub(super) const TOO_MANY_UNREACHED: &str =
    "could not connect: too many private destinations failed recently, so new ones are not tried for now";

/// The URL has the scheme https, but the port speaks plain HTTP.
pub(super) const PLAIN_HTTP: &str = "TLS handshake failed: the port answers plain HTTP; use http://";

/// No connection. The kind is enough; the text of the operating system adds only a number.
pub(super) fn not_connected(error: &io::Error) -> AttemptError {
    failure(ErrorClass::Connect, format!("could not connect: {}", error.kind()))
}

/// A broken connection, or a response that is not HTTP.
pub(super) fn exchange(error: &hyper::Error) -> AttemptError {
    if let Some(tls) = find::<rustls::Error>(error) {
        return failure(ErrorClass::Tls, format!("TLS failed: {tls}"));
    }
    if error.is_parse_too_large() {
        return failure(ErrorClass::Protocol, "the response headers are too large");
    }
    if error.is_parse() {
        return not_http(root(error));
    }
    if let Some(io) = find::<io::Error>(error) {
        // hyper reports malformed chunks like this, and `frames` reports floods.
        if matches!(io.kind(), io::ErrorKind::InvalidInput | io::ErrorKind::InvalidData) {
            return not_http(io);
        }
        return failure(ErrorClass::Closed, format!("the connection broke before the response: {}", io.kind()));
    }
    if error.is_incomplete_message() || error.is_closed() || error.is_canceled() || error.is_timeout() {
        return failure(ErrorClass::Closed, "the connection was closed before the response");
    }
    if unprocessed(error) {
        return failure(ErrorClass::Closed, "the receiver closed the connection before it read the request");
    }
    not_http(root(error))
}

/// A response that violates HTTP, or our limits on its headers and interim responses.
pub(super) fn not_http(why: &dyn Error) -> AttemptError {
    failure(ErrorClass::Protocol, format!("the response is not valid HTTP: {why}"))
}

/// Whether the receiver certainly did not process the request: it was never sent, or HTTP/2 says so.
pub(super) fn unprocessed(error: &hyper::Error) -> bool {
    // h2's error type is not among our dependencies. A test pins this text.
    let orderly_goaway = "connection error received: not a result of an error";
    let refused_stream = "stream error received: refused stream";
    let text = root(error).to_string();
    error.is_canceled() || text.starts_with(orderly_goaway) || text.starts_with(refused_stream)
}

/// The first error of this type among the causes, including those inside I/O errors.
fn find<'a, E: Error + 'static>(error: &'a (dyn Error + 'static)) -> Option<&'a E> {
    let mut cause = Some(error);
    while let Some(current) = cause {
        if let Some(found) = current.downcast_ref::<E>() {
            return Some(found);
        }
        // The `source` of an I/O error skips the error that it wraps.
        cause = match current.downcast_ref::<io::Error>().and_then(io::Error::get_ref) {
            Some(wrapped) => Some(wrapped),
            None => current.source(),
        };
    }
    None
}

fn root(error: &hyper::Error) -> &dyn Error {
    let mut cause: &dyn Error = error;
    while let Some(deeper) = cause.source() {
        cause = deeper;
    }
    cause
}

#[cfg(test)]
mod tests {
    use super::*;
    use posthaste_engine::cause::error_kind;

    #[test]
    fn causes_of_dead_letters_recognize_our_error_texts() {
        let limit = Duration::from_secs(10);
        let refused = io::Error::from(io::ErrorKind::ConnectionRefused);
        for (error, expected) in [
            (timed_out(), "timeout"),
            (phase_timed_out(ErrorClass::Tls, "TLS handshake", limit), "timeout"),
            (phase_timed_out(ErrorClass::Connect, "connecting", limit), "timeout"),
            (not_connected(&refused), "connect"),
            (failure(ErrorClass::Tls, PLAIN_HTTP), "tls"),
        ] {
            assert_eq!(error_kind(&error.message), expected, "{}", error.message);
        }
    }
}
