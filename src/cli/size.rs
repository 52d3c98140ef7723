//! Sizes of memory on the command line.

/// Units, and their bytes. Graphics cards and memory are sold in those of 1024.
const UNITS: [(&str, u64); 6] = [
    ("mib", 1 << 20),
    ("gib", 1 << 30),
    ("mb", 1_000_000),
    ("gb", 1_000_000_000),
    ("m", 1 << 20),
    ("g", 1 << 30),
];

/// The bytes of a size such as `8G`, `10.5GiB` or `800 MB`.
pub(super) fn size(text: &str) -> Result<u64, String> {
    let wrong = || {
        format!(
            "expected a number with M, MiB, MB, G, GiB or GB behind it, such as 8G or 10.5GiB, found {text:?}"
        )
    };
    let lower = text.trim().to_ascii_lowercase();
    let unit = UNITS.iter().find(|(name, _)| lower.ends_with(name));
    let (name, unit) = unit.ok_or_else(wrong)?;
    let number = lower[..lower.len() - name.len()].trim_end();
    let is_plain = number.bytes().all(|c| c.is_ascii_digit() || c == b'.');
    let number: f64 = number.parse().ok().filter(|_| is_plain).ok_or_else(wrong)?;
    let bytes = number * *unit as f64;
    match bytes {
        0.0 => Err(format!(
            "found {text:?}, which is no memory at all; expected a size such as 8G"
        )),
        // More than an address has bits for is a slip of the pen.
        bytes if bytes >= 2f64.powi(57) => Err(format!(
            "found {text:?}, which is more than any machine has; expected a size such as 8G"
        )),
        bytes => Ok(bytes as u64),
    }
}

/// A size as [`size`] reads it.
pub(super) fn written(bytes: u64) -> String {
    for (unit, name) in [(1 << 30, "G"), (1 << 20, "M")] {
        if bytes.is_multiple_of(unit) {
            return format!("{}{name}", bytes / unit);
        }
    }
    format!("{}MB", bytes as f64 / 1e6)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_units() {
        for (text, expected) in [
            ("8G", 8 << 30),
            ("10.5GiB", (21 << 30) / 2),
            ("10.5 gib", (21 << 30) / 2),
            ("800MB", 800_000_000),
            (".5g", 1 << 29),
            ("24GB", 24_000_000_000),
            (" 512M ", 512 << 20),
            ("1MiB", 1 << 20),
        ] {
            assert_eq!(size(text), Ok(expected), "{text}");
            assert_eq!(size(&written(expected)), Ok(expected), "{text}");
        }
    }

    #[test]
    fn what_is_no_size_is_refused() {
        for text in [
            "",
            "8",
            "G",
            ".G",
            "8K",
            "8T",
            "8GG",
            "-8G",
            "+8G",
            "8e3G",
            "infG",
            "nanG",
            "1.2.3G",
            "0x8G",
            "８G",
            "8G 4G",
            "0G",
            "0.0MiB",
            "99999999999G",
        ] {
            let refused = size(text).expect_err(text);
            assert!(refused.contains("such as 8G"), "{text}: {refused}");
        }
    }
}
