//! Volumes with changed bytes: opened, read, checked and repaired, or refused.

use testkit::choices::Choices;
use volume::{BLOCK, FsckOptions, Ino, Options, fsck};

use crate::common::{Ram, cut, formatted, open, pattern, tick, try_open};

/// Blocks of the volume.
const BLOCKS: u64 = 256;

/// A volume with data in its snapshot and in its journal, after a power cut.
fn sample() -> Ram {
    let mut session = open(formatted(512, BLOCKS));
    for number in 0..3 {
        let file = session.create(Ino::ROOT, &format!("old {number}")).unwrap();
        session.write(file, 0, &pattern(number, 5000)).unwrap();
    }
    let mut session = open(session.close().unwrap());
    let file = session.create(Ino::ROOT, "new").unwrap();
    session.write(file, 0, &pattern(9, 300)).unwrap();
    session.sync(file).unwrap();
    cut(session)
}

/// Changes up to eight bytes of a volume and opens it. Returns whether that succeeds.
pub fn survives(choices: &mut Choices) -> bool {
    let mut sample = sample();
    sample.settle();
    let mut image = sample.durable;
    let ends = |at: &usize| !(16 * BLOCK..(BLOCKS as usize - 1) * BLOCK).contains(at);
    let metadata: Vec<usize> = (0..image.len()).filter(ends).filter(|at| image[*at] != 0).collect();
    for _ in 0..=choices.below(8) {
        // Superblocks and bitmaps are at the ends; most zero bytes are unused.
        let at = match choices.chance(0.3) {
            true => choices.below(image.len() as u64) as usize,
            false => metadata[choices.below(metadata.len() as u64) as usize],
        };
        image[at] ^= 1 << choices.below(8);
    }
    let of_image = || {
        let mut ram = Ram::for_volume(512, BLOCKS);
        ram.durable.copy_from_slice(&image);
        ram
    };
    let mut repaired = of_image();
    // An error describes the problem; after a successful repair, fsck finds nothing.
    if fsck(&mut repaired, FsckOptions { repair: true, clear_owner: true }, tick).is_ok() {
        let again = fsck(&mut repaired, FsckOptions::default(), tick);
        assert!(again.is_ok(), "{again:?}");
    }
    let Ok(mut session) = try_open(of_image(), Options::default()) else { return false };
    for name in ["old 0", "old 1", "old 2", "new"] {
        if let Ok(file) = session.volume().lookup(Ino::ROOT, name) {
            // The read succeeds or fails; other tests compare the contents.
            let _ = session.read_all(file);
        }
    }
    true
}

/// Derives the changes from a fuzzer's bytes.
pub fn fuzz(bytes: &[u8]) {
    survives(&mut Choices::of(bytes));
}
