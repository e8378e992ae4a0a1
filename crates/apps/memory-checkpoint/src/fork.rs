//! [`fork_checkpoint`]: a clone of the process as the checkpoint.

use std::io;
use std::time::{Duration, Instant};

use crate::CheckpointError;

/// Times of a checkpoint by a clone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ForkTimes {
    /// Time until the process continues.
    pub fork: Duration,
    /// Time of the writes after it, while the clone exists: each copies its page.
    pub writes: Duration,
    /// Time to end the clone.
    pub release: Duration,
}

/// Clones the process, calls `writes` in the process, and ends the clone.
///
/// # Errors
/// [`CheckpointError::Call`] if the system has no process or no pipe for the clone.
pub fn fork_checkpoint(writes: impl FnOnce()) -> Result<ForkTimes, CheckpointError> {
    let mut ends = [0; 2];
    // SAFETY: the kernel writes two descriptors to the array.
    if unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) } != 0 {
        return Err(CheckpointError::last("pipe2"));
    }
    let started = Instant::now();
    // SAFETY: the clone calls only `close`, `read` and `_exit`, which are safe after a fork of a process
    // with several threads, and it never returns from this block.
    let clone = unsafe {
        let clone = libc::fork();
        if clone == 0 {
            // It ends when this process closes its end, or ends itself.
            libc::close(ends[1]);
            let mut byte = 0_u8;
            libc::read(ends[0], (&raw mut byte).cast(), 1);
            libc::_exit(0);
        }
        clone
    };
    let fork = started.elapsed();
    let failed = (clone < 0).then(io::Error::last_os_error);
    let started = Instant::now();
    if failed.is_none() {
        writes();
    }
    let after = started.elapsed();
    let started = Instant::now();
    // SAFETY: both descriptors are those of `pipe2`, and closed once.
    unsafe {
        libc::close(ends[0]);
        libc::close(ends[1]);
    }
    if let Some(source) = failed {
        return Err(CheckpointError::Call { call: "fork", source });
    }
    let mut status = 0;
    // SAFETY: the clone is a child of this process, and the kernel writes its status.
    if unsafe { libc::waitpid(clone, &raw mut status, 0) } != clone {
        return Err(CheckpointError::last("waitpid"));
    }
    Ok(ForkTimes { fork, writes: after, release: started.elapsed() })
}
