//! The test receiver of the console: a real HTTP receiver on a loopback port of its own, whose URL says what it answers,
//! and which remembers what came. For the first five minutes, before anybody has written an endpoint.
//!
//! [`Inboxes`] is what it remembers, in RAM and bounded; [`Receiver`] answers requests; [`script`] is what a URL asks
//! for, [`signed`] whether a delivery was ours.

mod script;
mod signed;

pub(crate) use script::{InvalidScript, Script};
pub(crate) use signed::SignatureCheck;

use crate::api::READ_TIMEOUT;
use crate::app::App;
use crate::http::{HungUp, Serve};
use axum::body::Body;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Request, StatusCode, header};
use axum::response::{IntoResponse, Response};
use http_body_util::BodyExt;
use posthaste_store::Part;
use posthaste_wire::encoding::header_text;
use posthaste_wire::header::canonical;
use posthaste_wire::id::{MessageId, TenantId};
use posthaste_wire::redact::{Marks, RedactFields};
use posthaste_wire::signature::body_hash_of;
use posthaste_wire::time::Timestamp;
use script::Step;
use sha2::{Digest, Sha256};
use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::Semaphore;

/// Deliveries that are remembered per tenant; of more, the oldest are forgotten.
const RECEIVED_MAX: usize = 50;
/// Bytes of a body that are remembered; the rest is read and forgotten.
const RECEIVED_BODY_BYTES: usize = 4 * 1024;
/// Bytes of names and values of headers that are remembered; the headers behind are forgotten.
const RECEIVED_HEADER_BYTES: usize = 8 * 1024;
/// Requests of a tenant that are open at once, most of them waiting for a late answer; one more is answered with 503. More
/// than the deliveries that one destination gets at once by default.
const OPEN_MAX: usize = 256;
/// How long a request may be open; then the connection is closed without an answer. Longer than any delay of an answer.
const OPEN_TIME_MAX: Duration = Duration::from_secs(15 * 60);

const SIGNATURE: &str = "upstash-signature";
const NON_RETRYABLE: &str = "upstash-nonretryable-error";

/// A delivery that came.
#[derive(Clone, Debug)]
pub(crate) struct Received {
    pub(crate) at: Timestamp,
    /// The message, if it says which.
    pub(crate) message: Option<MessageId>,
    /// 1 for the first; of what says nothing, too.
    pub(crate) attempt: u32,
    pub(crate) method: String,
    /// What the URL asked for.
    pub(crate) script: String,
    /// As they came, but for the signature and what the message hides.
    pub(crate) headers: Vec<(String, String)>,
    /// The first bytes, or what stands for a body that the message hides.
    pub(crate) body: Vec<u8>,
    /// How long the body was.
    pub(crate) body_bytes: u64,
    pub(crate) signature: SignatureCheck,
    /// What was answered, or is about to be.
    pub(crate) answer: Step,
}

impl Received {
    /// Whether more came than is remembered.
    pub(crate) fn is_cut(&self) -> bool {
        self.body_bytes > RECEIVED_BODY_BYTES as u64
    }
}

/// What the receiver remembers, of each tenant.
#[derive(Debug)]
pub(crate) struct Inboxes {
    address: SocketAddr,
    tenants: HashMap<TenantId, Inbox>,
}

#[derive(Debug)]
struct Inbox {
    /// What only the tenant knows: a part of its URL.
    secret: String,
    received: Mutex<VecDeque<Received>>,
    /// A place for each request that may be open.
    places: Semaphore,
}

impl Inboxes {
    /// For a receiver at this address and these tenants.
    pub(crate) fn new(address: SocketAddr, tenants: impl Iterator<Item = TenantId>) -> Inboxes {
        let inbox = || Inbox {
            secret: bs58::encode(crate::clock::random::<16>()).into_string(),
            received: Mutex::default(),
            places: Semaphore::new(OPEN_MAX),
        };
        Inboxes { address, tenants: tenants.map(|tenant| (tenant, inbox())).collect() }
    }

    /// The tenant's own URL; a script may follow, behind a slash.
    pub(crate) fn url(&self, tenant: TenantId) -> Option<String> {
        self.tenants.get(&tenant).map(|inbox| format!("http://{}/{}", self.address, inbox.secret))
    }

    /// What came for a tenant, newest first.
    pub(crate) fn received(&self, tenant: TenantId) -> Vec<Received> {
        self.tenants.get(&tenant).map_or(Vec::new(), |inbox| inbox.received().iter().rev().cloned().collect())
    }

    /// Forgets what came for a tenant; says how much that was.
    pub(crate) fn forget(&self, tenant: TenantId) -> usize {
        self.tenants.get(&tenant).map_or(0, |inbox| inbox.received().drain(..).count())
    }

    fn owner(&self, secret: &str) -> Option<(TenantId, &Inbox)> {
        self.tenants.iter().find(|(_, inbox)| inbox.secret == secret).map(|(tenant, inbox)| (*tenant, inbox))
    }
}

impl Inbox {
    fn received(&self) -> MutexGuard<'_, VecDeque<Received>> {
        self.received.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn put(&self, received: Received) {
        let mut all = self.received();
        if all.len() >= RECEIVED_MAX {
            all.pop_front();
        }
        all.push_back(received);
    }
}

/// Answers deliveries as their URLs ask for.
pub(crate) struct Receiver {
    pub(crate) app: Arc<App>,
    pub(crate) inboxes: Arc<Inboxes>,
}

impl Serve for Receiver {
    /// An attempt that has ended waits for no answer, and nothing else would end one that hangs.
    const HALF_CLOSE: bool = false;

    async fn serve(&self, request: Request<Body>) -> Result<Response, HungUp> {
        within(OPEN_TIME_MAX, self.respond(request)).await
    }
}

impl Receiver {
    async fn respond(&self, request: Request<Body>) -> Response {
        let path = request.uri().path().trim_start_matches('/').to_owned();
        let (secret, script) = path.split_once('/').unwrap_or((&path, ""));
        let Some((tenant, inbox)) = self.inboxes.owner(secret) else {
            return (StatusCode::NOT_FOUND, "test receiver not found\n").into_response();
        };
        let script = match script.parse::<Script>() {
            Ok(script) => script,
            Err(invalid) => return (StatusCode::BAD_REQUEST, format!("{invalid}\n")).into_response(),
        };
        let Ok(_place) = inbox.places.try_acquire() else {
            let text = format!("too many requests: this tenant has {OPEN_MAX} open requests at the test receiver\n");
            return closing((StatusCode::SERVICE_UNAVAILABLE, text).into_response());
        };
        match self.receive(tenant, request, &script).await {
            Ok(received) => {
                let (step, attempt) = (received.answer, received.attempt);
                inbox.put(received);
                answer(step, attempt).await
            }
            Err(unread) => unread.answer(),
        }
    }

    /// Reads a request to its end.
    async fn receive(&self, tenant: TenantId, request: Request<Body>, script: &Script) -> Result<Received, Unread> {
        let at = self.app.clock.now();
        let (parts, body) = request.into_parts();
        let marks = self.app.marks_of(tenant);
        let ReadBody { hash, mark, mut kept, body_bytes } = read(body, &marks).await?;
        let url = format!("http://{}{}", self.inboxes.address, parts.uri);
        let signature = match self.app.keys.of(tenant) {
            Ok(keys) => {
                let arrived = signed::Arrived {
                    token: text(&parts.headers, SIGNATURE),
                    url: &url,
                    body_hash: &body_hash_of(&hash),
                    message_id: text(&parts.headers, "upstash-message-id"),
                };
                signed::check(&keys, arrived, at)
            }
            Err(_) => SignatureCheck::Unknown("the keys cannot be read"),
        };
        let message = text(&parts.headers, "upstash-message-id").and_then(|id| id.parse().ok());
        let hidden = self.hidden(tenant, message, &signature).await;
        let retried: u32 = text(&parts.headers, "upstash-retried").and_then(|text| text.parse().ok()).unwrap_or(0);
        if hidden.body && body_bytes > 0 {
            kept = mark.into_bytes();
        }
        // A character that the cut has torn apart would make the rest look like no text.
        if let Err(torn) = std::str::from_utf8(&kept)
            && torn.error_len().is_none()
            && body_bytes > kept.len() as u64
        {
            kept.truncate(torn.valid_up_to());
        }
        Ok(Received {
            at,
            message,
            attempt: retried.saturating_add(1),
            method: parts.method.to_string(),
            script: script.to_string(),
            headers: kept_headers(&parts.headers, &hidden, &marks),
            body: kept,
            body_bytes,
            signature,
            answer: script.step(retried),
        })
    }

    /// What the message asks answers of the API to hide. If we sent it and no longer know it, everything.
    async fn hidden(&self, tenant: TenantId, id: Option<MessageId>, signature: &SignatureCheck) -> RedactFields {
        let all = || RedactFields { body: true, all_headers: true, ..RedactFields::default() };
        let Some(id) = id.filter(|_| signature.is_ours()) else { return RedactFields::default() };
        match self.app.look_up(move |store| store.message(tenant, id, Part::Head)).await {
            Ok(Some(record)) => record.message.spec.redact.clone(),
            Ok(None) | Err(_) => all(),
        }
    }
}

/// What came of a body.
struct ReadBody {
    hash: [u8; 32],
    /// What stands for the body if it is hidden.
    mark: String,
    /// The first bytes.
    kept: Vec<u8>,
    body_bytes: u64,
}

/// Why a body was not read to its end.
#[derive(Debug, PartialEq, Eq)]
enum Unread {
    Broken,
    Slow,
}

impl Unread {
    fn answer(self) -> Response {
        let seconds = READ_TIMEOUT.as_secs();
        closing(match self {
            Unread::Broken => (StatusCode::BAD_REQUEST, "the body ended early\n").into_response(),
            Unread::Slow => {
                let text = format!("the body took longer than {seconds} s to arrive\n");
                (StatusCode::REQUEST_TIMEOUT, text).into_response()
            }
        })
    }
}

/// Reads a body to its end, for as long as the API would.
async fn read(body: Body, marks: &Marks) -> Result<ReadBody, Unread> {
    tokio::time::timeout(READ_TIMEOUT, read_all(body, marks)).await.map_err(|_| Unread::Slow)?
}

async fn read_all(mut body: Body, marks: &Marks) -> Result<ReadBody, Unread> {
    let (mut hash, mut mark, mut kept, mut body_bytes) = (Sha256::new(), marks.begin(), Vec::new(), 0);
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame.map_err(|_| Unread::Broken)?.into_data() else { continue };
        hash.update(&data);
        mark.update(&data);
        kept.extend_from_slice(&data[..data.len().min(RECEIVED_BODY_BYTES - kept.len())]);
        body_bytes += data.len() as u64;
    }
    Ok(ReadBody { hash: hash.finalize().into(), mark: mark.finish(), kept, body_bytes })
}

fn text<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name)?.to_str().ok()
}

/// The headers but for the signature, which opens doors until it expires.
fn kept_headers(headers: &HeaderMap, hidden: &RedactFields, marks: &Marks) -> Vec<(String, String)> {
    let mut room = RECEIVED_HEADER_BYTES;
    let shown = |(name, value): (&HeaderName, &HeaderValue)| {
        let value = match hidden.hides_header(name.as_str()) {
            true => marks.mark(value.as_bytes()),
            false => header_text(value.as_bytes()).into_owned(),
        };
        room = room.checked_sub(name.as_str().len() + value.len())?;
        Some((canonical(name.as_str()), value))
    };
    headers.iter().filter(|(name, _)| *name != SIGNATURE).map_while(shown).collect()
}

/// The answer, if there is one in time.
async fn within(time: Duration, answer: impl Future<Output = Response>) -> Result<Response, HungUp> {
    tokio::time::timeout(time, answer).await.map_err(|_| HungUp)
}

async fn answer(step: Step, attempt: u32) -> Response {
    let Step::Answer { status, delay } = step else { return std::future::pending().await };
    tokio::time::sleep(delay).await;
    let text = format!("the test receiver returned {} for attempt {attempt}\n", status.as_u16());
    let mut response = (status, text).into_response();
    if status.as_u16() == 489 {
        response.headers_mut().insert(NON_RETRYABLE, HeaderValue::from_static("true"));
    }
    closing(response)
}

/// Nothing outlives the answer: a connection that is kept would be one more thing to end.
fn closing(mut response: Response) -> Response {
    response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_tenant_has_its_own_url_and_a_bounded_list() {
        let inboxes = Inboxes::new("127.0.0.1:9".parse().unwrap(), [TenantId(1), TenantId(2)].into_iter());
        let (first, second) = (inboxes.url(TenantId(1)).unwrap(), inboxes.url(TenantId(2)).unwrap());
        assert_ne!(first, second);
        assert_eq!(inboxes.url(TenantId(3)), None);
        let secret = first.rsplit('/').next().unwrap();
        let (tenant, inbox) = inboxes.owner(secret).unwrap();
        assert_eq!(tenant, TenantId(1));
        assert!(inboxes.owner("").is_none() && inboxes.owner(&secret[1..]).is_none());
        for number in 0..RECEIVED_MAX as u32 + 3 {
            inbox.put(Received {
                at: Timestamp(0),
                message: None,
                attempt: number,
                method: "POST".into(),
                script: String::new(),
                headers: Vec::new(),
                body: Vec::new(),
                body_bytes: 0,
                signature: SignatureCheck::Unsigned,
                answer: Step::Hang,
            });
        }
        let attempts: Vec<u32> = inboxes.received(TenantId(1)).iter().map(|received| received.attempt).collect();
        assert_eq!((attempts.len(), attempts[0]), (RECEIVED_MAX, RECEIVED_MAX as u32 + 2), "newest first");
        assert!(inboxes.received(TenantId(2)).is_empty());
        assert_eq!((inboxes.forget(TenantId(2)), inboxes.forget(TenantId(1))), (0, RECEIVED_MAX));
        assert!(inboxes.received(TenantId(1)).is_empty());
    }

    /// A body of which nothing arrives.
    struct Silent;

    impl http_body::Body for Silent {
        type Data = bytes::Bytes;
        type Error = std::convert::Infallible;

        fn poll_frame(
            self: std::pin::Pin<&mut Self>,
            _: &mut std::task::Context<'_>,
        ) -> std::task::Poll<Option<Result<http_body::Frame<bytes::Bytes>, Self::Error>>> {
            std::task::Poll::Pending
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_stops_arriving_times_out_as_at_the_api() {
        let marks = Marks::of(&[7; 32], TenantId(1));
        let in_time = tokio::time::timeout(READ_TIMEOUT + Duration::from_secs(1), read(Body::new(Silent), &marks));
        let unread = in_time.await.expect("it is let go of").err().expect("it is not read");
        assert_eq!(unread, Unread::Slow);
        let answer = unread.answer();
        assert_eq!(answer.status(), StatusCode::REQUEST_TIMEOUT);
        assert_eq!(answer.headers()[header::CONNECTION], "close");
        let whole = read(Body::from("whole"), &marks).await.map(|read| (read.kept, read.body_bytes));
        assert_eq!(whole, Ok((b"whole".to_vec(), 5)));
    }

    #[tokio::test]
    async fn a_request_without_a_response_is_closed_after_a_while() {
        let hung = within(Duration::from_millis(1), answer(Step::Hang, 1));
        let hung = tokio::time::timeout(Duration::from_secs(10), hung).await.expect("it does not hang for ever");
        assert_eq!(hung.err(), Some(HungUp));
        let at_once = answer(Step::Answer { status: StatusCode::OK, delay: Duration::ZERO }, 1);
        assert!(within(OPEN_TIME_MAX, at_once).await.is_ok());
        assert!(OPEN_TIME_MAX > Duration::from_millis(script::ANSWER_DELAY_MS_MAX), "a late answer is still one");
    }

    #[test]
    fn headers_are_kept_up_to_a_bound_and_the_signature_never() {
        let mut headers = HeaderMap::new();
        for (name, value) in [("upstash-signature", "eyJ"), ("x-secret", "s"), ("x-plain", "p")] {
            headers.insert(HeaderName::from_static(name), HeaderValue::from_static(value));
        }
        let hidden = RedactFields::parse("header[X-Secret]").unwrap();
        let marks = Marks::of(&[0; 32], TenantId(1));
        let kept = kept_headers(&headers, &hidden, &marks);
        let of = |name: &str| kept.iter().find(|(other, _)| other == name).map(|(_, value)| value.as_str());
        assert_eq!((of("Upstash-Signature"), of("X-Plain")), (None, Some("p")));
        assert!(of("X-Secret").unwrap().starts_with("REDACTED:"));
        headers.insert("x-long", "x".repeat(RECEIVED_HEADER_BYTES).parse().unwrap());
        headers.insert("x-after", HeaderValue::from_static("y"));
        assert!(kept_headers(&headers, &hidden, &marks).iter().all(|(name, _)| name != "X-Long" && name != "X-After"));
    }
}
