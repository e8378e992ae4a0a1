//! [`OpenOptions`]: options of opening a target. An option that does not apply to the target is an
//! error, except for those of files.

use std::sync::mpsc::Sender;

use driver::{DoorbellUse, Polling, SubmissionThread, TaskWork};
use event::IdlePolicy;
use scenario::RegionLog;
use time::Nanos;

use super::{CloseError, TargetOpenError};

/// Options of opening a target.
#[derive(Clone, Debug, Default)]
pub struct OpenOptions {
    /// Minimum number of requests that can be outstanding on each queue.
    ///
    /// `None` stands for the device's value: 1,024 on the null device, 128 on a file. The queues of
    /// a drive have the depth with which each is created (`QueueConfig`); a drive that grants less
    /// than `depth` is refused.
    pub depth: Option<u16>,
    /// Minimum number of queues that can be created.
    ///
    /// `None` stands for the device's value: a drive has as many as its controller grants, the null
    /// device and files any number, targets one. A `pblk` is opened with this many shards of one
    /// queue each, and its image stores the number. The owner of a sharded target's queue must poll
    /// it; otherwise requests on other queues wait for its shard.
    pub queues: Option<u16>,
    /// Open for reading only; applies to files and block devices.
    pub read_only: bool,
    /// CPU to pin the drive's thread to: an index into the CPUs allowed for the process, modulo
    /// their number. `None` leaves it unpinned. Applies to scenarios.
    pub drive_core: Option<usize>,
    /// Wait of the threads of the drives while these have nothing to do. Applies to scenarios.
    pub drive_idle: IdlePolicy,
    /// Timeout of a served drive or a real controller; other targets have none.
    ///
    /// For a served drive, it limits the server's answers (`user_io::RemoteDeviceConfig`); `None` is
    /// 5 seconds. For a real controller, it is the time after which a command is aborted; `None` is
    /// 30 seconds.
    pub timeout: Option<Nanos>,
    /// Location of the doorbells of a real controller's queues; other targets ignore it.
    pub doorbells: DoorbellUse,
    /// Channel that receives an error if a drive of a scenario cannot be closed cleanly. Without
    /// it, the error is dropped, as for a file that is dropped.
    pub close_errors: Option<Sender<CloseError>>,
    /// Log for small writes in the persistent memory region of the drive (`docs/scenario.md`). A path
    /// that the scenario gives a log keeps it; another size is refused. Applies to scenarios.
    pub log: Option<RegionLog>,
    /// Options of files and block devices; other targets ignore them.
    pub file: FileOptions,
}

/// Options of opening a file or block device; [`driver::UringConfig`] describes each in detail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileOptions {
    /// Sector size in bytes; `None` for that of the file or device.
    pub sector_bytes: Option<u32>,
    /// Bypass the page cache.
    pub direct: bool,
    /// Refuse a block device that is in use.
    pub exclusive: bool,
    /// Whether the kernel polls for completions.
    pub polling: Polling,
    /// Kernel thread that fetches submissions.
    pub submission_thread: Option<SubmissionThread>,
    /// When the kernel processes completions. The default is cooperative; shared queues always use
    /// interrupts.
    pub task_work: TaskWork,
    /// Maximum number of commands per system call. The default is 2, because the kernel issues them
    /// one by one. A larger batch costs less CPU time but leaves the device idle while it is
    /// prepared.
    pub submit_batch: u16,
}

impl Default for FileOptions {
    fn default() -> FileOptions {
        let driver::UringConfig {
            sector_bytes, direct, exclusive, polling, submission_thread, ..
        } = driver::UringConfig::default();
        let task_work = TaskWork::Cooperative;
        let submit_batch = driver::UringConfig::PLUG_THRESHOLD;
        FileOptions {
            sector_bytes,
            direct,
            exclusive,
            polling,
            submission_thread,
            task_work,
            submit_batch,
        }
    }
}

impl OpenOptions {
    pub(super) fn refuse_read_only(&self, what: &str) -> Result<(), TargetOpenError> {
        match self.read_only {
            false => Ok(()),
            true => Err(TargetOpenError::Option {
                option: "read_only",
                value: "true".into(),
                what: what.into(),
                allowed: "only files and block devices can be opened for reading only".into(),
            }),
        }
    }

    pub(super) fn refuse_timeout(&self, what: &str) -> Result<(), TargetOpenError> {
        match self.timeout {
            None => Ok(()),
            Some(timeout) => Err(TargetOpenError::Option {
                option: "timeout",
                value: format!("{} ns", timeout.0),
                what: what.into(),
                allowed: "only real controllers and the servers of drives are waited for".into(),
            }),
        }
    }

    pub(super) fn refuse_doorbells(&self, what: &str) -> Result<(), TargetOpenError> {
        match self.doorbells {
            DoorbellUse::Memory => Ok(()),
            DoorbellUse::Registers => Err(TargetOpenError::Option {
                option: "doorbells",
                value: "registers".into(),
                what: what.into(),
                allowed: "only a real controller has a choice of doorbells".into(),
            }),
        }
    }

    pub(super) fn refuse_drive_options(&self, what: &str) -> Result<(), TargetOpenError> {
        if let Some(log) = self.log {
            return Err(TargetOpenError::Option {
                option: "log",
                value: match log {
                    RegionLog::Whole => "the whole region".into(),
                    RegionLog::Bytes(bytes) => bytes.to_string(),
                },
                what: what.into(),
                allowed: "only the drive of a scenario has a persistent memory region here".into(),
            });
        }
        match self.drive_core {
            None => Ok(()),
            Some(core) => Err(TargetOpenError::Option {
                option: "drive_core",
                value: core.to_string(),
                what: what.into(),
                allowed: "only the drive of a scenario has a thread here".into(),
            }),
        }
    }
}
