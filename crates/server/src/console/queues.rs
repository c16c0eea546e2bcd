//! Queues: how far each is behind, and its settings.

use super::form::Back;
use super::view::{self, ROWS_MAX, column, numbers};
use super::visitor::{Problem, segment};
use super::{Desk, Visitor, back_to, messages};
use axum::Router;
use axum::extract::{Form, Path, Query};
use axum::http::Method;
use axum::response::Response;
use axum::routing::{get, post};
use maud::{Markup, html};
use posthaste_wire::time::Timestamp;
use serde::Deserialize;
use serde_json::json;
use std::sync::Arc;

const PAGE: &str = "/console/queues";

pub(super) fn routes() -> Router<Arc<Desk>> {
    Router::new()
        .route("/queues", get(show).post(put))
        .route("/queues/{name}/parallelism", post(set_parallelism))
        .route("/queues/{name}/{action}", post(act))
}

/// A queue as the API shows it.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Queue {
    name: String,
    parallelism: u32,
    paused: bool,
    lag: u64,
    created_at: u64,
    updated_at: u64,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Filters {
    search: String,
    order: String,
}

/// What the form for a new queue says.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Wanted {
    queue_name: String,
    parallelism: String,
    paused: Option<String>,
}

#[derive(Deserialize)]
struct Parallelism {
    parallelism: String,
    #[serde(default)]
    next: String,
}

async fn show(visitor: Visitor, Query(filters): Query<Filters>) -> Result<Response, Problem> {
    render(&visitor, &filters, None).await
}

async fn put(visitor: Visitor, Form(wanted): Form<Wanted>) -> Result<Response, Problem> {
    let name = wanted.queue_name.trim();
    let put = match number(&wanted.parallelism) {
        Ok(parallelism) => put_queue(&visitor, name, parallelism, wanted.paused.is_some()).await,
        Err(problem) => Err(problem),
    };
    match put {
        Ok(()) => Ok(back_to(PAGE, &format!("The queue {name} is stored."))),
        Err(problem) => render(&visitor, &Filters::default(), Some((&wanted, problem))).await,
    }
}

/// Everything else of the queue stays as it is now, whatever the page showed.
async fn set_parallelism(
    visitor: Visitor,
    Path(name): Path<String>,
    Form(wanted): Form<Parallelism>,
) -> Result<Response, Problem> {
    let parallelism = number(&wanted.parallelism)?;
    let queue: Queue = visitor.get(&format!("/v2/queues/{}", segment(&name))).await?;
    put_queue(&visitor, &name, parallelism, queue.paused).await?;
    Ok(back_to(&wanted.next, &format!("The queue {name} has a parallelism of {parallelism} now.")))
}

async fn put_queue(visitor: &Visitor, name: &str, parallelism: u64, paused: bool) -> Result<(), Problem> {
    let body = json!({ "queueName": name, "parallelism": parallelism, "paused": paused });
    visitor.send(Method::POST, "/v2/queues", &[], body.to_string().into_bytes()).await.map(drop)
}

fn number(text: &str) -> Result<u64, Problem> {
    text.trim().parse().map_err(|_| Problem::refused(format!("{text:?} is not a number of messages")))
}

async fn act(
    visitor: Visitor,
    Path((name, action)): Path<(String, String)>,
    Form(Back { next }): Form<Back>,
) -> Result<Response, Problem> {
    let queue = format!("/v2/queues/{}", segment(&name));
    let said = match action.as_str() {
        "pause" => {
            visitor.send(Method::POST, &format!("{queue}/pause"), &[], Vec::new()).await?;
            format!("The queue {name} is paused: what is under way finishes, nothing else starts.")
        }
        "resume" => {
            visitor.send(Method::POST, &format!("{queue}/resume"), &[], Vec::new()).await?;
            format!("The queue {name} goes on.")
        }
        "delete" => {
            let answer = visitor.send(Method::DELETE, &queue, &[], Vec::new()).await?;
            let cancelled = answer["cancelled"].as_u64().unwrap_or_default();
            format!("The queue {name} is gone; {cancelled} of its messages were cancelled.")
        }
        _ => return Ok(view::no_page().await),
    };
    Ok(back_to(&next, &said))
}

async fn render(
    visitor: &Visitor,
    filters: &Filters,
    refused: Option<(&Wanted, Problem)>,
) -> Result<Response, Problem> {
    let (queues, has_more): (Vec<Queue>, bool) = visitor.list("/v2/queues").await?;
    let (all, waiting) = (queues.len(), queues.iter().map(|queue| queue.lag).sum::<u64>());
    let paused = queues.iter().filter(|queue| queue.paused).count();
    let mut found: Vec<Queue> = queues.into_iter().filter(|queue| queue.name.contains(&filters.search)).collect();
    if filters.order == "lag" {
        found.sort_by_key(|queue| std::cmp::Reverse(queue.lag));
    }
    let (wanted, problem) = refused.unzip();
    let body = html! {
        div.title {
            h1 { "Queues" }
            span #queue-count.quiet {
                (view::number(all as u64)) " in all, " (view::number(waiting)) @if waiting == 1 { " message" } @else { " messages" } " in them"
                @if paused > 0 { ", " (view::number(paused as u64)) " paused" }
            }
        }
        div #queue-search { @if all > 0 { (filter_form(filters)) } }
        section #queue-list data-refresh="3000" data-also="queue-count queue-search" {
            @if all == 0 { (nothing()) } @else {
                (view::found(PAGE, found.len(), all, "No queue has such a name", || table(visitor, &found)))
                (view::more(has_more))
            }
        }
        (new_form(visitor, wanted, problem.as_ref()))
    };
    Ok(view::answer(visitor, "Queues", &body, problem.as_ref()))
}

fn filter_form(filters: &Filters) -> Markup {
    html! {
        form.filters method="get" action=(PAGE) role="search" {
            label { "Name contains" input type="search" name="search" value=(filters.search) maxlength="256"; }
            label {
                "Order"
                select name="order" {
                    option value="" selected[filters.order != "lag"] { "by name" }
                    option value="lag" selected[filters.order == "lag"] { "longest first" }
                }
            }
            div.actions { button type="submit" { "Show" } a.button href=(PAGE) { "All" } }
        }
    }
}

fn table(visitor: &Visitor, queues: &[Queue]) -> Markup {
    let now = visitor.now();
    let rows = html! {
        @for queue in queues.iter().take(ROWS_MAX) {
            tr {
                th.name scope="row" { code.cut title=(queue.name) { (queue.name) } }
                td.tight { (state(queue)) }
                td.number { a href=(messages::listed_by("queueName", &queue.name)) { (view::number(queue.lag)) } }
                td.tight { (parallelism_form(visitor, queue)) }
                td.tight { (view::time(Timestamp(queue.created_at), now)) }
                td.tight { (view::time(Timestamp(queue.updated_at), now)) }
                td.acts { div.actions { (buttons(visitor, queue)) } }
            }
        }
    };
    view::table(
        &[
            column("Queue"),
            column("State"),
            numbers("Lag", Some("Messages that have not ended, those under way included")),
            column("Parallelism"),
            column("Made"),
            column("Changed"),
            column("Actions"),
        ],
        &rows,
    )
}

fn state(queue: &Queue) -> Markup {
    match (queue.paused, queue.lag) {
        (true, _) => html! { span.state.warn { "paused" } },
        (false, 0) => html! { span.state.off { "empty" } },
        (false, _) => html! { span.state.busy { "running" } },
    }
}

fn parallelism_form(visitor: &Visitor, queue: &Queue) -> Markup {
    html! {
        form.amount method="post" action={ (PAGE) "/" (segment(&queue.name)) "/parallelism" } {
            input type="hidden" name="next" value=(visitor.here);
            input type="number" name="parallelism" min="1" required value=(queue.parallelism)
                aria-label={ "Parallelism of " (queue.name) };
            button type="submit" disabled[!visitor.may_act()] title=[view::refusal(visitor)] { "Set" }
        }
    }
}

fn buttons(visitor: &Visitor, queue: &Queue) -> Markup {
    let path = format!("{PAGE}/{}", segment(&queue.name));
    let question = match queue.lag {
        0 => format!("Delete the queue {}? Its settings are lost; it has no messages.", queue.name),
        lag => format!(
            "Delete the queue {}? Its {lag} messages that have not ended are cancelled and lost, and so are its settings.",
            queue.name
        ),
    };
    html! {
        (view::pause_button(visitor, &path, queue.paused))
        (view::button(visitor, &format!("{path}/delete"), "Delete", Some(&question), &[]))
    }
}

fn nothing() -> Markup {
    view::empty(
        "There are no queues yet",
        &html! {
            p { "A queue delivers its messages in order. The first message makes it:" }
            (view::command("curl -X POST \"$QSTASH_URL/v2/enqueue/orders/https://example.com\" \
                -H \"Authorization: Bearer $QSTASH_TOKEN\" -d hello"))
        },
    )
}

fn new_form(visitor: &Visitor, wanted: Option<&Wanted>, problem: Option<&Problem>) -> Markup {
    let name = wanted.map_or("", |wanted| wanted.queue_name.as_str());
    let parallelism = wanted.map_or("1", |wanted| wanted.parallelism.as_str());
    html! {
        section.card {
            h2 { "Make a queue, or set one anew" }
            (view::alert(problem))
            form.fields.row method="post" action=(PAGE) {
                label { "Name" input type="text" name="queueName" required maxlength="256" value=(name); }
                label { "Parallelism" input type="number" name="parallelism" min="1" required value=(parallelism); }
                label.check {
                    input type="checkbox" name="paused" checked[wanted.is_some_and(|wanted| wanted.paused.is_some())];
                    " paused from the start"
                }
                div { (view::submit(visitor, "Store")) }
            }
            p.hint { "Letters, digits, -, _ and . make a name. A queue of the same name gets these settings." }
        }
    }
}
