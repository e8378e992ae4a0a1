//! Counts the instructions of a request through the block layer, with merging and without. Unlike
//! a time, the count is independent of noise.
//!
//! The requests are random 512-byte reads on the null device: none has a neighbour to merge with.
//! Submission, poll and completion are counted, the application's loop included.
//!
//! | case | requests |
//! |---|---|
//! | `mq-1`, `merge-1` | one at a time, without merging and with it |
//! | `mq-32`, `merge-32` | 32 at a time |
//!
//! | command | effect |
//! |---|---|
//! | `cargo bench --package sluice-block --bench instructions` | counts, and fails if a bound is exceeded |
//! | the same with `-- run merge-1 1000` | runs as many batches without a tracer, for timing or a profiler |

// guarantee: B-52

use std::hint::black_box;
use std::process::ExitCode;

use driver::{Null, NullQueue};
use rng::Rng;
use sluice_block::{BlockDevice, BlockLayer, BlockLayerConfig, Payload, Queue, Request};
use testkit::instructions::{
    CountedCase, CountingMethod, Failed, InstructionBench, Marker, RatioBound, RepeatCount,
};
use time::{Component, Nanos};

/// Requests of a batch.
const BATCH: u64 = 320;
/// Number of counted batches.
const BATCHES: u64 = 1;
/// Number of batches before them, until all one-time work is done.
const WARM_UP_BATCHES: u64 = 3;
/// Number of sectors that requests access.
const AREA_SECTORS: u64 = 1 << 31;

/// Upper bounds of instructions per request: 5 % more than counted.
const CASES: [CountedCase; 4] = [
    CountedCase { name: "mq-1", base: "", bound: 516.0, batch: BATCH },
    CountedCase { name: "merge-1", base: "mq-1", bound: 538.0, batch: BATCH },
    CountedCase { name: "mq-32", base: "", bound: 381.0, batch: BATCH },
    CountedCase { name: "merge-32", base: "mq-32", bound: 412.0, batch: BATCH },
];

/// Merging may cost a request without a neighbour at most a tenth.
const RATIOS: [RatioBound; 2] = [
    RatioBound { case: "merge-1", base: "mq-1", bound: 1.1 },
    RatioBound { case: "merge-32", base: "mq-32", bound: 1.1 },
];

/// Runs all requests, `depth` at a time.
fn batch(queue: &mut Queue<NullQueue>, depth: usize, requests: &[Request]) -> Result<(), Failed> {
    for some in requests.chunks(depth) {
        for request in some {
            queue.submit(Nanos(1), black_box(*request))?;
        }
        queue.poll(Nanos(1));
        while let Some(done) = queue.reap() {
            if !black_box(done).status.is_success() {
                return Err(format!("{done:?}").into());
            }
        }
    }
    Ok(())
}

/// Runs a case in this process.
fn run(case: &str, batches: u64, marker: &mut Marker) -> Result<(), Failed> {
    let (merge, depth) = match case {
        "mq-1" => (false, 1),
        "merge-1" => (true, 1),
        "mq-32" => (false, 32),
        "merge-32" => (true, 32),
        _ => return Err(format!("no such case: {case}").into()),
    };
    let config = BlockLayerConfig { merge, queue_depth: 64, ..BlockLayerConfig::default() };
    let (_, mut queues) = BlockLayer::open(&mut Null::default(), &config)?;
    let mut queue = queues.pop().ok_or("the layer has no queue")?;
    let mut rng = Rng::new(1);
    for i in 0..WARM_UP_BATCHES + batches {
        let read = |tag| Request::read(rng.below(AREA_SECTORS), 1, Payload::BitBucket, tag);
        let requests: Vec<Request> = (0..BATCH).map(read).collect();
        let marker = if i < WARM_UP_BATCHES { &mut Marker::Off } else { &mut *marker };
        marker.mark()?;
        batch(&mut queue, depth, &requests)?;
        marker.mark()?;
    }
    let stats = queue.stats();
    match stats.in_flight() {
        0 => Ok(()),
        more => Err(format!("{more} requests are not complete").into()),
    }
}

fn main() -> ExitCode {
    InstructionBench {
        cases: &CASES,
        ratios: &RATIOS,
        differences: &[],
        batches: BATCHES,
        method: CountingMethod::SingleSteps(RepeatCount::Iterations),
        run,
    }
    .main()
}
