//! [`target_rule_control`]: the rules of a target on the host, for threads other than the one that polls
//! it.
//!
//! A program is replaced between two requests. It is verified first, so that a refused one changes
//! nothing.

use std::sync::{Mutex, MutexGuard, PoisonError};

use block::BlockDevice;
use controller::{
    AppRuleStats, DriveRuleStats, DriveRulesError, NamedRuleStats, RuleMissRecord, RuleTableEdit,
    RuleTableInfo, RuleUpload, edit_table, table_named, table_value,
};
use event::RealClock;
use pblk::{NamedTargetRule, Pblk, TargetRuleMisses, TargetRuleStats};
use rules::{RuleEngine, TableId};
use share_server::{
    OwnerChannel, OwnerStopped, RuleControl, RuleControlError, RuleOwner, RuleReport, RuleTableKey,
};

use super::{CoreQueues, target_layers};

/// The path of a thread to a device that has a target, between two calls of the device's owner.
pub trait TargetAccess: Send + Sync + 'static {
    /// Runs a function with the device, and returns its result.
    ///
    /// # Errors
    /// [`OwnerStopped`] if the device is closed; the function has not run.
    fn with_device<T: Send + 'static>(
        &self,
        visit: impl FnOnce(&mut dyn BlockDevice) -> T + Send + 'static,
    ) -> Result<T, OwnerStopped>;
}

impl TargetAccess for OwnerChannel<CoreQueues> {
    fn with_device<T: Send + 'static>(
        &self,
        visit: impl FnOnce(&mut dyn BlockDevice) -> T + Send + 'static,
    ) -> Result<T, OwnerStopped> {
        self.call(|device| visit(device))
    }
}

/// Returns the access to the rules of a target: of the one with index `only` in the order of the layers of
/// the device, or of its only one. The owner of the device polls it in the time of `clock`.
pub fn target_rule_control(
    access: impl TargetAccess,
    only: Option<usize>,
    clock: RealClock,
) -> RuleControl {
    RuleControl::of(TargetRuleOwner { access, only, clock, state: Mutex::default() })
}

/// The parts of the program that is uploaded, and the number of programs that replaced another one.
#[derive(Debug, Default)]
struct InstallationState {
    upload: RuleUpload,
    installations: u64,
}

/// The rules of a target.
#[derive(Debug)]
struct TargetRuleOwner<A> {
    access: A,
    only: Option<usize>,
    clock: RealClock,
    state: Mutex<InstallationState>,
}

impl<A: TargetAccess> TargetRuleOwner<A> {
    fn state(&self) -> MutexGuard<'_, InstallationState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs a function with the target, between two requests.
    fn call<T: Send + 'static>(
        &self,
        visit: impl FnOnce(&mut Pblk) -> T + Send + 'static,
    ) -> Result<T, RuleControlError> {
        let only = self.only;
        let run = move |device: &mut dyn BlockDevice| {
            target_layers::with_rule_target(device, only, visit)
        };
        Ok(self.access.with_device(run)?.ok_or(DriveRulesError::NoRules)?)
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

impl<A: TargetAccess> RuleOwner for TargetRuleOwner<A> {
    fn report(&self) -> Result<RuleReport, RuleControlError> {
        let read = |pblk: &mut Pblk| {
            let tables = RuleTableInfo::of(pblk.rule_engine_mut()?);
            Some((pblk.rule_limits()?, tables, pblk.rule_stats()?))
        };
        let (limits, tables, stats) = self.call(read)?.ok_or(DriveRulesError::NoRules)?;
        Ok(RuleReport::new(&limits, tables, counters(&stats, self.state().installations)))
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
fn counters(stats: &TargetRuleStats, installations: u64) -> DriveRuleStats {
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
        name: stats.app.clone(),
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
        rules: stats.rules.iter().map(rule).collect(),
        missed: stats.missed.iter().map(missed).collect(),
        installations,
        ..DriveRuleStats::of_apps(vec![app])
    }
}
