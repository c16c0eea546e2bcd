//! Receivers of the catalogue that take more than one request to meet, each as a story.

use crate::cases::entry;
use crate::script::{OK, Received, Receiver, Step, answer, read_request, send};
use crate::world::{Backend, OTHER_TENANT, TENANT, World, eventually, request};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use posthaste_engine::limits;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpListener;
use tokio::sync::{Notify, Semaphore};
use tokio_util::task::AbortOnDropHandle;

type Telling<'a> = Pin<Box<dyn Future<Output = ()> + Send + 'a>>;
type Story = for<'a> fn(&'a World) -> Telling<'a>;

/// All stories, by the receiver they are about.
pub(crate) const ALL: [(&str, Story); 15] = [
    ("conn-dns-flap", |world| Box::pin(addresses_that_come_and_go(world))),
    ("ka-close-race", |world| Box::pin(closing_as_we_send(world))),
    ("ka-unsolicited", |world| Box::pin(an_unasked_answer(world))),
    ("ka-limit", |world| Box::pin(one_answer_per_connection(world))),
    ("cookie-set", |world| Box::pin(cookies(world))),
    ("auth-challenge", |world| Box::pin(a_challenge(world))),
    ("echo-secrets", |world| Box::pin(an_echo(world))),
    ("489-first-attempt-queue", |world| Box::pin(a_queue_after_a_refusal(world))),
    ("429-retry-after-0-loop", |world| Box::pin(again_at_once_for_ever(world))),
    ("slow-all", |world| Box::pin(slow_to_everybody(world))),
    ("loop-self", |world| Box::pin(publishing_to_itself(world))),
    ("fanout-bomb", |world| Box::pin(publishing_to_its_own_group(world))),
    ("loop-failure-callback", |world| Box::pin(a_failing_failure_callback(world))),
    ("late-callback", |world| Box::pin(a_hanging_callback(world))),
    ("receiver-clock-skew", |world| Box::pin(a_clock_that_is_wrong(world))),
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_story_of_the_catalogue_ends_well() {
    let _alone = crate::MEASURING.lock().await;
    for backend in [Backend::Sqlite, Backend::Memory] {
        for (id, story) in ALL {
            let world = World::start(backend).await;
            eprintln!("{backend:?} {id}: {}", entry(id)["behaviour"]);
            story(&world).await;
            world.stop().await;
        }
    }
}

const DELIVERED: [&str; 3] = ["CREATED", "ACTIVE", "DELIVERED"];

/// Publishes one message after the other; each is delivered by its first attempt.
async fn all_are_delivered(world: &World, url: &str, count: usize) {
    for _ in 0..count {
        let id = world.publish(url, &[]).await;
        world.settled().await;
        assert_eq!(world.states(&id).await, DELIVERED);
    }
}

fn retried(times: usize) -> Vec<&'static str> {
    let again = ["ACTIVE", "ERROR", "RETRY"].repeat(times);
    [&["CREATED"], &again[..], &["ACTIVE", "ERROR", "FAILED"]].concat()
}

async fn addresses_that_come_and_go(world: &World) {
    let receiver = Receiver::start(vec![answer(OK)]).await;
    all_are_delivered(world, &format!("http://flapping.example:{}/", receiver.address.port()), 2).await;
    assert_eq!(receiver.received().len(), 2);
}

async fn closing_as_we_send(world: &World) {
    let closes_on_the_second = vec![Step::Read, send(OK), Step::Read];
    // On a busy machine the second may come before the first connection is free, and then it has one of its own.
    for _ in 0..5 {
        let receiver = Receiver::start(vec![closes_on_the_second.clone(), answer(OK)]).await;
        all_are_delivered(world, &receiver.url("/"), 2).await;
        let received = receiver.received();
        assert_eq!(receiver.connections(), 2);
        if let [_, cut, again] = &received[..] {
            assert_eq!(cut.head, again.head, "the same attempt, sent once more");
            return;
        }
    }
    panic!("no connection was used again");
}

async fn an_unasked_answer(world: &World) {
    let stray = "HTTP/1.1 500 Stray\r\nContent-Length: 0\r\n\r\n";
    let unasked = vec![Step::Read, send(&format!("{OK}{stray}")), Step::Hang];
    let receiver = Receiver::start(vec![unasked, answer(OK)]).await;
    all_are_delivered(world, &receiver.url("/"), 2).await;
    assert_eq!(receiver.connections(), 2);
}

async fn one_answer_per_connection(world: &World) {
    let receiver = Receiver::start(vec![answer(OK)]).await;
    all_are_delivered(world, &receiver.url("/"), 5).await;
    assert_eq!(receiver.received().len(), 5);
}

async fn cookies(world: &World) {
    let cookie = "HTTP/1.1 200 OK\r\nSet-Cookie: a=1\r\nContent-Length: 0\r\n\r\n";
    let receiver = Receiver::start(vec![[answer(cookie), answer(cookie)].concat()]).await;
    all_are_delivered(world, &receiver.url("/"), 2).await;
    assert_eq!(receiver.received().len(), 2);
    assert!(receiver.received().iter().all(|request| request.values("Cookie").is_empty()));
}

async fn a_challenge(world: &World) {
    let challenge = "HTTP/1.1 401 Unauthorized\r\nWWW-Authenticate: NTLM\r\nContent-Length: 0\r\n\r\n";
    let receiver = Receiver::start(vec![answer(challenge)]).await;
    let id = world.publish(&receiver.url("/"), &[("Upstash-Retries", "1")]).await;
    world.settled().await;
    assert_eq!(world.states(&id).await, retried(1));
    assert_eq!(receiver.received().len(), 2);
    assert!(receiver.received().iter().all(|request| request.values("Authorization").is_empty()));
}

async fn an_echo(world: &World) {
    let receiver = Reactive::start(|request| async move {
        format!("HTTP/1.1 500 Echo\r\nContent-Length: {}\r\n\r\n{}", request.head.len(), request.head)
    })
    .await;
    let headers = [
        ("Upstash-Retries", "0"),
        ("Upstash-Forward-Authorization", "Bearer forwarded-secret"),
        ("Upstash-Redact-Fields", "header[Authorization]"),
    ];
    let id = world.publish(&receiver.url(), &headers).await;
    world.settled().await;
    let mut shown = world.events(&id).await;
    let letter = world.dead_letter(&id).await.expect("a dead letter");
    let echoed = letter["responseBody"].as_str().expect("the answer is kept").to_owned();
    assert!(echoed.contains("Upstash-Signature: ") && echoed.contains("Bearer forwarded-secret"), "{echoed}");
    shown.push(letter);
    for mut request in shown {
        request.as_object_mut().expect("an object").remove("responseBody");
        let hidden = request["header"]["Authorization"][0].as_str().is_some_and(|value| value.starts_with("REDACTED:"));
        let request = request.to_string();
        let told = ["Upstash-Signature", "forwarded-secret"].iter().any(|secret| request.contains(secret));
        assert!(hidden && !told, "only the receiver's own words tell it: {request}");
    }
    let others = world.get(OTHER_TENANT, "/v2/dlq").await;
    assert_eq!(others["messages"], json!([]), "and only to the tenant");
    let others = world.get(OTHER_TENANT, "/v2/events").await;
    assert_eq!(others["events"], json!([]));
}

async fn a_queue_after_a_refusal(world: &World) {
    let address = world.address();
    let dead_at_the_second = Arc::new(Mutex::new(None));
    let seen = dead_at_the_second.clone();
    let receiver = Reactive::start(move |request| {
        let seen = seen.clone();
        async move {
            if request.body == b"first" {
                return "HTTP/1.1 489 No\r\nUpstash-NonRetryable-Error: true\r\nContent-Length: 0\r\n\r\n".to_owned();
            }
            let (_, letters) = request_json(address, "/v2/dlq").await;
            *seen.lock().expect("lock") = letters["messages"].as_array().map(Vec::len);
            OK.to_owned()
        }
    })
    .await;
    let path = format!("/v2/enqueue/q/{}", receiver.url());
    let first = world.post(&path, &[], "first").await;
    let second = world.post(&path, &[], "second").await;
    world.settled().await;
    let id = |answer: &Value| answer["messageId"].as_str().expect("an id").to_owned();
    assert_eq!(world.states(&id(&first)).await, ["CREATED", "ACTIVE", "ERROR", "FAILED"]);
    assert_eq!(world.states(&id(&second)).await, DELIVERED);
    assert_eq!(*dead_at_the_second.lock().expect("lock"), Some(1), "the dead letter is there before the next starts");
}

async fn request_json(address: SocketAddr, path: &str) -> (u16, Value) {
    request(address, TENANT, "GET", path, &[], "").await
}

async fn again_at_once_for_ever(world: &World) {
    let at_once = "HTTP/1.1 429 Later\r\nRetry-After: 0\r\nContent-Length: 0\r\n\r\n";
    let receiver = Receiver::start(vec![answer(at_once)]).await;
    let id = world.publish(&receiver.url("/"), &[("Upstash-Retries", "5")]).await;
    world.settled().await;
    assert_eq!(world.states(&id).await, retried(5));
    assert_eq!(receiver.received().len(), 6);
    let events = world.events(&id).await;
    for pair in events.windows(2).filter(|pair| pair[0]["state"] == "RETRY") {
        let time = |event: &Value| event["time"].as_u64().expect("a time");
        let pause_ms = time(&pair[1]).saturating_sub(time(&pair[0]));
        assert!(pause_ms >= limits::RETRY_AFTER_MS_MIN, "asked again after {pause_ms} ms: {pair:?}");
    }
}

/// More messages than may be under way to one destination, to a receiver that answers none of them for now.
async fn slow_to_everybody(world: &World) {
    const MORE: usize = 50;
    let most = limits::ORIGIN_IN_FLIGHT_MAX as usize;
    let (gate, under_way) = (Arc::new(Semaphore::new(0)), Arc::new(AtomicUsize::new(0)));
    let (held, counted) = (gate.clone(), under_way.clone());
    let slow = Reactive::start(move |_| {
        let (held, counted) = (held.clone(), counted.clone());
        async move {
            counted.fetch_add(1, Ordering::SeqCst);
            // Nothing is ever given out: the wait ends when the gate is closed.
            drop(held.acquire().await);
            OK.to_owned()
        }
    })
    .await;
    let items = vec![json!({ "destination": slow.url() }); most + MORE];
    world.post("/v2/batch", &[("Content-Type", "application/json")], &json!(items).to_string()).await;
    eventually("the destination is full", || async { (under_way.load(Ordering::SeqCst) >= most).then_some(()) }).await;
    let quick = Receiver::start(vec![answer(OK)]).await;
    let path = format!("/v2/publish/{}", quick.url("/"));
    for token in [TENANT, OTHER_TENANT] {
        let (status, told) = request(world.address(), token, "POST", &path, &[], "").await;
        assert_eq!(status, 200, "{told}");
    }
    eventually("others are served", || async { (quick.received().len() == 2).then_some(()) }).await;
    assert_eq!(under_way.load(Ordering::SeqCst), most, "no more than its share at once");
    gate.close();
    world.settled().await;
    assert_eq!(under_way.load(Ordering::SeqCst), most + MORE);
}

/// Deliveries that may lead to one another, the first included.
const CHAIN: usize = limits::HOPS_MAX as usize + 1;

async fn publishing_to_itself(world: &World) {
    let (address, deliveries) = (world.address(), Arc::new(AtomicUsize::new(0)));
    let counted = deliveries.clone();
    let receiver = Reactive::start(move |received| {
        counted.fetch_add(1, Ordering::SeqCst);
        async move {
            let itself = format!("/v2/publish/http://{}/", received.value("Host"));
            publish_on(address, &itself, &received).await;
            OK.to_owned()
        }
    })
    .await;
    world.publish(&receiver.url(), &[]).await;
    world.settled().await;
    assert_eq!(deliveries.load(Ordering::SeqCst), CHAIN);
    let letters = world.get(TENANT, "/v2/dlq").await;
    let errors: Vec<&str> =
        letters["messages"].as_array().expect("a list").iter().filter_map(|letter| letter["error"].as_str()).collect();
    assert!(matches!(errors[..], [only] if only.starts_with("loop: ")), "{errors:?}");
}

/// Publishes because of a delivery, and says so.
async fn publish_on(address: SocketAddr, path: &str, because_of: &Received) {
    let hops = [("Posthaste-Hops", because_of.value("Posthaste-Hops"))];
    let (status, told) = request(address, TENANT, "POST", path, &hops, "").await;
    assert_eq!(status, 200, "{told}");
}

async fn publishing_to_its_own_group(world: &World) {
    let (address, deliveries) = (world.address(), Arc::new(AtomicUsize::new(0)));
    let counted = deliveries.clone();
    let bomb = Reactive::start(move |received| {
        counted.fetch_add(1, Ordering::SeqCst);
        async move {
            publish_on(address, "/v2/publish/bomb", &received).await;
            OK.to_owned()
        }
    })
    .await;
    let passive = Receiver::start(vec![answer(OK)]).await;
    let endpoints = json!({ "endpoints": [{ "url": bomb.url() }, { "url": passive.url("/") }] });
    world.post("/v2/topics/bomb/endpoints", &[("Content-Type", "application/json")], &endpoints.to_string()).await;
    world.post("/v2/publish/bomb", &[], "").await;
    world.settled().await;
    assert_eq!((deliveries.load(Ordering::SeqCst), passive.received().len()), (CHAIN, CHAIN));
    let letters = world.get(TENANT, "/v2/dlq").await;
    assert_eq!(letters["messages"].as_array().map(Vec::len), Some(2), "the last generation");
}

async fn a_failing_failure_callback(world: &World) {
    let fails = "HTTP/1.1 500 Oops\r\nContent-Length: 0\r\n\r\n";
    let source = Receiver::start(vec![answer(fails)]).await;
    let callback = Receiver::start(vec![answer(fails)]).await;
    let callback_url = callback.url("/");
    let headers = [
        ("Upstash-Retries", "0"),
        ("Upstash-Failure-Callback", callback_url.as_str()),
        ("Upstash-Failure-Callback-Retries", "2"),
    ];
    let id = world.publish(&source.url("/"), &headers).await;
    world.settled().await;
    assert_eq!(world.states(&id).await, ["CREATED", "ACTIVE", "ERROR", "FAILED"]);
    let told = callback.received();
    let ids: BTreeSet<&str> = told.iter().map(|request| request.value("Upstash-Message-Id")).collect();
    assert_eq!((told.len(), ids.len()), (3, 1), "one message with retries of its own");
    let letters = world.get(TENANT, "/v2/dlq").await;
    assert_eq!(letters["messages"].as_array().map(Vec::len), Some(2), "the message and its callback, nothing more");
}

async fn a_hanging_callback(world: &World) {
    let source = Receiver::start(vec![answer(OK)]).await;
    let under_way = Arc::new(Notify::new());
    let callback = Receiver::start(vec![vec![Step::Read, Step::Tell(under_way.clone()), Step::Hang]]).await;
    let callback_url = callback.url("/");
    let headers = [
        ("Upstash-Callback", callback_url.as_str()),
        ("Upstash-Callback-Retries", "0"),
        ("Upstash-Callback-Timeout", "1s"),
    ];
    let id = world.publish(&source.url("/"), &headers).await;
    under_way.notified().await;
    assert_eq!(world.states(&id).await, DELIVERED);
    world.settled().await;
    assert_eq!(world.states(&id).await, DELIVERED, "what its callback does changes nothing");
    let own_id = callback.received()[0].value("Upstash-Message-Id").to_owned();
    assert_eq!(world.states(&own_id).await, ["CREATED", "ACTIVE", "ERROR", "FAILED"]);
}

async fn a_clock_that_is_wrong(world: &World) {
    let rejects = "HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\n\r\n";
    let receiver = Receiver::start(vec![answer(rejects)]).await;
    let headers = [("Upstash-Retries", "2"), ("Upstash-Retry-Delay", "60000")];
    let id = world.publish(&receiver.url("/"), &headers).await;
    world.settled().await;
    assert_eq!(world.states(&id).await, retried(2));
    let issued: Vec<u64> = receiver.received().iter().map(issued_at).collect();
    assert_eq!(issued.len(), 3);
    assert!(issued.windows(2).all(|pair| pair[0] + 60 <= pair[1]), "a fresh token for each attempt: {issued:?}");
}

/// When the signature of a request says it was made.
fn issued_at(request: &Received) -> u64 {
    let payload = request.value("Upstash-Signature").split('.').nth(1).expect("a payload").to_owned();
    let claims: Value = serde_json::from_slice(&URL_SAFE_NO_PAD.decode(payload).expect("base64")).expect("JSON");
    assert_eq!(claims["exp"].as_u64(), claims["iat"].as_u64().map(|issued| issued + 300));
    claims["iat"].as_u64().expect("a time")
}

/// A receiver that acts on each request before it answers.
struct Reactive {
    address: SocketAddr,
    _listening: AbortOnDropHandle<()>,
}

impl Reactive {
    async fn start<F, Acting>(act: F) -> Reactive
    where
        F: Fn(Received) -> Acting + Clone + Send + 'static,
        Acting: Future<Output = String> + Send + 'static,
    {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("an address");
        let listening = tokio::spawn(async move {
            loop {
                let (mut stream, _) = listener.accept().await.expect("accept");
                let act = act.clone();
                tokio::spawn(async move {
                    let received = read_request(&mut stream).await.expect("a request");
                    let text = act(received).await;
                    stream.write_all(text.as_bytes()).await.expect("it reads the answer");
                });
            }
        });
        Reactive { address, _listening: AbortOnDropHandle::new(listening) }
    }

    fn url(&self) -> String {
        format!("http://{}/", self.address)
    }
}
