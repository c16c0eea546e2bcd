//! The torture: the real binary, killed, starved and cut off; nothing that was acknowledged may be lost.
//!
//! Start at `torture`, which runs every kind of fault (one file each) and prints a table. A kind makes `round`s: a mixed
//! load, a server that dies again and again, and a judgement of the whole `history` by `checker`. `descriptors` takes
//! away what a connection needs, and `panics` makes parts of the server panic. The witness of deliveries is the receiver in this process, not the server; `endpoint` is
//! that of workflow runs. `./torture`
//! is the long form, `docs/reliability/torture.md` says what is done and checked.

mod torture;

mod dead_letters;
mod descriptors;
mod disk;
mod full;
mod kills;
mod minute;
mod panics;
mod planted;
mod points;
mod power;
mod upgrade;

mod audit;
mod bulk;
mod plan;
mod report;
mod round;
mod stalls;
mod tools;

mod callbacks;
mod checker;
mod flows;
mod history;
mod letters;
mod overlap;
mod queues;
mod runs;
mod schedules;

mod client;
mod endpoint;
mod load;
mod operator;
mod process;
mod random;
mod witness;
