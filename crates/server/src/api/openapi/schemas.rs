//! The objects of the API, as JSON Schema.

use super::{runs, workflows};
use posthaste_api_types::schema;
use serde_json::{Map, Value, json};

/// A schema by its name.
pub(super) fn reference(name: &str) -> Value {
    json!({ "$ref": format!("#/components/schemas/{name}") })
}

/// A list of what a schema describes.
pub(super) fn list_of(name: &str) -> Value {
    json!({ "type": "array", "items": reference(name) })
}

/// An object: its fields, and which of them are always there.
pub(super) fn object(required: &[&str], fields: &[(&str, Value)]) -> Value {
    let fields: Map<String, Value> = fields.iter().map(|(name, schema)| ((*name).to_owned(), schema.clone())).collect();
    match required {
        [] => json!({ "type": "object", "properties": fields }),
        _ => json!({ "type": "object", "required": required, "properties": fields }),
    }
}

/// An object without fields: it was done.
pub(super) fn done() -> Value {
    json!({ "type": "object", "maxProperties": 0 })
}

pub(super) fn text() -> Value {
    json!({ "type": "string" })
}

pub(super) fn whole() -> Value {
    json!({ "type": "integer", "minimum": 0 })
}

pub(super) fn millis() -> Value {
    json!({ "type": "integer", "minimum": 0, "description": "Unix milliseconds." })
}

pub(super) fn texts() -> Value {
    json!({ "type": "array", "items": { "type": "string" } })
}

/// For each name a list of values.
pub(super) fn headers() -> Value {
    json!({ "type": "object", "additionalProperties": { "type": "array", "items": { "type": "string" } } })
}

pub(super) fn boolean() -> Value {
    json!({ "type": "boolean" })
}

/// All schemas that the endpoints refer to: those of typed objects, and those of request bodies and of runs.
pub(super) fn all() -> Value {
    let mut schemas = schema::components();
    let others =
        [("Error", object(&["error"], &[("error", text())])), ("BatchItem", batch_item()), ("Filters", filters())];
    for (name, schema) in others.into_iter().chain(workflows::schemas()).chain(runs::schemas()) {
        schemas.insert(name.to_owned(), schema);
    }
    schemas.into()
}

fn batch_item() -> Value {
    let header_value = json!({ "anyOf": [text(), texts()] });
    let optional_text = || json!({ "type": ["string", "null"] });
    let fields = [
        ("destination", json!({ "type": "string", "minLength": 1 })),
        ("headers", json!({ "type": ["object", "null"], "additionalProperties": header_value })),
        ("body", optional_text()),
        ("queue", optional_text()),
    ];
    object(&["destination"], &fields)
}

/// The filters of the query, as older SDKs send them: in the body.
fn filters() -> Value {
    let scalar = json!({ "type": ["string", "integer", "boolean"] });
    let values = json!({ "anyOf": [scalar, { "type": "array", "items": scalar, "minItems": 1 }] });
    json!({
        "type": "object",
        "additionalProperties": values,
        "description": "Filters as in the query, with text, numbers, booleans or lists as values. The query takes precedence.",
    })
}
