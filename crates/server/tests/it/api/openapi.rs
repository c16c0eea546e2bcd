//! `/openapi.json` describes what the router has, no more and no less.

use crate::support::{Request, Setup, TestServer};
use posthaste::api::{documented_routes, route_paths};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

/// A path that a route matches.
fn sample(route: &str) -> String {
    let filled = |segment: &str| match segment.starts_with('{') {
        true => "x".to_owned(),
        false => segment.to_owned(),
    };
    route.split('/').map(filled).collect::<Vec<_>>().join("/")
}

#[tokio::test]
async fn every_route_is_documented_and_says_which_methods_it_has() {
    let mut documented: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for (method, route) in documented_routes() {
        documented.entry(route).or_default().insert(method);
    }
    let routed: BTreeSet<&str> = route_paths().into_iter().collect();
    assert_eq!(documented.keys().copied().collect::<BTreeSet<_>>(), routed);
    assert!(routed.len() > 30, "{routed:?}");
    let server = TestServer::with(Setup::serve()).await;
    for (route, methods) in documented {
        // Nothing has this method, so the answer tells those that the route has.
        let answer = server.request("TRACE", &sample(route)).expect(405).await;
        answer.error();
        let allow = answer.header("allow").expect("Allow").split(',').filter(|method| *method != "HEAD");
        assert_eq!(allow.collect::<BTreeSet<_>>(), methods, "{route}");
    }
    server.finish().await;
}

#[tokio::test]
async fn the_document_needs_no_token_and_names_what_every_endpoint_answers() {
    let server = TestServer::start().await;
    let document = server.get("/openapi.json").without("Authorization").expect(200).await.json();
    assert_eq!(document["openapi"], "3.1.0");
    for (path, operations) in document["paths"].as_object().expect("paths") {
        for (method, operation) in operations.as_object().expect("operations") {
            let responses = operation["responses"].as_object().expect("responses");
            assert!(responses.keys().any(|status| status.starts_with('4')), "{method} {path}");
            let is_open = operation["security"] == Value::Array(Vec::new());
            let target = sample(&path.replace("{destination}", "http:%2F%2Fnowhere.example"));
            let request = Request::new(server.address, &method.to_ascii_uppercase(), &target);
            let status = request.send().await.status.to_string();
            assert!(responses.contains_key(&status), "{method} {path}: {status}");
            let is_hook = path.starts_with("/v2/workflows/hooks/");
            if is_hook || !(path.starts_with("/v") || path.starts_with("/llm")) {
                assert!(is_open || path == "/metrics", "{method} {path}");
            } else {
                assert!(!is_open && status == "401", "{method} {path}: {status}");
            }
        }
    }
    server.finish().await;
}
