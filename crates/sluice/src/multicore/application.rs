//! [`Load`]: what each core submits and reaps, as fio does it (SYSTOR'13 section 4.2).
//!
//! Random 512-byte reads, one submission at a time: a core that has as many outstanding as it may
//! reaps one and submits the next. Nobody shares anything here, unless a shared counter is asked for:
//! one that every request counts up and down, as Linux's direct I/O did for block devices until 4.1
//! (commit fe0f07d08ee3) and as the paper found "throughout the library" (section 5.2).

use block::{BlockDevice, Completion, Payload, Platform, Request};
use clock::Nanos;

use super::access_log::{self, AccessOp};
use super::costs::CostModel;
use super::engine::{EngineControl, Program};
use super::locks::splitmix64;
use super::platform::Modeled;

/// What the cores do, and for how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Load {
    /// Requests that each core has outstanding.
    pub depth: u32,
    /// Requests per core that complete before anything counts.
    pub warm: u64,
    /// Requests per core, on average, that count.
    pub count: u64,
    /// Whether every request counts a number up and down that all cores share.
    pub shared_counter: bool,
}

/// What came of a load.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LoadOutcome {
    /// Requests completed per second.
    pub iops: f64,
    /// From the decision to submit to the application's having the completion, on average.
    pub mean: Nanos,
    /// The longest.
    pub max: Nanos,
    /// Requests that count.
    pub count: u64,
    /// For how long they were counted.
    pub time: Nanos,
}

/// What a core does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Decides on a request.
    Decide,
    /// Submits it.
    Submit,
    /// Waits for a completion.
    Wait,
}

#[derive(Debug)]
struct Core<D> {
    device: D,
    phase: Phase,
    /// By slot: when its request was decided on.
    began: Vec<Nanos>,
    free: Vec<usize>,
    /// The slot whose completion the tape being played brings.
    reaped: Option<usize>,
    submitted: u64,
}

/// The application on all cores.
#[derive(Debug)]
pub(crate) struct Application<D> {
    cores: Vec<Core<D>>,
    load: Load,
    costs: CostModel,
    /// What submitting and completing a request takes of its core.
    compute: Nanos,
    /// The shared counter's place.
    counter: Box<u64>,
    sectors: u64,
    completed: u64,
    /// When counting began, and ended.
    counted: Option<(Nanos, Nanos)>,
    sum: u128,
    max: Nanos,
}

impl<D: BlockDevice> Application<D> {
    pub(crate) fn new(
        devices: impl IntoIterator<Item = D>,
        load: Load,
        costs: CostModel,
        compute: Nanos,
    ) -> Application<D> {
        let depth = load.depth.max(1) as usize;
        let core = |device: D| Core {
            device,
            phase: Phase::Decide,
            began: vec![Nanos::ZERO; depth],
            free: (0..depth).collect(),
            reaped: None,
            submitted: 0,
        };
        let cores: Vec<Core<D>> = devices.into_iter().map(core).collect();
        Application {
            sectors: cores.first().map_or(1, |c| c.device.limits().sectors),
            cores,
            load,
            costs,
            compute,
            counter: Box::new(0),
            completed: 0,
            counted: None,
            sum: 0,
            max: Nanos::ZERO,
        }
    }

    /// What came of it; `None` if nothing was counted.
    pub(crate) fn outcome(&self) -> Option<LoadOutcome> {
        let (start, end) = self.counted?;
        let (count, time) = (self.completed - self.warm(), end.since(start));
        if count == 0 || time == Nanos::ZERO {
            return None;
        }
        Some(LoadOutcome {
            iops: count as f64 * 1e9 / time.0 as f64,
            mean: Nanos((self.sum / u128::from(count)) as u64),
            max: self.max,
            count,
            time,
        })
    }

    fn warm(&self) -> u64 {
        self.load.warm * self.cores.len() as u64
    }

    /// A completion has reached the application.
    fn complete(&mut self, took: Nanos, now: Nanos) -> EngineControl {
        self.completed += 1;
        let warm = self.warm();
        match &mut self.counted {
            None if self.completed >= warm => {
                self.counted = Some((now, now));
                return EngineControl::StartCounting;
            }
            None => {}
            Some((_, end)) => {
                *end = now;
                self.sum += u128::from(took.0);
                self.max = self.max.max(took);
            }
        }
        let last = warm + self.load.count * self.cores.len() as u64;
        if self.completed < last { EngineControl::Continue } else { EngineControl::Stop }
    }
}

impl<D: BlockDevice> Program for Application<D> {
    fn step(&mut self, index: usize, now: Nanos, ops: &mut Vec<AccessOp>) -> EngineControl {
        let mut going = EngineControl::Continue;
        if let Some(slot) = self.cores[index].reaped.take() {
            let core = &mut self.cores[index];
            core.free.push(slot);
            let took = now.since(core.began[slot]);
            going = self.complete(took, now);
        }
        let (costs, compute, sectors) = (self.costs, self.compute, self.sectors);
        let counter = self.load.shared_counter.then_some(&*self.counter);
        let core = &mut self.cores[index];
        match core.phase {
            Phase::Decide => {
                if let Some(slot) = core.free.last() {
                    core.began[*slot] = now;
                    core.phase = Phase::Submit;
                    ops.push(AccessOp::Compute(costs.application.time));
                } else {
                    core.phase = Phase::Wait;
                }
            }
            Phase::Submit => {
                core.phase = Phase::Decide;
                if let Some(slot) = core.free.pop() {
                    core.submitted += 1;
                    let lba = splitmix64((index as u64) << 40 | core.submitted) % sectors;
                    let request = Request::read(lba, 1, Payload::BitBucket, slot as u64);
                    let device = &mut core.device;
                    let sent = access_log::record(ops, compute, || {
                        if let Some(counter) = counter {
                            Modeled::wrote(counter);
                        }
                        let sent = device.submit(now, request).is_ok();
                        device.poll(now);
                        sent
                    });
                    if !sent {
                        core.free.push(slot);
                        core.phase = Phase::Wait;
                    }
                }
            }
            Phase::Wait => {
                let device = &mut core.device;
                let found = access_log::record(ops, Nanos::ZERO, || device.reap());
                let found = found.or_else(|| {
                    access_log::record(ops, costs.compute.idle.time, || {
                        device.poll(now);
                        device.reap()
                    })
                });
                if let Some(Completion { tag, .. }) = found {
                    if let Some(counter) = counter {
                        access_log::record(ops, Nanos::ZERO, || Modeled::wrote(counter));
                    }
                    core.reaped = Some(tag as usize);
                    core.phase = Phase::Decide;
                }
            }
        }
        going
    }
}
