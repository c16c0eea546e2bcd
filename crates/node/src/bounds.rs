//! How much a node does at once: other commands wait meanwhile.

/// Bytes of new bodies after which a batch is committed even if more is waiting.
pub const BATCH_BYTES_MAX: usize = 4 * 1024 * 1024;
/// Messages of one publish above which it is stored in pieces.
const BATCH_MESSAGES_MAX: usize = 512;
/// Messages of a piece of a publish.
const PIECE_MESSAGES: usize = 64;
/// Bytes to store after which a piece of a publish ends.
const PIECE_BYTES: usize = 1024 * 1024;
/// Schedules that fire in one round; the others wait for the next one.
const FIRED_MAX: usize = 256;
/// Schedules that are read at once. A round of many large groups ends after some of them, and schedules that are read and do not
/// fire have to be read again.
const FIRED_READ_MAX: usize = 64;
/// Messages of schedules after which a round ends, however few schedules have fired: a group has many endpoints.
const FIRED_MESSAGES_MAX: usize = 1_024;
/// Bytes of bodies of schedules that are read for one round.
const FIRED_BYTES_MAX: usize = 16 * 1024 * 1024;

/// See the module's text. The default is that of the server; the simulation has smaller ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Bytes of new bodies after which a batch is committed even if more is waiting. A publish with more is stored in pieces.
    pub batch_bytes: usize,
    /// Messages of one publish above which it is stored in pieces.
    pub batch_messages: usize,
    /// Messages of a piece of a publish.
    pub piece_messages: usize,
    /// Bytes to store after which a piece of a publish ends.
    pub piece_bytes: usize,
    /// Bytes to store after which a turn of pieces ends.
    pub turn_bytes: usize,
    /// Schedules that fire in one round.
    pub fired: usize,
    /// Schedules that are read at once.
    pub fired_read: usize,
    /// Messages of schedules after which a round ends.
    pub fired_messages: usize,
    /// Bytes of bodies of schedules after which no further one is read for a round.
    pub fired_bytes: usize,
}

impl Default for Bounds {
    fn default() -> Bounds {
        Bounds {
            batch_bytes: BATCH_BYTES_MAX,
            batch_messages: BATCH_MESSAGES_MAX,
            piece_messages: PIECE_MESSAGES,
            piece_bytes: PIECE_BYTES,
            turn_bytes: BATCH_BYTES_MAX,
            fired: FIRED_MAX,
            fired_read: FIRED_READ_MAX,
            fired_messages: FIRED_MESSAGES_MAX,
            fired_bytes: FIRED_BYTES_MAX,
        }
    }
}
