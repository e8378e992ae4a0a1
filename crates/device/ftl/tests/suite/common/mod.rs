//! [`TestFlash`]: a flash for tests. It stores one 64-bit value per sector, completes operations in
//! random order, enforces the rules of NAND, fails on request, and can lose power. A parallel unit
//! executes its operations in submission order; it [may report](TestFlash::reorder) their
//! completions in any order.
#![allow(dead_code, unreachable_pub, reason = "not every test uses all of it")]

pub mod bench;
pub mod golden;
mod power;

use std::collections::{BTreeSet, HashMap};
use std::ops::Deref;

use ftl::{
    CapacityError, CapacityPlan, ChunkReport, FlashBackend, FlashGeometry, Ftl, FtlConfig, Lba,
    LineMetadata, NamedOob, NewFtlError, Oob, OpToken, ReadAddress, ReadDest, RecoveryOp,
    RecoveryStats, SlotId, VictimDecision, VictimLines, WriteUnit,
};
use nvme::{ChunkId, Geometry, PhysSector, PuId, Status};
use rng::Rng;
use time::Nanos;

use golden::CallHash;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content {
    Value(u64),
    Bytes(Vec<u8>),
}

#[derive(Clone, Debug)]
enum Op {
    Program {
        op: OpToken,
        chunk: u32,
        sector: u32,
        sectors: Vec<(CellOob, Content)>,
    },
    /// Sectors on one parallel unit that read `read` covers.
    Read {
        read: usize,
        addresses: Vec<(usize, u32, u32)>,
        target: ReadDest,
    },
    Erase {
        op: OpToken,
        chunk: u32,
    },
}

/// An operation that was executed.
#[derive(Clone, Copy, Debug)]
enum OpCompletion {
    Program { op: OpToken, chunk: u32, sector: u32, status: Status },
    Read { op: OpToken, failed: u64, is_host: bool },
    Erase { op: OpToken, status: Status },
}

/// Maximum number of completions that a parallel unit holds back.
const DEFERRED_ENDS_MAX: usize = 4;

/// Completions between two checks of the FTL's invariants. A check visits every sector, and filling
/// a larger flash takes more completions, so the period grows with the square of the size.
/// `SLUICE_CHECK_PERIOD=1` finds the completion that breaks an invariant.
fn check_period(geometry: &FlashGeometry) -> u64 {
    match std::env::var("SLUICE_CHECK_PERIOD") {
        Ok(n) => n.parse().expect("SLUICE_CHECK_PERIOD is a number of completions"),
        Err(_) => (geometry.total_sectors().pow(2) >> 19).max(97),
    }
}

#[derive(Clone, Debug)]
enum Cell {
    Written(CellOob, Content),
    Torn,
}

/// The out-of-band bytes of a sector, and what they say of a logical sector. Sectors with names are
/// none.
#[derive(Clone, Copy, Debug)]
struct CellOob {
    bytes: [u8; Oob::BYTES],
    oob: Oob,
}

impl CellOob {
    fn new(bytes: [u8; Oob::BYTES]) -> CellOob {
        let oob = match NamedOob::decode(&bytes) {
            Some(_) => RecoveryOp::PADDING,
            None => Oob::decode(&bytes).expect("an FTL writes out-of-band bytes"),
        };
        CellOob { bytes, oob }
    }
}

impl Deref for CellOob {
    type Target = Oob;

    fn deref(&self) -> &Oob {
        &self.oob
    }
}

pub struct TestFlash {
    pub geometry: FlashGeometry,
    stores_data: bool,
    cells: Vec<Option<Cell>>,
    written: Vec<u32>,
    failing: Vec<bool>,
    bad: Vec<bool>,
    /// By chunk, whether it is offline: it can no longer be read, programmed or erased.
    pub dead: Vec<bool>,
    queues: Vec<Vec<Op>>,
    /// By parallel unit, operations that were executed and not reported yet.
    completions: Vec<Vec<OpCompletion>>,
    /// Chooses the completion that is reported next; `None` reports them in order.
    order: Option<Rng>,
    /// Programs reported after a later program of the same chunk; and by chunk, the highest sector
    /// reported so far.
    pub late: u64,
    reported: Vec<u32>,
    /// Successful programs reported after the failure of a later program of the same chunk.
    pub mixed: u64,
    failures: Vec<bool>,
    slots: Vec<Content>,
    /// By read: its token, the number of outstanding parts, and a bit mask of the failed addresses.
    reads: Vec<(OpToken, usize, u64)>,
    pub requests: HashMap<u64, Vec<u64>>,
    pub rng: Rng,
    pub program_fail: f64,
    pub erase_fail: f64,
    pub read_fail: f64,
    pub programs: u64,
    pub erases: u64,
    /// Probability that a recovery cannot read a sector.
    pub lost_metadata: f64,
    /// Whether the flash kicks the FTL after a read only if the FTL asks for it, as owners of a
    /// real flash do.
    pub lazy: bool,
    /// Whether an unreadable sector becomes readable when a newer version of it exists.
    pub heals: bool,
    pub unreadable: BTreeSet<u32>,
    pub recoveries: Vec<RecoveryStats>,
    /// Power cuts, including those during a recovery.
    pub cuts: u64,
    /// Hash of every program, read and erase that the FTL issued, in order.
    pub calls: CallHash,
    /// Chooses victims in place of the FTL's policy, and counts the choices.
    pub choose: Option<fn(&VictimLines<'_>) -> VictimDecision>,
    pub choices: u64,
    /// Completions reported so far, and the number between two checks of the FTL's invariants.
    completions_reported: u64,
    check_period: u64,
}

/// Checks the FTL's invariants.
///
/// # Panics
/// If one does not hold.
pub fn check(ftl: &Ftl) {
    if let Err(violation) = ftl.check_invariants() {
        panic!("{violation}\n{}", ftl.debug_state());
    }
}

pub fn geometry(
    groups: u32,
    pus: u32,
    chunks: u32,
    sectors: u32,
    unit: u32,
    pair: u32,
) -> Geometry {
    Geometry {
        groups,
        pus,
        chunks,
        sectors,
        sector_bytes: 512,
        oob_bytes: 16,
        ws_min: unit,
        ws_opt: unit,
        mw_cunits: pair,
    }
}

/// Returns this configuration with line metadata, if the geometry has space for it.
pub fn with_metadata(shape: &FlashGeometry, config: &FtlConfig) -> FtlConfig {
    let on = FtlConfig { line_metadata: LineMetadata::On, ..*config };
    let total = shape.total_chunks();
    match CapacityPlan::new(shape, &on, total, total) {
        Err(CapacityError::LineMetadata { .. }) => {
            FtlConfig { line_metadata: LineMetadata::Off, ..*config }
        }
        _ => on,
    }
}

/// Returns the smallest map cache that this configuration accepts, in sectors.
pub fn map_cache_min(shape: &FlashGeometry, config: &FtlConfig) -> u32 {
    let config = FtlConfig { map_cache_sectors: 1, ..*config };
    match Ftl::new(*shape, config, |_| ChunkReport::Free) {
        Err(NewFtlError::Capacity(CapacityError::MapCacheTooSmall {
            sectors: 1,
            sectors_min: least,
        })) => least,
        other => panic!("a cache of one sector must be too small: {other:?}"),
    }
}

impl TestFlash {
    /// Returns the write units that garbage collection is reading from the flash.
    pub fn relocation_reads(&self) -> usize {
        let ops = self.queues.iter().flatten();
        let reads = ops.filter_map(|op| match op {
            Op::Read { read, target: ReadDest::Buffer, .. } => Some(*read),
            _ => None,
        });
        reads.collect::<BTreeSet<usize>>().len()
    }

    pub fn new(geometry: FlashGeometry, stores_data: bool, slots: u32, seed: u64) -> TestFlash {
        TestFlash {
            stores_data,
            cells: if stores_data {
                vec![None; geometry.total_sectors() as usize]
            } else {
                Vec::new()
            },
            written: vec![0; geometry.total_chunks() as usize],
            failing: vec![false; geometry.total_chunks() as usize],
            bad: vec![false; geometry.total_chunks() as usize],
            dead: vec![false; geometry.total_chunks() as usize],
            queues: vec![Vec::new(); geometry.pus as usize],
            completions: vec![Vec::new(); geometry.pus as usize],
            order: None,
            late: 0,
            reported: vec![0; geometry.total_chunks() as usize],
            mixed: 0,
            failures: vec![false; geometry.total_chunks() as usize],
            slots: vec![Content::Value(0); slots as usize],
            reads: Vec::new(),
            requests: HashMap::new(),
            rng: Rng::new(seed),
            geometry,
            program_fail: 0.0,
            erase_fail: 0.0,
            read_fail: 0.0,
            programs: 0,
            erases: 0,
            lost_metadata: 0.0,
            lazy: false,
            heals: false,
            unreadable: BTreeSet::new(),
            recoveries: Vec::new(),
            cuts: 0,
            calls: CallHash::default(),
            choose: None,
            choices: 0,
            completions_reported: 0,
            check_period: check_period(&geometry),
        }
    }

    /// Makes every later program of a chunk fail.
    pub fn fail(&mut self, chunk: u32) {
        self.failing[chunk as usize] = true;
    }

    /// Takes a chunk offline. Returns the logical sectors that had a copy in it.
    pub fn kill(&mut self, chunk: u32) -> Vec<u32> {
        self.dead[chunk as usize] = true;
        self.copies(chunk).into_iter().map(|(_, lba)| lba).collect()
    }

    /// Returns the location and the logical sector of every written sector of a chunk.
    pub fn copies(&self, chunk: u32) -> Vec<(u32, u32)> {
        let first = (chunk * self.geometry.sectors_per_chunk) as usize;
        let cells = &self.cells[first..first + self.geometry.sectors_per_chunk as usize];
        let lba = |cell: &Option<Cell>| match cell {
            Some(Cell::Written(oob, _)) => oob.lba.map(Lba::get),
            _ => None,
        };
        (0..).zip(cells).filter_map(|(sector, cell)| Some((sector, lba(cell)?))).collect()
    }

    /// Returns the location, the logical sector and the value of every written sector of a chunk; no
    /// value of a translation page.
    pub fn contents(&self, chunk: u32) -> Vec<(u32, u32, Option<u64>)> {
        let first = (chunk * self.geometry.sectors_per_chunk) as usize;
        let value = |sector: u32| match &self.cells[first + sector as usize] {
            Some(Cell::Written(_, Content::Value(value))) => Some(*value),
            _ => None,
        };
        self.copies(chunk).into_iter().map(|(sector, lba)| (sector, lba, value(sector))).collect()
    }

    /// Returns the location of the latest version of a logical sector.
    pub fn newest(&self, lba: u32) -> Option<u32> {
        let copies = (0..).zip(&self.cells).filter_map(|(phys, cell)| match cell {
            Some(Cell::Written(oob, _)) if oob.lba == Some(Lba(lba)) => Some((oob.sequence, phys)),
            _ => None,
        });
        copies.max().map(|(_, phys)| phys)
    }

    /// Returns the written sectors of a chunk: location, sequence number of the unit, and logical
    /// sector.
    pub fn written_in(&self, chunk: u32) -> Vec<(u32, u64, Option<u32>)> {
        let first = chunk * self.geometry.sectors_per_chunk;
        let cells = &self.cells[first as usize..(first + self.geometry.sectors_per_chunk) as usize];
        let what = |(phys, cell): (u32, &Option<Cell>)| match cell {
            Some(Cell::Written(oob, _)) => Some((phys, oob.sequence.get(), oob.lba.map(Lba::get))),
            _ => None,
        };
        (first..).zip(cells).filter_map(what).collect()
    }

    /// Returns the bytes of a sector if it holds bytes instead of a value.
    pub fn bytes_at(&self, phys: u32) -> Option<&[u8]> {
        match self.cells.get(phys as usize)? {
            Some(Cell::Written(_, Content::Bytes(bytes))) => Some(bytes),
            _ => None,
        }
    }

    /// From now on, parallel units report completions in a random order given by the seed.
    pub fn reorder(&mut self, seed: u64) {
        self.order = Some(Rng::new(seed ^ 0x0_4de4));
    }

    pub fn outstanding(&self) -> usize {
        let ends: usize = self.completions.iter().map(Vec::len).sum();
        self.queues.iter().map(Vec::len).sum::<usize>() + ends
    }

    fn readable(&self, phys: u32) -> bool {
        let (chunk, sector) =
            (self.geometry.chunk_of(PhysSector(phys)), phys % self.geometry.sectors_per_chunk);
        let written = self.written[chunk.index()];
        sector < written
            && (self.failing[chunk.index()]
                || written == self.geometry.sectors_per_chunk
                || sector - sector % self.geometry.ws_opt
                    + self.geometry.ws_opt
                    + self.geometry.mw_cunits
                    <= written)
    }

    /// Returns the locations of all line metadata.
    pub fn metadata(&self) -> Vec<u32> {
        let is = |c: &Option<Cell>| matches!(c, Some(Cell::Written(oob, _)) if oob.metadata);
        (0..).zip(&self.cells).filter(|(_, c)| is(c)).map(|(phys, _)| phys).collect()
    }

    /// Returns every location that a logical sector was written to.
    pub fn copies_of(&self, lba: u32) -> Vec<u32> {
        let is = |c: &Option<Cell>| matches!(c, Some(Cell::Written(oob, _)) if oob.lba == Some(Lba(lba)));
        (0..).zip(&self.cells).filter(|(_, c)| is(c)).map(|(phys, _)| phys).collect()
    }

    /// Whether a power cut has left an unreadable sector.
    pub fn has_torn(&self) -> bool {
        self.cells.iter().any(|cell| matches!(cell, Some(Cell::Torn)))
    }

    /// Makes a sector unreadable.
    pub fn lose(&mut self, phys: u32) {
        if let Some(cell) = &mut self.cells[phys as usize] {
            *cell = Cell::Torn;
        }
    }

    /// Flips a bit in the contents of a sector.
    pub fn damage(&mut self, phys: u32) {
        if let Some(Cell::Written(_, Content::Bytes(bytes))) = &mut self.cells[phys as usize] {
            bytes[9] ^= 0x40;
        }
    }

    /// Executes the oldest operation of a random parallel unit, or reports a held-back completion.
    pub fn step(&mut self, ftl: &mut Ftl) -> bool {
        let has_some =
            |pu: &usize| !self.queues[*pu].is_empty() || !self.completions[*pu].is_empty();
        let busy: Vec<usize> = (0..self.queues.len()).filter(has_some).collect();
        if busy.is_empty() {
            // No outstanding operation could complete a request.
            if let Some(stall) = ftl.explain_stall() {
                panic!("{stall}\n{}", ftl.debug_state());
            }
            return false;
        }
        let pu = busy[self.rng.below(busy.len() as u64) as usize];
        self.complete_oldest(pu, ftl);
        true
    }

    /// Executes the oldest operation of every parallel unit: the duration of one operation passes.
    pub fn step_all_pus(&mut self, ftl: &mut Ftl) {
        for i in 0..self.geometry.pus {
            let pu = self.geometry.striped_pu(i).index();
            if !self.queues[pu].is_empty() || !self.completions[pu].is_empty() {
                self.complete_oldest(pu, ftl);
            }
        }
    }

    /// Executes the oldest operation of a parallel unit and reports its completion. If completions
    /// are reordered, reports any held-back completion of the unit, or none.
    fn complete_oldest(&mut self, pu: usize, ftl: &mut Ftl) {
        let end = (!self.queues[pu].is_empty()).then(|| self.execute_oldest(pu)).flatten();
        let Some(order) = &mut self.order else {
            return end.into_iter().for_each(|end| self.report(end, ftl));
        };
        let ends = &mut self.completions[pu];
        ends.extend(end);
        let may_wait = ends.len() < DEFERRED_ENDS_MAX && !self.queues[pu].is_empty();
        if ends.is_empty() || may_wait && order.chance(0.4) {
            return;
        }
        let end = ends.remove(order.below(ends.len() as u64) as usize);
        self.report(end, ftl);
    }

    fn report(&mut self, end: OpCompletion, ftl: &mut Ftl) {
        match end {
            OpCompletion::Program { op, chunk, sector, status } => {
                let reported = &mut self.reported[chunk as usize];
                self.late += u64::from(sector < *reported);
                *reported = sector.max(*reported);
                let failed = &mut self.failures[chunk as usize];
                self.mixed += u64::from(status.is_success() && *failed);
                *failed |= !status.is_success();
                ftl.program_done(Nanos(0), op, status, self);
            }
            OpCompletion::Read { op, failed, .. } => {
                if !ftl.read_done(op, failed, self) && self.lazy {
                    return;
                }
            }
            OpCompletion::Erase { op, status } => ftl.erase_done(op, status),
        }
        ftl.kick(Nanos(0), self);
        self.completions_reported += 1;
        if self.completions_reported.is_multiple_of(self.check_period) {
            check(ftl);
        }
    }

    /// Executes the oldest operation of a parallel unit. A read on several parallel units completes
    /// with its last part.
    fn execute_oldest(&mut self, pu: usize) -> Option<OpCompletion> {
        match self.queues[pu].remove(0) {
            Op::Program { op, chunk, sector, sectors } => {
                let failed = self.failing[chunk as usize] || self.rng.chance(self.program_fail);
                let end = |status| Some(OpCompletion::Program { op, chunk, sector, status });
                if self.dead[chunk as usize] {
                    return end(Status::OFFLINE_CHUNK);
                }
                if failed {
                    self.failing[chunk as usize] = true;
                    return end(Status::WRITE_FAULT);
                }
                assert_eq!(
                    self.written[chunk as usize], sector,
                    "programs of a chunk must be in order"
                );
                self.programs += 1;
                self.written[chunk as usize] += self.geometry.ws_opt;
                if self.heals {
                    let cells = &self.cells;
                    let lbas: Vec<_> = sectors.iter().filter_map(|(oob, _)| oob.lba).collect();
                    self.unreadable.retain(|phys| match &cells[*phys as usize] {
                        Some(Cell::Written(oob, _)) => oob.lba.is_none_or(|l| !lbas.contains(&l)),
                        _ => true,
                    });
                }
                if self.stores_data {
                    let first = (chunk * self.geometry.sectors_per_chunk + sector) as usize;
                    for (i, (oob, content)) in sectors.into_iter().enumerate() {
                        assert!(
                            self.cells[first + i].is_none(),
                            "the chunk must be erased before it is programmed"
                        );
                        self.cells[first + i] = Some(Cell::Written(oob, content));
                    }
                }
                end(Status::SUCCESS)
            }
            Op::Read { read, addresses, target } => {
                for (i, phys, place) in addresses {
                    if self.dead[self.geometry.chunk_of(PhysSector(phys)).index()] {
                        self.reads[read].2 |= 1 << i;
                        continue;
                    }
                    assert!(
                        self.readable(phys),
                        "sector {phys} is read before its paired page is written"
                    );
                    if self.rng.chance(self.read_fail) || self.unreadable.contains(&phys) {
                        self.reads[read].2 |= 1 << i;
                        continue;
                    }
                    if !self.stores_data {
                        continue;
                    }
                    match (&self.cells[phys as usize], target) {
                        // A scan of the out-of-band bytes of all sectors also reads torn units,
                        // which may have held lost data.
                        (Some(Cell::Torn), _) => self.reads[read].2 |= 1 << i,
                        (Some(Cell::Written(_, content)), ReadDest::Buffer) => {
                            self.slots[place as usize] = content.clone();
                        }
                        (Some(Cell::Written(_, Content::Value(v))), ReadDest::Host(r)) => {
                            self.requests.get_mut(&r).unwrap()[place as usize] = *v;
                        }
                        other => panic!("read of {other:?}"),
                    }
                }
                self.reads[read].1 -= 1;
                let (op, left, failed) = self.reads[read];
                let users = matches!(target, ReadDest::Host(_));
                (left == 0).then_some(OpCompletion::Read { op, failed, is_host: users })
            }
            Op::Erase { op, chunk } => {
                if self.dead[chunk as usize] {
                    return Some(OpCompletion::Erase { op, status: Status::OFFLINE_CHUNK });
                }
                if self.rng.chance(self.erase_fail) {
                    self.bad[chunk as usize] = true;
                    return Some(OpCompletion::Erase { op, status: Status::WRITE_FAULT });
                }
                self.erases += 1;
                (self.written[chunk as usize], self.reported[chunk as usize]) = (0, 0);
                self.failures[chunk as usize] = false;
                self.unreadable
                    .retain(|phys| self.geometry.chunk_of(PhysSector(*phys)) != ChunkId(chunk));
                if self.stores_data {
                    let first = (chunk * self.geometry.sectors_per_chunk) as usize;
                    self.cells[first..first + self.geometry.sectors_per_chunk as usize].fill(None);
                }
                Some(OpCompletion::Erase { op, status: Status::SUCCESS })
            }
        }
    }

    /// Executes and reports operations until none is outstanding.
    pub fn settle(&mut self, ftl: &mut Ftl) {
        ftl.kick(Nanos(0), self);
        let mut steps = 0;
        while self.step(ftl) {
            steps += 1;
            let (stats, layout) = (ftl.stats(), ftl.capacity_plan());
            assert!(
                steps < 1_000_000,
                "the FTL does not become idle: {stats:?} {layout:?}\n{}",
                ftl.debug_state()
            );
        }
    }
}

impl FlashBackend for TestFlash {
    fn stores_data(&self) -> bool {
        self.stores_data
    }

    fn choose_victim(&mut self, _: Nanos, lines: &VictimLines<'_>) -> VictimDecision {
        self.choices += 1;
        self.choose.map_or(VictimDecision::Policy, |choose| choose(lines))
    }

    fn program(&mut self, _now: Nanos, op: OpToken, unit: WriteUnit<'_>) {
        let WriteUnit { chunk, sector, first_slot, .. } = unit;
        let slots = &self.slots[first_slot.index()..];
        let sectors = unit.oobs().zip(slots).map(|(oob, c)| (CellOob::new(oob), c.clone()));
        let sectors: Vec<_> = if self.stores_data { sectors.collect() } else { Vec::new() };
        self.calls.program(
            chunk.get(),
            sector,
            first_slot.get(),
            sectors.iter().map(|(oob, _)| &oob.oob),
        );
        let pu = self.geometry.pu_of(chunk).index();
        self.queues[pu].push(Op::Program { op, chunk: chunk.get(), sector, sectors });
    }

    fn read(&mut self, _now: Nanos, op: OpToken, addresses: &[ReadAddress], target: ReadDest) {
        self.calls.read(addresses);
        let read = self.reads.len();
        let mut parts: Vec<Vec<(usize, u32, u32)>> = vec![Vec::new(); self.queues.len()];
        for (i, &ReadAddress { phys, place }) in addresses.iter().enumerate() {
            let pu = self.geometry.pu_of(self.geometry.chunk_of(phys)).index();
            parts[pu].push((i, phys.get(), place));
        }
        self.reads.push((op, parts.iter().filter(|p| !p.is_empty()).count(), 0));
        for (pu, addresses) in parts.into_iter().enumerate().filter(|(_, p)| !p.is_empty()) {
            self.queues[pu].push(Op::Read { read, addresses, target });
        }
    }

    fn erase(&mut self, _now: Nanos, op: OpToken, chunk: ChunkId) {
        self.calls.erase(chunk.get());
        self.queues[self.geometry.pu_of(chunk).index()].push(Op::Erase { op, chunk: chunk.get() });
    }

    fn host_reads_in_flight(&self, pu: PuId) -> u32 {
        let users = |op: &&Op| matches!(op, Op::Read { target: ReadDest::Host(_), .. });
        let ended = |end: &&OpCompletion| matches!(end, OpCompletion::Read { is_host: true, .. });
        let ended = self.completions[pu.index()].iter().filter(ended).count();
        (self.queues[pu.index()].iter().filter(users).count() + ended) as u32
    }

    fn copy_from_host(&mut self, request: u64, sector: u32, slot: SlotId) {
        if self.stores_data {
            let value = self.requests[&request][sector as usize];
            self.slots[slot.index()] = Content::Value(value);
        }
    }

    fn copy_to_host(&mut self, request: u64, sector: u32, slot: SlotId) {
        if let (true, Content::Value(v)) = (self.stores_data, self.slots[slot.index()].clone()) {
            self.requests.get_mut(&request).unwrap()[sector as usize] = v;
        }
    }

    fn zero_to_host(&mut self, request: u64, sector: u32) {
        if self.stores_data {
            self.requests.get_mut(&request).unwrap()[sector as usize] = 0;
        }
    }

    fn write_slot(&mut self, slot: SlotId, bytes: &[u8]) {
        self.slots[slot.index()] =
            if bytes.is_empty() { Content::Value(0) } else { Content::Bytes(bytes.to_vec()) };
    }

    fn sync_slot(&mut self, _phys: PhysSector, _slot: SlotId) {}

    fn read_slot(&mut self, slot: SlotId, out: &mut [u8]) {
        let bytes = match &self.slots[slot.index()] {
            Content::Bytes(bytes) => bytes.clone(),
            Content::Value(v) => v.to_le_bytes().to_vec(),
        };
        out.fill(0);
        let n = bytes.len().min(out.len());
        out[..n].copy_from_slice(&bytes[..n]);
    }

    fn read_slot_oob(&mut self, phys: PhysSector, _slot: SlotId, out: &mut [u8; Oob::BYTES]) {
        if let Some(Cell::Written(oob, _)) = &self.cells[phys.index()] {
            *out = oob.bytes;
        }
    }

    fn read_host_oob(
        &mut self,
        _request: u64,
        _sector: u32,
        phys: PhysSector,
        out: &mut [u8; Oob::BYTES],
    ) {
        if let Some(Cell::Written(oob, _)) = &self.cells[phys.index()] {
            *out = oob.bytes;
        }
    }
}
