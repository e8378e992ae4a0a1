//! [`FtlFacts`], [`ChosenLine::of_rule`] and [`rule_status`]: the facts that rules decide from, and their
//! decisions as an FTL and a host get them. Drives with rules and targets with rules use both.

use std::cell::{Cell, OnceCell};

use nvme::Status;
use rules::{AppId, DriveFacts, LineFacts, PlacementStream, RuleLine, RuleStatus};

use crate::{ChosenLine, Ftl, LineId, RelocationStream, VictimDecision, VictimLine, VictimLines};

impl ChosenLine {
    /// Creates the choice of a rule that moves the valid data of a line to a stream. Data that does not
    /// move to `cold` moves to `gc`. `units` is the rule's bound of the write units in flight.
    pub fn of_rule(line: RuleLine, stream: PlacementStream, units: Option<u64>) -> ChosenLine {
        let stream = match stream {
            PlacementStream::Cold => RelocationStream::Cold,
            _ => RelocationStream::Gc,
        };
        let units_in_flight = units.map(|units| u32::try_from(units).unwrap_or(u32::MAX).max(1));
        ChosenLine { line: LineId::new(line.get()), stream, units_in_flight }
    }
}

impl VictimLines<'_> {
    /// Returns the decision of background rules that chose a line, or none: while the host waits for
    /// space, a victim of the policy replaces a line that is none.
    pub fn decision_of_rules(&self, chosen: Option<ChosenLine>) -> VictimDecision {
        match chosen.filter(|chosen| self.get(chosen.line).is_some()) {
            Some(chosen) => VictimDecision::Line(chosen),
            None if self.is_critical() => VictimDecision::Policy,
            None => VictimDecision::None,
        }
    }
}

/// Returns the lines that can be a victim at most, on a drive with `chunks` on `pus` parallel units
/// and the [`active_pus`](crate::FtlConfig::active_pus) of a configuration.
pub fn victim_lines_max(chunks: u64, pus: u32, active_pus: u32) -> u32 {
    let line_units = if active_pus == 0 { pus } else { active_pus.min(pus) };
    // Lines that lost chunks are shorter, so that there may be more of them.
    let lines = chunks.div_ceil(line_units.max(1).into()).saturating_mul(4).min(chunks);
    u32::try_from(lines).unwrap_or(u32::MAX)
}

/// Returns the status of a command whose input completes with a status of rules.
pub fn rule_status(status: RuleStatus) -> Status {
    match status {
        RuleStatus::Ok => Status::SUCCESS,
        RuleStatus::NotFound => Status::RULE_NOT_FOUND.do_not_retry(),
        RuleStatus::Invalid => Status::RULE_INVALID.do_not_retry(),
        RuleStatus::Denied => Status::RULE_DENIED.do_not_retry(),
        RuleStatus::Busy => Status::RULE_BUSY,
        RuleStatus::Corrupt => Status::RULE_CORRUPT.do_not_retry(),
        RuleStatus::IndexOutOfRange => Status::RULE_INDEX.do_not_retry(),
        RuleStatus::TableFull => Status::RULE_TABLE_FULL.do_not_retry(),
        RuleStatus::HopLimit => Status::RULE_HOP_LIMIT.do_not_retry(),
        RuleStatus::OutputFull => Status::RULE_OUTPUT_FULL.do_not_retry(),
        RuleStatus::BadAddress => Status::RULE_BAD_ADDRESS.do_not_retry(),
    }
}

/// The facts of an application's FTL, at one instant. Most rules for commands do not look at
/// lines, which are found when a rule does.
#[derive(Debug)]
pub struct FtlFacts<'a> {
    ftl: Option<&'a Ftl>,
    lines: OnceCell<VictimLines<'a>>,
    is_idle: bool,
    /// The lines that can be a victim.
    ids: OnceCell<Vec<LineId>>,
    /// The facts about the line that a rule has read last: a rule reads several of them.
    last_line: Cell<Option<(RuleLine, LineFacts)>>,
}

impl<'a> FtlFacts<'a> {
    /// Creates the facts of an FTL.
    #[inline]
    pub fn new(ftl: &'a Ftl, is_idle: bool) -> FtlFacts<'a> {
        FtlFacts {
            ftl: Some(ftl),
            lines: OnceCell::new(),
            is_idle,
            ids: OnceCell::new(),
            last_line: Cell::new(None),
        }
    }

    /// Creates the facts of an FTL that has shown its lines.
    pub fn of_lines(lines: &VictimLines<'a>, is_idle: bool) -> FtlFacts<'a> {
        FtlFacts {
            ftl: None,
            lines: OnceCell::from(*lines),
            is_idle,
            ids: OnceCell::new(),
            last_line: Cell::new(None),
        }
    }

    fn lines(&self) -> &VictimLines<'a> {
        self.lines.get_or_init(|| match self.ftl {
            Some(ftl) => ftl.victim_lines(),
            None => unreachable!("the lines are there without an FTL"),
        })
    }

    fn ids(&self) -> &[LineId] {
        self.ids.get_or_init(|| self.lines().ids().collect())
    }

    fn wear(&self) -> impl Iterator<Item = u64> {
        let line = |id: &LineId| self.lines().get(*id).map(|line| line.erases.into());
        self.ids().iter().filter_map(line)
    }
}

impl DriveFacts for FtlFacts<'_> {
    fn is_idle(&self, _: AppId) -> bool {
        self.is_idle
    }

    fn free_lines(&self, _: AppId) -> u64 {
        self.lines().free_lines()
    }

    fn wear_min(&self, _: AppId) -> u64 {
        self.wear().min().unwrap_or(0)
    }

    fn wear_max(&self, _: AppId) -> u64 {
        self.wear().max().unwrap_or(0)
    }

    fn lines(&self, _: AppId) -> u64 {
        u64::try_from(self.ids().len()).unwrap_or(u64::MAX)
    }

    fn line_at(&self, _: AppId, index: u64) -> RuleLine {
        let at = usize::try_from(index).unwrap_or(usize::MAX);
        RuleLine::new(self.ids()[at].get())
    }

    fn line_facts(&self, _: AppId, line: RuleLine) -> LineFacts {
        if let Some((_, facts)) = self.last_line.get().filter(|(last, _)| *last == line) {
            return facts;
        }
        let found = self.lines().get(LineId::new(line.get()));
        let facts = |VictimLine { sectors, valid, age, erases }| LineFacts {
            sectors: sectors.into(),
            valid: valid.into(),
            age,
            erases: erases.into(),
        };
        let facts = found.map_or(LineFacts::default(), facts);
        self.last_line.set(Some((line, facts)));
        facts
    }
}
