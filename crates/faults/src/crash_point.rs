//! Named places where a test can kill the process, and bugs that a test can plant.
//!
//! Both exist only in builds with debug assertions or with the feature `crash-points`. In a release build
//! [`crash_point`] is empty, [`is_planted`] is `false`, and no environment variable is read. The torture
//! (`crates/server/tests/crash`) kills the process at every place of [`ALL`], and proves that it finds every bug of
//! [`PLANTS`].

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// Where the process dies: `name:n` stands for the n-th time it passes that place.
pub const CRASH_AT: &str = "POSTHASTE_CRASH_AT";
/// Where the process panics: the same form, with a place of [`ALL`] or of [`PANIC_POINTS`].
pub const PANIC_AT: &str = "POSTHASTE_PANIC_AT";
/// The planted bug: one of [`PLANTS`].
pub const PLANT: &str = "POSTHASTE_PLANT";

/// Whether this build has crash points.
pub const ENABLED: bool = cfg!(any(debug_assertions, feature = "crash-points"));

/// Replies before the commit, so a kill loses acknowledged writes.
pub const ANSWER_BEFORE_COMMIT: &str = "answer_before_commit";
/// Replies after the commit but before the sync: a kill loses nothing, a power cut does.
pub const ANSWER_BEFORE_SYNC: &str = "answer_before_sync";
/// Sends steps again whose results are stored, so they are executed again after a kill.
pub const SEND_DONE_STEPS: &str = "send_done_steps";
/// The bugs that can be planted.
pub const PLANTS: [&str; 3] = [ANSWER_BEFORE_COMMIT, ANSWER_BEFORE_SYNC, SEND_DONE_STEPS];
/// Not a bug, but planted in the same way: the server does work at once that it normally does after minutes
/// (retention).
pub const HASTE: &str = "haste";

/// Every crash point. Names that begin with `start_` or `stop_` are passed once per process. `bulk_` belongs to bulk
/// actions, `schedule` to schedules that fire, `run_` to workflow runs, and `retention_` to the removal of old history.
pub const ALL: [&str; 60] = [
    "start_locked",
    "start_file_made",
    "start_schema_ready",
    "start_journal_found",
    "start_journal_applied",
    "start_journal_removed",
    "start_leased",
    "start_restored",
    "start_serving",
    "publish_accepted",
    "before_commit",
    "journal_before_append",
    "journal_appended",
    "journal_synced",
    "journal_next_segment",
    "journal_before_apply",
    "journal_applied",
    "journal_flushed",
    "journal_released",
    "journal_before_checkpoint",
    "journal_checkpointed",
    "sqlite_before_commit",
    "sqlite_after_commit",
    "after_commit",
    "between_answers",
    "after_answer",
    "after_start",
    "attempt_started",
    "attempt_answered",
    "outcome_arrived",
    "outcome_decided",
    "outcome_committed",
    "before_flush",
    "after_flush",
    "page_loaded",
    "cancel_decided",
    "queue_changed",
    "run_started",
    "run_appended",
    "run_waits",
    "run_heard",
    "run_outcome",
    "run_nothing_sent",
    "run_ended",
    "run_cancelled",
    "bulk_piece_done",
    "bulk_progress_stored",
    "schedule_fired",
    "schedules_committed",
    "before_retain",
    "after_retain",
    "retention_in_transaction",
    "stop_begun",
    "stop_drained",
    "stop_attempts_ended",
    "stop_journal_settled",
    "stop_journal_removed",
    "stop_before_checkpoint",
    "stop_after_checkpoint",
    "stop_done",
];

/// Places where a test can only make the process panic: in a request, in a query on a blocking thread, and in an
/// attempt.
pub const PANIC_POINTS: [&str; 3] = ["request", "query", "attempt"];

/// The place where this process dies or panics.
struct Armed {
    name: String,
    /// Remaining passes, including this one.
    left: AtomicU64,
}

impl Armed {
    /// Whether this is the armed pass of the armed place.
    fn is_due(&self, name: &str) -> bool {
        self.name == name && self.left.fetch_sub(1, Ordering::Relaxed) == 1
    }
}

static ARMED: OnceLock<Option<Armed>> = OnceLock::new();
static PANICS: OnceLock<Option<Armed>> = OnceLock::new();
static PLANTED: OnceLock<Option<String>> = OnceLock::new();

/// Kills the process here if a test asked for it, without any cleanup.
#[inline]
pub fn crash_point(name: &'static str) {
    if ENABLED {
        debug_assert!(ALL.contains(&name), "{name} is not in crash_point::ALL");
        let armed = ARMED.get_or_init(|| std::env::var(CRASH_AT).ok().map(|text| parse(CRASH_AT, &text, &ALL)));
        if armed.as_ref().is_some_and(|armed| armed.is_due(name)) {
            die();
        }
        panic_point(name);
    }
}

/// Panics here if a test asked for it.
#[inline]
pub fn panic_point(name: &'static str) {
    if ENABLED {
        let places = || [&ALL[..], &PANIC_POINTS].concat();
        let armed = PANICS.get_or_init(|| std::env::var(PANIC_AT).ok().map(|text| parse(PANIC_AT, &text, &places())));
        assert!(!armed.as_ref().is_some_and(|armed| armed.is_due(name)), "planted at {name}");
    }
}

/// Whether a test planted this bug.
#[inline]
pub fn is_planted(name: &'static str) -> bool {
    ENABLED && PLANTED.get_or_init(|| std::env::var(PLANT).ok()).as_deref() == Some(name)
}

/// An invalid value stops the process, because a test that names an unknown place would prove nothing.
fn parse(variable: &str, text: &str, places: &[&str]) -> Armed {
    let parts = text.split_once(':').and_then(|(name, n)| Some((name, n.parse().ok().filter(|n| *n > 0)?)));
    match parts {
        Some((name, left)) if places.contains(&name) => Armed { name: name.to_owned(), left: AtomicU64::new(left) },
        _ => panic!("{variable}={text} is not NAME:N with N > 0 and NAME one of {places:?}"),
    }
}

/// Sends SIGKILL to this process: no handler and no destructor runs after it.
fn die() -> ! {
    // Cannot fail: a process may always signal itself.
    let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
    std::process::abort()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_known_place_and_a_number_are_accepted() {
        let armed = parse(CRASH_AT, "after_commit:3", &ALL);
        assert_eq!((armed.name.as_str(), armed.left.into_inner()), ("after_commit", 3));
        for wrong in ["after_commit", "after_commit:0", "after_commit:x", "nowhere:1", ""] {
            assert!(std::panic::catch_unwind(|| parse(CRASH_AT, wrong, &ALL)).is_err(), "{wrong}");
        }
    }

    #[test]
    fn names_are_unique() {
        let unique: std::collections::HashSet<&str> = ALL.into_iter().collect();
        assert_eq!(unique.len(), ALL.len());
    }
}
