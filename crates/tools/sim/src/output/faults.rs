//! Faults in results: their keys as in scenarios, and what became of them.

use controller::{CorruptedPart, Fault, FaultRecord, FaultScope, FaultSector};
use scenario::format::{count, duration};
use serde_json::{Value, json};

use crate::SimOutcome;

/// Inserts the kind and the keys of a fault, as in a scenario, with times in nanoseconds.
pub(super) fn insert_fault(fault: &Fault, value: &mut Value) {
    value["kind"] = json!(fault.kind());
    match *fault {
        Fault::PowerCut { after_ops: 0 } | Fault::ControllerFatal => {}
        Fault::PowerCut { after_ops } => value["after_ops"] = json!(after_ops),
        Fault::DieFailure { pu } => value["pu"] = json!(pu.get()),
        Fault::ChunkOffline { pu, chunk } => {
            (value["pu"], value["chunk"]) = (json!(pu.get()), json!(chunk));
        }
        Fault::OperationFailure { scope: FaultScope::Rate { rate, .. }, .. } => {
            value["rate"] = json!(rate);
        }
        Fault::OperationFailure { scope: FaultScope::Next(sector), .. }
        | Fault::Uncorrectable { sector } => insert_sector(sector, value),
        Fault::CorruptedData { sector, part } => {
            insert_sector(sector, value);
            match part {
                CorruptedPart::Data => {}
                CorruptedPart::Guard => value["what"] = json!("guard"),
                CorruptedPart::ReferenceTag => value["what"] = json!("reference-tag"),
            }
        }
        Fault::SlowDie { pu, factor, .. } => {
            (value["pu"], value["factor"]) = (json!(pu.get()), json!(factor));
        }
        Fault::Format { erase: false } => {}
        Fault::Format { erase: true } => value["erase"] = json!(true),
        Fault::Sanitize { action } => value["action"] = json!(action.name()),
        Fault::StalledQueue { queue, .. } | Fault::LostCompletion { queue } => {
            value["queue"] = json!(queue);
        }
    }
    if let Some(duration) = fault.duration() {
        value["duration_ns"] = json!(duration.0);
    }
}

fn insert_sector(sector: FaultSector, value: &mut Value) {
    match sector {
        FaultSector::Lba { namespace, lba } => {
            value["lba"] = json!(lba);
            if namespace != 1 {
                value["namespace"] = json!(namespace);
            }
        }
        FaultSector::Flash { pu, chunk, sector } => {
            (value["pu"], value["chunk"]) = (json!(pu.get()), json!(chunk));
            value["sector"] = json!(sector);
        }
    }
}

/// Returns the faults of all drives, drive by drive, as in the `sluice` section.
pub(super) fn faults(outcome: &SimOutcome) -> Vec<Value> {
    let of_drive = |drive: &crate::DriveOutcome| {
        let name = drive.name.clone();
        let entry = move |record: &FaultRecord| {
            let mut value = json!({ "time_ns": record.at.0, "drive": name });
            insert_fault(&record.fault, &mut value);
            value["open"] = json!(record.is_open);
            if let Some(count) = record.count {
                value["count"] = json!(count);
            }
            value
        };
        drive.faults.iter().map(entry).collect::<Vec<_>>()
    };
    outcome.drives.iter().flat_map(of_drive).collect()
}

/// Describes a fault and its extent for people, on one line.
pub(super) fn sentence(drive: &str, record: &FaultRecord) -> String {
    let extent = |what: &str, happened: &str| match record.count {
        Some(1) => format!(", 1 {what} {happened}"),
        Some(n) => format!(", {} {what}s {happened}", count(n)),
        None => String::new(),
    };
    let extent = match record.fault {
        Fault::PowerCut { .. } if record.is_open => ", which did not come".into(),
        Fault::PowerCut { .. } => extent("command", "ended"),
        Fault::ControllerFatal => extent("command", "lost"),
        Fault::DieFailure { .. } | Fault::ChunkOffline { .. } => extent("chunk", "offline"),
        Fault::OperationFailure { .. } => extent("operation", "failed"),
        Fault::LostCompletion { .. } => extent("completion", "lost"),
        Fault::Format { .. } | Fault::Sanitize { .. } if record.is_open => {
            ", which did not end".into()
        }
        Fault::Format { .. } | Fault::Sanitize { .. } => extent("block", "cleared"),
        Fault::Uncorrectable { .. } | Fault::CorruptedData { .. } => String::new(),
        Fault::SlowDie { factor, .. } => format!(", times {factor}"),
        Fault::StalledQueue { queue, .. } => format!(", queue {queue}"),
    };
    let lasts = record.fault.duration().map(|time| format!(" for {}", duration(time.0)));
    let kind = record.fault.kind();
    let time = duration(record.at.0);
    format!("{kind} of {drive} after {time}{}{extent}", lasts.unwrap_or_default())
}
