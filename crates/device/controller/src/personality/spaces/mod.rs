//! [`Spaces`]: the translation layers of a drive that manages its flash, and the applications of its
//! rules on them.
//!
//! A space is a translation layer that has the chunks of its parallel units and no others, so that its
//! map, its journal, its write buffer, its collection and its wear are its own. A *thick* space belongs to
//! one application. *Thin* spaces are the parts that applications on the same units have of one translation
//! layer: each is a range of its sectors, whose number is the application's quota. Commands of an application
//! address its blocks from 0 on ([`thin`]): no address names data of another application. A drive without
//! rules, and one whose rules have one application, has one space.
//!
//! Invariants: the units of two spaces are disjoint, and so are their slots of the write buffer; the ranges of
//! two applications on one space are disjoint.

pub(crate) mod thin;

use collections::Seal;
use ftl::{Ftl, FtlConfig, FtlStats, RecoveryError};
use media::Nand;
use nvme::PuId;
use rules::{AppDeclaration, AppId, quota_sectors};
use serde::{Deserialize, Serialize};

use crate::check::{DriveCheck, DrivePart, DriveViolation};
use crate::persistence::nonvolatile::{NonVolatile, SettingsSection};
use crate::{DriveError, DriveRulesError};

/// The application of a drive with one; that of all commands of a drive without rules.
pub(crate) const ONLY_APP: AppId = AppId::new(0);

/// The space of a drive with one.
pub(crate) const ONLY_SPACE: SpaceId = SpaceId(0);

/// The number of a space, in the order of the first applications on them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SpaceId(u32);

impl SpaceId {
    /// Creates an identifier from a number.
    #[inline]
    pub(crate) const fn new(number: u32) -> SpaceId {
        SpaceId(number)
    }

    /// Returns the number.
    #[inline]
    pub(crate) const fn get(self) -> u32 {
        self.0
    }

    fn index(self) -> usize {
        self.0 as usize
    }
}

/// The space that a program declares for an application.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AppSpace {
    pub(crate) units: SpaceUnits,
    /// The part of the sectors of these units, in millionths; 0 for a thick space.
    quota_ppm: u32,
}

impl AppSpace {
    /// Returns that of an application.
    pub(crate) fn of_app(app: &AppDeclaration) -> AppSpace {
        let units = SpaceUnits { first: app.first_unit, last: app.last_unit };
        AppSpace { units, quota_ppm: app.quota_ppm }
    }

    fn is_thin(self) -> bool {
        self.quota_ppm != 0
    }
}

impl std::fmt::Display for AppSpace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}-{}", self.units.first, self.units.last)?;
        if self.is_thin() {
            write!(f, " (quota {}.{:06})", self.quota_ppm / 1_000_000, self.quota_ppm % 1_000_000)?;
        }
        Ok(())
    }
}

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

/// Checks that the data of the media is that of the applications on these units, with these quotas, and keeps
/// the units and quotas of several with new media: an application would otherwise find data of others. That the
/// capacity, and so the ranges of quotas, are as before is checked by the translation layer.
///
/// # Errors
/// [`DriveRulesError::OtherData`]; otherwise those of the file of the non-volatile memory.
pub(crate) fn check_units(
    settings: &mut NonVolatile,
    apps: &[AppSpace],
    is_named: bool,
    is_new: bool,
) -> Result<(), DriveError> {
    // Zeros for a drive with one application whose sectors have no names, and without rules.
    let mut record = vec![0; 8];
    record[NAMED_BYTE] = u8::from(is_named);
    if apps.len() > 1 {
        record[4..].copy_from_slice(&(apps.len() as u32).to_le_bytes());
        record[NAMED_BYTE] = u8::from(is_named);
        record.extend(apps.iter().flat_map(|app| app.units.last.to_le_bytes()));
        if apps.iter().any(|app| app.is_thin()) {
            record.extend(apps.iter().flat_map(|app| app.quota_ppm.to_le_bytes()));
        }
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

/// The part of an application.
#[derive(Clone, Copy, Debug)]
struct AppPart {
    declared: AppSpace,
    space: SpaceId,
    /// First sector of a thin space in those of its translation layer; 0 for a thick one.
    base: u64,
    /// Sectors of a thin space; `None` for a thick one, which has all of its translation layer.
    quota: Option<u64>,
}

/// The translation layers of a drive.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Spaces {
    /// That of the first application, or of the whole drive.
    pub(crate) first: Ftl,
    units: SpaceUnits,
    others: Vec<OtherSpace>,
    /// The applications; none on a drive without rules. The state of a drive with rules is not saved.
    #[serde(skip)]
    apps: Vec<AppPart>,
    /// Whether applications share a space.
    #[serde(skip)]
    is_shared: bool,
}

impl Spaces {
    /// Opens the spaces of the applications, in the order of the first application on each.
    ///
    /// # Errors
    /// Those of `open`.
    pub(crate) fn open(
        apps: &[AppSpace],
        all: SpaceUnits,
        config: FtlConfig,
        mut open: impl FnMut(SpaceUnits, FtlConfig) -> Result<Ftl, RecoveryError>,
    ) -> Result<Spaces, RecoveryError> {
        let mut open = |units: SpaceUnits| open(units, units.config(all, config));
        let units = apps.first().map_or(all, |app| app.units);
        let (first, others, is_shared) = (open(units)?, Vec::new(), false);
        let mut spaces = Spaces { first, units, others, apps: Vec::new(), is_shared };
        for app in apps {
            let known = spaces.units().position(|units| units == app.units);
            let space = SpaceId(known.unwrap_or(1 + spaces.others.len()) as u32);
            if known.is_none() {
                let first_slot = spaces.slots();
                let units = app.units;
                spaces.others.push(OtherSpace { ftl: open(units)?, units, first_slot });
            }
            spaces.add_app(*app, space);
        }
        Ok(spaces)
    }

    /// Adds an application on a space. Its range is behind those of the applications before it.
    fn add_app(&mut self, declared: AppSpace, space: SpaceId) {
        let sectors = self.of(space).sectors();
        let earlier = self.apps.iter().filter(|app| app.space == space);
        let base = earlier.filter_map(|app| app.quota).sum();
        let quota = declared.is_thin().then(|| quota_sectors(sectors, declared.quota_ppm));
        self.is_shared |= declared.is_thin();
        self.apps.push(AppPart { declared, space, base, quota });
    }

    /// Whether there is more than one application.
    #[inline]
    pub(crate) fn are_several(&self) -> bool {
        self.apps.len() > 1
    }

    /// Whether applications share a space.
    #[inline]
    pub(crate) fn are_shared(&self) -> bool {
        self.is_shared
    }

    /// Returns the number of applications; 1 on a drive without rules.
    pub(crate) fn count(&self) -> usize {
        self.apps.len().max(1)
    }

    /// Returns the applications.
    pub(crate) fn apps(&self) -> impl Iterator<Item = AppId> + use<> {
        (0..self.count()).map(AppId::from_index)
    }

    /// Returns the spaces that the program declares for the applications.
    pub(crate) fn declared(&self) -> impl Iterator<Item = AppSpace> {
        self.apps.iter().map(|app| app.declared)
    }

    /// Returns the space of an application.
    #[inline]
    pub(crate) fn space_of(&self, app: AppId) -> SpaceId {
        self.apps.get(app.index()).map_or(ONLY_SPACE, |app| app.space)
    }

    /// Returns the first sector of an application in those of its translation layer.
    #[inline]
    pub(crate) fn base_of(&self, app: AppId) -> u64 {
        self.apps.get(app.index()).map_or(0, |app| app.base)
    }

    /// Returns the sectors of an application.
    #[inline]
    pub(crate) fn sectors_of(&self, app: AppId) -> u64 {
        let quota = self.apps.get(app.index()).and_then(|app| app.quota);
        quota.unwrap_or_else(|| self.of(self.space_of(app)).sectors())
    }

    /// Returns the space of an application that has it alone; `None` if it shares it.
    pub(crate) fn sole_space(&self, app: AppId) -> Option<SpaceId> {
        let is_thin = self.apps.get(app.index()).is_some_and(|app| app.declared.is_thin());
        (!is_thin).then(|| self.space_of(app))
    }

    /// Returns the spaces.
    pub(crate) fn ids(&self) -> impl Iterator<Item = SpaceId> + use<> {
        (0..=self.others.len() as u32).map(SpaceId)
    }

    /// Returns the translation layers, in the order of the spaces.
    pub(crate) fn all(&self) -> impl Iterator<Item = &Ftl> {
        std::iter::once(&self.first).chain(self.others.iter().map(|space| &space.ftl))
    }

    /// Returns the translation layers to be changed.
    pub(crate) fn all_mut(&mut self) -> impl Iterator<Item = &mut Ftl> {
        std::iter::once(&mut self.first).chain(self.others.iter_mut().map(|space| &mut space.ftl))
    }

    /// Returns the units of each space.
    pub(crate) fn units(&self) -> impl Iterator<Item = SpaceUnits> {
        std::iter::once(self.units).chain(self.others.iter().map(|space| space.units))
    }

    /// Returns the translation layer of a space.
    #[inline]
    pub(crate) fn of(&self, space: SpaceId) -> &Ftl {
        match space.index().checked_sub(1) {
            None => &self.first,
            Some(other) => &self.others[other].ftl,
        }
    }

    /// Returns the translation layer of a space, and its first slot of the write buffer.
    #[inline]
    pub(crate) fn of_mut(&mut self, space: SpaceId) -> (&mut Ftl, u32) {
        match space.index().checked_sub(1) {
            None => (&mut self.first, 0),
            Some(other) => {
                let space = &mut self.others[other];
                (&mut space.ftl, space.first_slot)
            }
        }
    }

    /// Returns the space that has a parallel unit.
    pub(crate) fn owner(&self, pu: PuId) -> SpaceId {
        let owner = self.units().position(|units| units.contains(pu));
        owner.map_or(ONLY_SPACE, |owner| SpaceId(owner as u32))
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

    /// Checks that no two applications have a sector.
    ///
    /// # Errors
    /// [`DriveViolation`] at the first application that has a sector of another one, or too many.
    pub(crate) fn check_invariants(&self) -> Result<(), DriveViolation> {
        for (at, app) in self.apps.iter().enumerate() {
            let check =
                DriveCheck { part: DrivePart::Spaces, subject: "application", index: at as u32 };
            let sectors = self.of(app.space).sectors();
            let range = |app: &AppPart| app.base..app.base + app.quota.unwrap_or(sectors);
            let own = range(app);
            check.require(own.end <= sectors, "its sectors exist", sectors, &own)?;
            let earlier = self.apps[..at].iter().filter(|other| other.space == app.space);
            let first = earlier.map(|other| range(other).end).max().unwrap_or(0);
            check.require(first <= own.start, "its sectors are its own", first, &own)?;
        }
        Ok(())
    }
}
