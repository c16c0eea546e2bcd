//! What a retry changes: the page that asks for it, and what was filled in.

use super::super::form::{METHODS, header_lines, is_hidden};
use super::super::refusal::{Name, Refusal};
use super::super::view;
use super::super::visitor::{Problem, Visitor, segment};
use super::act::{self, Order, What};
use axum::extract::RawQuery;
use axum::response::Response;
use maud::{Markup, html};
use serde::Deserialize;
use std::collections::BTreeMap;

/// Settings that can be changed: field, header, label, hint.
const SETTINGS: [(&str, &str, &str, &str); 5] = [
    ("retries", "Upstash-Retries", "Retries", "unchanged"),
    ("delay", "Upstash-Delay", "Delay", "none; for example 10m, 1h30m or 2d"),
    ("retryDelay", "Upstash-Retry-Delay", "Retry delay (ms)", "unchanged; for example 1000 * (1 + retried)"),
    ("timeout", "Upstash-Timeout", "Timeout", "unchanged; for example 30s or 5m"),
    // Not `label`, which is a filter: what is changed must not change which dead letters are meant.
    ("newLabel", "Upstash-Label", "Labels", "unchanged; separate with commas"),
];

/// The label of the headers.
const HEADERS: &str = "Headers";
/// The fields, as refusals call them; a header that has none is one of the message.
const NAMES: &[Name] = &[
    ("Upstash-Method", "method"),
    ("Upstash-Retries", "retries"),
    ("maxRetries", "retries"),
    ("Upstash-Delay", "delay"),
    ("maxDelay", "delay"),
    ("Upstash-Retry-Delay", "retryDelay"),
    ("Upstash-Timeout", "timeout"),
    ("quota timeout", "timeout"),
    ("Upstash-Label", "newLabel"),
    ("rate", "rate"),
    ("Upstash-*", "headers"),
    (HEADERS, "headers"),
];

/// What is shown of a dead letter that is about to be sent again.
#[derive(Deserialize)]
struct Letter {
    url: String,
    method: String,
    #[serde(default)]
    header: BTreeMap<String, Vec<String>>,
}

pub(super) async fn show(visitor: Visitor, RawQuery(query): RawQuery) -> Result<Response, Problem> {
    let order = match Order::read(query.unwrap_or_default().as_bytes()) {
        Ok(order) => order,
        Err(nothing) => return Ok(nothing.back()),
    };
    render(&visitor, &order, None).await
}

/// The page; after a refusal with what was filled in, and the reason.
pub(super) async fn render(visitor: &Visitor, order: &Order, problem: Option<Problem>) -> Result<Response, Problem> {
    let one = match &order.what {
        What::One(id) => match visitor.get::<Letter>(&format!("/v2/dlq/{}", segment(id))).await {
            Ok(letter) => Some(letter),
            Err(absent) => return Err(problem.unwrap_or(absent)),
        },
        What::Ticked(_) | What::All(_) => None,
    };
    let title = match &order.what {
        What::One(_) => "Retry a dead letter".to_owned(),
        What::Ticked(ids) => format!("Retry {} dead letters", ids.len()),
        What::All(selection) if selection.is_empty() => "Retry all dead letters".to_owned(),
        What::All(selection) => format!("Retry dead letters with {}", selection.in_words()),
    };
    let refusal = Refusal::new(problem.as_ref(), NAMES);
    let body = html! {
        div.title { h1 { (title) } }
        (refusal.alert())
        form.card.fields #change method="post" action="/console/dlq/retry"
            data-ask=[one.is_none().then_some("/console/dlq/question/retry")] {
            (meant(order))
            @if let Some(letter) = &one {
                p { "Destination and body stay the same: " code { (view::long(&format!("{} {}", letter.method, letter.url))) } }
            } @else {
                p { "Empty fields keep the value of each message. Destinations and bodies stay the same." }
            }
            (settings(order, one.as_ref(), refusal))
            (headers(order, one.as_ref(), refusal))
            @if one.is_none() { (refusal.around("rate", &act::pace(&order.rate))) }
            div.actions {
                (view::submit(visitor, "Retry"))
                a.button href=(order.back()) { "Back" }
            }
        }
    };
    Ok(view::answer(visitor, &title, &body, problem.as_ref()))
}

/// Which dead letters, as fields that nobody sees.
fn meant(order: &Order) -> Markup {
    html! {
        input type="hidden" name="next" value=(order.back());
        @match &order.what {
            What::One(id) => {
                input type="hidden" name="what" value="one";
                input type="hidden" name="id" value=(id);
            }
            What::Ticked(ids) => {
                input type="hidden" name="what" value="ticked";
                @for id in ids { input type="hidden" name="dlqIds" value=(id); }
            }
            What::All(selection) => {
                input type="hidden" name="what" value="all";
                (selection.hidden(&[]))
            }
        }
    }
}

fn settings(order: &Order, one: Option<&Letter>, refusal: Refusal<'_>) -> Markup {
    let method = html! {
        label { "Method"
            select name="method" aria-invalid=[refusal.invalid("method")] aria-describedby=[refusal.described_by("method")] {
                option value="" { "unchanged" @if let Some(letter) = one { " (" (letter.method) ")" } }
                @for method in METHODS { option selected[method == order.field("method")] { (method) } }
            }
        }
    };
    let input = |field: &str, label: &str, hint: &str| {
        html! {
            label { (label)
                input type="text" name=(field) value=(order.field(field)) placeholder=(hint) autocomplete="off" spellcheck="false"
                    aria-invalid=[refusal.invalid(field)] aria-describedby=[refusal.described_by(field)];
            }
        }
    };
    html! {
        div.settings {
            (refusal.around("method", &method))
            @for (field, _, label, hint) in SETTINGS { (refusal.around(field, &input(field, label, hint))) }
        }
    }
}

fn headers(order: &Order, one: Option<&Letter>, refusal: Refusal<'_>) -> Markup {
    let known: Vec<(&str, &str)> = one.map(|letter| lines_of(letter)).unwrap_or_default();
    let (hidden, shown): (Vec<_>, Vec<_>) = known.into_iter().partition(|(_, value)| is_hidden(value));
    let text: Vec<String> = shown.iter().map(|(name, value)| format!("{name}: {value}")).collect();
    let text = text.join("\n");
    let typed = if order.has_changes() { order.field("headers") } else { &text };
    let field = html! {
        label { (HEADERS) ", one per line"
            textarea name="headers" rows="6" spellcheck="false" placeholder="Authorization: Bearer …"
                aria-invalid=[refusal.invalid("headers")] aria-describedby=[refusal.described_by("headers")] { (typed) }
        }
    };
    html! {
        (refusal.around("headers", &field))
        input type="hidden" name="headersBefore" value=(text);
        p.hint {
            "A header here replaces the header with the same name. Other headers stay the same. "
            @if !hidden.is_empty() {
                "Hidden headers are sent unchanged unless you enter them here: "
                (hidden.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ")) "."
            }
        }
    }
}

fn lines_of(letter: &Letter) -> Vec<(&str, &str)> {
    letter.header.iter().flat_map(|(name, values)| values.iter().map(|value| (name.as_str(), value.as_str()))).collect()
}

/// The headers of the request to the API; the problem says what is wrong with what was filled in.
pub(super) fn read(order: &Order) -> Result<Vec<(String, String)>, Problem> {
    let mut changes = Vec::new();
    for (field, header) in
        [("method", "Upstash-Method")].into_iter().chain(SETTINGS.map(|(field, header, ..)| (field, header)))
    {
        let value = order.field(field).trim();
        if !value.is_empty() {
            changes.push((header.to_owned(), value.to_owned()));
        }
    }
    let [before, after] = ["headersBefore", "headers"].map(|field| header_lines(HEADERS, order.field(field)));
    let (before, after) = (before?, after?);
    let values = |of: &[(String, String)], wanted: &str| -> Vec<String> {
        let same = of.iter().filter(|(name, _)| name.eq_ignore_ascii_case(wanted));
        same.map(|(_, value)| value.clone()).collect()
    };
    if let Some((name, _)) = before.iter().find(|(name, _)| values(&after, name).is_empty()) {
        let text = format!("{HEADERS}: {name} cannot be removed; keep it or change its value");
        return Err(Problem::refused(text));
    }
    let changed = after.iter().filter(|(name, _)| values(&before, name) != values(&after, name));
    changes.extend(changed.map(|(name, value)| (format!("Upstash-Forward-{name}"), value.clone())));
    Ok(changes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn changes(headers: &str, before: &str, more: &str) -> Result<Vec<(String, String)>, String> {
        let mut form = url::form_urlencoded::Serializer::new(String::new());
        form.append_pair("what", "all").append_pair("headers", headers).append_pair("headersBefore", before);
        let form = format!("{}{more}", form.finish());
        read(&Order::read(form.as_bytes()).map_err(|_| "nothing is meant")?).map_err(|problem| problem.text)
    }

    #[test]
    fn only_what_was_changed_is_sent() {
        let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        assert_eq!(changes("", "", ""), Ok(vec![]));
        assert_eq!(changes("A: 1\r\n\r\nB: x:y\r\n", "A: 1\nB: x:y", ""), Ok(vec![]));
        assert_eq!(changes("A: 2\nB: 1", "A: 1\nB: 1", ""), Ok(vec![pair("Upstash-Forward-A", "2")]));
        let both = vec![pair("Upstash-Forward-A", "1"), pair("Upstash-Forward-A", "2")];
        assert_eq!(changes("A: 1\nA: 2", "A: 1", ""), Ok(both), "all lines of a name, or one would be lost");
        let set = vec![pair("Upstash-Method", "PUT"), pair("Upstash-Retries", "5")];
        assert_eq!(changes("", "", "&method=PUT&retries=+5+&delay=+"), Ok(set));
        assert!(changes("B: 1", "A: 1\nB: 1", "").is_err_and(|text| text.starts_with("Headers: A cannot be removed")));
        assert!(changes("no header", "", "").is_err() && changes(": x", "", "").is_err());
    }
}
