//! Which dead letters a page is about: the API's filters, as they stand in the address of the page.

use super::super::form::{Fields, borrowed, date_shown, is_date, millis};
use super::super::visitor::query;
use maud::{Markup, html};

/// The filters of the API: parameter, label, words before a value, example.
const FILTERS: [(&str, &str, &str, &str); 12] = [
    ("label", "Label", "label", "invoices"),
    ("responseStatus", "Status (0 for no response)", "status", "500"),
    ("url", "URL", "URL", "https://…"),
    ("urlGroup", "URL group", "URL group", ""),
    ("queueName", "Queue", "queue", ""),
    ("scheduleId", "Schedule ID", "schedule", "scd_…"),
    ("flowControlKey", "Flow-control key", "flow-control key", ""),
    ("messageId", "Message ID", "message", "msg_…"),
    ("callerIp", "Caller IP", "caller IP", "203.0.113.7"),
    ("fromDate", "Failed from (UTC)", "failure from", ""),
    ("toDate", "Failed until (UTC)", "failure until", ""),
    ("cause", "Cause", "cause", "cause_…"),
];

/// Names and values, those of other things than filters too if a page asks for them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Selection(Vec<(String, String)>);

impl Selection {
    /// The filters in a query; what is empty or no filter is left out.
    pub(super) fn from_query(query: Option<&str>) -> Selection {
        Selection::from_fields(Fields::parse(query.unwrap_or_default().as_bytes()))
    }

    pub(super) fn from_fields(fields: Fields) -> Selection {
        let filter = |name: &str| FILTERS.iter().any(|(filter, ..)| *filter == name).then(|| name.to_owned());
        Selection(fields.known(filter))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn cause(&self) -> Option<&str> {
        self.value("cause")
    }

    fn value(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    /// The same with this value instead of those that the name had.
    pub(super) fn with(&self, name: &str, value: &str) -> Selection {
        let mut pairs = self.0.clone();
        pairs.retain(|(known, _)| known != name);
        pairs.push((name.to_owned(), value.to_owned()));
        Selection(pairs)
    }

    pub(super) fn pairs(&self) -> Vec<(&str, &str)> {
        borrowed(&self.0)
    }

    /// A page about the same dead letters.
    pub(super) fn link(&self, path: &str) -> String {
        if self.0.is_empty() { path.to_owned() } else { format!("{path}?{}", query(&self.pairs())) }
    }

    /// The query for the API, which wants times in Unix milliseconds.
    pub(super) fn of_api(&self) -> String {
        let pairs: Vec<(&str, String)> = self
            .0
            .iter()
            .map(|(name, value)| match is_date(name) {
                true => (name.as_str(), millis(value).map_or_else(|_| value.clone(), |millis| millis.to_string())),
                false => (name.as_str(), value.clone()),
            })
            .collect();
        query(&pairs.iter().map(|(name, value)| (*name, value.as_str())).collect::<Vec<_>>())
    }

    /// The filters as fields that nobody sees, but for some.
    pub(super) fn hidden(&self, left_out: &[&str]) -> Markup {
        html! {
            @for (name, value) in self.0.iter().filter(|(name, _)| !left_out.contains(&name.as_str())) {
                input type="hidden" name=(name) value=(value);
            }
        }
    }

    /// In words: `label invoices, status 500`.
    pub(super) fn in_words(&self) -> String {
        let word = |name: &str| FILTERS.iter().find(|(filter, ..)| *filter == name).map_or("", |(_, _, word, _)| word);
        let words = self.0.iter().map(|(name, value)| match name.as_str() {
            // Its id says nothing to people.
            "cause" => "this cause".to_owned(),
            name => format!("{} {value}", word(name)),
        });
        words.collect::<Vec<_>>().join(", ")
    }

    /// The form that changes them.
    pub(super) fn form(&self, path: &str) -> Markup {
        html! {
            details.card.text open[!self.is_empty()] {
                summary { "Filters" @if !self.is_empty() { span.quiet { " · " (self.in_words()) } } }
                form.filters #filter method="get" action=(path) {
                    @for (name, label, _, example) in FILTERS {
                        @let value = self.value(name).unwrap_or_default();
                        label { (label)
                            @if is_date(name) {
                                input type="datetime-local" step="1" name=(name) value=(date_shown(value));
                            } @else {
                                input type="text" name=(name) value=(value) placeholder=(example)
                                    spellcheck="false" autocomplete="off";
                            }
                        }
                    }
                    div.actions {
                        button.primary { "Apply" }
                        @if !self.is_empty() { a.button href=(path) { "Clear" } }
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
    fn filters_are_said_in_words() {
        let selection =
            Selection::from_query(Some("label=red&responseStatus=500&fromDate=2026-11-16T12:00&cause=cause_1"));
        assert_eq!(selection.in_words(), "label red, status 500, failure from 2026-11-16T12:00, this cause");
        assert_eq!(Selection::default().in_words(), "");
    }

    #[test]
    fn filters_of_a_page_are_those_of_the_api() {
        for (given, link, of_api) in [
            (None, "/x", ""),
            (Some("what=all&label=&next=/evil"), "/x", ""),
            (Some("label=%20red%20&label=blue"), "/x?label=red&label=blue", "label=red&label=blue"),
            (Some("fromDate=1794830400000"), "/x?fromDate=1794830400000", "fromDate=1794830400000"),
            (Some("toDate=2026-11-16T12:00"), "/x?toDate=2026-11-16T12%3A00", "toDate=1794830400000"),
            (Some("toDate=soon"), "/x?toDate=soon", "toDate=soon"),
            (
                Some("url=https://a.example/?b=c%26d"),
                "/x?url=https%3A%2F%2Fa.example%2F%3Fb%3Dc%26d",
                "url=https%3A%2F%2Fa.example%2F%3Fb%3Dc%26d",
            ),
        ] {
            let selection = Selection::from_query(given);
            assert_eq!((selection.link("/x").as_str(), selection.of_api().as_str()), (link, of_api), "{given:?}");
        }
    }
}
