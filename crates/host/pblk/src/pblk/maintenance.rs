//! Maintenance of the media: reactions to chunk notifications of the drive [OC20 §3], and
//! background reads of idle data.
//!
//! | media event | reaction |
//! |---|---|
//! | a chunk or a die fails | no more writes to it; buffered sectors are re-dispatched; a checkpoint follows; its lines are relocated slowly |
//! | a sector is uncorrectable | its line is relocated; only the sector stays uncorrectable |
//! | reads needed retries | the line is relocated |
//! | reads had many bit errors | with a scrub, the line is relocated; otherwise ignored, because on a worn drive this applies to all data |
//!
//! A drive may report wrong addresses: events of addresses that it does not have are counted and
//! ignored.

use driver::{ControllerHandle, DriverError, MediaEvent};
use ftl::ChunkEvent;
use nvme::{Address, ChunkId, ChunkNotificationKind, ChunkNotificationScope};
use time::Nanos;

use super::Pblk;
use super::scrub::PblkScrubber;
use super::sharded::superblock::{SuperblockHealth, SuperblockMaintainer};
use crate::invariants::{PblkViolation, require_eq};
use lnvm::{MediaManager, RelocationReason, RelocationRequest, ScrubConfig, ScrubStats, TargetId};
use ocssd::vector::VectorCompletion;

/// Counts of the media events that the drive reported and of pblk's reactions, since the device was
/// opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PblkHealth {
    /// Media events received.
    pub events: u64,
    /// Media events received that caused no action.
    pub ignored: u64,
    /// Media events that the drive overwrote before they were read, or that were malformed.
    pub lost_events: u64,
    /// Whether the drive has refused to report further events.
    pub subscription_refused: bool,
    /// Lines that the FTL was asked to relocate because of events or recommendations, those of the
    /// scrub included.
    pub relocations: u64,
    /// Counters of the scrub.
    pub scrub: ScrubStats,
}

impl PblkHealth {
    /// Returns the sums of the counters of two devices.
    #[must_use]
    pub fn plus(&self, other: &PblkHealth) -> PblkHealth {
        let scrub = &other.scrub;
        PblkHealth {
            events: self.events + other.events,
            ignored: self.ignored + other.ignored,
            lost_events: self.lost_events + other.lost_events,
            subscription_refused: self.subscription_refused || other.subscription_refused,
            relocations: self.relocations + other.relocations,
            scrub: self.scrub.plus(scrub),
        }
    }
}

#[derive(Debug, Default)]
pub(super) struct Maintenance {
    controller: Option<Box<ControllerHandle>>,
    scrubber: Option<Box<PblkScrubber>>,
    /// Maintains the superblock of a sharded device.
    superblock: Option<Box<SuperblockMaintainer>>,
    /// Whether a controller, a scrub or a superblock maintainer is present.
    active: bool,
    /// Time of the next checkpoint, on a device whose chunks the media manager scrubs.
    next_checkpoint: Nanos,
    /// Whether the caller, not [`Pblk::step_maintenance`], takes the media events.
    routed: bool,
    stats: PblkHealth,
}

impl Maintenance {
    /// Returns whether there is maintenance beyond the device's own media events.
    pub(super) fn has_tasks(&self) -> bool {
        self.scrubber.is_some() || self.superblock.is_some() || self.routed
    }

    /// Returns the counters since the device was opened.
    pub(super) fn stats(&self) -> PblkHealth {
        self.stats
    }

    /// Returns the time of the next checkpoint.
    pub(super) fn next_checkpoint(&self) -> Nanos {
        self.next_checkpoint
    }

    /// Sets the time of the next checkpoint.
    pub(super) fn set_next_checkpoint(&mut self, at: Nanos) {
        self.next_checkpoint = at;
    }

    /// Handles the completion of a scrub read.
    pub(super) fn on_scrub_read_complete(&mut self, failed: u64, high_ecc: bool) {
        if let Some(patrol) = &mut self.scrubber {
            patrol.on_read_complete(failed, high_ecc);
        }
    }

    /// Handles the completion of a command on the superblock.
    pub(super) fn on_superblock_command_complete(&mut self, ended: &VectorCompletion) {
        if let Some(keeper) = &mut self.superblock {
            keeper.on_command_complete(ended);
        }
    }

    #[inline]
    pub(super) fn deadline(&self) -> Nanos {
        if !self.active {
            return Nanos::MAX;
        }
        let label = self.superblock.as_ref().map_or(Nanos::MAX, |k| k.deadline());
        self.scrubber.as_ref().map_or(Nanos::MAX, |p| p.deadline()).min(label)
    }

    /// Checks the scrub and the superblock, and whether they are polled.
    ///
    /// # Errors
    /// The first invariant that does not hold.
    pub(super) fn check_invariants(&self) -> Result<(), PblkViolation> {
        let Maintenance { controller, scrubber, superblock, .. } = self;
        let is_needed = controller.is_some() || scrubber.is_some() || superblock.is_some();
        let name = "maintenance with work is polled";
        require_eq!(Maintenance, name, "the maintenance", is_needed, self.active);
        scrubber.as_ref().map_or(Ok(()), |scrubber| scrubber.check_invariants())?;
        superblock.as_ref().map_or(Ok(()), |keeper| keeper.check_invariants())
    }

    /// Updates `active` after a component was added or removed.
    fn update_active(&mut self) {
        let Maintenance { controller, scrubber: patrol, superblock: keeper, .. } = self;
        self.active = controller.is_some() || patrol.is_some() || keeper.is_some();
    }
}

impl Pblk {
    /// Subscribes to the drive's media events. The device owns the controller's admin queue from
    /// now on; each [`poll`](time::Component::poll) takes the available events.
    ///
    /// # Errors
    /// As [`ControllerHandle::subscribe_events`]; the error returns the controller.
    pub fn subscribe_events(
        &mut self,
        mut controller: Box<ControllerHandle>,
    ) -> Result<(), (Box<ControllerHandle>, DriverError)> {
        match controller.subscribe_events() {
            Ok(()) => {
                self.maintenance.controller = Some(controller);
                self.maintenance.update_active();
                Ok(())
            }
            Err(error) => Err((controller, error)),
        }
    }

    /// Returns the admin queue, if the device has it.
    pub fn take_controller(&mut self) -> Option<ControllerHandle> {
        let controller = self.maintenance.controller.take();
        self.maintenance.update_active();
        controller.map(|c| *c)
    }

    /// Starts a scrub of cold chunks with `config`, and relocates data that is hard to read, at
    /// most at the rate at which it is read. The FTL levels wear itself
    /// ([`ftl::FtlConfig::static_wear_leveling`]). A rate of 0 stops the scrub.
    pub fn set_scrub(&mut self, config: ScrubConfig) {
        let wanted = config.sectors_per_sec > 0;
        let sectors_max = self.flash.sectors_max();
        self.maintenance.scrubber =
            wanted.then(|| Box::new(PblkScrubber::new(config, &mut self.ftl, sectors_max)));
        if let Some(keeper) = &mut self.maintenance.superblock {
            keeper.set_interval(if wanted { config.repeat_after } else { Nanos::MAX });
        }
        self.maintenance.update_active();
        self.has_new_requests = true;
    }

    /// Makes this shard maintain the superblock of its sharded device.
    pub(super) fn set_superblock_maintainer(&mut self, keeper: SuperblockMaintainer) {
        self.maintenance.superblock = Some(Box::new(keeper));
        self.maintenance.update_active();
    }

    /// Returns the health of the superblock, if this shard maintains it.
    pub(super) fn superblock_health(&self) -> Option<SuperblockHealth> {
        self.maintenance.superblock.as_ref().map(|keeper| keeper.health())
    }

    /// Returns the counts of media events and reactions.
    pub fn health(&self) -> PblkHealth {
        let Maintenance { controller, scrubber: patrol, stats, .. } = &self.maintenance;
        let (lost, malformed) = controller.as_ref().map_or((0, 0), |c| c.dropped_events());
        PblkHealth {
            lost_events: stats.lost_events + lost + malformed,
            relocations: stats.relocations + patrol.as_ref().map_or(0, |p| p.relocations),
            scrub: patrol.as_ref().map_or_else(ScrubStats::default, |p| *p.stats()),
            ..*stats
        }
    }

    /// Handles a media event of the drive. The owner of the admin queue forwards events; after
    /// [`subscribe_events`](Pblk::subscribe_events) the device takes them itself.
    pub fn on_media_event(&mut self, event: &MediaEvent) {
        self.maintenance.stats.events += 1;
        self.kick = true;
        self.has_new_requests = true;
        let done = match self.flash.locate(event.address) {
            None => false,
            Some((chunk, sector)) if self.forward_superblock_event(chunk, event) => {
                // The die also has chunks that do not belong to the superblock.
                if (event.scope, event.kind)
                    == (ChunkNotificationScope::Pu, ChunkNotificationKind::Unrecoverable)
                {
                    self.retire_pu(chunk);
                } else if event.scope == ChunkNotificationScope::Pu {
                    self.report_read_error(chunk, RelocationReason::HighEcc { sector });
                }
                true
            }
            Some((chunk, sector)) => match (event.scope, event.kind) {
                (ChunkNotificationScope::Pu, ChunkNotificationKind::Unrecoverable) => {
                    self.retire_pu(chunk)
                }
                (ChunkNotificationScope::Chunk, ChunkNotificationKind::Unrecoverable) => {
                    self.ftl.chunk_offline(chunk)
                }
                (ChunkNotificationScope::Sector, ChunkNotificationKind::Unrecoverable) => self
                    .report_read_error(
                        chunk,
                        RelocationReason::Uncorrectable { sector, sectors: event.sectors },
                    ),
                (_, ChunkNotificationKind::ErrorRateHigh) => {
                    self.report_read_error(chunk, RelocationReason::HighEcc { sector })
                }
                (_, ChunkNotificationKind::ErrorRateMedium)
                    if self.maintenance.scrubber.is_some() =>
                {
                    self.report_read_error(chunk, RelocationReason::HighEcc { sector })
                }
                _ => false,
            },
        };
        self.maintenance.stats.ignored += u64::from(!done);
    }

    /// Handles a relocation request of the [`MediaManager`] that manages the drive on which this
    /// target has a share. Returns whether a relocation was started.
    pub fn on_relocation_request(&mut self, advice: &RelocationRequest) -> bool {
        self.kick = true;
        self.has_new_requests = true;
        let moves = self.ftl.refresh(ChunkId(advice.chunk));
        self.maintenance.stats.relocations += u64::from(moves);
        moves
    }

    /// Returns the next change of a chunk, in order, for a media manager that scrubs the chunks.
    /// Changes are recorded from the first call or [`watch_chunks`](Pblk::watch_chunks). A device
    /// with a scrub of its own returns `None`.
    pub fn pop_chunk_change(&mut self) -> Option<ChunkEvent> {
        if self.maintenance.scrubber.is_some() {
            return None;
        }
        self.ftl.pop_chunk_event()
    }

    /// Starts the recording of changes for [`pop_chunk_change`](Pblk::pop_chunk_change); chunks
    /// that are already closed are reported first.
    pub fn watch_chunks(&mut self) {
        self.ftl.subscribe_chunk_events();
    }

    /// Runs the maintenance of a device whose share of the drive belongs to a media manager; call
    /// it periodically, after [`watch_chunks`](Pblk::watch_chunks).
    ///
    /// It reports closed and erased chunks to `core`, and follows its relocation requests. It
    /// dismisses those for wear leveling, because the FTL levels wear itself. No scrub reads the
    /// journal's chunks, so a checkpoint restarts the journal as often as the media manager reads a
    /// chunk.
    pub fn run_maintenance(&mut self, now: Nanos, core: &mut MediaManager, id: TargetId) {
        let reads = core.scrub_config().filter(|scrub| scrub.sectors_per_sec > 0);
        if let Some(scrub) = reads.filter(|_| now >= self.maintenance.next_checkpoint) {
            self.maintenance.next_checkpoint = now + scrub.repeat_after.max(Nanos(1));
            self.checkpoint();
        }
        while let Some(change) = self.pop_chunk_change() {
            match change {
                ChunkEvent::Closed { chunk, sectors } => {
                    core.on_chunk_closed(now, id, chunk.get(), sectors)
                }
                ChunkEvent::Emptied { chunk } => core.on_chunk_erased(chunk.get()),
            }
        }
        let advice: Vec<RelocationRequest> = core.recommendations(id).collect();
        for advice in advice {
            if matches!(advice.reason, RelocationReason::ColdOnLowWear { .. }) {
                core.dismiss(advice.chunk);
            } else {
                self.on_relocation_request(&advice);
            }
        }
    }

    /// Forwards an event about the superblock to its maintainer. Returns whether the event concerns
    /// the superblock.
    fn forward_superblock_event(&mut self, chunk: ChunkId, event: &MediaEvent) -> bool {
        let shape = self.ftl.geometry();
        let (pu, wide) = (shape.pu_of(chunk), event.scope == ChunkNotificationScope::Pu);
        let mut on_pu = shape.chunks_on(pu);
        let heard = event.kind != ChunkNotificationKind::ErrorRateMedium
            || self.maintenance.scrubber.is_some();
        let Some(keeper) = self.maintenance.superblock.as_mut().filter(|_| heard) else {
            return false;
        };
        let is = if wide { on_pu.any(|c| keeper.contains(c)) } else { keeper.contains(chunk) };
        if is {
            keeper.report_error();
        }
        is
    }

    fn retire_pu(&mut self, chunk: ChunkId) -> bool {
        let shape = *self.ftl.geometry();
        let on_pu = shape.chunks_on(shape.pu_of(chunk));
        let gone = on_pu.map(|c| u32::from(self.ftl.chunk_offline(c)));
        gone.sum::<u32>() > 0
    }

    /// Handles a report that a chunk is hard to read. Returns whether it has an effect.
    fn report_read_error(&mut self, chunk: ChunkId, reason: RelocationReason) -> bool {
        if let Some(patrol) = &mut self.maintenance.scrubber {
            patrol.report_error(chunk, reason);
            return true;
        }
        let moves = self.ftl.refresh(chunk);
        self.maintenance.stats.relocations += u64::from(moves);
        moves
    }

    /// Handles the available media events and advances the scrub. Returns whether the FTL has
    /// operations to start.
    #[inline]
    pub(super) fn step_maintenance(&mut self, now: Nanos) -> bool {
        if !self.maintenance.active {
            return false;
        }
        self.poll_events();
        if let Some(keeper) = &mut self.maintenance.superblock
            && keeper.is_due(now)
        {
            keeper.poll(now, &mut self.flash);
        }
        let kick = std::mem::take(&mut self.kick);
        let Some(patrol) = &mut self.maintenance.scrubber else { return kick };
        patrol.poll(now, &mut self.ftl, &mut self.flash) | kick
    }

    fn poll_events(&mut self) {
        while !self.maintenance.routed
            && let Some(event) = self.next_event()
        {
            self.on_media_event(&event);
        }
    }

    /// Returns the next media event of the drive, if the device is subscribed.
    pub(super) fn next_event(&mut self) -> Option<MediaEvent> {
        let controller = self.maintenance.controller.as_mut()?;
        // A refusal ends the subscription, and with it the counters of the subscription.
        let (lost, malformed) = controller.dropped_events();
        match controller.poll_events() {
            Ok(event) => event,
            Err(_) => {
                self.maintenance.stats.lost_events += lost + malformed;
                self.maintenance.stats.subscription_refused = true;
                None
            }
        }
    }

    /// Leaves media events to the caller of [`next_event`](Pblk::next_event), because some of them
    /// concern other shards.
    pub(super) fn route_events(&mut self) {
        self.maintenance.routed = true;
    }

    /// Returns whether the device is subscribed to media events of its drive.
    #[inline]
    pub(super) fn is_subscribed(&self) -> bool {
        self.maintenance.controller.is_some()
    }

    /// Returns the index of the chunk that an address is in.
    pub(super) fn chunk_at(&self, address: Address) -> Option<ChunkId> {
        self.flash.locate(address).map(|(chunk, _)| chunk)
    }
}
