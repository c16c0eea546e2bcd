//! The console on top of a million messages: the response time of its pages, and the cost of a page with live charts.
//!
//! Pages are requested one after the other, as a browser does. An open page reloads itself at an interval that the page
//! contains.

use super::figure::{Figure, TARGET, goal, number};
use super::fill::Backlog;
use super::scenario::{Bench, Side, Target};
use super::work::Work;
use crate::account::Account;
use crate::clock::{now_ns, seconds_between};
use crate::http::{Connection, split_url};
use crate::load::excerpt;
use crate::process::NamedPid;
use crate::stats::{Percentiles, median};
use anyhow::{Context, Result, bail};
use std::time::Duration;
use tokio::task::JoinSet;

const SCENARIO: &str = "console";
/// Stored messages, unless the plan has fewer.
const STORED_MAX: u32 = 1_000_000;
/// The page with live charts.
const NOW: &str = "/console";
/// How often each page is requested.
const TIMES: usize = 50;
/// The label of the oldest message.
const OLDEST: &str = "the-oldest-of-all";
/// Pages with live charts that are open at the same time.
const OPEN: u32 = 10;

/// Pages of the console, and whether their time has a goal.
const PAGES: [(&str, &str, bool); 8] = [
    ("messages", "/console/messages", true),
    ("messages, oldest first", "/console/messages?order=earliestFirst", true),
    ("messages, delivered", "/console/messages?state=DELIVERED", true),
    ("messages, of a label that only the oldest has", "/console/messages?label=the-oldest-of-all", true),
    ("messages, of a state that none is in", "/console/messages?state=CANCELED", true),
    ("Now", NOW, false),
    ("DLQ", "/console/dlq", false),
    ("queues", "/console/queues", false),
];

pub(super) async fn measure(bench: &mut Bench) -> Result<Vec<Figure>> {
    let stored = bench.plan.stored.min(STORED_MAX);
    let mut target = bench.start(Side::Server).await?;
    let oldest = Work { headers: vec![format!("Upstash-Label: {OLDEST}")], ..Work::counted(bench.sink(), 1) };
    bench.measure(&mut target, "console, the oldest", &oldest).await?;
    let filled = Backlog::new(bench).fill(&target, stored).await?;
    bench.noise.add("console, filling", Side::Server, filled.foreign_cpu_pct);
    let delivered = Work::timed(bench.sink(), f64::from(bench.plan.seconds), 0);
    bench.measure(&mut target, "console, delivered ones", &delivered).await?;
    tokio::time::sleep(bench.plan.settle).await;

    let mut figures = Vec::new();
    for (name, path, is_judged) in PAGES {
        let took = time(&target, path).await?;
        eprintln!("console: {name}: p50 {} ms, max {} ms", number(took.p50_ms), number(took.max_ms));
        let count = number(f64::from(stored));
        let slowest =
            Figure::server(SCENARIO, &format!("{name}: slowest of {TIMES}, ms, {count} stored"), Some(took.max_ms));
        figures.push(Figure::server(SCENARIO, &format!("{name}: p50, ms"), Some(took.p50_ms)));
        figures.push(if is_judged { slowest.goal(goal::LIST_PAGE_MS) } else { slowest });
    }
    figures.extend(charts(bench, &target).await?);
    bench.stop(target).await;
    Ok(figures)
}

async fn time(target: &Target, path: &str) -> Result<Percentiles> {
    let mut browser = Browser::open(target).await?;
    browser.show(path).await?;
    let mut took = Vec::new();
    for _ in 0..TIMES {
        let start_ns = now_ns();
        browser.show(path).await?;
        took.push(now_ns() - start_ns);
    }
    Percentiles::of(&mut took).context("no page was timed")
}

/// The cost of pages with live charts, alternating with the same time without them.
async fn charts(bench: &mut Bench, target: &Target) -> Result<Vec<Figure>> {
    let (mut without, mut with) = (Vec::new(), Vec::new());
    for round in 1..=bench.plan.rounds {
        for open in [0, OPEN] {
            let account = Account::of_processes(vec![
                NamedPid { name: TARGET.into(), pid: target.child.pid },
                NamedPid { name: "browsers".into(), pid: std::process::id() },
            ]);
            let start_ns = now_ns();
            watch(target, open, bench.plan.idle).await?;
            let spent = account.read();
            let seconds = seconds_between(start_ns, now_ns());
            bench.noise.add(&format!("console, {open} open {round}"), Side::Server, spent.foreign_cpu_pct);
            let share = spent.cpu_s_of(TARGET) / seconds * 100.0;
            if open == 0 { without.push(share) } else { with.push(share) }
        }
    }
    let (without, with) = (median(without), median(with));
    let per_page = with.zip(without).map(|(with, without)| (with - without) / f64::from(OPEN));
    Ok(vec![
        Figure::server(SCENARIO, "no page open: CPU, % of a core", without),
        Figure::server(SCENARIO, &format!("{OPEN} pages with live charts open: CPU, % of a core"), with),
        Figure::server(SCENARIO, "live charts: CPU per open page, % of a core", per_page).goal(goal::CHARTS_CPU_PCT),
    ])
}

/// Keeps this many pages open for this time, or until each was loaded once.
async fn watch(target: &Target, open: u32, time: Duration) -> Result<()> {
    let every = refreshed_every(&Browser::open(target).await?.show(NOW).await?)?;
    let shown = (time.as_millis() / every.as_millis().max(1)).max(1) as u32;
    let mut pages = JoinSet::new();
    for _ in 0..open {
        let mut browser = Browser::open(target).await?;
        pages.spawn(async move {
            let mut times = tokio::time::interval(every);
            for _ in 0..shown {
                times.tick().await;
                browser.show(NOW).await?;
            }
            anyhow::Ok(())
        });
    }
    tokio::time::sleep(every * shown).await;
    while let Some(page) = pages.join_next().await {
        page.context("a page was closed early")??;
    }
    Ok(())
}

/// The reload interval of a page.
fn refreshed_every(page: &[u8]) -> Result<Duration> {
    const NAME: &str = "data-refresh=\"";
    let page = std::str::from_utf8(page)?;
    let (_, rest) = page.split_once(NAME).context("the page has nothing that is refreshed")?;
    let millis = rest.split('"').next().unwrap_or_default();
    Ok(Duration::from_millis(millis.parse().with_context(|| format!("{NAME}{millis}"))?))
}

/// One keep-alive connection.
struct Browser {
    host: String,
    connection: Connection,
}

impl Browser {
    async fn open(target: &Target) -> Result<Self> {
        let (host, _) = split_url(&target.child.base)?;
        Ok(Self { host: host.to_owned(), connection: Connection::open(host).await? })
    }

    /// Loads the whole page.
    async fn show(&mut self, path: &str) -> Result<Vec<u8>> {
        let request = format!("GET {path} HTTP/1.1\r\nHost: {}\r\nAccept: text/html\r\n\r\n", self.host);
        match self.connection.call(request.as_bytes()).await? {
            (200, page) => Ok(page),
            (status, page) => bail!("{path} was answered {status}: {}", excerpt(&page)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reload_interval_is_read_from_the_page() {
        let every = refreshed_every(br#"<p></p><div id="now" data-refresh="2000" data-also="x">"#).unwrap();
        assert_eq!(every, Duration::from_secs(2));
        assert!(refreshed_every(b"<p>still</p>").is_err());
        assert!(refreshed_every(br#"<p data-refresh="soon">"#).is_err());
    }

    #[test]
    fn the_page_of_the_oldest_message_filters_by_its_label() {
        assert!(PAGES.iter().any(|(_, path, _)| path.ends_with(&format!("label={OLDEST}"))));
    }
}
