//! Where commands wait for the core: it takes all of them at once, and nobody who brings one waits for it.
//!
//! Not a channel, because a channel hands over one at a time and spins before it sleeps; the core takes what has
//! gathered while it wrote to the disk, and sleeps at once when there is nothing.

use super::{Command, CoreError};
use crate::credentials::Credentials;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The end where commands are brought. Cheap to clone.
#[derive(Clone)]
pub(super) struct Sender {
    shared: Arc<Shared>,
    /// Seals what commands bring.
    pub(super) credentials: Credentials,
}

/// The core's end. Once it is gone, nobody's command is taken any more.
pub(crate) struct Inbox {
    shared: Arc<Shared>,
    /// Taken and not yet looked at, the last first.
    taken: Vec<Command>,
}

struct Shared {
    state: Mutex<State>,
    arrived: Condvar,
}

#[derive(Default)]
struct State {
    waiting: Vec<Command>,
    core_sleeps: bool,
    is_closed: bool,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Both ends.
pub(super) fn inbox(credentials: Credentials) -> (Sender, Inbox) {
    let shared = Arc::new(Shared { state: Mutex::default(), arrived: Condvar::new() });
    (Sender { shared: shared.clone(), credentials }, Inbox { shared, taken: Vec::new() })
}

impl Sender {
    /// Brings a command; an error if the core has ended. What waits is bounded by those who bring it: by the
    /// places of the admission, and by the attempts that are under way.
    pub(super) fn send(&self, mut command: Command) -> Result<(), CoreError> {
        command.seal(self.credentials);
        let mut state = self.shared.state();
        if state.is_closed {
            return Err(CoreError::Stopped);
        }
        state.waiting.push(command);
        let wake = std::mem::take(&mut state.core_sleeps);
        drop(state);
        if wake {
            self.shared.arrived.notify_one();
        }
        Ok(())
    }
}

impl Inbox {
    /// The next command, if there is one.
    pub(super) fn next(&mut self) -> Option<Command> {
        self.wait(Duration::ZERO)
    }

    /// The next command, or `None` if none comes within this time.
    pub(super) fn wait(&mut self, patience: Duration) -> Option<Command> {
        if self.taken.is_empty() {
            let mut state = self.shared.state();
            if state.waiting.is_empty() && !patience.is_zero() {
                state.core_sleeps = true;
                let is_empty = |state: &mut State| state.waiting.is_empty();
                let waited = self.shared.arrived.wait_timeout_while(state, patience, is_empty);
                state = waited.unwrap_or_else(PoisonError::into_inner).0;
                state.core_sleeps = false;
            }
            std::mem::swap(&mut self.taken, &mut state.waiting);
            drop(state);
            self.taken.reverse();
        }
        self.taken.pop()
    }
}

impl Drop for Inbox {
    fn drop(&mut self) {
        let waiting = {
            let mut state = self.shared.state();
            state.is_closed = true;
            std::mem::take(&mut state.waiting)
        };
        // Whoever waits for an answer hears that there will be none.
        drop(waiting);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    /// Long enough that a test that waits so long has failed.
    const LONG: Duration = Duration::from_secs(60);

    fn is_tick(command: Option<Command>) -> bool {
        matches!(command, Some(Command::Tick))
    }

    #[test]
    fn commands_come_in_their_order_and_all_of_them() {
        let (sender, mut inbox) = inbox(Credentials::default());
        assert!(inbox.next().is_none());
        sender.send(Command::Tick).unwrap();
        sender.send(Command::Stop).unwrap();
        assert!(is_tick(inbox.next()));
        sender.send(Command::Tick).unwrap();
        assert!(matches!(inbox.next(), Some(Command::Stop)), "what was taken goes before what came since");
        assert!(is_tick(inbox.wait(LONG)));
        assert!(inbox.next().is_none());
        assert!(inbox.wait(Duration::from_millis(1)).is_none(), "its patience ends");
    }

    #[test]
    fn a_command_wakes_the_core_whenever_it_sleeps() {
        let (sender, mut inbox) = inbox(Credentials::default());
        let shared = sender.shared.clone();
        let bringer = thread::spawn(move || {
            for _ in 0..200 {
                // Half of them come while it sleeps, half whenever they come.
                while !shared.state().core_sleeps {
                    thread::yield_now();
                }
                sender.send(Command::Tick).unwrap();
                sender.send(Command::Tick).unwrap();
            }
        });
        for _ in 0..400 {
            assert!(is_tick(inbox.wait(LONG)));
        }
        bringer.join().unwrap();
    }

    #[test]
    fn once_the_core_has_ended_it_takes_no_command() {
        let (sender, inbox) = inbox(Credentials::default());
        sender.send(Command::Tick).unwrap();
        drop(inbox);
        assert!(matches!(sender.send(Command::Tick), Err(CoreError::Stopped)));
    }
}
