//! Numbers and texts in the forms that Python's format specifications describe, behind a `%` and within braces alike.

use minijinja::{Error, Value};

use super::python::failed;

/// The most characters that a text is widened to. A far larger width would take all memory.
pub(super) const MAX_WIDTH: usize = 100_000;

/// How a value is written: `[[fill]align][sign][#][0][width][grouping][.precision][kind]`.
#[derive(Clone, Debug)]
pub(super) struct Spec {
    pub(super) fill: char,
    /// `<`, `>`, `^`, or `=` for blanks behind the sign.
    pub(super) align: Option<char>,
    pub(super) sign: Option<char>,
    /// `#`: prefixes of numbers in other bases, and zeros that `g` would leave out.
    pub(super) alternate: bool,
    pub(super) width: usize,
    /// The character between groups of digits.
    pub(super) grouping: Option<char>,
    pub(super) precision: Option<usize>,
    pub(super) kind: Option<char>,
}

impl Default for Spec {
    fn default() -> Self {
        Self {
            fill: ' ',
            align: None,
            sign: None,
            alternate: false,
            width: 0,
            grouping: None,
            precision: None,
            kind: None,
        }
    }
}

impl Spec {
    /// A text, cut to the precision and padded. Texts stand on the left unless the specification says otherwise.
    pub(super) fn text(&self, text: &str, align: char) -> String {
        let cut: String = match self.precision {
            Some(most) => text.chars().take(most).collect(),
            None => text.to_owned(),
        };
        self.padded("", &cut, align)
    }

    /// A whole number in the base that `kind` names.
    pub(super) fn whole(&self, number: i128) -> String {
        let size = number.unsigned_abs();
        let (digits, prefix) = match self.kind {
            Some('x') => (format!("{size:x}"), "0x"),
            Some('X') => (format!("{size:X}"), "0X"),
            Some('o') => (format!("{size:o}"), "0o"),
            Some('b') => (format!("{size:b}"), "0b"),
            _ => (size.to_string(), ""),
        };
        let prefix = if self.alternate { prefix } else { "" };
        let digits = self.grouped(&digits, if prefix.is_empty() { 3 } else { 4 });
        self.padded(
            &format!("{}{prefix}", self.sign_of(number < 0)),
            &digits,
            '>',
        )
    }

    /// A float as `kind` says: `e`, `f`, `g`, `%`, one of them in upper case, or none.
    pub(super) fn float(&self, number: f64) -> String {
        let size = number.abs();
        let kind = self.kind.unwrap_or(' ');
        let digits = match kind.to_ascii_lowercase() {
            _ if size.is_nan() => "nan".to_owned(),
            _ if size.is_infinite() => "inf".to_owned(),
            'e' => scientific(size, self.precision.unwrap_or(6)),
            'f' => self.fixed(size, self.precision.unwrap_or(6)),
            '%' => self.fixed(size * 100.0, self.precision.unwrap_or(6)) + "%",
            'g' | 'n' => self.general(size, self.precision.unwrap_or(6).max(1), 0),
            _ => match self.precision {
                // At least one digit stands behind the point.
                Some(precision) => self.general(size, precision.max(1), 1),
                None => super::python::float(size),
            },
        };
        let digits = match kind.is_ascii_uppercase() {
            true => digits.to_uppercase(),
            false => digits,
        };
        let (whole, rest) = digits.split_at(digits.find(['.', 'e', '%']).unwrap_or(digits.len()));
        let digits = format!("{}{rest}", self.grouped(whole, 3));
        let negative = number.is_sign_negative() && !number.is_nan();
        self.padded(self.sign_of(negative), &digits, '>')
    }

    fn fixed(&self, size: f64, precision: usize) -> String {
        let point = if self.alternate && precision == 0 {
            "."
        } else {
            ""
        };
        format!("{size:.precision$}{point}")
    }

    /// A number with as many digits as the precision says, with an exponent where the number is very small or has more digits than
    /// `precision`.
    fn general(&self, size: f64, precision: usize, behind: usize) -> String {
        let long = scientific(size, precision - 1);
        let exponent: i64 = long
            .split_once('e')
            .and_then(|(_, exponent)| exponent.parse().ok())
            .unwrap_or(0);
        let most = precision as i64 - behind as i64;
        if (-4..most.max(i64::from(size == 0.0))).contains(&exponent) {
            let places = (precision as i64 - 1 - exponent).max(0) as usize;
            let digits = self.without_zeros(&self.fixed(size, places));
            match behind > 0 && !digits.contains('.') {
                true => digits + ".0",
                false => digits,
            }
        } else {
            let (digits, exponent) = long.split_once('e').unwrap_or((&long, "+00"));
            format!("{}e{exponent}", self.without_zeros(digits))
        }
    }

    fn without_zeros(&self, digits: &str) -> String {
        match digits.contains('.') && !self.alternate {
            true => digits.trim_end_matches('0').trim_end_matches('.'),
            false => digits,
        }
        .to_owned()
    }

    fn grouped(&self, digits: &str, size: usize) -> String {
        let Some(by) = self.grouping else {
            return digits.to_owned();
        };
        let mut out = String::new();
        for (at, digit) in digits.chars().enumerate() {
            if at > 0 && (digits.len() - at).is_multiple_of(size) {
                out.push(by);
            }
            out.push(digit);
        }
        out
    }

    fn sign_of(&self, negative: bool) -> &'static str {
        match (negative, self.sign) {
            (true, _) => "-",
            (false, Some('+')) => "+",
            (false, Some(' ')) => " ",
            _ => "",
        }
    }

    fn padded(&self, head: &str, text: &str, align: char) -> String {
        let missing = (self.width).saturating_sub(head.chars().count() + text.chars().count());
        let fill = |count| self.fill.to_string().repeat(count);
        match self.align.unwrap_or(align) {
            '<' => format!("{head}{text}{}", fill(missing)),
            '^' => {
                let left = missing / 2;
                format!("{}{head}{text}{}", fill(left), fill(missing - left))
            }
            '=' => format!("{head}{}{text}", fill(missing)),
            _ => format!("{}{head}{text}", fill(missing)),
        }
    }
}

/// One digit, a point, `precision` digits, and an exponent of at least two digits.
fn scientific(size: f64, precision: usize) -> String {
    let text = format!("{size:.precision$e}");
    let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    let (sign, exponent) = match exponent.strip_prefix('-') {
        Some(exponent) => ('-', exponent),
        None => ('+', exponent),
    };
    format!("{digits}e{sign}{exponent:0>2}")
}

/// A width or a precision.
///
/// # Errors
/// If it is larger than such may be.
pub(super) fn bounded(width: usize) -> Result<usize, Error> {
    match width > MAX_WIDTH {
        true => Err(failed(format!(
            "a format has the width {width}; at most {MAX_WIDTH} was expected"
        ))),
        false => Ok(width),
    }
}

/// The whole number that `value` is, also of `true` and `false`.
pub(super) fn whole_of(value: &Value) -> Option<i128> {
    match value.kind() {
        minijinja::value::ValueKind::Bool => Some(i128::from(value.is_true())),
        _ if value.is_integer() => i128::try_from(value.clone()).ok(),
        _ => None,
    }
}

/// The float that a number is.
pub(super) fn float_of(value: &Value) -> Option<f64> {
    match whole_of(value) {
        Some(whole) => Some(whole as f64),
        None if value.is_number() => f64::try_from(value.clone()).ok(),
        None => None,
    }
}
