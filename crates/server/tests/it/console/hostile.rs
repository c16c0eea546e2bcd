//! Payloads of `vectors/xss.json` where only a server can put them: errors of DNS and TLS, the publisher's User-Agent, and
//! a form that is shown again. The other fields, in a real browser, are in `e2e/console`.

use super::{Browser, expect_texts};
use crate::support::{Receiver, Reply, Setup, TestServer};
use posthaste_delivery::resolve::{Lookup, Resolve};
use rcgen::string::Ia5String;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair, SanType};
use rustls::ServerConfig;
use rustls::pki_types::PrivateKeyDer;
use serde_json::Value;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

const VECTORS: &str = include_str!("../../../../../vectors/xss.json");

/// Every payload as a text.
fn payloads() -> Vec<String> {
    let file: Value = serde_json::from_str(VECTORS).expect("the vectors are JSON");
    let payloads = file["payloads"].as_array().expect("a list").iter().map(|vector| &vector["payload"]);
    let text = |payload: &Value| match payload.as_str() {
        Some(text) => text.to_owned(),
        None => {
            payload["repeat"].as_str().expect("a text").repeat(payload["times"].as_u64().expect("a number") as usize)
        }
    };
    payloads.map(text).collect()
}

/// A text as it stands in a page.
fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// An element of a page: its name, and its attributes.
struct Element<'a> {
    name: &'a str,
    attributes: Vec<(&'a str, &'a str)>,
}

/// Elements as a browser sees them. Ours have their values in quotes, so one without is a stranger's.
fn elements(page: &str) -> Vec<Element<'_>> {
    let mut found = Vec::new();
    let mut rest = page;
    while let Some((_, tag)) = rest.split_once('<') {
        let end = tag.find(|c: char| !c.is_ascii_alphanumeric() && !matches!(c, '/' | '!')).unwrap_or(tag.len());
        let (name, mut inside) = tag.split_at(end);
        let mut attributes = Vec::new();
        loop {
            inside = inside.trim_start();
            if inside.is_empty() || inside.starts_with('>') {
                break;
            }
            let end = inside.find(['=', '>', ' ', '\n']).unwrap_or(inside.len());
            let (name, after) = inside.split_at(end);
            let Some(value) = after.strip_prefix('=') else {
                attributes.push((name, ""));
                inside = after;
                continue;
            };
            let value = value.strip_prefix('"').unwrap_or_else(|| panic!("{name} has no quotes: {value:.80}"));
            let (value, after) = value.split_once('"').expect("quotes are closed");
            attributes.push((name, value));
            inside = after;
        }
        found.push(Element { name, attributes });
        rest = inside;
    }
    found
}

/// Fails if a page has anything that can run, load or lead elsewhere.
fn assert_harmless(page: &str, whose: &str) {
    const STRANGE: [&str; 9] = ["iframe", "object", "embed", "video", "source", "math", "mtext", "base", "style"];
    let elements = elements(page);
    assert!(elements.iter().any(|element| element.name == "main"), "{whose}: {page}");
    for Element { name, attributes } in elements {
        assert!(!STRANGE.contains(&name), "{whose}: <{name}> in {page}");
        let has = |wanted: &str, start: &str| {
            attributes.iter().any(|(attribute, value)| *attribute == wanted && value.starts_with(start))
        };
        let is_ours = match name {
            "script" | "img" => has("src", "/console/assets/"),
            "meta" => has("charset", "utf-8") || has("name", "viewport"),
            _ => true,
        };
        assert!(is_ours, "{whose}: <{name} {attributes:?}> in {page}");
        for (attribute, value) in attributes {
            assert!(!attribute.starts_with("on") && !["style", "srcdoc"].contains(&attribute), "{whose}: {attribute}");
            let is_target = ["href", "src", "action", "formaction", "data-from"].contains(&attribute);
            let is_here = value.starts_with('#') || (value.starts_with('/') && !value.starts_with("//"));
            assert!(!is_target || is_here, "{whose}: {attribute}={value}");
        }
    }
}

/// Publishes to a destination that cannot be reached, and looks at every page that says why; gives that reason.
async fn fails_harmlessly(server: &TestServer, destination: &str) -> String {
    let id = server.publish_with(destination, &[("Upstash-Retries", "0")], "").await;
    let letter = server.dead_letter_of(&id).await;
    let (error, dlq_id) = (letter["error"].as_str().expect("why"), letter["dlqId"].as_str().expect("an id"));
    let browser = Browser::open(server);
    let (message, entry) = (format!("messages/{id}"), format!("dlq/{dlq_id}"));
    for path in ["messages", &message, "dlq", "dlq/entries", &entry, "tail"] {
        let page = browser.see(&format!("/console/{path}")).await;
        assert_harmless(&page, &format!("{path} of {destination:.100}"));
        if [&message, &entry].into_iter().any(|page| path == page) {
            expect_texts(&page, &[&escaped(error)]);
        }
    }
    error.to_owned()
}

/// A name server that answers with payloads, and knows one name.
struct HostileDns(Vec<String>);

impl Resolve for HostileDns {
    fn resolve(&self, host: &str) -> Lookup {
        let number = host.strip_prefix("dns-").and_then(|rest| rest.split('.').next()?.parse::<usize>().ok());
        let answer = match (number, host) {
            (Some(number), _) => Err(io::Error::new(io::ErrorKind::NetworkDown, self.0[number].clone())),
            (None, "tls.example") => Ok(vec![IpAddr::V4(Ipv4Addr::LOCALHOST)]),
            (None, _) => Err(io::Error::other("there is no such name")),
        };
        Box::pin(async { answer })
    }
}

#[tokio::test]
async fn errors_of_dns_are_text() {
    let payloads = payloads();
    let setup = Setup { resolver: Arc::new(HostileDns(payloads.clone())), ..Setup::dev() };
    let server = TestServer::with(setup).await;
    let browser = Browser::open(&server);
    for (number, payload) in payloads.iter().enumerate() {
        let error = fails_harmlessly(&server, &format!("https://dns-{number}.example/")).await;
        assert!(error.contains(payload.as_str()), "{payload:.100} is not in {error:.200}");
        // As a name it is refused before, and shown with why.
        let destination = format!("https://{payload}.example/");
        let page = browser.refused("/console/send", &[("do", "send"), ("destination", &destination)], 400).await;
        assert_harmless(&page, &destination);
        expect_texts(&page, &["role=\"alert\"", &format!("value=\"{}\"", escaped(&destination))]);
    }
    server.finish().await;
}

/// A server whose certificate has this name, for one handshake.
async fn tls_server(authority: &CertifiedIssuer<'static, KeyPair>, name: Ia5String) -> SocketAddr {
    let key = KeyPair::generate().expect("a key");
    let mut params = CertificateParams::new(Vec::new()).expect("parameters");
    params.subject_alt_names = vec![SanType::DnsName(name)];
    let certificate = params.signed_by(&key, authority).expect("a certificate");
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().expect("TLS");
    let key = PrivateKeyDer::try_from(key.serialize_der()).expect("a key");
    let config = config.with_no_client_auth().with_single_cert(vec![certificate.der().clone()], key).expect("a pair");
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback has a free port");
    let address = listener.local_addr().expect("it is bound");
    tokio::spawn(async move {
        let (stream, _) = listener.accept().await.expect("somebody connects");
        let refused = TlsAcceptor::from(Arc::new(config)).accept(stream).await;
        assert!(refused.is_err(), "nobody trusts that name");
    });
    address
}

#[tokio::test]
async fn names_in_certificates_are_text() {
    let mut params = CertificateParams::new(Vec::new()).expect("parameters");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority = CertifiedIssuer::self_signed(params, KeyPair::generate().expect("a key")).expect("an authority");
    let dir = tempfile::TempDir::new().expect("a temporary directory");
    let file = dir.path().join("authority.pem");
    std::fs::write(&file, authority.pem()).expect("it is written");
    let mut setup = Setup { resolver: Arc::new(HostileDns(Vec::new())), ..Setup::dev() };
    setup.settings.egress_ca_file = Some(file);
    let server = TestServer::with(setup).await;
    let mut shown = 0;
    for payload in payloads() {
        let Ok(name) = Ia5String::try_from(payload.as_str()) else { continue };
        let address = tls_server(&authority, name).await;
        let error = fails_harmlessly(&server, &format!("https://tls.example:{}/", address.port())).await;
        assert!(error.contains("certificate"), "{error:.200}");
        shown += usize::from(error.contains('<'));
    }
    assert!(shown >= 10, "{shown} errors have markup of the certificate");
    server.finish().await;
}

#[tokio::test]
async fn a_user_agent_is_text_or_nowhere() {
    let server = TestServer::start().await;
    let receiver = Receiver::start().await;
    receiver.script("/", [Reply::status(500)]);
    let browser = Browser::open(&server);
    let is_header =
        |payload: &&String| payload.len() < 1_000 && !payload.bytes().any(|byte| byte < b' ' && byte != b'\t');
    for payload in payloads().iter().filter(is_header) {
        let agent = format!("agent {payload}");
        let headers = [("User-Agent", agent.as_str()), ("Upstash-Retries", "0")];
        let id = server.publish_with(&receiver.url("/"), &headers, "").await;
        let letter = server.dead_letter_of(&id).await;
        let run = server.post(&format!("/v2/trigger/{}", receiver.url("/"))).headers(&headers).expect(200).await.json();
        let run = run["workflowRunId"].as_str().expect("an id").to_owned();
        let dlq_id = letter["dlqId"].as_str().expect("an id");
        let (message, letter) = (format!("messages/{id}"), format!("dlq/{dlq_id}"));
        let (run, again) = (format!("workflows/runs/{run}"), format!("dlq/retry?what=one&id={dlq_id}"));
        for path in ["", "messages", &message, "dlq", &letter, &again, "tail", "workflows", &run, "send", "settings"] {
            let path = format!("/console/{path}").trim_end_matches('/').to_owned();
            let request = server.get(&path).without("Authorization").header("Cookie", &browser.cookie);
            let answer = request.header("User-Agent", &agent).expect(200).await;
            assert_harmless(&answer.text(), &format!("{path} of {agent}"));
        }
    }
    server.finish_with_pending().await;
}

#[tokio::test]
async fn a_refused_cron_expression_is_shown_as_text() {
    let server = TestServer::start().await;
    let browser = Browser::open(&server);
    let (page, url) = ("/console/schedules", "https://example.com/");
    browser.press(page, &[("id", "tick"), ("expression", "@daily"), ("destination", url)]).await;
    for payload in payloads() {
        let made = [("id", "other"), ("expression", payload.as_str()), ("destination", url), ("body", &payload)];
        for (path, fields) in [(page, &made[..]), ("/console/schedules/tick/times", &made[1..2])] {
            let answer = browser.refused(path, fields, 400).await;
            let whose = format!("{path} of {payload:.100}");
            assert_harmless(&answer, &whose);
            expect_texts(&answer, &["role=\"alert\""]);
            let fields = elements(&answer);
            let field = fields.iter().find(|element| element.attributes.contains(&("name", "expression")));
            let field = field.unwrap_or_else(|| panic!("{whose}: no field in {answer:.2000}"));
            let value = field.attributes.iter().find(|(name, _)| *name == "value").map(|(_, value)| *value);
            assert_eq!(value, Some(escaped(&payload).as_str()), "{whose}");
        }
    }
    browser.press(&format!("{page}/tick/delete"), &[]).await;
    server.finish().await;
}
