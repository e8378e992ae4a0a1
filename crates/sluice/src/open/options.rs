//! [`OpenOptions`]: how something is opened. An option that something cannot honour is an error, not
//! ignored; those of files are apart.

use std::sync::mpsc::Sender;

use clock::Nanos;
use driver::{DoorbellUse, Polling, SubmissionThread, TaskWork};

use super::{CloseError, OpenError};

/// How something is opened.
#[derive(Clone, Debug, Default)]
pub struct OpenOptions {
    /// So many requests may be outstanding on each queue, at least; `None` for what the device has:
    /// 1,024 on the null device, 128 on a file. A drive's queues are as deep as each is made
    /// (`QueueConfig`), and here one that grants fewer is refused.
    pub depth: Option<u16>,
    /// So many queues can be made, at least; `None` for what the device has: a drive as many as its
    /// controller grants, the null device and files any number, targets one. A `pblk` is opened in as
    /// many shards, one queue each, and its image remembers how many. Whoever has a queue of a sharded
    /// target polls it, or the others wait.
    pub queues: Option<u16>,
    /// For reading only: files and block devices.
    pub read_only: bool,
    /// The drive's thread stays on this one of the CPUs that the process may use, counted round the end;
    /// `None` for anywhere. Of scenarios.
    pub drive_core: Option<usize>,
    /// How long the server of a drive may take for an answer (`direct::RemoteDeviceConfig`), `None` for 5 seconds; how
    /// long a real controller may take for a command before that is aborted, `None` for 30 seconds. Nothing
    /// else is waited for.
    pub timeout: Option<Nanos>,
    /// Where the queues of a real controller have their doorbells; nothing else is asked.
    pub doorbells: DoorbellUse,
    /// Where it is said that a drive of a scenario could not be closed in order; without, nobody hears of
    /// it, as of a file that is dropped.
    pub close_errors: Option<Sender<CloseError>>,
    /// How files and block devices are opened; nothing else is.
    pub file: FileOptions,
}

/// How a file or block device is opened ([`driver::UringConfig`] has more about each).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileOptions {
    /// Bytes per sector; `None` for what the file or device has.
    pub sector_bytes: Option<u32>,
    /// Past the page cache.
    pub direct: bool,
    /// Refuse a block device that something else uses.
    pub exclusive: bool,
    /// Whether completions are polled for in the kernel.
    pub polling: Polling,
    /// A thread of the kernel that takes commands.
    pub submission_thread: Option<SubmissionThread>,
    /// When the kernel does its part of a completion; cooperatively unless something else is said. Of
    /// shared queues, always by interrupt.
    pub task_work: TaskWork,
    /// Commands given to the kernel with one system call at most; so many as it passes on one by one, 2, unless
    /// something else is said. More cost less CPU time and leave the device idle while they are prepared.
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
    pub(super) fn refuse_read_only(&self, what: &str) -> Result<(), OpenError> {
        match self.read_only {
            false => Ok(()),
            true => Err(OpenError::Option {
                option: "read_only",
                value: "true".into(),
                what: what.into(),
                allowed: "only files and block devices can be opened for reading only".into(),
            }),
        }
    }

    pub(super) fn refuse_timeout(&self, what: &str) -> Result<(), OpenError> {
        match self.timeout {
            None => Ok(()),
            Some(timeout) => Err(OpenError::Option {
                option: "timeout",
                value: format!("{} ns", timeout.0),
                what: what.into(),
                allowed: "only real controllers and the servers of drives are waited for".into(),
            }),
        }
    }

    pub(super) fn refuse_doorbells(&self, what: &str) -> Result<(), OpenError> {
        match self.doorbells {
            DoorbellUse::Memory => Ok(()),
            DoorbellUse::Registers => Err(OpenError::Option {
                option: "doorbells",
                value: "registers".into(),
                what: what.into(),
                allowed: "only a real controller has a choice of doorbells".into(),
            }),
        }
    }

    pub(super) fn refuse_drive_core(&self, what: &str) -> Result<(), OpenError> {
        match self.drive_core {
            None => Ok(()),
            Some(core) => Err(OpenError::Option {
                option: "drive_core",
                value: core.to_string(),
                what: what.into(),
                allowed: "only the drive of a scenario has a thread here".into(),
            }),
        }
    }
}
