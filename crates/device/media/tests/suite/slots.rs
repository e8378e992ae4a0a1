//! Moves of sectors between slots and chunks, in memory by reference and in an image by copies.

// guarantee: B-53, B-54

use media::{
    BufferSlot, CellType, ChunkId, DataStore, MediaError, Nand, NandConfig, PhysSector,
    UnitInChunk, check_pattern,
};
use rng::Rng;
use tempfile::TempDir;

use super::fixture::{config, erase, program_all, verify};

const SLOTS: u32 = 13;
/// Sectors of a write unit.
const UNIT: u32 = 4;

/// SLC, whose sectors are readable as soon as they are programmed.
fn slc(data: DataStore) -> Nand {
    let mut nand = NandConfig { cell: CellType::Slc, data, ..config() };
    nand.paired_page_distance = 0;
    let mut nand = Nand::create(nand).unwrap();
    nand.set_slots(SLOTS).unwrap();
    nand
}

/// Gives a slot data that is copied from outside: every byte is `byte`.
fn fill_slot(nand: &mut Nand, slot: BufferSlot, byte: u8) {
    let bytes = nand.layout().sector_bytes() as usize;
    let (region, offset) = nand.slot_to_write(slot).unwrap();
    region.fill(offset, bytes, byte);
}

fn slot_byte(nand: &Nand, slot: BufferSlot) -> u8 {
    let mut bytes = vec![0; nand.layout().sector_bytes() as usize];
    if let Some((region, offset)) = nand.slot_data(slot) {
        region.read(offset, &mut bytes);
    }
    uniform(&bytes)
}

fn uniform(bytes: &[u8]) -> u8 {
    assert!(bytes.iter().all(|byte| *byte == bytes[0]), "a mixture of sectors");
    bytes[0]
}

fn sector_byte(nand: &mut Nand, phys: PhysSector) -> Result<u8, MediaError> {
    nand.check_read(phys)?;
    let mut bytes = vec![0; nand.layout().sector_bytes() as usize];
    nand.read_bytes(phys, &mut bytes);
    Ok(uniform(&bytes))
}

/// Programs the next unit of a chunk from the slots `slots`.
fn program_slots(nand: &mut Nand, chunk: ChunkId, slots: [u32; UNIT as usize]) {
    let pointer = nand.chunk_info(chunk).unwrap().write_pointer;
    for (i, slot) in (0..).zip(slots) {
        let phys = nand.layout().phys(chunk, pointer + i);
        nand.stage_slots(phys, BufferSlot(slot), [i.to_le_bytes()].into_iter()).unwrap();
    }
    nand.begin_program(chunk, UnitInChunk(pointer / UNIT)).unwrap();
    nand.complete_program(chunk, UnitInChunk(pointer / UNIT)).unwrap();
}

#[test]
fn a_relocated_sector_is_readable_at_both_locations_until_the_first_is_written_again() {
    let dir = TempDir::new().unwrap();
    for data in [DataStore::Memory, DataStore::File(dir.path().join("image"))] {
        let in_memory = data == DataStore::Memory;
        let mut nand = slc(data);
        let (old, new) = (ChunkId(3), ChunkId(8));
        for slot in 0..UNIT {
            fill_slot(&mut nand, BufferSlot(slot), 10 + slot as u8);
        }
        program_slots(&mut nand, old, [0, 1, 2, 3]);
        // The slots get other data, and then that of the sectors.
        for slot in 0..UNIT {
            fill_slot(&mut nand, BufferSlot(slot), 90);
        }
        let copies = nand.buffer_stats().copies;
        let first = nand.layout().phys(old, 0);
        for i in 0..UNIT {
            nand.load_slot(first + i, BufferSlot(i));
        }
        program_slots(&mut nand, new, [0, 1, 2, 3]);
        nand.power_cut();
        nand.set_slots(SLOTS).unwrap();
        if in_memory {
            assert_eq!(nand.buffer_stats().copies, copies, "a relocation copies nothing");
        }
        for (chunk, i) in [(old, 0), (old, 3), (new, 0), (new, 3)] {
            let phys = nand.layout().phys(chunk, i);
            assert_eq!(sector_byte(&mut nand, phys), Ok(10 + i as u8));
        }
        assert_eq!(slot_byte(&nand, BufferSlot(2)), 0, "slots do not survive a power cut");
        erase(&mut nand, old).unwrap();
        assert!(nand.check_read(first).is_err());
        fill_slot(&mut nand, BufferSlot(0), 77);
        program_slots(&mut nand, old, [0, 1, 0, 1]);
        assert_eq!(sector_byte(&mut nand, first), Ok(77));
        assert_eq!(sector_byte(&mut nand, first + 1), Ok(0), "a slot without data is zeros");
        for i in 0..UNIT {
            let phys = nand.layout().phys(new, i);
            assert_eq!(sector_byte(&mut nand, phys), Ok(10 + i as u8));
        }
    }
}

#[test]
fn a_sector_is_copied_to_another_with_its_out_of_band_bytes() {
    let dir = TempDir::new().unwrap();
    for data in [DataStore::Memory, DataStore::File(dir.path().join("image"))] {
        let in_memory = data == DataStore::Memory;
        let mut nand = slc(data);
        program_all(&mut nand, ChunkId(2), 5);
        let copies = nand.buffer_stats().copies;
        let (from, to) = (nand.layout().phys(ChunkId(2), 8), nand.layout().phys(ChunkId(9), 0));
        for i in 0..UNIT {
            nand.stage_copy(from + i, to + i).unwrap();
        }
        nand.begin_program(ChunkId(9), UnitInChunk(0)).unwrap();
        nand.complete_program(ChunkId(9), UnitInChunk(0)).unwrap();
        let refused = nand.stage_copy(from, to);
        assert_eq!(refused, Err(MediaError::Overwrite { phys: to, free: UNIT }));
        if in_memory {
            assert_eq!(nand.buffer_stats().copies, copies);
        }
        erase(&mut nand, ChunkId(2)).unwrap();
        program_all(&mut nand, ChunkId(2), 6);
        for i in 0..UNIT {
            let (mut bytes, mut oob) = ([0; 512], [0; 8]);
            nand.check_read(to + i).unwrap();
            nand.read_bytes(to + i, &mut bytes);
            check_pattern(5 << 32 | u64::from((from + i).get()), &bytes).unwrap();
            nand.oob(to + i, &mut oob);
            assert_eq!(u64::from_le_bytes(oob), 5);
            verify(&mut nand, from + i, 6).unwrap();
        }
    }
}

/// The byte of each slot, and of each programmed sector, by chunk.
#[derive(Clone)]
struct Model {
    slots: Vec<u8>,
    chunks: Vec<Vec<u8>>,
}

impl Model {
    fn check(&self, nand: &mut Nand, context: &str) {
        for (slot, byte) in (0..).zip(&self.slots) {
            assert_eq!(slot_byte(nand, BufferSlot(slot)), *byte, "{context}, slot {slot}");
        }
        for (chunk, sectors) in (0..).map(ChunkId).zip(&self.chunks) {
            for (sector, byte) in (0..).zip(sectors) {
                let phys = nand.layout().phys(chunk, sector);
                assert_eq!(sector_byte(nand, phys), Ok(*byte), "{context}, {phys}");
            }
        }
    }
}

/// Does random steps on a medium and on its model.
fn random_steps(nand: &mut Nand, model: &mut Model, rng: &mut Rng, steps: u32) {
    let chunks = model.chunks.len() as u64;
    let full = nand.layout().sectors_per_chunk() as usize;
    for step in 0..steps {
        let slot = rng.below(u64::from(SLOTS)) as u32;
        let chunk = rng.below(chunks) as usize;
        let written = model.chunks[chunk].len();
        let source = ChunkId(chunk as u32);
        match rng.below(16) {
            0..4 => {
                let byte = step as u8 | 1;
                fill_slot(nand, BufferSlot(slot), byte);
                model.slots[slot as usize] = byte;
            }
            4 => {
                nand.write_slot(BufferSlot(slot), &[]);
                model.slots[slot as usize] = 0;
            }
            5..9 if written > 0 => {
                let sector = rng.below(written as u64) as usize;
                nand.load_slot(nand.layout().phys(source, sector as u32), BufferSlot(slot));
                model.slots[slot as usize] = model.chunks[chunk][sector];
            }
            9..13 if written < full => {
                let slots = [(); UNIT as usize].map(|()| rng.below(u64::from(SLOTS)) as u32);
                program_slots(nand, source, slots);
                let bytes = slots.map(|slot| model.slots[slot as usize]);
                model.chunks[chunk].extend(bytes);
            }
            13 if written > 0 => {
                let target = rng.below(chunks) as usize;
                let pointer = model.chunks[target].len();
                if target == chunk || pointer == full {
                    continue;
                }
                let (target_id, unit) = (ChunkId(target as u32), pointer as u32 / UNIT);
                for i in 0..UNIT {
                    let sector = rng.below(written as u64) as usize;
                    let from = nand.layout().phys(source, sector as u32);
                    let to = nand.layout().phys(target_id, pointer as u32 + i);
                    nand.stage_copy(from, to).unwrap();
                    let byte = model.chunks[chunk][sector];
                    model.chunks[target].push(byte);
                }
                nand.begin_program(target_id, UnitInChunk(unit)).unwrap();
                nand.complete_program(target_id, UnitInChunk(unit)).unwrap();
            }
            14 => {
                erase(nand, source).unwrap();
                model.chunks[chunk].clear();
            }
            15 if rng.below(8) == 0 => nand.release_free().unwrap(),
            _ => {}
        }
    }
}

#[test]
fn random_moves_equal_copies_in_memory_and_in_an_image_also_from_a_saved_state() {
    for seed in 0..24 {
        let dir = TempDir::new().unwrap();
        let in_memory = seed % 3 != 0;
        let data =
            if in_memory { DataStore::Memory } else { DataStore::File(dir.path().join("image")) };
        let mut nand = slc(data);
        let chunks = nand.layout().chunk_count() as usize;
        let mut model = Model { slots: vec![0; SLOTS as usize], chunks: vec![vec![]; chunks] };
        let mut rng = Rng::new(seed);
        for round in 0..4 {
            let context = format!("seed {seed}, round {round}");
            random_steps(&mut nand, &mut model, &mut rng, 1500);
            model.check(&mut nand, &context);
            if in_memory {
                // A copy and a saved state do not share buffers with the medium.
                let (mut copy, mut of_copy, mut other) = (nand.clone(), model.clone(), rng.clone());
                random_steps(&mut copy, &mut of_copy, &mut other, 300);
                of_copy.check(&mut copy, &format!("the copy of {context}"));
                model.check(&mut nand, &context);
                let saved = postcard::to_stdvec(&nand).unwrap();
                nand = postcard::from_bytes(&saved).unwrap();
                assert_eq!(postcard::to_stdvec(&nand).unwrap(), saved);
                let holders = nand.layout().sector_count() + SLOTS;
                assert!(nand.buffer_stats().in_use <= holders);
            }
            nand.power_cut();
            nand.set_slots(SLOTS).unwrap();
            model.slots.fill(0);
            model.check(&mut nand, &context);
        }
    }
}

#[test]
fn slots_are_staged_only_where_a_program_may_be_and_in_one_chunk() {
    let mut nand = slc(DataStore::Memory);
    for slot in 0..SLOTS {
        fill_slot(&mut nand, BufferSlot(slot), 1 + slot as u8);
    }
    let (chunk, next) = (ChunkId(4), ChunkId(5));
    let (first, slot) = (nand.layout().phys(chunk, 0), BufferSlot(3));
    let oobs = |count: u32| (0..count).map(|i| i.to_le_bytes()).collect::<Vec<_>>().into_iter();
    nand.stage_slots(first, slot, oobs(UNIT)).unwrap();
    nand.begin_program(chunk, UnitInChunk(0)).unwrap();
    nand.complete_program(chunk, UnitInChunk(0)).unwrap();
    for i in 0..UNIT {
        assert_eq!(sector_byte(&mut nand, first + i), Ok(4 + i as u8));
        let mut oob = [0xff; 16];
        nand.oob(first + i, &mut oob);
        assert_eq!(u128::from_le_bytes(oob), i.into());
    }
    let overwrite = MediaError::Overwrite { phys: first, free: UNIT };
    assert_eq!(nand.stage_slots(first, slot, oobs(UNIT)), Err(overwrite));
    program_slots(&mut nand, next, [0, 1, 2, 3]);
    let last = nand.layout().phys(chunk, nand.layout().sectors_per_chunk() - 1);
    let past = MediaError::OutOfRange { what: "sector of a chunk", value: 48, limit: 48 };
    assert_eq!(nand.stage_slots(last, slot, oobs(2)), Err(past));
    assert_eq!(sector_byte(&mut nand, last + 1), Ok(1));
    let long = MediaError::OutOfRange { what: "out-of-band bytes", value: 17, limit: 16 };
    assert_eq!(nand.stage_slots(last, slot, [[0; 17]].into_iter()), Err(long));
}

#[test]
fn a_medium_without_data_has_no_slots() {
    let mut nand = slc(DataStore::None);
    let none = BufferSlot(SLOTS);
    assert!(nand.slot_to_write(none).is_none() && nand.slot_data(none).is_none());
    nand.write_slot(none, &[1]);
    nand.load_slot(PhysSector(0), none);
    nand.stage_slots(PhysSector(u32::MAX), none, [[0; 16]].into_iter()).unwrap();
    nand.stage_copy(PhysSector(0), PhysSector(u32::MAX)).unwrap();
    assert_eq!(nand.buffer_stats(), Default::default());
}
