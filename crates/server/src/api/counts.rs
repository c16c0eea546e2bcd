//! How many messages, dead letters or runs a bulk action would change, for the questions that the console asks first.
//!
//! The queries are those of the bulk actions. Counting changes nothing.

use super::error::ApiError;
use super::params::Params;
use super::workflow::runs::cancel_of;
use crate::app::App;
use crate::bulk::{Range, count_dead_letters, count_matching, dead_letters_of_now};
use posthaste_engine::limits::CONSOLE_COUNT_MAX;
use posthaste_wire::id::{Seq, TenantId};
use std::sync::Arc;

/// How many there are, up to [`CONSOLE_COUNT_MAX`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Counted {
    pub(crate) count: usize,
    /// There are more than `count`.
    pub(crate) has_more: bool,
}

impl Counted {
    /// `found` is counted up to one more than the bound.
    fn up_to_bound(found: usize) -> Counted {
        Counted { count: found.min(CONSOLE_COUNT_MAX), has_more: found > CONSOLE_COUNT_MAX }
    }
}

/// What to count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Countable {
    /// Messages that `DELETE /v2/messages` would cancel.
    Messages,
    /// Dead letters that `DELETE /v2/dlq` would delete.
    DeadLetters,
    /// Runs that `DELETE /v2/workflows/runs` would cancel.
    Runs,
}

/// Counts what a query of the API means; the text says why it cannot.
pub(crate) async fn count(app: &Arc<App>, tenant: TenantId, what: Countable, query: &str) -> Result<Counted, String> {
    counted(app, tenant, what, query).await.map_err(ApiError::into_message)
}

/// A tenant counts one thing at a time.
async fn counted(app: &Arc<App>, tenant: TenantId, what: Countable, query: &str) -> Result<Counted, ApiError> {
    let turn = app.allowances.causes.wait(tenant).await;
    let _turn = turn.ok_or_else(|| ApiError::too_many("another count of this tenant is running; try again"))?;
    let params = Params::from_query(Some(query));
    let max = CONSOLE_COUNT_MAX + 1;
    let found = match what {
        Countable::Messages => {
            let until = app.look_up(|store| store.last_seq()).await?;
            let range = Range { tenant, after: Seq::MIN, until };
            count_matching(app, &Arc::new(params.filter()?), range, max).await?
        }
        Countable::DeadLetters => {
            let range = dead_letters_of_now(app, tenant).await?;
            count_dead_letters(app, tenant, &Arc::new(params.filter()?), range, max).await?
        }
        Countable::Runs => {
            let (filter, _) = cancel_of(&params)?;
            app.read(tenant, move |store| store.match_runs(tenant, &filter, Seq::MIN, max)).await?.len()
        }
    };
    Ok(Counted::up_to_bound(found))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_count_is_exact_up_to_the_bound() {
        for (found, count, has_more) in [
            (0, 0, false),
            (CONSOLE_COUNT_MAX, CONSOLE_COUNT_MAX, false),
            (CONSOLE_COUNT_MAX + 1, CONSOLE_COUNT_MAX, true),
        ] {
            assert_eq!(Counted::up_to_bound(found), Counted { count, has_more }, "{found}");
        }
    }
}
