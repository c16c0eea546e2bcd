//! The real binary, killed and starved: nothing that was acknowledged may be lost.
//!
//! `cycles` publishes a mixed load, kills the process with SIGKILL at random moments, starts it again on
//! the same data, and lets `checker` judge the whole `history`. `faults` takes the disk away instead.
//! The witness of deliveries is the receiver in this process, not the server.
//!
//! `CRASH_SEED` repeats a run, `CRASH_CYCLES` makes it longer:
//! `CRASH_SEED=7 CRASH_CYCLES=200 cargo test -p posthaste --test crash`

mod cycles;
mod faults;

mod callbacks;
mod checker;
mod flows;
mod history;
mod overlap;
mod queues;
mod schedules;

mod client;
mod load;
mod operator;
mod process;
mod random;
mod witness;
