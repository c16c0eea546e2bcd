//! Which runs: the filters of the API as a form, kept in the URL.

use crate::console::view;
use crate::console::visitor::{Problem, query};
use axum::http::StatusCode;
use maud::{Markup, html};
use posthaste_wire::time::Timestamp;

/// A field of the form.
pub(super) struct Field {
    /// Its name, here and in the API.
    name: &'static str,
    label: &'static str,
    hint: &'static str,
    /// Values and what to call them; none for a text.
    choices: &'static [(&'static str, &'static str)],
}

const fn field(name: &'static str, label: &'static str, hint: &'static str) -> Field {
    Field { name, label, hint, choices: &[] }
}

const fn choice(name: &'static str, label: &'static str, choices: &'static [(&'static str, &'static str)]) -> Field {
    Field { name, label, hint: "", choices }
}

/// The form of a list.
pub(super) struct Form {
    /// Where the list is.
    pub(super) path: &'static str,
    /// Fields that are asked for most.
    common: &'static [Field],
    /// The others.
    others: &'static [Field],
}

const STATES: &[(&str, &str)] = &[
    ("", "any"),
    ("RUN_STARTED", "goes on"),
    ("RUN_SUCCESS", "succeeded"),
    ("RUN_FAILED", "failed"),
    ("RUN_CANCELED", "cancelled"),
    ("STEP_PROGRESS", "has a step in progress"),
    ("STEP_RETRY", "has a step that is retried"),
    ("STEP_FAILED", "has a step that failed"),
    ("STEP_CANCELED", "has a step that was cancelled"),
    ("STEP_SUCCESS", "has a step that is done"),
];

const CALLBACK_STATES: &[(&str, &str)] = &[
    ("", "any"),
    ("CALLBACK_FAIL", "failed"),
    ("CALLBACK_INPROGRESS", "in progress"),
    ("CALLBACK_SUCCESS", "succeeded"),
    ("CALLBACK_CANCELED", "cancelled"),
];

/// Of `/v2/workflows/logs`.
pub(super) const RUNS: Form = Form {
    path: super::PATH,
    common: &[
        choice("state", "State", STATES),
        field("workflowRunId", "Run id", "wfr_…"),
        field("label", "Label", ""),
        field("workflowUrl", "URL, exactly", "https://…"),
    ],
    others: &[
        field("host", "Host", "app.example.com"),
        field("path", "Path", "/api/order"),
        field("flowControlKey", "Flow-control key", ""),
        field("callerIp", "Triggered from", "10.0.0.7"),
        field("messageId", "Message id of a step", "msg_…"),
        field("workflowCreatedAt", "Created at (Unix ms)", "1767225600000"),
        field("fromDate", "Created from (UTC)", ""),
        field("toDate", "Created to (UTC)", ""),
    ],
};

/// Of `/v2/workflows/dlq`.
pub(super) const FAILED: Form = Form {
    path: super::FAILED_PATH,
    common: &[
        field("workflowRunId", "Run id", "wfr_…"),
        field("label", "Label", ""),
        field("workflowUrl", "URL, exactly", "https://…"),
        field("responseStatus", "Last status", "500"),
    ],
    others: &[
        choice("failureFunctionState", "Failure callback", CALLBACK_STATES),
        field("host", "Host", "app.example.com"),
        field("path", "Path", "/api/order"),
        field("flowControlKey", "Flow-control key", ""),
        field("callerIp", "Triggered from", "10.0.0.7"),
        field("workflowCreatedAt", "Created at (Unix ms)", "1767225600000"),
        field("fromDate", "Created from (UTC)", ""),
        field("toDate", "Created to (UTC)", ""),
    ],
};

/// What a bulk cancel cannot be told.
const NOT_FOR_CANCEL: [&str; 2] = ["messageId", "workflowCreatedAt"];

/// What was asked for, as it stands in the URL.
pub(super) struct Filters {
    form: &'static Form,
    pairs: Vec<(&'static str, String)>,
}

impl Filters {
    /// Takes what the form knows from a query or a body; the rest is left alone.
    pub(super) fn read(form: &'static Form, text: &str) -> Filters {
        let known = |name: &str| {
            let fields = form.common.iter().chain(form.others).map(|field| field.name);
            fields.chain(["cursor"]).find(|field| *field == name)
        };
        let pairs = url::form_urlencoded::parse(text.as_bytes());
        let said = pairs.filter_map(|(name, value)| Some((known(&name)?, value.trim().to_owned())));
        Filters { form, pairs: said.filter(|(_, value)| !value.is_empty()).collect() }
    }

    pub(super) fn value(&self, name: &str) -> &str {
        self.pairs.iter().find(|(known, _)| *known == name).map_or("", |(_, value)| value)
    }

    /// Nothing but the page is chosen.
    pub(super) fn is_empty(&self) -> bool {
        self.pairs.iter().all(|(name, _)| *name == "cursor")
    }

    /// As they stand in the URL.
    pub(super) fn pairs(&self) -> Vec<(&str, &str)> {
        self.pairs.iter().map(|(name, value)| (*name, value.as_str())).collect()
    }

    /// The same, from the first page on, as a query.
    pub(super) fn without_page(&self) -> String {
        query(&self.pairs().into_iter().filter(|(name, _)| *name != "cursor").collect::<Vec<_>>())
    }

    /// As the API wants them, with more names and values, which win.
    pub(super) fn for_api(&self, more: &[(&str, &str)]) -> Result<String, Problem> {
        let mut pairs = Vec::new();
        for (name, value) in self.pairs.iter().filter(|(name, _)| more.iter().all(|(other, _)| name != other)) {
            let value = if is_date(name) { millis(value)?.to_string() } else { value.clone() };
            pairs.push((*name, value));
        }
        let said = pairs.iter().map(|(name, value)| (*name, value.as_str()));
        Ok(query(&said.chain(more.iter().copied()).collect::<Vec<_>>()))
    }

    /// As a bulk cancel wants them; says why there can be none.
    pub(super) fn for_cancel(&self, count: &str) -> Result<String, Problem> {
        let refused = |text: String| Problem { status: StatusCode::BAD_REQUEST, text };
        if let Some(name) = NOT_FOR_CANCEL.into_iter().find(|name| !self.value(name).is_empty()) {
            return Err(refused(format!("runs cannot be cancelled by {name}: take that filter away, or tick runs")));
        }
        if !matches!(self.value("state"), "" | "RUN_STARTED") {
            return Err(refused("runs are cancelled in whatever state their steps are: take that filter away".into()));
        }
        let exact = if self.value("workflowUrl").is_empty() { "" } else { "true" };
        self.for_api(&[("state", ""), ("cursor", ""), ("workflowUrlExactMatch", exact), ("count", count)])
    }

    /// In words, for who has to decide.
    pub(super) fn told(&self) -> String {
        let label = |name: &str| {
            let field = self.form.common.iter().chain(self.form.others).find(|field| field.name == name);
            field.map_or("", |field| field.label)
        };
        let told = self.pairs.iter().filter(|(name, _)| *name != "cursor");
        told.map(|(name, value)| format!("{}: {value}", label(name))).collect::<Vec<_>>().join(" · ")
    }

    /// The form.
    pub(super) fn form(&self) -> Markup {
        let is_used = self.form.others.iter().any(|field| !self.value(field.name).is_empty());
        html! {
            form #filters method="get" action=(self.form.path) {
                div.filter-row {
                    @for field in self.form.common { (self.input(field)) }
                    div.actions {
                        button.primary type="submit" { "Show" }
                        @if !self.is_empty() { a.button href=(self.form.path) { "All" } }
                    }
                }
                details.text open[is_used] {
                    summary { "More filters" }
                    div.filter-row { @for field in self.form.others { (self.input(field)) } }
                    p.hint { "Several values with commas mean “or”." }
                }
            }
        }
    }

    fn input(&self, field: &Field) -> Markup {
        let (is_date, value) = (is_date(field.name), self.value(field.name));
        html! {
            label { (field.label)
                @if field.choices.is_empty() {
                    input type=(if is_date { "datetime-local" } else { "text" }) step=[is_date.then_some("1")]
                        name=(field.name) value=(if is_date { date_shown(value) } else { value.to_owned() })
                        placeholder=(field.hint) autocomplete="off";
                } @else {
                    select name=(field.name) {
                        @for (choice, label) in field.choices {
                            option value=(choice) selected[value == *choice] { (label) }
                        }
                    }
                }
            }
        }
    }

    /// Hidden fields that bring the same filters to a form that acts.
    pub(super) fn hidden(&self) -> Markup {
        html! {
            @for (name, value) in self.pairs.iter().filter(|(name, _)| *name != "cursor") {
                input type="hidden" name=(name) value=(value);
            }
        }
    }
}

fn is_date(name: &str) -> bool {
    matches!(name, "fromDate" | "toDate")
}

/// Unix milliseconds of `2026-11-16T12:00:00`, which is UTC, or of a number of them.
fn millis(text: &str) -> Result<u64, Problem> {
    if let Ok(millis) = text.parse() {
        return Ok(millis);
    }
    let time = text.trim_end_matches('Z').parse::<jiff::civil::DateTime>();
    let time = time.ok().and_then(|time| time.to_zoned(jiff::tz::TimeZone::UTC).ok());
    let millis = time.and_then(|time| u64::try_from(time.timestamp().as_millisecond()).ok());
    millis.ok_or_else(|| Problem {
        status: StatusCode::BAD_REQUEST,
        text: format!("{text:?} is not a time like 2026-11-16T12:00:00"),
    })
}

/// A time as an input of the browser wants it.
fn date_shown(text: &str) -> String {
    match text.parse::<u64>() {
        Ok(millis) => view::utc(Timestamp(millis)).split('.').next().unwrap_or_default().to_owned(),
        Err(_) => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_form_becomes_a_query_of_the_api() {
        let filters =
            Filters::read(&RUNS, "state=RUN_FAILED&label=a%2Cb&fromDate=2026-11-16T12:00&x=y&path=+&cursor=1-2");
        assert_eq!(
            filters.for_api(&[("trimBody", "0")]).unwrap(),
            "state=RUN_FAILED&label=a%2Cb&fromDate=1794830400000&cursor=1-2&trimBody=0"
        );
        assert_eq!(
            filters.for_api(&[("cursor", ""), ("state", "RUN_STARTED")]).unwrap(),
            "label=a%2Cb&fromDate=1794830400000&state=RUN_STARTED"
        );
        assert_eq!(filters.without_page(), "state=RUN_FAILED&label=a%2Cb&fromDate=2026-11-16T12%3A00");
        assert_eq!(filters.told(), "State: RUN_FAILED · Label: a,b · Created from (UTC): 2026-11-16T12:00");
        assert!(Filters::read(&RUNS, "toDate=soon").for_api(&[]).is_err());
        assert!(Filters::read(&RUNS, "cursor=1-2&responseStatus=500").is_empty(), "that is one of the DLQ");
    }

    #[test]
    fn a_cancel_hits_what_the_list_shows_or_nothing() {
        let cancel = |text: &str| Filters::read(&RUNS, text).for_cancel("500").map_err(|problem| problem.text);
        assert_eq!(cancel("").unwrap(), "count=500");
        assert_eq!(
            cancel("workflowUrl=http%3A%2F%2Fa&state=RUN_STARTED&cursor=1-2&toDate=7").unwrap(),
            "workflowUrl=http%3A%2F%2Fa&toDate=7&workflowUrlExactMatch=true&count=500"
        );
        for refused in ["state=RUN_FAILED", "state=STEP_RETRY", "messageId=msg_1", "workflowCreatedAt=7"] {
            assert!(cancel(refused).is_err(), "{refused}");
        }
    }
}
