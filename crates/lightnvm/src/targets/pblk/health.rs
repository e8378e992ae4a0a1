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
use driver::{Controller, DriverError, MediaEvent};
use ftl::ChunkChange;
use nvme::{Address, MediaNotice, MediaScope};

use super::Pblk;
use super::patrol::Patrol;
use super::sharded::label::{Keeper, LabelHealth};
use crate::core::{MoveChunk, Reason, ScrubConfig, ScrubStats, Subsystem, TargetId};
use crate::vector::VectorEnded;

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
    pub deaf: bool,
    /// Lines that the layer was asked to move because of events or advice, the patrol's included.
    pub moves: u64,
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
            deaf: self.deaf || other.deaf,
            moves: self.moves + other.moves,
            scrub: self.scrub.plus(scrub),
        }
    }
}

#[derive(Debug, Default)]
pub(super) struct Health {
    controller: Option<Box<Controller>>,
    patrol: Option<Box<Patrol>>,
    /// Looks after the label of a device in shards.
    keeper: Option<Box<Keeper>>,
    /// Whether any of these may have something to do.
    active: bool,
    /// When the journal is written anew, for a core that looks after the device's chunks.
    next_journal: Nanos,
    /// Somebody else takes what is heard.
    routed: bool,
    stats: PblkHealth,
}

impl Health {
    /// Whether it looks after more than what it hears of.
    pub(super) fn has_duties(&self) -> bool {
        self.patrol.is_some() || self.keeper.is_some() || self.routed
    }

    /// The counts since the device was opened.
    pub(super) fn stats(&self) -> PblkHealth {
        self.stats
    }

    /// Takes over when what is to be done is due; what it hears by stays.
    pub(super) fn adopt(&mut self, other: &Health) {
        (self.active, self.next_journal) = (other.active, other.next_journal);
    }

    /// A read of the patrol has ended.
    pub(super) fn scrubbed(&mut self, failed: u64, high_ecc: bool) {
        if let Some(patrol) = &mut self.patrol {
            patrol.scrubbed(failed, high_ecc);
        }
    }

    /// A command on the label has ended.
    pub(super) fn label_done(&mut self, ended: &VectorEnded) {
        if let Some(keeper) = &mut self.keeper {
            keeper.done(ended);
        }
    }

    #[inline]
    pub(super) fn deadline(&self) -> Nanos {
        if !self.active {
            return Nanos::MAX;
        }
        let label = self.keeper.as_ref().map_or(Nanos::MAX, |k| k.deadline());
        self.patrol.as_ref().map_or(Nanos::MAX, |p| p.deadline()).min(label)
    }

    /// Something that looks after the media has come or gone.
    fn changed(&mut self) {
        let Health { controller, patrol, keeper, .. } = self;
        self.active = controller.is_some() || patrol.is_some() || keeper.is_some();
    }
}

impl Pblk {
    /// Listens to what the drive tells of its media, from its admin queue, which is the device's from
    /// now on: each [`poll`](clock::Component::poll) takes what there is.
    ///
    /// # Errors
    /// As [`Controller::watch_events`]; the controller comes back.
    pub fn watch(
        &mut self,
        mut controller: Box<Controller>,
    ) -> Result<(), (Box<Controller>, DriverError)> {
        match controller.watch_events() {
            Ok(()) => {
                self.health.controller = Some(controller);
                self.health.changed();
                Ok(())
            }
            Err(error) => Err((controller, error)),
        }
    }

    /// Gives the admin queue back, if the device has it.
    pub fn take_controller(&mut self) -> Option<Controller> {
        let controller = self.health.controller.take();
        self.health.changed();
        controller.map(|c| *c)
    }

    /// Begins to read chunks that nobody writes, as `config` says, and to move what is hard to read, no
    /// faster than it is read; wear is levelled by the translation layer
    /// ([`ftl::FtlConfig::static_wear`]). A rate of 0 ends it.
    pub fn patrol(&mut self, config: ScrubConfig) {
        let wanted = config.sectors_per_sec > 0;
        let sectors_max = self.flash.sectors_max();
        self.health.patrol =
            wanted.then(|| Box::new(Patrol::new(config, &mut self.ftl, sectors_max)));
        if let Some(keeper) = &mut self.health.keeper {
            keeper.patrol(if wanted { config.repeat_after } else { Nanos::MAX });
        }
        self.health.changed();
        self.taken = true;
    }

    /// Looks after the label of the device that this is a shard of.
    pub(super) fn keep_label(&mut self, keeper: Keeper) {
        self.health.keeper = Some(Box::new(keeper));
        self.health.changed();
    }

    /// How the label is, if this shard looks after it.
    pub(super) fn label_health(&self) -> Option<LabelHealth> {
        self.health.keeper.as_ref().map(|keeper| keeper.health())
    }

    /// What was heard of the media, and done about it.
    pub fn health(&self) -> PblkHealth {
        let Health { controller, patrol, stats, .. } = &self.health;
        let (lost, malformed) = controller.as_ref().map_or((0, 0), |c| c.lost_events());
        PblkHealth {
            lost_events: stats.lost_events + lost + malformed,
            moves: stats.moves + patrol.as_ref().map_or(0, |p| p.moves),
            scrub: patrol.as_ref().map_or_else(ScrubStats::default, |p| *p.stats()),
            ..*stats
        }
    }

    /// The drive has noticed something about its media. Whoever has the admin queue hands it on; with
    /// [`watch`](Pblk::watch) the device hears it itself.
    pub fn media_event(&mut self, event: &MediaEvent) {
        self.health.stats.events += 1;
        self.kick = true;
        self.taken = true;
        let done = match self.flash.find(event.address) {
            None => false,
            Some((chunk, sector)) if self.is_of_label(chunk, event) => {
                // A die has chunks of others, too.
                if (event.scope, event.kind) == (MediaScope::Pu, MediaNotice::Unrecoverable) {
                    self.retire_pu(chunk);
                } else if event.scope == MediaScope::Pu {
                    self.hard(chunk, Reason::HighEcc { sector });
                }
                true
            }
            Some((chunk, sector)) => match (event.scope, event.kind) {
                (MediaScope::Pu, MediaNotice::Unrecoverable) => self.retire_pu(chunk),
                (MediaScope::Chunk, MediaNotice::Unrecoverable) => self.ftl.retire(chunk),
                (MediaScope::Sector, MediaNotice::Unrecoverable) => {
                    self.hard(chunk, Reason::Unreadable { sector, sectors: event.sectors })
                }
                (_, MediaNotice::ErrorRateHigh) => self.hard(chunk, Reason::HighEcc { sector }),
                (_, MediaNotice::ErrorRateMedium) if self.health.patrol.is_some() => {
                    self.hard(chunk, Reason::HighEcc { sector })
                }
                _ => false,
            },
        };
        self.health.stats.ignored += u64::from(!done);
    }

    /// The core advises to move a chunk, for a target that has its share of a drive from a
    /// [`Subsystem`](crate::core::Subsystem). Returns whether anything will be moved for it.
    pub fn advised(&mut self, advice: &MoveChunk) -> bool {
        self.kick = true;
        self.taken = true;
        let moves = self.ftl.refresh(advice.chunk);
        self.health.stats.moves += u64::from(moves);
        moves
    }

    /// What has become of chunks, for a core that looks after them; in order. Told from the first call
    /// on, and not to a device that has a patrol.
    pub fn take_change(&mut self) -> Option<ChunkChange> {
        if self.health.patrol.is_some() {
            return None;
        }
        self.ftl.take_change()
    }

    /// Has [`take_change`](Pblk::take_change) tell of chunks from here on, closed ones first.
    pub fn watch_chunks(&mut self) {
        self.ftl.watch_chunks();
    }

    /// Lets a core that the device has its share of a drive from look after it: tells it which chunks are
    /// closed and emptied, and follows its advice, but for what is about wear, which the translation
    /// layer levels itself; the journal, whose chunks nobody reads, is begun anew as often as the core
    /// reads a chunk. To be called now and then, after [`watch_chunks`](Pblk::watch_chunks).
    pub fn tend(&mut self, now: Nanos, core: &mut Subsystem, id: TargetId) {
        let reads = core.scrub_config().filter(|scrub| scrub.sectors_per_sec > 0);
        if let Some(scrub) = reads.filter(|_| now >= self.health.next_journal) {
            self.health.next_journal = now + scrub.repeat_after.max(Nanos(1));
            self.checkpoint();
        }
        while let Some(change) = self.take_change() {
            match change {
                ChunkChange::Closed { chunk, sectors } => core.closed(now, id, chunk, sectors),
                ChunkChange::Emptied { chunk } => core.emptied(chunk),
            }
        }
        let advice: Vec<MoveChunk> = core.advice(id).collect();
        for advice in advice {
            if matches!(advice.reason, Reason::ColdOnYoung { .. }) {
                core.dismiss(advice.chunk);
            } else {
                self.advised(&advice);
            }
        }
    }

    /// Whether an event is about the label, which is looked at then.
    fn is_of_label(&mut self, chunk: u32, event: &MediaEvent) -> bool {
        let shape = self.ftl.shape();
        let (pu, wide) = (shape.pu_of(chunk), event.scope == MediaScope::Pu);
        let mut on_pu = pu * shape.chunks..(pu + 1) * shape.chunks;
        let heard = event.kind != MediaNotice::ErrorRateMedium || self.health.patrol.is_some();
        let Some(keeper) = self.health.keeper.as_mut().filter(|_| heard) else { return false };
        let is = if wide { on_pu.any(|c| keeper.has(c)) } else { keeper.has(chunk) };
        if is {
            keeper.suspect();
        }
        is
    }

    fn retire_pu(&mut self, chunk: u32) -> bool {
        let shape = *self.ftl.shape();
        let first = shape.pu_of(chunk) * shape.chunks;
        let gone = (first..first + shape.chunks).map(|c| u32::from(self.ftl.retire(c)));
        gone.sum::<u32>() > 0
    }

    /// A chunk is hard to read.
    fn hard(&mut self, chunk: u32, reason: Reason) -> bool {
        if let Some(patrol) = &mut self.health.patrol {
            patrol.suspect(chunk, reason);
            return true;
        }
        let moves = self.ftl.refresh(chunk);
        self.health.stats.moves += u64::from(moves);
        moves
    }

    /// Hears what there is to hear, and goes on with the patrol. Returns whether the layer has
    /// something to do.
    #[inline]
    pub(super) fn look_after(&mut self, now: Nanos) -> bool {
        if !self.health.active {
            return false;
        }
        self.listen();
        if let Some(keeper) = &mut self.health.keeper
            && keeper.is_due(now)
        {
            keeper.poll(now, &mut self.flash);
        }
        let kick = std::mem::take(&mut self.kick);
        let Some(patrol) = &mut self.health.patrol else { return kick };
        patrol.poll(now, &mut self.ftl, &mut self.flash) | kick
    }

    fn listen(&mut self) {
        while !self.health.routed
            && let Some(event) = self.next_event()
        {
            self.media_event(&event);
        }
    }

    /// The next event that the drive tells, if the device listens.
    pub(super) fn next_event(&mut self) -> Option<MediaEvent> {
        let controller = self.health.controller.as_mut()?;
        // A refusal ends the watch, and with it its counters.
        let (lost, malformed) = controller.lost_events();
        match controller.poll_events() {
            Ok(event) => event,
            Err(_) => {
                self.health.stats.lost_events += lost + malformed;
                self.health.stats.deaf = true;
                None
            }
        }
    }

    /// Leaves what is heard to who takes it ([`next_event`](Pblk::next_event)): not all of it is this
    /// device's.
    pub(super) fn route_events(&mut self) {
        self.health.routed = true;
    }

    /// Whether the device listens to its drive.
    #[inline]
    pub(super) fn listens(&self) -> bool {
        self.health.controller.is_some()
    }

    /// The flat number of the chunk that an address is in.
    pub(super) fn chunk_at(&self, address: Address) -> Option<u32> {
        self.flash.find(address).map(|(chunk, _)| chunk)
    }
}
