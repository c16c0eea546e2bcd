//! The rules, one function each. A rule returns its problems, each as a line for people.

mod dependencies;
mod functions;
mod language;
mod literals;
mod supply;

use crate::tree::{File, Tree};
use anyhow::Result;

/// Where the time may be read. All other code gets it as an argument.
const CLOCKS: [&str; 11] = [
    "crates/delivery/src/",
    "crates/kit/src/clock.rs",
    "crates/kit/src/publish/fallback.rs",
    "crates/kit/src/retry.rs",
    "crates/server/src/clock.rs",
    "crates/server/src/core/",
    "crates/server/src/api/body.rs",
    "crates/server/src/api/mod.rs",
    "crates/server/src/api/response.rs",
    "crates/server/src/http/guarded.rs",
    "crates/store/src/journal/",
];

/// Tests wait for conditions. These files may pause, for the given reason.
const PAUSES: [(&str, &str); 13] = [
    ("crates/kit/tests/job/support.rs", "handlers that take time by a clock that is paused"),
    ("crates/kit/tests/publish/main.rs", "the inside of the polling loop"),
    ("crates/kit/tests/stores/support/wait.rs", "the inside of the polling loop"),
    ("crates/server/tests/crash/bulk.rs", "the inside of the polling loop"),
    ("crates/server/tests/crash/kills.rs", "the moment of a kill is the input of the test"),
    ("crates/server/tests/crash/witness.rs", "a receiver that takes time, so that requests can overlap"),
    ("crates/server/tests/it/support/mod.rs", "the inside of the polling loop"),
    ("crates/server/tests/it/support/receiver.rs", "answers that are late on demand"),
    ("crates/server/tests/it/unauthenticated_cost.rs", "the inside of the polling loop"),
    ("e2e/js/support/wait.js", "the inside of the polling loop"),
    ("e2e/js/support/server.js", "deadlines for a start and an end"),
    ("e2e/python/support/receiver.py", "answers that are late on demand"),
    ("e2e/python/support/wait.py", "the inside of the polling loop"),
];

/// Runs all rules on the repository.
pub(crate) fn run() -> Result<Vec<String>> {
    let tree = Tree::read()?;
    let mut problems = dependencies::check(&tree.root)?;
    problems.extend(supply::check(&tree.root)?);
    let ratchet = tree.text(functions::RATCHET).unwrap_or_default();
    problems.extend(functions::check(&tree, ratchet));
    problems.extend(language::check(&tree, tree.text(language::RATCHET).unwrap_or_default()));
    for rule in [clocks, pauses, headers, map, machine_paths, changelog, lockfiles] {
        problems.extend(rule(&tree));
    }
    Ok(problems)
}

/// The wall clock and the monotonic clock are read in few places.
fn clocks(tree: &Tree) -> Vec<String> {
    let reads = ["SystemTime::now", "Instant::now"];
    let sources = tree.files.iter().filter(|file| file.is_rust() && is_source(file));
    let strangers = sources.filter(|file| !CLOCKS.iter().any(|allowed| file.path.starts_with(allowed)));
    found(strangers, &reads, "reads the clock; take the time as an argument, or extend CLOCKS in xtask/src/tidy/mod.rs")
}

/// A step of a workflow, in which the server waits.
const SLEEP_STEP: &str = "context.sleep(";

/// Tests do not sleep.
fn pauses(tree: &Tree) -> Vec<String> {
    let pauses = |line: &str| {
        let line = line.replace(SLEEP_STEP, "").replace("asleep(", "");
        ["sleep(", "setTimeout("].iter().any(|pattern| line.contains(pattern))
    };
    let is_test = |file: &&File| {
        file.path.starts_with("e2e/") || (file.path.starts_with("crates/") && file.path.contains("/tests/"))
    };
    let is_code = |file: &&File| [".rs", ".js", ".py"].iter().any(|end| file.path.ends_with(end));
    let tests = || tree.files.iter().filter(is_test).filter(is_code);
    let strangers = tests().filter(|file| !PAUSES.iter().any(|(allowed, _)| file.path == *allowed));
    let mut problems =
        found_by(strangers, pauses, "pauses; wait for a condition, or extend PAUSES in xtask/src/tidy/mod.rs");
    for (path, reason) in PAUSES {
        if !tests().any(|file| file.path == path && pauses(&file.text)) {
            problems.push(format!(
                "{path}: does not pause any more ({reason}); take it out of PAUSES in xtask/src/tidy/mod.rs"
            ));
        }
    }
    problems
}

/// Every file has a header.
fn headers(tree: &Tree) -> Vec<String> {
    let bare = tree.files.iter().filter(|file| file.is_rust() && !file.text.starts_with("//!"));
    bare.map(|file| format!("{}:1: has no header; start it with //! and what the file is for", file.path)).collect()
}

/// ARCHITECTURE.md names every crate, and the header of each crate's `lib.rs` names its top modules.
fn map(tree: &Tree) -> Vec<String> {
    let mut modules: Vec<(&str, &str)> = tree.files.iter().filter_map(|file| top_module(&file.path)).collect();
    modules.dedup();
    let mut crates: Vec<&str> = modules.iter().map(|(part, _)| *part).collect();
    crates.dedup();
    let page = tree.text("ARCHITECTURE.md").unwrap_or_default();
    let unknown = crates.into_iter().filter(|part| !page.contains(&format!("({part}/")));
    let mut problems: Vec<String> = unknown.map(|part| format!("ARCHITECTURE.md: does not link to {part}")).collect();
    for (part, module) in modules {
        let path = format!("{part}/src/lib.rs");
        let mut comments = tree.text(&path).unwrap_or_default().lines().filter(|line| line.starts_with("//"));
        if !comments.any(|line| line.contains(&format!("`{module}`"))) {
            problems.push(format!("{path}:1: the list of modules does not have `{module}`"));
        }
    }
    problems
}

/// `crates/wire/src/id.rs`, and everything below `crates/wire/src/id/`, is module `id` of `crates/wire`.
fn top_module(path: &str) -> Option<(&str, &str)> {
    let (part, inside) = path.split_once("/src/")?;
    if !part.starts_with("crates/") {
        return None;
    }
    let module = match inside.split_once('/') {
        Some((module, _)) => module,
        None => inside.strip_suffix(".rs")?,
    };
    (module != "lib").then_some((part, module))
}

/// No file contains a directory of a particular machine.
fn machine_paths(tree: &Tree) -> Vec<String> {
    let roots = [concat!("/wo", "rk/"), concat!("/ro", "ot/")];
    let mut problems = Vec::new();
    for file in &tree.files {
        for (number, line) in file.lines() {
            for root in roots {
                let absolute = line.match_indices(root).any(|(at, _)| {
                    !line[..at].ends_with(|before: char| before.is_alphanumeric() || "._-~*}".contains(before))
                });
                if absolute {
                    problems.push(format!("{}:{number}: names a path of one machine: {root}", file.path));
                }
            }
        }
    }
    problems
}

/// The changelog has a section for the next version.
fn changelog(tree: &Tree) -> Vec<String> {
    match tree.text("CHANGELOG.md") {
        Some(text) if text.lines().any(|line| line.starts_with("## ") && line.contains("Unreleased")) => Vec::new(),
        _ => vec!["CHANGELOG.md: has no section Unreleased".to_owned()],
    }
}

/// Lock files contain versions and hashes, but not the servers they came from.
fn lockfiles(tree: &Tree) -> Vec<String> {
    let locks = tree.files.iter().filter(|file| file.path.ends_with("package-lock.json"));
    found(
        locks,
        &["\"resolved\""],
        "names where a package was fetched; npm's omit-lockfile-registry-resolved leaves it out",
    )
}

/// Shipped code: not tests, not the benchmark, not this tool.
fn is_source(file: &File) -> bool {
    file.path.starts_with("crates/") && file.path.contains("/src/")
}

/// One problem per line that contains one of the patterns, outside comments.
fn found<'a>(files: impl Iterator<Item = &'a File>, patterns: &[&str], problem: &str) -> Vec<String> {
    found_by(files, |line| patterns.iter().any(|pattern| line.contains(pattern)), problem)
}

/// One problem per line that matches `is_wrong`, outside comments.
fn found_by<'a>(files: impl Iterator<Item = &'a File>, is_wrong: impl Fn(&str) -> bool, problem: &str) -> Vec<String> {
    let mut problems = Vec::new();
    for file in files {
        for (number, line) in file.lines() {
            let is_comment = ["//", "#", "*"].iter().any(|mark| line.trim_start().starts_with(mark));
            if !is_comment && is_wrong(line) {
                problems.push(format!("{}:{number}: {problem}", file.path));
            }
        }
    }
    problems
}

#[cfg(test)]
mod tests {
    use super::*;

    fn starts(problems: &[String], expected: &[&str]) {
        assert_eq!(problems.len(), expected.len(), "{problems:#?}");
        for (problem, start) in problems.iter().zip(expected) {
            assert!(problem.starts_with(start), "{problem}");
        }
    }

    #[test]
    fn clocks_are_read_in_few_places() {
        let tree = Tree::of(&[
            ("crates/server/src/clock.rs", "SystemTime::now()"),
            ("crates/server/src/core/run.rs", "Instant::now()"),
            ("crates/engine/src/shard.rs", "// not Instant::now\nlet now = Instant::now();"),
            ("crates/server/tests/it/main.rs", "Instant::now()"),
            ("bench/src/main.rs", "Instant::now()"),
        ]);
        starts(&clocks(&tree), &["crates/engine/src/shard.rs:2:"]);
    }

    #[test]
    fn tests_do_not_pause_and_the_list_of_exceptions_is_current() {
        let mut files: Vec<(&str, &str)> = PAUSES.iter().map(|(path, _)| (*path, "sleep(1)")).collect();
        assert_eq!(pauses(&Tree::of(&files)), [] as [&str; 0]);
        files.push(("e2e/js/test/x.test.js", "a\nsetTimeout(() => {}, 5)"));
        files.push(("crates/server/src/http.rs", "sleep(PAUSE)"));
        files.push(("e2e/workflow/js/test/x.test.js", "await context.sleep(\"nap\", 1)"));
        files[0].1 = "";
        starts(&pauses(&Tree::of(&files)), &["e2e/js/test/x.test.js:2:", &format!("{}:", PAUSES[0].0)]);
    }

    #[test]
    fn files_have_headers() {
        let tree = Tree::of(&[("a.rs", "//! A."), ("b.rs", "use x;"), ("c.js", "")]);
        starts(&headers(&tree), &["b.rs:1:"]);
    }

    #[test]
    fn the_map_names_every_crate_and_every_top_module() {
        let tree = Tree::of(&[
            ("ARCHITECTURE.md", "| [`wire`](crates/wire/src/lib.rs) |"),
            ("crates/wire/src/lib.rs", "//! - `id`, `time`: ids\n\npub mod header;"),
            ("crates/wire/src/id.rs", ""),
            ("crates/wire/src/header/name.rs", ""),
            ("crates/store/src/lib.rs", "//! `sqlite`"),
            ("crates/store/src/sqlite/mod.rs", ""),
            ("bench/src/sink.rs", ""),
        ]);
        let missing = [
            "ARCHITECTURE.md: does not link to crates/store",
            "crates/wire/src/lib.rs:1: the list of modules does not have `header`",
        ];
        starts(&map(&tree), &missing);
    }

    #[test]
    fn only_paths_of_one_machine_are_found() {
        let work = concat!("/wo", "rk/");
        let absolute = format!("x\ncd {work}main");
        let relative = format!("cp a/b{work}c ~{work}x");
        let tree = Tree::of(&[("a.md", &absolute), ("b.md", &relative)]);
        starts(&machine_paths(&tree), &["a.md:2:"]);
    }

    #[test]
    fn the_changelog_has_a_place_for_news() {
        assert_eq!(changelog(&Tree::of(&[("CHANGELOG.md", "# C\n\n## Unreleased\n")])), [] as [&str; 0]);
        starts(&changelog(&Tree::of(&[("CHANGELOG.md", "# C\n")])), &["CHANGELOG.md:"]);
    }

    #[test]
    fn lock_files_name_no_servers() {
        let tree = Tree::of(&[("e2e/js/package-lock.json", "{\n  \"resolved\": \"x\"\n}")]);
        starts(&lockfiles(&tree), &["e2e/js/package-lock.json:2:"]);
    }
}
