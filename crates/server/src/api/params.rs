//! Query strings and JSON bodies that name messages, dead letters or log lines.
//!
//! A value may be repeated or hold a comma list; OR within a name, AND between names. An empty value is
//! refused: it must never fall through to "everything".

use super::error::ApiError;
use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use percent_encoding::percent_decode_str;
use posthaste_engine::cause::CauseId;
use posthaste_engine::event::State;
use posthaste_engine::limits::{FILTER_VALUES_MAX, LIST_PAGE_MAX, PAGE_SKIPS_MAX};
use posthaste_store::{EventFilter, Filter, NamePage, Order, PageRequest, Part};
use posthaste_wire::encoding::JsonError;
use posthaste_wire::id::{DlqId, MessageId, Position};
use posthaste_wire::time::Timestamp;
use serde_json::Value;
use std::convert::Infallible;

/// The text of a part of a raw path.
pub(super) fn decoded(raw: &str) -> Result<String, ApiError> {
    let text = percent_decode_str(raw).decode_utf8();
    let text = text.map_err(|_| ApiError::invalid("the path holds percent-encoded text that is not UTF-8"))?;
    Ok(text.into_owned())
}

/// Names and values, decoded, in the order given. The token and `upstash-*` settings are not among them.
#[derive(Clone, Debug, Default)]
pub(super) struct Params(Vec<(String, String)>);

/// Latest time that a date may name, in milliseconds: fits every store.
const DATE_MAX: u64 = i64::MAX as u64;

impl<S: Sync> FromRequestParts<S> for Params {
    type Rejection = Infallible;

    /// Those of the query.
    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Params, Infallible> {
        Ok(Params::from_query(parts.uri.query()))
    }
}

impl Params {
    /// From a raw query string.
    pub(super) fn from_query(query: Option<&str>) -> Params {
        let pairs = url::form_urlencoded::parse(query.unwrap_or_default().as_bytes());
        let is_setting = |name: &str| name.get(..8).is_some_and(|start| start.eq_ignore_ascii_case("upstash-"));
        let is_token = |name: &str| name.eq_ignore_ascii_case("qstash_token");
        let is_filter = |(name, _): &(String, String)| !is_token(name) && !is_setting(name);
        Params(pairs.into_owned().filter(is_filter).collect())
    }

    /// From a query string and, for older SDKs, a JSON object in the body; the query wins.
    pub(super) fn from_query_and_body(query: Option<&str>, body: &[u8]) -> Result<Params, ApiError> {
        let mut params = Params::from_query(query);
        if body.iter().all(u8::is_ascii_whitespace) {
            return Ok(params);
        }
        let object: serde_json::Map<String, Value> = serde_json::from_slice(body).map_err(|error| {
            ApiError::invalid(format!("the body is not a JSON object of filters: {}", JsonError::from(error)))
        })?;
        // Some SDKs send null for what was not given; but if that is all, something was forgotten.
        if params.0.is_empty() && !object.is_empty() && object.values().all(Value::is_null) {
            return Err(ApiError::invalid("every filter is null; omit them to select all"));
        }
        for (name, value) in object {
            if params.has(&name) {
                continue;
            }
            let values = match value {
                Value::Array(values) if values.is_empty() => {
                    return Err(ApiError::invalid(format!("{name} is an empty list; omit it to select all")));
                }
                Value::Array(values) => values,
                Value::Null => continue,
                value => vec![value],
            };
            for value in values {
                params.0.push((name.clone(), scalar_text(&name, value)?));
            }
        }
        Ok(params)
    }

    /// All but some names.
    pub(super) fn without(mut self, left_out: &[&str]) -> Params {
        self.0.retain(|(name, _)| !left_out.contains(&name.as_str()));
        self
    }

    /// Refuses names outside of `known`: a misspelt filter must not mean "everything".
    pub(super) fn only(&self, known: &[&str]) -> Result<(), ApiError> {
        match self.0.iter().find(|(name, _)| !known.contains(&name.as_str())) {
            None => Ok(()),
            Some((name, _)) => {
                Err(ApiError::invalid(format!("unknown parameter {name}; accepted are {}", known.join(", "))))
            }
        }
    }

    /// Unknown names mean nothing beside one of `selectors`; without any of these they are refused, but for the `others`: a
    /// misspelt filter must not mean "everything".
    pub(super) fn selected_by(&self, selectors: &[&str], others: &[&str]) -> Result<(), ApiError> {
        match selectors.iter().any(|name| self.has(name)) {
            true => Ok(()),
            false => self.only(&[selectors, others].concat()),
        }
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.0.iter().any(|(other, _)| other == name)
    }

    /// The one value of a name.
    pub(super) fn one(&self, name: &str) -> Result<Option<&str>, ApiError> {
        let mut values = self.0.iter().filter(|(other, _)| other == name).map(|(_, value)| value.as_str());
        let first = values.next();
        match values.next() {
            Some(_) => Err(ApiError::invalid(format!("{name} is given more than once"))),
            None => Ok(first),
        }
    }

    /// All values of a name and its aliases, comma lists taken apart.
    pub(super) fn many(&self, names: &[&str]) -> Result<Vec<String>, ApiError> {
        let mut values = Vec::new();
        for (name, value) in self.0.iter().filter(|(name, _)| names.contains(&name.as_str())) {
            let parts: Vec<&str> = value.split(',').map(str::trim).filter(|part| !part.is_empty()).collect();
            if parts.is_empty() {
                return Err(ApiError::invalid(format!("{name} is empty; omit it to select all")));
            }
            values.extend(parts.into_iter().map(str::to_owned));
        }
        if values.len() > FILTER_VALUES_MAX {
            let text = format!("{} has {} values, at most {FILTER_VALUES_MAX} are accepted", names[0], values.len());
            return Err(ApiError::invalid(text));
        }
        Ok(values)
    }

    pub(super) fn boolean(&self, name: &str) -> Result<bool, ApiError> {
        match self.one(name)? {
            None => Ok(false),
            Some(text) => posthaste_wire::boolean::parse_bool(text)
                .ok_or_else(|| ApiError::invalid(format!("{name} must be true or false"))),
        }
    }

    /// A whole number of at least `min`.
    pub(super) fn number(&self, name: &str, min: i64) -> Result<Option<i64>, ApiError> {
        let Some(text) = self.one(name)? else { return Ok(None) };
        match text.parse::<i64>() {
            Ok(number) if number >= min => Ok(Some(number)),
            _ => Err(ApiError::invalid(format!("{name} must be a whole number of at least {min}"))),
        }
    }

    /// All names and values, for a reader of its own.
    pub(super) fn pairs(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }

    /// What was given, but for some names: each name once, with its values as they were.
    pub(super) fn lists_without(&self, left_out: &[&str]) -> Vec<(String, Vec<String>)> {
        let mut lists: Vec<(String, Vec<String>)> = Vec::new();
        for (name, value) in self.0.iter().filter(|(name, _)| !left_out.contains(&name.as_str())) {
            match lists.iter_mut().find(|(known, _)| known == name) {
                Some((_, values)) => values.push(value.clone()),
                None => lists.push((name.clone(), vec![value.clone()])),
            }
        }
        lists
    }

    /// What [`Params::lists_without`] gave.
    pub(super) fn from_lists(lists: &[(String, Vec<String>)]) -> Params {
        let of_name = |(name, values): &(String, Vec<String>)| -> Vec<(String, String)> {
            values.iter().map(|value| (name.clone(), value.clone())).collect()
        };
        Params(lists.iter().flat_map(of_name).collect())
    }

    /// A time in Unix milliseconds.
    pub(super) fn date(&self, name: &str) -> Result<Option<Timestamp>, ApiError> {
        let Some(text) = self.one(name)? else { return Ok(None) };
        match text.parse::<u64>() {
            Ok(millis) if millis <= DATE_MAX => Ok(Some(Timestamp(millis))),
            _ => Err(ApiError::invalid(format!("{name} must be a time in Unix milliseconds"))),
        }
    }

    /// Which messages are meant.
    pub(super) fn filter(&self) -> Result<Filter, ApiError> {
        let ids = self.many(&["messageIds", "messageId"])?;
        let known: Vec<MessageId> = ids.iter().filter_map(|id| id.parse().ok()).collect();
        let source_ids = self.many(&["sourceMessageId"])?;
        let sources: Vec<MessageId> = source_ids.iter().filter_map(|id| id.parse().ok()).collect();
        let statuses = self.many(&["responseStatus"])?;
        let dlq_ids = self.many(&["dlqIds"])?;
        let known_dlq_ids: Vec<DlqId> = dlq_ids.iter().filter_map(|id| id.parse().ok()).collect();
        let asks_for_nothing = |asked: &[String], is_known: bool| !asked.is_empty() && !is_known;
        Ok(Filter {
            nothing: asks_for_nothing(&ids, !known.is_empty())
                || asks_for_nothing(&source_ids, !sources.is_empty())
                || asks_for_nothing(&dlq_ids, !known_dlq_ids.is_empty()),
            ids: known,
            urls: self.many_or_whole("url")?,
            hosts: self.many(&["host"])?,
            paths: self.many(&["path"])?,
            labels: self.many(&["label"])?,
            caller_ips: self.many(&["callerIp", "callerIP"])?,
            topics: self.many(&["topicName", "urlGroup"])?,
            queues: self.many(&["queueName"])?,
            schedules: self.many(&["scheduleId"])?,
            flow_keys: self.many(&["flowControlKey"])?,
            sources,
            response_statuses: statuses.iter().map(|text| status(text)).collect::<Result<_, _>>()?,
            dlq_ids: known_dlq_ids,
            causes: self.many(&["cause"])?.iter().map(|text| cause(text)).collect::<Result<_, _>>()?,
            from: self.date("fromDate")?,
            to: self.date("toDate")?,
        })
    }

    /// All values of a name that may hold commas themselves: comma lists taken apart, and whole.
    pub(super) fn many_or_whole(&self, name: &str) -> Result<Vec<String>, ApiError> {
        let mut values = self.many(&[name])?;
        let whole = self.0.iter().filter(|(other, value)| other == name && value.contains(','));
        values.extend(whole.map(|(_, value)| value.clone()));
        Ok(values)
    }

    /// All URLs of a name. A URL may hold commas itself, so a comma separates two only where what follows begins like one;
    /// then the whole is meant, too.
    pub(super) fn urls(&self, name: &str) -> Result<Vec<String>, ApiError> {
        let mut urls: Vec<String> = Vec::new();
        for (_, value) in self.0.iter().filter(|(other, _)| other == name) {
            let first = urls.len();
            for part in value.split(',').map(str::trim).filter(|part| !part.is_empty()) {
                let is_url = part.starts_with("http://") || part.starts_with("https://");
                match urls.get_mut(first..).and_then(<[String]>::last_mut).filter(|_| !is_url) {
                    Some(url) => {
                        url.push(',');
                        url.push_str(part);
                    }
                    None => urls.push(part.to_owned()),
                }
            }
            match urls.len() - first {
                0 => return Err(ApiError::invalid(format!("{name} is empty; omit it to select all"))),
                1 => urls[first].clone_from(value),
                _ => urls.push(value.clone()),
            }
        }
        if urls.len() > FILTER_VALUES_MAX {
            let text = format!("{name} has {} values, at most {FILTER_VALUES_MAX} are accepted", urls.len());
            return Err(ApiError::invalid(text));
        }
        Ok(urls)
    }

    /// Which log lines are meant.
    pub(super) fn event_filter(&self) -> Result<EventFilter, ApiError> {
        let mut states = Vec::new();
        for name in self.many(&["state"])? {
            match name.to_ascii_uppercase().as_str() {
                "IN_PROGRESS" => states.extend([State::Active, State::Retry, State::Error]),
                "CANCELLED" => states.push(State::Canceled),
                upper => match State::ALL.into_iter().find(|state| state.name() == upper) {
                    Some(state) => states.push(state),
                    None => {
                        let names: Vec<_> = State::ALL.iter().map(|state| state.name()).collect();
                        let text =
                            format!("state {name} does not exist; accepted are {}, IN_PROGRESS", names.join(", "));
                        return Err(ApiError::invalid(text));
                    }
                },
            }
        }
        Ok(EventFilter { message: self.filter()?, states })
    }

    /// Which dead letters are meant by id; `None` when no id was given.
    pub(super) fn dlq_ids(&self) -> Result<Option<Vec<Result<DlqId, String>>>, ApiError> {
        if !self.has("dlqIds") {
            return Ok(None);
        }
        let ids = self.many(&["dlqIds"])?;
        Ok(Some(ids.into_iter().map(|text| text.parse().map_err(|_| text)).collect()))
    }

    /// Which page is meant.
    pub(super) fn page(&self, default: usize, max: usize) -> Result<PageRequest, ApiError> {
        let count = match self.number("count", 1)? {
            None => default,
            Some(count) => usize::try_from(count).unwrap_or(max).min(max),
        };
        let order = match self.one("order")? {
            None | Some("latestFirst") => Order::LatestFirst,
            Some("earliestFirst") => Order::EarliestFirst,
            Some(_) => return Err(ApiError::invalid("order must be latestFirst or earliestFirst")),
        };
        let skips_max = match self.number("scanLimit", 1)? {
            None => PAGE_SKIPS_MAX,
            Some(lines) => usize::try_from(lines).unwrap_or(PAGE_SKIPS_MAX).min(PAGE_SKIPS_MAX),
        };
        Ok(PageRequest { cursor: self.cursor(order)?, count, order, skips_max, part: self.part()? })
    }

    /// Which page of a list of names is meant.
    pub(super) fn name_page(&self) -> Result<NamePage, ApiError> {
        let count = match self.number("count", 1)? {
            None => LIST_PAGE_MAX,
            Some(count) => usize::try_from(count).unwrap_or(LIST_PAGE_MAX).min(LIST_PAGE_MAX),
        };
        let after = self.one("cursor")?.filter(|name| !name.is_empty()).map(str::to_owned);
        Ok(NamePage { after, count, part: self.part()? })
    }

    /// Whether bodies are wanted at all.
    fn part(&self) -> Result<Part, ApiError> {
        Ok(if self.trim_body()? == Some(0) { Part::Head } else { Part::Whole })
    }

    /// Where a page starts. The documentation of the JavaScript SDK starts with a plain time.
    fn cursor(&self, order: Order) -> Result<Option<Position>, ApiError> {
        let Some(text) = self.one("cursor")?.filter(|text| !text.is_empty()) else { return Ok(None) };
        let of_time = |millis| match order {
            Order::LatestFirst => Position { at: Timestamp(millis), n: Position::MAX.n },
            Order::EarliestFirst => Position { at: Timestamp(millis), n: 0 },
        };
        let time = text.parse::<u64>().ok().filter(|millis| *millis <= DATE_MAX).map(of_time);
        let position = time.or_else(|| text.parse().ok());
        position.map(Some).ok_or_else(|| ApiError::invalid("cursor is invalid; use the cursor of the previous page"))
    }

    /// How much of each body is wanted; `None` means all, zero or less means none.
    pub(super) fn trim_body(&self) -> Result<Option<usize>, ApiError> {
        let number = self.number("trimBody", -1)?;
        Ok(number.map(|number| usize::try_from(number).unwrap_or(0)))
    }
}

fn status(text: &str) -> Result<u16, ApiError> {
    text.parse().map_err(|_| ApiError::invalid(format!("responseStatus {text} is not an HTTP status")))
}

fn cause(text: &str) -> Result<CauseId, ApiError> {
    text.parse().map_err(|_| ApiError::invalid(format!("cause {text} is invalid; use one from /v2/dlq/causes")))
}

fn scalar_text(name: &str, value: Value) -> Result<String, ApiError> {
    match value {
        Value::String(text) => Ok(text),
        Value::Number(number) => Ok(number.to_string()),
        Value::Bool(flag) => Ok(flag.to_string()),
        _ => Err(ApiError::invalid(format!("{name} must be text, a number or a list of them"))),
    }
}
