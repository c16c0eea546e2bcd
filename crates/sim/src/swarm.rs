//! What a seed draws before it begins: how large its world is, how tight its limits are, and what can fail in it.
//!
//! Seeds differ in kind, not only in order: most leave most faults out, so that each fault also happens alone.

use crate::program::Program;
use crate::random::Random;
use posthaste_engine::shard::Settings;

/// The world of one seed.
#[derive(Clone, Debug)]
pub(crate) struct Swarm {
    /// Processes that take turns in owning the shard.
    pub nodes: usize,
    /// What publishers and operators do.
    pub actions: u64,
    /// How long things may fail, in milliseconds.
    pub span_ms: u64,
    pub tenants: u32,
    pub origins: u64,
    pub queues: u64,
    pub keys: u64,
    pub schedules: u64,
    pub settings: Settings,
    pub lease_ms: u64,
    /// Owners look at their own clock before they act.
    pub heeds_tenure: bool,
    pub faults: Faults,
    pub traffic: Traffic,
    /// The functions of its workflows.
    pub programs: Vec<Program>,
    /// How often an owner forgets the runs it remembers, in a thousand.
    pub forgotten_runs: u64,
}

/// What can fail. Shares are in a thousand.
#[derive(Clone, Debug, Default)]
pub(crate) struct Faults {
    pub crashes: u64,
    pub pauses: u64,
    /// Times in which a node cannot reach the store.
    pub cuts: u64,
    pub drains: u64,
    pub power_cuts: u64,
    pub jumps: u64,
    pub full_times: u64,
    /// Of every moment between two steps of an owner.
    pub crash_points: u64,
    pub unknown_commits: u64,
    pub refused_commits: u64,
    pub slow_commits: u64,
    pub slow_commit_ms: u64,
    pub skew_ms: u64,
    pub lost_requests: u64,
    pub lost_replies: u64,
    pub doubled_outcomes: u64,
    /// Of attempts: how many fail in some way.
    pub bad_answers: u64,
    pub answer_ms: u64,
}

/// What is published. Shares are in a thousand.
#[derive(Clone, Debug)]
pub(crate) struct Traffic {
    pub delayed: u64,
    pub queued: u64,
    pub keyed: u64,
    pub deduplicated: u64,
    pub with_callback: u64,
    pub operators: u64,
    /// Runs of workflows.
    pub runs: u64,
    /// The limits of each key, the same for every message, unless operators change them.
    pub limits: Vec<Limits>,
    pub varied_limits: bool,
}

/// The limits of a flow-control key.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub parallelism: Option<u32>,
    pub rate: Option<u32>,
    pub period_ms: u64,
}

const HOUR_MS: u64 = 3_600_000;

impl Swarm {
    pub(crate) fn draw(random: &mut Random) -> Swarm {
        let schedules = random.pick(&[0, 0, 0, 1, 2]);
        // Schedules fire every minute at most.
        let span_ms = if schedules > 0 { random.any_size(60_000, 600_000) } else { random.any_size(4_000, 120_000) };
        let nodes = random.pick(&[1, 1, 2, 2, 3]);
        Swarm {
            nodes,
            actions: random.any_size(8, 80),
            span_ms,
            tenants: random.pick(&[1, 1, 2]),
            origins: random.within(1, 3),
            queues: random.within(1, 2),
            keys: random.within(1, 2),
            schedules,
            settings: settings(random),
            lease_ms: random.any_size(300, 10_000),
            heeds_tenure: random.permille(600),
            faults: Faults::draw(random, nodes),
            traffic: Traffic::draw(random),
            programs: Program::draw_all(random),
            forgotten_runs: random.pick(&[0, 0, 100, 1_000]),
        }
    }
}

impl Faults {
    fn draw(random: &mut Random, nodes: usize) -> Faults {
        if random.permille(50) {
            return Faults { answer_ms: 50, ..Faults::default() };
        }
        let mut sometimes = |share: u64, max: u64| if random.permille(share) { random.within(1, max) } else { 0 };
        Faults {
            crashes: sometimes(450, 5),
            pauses: if nodes > 1 { sometimes(600, 6) } else { sometimes(100, 2) },
            cuts: if nodes > 1 { sometimes(400, 4) } else { 0 },
            drains: sometimes(150, 2),
            power_cuts: sometimes(250, 3),
            jumps: sometimes(250, 3),
            full_times: sometimes(80, 2),
            crash_points: sometimes(300, 20),
            unknown_commits: sometimes(250, 30),
            refused_commits: sometimes(150, 20),
            slow_commits: sometimes(350, 300),
            slow_commit_ms: sometimes(1_000, 3_000),
            skew_ms: sometimes(300, 1_000),
            lost_requests: sometimes(200, 100),
            lost_replies: sometimes(200, 200),
            doubled_outcomes: sometimes(200, 100),
            bad_answers: sometimes(800, 900),
            answer_ms: sometimes(1_000, 3_000),
        }
    }
}

impl Traffic {
    fn draw(random: &mut Random) -> Traffic {
        let mut share = |off: u64, max: u64| if random.permille(off) { 0 } else { random.within(1, max) };
        let (delayed, queued, keyed) = (share(300, 500), share(300, 1_000), share(300, 1_000));
        let (deduplicated, with_callback, operators) = (share(500, 600), share(400, 600), share(250, 400));
        let runs = share(500, 600);
        let limits = (0..2).map(|_| Limits::draw(random)).collect();
        let varied_limits = random.permille(150);
        Traffic { delayed, queued, keyed, deduplicated, with_callback, operators, runs, limits, varied_limits }
    }
}

impl Limits {
    pub(crate) fn draw(random: &mut Random) -> Limits {
        let limit = |random: &mut Random| random.permille(600).then(|| random.within(1, 3) as u32);
        let period_ms = random.pick(&[1_000, 1_000, 2_000, 5_000, 10_000, 60_000, HOUR_MS / 12]);
        Limits { parallelism: limit(random), rate: limit(random), period_ms }
    }
}

/// Tight caps find what is forgotten at their edges; wide ones let much happen at once.
fn settings(random: &mut Random) -> Settings {
    let dedup_window_ms = random.pick(&[2_000, 10_000, 60_000, 600_000]);
    match random.below(4) {
        0 => Settings { dedup_window_ms, ..Settings::default() },
        1 => Settings {
            in_flight_max: 6,
            tenant_in_flight_max: 4,
            origin_in_flight_max: 2,
            in_flight_bytes_max: 100,
            tenant_in_flight_bytes_max: 70,
            origin_in_flight_bytes_max: 60,
            held_max: 12,
            lane_held_max: 4,
            queue_held_max: 3,
            load_page: 5,
            dedup_window_ms,
        },
        _ => {
            let in_flight_max = random.within(1, 12) as u32;
            let tenant_in_flight_max = random.within(1, u64::from(in_flight_max)) as u32;
            let in_flight_bytes_max = random.within(60, 400);
            let tenant_in_flight_bytes_max = random.within(50, in_flight_bytes_max);
            Settings {
                in_flight_max,
                tenant_in_flight_max,
                origin_in_flight_max: random.within(1, u64::from(tenant_in_flight_max)) as u32,
                in_flight_bytes_max,
                tenant_in_flight_bytes_max,
                origin_in_flight_bytes_max: random.within(40, tenant_in_flight_bytes_max),
                held_max: random.within(2, 24) as usize,
                lane_held_max: random.within(1, 8) as usize,
                queue_held_max: random.within(2, 6) as usize,
                load_page: random.within(2, 12) as usize,
                dedup_window_ms,
            }
        }
    }
}
