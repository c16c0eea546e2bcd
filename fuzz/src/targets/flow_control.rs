//! Flow-control values: an accepted value can be written and read again, and limits something.

use posthaste_engine::limits::FLOW_PERIOD_MS_MAX;
use posthaste_wire::flow_control::FlowControl;

pub(crate) fn run(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let read = match FlowControl::parse(text) {
        Ok(read) => read,
        Err(refusal) => return super::check_refusal(&refusal.to_string()),
    };
    let counts = [read.parallelism, read.rate];
    assert!(counts.iter().any(Option::is_some), "{text:?} limits nothing");
    assert!(counts.into_iter().flatten().all(|count| (1..=1_000_000_000).contains(&count)), "{text:?}");
    assert!((1_000..=FLOW_PERIOD_MS_MAX).contains(&read.period_ms), "{text:?}");
    let mut parts = vec![format!("period={}.{:03}s", read.period_ms / 1_000, read.period_ms % 1_000)];
    parts.extend(read.parallelism.map(|parallelism| format!("parallelism={parallelism}")));
    parts.extend(read.rate.map(|rate| format!("rate={rate}")));
    assert_eq!(FlowControl::parse(&parts.join(" ,\t")), Ok(read), "{text:?}");
    parts.push(parts[0].clone());
    assert!(FlowControl::parse(&parts.join(",")).is_err(), "a part may come once only");
}
