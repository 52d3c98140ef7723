//! The current date for chat templates that print it: `strftime_now(format)`.

use std::time::{SystemTime, UNIX_EPOCH};

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
/// From the day of the Unix epoch on.
const WEEKDAYS: [&str; 7] = [
    "Thursday",
    "Friday",
    "Saturday",
    "Sunday",
    "Monday",
    "Tuesday",
    "Wednesday",
];
const SECONDS_PER_DAY: u64 = 86_400;

/// Now, in UTC, in the given `strftime` format; the error is the directive that is not supported.
pub(crate) fn strftime_now(format: &str) -> Result<String, String> {
    // A clock before 1970 is broken; the epoch is as good a date as any then.
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |time| time.as_secs());
    strftime(format, now)
}

/// The moment `seconds` after the Unix epoch in UTC.
fn strftime(format: &str, seconds: u64) -> Result<String, String> {
    let (days, second) = (seconds / SECONDS_PER_DAY, seconds % SECONDS_PER_DAY);
    let (year, month, day, day_of_year) = civil(days);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    let hour12 = (hour + 11) % 12 + 1;
    let month_name = MONTHS[month as usize - 1];
    let weekday = WEEKDAYS[(days % 7) as usize];
    let mut text = String::new();
    let mut chars = format.chars();
    while let Some(c) = chars.next() {
        if c != '%' {
            text.push(c);
            continue;
        }
        let mut directive = chars.next();
        // glibc's `%-d` drops the leading zero.
        let padded = directive != Some('-');
        if !padded {
            directive = chars.next();
        }
        let number = |value: u64, width: usize| {
            let width = if padded { width } else { 0 };
            format!("{value:0width$}")
        };
        text += &match directive {
            Some('Y') => number(year, 4),
            Some('y') => number(year % 100, 2),
            Some('m') => number(month, 2),
            Some('d') => number(day, 2),
            Some('j') => number(day_of_year, 3),
            Some('H') => number(hour, 2),
            Some('I') => number(hour12, 2),
            Some('M') => number(minute, 2),
            Some('S') => number(second, 2),
            Some('B') => month_name.to_owned(),
            Some('b' | 'h') => month_name[..3].to_owned(),
            Some('A') => weekday.to_owned(),
            Some('a') => weekday[..3].to_owned(),
            Some('p') => if hour < 12 { "AM" } else { "PM" }.to_owned(),
            Some('F') => format!("{year:04}-{month:02}-{day:02}"),
            Some('T') => format!("{hour:02}:{minute:02}:{second:02}"),
            Some('Z') => "UTC".to_owned(),
            Some('z') => "+0000".to_owned(),
            Some('%') => "%".to_owned(),
            Some(other) => return Err(format!("%{other}")),
            None => return Err("%".to_owned()),
        };
    }
    Ok(text)
}

/// Year, month, day and day of the year (all but the year from 1) of the day `days` after 1970-01-01.
fn civil(days: u64) -> (u64, u64, u64, u64) {
    let leap = |year: u64| {
        year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400))
    };
    let (mut year, mut rest) = (1970, days);
    while rest >= 365 + u64::from(leap(year)) {
        rest -= 365 + u64::from(leap(year));
        year += 1;
    }
    let day_of_year = rest + 1;
    let lengths = [
        31,
        28 + u64::from(leap(year)),
        31,
        30,
        31,
        30,
        31,
        31,
        30,
        31,
        30,
        31,
    ];
    let mut month = 0;
    while rest >= lengths[month] {
        rest -= lengths[month];
        month += 1;
    }
    (year, month as u64 + 1, rest + 1, day_of_year)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_as_python_prints_them() {
        // datetime.fromtimestamp(t, timezone.utc).strftime(format)
        let format = "%Y-%m-%d %H:%M:%S %A %d %B %y %b %a %j %I %p %-d %%";
        assert_eq!(
            strftime(format, 0).unwrap(),
            "1970-01-01 00:00:00 Thursday 01 January 70 Jan Thu 001 12 AM 1 %"
        );
        assert_eq!(
            strftime(format, 951_827_696).unwrap(),
            "2000-02-29 12:34:56 Tuesday 29 February 00 Feb Tue 060 12 PM 29 %"
        );
        assert_eq!(
            strftime(format, 1_767_225_599).unwrap(),
            "2025-12-31 23:59:59 Wednesday 31 December 25 Dec Wed 365 11 PM 31 %"
        );
    }

    #[test]
    fn an_unsupported_directive_is_an_error() {
        assert_eq!(strftime("%Q", 0), Err("%Q".to_owned()));
        assert_eq!(strftime("50%", 0), Err("%".to_owned()));
    }

    #[test]
    fn now_is_this_century() {
        assert!(strftime_now("%Y").unwrap().starts_with("20"));
    }
}
