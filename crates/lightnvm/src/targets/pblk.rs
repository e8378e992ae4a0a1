//! [`Pblk`]: the host-managed translation layer as a block device (LightNVM paper section 4.2).
//!
//! Owns the queue pair and the table of requests; write buffer, mapping, garbage collection, rate
//! limiter and recovery are the [`ftl`]'s, the same that a drive with the block personality runs.
//! Guarantees: every request that was taken completes exactly once; doorbells are rung once per
//! poll; nothing is allocated per request once the tables have grown to the load.

mod buffer_memory;
mod clone_state;
pub(crate) mod error;
mod maintenance;
mod open;
mod read_split;
mod read_tracker;
mod requests;
mod scan;
mod scrub;
pub(crate) mod sharded;
mod stripe_layout;
mod vector_backend;

use std::collections::VecDeque;

use block::{
    BlockDevice, Completion, Extent, ExtentState, Limits, Op, Payload, QueueFull, Request,
};
use clock::{Component, Nanos, Waker};
use driver::QueuePair;
use ftl::{ActivePusError, Ftl, FtlStats, LimiterSample, RecoveryStats};
use nvme::Status;
use ring::AddressSpace;
use tracepoint::Event;

pub use error::PblkError;
use maintenance::Maintenance;
pub use maintenance::PblkHealth;
use stripe_layout::StripeMap;
use vector_backend::{BackendEvent, VectorBackend};

/// Requests outstanding at most.
const QUEUE_DEPTH: u32 = 4096;
/// Sectors of one request at most.
const REQUEST_SECTORS_MAX: u32 = 1 << 16;

/// A block device whose flash the host manages. [`Pblk::open`] makes one.
#[derive(Debug)]
pub struct Pblk {
    ftl: Ftl,
    flash: VectorBackend,
    limits: Limits,
    /// What the recovery has read, if there was something to be recovered.
    recovery_stats: Option<RecoveryStats>,
    /// Reads that are looked up by the next poll, all at once.
    pending_lookups: Vec<PendingLookup>,
    /// Requests that were answered without the layer and not reaped yet.
    completed: VecDeque<Completion>,
    /// Whether a request was taken since the last poll.
    has_new_requests: bool,
    /// Whether the layer has something to start.
    kick: bool,
    maintenance: Maintenance,
}

/// A read that was taken and not looked up yet.
#[derive(Clone, Copy, Debug)]
struct PendingLookup {
    slot: u64,
    lba: u64,
    sectors: u32,
}

impl Pblk {
    /// Counters.
    pub fn stats(&self) -> &FtlStats {
        self.ftl.stats()
    }

    /// What the recovery has read when the device was opened, if there was something to be recovered.
    pub fn recovery_stats(&self) -> Option<&RecoveryStats> {
        self.recovery_stats.as_ref()
    }

    /// Asks for a checkpoint: when the device [is idle](Pblk::is_idle) again after a flush and this,
    /// opening it finds everything without looking for it (LightNVM paper section 4.2.2: the
    /// snapshot "on power-down").
    pub fn checkpoint(&mut self) {
        self.ftl.checkpoint();
        self.kick = true;
        self.has_new_requests = true;
    }

    /// Writes to `count` parallel units at a time from now on, as [`Ftl::set_active_pus`].
    ///
    /// # Errors
    /// [`ActivePusError`] for more than the device was opened with; nothing changes.
    pub fn set_active_pus(&mut self, count: u32) -> Result<(), ActivePusError> {
        self.ftl.set_active_pus(count)?;
        // What waits may have a place now.
        self.kick = true;
        self.has_new_requests = true;
        Ok(())
    }

    /// What the rate limiter has done; see [`Ftl::limiter_history`].
    pub fn limiter_curve(&self) -> &[LimiterSample] {
        self.ftl.limiter_history()
    }

    /// Begins a new curve of the rate limiter.
    pub fn restart_limiter_curve(&mut self) {
        self.ftl.reset_limiter_history();
    }

    /// The translation layer, for what can be asked about it.
    pub fn ftl(&self) -> &Ftl {
        &self.ftl
    }

    /// The queue pair, for its counters.
    pub fn queue(&self) -> &QueuePair {
        self.flash.queue()
    }

    /// Whether nothing is outstanding: no request, and no command on the drive.
    pub fn is_idle(&self) -> bool {
        self.flash.requests.outstanding() == 0
            && self.completed.is_empty()
            && self.ftl.is_idle()
            && !self.flash.has_deferred()
            && self.flash.queue().outstanding() == 0
    }

    /// Gives the device up: the queue pair, so that its controller can delete it (which waits for
    /// commands that still use the device's memory), and a completion for every request that was not
    /// reaped, [`Status::ABORTED_SQ_DELETED`] for those that had not ended. What was not flushed may
    /// be lost.
    pub fn into_queue(mut self) -> (QueuePair, Vec<Completion>) {
        let mut completions: Vec<Completion> = std::iter::from_fn(|| self.reap()).collect();
        let (queue, mut requests) = self.flash.into_parts();
        completions.extend(std::iter::from_fn(|| requests.remove_any()).map(|tag| Completion {
            tag,
            status: Status::ABORTED_SQ_DELETED,
            result: 0,
        }));
        (queue, completions)
    }

    #[inline]
    fn check_capacity(&self) -> Result<(), QueueFull> {
        let outstanding = self.flash.requests.outstanding() + self.completed.len();
        if outstanding >= self.limits.queue_depth as usize { Err(QueueFull) } else { Ok(()) }
    }

    /// Takes a request that has been [checked](check), and whose payload lies as `spread` says.
    ///
    /// # Errors
    /// [`Busy`]; the request was not taken.
    #[inline(always)]
    fn begin(&mut self, now: Nanos, request: &Request, spread: StripeMap) -> Result<(), QueueFull> {
        self.check_capacity()?;
        if request.op == Op::Extents {
            self.list_extents(request);
            return Ok(());
        }
        let Request { op, lba, sectors, data, fua, deallocate: may_unmap, tag } = *request;
        let place = self.flash.requests.insert(tag, data, spread).ok_or(QueueFull)?;
        tracepoint::set_target(self.flash.queue().qid());
        tracepoint::trace_at(now, || Event::TargetRequest { index: place, tag });
        self.has_new_requests = true;
        match op {
            Op::Read => {
                self.pending_lookups.push(PendingLookup { slot: place, lba, sectors });
                return Ok(());
            }
            Op::Write => self.ftl.write(place, lba, sectors, fua),
            Op::Flush => self.flush(now, place),
            // A trim is not durable by itself, so that zeros that must be are written.
            Op::WriteZeroes if !may_unmap || fua => {
                self.ftl.write_zeroes(place, lba, sectors, fua);
            }
            Op::Discard | Op::WriteZeroes | Op::Extents => self.ftl.trim(place, lba, sectors),
        }
        self.kick = true;
        Ok(())
    }

    /// Makes the layer flush, which starts what came before: reads of that are looked up first.
    #[inline(never)]
    fn flush(&mut self, now: Nanos, place: u64) {
        self.start_lookups(now);
        self.ftl.flush(now, place, &mut self.flash);
    }

    /// Starts the reads since the last time: first a look at all of their map words, so that their cache
    /// misses overlap.
    #[inline]
    fn start_lookups(&mut self, now: Nanos) {
        if self.pending_lookups.len() > 1 {
            self.ftl.prefetch_l2p(self.pending_lookups.iter().map(|lookup| lookup.lba));
        }
        for &PendingLookup { slot: place, lba, sectors } in &self.pending_lookups {
            self.ftl.read(now, place, lba, sectors, &mut self.flash);
        }
        self.pending_lookups.clear();
    }

    /// Completes a request without the layer.
    #[cold]
    fn complete(&mut self, tag: u64, status: Status, result: u64) {
        self.completed.push_back(Completion { tag, status, result });
        self.has_new_requests = true;
    }

    /// Writes extents to a checked payload, and answers how many.
    #[cold]
    fn list_extents(&mut self, request: &Request) {
        let (mut lba, mut left, mut count) = (request.lba, request.sectors, 0);
        while let Payload::Contiguous(at) = request.data
            && left > 0
            && count < Request::extent_capacity()
        {
            let (mapped, sectors) = self.ftl.extent(lba, left);
            let state = if mapped { ExtentState::Mapped } else { ExtentState::Unmapped };
            let extent = Extent { lba, sectors, state }.encode();
            if self.memory().write(at.offset((count * Extent::BYTES) as u64), &extent).is_err() {
                break;
            }
            (lba, left, count) = (lba + u64::from(sectors), left - sectors, count + 1);
        }
        self.complete(request.tag, Status::SUCCESS, count as u64);
    }
}

/// The status that a request to a device of these limits deserves if it cannot be carried out.
#[inline]
fn check_request(limits: &Limits, memory: &AddressSpace, request: &Request) -> Result<(), Status> {
    let Request { op, lba, sectors, data, deallocate: may_unmap, fua, .. } = *request;
    if op == Op::Flush {
        return Ok(());
    }
    if lba.checked_add(sectors.into()).is_none_or(|end| end > limits.sectors) {
        return Err(Status::LBA_OUT_OF_RANGE);
    }
    let trims = op == Op::Discard || op == Op::WriteZeroes && may_unmap && !fua;
    let any_length = trims || op == Op::Extents;
    if sectors == 0 || sectors > REQUEST_SECTORS_MAX && !any_length {
        return Err(Status::INVALID_FIELD);
    }
    let bytes = match op {
        Op::Read | Op::Write => u64::from(sectors) * u64::from(limits.sector_bytes),
        Op::Extents => (Request::extent_capacity() * Extent::BYTES) as u64,
        Op::Flush | Op::Discard | Op::WriteZeroes => return Ok(()),
    };
    match data {
        Payload::Contiguous(at) => match memory.find(at, bytes) {
            Ok(_) => Ok(()),
            Err(_) => Err(Status::DATA_TRANSFER_ERROR),
        },
        Payload::BitBucket if op == Op::Extents => Err(Status::INVALID_FIELD),
        // The layer keeps the place of a sector as its distance from the first one.
        Payload::Scattered { .. } => Err(Status::SGL_TYPE_INVALID),
        Payload::BitBucket => Ok(()),
    }
}

impl BlockDevice for Pblk {
    fn limits(&self) -> &Limits {
        &self.limits
    }

    #[inline]
    fn submit(&mut self, now: Nanos, request: Request) -> Result<(), QueueFull> {
        if let Err(status) = check_request(&self.limits, self.memory(), &request) {
            self.check_capacity()?;
            self.complete(request.tag, status, 0);
            return Ok(());
        }
        self.begin(now, &request, StripeMap::CONTIGUOUS)
    }

    #[inline]
    fn reap(&mut self) -> Option<Completion> {
        if let Some(done) = self.ftl.pop_completion() {
            let tag = self.flash.requests.remove(done.tag);
            return Some(Completion { tag, status: done.status, result: 0 });
        }
        self.completed.pop_front()
    }

    fn memory(&self) -> &AddressSpace {
        self.flash.port().memory()
    }

    fn set_waker(&mut self, waker: Waker) {
        if let Some(vector) = self.flash.queue().vector() {
            // Refused only by a port between processes: then the target has to be polled.
            let _ = self.flash.port().set_vector(vector, waker);
        }
    }
}

impl Component for Pblk {
    /// Takes every command that has ended, lets the layer start what follows, and rings the doorbell
    /// once for all of it.
    fn poll(&mut self, now: Nanos) -> bool {
        tracepoint::set_target(self.flash.queue().qid());
        tracepoint::set_time(now);
        let taken = std::mem::take(&mut self.has_new_requests);
        let mut kick = std::mem::take(&mut self.kick);
        let mut reaped = false;
        self.start_lookups(now);
        // A drive that completes faster than this reaps does not keep it here.
        for _ in 0..self.flash.queue().capacity() {
            let Some(ended) = self.flash.reap() else { break };
            reaped = true;
            kick |= match ended {
                BackendEvent::ReadFragment => false,
                BackendEvent::Read { op, failed } => {
                    self.ftl.read_done(op, failed, &mut self.flash)
                }
                BackendEvent::Program { op, status } => {
                    self.ftl.program_done(now, op, status, &mut self.flash);
                    true
                }
                BackendEvent::Erase { op, status } => {
                    self.ftl.erase_done(op, status);
                    true
                }
                BackendEvent::Scrub { failed, high_ecc } => {
                    self.maintenance.on_scrub_read_complete(failed, high_ecc);
                    false
                }
                BackendEvent::Superblock(ended) => {
                    self.maintenance.on_superblock_command_complete(&ended);
                    false
                }
                BackendEvent::Trim { status } => {
                    self.ftl.device_trim_done(now, status, &mut self.flash);
                    true
                }
            };
        }
        if reaped {
            self.flash.submit_deferred();
        }
        kick |= self.step_maintenance(now);
        if kick {
            self.ftl.kick(now, &mut self.flash);
        }
        let rang = self.flash.ring(reaped);
        taken | reaped | rang
    }

    /// At once while a request is waiting for a poll, or a completion to be reaped: the write buffer
    /// acknowledges without the drive, and then no drive calls for attention. Else when data that
    /// nobody writes is to be looked after; without that never: only the drive, or who submits, can
    /// give this work.
    fn deadline(&self) -> Nanos {
        let waits =
            self.has_new_requests || self.ftl.has_completion() || !self.completed.is_empty();
        if waits { Nanos::ZERO } else { self.maintenance.deadline() }
    }
}
