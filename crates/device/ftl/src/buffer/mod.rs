//! The write buffer: rings of write units, their sequence numbers, and units that are redispatched.

pub(crate) mod redispatch;
pub(crate) mod sequence;
pub(crate) mod write_ring;

use crate::env::Env;
use redispatch::RedispatchTracker;
use sequence::WriteSequencer;
use write_ring::WriteRing;

/// The rings of the host and of garbage collection, and the sequence numbers of their units.
#[derive(Clone, Debug)]
pub(crate) struct WriteBuffer {
    pub(crate) rings: [WriteRing; 2],
    pub(crate) sequencer: WriteSequencer,
    pub(crate) redispatch: RedispatchTracker,
}

impl WriteBuffer {
    /// An empty buffer, whose first unit gets the sequence number `first_seq`.
    pub(crate) fn new(env: &Env, first_seq: u64) -> WriteBuffer {
        let host = WriteRing::new(&env.geometry, env.plan.host_buffer_units, 0);
        let gc = WriteRing::new(&env.geometry, env.plan.gc_buffer_units, host.capacity());
        WriteBuffer {
            rings: [host, gc],
            sequencer: WriteSequencer::starting_at(first_seq),
            redispatch: RedispatchTracker::default(),
        }
    }

    /// Slots of both rings.
    pub(crate) fn capacity(&self) -> u32 {
        self.rings.iter().map(WriteRing::capacity).sum()
    }
}
