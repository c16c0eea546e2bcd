//! URL groups: their endpoints and default headers.

use super::form::{Search, header_lines};
use super::refusal::{Name, Refusal};
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
/// The label of the default headers.
const HEADERS: &str = "Headers";
/// The fields of an endpoint and its group, as refusals call them.
const NAMES: &[Name] =
    &[("name of a URL group", "group"), ("name of the group", "group"), ("url", "url"), ("name", "name")];
/// The field of the default headers: whatever is refused there is about it.
const HEADER_NAMES: &[Name] =
    &[("Upstash-*", "headers"), (HEADERS, "headers"), ("headers", "headers"), ("quota", "headers")];

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

/// A refused request on the page of a group: the input and the problem.
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
        Ok(()) => Ok(back_to(&page_of(name), &format!("Endpoint added to group {name}."))),
        Err(problem) => render(&visitor, "", Some((&entered, problem))).await,
    }
}

async fn add_to(visitor: &Visitor, group: &str, entered: &Entered) -> Result<(), Problem> {
    if group.is_empty() {
        return Err(Problem::refused("the name of the group is missing"));
    }
    let body = json!({ "endpoints": [entered.endpoint()] }).to_string().into_bytes();
    visitor.send(Method::POST, &format!("{}/endpoints", api_of(group)), &[], body).await.map(drop)
}

async fn render(visitor: &Visitor, search: &str, refused: Option<(&Entered, Problem)>) -> Result<Response, Problem> {
    let (groups, has_more): (Vec<Group>, bool) = visitor.list("/v2/topics").await?;
    let all = groups.len();
    let found: Vec<Group> = groups.into_iter().filter(|group| group.name.contains(search)).collect();
    let (entered, problem) = refused.unzip();
    let refusal = Refusal::new(problem.as_ref(), NAMES);
    let body = html! {
        div.title { h1 { "URL groups" } span.quiet { "One name for several destinations. Each receives every message" } }
        @if all == 0 { (nothing()) } @else {
            (view::search(PAGE, "Name contains", search))
            section {
                (view::found(PAGE, found.len(), all, "No groups match", || table(visitor, &found)))
                (view::more(has_more))
            }
        }
        section.card {
            h2 { "Create group or add endpoint" }
            (refusal.alert())
            form.fields.row method="post" action=(PAGE) {
                (field(refusal, "group", "Group", &html! {
                    input type="text" name="group" required maxlength="256" value=(entered.map_or("", |e| &e.group))
                        aria-invalid=[refusal.invalid("group")] aria-describedby=[refusal.described_by("group")];
                }))
                (endpoint_fields(entered, refusal))
                div { (view::submit(visitor, "Add endpoint")) }
            }
        }
    };
    Ok(view::answer(visitor, "URL groups", &body, problem.as_ref()))
}

fn endpoint_fields(entered: Option<&Entered>, refusal: Refusal<'_>) -> Markup {
    html! {
        (field(refusal, "url", "Endpoint URL", &html! {
            input type="url" name="url" required value=(entered.map_or("", |e| &e.url)) placeholder="https://"
                aria-invalid=[refusal.invalid("url")] aria-describedby=[refusal.described_by("url")];
        }))
        (field(refusal, "name", "Endpoint name (optional)", &html! {
            input type="text" name="name" maxlength="256" value=(entered.map_or("", |e| &e.name))
                aria-invalid=[refusal.invalid("name")] aria-describedby=[refusal.described_by("name")];
        }))
    }
}

/// An input with its label.
fn field(refusal: Refusal<'_>, name: &str, label: &str, input: &Markup) -> Markup {
    refusal.around(name, &html! { label { (label) (input) } })
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
        &[column("Group"), column("Endpoints"), numbers("Default headers", None), column("Updated"), column("Actions")],
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
        "Delete group {}? This deletes {} and the default headers. Published messages are not affected. New publishes to the \
         group will fail with 404.",
        group.name,
        view::counted(group.endpoints.len(), "endpoint")
    );
    html! {
        a.button href=(send_to(&group.name)) { "Send a message" }
        (view::button(visitor, &format!("{}/delete", page_of(&group.name)), "Delete", Some(&question), &[]))
    }
}

fn nothing() -> Markup {
    view::empty(
        "No URL groups yet",
        &html! {
            p { "Create one below, or with a command:" }
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
        Ok(()) => Ok(back_to(&page_of(&name), "Endpoint added. Messages published from now on go to it, too.")),
        Err(problem) => render_group(&visitor, &name, Some(Refused::Endpoint(entered, problem))).await,
    }
}

/// By both its URL and its name, so that no other one of the same name or URL is meant.
async fn remove(visitor: Visitor, Path(name): Path<String>, Form(entered): Form<Entered>) -> Result<Response, Problem> {
    let body = json!({ "endpoints": [entered.endpoint()] }).to_string().into_bytes();
    visitor.send(Method::DELETE, &format!("{}/endpoints", api_of(&name)), &[], body).await?;
    // The group goes with its last endpoint.
    match visitor.get::<Value>(&api_of(&name)).await {
        Ok(_) => Ok(back_to(&page_of(&name), "Endpoint removed.")),
        Err(problem) if problem.status == StatusCode::NOT_FOUND => {
            Ok(back_to(PAGE, "Endpoint removed. It was the last one, so the group was deleted."))
        }
        Err(problem) => Err(problem),
    }
}

async fn set_headers(
    visitor: Visitor,
    Path(name): Path<String>,
    Form(Headers { headers }): Form<Headers>,
) -> Result<Response, Problem> {
    let sent = match header_lines(HEADERS, &headers) {
        Ok(lines) => {
            let body = json!({ "headers": header_object(lines) }).to_string().into_bytes();
            visitor.send(Method::PATCH, &api_of(&name), &[], body).await
        }
        Err(problem) => Err(problem),
    };
    match sent {
        Ok(_) => Ok(back_to(&page_of(&name), "Default headers saved.")),
        Err(problem) => render_group(&visitor, &name, Some(Refused::Headers(headers, problem))).await,
    }
}

async fn delete(visitor: Visitor, Path(name): Path<String>) -> Result<Response, Problem> {
    visitor.send(Method::DELETE, &api_of(&name), &[], Vec::new()).await?;
    Ok(back_to(PAGE, &format!("Group {name} deleted.")))
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
    let adding = Refusal::new(add_problem.as_ref(), NAMES);
    let setting = Refusal::new(headers_problem.as_ref(), HEADER_NAMES);
    let body = html! {
        p { a href=(PAGE) { "All groups" } }
        div.title {
            h1 { "Group " code { (group.name) } }
            span.quiet {
                "created " (view::time(Timestamp(group.created_at), now))
                ", updated " (view::time(Timestamp(group.updated_at), now))
            }
            div.actions { (actions(visitor, &group)) }
        }
        (endpoint_table(visitor, &group))
        p {
            a href=(messages::listed_by("urlGroup", &group.name)) { "Messages to this group" }
        }
        div.columns {
            section.card {
                h2 { "Add endpoint" }
                (adding.alert())
                form.fields method="post" action={ (page_of(&group.name)) "/add" } {
                    (endpoint_fields(entered.as_ref(), adding))
                    div { (view::submit(visitor, "Add endpoint")) }
                }
                p.hint { "An endpoint with the same name or URL is updated." }
            }
            section.card {
                h2 { "Default headers" }
                (setting.alert())
                form.fields method="post" action={ (page_of(&group.name)) "/headers" } {
                    (field(setting, "headers", &format!("{HEADERS}, one per line"), &html! {
                        textarea name="headers" spellcheck="false" placeholder="Upstash-Retries: 5"
                            aria-invalid=[setting.invalid("headers")] aria-describedby=[setting.described_by("headers")] { (headers) }
                    }))
                    div { button type="submit" disabled[!visitor.may_act()] title=[view::refusal(visitor)] { "Save headers" } }
                }
                p.hint { "They apply to each publish to the group that does not set them itself. Existing schedules keep their headers." }
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
                            true => format!("Remove the last endpoint? This also deletes the group {}.", group.name),
                            false => "Remove this endpoint? New messages to the group will not go to it.".to_owned(),
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
        let lines = header_lines(HEADERS, &format!("\n  {text}\n")).unwrap();
        assert_eq!(
            lines,
            [("Upstash-Retries", "5"), ("Upstash-Forward-X", "a: b"), ("Upstash-Forward-X", "")]
                .map(|(name, value)| (name.to_owned(), value.to_owned()))
        );
        let object = header_object(lines);
        assert_eq!(json!(object), json!({ "Upstash-Forward-X": ["a: b", ""], "Upstash-Retries": ["5"] }));
        assert_eq!(header_lines(HEADERS, &header_text(&object)).unwrap().len(), 3);
    }
}
