//! `GET /openapi.json`: the API as an OpenAPI 3.1 document.
//!
//! [`endpoints`] is the table; a test compares it with the router, both ways, so that neither can be forgotten. The objects in
//! responses are those of the crate `api-types`, described by their own derives; [`schemas`] adds bodies of requests. `runs` and
//! `workflows` still describe the objects of workflow runs by hand.

mod endpoints;
mod parameters;
mod runs;
mod schemas;
mod workflows;

use super::access::{Access, Anyone, Methods};
use axum::body::Bytes;
use axum::http::{HeaderName, header};
use parameters::{Parameter, Place};
use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;

/// Built once, when the server starts: anyone may ask for it, and it takes a hundred times as long as any other response without a
/// token.
static DOCUMENT: LazyLock<Bytes> = LazyLock::new(|| build().to_string().into());

/// Builds the document, so that no request waits for it.
pub(super) fn prepare() {
    LazyLock::force(&DOCUMENT);
}

pub(super) async fn document(_: Anyone) -> ([(HeaderName, &'static str); 1], Bytes) {
    ([(header::CONTENT_TYPE, "application/json")], DOCUMENT.clone())
}

/// What a request brings.
enum RequestBody {
    None,
    /// Any bytes: the message itself.
    Raw,
    /// JSON of this shape.
    Json(Value),
    /// The same, or nothing.
    OptionalJson(Value),
}

/// A status, what it means, and what the answer holds.
struct Answer {
    status: u16,
    meaning: &'static str,
    content: Option<(&'static str, Value)>,
}

/// One endpoint, once for the router and the document.
struct Endpoint {
    method: &'static str,
    /// As the router has it, such as `/v2/flowControl/{*key}`.
    route: &'static str,
    /// As callers write it, such as `/v2/flowControl/{key}/pause`.
    path: &'static str,
    /// Other paths that do the same, kept for older clients: route and path.
    aliases: Vec<(&'static str, &'static str)>,
    access: Access,
    tag: &'static str,
    summary: &'static str,
    parameters: Vec<Parameter>,
    body: RequestBody,
    answers: Vec<Answer>,
    /// Statuses of errors that not every endpoint has.
    errors: Vec<u16>,
}

impl Endpoint {
    fn new(method: &'static str, path: &'static str, tag: &'static str, summary: &'static str) -> Self {
        Endpoint {
            method,
            route: path,
            path,
            aliases: Vec::new(),
            // See `described`.
            access: Access::Open,
            tag,
            summary,
            parameters: Vec::new(),
            body: RequestBody::None,
            answers: Vec::new(),
            errors: Vec::new(),
        }
    }

    /// The route, where the router has a wildcard.
    fn route(self, route: &'static str) -> Self {
        Endpoint { route, ..self }
    }

    fn alias(mut self, path: &'static str) -> Self {
        self.aliases.push((path, path));
        self
    }

    fn alias_of_route(mut self, route: &'static str, path: &'static str) -> Self {
        self.aliases.push((route, path));
        self
    }

    fn with(mut self, parameters: &[Parameter]) -> Self {
        self.parameters.extend_from_slice(parameters);
        self
    }

    fn body(self, body: RequestBody) -> Self {
        Endpoint { body, ..self }
    }

    fn answers(mut self, status: u16, meaning: &'static str, schema: Value) -> Self {
        self.answers.push(Answer { status, meaning, content: Some(("application/json", schema)) });
        self
    }

    fn answers_text(mut self, status: u16, meaning: &'static str, kind: &'static str) -> Self {
        self.answers.push(Answer { status, meaning, content: Some((kind, json!({ "type": "string" }))) });
        self
    }

    fn errors(mut self, statuses: &[u16]) -> Self {
        self.errors.extend_from_slice(statuses);
        self
    }

    /// The statuses of all errors it can have.
    fn error_statuses(&self) -> Vec<u16> {
        let mut statuses = vec![400, 405, 414, 417, 431, 500, 503];
        match self.access {
            Access::Open => {}
            Access::Metrics => statuses.push(401),
            Access::Read => statuses.extend([401, 429]),
            Access::Write => statuses.extend([401, 403, 408, 429]),
        }
        if !matches!(self.body, RequestBody::None) {
            statuses.push(408);
        }
        if matches!(self.body, RequestBody::Json(_) | RequestBody::OptionalJson(_)) {
            statuses.push(413);
        }
        statuses.extend_from_slice(&self.errors);
        statuses.sort_unstable();
        statuses.dedup();
        statuses
    }
}

/// The table, with what the router says that callers must show.
fn described() -> Vec<Endpoint> {
    let routes: Vec<(&str, Methods)> = super::all_routes().collect();
    let mut endpoints = endpoints::all();
    for endpoint in &mut endpoints {
        let mut of_route = routes.iter().filter(|(route, _)| *route == endpoint.route);
        let access = of_route.find_map(|(_, methods)| methods.access(endpoint.method));
        endpoint.access = access.expect("an endpoint that is described has a route");
    }
    endpoints
}

/// Method and route of every endpoint that is described: what a test compares with the router.
pub fn documented_routes() -> Vec<(&'static str, &'static str)> {
    let of_endpoint = |endpoint: Endpoint| {
        let routes = std::iter::once(endpoint.route).chain(endpoint.aliases.into_iter().map(|(route, _)| route));
        routes.map(|route| (endpoint.method, route)).collect::<Vec<_>>()
    };
    described().into_iter().flat_map(of_endpoint).collect()
}

fn build() -> Value {
    let mut paths: BTreeMap<&str, Map<String, Value>> = BTreeMap::new();
    for endpoint in described() {
        let method = endpoint.method.to_ascii_lowercase();
        paths.entry(endpoint.path).or_default().insert(method.clone(), operation(&endpoint, endpoint.path, false));
        for (_, alias) in &endpoint.aliases {
            paths.entry(alias).or_default().insert(method.clone(), operation(&endpoint, alias, true));
        }
    }
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Posthaste",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "Durable, signed, retried, deduplicated HTTP message delivery that speaks the QStash \
                protocol. A trailing slash makes no difference, except where an id is probably \
                missing: such requests are rejected with 400. Deprecated paths are aliases for older clients.",
            "license": { "name": "MIT OR Apache-2.0", "identifier": "MIT OR Apache-2.0" },
        },
        "servers": [{ "url": "/" }],
        "paths": paths,
        "components": {
            "schemas": schemas::all(),
            "responses": error_responses(),
            "securitySchemes": {
                "token": { "type": "http", "scheme": "bearer", "description": "Token of the tenant." },
                "queryToken": {
                    "type": "apiKey",
                    "in": "query",
                    "name": "qstash_token",
                    "description": "The same token as a query parameter. Available in `dev`, or if the operator enables `query_token`.",
                },
                "metricsToken": { "type": "http", "scheme": "bearer", "description": "The `metrics_token` of the operator." },
            },
        },
    })
}

fn operation(endpoint: &Endpoint, path: &str, is_alias: bool) -> Value {
    let mut operation = json!({
        "tags": [endpoint.tag],
        "summary": endpoint.summary,
        "operationId": operation_id(endpoint.method, path),
        "responses": responses(endpoint),
        "security": match endpoint.access {
            Access::Open => json!([]),
            Access::Metrics => json!([{ "metricsToken": [] }, {}]),
            Access::Read | Access::Write => json!([{ "token": [] }, { "queryToken": [] }]),
        },
    });
    if is_alias {
        operation["deprecated"] = true.into();
    }
    if endpoint.access == Access::Read {
        operation["description"] = "A read-only token can call this endpoint.".into();
    }
    let in_path = |parameter: &&Parameter| path.contains(&format!("{{{}}}", parameter.name));
    let parameters: Vec<Value> = endpoint
        .parameters
        .iter()
        .filter(|parameter| parameter.place != Place::Path || in_path(parameter))
        .map(Parameter::describe)
        .collect();
    if !parameters.is_empty() {
        operation["parameters"] = parameters.into();
    }
    let any_bytes = || json!({ "content": { "*/*": { "schema": {} } }, "description": "Body of the message, delivered byte for byte." });
    let of_schema = |schema: &Value, required: bool| json!({ "content": { "application/json": { "schema": schema } }, "required": required });
    match &endpoint.body {
        RequestBody::None => {}
        RequestBody::Raw => operation["requestBody"] = any_bytes(),
        RequestBody::Json(schema) => operation["requestBody"] = of_schema(schema, true),
        RequestBody::OptionalJson(schema) => operation["requestBody"] = of_schema(schema, false),
    }
    operation
}

fn responses(endpoint: &Endpoint) -> Value {
    let mut responses = Map::new();
    for answer in &endpoint.answers {
        let mut response = json!({ "description": answer.meaning });
        if let Some((kind, schema)) = &answer.content {
            response["content"] = json!({ *kind: { "schema": schema } });
        }
        responses.insert(answer.status.to_string(), response);
    }
    for status in endpoint.error_statuses() {
        responses.insert(status.to_string(), json!({ "$ref": format!("#/components/responses/{status}") }));
    }
    responses.into()
}

/// The errors that endpoints refer to: described once, which makes the document half as long.
fn error_responses() -> Value {
    let statuses: BTreeSet<u16> = described().iter().flat_map(Endpoint::error_statuses).collect();
    let content = json!({ "application/json": { "schema": schemas::reference("Error") } });
    let describe = |status: u16| json!({ "description": meaning_of(status), "content": content });
    statuses.into_iter().map(|status| (status.to_string(), describe(status))).collect::<Map<_, _>>().into()
}

fn meaning_of(status: u16) -> &'static str {
    match status {
        400 => "The request is invalid. The text names the field and says what is accepted.",
        401 => "The token is missing or wrong.",
        403 => "The token is read-only.",
        404 => "Not found.",
        408 => "The body took longer than 60 s to arrive.",
        405 => "Method not allowed. The header `Allow` lists the accepted methods.",
        412 => "A quota is exceeded. The text names the quota and its limit.",
        413 => "The body is too large.",
        414 => "The path and query are too long.",
        417 => "The header `Expect` has a value other than `100-continue`.",
        429 => "A rate limit or the daily message quota is exceeded. `Retry-After` says when to try again.",
        431 => "The request has more than 256 headers, or more than 64 KiB of headers.",
        500 => "Stored data could not be read.",
        502 => "The language model did not respond.",
        503 => "The server is overloaded or stopping, or its store is unavailable. Try again after `Retry-After`.",
        _ => "Rejected.",
    }
}

/// Such as `post_v2_queues_name_pause`.
fn operation_id(method: &str, path: &str) -> String {
    let words = path.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
    let words: Vec<&str> = words.collect();
    format!("{}_{}", method.to_ascii_lowercase(), words.join("_"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_parameter_of_a_path_is_described() {
        let document = build();
        for (path, operations) in document["paths"].as_object().unwrap() {
            let named: BTreeSet<&str> = path.split('{').skip(1).filter_map(|rest| rest.split('}').next()).collect();
            for (method, operation) in operations.as_object().unwrap() {
                let parameters = operation["parameters"].as_array().cloned().unwrap_or_default();
                let described = parameters.iter().filter(|parameter| parameter["in"] == "path");
                let described: BTreeSet<&str> = described.filter_map(|parameter| parameter["name"].as_str()).collect();
                assert_eq!(named, described, "{method} {path}");
            }
        }
    }

    #[test]
    fn every_reference_leads_somewhere_and_every_schema_is_used() {
        let document = build();
        let text = document.to_string();
        let used: BTreeSet<&str> =
            text.split("#/components/schemas/").skip(1).filter_map(|rest| rest.split('"').next()).collect();
        let defined: BTreeSet<&str> =
            document["components"]["schemas"].as_object().unwrap().keys().map(String::as_str).collect();
        assert_eq!(used, defined);
        let used: BTreeSet<&str> =
            text.split("#/components/responses/").skip(1).filter_map(|rest| rest.split('"').next()).collect();
        let defined: BTreeSet<&str> =
            document["components"]["responses"].as_object().unwrap().keys().map(String::as_str).collect();
        assert_eq!(used, defined);
    }

    #[test]
    fn operations_have_names_of_their_own() {
        let document = build();
        let operations = document["paths"].as_object().unwrap().values().flat_map(|path| path.as_object().unwrap());
        let names: Vec<&str> = operations.filter_map(|(_, operation)| operation["operationId"].as_str()).collect();
        assert_eq!(names.len(), names.iter().collect::<BTreeSet<_>>().len());
    }
}
