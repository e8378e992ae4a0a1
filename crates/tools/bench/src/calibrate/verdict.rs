//! [`DriveVerdict`]: whether this machine keeps up with a drive in real time.
//!
//! Every command costs the drive's thread its model and its data, and the host's thread the queue pair
//! and its target. These costs are measured: the drive is run ([`drive_run`](super::drive_run)). A
//! drive that cannot be run is judged only if one that completes immediately would be too slow. With a CPU each, the slower thread
//! determines the maximum rate of the machine; on too few CPUs their costs add up. A drive demands
//! at most its closed-form limit ([`ClosedFormLimits`]). At queue depth *q* it demands *q* ÷
//! (latency + round trip) (Little's law). A machine that is too slow for the limit therefore still
//! keeps up to some depth.

use std::fmt;

use controller::PersonalityKind;
use event::IdlePolicy;
use scenario::format::{count, duration};
use scenario::{DriveSpec, Scenario};
use sim::analytic::ClosedFormLimits;
use time::Nanos;

use super::MachineCosts;

/// Maximum utilization of the machine's highest rate. Closer to the highest rate, commands wait for
/// the machine and complete late.
pub const USABLE: f64 = 0.8;

/// Processor time of a command.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CommandCpu {
    /// Time of the drive's thread: personality, FTL and data.
    pub drive: Nanos,
    /// Time of the host's thread: queue pair and target.
    pub host: Nanos,
}

/// Costs of a drive that was run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MeasuredDrive {
    /// A read.
    pub reads: CommandCpu,
    /// A write.
    pub writes: CommandCpu,
}

/// Costs of a drive, as far as they are known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DriveCost {
    /// The drive was run.
    Measured(MeasuredDrive),
    /// The drive could not be run. A drive that completes immediately is a lower bound.
    Unknown {
        /// The reason, without a full stop.
        reason: String,
    },
}

/// Path of I/O to the drive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DataPath {
    /// A queue pair in process.
    InProcess,
    /// An NBD client on a Unix socket.
    Nbd,
}

/// Whether the machine keeps up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Feasibility {
    /// At any queue depth.
    Yes,
    /// With at most this many outstanding commands, one or more.
    UpToDepth(u64),
    /// The machine can be asked for that rate, but what the drive costs is not known.
    Unknown,
    /// Not even with a single command.
    No,
}

impl Feasibility {
    /// Returns the less favorable of the two.
    #[must_use]
    pub fn worse(self, other: Feasibility) -> Feasibility {
        match (self, other) {
            (Feasibility::No, _) | (_, Feasibility::No) => Feasibility::No,
            (Feasibility::Unknown, _) | (_, Feasibility::Unknown) => Feasibility::Unknown,
            (Feasibility::UpToDepth(a), Feasibility::UpToDepth(b)) => {
                Feasibility::UpToDepth(a.min(b))
            }
            (Feasibility::Yes, other) | (other, Feasibility::Yes) => other,
        }
    }
}

impl fmt::Display for Feasibility {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Feasibility::Yes => f.write_str("yes"),
            Feasibility::UpToDepth(depth) => write!(f, "only up to queue depth {depth}"),
            Feasibility::Unknown => f.write_str("not known"),
            Feasibility::No => f.write_str("no"),
        }
    }
}

/// Demand of a drive on the machine with one kind of command.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DriveDemand {
    /// Kind of command.
    pub kind: &'static str,
    /// Size of a command in bytes.
    pub bytes: u64,
    /// Maximum rate in commands per second; `None` if unlimited.
    pub iops: Option<f64>,
    /// Latency of one command on an idle drive.
    pub latency: Nanos,
}

/// Costs of the machine per command on one path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CommandCosts {
    /// Time between two commands.
    pub per_command: Nanos,
    /// Round-trip time with nothing else outstanding.
    pub round_trip: Nanos,
}

impl CommandCosts {
    /// Returns the rate in commands per second that can be demanded of the machine.
    pub fn usable_iops(&self) -> f64 {
        USABLE / self.per_command.max(Nanos(1)).as_secs_f64()
    }
}

/// Result for one kind of command on one path.
#[derive(Clone, Debug, PartialEq)]
pub struct Finding {
    /// The path.
    pub path: DataPath,
    /// Demand of the drive.
    pub demand: DriveDemand,
    /// Costs of the machine.
    pub costs: CommandCosts,
    /// Whether the machine keeps up.
    pub feasibility: Feasibility,
    /// Reason, as a sentence.
    pub reason: String,
}

/// Verdict on one drive.
#[derive(Clone, Debug, PartialEq)]
pub struct DriveVerdict {
    /// Name of the drive.
    pub drive: String,
    /// Results for every path and kind of command.
    pub findings: Vec<Finding>,
    /// Remarks on lateness on this machine, as sentences.
    pub notes: Vec<String>,
}

impl DriveVerdict {
    /// Returns the least favorable result of all kinds of commands on one path; `None` if the path
    /// does not lead to the drive.
    pub fn feasibility(&self, way: DataPath) -> Option<Feasibility> {
        let findings = self.findings.iter().filter(|f| f.path == way);
        findings.map(|f| f.feasibility).reduce(Feasibility::worse)
    }
}

/// Judges every drive of a scenario, each in isolation. `costs` are those of its drives, in order.
///
/// # Panics
/// If there is not one cost per drive.
pub fn judge(
    scenario: &Scenario,
    machine: &MachineCosts,
    costs: &[DriveCost],
) -> Vec<DriveVerdict> {
    assert_eq!(costs.len(), scenario.drives.len(), "each drive has a cost");
    let drives = scenario.drives.iter().zip(costs);
    let mut verdicts: Vec<DriveVerdict> =
        drives.map(|(plan, cost)| judge_drive(plan, machine, cost)).collect();
    let drives = verdicts.len();
    if drives > 1 {
        for verdict in &mut verdicts {
            verdict.notes.push(format!(
                "{drives} drives share this machine; the verdict is for this one alone at work"
            ));
        }
    }
    verdicts
}

fn judge_drive(plan: &DriveSpec, machine: &MachineCosts, cost: &DriveCost) -> DriveVerdict {
    let limits = ClosedFormLimits::from_spec(plan);
    let mut findings = Vec::new();
    for way in [DataPath::InProcess, DataPath::Nbd] {
        if way == DataPath::Nbd && !plan.is_block_device() {
            continue;
        }
        let [read, write] = demands(&limits);
        let (read_cpu, write_cpu) = match cost {
            DriveCost::Measured(measured) => (measured.reads, measured.writes),
            // Without a drive's model, data and target: a lower bound.
            DriveCost::Unknown { .. } => {
                let bound = CommandCpu { drive: machine.queue.echo, host: Nanos::ZERO };
                (bound, bound)
            }
        };
        for (demand, cpu) in [(read, read_cpu), (write, write_cpu)] {
            let costs = costs(machine, cpu, way);
            let (mut feasibility, reason) = assess(&demand, &costs);
            if matches!(cost, DriveCost::Unknown { .. }) && feasibility != Feasibility::No {
                feasibility = Feasibility::Unknown;
            }
            findings.push(Finding { path: way, demand, costs, feasibility, reason });
        }
    }
    let notes = notes(plan, machine, cost, limits.read_latency);
    DriveVerdict { drive: plan.config.name.clone(), findings, notes }
}

/// Returns the demands of a drive with these limits.
pub fn demands(limits: &ClosedFormLimits) -> [DriveDemand; 2] {
    let write_bytes = limits.write_latency_bytes.max(1);
    [
        DriveDemand {
            kind: "reads",
            bytes: limits.random_read.as_ref().map_or(write_bytes, |l| l.request_bytes),
            iops: limits.random_read.as_ref().map(|l| l.iops()),
            latency: limits.read_latency,
        },
        DriveDemand {
            kind: "writes",
            bytes: write_bytes,
            iops: limits.program.as_ref().map(|l| l.bytes_per_sec() / write_bytes as f64),
            latency: limits.write_latency,
        },
    ]
}

/// Returns the costs of a command on this machine.
pub fn costs(machine: &MachineCosts, cpu: CommandCpu, way: DataPath) -> CommandCosts {
    let (queue, drive) = (machine.queue.pipelined.max(cpu.host), cpu.drive);
    let per_command = match (way, machine.cpus) {
        (DataPath::InProcess, 2..) => queue.max(drive),
        (DataPath::InProcess, _) => queue + drive,
        // The client also needs CPU time.
        (DataPath::Nbd, 3..) => (machine.socket.pipelined + queue).max(drive),
        (DataPath::Nbd, _) => machine.socket.pipelined + queue + drive,
    };
    let way = match way {
        DataPath::InProcess => machine.queue.round_trip.p50,
        DataPath::Nbd => machine.socket.typical().round_trip.p50 + machine.queue.round_trip.p50,
    };
    CommandCosts { per_command, round_trip: way }
}

/// Returns whether a machine with these costs meets this demand, and the reason.
pub fn assess(demand: &DriveDemand, costs: &CommandCosts) -> (Feasibility, String) {
    let usable = costs.usable_iops();
    let handles = format!(
        "this machine handles {} ({} each, {:.0} % of that usable)",
        iops(usable),
        duration(costs.per_command.0),
        USABLE * 100.0
    );
    let wanted = match demand.iops {
        Some(wanted) if wanted <= usable => {
            return (
                Feasibility::Yes,
                format!("the drive does {} at most; {handles}", iops(wanted)),
            );
        }
        Some(wanted) => format!("the drive does up to {}", iops(wanted)),
        None if demand.latency == Nanos::ZERO => {
            return (Feasibility::Yes, format!("the drive is as fast as the machine; {handles}"));
        }
        None => "nothing limits the drive's rate".to_owned(),
    };
    let there_and_back = demand.latency + costs.round_trip;
    let depth = (usable * there_and_back.as_secs_f64()).floor() as u64;
    let (latency, way) = (duration(demand.latency.0), duration(costs.round_trip.0));
    let reason = format!("{wanted}, in {latency} each and {way} on the way; {handles}");
    (if depth == 0 { Feasibility::No } else { Feasibility::UpToDepth(depth) }, reason)
}

fn iops(rate: f64) -> String {
    format!("{} IOPS", count(rate.max(0.0) as u64))
}

/// Returns remarks on lateness that rates do not show.
fn notes(
    plan: &DriveSpec,
    machine: &MachineCosts,
    cost: &DriveCost,
    read_latency: Nanos,
) -> Vec<String> {
    let mut notes = Vec::new();
    let (threads, idle) = (&machine.threads, IdlePolicy::default());
    if let DriveCost::Unknown { reason } = cost {
        notes.push(format!(
            "the drive was not run, because {reason}; the rates above are those of a drive that \
             completes at once, which costs {} per command: upper bounds",
            duration(machine.queue.echo.0)
        ));
    }
    if plan.config.personality == PersonalityKind::Block && plan.capacity.is_some() {
        notes.push("what garbage collection costs the drive's thread is counted only as far as the run caused it".into());
    }
    // Measurements of drives vary by about a twentieth of the latency anyway.
    if threads.wake.p99.0 > read_latency.0 / 20 {
        notes.push(format!(
            "a command to a drive that was idle for {} waits {} until its thread is awake (99th \
             percentile {}); the drive's own latency of a read is {}",
            duration(idle.spin_time.0),
            duration(threads.wake.p50.0),
            duration(threads.wake.p99.0),
            duration(read_latency.0)
        ));
    }
    if threads.park_late.p99 > idle.wake_margin {
        notes.push(format!(
            "a sleeping drive wakes up to {} late (99th percentile), more than the {} by which it \
             wakes early: what completes then is late",
            duration(threads.park_late.p99.0),
            duration(idle.wake_margin.0)
        ));
    }
    if threads.stall.0 > read_latency.0 / 20 {
        notes.push(format!(
            "a spinning thread was not run for {} at worst within {}: a completion due in such a \
             time is late by as much",
            duration(threads.stall.0),
            duration(threads.observed.0)
        ));
    }
    if plan.is_block_device() {
        let host = machine.through_nbd();
        let added = host.submit + host.complete;
        let share = match read_latency.0 {
            0 => String::new(),
            latency => {
                format!(", {:.0} % of the drive's own", added.0 as f64 * 100.0 / latency as f64)
            }
        };
        notes.push(format!(
            "through NBD the host adds {} to a read at queue depth 1{share}",
            duration(added.0)
        ));
    }
    notes
}
