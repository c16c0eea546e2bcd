//! What runs that begin again have otherwise than before: a folded piece of a form.

use super::Fields;
use maud::{Markup, html};

/// What can be chosen anew: field, header of the API, label, example. The names keep clear of those of filters, which
/// may stand in the same form.
const SETTINGS: [(&str, &str, &str, &str); 5] = [
    ("withRetries", "Upstash-Retries", "Retries of each step", "as before"),
    ("withRetryDelay", "Upstash-Retry-Delay", "Wait before a retry, in ms", "as before; 1000 * (1 + retried)"),
    ("withDelay", "Upstash-Delay", "Wait before it begins", "none; 10s, 2h"),
    ("withLabel", "Upstash-Label", "Labels, separated by commas", "as before"),
    ("withFailureCallback", "Upstash-Failure-Callback", "Failure callback", "as before; https://…"),
];
/// The key, and its limits, which are one header: field, name in the header, label, example.
const FLOW_KEY: (&str, &str) = ("withFlowKey", "Upstash-Flow-Control-Key");
const FLOW_LIMITS: [(&str, &str, &str, &str); 3] = [
    ("withFlowParallelism", "parallelism", "Parallelism", "at once"),
    ("withFlowRate", "rate", "Rate", "per period"),
    ("withFlowPeriod", "period", "Period", "1s"),
];

/// The headers that say what was filled in; none if nothing was.
pub(super) fn headers(fields: &Fields) -> Vec<(&'static str, String)> {
    let said = |name| Some(fields.one(name).trim()).filter(|value| !value.is_empty());
    let settings = SETTINGS.iter().map(|(field, header, ..)| (*field, *header)).chain([FLOW_KEY]);
    let mut headers: Vec<(&str, String)> =
        settings.filter_map(|(field, header)| Some((header, said(field)?.to_owned()))).collect();
    let limits: Vec<String> =
        FLOW_LIMITS.iter().filter_map(|(field, name, ..)| Some(format!("{name}={}", said(field)?))).collect();
    if !limits.is_empty() {
        headers.push(("Upstash-Flow-Control-Value", limits.join(", ")));
    }
    headers
}

/// Whether this is the name of a field here.
pub(super) fn is_setting(name: &str) -> bool {
    let names = SETTINGS.iter().map(|(name, ..)| *name).chain([FLOW_KEY.0]).chain(FLOW_LIMITS.map(|(name, ..)| name));
    names.into_iter().any(|known| known == name)
}

/// The fields, with what was filled in before, and buttons below them; folded unless something was filled in.
pub(super) fn settings(before: Option<&Fields>, buttons: &Markup) -> Markup {
    let input = |name: &str, label: &str, example: &str| {
        html! {
            label { (label) input name=(name) value=(before.map_or("", |fields| fields.one(name))) placeholder=(example) autocomplete="off" spellcheck="false"; }
        }
    };
    html! {
        details open[before.is_some_and(|fields| !headers(fields).is_empty())] {
            summary { "Resume or restart with other settings" }
            div.settings {
                @for (name, _, label, example) in SETTINGS { (input(name, label, example)) }
                (input(FLOW_KEY.0, "Flow-control key", "as before"))
                @for (name, _, label, example) in FLOW_LIMITS { (input(name, label, example)) }
            }
            p.hint { "What is left empty stays as it was." }
            (buttons)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::extract::RawForm;

    #[test]
    fn what_is_filled_in_becomes_headers() {
        let read = |form: &'static str| headers(&Fields::read(&RawForm(form.into())));
        assert_eq!(read("dlqId=1-1&label=x&withRetries=+&withFlowRate="), []);
        let form = "withRetries=+5+&withRetryDelay=1000&withDelay=10s&withLabel=a,b&withFailureCallback=http://x\
            &withFlowKey=k&withFlowRate=10&withFlowPeriod=1m";
        let expected = [
            ("Upstash-Retries", "5"),
            ("Upstash-Retry-Delay", "1000"),
            ("Upstash-Delay", "10s"),
            ("Upstash-Label", "a,b"),
            ("Upstash-Failure-Callback", "http://x"),
            ("Upstash-Flow-Control-Key", "k"),
            ("Upstash-Flow-Control-Value", "rate=10, period=1m"),
        ];
        assert_eq!(read(form), expected.map(|(name, value)| (name, value.to_owned())));
    }
}
