//! [`Verdict`]: whether this machine keeps up with a drive in real time.
//!
//! Every command costs the drive's thread its model and, where the drive keeps data, a copy; and the
//! host's thread the way to the queue pair and back. Side by side the slower thread says how many
//! commands the machine handles per second; on too few CPUs their costs add up. A drive asks for
//! its closed-form limit ([`Limits`]) at most, and at queue depth *q* for *q* ÷ (latency + way there
//! and back) (Little's law), so a machine that is too slow for the limit still keeps up to some
//! depth.

use std::fmt;

use clock::{Idle, Nanos};
use drive::PersonalityKind;
use media::{DataStore, MediaConfig};

use super::Machine;
use crate::limits::Limits;
use crate::scenario::{DrivePlan, Scenario, Target};
use crate::text::{count, duration};

/// The share of a machine's highest rate that can be asked of it: close to the highest, commands
/// wait for the machine and complete late.
pub const USABLE: f64 = 0.8;

/// What simulating one command costs the drive's thread, queue included and data excluded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ModelCost {
    /// Per command.
    pub per_command: Nanos,
    /// What it was measured on.
    pub source: ModelSource,
}

/// What a [`ModelCost`] was measured on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ModelSource {
    /// A drive that answers at once: a lower bound.
    Echo,
    /// A drive as the scenario describes it.
    Drive,
}

/// How I/O reaches the drive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// A queue pair in process.
    InProcess,
    /// An NBD client on a Unix socket.
    Nbd,
}

/// Whether the machine keeps up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// At any queue depth.
    Yes,
    /// With this many commands outstanding at most, one or more.
    UpToDepth(u64),
    /// Not with a single one.
    No,
}

impl Answer {
    /// The one that promises less.
    #[must_use]
    pub fn worse(self, other: Answer) -> Answer {
        match (self, other) {
            (Answer::No, _) | (_, Answer::No) => Answer::No,
            (Answer::UpToDepth(a), Answer::UpToDepth(b)) => Answer::UpToDepth(a.min(b)),
            (Answer::Yes, other) | (other, Answer::Yes) => other,
        }
    }
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Answer::Yes => f.write_str("yes"),
            Answer::UpToDepth(depth) => write!(f, "only up to queue depth {depth}"),
            Answer::No => f.write_str("no"),
        }
    }
}

/// What a drive asks of the machine with one kind of command.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Demand {
    /// The kind.
    pub what: &'static str,
    /// Bytes of a command.
    pub bytes: u64,
    /// Commands per second at most; `None` if nothing limits them.
    pub iops: Option<f64>,
    /// Of one command on an idle drive.
    pub latency: Nanos,
}

/// What the machine pays per command on one way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Costs {
    /// Between one command and the next.
    pub per_command: Nanos,
    /// On the way there and back, nothing else outstanding.
    pub way: Nanos,
}

impl Costs {
    /// Commands per second that the machine can be asked for.
    pub fn usable_iops(&self) -> f64 {
        USABLE / self.per_command.max(Nanos(1)).as_secs_f64()
    }
}

/// One kind of command on one way.
#[derive(Clone, Debug, PartialEq)]
pub struct Finding {
    /// The way.
    pub way: Way,
    /// What the drive asks.
    pub demand: Demand,
    /// What the machine pays.
    pub costs: Costs,
    /// Whether it keeps up.
    pub answer: Answer,
    /// Why, as a sentence.
    pub reason: String,
}

/// What there is to say of one drive.
#[derive(Clone, Debug, PartialEq)]
pub struct Verdict {
    /// The drive.
    pub drive: String,
    /// Every way and kind of command.
    pub findings: Vec<Finding>,
    /// What else to know of lateness on this machine, as sentences.
    pub notes: Vec<String>,
}

impl Verdict {
    /// Of all kinds of commands on one way, the one that promises least; `None` if the way does not
    /// lead to the drive.
    pub fn answer(&self, way: Way) -> Option<Answer> {
        let findings = self.findings.iter().filter(|f| f.way == way);
        findings.map(|f| f.answer).reduce(Answer::worse)
    }
}

/// Judges every drive of a scenario, each as if it were alone.
pub fn judge(scenario: &Scenario, machine: &Machine, model: ModelCost) -> Vec<Verdict> {
    let mut verdicts: Vec<Verdict> =
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

fn judge_drive(plan: &DrivePlan, machine: &Machine, model: ModelCost) -> Verdict {
    let limits = Limits::of(plan);
    let mut findings = Vec::new();
    for way in [Way::InProcess, Way::Nbd] {
        if way == Way::Nbd && !plan.is_block_device() {
            continue;
        }
        for demand in demands(&limits) {
            let costs = costs(plan, machine, model, way, demand.bytes);
            let (answer, reason) = assess(&demand, &costs);
            findings.push(Finding { way, demand, costs, answer, reason });
        }
    }
    let notes = notes(plan, machine, model, limits.read_latency);
    Verdict { drive: plan.config.name.clone(), findings, notes }
}

/// What a drive with these limits asks for.
pub fn demands(limits: &Limits) -> [Demand; 2] {
    let write_bytes = limits.write_latency_bytes.max(1);
    [
        Demand {
            what: "reads",
            bytes: limits.random_read.as_ref().map_or(write_bytes, |l| l.request_bytes),
            iops: limits.random_read.as_ref().map(|l| l.iops()),
            latency: limits.read_latency,
        },
        Demand {
            what: "writes",
            bytes: write_bytes,
            iops: limits.program.as_ref().map(|l| l.bytes_per_sec() / write_bytes as f64),
            latency: limits.write_latency,
        },
    ]
}

fn keeps_data(plan: &DrivePlan) -> bool {
    match &plan.config.media {
        MediaConfig::Nand(nand) => nand.data != DataStore::None,
        MediaConfig::Pcm(pcm) => pcm.data != DataStore::None,
        MediaConfig::Null { .. } => false,
    }
}

/// What a command of `bytes` costs on this machine.
pub fn costs(plan: &DrivePlan, machine: &Machine, model: ModelCost, way: Way, bytes: u64) -> Costs {
    let copy = if keeps_data(plan) { machine.copies.cold_bytes(bytes) } else { Nanos::ZERO };
    let drive = model.per_command + copy;
    let queue = machine.queue.pipelined;
    let per_command = match (way, machine.cpus) {
        (Way::InProcess, 2..) => queue.max(drive),
        (Way::InProcess, _) => queue + drive,
        // The client is at work too.
        (Way::Nbd, 3..) => (machine.socket.pipelined + queue).max(drive),
        (Way::Nbd, _) => machine.socket.pipelined + queue + drive,
    };
    let way = match way {
        Way::InProcess => machine.queue.round_trip.p50,
        Way::Nbd => machine.socket.usual().round_trip.p50 + machine.queue.round_trip.p50,
    };
    Costs { per_command, way }
}

/// Whether a machine with these costs keeps up with this demand, and why.
pub fn assess(demand: &Demand, costs: &Costs) -> (Answer, String) {
    let usable = costs.usable_iops();
    let handles = format!(
        "this machine handles {} ({} each, {:.0} % of that usable)",
        iops(usable),
        duration(costs.per_command.0),
        USABLE * 100.0
    );
    let wanted = match demand.iops {
        Some(wanted) if wanted <= usable => {
            return (Answer::Yes, format!("the drive does {} at most; {handles}", iops(wanted)));
        }
        Some(wanted) => format!("the drive does up to {}", iops(wanted)),
        None if demand.latency == Nanos::ZERO => {
            return (Answer::Yes, format!("the drive is as fast as the machine; {handles}"));
        }
        None => "nothing limits the drive's rate".to_owned(),
    };
    let there_and_back = demand.latency + costs.way;
    let depth = (usable * there_and_back.as_secs_f64()).floor() as u64;
    let (latency, way) = (duration(demand.latency.0), duration(costs.way.0));
    let reason = format!("{wanted}, in {latency} each and {way} on the way; {handles}");
    (if depth == 0 { Answer::No } else { Answer::UpToDepth(depth) }, reason)
}

fn iops(rate: f64) -> String {
    format!("{} IOPS", count(rate.max(0.0) as u64))
}

/// What the costs say of lateness that no rate shows.
fn notes(
    plan: &DrivePlan,
    machine: &Machine,
    model: ModelCost,
    read_latency: Nanos,
) -> Vec<String> {
    let mut notes = Vec::new();
    let (threads, idle) = (&machine.threads, Idle::default());
    if model.source == ModelSource::Echo {
        notes.push(format!(
            "the drive's model is counted with the {} that a drive without one costs per command: \
             the rates above are upper bounds",
            duration(model.per_command.0)
        ));
    }
    if plan.target != Target::None {
        notes.push("what the target costs the host per command is not counted".into());
    }
    if plan.config.personality == PersonalityKind::Block && plan.capacity.is_some() {
        notes.push("what garbage collection costs the drive's thread is not counted".into());
    }
    // A twentieth of the latency is what measurements of drives differ by anyway.
    if threads.wake.p99.0 > read_latency.0 / 20 {
        notes.push(format!(
            "a command to a drive that was idle for {} waits {} until its thread is awake (99th \
             percentile {}); the drive's own latency of a read is {}",
            duration(idle.spin.0),
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
            duration(threads.watched.0)
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
