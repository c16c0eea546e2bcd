//! Headers that link requests, so that everything that happens for one reason can be found together.

use http::{HeaderMap, HeaderName};
use std::fmt;
use std::sync::Arc;

/// Header with the id of the request that this one is part of.
pub const REQUEST_ID_HEADER: &str = "x-request-id";
/// Header with the id of the event that a message is about, such as the event of a webhook.
pub const EVENT_ID_HEADER: &str = "x-event-id";
/// Header with the number of attempts that may follow the first. A delivery has this information nowhere else.
pub const MAX_RETRIES_HEADER: &str = "x-max-retries";
/// Header with the deduplication id of a message. A delivery has this information nowhere else.
pub const DEDUPLICATION_ID_HEADER: &str = "x-deduplication-id";
/// Header with the position in a trace (W3C Trace Context).
pub const TRACEPARENT_HEADER: &str = "traceparent";
/// Header with vendor-specific trace data.
pub const TRACESTATE_HEADER: &str = "tracestate";

/// The headers that are copied from an incoming request to all requests that it causes.
pub(crate) const PROPAGATED: [&str; 3] = [TRACEPARENT_HEADER, TRACESTATE_HEADER, REQUEST_ID_HEADER];

/// Adds headers to every request, such as a trace context.
///
/// With OpenTelemetry: `Propagator::new(|headers| propagator.inject_context(&Context::current(), &mut
/// HeaderInjector(headers)))`.
#[derive(Clone)]
pub struct Propagator(Arc<dyn Fn(&mut HeaderMap) + Send + Sync>);

impl Propagator {
    /// Calls this function for every request, on the task that sends it.
    pub fn new(inject: impl Fn(&mut HeaderMap) + Send + Sync + 'static) -> Propagator {
        Propagator(Arc::new(inject))
    }

    /// Forwards the trace context and the request id of an incoming request.
    ///
    /// ```
    /// use http::HeaderMap;
    /// use posthaste_kit::propagation::Propagator;
    ///
    /// let mut incoming = HeaderMap::new();
    /// incoming.insert("x-request-id", "req_42".parse().unwrap());
    /// incoming.insert("cookie", "session=1".parse().unwrap());
    /// let headers = Propagator::continuing(&incoming).headers();
    /// assert_eq!(headers["x-request-id"], "req_42");
    /// assert_eq!(headers.len(), 1);
    /// ```
    pub fn continuing(incoming: &HeaderMap) -> Propagator {
        let known = PROPAGATED.map(HeaderName::from_static).into_iter();
        let passed: HeaderMap = known.filter_map(|name| Some((name.clone(), incoming.get(name)?.clone()))).collect();
        Propagator::new(move |headers| headers.extend(passed.clone()))
    }

    /// The headers for a request sent now.
    pub fn headers(&self) -> HeaderMap {
        let mut headers = HeaderMap::new();
        (self.0)(&mut headers);
        headers
    }
}

impl fmt::Debug for Propagator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Propagator")
    }
}
