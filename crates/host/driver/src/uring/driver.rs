//! [`Uring`]: opens a file or block device of the host, and probes it for polled completions.

use std::io;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use mem::AddressSpace;
use rustix::io::Errno;

use super::file_target::FileTarget;
use super::queue::RingQueueConfig;
use super::ring::{Ring, RingSetup};
use super::{Polling, RingDevice, TaskWork, UringConfig, UringError, UringQueue};
use crate::Tag;
use crate::hal::{Features, Limits};

/// Maximum time of the read that probes polled completions, in milliseconds.
const PROBE_TIMEOUT_MS: u32 = 5_000;

/// A file or block device of the host, through io_uring.
///
/// Its size is determined when it is opened. The driver never extends it; if it is truncated,
/// requests past its end fail. Writes are durable after a flush, or with force unit access.
pub type Uring = RingDevice<Arc<FileTarget>>;

impl Uring {
    /// Opens a file or block device with an address space of its own.
    ///
    /// # Errors
    /// [`UringError`].
    pub fn open(path: impl AsRef<Path>, config: UringConfig) -> Result<Uring, UringError> {
        Uring::open_with(path, config, AddressSpace::default())
    }

    /// Opens a file or block device whose payloads are in `memory`, which several devices may
    /// share.
    ///
    /// # Errors
    /// [`UringError`].
    pub fn open_with(
        path: impl AsRef<Path>,
        config: UringConfig,
        memory: AddressSpace,
    ) -> Result<Uring, UringError> {
        config.check()?;
        let target = Arc::new(FileTarget::open(path.as_ref(), &config)?);
        let sector_bytes = target.sector_bytes;
        config.check_transfer(sector_bytes)?;
        let limits = Limits {
            sector_bytes,
            sectors: target.sectors,
            max_sectors: config.transfer_bytes_max / sector_bytes,
            optimal_sectors: target.optimal_bytes / sector_bytes,
            queue_depth: config.depth.into(),
            volatile_cache: true,
            atomic: crate::AtomicLimits::NONE,
        };
        let writable = !target.read_only;
        let features = Features {
            segments: config.segments,
            fua: writable,
            discard: target.can_punch_holes,
            write_zeroes: writable,
            extents: false,
            atomic: crate::AtomicLimits::NONE,
        };
        let setup = RingSetup {
            depth: config.depth,
            polled: false,
            split: false,
            submission_thread: config.submission_thread,
            deferred: config.task_work == TaskWork::Deferred,
            cooperative: config.task_work == TaskWork::Cooperative
                && config.submission_thread.is_none(),
            registered_file: config.registered_file,
            registered_buffers: config.registered_buffers,
            segments: config.segments,
            memory_align: target.memory_align,
            // Linux's `iov_iter_is_aligned` checks each page's part of a fixed buffer for whole
            // blocks; other memory is checked once.
            fixed_align: if config.direct { target.block_bytes } else { 1 },
            bit_bucket_bytes: config.transfer_bytes_max,
            command_table_bytes: 0,
            submit_batch: config.submit_batch,
        };
        let polled = match config.polling {
            Polling::Off => false,
            Polling::WhereSupported => config.direct && probe(&target, setup).is_ok(),
            Polling::Required => {
                let no = |source| UringError::NoPolling { path: target.path.clone(), source };
                probe(&target, setup).map(|()| true).map_err(no)?
            }
        };
        let setup = RingSetup { polled, split: polled, ..setup };
        let reset_timeout = config.reset_timeout;
        let queue_config = RingQueueConfig { limits, features, setup, reset_timeout };
        RingDevice::new(target, memory, queue_config, config.queues)
    }

    /// Creates a queue as [`create_queue`](RingDevice::create_queue) does, for several threads that
    /// use it one at a time. The kernel completes commands of any issuing thread
    /// ([`TaskWork::Interrupt`]), whatever the configuration says.
    ///
    /// # Errors
    /// As for [`create_queue`](RingDevice::create_queue).
    pub fn create_shared_queue(&self) -> Result<UringQueue, UringError> {
        self.create_queue_with(RingSetup {
            deferred: false,
            cooperative: false,
            ..self.config.setup
        })
    }

    /// Returns whether queues are created for a single issuing thread ([`TaskWork`]).
    pub fn is_single_issuer(&self) -> bool {
        self.config.setup.deferred || self.config.setup.cooperative
    }

    /// Returns whether the kernel polls for completions.
    pub fn is_polled(&self) -> bool {
        self.config.setup.polled
    }

    /// Returns the required alignment of payload addresses in bytes. Others are rejected as
    /// misaligned ([`nvme::Status::PRP_OFFSET_INVALID`]); regions begin on a page.
    pub fn memory_alignment(&self) -> u32 {
        self.backend.memory_align
    }
}

/// Reads the first sector with polled completions.
fn probe(target: &FileTarget, setup: RingSetup) -> io::Result<()> {
    let setup = RingSetup {
        depth: 1,
        polled: true,
        submission_thread: None,
        deferred: false,
        cooperative: false,
        ..setup
    };
    let file = target.file.as_fd();
    let mut ring = Ring::<Arc<FileTarget>>::new(file, setup, AddressSpace::default())?;
    let tag = Tag(0);
    let aimed = ring.set_bit_bucket(tag, target.sector_bytes, false).is_ok();
    if !aimed || !ring.push_transfer(tag, false, 0, false) {
        return Err(Errno::AGAIN.into());
    }
    for _ in 0..PROBE_TIMEOUT_MS {
        ring.submit()?;
        ring.run_task_work();
        match ring.pop() {
            Some(answer) if answer.result < 0 => {
                return Err(io::Error::from_raw_os_error(-answer.result));
            }
            Some(_) => return Ok(()),
            None => std::thread::sleep(Duration::from_millis(1)),
        }
    }
    Err(Errno::TIMEDOUT.into())
}
