//! The frame format: one batch of ops as bytes, with checksums that are verified when it is read back.
//!
//! Numbers are little-endian. Data that the engine may extend is JSON, as in the database. `MAGIC` changes whenever the
//! rest does. A body that several messages of a batch share is written once.

use super::JOURNAL_FRAME_BYTES_MAX;
use crate::ShardId;
use bytes::Bytes;
use posthaste_engine::event::{DeadLetter, Event, Op, State};
use posthaste_engine::message::{DedupKey, FlowKey, Live, Message, Origin, Place, QueueKey, Turn, is_same_body};
use posthaste_engine::workflow::entry::Entry;
use posthaste_engine::workflow::note::{Note, NoteKey, NoteKind};
use posthaste_engine::workflow::{Change, Waiter};
use posthaste_wire::id::{MessageId, Position, Seq, TenantId};
use posthaste_wire::time::Timestamp;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::sync::Arc;

/// "PHj2": marks the start of a frame and its version. In the version before, a run contained its notes.
const MAGIC: [u8; 4] = *b"PHj2";
/// Magic, length, number, `synced_to`, checksum of the payload, checksum of the header.
pub(super) const HEADER_BYTES: usize = 4 + 4 + 8 + 8 + 4 + 4;

/// The seed of the checksums of a segment. Publishers choose bytes that end up inside frames on disk. They do not know
/// the key, so they cannot write bytes that pass for a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seal {
    /// The secret of the data directory.
    pub key: u64,
    /// The number of the segment. It makes frames invalid that remain from an earlier use of the file.
    pub segment: u64,
}

impl Seal {
    /// `number` makes the checksum of the payload differ from that of the header.
    fn checksum(self, number: u64, bytes: &[u8]) -> u32 {
        let mut hasher = crc32fast::Hasher::new();
        for part in [self.key, self.segment, number] {
            hasher.update(&part.to_le_bytes());
        }
        hasher.update(bytes);
        hasher.finalize()
    }
}

/// A complete frame that was read back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame<'a> {
    /// The number of the frame within the data directory.
    pub number: u64,
    /// All frames up to this number were known to be on disk when this frame was written.
    pub synced_to: u64,
    /// The ops; see [`ops`].
    pub payload: &'a [u8],
}

impl Frame<'_> {
    /// Its length in the file, in bytes.
    pub fn bytes(&self) -> usize {
        HEADER_BYTES + self.payload.len()
    }
}

/// Complete bytes that cannot be decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a journal frame cannot be decoded: {0}")]
pub struct Undecodable(pub(super) &'static str);

/// Why a batch cannot be encoded as a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unencodable {
    /// The batch is longer than a frame may be.
    #[error("the batch is too long for a frame of the journal")]
    TooLong,
    /// A part of the batch has no JSON form.
    #[error("the batch holds something that cannot be written as JSON")]
    Json,
    /// The batch contains a change that must go to the database.
    #[error("the batch holds a change that is not for the journal")]
    NotForJournal,
}

/// Whether the journal accepts this op. Other ops go straight to the database.
pub(super) fn takes(op: &Op) -> bool {
    matches!(
        op,
        Op::Insert { .. }
            | Op::PutDedupKey { .. }
            | Op::Log(_)
            | Op::Update(_)
            | Op::Remove { .. }
            | Op::InsertDeadLetter(_)
            | Op::PutQueue(_)
            | Op::PutFlow(_)
            | Op::Workflow(_)
    )
}

/// Replaces `out` with the frame of these ops, which the journal must accept (see `takes`).
pub fn encode(
    seal: Seal,
    number: u64,
    synced_to: u64,
    shard: ShardId,
    ops: &[Op],
    out: &mut Vec<u8>,
) -> Result<(), Unencodable> {
    out.clear();
    out.extend_from_slice(&MAGIC);
    out.extend_from_slice(&[0; HEADER_BYTES - MAGIC.len()]);
    out.extend_from_slice(&shard.0.to_le_bytes());
    let mut encoder = Encoder { out, body: None };
    for op in ops {
        encoder.op(op)?;
    }
    let length = u32::try_from(out.len() - HEADER_BYTES).map_err(|_| Unencodable::TooLong)?;
    out[4..8].copy_from_slice(&length.to_le_bytes());
    out[8..16].copy_from_slice(&number.to_le_bytes());
    out[16..24].copy_from_slice(&synced_to.to_le_bytes());
    let payload = seal.checksum(number, &out[HEADER_BYTES..]);
    out[24..28].copy_from_slice(&payload.to_le_bytes());
    let header = seal.checksum(0, &out[..28]);
    out[28..32].copy_from_slice(&header.to_le_bytes());
    Ok(())
}

/// The frame at the start of `bytes`, if it is complete and has this seal. The header is verified first, so that a
/// search through bytes that only look like frames stays cheap.
pub fn decode(seal: Seal, bytes: &[u8]) -> Option<Frame<'_>> {
    let header = bytes.get(..HEADER_BYTES)?;
    if header[..4] != MAGIC {
        return None;
    }
    let mut rest = Decoder(&header[4..]);
    let length = rest.u32().ok()? as usize;
    let (number, synced_to) = (rest.u64().ok()?, rest.u64().ok()?);
    let of_payload = rest.u32().ok()?;
    if rest.u32().ok()? != seal.checksum(0, &header[..28]) {
        return None;
    }
    let payload = bytes[HEADER_BYTES..].get(..length)?;
    (of_payload == seal.checksum(number, payload)).then_some(Frame { number, synced_to, payload })
}

/// Whether a release with another frame format wrote the segment.
pub(super) fn is_foreign(bytes: &[u8]) -> bool {
    bytes.len() >= MAGIC.len() && bytes[..3] == MAGIC[..3] && bytes[3] != MAGIC[3]
}

/// Where the next frame may start.
pub(super) fn next_magic(bytes: &[u8]) -> Option<usize> {
    memchr::memmem::find(bytes, &MAGIC)
}

/// The ops of a payload, and their shard.
pub fn ops(payload: &[u8]) -> Result<(ShardId, Vec<Op>), Undecodable> {
    let mut rest = Decoder(payload);
    let shard = ShardId(u16::from_le_bytes(rest.array()?));
    let mut ops = Vec::new();
    while !rest.0.is_empty() {
        let op = rest.op(&ops)?;
        ops.push(op);
    }
    Ok((shard, ops))
}

const INSERT: u8 = 1;
const PUT_DEDUP_KEY: u8 = 2;
const LOG: u8 = 3;
const UPDATE: u8 = 4;
const REMOVE: u8 = 5;
const INSERT_DEAD_LETTER: u8 = 6;
const PUT_QUEUE: u8 = 7;
const PUT_FLOW: u8 = 8;
const RUN: u8 = 9;
const ENTRY: u8 = 10;
const DELIVERY: u8 = 11;
const WAITER: u8 = 12;
const NO_WAITER: u8 = 13;
const NOTE: u8 = 14;
const NO_NOTE: u8 = 15;
/// An insert of a message that has the same body as the insert before it.
const INSERT_SAME_BODY: u8 = 16;

struct Encoder<'a, 'o> {
    out: &'a mut Vec<u8>,
    /// The body of the last insert.
    body: Option<&'o Bytes>,
}

impl<'o> Encoder<'_, 'o> {
    fn op(&mut self, op: &'o Op) -> Result<(), Unencodable> {
        match op {
            Op::Insert { message, live } => {
                let is_same = self.body.is_some_and(|body| is_same_body(body, &message.body));
                self.u8(if is_same { INSERT_SAME_BODY } else { INSERT });
                self.message(message)?;
                if !is_same {
                    self.text(&message.body)?;
                }
                self.body = Some(&message.body);
                self.live(live);
            }
            Op::PutDedupKey { tenant, key, id, expires } => {
                self.u8(PUT_DEDUP_KEY);
                self.u32(tenant.0);
                self.out.extend_from_slice(&key.0);
                self.id(*id);
                self.u64(expires.0);
            }
            Op::Log(event) => {
                self.u8(LOG);
                self.u32(event.tenant.0);
                self.id(event.id);
                self.u64(event.at.0);
                self.u8(event.state as u8);
                if event.detail.is_empty() { self.text(b"") } else { self.json(&event.detail) }?;
            }
            Op::Update(live) => {
                self.u8(UPDATE);
                self.live(live);
            }
            Op::Remove { id } => {
                self.u8(REMOVE);
                self.id(*id);
            }
            Op::InsertDeadLetter(letter) => {
                self.u8(INSERT_DEAD_LETTER);
                self.u32(letter.tenant.0);
                self.u64(letter.dlq_id.at.0);
                self.u64(letter.dlq_id.n);
                self.id(letter.id);
                self.u32(letter.retried);
                self.json(&letter.error)?;
                self.json(&letter.response)?;
            }
            Op::PutQueue(queue) => {
                self.u8(PUT_QUEUE);
                self.json(queue)?;
            }
            Op::PutFlow(flow) => {
                self.u8(PUT_FLOW);
                self.json(flow)?;
            }
            Op::Workflow(change) => self.change(change)?,
            _ => return Err(Unencodable::NotForJournal),
        }
        Ok(())
    }

    fn change(&mut self, change: &Change) -> Result<(), Unencodable> {
        match change {
            Change::Run(run) => {
                self.u8(RUN);
                self.json(run)
            }
            Change::Entry { run, entry, body } => {
                self.u8(ENTRY);
                self.u64(run.0);
                self.u32(entry.index);
                self.id(entry.id);
                self.json(&entry.terms)?;
                self.json(&entry.delivery)?;
                self.text(body)
            }
            Change::Delivery { run, index, delivery } => {
                self.u8(DELIVERY);
                self.u64(run.0);
                self.u32(*index);
                self.json(delivery)
            }
            Change::Note { run, note } => {
                self.u8(NOTE);
                self.u64(run.0);
                self.key(note.key);
                self.text(note.data.as_bytes())?;
                self.text(&note.body)
            }
            Change::NoNote { run, key } => {
                self.u8(NO_NOTE);
                self.u64(run.0);
                self.key(*key);
                Ok(())
            }
            Change::Waiter(waiter) => {
                self.u8(WAITER);
                self.waiter(waiter)
            }
            Change::NoWaiter(waiter) => {
                self.u8(NO_WAITER);
                self.waiter(waiter)
            }
        }
    }

    fn key(&mut self, key: NoteKey) {
        self.u8(key.kind as u8);
        self.u64(key.n);
    }

    fn waiter(&mut self, waiter: &Waiter) -> Result<(), Unencodable> {
        self.u32(waiter.tenant.0);
        self.u64(waiter.run.0);
        self.id(waiter.timer);
        self.text(waiter.event.as_bytes())
    }

    /// Writes all parts except the body, which follows.
    fn message(&mut self, message: &Message) -> Result<(), Unencodable> {
        self.id(message.id);
        self.u32(message.tenant.0);
        self.u64(message.created_at.0);
        self.u64(message.not_before.0);
        self.json(&message.spec)
    }

    fn live(&mut self, live: &Live) {
        self.id(live.id);
        self.u32(live.tenant.0);
        self.u64(live.origin.0);
        self.u32(live.body_bytes);
        self.u64(live.due.0);
        self.u32(live.retried);
        let flags = [live.cancel_requested, live.place.is_some(), live.flow.is_some(), live.is_step];
        self.u8(flags.iter().rev().fold(0, |bits, flag| bits << 1 | u8::from(*flag)));
        if let Some(place) = live.place {
            self.u64(place.queue.0);
            self.u64(place.turn.at.0);
            self.u64(place.turn.seq.0);
        }
        if let Some(flow) = live.flow {
            self.u64(flow.0);
        }
    }

    fn id(&mut self, id: MessageId) {
        self.u64(id.seq.0);
        self.u64(id.tag);
    }

    /// Writes JSON in place, after its length.
    fn json<T: Serialize>(&mut self, value: &T) -> Result<(), Unencodable> {
        let start = self.out.len();
        self.u32(0);
        serde_json::to_writer(&mut *self.out, value).map_err(|_| Unencodable::Json)?;
        if self.out.len() > JOURNAL_FRAME_BYTES_MAX {
            return Err(Unencodable::TooLong);
        }
        let length = u32::try_from(self.out.len() - start - 4).map_err(|_| Unencodable::TooLong)?;
        self.out[start..start + 4].copy_from_slice(&length.to_le_bytes());
        Ok(())
    }

    fn text(&mut self, bytes: &[u8]) -> Result<(), Unencodable> {
        if self.out.len() + bytes.len() > JOURNAL_FRAME_BYTES_MAX {
            return Err(Unencodable::TooLong);
        }
        self.u32(u32::try_from(bytes.len()).map_err(|_| Unencodable::TooLong)?);
        self.out.extend_from_slice(bytes);
        Ok(())
    }

    fn u8(&mut self, number: u8) {
        self.out.push(number);
    }

    fn u32(&mut self, number: u32) {
        self.out.extend_from_slice(&number.to_le_bytes());
    }

    fn u64(&mut self, number: u64) {
        self.out.extend_from_slice(&number.to_le_bytes());
    }
}

/// The bytes that are not read yet.
struct Decoder<'a>(&'a [u8]);

impl<'a> Decoder<'a> {
    /// `before` contains the earlier ops of the frame.
    fn op(&mut self, before: &[Op]) -> Result<Op, Undecodable> {
        Ok(match self.u8()? {
            INSERT => {
                let head = self.message()?;
                let message = Arc::new(Message { body: Bytes::copy_from_slice(self.text()?), ..head });
                Op::Insert { message, live: self.live()? }
            }
            INSERT_SAME_BODY => {
                let inserted = before.iter().rev().find_map(|op| match op {
                    Op::Insert { message, .. } => Some(message.body.clone()),
                    _ => None,
                });
                let body = inserted.ok_or(Undecodable("it refers to a body that it does not hold"))?;
                Op::Insert { message: Arc::new(Message { body, ..self.message()? }), live: self.live()? }
            }
            PUT_DEDUP_KEY => Op::PutDedupKey {
                tenant: TenantId(self.u32()?),
                key: DedupKey(self.array()?),
                id: self.id()?,
                expires: Timestamp(self.u64()?),
            },
            LOG => Op::Log(self.event()?),
            UPDATE => Op::Update(self.live()?),
            REMOVE => Op::Remove { id: self.id()? },
            INSERT_DEAD_LETTER => Op::InsertDeadLetter(DeadLetter {
                tenant: TenantId(self.u32()?),
                dlq_id: Position { at: Timestamp(self.u64()?), n: self.u64()? },
                id: self.id()?,
                retried: self.u32()?,
                error: self.json()?,
                response: self.json()?,
            }),
            PUT_QUEUE => Op::PutQueue(self.json()?),
            PUT_FLOW => Op::PutFlow(self.json()?),
            RUN => Op::Workflow(Change::Run(Arc::new(self.json()?))),
            ENTRY => Op::Workflow(self.entry()?),
            DELIVERY => {
                let (run, index) = (Seq(self.u64()?), self.u32()?);
                Op::Workflow(Change::Delivery { run, index, delivery: self.json()? })
            }
            NOTE => {
                let (run, key) = (Seq(self.u64()?), self.key()?);
                let (data, body) = (self.name()?, Bytes::copy_from_slice(self.text()?));
                Op::Workflow(Change::Note { run, note: Note { key, data, body } })
            }
            NO_NOTE => Op::Workflow(Change::NoNote { run: Seq(self.u64()?), key: self.key()? }),
            WAITER => Op::Workflow(Change::Waiter(self.waiter()?)),
            NO_WAITER => Op::Workflow(Change::NoWaiter(self.waiter()?)),
            _ => return Err(Undecodable("it holds an unknown kind of change")),
        })
    }

    /// Reads a message without its body, which follows.
    fn message(&mut self) -> Result<Message, Undecodable> {
        Ok(Message {
            id: self.id()?,
            tenant: TenantId(self.u32()?),
            created_at: Timestamp(self.u64()?),
            not_before: Timestamp(self.u64()?),
            spec: self.json()?,
            body: Bytes::new(),
        })
    }

    fn entry(&mut self) -> Result<Change, Undecodable> {
        let (run, index, id) = (Seq(self.u64()?), self.u32()?, self.id()?);
        let (terms, delivery) = (Arc::new(self.json()?), self.json()?);
        let body = Bytes::copy_from_slice(self.text()?);
        Ok(Change::Entry { run, entry: Entry::new(index, id, &body, terms, delivery), body })
    }

    fn key(&mut self) -> Result<NoteKey, Undecodable> {
        let kind = NoteKind::of_number(self.u8()?).ok_or(Undecodable("it holds an unknown kind of note"))?;
        Ok(NoteKey { kind, n: self.u64()? })
    }

    fn waiter(&mut self) -> Result<Waiter, Undecodable> {
        let (tenant, run, timer) = (TenantId(self.u32()?), Seq(self.u64()?), self.id()?);
        Ok(Waiter { tenant, event: self.name()?, run, timer })
    }

    fn name(&mut self) -> Result<String, Undecodable> {
        let text = std::str::from_utf8(self.text()?).map_err(|_| Undecodable("a text is not UTF-8"))?;
        Ok(text.to_owned())
    }

    fn event(&mut self) -> Result<Event, Undecodable> {
        let (tenant, id, at) = (TenantId(self.u32()?), self.id()?, Timestamp(self.u64()?));
        let state = usize::from(self.u8()?);
        let state = *State::ALL.get(state).ok_or(Undecodable("it holds an unknown state"))?;
        let detail = match self.text()? {
            b"" => Default::default(),
            text => from_json(text)?,
        };
        Ok(Event { tenant, id, at, state, detail })
    }

    fn live(&mut self) -> Result<Live, Undecodable> {
        let (id, tenant, origin) = (self.id()?, TenantId(self.u32()?), Origin(self.u64()?));
        let (body_bytes, due, retried) = (self.u32()?, Timestamp(self.u64()?), self.u32()?);
        let flags = self.u8()?;
        let place = if flags & 2 != 0 { Some(self.place()?) } else { None };
        let flow = if flags & 4 != 0 { Some(FlowKey(self.u64()?)) } else { None };
        let (cancel_requested, is_step) = (flags & 1 != 0, flags & 8 != 0);
        Ok(Live { id, tenant, origin, body_bytes, due, retried, cancel_requested, place, flow, is_step })
    }

    fn place(&mut self) -> Result<Place, Undecodable> {
        let queue = QueueKey(self.u64()?);
        Ok(Place { queue, turn: Turn { at: Timestamp(self.u64()?), seq: Seq(self.u64()?) } })
    }

    fn id(&mut self) -> Result<MessageId, Undecodable> {
        Ok(MessageId { seq: Seq(self.u64()?), tag: self.u64()? })
    }

    fn json<T: DeserializeOwned>(&mut self) -> Result<T, Undecodable> {
        from_json(self.text()?)
    }

    fn text(&mut self) -> Result<&'a [u8], Undecodable> {
        let length = self.u32()? as usize;
        let (text, rest) = self.0.split_at_checked(length).ok_or(TOO_SHORT)?;
        self.0 = rest;
        Ok(text)
    }

    fn u8(&mut self) -> Result<u8, Undecodable> {
        Ok(self.array::<1>()?[0])
    }

    fn u32(&mut self) -> Result<u32, Undecodable> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    fn u64(&mut self) -> Result<u64, Undecodable> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Undecodable> {
        let (array, rest) = self.0.split_first_chunk::<N>().ok_or(TOO_SHORT)?;
        self.0 = rest;
        Ok(*array)
    }
}

const TOO_SHORT: Undecodable = Undecodable("it ends too early");

fn from_json<T: DeserializeOwned>(text: &[u8]) -> Result<T, Undecodable> {
    serde_json::from_slice(text).map_err(|_| Undecodable("its JSON is invalid"))
}
