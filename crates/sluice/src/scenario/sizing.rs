//! What a NAND drive holds: from its over-provisioning, or the over-provisioning from what it is to hold.

use ftl::FtlConfig;
use media::NandConfig;

use super::capacity::{Capacity, CapacityError};
use super::error::ProblemKind;
use super::section::Result;
use super::source::SourceSpan;
use crate::format::{bytes_binary, bytes_decimal};

/// By how much a capacity and an over-provisioning that are both given may differ: data sheets round.
const DIFFERENCE_MAX: f64 = 0.01;

/// The largest over-provisioning that a scenario may ask for.
const OVER_PROVISIONING_MAX: f64 = 100.0;

/// A translation layer on a medium.
pub(super) struct Sizing<'a> {
    pub(super) nand: &'a NandConfig,
    /// In how many shards pblk is opened, if the scenario says.
    pub(super) shards: Option<u32>,
    /// Whether the drive keeps the map.
    pub(super) has_device_l2p: bool,
    /// Where keys of the layer and of the medium were given.
    pub(super) span_of: &'a dyn Fn(&str) -> Option<SourceSpan>,
    /// What to point at when no key is to blame.
    pub(super) section_span: &'a SourceSpan,
}

/// Bytes as makers and as programs have them.
fn bytes_in_both_units(bytes: u64) -> String {
    format!("{} ({}, {bytes} bytes)", bytes_decimal(bytes), bytes_binary(bytes))
}

impl Sizing<'_> {
    fn capacity(&self, config: &FtlConfig) -> std::result::Result<Capacity, CapacityError> {
        match self.shards {
            Some(shards @ 2..) => Capacity::sharded(self.nand, config, shards),
            _ if self.has_device_l2p => {
                let config = config.for_device_l2p().map_err(CapacityError::Ftl)?;
                Capacity::new(self.nand, &config)
            }
            _ => Capacity::new(self.nand, config),
        }
    }

    /// The drive's capacity. With one that was `asked` for, sets the over-provisioning of `config` to
    /// the largest with which the drive holds that.
    ///
    /// # Errors
    /// For a medium that cannot host the layer, or not so much; and for an over-provisioning that is
    /// given and means another capacity.
    pub(super) fn finish(
        &self,
        config: &mut FtlConfig,
        asked: Option<(u64, &SourceSpan)>,
    ) -> Result<Capacity> {
        if let Some((bytes, place)) = asked {
            // Makers' gigabytes are no whole sectors as a rule.
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

    /// What is asked for is what the over-provisioning makes, if that is given too.
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
        // What does not fit says so below.
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

    /// The largest over-provisioning with which the drive holds `bytes`.
    fn over_provisioning_for(
        &self,
        bytes: u64,
        place: &SourceSpan,
        config: &FtlConfig,
    ) -> Result<f64> {
        let with = |over_provisioning| FtlConfig { over_provisioning, ..*config };
        let holds = |over_provisioning: f64| match self.capacity(&with(over_provisioning)) {
            Ok(capacity) => capacity.logical_bytes() >= bytes,
            // Pages of the map need spare space: there is too much of the rest.
            Err(CapacityError::Ftl(ftl::CapacityError::MapCacheWithoutSpace { .. })) => true,
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
        // The capacity falls as the over-provisioning grows: halving finds the last that is enough.
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
