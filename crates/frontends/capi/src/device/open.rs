//! [`open_device`]: opens a device by name ([`open::open`](fn@open::open)). Errors use the names of the
//! header.
//!
//! Guarantee: the error for an option that the device does not support has the option's C name.

use std::sync::mpsc::Sender;

use open::{CloseError, DriveControl, FileOptions, RegionLog, Target, TargetOpenError};
use time::Nanos;
use user_io::IoDevice;

/// Options of an open.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct DeviceOpenOptions {
    /// Open read-only.
    pub(crate) read_only: bool,
    /// Use the page cache of the operating system.
    pub(crate) buffered: bool,
    /// Allow a block device that is in use.
    pub(crate) shared: bool,
    /// Requests outstanding per queue; `None` for the device's default.
    pub(crate) queue_depth: Option<u16>,
    /// Bytes of a sector; `None` for the device's default.
    pub(crate) sector_bytes: Option<u32>,
    /// Minimum number of queues that can be created; `None` for what the device has.
    pub(crate) queues: Option<u16>,
    /// Timeout of a server's replies; `None` for 5 seconds.
    pub(crate) timeout: Option<Nanos>,
    /// Log in the persistent memory region of a scenario's drive.
    pub(crate) log: Option<RegionLog>,
}

/// Returns the C name of an option that only files and block devices support, if it is set.
fn file_only_option(options: &DeviceOpenOptions) -> Option<(&'static str, String)> {
    let DeviceOpenOptions { read_only, buffered, shared, sector_bytes, .. } = *options;
    let flags = [
        (read_only, "SLUICE_OPEN_READ_ONLY"),
        (buffered, "SLUICE_OPEN_BUFFERED"),
        (shared, "SLUICE_OPEN_SHARED"),
    ];
    let flag = flags.into_iter().find(|(set, _)| *set).map(|(_, name)| ("flags", name.to_owned()));
    flag.or_else(|| sector_bytes.map(|bytes| ("sector_bytes", bytes.to_string())))
}

/// Opens any device that [`open::open`](fn@open::open) supports. A drive that is not closed
/// cleanly reports it to `closed`.
pub(crate) fn open_device(
    what: &str,
    options: &DeviceOpenOptions,
    closed: Option<Sender<CloseError>>,
) -> Result<(IoDevice, DriveControl), TargetOpenError> {
    let target: Target = what.parse()?;
    if !matches!(target, Target::File(_))
        && let Some((option, value)) = file_only_option(options)
    {
        let allowed = "0: only files and block devices are opened so".into();
        return Err(TargetOpenError::Option { option, value, what: what.into(), allowed });
    }
    let DeviceOpenOptions {
        read_only,
        buffered,
        shared,
        queue_depth,
        sector_bytes,
        queues,
        timeout,
        log,
    } = *options;
    let file = FileOptions {
        sector_bytes,
        direct: !buffered,
        exclusive: !shared,
        ..FileOptions::default()
    };
    let options = open::OpenOptions {
        depth: queue_depth,
        queues,
        read_only,
        timeout,
        log,
        file,
        close_errors: closed,
        ..Default::default()
    };
    open::open_with_control(&target, &options).map_err(|error| match error {
        TargetOpenError::Option { option: "depth", value, what, allowed } => {
            TargetOpenError::Option { option: "queue_depth", value, what, allowed }
        }
        TargetOpenError::Option { option: "timeout", what, allowed, .. } => {
            let value = timeout.map_or(0, |t| t.0 / 1_000_000).to_string();
            TargetOpenError::Option { option: "timeout_ms", value, what, allowed }
        }
        TargetOpenError::Option { option: "log", value, what, allowed } => {
            TargetOpenError::Option { option: "log_bytes", value, what, allowed }
        }
        error => error,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(what: &str) -> Result<IoDevice, TargetOpenError> {
        open_device(what, &DeviceOpenOptions::default(), None).map(|(device, _)| device)
    }

    fn refused(what: &str, options: DeviceOpenOptions) -> String {
        let error = open_device(what, &options, None).unwrap_err();
        assert_eq!(error.errno(), libc::EINVAL, "{what}: {error}");
        error.to_string()
    }

    #[test]
    fn a_null_device_is_as_large_as_it_was_asked_to_be() {
        assert_eq!(open("null").unwrap().limits().bytes(), 1 << 40);
        assert_eq!(open("null:1m").unwrap().limits().bytes(), 1 << 20);
        for what in ["null:", "null:x", "null:0", "null:100"] {
            let error = open(what).unwrap_err();
            assert_eq!(error.errno(), libc::EINVAL, "{what}: {error}");
            assert!(error.to_string().contains("null:64G"), "{error}");
        }
    }

    #[test]
    fn what_only_files_have_is_refused_elsewhere_by_its_name() {
        let plain = DeviceOpenOptions::default();
        for (options, says) in [
            (
                DeviceOpenOptions { read_only: true, ..plain },
                "flags = SLUICE_OPEN_READ_ONLY for null:",
            ),
            (
                DeviceOpenOptions { buffered: true, ..plain },
                "flags = SLUICE_OPEN_BUFFERED for null:",
            ),
            (DeviceOpenOptions { shared: true, ..plain }, "flags = SLUICE_OPEN_SHARED for null:"),
            (
                DeviceOpenOptions { sector_bytes: Some(512), ..plain },
                "sector_bytes = 512 for null:",
            ),
            (DeviceOpenOptions { queue_depth: Some(0), ..plain }, "queue_depth = 0"),
            (
                DeviceOpenOptions { timeout: Some(Nanos::from_millis(7)), ..plain },
                "timeout_ms = 7 for",
            ),
            (
                DeviceOpenOptions { log: Some(RegionLog::Bytes(1 << 20)), ..plain },
                "log_bytes = 1048576 for the null device: only the drive of a scenario",
            ),
        ] {
            let said = refused("null", options);
            assert!(said.contains(says), "{said} does not say {says}");
        }
    }

    #[test]
    fn a_drive_of_a_scenario_has_depths_and_queues_of_its_own() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("drive.toml");
        let text = "[drive]\nname = \"d\"\npreset = \"nvme-null\"\ncapacity = \"64M\"\n";
        std::fs::write(&file, text).unwrap();
        let what = file.to_str().unwrap();
        assert_eq!(open(what).unwrap().name(), "d");
        let plain = DeviceOpenOptions::default();
        let said = refused(what, DeviceOpenOptions { queue_depth: Some(u16::MAX), ..plain });
        assert!(said.contains("queue_depth = 65535 for drive d"), "{said}");
        let said = refused(what, DeviceOpenOptions { queues: Some(u16::MAX), ..plain });
        assert!(said.contains("queues = 65535 for drive d"), "{said}");
        let said = refused(what, DeviceOpenOptions { shared: true, ..plain });
        assert!(said.contains("SLUICE_OPEN_SHARED"), "{said}");
    }

    #[test]
    fn what_cannot_be_opened_reads_as_the_system_says_it() {
        let errno = |what: &str| open(what).unwrap_err().errno();
        assert_eq!(errno("/nonexistent/file"), libc::ENOENT);
        assert_eq!(errno("/nonexistent/drive.toml#a"), libc::ENOENT);
        assert_eq!(errno("/"), libc::ENOTBLK);
        assert_eq!(errno("sluice:///nonexistent/x.sock"), libc::ENOENT);
        assert_eq!(errno("vfio:7ffffff0:01:00.0"), libc::ENODEV);
        assert_eq!(errno("vfio:somewhere"), libc::EINVAL);
        assert_eq!(errno("uio:7ffffff0:01:00.0?unsafe=1"), libc::ENODEV);
        assert_eq!(errno("uio:7ffffff0:01:00.0"), libc::EINVAL, "it was not said that it is meant");
        assert_eq!(errno("nbd://host/x"), libc::EINVAL);
        assert_eq!(errno(""), libc::EINVAL);
        let empty = tempfile::NamedTempFile::new().unwrap();
        let error = open(empty.path().to_str().unwrap()).unwrap_err();
        assert_eq!(error.errno(), libc::EINVAL);
        assert!(error.to_string().contains("is empty"), "{error}");
        let wrong = tempfile::Builder::new().suffix(".toml").tempfile().unwrap();
        std::fs::write(wrong.path(), "[drive]\npreset = \"no such\"\n").unwrap();
        let error = open(wrong.path().to_str().unwrap()).unwrap_err();
        assert_eq!(error.errno(), libc::EINVAL);
        assert!(error.to_string().contains(":2:"), "the place is named: {error}");
    }
}
