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

use super::flight::{Flight, Step};
use super::ring::Ring;
use super::target::Target;
use crate::{Limits, Request, Tag};

/// Bytes that a command can carry beside payloads.
pub(super) const NOTE_BYTES: usize = nvme::DsmRange::BYTES;

/// What a step transfers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Data {
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
    Note([u8; NOTE_BYTES]),
}

/// What an answer leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// It has ended.
    Ended(Status),
    /// It has ended, and nothing else will go well on this device.
    Gone,
    /// The next step is to be given to the kernel.
    Step,
    /// The transfer goes on after so many bytes of memory.
    Rest(u32),
    /// The same step is to be given again.
    Again,
}

/// A command on its way.
pub trait Course: Copy + fmt::Debug + Default + Send {
    /// What its first step transfers.
    fn data(&self) -> Data;

    /// What the kernel's answer leads to; `aborted`: somebody has asked to give the command up.
    fn answer(&mut self, result: i32, sector_bytes: u32, aborted: bool) -> Next;
}

/// What is spoken through a ring.
pub trait Wire: fmt::Debug + Send + Sized + 'static {
    /// An entry of the submission ring.
    type Submission: squeue::EntryMarker + From<squeue::Entry>;
    /// An entry of the completion ring.
    type Completion: cqueue::EntryMarker;
    /// A command on its way.
    type Course: Course;

    /// The file that entries are about; it stays open as long as the wire.
    fn file(&self) -> BorrowedFd<'_>;

    /// How a request is carried out.
    ///
    /// # Errors
    /// The status of one that cannot be.
    fn plan(&self, request: &Request, limits: &Limits) -> Result<Self::Course, Status>;

    /// Puts the next step of a tag's command, whose memory has been found, into the ring. Returns
    /// whether there was room.
    fn push(ring: &mut Ring<Self>, tag: Tag, course: &Self::Course) -> bool;
}

impl Wire for Arc<Target> {
    type Submission = squeue::Entry;
    type Completion = cqueue::Entry;
    type Course = Flight;

    fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    #[inline]
    fn plan(&self, request: &Request, limits: &Limits) -> Result<Flight, Status> {
        Flight::plan(request, limits, self.read_only)
    }

    #[inline]
    fn push(ring: &mut Ring<Self>, tag: Tag, flight: &Flight) -> bool {
        let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        let zeros = FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE;
        let (at, left) = (flight.at(), flight.left());
        match flight.step {
            Step::Transfer { write, durable } => ring.push_transfer(tag, write, at, durable),
            Step::Sync => ring.push_sync(tag),
            Step::Punch => ring.push_allocate(tag, hole, at, left),
            Step::Zero => ring.push_allocate(tag, zeros, at, left),
        }
    }
}
