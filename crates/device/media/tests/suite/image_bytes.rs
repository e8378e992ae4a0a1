//! Images with changed bytes are opened or refused, without a panic.
//!
//! `SLUICE_SEED=n` replays a seed. The fuzz target `image` (`fuzz/`) runs the same body.

use std::sync::OnceLock;

use media::{DataStore, Nand, NandConfig, PhysSector};
use tempfile::NamedTempFile;
use testkit::choices::{Choices, seed};

use super::fixture::{config, program, program_all};

fn on(image: &NamedTempFile) -> NandConfig {
    NandConfig { data: DataStore::File(image.path().into()), ..config() }
}

/// Returns the bytes of an image with a full chunk and an open one.
fn sample() -> &'static [u8] {
    static SAMPLE: OnceLock<Vec<u8>> = OnceLock::new();
    SAMPLE.get_or_init(|| {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("drive.img");
        let config = NandConfig { data: DataStore::File(path.clone()), ..config() };
        let mut nand = Nand::create(config).unwrap();
        let chunks: Vec<_> = nand.chunks().map(|(chunk, _)| chunk).take(2).collect();
        program_all(&mut nand, chunks[0], 1);
        program(&mut nand, chunks[1], 0, 2).unwrap();
        nand.sync().unwrap();
        drop(nand);
        std::fs::read(path).unwrap()
    })
}

/// Changes up to eight bytes of an image, or its length, and opens it. Returns whether that
/// succeeds.
pub(crate) fn survives(choices: &mut Choices) -> bool {
    let mut bytes = sample().to_vec();
    for _ in 0..=choices.below(8) {
        // The header and the chunk tables precede the data.
        let most = if choices.chance(0.7) { 16_384 } else { bytes.len() as u64 };
        let at = choices.below(most.min(bytes.len() as u64)) as usize;
        bytes[at] = match choices.below(3) {
            0 => choices.next_u64() as u8,
            1 => bytes[at] ^ 1 << choices.below(8),
            _ => 0xff,
        };
    }
    if choices.chance(0.1) {
        bytes.truncate(choices.below(bytes.len() as u64) as usize);
    }
    let image = NamedTempFile::new().unwrap();
    std::fs::write(image.path(), bytes).unwrap();
    let Ok(nand) = Nand::open(on(&image)) else { return false };
    let mut sector = vec![0; nand.layout().sector_bytes() as usize];
    for phys in 0..nand.layout().sector_count() {
        nand.read_bytes(PhysSector(phys), &mut sector);
    }
    true
}

/// Changes bytes as a fuzzer's input says, and opens the image.
pub(crate) fn fuzz(bytes: &[u8]) {
    survives(&mut Choices::of(bytes));
}

#[test]
fn images_with_changed_bytes_are_opened_or_refused() {
    let (mut opened, mut refused) = (0, 0);
    for seed in seed()..seed() + 2_000 {
        let survived = std::panic::catch_unwind(|| survives(&mut Choices::seeded(seed)));
        match survived.unwrap_or_else(|_| panic!("SLUICE_SEED={seed}")) {
            true => opened += 1,
            false => refused += 1,
        }
    }
    assert!(opened > 100 && refused > 100, "{opened} opened, {refused} refused");
    for bytes in [&b""[..], &[0; 64], &[0xff; 64]] {
        fuzz(bytes);
    }
}
