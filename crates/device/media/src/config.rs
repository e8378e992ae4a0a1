//! The description of a medium: geometry, timing and errors, as plain values that
//! [`NandConfig::check`] validates.

use std::path::{Path, PathBuf};

use nvme::{Geometry, GeometryError};
use serde::{Deserialize, Serialize};
use time::Nanos;

/// The geometry of a NAND medium [LightNVM17 §2.1]: channels → parallel units → planes → blocks →
/// pages → sectors. One chunk is the blocks with an equal number on all planes of a parallel unit,
/// which are programmed together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NandGeometry {
    /// Channels.
    pub channels: u32,
    /// Parallel units (dies) per channel.
    pub pus: u32,
    /// Planes per parallel unit.
    pub planes: u32,
    /// Chunks per parallel unit: blocks per plane.
    pub chunks: u32,
    /// Pages per block.
    pub pages: u32,
    /// Data bytes per page of one plane.
    pub page_bytes: u32,
    /// Bytes per sector.
    pub sector_bytes: u32,
    /// Out-of-band bytes per sector that the user of the medium may use.
    pub oob_bytes: u32,
}

/// The number of bits per cell [LightNVM17 §2.1].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum CellType {
    /// One bit per cell.
    Slc,
    /// Two bits per cell: lower and upper page.
    Mlc,
    /// Three bits per cell: lower, upper and extra page.
    Tlc,
    /// Four bits per cell.
    Qlc,
}

impl CellType {
    /// Returns the bits per cell, which is the number of pages per word line.
    pub const fn bits(self) -> u32 {
        match self {
            CellType::Slc => 1,
            CellType::Mlc => 2,
            CellType::Tlc => 3,
            CellType::Qlc => 4,
        }
    }

    /// Returns the rated program/erase cycles of the cell type [LightNVM17 §2.1].
    pub const fn rated_cycles(self) -> u32 {
        match self {
            CellType::Slc => 100_000,
            CellType::Mlc => 3_000,
            CellType::Tlc => 1_000,
            CellType::Qlc => 300,
        }
    }
}

/// The times of array operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NandTiming {
    /// tR by page type (lower, upper, extra, top); types beyond the cell's bits are not used.
    pub read: [Nanos; 4],
    /// tPROG by page type; with one-shot programming, entry 0 is the whole word line.
    pub program: [Nanos; 4],
    /// tBERS.
    pub erase: Nanos,
    /// Channel bandwidth in bytes per second; 0 for transfers that take no time.
    pub channel_bytes_per_sec: u64,
}

impl NandTiming {
    /// Returns a timing with equal times for every page type.
    pub const fn uniform(read: Nanos, program: Nanos, erase: Nanos, channel: u64) -> NandTiming {
        NandTiming { read: [read; 4], program: [program; 4], erase, channel_bytes_per_sec: channel }
    }
}

/// The error model of a medium [LightNVM17 §2.2]. All errors are derived from the medium's seed.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct ErrorModel {
    /// Fraction of chunks that are factory bad.
    pub factory_bad: f64,
    /// Probability that a program of one page fails.
    pub program_fail: f64,
    /// Probability that an erase fails.
    pub erase_fail: f64,
    /// Probability that a die fails with a program or an erase: all of its chunks are lost.
    pub die_fail: f64,
    /// Raw bit error rate of a fresh cell; 0 for a medium without bit errors.
    pub rber: f64,
    /// Factor by which the raw bit error rate has grown at the rated cycles.
    pub rber_growth: f64,
    /// Bits that ECC corrects per sector.
    pub ecc_bits: u32,
    /// Rated program/erase cycles; 0 for the cell type's default.
    pub endurance: u32,
    /// Maximum number of read retries, with other thresholds, when a read has more bit errors than
    /// ECC corrects; each takes another tR. 0 for none.
    pub read_retries: u32,
    /// Fraction of the bit errors that remain after each retry.
    pub retry_error_fraction: f64,
    /// Retention time after which data has twice the initial bit errors; after two such times it
    /// has three times as many, and so on. 0 disables retention errors.
    pub retention: Nanos,
    /// Read disturb: sectors read from a chunk after which its data has twice the initial bit
    /// errors, and so on. 0 disables read disturb.
    pub disturb_reads: u32,
}

impl Default for ErrorModel {
    /// Returns a model without errors.
    fn default() -> ErrorModel {
        ErrorModel {
            factory_bad: 0.0,
            program_fail: 0.0,
            erase_fail: 0.0,
            die_fail: 0.0,
            rber: 0.0,
            rber_growth: 100.0,
            ecc_bits: 40,
            endurance: 0,
            read_retries: 0,
            retry_error_fraction: 0.5,
            retention: Nanos::ZERO,
            disturb_reads: 0,
        }
    }
}

/// The storage of sector data.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum DataStore {
    /// In memory, sparsely allocated.
    Memory,
    /// In memory. When the medium is created, the kernel allocates memory for this many bytes of
    /// data, and until then no I/O is accepted; a first write to them does not wait for it.
    Preallocated(u64),
    /// In an image file that survives restarts.
    File(PathBuf),
    /// In an image file that survives restarts. Flushed data survives a crash of the host as well
    /// ([`Nand::flush_to_host`](crate::Nand::flush_to_host)).
    DurableFile(PathBuf),
    /// In memory, over the contents of an image file, which is opened read-only and never changes.
    /// If the file is missing or empty, the medium is fresh.
    Overlay(PathBuf),
    /// Not stored: reads return a pattern derived from the address.
    None,
}

/// The description of a NAND medium.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NandConfig {
    /// Geometry.
    pub geometry: NandGeometry,
    /// Bits per cell.
    pub cell: CellType,
    /// Whether all pages of a word line are programmed in one operation.
    pub one_shot: bool,
    /// Distance in pages between a lower page and the last page of its pair (`mw_cunits` in
    /// multi-plane pages). A page is readable once this many more pages are programmed in its
    /// chunk. 0 for SLC and for one-shot programming.
    pub paired_page_distance: u32,
    /// Timing.
    pub timing: NandTiming,
    /// Error model.
    pub errors: ErrorModel,
    /// Storage of sector data.
    pub data: DataStore,
    /// Seed of all random errors.
    pub seed: u64,
}

/// The description of a phase-change medium: written in place, byte-addressable, without erase.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PcmConfig {
    /// Channels.
    pub channels: u32,
    /// Parallel units per channel; sectors are striped over all of them.
    pub pus: u32,
    /// Capacity in bytes.
    pub bytes: u64,
    /// Bytes per sector.
    pub sector_bytes: u32,
    /// Time to read a sector.
    pub read: Nanos,
    /// Time to write a sector.
    pub write: Nanos,
    /// Channel bandwidth in bytes per second; 0 for transfers that take no time.
    pub channel_bytes_per_sec: u64,
    /// Storage of sector data.
    pub data: DataStore,
}

/// The description of a medium.
#[derive(Clone, Debug, PartialEq)]
pub enum MediaConfig {
    /// NAND flash.
    Nand(NandConfig),
    /// Phase-change memory.
    Pcm(PcmConfig),
    /// No medium: `bytes` of address space in sectors of `sector_bytes`.
    Null {
        /// Capacity in bytes.
        bytes: u64,
        /// Bytes per sector.
        sector_bytes: u32,
    },
}

impl DataStore {
    /// Returns how many bytes of memory are allocated when the medium is created.
    pub(crate) fn preallocated(&self) -> u64 {
        if let DataStore::Preallocated(bytes) = self { *bytes } else { 0 }
    }

    /// Returns the path of the image, if the data is in one or over one.
    pub fn image(&self) -> Option<&Path> {
        match self {
            DataStore::File(path) | DataStore::DurableFile(path) | DataStore::Overlay(path) => {
                Some(path)
            }
            DataStore::Memory | DataStore::Preallocated(_) | DataStore::None => None,
        }
    }

    /// Returns whether writes reach an image.
    pub fn writes_image(&self) -> bool {
        matches!(self, DataStore::File(_) | DataStore::DurableFile(_))
    }

    /// Returns whether a flush reaches the host's stable storage.
    #[inline]
    pub fn flushes_to_host(&self) -> bool {
        matches!(self, DataStore::DurableFile(_))
    }
}

impl MediaConfig {
    /// Returns where sector data is stored.
    #[inline]
    pub fn data(&self) -> &DataStore {
        match self {
            MediaConfig::Nand(nand) => &nand.data,
            MediaConfig::Pcm(pcm) => &pcm.data,
            MediaConfig::Null { .. } => &DataStore::None,
        }
    }
}

impl NandGeometry {
    /// Returns the number of parallel units.
    pub fn total_pus(&self) -> u32 {
        self.channels * self.pus
    }

    /// Returns the sectors per page of one plane.
    pub fn sectors_per_page(&self) -> u32 {
        self.page_bytes / self.sector_bytes
    }

    /// Returns the sectors of one page over all planes of a parallel unit.
    pub fn sectors_per_stripe(&self) -> u32 {
        self.sectors_per_page() * self.planes
    }

    /// Returns the sectors per chunk.
    pub fn sectors_per_chunk(&self) -> u32 {
        self.sectors_per_stripe() * self.pages
    }

    /// Returns the data bytes of the medium.
    pub fn total_bytes(&self) -> u64 {
        u64::from(self.total_pus())
            * u64::from(self.chunks)
            * u64::from(self.pages)
            * u64::from(self.planes)
            * u64::from(self.page_bytes)
    }
}

impl NandConfig {
    /// Returns the pages programmed by one operation, per plane.
    pub fn pages_per_program(&self) -> u32 {
        if self.one_shot { self.cell.bits() } else { 1 }
    }

    /// Returns the write unit: the sectors programmed by one operation.
    pub fn write_unit(&self) -> u32 {
        self.geometry.sectors_per_stripe() * self.pages_per_program()
    }

    /// Returns the number of sectors that must be programmed after a sector before it is readable.
    pub fn mw_cunits(&self) -> u32 {
        self.paired_page_distance * self.geometry.sectors_per_stripe()
    }

    /// Returns the type of a page: 0 for the lower page.
    ///
    /// The pages of a word line are consecutive, as in FEMU. Real chips interleave word lines,
    /// which moves latencies between neighboring pages but changes no average.
    #[inline]
    pub fn page_type(&self, page_index: u32) -> usize {
        (page_index % self.cell.bits()) as usize
    }

    /// Returns the geometry that the Geometry command reports.
    pub fn host_geometry(&self) -> Geometry {
        let g = &self.geometry;
        Geometry {
            groups: g.channels,
            pus: g.pus,
            chunks: g.chunks,
            sectors: g.sectors_per_chunk(),
            sector_bytes: g.sector_bytes,
            oob_bytes: g.oob_bytes,
            ws_min: self.write_unit(),
            ws_opt: self.write_unit(),
            mw_cunits: self.mw_cunits(),
        }
    }

    /// Checks the geometry.
    ///
    /// # Errors
    /// The first value that is zero or inconsistent with the others.
    pub fn check(&self) -> Result<(), GeometryError> {
        let g = &self.geometry;
        for (what, n) in [
            ("channels", g.channels),
            ("pus", g.pus),
            ("planes", g.planes),
            ("chunks", g.chunks),
            ("pages", g.pages),
            ("page_bytes", g.page_bytes),
            ("sector_bytes", g.sector_bytes),
        ] {
            if n == 0 {
                return Err(GeometryError::Zero { what });
            }
        }
        let unfit = |what, value: u32, allowed: String| {
            Err(GeometryError::Unfit { what, value: value.into(), allowed })
        };
        if !g.sector_bytes.is_power_of_two() || !(512..=65536).contains(&g.sector_bytes) {
            return unfit(
                "sector_bytes",
                g.sector_bytes,
                "it must be a power of two from 512 to 65536".into(),
            );
        }
        if !g.page_bytes.is_multiple_of(g.sector_bytes) {
            return unfit(
                "page_bytes",
                g.page_bytes,
                format!("it must be a multiple of sector_bytes ({})", g.sector_bytes),
            );
        }
        if !g.pages.is_multiple_of(self.cell.bits()) {
            return unfit(
                "pages",
                g.pages,
                format!("it must be a multiple of the {} bits of a cell", self.cell.bits()),
            );
        }
        // The counts are not yet checked, so products saturate.
        let product = |first: u64, counts: [u32; 3]| {
            counts.iter().fold(first, |product, n| product.saturating_mul(u64::from(*n)))
        };
        let wide = product(1, [g.pages, g.planes, g.sectors_per_page()]);
        if wide > 1 << 24 {
            return Err(GeometryError::Unfit {
                what: "sectors per chunk",
                value: wide,
                allowed: "a chunk has at most 16777216".into(),
            });
        }
        let sectors = product(wide, [g.chunks, g.channels, g.pus]);
        if sectors >= MAX_SECTORS {
            return Err(GeometryError::Unfit {
                what: "sectors of the medium",
                value: sectors,
                allowed: format!("the mapping tables number at most {}", MAX_SECTORS - 1),
            });
        }
        if self.paired_page_distance >= g.pages {
            return unfit(
                "pair_distance",
                self.paired_page_distance,
                format!("a chunk has {} pages", g.pages),
            );
        }
        self.host_geometry().check()
    }
}

/// Maximum number of sectors: 32-bit tables index them, with some values reserved (about 14 TiB at 4
/// KiB).
pub const MAX_SECTORS: u64 = 0xe000_0000;
