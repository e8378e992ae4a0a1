//! [`Program`]: what a `[[process]]` does between its I/Os, and while they are in flight
//! [Spec14 fig. 1].
//!
//! ```text
//! wait       compute ─▶ I/O ───────────── in flight ──────────────▶ compute
//! speculate  compute ─▶ checkpoint ─▶ I/O ─▶ compute ─▶ I/O … ─▶ window ─▶ wait for all ─▶ output
//! prefetch   I/O of a later read ─▶ compute with the data of this one
//! ```
//!
//! A job runner issues the I/Os, and has as many in flight as the process may. The program is charged
//! to the core by the calls of its queue.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use block::{Completion, Layer};
use machine::{MachineModel, compute, now};
use scenario::{ProcessSpec, ProcessStrategy};
use serde_json::{Value, json};
use time::Nanos;

use super::wait::ThreadWait;

/// Counters of a process.
#[derive(Debug, Default)]
struct ProgramCounters {
    compute: AtomicU64,
    checkpoint: AtomicU64,
    checkpoints: AtomicU64,
    outputs: AtomicU64,
    delayed_outputs: AtomicU64,
    delay: AtomicU64,
}

impl ProgramCounters {
    fn add(counter: &AtomicU64, value: u64) {
        counter.fetch_add(value, Ordering::Relaxed);
    }
}

/// Work and waits of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessOutcome {
    /// Its program.
    pub spec: ProcessSpec,
    /// Time of its own work on an idle machine.
    pub compute: Nanos,
    /// Number of checkpoints, and their time.
    pub checkpoints: u64,
    /// Time of all checkpoints.
    pub checkpoint: Nanos,
    /// Number of outputs, of a process that speculates.
    pub outputs: u64,
    /// Number of outputs that waited for an I/O.
    pub delayed_outputs: u64,
    /// Time that outputs waited.
    pub delay: Nanos,
}

impl ProcessOutcome {
    /// Returns the outcome as in results.
    pub(crate) fn to_json(self) -> Value {
        json!({
            "strategy": self.spec.strategy.word(),
            "iodepth": self.spec.depth,
            "ios_per_output": self.spec.outputs,
            "compute_ns": self.compute.0,
            "checkpoints": self.checkpoints,
            "checkpoint_ns": self.checkpoint.0,
            "outputs": self.outputs,
            "delayed_outputs": self.delayed_outputs,
            "delay_ns": self.delay.0,
        })
    }
}

/// A process of a scenario and its counters, which its thread shares.
#[derive(Clone, Debug)]
pub(crate) struct ProcessRun {
    pub(crate) spec: ProcessSpec,
    counters: Arc<ProgramCounters>,
}

impl ProcessRun {
    pub(crate) fn new(spec: ProcessSpec) -> ProcessRun {
        ProcessRun { spec, counters: Arc::default() }
    }

    /// Returns what the process has done.
    pub(crate) fn outcome(&self) -> ProcessOutcome {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let ProgramCounters { compute, checkpoint, checkpoints, outputs, delayed_outputs, delay } =
            &*self.counters;
        ProcessOutcome {
            spec: self.spec,
            compute: Nanos(get(compute)),
            checkpoints: get(checkpoints),
            checkpoint: Nanos(get(checkpoint)),
            outputs: get(outputs),
            delayed_outputs: get(delayed_outputs),
            delay: Nanos(get(delay)),
        }
    }
}

/// The queue of a program, as the program uses it while an output waits.
pub(super) trait ProgramQueue {
    /// Polls the queue; returns whether it found something.
    fn poll_queue(&mut self) -> bool;

    /// Returns a completion.
    fn reap_queue(&mut self) -> Option<Completion>;

    /// Returns the time of the next poll that may find something.
    fn queue_deadline(&self) -> Nanos;
}

/// The program of a process.
#[derive(Debug)]
pub(super) struct Program {
    run: ProcessRun,
    compute: Nanos,
    window: Nanos,
    wait: ThreadWait,
    /// Work that the next I/O follows.
    pending: Nanos,
    /// Number of I/Os since the last output.
    since_output: u32,
    in_flight: u32,
    /// Whether there is a checkpoint since the last output.
    has_checkpoint: bool,
    /// Completions that arrived while an output waited.
    arrived: VecDeque<Completion>,
}

impl Program {
    /// Returns the program of a process on a machine. It waits by `wait`.
    pub(super) fn new(run: ProcessRun, model: &MachineModel, wait: ThreadWait) -> Program {
        let compute = run.spec.compute.time(model);
        let window = run.spec.window.map_or(compute, |window| window.time(model)).min(compute);
        Program {
            run,
            compute,
            window,
            wait,
            pending: compute,
            since_output: 0,
            in_flight: 0,
            has_checkpoint: false,
            arrived: VecDeque::new(),
        }
    }

    fn work(&self, time: Nanos) {
        compute(Layer::Application, time);
        ProgramCounters::add(&self.run.counters.compute, time.0);
    }

    /// Does the work before an I/O.
    pub(super) fn before_submit(&mut self) {
        let pending = std::mem::replace(&mut self.pending, Nanos::ZERO);
        self.work(pending);
        let checkpoint = self.run.spec.checkpoint;
        if checkpoint > Nanos::ZERO && !self.has_checkpoint {
            self.has_checkpoint = true;
            compute(Layer::Kernel, checkpoint);
            ProgramCounters::add(&self.run.counters.checkpoints, 1);
            ProgramCounters::add(&self.run.counters.checkpoint, checkpoint.0);
        }
    }

    /// Records that a flush is in flight.
    pub(super) fn flushes(&mut self) {
        self.in_flight += 1;
    }

    /// Does the work after an I/O that is in flight now, up to an output.
    pub(super) fn after_submit(&mut self, queue: &mut impl ProgramQueue) {
        self.in_flight += 1;
        if self.run.spec.strategy.goes_on() {
            // The poll rings the doorbell.
            queue.poll_queue();
        }
        match self.run.spec.strategy {
            ProcessStrategy::Yield | ProcessStrategy::Block => self.pending = self.compute,
            ProcessStrategy::Prefetch => self.work(self.compute),
            ProcessStrategy::Speculate => {
                self.since_output += 1;
                if self.since_output < self.run.spec.outputs {
                    return self.work(self.compute);
                }
                self.work(self.window);
                self.delay_output(queue);
                (self.since_output, self.has_checkpoint) = (0, false);
                self.pending = self.compute.since(self.window);
            }
        }
    }

    /// Waits until no I/O is in flight.
    fn delay_output(&mut self, queue: &mut impl ProgramQueue) {
        let began = now();
        loop {
            let spin = machine::begin_spin();
            let moved = queue.poll_queue();
            while let Some(completion) = queue.reap_queue() {
                self.in_flight -= 1;
                self.arrived.push_back(completion);
            }
            if self.in_flight == 0 {
                break;
            }
            match moved {
                true => self.wait.found(),
                false => self.wait.wait(spin, queue.queue_deadline()),
            }
        }
        let delay = now().since(began);
        ProgramCounters::add(&self.run.counters.outputs, 1);
        ProgramCounters::add(&self.run.counters.delayed_outputs, u64::from(delay > Nanos::ZERO));
        ProgramCounters::add(&self.run.counters.delay, delay.0);
    }

    /// Returns a completion that arrived while an output waited.
    pub(super) fn arrived(&mut self) -> Option<Completion> {
        self.arrived.pop_front()
    }

    /// Records that the job runner has fetched a completion from the queue.
    pub(super) fn reaped(&mut self) {
        self.in_flight -= 1;
    }
}
