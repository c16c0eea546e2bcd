//! Signed deliveries, as the queue sends them.

use super::clock::millis_of;
use crate::telemetry::fresh_id;
use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderValue, Method, Request, Uri};
use http_body_util::Full;
use posthaste_wire::header as wire;
use posthaste_wire::signature::{self, Claims, LIFETIME_SECONDS, SigningKey};
use posthaste_wire::time::Timestamp;
use serde::Serialize;
use std::time::SystemTime;

/// A delivery to sign. It can be signed several times, as the queue does for each attempt.
///
/// ```
/// use posthaste_kit::testing::TestDelivery;
/// use std::time::SystemTime;
///
/// # fn main() -> Result<(), serde_json::Error> {
/// let delivery = TestDelivery::to("https://app.example.com/jobs").message_id("msg_7").json(&["a", "b"])?;
/// let request = delivery.retried(2).sign("sig_current", SystemTime::now());
/// assert_eq!(request.headers()["upstash-retried"], "2");
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct TestDelivery {
    url: String,
    uri: Uri,
    method: Method,
    message_id: HeaderValue,
    is_id_signed: bool,
    retried: u32,
    headers: HeaderMap,
    body: Bytes,
}

impl TestDelivery {
    /// A delivery of message `msg_1` to this URL, without a body.
    ///
    /// # Panics
    ///
    /// If the URL is invalid.
    pub fn to(url: &str) -> TestDelivery {
        let uri = url.parse().expect("the URL of a delivery is a URL");
        TestDelivery {
            url: url.to_owned(),
            uri,
            method: Method::POST,
            message_id: HeaderValue::from_static("msg_1"),
            is_id_signed: true,
            retried: 0,
            headers: HeaderMap::new(),
            body: Bytes::new(),
        }
    }

    /// Sets the message id.
    ///
    /// # Panics
    ///
    /// If the id is not valid in a header.
    pub fn message_id(mut self, id: &str) -> TestDelivery {
        self.message_id = HeaderValue::from_str(id).expect("the id of a message can be in a header");
        self
    }

    /// Signs like hosted QStash: the message id is only in a header, not in the signature.
    pub fn without_signed_id(mut self) -> TestDelivery {
        self.is_id_signed = false;
        self
    }

    /// Sets the number of previous attempts.
    pub fn retried(mut self, retried: u32) -> TestDelivery {
        self.retried = retried;
        self
    }

    /// Sets the method. Default: POST.
    pub fn method(mut self, method: Method) -> TestDelivery {
        self.method = method;
        self
    }

    /// Adds a header that the publisher forwarded.
    ///
    /// # Panics
    ///
    /// If the value is not valid in a header.
    pub fn header(mut self, name: &'static str, value: &str) -> TestDelivery {
        self.headers.append(name, HeaderValue::from_str(value).expect("the value can be in a header"));
        self
    }

    /// Sets the body.
    pub fn body(mut self, body: impl Into<Bytes>) -> TestDelivery {
        self.body = body.into();
        self
    }

    /// Sets the body as JSON.
    pub fn json(mut self, body: &impl Serialize) -> Result<TestDelivery, serde_json::Error> {
        self.body = serde_json::to_vec(body)?.into();
        self.headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        Ok(self)
    }

    /// The body.
    pub fn bytes(&self) -> &Bytes {
        &self.body
    }

    /// The value of `Upstash-Signature` for an attempt at this time, valid for 5 minutes. Each has its own id (`jti`),
    /// as each attempt of the queue does. To simulate a replay, send one request twice.
    pub fn signature(&self, key: &str, at: SystemTime) -> String {
        let issued_at = Timestamp(millis_of(at));
        let claims = Claims {
            url: &self.url,
            issued_at,
            expires_at: issued_at.plus_millis(LIFETIME_SECONDS * 1_000),
            jwt_id: &fresh_id("jwt_"),
            body_hash: &signature::body_hash(&self.body),
            message_id: self.message_id.to_str().ok().filter(|_| self.is_id_signed),
            hops: 0,
        };
        signature::sign(&SigningKey::new(key), &claims)
    }

    /// The request of an attempt at this time, as a handler receives it: its URI has no host.
    pub fn sign(&self, key: &str, at: SystemTime) -> Request<Full<Bytes>> {
        let mut request = self.unsigned();
        let signature = HeaderValue::try_from(self.signature(key, at)).expect("a token is base64 and dots");
        request.headers_mut().insert(wire::SIGNATURE, signature);
        request
    }

    /// The request without a signature.
    pub fn unsigned(&self) -> Request<Full<Bytes>> {
        let mut request = Request::new(Full::new(self.body.clone()));
        *request.method_mut() = self.method.clone();
        *request.uri_mut() = self.uri.path_and_query().cloned().map_or_else(Uri::default, Uri::from);
        let headers = request.headers_mut();
        headers.extend(self.headers.clone());
        headers.insert(wire::MESSAGE_ID, self.message_id.clone());
        headers.insert(wire::RETRIED, self.retried.into());
        request
    }
}
