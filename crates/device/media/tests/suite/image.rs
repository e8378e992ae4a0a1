//! Image files: persistence, refused files that must not change, and full disks.

// guarantee: D-03, D-53

use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use media::{
    CellType, ChunkId, ChunkState, DataStore, IMAGE_VERSION, InjectedFault, MediaError, Nand,
    NandConfig, OpenError, UnitInChunk,
};
use nvme::PuId;
use tempfile::TempDir;

use super::fixture::{config, erase, program, program_all, stage, verify};

const C: ChunkId = ChunkId(7);

fn image_config(path: &Path) -> NandConfig {
    NandConfig { data: DataStore::File(path.into()), ..config() }
}

fn temp_image() -> (TempDir, PathBuf) {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("drive.img");
    (dir, path)
}

#[test]
fn everything_survives_a_restart() {
    let (_dir, path) = temp_image();
    let mut cfg = image_config(&path);
    cfg.errors.factory_bad = 0.1;
    cfg.seed = 5;
    let mut n = Nand::create(cfg.clone()).unwrap();
    let good: Vec<ChunkId> =
        n.chunks().filter(|(_, i)| i.state == ChunkState::Free).map(|(c, _)| c).collect();
    assert!(good.len() < 24 && good.len() > 12);
    let (full, open, closed, worn, bad) = (good[0], good[1], good[2], good[3], good[4]);
    program_all(&mut n, full, 1);
    for unit in 0..5 {
        program(&mut n, open, unit, 2).unwrap();
    }
    program(&mut n, closed, 0, 3).unwrap();
    n.inject(InjectedFault::NextProgram).unwrap();
    program(&mut n, closed, 1, 3).unwrap_err();
    for _ in 0..3 {
        erase(&mut n, worn).unwrap();
    }
    n.inject(InjectedFault::ChunkBad { chunk: bad }).unwrap();
    n.inject(InjectedFault::DieFailure { pu: PuId(3) }).unwrap();
    n.sync().unwrap();
    let before: Vec<_> = n.chunks().collect();
    drop(n);

    // Another seed in the configuration has no effect: the medium keeps its weak cells.
    let mut n = Nand::open(NandConfig { seed: 6, ..cfg.clone() }).unwrap();
    assert_eq!(n.chunks().collect::<Vec<_>>(), before);
    assert_eq!(n.config().seed, 5);
    for sector in 0..48 {
        let phys = n.layout().phys(full, sector);
        verify(&mut n, phys, 1).unwrap();
        let phys = n.layout().phys(open, sector);
        assert_eq!(verify(&mut n, phys, 2).is_ok(), sector < 8);
        let phys = n.layout().phys(closed, sector);
        assert_eq!(verify(&mut n, phys, 3).is_ok(), sector < 4);
    }
    for unit in 5..12 {
        program(&mut n, open, unit, 2).unwrap();
    }
    drop(n);
    let mut n = Nand::open_or_create(cfg).unwrap();
    let phys = n.layout().phys(open, 47);
    verify(&mut n, phys, 2).unwrap();
}

#[test]
fn a_process_that_ends_amid_operations_is_a_power_cut() {
    let (_dir, path) = temp_image();
    let mut n = Nand::create(image_config(&path)).unwrap();
    program(&mut n, C, 0, 1).unwrap();
    stage(&mut n, C, 1, 1).unwrap();
    n.begin_program(C, UnitInChunk(1)).unwrap();
    program_all(&mut n, ChunkId(0), 1);
    n.begin_erase(ChunkId(0)).unwrap();
    drop(n);
    for _ in 0..2 {
        let mut n = Nand::open(image_config(&path)).unwrap();
        let phys = n.layout().phys(C, 5);
        assert_eq!(n.check_read(phys), Err(MediaError::Torn { phys }));
        assert_eq!(n.chunk_info(C).unwrap().write_pointer, 8);
        let phys = n.layout().phys(ChunkId(0), 5);
        assert!(matches!(n.check_read(phys), Err(MediaError::EraseInterrupted { .. })));
        // At the second open, the image already contains the resolved state.
    }
    let mut n = Nand::open(image_config(&path)).unwrap();
    erase(&mut n, C).unwrap();
    for unit in 0..6 {
        program(&mut n, C, unit, 2).unwrap();
    }
    stage(&mut n, C, 6, 2).unwrap();
    n.begin_program(C, UnitInChunk(6)).unwrap();
    drop(n);
    // A torn-unit mark from before the erase is ignored, both when the power cut is resolved and
    // later.
    for _ in 0..2 {
        let mut n = Nand::open(image_config(&path)).unwrap();
        let phys = n.layout().phys(C, 5);
        verify(&mut n, phys, 2).unwrap();
        let phys = n.layout().phys(C, 24);
        assert_eq!(n.check_read(phys), Err(MediaError::Torn { phys }));
    }
}

#[test]
fn an_image_is_sparse_and_shrinks_again() {
    let (_dir, path) = temp_image();
    let mut cfg = image_config(&path);
    cfg.geometry.page_bytes = 1 << 16;
    let mut n = Nand::create(cfg.clone()).unwrap();
    let bytes = || fs::metadata(&path).unwrap().blocks() * 512;
    assert!(fs::metadata(&path).unwrap().len() > cfg.geometry.total_bytes());
    assert!(bytes() < 100_000, "{}", bytes());
    program_all(&mut n, C, 1);
    program_all(&mut n, ChunkId(3), 1);
    let chunk = 24 << 16;
    assert!((2 * chunk..2 * chunk + 200_000).contains(&bytes()), "{}", bytes());
    erase(&mut n, C).unwrap();
    n.release_free().unwrap();
    assert!((chunk..chunk + 200_000).contains(&bytes()), "{}", bytes());
    let phys = n.layout().phys(ChunkId(3), 99);
    verify(&mut n, phys, 1).unwrap();
    program_all(&mut n, C, 2);
}

/// Compares a file with `docs/format/image.md` byte by byte: later versions must read it.
#[test]
fn the_byte_map_is_the_documented_one() {
    let (_dir, path) = temp_image();
    let mut cfg = image_config(&path);
    (cfg.seed, cfg.errors.factory_bad) = (0x5eed, 0.25);
    let mut n = Nand::create(cfg).unwrap();
    let chunk = n.chunks().find(|(_, i)| i.state == ChunkState::Free).unwrap().0;
    erase(&mut n, chunk).unwrap();
    program(&mut n, chunk, 0, 9).unwrap();
    stage(&mut n, chunk, 1, 9).unwrap();
    n.begin_program(chunk, UnitInChunk(1)).unwrap();
    n.power_cut();
    drop(n);
    let file = fs::read(&path).unwrap();
    let word = |at: usize| u64::from_le_bytes(file[at..at + 8].try_into().unwrap());
    assert_eq!(&file[..16], b"SLUICIMG\x01\0\0\0\x01\0\0\0");
    let numbers: Vec<u64> = (0..19).map(|i| word(16 + 8 * i)).collect();
    let (table, marks, oob, data, end) = (4096, 8192, 12288, 32768, 622_592);
    assert_eq!(numbers[..11], [2, 2, 2, 6, 12, 1024, 512, 16, 2, 0, 3]);
    assert_eq!(numbers[11..16], [table, marks, oob, data, end]);
    assert_eq!(numbers[16..], [0x5eed, 0.25f64.to_bits(), 0]);
    assert_eq!(file[4092..4096], crc32c::crc32c(&file[..4092]).to_le_bytes());
    assert_eq!(file.len() as u64, end);

    let at = chunk.0 as usize;
    let record = word(table as usize + 8 * at);
    let (pointer, marked, wear) = (8, 1 << 31, 1 << 32);
    let bits = pointer | marked | wear;
    assert_eq!(record & ((1 << 56) - 1), bits);
    let check = (bits ^ (bits >> 29)).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56 ^ 0xa5;
    assert_eq!(record >> 56, check);
    assert_eq!(file[marks as usize + 12 * at..][..12], [0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    let first = 48 * at;
    assert_eq!(file[oob as usize + 16 * first..][..8], 9u64.to_le_bytes());
    let sector = &file[data as usize + 512 * first..][..512];
    media::check_pattern(9 << 32 | first as u64, sector).unwrap();
}

/// Returns everything about a file that a refusal must not change.
fn fingerprint(path: &Path) -> (Vec<u8>, i64, i64) {
    let meta = fs::metadata(path).unwrap();
    (fs::read(path).unwrap(), meta.mtime(), meta.mtime_nsec())
}

/// Opens an image that must be refused, with every open function, and checks that the file did not
/// change.
fn expect_refused(cfg: &NandConfig, path: &Path) -> OpenError {
    let before = fingerprint(path);
    Nand::create(cfg.clone()).unwrap_err();
    Nand::open_or_create(cfg.clone()).unwrap_err();
    let error = Nand::open(cfg.clone()).unwrap_err();
    assert!(fingerprint(path) == before, "{error}: the file has changed");
    assert!(error.to_string().contains(path.to_str().unwrap()), "{error}");
    error
}

#[test]
fn an_image_of_another_medium_is_refused_unharmed() {
    let (_dir, path) = temp_image();
    let mut n = Nand::create(image_config(&path)).unwrap();
    program_all(&mut n, C, 1);
    drop(n);
    type Change = fn(&mut NandConfig);
    let changes: [(&str, u64, u64, Change); 11] = [
        ("number of channels", 2, 1, |c| c.geometry.channels = 1),
        ("number of PUs per channel", 2, 3, |c| c.geometry.pus = 3),
        ("number of planes", 2, 1, |c| c.geometry.planes = 1),
        ("number of chunks per PU", 6, 7, |c| c.geometry.chunks = 7),
        ("number of pages per chunk", 12, 24, |c| c.geometry.pages = 24),
        ("page_bytes", 1024, 2048, |c| c.geometry.page_bytes = 2048),
        ("sector_bytes", 512, 1024, |c| c.geometry.sector_bytes = 1024),
        ("oob_bytes", 16, 64, |c| c.geometry.oob_bytes = 64),
        ("number of bits per cell", 2, 4, |c| c.cell = CellType::Qlc),
        ("one_shot (0 no, 1 yes)", 0, 1, |c| c.one_shot = true),
        ("pair_distance", 3, 4, |c| c.paired_page_distance = 4),
    ];
    for (name, was, is, change) in changes {
        let mut cfg = image_config(&path);
        change(&mut cfg);
        match expect_refused(&cfg, &path) {
            OpenError::Differs { what, found, wanted, .. } => {
                assert_eq!((what, found, wanted), (name, was, is));
            }
            e => panic!("{name}: {e}"),
        }
    }
    let pcm = media::PcmConfig {
        channels: 1,
        pus: 1,
        bytes: 4096,
        sector_bytes: 512,
        read: time::Nanos(1),
        write: time::Nanos(1),
        channel_bytes_per_sec: 0,
        data: DataStore::File(path.clone()),
    };
    let error = media::Pcm::open(pcm).unwrap_err();
    assert!(matches!(error, OpenError::Differs { found: 1, wanted: 2, .. }), "{error}");
    Nand::open(image_config(&path)).unwrap();
}

#[test]
fn a_damaged_image_is_refused_unharmed() {
    let (_dir, path) = temp_image();
    let mut n = Nand::create(image_config(&path)).unwrap();
    program_all(&mut n, C, 1);
    drop(n);
    let whole = fs::read(&path).unwrap();
    let cfg = image_config(&path);
    let damage = |at: usize, byte: u8| {
        let mut bytes = whole.clone();
        bytes[at] = byte;
        fs::write(&path, bytes).unwrap();
    };
    damage(0, b'X');
    assert!(matches!(expect_refused(&cfg, &path), OpenError::NotAnImage { .. }));
    damage(8, 2);
    let OpenError::Version { found, .. } = expect_refused(&cfg, &path) else { panic!() };
    assert_eq!((found, IMAGE_VERSION), (2, 1));
    for at in [12, 16, 147, 2000, 4093] {
        damage(at, 0xee);
        assert!(matches!(expect_refused(&cfg, &path), OpenError::Checksum { .. }), "byte {at}");
    }
    let record = 4096 + 8 * 7;
    for (at, byte) in [(record, 0x31), (record + 7, 0), (record + 4, 9)] {
        damage(at, byte);
        let error = expect_refused(&cfg, &path);
        assert!(matches!(error, OpenError::Damaged { chunk: 7, .. }), "{error}");
    }
    let mut bytes = whole.clone();
    bytes[4096..8192].fill(0);
    fs::write(&path, bytes).unwrap();
    assert!(matches!(expect_refused(&cfg, &path), OpenError::Damaged { chunk: 0, .. }));
    for len in [9, 4095, 4096, whole.len() - 1] {
        fs::write(&path, &whole[..len]).unwrap();
        match expect_refused(&cfg, &path) {
            OpenError::Truncated { found, .. } => assert_eq!(found, len as u64),
            e => panic!("{len} bytes: {e}"),
        }
    }
    for other in [&b"hello"[..], &[0; 8192]] {
        fs::write(&path, other).unwrap();
        assert!(matches!(expect_refused(&cfg, &path), OpenError::NotAnImage { .. }));
    }
    fs::write(&path, &whole).unwrap();
    let mut n = Nand::open(cfg).unwrap();
    let phys = n.layout().phys(C, 9);
    verify(&mut n, phys, 1).unwrap();
}

#[test]
fn an_image_is_open_once() {
    let (_dir, path) = temp_image();
    let mut n = Nand::create(image_config(&path)).unwrap();
    for open in [Nand::open, Nand::open_or_create, Nand::create] {
        let error = open(image_config(&path)).unwrap_err();
        assert!(matches!(error, OpenError::InUse { .. }), "{error}");
        assert!(error.to_string().ends_with(": another drive of this process"), "{error}");
    }
    program_all(&mut n, C, 1);
    drop(n);
    Nand::open(image_config(&path)).unwrap();
}

#[test]
fn creating_and_opening_say_what_must_be_there() {
    let (dir, path) = temp_image();
    let missing = Nand::open(image_config(&path)).unwrap_err();
    assert!(matches!(missing, OpenError::Io { .. }), "{missing}");
    assert!(!path.exists());
    fs::write(&path, b"").unwrap();
    assert!(matches!(Nand::open(image_config(&path)), Err(OpenError::Empty { .. })));
    drop(Nand::create(image_config(&path)).unwrap());
    assert!(matches!(Nand::create(image_config(&path)), Err(OpenError::Exists { .. })));
    // The image of a process that was killed while it created the file.
    let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
    file.write_all_at(b"SLUICNEW", 0).unwrap();
    drop(file);
    assert!(matches!(Nand::open(image_config(&path)), Err(OpenError::Empty { .. })));
    let mut n = Nand::open_or_create(image_config(&path)).unwrap();
    program_all(&mut n, C, 1);
    assert!(matches!(Nand::open_or_create(image_config(dir.path())), Err(OpenError::Io { .. })));
    assert!(matches!(
        Nand::open_or_create(image_config(Path::new("/nonexistent/drive.img"))),
        Err(OpenError::Io { .. })
    ));
}

#[test]
fn a_refused_reservation_is_an_error_of_the_operation_and_passes() {
    let (_dir, path) = temp_image();
    let mut n = Nand::create(image_config(&path)).unwrap();
    program_all(&mut n, ChunkId(0), 1);
    n.inject(InjectedFault::HostDiskFull).unwrap();
    let full = Err(MediaError::HostDiskFull { chunk: C });
    assert_eq!(program(&mut n, C, 0, 1), full);
    assert_eq!(n.chunk_info(C).unwrap().state, ChunkState::Free);
    n.inject(InjectedFault::HostDiskFull).unwrap();
    assert_eq!(n.begin_program(C, UnitInChunk(0)), full);
    assert_eq!(n.stats().host_disk_failures, 2);
    program_all(&mut n, C, 1);
    let phys = n.layout().phys(ChunkId(0), 7);
    verify(&mut n, phys, 1).unwrap();
}

/// A small in-memory file system, unmounted when it is dropped.
struct SmallDisk(TempDir);

impl SmallDisk {
    /// Mounts the file system; `None` if this process is not allowed to.
    fn mount(bytes: u64) -> Option<SmallDisk> {
        let dir = TempDir::new().unwrap();
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &format!("size={bytes}"), "tmpfs"])
            .arg(dir.path())
            .output()
            .is_ok_and(|o| o.status.success());
        mounted.then_some(SmallDisk(dir))
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.0.path()).output();
    }
}

#[test]
fn a_full_host_disk_is_an_error_and_never_a_signal() {
    let Some(disk) = SmallDisk::mount(1 << 20) else {
        // Mounting is not allowed; the refused allocation above tests the same path.
        testkit::skip!("no file system may be mounted here");
        return;
    };
    let path = disk.0.path().join("drive.img");
    let mut cfg = image_config(&path);
    cfg.geometry.page_bytes = 1 << 13;
    // 24 chunks of 192 KiB and their out-of-band bytes on a disk of 1 MiB.
    let mut n = Nand::create(cfg.clone()).unwrap();
    let mut programmed = Vec::new();
    for chunk in (0..24).map(ChunkId) {
        match program(&mut n, chunk, 0, 1) {
            Ok(()) => {
                for unit in 1..12 {
                    program(&mut n, chunk, unit, 1).unwrap();
                }
                programmed.push(chunk);
            }
            Err(e) => assert_eq!(e, MediaError::HostDiskFull { chunk }),
        }
    }
    assert!((3..6).contains(&programmed.len()), "{programmed:?}");
    let mut into = [0; 512];
    for sector in 0..n.layout().sector_count() {
        n.read_bytes(media::PhysSector(sector), &mut into);
    }
    n.begin_program(programmed[0], UnitInChunk(0)).unwrap_err();
    erase(&mut n, programmed[0]).unwrap();
    program_all(&mut n, programmed[0], 2);
    erase(&mut n, programmed[0]).unwrap();
    n.power_cut();
    n.release_free().unwrap();
    let other = ChunkId(23);
    program_all(&mut n, other, 3);
    drop(n);
    let mut n = Nand::open(cfg.clone()).unwrap();
    for (chunk, stamp) in [(other, 3), (programmed[1], 1)] {
        for sector in 0..n.layout().sectors_per_chunk() {
            let phys = n.layout().phys(chunk, sector);
            verify(&mut n, phys, stamp).unwrap();
        }
    }
    drop(n);
    // No space for the tables: no file remains.
    fs::remove_file(&path).unwrap();
    fs::write(disk.0.path().join("filler"), vec![1; (1 << 20) - (4 << 12)]).unwrap();
    cfg.geometry.pages = 1 << 14;
    let error = Nand::create(cfg).unwrap_err();
    assert!(matches!(error, OpenError::Io { .. }), "{error}");
    assert_eq!(fs::metadata(&path).unwrap().len(), 0);
}

#[test]
fn an_overlay_starts_from_the_image_and_leaves_it_untouched() {
    let (dir, path) = temp_image();
    let mut n = Nand::create(image_config(&path)).unwrap();
    program_all(&mut n, C, 1);
    let old = ChunkId(3);
    program_all(&mut n, old, 2);
    n.sync().unwrap();
    drop(n);
    let before = fs::read(&path).unwrap();
    let blocks = fs::metadata(&path).unwrap().blocks();

    let over = |path: &Path| NandConfig { data: DataStore::Overlay(path.into()), ..config() };
    // Two overlays at once, without write permission.
    let mut permissions = fs::metadata(&path).unwrap().permissions();
    permissions.set_readonly(true);
    fs::set_permissions(&path, permissions).unwrap();
    let mut n = Nand::open_or_create(over(&path)).unwrap();
    let other = Nand::open(over(&path)).unwrap();
    assert!(matches!(
        Nand::open(image_config(&path)),
        Err(OpenError::InUse { .. } | OpenError::Io { .. })
    ));
    for sector in 0..48 {
        let phys = n.layout().phys(C, sector);
        verify(&mut n, phys, 1).unwrap();
    }
    erase(&mut n, C).unwrap();
    program_all(&mut n, C, 7);
    program_all(&mut n, ChunkId(9), 8);
    erase(&mut n, old).unwrap();
    n.inject(InjectedFault::ChunkBad { chunk: ChunkId(11) }).unwrap();
    for sector in 0..48 {
        let phys = n.layout().phys(C, sector);
        verify(&mut n, phys, 7).unwrap();
    }
    n.sync().unwrap();
    n.power_cut();
    drop(n);
    drop(other);
    assert!(fs::read(&path).unwrap() == before, "an overlay changed its image");
    assert_eq!(fs::metadata(&path).unwrap().blocks(), blocks);
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);

    // An image in use is refused and not changed; a medium without an image is fresh, and creates
    // none.
    let mut permissions = fs::metadata(&path).unwrap().permissions();
    #[expect(clippy::permissions_set_readonly_false, reason = "a file of this test's own")]
    permissions.set_readonly(false);
    fs::set_permissions(&path, permissions).unwrap();
    let owner = Nand::open(image_config(&path)).unwrap();
    assert!(matches!(Nand::open(over(&path)), Err(OpenError::InUse { .. })));
    drop(owner);
    let none = dir.path().join("none.img");
    let mut n = Nand::open_or_create(over(&none)).unwrap();
    assert!(n.chunks().all(|(_, i)| i.wear == 0 && i.write_pointer == 0));
    program_all(&mut n, C, 3);
    for sector in 0..48 {
        let phys = n.layout().phys(C, sector);
        verify(&mut n, phys, 3).unwrap();
    }
    drop(n);
    assert!(!none.exists());
    fs::write(&none, b"").unwrap();
    drop(Nand::open_or_create(over(&none)).unwrap());
    assert_eq!(fs::metadata(&none).unwrap().len(), 0);
    assert!(matches!(Nand::open(over(&none)), Err(OpenError::Empty { .. })));
    fs::write(&none, b"something else").unwrap();
    assert!(matches!(Nand::open_or_create(over(&none)), Err(OpenError::NotAnImage { .. })));
}

/// Makes the log of flushed records one of another run of the host's kernel.
fn restart_host(path: &Path) {
    let mut bytes = std::fs::read(path).unwrap();
    // The length of the image is at byte 136 of its header; the log is behind it.
    let log = u64::from_le_bytes(*bytes[136..].first_chunk().unwrap()) as usize;
    assert_eq!(&bytes[log..log + 8], b"SLUICREC");
    bytes[log + 32] ^= 1;
    let crc = crc32c::crc32c(&bytes[log..log + 508]);
    bytes[log + 508..log + 512].copy_from_slice(&crc.to_le_bytes());
    std::fs::write(path, bytes).unwrap();
}

#[test]
fn after_a_crash_of_the_host_the_image_is_that_of_the_last_flush() {
    let (dir, path) = temp_image();
    let durable = NandConfig { data: DataStore::DurableFile(path.clone()), ..config() };
    let over = NandConfig { data: DataStore::Overlay(path.clone()), ..config() };
    let (a, b) = (ChunkId(0), ChunkId(1));
    let mut n = Nand::create(durable.clone()).unwrap();
    program(&mut n, a, 0, 1).unwrap();
    n.flush_to_host().unwrap();
    program(&mut n, a, 1, 1).unwrap();
    program(&mut n, b, 0, 1).unwrap();
    assert_eq!(n.host_flush_stats().unwrap().flushes, 1);
    drop(n);
    let write_pointers = |n: &Nand| [a, b].map(|c| n.chunk_info(c).unwrap().write_pointer);
    // The process alone has died: its pages are in the page cache.
    let saved = dir.path().join("saved");
    std::fs::copy(&path, &saved).unwrap();
    let unit = Nand::open(durable.clone()).unwrap().layout().write_unit();
    assert_eq!(write_pointers(&Nand::open(durable.clone()).unwrap()), [2 * unit, unit]);
    for config in [over, durable.clone(), image_config(&path)] {
        std::fs::copy(&saved, &path).unwrap();
        restart_host(&path);
        let before = std::fs::read(&path).unwrap();
        let n = Nand::open(config.clone()).unwrap();
        assert_eq!(write_pointers(&n), [unit, 0], "{:?}", config.data);
        drop(n);
        if config.data == DataStore::Overlay(path.clone()) {
            assert_eq!(std::fs::read(&path).unwrap(), before);
            continue;
        }
        // Whatever opens it next finds that state.
        assert_eq!(write_pointers(&Nand::open(image_config(&path)).unwrap()), [unit, 0]);
    }
    // An image with a damaged log is refused.
    std::fs::copy(&saved, &path).unwrap();
    let mut bytes = std::fs::read(&path).unwrap();
    let log = u64::from_le_bytes(*bytes[136..].first_chunk().unwrap()) as usize;
    bytes[log + 40] ^= 1;
    std::fs::write(&path, &bytes).unwrap();
    for config in [durable, image_config(&path)] {
        let refused = Nand::open(config).unwrap_err();
        assert!(matches!(refused, OpenError::LogDamaged { .. }), "{refused}");
        assert_eq!(std::fs::read(&path).unwrap(), bytes);
    }
}

#[test]
fn a_chunk_that_the_last_flush_needs_is_not_overwritten() {
    let (_dir, path) = temp_image();
    let mut n =
        Nand::create(NandConfig { data: DataStore::DurableFile(path), ..config() }).unwrap();
    program_all(&mut n, C, 1);
    n.flush_to_host().unwrap();
    let flushes = |n: &Nand| n.host_flush_stats().unwrap().flushes;
    erase(&mut n, C).unwrap();
    assert_eq!(flushes(&n), 1, "the flushed data is still there");
    program(&mut n, C, 0, 2).unwrap();
    assert_eq!(flushes(&n), 2);
    for unit in 1..12 {
        program(&mut n, C, unit, 2).unwrap();
    }
    assert_eq!(flushes(&n), 2, "once for each erase");
    n.flush_to_host().unwrap();
    erase(&mut n, C).unwrap();
    n.inject(InjectedFault::HostFlush).unwrap();
    for _ in 0..2 {
        let refused = stage(&mut n, C, 0, 3).unwrap_err();
        assert!(matches!(refused, MediaError::HostFlush { chunk: C, .. }), "{refused}");
    }
    assert!(n.flush_to_host().is_err());
    // Space of a free chunk is not returned while the last flush refers to its data.
    assert!(n.release_free().is_err());
}
