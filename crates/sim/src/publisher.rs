//! Publishers and operators: what they ask for.

mod operate;

use crate::command::{Command, NodeTask, RequestId, RunKey, RunTask, StartRun, Task};
use crate::endpoint;
use crate::env::Env;
use crate::program::{self, EVENTS, FUNCTIONS};
use crate::random::Random;
use crate::swarm::{Limits, Swarm};
use bytes::Bytes;
use posthaste_engine::flow::FlowEdit;
use posthaste_engine::message::{CallbackSpec, DedupKey, FlowSpec, Live, MessageSpec, Origin, QueueKey};
use posthaste_engine::workflow::run::{Run, RunConfig};
use posthaste_node::{FirstDue, NewMessage};
use posthaste_wire::id::{DlqId, TenantId};
use posthaste_wire::time::Timestamp;
use std::collections::BTreeMap;
use std::sync::Arc;

/// What follows the first attempt, and how soon.
const RETRY_DELAYS: [Option<&str>; 6] =
    [Some("0"), Some("1000"), Some("1000"), Some("2000 * (1 + retried)"), Some("7000"), None];

/// When schedules fire.
const CRONS: [&str; 4] = ["@every 1m", "*/1 * * * *", "@every 2m", "*/5 * * * *"];

/// Everybody who asks for something.
#[derive(Debug, Default)]
pub(crate) struct Publishers {
    requests: u64,
}

impl Publishers {
    pub(crate) fn command(&mut self, task: Task) -> Command {
        self.requests += 1;
        Command { request: RequestId(self.requests), task }
    }

    /// What somebody asks for next. Some things take more than one request.
    pub(crate) fn next(&mut self, env: &mut Env) -> Vec<Command> {
        let (operators, runs) = (env.swarm.traffic.operators, env.swarm.traffic.runs);
        let tasks = match env.random.permille(operators) {
            true if runs > 0 && env.random.permille(400) => vec![operate_runs(env)],
            true => operate::operate(env),
            false if env.random.permille(runs) => vec![trigger(env)],
            false => vec![publish(env)],
        };
        tasks.into_iter().map(|task| self.command(task)).collect()
    }
}

fn publish(env: &mut Env) -> Task {
    let count = match env.random.below(1_000) {
        ..120 => env.random.within(2, 5),
        120..150 => env.random.within(6, 20),
        _ => 1,
    };
    NodeTask::Publish((0..count).map(|_| new_message(env)).collect()).into()
}

/// A run of one of the functions. Some runs have the same name.
fn trigger(env: &mut Env) -> Task {
    let tenant = tenant(env);
    let random = &mut env.random;
    let function = random.below(FUNCTIONS as u64) as usize;
    let payload = format!("order-{:x}", random.next_u64());
    let id = if random.permille(300) { format!("run-{}", random.below(2)) } else { payload.clone() };
    let flow = random.permille(env.swarm.traffic.keyed).then(|| flow(random, &env.swarm));
    let config = RunConfig {
        retries: random.pick(&[0, 1, 3, 3]),
        retry_delay: random.pick(&RETRY_DELAYS).map(str::to_owned),
        flow,
        ..endpoint::plain_config(&env.swarm.programs, function)
    };
    let start = StartRun { id, payload, url: program::url(function), config, invoked_by: None };
    Task::Run { tenant, task: Box::new(RunTask::Start(Box::new(start))) }
}

/// What operators and others do to runs.
fn operate_runs(env: &mut Env) -> Task {
    let tenant = tenant(env);
    let event = env.random.below(EVENTS);
    let (event, data) = (program::event_name(event), program::event_data(event));
    let own: Vec<&Arc<Run>> = env.store.runs.values().filter(|run| run.tenant == tenant).collect();
    let failed: Vec<DlqId> = own.iter().filter_map(|run| Some(run.failure.as_ref()?.dlq_id)).collect();
    let run = own
        .get(env.random.below(own.len().max(1) as u64) as usize)
        .map(|run| RunKey { id: run.id.clone(), created_at: env.random.permille(500).then_some(run.created_at) });
    let task = match (env.random.below(4), run) {
        (0, Some(run)) => RunTask::Cancel { run },
        (1, Some(run)) => RunTask::NotifyRun { run, event, data },
        (2, _) if !failed.is_empty() => {
            RunTask::BeginAgain { dlq_id: env.random.pick(&failed), resumes: env.random.permille(700) }
        }
        _ => RunTask::Notify { event, data },
    };
    if let RunTask::Cancel { run } = &task {
        env.judge.cancel_asked(tenant, run);
    }
    Task::Run { tenant, task: Box::new(task) }
}

fn flow(random: &mut Random, swarm: &Swarm) -> FlowSpec {
    let key = random.below(swarm.keys);
    let drawn = if swarm.traffic.varied_limits && random.permille(200) { Some(Limits::draw(random)) } else { None };
    let Limits { parallelism, rate, period_ms } = drawn.unwrap_or(swarm.traffic.limits[key as usize]);
    FlowSpec { key: key_name(key), parallelism, rate, period_ms }
}

/// A message with whatever chance gives it.
fn new_message(env: &mut Env) -> NewMessage {
    let tenant = tenant(env);
    let random = &mut env.random;
    let (swarm, traffic) = (&env.swarm, &env.swarm.traffic);
    let origin = random.below(swarm.origins);
    let url = format!("https://r{origin}.example/in");
    let queue = random.permille(traffic.queued).then(|| queue_name(random.below(swarm.queues)));
    let flow = random.permille(traffic.keyed).then(|| flow(random, swarm));
    let delay_ms = if random.permille(traffic.delayed) {
        if random.permille(100) { random.within(30_000, 300_000) } else { random.any_size(1, 20_000) }
    } else {
        0
    };
    let callback = random.permille(traffic.with_callback).then(|| Box::new(callback(random)));
    let failure_callback = random.permille(traffic.with_callback).then(|| Box::new(callback_of_failure(random)));
    let dedup = random.permille(traffic.deduplicated).then(|| DedupKey([random.below(4) as u8; 32]));
    let spec = MessageSpec {
        url,
        method: "POST".to_owned(),
        retries: random.pick(&[0, 0, 1, 2, 3]),
        retry_delay: random.pick(&RETRY_DELAYS).map(str::to_owned),
        timeout_ms: random.permille(300).then(|| random.any_size(1_000, 8_000)),
        queue,
        flow,
        callback,
        failure_callback,
        hops: if random.permille(30) { random.within(15, 17) as u32 } else { 0 },
        ..MessageSpec::default()
    };
    let body = Bytes::from(vec![b'x'; random.pick(&[0, 1, 10, 40, 60])]);
    let first_due = if delay_ms > 0 { FirstDue::AfterMs(delay_ms) } else { FirstDue::Now };
    NewMessage { tenant, origin: Origin::of_url(tenant, &spec.url), spec, body, first_due, dedup }
}

fn callback(random: &mut Random) -> CallbackSpec {
    CallbackSpec {
        url: "https://told.example/done".to_owned(),
        method: "POST".to_owned(),
        headers: Vec::new(),
        retries: random.pick(&[None, Some(0), Some(1)]),
        retry_delay: Some("1000".to_owned()),
        timeout_ms: None,
        delay_ms: random.pick(&[0, 0, 0, 500]),
        labels: Vec::new(),
        redact: Default::default(),
        flow: None,
    }
}

fn callback_of_failure(random: &mut Random) -> CallbackSpec {
    CallbackSpec { url: "https://told.example/failed".to_owned(), ..callback(random) }
}

/// The message whose delivery proves that everything works again.
pub(crate) fn canary() -> Task {
    let tenant = TenantId(1);
    let spec = MessageSpec {
        url: "https://canary.example/".to_owned(),
        method: "POST".to_owned(),
        retries: 3,
        ..MessageSpec::default()
    };
    let origin = Origin::of_url(tenant, &spec.url);
    let (body, first_due) = (Bytes::new(), FirstDue::Now);
    NodeTask::Publish(vec![NewMessage { tenant, spec, body, first_due, origin, dedup: None }]).into()
}

/// Everything that was paused goes on.
pub(crate) fn resume_everything(env: &Env) -> Vec<Task> {
    let queues = env.store.queues.values().filter(|queue| queue.paused && !queue.deleted);
    let queues =
        queues.map(|queue| NodeTask::PauseQueue { tenant: queue.tenant, name: queue.name.clone(), paused: false });
    let flows = env.store.flows.values().filter(|flow| flow.paused);
    let flows =
        flows.map(|flow| NodeTask::EditFlow { tenant: flow.tenant, key: flow.key.clone(), edit: FlowEdit::Resume });
    queues.chain(flows).map(Task::from).collect()
}

/// Operators lose patience with whoever is first in a queue and delayed, while others wait behind it who are not: a
/// clock that was ahead has put them there.
pub(crate) fn cancel_delayed_heads(env: &Env) -> Vec<Task> {
    let now = env.store_now();
    let mut heads: BTreeMap<(TenantId, QueueKey), &Live> = BTreeMap::new();
    for row in env.store.live.values() {
        let Some(place) = row.place else { continue };
        let head = heads.entry((row.tenant, place.queue)).or_insert(row);
        if head.place.is_some_and(|first| place.turn < first.turn) {
            *head = row;
        }
    }
    let is_behind = |(tenant, queue): (TenantId, QueueKey), head: &Live| {
        let is_it = |row: &Live| row.place.is_some_and(|place| place.queue == queue) && row.is_due(Timestamp(0));
        env.store.live.values().any(|row| row.tenant == tenant && row.id != head.id && is_it(row))
    };
    let is_delayed = |head: &Live| head.retried == 0 && !head.is_due(now);
    let heads = heads.into_iter().filter(|(key, head)| is_delayed(head) && is_behind(*key, head));
    heads.map(|((tenant, _), head)| NodeTask::Cancel { tenant, ids: vec![head.id] }.into()).collect()
}

/// No schedule makes new messages.
pub(crate) fn drop_schedules(env: &Env) -> Vec<Task> {
    let names = env.store.schedules.keys();
    names.map(|(tenant, id)| NodeTask::DropSchedule { tenant: *tenant, id: id.clone() }.into()).collect()
}

fn tenant(env: &mut Env) -> TenantId {
    TenantId(1 + env.random.below(u64::from(env.swarm.tenants)) as u32)
}

fn queue_name(queue: u64) -> String {
    format!("queue-{queue}")
}

fn key_name(key: u64) -> String {
    format!("key-{key}")
}
