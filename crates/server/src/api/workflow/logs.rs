//! `/v2/workflows/events` and `/v2/workflows/logs`: runs with their steps, or what happened to them line by line.

use super::events;
use super::selection::{self, States};
use super::shape::{self, View, run_state};
use super::steps::{self, Group, Standing, StepState};
use crate::api::auth::Reader;
use crate::api::error::ApiError;
use crate::api::params::Params;
use crate::api::pieces::Pieces;
use crate::api::response::answer;
use crate::api::viewer::Viewer;
use crate::app::App;
use axum::extract::State;
use axum::response::Response;
use posthaste_engine::limits::{LOG_PAGE_MAX, PAGE_BYTES_MAX, RUN_PAGE_MAX};
use posthaste_engine::workflow::{Record, Workflow};
use posthaste_store::{Order, Page, PageRequest, Part, RunFilter, Store, StoreError};
use posthaste_wire::id::{Position, TenantId};
use posthaste_wire::time::Timestamp;
use serde_json::{Value, json};
use std::sync::Arc;

/// Pages of runs that one page of a log may read; its cursor goes on.
const RUN_PAGES_MAX: usize = 10;

/// Lines, or with `groupBy` runs.
pub(in crate::api) async fn events(
    caller: Reader,
    State(app): State<Arc<App>>,
    params: Params,
) -> Result<Response, ApiError> {
    let viewer = caller.viewer(&app);
    match params.one("groupBy")? {
        None => list_lines(&app, viewer, &params).await,
        Some("workflowRunId") => list_runs(&app, viewer, &params).await,
        Some(other) => Err(ApiError::invalid(format!("groupBy {other} is not supported; accepted is workflowRunId"))),
    }
}

/// Runs.
pub(in crate::api) async fn logs(
    caller: Reader,
    State(app): State<Arc<App>>,
    params: Params,
) -> Result<Response, ApiError> {
    list_runs(&app, caller.viewer(&app), &params).await
}

async fn list_runs(app: &App, viewer: Viewer, params: &Params) -> Result<Response, ApiError> {
    let view = View { trim_body: params.trim_body()?, now: app.clock.now(), viewer };
    let (states, filter) = (selection::states(params)?, selection::of_logs(params)?);
    let has_usage = params.boolean("usage")?;
    let page = params.page(RUN_PAGE_MAX, RUN_PAGE_MAX)?;
    let limits = has_usage.then_some(app.config.quotas.workflow);
    let make = move |store: &dyn Store| {
        let Page { entries, next } = runs_in(store, viewer.tenant, filter, &states, &page, view.now)?;
        let mut pieces = Pieces::default();
        pieces.raw("{\"runs\":[");
        for (place, record) in entries.into_iter().enumerate() {
            let mut run = shape::run(&record, view);
            if let Some(limits) = &limits {
                run["usage"] = shape::usage(&record.workflow, limits);
            }
            drop(record);
            pieces.raw(if place == 0 { "" } else { "," });
            pieces.value(&run);
        }
        pieces.raw("]");
        if let Some(next) = next {
            pieces.raw(&format!(",\"cursor\":\"{next}\""));
        }
        pieces.raw("}");
        Ok(Ok(pieces.into()))
    };
    answer(app, viewer.tenant, make).await
}

/// One page of runs that are in one of these states, or have a step in one.
fn runs_in(
    store: &dyn Store,
    tenant: TenantId,
    filter: RunFilter,
    states: &States,
    page: &PageRequest,
    now: Timestamp,
) -> Result<Page<Record>, StoreError> {
    let States { runs, steps } = states;
    if steps.is_empty() {
        return store.list_runs(tenant, &RunFilter { states: runs.clone(), ..filter }, page);
    }
    let is_wanted = |workflow: &Workflow| runs.contains(&workflow.run.state) || has_step_in(workflow, steps, now);
    let mut found = Page { entries: Vec::new(), next: page.cursor };
    let mut bytes = 0;
    for _ in 0..RUN_PAGES_MAX {
        let request = PageRequest { cursor: found.next, ..page.clone() };
        let part = store.list_runs(tenant, &filter, &request)?;
        for record in part.entries {
            let is_full = found.entries.len() == page.count || bytes > PAGE_BYTES_MAX as u64;
            if is_full {
                return Ok(found);
            }
            found.next = Some(position(&record));
            if is_wanted(&record.workflow) {
                bytes += record.read_bytes();
                found.entries.push(record);
            }
        }
        found.next = part.next;
        if found.next.is_none() {
            break;
        }
    }
    Ok(found)
}

/// Where a run stands in the list of runs.
fn position(record: &Record) -> Position {
    let run = &record.workflow.run;
    Position { at: run.created_at, n: run.no.0 }
}

fn has_step_in(workflow: &Workflow, states: &[StepState], now: Timestamp) -> bool {
    let in_group = |group: &Group<'_>| match group {
        Group::Next(entries) => entries.iter().any(|entry| states.contains(&Standing::of_delivery(entry, now).state)),
        known => known.items().iter().any(|item| states.contains(&item.standing(&workflow.run, now).state)),
    };
    steps::groups(workflow, now).iter().any(in_group)
}

/// Where a page of lines starts: behind a run, or behind some of its lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct LineCursor {
    /// The run.
    run: Position,
    /// How many of its lines, from the oldest on, are still to be shown.
    left: Option<usize>,
}

impl LineCursor {
    /// Reads what [`LineCursor::text`] wrote.
    fn parse(text: &str) -> Option<LineCursor> {
        match text.split('-').count() {
            3 => {
                let (run, left) = text.rsplit_once('-')?;
                Some(LineCursor { run: run.parse().ok()?, left: Some(left.parse().ok()?) })
            }
            _ => Some(LineCursor { run: text.parse().ok()?, left: None }),
        }
    }

    fn text(self) -> String {
        match self.left {
            Some(left) => format!("{}-{left}", self.run),
            None => self.run.to_string(),
        }
    }

    /// Where the list of runs must go on so that this one comes first, if some of it is left.
    fn runs_from(self) -> Position {
        match self.left {
            Some(_) => Position { n: self.run.n.saturating_add(1), ..self.run },
            None => self.run,
        }
    }
}

/// Which lines of the runs are wanted, and how many.
struct LineRequest {
    states: Vec<&'static str>,
    filter: RunFilter,
    cursor: Option<LineCursor>,
    count: usize,
    view: View,
}

async fn list_lines(app: &App, viewer: Viewer, params: &Params) -> Result<Response, ApiError> {
    let view = View { trim_body: params.trim_body()?, now: app.clock.now(), viewer };
    let States { runs, steps } = selection::states(params)?;
    let states = runs.into_iter().map(run_state).chain(steps.into_iter().map(StepState::name)).collect();
    let count = match params.number("count", 1)? {
        None => LOG_PAGE_MAX,
        Some(count) => usize::try_from(count).unwrap_or(LOG_PAGE_MAX).min(LOG_PAGE_MAX),
    };
    let cursor = match params.one("cursor")?.filter(|text| !text.is_empty()) {
        None => None,
        Some(text) => {
            let unknown = || ApiError::invalid("cursor is invalid; use the cursor of the previous page");
            Some(LineCursor::parse(text).ok_or_else(unknown)?)
        }
    };
    let request = LineRequest { states, filter: selection::of_logs(params)?, cursor, count, view };
    let make = move |store: &dyn Store| {
        let (lines, next) = lines_of(store, viewer.tenant, &request)?;
        let mut answer = json!({ "events": lines });
        if let Some(next) = next {
            answer["cursor"] = next.text().into();
        }
        Ok(Ok(Pieces::of(&answer).into()))
    };
    answer(app, viewer.tenant, make).await
}

/// The lines of the newest run first, each run's newest line first: a run that goes on for long stays where it began.
fn lines_of(
    store: &dyn Store,
    tenant: TenantId,
    request: &LineRequest,
) -> Result<(Vec<Value>, Option<LineCursor>), StoreError> {
    let LineRequest { states, filter, cursor, count, view } = request;
    let is_wanted = |line: &events::Line| {
        (states.is_empty() || states.contains(&line.state))
            && (filter.messages.is_empty() || line.message.is_some_and(|id| filter.messages.contains(&id)))
    };
    let mut taken = Vec::new();
    let mut bytes = 0;
    let mut from = cursor.map(LineCursor::runs_from);
    for _ in 0..RUN_PAGES_MAX {
        let part = if view.trim_body == Some(0) { Part::Head } else { Part::Whole };
        let page = PageRequest { part, ..PageRequest::new(from, RUN_PAGE_MAX, Order::LatestFirst) };
        let page = store.list_runs(tenant, filter, &page)?;
        for record in &page.entries {
            let run = position(record);
            let left = cursor.filter(|cursor| cursor.run == run).and_then(|cursor| cursor.left).unwrap_or(usize::MAX);
            let tail = events::tail(events::lines(record, *view), left, count - taken.len(), is_wanted);
            taken.extend(tail.lines);
            bytes += record.read_bytes() as usize;
            let left = Some(tail.left).filter(|left| *left > 0);
            if left.is_some() || taken.len() == *count || bytes > PAGE_BYTES_MAX {
                return Ok((taken, Some(LineCursor { run, left })));
            }
        }
        from = page.next;
        if from.is_none() {
            return Ok((taken, None));
        }
    }
    Ok((taken, from.map(|run| LineCursor { run, left: None })))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cursors_of_lines_are_read_as_they_were_written() {
        let run = Position { at: Timestamp(1_767_225_600_000), n: 77 };
        for (cursor, text) in [
            (LineCursor { run, left: None }, "1767225600000-77"),
            (LineCursor { run, left: Some(3) }, "1767225600000-77-3"),
        ] {
            assert_eq!(cursor.text(), text);
            assert_eq!(LineCursor::parse(text), Some(cursor));
        }
        for wrong in ["", "x", "1-2-x", "1-2-3-4", "1"] {
            assert_eq!(LineCursor::parse(wrong), None, "{wrong}");
        }
        assert_eq!(LineCursor { run, left: Some(3) }.runs_from(), Position { n: 78, ..run });
    }
}
