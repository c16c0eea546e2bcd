//! Which messages: the filters of the API as a form, kept in the URL.

use crate::console::view;
use crate::console::visitor::query;
use maud::{Markup, html};
use posthaste_wire::time::Timestamp;

/// A field of the form.
struct Field {
    /// Its name, here and in the API.
    name: &'static str,
    label: &'static str,
    hint: &'static str,
}

const fn field(name: &'static str, label: &'static str, hint: &'static str) -> Field {
    Field { name, label, hint }
}

/// Those that are asked for most.
const COMMON: [Field; 5] = [
    field("messageId", "Message id", "msg_…"),
    field("label", "Label", ""),
    field("host", "Host", "api.example.com"),
    field("queueName", "Queue", ""),
    field("flowControlKey", "Flow-control key", ""),
];

/// The others.
const OTHERS: [Field; 8] = [
    field("url", "Destination, exactly", "https://…"),
    field("path", "Path", "/hook"),
    field("urlGroup", "URL group", ""),
    field("scheduleId", "Schedule", ""),
    field("callerIp", "Published from", "10.0.0.7"),
    field("sourceMessageId", "Caused by message", "msg_…"),
    field("fromDate", "From (UTC)", ""),
    field("toDate", "To (UTC)", ""),
];

/// States, and what to call them.
const STATES: [(&str, &str); 9] = [
    ("", "any"),
    ("DELIVERED", "delivered"),
    ("FAILED", "failed"),
    ("CANCELED", "cancelled"),
    ("ERROR", "had a failed attempt"),
    ("RETRY", "was retried"),
    ("ACTIVE", "was attempted"),
    ("CANCEL_REQUESTED", "cancel requested"),
    ("CREATED", "published"),
];

/// What a bulk cancel understands of it: a cancel is about messages, whatever happened to them.
const NOT_FOR_CANCEL: [&str; 4] = ["state", "order", "cursor", "sourceMessageId"];

/// What was asked for, as it stands in the URL.
pub(super) struct Filters {
    pairs: Vec<(&'static str, String)>,
}

impl Filters {
    /// Takes what is known from a query or a form; the rest is left alone.
    pub(super) fn read(query: &str) -> Filters {
        let known = |name: &str| {
            let fields = COMMON.iter().chain(&OTHERS).map(|field| field.name);
            fields.chain(["state", "order", "cursor"]).find(|field| *field == name)
        };
        let pairs = url::form_urlencoded::parse(query.as_bytes());
        let said = pairs.filter_map(|(name, value)| Some((known(&name)?, value.trim().to_owned())));
        Filters { pairs: said.filter(|(_, value)| !value.is_empty()).collect() }
    }

    pub(super) fn value(&self, name: &str) -> &str {
        self.pairs.iter().find(|(known, _)| *known == name).map_or("", |(_, value)| value)
    }

    /// Nothing but the page is chosen.
    pub(super) fn is_empty(&self) -> bool {
        self.pairs.iter().all(|(name, _)| matches!(*name, "cursor" | "order"))
    }

    /// As they stand in the URL.
    pub(super) fn pairs(&self) -> Vec<(&str, &str)> {
        self.pairs.iter().map(|(name, value)| (*name, value.as_str())).collect()
    }

    /// As the API wants them, with more names and values; says which date is none.
    pub(super) fn for_api(&self, more: &[(&str, &str)]) -> Result<String, String> {
        self.as_query(|_| true, more)
    }

    /// As a bulk cancel wants them; says why there can be none.
    pub(super) fn for_cancel(&self) -> Result<String, String> {
        if let Some((name, _)) = self.pairs.iter().find(|(name, _)| matches!(*name, "state" | "sourceMessageId")) {
            return Err(format!("messages cannot be cancelled by {name}: take that filter away, or tick messages"));
        }
        self.as_query(|name| !NOT_FOR_CANCEL.contains(&name), &[("async", "true")])
    }

    fn as_query(&self, is_wanted: impl Fn(&str) -> bool, more: &[(&str, &str)]) -> Result<String, String> {
        let mut pairs = Vec::new();
        for (name, value) in self.pairs.iter().filter(|(name, _)| is_wanted(name)) {
            let value = if matches!(*name, "fromDate" | "toDate") { millis(value)?.to_string() } else { value.clone() };
            pairs.push((*name, value));
        }
        let said = pairs.iter().map(|(name, value)| (*name, value.as_str()));
        Ok(query(&said.chain(more.iter().copied()).collect::<Vec<_>>()))
    }

    /// In words, for who has to decide.
    pub(super) fn told(&self) -> String {
        let told = self.pairs.iter().filter(|(name, _)| !matches!(*name, "cursor" | "order"));
        told.map(|(name, value)| format!("{name} = {value}")).collect::<Vec<_>>().join(", ")
    }

    /// The form.
    pub(super) fn form(&self, path: &str) -> Markup {
        let is_used = OTHERS.iter().any(|field| !self.value(field.name).is_empty());
        html! {
            form #filters method="get" action=(path) {
                div.filter-row {
                    label { "State"
                        select name="state" {
                            @for (value, label) in STATES {
                                option value=(value) selected[self.value("state") == value] { (label) }
                            }
                        }
                    }
                    @for field in &COMMON { (self.input(field)) }
                    button.primary type="submit" { "Show" }
                    @if !self.is_empty() { a href=(path) { "All messages" } }
                }
                details.text open[is_used] {
                    summary { "More filters" }
                    div.filter-row { @for field in &OTHERS { (self.input(field)) } }
                    p.hint { "Several values with commas mean “or”. Times are those of the log lines; a state is found wherever it stands in a message's log." }
                }
            }
        }
    }

    fn input(&self, field: &Field) -> Markup {
        let is_date = matches!(field.name, "fromDate" | "toDate");
        let value = self.value(field.name);
        let value = if is_date { date_shown(value) } else { value.to_owned() };
        html! {
            label { (field.label)
                input type=(if is_date { "datetime-local" } else { "text" }) step=[is_date.then_some("1")]
                    name=(field.name) value=(value) placeholder=(field.hint) autocomplete="off";
            }
        }
    }

    /// Hidden fields that bring the same filters to a form that acts.
    pub(super) fn hidden(&self) -> Markup {
        html! { @for (name, value) in &self.pairs { input type="hidden" name=(name) value=(value); } }
    }
}

/// Unix milliseconds of `2026-11-16T12:00:00`, which is UTC, or of a number of them.
fn millis(text: &str) -> Result<u64, String> {
    if let Ok(millis) = text.parse() {
        return Ok(millis);
    }
    let time = text.trim_end_matches('Z').parse::<jiff::civil::DateTime>();
    let time = time.ok().and_then(|time| time.to_zoned(jiff::tz::TimeZone::UTC).ok());
    let millis = time.and_then(|time| u64::try_from(time.timestamp().as_millisecond()).ok());
    millis.ok_or_else(|| format!("{text:?} is not a time like 2026-11-16T12:00:00"))
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
    fn filters_become_those_of_the_api() {
        let filters =
            Filters::read("label=a%2Cb&state=FAILED&fromDate=2026-11-16T12%3A00%3A00&toDate=&evil=1&host=+x+");
        assert_eq!(
            filters.for_api(&[("count", "50")]).unwrap(),
            "label=a%2Cb&state=FAILED&fromDate=1794830400000&host=x&count=50"
        );
        assert_eq!(filters.told(), "label = a,b, state = FAILED, fromDate = 2026-11-16T12:00:00, host = x");
        assert!(filters.for_cancel().unwrap_err().contains("state"));
        assert!(!filters.is_empty() && Filters::read("cursor=1-2&order=x").is_empty());
        let filters = Filters::read("label=a&cursor=1-2");
        assert_eq!(filters.for_cancel().unwrap(), "label=a&async=true", "a page is no filter");
    }

    #[test]
    fn times_are_utc() {
        for (text, expected) in [
            ("2026-11-16T12:00:00", Ok(1_794_830_400_000)),
            ("2026-11-16T12:00", Ok(1_794_830_400_000)),
            ("2026-11-16T12:00:00Z", Ok(1_794_830_400_000)),
            ("1794830400123", Ok(1_794_830_400_123)),
        ] {
            assert_eq!(millis(text), expected, "{text}");
        }
        assert!(millis("yesterday").is_err() && millis("1969-01-01T00:00:00").is_err());
        assert_eq!(date_shown("1794830400123"), "2026-11-16T12:00:00");
    }
}
