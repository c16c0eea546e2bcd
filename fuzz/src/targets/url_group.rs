//! Bodies about URL groups, and their effect on a group.

use posthaste::api::fuzzing::url_group;
use posthaste_engine::limits::{GROUP_ENDPOINTS_MAX, URL_BYTES_MAX};
use posthaste_engine::url_group::{Edit, Endpoint, EndpointRef, UrlGroup};
use posthaste_wire::destination::{check_url, without_fragment};

pub(crate) fn run(data: &[u8]) {
    let body = match url_group(data) {
        Ok(body) => body,
        Err(refusal) => return super::check_refusal(&refusal),
    };
    let named = match body.endpoints {
        Ok(named) => named.unwrap_or_default(),
        Err(refusal) => return super::check_refusal(&refusal),
    };
    let checked = |EndpointRef { url, name }| {
        let url = url.filter(|url| check_url(url, URL_BYTES_MAX).is_ok())?;
        Some(Endpoint { url: without_fragment(&url).to_owned(), name: name.filter(|name| !name.is_empty()) })
    };
    let added: Vec<Endpoint> = named.into_iter().filter_map(checked).collect();
    let group = UrlGroup::edited(None, "group", &Edit::Add(added.clone()), GROUP_ENDPOINTS_MAX, super::NOW);
    let Ok(Some(group)) = group else { return };
    assert!(group.endpoints.len() <= GROUP_ENDPOINTS_MAX && group.endpoints.len() <= added.len());
    for (index, endpoint) in group.endpoints.iter().enumerate() {
        let twice = group.endpoints[..index].iter().any(|other| other.url == endpoint.url);
        assert!(!twice, "{} is there twice", endpoint.url);
    }
    let again = UrlGroup::edited(Some(group.clone()), "group", &Edit::Add(added), GROUP_ENDPOINTS_MAX, super::NOW);
    assert_eq!(again, Ok(Some(group.clone())), "adding the same again changes nothing");
    let stored = serde_json::to_string(&group).expect("it can be stored");
    assert_eq!(serde_json::from_str::<UrlGroup>(&stored).expect("it was stored"), group);
    if let Ok(Some(removal)) = body.removal {
        let left = UrlGroup::edited(Some(group.clone()), "group", &removal, GROUP_ENDPOINTS_MAX, super::NOW);
        let left = left.ok().flatten().map_or(0, |left| left.endpoints.len());
        assert!(left < group.endpoints.len(), "the body that added endpoints removes some");
    }
}
