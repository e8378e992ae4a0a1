//! Arguments of `sluice rules`.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use nvme::RuleTableEntry;
use rules::InputOp;
use share_proto::ResourceName;

/// `sluice rules …`.
#[derive(Debug, Subcommand)]
pub enum RulesArgs {
    /// Check rule programs: syntax, types, permissions and worst-case costs.
    Check(RulesCheckArgs),
    /// Print the worst-case cost of each rule and of each operation, the tables with their memory, and
    /// the order in which rules are tried.
    Explain(RulesExplainArgs),
    /// Install a rule program in a drive that `sluice serve` serves. It is compiled and checked for
    /// that drive first. Commands that no rule matched are matched with its rules.
    Install {
        /// The drive.
        #[command(flatten)]
        drive: RulesDriveArgs,
        /// Source file of the rule program.
        #[arg(value_name = "FILE")]
        file: PathBuf,
    },
    /// Print the rules of a drive that `sluice serve` serves, and what its programs may use.
    List(RulesDriveArgs),
    /// Print the counters of the rules of a drive that `sluice serve` serves.
    Stats(RulesDriveArgs),
    /// Print or change entries of a table of the rules of a drive that `sluice serve` serves.
    Table {
        /// The drive.
        #[command(flatten)]
        drive: RulesDriveArgs,
        /// Name of the table (`sluice rules list`).
        #[arg(value_name = "TABLE")]
        table: String,
        /// The access.
        #[command(subcommand)]
        access: RuleTableArgs,
    },
    /// Print the classes of commands that no rule of a drive matched, or end those that are parked.
    Miss {
        /// The drive.
        #[command(flatten)]
        drive: RulesDriveArgs,
        /// End the parked commands of this operation (`read`, `write` …), or of `all`.
        #[arg(long, value_name = "OP", value_parser = parse_operation)]
        reject: Option<RejectedMisses>,
    },
}

/// An access to a table. Keys and values are decimal, or hexadecimal with `0x`.
#[derive(Debug, Subcommand)]
pub enum RuleTableArgs {
    /// Print the values of consecutive keys: 1 for each key that a set has.
    Get {
        /// The first key, or index.
        #[arg(value_name = "KEY", value_parser = number)]
        first: u64,
        /// Number of keys.
        #[arg(long, value_name = "N", default_value_t = 1,
              value_parser = clap::value_parser!(u32).range(1..=i64::from(nvme::RULE_TABLE_ENTRIES_MAX)))]
        count: u32,
    },
    /// Store values in an array, or as those of keys of a map.
    Set {
        /// The keys, or indices, and their values.
        #[arg(required = true, value_name = "KEY=VALUE", value_parser = entry)]
        entries: Vec<RuleTableEntry>,
    },
    /// Add keys to a set.
    Add {
        /// The keys.
        #[arg(required = true, value_name = "KEY", value_parser = key)]
        keys: Vec<RuleTableEntry>,
    },
    /// Remove keys from a set or a map. They may be absent.
    Remove {
        /// The keys.
        #[arg(required = true, value_name = "KEY", value_parser = key)]
        keys: Vec<RuleTableEntry>,
    },
}

fn number(text: &str) -> Result<u64, String> {
    let digits = text.strip_prefix("0x");
    let number = digits.map_or_else(|| text.parse(), |digits| u64::from_str_radix(digits, 16));
    number.map_err(|_| "expected a number such as 17 or 0x11".to_owned())
}

fn key(text: &str) -> Result<RuleTableEntry, String> {
    Ok(RuleTableEntry { key: number(text)?.into(), value: 0.into() })
}

fn entry(text: &str) -> Result<RuleTableEntry, String> {
    let parts = text.split_once('=').ok_or_else(|| "expected KEY=VALUE".to_owned());
    let (key, value) = parts?;
    Ok(RuleTableEntry { key: number(key)?.into(), value: number(value)?.into() })
}

/// A drive of a server.
#[derive(Debug, Args)]
pub struct RulesDriveArgs {
    /// Socket of the server (`sluice serve --socket` or `--admin-socket`).
    #[arg(long, value_name = "PATH")]
    pub socket: PathBuf,
    /// The drive.
    #[arg(value_parser = crate::commands::admin::name)]
    pub name: ResourceName,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// The parked commands to end: those of an operation, or all.
#[derive(Clone, Copy, Debug)]
pub struct RejectedMisses(pub Option<InputOp>);

fn parse_operation(text: &str) -> Result<RejectedMisses, String> {
    if text == "all" {
        return Ok(RejectedMisses(None));
    }
    let named = InputOp::ALL.iter().find(|(_, name)| *name == text);
    named.map(|(op, _)| RejectedMisses(Some(*op))).ok_or_else(|| {
        let names = InputOp::ALL.map(|(_, name)| name).join(", ");
        format!("expected `all`, or one of {names}")
    })
}

/// `sluice rules check`.
#[derive(Debug, Args)]
pub struct RulesCheckArgs {
    /// Source files of rule programs, or scenarios whose drives have one.
    #[arg(required = true, value_name = "FILE")]
    pub files: Vec<PathBuf>,
    /// Grants.
    #[command(flatten)]
    pub grant: RulesGrantArgs,
}

/// `sluice rules explain`.
#[derive(Debug, Args)]
pub struct RulesExplainArgs {
    /// Source file of a rule program, or a scenario whose drives have one.
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// Grants.
    #[command(flatten)]
    pub grant: RulesGrantArgs,
}

/// The drive and what it grants. A scenario says that itself.
#[derive(Debug, Args)]
pub struct RulesGrantArgs {
    /// Parallel units of the drive; 128 by default.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub units: Option<u32>,
    /// Sectors of a parallel unit; 262144 by default.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1 << 40))]
    pub unit_sectors: Option<u64>,
    /// Bytes of a sector; 4096 by default.
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u32).range(512..=65536))]
    pub sector_bytes: Option<u32>,
    /// Lines of an application at most: the bound of `best line of`; 4096 by default.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub lines: Option<u32>,
    /// Operations of a command in the worst case, for example 4096 or 32M; 4096 by default.
    #[arg(long, value_name = "N", value_parser = super::super::commands::rules_command::count)]
    pub ops: Option<u64>,
    /// Operations of background rules in the worst case; 16M by default.
    #[arg(long, value_name = "N", value_parser = super::super::commands::rules_command::count)]
    pub background_ops: Option<u64>,
    /// Memory of all tables; 64M by default.
    #[arg(long, value_name = "SIZE", value_parser = super::super::commands::rules_command::count)]
    pub table_memory: Option<u64>,
    /// Grant global rules: collection and wear leveling of the whole drive.
    #[arg(long)]
    pub global: bool,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}
