//! What runs that begin again have otherwise than before: a folded piece of a form.

use super::Fields;
use crate::console::refusal::{Name, Refusal};
use crate::console::visitor::Problem;
use maud::{Markup, html};

/// What can be chosen anew: field, header of the API, label, example. The names keep clear of those of filters, which
/// may stand in the same form.
const SETTINGS: [(&str, &str, &str, &str); 5] = [
    ("withRetries", "Upstash-Retries", "Retries per step", "unchanged"),
    ("withRetryDelay", "Upstash-Retry-Delay", "Retry delay (ms)", "unchanged; for example 1000 * (1 + retried)"),
    ("withDelay", "Upstash-Delay", "Start delay", "none; for example 10s or 2h"),
    ("withLabel", "Upstash-Label", "Labels, separated by commas", "unchanged"),
    ("withFailureCallback", "Upstash-Failure-Callback", "Failure callback", "unchanged; for example https://…"),
];
/// The key, and its limits, which are one header: field, name in the header, label, example.
const FLOW_KEY: (&str, &str) = ("withFlowKey", "Upstash-Flow-Control-Key");
const FLOW_LIMITS: [(&str, &str, &str, &str); 3] = [
    ("withFlowParallelism", "parallelism", "Parallelism", "unchanged"),
    ("withFlowRate", "rate", "Rate", "unchanged"),
    ("withFlowPeriod", "period", "Period", "unchanged; for example 1m"),
];

/// Other words of refusals for fields.
const OTHER_NAMES: [Name; 4] = [
    ("maxRetries", "withRetries"),
    ("maxDelay", "withDelay"),
    ("Upstash-Flow-Control-Key", "withFlowKey"),
    ("period must be", "withFlowPeriod"),
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
pub(super) fn settings(before: Option<&Fields>, problem: Option<&Problem>, buttons: &Markup) -> Markup {
    let names: Vec<Name> = SETTINGS.iter().map(|(field, header, ..)| (*header, *field)).chain(OTHER_NAMES).collect();
    let refusal = Refusal::new(problem, &names);
    let input = |name: &str, label: &str, example: &str| {
        let field = html! {
            label { (label)
                input name=(name) value=(before.map_or("", |fields| fields.one(name))) placeholder=(example) autocomplete="off"
                    spellcheck="false" aria-invalid=[refusal.invalid(name)] aria-describedby=[refusal.described_by(name)];
            }
        };
        refusal.around(name, &field)
    };
    html! {
        details open[before.is_some_and(|fields| !headers(fields).is_empty())] {
            summary { "Resume or restart with other settings" }
            div.settings {
                @for (name, _, label, example) in SETTINGS { (input(name, label, example)) }
                (input(FLOW_KEY.0, "Flow-control key", "unchanged"))
                @for (name, _, label, example) in FLOW_LIMITS { (input(name, label, example)) }
            }
            p.hint { "Empty fields stay unchanged." }
            (buttons)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::extract::RawForm;

    #[test]
    fn fields_become_headers() {
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
