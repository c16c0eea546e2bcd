//! The form: what can be typed, and the request that it stands for.

use super::super::form::{METHODS, header_lines};
use super::super::refusal::{Name, Refusal};
use super::super::visitor::{Problem, segment};
use super::super::{Visitor, view};
use super::HERE;
use maud::{Markup, html};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Deserialize;

/// What was typed. Names are those of the query, too, so that links can fill in the form.
#[derive(Clone, Debug, Deserialize)]
#[serde(default)]
pub(super) struct Fields {
    #[serde(rename = "do")]
    pub(super) action: String,
    pub(super) destination: String,
    queue: String,
    method: String,
    content_type: String,
    pub(super) body: String,
    pub(super) headers: String,
    delay: String,
    not_before: String,
    pub(super) retries: String,
    pub(super) retry_delay: String,
    timeout: String,
    dedup_id: String,
    content_dedup: String,
    callback: String,
    failure_callback: String,
    flow_key: String,
    flow_parallelism: String,
    flow_rate: String,
    flow_period: String,
    label: String,
    redact: String,
    pub(super) options: String,
    pub(super) script_status: String,
    pub(super) script_delay: String,
}

impl Default for Fields {
    /// An example, so that the first message is one press of a button away.
    fn default() -> Self {
        let empty = String::new;
        Fields {
            action: empty(),
            destination: empty(),
            queue: empty(),
            method: "POST".to_owned(),
            content_type: "application/json".to_owned(),
            body: r#"{"hello": "world"}"#.to_owned(),
            headers: empty(),
            delay: empty(),
            not_before: empty(),
            retries: empty(),
            retry_delay: empty(),
            timeout: empty(),
            dedup_id: empty(),
            content_dedup: empty(),
            callback: empty(),
            failure_callback: empty(),
            flow_key: empty(),
            flow_parallelism: empty(),
            flow_rate: empty(),
            flow_period: empty(),
            label: empty(),
            redact: empty(),
            options: empty(),
            script_status: "503".to_owned(),
            script_delay: "2s".to_owned(),
        }
    }
}

/// How long a first try waits before a retry.
const QUICK_RETRY_DELAY_MS: &str = "1000";
/// How long a first try waits for a receiver that hangs.
const QUICK_TIMEOUT: &str = "3s";

impl Fields {
    /// The path of the API that publishes it. A URL goes encoded as a whole: its query is its own.
    pub(super) fn path(&self) -> String {
        let destination = self.destination.trim();
        let is_url = ["http://", "https://"]
            .iter()
            .any(|scheme| destination.get(..scheme.len()).is_some_and(|start| start.eq_ignore_ascii_case(scheme)));
        let destination = if is_url { segment(destination) } else { in_path(destination) };
        match self.queue.trim() {
            "" => format!("/v2/publish/{destination}"),
            queue => format!("/v2/enqueue/{}/{destination}", segment(queue)),
        }
    }

    /// The headers that say how; or what is wrong with the lines that were typed.
    pub(super) fn headers(&self) -> Result<Vec<(String, String)>, Problem> {
        let mut flow = Vec::new();
        for (name, value) in
            [("parallelism", &self.flow_parallelism), ("rate", &self.flow_rate), ("period", &self.flow_period)]
        {
            if !value.trim().is_empty() {
                flow.push(format!("{name}={}", value.trim()));
            }
        }
        let (flow, not_before) = (flow.join(","), unix_seconds(self.not_before.trim()));
        let said = [
            ("Upstash-Method", &self.method),
            ("Content-Type", &self.content_type),
            ("Upstash-Delay", &self.delay),
            ("Upstash-Not-Before", &not_before),
            ("Upstash-Retries", &self.retries),
            ("Upstash-Retry-Delay", &self.retry_delay),
            ("Upstash-Timeout", &self.timeout),
            ("Upstash-Deduplication-Id", &self.dedup_id),
            ("Upstash-Content-Based-Deduplication", &self.content_dedup),
            ("Upstash-Callback", &self.callback),
            ("Upstash-Failure-Callback", &self.failure_callback),
            ("Upstash-Flow-Control-Key", &self.flow_key),
            ("Upstash-Flow-Control-Value", &flow),
            ("Upstash-Label", &self.label),
            ("Upstash-Redact-Fields", &self.redact),
        ];
        let said = said.into_iter().map(|(name, value)| (name.to_owned(), value.trim().to_owned()));
        let mut headers: Vec<(String, String)> = said.filter(|(_, value)| !value.is_empty()).collect();
        let forwarded = header_lines(HEADERS, &self.headers)?.into_iter();
        headers.extend(forwarded.map(|(name, value)| (format!("Upstash-Forward-{name}"), value)));
        for (name, value) in header_lines(OPTIONS, &self.options)? {
            // Others say who asks, which is the visitor.
            if !name.get(..OPTION_START.len()).is_some_and(|start| start.eq_ignore_ascii_case(OPTION_START)) {
                return Err(Problem::refused(format!(
                    "{OPTIONS}: {name} is not an option; option names start with {OPTION_START}"
                )));
            }
            headers.push((name, value));
        }
        Ok(headers)
    }

    /// What the page after a send remembers. Bodies and headers do not belong into a URL.
    pub(super) fn pairs(&self) -> Vec<(&'static str, &str)> {
        vec![
            ("destination", &self.destination),
            ("queue", &self.queue),
            ("method", &self.method),
            ("content_type", &self.content_type),
            ("delay", &self.delay),
            ("not_before", &self.not_before),
            ("retries", &self.retries),
            ("retry_delay", &self.retry_delay),
            ("timeout", &self.timeout),
            ("content_dedup", &self.content_dedup),
            ("callback", &self.callback),
            ("failure_callback", &self.failure_callback),
            ("flow_key", &self.flow_key),
            ("flow_parallelism", &self.flow_parallelism),
            ("flow_rate", &self.flow_rate),
            ("flow_period", &self.flow_period),
            ("label", &self.label),
            ("redact", &self.redact),
        ]
    }

    /// The other options that may stand in a URL: those that tell no header and no deduplication id.
    pub(super) fn open_options(&self) -> String {
        let is_open = |name: &str| !name.contains("-forward-") && !name.contains("deduplication-id");
        let lines = header_lines(OPTIONS, &self.options).unwrap_or_default().into_iter();
        let lines = lines.filter(|(name, _)| is_open(&name.to_ascii_lowercase()));
        lines.map(|(name, value)| format!("{name}: {value}")).collect::<Vec<_>>().join("\n")
    }

    /// Makes what is about to be tried end within seconds, where nothing else was said: nobody waits minutes for a
    /// first try.
    pub(super) fn hurry(&mut self, script: &str) {
        let fill = |field: &mut String, value: &str| {
            if field.trim().is_empty() {
                *field = value.to_owned();
            }
        };
        if script.split(',').any(|answer| !answer.starts_with('2')) {
            fill(&mut self.retry_delay, QUICK_RETRY_DELAY_MS);
        }
        if script.split(',').any(|answer| answer == "hang") {
            fill(&mut self.timeout, QUICK_TIMEOUT);
        }
    }

    /// The answer of choice, as a script of the test receiver.
    pub(super) fn script(&self) -> String {
        match self.script_delay.trim() {
            "" => self.script_status.trim().to_owned(),
            delay => format!("{}+{delay}", self.script_status.trim()),
        }
    }
}

/// The labels of the fields for headers.
const HEADERS: &str = "Headers for the receiver";
const OPTIONS: &str = "API headers";
/// The fields, as refusals call them.
const NAMES: &[Name] = &[
    ("Upstash-Method", "method"),
    ("Content-Type", "content_type"),
    ("Upstash-Not-Before", "not_before"),
    ("Upstash-Delay", "delay"),
    ("maxDelay", "delay"),
    ("Upstash-Retries", "retries"),
    ("maxRetries", "retries"),
    ("Upstash-Retry-Delay", "retry_delay"),
    ("Upstash-Timeout", "timeout"),
    ("quota timeout", "timeout"),
    ("Upstash-Deduplication-Id", "dedup_id"),
    ("Upstash-Callback", "callback"),
    ("Upstash-Failure-Callback", "failure_callback"),
    ("Upstash-Flow-Control-Key", "flow_key"),
    ("Upstash-Label", "label"),
    ("Upstash-Redact-Fields", "redact"),
    ("Upstash-Forward-*", "headers"),
    (HEADERS, "headers"),
    ("Upstash-*", "options"),
    (OPTIONS, "options"),
    ("name of a queue", "queue"),
    ("maxMessageSize", "body"),
    ("destination", "destination"),
    ("topic", "destination"),
];

/// How the names of options begin.
const OPTION_START: &str = "Upstash-";

/// Anything else than a URL as it may stand in a path: what the API reads there is left as it is.
fn in_path(text: &str) -> String {
    const ENCODED: AsciiSet = NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'/').remove(b':');
    utf8_percent_encode(text, &ENCODED).to_string()
}

/// A date as the second that the API wants; anything else as it is, for the API to judge.
fn unix_seconds(text: &str) -> String {
    text.parse::<jiff::Timestamp>().map_or_else(|_| text.to_owned(), |at| at.as_second().to_string())
}

pub(super) fn markup(visitor: &Visitor, fields: &Fields, refusal: Refusal<'_>, plan: &Markup) -> Markup {
    let input =
        |name: &str, label: &str, value: &str, example: &str| field(refusal, name, label, value, example, false);
    let previewed =
        |name: &str, label: &str, value: &str, example: &str| field(refusal, name, label, value, example, true);
    html! {
        form.card.fields #send-form method="post" action=(HERE) data-preview="retry-plan" data-from="/console/send/plan" {
            (input("destination", "Destination", &fields.destination, "https://…, the name of a URL group, or api/llm"))
            div.pairs {
                label { "Method"
                    select name="method" {
                        @for method in METHODS { option selected[*method == *fields.method] { (method) } }
                    }
                }
                (input("queue", "Queue", &fields.queue, "none"))
                (input("content_type", "Content type", &fields.content_type, "none"))
            }
            (area(refusal, "body", "Body", &fields.body, (None, "4", "")))
            (area(refusal, "headers", &format!("{HEADERS}, one per line"), &fields.headers, (Some("short"), "2", "Authorization: Bearer …")))
            h2 { "Timing and retries" }
            div.pairs {
                (input("delay", "Delay", &fields.delay, "for example 10s or 2h"))
                (input("not_before", "Not before", &fields.not_before, "2026-12-24T18:00:00Z"))
                (input("timeout", "Timeout", &fields.timeout, "for example 30s"))
            }
            div.pairs {
                (previewed("retries", "Retries", &fields.retries, "3"))
                div.wide { (previewed("retry_delay", "Retry delay (ms)", &fields.retry_delay, "1000 * (1 + retried)")) }
            }
            (plan)
            // The first button is what Enter presses: it shows, and sends nothing.
            div { button type="submit" name="do" value="plan" formnovalidate { "Preview attempts" } }
            (more(fields, refusal))
            div.actions {
                button.primary type="submit" name="do" value="send" disabled[!visitor.may_act()] title=[view::refusal(visitor)] { "Send message" }
            }
        }
    }
}

/// What went wrong with the form, and with which of its fields.
pub(super) fn refusal<'a>(problem: Option<&'a Problem>, fields: &Fields) -> Refusal<'a> {
    let limits = problem.and_then(|problem| Some(("Upstash-Flow-Control-Value", limit_of(&problem.text, fields)?)));
    Refusal::new(problem, &[limits.as_slice(), NAMES].concat())
}

/// The field of a flow-control limit that a text is about: all limits are one header of the API.
fn limit_of(text: &str, fields: &Fields) -> Option<&'static str> {
    let (_, reason) = text.split_once("Upstash-Flow-Control-Value:")?;
    let is_count = |text: &str| text.trim().is_empty() || text.trim().parse::<u32>().is_ok();
    Some(match reason {
        _ if reason.contains("Upstash-Flow-Control-Key") => "flow_key",
        _ if reason.contains("period") && !reason.contains("parallelism") => "flow_period",
        _ if !is_count(&fields.flow_parallelism) || fields.flow_rate.trim().is_empty() => "flow_parallelism",
        _ => "flow_rate",
    })
}

/// What is needed less often; folded while there is nothing in it.
fn more(fields: &Fields, refusal: Refusal<'_>) -> Markup {
    let input =
        |name: &str, label: &str, value: &str, example: &str| field(refusal, name, label, value, example, false);
    let flow = [&fields.flow_key, &fields.flow_parallelism, &fields.flow_rate, &fields.flow_period];
    let dedup = [&fields.dedup_id, &fields.content_dedup];
    let is_said = |texts: &[&String]| texts.iter().any(|text| !text.is_empty());
    html! {
        details open[is_said(&dedup)] {
            summary { "Deduplication" }
            div.pairs {
                (input("dedup_id", "Deduplication ID", &fields.dedup_id, "none"))
                label.tick {
                    input type="checkbox" name="content_dedup" value="true" checked[!fields.content_dedup.is_empty()];
                    " Deduplicate by destination, headers and body"
                }
            }
        }
        details open[is_said(&[&fields.callback, &fields.failure_callback])] {
            summary { "Callbacks" }
            (input("callback", "Callback (after every attempt)", &fields.callback, "https://…"))
            (input("failure_callback", "Failure callback (when the message fails)", &fields.failure_callback, "https://…"))
        }
        details open[is_said(&flow)] {
            summary { "Flow control" }
            div.pairs {
                (input("flow_key", "Key", &fields.flow_key, "none"))
                (input("flow_parallelism", "Parallelism", &fields.flow_parallelism, "none"))
                (input("flow_rate", "Rate", &fields.flow_rate, "per period"))
                (input("flow_period", "Period", &fields.flow_period, "1s"))
            }
        }
        details open[is_said(&[&fields.label, &fields.redact])] {
            summary { "Label and redaction" }
            (input("label", "Label", &fields.label, "none"))
            (input("redact", "Redact", &fields.redact, "body, header[Authorization]"))
        }
        details open[is_said(&[&fields.options])] {
            summary { "Other options" }
            (area(refusal, "options", &format!("{OPTIONS}, one per line"), &fields.options, (Some("short"), "2", "Upstash-Callback-Retries: 1")))
        }
    }
}

/// A field of one line. The preview of the attempts can follow it.
fn field(refusal: Refusal<'_>, name: &str, label: &str, value: &str, example: &str, is_previewed: bool) -> Markup {
    let field = html! {
        label {
            (label)
            input name=(name) value=(value) placeholder=(example) autocomplete="off" spellcheck="false"
                data-in-preview[is_previewed] aria-invalid=[refusal.invalid(name)] aria-describedby=[refusal.described_by(name)];
        }
    };
    refusal.around(name, &field)
}

/// A field of several lines: class, rows, example. Its first line feed is the one that HTML drops.
fn area(refusal: Refusal<'_>, name: &str, label: &str, value: &str, look: (Option<&str>, &str, &str)) -> Markup {
    let (class, rows, example) = look;
    let area = html! {
        label { (label)
            textarea class=[class] name=(name) rows=(rows) spellcheck="false" placeholder=(example)
                aria-invalid=[refusal.invalid(name)] aria-describedby=[refusal.described_by(name)] { "\n" (value) }
        }
    };
    refusal.around(name, &area)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_form_becomes_a_request() {
        let fields = Fields {
            destination: " https://example.com/a?b=c&d=/ ".into(),
            not_before: "2026-11-16T12:00:00Z".into(),
            retries: "5".into(),
            flow_key: "k".into(),
            flow_rate: "10".into(),
            flow_period: "1m".into(),
            headers: "X-One: 1\n\n x-two:a:b ".into(),
            content_type: String::new(),
            ..Fields::default()
        };
        assert_eq!(fields.path(), "/v2/publish/https%3A%2F%2Fexample%2Ecom%2Fa%3Fb%3Dc%26d%3D%2F");
        let expected = [
            ("Upstash-Method", "POST"),
            ("Upstash-Not-Before", "1794830400"),
            ("Upstash-Retries", "5"),
            ("Upstash-Flow-Control-Key", "k"),
            ("Upstash-Flow-Control-Value", "rate=10,period=1m"),
            ("Upstash-Forward-X-One", "1"),
            ("Upstash-Forward-x-two", "a:b"),
        ];
        let expected = expected.map(|(name, value)| (name.to_owned(), value.to_owned()));
        assert_eq!(fields.headers().unwrap(), expected);
        let queued = Fields { destination: "my-group.v_1".into(), queue: "a/b".into(), ..Fields::default() };
        assert_eq!(queued.path(), "/v2/enqueue/a%2Fb/my-group.v_1");
        let api = Fields { destination: "api/llm".into(), ..Fields::default() };
        assert_eq!(api.path(), "/v2/publish/api/llm");
        let other = Fields { destination: "ftp://x/?y z".into(), ..Fields::default() };
        assert_eq!(other.path(), "/v2/publish/ftp://x/%3Fy%20z");
    }

    #[test]
    fn malformed_headers_are_refused_and_the_rest_is_left_to_the_api() {
        let fields = Fields { headers: "X-One: 1\nnonsense".into(), ..Fields::default() };
        assert!(fields.headers().unwrap_err().text.contains("\"nonsense\" is not a header"));
        let with = |options: &str| Fields { options: options.into(), ..Fields::default() }.headers();
        let forged = with("Authorization: Bearer x").unwrap_err();
        let text = "API headers: Authorization is not an option; option names start with Upstash-";
        assert_eq!(forged.text, text, "it says who asks");
        assert!(with("é: 1").is_err() && with(": 1").is_err() && with("Upstash-Retries 1").is_err());
        let headers = with("\nupstash-callback-retries: 1\nUpstash-Callback-Forward-A: b:c").unwrap();
        let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        let expected = [pair("upstash-callback-retries", "1"), pair("Upstash-Callback-Forward-A", "b:c")];
        assert_eq!(headers[2..], expected);
        for text in ["1794830400", "tomorrow", ""] {
            assert_eq!(unix_seconds(text), text);
        }
    }

    #[test]
    fn a_limit_that_is_refused_marks_its_own_field() {
        let fields = |parallelism: &str, rate: &str| Fields {
            flow_parallelism: parallelism.into(),
            flow_rate: rate.into(),
            ..Fields::default()
        };
        let counts = "Upstash-Flow-Control-Value: parallelism and rate must be whole numbers";
        for (text, fields, expected) in [
            ("Upstash-Flow-Control-Value: Upstash-Flow-Control-Key is missing", fields("2", ""), Some("flow_key")),
            ("Upstash-Flow-Control-Value: period must be a duration", fields("2", "3"), Some("flow_period")),
            (counts, fields("two", "3"), Some("flow_parallelism")),
            (counts, fields("2", "three"), Some("flow_rate")),
            (counts, fields("0", ""), Some("flow_parallelism")),
            ("Upstash-Retries: not a number of retries", fields("two", ""), None),
        ] {
            assert_eq!(limit_of(text, &fields), expected, "{text}");
            let problem = Problem::refused(text);
            let field = expected.unwrap_or("retries");
            assert_eq!(refusal(Some(&problem), &fields).invalid(field), Some("true"), "{text}");
        }
    }

    #[test]
    fn a_first_try_takes_seconds_unless_something_else_is_said() {
        let hurried = |script: &str, mut fields: Fields| {
            fields.hurry(script);
            (fields.retry_delay, fields.timeout)
        };
        let texts = |delay: &str, timeout: &str| (delay.to_owned(), timeout.to_owned());
        assert_eq!(hurried("200", Fields::default()), texts("", ""));
        assert_eq!(hurried("500,500,200", Fields::default()), texts("1000", ""));
        assert_eq!(hurried("hang", Fields::default()), texts("1000", "3s"));
        let said = Fields { retry_delay: "7".into(), timeout: "1h".into(), ..Fields::default() };
        assert_eq!(hurried("hang", said), texts("7", "1h"));
    }

    #[test]
    fn bodies_and_headers_stay_out_of_urls() {
        let options = "Upstash-Callback-Retries: 1\r\nupstash-callback-forward-a: b\nUpstash-Deduplication-Id: c";
        let open = Fields { options: options.to_owned(), ..Fields::default() }.open_options();
        assert_eq!(open, "Upstash-Callback-Retries: 1");
        let secret = "hidden".to_owned();
        let fields = Fields {
            body: secret.clone(),
            headers: secret.clone(),
            options: secret.clone(),
            dedup_id: secret.clone(),
            ..Fields::default()
        };
        assert!(fields.pairs().iter().all(|(_, value)| !value.contains(&secret)));
    }
}
