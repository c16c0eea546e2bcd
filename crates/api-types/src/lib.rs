//! The objects of the HTTP API, each once. Handlers respond with them, the console and tests read them, and `/openapi.json` is made
//! from them.
//!
//! An object here is data alone. It knows no store, no engine and no framework, has no I/O, and cannot decide which members a
//! reader may see. `crates/server/src/api` fills it, next to the handler that responds with it, and hides what must be hidden.
//! Of workflow runs it has the states and the short responses; the long objects are not here yet.
//!
//! Start at [`message`]; the others are alike. A field that may be absent is left out of the JSON and is never null. States are
//! enums. The comment of a field is its description in `/openapi.json`, so it is written for callers. [`schema`] turns the derives
//! into JSON Schema.
//!
//! Modules:
//!
//! - `message`, `log`, `why`: messages, log lines, and why a message waits
//! - `bulk_action`, `cause`: bulk actions, and what dead letters have in common
//! - `queue`, `flow_control`, `schedule`, `url_group`: resources with a name
//! - `workflow`: runs and their logs
//! - `keys`, `settings`, `stats`, `health`, `retry_plan`, `receiver`: the server and its tenants
//! - `schema`: JSON Schema from the derives

pub mod message;

pub mod log;

pub mod why;

pub mod bulk_action;

pub mod cause;

pub mod queue;

pub mod flow_control;

pub mod schedule;

pub mod url_group;

pub mod workflow;

pub mod keys;

pub mod stats;

pub mod retry_plan;

pub mod receiver;

pub mod settings;

pub mod health;

pub mod schema;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// For each name a list of values.
pub type HeaderLists = std::collections::BTreeMap<String, Vec<String>>;

/// The response to a request that was carried out: an empty object.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Done {}

fn is_false(value: &bool) -> bool {
    !*value
}
