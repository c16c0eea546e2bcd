//! Queues: how far each is behind, and its settings.

use super::form::Back;
use super::refusal::{Name, Refusal};
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
/// The fields of the form, as refusals call them.
const NAMES: &[Name] =
    &[("name of a queue", "queueName"), ("parallelism", "parallelism"), ("maxParallelism", "parallelism")];

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
        Ok(()) => Ok(back_to(PAGE, &format!("Queue {name} saved."))),
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
    Ok(back_to(&wanted.next, &format!("Queue {name} now has parallelism {parallelism}.")))
}

async fn put_queue(visitor: &Visitor, name: &str, parallelism: u64, paused: bool) -> Result<(), Problem> {
    let body = json!({ "queueName": name, "parallelism": parallelism, "paused": paused });
    visitor.send(Method::POST, "/v2/queues", &[], body.to_string().into_bytes()).await.map(drop)
}

fn number(text: &str) -> Result<u64, Problem> {
    text.trim().parse().map_err(|_| Problem::refused(format!("Parallelism: {text:?} is not a whole number")))
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
            format!("Queue {name} paused. Attempts in flight will finish; no others will start.")
        }
        "resume" => {
            visitor.send(Method::POST, &format!("{queue}/resume"), &[], Vec::new()).await?;
            format!("Queue {name} resumed.")
        }
        "delete" => {
            let answer = visitor.send(Method::DELETE, &queue, &[], Vec::new()).await?;
            let cancelled = answer["cancelled"].as_u64().unwrap_or_default();
            format!("Queue {name} deleted, {} cancelled.", view::counted(cancelled as usize, "message"))
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
                (view::counted(all, "queue")) ", " (view::counted(waiting as usize, "message"))
                @if paused > 0 { ", " (view::number(paused as u64)) " paused" }
            }
        }
        div #queue-search { @if all > 0 { (filter_form(filters)) } }
        section #queue-list data-refresh="3000" data-also="queue-count queue-search" {
            @if all == 0 { (nothing()) } @else {
                (view::found(PAGE, found.len(), all, "No queues match", || table(visitor, &found)))
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
                "Sort by"
                select name="order" {
                    option value="" selected[filters.order != "lag"] { "name" }
                    option value="lag" selected[filters.order == "lag"] { "lag" }
                }
            }
            div.actions { button type="submit" { "Apply" } a.button href=(PAGE) { "Clear" } }
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
            numbers("Lag", Some("Messages that have not ended, including those in flight")),
            column("Parallelism"),
            column("Created"),
            column("Updated"),
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
            button type="submit" disabled[!visitor.may_act()] title=[view::refusal(visitor)] { "Save" }
        }
    }
}

fn buttons(visitor: &Visitor, queue: &Queue) -> Markup {
    let path = format!("{PAGE}/{}", segment(&queue.name));
    let question = match queue.lag {
        0 => format!("Delete queue {}? It has no messages. Its settings will be deleted.", queue.name),
        lag => format!(
            "Delete queue {}? This cancels {} and deletes the settings of the queue.",
            queue.name,
            view::counted(lag as usize, "pending message")
        ),
    };
    html! {
        (view::pause_button(visitor, &path, queue.paused))
        (view::button(visitor, &format!("{path}/delete"), "Delete", Some(&question), &[]))
    }
}

fn nothing() -> Markup {
    view::empty(
        "No queues yet",
        &html! {
            p { "A queue delivers its messages in order. Create one below, or enqueue a message:" }
            (view::command("curl -X POST \"$QSTASH_URL/v2/enqueue/orders/https://example.com\" \
                -H \"Authorization: Bearer $QSTASH_TOKEN\" -d hello"))
        },
    )
}

fn new_form(visitor: &Visitor, wanted: Option<&Wanted>, problem: Option<&Problem>) -> Markup {
    let name = wanted.map_or("", |wanted| wanted.queue_name.as_str());
    let parallelism = wanted.map_or("1", |wanted| wanted.parallelism.as_str());
    let refusal = Refusal::new(problem, NAMES);
    html! {
        section.card {
            h2 { "Create or update queue" }
            (refusal.alert())
            form.fields.row method="post" action=(PAGE) {
                (refusal.around("queueName", &html! {
                    label { "Name"
                        input type="text" name="queueName" required maxlength="256" value=(name)
                            aria-invalid=[refusal.invalid("queueName")] aria-describedby=[refusal.described_by("queueName")];
                    }
                }))
                (refusal.around("parallelism", &html! {
                    label { "Parallelism"
                        input type="number" name="parallelism" min="1" required value=(parallelism)
                            aria-invalid=[refusal.invalid("parallelism")] aria-describedby=[refusal.described_by("parallelism")];
                    }
                }))
                label.check {
                    input type="checkbox" name="paused" checked[wanted.is_some_and(|wanted| wanted.paused.is_some())];
                    " Paused"
                }
                div { (view::submit(visitor, "Save")) }
            }
            p.hint { "A name can have letters, digits, hyphens, underscores and periods. If the queue exists, its settings are replaced." }
        }
    }
}
