//! [`open_device`]: from what a caller names to a device.

use direct::{Device, DirectError, Limits};
use driver::UringConfig;

use crate::error::of_direct;

/// Bytes of a null device whose size is not said: 1 TiB.
const NULL_BYTES: u64 = 1 << 40;
/// Requests outstanding per queue of a null device, unless said otherwise.
const NULL_DEPTH: u32 = 1024;

/// How a device is opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct OpenOptions {
    /// For reading only.
    pub(crate) read_only: bool,
    /// Through the host's page cache.
    pub(crate) buffered: bool,
    /// Also a block device that something else uses.
    pub(crate) shared: bool,
    /// Requests outstanding per queue; `None` for the device's default.
    pub(crate) queue_depth: Option<u16>,
    /// Bytes of a sector; `None` for the device's own.
    pub(crate) sector_bytes: Option<u32>,
}

/// Why nothing was opened.
#[derive(Debug, thiserror::Error)]
pub(crate) enum OpenError {
    /// A size that is none.
    #[error(
        "`{0}`: the size of a null device is a number of bytes, with k, m, g or t for powers of 1024, \
         at least a sector, as in null:64g"
    )]
    Size(String),
    /// An option that the device does not have.
    #[error("`{option}` of {what}: {allowed}")]
    Option { what: String, option: &'static str, allowed: &'static str },
    /// The host does not open it.
    #[error(transparent)]
    Device(#[from] DirectError),
}

impl OpenError {
    pub(crate) fn errno(&self) -> i32 {
        match self {
            OpenError::Size(_) | OpenError::Option { .. } => libc::EINVAL,
            OpenError::Device(error) => of_direct(error),
        }
    }
}

/// Bytes that a text like `64g` says.
fn size(text: &str) -> Option<u64> {
    let unit = text.chars().last()?.to_ascii_lowercase();
    let shift = match unit {
        'k' => 10,
        'm' => 20,
        'g' => 30,
        't' => 40,
        _ => 0,
    };
    let digits = if shift == 0 { text } else { &text[..text.len() - 1] };
    let number: u64 = digits.parse().ok().filter(|_| digits.bytes().all(|b| b.is_ascii_digit()))?;
    number.checked_mul(1 << shift)
}

/// Opens `null`, `null:SIZE`, or a file or block device of the host by its path.
pub(crate) fn open_device(what: &str, options: &OpenOptions) -> Result<Device, OpenError> {
    let null = match what.split_once(':') {
        Some(("null", text)) => Some(size(text).ok_or_else(|| OpenError::Size(text.to_owned()))?),
        _ => (what == "null").then_some(NULL_BYTES),
    };
    match null {
        Some(bytes) => open_null(what, bytes, options),
        None => open_file(what, options),
    }
}

fn open_null(what: &str, bytes: u64, options: &OpenOptions) -> Result<Device, OpenError> {
    let refused =
        |option, allowed| Err(OpenError::Option { what: what.to_owned(), option, allowed });
    if options.read_only || options.buffered || options.shared {
        return refused("flags", "a null device has no data to protect or to keep: 0");
    }
    let sector_bytes = options.sector_bytes.unwrap_or(512);
    if !sector_bytes.is_power_of_two() || !(512..=65_536).contains(&sector_bytes) {
        return refused("sector_bytes", "a power of two from 512 to 65536");
    }
    if options.queue_depth == Some(0) {
        return refused("queue_depth", "1 to 65535");
    }
    let sectors = bytes / u64::from(sector_bytes);
    if sectors == 0 {
        return Err(OpenError::Size(what.to_owned()));
    }
    Ok(Device::null(Limits {
        sector_bytes,
        sectors,
        max_sectors: (1 << 20) / sector_bytes,
        optimal_sectors: (4096 / sector_bytes).max(1),
        queue_depth: options.queue_depth.map_or(NULL_DEPTH, u32::from),
        volatile_cache: false,
    }))
}

fn open_file(what: &str, options: &OpenOptions) -> Result<Device, OpenError> {
    let default = UringConfig::default();
    let config = UringConfig {
        depth: options.queue_depth.unwrap_or(default.depth),
        sector_bytes: options.sector_bytes,
        direct: !options.buffered,
        read_only: options.read_only,
        exclusive: !options.shared,
        ..default
    };
    Ok(Device::file(what, config)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_numbers_with_a_unit() {
        for (text, bytes) in [
            ("0", Some(0)),
            ("4096", Some(4096)),
            ("3k", Some(3072)),
            ("2M", Some(2 << 20)),
            ("64g", Some(64 << 30)),
            ("1T", Some(1 << 40)),
            ("", None),
            ("k", None),
            ("+1", None),
            ("-1", None),
            ("1.5g", None),
            ("1kb", None),
            ("99999999999999999999", None),
            ("99999999999t", None),
            ("1é", None),
        ] {
            assert_eq!(size(text), bytes, "{text}");
        }
    }

    #[test]
    fn a_null_device_is_as_large_as_it_was_asked_to_be() {
        let open = |what: &str| open_device(what, &OpenOptions::default());
        assert_eq!(open("null").unwrap().limits().bytes(), NULL_BYTES);
        assert_eq!(open("null:1m").unwrap().limits().bytes(), 1 << 20);
        for what in ["null:", "null:x", "null:0", "null:100"] {
            let error = open(what).unwrap_err();
            assert_eq!(error.errno(), libc::EINVAL, "{what}: {error}");
        }
        let odd = OpenOptions { sector_bytes: Some(1000), ..OpenOptions::default() };
        assert_eq!(open_device("null", &odd).unwrap_err().errno(), libc::EINVAL);
        let shallow = OpenOptions { queue_depth: Some(0), ..OpenOptions::default() };
        assert_eq!(open_device("null", &shallow).unwrap_err().errno(), libc::EINVAL);
        let flags = OpenOptions { read_only: true, ..OpenOptions::default() };
        let error = open_device("null", &flags).unwrap_err();
        assert!(error.to_string().contains("`flags` of null"), "{error}");
    }

    #[test]
    fn a_file_that_cannot_be_opened_says_why_as_the_system_does() {
        let open = |what: &str| open_device(what, &OpenOptions::default()).unwrap_err();
        assert_eq!(open("/nonexistent/file").errno(), libc::ENOENT);
        assert_eq!(open("/").errno(), libc::ENOTBLK);
        let empty = tempfile::NamedTempFile::new().unwrap();
        let error = open(empty.path().to_str().unwrap());
        assert_eq!(error.errno(), libc::EINVAL);
        assert!(error.to_string().contains("is empty"), "{error}");
    }
}
