//! The duration of a rejection must reveal nothing.

use crate::support::{CURRENT, NEXT, NOW, URL, at, token};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use http::{HeaderMap, Uri};
use posthaste_kit::Receiver;
use posthaste_kit::receiver::SIGNATURE_HEADER;

fn headers(token: &str) -> HeaderMap {
    HeaderMap::from_iter([(SIGNATURE_HEADER.parse().unwrap(), token.parse().unwrap())])
}

/// `timing`: Welch's t-test of two classes of forgeries, measured alternately. It takes long and needs a quiet machine:
/// `cargo test -p posthaste-kit --release timing -- --ignored`.
#[test]
#[ignore = "measures time, which other programs disturb"]
fn the_timing_of_a_rejection_does_not_reveal_where_a_mac_differs() {
    const ROUNDS: usize = 1_000_000;
    let receiver = Receiver::new(CURRENT, NEXT).unwrap().at_url(URL).clock(at(NOW));
    let good = token(CURRENT, URL, b"{}");
    let (signed, mac) = good.rsplit_once('.').unwrap();
    let mac = URL_SAFE_NO_PAD.decode(mac).unwrap();
    let forged = |byte: usize| {
        let mut mac = mac.clone();
        mac[byte] ^= 1;
        headers(&format!("{signed}.{}", URL_SAFE_NO_PAD.encode(mac)))
    };
    let classes = [forged(0), forged(31)];
    let uri = Uri::default();
    let mut times = [Vec::with_capacity(ROUNDS), Vec::with_capacity(ROUNDS)];
    let mut random: u64 = 1;
    for _ in 0..2 * ROUNDS {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let class = (random >> 40 & 1) as usize;
        let start = std::time::Instant::now();
        let refused = std::hint::black_box(receiver.verify(&classes[class], &uri, b"{}"));
        times[class].push(start.elapsed().as_nanos() as f64);
        assert!(refused.is_err());
    }
    // Interruptions are not a property of the code, so the slowest tenth of all is ignored.
    let mut all: Vec<f64> = times.concat();
    all.sort_by(f64::total_cmp);
    let bound = all[all.len() * 9 / 10];
    let [one, other] = times.map(|times| {
        let kept: Vec<f64> = times.into_iter().filter(|time| *time <= bound).collect();
        let count = kept.len() as f64;
        let mean = kept.iter().sum::<f64>() / count;
        (mean, kept.iter().map(|time| (time - mean).powi(2)).sum::<f64>() / (count - 1.0) / count)
    });
    let t = (one.0 - other.0) / (one.1 + other.1).sqrt();
    println!("means {:.1} ns and {:.1} ns, t = {t:.2}", one.0, other.0);
    assert!(t.abs() < 4.5, "t = {t}");
}
