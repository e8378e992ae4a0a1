//! Costs of simulated operations, without errors and with. Every case reports the time of one
//! operation.

extern crate sluice_media as media;

use divan::counter::{BytesCount, ItemsCount};
use divan::{Bencher, black_box};
use media::{
    CellType, ChunkId, DataStore, ErrorModel, Nand, NandConfig, NandGeometry, NandTiming,
    PhysSector, UnitInChunk,
};
use mem::SharedRegion;
use time::Nanos;

fn main() {
    divan::main();
}

/// Returns the drive of [LightNVM17 §5] with fewer blocks; `data` is the storage of its sectors.
fn config(data: DataStore, chunks: u32) -> NandConfig {
    NandConfig {
        geometry: NandGeometry {
            channels: 16,
            pus: 8,
            planes: 4,
            chunks,
            pages: 256,
            page_bytes: 16384,
            sector_bytes: 4096,
            oob_bytes: 16,
        },
        cell: CellType::Mlc,
        one_shot: false,
        paired_page_distance: 8,
        timing: NandTiming::uniform(Nanos(1), Nanos(2), Nanos(3), 0),
        errors: ErrorModel::default(),
        data,
        seed: 1,
    }
}

fn fill(n: &mut Nand) {
    for chunk in (0..n.layout().chunk_count()).map(ChunkId) {
        for unit in 0..n.layout().units_per_chunk() {
            n.begin_program(chunk, UnitInChunk(unit)).unwrap();
            n.complete_program(chunk, UnitInChunk(unit)).unwrap();
        }
    }
}

/// Returns random sectors, chosen before the measurement.
fn sectors(n: &Nand) -> Vec<PhysSector> {
    let mut rng = rng::Rng::new(3);
    (0..1 << 16).map(|_| PhysSector(rng.below(n.layout().sector_count().into()) as u32)).collect()
}

fn read(bencher: Bencher, mut n: Nand) {
    fill(&mut n);
    let sectors = sectors(&n);
    bencher.counter(ItemsCount::new(sectors.len())).bench_local(|| {
        for phys in &sectors {
            black_box(n.check_read(*phys)).unwrap();
        }
    });
}

#[divan::bench]
fn check_read_in_cache(bencher: Bencher) {
    read(bencher, Nand::create(config(DataStore::None, 16)).unwrap());
}

/// 136 576 chunks: the table of the 2 TB drive.
#[divan::bench]
fn check_read_of_2_tb(bencher: Bencher) {
    read(bencher, Nand::create(config(DataStore::None, 1067)).unwrap());
}

#[divan::bench]
fn check_read_with_bit_errors(bencher: Bencher) {
    let mut cfg = config(DataStore::None, 16);
    cfg.errors.rber = 1e-6;
    read(bencher, Nand::create(cfg).unwrap());
}

fn program(bencher: Bencher, mut n: Nand) {
    let (chunks, units) = (n.layout().chunk_count(), n.layout().units_per_chunk());
    bencher.counter(ItemsCount::new(chunks * units)).bench_local(|| {
        for unit in 0..units {
            for chunk in (0..chunks).map(ChunkId) {
                n.begin_program(chunk, UnitInChunk(unit)).unwrap();
                n.complete_program(chunk, UnitInChunk(unit)).unwrap();
            }
        }
        for chunk in (0..chunks).map(ChunkId) {
            n.begin_erase(chunk).unwrap();
            n.complete_erase(chunk).unwrap();
        }
    });
}

/// Begin and end of a program, with an erase for every 256.
#[divan::bench]
fn program_no_data(bencher: Bencher) {
    program(bencher, Nand::create(config(DataStore::None, 16)).unwrap());
}

#[divan::bench]
fn program_that_may_fail(bencher: Bencher) {
    let mut cfg = config(DataStore::None, 16);
    cfg.errors.program_fail = 1e-15;
    program(bencher, Nand::create(cfg).unwrap());
}

/// The image stores records as well; no data is staged.
#[divan::bench]
fn program_image(bencher: Bencher) {
    let dir = tempfile::TempDir::new().unwrap();
    let mut cfg = config(DataStore::File(dir.path().join("drive.img")), 2);
    cfg.geometry.page_bytes = 4096;
    program(bencher, Nand::create(cfg).unwrap());
}

#[divan::bench]
fn stage_and_copy_out_4k(bencher: Bencher) {
    let mut cfg = config(DataStore::Memory, 1);
    cfg.geometry.pages = 16;
    let mut n = Nand::create(cfg).unwrap();
    let count = n.layout().sector_count();
    let host = SharedRegion::anonymous(4096).unwrap();
    bencher.counter(BytesCount::new(u64::from(count) * 8192)).bench_local(|| {
        for phys in (0..count).map(PhysSector) {
            n.stage(phys, &host, 0).unwrap();
            n.copy_out(phys, &host, 0);
        }
    });
}

#[divan::bench]
fn pattern_4k(bencher: Bencher) {
    let mut bytes = [0; 4096];
    bencher
        .counter(BytesCount::new(4096u64))
        .bench_local(|| media::fill_pattern(black_box(7), black_box(&mut bytes)));
}

#[divan::bench]
fn power_cut_of_2_tb(bencher: Bencher) {
    let mut n = Nand::create(config(DataStore::None, 1067)).unwrap();
    bencher.bench_local(|| n.power_cut());
}
