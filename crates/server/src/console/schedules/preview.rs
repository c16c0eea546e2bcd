//! The next times of an expression: in its zone and in UTC, with words where the clock changes.

use super::super::view;
use super::super::visitor::{Problem, Visitor, query};
use axum::http::StatusCode;
use maud::{Markup, html};
use posthaste_wire::time::Timestamp;
use serde::Deserialize;

/// What the API foresees.
#[derive(Deserialize)]
pub(super) struct Forecast {
    zone: String,
    fires: Vec<Fire>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Fire {
    time: u64,
    local: String,
    clock_change: Option<String>,
    remark: Option<String>,
}

/// The next ten times after one, or what is wrong with the expression.
pub(super) async fn foresee(
    visitor: &Visitor,
    expression: &str,
    after: Option<u64>,
) -> Result<Result<Forecast, String>, Problem> {
    let after = after.map_or(String::new(), |after| after.to_string());
    let asked = query(&[("expression", expression), ("count", "10"), ("after", &after)]);
    match visitor.get(&format!("/v2/cron?{asked}")).await {
        Ok(forecast) => Ok(Ok(forecast)),
        Err(problem) if problem.status == StatusCode::BAD_REQUEST => Ok(Err(problem.text)),
        Err(problem) => Err(problem),
    }
}

/// The element that follows what is typed into a form with `data-preview`.
pub(super) fn fragment(foreseen: Option<&Result<Forecast, String>>, now: Timestamp) -> Markup {
    html! {
        div #preview aria-live="polite" {
            @match foreseen {
                None => p.hint { "The next times appear here." },
                Some(Err(text)) => p.problem { (text) },
                Some(Ok(forecast)) => (times(forecast, now)),
            }
        }
    }
}

/// The table of times.
pub(super) fn times(forecast: &Forecast, now: Timestamp) -> Markup {
    html! {
        @if forecast.fires.is_empty() { p.problem { "The schedule never fires again." } } @else {
            div.scroll tabindex="0" role="region" aria-label="Next times" {
                table.times {
                    thead {
                        tr {
                            th scope="col" { "Fires" }
                            th scope="col" { (forecast.zone) }
                            @if forecast.zone != "UTC" { th scope="col" { "UTC" } }
                        }
                    }
                    tbody {
                        @for fire in &forecast.fires { (row(fire, forecast.zone != "UTC", now)) }
                    }
                }
            }
        }
    }
}

fn row(fire: &Fire, has_zone: bool, now: Timestamp) -> Markup {
    let at = Timestamp(fire.time);
    html! {
        tr.changed[fire.clock_change.is_some()] {
            td.tight { (view::time(at, now)) }
            td.tight { (weekday(&fire.local)) " " (minutes(&fire.local)) " " span.quiet { (offset(&fire.local)) } }
            @if has_zone { td.tight { (minutes(&view::utc(at))) } }
        }
        @if let Some(change) = &fire.clock_change {
            tr.changed.remark {
                td colspan=(if has_zone { 3 } else { 2 }) {
                    span.state.warn { (if change == "skipped" { "skipped time" } else { "repeated time" }) }
                    " " (fire.remark.as_deref().unwrap_or_default())
                }
            }
        }
    }
}

/// `2026-03-29 03:00` of `2026-03-29T03:00:00+02:00`.
fn minutes(time: &str) -> String {
    time.get(..16).unwrap_or(time).replace('T', " ")
}

/// `+02:00` of the same.
fn offset(time: &str) -> &str {
    time.get(19..).unwrap_or_default()
}

/// `Sun` of the same.
fn weekday(time: &str) -> String {
    let date = time.get(..10).and_then(|date| date.parse::<jiff::civil::Date>().ok());
    date.map_or(String::new(), |date| date.strftime("%a").to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_split_into_its_parts() {
        let time = "2026-03-29T03:00:00+02:00";
        assert_eq!(
            (weekday(time).as_str(), minutes(time).as_str(), offset(time)),
            ("Sun", "2026-03-29 03:00", "+02:00")
        );
        assert_eq!((weekday("").as_str(), minutes("<b>").as_str(), offset("ä")), ("", "<b>", ""));
    }

    #[test]
    fn a_clock_change_has_a_remark() {
        let fire = |clock_change: Option<&str>, remark: Option<&str>| Fire {
            time: 1_774_746_000_000,
            local: "2026-03-29T03:00:00+02:00".to_owned(),
            clock_change: clock_change.map(str::to_owned),
            remark: remark.map(str::to_owned),
        };
        let fires =
            vec![fire(None, None), fire(Some("skipped"), Some("<i>gone</i>")), fire(Some("repeated"), Some("twice"))];
        let html = times(&Forecast { zone: "Europe/Berlin".to_owned(), fires }, Timestamp(0)).into_string();
        assert_eq!(html.matches("class=\"changed remark\"").count(), 2, "{html}");
        for text in [
            "skipped time",
            "&lt;i&gt;gone&lt;/i&gt;",
            "repeated time",
            "twice",
            "2026-03-29 01:00",
            "Sun 2026-03-29 03:00",
        ] {
            assert!(html.contains(text), "{text}: {html}");
        }
    }
}
