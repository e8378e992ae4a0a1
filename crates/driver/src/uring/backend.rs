//! [`Wire`]: what the entries of a ring say: which operations, of what length, and how they answer.
//!
//! The queue and the ring do not know: a queue's commands take a [`Course`] of one or several steps,
//! the wire makes a step an entry. There are two: system calls on a file, and NVMe commands that the
//! kernel's driver passes on.

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

/// Bytes that a command can carry beside payloads.
pub(super) const COMMAND_TABLE_BYTES: usize = nvme::DsmRange::BYTES;

/// What a step transfers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SqeData {
    /// Nothing.
    None,
    /// The request's payload.
    Payload {
        /// To the device.
        write: bool,
        /// How much.
        bytes: u32,
    },
    /// Bytes that belong to the command.
    CommandTable([u8; COMMAND_TABLE_BYTES]),
}

/// What an answer leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NextStep {
    /// It has ended.
    Completed(Status),
    /// It has ended, and nothing else will go well on this device.
    DeviceRemoved,
    /// The next step is to be given to the kernel.
    Step,
    /// The transfer goes on after so many bytes of memory.
    Continue(u32),
    /// The same step is to be given again.
    Retry,
}

/// A command on its way.
pub trait CommandFlow: Copy + fmt::Debug + Default + Send {
    /// What its first step transfers.
    fn data(&self) -> SqeData;

    /// What the kernel's answer leads to; `aborted`: somebody has asked to give the command up.
    fn on_cqe(&mut self, result: i32, sector_bytes: u32, aborted: bool) -> NextStep;
}

/// What is spoken through a ring.
pub trait UringBackend: fmt::Debug + Send + Sized + 'static {
    /// An entry of the submission ring.
    type Submission: squeue::EntryMarker + From<squeue::Entry>;
    /// An entry of the completion ring.
    type Completion: cqueue::EntryMarker;
    /// A command on its way.
    type Flow: CommandFlow;

    /// The file that entries are about; it stays open as long as the wire.
    fn file(&self) -> BorrowedFd<'_>;

    /// How a request is carried out.
    ///
    /// # Errors
    /// The status of one that cannot be.
    fn plan(&self, request: &Request, limits: &Limits) -> Result<Self::Flow, Status>;

    /// Puts the next step of a tag's command, whose memory has been found, into the ring. Returns
    /// whether there was room.
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
