//! The route as a tower service and as an axum route.

use super::Webhook;
use crate::problem::ResponseBody;
use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use std::convert::Infallible;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use tower_service::Service;

/// The response to a webhook, as a future.
pub struct WebhookFuture(Pin<Box<dyn Future<Output = Response<ResponseBody>> + Send>>);

impl Future for WebhookFuture {
    type Output = Result<Response<ResponseBody>, Infallible>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.0.as_mut().poll(context).map(Ok)
    }
}

impl fmt::Debug for WebhookFuture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("WebhookFuture")
    }
}

impl<B> Service<Request<B>> for Webhook
where
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    type Response = Response<ResponseBody>;
    type Error = Infallible;
    type Future = WebhookFuture;

    /// Always ready: requests over the limit get an error response.
    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> WebhookFuture {
        let webhook = self.clone();
        WebhookFuture(Box::pin(async move { webhook.answer(request).await }))
    }
}

#[cfg(feature = "axum")]
impl Webhook {
    /// The route for an axum router. It accepts `POST`; from a queue, which may use any method, it accepts all methods.
    ///
    /// ```
    /// use posthaste_kit::webhook::Webhook;
    ///
    /// fn app(stripe: Webhook, github: Webhook) -> axum::Router {
    ///     axum::Router::new().route("/hooks/stripe", stripe.route()).route("/hooks/github", github.route())
    /// }
    /// # let _ = app;
    /// ```
    pub fn route(self) -> axum::routing::MethodRouter {
        if self.is_for_a_queue() { axum::routing::any_service(self) } else { axum::routing::post_service(self) }
    }
}
