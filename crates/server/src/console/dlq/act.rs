//! What buttons of these pages do: send dead letters again, delete them.

use super::super::form::{Fields, borrowed};
use super::super::question::{self, Question};
use super::super::view;
use super::super::visitor::{Problem, Visitor, query, segment};
use super::super::{Console, ROOT, back_to};
use super::change;
use super::selection::Selection;
use crate::api::Countable;
use axum::body::Bytes;
use axum::extract::{Path, RawQuery};
use axum::http::{Method, StatusCode};
use axum::response::Response;
use maud::{Markup, html};
use serde_json::Value;

/// Where the questions are, before the last part of the action's path.
const ASK: &str = "/console/dlq/question/";

/// What somebody has asked for with a form.
pub(super) struct Order {
    pub(super) what: What,
    /// At most so many per second; empty for no limit.
    pub(super) rate: String,
    next: String,
    fields: Fields,
}

/// Which dead letters are meant.
pub(super) enum What {
    One(String),
    Ticked(Vec<String>),
    All(Selection),
}

/// A form that means no dead letters.
pub(super) struct Nothing {
    next: String,
    said: String,
}

impl Nothing {
    /// Back to where the form was.
    pub(super) fn back(&self) -> Response {
        back_to(&self.next, &self.said)
    }
}

impl Order {
    /// From the fields of a form. A form in which nothing is ticked means nothing, never everything.
    pub(super) fn read(bytes: &[u8]) -> Result<Order, Nothing> {
        let fields = Fields::parse(bytes);
        let all = |wanted: &str| -> Vec<String> { fields.ticked(wanted).into_iter().map(str::to_owned).collect() };
        let last = |wanted: &str| all(wanted).pop();
        let next = last("next").unwrap_or_else(|| super::PATH.to_owned());
        let what = match (last("what").as_deref(), last("id"), all("dlqIds")) {
            (Some("one"), Some(id), _) => What::One(id),
            (Some("ticked"), _, ids) if !ids.is_empty() => What::Ticked(ids),
            (Some("ticked"), ..) => return Err(Nothing { next, said: question::none_ticked("dead letter") }),
            (Some("all"), ..) => What::All(Selection::from_fields(Fields::parse(bytes))),
            _ => {
                let said = "No dead letters were specified. Nothing was changed.";
                return Err(Nothing { next, said: said.to_owned() });
            }
        };
        Ok(Order { what, rate: last("rate").unwrap_or_default(), next, fields })
    }

    /// The page to go back to.
    pub(super) fn back(&self) -> &str {
        if Console::has(&self.next) { &self.next } else { super::PATH }
    }

    /// The value of a field; empty if it is not there.
    pub(super) fn field(&self, wanted: &str) -> &str {
        self.fields.last(wanted)
    }

    /// Whether somebody has filled in what a retry changes.
    pub(super) fn has_changes(&self) -> bool {
        self.fields.all("headersBefore").next().is_some()
    }

    /// The query of the API that does this in the background.
    pub(super) fn in_background(&self) -> String {
        let terms = query(&[("async", "true"), ("rate", &self.rate)]);
        match &self.what {
            What::One(id) => format!("{}&{terms}", query(&[("dlqIds", id)])),
            What::Ticked(ids) => format!("{}&{terms}", query(&[("dlqIds", &ids.join(","))])),
            What::All(selection) if selection.is_empty() => terms,
            What::All(selection) => format!("{}&{terms}", selection.of_api()),
        }
    }
}

pub(super) async fn retry(visitor: Visitor, body: Bytes) -> Result<Response, Problem> {
    let order = match Order::read(&body) {
        Ok(order) => order,
        Err(nothing) => return Ok(nothing.back()),
    };
    match resend(&visitor, &order).await {
        // What was typed stays, beside the reason.
        Err(problem) if order.has_changes() => change::render(&visitor, &order, Some(problem)).await,
        done => done,
    }
}

async fn resend(visitor: &Visitor, order: &Order) -> Result<Response, Problem> {
    let changes = change::read(order)?;
    let headers = borrowed(&changes);
    let post = |path: String| send(visitor, Method::POST, path, &headers);
    match &order.what {
        What::One(id) => {
            let answer = post(format!("/v2/dlq/retry/{}", segment(id))).await?;
            let message = answer["messageId"].as_str().unwrap_or_default();
            match answer["deduplicated"] == true {
                true => Ok(back_to(
                    &format!("{ROOT}/messages/{}", segment(message)),
                    "The retry is a duplicate of this message. Nothing was sent; the dead letter stays in the DLQ.",
                )),
                false => {
                    Ok(back_to(&format!("{ROOT}/messages/{}", segment(message)), &format!("Retried as {message}.")))
                }
            }
        }
        What::Ticked(ids) if order.rate.is_empty() => {
            let answer = post(format!("/v2/dlq/retry?{}", query(&[("dlqIds", &ids.join(","))]))).await?;
            let count = answer["responses"].as_array().map_or(0, Vec::len);
            Ok(back_to(&order.next, &format!("Retried {}.", view::counted(count, "dead letter"))))
        }
        What::Ticked(_) | What::All(_) => {
            let answer = post(format!("/v2/dlq/retry?{}", order.in_background())).await?;
            Ok(back_to(&order.next, &begun("Retrying", &answer)))
        }
    }
}

pub(super) async fn delete(visitor: Visitor, body: Bytes) -> Result<Response, Problem> {
    let order = match Order::read(&body) {
        Ok(order) => order,
        Err(nothing) => return Ok(nothing.back()),
    };
    let delete = |path: String| send(&visitor, Method::DELETE, path, &[]);
    match &order.what {
        What::One(id) => {
            delete(format!("/v2/dlq/{}", segment(id))).await?;
            Ok(back_to(&order.next, &format!("Deleted {id}.")))
        }
        What::Ticked(ids) if order.rate.is_empty() => {
            let answer = delete(format!("/v2/dlq?{}", query(&[("dlqIds", &ids.join(","))]))).await?;
            let count = answer["deleted"].as_u64().unwrap_or_default() as usize;
            Ok(back_to(&order.next, &format!("Deleted {}.", view::counted(count, "dead letter"))))
        }
        What::Ticked(_) | What::All(_) => {
            let answer = delete(format!("/v2/dlq?{}", order.in_background())).await?;
            Ok(back_to(&order.next, &begun("Deleting", &answer)))
        }
    }
}

/// The question before dead letters are sent again or deleted: it counts them now.
pub(super) async fn ask(visitor: Visitor, Path(action): Path<String>, RawQuery(query): RawQuery) -> Question {
    Question::of(question_of(&visitor, &action, query.unwrap_or_default().as_bytes()).await)
}

async fn question_of(visitor: &Visitor, action: &str, fields: &[u8]) -> Result<String, Problem> {
    let (verb, does, meaning) = match action {
        "retry" => ("Retry", "retries", "Each is sent again as a new message."),
        "delete" => ("Delete", "deletes", "Deleted dead letters cannot be retried."),
        _ => return Err(Problem { status: StatusCode::NOT_FOUND, text: "Unknown action.".to_owned() }),
    };
    let order = Order::read(fields).map_err(|nothing| Problem { status: StatusCode::NOT_FOUND, text: nothing.said })?;
    Ok(match &order.what {
        What::One(id) => format!("{verb} dead letter {id}? {meaning}"),
        What::Ticked(ids) => format!("{verb} {}? {meaning}", question::ticked(ids.len(), "dead letter")?),
        What::All(selection) => {
            let counted = visitor.count(Countable::DeadLetters, &selection.of_api()).await?;
            let how_many = question::how_many(counted, "dead letter")?;
            match selection.is_empty() {
                true => format!("{verb} every dead letter of this tenant? This {does} {how_many}. {meaning}"),
                false => format!("{verb} {how_many} with {}? {meaning}", selection.in_words()),
            }
        }
    })
}

async fn send(visitor: &Visitor, method: Method, path: String, headers: &[(&str, &str)]) -> Result<Value, Problem> {
    visitor.send(method, &path, headers, Vec::new()).await
}

fn begun(verb: &str, answer: &Value) -> String {
    let total = answer["total"].as_u64().unwrap_or_default();
    format!("{verb} {} in the background.", view::counted(total as usize, "dead letter"))
}

/// A button of a form that has several.
pub(super) struct Button<'a> {
    pub(super) action: &'a str,
    pub(super) name: &'a str,
    /// What the form says besides if it is this button.
    pub(super) field: Option<(&'a str, &'a str)>,
    pub(super) is_danger: bool,
}

pub(super) fn button(visitor: &Visitor, button: &Button<'_>) -> Markup {
    let (name, value) = button.field.unzip();
    html! {
        button.danger[button.is_danger] formaction=(button.action) name=[name] value=[value]
            data-ask=[button.action.rsplit('/').next().map(|action| format!("{ASK}{action}"))] disabled[!visitor.may_act()] title=[view::refusal(visitor)] { (button.name) }
    }
}

/// The field for the pace.
pub(super) fn pace(rate: &str) -> Markup {
    html! {
        label.pace { "At most" input type="number" name="rate" value=(rate) min="1" max="1000" placeholder="no limit"; "per second" }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_form_names_dead_letters_or_changes_nothing() {
        for form in ["", "what=ticked", "what=ticked&dlqIds=", "what=one", "what=some&dlqIds=1-1", "dlqIds=1-1"] {
            assert!(Order::read(form.as_bytes()).is_err(), "{form}");
        }
        let query = |form: &str| Order::read(form.as_bytes()).map(|order| order.in_background()).ok();
        for (form, expected) in [
            ("what=all", "async=true"),
            ("what=all&dlqIds=1-1&label=red&rate=5", "label=red&async=true&rate=5"),
            // The button that was pressed comes last and wins.
            ("what=all&what=ticked&label=red&dlqIds=1-1&dlqIds=2-2", "dlqIds=1-1%2C2-2&async=true"),
            ("what=all&cause=cause_1", "cause=cause_1&async=true"),
        ] {
            assert_eq!(query(form).as_deref(), Some(expected), "{form}");
        }
    }
}
