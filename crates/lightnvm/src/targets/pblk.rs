//! [`Pblk`]: the host-managed translation layer as a block device (LightNVM paper section 4.2).
//!
//! Owns the queue pair and the table of requests; write buffer, mapping, garbage collection, rate
//! limiter and recovery are the [`ftl`]'s, the same that a drive with the block personality runs.
//! Guarantees: every request that was taken completes exactly once; doorbells are rung once per
//! poll; nothing is allocated per request once the tables have grown to the load.

mod adopt;
pub(crate) mod error;
mod health;
mod memory;
mod open;
mod patrol;
mod requests;
mod scan;
pub(crate) mod sharded;
mod split;
mod spread;
mod vectors;
mod waits;

use std::collections::VecDeque;

use block::{Busy, Completion, Device, Extent, ExtentState, Limits, Op, Payload, Request};
use clock::{Component, Nanos, Waker};
use driver::QueuePair;
use ftl::{ActivePusError, Ftl, FtlStats, LimiterSample, RecoveryStats};
use nvme::Status;
use ring::AddressSpace;
use tracepoint::Event;

pub use error::PblkError;
use health::Health;
pub use health::PblkHealth;
use spread::Spread;
use vectors::{Ended, VectorFlash};

/// Requests outstanding at most.
const QUEUE_DEPTH: u32 = 4096;
/// Sectors of one request at most.
const MAX_SECTORS: u32 = 1 << 16;

/// A block device whose flash the host manages. [`Pblk::open`] makes one.
#[derive(Debug)]
pub struct Pblk {
    ftl: Ftl,
    flash: VectorFlash,
    limits: Limits,
    /// What the recovery has read, if there was something to be recovered.
    recovered: Option<RecoveryStats>,
    /// Reads that are looked up by the next poll, all at once.
    lookups: Vec<Lookup>,
    /// Requests that were answered without the layer and not reaped yet.
    answered: VecDeque<Completion>,
    /// Whether a request was taken since the last poll.
    taken: bool,
    /// Whether the layer has something to start.
    kick: bool,
    health: Health,
}

/// A read that was taken and not looked up yet.
#[derive(Clone, Copy, Debug)]
struct Lookup {
    place: u64,
    lba: u64,
    sectors: u32,
}

impl Pblk {
    /// Counters.
    pub fn stats(&self) -> &FtlStats {
        self.ftl.stats()
    }

    /// What the recovery has read when the device was opened, if there was something to be recovered.
    pub fn recovered(&self) -> Option<&RecoveryStats> {
        self.recovered.as_ref()
    }

    /// Asks for a checkpoint: when the device [is idle](Pblk::is_idle) again after a flush and this,
    /// opening it finds everything without looking for it (LightNVM paper section 4.2.2: the
    /// snapshot "on power-down").
    pub fn checkpoint(&mut self) {
        self.ftl.checkpoint();
        self.kick = true;
        self.taken = true;
    }

    /// Writes to `count` parallel units at a time from now on, as [`Ftl::set_active_pus`].
    ///
    /// # Errors
    /// [`ActivePusError`] for more than the device was opened with; nothing changes.
    pub fn set_active_pus(&mut self, count: u32) -> Result<(), ActivePusError> {
        self.ftl.set_active_pus(count)?;
        // What waits may have a place now.
        self.kick = true;
        self.taken = true;
        Ok(())
    }

    /// What the rate limiter has done; see [`Ftl::limiter_curve`].
    pub fn limiter_curve(&self) -> &[LimiterSample] {
        self.ftl.limiter_curve()
    }

    /// Begins a new curve of the rate limiter.
    pub fn restart_limiter_curve(&mut self) {
        self.ftl.restart_limiter_curve();
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
            && self.answered.is_empty()
            && self.ftl.is_idle()
            && !self.flash.is_waiting()
            && self.flash.queue().outstanding() == 0
    }

    /// Gives the device up: the queue pair, so that its controller can delete it (which waits for
    /// commands that still use the device's memory), and a completion for every request that was not
    /// reaped, [`Status::ABORTED_SQ_DELETED`] for those that had not ended. What was not flushed may
    /// be lost.
    pub fn into_queue(mut self) -> (QueuePair, Vec<Completion>) {
        let mut completions: Vec<Completion> = std::iter::from_fn(|| self.reap()).collect();
        let (queue, mut requests) = self.flash.into_parts();
        completions.extend(std::iter::from_fn(|| requests.end_any()).map(|tag| Completion {
            tag,
            status: Status::ABORTED_SQ_DELETED,
            result: 0,
        }));
        (queue, completions)
    }

    #[inline]
    fn has_room(&self) -> Result<(), Busy> {
        let outstanding = self.flash.requests.outstanding() + self.answered.len();
        if outstanding >= self.limits.queue_depth as usize { Err(Busy) } else { Ok(()) }
    }

    /// Takes a request that has been [checked](check), and whose payload lies as `spread` says.
    ///
    /// # Errors
    /// [`Busy`]; the request was not taken.
    #[inline(always)]
    fn begin(&mut self, now: Nanos, request: &Request, spread: Spread) -> Result<(), Busy> {
        self.has_room()?;
        if request.op == Op::Extents {
            self.list_extents(request);
            return Ok(());
        }
        let Request { op, lba, sectors, data, fua, may_unmap, tag } = *request;
        let place = self.flash.requests.put(tag, data, spread).ok_or(Busy)?;
        tracepoint::enter_target(self.flash.queue().qid());
        tracepoint::trace_at(now, || Event::TargetRequest { place, tag });
        self.taken = true;
        match op {
            Op::Read => {
                self.lookups.push(Lookup { place, lba, sectors });
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
        self.look_up(now);
        self.ftl.flush(now, place, &mut self.flash);
    }

    /// Starts the reads since the last time: first a look at all of their map words, so that their cache
    /// misses overlap.
    #[inline]
    fn look_up(&mut self, now: Nanos) {
        if self.lookups.len() > 1 {
            self.ftl.look_at(self.lookups.iter().map(|lookup| lookup.lba));
        }
        for &Lookup { place, lba, sectors } in &self.lookups {
            self.ftl.read(now, place, lba, sectors, &mut self.flash);
        }
        self.lookups.clear();
    }

    /// Completes a request without the layer.
    #[cold]
    fn answer(&mut self, tag: u64, status: Status, result: u64) {
        self.answered.push_back(Completion { tag, status, result });
        self.taken = true;
    }

    /// Writes extents to a checked payload, and answers how many.
    #[cold]
    fn list_extents(&mut self, request: &Request) {
        let (mut lba, mut left, mut count) = (request.lba, request.sectors, 0);
        while let Payload::At(at) = request.data
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
        self.answer(request.tag, Status::SUCCESS, count as u64);
    }
}

/// The status that a request to a device of these limits deserves if it cannot be carried out.
#[inline]
fn check(limits: &Limits, memory: &AddressSpace, request: &Request) -> Result<(), Status> {
    let Request { op, lba, sectors, data, may_unmap, fua, .. } = *request;
    if op == Op::Flush {
        return Ok(());
    }
    if lba.checked_add(sectors.into()).is_none_or(|end| end > limits.sectors) {
        return Err(Status::LBA_OUT_OF_RANGE);
    }
    let trims = op == Op::Discard || op == Op::WriteZeroes && may_unmap && !fua;
    let any_length = trims || op == Op::Extents;
    if sectors == 0 || sectors > MAX_SECTORS && !any_length {
        return Err(Status::INVALID_FIELD);
    }
    let bytes = match op {
        Op::Read | Op::Write => u64::from(sectors) * u64::from(limits.sector_bytes),
        Op::Extents => (Request::extent_capacity() * Extent::BYTES) as u64,
        Op::Flush | Op::Discard | Op::WriteZeroes => return Ok(()),
    };
    match data {
        Payload::At(at) => match memory.find(at, bytes) {
            Ok(_) => Ok(()),
            Err(_) => Err(Status::DATA_TRANSFER_ERROR),
        },
        Payload::BitBucket if op == Op::Extents => Err(Status::INVALID_FIELD),
        // The layer keeps the place of a sector as its distance from the first one.
        Payload::Scattered { .. } => Err(Status::SGL_TYPE_INVALID),
        Payload::BitBucket => Ok(()),
    }
}

impl Device for Pblk {
    fn limits(&self) -> &Limits {
        &self.limits
    }

    #[inline]
    fn submit(&mut self, now: Nanos, request: Request) -> Result<(), Busy> {
        if let Err(status) = check(&self.limits, self.memory(), &request) {
            self.has_room()?;
            self.answer(request.tag, status, 0);
            return Ok(());
        }
        self.begin(now, &request, Spread::NONE)
    }

    #[inline]
    fn reap(&mut self) -> Option<Completion> {
        if let Some(done) = self.ftl.take_done() {
            let tag = self.flash.requests.end(done.tag);
            return Some(Completion { tag, status: done.status, result: 0 });
        }
        self.answered.pop_front()
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
        tracepoint::enter_target(self.flash.queue().qid());
        tracepoint::set_time(now);
        let taken = std::mem::take(&mut self.taken);
        let mut kick = std::mem::take(&mut self.kick);
        let mut reaped = false;
        self.look_up(now);
        // A drive that completes faster than this reaps does not keep it here.
        for _ in 0..self.flash.queue().capacity() {
            let Some(ended) = self.flash.reap() else { break };
            reaped = true;
            kick |= match ended {
                Ended::Part => false,
                Ended::Read { op, failed } => self.ftl.read_done(op, failed, &mut self.flash),
                Ended::Program { op, status } => {
                    self.ftl.program_done(now, op, status, &mut self.flash);
                    true
                }
                Ended::Erase { op, status } => {
                    self.ftl.erase_done(op, status);
                    true
                }
                Ended::Scrub { failed, high_ecc } => {
                    self.health.scrubbed(failed, high_ecc);
                    false
                }
                Ended::Aside(ended) => {
                    self.health.label_done(&ended);
                    false
                }
                Ended::Trim { status } => {
                    self.ftl.forget_done(now, status, &mut self.flash);
                    true
                }
            };
        }
        if reaped {
            self.flash.send_waiting();
        }
        kick |= self.look_after(now);
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
        let waits = self.taken || self.ftl.has_done() || !self.answered.is_empty();
        if waits { Nanos::ZERO } else { self.health.deadline() }
    }
}
