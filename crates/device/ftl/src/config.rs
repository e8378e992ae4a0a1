//! [`FtlConfig`]: the choices of a flash translation layer.

use crate::CapacityError;

/// Which closed line is reclaimed next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum VictimPolicyKind {
    /// The line with the fewest valid sectors [LightNVM17 §4.2.4].
    Greedy,
    /// The line with the best ratio of space gained times age to copying cost.
    CostBenefit,
    /// The line that was closed longest ago.
    Fifo,
    /// The line with the least cost, from its share of valid sectors and its wear (thesis chapter 6,
    /// section 4.3).
    CostWear,
}

/// Where the layer keeps which logical sector was written at each physical one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum P2lLocation {
    /// In memory: four bytes per physical sector.
    Memory,
    /// On the media, in the last metadata of lines; in memory only for lines that are being written
    /// or reclaimed. Garbage collection reads a victim's before it moves anything.
    Media,
}

/// Whether lines have metadata in their first and last write units [LightNVM17 §4.2.2].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LineMetadata {
    /// None has.
    Off,
    /// All have, if it fits a line: the first into one write unit, both into one part in 32 of the
    /// line; none on a drive that keeps the map, which is never asked for lines. Which of the two it
    /// is follows from geometry and `active_pus` alone, and is in [`CapacityPlan::line_metadata_units`](crate::CapacityPlan::line_metadata_units).
    Auto,
    /// All have, if both fit into one part in 16 of the line. Where it does not fit the layer is
    /// refused, and on a drive that keeps the map.
    On,
}

/// How users' share of the write bandwidth follows from the free space [LightNVM17 §4.2.4].
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum RateLimiterKind {
    /// In proportion to what is left between the reserve and where garbage collection starts.
    Proportional,
    /// By a controller that holds the free space in the middle between the two. Its output is the
    /// users' share, its input the free space over what lies between the two levels, its time what is
    /// written over the same. Gains from 0 to [`RateLimiterKind::GAIN_MAX`].
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
    /// A controller that does not swing: with a share `v` of victims valid, free space follows users'
    /// share with gain `1 / v` per sector written, so that the damping is `kp / (2 sqrt(ki v))`, 1.6
    /// and more. As much of the error as [`Share`](RateLimiterKind::Proportional) takes, so that users are let
    /// wait no more abruptly.
    pub const PID: RateLimiterKind = RateLimiterKind::Pid { kp: 1.0, ki: 0.1, kd: 0.05 };

    /// A gain at most.
    pub const GAIN_MAX: f64 = 100.0;
}

/// Which users' reads garbage collection yields to, as long as space does not press.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum GcReadPriority {
    /// None.
    Off,
    /// Those that wait on the parallel unit that it wants: it takes another one.
    PerPu,
    /// Any: it goes on when none is under way. Pays where reads come in bursts.
    Global,
}

/// The choices of a flash translation layer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FtlConfig {
    /// Spare space: physical sectors over logical sectors, minus 1. Lines that are always held in
    /// reserve (`gc_low_watermark_lines`) and bad chunks do not count as physical.
    pub over_provisioning: f64,
    /// Parallel units that are written at the same time; a line is one chunk on each of them. 0 for
    /// all.
    pub active_pus: u32,
    /// Which line is reclaimed next.
    pub victim_policy: VictimPolicyKind,
    /// Whether moved (cold) data goes to lines of its own, apart from the user's (hot) writes.
    pub hot_cold: bool,
    /// Free lines that only garbage collection may use.
    pub gc_low_watermark_lines: u32,
    /// Free lines beyond the reserve at which garbage collection starts, but no more than half of the
    /// over-provisioning; between here and the reserve the rate limiter shares the write bandwidth.
    pub gc_high_watermark_lines: u32,
    /// Sectors of the users' write buffer; at least, and with 0 just, what the geometry needs: for
    /// every active parallel unit the write units that wait for their pair, and three more.
    pub write_buffer_sectors: u32,
    /// Sectors that are written between the beginnings of two checkpoints of the map, by users and by
    /// garbage collection, without the map's pages: recovery looks at one and a half times as many, the
    /// open lines and the pages at most. 0 for as many of the users' as keep the pages below one part in
    /// 64 of what users write; what recovery looks at is then as many times more as is written for each of
    /// theirs.
    pub checkpoint_sectors: u32,
    /// Memory for the map, in sectors; each holds one map page. 0 keeps the whole map in memory.
    /// Otherwise pages are fetched from the media on demand, and evicted when others need the
    /// frames [DFTL09].
    ///
    /// Rejected if the write buffer of this geometry does not fit, if the drive keeps the map, or
    /// (by the owner of the flash) if the flash stores no data. Works with every other option. The
    /// memory of [`reverse_map`](FtlConfig::p2l_location) is separate.
    pub map_cache_sectors: u32,
    /// Write units that garbage collection may have in flight; 0 for twice the parallel units.
    pub gc_queue_depth_units: u32,
    /// Names one of several layers on the same flash: a journal that was written under another name
    /// is refused. 0 where there is one layer.
    pub instance_id: u32,
    /// Whether lines are opened on the least worn of the free chunks (dynamic wear levelling), and not
    /// on the one that has been free longest.
    pub dynamic_wear_leveling: bool,
    /// Whether lines have metadata in their first and last write units (LightNVM paper section
    /// 4.2.2), so that recovery reads a few sectors of a closed line and not the out-of-band bytes of
    /// all of them; it costs capacity and write bandwidth, a unit in some 250. The same for as long as
    /// a medium is in use: one that was written otherwise is refused.
    pub line_metadata: LineMetadata,
    /// Where physical to logical is kept. [`P2lLocation::Media`] needs lines with metadata.
    pub p2l_location: P2lLocation,
    /// Static wear levelling: erases that a cold line's chunks may be behind the most worn chunk before
    /// its data goes to the most worn of the free ones; 0 for none.
    pub static_wear_leveling: u32,
    /// How users and garbage collection share the write bandwidth when space is short.
    pub rate_limiter: RateLimiterKind,
    /// Parallel units that garbage collection avoids while free space is not critical.
    pub gc_read_priority: GcReadPriority,
}

impl FtlConfig {
    /// The choices of a layer on a drive that keeps the map. Its recovery does not ask for lines, so
    /// that they have no metadata.
    ///
    /// # Errors
    /// [`CapacityError`] for what needs a map of the layer's own.
    pub fn for_device_l2p(self) -> Result<FtlConfig, CapacityError> {
        if self.map_cache_sectors > 0 {
            return Err(CapacityError::MapCacheOnDeviceL2p);
        }
        if self.line_metadata == LineMetadata::On {
            return Err(CapacityError::LineMetadataOnDeviceL2p);
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
        }
    }
}
