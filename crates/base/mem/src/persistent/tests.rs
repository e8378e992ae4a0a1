//! Tests of [`PersistentMemory`].

// guarantee: B-75

use std::collections::BTreeSet;
use std::os::fd::BorrowedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::process::Command;
use std::thread;

use super::*;
use crate::SharedMemoryError;

const LINE: usize = PersistentMemory::LINE_BYTES;

fn contents(memory: &PersistentMemory) -> Vec<u8> {
    let mut bytes = vec![0; memory.len()];
    memory.read(0, &mut bytes);
    bytes
}

#[test]
fn a_store_is_visible_and_a_cut_keeps_what_was_persisted() {
    let memory = PersistentMemory::new(4096 + LINE).unwrap();
    memory.store(4096 - 3, b"over lines");
    memory.store(200, b"another");
    let clone = memory.clone();
    assert_eq!(contents(&clone), contents(&memory));
    assert!(memory.is_same(&clone));
    memory.persist(4096 - 3, 10);
    let cuts = memory.power_cuts();
    assert_eq!(clone.power_cuts(), cuts);
    let mut rng = Rng::new(1);
    let mut lost = 0;
    for _ in 0..50 {
        memory.store(200, b"another");
        lost += memory.cut_power(&mut rng);
        let now = contents(&memory);
        assert_eq!(now[4096 - 3..4096 + 7], *b"over lines");
        assert_eq!(memory.cut_power(&mut rng), 0, "no line differs after a cut");
        assert_eq!(contents(&memory), now);
    }
    assert!(lost > 0);
    assert!(clone.power_cuts() > cuts);
}

#[test]
fn every_subset_of_the_words_of_a_line_can_survive() {
    let mut seen = BTreeSet::new();
    let memory = PersistentMemory::new(3 * LINE).unwrap();
    for seed in 0..20_000 {
        memory.store(LINE, &[0; LINE]);
        memory.persist(LINE, LINE);
        memory.store(LINE, &[0xff; LINE]);
        let lost = memory.cut_power(&mut Rng::new(seed));
        let mut line = [0; LINE];
        memory.read(LINE, &mut line);
        let (words, _) = line.as_chunks::<WORD_BYTES>();
        assert!(words.iter().all(|w| *w == [0; 8] || *w == [0xff; 8]), "a word is torn: {line:?}");
        let survivors: Vec<bool> = words.iter().map(|word| word[0] != 0).collect();
        assert_eq!(lost, survivors.iter().filter(|survives| !**survives).count() as u64);
        seen.insert(survivors);
    }
    assert_eq!(seen.len(), 256);
}

#[test]
fn any_lines_survive_and_persisted_ones_always() {
    let mut subsets = BTreeSet::new();
    for seed in 0..500 {
        let mut rng = Rng::new(seed);
        let memory = PersistentMemory::new(64 * LINE).unwrap();
        // Every byte of a line has its value, and each store to a line another one.
        let (mut stored, mut durable) = ([0u8; 64], [0u8; 64]);
        for value in 1..=100u8 {
            let line = rng.below(64) as usize;
            memory.store(line * LINE, &[value; LINE]);
            stored[line] = value;
            if rng.chance(0.5) {
                // Any range persists all lines that it touches.
                let (first, last) = (rng.below(64) as usize, rng.below(64) as usize);
                let (first, last) = (first.min(last), first.max(last));
                let begin = first * LINE + rng.below(LINE as u64) as usize;
                memory.persist(begin, (last + 1) * LINE - begin);
                durable[first..=last].copy_from_slice(&stored[first..=last]);
            }
        }
        memory.cut_power(&mut rng);
        let after = contents(&memory);
        let mut survivors = Vec::new();
        for (line, bytes) in after.chunks(LINE).enumerate() {
            let (words, _) = bytes.as_chunks::<WORD_BYTES>();
            let possible = [stored[line], durable[line]];
            let is_possible =
                |w: &[u8; 8]| w.iter().all(|b| *b == w[0]) && possible.contains(&w[0]);
            assert!(words.iter().all(is_possible), "seed {seed}, line {line}: {bytes:?}");
            survivors.push(words[0][0] == stored[line]);
        }
        subsets.insert(survivors);
    }
    assert!(subsets.len() > 300, "{} subsets of lines", subsets.len());
}

#[test]
fn a_cut_is_a_function_of_the_seed() {
    let after = |seed| {
        let memory = PersistentMemory::new(100 * LINE).unwrap();
        memory.store(7, &[1; 90 * LINE]);
        memory.persist(20 * LINE, 9);
        memory.cut_power(&mut Rng::new(seed));
        contents(&memory)
    };
    assert_eq!(after(1), after(1));
    assert_ne!(after(1), after(2));
}

#[test]
fn stores_and_persists_of_any_range_are_exact() {
    let memory = PersistentMemory::new(4 * LINE).unwrap();
    let mut expected = vec![0u8; 4 * LINE];
    let mut rng = Rng::new(3);
    for _ in 0..5_000 {
        let at = rng.below(4 * LINE as u64 + 1) as usize;
        let len = rng.below((4 * LINE - at) as u64 + 1) as usize;
        let data: Vec<u8> = (0..len).map(|_| rng.next_u64() as u8).collect();
        memory.store(at, &data);
        expected[at..at + len].copy_from_slice(&data);
        assert_eq!(contents(&memory), expected, "{len} bytes at {at}");
        let mut range = vec![0; len];
        memory.read(at, &mut range);
        assert_eq!(range, data);
    }
    memory.persist(0, 4 * LINE);
    assert_eq!(memory.cut_power(&mut rng), 0);
    assert_eq!(contents(&memory), expected);
}

#[test]
fn threads_lose_no_byte_of_a_word() {
    let memory = PersistentMemory::new(LINE).unwrap();
    thread::scope(|scope| {
        for byte in 0..8 {
            let memory = memory.clone();
            scope.spawn(move || {
                for value in 1..=200u8 {
                    memory.store(byte, &[value]);
                    memory.persist(byte, 1);
                }
            });
        }
    });
    assert_eq!(contents(&memory)[..8], [200; 8]);
    assert_eq!(memory.cut_power(&mut Rng::new(1)), 0, "the last persist saw every store");
}

#[test]
fn sizes_and_ranges_that_are_not_possible_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    for bytes in [0, 1, 63, 65, 4095] {
        let error = PersistentMemory::new(bytes).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
        let path = dir.path().join("wrong");
        let error = PersistentMemory::open_file(&path, bytes).unwrap_err();
        let expected = bytes as u64;
        assert!(matches!(error, PersistentMemoryError::Size { bytes } if bytes == expected));
        assert!(!path.exists());
    }
    let memory = PersistentMemory::new(LINE).unwrap();
    let panics = |call: &mut dyn FnMut()| catch_unwind(AssertUnwindSafe(call)).is_err();
    for (offset, bytes) in [(LINE, 1), (0, LINE + 1), (LINE + 1, 0), (usize::MAX, 2)] {
        assert!(panics(&mut || memory.store(offset, &vec![0; bytes])), "{offset}");
        assert!(panics(&mut || memory.read(offset, &mut vec![0; bytes])), "{offset}");
        assert!(panics(&mut || memory.persist(offset, bytes)), "{offset}");
    }
    assert!(panics(&mut || memory.persist(0, usize::MAX)));
    memory.persist(LINE, 0);
    memory.store(LINE, &[]);
}

#[test]
fn a_file_has_what_was_persisted() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image.pmr");
    let memory = PersistentMemory::open_file(&path, 10 * LINE).unwrap();
    assert_eq!(contents(&memory), [0; 10 * LINE]);
    memory.store(LINE, b"persisted");
    memory.persist(LINE, 9);
    memory.store(LINE, b"lost");
    memory.store(5 * LINE, b"lost");
    memory.sync().unwrap();
    assert!(matches!(
        PersistentMemory::open_file(&path, 10 * LINE),
        Err(PersistentMemoryError::InUse)
    ));
    drop(memory);
    let memory = PersistentMemory::open_file(&path, 10 * LINE).unwrap();
    let mut expected = vec![0; 10 * LINE];
    expected[LINE..LINE + 9].copy_from_slice(b"persisted");
    assert_eq!(contents(&memory), expected);
    assert!(memory.share().unwrap().is_none(), "another process could truncate the file");
    drop(memory);
    for bytes in [9 * LINE, 11 * LINE] {
        let error = PersistentMemory::open_file(&path, bytes).unwrap_err();
        assert!(
            matches!(error, PersistentMemoryError::OtherSize { found: 640, expected } if expected == bytes as u64)
        );
    }
    assert_eq!(std::fs::read(&path).unwrap(), expected, "a refused file is not changed");
    let directory = PersistentMemory::open_file(dir.path(), LINE);
    assert!(matches!(directory, Err(PersistentMemoryError::Io(_))));
}

/// Between `fork(2)` and `execve(2)`, a child process holds the open files of its parent.
#[test]
fn a_file_is_unlocked_although_a_child_process_still_has_it_open() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image.pmr");
    let memory = PersistentMemory::open_file(&path, LINE).unwrap();
    let is_file = |fd: &std::fs::DirEntry| std::fs::read_link(fd.path()).is_ok_and(|to| to == path);
    let open = std::fs::read_dir("/proc/self/fd").unwrap().map(Result::unwrap).find(is_file);
    let fd = open.unwrap().file_name().to_str().unwrap().parse().unwrap();
    // SAFETY: `memory` keeps the file open until after this statement.
    let held = unsafe { BorrowedFd::borrow_raw(fd) }.try_clone_to_owned().unwrap();
    drop(memory);
    assert!(PersistentMemory::open_file(&path, LINE).is_ok());
    drop(held);
}

/// The file of the killed process; only that process has it.
const KILLED: &str = "SLUICE_TEST_KILLED_WITH";

/// Stores numbers and persists every other line, until the process is killed in a store.
fn store_until_killed(path: PathBuf) {
    let memory = PersistentMemory::open_file(&path, 100 * LINE).unwrap();
    for line in 0..100 {
        memory.store(line * LINE, &[line as u8 + 1; LINE]);
        if line % 2 == 0 {
            memory.persist(line * LINE, 1);
        }
        if line == 90 {
            let this = rustix::process::getpid();
            rustix::process::kill_process(this, rustix::process::Signal::KILL).unwrap();
        }
    }
}

#[test]
fn a_killed_process_leaves_what_it_persisted() {
    if let Some(path) = std::env::var_os(KILLED) {
        return store_until_killed(path.into());
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("killed.pmr");
    let name = "persistent::tests::a_killed_process_leaves_what_it_persisted";
    let child = Command::new(std::env::current_exe().unwrap())
        .args([name, "--exact", "--nocapture"])
        .env(KILLED, &path)
        .status()
        .unwrap();
    assert!(!child.success(), "the process was killed");
    let memory = PersistentMemory::open_file(&path, 100 * LINE).unwrap();
    for (line, bytes) in contents(&memory).chunks(LINE).enumerate() {
        let value = if line % 2 == 0 && line <= 90 { line as u8 + 1 } else { 0 };
        assert_eq!(bytes, [value; LINE], "line {line}");
    }
}

#[test]
fn two_processes_have_one_memory() {
    let ours = PersistentMemory::new(4 * LINE).unwrap();
    let images = ours.share().unwrap().expect("memory can be shared");
    let theirs = PersistentMemory::import(images, 4 * LINE as u64).unwrap();
    assert!(!ours.is_same(&theirs));
    theirs.store(0, b"theirs");
    ours.store(LINE, b"ours");
    assert_eq!(contents(&ours), contents(&theirs));
    theirs.persist(0, 6);
    theirs.persist(LINE, 4);
    assert_eq!(ours.cut_power(&mut Rng::new(1)), 0, "the other process persisted all");
    theirs.store(0, b"again!");
    let lost = (0..20).any(|seed| {
        theirs.store(0, b"again!");
        ours.cut_power(&mut Rng::new(seed)) > 0
    });
    assert!(lost, "a store of the other process can be lost");
    assert_eq!(contents(&ours), contents(&theirs));
}

#[test]
fn images_that_do_not_belong_together_are_refused() {
    let images = |bytes| PersistentMemory::new(bytes).unwrap().share().unwrap().unwrap();
    let import = |images| PersistentMemory::import(images, 4096).unwrap_err();
    let mixed = SharedImages { visible: images(128).visible, persistent: images(64).persistent };
    assert!(matches!(
        import(mixed),
        PersistentMemoryError::Images { visible: 128, persistent: 64 }
    ));
    assert!(matches!(
        import(images(8192)),
        PersistentMemoryError::Shared(SharedMemoryError::Length { .. })
    ));
    let file = tempfile::tempfile().unwrap();
    file.set_len(128).unwrap();
    let truncatable = SharedImages { persistent: file.into(), ..images(128) };
    assert!(matches!(
        import(truncatable),
        PersistentMemoryError::Shared(SharedMemoryError::NotSealed)
    ));
    let odd = || SharedRegion::memfd(100).unwrap().backing().unwrap().try_clone().unwrap().into();
    let odd = SharedImages { visible: odd(), persistent: odd() };
    assert!(matches!(import(odd), PersistentMemoryError::Size { bytes: 100 }));
}

#[test]
fn a_file_without_dax_is_refused() {
    if WriteBack::of_this_processor().is_none() {
        return;
    }
    let map = PersistentMemory::map_dax;
    let file = tempfile::NamedTempFile::new().unwrap();
    assert!(matches!(map(file.path()), Err(PersistentMemoryError::Size { bytes: 0 })));
    file.as_file().set_len(4096).unwrap();
    assert!(matches!(map(file.path()), Err(PersistentMemoryError::NotDax)));
    let missing = file.path().with_extension("missing");
    assert!(matches!(map(&missing), Err(PersistentMemoryError::Io(_))));
    // tmpfs.
    let Ok(file) = tempfile::NamedTempFile::new_in("/dev/shm") else { return };
    file.as_file().set_len(4096).unwrap();
    assert!(matches!(map(file.path()), Err(PersistentMemoryError::NotDax)));
}

#[test]
#[cfg(target_arch = "x86_64")]
fn cache_lines_are_written_back_and_keep_their_contents() {
    let best = WriteBack::of_this_processor().unwrap();
    for write_back in [best, WriteBack::Clflush] {
        let region = SharedRegion::memfd(4096).unwrap();
        let memory =
            PersistentMemory::of_images(region.clone(), PersistentImage::Visible(write_back), None);
        memory.store(60, b"two lines");
        memory.persist(60, 9);
        memory.persist(0, 4096);
        assert_eq!(contents(&memory)[60..69], *b"two lines");
        assert_eq!(memory.cut_power(&mut Rng::new(1)), 0);
        assert_eq!(contents(&memory)[60..69], *b"two lines");
        assert!(memory.share().unwrap().is_none());
        memory.sync().unwrap();
    }
}

#[test]
fn what_was_never_stored_takes_no_memory() {
    let memory = PersistentMemory::new(1 << 34).unwrap();
    memory.store(5 << 30, b"stored");
    memory.store((9 << 30) - 8, &[7; 64]);
    memory.persist(5 << 30, 6);
    let pages = |memory: &PersistentMemory| -> u64 {
        let PersistentImage::Separate(persistent) = &memory.images.persistent else {
            panic!("a DAX file")
        };
        [&memory.images.visible, persistent]
            .map(|image| rustix::fs::fstat(image.backing().unwrap()).unwrap().st_blocks as u64)
            .iter()
            .sum()
    };
    let lost = memory.cut_power(&mut Rng::new(1));
    let mut words = [0; 64];
    memory.read((9 << 30) - 8, &mut words);
    assert_eq!(words.chunks(8).filter(|word| **word == [0; 8]).count() as u64, lost);
    memory.store(64, b"later");
    memory.persist_all();
    assert_eq!(memory.cut_power(&mut Rng::new(1)), 0);
    let mut found = [0; 6];
    memory.read(5 << 30, &mut found);
    assert_eq!(&found, b"stored");
    memory.clear();
    memory.read(5 << 30, &mut found);
    assert_eq!((found, memory.cut_power(&mut Rng::new(1))), ([0; 6], 0));
    // Blocks of 512 bytes: 64 MiB of 32 GiB, with huge pages.
    assert!(pages(&memory) < 2 * (64 << 20) / 512, "{}", pages(&memory));
}

#[test]
fn memory_over_a_region_begins_as_its_copy() {
    let file = tempfile::tempfile().unwrap();
    file.set_len(3 * 4096).unwrap();
    let region = SharedRegion::file(file, 3 * 4096).unwrap();
    region.write(4096, b"before");
    let memory = PersistentMemory::over(region.clone()).unwrap();
    let mut found = [0; 6];
    memory.read(4096, &mut found);
    assert_eq!(&found, b"before");
    memory.store(4096, b"after!");
    region.read(4096, &mut found);
    assert_eq!(&found, b"before");
    memory.persist(4096, 1);
    region.read(4096, &mut found);
    assert_eq!(&found, b"after!");
    let odd = SharedRegion::anonymous(100).unwrap();
    assert!(matches!(PersistentMemory::over(odd), Err(PersistentMemoryError::Size { bytes: 100 })));
}
