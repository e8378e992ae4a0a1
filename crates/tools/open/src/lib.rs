//! [`open()`]: opens any target for user-level I/O, as `nvmed_open` of \[NVMeDirect16\], table 1,
//! does for a controller.
//!
//! Targets are a drive of a scenario, a served drive, a real controller, a controller that the
//! kernel drives, a file or block device, and the null device.
//!
//! ```
//! use user_io::{Handle, QueueConfig};
//! use sluice_open::OpenOptions;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let device = sluice_open::open("null:1G", &OpenOptions::default())?;
//! let queue = device.create_queue(QueueConfig::default())?;
//! let mut handle = Handle::new(&device, queue)?;
//! let data = device.buffer(4096)?;
//! handle.write(0, &data, false)?;
//! handle.flush()?;
//! # Ok(())
//! # }
//! ```

#![forbid(unsafe_code)]

mod controller;
mod drive_thread;
mod error;
mod locked_queue;
mod options;
mod remote;
mod scenario;
mod target;
mod target_queue;

use std::path::Path;

use driver::{Passthrough, UringConfig};
use user_io::{IoDevice, Limits};

pub use ::scenario::RegionLog;
pub use controller::UNSAFE;
pub use drive_thread::{DriveControl, DriveControlError};
pub use error::{CloseError, TargetOpenError};
pub use options::{FileOptions, OpenOptions};
pub use scenario::open_scenario;
pub use share_server::{NamespaceListing, RuleReport};
pub use target::Target;

use ::scenario::Scenario;

/// Opens the target `what`; [`Target`] documents its forms.
///
/// # Errors
/// [`TargetOpenError`].
pub fn open(what: &str, options: &OpenOptions) -> Result<IoDevice, TargetOpenError> {
    open_target(&what.parse()?, options)
}

/// Opens a parsed target.
///
/// # Errors
/// [`TargetOpenError`].
pub fn open_target(target: &Target, options: &OpenOptions) -> Result<IoDevice, TargetOpenError> {
    open_with_control(target, options).map(|(device, _)| device)
}

/// Opens a parsed target, with the control of the drives that this process emulates for it.
///
/// # Errors
/// [`TargetOpenError`].
pub fn open_with_control(
    target: &Target,
    options: &OpenOptions,
) -> Result<(IoDevice, DriveControl), TargetOpenError> {
    let device = match target {
        Target::Null { bytes } => null(*bytes, options),
        Target::Scenario { file, drive } => {
            exists(file)?;
            let scenario = Scenario::load(file)?;
            return open_scenario(&scenario, drive.as_deref(), options);
        }
        Target::Remote { socket, partition } => {
            remote::connect(socket, partition.as_deref(), options)
        }
        Target::Controller { address, nsid, by } => controller::open(*address, *nsid, *by, options),
        Target::File(path) => file(path, options),
    };
    Ok((device?, DriveControl::default()))
}

/// Opens the null device, which has sectors of 512 bytes.
fn null(bytes: Option<u64>, options: &OpenOptions) -> Result<IoDevice, TargetOpenError> {
    options.refuse_read_only("the null device")?;
    options.refuse_drive_options("the null device")?;
    options.refuse_doorbells("the null device")?;
    options.refuse_timeout("the null device")?;
    let plain = driver::LowLevelDriver::limits(&driver::Null::default());
    let sectors = bytes.map_or(plain.sectors, |bytes| bytes / u64::from(plain.sector_bytes));
    let queue_depth = options.depth.map_or(plain.queue_depth, u32::from);
    if queue_depth == 0 {
        return Err(TargetOpenError::no_depth());
    }
    Ok(IoDevice::null(Limits { sectors, queue_depth, ..plain }))
}

/// Opens a file or block device of the host, or the character device of a namespace.
fn file(path: &Path, options: &OpenOptions) -> Result<IoDevice, TargetOpenError> {
    exists(path)?;
    options.refuse_drive_options("a file")?;
    options.refuse_doorbells("a file")?;
    options.refuse_timeout("a file")?;
    let FileOptions {
        sector_bytes,
        direct,
        exclusive,
        polling,
        submission_thread,
        task_work,
        submit_batch,
    } = options.file;
    let plain = UringConfig::default();
    let config = UringConfig {
        depth: options.depth.unwrap_or(plain.depth),
        read_only: options.read_only,
        sector_bytes,
        direct,
        exclusive,
        polling,
        submission_thread,
        task_work,
        submit_batch,
        ..plain
    };
    match Passthrough::is_nvme_char_device(path) {
        true => Ok(IoDevice::passthrough(path, config)?),
        false => Ok(IoDevice::file(path, config)?),
    }
}

/// Checks that the path exists and is not a directory.
fn exists(path: &Path) -> Result<(), TargetOpenError> {
    match std::fs::metadata(path) {
        Ok(found) if found.is_dir() => Err(TargetOpenError::Directory { path: path.to_owned() }),
        Ok(_) => Ok(()),
        Err(source) => Err(TargetOpenError::Missing { path: path.to_owned(), source }),
    }
}
