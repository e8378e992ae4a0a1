//! [`Load`]: the submissions and completions of each core, as with fio in [SYSTOR13 §4.2].
//!
//! The load consists of random 512-byte reads that are submitted one at a time. A core at its
//! maximum depth reaps one completion and submits the next read. Cores share no data except an
//! optional shared counter. Every request increments and decrements it, as Linux's direct I/O did
//! for block devices until 4.1 (commit fe0f07d08ee3), and as the paper found "throughout the
//! library" ([SYSTOR13 §5.2]).

use block::{BlockDevice, Completion, Payload, Platform, Request};
use time::Nanos;

use super::access_log::{self, AccessOp};
use super::costs::CostModel;
use super::engine::{EngineControl, Program};
use super::locks::splitmix64;
use super::platform::Modeled;

/// Load of the cores, and its length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Load {
    /// Number of outstanding requests of each core.
    pub depth: u32,
    /// Number of completed requests per core before measurement starts.
    pub warm: u64,
    /// Mean number of measured requests per core.
    pub count: u64,
    /// Whether every request increments and decrements a counter that all cores share.
    pub shared_counter: bool,
}

/// Measurements of a load.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LoadOutcome {
    /// Requests completed per second.
    pub iops: f64,
    /// Mean latency, from the decision to submit until the application has the completion.
    pub mean: Nanos,
    /// Maximum latency.
    pub max: Nanos,
    /// Number of measured requests.
    pub count: u64,
    /// Measured time.
    pub time: Nanos,
}

/// Next step of a core.
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
    /// Per slot: the time at which its request was decided on.
    began: Vec<Nanos>,
    free: Vec<usize>,
    /// Slot whose completion the current log reaps.
    reaped: Option<usize>,
    submitted: u64,
}

/// The application on all cores.
#[derive(Debug)]
pub(crate) struct Application<D> {
    cores: Vec<Core<D>>,
    load: Load,
    costs: CostModel,
    /// CPU time of submitting and completing a request.
    compute: Nanos,
    /// The shared counter; its address identifies its cache line.
    counter: Box<u64>,
    sectors: u64,
    completed: u64,
    /// Start and end of the measurement.
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

    /// Returns the measurements; `None` if no request was measured.
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

    /// Processes a completion in the application.
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
