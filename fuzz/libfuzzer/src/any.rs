//! Runs one target under libFuzzer. `POSTHASTE_FUZZ_TARGET` names it, so that only one program has to be built.

#![no_main]

use libfuzzer_sys::fuzz_target;
use std::sync::LazyLock;

static RUN: LazyLock<fn(&[u8])> = LazyLock::new(|| {
    let name = std::env::var("POSTHASTE_FUZZ_TARGET").expect("POSTHASTE_FUZZ_TARGET names the target");
    posthaste_fuzz::target(&name).unwrap_or_else(|| panic!("there is no target {name}")).run
});

fuzz_target!(|data: &[u8]| (*RUN)(data));
