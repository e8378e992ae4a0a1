//! What the drive tells of its media (OC section 3, chunk notifications), and patrols: each shard looks
//! after its own flash.
//!
//! A drive has one admin queue. The core that has it hears what is of every shard, and passes it on
//! through the rings: a chunk has one owner; of a die every shard hears that has chunks on it.
//! Guarantee: nothing is taken from the drive that cannot be passed on, so that all that the drive
//! keeps for its host arrives, but for a core that has gone.

use driver::{Controller, DriverError, MediaEvent};
use nvme::MediaScope;

use super::super::PblkHealth;
use super::handle::ShardHandle;
use super::label::LabelHealth;
use super::links::Link;
use crate::core::ScrubConfig;

/// The shard that looks after the label.
pub(super) const LABEL_SHARD: u32 = 0;

impl ShardHandle {
    /// Listens to what the drive tells of its media, for all shards, from its admin queue, which is this
    /// end's from now on. One of the ends is enough.
    ///
    /// # Errors
    /// As [`Controller::watch_events`]; the controller comes back.
    pub fn watch(
        &mut self,
        controller: Box<Controller>,
    ) -> Result<(), (Box<Controller>, DriverError)> {
        self.pblk.route_events();
        self.pblk.watch(controller)
    }

    /// Gives the admin queue back, if this end has it.
    pub fn take_controller(&mut self) -> Option<Controller> {
        self.pblk.take_controller()
    }

    /// Begins to look after the cold data of this core's own shard, as
    /// [`Pblk::patrol`](crate::Pblk::patrol): the rate is the shard's.
    pub fn patrol(&mut self, config: ScrubConfig) {
        self.pblk.patrol(config);
        self.moved = true;
    }

    /// How the label of the device is, at the end that looks after it: that of the first shard, as long as
    /// it [patrols](ShardHandle::patrol) or is told of media; of a drive that keeps nothing there is none.
    pub fn label_health(&self) -> Option<LabelHealth> {
        self.pblk.label_health()
    }

    /// What this core's own shard has heard of its media, and done about it; what the drive has lost, at
    /// the end that listens.
    pub fn health(&self) -> PblkHealth {
        self.pblk.health()
    }

    /// The drive has noticed something about its media: tells the shard whose business it is. With
    /// [`watch`](ShardHandle::watch) the device hears it itself.
    pub fn media_event(&mut self, event: &MediaEvent) {
        let chunk = self.pblk.chunk_at(event.address);
        let owner = chunk.and_then(|chunk| self.share.shard_of(chunk));
        if event.scope == MediaScope::Pu && chunk.is_some() {
            let pu = chunk.map(|chunk| self.share.pu_of(chunk));
            for shard in 0..self.shards() {
                let has = |pu| {
                    let label = shard == LABEL_SHARD && self.share.has_label_on(pu);
                    label || self.share.has_chunks_on(shard, pu)
                };
                if pu.is_some_and(has) {
                    self.tell(shard, event);
                }
            }
            return;
        }
        let of_label = chunk.is_some_and(|chunk| self.share.is_label(chunk));
        // What is nobody's, or nowhere, is counted here.
        self.tell(owner.unwrap_or(if of_label { LABEL_SHARD } else { self.shard }), event);
    }

    fn tell(&mut self, shard: u32, event: &MediaEvent) {
        if shard == self.shard {
            self.pblk.media_event(event);
        } else if let Some(link) = self.links.get_mut(shard as usize).and_then(Option::as_mut) {
            link.tell_event(*event);
        }
        self.moved = true;
    }

    /// Takes what the drive has to tell, as far as it can be passed on.
    pub(super) fn listen(&mut self) -> bool {
        let mut heard = false;
        while self.links.iter().flatten().all(Link::has_room_for_event)
            && let Some(event) = self.pblk.next_event()
        {
            self.media_event(&event);
            heard = true;
        }
        heard
    }
}
