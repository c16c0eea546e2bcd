//! Send: a message with any option that the API has, when it would be tried again, and a receiver to try it on.

mod again;
mod form;
pub(super) mod fuzzing;
mod plan;
mod received;

use super::form::{borrowed, typed};
use super::visitor::{Problem, query, segment};
use super::{Desk, Visitor, back_to, view};
use axum::Router;
use axum::extract::{Form, Query};
use axum::http::Method;
use axum::response::{IntoResponse, Redirect, Response};
use axum::routing::{get, post};
use form::Fields;
use maud::{Markup, html};
use plan::Plan;
use received::TestReceiver;
use serde::Deserialize;
use serde_json::Value;
use std::sync::Arc;

/// The path of the page.
const HERE: &str = "/console/send";
/// Most messages of a URL group that are linked after a send; the rest is counted.
const LINKS_MAX: usize = 10;

pub(super) fn routes() -> Router<Arc<Desk>> {
    Router::new()
        .route("/send", get(show).post(act))
        .route("/send/plan", get(show_plan))
        .route("/send/received", get(show_received))
        .route("/send/forget", post(forget))
}

/// What was done just now.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Done {
    /// Ids, separated by commas.
    sent: String,
    /// The message that the form is filled in from.
    again: String,
    /// What happened, if no other page is led to.
    #[serde(skip)]
    said: Option<String>,
    /// Nothing of it is new.
    #[serde(skip)]
    is_known: bool,
    /// What the form does not say again.
    #[serde(skip)]
    left_out: Vec<String>,
}

async fn show(visitor: Visitor, Query(mut fields): Query<Fields>, Query(mut done): Query<Done>) -> Response {
    if !done.again.is_empty() {
        done.left_out = again::fill(&visitor, &mut fields, &done.again).await;
    }
    page(&visitor, fields, &done, None).await
}

async fn act(visitor: Visitor, Form(mut fields): Form<Fields>) -> Response {
    let done = match fields.action.clone().as_str() {
        "send" => return sent(visitor, fields).await,
        "use" => use_receiver(&visitor, &mut fields, None).await,
        action => match action.strip_prefix("use:") {
            Some(script) => use_receiver(&visitor, &mut fields, Some(script)).await,
            None => Ok(()),
        },
    };
    page(&visitor, fields, &Done::default(), done.err()).await
}

/// Publishes what the form says, and leads to a form that says it still.
async fn sent(visitor: Visitor, fields: Fields) -> Response {
    match send(&visitor, &fields).await {
        Err(problem) => page(&visitor, fields, &Done::default(), Some(problem)).await,
        // The message that is known is another one, and may say something else.
        Ok(done) if done.again.is_empty() => page(&visitor, fields, &done, None).await,
        Ok(done) => {
            let options = fields.open_options();
            let mut pairs = fields.pairs();
            pairs.extend([("options", &*options), ("again", &done.again), ("sent", &done.sent)]);
            let target = format!("{HERE}?{}", query(&pairs));
            (view::flash(done.said.as_deref().unwrap_or_default()), Redirect::to(&target)).into_response()
        }
    }
}

/// Publishes what the form says. What is new can fill in the form again.
async fn send(visitor: &Visitor, fields: &Fields) -> Result<Done, Problem> {
    let headers = fields.headers()?;
    let body = typed(&fields.body).into_bytes();
    let answer = visitor.send(Method::POST, &fields.path(), &borrowed(&headers), body).await?;
    let one = std::slice::from_ref(&answer);
    let messages = answer.as_array().map_or(one, Vec::as_slice);
    let ids: Vec<&str> = messages.iter().filter_map(|message| message["messageId"].as_str()).collect();
    let is_known = |message: &Value| message["deduplicated"] == true;
    let said = match (messages.len(), messages.iter().filter(|message| is_known(message)).count()) {
        (1, 1) => "Duplicate: the same message was published in the last 10 minutes. Nothing was sent.".to_owned(),
        (1, _) => "Message published.".to_owned(),
        (all, 0) => format!("{all} messages published, one for each endpoint of the group."),
        (all, known) => {
            format!("{} published; {known} of {all} were duplicates.", view::counted(all - known, "message"))
        }
    };
    let new = messages.iter().find(|message| !is_known(message));
    let again = new.and_then(|message| message["messageId"].as_str()).unwrap_or_default().to_owned();
    let mut sent = ids.iter().take(LINKS_MAX).copied().collect::<Vec<_>>().join(",");
    if ids.len() > LINKS_MAX {
        sent.push_str(&format!(",+{}", ids.len() - LINKS_MAX));
    }
    Ok(Done { sent, is_known: again.is_empty(), again, said: Some(said), left_out: Vec::new() })
}

/// Makes the test receiver the destination.
async fn use_receiver(visitor: &Visitor, fields: &mut Fields, script: Option<&str>) -> Result<(), Problem> {
    let script = script.map_or_else(|| fields.script(), str::to_owned);
    let invalid = |error: crate::receiver::InvalidScript| Problem::refused(error.to_string());
    script.parse::<crate::receiver::Script>().map_err(invalid)?;
    let receiver: TestReceiver = visitor.get("/v2/receiver").await?;
    fields.destination = format!("{}/{script}", receiver.url);
    fields.hurry(&script);
    Ok(())
}

async fn page(visitor: &Visitor, mut fields: Fields, done: &Done, problem: Option<Problem>) -> Response {
    let receiver = received::of(visitor).await;
    if let (Ok(Some(receiver)), true) = (&receiver, fields.destination.is_empty()) {
        fields.destination = format!("{}/200", receiver.url);
    }
    let plan = plan::of(visitor, &fields.retries, &fields.retry_delay).await;
    let refusal = form::refusal(problem.as_ref(), &fields);
    let body = html! {
        div.title { h1 { "Send" } span.quiet { "Publish a message and follow its delivery" } }
        (refusal.alert())
        @if let Some(said) = &done.said { p.flash role="status" { (said) } }
        @if !done.sent.is_empty() { (links(if done.is_known { "Existing message: " } else { "Published: " }, &done.sent)) }
        @if !done.left_out.is_empty() {
            p.hint #left-out { "The form is filled in as before, except for: " (done.left_out.join(", ")) "." }
        }
        div.columns.uneven {
            (form::markup(visitor, &fields, refusal, &plan::markup(&plan)))
            (received::card(visitor, &fields, &receiver))
        }
    };
    view::answer(visitor, "Send", &body, problem.as_ref())
}

/// Where the messages are that were sent just now.
fn links(what: &str, sent: &str) -> Markup {
    html! {
        p.note #sent role="status" {
            (what)
            @for (index, id) in sent.split(',').filter(|id| !id.is_empty()).take(LINKS_MAX + 1).enumerate() {
                @if index > 0 { ", " }
                @match id.strip_prefix('+') {
                    Some(more) => { "and " (more) " more" },
                    None => a href={ "/console/messages/" (segment(id)) } { (id) },
                }
            }
        }
    }
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Retries {
    retries: String,
    retry_delay: String,
}

/// The schedule of retries alone, for the script.
async fn show_plan(visitor: Visitor, Query(Retries { retries, retry_delay }): Query<Retries>) -> Markup {
    let plan: Result<Plan, Problem> = plan::of(&visitor, &retries, &retry_delay).await;
    plan::markup(&plan)
}

/// What was received alone, for the script.
async fn show_received(visitor: Visitor) -> Result<Markup, Problem> {
    Ok(received::list(&visitor, &visitor.get("/v2/receiver").await?))
}

async fn forget(visitor: Visitor) -> Result<Response, Problem> {
    visitor.send(Method::DELETE, "/v2/receiver", &[], Vec::new()).await?;
    Ok(back_to(HERE, "Cleared the list of deliveries."))
}
