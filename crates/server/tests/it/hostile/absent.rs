//! Cases about what this version does not have: each is sent all the same, and what is answered instead is known.
//!
//! With the feature its case fails here, and moves to `table`.

use super::{Case, case, hardened};
use crate::support::Request;
use crate::support::server::TOKEN;

/// There is no console, so there is no such path.
const CONSOLE: [&str; 10] = [
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

/// Servers that this one does not use: what must not be among its dependencies as long as that is so.
const SERVERS: [(&str, &[&str]); 2] =
    [("lim-pg-readonly", &["postgres", "sqlx"]), ("lim-redis-down", &["redis", "fred"])];

const MANIFEST: &str = include_str!("../../../Cargo.toml");

pub(super) fn ids() -> impl Iterator<Item = &'static str> {
    CONSOLE.into_iter().chain(SERVERS.map(|(id, _)| id))
}

#[tokio::test]
async fn what_is_not_there_is_answered_in_order_and_stores_nothing() {
    let server = hardened(true).await;
    for id in CONSOLE {
        let answer = request(&case(id), server.address).send().await;
        let error = answer.error();
        assert_eq!(answer.status, 404, "{id}: {error}");
        assert!(error.contains("no such endpoint; "), "{id}: {error}");
        assert_eq!((answer.header("set-cookie"), answer.header("location")), (None, None), "{id}");
        server.get("/v2/keys").expect(200).await;
    }
    assert_eq!(super::accepted(&server), 0.0);
    server.finish().await;
}

fn request(case: &Case, address: std::net::SocketAddr) -> Request {
    let headers = case.value["headers"].as_object().into_iter().flatten();
    let text = |value: &serde_json::Value| value.as_str().unwrap_or_default().replace("{token}", TOKEN);
    headers.fold(Request::new(address, case.text("method"), case.text("path")), |request, (name, value)| {
        request.header(name, text(value))
    })
}

#[test]
fn servers_that_cannot_fail_are_not_used() {
    for (id, crates) in SERVERS {
        for name in crates {
            let is_used = MANIFEST.lines().any(|line| line.starts_with(name) || line.contains(&format!("-{name}")));
            assert!(!is_used, "{id} can be run now: {name} is used");
        }
    }
}
