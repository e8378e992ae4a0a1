//! [`UringConfig`]: the configuration of a device, and its limits.

use time::Nanos;

use super::UringError;

/// Whether the kernel polls the device for completions (`IORING_SETUP_IOPOLL`) instead of waiting
/// for interrupts. Polling needs direct I/O and a device with poll queues.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Polling {
    /// Interrupts.
    #[default]
    Off,
    /// Polling if a read of the first sector shows that the device supports it, else interrupts.
    WhereSupported,
    /// Polling; a device that does not support it is [`UringError::NoPolling`].
    Required,
}

/// A kernel thread that takes commands from the ring (`IORING_SETUP_SQPOLL`), so that issuing makes
/// no system call while the thread is awake. The thread keeps a CPU busy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SubmissionThread {
    /// Time without a command after which the thread sleeps, in milliseconds.
    pub idle_ms: u32,
    /// The CPU to which the thread is pinned.
    pub cpu: Option<u32>,
}

impl Default for SubmissionThread {
    fn default() -> SubmissionThread {
        SubmissionThread { idle_ms: 1000, cpu: None }
    }
}

/// When the kernel does its part of a completion.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TaskWork {
    /// At the device's interrupt: the issuing thread is interrupted, and the queue's owner sees the
    /// completion without a system call.
    #[default]
    Interrupt,
    /// When the issuing thread is in the kernel for another reason, or when the owner polls while
    /// work is pending (`IORING_SETUP_COOP_TASKRUN`). Such a poll makes one system call for all
    /// pending completions. No thread is interrupted.
    ///
    /// This is for queues of one thread. Commands that another thread has issued complete when that
    /// thread enters the kernel, at the latest at its next timer tick. With a submission thread,
    /// and for pass-through commands, this is the same as [`Interrupt`](TaskWork::Interrupt).
    Cooperative,
    /// When the owner polls, with one system call for all pending completions
    /// (`IORING_SETUP_DEFER_TASKRUN`). Only the first thread that issues commands may ever issue.
    /// Needs Linux 6.1.
    Deferred,
}

/// How a file or device is opened, and how its queues work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UringConfig {
    /// Number of hardware queues, at least 1; each is a ring.
    pub queues: u16,
    /// Number of tags of each queue, 1 to [`DEPTH_MAX`](UringConfig::DEPTH_MAX).
    pub depth: u16,
    /// Sector size in bytes, a power of two from 512 to 65,536. `None` for that of the file or
    /// device: the logical block size, the alignment of direct I/O, else 4,096, or 512 for a file
    /// whose size is no multiple of that.
    pub sector_bytes: Option<u32>,
    /// Whether to bypass the page cache (`O_DIRECT`).
    pub direct: bool,
    /// Whether to open the file for reading only; requests that would change it are rejected as
    /// write protected.
    pub read_only: bool,
    /// Whether to refuse a block device that is in use, for example by a mounted file system,
    /// unless it is opened for reading only. A device that is being released is waited for, for at
    /// most a quarter of a second.
    pub exclusive: bool,
    /// Whether the kernel polls for completions.
    pub polling: Polling,
    /// A kernel thread that takes commands, if any.
    pub submission_thread: Option<SubmissionThread>,
    /// When the kernel does its part of a completion.
    pub task_work: TaskWork,
    /// Maximum number of commands per system call, at least 1. With more than
    /// [`PLUG_THRESHOLD`](UringConfig::PLUG_THRESHOLD) the kernel's block layer holds back the
    /// first command until it has prepared the last (its plug). That means fewer doorbells and less
    /// CPU time per command, but the device idles meanwhile.
    pub submit_batch: u16,
    /// Whether to register regions with the ring, which pins their pages once for all commands.
    pub registered_buffers: bool,
    /// Whether to register the file with the ring, which saves its look-up per command.
    pub registered_file: bool,
    /// Maximum number of segments of a scattered payload, up to
    /// [`SEGMENTS_MAX`](UringConfig::SEGMENTS_MAX); below 2 scattered payloads are not supported.
    /// Each tag has 16 bytes of memory per segment, untouched until used.
    pub segments: u16,
    /// Maximum bytes per transfer, a multiple of the sector size, up to
    /// [`TRANSFER_BYTES_MAX`](UringConfig::TRANSFER_BYTES_MAX). Each queue has twice as much memory
    /// for bit buckets, untouched until used.
    pub transfer_bytes_max: u32,
    /// Maximum time that a reset waits for commands that the kernel does not cancel; then the queue
    /// counts as removed. A device may take as long as its own timeout (30 s is Linux's default).
    pub reset_timeout: Nanos,
}

impl Default for UringConfig {
    fn default() -> UringConfig {
        UringConfig {
            queues: 1,
            depth: 128,
            sector_bytes: None,
            direct: true,
            read_only: false,
            exclusive: true,
            polling: Polling::Off,
            submission_thread: None,
            task_work: TaskWork::Interrupt,
            submit_batch: u16::MAX,
            registered_buffers: true,
            registered_file: true,
            segments: 256,
            transfer_bytes_max: 1 << 20,
            reset_timeout: Nanos::from_millis(35_000),
        }
    }
}

impl UringConfig {
    /// Maximum number of entries of a ring (the kernel's `IORING_MAX_ENTRIES`).
    pub const DEPTH_MAX: u16 = 32_768;
    /// Maximum number of commands per system call that the kernel passes on one by one (the
    /// kernel's `IO_PLUG_THRESHOLD`).
    pub const PLUG_THRESHOLD: u16 = 2;
    /// Maximum number of segments (the kernel's `UIO_MAXIOV`).
    pub const SEGMENTS_MAX: u16 = 1024;
    /// Maximum bytes per transfer: the maximum of a fixed buffer.
    pub const TRANSFER_BYTES_MAX: u32 = 1 << 30;

    /// Checks the configuration without access to the file.
    pub(super) fn check(&self) -> Result<(), UringError> {
        if self.queues == 0 {
            return Err(UringError::NoQueues);
        }
        if self.depth == 0 || self.depth > Self::DEPTH_MAX {
            return Err(UringError::Depth { depth: self.depth });
        }
        if self.submit_batch == 0 {
            return Err(UringError::NoBatch);
        }
        if self.segments > Self::SEGMENTS_MAX {
            return Err(UringError::Segments { segments: self.segments });
        }
        if let Some(bytes) = self.sector_bytes
            && !(bytes.is_power_of_two() && (512..=65_536).contains(&bytes))
        {
            return Err(UringError::Sector { asked: bytes, needed: 512 });
        }
        if self.polling == Polling::Required && !self.direct {
            return Err(UringError::Conflict("polled completions need direct I/O"));
        }
        if self.submission_thread.is_some() && self.task_work == TaskWork::Deferred {
            return Err(UringError::Conflict(
                "a submission thread does the kernel's work itself: it cannot be deferred",
            ));
        }
        Ok(())
    }

    /// Checks the transfer limit against the sector size.
    pub(super) fn check_transfer(&self, sector: u32) -> Result<(), UringError> {
        let bytes = self.transfer_bytes_max;
        if bytes == 0 || !bytes.is_multiple_of(sector) || bytes > Self::TRANSFER_BYTES_MAX {
            return Err(UringError::Transfer { bytes, sector });
        }
        Ok(())
    }
}
