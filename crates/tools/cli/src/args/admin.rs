//! [`AdminArgs`]: arguments of `sluice admin`.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use share_proto::{Grant, ResourceName};

use crate::args::namespace::NamespaceSubcommand;

/// `sluice admin`: access rules, statistics, settings and namespaces of a running server.
#[derive(Debug, Args)]
pub struct AdminArgs {
    /// Socket of the server.
    #[arg(long, value_name = "PATH")]
    pub socket: PathBuf,
    /// The command.
    #[command(subcommand)]
    pub command: AdminSubcommand,
}

/// `sluice admin …`.
#[derive(Debug, Subcommand)]
pub enum AdminSubcommand {
    /// Allow a user to use a partition.
    Allow(AllowArgs),
    /// Revoke a user's permission and end the connections that depend on it.
    Deny {
        /// A name or id, `uid:N`, `gid:N`, `@GROUP`, or `anyone`.
        user: String,
        /// The drive.
        #[arg(long, value_parser = crate::commands::admin::name)]
        device: ResourceName,
        /// The partition of the drive; all partitions if omitted.
        #[arg(long, value_parser = crate::commands::admin::name)]
        partition: Option<ResourceName>,
    },
    /// Print partitions, rules, clients with their statistics, and settings of FTLs.
    List {
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Print the statistics of each drive since it is served; with --follow, of each interval.
    Stats(AdminStatsArgs),
    /// Change a setting of a drive's or target's FTL while it is served, and print the settings in
    /// force.
    Set {
        /// The drive or target, as `list` names it.
        #[arg(value_parser = crate::commands::admin::name)]
        name: ResourceName,
        /// The setting: `active_pus`, `rate_limiter` or `victim_policy`, as in `[[at]]` of a
        /// scenario.
        key: String,
        /// Its value as in a scenario; a word needs no quotes.
        #[arg(allow_negative_numbers = true)]
        value: String,
    },
    /// Make an emulated NVMe drive fail while it is served (docs/faults.md).
    Fault {
        /// The drive, as `list` names it.
        #[arg(value_parser = crate::commands::admin::name)]
        name: ResourceName,
        /// The kind of fault, as in `[[fault]]` of a scenario.
        kind: String,
        /// A key of the kind and its value as in a scenario, such as `pu=3`; a word needs no quotes.
        #[arg(value_name = "KEY=VALUE")]
        keys: Vec<String>,
    },
    /// Print or change the namespaces of an emulated NVMe drive while it is served
    /// (docs/drive-commands.md).
    Namespace {
        /// The command.
        #[command(subcommand)]
        command: NamespaceSubcommand,
    },
    /// End connections. Clients that are allowed to connect may do so again.
    Kick {
        /// Id of a client as `list` prints it, or a user as for `deny` (`uid:N`, not `N`).
        whom: String,
    },
}

/// `sluice admin stats`.
#[derive(Debug, Args)]
pub struct AdminStatsArgs {
    /// Print the statistics of each interval from now on, until the server ends or SIGINT arrives.
    #[arg(long)]
    pub follow: bool,
    /// Length of an interval in seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 1, requires = "follow",
        value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub interval: u64,
    /// Print one JSON object per drive and interval, one per line.
    #[arg(long)]
    pub json: bool,
}

/// `sluice admin allow`.
#[derive(Debug, Args)]
pub struct AllowArgs {
    /// A name or id, `uid:N`, `gid:N`, `@GROUP`, or `anyone`.
    pub user: String,
    /// The drive.
    #[arg(long, value_parser = crate::commands::admin::name)]
    pub device: ResourceName,
    /// The partition of the drive.
    #[arg(long, value_parser = crate::commands::admin::name)]
    pub partition: ResourceName,
    /// Maximum number of I/O queues, over all connections of the user.
    #[arg(long, value_name = "N", default_value_t = Grant::QUEUES_DEFAULT)]
    pub queues: u16,
    /// Maximum number of entries of a queue.
    #[arg(long, value_name = "N")]
    pub depth: Option<u16>,
    /// Maximum commands per second, over all queues.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub iops: Option<u64>,
    /// Maximum bytes per second of reads and writes together, such as `100MB/s`.
    #[arg(long, value_name = "RATE", value_parser = crate::commands::admin::bandwidth)]
    pub bandwidth: Option<u64>,
    /// Refuse writes, trims and erases.
    #[arg(long)]
    pub read_only: bool,
}
