//! Kill -9 at random moments, again and again, under a mixed load.

use crate::checker::{self, Counts, Violation};
use crate::client::Client;
use crate::history::{Answer, FLOWS, History, Kind, Publish, SHORT_WINDOW};
use crate::load::{Load, Phase};
use crate::operator::{self, FIRED};
use crate::process::Process;
use crate::random::Random;
use crate::witness::Witness;
use std::io::Write;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};
use tokio::time::{MissedTickBehavior, interval, timeout};

const CYCLES: u64 = 20;
const PUBLISHERS: usize = 24;
/// Each server lives until it has acknowledged a random number of messages below this.
const ACKNOWLEDGED_MAX: u64 = 1_500;
/// One server in this many is killed while it starts.
const KILLED_AT_START: u64 = 5;
const START_MS_MAX: u64 = 60;
/// One server in this many lives on until the short window of a flow-control key is full, and is killed then: its
/// successor must know.
const KILLED_WITH_FULL_WINDOW: u64 = 3;
/// How long that may take; a window that was full at the start opens after a second.
const WINDOW_PATIENCE: Duration = Duration::from_millis(2_500);
/// A run that is not longer than this goes on until the next minute, when schedules fire, if that comes in time.
/// It comes in three of four runs.
const MINUTE_WITHIN: Duration = Duration::from_secs(45);
/// Longest time to acknowledge that many, and to come to rest at the end.
const PATIENCE: Duration = Duration::from_secs(30);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_acknowledged_is_lost_over_many_kills() {
    let seed = from_environment("CRASH_SEED").unwrap_or_else(fresh_seed);
    let cycles = from_environment("CRASH_CYCLES").unwrap_or(CYCLES);
    say(&format!(
        "crash: seed {seed}; to repeat: CRASH_SEED={seed} CRASH_CYCLES={cycles} cargo test -p posthaste --test crash"
    ));
    let data_dir = tempfile::tempdir().expect("a temporary directory");
    let load = Load::new(Witness::start().await);

    let history = run(&load, data_dir.path(), seed, cycles).await;

    let counts = checker::count(&history);
    say(&summary(cycles, &counts, &history));
    let violations = checker::check(&history);
    let shown: Vec<String> = violations.iter().take(20).map(|violation| explain(violation, &history)).collect();
    let kinds = checker::count_kinds(&violations);
    assert!(violations.is_empty(), "seed {seed}: {} violations {kinds:?}\n{}", violations.len(), shown.join("\n"));
    assert_it_was_a_test(&history, &counts);
}

/// A run in which little happened proves little; and a checker that sees no planted loss proves nothing.
fn assert_it_was_a_test(history: &History, counts: &Counts) {
    assert!(counts.acknowledged > 500 && counts.delivered > 300, "too little happened: {counts:?}");
    assert!(counts.dead > 10 && counts.cancelled > 10, "too little happened: {counts:?}");
    let queued = history.publishes.iter().filter(|publish| publish.terms.queue.is_some()).count();
    let throttled = history.publishes.iter().filter(|publish| publish.terms.flow.is_some()).count();
    assert!(queued > 100 && throttled > 50 && !history.pauses.is_empty(), "too little happened: {queued} {throttled}");
    assert!(history.callbacks.len() > 20, "only {} callbacks", history.callbacks.len());
    let mut planted = history.clone();
    let victim = history.publishes.iter().find(|publish| is_surely_delivered(publish, history));
    let victim = victim.expect("some message was acknowledged and not cancelled").key.clone();
    planted.arrivals.retain(|arrival| arrival.key != victim);
    planted.dead_letters.clear();
    let found = checker::check(&planted);
    assert!(found.contains(&Violation::Lost(victim)), "the checker does not see a planted loss");
}

/// Nothing but an arrival at the witness keeps it from being lost.
fn is_surely_delivered(publish: &Publish, history: &History) -> bool {
    let Answer::Acknowledged { id } = &publish.answer else { return false };
    let is_cancelled = history.cancels.contains_key(id) || history.cancel_sent.contains(id);
    matches!(publish.kind, Kind::Plain { .. }) && !is_cancelled
}

/// Lives and deaths of the server, then a last life in which everything comes to rest.
async fn run(load: &Arc<Load>, data_dir: &Path, seed: u64, cycles: u64) -> History {
    let mut random = Random::new(seed);
    let started = Instant::now();
    let mut publishers: Vec<_> =
        (0..PUBLISHERS).map(|_| tokio::spawn(load.clone().publish_all(random.fork()))).collect();
    publishers.push(tokio::spawn(operator::pause_queues(load.clone(), random.fork())));
    prepare_and_die(load, data_dir).await;
    for _ in 1..cycles {
        if random.below(KILLED_AT_START) == 0 {
            kill_while_it_starts(data_dir, random.below(START_MS_MAX)).await;
        } else {
            live_and_die(load, data_dir, &mut random).await;
        }
    }
    if *load.witness.fired.borrow() == 0 && started.elapsed() + until_next_minute() < MINUTE_WITHIN {
        die_when_schedules_fire(load, data_dir).await;
    }
    load.phase.send_replace(Phase::Over);
    for publisher in publishers {
        publisher.await.expect("no publisher panics");
    }
    let mut server = Process::spawn(data_dir);
    let address = server.address();
    operator::clear_up(load, address).await;
    come_to_rest(&load.client, address).await;
    let mut history = load.history();
    load.witness.tell(&mut history);
    read_the_servers_view(&load.client, address, &mut history).await;
    assert_sound(&server);
    server.kill();
    history
}

async fn kill_while_it_starts(data_dir: &Path, after_ms: u64) {
    let mut server = Process::spawn(data_dir);
    // The moment is the input of the test, not something to wait for.
    tokio::time::sleep(Duration::from_millis(after_ms)).await;
    server.kill();
}

/// The first life: it makes what all others work with.
async fn prepare_and_die(load: &Load, data_dir: &Path) {
    let mut server = Process::spawn(data_dir);
    operator::prepare(load, server.address()).await;
    server.kill();
    assert_sound(&server);
}

/// A life without publishers over the turn of a minute: it ends when the first message of a schedule arrives,
/// while the others are still to come.
async fn die_when_schedules_fire(load: &Load, data_dir: &Path) {
    let mut server = Process::spawn(data_dir);
    let mut fired = load.witness.fired.subscribe();
    let patience = until_next_minute() + PATIENCE;
    let has_fired = timeout(patience, fired.wait_for(|count| *count > 0)).await.is_ok();
    assert!(has_fired, "no schedule has fired:\n{}", server.output());
    server.kill();
    assert_sound(&server);
}

fn until_next_minute() -> Duration {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("after 1970");
    Duration::from_millis(60_000 - now.as_millis() as u64 % 60_000)
}

async fn live_and_die(load: &Load, data_dir: &Path, random: &mut Random) {
    let mut server = Process::spawn(data_dir);
    let mut acknowledged = load.acknowledged.subscribe();
    let target = *acknowledged.borrow() + random.below(ACKNOWLEDGED_MAX);
    load.phase.send_replace(Phase::Up(server.address()));
    let reached = timeout(PATIENCE, acknowledged.wait_for(|count| *count >= target)).await.is_ok();
    assert!(reached, "the server acknowledges too little:\n{}", server.output());
    if random.below(KILLED_WITH_FULL_WINDOW) == 0 {
        let rate = FLOWS[SHORT_WINDOW].rate.map_or(0, |(rate, _)| rate as u64);
        let mut throttled = load.witness.throttled.subscribe();
        let full = *throttled.borrow() + rate;
        // Without enough messages the window does not fill: then this is a life like any other.
        drop(timeout(WINDOW_PATIENCE, throttled.wait_for(|count| *count >= full)).await);
    }
    for _ in 0..random.below(100_000) {
        std::hint::spin_loop();
    }
    server.kill();
    load.phase.send_replace(Phase::Down);
    assert_sound(&server);
}

/// What the server must never print.
fn assert_sound(server: &Process) {
    let output = server.output();
    assert!(!output.contains("panicked") && !output.contains("ERROR"), "the server is unwell:\n{output}");
}

/// Waits until no message is pending. What a rate holds back takes its time, so only a standstill is a failure.
async fn come_to_rest(client: &Client, server: SocketAddr) {
    let mut ticks = interval(Duration::from_millis(50));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut fewest = u64::MAX;
    loop {
        let progress = async {
            loop {
                let pending = client.pending(server).await;
                if pending < fewest {
                    return pending;
                }
                ticks.tick().await;
            }
        };
        match timeout(PATIENCE, progress).await {
            Ok(0) => return,
            Ok(pending) => fewest = pending,
            Err(_) => panic!("{fewest} messages are still pending, and nothing moves"),
        }
    }
}

async fn read_the_servers_view(client: &Client, server: SocketAddr, history: &mut History) {
    let id = |entry: &serde_json::Value| entry["messageId"].as_str().expect("an id").to_owned();
    let letters = client.pages(server, "/v2/dlq?count=100&trimBody=0", "messages").await;
    history.dead_letters = letters.iter().map(id).collect();
    for state in ["DELIVERED", "FAILED", "CANCELED"] {
        let target = format!("/v2/events?state={state}&trimBody=0&count=1000");
        let events = client.pages(server, &target, "events").await;
        history.ends.extend(events.iter().map(|event| (id(event), state)));
    }
    let target = format!("/v2/events?state=CREATED&label={FIRED}&trimBody=0&count=1000");
    let events = client.pages(server, &target, "events").await;
    history.fired_at = events.iter().map(|event| (id(event), event["time"].as_u64().expect("a time"))).collect();
}

fn summary(cycles: u64, counts: &Counts, history: &History) -> String {
    format!(
        "crash: {cycles} cycles, {} acknowledged, {} delivered, {} duplicates, {} dead letters, {} cancelled, {} unknown, {} refused, {} requests at the witness; \
         {} pauses, {} callbacks, {} messages of schedules",
        counts.acknowledged,
        counts.delivered,
        counts.duplicates,
        counts.dead,
        counts.cancelled,
        counts.unknown,
        counts.refused,
        history.arrivals.len(),
        history.pauses.len(),
        history.callbacks.len(),
        history.fired.len(),
    )
}

/// A violation with everything that is known about its message.
fn explain(violation: &Violation, history: &History) -> String {
    let key = violation.key();
    let publishes: Vec<_> = history.publishes.iter().filter(|publish| publish.key == key).collect();
    let arrivals: Vec<_> = history.arrivals.iter().filter(|arrival| arrival.key == key).collect();
    let is_its = |id: &str| {
        arrivals.iter().any(|arrival| arrival.id == id)
            || publishes.iter().any(|publish| format!("{:?}", publish.answer).contains(id))
    };
    let ends: Vec<_> = history.ends.iter().filter(|(id, _)| is_its(id)).collect();
    let cancelled: Vec<_> = history.cancels.iter().filter(|(id, _)| is_its(id)).collect();
    let dead: Vec<_> = history.dead_letters.iter().filter(|id| is_its(id)).collect();
    format!("{violation}: {publishes:?} {arrivals:?} ends {ends:?} cancelled {cancelled:?} dead {dead:?}")
}

fn from_environment(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name} must be a number")))
}

fn fresh_seed() -> u64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("after 1970");
    now.as_nanos() as u64 % 1_000_000_000
}

/// To the terminal, also when the test passes.
fn say(line: &str) {
    drop(writeln!(std::io::stderr(), "{line}"));
}
