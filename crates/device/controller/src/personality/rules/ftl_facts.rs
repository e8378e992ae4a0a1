//! [`FtlFacts`]: what rules can learn about the drive, from its FTL.

use std::cell::OnceCell;

use ftl::{Ftl, LineId, VictimLine, VictimLines};
use rules::{AppId, DriveFacts, LineFacts, RuleLine};

/// The facts of an application's FTL, at one instant. Most rules for commands do not look at
/// lines, which are found when a rule does.
pub(super) struct FtlFacts<'a> {
    ftl: Option<&'a Ftl>,
    lines: OnceCell<VictimLines<'a>>,
    is_idle: bool,
    /// The lines that can be a victim.
    ids: OnceCell<Vec<LineId>>,
}

impl<'a> FtlFacts<'a> {
    /// Creates the facts of an FTL.
    pub(super) fn new(ftl: &'a Ftl, is_idle: bool) -> FtlFacts<'a> {
        FtlFacts { ftl: Some(ftl), lines: OnceCell::new(), is_idle, ids: OnceCell::new() }
    }

    /// Creates the facts of an FTL that has shown its lines.
    pub(super) fn of_lines(lines: &VictimLines<'a>, is_idle: bool) -> FtlFacts<'a> {
        FtlFacts { ftl: None, lines: OnceCell::from(*lines), is_idle, ids: OnceCell::new() }
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
        self.ids().len() as u64
    }

    fn line_at(&self, _: AppId, index: u64) -> RuleLine {
        RuleLine::new(self.ids()[index as usize].get())
    }

    fn line_facts(&self, _: AppId, line: RuleLine) -> LineFacts {
        let line = self.lines().get(LineId::new(line.get()));
        let facts = |VictimLine { sectors, valid, age, erases }| LineFacts {
            sectors: sectors.into(),
            valid: valid.into(),
            age,
            erases: erases.into(),
        };
        line.map_or(LineFacts::default(), facts)
    }
}
