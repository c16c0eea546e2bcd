//! What pages share: the frame around them, times, states, texts that strangers wrote.

use super::visitor::{Problem, query};
use super::{MENU, ROOT, Visitor, assets};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use maud::{DOCTYPE, Markup, html};
use percent_encoding::{NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use posthaste_api_types::log::LogState;
use posthaste_wire::time::Timestamp;

/// What is around a page.
pub(super) struct Frame<'a> {
    pub(super) title: &'a str,
    /// Nobody, before the login.
    pub(super) visitor: Option<&'a Visitor>,
    /// Whether the way to the pages is shown.
    has_menu: bool,
    /// What was done just now.
    pub(super) flash: Option<&'a str>,
}

impl<'a> Frame<'a> {
    /// A page for everybody.
    pub(super) fn outside(title: &'a str) -> Frame<'a> {
        Frame { title, visitor: None, has_menu: false, flash: None }
    }

    /// A page that is not what was looked for, and leads on.
    pub(super) fn lost(title: &'a str) -> Frame<'a> {
        Frame { has_menu: true, ..Frame::outside(title) }
    }

    /// A page of a visitor.
    pub(super) fn of(visitor: &'a Visitor, title: &'a str, flash: Option<&'a str>) -> Frame<'a> {
        Frame { title, visitor: Some(visitor), has_menu: true, flash }
    }
}

/// A whole page.
pub(super) fn page(frame: &Frame<'_>, body: &Markup) -> Markup {
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                title { (frame.title) " · Posthaste" }
                link rel="icon" href=(assets::path("icon.svg")) type="image/svg+xml";
                link rel="stylesheet" href=(assets::path("console.css"));
                script src=(assets::path("console.js")) defer {}
            }
            body {
                a.skip href="#main" { "Skip to content" }
                @if frame.has_menu { (head(frame.visitor)) }
                main #main tabindex="-1" {
                    @if let Some(said) = frame.flash.filter(|said| !said.is_empty()) {
                        p.flash role="status" { (said) }
                    }
                    // For the script: readers of screens only tell what changes in a line that was there before.
                    p.age #age role="status" {}
                    (body)
                }
            }
        }
    }
}

fn head(visitor: Option<&Visitor>) -> Markup {
    let path = visitor.map_or("", |visitor| visitor.here.split('?').next().unwrap_or_default());
    html! {
        header.top {
            a.brand href=(ROOT) { img src=(assets::path("icon.svg")) alt="" width="22" height="22"; "Posthaste" }
            nav aria-label="Pages" {
                @for (rest, name) in MENU {
                    @let target = format!("{ROOT}{rest}");
                    @let is_here = if rest.is_empty() { path == ROOT } else { path.starts_with(&target) };
                    a href=(target) aria-current=[is_here.then_some("page")] { (name) }
                }
            }
            @if let Some(visitor) = visitor { div.who {
                @if visitor.desk.is_open() {
                    form method="post" action="/console/tenant" data-submit-on-change {
                        label.quiet for="tenant" { "Tenant" }
                        select #tenant name="name" {
                            @for tenant in &visitor.desk.app.config.tenants {
                                option value=(tenant.name) selected[tenant.name == visitor.tenant_name()] { (tenant.name) }
                            }
                        }
                        noscript { button { "Switch" } }
                    }
                } @else {
                    span { (visitor.tenant_name()) @if !visitor.may_act() { " · read-only" } }
                    form method="post" action="/console/logout" { button { "Log out" } }
                }
            } }
        }
    }
}

/// There is no such page.
pub(super) async fn no_page() -> Response {
    let body = html! { div.card { h1 { "Page not found" } p { a href=(ROOT) { "Back to overview" } } } };
    (StatusCode::NOT_FOUND, page(&Frame::lost("Page not found"), &body)).into_response()
}

/// A time, with how long ago it is or how long it will take; the script adds the visitor's own zone.
pub(super) fn time(at: Timestamp, now: Timestamp) -> Markup {
    let text = utc(at);
    html! { time datetime=(text) title=(text) { (distance(at, now)) } }
}

/// A time in full and its distance.
pub(super) fn time_in_full(at: Timestamp, now: Timestamp) -> Markup {
    let text = utc(at);
    html! { time datetime=(text) data-full { (text.replace('T', " ").replace('Z', " UTC")) } " (" (distance(at, now)) ")" }
}

/// `2026-11-16T12:00:00.123Z`; a time that no calendar has is a number.
pub(super) fn utc(at: Timestamp) -> String {
    let found = i64::try_from(at.as_millis()).ok().and_then(|millis| jiff::Timestamp::from_millisecond(millis).ok());
    found.map_or_else(|| at.to_string(), |found| format!("{found:.3}"))
}

/// `12 s ago`, `just now`, `in 3 min`.
pub(super) fn distance(at: Timestamp, now: Timestamp) -> String {
    match (at.millis_since(now), now.millis_since(at)) {
        (0, 0..1_000) => "just now".to_owned(),
        (1..1_000, _) => "now".to_owned(),
        (0, ago) => format!("{} ago", duration(ago)),
        (to_come, _) => format!("in {}", duration(to_come)),
    }
}

/// A length of time, rounded, from two minutes to ten days in two units: `350 ms`, `1.2 s`, `95 s`, `3 min 20 s`, `6 d 23 h`,
/// `12 d`.
pub(super) fn duration(millis: u64) -> String {
    let rounded = |unit: u64| millis.saturating_add(unit / 2) / unit;
    let (tenths, seconds, minutes) = (rounded(100), rounded(1_000), rounded(60_000));
    let (hours, days) = (rounded(3_600_000), rounded(86_400_000));
    match millis {
        0..1_000 => format!("{millis} ms"),
        _ if tenths < 100 => format!("{}.{} s", tenths / 10, tenths % 10),
        _ if seconds < 120 => format!("{seconds} s"),
        _ if seconds < 3_600 => two_units(seconds, 60, "min", "s"),
        _ if minutes < 24 * 60 => two_units(minutes, 60, "h", "min"),
        _ if hours < 10 * 24 => two_units(hours, 24, "d", "h"),
        _ => format!("{days} d"),
    }
}

/// `3 min 20 s` of 200 seconds; `3 min` of 180.
fn two_units(count: u64, per_large: u64, large: &str, small: &str) -> String {
    match count % per_large {
        0 => format!("{} {large}", count / per_large),
        rest => format!("{} {large} {rest} {small}", count / per_large),
    }
}

/// A number with narrow spaces between thousands, at which no line breaks.
pub(super) fn number(number: u64) -> String {
    let digits = number.to_string();
    let groups: Vec<&str> =
        digits.as_bytes().rchunks(3).rev().map(|group| std::str::from_utf8(group).unwrap_or("")).collect();
    groups.join("\u{202f}")
}

/// A length of time as people say it, to the second: `365 days`, `1 hour 30 minutes`.
pub(super) fn in_words(seconds: u64) -> String {
    let units = [("day", seconds / 86_400), ("hour", seconds / 3_600 % 24), ("minute", seconds / 60 % 60)];
    let said = units.into_iter().chain([("second", seconds % 60)]).filter(|(_, count)| *count > 0);
    let said: Vec<String> = said.map(|(unit, count)| counted(count as usize, unit)).collect();
    if said.is_empty() { "0 seconds".to_owned() } else { said.join(" ") }
}

/// A period after "per" or "the last": `second`, `90 seconds`.
pub(super) fn period(seconds: u64) -> String {
    let words = in_words(seconds);
    words.strip_prefix("1 ").filter(|unit| !unit.contains(' ')).map_or(words.clone(), str::to_owned)
}

/// `1 run`, `2 runs`.
pub(super) fn counted(count: usize, what: &str) -> String {
    format!("{} {what}{}", number(count as u64), if count == 1 { "" } else { "s" })
}

/// How many there are, if not all were looked at.
pub(super) fn at_least(count: u64, is_all: bool) -> String {
    format!("{}{}", if is_all { "" } else { "at least " }, number(count))
}

/// A state of the API in the console's words.
pub(super) fn state_word(name: &str) -> String {
    match name {
        "ACTIVE" => "in flight".to_owned(),
        "RETRY" => "retrying".to_owned(),
        "CANCELED" => "cancelled".to_owned(),
        "STARTED" => "running".to_owned(),
        "PROGRESS" => "in progress".to_owned(),
        "SUCCESS" => "succeeded".to_owned(),
        other => other.to_lowercase().replace('_', " "),
    }
}

/// The state of a message after its last log line. `is_scheduled` says whether its time is still to come.
pub(super) fn message_state(last: Option<LogState>, is_scheduled: bool) -> Markup {
    match last {
        Some(LogState::Created) => html! { span.state.busy { (if is_scheduled { "scheduled" } else { "pending" }) } },
        // A retry follows, or another line.
        Some(LogState::Error) => log_state(LogState::Retry),
        Some(other) => log_state(other),
        None => html! {},
    }
}

/// The state of a log line.
pub(super) fn log_state(state: LogState) -> Markup {
    let (kind, word) = match state {
        LogState::Created => ("busy", "created"),
        LogState::Active => ("busy", "in flight"),
        LogState::Error => ("bad", "error"),
        LogState::Retry => ("warn", "retrying"),
        LogState::Delivered => ("good", "delivered"),
        LogState::Failed => ("bad", "failed"),
        LogState::CancelRequested => ("warn", "cancel requested"),
        LogState::Canceled => ("off", "cancelled"),
    };
    html! { span.state.(kind) { (word) } }
}

/// A body or another text that a stranger wrote, folded when it is long.
pub(super) fn text(title: &str, text: &str) -> Markup {
    let lines = text.lines().count();
    let is_long = lines > 12 || text.len() > 1_000;
    html! {
        details.text open[!is_long] {
            summary { (title) span.quiet { " · " (number(text.len() as u64)) " bytes" } }
            pre tabindex="0" { (text) }
        }
    }
}

/// Characters of a text that are shown at once; a longer one is scrolled in its place, by keys as well.
const SHOWN_CHARS_MAX: usize = 300;

/// A text that may be long where others follow: a URL, for example.
pub(super) fn long(text: &str) -> Markup {
    let is_long = text.chars().nth(SHOWN_CHARS_MAX).is_some();
    html! { span class=[is_long.then_some("long")] tabindex=[is_long.then_some("0")] { (text) } }
}

/// What a list says when it is empty.
pub(super) fn empty(what: &str, hint: &Markup) -> Markup {
    html! { div.empty { p { strong { (what) } } (hint) } }
}

/// A command to copy.
pub(super) fn command(command: &str) -> Markup {
    html! { p { code.command { (command) } } p { button type="button" data-copy=(command) { "Copy" } } }
}

/// The way to the next page of a list.
pub(super) fn pager(path: &str, pairs: &[(&str, &str)], cursor: Option<&str>) -> Markup {
    let is_first = !pairs.iter().any(|(name, value)| *name == "cursor" && !value.is_empty());
    let rest: Vec<(&str, &str)> = pairs.iter().filter(|(name, _)| *name != "cursor").copied().collect();
    let target = |cursor: &str| {
        let mut pairs = rest.clone();
        pairs.push(("cursor", cursor));
        format!("{path}?{}", query(&pairs))
    };
    html! {
        nav.pager aria-label="Pagination" {
            @if !is_first { a href=(target("")) { "First page" } }
            @if let Some(cursor) = cursor { a href=(target(cursor)) rel="next" { "Next page" } }
        }
    }
}

/// Rows of a list that has no pages; of more, the visitor is told to look for what is wanted.
pub(super) const ROWS_MAX: usize = 500;

/// The form above such a list: looks for names that hold a text.
pub(super) fn search(path: &str, label: &str, given: &str) -> Markup {
    html! {
        form.filters method="get" action=(path) role="search" {
            label { (label) input type="search" name="search" value=(given) maxlength="256"; }
            div.actions { button type="submit" { "Search" } @if !given.is_empty() { a.button href=(path) { "Show all" } } }
        }
    }
}

/// A column of a table.
pub(super) struct Column {
    name: &'static str,
    /// Numbers stand below one another.
    is_number: bool,
    /// What it means, if the name does not say enough.
    meaning: Option<&'static str>,
}

/// A column of texts.
pub(super) const fn column(name: &'static str) -> Column {
    Column { name, is_number: false, meaning: None }
}

/// A column of numbers.
pub(super) const fn numbers(name: &'static str, meaning: Option<&'static str>) -> Column {
    Column { name, is_number: true, meaning }
}

/// A table that scrolls to the side where it is too wide.
pub(super) fn table(columns: &[Column], rows: &Markup) -> Markup {
    html! {
        div.scroll {
            table {
                thead {
                    tr {
                        @for column in columns {
                            th.number[column.is_number] scope="col" title=[column.meaning] { (column.name) }
                        }
                    }
                }
                tbody { (rows) }
            }
        }
    }
}

/// A list without pages: its table and how many of how many it shows, or what is said when nothing was found.
pub(super) fn found(path: &str, count: usize, all: usize, nothing: &str, table: impl FnOnce() -> Markup) -> Markup {
    match count {
        0 => empty(nothing, &html! { a href=(path) { "Show all" } }),
        count => html! { (table()) (shown_of(count, all)) },
    }
}

/// Says that a list has more entries than the page knows.
pub(super) fn more(has_more: bool) -> Markup {
    html! { @if has_more { p.hint { "The list is longer than this page can show. Use the API to list everything." } } }
}

/// How many of how many a list shows.
fn shown_of(found: usize, all: usize) -> Markup {
    let shown = found.min(ROWS_MAX);
    html! {
        p.hint {
            @if shown == all { (number(all as u64)) " total" }
            @else { (number(shown as u64)) " of " (number(all as u64)) }
            @if found > ROWS_MAX { ". Search to find the rest." }
        }
    }
}

/// Whether buttons act, and the reason if they do not.
pub(super) fn refusal(visitor: &Visitor) -> Option<&'static str> {
    (!visitor.may_act()).then_some("Your token is read-only")
}

/// The button that sends a form.
pub(super) fn submit(visitor: &Visitor, name: &str) -> Markup {
    html! { button.primary type="submit" disabled[!visitor.may_act()] title=[refusal(visitor)] { (name) } }
}

/// A page with a form that is shown again if what it said was refused.
pub(super) fn answer(visitor: &Visitor, title: &str, body: &Markup, problem: Option<&Problem>) -> Response {
    let status = problem.map_or(StatusCode::OK, |problem| problem.status);
    (status, page(&visitor.frame(title), body)).into_response()
}

/// Why a form was refused, if it was.
pub(super) fn alert(problem: Option<&Problem>) -> Markup {
    html! { @if let Some(problem) = problem { p.problem role="alert" { (problem.text) } } }
}

/// A button that acts: a form of its own. With a question, the script asks it first.
pub(super) fn button(
    visitor: &Visitor,
    action: &str,
    name: &str,
    question: Option<&str>,
    fields: &[(&str, &str)],
) -> Markup {
    html! {
        form.inline method="post" action=(action) data-confirm=[question] {
            @for (name, value) in fields { input type="hidden" name=(name) value=(value); }
            input type="hidden" name="next" value=(visitor.here);
            button type="submit" disabled[!visitor.may_act()] title=[refusal(visitor)] { (name) }
        }
    }
}

/// The button that pauses what goes on, or lets go on what is paused; its action is behind the path.
pub(super) fn pause_button(visitor: &Visitor, path: &str, is_paused: bool) -> Markup {
    let (action, name) = if is_paused { ("resume", "Resume") } else { ("pause", "Pause") };
    html! { span.pause { (button(visitor, &format!("{path}/{action}"), name, None, &[])) } }
}

/// The cookie that carries what was done to the next page.
const FLASH_COOKIE: &str = "posthaste-flash";
/// Characters of it that are shown; the rest is cut.
const FLASH_CHARS_MAX: usize = 500;

/// Shows a text on the next page.
pub(super) fn flash(said: &str) -> [(header::HeaderName, HeaderValue); 1] {
    let said: String = said.chars().take(FLASH_CHARS_MAX).collect();
    let seconds = if said.is_empty() { 0 } else { 10 };
    [(header::SET_COOKIE, cookie(FLASH_COOKIE, &said, Some(seconds)))]
}

/// The text for this page.
pub(super) fn flash_of(headers: &HeaderMap) -> Option<String> {
    cookie_of(headers, FLASH_COOKIE)
}

/// A cookie that only we read. Those of a session have to be encrypted on their way.
pub(super) fn cookie(name: &str, value: &str, max_age_seconds: Option<u32>) -> HeaderValue {
    let value = utf8_percent_encode(value, NON_ALPHANUMERIC);
    let secure = if name.starts_with("__Host-") { "; Secure" } else { "" };
    let age = max_age_seconds.map_or(String::new(), |seconds| format!("; Max-Age={seconds}"));
    let text = format!("{name}={value}; Path=/; HttpOnly; SameSite=Strict{secure}{age}");
    HeaderValue::from_str(&text).unwrap_or(HeaderValue::from_static(""))
}

/// The value of a cookie.
pub(super) fn cookie_of(headers: &HeaderMap, name: &str) -> Option<String> {
    let lines = headers.get_all(header::COOKIE).iter().filter_map(|line| line.to_str().ok());
    let mut pairs = lines.flat_map(|line| line.split(';')).filter_map(|pair| pair.trim().split_once('='));
    let (_, value) = pairs.find(|(found, _)| *found == name)?;
    percent_decode_str(value).decode_utf8().ok().map(|value| value.into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_those_of_the_calendar() {
        for (millis, expected) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (1_794_830_400_123, "2026-11-16T12:00:00.123Z"),
            (u64::MAX, "18446744073709551615"),
        ] {
            assert_eq!(utc(Timestamp(millis)), expected);
        }
    }

    #[test]
    fn distances_are_short() {
        let now = Timestamp(1_000_000_000);
        for (at, expected) in [
            (now, "just now"),
            (now.minus_millis(999), "just now"),
            (now.plus_millis(999), "now"),
            (now.minus_millis(12_345), "12 s ago"),
            (now.plus_millis(3_000), "in 3.0 s"),
            (now.minus_millis(600_000), "10 min ago"),
            (now.plus_millis(3 * 86_400_000), "in 3 d"),
        ] {
            assert_eq!(distance(at, now), expected);
        }
        for (millis, expected) in [
            (0, "0 ms"),
            (999, "999 ms"),
            (1_000, "1.0 s"),
            (9_949, "9.9 s"),
            (9_950, "10 s"),
            (119_499, "119 s"),
            (119_500, "2 min"),
            (200_000, "3 min 20 s"),
            (3_599_499, "59 min 59 s"),
            (3_599_500, "1 h"),
            (5_400_000, "1 h 30 min"),
            (86_369_999, "23 h 59 min"),
            (86_370_000, "1 d"),
            (7 * 86_400_000 - 1, "7 d"),
            (7 * 86_400_000 - 3_600_000, "6 d 23 h"),
            (10 * 86_400_000 - 1, "10 d"),
            (12 * 86_400_000 + 3_600_000, "12 d"),
            (u64::MAX, "213503982334 d"),
        ] {
            assert_eq!(duration(millis), expected, "{millis} ms");
        }
        for (seconds, expected) in [
            (0, "0 seconds"),
            (1, "1 second"),
            (30, "30 seconds"),
            (5_400, "1 hour 30 minutes"),
            (7_200, "2 hours"),
            (86_401, "1 day 1 second"),
            (31_536_000, "365 days"),
        ] {
            assert_eq!(in_words(seconds), expected);
        }
        let periods = [1, 60, 90, 3_660, 86_400, 172_800].map(period);
        assert_eq!(periods, ["second", "minute", "1 minute 30 seconds", "1 hour 1 minute", "day", "2 days"]);
        assert_eq!(
            (number(0), number(1_000), number(12_345_678)),
            ("0".into(), "1\u{202f}000".into(), "12\u{202f}345\u{202f}678".into())
        );
    }

    #[test]
    fn only_a_long_text_is_scrolled_in_its_place() {
        assert_eq!(long("https://a/<b>").into_string(), "<span>https://a/&lt;b&gt;</span>");
        let text = "ä".repeat(SHOWN_CHARS_MAX + 1);
        assert_eq!(long(&text).into_string(), format!("<span class=\"long\" tabindex=\"0\">{text}</span>"));
    }

    #[test]
    fn cookies_come_back_as_they_were() {
        let mut headers = HeaderMap::new();
        for (name, value) in [("a", "x; y=\"z\" <ä>"), ("__Host-b", "")] {
            let set = cookie(name, value, None);
            let pair = set.to_str().unwrap().split(';').next().unwrap().to_owned();
            headers.append(header::COOKIE, pair.parse().unwrap());
            assert_eq!(cookie_of(&headers, name).as_deref(), Some(value));
            assert_eq!(set.to_str().unwrap().contains("; Secure"), name.starts_with("__Host-"));
        }
        assert_eq!(cookie_of(&headers, "c"), None);
    }
}
