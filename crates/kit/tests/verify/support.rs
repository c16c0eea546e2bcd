//! Signing that shares no code with the verification, a store that counts calls, and requests.

use bytes::Bytes;
use http::{HeaderMap, Request};
use http_body_util::{BodyExt as _, Full};
use posthaste_kit::clock::Clock;
use posthaste_kit::idempotency::{Begun, IdempotencyStore, Lease, StoreError, StoreFuture};
use posthaste_kit::problem::ResponseBody;
use posthaste_kit::webhook::Webhook;
use posthaste_wire::signature::{Claims, SigningKey, body_hash, sign};
use posthaste_wire::time::Timestamp;
use serde_json::Value;
use sha2::{Digest, Sha256};
use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, UNIX_EPOCH};

pub(crate) const NOW: u64 = 1_780_315_200;
pub(crate) const URL: &str = "https://app.example.com/hooks/queue";
pub(crate) const CURRENT: &str = "sig_test_current_6TgVb2Hs9k";
pub(crate) const NEXT: &str = "sig_test_next_4RfPq7Xw1mZe";
pub(crate) const STRIPE_SECRET: &str = "whsec_canary_of_stripe";

pub(crate) fn at(seconds: u64) -> Clock {
    Clock::from_fn(move || UNIX_EPOCH + Duration::from_secs(seconds))
}

/// A token as hosted QStash creates it, with a new id each time.
pub(crate) fn token(key: &str, url: &str, body: &[u8]) -> String {
    token_of(key, url, body, None)
}

/// A token as Posthaste creates it, with the message id.
pub(crate) fn token_of(key: &str, url: &str, body: &[u8], message_id: Option<&str>) -> String {
    static SIGNED: AtomicUsize = AtomicUsize::new(0);
    let (issued_at, hash) = (Timestamp(NOW * 1_000), body_hash(body));
    let expires_at = issued_at.plus_millis(300_000);
    let jwt_id = &format!("jwt_{}", SIGNED.fetch_add(1, Ordering::SeqCst));
    let claims = Claims { url, issued_at, expires_at, jwt_id, body_hash: &hash, message_id, hops: 0 };
    sign(&SigningKey::new(key), &claims)
}

/// RFC 2104, in hexadecimal digits.
pub(crate) fn hmac_hex(key: &[u8], message: &[u8]) -> String {
    const BLOCK: usize = 64;
    let key = if key.len() > BLOCK { Sha256::digest(key).to_vec() } else { key.to_vec() };
    let padded = |pad: u8| -> [u8; BLOCK] { std::array::from_fn(|at| key.get(at).copied().unwrap_or(0) ^ pad) };
    let inner = Sha256::new().chain_update(padded(0x36)).chain_update(message).finalize();
    let outer = Sha256::new().chain_update(padded(0x5c)).chain_update(inner).finalize();
    outer.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A Stripe request, signed at [`NOW`].
pub(crate) fn stripe(body: &str) -> Request<Full<Bytes>> {
    stripe_at(body, NOW)
}

/// A Stripe request, signed at another time.
pub(crate) fn stripe_at(body: &str, at: u64) -> Request<Full<Bytes>> {
    let mac = hmac_hex(STRIPE_SECRET.as_bytes(), format!("{at}.{body}").as_bytes());
    let request = Request::post("/hooks/stripe").header("Stripe-Signature", format!("t={at},v1={mac}"));
    request.body(Full::from(body.to_owned())).unwrap()
}

/// A delivery from Posthaste.
pub(crate) fn delivery(id: &str, body: &str) -> Request<Full<Bytes>> {
    delivery_with(&token_of(CURRENT, URL, body.as_bytes(), Some(id)), id, body)
}

/// A delivery with this signature.
pub(crate) fn delivery_with(token: &str, id: &str, body: &str) -> Request<Full<Bytes>> {
    let request = Request::post("/hooks/queue").header("Upstash-Signature", token);
    request.header("Upstash-Message-Id", id).body(Full::from(body.to_owned())).unwrap()
}

/// A response with its whole body.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl Answer {
    pub(crate) async fn of(response: http::Response<ResponseBody>) -> Answer {
        let (parts, body) = response.into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        Answer { status: parts.status.as_u16(), headers: parts.headers, body }
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap()
    }
}

pub(crate) async fn ask(webhook: &Webhook, request: Request<Full<Bytes>>) -> Answer {
    Answer::of(webhook.answer(request).await).await
}

/// Waits with a timeout, so that a test fails instead of hanging.
pub(crate) async fn soon(wait: impl Future<Output = ()>) {
    tokio::time::timeout(Duration::from_secs(10), wait).await.expect("it never happens");
}

/// How the store handles the next calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mood {
    Fine,
    Down,
    Hangs,
    /// Takes keys, and then becomes unavailable.
    DownAfterBegin,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Held {
    UnderWay(u64),
    Done,
}

/// A store that counts calls and can fail. Released locks are free immediately.
pub(crate) struct Store {
    keys: Mutex<HashMap<String, Held>>,
    mood: Mutex<Mood>,
    holders: AtomicUsize,
    asked: AtomicUsize,
}

impl Store {
    pub(crate) fn new() -> Store {
        let keys = Mutex::new(HashMap::new());
        Store { keys, mood: Mutex::new(Mood::Fine), holders: AtomicUsize::new(0), asked: AtomicUsize::new(0) }
    }

    pub(crate) fn be(&self, mood: Mood) {
        *self.mood.lock().unwrap() = mood;
    }

    pub(crate) fn asked(&self) -> usize {
        self.asked.load(Ordering::SeqCst)
    }

    /// The keys that are or were held.
    pub(crate) fn keys(&self) -> Vec<String> {
        self.keys.lock().unwrap().keys().cloned().collect()
    }

    fn answer<'a, T: Send + 'a>(&'a self, is_begin: bool, act: impl FnOnce() -> T + Send + 'a) -> StoreFuture<'a, T> {
        self.asked.fetch_add(1, Ordering::SeqCst);
        let mood = *self.mood.lock().unwrap();
        Box::pin(async move {
            match mood {
                Mood::Down => Err(StoreError::unavailable("connection refused")),
                Mood::DownAfterBegin if !is_begin => Err(StoreError::unavailable("connection refused")),
                Mood::Hangs => std::future::pending().await,
                Mood::Fine | Mood::DownAfterBegin => Ok(act()),
            }
        })
    }

    fn settle(&self, lease: &Lease, next: Option<Held>) -> bool {
        let mut keys = self.keys.lock().unwrap();
        let is_holder = keys.get(&lease.key) == Some(&Held::UnderWay(lease.fence));
        if is_holder {
            match next {
                Some(next) => keys.insert(lease.key.clone(), next),
                None => keys.remove(&lease.key),
            };
        }
        is_holder
    }
}

impl IdempotencyStore for Store {
    fn begin<'a>(&'a self, key: &'a str, lock: Duration) -> StoreFuture<'a, Begun> {
        self.answer(true, move || {
            let mut keys = self.keys.lock().unwrap();
            match keys.get(key) {
                Some(Held::UnderWay(_)) => Begun::UnderWay { retry_after: lock },
                Some(Held::Done) => Begun::Done,
                None => {
                    let fence = self.holders.fetch_add(1, Ordering::SeqCst) as u64 + 1;
                    keys.insert(key.to_owned(), Held::UnderWay(fence));
                    Begun::Acquired(Lease { key: key.to_owned(), token: [0; 16], fence })
                }
            }
        })
    }

    fn extend<'a>(&'a self, lease: &'a Lease, _: Duration) -> StoreFuture<'a, bool> {
        self.answer(false, move || self.settle(lease, Some(Held::UnderWay(lease.fence))))
    }

    fn complete<'a>(&'a self, lease: &'a Lease, _: Duration) -> StoreFuture<'a, bool> {
        self.answer(false, move || self.settle(lease, Some(Held::Done)))
    }

    fn release<'a>(&'a self, lease: &'a Lease) -> StoreFuture<'a, bool> {
        self.answer(false, move || self.settle(lease, None))
    }
}
