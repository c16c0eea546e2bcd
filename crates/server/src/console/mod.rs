//! The console: pages for people, in a browser.
//!
//! It can do nothing that the API cannot: pages are made of answers of the API, and buttons are requests to it
//! ([`Visitor::get`], [`Visitor::send`]). GET shows, POST acts and leads back. One file per page; [`view`] has what they share.

mod assets;
mod background;
mod dlq;
mod filters;
mod flow_control;
mod form;
#[doc(hidden)]
pub mod fuzzing;
mod guard;
mod login;
mod messages;
mod now;
mod question;
mod queues;
mod refusal;
mod schedules;
mod send;
mod session;
mod settings;
mod tail;
mod url_groups;
mod view;
mod visitor;
mod workflows;

use crate::api::Api;
use crate::app::App;
use crate::config::Mode;
use axum::Router;
use axum::extract::Request;
use axum::middleware;
use axum::response::{IntoResponse, Redirect, Response};
use axum::routing::get;
use posthaste_wire::id::TenantId;
use session::Sessions;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tower::ServiceExt;

pub(crate) use visitor::Visitor;

/// Where the console is.
pub(crate) const ROOT: &str = "/console";

/// What every page can reach.
pub(crate) struct Desk {
    app: Arc<App>,
    api: Arc<Api>,
    sessions: Sessions,
    turns: Mutex<HashMap<TenantId, Arc<Semaphore>>>,
}

/// Pages of a tenant that are made at once; more wait.
const PAGES_AT_ONCE_MAX: usize = 8;

/// The pages, in the order of the menu: path behind [`ROOT`], name.
const MENU: &[(&str, &str)] = &[
    ("", "Overview"),
    ("/messages", "Messages"),
    ("/tail", "Live logs"),
    ("/dlq", "DLQ"),
    ("/queues", "Queues"),
    ("/flow-control", "Flow control"),
    ("/schedules", "Schedules"),
    ("/url-groups", "URL groups"),
    ("/workflows", "Workflows"),
    ("/send", "Send"),
    ("/settings", "Settings"),
];

/// Answers requests for pages.
pub(crate) struct Console {
    router: Router,
}

impl Console {
    /// All pages.
    pub(crate) fn new(app: Arc<App>, api: Arc<Api>) -> Console {
        let desk = Arc::new(Desk { app, api, sessions: Sessions::default(), turns: Mutex::default() });
        let pages = [
            now::routes(),
            messages::routes(),
            tail::routes(),
            dlq::routes(),
            queues::routes(),
            flow_control::routes(),
            schedules::routes(),
            url_groups::routes(),
            workflows::routes(),
            send::routes(),
            settings::routes(),
            login::routes(),
        ];
        let pages = pages.into_iter().fold(Router::new(), Router::merge);
        let router = Router::new()
            .nest(ROOT, pages)
            .route("/console/", get(async || Redirect::permanent(ROOT)))
            .route("/console/assets/{version}/{name}", get(assets::asset))
            .fallback(view::no_page)
            .layer(middleware::from_fn_with_state(desk.clone(), guard::guard))
            .with_state(desk);
        Console { router }
    }

    /// Whether a path is one of the console's.
    pub(crate) fn has(path: &str) -> bool {
        path.strip_prefix(ROOT).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    }

    /// Answers a request.
    pub(crate) async fn serve(&self, request: Request) -> Response {
        match self.router.clone().oneshot(request).await {
            Ok(response) => response,
            Err(never) => match never {},
        }
    }
}

impl Desk {
    /// Waits until a page of this tenant may be made.
    async fn turn(&self, tenant: TenantId) -> Option<OwnedSemaphorePermit> {
        let turns = {
            let mut turns = self.turns.lock().unwrap_or_else(PoisonError::into_inner);
            turns.entry(tenant).or_insert_with(|| Arc::new(Semaphore::new(PAGES_AT_ONCE_MAX))).clone()
        };
        // It is never closed.
        turns.acquire_owned().await.ok()
    }

    /// Everybody on this machine may look and act: a development server has no secrets.
    fn is_open(&self) -> bool {
        self.app.config.mode == Mode::Dev
    }
}

/// After something was done: back to a page of ours, which shows what happened.
fn back_to(page: &str, said: &str) -> Response {
    let page = if is_page(page) { page } else { ROOT };
    (view::flash(said), Redirect::to(page)).into_response()
}

/// Whether a browser that is sent there sees a page of ours. Anything else is written by hand: another site, what cannot stand
/// in a header, or the way to log in, which has been gone.
fn is_page(page: &str) -> bool {
    let path = page.split('?').next().unwrap_or_default();
    let is_plain = page.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'\\');
    // Browsers follow dots, also encoded ones.
    let has_dots = path.to_ascii_lowercase().replace("%2e", ".").split('/').any(|it| matches!(it, "." | ".."));
    let is_door = matches!(path, "/console/login" | "/console/logout");
    is_plain && !has_dots && !is_door && Console::has(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_pages_of_the_console_are_led_back_to() {
        for page in
            ["/console", "/console?window=5m", "/console/dlq", "/console/queues/login", "/console/messages?cursor=1-2"]
        {
            assert!(is_page(page), "{page}");
        }
        for page in [
            "",
            "/",
            "/v2/keys",
            "/consoles",
            "https://evil.example/console",
            "//evil.example/console",
            "/console/../v2/keys",
            "/console/..//evil.example",
            "/console/%2E%2e/v2/keys",
            "/console\\evil",
            "/console/\r\nSet-Cookie: a=b",
            "/console/\u{e9}",
            "/console/ x",
            "/console/login",
            "/console/logout",
            "javascript:alert(1)",
        ] {
            assert!(!is_page(page), "{page:?}");
        }
    }
}
