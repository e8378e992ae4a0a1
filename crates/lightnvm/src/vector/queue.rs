//! [`VectorQueue`]: a queue pair that takes vector commands.
//!
//! Owned by whoever submits (rule R4). Guarantees: commands go out in the order in which they were
//! given, so that on every parallel unit, whose commands the drive executes in the order of their
//! queue, an erase never overtakes a read or program before it; every command that was taken ends
//! exactly once. Nothing is allocated per command.

use std::sync::Arc;

use driver::{Completed, ControllerInfo, QueueFull, QueuePair};
use nvme::{DsmRange, MAX_VECTOR_ADDRESSES, Ppa, SglDescriptor, Sqe, Status};
use ring::{Iova, Port};
use tracepoint::Event;

use super::MemoryError;
use super::memory::CommandLists;

/// Where the sectors of a vector read or write are in registered memory, in the order of the
/// addresses.
#[derive(Clone, Copy, Debug)]
pub enum DataSegments<'a> {
    /// Nowhere: what is read is dropped, what is written is zeros (an NVMe bit bucket).
    BitBucket,
    /// One after the other from here on.
    Contiguous(Iova),
    /// Spread: sector `i` of the command is the `places[i]`-th after `base`.
    Scattered {
        /// Where place 0 is.
        base: Iova,
        /// The place of each.
        indices: &'a [u32],
    },
}

/// A vector command that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VectorCompletion {
    /// What the command was given.
    pub user_data: u64,
    /// Bit `i` stands for its `i`-th address, which failed: was not read, or may not have been
    /// written or erased.
    pub failed: u64,
    /// How it ended; [`Status::SUCCESS`] exactly if no address failed.
    pub status: Status,
    /// Whether what was read needed much error correction, and should be moved soon.
    pub high_ecc: bool,
}

#[derive(Clone, Copy, Debug)]
struct InFlightCommand {
    user: u64,
    count: u8,
    /// Whether the command is a copy.
    is_copy: bool,
}

/// What is known of the commands of a queue pair that has been given back.
#[derive(Debug)]
pub(crate) struct InFlightTable(Box<[InFlightCommand]>);

impl InFlightTable {
    /// What has ended, of a completion of that queue pair.
    pub(crate) fn completion(&self, done: &Completed) -> VectorCompletion {
        // The queue pair returns what it was given: the tag.
        to_completion(done, self.0[done.user as usize])
    }
}

/// A queue pair that takes vector commands of an open-channel drive.
#[derive(Debug)]
pub struct VectorQueue {
    queue: QueuePair,
    port: Arc<Port>,
    nsid: u32,
    lists: CommandLists,
    /// By tag.
    in_flight: Box<[InFlightCommand]>,
    max_sectors: u32,
    sector_bytes: u32,
}

/// Bits of the first `count` addresses.
fn address_mask(count: u8) -> u64 {
    u64::MAX >> (MAX_VECTOR_ADDRESSES - count.clamp(1, MAX_VECTOR_ADDRESSES))
}

/// Whether a drive may answer so before it has begun, in which case it names the address that it
/// does not like and has written or erased none of the others (OC section 4).
fn is_rejection(status: Status) -> bool {
    [Status::OUT_OF_ORDER_WRITE, Status::OFFLINE_CHUNK, Status::INVALID_RESET]
        .iter()
        .any(|s| status.is(*s))
}

/// The addresses of a command that failed: those that the completion names, or all if it failed as a
/// whole, or may have. A read that needed much error correction did not fail.
#[inline]
fn failed_addresses(done: &Completed, count: u8) -> u64 {
    if done.status.is(Status::HIGH_ECC) {
        return 0;
    }
    let named = done.result & address_mask(count);
    let partly = done.status.is_media_error() && !is_rejection(done.status);
    if done.status.is_success() || named != 0 && partly { named } else { address_mask(count) }
}

/// What has ended, of a drive that may contradict itself.
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
    // A copy is programmed when all of it has been read (OC section 4).
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
    /// Takes a queue pair that has nothing outstanding.
    ///
    /// # Errors
    /// [`MemoryError`], for the lists of addresses.
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

    /// Addresses of one command at most: 64, or what the drive transfers at a time if that is less.
    pub fn max_sectors(&self) -> u32 {
        self.max_sectors
    }

    /// Bytes of a sector.
    pub fn sector_bytes(&self) -> u32 {
        self.sector_bytes
    }

    /// The queue pair, for its counters.
    pub fn queue(&self) -> &QueuePair {
        &self.queue
    }

    /// The connection to the drive.
    pub fn port(&self) -> &Arc<Port> {
        &self.port
    }

    /// Commands outstanding.
    #[inline]
    pub fn outstanding(&self) -> u16 {
        self.queue.outstanding()
    }

    /// Gives the queue pair back.
    pub fn into_queue(self) -> QueuePair {
        self.queue
    }

    /// Gives the queue pair back, and what is known of the commands that are outstanding on it.
    pub(crate) fn into_parts(self) -> (QueuePair, InFlightTable) {
        (self.queue, InFlightTable(self.in_flight))
    }

    /// Reads 1 to [`max_sectors`](VectorQueue::max_sectors) sectors, and their out-of-band bytes one
    /// after the other to `oob` if that is given.
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
    /// the write pointers of their chunks. Out-of-band bytes are taken from `oob`, zeros without.
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

    /// Erases the chunks that 1 to 64 addresses are in, each in one chunk.
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

    /// Makes the drive's own map forget the copies, up to a sequence number, of 1 to 256 runs of logical
    /// sectors: `runs` descriptors of Dataset Management at `at` (`docs/format/ppa.md`, Map Trim).
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

    /// Copies sectors inside the drive, out-of-band bytes included. Both sides have the same number
    /// of addresses, 1 to 64; the targets are as for [`write`](VectorQueue::write). A bit of
    /// [`VectorCompletion::failed`] stands for a target: all of them, when a source cannot be read.
    ///
    /// # Errors
    /// [`QueueFull`]; nothing was submitted.
    pub fn copy(
        &mut self,
        from: impl ExactSizeIterator<Item = Ppa>,
        to: impl ExactSizeIterator<Item = Ppa>,
        user: u64,
    ) -> Result<(), QueueFull> {
        let tag = self.queue.next_tag().ok_or(QueueFull)?;
        let count = from.len() as u8;
        let (from, to) = (self.lists.ppa_list(tag.0, from), self.lists.target_list(tag.0, to));
        let flight = InFlightCommand { user, count, is_copy: true };
        self.submit(tag.0, Sqe::vector_copy(self.nsid, from, to), flight)
    }

    /// Inlined, as [`submit`](VectorQueue::submit) is: an entry that is made here and there and then
    /// copied costs more time in the store buffer than everything else.
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
        // The tag is free until the command is taken.
        self.in_flight[usize::from(tag)] = flight;
        tracepoint::trace(|| Event::TargetIssued { user: flight.user });
        self.queue.submit(sqe, tag.into()).map(|_| ())
    }

    /// Takes the next command that has ended.
    #[inline]
    pub fn reap(&mut self) -> Option<VectorCompletion> {
        let done = self.queue.reap()?;
        // The queue pair returns what it was given: the tag.
        Some(to_completion(&done, self.in_flight[done.user as usize]))
    }

    /// Tells the drive of what was submitted, or, if nothing was, gives back what was `reaped`.
    /// Returns whether something was submitted.
    #[inline]
    pub fn ring(&mut self, reaped: bool) -> bool {
        let rang = self.queue.ring();
        if !rang && reaped {
            self.queue.release();
        }
        rang
    }

    /// Gives up every outstanding command: each call returns one, with `status`, until none is
    /// left.
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
