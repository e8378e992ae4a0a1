//! Durability: flushes, trims, checkpoints, lost sectors, and the journal.

pub(crate) mod barriers;
pub(crate) mod checkpoint;
pub(crate) mod device_l2p;
pub(crate) mod flush;
pub mod journal;
pub(crate) mod loss;
pub(crate) mod snapshot;
pub(crate) mod trims;

use crate::env::Env;
use barriers::BarrierQueue;
use checkpoint::Checkpoint;
use device_l2p::DeviceL2p;
use journal::Journal;
use trims::TrimLog;

/// What makes data and trims durable.
#[derive(Clone, Debug)]
pub(crate) struct Durability {
    pub(crate) journal: Journal,
    pub(crate) checkpoint: Checkpoint,
    /// Present if the drive keeps the map.
    pub(crate) device_l2p: Option<Box<DeviceL2p>>,
    pub(crate) barriers: BarrierQueue,
    pub(crate) trims: TrimLog,
}

impl Durability {
    /// Nothing to be made durable; all units with sequence numbers below `base_seq` are in translation
    /// pages.
    pub(crate) fn new(env: &Env, journal: Journal, base_seq: u64) -> Durability {
        Durability {
            journal,
            checkpoint: Checkpoint::new(&env.plan, &env.config, base_seq),
            device_l2p: None,
            barriers: BarrierQueue::default(),
            trims: TrimLog::new(env.plan.map_pages),
        }
    }

    /// Whether a translation page can go without being written.
    pub(crate) fn is_page_clean(&self, page: u32) -> bool {
        !self.checkpoint.is_dirty(page) && self.trims.is_written(page)
    }
}
