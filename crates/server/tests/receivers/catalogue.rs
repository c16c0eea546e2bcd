//! Every receiver of the catalogue, met by a message that went through a whole server, on both backends and all at
//! once: how the message ends, after how many attempts, why, and in what time.

use crate::cases::{
    Answer, Expect, Fails, Truncated, body_cases, catalogue, connection_and_header_cases, marker_cases, status_cases,
};
use crate::script::{OK, Receiver, Step, answer};
use crate::secure_cases::{HOST, SecureCase, certificate_cases, handshake_cases, http2_cases};
use crate::stories;
use crate::world::{Backend, World};
use posthaste_engine::outcome::ErrorClass;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use tokio::net::TcpSocket;

/// Receivers that cannot be played here, and why. Together with the played ones they are all there are.
const NOT_PLAYED: [(&str, &str); 1] =
    [("tls-revoked-staple", "stapled answers are not looked at: revocation is not checked (see the documentation)")];

/// Receivers that count otherwise than the catalogue says, how, and why.
const DIFFERS: [(&str, &str, &str); 1] =
    [("header-ansi", "retry", "control characters in a header are not HTTP; nothing of such an answer is kept")];

/// What an attempt brings with those who send less than the whole body, or too much, when the body is the point:
/// when a callback wants it.
const NEEDS_BODY: [(&str, ErrorClass); 10] = [
    ("cl-huge", ErrorClass::Timeout),
    ("drip-body", ErrorClass::Timeout),
    ("huge-body", ErrorClass::Protocol),
    ("endless-chunked", ErrorClass::Protocol),
    ("reset-mid-body", ErrorClass::Closed),
    ("short-body", ErrorClass::Closed),
    ("bad-chunk-size", ErrorClass::Protocol),
    ("chunk-overflow", ErrorClass::Protocol),
    ("trailer-flood", ErrorClass::Protocol),
    ("no-last-chunk", ErrorClass::Closed),
];

/// How long an attempt may take that ends with its timeout.
const SHORT_TIMEOUT_S: u64 = 2;
/// How long one with any other may take.
const TIMEOUT_S: u64 = 30;
/// A busy machine is not the receiver's fault.
const SLACK_MS: u64 = 20_000;

/// A receiver that one message is published to.
struct Played {
    id: String,
    url: String,
    /// The witness; `None` when nobody is there.
    receiver: Option<Receiver>,
    expect: Expect,
    retries: u32,
    timeout_s: u64,
    /// Who wants to hear of it.
    callback: Option<String>,
    /// Delay before the retry, in milliseconds; `None` when the publisher's own counts.
    retry_after_ms: Option<(u64, u64)>,
}

impl Played {
    fn new(id: &str, url: String, receiver: Option<Receiver>, expect: Expect) -> Played {
        let is_late = matches!(expect, Fails(ErrorClass::Timeout));
        let (id, timeout_s) = (id.to_owned(), if is_late { SHORT_TIMEOUT_S } else { TIMEOUT_S });
        Played { id, url, receiver, expect, retries: 1, timeout_s, callback: None, retry_after_ms: None }
    }

    async fn plain(id: &str, script: Vec<Step>, expect: Expect) -> Played {
        let receiver = Receiver::start(vec![script]).await;
        // The default back-off before the first retry: e^2.5 s and up to 5 % more.
        let default_ms = Some((12_182, 12_792));
        let retry_after_ms = match id {
            "429-retry-after" => Some((7_000, 7_000)),
            "503-retry-after-date" | "429-retry-after-huge" | "429-retry-after-negative" => default_ms,
            _ => None,
        };
        let played = Played::new(id, receiver.url("/hook"), Some(receiver), expect);
        Played { retry_after_ms, ..played }
    }

    async fn secure(case: SecureCase) -> Played {
        let SecureCase { id, acceptor, script, expect, by_address } = case;
        let hangs = script.iter().any(Step::hangs);
        // A handshake has a limit of its own, of ten seconds; once is enough.
        let retries = if acceptor.is_none() && hangs { 0 } else { 1 };
        let receiver = match acceptor {
            Some(acceptor) => Receiver::start_tls(vec![script], acceptor).await,
            None => Receiver::start(vec![script]).await,
        };
        let host = if by_address { "127.0.0.1" } else { HOST };
        let url = format!("https://{host}:{}/hook", receiver.address.port());
        let played = Played::new(id, url, Some(receiver), expect);
        Played { retries, ..played }
    }

    fn headers(&self) -> Vec<(&'static str, String)> {
        let mut headers = vec![
            ("Content-Type", "text/plain".to_owned()),
            ("Upstash-Retries", self.retries.to_string()),
            ("Upstash-Timeout", format!("{}s", self.timeout_s)),
        ];
        headers.extend(self.callback.clone().map(|url| ("Upstash-Callback", url)));
        if self.retry_after_ms.is_none() {
            headers.push(("Upstash-Retry-Delay", "1000".to_owned()));
        }
        headers
    }
}

/// All receivers that are a script.
async fn cast(world: &World) -> Vec<Played> {
    // Taken to the end of the process, so that no other of the cast gets it, and never listened on.
    let taken = Box::leak(Box::new(TcpSocket::new_v4().expect("a socket")));
    taken.bind(([127, 0, 0, 1], 0).into()).expect("a free port");
    let port = taken.local_addr().expect("an address").port();
    let nobody = |id, host: &str, class| Played::new(id, format!("http://{host}:{port}/"), None, Fails(class));
    let mut cast = vec![
        nobody("conn-refused", "127.0.0.1", ErrorClass::Connect),
        nobody("conn-dns-nx", "nowhere.example", ErrorClass::Dns),
        nobody("conn-dns-servfail", "refused.example", ErrorClass::Dns),
        nobody("conn-dns-slow", "slow.example", ErrorClass::Dns),
        nobody("conn-dns-many", "many.example", ErrorClass::Connect),
        Played::plain("header-ansi", ansi(), Fails(ErrorClass::Protocol)).await,
    ];
    for (id, script, expect) in connection_and_header_cases().into_iter().chain(body_cases()).chain(marker_cases()) {
        cast.push(Played::plain(id, script, expect).await);
    }
    for (id, script, expect) in status_cases() {
        cast.push(Played::plain(&id, script, expect).await);
    }
    let secure = certificate_cases(&world.authority).into_iter().chain(handshake_cases());
    for case in secure.chain(http2_cases(&world.authority)) {
        cast.push(Played::secure(case).await);
    }
    cast
}

/// Those of [`NEEDS_BODY`], by messages with a callback.
async fn cast_for_callbacks(told: &Receiver) -> Vec<Played> {
    let mut cast = Vec::new();
    for (id, class) in NEEDS_BODY {
        let mut cases = connection_and_header_cases().into_iter().chain(body_cases());
        let (_, script, _) = cases.find(|(known, ..)| *known == id).expect("it has a script");
        let played = Played::plain(id, script, Fails(class)).await;
        cast.push(Played { callback: Some(told.url("/told")), ..played });
    }
    cast
}

fn ansi() -> Vec<Step> {
    answer("HTTP/1.1 200 OK\r\nX-A: \x1b[31mred\x1b[0m\r\nContent-Length: 0\r\n\r\n")
}

#[test]
fn every_receiver_of_the_catalogue_is_played_once_or_has_a_reason_not_to_be() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let played: Vec<String> = runtime.block_on(async {
        let world = World::start(Backend::Memory).await;
        let cast = cast(&world).await;
        world.stop().await;
        cast.into_iter().map(|played| played.id).collect()
    });
    let told = stories::ALL.iter().map(|(id, _)| (*id).to_owned());
    let skipped = NOT_PLAYED.iter().map(|(id, reason)| {
        assert!(!reason.is_empty(), "{id}");
        (*id).to_owned()
    });
    let mut here: Vec<String> = played.into_iter().chain(told).chain(skipped).collect();
    here.sort();
    let mut all: Vec<String> =
        catalogue().iter().map(|entry| entry["id"].as_str().expect("an id").to_owned()).collect();
    all.sort();
    assert_eq!(here, all);
    let needs_body = catalogue().into_iter().filter(|entry| entry.get("needs_body").is_some());
    let needs_body: BTreeSet<String> =
        needs_body.map(|entry| entry["id"].as_str().expect("an id").to_owned()).collect();
    assert_eq!(NEEDS_BODY.iter().map(|(id, _)| (*id).to_owned()).collect::<BTreeSet<_>>(), needs_body);
    let all: BTreeSet<String> = all.into_iter().collect();
    assert!(DIFFERS.iter().all(|(id, ..)| all.contains(*id)), "who differs is in the catalogue");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_receiver_ends_a_message_as_the_catalogue_says() {
    let _alone = crate::MEASURING.lock().await;
    let (sqlite, memory) = tokio::join!(walk(Backend::Sqlite), walk(Backend::Memory));
    let wrong = [sqlite, memory].concat();
    assert!(wrong.is_empty(), "{} cases:\n{}", wrong.len(), wrong.join("\n"));
}

/// Publishes to all receivers, waits, and judges each; says what is wrong.
async fn walk(backend: Backend) -> Vec<String> {
    let world = World::start(backend).await;
    let told = Receiver::start(vec![answer(OK)]).await;
    let mut cast = cast(&world).await;
    cast.extend(cast_for_callbacks(&told).await);
    let mut messages = Vec::new();
    for played in &cast {
        let headers = played.headers();
        let headers: Vec<(&str, &str)> = headers.iter().map(|(name, value)| (*name, value.as_str())).collect();
        messages.push(world.publish(&played.url, &headers).await);
    }
    world.settled().await;
    let mut wrong = Vec::new();
    let mut counted: BTreeMap<&str, u64> = BTreeMap::from([("delivered", told.received().len() as u64)]);
    if told.received().is_empty() {
        wrong.push("nobody was told of anything".to_owned());
    }
    for (played, message) in cast.iter().zip(&messages) {
        let verdict = if played.callback.is_some() { "retry".to_owned() } else { expected_verdict(&played.id) };
        let attempts = if verdict == "retry" { u64::from(played.retries) + 1 } else { 1 };
        *counted.entry(metric_of(&verdict, played.expect)).or_default() += attempts;
        if let Err(problem) = judge(&world, played, message, &verdict, attempts).await {
            wrong.push(format!("{backend:?}, {}: {problem}", played.id));
        }
    }
    for (outcome, expected) in counted {
        let found = world.attempts(outcome);
        if found != expected {
            wrong.push(format!("{backend:?}: {found} attempts were counted as {outcome}, not {expected}"));
        }
    }
    world.stop().await;
    wrong
}

fn expected_verdict(id: &str) -> String {
    if let Some((_, verdict, _)) = DIFFERS.iter().find(|(differs, ..)| *differs == id) {
        return (*verdict).to_owned();
    }
    let entry = catalogue().into_iter().find(|entry| entry["id"] == id).expect("it is in the catalogue");
    entry["expect"].as_str().expect("an expectation").to_owned()
}

/// What became of a message and of every attempt, by the log, the DLQ and the receiver.
async fn judge(world: &World, played: &Played, message: &str, verdict: &str, attempts: u64) -> Result<(), String> {
    let events = world.events(message).await;
    let states: Vec<&str> = events.iter().filter_map(|event| event["state"].as_str()).collect();
    let expected = match verdict {
        "success" => vec!["CREATED", "ACTIVE", "DELIVERED"],
        "dlq-now" => vec!["CREATED", "ACTIVE", "ERROR", "FAILED"],
        _ => {
            let again = ["ACTIVE", "ERROR", "RETRY"].repeat(attempts as usize - 1);
            [&["CREATED"], &again[..], &["ACTIVE", "ERROR", "FAILED"]].concat()
        }
    };
    if states != expected {
        return Err(format!("{states:?} instead of {expected:?}: {events:?}"));
    }
    for event in events.iter().filter(|event| ["ERROR", "DELIVERED"].contains(&event["state"].as_str().unwrap_or(""))) {
        told(event, played)?;
    }
    if let Some((earliest, latest)) = played.retry_after_ms {
        let time = |event: &Value, name: &str| event[name].as_u64().unwrap_or_default();
        let waited = time(&events[3], "nextDeliveryTime").saturating_sub(time(&events[3], "time"));
        if !(earliest..=latest).contains(&waited) {
            return Err(format!("retried after {waited} ms instead of {earliest} to {latest}"));
        }
    }
    let is_dead = world.dead_letter(message).await.is_some();
    if is_dead == (verdict == "success") {
        return Err(format!("in the DLQ: {is_dead}"));
    }
    witnessed(played, message, attempts)
}

/// The log line tells what the attempt brought, and how long it took.
fn told(event: &Value, played: &Played) -> Result<(), String> {
    let right = match played.expect {
        Answer(status) | Truncated(status) => event["responseStatus"] == status,
        Fails(class) => {
            event["error"].as_str().is_some_and(|text| words(class).iter().any(|start| text.starts_with(start)))
        }
    };
    if !right {
        return Err(format!("instead of {:?}: {event}", played.expect));
    }
    let took = event["duration"].as_u64().unwrap_or(u64::MAX);
    let most = played.timeout_s * 1_000 + SLACK_MS;
    if took > most { Err(format!("took {took} ms, more than {most}")) } else { Ok(()) }
}

/// The receiver saw as many requests as there were attempts, all of the same message and numbered. One that
/// reads nothing saw as many connections.
fn witnessed(played: &Played, message: &str, attempts: u64) -> Result<(), String> {
    let Some(receiver) = &played.receiver else { return Ok(()) };
    let received = receiver.received();
    if received.is_empty() {
        let connections = receiver.connections() as u64;
        let right = connections == attempts;
        return if right { Ok(()) } else { Err(format!("{connections} connections, {attempts} attempts")) };
    }
    if received.iter().any(|request| request.line() != "POST /hook HTTP/1.1") {
        return Err(format!("not the request that was published: {received:?}"));
    }
    let numbered: Vec<(&str, &str)> = received
        .iter()
        .map(|request| (request.value("Upstash-Message-Id"), request.value("Upstash-Retried")))
        .collect();
    let numbers: Vec<String> = (0..attempts).map(|number| number.to_string()).collect();
    let expected: Vec<(&str, &str)> = numbers.iter().map(|number| (message, number.as_str())).collect();
    if numbered == expected { Ok(()) } else { Err(format!("received {numbered:?} instead of {expected:?}")) }
}

/// How the texts of a class of failures begin.
fn words(class: ErrorClass) -> &'static [&'static str] {
    match class {
        ErrorClass::Dns => &["unable to resolve host", "looking up the host timed out"],
        ErrorClass::Blocked => &["destination refused"],
        ErrorClass::Connect => &["could not connect", "connecting timed out"],
        ErrorClass::Tls => &["TLS failed", "TLS handshake failed", "TLS handshake timed out"],
        ErrorClass::Timeout => &["context deadline exceeded"],
        ErrorClass::Protocol => &["the response "],
        ErrorClass::Closed => &["the connection was closed", "the connection broke", "the receiver closed"],
    }
}

/// The name under which `/metrics` counts such an attempt.
fn metric_of(verdict: &str, expect: Expect) -> &'static str {
    match (verdict, expect) {
        ("success", _) => "delivered",
        ("dlq-now", _) => "refused",
        (_, Answer(_) | Truncated(_)) => "failed_status",
        (_, Fails(class)) => match class {
            ErrorClass::Dns => "failed_dns",
            ErrorClass::Blocked => "failed_blocked",
            ErrorClass::Connect => "failed_connect",
            ErrorClass::Tls => "failed_tls",
            ErrorClass::Timeout => "failed_timeout",
            ErrorClass::Protocol => "failed_protocol",
            ErrorClass::Closed => "failed_closed",
        },
    }
}
