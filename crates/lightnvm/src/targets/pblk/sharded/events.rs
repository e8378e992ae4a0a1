//! What the drive tells of its media (OC section 3, chunk notifications), and patrols: each shard looks
//! after its own flash.
//!
//! A drive has one admin queue. The core that has it hears what is of every shard, and passes it on
//! through the rings: a chunk has one owner; of a die every shard hears that has chunks on it.
//! Guarantee: nothing is taken from the drive that cannot be passed on, so that all that the drive
//! keeps for its host arrives, but for a core that has gone.

use driver::{ControllerHandle, DriverError, MediaEvent};
use nvme::ChunkNotificationScope;

use super::super::PblkHealth;
use super::core_channel::CoreChannel;
use super::handle::ShardHandle;
use super::superblock::SuperblockHealth;
use crate::subsystem::ScrubConfig;

/// The shard that looks after the label.
pub(super) const SUPERBLOCK_SHARD: u32 = 0;

impl ShardHandle {
    /// Listens to what the drive tells of its media, for all shards, from its admin queue, which is this
    /// end's from now on. One of the ends is enough.
    ///
    /// # Errors
    /// As [`ControllerHandle::subscribe_events`]; the controller comes back.
    pub fn subscribe_events(
        &mut self,
        controller: Box<ControllerHandle>,
    ) -> Result<(), (Box<ControllerHandle>, DriverError)> {
        self.pblk.route_events();
        self.pblk.subscribe_events(controller)
    }

    /// Gives the admin queue back, if this end has it.
    pub fn take_controller(&mut self) -> Option<ControllerHandle> {
        self.pblk.take_controller()
    }

    /// Begins to look after the cold data of this core's own shard, as
    /// [`Pblk::set_scrub`](crate::Pblk::set_scrub): the rate is the shard's.
    pub fn set_scrub(&mut self, config: ScrubConfig) {
        self.pblk.set_scrub(config);
        self.progressed = true;
    }

    /// How the label of the device is, at the end that looks after it: that of the first shard, as long as
    /// it [patrols](ShardHandle::set_scrub) or is told of media; of a drive that keeps nothing there is none.
    pub fn superblock_health(&self) -> Option<SuperblockHealth> {
        self.pblk.superblock_health()
    }

    /// What this core's own shard has heard of its media, and done about it; what the drive has lost, at
    /// the end that listens.
    pub fn health(&self) -> PblkHealth {
        self.pblk.health()
    }

    /// The drive has noticed something about its media: tells the shard whose business it is. With
    /// [`watch`](ShardHandle::subscribe_events) the device hears it itself.
    pub fn on_media_event(&mut self, event: &MediaEvent) {
        let chunk = self.pblk.chunk_at(event.address);
        let owner = chunk.and_then(|chunk| self.shard_map.shard_of(chunk));
        if event.scope == ChunkNotificationScope::Pu && chunk.is_some() {
            let pu = chunk.map(|chunk| self.shard_map.pu_of(chunk));
            for shard in 0..self.shards() {
                let has = |pu| {
                    let label = shard == SUPERBLOCK_SHARD && self.shard_map.has_superblock_on(pu);
                    label || self.shard_map.has_chunks_on(shard, pu)
                };
                if pu.is_some_and(has) {
                    self.forward_event(shard, event);
                }
            }
            return;
        }
        let of_label = chunk.is_some_and(|chunk| self.shard_map.is_superblock(chunk));
        // What is nobody's, or nowhere, is counted here.
        self.forward_event(
            owner.unwrap_or(if of_label { SUPERBLOCK_SHARD } else { self.shard }),
            event,
        );
    }

    fn forward_event(&mut self, shard: u32, event: &MediaEvent) {
        if shard == self.shard {
            self.pblk.on_media_event(event);
        } else if let Some(link) = self.channels.get_mut(shard as usize).and_then(Option::as_mut) {
            link.send_event(*event);
        }
        self.progressed = true;
    }

    /// Takes what the drive has to tell, as far as it can be passed on.
    pub(super) fn poll_events(&mut self) -> bool {
        let mut heard = false;
        while self.channels.iter().flatten().all(CoreChannel::can_send_event)
            && let Some(event) = self.pblk.next_event()
        {
            self.on_media_event(&event);
            heard = true;
        }
        heard
    }
}
