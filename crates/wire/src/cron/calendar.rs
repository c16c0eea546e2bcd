//! Finds the next local minute that matches. Knows the calendar, but no time zones.

use super::SEARCH_YEARS_MAX;
use jiff::civil::{Date, DateTime};

/// Minutes per day.
const DAY_MINUTES: u16 = 24 * 60;
/// One bit for the same weekday in each of six weeks.
const WEEKS: u64 = 1 | 1 << 7 | 1 << 14 | 1 << 21 | 1 << 28 | 1 << 35;

/// The five fields as sets: bit `n` is set when the value `n` matches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Fields {
    pub(super) minutes: u64,
    pub(super) hours: u64,
    pub(super) days: u64,
    pub(super) months: u64,
    /// Bits 0 to 6, Sunday first.
    pub(super) weekdays: u64,
    /// Whether a day must be in both `days` and `weekdays`, rather than in one of them.
    pub(super) both_days: bool,
}

impl Fields {
    /// The first matching minute after the one that contains `local`.
    pub(super) fn after(&self, local: DateTime) -> Option<DateTime> {
        self.first_from(local.date(), minute_of_day(local) + 1)
    }

    /// The first matching minute that begins at `local` or later.
    pub(super) fn at_or_after(&self, local: DateTime) -> Option<DateTime> {
        let is_inside_minute = local.second() != 0 || local.subsec_nanosecond() != 0;
        self.first_from(local.date(), minute_of_day(local) + u16::from(is_inside_minute))
    }

    /// Whether any day matches.
    pub(super) fn ever(&self) -> bool {
        self.date_from(2000, 1, 1).is_some()
    }

    fn first_from(&self, date: Date, minute: u16) -> Option<DateTime> {
        let found = self.date_from(date.year(), date.month(), date.day())?;
        if found > date {
            return self.at(found, 0);
        }
        match self.at(date, minute) {
            Some(time) => Some(time),
            None => self.at(self.date_from(date.year(), date.month(), date.day() + 1)?, 0),
        }
    }

    /// The first matching minute of a day, starting at `minute`.
    fn at(&self, date: Date, minute: u16) -> Option<DateTime> {
        if minute >= DAY_MINUTES {
            return None;
        }
        let (hour, minute) = ((minute / 60) as i8, (minute % 60) as i8);
        let minute_now = if self.hours >> hour & 1 == 1 { lowest(self.minutes, minute) } else { None };
        match minute_now {
            Some(minute) => Some(date.at(hour, minute, 0, 0)),
            None => Some(date.at(lowest(self.hours, hour + 1)?, lowest(self.minutes, 0)?, 0, 0)),
        }
    }

    /// The first matching day, starting at this one; `day` may be one past the end of the month.
    fn date_from(&self, year: i16, month: i8, day: i8) -> Option<Date> {
        let (mut year, mut month, mut day) = (year, month, day);
        let last_year = year.saturating_add(SEARCH_YEARS_MAX);
        while year <= last_year {
            match lowest(self.months, month) {
                None => (year, month, day) = (year + 1, 1, 1),
                Some(later) if later > month => (month, day) = (later, 1),
                Some(_) => {
                    let first = Date::new(year, month, 1).ok()?;
                    if let Some(day) = lowest(self.days_of_month(first), day) {
                        return Date::new(year, month, day).ok();
                    }
                    (month, day) = (month + 1, 1);
                }
            }
        }
        None
    }

    /// The matching days of the month that begins with `first`.
    fn days_of_month(&self, first: Date) -> u64 {
        let existing = (2 << first.days_in_month()) - 2;
        let by_weekday = (self.weekdays * WEEKS) >> first.weekday().to_sunday_zero_offset() << 1;
        let matching = if self.both_days { self.days & by_weekday } else { self.days | by_weekday };
        matching & existing
    }
}

fn minute_of_day(local: DateTime) -> u16 {
    local.hour() as u16 * 60 + local.minute() as u16
}

/// The lowest member of a set that is at least `from`.
fn lowest(set: u64, from: i8) -> Option<i8> {
    let rest = set & (u64::MAX << from);
    (rest != 0).then(|| rest.trailing_zeros() as i8)
}
