//! The documentation of the targets is correct.

use posthaste_fuzz::TARGETS;
use std::collections::HashSet;

const PAGE: &str = include_str!("../../docs/reliability/hostile-input.md");
const SUMMARY: &str = include_str!("../../docs/reliability.md");

/// The names in the first column of the table under its heading.
fn documented() -> HashSet<&'static str> {
    let (_, table) = PAGE.split_once("| target | reads |").expect("the page has a table of targets");
    let rows = table.lines().skip(2).take_while(|line| line.starts_with('|'));
    let first = rows.filter_map(|row| row.split('|').nth(1));
    first.flat_map(|names| names.split('`').skip(1).step_by(2)).collect()
}

#[test]
fn the_page_names_every_target() {
    assert_eq!(documented(), TARGETS.iter().map(|target| target.name).collect());
}

#[test]
fn the_summary_counts_the_targets() {
    let row = format!("| fuzzing | {} targets;", TARGETS.len());
    assert!(SUMMARY.contains(&row), "docs/reliability.md has no row that starts with {row:?}");
}
