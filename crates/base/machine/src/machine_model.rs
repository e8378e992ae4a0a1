//! [`MachineModel`]: the numbers of a machine, each with its source.
//!
//! A sheet is TOML. Each number has a `source`, and one of `cycles`, `ns` and `value`:
//!
//! ```text
//! hit = { cycles = 5, source = "Westmere-EX, [Sync13 table 2]" }
//! ```
//!
//! A number without a source is an error. Optional tables are `threads` (switches and
//! wake-ups) and `interrupts`; a scenario that needs an absent one is refused.

use std::fmt;

use platform::Step;
use serde::Deserialize;
use time::Nanos;

use crate::costs::{Costs, LineCosts, StepCosts};
use crate::engine::EngineConfig;
use crate::topology::{Machine, MachineError};
use crate::variation::Variation;

/// Largest time of an operation: what is larger is a mistake.
const OPERATION_MAX: Nanos = Nanos::from_secs(1);

/// Largest clock rate in GHz.
const GHZ_MAX: f64 = 100.0;

/// The sheets that are part of this crate.
const BUILT_IN: [(&str, &str); 4] = [
    ("i7-4770", include_str!("../models/i7-4770.toml")),
    ("i7-5820k", include_str!("../models/i7-5820k.toml")),
    ("sandy-bridge-e-1x6", include_str!("../models/sandy-bridge-e-1x6.toml")),
    ("westmere-ex-8x10", include_str!("../models/westmere-ex-8x10.toml")),
];

/// Error of a sheet.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MachineModelError {
    /// The text is not a model: a number without a source, an unknown key, a missing number.
    #[error("{0}")]
    Syntax(String),
    /// A number is impossible.
    #[error("`{key}` is {what}")]
    Number {
        /// Table and key.
        key: String,
        /// The value, and what is possible.
        what: String,
    },
    /// The number of cores is impossible.
    #[error(transparent)]
    Machine(#[from] MachineError),
}

/// A number of a sheet.
#[derive(Clone, Debug, PartialEq)]
pub struct SourcedNumber {
    /// Table and key.
    pub key: String,
    /// The value as it is in the sheet.
    pub value: f64,
    /// Unit as it is in the model: `cycles`, `ns` or nothing.
    pub unit: &'static str,
    /// Source of the value.
    pub source: String,
}

/// The numbers of a machine.
#[derive(Clone, Debug, PartialEq)]
pub struct MachineModel {
    name: String,
    about: String,
    machine: Machine,
    threads_per_core: u8,
    costs: Costs,
    /// Whether the sheet has the costs of threads that wait.
    has_thread_costs: bool,
    /// Whether the sheet has the costs of interrupts.
    has_interrupt_costs: bool,
    ghz: f64,
    cycles_per_instruction: f64,
    numbers: Vec<SourcedNumber>,
    /// The model as it was parsed.
    table: toml::Table,
}

/// The number whose part over 100 varies.
const SMT_PERCENT: &str = "processor.smt_percent";

/// The numbers that are counts.
const COUNTS: [&str; 3] = ["processor.sockets", "processor.cores", "processor.threads_per_core"];

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawNumber {
    cycles: Option<f64>,
    ns: Option<f64>,
    value: Option<f64>,
    source: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawProcessor {
    sockets: RawNumber,
    cores: RawNumber,
    threads_per_core: RawNumber,
    ghz: RawNumber,
    cycles_per_instruction: RawNumber,
    smt_percent: RawNumber,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawLines {
    hit: RawNumber,
    read_socket: RawNumber,
    read_board: Option<RawNumber>,
    read_boards: Option<RawNumber>,
    write_socket: RawNumber,
    write_board: Option<RawNumber>,
    write_boards: Option<RawNumber>,
    socket_shared: RawNumber,
    link: Option<RawNumber>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawThreads {
    switch: RawNumber,
    remote_wake: RawNumber,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawInterrupts {
    entry: RawNumber,
    exit: RawNumber,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawRegisters {
    read: RawNumber,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawModel {
    name: String,
    about: String,
    processor: RawProcessor,
    lines: RawLines,
    threads: Option<RawThreads>,
    interrupts: Option<RawInterrupts>,
    registers: Option<RawRegisters>,
}

/// Reads numbers, and keeps them for results.
struct NumberReader {
    ghz: f64,
    numbers: Vec<SourcedNumber>,
}

impl NumberReader {
    /// Returns a number of any unit.
    fn read(
        &mut self,
        key: &str,
        raw: &RawNumber,
    ) -> Result<(f64, &'static str), MachineModelError> {
        let refuse = |what: String| MachineModelError::Number { key: key.to_owned(), what };
        let (value, unit) = match (raw.cycles, raw.ns, raw.value) {
            (Some(cycles), None, None) => (cycles, "cycles"),
            (None, Some(ns), None) => (ns, "ns"),
            (None, None, Some(value)) => (value, ""),
            _ => return Err(refuse("not one of `cycles`, `ns` and `value`".to_owned())),
        };
        if !value.is_finite() || value < 0.0 {
            return Err(refuse(format!("{value}, and must be a number of at least 0")));
        }
        if raw.source.trim().is_empty() {
            return Err(refuse(format!("{value} without a source")));
        }
        let (key, source) = (key.to_owned(), raw.source.clone());
        self.numbers.push(SourcedNumber { key, value, unit, source });
        Ok((value, unit))
    }

    /// Returns a number without a unit, from `min` to `max`.
    fn value(
        &mut self,
        key: &str,
        raw: &RawNumber,
        min: f64,
        max: f64,
    ) -> Result<f64, MachineModelError> {
        let (value, unit) = self.read(key, raw)?;
        if !unit.is_empty() || !(min..=max).contains(&value) {
            let what = format!("{value} {unit}, and must be a `value` from {min} to {max}");
            return Err(MachineModelError::Number { key: key.to_owned(), what });
        }
        Ok(value)
    }

    /// Returns a whole number.
    fn whole(&mut self, key: &str, raw: &RawNumber, max: u32) -> Result<u32, MachineModelError> {
        let value = self.value(key, raw, 1.0, max.into())?;
        if value.fract() != 0.0 {
            let what = format!("{value}, and must be a whole number");
            return Err(MachineModelError::Number { key: key.to_owned(), what });
        }
        Ok(value as u32)
    }

    /// Returns a time in nanoseconds.
    fn time(&mut self, key: &str, raw: &RawNumber) -> Result<f64, MachineModelError> {
        let (value, unit) = self.read(key, raw)?;
        let ns = match unit {
            "cycles" => value / self.ghz,
            "ns" => value,
            _ => {
                let what = format!("{value}, and must be in `cycles` or `ns`");
                return Err(MachineModelError::Number { key: key.to_owned(), what });
            }
        };
        if ns > OPERATION_MAX.0 as f64 {
            let what = format!("{ns} ns, and must be at most {OPERATION_MAX}");
            return Err(MachineModelError::Number { key: key.to_owned(), what });
        }
        Ok(ns)
    }
}

fn nanos(ns: f64) -> Nanos {
    Nanos(ns.round() as u64)
}

impl MachineModel {
    /// Returns the names of the sheets that are part of this crate.
    pub fn names() -> impl Iterator<Item = &'static str> {
        BUILT_IN.iter().map(|(name, _)| *name)
    }

    /// Returns a sheet that is part of this crate, by its name.
    pub fn built_in(name: &str) -> Option<MachineModel> {
        let (_, text) = BUILT_IN.iter().find(|(other, _)| *other == name)?;
        // A test parses each.
        MachineModel::parse(text).ok()
    }

    /// Parses a sheet.
    ///
    /// # Errors
    /// [`MachineModelError`].
    pub fn parse(text: &str) -> Result<MachineModel, MachineModelError> {
        let syntax = |error: toml::de::Error| MachineModelError::Syntax(error.to_string());
        let raw: RawModel = toml::from_str(text).map_err(syntax)?;
        let table = toml::from_str(text).map_err(syntax)?;
        let mut reader = NumberReader { ghz: 1.0, numbers: Vec::new() };
        let processor = &raw.processor;
        reader.ghz = reader.value("processor.ghz", &processor.ghz, f64::MIN_POSITIVE, GHZ_MAX)?;
        let sockets = reader.whole("processor.sockets", &processor.sockets, u16::MAX.into())?;
        let cores = reader.whole("processor.cores", &processor.cores, u16::MAX.into())?;
        let machine = Machine::new(sockets as u16, cores as u16)?;
        let threads = reader.whole("processor.threads_per_core", &processor.threads_per_core, 2)?;
        let per_instruction = reader.value(
            "processor.cycles_per_instruction",
            &processor.cycles_per_instruction,
            0.0,
            1000.0,
        )?;
        let smt = reader.value("processor.smt_percent", &processor.smt_percent, 100.0, 1000.0)?;
        let picos_per_instruction = per_instruction / reader.ghz * 1000.0;
        let mut steps = StepCosts::default();
        for step in Step::ALL {
            let picos = picos_per_instruction * f64::from(step.instructions());
            steps = steps.with(step, picos.round() as u64);
        }
        let lines = read_lines(&raw.lines, machine, &mut reader)?;
        let (switch, remote_wake) = match &raw.threads {
            None => (0.0, 0.0),
            Some(threads) => (
                reader.time("threads.switch", &threads.switch)?,
                reader.time("threads.remote_wake", &threads.remote_wake)?,
            ),
        };
        let (entry, exit) = match &raw.interrupts {
            None => (0.0, 0.0),
            Some(interrupts) => (
                reader.time("interrupts.entry", &interrupts.entry)?,
                reader.time("interrupts.exit", &interrupts.exit)?,
            ),
        };
        if let Some(registers) = &raw.registers {
            let read = reader.time("registers.read", &registers.read)?;
            steps = steps.with(Step::ReadRegister, (read * 1000.0).round() as u64);
        }
        // The device has written the data to the last-level cache.
        let fetched = lines.socket_shared.0 * 1000;
        let steps = steps.with(Step::CopyLine, fetched).with(Step::DriveLine, fetched);
        let costs = Costs {
            lines,
            steps,
            switch: nanos(switch),
            remote_wake: nanos(remote_wake),
            interrupt_entry: nanos(entry),
            interrupt_exit: nanos(exit),
            smt_percent: smt.round() as u32,
        };
        Ok(MachineModel {
            name: raw.name,
            about: raw.about,
            machine,
            threads_per_core: threads as u8,
            costs,
            has_thread_costs: raw.threads.is_some(),
            has_interrupt_costs: raw.interrupts.is_some(),
            ghz: reader.ghz,
            cycles_per_instruction: per_instruction,
            numbers: reader.numbers,
            table,
        })
    }

    /// Returns the name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the description.
    pub fn about(&self) -> &str {
        &self.about
    }

    /// Returns sockets and cores.
    pub fn machine(&self) -> Machine {
        self.machine
    }

    /// Returns the number of hardware threads.
    pub fn hardware_threads(&self) -> usize {
        self.machine.cores() * usize::from(self.threads_per_core)
    }

    /// Returns whether the sheet has the costs of threads that wait and share cores.
    pub fn has_thread_costs(&self) -> bool {
        self.has_thread_costs
    }

    /// Returns whether the sheet has the costs of interrupts.
    pub fn has_interrupt_costs(&self) -> bool {
        self.has_interrupt_costs
    }

    /// Returns the times.
    pub fn costs(&self) -> &Costs {
        &self.costs
    }

    /// Returns all numbers with their sources.
    pub fn numbers(&self) -> &[SourcedNumber] {
        &self.numbers
    }

    /// Returns the keys of the numbers that can be [varied](MachineModel::varied): all but the counts
    /// of sockets, cores and threads.
    pub fn variable_keys(&self) -> impl Iterator<Item = &str> {
        let keys = self.numbers.iter().map(|number| number.key.as_str());
        keys.filter(|key| !COUNTS.contains(key))
    }

    /// Returns the model with one number varied; of `processor.smt_percent`, the part over 100.
    ///
    /// # Errors
    /// [`MachineModelError::Number`] if the model has no such number, or the result is impossible.
    pub fn varied(&self, variation: &Variation) -> Result<MachineModel, MachineModelError> {
        let (key, factor) = (variation.key(), variation.factor());
        let refuse = |what: String| MachineModelError::Number { key: key.to_owned(), what };
        if !self.variable_keys().any(|other| other == key) {
            let known: Vec<&str> = self.variable_keys().collect();
            return Err(refuse(format!("no number that can vary; there is {}", known.join(", "))));
        }
        let mut table = self.table.clone();
        let number = key.split_once('.').and_then(|(section, name)| {
            let number = table.get_mut(section)?.as_table_mut()?.get_mut(name)?.as_table_mut()?;
            let unit =
                ["cycles", "ns", "value"].into_iter().find(|unit| number.contains_key(*unit))?;
            number.get_mut(unit)
        });
        let number = number.ok_or_else(|| refuse("no number".to_owned()))?;
        let value = number.as_float().or_else(|| number.as_integer().map(|value| value as f64));
        let value = value.ok_or_else(|| refuse("no number".to_owned()))?;
        let base = if key == SMT_PERCENT { 100.0 } else { 0.0 };
        *number = toml::Value::Float(base + (value - base) * factor);
        let text = toml::to_string(&table)
            .map_err(|error| MachineModelError::Syntax(error.to_string()))?;
        MachineModel::parse(&text)
    }

    /// Returns the time of a number of cycles.
    pub fn cycles(&self, cycles: u64) -> Nanos {
        nanos(cycles as f64 / self.ghz)
    }

    /// Returns the time of a number of a program's instructions.
    pub fn instructions(&self, count: u64) -> Nanos {
        nanos(count as f64 * self.cycles_per_instruction / self.ghz)
    }

    /// Returns the configuration of an engine for this machine, on which a kernel works for `kernel`
    /// before each request and after it.
    pub fn engine_config(&self, kernel: [Nanos; 2]) -> EngineConfig {
        let mut costs = self.costs;
        for (step, time) in [Step::KernelStart, Step::KernelFinish].into_iter().zip(kernel) {
            costs.steps = costs.steps.with(step, time.0 * 1000);
        }
        let config = EngineConfig::new(self.machine, costs);
        EngineConfig { threads_per_core: self.threads_per_core, ..config }
    }
}

/// Reads the table of cache lines. A machine of one socket needs no other distances.
fn read_lines(
    raw: &RawLines,
    machine: Machine,
    reader: &mut NumberReader,
) -> Result<LineCosts, MachineModelError> {
    let hit = reader.time("lines.hit", &raw.hit)?;
    let mut distances = |names: [&str; 3], raws: [Option<&RawNumber>; 3]| {
        let mut times = [hit; 3];
        let needed = [true, machine.sockets() > 1, machine.has_boards()];
        for (index, (name, raw)) in names.iter().zip(raws).enumerate() {
            let key = format!("lines.{name}");
            times[index] = match raw {
                Some(raw) => reader.time(&key, raw)?,
                None if needed[index] => {
                    let what = format!("missing, and {machine} has such a distance");
                    return Err(MachineModelError::Number { key, what });
                }
                None => times[index.saturating_sub(1)],
            };
            let nearer = if index == 0 { hit } else { times[index - 1] };
            if times[index] < nearer {
                let what = format!("{} ns, less than the nearer distance's {nearer}", times[index]);
                return Err(MachineModelError::Number { key, what });
            }
        }
        Ok(times.map(nanos))
    };
    let read = distances(
        ["read_socket", "read_board", "read_boards"],
        [Some(&raw.read_socket), raw.read_board.as_ref(), raw.read_boards.as_ref()],
    )?;
    let write = distances(
        ["write_socket", "write_board", "write_boards"],
        [Some(&raw.write_socket), raw.write_board.as_ref(), raw.write_boards.as_ref()],
    )?;
    let socket_shared = nanos(reader.time("lines.socket_shared", &raw.socket_shared)?);
    let link_ps = match &raw.link {
        Some(link) => (reader.time("lines.link", link)? * 1000.0).round() as u64,
        None => 0,
    };
    Ok(LineCosts { hit: nanos(hit), read, write, socket_shared, link_ps })
}

impl fmt::Display for MachineModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.name, self.about)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn built_in_models_parse_and_have_their_names() {
        for (name, text) in BUILT_IN {
            let model = MachineModel::parse(text).unwrap_or_else(|error| panic!("{name}: {error}"));
            assert_eq!(model.name(), name);
            assert!(model.numbers().iter().all(|number| !number.source.is_empty()));
            assert_eq!(MachineModel::built_in(name), Some(model));
        }
        let i7 = MachineModel::built_in("i7-4770").unwrap();
        assert_eq!((i7.hardware_threads(), i7.has_thread_costs()), (8, true));
        // 131 instructions, 0.6 cycles each, at 3.4 GHz; 75 cycles.
        assert_eq!(i7.costs().steps.picos(Step::Submit), 23_118);
        assert_eq!(i7.costs().lines.read[0], Nanos(22));
        let sandy_bridge = MachineModel::built_in("sandy-bridge-e-1x6").unwrap();
        assert_eq!(sandy_bridge.machine().to_string(), "1x6");
        assert_eq!(sandy_bridge.hardware_threads(), 12);
        // 60 and 29 cycles at 3.2 GHz.
        let lines = sandy_bridge.costs().lines;
        assert_eq!((lines.read[0], lines.socket_shared), (Nanos(19), Nanos(9)));
        assert!(MachineModel::built_in("i7-4771").is_none());
    }

    #[test]
    fn a_number_is_varied_alone() {
        let i7 = MachineModel::built_in("i7-4770").unwrap();
        let varied = |text: &str| i7.varied(&text.parse().unwrap());
        let twice = varied("lines.read_socket*2").unwrap();
        assert_eq!(twice.costs().lines.read[0], Nanos(44));
        assert_eq!(twice.costs().lines.write, i7.costs().lines.write);
        assert_eq!(twice.costs().steps, i7.costs().steps);
        assert_eq!(varied("processor.smt_percent*0.5").unwrap().costs().smt_percent, 127);
        assert_eq!(i7.cycles(3400), Nanos(1000));
        assert_eq!(varied("processor.ghz*2").unwrap().cycles(3400), Nanos(500));
        for key in i7.variable_keys() {
            assert_eq!(varied(&format!("{key}*1")).unwrap().costs(), i7.costs(), "{key}");
        }
        for key in ["processor.cores", "lines", "lines.miss"] {
            let error = varied(&format!("{key}*2")).unwrap_err().to_string();
            assert!(error.contains("no number that can vary"), "{error}");
        }
        let error = varied("lines.read_socket*0.01").unwrap_err().to_string();
        assert!(error.contains("less than the nearer"), "{error}");
    }

    #[test]
    fn numbers_that_cannot_be_are_refused() {
        let text = include_str!("../models/westmere-ex-8x10.toml");
        let with = |from: &str, to: &str| {
            assert!(text.contains(from), "{from}");
            MachineModel::parse(&text.replace(from, to)).unwrap_err().to_string()
        };
        let hit = "hit = { cycles = 5, source = \"Westmere-EX, [Sync13 table 2]\" }";
        for (from, to, message) in [
            (hit, "hit = { cycles = 5 }", "missing field `source`"),
            (hit, "hit = { cycles = 5, source = \" \" }", "`lines.hit` is 5 without a source"),
            (hit, "hit = { cycles = -5, source = \"x\" }", "`lines.hit` is -5, and must be"),
            (hit, "hit = { cycles = nan, source = \"x\" }", "`lines.hit` is NaN, and must be"),
            (hit, "hit = { cycles = inf, source = \"x\" }", "`lines.hit` is inf, and must be"),
            (hit, "hit = { value = 5, source = \"x\" }", "must be in `cycles` or `ns`"),
            (hit, "hit = { cycles = 5, ns = 2, source = \"x\" }", "not one of `cycles`, `ns`"),
            (hit, "hits = 5", "unknown field `hits`"),
            (hit, "", "missing field `hit`"),
            ("value = 2.4", "value = 0", "`processor.ghz` is 0 , and must be a `value`"),
            ("{ value = 8,", "{ value = 0,", "`processor.sockets` is 0"),
            ("{ value = 8,", "{ value = 52,", "1 to 512 cores"),
            ("{ value = 10,", "{ value = 1.5,", "must be a whole number"),
            ("cycles = 109", "cycles = 300", "`lines.read_board` is 120"),
            ("cycles = 7600", "cycles = 9e12", "must be at most 1.00s"),
            ("threads_per_core = { value = 1", "threads_per_core = { value = 3", "from 1 to 2"),
            ("smt_percent = { value = 100", "smt_percent = { value = 99", "from 100 to 1000"),
        ] {
            let error = with(from, to);
            assert!(error.contains(message), "{to}: {error}");
        }
        let missing = text
            .lines()
            .filter(|line| !line.starts_with("read_boards"))
            .collect::<Vec<_>>()
            .join("\n");
        let error = MachineModel::parse(&missing).unwrap_err().to_string();
        assert!(error.contains("`lines.read_boards` is missing, and 8x10 has"), "{error}");
    }
}
