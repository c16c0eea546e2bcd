//! Many queues and many flow-control keys compared with messages without any: the cost of order and limits.
//!
//! The same number of messages is published without keys and with them in turn, each time to a fresh server and over
//! the same connections. The limits of the flow-control keys are checked but never reached.

use super::figure::{Figure, Goal, Rounds, cpu_us, delivered_per_s, goal, missing, number, ratio};
use super::scenario::{Bench, Side};
use super::work::Work;
use crate::load::Report;
use crate::stats::median;
use anyhow::Result;

/// Messages for each key.
const MESSAGES_PER_KEY: u32 = 10;

/// A kind of key, and how messages get one.
struct Kind {
    scenario: &'static str,
    /// The name for people.
    keys: &'static str,
    /// Whether messages of a key must arrive in order.
    ordered: bool,
    keyed: fn(Work, &str) -> Work,
}

/// FIFO queues.
pub(super) async fn queues(bench: &mut Bench) -> Result<Vec<Figure>> {
    let keyed = |work: Work, sink: &str| Work { path: format!("/v2/enqueue/q-{{{{key}}}}/{sink}/x"), ..work };
    measure(bench, &Kind { scenario: "queues", keys: "queues", ordered: true, keyed }).await
}

/// Flow-control keys.
pub(super) async fn flow(bench: &mut Bench) -> Result<Vec<Figure>> {
    let keyed = |work: Work, _: &str| Work {
        headers: vec![
            "Upstash-Flow-Control-Key: f-{{key}}".into(),
            "Upstash-Flow-Control-Value: parallelism=10, rate=1000, period=1s".into(),
        ],
        ..work
    };
    measure(bench, &Kind { scenario: "flow", keys: "flow-control keys", ordered: false, keyed }).await
}

async fn measure(bench: &mut Bench, kind: &Kind) -> Result<Vec<Figure>> {
    let (keys, rounds) = (bench.plan.keys, bench.plan.rounds);
    let plain = Work::counted(bench.sink(), keys * MESSAGES_PER_KEY);
    let keyed = (kind.keyed)(Work { keys, ordered: kind.ordered, ..plain.clone() }, bench.sink());
    let (mut without, mut with) = (Rounds::default(), Rounds::default());
    for round in 1..=rounds {
        for (work, name, reports) in [(&plain, "without", &mut without.server), (&keyed, "with", &mut with.server)] {
            let label = format!("{} {round}/{rounds}, {name} keys", kind.scenario);
            let mut target = bench.start(Side::Server).await?;
            reports.push(bench.measure(&mut target, &label, work).await?);
            bench.stop(target).await;
        }
    }
    Ok(figures(kind, keys, &without, &with))
}

fn figures(kind: &Kind, keys: u32, without: &Rounds, with: &Rounds) -> Vec<Figure> {
    let Kind { scenario, keys: noun, ordered, .. } = *kind;
    let of = |rounds: &Rounds, value: fn(&Report) -> Option<f64>| median(rounds.server.iter().filter_map(value));
    let server = |name: &str, value: Option<f64>| Figure::server(scenario, name, value);
    let p99_ms = |report: &Report| report.publish.map(|publish| publish.p99_ms);
    let (slow, fast) = (of(with, delivered_per_s), of(without, delivered_per_s));
    let all = Rounds { reference: Vec::new(), server: [&without.server[..], &with.server[..]].concat() };
    let mut figures = vec![
        server("delivered/s without keys", fast),
        server(&format!("delivered/s with {} {noun}", number(f64::from(keys))), slow),
        server("delivered/s, with ÷ without", ratio(slow, fast)).goal(goal::KEYED_RATIO),
        server("publish p99 without keys, ms", of(without, p99_ms)),
        server("publish p99 with keys, ms", of(with, p99_ms)),
        server("CPU per message without keys, µs", of(without, cpu_us)),
        server("CPU per message with keys, µs", of(with, cpu_us)),
        missing(&all, scenario),
        all.total(scenario, "publish errors", |report| report.errors),
    ];
    if ordered {
        let overtakers = |report: &Report| report.delivery.as_ref().and_then(|d| d.overtakers).unwrap_or(report.acked);
        figures.push(with.total(scenario, "delivered out of order", overtakers).goal(Goal::None));
    }
    figures
}
