//! URL groups: a name for several destinations, and its changes.
//!
//! Pure: a store loads a group, applies an [`Edit`] and saves the result, in one transaction.

use posthaste_wire::time::Timestamp;
use serde::{Deserialize, Serialize};

/// A name for several destinations. A group without endpoints does not exist.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UrlGroup {
    /// Its name, unique within the tenant.
    pub name: String,
    /// When its first endpoint was added.
    pub created_at: Timestamp,
    /// When it was last changed.
    pub updated_at: Timestamp,
    /// Its destinations, in the order of their addition.
    pub endpoints: Vec<Endpoint>,
    /// Default headers of every publish to the group, one entry per header line.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub headers: Vec<(String, String)>,
}

/// One destination of a group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Endpoint {
    /// The destination.
    pub url: String,
    /// A name for people, unique within the group.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
}

/// Identifies an endpoint: by its name, by its URL, or by both.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndpointRef {
    /// The destination.
    pub url: Option<String>,
    /// The name.
    pub name: Option<String>,
}

/// A change of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Edit {
    /// Adds endpoints, or changes those with the same name or URL. Creates the group if needed.
    Add(Vec<Endpoint>),
    /// Removes endpoints, and the group with the last one.
    Remove(Vec<EndpointRef>),
    /// Replaces the default headers.
    SetHeaders(Vec<(String, String)>),
    /// Removes the group.
    Delete,
}

/// Why a group was not changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// There is no such group.
    Absent,
    /// It would have more endpoints than `limits::GROUP_ENDPOINTS_MAX`.
    TooMany,
}

impl UrlGroup {
    /// The group after an edit; `None` if it was removed.
    pub fn edited(
        group: Option<UrlGroup>,
        name: &str,
        edit: &Edit,
        endpoints_max: usize,
        now: Timestamp,
    ) -> Result<Option<UrlGroup>, Refused> {
        let mut group = match (group, edit) {
            (Some(group), _) => UrlGroup { updated_at: now, ..group },
            (None, Edit::Add(_)) => UrlGroup {
                name: name.to_owned(),
                created_at: now,
                updated_at: now,
                endpoints: Vec::new(),
                headers: Vec::new(),
            },
            (None, Edit::Delete) => return Ok(None),
            (None, Edit::Remove(_) | Edit::SetHeaders(_)) => return Err(Refused::Absent),
        };
        match edit {
            Edit::Add(endpoints) => {
                endpoints.iter().for_each(|endpoint| group.put(endpoint));
                if group.endpoints.len() > endpoints_max {
                    return Err(Refused::TooMany);
                }
            }
            Edit::Remove(refs) => group.endpoints.retain(|endpoint| !refs.iter().any(|wanted| wanted.means(endpoint))),
            Edit::SetHeaders(headers) => group.headers.clone_from(headers),
            Edit::Delete => return Ok(None),
        }
        Ok((!group.endpoints.is_empty()).then_some(group))
    }

    /// Adds an endpoint; one with the same name gets the new URL, one with the same URL the new name.
    fn put(&mut self, new: &Endpoint) {
        let same_name = |endpoint: &Endpoint| new.name.is_some() && endpoint.name == new.name;
        let place = self.endpoints.iter().position(same_name);
        let place = place.or_else(|| self.endpoints.iter().position(|endpoint| endpoint.url == new.url));
        match place {
            None => self.endpoints.push(new.clone()),
            Some(place) => {
                let name = new.name.clone().or_else(|| self.endpoints[place].name.take());
                self.endpoints[place] = Endpoint { url: new.url.clone(), name };
                // If the URL also has an entry under another name, it is the same destination and stays only once.
                let mut index = 0;
                self.endpoints.retain(|endpoint| {
                    index += 1;
                    index - 1 == place || endpoint.url != new.url
                });
            }
        }
    }
}

impl EndpointRef {
    fn means(&self, endpoint: &Endpoint) -> bool {
        let same_url = self.url.as_ref().is_none_or(|url| *url == endpoint.url);
        let same_name = self.name.as_ref().is_none_or(|name| Some(name) == endpoint.name.as_ref());
        (self.url.is_some() || self.name.is_some()) && same_url && same_name
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp(1_000);

    fn endpoint(url: &str, name: Option<&str>) -> Endpoint {
        Endpoint { url: url.to_owned(), name: name.map(str::to_owned) }
    }

    fn group(endpoints: &[Endpoint]) -> UrlGroup {
        let edit = Edit::Add(endpoints.to_vec());
        UrlGroup::edited(None, "g", &edit, 100, Timestamp(1)).unwrap().unwrap()
    }

    #[test]
    fn endpoints_are_upserted_by_name_then_by_url_and_keep_their_place() {
        let before = [endpoint("a", Some("one")), endpoint("b", None), endpoint("c", Some("three"))];
        let cases = [
            (endpoint("d", None), vec![before[0].clone(), before[1].clone(), before[2].clone(), endpoint("d", None)]),
            (endpoint("x", Some("one")), vec![endpoint("x", Some("one")), before[1].clone(), before[2].clone()]),
            (endpoint("b", Some("two")), vec![before[0].clone(), endpoint("b", Some("two")), before[2].clone()]),
            (endpoint("a", None), before.to_vec()),
            (endpoint("b", Some("one")), vec![endpoint("b", Some("one")), before[2].clone()]),
        ];
        for (added, expected) in cases {
            let edit = Edit::Add(vec![added.clone()]);
            let after = UrlGroup::edited(Some(group(&before)), "g", &edit, 100, NOW).unwrap().unwrap();
            assert_eq!(after.endpoints, expected, "{added:?}");
            assert_eq!((after.created_at, after.updated_at), (Timestamp(1), NOW));
        }
    }

    #[test]
    fn a_group_goes_with_its_last_endpoint() {
        let two = group(&[endpoint("a", Some("one")), endpoint("b", None)]);
        let remove = |url: Option<&str>, name: Option<&str>| {
            let wanted = EndpointRef { url: url.map(str::to_owned), name: name.map(str::to_owned) };
            UrlGroup::edited(Some(two.clone()), "g", &Edit::Remove(vec![wanted]), 100, NOW).unwrap()
        };
        assert_eq!(remove(None, Some("one")).unwrap().endpoints, [endpoint("b", None)]);
        assert_eq!(remove(Some("b"), None).unwrap().endpoints, [endpoint("a", Some("one"))]);
        assert_eq!(remove(Some("b"), Some("one")).unwrap().endpoints.len(), 2, "both must fit");
        let one = group(&[endpoint("a", None)]);
        let all = Edit::Remove(vec![EndpointRef { url: Some("a".into()), name: None }]);
        assert_eq!(UrlGroup::edited(Some(one), "g", &all, 100, NOW), Ok(None));
    }

    #[test]
    fn what_is_not_there_cannot_be_changed_but_can_be_deleted() {
        assert_eq!(UrlGroup::edited(None, "g", &Edit::Delete, 100, NOW), Ok(None));
        assert_eq!(UrlGroup::edited(None, "g", &Edit::Remove(Vec::new()), 100, NOW), Err(Refused::Absent));
        assert_eq!(UrlGroup::edited(None, "g", &Edit::SetHeaders(Vec::new()), 100, NOW), Err(Refused::Absent));
        let many = Edit::Add(vec![endpoint("a", None), endpoint("b", None)]);
        assert_eq!(UrlGroup::edited(None, "g", &many, 1, NOW), Err(Refused::TooMany));
    }
}
