//! [`Pblk`]: an FTL on the host that exposes an open-channel drive as a block device [LightNVM17
//! §4.2].
//!
//! Owns the queue pair and the request table. The write buffer, mapping, garbage collection, rate
//! limiter and recovery come from [`ftl`], which drives with the block personality use as well.
//!
//! Invariants: every accepted request completes exactly once. The doorbell is rung once per poll.
//! Requests cause no allocation once the tables have grown to the load.

mod buffer_memory;
pub(crate) mod error;
mod maintenance;
mod open;
mod read_split;
mod read_tracker;
mod requests;
mod rules;
mod saved_state;
mod scan;
mod scrub;
pub(crate) mod sharded;
mod stripe_layout;
mod vector_backend;

use std::collections::VecDeque;

use block::{
    BlockDevice, Completion, Extent, ExtentState, Limits, Op, Payload, QueueFull, Request,
};
use driver::QueuePair;
use event::Waker;
use ftl::{
    ActivePusError, ControlChange, ControlError, Ftl, FtlStats, HostStream, LimiterSample,
    RecoveryStats,
};
use mem::AddressSpace;
use nvme::Status;
use time::{Component, Nanos};
use tracepoint::Event;

use crate::invariants::{PblkViolation, require};
pub use error::PblkError;
use maintenance::Maintenance;
pub use maintenance::PblkHealth;
pub use open::DriveQueue;
use rules::TargetRules;
pub use rules::{
    NamedTargetRule, TargetRuleMisses, TargetRuleStats, TargetRulesConfig, TargetRulesError,
};
pub use saved_state::SavedPblk;
use stripe_layout::StripeMap;
use vector_backend::{BackendEvent, VectorBackend};

/// Maximum number of outstanding requests.
const QUEUE_DEPTH: u32 = 4096;
/// Maximum number of sectors of a request.
const REQUEST_SECTORS_MAX: u32 = 1 << 16;

/// A block device whose flash is managed by the host. [`Pblk::open`] creates one.
#[derive(Debug)]
pub struct Pblk {
    ftl: Ftl,
    flash: VectorBackend,
    limits: Limits,
    /// Counters of recovery, if the device was recovered.
    recovery_stats: Option<RecoveryStats>,
    /// Reads whose mapping entries the next poll looks up, in one batch.
    pending_lookups: Vec<PendingLookup>,
    /// Completions of requests that did not involve the FTL, not reaped yet.
    completed: VecDeque<Completion>,
    /// Whether a request was accepted since the last poll.
    has_new_requests: bool,
    /// Whether the FTL has operations to start.
    kick: bool,
    maintenance: Maintenance,
}

/// An accepted read whose mapping entries have not been looked up.
#[derive(Clone, Copy, Debug)]
struct PendingLookup {
    slot: u64,
    lba: u64,
    sectors: u32,
}

impl Pblk {
    /// Returns the counters of the FTL.
    pub fn stats(&self) -> &FtlStats {
        self.ftl.stats()
    }

    /// Returns what recovery read when the device was opened, or `None` if nothing had to be
    /// recovered.
    pub fn recovery_stats(&self) -> Option<&RecoveryStats> {
        self.recovery_stats.as_ref()
    }

    /// Requests a checkpoint. Once the device [is idle](Pblk::is_idle) after a flush and a
    /// checkpoint, the next open restores the map without a scan (the snapshot "on power-down" of
    /// [LightNVM17 §4.2.2]).
    pub fn checkpoint(&mut self) {
        self.ftl.checkpoint();
        self.kick = true;
        self.has_new_requests = true;
    }

    /// Sets the number of parallel units that are written at a time, see [`Ftl::set_active_pus`].
    ///
    /// # Errors
    /// [`ActivePusError`] if `count` exceeds the number that the device was opened with; nothing
    /// changes.
    pub fn set_active_pus(&mut self, count: u32) -> Result<(), ActivePusError> {
        self.ftl.set_active_pus(count)?;
        // Waiting units may be placeable now.
        self.kick = true;
        self.has_new_requests = true;
        Ok(())
    }

    /// Changes a setting of the FTL, see [`Ftl::apply_change`].
    ///
    /// # Errors
    /// [`ControlError`]; nothing changes.
    pub fn apply_change(&mut self, change: &ControlChange) -> Result<(), ControlError> {
        self.ftl.apply_change(change)?;
        self.kick = true;
        self.has_new_requests = true;
        Ok(())
    }

    /// Installs a rule program, or replaces the one that is installed: its rules decide about all later
    /// requests and victims (`docs/rules.md`). Its tables have zeros, or no keys. Requests that were
    /// accepted before are executed as they were decided.
    ///
    /// # Errors
    /// [`TargetRulesError`]; nothing changes.
    pub fn install_rules(
        &mut self,
        now: Nanos,
        config: &TargetRulesConfig,
    ) -> Result<(), TargetRulesError> {
        let (ftl, sectors) = (*self.ftl.config(), self.ftl.sectors());
        let verified = config.verified(self.flash.geometry(), &ftl, Some(sectors))?;
        let rules = TargetRules::new(verified, config, self.limits.sector_bytes, now);
        self.flash.rules = Some(Box::new(rules));
        self.has_new_requests = true;
        Ok(())
    }

    /// Replaces the rule program by another one in its encoded form, with the settings of the program that
    /// is installed. A request is executed as the old program or as the new one decides.
    ///
    /// # Errors
    /// [`TargetRulesError`], also if no program is installed; nothing changes.
    pub fn replace_rules(&mut self, now: Nanos, program: Vec<u8>) -> Result<(), TargetRulesError> {
        let rules = self.flash.rules.as_ref().ok_or(TargetRulesError::NoRules)?;
        let config = TargetRulesConfig { program, ..*rules.settings() };
        self.install_rules(now, &config)
    }

    /// Returns what a program that [replaces](Pblk::replace_rules) the installed one may use; `None` without
    /// rules.
    pub fn rule_limits(&self) -> Option<::rules::RuleLimits> {
        let (rules, active_pus) = (self.flash.rules.as_ref()?, self.ftl.config().active_pus);
        Some(rules.settings().limits(self.flash.geometry(), active_pus))
    }

    /// Returns the engine of the rules, for access to their tables between two requests; `None` without
    /// rules.
    pub fn rule_engine_mut(&mut self) -> Option<&mut ::rules::RuleEngine> {
        self.flash.rules.as_mut().map(|rules| rules.engine_mut())
    }

    /// Returns the counters of the rules, if a program is installed.
    pub fn rule_stats(&self) -> Option<TargetRuleStats> {
        self.flash.rules.as_ref().map(|rules| rules.stats())
    }

    /// Returns the history of the rate limiter, see [`Ftl::limiter_history`].
    pub fn limiter_curve(&self) -> &[LimiterSample] {
        self.ftl.limiter_history()
    }

    /// Clears the history of the rate limiter.
    pub fn restart_limiter_curve(&mut self) {
        self.ftl.reset_limiter_history();
    }

    /// Returns the FTL, for queries.
    pub fn ftl(&self) -> &Ftl {
        &self.ftl
    }

    /// Returns the queue pair, for its counters.
    pub fn queue(&self) -> &QueuePair {
        self.flash.queue()
    }

    /// Returns whether no request is outstanding and no command is on the drive.
    pub fn is_idle(&self) -> bool {
        self.flash.requests.outstanding() == 0
            && self.completed.is_empty()
            && self.ftl.is_idle()
            && !self.flash.has_deferred()
            && self.flash.queue().outstanding() == 0
    }

    /// Checks the invariants of the requests, the commands and the maintenance; not those of the
    /// FTL, which [`Ftl::check_invariants`](ftl::Ftl::check_invariants) checks. May be called
    /// between any two calls of the target's methods. Takes time proportional to the queue depth;
    /// for tests.
    ///
    /// # Errors
    /// The first invariant that does not hold.
    pub fn check_invariants(&self) -> Result<(), PblkViolation> {
        self.flash.check_invariants()?;
        self.maintenance.check_invariants()?;
        if let Some(rules) = &self.flash.rules {
            rules.check_invariants();
        }
        for lookup in &self.pending_lookups {
            require!(
                self.flash.requests.is_outstanding(lookup.slot),
                Requests,
                "a read that is looked up is outstanding",
                format_args!("request {}", lookup.slot),
                "an outstanding request",
                lookup
            );
        }
        let accepted = self.flash.requests.outstanding() + self.completed.len();
        let depth = self.limits.queue_depth;
        require!(
            accepted <= depth as usize,
            Requests,
            "the queue depth bounds the requests",
            "all requests",
            format_args!("at most {depth}"),
            accepted
        );
        require!(
            self.has_new_requests || !self.kick && self.pending_lookups.is_empty(),
            Requests,
            "the next poll starts what no completion starts",
            "the device",
            "new requests",
            (self.kick, &self.pending_lookups)
        );
        Ok(())
    }

    /// Returns the tags of the requests that were accepted and not reaped.
    pub(crate) fn outstanding_tags(&self) -> impl Iterator<Item = u64> + '_ {
        self.flash.requests.tags().chain(self.completed.iter().map(|done| done.tag))
    }

    /// Closes the device. Returns the queue pair and a completion for every request that was not
    /// reaped; requests that were still in flight get [`Status::ABORTED_SQ_DELETED`].
    ///
    /// The caller deletes the queue through its controller, which waits for commands that still use
    /// the device's memory. Data that was not flushed may be lost.
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

    /// Starts a request that has been [checked](check_request). `spread` describes the layout of
    /// its payload in memory.
    ///
    /// # Errors
    /// [`QueueFull`]; the request was not accepted.
    #[inline(always)]
    fn begin(&mut self, now: Nanos, request: &Request, spread: StripeMap) -> Result<(), QueueFull> {
        self.check_capacity()?;
        self.begin_in(now, request, spread, HostStream::Host)
    }

    /// Starts a request for which there is capacity as [`begin`](Pblk::begin) does; a write in a stream.
    ///
    /// # Errors
    /// [`QueueFull`]; the request was not accepted.
    #[inline(always)]
    fn begin_in(
        &mut self,
        now: Nanos,
        request: &Request,
        spread: StripeMap,
        stream: HostStream,
    ) -> Result<(), QueueFull> {
        if request.op == Op::Extents {
            self.list_extents(request);
            return Ok(());
        }
        let Request { op, lba, sectors, data, fua, deallocate: may_unmap, tag, .. } = *request;
        let place = self.flash.requests.insert(tag, data, spread).ok_or(QueueFull)?;
        tracepoint::set_target(self.flash.queue().qid());
        tracepoint::trace_at(now, || Event::TargetRequest { index: place, tag });
        self.has_new_requests = true;
        match op {
            Op::Read => {
                self.pending_lookups.push(PendingLookup { slot: place, lba, sectors });
                return Ok(());
            }
            Op::Write => self.ftl.write_to(stream, place, lba, sectors, fua),
            Op::Flush => self.flush(now, place),
            // A trim is not durable by itself, so zeros that must be durable are written.
            Op::WriteZeroes if !may_unmap || fua => {
                self.ftl.write_zeroes_to(stream, place, lba, sectors, fua);
            }
            Op::Discard | Op::WriteZeroes | Op::Extents => self.ftl.trim(place, lba, sectors),
        }
        self.kick = true;
        Ok(())
    }

    /// Starts a flush of the FTL. A flush covers earlier requests, so pending reads are looked up
    /// first.
    #[inline(never)]
    fn flush(&mut self, now: Nanos, place: u64) {
        self.start_lookups(now);
        self.ftl.flush(now, place, &mut self.flash);
    }

    /// Starts the reads accepted since the last poll. All their mapping entries are prefetched
    /// first, so that the cache misses overlap.
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

    /// Completes a request without the FTL.
    #[cold]
    fn complete(&mut self, tag: u64, status: Status, result: u64) {
        self.completed.push_back(Completion { tag, status, result });
        self.has_new_requests = true;
    }

    /// Writes extents to a checked payload, and completes the request with their count.
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

/// Checks a request against the limits of the device. Returns the status with which an invalid
/// request completes.
#[inline(always)]
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
    let is_wrong_length = sectors == 0 || sectors > REQUEST_SECTORS_MAX && !any_length;
    if is_wrong_length || request.breaks_atomicity(&limits.atomic) {
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
        // The FTL addresses a sector by its distance from the request's first sector.
        Payload::Scattered { .. } => Err(Status::SGL_TYPE_INVALID),
        Payload::BitBucket => Ok(()),
    }
}

impl BlockDevice for Pblk {
    block::answer_block_device!(can_wake: true, enable_sharing: {}, can_wait: false,
        visit_layers: self);

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
        if self.flash.rules.is_some() {
            return rules::requests::submit(self, now, &request);
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
            // Only a port between processes refuses; such a target has to be polled.
            let _ = self.flash.port().set_vector(vector, waker);
        }
    }
}

impl Component for Pblk {
    /// Reaps completed commands, lets the FTL start the operations that follow, and rings the
    /// doorbell once for all of them.
    fn poll(&mut self, now: Nanos) -> bool {
        tracepoint::set_target(self.flash.queue().qid());
        tracepoint::set_time(now);
        let taken = std::mem::take(&mut self.has_new_requests);
        let mut kick = std::mem::take(&mut self.kick);
        let mut reaped = false;
        self.start_lookups(now);
        // Limits the loop, so that a drive that completes commands faster than the loop reaps them
        // cannot keep the thread here.
        for _ in 0..self.flash.queue().capacity() {
            let Some(ended) = self.flash.reap() else { break };
            reaped = true;
            kick |= match ended {
                BackendEvent::InProgress => false,
                BackendEvent::Read { op, failed } => {
                    self.ftl.read_done(op, failed, &mut self.flash)
                }
                BackendEvent::Program { op, status } => {
                    self.ftl.program_done(now, op, status, &mut self.flash);
                    true
                }
                BackendEvent::CopyFailed { op, failed } => {
                    self.ftl.copy_failed(now, op, failed, &mut self.flash);
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
        if self.flash.rules.as_ref().is_some_and(|rules| rules.next_at() <= now) {
            kick |= rules::requests::run_due(self, now);
        }
        if kick {
            self.ftl.kick(now, &mut self.flash);
        }
        let rang = self.flash.ring(reaped);
        taken | reaped | rang
    }

    /// Returns zero while a request waits for a poll or a completion waits to be reaped: the write
    /// buffer acknowledges requests without the drive, so no interrupt follows. Otherwise returns
    /// the deadline of maintenance and of rules. Without these it is never, because only the drive or a
    /// submitter can cause work.
    fn deadline(&self) -> Nanos {
        let waits =
            self.has_new_requests || self.ftl.has_completion() || !self.completed.is_empty();
        if waits {
            return Nanos::ZERO;
        }
        let rules = self.flash.rules.as_ref().map_or(Nanos::MAX, |rules| rules.next_at());
        self.maintenance.deadline().min(rules)
    }
}
