//! The readers of this module that take bytes from outside, for the targets of `fuzz/`. Nothing else calls them.

use super::params::Params;
use super::publish::PUBLISH_LIMITS;
use super::{batch, caller, error::ApiError, url_groups};
use axum::http::HeaderMap;
use ipnet::IpNet;
use posthaste_engine::limits::{LOG_PAGE_MAX, NAME_BYTES_MAX};
use posthaste_engine::url_group::{Edit, EndpointRef};
use posthaste_store::{EventFilter, PageRequest};
use posthaste_wire::publish::PublishLimits;
use std::net::IpAddr;

pub use super::workflow::fuzzing as workflow;

/// The bounds that a publish has to keep by default.
pub const LIMITS: PublishLimits = PUBLISH_LIMITS;
/// Longest name of an endpoint.
pub const ENDPOINT_NAME_BYTES_MAX: usize = NAME_BYTES_MAX;
/// Most entries on a page of [`filters`].
pub const PAGE_MAX: usize = LOG_PAGE_MAX;

/// One item of a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BatchItem {
    /// Where it goes.
    pub destination: Option<String>,
    /// Names and values, one entry per line.
    pub headers: Vec<(String, String)>,
    /// What to send.
    pub body: String,
    /// Where it waits.
    pub queue: Option<String>,
}

/// The body of `POST /v2/batch`.
pub fn batch(bytes: &[u8]) -> Result<Vec<BatchItem>, String> {
    let read = |text: &str| {
        let mut item = batch::read_item(text)?;
        let body = item.take_any_body();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let headers = item.lines().into_iter().map(|(name, value)| (name.to_owned(), text(value))).collect();
        Ok(BatchItem { destination: item.destination, headers, body: text(&body), queue: item.queue })
    };
    let items = batch::split(bytes).and_then(|items| items.into_iter().map(|item| read(item.get())).collect());
    items.map_err(ApiError::into_message)
}

/// What a body says about a URL group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UrlGroupBody {
    /// Endpoints, each a URL and a name; neither is checked.
    pub endpoints: Result<Option<Vec<EndpointRef>>, String>,
    /// The same, to be removed.
    pub removal: Result<Option<Edit>, String>,
    /// Headers of every publish to it.
    pub headers: Result<Vec<(String, String)>, String>,
}

/// The body of a request to `/v2/topics`.
pub fn url_group(bytes: &[u8]) -> Result<UrlGroupBody, String> {
    let object = url_groups::object(bytes).map_err(ApiError::into_message)?;
    let endpoints = || url_groups::endpoints(&object).map_err(ApiError::into_message);
    let removal = |items: Option<Vec<_>>| items.map(url_groups::removal).transpose().map_err(ApiError::into_message);
    let named = |item: url_groups::Item| EndpointRef { url: item.url, name: item.name };
    Ok(UrlGroupBody {
        removal: endpoints().and_then(removal),
        endpoints: endpoints().map(|items| items.map(|items| items.into_iter().map(named).collect())),
        headers: url_groups::default_headers(&object).map_err(ApiError::into_message),
    })
}

/// The query and the body of a request for log lines.
pub fn filters(query: Option<&str>, body: &[u8]) -> Result<(EventFilter, PageRequest), String> {
    let params = Params::from_query_and_body(query, body).map_err(ApiError::into_message)?;
    let both = params.event_filter().and_then(|filter| Ok((filter, params.page(PAGE_MAX, PAGE_MAX)?)));
    both.map_err(ApiError::into_message)
}

/// Who publishes, by the headers of trusted proxies.
pub fn caller(peer: IpAddr, headers: &HeaderMap, trusted: &[IpNet]) -> IpAddr {
    caller::behind_proxies(peer, headers, trusted)
}
