//! Runs that have failed: their DLQ.

use super::again;
use super::data::{Failed, FailedPage};
use super::filters::{FAILED, Filters};
use super::run::callback_state;
use super::{FAILED_PATH, Fields, PATH, counted, cut, run_path, tabs};
use crate::api::Counted;
use crate::console::question::{self, Question};
use crate::console::visitor::{Problem, query, segment};
use crate::console::{Visitor, back_to, view};
use axum::extract::{Path, RawForm, RawQuery};
use axum::http::{Method, StatusCode};
use axum::response::{IntoResponse, Response};
use maud::{Markup, html};
use posthaste_engine::limits::RUNS_AGAIN_MAX;
use posthaste_wire::time::Timestamp;
use serde_json::Value;

/// Failed runs on a page.
const COUNT: &str = "50";
/// Pages that are read to say how many runs an action hits; of more, it says "at least".
const PAGES_COUNTED: usize = 10;
/// Pages of failed runs that one click acts on; of more it says so, and another click goes on.
const ROUNDS_MAX: usize = 20;

/// What can be done to failed runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    Resume,
    Restart,
    Delete,
    /// Calls the failure callback once more.
    Callback,
    /// Stops calling it.
    CancelCallback,
}

impl Action {
    fn named(name: &str) -> Option<Action> {
        Some(match name {
            "resume" => Action::Resume,
            "restart" => Action::Restart,
            "delete" => Action::Delete,
            "callback" => Action::Callback,
            "cancel-callback" => Action::CancelCallback,
            _ => return None,
        })
    }

    /// What was done, before how many.
    fn done(self) -> &'static str {
        match self {
            Action::Resume => "Resumed",
            Action::Restart => "Restarted",
            Action::Delete => "Deleted",
            Action::Callback => "Retried the failure callback of",
            Action::CancelCallback => "Cancelled the failure callback of",
        }
    }
}

/// What each action means, for buttons about many: its path, its name, the question before how many, what it does.
const MANY: [(&str, &str, &str, &str); 4] = [
    ("resume", "Resume", "Resume", "Each continues as a new run from the step that failed."),
    ("restart", "Restart", "Restart", "Each starts again as a new run and executes all its steps."),
    ("callback", "Retry failure callback", "Retry the failure callback of", "Only failed callbacks are called again."),
    ("delete", "Delete", "Delete", "Deleted runs cannot be resumed or restarted. Their logs stay."),
];
/// The filter that means those whose failure callback is called again.
const CALLBACK_FAILED: (&str, &str) = ("failureFunctionState", "CALLBACK_FAIL");

/// What narrows the filters to the failed runs that an action is about; `None` if the filters mean none of those.
fn meant(action: Option<Action>, filters: &Filters) -> Option<&'static [(&'static str, &'static str)]> {
    let (name, failed) = CALLBACK_FAILED;
    let asked = filters.value(name);
    match action {
        Some(Action::Callback) if asked.is_empty() || asked.split(',').any(|state| state.trim() == failed) => {
            Some(&[CALLBACK_FAILED])
        }
        Some(Action::Callback) => None,
        _ => Some(&[]),
    }
}

async fn page(visitor: &Visitor, filters: &Filters, more: &[(&str, &str)]) -> Result<FailedPage, Problem> {
    let mut asked = vec![("trimBody", "0")];
    asked.extend(more);
    visitor.get(&format!("/v2/workflows/dlq?{}", filters.for_api(&asked)?)).await
}

pub(super) async fn show(visitor: Visitor, RawQuery(asked): RawQuery) -> Result<Markup, Problem> {
    let filters = Filters::read(&FAILED, &asked.unwrap_or_default());
    let found = page(&visitor, &filters, &[("count", COUNT)]).await;
    let body = html! {
        div.title {
            h1 { "Failed runs" }
            (tabs(FAILED_PATH))
            div.actions {
                a.button href={ (FAILED_PATH) "/all?" (filters.without_page()) } {
                    @if filters.is_empty() { "Act on all…" } @else { "Act on all matching…" }
                }
            }
        }
        section.card aria-label="Filters" { (filters.form()) }
        @match &found {
            Ok(found) => (listed(&visitor, &filters, found)),
            Err(problem) => p.problem role="alert" { (problem.text) },
        }
    };
    Ok(view::page(&visitor.frame("Failed runs"), &body))
}

fn listed(visitor: &Visitor, filters: &Filters, found: &FailedPage) -> Markup {
    html! {
        @if found.messages.is_empty() {
            (nothing(filters, found.cursor.is_some()))
        } @else {
            div #failed.scroll { (table(visitor, &found.messages, true)) }
            form #selection.fields method="post" action={ (FAILED_PATH) "/resume" } {
                input type="hidden" name="next" value=(visitor.here);
                (again::settings(None, None, &html! {}))
                div.actions {
                    span.quiet { "Selected runs:" }
                    (many_buttons(visitor, false))
                }
            }
        }
        (view::pager(FAILED_PATH, &filters.pairs(), found.cursor.as_deref()))
    }
}

/// Buttons of one form, each with its own action.
fn many_buttons(visitor: &Visitor, are_disabled: bool) -> Markup {
    html! {
        @for (path, name, ..) in MANY {
            button.danger[path == "delete"] type="submit" formaction={ (FAILED_PATH) "/" (path) }
                data-ask={ (FAILED_PATH) "/question/" (path) }
                disabled[!visitor.may_act() || are_disabled] title=[view::refusal(visitor)] { (name) }
        }
    }
}

/// Buttons of a form whose settings are filled in.
fn again_buttons(visitor: &Visitor) -> Markup {
    html! {
        div.actions {
            @for (path, name) in [("resume", "Resume with these settings"), ("restart", "Restart with these settings")] {
                button type="submit" formaction={ (FAILED_PATH) "/" (path) } disabled[!visitor.may_act()]
                    title=[view::refusal(visitor)] { (name) }
            }
        }
    }
}

/// A form that begins a failed run again with other settings.
pub(super) fn with_other_settings(visitor: &Visitor, dlq_id: &str) -> Markup {
    html! {
        form.card.fields #again method="post" action={ (FAILED_PATH) "/resume" } {
            input type="hidden" name="dlqId" value=(dlq_id);
            input type="hidden" name="next" value=(visitor.here);
            (again::settings(None, None, &again_buttons(visitor)))
        }
    }
}

fn nothing(filters: &Filters, has_more: bool) -> Markup {
    if has_more {
        return view::empty("No matches yet", &html! { p { "Go to the next page to search older runs." } });
    }
    if !filters.is_empty() {
        return view::empty("No failed runs match", &html! { p { a href=(FAILED_PATH) { "Show all failed runs" } } });
    }
    let hint = html! {
        p { "A run appears here when all attempts of a step fail. It stays until you resume, restart or delete it. " a href=(PATH) { "Show all runs" } }
    };
    view::empty("No failed runs", &hint)
}

fn table(visitor: &Visitor, runs: &[Failed], has_buttons: bool) -> Markup {
    let now = visitor.now();
    html! {
        table {
            caption.skip { "Failed runs, newest failure first" }
            thead { tr {
                @if has_buttons { th.tight scope="col" { input type="checkbox" aria-label="Select all" data-select-all="dlqId"; } }
                th scope="col" { "Run" } th scope="col" { "URL · labels" } th scope="col" { "Failed" } th scope="col" { "Cause" }
                th scope="col" { "Failure callback" } @if has_buttons { th scope="col" { "Actions" } }
            } }
            tbody { @for run in runs { (row(visitor, run, now, has_buttons)) } }
        }
    }
}

fn row(visitor: &Visitor, run: &Failed, now: Timestamp, has_buttons: bool) -> Markup {
    html! {
        tr {
            @if has_buttons {
                td.tight { input type="checkbox" form="selection" name="dlqId" value=(run.dlq_id) aria-label={ "Select " (run.id) }; }
            }
            td { a.mono.cut.id href=(run_path(&run.id, Some(run.created_at))) title=(run.id) { (run.id) } }
            td { (cut(&run.url)) @for label in &run.labels { span.cut.hint title=(label) { (label) } } }
            td.tight { @if let Some(at) = run.failed_at() { (view::time(at, now)) } }
            td { (cut(&run.cause())) }
            td.tight {
                @match &run.failure_function_state {
                    Some(state) => { (callback_state(state)) " " @if has_buttons { (callback_actions(visitor, &run.dlq_id, state)) } }
                    None => span.quiet { "none" },
                }
            }
            @if has_buttons { td.acts { div.actions { (actions(visitor, &run.dlq_id)) } } }
        }
    }
}

/// What can be done about one failed run.
pub(super) fn actions(visitor: &Visitor, dlq_id: &str) -> Markup {
    let act = |path: &str, name: &str, question: Option<&str>| {
        view::button(visitor, &format!("{FAILED_PATH}/{path}"), name, question, &[("dlqId", dlq_id)])
    };
    html! {
        (act("resume", "Resume", None))
        (act("restart", "Restart", Some("Restart this run? A new run starts and executes all its steps.")))
        (act("delete", "Delete", Some("Delete this failed run? Deleted runs cannot be resumed or restarted. Its log stays.")))
    }
}

/// What can be done about a failure callback.
pub(super) fn callback_actions(visitor: &Visitor, dlq_id: &str, state: &str) -> Markup {
    let (path, name) = match state {
        "CALLBACK_FAIL" => ("callback", "Retry callback"),
        "CALLBACK_INPROGRESS" => ("cancel-callback", "Stop callback"),
        _ => return html! {},
    };
    view::button(visitor, &format!("{FAILED_PATH}/{path}"), name, None, &[("dlqId", dlq_id)])
}

/// The failed runs that match, as many as are counted.
async fn first_pages(visitor: &Visitor, filters: &Filters, more: &[(&str, &str)]) -> Result<FailedPage, Problem> {
    let mut found = page(visitor, filters, &[more, &[("cursor", "")]].concat()).await?;
    for _ in 1..PAGES_COUNTED {
        let Some(cursor) = found.cursor.take() else { break };
        let next = page(visitor, filters, &[more, &[("cursor", &*cursor)]].concat()).await?;
        found.messages.extend(next.messages);
        found.cursor = next.cursor;
    }
    Ok(found)
}

/// The question before something is done to many: it counts them now.
pub(super) async fn question(visitor: Visitor, Path(path): Path<String>, RawQuery(asked): RawQuery) -> Question {
    Question::of(question_of(&visitor, &path, &asked.unwrap_or_default()).await)
}

async fn question_of(visitor: &Visitor, path: &str, asked: &str) -> Result<String, Problem> {
    let Some((_, _, ask, meaning)) = MANY.into_iter().find(|(known, ..)| *known == path) else {
        return Err(Problem { status: StatusCode::NOT_FOUND, text: "Unknown action.".to_owned() });
    };
    let fields = Fields::parse(asked.as_bytes());
    let which = if fields.one("matching").is_empty() {
        question::ticked(fields.ticked("dlqId").len(), "failed run")?
    } else {
        let filters = Filters::read(&FAILED, asked);
        let counted = match meant(Action::named(path), &filters) {
            Some(more) => {
                let found = first_pages(visitor, &filters, more).await?;
                Counted { count: found.messages.len(), has_more: found.cursor.is_some() }
            }
            None => Counted { count: 0, has_more: false },
        };
        question::how_many(counted, "failed run")?
    };
    Ok(format!("{ask} {which}? {meaning}"))
}

/// Before something is done to many: to which.
pub(super) async fn ask(visitor: Visitor, RawQuery(asked): RawQuery) -> Result<Markup, Problem> {
    let filters = Filters::read(&FAILED, &asked.unwrap_or_default());
    let found = first_pages(&visitor, &filters, &[]).await?;
    let count = found.messages.len();
    let back = format!("{FAILED_PATH}?{}", filters.without_page());
    let body = html! {
        div.title { h1 { "Act on failed runs" } }
        section.card {
            @if filters.is_empty() {
                p { strong { "All failed runs of this tenant" } }
            } @else {
                p { "Failed runs with " strong { (filters.in_words()) } }
            }
            p #hit {
                @if found.cursor.is_some() { "More than " }
                @if count == 0 { "No failed runs match." }
                @else { (counted(count, "failed run")) (if count == 1 { " matches." } else { " match." }) }
            }
            form.fields method="post" action={ (FAILED_PATH) "/resume" } {
                (filters.hidden())
                input type="hidden" name="matching" value="true";
                input type="hidden" name="next" value=(back);
                (again::settings(None, None, &html! {}))
                div.actions { (many_buttons(&visitor, count == 0)) a.button href=(back) { "Back to the list" } }
            }
        }
        @if count > 0 { div.scroll { (table(&visitor, &found.messages, false)) } }
    };
    Ok(view::page(&visitor.frame("Act on failed runs"), &body))
}

pub(super) async fn act(visitor: Visitor, Path(name): Path<String>, form: RawForm) -> Result<Response, Problem> {
    let Some(action) = Action::named(&name) else { return Ok(view::no_page().await) };
    let fields = Fields::read(&form);
    let settings = again::headers(&fields);
    let order = Order { action, settings: settings.iter().map(|(name, value)| (*name, value.as_str())).collect() };
    match order.carry_out(&visitor, &fields, &form).await {
        Err(problem) if !order.settings.is_empty() => Ok(refused(&visitor, &form, &problem)),
        done => done,
    }
}

/// What the API refuses, beside what was filled in.
fn refused(visitor: &Visitor, form: &RawForm, problem: &Problem) -> Response {
    let meant = url::form_urlencoded::parse(&form.0).filter(|(name, _)| !again::is_setting(name));
    let body = html! {
        div.title { h1 { "Resume or restart failed runs" } }
        p.problem role="alert" { (problem.text) }
        p { a href=(FAILED_PATH) { "Back to failed runs" } }
        form.card.fields method="post" action={ (FAILED_PATH) "/resume" } {
            @for (name, value) in meant { input type="hidden" name=(name) value=(value); }
            (again::settings(Some(&Fields::read(form)), Some(problem), &again_buttons(visitor)))
        }
    };
    (problem.status, view::page(&visitor.frame("Resume or restart failed runs"), &body)).into_response()
}

/// What is done, and with which headers.
struct Order<'a> {
    action: Action,
    settings: Vec<(&'a str, &'a str)>,
}

/// What an order has done.
#[derive(Default)]
struct Done {
    /// Something for each run on which it has acted.
    each: Vec<Value>,
    /// Why it has not acted on the others.
    stopped: Option<String>,
}

impl Order<'_> {
    async fn carry_out(&self, visitor: &Visitor, fields: &Fields, form: &RawForm) -> Result<Response, Problem> {
        let (action, next) = (self.action, fields.one("next"));
        if !fields.one("matching").is_empty() {
            let filters = Filters::read(&FAILED, &String::from_utf8_lossy(&form.0));
            let (done, is_all) = self.on_matching(visitor, &filters).await?;
            let rest =
                if is_all || done.stopped.is_some() { "" } else { " More runs match. Repeat the action to continue." };
            return Ok(back_to(next, &format!("{}{rest}", self.said(&done))));
        }
        // Without an id the API would be asked to act on everything.
        let ids = fields.ticked("dlqId");
        if ids.is_empty() {
            return Ok(back_to(next, &question::none_ticked("failed run")));
        }
        let done = self.on(visitor, &ids).await?;
        match (&done.each[..], &ids[..]) {
            // There is one new run to look at.
            ([run], [_]) if matches!(action, Action::Resume | Action::Restart) => {
                let id = run["workflowRunId"].as_str().unwrap_or_default();
                let path = run_path(id, run["workflowCreatedAt"].as_u64());
                Ok(back_to(&path, &format!("{}. This is the new run.", action.done())))
            }
            ([_], [_]) if action == Action::Delete && next.starts_with(&format!("{PATH}/runs/")) => {
                Ok(back_to(FAILED_PATH, "Deleted 1 failed run."))
            }
            _ => Ok(back_to(next, &self.said(&done))),
        }
    }

    fn said(&self, done: &Done) -> String {
        let said = format!("{} {}.", self.action.done(), counted(done.each.len(), "failed run"));
        match &done.stopped {
            Some(why) => format!("{said} Stopped: {why}."),
            None => said,
        }
    }

    /// Acts on these failed runs.
    async fn on(&self, visitor: &Visitor, ids: &[&str]) -> Result<Done, Problem> {
        let (mut done, mut stopped) = (Vec::new(), None);
        match self.action {
            Action::Resume | Action::Restart => {
                let verb = if self.action == Action::Resume { "resume" } else { "restart" };
                for some in ids.chunks(RUNS_AGAIN_MAX) {
                    let path = format!("/v2/workflows/dlq/{verb}?{}", named(some));
                    let answer = match visitor.send(Method::POST, &path, &self.settings, Vec::new()).await {
                        Err(problem) if !done.is_empty() => {
                            stopped = Some(problem.text);
                            break;
                        }
                        answer => answer?,
                    };
                    done.extend(answer["workflowRuns"].as_array().cloned().unwrap_or_default());
                    stopped = answer["error"].as_str().map(str::to_owned);
                    if stopped.is_some() {
                        break;
                    }
                }
            }
            Action::Delete => {
                let path = format!("/v2/workflows/dlq?{}", named(ids));
                let answer = visitor.send(Method::DELETE, &path, &[], Vec::new()).await?;
                done.resize(answer["deleted"].as_u64().unwrap_or_default() as usize, Value::Null);
            }
            Action::Callback | Action::CancelCallback => {
                let method = if self.action == Action::Callback { Method::POST } else { Method::DELETE };
                for id in ids {
                    let path = format!("/v2/workflows/dlq/callback/{}", segment(id));
                    match visitor.send(method.clone(), &path, &[], Vec::new()).await {
                        Ok(answer) => done.push(answer),
                        // So the API says that it has stopped.
                        Err(Problem { status: StatusCode::FOUND, .. }) => done.push(Value::Null),
                        // Of several, some may not have failed to be told of.
                        Err(Problem { status: StatusCode::BAD_REQUEST, .. }) if ids.len() > 1 => {}
                        Err(problem) => return Err(problem),
                    }
                }
            }
        }
        Ok(Done { each: done, stopped })
    }

    /// Acts on what matches, a page at a time, and says whether that was all. The list goes from new to old, so what
    /// fails again meanwhile is not met again.
    async fn on_matching(&self, visitor: &Visitor, filters: &Filters) -> Result<(Done, bool), Problem> {
        let mut done = Done::default();
        let Some(narrowed) = meant(Some(self.action), filters) else { return Ok((done, true)) };
        let mut cursor = String::new();
        for _ in 0..ROUNDS_MAX {
            let more = [narrowed, &[("cursor", cursor.as_str()), ("count", COUNT)]].concat();
            let found = page(visitor, filters, &more).await?;
            let ids: Vec<&str> = found.messages.iter().map(|run| run.dlq_id.as_str()).collect();
            if !ids.is_empty() {
                let Done { each, stopped } = self.on(visitor, &ids).await?;
                done.each.extend(each);
                done.stopped = stopped;
            }
            if done.stopped.is_some() {
                return Ok((done, false));
            }
            match found.cursor {
                Some(next) => cursor = next,
                None => return Ok((done, true)),
            }
        }
        Ok((done, false))
    }
}

fn named(ids: &[&str]) -> String {
    query(&ids.iter().map(|id| ("dlqIds", *id)).collect::<Vec<_>>())
}
