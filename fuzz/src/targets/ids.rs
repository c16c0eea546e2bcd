//! Ids and cursors: an accepted one is written back exactly as it was read.

use posthaste_wire::id::{BulkActionId, MessageId, Position, Seq};

pub(crate) fn run(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    if let Ok(id) = text.parse::<MessageId>() {
        assert_eq!(id.to_string(), text, "one message, one id");
        assert!(id.seq <= Seq::MAX);
        let stored = serde_json::to_string(&id).expect("it can be stored");
        assert_eq!(serde_json::from_str::<MessageId>(&stored).expect("it was stored"), id);
    }
    if let Ok(id) = text.parse::<BulkActionId>() {
        assert_eq!(id.to_string(), text, "one action, one id");
        assert!(id.0 <= Seq::MAX);
    }
    if let Ok(position) = text.parse::<Position>() {
        assert!(position <= Position::MAX);
        assert_eq!(position.to_string().parse(), Ok(position));
        let (at, n) = text.split_once('-').expect("it was accepted");
        assert_eq!((at.parse(), n.parse()), (Ok(position.at.0), Ok(position.n)));
    }
    if let Some((seq, tag)) =
        data.split_first_chunk::<8>().and_then(|(seq, rest)| Some((seq, rest.first_chunk::<8>()?)))
    {
        let id = MessageId { seq: Seq(u64::from_be_bytes(*seq) & Seq::MAX.0), tag: u64::from_be_bytes(*tag) };
        assert_eq!(id.to_string().parse(), Ok(id));
        assert_eq!(BulkActionId(id.seq).to_string().parse(), Ok(BulkActionId(id.seq)));
    }
}
