//! [`DriveVerdict`]: whether this machine keeps up with a drive in real time.
//!
//! Every command costs the drive's thread its model and, if the drive stores data, a copy. It costs
//! the host's thread the round trip to the queue pair. With a CPU each, the slower thread
//! determines the maximum rate of the machine; on too few CPUs their costs add up. A drive demands
//! at most its closed-form limit ([`ClosedFormLimits`]). At queue depth *q* it demands *q* ÷
//! (latency + round trip) (Little's law). A machine that is too slow for the limit therefore still
//! keeps up to some depth.

use std::fmt;

use controller::PersonalityKind;
use event::IdlePolicy;
use media::{DataStore, MediaConfig};
use scenario::format::{count, duration};
use scenario::{DriveSpec, HostTarget, Scenario};
use sim::analytic::ClosedFormLimits;
use time::Nanos;

use super::MachineCosts;

/// Maximum utilization of the machine's highest rate. Closer to the highest rate, commands wait for
/// the machine and complete late.
pub const USABLE: f64 = 0.8;

/// CPU time of the drive's thread to simulate one command, including the queue and excluding data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ModelCost {
    /// Time per command.
    pub per_command: Nanos,
    /// Object of the measurement.
    pub source: ModelSource,
}

/// Object of the measurement of a [`ModelCost`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ModelSource {
    /// A drive that completes immediately: a lower bound.
    Echo,
    /// A drive as the scenario describes it.
    Drive,
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
    /// Not even with a single command.
    No,
}

impl Feasibility {
    /// Returns the less favorable of the two.
    #[must_use]
    pub fn worse(self, other: Feasibility) -> Feasibility {
        match (self, other) {
            (Feasibility::No, _) | (_, Feasibility::No) => Feasibility::No,
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

/// Judges every drive of a scenario, each in isolation.
pub fn judge(scenario: &Scenario, machine: &MachineCosts, model: ModelCost) -> Vec<DriveVerdict> {
    let mut verdicts: Vec<DriveVerdict> =
        scenario.drives.iter().map(|plan| judge_drive(plan, machine, model)).collect();
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

fn judge_drive(plan: &DriveSpec, machine: &MachineCosts, model: ModelCost) -> DriveVerdict {
    let limits = ClosedFormLimits::from_spec(plan);
    let mut findings = Vec::new();
    for way in [DataPath::InProcess, DataPath::Nbd] {
        if way == DataPath::Nbd && !plan.is_block_device() {
            continue;
        }
        for demand in demands(&limits) {
            let costs = costs(plan, machine, model, way, demand.bytes);
            let (answer, reason) = assess(&demand, &costs);
            findings.push(Finding { path: way, demand, costs, feasibility: answer, reason });
        }
    }
    let notes = notes(plan, machine, model, limits.read_latency);
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

fn stores_data(plan: &DriveSpec) -> bool {
    match &plan.config.media {
        MediaConfig::Nand(nand) => nand.data != DataStore::None,
        MediaConfig::Pcm(pcm) => pcm.data != DataStore::None,
        MediaConfig::Null { .. } => false,
    }
}

/// Returns the costs of a command of `bytes` on this machine.
pub fn costs(
    plan: &DriveSpec,
    machine: &MachineCosts,
    model: ModelCost,
    way: DataPath,
    bytes: u64,
) -> CommandCosts {
    let copy = if stores_data(plan) { machine.copies.cold_bytes(bytes) } else { Nanos::ZERO };
    let drive = model.per_command + copy;
    let queue = machine.queue.pipelined;
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
    model: ModelCost,
    read_latency: Nanos,
) -> Vec<String> {
    let mut notes = Vec::new();
    let (threads, idle) = (&machine.threads, IdlePolicy::default());
    if model.source == ModelSource::Echo {
        notes.push(format!(
            "the drive's model is counted with the {} that a drive without one costs per command: \
             the rates above are upper bounds",
            duration(model.per_command.0)
        ));
    }
    if plan.target != HostTarget::None {
        notes.push("what the target costs the host per command is not counted".into());
    }
    if plan.config.personality == PersonalityKind::Block && plan.capacity.is_some() {
        notes.push("what garbage collection costs the drive's thread is not counted".into());
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
