//! Plain English in the texts for users, which are pages and the texts in Rust code, and in the comments of the crates of
//! [`FINISHED`]. Words and sentence starts of the old style are counted per file. The list of counts may only shrink.

use super::literals;
use crate::tree::{File, Tree};

/// The list: one `path count` per line.
pub(super) const RATCHET: &str = "xtask/old-style.txt";
/// Words that readers stumble over, in lower case.
const WORDS: [&str; 14] = [
    "told",
    "tells",
    "hears",
    "goes on",
    "go on",
    "so many",
    "by itself",
    "nobody",
    "somebody",
    "whoever",
    "under way",
    "rubbish",
    "the same in order",
    "nobody's",
];
/// A sentence starts with these only if it is a question.
const STARTS: [&str; 2] = ["What ", "Who "];
/// Directories whose comments are in plain English, tests included.
const FINISHED: [&str; 9] = [
    "bench/",
    "crates/delivery/",
    "crates/engine/",
    "crates/faults/",
    "crates/kit/",
    "crates/store/",
    "crates/wire/",
    "fuzz/",
    "xtask/",
];

pub(super) fn check(tree: &Tree, ratchet: &str) -> Vec<String> {
    let mut listed: Vec<(&str, usize)> = ratchet.lines().filter_map(entry).collect();
    let mut problems = Vec::new();
    let test_modules = literals::test_modules(tree);
    for file in &tree.files {
        let of_comments = is_finished(file).then(|| old_style(comments(&file.text)));
        let of_texts = match kind(file, &test_modules) {
            Some(Kind::Page) => Some(old_style(paragraphs(&file.text))),
            Some(Kind::Code) => Some(old_style(literals::shown(file))),
            None => None,
        };
        if of_comments.is_none() && of_texts.is_none() {
            continue;
        }
        let found: Vec<String> = [of_texts, of_comments].into_iter().flatten().flatten().collect();
        let place = listed.iter().position(|(path, _)| *path == file.path);
        let allowed = place.map_or(0, |place| listed.swap_remove(place).1);
        if found.len() > allowed {
            let last = found.last().map(String::as_str).unwrap_or_default();
            problems.push(format!(
                "{}: {} places in the old style, {allowed} are listed in {RATCHET}; say it plainly (docs/style.md, Language): {last}",
                file.path,
                found.len(),
            ));
        } else if found.len() < allowed {
            problems.push(format!("{RATCHET}: {} has {} places now; lower its count", file.path, found.len()));
        }
    }
    problems.extend(
        listed
            .iter()
            .map(|(path, _)| format!("{RATCHET}: there is no {path}, or it is not for users; remove its line")),
    );
    problems
}

fn entry(line: &str) -> Option<(&str, usize)> {
    let (path, count) = line.split_once(' ')?;
    if path.starts_with('#') { None } else { Some((path, count.trim().parse().ok()?)) }
}

/// How a file is read.
enum Kind {
    Page,
    Code,
}

/// Pages and code that users read from. Decisions and tests are for developers, and the rules quote what they forbid.
fn kind(file: &File, test_modules: &[String]) -> Option<Kind> {
    let path = file.path.as_str();
    let is_page = path.ends_with(".md") && (path.starts_with("docs/") || ["README.md", "CHANGELOG.md"].contains(&path));
    let is_for_developers = path.starts_with("docs/decisions/") || path == "docs/style.md";
    let is_code = file.is_rust() && super::is_source(file);
    match is_page {
        true => (!is_for_developers).then_some(Kind::Page),
        false if is_code => (!test_modules.iter().any(|test| path.starts_with(test.as_str()))).then_some(Kind::Code),
        false => None,
    }
}

fn is_finished(file: &File) -> bool {
    file.is_rust() && FINISHED.iter().any(|directory| file.path.starts_with(directory))
}

/// The prose of the comments: the lines of each block joined. Comments after code are left out.
fn comments(code: &str) -> Vec<String> {
    let lines = code.lines().map(|line| {
        let text = line.trim_start().strip_prefix("//");
        text.map_or("", |text| text.strip_prefix(['/', '!']).unwrap_or(text))
    });
    paragraphs(&lines.collect::<Vec<_>>().join("\n"))
}

/// The places in the old style, each with some words around it.
fn old_style(paragraphs: Vec<String>) -> Vec<String> {
    paragraphs.iter().flat_map(|paragraph| old_words(paragraph).chain(old_starts(paragraph))).collect()
}

/// The prose of a page: code left out, the lines of a paragraph or list item joined.
fn paragraphs(page: &str) -> Vec<String> {
    let mut paragraphs = vec![String::new()];
    let mut is_code = false;
    for line in page.lines() {
        let text = line.trim_start();
        if text.starts_with("```") {
            is_code = !is_code;
            continue;
        }
        let starts = ["- ", "* ", "#", "|", ">"].iter().any(|mark| text.starts_with(mark));
        if text.is_empty() || starts {
            paragraphs.push(String::new());
        }
        if !is_code && let Some(paragraph) = paragraphs.last_mut() {
            let prose = text.trim_start_matches(['-', '*', '#', '|', '>', ' ']);
            // Text between backticks is code.
            paragraph.extend(prose.split('`').step_by(2).chain([" "]));
        }
    }
    paragraphs
}

fn old_words(paragraph: &str) -> impl Iterator<Item = String> {
    let lower = paragraph.to_lowercase();
    let is_word = move |text: &str, at: usize, length: usize| {
        let is_letter = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || c == '\'');
        !is_letter(text[..at].chars().next_back()) && !is_letter(text[at + length..].chars().next())
    };
    let found = WORDS.into_iter().flat_map(|word| {
        lower
            .match_indices(word)
            .filter(|(at, _)| is_word(&lower, *at, word.len()))
            .map(|(at, _)| around(&lower, at))
            .collect::<Vec<_>>()
    });
    found.collect::<Vec<_>>().into_iter()
}

fn old_starts(paragraph: &str) -> impl Iterator<Item = String> {
    let mut found = Vec::new();
    let mut rest = paragraph;
    while !rest.is_empty() {
        let end = rest.find(['.', '?', '!', ':', '|']).map_or(rest.len(), |end| end + 1);
        let (sentence, after) = rest.split_at(end);
        let sentence = sentence.trim_start_matches([' ', '*', '_', '"', '(']);
        if STARTS.iter().any(|start| sentence.starts_with(start)) && !sentence.ends_with('?') {
            found.push(around(sentence, 0));
        }
        rest = after;
    }
    found.into_iter()
}

fn around(text: &str, at: usize) -> String {
    let start = text[..at].char_indices().rev().nth(20).map_or(0, |(start, _)| start);
    text[start..].chars().take(60).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(page: &str) -> usize {
        old_style(paragraphs(page)).len()
    }

    #[test]
    fn words_and_starts_of_the_old_style_are_found() {
        assert_eq!(count("The caller is told, and the queue\ngoes\non."), 2);
        assert_eq!(count("What is late is shown. Who waits, waits.\n\n- What is lost\n"), 3);
        assert_eq!(count("# What is not there yet\n"), 1);
    }

    #[test]
    fn questions_code_and_parts_of_words_are_not_found() {
        assert_eq!(count("What is late? Ask `what is told`.\n\n```bash\n# What is told\n```\n"), 0);
        assert_eq!(count("The threshold holds; untold retells nothing."), 0);
    }

    #[test]
    fn texts_of_code_count_and_its_tests_do_not() {
        let tree = Tree::of(&[
            ("crates/a/src/lib.rs", "//! It told.\n#[cfg(test)]\nmod b;\nfn f() { panic!(\"the caller is told\") }\n"),
            ("crates/a/src/b.rs", "fn g() { panic!(\"nobody is told\") }\n"),
            ("crates/a/tests/c.rs", "fn g() { panic!(\"nobody is told\") }\n"),
            ("bench/src/d.rs", "fn g() { panic!(\"nobody is told\") }\n"),
        ]);
        let problems = check(&tree, "");
        assert_eq!(problems.len(), 1, "{problems:?}");
        assert!(problems[0].starts_with("crates/a/src/lib.rs: 1 places"), "{problems:?}");
        assert_eq!(check(&tree, "crates/a/src/lib.rs 1\n"), [] as [&str; 0]);
    }

    #[test]
    fn comments_of_finished_crates_count_in_tests_too() {
        let code = "//! What is late\n//! is shown.\nfn f() {\n    // The caller\n    // goes on.\n    g(\"told\") // told\n}\n";
        let tree = Tree::of(&[
            ("crates/wire/src/a.rs", code),
            ("crates/wire/tests/b.rs", code),
            ("crates/other/tests/c.rs", code),
            ("bench/src/d.rs", "/// ```\n/// // It told.\n/// ```\n/// `told` is code.\nfn f() {}\n"),
        ]);
        let problems = check(&tree, "crates/wire/src/a.rs 2\n");
        assert_eq!(problems.len(), 1, "{problems:?}");
        assert!(problems[0].starts_with("crates/wire/tests/b.rs: 2 places"), "{problems:?}");
    }

    #[test]
    fn the_list_may_only_shrink() {
        let tree = Tree::of(&[("docs/a.md", "It tells and it told.\n"), ("docs/decisions/b.md", "It told.\n")]);
        assert!(check(&tree, "")[0].contains("2 places"));
        assert_eq!(check(&tree, "# list\ndocs/a.md 2\n"), [] as [&str; 0]);
        assert!(check(&tree, "docs/a.md 3\n")[0].contains("lower its count"));
        assert!(check(&tree, "docs/a.md 2\ndocs/c.md 1\n")[0].contains("there is no docs/c.md"));
    }
}
