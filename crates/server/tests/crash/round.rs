//! A round: one data directory, one load, many deaths, one judgement.

use crate::audit;
use crate::checker::{self, Violation};
use crate::client::Client;
use crate::endpoint::run_id;
use crate::history::History;
use crate::load::{Load, Phase};
use crate::operator::{self, FIRED};
use crate::process::{Launch, Process};
use crate::random::Random;
use crate::stalls;
use crate::witness::Witness;
use std::net::SocketAddr;
use std::process::ExitStatus;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::{JoinHandle, block_in_place};
use tokio::time::{MissedTickBehavior, interval, timeout};
use tokio_util::task::AbortOnDropHandle;

const PUBLISHERS: usize = 24;
/// A server that acknowledges nothing, or ends nothing, for this long stands still.
const PATIENCE: Duration = Duration::from_secs(30);
/// Schedules of a round.
const SCHEDULES: usize = 20;

pub(crate) struct Round {
    pub(crate) load: Arc<Load>,
    pub(crate) launch: Launch,
    pub(crate) random: Random,
    tasks: Vec<JoinHandle<()>>,
    _watch: AbortOnDropHandle<()>,
    /// What the looks after each start have found.
    found: Vec<Violation>,
}

/// A round that has been judged.
pub(crate) struct Verdict {
    pub(crate) history: History,
    pub(crate) violations: Vec<Violation>,
}

impl Round {
    /// Makes a load and lets it wait. The first life makes what all others work with, and is killed.
    pub(crate) async fn begin(launch: Launch, seed: u64) -> Round {
        let load = Load::new(Witness::start().await, SCHEDULES);
        Round::begin_with(load, launch, seed).await
    }

    /// The same with a load that is there already.
    pub(crate) async fn begin_with(load: Arc<Load>, launch: Launch, seed: u64) -> Round {
        let mut round = Round::begin_quietly(load, launch).await;
        round.random = Random::new(seed);
        for _ in 0..PUBLISHERS {
            let publisher = round.load.clone().publish_all(round.random.fork());
            round.tasks.push(tokio::spawn(publisher));
        }
        let operator = operator::pause_queues(round.load.clone(), round.random.fork());
        round.tasks.push(tokio::spawn(operator));
        round
    }

    /// The same without anybody who publishes.
    pub(crate) async fn begin_quietly(load: Arc<Load>, launch: Launch) -> Round {
        let mut server = launch.spawn();
        operator::prepare(&load, server.address()).await;
        server.kill();
        assert_sound(&server);
        let watch = AbortOnDropHandle::new(tokio::spawn(stalls::watch(load.clone())));
        Round { load, launch, random: Random::new(0), tasks: Vec::new(), _watch: watch, found: Vec::new() }
    }

    /// Starts the server, looks whether all is there, and lets the publishers at it. No address when it ended before.
    pub(crate) async fn start(&mut self, launch: &Launch) -> (Process, Option<SocketAddr>) {
        let server = launch.spawn();
        let Some(address) = block_in_place(|| server.try_address()) else { return (server, None) };
        self.load.endpoint.server.send_replace(Some(address));
        let found = audit::check(&self.load, address).await;
        add(&mut self.found, found);
        self.load.phase.send_replace(Phase::Up(address));
        (server, Some(address))
    }

    /// The same for a server that has no reason to end.
    pub(crate) async fn start_sound(&mut self) -> Process {
        let launch = self.launch.clone();
        let (server, address) = self.start(&launch).await;
        assert!(address.is_some(), "the server did not start:\n{}", server.last_words());
        server
    }

    /// Waits until the server has acknowledged so many messages more.
    pub(crate) async fn acknowledge(&self, count: u64, server: &Process) {
        let goes_on = self.goes_on(count).await;
        assert!(goes_on, "the server acknowledges nothing any more:\n{}", server.last_words());
    }

    /// The same; `false` when it stands still. A busy machine takes its time.
    async fn goes_on(&self, count: u64) -> bool {
        let mut acknowledged = self.load.acknowledged.subscribe();
        let mut reached = *acknowledged.borrow();
        let target = reached + count;
        while reached < target {
            match timeout(PATIENCE, acknowledged.wait_for(|count| *count > reached)).await {
                Ok(count) => reached = *count.expect("the sender is ours"),
                Err(_) => return false,
            }
        }
        true
    }

    /// Kills the server.
    pub(crate) fn kill(&self, server: &mut Process) {
        server.kill();
        self.load.phase.send_replace(Phase::Down);
    }

    /// Waits until the server ends by itself; kills it and says `None` when it does not.
    pub(crate) async fn wait(&self, server: &mut Process, patience: Duration) -> Option<ExitStatus> {
        let status = server.wait_for(patience).await;
        if status.is_none() {
            server.kill();
        }
        self.load.phase.send_replace(Phase::Down);
        status
    }

    /// Waits until the server has ended by itself, or has acknowledged so many messages more: then it goes on.
    pub(crate) async fn wait_unless(&self, server: &mut Process, count: u64) -> Option<ExitStatus> {
        let goes_on = tokio::select! {
            Some(status) = server.wait_for(Duration::MAX) => {
                self.load.phase.send_replace(Phase::Down);
                return Some(status);
            }
            goes_on = self.goes_on(count) => goes_on,
        };
        assert!(goes_on, "the server neither ends nor goes on:\n{}", server.last_words());
        None
    }

    /// The looks after each start have found something.
    pub(crate) fn is_broken(&self) -> bool {
        !self.found.is_empty()
    }

    /// A last life, in which everything comes to rest; then the judgement.
    pub(crate) async fn end(mut self) -> Verdict {
        self.load.phase.send_replace(Phase::Over);
        for task in self.tasks {
            task.await.expect("no publisher panics");
        }
        let mut server = self.launch.spawn();
        let address = server.address();
        self.load.endpoint.server.send_replace(Some(address));
        let found = audit::check(&self.load, address).await;
        add(&mut self.found, found);
        operator::clear_up(&self.load, address).await;
        come_to_rest(&self.load.client, address).await;
        let mut history = self.load.history();
        self.load.witness.tell(&mut history);
        self.load.endpoint.tell(&mut history);
        read_the_servers_view(&self.load.client, address, &mut history).await;
        history.take_back_arrivals();
        assert_sound(&server);
        server.kill();
        let mut violations = self.found;
        add(&mut violations, checker::check(&history));
        Verdict { history, violations }
    }

    /// Ends without a last life: what was found is enough.
    pub(crate) async fn abandon(self) {
        self.load.phase.send_replace(Phase::Over);
        for task in self.tasks {
            task.await.expect("no publisher panics");
        }
    }
}

impl Verdict {
    /// A violation with everything that is known about its message.
    pub(crate) fn explain(&self, violation: &Violation) -> String {
        let history = &self.history;
        let key = violation.key();
        let publishes: Vec<_> = history.publishes.iter().filter(|publish| publish.key == key).collect();
        let arrivals: Vec<_> = history.arrivals.iter().filter(|arrival| arrival.key == key).collect();
        let is_its = |id: &str| {
            arrivals.iter().any(|arrival| arrival.id == id)
                || publishes.iter().any(|publish| publish.answer.id() == Some(id))
        };
        let ends: Vec<_> = history.ends.iter().filter(|(id, _)| is_its(id)).collect();
        let cancelled: Vec<_> = history.cancels.iter().filter(|(id, _)| is_its(id)).collect();
        let dead: Vec<_> = history.dead_letters.iter().filter(|id| is_its(id)).collect();
        let runs: Vec<_> = history.runs.iter().filter(|start| start.key == key).collect();
        if !runs.is_empty() {
            let executions: Vec<_> = history.executions.iter().filter(|execution| execution.key == key).collect();
            let (states, finished) = (history.run_states.get(&run_id(key)), history.finished.get(key));
            return format!("{violation}: {runs:?} {executions:?} is {states:?}, returned {finished:?}");
        }
        format!("{violation}: {publishes:?} {arrivals:?} ends {ends:?} cancelled {cancelled:?} dead {dead:?}")
    }
}

/// What is lost stays lost, and is told once.
fn add(found: &mut Vec<Violation>, more: Vec<Violation>) {
    let is_count = |violation: &Violation| matches!(violation, Violation::Unaccounted(_));
    for violation in more {
        let is_told = found.contains(&violation) || (is_count(&violation) && found.iter().any(is_count));
        if !is_told {
            found.push(violation);
        }
    }
}

/// What a healthy server never prints.
pub(crate) fn assert_sound(server: &Process) {
    let output = server.output();
    let complaint = output.lines().find(|line| line.contains("panicked") || line.contains("ERROR"));
    assert!(complaint.is_none(), "the server is unwell: {complaint:?}\n{}", server.last_words());
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
    for run in client.pages(server, "/v2/workflows/logs?count=100", "runs").await {
        let [id, state] =
            ["workflowRunId", "workflowState"].map(|field| run[field].as_str().expect("a text").to_owned());
        history.run_states.entry(id).or_default().push(state);
    }
    let target = format!("/v2/events?state=CREATED&label={FIRED}&trimBody=0&count=1000");
    let events = client.pages(server, &target, "events").await;
    history.fired_at = events.iter().map(|event| (id(event), event["time"].as_u64().expect("a time"))).collect();
}
