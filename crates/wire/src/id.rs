//! Ids: the internal and public names of messages, dead letters, log positions and tenants.

use crate::time::Timestamp;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// How many low bits of a [`Seq`] count messages created in the same millisecond.
const SEQ_COUNTER_BITS: u32 = 20;

/// Position of a message in the order of creation: its creation time in milliseconds, then a counter.
///
/// Positions strictly increase within a store, also across restarts and clock jumps (see [`Seq::next`]). The position
/// is therefore the primary key of all data of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Seq(pub u64);

impl Seq {
    /// Before all messages.
    pub const MIN: Seq = Seq(0);
    /// After all messages; fits SQLite's signed integers.
    pub const MAX: Seq = Seq(i64::MAX as u64);

    /// The first position at or after `now` that is greater than `last`.
    pub fn next(last: Seq, now: Timestamp) -> Seq {
        let earliest = Self::first_at(now);
        if earliest > last { earliest } else { Seq(last.0 + 1) }
    }

    /// The lowest position that a message created at `time` can have.
    pub fn first_at(time: Timestamp) -> Seq {
        Seq((time.0 << SEQ_COUNTER_BITS).min(Self::MAX.0))
    }

    /// The creation time that the position encodes.
    pub fn time(self) -> Timestamp {
        Timestamp(self.0 >> SEQ_COUNTER_BITS)
    }
}

/// Public id of a message: `msg_` and the base58 form of its position and a random tag.
///
/// The tag makes ids unguessable, and a lookup by position rejects a forged id.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct MessageId {
    /// The position of the message in the order of creation.
    pub seq: Seq,
    /// Random bits, chosen when the id is created.
    pub tag: u64,
}

const MESSAGE_PREFIX: &str = "msg_";

impl fmt::Display for MessageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let number = u128::from(self.seq.0) << 64 | u128::from(self.tag);
        let (digits, start) = base58(number);
        f.write_str(MESSAGE_PREFIX)?;
        f.write_str(std::str::from_utf8(&digits[start..]).map_err(|_| fmt::Error)?)
    }
}

/// The base58 digits of 16 bytes, and the index of the first one. The result equals that of `bs58` but takes a tenth of
/// the time: the id of every message is written several times.
fn base58(mut number: u128) -> ([u8; BASE58_DIGITS_MAX], usize) {
    const ALPHABET: &[u8; 58] = b"123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz";
    const TEN_DIGITS: u128 = 58_u128.pow(10);
    let mut digits = [ALPHABET[0]; BASE58_DIGITS_MAX];
    let zero_bytes = number.leading_zeros() as usize / 8;
    let mut start = digits.len();
    let mut end = digits.len();
    while number > 0 {
        // Ten digits fit into 64 bits, which divide faster.
        let mut ten = (number % TEN_DIGITS) as u64;
        number /= TEN_DIGITS;
        start = end;
        while ten > 0 {
            start -= 1;
            digits[start] = ALPHABET[(ten % 58) as usize];
            ten /= 58;
        }
        end = end.saturating_sub(10);
    }
    // Every leading zero byte is one digit.
    (digits, start - zero_bytes)
}

/// 22 digits hold 16 bytes. Leading zero bytes never need more.
const BASE58_DIGITS_MAX: usize = 22;

impl fmt::Debug for MessageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The text is not an id that this server could have created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InvalidId;

impl fmt::Display for InvalidId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("not an id of this server")
    }
}

impl std::error::Error for InvalidId {}

impl FromStr for MessageId {
    type Err = InvalidId;

    fn from_str(text: &str) -> Result<Self, InvalidId> {
        let encoded = text.strip_prefix(MESSAGE_PREFIX).ok_or(InvalidId)?;
        let mut bytes = [0; 16];
        match bs58::decode(encoded).onto(&mut bytes) {
            Ok(16) => {}
            _ => return Err(InvalidId),
        }
        let (seq, tag) = bytes.split_at(8);
        let seq = u64::from_be_bytes(seq.try_into().map_err(|_| InvalidId)?);
        let tag = u64::from_be_bytes(tag.try_into().map_err(|_| InvalidId)?);
        if seq > Seq::MAX.0 {
            return Err(InvalidId);
        }
        Ok(MessageId { seq: Seq(seq), tag })
    }
}

impl TryFrom<String> for MessageId {
    type Error = InvalidId;

    fn try_from(text: String) -> Result<Self, InvalidId> {
        text.parse()
    }
}

impl From<MessageId> for String {
    fn from(id: MessageId) -> String {
        id.to_string()
    }
}

/// Public id of a bulk action: `bulk_` and the base58 form of its position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BulkActionId(pub Seq);

const BULK_ACTION_PREFIX: &str = "bulk_";

impl fmt::Display for BulkActionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{BULK_ACTION_PREFIX}{}", bs58::encode(self.0.0.to_be_bytes()).into_string())
    }
}

impl FromStr for BulkActionId {
    type Err = InvalidId;

    fn from_str(text: &str) -> Result<Self, InvalidId> {
        let encoded = text.strip_prefix(BULK_ACTION_PREFIX).ok_or(InvalidId)?;
        let mut bytes = [0; 8];
        match bs58::decode(encoded).onto(&mut bytes) {
            Ok(8) => {}
            _ => return Err(InvalidId),
        }
        let seq = Seq(u64::from_be_bytes(bytes));
        if seq > Seq::MAX { Err(InvalidId) } else { Ok(BulkActionId(seq)) }
    }
}

/// A time, and a number that orders events of the same millisecond: `<ms>-<n>`.
///
/// It is the id of a dead letter and the cursor of every list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Position {
    /// The time of the event.
    pub at: Timestamp,
    /// Order within that millisecond.
    pub n: u64,
}

/// Id of a dead letter: the time of the message's failure, and its [`Seq`].
pub type DlqId = Position;

impl Position {
    /// After all positions.
    pub const MAX: Position = Position { at: Timestamp::MAX, n: i64::MAX as u64 };
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.at, self.n)
    }
}

impl FromStr for Position {
    type Err = InvalidId;

    fn from_str(text: &str) -> Result<Self, InvalidId> {
        let (at, n) = text.split_once('-').ok_or(InvalidId)?;
        Ok(Position { at: Timestamp(parse_i63(at)?), n: parse_i63(n)? })
    }
}

/// Decimal digits only, within SQLite's signed integers.
fn parse_i63(text: &str) -> Result<u64, InvalidId> {
    if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(InvalidId);
    }
    match text.parse::<u64>() {
        Ok(number) if number <= i64::MAX as u64 => Ok(number),
        _ => Err(InvalidId),
    }
}

/// A tenant's number in one store. All keys, queries and limits are scoped by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct TenantId(pub u32);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn message_ids_survive_a_round_trip() {
        for (seq, tag) in [(0, 0), (1, u64::MAX), (Seq::MAX.0, 7), (1_780_315_200_000 << 20, 42)] {
            let id = MessageId { seq: Seq(seq), tag };
            assert_eq!(id.to_string().parse(), Ok(id));
        }
    }

    proptest::proptest! {
        #[test]
        fn our_base58_matches_the_bs58_crate(high: u64, low: u64, zeros in 0..128_u32) {
            let number = (u128::from(high) << 64 | u128::from(low)).checked_shr(zeros).unwrap_or(0);
            let (digits, start) = base58(number);
            let expected = bs58::encode(number.to_be_bytes()).into_vec();
            proptest::prop_assert_eq!(&digits[start..], &expected[..]);
        }
    }

    #[test]
    fn foreign_ids_are_refused() {
        for text in ["", "msg_", "msg_0OIl", "msg_2", "scd_1", "msg_%00", &format!("msg_{}", "z".repeat(50))] {
            assert_eq!(text.parse::<MessageId>(), Err(InvalidId), "{text}");
        }
    }

    #[test]
    fn ids_of_bulk_actions_survive_text() {
        for seq in [Seq::MIN, Seq(1), Seq::first_at(Timestamp(1_780_315_200_000)), Seq::MAX] {
            let id = BulkActionId(seq);
            assert_eq!(id.to_string().parse(), Ok(id));
        }
        let too_large = format!("bulk_{}", bs58::encode(u64::MAX.to_be_bytes()).into_string());
        for text in
            ["", "bulk_", "bulk_0OIl", "bulk_2", "msg_11111111", &too_large, &format!("bulk_{}", "z".repeat(50))]
        {
            assert_eq!(text.parse::<BulkActionId>(), Err(InvalidId), "{text}");
        }
    }

    #[test]
    fn positions_in_creation_order_never_repeat() {
        let now = Timestamp(1_000);
        let first = Seq::next(Seq::MIN, now);
        let second = Seq::next(first, now);
        let after_clock_went_back = Seq::next(second, Timestamp(10));
        assert!(first < second && second < after_clock_went_back);
        assert_eq!(first.time(), now);
    }

    #[test]
    fn cursors_are_digits_dash_digits() {
        assert_eq!("1686652644442-12".parse(), Ok(Position { at: Timestamp(1_686_652_644_442), n: 12 }));
        for text in ["", "-", "1-", "-1", "1-2-3", "+1-2", "1- 2", "9223372036854775808-0", "a-b", "none"] {
            assert_eq!(text.parse::<Position>(), Err(InvalidId), "{text}");
        }
    }
}
