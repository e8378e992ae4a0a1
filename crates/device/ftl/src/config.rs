//! [`FtlConfig`]: the configuration of an FTL.

use serde::{Deserialize, Serialize};

use crate::CapacityError;

/// The choice of the next victim among the closed lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum VictimPolicyKind {
    /// The line with the fewest valid sectors [LightNVM17 §4.2.4].
    Greedy,
    /// The line with the best ratio of space gained times age to copying cost.
    CostBenefit,
    /// The line that was closed longest ago.
    Fifo,
    /// The line with the least cost, from its share of valid sectors and its wear [Thesis15 ch. 6
    /// §4.3].
    CostWear,
}

/// Location of the P2L: the logical sector written at each physical one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum P2lLocation {
    /// In memory: four bytes per physical sector.
    Memory,
    /// On the media, in the footers of lines; in memory only for lines that are open or being
    /// reclaimed. Garbage collection reads a victim's P2L before it relocates anything.
    Media,
}

/// Whether lines have metadata in their first and last write units [LightNVM17 §4.2.2].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum LineMetadata {
    /// No line has metadata.
    Off,
    /// All lines have metadata if it fits: the header into one write unit, header and footer into
    /// one part in 32 of the line. None on a drive that keeps the map, where they would not be read.
    /// The choice follows from the geometry and `active_pus` alone, and is in
    /// [`CapacityPlan::line_metadata_units`](crate::CapacityPlan::line_metadata_units).
    Auto,
    /// All lines have metadata, if header and footer fit into one part in 16 of the line. Otherwise
    /// the configuration is rejected, as on a drive that keeps the map.
    On,
}

/// Rule for the host's share of the write bandwidth, depending on the free space [LightNVM17
/// §4.2.4].
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub enum RateLimiterKind {
    /// In proportion to the free space between the reserve and the start of garbage collection.
    Proportional,
    /// By a controller that holds the free space in the middle between the two watermarks. Its
    /// output is the host's share. Its input is the free space, and its time the amount written,
    /// both relative to the distance of the watermarks. Gains from 0 to
    /// [`RateLimiterKind::GAIN_MAX`].
    Pid {
        /// Gain of the error.
        kp: f64,
        /// Gain of the error, integrated over the sectors written.
        ki: f64,
        /// Gain of the error's change.
        kd: f64,
    },
}

impl RateLimiterKind {
    /// Gains that do not oscillate. With a share `v` of victims valid, free space follows the
    /// host's share with gain `1 / v` per sector written, so that the damping is `kp / (2 sqrt(ki
    /// v))`, at least 1.6. The proportional gain equals that of
    /// [`Proportional`](RateLimiterKind::Proportional), so that host writes are delayed no more
    /// abruptly.
    pub const PID: RateLimiterKind = RateLimiterKind::Pid { kp: 1.0, ki: 0.1, kd: 0.05 };

    /// Maximum of a gain.
    pub const GAIN_MAX: f64 = 100.0;
}

/// Host reads that garbage collection is deferred for, while free space is not critical.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum GcReadPriority {
    /// Garbage collection is not deferred.
    Off,
    /// Reads on the parallel unit that an operation needs: garbage collection uses another one.
    PerPu,
    /// Any read: garbage collection continues when no host read is in flight. Useful where reads
    /// come in bursts.
    Global,
}

/// Addresses of the host's sectors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum SectorAddressing {
    /// The host chooses a logical address for each sector, and the FTL maps it.
    #[default]
    Logical,
    /// The FTL returns a [name](crate::SectorName) for each sector that the host writes, and has no
    /// map: one bit per physical sector in memory, and the host's tag beside the sector on the media.
    ///
    /// Rejected with a map cache, a P2L on the media, line metadata, the stream of hot data, atomic
    /// writes (a named write has one sector), vector copies, write units of fewer than 4 sectors, and
    /// on a drive that keeps the map.
    Named {
        /// Lines that are kept at most for moves that the owner of the names has not
        /// [confirmed](crate::Ftl::confirm_move). With that many, garbage collection reclaims only
        /// lines without valid sectors. At least 1.
        unconfirmed_lines_max: u32,
    },
}

impl SectorAddressing {
    /// Returns whether the host's sectors have names.
    #[inline]
    pub fn is_named(self) -> bool {
        self != SectorAddressing::Logical
    }
}

/// Configuration of an FTL.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct FtlConfig {
    /// Spare space: physical sectors over logical sectors, minus 1. Lines that are always held in
    /// reserve (`gc_low_watermark_lines`) and bad chunks do not count as physical.
    pub over_provisioning: f64,
    /// Parallel units that are written at the same time; a line is one chunk on each of them. 0 for
    /// all.
    pub active_pus: u32,
    /// The choice of the next victim.
    pub victim_policy: VictimPolicyKind,
    /// Whether relocated (cold) data is written to lines of its own, apart from host writes (hot).
    pub hot_cold: bool,
    /// Whether [`HostStream::Hot`](crate::HostStream) has lines, and a ring of the write buffer, of its
    /// own. It costs a line in reserve, and as much write buffer as that of the other host writes.
    /// Rejected on a drive that keeps the map.
    pub hot_stream: bool,
    /// Free lines that only garbage collection may use.
    pub gc_low_watermark_lines: u32,
    /// Free lines beyond the reserve at which garbage collection starts, but no more than half of the
    /// over-provisioning; between here and the reserve the rate limiter shares the write bandwidth.
    pub gc_high_watermark_lines: u32,
    /// Sectors of the host's write buffer. At least, and for 0, the minimum of the geometry: for
    /// every active parallel unit, the write units that wait for their paired page, and three more.
    pub write_buffer_sectors: u32,
    /// Sectors written by the host and garbage collection between the starts of two checkpoints,
    /// without map pages. Recovery scans at most one and a half times as many, the open lines and
    /// the pages. 0 chooses the interval that keeps the pages below one part in 64 of the host's
    /// writes; it then counts host writes only, and recovery scans as many times more as the write
    /// amplification.
    pub checkpoint_sectors: u32,
    /// Memory for the map, in sectors; each holds one map page. 0 keeps the whole map in memory.
    /// Otherwise pages are fetched from the media on demand, and evicted when others need the
    /// frames \[DFTL09\].
    ///
    /// Rejected if the write buffer of this geometry does not fit, if the drive keeps the map, or
    /// (by the owner of the flash) if the flash stores no data. Works with every other option. The
    /// memory of [`reverse_map`](FtlConfig::p2l_location) is separate.
    pub map_cache_sectors: u32,
    /// Write units that garbage collection may have in flight; 0 for twice the parallel units.
    pub gc_queue_depth_units: u32,
    /// Distinguishes several FTLs on the same flash: a journal with another id is refused. 0 for a
    /// single FTL.
    pub instance_id: u32,
    /// Whether lines are opened on the free chunks with the least wear (dynamic wear leveling),
    /// instead of the ones free for longest.
    pub dynamic_wear_leveling: bool,
    /// Whether lines have headers and footers [LightNVM17 §4.2.2]. Recovery then reads a few
    /// sectors of a closed line instead of the out-of-band bytes of all of them. It costs capacity
    /// and write bandwidth, about one unit in 250. It cannot be changed later: media written with
    /// the other setting is refused.
    pub line_metadata: LineMetadata,
    /// Location of the P2L. [`P2lLocation::Media`] needs lines with metadata.
    pub p2l_location: P2lLocation,
    /// Static wear leveling: number of erases that the chunks of a cold line may be behind the most
    /// worn chunk before its data is relocated to the most worn free chunks; 0 disables it.
    pub static_wear_leveling: u32,
    /// Division of the write bandwidth between the host and garbage collection when space is short.
    pub rate_limiter: RateLimiterKind,
    /// Parallel units that garbage collection avoids while free space is not critical.
    pub gc_read_priority: GcReadPriority,
    /// Whether garbage collection has the drive copy the sectors that it relocates ([OC20 §4], Vector
    /// Chunk Copy), instead of reading them into the host's memory and writing them again. For an FTL
    /// above an open-channel drive only. Rejected on a drive with paired pages, where a copy cannot be
    /// read before its pair is programmed, so that it would have to be kept in memory until then, and
    /// on a drive that keeps the map.
    pub vector_copy: bool,
    /// Whether a write of at most a write unit is atomic: after a power cut all of it is there, or
    /// nothing. It is put into one write unit, which is padded before it if the write does not fit
    /// (`docs/atomic-writes.md`). Larger writes are as without it.
    ///
    /// Rejected with a map cache, where the translation pages of a write are fetched one by one, and
    /// on a drive that keeps the map.
    pub atomic_writes: bool,
    /// Bytes of a state that the owner of the FTL keeps in the journal
    /// ([`Ftl::change_owner_state`](crate::Ftl::change_owner_state)); 0 for none. The journal's chunks, and
    /// with them the capacity, depend on it, so that it cannot be changed later: media written with
    /// another number are refused. Rejected on a drive that keeps the map.
    pub owner_bytes: u32,
    /// Addresses of the host's sectors. It cannot be changed later.
    pub addressing: SectorAddressing,
}

impl FtlConfig {
    /// Returns the setting of an FTL whose sectors have names that such an FTL cannot have.
    pub(crate) fn conflict_with_names(&self, ws_opt: u32) -> Option<&'static str> {
        let conflicts = [
            (self.map_cache_sectors > 0, "map_cache_sectors"),
            (self.p2l_location == P2lLocation::Media, "reverse_map = \"media\""),
            (self.line_metadata == LineMetadata::On, "line_metadata"),
            (self.hot_stream, "hot_stream"),
            (self.atomic_writes, "atomic"),
            (self.vector_copy, "vector_copy"),
            (ws_opt < crate::NamedOob::FRAGMENTS, "a write unit of fewer than 4 sectors"),
            (
                self.addressing == SectorAddressing::Named { unconfirmed_lines_max: 0 },
                "unconfirmed_lines_max = 0",
            ),
        ];
        conflicts.into_iter().find(|(is_set, _)| *is_set).map(|(_, setting)| setting)
    }

    /// Returns the configuration for a drive that keeps the map. Recovery reads no lines there, so
    /// they have no metadata.
    ///
    /// # Errors
    ///
    /// [`CapacityError`] if a setting needs an L2P of the FTL's own.
    pub fn for_device_l2p(self) -> Result<FtlConfig, CapacityError> {
        if self.map_cache_sectors > 0 {
            return Err(CapacityError::MapCacheOnDeviceL2p);
        }
        if self.line_metadata == LineMetadata::On {
            return Err(CapacityError::LineMetadataOnDeviceL2p);
        }
        if self.vector_copy {
            return Err(CapacityError::VectorCopyOnDeviceL2p);
        }
        if self.hot_stream {
            return Err(CapacityError::HotStreamOnDeviceL2p);
        }
        if self.atomic_writes {
            return Err(CapacityError::AtomicOnDeviceL2p);
        }
        if self.owner_bytes > 0 {
            return Err(CapacityError::OwnerStateOnDeviceL2p);
        }
        if self.addressing.is_named() {
            return Err(CapacityError::NamedWith { setting: "a drive that keeps the map" });
        }
        Ok(FtlConfig { line_metadata: LineMetadata::Off, ..self })
    }
}

impl Default for FtlConfig {
    fn default() -> FtlConfig {
        FtlConfig {
            over_provisioning: 0.11,
            active_pus: 0,
            victim_policy: VictimPolicyKind::Greedy,
            hot_cold: true,
            hot_stream: false,
            gc_low_watermark_lines: 2,
            gc_high_watermark_lines: 2,
            write_buffer_sectors: 0,
            checkpoint_sectors: 0,
            map_cache_sectors: 0,
            gc_queue_depth_units: 0,
            instance_id: 0,
            dynamic_wear_leveling: false,
            line_metadata: LineMetadata::Auto,
            p2l_location: P2lLocation::Memory,
            static_wear_leveling: 0,
            rate_limiter: RateLimiterKind::Proportional,
            gc_read_priority: GcReadPriority::Off,
            vector_copy: false,
            atomic_writes: false,
            owner_bytes: 0,
            addressing: SectorAddressing::Logical,
        }
    }
}
