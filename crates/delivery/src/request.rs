//! Builds the request: the published bytes and headers, and the server's own headers.

use super::Attempt;
use super::failure::failure;
use super::target::Target;
use bytes::Bytes;
use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use http::uri::{Parts, Scheme};
use http::{Method, Request, Uri};
use http_body_util::Full;
use posthaste_engine::message::Message;
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

/// Approximate number of headers that the server adds to a message.
const OWN_HEADERS: usize = 12;

/// Larger bodies are hashed on a blocking thread, not on those that serve connections.
const HASH_INLINE_MAX: usize = 256 * 1024;

/// The parts of a request, independent of the connection. There is one signature per attempt, even if the request is
/// sent twice. The headers are built for each sending, because most requests are sent once and hyper consumes them.
pub(super) enum Prepared<'a> {
    /// An attempt to deliver a message.
    Signed { attempt: &'a Attempt<'a>, signature: HeaderValue, ours: Ours<'a> },
    /// A client's request that is forwarded to an upstream. It is not a message, so it is unsigned.
    PassedOn { headers: HeaderMap, body: Bytes },
}

/// The headers that the server adds to every message.
#[derive(Clone, Copy)]
pub(super) struct Ours<'a> {
    pub(super) region: &'a HeaderValue,
    /// The destination in the signature. For an upstream, the message contains only its name.
    pub(super) url: &'a str,
    /// Credentials of an upstream. They replace those of the publisher.
    pub(super) authorization: Option<&'a HeaderValue>,
}

impl<'a> Prepared<'a> {
    /// Signs the attempt.
    pub(super) async fn signed(attempt: &'a Attempt<'a>, ours: Ours<'a>) -> Result<Prepared<'a>, AttemptError> {
        let signature = value(sign(attempt, ours.url).await?, "signature")?;
        Ok(Prepared::Signed { attempt, signature, ours })
    }

    /// The request without its destination.
    pub(super) fn request(&self) -> Result<Request<Full<Bytes>>, AttemptError> {
        let (method, headers, body) = match self {
            Prepared::Signed { attempt, signature, ours } => {
                let method = method_of(attempt.message)?;
                let headers = headers_of(attempt, &method, signature, *ours)?;
                (method, headers, attempt.message.body.clone())
            }
            Prepared::PassedOn { headers, body } => {
                let mut headers = headers.clone();
                headers.insert(header::USER_AGENT, USER_AGENT);
                headers.insert(header::ACCEPT_ENCODING, IDENTITY);
                headers.insert(header::CONTENT_LENGTH, HeaderValue::from(body.len()));
                (Method::POST, headers, body.clone())
            }
        };
        let mut request = Request::new(Full::new(body));
        *request.method_mut() = method;
        *request.headers_mut() = headers;
        Ok(request)
    }
}

/// The request in the form for the kind of connection: HTTP/2 carries the host in the URI.
pub(super) fn addressed(
    mut request: Request<Full<Bytes>>,
    target: &Target,
    http2: bool,
) -> Result<Request<Full<Bytes>>, AttemptError> {
    let mut parts = Parts::default();
    parts.path_and_query = Some(target.path.clone());
    if http2 {
        parts.scheme = Some(Scheme::HTTPS);
        parts.authority = Some(target.authority.clone());
    } else {
        request.headers_mut().insert(header::HOST, copied(target.authority.as_str(), "host")?);
    }
    *request.uri_mut() = Uri::from_parts(parts).map_err(|_| unsendable("path"))?;
    Ok(request)
}

fn method_of(message: &Message) -> Result<Method, AttemptError> {
    match Method::from_bytes(message.spec.method.as_bytes()) {
        Ok(method) if method != Method::CONNECT => Ok(method),
        _ => Err(unsendable(&format!("method {}", message.spec.method))),
    }
}

fn headers_of(
    attempt: &Attempt<'_>,
    method: &Method,
    signature: &HeaderValue,
    ours: Ours<'_>,
) -> Result<HeaderMap, AttemptError> {
    let message = attempt.message;
    let mut headers = HeaderMap::with_capacity(message.spec.headers.len() + OWN_HEADERS);
    forward(&message.spec.headers, &mut headers)?;
    if let Some(authorization) = ours.authorization {
        headers.insert(header::AUTHORIZATION, authorization.clone());
    }
    headers.entry(header::USER_AGENT).or_insert(USER_AGENT);
    headers.insert(header::ACCEPT_ENCODING, IDENTITY);
    if !message.body.is_empty() || matches!(*method, Method::POST | Method::PUT | Method::PATCH) {
        headers.insert(header::CONTENT_LENGTH, HeaderValue::from(message.body.len()));
    }
    headers.insert(SIGNATURE, signature.clone());
    headers.insert(MESSAGE_ID, value(message.id.to_string(), "message id")?);
    headers.insert(RETRIED, HeaderValue::from(attempt.retried));
    headers.insert(CALLER_IP, copied(&message.spec.caller_ip, "caller ip")?);
    headers.insert(REGION, ours.region.clone());
    headers.insert(HOPS, HeaderValue::from(message.spec.hops.saturating_add(1)));
    if let Some(topic) = &message.spec.topic {
        headers.insert(TOPIC_NAME, copied(topic, "group name")?);
    }
    if let Some(schedule_id) = &message.spec.schedule_id {
        headers.insert(SCHEDULE_ID, copied(schedule_id, "schedule id")?);
    }
    Ok(headers)
}

/// Copies the publisher's headers, except those that belong to the connection or to the URL.
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

async fn sign(attempt: &Attempt<'_>, url: &str) -> Result<String, AttemptError> {
    let claims = Claims {
        url,
        issued_at: attempt.now,
        expires_at: attempt.now.plus_millis(signature::LIFETIME_SECONDS * 1_000),
        jwt_id: &format!("jwt_{}", hex(&attempt.nonce)),
        body_hash: &body_hash(&attempt.message.body).await?,
        message_id: Some(&attempt.message.id.to_string()),
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

fn copied(text: &str, what: &str) -> Result<HeaderValue, AttemptError> {
    HeaderValue::from_str(text).map_err(|_| unsendable(what))
}

fn unsendable(what: &str) -> AttemptError {
    failure(ErrorClass::Protocol, format!("cannot be sent over HTTP: {what}"))
}
