//! Logging in with a token of the API, and out.

use super::session::Identity;
use super::view::{self, Frame};
use super::visitor::{self, TENANT_COOKIE};
use super::{Desk, ROOT, Visitor, back_to, is_page};
use crate::api::address_of_caller;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Form, Query, State};
use axum::http::request::Parts;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Redirect, Response};
use axum::routing::{get, post};
use axum::{Router, http::HeaderMap};
use maud::{Markup, html};
use serde::Deserialize;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

pub(super) fn routes() -> Router<Arc<Desk>> {
    Router::new()
        .route("/login", get(show).post(log_in))
        .route("/logout", post(log_out))
        .route("/tenant", post(choose_tenant))
}

#[derive(Deserialize)]
struct Next {
    #[serde(default)]
    next: String,
}

#[derive(Deserialize)]
struct Credentials {
    token: String,
    #[serde(default)]
    next: String,
}

#[derive(Deserialize)]
struct Tenant {
    name: String,
}

async fn show(State(desk): State<Arc<Desk>>, next: Result<Query<Next>, QueryRejection>) -> Response {
    if desk.is_open() {
        return Redirect::to(ROOT).into_response();
    }
    // A page that cannot be read is none: the first page follows.
    form(&next.map(|Query(Next { next })| next).unwrap_or_default(), None).into_response()
}

fn form(next: &str, problem: Option<&str>) -> Markup {
    let body = html! {
        form.card.login method="post" action="/console/login" {
            h1 { "Log in to Posthaste" }
            @if let Some(problem) = problem {
                p.problem role="alert" { (problem) }
            }
            label for="token" { "Token" }
            input #token type="password" name="token" autocomplete="current-password" required autofocus;
            input type="hidden" name="next" value=(if is_page(next) { next } else { ROOT });
            p.hint {
                "Use the API token of your programs (" code { "QSTASH_TOKEN" }
                ") or a read-only token. You can log in only over HTTPS or on localhost."
            }
            button.primary type="submit" { "Log in" }
        }
    };
    view::page(&Frame::outside("Log in"), &body)
}

async fn log_in(
    State(desk): State<Arc<Desk>>,
    parts: Parts,
    Form(Credentials { token, next }): Form<Credentials>,
) -> Response {
    let now = desk.app.clock.now();
    let allowances = &desk.app.allowances;
    let caller = allowances.caller(address_of_caller(&desk.app, &parts).unwrap_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED)));
    if allowances.wrong_tokens.take(caller, 1, now).is_err() {
        let text = "Too many invalid tokens from your address. Try again in a minute.";
        return (StatusCode::TOO_MANY_REQUESTS, form(&next, Some(text))).into_response();
    }
    let Some(grant) = desk.app.tokens.find(token.trim(), now) else {
        tracing::info!("a wrong token was tried at the console");
        return (StatusCode::UNAUTHORIZED, form(&next, Some("This token is not valid."))).into_response();
    };
    allowances.wrong_tokens.give_back(caller, 1, now);
    let secret = desk.sessions.begin(Identity { tenant: grant.tenant, scope: grant.scope }, now);
    let mut response = back_to(&next, "");
    response.headers_mut().append(header::SET_COOKIE, visitor::session_cookie(&secret));
    response
}

async fn log_out(State(desk): State<Arc<Desk>>, headers: HeaderMap) -> Response {
    if let Some(secret) = visitor::session_of(&headers) {
        desk.sessions.end(&secret);
    }
    let mut response = Redirect::to("/console/login").into_response();
    response.headers_mut().append(header::SET_COOKIE, visitor::session_cookie(""));
    response
}

/// A development server has several tenants, and everybody may be each of them.
async fn choose_tenant(
    State(desk): State<Arc<Desk>>,
    _visitor: Visitor,
    Form(Tenant { name }): Form<Tenant>,
) -> Response {
    let known = desk.app.config.tenants.iter().any(|tenant| tenant.name == name);
    if !desk.is_open() || !known {
        return (StatusCode::BAD_REQUEST, "tenant not found").into_response();
    }
    let mut response = Redirect::to(ROOT).into_response();
    response.headers_mut().append(header::SET_COOKIE, view::cookie(TENANT_COOKIE, &name, None));
    response
}
