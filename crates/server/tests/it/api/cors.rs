//! Web pages may call a development server, and no other.

use crate::support::{Setup, TestServer};

#[tokio::test]
async fn a_development_server_answers_preflights_without_a_token() {
    let server = TestServer::start().await;
    for path in ["/v2/keys", "/v2/publish/https://example.com", "/v2/dlq/retry/1-2", "/nowhere"] {
        let asked = server.request("OPTIONS", path).without("Authorization").headers(&[
            ("Connection", "close"),
            ("Origin", "https://console.example"),
            ("Access-Control-Request-Method", "DELETE"),
            ("Access-Control-Request-Headers", "authorization,upstash-retries"),
            ("Access-Control-Request-Private-Network", "true"),
        ]);
        let answer = asked.expect(204).await;
        assert_eq!(answer.header("access-control-allow-origin"), Some("*"), "{path}");
        assert_eq!(answer.header("access-control-allow-headers"), Some("authorization,upstash-retries"), "{path}");
        assert_eq!(answer.header("access-control-allow-private-network"), Some("true"), "{path}");
        let methods = answer.header("access-control-allow-methods").expect("methods");
        for method in ["GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"] {
            assert!(methods.split(", ").any(|allowed| allowed == method), "{methods}");
        }
    }
    server.finish().await;
}

#[tokio::test]
async fn scripts_may_read_all_answers_of_a_development_server() {
    let server = TestServer::start().await;
    let requests = [
        (server.get("/v2/keys"), 200),
        (server.get("/v2/keys").without("Authorization"), 401),
        (server.get("/nowhere"), 404),
        (server.post("/v2/keys"), 405),
        (server.get("/v2/keys").without("Host"), 400),
    ];
    for (request, status) in requests {
        let answer = request.header("Origin", "https://console.example").expect(status).await;
        assert_eq!(answer.header("access-control-allow-origin"), Some("*"), "{status}");
        let exposed = answer.header("access-control-expose-headers").expect("headers");
        assert!(exposed.contains("RateLimit-Reset") && exposed.contains("Burst-RateLimit-Reset"), "{exposed}");
    }
    server.finish().await;
}

#[tokio::test]
async fn a_production_server_lets_no_page_in() {
    let server = TestServer::with(Setup::serve()).await;
    let headers = [("Origin", "https://console.example"), ("Access-Control-Request-Method", "GET")];
    let answer = server.request("OPTIONS", "/v2/keys").headers(&headers).expect(405).await;
    assert_eq!(answer.header("access-control-allow-origin"), None);
    let answer = server.get("/v2/keys").headers(&headers).expect(200).await;
    assert_eq!(answer.header("access-control-allow-origin"), None);
    server.finish().await;
}
