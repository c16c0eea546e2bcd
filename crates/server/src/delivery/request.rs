//! What the receiver gets: the published bytes and headers, and ours.

use super::Attempt;
use super::failure::failure;
use super::target::Target;
use bytes::Bytes;
use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use http::uri::{Parts, Scheme};
use http::{Method, Request, Uri};
use http_body_util::Full;
use posthaste_engine::outcome::{AttemptError, ErrorClass};
use posthaste_wire::encoding::{header_bytes, hex};
use posthaste_wire::header as wire;
use posthaste_wire::signature::{self, Claims};

const SIGNATURE: HeaderName = HeaderName::from_static(wire::SIGNATURE);
const MESSAGE_ID: HeaderName = HeaderName::from_static(wire::MESSAGE_ID);
const RETRIED: HeaderName = HeaderName::from_static(wire::RETRIED);
const CALLER_IP: HeaderName = HeaderName::from_static(wire::CALLER_IP);
const SCHEDULE_ID: HeaderName = HeaderName::from_static(wire::SCHEDULE_ID);
const TOPIC_NAME: HeaderName = HeaderName::from_static(wire::TOPIC_NAME);
const HOPS: HeaderName = HeaderName::from_static(wire::HOPS);
const REGION: HeaderName = HeaderName::from_static(wire::REGION);
const USER_AGENT: HeaderValue = HeaderValue::from_static("Upstash-QStash");
const IDENTITY: HeaderValue = HeaderValue::from_static("identity");

/// Bodies over this are hashed away from the threads that serve connections.
const HASH_INLINE_MAX: usize = 256 * 1024;

/// Everything of a request that does not depend on the connection. One signature per attempt, also if
/// the request has to be sent twice.
pub(super) struct Prepared {
    method: Method,
    headers: HeaderMap,
    body: Bytes,
}

impl Prepared {
    /// `authorization` belongs to an upstream: it wins over what the publisher says.
    pub(super) async fn new(
        attempt: &Attempt<'_>,
        region: &HeaderValue,
        authorization: Option<&HeaderValue>,
    ) -> Result<Prepared, AttemptError> {
        let message = attempt.message;
        let method = match Method::from_bytes(message.spec.method.as_bytes()) {
            Ok(method) if method != Method::CONNECT => method,
            _ => return Err(unsendable(&format!("method {}", message.spec.method))),
        };
        let mut headers = HeaderMap::with_capacity(message.spec.headers.len() + 10);
        forward(&message.spec.headers, &mut headers)?;
        if let Some(authorization) = authorization {
            headers.insert(header::AUTHORIZATION, authorization.clone());
        }
        headers.entry(header::USER_AGENT).or_insert(USER_AGENT);
        headers.insert(header::ACCEPT_ENCODING, IDENTITY);
        if !message.body.is_empty() || matches!(method, Method::POST | Method::PUT | Method::PATCH) {
            headers.insert(header::CONTENT_LENGTH, HeaderValue::from(message.body.len()));
        }
        headers.insert(SIGNATURE, value(sign(attempt).await?, "signature")?);
        headers.insert(MESSAGE_ID, value(message.id.to_string(), "message id")?);
        headers.insert(RETRIED, HeaderValue::from(attempt.retried));
        headers.insert(CALLER_IP, value(message.spec.caller_ip.clone(), "caller ip")?);
        headers.insert(REGION, region.clone());
        headers.insert(HOPS, HeaderValue::from(message.spec.hops.saturating_add(1)));
        if let Some(topic) = &message.spec.topic {
            headers.insert(TOPIC_NAME, value(topic.clone(), "group name")?);
        }
        if let Some(schedule_id) = &message.spec.schedule_id {
            headers.insert(SCHEDULE_ID, value(schedule_id.clone(), "schedule id")?);
        }
        Ok(Prepared { method, headers, body: message.body.clone() })
    }

    /// A request of a client that is passed on to an upstream: unsigned, for it is no message.
    pub(super) fn passed_on(mut headers: HeaderMap, body: Bytes) -> Prepared {
        headers.insert(header::USER_AGENT, USER_AGENT);
        headers.insert(header::ACCEPT_ENCODING, IDENTITY);
        headers.insert(header::CONTENT_LENGTH, HeaderValue::from(body.len()));
        Prepared { method: Method::POST, headers, body }
    }

    /// The request as one kind of connection wants it: HTTP/2 carries the host in the URI.
    pub(super) fn request(&self, target: &Target, http2: bool) -> Result<Request<Full<Bytes>>, AttemptError> {
        let mut headers = self.headers.clone();
        let mut parts = Parts::default();
        parts.path_and_query = Some(target.path.clone());
        if http2 {
            parts.scheme = Some(Scheme::HTTPS);
            parts.authority = Some(target.authority.clone());
        } else {
            headers.insert(header::HOST, value(target.authority.as_str().to_owned(), "host")?);
        }
        let mut request = Request::new(Full::new(self.body.clone()));
        *request.method_mut() = self.method.clone();
        *request.uri_mut() = Uri::from_parts(parts).map_err(|_| unsendable("path"))?;
        *request.headers_mut() = headers;
        Ok(request)
    }
}

/// Copies the publisher's headers, without those that belong to the connection or to the URL.
fn forward(published: &[(String, String)], headers: &mut HeaderMap) -> Result<(), AttemptError> {
    for (name, text) in published {
        let known = HeaderName::from_bytes(name.as_bytes()).map_err(|_| unsendable(&format!("header {name}")))?;
        if wire::is_hop_by_hop_or_framing(known.as_str()) {
            continue;
        }
        let text =
            HeaderValue::from_bytes(&header_bytes(text)).map_err(|_| unsendable(&format!("value of header {name}")))?;
        headers.try_append(known, text).map_err(|_| unsendable("number of headers"))?;
    }
    Ok(())
}

async fn sign(attempt: &Attempt<'_>) -> Result<String, AttemptError> {
    let claims = Claims {
        url: &attempt.message.spec.url,
        issued_at: attempt.now,
        expires_at: attempt.now.plus_millis(signature::LIFETIME_SECONDS * 1_000),
        jwt_id: &format!("jwt_{}", hex(&attempt.nonce)),
        body_hash: &body_hash(&attempt.message.body).await?,
        hops: attempt.message.spec.hops,
    };
    Ok(signature::sign(&attempt.keys.current, &claims))
}

async fn body_hash(body: &Bytes) -> Result<String, AttemptError> {
    if body.len() <= HASH_INLINE_MAX {
        return Ok(signature::body_hash(body));
    }
    let body = body.clone();
    let hashed = tokio::task::spawn_blocking(move || signature::body_hash(&body)).await;
    hashed.map_err(|_| failure(ErrorClass::Closed, "the server is stopping"))
}

fn value(text: String, what: &str) -> Result<HeaderValue, AttemptError> {
    HeaderValue::try_from(text).map_err(|_| unsendable(what))
}

fn unsendable(what: &str) -> AttemptError {
    failure(ErrorClass::Protocol, format!("cannot be sent over HTTP: {what}"))
}
