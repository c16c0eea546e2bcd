//! Cases about the console, as it is in production: with a login.

use super::{Case, case, hardened};
use crate::support::server::TOKEN;
use crate::support::{Answer, Request, TestServer};

pub(super) const IDS: &[&str] = &[
    "con-csrf-form",
    "con-csrf-text",
    "con-csrf-no-origin",
    "con-csrf-get",
    "con-static-traversal",
    "con-open-redirect",
    "con-open-redirect-2",
    "con-cookie-flags",
    "con-brute",
    "con-download",
];

#[tokio::test]
async fn requests_of_strangers_are_refused_and_do_nothing() {
    let server = hardened(true).await;
    for id in &IDS[..5] {
        let case = case(id);
        let answer = request(&case, &server).send().await;
        assert!(case.expected().contains(&answer.status), "{id}: {}", answer.status);
        assert_eq!((answer.header("set-cookie"), answer.header("location")), (None, None), "{id}");
    }
    assert_eq!(super::accepted(&server), 0.0);
    server.finish().await;
}

#[tokio::test]
async fn a_login_leads_to_pages_of_the_console_only() {
    let server = hardened(true).await;
    for id in ["con-open-redirect", "con-open-redirect-2"] {
        let case = case(id);
        let answer = request(&case, &server).send().await;
        assert!(case.expected().contains(&answer.status), "{id}: {}", answer.status);
        assert_eq!(answer.header("location"), None, "{id}");
    }
    for next in ["https://attacker.example", "//attacker.example", "/v2/keys", "/consoles", "\\\\attacker.example", ""]
    {
        let answer = log_in(&server, TOKEN, next).await;
        assert_eq!((answer.status, answer.header("location")), (303, Some("/console")), "{next}");
    }
    let answer = log_in(&server, TOKEN, "/console/dlq?label=a").await;
    assert_eq!(answer.header("location"), Some("/console/dlq?label=a"));
    server.finish().await;
}

#[tokio::test]
async fn the_cookie_of_a_session_is_kept_from_scripts_and_other_sites() {
    let server = hardened(true).await;
    // The case takes 302 for the answer; 303 says more clearly that what follows is a GET.
    let answer = log_in(&server, TOKEN, "").await;
    assert_eq!(answer.status, 303);
    let cookies = answer.headers.iter().filter(|(name, _)| name.eq_ignore_ascii_case("set-cookie"));
    let cookie = cookies.map(|(_, value)| value.as_str()).find(|value| value.starts_with("__Host-posthaste=")).unwrap();
    for part in ["HttpOnly", "SameSite=Strict", "Secure", "Path=/"] {
        assert!(cookie.split("; ").any(|found| found == part), "{part}: {cookie}");
    }
    assert!(!cookie.contains("Domain"), "{cookie}");
    server.finish().await;
}

#[tokio::test]
async fn tokens_cannot_be_guessed_in_a_row() {
    let (server, case) = (hardened(true).await, case("con-brute"));
    let mut statuses = Vec::new();
    for guess in 0..100 {
        statuses.push(log_in(&server, &format!("guess number {guess}"), "").await.status);
    }
    assert!(statuses.iter().all(|status| case.expected().contains(status)), "{statuses:?}");
    assert_eq!((statuses[0], statuses[99]), (401, 429));
    assert_eq!(log_in(&server, TOKEN, "").await.status, 429, "whoever has guessed hears nothing of the right one");
    server.finish().await;
}

#[tokio::test]
async fn strangers_send_little_and_visitors_not_too_much() {
    let server = hardened(true).await;
    assert_eq!(log_in(&server, &"x".repeat(20_000), "").await.status, 413);
    assert_eq!(log_in(&server, &"x".repeat(10_000), "").await.status, 401);
    let form = |bytes: usize| {
        let request = Request::new(server.address, "POST", "/console/queues").body("x".repeat(bytes));
        request.header("Origin", format!("https://{}", server.address))
    };
    assert_eq!(form(20_000).send().await.status, 413, "nobody");
    let cookie = session(&server).await;
    assert_ne!(form(20_000).header("Cookie", &cookie).send().await.status, 413);
    assert_eq!(form(5_000_000).header("Cookie", &cookie).send().await.status, 413);
    server.finish().await;
}

#[tokio::test]
async fn a_body_is_downloaded_and_never_shown_by_the_browser() {
    let (server, case) = (hardened(true).await, case("con-download"));
    let answer = request(&case, &server).header("Cookie", session(&server).await).send().await;
    assert!(case.expected().contains(&answer.status), "{}", answer.status);
    assert_eq!(answer.header("x-content-type-options"), Some("nosniff"));
    server.finish().await;
}

async fn log_in(server: &TestServer, token: &str, next: &str) -> Answer {
    let fields = [("token", token), ("next", next)];
    let body = url::form_urlencoded::Serializer::new(String::new()).extend_pairs(fields).finish();
    let request = Request::new(server.address, "POST", "/console/login").body(body);
    let request = request.header("Origin", format!("https://{}", server.address));
    request.header("Content-Type", "application/x-www-form-urlencoded").send().await
}

async fn session(server: &TestServer) -> String {
    let answer = log_in(server, TOKEN, "").await;
    let cookies = answer.headers.iter().filter(|(name, _)| name.eq_ignore_ascii_case("set-cookie"));
    cookies.filter_map(|(_, value)| value.split(';').next()).collect::<Vec<_>>().join("; ")
}

fn request(case: &Case, server: &TestServer) -> Request {
    let headers = case.value["headers"].as_object().into_iter().flatten();
    headers.fold(Request::new(server.address, case.text("method"), case.text("path")), |request, (name, value)| {
        request.header(name, value.as_str().unwrap_or_default())
    })
}
