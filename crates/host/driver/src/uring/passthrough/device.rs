//! [`Passthrough`]: a namespace under the kernel's NVMe driver as a device with hardware queues.

use std::path::Path;
use std::sync::Arc;

use mem::AddressSpace;
use nvme::{AdminCommand, FeatureSelect, HealthLog};

use super::Namespace;
use crate::ControllerInfo;
use crate::hal::{Features, Limits};
use crate::uring::backend::COMMAND_TABLE_BYTES;
use crate::uring::queue::RingQueueConfig;
use crate::uring::ring::RingSetup;
use crate::uring::{Polling, RingDevice, RingQueue, TaskWork, UringConfig, UringError};

/// A hardware queue of a namespace under the kernel's NVMe driver.
pub type PassthroughQueue = RingQueue<Arc<Namespace>>;

/// A namespace of a controller under the kernel's NVMe driver (`/dev/ng0n1`), by io_uring
/// passthrough.
///
/// A process that may write to the device may send it the commands that the kernel permits. All I/O
/// queues of the controller belong to the kernel.
pub type Passthrough = RingDevice<Arc<Namespace>>;

impl Passthrough {
    /// Returns whether `path` is the generic character device of an NVMe namespace.
    pub fn is_nvme_char_device(path: impl AsRef<Path>) -> bool {
        Namespace::is_nvme_char_device(path.as_ref())
    }

    /// Opens the namespace, with an address space of its own. `exclusive` keeps its block device
    /// open exclusively, so that it cannot be mounted. `transfer_bytes_max` limits transfers below
    /// the limits of the controller and the kernel.
    ///
    /// # Errors
    /// [`UringError`]; [`UringError::Conflict`] for options that passthrough does not support: the
    /// page cache, another sector size, polled completions.
    pub fn open(path: impl AsRef<Path>, config: UringConfig) -> Result<Passthrough, UringError> {
        Passthrough::open_with(path, config, AddressSpace::default())
    }

    /// Opens the namespace as [`open`](Passthrough::open) does. Payloads are in `memory`, which
    /// several devices may share.
    ///
    /// # Errors
    /// As [`open`](Passthrough::open).
    pub fn open_with(
        path: impl AsRef<Path>,
        config: UringConfig,
        memory: AddressSpace,
    ) -> Result<Passthrough, UringError> {
        config.check()?;
        if !config.direct {
            return Err(UringError::Conflict("commands of a controller go past the page cache"));
        }
        if config.polling == Polling::Required {
            return Err(UringError::Conflict("completions of passed commands are not polled for"));
        }
        let namespace = Arc::new(Namespace::open(path.as_ref(), &config)?);
        let info = namespace.info();
        let sector_bytes = info.sector_bytes;
        if let Some(asked) = config.sector_bytes
            && asked != sector_bytes
        {
            return Err(UringError::Sector { asked, needed: sector_bytes });
        }
        config.check_transfer(sector_bytes)?;
        let max_sectors = info.max_sectors.min(config.transfer_bytes_max / sector_bytes);
        let limits = Limits {
            sector_bytes,
            sectors: info.sectors,
            max_sectors,
            optimal_sectors: info.optimal_sectors,
            queue_depth: config.depth.into(),
            volatile_cache: info.volatile_cache,
            atomic: info.features.atomic,
        };
        let writable = !namespace.read_only();
        let segments = config.segments.min(info.features.segments);
        let features = Features {
            segments,
            fua: writable,
            discard: writable && info.features.discard,
            write_zeroes: writable && info.features.write_zeroes,
            extents: false,
            atomic: info.features.atomic,
        };
        let setup = RingSetup {
            depth: config.depth,
            polled: false,
            split: false,
            submission_thread: config.submission_thread,
            deferred: config.task_work == TaskWork::Deferred,
            // The completion of every pass-through command is task work. It runs by interrupt, so
            // that any thread may poll for it.
            cooperative: false,
            registered_file: config.registered_file,
            registered_buffers: config.registered_buffers,
            segments,
            // The kernel copies data that the controller cannot access directly.
            memory_align: 1,
            fixed_align: namespace.fixed_align(),
            bit_bucket_bytes: max_sectors * sector_bytes,
            command_table_bytes: COMMAND_TABLE_BYTES as u32,
            submit_batch: config.submit_batch,
        };
        let reset_timeout = config.reset_timeout;
        let queue_config = RingQueueConfig { limits, features, setup, reset_timeout };
        RingDevice::new(namespace, memory, queue_config, config.queues)
    }

    /// Returns the description of the controller and the namespace; `io_queues` are the kernel's.
    pub fn info(&self) -> &ControllerInfo {
        self.backend.info()
    }

    /// Reads the controller's health log.
    ///
    /// # Errors
    /// [`UringError::Nvme`] with the controller's error; [`UringError::Open`] with the kernel's.
    pub fn health(&self) -> Result<HealthLog, UringError> {
        self.backend.health()
    }

    /// Returns the value of a feature ([`nvme::feature`]).
    ///
    /// # Errors
    /// As for [`health`](Passthrough::health).
    pub fn get_feature(&self, fid: u8, select: FeatureSelect) -> Result<u32, UringError> {
        self.backend.admin(AdminCommand::GetFeatures { fid, select, member: 0 }, &mut [])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_namespace_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        std::fs::write(&file, [0; 4096]).unwrap();
        let file = file.to_str().unwrap();
        for path in ["/dev/null", file, dir.path().to_str().unwrap()] {
            assert!(!Passthrough::is_nvme_char_device(path));
            let error = Passthrough::open(path, UringConfig::default()).unwrap_err();
            assert!(matches!(error, UringError::Kind { .. }), "{error}");
        }
        assert!(!Passthrough::is_nvme_char_device("/dev/no-such-device"));
        let plain = UringConfig::default();
        for config in [
            UringConfig { direct: false, ..plain },
            UringConfig { polling: Polling::Required, ..plain },
        ] {
            let error = Passthrough::open(file, config).unwrap_err();
            assert!(matches!(error, UringError::Conflict(_)), "{error}");
        }
    }
}
