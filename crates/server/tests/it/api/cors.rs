//! Web pages may call a development server if they are of this machine, and any server that lists their origin.

use crate::support::server::TOKEN;
use crate::support::{Answer, Receiver, Request, Setup, TestServer};

const FRONT_END: &str = "http://localhost:3000";
const LISTED: &str = "https://console.example";
const EVIL: &str = "https://evil.example";

fn listing(mut setup: Setup) -> Setup {
    setup.settings.allowed_origins = Some(vec![format!("{LISTED}/")]);
    setup
}

fn preflight(server: &TestServer, path: &str, origin: &str) -> Request {
    server.request("OPTIONS", path).without("Authorization").headers(&[
        ("Connection", "close"),
        ("Origin", origin),
        ("Access-Control-Request-Method", "DELETE"),
        ("Access-Control-Request-Headers", "authorization,upstash-retries"),
        ("Access-Control-Request-Private-Network", "true"),
    ])
}

/// Nothing in the answer lets a page read it or send more.
fn assert_closed(answer: &Answer, what: &str) {
    let opened: Vec<_> = answer.headers.iter().filter(|(name, _)| name.starts_with("access-control-")).collect();
    assert!(opened.is_empty(), "{what}: {opened:?}");
}

#[tokio::test]
async fn preflights_of_allowed_origins_need_no_token() {
    for (setup, origins) in [
        (listing(Setup::dev()), &[FRONT_END, "http://127.0.0.1:5173", LISTED][..]),
        (listing(Setup::serve()), &[LISTED]),
    ] {
        let server = TestServer::with(setup).await;
        for origin in origins {
            for path in ["/v2/keys", "/v2/publish/https://example.com", "/v2/dlq/retry/1-2", "/nowhere"] {
                let answer = preflight(&server, path, origin).expect(204).await;
                assert_eq!(answer.header("access-control-allow-origin"), Some(*origin), "{path}");
                assert_eq!(answer.header("vary"), Some("Origin"), "{path}");
                let headers = answer.header("access-control-allow-headers");
                assert_eq!(headers, Some("authorization,upstash-retries"), "{path}");
                assert_eq!(answer.header("access-control-allow-private-network"), Some("true"), "{path}");
                let methods = answer.header("access-control-allow-methods").expect("methods");
                for method in ["GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"] {
                    assert!(methods.split(", ").any(|allowed| allowed == method), "{methods}");
                }
            }
        }
        server.finish().await;
    }
}

#[tokio::test]
async fn scripts_of_allowed_origins_may_read_all_answers() {
    let server = TestServer::start().await;
    let requests = [
        (server.get("/v2/keys"), 200),
        (server.get(&format!("/v2/keys?qstash_token={TOKEN}")).without("Authorization"), 200),
        (server.get("/v2/keys").without("Authorization"), 401),
        (server.get("/nowhere"), 404),
        (server.post("/v2/keys"), 405),
        (server.get("/v2/keys").without("Host"), 400),
    ];
    for (request, status) in requests {
        let answer = request.header("Origin", FRONT_END).expect(status).await;
        assert_eq!(answer.header("access-control-allow-origin"), Some(FRONT_END), "{status}");
        let exposed = answer.header("access-control-expose-headers").expect("headers");
        for name in ["RateLimit-Reset", "Burst-RateLimit-Reset", "Upstash-Cursor"] {
            assert!(exposed.split(", ").any(|exposed| exposed == name), "{name} is not among {exposed}");
        }
    }
    server.finish().await;
}

#[tokio::test]
async fn a_foreign_page_cannot_make_a_development_server_do_anything() {
    let (server, receiver) = (TestServer::start().await, Receiver::start().await);
    let with_token = |path: &str| format!("{path}?qstash_token={TOKEN}");
    for origin in [EVIL, "null", "http://localhost.evil.example", "file://"] {
        let refused = preflight(&server, "/v2/keys", origin).expect(403).await;
        assert_closed(&refused, origin);
        // Needs no preflight: the browser sends it at once, and only the answer is kept from the page.
        let simple = server.post(&with_token(&format!("/v2/publish/{}", receiver.url("/")))).without("Authorization");
        let simple = simple.headers(&[("Origin", origin), ("Content-Type", "text/plain")]).body("x").expect(403).await;
        assert!(simple.error().contains("allowed_origins"), "{}", simple.error());
        assert_closed(&simple, origin);
        let with_header = server.publish(&receiver.url("/")).header("Origin", origin).body("x").expect(403).await;
        assert_closed(&with_header, origin);
        let read = server.get(&with_token("/v2/keys")).without("Authorization").header("Origin", origin);
        assert_closed(&read.expect(403).await, origin);
        assert_closed(&server.get("/metrics").header("Origin", origin).expect(403).await, origin);
    }
    let old_form = server.post(&with_token("/v2/keys/rotate")).without("Authorization");
    old_form.header("Sec-Fetch-Site", "cross-site").body("").expect(403).await;
    assert_eq!(server.get("/v2/logs").expect(200).await.json()["logs"], serde_json::json!([]), "nothing was published");
    assert_eq!(receiver.count(), 0);
    server.finish().await;
}

#[tokio::test]
async fn a_development_server_answers_only_to_its_own_names() {
    let mut setup = Setup::dev();
    setup.settings.public_url = Some("https://tunnel.example".to_owned());
    let server = TestServer::with(setup).await;
    let to = |host: &str, path: &str| server.get(path).without("Host").header("Host", host);
    let port = server.address.port();
    for host in [format!("localhost:{port}"), format!("127.0.0.1:{port}"), "[::1]".into(), "Tunnel.example".into()] {
        to(&host, "/v2/keys").expect(200).await;
    }
    let rebound = format!("rebound.example:{port}");
    for path in ["/v2/keys", "/metrics", "/openapi.json", "/nowhere"] {
        let answer = to(&rebound, path).expect(403).await;
        assert!(answer.error().contains(&rebound) && answer.error().contains("public_url"), "{}", answer.error());
        // For its browser the page and this server are one origin now.
        let same = to(&rebound, path).header("Origin", format!("http://{rebound}")).expect(403).await;
        assert_closed(&same, path);
    }
    to(&rebound, "/health").expect(200).await;
    // The secret of a webhook is its URL, and its callers reach a developer through tunnels of any name.
    to(&rebound, "/v2/workflows/hooks/u/wfr_x/evt_y").expect(404).await;
    server.finish().await;
}

#[tokio::test]
async fn a_production_server_takes_the_token_of_a_foreign_page_in_a_header_only() {
    let mut setup = listing(Setup::serve());
    setup.settings.query_token = Some(true);
    let server = TestServer::with(setup).await;
    let by_query = |path: &str| server.post(&format!("{path}?qstash_token={TOKEN}")).without("Authorization");
    let keys = server.get("/v2/keys").expect(200).await.json();
    for origin in [EVIL, "null", FRONT_END] {
        let refused = by_query("/v2/keys/rotate").headers(&[("Origin", origin)]).body("").expect(403).await;
        assert!(refused.error().contains("Authorization header"), "{}", refused.error());
        assert_closed(&refused, origin);
        assert_closed(&preflight(&server, "/v2/keys", origin).expect(405).await, origin);
        // Programs may say anything; a browser would have asked first.
        assert_closed(&server.get("/v2/keys").header("Origin", origin).expect(200).await, origin);
    }
    assert_eq!(server.get("/v2/keys").expect(200).await.json(), keys, "nothing was rotated");
    let own = format!("https://{}", server.address);
    for headers in [&[][..], &[("Origin", LISTED)], &[("Origin", own.as_str())]] {
        by_query("/v2/keys/rotate").headers(headers).body("").expect(200).await;
    }
    // A proxy may put any name there.
    server.get("/v2/keys").without("Host").header("Host", "inner-7.cluster").expect(200).await;
    server.finish().await;
}

#[tokio::test]
async fn origins_are_checked_at_the_start() {
    use posthaste::config::{Config, Mode, Settings};
    for text in ["*", "null", "console.example", "https://console.example/path"] {
        let settings = Settings { allowed_origins: Some(vec![text.to_owned()]), ..Settings::default() };
        let error = Config::resolve(Mode::Dev, settings).expect_err(text).to_string();
        assert!(error.starts_with("allowed_origins: ") && error.contains("https://app.example.com"), "{error}");
    }
}
