//! Measurement of the costs that can be taken from this machine: the CPU time of a request, and the
//! transfer time of a cache line between two cores.

use std::hint::{black_box, spin_loop};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Instant;

use block::{
    BlockDevice, BlockLayer, BlockLayerConfig, Payload, QueueModel, Raw, Request, StagingScope,
};
use driver::{LowLevelDriver, Null};
use event::AllowedCpus;
use time::{Component, Nanos};

use super::costs::{Compute, Cost, CostModel};
use crate::{BenchError, RunLength, Samples, interleaved, on_first_cpu};

/// Number of outstanding requests during the measurement, as in the model.
const DEPTH: usize = 32;

/// Measured costs of this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MeasuredCosts {
    /// Cost per request on one core.
    pub compute: Compute,
    /// Transfer of a line between two cores; `None` if there is only one.
    pub transfer: Option<Nanos>,
}

impl MeasuredCosts {
    /// Measures the costs.
    ///
    /// # Errors
    /// [`BenchError`] if a thread cannot be started or the block layer cannot be opened.
    pub fn measure(effort: RunLength, cores: &AllowedCpus) -> Result<MeasuredCosts, BenchError> {
        let compute = on_first_cpu(cores, move || compute(effort))?;
        let transfer = if cores.has_two() { Some(transfer(effort, cores)?) } else { None };
        Ok(MeasuredCosts { compute, transfer })
    }

    /// Returns the given cost model with the measured values in it.
    ///
    /// A transfer between this machine's cores that takes longer than one between sockets of the
    /// given model does not describe a socket, and is ignored.
    pub fn cost_model(&self) -> CostModel {
        let mut costs = CostModel { compute: self.compute, ..CostModel::GIVEN };
        if let Some(transfer) = self.transfer.filter(|t| *t < costs.read[1].time) {
            let cost = Cost::measured(transfer, "a line between two cores, half a round");
            (costs.read[0], costs.write[0]) = (cost, cost);
            costs.socket_shared.time = costs.socket_shared.time.min(transfer);
        }
        costs
    }
}

fn whole_nanos(ns: f64) -> Nanos {
    Nanos(ns.round().max(1.0) as u64)
}

fn compute(effort: RunLength) -> Result<Compute, BenchError> {
    let requests = effort.choose(20_000, 500);
    let mut null = Null::default();
    let limits = null.limits();
    let queue = null.take_queue(0).ok_or(BenchError::Thread("the null device"))?;
    let mut raw = Raw::new(queue, limits);
    let open = |layout| -> Result<_, BenchError> {
        let depth = DEPTH as u32;
        let config = BlockLayerConfig {
            queue_model: layout,
            merge: false,
            queue_depth: depth,
            ..BlockLayerConfig::default()
        };
        let (_, mut queues) = BlockLayer::open(&mut Null::default(), &config)?;
        queues.pop().ok_or(BenchError::Thread("the block layer"))
    };
    let mut owned = open(QueueModel::MultiQueue { staging: StagingScope::Core })?;
    let mut locked = open(QueueModel::SingleQueue)?;
    let mut idle = open(QueueModel::SingleQueue)?;
    let [raw, owned, locked, idle] = interleaved(
        effort.choose(25, 3),
        [
            &mut || Ok(per_request(&mut raw, requests)),
            &mut || Ok(per_request(&mut owned, requests)),
            &mut || Ok(per_request(&mut locked, requests)),
            &mut || {
                let start = Instant::now();
                for now in 0..requests {
                    black_box(idle.poll(Nanos(now)));
                }
                Ok(start.elapsed().as_nanos() as f64 / requests as f64)
            },
        ],
    )?;
    let source = "submit, poll, reap on one core, QD 32";
    let cost = |samples: &Samples| Cost::measured(whole_nanos(samples.median()), source);
    Ok(Compute {
        raw: cost(&raw),
        owned: cost(&owned),
        locked: cost(&locked),
        idle: Cost::measured(whole_nanos(idle.median()), "one core"),
    })
}

/// Returns nanoseconds per request, each submitted and polled for separately. Nothing is
/// outstanding before and after.
fn per_request(device: &mut impl BlockDevice, requests: u64) -> f64 {
    let mut free: Vec<u64> = (0..DEPTH as u64).collect();
    let start = Instant::now();
    for number in 0..requests {
        let now = Nanos(number);
        if let Some(tag) = free.pop() {
            // The queue has capacity for all tags, so the submission succeeds.
            let _ = device.submit(now, Request::read(number * 7919, 1, Payload::BitBucket, tag));
        }
        device.poll(now);
        if free.is_empty() {
            reap(device, now, &mut free, 1);
        }
    }
    reap(device, Nanos(requests), &mut free, DEPTH);
    start.elapsed().as_nanos() as f64 / requests as f64
}

/// Reaps until `count` tags are free. The null device has completed all issued requests.
fn reap(device: &mut impl BlockDevice, now: Nanos, free: &mut Vec<u64>, count: usize) {
    while free.len() < count {
        match device.reap() {
            Some(completion) => free.push(black_box(completion.tag)),
            None => {
                device.poll(now);
            }
        }
    }
}

/// A counter on a cache line of its own.
#[repr(align(128))]
struct LineAligned(AtomicU64);

/// Measures the transfer time of a line between two cores.
///
/// Two threads wait for each other's numbers in the line. Each number needs one fetch to read it
/// and one to write the next, so a fetch is half of that time. The result is the lowest decile of
/// the samples, because other programs run on this machine too.
fn transfer(effort: RunLength, cores: &AllowedCpus) -> Result<Nanos, BenchError> {
    let (rounds, samples) = effort.choose((500u64, 200), (100, 10));
    let line = LineAligned(AtomicU64::new(0));
    let wait = |number: u64| {
        while line.0.load(Ordering::Acquire) != number {
            spin_loop();
        }
    };
    let total = rounds * samples;
    on_first_cpu(cores, || {
        thread::scope(|scope| {
            let other = thread::Builder::new().spawn_scoped(scope, || {
                cores.pin(1);
                for round in 0..total {
                    wait(2 * round + 1);
                    line.0.store(2 * round + 2, Ordering::Release);
                }
            })?;
            let mut times = Vec::new();
            for sample in 0..samples {
                let start = Instant::now();
                for round in sample * rounds..(sample + 1) * rounds {
                    line.0.store(2 * round + 1, Ordering::Release);
                    wait(2 * round + 2);
                }
                times.push(start.elapsed().as_nanos() as f64 / (4 * rounds) as f64);
            }
            other.join().map_err(|_| BenchError::Thread("the other core"))?;
            Ok(whole_nanos(Samples::new(times).map_or(0.0, |s| s.quantile(0.1))))
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::multicore::{CostOrigin, Distance};

    #[test]
    fn a_cost_model_takes_measured_values_and_keeps_distances_in_order() {
        let measured = MeasuredCosts::measure(RunLength::Quick, &AllowedCpus::allowed()).unwrap();
        let sheet = measured.cost_model();
        for cost in [sheet.compute.raw, sheet.compute.owned, sheet.compute.locked] {
            assert_eq!(cost.origin, CostOrigin::Measured);
            assert!(cost.time >= Nanos(1));
        }
        let ordered = |m: MeasuredCosts| {
            let costs = m.cost_model();
            assert!(Distance::ALL.windows(2).all(|pair| {
                costs.read[pair[0] as usize].time < costs.read[pair[1] as usize].time
            }));
            costs.read[0].origin
        };
        let with = |transfer| MeasuredCosts { transfer, ..measured };
        assert_eq!(ordered(with(Some(Nanos(20)))), CostOrigin::Measured);
        assert_eq!(
            ordered(with(Some(Nanos(900)))),
            CostOrigin::Given,
            "two sockets, or a busy machine"
        );
        assert_eq!(ordered(with(None)), CostOrigin::Given);
    }
}
