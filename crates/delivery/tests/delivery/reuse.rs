//! Reuse of connections: by which attempts, when, and how broken connections are handled.

use crate::script::{OK, Receiver, Step, answer, send};
use crate::support::{ScriptedDns, attempt, config, deliverer, message};
use posthaste_delivery::{Deliverer, DeliveryConfig};
use posthaste_engine::outcome::ErrorClass;
use posthaste_wire::id::TenantId;
use std::sync::Arc;
use std::time::Duration;

/// Answers up to eight requests on one connection.
fn keeps_answering() -> Vec<Step> {
    [Step::Read, send(OK)].into_iter().cycle().take(16).collect()
}

#[tokio::test]
async fn a_connection_is_reused_only_by_its_tenant() {
    let receiver = Receiver::start(vec![keeps_answering()]).await;
    let deliverer = deliverer();
    let mut message = message(&receiver.url("/"));
    for (tenant, connections) in [(1, 1), (1, 1), (2, 2), (1, 2), (2, 2), (3, 3)] {
        message.tenant = TenantId(tenant);
        attempt(&deliverer, &message).await.result.unwrap();
        assert_eq!(receiver.connections(), connections, "tenant {tenant}");
    }
}

#[tokio::test]
async fn bodies_of_every_framing_leave_the_connection_reusable() {
    let answers = [
        "HTTP/1.1 204 No Content\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
        "HTTP/1.1 500 Oops\r\nContent-Length: 4\r\n\r\noops",
        OK,
    ];
    let script = answers.iter().flat_map(|text| answer(text)).collect();
    let receiver = Receiver::start(vec![script]).await;
    let deliverer = deliverer();
    for _ in answers {
        attempt(&deliverer, &message(&receiver.url("/"))).await.result.unwrap();
    }
    assert_eq!(receiver.connections(), 1);
}

#[tokio::test]
async fn concurrent_attempts_use_their_own_connections() {
    let receiver = Receiver::start(vec![keeps_answering()]).await;
    let deliverer = Arc::new(deliverer());
    let message = Arc::new(message(&receiver.url("/")));
    let attempts: Vec<_> = (0..8)
        .map(|_| {
            let (deliverer, message) = (deliverer.clone(), message.clone());
            tokio::spawn(async move { attempt(&deliverer, &message).await })
        })
        .collect();
    for attempt in attempts {
        assert_eq!(attempt.await.unwrap().result.unwrap().status, 200);
    }
    assert!(receiver.connections() <= 8);
    assert_eq!(receiver.received().len(), 8);
}

#[tokio::test]
async fn waiting_connections_expire() {
    let receiver = Receiver::start(vec![keeps_answering()]).await;
    let config = DeliveryConfig { pool_idle_timeout: Duration::ZERO, ..config() };
    let deliverer = Deliverer::new(config, Arc::new(ScriptedDns::default())).unwrap();
    for connections in 1..=3 {
        attempt(&deliverer, &message(&receiver.url("/"))).await.result.unwrap();
        assert_eq!(receiver.connections(), connections);
    }
}

/// `ka-close-race` of the catalogue.
#[tokio::test]
async fn a_receiver_that_closes_as_we_send_gets_the_request_once_more() {
    let closes_on_the_second = vec![Step::Read, send(OK), Step::Read];
    let receiver = Receiver::start(vec![closes_on_the_second, answer(OK)]).await;
    let deliverer = deliverer();
    for _ in 0..2 {
        assert_eq!(attempt(&deliverer, &message(&receiver.url("/"))).await.result.unwrap().status, 200);
    }
    let received = receiver.received();
    assert_eq!((receiver.connections(), received.len()), (2, 3));
    assert_eq!(received[1].head, received[2].head, "the same attempt, with the same signature");
    assert_ne!(received[0].head, received[1].head);
}

#[tokio::test]
async fn a_reset_as_we_send_counts_as_closing() {
    let resets_on_the_second = vec![Step::Read, send(OK), Step::Read, Step::Reset];
    let receiver = Receiver::start(vec![resets_on_the_second, answer(OK)]).await;
    let deliverer = deliverer();
    for _ in 0..2 {
        assert_eq!(attempt(&deliverer, &message(&receiver.url("/"))).await.result.unwrap().status, 200);
    }
    assert_eq!((receiver.connections(), receiver.received().len()), (2, 3));
}

#[tokio::test]
async fn a_request_is_sent_at_most_twice() {
    let closes_on_the_second = vec![Step::Read, send(OK), Step::Read];
    let receiver = Receiver::start(vec![closes_on_the_second, vec![Step::Read]]).await;
    let deliverer = deliverer();
    attempt(&deliverer, &message(&receiver.url("/"))).await.result.unwrap();
    let error = attempt(&deliverer, &message(&receiver.url("/"))).await.result.unwrap_err();
    assert_eq!(error.class, ErrorClass::Closed);
    assert_eq!((receiver.connections(), receiver.received().len()), (2, 3));
}

#[tokio::test]
async fn a_request_with_a_partial_response_is_not_resent() {
    let breaks_off = vec![Step::Read, send(OK), Step::Read, send("HTTP/1.1 20")];
    let receiver = Receiver::start(vec![breaks_off, answer(OK)]).await;
    let deliverer = deliverer();
    attempt(&deliverer, &message(&receiver.url("/"))).await.result.unwrap();
    let error = attempt(&deliverer, &message(&receiver.url("/"))).await.result.unwrap_err();
    assert_eq!(error.class, ErrorClass::Closed);
    assert_eq!((receiver.connections(), receiver.received().len()), (1, 2));
}

/// `ka-unsolicited` of the catalogue.
#[tokio::test]
async fn an_unsolicited_response_never_reaches_the_next_message() {
    let stray = "HTTP/1.1 200 OK\r\nX-Stray: yes\r\nContent-Length: 0\r\n\r\n";
    let unasked = vec![Step::Read, send(&format!("{OK}{stray}")), Step::Hang];
    let receiver = Receiver::start(vec![unasked, answer(OK)]).await;
    let deliverer = deliverer();
    for _ in 0..2 {
        let response = attempt(&deliverer, &message(&receiver.url("/"))).await.result.unwrap();
        assert!(response.headers.iter().all(|(name, _)| name != "X-Stray"));
    }
    assert_eq!(receiver.connections(), 2);
}

#[tokio::test]
async fn an_ambiguous_length_closes_the_connection() {
    let ambiguous = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n";
    let receiver = Receiver::start(vec![[answer(ambiguous), vec![Step::Hang]].concat(), answer(OK)]).await;
    let deliverer = deliverer();
    let error = attempt(&deliverer, &message(&receiver.url("/"))).await.result.unwrap_err();
    assert_eq!(error.class, ErrorClass::Protocol);
    attempt(&deliverer, &message(&receiver.url("/"))).await.result.unwrap();
    assert_eq!(receiver.connections(), 2);
}

/// `cookie-set and auth-challenge` of the catalogue.
#[tokio::test]
async fn cookies_and_auth_challenges_are_ignored() {
    let cookie = "HTTP/1.1 200 OK\r\nSet-Cookie: a=1\r\nContent-Length: 0\r\n\r\n";
    let challenge = "HTTP/1.1 401 Unauthorized\r\nWWW-Authenticate: NTLM\r\nContent-Length: 0\r\n\r\n";
    let receiver = Receiver::start(vec![[answer(cookie), answer(challenge), answer(OK)].concat()]).await;
    let deliverer = deliverer();
    for status in [200, 401, 200] {
        let response = attempt(&deliverer, &message(&receiver.url("/"))).await.result.unwrap();
        assert_eq!(response.status, status);
    }
    assert_eq!(receiver.received().len(), 3);
    for request in receiver.received() {
        assert!(request.values("Cookie").is_empty() && request.values("Authorization").is_empty());
    }
}
