//! The supply chain of the workspace: licences, banned crates and sources, by `deny.toml`.
//!
//! `cargo deny` reads the same file and knows more, but must be installed first. This check takes a second.

use anyhow::{Context, Result, bail};
use serde::Deserialize;
use std::path::Path;
use std::process::Command;

const FILE: &str = "deny.toml";

/// The parts of `deny.toml` that this check uses.
#[derive(Deserialize)]
struct Rules {
    licenses: Licenses,
    bans: Bans,
    sources: Sources,
}

#[derive(Deserialize)]
struct Licenses {
    allow: Vec<String>,
}

#[derive(Deserialize)]
struct Bans {
    deny: Vec<Banned>,
}

#[derive(Deserialize)]
struct Banned {
    #[serde(rename = "crate")]
    name: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Sources {
    /// If empty, only the first registry that occurs is allowed.
    #[serde(default)]
    allow_registry: Vec<String>,
}

/// The output of `cargo metadata`.
#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
}

#[derive(Deserialize)]
struct Package {
    name: String,
    version: String,
    license: Option<String>,
    /// `None` for crates of this repository.
    source: Option<String>,
}

pub(super) fn check(root: &Path) -> Result<Vec<String>> {
    let text = std::fs::read_to_string(root.join(FILE)).context(FILE)?;
    let mut rules: Rules = toml::from_str(&text).context(FILE)?;
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.current_dir(root).args(["metadata", "--locked", "--format-version", "1", "--all-features"]);
    let output = command.output().context("cargo metadata cannot be run")?;
    if !output.status.success() {
        bail!("cargo metadata: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    let metadata: Metadata = serde_json::from_slice(&output.stdout).context("cargo metadata")?;
    if metadata.packages.len() < 2 {
        bail!("cargo metadata names {} packages", metadata.packages.len());
    }
    if rules.sources.allow_registry.is_empty() {
        let sources = metadata.packages.iter().filter_map(|package| package.source.as_deref());
        rules
            .sources
            .allow_registry
            .extend(sources.filter_map(|source| source.strip_prefix("registry+")).take(1).map(str::to_owned));
    }
    Ok(metadata.packages.iter().flat_map(|package| problems(package, &rules)).collect())
}

fn problems(package: &Package, rules: &Rules) -> Vec<String> {
    let (name, mut problems) = (format!("{} {}", package.name, package.version), Vec::new());
    let is_allowed = |license: &str| rules.licenses.allow.iter().any(|allowed| allowed == license);
    match &package.license {
        None => problems.push(format!("{name}: has no licence in its manifest")),
        Some(license) => match satisfied(license, &is_allowed) {
            Some(true) => {}
            Some(false) => problems.push(format!("{name}: licence {license} is not allowed by {FILE}")),
            None => problems.push(format!("{name}: licence {license} cannot be read")),
        },
    }
    if rules.bans.deny.iter().any(|banned| banned.name == package.name) {
        problems.push(format!("{name}: is banned by {FILE}"));
    }
    let is_known = |source: &String| {
        let registry = source.strip_prefix("registry+");
        registry.is_some_and(|registry| rules.sources.allow_registry.iter().any(|allowed| allowed == registry))
    };
    if let Some(source) = package.source.as_ref().filter(|source| !is_known(source)) {
        problems.push(format!("{name}: comes from {source}, which {FILE} does not allow"));
    }
    problems
}

/// Whether these licences satisfy an SPDX expression; `None` if it is invalid. Old manifests write `/` for `OR`.
fn satisfied(expression: &str, is_allowed: &impl Fn(&str) -> bool) -> Option<bool> {
    let spaced = expression.replace('/', " OR ").replace('(', " ( ").replace(')', " ) ");
    let words: Vec<&str> = spaced.split_whitespace().collect();
    let mut rest = &words[..];
    let result = any(&mut rest, is_allowed)?;
    rest.is_empty().then_some(result)
}

fn any(words: &mut &[&str], is_allowed: &impl Fn(&str) -> bool) -> Option<bool> {
    let mut result = all(words, is_allowed)?;
    while let Some(rest) = words.strip_prefix(&["OR"]) {
        *words = rest;
        result |= all(words, is_allowed)?;
    }
    Some(result)
}

fn all(words: &mut &[&str], is_allowed: &impl Fn(&str) -> bool) -> Option<bool> {
    let mut result = one(words, is_allowed)?;
    while let Some(rest) = words.strip_prefix(&["AND"]) {
        *words = rest;
        result &= one(words, is_allowed)?;
    }
    Some(result)
}

fn one(words: &mut &[&str], is_allowed: &impl Fn(&str) -> bool) -> Option<bool> {
    match **words {
        ["(", ..] => {
            *words = &words[1..];
            let result = any(words, is_allowed)?;
            *words = words.strip_prefix(&[")"])?;
            Some(result)
        }
        [license, "WITH", exception, ..] => {
            *words = &words[3..];
            Some(is_allowed(&format!("{license} WITH {exception}")))
        }
        [license, ..] if !["OR", "AND", "WITH", ")"].contains(&license) => {
            *words = &words[1..];
            Some(is_allowed(license))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn licences_are_read_as_spdx() {
        let is_allowed = |license: &str| ["MIT", "ISC", "Apache-2.0 WITH LLVM-exception"].contains(&license);
        let cases = [
            ("MIT", Some(true)),
            ("GPL-3.0-only", Some(false)),
            ("GPL-3.0-only OR MIT", Some(true)),
            ("GPL-3.0-only/MIT", Some(true)),
            ("MIT AND GPL-3.0-only", Some(false)),
            ("(GPL-3.0-only OR MIT) AND ISC", Some(true)),
            ("GPL-3.0-only OR MIT AND Zlib", Some(false)),
            ("Apache-2.0 WITH LLVM-exception", Some(true)),
            ("Apache-2.0", Some(false)),
            ("MIT OR", None),
            ("(MIT", None),
            ("MIT ISC", None),
            ("", None),
        ];
        for (expression, expected) in cases {
            assert_eq!(satisfied(expression, &is_allowed), expected, "{expression}");
        }
    }

    #[test]
    fn licences_bans_and_sources_are_checked() {
        let rules: Rules = toml::from_str(
            "[licenses]\nallow = [\"MIT\"]\n[bans]\ndeny = [{ crate = \"openssl\" }]\n[sources]\nallow-registry = [\"https://a\"]",
        )
        .unwrap();
        let package = |name: &str, license: Option<&str>, source: Option<&str>| Package {
            name: name.to_owned(),
            version: "1.0.0".to_owned(),
            license: license.map(str::to_owned),
            source: source.map(str::to_owned),
        };
        let cases = [
            (package("good", Some("MIT"), Some("registry+https://a")), ""),
            (package("ours", Some("MIT"), None), ""),
            (package("bare", None, None), "has no licence"),
            (package("viral", Some("GPL-3.0-only"), None), "is not allowed"),
            (package("odd", Some("MIT AND"), None), "cannot be read"),
            (package("openssl", Some("MIT"), None), "is banned"),
            (package("stray", Some("MIT"), Some("registry+https://b")), "comes from"),
            (package("git", Some("MIT"), Some("git+https://a")), "comes from"),
        ];
        for (package, expected) in cases {
            let found = problems(&package, &rules).join("; ");
            assert!(found.contains(expected) && found.is_empty() == expected.is_empty(), "{}: {found}", package.name);
        }
    }
}
