//! The groups of benchmarks and their parts, with the names that requests use.

/// A value of an argument, with a name and a description.
pub trait NamedValue: Copy + 'static {
    /// All values, in the order of help texts.
    const ALL: &'static [Self];

    /// Returns the name.
    fn name(self) -> &'static str;

    /// Returns a sentence that describes the value.
    fn about(self) -> &'static str;

    /// Returns the value with a name.
    fn from_name(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|value| value.name() == name)
    }
}

/// Defines an enum of named values. The doc comment of a value is its description.
macro_rules! named_values {
    ($(#[$meta:meta])* $enum:ident { $($(#[doc = $doc:literal])+ $value:ident = $name:literal,)+ }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum $enum {
            $($(#[doc = $doc])+ $value,)+
        }

        impl NamedValue for $enum {
            const ALL: &'static [$enum] = &[$($enum::$value),+];

            fn name(self) -> &'static str {
                match self {
                    $($enum::$value => $name,)+
                }
            }

            fn about(self) -> &'static str {
                match self {
                    $($enum::$value => concat!($($doc),+).trim_ascii(),)+
                }
            }
        }
    };
}

named_values! {
    /// A group of benchmarks.
    BenchGroup {
        /// Simulated I/Os per second of wall time.
        Sim = "sim",
        /// CPU time per simulated I/O by the size of the simulation: queue depth, jobs, parallel
        /// units, drives, lines, capacity.
        Scale = "scale",
        /// Real-time IOPS that an emulated drive sustains, and their lateness.
        Live = "live",
        /// Nanoseconds per command through a queue pair.
        Ring = "ring",
        /// Real-time IOPS and CPU time per I/O of a real file through io_uring, compared with fio.
        Uring = "uring",
        /// Completion strategies for threads that wait: I/Os per second, handlers, context switches.
        Hiops = "hiops",
        /// Nanoseconds per request through the block layer, and its scaling over cores.
        Block = "block",
        /// User-level I/O (NVMeDirect): queues, handles and policies, compared with fio if it is
        /// installed.
        Direct = "direct",
        /// Evaluation of the LightNVM paper: an open-channel drive and pblk in virtual time, and the
        /// cost and throughput of the host's FTL in real time.
        Lightnvm = "lightnvm",
        /// Unmodified programs on emulated drives, through `sluice exec`: Redis, SQLite and RocksDB,
        /// compared with the kernel's path, and RocksDB and MariaDB, on host-managed flash and on an
        /// NVMe SSD.
        Exec = "exec",
        /// Evaluation of [Thesis15 ch. 5] and [Thesis15 ch. 6]: open-channel drives, the sector
        /// target, the back ends of its host FTL.
        Thesis = "thesis",
        /// I/O speculation [Spec14 §2]: programs that go on while their I/Os are in flight, on a modeled
        /// core; how long programs could, under an emulator; the cost of a checkpoint of their memory.
        Speculate = "speculate",
        /// Rules in the drive, AppNVM [Thesis15 ch. 7]: their cost per command, engines, misses, and
        /// collection by rules.
        Appnvm = "appnvm",
    }
}

named_values! {
    /// A part of the group `scale`.
    ScalePart {
        /// Outstanding requests, 1 to 4,096 (CPU time).
        QueueDepth = "queue-depth",
        /// Jobs, 1 to 1,024 (CPU time).
        Jobs = "jobs",
        /// Parallel units of a drive, 16 to 4,096 (CPU time).
        Pus = "pus",
        /// Drives, 1 to 64 (CPU time).
        Drives = "drives",
        /// Lines of a drive, by the number of active parallel units (CPU time).
        Lines = "lines",
        /// Capacity of a drive, 16 GiB to 8 TiB, which needs 18 GB of memory (CPU time).
        Capacity = "capacity",
    }
}

named_values! {
    /// A part of the group `lightnvm`.
    LightnvmPart {
        /// Limits of the drive, and of pblk on it, without other load (virtual time).
        Drive = "drive",
        /// Reads concurrent with writes, by active parallel units (virtual time).
        Mixed = "mixed",
        /// Reads concurrent with writes on separate parallel units (virtual time).
        Predictable = "predictable",
        /// Write amplification and stalls of a nearly full device (virtual time).
        Steady = "steady",
        /// Reads of a recovery, by the drive's size (virtual time).
        Recovery = "recovery",
        /// Data loss on failing media (virtual time).
        Errors = "errors",
        /// Change of the number of active parallel units within a run (virtual time).
        Active = "active",
        /// Step response of both kinds of rate limiter (virtual time).
        Limiter = "limiter",
        /// Overhead of pblk per request (real time).
        Overhead = "overhead",
        /// One and two threads on one sharded device (real time).
        Shards = "shards",
        /// 4 KB random overwrites with garbage collection, in the drive and on the host (real time).
        Work = "work",
    }
}

named_values! {
    /// A part of the group `hiops`.
    HiopsPart {
        /// Threads and contexts of this machine, and an emulated controller in real time.
        Threads = "threads",
        /// Threads and contexts of a modeled i7-4770, in virtual time: figures 1, 7, 8, 9 and 10
        /// of HIOPS.
        Machine = "machine",
    }
}

named_values! {
    /// A part of the group `block` on a modeled machine.
    BlockPart {
        /// Throughput and latency by cores: figures 4, 6, 7, 9 and 10 of SYSTOR13. Without `--part`,
        /// this part alone (with `--machine`, virtual time).
        Curves = "curves",
        /// Largest latencies at queue depth 1 on all cores, beside other work: table 2 of SYSTOR13
        /// (with `--machine`, virtual time).
        Largest = "largest",
    }
}

named_values! {
    /// A part of the group `direct`.
    DirectPart {
        /// Nanoseconds per command through queue, handle and policies (real time).
        Null = "null",
        /// A file of the host, compared with fio's io_uring engine (real time).
        File = "file",
        /// Polling periods: achieved IOPS and CPU time (real time).
        Polling = "polling",
        /// A drive in another process (real time).
        Processes = "processes",
        /// Priorities and rates: distribution of service over requests (virtual time).
        Service = "service",
    }
}

named_values! {
    /// A part of the group `exec`.
    ExecPart {
        /// Redis with an append-only file, YCSB's workload A (real time).
        Redis = "redis",
        /// SQLite with one transaction per insert (real time).
        Sqlite = "sqlite",
        /// RocksDB's db_bench: fill, and reads during writes (real time).
        Rocksdb = "rocksdb",
        /// RocksDB's db_bench on pblk with 128 and 4 active parallel units, and on an NVMe SSD (real
        /// time).
        Nosql = "nosql",
        /// MariaDB with sysbench's OLTP and OLAP loads on the same drives (real time).
        Sql = "sql",
        /// Redis, SQLite and RocksDB with a sync per write on a log in persistent memory (real time).
        Log = "log",
        /// MariaDB and PostgreSQL with and without their second write of a page, on a drive with atomic
        /// writes (real time).
        Atomic = "atomic",
    }
}

named_values! {
    /// A part of the group `thesis`.
    ThesisPart {
        /// Response times of 16 MB of random writes on two drives with different FTLs (virtual
        /// time).
        Ssds = "ssds",
        /// OpenSSD, managed by the drive and by the host (virtual time).
        Openssd = "openssd",
        /// Throughput with and without the sector target over a drive that only answers (real
        /// time).
        NullDevice = "null-device",
        /// Random writes to the NVMe null device, and the host's CPU time for them (virtual and
        /// real time).
        NvmeNull = "nvme-null",
        /// Nanoseconds per request by component (real time).
        Request = "request",
        /// Random writes through one host FTL on four back ends (virtual time).
        Backends = "backends",
        /// Four chips on a channel: figure 1 of CIDR13 (virtual time).
        Chips = "chips",
        /// Three myths about SSDs (virtual time).
        Myths = "myths",
    }
}

named_values! {
    /// A part of the group `speculate`.
    SpeculatePart {
        /// Programs that yield, block or go on, by the latency of the device: figure 1 (virtual time).
        Strategies = "strategies",
        /// Instructions between an I/O and the point at which a program must wait: table 2 (counts of
        /// instructions, and real time for the slow-down).
        Profile = "profile",
        /// Time of a clone by the size of the process, and of an incremental checkpoint: figure 2 (real
        /// time).
        Clone = "clone",
        /// Tickets of writes on the null device, and lookups whose reads are issued early on an emulated
        /// drive (real time).
        Library = "library",
        /// SQLite, RocksDB and Redis that do not sync, that speculate under `sluice exec --speculate`,
        /// and that wait (real time).
        Exec = "exec",
    }
}

named_values! {
    /// A part of the group `appnvm`.
    AppnvmPart {
        /// A page-mapped drive with rules, compared with the block personality (real time).
        Commands = "commands",
        /// Commands by the number of rules that are tried, 1 to 256 (virtual time, and CPU time).
        Rules = "rules",
        /// A job beside a flood of commands that no rule matches (virtual time).
        Misses = "misses",
        /// Write amplification of garbage collection by a rule, compared with the drive's own policy
        /// (virtual time).
        Collection = "collection",
        /// Write amplification of skewed overwrites by rules with a stream for hot data, and without
        /// (virtual time).
        Temperature = "temperature",
        /// Reads of an application beside the writes of another one (virtual time).
        Neighbors = "neighbors",
        /// Tails of the template `predictable`, and wear of `endurance`, compared with `throughput`
        /// (virtual time).
        Templates = "templates",
        /// Lookups in a B+tree by rules, compared with those of the host (real time).
        Lookups = "lookups",
        /// Nameless writes, compared with a map: write amplification, and the rate (real time).
        Names = "names",
    }
}

named_values! {
    /// Source of a modeled machine's costs.
    CostSource {
        /// Published values of one machine; the results are the same on every machine.
        Given = "given",
        /// CPU time per request and cache-line transfers between two cores are measured on this
        /// machine; the other values are published ones.
        Measured = "measured",
    }
}

/// A part of a group. Names are unique over all groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BenchPart {
    /// A part of the group `lightnvm`.
    Lightnvm(LightnvmPart),
    /// A part of the group `block`.
    Block(BlockPart),
    /// A part of the group `direct`.
    Direct(DirectPart),
    /// A part of the group `hiops`.
    Hiops(HiopsPart),
    /// A part of the group `exec`.
    Exec(ExecPart),
    /// A part of the group `scale`.
    Scale(ScalePart),
    /// A part of the group `thesis`.
    Thesis(ThesisPart),
    /// A part of the group `speculate`.
    Speculate(SpeculatePart),
    /// A part of the group `appnvm`.
    Appnvm(AppnvmPart),
}

impl BenchPart {
    /// Returns the group of the part.
    pub fn group(self) -> BenchGroup {
        match self {
            BenchPart::Lightnvm(_) => BenchGroup::Lightnvm,
            BenchPart::Block(_) => BenchGroup::Block,
            BenchPart::Direct(_) => BenchGroup::Direct,
            BenchPart::Hiops(_) => BenchGroup::Hiops,
            BenchPart::Exec(_) => BenchGroup::Exec,
            BenchPart::Scale(_) => BenchGroup::Scale,
            BenchPart::Thesis(_) => BenchGroup::Thesis,
            BenchPart::Speculate(_) => BenchGroup::Speculate,
            BenchPart::Appnvm(_) => BenchGroup::Appnvm,
        }
    }

    /// Returns the part of the group `lightnvm`, if it is one.
    pub fn lightnvm(self) -> Option<LightnvmPart> {
        match self {
            BenchPart::Lightnvm(part) => Some(part),
            _ => None,
        }
    }

    /// Returns the part of the group `block`, if it is one.
    pub fn block(self) -> Option<BlockPart> {
        match self {
            BenchPart::Block(part) => Some(part),
            _ => None,
        }
    }

    /// Returns the part of the group `direct`, if it is one.
    pub fn direct(self) -> Option<DirectPart> {
        match self {
            BenchPart::Direct(part) => Some(part),
            _ => None,
        }
    }

    /// Returns the part of the group `hiops`, if it is one.
    pub fn hiops(self) -> Option<HiopsPart> {
        match self {
            BenchPart::Hiops(part) => Some(part),
            _ => None,
        }
    }

    /// Returns the part of the group `scale`, if it is one.
    pub fn scale(self) -> Option<ScalePart> {
        match self {
            BenchPart::Scale(part) => Some(part),
            _ => None,
        }
    }

    /// Returns the part of the group `thesis`, if it is one.
    pub fn thesis(self) -> Option<ThesisPart> {
        match self {
            BenchPart::Thesis(part) => Some(part),
            _ => None,
        }
    }

    /// Returns the part of the group `speculate`, if it is one.
    pub fn speculate(self) -> Option<SpeculatePart> {
        match self {
            BenchPart::Speculate(part) => Some(part),
            _ => None,
        }
    }

    /// Returns the part of the group `appnvm`, if it is one.
    pub fn appnvm(self) -> Option<AppnvmPart> {
        match self {
            BenchPart::Appnvm(part) => Some(part),
            _ => None,
        }
    }

    /// Returns the part of the group `exec`, if it is one.
    pub fn exec(self) -> Option<ExecPart> {
        match self {
            BenchPart::Exec(part) => Some(part),
            _ => None,
        }
    }
}

impl NamedValue for BenchPart {
    const ALL: &'static [BenchPart] = &[
        BenchPart::Lightnvm(LightnvmPart::Drive),
        BenchPart::Lightnvm(LightnvmPart::Mixed),
        BenchPart::Lightnvm(LightnvmPart::Predictable),
        BenchPart::Lightnvm(LightnvmPart::Steady),
        BenchPart::Lightnvm(LightnvmPart::Recovery),
        BenchPart::Lightnvm(LightnvmPart::Errors),
        BenchPart::Lightnvm(LightnvmPart::Active),
        BenchPart::Lightnvm(LightnvmPart::Limiter),
        BenchPart::Lightnvm(LightnvmPart::Overhead),
        BenchPart::Lightnvm(LightnvmPart::Shards),
        BenchPart::Lightnvm(LightnvmPart::Work),
        BenchPart::Block(BlockPart::Curves),
        BenchPart::Block(BlockPart::Largest),
        BenchPart::Direct(DirectPart::Null),
        BenchPart::Direct(DirectPart::File),
        BenchPart::Direct(DirectPart::Polling),
        BenchPart::Direct(DirectPart::Processes),
        BenchPart::Direct(DirectPart::Service),
        BenchPart::Hiops(HiopsPart::Threads),
        BenchPart::Hiops(HiopsPart::Machine),
        BenchPart::Exec(ExecPart::Redis),
        BenchPart::Exec(ExecPart::Sqlite),
        BenchPart::Exec(ExecPart::Rocksdb),
        BenchPart::Exec(ExecPart::Nosql),
        BenchPart::Exec(ExecPart::Sql),
        BenchPart::Exec(ExecPart::Log),
        BenchPart::Exec(ExecPart::Atomic),
        BenchPart::Scale(ScalePart::QueueDepth),
        BenchPart::Scale(ScalePart::Jobs),
        BenchPart::Scale(ScalePart::Pus),
        BenchPart::Scale(ScalePart::Drives),
        BenchPart::Scale(ScalePart::Lines),
        BenchPart::Scale(ScalePart::Capacity),
        BenchPart::Thesis(ThesisPart::Ssds),
        BenchPart::Thesis(ThesisPart::Openssd),
        BenchPart::Thesis(ThesisPart::NullDevice),
        BenchPart::Thesis(ThesisPart::NvmeNull),
        BenchPart::Thesis(ThesisPart::Request),
        BenchPart::Thesis(ThesisPart::Backends),
        BenchPart::Thesis(ThesisPart::Chips),
        BenchPart::Thesis(ThesisPart::Myths),
        BenchPart::Speculate(SpeculatePart::Strategies),
        BenchPart::Speculate(SpeculatePart::Profile),
        BenchPart::Speculate(SpeculatePart::Clone),
        BenchPart::Speculate(SpeculatePart::Library),
        BenchPart::Speculate(SpeculatePart::Exec),
        BenchPart::Appnvm(AppnvmPart::Commands),
        BenchPart::Appnvm(AppnvmPart::Rules),
        BenchPart::Appnvm(AppnvmPart::Misses),
        BenchPart::Appnvm(AppnvmPart::Collection),
        BenchPart::Appnvm(AppnvmPart::Temperature),
        BenchPart::Appnvm(AppnvmPart::Neighbors),
        BenchPart::Appnvm(AppnvmPart::Templates),
        BenchPart::Appnvm(AppnvmPart::Lookups),
        BenchPart::Appnvm(AppnvmPart::Names),
    ];

    fn name(self) -> &'static str {
        match self {
            BenchPart::Lightnvm(part) => part.name(),
            BenchPart::Block(part) => part.name(),
            BenchPart::Direct(part) => part.name(),
            BenchPart::Hiops(part) => part.name(),
            BenchPart::Exec(part) => part.name(),
            BenchPart::Scale(part) => part.name(),
            BenchPart::Thesis(part) => part.name(),
            BenchPart::Speculate(part) => part.name(),
            BenchPart::Appnvm(part) => part.name(),
        }
    }

    fn about(self) -> &'static str {
        match self {
            BenchPart::Lightnvm(part) => part.about(),
            BenchPart::Block(part) => part.about(),
            BenchPart::Direct(part) => part.about(),
            BenchPart::Hiops(part) => part.about(),
            BenchPart::Exec(part) => part.about(),
            BenchPart::Scale(part) => part.about(),
            BenchPart::Thesis(part) => part.about(),
            BenchPart::Speculate(part) => part.about(),
            BenchPart::Appnvm(part) => part.about(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_part_has_a_name_of_its_own_and_is_in_the_list() {
        let parts = BenchPart::ALL;
        let own = LightnvmPart::ALL.len()
            + BlockPart::ALL.len()
            + DirectPart::ALL.len()
            + HiopsPart::ALL.len()
            + ExecPart::ALL.len()
            + ScalePart::ALL.len()
            + ThesisPart::ALL.len()
            + SpeculatePart::ALL.len()
            + AppnvmPart::ALL.len();
        assert_eq!(parts.len(), own);
        for (i, part) in parts.iter().enumerate() {
            let name = part.name();
            let again = BenchPart::from_name(name).unwrap();
            assert_eq!(parts.iter().position(|p| *p == again), Some(i), "{name}");
            let of = [
                part.lightnvm().is_some(),
                part.block().is_some(),
                part.direct().is_some(),
                part.hiops().is_some(),
                part.exec().is_some(),
                part.scale().is_some(),
                part.thesis().is_some(),
                part.speculate().is_some(),
                part.appnvm().is_some(),
            ];
            assert_eq!(of.iter().filter(|is| **is).count(), 1, "{name}");
        }
    }

    #[test]
    fn a_description_is_one_line() {
        assert_eq!(
            CostSource::Measured.about(),
            "CPU time per request and cache-line transfers between two cores are measured on this \
             machine; the other values are published ones."
        );
    }
}
