//! Cost of a checkpoint by the size of a process ([Spec14 §4.2], figure 2): a clone with 4 KiB and with
//! huge pages, and a copy of what was written, found by write protection.
//!
//! The process has the memory of this program, some megabytes, and a mapping of the size. The paper's
//! figure begins at 8 KB, where the mapping costs less than the rest.

use std::time::Instant;

use memory_checkpoint::{
    CheckpointError, IncrementalCheckpoint, PageMemory, PageSize, fork_checkpoint,
};

use super::BENCH;
use crate::{BenchError, Measurement, RunLength, Samples, Sink};

/// Pages that are written between two checkpoints.
const WRITTEN: usize = 64;

/// Size at which both checkpoints are compared.
const COMPARED: usize = 1 << 30;

/// The maximum of the incremental checkpoint's time, as a share of the clone's.
const SHARE_MAX: f64 = 1.0 / 20.0;

/// Sizes of the mapping: 8 KiB to 4 GiB.
const SIZES: [(usize, &str); 12] = [
    (8 << 10, "8 KiB"),
    (32 << 10, "32 KiB"),
    (128 << 10, "128 KiB"),
    (512 << 10, "512 KiB"),
    (2 << 20, "2 MiB"),
    (8 << 20, "8 MiB"),
    (32 << 20, "32 MiB"),
    (128 << 20, "128 MiB"),
    (512 << 20, "512 MiB"),
    (COMPARED, "1 GiB"),
    (2 << 30, "2 GiB"),
    (4 << 30, "4 GiB"),
];

impl From<CheckpointError> for BenchError {
    fn from(error: CheckpointError) -> BenchError {
        BenchError::Setup(format!("a checkpoint of memory: {error}"))
    }
}

/// Measures the part.
///
/// # Errors
/// If the system refuses memory, processes or write protection.
pub(super) fn run(length: RunLength, sink: &mut Sink<'_>) -> Result<(), BenchError> {
    let largest = length.choose(4 << 30, 32 << 20);
    let rounds = length.choose(15, 3);
    for (pages, name) in [(PageSize::Small, "4 KiB"), (PageSize::Huge, "huge")] {
        for (bytes, size) in SIZES.into_iter().filter(|(bytes, _)| *bytes <= largest) {
            let memory = PageMemory::new(bytes, pages)?;
            let written = WRITTEN.min(memory.pages());
            let (mut forks, mut writes) = (Vec::new(), Vec::new());
            for round in 0..rounds {
                let times = fork_checkpoint(|| write_pages(&memory, written, round))?;
                forks.push(micros(times.fork));
                writes.push(micros(times.writes));
            }
            let case = format!("clone, {size}, {name} pages");
            let forks = samples(forks, &case)?;
            sink.push(Measurement::median(BENCH, &case, "clone", &forks, "us"))?;
            let writes = samples(writes, &case)?;
            sink.push(Measurement::median(BENCH, &case, "writes_after", &writes, "us"))?;
        }
    }
    let compared = length.choose(COMPARED, 32 << 20);
    incremental(compared, length, rounds, sink)
}

/// Compares a clone and the incremental checkpoint of memory of the same size.
fn incremental(
    bytes: usize,
    length: RunLength,
    rounds: u8,
    sink: &mut Sink<'_>,
) -> Result<(), BenchError> {
    let size = SIZES.iter().find(|(of, _)| *of == bytes).map_or("?", |(_, name)| name);
    let case = format!("checkpoint, {size}, {WRITTEN} written pages");
    // Not with the memory of the other one: a clone copies the tables of all memory.
    let clone = clone_alone(bytes, rounds)?;
    let mut protected = IncrementalCheckpoint::new(PageMemory::new(bytes, PageSize::Small)?)?;
    let [mut writes, mut takes, mut totals, mut all] = [const { Vec::new() }; 4];
    for round in 0..rounds {
        let started = Instant::now();
        write_pages(protected.memory(), WRITTEN, round);
        let after = micros(started.elapsed());
        let started = Instant::now();
        let copied = protected.take()?;
        let take = micros(started.elapsed());
        if copied != WRITTEN {
            let problem = format!("{case}: {copied} pages were found");
            return Err(BenchError::Setup(problem));
        }
        writes.push(after);
        takes.push(take);
        totals.push(after + take);
        let started = Instant::now();
        protected.protect_all()?;
        all.push(micros(started.elapsed()));
    }
    let push = |sink: &mut Sink<'_>, metric, values: Vec<f64>| {
        sink.push(Measurement::median(BENCH, &case, metric, &samples(values, &case)?, "us"))
    };
    push(sink, "first_writes", writes)?;
    push(sink, "take", takes)?;
    push(sink, "protect_all", all)?;
    let row = Measurement::median(BENCH, &case, "incremental", &samples(totals, &case)?, "us");
    let row = row.with_reference("clone", clone);
    sink.push(length.choose(row.clone().at_most(clone * SHARE_MAX), row))
}

/// Returns the median time of a clone with this memory only.
fn clone_alone(bytes: usize, rounds: u8) -> Result<f64, BenchError> {
    let _memory = PageMemory::new(bytes, PageSize::Small)?;
    let mut times = Vec::new();
    for _ in 0..rounds {
        times.push(micros(fork_checkpoint(|| {})?.fork));
    }
    Ok(samples(times, "clone")?.median())
}

/// Writes pages that lie far apart, as far as there are that many.
fn write_pages(memory: &PageMemory, count: usize, round: u8) {
    let distance = memory.pages() / count;
    for page in 0..count {
        memory.write_page(page * distance, round);
    }
}

fn micros(time: std::time::Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

fn samples(values: Vec<f64>, case: &str) -> Result<Samples, BenchError> {
    Samples::new(values).ok_or_else(|| BenchError::Setup(format!("{case}: no sample")))
}
