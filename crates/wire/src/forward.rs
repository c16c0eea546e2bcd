//! Decides which headers of a publish are forwarded to the destination, and within which limits.

use crate::encoding::{header_text, utf8_or_latin1};
use crate::header;
use crate::publish::PublishLimits;
use crate::rejection::Rejection;
use std::borrow::Cow;

/// Most characters of a received name that a message repeats.
const SHOWN_NAME_CHARS_MAX: usize = 100;

/// One header of a request.
#[derive(Clone, Copy)]
pub(crate) struct HeaderPair<'a> {
    /// The name as received, in any case.
    pub(crate) name: &'a str,
    pub(crate) value: &'a [u8],
}

impl<'a> HeaderPair<'a> {
    /// The value without outer white space.
    pub(crate) fn trimmed(self) -> &'a [u8] {
        let is_space = |byte: &&u8| matches!(byte, b' ' | b'\t');
        let start = self.value.iter().take_while(is_space).count();
        let rest = &self.value[start..];
        &rest[..rest.len() - rest.iter().rev().take_while(is_space).count()]
    }

    /// The trimmed value as the text of a setting.
    pub(crate) fn text(self) -> Result<Cow<'a, str>, Rejection> {
        self.without_controls(utf8_or_latin1(self.trimmed()))
    }

    /// The trimmed value as it is stored to be forwarded, byte for byte.
    fn forwarded(self) -> Result<Cow<'a, str>, Rejection> {
        self.without_controls(header_text(self.trimmed()))
    }

    fn without_controls(self, text: Cow<'a, str>) -> Result<Cow<'a, str>, Rejection> {
        match text.chars().find(|c| c.is_control() && *c != '\t') {
            None => Ok(text),
            // The rest of the value may be a secret.
            Some(c) => Err(self.refused(format_args!("the value has the control character {c:?}; percent-encode it"))),
        }
    }

    /// A rejection that names this header.
    pub(crate) fn refused(self, reason: impl std::fmt::Display) -> Rejection {
        Rejection::invalid(format!("{}: {reason}", self.display_name()))
    }

    /// The name for error messages. Names in batch items can be of any length.
    pub(crate) fn display_name(self) -> String {
        let end = self.name.char_indices().nth(SHOWN_NAME_CHARS_MAX).map_or(self.name.len(), |(end, _)| end);
        header::canonical(&self.name[..end])
    }
}

/// The headers to forward, in the order received.
#[derive(Default)]
pub(crate) struct Forwarded {
    headers: Vec<(String, String)>,
    explicit: usize,
    bytes: usize,
}

impl Forwarded {
    /// Adds `Upstash-Forward-<name>` and rejects names that a publisher may not set.
    pub(crate) fn push_explicit(
        &mut self,
        name: &str,
        line: HeaderPair<'_>,
        limits: &PublishLimits,
    ) -> Result<(), Rejection> {
        if !header::is_valid_name(name) {
            return Err(line.refused("the name after Upstash-Forward- must be a header name"));
        }
        // A client that forwards all headers of a delivery also sends this one. No other server knows it.
        if name.eq_ignore_ascii_case(header::HOPS) {
            return Ok(());
        }
        if header::is_hop_by_hop_or_framing(name) {
            return Err(line.refused("hop-by-hop and framing headers cannot be forwarded"));
        }
        if header::is_set_by_server(name) {
            return Err(line.refused("the server sets this header, so it cannot be forwarded"));
        }
        if name.eq_ignore_ascii_case(header::CONTENT_TYPE) && self.has(name) {
            return Err(line.refused("may be given only once"));
        }
        self.push(name, line, limits)?;
        self.explicit = self.headers.len();
        Ok(())
    }

    /// Adds headers that came without the prefix, unless the same name was given with it.
    ///
    /// `all` says whether all plain headers are forwarded or only `Content-Type`.
    pub(crate) fn push_plain<'a>(
        &mut self,
        lines: impl Iterator<Item = HeaderPair<'a>>,
        all: bool,
        limits: &PublishLimits,
    ) -> Result<(), Rejection> {
        let explicit = self.headers.len();
        for line in lines {
            let is_content_type = line.name.eq_ignore_ascii_case(header::CONTENT_TYPE);
            let travels = is_content_type || all && is_forwardable_plain(line.name);
            let is_absent = is_content_type && line.trimmed().is_empty();
            if !travels || is_absent || has_name(&self.headers[..explicit], line.name) {
                continue;
            }
            if is_content_type && has_name(&self.headers[explicit..], line.name) {
                return Err(line.refused("may be given only once"));
            }
            self.push(line.name, line, limits)?;
        }
        Ok(())
    }

    /// How many headers were named with the prefix. They come first.
    pub(crate) fn explicit(&self) -> usize {
        self.explicit
    }

    /// Returns the collected headers.
    pub(crate) fn into_headers(self) -> Vec<(String, String)> {
        self.headers
    }

    fn has(&self, name: &str) -> bool {
        has_name(&self.headers, name)
    }

    fn push(&mut self, name: &str, line: HeaderPair<'_>, limits: &PublishLimits) -> Result<(), Rejection> {
        let value = line.forwarded()?;
        if self.headers.len() == limits.forward_headers_max {
            let reason = format!("at most {} headers are forwarded", limits.forward_headers_max);
            return Err(line.refused(reason));
        }
        self.bytes += name.len() + line.trimmed().len();
        if self.bytes > limits.forward_header_bytes_max {
            let reason = format!("at most {} bytes of headers are forwarded", limits.forward_header_bytes_max);
            return Err(line.refused(reason));
        }
        self.headers.push((header::canonical(name), value.into_owned()));
        Ok(())
    }
}

/// Whether `Upstash-Header-Forward` forwards this header. It leaves out the API token, hop-by-hop headers, settings,
/// and headers that the server sets. It also leaves out `Accept-Encoding`, which describes the publisher's decoder and
/// not this server's.
fn is_forwardable_plain(name: &str) -> bool {
    let is_setting = name.get(..header::PREFIX.len()).is_some_and(|start| start.eq_ignore_ascii_case(header::PREFIX));
    header::is_valid_name(name)
        && !is_setting
        && !name.eq_ignore_ascii_case(header::AUTHORIZATION)
        && !name.eq_ignore_ascii_case(header::ACCEPT_ENCODING)
        && !header::is_hop_by_hop_or_framing(name)
        && !header::is_set_by_server(name)
}

fn has_name(headers: &[(String, String)], name: &str) -> bool {
    headers.iter().any(|(known, _)| known.eq_ignore_ascii_case(name))
}
