//! Functions stay short. Longer ones are listed with their length, and may only shrink.

use crate::tree::{File, Tree};

/// The list: one `path function lines` per line.
pub(super) const RATCHET: &str = "xtask/long-functions.txt";
/// One screen and a half.
const LINES_MAX: usize = 80;

pub(super) fn check(tree: &Tree, ratchet: &str) -> Vec<String> {
    let mut listed: Vec<(&str, &str, usize)> = ratchet.lines().filter_map(entry).collect();
    let mut problems = Vec::new();
    for file in tree.files.iter().filter(|file| file.is_rust()) {
        for function in functions(file).into_iter().filter(|function| function.lines > LINES_MAX) {
            let Function { name, start, lines } = function;
            let place = listed.iter().position(|(path, listed, _)| *path == file.path && *listed == name);
            match place.map(|place| listed.swap_remove(place).2) {
                Some(allowed) if lines <= allowed => {}
                Some(allowed) => {
                    problems.push(format!("{}:{start}: {name} has grown from {allowed} to {lines} lines", file.path))
                }
                None => problems
                    .push(format!("{}:{start}: {name} has {lines} lines, more than {LINES_MAX}; cut it", file.path)),
            }
        }
    }
    let stale =
        listed.iter().map(|(path, name, _)| format!("{RATCHET}: {name} of {path} is short now; remove its line"));
    problems.extend(stale);
    problems
}

fn entry(line: &str) -> Option<(&str, &str, usize)> {
    let mut words = line.split_whitespace();
    let (path, name, lines) = (words.next()?, words.next()?, words.next()?);
    if path.starts_with('#') { None } else { Some((path, name, lines.parse().ok()?)) }
}

struct Function<'a> {
    name: &'a str,
    start: usize,
    lines: usize,
}

/// The functions of a file that rustfmt has formatted: each ends with a `}` at the indentation of its start.
fn functions(file: &File) -> Vec<Function<'_>> {
    let lines: Vec<&str> = file.text.lines().collect();
    let mut functions = Vec::new();
    for (start, line) in lines.iter().enumerate() {
        let Some(name) = function_name(line) else { continue };
        if line.ends_with('}') || line.ends_with(';') {
            continue;
        }
        let indent = &line[..line.len() - line.trim_start().len()];
        let rest = || lines[start..].iter().map(|line| line.strip_prefix(indent).unwrap_or_default());
        let Some(last) = rest().position(|line| line == "}" || (line.starts_with(')') && line.ends_with(';'))) else {
            continue;
        };
        functions.push(Function { name, start: start + 1, lines: last + 1 });
    }
    functions
}

/// The name if the line begins a function.
fn function_name(line: &str) -> Option<&str> {
    let (before, after) = line.split_once("fn ")?;
    let is_qualifier = |word: &str| word.starts_with("pub") || ["async", "const", "unsafe", "extern"].contains(&word);
    let qualified = before.split_whitespace().all(|word| is_qualifier(word) || word.ends_with(')'));
    let name = after.split(|end: char| !end.is_alphanumeric() && end != '_').next()?;
    (qualified && !name.is_empty()).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(body_lines: usize) -> String {
        let body = "        step();\n".repeat(body_lines);
        format!(
            "impl X {{\n    pub(crate) async fn long(&self) {{\n{body}    }}\n}}\n\nfn short() {{}}\n\nfn two() {{\n    a();\n}}\n"
        )
    }

    #[test]
    fn functions_are_measured_from_signature_to_brace() {
        let text = file(3);
        let tree = Tree::of(&[("a.rs", &text)]);
        let found: Vec<_> = functions(&tree.files[0]).iter().map(|f| (f.name, f.start, f.lines)).collect();
        assert_eq!(found, [("long", 2, 5), ("two", 11, 3)]);
    }

    #[test]
    fn a_declaration_ends_with_its_semicolon() {
        let tree = Tree::of(&[(
            "a.rs",
            "trait X {\n    fn declared(\n        &self,\n    ) -> u8;\n\n    fn b(&self) {\n    }\n}\n",
        )]);
        let found: Vec<_> = functions(&tree.files[0]).iter().map(|f| (f.name, f.lines)).collect();
        assert_eq!(found, [("declared", 3), ("b", 2)]);
    }

    #[test]
    fn calls_and_comments_are_not_functions() {
        for line in ["// the fn long", "let f: fn (u8) = x;", "    call(|fn_name| 1)", "type F = fn (u8);"] {
            assert_eq!(function_name(line), None, "{line}");
        }
        for line in ["fn a() {", "    pub(super) const fn a(", "pub async fn a<T>("] {
            assert_eq!(function_name(line), Some("a"), "{line}");
        }
    }

    #[test]
    fn long_functions_may_only_shrink() {
        let text = file(90);
        let tree = Tree::of(&[("a.rs", &text)]);
        assert!(check(&tree, "")[0].contains("long has 92 lines"));
        assert!(check(&tree, "a.rs long 91")[0].contains("has grown from 91 to 92"));
        assert_eq!(check(&tree, "# the list\na.rs long 92"), [] as [&str; 0]);
        assert!(check(&tree, "a.rs long 92\na.rs gone 100")[0].contains("gone of a.rs is short now"));
    }
}
