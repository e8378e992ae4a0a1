//! A drive that another process serves.

use std::path::Path;

use direct::Device;

use super::{OpenError, OpenOptions};

/// Connects to the drive behind a socket, or to one of its partitions.
///
/// # Errors
/// [`OpenError::NotConnected`], and options that mean nothing to a served drive.
pub(super) fn connect(
    socket: &Path,
    partition: Option<&str>,
    options: &OpenOptions,
) -> Result<Device, OpenError> {
    let _ = partition;
    options.refuse_read_only("a served drive")?;
    options.refuse_drive_core("a served drive")?;
    Err(OpenError::NotConnected { socket: socket.to_owned() })
}
