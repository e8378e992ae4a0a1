//! Parsers of values with units: sizes, bandwidths, durations. Each returns `None` for an invalid
//! value; the caller knows its key and reports the error.

use time::Nanos;

/// Values that [`size`] accepts, for messages.
pub const SIZE: &str = "a size: bytes as a number, or \"16k\", \"4M\", \"2G\", \"1T\" (powers of 1024), or \"400GB\" \
     (powers of 1000)";
/// Values that [`bandwidth`] accepts, for messages.
pub const BANDWIDTH: &str = "a bandwidth such as \"280MB/s\" or \"1.2GB/s\" (powers of 1000), \"280MiB/s\" (powers of \
     1024), or bytes per second as a number";
/// Values that [`channel_bandwidth`] accepts, for messages.
pub const CHANNEL_BANDWIDTH: &str = "a bandwidth such as \"280MB/s\", \"333MT/s\" or \"1.2GT/s\" (transfers of 8 bits), \"280MiB/s\" \
     (powers of 1024), or bytes per second as a number";
/// Values that [`duration`] accepts, for messages.
pub const DURATION: &str = "a duration with its unit: \"250ns\", \"58us\", \"1.39ms\" or \"2s\"";

/// Splits `1.5 GB` into number and unit.
fn split(word: &str) -> Option<(f64, &str)> {
    let word = word.trim();
    let end = word.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(word.len());
    let number: f64 = word[..end].parse().ok()?;
    Some((number, word[end..].trim()))
}

fn to_u64(value: f64) -> Option<u64> {
    let value = value.round();
    (value.is_finite() && (0.0..18_446_744_073_709_549_568.0).contains(&value))
        .then_some(value as u64)
}

fn power(prefix: &str) -> Option<i32> {
    match prefix {
        "" => Some(0),
        "k" | "K" => Some(1),
        "m" | "M" => Some(2),
        "g" | "G" => Some(3),
        "t" | "T" => Some(4),
        _ => None,
    }
}

/// Parses a size in bytes: `4096`, `16k`, `16KiB` (powers of 1024, fio's `kb_base`), `400GB`
/// (powers of 1000).
pub fn size(word: &str) -> Option<u64> {
    let (number, unit) = split(word)?;
    let scale = match unit.strip_suffix('B') {
        Some(prefix) => match prefix.strip_suffix('i') {
            Some(binary) => 1024f64.powi(power(binary)?),
            None => 1000f64.powi(power(prefix)?),
        },
        None => 1024f64.powi(power(unit.strip_suffix('i').unwrap_or(unit))?),
    };
    to_u64(number * scale)
}

/// Parses a bandwidth in bytes per second: `280MB/s`, `1.2GB/s`, `280MiB/s`, `4096`.
pub fn bandwidth(word: &str) -> Option<u64> {
    let (number, unit) = split(word)?;
    if unit.is_empty() {
        return to_u64(number);
    }
    // `280M/s` could be a power of 1000 or of 1024, so the unit must be complete.
    let prefix = unit.strip_suffix("B/s")?;
    let scale = match prefix.strip_suffix('i') {
        Some(binary) => 1024f64.powi(power(binary)?),
        None => 1000f64.powi(power(prefix)?),
    };
    to_u64(number * scale)
}

/// Parses the bandwidth of a flash channel in bytes per second: as [`bandwidth`], or in transfers
/// per second as in data sheets, `333MT/s` or `1.2GT/s`. A channel has eight data lines, so a
/// transfer is a byte.
pub fn channel_bandwidth(word: &str) -> Option<u64> {
    let transfers = split(word).and_then(|(number, unit)| {
        let prefix = unit.strip_suffix("T/s")?;
        matches!(prefix, "" | "k" | "M" | "G").then_some(())?;
        to_u64(number * 1000f64.powi(power(prefix)?))
    });
    transfers.or_else(|| bandwidth(word))
}

/// Parses a duration: `250ns`, `58us`, `1.39ms`, `2s`, `0`.
pub fn duration(word: &str) -> Option<Nanos> {
    let (number, unit) = split(word)?;
    let scale = match unit {
        "ns" => 1.0,
        "us" | "µs" | "μs" => 1e3,
        "ms" => 1e6,
        "s" => 1e9,
        // Zero needs no unit.
        "" if number == 0.0 => 0.0,
        _ => return None,
    };
    to_u64(number * scale).map(Nanos)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_fios_and_makers_are_decimal() {
        for (word, bytes) in [
            ("0", 0),
            ("4096", 4096),
            ("16k", 16 << 10),
            ("16K", 16 << 10),
            ("16KiB", 16 << 10),
            ("1.5M", 3 << 19),
            ("2G", 2 << 30),
            ("1T", 1 << 40),
            ("400GB", 400_000_000_000),
            ("512 B", 512),
        ] {
            assert_eq!(size(word), Some(bytes), "{word}");
        }
        for word in ["", "k", "-1", "16x", "1e3", "4 4", "99999999999T"] {
            assert_eq!(size(word), None, "{word}");
        }
    }

    #[test]
    fn bandwidths_name_their_power() {
        assert_eq!(bandwidth("280MB/s"), Some(280_000_000));
        assert_eq!(bandwidth("1.2GB/s"), Some(1_200_000_000));
        assert_eq!(bandwidth("1MiB/s"), Some(1 << 20));
        assert_eq!(bandwidth("0"), Some(0));
        for word in ["280M", "280M/s", "280MB", "fast"] {
            assert_eq!(bandwidth(word), None, "{word}");
        }
    }

    #[test]
    fn channels_transfer_bytes() {
        assert_eq!(channel_bandwidth("333MT/s"), Some(333_000_000));
        assert_eq!(channel_bandwidth("1.2 GT/s"), Some(1_200_000_000));
        assert_eq!(channel_bandwidth("333MB/s"), Some(333_000_000));
        assert_eq!(channel_bandwidth("0"), Some(0));
        for word in ["333MT", "333T", "333MiT/s", "333M", "MT/s"] {
            assert_eq!(channel_bandwidth(word), None, "{word}");
        }
        assert_eq!(bandwidth("333MT/s"), None, "a bus of any width");
    }

    #[test]
    fn durations_need_a_unit_unless_zero() {
        assert_eq!(duration("58us"), Some(Nanos(58_000)));
        assert_eq!(duration("58 µs"), Some(Nanos(58_000)));
        assert_eq!(duration("1.39ms"), Some(Nanos(1_390_000)));
        assert_eq!(duration("2s"), Some(Nanos(2_000_000_000)));
        assert_eq!(duration("0"), Some(Nanos(0)));
        for word in ["58", "58m", "us", "-1us"] {
            assert_eq!(duration(word), None, "{word}");
        }
    }
}
