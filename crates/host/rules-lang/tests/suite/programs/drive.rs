//! A small drive: lines of sectors, a map, streams, and the engine. It executes what rules decide.

use std::path::Path;

use rules::{
    AppId, DriveFacts, EngineOptions, InputOp, LineFacts, PlacementStream, RuleAction, RuleAddress,
    RuleEngine, RuleInput, RuleLine, RuleStatus, RuleStep, RuleVerdict, TableChange,
};
use rules_lang::{CompileOptions, check};

/// Bytes of a sector.
pub(crate) const SECTOR: usize = 4096;
/// Sectors of a line.
pub(crate) const LINE_SECTORS: usize = 64;
/// The only application.
pub(crate) const APP: AppId = AppId::new(0);

/// A programmed sector.
#[derive(Clone, Debug)]
struct Slot {
    lba: Option<u64>,
    tag: u64,
    bytes: Vec<u8>,
    is_valid: bool,
}

#[derive(Clone, Debug, Default)]
struct Line {
    slots: Vec<Slot>,
    erases: u64,
    closed_at: Option<u64>,
    is_open: bool,
    valid: u64,
}

impl Line {
    fn is_free(&self) -> bool {
        self.slots.is_empty() && !self.is_open
    }
}

/// Flash with a map.
#[derive(Clone, Debug)]
pub(crate) struct Flash {
    lines: Vec<Line>,
    open: [Option<usize>; 4],
    map: Vec<Option<u64>>,
    closes: u64,
    pub(crate) is_idle: bool,
    /// Sectors placed in each stream.
    pub(crate) placed: [u64; 4],
    pub(crate) erases: u64,
}

impl Flash {
    /// Returns the name of a sector. It has the line's erase cycles, so that it is never used again.
    fn name(&self, line: usize, at: usize) -> u64 {
        self.lines[line].erases << 20 | (line * LINE_SECTORS + at) as u64
    }

    /// Returns the line and the slot of a name.
    fn position(&self, name: u64) -> Option<[usize; 2]> {
        let low = name as usize & 0xf_ffff;
        let [line, at] = [low / LINE_SECTORS, low % LINE_SECTORS];
        let found = self.lines.get(line)?;
        (found.erases == name >> 20 && at < found.slots.len()).then_some([line, at])
    }

    fn slot(&self, name: u64) -> Option<&Slot> {
        let [line, at] = self.position(name)?;
        Some(&self.lines[line].slots[at])
    }

    fn invalidate(&mut self, name: u64) {
        let Some([line, at]) = self.position(name) else { return };
        let slot = &mut self.lines[line].slots[at];
        self.lines[line].valid -= u64::from(std::mem::take(&mut slot.is_valid));
    }

    /// Programs a sector, and returns its name.
    fn append(&mut self, stream: PlacementStream, slot: Slot) -> u64 {
        let lines = &mut self.lines;
        let line = self.open[stream as usize].unwrap_or_else(|| {
            let free = (0..lines.len()).filter(|line| lines[*line].is_free());
            let line = free.min_by_key(|line| lines[*line].erases).expect("a free line");
            lines[line].is_open = true;
            line
        });
        let name = self.name(line, self.lines[line].slots.len());
        let found = &mut self.lines[line];
        found.slots.push(slot);
        found.valid += 1;
        self.open[stream as usize] = Some(line);
        if found.slots.len() == LINE_SECTORS {
            self.closes += 1;
            found.is_open = false;
            found.closed_at = Some(self.closes);
            self.open[stream as usize] = None;
        }
        self.placed[stream as usize] += 1;
        name
    }

    /// Maps a logical sector to a name; the old copy is not valid any more.
    fn set_map(&mut self, lba: u64, name: u64) {
        let old = self.map[lba as usize].replace(name);
        if let Some(old) = old {
            self.invalidate(old);
        }
    }

    fn closed(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.lines.len()).filter(|line| self.lines[*line].closed_at.is_some())
    }

    pub(crate) fn wear(&self) -> [u64; 2] {
        let erases = || self.lines.iter().map(|line| line.erases);
        [erases().min().unwrap_or(0), erases().max().unwrap_or(0)]
    }
}

impl DriveFacts for Flash {
    fn is_idle(&self, _: AppId) -> bool {
        self.is_idle
    }

    fn free_lines(&self, _: AppId) -> u64 {
        self.lines.iter().filter(|line| line.is_free()).count() as u64
    }

    fn wear_min(&self, _: AppId) -> u64 {
        self.wear()[0]
    }

    fn wear_max(&self, _: AppId) -> u64 {
        self.wear()[1]
    }

    fn lines(&self, _: AppId) -> u64 {
        self.closed().count() as u64
    }

    fn line_at(&self, _: AppId, index: u64) -> RuleLine {
        RuleLine::from_index(self.closed().nth(index as usize).expect("below `lines`"))
    }

    fn line_facts(&self, _: AppId, line: RuleLine) -> LineFacts {
        let line = &self.lines[line.index()];
        LineFacts {
            sectors: LINE_SECTORS as u64,
            valid: line.valid,
            age: self.closes - line.closed_at.unwrap_or(0),
            erases: line.erases,
        }
    }
}

/// The end of a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    /// The name that the written sector has.
    Written(u64),
    /// The bytes that were read.
    Data(Vec<u8>),
    /// A status, a value, and the bytes that rules returned.
    Completed(RuleStatus, u64, Vec<u8>),
    /// The drive could not execute an action, or the name is not valid.
    Refused,
    PassedThrough,
    Missed,
    Finished,
}

/// The drive.
#[derive(Clone, Debug)]
pub(crate) struct ModelDrive {
    pub(crate) flash: Flash,
    pub(crate) engine: RuleEngine,
    pub(crate) journal: Vec<TableChange>,
    pub(crate) events: Vec<[u64; 3]>,
    /// Lines that rules moved or erased.
    pub(crate) background_actions: u64,
    /// The bound of write units in flight of the last line that a rule moved.
    pub(crate) moved_units: Option<u64>,
}

/// Returns options for a drive with this number of lines.
pub(crate) fn options(lines: usize, units: u32) -> CompileOptions {
    let mut options = super::compiled::options();
    options.grant.units = units.max(128);
    options.grant.unit_sectors = (lines * LINE_SECTORS) as u64 / 64;
    options.lines = lines as u32;
    options
}

impl ModelDrive {
    pub(crate) fn new(source: &str, lines: usize) -> ModelDrive {
        let checked = check(Path::new("test.rules"), source.as_bytes(), &options(lines, 128));
        let verified = checked.unwrap_or_else(|error| panic!("{error}"));
        let sectors = verified.program().apps[0].sectors;
        let engine_options = EngineOptions { contexts: 4, sector_bytes: SECTOR, pause_ops: 500 };
        ModelDrive {
            flash: Flash {
                lines: vec![Line::default(); lines],
                open: [None; 4],
                map: vec![None; sectors as usize],
                closes: 0,
                is_idle: false,
                placed: [0; 4],
                erases: 0,
            },
            engine: RuleEngine::install(verified, engine_options),
            journal: Vec::new(),
            events: Vec::new(),
            background_actions: 0,
            moved_units: None,
        }
    }

    pub(crate) fn sectors(&self) -> u64 {
        self.flash.map.len() as u64
    }

    /// Runs a command. `bytes` is the data of a write.
    pub(crate) fn command(&mut self, input: &RuleInput, bytes: &[u8]) -> Ended {
        if input.op == InputOp::Write {
            self.collect();
        }
        let step = self.engine.begin_command(APP, input, &self.flash).expect("a context");
        let ended = self.steps(step, bytes);
        self.engine.check_invariants();
        ended
    }

    /// Polls the background rules while lines are needed.
    fn collect(&mut self) {
        for _ in 0..64 {
            if self.flash.free_lines(APP) >= 4 {
                return;
            }
            self.background();
        }
    }

    /// Runs all periodic rules once.
    pub(crate) fn periodic(&mut self) {
        let rules: Vec<_> = self.engine.periodic_rules().collect();
        for (rule, _) in rules {
            let step = self.engine.begin_periodic(rule, &self.flash).expect("a context");
            assert_eq!(self.steps(step, &[]), Ended::Finished);
        }
    }

    pub(crate) fn background(&mut self) {
        let step = self.engine.begin_background(APP, &self.flash).expect("a context");
        assert_eq!(self.steps(step, &[]), Ended::Finished);
    }

    /// Executes the actions of an input until it ends.
    pub(crate) fn steps(&mut self, mut step: RuleStep, bytes: &[u8]) -> Ended {
        let mut output = Vec::new();
        loop {
            let (context, action) = match step {
                RuleStep::Do(context, action) => (context, action),
                RuleStep::Done(verdict) => return self.verdict(verdict, bytes, output),
            };
            match action {
                RuleAction::Fetch { lba } => {
                    let name = self.flash.map.get(lba as usize).copied();
                    let Some(name) = name else {
                        self.engine.cancel(context);
                        return Ended::Refused;
                    };
                    let slot = name.and_then(|name| self.flash.slot(name));
                    let bytes = slot.map_or(vec![0; SECTOR], |slot| slot.bytes.clone());
                    step = self.engine.resume_with(context, &bytes, &self.flash);
                    continue;
                }
                RuleAction::Emit { offset, bytes } => {
                    assert_eq!(offset, output.len() as u64);
                    output.extend_from_slice(&self.engine.fetched(context)[bytes]);
                }
                RuleAction::MoveValid { line, stream, units } => {
                    self.moved_units = units;
                    self.move_valid(line.index(), stream);
                }
                RuleAction::Erase { line } => self.erase(line.index()),
                RuleAction::Post { kind, values } => {
                    assert_eq!(kind, 1);
                    self.events.push(values);
                }
                RuleAction::Journal(change) => self.journal.push(change),
                RuleAction::Pause => {}
            }
            step = self.engine.resume(context, &self.flash);
        }
    }

    fn move_valid(&mut self, line: usize, stream: PlacementStream) {
        self.background_actions += 1;
        for at in 0..self.flash.lines[line].slots.len() {
            let slot = self.flash.lines[line].slots[at].clone();
            if !slot.is_valid {
                continue;
            }
            let old = self.flash.name(line, at);
            let (lba, tag) = (slot.lba, slot.tag);
            let new = self.flash.append(stream, slot);
            match lba {
                Some(lba) => self.flash.set_map(lba, new),
                None => {
                    let input = RuleInput {
                        arg0: old,
                        arg1: new,
                        tag,
                        ..RuleInput::new(InputOp::Write, 0, 1)
                    };
                    let step = self.engine.begin_moved(APP, &input, &self.flash).expect("one");
                    let moved = self.steps(step, &[]);
                    assert_eq!(moved, Ended::Finished, "a sector that cannot be forwarded");
                    self.flash.invalidate(old);
                }
            }
        }
    }

    fn erase(&mut self, line: usize) {
        self.background_actions += 1;
        let line = &mut self.flash.lines[line];
        assert_eq!(line.valid, 0, "a line with valid data");
        *line = Line { erases: line.erases + 1, ..Line::default() };
        self.flash.erases += 1;
    }

    fn verdict(&mut self, verdict: RuleVerdict, bytes: &[u8], output: Vec<u8>) -> Ended {
        match verdict {
            RuleVerdict::Place { stream, mapped, tag } => {
                let bytes = bytes.to_vec();
                let slot = Slot { lba: mapped, tag, bytes, is_valid: true };
                let name = self.flash.append(stream, slot);
                if let Some(lba) = mapped {
                    self.flash.set_map(lba, name);
                }
                Ended::Written(name)
            }
            RuleVerdict::Read { address: RuleAddress::Mapped { lba }, .. } => {
                let name = self.flash.map[lba as usize];
                let slot = name.and_then(|name| self.flash.slot(name));
                Ended::Data(slot.map_or(Vec::new(), |slot| slot.bytes.clone()))
            }
            RuleVerdict::Read { address: RuleAddress::Named { name }, tag } => {
                let slot = self.flash.slot(name).filter(|slot| slot.is_valid && slot.tag == tag);
                slot.map_or(Ended::Refused, |slot| Ended::Data(slot.bytes.clone()))
            }
            RuleVerdict::Complete { status, value } => Ended::Completed(status, value, output),
            RuleVerdict::PassThrough => Ended::PassedThrough,
            RuleVerdict::Miss => Ended::Missed,
            RuleVerdict::Finished => Ended::Finished,
        }
    }

    /// Deletes a sector by its name, as the host of nameless writes does.
    pub(crate) fn invalidate(&mut self, name: u64) {
        self.flash.invalidate(name);
    }

    pub(crate) fn write(&mut self, lba: u64, bytes: &[u8]) -> Ended {
        self.command(&RuleInput::new(InputOp::Write, lba, 1), bytes)
    }

    pub(crate) fn read(&mut self, lba: u64) -> Ended {
        self.command(&RuleInput::new(InputOp::Read, lba, 1), &[])
    }
}
