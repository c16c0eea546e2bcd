//! The whole suite as one test: every case, then one table.

use crate::cases::{Case, all};
use crate::plan::Plan;
use crate::report::{self, Row, say};
use crate::stage::{Attack, Beside, Measured, Stage, perform};
use crate::verdict::{Alone, Problems, judge};
use std::time::Duration;

/// The neighbour works alone for this long before the attacks.
const ALONE: Duration = Duration::from_secs(2);
/// Requests per second of the neighbour: publishes, and as many reads.
const RATE: u32 = 30;
/// The same beside attacks that last long.
const RATE_WAITING: u32 = 10;

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn no_caller_stops_the_server_or_slows_its_neighbours() {
    let plan = Plan::from_environment();
    let cases = all();
    let names: Vec<&str> = cases.iter().map(|case| case.name).collect();
    let unknown = plan.unknown(&names);
    assert!(unknown.is_empty(), "there is no case {unknown:?}; there are {names:?}");
    crate::client::raise_open_files();
    let alone = measure_alone(&plan).await;
    say(&format!("abuse: {}", plan.binary.display()));
    say(&format!(
        "abuse: the neighbour alone: publish p99 {} ms, read p99 {} ms",
        alone.publish_p99.as_millis(),
        alone.read_p99.as_millis()
    ));
    let wanted = cases.into_iter().filter(|case| plan.wants(case.name));
    // Cases that mostly wait for a timeout run beside the others.
    let (waiting, busy): (Vec<Case>, Vec<Case>) = wanted.partition(|case| case.waits);
    let waiting: Vec<_> = waiting.into_iter().map(|case| tokio::spawn(run(case, plan.clone(), alone))).collect();
    let mut rows = Vec::new();
    for case in busy {
        rows.push(run(case, plan.clone(), alone).await);
    }
    for case in waiting {
        rows.push(case.await.expect("the panics of a case are caught"));
    }
    rows.sort_by_key(|row| names.iter().position(|name| *name == row.name));
    say(&report::table(&rows));
    std::fs::write(&plan.out, format!("{:#}\n", report::json(&rows))).expect("the report can be written");
    let failed: Vec<&str> = rows.iter().filter(|row| !row.problems.is_empty()).map(|row| row.name).collect();
    assert!(failed.is_empty(), "failed: {failed:?}, see above; to repeat one: ABUSE_ONLY='{}' ./test abuse", failed[0]);
    assert!(!rows.is_empty(), "nothing was tried");
}

/// The neighbour on a server that nobody attacks.
async fn measure_alone(plan: &Plan) -> Alone {
    let stage = Stage::set(plan, "", None).await.expect("a server");
    let idle = |_: &Stage| -> std::pin::Pin<Box<dyn Future<Output = Attack> + Send>> {
        Box::pin(async {
            crate::client::elapse(ALONE).await;
            Attack::default()
        })
    };
    let measured = perform(&stage, idle, ALONE * 10, Some(RATE)).await;
    let seen = measured.seen.expect("it had a neighbour");
    assert!(seen.failures().is_empty(), "the neighbour alone fails: {:?}", seen.failures());
    Alone { publish_p99: seen.publish_p99(), read_p99: seen.read_p99() }
}

/// Runs one case, and once more if only times were wrong. A panic fails the case, and the others run all the same.
async fn run(case: Case, plan: Plan, alone: Alone) -> Row {
    let name = case.name;
    let row = tokio::spawn(async move {
        match attempt(&case, &plan, &alone).await {
            Ok((_, problems)) if problems.are_of_time_only() => {
                say(&format!("abuse: {name}: once more, because of: {}", problems.all().join("; ")));
                attempt(&case, &plan, &alone).await
            }
            done => done,
        }
    });
    match row.await {
        Ok(Ok((measured, problems))) => {
            let problems = problems.all();
            let took = measured.used.elapsed.as_secs_f64();
            say(&format!("abuse: {name}: {} ({took:.1} s)", if problems.is_empty() { "ok" } else { "FAILED" }));
            Row::judged(name, measured, problems)
        }
        Ok(Err(reason)) => Row::skipped(name, reason),
        Err(error) => Row::broken(name, reason(error)),
    }
}

/// One try on a server of its own; otherwise says why this machine does not allow it.
async fn attempt(case: &Case, plan: &Plan, alone: &Alone) -> Result<(Measured, Problems), String> {
    let stage = Stage::set(plan, case.settings, case.disk_bytes).await?;
    if let Some(prepare) = case.prepare {
        prepare(&stage).await;
    }
    let rate = if case.waits { RATE_WAITING } else { RATE };
    let beside = if case.beside == Beside::Neighbour { Some(rate) } else { None };
    let measured = perform(&stage, case.attack, case.time_max, beside).await;
    let problems = judge(plan, &case.limits, alone, &measured);
    Ok((measured, problems))
}

fn reason(error: tokio::task::JoinError) -> String {
    let Ok(panic) = error.try_into_panic() else { return "it was cancelled".to_owned() };
    let text = panic.downcast_ref::<String>().cloned();
    text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned())).unwrap_or_default()
}
