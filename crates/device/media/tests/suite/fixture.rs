//! A small medium, and functions that program and verify it.

use media::{
    CellType, ChunkId, DataStore, ErrorModel, MediaError, Nand, NandConfig, NandGeometry,
    NandTiming, PhysSector, UnitInChunk, fill_pattern,
};
use time::Nanos;

/// 2 channels × 2 PUs × 2 planes × 6 chunks × 12 pages × 2 sectors of 512 bytes; MLC with pairs 3
/// pages apart.
pub(crate) fn config() -> NandConfig {
    NandConfig {
        geometry: NandGeometry {
            channels: 2,
            pus: 2,
            planes: 2,
            chunks: 6,
            pages: 12,
            page_bytes: 1024,
            sector_bytes: 512,
            oob_bytes: 16,
        },
        cell: CellType::Mlc,
        one_shot: false,
        paired_page_distance: 3,
        timing: NandTiming::uniform(Nanos(1), Nanos(2), Nanos(3), 0),
        errors: ErrorModel::default(),
        data: DataStore::Memory,
        seed: 1,
    }
}

pub(crate) fn nand() -> Nand {
    Nand::create(config()).unwrap()
}

/// Stages the data of generation `stamp` in every sector of a unit.
pub(crate) fn stage(
    nand: &mut Nand,
    chunk: ChunkId,
    unit: u32,
    stamp: u64,
) -> Result<(), MediaError> {
    let first = nand.layout().unit_start(chunk, UnitInChunk(unit));
    let mut bytes = vec![0; nand.layout().sector_bytes() as usize];
    for i in 0..nand.layout().write_unit() {
        let phys = first + i;
        fill_pattern(stamp << 32 | u64::from(phys.0), &mut bytes);
        nand.stage_bytes(phys, &bytes)?;
        let oob = nand.layout().oob_bytes().min(8) as usize;
        nand.set_oob(phys, &stamp.to_le_bytes()[..oob])?;
    }
    Ok(())
}

/// Programs a unit with data of generation `stamp`.
pub(crate) fn program(
    nand: &mut Nand,
    chunk: ChunkId,
    unit: u32,
    stamp: u64,
) -> Result<(), MediaError> {
    stage(nand, chunk, unit, stamp)?;
    nand.begin_program(chunk, UnitInChunk(unit))?;
    nand.complete_program(chunk, UnitInChunk(unit))
}

pub(crate) fn program_all(nand: &mut Nand, chunk: ChunkId, stamp: u64) {
    for unit in 0..nand.layout().units_per_chunk() {
        program(nand, chunk, unit, stamp).unwrap();
    }
}

pub(crate) fn erase(nand: &mut Nand, chunk: ChunkId) -> Result<(), MediaError> {
    nand.begin_erase(chunk)?;
    nand.complete_erase(chunk)
}

/// Reads a sector and checks that it holds the data of generation `stamp`.
pub(crate) fn verify(nand: &mut Nand, phys: PhysSector, stamp: u64) -> Result<(), MediaError> {
    nand.check_read(phys)?;
    let mut bytes = vec![0; nand.layout().sector_bytes() as usize];
    nand.read_bytes(phys, &mut bytes);
    media::check_pattern(stamp << 32 | u64::from(phys.0), &bytes).unwrap();
    let mut oob = [0xff; 8];
    nand.oob(phys, &mut oob);
    assert_eq!(u64::from_le_bytes(oob), stamp);
    Ok(())
}
