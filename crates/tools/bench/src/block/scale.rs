//! Requests per second on several cores, by queue mapping.

use std::sync::Barrier;
use std::thread;
use std::time::Instant;

use block::BlockDevice;
use event::AllowedCpus;

use super::super::{BenchError, Measurement, RunLength, Samples, Sink, interleave};
use super::BENCH;
use super::load::Load;
use super::variants::{MQ, MQ_ONE, SQ, block_layer, raw};

/// Outstanding requests per core, as in \[SYSTOR13\].
const DEPTH: u64 = 32;

/// The least share of its threads' number by which `mq` with a hardware queue each multiplies the rate of one thread.
const SCALING_MIN: f64 = 0.95;

/// Requests per second of all devices together, each on a core of its own.
fn run_together<D: BlockDevice + Send>(
    devices: &mut [D],
    depth: u64,
    count: u64,
) -> Result<f64, BenchError> {
    let (cores, barrier) = (AllowedCpus::allowed(), Barrier::new(devices.len()));
    let total = count * devices.len() as u64;
    let epoch = Instant::now();
    let spans = thread::scope(|scope| {
        let threads: Vec<_> = devices
            .iter_mut()
            .enumerate()
            .map(|(i, device)| {
                let (cores, barrier) = (&cores, &barrier);
                scope.spawn(move || {
                    cores.pin(i);
                    let mut load = Load::new(1 << 31, depth, depth, i as u64);
                    barrier.wait();
                    let begin = epoch.elapsed();
                    load.run(device, count)?;
                    Ok((begin, epoch.elapsed()))
                })
            })
            .collect();
        let join = |thread: thread::ScopedJoinHandle<'_, _>| {
            thread.join().map_err(|_| BenchError::Thread("a submitter"))?
        };
        threads.into_iter().map(join).collect::<Result<Vec<_>, BenchError>>()
    })?;
    // Measure from the first start to the last end, because the measuring thread may not run
    // meanwhile.
    let begin = spans.iter().map(|(begin, _)| *begin).min().unwrap_or_default();
    let end = spans.iter().map(|(_, end)| *end).max().unwrap_or_default();
    Ok(total as f64 / (end - begin).as_secs_f64())
}

/// A measurement.
type Run = Box<dyn FnMut() -> Result<f64, BenchError>>;

/// Measures one and two cores.
///
/// # Errors
/// As for [`run`](super::run).
pub fn run(effort: RunLength, sink: &mut Sink<'_>) -> Result<(), BenchError> {
    let (rounds, count) = (effort.choose(21, 2), effort.choose(400_000, 2_000));
    let slow = count / 4;
    let cores = AllowedCpus::allowed().count().clamp(2, 8) as u16;
    let mut candidates: Vec<(String, Run)> = Vec::new();
    for n in [1, cores] {
        let threads = if n == 1 { "1 thread".into() } else { format!("{n} threads") };
        let name = |what: &str| format!("null, {what}, {threads}, QD 32 each");
        let mut devices = raw(n)?;
        candidates.push((name("raw"), Box::new(move || run_together(&mut devices, DEPTH, count))));
        let ways = [
            ("mq per-core/per-core", MQ, n, count),
            ("mq per-core/one", MQ, 1, slow),
            ("mq one/one", MQ_ONE, 1, slow),
            ("sq", SQ, 1, slow),
        ];
        for (what, layout, queues, count) in ways {
            let mut devices = block_layer(layout, n, queues, true)?;
            candidates
                .push((name(what), Box::new(move || run_together(&mut devices, DEPTH, count))));
        }
    }
    let rates = interleave(rounds, candidates.len(), |which| candidates[which].1())?;
    let rates: Vec<Samples> = rates.into_iter().filter_map(Samples::new).collect();
    let alone = rates.len() / 2;
    for (i, ((name, _), rate)) in std::iter::zip(candidates, &rates).enumerate() {
        let is_owned = name.contains("mq per-core/per-core");
        let row = Measurement::median(BENCH, name, "iops", rate, "1/s");
        sink.push(match i.checked_sub(alone) {
            None => row.with_reference("raw", rates[0].median()),
            Some(same) => {
                let one = rates[same].median();
                let row = row.with_reference("1 thread", one);
                if is_owned { row.at_least(SCALING_MIN * f64::from(cores) * one) } else { row }
            }
        })?;
    }
    Ok(())
}
