//! [`MockOpenChannelDrive`]: a small open-channel drive for tests. It stores data and out-of-band bytes per address, panics
//! on violations of the NAND rules, completes commands in random order over its parallel units,
//! injects failures, and can lose power. It has no admin queue; methods replace the admin commands.

mod settings;

use std::collections::VecDeque;
use std::sync::Arc;

use driver::{ControllerInfo, OpenChannelInfo, QueuePair, RingAddresses};
use mem::{Iova, PAGE_BYTES, SharedRegion};
use nvme::{
    ChunkDescriptor, ChunkState, Cqe, DataPointer, Geometry, IoCommand, MediaTiming, Ppa,
    PpaFormat, PpaList, SglDescriptor, Sqe, Status, VendorExtensions,
};
use rng::Rng;
use transport::{CqProducer, Port, SqConsumer};

pub use settings::{
    MockOpenChannelDriveFaults, MockOpenChannelDriveOptions, MockOpenChannelDriveStats,
};

/// Returns a geometry with sectors of 512 bytes. `unit` is the write unit and `pair` the cache of
/// units that a read needs, in sectors.
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

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cell {
    Erased,
    Written,
    Torn,
}

#[derive(Clone, Copy, Debug, Default)]
struct Chunk {
    written: u32,
    failed: bool,
    interrupted: bool,
    offline: bool,
    erases: u32,
}

/// Data and out-of-band bytes of a write.
type Payload = Option<(Vec<u8>, Vec<u8>)>;

#[derive(Debug)]
enum Work {
    /// Consecutive sectors; the payload, if it was fetched with the command.
    Program {
        phys: u64,
        count: u32,
        early: Option<Payload>,
    },
    /// Consecutive sectors, and where their data is.
    Copy {
        from: Vec<u64>,
        to: u64,
    },
    /// Index in the command, and sector.
    Read(Vec<(u32, u64)>),
    Erase {
        chunk: u64,
    },
}

#[derive(Debug)]
struct Part {
    command: usize,
    work: Work,
}

#[derive(Clone, Debug)]
struct Command {
    sqe: Sqe,
    queue: usize,
    count: u32,
    parts: u32,
    failed: u64,
    status: Status,
}

struct Link {
    port: Arc<Port>,
    /// Queue pairs, from id 1.
    queues: Vec<(SqConsumer, CqProducer)>,
}

/// The drive, with all queues and outstanding commands.
pub struct MockOpenChannelDrive {
    /// Geometry.
    pub geometry: Geometry,
    format: PpaFormat,
    stores_data: bool,
    cells: Vec<Cell>,
    data: Vec<u8>,
    oob: Vec<u8>,
    chunks: Vec<Chunk>,
    link: Option<Link>,
    pus: Vec<VecDeque<Part>>,
    commands: Vec<Command>,
    free: Vec<usize>,
    /// The generator of all random choices.
    pub rng: Rng,
    /// Failures that a test injects.
    pub faults: MockOpenChannelDriveFaults,
    /// Properties of the controller.
    pub options: MockOpenChannelDriveOptions,
    /// Counters.
    pub stats: MockOpenChannelDriveStats,
}

impl MockOpenChannelDrive {
    /// Creates an erased drive; `seed` determines all of its choices.
    pub fn new(geometry: Geometry, stores_data: bool, seed: u64) -> MockOpenChannelDrive {
        geometry.check().unwrap();
        let sectors = geometry.total_sectors() as usize;
        let kept = if stores_data { sectors } else { 0 };
        MockOpenChannelDrive {
            format: PpaFormat::from_geometry(&geometry).unwrap(),
            stores_data,
            cells: vec![Cell::Erased; sectors],
            data: vec![0; kept * geometry.sector_bytes as usize],
            oob: vec![0; kept * geometry.oob_bytes as usize],
            chunks: vec![Chunk::default(); geometry.total_chunks() as usize],
            link: None,
            pus: (0..geometry.total_pus()).map(|_| VecDeque::new()).collect(),
            commands: Vec::new(),
            free: Vec::new(),
            rng: Rng::new(seed),
            faults: MockOpenChannelDriveFaults::default(),
            options: MockOpenChannelDriveOptions {
                reads_first: false,
                mdts_sectors: 64,
                io_queues: 1,
                can_copy: false,
                space: None,
            },
            stats: MockOpenChannelDriveStats::default(),
            geometry,
        }
    }

    /// Returns whether data and out-of-band bytes are kept.
    pub fn stores_data(&self) -> bool {
        self.stores_data
    }

    /// Returns the properties that a host reads when it connects.
    pub fn info(&self) -> ControllerInfo {
        ControllerInfo {
            serial: "mock-oc".into(),
            product: driver::ProductIdentity { model: "Mock".into(), firmware: "1".into() },
            nsid: 1,
            sector_bytes: self.geometry.sector_bytes,
            oob_bytes: self.geometry.oob_bytes,
            metadata: None,
            sectors: self.geometry.total_sectors(),
            max_sectors: self.options.mdts_sectors,
            optimal_sectors: self.geometry.ws_opt,
            volatile_cache: false,
            io_queues: self.options.io_queues,
            max_outstanding: 0,
            data: driver::DataPointers::Sgl,
            features: driver::Features::default(),
            open_channel: Some(OpenChannelInfo {
                geometry: self.geometry,
                format: self.format,
                timing: MediaTiming::default(),
                can_copy: self.options.can_copy,
                max_open_chunks: 0,
                extensions: match self.options.can_copy {
                    true => VendorExtensions::with_flags(VendorExtensions::COPY_METADATA),
                    false => VendorExtensions::default(),
                },
            }),
        }
    }

    /// Returns the chunk information log page.
    pub fn descriptors(&self) -> Vec<ChunkDescriptor> {
        let g = self.geometry;
        let describe = |(i, c): (usize, &Chunk)| {
            let state = if c.offline {
                ChunkState::Offline
            } else if c.failed || c.interrupted || c.written == g.sectors {
                ChunkState::Closed
            } else if c.written == 0 {
                ChunkState::Free
            } else {
                ChunkState::Open
            };
            let first = g.from_flat(i as u64 * u64::from(g.sectors)).unwrap();
            ChunkDescriptor {
                state: state.to_bits(),
                kind: ChunkDescriptor::SEQUENTIAL,
                wear_index: c.erases.min(255) as u8,
                slba: self.format.pack(first).0.into(),
                cnlb: u64::from(g.sectors).into(),
                wp: u64::from(if c.offline { 0 } else { c.written }).into(),
                ..ChunkDescriptor::default()
            }
        };
        self.chunks.iter().enumerate().map(describe).collect()
    }

    /// Makes a chunk factory bad.
    pub fn spoil(&mut self, chunk: u32) {
        self.chunks[chunk as usize].offline = true;
    }

    /// Creates a port and a queue pair with rings of `depth`, replacing earlier ones.
    pub fn connect(&mut self, depth: u16) -> (Arc<Port>, QueuePair) {
        let (port, mut queues) = self.connect_many(depth, 1);
        (port, queues.remove(0))
    }

    /// Creates a port and `count` queue pairs with rings of `depth`, replacing earlier ones.
    pub fn connect_many(&mut self, depth: u16, count: u16) -> (Arc<Port>, Vec<QueuePair>) {
        let port = Port::in_space(self.options.space.clone().unwrap_or_default()).unwrap();
        let half = (usize::from(depth) * 64).next_multiple_of(PAGE_BYTES);
        let (mut queues, mut pairs) = (Vec::new(), Vec::new());
        for qid in 1..=count {
            let at = port.memory().register(&SharedRegion::anonymous(2 * half).unwrap()).unwrap();
            let cq = at.offset(half as u64);
            queues.push((
                SqConsumer::open(&port, qid, at, depth).unwrap(),
                CqProducer::open(&port, qid, cq, depth, None).unwrap(),
            ));
            let rings = RingAddresses { submission: at, completion: cq };
            pairs.push(QueuePair::open(&port, qid, rings, depth, None).unwrap());
        }
        self.options.io_queues = count;
        self.link = Some(Link { queues, port: port.clone() });
        (port, pairs)
    }

    /// Fetches commands and executes four operations.
    pub fn progress(&mut self) {
        self.fetch();
        for _ in 0..4 {
            self.step();
        }
    }

    fn fold_history(&mut self, what: u64) {
        self.stats.history =
            (self.stats.history ^ what).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(23);
    }

    /// Fetches commands.
    pub fn fetch(&mut self) -> bool {
        let queues = self.link.as_ref().map_or(0, |link| link.queues.len());
        (0..queues).fold(false, |moved, queue| self.fetch_from(queue) | moved)
    }

    fn fetch_from(&mut self, queue: usize) -> bool {
        let mut moved = false;
        loop {
            let Some(link) = self.link.as_mut().filter(|_| !self.faults.dead) else { return moved };
            let (sq, _) = &mut link.queues[queue];
            if sq.waiting() == 0 {
                if sq.read_tail().unwrap() == 0 {
                    return moved;
                }
                self.stats.doorbells += 1;
            }
            let Some(sqe) = sq.fetch() else { return moved };
            moved = true;
            self.stats.fetched += 1;
            self.begin(queue, sqe);
        }
    }

    fn addresses(&self, list: PpaList) -> Vec<u64> {
        let g = &self.geometry;
        let words: Vec<u64> = match list {
            PpaList::One(ppa) => vec![ppa.0],
            PpaList::List { at, count } => {
                let mut bytes = vec![0; usize::from(count) * 8];
                let link = self.link.as_ref().unwrap();
                link.port.memory().read(Iova(at), &mut bytes).expect("a registered list");
                bytes.as_chunks::<8>().0.iter().map(|w| u64::from_le_bytes(*w)).collect()
            }
        };
        let flat = |w| g.flat(g.address(&self.format, Ppa(w)).expect("an address"));
        words.into_iter().map(flat).collect()
    }

    fn begin(&mut self, queue: usize, sqe: Sqe) {
        assert_eq!(sqe.nsid.get(), 1);
        let parsed = IoCommand::parse(&sqe).expect("a command");
        self.fold_history(u64::from(sqe.opcode) << 32 | u64::from(sqe.cid.get()));
        let (list, kind) = match parsed {
            IoCommand::VectorWrite { addresses, .. } => (addresses, 0),
            IoCommand::VectorRead { addresses, .. } => (addresses, 1),
            IoCommand::VectorReset { addresses, .. } => (addresses, 2),
            IoCommand::VectorCopy { to, .. } if self.options.can_copy => (to, 3),
            other => panic!("{other:?} on an open-channel drive"),
        };
        let phys_sectors = self.addresses(list);
        phys_sectors.iter().for_each(|phys| self.fold_history(*phys));
        let count = phys_sectors.len() as u32;
        assert!(kind == 2 || count <= self.options.mdts_sectors, "a transfer of {count} sectors");
        let new = Command { sqe, queue, count, parts: 0, failed: 0, status: Status::SUCCESS };
        let id = self.free.pop().unwrap_or_else(|| {
            self.commands.push(new.clone());
            self.commands.len() - 1
        });
        self.commands[id] = new;
        if self.faults.cut_after.is_some_and(|n| self.stats.fetched > n) {
            self.commands[id].status = Status::POWER_LOSS;
            return self.complete(id);
        }
        let per_pu = u64::from(self.geometry.chunks) * u64::from(self.geometry.sectors);
        let sectors = u64::from(self.geometry.sectors);
        if kind == 0 || kind == 3 {
            let phys = phys_sectors[0];
            assert!(
                phys_sectors.iter().copied().eq(phys..phys + u64::from(count)),
                "in order: {phys_sectors:?}"
            );
            assert_eq!(phys / sectors, (phys + u64::from(count) - 1) / sectors, "one chunk");
            assert!(count.is_multiple_of(self.geometry.ws_min));
        }
        match kind {
            0 => {
                let phys = phys_sectors[0];
                let early = self.rng.chance(0.5).then(|| self.payload(&sqe, count));
                self.queue(phys / per_pu, id, Work::Program { phys, count, early });
            }
            1 => {
                self.stats.vectors += u64::from(count > 1);
                let mut parts: Vec<Vec<(u32, u64)>> = vec![Vec::new(); self.pus.len()];
                for (i, phys) in (0..).zip(phys_sectors) {
                    parts[(phys / per_pu) as usize].push((i, phys));
                }
                for (pu, part) in (0..).zip(parts).filter(|(_, p)| !p.is_empty()) {
                    self.queue(pu, id, Work::Read(part));
                }
            }
            3 => {
                let IoCommand::VectorCopy { from, .. } = parsed else { unreachable!() };
                let (from, to) = (self.addresses(from), phys_sectors[0]);
                self.queue(to / per_pu, id, Work::Copy { from, to });
            }
            _ => {
                assert_eq!(count, 1);
                self.queue(
                    phys_sectors[0] / per_pu,
                    id,
                    Work::Erase { chunk: phys_sectors[0] / sectors },
                );
            }
        }
    }

    fn queue(&mut self, pu: u64, command: usize, work: Work) {
        self.commands[command].parts += 1;
        self.pus[pu as usize].push_back(Part { command, work });
    }

    /// Returns the address of each sector of a command's data; `None` for a bit bucket.
    fn blocks(&mut self, sqe: &Sqe, count: u32) -> Option<Vec<Iova>> {
        let size = self.geometry.sector_bytes;
        let DataPointer::Sgl(first) = sqe.data() else { panic!("not an SGL") };
        let list = match first {
            SglDescriptor::BitBucket { length } => {
                assert_eq!(length, count * size);
                return None;
            }
            SglDescriptor::Segment { address, length, last: true } => {
                let mut bytes = vec![0; length as usize];
                let link = self.link.as_ref().unwrap();
                link.port.memory().read(Iova(address), &mut bytes).expect("a registered segment");
                self.stats.scattered += 1;
                let word = |w: &[u8; 8]| u64::from_le_bytes(*w);
                let words: Vec<u64> = bytes.as_chunks().0.iter().map(word).collect();
                words.chunks(2).map(|w| SglDescriptor::decode([w[0], w[1]])).collect()
            }
            one => vec![one],
        };
        let mut sectors = Vec::new();
        for descriptor in list {
            let SglDescriptor::DataBlock { address, length } = descriptor else {
                panic!("{descriptor:?}")
            };
            assert!(length > 0 && length.is_multiple_of(size));
            sectors.extend((0..length / size).map(|i| Iova(address).offset((i * size).into())));
        }
        assert_eq!(sectors.len(), count as usize);
        Some(sectors)
    }

    fn payload(&mut self, sqe: &Sqe, count: u32) -> Payload {
        let (size, oob) = (self.geometry.sector_bytes as usize, self.geometry.oob_bytes as usize);
        let blocks = self.blocks(sqe, count);
        if !self.stores_data {
            assert!(blocks.is_none() && sqe.mptr.get() == 0);
            return None;
        }
        let memory = self.link.as_ref().unwrap().port.memory();
        let mut data = vec![0; count as usize * size];
        for (sector, at) in data.chunks_mut(size).zip(blocks.expect("data")) {
            memory.read(at, sector).expect("registered data");
        }
        let mut bytes = vec![0; count as usize * oob];
        memory.read(Iova(sqe.mptr.get()), &mut bytes).expect("registered out-of-band bytes");
        Some((data, bytes))
    }

    /// Completes the oldest operation of a random parallel unit. Returns whether there was any.
    pub fn step(&mut self) -> bool {
        let busy: Vec<usize> = (0..self.pus.len()).filter(|i| !self.pus[*i].is_empty()).collect();
        if busy.is_empty() || self.faults.dead {
            return false;
        }
        let pu = busy[self.rng.below(busy.len() as u64) as usize];
        let read = self.pus[pu].iter().position(|p| matches!(p.work, Work::Read(_)));
        let at = read.filter(|_| self.options.reads_first && self.rng.chance(0.5)).unwrap_or(0);
        let part = self.pus[pu].remove(at).unwrap();
        let id = part.command;
        self.execute(part);
        self.commands[id].parts -= 1;
        if self.commands[id].parts == 0 {
            self.complete(id);
        }
        true
    }

    fn complete(&mut self, id: usize) {
        let Command { sqe, queue, failed, status, .. } = self.commands[id];
        self.free.push(id);
        self.fold_history(failed ^ u64::from(status.to_bits()));
        let (sq, cq) = &mut self.link.as_mut().unwrap().queues[queue];
        let (sq_head, cid, sq_id) = (sq.head(), sqe.cid.get(), queue as u16 + 1);
        cq.post(Cqe { result: failed, sq_head, sq_id, cid, status }).unwrap();
    }

    fn fail(&mut self, command: usize, failed: u64, status: Status) {
        self.commands[command].failed |= failed;
        self.commands[command].status = status;
    }

    fn range(&self, phys: u64, count: u32) -> std::ops::Range<usize> {
        phys as usize..phys as usize + count as usize
    }

    fn store(&mut self, phys: u64, count: u32, payload: Payload) {
        let (size, oob) = (self.geometry.sector_bytes as usize, self.geometry.oob_bytes as usize);
        let range = self.range(phys, count);
        assert!(self.cells[range.clone()].iter().all(|c| *c == Cell::Erased), "erased before");
        if let Some((data, bytes)) = payload {
            self.data[range.start * size..range.end * size].copy_from_slice(&data);
            self.oob[range.start * oob..range.end * oob].copy_from_slice(&bytes);
            self.stats.padding += u64::from(bytes[..4] == [0; 4]);
        }
        self.cells[range].fill(Cell::Written);
    }

    fn execute(&mut self, part: Part) {
        let Part { command, work } = part;
        let (sqe, all) = (self.commands[command].sqe, self.commands[command].count);
        let sectors = u64::from(self.geometry.sectors);
        match work {
            Work::Program { phys, count, early } => {
                let payload = early.unwrap_or_else(|| self.payload(&sqe, count));
                self.program(command, phys, count, payload);
            }
            Work::Copy { from, to } => {
                for phys in &from {
                    assert!(self.readable(*phys), "sector {phys} is copied before it can be read");
                }
                let lost = from.iter().any(|phys| self.faults.unreadable.contains(phys));
                if self.rng.chance(self.faults.copy_fail) || lost {
                    self.stats.failed_copies += 1;
                    return self.fail(command, u64::MAX, Status::UNRECOVERED_READ);
                }
                let payload = self.stores_data.then(|| self.copied(&sqe, &from));
                self.stats.copies += 1;
                self.program(command, to, all, payload);
            }
            Work::Read(list) => {
                let blocks = self.blocks(&sqe, all);
                for (i, phys) in list {
                    self.read(command, &sqe, i, phys, blocks.as_deref());
                }
            }
            Work::Erase { chunk } => {
                let c = self.chunks[chunk as usize];
                assert!(
                    (c.written > 0 || c.failed) && !c.offline,
                    "chunk {chunk} is erased again: {c:?}"
                );
                self.stats.erases += 1;
                let first = chunk * sectors;
                let range = self.range(first, sectors as u32);
                self.cells[range].fill(Cell::Erased);
                self.faults.unreadable.retain(|phys| phys / sectors != chunk);
                let offline = self.rng.chance(self.faults.erase_fail);
                self.chunks[chunk as usize] =
                    Chunk { erases: c.erases + 1, offline, ..Chunk::default() };
                if offline {
                    self.fail(command, 1, Status::OFFLINE_CHUNK);
                }
            }
        }
    }

    /// Returns the data of the sources of a copy, and its new out-of-band bytes.
    fn copied(&self, sqe: &Sqe, from: &[u64]) -> (Vec<u8>, Vec<u8>) {
        let (size, oob) = (self.geometry.sector_bytes as usize, self.geometry.oob_bytes as usize);
        let data = from.iter().flat_map(|phys| &self.data[*phys as usize * size..][..size]);
        let mut bytes = vec![0; from.len() * oob];
        let memory = self.link.as_ref().unwrap().port.memory();
        memory.read(Iova(sqe.mptr.get()), &mut bytes).expect("registered out-of-band bytes");
        (data.copied().collect(), bytes)
    }

    fn program(&mut self, command: usize, phys: u64, count: u32, payload: Payload) {
        let sectors = u64::from(self.geometry.sectors);
        let (chunk, sector) = ((phys / sectors) as usize, (phys % sectors) as u32);
        let some = self.rng.next_u64() & (u64::MAX >> (64 - count));
        if self.chunks[chunk].failed {
            return self.fail(command, 1, Status::OUT_OF_ORDER_WRITE);
        }
        assert!(!self.chunks[chunk].offline && !self.chunks[chunk].interrupted);
        assert_eq!(self.chunks[chunk].written, sector, "chunk {chunk} in order");
        if self.rng.chance(self.faults.program_fail) {
            self.chunks[chunk].failed = true;
            return self.fail(command, some.max(1), Status::CHUNK_CLOSED_EARLY);
        }
        self.store(phys, count, payload);
        self.chunks[chunk].written += count;
        self.stats.programs += 1;
    }

    fn readable(&self, phys: u64) -> bool {
        let g = &self.geometry;
        let c = self.chunks[(phys / u64::from(g.sectors)) as usize];
        let sector = (phys % u64::from(g.sectors)) as u32;
        let whole = c.failed || c.interrupted || c.written == g.sectors;
        sector < c.written
            && (whole || sector - sector % g.ws_opt + g.ws_opt + g.mw_cunits <= c.written)
    }

    fn read(&mut self, command: usize, sqe: &Sqe, i: u32, phys: u64, blocks: Option<&[Iova]>) {
        assert!(self.readable(phys), "sector {phys} is read before it can be");
        let p = phys as usize;
        if self.cells[p] == Cell::Torn || self.faults.unreadable.contains(&phys) {
            return self.fail(command, 1 << i, Status::UNRECOVERED_READ);
        }
        let memory = self.link.as_ref().unwrap().port.memory();
        let size = self.geometry.sector_bytes as usize;
        if let (Some(blocks), true) = (blocks, self.stores_data) {
            let data = &self.data[p * size..(p + 1) * size];
            memory.write(blocks[i as usize], data).expect("registered data");
        }
        let oob = self.geometry.oob_bytes as usize;
        if self.stores_data && sqe.mptr.get() != 0 {
            let at = Iova(sqe.mptr.get()).offset(u64::from(i) * oob as u64);
            memory.write(at, &self.oob[p * oob..(p + 1) * oob]).expect("registered bytes");
        }
    }

    /// Cuts the power. On each parallel unit, some of the outstanding operations were executed, one
    /// may be torn, and the others are dropped, as is the connection.
    pub fn cut_power(&mut self) {
        let sectors = u64::from(self.geometry.sectors);
        for pu in 0..self.pus.len() {
            let mut queue = std::mem::take(&mut self.pus[pu]);
            while let Some(part) = queue.pop_front() {
                if self.rng.chance(0.4) {
                    self.execute(part);
                    continue;
                }
                match part.work {
                    Work::Program { phys, count, .. } => {
                        let chunk = (phys / sectors) as usize;
                        if !self.chunks[chunk].failed && self.rng.chance(0.5) {
                            let range = self.range(phys, count);
                            self.cells[range].fill(Cell::Torn);
                            self.chunks[chunk].written += count;
                        }
                    }
                    Work::Erase { chunk } if self.rng.chance(0.5) => {
                        let range = self.range(chunk * sectors, sectors as u32);
                        self.cells[range].fill(Cell::Torn);
                        let c = &mut self.chunks[chunk as usize];
                        (c.interrupted, c.written) = (true, self.geometry.sectors);
                        c.erases += 1;
                    }
                    _ => {}
                }
                break;
            }
        }
        self.link = None;
        self.commands.clear();
        self.free.clear();
        self.faults.cut_after = None;
    }

    /// Returns the number of outstanding commands.
    pub fn outstanding(&self) -> usize {
        self.commands.len() - self.free.len()
    }

    /// Returns the number of parallel units with outstanding programs.
    pub fn programming(&self) -> usize {
        let program = |p: &Part| matches!(p.work, Work::Program { .. });
        self.pus.iter().filter(|q| q.iter().any(program)).count()
    }

    /// Lists the sectors whose out-of-band bytes `describe` describes, readable or not, for panic
    /// messages.
    pub fn list_sectors(&self, describe: impl Fn(&[u8]) -> Option<String>) -> String {
        let (g, oob) = (&self.geometry, self.geometry.oob_bytes as usize);
        let mut out = String::new();
        for (phys, bytes) in self.oob.chunks(oob).enumerate() {
            if let (Some(found), true) = (describe(bytes), self.cells[phys] != Cell::Erased) {
                let chunk = &self.chunks[phys / g.sectors as usize];
                out += &format!("\n{phys} {:?} {found} in {chunk:?}", self.cells[phys]);
            }
        }
        out
    }

    /// Writes foreign data to a chunk, as another host would.
    pub fn scribble(&mut self, chunk: u32) {
        self.scribble_to(chunk, self.geometry.sectors);
    }

    /// Returns the first bytes of a written sector.
    pub fn peek(&self, phys: u64, bytes: usize) -> &[u8] {
        let at = phys as usize * self.geometry.sector_bytes as usize;
        &self.data[at..at + bytes]
    }

    /// Replaces the contents of a written sector, as an older host would have written it.
    pub fn poke(&mut self, phys: u64, bytes: &[u8]) {
        assert_eq!(self.cells[phys as usize], Cell::Written);
        let at = phys as usize * self.geometry.sector_bytes as usize;
        self.data[at..at + bytes.len()].copy_from_slice(bytes);
    }

    /// Returns the number of erases of a chunk.
    pub fn erases_of(&self, chunk: u32) -> u32 {
        self.chunks[chunk as usize].erases
    }

    /// Writes foreign data to the first `count` sectors of a chunk.
    pub fn scribble_to(&mut self, chunk: u32, count: u32) {
        let phys = u64::from(chunk * self.geometry.sectors);
        let range = self.range(phys, count);
        self.cells[range].fill(Cell::Written);
        self.chunks[chunk as usize].written = count;
    }
}
