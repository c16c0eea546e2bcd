//! Bugs that can be planted, to prove that the simulation finds them.
//!
//! Without the feature `planted-bugs` nothing can be planted and every check compiles to `false`.

/// A bug of the engine, named by its effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    /// A queue gives a free slot to the last waiting message.
    QueueTakesTheLast,
    /// A slot is freed before the callbacks of its message have ended.
    SlotFreedBeforeCallbacks,
    /// A paused queue continues.
    PausedQueueStarts,
    /// A rate allows one start too many.
    RateOneTooMany,
    /// After a restart, the starts of a short period are forgotten.
    RateForgottenAtRestart,
    /// After a restart, starts count from their decision instead of from when they happened.
    RateCountsFromDecision,
    /// Nothing is checked again when a rate allows more.
    RateNotWoken,
    /// A key allows one delivery too many in flight.
    ParallelismOneTooMany,
    /// A lane forgets that it spilled messages.
    SpillForgotten,
    /// The first rows of a spilled lane are taken for all of them.
    RefillForgetsRest,
    /// A timer that was evicted for lack of room is not loaded again.
    EvictionForgotten,
    /// A retry resets the retry count.
    RetryCountReset,
    /// A message that was cancelled during an attempt is retried.
    CancelForgottenOnRetry,
    /// A cancel that was recorded before a crash is forgotten after it.
    CancelForgottenAtRestart,
    /// A response that forbids retries is ignored.
    RefusalIgnored,
    /// Duplicate keys are not stored.
    DedupNotRemembered,
    /// Duplicates within one batch are not detected.
    DedupBlindInBatch,
    /// A failure callback is not created.
    FailureCallbackLost,
    /// A dead letter that is published again is not removed.
    ReplayKeepsDeadLetter,
    /// A schedule that has fired keeps its next time.
    ScheduleNotAdvanced,
    /// A schedule catches up with every time it missed.
    ScheduleCatchesUpWithAll,
    /// A schedule that fires has the expression again that it had before it was changed.
    RescheduleForgottenAtFiring,
    /// A schedule that gets another expression keeps its next time.
    RescheduleKeepsTime,
    /// A message of a queue that is delivered now does not wait for its turn.
    DeliverNowSkipsTurn,
    /// A message that is delivered now keeps its old due time in the store.
    DeliverNowNotStored,
    /// A bulk cancel counts what it was asked to cancel, not what it has cancelled.
    BulkCountsAsked,
    /// A publish in pieces is answered after its first piece.
    AnsweredAfterFirstPiece,
    /// A publish in pieces has no turn after its first one.
    PiecesForgotten,
    /// Messages that were due once are not loaded after the clock went back.
    ClockBackStrandsSpilled,
    /// A delayed message of a queue joins it too early.
    DelayedJoinsEarly,
    /// A destination's cap allows one attempt too many in flight.
    OriginOneTooMany,
    /// A cancelled waiting message keeps its turn in the queue.
    CancelLeavesTurn,
    /// Messages after a delayed head of a queue are not checked when the head is cancelled.
    CancelledHeadStrands,
    /// A run that ends leaves its deliveries.
    RunEndLeavesDeliveries,
    /// A step that is published again is appended twice.
    StepAppendedTwice,
    /// After a crash, a step that has a result is executed again.
    DoneStepSentAgain,
    /// An event does not end its wait.
    WaitEndsTwice,
    /// The run that invoked another one is not notified of its end.
    InvokerNotTold,
    /// A failed call has no result.
    FailedCallNotTold,
    /// A resumed run forgets its other branches in progress.
    ResumeForgetsBranches,
    /// Notes that a run no longer needs stay in the store.
    NoteLeftBehind,
    /// A command reads rows of the store before earlier decisions about them are committed.
    TruthNotCommitted,
    /// A command is decided by rows of the store that were read before a commit.
    FactsKeptOverCommit,
}

impl Bug {
    /// All of them.
    pub const ALL: [Bug; 43] = [
        Bug::QueueTakesTheLast,
        Bug::SlotFreedBeforeCallbacks,
        Bug::PausedQueueStarts,
        Bug::RateOneTooMany,
        Bug::RateForgottenAtRestart,
        Bug::RateCountsFromDecision,
        Bug::RateNotWoken,
        Bug::ParallelismOneTooMany,
        Bug::SpillForgotten,
        Bug::RefillForgetsRest,
        Bug::EvictionForgotten,
        Bug::RetryCountReset,
        Bug::CancelForgottenOnRetry,
        Bug::CancelForgottenAtRestart,
        Bug::RefusalIgnored,
        Bug::DedupNotRemembered,
        Bug::DedupBlindInBatch,
        Bug::FailureCallbackLost,
        Bug::ReplayKeepsDeadLetter,
        Bug::ScheduleNotAdvanced,
        Bug::ScheduleCatchesUpWithAll,
        Bug::RescheduleForgottenAtFiring,
        Bug::RescheduleKeepsTime,
        Bug::DeliverNowSkipsTurn,
        Bug::DeliverNowNotStored,
        Bug::BulkCountsAsked,
        Bug::AnsweredAfterFirstPiece,
        Bug::PiecesForgotten,
        Bug::ClockBackStrandsSpilled,
        Bug::DelayedJoinsEarly,
        Bug::OriginOneTooMany,
        Bug::CancelLeavesTurn,
        Bug::CancelledHeadStrands,
        Bug::RunEndLeavesDeliveries,
        Bug::StepAppendedTwice,
        Bug::DoneStepSentAgain,
        Bug::WaitEndsTwice,
        Bug::InvokerNotTold,
        Bug::FailedCallNotTold,
        Bug::ResumeForgetsBranches,
        Bug::NoteLeftBehind,
        Bug::TruthNotCommitted,
        Bug::FactsKeptOverCommit,
    ];
}

#[cfg(feature = "planted-bugs")]
thread_local! {
    static PLANTED: std::cell::Cell<Option<Bug>> = const { std::cell::Cell::new(None) };
}

/// Plants a bug in all decisions of this thread, replacing the previous one.
#[cfg(feature = "planted-bugs")]
pub fn plant(bug: Option<Bug>) {
    PLANTED.set(bug);
}

/// Whether this bug is planted.
#[cfg(feature = "planted-bugs")]
pub fn has(bug: Bug) -> bool {
    PLANTED.get() == Some(bug)
}

/// No bug is ever planted.
#[cfg(not(feature = "planted-bugs"))]
pub const fn has(_bug: Bug) -> bool {
    false
}
