//! Rules of a drive or a target in results: their settings and their counters.

use controller::{AppRuleStats, DriveRuleStats, DriveRulesConfig, NamedRuleStats, RuleMissRecord};
use pblk::{NamedTargetRule, TargetRuleMisses, TargetRuleStats, TargetRulesConfig};
use rules::RuleProgram;
use serde_json::{Value, json};

/// Returns the settings of the rules, with the names of the application's rules.
/// `hot_stream` tells whether the drive has the stream `hot`.
pub(crate) fn rule_settings(rules: &DriveRulesConfig, hot_stream: bool) -> Value {
    let program = RuleProgram::decode(&rules.program).unwrap_or_default();
    let names = |names: Vec<&String>| json!(names);
    json!({
        "apps": names(program.apps.iter().map(|app| &app.name).collect()),
        "rules": names(program.rules.iter().map(|rule| &rule.name).collect()),
        "instructions": program.code.len(),
        "engines": rules.engines,
        "op_ns": rules.op.0,
        "ops": rules.ops,
        "table_bytes": rules.table_bytes,
        "miss_timeout_ns": rules.misses.timeout.0,
        "parked": rules.misses.parked_max,
        "idle_poll_ns": rules.idle_poll.map(|idle| idle.0),
        "hot_stream": hot_stream,
    })
}

/// Returns the counters of the rules during the run.
pub(crate) fn rule_counters(stats: &DriveRuleStats) -> Value {
    let rule = |rule: &NamedRuleStats| {
        json!({
            "name": rule.name,
            "matches": rule.matches,
            "faults": rule.faults,
            "ops": rule.ops,
        })
    };
    let app = |app: &AppRuleStats| {
        json!({
            "name": app.name,
            "inputs": app.inputs,
            "misses": app.misses,
            "ops": app.ops,
            "polls": app.polls,
            "victims": app.victims,
            "policy_victims": app.policy_victims,
            "idle_polls": app.idle_polls,
            "periodic": app.periodic,
            "relocated": app.relocated,
            "hot_sectors": app.hot_sectors,
        })
    };
    let missed = |record: &RuleMissRecord| {
        json!({
            "op": record.op,
            "misses": record.misses,
            "parked": record.parked,
            "released": record.released,
            "rejected": record.rejected,
            "timed_out": record.timed_out,
            "refused": record.refused,
            "aborted": record.aborted,
            "lba": record.lba,
            "blocks": record.blocks,
            "first_ns": record.first_at.0,
            "last_ns": record.last_at.0,
        })
    };
    json!({
        "inputs": stats.inputs,
        "misses": stats.misses,
        "missed": stats.missed.iter().map(missed).collect::<Vec<_>>(),
        "installations": stats.installations,
        "ops": stats.ops,
        "polls": stats.polls,
        "victims": stats.victims,
        "policy_victims": stats.policy_victims,
        "idle_polls": stats.idle_polls,
        "periodic": stats.periodic,
        "relocated": stats.relocated,
        "hot_sectors": stats.hot_sectors,
        "engine_busy_ns": stats.engine_busy.0,
        "fetches": stats.sectors.fetches,
        "fetch_reads": stats.sectors.reads,
        "emitted_bytes": stats.sectors.emitted_bytes,
        "context_waits": stats.sectors.waits,
        "apps": stats.apps.iter().map(app).collect::<Vec<_>>(),
        "rules": stats.rules.iter().map(rule).collect::<Vec<_>>(),
    })
}

/// Returns the settings of the rules of a target, with the names of the application's rules.
/// `hot_stream` tells whether the target has the stream `hot`.
pub(crate) fn target_rule_settings(rules: &TargetRulesConfig, hot_stream: bool) -> Value {
    let program = RuleProgram::decode(&rules.program).unwrap_or_default();
    json!({
        "apps": program.apps.iter().map(|app| &app.name).collect::<Vec<_>>(),
        "rules": program.rules.iter().map(|rule| &rule.name).collect::<Vec<_>>(),
        "instructions": program.code.len(),
        "ops": rules.ops,
        "table_bytes": rules.table_bytes,
        "idle_poll_ns": rules.idle_poll.map(|idle| idle.0),
        "hot_stream": hot_stream,
    })
}

/// Returns the counters of the rules of a target during the run.
pub(crate) fn target_rule_counters(stats: &TargetRuleStats) -> Value {
    let rule = |rule: &NamedTargetRule| {
        json!({
            "name": rule.name,
            "matches": rule.counters.matches,
            "faults": rule.counters.faults,
            "ops": rule.counters.ops,
        })
    };
    let missed = |missed: &TargetRuleMisses| {
        json!({
            "op": missed.op.name(),
            "misses": missed.misses,
            "lba": missed.lba,
            "blocks": missed.sectors,
        })
    };
    let mut counters = json!({
        "inputs": stats.inputs,
        "misses": stats.miss_count(),
        "ops": stats.ops,
        "polls": stats.polls,
        "victims": stats.victims,
        "policy_victims": stats.policy_victims,
        "idle_polls": stats.idle_polls,
        "periodic": stats.periodic,
        "relocated": stats.relocated,
        "hot_sectors": stats.hot_sectors,
    });
    // The only application has all of them.
    let mut app = counters.clone();
    app["name"] = json!(stats.app);
    counters["missed"] = stats.missed.iter().map(missed).collect();
    counters["apps"] = json!([app]);
    counters["rules"] = stats.rules.iter().map(rule).collect();
    counters
}
