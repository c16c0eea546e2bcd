//! Long responses to calls of workflow runs, of which a limited number is held at once: which ones wait for room, for
//! how long, and at whose cost.

use crate::script::{OK, Receiver, Step, answer};
use crate::secure_cases::Authority;
use crate::support::{ScriptedDns, attempt_in, config, message};
use crate::tls::trusting;
use bytes::Bytes;
use http_body::{Body, Frame};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use posthaste_delivery::{AnswerBudget, AnswerPatience, AnswerRoom, Deliverer, DeliveryConfig};
use posthaste_engine::limits::{RESPONSE_BYTES_MAX, TIMEOUT_MS_MAX};
use posthaste_engine::outcome::{ErrorClass, Outcome, Verdict};
use posthaste_engine::workflow::{Part, StepRef};
use posthaste_wire::id::Seq;
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::timeout;

const LONG: usize = 2 * RESPONSE_BYTES_MAX;
/// Longer than any operation that need not wait.
const LONG_ENOUGH: Duration = Duration::from_secs(10);

/// Makes attempts that share room.
#[derive(Clone)]
struct Senders {
    deliverer: Arc<Deliverer>,
    budget: Arc<AnswerBudget>,
}

impl Senders {
    fn new(deliverer: Deliverer) -> Senders {
        Senders { deliverer: Arc::new(deliverer), budget: Arc::default() }
    }

    fn patient_for(answer_patience: AnswerPatience) -> Senders {
        let config = DeliveryConfig { answer_patience, ..config() };
        Senders::new(Deliverer::new(config, Arc::new(ScriptedDns::default())).expect("deliverer"))
    }

    /// Makes an attempt for a run. The response keeps its room until the returned [`AnswerRoom`] is dropped.
    fn attempt(&self, url: &str, timeout_ms: u64) -> JoinHandle<(Outcome, AnswerRoom)> {
        let Senders { deliverer, budget } = self.clone();
        let mut message = message(url);
        message.spec.workflow = Some(StepRef { run: Seq(1), part: Part::Entry(0) });
        tokio::spawn(async move {
            let room = AnswerRoom::new(budget, message.tenant);
            (attempt_in(&deliverer, &message, timeout_ms, true, &room).await, room)
        })
    }

    /// Long responses of two receivers that take all room of the tenant. Each takes as much as a response of unknown
    /// length may need.
    async fn take_all_room(&self) -> Vec<AnswerRoom> {
        let mut taken = Vec::new();
        for _ in 0..2 {
            let receiver = Receiver::start(vec![answer(&in_chunks(LONG, true))]).await;
            for _ in 0..2 {
                let (outcome, room) = self.attempt(&receiver.url("/"), TIMEOUT_MS_MAX).await.expect("an attempt");
                assert_eq!(outcome.result.expect("an answer").body.len(), LONG);
                taken.push(room);
            }
        }
        taken
    }
}

/// A response of unknown length, with or without its end.
fn in_chunks(size: usize, is_whole: bool) -> String {
    let end = if is_whole { "0\r\n\r\n" } else { "" };
    format!("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n{size:x}\r\n{}\r\n{end}", "x".repeat(size))
}

#[tokio::test]
async fn the_wait_for_room_is_not_the_receivers_time() {
    const TIMEOUT: Duration = Duration::from_secs(5);
    let senders = Senders::patient_for(AnswerPatience::default());
    let taken = senders.take_all_room().await;
    let receiver = Receiver::start(vec![answer(&in_chunks(LONG, true))]).await;
    let timeout_ms = TIMEOUT.as_millis() as u64;
    let mut waiting = senders.attempt(&receiver.url("/"), timeout_ms);
    let ended = timeout(TIMEOUT + Duration::from_millis(500), &mut waiting).await;
    assert!(ended.is_err(), "it waits beyond its timeout: {ended:?}");
    // A short response needs no room.
    let short = Receiver::start(vec![answer(OK)]).await;
    let (outcome, _) = senders.attempt(&short.url("/"), timeout_ms).await.expect("an attempt");
    assert_eq!(outcome.verdict(), Verdict::Success, "{outcome:?}");
    drop(taken);
    let (outcome, _) = waiting.await.expect("an attempt");
    assert!(outcome.duration_ms < timeout_ms, "{} ms", outcome.duration_ms);
    assert_eq!(outcome.result.expect("an answer").body.len(), LONG);
}

#[tokio::test]
async fn an_attempt_without_room_fails_as_our_error_and_may_retry() {
    let senders =
        Senders::patient_for(AnswerPatience { room: Duration::from_millis(300), ..AnswerPatience::default() });
    let taken = senders.take_all_room().await;
    let receiver = Receiver::start(vec![answer(&in_chunks(LONG, true))]).await;
    let attempt = || async { senders.attempt(&receiver.url("/"), TIMEOUT_MS_MAX).await.expect("an attempt").0 };
    let outcome = attempt().await;
    assert_eq!(outcome.verdict(), Verdict::Failure);
    let error = outcome.result.expect_err("no room");
    let text = "the server had no room for the response within 300ms, because it holds too many large responses";
    assert_eq!((error.class, error.message.as_str()), (ErrorClass::Closed, text));
    drop(taken);
    assert_eq!(attempt().await.result.expect("an answer").body.len(), LONG);
}

#[tokio::test]
async fn room_is_taken_back_from_slow_receivers() {
    let senders =
        Senders::patient_for(AnswerPatience { rest: Duration::from_millis(300), ..AnswerPatience::default() });
    let script = [answer(&in_chunks(LONG, false)), vec![Step::Hang]].concat();
    let sick = Receiver::start(vec![script]).await;
    let attempt = |timeout_ms| senders.attempt(&sick.url("/"), timeout_ms);
    let ended = timeout(LONG_ENOUGH, attempt(TIMEOUT_MS_MAX)).await;
    let (outcome, _) = ended.expect("its timeout is two hours, and it ends").expect("an attempt");
    let error = outcome.result.expect_err("not all of it");
    let text = "reading the rest of a large response timed out after 300ms";
    assert_eq!((error.class, error.message.as_str()), (ErrorClass::Timeout, text));
    // An earlier timeout of the attempt itself is reported as such.
    let senders = Senders::patient_for(AnswerPatience::default());
    let (outcome, _) = senders.attempt(&sick.url("/"), 300).await.expect("an attempt");
    assert_eq!(outcome.result.expect_err("not all of it").message, "context deadline exceeded");
}

#[tokio::test]
async fn one_receiver_leaves_room_for_the_others() {
    let senders = Senders::patient_for(AnswerPatience::default());
    let greedy = Receiver::start(vec![answer(&in_chunks(LONG, true))]).await;
    let mut attempts = JoinSet::new();
    for _ in 0..8 {
        attempts.spawn(senders.attempt(&greedy.url("/"), TIMEOUT_MS_MAX));
    }
    let mut taken = Vec::new();
    while taken.len() < 2 {
        taken.extend(timeout(LONG_ENOUGH, attempts.join_next()).await.expect("there is room for two"));
    }
    let third = timeout(Duration::from_millis(500), attempts.join_next()).await;
    assert!(third.is_err(), "two are its share");
    let other = Receiver::start(vec![answer(&in_chunks(LONG, true))]).await;
    let attempt = timeout(LONG_ENOUGH, senders.attempt(&other.url("/"), TIMEOUT_MS_MAX)).await;
    let (outcome, _) = attempt.expect("it waits for nobody").expect("an attempt");
    assert_eq!(outcome.result.expect("an answer").body.len(), LONG);
    drop(taken);
    while let Some(ended) = timeout(LONG_ENOUGH, attempts.join_next()).await.expect("each has its turn") {
        let (outcome, _) = ended.expect("a task").expect("an attempt");
        assert_eq!(outcome.verdict(), Verdict::Success, "{outcome:?}");
    }
}

/// The body of a long response, sent as fast as the client reads it.
struct LongBody {
    sent: usize,
    /// Gets a permit when more bytes are in transit than the client reads without room.
    stuck: Arc<Semaphore>,
}

impl LongBody {
    const FRAME: usize = 16 * 1024;
    /// A client acknowledges the bytes it has read once they are half of the window of 128 KiB.
    const STUCK: usize = RESPONSE_BYTES_MAX + 48 * 1024;
}

impl Body for LongBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if self.sent == LONG {
            return Poll::Ready(None);
        }
        self.sent += LongBody::FRAME;
        if self.sent == LongBody::STUCK {
            self.stuck.add_permits(1);
        }
        Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(&[b'x'; LongBody::FRAME])))))
    }
}

/// A receiver that speaks HTTP/2, with long responses at `/long` and short ones elsewhere.
async fn start_http2(ours: &Authority, stuck: Arc<Semaphore>) -> (u16, Arc<AtomicUsize>) {
    let acceptor = ours.acceptor(&["hook.example"], &["h2"]);
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind");
    let port = listener.local_addr().expect("address").port();
    let connections = Arc::new(AtomicUsize::new(0));
    let accepted = connections.clone();
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.expect("accept");
            accepted.fetch_add(1, Ordering::SeqCst);
            let stream = acceptor.accept(stream).await.expect("handshake");
            let stuck = stuck.clone();
            let answer = service_fn(move |request: http::Request<hyper::body::Incoming>| {
                let short = LONG - LongBody::FRAME;
                let sent = if request.uri().path() == "/long" { 0 } else { short };
                let body = LongBody { sent, stuck: stuck.clone() };
                async { Ok::<_, Infallible>(http::Response::new(body)) }
            });
            let serving = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
            tokio::spawn(serving.serve_connection(TokioIo::new(stream), answer));
        }
    });
    (port, connections)
}

#[tokio::test]
async fn responses_that_wait_for_room_do_not_block_others_on_their_connection() {
    // Together they have more bytes in transit than a window of 1 MiB.
    const WAITING: u32 = 24;
    let ours = Authority::new();
    let stuck = Arc::new(Semaphore::new(0));
    let (port, connections) = start_http2(&ours, stuck.clone()).await;
    let url = |path: &str| format!("https://hook.example:{port}{path}");
    let senders = Senders::new(trusting(&ours));
    let short = || async {
        let (outcome, _) = senders.attempt(&url("/short"), 10_000).await.expect("an attempt");
        assert_eq!(outcome.result.expect("an answer").body.len(), LongBody::FRAME);
    };
    // Opens the connection that all of them share.
    short().await;
    let taken = senders.take_all_room().await;
    let mut waiting = JoinSet::new();
    for _ in 0..WAITING {
        waiting.spawn(senders.attempt(&url("/long"), TIMEOUT_MS_MAX));
    }
    let all = timeout(LONG_ENOUGH, stuck.acquire_many(WAITING)).await;
    drop(all.expect("each gets as far as it may without room").expect("it is open"));
    short().await;
    drop(taken);
    while let Some(ended) = timeout(LONG_ENOUGH, waiting.join_next()).await.expect("each has its turn") {
        let (outcome, _) = ended.expect("a task").expect("an attempt");
        assert_eq!(outcome.result.expect("an answer").body.len(), LONG);
    }
    assert_eq!(connections.load(Ordering::SeqCst), 1);
}
