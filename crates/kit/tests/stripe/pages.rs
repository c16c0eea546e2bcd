//! `docs/handlers.md` quotes parts of the example. They need PostgreSQL, so no doctest can run them.

/// The start of a Rust block that runs as a doctest, and of one that quotes the example.
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
