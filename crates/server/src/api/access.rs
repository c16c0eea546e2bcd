//! Which routes there can be: only those whose handlers say first who may call them.
//!
//! The router takes [`Methods`], and these are made of handlers whose first argument is a [`Caller`]: a [`Reader`], a [`Writer`],
//! the [`Scraper`] of metrics, or [`Anyone`]. A handler without one does not compile. Being the first argument, it is looked at
//! before anything else of the request, and long before its body is read.

use super::auth::{Reader, Scraper, Writer};
use crate::app::App;
use axum::extract::FromRequestParts;
use axum::handler::Handler;
use axum::http::request::Parts;
use axum::routing::MethodRouter;
use std::convert::Infallible;
use std::sync::Arc;

/// What a caller must show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Access {
    /// Nothing.
    Open,
    /// Any token.
    Read,
    /// A token that may do everything.
    Write,
    /// The token for metrics, where there is one.
    Metrics,
}

/// A caller that was let in.
#[diagnostic::on_unimplemented(
    message = "the first argument of a handler says who may call it: `Reader`, `Writer`, `Scraper` or `Anyone`"
)]
pub(super) trait Caller {
    const ACCESS: Access;
}

impl Caller for Reader {
    const ACCESS: Access = Access::Read;
}

impl Caller for Writer {
    const ACCESS: Access = Access::Write;
}

impl Caller for Scraper {
    const ACCESS: Access = Access::Metrics;
}

/// A caller of a route that needs no token.
pub(super) struct Anyone;

impl Caller for Anyone {
    const ACCESS: Access = Access::Open;
}

impl FromRequestParts<Arc<App>> for Anyone {
    type Rejection = Infallible;

    async fn from_request_parts(_: &mut Parts, _: &Arc<App>) -> Result<Anyone, Infallible> {
        Ok(Anyone)
    }
}

/// The arguments of a handler, as the framework names them, if the first one is a [`Caller`].
pub(super) trait Guarded {
    const ACCESS: Access;
}

macro_rules! guarded {
    ($($argument:ident)*) => {
        impl<M, C: Caller, $($argument),*> Guarded for (M, C, $($argument),*) {
            const ACCESS: Access = C::ACCESS;
        }
    };
}

guarded!();
guarded!(A);
guarded!(A B);
guarded!(A B D);
guarded!(A B D E);
guarded!(A B D E F);

/// The methods of a route, and what each of them needs.
#[derive(Clone, Default)]
pub(super) struct Methods {
    router: MethodRouter<Arc<App>>,
    access: Vec<(&'static str, Access)>,
}

impl Methods {
    /// For the router alone.
    pub(super) fn into_router(self) -> MethodRouter<Arc<App>> {
        self.router
    }

    /// What a method needs, if there is this method.
    pub(super) fn access(&self, method: &str) -> Option<Access> {
        self.access.iter().find(|(name, _)| *name == method).map(|(_, access)| *access)
    }
}

macro_rules! methods {
    ($($name:ident $method:literal),*) => {
        impl Methods {
            $(pub(super) fn $name<H, T>(mut self, handler: H) -> Methods
            where
                H: Handler<T, Arc<App>>,
                T: Guarded + 'static,
            {
                self.access.push(($method, T::ACCESS));
                Methods { router: self.router.$name(handler), ..self }
            })*
        }
    };
}

/// Functions that begin the methods of a route, as those of `axum::routing` do.
macro_rules! beginnings {
    ($($name:ident $method:literal),*) => {
        $(pub(super) fn $name<H, T>(handler: H) -> Methods
        where
            H: Handler<T, Arc<App>>,
            T: Guarded + 'static,
        {
            Methods { router: MethodRouter::new(), access: Vec::new() }.$name(handler)
        })*
    };
}

methods!(get "GET", post "POST", put "PUT", patch "PATCH", delete "DELETE", options "OPTIONS");
beginnings!(get "GET", post "POST", delete "DELETE");
