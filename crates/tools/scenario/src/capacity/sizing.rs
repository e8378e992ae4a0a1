//! Capacity of a NAND drive from its over-provisioning, or the over-provisioning from a capacity.

use ftl::FtlConfig;
use media::NandConfig;

use super::{Capacity, DriveCapacityError};
use crate::error::ProblemKind;
use crate::format::{bytes_binary, bytes_decimal};
use crate::section::Result;
use crate::source::SourceSpan;

/// Maximum difference between a capacity and an over-provisioning that are both given, because data
/// sheets round.
const DIFFERENCE_MAX: f64 = 0.01;

/// Maximum over-provisioning of a scenario.
const OVER_PROVISIONING_MAX: f64 = 100.0;

/// An FTL on a medium.
pub(crate) struct Sizing<'a> {
    pub(crate) nand: &'a NandConfig,
    /// Number of pblk's shards, if configured.
    pub(crate) shards: Option<u32>,
    /// Whether the drive has the map (device L2P).
    pub(crate) has_device_l2p: bool,
    /// Whether the FTL is the drive's own.
    pub(crate) in_drive: bool,
    /// Returns the span of a key of the FTL or the medium.
    pub(crate) span_of: &'a dyn Fn(&str) -> Option<SourceSpan>,
    /// Span of the section, for errors without a single key.
    pub(crate) section_span: &'a SourceSpan,
}

/// Formats a size in decimal and in binary units.
fn bytes_in_both_units(bytes: u64) -> String {
    format!("{} ({}, {bytes} bytes)", bytes_decimal(bytes), bytes_binary(bytes))
}

impl Sizing<'_> {
    fn capacity(&self, config: &FtlConfig) -> std::result::Result<Capacity, DriveCapacityError> {
        if self.in_drive && config.vector_copy {
            return Err(DriveCapacityError::Ftl(ftl::CapacityError::VectorCopyInDrive));
        }
        match self.shards {
            Some(shards @ 2..) => Capacity::sharded(self.nand, config, shards),
            _ if self.has_device_l2p => {
                let config = config.for_device_l2p().map_err(DriveCapacityError::Ftl)?;
                Capacity::new(self.nand, &config)
            }
            _ => Capacity::new(self.nand, config),
        }
    }

    /// Returns the drive's capacity. If a capacity was `asked` for, sets the over-provisioning of
    /// `config` to the largest with which the drive has it.
    ///
    /// # Errors
    /// If the medium cannot host the FTL or has too little capacity, and if a given
    /// over-provisioning contradicts the capacity.
    pub(crate) fn finish(
        &self,
        config: &mut FtlConfig,
        asked: Option<(u64, &SourceSpan)>,
    ) -> Result<Capacity> {
        if let Some((bytes, place)) = asked {
            // Decimal gigabytes usually are not a multiple of the sector size.
            let sector = u64::from(self.nand.geometry.sector_bytes);
            let bytes = if bytes < sector { bytes } else { bytes / sector * sector };
            self.check(bytes, place, config)?;
            config.over_provisioning = self.over_provisioning_for(bytes, place, config)?;
        }
        self.capacity(config).map_err(|e| {
            let place = e.keys().iter().find_map(|key| (self.span_of)(key));
            place.unwrap_or_else(|| self.section_span.clone()).error(ProblemKind::Capacity(e))
        })
    }

    /// Checks that a given over-provisioning agrees with the requested capacity.
    fn check(&self, bytes: u64, place: &SourceSpan, config: &FtlConfig) -> Result<()> {
        let conflict = |message: String, help: String| {
            Err(place.error(ProblemKind::Conflict { message, help }))
        };
        if bytes == 0 {
            return conflict(
                "capacity is 0, and a drive holds something".into(),
                "remove `capacity`, and over_provisioning says what the drive holds".into(),
            );
        }
        let Some(_) = (self.span_of)("over_provisioning") else { return Ok(()) };
        // An impossible layout is reported below.
        let Ok(made) = self.capacity(config) else { return Ok(()) };
        let off = made.logical_bytes() as f64 / bytes as f64 - 1.0;
        if off.abs() <= DIFFERENCE_MAX {
            return Ok(());
        }
        let other = match self.over_provisioning_for(bytes, place, config) {
            Ok(other) => format!("over_provisioning = {other:.4}"),
            Err(_) => "more geometry.chunks".into(),
        };
        conflict(
            format!(
                "capacity is {}, but over_provisioning = {} makes {} of this geometry",
                bytes_in_both_units(bytes),
                config.over_provisioning,
                bytes_in_both_units(made.logical_bytes())
            ),
            format!("remove one of the two; for this capacity it takes {other}"),
        )
    }

    /// Returns the largest over-provisioning with which the drive has a capacity of `bytes`.
    fn over_provisioning_for(
        &self,
        bytes: u64,
        place: &SourceSpan,
        config: &FtlConfig,
    ) -> Result<f64> {
        let with = |over_provisioning| FtlConfig { over_provisioning, ..*config };
        let holds = |over_provisioning: f64| match self.capacity(&with(over_provisioning)) {
            Ok(capacity) => capacity.logical_bytes() >= bytes,
            // Map pages need spare space: the over-provisioning is too small, and the capacity too
            // large.
            Err(DriveCapacityError::Ftl(ftl::CapacityError::MapCacheWithoutSpace { .. })) => true,
            Err(_) => false,
        };
        if !holds(0.0) {
            let most = self.capacity(&with(0.0)).map_err(|e| {
                let place = e.keys().iter().find_map(|key| (self.span_of)(key));
                place.unwrap_or_else(|| self.section_span.clone()).error(ProblemKind::Capacity(e))
            })?;
            let (raw, most) = (self.nand.geometry.total_bytes(), most.logical_bytes());
            return Err(place.error(ProblemKind::Conflict {
                message: format!(
                    "capacity is {}, but of the {} of this geometry at most {} can hold data: the \
                     rest are lines held back for garbage collection, and the layer's metadata",
                    bytes_in_both_units(bytes),
                    bytes_in_both_units(raw),
                    bytes_in_both_units(most)
                ),
                help: "ask for less, to leave some spare space, or set larger geometry.chunks"
                    .into(),
            }));
        }
        // The capacity decreases as the over-provisioning grows: bisect for the largest that
        // suffices.
        let (mut low, mut high) = (0.0, OVER_PROVISIONING_MAX);
        if holds(high) {
            return Ok(high);
        }
        loop {
            let middle = 0.5 * (low + high);
            if middle <= low || middle >= high {
                return Ok(low);
            }
            *(if holds(middle) { &mut low } else { &mut high }) = middle;
        }
    }
}
