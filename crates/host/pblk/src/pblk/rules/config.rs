//! [`TargetRulesConfig`]: the rules of a target, and the reasons for which it does not take a program.

use ftl::{FtlConfig, victim_lines_max};
use nvme::Geometry;
use rules::{
    PlacementStream, ProgramDecodeError, RuleFeature, RuleGrant, RuleLimits, RuleNeed, RuleProgram,
    RuleTrigger, VerifiedProgram, VerifyError, verify,
};
use time::Nanos;

/// The rules of a target over a whole open-channel drive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TargetRulesConfig {
    /// The program in its encoded form (`docs/format/rule-program.md`). It has one application, on all
    /// parallel units.
    pub program: Vec<u8>,
    /// Operations of a request in the worst case.
    pub ops: u64,
    /// Bytes of all tables.
    pub table_bytes: u64,
    /// Time without a request after which the target polls its background rules; `None` if only a
    /// target that needs space does.
    pub idle_poll: Option<Nanos>,
}

impl Default for TargetRulesConfig {
    /// No program, 4096 operations and 64 MiB of tables.
    fn default() -> TargetRulesConfig {
        TargetRulesConfig { program: Vec::new(), ops: 4096, table_bytes: 64 << 20, idle_poll: None }
    }
}

impl TargetRulesConfig {
    /// Minimum period of a periodic rule.
    pub const PERIOD_MIN: Nanos = Nanos(1_000_000);
    /// Minimum time between two polls of the background rules by an idle target.
    pub const IDLE_POLL_MIN: Nanos = Nanos(1_000);

    /// Returns what a program of a target over a drive with this geometry may use. `active_pus` is that
    /// of [`FtlConfig`].
    pub fn limits(&self, geometry: &Geometry, active_pus: u32) -> RuleLimits {
        let units = geometry.groups * geometry.pus;
        let grant = RuleGrant {
            units,
            unit_sectors: geometry.total_sectors() / u64::from(units.max(1)),
            apps: None,
            table_bytes: self.table_bytes,
            command_ops: self.ops,
            ..RuleGrant::default()
        };
        let lines = victim_lines_max(geometry.total_chunks(), units, active_pus);
        RuleLimits { grant, sector_bytes: geometry.sector_bytes, lines }
    }

    /// Decodes and verifies the program for a target over a drive with this geometry, with this
    /// configuration of its FTL, and with a capacity in sectors if it is known.
    ///
    /// # Errors
    /// [`TargetRulesError`].
    pub fn verified(
        &self,
        geometry: &Geometry,
        ftl: &FtlConfig,
        capacity: Option<u64>,
    ) -> Result<VerifiedProgram, TargetRulesError> {
        if let Some(idle_poll) = self.idle_poll.filter(|idle| *idle < Self::IDLE_POLL_MIN) {
            return Err(TargetRulesError::IdlePoll { idle_poll });
        }
        let program = RuleProgram::decode(&self.program)?;
        let limits = self.limits(geometry, ftl.active_pus);
        let verified = verify(program, &limits.grant).map_err(Box::new)?;
        TargetRulesConfig::check_executable(&verified, geometry, ftl, capacity)?;
        Ok(verified)
    }

    /// Checks that a target executes everything that a verified program needs.
    ///
    /// # Errors
    /// [`TargetRulesError`].
    pub fn check_executable(
        verified: &VerifiedProgram,
        geometry: &Geometry,
        ftl: &FtlConfig,
        capacity: Option<u64>,
    ) -> Result<(), TargetRulesError> {
        for need in verified.needs() {
            if let Some(reason) = reason_against(need.feature) {
                return Err(TargetRulesError::NotExecuted { need, reason });
            }
            let is_hot = need.feature == RuleFeature::Place(PlacementStream::Hot);
            if is_hot && !ftl.hot_stream {
                return Err(TargetRulesError::NoHotStream(need));
            }
        }
        for rule in &verified.program().rules {
            if let RuleTrigger::Every { period_ns } = rule.trigger
                && period_ns < TargetRulesConfig::PERIOD_MIN.0
            {
                return Err(TargetRulesError::Period { rule: rule.name.clone(), period_ns });
            }
        }
        let Some(app) = verified.program().apps.first() else {
            return Err(TargetRulesError::NoApp);
        };
        let units = geometry.groups * geometry.pus;
        if app.first_unit != 0 || app.last_unit + 1 != units {
            let (name, first, last) = (app.name.clone(), app.first_unit, app.last_unit);
            return Err(TargetRulesError::Units { app: name, first, last, units });
        }
        match capacity {
            Some(capacity) if app.sectors < capacity => {
                let (app, sectors) = (app.name.clone(), app.sectors);
                Err(TargetRulesError::Capacity { app, sectors, capacity })
            }
            _ => Ok(()),
        }
    }
}

/// Returns the reason for which a target does not execute a feature; `None` if it does.
fn reason_against(feature: RuleFeature) -> Option<&'static str> {
    use PlacementStream::{Cold, Gc, Host, Hot};
    match feature {
        RuleFeature::Place(Host | Hot) | RuleFeature::Move(Gc | Cold) | RuleFeature::Periodic => {
            None
        }
        RuleFeature::Place(_) => Some("pblk places writes in the streams `host` and `hot`"),
        RuleFeature::Move(_) => Some("pblk moves valid data to the streams `gc` and `cold`"),
        RuleFeature::Apps | RuleFeature::SharedUnits => Some("a target is one block device"),
        RuleFeature::Fetch => {
            Some("a request of a block device is one read or one write, and returns no records")
        }
        RuleFeature::Post => Some("a block device reports no events"),
        RuleFeature::Names | RuleFeature::Tags | RuleFeature::Moved => {
            Some("a request of a block device has neither names nor tags of sectors")
        }
        RuleFeature::DurableTables => Some("the journal of pblk has no records of tables"),
    }
}

/// The reason for which a target does not take a program.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TargetRulesError {
    /// The bytes are no program.
    #[error("the rule program cannot be decoded: {0}")]
    Decode(#[from] ProgramDecodeError),
    /// The program is not accepted.
    #[error("the rule program is refused: {0}")]
    Verify(#[from] Box<VerifyError>),
    /// The program needs something that a target does not execute.
    #[error(
        "a target on the host does not execute {}, which `{}` needs: {reason}",
        .need.feature,
        .need.part
    )]
    NotExecuted {
        /// The feature, and the part that needs it.
        need: RuleNeed,
        /// The reason.
        reason: &'static str,
    },
    /// The program places data in the stream `hot`, and the target has no lines for it.
    #[error(
        "the target has no stream `hot`, in which `{}` places data: open it with hot_stream = true",
        .0.part
    )]
    NoHotStream(RuleNeed),
    /// A periodic rule runs too often.
    #[error(
        "rule {rule} runs every {period_ns} ns: the period must be at least {} ns",
        TargetRulesConfig::PERIOD_MIN.0
    )]
    Period {
        /// The rule.
        rule: String,
        /// Its period.
        period_ns: u64,
    },
    /// An idle target polls its background rules too often.
    #[error(
        "an idle target polls its background rules every {idle_poll}: the time must be at least {}",
        TargetRulesConfig::IDLE_POLL_MIN
    )]
    IdlePoll {
        /// The time between two polls.
        idle_poll: Nanos,
    },
    /// The target has no rules.
    #[error("the target has no rules: set kind = \"rules\"")]
    NoRules,
    /// The program has no application.
    #[error("the rule program has no application: declare one on all parallel units of the drive")]
    NoApp,
    /// The application does not have the whole drive.
    #[error(
        "application {app} has parallel units {first} to {last}, and the target {units}: an \
         application must have all of them"
    )]
    Units {
        /// The application.
        app: String,
        /// Its first unit.
        first: u32,
        /// Its last unit.
        last: u32,
        /// Units of the target.
        units: u32,
    },
    /// The application has fewer sectors than the target.
    #[error(
        "application {app} has {sectors} sectors, and the target {capacity}: its spare share must be \
         at most the over-provisioning of the target"
    )]
    Capacity {
        /// The application.
        app: String,
        /// Its sectors.
        sectors: u64,
        /// Sectors of the target.
        capacity: u64,
    },
}
