//! `sluice rules install|list|stats|table|miss`: the rules of a drive that is served.

use std::fmt::Write as _;
use std::path::Path;

use controller::RuleTableInfo;
use nvme::{RuleTableAction, RuleTableEntry};
use rules_lang::CompileOptions;
use serde_json::json;
use share_proto::ResourceName;
use share_server::RuleReport;
use user_io::remote::Admin;

use super::rules_command::compile;
use crate::args::{RejectedMisses, RuleTableArgs, RulesDriveArgs};
use crate::{CliError, print};

/// Reads the report about the rules of a drive.
fn report(admin: &mut Admin, name: ResourceName) -> Result<RuleReport, CliError> {
    let text = admin.rule_report(name)?;
    serde_json::from_slice(&text)
        .map_err(|error| CliError::Usage(format!("the report of {name} cannot be read: {error}")))
}

/// Compiles a program for a drive, and installs it.
///
/// # Errors
/// [`CliError`] if no server runs, or if the program or the drive is refused.
pub(super) fn install(drive: &RulesDriveArgs, file: &Path) -> Result<(), CliError> {
    let mut admin = Admin::connect(&drive.socket)?;
    let limits = report(&mut admin, drive.name)?;
    let (grant, sector_bytes, lines) = (limits.grant(), limits.sector_bytes, limits.lines);
    let options = CompileOptions { grant, sector_bytes, lines };
    let verified = compile(file, &options)?;
    let parked = admin.install_rules(drive.name, &verified.program().encode())?;
    let rules = verified.program().rules.len();
    print(&match drive.json {
        true => {
            let installed =
                json!({ "device": drive.name.as_str(), "rules": rules, "parked": parked });
            format!("{installed:#}\n")
        }
        false => format!("{}: {rules} rules installed, {parked} commands parked\n", drive.name),
    })
}

/// Prints the rules of a drive, and what programs may use.
///
/// # Errors
/// [`CliError`].
pub(super) fn list(drive: &RulesDriveArgs) -> Result<(), CliError> {
    let report = report(&mut Admin::connect(&drive.socket)?, drive.name)?;
    let names = report.stats.rules.iter().map(|rule| rule.name.as_str());
    let names: Vec<&str> = names.collect();
    if drive.json {
        return print(&format!(
            "{:#}\n",
            json!({
                "device": drive.name.as_str(), "rules": names,
                "installations": report.stats.installations, "units": report.units,
                "unit_sectors": report.unit_sectors, "sector_bytes": report.sector_bytes,
                "lines": report.lines, "table_bytes": report.table_bytes,
                "command_ops": report.command_ops, "background_ops": report.background_ops,
                "tables": report.tables,
            })
        ));
    }
    let mut text = format!(
        "{}: {} rules, {} programs installed since it is served\n  {}\n\
         a program may use {} parallel units of {} sectors, {} of tables, {} operations per command\n",
        drive.name,
        names.len(),
        report.stats.installations,
        names.join(", "),
        report.units,
        report.unit_sectors,
        scenario::format::bytes_binary(report.table_bytes),
        report.command_ops,
    );
    if !report.tables.is_empty() {
        text.push_str("table                            kind             capacity\n");
    }
    for RuleTableInfo { name, kind, capacity, durable } in &report.tables {
        let durable = if *durable { "durable" } else { "volatile" };
        // Writing to a string does not fail.
        let _ = writeln!(text, "{name:<32} {kind:<12} {capacity:>12}  {durable}");
    }
    print(&text)
}

/// Prints or changes entries of a table of the rules of a drive.
///
/// # Errors
/// [`CliError`], also for a table that the program does not have, and for an entry that it does not take.
pub(super) fn table(
    drive: &RulesDriveArgs,
    table: &str,
    access: &RuleTableArgs,
) -> Result<(), CliError> {
    let mut admin = Admin::connect(&drive.socket)?;
    let tables = report(&mut admin, drive.name)?.tables;
    let number = tables.iter().position(|declared| declared.name == table);
    let number = number.and_then(|number| u8::try_from(number).ok()).ok_or_else(|| {
        let names: Vec<&str> = tables.iter().map(|declared| declared.name.as_str()).collect();
        let names = if names.is_empty() { "none".into() } else { names.join(", ") };
        let name = drive.name;
        CliError::Usage(format!("the rules of {name} have no table {table}; they have: {names}"))
    })?;
    let (action, entries): (RuleTableAction, &[RuleTableEntry]) = match access {
        RuleTableArgs::Get { first, count } => {
            let values = admin.rule_table_values(drive.name, number, *first, *count)?;
            if drive.json {
                return print(&format!("{:#}\n", json!({ "first": first, "values": values })));
            }
            let keys = (0..).map(|n| first.saturating_add(n));
            let line = |(key, value): (u64, &u64)| format!("{key} {value}\n");
            return print(&keys.zip(&values).map(line).collect::<String>());
        }
        RuleTableArgs::Set { entries } => (RuleTableAction::Set, entries),
        RuleTableArgs::Add { keys } => (RuleTableAction::Add, keys),
        RuleTableArgs::Remove { keys } => (RuleTableAction::Remove, keys),
    };
    admin.edit_rule_table(drive.name, number, action, entries)?;
    let changed = entries.len();
    print(&match drive.json {
        true => format!("{:#}\n", json!({ "device": drive.name.as_str(), "changed": changed })),
        false => format!("{}: {changed} entries of {table} changed\n", drive.name),
    })
}

/// Prints the counters of the rules of a drive.
///
/// # Errors
/// [`CliError`].
pub(super) fn stats(drive: &RulesDriveArgs) -> Result<(), CliError> {
    let stats = report(&mut Admin::connect(&drive.socket)?, drive.name)?.stats;
    if drive.json {
        return print(&format!("{:#}\n", json!({ "device": drive.name.as_str(), "stats": stats })));
    }
    let mut text = format!(
        "{}: {} inputs, {} commands missed, {} operations, engines busy for {}\n\
         {} polls, {} victims by rules, {} by the policy\n\
         {} polls while idle, {} periodic runs, {} lines relocated for them\n\
         {} sectors placed in hot\n\
         rule                                  matches       faults          ops\n",
        drive.name,
        stats.inputs,
        stats.misses,
        stats.ops,
        scenario::format::duration(stats.engine_busy.0),
        stats.polls,
        stats.victims,
        stats.policy_victims,
        stats.idle_polls,
        stats.periodic,
        stats.relocated,
        stats.hot_sectors,
    );
    for rule in &stats.rules {
        // Writing to a string does not fail.
        let _ = writeln!(
            text,
            "{:<32} {:>12} {:>12} {:>12}",
            rule.name, rule.matches, rule.faults, rule.ops
        );
    }
    if stats.apps.len() > 1 {
        text.push_str(
            "application                            inputs       misses          ops      victims\n",
        );
        for app in &stats.apps {
            // Writing to a string does not fail.
            let _ = writeln!(
                text,
                "{:<32} {:>12} {:>12} {:>12} {:>12}",
                app.name, app.inputs, app.misses, app.ops, app.victims
            );
        }
    }
    print(&text)
}

/// Prints the classes of commands that no rule matched.
///
/// # Errors
/// [`CliError`].
pub(super) fn print_missed(drive: &RulesDriveArgs) -> Result<(), CliError> {
    let missed = report(&mut Admin::connect(&drive.socket)?, drive.name)?.stats.missed;
    if drive.json {
        let missed = json!({ "device": drive.name.as_str(), "missed": missed });
        return print(&format!("{missed:#}\n"));
    }
    let mut text = String::from(
        "operation     misses     parked   released   rejected  timed out    refused    aborted  last block\n",
    );
    for record in &missed {
        // Writing to a string does not fail.
        let _ = writeln!(
            text,
            "{:<9} {:>10} {:>10} {:>10} {:>10} {:>10} {:>10} {:>10} {:>11}",
            record.op,
            record.misses,
            record.parked,
            record.released,
            record.rejected,
            record.timed_out,
            record.refused,
            record.aborted,
            record.lba
        );
    }
    print(&text)
}

/// Ends parked commands.
///
/// # Errors
/// [`CliError`].
pub(super) fn reject(drive: &RulesDriveArgs, rejected: RejectedMisses) -> Result<(), CliError> {
    let op = rejected.0.and_then(|op| ResourceName::new(op.name()).ok());
    let ended = Admin::connect(&drive.socket)?.reject_misses(drive.name, op)?;
    print(&match drive.json {
        true => {
            let rejected = json!({ "device": drive.name.as_str(), "rejected": ended });
            format!("{rejected:#}\n")
        }
        false => format!("{}: {ended} commands rejected\n", drive.name),
    })
}
