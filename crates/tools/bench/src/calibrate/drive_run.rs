//! Runs a drive of a scenario for a fraction of a second, and measures the processor time of its
//! commands: personality, FTL and data on the drive's side, the target on the host's.
//!
//! The drive runs in virtual time, so that it is never idle; its polls are those of real time. The
//! host keeps some requests outstanding in a range that was written before. A drive with
//! an image starts from its contents, and does not change it.

use std::sync::Arc;

use block::{BlockDevice, Payload, Request};
use event::RealClock;
use mem::{Iova, SharedRegion};
use rng::Rng;
use scenario::DriveSpec;
use sim::analytic::ClosedFormLimits;
use stack::{Stack, with_overlay};
use time::{Component, Nanos};

use super::verdict::{CommandCpu, DriveCost, MeasuredDrive, demands};
use crate::{RunLength, Samples};

/// Requests outstanding at a time.
const OUTSTANDING: u64 = 32;
/// Requests of a sample.
const WINDOW: u64 = 256;
/// Maximum bytes of the range that is used.
const RANGE_BYTES: u64 = 64 << 20;
/// Maximum time of the measurement of one kind of request.
const TIME_MAX: Nanos = Nanos(200_000_000);

/// Measures what a drive costs. The cost is unknown, with the reason, if the drive cannot be run.
pub fn measure(effort: RunLength, plan: &DriveSpec, clock_read: Nanos) -> DriveCost {
    let measured = DriveRun::new(plan, clock_read)
        .and_then(|mut run| run.measure(plan, effort.choose(1_000, 2)));
    match measured {
        Ok(measured) => DriveCost::Measured(measured),
        Err(reason) => DriveCost::Unknown { reason },
    }
}

/// A drive with its host.
struct DriveRun {
    stack: Stack,
    /// The host's memory, which is registered at `at`.
    _memory: Arc<SharedRegion>,
    at: Iova,
    clock: RealClock,
    clock_read: Nanos,
    rng: Rng,
    /// Virtual time.
    now: Nanos,
    spent: CommandCpu,
}

/// The requests of a run, each of `sectors` sectors in the first `range`.
#[derive(Clone, Copy)]
struct RequestPattern {
    writes: bool,
    is_random: bool,
    sectors: u32,
    range: u64,
}

impl DriveRun {
    fn new(plan: &DriveSpec, clock_read: Nanos) -> Result<DriveRun, String> {
        if !plan.is_block_device() {
            return Err("the drive takes only vector commands: it has no target".into());
        }
        let stack = Stack::build(&with_overlay(plan), None).map_err(|error| error.to_string())?;
        let bytes = demands(&ClosedFormLimits::from_spec(plan)).map(|demand| demand.bytes);
        let bytes = bytes.into_iter().max().unwrap_or_default() as usize;
        let bytes = bytes.next_multiple_of(mem::PAGE_BYTES);
        let memory = SharedRegion::anonymous(bytes).map_err(|error| error.to_string())?;
        let at = stack.device.memory().register(&memory).map_err(|error| error.to_string())?;
        Ok(DriveRun {
            stack,
            _memory: memory,
            at,
            clock: RealClock::start(),
            clock_read,
            rng: Rng::new(1),
            now: Nanos::ZERO,
            spent: CommandCpu::default(),
        })
    }

    fn measure(&mut self, plan: &DriveSpec, windows: u64) -> Result<MeasuredDrive, String> {
        let limits = *self.stack.device.limits();
        let sector_bytes = u64::from(limits.sector_bytes);
        let [reads, writes] = demands(&ClosedFormLimits::from_spec(plan)).map(|demand| {
            let sectors = (demand.bytes / sector_bytes).max(1).min(limits.sectors);
            let range = limits.sectors.min(RANGE_BYTES / sector_bytes).max(sectors);
            let writes = demand.kind == "writes";
            RequestPattern { writes, is_random: true, sectors: sectors as u32, range }
        });
        // Reads find data on the media.
        self.stack.drive.set_zero_latency(true);
        let fill = RequestPattern { is_random: false, ..writes };
        self.run(fill, writes.range / u64::from(writes.sectors))?;
        self.stack.drive.set_zero_latency(false);
        Ok(MeasuredDrive {
            reads: self.cost_of(reads, windows)?,
            writes: self.cost_of(writes, windows)?,
        })
    }

    /// Returns the processor time of a request: the median of windows of requests.
    fn cost_of(&mut self, pattern: RequestPattern, windows: u64) -> Result<CommandCpu, String> {
        // The first window fills caches and the drive's queues.
        self.run(pattern, WINDOW)?;
        let begun = self.clock.now();
        let (mut drive, mut host) = (Vec::new(), Vec::new());
        for _ in 0..windows {
            self.spent = CommandCpu::default();
            self.run(pattern, WINDOW)?;
            drive.push(self.spent.drive.0 as f64 / WINDOW as f64);
            host.push(self.spent.host.0 as f64 / WINDOW as f64);
            if self.clock.now().since(begun) > TIME_MAX {
                break;
            }
        }
        let median = |values| {
            let samples = Samples::new(values);
            super::queue::whole_nanos(samples.map_or(0.0, |samples| samples.median()))
        };
        Ok(CommandCpu { drive: median(drive), host: median(host) })
    }

    /// Runs `count` requests.
    fn run(&mut self, pattern: RequestPattern, count: u64) -> Result<(), String> {
        let positions = (pattern.range / u64::from(pattern.sectors)).max(1);
        let (mut sent, mut done) = (0, 0);
        while done < count {
            let begun = self.clock.now();
            let mut has_moved = false;
            while sent < count && sent - done < OUTSTANDING {
                let position =
                    if pattern.is_random { self.rng.below(positions) } else { sent % positions };
                let (lba, data) =
                    (position * u64::from(pattern.sectors), Payload::Contiguous(self.at));
                let request = match pattern.writes {
                    true => Request::write(lba, pattern.sectors, data, sent & 0xffff_ffff),
                    false => Request::read(lba, pattern.sectors, data, sent & 0xffff_ffff),
                };
                if self.stack.device.submit(self.now, request).is_err() {
                    break;
                }
                sent += 1;
                has_moved = true;
            }
            has_moved |= self.stack.device.poll(self.now);
            while let Some(completion) = self.stack.device.reap() {
                if !completion.status.is_success() {
                    return Err(format!("a request failed: {}", completion.status));
                }
                done += 1;
                has_moved = true;
            }
            let host_done = self.clock.now();
            has_moved |= self.stack.drive.poll(self.now);
            let drive_done = self.clock.now();
            let net = |time: Nanos| Nanos(time.0.saturating_sub(self.clock_read.0));
            self.spent.host += net(host_done.since(begun));
            self.spent.drive += net(drive_done.since(host_done));
            if !has_moved {
                let next = self.stack.device.deadline().min(self.stack.drive.deadline());
                if next == Nanos::MAX || next <= self.now {
                    return Err("the drive does not complete a request".into());
                }
                self.now = next;
            }
        }
        Ok(())
    }
}
