//! A chart of the last minutes as SVG: lines in a box that the style sheet stretches and colours.

use maud::{Markup, html};
use std::fmt::Write;

/// How high the box is, in its own units; it is as wide as there are seconds.
const HEIGHT: f64 = 100.0;

/// A line of a chart. A second without a value is a gap.
pub(super) struct Line {
    /// As the style sheet has it.
    pub(super) class: &'static str,
    pub(super) name: &'static str,
    pub(super) values: Vec<Option<u32>>,
}

/// A chart with its legend. `shown` writes a value with its unit.
pub(super) fn chart(id: &str, title: &str, lines: &[Line], shown: impl Fn(u32) -> String) -> Markup {
    let top = ceiling(lines.iter().flat_map(|line| &line.values).flatten().copied().max().unwrap_or_default());
    let width = lines.first().map_or(1, |line| line.values.len().max(2) - 1);
    let summary: Vec<String> = lines.iter().map(|line| format!("{} {}", line.name, highest(line, &shown))).collect();
    html! {
        figure.graph aria-labelledby=(id) {
            figcaption {
                h2 id=(id) { (title) }
                ul.legend {
                    @for line in lines { li { span.swatch.(line.class) aria-hidden="true" {} (line.name) } }
                }
            }
            div.plot {
                span.ceiling { (shown(top)) }
                svg.chart viewBox=(format!("0 -2 {width} {}", HEIGHT + 4.0)) preserveAspectRatio="none" role="img" aria-label=(summary.join(", ")) {
                    path.grid d=(format!("M0 0H{width}M0 {}H{width}M0 {HEIGHT}H{width}", HEIGHT / 2.0)) {}
                    @for line in lines { path.line.(line.class) d=(path(&line.values, top)) {} }
                }
                div.axis { span { "5 min ago" } span { "now" } }
            }
        }
    }
}

fn highest(line: &Line, shown: &impl Fn(u32) -> String) -> String {
    line.values.iter().flatten().max().map_or_else(|| "none".to_owned(), |max| format!("up to {}", shown(*max)))
}

/// A round number that is not below this one: 1, 2 or 5 with zeros.
fn ceiling(value: u32) -> u32 {
    let value = u64::from(value.max(1));
    let power = 10_u64.pow(value.ilog10());
    let round = [1, 2, 5, 10].into_iter().map(|step| step * power).find(|round| *round >= value);
    u32::try_from(round.unwrap_or(value)).unwrap_or(u32::MAX)
}

/// The line from value to value. One that stands alone is a short stroke, or nobody would see it.
fn path(values: &[Option<u32>], top: u32) -> String {
    let mut path = String::new();
    let mut was_gap = true;
    for (x, value) in values.iter().enumerate() {
        let Some(value) = value else {
            was_gap = true;
            continue;
        };
        let y = HEIGHT * (1.0 - f64::from(*value) / f64::from(top));
        let is_alone = was_gap && values.get(x + 1).copied().flatten().is_none();
        // Writing to a text does not fail.
        let _ = match (was_gap, is_alone) {
            (true, true) => write!(path, "M{x} {y:.1}h.8"),
            (true, false) => write!(path, "M{x} {y:.1}"),
            (false, _) => write!(path, "L{x} {y:.1}"),
        };
        was_gap = false;
    }
    path
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_goes_through_its_values_and_has_gaps() {
        let some = Some;
        assert_eq!(path(&[some(0), some(5), some(10)], 10), "M0 100.0L1 50.0L2 0.0");
        assert_eq!(path(&[None, some(10), None, some(0), some(10), None], 10), "M1 0.0h.8M3 100.0L4 0.0");
        assert_eq!(path(&[None, None], 1), "");
        assert_eq!(path(&[None, some(1)], 1), "M1 0.0h.8");
    }

    #[test]
    fn a_chart_ends_at_a_round_number() {
        let found = [0, 1, 2, 3, 5, 6, 10, 11, 49, 51, 999, 1_000, 1_001, u32::MAX].map(ceiling);
        assert_eq!(found, [1, 1, 2, 5, 5, 10, 10, 20, 50, 100, 1_000, 1_000, 2_000, u32::MAX]);
    }

    #[test]
    fn a_chart_has_its_highest_values_as_text() {
        let lines = [
            Line { class: "good", name: "delivered", values: vec![Some(3), None] },
            Line { class: "bad", name: "failed <b>", values: vec![None, None] },
        ];
        let text = chart("c", "Rates", &lines, |value| format!("{value}/s")).into_string();
        assert!(text.contains("aria-label=\"delivered up to 3/s, failed &lt;b&gt; none\""), "{text}");
        assert!(!text.contains("style="), "{text}");
    }
}
