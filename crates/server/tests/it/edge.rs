//! What tenants learn of the operator's network, deliveries that come back to their server, and keys on the disk.

use crate::support::server::{CURRENT_KEY, CURRENT_KEY_B, NEXT_KEY, TOKEN};
use crate::support::{Backend, Receiver, Setup, TestServer};
use posthaste_delivery::resolve::{Lookup, Resolve};
use serde_json::{Value, json};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use tokio::net::{TcpListener, TcpStream};
use tokio_util::task::AbortOnDropHandle;

const NOT_ALLOWED: &str = "invalid destination url: the egress policy of this server does not allow this destination";

/// Every name leads to this machine.
struct AllNames;

impl Resolve for AllNames {
    fn resolve(&self, _host: &str) -> Lookup {
        Box::pin(async { Ok(vec![IpAddr::V4(Ipv4Addr::LOCALHOST)]) })
    }
}

#[tokio::test]
async fn a_publish_says_no_more_of_a_private_destination_than_that_it_is_not_allowed() {
    let server = TestServer::with(Setup::serve()).await;
    let own = format!("http://{}/v2/keys", server.address);
    let urls = ["http://10.0.0.1/", "http://169.254.169.254/", "http://db.internal/", "http://localhost/", &own];
    for url in urls {
        assert_eq!(server.publish(url).expect(400).await.error(), NOT_ALLOWED, "{url}");
        let callback = server.publish("https://a.example/").header("Upstash-Callback", url).expect(400).await;
        assert_eq!(callback.error(), format!("Upstash-Callback: {NOT_ALLOWED}"), "{url}");
        let group = server.post("/v2/topics/g/endpoints").json(&json!({ "endpoints": [{ "url": url }] }));
        assert_eq!(group.expect(400).await.error(), format!("item 0: {NOT_ALLOWED}"), "{url}");
        let trigger = server.post(&format!("/v2/trigger/{url}")).expect(400).await;
        assert_eq!(trigger.error(), NOT_ALLOWED, "{url}");
    }
    let error = server.publish("http://a.example:22/").expect(400).await.error();
    assert_eq!(error, "invalid destination url: port 22 is not allowed", "the URL alone says so");
    let server = server.restart_with(|settings| settings.egress_detail = Some(true)).await;
    let error = server.publish("http://10.0.0.1/").expect(400).await.error();
    assert!(error.contains("private address: 10.0.0.1") && error.contains("egress_allow_cidrs"), "{error}");
    server.finish().await;
}

#[tokio::test]
async fn a_failed_delivery_into_a_private_network_says_only_that_it_failed() {
    for (detail, refused, unresolved) in [
        (None, "could not connect", "unable to resolve host: a.example has no address that deliveries may go to"),
        (Some(true), "could not connect: connection refused", "unable to resolve host: a.example"),
    ] {
        let mut setup = Setup::serve();
        setup.settings.egress_detail = detail;
        let server = TestServer::with(setup).await;
        let unused = std::net::TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
        let unused = format!("http://{}/", unused.expect("loopback has a free port"));
        for (url, expected) in [(unused.as_str(), refused), ("https://a.example/", unresolved)] {
            let id = server.publish_with(url, &[("Upstash-Retries", "0")], "").await;
            assert_eq!(server.dead_letter_of(&id).await["error"], expected, "{url}");
            let failed = server.events_of(&id).await.into_iter().find(|line| line["state"] == "ERROR");
            assert_eq!(failed.expect("an attempt has failed")["error"], expected, "{url}");
        }
        server.finish().await;
    }
}

/// Passes all connections on, as a proxy under a public name does.
async fn relay(listener: TcpListener, to: SocketAddr) {
    while let Ok((mut client, _)) = listener.accept().await {
        tokio::spawn(async move {
            let mut server = TcpStream::connect(to).await.expect("the server listens");
            // Either side may close.
            drop(tokio::io::copy_bidirectional(&mut client, &mut server).await);
        });
    }
}

#[tokio::test]
async fn a_delivery_that_comes_back_under_another_name_is_refused() {
    let (receiver, front) = (Receiver::start().await, TcpListener::bind("127.0.0.1:0").await.expect("a free port"));
    let port = front.local_addr().expect("it is bound").port();
    let mut setup = Setup { resolver: Arc::new(AllNames), ..Setup::serve() };
    setup.settings.public_url = Some(format!("http://queue.example:{port}"));
    let server = TestServer::with(setup).await;
    let _relay = AbortOnDropHandle::new(tokio::spawn(relay(front, server.address)));
    let inner = format!("/v2/publish/{}", receiver.url("/inner"));
    for own in [format!("http://queue.example:{port}{inner}"), format!("http://127.0.0.1:{port}{inner}")] {
        server.publish(&own).expect(400).await.error();
    }
    let token = format!("Bearer {TOKEN}");
    let headers = [("Upstash-Forward-Authorization", token.as_str()), ("Upstash-Retries", "5")];
    let id = server.publish_with(&format!("http://alias.example:{port}{inner}"), &headers, "").await;
    let letter: Value = server.dead_letter_of(&id).await;
    assert_eq!(letter["responseStatus"], 489, "{letter}");
    assert!(
        letter["responseBody"].as_str().is_some_and(|body| body.contains("came back to the server that sent it")),
        "{letter}"
    );
    // The way is open, and other sites behind the same proxy may be reached.
    server.publish_with(&receiver.url("/outer"), &[], "").await;
    assert_eq!(receiver.next().await.target, "/outer");
    assert_eq!(receiver.count(), 1);
    server.finish().await;
}

#[tokio::test]
async fn signing_keys_leave_no_trace_on_the_disk_once_there_is_a_key_for_them() {
    for backend in [Backend::Journal, Backend::Sqlite] {
        let server = TestServer::with(Setup::serve().on(backend)).await;
        let server = server.restart_with(|settings| settings.encryption_key = Some("5a".repeat(32))).await;
        let keys = json!({ "current": CURRENT_KEY, "next": NEXT_KEY });
        assert_eq!(server.get("/v2/keys").expect(200).await.json(), keys);
        let server = server.restart().await;
        assert_eq!(server.get("/v2/keys").expect(200).await.json(), keys);
        let rotated = server.post("/v2/keys/rotate").expect(200).await.json();
        let fresh = rotated["next"].as_str().expect("a key").to_owned();
        let files = server.finish_and_read_files().await;
        assert!(files.contains("sealed:1:"), "{backend:?}");
        for key in [CURRENT_KEY, NEXT_KEY, CURRENT_KEY_B, &fresh] {
            assert!(!files.contains(key), "{backend:?}: {key}");
        }
    }
}
