//! [`BarrierMarks`]: the barriers of a volume since it was opened, and the states between them.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use volume::Ino;

use super::model::{Model, Names};

/// The state of the model when a barrier was acknowledged.
#[derive(Clone, Debug)]
struct BarrierMark {
    names: usize,
    /// The versions of files.
    files: BTreeMap<Ino, usize>,
    /// Files with a change in flight, which may be in effect in part.
    changing: BTreeSet<Ino>,
}

/// Barriers that are not durable, and the last durable one.
#[derive(Clone, Debug, Default)]
pub(crate) struct BarrierMarks {
    /// The oldest one is the last durable barrier, or the opening.
    marks: VecDeque<BarrierMark>,
    /// Number of the oldest one.
    first: u64,
    /// Versions of files at a power cut, without the changes in flight.
    at_cut: BTreeMap<Ino, usize>,
}

impl BarrierMarks {
    /// Returns the last barrier.
    pub(crate) fn last(&self) -> u64 {
        self.first + self.marks.len() as u64 - 1
    }
}

/// The end of a range of versions, or none.
type End = Option<usize>;

impl Model {
    fn versions(&self) -> BTreeMap<Ino, usize> {
        self.files.iter().map(|(ino, versions)| (*ino, versions.number())).collect()
    }

    /// Forgets all barriers: the current state is durable.
    pub(crate) fn begin_barriers(&mut self) {
        self.barriers = BarrierMarks::default();
        self.mark_barrier(BTreeSet::new());
    }

    /// Records a barrier that was acknowledged now; these files have changes in flight.
    pub(crate) fn mark_barrier(&mut self, changing: BTreeSet<Ino>) {
        let mark = BarrierMark { names: self.number(), files: self.versions(), changing };
        self.barriers.marks.push_back(mark);
    }

    /// Records that a barrier is durable.
    pub(crate) fn durable_barrier(&mut self, barrier: u64) {
        if barrier <= self.barriers.first {
            return;
        }
        self.barriers.marks.drain(..(barrier - self.barriers.first) as usize);
        self.barriers.first = barrier;
        let mark = self.barriers.marks[0].clone();
        self.durable(mark.names);
        for (ino, number) in mark.files {
            if let Some(versions) = self.files.get_mut(&ino) {
                versions.durable(number);
            }
        }
    }

    /// Records the versions at a power cut, before those of changes in flight are added.
    pub(crate) fn cut_barriers(&mut self) {
        self.barriers.at_cut = self.versions();
    }

    /// Checks whether this may be found after a power cut: the state at a barrier that is not
    /// before the last durable one, and any of the changes up to the next barrier.
    pub(crate) fn check_barriers(
        &self,
        names: &Names,
        contents: &BTreeMap<Ino, Vec<u8>>,
        sector: usize,
    ) -> Result<(), String> {
        let mut reasons = Vec::new();
        for index in 0..self.barriers.marks.len() {
            match self.check_between(index, names, contents, sector) {
                Ok(()) => return Ok(()),
                Err(reason) => {
                    reasons
                        .push(format!("barrier {}: {reason}", self.barriers.first + index as u64));
                }
            }
        }
        Err(format!("no barrier fits: {reasons:#?}"))
    }

    fn check_between(
        &self,
        index: usize,
        names: &Names,
        contents: &BTreeMap<Ino, Vec<u8>>,
        sector: usize,
    ) -> Result<(), String> {
        let marks = &self.barriers.marks;
        let (from, to) = (&marks[index], marks.get(index + 1));
        let states = from.names.max(self.base)..=to.map_or(self.number(), |mark| mark.names);
        if !states.clone().any(|number| self.names[number - self.base] == *names) {
            return Err(format!("names {names:?} are none of the states {states:?}"));
        }
        for (ino, found) in contents {
            let versions = self.files.get(ino).ok_or_else(|| format!("{ino} was never made"))?;
            let begin = from.files.get(ino).copied().unwrap_or(0);
            let end = match to {
                None => None,
                Some(mark) => self.end_of(*ino, mark)?,
            };
            versions
                .allows(begin..end.unwrap_or(usize::MAX), found, sector)
                .map_err(|reason| format!("{ino}: {reason}, versions from {begin} to {end:?}"))?;
        }
        Ok(())
    }

    /// Returns the end of the versions of a file that a barrier may cover.
    fn end_of(&self, ino: Ino, mark: &BarrierMark) -> Result<End, String> {
        let last = *mark.files.get(&ino).ok_or_else(|| format!("{ino} is newer"))?;
        let is_changing = mark.changing.contains(&ino);
        // A change in flight at the barrier and at the power cut has several versions.
        if is_changing && self.barriers.at_cut.get(&ino) == Some(&last) {
            return Ok(None);
        }
        Ok(Some(last + 1 + usize::from(is_changing)))
    }
}
