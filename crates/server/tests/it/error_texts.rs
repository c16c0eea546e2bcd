//! The errors that users meet, whole: the bodies of the API, and what the command prints when it cannot start. Mistakes with
//! tokens are in `tenants`, single settings in `wire`, and the lines of a configuration file in `config::problem`.

use crate::console::Browser;
use crate::support::server::READ_ONLY;
use crate::support::{Receiver, Reply, Request, TestServer};
use serde_json::{Value, json};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Output};

const SCHEME: &str = "invalid destination url: endpoint has invalid scheme, add http:// or https://";
const DURATION: &str = "accepted are d, h, m and s, such as 1d10h30m, 5m or 0.5s, and a number of seconds";
const HOSTED_TIMEOUT: &str = "context deadline exceeded";
const ARRAY: &str = r#"send a JSON array: [{"destination": "https://…", "headers": {…}, "body": "…"}]"#;

/// Sends each request, and compares the whole body.
async fn check(cases: Vec<(Request, u16, String)>) {
    for (request, status, expected) in cases {
        assert_eq!(request.expect(status).await.text(), json!({ "error": expected }).to_string());
    }
}

#[tokio::test]
async fn mistakes_in_a_publish_name_the_value_and_the_accepted_form() {
    let server = TestServer::start().await;
    let publish = |name: &str, value: &[u8]| server.publish("http://a.example/").header(name, value);
    check(vec![
        (server.publish("a.example/hook?key=secret"), 400, format!("{SCHEME}; received \"a.example/hook\"")),
        (server.publish("ftp://a.example/"), 400, format!("{SCHEME}; ftp is not supported; received \"ftp://a.example/\"")),
        (
            server.publish("ftp://user:secret@a.example/?key=secret"),
            400,
            format!("{SCHEME}; ftp is not supported; received \"ftp://…@a.example/\""),
        ),
        (
            publish("Upstash-Delay", b"500ms"),
            400,
            format!("Upstash-Delay: \"500ms\" is not a duration: ms is not supported here; {DURATION}"),
        ),
        (
            server.publish("http://a.example/?upstash-delay=%1b%5b2J"),
            400,
            "Upstash-Delay: the value has the control character '\\u{1b}'; percent-encode it".to_owned(),
        ),
        (
            publish("Upstash-Delay", b"\xff\xe9"),
            400,
            format!("Upstash-Delay: \"ÿé\" is not a duration; {DURATION}"),
        ),
        (
            publish("Upstash-Delay", "\u{202e}<b>".as_bytes()),
            400,
            format!("Upstash-Delay: \"\\u{{202e}}<b>\" is not a duration; {DURATION}"),
        ),
        (
            publish("Upstash-Delay", &[b'5'; 60_000]),
            400,
            format!("Upstash-Delay: \"{}…\" is not a duration: at most 32 characters are accepted", "5".repeat(64)),
        ),
        (
            publish("Upstash-Delay", b"366d"),
            412,
            "quota maxDelay exceeded, current limit: 31536000 (365d); Upstash-Delay is \"366d\"".to_owned(),
        ),
        (
            publish("Upstash-Retry-Delay", b"2^retried"),
            400,
            "Upstash-Retry-Delay: invalid retry delay expression: syntax error at position 1 of \"2^retried\"; use pow(2, \
             retried)"
                .to_owned(),
        ),
        (
            publish("Upstash-Retry-Delay", b"5s"),
            400,
            "Upstash-Retry-Delay: invalid retry delay expression: syntax error at position 1 of \"5s\"; the result is in \
             milliseconds: 5000"
                .to_owned(),
        ),
    ])
    .await;
    assert_eq!(server.counts().live, 0);
    server.finish().await;
}

#[tokio::test]
async fn mistakes_in_a_batch_name_the_item_and_the_field() {
    let server = TestServer::start().await;
    let batch = |body: &str| server.post("/v2/batch").body(body);
    let second = |bad: Value| server.post("/v2/batch").json(&json!([{ "destination": "http://a.example/" }, bad]));
    let with =
        |name: &str, value: &str| second(json!({ "destination": "http://a.example/", "headers": { name: value } }));
    let runs = |destination: &str| server.post("/v2/batch/trigger").json(&json!([{ "destination": destination }]));
    let huge = "é".repeat(5 * 1024 * 1024);
    check(vec![
        (batch(""), 400, format!("the body is empty; {ARRAY}")),
        (batch(r#"{"destination": "http://a.example/"}"#), 400, format!("the body is a JSON object; {ARRAY}")),
        (batch("\"secret\""), 400, format!("the body is not a JSON array; {ARRAY}")),
        (
            second(json!({ "destination": "a.example/hook?key=secret" })),
            400,
            format!("item 1: destination: {SCHEME}; received \"a.example/hook\""),
        ),
        (
            second(json!({ "destination": "user:secret@a.example" })),
            400,
            format!("item 1: destination: {SCHEME}; received \"…@a.example\""),
        ),
        (
            second(json!({ "destination": "ftp://a.example/\u{1b}[2J" })),
            400,
            format!("item 1: destination: {SCHEME}; ftp is not supported; received \"ftp://a.example/\\u{{1b}}[2J\""),
        ),
        (runs("a.example/hook"), 400, format!("item 0: destination: {SCHEME}; received \"a.example/hook\"")),
        (
            with("Upstash-Callback", "a.example"),
            400,
            format!("item 1: Upstash-Callback: {SCHEME}; received \"a.example\""),
        ),
        (
            with("Upstash-Delay", &huge),
            400,
            format!(
                "item 1: Upstash-Delay: \"{}…\" is not a duration: at most 32 characters are accepted",
                "é".repeat(64)
            ),
        ),
        (
            second(json!({ "destination": huge })),
            400,
            "item 1: destination: invalid destination url: at most 8192 bytes are accepted, it has 10485760".to_owned(),
        ),
    ])
    .await;
    let unclosed = batch("[{\"body\": \"secret").expect(400).await.error();
    let start = "the body is not valid JSON: EOF while parsing a string at line 1 column ";
    assert!(unclosed.starts_with(start) && unclosed.ends_with(&format!("; {ARRAY}")), "{unclosed}");
    assert_eq!(server.counts().live, 0);
    server.finish().await;
}

#[tokio::test]
async fn other_mistakes_say_the_right_way() {
    let server = TestServer::start().await;
    let too_large = server.publish("http://a.example/").body(vec![b'a'; 10 * 1024 * 1024 + 1]);
    check(vec![
        (server.get("/v2/batch"), 405, "method not allowed: use POST".to_owned()),
        (server.post("/v2/keys"), 405, "method not allowed: use GET".to_owned()),
        (server.request("PUT", "/v2/queues/q"), 405, "method not allowed: use GET or DELETE".to_owned()),
        (
            server.request("PUT", "/v2/schedules/s"),
            405,
            "method not allowed: use GET, DELETE, POST or PATCH".to_owned(),
        ),
        (too_large, 412, "quota maxMessageSize exceeded, current limit: 10485760 (10 MiB)".to_owned()),
        (
            server.publish("http://a.example/").token(READ_ONLY),
            403,
            "this is a read-only token: it cannot publish, change or delete anything, or read signing keys".to_owned(),
        ),
    ])
    .await;
    server.finish().await;
}

#[tokio::test]
async fn people_read_how_long_an_attempt_waited_and_programs_read_the_text_of_the_hosted_service() {
    let server = TestServer::start().await;
    let receiver = Receiver::start().await;
    let (held, _gate) = Reply::status(200).held();
    receiver.script("/", [held]);
    let headers = [("Upstash-Timeout", "1s"), ("Upstash-Retries", "0")];
    let id = server.publish_with(&receiver.url("/"), &headers, "").await;
    server.reaches(&id, &["CREATED", "ACTIVE", "ERROR", "FAILED"]).await;
    let letter = server.dead_letter_of(&id).await;
    let why = server.get(&format!("/v2/messages/{id}/why")).expect(200).await.json();
    assert_eq!((&letter["error"], &why["lastError"]), (&json!(HOSTED_TIMEOUT), &json!(HOSTED_TIMEOUT)));
    assert_eq!(why["sentence"], "in the DLQ: no response within 1 s, with no retries");
    let browser = Browser::open(&server);
    for (path, expected) in [
        (format!("/console/dlq/{}", letter["dlqId"].as_str().expect("an id")), "no response within 1 s"),
        ("/console/dlq/entries".to_owned(), "no response within 1 s"),
        (format!("/console/messages/{id}"), "no response within 1 s"),
        ("/console/messages".to_owned(), "no response within 1 s"),
        ("/console/tail".to_owned(), "no response within 1 s"),
        ("/console/dlq".to_owned(), "no response in time"),
    ] {
        let page = browser.look(&path).await.text();
        assert!(page.contains(expected) && !page.contains(HOSTED_TIMEOUT), "{path}: {page}");
    }
    server.finish().await;
}

/// Runs the command with its own environment variables alone.
fn posthaste(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_posthaste"));
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("POSTHASTE_") || name.starts_with("QSTASH_"))
    {
        command.env_remove(name);
    }
    command.args(arguments).output().expect("the command can be started")
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).expect("it prints text")
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).expect("it prints text")
}

fn text(path: &Path) -> &str {
    path.to_str().expect("a path in text")
}

#[test]
fn a_misspelt_subcommand_leads_to_the_right_one() {
    let output = posthaste(&["srve"]);
    let expected = "error: unrecognized subcommand 'srve'\n\n  tip: a similar subcommand exists: 'serve'\n\n\
                    Usage: posthaste <COMMAND>\n\nFor more information, try '--help'.\n";
    assert_eq!((output.status.code(), stdout(&output).as_str(), stderr(&output).as_str()), (Some(2), "", expected));
}

#[test]
fn a_wrong_configuration_ends_the_start_with_the_line() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let path = dir.path().join("posthaste.toml");
    let (path, data) = (text(&path), dir.path().join("data"));
    let in_file = |problem: &str| format!("{path} is not a valid configuration: {problem}");
    for (file, expected) in [
        (
            "listen = \"127.0.0.1:0\"\nlog_retentoin = \"secret\"\n",
            in_file("line 2: unknown key log_retentoin; did you mean log_retention?\n  |\n2 | log_retentoin = …\n  | ^^^^^^^^^^^^^"),
        ),
        (
            "listen = \"127.0.0.1:0\"\ntoken = secret\n",
            in_file("line 2: strings need quotes\n  |\n2 | token = …\n  |         ^"),
        ),
        (
            "[tenants]\nname = \"secret\"\n",
            in_file("line 1: tenants is a list of tables: write [[tenants]]\n  |\n1 | [tenants]\n  | ^^^^^^^^^"),
        ),
        (
            "tenant_parallelism = \"secret\"\n",
            in_file(
                "line 1: expected a whole number from 0 to 4294967295, found a string\n  |\n1 | tenant_parallelism = …\n  \
                 |                      ^",
            ),
        ),
        ("log_retention = \"500ms\"\n", format!("log_retention: \"500ms\" is not a duration: ms is not supported here; {DURATION}")),
        (
            "journal = true\n",
            "tenants: `serve` needs at least one: run `posthaste new-tenant NAME --write FILE`, and start with `--config FILE`"
                .to_owned(),
        ),
    ] {
        std::fs::write(path, file).expect("it can be written");
        let output = posthaste(&["serve", "--config", path, "--data-dir", text(&data)]);
        assert_eq!((output.status.code(), stderr(&output)), (Some(1), format!("posthaste: {expected}\n")), "{file}");
    }
}

#[test]
fn a_place_that_cannot_be_used_is_named_with_the_way_out() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let file = dir.path().join("posthaste.db");
    std::fs::write(&file, "mine").expect("it can be written");
    let output = posthaste(&["dev", "--data-dir", text(&file), "--listen", "127.0.0.1:0"]);
    let expected = "is a file, and the data directory must be a directory: choose another --data-dir";
    assert_eq!((output.status.code(), stderr(&output)), (Some(1), format!("posthaste: {} {expected}\n", text(&file))));

    let taken = TcpListener::bind("127.0.0.1:0").expect("loopback has a free port");
    let port = taken.local_addr().expect("an address").port();
    let name = std::fs::read_to_string("/proc/self/comm").expect("this process has a name");
    let (name, pid) = (name.trim(), std::process::id());
    let free = port.checked_add(1).unwrap_or(8080);
    let output = posthaste(&["dev", "--data-dir", text(&dir.path().join("data")), "--port", &port.to_string()]);
    let expected = format!(
        "posthaste: cannot listen on 127.0.0.1:{port}: address already in use by {name} (process {pid}): stop it, or choose \
         another port with --port {free}\n"
    );
    assert_eq!((output.status.code(), stderr(&output)), (Some(1), expected));
}

#[test]
fn a_new_tenant_is_printed_for_its_programs_and_for_the_server() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let path = dir.path().join("posthaste.toml");
    let path = text(&path);
    let plain = posthaste(&["new-tenant", "acme"]);
    let (env, toml) =
        stdout(&plain).split_once("\n\n").map(|(env, toml)| (env.to_owned(), toml.to_owned())).expect("two blocks");
    assert_eq!((plain.status.code(), stderr(&plain).as_str()), (Some(0), ""));
    let names = |block: &str| -> Vec<String> {
        block.lines().filter_map(|line| Some(line.split_once('=')?.0.trim().to_owned())).collect()
    };
    let variables = ["QSTASH_URL", "QSTASH_TOKEN", "QSTASH_CURRENT_SIGNING_KEY", "QSTASH_NEXT_SIGNING_KEY"];
    let settings = ["name", "token_sha256", "read_only_token_sha256", "current_signing_key", "next_signing_key"];
    assert_eq!(
        (names(&env), names(&toml)),
        (variables.map(str::to_owned).to_vec(), settings.map(str::to_owned).to_vec())
    );

    let apart = posthaste(&["new-tenant", "acme", "--env", "--url", "https://a.example"]);
    assert_eq!((names(&stdout(&apart)), names(&stderr(&apart))), (names(&env), names(&toml)), "nothing is lost");
    assert!(stdout(&apart).contains("\nQSTASH_URL=https://a.example\n"), "{}", stdout(&apart));

    let written = posthaste(&["new-tenant", "acme", "--write", path]);
    let expected = format!("posthaste: tenant \"acme\" was added to {path}; restart the server to load it\n");
    assert_eq!((names(&stdout(&written)), stderr(&written)), (names(&env), expected));
    let again = posthaste(&["new-tenant", "acme", "--write", path]);
    let exists = format!(
        "posthaste: {path} already has a tenant named \"acme\"; choose another name, or remove that tenant first\n"
    );
    assert_eq!((again.status.code(), stdout(&again).as_str(), stderr(&again)), (Some(1), "", exists));
    let config = posthaste(&["serve", "--config", path, "--print-config"]);
    assert!(stdout(&config).contains("# tenant: acme"), "{}", stderr(&config));

    let wrong = posthaste(&["new-tenant", "acme", "--url", "a.example\nQSTASH_TOKEN=x"]);
    assert_eq!((wrong.status.code(), stdout(&wrong).as_str()), (Some(2), ""));
    assert!(stderr(&wrong).contains("it must be a URL such as https://posthaste.example.com"), "{}", stderr(&wrong));
}
