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
    /// An owner looks for the rows of a cancel before what it has decided is committed.
    CancelWithoutCommit,
    /// A restarted owner begins to count positions anew.
    PositionsForgotten,
    /// A restarted owner does not know the queues.
    QueuesNotRestored,
    /// An owner decides with the time that it was before a commit.
    StaleClock,
}

impl Bug {
    /// All of them.
    pub const ALL: [Bug; 15] = [
        Bug::EffectsBeforeCommit,
        Bug::AnswerBeforeSync,
        Bug::AnswerAfterFailure,
        Bug::NoFencing,
        Bug::LeaseGrantedTwice,
        Bug::UnknownMeansFailed,
        Bug::TornBatch,
        Bug::SyncLost,
        Bug::OutcomeTakenTwice,
        Bug::LoadBeforeCommit,
        Bug::FiringInTwoCommits,
        Bug::CancelWithoutCommit,
        Bug::PositionsForgotten,
        Bug::QueuesNotRestored,
        Bug::StaleClock,
    ];
}
