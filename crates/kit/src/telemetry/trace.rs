//! The trace of a message, in the W3C headers `traceparent` and `tracestate`.

use crate::propagation::{TRACEPARENT_HEADER, TRACESTATE_HEADER};
use http::{HeaderMap, HeaderValue};
use std::fmt;

/// Maximum size of a `tracestate`, in bytes. A longer one is dropped, as the specification allows.
pub const TRACE_STATE_BYTES_MAX: usize = 512;

/// `00-<32 digits>-<16 digits>-<2 digits>`.
const TRACEPARENT_BYTES: usize = 55;
/// The known flags: sampled, random id. Others are dropped.
const KNOWN_FLAGS: u8 = 0b11;

/// A position in a trace: the trace and one of its spans.
///
/// ```
/// use posthaste_kit::telemetry::TraceContext;
///
/// let text = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
/// let context = TraceContext::parse(text).expect("as in the specification");
/// assert!(context.is_sampled());
/// assert_eq!(context.to_string(), text);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceContext {
    trace_id: u128,
    span_id: u64,
    flags: u8,
    state: Option<String>,
}

/// How a run relates to the trace of the publisher.
///
/// The first attempt continues the trace. A retry may come hours later, when the publisher's trace has long ended, so
/// it starts a new trace with a link to the original one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Relation {
    /// The publisher had no trace.
    None,
    /// A child of the publisher's span.
    ChildOf(TraceContext),
    /// A new trace, linked to the publisher's span.
    LinkedTo(TraceContext),
}

impl Relation {
    /// The relation of attempt number `attempt` (starting at 1) of a message to this context.
    pub fn of(context: Option<TraceContext>, attempt: u32) -> Relation {
        match context {
            None => Relation::None,
            Some(context) if attempt <= 1 => Relation::ChildOf(context),
            Some(context) => Relation::LinkedTo(context),
        }
    }
}

impl TraceContext {
    /// A position in a trace; `None` if either id is zero, which means no id.
    pub fn new(trace_id: u128, span_id: u64, is_sampled: bool) -> Option<TraceContext> {
        let is_valid = trace_id != 0 && span_id != 0;
        is_valid.then_some(TraceContext { trace_id, span_id, flags: u8::from(is_sampled), state: None })
    }

    /// Parses a `traceparent`; `None` if it is malformed. Later versions may have additional fields at the end.
    pub fn parse(text: &str) -> Option<TraceContext> {
        let bytes = text.as_bytes();
        let has_dashes = bytes.len() >= TRACEPARENT_BYTES && [2, 35, 52].iter().all(|at| bytes[*at] == b'-');
        if !has_dashes {
            return None;
        }
        let ends_right = match hex(bytes.get(..2)?)? {
            0 => bytes.len() == TRACEPARENT_BYTES,
            0xff => false,
            _ => bytes.len() == TRACEPARENT_BYTES || bytes[TRACEPARENT_BYTES] == b'-',
        };
        if !ends_right {
            return None;
        }
        let span_id = u64::try_from(hex(&bytes[36..52])?).ok()?;
        let flags = u8::try_from(hex(&bytes[53..55])?).ok()? & KNOWN_FLAGS;
        let context = TraceContext::new(hex(&bytes[3..35])?, span_id, false)?;
        Some(TraceContext { flags, ..context })
    }

    /// Reads the headers of a request; `None` if there is no `traceparent`, several, or a malformed one.
    pub fn from_headers(headers: &HeaderMap) -> Option<TraceContext> {
        let mut parents = headers.get_all(TRACEPARENT_HEADER).iter();
        let parent = parents.next().filter(|_| parents.next().is_none())?;
        let context = TraceContext::parse(parent.to_str().ok()?.trim())?;
        Some(TraceContext { state: state_of(headers), ..context })
    }

    /// Writes the headers of a request, replacing existing ones.
    pub fn write_to(&self, headers: &mut HeaderMap) {
        headers.remove(TRACESTATE_HEADER);
        let Ok(parent) = HeaderValue::try_from(self.to_string()) else { return };
        headers.insert(TRACEPARENT_HEADER, parent);
        if let Some(Ok(state)) = self.state.as_deref().map(HeaderValue::try_from) {
            headers.insert(TRACESTATE_HEADER, state);
        }
    }

    /// Id of the trace.
    pub fn trace_id(&self) -> u128 {
        self.trace_id
    }

    /// Id of the span.
    pub fn span_id(&self) -> u64 {
        self.span_id
    }

    /// Whether the publisher recorded the trace.
    pub fn is_sampled(&self) -> bool {
        self.flags & 1 == 1
    }

    /// Vendor-specific data of the trace.
    pub fn state(&self) -> Option<&str> {
        self.state.as_deref()
    }
}

/// The `traceparent`.
impl fmt::Display for TraceContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "00-{:032x}-{:016x}-{:02x}", self.trace_id, self.span_id, self.flags)
    }
}

/// All `tracestate` headers as one, unless they are too long or contain invalid characters.
fn state_of(headers: &HeaderMap) -> Option<String> {
    let mut state = String::new();
    for value in headers.get_all(TRACESTATE_HEADER) {
        let value = value.to_str().ok()?.trim();
        if value.is_empty() {
            continue;
        }
        if !state.is_empty() {
            state.push(',');
        }
        state.push_str(value);
        if state.len() > TRACE_STATE_BYTES_MAX {
            return None;
        }
    }
    (!state.is_empty()).then_some(state)
}

/// Only lower-case digits, as the specification requires.
fn hex(digits: &[u8]) -> Option<u128> {
    digits.iter().try_fold(0, |number: u128, digit| {
        let value = match digit {
            b'0'..=b'9' => digit - b'0',
            b'a'..=b'f' => digit - b'a' + 10,
            _ => return None,
        };
        Some(number << 4 | u128::from(value))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.append(*name, value.parse().unwrap());
        }
        headers
    }

    #[test]
    fn only_what_the_specification_allows_is_read() {
        let later = format!("01{}-more", &PARENT[2..]);
        for good in [PARENT, &later, &format!("cc{}", &PARENT[2..])] {
            let context = TraceContext::parse(good).unwrap();
            assert_eq!(context.to_string(), PARENT, "{good}");
        }
        let zeros = "00-00000000000000000000000000000000-b7ad6b7169203331-01";
        let no_span = "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01";
        let bad = [
            "",
            "00",
            zeros,
            no_span,
            &PARENT.to_uppercase(),
            &PARENT[..54],
            &format!("{PARENT}-more"),
            &format!("{PARENT} "),
            &format!("ff{}", &PARENT[2..]),
            &format!("01{}.more", &PARENT[2..]),
            &PARENT.replace('-', "_"),
            &PARENT.replace("0af7", "0ag7"),
            &PARENT.replace("-01", "-+1"),
        ];
        for bad in bad {
            assert_eq!(TraceContext::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn unknown_flags_are_dropped() {
        let context = TraceContext::parse(&PARENT.replace("-01", "-ff")).unwrap();
        assert!(context.is_sampled());
        assert_eq!(context.to_string(), PARENT.replace("-01", "-03"));
        assert!(!TraceContext::parse(&PARENT.replace("-01", "-00")).unwrap().is_sampled());
    }

    #[test]
    fn headers_are_read_and_written_back() {
        let read = headers(&[(TRACEPARENT_HEADER, PARENT), (TRACESTATE_HEADER, "a=1"), (TRACESTATE_HEADER, "b=2")]);
        let context = TraceContext::from_headers(&read).unwrap();
        assert_eq!(context.state(), Some("a=1,b=2"));
        let mut written = headers(&[(TRACEPARENT_HEADER, "old"), (TRACESTATE_HEADER, "old=1")]);
        context.write_to(&mut written);
        assert_eq!(written, headers(&[(TRACEPARENT_HEADER, PARENT), (TRACESTATE_HEADER, "a=1,b=2")]));
    }

    #[test]
    fn several_parents_are_ignored_and_a_long_state_is_dropped() {
        let twice = headers(&[(TRACEPARENT_HEADER, PARENT), (TRACEPARENT_HEADER, PARENT)]);
        assert_eq!(TraceContext::from_headers(&twice), None);
        for (bytes, is_kept) in [(TRACE_STATE_BYTES_MAX, true), (TRACE_STATE_BYTES_MAX + 1, false)] {
            let state = format!("a={}", "x".repeat(bytes - 2));
            let one = headers(&[(TRACEPARENT_HEADER, PARENT), (TRACESTATE_HEADER, &state)]);
            assert_eq!(TraceContext::from_headers(&one).unwrap().state().is_some(), is_kept);
        }
    }

    #[test]
    fn the_first_attempt_is_a_child_and_retries_are_linked() {
        let context = TraceContext::parse(PARENT);
        let some = context.clone().unwrap();
        assert_eq!(Relation::of(None, 1), Relation::None);
        assert_eq!(Relation::of(context.clone(), 1), Relation::ChildOf(some.clone()));
        assert_eq!(Relation::of(context, 2), Relation::LinkedTo(some));
    }

    proptest! {
        #[test]
        fn any_traceparent_is_read_or_rejected(text in "\\PC{0,80}") {
            if let Some(context) = TraceContext::parse(&text) {
                prop_assert_eq!(TraceContext::parse(&context.to_string()), Some(context));
            }
        }

        #[test]
        fn every_context_round_trips(trace_id in 1_u128.., span_id in 1_u64.., is_sampled: bool) {
            let context = TraceContext::new(trace_id, span_id, is_sampled).unwrap();
            prop_assert_eq!(TraceContext::parse(&context.to_string()), Some(context));
        }
    }
}
