//! The address of the publisher, also behind proxies that the operator trusts.

use crate::app::App;
use axum::extract::Request;
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName};
use ipnet::IpNet;
use posthaste_engine::limits::PROXIES_MAX;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

/// To which every proxy appends who called it.
const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");

/// Who is at the other end of a connection; goes with each of its requests.
#[derive(Clone, Debug)]
pub(crate) struct Peer {
    address: IpAddr,
    /// The same as text, made once for all requests.
    name: Arc<str>,
}

impl Peer {
    pub(crate) fn new(address: SocketAddr) -> Peer {
        let address = address.ip().to_canonical();
        Peer { address, name: address.to_string().into() }
    }
}

/// The caller's address.
pub(crate) fn caller(app: &App, parts: &Parts) -> Option<IpAddr> {
    let peer = parts.extensions.get::<Peer>()?;
    Some(behind_proxies(peer.address, &parts.headers, &app.config.trusted_proxies))
}

/// The caller's address, of a request that is still whole.
pub(super) fn caller_of(app: &App, request: &Request) -> Option<IpAddr> {
    let peer = request.extensions().get::<Peer>()?;
    Some(behind_proxies(peer.address, request.headers(), &app.config.trusted_proxies))
}

/// The publisher's address as messages show it.
pub(super) fn caller_ip(app: &App, parts: &Parts) -> String {
    let Some(peer) = parts.extensions.get::<Peer>() else { return String::new() };
    match behind_proxies(peer.address, &parts.headers, &app.config.trusted_proxies) {
        caller if caller == peer.address => peer.name.as_ref().to_owned(),
        caller => caller.to_string(),
    }
}

/// Whether the peer is a proxy whose word counts.
pub(super) fn peer_is_trusted(app: &App, parts: &Parts) -> bool {
    let is_trusted = |peer: &Peer| app.config.trusted_proxies.iter().any(|network| network.contains(&peer.address));
    parts.extensions.get::<Peer>().is_some_and(is_trusted)
}

/// Who called the first of the trusted proxies; the peer itself if that cannot be known.
///
/// Read from the end, because whatever stands before an address that is not trusted is only claimed. Something that
/// is no address ends it for the same reason.
pub(super) fn behind_proxies(peer: IpAddr, headers: &HeaderMap, trusted: &[IpNet]) -> IpAddr {
    let is_trusted = |address: &IpAddr| trusted.iter().any(|network| network.contains(address));
    if !is_trusted(&peer) {
        return peer;
    }
    let lines = headers.get_all(X_FORWARDED_FOR).iter().rev();
    let entries = lines.flat_map(|line| line.as_bytes().rsplit(|byte| *byte == b','));
    let addresses = entries.take(PROXIES_MAX).map_while(address);
    addresses.into_iter().find(|address| !is_trusted(address)).unwrap_or(peer)
}

/// An address, perhaps with a port, as some proxies write it.
fn address(entry: &[u8]) -> Option<IpAddr> {
    let text = std::str::from_utf8(entry).ok()?.trim();
    let with_port = || text.parse::<SocketAddr>().ok().map(|address| address.ip());
    let in_brackets = || text.strip_prefix('[')?.strip_suffix(']')?.parse().ok();
    let address = text.parse().ok().or_else(with_port).or_else(in_brackets);
    address.map(|address: IpAddr| address.to_canonical())
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::HeaderValue;

    fn seen(peer: &str, lines: &[&[u8]]) -> String {
        let mut headers = HeaderMap::new();
        for line in lines {
            headers.append(X_FORWARDED_FOR, HeaderValue::from_bytes(line).unwrap());
        }
        let trusted = ["10.0.0.0/8", "127.0.0.1/32", "fd00::/8"].map(|text| text.parse().unwrap());
        behind_proxies(peer.parse().unwrap(), &headers, &trusted).to_string()
    }

    #[test]
    fn the_last_address_that_no_trusted_proxy_has_is_the_caller() {
        let cases: [(&str, &[&[u8]], &str); 16] = [
            ("10.0.0.1", &[b"203.0.113.7"], "203.0.113.7"),
            ("10.0.0.1", &[b"198.51.100.1, 203.0.113.7"], "203.0.113.7"),
            ("10.0.0.1", &[b"198.51.100.1,203.0.113.7 , 10.1.1.1"], "203.0.113.7"),
            ("10.0.0.1", &[b"198.51.100.1", b"203.0.113.7", b"10.1.1.1"], "203.0.113.7"),
            ("fd00::1", &[b"2001:db8::7"], "2001:db8::7"),
            ("10.0.0.1", &[b"[2001:db8::7]:443"], "2001:db8::7"),
            ("10.0.0.1", &[b"[2001:db8::7]"], "2001:db8::7"),
            ("10.0.0.1", &[b"203.0.113.7:443"], "203.0.113.7"),
            ("10.0.0.1", &[b"::ffff:203.0.113.7"], "203.0.113.7"),
            // Nobody to be found, or only claimed.
            ("10.0.0.1", &[], "10.0.0.1"),
            ("10.0.0.1", &[b""], "10.0.0.1"),
            ("10.0.0.1", &[b"10.2.2.2, 127.0.0.1"], "10.0.0.1"),
            ("10.0.0.1", &[b"203.0.113.7, unknown"], "10.0.0.1"),
            ("10.0.0.1", &[b"203.0.113.7, \xff"], "10.0.0.1"),
            ("10.0.0.1", &[b"203.0.113.7,"], "10.0.0.1"),
            ("203.0.113.9", &[b"198.51.100.1"], "203.0.113.9"),
        ];
        for (peer, lines, expected) in cases {
            assert_eq!(seen(peer, lines), expected, "{peer} {lines:?}");
        }
    }

    #[test]
    fn only_so_many_proxies_are_followed() {
        let behind = |proxies: usize| format!("203.0.113.7{}", ",10.0.0.2".repeat(proxies));
        assert_eq!(seen("10.0.0.1", &[behind(PROXIES_MAX - 1).as_bytes()]), "203.0.113.7");
        assert_eq!(seen("10.0.0.1", &[behind(PROXIES_MAX).as_bytes()]), "10.0.0.1");
    }
}
