//! [`Health`]: what pblk does about what the drive tells of its media (OC section 3, chunk
//! notifications), and about data that nobody writes.
//!
//! | what is heard | what is done |
//! |---|---|
//! | a chunk, or a die, has gone | no more writes to it; what is in the write buffer is written again; a checkpoint; its lines are moved slowly |
//! | a sector is lost | its line is moved, and the sector stays lost alone |
//! | reads needed repetitions | the line is moved |
//! | reads had many bit errors | with a patrol the line is moved, else nothing: on a worn drive all data is so |
//!
//! What a drive tells can be wrong: addresses that it does not have are counted and left alone.

use clock::Nanos;
use driver::{ControllerHandle, DriverError, MediaEvent};
use ftl::ChunkEvent;
use nvme::{Address, ChunkNotificationKind, ChunkNotificationScope};

use super::Pblk;
use super::scrub::PblkScrubber;
use super::sharded::superblock::{SuperblockHealth, SuperblockMaintainer};
use crate::subsystem::{
    MediaManager, RelocationReason, RelocationRequest, ScrubConfig, ScrubStats, TargetId,
};
use crate::vector::VectorCompletion;

/// Media events that the drive reported and what pblk did about them, since the device was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PblkHealth {
    /// Media events.
    pub events: u64,
    /// Of those, such that nothing was done about.
    pub ignored: u64,
    /// Media events that the drive overwrote before they were read, or that mean nothing.
    pub lost_events: u64,
    /// Whether the drive has refused to tell more.
    pub subscription_refused: bool,
    /// Lines that the layer was asked to move because of events or advice, the patrol's included.
    pub relocations: u64,
    /// What the patrol has read.
    pub scrub: ScrubStats,
}

impl PblkHealth {
    /// Of two devices together.
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
    /// Looks after the label of a device in shards.
    superblock: Option<Box<SuperblockMaintainer>>,
    /// Whether any of these may have something to do.
    active: bool,
    /// When the journal is written anew, for a core that looks after the device's chunks.
    next_checkpoint: Nanos,
    /// Somebody else takes what is heard.
    routed: bool,
    stats: PblkHealth,
}

impl Maintenance {
    /// Whether it looks after more than what it hears of.
    pub(super) fn has_tasks(&self) -> bool {
        self.scrubber.is_some() || self.superblock.is_some() || self.routed
    }

    /// The counts since the device was opened.
    pub(super) fn stats(&self) -> PblkHealth {
        self.stats
    }

    /// Takes over when what is to be done is due; what it hears by stays.
    pub(super) fn clone_state_from(&mut self, other: &Maintenance) {
        (self.active, self.next_checkpoint) = (other.active, other.next_checkpoint);
    }

    /// A read of the patrol has ended.
    pub(super) fn on_scrub_read_complete(&mut self, failed: u64, high_ecc: bool) {
        if let Some(patrol) = &mut self.scrubber {
            patrol.on_read_complete(failed, high_ecc);
        }
    }

    /// A command on the label has ended.
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

    /// Something that looks after the media has come or gone.
    fn update_active(&mut self) {
        let Maintenance { controller, scrubber: patrol, superblock: keeper, .. } = self;
        self.active = controller.is_some() || patrol.is_some() || keeper.is_some();
    }
}

impl Pblk {
    /// Listens to what the drive tells of its media, from its admin queue, which is the device's from
    /// now on: each [`poll`](clock::Component::poll) takes what there is.
    ///
    /// # Errors
    /// As [`ControllerHandle::subscribe_events`]; the controller comes back.
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

    /// Gives the admin queue back, if the device has it.
    pub fn take_controller(&mut self) -> Option<ControllerHandle> {
        let controller = self.maintenance.controller.take();
        self.maintenance.update_active();
        controller.map(|c| *c)
    }

    /// Begins to read chunks that nobody writes, as `config` says, and to move what is hard to read, no
    /// faster than it is read; wear is levelled by the translation layer
    /// ([`ftl::FtlConfig::static_wear_leveling`]). A rate of 0 ends it.
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

    /// Looks after the label of the device that this is a shard of.
    pub(super) fn set_superblock_maintainer(&mut self, keeper: SuperblockMaintainer) {
        self.maintenance.superblock = Some(Box::new(keeper));
        self.maintenance.update_active();
    }

    /// How the label is, if this shard looks after it.
    pub(super) fn superblock_health(&self) -> Option<SuperblockHealth> {
        self.maintenance.superblock.as_ref().map(|keeper| keeper.health())
    }

    /// What was heard of the media, and done about it.
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

    /// The drive has noticed something about its media. Whoever has the admin queue hands it on; with
    /// [`watch`](Pblk::subscribe_events) the device hears it itself.
    pub fn on_media_event(&mut self, event: &MediaEvent) {
        self.maintenance.stats.events += 1;
        self.kick = true;
        self.has_new_requests = true;
        let done = match self.flash.locate(event.address) {
            None => false,
            Some((chunk, sector)) if self.forward_superblock_event(chunk, event) => {
                // A die has chunks of others, too.
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

    /// The core advises to move a chunk, for a target that has its share of a drive from a
    /// [`MediaManager`](crate::core::MediaManager). Returns whether anything will be moved for it.
    pub fn on_relocation_request(&mut self, advice: &RelocationRequest) -> bool {
        self.kick = true;
        self.has_new_requests = true;
        let moves = self.ftl.refresh(advice.chunk);
        self.maintenance.stats.relocations += u64::from(moves);
        moves
    }

    /// What has become of chunks, for a core that looks after them; in order. Told from the first call
    /// on, and not to a device that has a patrol.
    pub fn pop_chunk_change(&mut self) -> Option<ChunkEvent> {
        if self.maintenance.scrubber.is_some() {
            return None;
        }
        self.ftl.pop_chunk_event()
    }

    /// Has [`pop_chunk_change`](Pblk::pop_chunk_change) tell of chunks from here on, closed ones first.
    pub fn watch_chunks(&mut self) {
        self.ftl.subscribe_chunk_events();
    }

    /// Lets a core that the device has its share of a drive from look after it: tells it which chunks are
    /// closed and emptied, and follows its advice, but for what is about wear, which the translation
    /// layer levels itself; the journal, whose chunks nobody reads, is begun anew as often as the core
    /// reads a chunk. To be called now and then, after [`watch_chunks`](Pblk::watch_chunks).
    pub fn run_maintenance(&mut self, now: Nanos, core: &mut MediaManager, id: TargetId) {
        let reads = core.scrub_config().filter(|scrub| scrub.sectors_per_sec > 0);
        if let Some(scrub) = reads.filter(|_| now >= self.maintenance.next_checkpoint) {
            self.maintenance.next_checkpoint = now + scrub.repeat_after.max(Nanos(1));
            self.checkpoint();
        }
        while let Some(change) = self.pop_chunk_change() {
            match change {
                ChunkEvent::Closed { chunk, sectors } => {
                    core.on_chunk_closed(now, id, chunk, sectors)
                }
                ChunkEvent::Emptied { chunk } => core.on_chunk_erased(chunk),
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

    /// Whether an event is about the label, which is looked at then.
    fn forward_superblock_event(&mut self, chunk: u32, event: &MediaEvent) -> bool {
        let shape = self.ftl.geometry();
        let (pu, wide) = (shape.pu_of(chunk), event.scope == ChunkNotificationScope::Pu);
        let mut on_pu = pu * shape.chunks_per_pu..(pu + 1) * shape.chunks_per_pu;
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

    fn retire_pu(&mut self, chunk: u32) -> bool {
        let shape = *self.ftl.geometry();
        let first = shape.pu_of(chunk) * shape.chunks_per_pu;
        let gone =
            (first..first + shape.chunks_per_pu).map(|c| u32::from(self.ftl.chunk_offline(c)));
        gone.sum::<u32>() > 0
    }

    /// A chunk is hard to read.
    fn report_read_error(&mut self, chunk: u32, reason: RelocationReason) -> bool {
        if let Some(patrol) = &mut self.maintenance.scrubber {
            patrol.report_error(chunk, reason);
            return true;
        }
        let moves = self.ftl.refresh(chunk);
        self.maintenance.stats.relocations += u64::from(moves);
        moves
    }

    /// Hears what there is to hear, and goes on with the patrol. Returns whether the layer has
    /// something to do.
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

    /// The next event that the drive tells, if the device listens.
    pub(super) fn next_event(&mut self) -> Option<MediaEvent> {
        let controller = self.maintenance.controller.as_mut()?;
        // A refusal ends the watch, and with it its counters.
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

    /// Leaves what is heard to who takes it ([`next_event`](Pblk::next_event)): not all of it is this
    /// device's.
    pub(super) fn route_events(&mut self) {
        self.maintenance.routed = true;
    }

    /// Whether the device listens to its drive.
    #[inline]
    pub(super) fn is_subscribed(&self) -> bool {
        self.maintenance.controller.is_some()
    }

    /// The flat number of the chunk that an address is in.
    pub(super) fn chunk_at(&self, address: Address) -> Option<u32> {
        self.flash.locate(address).map(|(chunk, _)| chunk)
    }
}
