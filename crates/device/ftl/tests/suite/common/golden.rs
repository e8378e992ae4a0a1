//! Golden hashes: a refactoring must not change the flash operations that the FTL issues, case by
//! case.

use std::collections::BTreeMap;
use std::path::Path;

use ftl::{Oob, ReadAddress};

/// A 64-bit FNV-1a hash of a sequence of flash operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallHash(u64);

impl Default for CallHash {
    fn default() -> CallHash {
        CallHash(0xcbf2_9ce4_8422_2325)
    }
}

impl CallHash {
    fn add(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }

    /// Adds another hash, for example that of the next case.
    pub fn fold(&mut self, other: CallHash) {
        self.add(&other.0.to_le_bytes());
    }

    pub fn program<'a>(
        &mut self,
        chunk: u32,
        sector: u32,
        slot: u32,
        oobs: impl Iterator<Item = &'a Oob>,
    ) {
        self.add(b"P");
        [chunk, sector, slot].iter().for_each(|n| self.add(&n.to_le_bytes()));
        oobs.for_each(|oob| self.add(&oob.encode()));
    }

    pub fn read(&mut self, addresses: &[ReadAddress]) {
        self.add(b"R");
        for ReadAddress { phys, place } in addresses {
            self.add(&phys.get().to_le_bytes());
            self.add(&place.to_le_bytes());
        }
    }

    pub fn erase(&mut self, chunk: u32) {
        self.add(b"E");
        self.add(&chunk.to_le_bytes());
    }
}

/// Compares the hash of a test's default cases with the recorded one. Does nothing if a seed or a
/// number of cases was given.
///
/// `SLUICE_GOLDEN_UPDATE=1` records the hash instead, for changes that are meant to change the
/// FTL's flash operations.
///
/// # Panics
/// If the hash differs from the recorded one.
pub fn assert_calls(test: &str, found: CallHash) {
    let asked = ["SLUICE_SEED", "SLUICE_CASES"];
    if asked.iter().any(|name| std::env::var_os(name).is_some()) {
        return;
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden.txt");
    let text = std::fs::read_to_string(&path).unwrap_or_default();
    let mut recorded: BTreeMap<&str, &str> =
        text.lines().filter_map(|line| line.split_once(' ')).collect();
    let hash = format!("{:016x}", found.0);
    if std::env::var_os("SLUICE_GOLDEN_UPDATE").is_some() {
        recorded.insert(test, &hash);
        let lines = recorded.iter().map(|(name, hash)| format!("{name} {hash}\n"));
        std::fs::write(&path, lines.collect::<String>()).expect("tests/golden.txt can be written");
        return;
    }
    assert_eq!(
        recorded.get(test),
        Some(&hash.as_str()),
        "{test}: the FTL's flash operations differ from those recorded in tests/golden.txt"
    );
}
