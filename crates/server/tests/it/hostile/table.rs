//! The cases that any HTTP client could send, filled in and sent one after the other.

use super::{BODY_LIMIT, CASES, Case, accepted, case, cases, hardened, set_apart};
use crate::support::server::{READ_ONLY, TOKEN, TOKEN_B, message_id};
use crate::support::{Answer, Request, TestServer};
use posthaste_engine::limits::{BATCH_BYTES_MAX, GROUP_ENDPOINTS_MAX};
use serde_json::{Value, json};
use std::sync::Arc;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

/// Requests at once; the vectors ask for up to 1,000, a process has not that many descriptors.
const AT_ONCE: usize = 100;

/// Where something else is answered than the vectors say.
const DIFFERS: [(&str, u16, &str); 2] = [
    ("bulk-many-ids", 431, "the listener: a head over 160 KiB, whatever makes it that long"),
    ("v1-path", 200, "the hosted service has the first version of this path too, and old clients use it"),
];

#[tokio::test]
async fn hostile_requests_are_answered_as_the_vectors_say() {
    let server = hardened(true).await;
    let filler = Filler::prepare(&server).await;
    let mut wrong = Vec::new();
    let mut count = 0;
    for case in cases() {
        if !case.is_plain() || case.value.get("setting").is_some() {
            continue;
        }
        count += 1;
        if let Err(problem) = run(&server, &filler, &case).await {
            wrong.push(format!("{}: {problem}", case.id));
        }
    }
    assert!(wrong.is_empty(), "{} of {count} cases:\n{}", wrong.len(), wrong.join("\n"));
    assert_eq!(count, CASES - set_apart().count() - 1, "one case has a setting");
    server.finish_with_pending().await;
}

#[tokio::test]
async fn a_token_in_the_query_is_refused_where_it_is_switched_off() {
    let server = hardened(false).await;
    let filler = Filler::prepare(&server).await;
    let case = case("auth-query-off");
    assert_eq!(case.text("setting"), "auth.query_token=false");
    assert_eq!(run(&server, &filler, &case).await, Ok(()));
    server.finish_with_pending().await;
}

/// Sends a case as often as it says and looks at every answer, at the store, and at a plain request.
async fn run(server: &TestServer, filler: &Filler, case: &Case) -> Result<(), String> {
    let before = stored(server);
    let expected = case.expected();
    let answers = send(server, filler, case).await;
    if let Some((_, status, _)) = DIFFERS.iter().find(|(id, ..)| *id == case.id) {
        let is_known = |answer: &Answer| answer.status == *status && (*status < 400 || !answer.error().is_empty());
        let as_known = answers.iter().all(is_known);
        return if as_known { Ok(()) } else { Err(format!("no longer differs: {answers:?}")) };
    }
    for answer in &answers {
        if !expected.contains(&answer.status) {
            return Err(format!("status {} instead of {expected:?}: {:.300}", answer.status, answer.text()));
        }
        if answer.status >= 400 {
            check_error(answer)?;
        }
    }
    let refused = answers.iter().all(|answer| answer.status >= 400);
    let after = stored(server);
    if refused && (after.0 != before.0 || after.1 > before.1) {
        return Err(format!("refused, but something was stored: {before:?} {after:?}"));
    }
    let health = server.get("/v2/keys").send().await;
    if health.status != 200 {
        return Err(format!("the next request was answered with {}", health.status));
    }
    Ok(())
}

/// Messages ever accepted, and all that are kept now; one that fails meanwhile only changes its place.
fn stored(server: &TestServer) -> (f64, u64) {
    let counts = server.counts();
    (accepted(server), counts.live + counts.dead_letters)
}

fn check_error(answer: &Answer) -> Result<(), String> {
    let text = answer.text();
    let envelope: Value = serde_json::from_str(&text).unwrap_or_default();
    if !envelope["error"].is_string() {
        return Err(format!("{} without an error in JSON: {text:.300}", answer.status));
    }
    if [TOKEN, READ_ONLY, TOKEN_B, "panicked", ".rs:"].iter().any(|secret| text.contains(secret)) {
        return Err(format!("the error says too much: {text:.300}"));
    }
    Ok(())
}

async fn send(server: &TestServer, filler: &Filler, case: &Case) -> Vec<Answer> {
    let repeat = case.value["repeat"].as_u64().unwrap_or(1);
    let requests = (0..repeat).map(|n| filler.request(server, case, n));
    if case.value["concurrent"] != true {
        let mut answers = Vec::new();
        for request in requests {
            answers.push(request.send().await);
        }
        return answers;
    }
    let places = Arc::new(Semaphore::new(AT_ONCE));
    let mut running = JoinSet::new();
    for request in requests {
        let places = places.clone();
        running.spawn(async move {
            let _place = places.acquire().await.expect("the semaphore is never closed");
            request.send().await
        });
    }
    running.join_all().await
}

/// Knows what the placeholders stand for.
struct Filler {
    names: Vec<(&'static str, String)>,
}

impl Filler {
    /// Makes the messages and dead letters that some cases are about.
    async fn prepare(server: &TestServer) -> Filler {
        let swapped = |c: char| if c.is_lowercase() { c.to_ascii_uppercase() } else { c.to_ascii_lowercase() };
        let publish = |token: &str, name: &str, value: &str| {
            server.publish("https://example.com/hook").token(token).header(name, value).expect(200)
        };
        let pending = message_id(&publish(TOKEN, "Upstash-Delay", "1h").await);
        let pending_b = message_id(&publish(TOKEN_B, "Upstash-Delay", "1h").await);
        let mut letters = Vec::new();
        for token in [TOKEN, TOKEN_B] {
            let id = message_id(&publish(token, "Upstash-Retries", "0").await);
            let target = format!("/v2/dlq?messageId={id}");
            let letter = crate::support::eventually("a dead letter", || async {
                let list = server.get(&target).token(token).expect(200).await.json();
                list["messages"][0]["dlqId"].as_str().map(str::to_owned)
            });
            letters.push(letter.await);
        }
        add_endpoints(server, "largest", GROUP_ENDPOINTS_MAX).await;
        add_endpoints(server, "emptied", 1).await;
        server.delete("/v2/topics/emptied/endpoints").json(&endpoints(1)).expect(200).await;
        server.enqueue("busy", "https://example.com/hook").header("Upstash-Delay", "1h").expect(200).await;
        server.post("/v2/flowControl/key-of-b/pin?rate=1").token(TOKEN_B).expect(200).await;
        let schedule = server.post("/v2/schedules/https://example.com/hook").token(TOKEN_B);
        let headers = [("Upstash-Cron", "0 0 1 1 *"), ("Upstash-Schedule-Id", "schedule-of-b")];
        schedule.headers(&headers).expect(201).await;
        let names = vec![
            ("token", TOKEN.to_owned()),
            ("token_prefix", TOKEN[..TOKEN.len() / 2].to_owned()),
            ("token_swapcase", TOKEN.chars().map(swapped).collect()),
            ("revoked", "pht_a_token_that_was_once_valid".to_owned()),
            ("readonly", READ_ONLY.to_owned()),
            ("own_url", format!("http://{}", server.address)),
            ("pending", pending),
            ("msg_of_tenant_b", pending_b),
            ("group_with_10000_endpoints", "largest".to_owned()),
            ("group_without_endpoints", "emptied".to_owned()),
            ("busy", "busy".to_owned()),
            ("schedule_of_tenant_b", "schedule-of-b".to_owned()),
            ("key_of_tenant_b", "key-of-b".to_owned()),
            ("dlq", letters[0].clone()),
            ("dlq_of_tenant_b", letters[1].clone()),
        ];
        Filler { names }
    }

    fn request(&self, server: &TestServer, case: &Case, n: u64) -> Request {
        let fill = |text: &str| self.fill(text, n);
        let target = fill(case.text("path"));
        let target = String::from_utf8(target).expect("paths are text");
        let mut request = Request::new(server.address, case.text("method"), &target);
        let copies = case.value["repeat_headers"].as_u64();
        for (name, value) in case.value["headers"].as_object().into_iter().flatten() {
            let value = fill(value.as_str().expect("header values are text"));
            if name == "Authorization" {
                request = request.header(name, value);
                continue;
            }
            for copy in 0..copies.unwrap_or(1) {
                request = request.header(self.fill(name, copy), &value);
            }
        }
        match case.value["body"].as_str() {
            None => request,
            Some("{endless}") => request.header("Transfer-Encoding", "chunked").unframed_body(endless()),
            Some(body) => request.body(fill(body)),
        }
    }

    /// Replaces `{name}`, `{n}`, `{text*count}` and the special bodies; any other brace is itself.
    fn fill(&self, text: &str, n: u64) -> Vec<u8> {
        let mut filled = Vec::new();
        let mut rest = text;
        while let Some(open) = rest.find('{') {
            filled.extend_from_slice(&rest.as_bytes()[..open]);
            rest = &rest[open..];
            let meaning = rest.find('}').and_then(|close| Some((close, self.meaning(&rest[1..close], n)?)));
            match meaning {
                Some((close, bytes)) => {
                    filled.extend(bytes);
                    rest = &rest[close + 1..];
                }
                None => {
                    filled.push(b'{');
                    rest = &rest[1..];
                }
            }
        }
        filled.extend_from_slice(rest.as_bytes());
        filled
    }

    fn meaning(&self, inner: &str, n: u64) -> Option<Vec<u8>> {
        if let Some((_, value)) = self.names.iter().find(|(name, _)| *name == inner) {
            return Some(value.clone().into_bytes());
        }
        match inner {
            "n" => return Some(n.to_string().into_bytes()),
            "bytes 0..255" => return Some((0..=255).collect()),
            "gzip bomb" => return Some(GZIP_BOMB.to_vec()),
            "100 MB" => return Some(vec![b' '; BATCH_BYTES_MAX + 1]),
            "100001 items" => return Some(vec![r#"{"url":"https://example.com"}"#; 100_001].join(",").into_bytes()),
            "[item*10001]" => {
                let items = vec![r#"{"destination":"https://example.com"}"#; 10_001].join(",");
                return Some(format!("[{items}]").into_bytes());
            }
            _ => {}
        }
        let (what, count) = inner.rsplit_once('*')?;
        let count = if count == "limit" { BODY_LIMIT } else { count.parse().ok()? };
        let what = if what == "NUL" { "\0" } else { what };
        Some(what.repeat(count).into_bytes())
    }
}

/// Endpoints of a URL group, as a body.
fn endpoints(count: usize) -> Value {
    let endpoint = |n| json!({ "url": format!("https://example.com/{n}") });
    json!({ "endpoints": (0..count).map(endpoint).collect::<Vec<Value>>() })
}

async fn add_endpoints(server: &TestServer, group: &str, count: usize) {
    server.post(&format!("/v2/topics/{group}/endpoints")).json(&endpoints(count)).expect(200).await;
}

/// The head of a gzip stream and the beginning of a very long run of zeros.
const GZIP_BOMB: [u8; 20] = [0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 2, 0xff, 0xec, 0xc1, 1, 1, 0, 0, 0, 0x80, 0x90, 0xfe];

/// More chunks than any limit allows, and no last one.
fn endless() -> Vec<u8> {
    let chunk = [b"10000\r\n".as_slice(), &[b'a'; 0x10000], b"\r\n"].concat();
    chunk.repeat(2 * BODY_LIMIT / 0x10000)
}
