//! What can be done to messages: each is one request to the API.

use super::filters::{MESSAGES, for_cancel};
use super::{PATH, path_of};
use crate::api::Countable;
use crate::console::filters::Filters;
use crate::console::form::Fields;
use crate::console::question::{self, Question};
use crate::console::visitor::{Problem, query, segment};
use crate::console::{Visitor, back_to, view};
use axum::extract::{Path, RawForm, RawQuery};
use axum::http::Method;
use axum::response::Response;

/// The effect of cancelling several messages.
const EFFECT: &str = "Running attempts will finish; there will be no retries.";

/// The page that a form was on.
fn next(fields: &Fields) -> &str {
    fields.all("next").next().unwrap_or(PATH)
}

pub(super) async fn cancel(visitor: Visitor, Path(id): Path<String>, form: RawForm) -> Result<Response, Problem> {
    visitor.send(Method::DELETE, &format!("/v2/messages/{}", segment(&id)), &[], Vec::new()).await?;
    let fields = Fields::read(&form);
    let next = fields.all("next").next().map_or_else(|| path_of(&id), str::to_owned);
    Ok(back_to(&next, &format!("Cancelled {id}.")))
}

pub(super) async fn retry(visitor: Visitor, Path(id): Path<String>, form: RawForm) -> Result<Response, Problem> {
    visitor.send(Method::POST, &format!("/v2/messages/{}/retry", segment(&id)), &[], Vec::new()).await?;
    let fields = Fields::read(&form);
    let next = fields.all("next").next().map_or_else(|| path_of(&id), str::to_owned);
    Ok(back_to(&next, &format!("Sending {id} now.")))
}

pub(super) async fn cancel_selected(visitor: Visitor, form: RawForm) -> Result<Response, Problem> {
    let fields = Fields::read(&form);
    // Without an id the API would be asked to cancel everything.
    let ids = fields.ticked("id");
    if ids.is_empty() {
        return Ok(back_to(next(&fields), &question::none_ticked("message")));
    }
    let path = format!("/v2/messages?{}", query(&[("messageIds", &ids.join(","))]));
    let answer = visitor.send(Method::DELETE, &path, &[], Vec::new()).await?;
    let cancelled = answer["cancelled"].as_u64().unwrap_or(0);
    let said =
        format!("Cancelled {cancelled} of {}. The others had already ended.", view::counted(ids.len(), "message"));
    let all = || format!("Cancelled {}.", view::counted(ids.len(), "message"));
    let said = if cancelled as usize == ids.len() { all() } else { said };
    Ok(back_to(next(&fields), &said))
}

/// The question before the selected messages are cancelled.
pub(super) async fn ask_ticked(_visitor: Visitor, RawQuery(query): RawQuery) -> Question {
    let count = Fields::parse(query.unwrap_or_default().as_bytes()).ticked("id").len();
    let ask = |ticked| format!("Cancel {ticked}? {EFFECT}");
    Question::of(question::ticked(count, "message").map(ask))
}

/// The question before everything that matches is cancelled.
pub(super) async fn ask_matching(visitor: Visitor, RawQuery(query): RawQuery) -> Question {
    Question::of(question_matching(&visitor, &query.unwrap_or_default()).await)
}

async fn question_matching(visitor: &Visitor, query: &str) -> Result<String, Problem> {
    let filters = Filters::read(&MESSAGES, query);
    let counted = visitor.count(Countable::Messages, &for_cancel(&filters)?).await?;
    let how_many = question::how_many(counted, "message")?;
    Ok(match filters.is_empty() {
        true => {
            format!("Cancel every pending message of this tenant, in all queues? This cancels {how_many}. {EFFECT}")
        }
        false => format!(
            "Cancel every pending message with {}? This cancels {how_many}. {EFFECT}{}",
            filters.in_words(),
            if filters.has_dates() { " The dates apply to the time of publishing." } else { "" }
        ),
    })
}

pub(super) async fn cancel_matching(visitor: Visitor, form: RawForm) -> Result<Response, Problem> {
    let filters = Filters::read(&MESSAGES, &String::from_utf8_lossy(&form.0));
    let fields = Fields::read(&form);
    let wanted = for_cancel(&filters)?;
    let answer = visitor.send(Method::DELETE, &format!("/v2/messages?{wanted}"), &[], Vec::new()).await?;
    let (matching, action) = (answer["cancelled"].as_u64().unwrap_or(0), answer["actionId"].as_str().unwrap_or(""));
    Ok(back_to(
        next(&fields),
        &format!("Cancelling {} in the background ({action}).", view::counted(matching as usize, "message")),
    ))
}
