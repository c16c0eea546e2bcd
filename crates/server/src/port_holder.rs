//! The error about a taken port: it names the process that holds the port, and another port.

use crate::config::Mode;
use crate::dev_output::DEFAULT_PORT;
use std::fs;
use std::net::SocketAddr;

/// The name and the id of a process.
#[derive(Debug, PartialEq, Eq)]
pub struct Holder {
    pub name: String,
    pub pid: u32,
}

/// The text for an address that another process has taken. The development mode of the JavaScript SDK looks for the words
/// `address already in use`, in lower case.
pub fn taken(mode: Mode, address: SocketAddr, holder: Option<&Holder>) -> String {
    let holder = match holder {
        Some(Holder { name, pid }) => format!(" by {name} (process {pid}): stop it"),
        None => ": stop the program that uses it".to_owned(),
    };
    let free = address.port().checked_add(1).unwrap_or(DEFAULT_PORT);
    let flag = match mode {
        Mode::Dev => format!("--port {free}"),
        Mode::Serve => format!("--listen {}", SocketAddr::new(address.ip(), free)),
    };
    format!("cannot listen on {address}: address already in use{holder}, or choose another port with {flag}")
}

/// The process that listens on the port of this address; `None` where the system does not say, or it belongs to another user.
pub fn holder_of(address: SocketAddr) -> Option<Holder> {
    let tables = ["/proc/net/tcp", "/proc/net/tcp6"].map(|path| fs::read_to_string(path).unwrap_or_default());
    let socket = format!("socket:[{}]", tables.iter().find_map(|table| listening_inode(table, address.port()))?);
    let processes = fs::read_dir("/proc").ok()?.flatten();
    processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).find_map(|pid: u32| {
        let files = fs::read_dir(format!("/proc/{pid}/fd")).ok()?.flatten();
        let mut links = files.filter_map(|file| fs::read_link(file.path()).ok());
        links.any(|link| link.as_os_str() == socket.as_str()).then(|| {
            let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
            Holder { name: name.trim().to_owned(), pid }
        })
    })
}

/// The inode of the socket that listens on this port, from a table of the kernel.
fn listening_inode(table: &str, port: u16) -> Option<&str> {
    const LISTENING: &str = "0A";
    let port = format!(":{port:04X}");
    table.lines().skip(1).find_map(|line| {
        let columns: Vec<&str> = line.split_whitespace().collect();
        let is_meant = columns.get(1)?.ends_with(&port) && *columns.get(3)? == LISTENING;
        columns.get(9).copied().filter(|_| is_meant)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    #[test]
    fn a_taken_port_names_its_holder_and_another_port() {
        let holder = Holder { name: "node".to_owned(), pid: 4711 };
        for (mode, port, holder, expected) in [
            (
                Mode::Dev,
                8080,
                Some(&holder),
                "cannot listen on 127.0.0.1:8080: address already in use by node (process 4711): stop it, or choose another \
                 port with --port 8081",
            ),
            (
                Mode::Serve,
                3000,
                None,
                "cannot listen on 127.0.0.1:3000: address already in use: stop the program that uses it, or choose another \
                 port with --listen 127.0.0.1:3001",
            ),
            (
                Mode::Dev,
                65_535,
                None,
                "cannot listen on 127.0.0.1:65535: address already in use: stop the program that uses it, or choose another \
                 port with --port 8080",
            ),
        ] {
            assert_eq!(taken(mode, SocketAddr::from(([127, 0, 0, 1], port)), holder), expected);
        }
    }

    #[test]
    fn the_process_that_listens_is_found() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let holder = holder_of(listener.local_addr().unwrap()).expect("this process listens");
        assert_eq!(holder.pid, std::process::id());
        assert!(!holder.name.is_empty());
        let address = listener.local_addr().unwrap();
        drop(listener);
        assert_eq!(holder_of(address), None);
    }
}
