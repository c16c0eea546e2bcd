//! When a message would be tried again, in a sentence.

use super::super::Visitor;
use super::super::visitor::{Problem, query};
use maud::{Markup, html};
use serde::Deserialize;

/// Attempts that are named; the rest is counted.
const NAMED_MAX: usize = 8;

/// The API's answer.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Plan {
    attempts: Vec<Attempt>,
    gives_up_at_ms: u64,
    jitter: f64,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Attempt {
    at_ms: u64,
}

/// Asks for the plan of these settings.
pub(super) async fn of(visitor: &Visitor, retries: &str, expression: &str) -> Result<Plan, Problem> {
    let pairs = [("retries", retries.trim()), ("expression", expression.trim())];
    visitor.get(&format!("/v2/retryDelay?{}", query(&pairs))).await
}

pub(super) fn markup(plan: &Result<Plan, Problem>) -> Markup {
    html! {
        div #retry-plan aria-live="polite" {
            @match plan {
                Ok(plan) => {
                    p.note { (sentence(plan)) }
                    p.hint {
                        "This assumes that each attempt fails immediately."
                        @if plan.jitter > 0.0 { " Random jitter adds up to " (plan.jitter * 100.0) " % to each delay." }
                        " A Retry-After header in the response overrides the delay. A 489 response with Upstash-NonRetryable-Error: true stops the retries."
                    }
                },
                Err(problem) => p.problem { (problem.text) },
            }
        }
    }
}

fn sentence(plan: &Plan) -> String {
    let named: Vec<String> = plan.attempts.iter().take(NAMED_MAX).map(|attempt| exact(attempt.at_ms)).collect();
    if plan.attempts.len() == 1 {
        return "One attempt; if it fails, the message moves to the DLQ.".to_owned();
    }
    let more = match plan.attempts.len() - named.len() {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    format!("Attempts at {}{more}; gives up after {}.", named.join(", "), exact(plan.gives_up_at_ms))
}

/// A length of time in its two largest units.
fn exact(millis: u64) -> String {
    const UNITS: [(u64, &str); 5] = [(86_400_000, "d"), (3_600_000, "h"), (60_000, "min"), (1_000, "s"), (1, "ms")];
    let Some(first) = UNITS.iter().position(|(size, _)| millis >= *size) else { return "0 s".to_owned() };
    let (size, unit) = UNITS[first];
    let rest = UNITS.get(first + 1).map(|(below, name)| (millis % size / below, name));
    match rest {
        // From ten seconds on, milliseconds do not matter.
        Some((rest, name)) if rest > 0 && !(*name == "ms" && millis >= 10_000) => {
            format!("{} {unit} {rest} {name}", millis / size)
        }
        _ => format!("{} {unit}", millis / size),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_have_two_units() {
        for (millis, expected) in [
            (0, "0 s"),
            (999, "999 ms"),
            (1_500, "1 s 500 ms"),
            (12_182, "12 s"),
            (160_595, "2 min 40 s"),
            (60_000, "1 min"),
            (3_661_000, "1 h 1 min"),
            (90_000_000, "1 d 1 h"),
        ] {
            assert_eq!(exact(millis), expected);
        }
    }

    #[test]
    fn a_plan_is_a_sentence() {
        let plan = |times: &[u64]| Plan {
            attempts: times.iter().map(|at_ms| Attempt { at_ms: *at_ms }).collect(),
            gives_up_at_ms: times.last().copied().unwrap_or(0),
            jitter: 0.05,
        };
        assert_eq!(
            sentence(&plan(&[0, 12_182, 160_595])),
            "Attempts at 0 s, 12 s, 2 min 40 s; gives up after 2 min 40 s."
        );
        assert_eq!(sentence(&plan(&[0])), "One attempt; if it fails, the message moves to the DLQ.");
        let many: Vec<u64> = (0..11).map(|n| n * 1_000).collect();
        assert!(
            sentence(&plan(&many)).ends_with("6 s, 7 s and 3 more; gives up after 10 s."),
            "{}",
            sentence(&plan(&many))
        );
    }
}
