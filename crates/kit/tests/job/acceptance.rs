//! Requests that are not valid deliveries have no effect: the store is not called, and the handler does not run.

use crate::support::{Answer, Harness, KEY, NEXT_KEY, URL, message};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::{HeaderValue, Request};
use http_body::Frame;
use http_body_util::{Full, StreamBody};
use posthaste_kit::body::{BODY_BYTES_MAX, BodyLimits, DRAIN_BYTES_MAX};
use posthaste_kit::idempotency::IdempotencyStore;
use posthaste_kit::job::{JobHandler, UrlNotConfigured};
use posthaste_kit::testing::{ManualClock, TestDelivery};
use posthaste_kit::{Failure, Receiver};
use serde_json::{Value, json};
use std::convert::Infallible;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, UNIX_EPOCH};

/// Neither the store nor the handler was called.
fn assert_untouched(harness: &Harness, case: &str) {
    assert_eq!(harness.store.calls(), Vec::<&str>::new(), "{case}");
    assert_eq!(harness.witness.began(), 0, "{case}");
}

#[tokio::test]
async fn no_hostile_token_reaches_the_store_or_the_handler() {
    let vectors: Value = serde_json::from_str(include_str!("../../../../vectors/signature.json")).unwrap();
    let text = |path: &str| vectors.pointer(path).and_then(Value::as_str).unwrap();
    let clock = ManualClock::at(UNIX_EPOCH + Duration::from_secs(vectors["now"].as_u64().unwrap()));
    let mut answers = Vec::new();
    let (mut rejected, mut accepted) = (0, 0);
    for case in vectors["jwt"].as_array().unwrap() {
        let id = case["id"].as_str().unwrap();
        let Ok(token) = HeaderValue::from_str(case["token"].as_str().unwrap()) else { continue };
        let harness = Harness::good();
        let receiver = Receiver::new(text("/keys/current"), text("/keys/next")).unwrap().clock(clock.clock());
        let receiver = receiver.leeway(Duration::from_secs(case["leeway_s"].as_u64().unwrap_or(0)));
        let receiver = match case.get("url") {
            Some(Value::Null) => receiver.at_any_url(),
            _ => receiver.at_url(text("/url")),
        };
        let limits = BodyLimits {
            bytes: case["body_limit"].as_u64().map_or(1 << 20, |limit| usize::try_from(limit).unwrap()),
            ..BodyLimits::default()
        };
        let (store, seen) = (harness.store.clone(), harness.witness.clone());
        let jobs = JobHandler::raw("any", receiver, store, move |_| {
            seen.begin();
            async { Ok(()) }
        });
        let jobs = jobs.unwrap().body_limits(limits);
        let body = STANDARD.decode(case["body_b64"].as_str().unwrap_or_default()).unwrap();
        let message_id = case["message_id"].as_str().unwrap_or("msg_1");
        let mut request = TestDelivery::to(URL).message_id(message_id).body(body).unsigned();
        request.headers_mut().insert("upstash-signature", token);
        request.headers_mut().insert("x-request-id", HeaderValue::from_static("req_same"));
        let answer = Answer::read(jobs.handle(request).await).await;
        if case["expect"] == "accept" {
            assert_eq!(answer.status, 204, "{id}");
            accepted += 1;
        } else {
            assert_untouched(&harness, id);
            rejected += 1;
            if case.get("body_limit").is_some() {
                assert_eq!(answer.status, 489, "{id}");
            } else {
                assert_eq!(answer.status, 401, "{id}");
                answers.push(answer.body);
            }
        }
    }
    assert!(rejected >= 80 && accepted >= 8, "{rejected} rejected, {accepted} accepted: were the vectors read?");
    // The caller gets the same response for every reason.
    answers.dedup();
    assert_eq!(answers.len(), 1);
}

#[tokio::test]
async fn a_signature_is_checked_before_the_body_is_parsed() {
    let harness = Harness::good();
    let deep = TestDelivery::to(URL).body("[".repeat(100_000));
    let answer = Answer::read(harness.jobs.handle(deep.sign("sig_wrong", harness.clock.now())).await).await;
    assert_eq!(answer.status, 401);
    assert_untouched(&harness, "wrong key");
    let unsigned = Answer::read(harness.jobs.handle(deep.unsigned()).await).await;
    assert_eq!((unsigned.status, unsigned.problem()["title"].as_str()), (401, answer.problem()["title"].as_str()));
    assert_untouched(&harness, "unsigned");
    // With a valid signature it is an invalid message like any other.
    assert_eq!(harness.deliver(&deep).await.status, 489);
}

#[tokio::test]
async fn a_body_over_the_limit_is_not_retried_and_has_no_effect() {
    let limits = BodyLimits { bytes: 24, ..BodyLimits::default() };
    let harness = Harness::good().configure(|jobs| jobs.body_limits(limits));
    let at_the_limit = message();
    assert_eq!(at_the_limit.bytes().len(), 24);
    let answer = harness.deliver(&at_the_limit.clone().body(vec![b' '; 25])).await;
    assert_eq!((answer.status, answer.is_final()), (489, true));
    assert_eq!(answer.problem()["detail"], "this job accepts bodies of up to 24 bytes");
    assert_untouched(&harness, "one byte too many");
    assert_eq!(harness.deliver(&at_the_limit).await.status, 204);
}

/// A signed request whose body arrives as these frames.
fn streamed<S, E>(harness: &Harness, frames: S) -> Request<StreamBody<S>>
where
    S: tokio_stream::Stream<Item = Result<Frame<Bytes>, E>>,
{
    harness.signed(&message()).map(|_: Full<Bytes>| StreamBody::new(frames))
}

#[tokio::test]
async fn a_body_in_pieces_is_read_to_its_end_but_not_beyond_the_limit() {
    let harness = Harness::good();
    let whole = message().bytes().clone();
    let pieces = || {
        let frames = whole.chunks(5).map(|piece| Ok::<_, Infallible>(Frame::data(Bytes::copy_from_slice(piece))));
        tokio_stream::iter(frames.collect::<Vec<_>>())
    };
    let answer = harness.jobs.handle(streamed(&harness, pieces())).await;
    assert_eq!(answer.status(), 204);

    let harness = Harness::good().configure(|jobs| jobs.body_limits(BodyLimits { bytes: 23, ..BodyLimits::default() }));
    let answer = harness.jobs.handle(streamed(&harness, pieces())).await;
    assert_eq!(answer.status(), 489);
    assert_untouched(&harness, "in pieces");
}

#[tokio::test(start_paused = true)]
async fn slow_or_broken_bodies_have_no_effect() {
    let harness = Harness::good();
    let slow = tokio_stream::pending::<Result<Frame<Bytes>, Infallible>>();
    assert_eq!(harness.jobs.handle(streamed(&harness, slow)).await.status(), 408);
    assert_untouched(&harness, "slow");
    let first = Ok(Frame::data(message().bytes().slice(..5)));
    let broken = tokio_stream::iter([first, Err(io::Error::from(io::ErrorKind::ConnectionReset))]);
    assert_eq!(harness.jobs.handle(streamed(&harness, broken)).await.status(), 400);
    assert_untouched(&harness, "broken off");
}

#[tokio::test(start_paused = true)]
async fn an_endless_body_is_aborted() {
    let harness = Harness::good();
    let piece = Bytes::from(vec![0; 1 << 20]);
    let sent = Arc::new(AtomicUsize::new(0));
    let counted = sent.clone();
    let endless = tokio_stream::iter(std::iter::repeat_with(move || {
        counted.fetch_add(piece.len(), Ordering::SeqCst);
        Ok::<_, Infallible>(Frame::data(piece.clone()))
    }));
    assert_eq!(harness.jobs.handle(streamed(&harness, endless)).await.status(), 489);
    // The limit, the piece beyond it, the drained bytes, and the piece beyond those.
    assert_eq!(sent.load(Ordering::SeqCst), BODY_BYTES_MAX + (1 << 20) + DRAIN_BYTES_MAX + (1 << 20));
    assert_untouched(&harness, "endless");
}

#[tokio::test]
async fn a_delivery_without_exactly_one_message_id_has_no_effect() {
    let harness = Harness::good();
    let without = |mut request: Request<Full<Bytes>>| {
        request.headers_mut().remove("upstash-message-id");
        request
    };
    let with_two = |mut request: Request<Full<Bytes>>| {
        request.headers_mut().append("upstash-message-id", HeaderValue::from_static("msg_2"));
        request
    };
    // Signed like hosted QStash, and signed like Posthaste.
    let hosted = || harness.signed(&message().without_signed_id());
    let signed = || harness.signed(&message());
    for (request, status) in [(without(hosted()), 400), (with_two(hosted()), 400), (with_two(signed()), 401)] {
        assert_eq!(harness.jobs.handle(request).await.status(), status);
        assert_untouched(&harness, "message id");
    }
    // A signed id needs no header.
    let answer = Answer::read(harness.jobs.handle(without(signed())).await).await;
    assert_eq!((answer.status, answer.headers["upstash-message-id"].as_bytes()), (204, &b"msg_1"[..]));
}

#[test]
fn a_handler_without_a_url_is_rejected() {
    let store: Arc<dyn IdempotencyStore> = Arc::new(crate::support::TestStore::default());
    let receiver = Receiver::new(KEY, NEXT_KEY).unwrap();
    let made = JobHandler::raw("any", receiver, store, |_| async { Ok(()) });
    assert_eq!(made.unwrap_err(), UrlNotConfigured);
}

#[tokio::test]
async fn invalid_payloads_go_to_the_dead_letters() {
    let harness = Harness::good().configure(|jobs| {
        jobs.validate(|payload| payload["to"].as_str().map(drop).ok_or("`to` must be the address of somebody"))
    });
    let cases = [
        ("", "EOF while parsing a value at line 1 column 0"),
        ("{\"to\":", "EOF while parsing a value at line 1 column 6"),
        ("{} {}", "trailing characters at line 1 column 4"),
        ("\u{0}", "expected value at line 1 column 1"),
        ("{\"to\":7}", "`to` must be the address of somebody"),
    ];
    for (body, detail) in cases {
        let answer = harness.deliver(&message().body(body)).await;
        assert_eq!((answer.status, answer.is_final()), (489, true), "{body}");
        assert_eq!(answer.problem()["detail"], detail, "{body}");
    }
    assert_eq!(harness.witness.began(), 0);
    // Each released its lock, otherwise the second would have been asked to retry later.
    assert_eq!(harness.store.calls(), ["begin", "begin", "release"].repeat(cases.len()));
    assert_eq!(harness.deliver(&message()).await.status, 204);
}

#[tokio::test]
async fn results_are_answered_as_the_queue_understands_them() {
    type Make = fn() -> Result<(), Failure>;
    let cases: [(Make, u16, Option<u64>); 4] = [
        (|| Ok(()), 204, None),
        (|| Err(io::Error::other("disk: hunter2"))?, 503, None),
        (|| Err(Failure::retryable("rate limit: hunter2").after(Duration::from_secs(90))), 503, Some(90)),
        (|| Err(Failure::permanent("no such user: hunter2")), 489, None),
    ];
    for (make, status, retry_after) in cases {
        let harness = Harness::new(move |_| async move { make() });
        let answer = harness.deliver(&message()).await;
        assert_eq!((answer.status, answer.retry_after()), (status, retry_after));
        assert_eq!(answer.is_final(), status == 489);
        assert!(!String::from_utf8_lossy(&answer.body).contains("hunter2"));
    }
}

#[tokio::test]
async fn every_response_carries_the_ids_to_find_it() {
    let harness = Harness::new(|job| async move {
        assert_eq!((job.delivery.request_id(), job.delivery.event_id()), ("req_7", Some("evt_9")));
        assert_eq!((job.delivery.message_id(), job.delivery.attempt()), ("msg_1", 3));
        if job.payload["fail"] == true { Err(Failure::retryable("no")) } else { Ok(()) }
    });
    let known = message().retried(2).header("x-request-id", "req_7").header("x-event-id", "evt_9");
    for (delivery, status) in [(known.clone().body(r#"{"fail":true}"#), 503), (known.clone(), 204), (known, 204)] {
        let answer = harness.deliver(&delivery).await;
        let ids =
            ["x-request-id", "upstash-message-id", "x-event-id"].map(|name| answer.headers[name].to_str().unwrap());
        assert_eq!((answer.status, ids), (status, ["req_7", "msg_1", "evt_9"]));
        if status == 503 {
            assert_eq!(answer.problem()["instance"], "req_7");
        }
    }
    // An untrusted caller gets an id too, and nothing else.
    let stranger = Answer::read(harness.jobs.handle(message().unsigned()).await).await;
    let id = stranger.headers["x-request-id"].to_str().unwrap();
    assert!(id.starts_with("req_") && id.len() == 36, "{id}");
    assert_eq!(stranger.problem()["instance"], json!(id));
    assert!(!stranger.headers.contains_key("upstash-message-id"));
}
