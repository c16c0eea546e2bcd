//! `ref`: reference servers that show the limits of this machine.
//!
//! They do only the work in their name: no retries, no restart, no limits. The signed `syncrelay` does the least that a
//! durable, signing server must do for a message, and is the reference of `run`. It also responds to `GET` with 200 and
//! accepts `/v2/batch`, so that it can stand in for the server when the runner itself is tested.

use crate::process::raise_open_files;
use anyhow::{Context, Result, bail};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use bytes::Bytes;
use hmac::{Hmac, Mac};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, Uri};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioIo};
use sha2::{Digest, Sha256};
use std::fs::{File, OpenOptions};
use std::io::{Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, mpsc};
use std::time::{SystemTime, UNIX_EPOCH};
use tokio::sync::{Semaphore, oneshot};

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Mode {
    /// Read the body, respond with 200.
    Plain,
    /// Append to a log with group commit (one write and one fdatasync per batch), then respond.
    Sync,
    /// Forward, then respond; no storage.
    Relay,
    /// Append as `sync` does, respond, forward, append an unsynced "done" record.
    Syncrelay,
}

#[derive(clap::Args)]
pub(crate) struct Args {
    #[arg(long)]
    mode: Mode,
    #[arg(long, default_value_t = 9200)]
    port: u16,
    /// The destination of relays.
    #[arg(long)]
    dest: Option<Uri>,
    /// Sign forwards as QStash does: an HS256 JWT with the SHA-256 of the body.
    #[arg(long)]
    sign: bool,
    #[arg(long, default_value = "posthaste-bench.log")]
    file: PathBuf,
    /// Number of zero-filled MiB to write first, so that appends overwrite existing blocks.
    #[arg(long, default_value_t = 0)]
    prealloc_mib: u64,
    /// Skip fdatasync.
    #[arg(long)]
    no_sync: bool,
    #[arg(long, default_value_t = 2)]
    threads: usize,
    /// Maximum number of forwards in flight.
    #[arg(long, default_value_t = 64)]
    inflight: usize,
}

pub(crate) const SIGNING_KEY: &[u8] = b"sig_0123456789abcdef0123456789abcdef";

struct Record {
    bytes: Bytes,
    /// Is notified when the record is on disk; `None` if nothing waits for it.
    stored: Option<oneshot::Sender<()>>,
}

struct App {
    mode: Mode,
    dest: Uri,
    sign: bool,
    log: Option<mpsc::Sender<Record>>,
    client: Client<HttpConnector, Full<Bytes>>,
    inflight: Arc<Semaphore>,
    ids: AtomicU64,
}

pub(crate) fn main(args: Args) -> Result<()> {
    if matches!(args.mode, Mode::Relay | Mode::Syncrelay) && args.dest.is_none() {
        bail!("this mode needs --dest");
    }
    raise_open_files();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(args.threads).enable_all().build()?;
    let mut connector = HttpConnector::new();
    connector.set_nodelay(true);
    let app = Arc::new(App {
        mode: args.mode,
        log: matches!(args.mode, Mode::Sync | Mode::Syncrelay).then(|| start_log(&args)).transpose()?,
        dest: args.dest.unwrap_or_default(),
        sign: args.sign,
        client: Client::builder(TokioExecutor::new()).pool_max_idle_per_host(1024).build(connector),
        inflight: Arc::new(Semaphore::new(args.inflight)),
        ids: AtomicU64::new(0),
    });
    runtime.block_on(async {
        let listener = tokio::net::TcpListener::bind(("127.0.0.1", args.port)).await?;
        eprintln!("reference server on {}", listener.local_addr()?);
        loop {
            let (stream, _) = listener.accept().await?;
            stream.set_nodelay(true)?;
            let app = app.clone();
            tokio::spawn(async move {
                let service = service_fn(move |request| handle(app.clone(), request));
                // A broken connection is the client's problem; it counts missing responses.
                let _ =
                    hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
            });
        }
    })
}

async fn handle(app: Arc<App>, request: Request<Incoming>) -> Result<Response<Full<Bytes>>> {
    if request.method() == Method::GET {
        return Ok(Response::new(Full::default()));
    }
    let is_batch = request.uri().path() == "/v2/batch";
    let body = request.into_body().collect().await?.to_bytes();
    let id = app.ids.fetch_add(1, Relaxed);
    if let Some(log) = &app.log {
        let (stored, on_disk) = oneshot::channel();
        log.send(Record { bytes: body.clone(), stored: Some(stored) })?;
        on_disk.await?;
    }
    let answer = if is_batch {
        let items: Vec<serde::de::IgnoredAny> = serde_json::from_slice(&body)?;
        let ids: Vec<String> = (0..items.len()).map(|n| format!(r#"{{"messageId":"msg_{id:016x}_{n}"}}"#)).collect();
        format!("[{}]", ids.join(","))
    } else {
        match app.mode {
            Mode::Plain | Mode::Sync => {}
            Mode::Relay => forward(&app, id, body).await?,
            Mode::Syncrelay => drop(tokio::spawn(forward_later(app, id, body))),
        }
        format!(r#"{{"messageId":"msg_{id:016x}"}}"#)
    };
    Ok(Response::builder().header("content-type", "application/json").body(Full::new(answer.into()))?)
}

async fn forward_later(app: Arc<App>, id: u64, body: Bytes) {
    let _permit = app.inflight.acquire().await;
    // A message that could not be forwarded shows as missing at the sink. A reference server does not retry.
    if let (Ok(()), Some(log)) = (forward(&app, id, body).await, &app.log) {
        let _ = log.send(Record { bytes: Bytes::copy_from_slice(&id.to_le_bytes()), stored: None });
    }
}

async fn forward(app: &App, id: u64, body: Bytes) -> Result<()> {
    let mut request = Request::post(&app.dest)
        .header("content-type", "application/json")
        .header("upstash-message-id", format!("msg_{id:016x}"));
    if app.sign {
        request = request.header("upstash-signature", sign(SIGNING_KEY, &app.dest.to_string(), id, &body));
    }
    let response = app.client.request(request.body(Full::new(body))?).await?;
    let status = response.status();
    response.into_body().collect().await?;
    if !status.is_success() {
        bail!("the destination answered {status}");
    }
    Ok(())
}

/// A signature like QStash's: HS256 over claims that contain the hash of the body.
pub(crate) fn sign(key: &[u8], url: &str, id: u64, body: &[u8]) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let hash = URL_SAFE_NO_PAD.encode(Sha256::digest(body));
    let claims = format!(
        r#"{{"iss":"Upstash","sub":"{url}","exp":{},"nbf":{now},"iat":{now},"jti":"jwt_{id:016x}","body":"{hash}"}}"#,
        now + 300
    );
    let mut token = String::with_capacity(400);
    token.push_str("eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9.");
    URL_SAFE_NO_PAD.encode_string(claims, &mut token);
    let mut mac = Hmac::<Sha256>::new_from_slice(key).expect("HMAC takes keys of any length");
    mac.update(token.as_bytes());
    token.push('.');
    URL_SAFE_NO_PAD.encode_string(mac.finalize().into_bytes(), &mut token);
    token
}

fn start_log(args: &Args) -> Result<mpsc::Sender<Record>> {
    let file =
        open_log(&args.file, args.prealloc_mib).with_context(|| format!("cannot open {}", args.file.display()))?;
    let sync = !args.no_sync;
    let (sender, records) = mpsc::channel();
    std::thread::spawn(move || {
        if let Err(error) = write_log(file, sync, &records) {
            eprintln!("the log cannot be written: {error}");
            std::process::exit(1);
        }
    });
    Ok(sender)
}

fn open_log(path: &Path, prealloc_mib: u64) -> std::io::Result<File> {
    let mut file = OpenOptions::new().create(true).write(true).truncate(true).open(path)?;
    if prealloc_mib > 0 {
        let zeros = vec![0; 1 << 20];
        for _ in 0..prealloc_mib {
            file.write_all(&zeros)?;
        }
        file.sync_all()?;
        file.seek(SeekFrom::Start(0))?;
    }
    Ok(file)
}

/// One thread owns the log: it takes all queued records, writes them once, calls fdatasync once, and then wakes all
/// waiting requests.
fn write_log(mut file: File, sync: bool, records: &mpsc::Receiver<Record>) -> std::io::Result<()> {
    const BATCH_BYTES_MAX: usize = 4 << 20;
    let (mut buffer, mut waiting) = (Vec::with_capacity(1 << 20), Vec::new());
    while let Ok(first) = records.recv() {
        let mut next = Some(first);
        while let Some(record) = next {
            buffer.extend_from_slice(&(record.bytes.len() as u32).to_le_bytes());
            buffer.extend_from_slice(&record.bytes);
            waiting.extend(record.stored);
            next = if buffer.len() < BATCH_BYTES_MAX { records.try_recv().ok() } else { None };
        }
        file.write_all(&buffer)?;
        if sync && !waiting.is_empty() {
            file.sync_data()?;
        }
        buffer.clear();
        for stored in waiting.drain(..) {
            // The client may have disconnected in the meantime.
            let _ = stored.send(());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signature_has_three_parts_and_claims_the_body() {
        let token = sign(SIGNING_KEY, "http://127.0.0.1:1/x", 7, b"hello");
        let parts: Vec<&str> = token.split('.').collect();
        assert_eq!(parts.len(), 3);
        let claims: serde_json::Value = serde_json::from_slice(&URL_SAFE_NO_PAD.decode(parts[1]).unwrap()).unwrap();
        assert_eq!(claims["sub"], "http://127.0.0.1:1/x");
        assert_eq!(claims["body"], URL_SAFE_NO_PAD.encode(Sha256::digest(b"hello")));
    }

    #[test]
    fn waiting_requests_are_notified_after_the_write() {
        let path = tempfile::tempdir().unwrap();
        let path = path.path().join("log");
        let (sender, records) = mpsc::channel();
        let (stored, mut on_disk) = oneshot::channel();
        sender.send(Record { bytes: Bytes::from_static(b"abc"), stored: Some(stored) }).unwrap();
        sender.send(Record { bytes: Bytes::from_static(b"d"), stored: None }).unwrap();
        drop(sender);
        write_log(open_log(&path, 0).unwrap(), true, &records).unwrap();
        assert_eq!(on_disk.try_recv(), Ok(()));
        assert_eq!(std::fs::read(&path).unwrap(), b"\x03\0\0\0abc\x01\0\0\0d");
    }
}
