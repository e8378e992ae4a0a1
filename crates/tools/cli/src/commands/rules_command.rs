//! `sluice rules`: checks and explains rule programs (`docs/rules.md`).

use std::fmt::Write as _;
use std::path::Path;

use media::MediaConfig;
use rules::{AppId, InputOp, RuleGrant, RuleId, RuleTrigger, TableId, VerifiedProgram};
use rules_lang::CompileOptions;
use scenario::HostTarget;
use serde_json::{Value, json};

use super::rules_admin;
use crate::args::{RulesArgs, RulesGrantArgs};
use crate::{CliError, load_scenario, print};

/// Runs `sluice rules …`.
///
/// # Errors
/// [`CliError`] if a program cannot be read or is not accepted.
pub fn run(args: &RulesArgs) -> Result<(), CliError> {
    match args {
        RulesArgs::Check(args) => {
            let mut checked = Vec::new();
            for file in &args.files {
                checked.extend(load(file, &args.grant)?);
            }
            if args.grant.json {
                let programs: Vec<Value> = checked.iter().map(summary).collect();
                return print(&format!("{:#}\n", json!({ "programs": programs })));
            }
            let line = |checked: &CheckedProgram| {
                let program = checked.verified.program();
                format!(
                    "{}: {} rules, {} operations per command and {} in the background at most, {} of tables\n",
                    checked.name,
                    program.rules.len(),
                    command_max(&checked.verified),
                    background_max(&checked.verified),
                    scenario::format::bytes_binary(table_bytes(&checked.verified)),
                )
            };
            print(&checked.iter().map(line).collect::<String>())
        }
        RulesArgs::Explain(args) => {
            let explained = load(&args.file, &args.grant)?;
            if args.grant.json {
                let programs: Vec<Value> = explained.iter().map(explain_json).collect();
                return print(&match &programs[..] {
                    [program] => format!("{program:#}\n"),
                    programs => format!("{:#}\n", json!({ "programs": programs })),
                });
            }
            let is_alone = explained.len() == 1;
            let text = |explained: &CheckedProgram| {
                let title =
                    if is_alone { String::new() } else { format!("{}\n\n", explained.name) };
                format!("{title}{}", explain_text(&explained.verified))
            };
            print(&explained.iter().map(text).collect::<Vec<_>>().join("\n"))
        }
        RulesArgs::Install { drive, file } => rules_admin::install(drive, file),
        RulesArgs::List(drive) => rules_admin::list(drive),
        RulesArgs::Stats(drive) => rules_admin::stats(drive),
        RulesArgs::Table { drive, table, access } => rules_admin::table(drive, table, access),
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

/// A program, and where it is.
struct CheckedProgram {
    /// The file, and the drive of a scenario.
    name: String,
    verified: VerifiedProgram,
}

fn options(args: &RulesGrantArgs) -> CompileOptions {
    CompileOptions {
        grant: RuleGrant {
            units: args.units.unwrap_or(128),
            unit_sectors: args.unit_sectors.unwrap_or(1 << 18),
            apps: None,
            table_bytes: args.table_memory.unwrap_or(64 << 20),
            command_ops: args.ops.unwrap_or(4096),
            background_ops: args.background_ops.unwrap_or(16 << 20),
            allows_global: args.global,
        },
        sector_bytes: args.sector_bytes.unwrap_or(4096),
        lines: args.lines.unwrap_or(4096),
    }
}

/// Returns whether an option says what a drive grants.
fn has_grants(args: &RulesGrantArgs) -> bool {
    let RulesGrantArgs { units, unit_sectors, sector_bytes, lines, .. } = args;
    let RulesGrantArgs { ops, background_ops, table_memory, global, .. } = args;
    let has_number = units.is_some() || sector_bytes.is_some() || lines.is_some();
    has_number
        || [unit_sectors, ops, background_ops, table_memory].iter().any(|n| n.is_some())
        || *global
}

/// Checks the program of a source file, or those of the drives of a scenario.
fn load(file: &Path, args: &RulesGrantArgs) -> Result<Vec<CheckedProgram>, CliError> {
    let name = file.display().to_string();
    if file.extension().is_none_or(|extension| extension != "toml") {
        let verified = compile(file, &options(args))?;
        return Ok(vec![CheckedProgram { name, verified }]);
    }
    if has_grants(args) {
        let text = format!("{name} is a scenario, whose drives say what they grant");
        return Err(CliError::Usage(text));
    }
    let mut checked = Vec::new();
    for drive in &load_scenario(file)?.drives {
        let (config, sector_bytes) = (&drive.config, u64::from(drive.config.sector_bytes().max(1)));
        let MediaConfig::Nand(nand) = &config.media else { continue };
        // A drive with several applications has no capacity of its own.
        let capacity = drive.capacity.as_ref().map(|c| c.logical_bytes() / sector_bytes);
        let name = format!("{name}, {}", config.name);
        let verified = match (&config.rules, &drive.target) {
            (Some(rules), _) => rules
                .verified(nand, &config.ftl, capacity.as_slice())
                .map_err(|error| error.to_string()),
            (None, HostTarget::Rules(target)) => {
                let geometry = nand.host_geometry();
                let verified = target.rules.verified(&geometry, &target.ftl, capacity);
                verified.map_err(|error| error.to_string())
            }
            _ => continue,
        };
        let verified = verified.map_err(|error| CliError::Usage(format!("{name}: {error}")))?;
        checked.push(CheckedProgram { name, verified });
    }
    match checked.is_empty() {
        true => Err(CliError::Usage(format!(
            "{name} has no drive with personality = \"rules\", and no target of kind \"rules\""
        ))),
        false => Ok(checked),
    }
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

fn summary(CheckedProgram { name, verified }: &CheckedProgram) -> Value {
    let program = verified.program();
    json!({
        "file": name,
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

fn explain_json(checked: &CheckedProgram) -> Value {
    let verified = &checked.verified;
    let program = verified.program();
    let app_name = |app: AppId| program.apps.get(app.index()).map_or("drive", |app| &app.name);
    let mut explained = summary(checked);
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
            "kind": table.kind.to_string(),
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
        let (name, kind, capacity) = (&table.name, table.kind.to_string(), table.capacity);
        let (bytes, durable) = (verified.table_bytes(id), table.is_durable);
        let durable = if durable { "durable" } else { "volatile" };
        let _ = writeln!(text, "{name:<32} {kind:<12} {capacity:>12} {bytes:>12}  {durable}");
    }
    text
}
