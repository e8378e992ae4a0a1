//! [`Fair`]: a share of the device for everybody, by weight, however many requests they submit.
//!
//! "It is important to enforce that a single process should not be able to starve all others"
//! (SYSTOR'13 section 2). Flows (submitters, or groups) share by weight, as in Linux's BFQ, but by
//! start-time fair queueing (Goyal, Vin and Cheng, SIGCOMM 1996; for a device that takes several
//! requests at once: Jin, Chase and Kaur, "Interposed proportional sharing for a storage service
//! utility", SIGMETRICS 2004): the request with the least start tag goes first.
//!
//! Order alone is not enough, because what is at the device already delays who comes later, and slow
//! requests pile up there. So nobody may have much more than their share at the device, in cost,
//! while others who have less are waiting: half of it more, because large requests, which stay longer,
//! need that to get their share of the throughput. What others leave unused may be borrowed, save the
//! places that those who were active in the last round will want again. With [`FairConfig::work_conserving`]
//! off nobody gets more than their share and nothing is lent, which buys shallow submitters latency
//! with throughput.
//!
//! Whoever is passed over because of what they have at the device is owed a bounded amount for it
//! (one device's worth of requests at the least weight), and who was idle is owed nothing. Choosing
//! takes time in proportion to the flows that are active: cores, or groups of them.

use clock::Nanos;

use super::Scheduler;
use super::error::{SchedError, within};
use super::flow::{Flow, VirtualTime, virtual_time};
use crate::{Op, StagedRequest};

/// The largest weight, as in BFQ.
const WEIGHT_MAX: u16 = 1000;
/// The largest cost of a request's own.
const REQUEST_COST_MAX: u32 = 1 << 20;
/// Sectors of a request that a device's worth of them is reckoned with.
const TYPICAL_SECTORS: u64 = 32;

/// How much of its share a flow may have at the device while others wait, in halves.
const SLACK_HALVES: u128 = 3;

/// Who shares.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FairBy {
    /// Submitters.
    #[default]
    Submitter,
    /// Groups of submitters.
    Group,
}

/// What [`Fair`] can be told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FairConfig {
    /// Who shares.
    pub by: FairBy,
    /// The weights of submitters or groups, in `1..=1000`.
    pub weights: Vec<(u16, u16)>,
    /// The weight of everybody else.
    pub default_weight: u16,
    /// What a request costs besides its data, in sectors. Requests that move no data (discards,
    /// zeroes, queries) cost only this.
    pub request_cost_sectors: u32,
    /// Whether a busy flow may have more than its share at the device: half as much again while
    /// others wait, and what they leave of it.
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
    /// Whether this makes sense.
    ///
    /// # Errors
    /// [`SchedError::ZeroWeight`], [`SchedError::WeightTooLarge`], [`SchedError::TwoWeights`], and
    /// for the request's cost [`SchedError::Zero`] and [`SchedError::TooLarge`].
    pub fn validate(&self) -> Result<(), SchedError> {
        within("default_weight", self.default_weight.into(), WEIGHT_MAX.into())?;
        within("request_cost_sectors", self.request_cost_sectors.into(), REQUEST_COST_MAX.into())?;
        for (index, &(flow, weight)) in self.weights.iter().enumerate() {
            if weight == 0 {
                return Err(SchedError::ZeroWeight { flow });
            }
            if weight > WEIGHT_MAX {
                return Err(SchedError::WeightTooLarge { flow, weight, max: WEIGHT_MAX });
            }
            if self.weights[..index].iter().any(|(other, _)| *other == flow) {
                return Err(SchedError::TwoWeights { flow });
            }
        }
        Ok(())
    }
}

/// Shares by weight.
#[derive(Debug)]
pub struct Fair {
    config: FairConfig,
    depth: u16,
    /// By submitter or group.
    flows: Vec<Flow>,
    /// Those who share the device now.
    active: Vec<u16>,
    /// The sum of their weights.
    weights: u64,
    queued: usize,
    in_flight: u32,
    in_flight_cost: u64,
    /// Places kept free: the sum of the flows' [`Flow::reserve`].
    reserved: u32,
    /// The greatest start tag of a request that went.
    front: VirtualTime,
    /// How far behind `front` a flow may be.
    lag_max: VirtualTime,
    /// Completions until the round is over: as many as the device takes requests.
    round_remaining: u16,
}

impl Fair {
    /// An empty one before a device that takes `depth` requests.
    ///
    /// # Errors
    /// [`FairConfig::validate`], and [`SchedError::Zero`] for a `depth` of 0.
    pub fn new(config: FairConfig, depth: u16) -> Result<Fair, SchedError> {
        config.validate()?;
        within("depth", depth.into(), u16::MAX.into())?;
        let worth = u64::from(depth) * (TYPICAL_SECTORS + u64::from(config.request_cost_sectors));
        let weights = config.weights.iter().map(|(_, weight)| *weight);
        let least = weights.fold(config.default_weight, u16::min);
        let lag_max = virtual_time(worth, least);
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

    /// How many requests of a submitter or group are at the device.
    pub fn in_flight(&self, flow: u16) -> u32 {
        self.flows.get(usize::from(flow)).map_or(0, |flow| flow.in_flight)
    }

    /// How many flows share the device now.
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

    /// Makes room for a flow that has not been seen before.
    #[cold]
    fn ensure_flow(&mut self, key: u16) {
        for new in self.flows.len()..=usize::from(key) {
            let configured = self.config.weights.iter().find(|(flow, _)| usize::from(*flow) == new);
            let weight = configured.map_or(self.config.default_weight, |(_, weight)| *weight);
            self.flows.push(Flow::new(weight));
        }
    }

    /// The virtual time: the start tag of what goes next, or of what went last. Nobody is further
    /// behind than the lag allows.
    fn virtual_now(&self) -> VirtualTime {
        let waiting = self.active.iter().map(|key| &self.flows[usize::from(*key)]);
        let least = waiting.filter(|flow| !flow.waiting.is_empty()).map(|flow| flow.start).min();
        least.map_or(self.front, |least| least.max(self.oldest_tag()))
    }

    #[inline]
    fn oldest_tag(&self) -> VirtualTime {
        self.front.saturating_sub(self.lag_max)
    }

    /// Changes a flow and what depends on it.
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

    /// Makes sure that a flow exists and counts among those who share.
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

    /// Who goes next: the flow with the least tag among those who have less than their share at the
    /// device; if there is none, the one with the least tag that may borrow.
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

    /// A round is over: who has done nothing for a whole one no longer shares.
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
}
