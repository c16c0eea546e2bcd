//! `GET /v2/dlq/causes`: what dead letters died of, those of one cause together.

use super::auth::Reader;
use super::dlq::DLQ_PARAMS;
use super::error::ApiError;
use super::params::Params;
use super::shape::kept_body;
use crate::app::App;
use axum::Json;
use axum::extract::{Request, State};
use posthaste_api_types::cause::{self as types, Sample};
use posthaste_engine::cause::{Cause, CauseKind};
use posthaste_engine::event::DeadLetter;
use posthaste_engine::limits::{CAUSES_BYTES_MAX, CAUSES_LISTED_MAX, CAUSES_LOOK_MAX, PAGE_BYTES_MAX};
use posthaste_store::{Filter, Order, PageRequest, Store, StoreError};
use posthaste_wire::id::{DlqId, TenantId};
use posthaste_wire::time::Timestamp;
use std::cmp::Reverse;
use std::collections::HashMap;
use std::ops::ControlFlow;
use std::sync::Arc;

/// Dead letters that one read of the store looks at; then others have their turn.
const PIECE: usize = 1_000;
/// Characters of a sample's text; the rest is cut.
const SAMPLE_CHARS_MAX: usize = 500;

/// Parameters of lists that mean nothing where there are no pages.
const PAGE_PARAMS: [&str; 4] = ["cursor", "count", "order", "trimBody"];

/// Dead letters of one cause.
struct Group {
    count: u64,
    first_seen: Timestamp,
    last_seen: Timestamp,
    /// The newest.
    sample: DlqId,
    sample_text: String,
}

/// What was found.
#[derive(Default)]
struct Causes {
    groups: HashMap<Cause, Group>,
    /// Dead letters that were looked at.
    looked: usize,
    /// Bytes of their answers.
    bytes: usize,
    /// Others were not looked at.
    more: bool,
    /// The last one that was looked at.
    last: Option<DlqId>,
}

pub(super) async fn list(
    Reader { tenant, .. }: Reader,
    State(app): State<Arc<App>>,
    request: Request,
) -> Result<Json<types::Causes>, ApiError> {
    let params = Params::from_query(request.uri().query());
    let known: Vec<&str> = DLQ_PARAMS.into_iter().filter(|name| !PAGE_PARAMS.contains(name)).collect();
    params.only(&known)?;
    let filter = params.filter()?;
    let turn = app.allowances.causes.wait(tenant).await;
    let _turn = turn.ok_or_else(|| ApiError::too_many("another request for causes is in progress; try again"))?;
    let (filter, mut causes) = (Arc::new(filter), Causes::default());
    loop {
        let filter = filter.clone();
        let is_last;
        (causes, is_last) = app.read(tenant, move |store| causes.look(store, tenant, &filter)).await?;
        if is_last {
            return Ok(Json(causes.shape()));
        }
    }
}

impl Causes {
    /// Looks at the next dead letters, newest first; says whether that were the last ones.
    fn look(mut self, store: &dyn Store, tenant: TenantId, filter: &Filter) -> Result<(Causes, bool), StoreError> {
        let (looked_max, bytes_max) = (self.looked + PIECE, self.bytes + PAGE_BYTES_MAX);
        let mut is_last = true;
        let page = PageRequest::new(self.last, PIECE, Order::LatestFirst);
        store.visit_dead_letters(tenant, filter, &page, &mut |letter, message| {
            if self.looked >= CAUSES_LOOK_MAX || self.bytes > CAUSES_BYTES_MAX {
                self.more = true;
                return ControlFlow::Break(());
            }
            if self.looked == looked_max || self.bytes > bytes_max {
                is_last = false;
                return ControlFlow::Break(());
            }
            self.looked += 1;
            self.bytes += letter.body_bytes();
            self.last = Some(letter.dlq_id);
            if filter.matches_dead_letter(letter, message) {
                self.add(Cause::of(&message.spec.url, letter), letter);
            }
            ControlFlow::Continue(())
        })?;
        Ok((self, is_last))
    }

    fn add(&mut self, cause: Cause, letter: &DeadLetter) {
        let at = letter.dlq_id.at;
        let group = self.groups.entry(cause).or_insert_with(|| Group {
            count: 0,
            first_seen: at,
            last_seen: at,
            sample: letter.dlq_id,
            sample_text: sample_text(letter),
        });
        group.count += 1;
        group.first_seen = group.first_seen.min(at);
        group.last_seen = group.last_seen.max(at);
    }

    /// The largest first.
    fn shape(self) -> types::Causes {
        let mut groups: Vec<(Cause, Group)> = self.groups.into_iter().collect();
        groups.sort_unstable_by(|(cause, group), (other_cause, other)| {
            let rank = |group: &Group| (Reverse(group.count), Reverse(group.last_seen));
            rank(group).cmp(&rank(other)).then_with(|| cause.cmp(other_cause))
        });
        let left_out = groups.len().saturating_sub(CAUSES_LISTED_MAX) as u64;
        groups.truncate(CAUSES_LISTED_MAX);
        let causes = groups.into_iter().map(|(cause, group)| shape(cause, group)).collect();
        types::Causes { causes, left_out, looked: self.looked as u64, more: self.more }
    }
}

fn shape(cause: Cause, group: Group) -> types::Cause {
    let (response_status, error_class) = match cause.kind {
        CauseKind::Status(status) => (status, None),
        CauseKind::Error(kind) => (0, Some(kind.to_owned())),
    };
    types::Cause {
        cause: cause.id().to_string(),
        destination: cause.destination,
        text: cause.text,
        count: group.count,
        first_seen: group.first_seen,
        last_seen: group.last_seen,
        sample: Sample { dlq_id: group.sample.to_string(), text: group.sample_text },
        response_status,
        error_class,
    }
}

/// What was answered, or why there was no answer, as it was.
fn sample_text(letter: &DeadLetter) -> String {
    let text = match &letter.response {
        Some(response) => {
            let body = kept_body(response);
            // Enough for that many characters, whatever they are.
            String::from_utf8_lossy(&body[..body.len().min(4 * SAMPLE_CHARS_MAX)])
        }
        None => letter.error.as_deref().unwrap_or_default().into(),
    };
    text.chars().take(SAMPLE_CHARS_MAX).collect()
}
