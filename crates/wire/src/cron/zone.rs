//! Turns local minutes into points in time: finds zones by name, and handles gaps and overlaps.
//!
//! The time zone database is compiled in, so no name ever reaches a file system.

use super::SEARCH_YEARS_MAX;
use super::calendar::Fields;
use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::{AmbiguousOffset, TimeZone, TimeZoneDatabase};

/// Finds the zone with this IANA name, in upper or lower case.
pub(super) fn find(name: &str) -> Option<TimeZone> {
    // The crate adds `Etc/Unknown`, which is not a time zone.
    TimeZoneDatabase::bundled().get(name).ok().filter(|zone| !zone.is_unknown())
}

/// The next fire time if every local time happens once.
pub(super) fn next_once(fields: &Fields, zone: &TimeZone, after: Timestamp) -> Option<Timestamp> {
    // A later local time never happens earlier, so nothing up to the local time of `after` can be due. During the
    // second pass of an overlap this skips at most the minutes that have already passed once.
    let mut local = zone.to_datetime(after);
    loop {
        local = fields.after(local)?;
        let fire = instant(zone, local)?;
        if fire > after {
            return Some(fire);
        }
    }
}

/// The point in time of a local time: its first occurrence, or the end of the gap that contains it.
fn instant(zone: &TimeZone, local: DateTime) -> Option<Timestamp> {
    match zone.to_ambiguous_timestamp(local).offset() {
        AmbiguousOffset::Unambiguous { offset } | AmbiguousOffset::Fold { before: offset, .. } => {
            offset.to_timestamp(local).ok()
        }
        AmbiguousOffset::Gap { after, .. } => {
            // The later offset puts the local time before the change, so the next change is the end of the gap.
            let before_change = after.to_timestamp(local).ok()?;
            zone.following(before_change).next().map(|change| change.timestamp())
        }
    }
}

/// The next fire time if local times happen as the wall clock shows them.
pub(super) fn next_by_wall_clock(fields: &Fields, zone: &TimeZone, after: Timestamp) -> Option<Timestamp> {
    let mut offset = zone.to_offset(after);
    let start = offset.to_datetime(after);
    let last_year = start.year().saturating_add(SEARCH_YEARS_MAX);
    let mut local = fields.after(start)?;
    // The clock runs evenly between two changes. The minute that begins with a change also counts.
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
