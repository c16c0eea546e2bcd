//! The language model that the operator named: `api/llm` as a destination, and `POST /llm/v1/chat/completions`,
//! which passes a request on and the answer back as it comes.
//!
//! Messages to `api/llm` are ordinary ones but for their place; `core::attempts` sends them.

use super::auth::Writer;
use super::body;
use super::error::ApiError;
use crate::app::App;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, header};
use axum::response::Response;
use bytes::Bytes;
use http_body::{Frame, SizeHint};
use hyper::body::Incoming;
use posthaste_delivery::Deliverer;
use posthaste_wire::id::TenantId;
use std::collections::HashMap;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::time::{Sleep, sleep};

/// Requests that are passed on at once; one more is refused with 503. A tenant may have as many of them as are free, so that
/// it leaves half to the others; one more of it is refused with 429.
const PASSED_ON_MAX: usize = 200;
/// How long the model may take to begin its answer.
const HEAD_PATIENCE: Duration = Duration::from_secs(600);
/// How long the model may pause within its answer.
const PAUSE_MAX: Duration = Duration::from_secs(120);

/// The way to the model, and how many are on it.
pub(crate) struct LlmUpstream {
    deliverer: Arc<Deliverer>,
    places: Arc<Places>,
}

impl LlmUpstream {
    pub(crate) fn new(deliverer: Arc<Deliverer>) -> LlmUpstream {
        LlmUpstream { deliverer, places: Arc::default() }
    }
}

/// How many requests each tenant has on the way.
#[derive(Default)]
struct Places {
    taken: Mutex<HashMap<TenantId, usize>>,
}

/// Why there is no place.
#[derive(Debug, PartialEq, Eq)]
enum NoPlace {
    /// The tenant has as many as are left for all others.
    OwnShare(usize),
    /// Others have them all.
    Full,
}

/// One request on the way; it ends with this.
struct Place {
    places: Arc<Places>,
    tenant: TenantId,
}

impl Places {
    fn take(self: &Arc<Self>, tenant: TenantId) -> Result<Place, NoPlace> {
        let mut taken = self.lock();
        let free = PASSED_ON_MAX - taken.values().sum::<usize>().min(PASSED_ON_MAX);
        let own = taken.get(&tenant).copied().unwrap_or(0);
        match (own, free) {
            (0, 0) => Err(NoPlace::Full),
            _ if own >= free => Err(NoPlace::OwnShare(own)),
            _ => {
                taken.insert(tenant, own + 1);
                Ok(Place { places: self.clone(), tenant })
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<TenantId, usize>> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut taken = self.places.lock();
        if let Some(own) = taken.get_mut(&self.tenant) {
            *own -= 1;
            if *own == 0 {
                taken.remove(&self.tenant);
            }
        }
    }
}

/// Whether messages to this built-in API go anywhere. They name it as their publisher did: where that leads is between the
/// operator and the model, and is looked up when they are sent.
pub(super) fn check_destination(app: &App, destination: &str) -> Result<(), ApiError> {
    match (destination, &app.config.llm) {
        ("api/llm", Some(_)) => Ok(()),
        ("api/llm", None) => Err(ApiError::invalid(
            "invalid destination: api/llm is not configured on this server; the operator can set llm_url, or you can publish to the URL of the model",
        )),
        (other, _) => Err(ApiError::invalid(format!(
            "invalid destination: {other} is not supported by this server; publish to a URL, or to api/llm"
        ))),
    }
}

/// Nobody would see the answer.
pub(super) fn no_callback() -> ApiError {
    ApiError::invalid("Upstash-Callback: required for api/llm; it receives the response of the model")
}

pub(super) async fn complete(
    Writer { tenant }: Writer,
    State(app): State<Arc<App>>,
    request: Request,
) -> Result<Response, ApiError> {
    let (parts, body) = request.into_parts();
    let llm = app.llm.as_ref().ok_or_else(|| {
        ApiError::not_found("no language model is configured on this server; the operator can set llm_url")
    })?;
    let place = llm.places.take(tenant).map_err(|none| match none {
        NoPlace::OwnShare(own) => ApiError::too_many(format!(
            "{own} of your requests to the language model are in flight, and the other slots are kept for other tenants; \
             try again when one has ended"
        )),
        NoPlace::Full => ApiError::overloaded("too many requests to the language model are in flight, try again"),
    })?;
    let max = app.config.message_bytes_max;
    let over = || ApiError::too_large(format!("the body is larger than {max} bytes"));
    let body = body::read(&app, tenant, &parts.headers, body, max, over).await?;
    let mut headers = HeaderMap::new();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    if let Some(accept) = parts.headers.get(header::ACCEPT) {
        headers.insert(header::ACCEPT, accept.clone());
    }
    let answer = llm.deliverer.pass_on(tenant, headers, body.bytes, HEAD_PATIENCE).await;
    let answer = answer.ok_or_else(|| ApiError::not_found("no language model is configured on this server"))?;
    let answer = answer.map_err(|error| ApiError::bad_gateway(format!("the language model: {}", error.message)))?;
    Ok(passed_back(answer, place))
}

/// The answer as it comes, with the headers that clients read.
fn passed_back(answer: http::Response<Incoming>, place: Place) -> Response {
    let (head, incoming) = answer.into_parts();
    let body = Passing { incoming, pause: Box::pin(sleep(PAUSE_MAX)), _place: place };
    let mut response = Response::new(Body::new(body));
    *response.status_mut() = head.status;
    let passed = head.headers.iter().filter(|(name, _)| is_passed_back(name));
    response.headers_mut().extend(passed.map(|(name, value)| (name.clone(), value.clone())));
    response
}

fn is_passed_back(name: &HeaderName) -> bool {
    *name == header::CONTENT_TYPE
        || *name == header::CACHE_CONTROL
        || *name == header::RETRY_AFTER
        || *name == "x-request-id"
        || name.as_str().starts_with("x-ratelimit-")
}

/// The body of an answer under way; it breaks off when the model pauses too long.
struct Passing {
    incoming: Incoming,
    pause: Pin<Box<Sleep>>,
    _place: Place,
}

impl http_body::Body for Passing {
    type Data = Bytes;
    type Error = Box<dyn std::error::Error + Send + Sync>;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        match Pin::new(&mut self.incoming).poll_frame(context) {
            Poll::Ready(frame) => {
                self.pause.as_mut().set(sleep(PAUSE_MAX));
                Poll::Ready(frame.map(|frame| frame.map_err(Into::into)))
            }
            Poll::Pending => match self.pause.as_mut().poll(context) {
                Poll::Ready(()) => Poll::Ready(Some(Err("the language model stopped responding".into()))),
                Poll::Pending => Poll::Pending,
            },
        }
    }

    fn is_end_stream(&self) -> bool {
        self.incoming.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.incoming.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_tenant_leaves_places_to_the_others() {
        let places = Arc::<Places>::default();
        let fill = |tenant: u32| {
            let mut held = Vec::new();
            loop {
                match places.take(TenantId(tenant)) {
                    Ok(place) => held.push(place),
                    Err(none) => return (held, none),
                }
            }
        };
        let (first, none) = fill(1);
        assert_eq!((first.len(), none), (PASSED_ON_MAX / 2, NoPlace::OwnShare(PASSED_ON_MAX / 2)));
        let (second, _) = fill(2);
        assert_eq!(second.len(), PASSED_ON_MAX / 4);
        drop(first);
        assert!(places.take(TenantId(1)).is_ok(), "places come back");
        let held: Vec<_> = (3..1_000).map(|tenant| fill(tenant).0).collect();
        assert!(held.iter().take(3).all(|held| !held.is_empty()));
        let in_all: usize = held.iter().map(Vec::len).sum();
        assert!(in_all + second.len() <= PASSED_ON_MAX);
        assert_eq!(fill(1_000).1, NoPlace::Full);
    }
}
