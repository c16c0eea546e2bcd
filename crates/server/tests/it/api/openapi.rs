//! `/openapi.json` describes what the router has, no more and no less.

use crate::support::server::READ_ONLY;
use crate::support::{Request, Setup, TestServer};
use posthaste::api::{documented_routes, route_paths};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

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

/// The body never comes, so a route that read it first would not respond.
#[tokio::test]
async fn every_route_refuses_callers_that_may_not_call_it_before_it_reads_their_bodies() {
    let server = TestServer::start().await;
    let document = server.get("/openapi.json").expect(200).await.json();
    let mut refused = 0;
    for (path, operations) in document["paths"].as_object().expect("paths") {
        for (method, operation) in operations.as_object().expect("operations") {
            if operation["security"][0]["token"].is_null() {
                continue;
            }
            let target = sample(&path.replace("{destination}", "http:%2F%2Fnowhere.example"));
            let request = Request::new(server.address, &method.to_ascii_uppercase(), &target);
            let request = request.header("Content-Length", "10");
            request.clone().expect(401).await.error();
            let may_read = operation["description"] == "A read-only token can call this endpoint.";
            if !may_read {
                request.token(READ_ONLY).expect(403).await.error();
                refused += 1;
            }
        }
    }
    assert!(refused > 50, "{refused}");
    server.finish().await;
}

/// Clients are generated from the document, so a change of it is a change of the API.
#[tokio::test]
async fn the_document_is_the_golden_one() {
    let server = TestServer::start().await;
    let mut document = server.get("/openapi.json").without("Authorization").expect(200).await.json();
    document["info"]["version"] = "0.0.0".into();
    let golden: Value = serde_json::from_str(include_str!("openapi.golden.json")).unwrap();
    let mut differences = Vec::new();
    compare("", &golden, &document, &mut differences);
    if !differences.is_empty() {
        let written = Path::new(env!("CARGO_TARGET_TMPDIR")).join("openapi.golden.json");
        std::fs::write(&written, laid_out(&document, 4)).unwrap();
        let differences = differences.join("\n");
        panic!("{differences}\nif this is meant, copy {} to tests/it/api", written.display());
    }
    server.finish().await;
}

/// Adds a line for every place at which two documents differ.
fn compare(place: &str, golden: &Value, document: &Value, differences: &mut Vec<String>) {
    match (golden, document) {
        (Value::Object(golden), Value::Object(document)) => {
            for name in golden.keys().chain(document.keys()).collect::<BTreeSet<_>>() {
                let of = |object: &serde_json::Map<String, Value>| object.get(name).cloned().unwrap_or_default();
                compare(&format!("{place}/{name}"), &of(golden), &of(document), differences);
            }
        }
        _ if golden == document => {}
        _ => differences.push(format!("{place}: {golden} became {document}")),
    }
}

/// A document with a line for each operation and each schema.
fn laid_out(value: &Value, levels: usize) -> String {
    let indent = " ".repeat(5 - levels);
    match value {
        Value::Object(object) if levels > 0 && !object.is_empty() => {
            let member =
                |(name, value)| format!("{indent}{}: {}", Value::from(name), laid_out(value, levels - 1).trim_end());
            let members: Vec<String> = object.iter().map(|(name, value)| member((name.as_str(), value))).collect();
            format!("{{\n{}\n{}}}\n", members.join(",\n"), &indent[1..])
        }
        _ => value.to_string(),
    }
}
