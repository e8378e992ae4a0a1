//! Parsers of fio's values: sizes (`4k`, `1.5m`, `2g`, `10%`), times (`30s`, `500ms`, `2m`) and
//! rates. As with fio's default `kb_base=1024`, every size suffix is a power of 1024.

use time::Nanos;

/// A size in bytes or in percent.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Size {
    /// Size in bytes.
    Bytes(u64),
    /// Size in percent, above 0 and at most 100 for `size` and `offset`.
    Percent(f64),
}

impl Size {
    /// Returns the size in bytes, rounded down; `of` is 100 % in bytes.
    pub fn resolve(self, of: u64) -> u64 {
        match self {
            Size::Bytes(bytes) => bytes,
            Size::Percent(percent) => (of as f64 * (percent / 100.0)) as u64,
        }
    }
}

/// Splits a number from its suffix; the number is finite and not negative.
fn number(text: &str) -> Option<(f64, &str)> {
    let text = text.trim();
    if let Some(hex) = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        return u64::from_str_radix(hex, 16).ok().map(|n| (n as f64, ""));
    }
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let value: f64 = text[..end].parse().ok()?;
    value.is_finite().then_some((value, text[end..].trim()))
}

fn to_u64(value: f64) -> Option<u64> {
    (value < u64::MAX as f64).then_some(value as u64)
}

/// Parses a size in bytes: a number and `k`, `m`, `g`, `t` or `p`, with or without `b` or `ib`, in
/// either case. Hexadecimal numbers start with `0x`.
pub fn parse_bytes(text: &str) -> Option<u64> {
    if let Ok(exact) = text.trim().parse() {
        return Some(exact);
    }
    let (value, suffix) = number(text)?;
    let suffix = suffix.to_ascii_lowercase();
    let letter = suffix.strip_suffix("ib").or_else(|| suffix.strip_suffix('b'));
    let letter = letter.or_else(|| suffix.strip_suffix('i')).unwrap_or(&suffix);
    let power = match letter {
        "" => 0,
        "k" => 1,
        "m" => 2,
        "g" => 3,
        "t" => 4,
        "p" => 5,
        _ => return None,
    };
    to_u64(value * 1024f64.powi(power))
}

/// Formats a size with a binary unit, such as `3.2 GiB`.
pub fn format_bytes(bytes: u64) -> String {
    const UNITS: [&str; 7] = ["bytes", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let power = (bytes.max(1).ilog2() / 10) as usize;
    match power {
        0 => format!("{bytes} {}", UNITS[0]),
        _ => format!("{:.1} {}", bytes as f64 / 1024f64.powi(power as i32), UNITS[power]),
    }
}

/// Parses a size in bytes or in percent.
pub fn parse_size(text: &str) -> Option<Size> {
    match text.trim().strip_suffix('%') {
        Some(percent) => {
            let (value, rest) = number(percent)?;
            (rest.is_empty() && value > 0.0).then_some(Size::Percent(value))
        }
        None => parse_bytes(text).map(Size::Bytes),
    }
}

/// Parses a time: a number and `d`, `h`, `m`, `s`, `ms`, `us` or `ns`. A number without a suffix is
/// in `unit`.
pub fn parse_time(text: &str, unit: Nanos) -> Option<Nanos> {
    let (value, suffix) = number(text)?;
    let scale = match suffix.to_ascii_lowercase().as_str() {
        "" => unit.0 as f64,
        "d" => 86_400e9,
        "h" => 3_600e9,
        "m" => 60e9,
        "s" => 1e9,
        "ms" | "msec" => 1e6,
        "us" | "usec" => 1e3,
        "ns" | "nsec" => 1.0,
        _ => return None,
    };
    to_u64((value * scale).round()).map(Nanos)
}

/// Parses a boolean: `1`, `true`, `yes`, `on` or nothing; `0`, `false`, `no`, `off`.
pub fn parse_bool(text: &str) -> Option<bool> {
    match text.trim().to_ascii_lowercase().as_str() {
        "" | "1" | "true" | "yes" | "on" => Some(true),
        "0" | "false" | "no" | "off" => Some(false),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        for (text, bytes) in [
            ("4096", 4096),
            ("4k", 4096),
            ("4K", 4096),
            ("4kb", 4096),
            ("4KiB", 4096),
            ("1.5m", 3 << 19),
            ("2g", 2 << 30),
            ("1T", 1 << 40),
            ("0x1000", 4096),
            ("18446744073709551615", u64::MAX),
        ] {
            assert_eq!(parse_bytes(text), Some(bytes), "{text}");
        }
        for text in ["", "k", "-4k", "4x", "4kk", "1e3", "99999999p", "1..5", "nan", "inf", "0xg"] {
            assert_eq!(parse_bytes(text), None, "{text}");
        }
        let shown = [0, 1023, 1536, 21_406_904_320, u64::MAX].map(format_bytes);
        assert_eq!(shown, ["0 bytes", "1023 bytes", "1.5 KiB", "19.9 GiB", "16.0 EiB"]);
        assert_eq!(parse_size("12.5%").map(|s| s.resolve(1000)), Some(125));
        assert_eq!((parse_size("0%"), parse_size("%"), parse_size("4k%")), (None, None, None));
    }

    #[test]
    fn times() {
        let second = Nanos::from_secs(1);
        assert_eq!(parse_time("30", second), Some(Nanos::from_secs(30)));
        assert_eq!(parse_time("1.5", second), Some(Nanos::from_millis(1500)));
        assert_eq!(parse_time("2m", second), Some(Nanos::from_secs(120)));
        assert_eq!(parse_time("250us", second), Some(Nanos::from_micros(250)));
        assert_eq!(parse_time("7", Nanos::from_micros(1)), Some(Nanos::from_micros(7)));
        assert_eq!((parse_time("7y", second), parse_time("", second)), (None, None));
    }

    #[test]
    fn switches() {
        assert_eq!(
            (parse_bool(""), parse_bool("0"), parse_bool("2")),
            (Some(true), Some(false), None)
        );
    }
}
