//! [`DeviceL2pTable`]: a logical-to-physical map that an open-channel drive keeps itself [Thesis15 ch. 6
//! §4.3]. The host has a map as well, and never needs to write its own to the media.
//!
//! A host that uses the device L2P stores the logical address and the sequence number of each
//! sector in its first out-of-band bytes ([`ftl::Oob`]). The map holds the location of the latest
//! version. Of two copies, the one with the larger sequence number wins; of equal ones, the one
//! programmed last, which is a relocated copy. A reset of a chunk unmaps its sectors. A trimmed
//! address is mapped again only by a larger sequence number than that of the trim.
//!
//! Invariants: an entry changes after its sector is programmed and before the command completes,
//! with one store. The sector of an entry was programmed, and its out-of-band bytes hold that
//! logical address. The map survives a power loss: capacitors protect the drive's memory. Beside an
//! image, the map is kept in a file (`docs/format/sidecar.md`), and survives the death of the
//! process as well.
//!
//! The map has one 64-bit word per logical address, and as many addresses as the medium has
//! sectors:
//!
//! ```text
//! bits 47:0   mapped: index of the physical sector; trimmed: sequence number
//! bit  48     mapped
//! bit  49     trimmed
//! bits 63:56  check byte; a word of zeros is an address that was never written
//! ```

use std::path::PathBuf;
use std::sync::atomic::Ordering;

use ftl::{Lba, Oob, WriteSeq};
use media::{ChunkId, ChunkState, DataStore, Nand, PhysSector};
use mem::{OwnedRegion, SharedRegion};
use nvme::{DeviceL2pLog, DsmRange, Status};
use serde::{Deserialize, Serialize};

use crate::error::DriveError;
use crate::persistence::sidecar::{self, SidecarKind};
use crate::stats::DeviceL2pStats;

/// The state of a logical address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Entry {
    Unwritten,
    Mapped(PhysSector),
    Trimmed { sequence: u64 },
}

const VALUE: u64 = (1 << 48) - 1;
const MAPPED: u64 = 1 << 48;
const TRIMMED: u64 = 1 << 49;
const CHECK_SHIFT: u32 = 56;

/// Returns the check byte of a word: it depends on every other bit and is not 0.
fn check(word: u64) -> u64 {
    let folded = (word ^ word >> 29).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    folded >> 56 ^ 0xa5
}

impl Entry {
    fn to_word(self) -> u64 {
        let word = match self {
            Entry::Unwritten => return 0,
            Entry::Mapped(phys) => MAPPED | u64::from(phys.0),
            Entry::Trimmed { sequence } => TRIMMED | sequence & VALUE,
        };
        word | check(word) << CHECK_SHIFT
    }

    /// Decodes a word; `None` if it is not a valid entry.
    fn from_word(word: u64) -> Option<Entry> {
        if word == 0 {
            return Some(Entry::Unwritten);
        }
        let bare = word & !(0xff << CHECK_SHIFT);
        if bare | check(bare) << CHECK_SHIFT != word {
            return None;
        }
        match bare & !VALUE {
            MAPPED => u32::try_from(bare & VALUE).ok().map(|phys| Entry::Mapped(PhysSector(phys))),
            TRIMMED => Some(Entry::Trimmed { sequence: bare & VALUE }),
            _ => None,
        }
    }
}

/// A logical-to-physical map in the drive.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct DeviceL2pTable {
    region: OwnedRegion,
    /// Number of logical addresses.
    entries: u32,
    pub(crate) stats: DeviceL2pStats,
}

impl DeviceL2pTable {
    /// Opens the map of a medium: from the file beside its image if there is one, otherwise empty.
    ///
    /// # Errors
    /// Out of memory, or a file that is damaged or belongs to another medium.
    pub(crate) fn open(nand: &Nand) -> Result<DeviceL2pTable, DriveError> {
        let entries = nand.layout().sector_count();
        let bytes = entries as usize * 8;
        let (region, path) = match &nand.config().data {
            DataStore::File(image) => {
                let path = sidecar::sidecar_path(image, "map");
                let region =
                    sidecar::open_or_create(&path, SidecarKind::DeviceL2p, bytes, entries.into())?;
                (region, Some(path))
            }
            DataStore::Overlay(image) => {
                let path = sidecar::sidecar_path(image, "map");
                let region =
                    sidecar::open_overlay(&path, SidecarKind::DeviceL2p, bytes, entries.into())?;
                (region, Some(path))
            }
            _ => (SharedRegion::anonymous(bytes).map_err(DriveError::Memory)?, None),
        };
        let mut map =
            DeviceL2pTable { region: region.into(), entries, stats: DeviceL2pStats::default() };
        if let Some(path) = path {
            map.check(path)?;
            // The image was recreated beside an old map, so the map's contents are obsolete.
            if nand.chunks().all(|(_, i)| i.wear == 0 && i.write_pointer == 0) {
                (0..entries).for_each(|lba| map.set(lba, Entry::Unwritten));
            }
        }
        map.reconcile(nand);
        Ok(map)
    }

    /// Checks that every word of a file is a valid entry.
    fn check(&self, path: PathBuf) -> Result<(), DriveError> {
        for lba in 0..self.entries {
            let word = self.region.atomic_u64(lba as usize * 8).load(Ordering::Relaxed);
            if Entry::from_word(word).is_none() {
                let what = format!("the entry of logical address {lba} is damaged ({word:#018x})");
                return Err(DriveError::Sidecar { path, what });
            }
        }
        Ok(())
    }

    /// Reconciles the map with the medium at power-on. Power may have failed between an erase and
    /// the update of the map.
    pub(crate) fn reconcile(&mut self, nand: &Nand) {
        for lba in 0..self.entries {
            if let Entry::Mapped(phys) = self.get(lba)
                && !is_copy_of(nand, phys, Lba(lba))
            {
                self.set(lba, Entry::Unwritten);
            }
        }
    }

    /// Returns the number of logical addresses.
    pub(crate) fn entries(&self) -> u32 {
        self.entries
    }

    #[inline]
    fn get(&self, lba: u32) -> Entry {
        let word = self.region.atomic_u64(lba as usize * 8).load(Ordering::Relaxed);
        // Words in memory are written only here, and the words of a file were checked when it was
        // opened.
        Entry::from_word(word).unwrap_or(Entry::Unwritten)
    }

    #[inline]
    fn set(&mut self, lba: u32, entry: Entry) {
        self.region.atomic_u64(lba as usize * 8).store(entry.to_word(), Ordering::Release);
    }

    /// Returns the location of the latest version of a logical address.
    pub(crate) fn lookup(&self, lba: u32) -> Option<PhysSector> {
        match self.get(lba) {
            Entry::Mapped(phys) if lba < self.entries => Some(phys),
            _ => None,
        }
    }

    /// Returns the counters of the map. Reads every entry.
    pub(crate) fn totals(&self, nand: &Nand) -> DeviceL2pLog {
        let (mut mapped, mut trimmed, mut newest) = (0u64, 0u64, 0);
        for lba in 0..self.entries {
            match self.get(lba) {
                Entry::Unwritten => {}
                Entry::Mapped(phys) => {
                    mapped += 1;
                    newest = newest
                        .max(oob_mapping(nand, phys).map_or(0, |(_, sequence)| sequence.get()));
                }
                Entry::Trimmed { sequence } => {
                    trimmed += 1;
                    newest = newest.max(sequence);
                }
            }
        }
        DeviceL2pLog { mapped: mapped.into(), trimmed: trimmed.into(), seq_max: newest.into() }
    }

    /// Updates the map after a write unit was programmed: `count` sectors from `first`.
    pub(crate) fn on_program(&mut self, nand: &Nand, first: u32, count: u32) {
        for phys in (first..first + count).map(PhysSector) {
            let Some((lba, sequence)) = oob_mapping(nand, phys) else { continue };
            if lba >= Lba(self.entries) {
                self.stats.out_of_range += 1;
                continue;
            }
            let newer = match self.get(lba.get()) {
                Entry::Unwritten => true,
                Entry::Trimmed { sequence: trimmed } => sequence > WriteSeq(trimmed),
                // The out-of-band bytes of the mapped sector hold its sequence number.
                Entry::Mapped(old) => {
                    oob_mapping(nand, old).is_none_or(|(of, than)| of != lba || sequence >= than)
                }
            };
            if newer {
                self.set(lba.get(), Entry::Mapped(phys));
                self.stats.updates += 1;
            } else {
                self.stats.stale += 1;
            }
        }
    }

    /// Unmaps the sectors of a chunk after a reset, whether it succeeded or took the chunk offline.
    /// The out-of-band bytes stay readable until the chunk is written again.
    pub(crate) fn on_reset(&mut self, nand: &Nand, chunk: ChunkId) {
        let written = nand.chunk_info(chunk).map_or(0, |i| i.write_pointer);
        let sectors = nand.layout().sectors_per_chunk();
        // A refused erase has changed nothing.
        for phys in (written..sectors).map(|sector| nand.layout().phys(chunk, sector)) {
            if let Some((lba, _)) = oob_mapping(nand, phys)
                && lba < Lba(self.entries)
                && self.get(lba.get()) == Entry::Mapped(phys)
            {
                self.set(lba.get(), Entry::Unwritten);
                self.stats.resets += 1;
            }
        }
    }

    /// Trims logical addresses, as of a sequence number.
    ///
    /// # Errors
    /// [`Status::LBA_OUT_OF_RANGE`] for addresses past the end, [`Status::INVALID_FIELD`] for more
    /// addresses than the map has. The map does not change on error.
    pub(crate) fn trim(
        &mut self,
        nand: &Nand,
        ranges: &[DsmRange],
        sequence: u64,
    ) -> Result<(), Status> {
        let mut all = 0;
        for range in ranges {
            let end = range.slba.get().checked_add(range.nlb.get().into());
            if end.is_none_or(|end| end > self.entries.into()) {
                return Err(Status::LBA_OUT_OF_RANGE);
            }
            all += u64::from(range.nlb.get());
        }
        if all > self.entries.into() {
            return Err(Status::INVALID_FIELD);
        }
        for range in ranges {
            // The range was checked, so both values fit.
            let first = range.slba.get() as u32;
            for lba in first..first + range.nlb.get() {
                let older = match self.get(lba) {
                    Entry::Unwritten => true,
                    Entry::Trimmed { sequence: trimmed } => trimmed < sequence,
                    Entry::Mapped(phys) => {
                        oob_mapping(nand, phys).is_none_or(|(_, of)| of <= WriteSeq(sequence))
                    }
                };
                if older {
                    self.set(lba, Entry::Trimmed { sequence });
                    self.stats.trims += 1;
                }
            }
        }
        Ok(())
    }

    /// Waits until the map is on the file's device. Does nothing without a file.
    ///
    /// # Errors
    /// The error that `fsync(2)` returns.
    pub(crate) fn sync(&self) -> std::io::Result<()> {
        self.region.sync()
    }
}

/// Returns the logical address and sequence number in a sector's out-of-band bytes. No other
/// function decodes them. `None` for padding and for invalid bytes.
fn oob_mapping(nand: &Nand, phys: PhysSector) -> Option<(Lba, WriteSeq)> {
    let mut raw = [0; Oob::BYTES];
    nand.oob(phys, &mut raw);
    let oob = Oob::decode(&raw)?;
    Some((oob.lba?, oob.sequence))
}

/// Whether a sector was written with this logical address. Sectors of a chunk that has gone offline
/// stay mapped: a failing read is better than an unmapped address.
fn is_copy_of(nand: &Nand, phys: PhysSector, lba: Lba) -> bool {
    if phys.0 >= nand.layout().sector_count() {
        return false;
    }
    let (chunk, sector) = nand.layout().split(phys);
    let written = nand.chunk_info(chunk).is_some_and(|i| match i.state {
        ChunkState::Free => false,
        ChunkState::Open | ChunkState::Closed => sector < i.write_pointer,
        ChunkState::Offline => true,
    });
    written
        && !nand.is_erase_interrupted(chunk)
        && oob_mapping(nand, phys).is_some_and(|(of, _)| of == lba)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_entries_or_found_out() {
        for entry in [
            Entry::Unwritten,
            Entry::Mapped(PhysSector(0)),
            Entry::Mapped(PhysSector(u32::MAX)),
            Entry::Trimmed { sequence: 0 },
            Entry::Trimmed { sequence: VALUE },
        ] {
            let word = entry.to_word();
            assert_eq!(Entry::from_word(word), Some(entry));
            for bit in 0..64 {
                let damaged = Entry::from_word(word ^ 1 << bit);
                assert_eq!(damaged, None, "{entry:?} bit {bit}");
            }
        }
        assert_eq!(Entry::from_word(u64::MAX), None);
    }
}
