//! Arguments of each command, in clap's derive form. The doc comments of arguments are help texts.

mod admin;
mod namespace;
mod repro;
mod rules;
mod sim_args;
mod states;
mod sweep;

use std::path::PathBuf;
use std::str::FromStr;

use bench::Variation;
use bench::multicore::Machine;
use bench::{BenchGroup, BenchPart, CostSource, NamedValue};
use clap::builder::PossibleValuesParser;
use clap::{Args, Subcommand};
use driver::pci::{PciAddress, PciDriver};
use lnvm::{PuSet, TargetKind};
use nbd::Endpoint;
use time::Nanos;
use workload::ycsb::YcsbWorkload;

pub use admin::{AdminArgs, AdminStatsArgs, AdminSubcommand, AllowArgs};
pub use namespace::NamespaceSubcommand;
pub use repro::{ReproArgs, ReproFolder, ReproReportArgs, ReproRunArgs, ReproVaryArgs};
pub use rules::{
    RejectedMisses, RuleTableArgs, RulesArgs, RulesCheckArgs, RulesDriveArgs, RulesExplainArgs,
    RulesGrantArgs,
};
pub use sim_args::SimArgs;
pub use states::StateArgs;
pub(crate) use states::user_cache;
pub use sweep::SweepArgs;

use super::commands::measure::bench_command::named_value;

/// Text after the help of commands that measure.
const BENCH_EXIT_CODES: &str = "Exit codes: 0 when every result is within its bound or an expected miss, 3 when one is not, \
1 when something could not be measured, 2 when the request was wrong. An expected miss that is within its bound is told on \
standard error.";

/// `sluice device …`.
#[derive(Debug, Subcommand)]
pub enum DeviceArgs {
    /// List this machine's NVMe controllers, their drivers, and what uses them.
    List(DeviceListArgs),
    /// Detach a controller from the system so that a process can drive it (vfio:ADDRESS; without an
    /// IOMMU uio:ADDRESS?unsafe=1). Refused while the controller is in use.
    Bind(DeviceBindArgs),
    /// Return a controller to the system.
    Unbind(DeviceUnbindArgs),
    /// Open a target and print its access path and features; for a drive also its health. Opening a
    /// controller (vfio:ADDRESS, uio:ADDRESS?unsafe=1) resets it; files and block devices are
    /// opened for reading only.
    Info(DeviceInfoArgs),
}

/// `sluice device list`.
#[derive(Debug, Args)]
pub struct DeviceListArgs {
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// `sluice device info`.
#[derive(Debug, Args)]
pub struct DeviceInfoArgs {
    /// Target to open: vfio:0000:01:00.0, /dev/ng0n1, /dev/nvme0n1, or any other target.
    pub device: String,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// `sluice device bind`.
#[derive(Debug, Args)]
pub struct DeviceBindArgs {
    /// PCI address of the controller, for example 0000:01:00.0.
    pub address: PciAddress,
    /// Kernel driver that gives the controller to a process: vfio-pci, or uio_pci_generic on a
    /// machine without an IOMMU. uio_pci_generic is unsafe: the controller can access all memory of
    /// the machine.
    #[arg(long, default_value_t)]
    pub driver: PciDriver,
}

/// `sluice device unbind`.
#[derive(Debug, Args)]
pub struct DeviceUnbindArgs {
    /// PCI address of the controller, for example 0000:01:00.0.
    pub address: PciAddress,
}

/// `sluice drive …`.
#[derive(Debug, Subcommand)]
pub enum DriveArgs {
    /// Print geometry, capacity, PPA format, timing, limits and memory of a scenario's drives.
    Show(DriveShowArgs),
    /// List the drives that Sluice includes.
    Presets,
    /// Bring a scenario's drives to the state that its `[precondition]` describes, and keep it: later
    /// runs and servers start from it at once.
    Precondition(DrivePreconditionArgs),
}

/// `sluice drive precondition`.
#[derive(Debug, Args)]
pub struct DrivePreconditionArgs {
    /// The scenario file.
    pub scenario: PathBuf,
    /// Use this seed instead of the scenario's.
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub seed: Option<u64>,
    /// The folder.
    #[command(flatten)]
    pub states: StateArgs,
}

/// `sluice drive show`.
#[derive(Debug, Args)]
pub struct DriveShowArgs {
    /// The scenario file.
    #[arg(required_unless_present = "preset", conflicts_with = "preset")]
    pub scenario: Option<PathBuf>,
    /// Show a preset without changes, instead of a scenario.
    #[arg(long, value_name = "NAME", hide_possible_values = true,
        value_parser = PossibleValuesParser::new(scenario::presets::all().iter().map(|p| p.name)))]
    pub preset: Option<String>,
}

/// `sluice target …`.
#[derive(Debug, Subcommand)]
pub enum TargetArgs {
    /// Create a target on some of a drive's parallel units.
    Create(TargetCreateArgs),
    /// List the targets of a drive.
    List(TargetListArgs),
    /// Print the health and the remaining life of a drive, or all properties of one target.
    #[command(override_usage = "sluice target info [OPTIONS] [--name <TARGET>] <SCENARIO>")]
    Info(TargetInfoArgs),
    /// Change the limits of a target that shares its parallel units.
    Limit(TargetLimitArgs),
    /// Remove a target. Its chunks are erased before another target can use them.
    Remove(TargetRemoveArgs),
}

/// `sluice matrix`.
#[derive(Debug, Args)]
pub struct MatrixArgs {
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// Selection of a drive.
#[derive(Debug, Args)]
pub struct TargetDrive {
    /// Scenario with the drive. The drive must be open-channel and have an image (data = "file").
    #[arg(value_name = "SCENARIO")]
    pub scenario: PathBuf,
    /// Name of the drive, if the scenario has several.
    #[arg(long, value_name = "NAME")]
    pub drive: Option<String>,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// `sluice target create`.
#[derive(Debug, Args)]
pub struct TargetCreateArgs {
    /// The drive.
    #[command(flatten)]
    pub on: TargetDrive,
    /// Name of the target: up to 32 letters, digits, `-`, `_` and `.`.
    #[arg(long)]
    pub name: String,
    /// Kind of the target: pblk, rrpc, kv or ppa.
    #[arg(long = "type", value_name = "pblk|rrpc|kv|ppa")]
    pub kind: TargetKind,
    /// Parallel units of the target, for example `0-63` or `0,4,8-11`.
    #[arg(long, value_name = "UNITS")]
    pub pus: PuSet,
    /// Share the parallel units with other shared targets: every chunk has one owner at a time.
    #[arg(long)]
    pub shared: bool,
    /// Over-provisioning: physical over logical sectors, minus 1 (pblk, rrpc).
    #[arg(long = "op", value_name = "SHARE", allow_negative_numbers = true)]
    pub over_provisioning: Option<f64>,
    /// Number of parallel units written at the same time, 0 for all (pblk, rrpc).
    #[arg(long, value_name = "N")]
    pub active_pus: Option<u32>,
    /// Whether relocated data has lines of its own (pblk, rrpc).
    #[arg(long, value_name = "true|false")]
    pub separate_gc_stream: Option<bool>,
    /// The former name of `--separate-gc-stream`.
    #[arg(long, hide = true, conflicts_with = "separate_gc_stream")]
    pub hot_cold: Option<bool>,
    /// Maximum number of chunks that the target owns at a time; with --shared.
    #[arg(long, value_name = "N", requires = "shared")]
    pub max_chunks: Option<u32>,
    /// Maximum number of chunks that a ppa allocates per second, for example 2.5; with --shared.
    #[arg(long, value_name = "RATE", requires = "shared")]
    pub chunks_per_second: Option<f64>,
    /// Maximum number of chunks that the target allocates in a burst, above its rate per second.
    #[arg(long, value_name = "N", requires = "chunks_per_second")]
    pub burst: Option<u32>,
}

/// `sluice target list`.
#[derive(Debug, Args)]
pub struct TargetListArgs {
    /// The drive.
    #[command(flatten)]
    pub on: TargetDrive,
}

/// `sluice target info`.
#[derive(Debug, Args)]
pub struct TargetInfoArgs {
    /// The drive.
    #[command(flatten)]
    pub on: TargetDrive,
    /// Name of the target; without it, print the drive.
    #[arg(long)]
    pub name: Option<String>,
    /// Warranty period of the drive, in years.
    #[arg(long, value_name = "YEARS", default_value_t = 5.0)]
    pub warranty_years: f64,
    /// Age of the drive, in years.
    #[arg(long, value_name = "YEARS", default_value_t = 0.0)]
    pub age_years: f64,
    /// Write amplification: bytes that the flash writes per host byte, at least 1.
    #[arg(long, value_name = "FACTOR", default_value_t = 1.0)]
    pub write_amplification: f64,
}

/// `sluice target limit`.
#[derive(Debug, Args)]
#[group(id = "limits", required = true, multiple = true,
    args = ["max_chunks", "chunks_per_second"])]
pub struct TargetLimitArgs {
    /// The drive.
    #[command(flatten)]
    pub on: TargetDrive,
    /// Name of the target.
    #[arg(long)]
    pub name: String,
    /// Maximum number of chunks that the target owns at a time, or `none`; unchanged by default. A
    /// ppa that owns more keeps them. Other kinds accept a change only before they are first
    /// opened.
    #[arg(long, value_name = "N|none")]
    pub max_chunks: Option<LimitOrNone<u32>>,
    /// Maximum number of chunks that a ppa allocates per second, or `none`; unchanged by default.
    #[arg(long, value_name = "RATE|none")]
    pub chunks_per_second: Option<LimitOrNone<f64>>,
    /// Maximum number of chunks that the target allocates in a burst, above its rate per second.
    #[arg(long, value_name = "N", requires = "chunks_per_second")]
    pub burst: Option<u32>,
}

/// A limit, or none.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum LimitOrNone<T> {
    /// No limit.
    None,
    /// At most so much.
    Max(T),
}

impl<T: FromStr> FromStr for LimitOrNone<T> {
    type Err = T::Err;

    fn from_str(text: &str) -> Result<LimitOrNone<T>, T::Err> {
        if text == "none" { Ok(LimitOrNone::None) } else { text.parse().map(LimitOrNone::Max) }
    }
}

/// `sluice target remove`.
#[derive(Debug, Args)]
pub struct TargetRemoveArgs {
    /// The drive.
    #[command(flatten)]
    pub on: TargetDrive,
    /// Name of the target.
    #[arg(long)]
    pub name: String,
    /// Erase all of its chunks now, and remove all its records from the partition table.
    #[arg(long)]
    pub factory: bool,
}

/// `sluice serve`: serves a scenario's drives and paths to other programs in real time.
#[derive(Debug, Args)]
pub struct ServeArgs {
    /// The scenario file; `FILE#NAME` for one of its drives, or for a path if it names paths.
    pub scenario: PathBuf,
    /// Serve NBD at `unix:PATH` or `tcp:HOST:PORT`. May be given several times. Paths of a scenario
    /// are exports by their names at each endpoint. With several drives and no named paths, each
    /// drive has its own endpoint: PATH.NAME, or a port from PORT up. Not with `[[export]]`.
    #[arg(long, value_name = "ENDPOINT")]
    pub nbd: Vec<Endpoint>,
    /// Allow NBD to listen on addresses that other machines can reach. NBD has no authentication:
    /// any client that can connect to the port can read and overwrite the drive.
    #[arg(long)]
    pub allow_remote: bool,
    /// Share the drives between processes at this socket (`docs/sharing.md`). Each client has its
    /// own queues, as `[[partition]]` and `sluice admin` allow. Not with `[[export]]`.
    #[arg(long, value_name = "PATH")]
    pub socket: Option<PathBuf>,
    /// Permissions of the socket, which restrict the users that can connect.
    #[arg(long, value_name = "OCTAL", default_value = "600", requires = "socket",
        value_parser = super::commands::admin::mode)]
    pub socket_mode: u32,
    /// Answer `sluice admin stats`, `list`, `set`, `fault` and `namespace` at this socket, for this
    /// user and root, without sharing drives. For drives that only NBD serves; `--socket` answers them as well.
    #[arg(long, value_name = "PATH", conflicts_with = "socket")]
    pub admin_socket: Option<PathBuf>,
    /// Store the rules of `sluice admin` in this file (`docs/sharing.md`). It is written on every
    /// change, and read at the next start in place of the scenario's `[[partition.allow]]`.
    #[arg(long, value_name = "FILE", requires = "socket")]
    pub acl: Option<PathBuf>,
    /// The former name of `--acl`.
    #[arg(long, value_name = "FILE", requires = "socket", hide = true, conflicts_with = "acl")]
    pub rules: Option<PathBuf>,
    /// Write the final statistics as JSON; `-` is standard output.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Name the keys as schema N of the results: 3, or 2, the former names, for one release.
    #[arg(long, value_name = "N", requires = "json",
        value_parser = super::commands::sim_command::json_schema)]
    pub json_schema: Option<sim::JsonSchema>,
    /// Print a line of statistics for each interval of this many seconds. The default on a terminal
    /// is 5.
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..))]
    pub stats: Option<u64>,
    /// Threads per drive. 1: one thread polls the drives of a path and serves, submitting on the first
    /// core; of several paths over one drive, each has a thread, and the first polls the drive. 2:
    /// each drive has a thread, and so has the server of each core of a path: those of the block layer
    /// (`path.cores`), or else the shards of a `pblk`. The default is 2 with several cores or paths
    /// over a drive, and with one core if the machine has enough.
    #[arg(long, value_name = "1|2", value_parser = clap::value_parser!(u8).range(1..=2))]
    pub threads: Option<u8>,
    /// Use this seed instead of the scenario's.
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub seed: Option<u64>,
    /// The folder of kept states.
    #[command(flatten)]
    pub states: StateArgs,
}

/// `sluice calibrate`: measure this machine.
#[derive(Debug, Args)]
pub struct CalibrateArgs {
    /// Check whether the machine can keep up with this scenario in real time.
    pub scenario: Option<PathBuf>,
    /// Write the measurements as JSON.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Write the numbers of this machine as a sheet for `[host] machine` of a scenario
    /// (`docs/scenario.md`).
    #[arg(long = "sheet", value_name = "FILE.toml")]
    pub machine_model: Option<PathBuf>,
    /// Only check that every measurement works.
    #[arg(long, hide = true)]
    pub quick: bool,
}

/// Selection of the list of expected misses.
#[derive(Clone, Debug, Args)]
pub struct BoundArgs {
    /// List of results that are known to be outside of their bounds (TOML: `[[miss]]` with `bench`,
    /// `case`, `metric` and `reason`). It replaces the list that Sluice includes.
    #[arg(long, value_name = "FILE")]
    pub expected: Option<PathBuf>,
}

/// `sluice bench`: measure Sluice.
#[derive(Debug, Args)]
#[command(after_help = BENCH_EXIT_CODES)]
pub struct BenchArgs {
    /// Group of benchmarks to run.
    #[arg(value_parser = named_value::<BenchGroup>())]
    pub group: BenchGroup,
    /// Group `block`: run the block layer on this modeled machine in virtual time, instead of on
    /// this machine.
    #[arg(long, value_name = "SOCKETSxCORES")]
    pub machine: Option<Machine>,
    /// Source of the modeled machine's costs: published values, or values measured on this machine
    /// where possible.
    #[arg(long, value_parser = named_value::<CostSource>(), default_value = CostSource::Given.name(),
        requires = "machine")]
    pub costs: CostSource,
    /// Multiply one number of the modeled machine, to see how the results depend on it.
    #[arg(long, value_name = "KEY*FACTOR")]
    pub vary: Option<Variation>,
    /// Groups `block` and `hiops`: measure the block layer, or the completion strategies, on this
    /// device (`vfio:0000:01:00.0`, `/dev/ng0n1`, `/dev/nvme0n1`, or any other target with queues).
    /// It is only read. Group `lightnvm`, part `overhead`: measure the overhead of pblk on this
    /// device, which is written to (`--destroy`).
    #[arg(long, value_name = "DEVICE", conflicts_with = "machine")]
    pub device: Option<String>,
    /// Permit overwriting the data on the device.
    #[arg(long, requires = "device")]
    pub destroy: bool,
    /// Groups `lightnvm`, `direct`, `exec`, `scale`, `thesis`, `speculate` and `appnvm`: run only these parts.
    #[arg(long, value_parser = named_value::<BenchPart>(), value_name = "PART", value_delimiter = ',')]
    pub part: Vec<BenchPart>,
    /// The list of expected misses.
    #[command(flatten)]
    pub bounds: BoundArgs,
    /// Print one JSON object per line.
    #[arg(long)]
    pub json: bool,
    /// Only check that every measurement works.
    #[arg(long, hide = true)]
    pub quick: bool,
}

/// `sluice volume …`.
#[derive(Debug, Subcommand)]
pub enum VolumeArgs {
    /// Create an empty volume on a whole device.
    Format(VolumeFormatArgs),
    /// Print the properties and the usage of a volume.
    Info(VolumeDevice),
    /// Check all metadata of a volume, and repair errors whose repair is unambiguous.
    Fsck(VolumeFsckArgs),
    /// List a directory of a volume.
    Ls {
        /// The device.
        #[command(flatten)]
        device: VolumeDevice,
        /// Path of the directory or file.
        #[arg(default_value = "/")]
        path: String,
    },
    /// Copy a file out of a volume.
    Get {
        /// The device.
        #[command(flatten)]
        device: VolumeDevice,
        /// Path of the file on the volume.
        path: String,
        /// The file to write.
        file: PathBuf,
    },
    /// Copy a file into a volume; its directory must exist.
    Put {
        /// The device.
        #[command(flatten)]
        device: VolumeDevice,
        /// The file to read.
        file: PathBuf,
        /// Path of the file on the volume.
        path: String,
    },
}

/// Selection of a device.
#[derive(Debug, Args)]
pub struct VolumeDevice {
    /// Device with the volume: a scenario (`FILE.toml`, `FILE.toml#DRIVE`), a served drive
    /// (`sluice://SOCKET`), a file or block device.
    #[arg(value_name = "DEVICE")]
    pub device: String,
    /// Keep small writes in a log in the whole persistent memory region of the scenario's drive, unless
    /// the scenario gives it a log.
    #[arg(long, value_name = "MEMORY", value_parser = ["pmr"])]
    pub write_log: Option<String>,
}

/// `sluice volume format`.
#[derive(Debug, Args)]
pub struct VolumeFormatArgs {
    /// The device.
    #[command(flatten)]
    pub on: VolumeDevice,
    /// Create the device first: a sparse file of this size, for example 1G. The file must not exist.
    #[arg(long, value_name = "SIZE", value_parser = super::commands::volume_command::size)]
    pub size: Option<u64>,
    /// Label of the volume, at most 32 bytes.
    #[arg(long, default_value = "")]
    pub label: String,
    /// Unit in which files get their blocks, and the longest write that a device with atomic writes
    /// keeps whole: 4K to 64K, a power of two. By default the longest that this device keeps whole; 4K
    /// if it has no atomic writes.
    #[arg(long, value_name = "SIZE", value_parser = super::commands::volume_command::size)]
    pub unit: Option<u64>,
    /// Overwrite an existing volume.
    #[arg(long)]
    pub force: bool,
}

/// `sluice volume fsck`.
#[derive(Debug, Args)]
pub struct VolumeFsckArgs {
    /// The device.
    #[command(flatten)]
    pub on: VolumeDevice,
    /// Repair errors whose repair is unambiguous.
    #[arg(long)]
    pub repair: bool,
    /// Clear the volume's in-use mark. Only safe if the process that used the volume has ended.
    #[arg(long, requires = "repair")]
    pub clear_owner: bool,
}

/// `sluice exec`.
#[derive(Debug, Args)]
pub struct ExecArgs {
    /// Device with the volume: a scenario (`FILE.toml`, `FILE.toml#DRIVE`), a served drive
    /// (`sluice://SOCKET`), a file or block device.
    #[arg(long, value_name = "DEVICE")]
    pub volume: String,
    /// Keep small writes in a log in the whole persistent memory region of the scenario's drive, unless
    /// the scenario gives it a log.
    #[arg(long, value_name = "MEMORY", value_parser = ["pmr"])]
    pub write_log: Option<String>,
    /// Directory at which the program finds the files of the volume. It must be empty or not exist
    /// on the host.
    #[arg(long, value_name = "DIR")]
    pub at: PathBuf,
    /// Create an empty volume on the device first, which must have none: for drives that forget their
    /// data, such as a SATA drive of a scenario.
    #[arg(long)]
    pub format: bool,
    /// Make every write durable before it returns, as if the program opened all files with `O_DSYNC`.
    #[arg(long)]
    pub sync: bool,
    /// Whether syncs return before the data is durable. With `wait`, output of the program waits
    /// until everything that was synced before it is durable; with `buffer`, data for sockets and
    /// pipes is copied, and sent then (docs/speculation.md).
    #[arg(long, value_enum, default_value_t = Speculate::Off, value_name = "MODE")]
    pub speculate: Speculate,
    /// With `--speculate`: time after which a sync is durable at the latest, 5s by default, unless the
    /// device takes longer. Earlier when output waits for it, or when too much has changed since. 0: as
    /// soon as the device permits.
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    pub commit_interval: Option<Nanos>,
    /// Print the statistics of the file service on standard error when the program has ended.
    #[arg(long)]
    pub stats: bool,
    /// The program and its arguments.
    #[arg(
        required = true,
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "PROGRAM"
    )]
    pub program: Vec<std::ffi::OsString>,
}

fn parse_time(text: &str) -> Result<Nanos, String> {
    scenario::units::duration(text)
        .ok_or_else(|| format!("times are {}", scenario::units::DURATION))
}

/// Speculation of a program under `sluice exec`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Speculate {
    /// Syncs wait for the device.
    Off,
    /// Syncs return at once; output waits.
    Wait,
    /// Syncs return at once, and so do sends to sockets and pipes, as long as the outbox has room;
    /// other output waits.
    Buffer,
}

/// `sluice profile`.
#[derive(Debug, Args)]
pub struct ProfileArgs {
    /// Directory whose files are on the volume (several times for several). Without, every regular
    /// file counts as a file of the volume.
    #[arg(long, value_name = "DIR")]
    pub at: Vec<PathBuf>,
    /// Print the results as one JSON object.
    #[arg(long)]
    pub json: bool,
    /// Write the results to this file, and not to standard error.
    #[arg(long, short, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// The program and its arguments.
    #[arg(
        required = true,
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "PROGRAM"
    )]
    pub program: Vec<std::ffi::OsString>,
}

/// `sluice kv …`.
#[derive(Debug, Subcommand)]
pub enum KvArgs {
    /// Run YCSB's workloads A to F on the key-value target, and chunk-sized values on it and on
    /// pblk.
    Bench(KvBenchArgs),
}

/// `sluice kv bench`.
#[derive(Debug, Args)]
#[command(after_help = BENCH_EXIT_CODES)]
pub struct KvBenchArgs {
    /// Scenario with the drive to use: open-channel, with data. The default is the LightNVM paper's
    /// drive, scaled down.
    pub scenario: Option<PathBuf>,
    /// Run on this target of the drive's partition table. It must be of kind kv and empty; the
    /// workload's data remains on it. The drive must have an image (data = "file").
    #[arg(long, value_name = "NAME", requires = "scenario")]
    pub name: Option<String>,
    /// Workload to run: a YCSB workload from a to f; `puts`, chunk-sized values compared with pblk;
    /// or `all`.
    #[arg(long, value_name = "a..f|puts|all", default_value = "all")]
    pub workload: KvWorkload,
    /// Number of records at the start (default 100,000).
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub records: Option<u64>,
    /// Number of operations (default 100,000).
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub operations: Option<u64>,
    /// Size of a record's value in bytes; the default is YCSB's ten fields of 100.
    #[arg(long, value_name = "N", default_value_t = 1000)]
    pub value_bytes: u64,
    /// Number of concurrent operations.
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub depth: u32,
    /// Number of parallel units that small values are written to at the same time; 0 selects all,
    /// at most 8.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub active_pus: u32,
    /// Over-provisioning in chunks: physical / logical - 1, at least 0.05.
    #[arg(long, value_name = "RATIO", allow_negative_numbers = true)]
    pub over_provisioning: Option<f64>,
    /// Run the workloads in real time, with the drive on a thread of its own.
    #[arg(long)]
    pub real: bool,
    /// Use this seed instead of the scenario's.
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub seed: Option<u64>,
    /// The list of expected misses.
    #[command(flatten)]
    pub bounds: BoundArgs,
    /// Print one JSON object per line.
    #[arg(long)]
    pub json: bool,
    /// Only check that every measurement works.
    #[arg(long, hide = true)]
    pub quick: bool,
}

/// Workload of `sluice kv bench`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KvWorkload {
    /// All workloads.
    All,
    /// Chunk-sized values, compared with pblk.
    Puts,
    /// One of YCSB's workloads.
    One(YcsbWorkload),
}

impl std::str::FromStr for KvWorkload {
    type Err = String;
    fn from_str(text: &str) -> Result<KvWorkload, String> {
        match text {
            "all" => Ok(KvWorkload::All),
            "puts" => Ok(KvWorkload::Puts),
            one => one
                .parse()
                .map(KvWorkload::One)
                .map_err(|_| format!("no workload `{one}`: allowed are a to f, puts, all")),
        }
    }
}
