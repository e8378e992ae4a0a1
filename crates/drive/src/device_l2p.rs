//! [`DeviceL2p`]: the drive's own map from logical to physical addresses (thesis chapter 6, section
//! 4.3: the host has one, too, and never has to write its own).
//!
//! A host that wants it says with every sector it writes, in the first out-of-band bytes, which
//! logical address the sector is of and how new ([`ftl::Oob`]). The map has the place of the newest
//! copy: of two copies the one with the larger sequence number, of equally new ones the one that was
//! programmed last, which is the other one moved. A chunk that is reset takes its sectors' entries
//! with it; a trimmed address comes back only with a larger sequence number than the trim's.
//!
//! Guarantees: an entry changes after its sector is programmed and before the command completes, by
//! one store; what an entry names was programmed and says that it is of this logical address. The map
//! survives the loss of power: it is kept in memory behind the drive's own capacitors, and beside an
//! image in a file (`docs/format/sidecar.md`), where it also survives the death of the process.
//!
//! One 64-bit word per logical address, of which there are as many as the medium has sectors:
//!
//! ```text
//! bits 47:0   mapped: number of the sector; trimmed: sequence number
//! bit  48     mapped
//! bit  49     trimmed
//! bits 63:56  check byte; a word of zeros is an address that was never written
//! ```

use std::path::PathBuf;
use std::sync::atomic::Ordering;

use ftl::Oob;
use media::{ChunkIndex, ChunkState, DataStore, Nand, PhysSector};
use nvme::{DeviceL2pLog, DsmRange, Status};
use ring::{OwnedRegion, SharedRegion};

use crate::error::DriveError;
use crate::sidecar::{self, SidecarKind};
use crate::stats::DeviceL2pStats;

/// What is known of a logical address.
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

/// A byte that depends on every bit of a word without one, and is never that of a word of zeros.
fn check(word: u64) -> u64 {
    let folded = (word ^ word >> 29).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    folded >> 56 ^ 0xa5
}

impl Entry {
    fn to_word(self) -> u64 {
        let word = match self {
            Entry::Unwritten => return 0,
            Entry::Mapped(psn) => MAPPED | u64::from(psn.0),
            Entry::Trimmed { sequence } => TRIMMED | sequence & VALUE,
        };
        word | check(word) << CHECK_SHIFT
    }

    /// `None` for a word that is no entry.
    fn from_word(word: u64) -> Option<Entry> {
        if word == 0 {
            return Some(Entry::Unwritten);
        }
        let bare = word & !(0xff << CHECK_SHIFT);
        if bare | check(bare) << CHECK_SHIFT != word {
            return None;
        }
        match bare & !VALUE {
            MAPPED => u32::try_from(bare & VALUE).ok().map(|psn| Entry::Mapped(PhysSector(psn))),
            TRIMMED => Some(Entry::Trimmed { sequence: bare & VALUE }),
            _ => None,
        }
    }
}

/// The map.
#[derive(Clone, Debug)]
pub(crate) struct DeviceL2p {
    region: OwnedRegion,
    /// Logical addresses.
    entries: u32,
    pub(crate) stats: DeviceL2pStats,
}

impl DeviceL2p {
    /// The map of a medium: the one in the file beside its image, if there is one, or an empty one.
    ///
    /// # Errors
    /// No memory; a file that is not the map of this medium, or is damaged.
    pub(crate) fn open(nand: &Nand) -> Result<DeviceL2p, DriveError> {
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
            DeviceL2p { region: region.into(), entries, stats: DeviceL2pStats::default() };
        if let Some(path) = path {
            map.check(path)?;
            // An image that was made anew beside an old map has no past.
            if nand.chunks().all(|(_, i)| i.wear == 0 && i.write_pointer == 0) {
                (0..entries).for_each(|lba| map.set(lba, Entry::Unwritten));
            }
        }
        map.reconcile(nand);
        Ok(map)
    }

    /// Whether every word of a file is an entry.
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

    /// Brings the map and what is on the medium together when the power comes: it may have gone
    /// between an erase and what that does to the map.
    pub(crate) fn reconcile(&mut self, nand: &Nand) {
        for lba in 0..self.entries {
            if let Entry::Mapped(psn) = self.get(lba)
                && !is_copy_of(nand, psn, lba)
            {
                self.set(lba, Entry::Unwritten);
            }
        }
    }

    /// Logical addresses.
    pub(crate) fn entries(&self) -> u32 {
        self.entries
    }

    #[inline]
    fn get(&self, lba: u32) -> Entry {
        let word = self.region.atomic_u64(lba as usize * 8).load(Ordering::Relaxed);
        // Words in memory are ours, and those of a file were checked when it was opened.
        Entry::from_word(word).unwrap_or(Entry::Unwritten)
    }

    #[inline]
    fn set(&mut self, lba: u32, entry: Entry) {
        self.region.atomic_u64(lba as usize * 8).store(entry.to_word(), Ordering::Release);
    }

    /// Where the newest copy of a logical address is.
    pub(crate) fn lookup(&self, lba: u32) -> Option<PhysSector> {
        match self.get(lba) {
            Entry::Mapped(psn) if lba < self.entries => Some(psn),
            _ => None,
        }
    }

    /// What it holds, in sum. Looks at every entry.
    pub(crate) fn totals(&self, nand: &Nand) -> DeviceL2pLog {
        let (mut mapped, mut trimmed, mut newest) = (0u64, 0u64, 0);
        for lba in 0..self.entries {
            match self.get(lba) {
                Entry::Unwritten => {}
                Entry::Mapped(psn) => {
                    mapped += 1;
                    newest = newest.max(oob_mapping(nand, psn).map_or(0, |(_, sequence)| sequence));
                }
                Entry::Trimmed { sequence } => {
                    trimmed += 1;
                    newest = newest.max(sequence);
                }
            }
        }
        DeviceL2pLog { mapped: mapped.into(), trimmed: trimmed.into(), seq_max: newest.into() }
    }

    /// A write unit has been programmed: `count` sectors from `first` on.
    pub(crate) fn on_program(&mut self, nand: &Nand, first: u32, count: u32) {
        for psn in (first..first + count).map(PhysSector) {
            let Some((lba, sequence)) = oob_mapping(nand, psn) else { continue };
            if lba >= self.entries {
                self.stats.out_of_range += 1;
                continue;
            }
            let newer = match self.get(lba) {
                Entry::Unwritten => true,
                Entry::Trimmed { sequence: trimmed } => sequence > trimmed,
                // What an entry names says how new it is.
                Entry::Mapped(old) => {
                    oob_mapping(nand, old).is_none_or(|(of, than)| of != lba || sequence >= than)
                }
            };
            if newer {
                self.set(lba, Entry::Mapped(psn));
                self.stats.updates += 1;
            } else {
                self.stats.stale += 1;
            }
        }
    }

    /// The host has reset a chunk: what was there is gone, whether that went well or took the chunk
    /// offline. The out-of-band bytes are still there, until something is written over them.
    pub(crate) fn on_reset(&mut self, nand: &Nand, chunk: ChunkIndex) {
        let written = nand.chunk_info(chunk).map_or(0, |i| i.write_pointer);
        let sectors = nand.layout().sectors_per_chunk();
        // An erase that was refused has left everything where it was.
        for psn in (written..sectors).map(|sector| nand.layout().psn(chunk, sector)) {
            if let Some((lba, _)) = oob_mapping(nand, psn)
                && lba < self.entries
                && self.get(lba) == Entry::Mapped(psn)
            {
                self.set(lba, Entry::Unwritten);
                self.stats.resets += 1;
            }
        }
    }

    /// Logical addresses are no longer needed, as of a sequence number.
    ///
    /// # Errors
    /// [`Status::LBA_OUT_OF_RANGE`] for addresses past the end, [`Status::INVALID_FIELD`] for more
    /// of them than there are; nothing has changed.
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
            // In range, so both fit.
            let first = range.slba.get() as u32;
            for lba in first..first + range.nlb.get() {
                let older = match self.get(lba) {
                    Entry::Unwritten => true,
                    Entry::Trimmed { sequence: trimmed } => trimmed < sequence,
                    Entry::Mapped(psn) => {
                        oob_mapping(nand, psn).is_none_or(|(_, of)| of <= sequence)
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

    /// Waits until everything is on the file's device. Nothing to do without a file.
    ///
    /// # Errors
    /// What `fsync(2)` returns.
    pub(crate) fn sync(&self) -> std::io::Result<()> {
        self.region.sync()
    }
}

/// Whose copy a sector says that it is, and how new: the one place that knows which out-of-band
/// bytes mean that. `None` for padding, and for bytes that mean nothing.
fn oob_mapping(nand: &Nand, psn: PhysSector) -> Option<(u32, u64)> {
    let mut raw = [0; Oob::BYTES];
    nand.oob(psn, &mut raw);
    let oob = Oob::decode(&raw)?;
    Some((oob.lba?, oob.sequence))
}

/// Whether a sector was written and says that it is of this logical address. What was on a chunk
/// that has gone offline since stays mapped: reads of it fail, which is better than to find nothing.
fn is_copy_of(nand: &Nand, psn: PhysSector, lba: u32) -> bool {
    if psn.0 >= nand.layout().sector_count() {
        return false;
    }
    let (chunk, sector) = nand.layout().split(psn);
    let written = nand.chunk_info(chunk).is_some_and(|i| match i.state {
        ChunkState::Free => false,
        ChunkState::Open | ChunkState::Closed => sector < i.write_pointer,
        ChunkState::Offline => true,
    });
    written
        && !nand.is_erase_interrupted(chunk)
        && oob_mapping(nand, psn).is_some_and(|(of, _)| of == lba)
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
