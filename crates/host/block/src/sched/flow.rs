//! [`Flow`]: the requests of one submitter or group, waiting and in the device, and its virtual
//! time.
//!
//! Tags are those of start-time fair queueing \[SFQ96\]. The start tag of a request is the last
//! finish tag of its flow, or the virtual time if the flow had no waiting request. The finish tag
//! is the start tag plus the request's cost divided by the flow's weight.

use super::fifo::FifoQueue;
use crate::StagedRequest;

/// A virtual time. It never wraps: a cost is less than 2^33 units of 2^20.
pub(super) type VirtualTime = u128;

/// Units of virtual time per unit of cost, at weight 1. At the largest weight the rounding error is
/// far below a thousandth.
const UNITS_PER_COST: VirtualTime = 1 << 20;

/// Returns the virtual time of `cost` at `weight`.
#[inline]
pub(super) fn virtual_time(cost: u64, weight: u16) -> VirtualTime {
    VirtualTime::from(cost) * UNITS_PER_COST / VirtualTime::from(weight.max(1))
}

/// The requests of one submitter or group.
#[derive(Debug)]
pub(super) struct Flow {
    pub(super) waiting: FifoQueue,
    pub(super) weight: u16,
    /// The start tag of the first waiting request; without one, the finish tag of the last
    /// dispatched request.
    pub(super) start: VirtualTime,
    /// Number of requests in the device.
    pub(super) in_flight: u32,
    /// Cost of the requests in the device.
    pub(super) in_flight_cost: u64,
    /// Whether the flow is among those that share the device.
    pub(super) active: bool,
    /// Maximum number of requests, waiting and in the device: in this round, and in the last.
    peak: [u32; 2],
    /// Number of device slots that the flow needs and is entitled to, as of the last round.
    want: u32,
}

impl Flow {
    pub(super) fn new(weight: u16) -> Flow {
        Flow {
            waiting: FifoQueue::new(),
            weight,
            start: 0,
            in_flight: 0,
            in_flight_cost: 0,
            active: false,
            peak: [0; 2],
            want: 0,
        }
    }

    fn demand(&self) -> u32 {
        self.in_flight.saturating_add(u32::try_from(self.waiting.len()).unwrap_or(u32::MAX))
    }

    /// Appends a request; `virtual_now` returns the virtual time.
    #[inline]
    pub(super) fn push(
        &mut self,
        staged: StagedRequest,
        virtual_now: impl FnOnce() -> VirtualTime,
    ) {
        if self.waiting.is_empty() {
            // A flow that was idle is not compensated for it.
            self.start = self.start.max(virtual_now());
        }
        self.waiting.push_back(staged);
        self.peak[0] = self.peak[0].max(self.demand());
    }

    /// Removes and returns the first request, which goes to the device.
    #[inline]
    pub(super) fn dispatch(&mut self, cost: u64) -> Option<StagedRequest> {
        let staged = self.waiting.pop_front()?;
        self.start += virtual_time(cost, self.weight);
        self.in_flight += 1;
        self.in_flight_cost += cost;
        Some(staged)
    }

    /// Returns a request to the front and undoes its dispatch.
    pub(super) fn requeue(&mut self, staged: StagedRequest, cost: u64) {
        self.start = self.start.saturating_sub(virtual_time(cost, self.weight));
        self.complete(cost);
        self.waiting.push_front(staged);
        self.peak[0] = self.peak[0].max(self.demand());
    }

    /// Records that a request has completed.
    #[inline]
    pub(super) fn complete(&mut self, cost: u64) {
        self.in_flight = self.in_flight.saturating_sub(1);
        self.in_flight_cost = self.in_flight_cost.saturating_sub(cost);
    }

    /// Makes the flow active.
    pub(super) fn activate(&mut self) {
        self.active = true;
        self.peak = [0; 2];
        self.want = 1;
    }

    /// Ends a round. Returns whether the flow was in use in this round or the last.
    pub(super) fn end_round(&mut self) -> bool {
        let used = self.peak != [0; 2];
        self.peak = [self.demand(), self.peak[0]];
        self.active = used;
        if !used {
            self.waiting.release_memory();
        }
        used
    }

    /// Computes `want` from the device's queue depth and the weights of all active flows.
    pub(super) fn plan(&mut self, depth: u16, weights: u64) {
        let share = (u64::from(depth) * u64::from(self.weight)).div_ceil(weights.max(1));
        let [this, last] = self.peak;
        self.want = this.max(last).max(1).min(u32::try_from(share).unwrap_or(u32::MAX));
    }

    /// Returns the number of device slots to reserve for the flow. They are for requests that are
    /// expected, as the flow has none waiting now.
    #[inline]
    pub(super) fn reserve(&self) -> u32 {
        let idle = self.active && self.waiting.is_empty();
        if idle { self.want.saturating_sub(self.in_flight) } else { 0 }
    }
}
