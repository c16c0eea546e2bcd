//! From local minutes to points in time: zones by name, gaps and overlaps.
//!
//! The database is part of the program: no name ever reaches a file system.

use super::SEARCH_YEARS_MAX;
use super::calendar::Fields;
use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::{AmbiguousOffset, TimeZone, TimeZoneDatabase};

/// The zone of an IANA name, in upper or lower case.
pub(super) fn find(name: &str) -> Option<TimeZone> {
    // The crate adds `Etc/Unknown` of its own, which is no zone.
    TimeZoneDatabase::bundled().get(name).ok().filter(|zone| !zone.is_unknown())
}

/// The next fire time when every local time happens once.
pub(super) fn next_once(fields: &Fields, zone: &TimeZone, after: Timestamp) -> Option<Timestamp> {
    // A later local time never happens earlier, so nothing up to the local time of `after` can be due. In the
    // second pass of an overlap the rest of the repeated time is over already: at most its minutes are skipped.
    let mut local = zone.to_datetime(after);
    loop {
        local = fields.after(local)?;
        let fire = instant(zone, local)?;
        if fire > after {
            return Some(fire);
        }
    }
}

/// When a local time happens: the first time, or at the end of the gap that it falls into.
fn instant(zone: &TimeZone, local: DateTime) -> Option<Timestamp> {
    match zone.to_ambiguous_timestamp(local).offset() {
        AmbiguousOffset::Unambiguous { offset } | AmbiguousOffset::Fold { before: offset, .. } => {
            offset.to_timestamp(local).ok()
        }
        AmbiguousOffset::Gap { after, .. } => {
            // By the later offset the local time lies before the change; the next change is the gap's end.
            let before_change = after.to_timestamp(local).ok()?;
            zone.following(before_change).next().map(|change| change.timestamp())
        }
    }
}

/// The next fire time when local times happen as the wall clock shows them.
pub(super) fn next_by_wall_clock(fields: &Fields, zone: &TimeZone, after: Timestamp) -> Option<Timestamp> {
    let mut offset = zone.to_offset(after);
    let start = offset.to_datetime(after);
    let last_year = start.year().saturating_add(SEARCH_YEARS_MAX);
    let mut local = fields.after(start)?;
    // Between two changes the clock runs evenly; the minute that a change begins with counts too.
    for change in zone.following(after) {
        let fire = offset.to_timestamp(local).ok()?;
        if fire < change.timestamp() {
            return Some(fire);
        }
        offset = change.offset();
        let start = offset.to_datetime(change.timestamp());
        if start.year() > last_year {
            return None;
        }
        local = fields.at_or_after(start)?;
    }
    offset.to_timestamp(local).ok()
}
