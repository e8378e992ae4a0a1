//! [`UringBackend`]: the contents of ring entries: operations, entry sizes, and results.
//!
//! The queue and the ring are independent of these. A command is a [`CommandFlow`] of one or
//! several steps, and the backend converts a step into an entry. There are two backends: system
//! calls on a file, and NVMe commands through the kernel's driver.

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use io_uring::{cqueue, squeue};
use nvme::Status;
use rustix::fs::FallocateFlags;

use super::file_target::FileTarget;
use super::in_flight::{FlowStep, InFlight};
use super::ring::Ring;
use crate::{Limits, Request, Tag};

/// Maximum number of bytes that a command carries besides payloads.
pub(super) const COMMAND_TABLE_BYTES: usize = nvme::DsmRange::BYTES;

/// The data of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SqeData {
    /// No data.
    None,
    /// The request's payload.
    Payload {
        /// Whether data is transferred to the device.
        write: bool,
        /// Length in bytes.
        bytes: u32,
    },
    /// Bytes that belong to the command.
    CommandTable([u8; COMMAND_TABLE_BYTES]),
}

/// The consequence of a completion queue entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NextStep {
    /// The command has completed.
    Completed(Status),
    /// The command has completed, and the device has been removed.
    DeviceRemoved,
    /// The next step must be issued.
    Step,
    /// The transfer continues after this number of bytes.
    Continue(u32),
    /// The step must be issued again.
    Retry,
}

/// The progress of a command through its steps.
pub trait CommandFlow: Copy + fmt::Debug + Default + Send {
    /// Returns the data of the first step.
    fn data(&self) -> SqeData;

    /// Evaluates the kernel's result; `aborted` says whether the owner has requested an abort.
    fn on_cqe(&mut self, result: i32, sector_bytes: u32, aborted: bool) -> NextStep;
}

/// A kind of target of a ring.
pub trait UringBackend: fmt::Debug + Send + Sized + 'static {
    /// Entry of the submission ring.
    type Submission: squeue::EntryMarker + From<squeue::Entry>;
    /// Entry of the completion ring.
    type Completion: cqueue::EntryMarker;
    /// Progress of a command.
    type Flow: CommandFlow;

    /// Returns the file that entries refer to; it stays open as long as the backend exists.
    fn file(&self) -> BorrowedFd<'_>;

    /// Returns the steps of a request.
    ///
    /// # Errors
    /// The status of a request that cannot be executed.
    fn plan(&self, request: &Request, limits: &Limits) -> Result<Self::Flow, Status>;

    /// Pushes the next step of a tag's command, whose memory has been resolved, into the ring.
    /// Returns whether the ring had space.
    fn push(ring: &mut Ring<Self>, tag: Tag, course: &Self::Flow) -> bool;
}

impl UringBackend for Arc<FileTarget> {
    type Submission = squeue::Entry;
    type Completion = cqueue::Entry;
    type Flow = InFlight;

    fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    #[inline]
    fn plan(&self, request: &Request, limits: &Limits) -> Result<InFlight, Status> {
        InFlight::plan(request, limits, self.read_only)
    }

    #[inline]
    fn push(ring: &mut Ring<Self>, tag: Tag, flight: &InFlight) -> bool {
        let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        let zeros = FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE;
        let (at, left) = (flight.file_offset(), flight.remaining_bytes());
        match flight.step {
            FlowStep::Transfer { write, durable } => ring.push_transfer(tag, write, at, durable),
            FlowStep::Sync => ring.push_sync(tag),
            FlowStep::Punch => ring.push_allocate(tag, hole, at, left),
            FlowStep::Zero => ring.push_allocate(tag, zeros, at, left),
        }
    }
}
