//! Makes a schedule, or replaces one.

use super::super::form::{METHODS, borrowed, header_lines, is_hidden, typed};
use super::super::refusal::{Name, Refusal};
use super::super::visitor::{Problem, Visitor};
use super::super::{back_to, view};
use super::{PAGE, Schedule, api_of, page_of, preview};
use axum::extract::{Form, Query};
use axum::http::{Method, StatusCode};
use axum::response::Response;
use maud::{Markup, html};
use posthaste_wire::destination::is_name;
use serde::Deserialize;

/// The page of the form.
const NEW: &str = "/console/schedules/make/new";

/// The label of the headers.
const HEADERS: &str = "More headers";
/// The fields, as refusals call them.
pub(super) const NAMES: &[Name] = &[
    ("Upstash-Cron", "expression"),
    ("Upstash-Schedule-Id", "id"),
    ("Upstash-Queue-Name", "queue"),
    ("Upstash-Delay", "delay"),
    ("maxDelay", "delay"),
    ("Upstash-Retries", "retries"),
    ("maxRetries", "retries"),
    ("Upstash-Retry-Delay", "retry_delay"),
    ("Upstash-Timeout", "timeout"),
    ("quota timeout", "timeout"),
    ("Upstash-Label", "label"),
    ("Upstash-Redact-Fields", "redact"),
    ("Upstash-Flow-Control-Key", "flow_key"),
    ("Upstash-Flow-Control-Value", "flow_value"),
    ("Upstash-Callback", "callback"),
    ("Upstash-Failure-Callback", "failure_callback"),
    ("maxMessageSize", "body"),
    ("Upstash-*", "headers"),
    (HEADERS, "headers"),
    ("destination", "destination"),
    ("topic", "destination"),
    // Of a URL that the router does not take.
    ("invalid uri", "destination"),
];

/// What the form says. All of it is text: the API reads it.
#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct Entered {
    /// The schedule that the form begins with.
    from: String,
    id: String,
    expression: String,
    destination: String,
    method: String,
    body: String,
    queue: String,
    delay: String,
    retries: String,
    retry_delay: String,
    timeout: String,
    label: String,
    redact: String,
    flow_key: String,
    flow_value: String,
    callback: String,
    failure_callback: String,
    headers: String,
}

impl Entered {
    /// As a schedule has it, and the parts of it that cannot be copied.
    fn of(schedule: &Schedule) -> (Entered, Vec<&'static str>) {
        let mut not_copied = Vec::new();
        let seconds = |seconds: Option<u64>| seconds.map_or(String::new(), |seconds| format!("{seconds}s"));
        let text = |text: &Option<String>| text.clone().unwrap_or_default();
        let body = match (&schedule.body, &schedule.body_base64) {
            (Some(body), _) if is_hidden(body) => {
                not_copied.push("the body, which is hidden");
                String::new()
            }
            (_, Some(_)) => {
                not_copied.push("the body, which is binary");
                String::new()
            }
            (body, None) => text(body),
        };
        let all = [
            ("Upstash-Forward-", &schedule.header),
            ("Upstash-Callback-Forward-", &schedule.callback_header),
            ("Upstash-Failure-Callback-Forward-", &schedule.failure_callback_header),
        ];
        let mut headers = String::new();
        for (prefix, map) in all {
            for (name, value) in map.iter().flat_map(|(name, values)| values.iter().map(move |value| (name, value))) {
                match is_hidden(value) {
                    true => not_copied.push("header values, which are hidden"),
                    false if name == "Content-Type" => headers += &format!("{name}: {value}\n"),
                    false => headers += &format!("{prefix}{name}: {value}\n"),
                }
            }
        }
        let hidden_of_callbacks = [
            ("Upstash-Callback-Redact-Fields", &schedule.callback_redact_fields),
            ("Upstash-Failure-Callback-Redact-Fields", &schedule.failure_callback_redact_fields),
        ];
        for (name, fields) in hidden_of_callbacks {
            headers.extend(fields.iter().map(|fields| format!("{name}: {fields}\n")));
        }
        if schedule.callback.is_some() || schedule.failure_callback.is_some() {
            not_copied.push("settings of the callbacks, such as their retries");
        }
        not_copied.dedup();
        let (flow_key, flow_value) = flow(schedule).unwrap_or_default();
        let entered = Entered {
            from: schedule.schedule_id.clone(),
            id: schedule.schedule_id.clone(),
            expression: schedule.cron.clone(),
            destination: schedule.destination.clone(),
            method: schedule.method.clone(),
            body,
            queue: text(&schedule.queue_name),
            delay: seconds(schedule.delay),
            retries: schedule.retries.to_string(),
            retry_delay: text(&schedule.retry_delay_expression),
            timeout: seconds(schedule.timeout),
            label: schedule.labels.join(", "),
            redact: text(&schedule.redact_fields),
            flow_key,
            flow_value,
            callback: text(&schedule.callback),
            failure_callback: text(&schedule.failure_callback),
            headers,
        };
        (entered, not_copied)
    }

    /// The headers of the request that makes it; what is empty is not said.
    fn lines(&self) -> Result<Vec<(String, String)>, Problem> {
        let settings = [
            ("Upstash-Schedule-Id", &self.id),
            ("Upstash-Cron", &self.expression),
            ("Upstash-Method", &self.method),
            ("Upstash-Queue-Name", &self.queue),
            ("Upstash-Delay", &self.delay),
            ("Upstash-Retries", &self.retries),
            ("Upstash-Retry-Delay", &self.retry_delay),
            ("Upstash-Timeout", &self.timeout),
            ("Upstash-Label", &self.label),
            ("Upstash-Redact-Fields", &self.redact),
            ("Upstash-Flow-Control-Key", &self.flow_key),
            ("Upstash-Flow-Control-Value", &self.flow_value),
            ("Upstash-Callback", &self.callback),
            ("Upstash-Failure-Callback", &self.failure_callback),
        ];
        let said = settings.into_iter().map(|(name, value)| (name.to_owned(), value.trim().to_owned()));
        let mut lines: Vec<_> = said.filter(|(_, value)| !value.is_empty()).collect();
        lines.extend(header_lines(HEADERS, &self.headers)?);
        Ok(lines)
    }
}

/// The flow-control key of a schedule and its limits, as its headers say them.
pub(super) fn flow(schedule: &Schedule) -> Option<(String, String)> {
    let key = schedule.flow_control_key.clone()?;
    let mut limits: Vec<String> = Vec::new();
    limits.extend(schedule.parallelism.map(|parallelism| format!("parallelism={parallelism}")));
    limits.extend(schedule.rate.map(|rate| format!("rate={rate}, period={}s", schedule.period.unwrap_or(1))));
    Some((key, limits.join(", ")))
}

/// An empty form, one that begins as a schedule is, or the one that was sent by the button of those without script.
pub(super) async fn show(visitor: Visitor, Query(entered): Query<Entered>) -> Result<Response, Problem> {
    if entered.from.is_empty() || !entered.expression.is_empty() {
        return render(&visitor, &entered, &[], None).await;
    }
    let schedule: Schedule = visitor.get(&api_of(&entered.from)).await?;
    let (entered, not_copied) = Entered::of(&schedule);
    render(&visitor, &entered, &not_copied, None).await
}

pub(super) async fn make(visitor: Visitor, Form(entered): Form<Entered>) -> Result<Response, Problem> {
    match send(&visitor, &entered).await {
        Ok(id) => Ok(back_to(&page_of(&id), &format!("Schedule {id} saved."))),
        Err(problem) => render(&visitor, &entered, &[], Some(problem)).await,
    }
}

async fn send(visitor: &Visitor, entered: &Entered) -> Result<String, Problem> {
    let lines = entered.lines()?;
    let path = format!("/v2/schedules/{}", checked_destination(&entered.destination)?);
    let body = typed(&entered.body).into_bytes();
    let answer = visitor.send(Method::POST, &path, &borrowed(&lines), body).await?;
    let id = answer["scheduleId"].as_str().map(str::to_owned);
    id.ok_or_else(|| Problem {
        status: StatusCode::BAD_GATEWAY,
        text: format!("the API returned no schedule: {answer}"),
    })
}

/// What can be nothing but a destination: behind the path of schedules, `name/pause` would pause one.
fn checked_destination(text: &str) -> Result<&str, Problem> {
    let text = text.trim();
    if text.contains("://") || is_name(text) || text == "api/llm" {
        return Ok(text);
    }
    Err(Problem::refused(format!("Destination: {text:?} is neither a URL nor the name of a URL group")))
}

async fn render(
    visitor: &Visitor,
    entered: &Entered,
    not_copied: &[&str],
    problem: Option<Problem>,
) -> Result<Response, Problem> {
    let foreseen = match entered.expression.trim() {
        "" => None,
        expression => Some(preview::foresee(visitor, expression, None).await?),
    };
    let refusal = Refusal::new(problem.as_ref(), NAMES);
    let body = html! {
        p { a href=(PAGE) { "All schedules" } }
        div.title { h1 { @if entered.from.is_empty() { "New schedule" } @else { "Copy or replace schedule" } } }
        @if !entered.from.is_empty() {
            p.note {
                "With the ID " code { (entered.from) } " this replaces the whole schedule, and resumes it if it is paused. "
                "With another ID it creates a second schedule. To change only the times, use the page of the schedule."
                @if !not_copied.is_empty() { " Not copied: " (not_copied.join("; ")) "." }
            }
        }
        (refusal.alert())
        form #schedule-form method="post" action=(PAGE) data-preview="preview" data-from=(NEW) {
            input type="hidden" name="from" value=(entered.from);
            div.columns {
                section.card.fields { h2 { "Times" } (when(entered, refusal)) (preview::fragment(foreseen.as_ref(), visitor.now())) }
                section.card.fields { h2 { "Message" } (what(entered, refusal)) }
            }
            section.card.fields { h2 { "Delivery options" } (how(entered, refusal)) }
            div.actions {
                (view::submit(visitor, "Save schedule"))
                noscript { button type="submit" formmethod="get" formaction=(NEW) formnovalidate { "Preview" } }
            }
        }
    };
    Ok(view::answer(visitor, "New schedule", &body, problem.as_ref()))
}

/// The field whose value is previewed.
pub(super) fn expression_field(value: &str, refusal: Refusal<'_>) -> Markup {
    let reason = refusal.described_by("expression").map_or_else(String::new, |reason| format!(" {reason}"));
    let field = html! {
        label {
            "Cron expression"
            input.mono #expression type="text" name="expression" value=(value) required maxlength="512" spellcheck="false"
                autocomplete="off" data-in-preview aria-invalid=[refusal.invalid("expression")]
                aria-describedby={ "expression-hint" (reason) } placeholder="CRON_TZ=Europe/Berlin 0 8 * * MON-FRI";
        }
    };
    html! {
        (refusal.around("expression", &field))
        p.hint #expression-hint {
            "Minute, hour, day of month, month, day of week; or a shortcut such as " code { "@daily" } " or " code { "@every 90m" }
            ". Times are UTC unless the expression starts with " code { "CRON_TZ=Europe/Berlin" } "."
        }
    }
}

fn when(entered: &Entered, refusal: Refusal<'_>) -> Markup {
    html! {
        (expression_field(&entered.expression, refusal))
        (field(refusal, "Delay of each message", "delay", &entered.delay, "30s"))
    }
}

fn what(entered: &Entered, refusal: Refusal<'_>) -> Markup {
    let destination = html! {
        label {
            "Destination (URL or URL group)"
            input.mono type="text" name="destination" value=(entered.destination) required spellcheck="false" placeholder="https://"
                aria-invalid=[refusal.invalid("destination")] aria-describedby=[refusal.described_by("destination")];
        }
    };
    let id = html! {
        label { "ID (optional)"
            input type="text" name="id" value=(entered.id) maxlength="256"
                aria-invalid=[refusal.invalid("id")] aria-describedby=[refusal.described_by("id")];
        }
    };
    let body = html! {
        label { "Body"
            textarea name="body" spellcheck="false"
                aria-invalid=[refusal.invalid("body")] aria-describedby=[refusal.described_by("body")] { (entered.body) }
        }
    };
    html! {
        (refusal.around("destination", &destination))
        (refusal.around("id", &id))
        label {
            "Method"
            select name="method" {
                @for method in METHODS { option value=(method) selected[entered.method == method] { (method) } }
                @if !entered.method.is_empty() && !METHODS.contains(&entered.method.as_str()) {
                    option value=(entered.method) selected { (entered.method) }
                }
            }
        }
        (refusal.around("body", &body))
    }
}

fn how(entered: &Entered, refusal: Refusal<'_>) -> Markup {
    let field = |label: &str, name: &str, value: &str, example: &str| field(refusal, label, name, value, example);
    let headers = html! {
        label { (HEADERS) ", one per line"
            textarea name="headers" spellcheck="false" placeholder="Content-Type: application/json"
                aria-invalid=[refusal.invalid("headers")] aria-describedby=[refusal.described_by("headers")] { (entered.headers) }
        }
    };
    html! {
        div.grid {
            (field("Queue", "queue", &entered.queue, ""))
            (field("Retries", "retries", &entered.retries, "3"))
            (field("Retry delay (ms)", "retry_delay", &entered.retry_delay, "1000 * pow(2, retried)"))
            (field("Timeout per attempt", "timeout", &entered.timeout, "30s"))
            (field("Labels, separated by commas", "label", &entered.label, ""))
            (field("Redact", "redact", &entered.redact, "body, header[Authorization]"))
            (field("Flow-control key", "flow_key", &entered.flow_key, ""))
            (field("Flow-control limits", "flow_value", &entered.flow_value, "rate=10, period=1m"))
            (field("Callback", "callback", &entered.callback, "https://"))
            (field("Failure callback", "failure_callback", &entered.failure_callback, "https://"))
        }
        (refusal.around("headers", &headers))
        p.hint { "Headers for the receiver start with " code { "Upstash-Forward-" } "." }
    }
}

fn field(refusal: Refusal<'_>, label: &str, name: &str, value: &str, example: &str) -> Markup {
    let field = html! {
        label { (label)
            input type="text" name=(name) value=(value) placeholder=(example)
                aria-invalid=[refusal.invalid(name)] aria-describedby=[refusal.described_by(name)];
        }
    };
    refusal.around(name, &field)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_copied_form_has_the_settings_of_its_schedule() {
        let schedule: Schedule = serde_json::from_value(json!({
            "scheduleId": "my-schedule", "cron": "CRON_TZ=UTC 0 0 * * *", "destination": "https://example.com/a?b=c",
            "method": "PUT", "createdAt": 0, "retries": 7, "isPaused": true,
            "header": { "Content-Type": ["text/plain"], "X": ["a", "b: c"], "Secret": ["REDACTED:00ff"] },
            "body": "{}", "delay": 90, "timeout": 30, "retryDelayExpression": "1000 * retried", "queueName": "jobs",
            "label": "red", "labels": ["red", "blue"], "flowControlKey": "key", "parallelism": 2, "rate": 3, "period": 4,
            "callback": "https://example.com/callback", "callbackHeader": { "Kind": ["done"] },
            "redactFields": "header[Secret]", "callbackRedactFields": "body",
        }))
        .unwrap();
        let (entered, not_copied) = Entered::of(&schedule);
        assert_eq!((entered.destination.as_str(), entered.body.as_str()), ("https://example.com/a?b=c", "{}"));
        let expected = [
            ("Upstash-Schedule-Id", "my-schedule"),
            ("Upstash-Cron", "CRON_TZ=UTC 0 0 * * *"),
            ("Upstash-Method", "PUT"),
            ("Upstash-Queue-Name", "jobs"),
            ("Upstash-Delay", "90s"),
            ("Upstash-Retries", "7"),
            ("Upstash-Retry-Delay", "1000 * retried"),
            ("Upstash-Timeout", "30s"),
            ("Upstash-Label", "red, blue"),
            ("Upstash-Redact-Fields", "header[Secret]"),
            ("Upstash-Flow-Control-Key", "key"),
            ("Upstash-Flow-Control-Value", "parallelism=2, rate=3, period=4s"),
            ("Upstash-Callback", "https://example.com/callback"),
            ("Content-Type", "text/plain"),
            ("Upstash-Forward-X", "a"),
            ("Upstash-Forward-X", "b: c"),
            ("Upstash-Callback-Forward-Kind", "done"),
            ("Upstash-Callback-Redact-Fields", "body"),
        ];
        assert_eq!(entered.lines().unwrap(), expected.map(|(name, value)| (name.to_owned(), value.to_owned())));
        assert_eq!(not_copied.len(), 2, "{not_copied:?}");
    }

    #[test]
    fn hidden_values_are_not_copied() {
        let mut schedule = json!({
            "scheduleId": "a", "cron": "@daily", "destination": "group", "method": "POST", "createdAt": 0, "retries": 3,
            "isPaused": false, "body": "REDACTED:00ff",
        });
        let (entered, not_copied) = Entered::of(&serde_json::from_value(schedule.clone()).unwrap());
        assert_eq!((entered.body.as_str(), not_copied.len()), ("", 1));
        schedule["bodyBase64"] = schedule.as_object_mut().unwrap().remove("body").unwrap();
        let (entered, not_copied) = Entered::of(&serde_json::from_value(schedule).unwrap());
        assert_eq!((entered.body.as_str(), not_copied.len()), ("", 1));
    }
}
