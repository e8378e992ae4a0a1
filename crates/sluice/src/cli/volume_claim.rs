//! [`Claim`]: who changes a volume on a file or block device of the host locks it (`flock(2)`) meanwhile.
//!
//! The lock goes with its process, whatever that one's number is by then and in whichever container it ran; the mark in
//! the volume tells of the others, which have a device without a file.

use std::fs::File;
use std::path::Path;

use rustix::fs::FlockOperation;
use rustix::io::Errno;

use super::Failure;
use crate::open::Target;

/// What a process has on a volume's device while it changes the volume.
#[derive(Debug)]
pub(super) struct Claim {
    exclusive: bool,
    /// Locked as long as it is open, by nobody else: it is not passed on to programs.
    _locked: Option<File>,
}

impl Claim {
    /// Of who only looks.
    pub(super) fn none() -> Claim {
        Claim { exclusive: false, _locked: None }
    }

    /// Locks what can be locked. A drive of a scenario is nobody else's either: its image is locked when it is opened.
    ///
    /// # Errors
    /// Somebody else has it; what the system says.
    pub(super) fn take(device: &str) -> Result<Claim, Failure> {
        let target: Target = device.parse().map_err(|e| Failure::Other(format!("{e}")))?;
        let path = match target {
            Target::File(path) => path,
            Target::Scenario { .. } => return Ok(Claim { exclusive: true, _locked: None }),
            Target::Null { .. } | Target::Served { .. } | Target::Controller { .. } => {
                return Ok(Claim::none());
            }
        };
        Ok(Claim { exclusive: true, _locked: Some(lock(&path)?) })
    }

    /// Whether nobody else can have it.
    pub(super) fn is_exclusive(&self) -> bool {
        self.exclusive
    }
}

fn lock(path: &Path) -> Result<File, Failure> {
    let failure = |why: String| Failure::Other(format!("{}: {why}", path.display()));
    let file = File::open(path).map_err(|e| failure(e.to_string()))?;
    match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(file),
        Err(Errno::WOULDBLOCK) => Err(failure(
            "the volume is in use by another process, which has its file locked".into(),
        )),
        Err(error) => Err(failure(format!("it cannot be locked: {error}"))),
    }
}
