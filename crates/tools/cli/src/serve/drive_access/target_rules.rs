//! [`named_rules`]: access to the rules of served drives and targets, by name.
//!
//! The rules of a drive belong to the thread that polls the drive, those of a target to the server of a
//! core. A program is replaced there between two requests. It is verified first, so that a refused one
//! changes nothing.

use std::sync::{Mutex, MutexGuard, PoisonError};

use controller::{
    AppRuleStats, DriveRuleStats, DriveRulesError, NamedRuleStats, RuleMissRecord, RuleTableEdit,
    RuleTableInfo, RuleUpload, edit_table, table_named, table_value,
};
use event::RealClock;
use pblk::{NamedTargetRule, Pblk, TargetRuleMisses, TargetRuleStats};
use rules::{RuleEngine, TableId};
use scenario::{DriveKind, HostTarget, Scenario};
use share_server::{
    OwnerChannel, RuleControl, RuleControlError, RuleOwner, RuleReport, RuleTableKey,
};
use stack::{CoreQueues, target_layers};

use crate::serve::ftl_control::{HostTargetOwner, host_targets};
use crate::serve::service::ServedDrive;
use crate::serve::unit::ServedUnit;

/// Returns the name of each emulated NVMe drive, and the access to its rules, or to those of its target
/// with rules. The threads that own them have the time of `clock`.
pub(in crate::serve) fn named_rules(
    scenario: &Scenario,
    drives: &[ServedDrive],
    units: &[ServedUnit],
    clock: RealClock,
) -> Vec<(String, RuleControl)> {
    let targets = host_targets(scenario, units);
    let nvme = drives.iter().filter(|drive| drive.plan.kind == DriveKind::Nvme);
    let control = |drive: &ServedDrive| {
        let name = drive.plan.config.name.clone();
        let target = targets.iter().find(|target| target.name == name);
        let owner =
            target.and_then(|target| target.owners.iter().find_map(HostTargetOwner::target));
        let control = match (&drive.plan.target, owner) {
            (HostTarget::Rules(_), Some((owner, only))) => RuleControl::of(TargetRuleOwner {
                owner: owner.clone(),
                only,
                clock,
                state: Mutex::default(),
            }),
            _ => RuleControl::new(drive.owner.clone(), clock),
        };
        (name, control)
    };
    nvme.map(control).collect()
}

/// The parts of the program that is uploaded, and the number of programs that replaced another one.
#[derive(Debug, Default)]
struct InstallationState {
    upload: RuleUpload,
    installations: u64,
}

/// The rules of a target.
#[derive(Debug)]
struct TargetRuleOwner {
    owner: OwnerChannel<CoreQueues>,
    /// The target with this index in the device of the server; `None` for its only one.
    only: Option<usize>,
    clock: RealClock,
    state: Mutex<InstallationState>,
}

impl TargetRuleOwner {
    fn state(&self) -> MutexGuard<'_, InstallationState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs a function on the thread that owns the target.
    fn call<T: Send + 'static>(
        &self,
        visit: impl FnOnce(&mut Pblk) -> T + Send + 'static,
    ) -> Result<T, RuleControlError> {
        let only = self.only;
        let run =
            move |device: &mut CoreQueues| target_layers::with_rule_target(device, only, visit);
        Ok(self.owner.call(run)?.ok_or(DriveRulesError::NoRules)?)
    }

    /// Runs a function with the engine of the target.
    fn call_engine<T: Send + 'static>(
        &self,
        visit: impl FnOnce(&mut RuleEngine) -> Result<T, DriveRulesError> + Send + 'static,
    ) -> Result<T, RuleControlError> {
        let run = |pblk: &mut Pblk| visit(pblk.rule_engine_mut().ok_or(DriveRulesError::NoRules)?);
        Ok(self.call(run)??)
    }
}

impl RuleOwner for TargetRuleOwner {
    fn report(&self) -> Result<RuleReport, RuleControlError> {
        let read = |pblk: &mut Pblk| {
            let engine = pblk.rule_engine_mut()?;
            let app = engine.program().program().apps.first().map(|app| app.name.clone());
            let tables = RuleTableInfo::of(engine);
            Some((pblk.rule_limits()?, tables, app.unwrap_or_default(), pblk.rule_stats()?))
        };
        let (limits, tables, app, stats) = self.call(read)?.ok_or(DriveRulesError::NoRules)?;
        Ok(RuleReport {
            units: limits.grant.units,
            unit_sectors: limits.grant.unit_sectors,
            sector_bytes: limits.sector_bytes,
            lines: limits.lines,
            table_bytes: limits.grant.table_bytes,
            command_ops: limits.grant.command_ops,
            background_ops: limits.grant.background_ops,
            tables,
            stats: counters(stats, app, self.state().installations),
        })
    }

    fn install(&self, program: Vec<u8>) -> Result<u64, RuleControlError> {
        let clock = self.clock;
        let replaced = self.call(move |pblk| pblk.replace_rules(clock.now(), program))?;
        replaced.map_err(|error| RuleControlError::Target(error.to_string()))?;
        self.state().installations += 1;
        // No request is parked.
        Ok(0)
    }

    fn upload(&self, offset: u64, part: Vec<u8>) -> Result<(), RuleControlError> {
        Ok(self.state().upload.add(offset, &part)?)
    }

    fn install_uploaded(&self) -> Result<u64, RuleControlError> {
        let program = self.state().upload.take();
        self.install(program)
    }

    fn reject(&self, _: Option<String>) -> Result<u64, RuleControlError> {
        Err(RuleControlError::NothingParked)
    }

    fn edit_table(
        &self,
        table: RuleTableKey,
        edits: Vec<RuleTableEdit>,
    ) -> Result<(), RuleControlError> {
        self.call_engine(move |engine| {
            let table = find_table(engine, &table)?;
            // A target has no durable tables.
            edit_table(engine, table, &edits, &mut |_| {})
        })
    }

    fn table_values(
        &self,
        table: RuleTableKey,
        first: u64,
        count: u32,
    ) -> Result<Vec<u64>, RuleControlError> {
        self.call_engine(move |engine| {
            let table = find_table(engine, &table)?;
            let keys = (0..u64::from(count)).map(|n| first.saturating_add(n));
            keys.map(|key| table_value(engine, table, key)).collect()
        })
    }
}

fn find_table(engine: &RuleEngine, table: &RuleTableKey) -> Result<TableId, DriveRulesError> {
    match table {
        RuleTableKey::Number(number) => Ok(TableId::new(*number)),
        RuleTableKey::Name(name) => table_named(engine, name),
    }
}

/// Returns the counters of a target as those of a drive. A target has no engines that take time, and reads
/// nothing for its rules.
fn counters(stats: TargetRuleStats, app: String, installations: u64) -> DriveRuleStats {
    let missed = |missed: &TargetRuleMisses| RuleMissRecord {
        op: missed.op.name().to_owned(),
        misses: missed.misses,
        lba: missed.lba,
        blocks: missed.sectors,
        ..RuleMissRecord::default()
    };
    let rule = |rule: &NamedTargetRule| NamedRuleStats {
        name: rule.name.clone(),
        matches: rule.counters.matches,
        faults: rule.counters.faults,
        ops: rule.counters.ops,
    };
    let app = AppRuleStats {
        name: app,
        inputs: stats.inputs,
        misses: stats.miss_count(),
        ops: stats.ops,
        polls: stats.polls,
        idle_polls: stats.idle_polls,
        periodic: stats.periodic,
        victims: stats.victims,
        relocated: stats.relocated,
        policy_victims: stats.policy_victims,
        hot_sectors: stats.hot_sectors,
    };
    DriveRuleStats {
        apps: vec![app],
        rules: stats.rules.iter().map(rule).collect(),
        inputs: stats.inputs,
        misses: stats.miss_count(),
        missed: stats.missed.iter().map(missed).collect(),
        installations,
        ops: stats.ops,
        polls: stats.polls,
        idle_polls: stats.idle_polls,
        periodic: stats.periodic,
        victims: stats.victims,
        relocated: stats.relocated,
        policy_victims: stats.policy_victims,
        hot_sectors: stats.hot_sectors,
        ..DriveRuleStats::default()
    }
}
