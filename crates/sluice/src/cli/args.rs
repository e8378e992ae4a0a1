//! What each command takes, as clap reads it.

use std::path::{Path, PathBuf};

use ::serve::nbd::Endpoint;
use clap::builder::PossibleValuesParser;
use clap::{Args, Subcommand, ValueEnum};
use direct::remote::{Grant, ResourceName};
use driver::pci::{PciAddress, PciDriver};
use lightnvm::subsystem::{PuSet, TargetKind};
use workload::ycsb::YcsbWorkload;

pub use super::bench_part::{BenchPart, DirectPart, ExecPart};
use crate::multicore::Machine;

/// `sluice device …`.
#[derive(Debug, Subcommand)]
pub enum DeviceArgs {
    /// List this machine's NVMe controllers, their drivers, and what uses them.
    List(DeviceListArgs),
    /// Take a controller from the system, so that a process can drive it (vfio:ADDRESS; without an IOMMU
    /// uio:ADDRESS?unsafe=1). Refused as long as anything uses it.
    Bind(DeviceBindArgs),
    /// Give a controller back to the system.
    Unbind(DeviceUnbindArgs),
    /// Open something and tell by which way it is reached and what it can do; of a drive also its health.
    /// Opening a controller (vfio:ADDRESS, uio:ADDRESS?unsafe=1) resets it; files and block devices are opened for reading only.
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
    /// What to open: vfio:0000:01:00.0, /dev/ng0n1, /dev/nvme0n1, or whatever else can be opened.
    pub device: String,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// `sluice device bind`.
#[derive(Debug, Args)]
pub struct DeviceBindArgs {
    /// Its PCI address, for example 0000:01:00.0.
    pub address: PciAddress,
    /// The kernel's driver that gives it to a process: vfio-pci, or, only where there is no IOMMU,
    /// uio_pci_generic. Unsafe: the controller then reaches all memory of the machine.
    #[arg(long, default_value_t)]
    pub driver: PciDriver,
}

/// `sluice device unbind`.
#[derive(Debug, Args)]
pub struct DeviceUnbindArgs {
    /// Its PCI address, for example 0000:01:00.0.
    pub address: PciAddress,
}

/// `sluice drive …`.
#[derive(Debug, Subcommand)]
pub enum DriveArgs {
    /// Print geometry, capacity, PPA format, timing, limits and memory of a scenario's drives.
    Show(DriveShowArgs),
    /// List the drives that come with Sluice.
    Presets,
}

/// `sluice drive show`.
#[derive(Debug, Args)]
pub struct DriveShowArgs {
    /// The scenario file.
    #[arg(required_unless_present = "preset", conflicts_with = "preset")]
    pub scenario: Option<PathBuf>,
    /// A preset as it is, instead of a scenario.
    #[arg(long, value_name = "NAME", hide_possible_values = true,
        value_parser = PossibleValuesParser::new(crate::presets::all().iter().map(|p| p.name)))]
    pub preset: Option<String>,
}

/// `sluice target …`.
#[derive(Debug, Subcommand)]
pub enum TargetArgs {
    /// Make a target on some of a drive's parallel units.
    Create(TargetCreateArgs),
    /// List the targets of a drive.
    List(TargetListArgs),
    /// Print the health of a drive, and what is left of its life; or everything about one target.
    #[command(override_usage = "sluice target info [OPTIONS] [--name <TARGET>] <SCENARIO>")]
    Info(TargetInfoArgs),
    /// Remove a target. Its chunks are erased before they are anybody's again.
    Remove(TargetRemoveArgs),
}

/// Which drive.
#[derive(Debug, Args)]
pub struct TargetDrive {
    /// The scenario whose drive it is. The drive is open-channel and has an image (data = "file").
    #[arg(value_name = "SCENARIO")]
    pub scenario: PathBuf,
    /// Which of the scenario's drives, if it has several.
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
    /// What the target is called: up to 32 letters, digits, `-`, `_` and `.`.
    #[arg(long)]
    pub name: String,
    /// What it makes of its chunks: pblk, rrpc, kv or ppa.
    #[arg(long = "type", value_name = "pblk|rrpc|kv|ppa")]
    pub kind: TargetKind,
    /// Its parallel units, for example `0-63` or `0,4,8-11`.
    #[arg(long, value_name = "UNITS")]
    pub pus: PuSet,
    /// Share the parallel units with other targets that do: every chunk has one owner at a time.
    #[arg(long)]
    pub shared: bool,
    /// Over-provisioning: physical over logical sectors, minus 1 (pblk, rrpc).
    #[arg(long = "op", value_name = "SHARE", allow_negative_numbers = true)]
    pub over_provisioning: Option<f64>,
    /// Parallel units written at the same time, 0 for all (pblk, rrpc).
    #[arg(long, value_name = "N")]
    pub active_pus: Option<u32>,
    /// Whether moved data goes to lines of its own (pblk, rrpc).
    #[arg(long, value_name = "true|false")]
    pub separate_gc_stream: Option<bool>,
    /// The former name of `--separate-gc-stream`.
    #[arg(long, hide = true, conflicts_with = "separate_gc_stream")]
    pub hot_cold: Option<bool>,
    /// Chunks that it may hold at a time; with --shared.
    #[arg(long, value_name = "N", requires = "shared")]
    pub max_chunks: Option<u32>,
    /// Chunks that it may take per second, for example 2.5; with --shared.
    #[arg(long, value_name = "RATE", requires = "shared")]
    pub chunks_per_second: Option<f64>,
    /// Chunks that it may take at once, however few it may take per second.
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
    /// The target; without, the drive.
    #[arg(long)]
    pub name: Option<String>,
    /// Years of the drive's warranty.
    #[arg(long, value_name = "YEARS", default_value_t = 5.0)]
    pub warranty_years: f64,
    /// Years of it that are gone.
    #[arg(long, value_name = "YEARS", default_value_t = 0.0)]
    pub age_years: f64,
    /// Bytes that the flash writes for each byte of a user, at least 1.
    #[arg(long, value_name = "FACTOR", default_value_t = 1.0)]
    pub write_amplification: f64,
}

/// `sluice target remove`.
#[derive(Debug, Args)]
pub struct TargetRemoveArgs {
    /// The drive.
    #[command(flatten)]
    pub on: TargetDrive,
    /// The target.
    #[arg(long)]
    pub name: String,
    /// Erase all of its chunks now, and every trace of it in the partition table.
    #[arg(long)]
    pub factory: bool,
}

/// `sluice sim`: run scenarios in virtual time.
#[derive(Debug, Args)]
pub struct SimArgs {
    /// Scenarios (`.toml`), each one way of a comparison, and fio job files to run on every one.
    #[arg(required = true, value_name = "SCENARIO.toml|JOB.fio")]
    pub inputs: Vec<PathBuf>,
    /// Write the results as a list of what fio would have written for each scenario, with Sluice's own
    /// beside it; `-` for standard output, where the table then goes to standard error.
    #[arg(long, value_name = "FILE|-")]
    pub json: Option<PathBuf>,
    /// Write a self-contained page with plots; `-` for standard output.
    #[arg(long, value_name = "FILE.html|-")]
    pub report: Option<PathBuf>,
    /// Use this seed instead of the scenario's.
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub seed: Option<u64>,
    /// Exit with 1 if a result has a note: if it may not mean what it seems to. Everything is written
    /// before.
    #[arg(long)]
    pub strict: bool,
    /// Change the images of drives with data = "file", and the files beside them. Otherwise a simulation
    /// starts from what an image holds and leaves it as it is.
    #[arg(long)]
    pub write_image: bool,
    /// Write what happens, event by event, for Perfetto; with one scenario only. `-` for standard output.
    #[arg(long, value_name = "FILE|-")]
    pub trace: Option<PathBuf>,
    /// Print this many of the slowest requests of each drive, what each waited for, and where the time of
    /// all requests went; also in --json.
    /// A report has the ten slowest unless this says otherwise; 0 for none.
    #[arg(long, value_name = "N")]
    pub slowest: Option<usize>,
    /// Write what happens to each request in the block layer into this folder, in the format that
    /// blkparse and btt read; with one scenario only.
    #[arg(long, value_name = "DIR")]
    pub blktrace: Option<PathBuf>,
}

impl SimArgs {
    /// The scenarios, and the job files: a scenario ends in `.toml`, everything else is a job file.
    pub fn scenarios_and_jobs(&self) -> (Vec<&Path>, Vec<&Path>) {
        self.inputs
            .iter()
            .map(PathBuf::as_path)
            .partition(|path| path.extension().is_some_and(|e| e.eq_ignore_ascii_case("toml")))
    }
}

/// `sluice serve`: put a scenario's drive in front of real programs, in real time.
#[derive(Debug, Args)]
pub struct ServeArgs {
    /// The scenario file.
    pub scenario: PathBuf,
    /// Serve NBD here: `unix:PATH` or `tcp:HOST:PORT`. May be given several times. Of a scenario with
    /// several drives each has its own: PATH.NAME, and the ports from PORT up.
    #[arg(long, value_name = "ENDPOINT")]
    pub nbd: Vec<Endpoint>,
    /// Let NBD listen at addresses that other machines can reach: it has no authentication, and whoever
    /// reaches the port can read and overwrite the drive.
    #[arg(long, requires = "nbd")]
    pub allow_remote: bool,
    /// Share the drives between processes at this socket (`docs/sharing.md`): queues of their own for
    /// each client, as `[[share]]` and `sluice admin` allow.
    #[arg(long, value_name = "PATH")]
    pub socket: Option<PathBuf>,
    /// Permissions of the socket: who may connect at all.
    #[arg(long, value_name = "OCTAL", default_value = "600", requires = "socket",
        value_parser = super::admin_command::mode)]
    pub socket_mode: u32,
    /// Answer `sluice admin stats` at this socket, for this user and root, without sharing anything: for
    /// drives that only NBD serves. `--socket` answers it as well.
    #[arg(long, value_name = "PATH", conflicts_with = "socket", requires = "nbd")]
    pub admin_socket: Option<PathBuf>,
    /// Keep the rules of `sluice admin` in this file (`docs/sharing.md`): written on every change, and read
    /// at the next start in place of the `[[share.allow]]` of the scenario.
    #[arg(long, value_name = "FILE", requires = "socket")]
    pub acl: Option<PathBuf>,
    /// The former name of `--acl`.
    #[arg(long, value_name = "FILE", requires = "socket", hide = true, conflicts_with = "acl")]
    pub rules: Option<PathBuf>,
    /// Write the final statistics as JSON; `-` is standard output.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Print a line of statistics every so many seconds, about those seconds; on a terminal, every 5 unless
    /// said.
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..))]
    pub stats: Option<u64>,
    /// Threads per drive: 2 gives the drive its own beside the server's. Unless said, 2 where the
    /// machine has the cores for it.
    #[arg(long, value_name = "1|2", value_parser = clap::value_parser!(u8).range(1..=2))]
    pub threads: Option<u8>,
    /// Use this seed instead of the scenario's.
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub seed: Option<u64>,
}

/// `sluice admin`: who may use what of a running server.
#[derive(Debug, Args)]
pub struct AdminArgs {
    /// The server's socket.
    #[arg(long, value_name = "PATH")]
    pub socket: PathBuf,
    /// What is to be done.
    #[command(subcommand)]
    pub command: AdminCommand,
}

/// `sluice admin …`.
#[derive(Debug, Subcommand)]
pub enum AdminCommand {
    /// Let a user use a partition from now on.
    Allow(AllowArgs),
    /// Take a user's permission back, and end the connections that live by it.
    Deny {
        /// A name or number, `uid:N`, `gid:N`, `@GROUP`, or `anyone`.
        user: String,
        /// The drive.
        #[arg(long, value_parser = super::admin_command::name)]
        device: ResourceName,
        /// The part of it; without, all parts.
        #[arg(long, value_parser = super::admin_command::name)]
        partition: Option<ResourceName>,
    },
    /// Print partitions, rules and clients, and what each client has done.
    List {
        /// As JSON.
        #[arg(long)]
        json: bool,
    },
    /// Print what each drive has done since it is served; with --follow, in each interval.
    Stats(AdminStatsArgs),
    /// End connections; who may connect may do so again.
    Kick {
        /// A client's number as `list` says it, or a user as for `deny` (`uid:N`, not `N`).
        whom: String,
    },
}

/// `sluice admin stats`.
#[derive(Debug, Args)]
pub struct AdminStatsArgs {
    /// Print what happens from now on, interval by interval, until the server ends or SIGINT comes.
    #[arg(long)]
    pub follow: bool,
    /// Seconds of an interval.
    #[arg(long, value_name = "SECONDS", default_value_t = 1, requires = "follow",
        value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub interval: u64,
    /// Print one JSON object per drive and interval, on a line of its own.
    #[arg(long)]
    pub json: bool,
}

/// `sluice admin allow`.
#[derive(Debug, Args)]
pub struct AllowArgs {
    /// A name or number, `uid:N`, `gid:N`, `@GROUP`, or `anyone`.
    pub user: String,
    /// The drive.
    #[arg(long, value_parser = super::admin_command::name)]
    pub device: ResourceName,
    /// The part of it.
    #[arg(long, value_parser = super::admin_command::name)]
    pub partition: ResourceName,
    /// I/O queues, over all of the user's connections.
    #[arg(long, value_name = "N", default_value_t = Grant::QUEUES_DEFAULT)]
    pub queues: u16,
    /// Entries of a queue at most.
    #[arg(long, value_name = "N")]
    pub depth: Option<u16>,
    /// Commands per second, over all queues.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub iops: Option<u64>,
    /// Bytes per second, read and written together, such as `100MB/s`.
    #[arg(long, value_name = "RATE", value_parser = super::admin_command::bandwidth)]
    pub bandwidth: Option<u64>,
    /// No writes, trims and erases.
    #[arg(long)]
    pub read_only: bool,
}

/// `sluice calibrate`: measure this machine.
#[derive(Debug, Args)]
pub struct CalibrateArgs {
    /// Say whether the machine can keep up with this scenario in real time.
    pub scenario: Option<PathBuf>,
    /// Write the measurements as JSON.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Only see that everything can be measured.
    #[arg(long, hide = true)]
    pub quick: bool,
}

/// `sluice bench`: measure Sluice.
#[derive(Debug, Args)]
pub struct BenchArgs {
    /// What to measure.
    pub group: BenchGroup,
    /// Group `block`: run the block layer on this modelled machine, in virtual time, instead of here.
    #[arg(long, value_name = "SOCKETSxCORES")]
    pub machine: Option<Machine>,
    /// What the modelled machine's costs are: given ones, or those that can be measured here.
    #[arg(long, value_enum, default_value_t, requires = "machine")]
    pub costs: CostSource,
    /// Groups `block` and `hiops`: measure the block layer, or the completion strategies, on this device
    /// (`vfio:0000:01:00.0`, `/dev/ng0n1`, `/dev/nvme0n1`, or what else has queues). It is read only. Group
    /// `lightnvm`, part `overhead`: measure what pblk adds on it, which is written to (`--destroy`).
    #[arg(long, value_name = "DEVICE", conflicts_with = "machine")]
    pub device: Option<String>,
    /// What is on the device may be overwritten.
    #[arg(long, requires = "device")]
    pub destroy: bool,
    /// Groups `lightnvm`, `direct` and `exec`: measure these parts of it only.
    #[arg(long, value_enum, value_name = "PART", value_delimiter = ',')]
    pub part: Vec<BenchPart>,
    /// Print one JSON object per line.
    #[arg(long)]
    pub json: bool,
    /// Only see that everything can be measured.
    #[arg(long, hide = true)]
    pub quick: bool,
}

/// A part of the group `lightnvm`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LightnvmPart {
    /// What the drive and pblk on it reach alone (virtual time).
    Drive,
    /// Reads beside writes, by active parallel units (virtual time).
    Mixed,
    /// Reads beside writes on parallel units of their own (virtual time).
    Predictable,
    /// The number of active parallel units changed within a run (virtual time).
    Active,
    /// Write amplification and stalls of a nearly full device (virtual time).
    Steady,
    /// The rate limiter's step response, of both kinds (virtual time).
    Limiter,
    /// What recovery reads, against the drive's size (virtual time).
    Recovery,
    /// What is lost to media that fails (virtual time).
    Errors,
    /// What pblk adds to a request (real time).
    Overhead,
    /// One and two threads on one sharded device (real time).
    Shards,
    /// 4 KB random overwrites with garbage collection, drive and host (real time).
    Work,
}

/// Where a modelled machine's costs come from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum CostSource {
    /// Everything is given: one published machine, and the same results everywhere, always.
    #[default]
    Given,
    /// What one core spends on a request, and what a line takes between two, are measured here and
    /// now; the rest is given.
    Measured,
}

/// A group of benchmarks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum BenchGroup {
    /// Simulated I/Os per second of wall time.
    Sim,
    /// Real-time IOPS that an emulated drive sustains, and how late they are.
    Live,
    /// Nanoseconds per command through a queue pair.
    Ring,
    /// Real-time IOPS and CPU per I/O of a real file through io_uring, with fio beside it.
    Uring,
    /// Completion strategies for threads that wait: I/Os per second, handlers, context switches.
    Hiops,
    /// Nanoseconds per request through the block layer, and how it scales over cores.
    Block,
    /// User-level I/O (NVMeDirect): queues, handles and policies, beside fio where it is there.
    Direct,
    /// The LightNVM paper's evaluation: an open-channel drive and pblk in virtual time, and what the
    /// host's translation layer costs and sustains in real time.
    Lightnvm,
    /// Programs as they are on an emulated drive, through `sluice exec` and through the kernel: Redis, SQLite,
    /// RocksDB.
    Exec,
}

/// `sluice plot`: figures of results.
#[derive(Debug, Args)]
pub struct PlotArgs {
    /// The results: one JSON object per line.
    #[arg(value_name = "FILE")]
    pub results: PathBuf,
    /// Where the SVG files go.
    #[arg(long, value_name = "DIR")]
    pub dir: PathBuf,
}

/// `sluice volume …`.
#[derive(Debug, Subcommand)]
pub enum VolumeArgs {
    /// Make an empty volume of all of a device.
    Format(VolumeFormatArgs),
    /// Print what a volume is and holds.
    Info(VolumeDevice),
    /// Check all metadata of a volume, and repair what can be without guessing.
    Fsck(VolumeFsckArgs),
    /// List a directory of a volume.
    Ls {
        /// The device.
        #[command(flatten)]
        device: VolumeDevice,
        /// The directory or file.
        #[arg(default_value = "/")]
        path: String,
    },
    /// Copy a file out of a volume.
    Get {
        /// The device.
        #[command(flatten)]
        device: VolumeDevice,
        /// The file on the volume.
        path: String,
        /// The file to write.
        file: PathBuf,
    },
    /// Copy a file into a volume; its directory is there.
    Put {
        /// The device.
        #[command(flatten)]
        device: VolumeDevice,
        /// The file to read.
        file: PathBuf,
        /// The file on the volume.
        path: String,
    },
}

/// Which device.
#[derive(Debug, Args)]
pub struct VolumeDevice {
    /// A scenario (`FILE.toml`, `FILE.toml#DRIVE`), a served drive (`sluice://SOCKET`), a file or block
    /// device.
    #[arg(value_name = "DEVICE")]
    pub device: String,
}

/// `sluice volume format`.
#[derive(Debug, Args)]
pub struct VolumeFormatArgs {
    /// The device.
    #[command(flatten)]
    pub on: VolumeDevice,
    /// Make the device first: a file of this size, such as 1G, which must not be there yet. It is sparse.
    #[arg(long, value_name = "SIZE", value_parser = super::volume_command::size)]
    pub size: Option<u64>,
    /// What the volume is called: 32 bytes at most.
    #[arg(long, default_value = "")]
    pub label: String,
    /// Overwrite the volume that is there.
    #[arg(long)]
    pub force: bool,
}

/// `sluice volume fsck`.
#[derive(Debug, Args)]
pub struct VolumeFsckArgs {
    /// The device.
    #[command(flatten)]
    pub on: VolumeDevice,
    /// Repair what can be repaired.
    #[arg(long)]
    pub repair: bool,
    /// The volume's user is known to be gone: clear the mark.
    #[arg(long, requires = "repair")]
    pub clear_owner: bool,
}

/// `sluice exec`.
#[derive(Debug, Args)]
pub struct ExecArgs {
    /// The device with the volume: a scenario (`FILE.toml`, `FILE.toml#DRIVE`), a served drive
    /// (`sluice://SOCKET`), a file or block device.
    #[arg(long, value_name = "DEVICE")]
    pub volume: String,
    /// The directory that the program finds the volume's files in: none of the host, or an empty one.
    #[arg(long, value_name = "DIR")]
    pub at: PathBuf,
    /// Print what the file service did, on standard error, when the program has ended.
    #[arg(long)]
    pub stats: bool,
    /// The program, and its arguments.
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
    /// YCSB's workloads A to F on the key-value target, and values of a chunk against pblk.
    Bench(KvBenchArgs),
}

/// `sluice kv bench`.
#[derive(Debug, Args)]
pub struct KvBenchArgs {
    /// A scenario whose drive to use: open-channel, with data. Without one, the LightNVM paper's
    /// drive, scaled down.
    pub scenario: Option<PathBuf>,
    /// Run on this target of the drive's partition table, of kind kv and empty: it keeps what the
    /// workload has put. The drive has an image (data = "file").
    #[arg(long, value_name = "NAME", requires = "scenario")]
    pub name: Option<String>,
    /// What to run: a YCSB workload from a to f; `puts`, values of a chunk against pblk; or `all`.
    #[arg(long, value_name = "a..f|puts|all", default_value = "all")]
    pub workload: KvWorkload,
    /// Records that are there at the start (100,000 unless said).
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub records: Option<u64>,
    /// Operations to carry out (100,000 unless said).
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub operations: Option<u64>,
    /// Bytes of a record's value: YCSB's ten fields of 100, unless said.
    #[arg(long, value_name = "N", default_value_t = 1000)]
    pub value_bytes: u64,
    /// Operations at a time.
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub depth: u32,
    /// Parallel units that take small values at a time; 0: as many as there are, at most 8.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub active_pus: u32,
    /// Spare chunks: physical / logical - 1, from 0.05.
    #[arg(long, value_name = "RATIO", allow_negative_numbers = true)]
    pub over_provisioning: Option<f64>,
    /// Run the workloads in real time, with the drive on a thread of its own.
    #[arg(long)]
    pub real: bool,
    /// Use this seed instead of the scenario's.
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub seed: Option<u64>,
    /// Print one JSON object per line.
    #[arg(long)]
    pub json: bool,
    /// Only see that everything can be measured.
    #[arg(long, hide = true)]
    pub quick: bool,
}

/// What `sluice kv bench` runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KvWorkload {
    /// Everything.
    All,
    /// Values of a chunk, against pblk.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scenarios_and_job_files_are_told_apart() {
        let args = SimArgs {
            inputs: ["a.toml", "mixed.fio", "b.TOML", "jobs"].map(PathBuf::from).to_vec(),
            json: None,
            report: None,
            seed: None,
            strict: false,
            write_image: false,
            trace: None,
            slowest: None,
            blktrace: None,
        };
        let (scenarios, jobs) = args.scenarios_and_jobs();
        assert_eq!(scenarios, [Path::new("a.toml"), Path::new("b.TOML")]);
        assert_eq!(jobs, [Path::new("mixed.fio"), Path::new("jobs")]);
    }
}
