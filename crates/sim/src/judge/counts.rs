//! What happened in a run, in numbers.

/// How much happened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Messages that were stored, callbacks and firings included.
    pub created: u64,
    /// Messages that came to their end by a 2xx.
    pub delivered: u64,
    /// Messages that went to the DLQ.
    pub failed: u64,
    /// Messages that were cancelled.
    pub cancelled: u64,
    /// Attempts that reached the network.
    pub attempts: u64,
    /// Messages that tell of others.
    pub callbacks: u64,
    /// Attempts of an owner whose lease was over, and who did not look.
    pub late_attempts: u64,
    /// Messages whose publish was answered.
    pub acknowledged: u64,
    /// Messages that were not made, because there was one with their key.
    pub deduplicated: u64,
    /// Dead letters that were published again.
    pub replayed: u64,
    /// Publishes that were decided and never answered.
    pub unknown: u64,
    /// Messages that were delivered before their time, because somebody asked for that.
    pub due_now: u64,
    /// Pieces of large publishes.
    pub pieces: u64,
    /// Messages and dead letters that bulk actions have dealt with.
    pub bulk_processed: u64,
    /// Bulk actions that were finished.
    pub bulk_finished: u64,
    /// Firings of schedules.
    pub fired: u64,
    /// Schedules that got another expression.
    pub rescheduled: u64,
    /// Owners of the shard, one after the other.
    pub owners: u64,
    /// Commits that were refused because there was a newer owner.
    pub fenced: u64,
    /// Times in which a running owner could not reach the store.
    pub cut_off: u64,
    /// Owners that were replaced meanwhile, and did not know.
    pub replaced: u64,
    /// Their commits that reached the store late, behind one of the next owner.
    pub late_commits: u64,
    /// Power cuts.
    pub power_cuts: u64,
    /// Runs of workflows.
    pub runs: u64,
    /// Those that returned.
    pub runs_finished: u64,
    /// Those that failed.
    pub runs_failed: u64,
    /// Those that were cancelled.
    pub runs_cancelled: u64,
    /// Those that a step of another started.
    pub runs_invoked: u64,
    /// Those that went on where another had failed.
    pub runs_resumed: u64,
    /// Steps that endpoints executed.
    pub steps: u64,
    /// Deliveries of runs that had nothing to send.
    pub steps_not_sent: u64,
    /// Waits that an event ended.
    pub events_heard: u64,
    /// Events that came before they were waited for.
    pub events_kept: u64,
    /// Waits that none ended.
    pub waits_timed_out: u64,
    /// How often everything stood still and somebody could have been forgotten.
    pub idle_looks: u64,
    /// How often after clocks had been wrong.
    pub idle_looks_after_jumps: u64,
}

impl Counts {
    /// Adds those of another run.
    pub fn add(&mut self, other: &Counts) {
        self.created += other.created;
        self.delivered += other.delivered;
        self.failed += other.failed;
        self.cancelled += other.cancelled;
        self.attempts += other.attempts;
        self.callbacks += other.callbacks;
        self.late_attempts += other.late_attempts;
        self.acknowledged += other.acknowledged;
        self.deduplicated += other.deduplicated;
        self.replayed += other.replayed;
        self.unknown += other.unknown;
        self.due_now += other.due_now;
        self.pieces += other.pieces;
        self.bulk_processed += other.bulk_processed;
        self.bulk_finished += other.bulk_finished;
        self.fired += other.fired;
        self.rescheduled += other.rescheduled;
        self.owners += other.owners;
        self.fenced += other.fenced;
        self.cut_off += other.cut_off;
        self.replaced += other.replaced;
        self.late_commits += other.late_commits;
        self.power_cuts += other.power_cuts;
        self.runs += other.runs;
        self.runs_finished += other.runs_finished;
        self.runs_failed += other.runs_failed;
        self.runs_cancelled += other.runs_cancelled;
        self.runs_invoked += other.runs_invoked;
        self.runs_resumed += other.runs_resumed;
        self.steps += other.steps;
        self.steps_not_sent += other.steps_not_sent;
        self.events_heard += other.events_heard;
        self.events_kept += other.events_kept;
        self.waits_timed_out += other.waits_timed_out;
        self.idle_looks += other.idle_looks;
        self.idle_looks_after_jumps += other.idle_looks_after_jumps;
    }
}
