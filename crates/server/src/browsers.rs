//! Which web pages may call the API, and under which names a development server answers.
//!
//! The token of a development server is published, so that any page a developer opens knows it. A browser says in `Origin`
//! which page sends a request, and in `Host` which name the page used: both are checked before anything else. Pure; the API
//! asks in `api/mod.rs`, the console in `console/guard.rs`.

use axum::http::uri::Authority;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, header};
use std::net::IpAddr;

/// Says whether the page that sends a request is of the site that it asks. Pages cannot write it.
const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// Whom browsers may speak for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BrowserPolicy {
    /// Pages of this machine (`http://localhost:3000`) may call. For development.
    pub allow_loopback: bool,
    /// Origins whose pages may call as well, each as a browser writes it.
    pub origins: Vec<String>,
    /// Names that requests may be for, besides those of loopback. `None`: any name, because only whoever has a token can do
    /// anything, and a proxy may have put its own name there.
    pub hosts: Option<Vec<String>>,
}

/// Where a request comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Page<'a> {
    /// Not from a page, or from one of the very host that it asks.
    None,
    /// From a page of an origin that may call.
    Allowed(&'a HeaderValue),
    /// From any other page.
    Foreign,
}

impl BrowserPolicy {
    /// Where a request comes from.
    pub fn page<'a>(&self, method: &Method, headers: &'a HeaderMap) -> Page<'a> {
        let mut origins = headers.get_all(header::ORIGIN).iter();
        match (origins.next(), origins.next()) {
            // Old browsers leave the origin out of forms.
            (None, _) if is_sent_from_another_site(method, headers) => Page::Foreign,
            (None, _) => Page::None,
            (Some(origin), None) if self.allows(origin) => Page::Allowed(origin),
            (Some(origin), None) if is_of_host(origin, headers) => Page::None,
            (Some(_), _) => Page::Foreign,
        }
    }

    fn allows(&self, origin: &HeaderValue) -> bool {
        let Ok(origin) = origin.to_str() else { return false };
        let is_listed = self.origins.iter().any(|listed| listed.eq_ignore_ascii_case(origin));
        is_listed || (self.allow_loopback && is_loopback_page(origin))
    }

    /// Whether a request was sent to a name of this server. A page can make its own name lead to this machine, and is then of
    /// the same origin for its browser; but it cannot choose the name in `Host`.
    pub fn answers_to(&self, headers: &HeaderMap) -> bool {
        let Some(names) = &self.hosts else { return true };
        let host = headers.get(header::HOST).and_then(|line| line.to_str().ok()?.parse::<Authority>().ok());
        // HTTP/1.1 without a host is refused elsewhere; older clients are no browsers.
        let Some(host) = host else { return !headers.contains_key(header::HOST) };
        is_loopback(&host) || names.iter().any(|name| name.eq_ignore_ascii_case(host.host()))
    }
}

/// A configured origin as browsers write it: `scheme://host[:port]`, without the port that the scheme implies.
pub fn canonical_origin(text: &str) -> Option<String> {
    let (scheme, host) = text.strip_suffix('/').unwrap_or(text).split_once("://")?;
    let authority = host.parse::<Authority>().ok().filter(|_| !host.contains('@'))?;
    let is_scheme = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'-' | b'.');
    if scheme.is_empty() || !scheme.bytes().all(is_scheme) || authority.host().is_empty() || host.contains('*') {
        return None;
    }
    match scheme.to_ascii_lowercase().as_str() {
        scheme @ ("http" | "https") => {
            let url = url::Url::parse(&format!("{scheme}://{host}")).ok()?;
            Some(url.origin().ascii_serialization())
        }
        // Pages of browser extensions and of desktop programs.
        scheme => Some(format!("{scheme}://{}", host.to_ascii_lowercase())),
    }
}

/// Whether a name or address is one of this machine.
pub fn is_loopback(authority: &Authority) -> bool {
    let host = authority.host();
    let address = host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
    let is_name = host.eq_ignore_ascii_case("localhost") || host.to_ascii_lowercase().ends_with(".localhost");
    is_name || address.is_ok_and(|address| address.is_loopback())
}

fn is_loopback_page(origin: &str) -> bool {
    // Written as browsers do, so that no other reader of it finds another host.
    let is_canonical = canonical_origin(origin).is_some_and(|canonical| canonical.eq_ignore_ascii_case(origin));
    let Some((scheme, host)) = origin.split_once("://").filter(|_| is_canonical) else { return false };
    let is_web = scheme.eq_ignore_ascii_case("http") || scheme.eq_ignore_ascii_case("https");
    is_web && host.parse().is_ok_and(|host| is_loopback(&host))
}

fn is_of_host(origin: &HeaderValue, headers: &HeaderMap) -> bool {
    let authority = origin.to_str().ok().and_then(|origin| origin.split_once("://")).map(|(_, authority)| authority);
    let host = headers.get(header::HOST).and_then(|host| host.to_str().ok());
    authority.zip(host).is_some_and(|(authority, host)| authority.eq_ignore_ascii_case(host))
}

fn is_sent_from_another_site(method: &Method, headers: &HeaderMap) -> bool {
    let reads = matches!(*method, Method::GET | Method::HEAD | Method::OPTIONS);
    !reads && headers.get(SEC_FETCH_SITE).is_some_and(|site| site == "cross-site")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(lines: &[(&'static str, &str)]) -> HeaderMap {
        lines.iter().map(|(name, value)| (HeaderName::from_static(name), value.parse().unwrap())).collect()
    }

    fn dev() -> BrowserPolicy {
        let hosts = Some(vec!["tunnel.example".to_owned()]);
        BrowserPolicy { allow_loopback: true, origins: vec!["https://console.example".to_owned()], hosts }
    }

    #[test]
    fn only_pages_of_this_machine_and_of_listed_origins_may_call_a_development_server() {
        let allowed = [
            "http://localhost:3000",
            "https://localhost",
            "http://app.localhost:5173",
            "http://127.0.0.1:3000",
            "http://127.9.9.9",
            "http://[::1]:3000",
            "https://console.example",
        ];
        let foreign = [
            "null",
            "",
            "https://evil.example",
            "http://console.example",
            "https://console.example:444",
            "https://console.example.evil.example",
            "https://evil.example#https://console.example",
            "http://localhost.evil.example",
            "http://localhost:3000.evil.example",
            "http://evillocalhost",
            "http://127.0.0.1.evil.example",
            "http://evil.example@localhost",
            "http://192.168.0.7",
            "http://0.0.0.0:3000",
            "file://localhost",
            "chrome-extension://localhost",
        ];
        let host = ("host", "localhost:8080");
        for (origins, is_allowed) in [(&allowed[..], true), (&foreign[..], false)] {
            for origin in origins {
                let headers = headers(&[host, ("origin", origin)]);
                let expected = if is_allowed { Page::Allowed(&headers["origin"]) } else { Page::Foreign };
                assert_eq!(dev().page(&Method::POST, &headers), expected, "{origin}");
                let in_serve = BrowserPolicy { allow_loopback: false, ..dev() }.page(&Method::POST, &headers);
                let is_listed = *origin == "https://console.example";
                assert_eq!(in_serve == Page::Allowed(&headers["origin"]), is_listed, "{origin}");
            }
        }
        let mut two = headers(&[host, ("origin", "http://localhost:3000")]);
        two.append("origin", "https://evil.example".parse().unwrap());
        assert_eq!(dev().page(&Method::POST, &two), Page::Foreign);
    }

    #[test]
    fn programs_and_pages_of_the_same_host_are_not_foreign() {
        let policy = BrowserPolicy::default();
        assert_eq!(policy.page(&Method::POST, &headers(&[("host", "queue.example")])), Page::None);
        let own = headers(&[("host", "queue.example"), ("origin", "https://QUEUE.example")]);
        assert_eq!(policy.page(&Method::POST, &own), Page::None);
        let other_port = headers(&[("host", "queue.example"), ("origin", "https://queue.example:444")]);
        assert_eq!(policy.page(&Method::POST, &other_port), Page::Foreign);
        let form = headers(&[("host", "queue.example"), ("sec-fetch-site", "cross-site")]);
        assert_eq!(policy.page(&Method::POST, &form), Page::Foreign);
        assert_eq!(policy.page(&Method::GET, &form), Page::None, "a link changes nothing");
        let near = headers(&[("host", "queue.example"), ("sec-fetch-site", "same-origin")]);
        assert_eq!(policy.page(&Method::POST, &near), Page::None);
    }

    #[test]
    fn a_development_server_answers_to_its_own_names_only() {
        for (host, is_own) in [
            ("localhost:8080", true),
            ("LOCALHOST", true),
            ("app.localhost:8080", true),
            ("127.0.0.1:8080", true),
            ("[::1]:8080", true),
            ("tunnel.example", true),
            ("Tunnel.example:443", true),
            ("rebound.example:8080", false),
            ("localhost.evil.example", false),
            ("192.168.0.7", false),
            ("a b", false),
        ] {
            assert_eq!(dev().answers_to(&headers(&[("host", host)])), is_own, "{host}");
            assert!(BrowserPolicy::default().answers_to(&headers(&[("host", host)])), "{host}");
        }
        assert!(dev().answers_to(&headers(&[])), "HTTP/1.0");
    }

    #[test]
    fn configured_origins_are_written_as_browsers_write_them() {
        for (text, expected) in [
            ("https://Console.Example", Some("https://console.example")),
            ("https://console.example/", Some("https://console.example")),
            ("https://console.example:443", Some("https://console.example")),
            ("http://console.example:443", Some("http://console.example:443")),
            ("http://[::1]:80", Some("http://[::1]")),
            ("https://bücher.example", None),
            ("chrome-extension://AbCd", Some("chrome-extension://abcd")),
            ("*", None),
            ("null", None),
            ("https://*.example", None),
            ("https://console.example/path", None),
            ("https://user@console.example", None),
            ("console.example", None),
            ("https://", None),
            ("", None),
        ] {
            assert_eq!(canonical_origin(text).as_deref(), expected, "{text}");
        }
    }
}
