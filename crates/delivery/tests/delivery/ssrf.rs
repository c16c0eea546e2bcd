//! Destinations that deliveries must not reach: the vectors of `ssrf.json`, and proof that these addresses are never
//! dialled.

use crate::script::{OK, Receiver, Step, answer};
use crate::support::{ScriptedDns, attempt, config, message};
use posthaste_delivery::egress::{EgressPolicy, Refusal};
use posthaste_delivery::target::{Target, TargetHost};
use posthaste_delivery::{Deliverer, DeliveryConfig};
use posthaste_engine::outcome::{ErrorClass, Outcome};
use serde_json::Value;
use std::io;
use std::net::{IpAddr, TcpListener as StdListener};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::net::{TcpListener, TcpSocket};

fn strings(value: &Value) -> Vec<&str> {
    value.as_array().into_iter().flatten().filter_map(Value::as_str).collect()
}

/// Applies the URL rules, then the address rules to the addresses of the vector's DNS.
fn check(policy: &EgressPolicy, url: &str, answers: &[IpAddr]) -> Result<(), Refusal> {
    policy.check_url(url)?;
    let target = Target::parse(url)?;
    match &target.host {
        TargetHost::Name(name) => policy.check_addresses(name, target.port, answers),
        TargetHost::Address(_) => Ok(()),
    }
}

#[test]
fn every_vector_is_allowed_or_refused_as_listed() {
    let file: Value = serde_json::from_str(include_str!("../../../../vectors/ssrf.json")).unwrap();
    let vectors = file["vectors"].as_array().unwrap();
    assert!(vectors.len() >= 133);
    for vector in vectors {
        let url = vector["url"].as_str().unwrap();
        let answers: Vec<IpAddr> = strings(&vector["dns"]).iter().map(|text| text.parse().unwrap()).collect();
        let policy = EgressPolicy {
            own_hosts: strings(&vector["self_hosts"]).iter().map(|name| ((*name).to_owned(), 443)).collect(),
            own_addrs: strings(&vector["self_ips"])
                .iter()
                .map(|ip| (ip.parse::<IpAddr>().unwrap(), 443).into())
                .collect(),
            ..EgressPolicy::default()
        };
        // A name without addresses passes every rule, and then fails to resolve: see `receivers`.
        let unresolved = vector["dns"].as_array().is_some_and(Vec::is_empty);
        let allowed = vector["expect"] == "allow" || unresolved;
        let result = check(&policy, url, &answers);
        assert_eq!(result.is_ok(), allowed, "{url}: {} but {result:?}", vector["reason"]);
    }
}

/// Only 127.0.0.2 stands for the public internet. 127.0.0.1 must never be reached.
fn outside_is_127_0_0_2() -> DeliveryConfig {
    let allow_cidrs = vec!["127.0.0.2/32".parse().expect("network")];
    DeliveryConfig { egress: EgressPolicy { allow_cidrs, explain: true, ..EgressPolicy::default() }, ..config() }
}

/// A receiver on 127.0.0.2, and a listener on the same port of 127.0.0.1 that must not be reached.
async fn outside_and_inside(scripts: Vec<Vec<Step>>) -> (Receiver, StdListener) {
    loop {
        let outside = TcpListener::bind("127.0.0.2:0").await.expect("bind");
        let port = outside.local_addr().expect("address").port();
        if let Ok(inside) = StdListener::bind(("127.0.0.1", port)) {
            inside.set_nonblocking(true).expect("nonblocking");
            return (Receiver::serve(outside, scripts, None), inside);
        }
    }
}

fn assert_untouched(inside: &StdListener) {
    let accepted = inside.accept().map_err(|error| error.kind());
    assert_eq!(accepted.err(), Some(std::io::ErrorKind::WouldBlock), "someone connected");
}

fn blocked(outcome: &Outcome) -> bool {
    matches!(&outcome.result, Err(error) if error.class == ErrorClass::Blocked)
}

#[tokio::test]
async fn a_name_is_looked_up_once_per_connection_and_never_rebound() {
    let (outside, inside) = outside_and_inside(vec![answer(OK)]).await;
    let dns = ScriptedDns::of("rebind.example", [&["127.0.0.2"], &["127.0.0.1"]]);
    let deliverer = Deliverer::new(outside_is_127_0_0_2(), dns.clone()).unwrap();
    let message = message(&format!("http://rebind.example:{}/", outside.address.port()));

    let first = attempt(&deliverer, &message).await;
    assert_eq!(first.result.unwrap().status, 200);
    assert_eq!(dns.lookups(), 1, "no lookup between check and connect");

    // The receiver has closed the connection, so the next attempt needs a new connection and a new lookup.
    let second = attempt(&deliverer, &message).await;
    assert!(blocked(&second), "{second:?}");
    assert_eq!(
        second.result.unwrap_err().message,
        "destination refused: endpoint resolves to a loopback address: 127.0.0.1"
    );
    assert_eq!(dns.lookups(), 2);
    assert_untouched(&inside);
}

#[tokio::test]
async fn one_refused_answer_refuses_the_name() {
    for answers in [["127.0.0.2", "127.0.0.1"], ["127.0.0.1", "127.0.0.2"], ["127.0.0.2", "::ffff:127.0.0.1"]] {
        let (outside, inside) = outside_and_inside(vec![answer(OK)]).await;
        let dns = ScriptedDns::of("split.example", [&answers]);
        let deliverer = Deliverer::new(outside_is_127_0_0_2(), dns).unwrap();
        let outcome = attempt(&deliverer, &message(&format!("http://split.example:{}/", outside.address.port()))).await;
        assert!(blocked(&outcome), "{answers:?} {outcome:?}");
        assert_eq!(outside.connections(), 0);
        assert_untouched(&inside);
    }
}

#[tokio::test]
async fn a_refused_address_beyond_the_dialled_ones_refuses_the_name() {
    for (count, last) in [(17, "127.0.0.1"), (200, "::ffff:127.0.0.1")] {
        let (outside, inside) = outside_and_inside(vec![answer(OK)]).await;
        let answers = [vec!["127.0.0.2"; count - 1], vec![last]].concat();
        let deliverer =
            Deliverer::new(outside_is_127_0_0_2(), ScriptedDns::of("long.example", [&answers])).expect("deliverer");
        let outcome = attempt(&deliverer, &message(&format!("http://long.example:{}/", outside.address.port()))).await;
        assert!(blocked(&outcome), "{count} {outcome:?}");
        assert_eq!(outside.connections(), 0);
        assert_untouched(&inside);
    }
}

#[tokio::test]
async fn refused_literals_are_never_dialled() {
    let inside = StdListener::bind("127.0.0.1:0").unwrap();
    inside.set_nonblocking(true).unwrap();
    let port = inside.local_addr().unwrap().port();
    let deliverer = Deliverer::new(outside_is_127_0_0_2(), Arc::new(ScriptedDns::default())).unwrap();
    let hosts =
        ["127.0.0.1", "2130706433", "0x7f.1", "[::ffff:127.0.0.1]", "127。0。0。1", "localhost", "0.0.0.0", "[::]"];
    for host in hosts {
        let outcome = attempt(&deliverer, &message(&format!("http://{host}:{port}/"))).await;
        assert!(blocked(&outcome), "{host} {outcome:?}");
        assert_untouched(&inside);
    }
}

#[tokio::test]
async fn responses_never_redirect_us() {
    let inside = StdListener::bind("127.0.0.1:0").unwrap();
    inside.set_nonblocking(true).unwrap();
    let there = inside.local_addr().unwrap();
    let answers = [
        format!("HTTP/1.1 302 Found\r\nLocation: http://{there}/\r\nContent-Length: 0\r\n\r\n"),
        format!("HTTP/1.1 307 Temporary Redirect\r\nLocation: http://{there}/\r\nContent-Length: 0\r\n\r\n"),
        format!("HTTP/1.1 200 OK\r\nAlt-Svc: h2=\"{there}\"\r\nContent-Length: 0\r\n\r\n"),
        format!("HTTP/1.1 200 OK\r\nRefresh: 0; url=http://{there}/\r\nContent-Length: 0\r\n\r\n"),
        format!(
            "HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nConnection: close\r\n\r\n\
             <meta http-equiv=refresh content='0;url=http://{there}/'>"
        ),
    ];
    for text in answers {
        let receiver = Receiver::start(vec![answer(&text)]).await;
        let deliverer = Deliverer::new(config(), Arc::new(ScriptedDns::default())).unwrap();
        for _ in 0..2 {
            let outcome = attempt(&deliverer, &message(&receiver.url("/"))).await;
            let status: u16 = text[9..12].parse().unwrap();
            assert_eq!(outcome.result.unwrap().status, status);
        }
        assert_untouched(&inside);
    }
}

#[tokio::test]
async fn a_forwarded_host_never_reaches_the_receiver() {
    let receiver = Receiver::start(vec![answer(OK)]).await;
    let mut message = message(&receiver.url("/"));
    message.spec.headers.push(("Host".into(), "169.254.169.254".into()));
    attempt(&crate::support::deliverer(), &message).await.result.unwrap();
    assert_eq!(receiver.received()[0].value("Host"), receiver.address.to_string());
}

#[tokio::test]
async fn an_allowed_name_may_be_private_but_not_loopback() {
    let inside = StdListener::bind("127.0.0.1:0").unwrap();
    inside.set_nonblocking(true).unwrap();
    let egress = EgressPolicy { allow_hosts: vec!["app".into()], ..EgressPolicy::default() };
    let connect_timeout = Duration::from_millis(50);
    let config = DeliveryConfig { egress, connect_timeout, ..config() };
    let url = format!("http://app:{}/", inside.local_addr().unwrap().port());

    let deliverer = Deliverer::new(config.clone(), ScriptedDns::of("app", [&["127.0.0.1"]])).unwrap();
    assert!(blocked(&attempt(&deliverer, &message(&url)).await));
    assert_untouched(&inside);

    // There is no such host, but it was dialled.
    let deliverer = Deliverer::new(config, ScriptedDns::of("app", [&["10.255.255.1"]])).unwrap();
    assert!(!blocked(&attempt(&deliverer, &message(&url)).await));
}

#[tokio::test]
async fn development_delivers_to_localhost_but_not_to_itself() {
    let receiver = Receiver::start(vec![answer(OK)]).await;
    let own = StdListener::bind("127.0.0.1:0").unwrap();
    own.set_nonblocking(true).unwrap();
    let mut config = config();
    config.egress.own_addrs = vec![own.local_addr().unwrap()];
    let deliverer = Deliverer::new(config, ScriptedDns::of("localhost", [&["127.0.0.1"]])).unwrap();

    let outcome = attempt(&deliverer, &message(&format!("http://localhost:{}/", receiver.address.port()))).await;
    assert_eq!(outcome.result.unwrap().status, 200);
    let own_port = own.local_addr().unwrap().port();
    for host in ["localhost", "127.0.0.1"] {
        let outcome = attempt(&deliverer, &message(&format!("http://{host}:{own_port}/v2/publish/x"))).await;
        assert!(blocked(&outcome), "{host} {outcome:?}");
    }
    assert_untouched(&own);
}

/// As in production: tenants do not see the reasons.
fn unexplained() -> DeliveryConfig {
    let outside = outside_is_127_0_0_2();
    DeliveryConfig { egress: EgressPolicy { explain: false, ..outside.egress }, ..outside }
}

/// A port of 127.0.0.2 that is in use but not listening.
fn closed_port() -> TcpSocket {
    let socket = TcpSocket::new_v4().expect("socket");
    socket.bind("127.0.0.2:0".parse().expect("address")).expect("bind");
    socket
}

#[tokio::test]
async fn a_name_with_private_addresses_looks_like_one_that_does_not_exist() {
    let deliverer = Deliverer::new(unexplained(), ScriptedDns::of("inside.example", [&["127.0.0.1"]])).unwrap();
    let text = |outcome: Outcome, name: &str| outcome.result.unwrap_err().message.replace(name, "NAME");
    let inside = text(attempt(&deliverer, &message("http://inside.example/")).await, "inside");
    let nowhere = text(attempt(&deliverer, &message("http://nowhere.example/")).await, "nowhere");
    assert_eq!(inside, nowhere);
    assert_eq!(inside, "unable to resolve host: NAME.example has no address that deliveries may go to");
}

#[tokio::test]
async fn all_failures_to_connect_to_a_private_address_look_alike() {
    let deliverer = Deliverer::new(unexplained(), Arc::new(ScriptedDns::default())).unwrap();
    let closed = closed_port();
    let (open, _inside) = outside_and_inside(vec![answer("not TLS")]).await;
    for url in [format!("http://{}/", closed.local_addr().unwrap()), format!("https://{}/", open.address)] {
        let outcome = attempt(&deliverer, &message(&url)).await;
        assert_eq!(outcome.phases, None, "{url}");
        assert_eq!(outcome.result.unwrap_err().message, "could not connect", "{url}");
    }
}

/// The lines of a log.
#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<u8>>>);

impl io::Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().expect("lock").extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[tokio::test]
async fn the_operators_log_has_the_reason_that_tenants_do_not_see() {
    let lines = Lines::default();
    let writer = lines.clone();
    let subscriber = tracing_subscriber::fmt().with_ansi(false).with_writer(move || writer.clone()).finish();
    // The whole test runs on this thread.
    let _installed = tracing::subscriber::set_default(subscriber);
    let deliverer = Deliverer::new(unexplained(), ScriptedDns::of("inside.example", [&["127.0.0.1"]])).unwrap();
    let closed = closed_port();
    let closed = format!("http://{}/", closed.local_addr().unwrap());
    for (url, reason) in [
        (closed.as_str(), "connection refused"),
        ("http://inside.example/", "endpoint resolves to a loopback address: 127.0.0.1"),
    ] {
        let seen = attempt(&deliverer, &message(url)).await.result.unwrap_err().message;
        assert!(!seen.contains(reason), "{seen}");
        let log = String::from_utf8(lines.0.lock().unwrap().clone()).unwrap();
        assert!(log.contains(reason), "{url}: {log}");
    }
}

#[tokio::test]
async fn a_tenant_cannot_scan_the_private_addresses_that_it_may_reach() {
    let deliverer = Deliverer::new(unexplained(), Arc::new(ScriptedDns::default())).unwrap();
    let (known, _inside) = outside_and_inside(vec![answer(OK), answer(OK)]).await;
    let url = |port: u16| format!("http://127.0.0.2:{port}/");
    let known_url = url(known.address.port());
    assert_eq!(attempt(&deliverer, &message(&known_url)).await.result.unwrap().status, 200);
    let closed: Vec<TcpSocket> = (0..100).map(|_| closed_port()).collect();
    for socket in &closed {
        let outcome = attempt(&deliverer, &message(&url(socket.local_addr().unwrap().port()))).await;
        assert_eq!(outcome.result.unwrap_err().message, "could not connect");
    }
    let fresh = TcpListener::bind("127.0.0.2:0").await.unwrap();
    let fresh = Receiver::serve(fresh, vec![answer(OK)], None);
    let outcome = attempt(&deliverer, &message(&url(fresh.address.port()))).await;
    let error = outcome.result.unwrap_err().message;
    assert!(error.starts_with("could not connect: too many private destinations"), "{error}");
    assert_eq!(fresh.connections(), 0, "it was not dialled");
    assert_eq!(attempt(&deliverer, &message(&known_url)).await.result.unwrap().status, 200, "one that answered before");
    let mut other = message(&url(fresh.address.port()));
    other.tenant = posthaste_wire::id::TenantId(2);
    assert_eq!(attempt(&deliverer, &other).await.result.unwrap().status, 200, "another tenant");
}
