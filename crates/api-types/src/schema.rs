//! JSON Schema of the objects, from their derives.
//!
//! The derives describe every optional field as nullable, and flattened structs as references. That is not what the API sends: a
//! field that may be absent is left out and never null, and objects are flat. `described` corrects both.

use serde_json::{Map, Value, json};
use utoipa::ToSchema;

/// Adds the schemas of these objects.
macro_rules! components {
    ($($module:ident: $($object:ident)*;)*) => {
        /// Every object that has a name in the document, with its schema.
        pub fn components() -> Map<String, Value> {
            let mut components = Map::new();
            $($(components.insert(stringify!($object).to_owned(), of::<crate::$module::$object>());)*)*
            components
        }
    };
}

components! {
    message: Message DeadLetter Published Cancelled;
    log: LogLine Connection;
    why: Why;
    bulk_action: BulkAction;
    cause: Cause;
    queue: Queue;
    flow_control: FlowControlKey;
    schedule: Schedule Forecast;
    url_group: UrlGroup Endpoint;
    workflow: StartedRun BegunRun;
    keys: Keys;
    stats: Stats;
    retry_plan: RetryPlan;
    receiver: TestReceiver;
    settings: Settings;
}

/// The schema of an object in place, without a name.
pub fn of<T: ToSchema>() -> Value {
    let mut nested = Vec::new();
    T::schemas(&mut nested);
    let nested = nested.into_iter().map(|(name, schema)| (name, json!(schema))).collect();
    described(json!(T::schema()), &nested)
}

/// A reference to an object that [`components()`] has.
pub fn reference<T: ToSchema>() -> Value {
    json!({ "$ref": format!("{COMPONENTS}{}", T::name()) })
}

/// A list of such objects.
pub fn list<T: ToSchema>() -> Value {
    json!({ "type": "array", "items": reference::<T>() })
}

/// What references begin with.
const COMPONENTS: &str = "#/components/schemas/";

/// A derived schema as the API means it.
fn described(schema: Value, nested: &Map<String, Value>) -> Value {
    match schema {
        Value::Object(schema) => described_object(schema, nested).into(),
        Value::Array(schemas) => schemas.into_iter().map(|schema| described(schema, nested)).collect(),
        other => other,
    }
}

fn described_object(mut schema: Map<String, Value>, nested: &Map<String, Value>) -> Map<String, Value> {
    if let Some(Value::Array(parts)) = schema.remove("allOf") {
        for part in parts {
            merge(&mut schema, part, nested);
        }
    }
    // Names in JSON are always strings.
    schema.remove("propertyNames");
    // The derives call a `u32` so, which is one bit too short.
    if schema.get("format").is_some_and(|format| format == "int32") {
        schema.remove("format");
    }
    let required = schema.get("required").cloned().unwrap_or_default();
    let is_required = |name: &str| required.as_array().is_some_and(|names| names.iter().any(|other| other == name));
    let mut described_members = Map::new();
    for (name, value) in schema {
        let value = match (name.as_str(), value) {
            ("properties", Value::Object(fields)) => {
                let field = |(name, field): (String, Value)| {
                    let field = if is_required(&name) { field } else { never_null(field) };
                    (name, described(field, nested))
                };
                fields.into_iter().map(field).collect::<Map<_, _>>().into()
            }
            (_, value) => described(value, nested),
        };
        described_members.insert(name, value);
    }
    described_members
}

/// Adds a part to an object: its fields, and the description that the object does not have. Parts of a flattened object are
/// references.
fn merge(object: &mut Map<String, Value>, part: Value, nested: &Map<String, Value>) {
    let name = part["$ref"].as_str().and_then(|reference| reference.strip_prefix(COMPONENTS));
    let part = name.and_then(|name| nested.get(name).cloned()).unwrap_or(part);
    let Value::Object(mut part) = part else { return };
    if let Some(Value::Array(parts)) = part.remove("allOf") {
        parts.into_iter().for_each(|part| merge(object, part, nested));
    }
    for (name, value) in part {
        match (object.get_mut(&name), value) {
            (Some(Value::Object(known)), Value::Object(more)) => known.extend(more),
            (Some(Value::Array(known)), Value::Array(more)) => known.extend(more),
            (Some(_), _) => {}
            (None, value) => drop(object.insert(name, value)),
        }
    }
}

/// The schema of a field that is left out where it has no value.
fn never_null(field: Value) -> Value {
    let Value::Object(mut field) = field else { return field };
    if let Some(Value::Array(kinds)) = field.get_mut("type") {
        kinds.retain(|kind| kind != "null");
        if let [kind] = kinds.as_slice() {
            let kind = kind.clone();
            field.insert("type".to_owned(), kind);
        }
    }
    if let Some(Value::Array(mut kinds)) = field.remove("oneOf") {
        kinds.retain(|kind| kind["type"] != "null");
        match kinds.pop() {
            Some(only) if kinds.is_empty() => merge(&mut field, only, &Map::new()),
            last => drop(field.insert("oneOf".to_owned(), kinds.into_iter().chain(last).collect())),
        }
    }
    field.into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde::Serialize;

    /// An inner object.
    #[derive(Serialize, ToSchema)]
    struct Inner {
        #[serde(skip_serializing_if = "Option::is_none")]
        text: Option<String>,
        always: bool,
    }

    /// An outer object.
    #[derive(Serialize, ToSchema)]
    struct Outer {
        #[serde(flatten)]
        inner: Inner,
        #[serde(skip_serializing_if = "Option::is_none")]
        #[schema(inline)]
        other: Option<Inner>,
        #[schema(required)]
        nullable: Option<u64>,
    }

    #[test]
    fn objects_are_flat_and_only_what_is_always_sent_can_be_null() {
        let text = json!({ "type": "string" });
        let always = json!({ "type": "boolean" });
        let inner = json!({
            "type": "object",
            "description": "An inner object.",
            "required": ["always"],
            "properties": { "text": text, "always": always },
        });
        let expected = json!({
            "type": "object",
            "description": "An outer object.",
            "required": ["always", "nullable"],
            "properties": {
                "text": text,
                "always": always,
                "other": inner,
                "nullable": { "type": ["integer", "null"], "format": "int64", "minimum": 0 },
            },
        });
        assert_eq!(of::<Outer>(), expected);
    }

    #[test]
    fn every_reference_leads_to_an_object() {
        let components = components();
        let text = Value::from(components.clone()).to_string();
        let named = text.split(COMPONENTS).skip(1).filter_map(|rest| rest.split('"').next());
        let missing: Vec<&str> = named.filter(|name| !components.contains_key(*name)).collect();
        assert!(missing.is_empty(), "{missing:?}");
        assert!(components.len() > 15, "{}", components.len());
    }
}
