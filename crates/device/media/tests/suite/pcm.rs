//! Phase-change memory.

use std::fs;
use std::path::{Path, PathBuf};

use media::{DataStore, OpenError, Pcm, PcmConfig, PcmError, fill_pattern_from};
use mem::SharedRegion;
use rng::Rng;
use time::Nanos;

const BYTES: u64 = (5 << 20) + 4096;

fn config(data: DataStore) -> PcmConfig {
    PcmConfig {
        channels: 2,
        pus: 3,
        bytes: BYTES,
        sector_bytes: 512,
        read: Nanos(5_000),
        write: Nanos(5_000),
        channel_bytes_per_sec: 0,
        data,
    }
}

fn image_config(path: &Path) -> PcmConfig {
    config(DataStore::File(path.into()))
}

fn temp_image() -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::TempDir::new().unwrap();
    let path = dir.path().join("pcm.img");
    (dir, path)
}

/// Compares random reads and writes with a plain array.
fn compare_with_array(pcm: &mut Pcm, array: &mut [u8], seed: u64) {
    let mut rng = Rng::new(seed);
    let region = SharedRegion::anonymous(1 << 22).unwrap();
    for _ in 0..300 {
        let most = [16, 5000, 3 << 20][rng.below(3) as usize];
        let len = rng.below(most) as usize;
        let offset = rng.below(BYTES - len as u64 + 1);
        let here = &mut array[offset as usize..offset as usize + len];
        match rng.below(4) {
            0 => {
                here.fill(rng.next_u64() as u8);
                pcm.write(offset, here).unwrap();
            }
            1 => {
                here.fill(rng.next_u64() as u8);
                region.write(77, here);
                pcm.copy_in(offset, &region, 77, len).unwrap();
            }
            2 => {
                let mut got = vec![1; len];
                pcm.read(offset, &mut got).unwrap();
                assert!(got == here);
            }
            _ => {
                pcm.copy_out(offset, &region, 99, len).unwrap();
                let mut got = vec![1; len];
                region.read(99, &mut got);
                assert!(got == here);
            }
        }
    }
}

#[test]
fn any_byte_is_written_in_place_in_memory_and_in_an_image() {
    let (_dir, path) = temp_image();
    for data in [DataStore::Memory, DataStore::File(path.clone())] {
        let mut array = vec![0; BYTES as usize];
        let mut pcm = Pcm::create(config(data)).unwrap();
        compare_with_array(&mut pcm, &mut array, 1);
        if pcm.config().data == DataStore::Memory {
            continue;
        }
        pcm.sync().unwrap();
        for round in 2..4 {
            drop(pcm);
            pcm = Pcm::open(image_config(&path)).unwrap();
            compare_with_array(&mut pcm, &mut array, round);
        }
    }
}

#[test]
fn bytes_past_the_end_are_refused() {
    let mut pcm = Pcm::create(config(DataStore::Memory)).unwrap();
    for (offset, len) in [(BYTES, 1), (BYTES - 3, 4), (u64::MAX, 1), (u64::MAX, 0)] {
        let error = PcmError::OutOfRange { offset, len: len as u64, bytes: BYTES };
        assert_eq!(pcm.read(offset, &mut vec![0; len]), Err(error));
        assert_eq!(pcm.write(offset, &vec![0; len]), Err(error));
        assert_eq!(error.status(), nvme::Status::LBA_OUT_OF_RANGE);
    }
    pcm.write(BYTES - 4, &[1; 4]).unwrap();
    pcm.write(BYTES, &[]).unwrap();
    let s = pcm.stats();
    assert_eq!((s.writes, s.bytes_written, s.reads, s.refused), (2, 4, 0, 8));
}

#[test]
fn a_medium_without_data_reads_patterns_at_any_byte() {
    let mut pcm = Pcm::create(config(DataStore::None)).unwrap();
    pcm.write(1000, &[7; 100]).unwrap();
    let (mut got, mut want) = (vec![0; 2000], vec![0; 2000]);
    pcm.read(1001, &mut got).unwrap();
    fill_pattern_from(1, 489, &mut want[..23]);
    fill_pattern_from(2, 0, &mut want[23..535]);
    fill_pattern_from(3, 0, &mut want[535..1047]);
    assert_eq!(got[..1047], want[..1047]);
    let region = SharedRegion::anonymous(4096).unwrap();
    pcm.copy_out(1001, &region, 5, 2000).unwrap();
    region.read(5, &mut want);
    assert_eq!(got, want);
}

#[test]
fn sectors_go_round_over_channels_and_pus() {
    let cfg = config(DataStore::None);
    let pus: Vec<u32> = (0..8).map(|s| cfg.pu_of(s)).collect();
    assert_eq!(pus, [0, 3, 1, 4, 2, 5, 0, 3]);
}

#[test]
fn images_of_another_size_and_impossible_shapes_are_refused() {
    let (_dir, path) = temp_image();
    drop(Pcm::create(image_config(&path)).unwrap());
    let before = fs::read(&path).unwrap();
    let other = PcmConfig { bytes: BYTES + 512, ..image_config(&path) };
    let error = Pcm::open_or_create(other).unwrap_err();
    assert!(
        matches!(error, OpenError::Differs { what: "number of bytes", found: BYTES, .. }),
        "{error}"
    );
    let held = Pcm::open(image_config(&path)).unwrap();
    assert!(matches!(Pcm::open(image_config(&path)), Err(OpenError::InUse { .. })));
    drop(held);
    assert!(matches!(Pcm::create(image_config(&path)), Err(OpenError::Exists { .. })));
    assert!(fs::read(&path).unwrap() == before);
    for bad in [
        PcmConfig { channels: 0, ..image_config(&path) },
        PcmConfig { bytes: 513, ..image_config(&path) },
        PcmConfig { bytes: 0, ..image_config(&path) },
        PcmConfig { sector_bytes: 1000, bytes: 1000, ..image_config(&path) },
        PcmConfig { channels: u32::MAX, pus: 2, ..image_config(&path) },
    ] {
        assert!(matches!(Pcm::open(bad), Err(OpenError::Geometry(_))));
    }
}

#[test]
fn an_overlay_of_phase_change_memory_leaves_its_image_untouched() {
    let (_dir, path) = temp_image();
    let mut pcm = Pcm::create(image_config(&path)).unwrap();
    pcm.write(512, &[7; 512]).unwrap();
    pcm.sync().unwrap();
    drop(pcm);
    let before = std::fs::read(&path).unwrap();
    let mut pcm = Pcm::open_or_create(config(DataStore::Overlay(path.clone()))).unwrap();
    let mut found = [0; 512];
    pcm.read(512, &mut found).unwrap();
    assert_eq!(found, [7; 512]);
    let far = pcm.config().bytes - 512;
    for at in [0, 512, far] {
        pcm.write(at, &[9; 512]).unwrap();
        pcm.read(at, &mut found).unwrap();
        assert_eq!(found, [9; 512]);
    }
    pcm.sync().unwrap();
    drop(pcm);
    assert!(std::fs::read(&path).unwrap() == before, "an overlay changed its image");
}
