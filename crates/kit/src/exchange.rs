//! One HTTP request and its whole response: the transport of [`service`](crate::service) and
//! [`publish`](crate::publish).
//!
//! Redirects are not followed, proxy variables are ignored, nothing is decompressed, and the size of a response is
//! limited. Only the URL of a request determines where it goes.

use crate::body::{BodyError, BodyLimits};
use crate::call::CallError;
use crate::secret::Secret;
use bytes::Bytes;
use http::header::{AUTHORIZATION, HeaderValue};
use http::{HeaderMap, Method, StatusCode};
use reqwest::Url;
use rustls_platform_verifier::BuilderVerifierExt as _;
use std::sync::Arc;
use std::time::Duration;

/// Time limit for establishing a connection; it is part of the time of an attempt.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// How long an idle connection is kept.
const IDLE_TIMEOUT: Duration = Duration::from_secs(60);
/// Maximum number of idle connections per host.
const IDLE_CONNECTIONS_MAX: usize = 32;

/// Sends requests. Cheap to clone; clones share connections.
#[derive(Clone, Debug)]
pub(crate) struct Exchange {
    client: reqwest::Client,
}

/// A complete response.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

/// The client cannot be created: the system's certificates cannot be read, or the URL or token is invalid.
#[derive(Debug, thiserror::Error)]
#[error("the client cannot be created: {what}")]
pub struct SetupError {
    what: &'static str,
    #[source]
    source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

impl SetupError {
    pub(crate) fn new(what: &'static str) -> SetupError {
        SetupError { what, source: None }
    }

    pub(crate) fn because(
        what: &'static str,
        source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> SetupError {
        SetupError { what, source: Some(source.into()) }
    }
}

impl Exchange {
    pub(crate) fn new() -> Result<Exchange, SetupError> {
        let client = reqwest::Client::builder()
            .tls_backend_preconfigured(tls()?)
            .redirect(reqwest::redirect::Policy::none())
            .no_proxy()
            .referer(false)
            // The code that knows the meaning of a request decides about retries, see `retry`.
            .retry(reqwest::retry::never())
            .connect_timeout(CONNECT_TIMEOUT)
            .pool_idle_timeout(IDLE_TIMEOUT)
            .pool_max_idle_per_host(IDLE_CONNECTIONS_MAX)
            .user_agent(concat!("posthaste-kit/", env!("CARGO_PKG_VERSION")))
            .build();
        let client = client.map_err(|error| SetupError::because("of the HTTP client", error.without_url()))?;
        Ok(Exchange { client })
    }

    /// Sends a request and reads its response, whatever its status. The caller sets the time limit.
    pub(crate) async fn send(
        &self,
        method: Method,
        url: Url,
        headers: HeaderMap,
        body: Bytes,
        answer_bytes_max: usize,
    ) -> Result<Answer, CallError> {
        let request = self.client.request(method, url).headers(headers).body(body);
        let response = request.send().await.map_err(failed)?;
        let (parts, body) = http::Response::from(response).into_parts();
        let limits = BodyLimits { bytes: answer_bytes_max, time: Duration::MAX };
        let body = limits.read(body).await.map_err(|error| match error {
            BodyError::TooLong { .. } => CallError::unreadable(error),
            _ => CallError::network(error),
        })?;
        Ok(Answer { status: parts.status, headers: parts.headers, body })
    }
}

/// TLS with the certificates of the system, and with cryptography that need not be installed for the whole program.
fn tls() -> Result<rustls::ClientConfig, SetupError> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let config = config.and_then(|config| config.with_platform_verifier());
    let config = config.map_err(|error| SetupError::because("of the certificates of this system", error))?;
    Ok(config.with_no_client_auth())
}

fn failed(error: reqwest::Error) -> CallError {
    // The URL may contain a token.
    let error = error.without_url();
    if error.is_builder() {
        CallError::invalid(error)
    } else if error.is_connect() {
        CallError::network(error).before_anything_was_sent()
    } else {
        CallError::network(error)
    }
}

/// Parses a base URL: `http` or `https`, without user and query. The result has no trailing slash.
pub(crate) fn base_url(text: &str) -> Result<Url, SetupError> {
    let url = Url::parse(text.trim()).map_err(|error| SetupError::because("the base is not a URL", error))?;
    if !matches!(url.scheme(), "http" | "https") {
        return Err(SetupError::new("the base URL must begin with http:// or https://"));
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err(SetupError::new(
            "the base URL must not have a user or password, because they would appear in logs",
        ));
    }
    if url.query().is_some() || url.fragment().is_some() {
        return Err(SetupError::new("the base URL must not have a query or fragment"));
    }
    Ok(url)
}

/// `Authorization: Bearer …`, which never appears in logs.
pub(crate) fn bearer(token: &Secret) -> Result<HeaderValue, SetupError> {
    let value = HeaderValue::try_from(format!("Bearer {}", token.expose()));
    // The error of the conversion could contain the token.
    let mut value = value.map_err(|_| SetupError::new("the token has characters that are not valid in a header"))?;
    value.set_sensitive(true);
    Ok(value)
}

/// Puts the token into the headers.
pub(crate) fn authorize(headers: &mut HeaderMap, token: Option<&HeaderValue>) {
    if let Some(token) = token {
        headers.insert(AUTHORIZATION, token.clone());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_never_shown() {
        let value = bearer(&Secret::new("tok-123").unwrap()).unwrap();
        assert_eq!(value, "Bearer tok-123");
        assert!(!format!("{value:?}").contains("tok-123"));
        let error = bearer(&Secret::new("tok-123\u{1}4").unwrap()).unwrap_err();
        assert!(!format!("{error:?} {error}").contains("tok-123"));
    }

    #[test]
    fn a_base_is_a_plain_url() {
        for good in ["https://a.example.com", "http://127.0.0.1:8080/v1/", " https://a.example.com\n"] {
            assert!(base_url(good).is_ok(), "{good}");
        }
        for bad in ["a.example.com", "ftp://a", "https://u@a", "https://:p@a", "https://a/?b", "https://a/#b", ""] {
            assert!(base_url(bad).is_err(), "{bad}");
        }
    }
}
