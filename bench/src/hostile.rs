//! `hostile`: receivers that misbehave, one port each, until they are stopped. It has every kind that needs no
//! certificate; the server's own tests have the whole catalogue.
//!
//! The first port responds to any request with a JSON list of the others' addresses. Start at [`Behaviour`].

use crate::process::raise_open_files;
use anyhow::Result;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

#[derive(clap::Args)]
pub(crate) struct Args {
    #[arg(long, default_value_t = 9200)]
    port: u16,
}

/// How a receiver handles a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Behaviour {
    /// Closes immediately, before anything was sent.
    Closes,
    /// Closes with RST when something has arrived.
    Resets,
    /// Reads, and never responds.
    Hangs,
    /// Sends a header byte every now and then.
    DripsHeaders,
    /// Promises a body and sends a byte of it every now and then.
    DripsBody,
    /// Sends bytes that are not HTTP.
    Garbage,
    /// Sends a header that never ends.
    EndlessHeader,
    /// Sends a body that never ends.
    EndlessBody,
    /// Sends interim responses without end.
    EndlessInterim,
    /// Responds with 500.
    Fails,
    /// Responds with 429 and asks for an immediate retry.
    AgainAtOnce,
    /// Responds with 302 to itself.
    Redirects,
}

impl Behaviour {
    const ALL: [Behaviour; 12] = [
        Behaviour::Closes,
        Behaviour::Resets,
        Behaviour::Hangs,
        Behaviour::DripsHeaders,
        Behaviour::DripsBody,
        Behaviour::Garbage,
        Behaviour::EndlessHeader,
        Behaviour::EndlessBody,
        Behaviour::EndlessInterim,
        Behaviour::Fails,
        Behaviour::AgainAtOnce,
        Behaviour::Redirects,
    ];
}

/// Additional ports at the end of the list that all hang.
pub(crate) const MORE_THAT_HANG: usize = 5;
/// Interval between two bytes of a dripping receiver.
const DRIP: Duration = Duration::from_secs(1);
const CHUNK: usize = 16 * 1024;

pub(crate) fn main(args: &Args) -> Result<()> {
    raise_open_files();
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(serve(args.port))
}

async fn serve(port: u16) -> Result<()> {
    let control = TcpListener::bind(("127.0.0.1", port)).await?;
    let mut ports = Vec::new();
    for behaviour in Behaviour::ALL.into_iter().chain([Behaviour::Hangs; MORE_THAT_HANG]) {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        ports.push(listener.local_addr()?.port());
        tokio::spawn(accept(listener, behaviour));
    }
    let body = serde_json::to_string(&ports)?;
    let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}", body.len());
    loop {
        let (mut stream, _) = control.accept().await?;
        let answer = answer.clone();
        tokio::spawn(async move {
            let mut request = [0; 1024];
            let _ = stream.read(&mut request).await;
            let _ = stream.write_all(answer.as_bytes()).await;
        });
    }
}

async fn accept(listener: TcpListener, behaviour: Behaviour) {
    // If there is no descriptor left, the next connection may find one.
    while let Ok((stream, _)) = listener.accept().await {
        // Clients that disconnect are expected here.
        tokio::spawn(async move { drop(misbehave(stream, behaviour).await) });
    }
}

async fn misbehave(mut stream: TcpStream, behaviour: Behaviour) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    if behaviour == Behaviour::Closes {
        return Ok(());
    }
    let mut request = vec![0; CHUNK];
    loop {
        if stream.read(&mut request).await? == 0 {
            return Ok(());
        }
        match behaviour {
            Behaviour::Resets => return stream.set_zero_linger(),
            Behaviour::Hangs | Behaviour::Closes => {}
            Behaviour::DripsHeaders => drip(&mut stream, "HTTP/1.1 200 OK\r\nX-Slow: ").await?,
            Behaviour::DripsBody => drip(&mut stream, "HTTP/1.1 200 OK\r\nContent-Length: 99999\r\n\r\n").await?,
            Behaviour::Garbage => stream.write_all(&[0xf1; CHUNK]).await?,
            Behaviour::EndlessHeader => flood(&mut stream, "HTTP/1.1 200 OK\r\nX-Long: ", "x").await?,
            Behaviour::EndlessBody => {
                flood(&mut stream, "HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n", "x").await?;
            }
            Behaviour::EndlessInterim => flood(&mut stream, "", "HTTP/1.1 103 Early Hints\r\n\r\n").await?,
            Behaviour::Fails => answer(&mut stream, "500 Oops\r\n").await?,
            Behaviour::AgainAtOnce => answer(&mut stream, "429 Later\r\nRetry-After: 0\r\n").await?,
            Behaviour::Redirects => answer(&mut stream, "302 Found\r\nLocation: /\r\n").await?,
        }
    }
}

async fn answer(stream: &mut TcpStream, status_and_headers: &str) -> std::io::Result<()> {
    stream.write_all(format!("HTTP/1.1 {status_and_headers}Content-Length: 0\r\n\r\n").as_bytes()).await
}

async fn drip(stream: &mut TcpStream, start: &str) -> std::io::Result<()> {
    stream.write_all(start.as_bytes()).await?;
    loop {
        tokio::time::sleep(DRIP).await;
        stream.write_all(b"x").await?;
    }
}

async fn flood(stream: &mut TcpStream, start: &str, again: &str) -> std::io::Result<()> {
    stream.write_all(start.as_bytes()).await?;
    let again = again.repeat(CHUNK / again.len());
    loop {
        stream.write_all(again.as_bytes()).await?;
    }
}
