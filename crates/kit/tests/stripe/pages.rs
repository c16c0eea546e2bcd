//! `docs/handlers.md` shows parts of the example: those that need PostgreSQL, so that no doctest can run them.

/// How a block of Rust begins that is run as a doctest, and how one that is a part of the example.
const RUN: &str = "```rust\n";
const QUOTED: &str = "```rust,ignore\n";

#[test]
fn the_page_quotes_the_example_verbatim() {
    let page = include_str!("../../../../docs/handlers.md");
    let example = without_indent(include_str!("../../examples/stripe/service.rs"));
    let quoted: Vec<&str> = page.split(QUOTED).skip(1).map(|rest| rest.split("```").next().unwrap()).collect();
    assert!(!quoted.is_empty(), "the page quotes nothing");
    for block in &quoted {
        assert!(example.contains(&without_indent(block)), "this is not in the example:\n{block}");
    }
    let all = page.matches("```rust").count();
    assert_eq!(all, quoted.len() + page.matches(RUN).count(), "there are blocks that nothing runs");
}

fn without_indent(text: &str) -> String {
    text.lines().map(str::trim).filter(|line| !line.is_empty()).collect::<Vec<_>>().join("\n")
}
