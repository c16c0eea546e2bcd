//! The table of a run, for people and as JSON.

use crate::stage::Measured;
use serde_json::{Value, json};
use std::io::Write;
use std::time::Duration;

/// One case.
pub(crate) struct Row {
    pub(crate) name: &'static str,
    measured: Option<Measured>,
    pub(crate) problems: Vec<String>,
    /// Why the machine does not allow it.
    skipped: Option<String>,
}

impl Row {
    pub(crate) fn judged(name: &'static str, measured: Measured, problems: Vec<String>) -> Row {
        Row { name, measured: Some(measured), problems, skipped: None }
    }

    pub(crate) fn skipped(name: &'static str, reason: String) -> Row {
        Row { name, measured: None, problems: Vec::new(), skipped: Some(reason) }
    }

    /// The suite itself failed.
    pub(crate) fn broken(name: &'static str, problem: String) -> Row {
        Row { name, measured: None, problems: vec![problem], skipped: None }
    }

    fn cells(&self) -> [String; 8] {
        let verdict = if self.problems.is_empty() { "ok" } else { "FAILED" }.to_owned();
        let Some(measured) = &self.measured else {
            let none = || "–".to_owned();
            return [self.name.to_owned(), none(), none(), none(), none(), none(), none(), verdict];
        };
        let millis = |p99: Option<Duration>| p99.map_or("–".to_owned(), |p99| format!("{} ms", p99.as_millis()));
        let (attack, used, seen) = (&measured.attack, &measured.used, measured.seen.as_ref());
        [
            self.name.to_owned(),
            size(attack.bytes),
            format!("{:.1} s", used.cpu.as_secs_f64()),
            size(used.rss_over_idle),
            size(used.written),
            millis(seen.map(|seen| seen.publish_p99())),
            millis(seen.map(|seen| seen.read_p99())),
            verdict,
        ]
    }

    fn json(&self) -> Value {
        let measured = self.measured.as_ref().map(|measured| {
            let seen = measured.seen.as_ref();
            json!({
                "attackerBytes": measured.attack.bytes,
                "cpuMs": measured.used.cpu.as_millis() as u64,
                "rssOverIdleBytes": measured.used.rss_over_idle,
                "writtenBytes": measured.used.written,
                "elapsedMs": measured.used.elapsed.as_millis() as u64,
                "publishP99Ms": seen.map(|seen| seen.publish_p99().as_millis() as u64),
                "readP99Ms": seen.map(|seen| seen.read_p99().as_millis() as u64),
                "notes": measured.attack.notes,
            })
        });
        json!({ "case": self.name, "measured": measured, "problems": self.problems, "skipped": self.skipped })
    }
}

fn size(bytes: u64) -> String {
    match bytes {
        0..1_000 => format!("{bytes} B"),
        1_000..1_000_000 => format!("{:.0} KB", bytes as f64 / 1e3),
        _ => format!("{:.0} MB", bytes as f64 / 1e6),
    }
}

const TITLES: [&str; 8] = [
    "attack",
    "attacker's bytes",
    "server CPU",
    "peak RSS over idle",
    "disk",
    "neighbour publish p99",
    "neighbour read p99",
    "verdict",
];

/// The table, and below it the notes and problems.
pub(crate) fn table(rows: &[Row]) -> String {
    let cells: Vec<[String; 8]> =
        std::iter::once(TITLES.map(str::to_owned)).chain(rows.iter().map(Row::cells)).collect();
    let length = |text: &String| text.chars().count();
    let widths: Vec<usize> =
        (0..TITLES.len()).map(|column| cells.iter().map(|row| length(&row[column])).max().unwrap_or(0)).collect();
    let line = |cells: &[String; 8]| {
        let padded: Vec<String> = cells.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}")).collect();
        format!("| {} |\n", padded.join(" | "))
    };
    let mut text = line(&cells[0]);
    text += &format!("|{}|\n", widths.iter().map(|width| "-".repeat(width + 2)).collect::<Vec<_>>().join("|"));
    for (row, cells) in rows.iter().zip(&cells[1..]) {
        text += &match &row.skipped {
            Some(reason) => format!("| {:width$} | skipped: {reason} |\n", row.name, width = widths[0]),
            None => line(cells),
        };
    }
    for row in rows {
        for note in row.measured.iter().flat_map(|measured| &measured.attack.notes) {
            text += &format!("{}: {note}\n", row.name);
        }
        for problem in &row.problems {
            text += &format!("{}: FAILED: {problem}\n", row.name);
        }
    }
    text
}

/// The same for programs.
pub(crate) fn json(rows: &[Row]) -> Value {
    Value::Array(rows.iter().map(Row::json).collect())
}

/// To the terminal, also when the test passes.
pub(crate) fn say(line: &str) {
    drop(writeln!(std::io::stderr(), "{line}"));
}
