//! Data loss on failing media: programs, erases and reads that fail at rates up to 1 in 100, and a
//! failing die. pblk runs on the emulated drive in virtual time ([LightNVM17 §4.2.3]).
//!
//! A device is filled and overwritten at random, and then read completely. Whenever the map has a
//! new location for a sector, the medium itself is queried whether it can return the data there.
//! The bounds at every rate are:
//!
//! * **Lost**: sectors that cannot be read, or have other data than acknowledged, although the
//!   media can return the data: none.
//! * **Hidden**: sectors that the media cannot return, but that are read without an error: none.
//! * **Other errors**: reads that fail with a status other than a media error: none.
//!
//! If failing programs and erases exhaust the spare chunks, writes must fail with
//! CAPACITY_EXCEEDED, and reads have these bounds as well. A rate is per sector and program
//! (reads), per page (programs), and per chunk (erases).

use std::sync::Arc;

use block::{BlockDevice, Payload, Request};
use ftl::L2pEntry;
use media::{InjectedFault, MediaError, PhysSector};
use mem::{Iova, SharedRegion};
use nvme::{PuId, Status};
use rng::Rng;
use time::{Component, Nanos};

use super::super::{BenchError, Measurement, RunLength, Sink};
use super::drive::pblk;
use super::harness::LightnvmHarness;
use super::{BENCH, setup};

const SECTOR: usize = 4096;
/// Number of sectors of a write.
const WRITE: u32 = 8;
/// Failure rates, as one in so many operations; `None` for no failures.
const ONE_IN: [Option<u32>; 4] = [None, Some(10_000), Some(1_000), Some(100)];
/// Maximum number of polls for a request.
const POLL_LIMIT: u64 = 10_000_000;

/// Kind of failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FaultKind {
    Reads,
    Programs,
    Erases,
    All,
}

impl FaultKind {
    fn name(self) -> &'static str {
        match self {
            FaultKind::Reads => "reads fail",
            FaultKind::Programs => "programs fail",
            FaultKind::Erases => "erases fail",
            FaultKind::All => "all of them fail",
        }
    }

    /// Returns the lines of the scenario.
    fn scenario_lines(self, rate: f64) -> String {
        let mut lines = String::new();
        if matches!(self, FaultKind::Reads | FaultKind::All) && rate > 0.0 {
            // With a code that corrects nothing, n bits have an error with probability 1 -
            // exp(-n·rber).
            let rber = -(1.0 - rate).ln() / (SECTOR * 8) as f64;
            lines += &format!("errors.rber = {rber:e}\nerrors.rber_growth = 1.0\n");
            lines += "errors.ecc_bits = 0\n";
        }
        if matches!(self, FaultKind::Programs | FaultKind::All) {
            lines += &format!("errors.program_failure_rate = {rate:?}\n");
        }
        if matches!(self, FaultKind::Erases | FaultKind::All) {
            lines += &format!("errors.erase_failure_rate = {rate:?}\n");
        }
        lines
    }
}

/// Counts of the final read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct ReadBackCounts {
    /// Sectors that neither pblk nor the media can read.
    unreadable: u64,
    lost: u64,
    hidden: u64,
    other: u64,
}

/// pblk on a small drive with data, and the expected value of every sector.
struct ErrorsHarness {
    harness: LightnvmHarness,
    now: Nanos,
    memory: Arc<SharedRegion>,
    at: Iova,
    rng: Rng,
    /// Expected value of each sector; 0 if it was not written.
    model: Vec<u64>,
    value: u64,
    locations: Vec<L2pEntry>,
    /// Whether the media cannot return the sector, and no other copy exists.
    uncorrectable: Vec<bool>,
}

impl ErrorsHarness {
    fn new(drive: &str, spare: f64) -> Result<ErrorsHarness, BenchError> {
        let drive = format!(
            "data = \"memory\"\n\
             geometry = {{ channels = 2, pus = 4, planes = 1, pages = 16, chunks = 40 }}\n{drive}"
        );
        let text = pblk(&drive, &format!("over_provisioning = {spare:?}"));
        let harness = LightnvmHarness::new(&text.replacen("data = \"none\"\n", "", 1))?;
        let sectors = harness.stack.device.limits().sectors as usize;
        let memory = SharedRegion::anonymous(WRITE as usize * SECTOR)?;
        let at = harness.stack.device.memory().register(&memory)?;
        Ok(ErrorsHarness {
            now: harness.now(),
            harness,
            memory,
            at,
            rng: Rng::new(1),
            model: vec![0; sectors],
            value: 0,
            locations: vec![L2pEntry::Unmapped; sectors],
            uncorrectable: vec![false; sectors],
        })
    }

    fn sectors(&self) -> u64 {
        self.model.len() as u64
    }

    fn request(&mut self, request: Request) -> Result<Status, BenchError> {
        let mut programs = self.programs();
        let stack = &mut self.harness.stack;
        let full = BenchError::Thread("a full device");
        stack.device.submit(self.now, request).map_err(|_| full)?;
        for _ in 0..POLL_LIMIT {
            self.track_relocations(&mut programs)?;
            let stack = &mut self.harness.stack;
            let moved = stack.device.poll(self.now) | stack.drive.poll(self.now);
            if let Some(done) = stack.device.reap() {
                return Ok(done.status);
            }
            let due = stack.drive.deadline().min(stack.device.deadline());
            if !moved && due < Nanos::MAX {
                self.now = self.now.max(due);
            }
        }
        Err(setup(format_args!("{request:?} never ends")))
    }

    /// Checks all sectors that may have been relocated since the last check. A buffered sector may
    /// have moved to the medium and back to the buffer without a program in between. All others
    /// need a program to reach a location and to leave it.
    fn track_relocations(&mut self, programs: &mut u64) -> Result<(), BenchError> {
        let any = self.programs() != *programs;
        *programs = self.programs();
        for lba in 0..self.model.len() {
            if any || matches!(self.locations[lba], L2pEntry::Buffer(_)) {
                self.track_sector(lba)?;
            }
        }
        Ok(())
    }

    fn programs(&self) -> u64 {
        self.harness.stack.ftl().map_or(0, |ftl| ftl.stats().programs)
    }

    fn write(&mut self, lba: u64) -> Result<Status, BenchError> {
        for i in 0..WRITE as usize {
            let bytes = (self.value + 1 + i as u64).to_le_bytes();
            self.memory.write(i * SECTOR, &bytes);
            self.memory.write((i + 1) * SECTOR - 8, &bytes);
        }
        let before = self.value;
        self.value += u64::from(WRITE);
        let area = lba as usize..(lba + u64::from(WRITE)) as usize;
        let gone = self.uncorrectable[area.clone()].to_vec();
        self.uncorrectable[area.clone()].fill(false);
        let status = self.request(Request::write(lba, WRITE, Payload::Contiguous(self.at), 0))?;
        if status.is_success() {
            for (i, sector) in area.clone().enumerate() {
                self.model[sector] = before + 1 + i as u64;
            }
            // A write that waits for capacity may have been written and lost before its last sector
            // was admitted.
            for sector in area.clone() {
                self.uncorrectable[sector] =
                    self.uncorrectable[sector] && self.read(sector as u64)?.is_err();
            }
            self.locations[area].fill(L2pEntry::Unmapped);
        } else {
            for (now, before) in self.uncorrectable[area.clone()].iter_mut().zip(gone) {
                *now |= before;
            }
            // A part of the write may have been admitted.
            for sector in area {
                match self.read(sector as u64)? {
                    Ok(value) if value > before => {
                        (self.model[sector], self.uncorrectable[sector]) = (value, false);
                    }
                    Ok(_) | Err(_) => {}
                }
            }
        }
        Ok(status)
    }

    /// Returns the value of a sector; 0 if its first and last words differ, which no written sector
    /// has.
    fn read(&mut self, lba: u64) -> Result<Result<u64, Status>, BenchError> {
        let status = self.request(Request::read(lba, 1, Payload::Contiguous(self.at), 0))?;
        if !status.is_success() {
            return Ok(Err(status));
        }
        let end = |offset| {
            let mut bytes = [0; 8];
            self.memory.read(offset, &mut bytes);
            u64::from_le_bytes(bytes)
        };
        let (first, last) = (end(0), end(SECTOR - 8));
        Ok(Ok(if first == last { first } else { 0 }))
    }

    /// Checks whether a sector has a new location, and whether the media can return the data there.
    fn track_sector(&mut self, lba: usize) -> Result<(), BenchError> {
        let stack = &mut self.harness.stack;
        let at = stack.ftl().and_then(|ftl| ftl.location(lba as u64));
        let at = at.unwrap_or(L2pEntry::Unmapped);
        if self.locations[lba] == at {
            return Ok(());
        }
        self.locations[lba] = at;
        if let (L2pEntry::Flash(phys), Some(nand)) = (at, stack.drive.nand_mut()) {
            match nand.check_read(PhysSector(phys.get())) {
                Ok(_) => {}
                Err(MediaError::Uncorrectable { .. } | MediaError::DieFailed { .. }) => {
                    self.uncorrectable[lba] = true;
                }
                Err(e) => return Err(setup(format_args!("sector {lba} is where nothing is: {e}"))),
            }
        }
        Ok(())
    }

    /// Writes all sectors once, or overwrites as many at random; stops at the first failing write.
    fn churn(&mut self, random: bool) -> Result<Status, BenchError> {
        let writes = self.sectors() / u64::from(WRITE);
        for i in 0..writes {
            let at = if random { self.rng.below(writes) } else { i };
            let status = self.write(at * u64::from(WRITE))?;
            for lba in 0..self.model.len() {
                self.track_sector(lba)?;
            }
            if !status.is_success() {
                return Ok(status);
            }
        }
        Ok(Status::SUCCESS)
    }

    /// Makes a die fail.
    fn fail_die(&mut self, pu: u32) -> Result<(), BenchError> {
        let nand = self.harness.stack.drive.nand_mut().ok_or_else(|| setup("no flash"))?;
        nand.inject(InjectedFault::DieFailure { pu: PuId(pu) }).map_err(setup)?;
        self.locations.fill(L2pEntry::Unmapped);
        (0..self.model.len()).try_for_each(|lba| self.track_sector(lba))
    }

    fn check(&mut self) -> Result<ReadBackCounts, BenchError> {
        let mut found = ReadBackCounts::default();
        for lba in 0..self.model.len() {
            // GC continues while other sectors are read.
            self.track_sector(lba)?;
            let got = self.read(lba as u64)?;
            self.track_sector(lba)?;
            match (got, self.uncorrectable[lba]) {
                (Ok(value), false) => found.lost += u64::from(value != self.model[lba]),
                (Ok(_), true) => found.hidden += 1,
                (Err(status), _) if !status.is_media_error() => found.other += 1,
                (Err(_), false) => found.lost += 1,
                (Err(_), true) => found.unreadable += 1,
            }
        }
        Ok(found)
    }
}

/// Measures all combinations.
///
/// # Errors
/// As for [`run_parts`](super::run_parts).
pub fn run(effort: RunLength, sink: &mut Sink<'_>) -> Result<(), BenchError> {
    let overwrites = effort.choose(3, 1);
    for fails in [FaultKind::Reads, FaultKind::Programs, FaultKind::Erases, FaultKind::All] {
        for one_in in ONE_IN.into_iter().skip(effort.choose(0, 3)) {
            let Some(one_in) = one_in else {
                if fails == FaultKind::All {
                    run_case(
                        "nothing fails",
                        ErrorsHarness::new("", 0.25)?,
                        overwrites,
                        false,
                        sink,
                    )?;
                }
                continue;
            };
            let case = format!("{}, 1 in {}", fails.name(), scenario::format::count(one_in.into()));
            let harness = ErrorsHarness::new(&fails.scenario_lines(1.0 / f64::from(one_in)), 0.25)?;
            run_case(&case, harness, overwrites, fails != FaultKind::Reads, sink)?;
        }
    }
    // The spare space exceeds a die.
    let mut harness = ErrorsHarness::new("", 0.6)?;
    for random in [false, true] {
        succeeded(harness.churn(random)?)?;
    }
    harness.fail_die(3)?;
    run_case("one die of eight fails", harness, overwrites, false, sink)?;
    // Programs fail until no spare chunk remains.
    let harness = ErrorsHarness::new(&FaultKind::Programs.scenario_lines(0.02), 0.25)?;
    let (mut harness, mut ended) = (harness, Status::SUCCESS);
    for round in 0..100 {
        ended = harness.churn(round > 0)?;
        if !ended.is_success() {
            break;
        }
    }
    let case = "pblk, programs fail until no chunk is spare";
    let refused = f64::from(u8::from(ended.is(Status::CAPACITY_EXCEEDED)));
    sink.push(Measurement::new(BENCH, case, "capacity_exceeded", refused, "").at_least(1.0))?;
    rows(case, &mut harness, sink)
}

fn succeeded(status: Status) -> Result<(), BenchError> {
    if status.is_success() { Ok(()) } else { Err(BenchError::Status(status)) }
}

/// Overwrites and reads all sectors; with `may_fill_up`, writes may be refused before.
fn run_case(
    case: &str,
    mut harness: ErrorsHarness,
    overwrites: u32,
    may_fill_up: bool,
    sink: &mut Sink<'_>,
) -> Result<(), BenchError> {
    let case = format!("pblk, {case}");
    let mut full = false;
    for round in 0..=overwrites {
        let status = harness.churn(round > 0)?;
        full = status.is(Status::CAPACITY_EXCEEDED);
        if full && may_fill_up {
            break;
        }
        succeeded(status)?;
    }
    let row = |metric, value| Measurement::new(BENCH, &case, metric, value, "");
    sink.push(row("read_only", f64::from(u8::from(full))))?;
    let stats = harness.harness.stack.ftl_stats().unwrap_or_default();
    sink.push(row("programs_failed", stats.program_failures as f64))?;
    sink.push(row("erases_failed", stats.erase_failures as f64))?;
    rows(&case, &mut harness, sink)
}

fn rows(case: &str, harness: &mut ErrorsHarness, sink: &mut Sink<'_>) -> Result<(), BenchError> {
    let found = harness.check()?;
    let row = |metric, value: u64| Measurement::new(BENCH, case, metric, value as f64, "sectors");
    let all = harness.sectors() as f64;
    sink.push(row("unreadable", found.unreadable).with_reference("all", all))?;
    sink.push(row("lost", found.lost).at_most(0.0))?;
    sink.push(row("hidden", found.hidden).at_most(0.0))?;
    sink.push(row("other_errors", found.other).at_most(0.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_media_cannot_return_is_told_from_what_is_lost() {
        let mut harness = ErrorsHarness::new("", 0.25).unwrap();
        assert!(harness.churn(false).unwrap().is_success());
        let all = harness.sectors();
        assert_eq!(harness.check().unwrap(), ReadBackCounts::default());
        // Simulate a device that lost one sector, and returned another one that the media had lost.
        let on_flash: Vec<usize> = (0..all as usize)
            .filter(|l| matches!(harness.locations[*l], L2pEntry::Flash(_)))
            .collect();
        for lba in [on_flash[5], on_flash[8]] {
            let L2pEntry::Flash(phys) = harness.locations[lba] else { unreachable!() };
            let nand = harness.harness.stack.drive.nand_mut().unwrap();
            nand.inject(InjectedFault::Uncorrectable { phys: PhysSector(phys.get()) }).unwrap();
        }
        // The check finds the first sector again; the second is not reported to it.
        harness.locations[on_flash[5]] = L2pEntry::Unmapped;
        harness.model[on_flash[6]] += 1;
        harness.uncorrectable[on_flash[7]] = true;
        let found = ReadBackCounts { unreadable: 1, lost: 2, hidden: 1, other: 0 };
        assert_eq!(harness.check().unwrap(), found);
    }
}
