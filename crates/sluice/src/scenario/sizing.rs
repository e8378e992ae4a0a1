//! What a NAND drive holds: from its over-provisioning, or the over-provisioning from what it is to hold.

use ftl::FtlConfig;
use media::NandConfig;

use super::capacity::{Capacity, CapacityError};
use super::error::Problem;
use super::section::Result;
use super::source::Place;
use crate::text::{bytes_binary, bytes_decimal};

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
    pub(super) drive_map: bool,
    /// Where keys of the layer and of the medium were given.
    pub(super) place: &'a dyn Fn(&str) -> Option<Place>,
    /// What to point at when no key is to blame.
    pub(super) whole: &'a Place,
}

/// Bytes as makers and as programs have them.
fn both(bytes: u64) -> String {
    format!("{} ({}, {bytes} bytes)", bytes_decimal(bytes), bytes_binary(bytes))
}

impl Sizing<'_> {
    fn capacity(&self, config: &FtlConfig) -> std::result::Result<Capacity, CapacityError> {
        match self.shards {
            Some(shards @ 2..) => Capacity::sharded(self.nand, config, shards),
            _ if self.drive_map => {
                let config = config.of_drive_map().map_err(CapacityError::Layer)?;
                Capacity::of(self.nand, &config)
            }
            _ => Capacity::of(self.nand, config),
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
        asked: Option<(u64, &Place)>,
    ) -> Result<Capacity> {
        if let Some((bytes, place)) = asked {
            // Makers' gigabytes are no whole sectors as a rule.
            let sector = u64::from(self.nand.geometry.sector_bytes);
            let bytes = if bytes < sector { bytes } else { bytes / sector * sector };
            self.check(bytes, place, config)?;
            config.over_provisioning = self.over_provisioning_for(bytes, place, config)?;
        }
        self.capacity(config).map_err(|e| {
            let place = e.keys().iter().find_map(|key| (self.place)(key));
            place.unwrap_or_else(|| self.whole.clone()).error(Problem::Capacity(e))
        })
    }

    /// What is asked for is what the over-provisioning makes, if that is given too.
    fn check(&self, bytes: u64, place: &Place, config: &FtlConfig) -> Result<()> {
        let conflict =
            |message: String, help: String| Err(place.error(Problem::Conflict { message, help }));
        if bytes == 0 {
            return conflict(
                "capacity is 0, and a drive holds something".into(),
                "remove `capacity`, and over_provisioning says what the drive holds".into(),
            );
        }
        let Some(_) = (self.place)("over_provisioning") else { return Ok(()) };
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
                both(bytes),
                config.over_provisioning,
                both(made.logical_bytes())
            ),
            format!("remove one of the two; for this capacity it takes {other}"),
        )
    }

    /// The largest over-provisioning with which the drive holds `bytes`.
    fn over_provisioning_for(&self, bytes: u64, place: &Place, config: &FtlConfig) -> Result<f64> {
        let with = |over_provisioning| FtlConfig { over_provisioning, ..*config };
        let holds = |over_provisioning: f64| match self.capacity(&with(over_provisioning)) {
            Ok(capacity) => capacity.logical_bytes() >= bytes,
            // Pages of the map need spare space: there is too much of the rest.
            Err(CapacityError::Layer(ftl::CapacityError::MapCacheWithoutSpace { .. })) => true,
            Err(_) => false,
        };
        if !holds(0.0) {
            let most = self.capacity(&with(0.0)).map_err(|e| {
                let place = e.keys().iter().find_map(|key| (self.place)(key));
                place.unwrap_or_else(|| self.whole.clone()).error(Problem::Capacity(e))
            })?;
            let (raw, most) = (self.nand.geometry.total_bytes(), most.logical_bytes());
            return Err(place.error(Problem::Conflict {
                message: format!(
                    "capacity is {}, but of the {} of this geometry at most {} can hold data: the \
                     rest are lines held back for garbage collection, and the layer's metadata",
                    both(bytes),
                    both(raw),
                    both(most)
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
