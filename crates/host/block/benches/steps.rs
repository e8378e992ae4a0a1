//! Counts the instructions of each step of the block layer ([`Step`]), by single steps of the
//! processor, and compares them with those that a modeled machine charges
//! ([`Step::instructions`]).
//!
//! | case | queues, requests at a time |
//! |---|---|
//! | `mq-1`, `mq-32` | one core's own, 1 and 32 |
//! | `sq-1`, `sq-32` | under a lock, 1 and 32 |
//! | `wait-lazy`, `wait-soft` | a thread that waits, woken by the handler or by the soft interrupt |
//!
//! It fails if a request of a case has 3 % more or fewer instructions than its steps are charged
//! with, or if a step that is charged was not executed in any case.
//!
//! `cargo bench --package sluice-block --bench steps`

use std::collections::BTreeMap;
use std::io;
use std::process::ExitCode;
use std::sync::Mutex;

use driver::{IrqRunHistogram, IrqRunRecorder, Null, NullQueue};
use event::Waker;
use platform::ThreadPlatform;
use rng::Rng;
use sluice_block::completion::{
    Blocking, BlockingConfig, ContextHost, ContextInterval, ContextKind, ContextWork,
    InterruptSource, RunningContext, Strategy, StripeMember, Transfer, Waiter,
};
use sluice_block::{
    BlockDevice, BlockLayer, BlockLayerConfig, Layer, Payload, Platform, Queue, QueueModel,
    Request, StagingScope, Step,
};
use testkit::instructions::steps::{self, OUTSIDE, StepCount};
use testkit::instructions::{Failed, RepeatCount};
use time::{Component, Nanos};

const CASES: [&str; 6] = ["mq-1", "mq-32", "sq-1", "sq-32", "wait-lazy", "wait-soft"];

/// Requests that are counted.
const REQUESTS: u64 = 64;

/// Largest difference between the counted and the charged instructions of a request.
const TOLERANCE: f64 = 0.03;

/// A platform on which each step is marked.
#[derive(Clone, Copy, Debug)]
struct Counting;

impl Platform for Counting {
    type Lock<T: Send> = Mutex<T>;

    #[inline(always)]
    fn work(step: Step, count: u32) {
        if count > 0 {
            steps::mark(step as u8 + 1);
        }
    }
}

impl ThreadPlatform for Counting {
    type Thread = ();
    type Cpus = ();

    fn current() {}

    fn cpus() {}

    fn unpark((): &()) {}

    fn park(_: Nanos, _: Option<&()>) {}

    fn now() -> Nanos {
        Nanos(1)
    }
}

/// Keeps what contexts do, to do it step by step.
#[derive(Default)]
struct KeptContexts {
    work: Vec<(ContextKind, ContextWork)>,
}

impl KeptContexts {
    fn run(&mut self, kind: ContextKind) {
        for (_, work) in self.work.iter_mut().filter(|(other, _)| *other == kind) {
            work();
        }
        steps::mark(OUTSIDE);
    }
}

#[derive(Debug)]
struct KeptContext;

impl RunningContext for KeptContext {
    fn is_realtime(&self) -> bool {
        false
    }

    fn runs(&self) -> (IrqRunHistogram, IrqRunHistogram) {
        let none = IrqRunRecorder::new().read();
        (none.clone(), none)
    }

    fn reset_runs(&self) {}
}

impl ContextHost<Counting> for KeptContexts {
    fn start_woken(
        &mut self,
        kind: ContextKind,
        work: ContextWork,
    ) -> io::Result<(Waker, Box<dyn RunningContext>)> {
        self.work.push((kind, work));
        Ok((Waker::calling(|| ())?, Box::new(KeptContext)))
    }

    fn start_timed(
        &mut self,
        _: ContextKind,
        _: ContextInterval,
        _: ContextWork,
    ) -> io::Result<((), Box<dyn RunningContext>)> {
        Ok(((), Box::new(KeptContext)))
    }
}

/// Reads by a thread that waits.
fn wait(
    waiter: &mut Waiter<NullQueue, Counting>,
    contexts: &mut KeptContexts,
    reads: &[u64],
) -> Result<(), Failed> {
    for lba in reads {
        waiter.submit(Transfer::read(*lba, 1, 0))?;
        steps::mark(OUTSIDE);
        contexts.run(ContextKind::HardIrq);
        contexts.run(ContextKind::SoftIrq);
        let done = waiter.wait(Nanos::MAX).ok_or("the read has not completed")?;
        steps::mark(OUTSIDE);
        if !done.status.is_success() {
            return Err(format!("{done:?}").into());
        }
    }
    Ok(())
}

fn run_waiter(strategy: Strategy, begin: &mut dyn FnMut()) -> Result<(), Failed> {
    let members = StripeMember::take(&mut Null::default(), 0).into_iter().collect();
    let config = BlockingConfig { threads: 1, strategy, ..BlockingConfig::default() };
    let mut contexts = KeptContexts::default();
    let (_set, mut queues) =
        Blocking::open_on(members, InterruptSource::PerQueue, &config, &mut contexts)?;
    let mut waiter = queues.pop().ok_or("the set has no queue")?.enter();
    let mut rng = Rng::new(1);
    let mut reads = |count: u64| -> Vec<u64> { (0..count).map(|_| rng.below(1 << 20)).collect() };
    wait(&mut waiter, &mut contexts, &reads(3 * REQUESTS))?;
    let counted = reads(REQUESTS);
    begin();
    wait(&mut waiter, &mut contexts, &counted)
}

fn batch(
    queue: &mut Queue<NullQueue, Counting>,
    depth: usize,
    requests: &[Request],
) -> Result<(), Failed> {
    for some in requests.chunks(depth) {
        for request in some {
            queue.submit(Nanos(1), *request)?;
            steps::mark(OUTSIDE);
        }
        queue.poll(Nanos(1));
        steps::mark(OUTSIDE);
        while let Some(done) = queue.reap() {
            steps::mark(OUTSIDE);
            if !done.status.is_success() {
                return Err(format!("{done:?}").into());
            }
        }
        steps::mark(OUTSIDE);
    }
    Ok(())
}

fn run(case: &str, begin: &mut dyn FnMut()) -> Result<(), Failed> {
    let (queue_model, depth) = match case {
        "mq-1" => (QueueModel::MultiQueue { staging: StagingScope::Core }, 1),
        "mq-32" => (QueueModel::MultiQueue { staging: StagingScope::Core }, 32),
        "sq-1" => (QueueModel::SingleQueue, 1),
        "sq-32" => (QueueModel::SingleQueue, 32),
        "wait-lazy" => return run_waiter(Strategy::LAZY, begin),
        "wait-soft" => return run_waiter(Strategy::SCSI, begin),
        _ => return Err(format!("no such case: {case}").into()),
    };
    let config =
        BlockLayerConfig { queue_model, merge: false, queue_depth: 64, ..Default::default() };
    let (_, mut queues) =
        BlockLayer::open_with_platform::<Null, Counting>(&mut Null::default(), &config)?;
    let mut queue = queues.pop().ok_or("the layer has no queue")?;
    let mut rng = Rng::new(1);
    let mut requests = |count: u64| -> Vec<Request> {
        let read = |tag| Request::read(rng.below(1 << 31), 1, Payload::BitBucket, tag);
        (0..count).map(read).collect()
    };
    batch(&mut queue, depth, &requests(3 * REQUESTS))?;
    let counted = requests(REQUESTS);
    begin();
    batch(&mut queue, depth, &counted)
}

/// Returns whether a machine has a time for the step, whatever its instructions.
fn has_own_time(step: Step) -> bool {
    matches!(step, Step::KernelStart | Step::KernelFinish | Step::CopyLine | Step::ReadRegister)
}

/// Prints the steps of a case. Returns whether the charged instructions are those that were counted.
fn check(case: &str, counts: &BTreeMap<u8, StepCount>) -> bool {
    let (mut counted, mut charged) = (0.0, 0.0);
    for step in Step::ALL {
        let Some(count) = counts.get(&(step as u8 + 1)) else { continue };
        if has_own_time(step) {
            continue;
        }
        let times = count.times as f64;
        println!(
            "{case:6} {:8} {:5.2} times per request, {:6.1} instructions each; {} are charged",
            step.word(),
            times / REQUESTS as f64,
            count.instructions / times,
            step.instructions(),
        );
        counted += count.instructions / REQUESTS as f64;
        charged += f64::from(step.instructions()) * times / REQUESTS as f64;
    }
    let difference = charged / counted - 1.0;
    let holds = difference.abs() <= TOLERANCE;
    let verdict = if holds { "ok" } else { "FAIL" };
    println!(
        "{case:6} a request: {counted:.1} instructions counted, {charged:.1} charged, {:+.1} %: {verdict}",
        100.0 * difference
    );
    holds
}

fn gate() -> Result<bool, Failed> {
    let mut holds = true;
    let mut executed = std::collections::BTreeSet::new();
    for case in CASES {
        let counts = steps::count_case(case, RepeatCount::Iterations)?;
        holds &= check(case, &counts);
        executed.extend(counts.into_keys());
    }
    for step in Step::ALL {
        let is_of_layer = step.layer() == Layer::Block || step == Step::Issue;
        // The null device has a tag for every request, so that none is staged.
        if is_of_layer
            && !has_own_time(step)
            && step != Step::Stage
            && !executed.contains(&(step as u8 + 1))
        {
            println!("{} is charged and was not executed: FAIL", step.word());
            holds = false;
        }
    }
    Ok(holds)
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|a| a != "--bench").collect();
    let done = match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => gate(),
        ["stepped", case] => steps::run_stepped(|begin| run(case, begin)).map(|()| true),
        _ => Err("no arguments".into()),
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("steps: {error}");
            ExitCode::FAILURE
        }
    }
}
