//! The test receiver: its responses, and the deliveries that it received.

use super::super::Visitor;
use super::super::view;
use super::super::visitor::{Problem, segment};
use super::form::Fields;
use axum::http::StatusCode;
use maud::{Markup, html};
use posthaste_wire::time::Timestamp;
use serde::Deserialize;
use std::collections::BTreeMap;

/// The API's answer.
#[derive(Deserialize)]
pub(super) struct TestReceiver {
    pub(super) url: String,
    deliveries: Vec<Delivery>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Delivery {
    time: u64,
    message_id: Option<String>,
    attempt: u32,
    method: String,
    script: String,
    answer: String,
    #[serde(default)]
    header: BTreeMap<String, Vec<String>>,
    body: Option<String>,
    body_base64: Option<String>,
    body_bytes: u64,
    is_cut: bool,
    signature: Signature,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Signature {
    is_valid: bool,
    key: Option<String>,
    problem: Option<String>,
}

/// What it can be told to do by a press of a button: script, name.
const SCRIPTS: [(&str, &str); 4] =
    [("200", "Return 200"), ("500,500,200", "500 twice, then 200"), ("hang", "Hang"), ("489", "489: no retries")];

/// What the receiver has for this visitor; nothing, if it is off.
pub(super) async fn of(visitor: &Visitor) -> Result<Option<TestReceiver>, Problem> {
    match visitor.get("/v2/receiver").await {
        Ok(receiver) => Ok(Some(receiver)),
        Err(problem) if problem.status == StatusCode::NOT_FOUND => Ok(None),
        Err(problem) => Err(problem),
    }
}

pub(super) fn card(visitor: &Visitor, fields: &Fields, receiver: &Result<Option<TestReceiver>, Problem>) -> Markup {
    html! {
        section.card #receiver aria-labelledby="receiver-title" {
            h2 #receiver-title { "Test receiver" }
            @match receiver {
                Ok(Some(receiver)) => {
                    (scripts(fields, receiver))
                    (list(visitor, receiver))
                },
                Ok(None) => {
                    p { "The test receiver is off. With it, you can try deliveries without an endpoint of your own. To turn it on, add this setting:" }
                    pre { "console_receiver = true" }
                },
                Err(problem) => p.problem { (problem.text) },
            }
        }
    }
}

fn scripts(fields: &Fields, receiver: &TestReceiver) -> Markup {
    html! {
        p {
            "A receiver on this machine. The end of its URL sets its responses, and each delivery appears below. Choose a response, then send a message:"
        }
        div.actions {
            @for (script, name) in SCRIPTS {
                button type="submit" form="send-form" name="do" value={ "use:" (script) } formnovalidate { (name) }
            }
        }
        div.pairs.choice {
            label { "Status" input form="send-form" name="script_status" value=(fields.script_status) inputmode="numeric" autocomplete="off"; }
            label { "Delay" input form="send-form" name="script_delay" value=(fields.script_delay) autocomplete="off"; }
            button type="submit" form="send-form" name="do" value="use" formnovalidate { "Use this response" }
        }
        p.hint { "A response that fails also sets a short retry delay, unless you have entered one. Hang also sets a short timeout." }
        p.hint {
            "The URL is private to this tenant and changes when the server restarts: " code { (receiver.url) } " "
            button type="button" data-copy=(receiver.url) { "Copy" }
        }
    }
}

/// What it got.
pub(super) fn list(visitor: &Visitor, receiver: &TestReceiver) -> Markup {
    let now = visitor.now();
    html! {
        div #received data-refresh="2000" data-from="/console/send/received" aria-live="polite" {
            @if receiver.deliveries.is_empty() {
                (view::empty("No deliveries yet", &html! { p { "Send a message. Its delivery appears here a moment later." } }))
            } @else {
                div.title {
                    h3 { "Received" }
                    div.actions {
                        (view::button(visitor, "/console/send/forget", "Clear list",
                            Some(&format!("Clear the list of deliveries ({})? Messages are not affected.", receiver.deliveries.len())), &[]))
                    }
                }
                ul.deliveries {
                    @for delivery in &receiver.deliveries { li data-key=(key(delivery)) { (one(delivery, now)) } }
                }
            }
        }
    }
}

/// What tells a delivery from the others, which come in above it.
fn key(delivery: &Delivery) -> String {
    format!("{} {} {}", delivery.message_id.as_deref().unwrap_or_default(), delivery.attempt, delivery.time)
}

fn one(delivery: &Delivery, now: Timestamp) -> Markup {
    let headers: Vec<String> = delivery
        .header
        .iter()
        .flat_map(|(name, values)| values.iter().map(move |value| format!("{name}: {value}")))
        .collect();
    html! {
        div.title {
            strong { (delivery.method) " · attempt " (delivery.attempt) }
            span.quiet { (view::time(Timestamp(delivery.time), now)) }
            (answered(delivery))
            (signature(&delivery.signature))
        }
        @if let Some(id) = &delivery.message_id {
            a.mono href={ "/console/messages/" (segment(id)) } { (id) }
        }
        details.text {
            summary { "Headers" span.quiet { " · " (headers.len()) } }
            pre tabindex="0" { (headers.join("\n")) }
        }
        @match (&delivery.body, &delivery.body_base64) {
            (Some(body), _) => (view::text("Body", body)),
            (None, Some(bytes)) => (view::text("Body (in base64)", bytes)),
            (None, None) => p.quiet { "No body" },
        }
        @if delivery.is_cut { p.hint { "Only the start of the body is shown. It has " (view::number(delivery.body_bytes)) " bytes." } }
    }
}

fn answered(delivery: &Delivery) -> Markup {
    let kind = match delivery.answer.starts_with('2') {
        true => "good",
        false => "bad",
    };
    let asked = format!("responses in the URL: {}", delivery.script);
    html! { span.state.(kind) title=(asked) { (delivery.answer) } }
}

fn signature(signature: &Signature) -> Markup {
    let key = signature.key.as_deref().unwrap_or("unknown");
    html! {
        @if signature.is_valid {
            span.state.good { "valid signature, " (key) " key" }
        } @else {
            span.state.bad { "invalid signature" }
            span.quiet { (signature.problem.as_deref().unwrap_or_default()) }
        }
    }
}
