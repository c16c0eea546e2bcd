//! The command: its settings as it prints them, its help, its log, and its last words when it cannot start.

use super::{Place, Secret, canary, leaks};
use posthaste_wire::encoding::hex;
use sha2::{Digest, Sha256};
use std::fs;
use std::path::Path;
use std::process::{Command, Output};

/// The secrets of a configuration, by the name of the setting.
struct Settings {
    token: String,
    read_only_token: String,
    current_signing_key: String,
    next_signing_key: String,
    metrics_token: String,
    llm_token: String,
    encryption_key: String,
}

impl Settings {
    fn new() -> Settings {
        Settings {
            token: canary("token"),
            read_only_token: canary("read-only-token"),
            current_signing_key: canary("current-key"),
            next_signing_key: canary("next-key"),
            metrics_token: canary("metrics-token"),
            llm_token: canary("token-of-the-model"),
            encryption_key: hex(&Sha256::digest(canary("encryption-key"))),
        }
    }

    fn pairs(&self) -> [(&'static str, &str); 7] {
        [
            ("token", &self.token),
            ("read_only_token", &self.read_only_token),
            ("current_signing_key", &self.current_signing_key),
            ("next_signing_key", &self.next_signing_key),
            ("metrics_token", &self.metrics_token),
            ("llm_token", &self.llm_token),
            ("encryption_key", &self.encryption_key),
        ]
    }

    fn secrets(&self) -> Vec<Secret> {
        self.pairs().iter().map(|(_, text)| Secret { text: (*text).to_owned(), allowed: &[] }).collect()
    }

    /// As a file, with `change` applied to each line.
    fn toml(&self, change: impl Fn(&str, &str) -> String) -> String {
        let lines = self.pairs().map(|(name, text)| change(name, text));
        format!("llm_url = \"http://127.0.0.1:9/v1\"\nlisten = \"127.0.0.1:0\"\n{}\n", lines.join("\n"))
    }
}

fn line(name: &str, text: &str) -> String {
    format!("{name} = \"{text}\"")
}

fn posthaste(dir: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_posthaste"));
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("POSTHASTE_")) {
        command.env_remove(name);
    }
    command.args(arguments).arg("--data-dir").arg(dir.join("data"));
    command
}

fn said(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

fn check(settings: &Settings, what: &str, text: String) {
    let leaks = leaks(&settings.secrets(), &[(Place::Output, text)]);
    assert!(leaks.is_empty(), "{what}:\n{}", leaks.join("\n"));
}

#[test]
fn settings_are_printed_without_their_secrets_wherever_they_come_from() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let settings = Settings::new();
    let file = dir.path().join("posthaste.toml");
    fs::write(&file, settings.toml(line)).expect("it can be written");
    let file = file.to_str().expect("a path in text");
    let by_file = posthaste(dir.path(), &["serve", "--config", file, "--print-config", "--log", "trace"]).output();
    let mut by_environment = posthaste(dir.path(), &["serve", "--print-config", "--llm-url", "http://127.0.0.1:9/v1"]);
    by_environment.envs(settings.pairs().map(|(name, text)| (format!("POSTHASTE_{}", name.to_uppercase()), text)));
    let mut help = Command::new(env!("CARGO_BIN_EXE_posthaste"));
    help.args(["serve", "--help"]);
    help.envs(settings.pairs().map(|(name, text)| (format!("POSTHASTE_{}", name.to_uppercase()), text)));
    for (what, output) in [("file", by_file), ("environment", by_environment.output()), ("help", help.output())] {
        let output = output.expect("the binary can be started");
        let text = said(&output);
        assert!(output.status.success() && text.contains("metrics"), "{what}: {text}");
        check(&settings, what, text);
    }
}

/// What can be wrong with a line that holds a secret.
type Mistake = fn(&str, &str) -> String;

const MISTAKES: [(&str, Mistake); 13] = [
    ("an open quote", |name, text| format!("{name} = \"{text}")),
    ("a list", |name, text| format!("{name} = [\"{text}\"]")),
    ("a misspelt name", |name, text| format!("{name}x = \"{text}\"")),
    ("a table", |name, text| format!("{name} = {{ secret = \"{text}\" }}")),
    ("no quotes", |name, text| format!("{name} = {text}")),
    ("a line of its own", |_, text| format!("{text}==")),
    ("no sign between name and value", |name, text| format!("{name} \"{text}\"")),
    ("two values", |name, text| format!("{name} = \"x\" \"{text}\"")),
    ("twice", |name, text| format!("{name} = \"{text}\"\n{name} = \"{text}\"")),
    ("lines that do not end", |name, text| format!("{name} = \"\"\"\n{text} = \"x\"\n")),
    ("in the place of a number", |_, text| format!("max_retries = \"{text}, expected {text}\"")),
    ("in the place of a format", |_, text| format!("log_format = \"{text}`\\n, expected `{text}`\"")),
    ("in a table", |name, text| format!("[tenants]\n{name} = \"{text}\"")),
];

#[test]
fn a_command_that_cannot_start_says_why_without_the_secret() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let settings = Settings::new();
    for (mistake, wrong) in MISTAKES {
        for (broken, _) in settings.pairs() {
            let text = settings.toml(|name, text| if name == broken { wrong(name, text) } else { line(name, text) });
            let file = dir.path().join("wrong.toml");
            fs::write(&file, text).expect("it can be written");
            let file = file.to_str().expect("a path in text");
            let output = posthaste(dir.path(), &["serve", "--config", file]).output().expect("it can be started");
            let text = said(&output);
            assert!(!output.status.success() && text.starts_with("posthaste: "), "{mistake} of {broken}: {text}");
            check(&settings, &format!("{mistake} of {broken}"), text);
        }
    }
    // Secrets in flags, and something else that is wrong.
    let flags: Vec<String> = settings
        .pairs()
        .iter()
        .flat_map(|(name, text)| [format!("--{}", name.replace('_', "-")), (*text).to_owned()])
        .collect();
    let mut command = posthaste(dir.path(), &["serve", "--listen", "nonsense"]);
    let output = command.args(flags).output().expect("it can be started");
    assert!(!output.status.success() && said(&output).contains("nonsense"), "{}", said(&output));
    check(&settings, "flags", said(&output));
}
