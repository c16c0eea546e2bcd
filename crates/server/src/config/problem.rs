//! The mistakes in a configuration file, in words: the line with a caret, and the form that is accepted.
//!
//! A line may hold a token or a key, so that no value is ever shown: `llm_token = …`. A line whose start is not a known name
//! may be a piece of a value and is not shown at all. Start at [`describe`].

use super::Settings;
use crate::nearest::nearest;
use crate::tenants::{Scope, TenantSettings, TokenSettings};
use posthaste_wire::echo::echo;
use std::ops::Range;

/// Stands for a value.
const VALUE: &str = "…";
/// The tables that a file may have.
const TABLES: [&str; 2] = ["tenants", "tenants.tokens"];

/// What is wrong with this file, and where.
pub(super) fn describe(file: &str, error: &toml::de::Error) -> String {
    let place = Place::find(file, error.span().unwrap_or_default());
    let problem = problem(&place, error.message());
    let excerpt = place.excerpt(&problem).unwrap_or_default();
    format!("line {}: {}{excerpt}", place.number, problem.text)
}

/// A mistake in words.
struct Problem {
    text: String,
    /// A key that nothing is known of. It is shown, because it is no value.
    unknown_key: Option<String>,
}

impl From<String> for Problem {
    fn from(text: String) -> Problem {
        Problem { text, unknown_key: None }
    }
}

/// Where a mistake is.
struct Place<'a> {
    /// Of the line, from 1 on.
    number: usize,
    /// The line without the space around it.
    line: &'a str,
    /// It is in the value, and not before it.
    is_in_value: bool,
    /// The table that the line belongs to.
    table: Option<&'a str>,
}

impl<'a> Place<'a> {
    fn find(file: &'a str, span: Range<usize>) -> Place<'a> {
        let at = file.floor_char_boundary(span.start);
        let start = file[..at].rfind('\n').map_or(0, |end| end + 1);
        let end = file[at..].find('\n').map_or(file.len(), |end| at + end);
        let line = &file[start..end];
        let is_in_value = line.find('=').is_some_and(|equals| at - start > equals);
        let table = file[..start].lines().rev().find_map(table_of);
        Place { number: file[..start].matches('\n').count() + 1, line: line.trim(), is_in_value, table }
    }

    /// The names before and in the line: `None` of a line that may be a piece of a value.
    fn key(&self) -> Option<&'a str> {
        let (key, _) = self.line.split_once('=')?;
        Some(key.trim_end())
    }

    /// The value as it is written, to look at, never to show.
    fn value(&self) -> &'a str {
        self.line.split_once('=').map_or("", |(_, value)| value.trim())
    }

    /// The names that the line may have.
    fn names(&self) -> Vec<String> {
        match self.table {
            Some("tenants.tokens") => names_of_token(),
            Some("tenants") => names_of(&TenantSettings::default()),
            _ => names_of(&Settings::default()),
        }
    }

    /// The line with its value left out, and a caret below the mistake.
    fn excerpt(&self, problem: &Problem) -> Option<String> {
        let is_known =
            |key: &str| problem.unknown_key.as_deref() == Some(key) || self.names().iter().any(|name| name == key);
        let (shown, caret) = match (self.key().filter(|key| is_known(key)), table_of(self.line)) {
            (Some(key), _) if self.is_in_value => {
                (format!("{key} = {VALUE}"), " ".repeat(key.len() + " = ".len()) + "^")
            }
            (Some(key), _) => (format!("{key} = {VALUE}"), "^".repeat(key.len())),
            (None, Some(table)) if TABLES.contains(&table) || problem.unknown_key.as_deref() == Some(table) => {
                let brackets = self.line.len() - self.line.trim_start_matches('[').len();
                let (open, close) = ("[".repeat(brackets), "]".repeat(brackets));
                (format!("{open}{table}{close}"), "^".repeat(table.len() + 2 * brackets))
            }
            _ => return None,
        };
        let (number, margin) = (self.number, " ".repeat(self.number.to_string().len()));
        Some(format!("\n{margin} |\n{number} | {shown}\n{margin} | {caret}"))
    }
}

/// The name in `[name]` or `[[name]]`.
fn table_of(line: &str) -> Option<&str> {
    let inside = line.trim().strip_prefix('[')?;
    let inside = inside.strip_prefix('[').unwrap_or(inside);
    let end = inside.find(']')?;
    Some(inside[..end].trim())
}

fn problem(place: &Place<'_>, message: &str) -> Problem {
    let quoted = |start: &str| message.strip_prefix(start)?.split_once('`').map(|(name, _)| name);
    if let Some(key) = quoted("unknown field `") {
        return unknown_key(place, key, &quoted_names(message));
    }
    if message.starts_with("unknown variant `") {
        let names: Vec<String> = quoted_names(message).iter().map(|name| format!("\"{name}\"")).collect();
        return format!("expected {}", names.join(" or ")).into();
    }
    if let Some(name) = quoted("missing field `") {
        return format!("{name} is missing").into();
    }
    if let Some((_, expected)) = message.rsplit_once(", expected ").filter(|_| message.starts_with("invalid type: ")) {
        return wrong_type(place, message, expected).into();
    }
    if let Some((_, expected)) = message.rsplit_once(", expected ").filter(|_| message.starts_with("invalid value: ")) {
        return format!("expected {}", in_words(expected)).into();
    }
    wrong_toml(place, message).into()
}

/// A name that no setting of the accepted ones has.
fn unknown_key(place: &Place<'_>, key: &str, accepted: &[&str]) -> Problem {
    let is_plain = !key.is_empty() && key.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte));
    let shown = if is_plain && key.len() <= posthaste_wire::echo::ECHO_CHARS_MAX { key.to_owned() } else { echo(key) };
    let settings = names_of(&Settings::default());
    let is_table = table_of(place.line).is_some();
    let help = if place.table.is_some() && !is_table && settings.iter().any(|name| name == key) {
        "; it belongs before the first [[tenants]]".to_owned()
    } else if place.table.is_none() && names_of(&TenantSettings::default()).iter().any(|name| name == key) {
        "; it belongs below a [[tenants]]".to_owned()
    } else if let Some(name) = nearest(key, accepted.iter().copied()) {
        format!("; did you mean {name}?")
    } else if is_table {
        "; the only tables are [[tenants]] and [[tenants.tokens]], and other settings stand above them".to_owned()
    } else {
        String::new()
    };
    Problem { text: format!("unknown key {shown}{help}"), unknown_key: (shown == key).then_some(shown) }
}

/// A value of another type.
fn wrong_type(place: &Place<'_>, message: &str, expected: &str) -> String {
    if let Some(table) = table_of(place.line).or(place.key()).filter(|table| TABLES.contains(table)) {
        return format!("{table} is a list of tables: write [[{table}]]");
    }
    let is_number = message.starts_with("invalid type: integer") && in_words(expected).starts_with("a whole number");
    let found = match message.trim_start_matches("invalid type: ").split([' ', ',']).next() {
        // A number that no setting can hold.
        Some("integer") if is_number => return format!("expected {}", in_words(expected)),
        Some("string") => "a string",
        Some("integer") => "a whole number",
        Some("floating") => "a number with decimals",
        Some("boolean") => "true or false",
        Some("sequence") => "a list",
        Some("map") if place.value().starts_with('{') => "a table",
        Some("map") => "a date",
        _ => return format!("expected {}", in_words(expected)),
    };
    format!("expected {}, found {found}", in_words(expected))
}

/// A type, as the library calls it.
fn in_words(expected: &str) -> String {
    match expected {
        "a string" | "literal string" => "a string in quotes".to_owned(),
        "a boolean" => "true or false".to_owned(),
        "a sequence" => "a list, such as [\"…\"]".to_owned(),
        "u32" => format!("a whole number from 0 to {}", u32::MAX),
        "u64" | "usize" => "a whole number, 0 or more".to_owned(),
        other => other.to_owned(),
    }
}

/// The names that would have been right: those after `expected`. A value may come before.
fn quoted_names(message: &str) -> Vec<&str> {
    let expected = message.rsplit_once(", expected ").map_or("", |(_, expected)| expected);
    expected.split('`').skip(1).step_by(2).collect()
}

/// A text that is no TOML.
fn wrong_toml(place: &Place<'_>, message: &str) -> String {
    if message == "duplicate key" {
        return match (table_of(place.line).filter(|table| TABLES.contains(table)), place.key()) {
            (Some(table), _) => format!("{table} comes twice: write each as [[{table}]]"),
            (None, Some(key)) if place.names().iter().any(|name| name == key) => format!("{key} is set twice"),
            (None, _) => "this key is set twice".to_owned(),
        };
    }
    let value = place.value();
    if place.is_in_value && value.is_empty() {
        return "the value is missing".to_owned();
    }
    let is_open =
        value.starts_with(['"', '\'']) && message.starts_with("invalid ") && message.contains(" string, expected");
    if is_open && (message.ends_with("`\"`") || message.ends_with("`'`")) {
        return "the string has no closing quote".to_owned();
    }
    let is_bare = place.is_in_value && !value.starts_with(['"', '\'', '[', '{']);
    if message == "wanted string or table" {
        return format!("expected {}", in_words("a string"));
    }
    if is_bare || message.starts_with("string values must be quoted") {
        return match place.key().filter(|_| is_bare).and_then(wanted_by) {
            Some(expected) if expected != "a string" => format!("expected {}", in_words(&expected)),
            _ => "strings need quotes".to_owned(),
        };
    }
    match message {
        unclosed if unclosed.starts_with("unclosed ") => "a bracket is not closed".to_owned(),
        "key with no value, expected `=`" => "expected a line such as key = value".to_owned(),
        "unexpected key or value, expected newline, `#`" => "expected the end of the line after the value".to_owned(),
        // The texts of the library about TOML itself have no values.
        other => other.to_owned(),
    }
}

/// The type that a setting wants, as the library calls it.
fn wanted_by(key: &str) -> Option<String> {
    // No setting takes this.
    let error = toml::from_str::<Settings>(&format!("{key} = 0000-01-01")).err()?;
    let (_, expected) = error.message().rsplit_once("invalid type: map, expected ")?;
    Some(expected.to_owned())
}

fn names_of_token() -> Vec<String> {
    names_of(&TokenSettings { name: String::new(), scope: Scope::Full, token: None, token_sha256: None })
}

/// The names of all settings of a kind.
fn names_of(settings: &impl serde::Serialize) -> Vec<String> {
    match serde_json::to_value(settings) {
        Ok(serde_json::Value::Object(names)) => names.into_iter().map(|(name, _)| name).collect(),
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests;
