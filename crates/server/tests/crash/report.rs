//! What a run has shown: one row per kind of fault, for people and as JSON.

use crate::checker::{Counts, Violation, count};
use crate::history::Millis;
use crate::round::Verdict;
use serde_json::{Value, json};
use std::io::Write;

/// Most violations of one kind of fault that are shown in full.
const SHOWN_MAX: usize = 10;

/// Runs of fewer cycles are short.
const PROGRESS_MIN: u64 = 60;

/// Everything about one kind of fault.
#[derive(Clone, Debug, Default)]
pub(crate) struct Row {
    pub(crate) kind: &'static str,
    /// How often the fault was made.
    pub(crate) cycles: u64,
    counts: Counts,
    lost: usize,
    /// Broken promises, each with what is known about it.
    violations: Vec<String>,
    /// Why the machine does not allow this kind.
    skipped: Option<String>,
    /// How long the machine stood still, which is allowed for.
    still_ms: Millis,
    /// What else there is to say.
    notes: Vec<String>,
    pub(crate) seconds: f64,
}

impl Row {
    pub(crate) fn new(kind: &'static str) -> Row {
        Row { kind, ..Row::default() }
    }

    pub(crate) fn skipped(kind: &'static str, reason: String) -> Row {
        Row { skipped: Some(reason), ..Row::new(kind) }
    }

    /// Adds a round that has been judged.
    pub(crate) fn add(&mut self, verdict: &Verdict) {
        self.counts.add(&count(&verdict.history));
        let is_loss = |violation: &&Violation| matches!(violation, Violation::Lost(_) | Violation::Unaccounted(_));
        self.lost += verdict.violations.iter().filter(is_loss).count();
        self.violations.extend(verdict.violations.iter().map(|violation| verdict.explain(violation)));
        self.still_ms += verdict.history.still_ms(0, Millis::MAX);
    }

    /// Adds messages that were followed one by one.
    pub(crate) fn add_counts(&mut self, counts: &Counts) {
        self.counts.add(counts);
    }

    /// Something else that must not be.
    pub(crate) fn complain(&mut self, problem: impl Into<String>) {
        self.violations.push(problem.into());
    }

    pub(crate) fn note(&mut self, note: impl Into<String>) {
        self.notes.push(note.into());
    }

    /// A run in which nothing happened is a failure.
    pub(crate) fn expect_deliveries(&mut self) {
        if self.cycles == 0 || self.counts.acknowledged == 0 || self.counts.delivered == 0 {
            self.complain(format!("too little happened: {} cycles, {:?}", self.cycles, self.counts));
        }
    }

    /// Says how far a long run has come.
    pub(crate) fn progress(&self, cycles: u64) {
        if cycles > PROGRESS_MIN {
            let (kind, done, violations) = (self.kind, self.cycles, self.violations.len());
            say(&format!("torture: {kind}: {done} of {cycles} cycles, {violations} violations"));
        }
    }

    pub(crate) fn is_sound(&self) -> bool {
        self.violations.is_empty()
    }

    fn cells(&self) -> [String; 10] {
        let Counts { acknowledged, delivered, duplicates, unknown, runs, .. } = self.counts;
        let numbers = [acknowledged, delivered, duplicates, unknown, runs, self.lost, self.violations.len()];
        let [acknowledged, delivered, duplicates, unknown, runs, lost, violations] =
            numbers.map(|number| number.to_string());
        let (kind, cycles, seconds) = (self.kind.to_owned(), self.cycles.to_string(), format!("{:.1}", self.seconds));
        [kind, cycles, acknowledged, delivered, duplicates, unknown, runs, lost, violations, seconds]
    }

    fn json(&self) -> Value {
        json!({
            "kind": self.kind,
            "cycles": self.cycles,
            "acknowledged": self.counts.acknowledged,
            "delivered": self.counts.delivered,
            "duplicates": self.counts.duplicates,
            "unknown": self.counts.unknown,
            "runs": self.counts.runs,
            "lost": self.lost,
            "violations": self.violations,
            "skipped": self.skipped,
            "still_ms": self.still_ms,
            "notes": self.notes,
            "seconds": self.seconds,
        })
    }
}

const TITLES: [&str; 10] =
    ["fault", "cycles", "acknowledged", "delivered", "duplicates", "unknown", "runs", "lost", "violations", "seconds"];

/// The table, and below it what is remarkable.
pub(crate) fn table(rows: &[Row]) -> String {
    let widths: Vec<usize> = (0..TITLES.len())
        .map(|column| rows.iter().map(|row| row.cells()[column].len()).max().unwrap_or(0).max(TITLES[column].len()))
        .collect();
    let line = |cells: Vec<String>| {
        let padded = cells.iter().zip(&widths).enumerate().map(|(column, (cell, width))| match column {
            0 => format!("{cell:width$}"),
            _ => format!("{cell:>width$}"),
        });
        format!("| {} |\n", padded.collect::<Vec<_>>().join(" | "))
    };
    let mut text = line(TITLES.map(str::to_owned).to_vec());
    let rules = widths.iter().enumerate().map(|(column, width)| match column {
        0 => "-".repeat(*width),
        _ => format!("{}:", "-".repeat(width - 1)),
    });
    text += &line(rules.collect());
    for row in rows {
        match &row.skipped {
            None => text += &line(row.cells().to_vec()),
            Some(reason) => text += &format!("| {:width$} | skipped: {reason} |\n", row.kind, width = widths[0]),
        }
    }
    for row in rows {
        if row.still_ms > 0 {
            text += &format!("{}: the machine stood still for {} ms in all\n", row.kind, row.still_ms);
        }
        for note in &row.notes {
            text += &format!("{}: {note}\n", row.kind);
        }
        for violation in row.violations.iter().take(SHOWN_MAX) {
            text += &format!("{}: VIOLATION {violation}\n", row.kind);
        }
    }
    text
}

/// To the terminal, also when the test passes.
pub(crate) fn say(line: &str) {
    drop(writeln!(std::io::stderr(), "{line}"));
}

/// The same for programs.
pub(crate) fn json(seed: u64, rows: &[Row]) -> Value {
    json!({ "seed": seed, "rows": rows.iter().map(Row::json).collect::<Vec<_>>() })
}

#[test]
fn a_table_has_a_line_per_kind_and_says_what_was_skipped() {
    let mut good = Row { cycles: 20, seconds: 1.25, ..Row::new("kill") };
    good.add_counts(&Counts { acknowledged: 7, delivered: 6, ..Counts::default() });
    good.expect_deliveries();
    assert!(good.is_sound());
    let mut bad = Row::new("point");
    bad.note("a note");
    bad.expect_deliveries();
    assert!(!bad.is_sound());
    let text = table(&[good, Row::skipped("power cut", "not root".to_owned()), bad]);
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(
        lines[2],
        "| kill      |     20 |            7 |         6 |          0 |       0 |    0 |    0 |          0 |     1.2 |"
    );
    assert_eq!(lines[3], "| power cut | skipped: not root |");
    assert_eq!(lines[5], "point: a note");
    assert!(lines[6].starts_with("point: VIOLATION too little happened"), "{text}");
}
