//! The current date for chat templates that print it: `strftime_now(format)`.

use jiff::fmt::strtime;
use jiff::tz::TimeZone;
use jiff::{Error, Timestamp};

/// Now, in UTC, in the given `strftime` format. What is no directive of it is an error.
pub fn strftime_now(format: &str) -> Result<String, Error> {
    strftime(format, Timestamp::now())
}

fn strftime(format: &str, at: Timestamp) -> Result<String, Error> {
    strtime::format(format, &at.to_zoned(TimeZone::UTC))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(format: &str, second: i64) -> Result<String, Error> {
        strftime(format, Timestamp::from_second(second).unwrap())
    }

    #[test]
    fn dates_as_python_prints_them() {
        // datetime.fromtimestamp(t, timezone.utc).strftime(format)
        let format = "%Y-%m-%d %H:%M:%S %A %d %B %y %b %a %j %I %p %-d %% %h %F %T %Z %z";
        assert_eq!(
            at(format, 0).unwrap(),
            "1970-01-01 00:00:00 Thursday 01 January 70 Jan Thu 001 12 AM 1 % Jan 1970-01-01 00:00:00 UTC +0000"
        );
        assert_eq!(
            at(format, 951_827_696).unwrap(),
            "2000-02-29 12:34:56 Tuesday 29 February 00 Feb Tue 060 12 PM 29 % Feb 2000-02-29 12:34:56 UTC +0000"
        );
        assert_eq!(
            at(format, 1_767_225_599).unwrap(),
            "2025-12-31 23:59:59 Wednesday 31 December 25 Dec Wed 365 11 PM 31 % Dec 2025-12-31 23:59:59 UTC +0000"
        );
    }

    #[test]
    fn an_unsupported_directive_is_an_error() {
        for format in ["%E", "%é", "%-", "50%"] {
            assert!(at(format, 0).is_err(), "{format}");
        }
    }

    #[test]
    fn now_is_this_century() {
        assert!(strftime_now("%Y").unwrap().starts_with("20"));
    }
}
