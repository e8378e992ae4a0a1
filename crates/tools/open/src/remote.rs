//! Opens a drive that another process serves (`sluice serve --socket`).

use std::path::Path;

use user_io::{DirectError, IoDevice, RemoteDeviceConfig};

use super::scenario::check_depth;
use super::{OpenOptions, TargetOpenError};

/// Connects to the server at a socket and opens a partition of its drive.
///
/// The name is `PARTITION` or `DEVICE/PARTITION`. Without a name, it is the only partition that the
/// user may access.
///
/// # Errors
/// [`TargetOpenError::Device`] with the server's reason and with the allowed partitions; also for options
/// that do not apply to a served drive or that it does not grant.
pub(super) fn connect(
    socket: &Path,
    partition: Option<&str>,
    options: &OpenOptions,
) -> Result<IoDevice, TargetOpenError> {
    options.refuse_read_only("a served drive")?;
    options.refuse_drive_options("a served drive")?;
    options.refuse_doorbells("a served drive")?;
    let config = partition.map_or(Ok(RemoteDeviceConfig::default()), RemoteDeviceConfig::parse);
    let config = config.map_err(DirectError::Remote)?;
    let timeout = options.timeout.unwrap_or(config.timeout);
    let config = RemoteDeviceConfig { queues: options.queues, timeout, ..config };
    let device = IoDevice::connect_with(socket, config)?;
    check_depth(options.depth, &device)?;
    Ok(device)
}
