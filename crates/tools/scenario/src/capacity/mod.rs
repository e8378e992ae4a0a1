//! [`Capacity`]: the capacity of an FTL on a NAND medium. The arithmetic is that of the FTL itself
//! ([`ftl::CapacityPlan`]), so the displayed capacity equals the served one:
//!
//! ```text
//! chunks       = PUs × chunks per PU × (1 − expected share of bad chunks) − chunks of the journal
//! lines        = floor(chunks / active PUs)
//! line sectors = active PUs × sectors per chunk
//! held lines   = reserve lines + 1 per open stream (1, one more with hot_cold, and with hot_stream) + 1 for padding
//! logical      = floor((lines − held lines) × line sectors / (1 + over-provisioning)) − map pages
//! ```
//!
//! The medium can host the FTL if `logical` is at least one line.

pub(crate) mod sizing;

use ftl::{CapacityPlan, FlashGeometry, FtlConfig, NewFtlError, Oob};
use media::{DataStore, NandConfig};
use pblk::{PblkError, ShardedConfig, ShardedError};

/// Capacity of a medium through an FTL. The [module](self) has the formulas.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Capacity {
    /// Number of parallel units that are written at the same time: chunks per line.
    pub active_pus: u32,
    /// Number of FTLs that share the medium; 1 without shards.
    pub shards: u32,
    /// Number of lines of the medium; with factory-bad chunks, the expected number.
    pub lines: u64,
    /// Sectors per line.
    pub line_sectors: u64,
    /// Write units of a line that hold its metadata, in addition to those sectors; 0 if lines have
    /// no metadata.
    pub line_metadata_units: u32,
    /// Number of reserved lines, which do not count as physical: open lines and the reserve of GC.
    pub reserved_lines: u64,
    /// Number of chunks of the FTL's journal.
    pub journal_chunks: u64,
    /// Low watermark: free sectors of all lines at which host writes stop. These sectors never hold
    /// data.
    pub low_watermark_sectors: u64,
    /// High watermark: free sectors at which GC starts, at least `low_watermark_sectors`.
    pub high_watermark_sectors: u64,
    /// Host sectors between two checkpoints of the map, over all shards. With a configured
    /// `checkpoint`, sectors of hosts and of GC.
    pub checkpoint_sectors: u64,
    /// Size in sectors of the FTL's write buffer, over all shards: as configured, or as the
    /// geometry requires.
    pub write_buffer_sectors: u64,
    /// Sectors of the map's pages, with their share of the spare space.
    pub map_sectors: u64,
    /// Logical capacity in sectors.
    pub logical_sectors: u64,
    /// Sector size in bytes.
    pub sector_bytes: u32,
}

/// Error of a medium that cannot host an FTL.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum DriveCapacityError {
    /// The FTL reports the error.
    #[error("the drive cannot host this translation layer: {0}")]
    Ftl(ftl::CapacityError),
    /// The out-of-band area is too small for the FTL's metadata.
    #[error(
        "the drive cannot host a translation layer: it has {has} out-of-band bytes per sector, and \
         the layer writes {needs}"
    )]
    OutOfBand {
        /// Available bytes.
        has: u32,
        /// Needed bytes.
        needs: u32,
    },
    /// The medium cannot be divided into shards.
    #[error("the drive cannot host this translation layer in shards: {0}")]
    Shards(String),
    /// Less than a line remains for data.
    #[error(
        "the drive cannot host {over_provisioning} over-provisioning (physical/logical − 1): of \
         {lines} lines, {reserved_lines} are held back (open ones and a reserve), which leaves \
         {logical_sectors} logical sectors, less than one line of {line_sectors}"
    )]
    BelowOneLine {
        /// Requested over-provisioning.
        over_provisioning: f64,
        /// Number of lines of the medium.
        lines: u64,
        /// Number of reserved lines.
        reserved_lines: u64,
        /// Sectors that would remain.
        logical_sectors: u64,
        /// Sectors per line.
        line_sectors: u64,
    },
}

impl DriveCapacityError {
    /// Returns the keys of the scenario that may cause the error, the most likely first.
    pub fn keys(&self) -> &'static [&'static str] {
        use ftl::CapacityError as Layer;
        match self {
            DriveCapacityError::Ftl(Layer::UnitTooWide { .. }) => {
                &["page_bytes", "planes", "one_shot", "sector_bytes"]
            }
            DriveCapacityError::Ftl(Layer::TooManyActive { .. }) => &["active_pus"],
            DriveCapacityError::Ftl(Layer::PidGains { .. }) => &["rate_limiter"],
            DriveCapacityError::Ftl(Layer::OverProvisioning { .. }) => &["over_provisioning"],
            DriveCapacityError::Ftl(Layer::P2lWithoutLineMetadata { .. }) => {
                &["p2l", "line_metadata"]
            }
            DriveCapacityError::Ftl(
                Layer::LineMetadata { .. } | Layer::LineMetadataOnDeviceL2p,
            ) => &["line_metadata"],
            DriveCapacityError::Ftl(
                Layer::VectorCopyWithPairedPages { .. }
                | Layer::VectorCopyOnDeviceL2p
                | Layer::VectorCopyInDrive,
            ) => &["vector_copy"],
            DriveCapacityError::Ftl(Layer::AtomicOnDeviceL2p) => &["atomic"],
            DriveCapacityError::Shards(_) => &["shards"],
            DriveCapacityError::OutOfBand { .. } => &["oob_bytes"],
            DriveCapacityError::Ftl(Layer::MapCacheWithoutSpace { .. }) => {
                &["over_provisioning", "l2p_cache"]
            }
            DriveCapacityError::Ftl(
                Layer::MapCacheTooSmall { .. }
                | Layer::MapCacheOnDeviceL2p
                | Layer::MapCacheWithoutData,
            ) => &["l2p_cache"],
            DriveCapacityError::Ftl(Layer::NamedWith { .. }) => {
                &["page_bytes", "planes", "l2p_cache", "atomic", "p2l"]
            }
            DriveCapacityError::Ftl(_) | DriveCapacityError::BelowOneLine { .. } => {
                &["over_provisioning", "gc_low_watermark", "chunks", "active_pus"]
            }
        }
    }

    /// Returns the remedy.
    pub fn help(&self) -> String {
        use ftl::CapacityError as Layer;
        match self {
            DriveCapacityError::Ftl(Layer::UnitTooWide { .. }) => {
                "allowed: at most 64 sectors per program: smaller pages, fewer planes, or larger \
                 sectors"
                    .into()
            }
            DriveCapacityError::Ftl(Layer::TooManyActive { pus, .. }) => {
                format!("allowed: 1 to {pus}, or 0 for all")
            }
            DriveCapacityError::Ftl(Layer::PidGains { .. }) => {
                format!("allowed: gains from 0 to {}", ftl::RateLimiterKind::GAIN_MAX)
            }
            DriveCapacityError::Ftl(Layer::OverProvisioning { .. }) => {
                "allowed: numbers from 0 to 100".into()
            }
            DriveCapacityError::Ftl(Layer::P2lWithoutLineMetadata { .. }) => {
                "p2l = \"memory\", or line_metadata = true and lines of more write units: \
                 more active_pus or larger chunks"
                    .into()
            }
            DriveCapacityError::Ftl(Layer::LineMetadata { .. }) => {
                "allowed: false; \"auto\"; or true and lines of more write units, with more \
                 active_pus or larger chunks"
                    .into()
            }
            DriveCapacityError::Ftl(Layer::LineMetadataOnDeviceL2p) => {
                "allowed: false, or \"auto\", which is nowhere there".into()
            }
            DriveCapacityError::Ftl(
                Layer::VectorCopyWithPairedPages { .. }
                | Layer::VectorCopyOnDeviceL2p
                | Layer::VectorCopyInDrive,
            ) => {
                "allowed: false; or true for a pblk on a drive without paired pages and without a \
                  map of its own"
                    .into()
            }
            DriveCapacityError::Ftl(Layer::AtomicOnDeviceL2p) => "allowed: atomic = false".into(),
            DriveCapacityError::Shards(_) => {
                "allowed: fewer shards, or more and larger chunks".into()
            }
            DriveCapacityError::OutOfBand { needs, .. } => {
                format!("allowed: oob_bytes of {needs} and more")
            }
            DriveCapacityError::Ftl(Layer::MapCacheTooSmall { sectors_min: least, .. }) => format!(
                "allowed: {least} sectors and more, or 0 for all of the map; fewer active_pus and a \
                 smaller buffer need less"
            ),
            DriveCapacityError::Ftl(Layer::MapCacheWithoutSpace { .. }) => {
                "give it more over-provisioning, or 0 as l2p_cache: all of the map in memory".into()
            }
            DriveCapacityError::Ftl(Layer::MapCacheOnDeviceL2p | Layer::MapCacheWithoutData) => {
                "allowed: 0, all of the map in memory".into()
            }
            DriveCapacityError::Ftl(Layer::NamedWith { .. }) => {
                "docs/rules.md has what drives with names need; or name a program without names"
                    .into()
            }
            DriveCapacityError::Ftl(_) | DriveCapacityError::BelowOneLine { .. } => {
                "give it less over-provisioning, a smaller gc_low_watermark, more chunks, or fewer \
                 active_pus, which make more and smaller lines"
                    .into()
            }
        }
    }
}

impl Capacity {
    /// Returns the capacity of `nand` under `ftl`. [`NandConfig::check`] must have accepted the
    /// medium.
    ///
    /// # Errors
    /// [`DriveCapacityError`] if the medium cannot host the FTL.
    pub fn new(nand: &NandConfig, ftl: &FtlConfig) -> Result<Capacity, DriveCapacityError> {
        let has = nand.geometry.oob_bytes;
        let needs = Oob::BYTES as u32;
        if has < needs {
            return Err(DriveCapacityError::OutOfBand { has, needs });
        }
        if ftl.map_cache_sectors > 0 && nand.data == DataStore::None {
            return Err(DriveCapacityError::Ftl(ftl::CapacityError::MapCacheWithoutData));
        }
        let shape = FlashGeometry::from_geometry(&nand.host_geometry());
        let good = f64::from(shape.total_chunks()) * (1.0 - nand.errors.factory_bad);
        let layout = CapacityPlan::new(&shape, ftl, shape.total_chunks(), good as u32)
            .map_err(DriveCapacityError::Ftl)?;
        let (stop, start) = layout.limiter_watermarks(ftl);
        let capacity = Capacity {
            low_watermark_sectors: stop,
            high_watermark_sectors: start,
            checkpoint_sectors: layout.checkpoint_sectors,
            write_buffer_sectors: u64::from(layout.host_buffer_units) * u64::from(shape.ws_opt),
            active_pus: layout.active_pus,
            shards: 1,
            lines: layout.lines.into(),
            line_sectors: layout.line_sectors.into(),
            line_metadata_units: layout.line_metadata_units,
            reserved_lines: layout.reserved_lines.into(),
            journal_chunks: layout.journal.chunks.into(),
            map_sectors: layout.map_pages.into(),
            logical_sectors: layout.logical.into(),
            sector_bytes: shape.sector_bytes,
        };
        if capacity.logical_sectors < capacity.line_sectors {
            return Err(DriveCapacityError::BelowOneLine {
                over_provisioning: ftl.over_provisioning,
                lines: capacity.lines,
                reserved_lines: capacity.reserved_lines,
                logical_sectors: capacity.logical_sectors,
                line_sectors: capacity.line_sectors,
            });
        }
        Ok(capacity)
    }

    /// Returns the capacity of `nand` under pblk with `shards` shards, each with the configuration
    /// `ftl`. Lines and reserved lines are totals over all shards.
    ///
    /// # Errors
    /// As [`new`](Capacity::new), and if the drive cannot be divided into so many shards.
    pub fn sharded(
        nand: &NandConfig,
        ftl: &FtlConfig,
        shards: u32,
    ) -> Result<Capacity, DriveCapacityError> {
        let config = ShardedConfig { ftl: *ftl, ..ShardedConfig::new(shards) };
        let geometry = nand.host_geometry();
        let has = nand.geometry.oob_bytes;
        let needs = Oob::BYTES as u32;
        if has < needs {
            return Err(DriveCapacityError::OutOfBand { has, needs });
        }
        if ftl.map_cache_sectors > 0 && nand.data == DataStore::None {
            return Err(DriveCapacityError::Ftl(ftl::CapacityError::MapCacheWithoutData));
        }
        let laid_out = config.layouts(&geometry, nand.errors.factory_bad);
        let (layouts, sectors) = laid_out.map_err(|e| match e {
            ShardedError::Shard {
                source: PblkError::Ftl(NewFtlError::Capacity(source)), ..
            } => DriveCapacityError::Ftl(source),
            other => DriveCapacityError::Shards(other.to_string()),
        })?;
        let shape = FlashGeometry::from_geometry(&geometry);
        let sum =
            |of: fn(&CapacityPlan) -> u32| layouts.iter().map(|l| u64::from(of(l))).sum::<u64>();
        let of_one = |of: fn(&CapacityPlan) -> u32| layouts.first().map_or(0, of);
        let levels = layouts.iter().map(|l| l.limiter_watermarks(ftl));
        let (stop, start) = levels.fold((0, 0), |sum, l| (sum.0 + l.0, sum.1 + l.1));
        Ok(Capacity {
            low_watermark_sectors: stop,
            high_watermark_sectors: start,
            checkpoint_sectors: layouts.iter().map(|l| l.checkpoint_sectors).sum(),
            write_buffer_sectors: sum(|l| l.host_buffer_units) * u64::from(shape.ws_opt),
            active_pus: of_one(|l| l.active_pus),
            shards,
            lines: sum(|l| l.lines),
            line_sectors: of_one(|l| l.line_sectors).into(),
            line_metadata_units: of_one(|l| l.line_metadata_units),
            reserved_lines: sum(|l| l.reserved_lines),
            journal_chunks: sum(|l| l.journal.chunks),
            map_sectors: sum(|l| l.map_pages),
            logical_sectors: sectors,
            sector_bytes: geometry.sector_bytes,
        })
    }

    /// Returns the number of parallel units that host data is written to at the same time, on a
    /// drive with `pus` units.
    pub fn written_pus(&self, pus: u32) -> u32 {
        // Shards may share parallel units.
        (self.active_pus * self.shards).min(pus)
    }

    /// Returns the number of sectors that count as physical for over-provisioning.
    pub fn physical_sectors(&self) -> u64 {
        self.lines.saturating_sub(self.reserved_lines) * self.line_sectors
    }

    /// Returns the logical capacity in bytes.
    pub fn logical_bytes(&self) -> u64 {
        self.logical_sectors * u64::from(self.sector_bytes)
    }

    /// Returns the resulting over-provisioning: physical sectors over logical and map sectors,
    /// minus 1. Reserved lines do not count as physical.
    pub fn over_provisioning(&self) -> f64 {
        let mapped = self.logical_sectors + self.map_sectors;
        self.physical_sectors() as f64 / mapped.max(1) as f64 - 1.0
    }
}
