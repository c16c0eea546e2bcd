//! Bugs of what is around the engine, to prove that the simulation finds them.

/// A bug of an owner or of a store, by what it does wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    /// An owner starts attempts before what led to them is committed.
    EffectsBeforeCommit,
    /// An owner answers publishes that are written, but not on disk.
    AnswerBeforeSync,
    /// An owner answers publishes although the commit has failed.
    AnswerAfterFailure,
    /// The store takes writes of earlier owners.
    NoFencing,
    /// An owner that does not hear from the store takes its lease for renewed.
    RenewalAssumed,
    /// The store grants a lease that somebody has.
    LeaseGrantedTwice,
    /// An owner takes an unknown commit for a failed one and accepts its publishes again.
    UnknownMeansFailed,
    /// The store writes only the first half of a batch when its outcome is unknown.
    TornBatch,
    /// A power cut takes a synced batch with it.
    SyncLost,
    /// An owner takes an outcome twice.
    OutcomeTakenTwice,
    /// An owner loads before what it has decided is committed.
    LoadBeforeCommit,
    /// An owner fires a schedule in two transactions.
    FiringInTwoCommits,
    /// An owner writes a piece of a bulk action and its progress in two transactions.
    BulkInTwoCommits,
    /// A restarted owner begins to count positions anew.
    PositionsForgotten,
    /// A restarted owner does not know the queues.
    QueuesNotRestored,
    /// An owner decides with the time that it was before a commit.
    StaleClock,
    /// An owner writes an entry of a run and its delivery in two transactions.
    EntryInTwoCommits,
    /// An owner forgets a run although what it has decided is not committed.
    RunForgottenBeforeCommit,
    /// An owner looks for those who wait for an event before what it has decided is committed.
    NotifyWithoutCommit,
    /// An owner tells no run of the end of another.
    EndNotPassedOn,
    /// An owner sends steps of runs that have ended meanwhile.
    EndedRunSent,
    /// An owner sends what a run has caused although that is only written.
    RunSentBeforeSync,
    /// An owner forgets to write a note of a run.
    NoteNotWritten,
    /// An owner reads what came with an early event before that is committed.
    EarlyReadWithoutCommit,
    /// An owner forgets to write the bytes of an entry.
    BytesNotWritten,
}

impl Bug {
    /// All of them.
    pub const ALL: [Bug; 25] = [
        Bug::EffectsBeforeCommit,
        Bug::AnswerBeforeSync,
        Bug::AnswerAfterFailure,
        Bug::NoFencing,
        Bug::RenewalAssumed,
        Bug::LeaseGrantedTwice,
        Bug::UnknownMeansFailed,
        Bug::TornBatch,
        Bug::SyncLost,
        Bug::OutcomeTakenTwice,
        Bug::LoadBeforeCommit,
        Bug::FiringInTwoCommits,
        Bug::BulkInTwoCommits,
        Bug::PositionsForgotten,
        Bug::QueuesNotRestored,
        Bug::StaleClock,
        Bug::EntryInTwoCommits,
        Bug::RunForgottenBeforeCommit,
        Bug::NotifyWithoutCommit,
        Bug::EndNotPassedOn,
        Bug::EndedRunSent,
        Bug::RunSentBeforeSync,
        Bug::NoteNotWritten,
        Bug::EarlyReadWithoutCommit,
        Bug::BytesNotWritten,
    ];
}
