//! Throughput cost of line metadata [LightNVM17 §4.2.1, §4.2.2]: only its share of the writes, and
//! no stall at the boundary of two lines, with the smallest write buffer.
//!
//! Every parallel unit completes one operation per step, and the host always has more to write. The
//! test compares the number of steps for a number of write units with metadata and without; they
//! may differ by 1%.

use crate::common;

use common::{TestFlash, geometry};
use ftl::{ChunkReport, FlashGeometry, Ftl, FtlConfig, LineMetadata};
use nvme::Geometry;
use time::Nanos;

const UNIT: u32 = 16;
/// Write units per chunk, and the number of later units that a unit's paired pages span.
const ROWS: u32 = 256;
const PAIRS: u32 = 8;
/// Number of lines written.
const LINES: u64 = 4;
const OUTSTANDING: u64 = 64;

/// Returns the steps until the FTL has completed the host writes for `LINES` lines, and the number
/// of lines without metadata.
fn sweeps(line_metadata: LineMetadata, pus: u32) -> (u64, u64) {
    let of = geometry(4, pus / 4, 24, ROWS * UNIT, UNIT, PAIRS * UNIT);
    let shape = FlashGeometry::from_geometry(&Geometry { sector_bytes: 4096, ..of });
    let config = FtlConfig { line_metadata, ..FtlConfig::default() };
    let mut ftl = Ftl::new(shape, config, |_| ChunkReport::Free).unwrap();
    assert_eq!(ftl.capacity_plan().line_metadata_units > 0, line_metadata == LineMetadata::On);
    let mut flash = TestFlash::new(shape, false, ftl.slots(), 1);
    let all = LINES * u64::from(pus * ROWS);
    assert!(all * u64::from(UNIT) < ftl.sectors());
    let (mut begun, mut ended, mut turns) = (0, 0, 0);
    while ended < all {
        while begun < (ended + OUTSTANDING).min(all) {
            flash.requests.insert(begun, vec![0; UNIT as usize]);
            ftl.write(begun, begun * u64::from(UNIT), UNIT, false);
            begun += 1;
        }
        ftl.kick(Nanos(0), &mut flash);
        let before = ended;
        while let Some(done) = ftl.pop_completion() {
            assert!(done.status.is_success(), "{}", done.status);
            flash.requests.remove(&done.tag);
            ended += 1;
        }
        if ended == before {
            flash.step_all_pus(&mut ftl);
            turns += 1;
        }
        assert!(turns < 4 * all, "the writes do not complete: {}", ftl.debug_state());
    }
    (turns, ftl.stats().lines_without_metadata)
}

#[test]
fn metadata_costs_its_share_of_writes_and_no_waiting() {
    for pus in [8, 16, 32] {
        let (without, _) = sweeps(LineMetadata::Off, pus);
        let (with, missing) = sweeps(LineMetadata::On, pus);
        println!("{pus} parallel units: {with} turns with metadata, {without} without");
        assert_eq!(missing, 0, "{pus} parallel units: lines without metadata");
        assert!(
            with * 100 <= without * 101,
            "{pus} parallel units: {with} steps with metadata, {without} without"
        );
    }
}
