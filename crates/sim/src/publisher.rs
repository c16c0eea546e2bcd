//! Publishers and operators: what they ask for.

use crate::command::{Command, NodeTask, RequestId, RunKey, RunTask, StartRun, Task};
use crate::endpoint;
use crate::env::Env;
use crate::program::{self, EVENTS, FUNCTIONS};
use crate::random::Random;
use crate::swarm::{Limits, Swarm};
use bytes::Bytes;
use posthaste_engine::bulk_action::{self, BulkAction, DlqRange};
use posthaste_engine::flow::FlowEdit;
use posthaste_engine::message::{CallbackSpec, DedupKey, FlowSpec, Live, MessageSpec, Origin, QueueKey};
use posthaste_engine::schedule::{Schedule, SchedulePlan, ScheduleState, ScheduleTarget};
use posthaste_engine::workflow::run::{Run, RunConfig};
use posthaste_node::{FirstDue, NewMessage, QueueSettings, Replay};
use posthaste_wire::cron::Cron;
use posthaste_wire::id::{DlqId, Position, Seq, TenantId};
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
            true => operate(env),
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

/// What operators do to messages, queues, keys and schedules.
fn operate(env: &mut Env) -> Vec<Task> {
    let tenant = tenant(env);
    let random = &mut env.random;
    let queue = queue_name(random.below(env.swarm.queues));
    let key = key_name(random.below(env.swarm.keys));
    let schedule = format!("schedule-{}", random.below(env.swarm.schedules.max(1)));
    let schedules = if env.swarm.schedules > 0 { 6 } else { 0 };
    let stalls = if env.swarm.faults.jumps > 0 { 8 } else { 0 };
    let task = match random.weighted(&[
        8,
        4,
        6,
        1,
        4,
        6,
        4,
        1,
        schedules,
        schedules / 3,
        schedules / 2,
        schedules / 6,
        4,
        2,
        stalls,
    ]) {
        0 => cancel(env, tenant),
        1 => NodeTask::PutQueue {
            tenant,
            name: queue,
            settings: QueueSettings { parallelism: random.within(1, 3) as u32, paused: random.permille(200) },
        }
        .into(),
        2 => NodeTask::PauseQueue { tenant, name: queue, paused: random.permille(500) }.into(),
        3 => return delete_queue(env, tenant, queue),
        4 => NodeTask::EditFlow { tenant, key, edit: edit(random) }.into(),
        5 => NodeTask::Replay { tenant, replays: replays(env, tenant) }.into(),
        6 => NodeTask::DeleteDeadLetters { tenant, ids: dead_letters(env, tenant) }.into(),
        7 => NodeTask::EditFlow { tenant, key, edit: FlowEdit::Resume }.into(),
        8 => NodeTask::PutSchedule(Box::new(new_schedule(env, tenant, schedule))).into(),
        9 => NodeTask::PauseSchedule { tenant, id: schedule, paused: random.permille(500) }.into(),
        10 => reschedule(random, tenant, schedule),
        12 => return deliver_now(env, tenant).into_iter().collect(),
        13 => begin_bulk(env, tenant),
        14 => return stall(env, tenant, queue),
        _ => NodeTask::DropSchedule { tenant, id: schedule }.into(),
    };
    vec![task]
}

fn edit(random: &mut Random) -> FlowEdit {
    let mut limit = || random.permille(500).then(|| random.within(1, 3) as u32);
    let (parallelism, rate) = (limit(), limit().map(|rate| (rate, 2_000)));
    match random.below(9) {
        0 => FlowEdit::Pin { parallelism, rate },
        1 => FlowEdit::Unpin { parallelism: random.permille(500), rate: random.permille(500) },
        2 | 3 => FlowEdit::Pause,
        4 => FlowEdit::Resume,
        5 => FlowEdit::ResetRate,
        _ => FlowEdit::Reset,
    }
}

/// Any live messages: what a list would show. Sometimes those of queues that are delayed, which others wait for.
fn cancel(env: &mut Env, tenant: TenantId) -> Task {
    let now = env.store_now();
    let own = || env.store.live.values().filter(|row| row.tenant == tenant);
    let delayed: Vec<&Live> = own().filter(|row| row.place.is_some() && !row.is_due(now)).collect();
    let is_delayed = !delayed.is_empty() && env.random.permille(300);
    let live: Vec<&Live> = if is_delayed { delayed } else { own().collect() };
    let count = env.random.within(1, 3).min(live.len() as u64);
    let mut ids: Vec<_> = (0..count).map(|_| live[env.random.below(live.len() as u64) as usize].id).collect();
    ids.sort_unstable();
    ids.dedup();
    NodeTask::Cancel { tenant, ids }.into()
}

/// A queue is paused with a delayed message in it. Others join it after the time of that one, and when the clock is set back then,
/// they wait for it.
fn stall(env: &mut Env, tenant: TenantId, queue: String) -> Vec<Task> {
    let message = new_message(env);
    let first_due = FirstDue::AfterMs(env.random.any_size(100, 10_000));
    let spec = MessageSpec { queue: Some(queue.clone()), flow: None, ..message.spec };
    let origin = Origin::of_url(tenant, &spec.url);
    let message = NewMessage { tenant, spec, origin, first_due, dedup: None, ..message };
    let pause = NodeTask::PauseQueue { tenant, name: queue, paused: true };
    vec![pause.into(), NodeTask::Publish(vec![message]).into()]
}

/// Something that is done to many messages or dead letters, in pieces.
fn begin_bulk(env: &mut Env, tenant: TenantId) -> Task {
    const FIRST: DlqId = Position { at: Timestamp(0), n: 0 };
    let store = &env.store;
    let letters = store.dead_letters.keys().filter(|(owner, _)| *owner == tenant).map(|(_, dlq_id)| *dlq_id);
    let range = DlqRange { after: FIRST, until: letters.max().unwrap_or(FIRST), newest: store.last_seq.0 };
    let live: Vec<Seq> = store.live.values().filter(|row| row.tenant == tenant).map(|row| row.id.seq).collect();
    let (task, until) = match env.random.below(3) {
        0 if !live.is_empty() => (bulk_action::Task::Cancel, env.random.pick(&live)),
        1 => (bulk_action::Task::DlqDelete { range }, Seq::MIN),
        _ => (bulk_action::Task::DlqRetry { range, changes: Vec::new() }, Seq::MIN),
    };
    let action = BulkAction {
        tenant,
        id: Seq::MIN,
        task,
        filter: Vec::new(),
        until,
        after: Seq::MIN,
        count: None,
        rate: None,
        total: 0,
        processed: 0,
        refused: 0,
        problem: None,
        created_at: env.store_now(),
        completed_at: None,
        stopped: false,
    };
    NodeTask::PutBulkAction { action: Box::new(action), piece: None }.into()
}

/// Any message that is not due, or any live one: what a list would show.
fn deliver_now(env: &mut Env, tenant: TenantId) -> Option<Task> {
    let now = env.store_now();
    let own = || env.store.live.values().filter(|row| row.tenant == tenant);
    let late: Vec<&Live> = own().filter(|row| !row.is_due(now)).collect();
    let live = if late.is_empty() { own().collect() } else { late };
    let ids: Vec<_> = live.into_iter().map(|row| row.id).collect();
    (!ids.is_empty()).then(|| NodeTask::DeliverNow { tenant, id: env.random.pick(&ids) }.into())
}

/// All its messages are cancelled, and then it goes.
fn delete_queue(env: &Env, tenant: TenantId, name: String) -> Vec<Task> {
    let key = QueueKey::of(tenant, &name);
    let is_own = |row: &&Live| row.tenant == tenant && row.place.is_some_and(|place| place.queue == key);
    let ids = env.store.live.values().filter(is_own).map(|row| row.id).collect();
    vec![NodeTask::Cancel { tenant, ids }.into(), NodeTask::DropQueue { tenant, name }.into()]
}

fn dead_letters(env: &mut Env, tenant: TenantId) -> Vec<DlqId> {
    let own = env.store.dead_letters.keys().filter(|(owner, _)| *owner == tenant);
    let known: Vec<DlqId> = own.map(|(_, dlq_id)| *dlq_id).collect();
    let count = if known.is_empty() { 0 } else { env.random.within(1, 2) };
    (0..count).map(|_| env.random.pick(&known)).collect()
}

fn replays(env: &mut Env, tenant: TenantId) -> Vec<Replay> {
    let ids = dead_letters(env, tenant);
    let mut replays = Vec::new();
    for dlq_id in ids {
        let Some(message) = env.store.dead_letters.get(&(tenant, dlq_id)).cloned() else { continue };
        let dedup = env.random.permille(100).then(|| DedupKey([env.random.below(4) as u8; 32]));
        let spec = MessageSpec { hops: 0, ..message.spec.clone() };
        let origin = Origin::of_url(tenant, &spec.url);
        let (body, first_due) = (message.body.clone(), FirstDue::Now);
        replays.push(Replay { dlq_id, message: NewMessage { tenant, spec, body, first_due, origin, dedup } });
    }
    replays
}

fn reschedule(random: &mut Random, tenant: TenantId, id: String) -> Task {
    match Cron::parse(random.pick(&CRONS)) {
        Ok(cron) => NodeTask::Reschedule { tenant, id, cron: Box::new(cron) }.into(),
        Err(_) => NodeTask::PauseSchedule { tenant, id, paused: false }.into(),
    }
}

fn new_schedule(env: &mut Env, tenant: TenantId, id: String) -> Schedule {
    let NewMessage { spec, body, first_due, .. } = new_message(env);
    let cron = env.random.pick(&CRONS).to_owned();
    let plan = SchedulePlan {
        created_at: Timestamp(0),
        cron,
        destination: ScheduleTarget::Url(spec.url.clone()),
        delay_ms: if let FirstDue::AfterMs(delay_ms) = first_due { Some(delay_ms) } else { None },
        spec,
    };
    Schedule { tenant, id, plan, body, state: ScheduleState::default() }
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
