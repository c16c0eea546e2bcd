//! Output of `posthaste dev`: the block at the start, and one line for each delivery attempt.
//!
//! The core reports attempts through a bounded channel and never waits for the terminal: lines that find no room are
//! counted and left out.

use crate::tenants::DEV_USERS;
use posthaste_engine::attempt_error::{self, Timeout};
use posthaste_engine::message::Message;
use posthaste_engine::retry::Next;
use posthaste_wire::id::MessageId;
use posthaste_wire::time::Timestamp;
use std::fmt::Write as _;
use std::io::Write as _;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::sync::mpsc;

/// Attempts that may wait to be printed.
const WAITING_MAX: usize = 1_024;
/// Where `dev` listens unless it is asked to listen elsewhere.
pub(crate) const DEFAULT_PORT: u16 = 8080;
/// Longest path that is printed; a longer one is cut.
const PATH_CHARS_MAX: usize = 80;

const GREEN: &str = "\x1b[32m";
const YELLOW: &str = "\x1b[33m";
const RED: &str = "\x1b[31m";
const DIM: &str = "\x1b[2m";
const PLAIN: &str = "\x1b[0m";

/// One delivery attempt and what follows from it.
#[derive(Debug)]
pub struct AttemptReport {
    pub message: Arc<Message>,
    /// The status of the response, or why there was none.
    pub result: Result<u16, String>,
    pub duration_ms: u64,
    /// Retries before this attempt.
    pub retried: u32,
    /// `None` if the message was cancelled meanwhile, or belongs to a workflow run that ended with this attempt.
    pub next: Option<Next>,
    pub at: Timestamp,
}

/// The core's end: takes reports as long as there is room for them.
#[derive(Clone, Debug)]
pub struct AttemptReports {
    reports: mpsc::Sender<AttemptReport>,
    missed: Arc<AtomicU64>,
}

impl AttemptReports {
    pub(crate) fn send(&self, report: AttemptReport) {
        if self.reports.try_send(report).is_err() {
            self.missed.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// The terminal's end.
#[derive(Debug)]
pub struct AttemptLines {
    reports: mpsc::Receiver<AttemptReport>,
    missed: Arc<AtomicU64>,
}

/// Both ends.
pub fn attempt_lines() -> (AttemptReports, AttemptLines) {
    let (sender, receiver) = mpsc::channel(WAITING_MAX);
    let missed = Arc::<AtomicU64>::default();
    (AttemptReports { reports: sender, missed: missed.clone() }, AttemptLines { reports: receiver, missed })
}

impl AttemptLines {
    /// Prints a line for each attempt until the server ends, or nobody reads them any more. Has a thread of its own, because a
    /// terminal or pipe that is not read blocks it.
    pub fn print(mut self, server: SocketAddr, colours: bool) {
        while let Some(report) = self.reports.blocking_recv() {
            let mut text = line(&report, server, colours);
            let missed = self.missed.swap(0, Ordering::Relaxed);
            if missed > 0 {
                let _ = write!(text, "\n… {missed} more attempts; see http://{server}/console/messages");
            }
            if writeln!(std::io::stdout(), "{text}").is_err() {
                return;
            }
        }
    }
}

/// The block that `dev` prints when the server is ready.
pub fn banner(server: SocketAddr) -> String {
    let variables = variables(server).map(|(name, value)| format!("{name}={value}\n")).concat();
    let port = if server.port() == DEFAULT_PORT { String::new() } else { format!(" --port {}", server.port()) };
    format!(
        "Posthaste is running at http://{server}\nConsole: http://{server}/console\n\nFor your .env, or in a shell with \
         eval \"$(posthaste dev --print-env{port})\":\n\n{variables}"
    )
}

/// Lines for `eval` that point the SDKs to this server.
pub fn exports(server: SocketAddr) -> String {
    variables(server).map(|(name, value)| format!("export {name}='{value}'\n")).concat()
}

/// The variables that the SDKs read.
fn variables(server: SocketAddr) -> [(&'static str, String); 4] {
    let user = &DEV_USERS[0];
    [
        ("QSTASH_URL", format!("http://{server}")),
        ("QSTASH_TOKEN", user.token.to_owned()),
        ("QSTASH_CURRENT_SIGNING_KEY", user.current.to_owned()),
        ("QSTASH_NEXT_SIGNING_KEY", user.next.to_owned()),
    ]
}

/// The line of an attempt, such as `POST :3000/jobs  503  12 ms  msg_1  retry 2 of 4 in 12 s`.
fn line(report: &AttemptReport, server: SocketAddr, colours: bool) -> String {
    let spec = &report.message.spec;
    let colour = match report.next {
        Some(Next::Done) => GREEN,
        None if has_succeeded(report) => GREEN,
        Some(Next::RetryAt(_)) | None => YELLOW,
        Some(Next::DeadLetter) => RED,
    };
    let result = match &report.result {
        Ok(status) => status.to_string(),
        Err(error) => printable(&attempt_error::for_people(error, Timeout::of(spec.timeout_ms))),
    };
    let (coloured, dim, plain) = if colours { (colour, DIM, PLAIN) } else { ("", "", "") };
    let (method, place, took) = (&spec.method, place(&spec.url), for_people(report.duration_ms));
    let id = report.message.id;
    let after = after(report, spec.retries, id, server);
    format!("{method} {place}  {coloured}{result}{plain}  {took}  {dim}{id}{plain}{after}")
}

fn after(report: &AttemptReport, retries: u32, id: MessageId, server: SocketAddr) -> String {
    match report.next {
        Some(Next::Done) => String::new(),
        Some(Next::RetryAt(due)) => {
            let wait = for_people(due.millis_since(report.at));
            format!("  retry {} of {retries} in {wait}", report.retried + 1)
        }
        Some(Next::DeadLetter) => {
            let why = if report.retried >= retries { "out of retries" } else { "not retried" };
            format!("  {why}, moved to the DLQ: http://{server}/console/messages/{id}")
        }
        None if has_succeeded(report) => String::new(),
        None => "  cancelled".to_owned(),
    }
}

fn has_succeeded(report: &AttemptReport) -> bool {
    matches!(report.result, Ok(200..=299))
}

/// Where a message goes, in short: a port for this machine, else the host; and the path. Queries may hold secrets.
fn place(url: &str) -> String {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    let rest = rest.split(['?', '#']).next().unwrap_or_default();
    let rest = rest.rsplit_once('@').filter(|(user, _)| !user.contains('/')).map_or(rest, |(_, rest)| rest);
    let is_here = ["127.0.0.1:", "localhost:", "[::1]:"].into_iter().find(|host| rest.starts_with(host));
    let short = match is_here {
        Some(host) => &rest[host.len() - 1..],
        None => rest,
    };
    let mut cut: String = short.chars().take(PATH_CHARS_MAX).collect();
    if cut.len() < short.len() {
        cut.push('…');
    }
    printable(&cut)
}

/// Text without what moves the cursor of a terminal.
fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}

/// A duration in its two largest units.
fn for_people(ms: u64) -> String {
    let seconds = ms.div_ceil(1_000);
    let units = [(86_400, "d"), (3_600, "h"), (60, "min"), (1, "s")];
    if ms < 1_000 {
        return format!("{ms} ms");
    }
    let first = units.iter().position(|(length, _)| seconds >= *length).unwrap_or(units.len() - 1);
    let (length, unit) = units[first];
    let rest = units.get(first + 1).map(|(next, name)| (seconds % length / next, name)).filter(|(count, _)| *count > 0);
    match rest {
        Some((count, name)) => format!("{} {unit} {count} {name}", seconds / length),
        None => format!("{} {unit}", seconds / length),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use posthaste_engine::message::MessageSpec;
    use posthaste_wire::id::{Seq, TenantId};

    const NOW: Timestamp = Timestamp(1_000_000);

    fn server() -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], 8080))
    }

    fn report(url: &str, result: Result<u16, &str>, retried: u32, next: Option<Next>) -> AttemptReport {
        let (url, method, timeout_ms) = (url.to_owned(), "POST".to_owned(), Some(2_000));
        let spec = MessageSpec { url, method, retries: 4, timeout_ms, ..MessageSpec::default() };
        let id = MessageId { seq: Seq(1), tag: 1 };
        let message = Message { id, tenant: TenantId(1), created_at: NOW, not_before: NOW, spec, body: Bytes::new() };
        let result = result.map_err(str::to_owned);
        AttemptReport { message: Arc::new(message), result, duration_ms: 21, retried, next, at: NOW }
    }

    #[test]
    fn a_line_says_what_was_sent_what_came_back_and_what_is_next() {
        let id = MessageId { seq: Seq(1), tag: 1 };
        let retry = Some(Next::RetryAt(NOW.plus_millis(12_000)));
        let jobs = "http://127.0.0.1:3000/jobs?key=secret";
        for (report, expected) in [
            (report(jobs, Ok(200), 0, Some(Next::Done)), format!("POST :3000/jobs  200  21 ms  {id}")),
            (report(jobs, Ok(503), 1, retry), format!("POST :3000/jobs  503  21 ms  {id}  retry 2 of 4 in 12 s")),
            (
                report(jobs, Err("context deadline exceeded"), 0, retry),
                format!("POST :3000/jobs  no response within 2 s  21 ms  {id}  retry 1 of 4 in 12 s"),
            ),
            (
                report("https://user:word@api.example/a#b", Err("connection refused"), 0, retry),
                format!("POST api.example/a  connection refused  21 ms  {id}  retry 1 of 4 in 12 s"),
            ),
            (
                report(jobs, Ok(500), 4, Some(Next::DeadLetter)),
                format!(
                    "POST :3000/jobs  500  21 ms  {id}  out of retries, moved to the DLQ: \
                     http://127.0.0.1:8080/console/messages/{id}"
                ),
            ),
            (
                report(jobs, Ok(489), 0, Some(Next::DeadLetter)),
                format!(
                    "POST :3000/jobs  489  21 ms  {id}  not retried, moved to the DLQ: \
                     http://127.0.0.1:8080/console/messages/{id}"
                ),
            ),
            (report(jobs, Ok(200), 0, None), format!("POST :3000/jobs  200  21 ms  {id}")),
            (report(jobs, Err("\x1b[2J"), 0, None), format!("POST :3000/jobs  ?[2J  21 ms  {id}  cancelled")),
        ] {
            assert_eq!(line(&report, server(), false), expected);
        }
        let coloured = line(&report(jobs, Ok(200), 0, Some(Next::Done)), server(), true);
        assert_eq!(coloured, format!("POST :3000/jobs  \x1b[32m200\x1b[0m  21 ms  \x1b[2m{id}\x1b[0m"));
    }

    #[test]
    fn durations_have_their_two_largest_units() {
        let texts = [0, 999, 1_000, 11_001, 60_000, 95_000, 3_600_000, 7_500_000, 90_000_000].map(for_people);
        assert_eq!(texts, ["0 ms", "999 ms", "1 s", "12 s", "1 min", "1 min 35 s", "1 h", "2 h 5 min", "1 d 1 h"]);
    }

    #[tokio::test]
    async fn reports_that_find_no_room_are_counted() {
        let (reports, lines) = attempt_lines();
        for _ in 0..WAITING_MAX + 3 {
            reports.send(report("http://127.0.0.1:3000/", Ok(200), 0, Some(Next::Done)));
        }
        assert_eq!(lines.missed.load(Ordering::Relaxed), 3);
    }

    #[test]
    fn the_block_at_the_start_says_each_thing_once() {
        let variables = "QSTASH_TOKEN=eyJVc2VySUQiOiJkZWZhdWx0VXNlciIsIlBhc3N3b3JkIjoiZGVmYXVsdFBhc3N3b3JkIn0=\n\
             QSTASH_CURRENT_SIGNING_KEY=sig_7kYjw48mhY7kAjqNGcy6cr29RJ6r\n\
             QSTASH_NEXT_SIGNING_KEY=sig_5ZB6DVzB1wjE8S6rZ7eenA8Pdnhs\n";
        for (port, flag) in [(8080, ""), (9_000, " --port 9000")] {
            let expected = format!(
                "Posthaste is running at http://127.0.0.1:{port}\nConsole: http://127.0.0.1:{port}/console\n\n\
                 For your .env, or in a shell with eval \"$(posthaste dev --print-env{flag})\":\n\n\
                 QSTASH_URL=http://127.0.0.1:{port}\n{variables}"
            );
            assert_eq!(banner(SocketAddr::from(([127, 0, 0, 1], port))), expected);
        }
    }

    #[test]
    fn exports_can_be_evaluated_by_a_shell() {
        let exports = exports(server());
        assert!(exports.starts_with("export QSTASH_URL='http://127.0.0.1:8080'\nexport QSTASH_TOKEN='"), "{exports}");
        assert_eq!(exports.lines().count(), 4);
        assert_eq!(exports.matches('\'').count(), 8);
    }
}
