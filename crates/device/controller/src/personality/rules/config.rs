//! [`DriveRulesConfig`]: the rules of a drive that manages its flash, and the reasons for which it does
//! not take a program.

use ftl::{FtlConfig, victim_lines_max};
use media::{DataStore, MediaConfig, NandConfig};
use rules::{
    AppDeclaration, AppId, PlacementStream, ProgramDecodeError, RuleFeature, RuleGrant, RuleLimits,
    RuleNeed, RuleProgram, RuleTableError, RuleTrigger, VerifiedProgram, VerifyError, verify,
};
use time::Nanos;

use super::durable::IDENTITY_BYTES;
use super::misses::RuleMissConfig;
use super::needs_names;
use crate::DriveConfig;
use crate::personality::spaces::AppSpace;

/// The rules of a drive with the block personality over NAND.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DriveRulesConfig {
    /// The program in its encoded form (`docs/format/rule-program.md`). Its applications have all parallel
    /// units.
    pub program: Vec<u8>,
    /// Engines: inputs that are processed at a time.
    pub engines: u16,
    /// Time of an operation of an engine.
    pub op: Nanos,
    /// Operations of a command in the worst case.
    pub ops: u64,
    /// Bytes of all tables.
    pub table_bytes: u64,
    /// The treatment of commands that no rule matches.
    pub misses: RuleMissConfig,
    /// Time without a command after which the drive polls its background rules; `None` if only a drive
    /// that needs space does.
    pub idle_poll: Option<Nanos>,
}

impl DriveRulesConfig {
    /// Maximum number of engines.
    pub const ENGINES_MAX: u16 = 64;
    /// Minimum period of a periodic rule.
    pub const PERIOD_MIN: Nanos = Nanos(1_000_000);
    /// Minimum time between two polls of the background rules by an idle drive.
    pub const IDLE_POLL_MIN: Nanos = Nanos(1_000);

    /// Returns what a program of a drive with this medium may use.
    pub fn grant(&self, nand: &NandConfig) -> RuleGrant {
        RuleGrant {
            units: nand.geometry.total_pus(),
            unit_sectors: unit_sectors(nand),
            apps: None,
            table_bytes: self.table_bytes,
            command_ops: self.ops,
            ..RuleGrant::default()
        }
    }

    /// Returns what a program of a drive with this medium is compiled for. `active_pus` is that of
    /// [`FtlConfig`].
    pub fn limits(&self, nand: &NandConfig, active_pus: u32) -> RuleLimits {
        let pus = nand.geometry.total_pus();
        let chunks = nand.host_geometry().total_chunks();
        RuleLimits {
            grant: self.grant(nand),
            sector_bytes: nand.geometry.sector_bytes,
            lines: victim_lines_max(chunks, pus, active_pus),
        }
    }

    /// Decodes and verifies the program for a drive with this medium and this translation layer.
    /// `capacities` are those of the applications in sectors, in their order, as far as they are known.
    ///
    /// # Errors
    /// [`DriveRulesError`].
    pub fn verified(
        &self,
        nand: &NandConfig,
        ftl: &FtlConfig,
        capacities: &[u64],
    ) -> Result<VerifiedProgram, DriveRulesError> {
        if let Some(idle_poll) = self.idle_poll.filter(|idle| *idle < Self::IDLE_POLL_MIN) {
            return Err(DriveRulesError::IdlePoll { idle_poll });
        }
        let program = RuleProgram::decode(&self.program)?;
        let verified = verify(program, &self.grant(nand)).map_err(Box::new)?;
        check_executable(&verified, nand, ftl, capacities)?;
        Ok(verified)
    }

    /// Returns the names of the applications of the program, in their order; none if it cannot be decoded.
    pub fn app_names(&self) -> Vec<String> {
        let program = RuleProgram::decode(&self.program).unwrap_or_default();
        program.apps.into_iter().map(|app| app.name).collect()
    }

    /// Returns whether the sectors of a drive with these rules have names.
    ///
    /// # Errors
    /// [`DriveRulesError`]: the program is not accepted, or names do not go with a setting of the drive.
    pub(crate) fn has_names(&self, drive: &DriveConfig) -> Result<bool, DriveRulesError> {
        let MediaConfig::Nand(nand) = &drive.media else { return Ok(false) };
        if !needs_names(&self.verified(nand, &drive.ftl, &[])?) {
            return Ok(false);
        }
        let what = match drive {
            DriveConfig { protection: Some(_), .. } => Some("protection information"),
            DriveConfig { controller, .. } if controller.scrub.is_some() => Some("patrol scrub"),
            _ if nand.data == DataStore::None => Some("media without data"),
            // The controller keeps no non-volatile memory in a file beside an image with this key.
            _ if nand.data.flushes_to_host() => Some("`flush = \"host\"`"),
            _ => None,
        };
        what.map_or(Ok(true), |what| Err(DriveRulesError::Named { what }))
    }

    /// Returns the space of each application of the program of a drive.
    ///
    /// # Errors
    /// [`DriveRulesError`].
    pub(crate) fn spaces(&self, drive: &DriveConfig) -> Result<Vec<AppSpace>, DriveRulesError> {
        let MediaConfig::Nand(nand) = &drive.media else { return Ok(Vec::new()) };
        let verified = self.verified(nand, &drive.ftl, &[])?;
        let apps = &verified.program().apps;
        let what = match drive {
            _ if apps.len() < 2 => None,
            DriveConfig { protection: Some(_), .. } => Some("protection information"),
            DriveConfig { controller, .. } if controller.scrub.is_some() => Some("patrol scrub"),
            // The controller keeps no non-volatile memory in a file beside an image with this key.
            _ if nand.data.flushes_to_host() => Some("`flush = \"host\"`"),
            _ => None,
        };
        match what {
            Some(what) => Err(DriveRulesError::SeveralApps { what }),
            None => Ok(apps.iter().map(AppSpace::of_app).collect()),
        }
    }
}

/// Returns the sectors of a parallel unit.
fn unit_sectors(nand: &NandConfig) -> u64 {
    nand.host_geometry().total_sectors() / u64::from(nand.geometry.total_pus().max(1))
}

/// Checks that a drive with this translation layer executes everything that a verified program needs.
/// `capacities` are those of the applications in sectors, in their order, as far as they are known.
///
/// # Errors
/// [`DriveRulesError`].
pub fn check_executable(
    verified: &VerifiedProgram,
    nand: &NandConfig,
    ftl: &FtlConfig,
    capacities: &[u64],
) -> Result<(), DriveRulesError> {
    let is_executed = |need: &RuleNeed| {
        use PlacementStream::{Cold, Gc, Host, Hot};
        !matches!(need.feature, RuleFeature::Place(Gc | Cold) | RuleFeature::Move(Host | Hot))
    };
    let is_durable = |need: &RuleNeed| need.feature == RuleFeature::DurableTables;
    if let Some(need) = verified.needs().into_iter().find(|need| !is_executed(need)) {
        return Err(DriveRulesError::NotExecuted(need));
    }
    let is_hot = |need: &RuleNeed| need.feature == RuleFeature::Place(PlacementStream::Hot);
    if let Some(need) = verified.needs().into_iter().find(|need| !ftl.hot_stream && is_hot(need)) {
        return Err(DriveRulesError::NoHotStream(need));
    }
    let apps = &verified.program().apps;
    if let Some(need) = verified.needs().into_iter().find(is_durable) {
        if apps.len() > 1 {
            return Err(DriveRulesError::SeveralApps { what: "durable tables" });
        }
        let bytes = verified.program().durable_bytes().saturating_add(IDENTITY_BYTES.into());
        if bytes > ftl.owner_bytes.into() {
            let (table, available) = (need.part, ftl.owner_bytes.into());
            return Err(DriveRulesError::DurableTables { table, bytes, available });
        }
    }
    for rule in &verified.program().rules {
        if let RuleTrigger::Every { period_ns } = rule.trigger
            && period_ns < DriveRulesConfig::PERIOD_MIN.0
        {
            return Err(DriveRulesError::Period { rule: rule.name.clone(), period_ns });
        }
    }
    if needs_names(verified) {
        if verified.needs().iter().any(|need| need.feature == RuleFeature::Fetch) {
            return Err(DriveRulesError::Named {
                what: "rules that fetch sectors by their blocks",
            });
        }
        let app_ids = (0..apps.len()).map(AppId::from_index);
        let mut untold = app_ids.filter(|app| verified.moved_rules(*app).is_empty());
        if let Some(app) = untold.next() {
            return Err(DriveRulesError::NoMovedRule { app: apps[app.index()].name.clone() });
        }
    }
    check_units(apps, nand.geometry.total_pus())?;
    check_capacities(verified, capacities)
}

/// Checks that applications declare all sectors that they have. `capacities` are these, in the order of the
/// applications, as far as they are known.
///
/// # Errors
/// [`DriveRulesError::Capacity`].
pub(super) fn check_capacities(
    verified: &VerifiedProgram,
    capacities: &[u64],
) -> Result<(), DriveRulesError> {
    let apps = &verified.program().apps;
    match apps.iter().zip(capacities).find(|(app, capacity)| app.sectors < **capacity) {
        Some((app, capacity)) => {
            let (app, sectors, capacity) = (app.name.clone(), app.sectors, *capacity);
            Err(DriveRulesError::Capacity { app, sectors, capacity })
        }
        None => Ok(()),
    }
}

/// Checks that applications have all units of a drive.
fn check_units(apps: &[AppDeclaration], units: u32) -> Result<(), DriveRulesError> {
    let has = |app: &AppDeclaration, unit: u32| (app.first_unit..=app.last_unit).contains(&unit);
    let unowned = (0..units).find(|unit| !apps.iter().any(|app| has(app, *unit)));
    match (apps, unowned) {
        ([], _) => Err(DriveRulesError::NoApp),
        (_, None) => Ok(()),
        ([app], Some(_)) => {
            let (app, first, last) = (app.name.clone(), app.first_unit, app.last_unit);
            Err(DriveRulesError::Units { app, first, last, units })
        }
        (_, Some(unit)) => Err(DriveRulesError::UnownedUnit { unit, units }),
    }
}

/// The reason for which a drive does not take a program.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DriveRulesError {
    /// The bytes are no program.
    #[error("the rule program cannot be decoded: {0}")]
    Decode(#[from] ProgramDecodeError),
    /// The program is not accepted.
    #[error("the rule program is refused: {0}")]
    Verify(#[from] Box<VerifyError>),
    /// The program needs something that the drive does not execute.
    #[error("the drive does not execute {} yet, which `{}` needs", .0.feature, .0.part)]
    NotExecuted(RuleNeed),
    /// The program places data in the stream `hot`, and the drive has no lines for it.
    #[error(
        "the drive has no stream `hot`, in which `{}` places data: power it on with hot_stream = true",
        .0.part
    )]
    NoHotStream(RuleNeed),
    /// The journal has no space for the durable tables.
    #[error(
        "table {table} and the durable tables after it need {bytes} bytes in the journal, which keeps \
         {available}: set durable_memory to {bytes} or more, or declare smaller tables"
    )]
    DurableTables {
        /// The first of the tables.
        table: String,
        /// Bytes of all of them, and of the identity of the program.
        bytes: u64,
        /// Bytes that the journal keeps.
        available: u64,
    },
    /// A periodic rule runs too often.
    #[error(
        "rule {rule} runs every {period_ns} ns: the period must be at least {} ns",
        DriveRulesConfig::PERIOD_MIN.0
    )]
    Period {
        /// The rule.
        rule: String,
        /// Its period.
        period_ns: u64,
    },
    /// An idle drive polls its background rules too often.
    #[error(
        "an idle drive polls its background rules every {idle_poll}: the time must be at least {}",
        DriveRulesConfig::IDLE_POLL_MIN
    )]
    IdlePoll {
        /// The time between two polls.
        idle_poll: Nanos,
    },
    /// The drive has no rules.
    #[error("the drive has no rules: set personality = \"rules\"")]
    NoRules,
    /// A table of the program does not take an entry, or has none with such a key.
    #[error("table {table}, key {key}: {error}")]
    Table {
        /// The table.
        table: String,
        /// The index or the key.
        key: u64,
        /// The reason.
        error: RuleTableError,
    },
    /// The drive is not available: it has not recovered from a power cut.
    #[error("the drive has not recovered from a power cut")]
    NotReady,
    /// The installation cannot be counted in non-volatile memory, as one of a drive with durable tables is.
    #[error("the non-volatile memory of the drive cannot be written: {0}")]
    NonVolatile(String),
    /// A part of a program does not follow the parts before, or the program is too long.
    #[error(
        "a part of a program from byte {offset} to {end}, after {has} bytes: send the parts in order, \
         {maximum} bytes at most"
    )]
    Upload {
        /// First byte of the part.
        offset: u64,
        /// Byte after the part.
        end: u64,
        /// Bytes of the parts so far.
        has: u64,
        /// Bytes of a program at most.
        maximum: u64,
    },
    /// The program has no application.
    #[error("the rule program has no application: declare one on all parallel units of the drive")]
    NoApp,
    /// The application does not have the whole drive.
    #[error(
        "application {app} has parallel units {first} to {last}, and the drive has {units}: an \
         application must have all of them"
    )]
    Units {
        /// The application.
        app: String,
        /// Its first unit.
        first: u32,
        /// Its last unit.
        last: u32,
        /// Units of the drive.
        units: u32,
    },
    /// No application has a parallel unit.
    #[error(
        "no application has parallel unit {unit}, and the drive has {units}: applications must have all \
         of them"
    )]
    UnownedUnit {
        /// The unit.
        unit: u32,
        /// Units of the drive.
        units: u32,
    },
    /// A program for a drive that runs has other applications than the drive, or other quotas.
    #[error(
        "the drive has {has} applications, whose parallel units are {units}: a program that is installed \
         later must have as many, on the same units, with the same quotas and in this order"
    )]
    OtherUnits {
        /// Number of applications of the drive.
        has: usize,
        /// The units of each, and its quota.
        units: String,
    },
    /// The media have data of other applications, or of applications on other parallel units, or with other
    /// quotas.
    #[error(
        "the media have data of other applications, or of applications on other parallel units, or with other \
         quotas: the program of such media has the same applications' units and quotas, in the same order"
    )]
    OtherData,
    /// A drive with several applications does not do this.
    #[error("a drive with several applications has no {what}")]
    SeveralApps {
        /// The part that it does not have.
        what: &'static str,
    },
    /// Sectors of an application have names, but the program has no rule that tells its host of new ones.
    #[error(
        "sectors of {app} have names: it needs a rule with `moved({app})`, or its host would not learn of moves"
    )]
    NoMovedRule {
        /// Name of the application.
        app: String,
    },
    /// A drive whose sectors have names cannot have this.
    #[error("the sectors of this program have names, which do not go with {what}")]
    Named {
        /// The setting of the drive.
        what: &'static str,
    },
    /// A program for a drive that runs has names of sectors where the drive has logical addresses, or the
    /// reverse.
    #[error(
        "the sectors of the drive have {}, but those of the program do not: such a program is installed \
         when the drive is powered on for the first time",
        if *.is_named { "names" } else { "logical addresses" }
    )]
    OtherAddresses {
        /// Whether those of the drive have names.
        is_named: bool,
    },
    /// The program has no application of this name.
    #[error("the rule program has no application {app}: it has {names}")]
    UnknownApp {
        /// The name.
        app: String,
        /// The names of its applications.
        names: String,
    },
    /// The application has fewer sectors than the drive.
    #[error(
        "application {app} has {sectors} sectors, and the drive {capacity}: its spare share must be \
         at most the over-provisioning of the drive"
    )]
    Capacity {
        /// The application.
        app: String,
        /// Its sectors.
        sectors: u64,
        /// Sectors of the drive.
        capacity: u64,
    },
}
