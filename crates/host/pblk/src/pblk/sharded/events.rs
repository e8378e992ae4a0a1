//! Media events of the drive [OC20 §3] and scrubs of a sharded device. Each shard maintains its own
//! flash.
//!
//! A drive has one admin queue. The core that owns it receives the events of all shards and
//! forwards them through the rings: a chunk event goes to the chunk's owner, and a die event to
//! every shard that has chunks on the die.
//!
//! Invariant: an event is taken from the drive only if it can be forwarded. Every event that the
//! drive keeps for its host therefore arrives, unless the core that it concerns is gone.

use driver::{ControllerHandle, DriverError, MediaEvent};
use nvme::ChunkNotificationScope;

use super::super::PblkHealth;
use super::core_channel::CoreChannel;
use super::handle::ShardHandle;
use super::superblock::SuperblockHealth;
use lnvm::ScrubConfig;

/// The shard that maintains the superblock.
pub(super) const SUPERBLOCK_SHARD: u32 = 0;

impl ShardHandle {
    /// Subscribes to media events of the drive for all shards. This handle owns the admin queue
    /// from now on. One handle per device is enough.
    ///
    /// # Errors
    /// As [`ControllerHandle::subscribe_events`]; the error returns the controller.
    pub fn subscribe_events(
        &mut self,
        controller: Box<ControllerHandle>,
    ) -> Result<(), (Box<ControllerHandle>, DriverError)> {
        self.pblk.route_events();
        self.pblk.subscribe_events(controller)
    }

    /// Returns the admin queue, if this handle has it.
    pub fn take_controller(&mut self) -> Option<ControllerHandle> {
        self.pblk.take_controller()
    }

    /// Starts a scrub of this core's own shard, see [`Pblk::set_scrub`](crate::Pblk::set_scrub).
    /// The rate applies to the shard.
    pub fn set_scrub(&mut self, config: ScrubConfig) {
        self.pblk.set_scrub(config);
        self.progressed = true;
    }

    /// Returns the health of the superblock, at the handle of the first shard, which maintains it
    /// during [scrubs](ShardHandle::set_scrub) and on media events. A drive that does not store
    /// contents has no superblock.
    pub fn superblock_health(&self) -> Option<SuperblockHealth> {
        self.pblk.superblock_health()
    }

    /// Returns the media events of this core's own shard and its reactions. The handle that is
    /// subscribed also counts the events that the drive lost.
    pub fn health(&self) -> PblkHealth {
        self.pblk.health()
    }

    /// Forwards a media event to the shards that it concerns. After
    /// [`subscribe_events`](ShardHandle::subscribe_events) the device takes events itself.
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
        // This shard counts events of chunks without an owner and of invalid addresses.
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

    /// Takes events from the drive as long as they can be forwarded. Returns whether there were
    /// any.
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
