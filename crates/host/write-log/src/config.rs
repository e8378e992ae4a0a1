//! [`WriteLogConfig`]: the settings of a log.

use time::Nanos;

use crate::LogIdentity;

/// The settings of a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WriteLogConfig {
    /// Size of the log in bytes, from the start of the memory; a multiple of 64.
    pub bytes: usize,
    /// Maximum bytes of a write that is logged. Larger writes pass to the device.
    pub write_bytes_max: u32,
    /// The identity of a new log. Opening an existing one does not use it.
    pub identity: LogIdentity,
    /// Whether a new log may overwrite data in the device's last sector.
    pub overwrite_last_sector: bool,
    /// Time of a store to one line of 64 bytes.
    pub store: Nanos,
    /// Time of a persist, which makes all lines stored before it persistent.
    pub persist: Nanos,
    /// Time without a request after which the log is destaged.
    pub idle: Nanos,
    /// Time between two attempts to destage to a device that fails writes.
    pub retry: Nanos,
}

impl WriteLogConfig {
    /// Returns the settings of a log of `bytes` bytes: writes of up to 64 KiB, stores and persists
    /// without time, destaging after 10 ms without a request.
    pub fn new(bytes: usize, identity: LogIdentity) -> WriteLogConfig {
        WriteLogConfig {
            bytes,
            write_bytes_max: 64 << 10,
            identity,
            overwrite_last_sector: false,
            store: Nanos::ZERO,
            persist: Nanos::ZERO,
            idle: Nanos::from_millis(10),
            retry: Nanos::from_secs(1),
        }
    }
}
