//! Requests per second on several cores, by queue mapping.

use std::sync::Barrier;
use std::thread;
use std::time::Instant;

use block::Device;

use super::super::{BenchError, Candidate, Cores, Effort, Measurement, Samples, Sink, interleaved};
use super::BENCH;
use super::load::Load;
use super::ways::{MQ, MQ_ONE, SQ, layer, raw};

/// Outstanding per core, as in the paper.
const DEPTH: u64 = 32;

/// Requests per second of all devices together, each on a core of its own.
pub(super) fn together<D: Device + Send>(
    devices: &mut [D],
    depth: u64,
    count: u64,
) -> Result<f64, BenchError> {
    let (cores, barrier) = (Cores::allowed(), Barrier::new(devices.len() + 1));
    let total = count * devices.len() as u64;
    let seconds = thread::scope(|scope| {
        let threads: Vec<_> = devices
            .iter_mut()
            .enumerate()
            .map(|(i, device)| {
                let (cores, barrier) = (&cores, &barrier);
                scope.spawn(move || {
                    cores.pin(i);
                    let mut load = Load::new(1 << 31, depth, depth, i as u64);
                    barrier.wait();
                    let ran = load.run(device, count);
                    // A core with nothing of its own left still serves the others' requests, as one
                    // with a runner does.
                    barrier.wait();
                    ran
                })
            })
            .collect();
        barrier.wait();
        let begin = Instant::now();
        barrier.wait();
        let seconds = begin.elapsed().as_secs_f64();
        for thread in threads {
            thread.join().map_err(|_| BenchError::Thread("a submitter"))??;
        }
        Ok::<f64, BenchError>(seconds)
    })?;
    Ok(total as f64 / seconds)
}

/// Measures one and two cores.
///
/// # Errors
/// As for [`run`](super::run).
pub fn run(effort: Effort, sink: &mut Sink<'_>) -> Result<(), BenchError> {
    let (rounds, count) = (effort.choose(21, 2), effort.choose(400_000, 2_000));
    let slow = count / 4;
    let cores = Cores::allowed().count().clamp(2, 8) as u16;
    let mut candidates: Vec<(String, Box<dyn FnMut() -> Result<f64, BenchError>>)> = Vec::new();
    for n in [1, cores] {
        let threads = if n == 1 { "1 thread".into() } else { format!("{n} threads") };
        let name = |what: &str| format!("null, {what}, {threads}, QD 32 each");
        let mut devices = raw(n)?;
        candidates.push((name("raw"), Box::new(move || together(&mut devices, DEPTH, count))));
        let ways = [
            ("mq per-core/per-core", MQ, n, count),
            ("mq per-core/one", MQ, 1, slow),
            ("mq one/one", MQ_ONE, 1, slow),
            ("sq", SQ, 1, slow),
        ];
        for (what, layout, queues, count) in ways {
            let mut devices = layer(layout, n, queues, true)?;
            candidates.push((name(what), Box::new(move || together(&mut devices, DEPTH, count))));
        }
    }
    let names: Vec<String> = candidates.iter().map(|(name, _)| name.clone()).collect();
    let mut turns = candidates.iter_mut().map(|(_, run)| &mut **run as Candidate<'_>);
    let all: [Candidate<'_>; 10] = std::array::from_fn(|_| match turns.next() {
        Some(turn) => turn,
        None => unreachable!("five ways, with one core and with several"),
    });
    let medians = interleaved(rounds, all)?.map(|s: Samples| s.median());
    for (i, (name, rate)) in std::iter::zip(names, medians).enumerate() {
        let row = Measurement::new(BENCH, name, "iops", rate, "1/s");
        let alone = medians[i % 5];
        sink.push(if i < 5 {
            row.against("raw", medians[0])
        } else {
            row.against("1 thread", alone)
        })?;
    }
    Ok(())
}
