//! Properties of files: names, contents, sizes, space, and refused operations.

use crate::common;

use common::{Ram, cut, formatted, open, pattern, try_open};
use volume::{
    BLOCK, Error, FILE_BYTES_MAX, Ino, InodeKind, InodePermissions, Name, OpResult, Options,
    SetAttr, Time, VolumeOp,
};

const ROOT: Ino = Ino::ROOT;

fn name(text: &str) -> Name {
    Name::new(text).unwrap()
}

#[test]
fn what_is_written_is_read_and_still_there_when_it_is_opened_again() {
    for sector_bytes in [512, 4096] {
        let mut fs = open(formatted(sector_bytes, 2048));
        let dir = fs.make_directory(ROOT, "d").unwrap();
        let file = fs.create(dir, "f").unwrap();
        let bytes = pattern(1, 300_001);
        fs.write(file, 0, &bytes).unwrap();
        assert_eq!(fs.read_all(file).unwrap(), bytes);
        fs.write(file, 5000, b"hello").unwrap();
        fs.sync(file).unwrap();
        let device = fs.close().unwrap();
        let mut fs = open(device);
        assert_eq!(fs.volume().stats().recovered, 0);
        let file = fs.volume().lookup(ROOT, "/d/../d/./f").unwrap();
        let mut expected = bytes;
        expected[5000..5005].copy_from_slice(b"hello");
        assert_eq!(fs.read_all(file).unwrap(), expected);
        // Unaligned offsets, ranges past the end, and empty ranges.
        let mut part = vec![0; 70_000];
        for offset in [1, 4095, 4097, 299_990] {
            let n = fs.read(file, offset, &mut part).unwrap();
            let end = (offset as usize + 70_000).min(expected.len());
            assert_eq!(part[..n], expected[offset as usize..end]);
        }
        assert_eq!(fs.read(file, 300_001, &mut part).unwrap(), 0);
    }
}

#[test]
fn names_are_found_renamed_and_removed_as_posix_says() {
    let mut fs = open(formatted(512, 2048));
    let (a, b) = (fs.make_directory(ROOT, "a").unwrap(), fs.make_directory(ROOT, "b").unwrap());
    let file = fs.create(a, "f").unwrap();
    assert_eq!(fs.create(a, "f"), Ok(file), "found");
    let access = InodePermissions::default();
    let exclusive = |name| VolumeOp::Create { dir: a, name, access, exclusive: true, open: false };
    assert_eq!(fs.run(exclusive(name("f"))), Err(Error::Exists));
    assert_eq!(fs.make_directory(a, "f"), Err(Error::Exists));
    assert_eq!(fs.create(ROOT, "a"), Err(Error::IsDirectory));
    assert_eq!(fs.create(file, "x"), Err(Error::NotDirectory));
    let store = fs.volume();
    assert_eq!(store.lookup(ROOT, "a/f/g"), Err(Error::NotDirectory));
    assert_eq!(store.lookup(ROOT, "a/f/"), Err(Error::NotDirectory));
    assert_eq!(store.lookup(ROOT, "a/g"), Err(Error::NotFound));
    assert_eq!(store.lookup(a, "../../../a//f"), Ok(file));
    assert_eq!(store.lookup(ROOT, [b'x'; 256]), Err(Error::NameTooLong));
    let rename = |from, old: &str, to, new: &str| VolumeOp::Rename {
        from,
        name: name(old),
        to,
        new: name(new),
        replace: true,
    };
    let unlink = |dir, text: &str| VolumeOp::Unlink { dir, name: name(text) };
    let rmdir = |text: &str| VolumeOp::RemoveDirectory { dir: ROOT, name: name(text) };
    assert_eq!(fs.run(unlink(ROOT, "a")), Err(Error::IsDirectory));
    assert_eq!(fs.run(rmdir("a")), Err(Error::NotEmpty));
    assert_eq!(fs.run(rmdir("c")), Err(Error::NotFound));
    assert_eq!(
        fs.run(VolumeOp::RemoveDirectory { dir: a, name: name("f") }),
        Err(Error::NotDirectory)
    );
    fs.run(rename(ROOT, "b", a, "b")).unwrap();
    assert_eq!(fs.volume().lookup(b, ".."), Ok(a));
    let into_itself = fs.run(rename(ROOT, "a", b, "x"));
    assert!(matches!(into_itself, Err(Error::Invalid(_))), "{into_itself:?}");
    let g = fs.create(a, "g").unwrap();
    fs.write(g, 0, b"g").unwrap();
    assert_eq!(fs.run(rename(a, "g", a, "b")), Err(Error::IsDirectory));
    assert_eq!(fs.run(rename(a, "b", a, "g")), Err(Error::NotDirectory));
    assert_eq!(fs.run(rename(a, "g", a, "g")), Ok(OpResult::Done));
    let keep = VolumeOp::Rename { from: a, name: name("g"), to: a, new: name("f"), replace: false };
    assert_eq!(fs.run(keep), Err(Error::Exists));
    // Renaming over an open file, which is removed when it is closed.
    fs.write(file, 0, b"old").unwrap();
    fs.volume_mut().open(file).unwrap();
    fs.run(rename(a, "g", a, "f")).unwrap();
    assert_eq!(fs.volume().lookup(a, "f"), Ok(g));
    assert_eq!(fs.volume().stat(file).unwrap().links, 0);
    assert_eq!(fs.read_all(file).unwrap(), b"old");
    fs.write(file, 3, b"er").unwrap();
    fs.sync(file).unwrap();
    fs.volume_mut().close(file).unwrap();
    fs.run(VolumeOp::SyncAll).unwrap();
    assert_eq!(fs.volume().stat(file), Err(Error::NotFound));
    assert_eq!(fs.run(unlink(a, "f")), Ok(OpResult::Done));
    assert_eq!(fs.run(VolumeOp::RemoveDirectory { dir: a, name: name("b") }), Ok(OpResult::Done));
    assert_eq!(fs.run(rmdir("a")), Ok(OpResult::Done));
    fs.run(VolumeOp::SyncAll).unwrap();
    assert_eq!(fs.volume().statfs().inodes, 1);
    let device = fs.close().unwrap();
    let fs = open(device);
    assert_eq!(fs.volume().list(ROOT, 0).unwrap().count(), 0);
}

#[test]
fn listing_goes_on_where_it_was_whatever_changes_meanwhile() {
    let mut fs = open(formatted(4096, 2048));
    for i in 0..100 {
        fs.create(ROOT, &format!("file {i}")).unwrap();
    }
    let (mut seen, mut cookie) = (Vec::new(), 0);
    loop {
        let text = match fs.volume().list(ROOT, cookie).unwrap().next() {
            Some(entry) => {
                cookie = entry.cookie;
                String::from_utf8(entry.name.to_vec()).unwrap()
            }
            None => break,
        };
        seen.push(text.clone());
        // Listing continues while listed entries are removed and others added.
        fs.run(VolumeOp::Unlink { dir: ROOT, name: name(&text) }).unwrap();
        if seen.len() <= 100 {
            fs.create(ROOT, &format!("new {}", seen.len())).unwrap();
        }
    }
    let expected: Vec<String> = (0..100).map(|i| format!("file {i}")).collect();
    assert_eq!(seen[..100], expected, "every entry is listed once, in order");
    assert_eq!(seen.len(), 200, "the new entries follow");
}

#[test]
fn sizes_holes_and_facts() {
    let mut fs = open(formatted(512, 2048));
    let file = fs.create(ROOT, "f").unwrap();
    fs.time = Time(1000);
    fs.write(file, 10_000, b"end").unwrap();
    assert_eq!(fs.read_all(file).unwrap(), [vec![0; 10_000], b"end".to_vec()].concat());
    let stat = fs.volume().stat(file).unwrap();
    assert_eq!((stat.size, stat.blocks, stat.links), (10_003, 1, 1));
    assert_eq!((stat.times.modify, stat.times.birth), (Time(1000), Time(0)));
    fs.sync(file).unwrap();
    // After truncation and growth, the previous contents are gone.
    fs.write(file, 0, &pattern(3, 9000)).unwrap();
    fs.sync(file).unwrap();
    fs.run(VolumeOp::Truncate { ino: file, size: 100 }).unwrap();
    fs.run(VolumeOp::Truncate { ino: file, size: 9000 }).unwrap();
    let expected = [pattern(3, 100), vec![0; 8900]].concat();
    assert_eq!(fs.read_all(file).unwrap(), expected);
    fs.sync(file).unwrap();
    let mut fs = open(cut(fs));
    assert_eq!(fs.read_all(file).unwrap(), expected);
    // Preallocated blocks read as zeros, also beyond the end.
    let reserve =
        |offset, keep_size| VolumeOp::Allocate { ino: file, offset, len: 50_000, keep_size };
    fs.run(reserve(4096, true)).unwrap();
    assert_eq!(fs.volume().stat(file).unwrap().size, 9000);
    assert_eq!(fs.volume().stat(file).unwrap().blocks, 14);
    fs.run(reserve(100_001, false)).unwrap();
    assert_eq!(fs.volume().stat(file).unwrap().size, 150_001);
    fs.write(file, 120_000, b"middle").unwrap();
    let blocks = fs.volume().stat(file).unwrap().blocks;
    fs.sync(file).unwrap();
    assert_eq!(fs.volume().stat(file).unwrap().blocks, blocks, "the blocks were already allocated");
    let all = fs.read_all(file).unwrap();
    assert_eq!(all.len(), 150_001);
    assert_eq!(
        (&all[120_000..120_006], all[100..].iter().filter(|b| **b != 0).count()),
        (&b"middle"[..], 6)
    );
    // A hole.
    fs.write(file, 0, &pattern(4, 20_000)).unwrap();
    fs.run(VolumeOp::Punch { ino: file, offset: 3000, len: 10_000 }).unwrap();
    let mut expected = pattern(4, 20_000);
    expected[3000..13_000].fill(0);
    assert_eq!(fs.read_all(file).unwrap()[..20_000], expected);
    fs.sync(file).unwrap();
    let mut fs = open(cut(fs));
    assert_eq!(fs.read_all(file).unwrap()[..20_000], expected);
    let changes =
        SetAttr { mode: Some(0o640), uid: Some(5), access: Some(Time(-3)), ..SetAttr::default() };
    fs.run(VolumeOp::SetAttr { ino: file, changes }).unwrap();
    let device = fs.close().unwrap();
    let fs = open(device);
    let stat = fs.volume().stat(file).unwrap();
    assert_eq!((stat.access.mode, stat.access.uid, stat.times.access), (0o640, 5, Time(-3)));
    assert_eq!((stat.kind, stat.times.modify), (InodeKind::File, Time(0)));
}

#[test]
fn appends_are_contiguous_and_cost_one_write_when_synced() {
    let mut ram = Ram::for_volume(512, 2048);
    // Large enough that no checkpoint occurs.
    let options = volume::FormatOptions { journal_blocks: Some(256), ..Default::default() };
    volume::format(&mut ram, &options, common::tick).unwrap();
    let mut fs = open(ram);
    let file = fs.create(ROOT, "log").unwrap();
    fs.sync(file).unwrap();
    let mut all = Vec::new();
    let (region, at) = fs.volume().memory().allocate_registered(4096).unwrap();
    for i in 0..200u64 {
        let line = pattern(i, 1 + (i as usize * 7) % 90);
        region.write(0, &line);
        let data = volume::RequestBuffer { iova: at, len: line.len() as u32 };
        let offset = all.len() as u64;
        let written = fs.run(VolumeOp::Append { ino: file, data }).unwrap();
        assert_eq!(written, OpResult::Bytes { offset, len: line.len() as u32 });
        all.extend(line);
        fs.volume_mut().device_mut().taken.clear();
        fs.run(VolumeOp::Sync { ino: file, data_only: true }).unwrap();
        let taken = &fs.volume().device().taken;
        assert_eq!(taken.values().sum::<u64>(), 1, "{taken:?}");
        assert_eq!(taken["write, durable"], 1);
    }
    let mut fs = open(cut(fs));
    assert_eq!(fs.read_all(file).unwrap(), all);
    // An overwrite needs one write, and none for the times.
    fs.write(file, 0, b"x").unwrap();
    fs.run(VolumeOp::SyncAll).unwrap();
    fs.write(file, 0, b"y").unwrap();
    fs.volume_mut().device_mut().taken.clear();
    fs.run(VolumeOp::Sync { ino: file, data_only: true }).unwrap();
    assert_eq!(fs.volume().device().taken.values().sum::<u64>(), 1);
}

#[test]
fn a_full_volume_says_so_and_everything_that_must_still_works() {
    let mut fs = open(formatted(512, 400));
    let free = fs.volume().statfs().free;
    let file = fs.create(ROOT, "big").unwrap();
    let other = fs.create(ROOT, "other").unwrap();
    fs.write(other, 0, b"a").unwrap();
    let chunk = pattern(5, 64 << 10);
    let mut size = 0;
    let error = loop {
        match fs.write(file, size, &chunk) {
            Ok(()) => size += chunk.len() as u64,
            Err(error) => break error,
        }
    };
    assert_eq!(error, Error::NoSpace);
    let stat = fs.volume().stat(file).unwrap();
    assert_eq!(
        (stat.blocks, stat.size),
        (free - 1, (free - 1) * BLOCK as u64),
        "the write uses all free blocks but one"
    );
    assert_eq!(fs.volume().statfs().free, 0);
    let allocate = VolumeOp::Allocate { ino: other, offset: 4096, len: 1, keep_size: true };
    assert_eq!(fs.run(allocate), Err(Error::NoSpace));
    // Buffered data can be synced, and existing data overwritten.
    fs.run(VolumeOp::SyncAll).unwrap();
    fs.write(file, 0, b"overwritten").unwrap();
    fs.write(other, 1, b"bc").unwrap();
    fs.sync(other).unwrap();
    let mut fs = open(cut(fs));
    assert_eq!(fs.read_all(other).unwrap(), b"abc");
    assert_eq!(fs.volume().stat(file).unwrap().blocks, free - 1);
    assert_eq!(fs.write(other, 4096, b"x"), Err(Error::NoSpace));
    // Freed space is available to the next write, which waits for it.
    fs.run(VolumeOp::Truncate { ino: file, size: 4096 }).unwrap();
    fs.write(other, 4096, &pattern(6, 400_000)).unwrap();
    fs.run(VolumeOp::Unlink { dir: ROOT, name: name("big") }).unwrap();
    fs.run(VolumeOp::Unlink { dir: ROOT, name: name("other") }).unwrap();
    fs.run(VolumeOp::SyncAll).unwrap();
    fs.run(VolumeOp::SyncAll).unwrap();
    let device = fs.close().unwrap();
    let fs = open(device);
    assert_eq!(fs.volume().statfs().free, free);
}

#[test]
fn metadata_has_a_limit_and_removing_goes_on_at_it() {
    let mut fs = open(formatted(4096, 400));
    let mut made = 0;
    let error = loop {
        match fs.create(ROOT, &format!("{made:0200}")) {
            Ok(_) => made += 1,
            Err(error) => break error,
        }
    };
    assert_eq!(error, Error::NoMetadataSpace);
    assert_eq!(error.errno(), 28);
    assert!((200..250).contains(&made), "{made} of 293 bytes each in 61440");
    let mut fs = open(cut({
        fs.run(VolumeOp::SyncAll).unwrap();
        fs
    }));
    assert_eq!(fs.volume().list(ROOT, 0).unwrap().count(), made);
    for i in 0..made {
        fs.run(VolumeOp::Unlink { dir: ROOT, name: name(&format!("{i:0200}")) }).unwrap();
    }
    fs.create(ROOT, "again").unwrap();
    open(fs.close().unwrap());
}

#[test]
fn ten_thousand_files_and_a_file_of_ten_thousand_extents() {
    let mut ram = Ram::for_volume(4096, 65_536);
    let options = volume::FormatOptions { metadata_blocks: Some(1024), ..Default::default() };
    volume::format(&mut ram, &options, common::tick).unwrap();
    let mut fs = open(ram);
    let mut dirs = Vec::new();
    for d in 0..10 {
        dirs.push(fs.make_directory(ROOT, &format!("dir {d}")).unwrap());
    }
    for i in 0..10_000usize {
        let file = fs.create(dirs[i % 10], &format!("a file with number {i}")).unwrap();
        if i.is_multiple_of(10) {
            fs.write(file, 0, &i.to_le_bytes()).unwrap();
        }
    }
    let sparse = fs.create(ROOT, "sparse").unwrap();
    for i in 0..10_000u64 {
        fs.write(sparse, i * 2 * BLOCK as u64, &i.to_le_bytes()).unwrap();
    }
    fs.run(VolumeOp::SyncAll).unwrap();
    let stats = fs.volume().stats();
    assert!(stats.checkpoints > 1, "{stats:?}");
    let mut fs = open(cut(fs));
    assert_eq!(fs.volume().statfs().inodes, 10_012);
    assert_eq!(fs.volume().stat(sparse).unwrap().blocks, 10_000);
    for i in (0..10_000u64).step_by(97) {
        let mut word = [0; 8];
        fs.read(sparse, i * 2 * BLOCK as u64, &mut word).unwrap();
        assert_eq!(u64::from_le_bytes(word), i);
        let path = format!("dir {}/a file with number {}", i % 10, i);
        let file = fs.volume().lookup(ROOT, &path).unwrap();
        let bytes = if i.is_multiple_of(10) { (i as usize).to_le_bytes().to_vec() } else { vec![] };
        assert_eq!(fs.read_all(file).unwrap(), bytes);
    }
    fs.run(VolumeOp::Punch { ino: sparse, offset: 0, len: FILE_BYTES_MAX }).unwrap();
    assert_eq!(fs.volume().stat(sparse).unwrap().blocks, 0);
    let mut device = fs.close().unwrap();
    let report = volume::fsck(&mut device, Default::default(), common::tick).unwrap();
    assert_eq!((report.problems.len(), report.files, report.directories), (0, 10_001, 11));
}

#[test]
fn what_cannot_be_is_refused() {
    let mut fs = open(formatted(512, 1024));
    let file = fs.create(ROOT, "f").unwrap();
    let gone = Ino(999);
    let nowhere = volume::RequestBuffer { iova: mem::Iova(77), len: 100 };
    assert_eq!(
        fs.run(VolumeOp::Write { ino: file, offset: 0, data: nowhere }),
        Err(Error::BadAddress)
    );
    assert_eq!(fs.run(VolumeOp::Append { ino: ROOT, data: nowhere }), Err(Error::IsDirectory));
    fs.write(file, 0, b"x").unwrap();
    assert_eq!(
        fs.run(VolumeOp::Read { ino: file, offset: 0, data: nowhere }),
        Err(Error::BadAddress)
    );
    assert_eq!(
        fs.run(VolumeOp::Truncate { ino: file, size: FILE_BYTES_MAX + 1 }),
        Err(Error::TooLarge)
    );
    assert_eq!(fs.write(file, FILE_BYTES_MAX, b"x"), Err(Error::TooLarge));
    assert_eq!(fs.write(file, u64::MAX, b"x"), Err(Error::TooLarge));
    assert_eq!(fs.run(VolumeOp::Truncate { ino: ROOT, size: 0 }), Err(Error::IsDirectory));
    assert_eq!(fs.run(VolumeOp::Sync { ino: gone, data_only: false }), Err(Error::NotFound));
    let none = VolumeOp::Allocate { ino: file, offset: 0, len: 0, keep_size: false };
    assert!(matches!(fs.run(none), Err(Error::Invalid(_))));
    let far = VolumeOp::Allocate { ino: file, offset: u64::MAX, len: 9, keep_size: false };
    assert_eq!(fs.run(far), Err(Error::TooLarge));
    assert_eq!(fs.volume_mut().open(gone), Err(Error::NotFound));
    assert!(matches!(fs.volume_mut().close(file), Err(Error::Invalid(_))));
    fs.run(VolumeOp::Truncate { ino: file, size: FILE_BYTES_MAX }).unwrap();
    fs.write(file, FILE_BYTES_MAX - 1, b"x").unwrap();
    let mut device = fs.close().unwrap();
    device.untouched();
    let reading = Options { read_only: true, ..Options::default() };
    let mut fs = try_open(device, reading).unwrap();
    assert_eq!(fs.create(ROOT, "f"), Err(Error::ReadOnly));
    assert_eq!(fs.write(file, 0, b"x"), Err(Error::ReadOnly));
    let mut last = [0];
    assert_eq!(fs.read(file, FILE_BYTES_MAX - 1, &mut last), Ok(1));
    assert_eq!(last, *b"x");
    let mut device = fs.close().unwrap();
    assert!(device.untouched());
}
