//! The route step by step: a request that a step rejects never reaches the next one.

use crate::support::{
    Answer, CURRENT, Mood, NEXT, NOW, STRIPE_SECRET, Store, URL, ask, at, delivery, delivery_with, hmac_hex, stripe,
    stripe_at, token,
};
use bytes::Bytes;
use http::{Request, Uri};
use http_body::{Body, Frame};
use http_body_util::Full;
use posthaste_kit::body::BodyLimits;
use posthaste_kit::clock::Clock;
use posthaste_kit::idempotency::MemoryStore;
use posthaste_kit::receiver::Rejected;
use posthaste_kit::webhook::{
    ANSWER_WITHIN, Authentic, BURST, Event, GitHub, Incoming, RateLimit, STORE_TIMEOUT, Scheme, Stripe, StripeEvent,
    Supabase, SupabaseChange, TOLERANCE, UNVERIFIED_BURST, UNVERIFIED_PER_SECOND, Webhook,
};
use posthaste_kit::{Failure, HandlerResult, Receiver};
use serde_json::json;
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::sync::Semaphore;

pub(crate) const EVENT: &str =
    r#"{"id":"evt_1","type":"invoice.paid","created":1,"livemode":true,"data":{"object":{"amount":5}}}"#;

/// Counts the runs of the handler. Each ends with the given result.
#[derive(Clone)]
struct Effects {
    count: Arc<AtomicUsize>,
    then: Arc<dyn Fn() -> HandlerResult + Send + Sync>,
}

impl Effects {
    fn fine() -> Effects {
        Effects::ending(|| Ok(()))
    }

    fn ending(then: impl Fn() -> HandlerResult + Send + Sync + 'static) -> Effects {
        Effects { count: Arc::default(), then: Arc::new(then) }
    }

    fn count(&self) -> usize {
        self.count.load(Ordering::SeqCst)
    }

    fn run(&self) -> HandlerResult {
        self.count.fetch_add(1, Ordering::SeqCst);
        (self.then)()
    }
}

pub(crate) fn scheme() -> Stripe {
    Stripe::new(STRIPE_SECRET).unwrap()
}

/// A route for Stripe events at [`NOW`].
fn route(store: &Arc<Store>, effects: &Effects) -> Webhook {
    let effects = effects.clone();
    let handler = move |_: Event<StripeEvent>| {
        let effects = effects.clone();
        async move { effects.run() }
    };
    Webhook::new(scheme(), store.clone(), handler).clock(at(NOW))
}

/// A route for deliveries of a queue at [`NOW`].
fn queue_route(store: &Arc<Store>, effects: &Effects) -> Webhook {
    let effects = effects.clone();
    let handler = move |_: Event<serde_json::Value>| {
        let effects = effects.clone();
        async move { effects.run() }
    };
    let receiver = Receiver::new(CURRENT, NEXT).unwrap().at_base("https://app.example.com");
    Webhook::new(receiver, store.clone(), handler).clock(at(NOW))
}

#[tokio::test]
async fn an_event_is_handled_with_its_payload() {
    let (store, seen) = (Arc::new(Store::new()), Arc::new(Mutex::new(Vec::new())));
    let handler = {
        let seen = seen.clone();
        move |event: Event<StripeEvent>| {
            seen.lock().unwrap().push(event);
            async { Ok(()) }
        }
    };
    let webhook = Webhook::new(scheme(), store.clone(), handler).clock(at(NOW)).named("billing");
    let mut request = stripe(EVENT);
    request.headers_mut().insert("x-request-id", "req-7".parse().unwrap());
    let answer = ask(&webhook, request).await;
    assert_eq!((answer.status, answer.body.len()), (204, 0));
    assert_eq!((answer.header("x-request-id"), answer.header("x-event-id")), (Some("req-7"), Some("evt_1")));
    let seen = seen.lock().unwrap();
    let [event] = &seen[..] else { panic!("{} events", seen.len()) };
    assert_eq!((event.id.as_str(), event.kind.as_deref(), event.fence), ("evt_1", Some("invoice.paid"), 1));
    assert_eq!(event.payload.data.object, json!({"amount": 5}));
    assert_eq!(event.body, EVENT);
    assert_eq!(store.keys(), ["webhook:billing:evt_1"]);
    assert!(!format!("{event:?}").contains("v1="), "{event:?}");
}

#[tokio::test]
async fn changes_of_a_database_are_typed_and_filtered() {
    #[derive(serde::Deserialize)]
    struct Order {
        id: u64,
    }
    let (store, seen) = (Arc::new(Store::new()), Arc::new(Mutex::new(Vec::new())));
    let handler = {
        let seen = seen.clone();
        move |event: Event<SupabaseChange<Order>>| {
            seen.lock().unwrap().push((event.table.clone(), event.payload.record().map(|order| order.id)));
            async { Ok(()) }
        }
    };
    let scheme = Supabase::shared_secret("s3cret").unwrap();
    let webhook = Webhook::new(scheme, store.clone(), handler).tables(["orders"]).events(["INSERT", "UPDATE"]);
    let change = |kind: &str, table: &str, record: serde_json::Value, old: serde_json::Value| {
        let body = json!({"type": kind, "table": table, "schema": "public", "record": record, "old_record": old});
        let request = Request::post("/").header("x-webhook-secret", "s3cret");
        request.body(Full::from(body.to_string())).unwrap()
    };
    let none = serde_json::Value::Null;
    let row = json!({"id": 7});
    assert_eq!(ask(&webhook, change("INSERT", "orders", row.clone(), none.clone())).await.status, 204);
    assert_eq!(ask(&webhook, change("UPDATE", "orders", json!({"id": 8}), row.clone())).await.status, 204);
    let asked = store.asked();
    // Not selected, so their contents do not matter.
    assert_eq!(ask(&webhook, change("DELETE", "orders", none.clone(), row.clone())).await.status, 204);
    assert_eq!(ask(&webhook, change("INSERT", "users", json!("another form"), none.clone())).await.status, 204);
    assert_eq!(store.asked(), asked);
    assert_eq!(ask(&webhook, change("INSERT", "orders", json!("another form"), none)).await.status, 422);
    assert_eq!(store.asked(), asked);
    let orders = Some("orders".to_owned());
    assert_eq!(*seen.lock().unwrap(), [(orders.clone(), Some(7)), (orders, Some(8))]);
}

#[tokio::test]
async fn an_event_without_a_known_kind_or_table_matches_no_filter() {
    let (store, effects) = (Arc::new(Store::new()), Effects::fine());
    let body = r#"{"id":"evt_1","created":1,"livemode":true,"data":{"object":{}}}"#;
    for webhook in [route(&store, &effects).events(["invoice.paid"]), route(&store, &effects).tables(["orders"])] {
        let answer = ask(&webhook, stripe(body)).await;
        assert_eq!((answer.status, answer.header("x-event-id"), effects.count()), (204, Some("evt_1"), 0));
    }
}

#[tokio::test]
async fn an_unreadable_event_is_rejected_and_not_filtered_out() {
    let (store, effects) = (Arc::new(Store::new()), Effects::fine());
    let webhook = route(&store, &effects).events(["invoice.paid"]);
    let both = route(&store, &effects).events(["invoice.paid"]).tables(["orders"]);
    for body in ["", "no JSON", &EVENT[1..], "7", r#"{"type":"invoice.paid","type":"invoice.void"}"#] {
        assert_eq!(ask(&webhook, stripe(body)).await.status, 422, "{body}");
        assert_eq!(ask(&both, stripe(body)).await.status, 422, "{body}");
    }
    let answer = ask(&queue_route(&store, &effects).tables(["orders"]), delivery("msg_1", "no JSON")).await;
    assert_eq!(answer.status, 489);
    // A form body, which is not parsed because a header contains the kind.
    let github = Webhook::raw(GitHub::new("s").unwrap(), store.clone(), |_| async { panic!("it is not wanted") });
    let request = Request::post("/").header("x-hub-signature-256", format!("sha256={}", hmac_hex(b"s", b"payload=1")));
    let request = request.header("x-github-delivery", "d-1").header("x-github-event", "push");
    let answer = ask(&github.events(["issues"]), request.body(Full::from("payload=1")).unwrap()).await;
    assert_eq!((answer.status, effects.count(), store.asked()), (204, 0, 0));
}

/// A body that must not be read.
struct Untouchable;

impl Body for Untouchable {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        panic!("the body was read")
    }
}

/// A scheme that must not be called.
struct Unreachable;

impl Scheme for Unreachable {
    fn name(&self) -> &'static str {
        "unreachable"
    }

    fn verify(&self, _: &Incoming<'_>, _: SystemTime) -> Result<Authentic, Rejected> {
        panic!("a signature was looked at")
    }
}

/// A request with a well-formed but wrong signature.
fn forged() -> Request<Full<Bytes>> {
    stripe(EVENT).map(|_| Full::from("{}"))
}

fn unsigned() -> Request<Full<Bytes>> {
    Request::post("/hooks/stripe").body(Full::from(EVENT)).unwrap()
}

#[tokio::test]
async fn unverified_requests_do_not_use_up_the_rate_limit() {
    let (store, effects) = (Arc::new(Store::new()), Effects::fine());
    let webhook = route(&store, &effects);
    for _ in 0..10 * BURST {
        assert_eq!(ask(&webhook, unsigned()).await.status, 401);
        assert_eq!(ask(&webhook, forged()).await.status, 401);
    }
    assert_eq!((ask(&webhook, stripe(EVENT)).await.status, effects.count()), (204, 1));
}

#[tokio::test]
async fn a_request_without_a_signature_is_refused_unread() {
    let webhook = route(&Arc::new(Store::new()), &Effects::fine());
    let answer = Answer::of(webhook.answer(unsigned().map(|_| Untouchable)).await).await;
    assert_eq!(answer.status, 401);
}

#[tokio::test]
async fn a_caller_that_fails_too_often_is_refused_unread_and_no_other_caller_is() {
    let (store, effects) = (Arc::new(Store::new()), Effects::fine());
    let by_address = |parts: &http::request::Parts| Some(parts.headers.get("x-real-ip")?.to_str().ok()?.to_owned());
    let limit = RateLimit::per_second(UNVERIFIED_PER_SECOND).burst(UNVERIFIED_BURST).by(by_address);
    let webhook = route(&store, &effects).unverified_limit(limit);
    let from = |address: &str, mut request: Request<Full<Bytes>>| {
        request.headers_mut().insert("x-real-ip", address.parse().unwrap());
        request
    };
    // Verified requests do not count, no matter how many.
    for number in 0..UNVERIFIED_BURST + 10 {
        let event = EVENT.replace("evt_1", &format!("evt_{number}"));
        assert_eq!(ask(&webhook, from("192.0.2.7", stripe(&event))).await.status, 204);
    }
    let (half, rest) = (UNVERIFIED_BURST / 2, UNVERIFIED_BURST - UNVERIFIED_BURST / 2);
    for request in std::iter::repeat_with(forged).take(half as usize).chain((0..rest).map(|_| unsigned())) {
        assert_eq!(ask(&webhook, from("192.0.2.7", request)).await.status, 401);
    }
    let unread = from("192.0.2.7", stripe(EVENT)).map(|_| Untouchable);
    let answer = Answer::of(webhook.answer(unread).await).await;
    assert_eq!((answer.status, answer.header("retry-after")), (429, Some("1")));
    let ran = effects.count();
    let other = stripe(&EVENT.replace("evt_1", "evt_of_another"));
    assert_eq!((ask(&webhook, from("192.0.2.8", other)).await.status, effects.count()), (204, ran + 1));
    // A caller without an address is unknown, so it is not rejected because of others.
    assert_eq!(ask(&webhook, stripe(EVENT)).await.status, 204);
    let later = webhook.clock(at(NOW + 1));
    assert_eq!(ask(&later, from("192.0.2.7", stripe(EVENT))).await.status, 204);
}

#[tokio::test]
async fn too_many_verified_requests_are_refused() {
    let (store, effects) = (Arc::new(Store::new()), Effects::fine());
    let webhook = route(&store, &effects).rate_limit(RateLimit::per_second(1));
    assert_eq!(ask(&webhook, stripe(EVENT)).await.status, 204);
    let answer = ask(&webhook, stripe(EVENT)).await;
    assert_eq!((answer.status, answer.header("retry-after")), (429, Some("1")));
    assert_eq!(ask(&webhook, forged()).await.status, 401);
    // A second later there is room again.
    let later = webhook.clock(at(NOW + 1));
    assert_eq!(ask(&later, stripe(EVENT)).await.status, 204);
    assert_eq!(effects.count(), 1);
}

#[tokio::test]
async fn bodies_are_limited_before_signatures_are_checked() {
    let store = Arc::new(Store::new());
    let webhook = Webhook::raw(Unreachable, store.clone(), |_| async { Ok(()) });
    let webhook = webhook.body_limits(BodyLimits { bytes: 10, time: Duration::from_millis(20) });
    let long = Request::post("/").body(Full::from("01234567890")).unwrap();
    let answer = ask(&webhook, long).await;
    assert_eq!((answer.status, answer.json()["status"].as_u64()), (413, Some(413)));
    assert_eq!(answer.header("content-type"), Some("application/problem+json"));

    let silent = tokio_stream::pending::<Result<Frame<Bytes>, Infallible>>();
    let slow = Request::post("/").body(http_body_util::StreamBody::new(silent)).unwrap();
    assert_eq!(Answer::of(webhook.answer(slow).await).await.status, 408);
    let broken = tokio_stream::iter([Ok(Frame::data(Bytes::from("{"))), Err(std::io::Error::other("reset"))]);
    let broken = Request::post("/").body(http_body_util::StreamBody::new(broken)).unwrap();
    assert_eq!(Answer::of(webhook.answer(broken).await).await.status, 400);
    assert_eq!(store.asked(), 0);

    // A sender that gets the error has sent the whole body and reads the response.
    let (sent, pieces) = (AtomicUsize::new(0), [4; 5]);
    let frames = pieces.iter().map(|size| {
        sent.fetch_add(*size, Ordering::SeqCst);
        Ok::<_, Infallible>(Frame::data(Bytes::from(vec![0; *size])))
    });
    let long = Request::post("/").body(http_body_util::StreamBody::new(tokio_stream::iter(frames))).unwrap();
    assert_eq!(Answer::of(webhook.answer(long).await).await.status, 413);
    assert_eq!(sent.into_inner(), pieces.iter().sum::<usize>());

    // A queue would retry, so the response asks it not to.
    let limits = BodyLimits { bytes: 10, ..BodyLimits::default() };
    let webhook = queue_route(&store, &Effects::fine()).body_limits(limits);
    let answer = ask(&webhook, delivery("msg_1", "[1,2,3,4,5,6]")).await;
    assert_eq!((answer.status, answer.header("upstash-nonretryable-error")), (489, Some("true")));
}

#[tokio::test(start_paused = true)]
async fn a_body_never_takes_longer_than_the_sender_waits() {
    let webhook = route(&Arc::new(Store::new()), &Effects::fine());
    let silent = tokio_stream::pending::<Result<Frame<Bytes>, Infallible>>();
    let slow = stripe(EVENT).map(|_| http_body_util::StreamBody::new(silent));
    let started = tokio::time::Instant::now();
    assert_eq!(Answer::of(webhook.answer(slow).await).await.status, 408);
    assert!(started.elapsed() <= ANSWER_WITHIN + Duration::from_millis(1), "{:?}", started.elapsed());
}

#[tokio::test]
async fn unverified_requests_get_the_same_response_and_have_no_effect() {
    let (store, effects) = (Arc::new(Store::new()), Effects::fine());
    let webhook = route(&store, &effects);
    let with = |value: Option<&str>, body: &'static str| {
        let mut request = stripe(EVENT).map(|_| Full::from(body));
        request.headers_mut().insert("x-request-id", "same".parse().unwrap());
        match value {
            Some(value) => drop(request.headers_mut().insert("stripe-signature", value.parse().unwrap())),
            None => drop(request.headers_mut().remove("stripe-signature")),
        }
        request
    };
    let good = stripe(EVENT).headers()["stripe-signature"].to_str().unwrap().to_owned();
    let old = good.replace(&NOW.to_string(), &(NOW - 301).to_string());
    let forged = [
        with(None, EVENT),
        with(Some("malformed"), EVENT),
        with(Some(&good.replace("v1", "v0")), EVENT),
        with(Some(&old), EVENT),
        // A body that no parser should see.
        with(Some(&good), "{\"a\":"),
        with(Some(&good), ""),
    ];
    let mut answers = Vec::new();
    for request in forged {
        let answer = ask(&webhook, request).await;
        assert_eq!((answer.status, answer.header("x-event-id")), (401, None));
        answers.push((answer.headers, answer.body));
    }
    answers.dedup();
    assert_eq!(answers.len(), 1, "the answer tells what was wrong: {answers:?}");
    assert_eq!((store.asked(), effects.count()), (0, 0));
}

#[tokio::test]
async fn a_payload_of_another_form_is_refused_before_the_store_is_asked() {
    let (store, effects) = (Arc::new(Store::new()), Effects::fine());
    for body in ["", "{}", "[1]", "{\"id\":1}", "\u{feff}{}"] {
        assert_eq!(ask(&route(&store, &effects), stripe(body)).await.status, 422, "{body}");
    }
    let answer = ask(&queue_route(&store, &effects), delivery("msg_1", "no JSON")).await;
    assert_eq!((answer.status, answer.header("upstash-nonretryable-error")), (489, Some("true")));
    assert_eq!((store.asked(), effects.count()), (0, 0));
    let raw = Webhook::raw(scheme(), store.clone(), |event: Event<()>| async move {
        assert_eq!(event.body, "no JSON");
        Ok(())
    });
    assert_eq!(ask(&raw.clock(at(NOW)), stripe("no JSON")).await.status, 204);
}

#[tokio::test]
async fn a_repeated_event_is_handled_once() {
    let (store, effects) = (Arc::new(Store::new()), Effects::fine());
    let webhook = route(&store, &effects);
    for _ in 0..3 {
        assert_eq!(ask(&webhook, stripe(EVENT)).await.status, 204);
    }
    assert_eq!(effects.count(), 1);
    assert_eq!(ask(&webhook, stripe(&EVENT.replace("evt_1", "evt_2"))).await.status, 204);
    // Another route has its own effect.
    assert_eq!(ask(&webhook.named("other"), stripe(EVENT)).await.status, 204);
    assert_eq!(effects.count(), 3);
}

/// The sender's clock is as far ahead as allowed, and an attacker replays the recorded request as late as its signature
/// is valid.
#[tokio::test]
async fn an_event_is_remembered_for_as_long_as_its_signature_is_valid() {
    let time = |offset: i64| UNIX_EPOCH + Duration::from_millis((NOW * 1_000).saturating_add_signed(offset));
    let (effects, shown) = (Effects::fine(), Arc::new(Mutex::new(time(-300_000))));
    let clock = {
        let shown = shown.clone();
        Clock::from_fn(move || *shown.lock().unwrap())
    };
    let handler = {
        let effects = effects.clone();
        move |_: Event<()>| {
            let effects = effects.clone();
            async move { effects.run() }
        }
    };
    let store = Arc::new(MemoryStore::with_clock(clock.clone()));
    let webhook = Webhook::raw(scheme(), store, handler).keep(Duration::from_secs(1)).clock(clock);
    for (offset, status) in [(-300_000, 204), (0, 204), (300_999, 204), (301_000, 401)] {
        *shown.lock().unwrap() = time(offset);
        assert_eq!((ask(&webhook, stripe(EVENT)).await.status, effects.count()), (status, 1), "{offset}");
    }
}

/// Stripe repeats an event for three days, with a new signature each time.
#[tokio::test]
async fn an_event_that_its_sender_repeats_after_days_is_not_handled_again() {
    const HOUR: u64 = 3_600;
    let (effects, shown) = (Effects::fine(), Arc::new(AtomicU64::new(NOW)));
    let clock = {
        let shown = shown.clone();
        Clock::from_fn(move || UNIX_EPOCH + Duration::from_secs(shown.load(Ordering::SeqCst)))
    };
    let handler = {
        let effects = effects.clone();
        move |_: Event<()>| {
            let effects = effects.clone();
            async move { effects.run() }
        }
    };
    let store = Arc::new(MemoryStore::with_clock(clock.clone()));
    let webhook = Webhook::raw(scheme(), store, handler).clock(clock);
    for (hours, runs) in [(0, 1), (1, 1), (24, 1), (72, 1), (95, 1), (96, 2)] {
        shown.store(NOW + hours * HOUR, Ordering::SeqCst);
        let answer = ask(&webhook, stripe_at(EVENT, NOW + hours * HOUR)).await;
        assert_eq!((answer.status, effects.count()), (204, runs), "after {hours} h");
    }
}

#[tokio::test]
async fn a_recorded_delivery_of_a_queue_is_handled_once_under_any_id() {
    // With an id that Posthaste signs, and without one, as hosted QStash sends it.
    let signed = delivery("msg_1", "{}");
    let hosted = delivery_with(&token(CURRENT, URL, b"{}"), "msg_1", "{}");
    for (recorded, same, other) in [(signed, 204, 401), (hosted, 409, 409)] {
        let (store, effects) = (Arc::new(Store::new()), Effects::fine());
        let webhook = queue_route(&store, &effects);
        assert_eq!(ask(&webhook, recorded.clone()).await.status, 204);
        let mut renamed = recorded.clone();
        renamed.headers_mut().insert("upstash-message-id", "msg_2".parse().unwrap());
        for (request, status) in [(recorded, same), (renamed, other)] {
            assert_eq!((ask(&webhook, request).await.status, effects.count()), (status, 1));
        }
        // The genuine message with that id is still handled.
        assert_eq!((ask(&webhook, delivery("msg_2", "{}")).await.status, effects.count()), (204, 2));
    }
}

#[tokio::test]
async fn a_recorded_delivery_of_a_queue_does_not_repeat_a_failure() {
    let (store, effects) = (Arc::new(Store::new()), Effects::ending(|| Err("the database is away".into())));
    let webhook = queue_route(&store, &effects);
    let recorded = delivery("msg_1", "{}");
    assert_eq!(ask(&webhook, recorded.clone()).await.status, 500);
    let answer = ask(&webhook, recorded).await;
    assert_eq!((answer.status, answer.header("retry-after"), effects.count()), (409, None, 1));
    // The next attempt of the queue has its own signature.
    assert_eq!((ask(&webhook, delivery("msg_1", "{}")).await.status, effects.count()), (500, 2));
}

#[tokio::test]
async fn a_signature_that_expires_while_the_body_arrives_is_rejected() {
    let (store, effects, asked) = (Arc::new(Store::new()), Effects::fine(), AtomicU64::new(0));
    // Valid when the request arrives, but no longer one second later.
    let clock = Clock::from_fn(move || {
        UNIX_EPOCH + Duration::from_secs(NOW + TOLERANCE.as_secs() + asked.fetch_add(1, Ordering::SeqCst))
    });
    let answer = ask(&route(&store, &effects).clock(clock), stripe(EVENT)).await;
    assert_eq!((answer.status, effects.count()), (401, 0));
}

/// Two endpoints of one sender, with a shared store and a shared sender name.
#[tokio::test]
async fn routes_without_a_name_are_identified_by_their_path() {
    let (store, effects) = (Arc::new(Store::new()), Effects::fine());
    let to = |uri: &'static str| {
        let mut request = stripe(EVENT);
        *request.uri_mut() = Uri::from_static(uri);
        request
    };
    for (uri, count) in [("/hooks/a", 1), ("/hooks/b", 2), ("/hooks/a?again", 2)] {
        assert_eq!((ask(&route(&store, &effects), to(uri)).await.status, effects.count()), (204, count), "{uri}");
    }
    let mut keys = store.keys();
    keys.sort();
    assert_eq!(keys, ["webhook:stripe:/hooks/a:evt_1", "webhook:stripe:/hooks/b:evt_1"]);
}

#[tokio::test]
async fn of_many_at_once_one_is_handled() {
    let (store, runs, go) = (Arc::new(Store::new()), Arc::new(AtomicUsize::new(0)), Arc::new(Semaphore::new(0)));
    let handler = {
        let (runs, go) = (runs.clone(), go.clone());
        move |_: Event<StripeEvent>| {
            let (runs, go) = (runs.clone(), go.clone());
            async move {
                runs.fetch_add(1, Ordering::SeqCst);
                go.acquire().await?.forget();
                Ok(())
            }
        }
    };
    let webhook = Webhook::new(scheme(), store.clone(), handler).clock(at(NOW));
    let mut answers = tokio::task::JoinSet::new();
    for _ in 0..100 {
        let webhook = webhook.clone();
        answers.spawn(async move { ask(&webhook, stripe(EVENT)).await });
    }
    for _ in 0..99 {
        let answer = answers.join_next().await.unwrap().unwrap();
        assert_eq!((answer.status, answer.header("retry-after")), (409, Some("300")));
    }
    go.add_permits(1);
    assert_eq!(answers.join_next().await.unwrap().unwrap().status, 204);
    assert_eq!(runs.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn the_result_of_the_handler_determines_the_response() {
    type Ending = fn() -> HandlerResult;
    let cases: [(Ending, u16, u16, Option<&str>); 5] = [
        (|| Err("the database is away".into()), 500, 500, None),
        (|| Err(Failure::retryable("busy").after(Duration::from_millis(1_500))), 500, 500, Some("2")),
        (|| Err(Failure::retryable("busy").after(Duration::MAX)), 500, 500, Some("86400")),
        (|| Err(Failure::permanent("no such customer")), 422, 489, None),
        (|| panic!("a bug"), 500, 500, None),
    ];
    for (ending, status, status_for_queue, retry_after) in cases {
        let (store, effects) = (Arc::new(Store::new()), Effects::ending(ending));
        let webhook = route(&store, &effects);
        let answer = ask(&webhook, stripe(EVENT)).await;
        assert_eq!((answer.status, answer.header("retry-after")), (status, retry_after));
        let text = String::from_utf8_lossy(&answer.body).into_owned();
        assert!(["database", "busy", "customer", "bug"].iter().all(|told| !text.contains(told)), "{text}");
        let answer = ask(&queue_route(&store, &effects), delivery("msg_1", "{}")).await;
        assert_eq!(answer.status, status_for_queue);
        // Neither is marked, so a repeated event is handled again.
        assert!(!store.keys().iter().any(|key| key.starts_with("webhook:")));
        ask(&webhook, stripe(EVENT)).await;
        assert_eq!(effects.count(), 3);
    }
}

#[tokio::test(start_paused = true)]
async fn without_its_store_nothing_is_handled() {
    for mood in [Mood::Down, Mood::Hangs] {
        let (store, effects) = (Arc::new(Store::new()), Effects::fine());
        store.be(mood);
        let webhook = route(&store, &effects);
        let started = tokio::time::Instant::now();
        let answer = ask(&webhook, stripe(EVENT)).await;
        assert_eq!((answer.status, answer.header("retry-after"), effects.count()), (503, Some("5"), 0), "{mood:?}");
        assert!(started.elapsed() <= STORE_TIMEOUT + Duration::from_millis(1));
        store.be(Mood::Fine);
        assert_eq!((ask(&webhook, stripe(EVENT)).await.status, effects.count()), (204, 1));
    }
}

#[tokio::test]
async fn a_success_stays_a_success_if_the_store_does_not_record_it() {
    let (store, effects) = (Arc::new(Store::new()), Effects::fine());
    store.be(Mood::DownAfterBegin);
    let webhook = route(&store, &effects);
    assert_eq!(ask(&webhook, stripe(EVENT)).await.status, 204);
    store.be(Mood::Fine);
    assert_eq!((ask(&webhook, stripe(EVENT)).await.status, effects.count()), (409, 1));
}

#[tokio::test]
async fn endless_durations_are_cut_to_the_maximum() {
    let (store, effects, never) = (Arc::new(MemoryStore::new()), Effects::fine(), Duration::MAX);
    let handler = {
        let effects = effects.clone();
        move |_: Event<()>| {
            let effects = effects.clone();
            async move { effects.run() }
        }
    };
    let webhook = Webhook::raw(scheme().tolerance(never), store, handler).clock(at(NOW));
    let webhook = webhook.lock(never).keep(never).answer_within(never);
    for _ in 0..2 {
        assert_eq!((ask(&webhook, stripe(EVENT)).await.status, effects.count()), (204, 1));
    }
}

#[tokio::test]
async fn events_are_forwarded_without_a_store_and_with_their_id() {
    let (published, is_up) = (Arc::new(Mutex::new(Vec::new())), Arc::new(AtomicUsize::new(0)));
    let publish = {
        let (published, is_up) = (published.clone(), is_up.clone());
        move |event: Event<()>| {
            let (published, is_up) = (published.clone(), is_up.clone());
            async move {
                if is_up.load(Ordering::SeqCst) == 0 {
                    return Err(Failure::retryable("the queue is away"));
                }
                published.lock().unwrap().push((event.id.to_string(), event.body));
                Ok(())
            }
        }
    };
    let webhook = Webhook::forward(scheme(), publish).clock(at(NOW)).events(["invoice.paid"]);
    assert_eq!(ask(&webhook, stripe(EVENT)).await.status, 500);
    is_up.store(1, Ordering::SeqCst);
    assert_eq!(ask(&webhook, stripe(EVENT)).await.status, 204);
    assert_eq!(ask(&webhook, stripe(&EVENT.replace("paid", "void"))).await.status, 204);
    assert_eq!(*published.lock().unwrap(), [("evt_1".to_owned(), Bytes::from(EVENT))]);
}

#[tokio::test]
async fn a_request_without_a_valid_id_gets_one() {
    let webhook = route(&Arc::new(Store::new()), &Effects::fine());
    let mut names = Vec::new();
    for given in [None, Some(""), Some("two words"), Some(&*"x".repeat(1_000))] {
        let mut request = Request::post(Uri::from_static("/")).body(Full::from("")).unwrap();
        if let Some(given) = given {
            request.headers_mut().insert("x-request-id", given.parse().unwrap());
        }
        let answer = ask(&webhook, request).await;
        let name = answer.header("x-request-id").unwrap().to_owned();
        assert_eq!(answer.json()["instance"], name);
        assert!(name.len() >= 32 && name.len() < 64 && !names.contains(&name), "{name}");
        names.push(name);
    }
}
