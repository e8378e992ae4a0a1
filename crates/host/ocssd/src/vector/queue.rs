//! [`VectorQueue`]: a queue pair for vector commands.
//!
//! The submitter owns it exclusively (ARCHITECTURE.md, R4).
//!
//! Invariants: commands are submitted in the order of the calls. The drive executes the commands of
//! a queue in order on each parallel unit, so an erase never overtakes an earlier read or program.
//! Every accepted command completes exactly once. Commands cause no allocation.

use std::sync::Arc;

use driver::{Completed, ControllerInfo, QueueFull, QueuePair};
use mem::Iova;
use nvme::{DsmRange, MAX_VECTOR_ADDRESSES, Ppa, SglDescriptor, Sqe, Status};
use tracepoint::Event;
use transport::Port;

use super::MemoryError;
use super::memory::CommandLists;

/// Locations of the sectors of a vector read or write in registered memory, in the order of the
/// addresses.
#[derive(Clone, Copy, Debug)]
pub enum DataSegments<'a> {
    /// No memory: read data is dropped, written data is zeros (an NVMe bit bucket).
    BitBucket,
    /// Consecutive sectors from this address.
    Contiguous(Iova),
    /// Scattered: sector `i` of the command is `indices[i]` sectors after `base`.
    Scattered {
        /// Address of index 0.
        base: Iova,
        /// Index of each sector.
        indices: &'a [u32],
    },
}

/// A completed vector command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VectorCompletion {
    /// Value that the submitter gave the command.
    pub user_data: u64,
    /// Bit `i` is set if the `i`-th address failed: it was not read, or may not have been written
    /// or erased.
    pub failed: u64,
    /// Status; [`Status::SUCCESS`] if and only if no address failed.
    pub status: Status,
    /// Whether a read needed much error correction, so that the data should be relocated soon.
    pub high_ecc: bool,
}

#[derive(Clone, Copy, Debug)]
struct InFlightCommand {
    user: u64,
    count: u8,
    /// Whether the command is a copy.
    is_copy: bool,
}

/// The commands in flight of a queue pair that was taken out of its `VectorQueue`.
#[derive(Debug)]
pub(crate) struct InFlightTable(Box<[InFlightCommand]>);

impl InFlightTable {
    /// Converts a completion of that queue pair.
    pub(crate) fn completion(&self, done: &Completed) -> VectorCompletion {
        // The queue pair returns the value that it was given: the tag.
        to_completion(done, self.0[done.user as usize])
    }
}

/// A queue pair for vector commands of an open-channel drive.
#[derive(Debug)]
pub struct VectorQueue {
    queue: QueuePair,
    port: Arc<Port>,
    nsid: u32,
    lists: CommandLists,
    /// Commands in flight, by tag.
    in_flight: Box<[InFlightCommand]>,
    max_sectors: u32,
    sector_bytes: u32,
}

/// Returns the mask of the first `count` addresses.
fn address_mask(count: u8) -> u64 {
    u64::MAX >> (MAX_VECTOR_ADDRESSES - count.clamp(1, MAX_VECTOR_ADDRESSES))
}

/// Returns whether a drive may report this status before it starts the command. It then names the
/// rejected address, and has written or erased none of the others [OC20 §4].
fn is_rejection(status: Status) -> bool {
    [Status::OUT_OF_ORDER_WRITE, Status::OFFLINE_CHUNK, Status::INVALID_RESET]
        .iter()
        .any(|s| status.is(*s))
}

/// Returns the failed addresses of a command: those that the completion names, or all if the whole
/// command failed or may have failed. High ECC is not a failure.
#[inline]
fn failed_addresses(done: &Completed, count: u8) -> u64 {
    if done.status.is(Status::HIGH_ECC) {
        return 0;
    }
    let named = done.result & address_mask(count);
    let partly = done.status.is_media_error() && !is_rejection(done.status);
    if done.status.is_success() || named != 0 && partly { named } else { address_mask(count) }
}

/// Converts a completion, also of a drive that contradicts itself.
#[inline]
fn to_completion(done: &Completed, flight: InFlightCommand) -> VectorCompletion {
    if done.status.is_success() && done.result == 0 {
        let (user, status) = (flight.user, Status::SUCCESS);
        return VectorCompletion { user_data: user, failed: 0, status, high_ecc: false };
    }
    to_failed_completion(done, flight)
}

#[cold]
fn to_failed_completion(done: &Completed, flight: InFlightCommand) -> VectorCompletion {
    let named = failed_addresses(done, flight.count);
    // A copy programs after all sources were read [OC20 §4].
    let unread = [Status::UNRECOVERED_READ, Status::UNWRITTEN].iter().any(|s| done.status.is(*s));
    let failed = if flight.is_copy && unread { address_mask(flight.count) } else { named };
    let status = match (failed, done.status.is_success()) {
        (0, _) => Status::SUCCESS,
        (_, true) => Status::WRITE_FAULT,
        (_, false) => done.status,
    };
    VectorCompletion {
        user_data: flight.user,
        failed,
        status,
        high_ecc: done.status.is(Status::HIGH_ECC),
    }
}

impl VectorQueue {
    /// Creates a queue from a queue pair without outstanding commands.
    ///
    /// # Errors
    /// [`MemoryError`], for the address lists.
    pub fn new(
        queue: QueuePair,
        port: Arc<Port>,
        info: &ControllerInfo,
    ) -> Result<VectorQueue, MemoryError> {
        let tags = queue.capacity();
        Ok(VectorQueue {
            lists: CommandLists::new(port.memory(), tags)?,
            in_flight: vec![InFlightCommand { user: 0, count: 0, is_copy: false }; tags.into()]
                .into(),
            max_sectors: info.max_sectors.clamp(1, MAX_VECTOR_ADDRESSES.into()),
            sector_bytes: info.sector_bytes,
            nsid: info.nsid,
            queue,
            port,
        })
    }

    /// Returns the maximum number of addresses of a command: 64, or the drive's maximum transfer if
    /// smaller.
    #[inline]
    pub fn max_sectors(&self) -> u32 {
        self.max_sectors
    }

    /// Returns the sector size in bytes.
    #[inline]
    pub fn sector_bytes(&self) -> u32 {
        self.sector_bytes
    }

    /// Returns the queue pair, for its counters.
    #[inline]
    pub fn queue(&self) -> &QueuePair {
        &self.queue
    }

    /// Returns the connection to the drive.
    #[inline]
    pub fn port(&self) -> &Arc<Port> {
        &self.port
    }

    /// Returns the number of outstanding commands.
    #[inline]
    pub fn outstanding(&self) -> u16 {
        self.queue.outstanding()
    }

    /// Returns the queue pair.
    pub fn into_queue(self) -> QueuePair {
        self.queue
    }

    /// Returns the queue pair and its commands in flight.
    pub(crate) fn into_parts(self) -> (QueuePair, InFlightTable) {
        (self.queue, InFlightTable(self.in_flight))
    }

    /// Reads 1 to [`max_sectors`](VectorQueue::max_sectors) sectors; their out-of-band bytes go to
    /// `oob`, if given, consecutively.
    ///
    /// # Errors
    /// [`QueueFull`]; nothing was submitted.
    #[inline]
    pub fn read(
        &mut self,
        ppas: impl ExactSizeIterator<Item = Ppa>,
        data: DataSegments<'_>,
        oob: Option<Iova>,
        user: u64,
    ) -> Result<(), QueueFull> {
        self.transfer(Sqe::vector_read, ppas, data, oob, user)
    }

    /// Writes 1 to [`max_sectors`](VectorQueue::max_sectors) sectors: whole units of `ws_min` at
    /// the write pointers of their chunks. Out-of-band bytes are read from `oob`, or are zeros
    /// without.
    ///
    /// # Errors
    /// [`QueueFull`]; nothing was submitted.
    #[inline]
    pub fn write(
        &mut self,
        ppas: impl ExactSizeIterator<Item = Ppa>,
        data: DataSegments<'_>,
        oob: Option<Iova>,
        user: u64,
    ) -> Result<(), QueueFull> {
        self.transfer(Sqe::vector_write, ppas, data, oob, user)
    }

    /// Erases the chunks of 1 to 64 addresses, each in another chunk.
    ///
    /// # Errors
    /// [`QueueFull`]; nothing was submitted.
    pub fn reset(
        &mut self,
        ppas: impl ExactSizeIterator<Item = Ppa>,
        user: u64,
    ) -> Result<(), QueueFull> {
        let tag = self.queue.next_tag().ok_or(QueueFull)?;
        let count = ppas.len() as u8;
        let sqe = Sqe::vector_reset(self.nsid, self.lists.ppa_list(tag.0, ppas));
        self.submit(tag.0, sqe, InFlightCommand { user, count, is_copy: false })
    }

    /// Trims 1 to 256 ranges of logical sectors in the device L2P, up to a sequence number. `runs`
    /// descriptors of Dataset Management are at `at` (`docs/format/ppa.md`, Map Trim).
    ///
    /// # Errors
    /// [`QueueFull`]; nothing was submitted.
    pub fn map_trim(
        &mut self,
        at: Iova,
        runs: u16,
        sequence: u64,
        user: u64,
    ) -> Result<(), QueueFull> {
        let tag = self.queue.next_tag().ok_or(QueueFull)?;
        let mut sqe = Sqe::device_trim(self.nsid, runs, sequence);
        let length = u32::from(runs) * DsmRange::BYTES as u32;
        sqe.set_sgl(SglDescriptor::DataBlock { address: at.0, length });
        self.submit(tag.0, sqe, InFlightCommand { user, count: 1, is_copy: false })
    }

    /// Copies sectors within the drive. Sources and destinations have the same number of addresses, 1
    /// to 64; for destinations see [`write`](VectorQueue::write). The destinations get the
    /// out-of-band bytes at `oob`, which needs
    /// [`COPY_METADATA`](nvme::VendorExtensions::COPY_METADATA), or without it those of their
    /// sources. A bit of [`VectorCompletion::failed`] stands for a destination; all are set if a
    /// source cannot be read.
    ///
    /// # Errors
    /// [`QueueFull`]; nothing was submitted.
    pub fn copy(
        &mut self,
        from: impl ExactSizeIterator<Item = Ppa>,
        to: impl ExactSizeIterator<Item = Ppa>,
        oob: Option<Iova>,
        user: u64,
    ) -> Result<(), QueueFull> {
        let tag = self.queue.next_tag().ok_or(QueueFull)?;
        let count = from.len() as u8;
        let (from, to) = (self.lists.ppa_list(tag.0, from), self.lists.target_list(tag.0, to));
        let mut sqe = Sqe::vector_copy(self.nsid, from, to);
        if let Some(oob) = oob {
            sqe.mptr = oob.0.into();
        }
        self.submit(tag.0, sqe, InFlightCommand { user, count, is_copy: true })
    }

    /// Inlined, as [`submit`](VectorQueue::submit) is: building an entry in several places and then
    /// copying it stalls the store buffer for longer than all other work takes.
    #[inline(always)]
    fn transfer(
        &mut self,
        command: impl FnOnce(u32, nvme::PpaList) -> Sqe,
        ppas: impl ExactSizeIterator<Item = Ppa>,
        data: DataSegments<'_>,
        oob: Option<Iova>,
        user: u64,
    ) -> Result<(), QueueFull> {
        let tag = self.queue.next_tag().ok_or(QueueFull)?.0;
        let count = ppas.len();
        let length = count as u32 * self.sector_bytes;
        let mut sqe = command(self.nsid, self.lists.ppa_list(tag, ppas));
        sqe.set_sgl(match data {
            DataSegments::BitBucket => SglDescriptor::BitBucket { length },
            DataSegments::Contiguous(at) => SglDescriptor::DataBlock { address: at.0, length },
            DataSegments::Scattered { base, indices: places } => {
                self.lists.sgl(tag, base, self.sector_bytes, places.iter().copied())
            }
        });
        if let Some(oob) = oob {
            sqe.mptr = oob.0.into();
        }
        self.submit(tag, sqe, InFlightCommand { user, count: count as u8, is_copy: false })
    }

    #[inline(always)]
    fn submit(&mut self, tag: u16, sqe: Sqe, flight: InFlightCommand) -> Result<(), QueueFull> {
        // The tag is free until the queue pair accepts the command.
        self.in_flight[usize::from(tag)] = flight;
        tracepoint::trace(|| Event::TargetIssued { user: flight.user });
        self.queue.submit(sqe, tag.into()).map(|_| ())
    }

    /// Reaps the next completed command.
    #[inline]
    pub fn reap(&mut self) -> Option<VectorCompletion> {
        let done = self.queue.reap()?;
        // The queue pair returns the value that it was given: the tag.
        Some(to_completion(&done, self.in_flight[done.user as usize]))
    }

    /// Rings the submission doorbell, or, if nothing was submitted, releases `reaped` completions.
    /// Returns whether commands were submitted.
    #[inline]
    pub fn ring(&mut self, reaped: bool) -> bool {
        let rang = self.queue.ring();
        if !rang && reaped {
            self.queue.release();
        }
        rang
    }

    /// Abandons the outstanding commands: each call returns one with `status`, until none remains.
    pub fn abandon(&mut self, status: Status) -> Option<VectorCompletion> {
        let done = self.queue.orphan_next(status)?;
        let InFlightCommand { user, count, .. } = self.in_flight[done.user as usize];
        Some(VectorCompletion {
            user_data: user,
            failed: address_mask(count),
            status,
            high_ecc: false,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_completion_says_which_addresses_failed() {
        let done = |result, status| Completed { user: 0, result, status };
        let failed = |result, status, count| failed_addresses(&done(result, status), count);
        assert_eq!(failed(0, Status::SUCCESS, 64), 0);
        assert_eq!(failed(0b100, Status::UNRECOVERED_READ, 3), 0b100);
        assert_eq!(failed(0b1000, Status::UNRECOVERED_READ, 3), 0b111, "none of its own");
        assert_eq!(failed(0, Status::UNRECOVERED_READ, 64), u64::MAX);
        assert_eq!(failed(1, Status::INVALID_FIELD, 2), 0b11, "refused as a whole");
        assert_eq!(failed(0b10, Status::OFFLINE_CHUNK, 3), 0b111, "none may have been reset");
        assert_eq!(failed(0b1, Status::HIGH_ECC, 2), 0);
        assert_eq!(failed(0b10, Status::SUCCESS, 2), 0b10, "a drive that contradicts itself");
        let two = InFlightCommand { user: 7, count: 2, is_copy: false };
        assert_eq!(to_completion(&done(0b10, Status::SUCCESS), two).status, Status::WRITE_FAULT);
        assert_eq!(to_completion(&done(0b1, Status::HIGH_ECC), two).status, Status::SUCCESS);
        assert!(to_completion(&done(0b1, Status::HIGH_ECC), two).high_ecc);
        assert_eq!(to_completion(&done(0b1, Status::UNRECOVERED_READ), two).failed, 0b1);
        let copy = InFlightCommand { is_copy: true, ..two };
        assert_eq!(
            to_completion(&done(0b1, Status::UNRECOVERED_READ), copy).failed,
            0b11,
            "not written"
        );
        assert_eq!(to_completion(&done(0b1, Status::CHUNK_CLOSED_EARLY), copy).failed, 0b1);
    }
}
