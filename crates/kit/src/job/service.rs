//! A job handler where services are expected: as a tower service, and as an axum route.

use super::JobHandler;
use crate::problem::ResponseBody;
use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use tower_service::Service;

impl<T, B> Service<Request<B>> for JobHandler<T>
where
    T: Send + 'static,
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    type Response = Response<ResponseBody>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    /// Always ready: if there is no free slot, the response asks the queue to retry later.
    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let handler = self.clone();
        Box::pin(async move { Ok(handler.handle(request).await) })
    }
}

#[cfg(feature = "axum")]
impl<T: Send + 'static> JobHandler<T> {
    /// The handler as a route for every method, because a publisher can choose any.
    ///
    /// ```
    /// # fn make(mails: posthaste_kit::job::JobHandler<bytes::Bytes>) {
    /// let app: axum::Router = axum::Router::new().route("/jobs/mail", mails.route());
    /// # let _ = app; }
    /// ```
    ///
    /// In nested routers too, the signature is checked against the URL of the whole request.
    pub fn route<S: Clone + Send + Sync + 'static>(self) -> axum::routing::MethodRouter<S> {
        axum::routing::any_service(self)
    }
}
