//! URL groups: their endpoints and default headers.

use super::form::{Search, header_lines};
use super::view::{self, ROWS_MAX, column, numbers};
use super::visitor::{Problem, query, segment};
use super::{Desk, Visitor, back_to, messages};
use axum::Router;
use axum::extract::{Form, Path, Query};
use axum::http::{Method, StatusCode};
use axum::response::Response;
use axum::routing::{get, post};
use maud::{Markup, html};
use posthaste_wire::time::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use std::sync::Arc;

const PAGE: &str = "/console/url-groups";

pub(super) fn routes() -> Router<Arc<Desk>> {
    Router::new()
        .route("/url-groups", get(show).post(make))
        .route("/url-groups/{name}", get(show_group))
        .route("/url-groups/{name}/add", post(add))
        .route("/url-groups/{name}/remove", post(remove))
        .route("/url-groups/{name}/headers", post(set_headers))
        .route("/url-groups/{name}/delete", post(delete))
}

/// A group as the API shows it.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Group {
    name: String,
    created_at: u64,
    updated_at: u64,
    endpoints: Vec<Endpoint>,
    #[serde(default)]
    headers: Map<String, Value>,
}

#[derive(Deserialize, Serialize)]
struct Endpoint {
    url: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    name: Option<String>,
}

/// An endpoint as the forms say it, and in a new group the name of that.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Entered {
    group: String,
    url: String,
    name: String,
}

impl Entered {
    fn endpoint(&self) -> Endpoint {
        let name = self.name.trim();
        Endpoint { url: self.url.trim().to_owned(), name: (!name.is_empty()).then(|| name.to_owned()) }
    }
}

#[derive(Deserialize)]
struct Headers {
    headers: String,
}

/// What the page of a group tells of a request that was refused: the problem, and what was entered.
enum Refused {
    Endpoint(Entered, Problem),
    Headers(String, Problem),
}

fn page_of(name: &str) -> String {
    format!("{PAGE}/{}", segment(name))
}

fn api_of(name: &str) -> String {
    format!("/v2/topics/{}", segment(name))
}

fn send_to(name: &str) -> String {
    format!("/console/send?{}", query(&[("destination", name)]))
}

async fn show(visitor: Visitor, Query(Search { search }): Query<Search>) -> Result<Response, Problem> {
    render(&visitor, &search, None).await
}

async fn make(visitor: Visitor, Form(entered): Form<Entered>) -> Result<Response, Problem> {
    let name = entered.group.trim();
    match add_to(&visitor, name, &entered).await {
        Ok(()) => Ok(back_to(&page_of(name), &format!("The group {name} has this endpoint now."))),
        Err(problem) => render(&visitor, "", Some((&entered, problem))).await,
    }
}

async fn add_to(visitor: &Visitor, group: &str, entered: &Entered) -> Result<(), Problem> {
    if group.is_empty() {
        return Err(Problem::refused("the name of the group is empty"));
    }
    let body = json!({ "endpoints": [entered.endpoint()] }).to_string().into_bytes();
    visitor.send(Method::POST, &format!("{}/endpoints", api_of(group)), &[], body).await.map(drop)
}

async fn render(visitor: &Visitor, search: &str, refused: Option<(&Entered, Problem)>) -> Result<Response, Problem> {
    let (groups, has_more): (Vec<Group>, bool) = visitor.list("/v2/topics").await?;
    let all = groups.len();
    let found: Vec<Group> = groups.into_iter().filter(|group| group.name.contains(search)).collect();
    let (entered, problem) = refused.unzip();
    let body = html! {
        div.title { h1 { "URL groups" } span.quiet { "A name for several destinations: each gets every message" } }
        @if all == 0 { (nothing()) } @else {
            (view::search(PAGE, "Name contains", search))
            section {
                (view::found(PAGE, found.len(), all, "No group has such a name", || table(visitor, &found)))
                (view::more(has_more))
            }
        }
        section.card {
            h2 { "Make a group, or add an endpoint to one" }
            (view::alert(problem.as_ref()))
            form.fields.row method="post" action=(PAGE) {
                label {
                    "Group"
                    input type="text" name="group" required maxlength="256" value=(entered.map_or("", |e| &e.group));
                }
                (endpoint_fields(entered))
                div { (view::submit(visitor, "Add")) }
            }
        }
    };
    Ok(view::answer(visitor, "URL groups", &body, problem.as_ref()))
}

fn endpoint_fields(entered: Option<&Entered>) -> Markup {
    html! {
        label {
            "URL of the endpoint"
            input type="url" name="url" required value=(entered.map_or("", |e| &e.url)) placeholder="https://";
        }
        label {
            "Its name (may be empty)"
            input type="text" name="name" maxlength="256" value=(entered.map_or("", |e| &e.name));
        }
    }
}

fn table(visitor: &Visitor, groups: &[Group]) -> Markup {
    let now = visitor.now();
    let rows = html! {
        @for group in groups.iter().take(ROWS_MAX) {
            tr {
                th.name scope="row" {
                    a href=(page_of(&group.name)) { code.cut title=(group.name) { (group.name) } }
                }
                td { (first_endpoints(&group.endpoints)) }
                td.number { (view::number(group.headers.len() as u64)) }
                td.tight { (view::time(Timestamp(group.updated_at), now)) }
                td.acts { div.actions { (actions(visitor, group)) } }
            }
        }
    };
    view::table(
        &[column("Group"), column("Endpoints"), numbers("Default headers", None), column("Changed"), column("Actions")],
        &rows,
    )
}

/// The first few, by name or else by URL.
fn first_endpoints(endpoints: &[Endpoint]) -> Markup {
    const SHOWN: usize = 3;
    let names: Vec<&str> =
        endpoints.iter().take(SHOWN).map(|endpoint| endpoint.name.as_ref().unwrap_or(&endpoint.url).as_str()).collect();
    let (names, rest) = (names.join(", "), endpoints.len().saturating_sub(SHOWN));
    html! {
        span.cut title=(names) {
            (view::number(endpoints.len() as u64)) ": " (names) @if rest > 0 { span.quiet { " and " (rest) " more" } }
        }
    }
}

fn actions(visitor: &Visitor, group: &Group) -> Markup {
    let question = format!(
        "Delete the group {}? Its {} endpoints and its default headers are lost. Messages that were published stay; who \
         publishes to it from now on gets a 404.",
        group.name,
        group.endpoints.len()
    );
    html! {
        a.button href=(send_to(&group.name)) { "Publish" }
        (view::button(visitor, &format!("{}/delete", page_of(&group.name)), "Delete", Some(&question), &[]))
    }
}

fn nothing() -> Markup {
    view::empty(
        "There are no URL groups",
        &html! {
            p { "Make one below, or with the API:" }
            (view::command("curl -X POST \"$QSTASH_URL/v2/topics/orders/endpoints\" \
                -H \"Authorization: Bearer $QSTASH_TOKEN\" \
                -d '{\"endpoints\": [{\"name\": \"billing\", \"url\": \"https://example.com/billing\"}]}'"))
        },
    )
}

async fn show_group(visitor: Visitor, Path(name): Path<String>) -> Result<Response, Problem> {
    render_group(&visitor, &name, None).await
}

async fn add(visitor: Visitor, Path(name): Path<String>, Form(entered): Form<Entered>) -> Result<Response, Problem> {
    match add_to(&visitor, &name, &entered).await {
        Ok(()) => Ok(back_to(&page_of(&name), "The endpoint is in the group: the next publish goes to it, too.")),
        Err(problem) => render_group(&visitor, &name, Some(Refused::Endpoint(entered, problem))).await,
    }
}

/// By both its URL and its name, so that no other one of the same name or URL is meant.
async fn remove(visitor: Visitor, Path(name): Path<String>, Form(entered): Form<Entered>) -> Result<Response, Problem> {
    let body = json!({ "endpoints": [entered.endpoint()] }).to_string().into_bytes();
    visitor.send(Method::DELETE, &format!("{}/endpoints", api_of(&name)), &[], body).await?;
    // The group goes with its last endpoint.
    match visitor.get::<Value>(&api_of(&name)).await {
        Ok(_) => Ok(back_to(&page_of(&name), "The endpoint is removed.")),
        Err(problem) if problem.status == StatusCode::NOT_FOUND => {
            Ok(back_to(PAGE, "It was the last endpoint: the group is gone."))
        }
        Err(problem) => Err(problem),
    }
}

async fn set_headers(
    visitor: Visitor,
    Path(name): Path<String>,
    Form(Headers { headers }): Form<Headers>,
) -> Result<Response, Problem> {
    let sent = match header_lines(&headers) {
        Ok(lines) => {
            let body = json!({ "headers": header_object(lines) }).to_string().into_bytes();
            visitor.send(Method::PATCH, &api_of(&name), &[], body).await
        }
        Err(problem) => Err(problem),
    };
    match sent {
        Ok(_) => Ok(back_to(&page_of(&name), "The default headers are stored.")),
        Err(problem) => render_group(&visitor, &name, Some(Refused::Headers(headers, problem))).await,
    }
}

async fn delete(visitor: Visitor, Path(name): Path<String>) -> Result<Response, Problem> {
    visitor.send(Method::DELETE, &api_of(&name), &[], Vec::new()).await?;
    Ok(back_to(PAGE, &format!("The group {name} is gone.")))
}

/// Headers as the API takes them: a list of values for each name.
fn header_object(lines: Vec<(String, String)>) -> Map<String, Value> {
    let mut object: Map<String, Value> = Map::new();
    for (name, value) in lines {
        match object.get_mut(&name) {
            Some(Value::Array(values)) => values.push(value.into()),
            _ => drop(object.insert(name, json!([value]))),
        }
    }
    object
}

/// Headers as people write them; the reverse of [`header_lines`].
fn header_text(headers: &Map<String, Value>) -> String {
    let lines = headers.iter().flat_map(|(name, values)| {
        let values = values.as_array().map_or(&[][..], Vec::as_slice).iter().filter_map(Value::as_str);
        values.map(move |value| format!("{name}: {value}\n"))
    });
    lines.collect()
}

async fn render_group(visitor: &Visitor, name: &str, refused: Option<Refused>) -> Result<Response, Problem> {
    let group: Group = visitor.get(&api_of(name)).await?;
    let now = visitor.now();
    let (entered, add_problem, headers, headers_problem) = match refused {
        Some(Refused::Endpoint(entered, problem)) => (Some(entered), Some(problem), header_text(&group.headers), None),
        Some(Refused::Headers(text, problem)) => (None, None, text, Some(problem)),
        None => (None, None, header_text(&group.headers), None),
    };
    let body = html! {
        p { a href=(PAGE) { "All groups" } }
        div.title {
            h1 { "Group " code { (group.name) } }
            span.quiet {
                "made " (view::time(Timestamp(group.created_at), now))
                ", changed " (view::time(Timestamp(group.updated_at), now))
            }
            div.actions { (actions(visitor, &group)) }
        }
        (endpoint_table(visitor, &group))
        p {
            a href=(messages::listed_by("urlGroup", &group.name)) { "Messages to this group" }
        }
        div.columns {
            section.card {
                h2 { "Add an endpoint" }
                (view::alert(add_problem.as_ref()))
                form.fields method="post" action={ (page_of(&group.name)) "/add" } {
                    (endpoint_fields(entered.as_ref()))
                    div { (view::submit(visitor, "Add")) }
                }
                p.hint { "An endpoint of the same name or URL is changed." }
            }
            section.card {
                h2 { "Default headers" }
                (view::alert(headers_problem.as_ref()))
                form.fields method="post" action={ (page_of(&group.name)) "/headers" } {
                    label {
                        "Name: value, one on each line"
                        textarea name="headers" spellcheck="false" placeholder="Upstash-Retries: 5" { (headers) }
                    }
                    div { button type="submit" disabled[!visitor.may_act()] title=[view::refusal(visitor)] { "Store" } }
                }
                p.hint { "Every publish to the group has them unless it says otherwise. Schedules keep those they began with." }
            }
        }
    };
    Ok(view::answer(visitor, &format!("Group {}", group.name), &body, add_problem.or(headers_problem).as_ref()))
}

fn endpoint_table(visitor: &Visitor, group: &Group) -> Markup {
    let is_last = group.endpoints.len() == 1;
    html! {
        div.scroll {
            table {
                thead { tr { th scope="col" { "Name" } th scope="col" { "URL" } th scope="col" { "Actions" } } }
                tbody {
                    @for endpoint in &group.endpoints {
                        @let name = endpoint.name.as_deref().unwrap_or_default();
                        @let question = match is_last {
                            true => format!("Remove the last endpoint? The group {} goes with it.", group.name),
                            false => "Remove this endpoint? Publishes to the group no longer go to it.".to_owned(),
                        };
                        tr {
                            td { @if name.is_empty() { span.quiet { "none" } } @else { span.cut title=(name) { (name) } } }
                            td { code.cut title=(endpoint.url) { (endpoint.url) } }
                            td.tight {
                                (view::button(
                                    visitor,
                                    &format!("{}/remove", page_of(&group.name)),
                                    "Remove",
                                    Some(&question),
                                    &[("url", &endpoint.url), ("name", name)],
                                ))
                            }
                        }
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_are_lines_and_back() {
        let text = "Upstash-Retries: 5\nUpstash-Forward-X: a: b\nUpstash-Forward-X: \n";
        let lines = header_lines(&format!("\n  {text}\n")).unwrap();
        assert_eq!(
            lines,
            [("Upstash-Retries", "5"), ("Upstash-Forward-X", "a: b"), ("Upstash-Forward-X", "")]
                .map(|(name, value)| (name.to_owned(), value.to_owned()))
        );
        let object = header_object(lines);
        assert_eq!(json!(object), json!({ "Upstash-Forward-X": ["a: b", ""], "Upstash-Retries": ["5"] }));
        assert_eq!(header_lines(&header_text(&object)).unwrap().len(), 3);
    }
}
