//! Write amplification and stalls of a nearly full device under random writes ([LightNVM17
//! §4.2.4]), on drives of several sizes, in virtual time.
//!
//! The first 95 % of the device are filled and then overwritten ten times by 4 KB random writes
//! with 64 outstanding. These results have bounds:
//!
//! * **Write amplification** over the last five overwrites, against the published analysis of
//!   greedy collection ([`greedy`]) at the effective spare space. This is the capacity of lines
//!   that are not reserved over the sectors in use (95 % of the device). Line metadata is added
//!   (`with_metadata`). Bound: within 5 %.
//! * **The longest stall**: the longest time without any completion. Bound:
//!   [`LatencyChain::total`].
//! * **The minimum throughput** of any 100 ms. Bound: greater than zero.
//!
//! [`greedy`]: sim::analytic::greedy::greedy

use block::{BlockDevice, Completion};
use media::{MediaConfig, NandConfig};
use scenario::{Capacity, DriveSpec};
use sim::analytic::{greedy, mean_program, mean_read};
use time::{Component, Nanos};

use super::super::{BenchError, Measurement, RunLength, Sink};
use super::BENCH;
use super::harness::{BenchJob, LightnvmHarness};

/// Share of the device in use.
pub(super) const FULL: f64 = 0.95;
/// Drive writes until steady state, and during the measurement.
const WARM: u64 = 5;
const MEASURED: u64 = 5;
/// Length of a throughput window.
const WINDOW: Nanos = Nanos::from_millis(100);

/// Returns the drive of the paper with `chunks` chunks per parallel unit, and a write buffer of
/// this or the minimum size. It has fewer parallel units and shorter chunks. Ten drive writes are
/// therefore fast, and lines are as many as on a large drive.
fn scenario(chunks: u32, buffer: Option<&str>) -> String {
    let buffer = buffer.map_or_else(String::new, |size| format!("write_buffer = \"{size}\"\n"));
    super::drive::pblk(
        &format!("geometry = {{ channels = 4, pus = 4, pages = 32, chunks = {chunks} }}"),
        &format!("over_provisioning = 0.2\n{buffer}"),
    )
}

/// Chunks per parallel unit, and the write buffer.
const SIZES: [(u32, Option<&str>); 4] = [(64, None), (128, None), (256, None), (128, Some("32M"))];

/// Upper bound of the time without any completion.
///
/// A write completes when it enters the host's write buffer. It cannot enter while the buffer is
/// full, or while the rate limiter waits for GC. In the worst case every step waits for all of the
/// previous one, and these steps precede the next completion:
///
/// 1. *The write buffer drains*: per parallel unit the units that wait for their paired pages, two
///    programs in flight and one unit that is being filled, each tPROG and its transfer.
/// 2. *One victim is read*: all write units of a chunk, each tR and its transfer.
/// 3. *Its valid sectors are programmed*, spread over all parallel units. Greedy collection selects
///    the line with the fewest valid sectors, which has at most the average of all lines in use:
///    the sectors in use over the sectors of lines that are not reserved. One more unit per
///    parallel unit accounts for partly filled units.
/// 4. *It is erased*: tBERS, after at most two programs.
///
/// A transfer waits for one of every other parallel unit of its channel.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LatencyChain {
    /// Time of step 1.
    pub drain: Nanos,
    /// Time of step 2.
    pub read: Nanos,
    /// Time of step 3.
    pub program: Nanos,
    /// Time of step 4.
    pub erase: Nanos,
}

impl LatencyChain {
    /// Returns the chain of this medium, with a share `valid` of the average line valid.
    pub fn from_nand(nand: &NandConfig, valid: f64) -> LatencyChain {
        let g = &nand.geometry;
        let unit_sectors = u64::from(nand.write_unit());
        let bytes = unit_sectors * u64::from(g.sector_bytes);
        let transfer = Nanos::transfer(bytes, nand.timing.channel_bytes_per_sec) * u64::from(g.pus);
        let program = mean_program(nand) + transfer;
        let read = mean_read(nand) * u64::from(nand.pages_per_program()) + transfer;
        let units = u64::from(g.sectors_per_chunk()) / unit_sectors;
        let pairs = u64::from(nand.host_geometry().mw_cunits).div_ceil(unit_sectors);
        let moved = (units as f64 * valid.clamp(0.0, 1.0)).ceil() as u64 + 1;
        LatencyChain {
            drain: program * (pairs + 3),
            read: read * units,
            program: program * moved,
            erase: nand.timing.erase + program * 2,
        }
    }

    /// Returns the sum of all steps.
    pub fn total(&self) -> Nanos {
        self.drain + self.read + self.program + self.erase
    }
}

/// Results of one size.
struct SteadyMeasurement {
    amplification: f64,
    longest_gap: Nanos,
    /// Minimum number of completions in a window.
    fewest: u64,
    iops: f64,
}

/// Measures every size.
///
/// # Errors
/// As for [`run_parts`](super::run_parts).
pub fn run(effort: RunLength, sink: &mut Sink<'_>) -> Result<(), BenchError> {
    for &(chunks, buffer) in effort.choose(&SIZES[..], &[(20, None)]) {
        let mut harness = LightnvmHarness::new(&scenario(chunks, buffer))?;
        let (plan, full) = (harness.spec.clone(), effort == RunLength::Full);
        let (MediaConfig::Nand(nand), Some(capacity)) = (&plan.config.media, plan.capacity) else {
            return Err(super::setup("the drive has no flash"));
        };
        let used = (capacity.logical_sectors as f64 * FULL) as u64;
        let spare = capacity.physical_sectors() as f64 / used as f64 - 1.0;
        let found = measure(&mut harness, used, full)?;
        let case = format!(
            "pblk, {} lines of {} MB{}, 95 % full, 4 KB random overwrites, QD 64",
            capacity.lines,
            (capacity.line_sectors * u64::from(nand.geometry.sector_bytes)) >> 20,
            buffer.map_or_else(String::new, |size| format!(", write buffer {size}")),
        );
        rows(&case, &plan, nand, &capacity, spare, &found, sink)?;
    }
    Ok(())
}

fn rows(
    case: &str,
    plan: &DriveSpec,
    nand: &NandConfig,
    capacity: &Capacity,
    spare: f64,
    found: &SteadyMeasurement,
    sink: &mut Sink<'_>,
) -> Result<(), BenchError> {
    let row = |metric, value, unit| Measurement::new(BENCH, case, metric, value, unit);
    sink.push(row("effective_spare", 100.0 * spare, "%"))?;
    let amplification = row("write_amplification", found.amplification, "");
    let unit = nand.write_unit().into();
    let analysis = greedy::greedy(spare, capacity.line_sectors);
    sink.push(match analysis.map(|data| with_metadata(data, capacity, unit)) {
        Some(analysis) => amplification.with_reference("analysis", analysis).within(0.05, analysis),
        None => amplification,
    })?;
    let chain = LatencyChain::from_nand(nand, 1.0 / (1.0 + spare));
    let longest = chain.total().0 as f64 / 1e6;
    let stall = row("longest_stall", found.longest_gap.0 as f64 / 1e6, "ms");
    sink.push(stall.with_reference("longest chain", longest).at_most(longest))?;
    let per_window = found.iops * WINDOW.as_secs_f64();
    let fewest = row("fewest_completions_in_100_ms", found.fewest as f64, "");
    sink.push(fewest.with_reference("average", per_window).at_least(1.0))?;
    let iops = row("iops", found.iops, "1/s");
    let limit = sim::analytic::ClosedFormLimits::from_spec(plan).sustained.and_then(|s| s.limit);
    sink.push(match limit {
        Some(limit) => iops.with_reference("closed form, 100 % full", limit.iops()),
        None => iops,
    })
}

/// Returns the sectors programmed per host sector, if GC alone amplifies writes by `data`.
///
/// The analysis counts data: D = `data` × U sectors for U host sectors. They fill D / n lines of n
/// data sectors. Each line's header and footer are programmed too, m sectors in write units of
/// `unit`. So D + D × m / n sectors are programmed, `data` × (n + m) / n per host sector. The spare
/// space counts n sectors per line, and so excludes metadata already.
fn with_metadata(data: f64, capacity: &Capacity, unit: u64) -> f64 {
    let metadata = u64::from(capacity.line_metadata_units) * unit;
    data * (capacity.line_sectors + metadata) as f64 / capacity.line_sectors as f64
}

fn measure(
    harness: &mut LightnvmHarness,
    used: u64,
    full: bool,
) -> Result<SteadyMeasurement, BenchError> {
    let bytes = used * 4096;
    let fill = format!("rw=write bs=256k iodepth=8 size={}", bytes & !0x3ffff);
    harness.run_in_zero_time(&[BenchJob("fill", &fill)])?;
    let (warm, measured) = if full { (WARM, MEASURED) } else { (1, 1) };
    let overwrite = |times: u64| {
        format!(
            "rw=randwrite bs=4k iodepth=64 norandommap=1 size={bytes} io_size={}",
            times * bytes
        )
    };
    let mut watch = StallMonitor::new();
    harness.run_wrapped(&[BenchJob("warm", &overwrite(warm))], |device| {
        MonitoredDevice::new(device, &mut watch)
    })?;
    let (before, begin) = (harness.stack.ftl_stats(), harness.now());
    let again = overwrite(measured);
    harness.run_wrapped(&[BenchJob("overwrite", &again)], |device| {
        MonitoredDevice::new(device, &mut watch)
    })?;
    let seconds = harness.now().since(begin).as_secs_f64();
    let stats = harness.stack.ftl_stats().zip(before).map(|(after, before)| after.since(&before));
    let amplification = stats.and_then(|s| s.write_amplification());
    Ok(SteadyMeasurement {
        amplification: amplification.ok_or_else(|| super::setup("nothing was written"))?,
        longest_gap: watch.longest_gap,
        fewest: watch.fewest.unwrap_or(watch.count),
        iops: (measured * used) as f64 / seconds,
    })
}

/// Monitors completions: the longest time without one, and the minimum number in a window.
#[derive(Clone, Debug, Default)]
pub(super) struct StallMonitor {
    now: Nanos,
    last_completion: Option<Nanos>,
    longest_gap: Nanos,
    window_end: Nanos,
    count: u64,
    fewest: Option<u64>,
}

impl StallMonitor {
    pub(super) fn new() -> StallMonitor {
        StallMonitor::default()
    }

    /// Returns the longest time without a completion.
    pub(super) fn longest_gap(&self) -> Nanos {
        self.longest_gap
    }

    fn on_completion(&mut self) {
        match self.last_completion {
            Some(last) => {
                self.longest_gap = self.longest_gap.max(self.now.since(last));
                while self.now >= self.window_end {
                    let count = std::mem::take(&mut self.count);
                    self.fewest = Some(self.fewest.map_or(count, |fewest| fewest.min(count)));
                    self.window_end += WINDOW;
                }
            }
            None => self.window_end = self.now + WINDOW,
        }
        self.last_completion = Some(self.now);
        self.count += 1;
    }
}

/// A device whose completions are monitored.
pub(super) struct MonitoredDevice<'a, D> {
    device: D,
    monitor: &'a mut StallMonitor,
}

impl<'a, D> MonitoredDevice<'a, D> {
    pub(super) fn new(device: D, monitor: &'a mut StallMonitor) -> MonitoredDevice<'a, D> {
        MonitoredDevice { device, monitor }
    }
}

impl<D: BlockDevice> Component for MonitoredDevice<'_, D> {
    fn poll(&mut self, now: Nanos) -> bool {
        self.monitor.now = now;
        self.device.poll(now)
    }
    fn deadline(&self) -> Nanos {
        self.device.deadline()
    }
}

impl<D: BlockDevice> BlockDevice for MonitoredDevice<'_, D> {
    block::delegate_block_device!(self => self.device; limits, submit, memory, set_waker, can_wake,
        enable_sharing, can_wait, wait_for_event, visit_layers);

    fn reap(&mut self) -> Option<Completion> {
        let completion = self.device.reap()?;
        self.monitor.on_completion();
        Some(completion)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stall_and_an_empty_window_are_seen() {
        let mut watch = StallMonitor::new();
        for ms in [5, 6, 7, 90, 104, 106, 350, 351, 460] {
            watch.now = Nanos::from_millis(ms);
            watch.on_completion();
        }
        assert_eq!(watch.longest_gap, Nanos::from_millis(244));
        // Windows of 100 ms from the first completion at 5 ms: 5, 1, 0, 2, and an incomplete one.
        assert_eq!((watch.fewest, watch.count), (Some(0), 1));
    }

    #[test]
    fn metadata_is_programmed_with_every_line_of_data() {
        let harness = LightnvmHarness::new(&scenario(64, None)).unwrap();
        let capacity = harness.spec.capacity.unwrap();
        // 16 chunks of 32 write units of 16 sectors. One unit is the header; the footer of 48 + 16
        // * 4 + 16 * 32 * 4 * 17 bytes takes one unit of 64 KB.
        assert_eq!((capacity.line_sectors, capacity.line_metadata_units), (510 * 16, 2));
        assert_eq!(with_metadata(2.0, &capacity, 16), 2.0 * 512.0 / 510.0);
        let without = Capacity { line_metadata_units: 0, ..capacity };
        assert_eq!(with_metadata(2.0, &without, 16), 2.0);
    }

    #[test]
    fn the_chain_adds_up() {
        let harness = LightnvmHarness::new(&scenario(64, None)).unwrap();
        let MediaConfig::Nand(nand) = &harness.spec.config.media else { panic!("no flash") };
        // 64 KB for each of four units on a channel of 280 MB/s; programs of 1.39 ms, pairs 8
        // apart.
        let transfer = Nanos::transfer(65536, 280_000_000) * 4;
        let program = Nanos(1_390_000) + transfer;
        let chain = LatencyChain::from_nand(nand, 0.75);
        assert_eq!(chain.program, program * 25);
        assert_eq!(chain.read, (Nanos(45_500) + transfer) * 32);
        assert_eq!(chain.erase, Nanos(3_000_000) + program * 2);
        let pairs = u64::from(nand.host_geometry().mw_cunits) / 16;
        assert_eq!(chain.drain, program * (pairs + 3));
        assert!(LatencyChain::from_nand(nand, 1.0).total() > chain.total());
    }
}
