//! [`TestFlash`]: chunks of write units that obey the rules of NAND. It completes operations in any
//! order across chunks, [may report](TestFlash::reorder) completions in any order within a chunk,
//! fails on request, and loses power at any moment.

use nvme::ChunkId;
use std::collections::VecDeque;

use ftl::FlashGeometry;
use ftl::journal::{
    FoundJournalChunk, Journal, JournalChunkReport, JournalConfig, JournalError, JournalFlash,
    JournalMedia, JournalRecovery, OPS_MAX, Recovered,
};
use nvme::{Geometry, Status};
use rng::Rng;
use time::Nanos;

#[derive(Clone, Debug)]
enum Op {
    Program { op: u32, unit: usize, bytes: Vec<u8> },
    Erase { op: u32 },
    Read { op: u32, unit: usize, first: u32, sectors: u32 },
}

/// A chunk's contents.
#[derive(Clone, Debug, Default)]
pub(crate) struct Cells {
    /// The programmed units; `None` is a torn unit.
    pub(crate) units: Vec<Option<Vec<u8>>>,
    /// Whether the chunk refuses programs until it is erased.
    pub(crate) closed: bool,
    pub(crate) bad: bool,
    /// By unit, a bit mask of the sectors that cannot be read until the next power-on.
    pub(crate) dead: Vec<u64>,
    queue: VecDeque<Op>,
}

impl Cells {
    /// Drops the operations that were not executed.
    pub(crate) fn forget_operations(&mut self) {
        self.queue.clear();
    }
}

/// An operation that was executed.
#[derive(Clone, Copy)]
enum OpCompletion {
    Program(u32, bool),
    Erase(u32, bool),
    Read(u32, u64),
}

impl OpCompletion {
    fn op(self) -> u32 {
        let (OpCompletion::Program(op, _) | OpCompletion::Erase(op, _) | OpCompletion::Read(op, _)) =
            self;
        op
    }
}

/// Maximum number of completions that are held back.
const DEFERRED_ENDS_MAX: usize = 6;

#[derive(Clone)]
pub(crate) struct TestFlash {
    pub(crate) geometry: FlashGeometry,
    /// The reserved chunks, with their addresses.
    pub(crate) chunks: Vec<(u32, Cells)>,
    /// Completions not reported yet, and the generator that picks the next one if they are
    /// reordered.
    completions: Vec<OpCompletion>,
    order: Option<Rng>,
    /// Completions reported after that of a later operation.
    pub(crate) late: u64,
    found: [Vec<u8>; OPS_MAX],
    busy: [bool; OPS_MAX],
    pub(crate) rng: Rng,
    pub(crate) program_fail: f64,
    pub(crate) erase_fail: f64,
    /// Share of units that cannot be read, drawn at every power-on.
    pub(crate) read_fail: f64,
    /// The index of the program, and of the erase, that fails.
    pub(crate) failing_program: Option<u64>,
    pub(crate) failing_erase: Option<u64>,
    /// Programs and erases executed so far, including failed ones.
    pub(crate) programs: u64,
    pub(crate) erases: u64,
    pub(crate) torn: u64,
}

pub(crate) fn shape(
    pus: u32,
    chunks: u32,
    units: u32,
    unit: u32,
    pair_units: u32,
) -> FlashGeometry {
    FlashGeometry::from_geometry(&Geometry {
        groups: 1,
        pus,
        chunks,
        sectors: units * unit,
        sector_bytes: 512,
        oob_bytes: 0,
        ws_min: unit,
        ws_opt: unit,
        mw_cunits: pair_units * unit,
    })
}

impl TestFlash {
    pub(crate) fn new(geometry: FlashGeometry, reserved: &[u32], seed: u64) -> TestFlash {
        TestFlash {
            geometry,
            chunks: reserved.iter().map(|chunk| (*chunk, Cells::default())).collect(),
            completions: Vec::new(),
            order: None,
            late: 0,
            found: Default::default(),
            busy: [false; OPS_MAX],
            rng: Rng::new(seed),
            program_fail: 0.0,
            erase_fail: 0.0,
            read_fail: 0.0,
            failing_program: None,
            failing_erase: None,
            programs: 0,
            erases: 0,
            torn: 0,
        }
    }

    pub(crate) fn cells(&mut self, chunk: u32) -> &mut Cells {
        &mut self.chunks.iter_mut().find(|(c, _)| *c == chunk).expect("a reserved chunk").1
    }

    fn units(&self) -> usize {
        (self.geometry.sectors_per_chunk / self.geometry.ws_opt) as usize
    }

    /// From now on, completions are reported in a random order given by the seed.
    pub(crate) fn reorder(&mut self, seed: u64) {
        self.order = Some(Rng::new(seed ^ 0x0_4de4));
    }

    pub(crate) fn outstanding(&self) -> usize {
        self.chunks.iter().map(|(_, c)| c.queue.len()).sum::<usize>() + self.completions.len()
    }

    fn push(&mut self, chunk: u32, op: u32, what: Op) {
        assert!(!self.busy[op as usize], "operation {op} is already in flight");
        self.busy[op as usize] = true;
        self.cells(chunk).queue.push_back(what);
    }

    /// Numbers of programs and erases not executed yet.
    pub(crate) fn in_flight(&self) -> (usize, usize) {
        let ops = || self.chunks.iter().flat_map(|(_, cells)| &cells.queue);
        let programs = ops().filter(|op| matches!(op, Op::Program { .. })).count();
        (programs, ops().filter(|op| matches!(op, Op::Erase { .. })).count())
    }

    /// Returns the states of the chunks at power-on.
    pub(crate) fn chunk_reports(&self) -> Vec<FoundJournalChunk> {
        let state = |cells: &Cells| {
            let written = cells.units.len() as u32 * self.geometry.ws_opt;
            match (cells.bad, cells.closed, written) {
                (true, ..) => JournalChunkReport::Bad,
                (_, true, _) => JournalChunkReport::Closed(written),
                (_, _, 0) => JournalChunkReport::Free,
                _ => JournalChunkReport::Written(written),
            }
        };
        let found = |(chunk, cells): &(u32, Cells)| FoundJournalChunk {
            chunk: ChunkId(*chunk),
            report: state(cells),
        };
        self.chunks.iter().map(found).collect()
    }

    /// Executes the oldest operation of a random chunk.
    fn execute(&mut self) -> Option<OpCompletion> {
        let busy = self.chunks.iter().filter(|(_, c)| !c.queue.is_empty()).count() as u64;
        let pick = self.rng.below(busy) as usize;
        let units = self.units();
        let pair = self.geometry.mw_cunits.div_ceil(self.geometry.ws_opt) as usize;
        let (chunk, cells) =
            self.chunks.iter_mut().filter(|(_, c)| !c.queue.is_empty()).nth(pick)?;
        Some(match cells.queue.pop_front()? {
            Op::Program { op, unit, bytes } => {
                let cued = self.failing_program == Some(self.programs);
                self.programs += 1;
                let refused = cells.closed || cells.bad || cued;
                let ok = !refused && !self.rng.chance(self.program_fail);
                if ok {
                    assert_eq!(cells.units.len(), unit, "chunk {chunk}: programs must be in order");
                    cells.units.push(Some(bytes));
                    cells.dead.push(0);
                } else {
                    cells.closed = true;
                }
                OpCompletion::Program(op, ok)
            }
            Op::Erase { op } => {
                assert!(!cells.bad, "chunk {chunk} is erased although it is bad");
                let cued = self.failing_erase == Some(self.erases);
                let ok = !cued && !self.rng.chance(self.erase_fail);
                let bad = !ok;
                *cells = Cells { bad, queue: std::mem::take(&mut cells.queue), ..Cells::default() };
                self.erases += 1;
                OpCompletion::Erase(op, ok)
            }
            Op::Read { op, unit, first, sectors } => {
                let paired =
                    cells.closed || cells.units.len() == units || unit + pair < cells.units.len();
                assert!(
                    paired,
                    "chunk {chunk}: unit {unit} is read before its paired unit is written"
                );
                let mask = u64::MAX >> (64 - sectors);
                let failed = match &cells.units[unit] {
                    None => mask,
                    Some(bytes) => {
                        let size = self.geometry.sector_bytes as usize;
                        self.found[op as usize] = bytes[first as usize * size..].to_vec();
                        cells.dead[unit] >> first & mask
                    }
                };
                OpCompletion::Read(op, failed)
            }
        })
    }

    /// Executes operations until one completion is reported; `None` if none is in flight.
    fn complete_one(&mut self) -> Option<OpCompletion> {
        loop {
            let ended = self.execute();
            let Some(order) = &mut self.order else {
                return ended.inspect(|end| self.busy[end.op() as usize] = false);
            };
            self.completions.extend(ended);
            let idle = self.chunks.iter().all(|(_, c)| c.queue.is_empty());
            if self.completions.is_empty()
                || !idle && self.completions.len() < DEFERRED_ENDS_MAX && order.chance(0.5)
            {
                if idle {
                    return None;
                }
                continue;
            }
            let at = order.below(self.completions.len() as u64) as usize;
            self.late += u64::from(at > 0);
            let end = self.completions.remove(at);
            self.busy[end.op() as usize] = false;
            return Some(end);
        }
    }

    /// Completes an operation of a journal, if one is in flight, and kicks the journal.
    pub(crate) fn step(&mut self, journal: &mut Journal) -> bool {
        match self.complete_one() {
            None => return false,
            Some(OpCompletion::Program(op, ok)) => journal.program_done(op, status(ok)),
            Some(OpCompletion::Erase(op, ok)) => journal.erase_done(op, status(ok)),
            Some(OpCompletion::Read(..)) => panic!("a journal does not read"),
        }
        journal.kick(Nanos(0), self);
        true
    }

    /// Completes operations until the journal is idle.
    pub(crate) fn settle(&mut self, journal: &mut Journal) {
        journal.kick(Nanos(0), self);
        while self.step(journal) {}
        assert!(
            journal.is_idle(),
            "no operation is in flight, but the journal is not idle: {journal:#?}"
        );
    }

    /// Completes an operation of a recovery, if one is in flight, and kicks the recovery.
    pub(crate) fn step_recovery(&mut self, recovery: &mut JournalRecovery) -> bool {
        match self.complete_one() {
            None => return false,
            Some(OpCompletion::Program(op, ok)) => recovery.program_done(op, status(ok)),
            Some(OpCompletion::Read(op, failed)) => recovery.read_done(op, failed, self),
            Some(OpCompletion::Erase(..)) => panic!("a recovery does not erase"),
        }
        recovery.kick(Nanos(0), self);
        true
    }

    /// Cuts power with operations in flight, and draws the sectors that cannot be read after the
    /// next power-on.
    pub(crate) fn power_cut(&mut self) {
        self.busy = [false; OPS_MAX];
        self.completions.clear();
        let units = self.units();
        for (_, cells) in &mut self.chunks {
            for op in std::mem::take(&mut cells.queue) {
                match op {
                    Op::Read { .. } => {}
                    Op::Program { unit, bytes, .. } => {
                        if cells.closed || cells.bad || self.rng.chance(0.4) {
                            break;
                        }
                        assert_eq!(cells.units.len(), unit, "programs of a chunk must be in order");
                        if self.rng.chance(self.program_fail) {
                            cells.closed = true;
                            break;
                        }
                        cells.dead.push(0);
                        if self.rng.chance(0.5) {
                            // The program was executed, but its completion is never reported.
                            cells.units.push(Some(bytes));
                            continue;
                        }
                        self.torn += 1;
                        cells.units.push(None);
                        break;
                    }
                    Op::Erase { .. } => match self.rng.below(3) {
                        0 => break,
                        1 => *cells = Cells::default(),
                        _ => {
                            // An interrupted erase: some units may still be readable.
                            cells.units.resize(units, None);
                            cells.dead.resize(units, 0);
                            let lost = self.rng.f64() * 1.5;
                            for unit in &mut cells.units {
                                if self.rng.chance(lost.min(1.0)) {
                                    *unit = None;
                                }
                            }
                            cells.closed = true;
                            break;
                        }
                    },
                }
            }
            for dead in &mut cells.dead {
                *dead = match self.rng.chance(self.read_fail) {
                    false => 0,
                    true if self.rng.chance(0.5) => u64::MAX,
                    true => 1 << self.rng.below(self.geometry.ws_opt.into()),
                };
            }
        }
    }

    /// Recovers the journal from the media.
    pub(crate) fn recover(&mut self, config: JournalConfig) -> Result<Recovered, JournalError> {
        let mut recovery = JournalRecovery::new(&self.geometry, config, &self.chunk_reports())?;
        recovery.kick(Nanos(0), self);
        while self.step_recovery(&mut recovery) {}
        recovery.finish().expect("a recovery without operations in flight is finished")
    }
}

fn status(ok: bool) -> Status {
    if ok { Status::SUCCESS } else { Status::WRITE_FAULT }
}

impl JournalFlash for TestFlash {
    fn program(&mut self, _: Nanos, op: u32, chunk: ChunkId, sector: u32, bytes: &[u8]) {
        let (unit, offset) = (sector / self.geometry.ws_opt, sector % self.geometry.ws_opt);
        assert!(offset == 0 && (unit as usize) < self.units());
        let mut bytes = bytes.to_vec();
        let size = (self.geometry.ws_opt * self.geometry.sector_bytes) as usize;
        assert!(bytes.len() <= size);
        bytes.resize(size, 0);
        self.push(chunk.get(), op, Op::Program { op, unit: unit as usize, bytes });
    }

    fn erase(&mut self, _: Nanos, op: u32, chunk: ChunkId) {
        self.push(chunk.get(), op, Op::Erase { op });
    }
}

impl JournalMedia for TestFlash {
    fn read(&mut self, _: Nanos, op: u32, chunk: ChunkId, sector: u32, sectors: u32) {
        let (unit, first) = (sector / self.geometry.ws_opt, sector % self.geometry.ws_opt);
        assert!(
            sectors > 0 && first + sectors <= self.geometry.ws_opt,
            "the read must stay within one unit"
        );
        self.push(chunk.get(), op, Op::Read { op, unit: unit as usize, first, sectors });
    }

    fn read_data(&mut self, op: u32, out: &mut [u8]) {
        out.copy_from_slice(&self.found[op as usize][..out.len()]);
    }
}
