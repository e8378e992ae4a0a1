//! Formats numbers for display: sizes, rates, durations and counts, never `inf` or `NaN`. Also
//! escapes text of files for a terminal, so that it has no control characters.

use std::borrow::Cow;

/// Formats a count with thousands separators: `1,234,567`.
pub fn count(n: u64) -> String {
    let digits = n.to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// Formats a number with three significant digits and without an exponent.
fn three(value: f64) -> String {
    if value >= 99.95 {
        format!("{value:.0}")
    } else if value >= 9.995 {
        format!("{value:.1}")
    } else {
        format!("{value:.2}")
    }
}

fn scaled(value: f64, base: f64, units: &[&str]) -> String {
    let mut value = if value.is_finite() { value.max(0.0) } else { 0.0 };
    let mut unit = 0;
    while value >= base && unit + 1 < units.len() {
        value /= base;
        unit += 1;
    }
    if unit == 0 || value.fract() == 0.0 && value < 1000.0 {
        format!("{value:.0} {}", units[unit])
    } else {
        format!("{} {}", three(value), units[unit])
    }
}

/// Formats a size with a binary unit: `64 KiB`.
pub fn bytes_binary(bytes: u64) -> String {
    scaled(bytes as f64, 1024.0, &["B", "KiB", "MiB", "GiB", "TiB", "PiB"])
}

/// Formats a size with a decimal unit: `400 GB`.
pub fn bytes_decimal(bytes: u64) -> String {
    scaled(bytes as f64, 1000.0, &["B", "kB", "MB", "GB", "TB", "PB"])
}

/// Formats a rate in bytes per second: `280 MB/s`. A value that is not finite becomes 0.
pub fn rate(bytes_per_sec: f64) -> String {
    scaled(bytes_per_sec, 1000.0, &["B/s", "kB/s", "MB/s", "GB/s", "TB/s"])
}

/// Formats a duration in nanoseconds: `58 us`.
pub fn duration(nanos: u64) -> String {
    scaled(nanos as f64, 1000.0, &["ns", "us", "ms", "s"])
}

/// Escapes text for one line: control characters, including line ends, become `\n` or `\u{1b}`.
pub fn printable(text: &str) -> Cow<'_, str> {
    escaped(text, |c| c.is_control())
}

/// Escapes text of several lines: control characters other than line ends and tabs.
pub fn printable_lines(text: &str) -> Cow<'_, str> {
    escaped(text, |c| c.is_control() && c != '\n' && c != '\t')
}

fn escaped(text: &str, is_bad: impl Fn(char) -> bool) -> Cow<'_, str> {
    if !text.contains(&is_bad) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        match is_bad(c) {
            true => out.extend(c.escape_default()),
            false => out.push(c),
        }
    }
    Cow::Owned(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn people_read_these() {
        assert_eq!(count(0), "0");
        assert_eq!(count(1_234_567), "1,234,567");
        assert_eq!(bytes_binary(65_536), "64 KiB");
        assert_eq!(bytes_binary(1_500), "1.46 KiB");
        assert_eq!(bytes_decimal(400_000_000_000), "400 GB");
        assert_eq!(rate(280e6), "280 MB/s");
        assert_eq!(rate(f64::NAN), "0 B/s");
        assert_eq!(duration(58_000), "58 us");
        assert_eq!(duration(1_390_000), "1.39 ms");
        assert_eq!(duration(24_220), "24.2 us");
    }

    #[test]
    fn no_control_character_reaches_a_terminal() {
        assert_eq!(printable("plain – text"), "plain – text");
        assert_eq!(printable("a\nb\x1b[31mc\u{9b}d\x07"), "a\\nb\\u{1b}[31mc\\u{9b}d\\u{7}");
        assert_eq!(printable_lines("a\n\tb\r"), "a\n\tb\\r");
    }
}
