//! [`FlushBarriers`]: writes without FUA, and flushes that make them durable.

use crate::invariants::{VolumeViolation, require};
use crate::parts::barrier_order::BarrierOrder;
use crate::parts::page_cache::FileBlock;

/// Sequence numbers of writes without FUA, and the flush in flight.
#[derive(Debug)]
pub(crate) struct FlushBarriers {
    /// The device has a volatile cache; otherwise completed writes are durable.
    is_volatile: bool,
    /// The last completed write.
    write_seq: u64,
    /// The last durable write.
    flushed_seq: u64,
    /// The last write that must become durable.
    requested_seq: u64,
    in_flight: bool,
    /// The ordered barriers of requests.
    pub(crate) ordered: BarrierOrder,
    /// Memory for lists of blocks that a barrier covers.
    pub(crate) barrier_blocks: Vec<FileBlock>,
    /// Blocks that a transaction would have to journal after the last search for new ones.
    pub(crate) searched_blocks: usize,
}

impl FlushBarriers {
    pub(crate) fn new(is_volatile: bool) -> FlushBarriers {
        FlushBarriers {
            is_volatile,
            write_seq: 0,
            flushed_seq: 0,
            requested_seq: 0,
            in_flight: false,
            ordered: BarrierOrder::default(),
            barrier_blocks: Vec::new(),
            searched_blocks: 0,
        }
    }

    /// Returns whether a write is durable only after a flush, or with FUA.
    pub(crate) fn is_volatile(&self) -> bool {
        self.is_volatile
    }

    /// Returns the number of the last completed write.
    pub(crate) fn write_seq(&self) -> u64 {
        self.write_seq
    }

    /// Numbers a completed write without FUA.
    pub(crate) fn record_write(&mut self) -> u64 {
        self.write_seq += u64::from(self.is_volatile);
        self.write_seq
    }

    /// Returns whether a write is durable.
    pub(crate) fn is_flushed(&self, write_seq: u64) -> bool {
        write_seq <= self.flushed_seq
    }

    /// Returns whether a write is durable; if not, requests a flush.
    pub(crate) fn require_flushed(&mut self, write_seq: u64) -> bool {
        let is_flushed = self.is_flushed(write_seq);
        if !is_flushed {
            self.requested_seq = self.requested_seq.max(write_seq);
        }
        is_flushed
    }

    /// Begins a flush if one is requested and none in flight. Returns the last write that it
    /// covers.
    pub(crate) fn begin_flush(&mut self) -> Option<u64> {
        let is_due = self.requested_seq > self.flushed_seq && !self.in_flight;
        self.in_flight |= is_due;
        is_due.then_some(self.write_seq)
    }

    /// Ends the flush in flight; `write_seq` is the last write that became durable.
    pub(crate) fn end_flush(&mut self, write_seq: Option<u64>) {
        assert!(self.in_flight, "barriers: completion of a flush, and none is in flight");
        self.in_flight = false;
        self.flushed_seq = self.flushed_seq.max(write_seq.unwrap_or(0));
    }

    /// Returns whether a flush is in flight.
    pub(crate) fn is_flushing(&self) -> bool {
        self.in_flight
    }

    pub(crate) fn check_invariants(&self) -> Result<(), VolumeViolation> {
        self.ordered.check_invariants()?;
        for (name, seq) in [("flushed", self.flushed_seq), ("requested", self.requested_seq)] {
            require!(
                seq <= self.write_seq,
                Barriers,
                "a flush covers completed writes",
                format_args!("the last {name} write"),
                self.write_seq,
                seq
            );
        }
        Ok(())
    }

    #[cfg(test)]
    pub(crate) fn break_flushed(&mut self) {
        self.flushed_seq = self.write_seq + 1;
    }
}
