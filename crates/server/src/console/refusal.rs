//! A form that was refused: the reason stands above the form, and once more at the field that it names.

use super::view;
use super::visitor::Problem;
use axum::http::StatusCode;
use maud::{Markup, html};

/// What refusals call a field, and its name in the form. `Upstash-*` is any header that has no field of its own.
pub(super) type Name = (&'static str, &'static str);

/// Why a form was refused, if it was.
#[derive(Clone, Copy)]
pub(super) struct Refusal<'a> {
    problem: Option<&'a Problem>,
    field: Option<&'static str>,
}

impl<'a> Refusal<'a> {
    /// Finds the field that the reason names; if it names several, the first of these names counts.
    pub(super) fn new(problem: Option<&'a Problem>, names: &[Name]) -> Refusal<'a> {
        let is_about_values = |status| {
            matches!(status, StatusCode::BAD_REQUEST | StatusCode::NOT_FOUND | StatusCode::PRECONDITION_FAILED)
        };
        let text = problem.filter(|problem| is_about_values(problem.status)).map(|problem| &problem.text);
        Refusal { problem, field: text.and_then(|text| named(text, names)) }
    }

    /// The reason, above the form.
    pub(super) fn alert(self) -> Markup {
        view::alert(self.problem)
    }

    /// The value of `aria-invalid`.
    pub(super) fn invalid(self, field: &str) -> Option<&'static str> {
        self.reason(field).map(|_| "true")
    }

    /// The value of `aria-describedby`: the element that has the reason.
    pub(super) fn described_by(self, field: &str) -> Option<String> {
        self.reason(field).map(|_| format!("{field}-problem"))
    }

    /// A field in its label, and the reason below it if the refusal is about this field.
    pub(super) fn around(self, field: &str, label: &Markup) -> Markup {
        match self.reason(field) {
            None => html! { (label) },
            Some(text) => html! { div.refused { (label) p id={ (field) "-problem" } { (text) } } },
        }
    }

    fn reason(self, field: &str) -> Option<&'a str> {
        self.problem.filter(|_| self.field == Some(field)).map(|problem| problem.text.as_str())
    }
}

/// The field that a reason names: before its first colon, or else anywhere.
fn named(text: &str, names: &[Name]) -> Option<&'static str> {
    let (head, _) = text.split_once(':').unwrap_or((text, ""));
    let starts = |name: &str| name.strip_suffix('*').is_some_and(|start| starts_with(head, start));
    let before_colon = names.iter().find(|(name, _)| head.eq_ignore_ascii_case(name) || starts(name));
    let found = before_colon.or_else(|| names.iter().find(|(name, _)| has_word(text, name)));
    found.map(|(_, field)| *field)
}

fn starts_with(text: &str, start: &str) -> bool {
    text.get(..start.len()).is_some_and(|found| found.eq_ignore_ascii_case(start))
}

/// Whether a text has these words, and not only as a part of longer ones.
fn has_word(text: &str, words: &str) -> bool {
    let (text, words) = (text.to_ascii_lowercase(), words.to_ascii_lowercase());
    let is_inside = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || c == '-');
    text.match_indices(&words).any(|(at, _)| {
        !is_inside(text[..at].chars().next_back()) && !is_inside(text[at + words.len()..].chars().next())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAMES: &[Name] = &[
        ("Upstash-Callback", "callback"),
        ("Upstash-Retries", "retries"),
        ("maxRetries", "retries"),
        ("destination", "destination"),
        ("Upstash-*", "options"),
    ];

    fn field(status: StatusCode, text: &str) -> Option<&'static str> {
        let problem = Problem { status, text: text.to_owned() };
        Refusal::new(Some(&problem), NAMES).field
    }

    #[test]
    fn the_field_that_a_reason_names_is_found() {
        for (text, expected) in [
            ("Upstash-Retries: not a number of retries", Some("retries")),
            ("upstash-retries: not a number of retries", Some("retries")),
            ("quota maxRetries exceeded, current limit: 5", Some("retries")),
            ("Upstash-Callback: invalid destination url: it has no host", Some("callback")),
            ("Upstash-Callback-Retries: not a number of retries", Some("options")),
            ("invalid destination url: it has no host", Some("destination")),
            ("the destinations are busy", None),
            ("something else: it is broken", None),
            ("", None),
        ] {
            assert_eq!(field(StatusCode::BAD_REQUEST, text), expected, "{text}");
        }
        assert_eq!(field(StatusCode::FORBIDDEN, "Upstash-Retries: this token is read-only"), None);
    }

    #[test]
    fn only_the_field_that_is_named_is_marked() {
        let problem = Problem { status: StatusCode::BAD_REQUEST, text: "Upstash-Retries: <b> is no number".to_owned() };
        let refusal = Refusal::new(Some(&problem), NAMES);
        let label = html! { label { "Retries" } };
        let marked = "<div class=\"refused\"><label>Retries</label><p id=\"retries-problem\">Upstash-Retries: &lt;b&gt; is no \
                      number</p></div>";
        assert_eq!(refusal.around("retries", &label).into_string(), marked);
        assert_eq!(
            (refusal.invalid("retries"), refusal.described_by("retries")),
            (Some("true"), Some("retries-problem".into()))
        );
        assert_eq!(refusal.around("callback", &label).into_string(), "<label>Retries</label>");
        assert_eq!((refusal.invalid("callback"), refusal.described_by("callback")), (None, None));
        assert_eq!(Refusal::new(None, NAMES).around("retries", &label).into_string(), "<label>Retries</label>");
    }
}
