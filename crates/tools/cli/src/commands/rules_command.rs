//! `sluice rules`: checks and explains rule programs (`docs/rules.md`).

use std::fmt::Write as _;
use std::path::Path;

use rules::{AppId, InputOp, RuleGrant, RuleId, RuleTrigger, TableId, TableKind, VerifiedProgram};
use rules_lang::CompileOptions;
use serde_json::{Value, json};

use super::rules_admin;
use crate::args::{RulesArgs, RulesGrantArgs};
use crate::{CliError, print};

/// Runs `sluice rules …`.
///
/// # Errors
/// [`CliError`] if a program cannot be read or is not accepted.
pub fn run(args: &RulesArgs) -> Result<(), CliError> {
    match args {
        RulesArgs::Check(args) => {
            let mut checked = Vec::new();
            for file in &args.files {
                checked.push((file.as_path(), load(file, &args.grant)?));
            }
            if args.grant.json {
                let programs = checked.iter().map(|(file, verified)| summary(file, verified));
                let programs: Vec<Value> = programs.collect();
                return print(&format!("{:#}\n", json!({ "programs": programs })));
            }
            let line = |(file, verified): &(&Path, VerifiedProgram)| {
                let program = verified.program();
                format!(
                    "{}: {} rules, {} operations per command and {} in the background at most, {} of tables\n",
                    file.display(),
                    program.rules.len(),
                    command_max(verified),
                    background_max(verified),
                    scenario::format::bytes_binary(table_bytes(verified)),
                )
            };
            print(&checked.iter().map(line).collect::<String>())
        }
        RulesArgs::Explain(args) => {
            let verified = load(&args.file, &args.grant)?;
            match args.grant.json {
                true => print(&format!("{:#}\n", explain_json(&args.file, &verified))),
                false => print(&explain_text(&verified)),
            }
        }
        RulesArgs::Install { drive, file } => rules_admin::install(drive, file),
        RulesArgs::List(drive) => rules_admin::list(drive),
        RulesArgs::Stats(drive) => rules_admin::stats(drive),
        RulesArgs::Miss { drive, reject: Some(rejected) } => rules_admin::reject(drive, *rejected),
        RulesArgs::Miss { drive, reject: None } => rules_admin::print_missed(drive),
    }
}

/// Parses a number such as 4096, or one with a suffix such as 16M.
///
/// # Errors
/// The allowed form.
pub fn count(text: &str) -> Result<u64, String> {
    let allowed = "a number such as 4096, 64K or 16M";
    text.parse().ok().or_else(|| scenario::units::size(text)).ok_or_else(|| allowed.to_owned())
}

fn options(args: &RulesGrantArgs) -> CompileOptions {
    CompileOptions {
        grant: RuleGrant {
            units: args.units,
            unit_sectors: args.unit_sectors,
            apps: None,
            table_bytes: args.table_memory,
            command_ops: args.ops,
            background_ops: args.background_ops,
            allows_global: args.global,
        },
        sector_bytes: args.sector_bytes,
        lines: args.lines,
    }
}

fn load(file: &Path, args: &RulesGrantArgs) -> Result<VerifiedProgram, CliError> {
    compile(file, &options(args))
}

/// Compiles and verifies the program of a file.
///
/// # Errors
/// [`CliError`] if it cannot be read or is not accepted.
pub(super) fn compile(file: &Path, options: &CompileOptions) -> Result<VerifiedProgram, CliError> {
    let bytes = std::fs::read(file)
        .map_err(|error| CliError::Usage(format!("cannot read {}: {error}", file.display())))?;
    rules_lang::check(file, &bytes, options).map_err(CliError::Rules)
}

fn apps(verified: &VerifiedProgram) -> impl Iterator<Item = (AppId, &str)> + '_ {
    let apps = verified.program().apps.iter().enumerate();
    apps.map(|(at, app)| (AppId::from_index(at), app.name.as_str()))
}

fn command_max(verified: &VerifiedProgram) -> u64 {
    let costs = apps(verified).flat_map(|(app, _)| {
        InputOp::ALL.into_iter().map(move |(op, _)| verified.command_cost(app, op))
    });
    costs.max().unwrap_or(0)
}

fn background_max(verified: &VerifiedProgram) -> u64 {
    let of_apps =
        apps(verified).map(|(app, _)| verified.background_cost(app).max(verified.moved_cost(app)));
    let rules = verified.program().rules.iter().enumerate();
    let periodic = rules
        .filter(|(_, rule)| matches!(rule.trigger, RuleTrigger::Every { .. }))
        .map(|(at, _)| verified.rule_cost(RuleId::from_index(at)));
    let global = verified.background_cost(AppId::GLOBAL);
    of_apps.chain(periodic).chain([global]).max().unwrap_or(0)
}

fn table_ids(verified: &VerifiedProgram) -> impl Iterator<Item = TableId> + use<> {
    (0..verified.program().tables.len()).map(TableId::from_index)
}

fn table_bytes(verified: &VerifiedProgram) -> u64 {
    table_ids(verified).map(|table| verified.table_bytes(table)).sum()
}

fn summary(file: &Path, verified: &VerifiedProgram) -> Value {
    let program = verified.program();
    json!({
        "file": file.to_string_lossy(),
        "apps": program.apps.len(),
        "rules": program.rules.len(),
        "tables": program.tables.len(),
        "instructions": program.code.len(),
        "encoded_bytes": program.encode().len(),
        "command_ops": command_max(verified),
        "background_ops": background_max(verified),
        "table_bytes": table_bytes(verified),
    })
}

fn kind(kind: TableKind) -> String {
    let bits = |width: rules::IntWidth| 8 * width.bytes();
    match kind {
        TableKind::Address => "addr".into(),
        TableKind::Array(width) => format!("u{}", bits(width)),
        TableKind::Set(width) => format!("set<u{}>", bits(width)),
        TableKind::Map { key, value } => format!("map<u{},u{}>", bits(key), bits(value)),
    }
}

fn trigger(trigger: RuleTrigger) -> String {
    match trigger {
        RuleTrigger::Command => "command".into(),
        RuleTrigger::Background => "background".into(),
        RuleTrigger::Every { period_ns } => format!("every {period_ns} ns"),
        RuleTrigger::Moved => "moved".into(),
    }
}

/// The rules that an input is matched with, and its cost.
struct MatchOrder<'a> {
    app: &'a str,
    input: String,
    cost: u64,
    rules: &'a [RuleId],
}

/// Returns the order of rules for each input that has rules.
fn orders(verified: &VerifiedProgram) -> Vec<MatchOrder<'_>> {
    let mut found = Vec::new();
    for (app, name) in apps(verified).chain([(AppId::GLOBAL, "drive")]) {
        if app != AppId::GLOBAL {
            for (op, input) in InputOp::ALL {
                let (cost, rules) =
                    (verified.command_cost(app, op), verified.command_rules(app, op));
                found.push(MatchOrder { app: name, input: input.to_owned(), cost, rules });
            }
            let (cost, rules) = (verified.moved_cost(app), verified.moved_rules(app));
            found.push(MatchOrder { app: name, input: "moved".into(), cost, rules });
        }
        let (cost, rules) = (verified.background_cost(app), verified.background_rules(app));
        found.push(MatchOrder { app: name, input: "background".into(), cost, rules });
    }
    found.retain(|order| !order.rules.is_empty());
    found
}

fn names(verified: &VerifiedProgram, rules: &[RuleId]) -> Vec<String> {
    rules.iter().map(|rule| verified.program().rules[rule.index()].name.clone()).collect()
}

fn explain_json(file: &Path, verified: &VerifiedProgram) -> Value {
    let program = verified.program();
    let app_name = |app: AppId| program.apps.get(app.index()).map_or("drive", |app| &app.name);
    let mut explained = summary(file, verified);
    let rules = program.rules.iter().enumerate().map(|(at, rule)| {
        json!({
            "name": rule.name,
            "app": app_name(rule.app),
            "trigger": trigger(rule.trigger),
            "priority": rule.priority,
            "hops": rule.hops,
            "line": rule.location.line,
            "column": rule.location.column,
            "ops": verified.rule_cost(RuleId::from_index(at)),
        })
    });
    let tables = table_ids(verified).map(|id| {
        let table = &program.tables[id.index()];
        json!({
            "name": table.name,
            "app": app_name(table.app),
            "kind": kind(table.kind),
            "capacity": table.capacity,
            "durable": table.is_durable,
            "bytes": verified.table_bytes(id),
        })
    });
    let inputs = orders(verified).into_iter().map(|order| {
        let rules = names(verified, order.rules);
        json!({ "app": order.app, "input": order.input, "ops": order.cost, "rules": rules })
    });
    explained["rules"] = rules.collect();
    explained["tables"] = tables.collect();
    explained["inputs"] = inputs.collect();
    explained
}

fn explain_text(verified: &VerifiedProgram) -> String {
    let program = verified.program();
    let mut text =
        String::from("rule                             trigger           priority  ops at most\n");
    for (at, rule) in program.rules.iter().enumerate() {
        let (ops, trigger) = (verified.rule_cost(RuleId::from_index(at)), trigger(rule.trigger));
        let (name, priority) = (&rule.name, rule.priority);
        // Writing to a string does not fail.
        let _ = writeln!(text, "{name:<32} {trigger:<17} {priority:>8} {ops:>12}");
    }
    text.push_str(
        "\ninput                            ops at most  rules in the order of matching\n",
    );
    for order in orders(verified) {
        let input = format!("{} of {}", order.input, order.app);
        let rules = names(verified, order.rules).join(", ");
        let _ = writeln!(text, "{input:<32} {:>11}  {rules}", order.cost);
    }
    if !program.tables.is_empty() {
        text.push_str(
            "\ntable                            kind             capacity        bytes\n",
        );
    }
    for id in table_ids(verified) {
        let table = &program.tables[id.index()];
        let (name, kind, capacity) = (&table.name, kind(table.kind), table.capacity);
        let (bytes, durable) = (verified.table_bytes(id), table.is_durable);
        let durable = if durable { "durable" } else { "volatile" };
        let _ = writeln!(text, "{name:<32} {kind:<12} {capacity:>12} {bytes:>12}  {durable}");
    }
    text
}
