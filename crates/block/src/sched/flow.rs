//! [`Flow`]: what one submitter, or one group, has waiting and at the device, and its virtual time.
//!
//! Tags are those of start-time fair queueing (Goyal, Vin and Cheng, "Start-time fair queueing",
//! SIGCOMM 1996): a request's start tag is its flow's last finish tag, or the virtual time if the
//! flow had nothing waiting; its finish tag is later by its cost divided by the flow's weight.

use super::fifo::Fifo;
use crate::StagedRequest;

/// A virtual time. Wide enough never to wrap: a cost is less than 2^33 units of 2^20.
pub(super) type VirtualTime = u128;

/// Units of virtual time per unit of cost, at weight 1. Divides finely enough that rounding is far
/// below a thousandth for the largest weight.
const UNITS_PER_COST: VirtualTime = 1 << 20;

/// How much virtual time `cost` is at `weight`.
#[inline]
pub(super) fn virtual_time(cost: u64, weight: u16) -> VirtualTime {
    VirtualTime::from(cost) * UNITS_PER_COST / VirtualTime::from(weight.max(1))
}

/// One submitter's, or group's, requests.
#[derive(Debug)]
pub(super) struct Flow {
    pub(super) waiting: Fifo,
    pub(super) weight: u16,
    /// The start tag of the first waiting request; without one, the finish tag of the last that went.
    pub(super) start: VirtualTime,
    /// Requests at the device.
    pub(super) in_flight: u32,
    /// What they cost.
    pub(super) in_flight_cost: u64,
    /// Whether it counts among those who share the device.
    pub(super) active: bool,
    /// The most requests it had, waiting and at the device: this round, and the last.
    peak: [u32; 2],
    /// How many requests at the device it will want and may have, as of the last round.
    want: u32,
}

impl Flow {
    pub(super) fn new(weight: u16) -> Flow {
        Flow {
            waiting: Fifo::new(),
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

    /// Appends a request; `virtual_now` says the virtual time.
    #[inline]
    pub(super) fn push(
        &mut self,
        staged: StagedRequest,
        virtual_now: impl FnOnce() -> VirtualTime,
    ) {
        if self.waiting.is_empty() {
            // Having idled earns nothing.
            self.start = self.start.max(virtual_now());
        }
        self.waiting.push_back(staged);
        self.peak[0] = self.peak[0].max(self.demand());
    }

    /// The first request leaves for the device.
    #[inline]
    pub(super) fn dispatch(&mut self, cost: u64) -> Option<StagedRequest> {
        let staged = self.waiting.pop_front()?;
        self.start += virtual_time(cost, self.weight);
        self.in_flight += 1;
        self.in_flight_cost += cost;
        Some(staged)
    }

    /// A request comes back as if it had never left.
    pub(super) fn requeue(&mut self, staged: StagedRequest, cost: u64) {
        self.start = self.start.saturating_sub(virtual_time(cost, self.weight));
        self.complete(cost);
        self.waiting.push_front(staged);
        self.peak[0] = self.peak[0].max(self.demand());
    }

    /// A request has left the device.
    #[inline]
    pub(super) fn complete(&mut self, cost: u64) {
        self.in_flight = self.in_flight.saturating_sub(1);
        self.in_flight_cost = self.in_flight_cost.saturating_sub(cost);
    }

    /// Joins those who share the device.
    pub(super) fn activate(&mut self) {
        self.active = true;
        self.peak = [0; 2];
        self.want = 1;
    }

    /// A round is over. Returns whether the flow was in use during this one or the last.
    pub(super) fn end_round(&mut self) -> bool {
        let used = self.peak != [0; 2];
        self.peak = [self.demand(), self.peak[0]];
        self.active = used;
        if !used {
            self.waiting.release_memory();
        }
        used
    }

    /// With what the device can take and the weights of all who share it, how much of it this flow
    /// will want and may have.
    pub(super) fn plan(&mut self, depth: u16, weights: u64) {
        let share = (u64::from(depth) * u64::from(self.weight)).div_ceil(weights.max(1));
        let [this, last] = self.peak;
        self.want = this.max(last).max(1).min(u32::try_from(share).unwrap_or(u32::MAX));
    }

    /// Places at the device to keep free for it: it has nothing waiting now, but will.
    #[inline]
    pub(super) fn reserve(&self) -> u32 {
        let idle = self.active && self.waiting.is_empty();
        if idle { self.want.saturating_sub(self.in_flight) } else { 0 }
    }
}
