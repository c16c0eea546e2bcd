//! The texts that Rust code shows to users: its string literals, and the doc comments that clap turns into help.
//!
//! [`shown`] is a small lexer that knows only comments, strings, characters and lifetimes. It leaves out tests, because
//! only developers read their output.

use crate::tree::{File, Tree};

/// Names that show that clap creates help from a file.
const CLAP: [&str; 4] = ["clap::Args", "clap::Parser", "clap::Subcommand", "derive(Parser"];
/// The text before a module of tests.
const TESTS: &str = "#[cfg(test)]\nmod ";

/// The files and directories of modules that are compiled only for tests.
pub(super) fn test_modules(tree: &Tree) -> Vec<String> {
    let sources = tree.files.iter().filter(|file| file.is_rust());
    let modules = sources.flat_map(|file| {
        let names = file.text.split(TESTS).skip(1).filter_map(|rest| rest.split_once(';'));
        let names = names.filter(|(name, _)| name.chars().all(|c| c.is_alphanumeric() || c == '_'));
        let home = home(&file.path);
        names.flat_map(move |(name, _)| [format!("{home}/{name}.rs"), format!("{home}/{name}/")]).collect::<Vec<_>>()
    });
    modules.collect()
}

/// The directory of a file's modules.
fn home(path: &str) -> &str {
    let stem = path.strip_suffix(".rs").unwrap_or(path);
    match stem.rsplit_once('/') {
        Some((home, "mod" | "lib" | "main")) => home,
        _ => stem,
    }
}

/// The texts of a file that users may read.
pub(super) fn shown(file: &File) -> Vec<String> {
    let end = file.text.match_indices(TESTS).find(|(at, _)| is_inline(&file.text[at + TESTS.len()..]));
    let code = end.map_or(file.text.as_str(), |(at, _)| &file.text[..at]);
    let mut texts: Vec<String> = literals(code).into_iter().map(|text| prose(&text)).collect();
    if CLAP.iter().any(|name| code.contains(name)) {
        texts.extend(doc_comments(code));
    }
    texts
}

fn is_inline(module: &str) -> bool {
    module.lines().next().is_some_and(|line| line.ends_with('{'))
}

/// Each block of `///` lines as one text.
fn doc_comments(code: &str) -> Vec<String> {
    let mut blocks = vec![String::new()];
    for line in code.lines() {
        match (line.trim_start().strip_prefix("///"), blocks.last_mut()) {
            (Some(text), Some(block)) => block.extend([text, " "]),
            _ => blocks.push(String::new()),
        }
    }
    blocks.retain(|block| !block.is_empty());
    blocks
}

/// All string literals, with their escapes as they are written.
fn literals(code: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut rest = code;
    while let Some(at) = rest.find(['"', '\'', '/', 'r']) {
        let after_name = rest[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_') && !rest[..at].ends_with('b');
        rest = &rest[at..];
        rest = match rest.as_bytes() {
            [b'/', b'/', ..] => &rest[rest.find('\n').unwrap_or(rest.len())..],
            [b'/', b'*', ..] => &rest[rest.find("*/").map_or(rest.len(), |end| end + 2)..],
            [b'"', ..] => take(rest, 1, closing(&rest[1..]), 1, &mut found),
            [b'r', b'"' | b'#', ..] if !after_name => raw(rest, &mut found),
            [b'\'', ..] => &rest[character(rest)..],
            _ => &rest[1..],
        };
    }
    found
}

/// Adds the text between `start` and `start + length`, and returns the text `close` bytes after it.
fn take<'a>(rest: &'a str, start: usize, length: usize, close: usize, found: &mut Vec<String>) -> &'a str {
    let end = (start + length).min(rest.len());
    found.push(rest[start..end].to_owned());
    &rest[(end + close).min(rest.len())..]
}

/// The length of a string up to its closing quote.
fn closing(text: &str) -> usize {
    let mut is_escaped = false;
    let end = text.bytes().position(|byte| {
        let ends = byte == b'"' && !is_escaped;
        is_escaped = byte == b'\\' && !is_escaped;
        ends
    });
    end.unwrap_or(text.len())
}

/// A raw string such as `r#"…"#`; or a raw name such as `r#type`, which is skipped.
fn raw<'a>(rest: &'a str, found: &mut Vec<String>) -> &'a str {
    let hashes = rest[1..].bytes().take_while(|byte| *byte == b'#').count();
    if !rest[1 + hashes..].starts_with('"') {
        return &rest[1..];
    }
    let close = format!("\"{}", "#".repeat(hashes));
    let start = hashes + 2;
    let length = rest[start..].find(&close).unwrap_or(rest.len() - start);
    take(rest, start, length, close.len(), found)
}

/// The length of a character such as `'"'` or `'\''`; 1 at the start of a lifetime.
fn character(rest: &str) -> usize {
    let mut chars = rest.char_indices().skip(1);
    match (chars.next(), chars.next()) {
        (Some((_, '\\')), Some((at, escaped))) => {
            let after = at + escaped.len_utf8();
            rest[after..].find('\'').map_or(rest.len(), |end| after + end + 1)
        }
        (Some(_), Some((end, '\''))) => end + 1,
        _ => 1,
    }
}

/// The readable text of a literal: without placeholders, and with continued lines joined. SQL and single words have
/// none.
fn prose(literal: &str) -> String {
    let is_sql = ["SELECT ", "INSERT ", "UPDATE ", "DELETE FROM", "CREATE ", "ALTER ", "PRIMARY KEY"];
    if !literal.contains(' ') || is_sql.iter().any(|word| literal.contains(word)) {
        return String::new();
    }
    let joined = literal.split("\\\n").map(str::trim_start).collect::<Vec<_>>().join("");
    let outside = joined.split('{').enumerate().map(|(place, part)| match place {
        0 => part,
        _ => part.split_once('}').map_or("", |(_, after)| after),
    });
    outside.collect::<Vec<_>>().join("…")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(code: &str) -> Vec<String> {
        let tree = Tree::of(&[("a.rs", code)]);
        shown(&tree.files[0]).into_iter().filter(|text| !text.is_empty()).collect()
    }

    #[test]
    fn strings_are_found_and_nothing_else() {
        assert_eq!(texts("fn a<'a>(x: &'a str) { f(\"one text\", 'x', '\"', '\\'', \"two \\\" texts\") }").len(), 2);
        assert_eq!(texts("// it told \"nobody\"\n/* \"a b\" */ let r#type = \"a c\";"), ["a c"]);
        assert_eq!(
            texts("let a = r#\"raw \"text\" here\"#; let b = br\"more text\"; for \"x y\""),
            ["raw \"text\" here", "more text", "x y"]
        );
    }

    #[test]
    fn placeholders_sql_and_single_words_are_not_prose() {
        assert_eq!(texts("\"it {told} them\"; \"told\"; \"SELECT a -- told\""), ["it … them"]);
        assert_eq!(texts("f(\"one \\\n        two\")"), ["one two"]);
    }

    #[test]
    fn tests_are_left_out() {
        assert_eq!(texts("\"a b\"\n#[cfg(test)]\nmod tests {\n \"c d\" }"), ["a b"]);
        assert_eq!(texts("#[cfg(test)]\nmod tests;\nfn f() { \"a b\" }"), ["a b"]);
        let files = [("x/src/lib.rs", "#[cfg(test)]\nmod a;\n"), ("x/src/b.rs", "#[cfg(test)]\nmod c;\n")];
        let tree = Tree::of(&files);
        assert_eq!(test_modules(&tree), ["x/src/a.rs", "x/src/a/", "x/src/b/c.rs", "x/src/b/c/"]);
    }

    #[test]
    fn doc_comments_are_help_where_clap_reads_them() {
        let code = "/// What it is\n/// for\nstruct A;\n\n/// More\nstruct B;\n";
        assert_eq!(texts(code), [] as [&str; 0]);
        assert_eq!(texts(&format!("{code}#[derive(clap::Args)]")), [" What it is  for ", " More "]);
    }
}
