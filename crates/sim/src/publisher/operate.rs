//! What operators do to messages, queues, keys, schedules and dead letters.

use super::{CRONS, key_name, new_message, queue_name, tenant};
use crate::command::{NodeTask, Task};
use crate::env::Env;
use crate::random::Random;
use posthaste_engine::bulk_action::{self, BulkAction, DlqRange};
use posthaste_engine::flow::FlowEdit;
use posthaste_engine::message::{DedupKey, Live, MessageSpec, Origin, QueueKey};
use posthaste_engine::schedule::{Schedule, SchedulePlan, ScheduleState, ScheduleTarget};
use posthaste_node::{FirstDue, NewMessage, QueueSettings, Replay};
use posthaste_wire::cron::Cron;
use posthaste_wire::id::{DlqId, Position, Seq, TenantId};
use posthaste_wire::time::Timestamp;

/// What operators do to messages, queues, keys and schedules.
pub(super) fn operate(env: &mut Env) -> Vec<Task> {
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
