//! Connections that hold something: unread responses, slow heads and bodies, large heads, and sheer number.

use super::Case;
use crate::client::{ATTACKER, connect, elapse, open_files_max, read_reply, request};
use crate::proc::{connections, tally};
use crate::server::ATTACKER_TOKEN;
use crate::stage::{Attack, Stage};
use std::io;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::time::{Instant, interval, timeout};

/// Connections that never read, and the requests that each has pipelined.
const SILENT: usize = 40;
const SILENT_REQUESTS: usize = 300;
/// The server has to let them go within this time; it once took more than 200 s.
const LET_GO: Duration = Duration::from_secs(75);
/// Connections that send one byte of a head, or of a body, per tick.
const SLOW_HEADS: usize = 200;
const SLOW_BODIES: usize = 50;
const DRIP: Duration = Duration::from_millis(500);
/// The server has to let slow heads go within this time.
const HEAD_LET_GO: Duration = Duration::from_secs(30);
/// Connections with a large head that never ends, and the bytes of each.
const LARGE_HEADS: usize = 600;
const LARGE_HEAD_BYTES: usize = 500_000;
/// How long they are held.
const HELD: Duration = Duration::from_secs(2);
/// Connections of a flood from one address: more than the server takes in all.
const FLOOD: usize = 10_200;
/// Most connections that one address may hold.
const ADDRESS_CONNECTIONS_MAX: usize = 5_000;
/// Open files that the suite needs besides those of the flood.
const OTHER_FILES: u64 = 500;

pub(super) fn cases() -> Vec<Case> {
    vec![
        Case::new("unread responses", |stage| Box::pin(unread(stage))).waiting(),
        Case::new("slow heads", |stage| Box::pin(slow_heads(stage))).waiting(),
        Case::new("slow bodies", |stage| Box::pin(slow_bodies(stage))).waiting(),
        Case::new("large heads", |stage| Box::pin(large_heads(stage))),
        Case::new("connection flood", |stage| Box::pin(flood(stage))),
    ]
}

/// Opens this many connections and writes the same to each.
async fn open(stage: &Stage, count: usize, bytes: &[u8], attack: &mut Attack) -> Vec<TcpStream> {
    let mut streams = Vec::with_capacity(count);
    for _ in 0..count {
        match connect(ATTACKER, stage.server.address).await {
            Ok(mut stream) => {
                attack.bytes += bytes.len() as u64;
                // The server may have closed it already.
                drop(stream.write_all(bytes).await);
                streams.push(stream);
            }
            Err(error) => attack.note(format!("a connection was not opened: {error}")),
        }
    }
    streams
}

/// Pipelines requests and never reads: the server and the kernel have to get rid of the responses.
async fn unread(stage: &Stage) -> Attack {
    let mut attack = Attack::default();
    let requests = b"GET /openapi.json HTTP/1.1\r\nHost: a\r\n\r\n".repeat(SILENT_REQUESTS);
    let _streams = open(stage, SILENT, &requests, &mut attack).await;
    let begun = Instant::now();
    let mut unread_peak = 0;
    let mut ticks = interval(Duration::from_millis(100));
    loop {
        ticks.tick().await;
        let left = connections(stage.server.address, ATTACKER);
        unread_peak = unread_peak.max(left.unread_bytes);
        if left.open == 0 {
            let seconds = begun.elapsed().as_secs_f64();
            attack.note(format!("all let go after {seconds:.0} s; at most {} MB unread", unread_peak / 1_000_000));
            return attack;
        }
        if begun.elapsed() > LET_GO {
            let (open, seconds, mb) = (left.open, LET_GO.as_secs(), left.unread_bytes / 1_000_000);
            attack.complain(format!("{open} of {SILENT} connections are open after {seconds} s, with {mb} MB unread"));
            return attack;
        }
    }
}

/// Ends a slow connection gets.
#[derive(Clone, Debug)]
enum End {
    /// A response of this status; whether it had a JSON error.
    Answered(u16, bool),
    Closed,
    StillOpen,
}

/// Sends one byte per tick until the server answers or closes the connection.
async fn drip(stream: TcpStream, limit: Duration) -> (u64, End) {
    let (read, mut write) = stream.into_split();
    let mut read = BufReader::new(read);
    let sending = async {
        let (mut ticks, mut sent) = (interval(DRIP), 0);
        loop {
            ticks.tick().await;
            if write.write_all(b"a").await.is_err() {
                return sent;
            }
            sent += 1;
        }
    };
    let reading = async {
        match read_reply(&mut read, true).await {
            Ok(reply) => {
                // Until it is closed, the connection is held.
                drop(read.read_to_end(&mut Vec::new()).await);
                End::Answered(reply.status, reply.error().is_some())
            }
            Err(_) => End::Closed,
        }
    };
    tokio::pin!(sending, reading);
    let both = async {
        tokio::select! {
            end = &mut reading => (0, end),
            sent = &mut sending => (sent, reading.await),
        }
    };
    timeout(limit, both).await.unwrap_or((0, End::StillOpen))
}

async fn drip_all(streams: Vec<TcpStream>, limit: Duration) -> Vec<End> {
    let tasks: Vec<_> = streams.into_iter().map(|stream| tokio::spawn(drip(stream, limit))).collect();
    let mut ends = Vec::with_capacity(tasks.len());
    for task in tasks {
        ends.push(task.await.expect("no panic").1);
    }
    ends
}

fn describe(end: &End) -> String {
    match end {
        End::Answered(status, true) => format!("{status}"),
        End::Answered(status, false) => format!("{status} without a JSON error"),
        End::Closed => "closed without a response".to_owned(),
        End::StillOpen => "still open".to_owned(),
    }
}

async fn slow_heads(stage: &Stage) -> Attack {
    let mut attack = Attack::default();
    let begun = Instant::now();
    let streams = open(stage, SLOW_HEADS, b"GET /health HTTP/1.1\r\nHost: a\r\nX-Slow: ", &mut attack).await;
    let ends = drip_all(streams, HEAD_LET_GO).await;
    let seconds = begun.elapsed().as_secs_f64();
    attack.note(format!("after {seconds:.0} s: {}", tally(ends.iter().map(describe))));
    let is_right = |end: &End| matches!(end, End::Answered(408, true) | End::Closed);
    if !ends.iter().all(is_right) {
        attack.complain(format!("not all were closed, or answered 408: {}", tally(ends.iter().map(describe))));
    }
    attack
}

async fn slow_bodies(stage: &Stage) -> Attack {
    let mut attack = Attack::default();
    let begun = Instant::now();
    let head = format!(
        "POST /v2/publish/http://127.0.0.1:8099/x HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {ATTACKER_TOKEN}\r\n\
         Content-Length: 1000000\r\n\r\n"
    );
    let streams = open(stage, SLOW_BODIES, head.as_bytes(), &mut attack).await;
    let ends = drip_all(streams, LET_GO).await;
    let seconds = begun.elapsed().as_secs_f64();
    attack.note(format!("after {seconds:.0} s: {}", tally(ends.iter().map(describe))));
    if !ends.iter().all(|end| matches!(end, End::Answered(408, true))) {
        attack.complain(format!("not all were answered 408 and closed: {}", tally(ends.iter().map(describe))));
    }
    attack
}

/// Sends heads that are nearly as large as allowed and never end: all of them are in RAM at once, unless that is bounded.
async fn large_heads(stage: &Stage) -> Attack {
    let mut attack = Attack::default();
    let server = stage.server.address;
    let mut head = b"GET /health HTTP/1.1\r\nHost: a\r\n".to_vec();
    let line = format!("X-Large: {}\r\n", "a".repeat(LARGE_HEAD_BYTES / 20));
    while head.len() < LARGE_HEAD_BYTES {
        head.extend_from_slice(line.as_bytes());
    }
    let head: std::sync::Arc<[u8]> = head.into();
    let tasks: Vec<_> = (0..LARGE_HEADS)
        .map(|_| {
            let head = head.clone();
            tokio::spawn(async move {
                let mut stream = connect(ATTACKER, server).await?;
                // A server that takes no more is as good as one that closes.
                let sent = timeout(HELD * 2, stream.write_all(&head)).await.is_ok_and(|sent| sent.is_ok());
                io::Result::Ok((stream, sent))
            })
        })
        .collect();
    let mut streams = Vec::new();
    for task in tasks {
        if let Ok((stream, sent)) = task.await.expect("no panic") {
            streams.push(stream);
            attack.bytes += if sent { head.len() as u64 } else { 0 };
        }
    }
    elapse(HELD).await;
    attack.note(format!("{} of {LARGE_HEADS} connections opened", streams.len()));
    attack
}

/// Opens more connections than the server takes in all; the neighbour needs a fresh one for every request.
async fn flood(stage: &Stage) -> Attack {
    let mut attack = Attack::default();
    if open_files_max() < FLOOD as u64 + OTHER_FILES {
        attack.complain(format!("this suite needs {} open files; raise ulimit -n", FLOOD as u64 + OTHER_FILES));
        return attack;
    }
    let mut streams = Vec::with_capacity(FLOOD);
    for _ in 0..FLOOD {
        match timeout(HELD, connect(ATTACKER, stage.server.address)).await {
            Ok(Ok(stream)) => streams.push(stream),
            Ok(Err(_)) => {}
            Err(_) => break,
        }
    }
    elapse(HELD).await;
    let held = connections(stage.server.address, ATTACKER).open;
    attack.note(format!("{} connections opened, {held} held by the server", streams.len()));
    if held > ADDRESS_CONNECTIONS_MAX {
        attack.complain(format!("one address holds {held} connections, limit {ADDRESS_CONNECTIONS_MAX}"));
    }
    // The address has to be usable again when its connections are gone.
    drop(streams);
    let health = request("GET", "/health", None, "Connection: close\r\n", b"");
    let again = timeout(HELD * 5, async {
        loop {
            match crate::client::exchange(ATTACKER, stage.server.address, &health).await {
                Ok(reply) if reply.status == 200 => return,
                _ => elapse(Duration::from_millis(50)).await,
            }
        }
    });
    if again.await.is_err() {
        attack.complain("the address is still refused after its connections were closed");
    }
    attack
}
