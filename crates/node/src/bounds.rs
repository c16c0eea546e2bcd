//! How much a node does at once: other commands wait meanwhile.

/// Bytes of new bodies after which a batch is committed even if more is waiting.
pub const BATCH_BYTES_MAX: usize = 4 * 1024 * 1024;
/// Schedules that fire in one round; the others wait for the next one.
const FIRED_MAX: usize = 256;
/// Messages of schedules after which a round ends, however few schedules have fired: a group has many endpoints.
const FIRED_MESSAGES_MAX: usize = 1_024;
/// Bytes of bodies of schedules that are read for one round.
const FIRED_BYTES_MAX: usize = 16 * 1024 * 1024;

/// See the module's text. The default is that of the server; the simulation has smaller ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Bytes of new bodies after which a batch is committed even if more is waiting.
    pub batch_bytes: usize,
    /// Schedules that fire in one round.
    pub fired: usize,
    /// Messages of schedules after which a round ends.
    pub fired_messages: usize,
    /// Bytes of bodies of schedules after which no further one is read for a round.
    pub fired_bytes: usize,
}

impl Default for Bounds {
    fn default() -> Bounds {
        Bounds {
            batch_bytes: BATCH_BYTES_MAX,
            fired: FIRED_MAX,
            fired_messages: FIRED_MESSAGES_MAX,
            fired_bytes: FIRED_BYTES_MAX,
        }
    }
}
