//! Broken invariants are reported by the name of their part and their own.

use std::collections::VecDeque;

use nvme::{ChunkId, Geometry, PhysSector, Status};
use time::Nanos;

use crate::ReadAddress;
use crate::buffer::unit_id::UnitId;
use crate::buffer::write_ring::UnitState;
use crate::check::Part;
use crate::ftl::pipeline::stall::Blocker;
use crate::ftl::{GC, HOST};
use crate::ids::{Lba, LineId, MapPageId, SlotId};
use crate::space::lines::LineState;
use crate::{
    ChunkReport, FlashBackend, FlashGeometry, Ftl, FtlConfig, L2pEntry, Oob, OpToken, ReadDest,
    SectorAddressing, WriteUnit,
};

enum Op {
    Program(OpToken),
    Read(OpToken),
    Erase(OpToken),
}

/// A flash that stores nothing and completes operations in order, when it is told to.
#[derive(Default)]
struct QueueFlash {
    ops: VecDeque<Op>,
}

impl QueueFlash {
    fn complete_oldest(&mut self, ftl: &mut Ftl) -> bool {
        match self.ops.pop_front() {
            None => return false,
            Some(Op::Program(op)) => ftl.program_done(Nanos(0), op, Status::SUCCESS, self),
            Some(Op::Read(op)) => _ = ftl.read_done(op, 0, self),
            Some(Op::Erase(op)) => ftl.erase_done(op, Status::SUCCESS),
        }
        ftl.kick(Nanos(0), self);
        true
    }
}

impl FlashBackend for QueueFlash {
    fn stores_data(&self) -> bool {
        false
    }
    fn program(&mut self, _: Nanos, op: OpToken, _: WriteUnit<'_>) {
        self.ops.push_back(Op::Program(op));
    }
    fn read(&mut self, _: Nanos, op: OpToken, _: &[ReadAddress], _: ReadDest) {
        self.ops.push_back(Op::Read(op));
    }
    fn erase(&mut self, _: Nanos, op: OpToken, _: ChunkId) {
        self.ops.push_back(Op::Erase(op));
    }
    fn copy_from_host(&mut self, _: u64, _: u32, _: SlotId) {}
    fn copy_to_host(&mut self, _: u64, _: u32, _: SlotId) {}
    fn zero_to_host(&mut self, _: u64, _: u32) {}
    fn write_slot(&mut self, _: SlotId, _: &[u8]) {}
    fn sync_slot(&mut self, _: PhysSector, _: SlotId) {}
    fn read_slot(&mut self, _: SlotId, _: &mut [u8]) {}
    fn read_slot_oob(&mut self, _: PhysSector, _: SlotId, _: &mut [u8; Oob::BYTES]) {}
}

/// An FTL that has been overwritten once, with programs, relocations and a flush in flight.
fn busy() -> (Ftl, QueueFlash) {
    let geometry = FlashGeometry::from_geometry(&Geometry {
        groups: 1,
        pus: 2,
        chunks: 40,
        sectors: 32,
        sector_bytes: 512,
        oob_bytes: 16,
        ws_min: 4,
        ws_opt: 4,
        mw_cunits: 8,
    });
    let config = FtlConfig { owner_bytes: 16, ..FtlConfig::default() };
    let mut ftl = Ftl::new(geometry, config, |_| ChunkReport::Free).expect("a small FTL");
    let mut flash = QueueFlash::default();
    let sectors = ftl.sectors();
    // Every third sector is overwritten: lines keep some valid sectors, which GC relocates.
    for i in 0..3 * sectors {
        let lba = if i < sectors { i } else { i * 3 % sectors };
        ftl.write(i, lba, 1, false);
        ftl.kick(Nanos(0), &mut flash);
        while ftl.pop_completion().is_none() {
            assert!(flash.complete_oldest(&mut ftl), "write {i} hangs: {}", ftl.debug_state());
        }
        ftl.check_invariants().expect("nothing is broken yet");
        let relocates = ftl.space.table().iter().any(|(_, l)| l.gate().relocations_in_flight() > 0);
        if i > 2 * sectors && relocates && ftl.space.programs().total() > 0 {
            break;
        }
    }
    ftl.trim(1, 0, 1);
    ftl.flush(Nanos(0), 2, &mut flash);
    ftl.check_invariants().expect("nothing is broken yet");
    (ftl, flash)
}

/// Two logical sectors that are on flash, and where.
fn two_on_flash(ftl: &Ftl) -> [(Lba, PhysSector); 2] {
    let on_flash = Lba(0).run(ftl.env.plan.logical).filter_map(|lba| match ftl.mapping.get(lba) {
        L2pEntry::Flash(sector) => Some((lba, sector)),
        _ => None,
    });
    let mut on_flash = on_flash.take(2);
    [on_flash.next().expect("one"), on_flash.next().expect("two")]
}

fn line_in(ftl: &mut Ftl, state: LineState) -> &mut crate::space::lines::Line {
    ftl.space.break_line(|l| l.state == state)
}

fn programming(ftl: &Ftl, ring: usize) -> UnitId {
    let ring = ftl.buffer.ring(ring);
    let mut units = ring.occupied().map(|(unit, _)| unit);
    let unit = units.find(|unit| ring.unit(*unit).state == UnitState::Programming);
    unit.expect("a unit that is being programmed")
}

#[test]
fn a_broken_invariant_is_reported_by_name() {
    type Plant = (Part, &'static str, fn(&mut Ftl));
    let plants: &[Plant] = &[
        (Part::Requests, "prefetched requests are queued", |f| {
            f.requests.writes_mut().break_prefetched()
        }),
        (Part::Requests, "a free read is free once", |f| {
            f.read(Nanos(0), 77, 0, 1, &mut QueueFlash::default());
            f.requests.reads_mut().free_twice(0);
        }),
        (Part::Mapping, "mapped sectors", |f| f.mapping.break_mapped()),
        (Part::Mapping, "P2L agrees with L2P", |f| {
            let [(lba, _), (_, sector)] = two_on_flash(f);
            f.mapping.record_found(sector, lba, false);
        }),
        (Part::Mapping, "a physical sector is mapped once", |f| {
            let [(_, sector), (lba, _)] = two_on_flash(f);
            f.mapping.break_entry(lba, L2pEntry::Flash(sector));
        }),
        (Part::Mapping, "a slot holds the sector that the map has there", |f| {
            let [(lba, _), _] = two_on_flash(f);
            f.mapping.break_entry(lba, L2pEntry::Buffer(SlotId(0)));
        }),
        (Part::Buffer, "a unit's state is one of its position", |f| {
            let unit = programming(f, HOST);
            f.buffer.break_unit(unit).state = UnitState::Filling;
        }),
        (Part::Buffer, "a unit is in its chunk's list", |f| {
            let unit = programming(f, HOST);
            f.buffer.break_unit(unit).chunk.0 += 1;
        }),
        (Part::Buffer, "the end of a chunk's list", |f| {
            let chunk = f.buffer.ring(HOST).unit(programming(f, HOST)).chunk;
            f.buffer.break_chain(chunk, false);
        }),
        (Part::Buffer, "every unit with a place is in a chunk's list", |f| {
            let chunk = f.buffer.ring(HOST).unit(programming(f, HOST)).chunk;
            f.buffer.break_chain(chunk, true);
        }),
        (Part::Buffer, "unfinished sequence numbers = units programming", |f| {
            f.buffer.break_sequence();
        }),
        (Part::Buffer, "fills pending = sectors being relocated", |f| {
            let unit = f.buffer.ring(GC).occupied().next().expect("a unit of relocated data").0;
            f.buffer.break_unit(unit).fills_pending += 1;
        }),
        (Part::Space, "a free chunk is in no line", |f| {
            let chunk = f.space.table().free_list().next().expect("a free chunk");
            f.space.break_table().break_chunks().break_line_of(chunk, LineId::new(0));
        }),
        (Part::Space, "a chunk has one owner", |f| {
            let chunk = f.space.table().free_list().next().expect("a free chunk");
            f.space.break_table().remove_free(chunk);
        }),
        (Part::Space, "free chunks", |f| f.space.break_table().break_free().break_count()),
        (Part::Space, "erases of the most worn chunk", |f| {
            f.space.break_table().break_chunks().break_wear();
        }),
        (Part::Space, "a line is erased when no relocation is in flight", |f| {
            line_in(f, LineState::Closed).break_gate().break_order();
        }),
        (Part::Space, "valid sectors", |f| line_in(f, LineState::Closed).valid_sectors -= 1),
        (Part::Space, "free units of an open line", |f| {
            f.space.break_open().next().expect("an open line").free_units += 1
        }),
        (Part::Space, "programs in flight", |f| f.space.break_programs(None)),
        (Part::Space, "programs in flight per parallel unit", |f| f.space.break_programs(Some(0))),
        (Part::Space, "programs in flight per line", |f| {
            line_in(f, LineState::Open).programs_in_flight += 1;
        }),
        (Part::Space, "a line takes units when its record is durable", |f| {
            let journal_end = f.durability.journal().position();
            f.space.break_open().next().expect("an open line").recorded_lsn =
                crate::durability::journal::Lsn(journal_end.0 + 1);
        }),
        (Part::Gc, "relocations in flight", |f| {
            let line = f.space.break_line(|l| l.gate().relocations_in_flight() > 0);
            line.break_gate().break_relocations();
        }),
        (Part::Space, "chunks being erased", |f| f.space.break_table().break_erasing()),
        (Part::Gc, "a victim is being scanned", |f| {
            let closed = |l: &crate::space::lines::Line| {
                l.state == LineState::Closed && l.valid_sectors > 0 && !l.degraded
            };
            f.space.break_line(closed).state = LineState::Victim;
        }),
        (Part::Durability, "requests that wait for durability", |f| {
            f.durability.break_host_requests()
        }),
        (Part::Durability, "losses: durable ≤ begun ≤ known", |f| {
            f.durability.checkpoint_mut().break_losses();
        }),
        (Part::Durability, "journal: readable ≤ committed ≤ next generation", |f| {
            f.durability.journal_mut().break_generations();
        }),
        (Part::Durability, "changes of the owner's state are durable in their order", |f| {
            f.durability.owner_state_mut().expect("a state").break_order();
        }),
        (Part::Durability, "pages of a checkpoint", |f| {
            f.durability.checkpoint_mut().break_pages();
        }),
        (Part::Durability, "translation pages are in the write buffer", |f| {
            f.durability.trims_mut().set_pages_pos(u64::MAX);
        }),
        (Part::Durability, "a page with trims is listed", |f| {
            f.durability.trims_mut().settle(MapPageId(0), true)
        }),
        (Part::Health, "an offline chunk is bad", |f| {
            f.space.break_table().break_chunks().break_state(ChunkId(3)).offline = true
        }),
        (Part::Health, "a closed line to be refreshed is queued", |f| {
            line_in(f, LineState::Closed).refresh_requested = true;
        }),
    ];
    let (ftl, _flash) = busy();
    for (part, invariant, break_it) in plants {
        let mut broken = ftl.clone();
        break_it(&mut broken);
        let found = broken.check_invariants().expect_err(invariant);
        assert_eq!((found.part, found.invariant), (*part, *invariant), "{found}");
        let text = found.to_string();
        assert!(text.starts_with(&format!("{part}: {invariant} is broken for ")), "{text}");
        assert!(text.contains(&found.expected) && text.contains(&found.found), "{text}");
    }
}

#[test]
fn a_stall_is_explained() {
    let (mut ftl, mut flash) = busy();
    let stall = ftl.explain_stall().expect("a flush waits");
    assert!(stall.flushes && !stall.writes, "{stall}");
    let in_flight = |b: &Blocker| matches!(b, Blocker::FlashOperations { programs: 1.., .. });
    assert!(stall.blockers.iter().any(in_flight), "{stall}");
    // The records of open lines are not durable: what is written next finds no location.
    let never = crate::journal::Lsn(u64::MAX);
    ftl.space.break_open().for_each(|open| open.recorded_lsn = never);
    ftl.write(3, 0, 8, true);
    ftl.kick(Nanos(0), &mut flash);
    let stall = ftl.explain_stall().expect("a flush waits");
    let record = |b: &Blocker| matches!(b, Blocker::LineRecord { .. });
    assert!(stall.blockers.iter().any(record), "{stall}");
    assert!(stall.to_string().contains("the journal record of line"), "{stall}");
}

#[test]
fn without_requests_nothing_stalls() {
    let (mut ftl, mut flash) = busy();
    while flash.complete_oldest(&mut ftl) {}
    assert_eq!(ftl.explain_stall(), None, "{}", ftl.debug_state());
}

/// An FTL whose sectors have names, with an unconfirmed move.
fn busy_with_names() -> Ftl {
    let geometry = FlashGeometry::from_geometry(&Geometry {
        groups: 1,
        pus: 2,
        chunks: 40,
        sectors: 32,
        sector_bytes: 512,
        oob_bytes: 16,
        ws_min: 4,
        ws_opt: 4,
        mw_cunits: 8,
    });
    let addressing = SectorAddressing::Named { unconfirmed_lines_max: 4 };
    let config = FtlConfig { addressing, ..FtlConfig::default() };
    let mut ftl = Ftl::new(geometry, config, |_| ChunkReport::Free).expect("a small FTL");
    let mut flash = QueueFlash::default();
    let mut names = VecDeque::new();
    for request in 0..10 * ftl.sectors() {
        if names.len() as u64 == ftl.sectors() {
            // Every other one of the oldest: lines keep some valid sectors, which GC relocates.
            let name = names.remove(request as usize * 2 % 64).expect("there is one");
            ftl.free_named(name).expect("it is valid");
        }
        ftl.write_named(request, request);
        ftl.kick(Nanos(0), &mut flash);
        while ftl.pop_completion().is_none() {
            assert!(flash.complete_oldest(&mut ftl), "{request} hangs: {}", ftl.debug_state());
        }
        ftl.check_invariants().expect("nothing is broken yet");
        names.extend(std::iter::from_fn(|| ftl.pop_named_write()).map(|written| written.name));
        if ftl.pop_moved().is_some() {
            return ftl;
        }
    }
    panic!("nothing was moved: {}", ftl.debug_state());
}

#[test]
fn a_broken_invariant_of_names_is_reported_by_name() {
    type Plant = (Part, &'static str, fn(&mut Ftl));
    let plants: &[Plant] = &[
        (Part::Mapping, "valid sectors with names", |f| {
            f.mapping.named_mut().expect("names").break_count();
        }),
        (Part::Mapping, "sectors that the host uses", |f| {
            f.mapping.named_mut().expect("names").break_used();
        }),
        (Part::Mapping, "a chunk of a sector with a name has an epoch", |f| {
            let named = f.mapping.named_mut().expect("names");
            let phys = named.valid_sectors().next().expect("a sector");
            named.forget_chunk(f.env.geometry.chunk_of(phys));
        }),
        (Part::Requests, "queued tags", |f| f.mapping.named_mut().expect("names").queue_write(0)),
        (Part::Mapping, "moves of a line", |f| {
            let named = f.mapping.named_mut().expect("names");
            let phys = named.kept().next().expect("a move");
            named.break_kept(f.space.line_of(f.env.geometry.chunk_of(phys)));
        }),
        (Part::Gc, "a line that waits for confirmations is drained", |f| {
            let id = f.space.table().closed().next().expect("a closed line");
            f.mapping.named_mut().expect("names").start_waiting(id);
        }),
    ];
    let ftl = busy_with_names();
    for (part, invariant, break_it) in plants {
        let mut broken = ftl.clone();
        break_it(&mut broken);
        let found = broken.check_invariants().expect_err(invariant);
        assert_eq!((found.part, found.invariant), (*part, *invariant), "{found}");
    }
}
