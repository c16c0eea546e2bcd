//! What happened, in words: kept only when a run is told, since telling costs more than running.

use posthaste_wire::id::MessageId;
use std::fmt;

/// Lines of a story that are shown.
const LINES_MAX: usize = 80;

/// What happened so far.
#[derive(Debug, Default)]
pub(crate) struct Story {
    told: bool,
    lines: Vec<Line>,
    hash: u64,
}

#[derive(Debug)]
struct Line {
    at_ms: u64,
    about: Option<MessageId>,
    text: String,
}

impl Story {
    pub(crate) fn new(told: bool) -> Story {
        Story { told, lines: Vec::new(), hash: 0xCBF2_9CE4_8422_2325 }
    }

    /// Something happened, to a message or to the world. The text is made only if the run is told.
    pub(crate) fn tell(&mut self, at_ms: u64, about: Option<MessageId>, text: impl FnOnce() -> String) {
        if self.told {
            self.lines.push(Line { at_ms, about, text: text() });
        }
    }

    /// Two runs of one seed that differ anywhere have different hashes.
    pub(crate) fn note(&mut self, number: u64) {
        self.hash = (self.hash ^ number).wrapping_mul(0x0100_0000_01B3).rotate_left(23);
    }

    pub(crate) fn hash(&self) -> u64 {
        self.hash
    }

    /// The last lines about a message, with what happened to the world meanwhile; or the last lines of all.
    pub(crate) fn about(&self, message: Option<MessageId>) -> Vec<String> {
        let is_meant = |line: &&Line| message.is_none() || line.about.is_none() || line.about == message;
        let lines: Vec<String> = self.lines.iter().filter(is_meant).map(Line::to_string).collect();
        lines[lines.len().saturating_sub(LINES_MAX)..].to_vec()
    }

    pub(crate) fn all(&self) -> Vec<String> {
        self.lines.iter().map(Line::to_string).collect()
    }
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:>10.3} s  ", self.at_ms as f64 / 1_000.0)?;
        if let Some(id) = self.about {
            write!(f, "{}  ", short(id))?;
        }
        f.write_str(&self.text)
    }
}

/// A message in a story: its random part is enough to tell it from the others.
pub(crate) fn short(id: MessageId) -> String {
    format!("m{:04x}", id.tag & 0xFFFF)
}
