//! Flow control: keys, their limits and what waits for them.

use super::form::Search;
use super::refusal::{Name, Refusal};
use super::view::{self, ROWS_MAX, column, numbers};
use super::visitor::{Problem, query, segment};
use super::{Desk, Visitor, back_to, messages};
use axum::Router;
use axum::extract::{Form, Query};
use axum::http::{Method, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use maud::{Markup, html};
use posthaste_wire::time::Timestamp;
use serde::Deserialize;
use std::sync::Arc;

const PAGE: &str = "/console/flow-control";
/// How often the list is asked for again: it has every key.
const REFRESH_MS: u32 = 10_000;

pub(super) fn routes() -> Router<Arc<Desk>> {
    Router::new().route("/flow-control", get(show)).route("/flow-control/key", get(show_key).post(act))
}

/// A key as the API shows it; a limit of 0 is none.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Key {
    flow_control_key: String,
    wait_list_size: u64,
    parallelism_max: u64,
    parallelism_count: u64,
    rate_max: u64,
    rate_count: u64,
    rate_period: u64,
    rate_period_start: u64,
    is_paused: bool,
    is_pinned_parallelism: bool,
    is_pinned_rate: bool,
}

/// Attempts of the tenant that are in flight, and how many may be.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Global {
    parallelism_max: u64,
    parallelism_count: u64,
}

#[derive(Deserialize)]
struct Which {
    #[serde(default)]
    key: String,
}

/// What a button or the form for limits says.
#[derive(Deserialize)]
#[serde(default)]
#[derive(Default)]
struct Act {
    key: String,
    action: String,
    parallelism: String,
    rate: String,
    period: String,
    next: String,
}

fn page_of(key: &str) -> String {
    format!("{PAGE}/key?{}", query(&[("key", key)]))
}

async fn show(visitor: Visitor, Query(Search { search }): Query<Search>) -> Result<Response, Problem> {
    let path = format!("/v2/flowControl?{}", query(&[("search", &search)]));
    let (keys, has_more): (Vec<Key>, bool) = visitor.list(&path).await?;
    let global: Global = visitor.get("/v2/globalParallelism").await?;
    let is_empty = keys.is_empty() && search.is_empty();
    let body = html! {
        div.title { h1 { "Flow control" } span.quiet { "Messages with the same key share a rate limit and a parallelism limit" } }
        div.cards #flow-figures {
            div.card.figure {
                span.quiet { "In flight" }
                strong { (view::number(global.parallelism_count)) }
                span.hint { "of " (view::number(global.parallelism_max)) " allowed for this tenant" }
            }
            div.card.figure {
                span.quiet { "Waiting" }
                strong { (view::number(keys.iter().map(|key| key.wait_list_size).sum())) }
                span.hint { "in " (view::counted(keys.len(), "key")) }
            }
            @let paused = keys.iter().filter(|key| key.is_paused).count();
            div.card.figure.warn[paused > 0] {
                span.quiet { "Paused" }
                strong { (paused) }
                span.hint { "keys that start no deliveries" }
            }
        }
        div #flow-search { @if !is_empty { (view::search(PAGE, "Key contains", &search)) } }
        section #flow-list data-refresh=(REFRESH_MS) data-also="flow-figures flow-search" {
            @if is_empty { (nothing()) } @else {
                (view::found(PAGE, keys.len(), keys.len(), "No keys match", || table(&visitor, &keys)))
                (view::more(has_more))
            }
        }
        (open_form())
    };
    Ok(view::page(&visitor.frame("Flow control"), &body).into_response())
}

fn table(visitor: &Visitor, keys: &[Key]) -> Markup {
    let rows = html! {
        @for key in keys.iter().take(ROWS_MAX) {
            tr {
                th.name scope="row" {
                    a href=(page_of(&key.flow_control_key)) {
                        code.cut title=(key.flow_control_key) { (key.flow_control_key) }
                    }
                }
                td.tight { (states(key)) }
                td.number { (view::number(key.wait_list_size)) }
                td.number.tight { (of_max(key.parallelism_count, key.parallelism_max)) }
                td.number.tight { (rate(key)) }
                td.acts { div.actions { (quick_buttons(visitor, key)) } }
            }
        }
    };
    view::table(
        &[
            column("Key"),
            column("State"),
            numbers("Waiting", Some("Due but not in flight")),
            numbers("In flight", None),
            numbers("Rate", None),
            column("Actions"),
        ],
        &rows,
    )
}

fn states(key: &Key) -> Markup {
    html! {
        @if key.is_paused { span.state.warn { "paused" } " " }
        @if key.is_pinned_rate { span.state.off title="Messages do not change the rate" { "rate pinned" } " " }
        @if key.is_pinned_parallelism {
            span.state.off title="Messages do not change the parallelism" { "parallelism pinned" } " "
        }
        @if !key.is_paused && key.wait_list_size > 0 { span.state.busy { "waiting" } }
        @if !key.is_paused && key.wait_list_size == 0 && key.parallelism_count == 0 { span.state.off { "idle" } }
    }
}

/// `3 of 5`; without a limit, the number alone.
fn of_max(count: u64, max: u64) -> String {
    match max {
        0 => view::number(count),
        max => format!("{} of {}", view::number(count), view::number(max)),
    }
}

/// `12 of 100 per minute`.
fn rate(key: &Key) -> String {
    match key.rate_max {
        0 => "no limit".to_owned(),
        max => {
            format!("{} of {} per {}", view::number(key.rate_count), view::number(max), view::period(key.rate_period))
        }
    }
}

fn quick_buttons(visitor: &Visitor, key: &Key) -> Markup {
    let act = |action: &str, name: &str, question: Option<&str>| {
        let fields = [("key", key.flow_control_key.as_str()), ("action", action)];
        view::button(visitor, &format!("{PAGE}/key"), name, question, &fields)
    };
    html! {
        @if key.is_paused { (act("resume", "Resume", None)) } @else { (act("pause", "Pause", None)) }
        (act("resetRate", "Reset rate", Some(&format!(
            "Reset the rate of {}? Its recent starts no longer count, so the full rate is available at once.",
            key.flow_control_key
        ))))
    }
}

fn nothing() -> Markup {
    view::empty(
        "No flow-control keys",
        &html! {
            p { "The first message with a key creates the key. An unused key is removed after one hour. Publish a message with a key:" }
            (view::command("curl -X POST \"$QSTASH_URL/v2/publish/https://example.com\" \
                -H \"Authorization: Bearer $QSTASH_TOKEN\" -H \"Upstash-Flow-Control-Key: mail-provider\" \
                -H \"Upstash-Flow-Control-Value: rate=10, period=1m\" -d hello"))
        },
    )
}

/// Pausing or pinning makes a key before its first message.
fn open_form() -> Markup {
    html! {
        section.card {
            h2 { "Pause or pin a key before its first message" }
            form.fields.row method="get" action={ (PAGE) "/key" } {
                label { "Key" input type="text" name="key" required maxlength="256"; }
                div { button type="submit" { "Open key" } }
            }
        }
    }
}

async fn show_key(visitor: Visitor, Query(Which { key }): Query<Which>) -> Result<Response, Problem> {
    render_key(&visitor, &key, None).await
}

/// Limits that are refused are shown again on the page of the key, with the reason.
async fn act(visitor: Visitor, Form(act): Form<Act>) -> Result<Response, Problem> {
    let next = if act.next.is_empty() { page_of(&act.key) } else { act.next.clone() };
    let path = match act.path() {
        Some(path) => path,
        None => return Ok(view::no_page().await),
    };
    match visitor.send(Method::POST, &path, &[], Vec::new()).await {
        Ok(_) => Ok(back_to(&next, &act.said())),
        Err(problem) if act.action == "pin" => render_key(&visitor, &act.key, Some((&act, problem))).await,
        Err(problem) => Err(problem),
    }
}

impl Act {
    /// What the API is asked for.
    fn path(&self) -> Option<String> {
        let parameters = match self.action.as_str() {
            "pause" | "resume" | "resetRate" | "reset" => String::new(),
            "pin" => {
                let period = if self.rate.trim().is_empty() { "" } else { self.period.trim() };
                query(&[("parallelism", self.parallelism.trim()), ("rate", self.rate.trim()), ("period", period)])
            }
            "unpin" => query(&[("parallelism", &self.parallelism), ("rate", &self.rate)]),
            _ => return None,
        };
        Some(format!("/v2/flowControl/{}/{}?{parameters}", segment(&self.key), self.action))
    }

    fn said(&self) -> String {
        let key = &self.key;
        match self.action.as_str() {
            "pause" => format!("Key {key} paused. Attempts in flight will finish; no others will start."),
            "resume" => format!("Key {key} resumed."),
            "pin" => format!("Limits of key {key} pinned. Messages no longer change them."),
            "unpin" => format!("Limits of key {key} unpinned. Messages can change them again."),
            "resetRate" => format!("Rate of key {key} reset. The full rate is available."),
            _ => format!("Key {key} reset. Earlier starts and attempts in flight no longer count."),
        }
    }
}

async fn render_key(visitor: &Visitor, key: &str, refused: Option<(&Act, Problem)>) -> Result<Response, Problem> {
    let found = match visitor.get::<Key>(&format!("/v2/flowControl/{}", segment(key))).await {
        Ok(found) => Some(found),
        Err(problem) if problem.status == StatusCode::NOT_FOUND => None,
        Err(problem) => return Err(problem),
    };
    let (entered, problem) = refused.unzip();
    let body = html! {
        p { a href=(PAGE) { "All keys" } }
        div.title {
            h1 { "Key " code { (key) } }
            span #flow-states { @if let Some(found) = &found { (states(found)) } }
            div.actions { (all_buttons(visitor, key, found.as_ref())) }
        }
        div.stack #flow-key data-refresh="2000" data-also="flow-states" {
            @if let Some(found) = &found { div.cards { (figures(found, visitor.now())) } }
            @else { p.note { "No message uses this key now. Pause or pin it to create it." } }
        }
        p { a href=(messages::listed_by("flowControlKey", key)) { "Messages with this key" } }
        (pin_form(visitor, key, found.as_ref(), entered, problem.as_ref()))
    };
    Ok(view::answer(visitor, &format!("Key {key}"), &body, problem.as_ref()))
}

fn figures(key: &Key, now: Timestamp) -> Markup {
    let limit = |max: u64| if max == 0 { "no limit".to_owned() } else { format!("of {} allowed", view::number(max)) };
    let pinned = |is: bool| if is { ", pinned" } else { "" };
    html! {
        div.card.figure {
            span.quiet { "Waiting" }
            strong { (view::number(key.wait_list_size)) }
            span.hint { "due but not in flight" }
        }
        div.card.figure {
            span.quiet { "In flight" }
            strong { (view::number(key.parallelism_count)) }
            span.hint { (limit(key.parallelism_max)) (pinned(key.is_pinned_parallelism)) }
        }
        div.card.figure {
            span.quiet { "Started in the last " (view::period(key.rate_period)) }
            strong { (view::number(key.rate_count)) }
            span.hint { (limit(key.rate_max)) (pinned(key.is_pinned_rate)) }
        }
        div.card.figure {
            span.quiet { "Counted since" }
            // Starts of a high rate are remembered in steps, by the end of each: that may be to come.
            strong { (view::time(Timestamp(key.rate_period_start.saturating_mul(1_000)).min(now), now)) }
            span.hint { "start of the current count" }
        }
    }
}

fn all_buttons(visitor: &Visitor, key: &str, found: Option<&Key>) -> Markup {
    let act = |action: &str, name: &str, question: Option<&str>, more: &[(&str, &str)]| {
        let fields = [&[("key", key), ("action", action)], more].concat();
        view::button(visitor, &format!("{PAGE}/key"), name, question, &fields)
    };
    html! {
        @if found.is_some_and(|key| key.is_paused) { (act("resume", "Resume", None, &[])) }
        @else { (act("pause", "Pause", None, &[])) }
        @if let Some(found) = found {
            (act("resetRate", "Reset rate", Some(
                "Reset the rate of this key? Its recent starts no longer count, so the full rate is available at once."
            ), &[]))
            (act("reset", "Reset all", Some(
                "Reset this key? Its recent starts and attempts in flight no longer count, so more attempts than its limits \
                 allow may run for a while."
            ), &[]))
            @if found.is_pinned_rate { (act("unpin", "Unpin rate", None, &[("rate", "true")])) }
            @if found.is_pinned_parallelism {
                (act("unpin", "Unpin parallelism", None, &[("parallelism", "true")]))
            }
        }
    }
}

/// Refusals of the other two fields name both.
const PIN_NAMES: &[Name] = &[("period", "period")];

fn pin_form(
    visitor: &Visitor,
    key: &str,
    found: Option<&Key>,
    entered: Option<&Act>,
    problem: Option<&Problem>,
) -> Markup {
    let limit = |max: u64| if max == 0 { String::new() } else { max.to_string() };
    let known = Act {
        parallelism: found.map_or(String::new(), |key| limit(key.parallelism_max)),
        rate: found.map_or(String::new(), |key| limit(key.rate_max)),
        period: found.map_or("1s".to_owned(), |key| format!("{}s", key.rate_period.max(1))),
        ..Act::default()
    };
    let shown = entered.unwrap_or(&known);
    let refusal = Refusal::new(problem, PIN_NAMES);
    let field = |name: &str, label: &str, kind: &str, value: &str| {
        let min = (kind == "number").then_some("1");
        let input = html! {
            label { (label)
                input type=(kind) name=(name) min=[min] value=(value) placeholder=[min.is_none().then_some("1m")]
                    aria-invalid=[refusal.invalid(name)] aria-describedby=[refusal.described_by(name)];
            }
        };
        refusal.around(name, &input)
    };
    html! {
        section.card {
            h2 { "Pin limits" }
            p.hint {
                "Messages cannot change pinned limits. An empty field is not pinned. "
                "Pinning a rate resets its count of recent starts."
            }
            (refusal.alert())
            form.fields.row method="post" action={ (PAGE) "/key" } {
                input type="hidden" name="key" value=(key);
                input type="hidden" name="action" value="pin";
                (field("parallelism", "Parallelism", "number", &shown.parallelism))
                (field("rate", "Rate", "number", &shown.rate))
                (field("period", "Rate period", "text", &shown.period))
                div { (view::submit(visitor, "Pin limits")) }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_that_counts_in_steps_counts_since_now_at_the_latest() {
        let key = serde_json::json!({
            "flowControlKey": "k", "waitListSize": 0, "parallelismMax": 0, "parallelismCount": 0, "rateMax": 1_000_000,
            "rateCount": 1, "ratePeriod": 604_800, "ratePeriodStart": 1_000, "isPaused": false,
            "isPinnedParallelism": false, "isPinnedRate": false,
        });
        let key: Key = serde_json::from_value(key).unwrap();
        let shown = |now: u64| figures(&key, Timestamp(now)).into_string();
        assert!(shown(910_000).contains(">just now<") && !shown(910_000).contains(">in "), "{}", shown(910_000));
        assert!(shown(1_012_000).contains(">12 s ago<"));
    }

    #[test]
    fn what_is_asked_of_the_api_names_the_key_whatever_it_holds() {
        let act = |action: &str, parallelism: &str, rate: &str, period: &str| Act {
            key: "a/b?c#d e".to_owned(),
            action: action.to_owned(),
            parallelism: parallelism.to_owned(),
            rate: rate.to_owned(),
            period: period.to_owned(),
            next: String::new(),
        };
        let key = "/v2/flowControl/a%2Fb%3Fc%23d%20e";
        for (act, expected) in [
            (act("pause", "", "", ""), Some(format!("{key}/pause?"))),
            (act("pin", "3", "", "1s"), Some(format!("{key}/pin?parallelism=3"))),
            (act("pin", "", " 5 ", "1m"), Some(format!("{key}/pin?rate=5&period=1m"))),
            (act("unpin", "", "true", ""), Some(format!("{key}/unpin?rate=true"))),
            (act("delete", "", "", ""), None),
            (act("../pause", "", "", ""), None),
        ] {
            assert_eq!(act.path(), expected);
        }
    }
}
