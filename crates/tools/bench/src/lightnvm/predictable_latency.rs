//! Reads concurrent with writes on separate parallel units, and this load on a drive that manages
//! its flash itself ([LightNVM17 §5.4], figure 8).
//!
//! One stream reads 4 KB at random at depth 1. The other writes 64 KB whenever enough reads have
//! completed that writes have their share of all I/Os (0, 20, 33 and 50 %). It has one write in
//! flight per parallel unit and uses its units in turn. On the open-channel drive both streams are
//! vector I/O, each to half of the parallel units. The halves are separated by channel or, as
//! another case, both on all channels, where they share channels but no array. On the drive-managed
//! one both are requests to a block device. It has equal media and a power-loss-protected write
//! buffer, as the paper's NVMe drive has, and the drive chooses the location of writes. The run
//! takes five seconds, as in the paper.
//!
//! | claim of the paper | bound |
//! |---|---|
//! | on separate units, percentiles stay the same as writes increase | at most 5 % above those without writes, where no channel is shared |
//! | on separate units with shared channels | at most the transfer of one page more |
//! | where reads and writes mix, they grow, with 20 % writes already | the 99.9th at least 5 % above that without writes |

use std::path::Path;

use block::{BlockDevice, Payload, Request};
use media::MediaConfig;
use nvme::Address;
use rng::Rng;
use scenario::Scenario;
use time::{Component, Nanos, VirtualRunner};
use workload::Histogram;

use super::super::{BenchError, Measurement, RunLength, Sink};
use super::harness::{BenchJob, LightnvmHarness};
use super::vector_io::{CommandCompletion, VectorIoHost};
use super::{BENCH, PRESET, setup};

/// Percentiles, with the names of their rows.
const PERCENTILES: [(f64, &str); 6] = [
    (50.0, "latency_p50"),
    (90.0, "latency_p90"),
    (95.0, "latency_p95"),
    (99.0, "latency_p99"),
    (99.9, "latency_p99_9"),
    (99.99, "latency_p99_99"),
];

/// Shares of writes, in percent of all I/Os.
const SHARES: [u32; 4] = [0, 20, 33, 50];

/// Maximum ratio of percentiles that count as equal.
const FLAT: f64 = 1.05;

/// Id of a read; a write has the id of its lane.
const READ: u64 = u64::MAX;

/// Executes reads and writes, and returns their completions.
trait MixedIoHost {
    fn now(&self) -> Nanos;
    /// Starts a read of 4 KB at a random address.
    fn read(&mut self) -> Result<(), BenchError>;
    /// Starts a write of 64 KB, if the next parallel unit is free.
    fn write(&mut self) -> Result<bool, BenchError>;
    /// Waits for the next completion.
    fn wait(&mut self) -> Result<Option<CommandCompletion>, BenchError>;
}

/// Reads at depth 1 until `until`, with writes as `share` percent of all I/Os. Returns the
/// latencies of reads and the number of writes.
fn mix(
    side: &mut impl MixedIoHost,
    share: u32,
    until: Nanos,
) -> Result<(Histogram, u64), BenchError> {
    let (mut latency, mut writes) = (Histogram::new(), 0u64);
    side.read()?;
    while let Some(ended) = side.wait()? {
        if ended.user_data != READ {
            continue;
        }
        latency.record(ended.latency);
        // Writes are `share` of 100 I/Os: share / (100 - share) per read.
        while writes * u64::from(100 - share) < latency.count() * u64::from(share) {
            if !side.write()? {
                break;
            }
            writes += 1;
        }
        if side.now() < until {
            side.read()?;
        }
    }
    Ok((latency, writes))
}

/// Measures figure 8.
///
/// # Errors
/// As for [`run_parts`](super::run_parts).
pub fn run(effort: RunLength, sink: &mut Sink<'_>) -> Result<(), BenchError> {
    let time = effort.choose(Nanos::from_secs(5), Nanos::from_millis(50));
    let open = |by_channel| move || SeparatePus::new(by_channel);
    figure("vector I/O, channels of their own", open(true), time, PercentileRule::Flat, sink)?;
    let page = page_transfer()?;
    figure("vector I/O, PUs of their own", open(false), time, PercentileRule::OnePage(page), sink)?;
    figure("drive-managed", || DeviceManaged::new(effort), time, PercentileRule::Grows, sink)
}

/// Bound of the percentiles.
#[derive(Clone, Copy, PartialEq)]
enum PercentileRule {
    Flat,
    /// At most this much more: a transfer in progress on the channel delays the read.
    OnePage(Nanos),
    Grows,
}

/// Returns the transfer time of a page on its channel.
fn page_transfer() -> Result<Nanos, BenchError> {
    let scenario = Scenario::parse(Path::new("bench"), &format!("[drive]\n{PRESET}"));
    let scenario = scenario.map_err(setup)?;
    let MediaConfig::Nand(nand) = &scenario.drives[0].config.media else {
        return Err(setup("the drive has no flash"));
    };
    let bytes = u64::from(nand.geometry.page_bytes);
    Ok(Nanos::transfer(bytes, nand.timing.channel_bytes_per_sec))
}

fn figure<S: MixedIoHost>(
    name: &str,
    make: impl Fn() -> Result<S, BenchError>,
    time: Nanos,
    judge: PercentileRule,
    sink: &mut Sink<'_>,
) -> Result<(), BenchError> {
    let mut pure: Option<Histogram> = None;
    for share in SHARES {
        let mut side = make()?;
        let until = side.now() + time;
        let (latency, writes) = mix(&mut side, share, until)?;
        let case = format!("{name}, 4 KB random reads, {share} % writes");
        let all = (latency.count() + writes).max(1);
        let got = 100.0 * writes as f64 / all as f64;
        let row = Measurement::new(BENCH, &case, "writes_of_ios", got, "%");
        sink.push(row.with_reference("asked for", f64::from(share)))?;
        for (percent, metric) in PERCENTILES {
            let value = latency.percentile(percent).as_micros_f64();
            let row = Measurement::new(BENCH, &case, metric, value, "us");
            let Some(pure) = &pure else {
                sink.push(row)?;
                continue;
            };
            let without = pure.percentile(percent).as_micros_f64();
            let row = row.with_reference("without writes", without);
            sink.push(match judge {
                PercentileRule::Flat => row.at_most(FLAT * without),
                // Percentiles have the precision of the histogram.
                PercentileRule::OnePage(page) => {
                    row.at_most(1.02 * (without + page.as_micros_f64()))
                }
                PercentileRule::Grows if percent == 99.9 => row.at_least(FLAT * without),
                PercentileRule::Grows => row,
            })?;
        }
        pure.get_or_insert(latency);
    }
    Ok(())
}

/// Vector I/O with reads and writes on separate parallel units.
struct SeparatePus {
    direct: VectorIoHost,
    rng: Rng,
    /// Parallel units for reads.
    reads: Vec<Address>,
    /// Parallel units for writes: the number of started write units, and whether one is in flight.
    writes: Vec<(Address, u32, bool)>,
    next_pu: usize,
}

/// Number of chunks of each parallel unit that are filled before, and then read.
const FILLED: u32 = 1;

impl SeparatePus {
    fn new(by_channel: bool) -> Result<SeparatePus, BenchError> {
        let mut direct = VectorIoHost::new(&format!("[drive]\n{PRESET}"))?;
        let g = direct.info().geometry;
        let all = (0..g.total_pus()).map(|pu| direct.striped(pu));
        let is_read =
            |a: &Address| if by_channel { a.group < g.groups / 2 } else { a.pu < g.pus / 2 };
        let (reads, writes): (Vec<Address>, Vec<Address>) = all.partition(is_read);
        direct.fill(&reads, FILLED)?;
        let writes = writes.into_iter().map(|pu| (pu, 0, false)).collect();
        Ok(SeparatePus { direct, rng: Rng::new(1), reads, writes, next_pu: 0 })
    }
}

impl MixedIoHost for SeparatePus {
    fn now(&self) -> Nanos {
        self.direct.now()
    }

    fn read(&mut self) -> Result<(), BenchError> {
        let pu = self.reads[self.rng.below(self.reads.len() as u64) as usize];
        let sectors = u64::from(self.direct.info().geometry.sectors);
        let first = Address { sector: self.rng.below(sectors) as u32, chunk: 0, ..pu };
        self.direct.send(false, first, 1, READ)
    }

    fn write(&mut self) -> Result<bool, BenchError> {
        let g = self.direct.info().geometry;
        let (pu, started, busy) = &mut self.writes[self.next_pu];
        if *busy {
            return Ok(false);
        }
        let units = g.sectors / g.ws_opt;
        let (chunk, unit) = (*started / units, *started % units);
        if chunk >= g.chunks {
            return Err(setup("the writes have come to the end of the drive"));
        }
        let first = Address { chunk, sector: unit * g.ws_opt, ..*pu };
        (*started, *busy) = (*started + 1, true);
        self.direct.send(true, first, g.ws_opt, self.next_pu as u64)?;
        self.next_pu = (self.next_pu + 1) % self.writes.len();
        Ok(true)
    }

    fn wait(&mut self) -> Result<Option<CommandCompletion>, BenchError> {
        let ended = self.direct.wait()?;
        if let Some(lane) = ended.and_then(|e| self.writes.get_mut(e.user_data as usize)) {
            lane.2 = false;
        }
        Ok(ended)
    }
}

/// A drive that manages its flash itself.
struct DeviceManaged {
    harness: LightnvmHarness,
    runner: VirtualRunner,
    rng: Rng,
    /// Number of sectors that are read; as many behind them are written.
    area: u64,
    written: u64,
    outstanding: u32,
    /// Submission times of the read, and of writes by lane.
    read_at: Nanos,
    write_at: Vec<Option<Nanos>>,
}

/// Number of sectors of a write.
const UNIT: u32 = 16;

impl DeviceManaged {
    fn new(effort: RunLength) -> Result<DeviceManaged, BenchError> {
        let mut harness = LightnvmHarness::new(&format!(
            "[drive]\n{PRESET}personality = \"block\"\n\
             write_buffer = {{ kind = \"power-loss-protected\", size = \"64M\" }}\n"
        ))?;
        let size = effort.choose("16g", "512m");
        harness.run_in_zero_time(&[BenchJob(
            "fill",
            &format!("rw=write bs=256k iodepth=8 size={size}"),
        )])?;
        // Filling leaves its last data in the write buffer.
        let settled = harness.now() + Nanos::from_millis(500);
        harness.run_until(settled)?;
        let mut runner = VirtualRunner::new();
        runner.advance_to(harness.now());
        Ok(DeviceManaged {
            harness,
            runner,
            rng: Rng::new(1),
            area: effort.choose(16 << 18, 1 << 17),
            written: 0,
            outstanding: 0,
            read_at: Nanos::ZERO,
            write_at: vec![None; 64],
        })
    }

    fn submit(&mut self, request: Request) -> Result<(), BenchError> {
        let now = self.runner.now();
        self.outstanding += 1;
        let device = &mut self.harness.stack.device;
        device.submit(now, request).map_err(|_| BenchError::Thread("a full device"))
    }
}

impl MixedIoHost for DeviceManaged {
    fn now(&self) -> Nanos {
        self.runner.now()
    }

    fn read(&mut self) -> Result<(), BenchError> {
        self.read_at = self.runner.now();
        let lba = self.rng.below(self.area);
        self.submit(Request::read(lba, 1, Payload::BitBucket, READ))
    }

    fn write(&mut self) -> Result<bool, BenchError> {
        let Some(lane) = self.write_at.iter().position(Option::is_none) else { return Ok(false) };
        self.write_at[lane] = Some(self.runner.now());
        let lba = self.area + self.written % self.area;
        self.written += u64::from(UNIT);
        self.submit(Request::write(lba, UNIT, Payload::BitBucket, lane as u64))?;
        Ok(true)
    }

    fn wait(&mut self) -> Result<Option<CommandCompletion>, BenchError> {
        while self.outstanding > 0 {
            let now = self.runner.now();
            let (device, drive) = (&mut self.harness.stack.device, &mut self.harness.stack.drive);
            device.poll(now);
            drive.poll(now);
            device.poll(now);
            if let Some(done) = device.reap() {
                if !done.status.is_success() {
                    return Err(BenchError::Status(done.status));
                }
                self.outstanding -= 1;
                let lane = self.write_at.get_mut(done.tag as usize);
                let at = lane.and_then(Option::take).unwrap_or(self.read_at);
                return Ok(Some(CommandCompletion { user_data: done.tag, latency: now.since(at) }));
            }
            match drive.deadline().min(device.deadline()) {
                Nanos::MAX => return Err(BenchError::Thread("a drive")),
                due if due > now => self.runner.advance_to(due),
                _ => {}
            }
        }
        Ok(None)
    }
}
