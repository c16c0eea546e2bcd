//! Bugs that can be planted on purpose, to prove that the simulation finds them.
//!
//! Without the feature `planted-bugs` nothing can be planted and every check compiles to `false`.

/// A bug of the engine, by what it does wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    /// A queue gives a free slot to the last that waits.
    QueueTakesTheLast,
    /// A slot is free although callbacks of its message have not ended.
    SlotFreedBeforeCallbacks,
    /// A paused queue goes on.
    PausedQueueStarts,
    /// A rate lets one more start.
    RateOneTooMany,
    /// After a restart the starts of a short period are forgotten.
    RateForgottenAtRestart,
    /// After a restart starts count from when they were decided, not from when they happened.
    RateCountsFromDecision,
    /// Nobody looks again when a rate allows more.
    RateNotWoken,
    /// A key lets one more be under way.
    ParallelismOneTooMany,
    /// A lane does not remember that it spilled.
    SpillForgotten,
    /// What was read of a spilled lane is taken for all of it.
    RefillForgetsRest,
    /// A timer that is forgotten for lack of room is not asked for again.
    EvictionForgotten,
    /// A retry begins to count anew.
    RetryCountReset,
    /// A message that was cancelled while under way is retried all the same.
    CancelForgottenOnRetry,
    /// A cancel that was recorded before a crash is forgotten after it.
    CancelForgottenAtRestart,
    /// A receiver that forbids further attempts is not heard.
    RefusalIgnored,
    /// Duplicate keys are not stored.
    DedupNotRemembered,
    /// Duplicates within one batch are not seen.
    DedupBlindInBatch,
    /// A failure callback is not made.
    FailureCallbackLost,
    /// A dead letter that is published again stays.
    ReplayKeepsDeadLetter,
    /// A schedule that has fired keeps its next time.
    ScheduleNotAdvanced,
    /// A schedule catches up with every time it missed.
    ScheduleCatchesUpWithAll,
    /// A schedule that fires has the expression again that it had before it was changed.
    RescheduleForgottenAtFiring,
    /// A schedule that gets another expression keeps its next time.
    RescheduleKeepsTime,
    /// A message of a queue that is to be delivered now does not wait for its turn.
    DeliverNowSkipsTurn,
    /// That a message is due now is not stored.
    DeliverNowNotStored,
    /// A bulk cancel counts what it was asked to cancel, not what it has cancelled.
    BulkCountsAsked,
    /// A publish in pieces is answered after its first piece.
    AnsweredAfterFirstPiece,
    /// A publish in pieces has no turn after its first one.
    PiecesForgotten,
    /// What was due once is not asked for after the clock went back.
    ClockBackStrandsSpilled,
    /// A delayed message of a queue joins it too early.
    DelayedJoinsEarly,
    /// A cap per destination lets one more be under way.
    OriginOneTooMany,
    /// A cancelled message that waits is not taken out of its queue.
    CancelLeavesTurn,
    /// Nobody looks at those who wait behind a delayed head of a queue when that is cancelled.
    CancelledHeadStrands,
    /// A run that ends leaves its deliveries behind.
    RunEndLeavesDeliveries,
    /// A step that is published again is appended again.
    StepAppendedTwice,
    /// After a crash a step is executed again whose result is there.
    DoneStepSentAgain,
    /// An event does not end the wait that it came for.
    WaitEndsTwice,
    /// Nobody hears of the end of a run that he invoked.
    InvokerNotTold,
    /// A call that fails has no result.
    FailedCallNotTold,
    /// A run that goes on where it failed forgets what was under way beside that.
    ResumeForgetsBranches,
    /// What a run needs no more stays in the store.
    NoteLeftBehind,
    /// A command reads rows of the store before earlier decisions about them are committed.
    TruthNotCommitted,
}

impl Bug {
    /// All of them.
    pub const ALL: [Bug; 42] = [
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
    ];
}

#[cfg(feature = "planted-bugs")]
thread_local! {
    static PLANTED: std::cell::Cell<Option<Bug>> = const { std::cell::Cell::new(None) };
}

/// Plants a bug in everything that this thread decides, in the place of the one before.
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
