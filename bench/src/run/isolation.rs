//! What healthy destinations notice of bad ones, of dead ones, and of another tenant who floods the server.
//!
//! The same steady load to ninety healthy destinations, each time on a fresh server: without trouble, with the trouble
//! at another server on the same machine, and with the trouble at the same server. Load, receivers and servers share the
//! processors, so trouble anywhere on the machine is noticed; what counts is how much more is noticed of trouble at the
//! same server. Destinations are addresses of one sink, and ports of bad receivers: as many origins.

use super::child::{Child, free_port, this_program, tied_command};
use super::figure::{Figure, Rounds, delivered_per_s, goal, missing, ratio};
use super::scenario::{AUTHORIZATION, Bench, RATE_PER_S, SINK_ADDRESSES, Side, Target};
use super::work::Work;
use crate::hostile::MORE_THAT_HANG;
use crate::http::{get_ok, post};
use crate::load::{Report, excerpt};
use crate::stats::{Percentiles, median};
use anyhow::{Context, Result, bail};
use std::process::Stdio;
use std::time::Duration;

const SCENARIO: &str = "isolation";
/// Healthy destinations.
const HEALTHY: u32 = 90;
const _: () = assert!(HEALTHY <= SINK_ADDRESSES as u32);
/// Destinations that do not exist; with those that hang they are a tenth of all.
const NOBODY: usize = 5;
/// Messages that wait for each of those: more than may be under way to one destination.
const DEAD_BACKLOG: u32 = 300;
/// Messages per second to each kind of bad receiver, while the healthy ones are measured.
const BAD_PER_S: u32 = 5;
/// The second development user, as published for `qstash dev`.
const OTHER_TENANT: &str = "Authorization: Bearer eyJVc2VySUQiOiJ0ZXN0VXNlcjEiLCJQYXNzd29yZCI6InRlc3RQYXNzd29yZCJ9";
/// Connections of the tenant who floods.
const FLOOD_CONNECTIONS: u32 = 512;

/// What goes on beside the measured load.
#[derive(Clone, Copy, Debug)]
enum Trouble {
    /// Bad receivers of every kind are published to all the time.
    BadReceivers,
    /// A tenth of the destinations hang or are dead, with a backlog each.
    DeadDestinations,
    /// Another tenant publishes as fast as it can.
    Flood,
}

impl Trouble {
    fn name(self) -> &'static str {
        match self {
            Trouble::BadReceivers => "bad receivers",
            Trouble::DeadDestinations => "10 % dead",
            Trouble::Flood => "another tenant floods",
        }
    }
}

pub(super) async fn measure(bench: &mut Bench) -> Result<Vec<Figure>> {
    let port = free_port()?;
    let words = [this_program()?, "hostile".into(), format!("--port={port}")];
    let hostile = Child::start("hostile", &words, port, "/", bench.work_path()).await?;
    let ports: Vec<u16> = serde_json::from_slice(&get_ok(&hostile.base, "/").await?)?;
    let mut figures = Vec::new();
    for trouble in [Trouble::BadReceivers, Trouble::DeadDestinations, Trouble::Flood] {
        let arms = rounds(bench, trouble, &ports, hostile.pid).await?;
        figures.extend(compared(trouble, &arms));
    }
    hostile.stop().await?;
    Ok(figures)
}

/// Where the trouble is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Nowhere,
    /// At a second server on the same machine.
    Elsewhere,
    Here,
}

/// The reports of each place.
#[derive(Default)]
struct Arms {
    nowhere: Rounds,
    elsewhere: Rounds,
    here: Rounds,
}

/// Each place in turn.
async fn rounds(bench: &mut Bench, trouble: Trouble, hostile: &[u16], hostile_pid: u32) -> Result<Arms> {
    let mut arms = Arms::default();
    for round in 1..=bench.plan.rounds {
        for place in [Place::Nowhere, Place::Elsewhere, Place::Here] {
            let (reports, words) = match place {
                Place::Nowhere => (&mut arms.nowhere, "without"),
                Place::Elsewhere => (&mut arms.elsewhere, "another server with"),
                Place::Here => (&mut arms.here, "with"),
            };
            let label = format!("isolation {round}/{}, {words} {}", bench.plan.rounds, trouble.name());
            let mut target = bench.start(Side::Server).await?;
            let other = if place == Place::Elsewhere { Some(bench.start(Side::Server).await?) } else { None };
            // Dropping it ends it.
            let beside = match place {
                Place::Nowhere => Beside::Nothing,
                _ => begin(bench, trouble, other.as_ref().unwrap_or(&target), hostile).await?,
            };
            let pids = [Some(hostile_pid), other.as_ref().map(|other| other.child.pid), beside.pid()];
            target.beside.extend(pids.into_iter().flatten());
            let healthy = healthy(bench);
            reports.server.push(bench.measure(&mut target, &label, &healthy).await?);
            drop(beside);
            for target in [Some(target), other].into_iter().flatten() {
                bench.stop(target).await;
            }
        }
    }
    Ok(arms)
}

/// The load that is measured.
fn healthy(bench: &Bench) -> Work {
    let plain = Work::timed(bench.sink(), f64::from(bench.plan.seconds), RATE_PER_S);
    let port = bench.sink().rsplit(':').next().unwrap_or_default();
    Work { path: format!("/v2/publish/http://127.0.1.0x{{{{key}}}}:{port}/x"), keys: HEALTHY, ..plain }
}

/// What must be kept while the trouble lasts.
enum Beside {
    Nothing,
    Publisher(tokio::task::JoinHandle<()>),
    Flood(Box<tokio::process::Child>),
}

impl Beside {
    fn pid(&self) -> Option<u32> {
        match self {
            Beside::Nothing | Beside::Publisher(_) => None,
            Beside::Flood(child) => child.id(),
        }
    }
}

impl Drop for Beside {
    fn drop(&mut self) {
        match self {
            Beside::Nothing => {}
            Beside::Publisher(task) => task.abort(),
            // Its command is killed when it is dropped; this does it at once.
            Beside::Flood(child) => drop(child.start_kill()),
        }
    }
}

async fn begin(bench: &Bench, trouble: Trouble, target: &Target, hostile: &[u16]) -> Result<Beside> {
    let base = target.child.base.clone();
    match trouble {
        Trouble::BadReceivers => {
            let dead = free_port()?;
            let urls: Vec<String> = hostile.iter().chain([&dead]).map(url).collect();
            publish(&base, &urls, BAD_PER_S).await?;
            Ok(Beside::Publisher(tokio::spawn(async move {
                let mut ticks = tokio::time::interval(Duration::from_secs(1) / BAD_PER_S);
                loop {
                    ticks.tick().await;
                    if let Err(error) = publish(&base, &urls, 1).await {
                        eprintln!("isolation: {error:#}");
                    }
                }
            })))
        }
        Trouble::DeadDestinations => {
            let mut urls: Vec<String> = hostile.iter().rev().take(MORE_THAT_HANG).map(url).collect();
            for _ in 0..NOBODY {
                urls.push(url(&free_port()?));
            }
            publish(&base, &urls, DEAD_BACKLOG).await?;
            Ok(Beside::Nothing)
        }
        Trouble::Flood => {
            let words = [
                this_program()?,
                "load".into(),
                format!("--url={base}/v2/publish/{}/x", bench.sink()),
                format!("--header={OTHER_TENANT}"),
                format!("--conns={FLOOD_CONNECTIONS}"),
                format!("--duration={}", bench.plan.warm_up_seconds + f64::from(bench.plan.seconds) + 120.0),
            ];
            let child = tied_command(&words)?.stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
            Ok(Beside::Flood(Box::new(child)))
        }
    }
}

fn url(port: &u16) -> String {
    format!("http://127.0.0.1:{port}/")
}

/// Publishes so many messages to each of these, which will fail, twice each, and not for long.
async fn publish(base: &str, urls: &[String], each: u32) -> Result<()> {
    let headers =
        serde_json::json!({ "Upstash-Retries": "1", "Upstash-Retry-Delay": "1000", "Upstash-Timeout": "30s" });
    let item = |url: &String| serde_json::json!({ "destination": url, "headers": headers, "body": "trouble" });
    let items: Vec<_> = (0..each).flat_map(|_| urls.iter().map(item)).collect();
    let json = serde_json::to_vec(&items)?;
    let (status, body) = post(base, "/v2/batch", &[AUTHORIZATION], &json).await.context("publishing trouble")?;
    if status != 200 {
        bail!("publishing trouble was answered {status}: {}", excerpt(&body));
    }
    Ok(())
}

/// One of the percentiles.
type Pick = fn(Percentiles) -> f64;

fn compared(trouble: Trouble, arms: &Arms) -> Vec<Figure> {
    let name = trouble.name();
    let Arms { nowhere, elsewhere, here } = arms;
    let e2e = |rounds: &Rounds, pick: Pick| {
        median(rounds.server.iter().filter_map(|report| report.delivery.as_ref()?.e2e.map(pick)))
    };
    let rate = |rounds: &Rounds| median(rounds.server.iter().filter_map(delivered_per_s));
    let server = |what: &str, value: Option<f64>| Figure::server(SCENARIO, &format!("{name}: {what}"), value);
    let mut figures = Vec::new();
    let picks: [(&str, Pick); 2] = [("p50", |found| found.p50_ms), ("p99", |found| found.p99_ms)];
    for (percentile, pick) in picks {
        let [alone, apart, together] = [nowhere, elsewhere, here].map(|rounds| e2e(rounds, pick));
        figures.push(server(&format!("publish to arrival {percentile} without, ms"), alone));
        figures.push(server(&format!("publish to arrival {percentile}, trouble at another server, ms"), apart));
        figures.push(server(&format!("publish to arrival {percentile} with, ms"), together));
        figures.push(server(&format!("{percentile}, with ÷ without"), ratio(together, alone)));
        let compared = server(&format!("{percentile}, with ÷ at another server"), ratio(together, apart));
        figures.push(match trouble {
            Trouble::BadReceivers if percentile == "p50" => compared.goal(goal::BESIDE_BAD_RATIO),
            Trouble::BadReceivers => compared.goal(goal::BESIDE_BAD_P99_RATIO),
            Trouble::DeadDestinations => compared.goal(goal::BESIDE_DEAD_RATIO),
            Trouble::Flood => compared.goal(goal::BESIDE_FLOOD_RATIO),
        });
    }
    figures.push(server("delivered/s, without ÷ with", ratio(rate(nowhere), rate(here))).goal(goal::BESIDE_BAD_RATIO));
    let server_runs = [nowhere, elsewhere, here].map(|rounds| &rounds.server[..]).concat();
    let all = Rounds { reference: Vec::new(), server: server_runs };
    let mut missing = missing(&all, SCENARIO);
    missing.name = format!("{name}: missing");
    figures.push(missing);
    figures.push(all.total(SCENARIO, &format!("{name}: publish errors"), |report: &Report| report.errors));
    figures
}
