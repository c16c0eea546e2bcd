//! What a request without a token costs the server, for every route: at most a few times as much as `/health`.
//!
//! Measured on the real binary, as CPU time of all its threads over many requests on one connection.

use posthaste::api::documented_routes;
use std::collections::BTreeSet;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// How many times as much as `/health` a request may cost.
const RATIO_MAX: f64 = 3.0;
/// The webhook of a run that does not exist. It is looked up in the store, on another thread: 2 to 2.5 times as much as
/// `/health` on a quiet machine, and up to 4.5 times on a busy one, where each hand-over to a thread costs more. Callers
/// whose lookups miss are limited, too.
const LOOKED_UP: &str = "/v2/workflows/hooks/default/run/event";
const LOOKED_UP_RATIO_MAX: f64 = 6.0;
/// Requests of one measurement.
const REQUESTS: usize = 60;
/// Measurements of a route, each beside one of `/health`; the middle one counts.
const ROUNDS: usize = 3;
/// How often a route that seems to be expensive is looked at again: a busy machine has bad moments.
const RETRIES: usize = 4;

struct Process {
    child: Child,
    address: SocketAddr,
    _dir: TempDir,
}

impl Process {
    fn start(mode: &str) -> Process {
        let dir = TempDir::new().expect("a temporary directory");
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("an address");
        drop(listener);
        let mut command = Command::new(env!("CARGO_BIN_EXE_posthaste"));
        command.args([mode, "--listen", &address.to_string(), "--disk-reserve-bytes", "0", "--log", "error"]);
        command.arg("--data-dir").arg(dir.path());
        for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("POSTHASTE_")) {
            command.env_remove(name);
        }
        if mode == "serve" {
            command.env("POSTHASTE_TOKEN", "a-token-that-nobody-has-to-know");
            command.env("POSTHASTE_CURRENT_SIGNING_KEY", "sig_current_of_this_test");
            command.env("POSTHASTE_NEXT_SIGNING_KEY", "sig_next_of_this_test");
        }
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        let process = Process { child: child.expect("the binary can be started"), address, _dir: dir };
        let deadline = Instant::now() + Duration::from_secs(60);
        while TcpStream::connect(address).is_err() {
            assert!(Instant::now() < deadline, "it does not listen");
            std::thread::sleep(Duration::from_millis(20));
        }
        process
    }

    /// CPU time that its threads have had, in microseconds.
    fn cpu(&self) -> f64 {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.child.id())).expect("it runs on Linux");
        let of_task = |task: io::Result<std::fs::DirEntry>| {
            // A thread may have ended meanwhile.
            let text = std::fs::read_to_string(task.ok()?.path().join("schedstat")).ok()?;
            text.split(' ').next()?.parse::<f64>().ok()
        };
        tasks.filter_map(of_task).sum::<f64>() / 1_000.0
    }

    /// CPU time per request, in microseconds.
    fn cost(&self, request: &str) -> f64 {
        let mut stream = TcpStream::connect(self.address).expect("it listens");
        stream.set_nodelay(true).expect("a socket");
        let request = request.replace("{host}", &self.address.to_string());
        // The first one may have to make what the others share.
        send(&mut stream, &request);
        let before = self.cpu();
        for _ in 0..REQUESTS {
            send(&mut stream, &request);
        }
        (self.cpu() - before) / REQUESTS as f64
    }

    /// How many times as much as `/health` it costs.
    fn ratio(&self, request: &str) -> f64 {
        let round = |_| self.cost(request) / self.cost("GET /health HTTP/1.1\r\nHost: {host}\r\n\r\n");
        let mut ratios: Vec<f64> = (0..ROUNDS).map(round).collect();
        ratios.sort_by(f64::total_cmp);
        ratios[ROUNDS / 2]
    }

    /// The requests that cost too much, each with its ratio.
    fn expensive(&self, requests: &[String]) -> Vec<String> {
        let mut found = Vec::new();
        for request in requests {
            let most = if request.contains(LOOKED_UP) { LOOKED_UP_RATIO_MAX } else { RATIO_MAX };
            let mut ratio = self.ratio(request);
            for _ in 0..RETRIES {
                if ratio <= most {
                    break;
                }
                ratio = ratio.min(self.ratio(request));
            }
            let line = request.lines().next().unwrap_or_default();
            println!("{ratio:5.2} {line}");
            if ratio > most {
                found.push(format!("{line}: {ratio:.1} times /health"));
            }
        }
        found
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// Sends a request and reads the whole answer.
fn send(stream: &mut TcpStream, request: &str) {
    stream.write_all(request.as_bytes()).expect("it reads");
    let (mut answer, mut buffer) = (Vec::new(), vec![0; 64 * 1024]);
    let mut read = |answer: &mut Vec<u8>| {
        let count = stream.read(&mut buffer).expect("it answers");
        assert!(count > 0, "{request:?} ended the connection: {:?}", answer.escape_ascii().to_string());
        answer.extend_from_slice(&buffer[..count]);
    };
    let end = loop {
        match answer.windows(4).position(|bytes| bytes == b"\r\n\r\n") {
            Some(end) => break end + 4,
            None => read(&mut answer),
        }
    };
    let head = String::from_utf8_lossy(&answer[..end]).to_ascii_lowercase();
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")?.trim().parse::<usize>().ok());
    let length = if request.starts_with("HEAD ") { 0 } else { length.unwrap_or(0) };
    while answer.len() < end + length {
        read(&mut answer);
    }
}

fn request(method: &str, path: &str) -> String {
    format!("{method} {path} HTTP/1.1\r\nHost: {{host}}\r\n\r\n")
}

/// A path that a route matches.
fn sample(route: &str) -> String {
    let filled = |segment: &'static str| if segment.starts_with('{') { "x" } else { segment };
    let route: &'static str = route.to_owned().leak();
    route.split('/').map(filled).collect::<Vec<_>>().join("/")
}

#[test]
fn no_route_without_a_token_costs_much_more_than_health() {
    let server = Process::start("serve");
    let mut requests: BTreeSet<String> =
        documented_routes().into_iter().map(|(method, route)| request(method, &sample(route))).collect();
    let others = [
        ("HEAD", "/openapi.json"),
        ("GET", LOOKED_UP),
        ("GET", "/"),
        ("GET", "/no/such/path"),
        ("GET", "/v2/queues/?qstash_token=wrong"),
        ("OPTIONS", "/v2/queues"),
        ("GET", "/console"),
        ("GET", "/console/"),
        ("GET", "/console/messages"),
        ("GET", "/console/no-such-page"),
        ("GET", "/console/login"),
        ("GET", "/console/login?next=/console/dlq"),
        ("GET", "/console/assets/x/console.css"),
        ("GET", "/console/assets/x/console.js"),
        ("GET", "/console/assets/x/icon.svg"),
        ("GET", "/console/assets/x/nothing"),
    ];
    requests.extend(others.map(|(method, path)| request(method, path)));
    let form = "token=wrong&next=";
    requests.insert(format!(
        "POST /console/login HTTP/1.1\r\nHost: {{host}}\r\nOrigin: http://{{host}}\r\nContent-Type: application/x-www-form-urlencoded\r\nContent-Length: {}\r\n\r\n{form}",
        form.len()
    ));
    requests.insert("GET /v2/queues HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer wrong\r\n\r\n".to_owned());
    let requests: Vec<String> = requests.into_iter().collect();
    assert!(requests.len() > 100, "{}", requests.len());
    let expensive = server.expensive(&requests);
    assert!(expensive.is_empty(), "{}", expensive.join("\n"));
}

/// Where `/metrics` is open, a preflight needs no token, and so on.
#[test]
fn nor_does_one_of_a_development_server() {
    let server = Process::start("dev");
    let requests = [("GET", "/metrics"), ("OPTIONS", "/v2/queues"), ("GET", "/openapi.json"), ("GET", "/ready")];
    let expensive = server.expensive(&requests.map(|(method, path)| request(method, path)));
    assert!(expensive.is_empty(), "{}", expensive.join("\n"));
}
