//! The plots: figures as SVG, readable on light and dark pages. Pure.

use super::figure::number;
use crate::stats::Percentiles;
use serde::Serialize;
use std::fmt::Write;

/// The data of the plots, filled in by the scenarios.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct Plots {
    /// Messages per second by system.
    pub(super) delivered: Vec<(String, f64)>,
    /// From publish to arrival at a fixed rate, by system.
    pub(super) latency: Vec<(String, Percentiles)>,
    /// CPU microseconds per message by the number of stored messages.
    pub(super) cost: Vec<(u32, f64)>,
}

/// The name of the server under test. Its marks stand out.
pub(super) const OURS: &str = "Posthaste";

const WIDTH: f64 = 720.0;
const TITLE_HEIGHT: f64 = 52.0;
const ROW_HEIGHT: f64 = 34.0;
/// Where marks begin, to the right of the names.
const LEFT: f64 = 210.0;
/// Where marks end, to the left of the values.
const RIGHT: f64 = 590.0;
const BOTTOM: f64 = 16.0;
const COST_HEIGHT: f64 = 260.0;

const STYLE: &str = "\
.card{fill:#ffffff;stroke:#d1d9e0}.text{fill:#1f2328}.quiet{fill:#59636e}.grid{stroke:#d1d9e0}\
.ours{fill:#1f6feb}.other{fill:#8c959f}.ours-line{stroke:#1f6feb}.other-line{stroke:#8c959f}\
@media(prefers-color-scheme:dark){.card{fill:#0d1117;stroke:#3d444d}.text{fill:#f0f6fc}.quiet{fill:#9198a1}\
.grid{stroke:#3d444d}.ours{fill:#4493f8}.other{fill:#6e7681}.ours-line{stroke:#4493f8}.other-line{stroke:#6e7681}}\
text{font:14px system-ui,sans-serif}.title{font-weight:600;font-size:16px}";

impl Plots {
    /// File names and contents of the plots that have data.
    pub(super) fn files(&self) -> Vec<(&'static str, String)> {
        let plots = [
            ("delivered.svg", delivered(&self.delivered)),
            ("latency.svg", latency(&self.latency)),
            ("cost.svg", cost(&self.cost)),
        ];
        plots.into_iter().filter_map(|(name, text)| Some((name, text?))).collect()
    }
}

/// Bars, sorted from the fastest to the slowest.
fn delivered(systems: &[(String, f64)]) -> Option<String> {
    let mut systems = systems.to_vec();
    systems.sort_by(|a, b| b.1.total_cmp(&a.1));
    let most = systems.first()?.1.max(1.0);
    let mut marks = String::new();
    for (row, (name, value)) in systems.iter().enumerate() {
        let (y, width) = (row_y(row), (RIGHT - LEFT) * value / most);
        let class = class_of(name);
        label(&mut marks, name, y);
        let _ = write!(
            marks,
            r#"<rect class="{class}" x="{LEFT}" y="{:.1}" width="{width:.1}" height="20" rx="2"/>"#,
            y - 10.0
        );
        text(&mut marks, "text", LEFT + width + 8.0, y + 5.0, "start", &number(*value));
    }
    Some(card("Messages delivered per second, 1 KiB each, durable", rows_height(systems.len()), &marks))
}

/// A line from the median to the 99th percentile of each system, on a logarithmic axis.
fn latency(systems: &[(String, Percentiles)]) -> Option<String> {
    let mut systems = systems.to_vec();
    systems.sort_by(|a, b| a.1.p50_ms.total_cmp(&b.1.p50_ms));
    let least = systems.first()?.1.p50_ms.max(0.01);
    let most = systems.iter().map(|(_, p)| p.p99_ms).reduce(f64::max)?.max(least);
    let axis = Logarithmic::around(least, most);
    let bottom = row_y(systems.len() - 1) + 20.0;
    let mut marks = String::new();
    for power in axis.powers() {
        let x = axis.place(10_f64.powi(power));
        line(&mut marks, "grid", (x, TITLE_HEIGHT), (x, bottom));
        text(&mut marks, "quiet", x, bottom + 18.0, "middle", &format!("{} ms", number(10_f64.powi(power))));
    }
    for (row, (name, percentiles)) in systems.iter().enumerate() {
        let (y, class) = (row_y(row), class_of(name));
        let (from, to) = (axis.place(percentiles.p50_ms), axis.place(percentiles.p99_ms));
        label(&mut marks, name, y);
        line(&mut marks, &format!("{class}-line\" stroke-width=\"4"), (from, y), (to, y));
        for x in [from, to] {
            let _ = write!(marks, r#"<circle class="{class}" cx="{x:.1}" cy="{y:.1}" r="6"/>"#);
        }
        let values = format!("{} – {} ms", number(percentiles.p50_ms), number(percentiles.p99_ms));
        text(&mut marks, "text", WIDTH - 16.0, y + 5.0, "end", &values);
    }
    let height = rows_height(systems.len()) + 30.0;
    Some(card("Publish to arrival at 500 messages/s: median – 99th percentile", height, &marks))
}

/// A curve over the number of stored messages.
fn cost(points: &[(u32, f64)]) -> Option<String> {
    let ((first, _), (last, _)) = (points.first()?, points.last()?);
    // Leaves room above the curve, and puts whole numbers at the grid.
    let most = (points.iter().map(|point| point.1).reduce(f64::max)?.max(1.0) * 1.2 / 20.0).ceil() * 20.0;
    let (left, right, top, bottom) = (70.0, WIDTH - 50.0, TITLE_HEIGHT + 8.0, COST_HEIGHT - 40.0);
    let (low, high) = (f64::from(*first).log10(), f64::from(*last).log10());
    let x = |stored: u32| left + (right - left) * (f64::from(stored).log10() - low) / (high - low).max(1e-9);
    let y = |us: f64| bottom - (bottom - top) * us / most;
    let mut marks = String::new();
    for part in 0..=4 {
        let us = most * f64::from(part) / 4.0;
        line(&mut marks, "grid", (left, y(us)), (right, y(us)));
        text(&mut marks, "quiet", left - 8.0, y(us) + 5.0, "end", &format!("{} µs", number(us)));
    }
    for pair in points.windows(2) {
        let ends = (pair[0], pair[1]);
        let class = "ours-line\" stroke-width=\"3";
        line(&mut marks, class, (x(ends.0.0), y(ends.0.1)), (x(ends.1.0), y(ends.1.1)));
    }
    for (stored, us) in points {
        let (x, y) = (x(*stored), y(*us));
        let _ = write!(marks, r#"<circle class="ours" cx="{x:.1}" cy="{y:.1}" r="5"/>"#);
        text(&mut marks, "text", x, y - 12.0, "middle", &number(*us));
        text(&mut marks, "quiet", x, bottom + 22.0, "middle", &number(f64::from(*stored)));
    }
    Some(card("CPU per message, by the number of messages already stored", COST_HEIGHT, &marks))
}

/// A logarithmic axis of whole powers of ten, between the names and the values.
struct Logarithmic {
    low: i32,
    high: i32,
}

impl Logarithmic {
    fn around(least: f64, most: f64) -> Self {
        let low = least.log10().floor() as i32;
        Self { low, high: (most.log10().ceil() as i32).max(low + 1) }
    }

    fn powers(&self) -> std::ops::RangeInclusive<i32> {
        self.low..=self.high
    }

    fn place(&self, value: f64) -> f64 {
        let share = (value.max(1e-9).log10() - f64::from(self.low)) / f64::from(self.high - self.low);
        LEFT + (RIGHT - 40.0 - LEFT) * share.clamp(0.0, 1.0)
    }
}

fn class_of(name: &str) -> &'static str {
    if name == OURS { "ours" } else { "other" }
}

fn row_y(row: usize) -> f64 {
    TITLE_HEIGHT + ROW_HEIGHT * (row as f64 + 0.5)
}

fn rows_height(rows: usize) -> f64 {
    TITLE_HEIGHT + ROW_HEIGHT * rows as f64 + BOTTOM
}

fn label(marks: &mut String, name: &str, y: f64) {
    text(marks, "text", LEFT - 10.0, y + 5.0, "end", name);
}

fn line(marks: &mut String, class: &str, from: (f64, f64), to: (f64, f64)) {
    let ((x1, y1), (x2, y2)) = (from, to);
    // Writing to a string cannot fail, here and below.
    let _ = write!(marks, r#"<line class="{class}" x1="{x1:.1}" y1="{y1:.1}" x2="{x2:.1}" y2="{y2:.1}"/>"#);
}

fn text(marks: &mut String, class: &str, x: f64, y: f64, anchor: &str, content: &str) {
    let content = content.replace('&', "&amp;").replace('<', "&lt;");
    let _ = write!(marks, r#"<text class="{class}" x="{x:.1}" y="{y:.1}" text-anchor="{anchor}">{content}</text>"#);
}

/// The whole picture: title and marks on its own background, so that it is readable on any page.
fn card(title: &str, height: f64, marks: &str) -> String {
    let mut picture = format!(
        r#"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" role="img"><title>{title}</title><style>{STYLE}</style>"#
    );
    let _ = write!(
        picture,
        r#"<rect class="card" x="0.5" y="0.5" width="{}" height="{}" rx="6"/>"#,
        WIDTH - 1.0,
        height - 1.0
    );
    text(&mut picture, "text title", 16.0, 30.0, "start", title);
    picture + marks + "</svg>\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    fn percentiles(p50_ms: f64, p99_ms: f64) -> Percentiles {
        Percentiles { p50_ms, p90_ms: p50_ms, p99_ms, p999_ms: p99_ms, max_ms: p99_ms }
    }

    #[test]
    fn plots_without_data_are_left_out() {
        assert!(Plots::default().files().is_empty());
        let plots = Plots { cost: vec![(1_000, 50.0), (100_000, 55.0)], ..Plots::default() };
        let files = plots.files();
        assert_eq!(files.len(), 1);
        assert!(files[0].0 == "cost.svg" && files[0].1.contains(">100,000</text>"), "{}", files[0].1);
    }

    #[test]
    fn bars_are_sorted_by_speed_and_ours_is_highlighted() {
        let systems = [("Relay & Co".to_owned(), 10.0), (OURS.to_owned(), 40.0)];
        let picture = delivered(&systems).unwrap();
        let (ours, other) = (picture.find("class=\"ours\"").unwrap(), picture.find("class=\"other\"").unwrap());
        assert!(ours < other && picture.contains("Relay &amp; Co"), "{picture}");
        assert!(picture.contains("width=\"380.0\"") && picture.contains("width=\"95.0\""), "{picture}");
    }

    #[test]
    fn latencies_share_an_axis_of_whole_powers() {
        let systems = [("Other".to_owned(), percentiles(20.0, 400.0)), (OURS.to_owned(), percentiles(0.5, 3.0))];
        let picture = latency(&systems).unwrap();
        for tick in ["0.10 ms", "1 ms", "10 ms", "100 ms", "1,000 ms"] {
            assert!(picture.contains(&format!(">{tick}</text>")), "{tick}: {picture}");
        }
        assert!(picture.contains(">20 – 400 ms</text>"), "{picture}");
    }
}
