//! Calls to other services: JSON requests and responses, retries where they are safe, limits on time and size.
//!
//! Start at [`ServiceClient`].

use crate::call::CallError;
use crate::exchange::{Answer, Exchange, SetupError, authorize, base_url, bearer};
use crate::propagation::{Propagator, REQUEST_ID_HEADER};
use crate::retry::{CancellationToken, RetryPolicy, with_retry_if};
use crate::secret::Secret;
use bytes::Bytes;
use http::header::{ACCEPT, CONTENT_TYPE, HeaderName, HeaderValue};
use http::{HeaderMap, Method, StatusCode};
use reqwest::Url;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::fmt;

/// Default maximum size of a response, in bytes. A larger response is an error, and the rest is not read.
pub const ANSWER_BYTES_MAX: usize = 1024 * 1024;
/// Header by which a service recognises a repeated request.
pub const IDEMPOTENCY_KEY_HEADER: &str = "idempotency-key";
/// Default header for the user on whose behalf a request is made.
pub const USER_HEADER: &str = "x-user-id";

/// A client for one service.
///
/// ```no_run
/// use posthaste_kit::service::ServiceClient;
/// use serde::{Deserialize, Serialize};
///
/// #[derive(Serialize)]
/// struct NewInvoice<'a> { order: &'a str, cents: u64 }
/// #[derive(Deserialize)]
/// struct Invoice { id: String }
///
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let billing = ServiceClient::new("https://billing.example.com/v1")?.bearer("token")?;
/// let invoice: Invoice = billing
///     .post("/invoices")
///     .json(&NewInvoice { order: "o_7", cents: 1_250 })
///     .idempotency_key("invoice:o_7")
///     .request_id("req_42")
///     .send()
///     .await?
///     .json()?;
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct ServiceClient {
    exchange: Exchange,
    base: Url,
    token: Option<HeaderValue>,
    user_header: HeaderName,
    policy: RetryPolicy,
    answer_bytes_max: usize,
    propagator: Option<Propagator>,
}

impl ServiceClient {
    /// Creates a client for a service at this base URL. Paths are appended to it.
    pub fn new(base: impl AsRef<str>) -> Result<ServiceClient, SetupError> {
        Ok(ServiceClient {
            exchange: Exchange::new()?,
            base: base_url(base.as_ref())?,
            token: None,
            user_header: HeaderName::from_static(USER_HEADER),
            policy: RetryPolicy::default(),
            answer_bytes_max: ANSWER_BYTES_MAX,
            propagator: None,
        })
    }

    /// Sends this token with every request, as `Authorization: Bearer …`.
    pub fn bearer(mut self, token: impl AsRef<str>) -> Result<ServiceClient, SetupError> {
        let token = Secret::new(token).map_err(|error| SetupError::because("the token is empty", error))?;
        self.token = Some(bearer(&token)?);
        Ok(self)
    }

    /// Sets the retry policy.
    pub fn policy(mut self, policy: RetryPolicy) -> ServiceClient {
        self.policy = policy;
        self
    }

    /// Sets the header for the user. Default: [`USER_HEADER`].
    pub fn user_header(mut self, name: HeaderName) -> ServiceClient {
        self.user_header = name;
        self
    }

    /// Sets the maximum size of a response, in bytes. Default: [`ANSWER_BYTES_MAX`].
    pub fn answer_bytes_max(mut self, bytes: usize) -> ServiceClient {
        self.answer_bytes_max = bytes;
        self
    }

    /// Adds headers to every request, such as a trace context. Headers of the request take precedence.
    pub fn propagator(mut self, propagator: Propagator) -> ServiceClient {
        self.propagator = Some(propagator);
        self
    }

    /// A GET request.
    pub fn get(&self, path: &str) -> ServiceRequest<'_> {
        self.request(Method::GET, path)
    }

    /// A POST request. After a failure with an unknown outcome it is retried only if it has an
    /// [`idempotency_key`](ServiceRequest::idempotency_key).
    pub fn post(&self, path: &str) -> ServiceRequest<'_> {
        self.request(Method::POST, path)
    }

    /// A PUT request.
    pub fn put(&self, path: &str) -> ServiceRequest<'_> {
        self.request(Method::PUT, path)
    }

    /// A PATCH request. It is retried like [`post`](Self::post).
    pub fn patch(&self, path: &str) -> ServiceRequest<'_> {
        self.request(Method::PATCH, path)
    }

    /// A DELETE request.
    pub fn delete(&self, path: &str) -> ServiceRequest<'_> {
        self.request(Method::DELETE, path)
    }

    fn request(&self, method: Method, path: &str) -> ServiceRequest<'_> {
        let mut headers = self.propagator.as_ref().map(Propagator::headers).unwrap_or_default();
        headers.insert(ACCEPT, HeaderValue::from_static("application/json"));
        let url = self.url(path);
        let is_repeatable = !matches!(method, Method::POST | Method::PATCH);
        let operation = format!("{method} {}", self.base.host_str().unwrap_or_default());
        let body = Ok(Bytes::new());
        let cancelled = CancellationToken::new();
        ServiceRequest {
            client: self,
            operation,
            method,
            url,
            headers,
            body,
            is_repeatable,
            existing_is_fine: false,
            cancelled,
        }
    }

    /// Appends the path to the base. A path cannot leave the base, neither with dots nor with its own host.
    fn url(&self, path: &str) -> Result<Url, CallError> {
        let base = self.base.as_str().trim_end_matches('/');
        // A URL drops spaces at its end.
        let path = path.trim_start_matches('/').trim_end_matches(' ');
        if path.contains(|letter: char| letter.is_ascii_control()) {
            return Err(CallError::invalid("the path has control characters, which URLs silently drop"));
        }
        let (before_query, _) = path.split_once(['?', '#']).unwrap_or((path, ""));
        let is_dots = |part: &str| matches!(part.to_ascii_lowercase().replace("%2e", ".").as_str(), "." | "..");
        if before_query.split(['/', '\\']).any(is_dots) {
            return Err(CallError::invalid("the path has . or .. as a part, which would change its target"));
        }
        let url = Url::parse(&format!("{base}/{path}")).map_err(CallError::invalid)?;
        match url.as_str().strip_prefix(base) {
            Some(rest) if rest.starts_with('/') => Ok(url),
            _ => Err(CallError::invalid("the path leaves the base URL")),
        }
    }
}

impl fmt::Debug for ServiceClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServiceClient")
            .field("base", &self.base.as_str())
            .field("policy", &self.policy)
            .finish_non_exhaustive()
    }
}

/// A request that has not been sent yet. [`send`](Self::send) reports invalid parts, such as a key that is not valid in
/// a header or a body that cannot be written as JSON.
#[must_use = "a request does nothing until it is sent"]
pub struct ServiceRequest<'a> {
    client: &'a ServiceClient,
    operation: String,
    method: Method,
    url: Result<Url, CallError>,
    headers: HeaderMap,
    body: Result<Bytes, CallError>,
    is_repeatable: bool,
    existing_is_fine: bool,
    cancelled: CancellationToken,
}

impl ServiceRequest<'_> {
    /// Sets the name for logs and errors. Default: method and host.
    pub fn operation(mut self, name: impl Into<String>) -> Self {
        self.operation = name.into();
        self
    }

    /// Sets the JSON body.
    pub fn json(mut self, body: &(impl Serialize + ?Sized)) -> Self {
        self.body = serde_json::to_vec(body).map(Bytes::from).map_err(CallError::invalid);
        self.headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        self
    }

    /// Sets the id of the request that this one is part of.
    pub fn request_id(self, id: impl AsRef<str>) -> Self {
        self.header(HeaderName::from_static(REQUEST_ID_HEADER), id)
    }

    /// Sets the idempotency key, which is the same for all attempts. With a key, requests of every method are retried.
    pub fn idempotency_key(mut self, key: impl AsRef<str>) -> Self {
        self.is_repeatable = true;
        self.header(HeaderName::from_static(IDEMPOTENCY_KEY_HEADER), key)
    }

    /// Sets the user on whose behalf the request is made.
    pub fn user(self, id: impl AsRef<str>) -> Self {
        let name = self.client.user_header.clone();
        self.header(name, id)
    }

    /// Sets any other header.
    pub fn header(mut self, name: HeaderName, value: impl AsRef<str>) -> Self {
        match HeaderValue::from_str(value.as_ref()) {
            Ok(value) => drop(self.headers.insert(name, value)),
            Err(_) => self.url = Err(CallError::invalid(format!("the value of {name} is not a valid header value"))),
        }
        self
    }

    /// Allows retries without an idempotency key, because the request is safe to repeat.
    pub fn repeatable(mut self) -> Self {
        self.is_repeatable = true;
        self
    }

    /// Creates a resource unless it exists: 409 is then a success, see [`ServiceResponse::existed`].
    pub fn create_if_absent(mut self) -> Self {
        self.existing_is_fine = true;
        self
    }

    /// Stops when this token is cancelled.
    pub fn until(mut self, cancelled: CancellationToken) -> Self {
        self.cancelled = cancelled;
        self
    }

    /// Sends the request, with retries, and reads the response. Any status other than 2xx is an error.
    pub async fn send(self) -> Result<ServiceResponse, CallError> {
        let ServiceRequest { client, operation, method, mut headers, is_repeatable, existing_is_fine, .. } = self;
        let (url, body) = (self.url?, self.body?);
        authorize(&mut headers, client.token.as_ref());
        with_retry_if(is_repeatable, &self.cancelled, &operation, &client.policy, |_| {
            let (method, url, headers, body) = (method.clone(), url.clone(), headers.clone(), body.clone());
            async move {
                let answer = client.exchange.send(method, url, headers, body, client.answer_bytes_max).await;
                answer.and_then(|answer| ServiceResponse::of(answer, existing_is_fine))
            }
        })
        .await
    }
}

/// A successful response.
#[derive(Debug)]
pub struct ServiceResponse {
    status: StatusCode,
    headers: HeaderMap,
    text: Bytes,
}

impl ServiceResponse {
    fn of(answer: Answer, existing_is_fine: bool) -> Result<ServiceResponse, CallError> {
        let Answer { status, headers, body } = answer;
        if status.is_success() || (existing_is_fine && status == StatusCode::CONFLICT) {
            return Ok(ServiceResponse { status, headers, text: body });
        }
        Err(CallError::from_status(status.as_u16(), &headers).with_body(String::from_utf8_lossy(&body)))
    }

    /// The status.
    pub fn status(&self) -> StatusCode {
        self.status
    }

    /// Whether the resource already existed: see [`ServiceRequest::create_if_absent`].
    pub fn existed(&self) -> bool {
        self.status == StatusCode::CONFLICT
    }

    /// The headers.
    pub fn headers(&self) -> &HeaderMap {
        &self.headers
    }

    /// The body.
    pub fn bytes(&self) -> &Bytes {
        &self.text
    }

    /// The body as JSON. An empty body reads as `null`, so `Option<T>` and `()` accept it.
    pub fn json<T: DeserializeOwned>(self) -> Result<T, CallError> {
        let text: &[u8] = if self.text.is_empty() { b"null" } else { &self.text };
        serde_json::from_slice(text).map_err(|error| {
            // The error of the parser quotes the input. Its position is enough to find the mistake.
            let place =
                format!("the response has an unexpected form at line {} column {}", error.line(), error.column());
            CallError::unreadable(place).with_body(String::from_utf8_lossy(text))
        })
    }
}
