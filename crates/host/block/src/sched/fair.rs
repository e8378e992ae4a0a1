//! [`Fair`]: divides the device among submitters or groups by weight, independently of their
//! numbers of requests.
//!
//! "It is important to enforce that a single process should not be able to starve all others"
//! ([SYSTOR13 §2]).
//!
//! **Order.** Flows (submitters or groups) share by weight, as in Linux's BFQ. The algorithm is
//! start-time fair queueing \[SFQ96\], extended to devices with several requests in flight
//! \[SFQD04\]: the request with the smallest start tag goes first.
//!
//! **Limit at the device.** Order alone is not enough: requests in the device already delay later
//! ones, and slow requests accumulate there. While a flow below its share has waiting requests, no
//! other flow may exceed 1.5 times its own share of the cost in the device. The extra half is for
//! large requests, which stay longer and need it to get their share of the throughput.
//!
//! **Borrowing.** A flow may use capacity that others leave idle, except slots reserved for flows
//! that were active in the last round. With [`FairConfig::work_conserving`] off, no flow exceeds
//! its share and none borrows. That improves the latency of flows with few requests at the expense
//! of throughput.
//!
//! **Lag.** A flow that is passed over because of its requests in the device is compensated up to a
//! bound: one queue depth of requests at the smallest weight. A flow that was idle is not
//! compensated.
//!
//! Choosing a flow takes time proportional to the number of active flows (cores or groups).

use time::Nanos;

use super::error::{SchedError, within};
use super::flow::{Flow, VirtualTime, virtual_time};
use super::{GroupChange, Scheduler};
use crate::{Group, Op, StagedRequest};

/// Maximum weight, as in BFQ.
const WEIGHT_MAX: u16 = 1000;
/// Maximum fixed cost of a request.
const REQUEST_COST_MAX: u32 = 1 << 20;
/// Sectors of a typical request, from which the lag bound is computed.
const TYPICAL_SECTORS: u64 = 32;

/// Share of the device that a flow may use while others wait, in halves of its own share.
const SLACK_HALVES: u128 = 3;

/// The kind of flow among which the device is shared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FairBy {
    /// Submitters.
    #[default]
    Submitter,
    /// Groups of submitters.
    Group,
}

/// Parameters of [`Fair`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FairConfig {
    /// The kind of flow.
    pub by: FairBy,
    /// Weights of submitters or groups, in `1..=1000`.
    pub weights: Vec<(u16, u16)>,
    /// Weight of all other flows.
    pub default_weight: u16,
    /// Fixed cost of a request, in sectors, in addition to its data. Requests without data
    /// (discards, Write Zeroes, extent queries) cost only this.
    pub request_cost_sectors: u32,
    /// Whether a busy flow may exceed its share at the device: by half while others wait, and by
    /// what they leave idle.
    pub work_conserving: bool,
}

impl Default for FairConfig {
    fn default() -> FairConfig {
        FairConfig {
            by: FairBy::Submitter,
            weights: Vec::new(),
            default_weight: 100,
            request_cost_sectors: 4,
            work_conserving: true,
        }
    }
}

impl FairConfig {
    /// Checks the parameters.
    ///
    /// # Errors
    /// [`SchedError::ZeroWeight`], [`SchedError::WeightTooLarge`], [`SchedError::TwoWeights`], and
    /// for the request cost [`SchedError::Zero`] and [`SchedError::TooLarge`].
    pub fn validate(&self) -> Result<(), SchedError> {
        within("default_weight", self.default_weight.into(), WEIGHT_MAX.into())?;
        within("request_cost_sectors", self.request_cost_sectors.into(), REQUEST_COST_MAX.into())?;
        for (index, &(flow, weight)) in self.weights.iter().enumerate() {
            check_weight(flow, weight)?;
            if self.weights[..index].iter().any(|(other, _)| *other == flow) {
                return Err(SchedError::TwoWeights { flow });
            }
        }
        Ok(())
    }
}

fn check_weight(flow: u16, weight: u16) -> Result<(), SchedError> {
    match weight {
        0 => Err(SchedError::ZeroWeight { flow }),
        1..=WEIGHT_MAX => Ok(()),
        _ => Err(SchedError::WeightTooLarge { flow, weight, max: WEIGHT_MAX }),
    }
}

/// A scheduler that shares the device by weight.
#[derive(Debug)]
pub struct Fair {
    config: FairConfig,
    depth: u16,
    /// Flows by submitter or group.
    flows: Vec<Flow>,
    /// Active flows, which share the device.
    active: Vec<u16>,
    /// Sum of the weights of the active flows.
    weights: u64,
    queued: usize,
    in_flight: u32,
    in_flight_cost: u64,
    /// Number of reserved slots: the sum of [`Flow::reserve`] over the flows.
    reserved: u32,
    /// Largest start tag of a dispatched request.
    front: VirtualTime,
    /// How far a flow may be behind `front`.
    lag_max: VirtualTime,
    /// Completions until the end of the round; a round has as many as the device's queue depth.
    round_remaining: u16,
}

/// Returns how far a flow may be behind: one queue depth of typical requests at the smallest
/// weight.
fn lag_max(config: &FairConfig, depth: u16) -> VirtualTime {
    let worth = u64::from(depth) * (TYPICAL_SECTORS + u64::from(config.request_cost_sectors));
    let weights = config.weights.iter().map(|(_, weight)| *weight);
    virtual_time(worth, weights.fold(config.default_weight, u16::min))
}

impl Fair {
    /// Creates an empty scheduler for a device with a queue depth of `depth`.
    ///
    /// # Errors
    /// Those of [`FairConfig::validate`], and [`SchedError::Zero`] for a `depth` of 0.
    pub fn new(config: FairConfig, depth: u16) -> Result<Fair, SchedError> {
        config.validate()?;
        within("depth", depth.into(), u16::MAX.into())?;
        let lag_max = lag_max(&config, depth);
        Ok(Fair {
            config,
            depth,
            flows: Vec::new(),
            active: Vec::new(),
            weights: 0,
            queued: 0,
            in_flight: 0,
            in_flight_cost: 0,
            reserved: 0,
            front: 0,
            lag_max,
            round_remaining: depth,
        })
    }

    /// Returns the number of requests of a submitter or group in the device.
    pub fn in_flight(&self, flow: u16) -> u32 {
        self.flows.get(usize::from(flow)).map_or(0, |flow| flow.in_flight)
    }

    /// Returns the number of active flows.
    pub fn active(&self) -> usize {
        self.active.len()
    }

    fn key(&self, staged: &StagedRequest) -> u16 {
        match self.config.by {
            FairBy::Submitter => staged.submitter.0,
            FairBy::Group => staged.group.0,
        }
    }

    fn cost(&self, staged: &StagedRequest) -> u64 {
        let own = u64::from(self.config.request_cost_sectors);
        match staged.request.op {
            Op::Read | Op::Write => own + u64::from(staged.request.sectors),
            Op::Flush | Op::Discard | Op::WriteZeroes | Op::Extents => own,
        }
    }

    /// Extends the table to a flow that has not been seen before.
    #[cold]
    fn ensure_flow(&mut self, key: u16) {
        for new in self.flows.len()..=usize::from(key) {
            let configured = self.config.weights.iter().find(|(flow, _)| usize::from(*flow) == new);
            let weight = configured.map_or(self.config.default_weight, |(_, weight)| *weight);
            self.flows.push(Flow::new(weight));
        }
    }

    /// Returns the virtual time: the start tag of the next request, or of the last one dispatched.
    /// No flow is further behind than the lag bound.
    fn virtual_now(&self) -> VirtualTime {
        let waiting = self.active.iter().map(|key| &self.flows[usize::from(*key)]);
        let least = waiting.filter(|flow| !flow.waiting.is_empty()).map(|flow| flow.start).min();
        least.map_or(self.front, |least| least.max(self.oldest_tag()))
    }

    #[inline]
    fn oldest_tag(&self) -> VirtualTime {
        self.front.saturating_sub(self.lag_max)
    }

    /// Changes a flow, and updates the values derived from it.
    #[inline]
    fn update_flow<T>(&mut self, key: u16, change: impl FnOnce(&mut Flow) -> T) -> T {
        let flow = &mut self.flows[usize::from(key)];
        let before = (flow.reserve(), flow.in_flight, flow.in_flight_cost);
        let result = change(flow);
        self.reserved = self.reserved - before.0 + flow.reserve();
        self.in_flight = self.in_flight - before.1 + flow.in_flight;
        self.in_flight_cost = self.in_flight_cost - before.2 + flow.in_flight_cost;
        result
    }

    /// Creates a flow if needed and makes it active.
    #[inline]
    fn activate(&mut self, key: u16) {
        if usize::from(key) >= self.flows.len() {
            self.ensure_flow(key);
        }
        if !self.flows[usize::from(key)].active {
            self.active.push(key);
            self.weights += u64::from(self.flows[usize::from(key)].weight);
            self.update_flow(key, Flow::activate);
        }
    }

    /// Returns the next flow. That is the flow with the smallest tag among those below their share
    /// at the device; else the one with the smallest tag that may borrow.
    fn choose_flow(&self) -> Option<u16> {
        if let [only] = self.active[..] {
            return (!self.flows[usize::from(only)].waiting.is_empty()).then_some(only);
        }
        // A flow's share of a full device at the present average cost, compared without division:
        // in_flight_cost < slack * weight / weights * depth * (total_cost / total_count).
        let slack = if self.config.work_conserving { SLACK_HALVES } else { 2 };
        let full = slack * u128::from(self.depth) * u128::from(self.in_flight_cost);
        let scale = 2 * u128::from(self.weights) * u128::from(self.in_flight);
        let mut within: Option<(VirtualTime, u16)> = None;
        let mut over = None;
        for &key in &self.active {
            let flow = &self.flows[usize::from(key)];
            if flow.waiting.is_empty() {
                continue;
            }
            let has_less = flow.in_flight == 0
                || u128::from(flow.in_flight_cost) * scale < u128::from(flow.weight) * full;
            let least = if has_less { &mut within } else { &mut over };
            if least.is_none_or(|(start, _)| flow.start < start) {
                *least = Some((flow.start, key));
            }
        }
        if let Some((_, key)) = within {
            return Some(key);
        }
        let free = u32::from(self.depth).saturating_sub(self.in_flight);
        over.filter(|_| self.config.work_conserving && free > self.reserved).map(|(_, key)| key)
    }

    /// Ends a round: deactivates flows that were idle for a whole round.
    fn end_round(&mut self) {
        self.round_remaining = self.depth;
        let flows = &mut self.flows;
        let mut weights = 0;
        self.active.retain(|key| {
            let flow = &mut flows[usize::from(*key)];
            let stays = flow.end_round();
            weights += if stays { u64::from(flow.weight) } else { 0 };
            stays
        });
        self.weights = weights;
        self.reserved = 0;
        for key in &self.active {
            let flow = &mut flows[usize::from(*key)];
            flow.plan(self.depth, weights);
            self.reserved += flow.reserve();
        }
    }
}

impl Scheduler for Fair {
    fn insert(&mut self, _: Nanos, staged: StagedRequest) {
        let key = self.key(&staged);
        self.activate(key);
        let virtual_now =
            if self.flows[usize::from(key)].waiting.is_empty() { self.virtual_now() } else { 0 };
        self.update_flow(key, |flow| flow.push(staged, || virtual_now));
        self.queued += 1;
    }

    fn requeue(&mut self, _: Nanos, staged: StagedRequest) {
        let (key, cost) = (self.key(&staged), self.cost(&staged));
        self.activate(key);
        self.update_flow(key, |flow| flow.requeue(staged, cost));
        self.queued += 1;
    }

    fn dispatch(&mut self, _: Nanos) -> Option<StagedRequest> {
        let key = self.choose_flow()?;
        let cost = self.cost(self.flows[usize::from(key)].waiting.front()?);
        let oldest = self.oldest_tag();
        let (start, staged) = self.update_flow(key, |flow| {
            flow.start = flow.start.max(oldest);
            (flow.start, flow.dispatch(cost))
        });
        let staged = staged?;
        self.front = self.front.max(start);
        self.queued -= 1;
        Some(staged)
    }

    fn completed(&mut self, _: Nanos, staged: &StagedRequest, _: Nanos) {
        let (key, cost) = (self.key(staged), self.cost(staged));
        if usize::from(key) < self.flows.len() {
            self.update_flow(key, |flow| flow.complete(cost));
        }
        self.round_remaining -= 1;
        if self.round_remaining == 0 {
            self.end_round();
        }
    }

    #[inline]
    fn len(&self) -> usize {
        self.queued
    }

    fn find_merge(
        &mut self,
        newcomer: &StagedRequest,
        visit: &mut dyn FnMut(&mut StagedRequest) -> bool,
    ) -> bool {
        let key = usize::from(self.key(newcomer));
        self.flows.get_mut(key).is_some_and(|flow| flow.waiting.find_merge(newcomer, visit))
    }

    /// Changes the weight of a group. Requests dispatched before keep the virtual time that they
    /// have cost.
    fn change_group(
        &mut self,
        _: Nanos,
        group: Group,
        change: GroupChange,
    ) -> Result<(), SchedError> {
        let (FairBy::Group, GroupChange::Weight(weight)) = (self.config.by, change) else {
            return Err(change.unsupported(group));
        };
        check_weight(group.0, weight)?;
        match self.config.weights.iter_mut().find(|(flow, _)| *flow == group.0) {
            Some((_, configured)) => *configured = weight,
            None => self.config.weights.push((group.0, weight)),
        }
        self.lag_max = lag_max(&self.config, self.depth);
        if let Some(flow) = self.flows.get_mut(usize::from(group.0)) {
            if flow.active {
                self.weights = self.weights - u64::from(flow.weight) + u64::from(weight);
            }
            flow.weight = weight;
        }
        Ok(())
    }
}
