//! Journals with changed bytes and correct checksums are recovered or refused, without a panic.
//!
//! `SLUICE_SEED=n` replays a seed. The fuzz target `journal` (`fuzz/`) runs the same body.

use super::damage::{CONFIG, written};
use super::format::{crc, number};
use testkit::choices::{Choices, seed};

/// Bytes of a frame header, including its checksum.
const HEADER: usize = 48;

/// Recomputes the checksums of a frame, as far as its length field allows.
fn reseal(unit: &mut [u8]) {
    let bytes = number(&unit[28..32]) as usize;
    if let Some(payload) = unit[HEADER..].get(..bytes) {
        let sum = crc(payload);
        unit[36..40].copy_from_slice(&sum.to_le_bytes());
    }
    let sum = crc(&unit[..44]);
    unit[44..HEADER].copy_from_slice(&sum.to_le_bytes());
}

/// Changes bytes of a journal, most of them in headers, and recovers it; returns whether that
/// succeeds.
pub(crate) fn survives(choices: &mut Choices) -> bool {
    let (mut flash, _) = written(choices.below(16));
    for _ in 0..=choices.below(12) {
        let chunk = choices.below(flash.chunks.len() as u64) as usize;
        let units = &mut flash.chunks[chunk].1.units;
        if units.is_empty() {
            continue;
        }
        let unit = choices.below(units.len() as u64) as usize;
        let Some(bytes) = units[unit].as_deref_mut() else { continue };
        let most = if choices.chance(0.8) { HEADER } else { bytes.len() };
        let at = choices.below(most as u64) as usize;
        bytes[at] = match choices.below(4) {
            0 => choices.next_u64() as u8,
            1 => bytes[at] ^ 1 << choices.below(8),
            2 => 0,
            _ => 0xff,
        };
        if choices.chance(0.9) {
            reseal(bytes);
        }
        if choices.chance(0.2) {
            let copy = bytes.to_vec();
            let other = choices.below(units.len() as u64) as usize;
            units[other] = Some(copy);
        }
    }
    match flash.recover(CONFIG) {
        Ok(_) => true,
        Err(error) => {
            assert!(!error.to_string().is_empty());
            false
        }
    }
}

/// Changes bytes as a fuzzer's input says, and recovers.
pub(crate) fn fuzz(bytes: &[u8]) {
    survives(&mut Choices::of(bytes));
}

#[test]
fn journals_with_sealed_lies_are_recovered_or_refused() {
    let (mut recovered, mut refused) = (0, 0);
    for seed in seed()..seed() + 1_000 {
        let survived = std::panic::catch_unwind(|| survives(&mut Choices::seeded(seed)));
        match survived.unwrap_or_else(|_| panic!("SLUICE_SEED={seed}")) {
            true => recovered += 1,
            false => refused += 1,
        }
    }
    assert!(recovered > 50 && refused > 50, "{recovered} recovered, {refused} refused");
    for bytes in [&b""[..], &[0; 64], &[0xff; 64]] {
        fuzz(bytes);
    }
}
