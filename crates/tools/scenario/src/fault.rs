//! `[[fault]]`: a failure of a drive at an instant of the run; [`read_fault`] and [`parse_fault`]: a
//! failure of a drive in real time.

use std::path::Path;

use controller::{CorruptedPart, Fault, FaultError, FaultScope, FaultSector, SanitizeMethod};
use media::Operation;
use nvme::PuId;

use crate::keys::drive_keys::parse_toml;
use crate::section::{Keyword, Result, Section, Value};
use crate::source::SourceText;
use crate::{Beneath, ChangedSettings, DriveKind, Scenario, TimedChange};

/// The value of a key of a fault, as text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FaultValue<'a> {
    /// The key.
    pub key: &'a str,
    /// The value.
    pub value: &'a str,
}

/// Reads a fault from its kind and the values of its keys, as they are in a scenario. A value that is
/// not TOML is a string.
///
/// ```
/// use controller::Fault;
/// use sluice_scenario::{FaultValue, read_fault};
///
/// let values = [("pu", "3"), ("factor", "10"), ("duration", "2s")];
/// let values = values.map(|(key, value)| FaultValue { key, value });
/// assert!(matches!(read_fault("slow-die", &values)?, Fault::SlowDie { factor: 10.0, .. }));
/// assert!(read_fault("slow-die", &values[..1]).is_err());
/// # Ok::<(), sluice_scenario::ScenarioError>(())
/// ```
///
/// # Errors
/// [`ScenarioError`](crate::ScenarioError) with the problem that a scenario with these keys would
/// have.
pub fn read_fault(kind: &str, values: &[FaultValue<'_>]) -> Result<Fault> {
    let file = Path::new("fault.toml");
    let mut text = format!("kind = {kind:?}\n");
    for FaultValue { key, value } in values {
        let line = format!("{key:?} = {value}\n");
        match value.contains('\n') || parse_toml(&SourceText::new(file, &line)).is_err() {
            true => text.push_str(&format!("{key:?} = {value:?}\n")),
            false => text.push_str(&line),
        }
    }
    let source = SourceText::new(file, &text);
    let table = parse_toml(&source)?;
    let mut section = Section::root(&source, &table);
    section.name = "fault".into();
    let fault = read_keys(&mut section)?;
    section.finish()?;
    Ok(fault)
}

/// Reads a fault from a line of text: its kind, then `key=value` for each key, separated by spaces.
///
/// ```
/// use controller::{Fault, FaultSector};
/// use sluice_scenario::parse_fault;
///
/// let fault = parse_fault("uncorrectable lba=100")?;
/// assert_eq!(fault, Fault::Uncorrectable { sector: FaultSector::lba(100) });
/// # Ok::<(), sluice_scenario::ScenarioError>(())
/// ```
///
/// # Errors
/// As [`read_fault`].
pub fn parse_fault(text: &str) -> Result<Fault> {
    let mut words = text.split_whitespace();
    let kind = words.next().unwrap_or_default();
    // A word without `=` is a key that no fault has.
    let values = words.map(|word| {
        let (key, value) = word.split_once('=').unwrap_or((word, ""));
        FaultValue { key, value }
    });
    read_fault(kind, &values.collect::<Vec<_>>())
}

/// Reads the faults of a scenario whose drives and paths have been read.
pub(crate) fn read_faults(
    scenario: &Scenario,
    sections: Vec<Section<'_>>,
) -> Result<Vec<TimedChange>> {
    let mut faults: Vec<TimedChange> = Vec::with_capacity(sections.len());
    for section in sections {
        let fault = read_timed(scenario, section, &faults)?;
        faults.push(fault);
    }
    Ok(faults)
}

/// Reads a fault; `others` are those before it in the scenario.
fn read_timed(
    scenario: &Scenario,
    mut s: Section<'_>,
    others: &[TimedChange],
) -> Result<TimedChange> {
    let Some(at) = s.get("at") else {
        return Err(s.missing("at", "the time since the start of the jobs, such as \"10s\""));
    };
    let (time, line) = (at.duration()?, at.line());
    let drive = read_drive(scenario, &mut s)?;
    let fault = read_keys(&mut s)?;
    let plan = &scenario.drives[drive];
    if let Err(error) = plan.config.check_fault(&fault) {
        let key = match &error {
            FaultError::OutOfRange { key, .. } | FaultError::Value { key, .. } => key,
            FaultError::NoNamespace { .. } => "namespace",
            _ => "kind",
        };
        let place = s.get(key).unwrap_or(at);
        let help = "see docs/faults.md for the faults that a drive can have";
        return Err(place.conflict(error.to_string(), help));
    }
    if let (Fault::LostCompletion { .. } | Fault::ControllerFatal, Some(kind)) =
        (fault, s.get("kind"))
    {
        check_timeout(scenario, drive, &kind)?;
    }
    let settings = ChangedSettings::Fault { drive, fault };
    let takes_again = match fault {
        Fault::DieFailure { .. } | Fault::ChunkOffline { .. } => {
            others.iter().find(|other| other.settings == settings)
        }
        _ => None,
    };
    if let Some(other) = takes_again {
        let message = format!("line {} has this {} already", other.line, fault.kind());
        return Err(at.conflict(message, "remove one of both: what is gone cannot fail again"));
    }
    s.finish()?;
    Ok(TimedChange { time, settings, line })
}

/// Reads the drive of a fault: the only emulated NVMe drive unless it is named.
fn read_drive(scenario: &Scenario, s: &mut Section<'_>) -> Result<usize> {
    let can_fail = |drive: &usize| scenario.drives[*drive].kind == DriveKind::Nvme;
    let able: Vec<usize> = (0..scenario.drives.len()).filter(can_fail).collect();
    let names: Vec<&str> =
        able.iter().map(|drive| scenario.drives[*drive].config.name.as_str()).collect();
    let Some(value) = s.get("drive") else {
        return match able[..] {
            [only] => Ok(only),
            [] => Err(s.missing("drive", "no drive of the scenario is an emulated NVMe drive")),
            _ => Err(s.missing("drive", format!("there are several: {}", names.join(", ")))),
        };
    };
    let name = value.string()?;
    match able.iter().find(|drive| scenario.drives[**drive].config.name == name) {
        Some(drive) => Ok(*drive),
        None if scenario.drive(name).is_some() => {
            let message = format!("\"{name}\" is not an emulated NVMe drive");
            Err(value.conflict(message, "faults are those of drives with kind = \"nvme\""))
        }
        None => Err(value.refuse_name(&names)),
    }
}

/// Checks that hosts of a drive notice a lost completion.
fn check_timeout(scenario: &Scenario, drive: usize, kind: &Value<'_>) -> Result<()> {
    for path in scenario.paths() {
        let own = Beneath::Drive(drive);
        let members = scenario.members(path.over);
        if !members.iter().any(|member| scenario.drive_of(*member) == drive) {
            continue;
        }
        let is_direct = members.contains(&own) && !scenario.is_on_host(own);
        if !is_direct || path.config.block_layer.is_none() {
            let message = format!("path \"{}\" would wait for the completion forever", path.name);
            let help = "set its queue_model = \"sq\" or \"mq\", which has timeouts, over a drive \
                        with its own FTL";
            return Err(kind.conflict(message, help));
        }
    }
    Ok(())
}

/// Values of the key `what` of corrupted data.
const CORRUPTED_PARTS: [Keyword<'static, CorruptedPart>; 3] = [
    Keyword("data", CorruptedPart::Data),
    Keyword("guard", CorruptedPart::Guard),
    Keyword("reference-tag", CorruptedPart::ReferenceTag),
];

/// Reads the kind of a fault and the keys of the kind.
fn read_keys(s: &mut Section<'_>) -> Result<Fault> {
    let Some(kind) = s.get("kind") else {
        return Err(s.missing("kind", format!("one of {}", Fault::KINDS.join(", "))));
    };
    Ok(match kind.string()? {
        "power-cut" => {
            let after_ops = s.get("after_ops").map_or(Ok(0), |value| value.u64())?;
            Fault::PowerCut { after_ops }
        }
        "die-failure" => Fault::DieFailure { pu: read_pu(s)? },
        "chunk-offline" => Fault::ChunkOffline { pu: read_pu(s)?, chunk: read_u32(s, "chunk")? },
        "program-failure" => read_operation_failure(s, Operation::Program)?,
        "erase-failure" => read_operation_failure(s, Operation::Erase)?,
        "read-failure" => read_operation_failure(s, Operation::Read)?,
        "uncorrectable" => Fault::Uncorrectable { sector: read_sector(s)? },
        "corrupted-data" => {
            let mut part = CorruptedPart::Data;
            s.set("what", &mut part, |v| v.choice(&CORRUPTED_PARTS))?;
            Fault::CorruptedData { sector: read_sector(s)?, part }
        }
        "slow-die" => {
            let pu = read_pu(s)?;
            let Some(factor) = s.get("factor") else {
                return Err(s.missing("factor", "how many times as long operations take"));
            };
            let duration = s.get("duration").map(|value| value.duration()).transpose()?;
            Fault::SlowDie { pu, factor: factor.number(0.0..=f64::MAX)?, duration }
        }
        "stalled-queue" => {
            let queue = read_queue(s)?;
            Fault::StalledQueue { queue, duration: read_duration(s)? }
        }
        "format" => {
            Fault::Format { erase: s.get("erase").map_or(Ok(false), |value| value.boolean())? }
        }
        "sanitize" => Fault::Sanitize { action: read_sanitize_method(s)? },
        "lost-completion" => Fault::LostCompletion { queue: read_queue(s)? },
        "controller-fatal" => Fault::ControllerFatal,
        _ => return Err(kind.refuse_name(&Fault::KINDS)),
    })
}

fn read_sanitize_method(s: &mut Section<'_>) -> Result<SanitizeMethod> {
    let names = &SanitizeMethod::NAMES;
    let Some(action) = s.get("action") else {
        return Err(s.missing("action", format!("one of {}", names.join(", "))));
    };
    SanitizeMethod::from_name(action.string()?).ok_or_else(|| action.refuse_name(names))
}

fn read_operation_failure(s: &mut Section<'_>, operation: Operation) -> Result<Fault> {
    let scope = match s.get("rate") {
        Some(rate) => {
            let rate = rate.number(0.0..=1.0)?;
            FaultScope::Rate { rate, duration: read_duration(s)? }
        }
        None if operation == Operation::Erase => {
            let (pu, chunk) = (read_pu(s)?, read_u32(s, "chunk")?);
            FaultScope::Next(FaultSector::Flash { pu, chunk, sector: 0 })
        }
        None => FaultScope::Next(read_sector(s)?),
    };
    Ok(Fault::OperationFailure { operation, scope })
}

fn read_sector(s: &mut Section<'_>) -> Result<FaultSector> {
    if let Some(lba) = s.get("lba") {
        let namespace = s.get("namespace").map_or(Ok(1), |value| value.u32())?;
        return Ok(FaultSector::Lba { namespace, lba: lba.u64()? });
    }
    let Some(pu) = s.get("pu") else {
        return Err(s.missing("lba", "or `pu`, `chunk` and `sector`"));
    };
    let (chunk, sector) = (read_u32(s, "chunk")?, read_u32(s, "sector")?);
    Ok(FaultSector::Flash { pu: PuId(pu.u32()?), chunk, sector })
}

fn read_pu(s: &mut Section<'_>) -> Result<PuId> {
    Ok(PuId(read_u32(s, "pu")?))
}

fn read_u32(s: &mut Section<'_>, key: &'static str) -> Result<u32> {
    match s.get(key) {
        Some(value) => value.u32(),
        None => Err(s.missing(key, "a whole number from 0")),
    }
}

fn read_queue(s: &mut Section<'_>) -> Result<u16> {
    match s.get("queue") {
        Some(value) => value.u16_from(1),
        None => Err(s.missing("queue", "the identifier of an I/O queue, from 1")),
    }
}

fn read_duration(s: &mut Section<'_>) -> Result<time::Nanos> {
    match s.get("duration") {
        Some(value) => value.duration(),
        None => Err(s.missing("duration", "how long it lasts, such as \"10ms\"")),
    }
}
