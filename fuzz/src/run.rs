//! The loop: tries the seeds, then mutations of them, until the time is over or an input fails.
//!
//! An input fails if the target panics or takes too long. The input is written to a file, and the caller prints how to
//! repeat it.

use crate::Target;
use crate::mutate::Mutator;
use std::fs;
use std::io;
use std::panic::{self, AssertUnwindSafe};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Longest time for one input, as the best of [`TRIES`], because the machine may be busy.
const INPUT_TIME_MAX: Duration = Duration::from_secs(2);
const TRIES: usize = 3;
/// After this time an input counts as hanging, and the process ends.
const HANG: Duration = Duration::from_secs(60);
/// Number of inputs between two looks at the clock.
const INPUTS_PER_LOOK: u64 = 16;

/// The result of a run without failures.
#[derive(Clone, Copy, Debug)]
pub struct Report {
    /// Number of inputs.
    pub executions: u64,
    /// Duration of the run.
    pub elapsed: Duration,
}

/// A failing input.
#[derive(Debug)]
pub struct Failure {
    /// Why it failed.
    pub reason: String,
    /// The input.
    pub input: Vec<u8>,
}

impl Failure {
    /// Writes the input to its own file and returns the path.
    pub fn save(&self, target: &str, folder: &Path) -> io::Result<PathBuf> {
        fs::create_dir_all(folder)?;
        let hash = self
            .input
            .iter()
            .fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3));
        let path = folder.join(format!("{target}-{hash:016x}"));
        fs::write(&path, &self.input)?;
        Ok(path)
    }
}

/// Tries all `inputs`, then mutations of them, for `budget` in total, but at least all inputs once.
pub fn fuzz(target: &Target, inputs: Vec<Vec<u8>>, seed: u64, budget: Duration) -> Result<Report, Failure> {
    let started = Instant::now();
    let watched = Watched::start(target.name);
    let mut executions: u64 = 0;
    for input in &inputs {
        watched.attempt(target.run, input)?;
        executions += 1;
    }
    let mut mutator = Mutator::new(inputs, seed);
    while !executions.is_multiple_of(INPUTS_PER_LOOK) || started.elapsed() < budget {
        watched.attempt(target.run, &mutator.next_input())?;
        executions += 1;
    }
    Ok(Report { executions, elapsed: started.elapsed() })
}

/// Tries one input.
pub fn attempt(run: fn(&[u8]), input: &[u8]) -> Result<(), Failure> {
    attempt_within(run, input, INPUT_TIME_MAX)
}

fn attempt_within(run: fn(&[u8]), input: &[u8], time_max: Duration) -> Result<(), Failure> {
    let failure = |reason| Failure { reason, input: input.to_vec() };
    let mut fastest = Duration::MAX;
    for _ in 0..TRIES {
        let started = Instant::now();
        if let Err(cause) = panic::catch_unwind(AssertUnwindSafe(|| run(input))) {
            return Err(failure(text_of(&*cause)));
        }
        fastest = fastest.min(started.elapsed());
        if fastest <= time_max {
            return Ok(());
        }
    }
    Err(failure(format!("takes {fastest:?}, at most {time_max:?} are expected")))
}

fn text_of(cause: &(dyn std::any::Any + Send)) -> String {
    let text = cause.downcast_ref::<String>().map(String::as_str).or_else(|| cause.downcast_ref::<&str>().copied());
    text.unwrap_or("panicked without a text").to_owned()
}

/// Records the current input, so that an input that hangs is known.
struct Watched {
    current: Arc<Mutex<(Instant, Vec<u8>)>>,
}

impl Watched {
    fn start(name: &'static str) -> Watched {
        let current = Arc::new(Mutex::new((Instant::now(), Vec::new())));
        let watching = Arc::downgrade(&current);
        std::thread::spawn(move || {
            while let Some(current) = watching.upgrade() {
                let (since, input) = current.lock().unwrap_or_else(PoisonError::into_inner).clone();
                if since.elapsed() > HANG {
                    let folder = Path::new("target/fuzz-failures");
                    let saved = Failure { reason: String::new(), input }.save(name, folder);
                    eprintln!("fuzz: {name} hangs, for more than {HANG:?}: {saved:?}");
                    std::process::exit(1);
                }
                drop(current);
                std::thread::sleep(Duration::from_secs(1));
            }
        });
        Watched { current }
    }

    fn attempt(&self, run: fn(&[u8]), input: &[u8]) -> Result<(), Failure> {
        {
            let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
            current.0 = Instant::now();
            current.1.clear();
            current.1.extend_from_slice(input);
        }
        attempt(run, input)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seeds() -> Vec<Vec<u8>> {
        vec![b"1d10h30m".to_vec(), b"\"x\"".to_vec()]
    }

    /// A parser that does not notice a repeated unit.
    fn planted(input: &[u8]) {
        let is_hour = |byte: &&u8| **byte == b'h';
        assert!(input.iter().filter(is_hour).count() < 2 || input.contains(&b'"'), "two hours");
    }

    #[test]
    fn a_planted_bug_is_found_saved_and_repeated() {
        let target = Target { name: "planted", run: planted, seeds };
        let failure = fuzz(&target, seeds(), 1, Duration::from_secs(30)).expect_err("it is found");
        assert!(failure.reason.contains("two hours"), "{}", failure.reason);
        let folder = std::env::temp_dir().join(format!("posthaste-fuzz-{}", std::process::id()));
        let path = failure.save("planted", &folder).expect("it is saved");
        let saved = fs::read(path).expect("it was saved");
        assert!(attempt(planted, &saved).is_err());
        fs::remove_dir_all(&folder).expect("it is ours");
    }

    #[test]
    fn a_seed_determines_the_failing_input() {
        let target = Target { name: "planted", run: planted, seeds };
        let input = |seed| fuzz(&target, seeds(), seed, Duration::from_secs(30)).expect_err("it is found").input;
        assert_eq!(input(5), input(5));
    }

    #[test]
    fn an_input_that_takes_long_fails() {
        let failure = attempt_within(|_| {}, b"", Duration::ZERO).expect_err("nothing takes no time");
        assert!(failure.reason.starts_with("takes "), "{}", failure.reason);
        assert!(attempt(|_| {}, b"").is_ok());
    }
}
