//! I/O speculation in a program's own code (`speculate`): what a ticket costs, and what reads that are
//! issued early bring.
//!
//! A ticket is measured on the null device, one write at a time. Lookups are measured on an emulated drive
//! in real time, whose reads take 40 us, beside the same lookups with one read at a time. Published: 1.29 to
//! 1.5 times the rate, for a B+tree and a log-structured merge tree.

use std::path::Path;
use std::time::Instant;

use event::AllowedCpus;
use open::{OpenOptions, open_scenario};
use rng::Rng;
use scenario::Scenario;
use speculate::{GraphLookup, GraphRead, GraphStep, ReadGraph, SpeculativeHandle};
use user_io::{Buffer, Handle, IoDevice, QueueConfig};

use super::BENCH;
use crate::{BenchError, Measurement, RunLength, Sink, interleaved, on_first_cpu};

/// Nanoseconds that a ticket may take.
const TICKET_NS: f64 = 20.0;

/// The least gain of reads that are issued early.
const GAIN: f64 = 1.3;

const PAGE: usize = 4096;

/// Children of a node, levels below the root, and lookups at a time.
const FANOUT: u64 = 16;
const LEVELS: u32 = 3;
const AT_A_TIME: u32 = 16;

/// Runs of the merge tree, and pages of a run.
const RUNS: u64 = 4;
const RUN: u64 = 1024;

const DRIVE: &str = "[drive]\npreset = \"femu-default\"\ndata = \"memory\"\n\
    geometry = { channels = 4, pus = 4, chunks = 64, pages = 64 }\n";

fn setup(error: impl std::fmt::Display) -> BenchError {
    BenchError::Io(std::io::Error::other(error.to_string()))
}

/// Measures both.
///
/// # Errors
/// If the system refuses memory or threads, a request fails, or the output fails.
pub(super) fn run(length: RunLength, sink: &mut Sink<'_>) -> Result<(), BenchError> {
    let [handle, ticket] = on_first_cpu(&AllowedCpus::allowed(), || tickets(length))?;
    let row = |case, value| Measurement::new(BENCH, case, "write", value, "ns");
    sink.push(row("null device, QD 1, handle", handle))?;
    let row = row("null device, QD 1, ticket", ticket).with_reference("handle", handle);
    sink.push(match length {
        RunLength::Full => row.at_most(handle + TICKET_NS),
        RunLength::Quick => row,
    })?;
    graphs(length, sink)
}

/// Returns the nanoseconds of a write through a handle, and of a write whose ticket is taken.
fn tickets(length: RunLength) -> Result<[f64; 2], BenchError> {
    let device = open::open("null", &OpenOptions::default()).map_err(setup)?;
    let handle = || {
        let queue = device.create_queue(QueueConfig::default()).map_err(setup)?;
        Handle::new(&device, queue).map_err(setup)
    };
    let (mut plain, buffer) = (handle()?, device.buffer(PAGE).map_err(setup)?);
    let mut speculative = SpeculativeHandle::new(handle()?).map_err(|_| setup("outstanding"))?;
    let mut given = Some(device.buffer(PAGE).map_err(setup)?);
    let (count, rounds) = length.choose((10_000u32, 101), (1_000, 3));
    let per_write = |begin: Instant| begin.elapsed().as_nanos() as f64 / f64::from(count);
    let [plain, speculative] = interleaved(
        rounds,
        [
            &mut || {
                let begin = Instant::now();
                for at in 0..count {
                    plain.write(u64::from(at % 1000), &buffer, false).map_err(setup)?;
                }
                Ok(per_write(begin))
            },
            &mut || {
                let begin = Instant::now();
                for at in 0..count {
                    let Some(buffer) = given.take() else { return Err(setup("no buffer")) };
                    let ticket = speculative.write(u64::from(at % 1000), buffer).map_err(setup)?;
                    given = Some(speculative.take(ticket).map_err(setup)?);
                }
                Ok(per_write(begin))
            },
        ],
    )?;
    // Disturbances only add time.
    Ok([plain.quantile(0.25), speculative.quantile(0.25)])
}

/// A lookup in a tree whose nodes have the sectors of their children.
struct TreeLookup {
    key: u64,
    levels: u32,
}

impl GraphLookup for TreeLookup {
    type Output = u64;

    fn begin(&mut self, reads: &mut Vec<GraphRead>) {
        reads.push(GraphRead { lba: 0 });
    }

    fn step(&mut self, page: &Buffer, reads: &mut Vec<GraphRead>) -> GraphStep<u64> {
        let child = word(page, self.key / FANOUT.pow(self.levels) % FANOUT);
        if self.levels == 0 {
            return GraphStep::Done(child);
        }
        self.levels -= 1;
        reads.push(GraphRead { lba: child });
        GraphStep::Next
    }
}

/// A lookup in runs, the newest one first. A page has 1 in the runs that have its key.
struct RunsLookup {
    key: u64,
    first: u64,
}

impl GraphLookup for RunsLookup {
    type Output = u64;

    fn begin(&mut self, reads: &mut Vec<GraphRead>) {
        reads.extend((0..RUNS).map(|run| GraphRead { lba: self.first + run * RUN + self.key }));
    }

    fn step(&mut self, page: &Buffer, _: &mut Vec<GraphRead>) -> GraphStep<u64> {
        match word(page, 0) {
            0 => GraphStep::Next,
            found => GraphStep::Done(found),
        }
    }
}

fn word(page: &Buffer, at: u64) -> u64 {
    let mut bytes = [0; 8];
    page.read(8 * at as usize, &mut bytes);
    u64::from_le_bytes(bytes)
}

/// Returns the sectors of a tree.
fn tree_sectors() -> u64 {
    (0..=LEVELS).map(|level| FANOUT.pow(level)).sum()
}

/// Writes a tree, and the runs behind it.
fn write_pages(device: &IoDevice) -> Result<(), BenchError> {
    let queue = device.create_queue(QueueConfig::default()).map_err(setup)?;
    let mut handle = Handle::new(device, queue).map_err(setup)?;
    let buffer = device.buffer(PAGE).map_err(setup)?;
    let mut write = |sector: u64, words: &mut dyn Iterator<Item = u64>| {
        buffer.fill(0, PAGE, 0);
        words.enumerate().for_each(|(at, word)| buffer.write(8 * at, &word.to_le_bytes()));
        handle.write(sector, &buffer, false).map_err(setup)
    };
    let (mut first, mut nodes) = (0, 1);
    for _ in 0..LEVELS {
        for node in 0..nodes {
            let child = first + nodes + node * FANOUT;
            write(first + node, &mut (child..child + FANOUT))?;
        }
        (first, nodes) = (first + nodes, nodes * FANOUT);
    }
    for leaf in 0..nodes {
        write(first + leaf, &mut (leaf * FANOUT..(leaf + 1) * FANOUT))?;
    }
    for run in 0..RUNS {
        for key in 0..RUN {
            write(
                tree_sectors() + run * RUN + key,
                &mut [u64::from(key % RUNS <= run)].into_iter(),
            )?;
        }
    }
    handle.flush().map_err(setup)
}

/// Measures lookups.
fn graphs(length: RunLength, sink: &mut Sink<'_>) -> Result<(), BenchError> {
    let scenario = Scenario::parse(Path::new("bench"), DRIVE).map_err(setup)?;
    let (device, _) = open_scenario(&scenario, None, &OpenOptions::default()).map_err(setup)?;
    write_pages(&device)?;
    let (gets, rounds) = length.choose((4_000u32, 5), (50, 1));
    let graph = |depth: u32| {
        let queue = device.create_queue(QueueConfig::default()).map_err(setup)?;
        let handle = Handle::new(&device, queue).map_err(setup)?;
        ReadGraph::new(&device, handle, 1, depth).map_err(setup)
    };
    let mut rng = Rng::new(1);
    let keys: Vec<u64> = (0..gets).map(|_| rng.below(FANOUT.pow(LEVELS + 1))).collect();
    let per_second = |begin: Instant| f64::from(gets) / begin.elapsed().as_secs_f64();
    for (name, early, is_tree) in
        [("B+tree of depth 4", AT_A_TIME, true), ("merge tree of 4 runs", RUNS as u32, false)]
    {
        let (mut one, mut many) = (graph(1)?, graph(early)?);
        let first = tree_sectors();
        let gets_of = |graph: &mut ReadGraph<user_io::Queue>| {
            let begin = Instant::now();
            if is_tree {
                let lookups = keys.iter().map(|key| TreeLookup { key: *key, levels: LEVELS });
                let found = graph.run(lookups).map_err(setup)?;
                if found.iter().zip(&keys).any(|(found, key)| *found != Some(*key)) {
                    return Err(setup("a lookup has found another key's value"));
                }
            } else {
                // A get is done before the next one begins.
                for key in &keys {
                    let lookup = RunsLookup { key: key % RUN, first };
                    if graph.run([lookup]).map_err(setup)? != [Some(1)] {
                        return Err(setup("a lookup has not found its key"));
                    }
                }
            }
            Ok(per_second(begin))
        };
        let [of_one, of_many] =
            interleaved(rounds, [&mut || gets_of(&mut one), &mut || gets_of(&mut many)])?;
        let case = |what: &str| format!("{name}, {what}");
        let row = |case: String, samples| Measurement::median(BENCH, case, "gets", samples, "1/s");
        sink.push(row(case("one read at a time"), &of_one))?;
        let early = row(case(&format!("{early} reads at a time")), &of_many);
        let early = early.with_reference("one read at a time", of_one.median());
        sink.push(match length {
            RunLength::Full => early.at_least(GAIN * of_one.median()),
            RunLength::Quick => early,
        })?;
    }
    Ok(())
}
