//! [`Load`]: the submissions and completions of each core, as with fio in [SYSTOR13 §4.2].
//!
//! The load consists of random 512-byte reads that are submitted one at a time. A core at its
//! maximum depth reaps one completion and submits the next read. Cores share no data except an
//! optional shared counter. Every request increments and decrements it, as Linux's direct I/O did
//! for block devices until 4.1 (commit fe0f07d08ee3), and as the paper found "throughout the
//! library" ([SYSTOR13 §5.2]).

use std::sync::{Arc, Mutex, PoisonError};

use block::{BlockDevice, Completion, Layer, Payload, Platform, Request, Step};
use machine::{Modeled, compute, now};
use rng::Rng;
use time::Nanos;

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

/// Other work of the machine: on each core that submits, a fair thread that computes for `work` in
/// each `period`. Its first period begins later by an equal part of a period on each core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BackgroundLoad {
    /// Processor time in each period.
    pub work: Nanos,
    /// Time from one start to the next.
    pub period: Nanos,
    /// Cost of a switch between two threads of a core.
    pub switch: Nanos,
    /// Time for which the load is measured beside this work.
    pub measured: Nanos,
}

impl BackgroundLoad {
    /// The work of core `index` of `cores`, until the machine stops.
    pub(super) fn run(self, index: usize, cores: usize) {
        let mut next = Nanos(self.period.0 * index as u64 / cores as u64);
        while !machine::is_stopping() {
            machine::sleep_until_timer(next);
            compute(Layer::Application, self.work);
            next = (next + self.period).max(now());
        }
    }
}

/// Latency above which a request counts as slow ([SYSTOR13 §5.1]).
const SLOW: Nanos = Nanos::from_millis(1);

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
    /// Number of them that took more than 1 ms.
    pub slow: u64,
    /// Measured time.
    pub time: Nanos,
}

/// The counts of all cores.
#[derive(Debug)]
pub(super) struct LoadCounts {
    load: Load,
    cores: u64,
    completed: u64,
    /// Start and end of the measurement.
    counted: Option<(Nanos, Nanos)>,
    /// Time to measure for, instead of the load's number of requests.
    measured: Option<Nanos>,
    sum: u128,
    max: Nanos,
    slow: u64,
}

impl LoadCounts {
    pub(super) fn new(load: Load, measured: Option<Nanos>, cores: usize) -> LoadCounts {
        let (cores, max) = (cores as u64, Nanos::ZERO);
        LoadCounts { load, cores, completed: 0, counted: None, measured, sum: 0, max, slow: 0 }
    }

    /// Returns the measurements; `None` if no request was measured.
    pub(super) fn outcome(&self) -> Option<LoadOutcome> {
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
            slow: self.slow,
            time,
        })
    }

    fn warm(&self) -> u64 {
        self.load.warm * self.cores
    }

    /// Counts a completion.
    fn complete(&mut self, took: Nanos) {
        self.completed += 1;
        let (now, warm) = (now(), self.warm());
        match &mut self.counted {
            None if self.completed >= warm => {
                self.counted = Some((now, now));
                machine::begin_measurement();
            }
            None => {}
            Some((_, end)) => {
                *end = now;
                self.sum += u128::from(took.0);
                self.max = self.max.max(took);
                self.slow += u64::from(took > SLOW);
            }
        }
        let is_over = match (self.measured, self.counted) {
            (Some(measured), counted) => counted.is_some_and(|(start, _)| now >= start + measured),
            (None, _) => self.completed >= warm + self.load.count * self.cores,
        };
        if is_over {
            machine::stop();
        }
    }
}

/// The program of one core.
#[derive(Debug)]
pub(super) struct CoreLoad<D> {
    pub(super) device: D,
    pub(super) index: usize,
    pub(super) load: Load,
    /// CPU time of a request outside of the block layer.
    pub(super) application: Nanos,
    /// CPU time of a request on a device that charges none itself.
    pub(super) device_work: Nanos,
    /// The shared counter; its address identifies its cache line.
    pub(super) counter: Arc<u64>,
    pub(super) counts: Arc<Mutex<LoadCounts>>,
}

impl<D: BlockDevice> CoreLoad<D> {
    /// Runs until the machine stops.
    pub(super) fn run(mut self) {
        let depth = self.load.depth.max(1) as usize;
        let (mut began, mut free) = (vec![Nanos::ZERO; depth], Vec::from_iter(0..depth));
        let mut rng = Rng::new(self.index as u64);
        while !machine::is_stopping() {
            if let Some(slot) = free.pop() {
                began[slot] = now();
                if self.submit(&mut rng, slot) {
                    continue;
                }
                free.push(slot);
            }
            let slot = self.reap();
            free.extend(slot);
            if let Some(slot) = slot {
                let took = now().since(began[slot]);
                self.counts.lock().unwrap_or_else(PoisonError::into_inner).complete(took);
            }
        }
    }

    fn touch_counter(&self) {
        if self.load.shared_counter {
            Modeled::wrote(&*self.counter);
        }
    }

    /// Submits a request. Returns whether the device took it.
    fn submit(&mut self, rng: &mut Rng, slot: usize) -> bool {
        compute(Layer::Application, self.application);
        self.touch_counter();
        compute(Layer::Driver, self.device_work);
        let lba = rng.below(self.device.limits().sectors);
        let request = Request::read(lba, 1, Payload::BitBucket, slot as u64);
        let is_sent = self.device.submit(now(), request).is_ok();
        self.device.poll(now());
        is_sent
    }

    /// Looks for a completion. Returns its slot.
    fn reap(&mut self) -> Option<usize> {
        let since = now();
        let found = self.device.reap().or_else(|| {
            self.device.poll(now());
            self.device.reap()
        });
        let Some(Completion { tag, .. }) = found else {
            if now() == since {
                machine::spin_until(machine::begin_spin(), Step::Poll, since + Nanos(1));
            }
            return None;
        };
        self.touch_counter();
        Some(tag as usize)
    }
}
