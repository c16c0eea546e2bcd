//! Workflow functions: what a seed writes, and what a client makes of a delivery. It replays the steps it is shown and
//! does the next one.

use crate::random::Random;
use posthaste_engine::workflow::entry::Entry;
use posthaste_engine::workflow::run::StepText;
use posthaste_wire::encoding::from_base64;
use posthaste_wire::workflow::{CallType, StepInfo};
use serde_json::{Value, json};

/// Which event, of the few that there are.
pub(crate) type EventNo = u64;

/// What a step does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Run,
    Sleep {
        ms: u64,
    },
    Call,
    Wait {
        event: EventNo,
        timeout_ms: u64,
    },
    Notify {
        event: EventNo,
    },
    /// Another function of the world, by its number.
    Invoke {
        function: usize,
    },
    /// It throws, every time.
    Fail,
}

/// A function: groups of steps, one after the other; those of one group run in parallel.
#[derive(Clone, Debug)]
pub(crate) struct Program {
    pub groups: Vec<Vec<Kind>>,
    /// Somebody hears of its failure.
    pub has_failure_call: bool,
}

/// What a step of a run is, wherever it is written down.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Line {
    Trigger,
    /// A branch is announced.
    Plan(u32),
    /// Somebody is called.
    Call(u32),
    /// How that went.
    Told(u32),
    Result(u32),
}

/// What the client does when it is shown a list.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Deed {
    /// Announces branches; those that sleep are delivered later.
    Plan(Vec<(StepText, u64)>),
    /// Executes a step and publishes its result, which is delivered after so long.
    Execute {
        number: u32,
        step: StepText,
        after_ms: u64,
    },
    Call {
        number: u32,
        concurrent: usize,
    },
    Wait {
        number: u32,
        step: StepText,
        event: EventNo,
        timeout_ms: u64,
    },
    Notify {
        number: u32,
        step: StepText,
        event: EventNo,
    },
    Invoke {
        number: u32,
        step: StepText,
        function: usize,
    },
    Fail,
    Finish,
    Nothing,
}

impl Deed {
    /// The step that is executed thereby.
    pub(crate) fn number(&self) -> Option<u32> {
        match self {
            Deed::Execute { number, .. }
            | Deed::Call { number, .. }
            | Deed::Wait { number, .. }
            | Deed::Notify { number, .. }
            | Deed::Invoke { number, .. } => Some(*number),
            Deed::Plan(_) | Deed::Fail | Deed::Finish | Deed::Nothing => None,
        }
    }
}

/// Functions of one world. Each invokes only those behind it, so that nobody waits for himself.
pub(crate) const FUNCTIONS: usize = 3;
/// Events of one world.
pub(crate) const EVENTS: u64 = 2;

impl Program {
    pub(crate) fn draw_all(random: &mut Random) -> Vec<Program> {
        (0..FUNCTIONS).map(|no| Program::draw(random, no)).collect()
    }

    fn draw(random: &mut Random, no: usize) -> Program {
        let groups = random.within(1, 3);
        let mut group = || {
            let steps = if random.permille(600) { 1 } else { random.within(2, 3) };
            (0..steps).map(|_| Kind::draw(random, no)).collect()
        };
        let groups = (0..groups).map(|_| group()).collect();
        Program { groups, has_failure_call: random.permille(500) }
    }

    /// The group that a step is in: its number among them, the number of its first step, and the group.
    fn group_of(&self, number: u32) -> Option<(usize, u32, &[Kind])> {
        let mut first = 1;
        for (place, group) in self.groups.iter().enumerate() {
            let end = first + group.len() as u32;
            if (first..end).contains(&number) {
                return Some((place, first, group));
            }
            first = end;
        }
        None
    }

    pub(crate) fn steps(&self) -> u32 {
        self.groups.iter().map(|group| group.len() as u32).sum()
    }

    pub(crate) fn kind(&self, number: u32) -> Option<Kind> {
        let (_, first, group) = self.group_of(number)?;
        Some(group[(number - first) as usize])
    }

    /// What must be in the list before this line can be.
    pub(crate) fn before(&self, line: Line) -> Vec<Line> {
        let number = match line {
            Line::Trigger => return Vec::new(),
            Line::Plan(number) | Line::Call(number) | Line::Told(number) | Line::Result(number) => number,
        };
        let Some((_, first, group)) = self.group_of(number) else { return Vec::new() };
        let mut lines: Vec<Line> = (1..first).map(Line::Result).chain([Line::Trigger]).collect();
        let is_call = group[(number - first) as usize] == Kind::Call;
        match line {
            Line::Plan(_) | Line::Trigger => return lines,
            Line::Result(_) if is_call => lines.push(Line::Told(number)),
            Line::Told(_) => lines.push(Line::Call(number)),
            Line::Result(_) | Line::Call(_) => {}
        }
        if group.len() > 1 {
            lines.extend((first..first + group.len() as u32).map(Line::Plan));
        }
        lines
    }

    /// Everything that the list of a run that has succeeded has, in no order.
    pub(crate) fn lines(&self) -> Vec<Line> {
        let mut lines = vec![Line::Trigger];
        for number in 1..=self.steps() {
            let Some((_, first, group)) = self.group_of(number) else { continue };
            lines.push(Line::Result(number));
            if group.len() > 1 {
                lines.push(Line::Plan(number));
            }
            if group[(number - first) as usize] == Kind::Call {
                lines.extend([Line::Call(number), Line::Told(number)]);
            }
        }
        lines
    }

    /// What the client does when it is shown these steps.
    pub(crate) fn respond(&self, payload: &str, steps: &[StepInfo]) -> Deed {
        let mut first = 1;
        for group in &self.groups {
            let numbers = first..first + group.len() as u32;
            let is_own = |step: &&StepInfo| numbers.contains(&step.target.unwrap_or(step.id));
            let shown = steps.iter().filter(is_own).count();
            let is_parallel = group.len() > 1;
            let all = if is_parallel { 2 * group.len() } else { 1 };
            if shown >= all {
                first = numbers.end;
                continue;
            }
            if !is_parallel {
                return execute(payload, first, group[0], 1, false);
            }
            if shown == 0 {
                return Deed::Plan(numbers.zip(group).map(|(number, kind)| plan(number, *kind, group.len())).collect());
            }
            return match steps.last().and_then(|last| last.target) {
                Some(number) => execute(payload, number, group[(number - first) as usize], group.len(), true),
                None => Deed::Nothing,
            };
        }
        Deed::Finish
    }
}

impl Kind {
    fn draw(random: &mut Random, no: usize) -> Kind {
        let invokes = if no + 1 < FUNCTIONS { 3 } else { 0 };
        let event = random.below(EVENTS);
        match random.weighted(&[8, 3, 3, 3, 1, invokes, 1]) {
            0 => Kind::Run,
            1 => Kind::Sleep { ms: random.any_size(10, 20_000) },
            2 => Kind::Call,
            3 => Kind::Wait { event, timeout_ms: random.any_size(100, 30_000) },
            4 => Kind::Notify { event },
            5 => Kind::Invoke { function: random.within(no as u64 + 1, FUNCTIONS as u64 - 1) as usize },
            _ => Kind::Fail,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Kind::Run | Kind::Fail => "Run",
            Kind::Sleep { .. } => "SleepFor",
            Kind::Call => "Call",
            Kind::Wait { .. } => "Wait",
            Kind::Notify { .. } => "Notify",
            Kind::Invoke { .. } => "Invoke",
        }
    }
}

fn text(value: Value) -> StepText {
    match value {
        Value::Object(text) => text,
        _ => StepText::new(),
    }
}

fn step(number: u32, kind: Kind, concurrent: usize) -> StepText {
    let name = format!("step {number}");
    text(json!({"stepId": number, "stepName": name, "stepType": kind.name(), "concurrent": concurrent}))
}

fn plan(number: u32, kind: Kind, concurrent: usize) -> (StepText, u64) {
    let mut plan = step(0, kind, concurrent);
    plan.insert("targetStep".into(), number.into());
    (plan, if let Kind::Sleep { ms } = kind { ms } else { 0 })
}

fn execute(payload: &str, number: u32, kind: Kind, concurrent: usize, has_slept: bool) -> Deed {
    let mut step = step(number, kind, concurrent);
    match kind {
        Kind::Run => {
            step.insert("out".into(), format!("step {number} of {payload}").into());
            Deed::Execute { number, step, after_ms: 0 }
        }
        Kind::Sleep { ms } => Deed::Execute { number, step, after_ms: if has_slept { 0 } else { ms } },
        Kind::Call => Deed::Call { number, concurrent },
        Kind::Wait { event, timeout_ms } => Deed::Wait { number, step, event, timeout_ms },
        Kind::Notify { event } => {
            step.insert("out".into(), event_name(event).into());
            Deed::Notify { number, step, event }
        }
        Kind::Invoke { function } => Deed::Invoke { number, step, function },
        Kind::Fail => Deed::Fail,
    }
}

pub(crate) fn event_name(event: EventNo) -> String {
    format!("event-{event}")
}

/// What comes with an event.
pub(crate) fn event_data(event: EventNo) -> Vec<u8> {
    data_of(&event_name(event))
}

/// What comes with the event of this name.
pub(crate) fn data_of(event: &str) -> Vec<u8> {
    format!("what {event} brings").into_bytes()
}

/// What a function returns.
pub(crate) fn result(payload: &str) -> String {
    format!("\"end of {payload}\"")
}

/// Where the runs of a function are executed.
pub(crate) fn url(function: usize) -> String {
    format!("https://flow.example/{function}")
}

/// The function that is executed there.
pub(crate) fn function_at(url: &str) -> Option<usize> {
    url.strip_prefix("https://flow.example/")?.parse().ok()
}

/// The header that says which step a call is about.
pub(crate) const STEP_HEADER: &str = "Upstash-Workflow-Stepid";
/// The header that says how many steps its group has.
pub(crate) const CONCURRENT_HEADER: &str = "Upstash-Workflow-Concurrent";

/// The result that the client publishes when it hears how a call went.
pub(crate) fn call_result(number: u32, concurrent: usize, told: &[u8]) -> StepText {
    let told: Value = serde_json::from_slice(told).unwrap_or_default();
    let mut result = step(number, Kind::Call, concurrent);
    result.insert("out".into(), json!({"status": told["status"], "body": told["body"]}).to_string().into());
    result
}

/// What a list shows, as a client reads it: what the run was given, and the steps so far.
pub(crate) fn shown(list: &[u8]) -> Option<(String, Vec<StepInfo>)> {
    let list: Vec<Value> = serde_json::from_slice(list).ok()?;
    let body = |element: &Value| from_base64(element["body"].as_str()?);
    let payload = String::from_utf8(body(list.first()?)?).ok()?;
    let steps = list.iter().skip(1).filter(|element| element["callType"] == "step");
    let steps: Option<Vec<StepInfo>> = steps.map(|element| Some(StepInfo::parse(&body(element)?))).collect();
    Some((payload, steps?))
}

/// What an entry is.
pub(crate) fn line(entry: &Entry) -> Option<Line> {
    let told = || entry.terms.headers.iter().find(|(name, _)| name == STEP_HEADER)?.1.parse().ok();
    match &entry.terms.call_type {
        CallType::Step if entry.index == 0 => Some(Line::Trigger),
        CallType::Step => Some(entry.gist.info.target.map_or(Line::Result(entry.gist.info.id), Line::Plan)),
        CallType::ToCallback => entry.terms.call.as_ref().map(|call| Line::Call(call.step)),
        CallType::FromCallback => told().map(Line::Told),
        CallType::Other(_) => None,
    }
}
