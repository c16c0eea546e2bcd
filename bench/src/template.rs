//! A prepared request in which only ids and payloads change, so that sending costs next to nothing.

use crate::http::split_url;
use crate::marker::{Marker, put_hex};
use anyhow::Result;

const ID: &str = "{{id}}";
const ID_LEN: usize = 16;
const KEY: &str = "{{key}}";
const KEY_LEN: usize = 8;
const PAYLOAD: &str = "{{payload}}";

#[derive(Clone)]
pub(crate) struct Template {
    /// `address:port` to connect to.
    pub(crate) host: String,
    bytes: Vec<u8>,
    /// The positions of ids, 16 hex digits each.
    id_offsets: Vec<usize>,
    /// The positions of keys, 8 hex digits each.
    key_offsets: Vec<usize>,
    /// The number of keys. Messages use them in turn.
    keys: u32,
    payload_offsets: Vec<usize>,
    payload_len: usize,
}

impl Template {
    /// `url`, `headers` and `body` may contain `{{id}}` and `{{key}}`. `{{payload}}` in `body` is padded until the body
    /// has `body_bytes` bytes, but it is never shorter than a marker.
    pub(crate) fn new(method: &str, url: &str, headers: &[String], body: &str, body_bytes: usize) -> Result<Self> {
        let (host, path) = split_url(url)?;
        let payloads = body.matches(PAYLOAD).count();
        let fixed = body.len() - payloads * PAYLOAD.len()
            + body.matches(ID).count() * (ID_LEN - ID.len())
            + body.matches(KEY).count() * (KEY_LEN - KEY.len());
        let payload_len = (body_bytes.saturating_sub(fixed) / payloads.max(1)).max(Marker::LEN);
        let total = fixed + payload_len * payloads;
        let mut text = format!("{method} {path} HTTP/1.1\r\nHost: {host}\r\nContent-Length: {total}\r\n");
        if !headers.iter().any(|header| header.to_ascii_lowercase().starts_with("content-type:")) {
            text.push_str("Content-Type: application/json\r\n");
        }
        for header in headers {
            text.push_str(header.trim());
            text.push_str("\r\n");
        }
        text.push_str("\r\n");
        text.push_str(body);

        let mut template = Self {
            host: host.to_owned(),
            bytes: Vec::new(),
            id_offsets: Vec::new(),
            key_offsets: Vec::new(),
            keys: 1,
            payload_offsets: Vec::new(),
            payload_len,
        };
        template.lay_out(&text);
        Ok(template)
    }

    /// Sets the number of different keys, at least one.
    pub(crate) fn with_keys(self, keys: u32) -> Self {
        Self { keys: keys.max(1), ..self }
    }

    fn lay_out(&mut self, mut text: &str) {
        while let Some(at) = text.find("{{") {
            self.bytes.extend_from_slice(&text.as_bytes()[..at]);
            text = &text[at..];
            if let Some(rest) = text.strip_prefix(ID) {
                self.id_offsets.push(self.bytes.len());
                self.bytes.resize(self.bytes.len() + ID_LEN, b'0');
                text = rest;
            } else if let Some(rest) = text.strip_prefix(KEY) {
                self.key_offsets.push(self.bytes.len());
                self.bytes.resize(self.bytes.len() + KEY_LEN, b'0');
                text = rest;
            } else if let Some(rest) = text.strip_prefix(PAYLOAD) {
                self.payload_offsets.push(self.bytes.len());
                self.bytes.resize(self.bytes.len() + self.payload_len, b'x');
                text = rest;
            } else {
                self.bytes.push(b'{');
                text = &text[1..];
            }
        }
        self.bytes.extend_from_slice(text.as_bytes());
    }

    /// The request for one message. `noise` must be longer than a payload.
    pub(crate) fn fill(&mut self, marker: Marker, noise: &[u8]) -> &[u8] {
        for &at in &self.id_offsets {
            put_hex(&mut self.bytes[at..at + ID_LEN], u64::from(marker.run) << 32 | u64::from(marker.sequence));
        }
        for &at in &self.key_offsets {
            put_hex(&mut self.bytes[at..at + KEY_LEN], u64::from(marker.sequence % self.keys));
        }
        for &at in &self.payload_offsets {
            fill_payload(&mut self.bytes[at..at + self.payload_len], marker, noise);
        }
        &self.bytes
    }
}

/// A marker, followed by noise that differs from message to message.
pub(crate) fn fill_payload(out: &mut [u8], marker: Marker, noise: &[u8]) {
    let (head, rest) = out.split_at_mut(Marker::LEN);
    marker.write(head);
    let start = (marker.sequence as usize).wrapping_mul(977) % (noise.len() - rest.len());
    rest.copy_from_slice(&noise[start..start + rest.len()]);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::marker::noise;

    const MARKER: Marker = Marker { run: 1, sequence: 2, sent_ns: 3 };

    fn filled(url: &str, headers: &[&str], body: &str, body_bytes: usize) -> (String, String) {
        let headers: Vec<String> = headers.iter().map(|h| (*h).to_owned()).collect();
        let mut template = Template::new("POST", url, &headers, body, body_bytes).unwrap();
        let text = String::from_utf8(template.fill(MARKER, &noise(4096)).to_vec()).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        (head.to_owned(), body.to_owned())
    }

    #[test]
    fn the_body_has_the_asked_length_and_carries_the_marker() {
        for body_bytes in [64, 256, 1024] {
            let (head, body) = filled("http://127.0.0.1:1/p", &[], r#"{"m":"{{payload}}"}"#, body_bytes);
            assert_eq!(body.len(), body_bytes);
            assert!(head.contains(&format!("Content-Length: {body_bytes}\r\n")), "{head}");
            assert_eq!(Marker::find(body.as_bytes()), Some(MARKER));
        }
    }

    #[test]
    fn a_body_too_short_for_the_marker_grows() {
        let (head, body) = filled("http://127.0.0.1:1/p", &[], "{{payload}}", 0);
        assert_eq!(body.len(), Marker::LEN);
        assert!(head.ends_with(&format!("Content-Length: {}\r\nContent-Type: application/json", Marker::LEN)));
    }

    #[test]
    fn ids_are_filled_in_url_headers_and_body() {
        let (head, body) = filled(
            "http://127.0.0.1:1/p/{{id}}",
            &["Key: {{id}}", "content-type: text/plain"],
            "{{id}} {{payload}} {{x",
            99,
        );
        let id = "0000000100000002";
        assert!(head.starts_with(&format!("POST /p/{id} HTTP/1.1\r\nHost: 127.0.0.1:1\r\n")), "{head}");
        assert!(head.contains(&format!("\r\nKey: {id}\r\n")), "{head}");
        assert!(!head.contains("application/json"), "{head}");
        assert!(body.starts_with(id) && body.ends_with(" {{x"), "{body}");
        assert_eq!(body.len(), 99);
    }

    #[test]
    fn messages_take_the_keys_in_turn() {
        let template = Template::new("POST", "http://127.0.0.1:1/q/{{key}}/x", &[], "{{key}}{{payload}}", 64).unwrap();
        let mut template = template.with_keys(10);
        for (sequence, key) in [(0, "00000000"), (9, "00000009"), (10, "00000000"), (25, "00000005")] {
            let request = template.fill(Marker { sequence, ..MARKER }, &noise(4096)).to_vec();
            let text = String::from_utf8(request).unwrap();
            assert!(text.starts_with(&format!("POST /q/{key}/x HTTP/1.1\r\n")), "{text}");
            let (head, body) = text.split_once("\r\n\r\n").unwrap();
            assert!(head.contains("Content-Length: 64\r\n") && body.len() == 64 && body.starts_with(key), "{text}");
        }
    }
}
