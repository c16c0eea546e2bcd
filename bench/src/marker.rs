//! The marker at the start of every payload, and the noise after it.
//!
//! `HQB` run(8 hex) sequence(8 hex) time(16 hex). It survives any JSON envelope, so the sink can search a body for it,
//! and the system under test may wrap the payload.

const PREFIX: &[u8] = b"HQB";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Marker {
    /// The load run that sent it.
    pub(crate) run: u32,
    /// Its number within that run.
    pub(crate) sequence: u32,
    /// When it was due, on the monotonic clock.
    pub(crate) sent_ns: u64,
}

impl Marker {
    pub(crate) const LEN: usize = PREFIX.len() + 32;

    /// Writes the marker over exactly [`Marker::LEN`] bytes.
    pub(crate) fn write(self, out: &mut [u8]) {
        out[..3].copy_from_slice(PREFIX);
        put_hex(&mut out[3..11], u64::from(self.run));
        put_hex(&mut out[11..19], u64::from(self.sequence));
        put_hex(&mut out[19..Self::LEN], self.sent_ns);
    }

    /// The first complete marker anywhere in `body`.
    pub(crate) fn find(body: &[u8]) -> Option<Marker> {
        memchr::memmem::find_iter(body, PREFIX).find_map(|at| {
            let digits = body.get(at + PREFIX.len()..at + Self::LEN)?;
            Some(Marker {
                run: parse_hex(&digits[..8])? as u32,
                sequence: parse_hex(&digits[8..16])? as u32,
                sent_ns: parse_hex(&digits[16..])?,
            })
        })
    }
}

/// Fills `out` with the lower digits of `value` in hexadecimal.
pub(crate) fn put_hex(out: &mut [u8], mut value: u64) {
    for digit in out.iter_mut().rev() {
        *digit = b"0123456789abcdef"[(value & 15) as usize];
        value >>= 4;
    }
}

/// At most 16 digits. `u64::from_str_radix` would also accept a sign.
fn parse_hex(digits: &[u8]) -> Option<u64> {
    digits.iter().try_fold(0, |value, &digit| Some(value << 4 | u64::from((digit as char).to_digit(16)?)))
}

/// Base-62 noise that is always the same. Compression saves about 25 % at most, which is typical.
pub(crate) fn noise(len: usize) -> Vec<u8> {
    const ALPHABET: &[u8] = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789";
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        ALPHABET[(state % ALPHABET.len() as u64) as usize]
    };
    (0..len).map(|_| next()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MARKER: Marker = Marker { run: 0xdead_beef, sequence: 42, sent_ns: 0x0123_4567_89ab_cdef };

    fn text() -> Vec<u8> {
        let mut bytes = [0; Marker::LEN];
        MARKER.write(&mut bytes);
        bytes.to_vec()
    }

    #[test]
    fn a_marker_reads_as_documented() {
        assert_eq!(text(), b"HQBdeadbeef0000002a0123456789abcdef");
    }

    #[test]
    fn a_marker_is_found_in_any_envelope() {
        let marker = String::from_utf8(text()).unwrap();
        let cases = [
            marker.clone(),
            format!(r#"{{"m":"{marker}noise"}}"#),
            format!(r#"{{"nested":"{{\"m\":\"{marker}\"}}"}}"#),
            format!("HQB and HQBnothexnothexnothexnothexnothexno then {marker}"),
        ];
        for body in cases {
            assert_eq!(Marker::find(body.as_bytes()), Some(MARKER), "{body}");
        }
    }

    #[test]
    fn a_damaged_marker_is_not_found() {
        let whole = text();
        assert_eq!(Marker::find(&whole[..Marker::LEN - 1]), None);
        assert_eq!(Marker::find(b""), None);
        let mut signed = whole;
        signed[3] = b'+';
        assert_eq!(Marker::find(&signed), None);
    }

    #[test]
    fn noise_is_the_same_every_time_and_safe_in_json() {
        assert_eq!(noise(1000), noise(1000));
        assert!(noise(1000).iter().all(u8::is_ascii_alphanumeric));
    }
}
