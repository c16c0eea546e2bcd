//! A parsed destination: where to connect, and what to request.
//!
//! The host follows WHATWG rules, so that no spelling of an address is missed. Path and query are sent as written.

use super::egress::Refusal;
use http::uri::{Authority, PathAndQuery};
use posthaste_engine::limits;
use posthaste_wire::destination;
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use url::{Host, Url};

/// A destination in the form that the delivery client needs.
#[derive(Clone, Debug)]
pub struct Target {
    /// Whether to use TLS.
    pub https: bool,
    /// Name or address.
    pub host: TargetHost,
    /// The port, explicit or from the scheme.
    pub port: u16,
    /// The `Host` header: the host, and the port unless it is the default.
    pub authority: Authority,
    /// The requested path and query.
    pub path: PathAndQuery,
    /// One spelling for all URLs of the same server. Messages are counted by it.
    pub origin: String,
}

/// Recently parsed destinations. A URL is parsed when a message to it is published and again at each attempt.
#[derive(Debug, Default)]
pub struct Targets {
    known: Mutex<HashMap<String, Arc<Target>>>,
}

/// Remembered destinations. When there are more, all are forgotten.
const TARGETS_MAX: usize = 1_024;
/// Longer URLs are not remembered.
const TARGET_BYTES_MAX: usize = 256;

impl Targets {
    /// Whether this URL was parsed recently.
    pub fn contains(&self, text: &str) -> bool {
        self.lock().contains_key(text)
    }

    /// Like [`Target::parse`], with the cache.
    pub fn parse(&self, text: &str) -> Result<Arc<Target>, Refusal> {
        if let Some(target) = self.lock().get(text) {
            return Ok(target.clone());
        }
        let target = Arc::new(Target::parse(text)?);
        if text.len() <= TARGET_BYTES_MAX {
            let mut known = self.lock();
            if known.len() >= TARGETS_MAX {
                known.clear();
            }
            known.insert(text.to_owned(), target.clone());
        }
        Ok(target)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Arc<Target>>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The host of a [`Target`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TargetHost {
    /// A name in ASCII and lower case, without a trailing dot.
    Name(String),
    /// An address literal in any spelling.
    Address(IpAddr),
}

impl Target {
    /// Parses a destination and rejects ambiguous forms. The egress policy decides which hosts are allowed.
    pub fn parse(text: &str) -> Result<Target, Refusal> {
        if text.len() > limits::URL_BYTES_MAX {
            return Err(Refusal::Malformed(format!("endpoint is longer than {} bytes", limits::URL_BYTES_MAX)));
        }
        if text.bytes().any(|byte| byte <= b' ' || byte == 0x7f) {
            return Err(Refusal::Malformed("endpoint contains spaces or control characters".into()));
        }
        let (https, rest) = split_scheme(text).ok_or(Refusal::Scheme)?;
        let end = rest.find(['/', '?', '#', '\\']).unwrap_or(rest.len());
        let (authority, rest) = rest.split_at(end);
        if authority.is_empty() {
            return Err(Refusal::Malformed("endpoint has no host".into()));
        }
        if authority.contains('@') {
            return Err(Refusal::Malformed("endpoint contains credentials".into()));
        }
        let url = Url::parse(text).map_err(|error| Refusal::Malformed(format!("endpoint is malformed: {error}")))?;
        let port = url.port_or_known_default().ok_or(Refusal::Scheme)?;
        let host = match url.host() {
            Some(Host::Domain(name)) => TargetHost::Name(checked_name(name)?),
            Some(Host::Ipv4(address)) => TargetHost::Address(address.into()),
            Some(Host::Ipv6(address)) => TargetHost::Address(address.into()),
            None => return Err(Refusal::Malformed("endpoint has no host".into())),
        };
        let authority = authority_of(&host, url.port()).ok_or_else(|| malformed("host"))?;
        let path = path_and_query(rest).ok_or_else(|| malformed("path"))?;
        let origin = destination::origin(text).ok_or_else(|| malformed("host"))?;
        Ok(Target { https, host, port, authority, path, origin })
    }
}

fn malformed(part: &str) -> Refusal {
    Refusal::Malformed(format!("endpoint has an invalid {part}"))
}

/// Whether it is https, and the text after `://`. Rejects forms that only browsers accept.
fn split_scheme(text: &str) -> Option<(bool, &str)> {
    let (scheme, rest) = text.split_once("://")?;
    match scheme {
        _ if scheme.eq_ignore_ascii_case("https") => Some((true, rest)),
        _ if scheme.eq_ignore_ascii_case("http") => Some((false, rest)),
        _ => None,
    }
}

/// The name without its trailing dot, if it can exist in DNS.
fn checked_name(name: &str) -> Result<String, Refusal> {
    let name = name.strip_suffix('.').unwrap_or(name);
    let label_fits = |label: &str| {
        (1..=63).contains(&label.len())
            && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_')
    };
    if name.len() > 253 || !name.split('.').all(label_fits) {
        return Err(malformed("host name"));
    }
    Ok(name.to_ascii_lowercase())
}

fn authority_of(host: &TargetHost, port: Option<u16>) -> Option<Authority> {
    let mut text = match host {
        TargetHost::Name(name) => name.clone(),
        TargetHost::Address(IpAddr::V4(address)) => address.to_string(),
        TargetHost::Address(IpAddr::V6(address)) => format!("[{address}]"),
    };
    if let Some(port) = port {
        text.push(':');
        text.push_str(&port.to_string());
    }
    Authority::try_from(text).ok()
}

/// Path and query as written, without the fragment. Only bytes that are invalid in a request line are percent-encoded.
/// Nothing is decoded, and no dot segment is resolved.
fn path_and_query(rest: &str) -> Option<PathAndQuery> {
    let written = rest.split('#').next().unwrap_or_default();
    let mut path = String::with_capacity(written.len() + 1);
    if !written.starts_with('/') {
        path.push('/');
    }
    let must_encode = |byte: u8| !byte.is_ascii() || matches!(byte, b'"' | b'<' | b'>' | b'`');
    if written.bytes().any(must_encode) {
        for byte in written.bytes() {
            if must_encode(byte) {
                path.push_str(&format!("%{byte:02X}"));
            } else {
                path.push(char::from(byte));
            }
        }
    } else {
        path.push_str(written);
    }
    PathAndQuery::try_from(path).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn path_and_query_stay_as_written() {
        let cases = [
            ("https://a.example", "/"),
            ("https://a.example?x=1", "/?x=1"),
            ("https://a.example/#frag", "/"),
            ("https://a.example/a/../b//c/%2F/%2e%2e?a=b&c#frag", "/a/../b//c/%2F/%2e%2e?a=b&c"),
            ("https://a.example/?next=https://b.example/?x", "/?next=https://b.example/?x"),
            ("https://a.example/{id}|^'~", "/{id}|^'~"),
            ("https://a.example/grün?q=\"<ü>\"", "/gr%C3%BCn?q=%22%3C%C3%BC%3E%22"),
            ("https://a.example/100%", "/100%"),
        ];
        for (url, expected) in cases {
            assert_eq!(Target::parse(url).unwrap().path.as_str(), expected, "{url}");
        }
    }

    #[test]
    fn authority_is_the_ascii_host_and_a_non_default_port() {
        let cases = [
            ("https://EXAMPLE.com./", "example.com", 443),
            ("https://example.com:443/", "example.com", 443),
            ("http://example.com:443/", "example.com:443", 443),
            ("https://bücher.example:8443/", "xn--bcher-kva.example:8443", 8443),
            ("http://[2606:2800:0:0::1]:81/", "[2606:2800::1]:81", 81),
            ("HTTP://0x5db8d822/", "93.184.216.34", 80),
        ];
        for (url, authority, port) in cases {
            let target = Target::parse(url).unwrap();
            assert_eq!((target.authority.as_str(), target.port), (authority, port), "{url}");
        }
    }

    #[test]
    fn forms_that_only_browsers_accept_are_refused() {
        for url in
            ["http:/example.com/", "http:example.com", "http:\\\\example.com\\", "http:///example.com", "//x.example/"]
        {
            assert!(Target::parse(url).is_err(), "{url}");
        }
    }
}
