//! The destination of a message: reads the rest of a publish path and its query exactly as the publisher wrote them.
//!
//! The URL is kept verbatim, because receivers compare it with the signature as text. It is parsed only to check it.
//! The server's egress policy decides which addresses may be reached. Start at [`split_query`], then read
//! [`Destination::parse`].

use crate::echo::{echo_url, is_scheme};
use std::borrow::Cow;
use std::fmt;
use url::{Url, form_urlencoded};

/// Query key that may carry the API token.
const TOKEN_KEY: &str = "qstash_token";
const API_PREFIX: &str = "api/";
/// Longest scheme that an error names.
const SCHEME_BYTES_MAX: usize = 16;

/// The query of a publish request, split by recipient.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct QueryParts {
    /// The destination's own query, in the order and encoding received; `None` if it has none.
    pub destination: Option<String>,
    /// Settings given as query keys: names in lower case, values decoded.
    pub config: Vec<(String, String)>,
    /// The API token, decoded.
    pub token: Option<String>,
}

/// Takes settings (`upstash-*`) and the token out of a raw query; the rest is the destination's.
pub fn split_query(raw_query: Option<&str>) -> QueryParts {
    let mut parts = QueryParts::default();
    let Some(raw_query) = raw_query else {
        return parts;
    };
    let mut kept: Vec<&str> = Vec::new();
    for segment in raw_query.split('&') {
        let (key, value) = form_urlencoded::parse(segment.as_bytes()).next().unwrap_or_default();
        let key = key.to_ascii_lowercase();
        if key == TOKEN_KEY {
            parts.token.get_or_insert(value.into_owned());
        } else if key.starts_with(crate::header::PREFIX) {
            parts.config.push((key, value.into_owned()));
        } else {
            kept.push(segment);
        }
    }
    if !kept.is_empty() {
        parts.destination = Some(kept.join("&"));
    }
    parts
}

/// The destination of a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Destination {
    /// An `http` or `https` URL, verbatim, query included, without fragment.
    Url(String),
    /// The name of a URL group.
    Group(String),
    /// A built-in API such as `api/llm`, prefix included.
    Api(String),
}

/// The text names no destination. The message is for the publisher and repeats the text without user, password and
/// query.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvalidDestination(String);

impl fmt::Display for InvalidDestination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for InvalidDestination {}

fn invalid<T>(url: &str, problem: impl fmt::Display) -> Result<T, InvalidDestination> {
    Err(InvalidDestination(format!("invalid destination url: {problem}; received {}", echo_url(url))))
}

/// The hosted service's error text for a URL whose scheme is not http or https. It names the scheme.
fn invalid_scheme<T>(url: &str) -> Result<T, InvalidDestination> {
    const HOSTED: &str = "endpoint has invalid scheme, add http:// or https://";
    match scheme(url) {
        Some(scheme) => invalid(url, format_args!("{HOSTED}; {scheme} is not supported")),
        None => invalid(url, HOSTED),
    }
}

/// The scheme of a URL that is not http or https. `localhost:3000` has no scheme.
fn scheme(url: &str) -> Option<&str> {
    let (scheme, rest) = url.split_once(':')?;
    let is_host = scheme.contains('.') || rest.starts_with(|c: char| c.is_ascii_digit()) || rest.contains('@');
    (is_scheme(scheme) && scheme.len() <= SCHEME_BYTES_MAX && (rest.starts_with("//") || !is_host)).then_some(scheme)
}

impl Destination {
    /// Reads the raw rest of a publish path, and the destination's own query (see [`split_query`]).
    ///
    /// Drops the query of a group or an API, because they do not have one.
    pub fn parse(
        remainder: &str,
        query: Option<&str>,
        url_bytes_max: usize,
    ) -> Result<Destination, InvalidDestination> {
        Destination::parse_unless_known(remainder, query, url_bytes_max, |_| false)
    }

    /// Like [`Destination::parse`], but does not check a URL again that is known to be valid.
    pub fn parse_unless_known(
        remainder: &str,
        query: Option<&str>,
        url_bytes_max: usize,
        is_known: impl FnOnce(&str) -> bool,
    ) -> Result<Destination, InvalidDestination> {
        if remainder.is_empty() {
            return Err(InvalidDestination("a non-empty destination must be provided".to_owned()));
        }
        if remainder.len() > url_bytes_max {
            return Err(too_long(remainder, url_bytes_max));
        }
        let remainder = decode_if_encoded(remainder)?;
        if let Some((scheme, rest)) = split_http_scheme(&remainder) {
            let url = assemble(scheme, rest, query)?;
            if !is_known(&url) {
                check_url(&url, url_bytes_max)?;
            }
            return Ok(Destination::Url(url));
        }
        let remainder = remainder.into_owned();
        if remainder.starts_with(API_PREFIX) {
            Ok(Destination::Api(remainder))
        } else if remainder.contains([':', '/']) {
            invalid_scheme(&remainder)
        } else if is_name(&remainder) {
            Ok(Destination::Group(remainder))
        } else {
            Err(InvalidDestination(format!(
                "invalid destination: neither a URL (add http:// or https://) nor the name of a URL group \
                 (letters, digits, '.', '_' and '-'); received {}",
                echo_url(&remainder)
            )))
        }
    }

    /// Reads a destination that carries its own query, as in a batch item.
    pub fn parse_whole(text: &str, url_bytes_max: usize) -> Result<Destination, InvalidDestination> {
        match text.split_once('?') {
            Some((remainder, query)) => Destination::parse(remainder, Some(query), url_bytes_max),
            None => Destination::parse(text, None, url_bytes_max),
        }
    }
}

/// Checks a complete `http` or `https` URL, as a callback must be. Error texts are those of a destination.
pub fn check_url(url: &str, url_bytes_max: usize) -> Result<(), InvalidDestination> {
    if url.len() > url_bytes_max {
        return Err(too_long(url, url_bytes_max));
    }
    let Some(after_slashes) = split_http_scheme(url).and_then(|(_, rest)| rest.strip_prefix("//")) else {
        return invalid_scheme(url);
    };
    if url.contains(|c: char| c.is_control() || c.is_whitespace()) {
        return invalid(url, "spaces and control characters must be percent-encoded");
    }
    let (before_query, _) = after_slashes.split_once(['?', '#']).unwrap_or((after_slashes, ""));
    if before_query.contains('\\') {
        // URL parsers disagree on whether a backslash ends the host.
        return invalid(url, "a backslash must be percent-encoded");
    }
    let (authority, _) = before_query.split_once('/').unwrap_or((before_query, ""));
    if authority.is_empty() {
        return invalid(url, "it has no host");
    }
    if authority.contains('@') {
        return invalid(url, "user and password are not accepted, forward an Authorization header");
    }
    let parsed = Url::parse(url).or_else(|error| invalid(url, error))?;
    if parsed.host_str().is_none_or(str::is_empty) {
        return invalid(url, "it has no host");
    }
    if parsed.port() == Some(0) {
        return invalid(url, "port 0 is not accepted");
    }
    Ok(())
}

/// `scheme://host:port` in one spelling for all URLs of the same server; `None` if the text is not a URL.
pub fn origin(url: &str) -> Option<String> {
    let url = Url::parse(url).ok()?;
    let host = url.host_str()?;
    let host = host.strip_suffix('.').unwrap_or(host);
    Some(format!("{}://{host}:{}", url.scheme(), url.port_or_known_default()?))
}

fn too_long(url: &str, url_bytes_max: usize) -> InvalidDestination {
    let bytes = url.len();
    InvalidDestination(format!("invalid destination url: at most {url_bytes_max} bytes are accepted, it has {bytes}"))
}

/// Undoes the percent-encoding of a URL that was encoded as a whole (`https%3A%2F%2F…`), exactly once.
fn decode_if_encoded(remainder: &str) -> Result<Cow<'_, str>, InvalidDestination> {
    let is_encoded = ["http%3a", "https%3a"].iter().any(|prefix| has_prefix(remainder, prefix));
    if !is_encoded {
        return Ok(Cow::Borrowed(remainder));
    }
    let mut decoded = Vec::with_capacity(remainder.len());
    let mut rest = remainder.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        let pair = after.get(..2).and_then(|digits| Some((hex_digit(digits[0])?, hex_digit(digits[1])?)));
        match (byte, pair) {
            (b'%', Some((high, low))) => {
                decoded.push(high << 4 | low);
                rest = &after[2..];
            }
            _ => {
                decoded.push(byte);
                rest = after;
            }
        }
    }
    match String::from_utf8(decoded) {
        Ok(decoded) => Ok(Cow::Owned(decoded)),
        Err(_) => invalid(remainder, "percent-encoded text is not UTF-8"),
    }
}

fn hex_digit(byte: u8) -> Option<u8> {
    char::from(byte).to_digit(16).map(|digit| digit as u8)
}

/// Splits `http:` or `https:`, in any case, from what follows.
fn split_http_scheme(text: &str) -> Option<(&str, &str)> {
    let prefix = ["http:", "https:"].into_iter().find(|prefix| has_prefix(text, prefix))?;
    Some(text.split_at(prefix.len()))
}

fn has_prefix(text: &str, prefix: &str) -> bool {
    text.get(..prefix.len()).is_some_and(|start| start.eq_ignore_ascii_case(prefix))
}

/// Reassembles the URL: restores a slash that a proxy folded, adds the query and drops the fragment.
fn assemble(scheme: &str, rest: &str, query: Option<&str>) -> Result<String, InvalidDestination> {
    if !rest.starts_with('/') {
        return invalid(&format!("{scheme}{rest}"), "the scheme must be followed by //");
    }
    let folded_slash = if rest.starts_with("//") { "" } else { "/" };
    let mut url = format!("{scheme}{folded_slash}{rest}");
    if let Some(query) = query {
        url.push(if url.contains('?') { '&' } else { '?' });
        url.push_str(query);
    }
    // Clients never send fragments. A fragment can only come from a batch item or an encoded URL.
    url.truncate(without_fragment(&url).len());
    Ok(url)
}

/// A URL without its fragment, which is never sent.
pub fn without_fragment(url: &str) -> &str {
    url.split('#').next().unwrap_or(url)
}

/// Whether the text is a valid name of a URL group, a queue or a schedule. Such a name needs no encoding in a path.
pub fn is_name(text: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    !text.is_empty() && text.bytes().all(is_plain) && text != "." && text != ".."
}

#[cfg(test)]
mod tests;
