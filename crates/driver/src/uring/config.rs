//! [`UringConfig`]: what can be chosen, and its limits.

use clock::Nanos;

use super::UringError;

/// Whether the kernel polls the device for completions (`IORING_SETUP_IOPOLL`) instead of waiting
/// for its interrupts. Needs direct I/O and a device with poll queues.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Polling {
    /// Interrupts.
    #[default]
    Off,
    /// Polled if a read of the first sector shows that the device can, else interrupts.
    WhereSupported,
    /// Polled; a device that cannot is [`UringError::NoPolling`].
    Required,
}

/// A thread of the kernel that takes commands from the ring (`IORING_SETUP_SQPOLL`), so that
/// issuing makes no system call while it is awake. It keeps a CPU busy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SubmissionThread {
    /// It goes to sleep after so many milliseconds without a command.
    pub idle_ms: u32,
    /// The CPU that it stays on.
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
    /// When the device says so: the thread that issued is interrupted, and whoever owns the queue
    /// sees the completion without a system call.
    #[default]
    Interrupt,
    /// When the thread that issued is in the kernel for another reason, or, if there is something, when the
    /// owner looks, with a system call for all that has come (`IORING_SETUP_COOP_TASKRUN`): nobody is
    /// interrupted. For queues of one thread: commands that another thread has issued end when that one
    /// enters the kernel, at the latest with its next timer tick. With a submission thread there is nothing
    /// to be interrupted, and this is [`Interrupt`](TaskWork::Interrupt), as it is for commands that are
    /// passed to a controller.
    Cooperative,
    /// When the owner looks, with a system call for all that has come (`IORING_SETUP_DEFER_TASKRUN`).
    /// The thread that issues first must be the only one that ever does. Linux 6.1.
    Deferred,
}

/// How a file or device is opened, and how its queues work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UringConfig {
    /// Hardware queues, at least 1; each is a ring.
    pub queues: u16,
    /// Tags of each queue, 1 to [`DEPTH_MAX`](UringConfig::DEPTH_MAX).
    pub depth: u16,
    /// Bytes per sector, a power of two from 512 to 65,536; `None` for what the file or device has
    /// (logical block size, alignment of direct I/O, else 4,096 or, for a file that is no multiple
    /// of that, 512).
    pub sector_bytes: Option<u32>,
    /// Past the page cache (`O_DIRECT`).
    pub direct: bool,
    /// Open it for reading only; everything that would change it is refused as write protected.
    pub read_only: bool,
    /// Refuse a block device that something else uses, such as a mounted file system, unless it is
    /// opened for reading only. One that is being let go of is waited for, a quarter of a second at
    /// most.
    pub exclusive: bool,
    /// Whether completions are polled for.
    pub polling: Polling,
    /// A thread of the kernel that takes commands.
    pub submission_thread: Option<SubmissionThread>,
    /// When the kernel does its part of a completion.
    pub task_work: TaskWork,
    /// Commands given to the kernel with one system call at most, at least 1. Of more than
    /// [`PLUG_THRESHOLD`](UringConfig::PLUG_THRESHOLD) the block layer holds back the first until it has prepared the
    /// last (its plug): fewer doorbells and less CPU time per command, but a device that idles meanwhile.
    pub submit_batch: u16,
    /// Register regions with the ring, which pins their pages once for all commands.
    pub registered_buffers: bool,
    /// Register the file with the ring, which saves its look-up per command.
    pub registered_file: bool,
    /// Segments of a scattered payload at most; below 2 there are no scattered payloads, over
    /// [`SEGMENTS_MAX`](UringConfig::SEGMENTS_MAX) the kernel has none. Each tag keeps 16 bytes of
    /// memory for each, untouched until used.
    pub segments: u16,
    /// Bytes of one transfer at most, a multiple of the sector size, up to
    /// [`TRANSFER_BYTES_MAX`](UringConfig::TRANSFER_BYTES_MAX). Each queue keeps twice as much memory
    /// for bit buckets, untouched until used.
    pub transfer_bytes_max: u32,
    /// How long a reset waits for commands that the kernel does not give up; then the queue is
    /// removed. A device may take as long as its own timeout (30 s is Linux's default).
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
    /// Entries of a ring at most (the kernel's `IORING_MAX_ENTRIES`).
    pub const DEPTH_MAX: u16 = 32_768;
    /// Commands of one system call that go to the device one by one (the kernel's `IO_PLUG_THRESHOLD`).
    pub const PLUG_THRESHOLD: u16 = 2;
    /// Segments at most (the kernel's `UIO_MAXIOV`).
    pub const SEGMENTS_MAX: u16 = 1024;
    /// Bytes of a transfer at most: what a fixed buffer can hold.
    pub const TRANSFER_BYTES_MAX: u32 = 1 << 30;

    /// Everything that can be wrong without looking at the file.
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

    /// What depends on the sector size.
    pub(super) fn check_transfer(&self, sector: u32) -> Result<(), UringError> {
        let bytes = self.transfer_bytes_max;
        if bytes == 0 || !bytes.is_multiple_of(sector) || bytes > Self::TRANSFER_BYTES_MAX {
            return Err(UringError::Transfer { bytes, sector });
        }
        Ok(())
    }
}
