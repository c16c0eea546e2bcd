//! Frames of the journal: a written frame is read back, other bytes are not a frame, and readable ops can be written
//! again.
//!
//! The bytes are tried as a frame, and as the payload of a complete frame.

use posthaste_store::journal::frame::{Seal, decode, encode, ops};

/// Seal and number of the frame.
const SEAL: Seal = Seal { key: 0x5ea1, segment: 7 };
const OTHER: Seal = Seal { segment: 8, ..SEAL };
const STRANGE: Seal = Seal { key: 0x5ea2, ..SEAL };
const NUMBER: u64 = 41;

pub(crate) fn run(data: &[u8]) {
    if let Some(frame) = decode(SEAL, data) {
        assert!(frame.bytes() <= data.len());
        assert_eq!(decode(OTHER, data), None, "the frame of another segment");
        assert_eq!(decode(STRANGE, data), None, "the frame of another directory");
    }
    let Ok((shard, read)) = ops(data) else { return };
    let mut written = Vec::new();
    encode(SEAL, NUMBER, NUMBER - 1, shard, &read, &mut written).expect("what was read can be written");
    let frame = decode(SEAL, &written).expect("it was written whole");
    assert_eq!((frame.number, frame.synced_to, frame.bytes()), (NUMBER, NUMBER - 1, written.len()));
    assert_eq!(ops(frame.payload), Ok((shard, read)));
    check_damage(&written, data.iter().fold(data.len(), |sum, byte| sum.wrapping_mul(31) + usize::from(*byte)));
}

/// A flipped bit, a truncated end, or another segment: not a frame.
fn check_damage(written: &[u8], at: usize) {
    let (byte, bit) = (at / 8 % written.len(), at % 8);
    let mut damaged = written.to_vec();
    damaged[byte] ^= 1 << bit;
    assert_eq!(decode(SEAL, &damaged), None, "bit {bit} of byte {byte} is wrong");
    assert_eq!(decode(SEAL, &written[..byte]), None, "only {byte} bytes are there");
    assert_eq!(decode(OTHER, written), None, "the frame of another segment");
}
