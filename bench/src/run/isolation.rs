//! How bad destinations, dead destinations, and another tenant that floods the server affect healthy destinations.
//!
//! The same steady load to ninety healthy destinations, each time on a fresh server: without trouble, with trouble at
//! another server on the same machine, and with trouble at the same server. Load, receivers and servers share the
//! processors, so trouble anywhere on the machine has an effect. The comparison shows the additional effect of trouble
//! at the same server. Destinations are addresses of one sink and ports of bad receivers, so each is an origin.
//!
//! The speed of a machine changes over time, and the 99th percentile shows this most. Therefore runs that are compared
//! follow one another directly. Each round gives a ratio, and the result is the median of the ratios with their range.

use super::child::{Child, free_port, this_program, tied_command};
use super::figure::{Figure, Rounds, delivered_per_s, goal, missing, paired_ratios};
use super::scenario::{AUTHORIZATION, Bench, RATE_PER_S, Repeats, SINK_ADDRESSES, Side, Target};
use super::work::Work;
use crate::clock::{now_ns, seconds_between};
use crate::hostile::MORE_THAT_HANG;
use crate::http::{Connection, get_ok, post, split_url};
use crate::load::{Report, excerpt};
use crate::stats::{Percentiles, median};
use anyhow::{Context, Result, bail};
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::Instant;

const SCENARIO: &str = "isolation";
/// Duration of each run: 6,000 messages, so that the slowest hundredth is sixty messages.
pub(super) const SECONDS: u32 = 12;
/// Healthy destinations.
const HEALTHY: u32 = 90;
const _: () = assert!(HEALTHY <= SINK_ADDRESSES as u32);
/// Destinations that do not exist. Together with those that hang they are a tenth of all.
const NONEXISTENT: usize = 5;
/// Messages that wait for each of these destinations: more than may be in flight to one.
const DEAD_BACKLOG: u32 = 300;
/// Messages per second to each bad receiver during the measurement.
const BAD_PER_S: u32 = 5;
/// The second development user, as published for `qstash dev`.
const OTHER_TENANT: &str = "Authorization: Bearer eyJVc2VySUQiOiJ0ZXN0VXNlcjEiLCJQYXNzd29yZCI6InRlc3RQYXNzd29yZCJ9";
/// Connections of the tenant that floods.
const FLOOD_CONNECTIONS: u32 = 512;

/// The trouble during the measured load.
#[derive(Clone, Copy, Debug)]
enum Trouble {
    /// Messages are published to bad receivers of every kind.
    BadReceivers,
    /// A tenth of the destinations hang or are dead, with a backlog each.
    DeadDestinations,
    /// Another tenant publishes as fast as it can.
    Flood,
}

impl Trouble {
    const ALL: [Trouble; 3] = [Trouble::BadReceivers, Trouble::DeadDestinations, Trouble::Flood];

    fn name(self) -> &'static str {
        match self {
            Trouble::BadReceivers => "bad receivers",
            Trouble::DeadDestinations => "10 % dead",
            Trouble::Flood => "another tenant floods",
        }
    }
}

/// The place of the trouble.
#[derive(Clone, Copy, Debug)]
enum Place {
    Nowhere,
    /// At a second server on the same machine.
    Elsewhere(Trouble),
    Here(Trouble),
}

impl Place {
    fn label(self) -> String {
        match self {
            Place::Nowhere => "without trouble".into(),
            Place::Elsewhere(trouble) => format!("another server with {}", trouble.name()),
            Place::Here(trouble) => format!("with {}", trouble.name()),
        }
    }
}

/// The bad receivers.
struct Hostile {
    child: Child,
    ports: Vec<u16>,
}

/// The runs with one kind of trouble, in the order of the rounds.
struct Arms {
    elsewhere: Vec<Report>,
    here: Vec<Report>,
    again: Repeats,
}

pub(super) async fn measure(bench: &mut Bench) -> Result<Vec<Figure>> {
    let port = free_port()?;
    let words = [this_program()?, "hostile".into(), format!("--port={port}")];
    let child = Child::start("hostile", &words, port, "/", bench.work_path()).await?;
    let ports = serde_json::from_slice(&get_ok(&child.base, "/").await?)?;
    let hostile = Hostile { child, ports };
    let mut nowhere = Vec::new();
    let mut again = Repeats::new(&bench.plan);
    let mut troubles = Trouble::ALL
        .map(|trouble| (trouble, Arms { elsewhere: Vec::new(), here: Vec::new(), again: Repeats::new(&bench.plan) }));
    for round in 1..=bench.plan.rounds {
        nowhere.extend(runs(bench, &hostile, round, [Place::Nowhere], &mut again).await?);
        for (trouble, arms) in &mut troubles {
            let (elsewhere, here) = (Place::Elsewhere(*trouble), Place::Here(*trouble));
            // They take turns in being first, so that a machine that gets slower affects both equally often.
            let reports = if round % 2 == 1 {
                runs(bench, &hostile, round, [elsewhere, here], &mut arms.again).await?
            } else {
                let [here, elsewhere] = runs(bench, &hostile, round, [here, elsewhere], &mut arms.again).await?;
                [elsewhere, here]
            };
            let [elsewhere, here] = reports;
            arms.elsewhere.push(elsewhere);
            arms.here.push(here);
        }
    }
    hostile.child.stop().await?;
    let mut figures = alone(&nowhere);
    for (trouble, arms) in &troubles {
        figures.extend(compared(*trouble, &nowhere, arms));
    }
    Ok(figures)
}

/// Runs that follow one another directly, each on a fresh server. If other programs disturb one, all are repeated.
async fn runs<const N: usize>(
    bench: &mut Bench,
    hostile: &Hostile,
    round: u32,
    places: [Place; N],
    again: &mut Repeats,
) -> Result<[Report; N]> {
    loop {
        let mut reports = Vec::new();
        for place in places {
            let label = format!("isolation {round}/{}, {}", bench.plan.rounds, place.label());
            reports.push(run(bench, hostile, place, &label).await?);
        }
        if again.is_due(&reports) {
            continue;
        }
        reports.iter().for_each(|report| bench.keep(&report.label, Side::Server, report));
        return reports.try_into().map_err(|_| anyhow::anyhow!("there is a report for each place"));
    }
}

async fn run(bench: &mut Bench, hostile: &Hostile, place: Place, label: &str) -> Result<Report> {
    let mut target = bench.start(Side::Server).await?;
    let other = match place {
        Place::Elsewhere(_) => Some(bench.start(Side::Server).await?),
        Place::Nowhere | Place::Here(_) => None,
    };
    let beside = match place {
        Place::Nowhere => Beside::Nothing,
        Place::Elsewhere(trouble) | Place::Here(trouble) => {
            begin(bench, trouble, other.as_ref().unwrap_or(&target), &hostile.ports).await?
        }
    };
    let pids = [Some(hostile.child.pid), other.as_ref().map(|other| other.child.pid), beside.pid()];
    target.beside.extend(pids.into_iter().flatten());
    let healthy = healthy(bench);
    let report = bench.load_warm(&mut target, label, &healthy).await?;
    beside.end(label).await?;
    // A shutdown would wait ten seconds for the receivers that hang, and nothing more is needed of these servers.
    for target in [Some(target), other].into_iter().flatten() {
        target.child.kill().await?;
    }
    Ok(report)
}

/// The measured load.
fn healthy(bench: &Bench) -> Work {
    let plain = Work::timed(bench.sink(), f64::from(bench.plan.isolation_seconds), RATE_PER_S);
    let port = bench.sink().rsplit(':').next().unwrap_or_default();
    Work { path: format!("/v2/publish/http://127.0.1.0x{{{{key}}}}:{port}/x"), keys: HEALTHY, ..plain }
}

/// The parts that keep the trouble alive. Dropping them ends it.
enum Beside {
    Nothing,
    Publishers(Publishers),
    Flood(Box<tokio::process::Child>),
}

/// The publishers to bad receivers, and their number of messages.
struct Publishers {
    tasks: JoinSet<()>,
    published: Arc<AtomicU32>,
    since_ns: u64,
}

impl Publishers {
    fn start(base: &str, ports: &[u16]) -> Result<Self> {
        let (mut tasks, published) = (JoinSet::new(), Arc::new(AtomicU32::new(0)));
        for (place, port) in (0..).zip(ports) {
            let first = Duration::from_secs(1) / BAD_PER_S * place / ports.len() as u32;
            tasks.spawn(Publisher::new(base, *port, published.clone())?.run(first));
        }
        Ok(Self { tasks, published, since_ns: now_ns() })
    }
}

impl Beside {
    fn pid(&self) -> Option<u32> {
        match self {
            Beside::Nothing | Beside::Publishers(_) => None,
            Beside::Flood(child) => child.id(),
        }
    }

    /// Ends the trouble and logs its amount: a server that got less of it is not comparable.
    async fn end(self, label: &str) -> Result<()> {
        match self {
            Beside::Nothing => {}
            Beside::Publishers(Publishers { mut tasks, published, since_ns }) => {
                tasks.shutdown().await;
                let published = published.load(Relaxed);
                if published == 0 {
                    bail!("{label}: nothing was published to bad receivers");
                }
                let per_s = f64::from(published) / seconds_between(since_ns, now_ns());
                eprintln!("{label}: {per_s:.1} messages/s to bad receivers");
            }
            Beside::Flood(mut child) => child.kill().await?,
        }
        Ok(())
    }
}

async fn begin(bench: &Bench, trouble: Trouble, target: &Target, hostile: &[u16]) -> Result<Beside> {
    let base = target.child.base.clone();
    match trouble {
        Trouble::BadReceivers => {
            let ports = [hostile, &[free_port()?]].concat();
            Ok(Beside::Publishers(Publishers::start(&base, &ports)?))
        }
        Trouble::DeadDestinations => {
            let mut urls: Vec<String> = hostile.iter().rev().take(MORE_THAT_HANG).map(url).collect();
            for _ in 0..NONEXISTENT {
                urls.push(url(&free_port()?));
            }
            publish_backlog(&base, &urls).await?;
            Ok(Beside::Nothing)
        }
        Trouble::Flood => {
            let words = [
                this_program()?,
                "load".into(),
                format!("--url={base}/v2/publish/{}/x", bench.sink()),
                format!("--header={OTHER_TENANT}"),
                format!("--conns={FLOOD_CONNECTIONS}"),
                format!("--duration={}", bench.plan.warm_up_seconds + f64::from(bench.plan.isolation_seconds) + 120.0),
            ];
            let child = tied_command(&words)?.stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
            Ok(Beside::Flood(Box::new(child)))
        }
    }
}

fn url(port: &u16) -> String {
    format!("http://127.0.0.1:{port}/")
}

const TROUBLE: &str = "trouble";
/// Messages to failing receivers have two attempts within a short time.
const TROUBLE_HEADERS: [(&str, &str); 3] =
    [("Upstash-Retries", "1"), ("Upstash-Retry-Delay", "1000"), ("Upstash-Timeout", "30s")];

/// Publishes to one bad receiver repeatedly. Each receiver has its own publisher, and their turns are spread evenly,
/// because real publishers are independent. If all receivers got a message at the same moment, a few times per second,
/// the slowest hundredth of the healthy messages would be those of such moments. The figure would then show the
/// duration of a moment instead of the effect of bad receivers.
struct Publisher {
    host: String,
    connection: Option<Connection>,
    request: Vec<u8>,
    published: Arc<AtomicU32>,
}

impl Publisher {
    fn new(base: &str, port: u16, published: Arc<AtomicU32>) -> Result<Self> {
        let (host, _) = split_url(base)?;
        let headers = TROUBLE_HEADERS.map(|(name, value)| format!("{name}: {value}\r\n")).concat();
        let (path, length) = (format!("/v2/publish/{}", url(&port)), TROUBLE.len());
        let request = format!(
            "POST {path} HTTP/1.1\r\nHost: {host}\r\n{AUTHORIZATION}\r\n{headers}Content-Length: {length}\r\n\r\n{TROUBLE}"
        );
        Ok(Self { host: host.to_owned(), connection: None, request: request.into_bytes(), published })
    }

    /// Runs until it is aborted. Catches up after a slow response, so that every server gets the same number.
    async fn run(mut self, first: Duration) {
        let mut ticks = tokio::time::interval_at(Instant::now() + first, Duration::from_secs(1) / BAD_PER_S);
        loop {
            ticks.tick().await;
            if let Err(error) = self.publish().await {
                eprintln!("isolation: {error:#}");
            }
        }
    }

    async fn publish(&mut self) -> Result<()> {
        let mut open = match self.connection.take() {
            Some(open) => open,
            None => Connection::open(&self.host).await?,
        };
        let (status, body) = open.call(&self.request).await.context("publishing trouble")?;
        self.connection = Some(open);
        if !(200..300).contains(&status) {
            bail!("publishing trouble was answered {status}: {}", excerpt(&body));
        }
        self.published.fetch_add(1, Relaxed);
        Ok(())
    }
}

/// Publishes a backlog to each of these URLs, all of which will fail.
async fn publish_backlog(base: &str, urls: &[String]) -> Result<()> {
    let headers = serde_json::Map::from_iter(TROUBLE_HEADERS.map(|(name, value)| (name.to_owned(), value.into())));
    let item = |url: &String| serde_json::json!({ "destination": url, "headers": headers, "body": TROUBLE });
    let items: Vec<_> = (0..DEAD_BACKLOG).flat_map(|_| urls.iter().map(item)).collect();
    let json = serde_json::to_vec(&items)?;
    let (status, body) = post(base, "/v2/batch", &[AUTHORIZATION], &json).await.context("publishing trouble")?;
    if status != 200 {
        bail!("publishing trouble was answered {status}: {}", excerpt(&body));
    }
    Ok(())
}

/// One of the percentiles from publish to arrival.
type Pick = fn(Percentiles) -> f64;
const PICKS: [(&str, Pick); 2] = [("p50", |found| found.p50_ms), ("p99", |found| found.p99_ms)];

fn e2e(report: &Report, pick: Pick) -> Option<f64> {
    report.delivery.as_ref()?.e2e.map(pick)
}

fn median_e2e(reports: &[Report], pick: Pick) -> Option<f64> {
    median(reports.iter().filter_map(|report| e2e(report, pick)))
}

/// The figures without trouble.
fn alone(nowhere: &[Report]) -> Vec<Figure> {
    const NAME: &str = "without trouble";
    let mut figures: Vec<Figure> = PICKS
        .map(|(percentile, pick)| {
            let name = format!("{NAME}: publish to arrival {percentile}, ms");
            Figure::server(SCENARIO, &name, median_e2e(nowhere, pick))
        })
        .into();
    figures.extend(failures(NAME, nowhere.to_vec()));
    figures
}

fn compared(trouble: Trouble, nowhere: &[Report], arms: &Arms) -> Vec<Figure> {
    let name = trouble.name();
    let Arms { elsewhere, here, .. } = arms;
    let server = |what: &str, value: Option<f64>| Figure::server(SCENARIO, &format!("{name}: {what}"), value);
    let ratios = |what: &str, ratios: &[f64]| Figure::ratios(SCENARIO, &format!("{name}: {what}"), ratios);
    let mut figures = Vec::new();
    for (percentile, pick) in PICKS {
        let value = |report: &Report| e2e(report, pick);
        let apart = median_e2e(elsewhere, pick);
        figures.push(server(&format!("publish to arrival {percentile}, trouble at another server, ms"), apart));
        figures.push(server(&format!("publish to arrival {percentile} with, ms"), median_e2e(here, pick)));
        let beside_none = paired_ratios(here, nowhere, value);
        figures.push(ratios(&format!("{percentile}, with ÷ without"), &beside_none));
        let beside_other = paired_ratios(here, elsewhere, value);
        figures.push(ratios(&format!("{percentile}, with ÷ at another server"), &beside_other).goal(match trouble {
            Trouble::BadReceivers => goal::BESIDE_BAD_RATIO,
            Trouble::DeadDestinations => goal::BESIDE_DEAD_RATIO,
            Trouble::Flood => goal::BESIDE_FLOOD_RATIO,
        }));
    }
    let rates = paired_ratios(nowhere, here, delivered_per_s);
    figures.push(ratios("delivered/s, without ÷ with", &rates).goal(goal::BESIDE_BAD_RATIO));
    figures.extend(failures(name, [&elsewhere[..], here].concat()));
    figures
}

/// Missing messages and failed publishes.
fn failures(name: &str, reports: Vec<Report>) -> [Figure; 2] {
    let all = Rounds { reference: Vec::new(), server: reports };
    let missing = Figure { name: format!("{name}: missing"), ..missing(&all, SCENARIO) };
    [missing, all.total(SCENARIO, &format!("{name}: publish errors"), |report: &Report| report.errors)]
}
