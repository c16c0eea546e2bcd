//! The abuse suite: the real binary under attack, beside a second tenant that must not notice.
//!
//! Start at `abuse`, which runs every case and prints one table. A case is a function in `cases` that sends what an
//! attacker would send, mostly over raw sockets. Meanwhile `neighbour` publishes and reads at a low steady rate as
//! another tenant from another address, and `server` measures the process: memory, processor time, bytes written.
//! `verdict` compares the measurements with the limits. `docs/reliability/hostile-input.md` describes the cases.

mod abuse;
mod cases;
mod plan;
mod report;
mod stage;
mod verdict;

mod client;
mod neighbour;
mod proc;
mod server;
mod sink;
mod small_disk;
