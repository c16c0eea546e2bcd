//! What forms say: fields that may stand in them several times, dates, headers; and the fields of many pages.

use super::view;
use super::visitor::Problem;
use axum::extract::RawForm;
use posthaste_wire::time::Timestamp;
use serde::Deserialize;

/// The methods of a delivery.
pub(super) const METHODS: [&str; 5] = ["POST", "PUT", "PATCH", "DELETE", "GET"];

/// What stands before the hash of a value that the API hides.
pub(super) const REDACTED: &str = "REDACTED:";

/// Whether the API hides a value.
pub(super) fn is_hidden(value: &str) -> bool {
    value.starts_with(REDACTED)
}

/// The page that a button was on.
#[derive(Deserialize)]
pub(super) struct Back {
    #[serde(default)]
    pub(super) next: String,
}

/// What is looked for in a list that has no pages.
#[derive(Deserialize)]
pub(super) struct Search {
    #[serde(default)]
    pub(super) search: String,
}

/// Names and values of a form or a query; a name may stand there several times.
pub(super) struct Fields(Vec<(String, String)>);

impl Fields {
    /// Of a form.
    pub(super) fn read(form: &RawForm) -> Fields {
        Fields::parse(&form.0)
    }

    /// Of a form or a query, as it came.
    pub(super) fn parse(text: &[u8]) -> Fields {
        Fields(url::form_urlencoded::parse(text).into_owned().collect())
    }

    pub(super) fn all<'a>(&'a self, name: &'a str) -> impl DoubleEndedIterator<Item = &'a str> {
        self.0.iter().filter(move |(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    /// The boxes of a name that are ticked. One without a value names nothing, and the API would take that for everything.
    pub(super) fn ticked<'a>(&'a self, name: &'a str) -> Vec<&'a str> {
        self.all(name).map(str::trim).filter(|value| !value.is_empty()).collect()
    }

    /// The first value of a name; empty if it is not there.
    pub(super) fn one(&self, name: &str) -> &str {
        self.0.iter().find(|(known, _)| known == name).map_or("", |(_, value)| value)
    }

    /// The last value of a name: a button that was pressed comes behind the fields of its form, and wins.
    pub(super) fn last(&self, name: &str) -> &str {
        self.0.iter().rfind(|(known, _)| known == name).map_or("", |(_, value)| value)
    }

    /// What `known` has a name for, in the order of the form and without space around; what is empty is left out.
    pub(super) fn known<N>(self, known: impl Fn(&str) -> Option<N>) -> Vec<(N, String)> {
        let said = self.0.into_iter().filter_map(|(name, value)| Some((known(&name)?, value.trim().to_owned())));
        said.filter(|(_, value)| !value.is_empty()).collect()
    }
}

/// Names and values for a request to the API.
pub(super) fn borrowed(pairs: &[(String, String)]) -> Vec<(&str, &str)> {
    pairs.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect()
}

/// Whether a filter is a time.
pub(super) fn is_date(name: &str) -> bool {
    matches!(name, "fromDate" | "toDate")
}

/// Unix milliseconds of `2026-11-16T12:00:00`, which is UTC, or of a number of them.
pub(super) fn millis(text: &str) -> Result<u64, Problem> {
    if let Ok(millis) = text.parse() {
        return Ok(millis);
    }
    let time = text.trim_end_matches('Z').parse::<jiff::civil::DateTime>();
    let time = time.ok().and_then(|time| time.to_zoned(jiff::tz::TimeZone::UTC).ok());
    let millis = time.and_then(|time| u64::try_from(time.timestamp().as_millisecond()).ok());
    millis.ok_or_else(|| Problem::refused(format!("{text:?} is not a time; write it as 2026-11-16T12:00:00")))
}

/// A time as a field of the browser wants it; what is no time stays as it is.
pub(super) fn date_shown(text: &str) -> String {
    let time = millis(text).map(|millis| view::utc(Timestamp(millis)));
    time.ok().and_then(|time| Some(time.split_once('.')?.0.to_owned())).unwrap_or_else(|| text.to_owned())
}

/// What was typed into a field of several lines: browsers end them with CR LF, what people type has LF.
pub(super) fn typed(text: &str) -> String {
    text.replace("\r\n", "\n")
}

/// `Name: value`, one per line. The problem begins with the label of the field.
pub(super) fn header_lines(label: &str, text: &str) -> Result<Vec<(String, String)>, Problem> {
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    let read = |line: &str| match line.split_once(':') {
        Some((name, value)) if !name.trim().is_empty() => Ok((name.trim().to_owned(), value.trim().to_owned())),
        _ => Err(Problem::refused(format!("{label}: {line:?} is not a header; write Name: value, one per line"))),
    };
    lines.map(read).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::StatusCode;

    #[test]
    fn a_name_may_stand_in_a_form_several_times() {
        let fields = Fields::parse(b"id=1&next=%2Fa&id=+2+&id=&x=y+z");
        assert_eq!(fields.all("id").collect::<Vec<_>>(), ["1", " 2 ", ""]);
        assert_eq!((fields.ticked("id"), fields.ticked("none")), (vec!["1", "2"], vec![]));
        assert_eq!((fields.one("id"), fields.last("id"), fields.one("none"), fields.last("none")), ("1", "", "", ""));
        assert_eq!((fields.one("next"), fields.one("x")), ("/a", "y z"));
        let known = fields.known(|name| ["id", "next"].into_iter().find(|known| *known == name));
        assert_eq!(known, [("id", "1"), ("next", "/a"), ("id", "2")].map(|(name, value)| (name, value.to_owned())));
    }

    #[test]
    fn times_are_utc() {
        for (text, expected, shown) in [
            ("2026-11-16T12:00:00", Some(1_794_830_400_000), "2026-11-16T12:00:00"),
            ("2026-11-16T12:00", Some(1_794_830_400_000), "2026-11-16T12:00:00"),
            ("2026-11-16T12:00:00Z", Some(1_794_830_400_000), "2026-11-16T12:00:00"),
            ("1794830400123", Some(1_794_830_400_123), "2026-11-16T12:00:00"),
            ("18446744073709551615", Some(u64::MAX), "18446744073709551615"),
            ("1969-01-01T00:00:00", None, "1969-01-01T00:00:00"),
            ("yesterday", None, "yesterday"),
            ("", None, ""),
        ] {
            assert_eq!((millis(text).ok(), date_shown(text).as_str()), (expected, shown), "{text}");
        }
        assert_eq!(millis("soon").unwrap_err().status, StatusCode::BAD_REQUEST);
    }

    #[test]
    fn lines_end_as_they_were_typed() {
        assert_eq!(typed("a\r\n\r\nb\n\rc"), "a\n\nb\n\rc");
    }

    #[test]
    fn headers_are_lines() {
        let read = header_lines("Headers", "\n  A: 5\r\nB: a: b\nB:\n").unwrap();
        assert_eq!(borrowed(&read), [("A", "5"), ("B", "a: b"), ("B", "")]);
        for wrong in ["no colon", ": value", "A: b\n:"] {
            let problem = header_lines("More headers", wrong).unwrap_err();
            assert_eq!(problem.status, StatusCode::BAD_REQUEST, "{wrong}");
            assert!(problem.text.starts_with("More headers: \""), "{}", problem.text);
        }
    }
}
