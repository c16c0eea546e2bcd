//! The list: what was published, newest happening first.

use super::data::{Group, Grouped, Line};
use super::filters::{MESSAGES, for_cancel};
use super::{PATH, path_of};
use crate::console::background::{self, Of};
use crate::console::filters::Filters;
use crate::console::visitor::Problem;
use crate::console::{ROOT, Visitor, view};
use axum::extract::RawQuery;
use maud::{Markup, html};
use posthaste_api_types::log::LogState;
use posthaste_wire::time::Timestamp;

/// Messages on a page.
const COUNT: usize = 50;
/// Log lines that do not match which a page passes over before it says how to go on. Keeps the page quick, whatever is
/// looked for.
const SCAN_LIMIT: &str = "5000";

pub(super) async fn show(visitor: Visitor, RawQuery(query): RawQuery) -> Result<Markup, Problem> {
    let filters = Filters::read(&MESSAGES, &query.unwrap_or_default());
    let more = [("groupBy", "messageId"), ("count", &*COUNT.to_string()), ("trimBody", "0"), ("scanLimit", SCAN_LIMIT)];
    let found = match filters.for_api(&more) {
        Ok(wanted) => visitor.get::<Grouped>(&format!("/v2/logs?{wanted}")).await,
        Err(problem) => Err(problem),
    };
    let body = html! {
        div.title {
            h1 { "Messages" }
            div.actions { (cancel_matching(&visitor, &filters)) a.button href={ (ROOT) "/send" } { "Send a message" } }
        }
        (background::panel(&visitor, Of::Messages, &visitor.here).await?)
        section.card aria-label="Filters" { (filters.form()) }
        @match &found {
            Ok(found) => (listed(&visitor, &filters, found)),
            // What was asked for makes no sense: the form stays, so that it can be mended.
            Err(problem) => p.problem role="alert" { (problem.text) },
        }
    };
    Ok(view::page(&visitor.frame("Messages"), &body))
}

fn listed(visitor: &Visitor, filters: &Filters, found: &Grouped) -> Markup {
    let is_cut = found.cursor.is_some() && found.messages.len() < COUNT;
    html! {
        @if found.messages.is_empty() { (nothing(filters, is_cut)) } @else {
            div #messages.scroll { (table(visitor, &found.messages)) }
            div.title {
                form #selection method="post" action={ (PATH) "/cancel" } data-ask={ (PATH) "/question/ticked" } {
                    input type="hidden" name="next" value=(visitor.here);
                    button.danger type="submit" disabled[!visitor.may_act()]
                        title=[view::refusal(visitor)] { "Cancel selected messages" }
                }
            }
        }
        @if is_cut {
            p.note { "The search stopped after " (view::number(SCAN_LIMIT.parse().unwrap_or_default()))
                " log lines without a match. The next page searches older lines." }
        }
        (view::pager(PATH, &filters.pairs(), found.cursor.as_deref()))
    }
}

fn nothing(filters: &Filters, is_cut: bool) -> Markup {
    if is_cut {
        return view::empty("No matches yet", &html! { p { "Go to the next page to search older log lines." } });
    }
    if !filters.is_empty() {
        return view::empty(
            "No messages match",
            &html! {
                p { "Messages are listed until their log expires. " a href=(PATH) { "Show all messages" } }
            },
        );
    }
    let command = "curl -X POST \"$QSTASH_URL/v2/publish/https://example.com/hook\" -H \"Authorization: Bearer $QSTASH_TOKEN\" -d 'hello'";
    view::empty(
        "No messages yet",
        &html! {
            p { a href={ (ROOT) "/send" } { "Send one with the form" } ", or with a command:" }
            (view::command(command))
        },
    )
}

fn table(visitor: &Visitor, messages: &[Group]) -> Markup {
    let now = visitor.now();
    html! {
        table {
            caption.skip { "Messages, latest event first" }
            thead { tr {
                th.tight scope="col" { input type="checkbox" aria-label="Select all" data-select-all="id"; }
                th scope="col" { "State" } th scope="col" { "Message" } th scope="col" { "Destination · labels" }
                th scope="col" { "Queue · key" } th.number scope="col" { "Attempts" } th scope="col" { "Last error" }
                th.number scope="col" { "Age" } th scope="col" { "Actions" }
            } }
            tbody { @for message in messages { (row(visitor, message, now)) } }
        }
    }
}

fn row(visitor: &Visitor, message: &Group, now: Timestamp) -> Markup {
    let (Some(last), Some(first)) = (message.events.first(), message.events.last()) else { return html! {} };
    let (about, has_ended) = (&last.about, message.events.iter().any(Line::is_final));
    // Lines of one moment: the final one is what counts.
    let state = message.events.iter().find(|line| line.is_final()).unwrap_or(last);
    let attempts = message.events.iter().filter(|line| line.state == LogState::Active).count();
    let cause = message.events.iter().find(|line| line.state == LogState::Error).and_then(Line::outcome);
    let queue_and_key = [&about.queue_name, &about.flow_control_key].into_iter().flatten();
    html! {
        tr {
            td.tight {
                @if !has_ended {
                    input type="checkbox" name="id" value=(message.id) form="selection" aria-label={ "Select " (message.id) };
                }
            }
            td.tight { (view::message_state(Some(state.state), is_scheduled(&message.events, now))) }
            td { a.mono.cut.id href=(path_of(&message.id)) title=(message.id) { (message.id) } }
            td {
                span.cut title=(about.url) { @if about.method != "POST" { (about.method) " " } (about.url) }
                @if !about.labels.is_empty() {
                    @let labels = about.labels.join(", ");
                    span.cut.hint title=(labels) { (labels) }
                }
            }
            td { @for name in queue_and_key { span.cut.short title=(name) { (name) } } }
            td.number { (attempts) span.quiet { " / " (u64::from(about.max_retries) + 1) } }
            td { @if let Some(cause) = &cause { span.cut.short title=(cause) { (cause) } } }
            td.number.tight { (view::time(Timestamp(first.time), now)) }
            td.tight { @if !has_ended { div.actions { (row_actions(visitor, message, now)) } } }
        }
    }
}

fn row_actions(visitor: &Visitor, message: &Group, now: Timestamp) -> Markup {
    let path = path_of(&message.id);
    html! {
        @if waits_for_time(&message.events, now) {
            (view::button(visitor, &format!("{path}/retry"), "Send now", None, &[]))
        }
        (view::button(visitor, &format!("{path}/cancel"), "Cancel", Some(&format!("Cancel {}? A running attempt will finish; there will be no retries.", message.id)), &[]))
    }
}

/// Whether a message, outside of queues, only waits for its time: then it can be sent now. Lines are newest first.
fn waits_for_time(lines: &[Line], now: Timestamp) -> bool {
    let Some(last) = lines.first() else { return false };
    let is_waiting = matches!(last.state, LogState::Created | LogState::Retry | LogState::Error);
    is_waiting && last.about.queue_name.is_none() && is_scheduled(lines, now)
}

/// Whether the next attempt of a message is still to come. Lines are newest first.
fn is_scheduled(lines: &[Line], now: Timestamp) -> bool {
    let due = lines.iter().find_map(|line| line.next_delivery_time).map(Timestamp);
    due.is_some_and(|due| due > now)
}

/// Cancels everything that the filters mean, after a question that counts them.
fn cancel_matching(visitor: &Visitor, filters: &Filters) -> Markup {
    let wanted = for_cancel(filters);
    let reason = view::refusal(visitor).or(wanted.as_ref().err().map(|problem| problem.text.as_str()));
    html! {
        form.inline method="post" action={ (PATH) "/cancel-matching" } data-ask={ (PATH) "/question/matching" } {
            (filters.hidden())
            input type="hidden" name="next" value=(visitor.here);
            button.danger type="submit" disabled[reason.is_some()] title=[reason] {
                @if filters.is_empty() { "Cancel all…" } @else { "Cancel all matching…" }
            }
        }
    }
}
