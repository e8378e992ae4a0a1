//! [`CapacityPlan`]: the capacities and buffers that follow from the geometry of the flash;
//! [`MapPages`]: the pages of the map.

use collections::FastDivisor;
use nvme::FlashGeometry;
use serde::{Deserialize, Serialize};

use crate::durability::journal::{JournalConfig, JournalError, chunks_needed, frame_payload_bytes};
use crate::durability::snapshot::Snapshot;
use crate::ids::{Lba, LbaRun, MapPageId, ToU32};
use crate::mapping::l2p::SLOTS_MAX;
use crate::mapping::p2l::LOGICAL_SECTORS_MAX;
use crate::mapping::translation_page::TranslationPage;
use crate::space::line_meta;
use crate::{FtlConfig, LineMetadata, P2lLocation, RateLimiterKind};

/// Identifies the FTL in its journal, together with [`FtlConfig::instance_id`].
const OWNER: u32 = 0x006c_7466;
/// Owner of the journal of an FTL whose drive keeps the map.
const OWNER_DEVICE_L2P: u32 = 0x6d6c_7466;

/// Flushes of changes of the owner's state that fit the journal between two snapshots.
const OWNER_FLUSHES: u64 = 16;

/// Division of logical sectors into pages of the map.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct MapPages {
    by_page: FastDivisor,
}

impl MapPages {
    /// Creates the division for flash of this geometry: a page fills a sector.
    pub(crate) fn new(geometry: &FlashGeometry) -> MapPages {
        MapPages { by_page: FastDivisor::new(TranslationPage::entries_per_page(geometry)) }
    }

    /// Returns the number of sectors of a page; the last page may have fewer.
    #[inline]
    pub(crate) fn sectors_per_page(self) -> u32 {
        self.by_page.get()
    }

    /// Returns the page of a logical sector.
    #[inline]
    pub(crate) fn page_of(self, lba: Lba) -> MapPageId {
        MapPageId(self.by_page.divide(lba.get()))
    }

    /// Returns the first logical sector of a page.
    #[inline]
    pub(crate) fn first_sector_of(self, page: MapPageId) -> Lba {
        Lba(page.get() * self.sectors_per_page())
    }

    /// Returns the host's logical sectors of a page; the host has `logical` sectors.
    #[inline]
    pub(crate) fn sectors_of(self, page: MapPageId, logical: u32) -> LbaRun {
        let first = self.first_sector_of(page);
        LbaRun { first, sectors: self.sectors_per_page().min(logical - first.get()) }
    }
}

/// Reasons why the flash cannot host an FTL with this configuration.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum CapacityError {
    /// The write unit is too wide for a vector command.
    #[error("a write unit of {unit} sectors does not fit a vector command of 64 addresses")]
    UnitTooWide {
        /// Sectors.
        unit: u32,
    },
    /// More active parallel units than there are.
    #[error("active_pus is {active}, but the drive has {pus} parallel units")]
    TooManyActive {
        /// Asked for.
        active: u32,
        /// Parallel units of the drive.
        pus: u32,
    },
    /// The over-provisioning is not a ratio.
    #[error("over_provisioning is {value}, but it must be from 0 to 100 (physical / logical - 1)")]
    OverProvisioning {
        /// Asked for.
        value: f64,
    },
    /// A gain of the rate limiter's controller is out of range.
    #[error(
        "the gains of the rate limiter are {gains:?} (kp, ki, kd), but each must be from 0 to {}",
        crate::RateLimiterKind::GAIN_MAX
    )]
    PidGains {
        /// Asked for.
        gains: [f64; 3],
    },
    /// The journal does not fit.
    #[error("the layer's journal: {0}")]
    Journal(JournalError),
    /// Lines must have metadata, and it does not fit.
    #[error(
        "line_metadata is on, but {}: only longer lines (more active_pus, larger chunks) or larger \
         write units have room for it",
        if first_bytes > unit_bytes {
            format!("the first metadata, {first_bytes} bytes, does not fit a write unit of {unit_bytes}")
        } else {
            format!("it takes {units} of a line's {of} write units, more than one part in 16")
        }
    )]
    LineMetadata {
        /// Bytes of the header.
        first_bytes: u64,
        /// Bytes of a write unit.
        unit_bytes: u64,
        /// Write units of header and footer.
        units: u64,
        /// Write units of a line.
        of: u64,
    },
    /// Line metadata is required, but would never be read.
    #[error("line_metadata is on, but this drive keeps the map, and its lines have no metadata")]
    LineMetadataOnDeviceL2p,
    /// Garbage collection is to copy inside of a drive with paired pages.
    #[error(
        "vector_copy is on, but the drive has paired pages: a copied sector cannot be read before the \
         {cunits} sectors behind it are programmed, and nothing else has its data"
    )]
    VectorCopyWithPairedPages {
        /// Sectors behind a sector that must be programmed before it can be read.
        cunits: u32,
    },
    /// Garbage collection is to copy inside of a drive that keeps the map, where the loss of a sector
    /// is recorded before its copy is written.
    #[error("vector_copy is on, but this drive keeps the map")]
    VectorCopyOnDeviceL2p,
    /// Garbage collection of a drive's own FTL is to copy by vector commands.
    #[error(
        "vector_copy is on, but a drive's own FTL gives itself no commands: it moves sectors anyway"
    )]
    VectorCopyInDrive,
    /// Writes are to be atomic on a drive that keeps the map, which takes the sectors of a unit one by
    /// one.
    #[error("atomic is on, but this drive keeps the map")]
    AtomicOnDeviceL2p,
    /// The stream of hot data is asked for on a drive that keeps the map, whose host has one stream.
    #[error("hot_stream is on, but this drive keeps the map")]
    HotStreamOnDeviceL2p,
    /// The journal is to keep a state of the owner, on a drive that keeps the map.
    #[error(
        "owner_bytes is for the journal of a layer that has its own map, but this drive keeps the map"
    )]
    OwnerStateOnDeviceL2p,
    /// The reverse map is to be in the metadata of lines, and they have none.
    #[error(
        "reverse_map is \"media\", but lines have no metadata: {}",
        if *off { "line_metadata is off, or the drive keeps the map" } else {
            "it does not fit lines of this size"
        }
    )]
    P2lWithoutLineMetadata {
        /// Whether line metadata is off.
        off: bool,
    },
    /// The write buffer may need more pages of the map at once than fit the memory for it.
    #[error(
        "map_cache_sectors is {sectors}, but the write buffer and garbage collection of this geometry \
         may need {sectors_min} pages of the map at the same time: make it {sectors_min} or more, or 0 for all of \
         the map in memory (fewer active_pus and gc_window_units need less)"
    )]
    MapCacheTooSmall {
        /// Asked for.
        sectors: u32,
        /// The minimum.
        sectors_min: u32,
    },
    /// No space for the map's pages, which are written far more often than with all of the map in
    /// memory.
    #[error(
        "a map larger than its memory (map_cache_sectors) needs {needed} spare sectors for its pages \
         to be written, but over_provisioning leaves {spare}"
    )]
    MapCacheWithoutSpace {
        /// Needed spare sectors.
        needed: u64,
        /// Spare sectors of the drive.
        spare: u64,
    },
    /// The drive keeps the map.
    #[error("map_cache_sectors is for a map of the layer's own, but this drive keeps the map")]
    MapCacheOnDeviceL2p,
    /// Pages cannot be read back from a flash that keeps nothing.
    #[error("map_cache_sectors needs a drive that keeps what is written")]
    MapCacheWithoutData,
    /// The sectors are to have names, which another setting excludes.
    #[error("sectors that have names exclude {setting}")]
    NamedWith {
        /// The other setting.
        setting: &'static str,
    },
    /// The tables have no numbers for so many sectors.
    #[error(
        "{what} are {value}, but the tables of the map number {max}: {}",
        if *what == LOGICAL_SECTORS { "more over_provisioning makes them fewer" } else { "make it smaller" }
    )]
    TooManySectors {
        /// Logical sectors, or slots of the write buffer.
        what: &'static str,
        /// Their number.
        value: u64,
        /// The maximum.
        max: u32,
    },
    /// No sectors remain for data.
    #[error(
        "of {chunks} good chunks {journal} are for the journal, the others make {lines} lines of \
         {active} chunks; {reserved_lines} lines are held in reserve (open lines and room for garbage \
         collection), so that nothing is left at over_provisioning {over_provisioning} (physical / \
         logical - 1)"
    )]
    TooSmall {
        /// Good chunks.
        chunks: u32,
        /// Chunks reserved for the journal.
        journal: u32,
        /// Lines of these chunks.
        lines: u32,
        /// Chunks per line.
        active: u32,
        /// Lines held in reserve.
        reserved_lines: u32,
        /// Asked for.
        over_provisioning: f64,
    },
}

/// The journal of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JournalPlan {
    /// Chunks reserved for it.
    pub chunks: u32,
    /// Its owner and sizes.
    pub config: JournalConfig,
}

/// The map cache: memory for a part of the map.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MapCachePlan {
    /// Maximum number of resident translation pages, without the scratch frame; 0 if the whole map
    /// is in memory.
    pub frames: u32,
    /// Spare sectors that are reserved for writing map pages.
    pub write_reserve: u32,
}

/// Capacities that follow from a geometry and a configuration.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct CapacityPlan {
    /// Chunks that count towards capacity, those of the journal included.
    pub usable_chunks: u32,
    /// The journal.
    pub journal: JournalPlan,
    /// Sectors that are written between the beginnings of two checkpoints.
    pub checkpoint_sectors: u64,
    /// Parallel units written at the same time: chunks per line.
    pub active_pus: u32,
    /// Lines that the good chunks make.
    pub lines: u32,
    /// Reserved lines: open ones, and those that only garbage collection may take.
    pub reserved_lines: u32,
    /// Sectors of a full line that hold data.
    pub line_sectors: u32,
    /// Write units of a full line for its header and footer, besides its data; 0 if lines have
    /// none.
    pub line_metadata_units: u32,
    /// Sectors held for padding and metadata.
    pub padding_reserve: u32,
    /// Sectors beyond what can be mapped and what is held: the over-provisioning.
    pub op_sectors: u32,
    /// Capacity of the host in sectors.
    pub logical: u32,
    /// Sectors that the host can address: all of `logical`, or none if they have names.
    pub addressable: u32,
    /// Map pages, as logical sectors behind the host's.
    pub map_pages: u32,
    /// Write units of each ring of the host: one, and another with
    /// [`hot_stream`](FtlConfig::hot_stream).
    pub host_buffer_units: u32,
    /// Write units of garbage collection's ring.
    pub gc_buffer_units: u32,
    /// The map cache.
    pub map_cache: MapCachePlan,
    /// Bytes of the state that the journal keeps for the owner of the FTL.
    pub owner_bytes: u32,
}

/// The logical sectors in [`CapacityError::TooManySectors`].
const LOGICAL_SECTORS: &str = "the logical sectors and translation pages";

impl CapacityPlan {
    /// Returns all translation pages, in order.
    pub(crate) fn pages(&self) -> impl DoubleEndedIterator<Item = MapPageId> + Clone + use<> {
        MapPageId(0).run(self.map_pages)
    }

    /// Returns the first logical sector behind the host's.
    #[inline]
    pub(crate) fn host_end(&self) -> Lba {
        Lba(self.logical)
    }

    /// Returns the first number that is no logical sector: those of the translation pages end here.
    #[inline]
    pub(crate) fn lba_end(&self) -> Lba {
        Lba(self.logical + self.map_pages)
    }

    /// Returns the logical sector of a translation page: pages are behind the host's sectors.
    #[inline]
    pub(crate) fn page_sector(&self, page: MapPageId) -> Lba {
        Lba(self.logical + page.get())
    }

    /// Returns the translation page of a logical sector behind the host's.
    #[inline]
    pub(crate) fn page_at_sector(&self, lba: Lba) -> Option<MapPageId> {
        lba.get().checked_sub(self.logical).map(MapPageId)
    }

    /// Returns the sizes that the FTL needs of its journal.
    pub(crate) fn journal_config(&self, drive_map: bool) -> JournalConfig {
        let JournalConfig { owner, .. } = self.journal.config;
        let owner = if drive_map { owner ^ OWNER ^ OWNER_DEVICE_L2P } else { owner };
        JournalConfig { owner, ..self.journal.config }
    }

    /// Returns the free sectors at which the [rate limiter](crate::RateLimiter) stops the host, and
    /// from which on it does not limit the host and garbage collection stops. In steady state the
    /// free space is in between.
    pub fn limiter_watermarks(&self, config: &FtlConfig) -> (u64, u64) {
        let line = u64::from(self.line_sectors);
        // Free sectors of open lines are counted as free; up to a line of garbage collection's
        // stream is not available to the host.
        // Nor can a write of one stream of the host use the open line of the other stream.
        let other_streams = u32::from(config.hot_cold) + u32::from(config.hot_stream);
        let low = u64::from(config.gc_low_watermark_lines.max(1) + other_streams) * line
            + u64::from(self.padding_reserve)
            + u64::from(self.map_cache.write_reserve);
        // Garbage collection must be able to reach where it stops, with every sector mapped.
        let zone = u64::from(config.gc_high_watermark_lines.max(1)) * line;
        (low, low + zone.min(u64::from(self.op_sectors - self.map_cache.write_reserve) / 2))
    }

    /// Sectors that garbage collection leaves for the map pages of trims: those of all pages, but no more
    /// than a quarter of what is held for padding.
    pub(crate) fn page_reserve(&self, drive_map: bool) -> u32 {
        if drive_map { 0 } else { self.map_pages.min(self.padding_reserve / 4) }
    }

    /// Computes the plan for `counted` usable chunks of the `owned` ones.
    ///
    /// The journal's chunks are set aside; the others make L lines. H of these are reserved, and
    /// with N sectors per line `logical = (L - H) * N / (1 + over_provisioning)`, less the map
    /// pages.
    ///
    /// # Errors
    ///
    /// [`CapacityError`].
    pub fn new(
        shape: &FlashGeometry,
        config: &FtlConfig,
        owned: u32,
        counted: u32,
    ) -> Result<CapacityPlan, CapacityError> {
        if shape.ws_opt > 64 {
            return Err(CapacityError::UnitTooWide { unit: shape.ws_opt });
        }
        let is_named = config.addressing.is_named();
        if is_named && let Some(setting) = config.conflict_with_names(shape.ws_opt) {
            return Err(CapacityError::NamedWith { setting });
        }
        if config.vector_copy && shape.mw_cunits > 0 {
            return Err(CapacityError::VectorCopyWithPairedPages { cunits: shape.mw_cunits });
        }
        if config.active_pus > shape.pus {
            return Err(CapacityError::TooManyActive { active: config.active_pus, pus: shape.pus });
        }
        if !(0.0..=100.0).contains(&config.over_provisioning) {
            return Err(CapacityError::OverProvisioning { value: config.over_provisioning });
        }
        if let RateLimiterKind::Pid { kp, ki, kd } = config.rate_limiter {
            let gains = [kp, ki, kd];
            if !gains.iter().all(|g| (0.0..=RateLimiterKind::GAIN_MAX).contains(g)) {
                return Err(CapacityError::PidGains { gains });
            }
        }
        let active = if config.active_pus == 0 { shape.pus } else { config.active_pus };
        // The size of the journal follows from the owned chunks alone, so that its location does
        // not depend on bad chunks.
        let page = u64::from(TranslationPage::entries_per_page(shape));
        let all = u64::from(owned) * u64::from(shape.sectors_per_chunk);
        let owner_bytes = config.owner_bytes;
        let snapshot_bytes = Snapshot::bytes_max(all.div_ceil(page).to_u32(), owned, owner_bytes);
        // A snapshot has all lines and pages. On large drives, the records between two snapshots
        // have as many frames as a snapshot, so that an opened line costs the same on all of them.
        let snapshot_frames = snapshot_bytes.div_ceil(frame_payload_bytes(shape).max(1));
        let opened = u64::from(owned / active / 4).clamp(8, snapshot_frames.max(256));
        let mut record_bytes = opened * (frame_payload_bytes(shape) + 4 * u64::from(active));
        if owner_bytes > 0 {
            // Each flush of changes of the state fills up a frame.
            record_bytes += OWNER_FLUSHES * frame_payload_bytes(shape) + u64::from(owner_bytes);
        }
        let owner = OWNER ^ config.instance_id;
        let wanted = JournalConfig { owner, snapshot_bytes, record_bytes };
        let journal = chunks_needed(shape, &wanted).map_err(CapacityError::Journal)?;
        let lines = counted.saturating_sub(journal) / active;
        // One partly filled line per stream; and space for padding, metadata, and four power cuts
        // in a row: each tears one unit and pads a pair on every active parallel unit per stream.
        let streams = 1 + u32::from(config.hot_cold) + u32::from(config.hot_stream);
        let line_meta = match is_named {
            false => line_meta::metadata_units(config.line_metadata, shape, active)?,
            true => 0,
        };
        if line_meta == 0 && config.p2l_location == P2lLocation::Media {
            let off = config.line_metadata == LineMetadata::Off;
            return Err(CapacityError::P2lWithoutLineMetadata { off });
        }
        let line_sectors = active * shape.sectors_per_chunk - line_meta * shape.ws_opt;
        let slack = 4 * streams * active * (shape.pair_units() + 2) * shape.ws_opt;
        let slack_lines = slack.div_ceil(active * shape.sectors_per_chunk);
        let held = config.gc_low_watermark_lines.max(1) + streams + slack_lines;
        let physical = u64::from(lines.saturating_sub(held)) * u64::from(line_sectors);
        let total = (physical as f64 / (1.0 + config.over_provisioning)) as u64;
        let map_pages = total.div_ceil(page + 1);
        let meta = if is_named { 0 } else { map_pages };
        let logical = total - meta.min(total);
        if logical == 0 {
            return Err(CapacityError::TooSmall {
                chunks: counted,
                journal,
                lines,
                active,
                reserved_lines: held,
                over_provisioning: config.over_provisioning,
            });
        }
        let number = |what, value, max| match value > u64::from(max) {
            true => Err(CapacityError::TooManySectors { what, value, max }),
            false => Ok(()),
        };
        number(LOGICAL_SECTORS, total, LOGICAL_SECTORS_MAX)?;
        // Per active parallel unit: the units that wait for their paired page, two programs in
        // flight, and one unit that is being filled.
        let least = active * (shape.pair_units() + 3);
        let asked_units = config.write_buffer_sectors.div_ceil(shape.ws_opt);
        let window = if config.gc_queue_depth_units == 0 {
            2 * shape.pus
        } else {
            config.gc_queue_depth_units
        };
        // Pages are at most one part in 64 of what is written.
        let auto = (64 * map_pages).max(4 * u64::from(line_sectors));
        let (user_units, gc_units) = (least.max(asked_units), least + window);
        let host_rings = 1 + u32::from(config.hot_stream);
        let slots = u64::from(host_rings * user_units + gc_units) * u64::from(shape.ws_opt);
        // The others are for metadata.
        number("slots of the write buffer", slots, SLOTS_MAX - (1 << 24))?;
        let spare = physical - total;
        let map_cache = match config.map_cache_sectors {
            0 => MapCachePlan::default(),
            sectors => {
                // An atomic write pins two pages at a time.
                let pinned = slots + u64::from(config.atomic_writes);
                CapacityPlan::map_cache(sectors, meta, spare, pinned, line_sectors.into())?
            }
        };
        let asked = u64::from(config.checkpoint_sectors);
        let checkpoint_sectors = if asked == 0 { auto } else { asked };
        Ok(CapacityPlan {
            usable_chunks: counted,
            journal: JournalPlan { chunks: journal, config: wanted },
            checkpoint_sectors,
            active_pus: active,
            lines,
            reserved_lines: held,
            line_sectors,
            line_metadata_units: line_meta,
            padding_reserve: slack,
            op_sectors: spare.to_u32(),
            logical: logical.to_u32(),
            addressable: if is_named { 0 } else { logical.to_u32() },
            map_pages: meta.to_u32(),
            host_buffer_units: user_units,
            gc_buffer_units: gc_units,
            map_cache,
            owner_bytes,
        })
    }

    /// Returns the frames of a map of `meta` pages, and the sectors reserved for writing the pages.
    ///
    /// Every slot of the write buffer may pin a page of its own. So may the next sectors that
    /// garbage collection looks at, but within the free slots of its ring. With the first page of an
    /// atomic write that spans two, these are `pinned`. Beyond that there is one page for a trim or
    /// a write, one in flight, and one for lookups, so that every waiter for a page gets it after
    /// earlier ones have been served. All frames may be dirty, and relocations may change
    /// every page once before the space they gain is free: that takes two writes of the map, and
    /// the line that its pages are written to.
    fn map_cache(
        sectors: u32,
        meta: u64,
        spare: u64,
        pinned: u64,
        line_sectors: u64,
    ) -> Result<MapCachePlan, CapacityError> {
        let least = (pinned + 3).min(meta + 1).to_u32();
        if sectors < least {
            return Err(CapacityError::MapCacheTooSmall { sectors, sectors_min: least });
        }
        let frames = (u64::from(sectors) - 1).min(meta);
        if frames == meta {
            return Ok(MapCachePlan { frames: frames.to_u32(), write_reserve: 0 });
        }
        let spared = 2 * meta + line_sectors;
        let needed = 2 * spared;
        if spare < needed {
            return Err(CapacityError::MapCacheWithoutSpace { needed, spare });
        }
        Ok(MapCachePlan { frames: frames.to_u32(), write_reserve: spared.to_u32() })
    }
}

#[cfg(test)]
mod tests {
    use nvme::Geometry;

    use super::*;

    pub(crate) fn geometry() -> Geometry {
        Geometry {
            groups: 4,
            pus: 2,
            chunks: 32,
            sectors: 64,
            sector_bytes: 4096,
            oob_bytes: 16,
            ws_min: 4,
            ws_opt: 4,
            mw_cunits: 8,
        }
    }

    #[test]
    fn a_plan_has_as_many_sectors_as_the_tables_number() {
        // 256 chunks of 2^16 sectors on each of 128 parallel units: 2^31 sectors, 8 TiB.
        let wide = Geometry { groups: 16, pus: 8, chunks: 256, sectors: 1 << 16, ..geometry() };
        let plan = |chunks: u32, config: FtlConfig| {
            let shape = FlashGeometry::from_geometry(&Geometry { chunks, ..wide });
            CapacityPlan::new(&shape, &config, shape.total_chunks(), shape.total_chunks())
        };
        let with = |over_provisioning| FtlConfig { over_provisioning, ..FtlConfig::default() };
        let eight = plan(256, with(0.07)).unwrap();
        assert!(u64::from(eight.logical) * 4096 > 8_000_000_000_000, "{}", eight.logical);
        let twelve = plan(384, with(0.6)).unwrap();
        assert!(twelve.logical + twelve.map_pages <= LOGICAL_SECTORS_MAX);
        let refused = plan(384, with(0.07)).unwrap_err();
        let CapacityError::TooManySectors { value, max, .. } = refused else {
            panic!("{refused}");
        };
        assert!(value > u64::from(max) && refused.to_string().contains("more over_provisioning"));
        let config = FtlConfig { write_buffer_sectors: 1 << 29, ..with(0.07) };
        let refused = plan(256, config).unwrap_err();
        assert!(refused.to_string().contains("slots of the write buffer"), "{refused}");
    }

    #[test]
    fn capacity_follows_the_convention() {
        let shape = FlashGeometry::from_geometry(&geometry());
        let plain = FtlConfig {
            over_provisioning: 0.25,
            hot_cold: false,
            line_metadata: LineMetadata::Off,
            ..FtlConfig::default()
        };
        let config = FtlConfig { line_metadata: LineMetadata::On, ..plain };
        let all = shape.total_chunks();
        let layout = CapacityPlan::new(&shape, &config, all, all).unwrap();
        // 32 lines of 8 chunks of 64 sectors, less one for the journal; 2 in reserve, 1 open, 1 for
        // padding. Two write units of each are metadata.
        assert!((1..=8).contains(&layout.journal.chunks), "{}", layout.journal.chunks);
        assert_eq!((layout.lines, layout.reserved_lines, layout.line_sectors), (31, 4, 504));
        assert_eq!(layout.line_metadata_units, 2);
        assert_eq!(layout.logical + layout.map_pages, (27.0 * 504.0 / 1.25) as u32);
        assert_eq!(layout.map_pages, 12);
        let layout = CapacityPlan::new(&shape, &plain, all, all).unwrap();
        assert_eq!((layout.lines, layout.line_sectors, layout.line_metadata_units), (31, 512, 0));
    }

    #[test]
    fn what_cannot_be_hosted_says_why() {
        let shape = FlashGeometry::from_geometry(&geometry());
        let config = FtlConfig::default();
        assert!(matches!(
            CapacityPlan::new(&shape, &config, 256, 8 * 7),
            Err(CapacityError::TooSmall { lines: 6, reserved_lines: 6, .. })
        ));
        let active = FtlConfig { active_pus: 9, ..config };
        assert_eq!(
            CapacityPlan::new(&shape, &active, 256, 256),
            Err(CapacityError::TooManyActive { active: 9, pus: 8 })
        );
        for value in [-0.1, f64::NAN, f64::INFINITY] {
            let config = FtlConfig { over_provisioning: value, ..config };
            assert!(matches!(
                CapacityPlan::new(&shape, &config, 256, 256),
                Err(CapacityError::OverProvisioning { .. })
            ));
            let pid = RateLimiterKind::Pid { kp: 0.6, ki: 0.1, kd: value };
            let config = FtlConfig { rate_limiter: pid, ..config };
            assert!(matches!(
                CapacityPlan::new(
                    &shape,
                    &FtlConfig { over_provisioning: 0.11, ..config },
                    256,
                    256
                ),
                Err(CapacityError::PidGains { .. })
            ));
        }
    }
}
