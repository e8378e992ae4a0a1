//! [`Lifecycle`]: whether a volume accepts changes, is being closed, or was aborted.

use nvme::Status;

use crate::invariants::{VolumeViolation, require};

/// Progress from an open volume to a closed or aborted one.
#[derive(Debug, Default)]
pub(crate) struct Lifecycle {
    is_closing: bool,
    is_closed: bool,
    /// Writing the journal or a superblock failed; the volume accepts no more changes.
    aborted: Option<Status>,
}

impl Lifecycle {
    pub(crate) fn accepts_changes(&self) -> bool {
        self.aborted.is_none() && !self.is_closing
    }

    pub(crate) fn begin_close(&mut self) {
        self.is_closing = true;
    }

    pub(crate) fn is_closing(&self) -> bool {
        self.is_closing
    }

    pub(crate) fn end_close(&mut self) {
        assert!(self.is_closing, "requests: the volume is closed, and was not being closed");
        self.is_closed = true;
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.is_closed
    }

    /// Aborts the volume; the first status counts.
    pub(crate) fn abort(&mut self, status: Status) {
        self.aborted.get_or_insert(status);
    }

    /// Returns the status that aborted the volume, if it was aborted.
    pub(crate) fn aborted(&self) -> Option<Status> {
        self.aborted
    }

    pub(crate) fn check_invariants(&self) -> Result<(), VolumeViolation> {
        require!(
            self.is_closing || !self.is_closed,
            Requests,
            "a closed volume was being closed",
            "the volume",
            true,
            self.is_closing
        );
        Ok(())
    }
}
