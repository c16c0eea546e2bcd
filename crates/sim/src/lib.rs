//! The real engine in a simulated world: one seed is one run, and decides everything that happens in it.
//!
//! Nodes, store, network, receivers, publishers and clocks are simulated, and fail as the seed says; the engine is
//! the one that is shipped. A judge keeps books of its own and names the first rule that is broken, with the story
//! of the message. Pure: no clock, no threads, no disk; a run takes about a millisecond.
//!
//! Start at [`run`]. `world` is the loop, `node` the driver of the engine, `judge` the rules, `swarm` what a seed
//! draws. What is simulated and what is not: `docs/reliability/simulation.md`.
//!
//! Modules:
//!
//! - `world`, `agenda`: the loop, and what is still to happen in it
//! - `swarm`, `random`: what a seed draws
//! - `env`: what all parts share
//! - `node`: the driver of the node, with commits that take time
//! - `store`, `receiver`, `publisher`, `command`: the world around it
//! - `program`, `endpoint`: workflow functions, and the endpoint that executes them
//! - `judge`, `story`: the rules, and the story of a broken one
//! - `bug`: bugs that can be planted around the node

mod agenda;
mod bug;
mod command;
mod endpoint;
mod env;
mod judge;
mod node;
mod program;
mod publisher;
mod random;
mod receiver;
mod store;
mod story;
mod swarm;
mod world;

pub use bug::Bug;
pub use judge::{Counts, Violation};

use env::Env;
use world::World;

/// What one run came to.
#[derive(Debug)]
pub struct Report {
    /// Which run.
    pub seed: u64,
    /// The first rule that was broken.
    pub violation: Option<Violation>,
    /// The last that happened to the message that the violation is about, if the run was told.
    pub story: Vec<String>,
    /// Everything that happened, if the run was told.
    pub trace: Vec<String>,
    /// Two runs of one seed have the same.
    pub hash: u64,
    /// How much happened.
    pub counts: Counts,
    /// What the seed drew, in words, if the run was told.
    pub drawn: String,
}

/// Runs one seed. A run that is told is slower and keeps what happened.
pub fn run(seed: u64, told: bool) -> Report {
    run_with(seed, None, told)
}

/// The same in a world with a bug, which must be found.
pub fn run_with(seed: u64, bug: Option<Bug>, told: bool) -> Report {
    let mut world = World::new(Env::new(seed, bug, told));
    let drawn = if told { format!("{:?}", world.env.swarm) } else { String::new() };
    world.run();
    let Env { judge, story, .. } = world.env;
    let about = judge.violation.as_ref().and_then(|violation| violation.about);
    let (hash, counts) = (story.hash(), judge.counts);
    Report { seed, story: story.about(about), trace: story.all(), hash, counts, drawn, violation: judge.violation }
}
