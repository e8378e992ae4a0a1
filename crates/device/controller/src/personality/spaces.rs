//! [`Spaces`]: the translation layers of a drive that manages its flash, one for each application of its
//! rules.
//!
//! An application owns parallel units. Its translation layer has their chunks and no others, so that its
//! map, its journal, its write buffer, its collection and its wear are its own. Its commands address its
//! blocks from 0 on: no address names data of another application. A drive without rules, and one whose
//! rules have one application, has one space.
//!
//! Invariant: the units of two spaces are disjoint, and so are their slots of the write buffer.

use collections::Seal;
use ftl::{Ftl, FtlConfig, FtlStats, RecoveryError};
use media::Nand;
use nvme::PuId;
use rules::{AppDeclaration, AppId};
use serde::{Deserialize, Serialize};

use crate::persistence::nonvolatile::{NonVolatile, SettingsSection};
use crate::{DriveError, DriveRulesError};

/// The application of a drive with one; that of all commands of a drive without rules.
pub(crate) const ONLY_APP: AppId = AppId::new(0);

/// The parallel units of a space.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SpaceUnits {
    pub(crate) first: u32,
    pub(crate) last: u32,
}

impl SpaceUnits {
    /// Returns all parallel units of a drive.
    pub(crate) fn all(nand: &Nand) -> SpaceUnits {
        SpaceUnits { first: 0, last: nand.config().geometry.total_pus().saturating_sub(1) }
    }

    /// Returns those of an application.
    pub(crate) fn of_app(app: &AppDeclaration) -> SpaceUnits {
        SpaceUnits { first: app.first_unit, last: app.last_unit }
    }

    /// Whether a parallel unit belongs to them.
    pub(crate) fn contains(self, pu: PuId) -> bool {
        (self.first..=self.last).contains(&pu.get())
    }

    /// Returns the configuration of a translation layer on these units, of a drive with `all` of them. Its
    /// journal has an identity that no other units have: data is never taken for that of others.
    fn config(self, all: SpaceUnits, config: FtlConfig) -> FtlConfig {
        if self == all {
            return config;
        }
        let count = self.last - self.first + 1;
        let active_pus = if config.active_pus == 0 { count } else { config.active_pus.min(count) };
        let instance_id = config.instance_id ^ (self.first << 16 | (self.last + 1));
        FtlConfig { active_pus, instance_id, ..config }
    }
}

/// Byte of the record of applications: whether sectors have names.
const NAMED_BYTE: usize = 7;

/// Checks that sectors with data on the media have names, or logical addresses, as those of the drive.
///
/// # Errors
/// [`DriveRulesError::OtherAddresses`].
pub(crate) fn check_names(
    settings: &NonVolatile,
    is_named: bool,
    is_new: bool,
) -> Result<(), DriveRulesError> {
    let section = settings.section(SettingsSection::Applications);
    let was_named = section.get(NAMED_BYTE).is_some_and(|named| *named != 0);
    match is_new || was_named == is_named {
        true => Ok(()),
        false => Err(DriveRulesError::OtherAddresses { is_named: was_named }),
    }
}

/// Checks that the data of the media is that of the applications on these units, and keeps the units of
/// several with new media: a translation layer would otherwise find data of others.
///
/// # Errors
/// [`DriveRulesError::OtherData`]; otherwise those of the file of the non-volatile memory.
pub(crate) fn check_units(
    settings: &mut NonVolatile,
    spaces: &[SpaceUnits],
    is_named: bool,
    is_new: bool,
) -> Result<(), DriveError> {
    // Zeros for a drive with one application whose sectors have no names, and without rules.
    let mut record = vec![0; 8];
    record[NAMED_BYTE] = u8::from(is_named);
    if spaces.len() > 1 {
        record[4..].copy_from_slice(&(spaces.len() as u32).to_le_bytes());
        record[NAMED_BYTE] = u8::from(is_named);
        record.extend(spaces.iter().flat_map(|units| units.last.to_le_bytes()));
        Seal::of_bytes_behind(0).store(&mut record);
        record.truncate(8);
    }
    if settings.section(SettingsSection::Applications).starts_with(&record) {
        return Ok(());
    }
    match is_new {
        true => settings.replace(SettingsSection::Applications, &record),
        false => Err(DriveRulesError::OtherData.into()),
    }
}

/// A space behind the first one.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct OtherSpace {
    ftl: Ftl,
    units: SpaceUnits,
    /// First of its slots of the write buffer.
    first_slot: u32,
}

/// The translation layers of a drive.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Spaces {
    /// That of the first application, or of the whole drive.
    pub(crate) first: Ftl,
    units: SpaceUnits,
    others: Vec<OtherSpace>,
}

impl Spaces {
    /// Opens the translation layer of each of the spaces, in their order.
    ///
    /// # Errors
    /// Those of `open`.
    pub(crate) fn open(
        spaces: &[SpaceUnits],
        all: SpaceUnits,
        config: FtlConfig,
        mut open: impl FnMut(SpaceUnits, FtlConfig) -> Result<Ftl, RecoveryError>,
    ) -> Result<Spaces, RecoveryError> {
        let mut open = |units: SpaceUnits| open(units, units.config(all, config));
        let (units, others) = match spaces.split_first() {
            Some((units, others)) => (*units, others),
            None => (all, &[][..]),
        };
        let mut spaces = Spaces { first: open(units)?, units, others: Vec::new() };
        for units in others {
            let first_slot = spaces.slots();
            spaces.others.push(OtherSpace { ftl: open(*units)?, units: *units, first_slot });
        }
        Ok(spaces)
    }

    /// Whether there is more than one.
    #[inline]
    pub(crate) fn are_several(&self) -> bool {
        !self.others.is_empty()
    }

    /// Returns their number.
    pub(crate) fn count(&self) -> usize {
        1 + self.others.len()
    }

    /// Returns their applications.
    pub(crate) fn apps(&self) -> impl Iterator<Item = AppId> + use<> {
        (0..self.count()).map(AppId::from_index)
    }

    /// Returns their translation layers, in the order of the applications.
    pub(crate) fn all(&self) -> impl Iterator<Item = &Ftl> {
        std::iter::once(&self.first).chain(self.others.iter().map(|space| &space.ftl))
    }

    /// Returns their translation layers to be changed.
    pub(crate) fn all_mut(&mut self) -> impl Iterator<Item = &mut Ftl> {
        std::iter::once(&mut self.first).chain(self.others.iter_mut().map(|space| &mut space.ftl))
    }

    /// Returns the units of each.
    pub(crate) fn units(&self) -> impl Iterator<Item = SpaceUnits> {
        std::iter::once(self.units).chain(self.others.iter().map(|space| space.units))
    }

    /// Returns the translation layer of an application.
    #[inline]
    pub(crate) fn of(&self, app: AppId) -> &Ftl {
        match app.index().checked_sub(1) {
            None => &self.first,
            Some(other) => &self.others[other].ftl,
        }
    }

    /// Returns the translation layer of an application, and its first slot of the write buffer.
    #[inline]
    pub(crate) fn of_mut(&mut self, app: AppId) -> (&mut Ftl, u32) {
        match app.index().checked_sub(1) {
            None => (&mut self.first, 0),
            Some(other) => {
                let space = &mut self.others[other];
                (&mut space.ftl, space.first_slot)
            }
        }
    }

    /// Returns the application that owns a parallel unit of a drive with several.
    pub(crate) fn owner(&self, pu: PuId) -> AppId {
        self.units().position(|units| units.contains(pu)).map_or(ONLY_APP, AppId::from_index)
    }

    /// Returns the translation layer that has a parallel unit.
    pub(crate) fn owner_mut(&mut self, pu: PuId) -> &mut Ftl {
        let owner = self.owner(pu);
        self.of_mut(owner).0
    }

    /// Returns the slots of all write buffers.
    pub(crate) fn slots(&self) -> u32 {
        self.all().map(Ftl::slots).sum()
    }

    /// Returns the logical sectors of all.
    pub(crate) fn sectors(&self) -> u64 {
        self.all().map(Ftl::sectors).sum()
    }

    /// Returns the sums of the counters.
    pub(crate) fn stats(&self) -> FtlStats {
        let others = self.others.iter().map(|space| space.ftl.stats());
        others.fold(*self.first.stats(), |sum, stats| sum.plus(stats))
    }
}
