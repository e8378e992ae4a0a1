//! [`Model`]: files in memory, and their possible states after a power cut.

use std::collections::BTreeMap;
use std::ops::Range;

use volume::{BLOCK, Ino, InodeKind};

use super::barriers::BarrierMarks;

/// Inodes by directory and name.
pub(crate) type Names = BTreeMap<(Ino, Vec<u8>), (Ino, InodeKind)>;

/// Versions of a file, oldest first. The last one is current; the first one or a newer one is
/// durable.
#[derive(Clone, Debug, Default)]
pub(crate) struct Versions {
    /// Each with whether the file was truncated since the first.
    pub(crate) all: Vec<(Vec<u8>, bool)>,
    /// Number of the first version.
    base: usize,
}

impl Versions {
    pub(crate) fn new(bytes: Vec<u8>) -> Versions {
        Versions { all: vec![(bytes, false)], base: 0 }
    }

    pub(crate) fn now(&self) -> &[u8] {
        &self.all.last().unwrap().0
    }

    pub(crate) fn push(&mut self, bytes: Vec<u8>) {
        let shrunk = self.all.last().is_some_and(|(old, s)| *s || bytes.len() < old.len());
        // Without a change of contents, a sync need not wait for anything.
        if bytes != self.now() {
            self.all.push((bytes, shrunk));
        }
    }

    /// Returns the number of the current version.
    pub(crate) fn number(&self) -> usize {
        self.base + self.all.len() - 1
    }

    /// Records that version `number` is durable.
    pub(crate) fn durable(&mut self, number: usize) {
        if number <= self.base {
            return;
        }
        self.all.drain(..number - self.base);
        self.base = number;
        let (mut last, mut shrunk) = (0, false);
        for (bytes, s) in &mut self.all {
            shrunk |= bytes.len() < last;
            (last, *s) = (bytes.len(), shrunk);
        }
    }

    /// Checks whether the file may contain `found` after a power cut; otherwise returns the reason.
    /// Only versions of these numbers are possible.
    pub(crate) fn allows(
        &self,
        numbers: Range<usize>,
        found: &[u8],
        sector: usize,
    ) -> Result<(), String> {
        let index = |number: usize| number.saturating_sub(self.base).min(self.all.len());
        let all = self.all.get(index(numbers.start)..index(numbers.end)).unwrap_or(&[]);
        let Some((first, _)) = all.first() else {
            return Err(format!("versions {numbers:?} are gone; the first is {}", self.base));
        };
        let (mut last, mut shrunk) = (first.len(), false);
        let since_first = |(bytes, _): &(Vec<u8>, bool)| {
            shrunk |= bytes.len() < last;
            last = bytes.len();
            shrunk
        };
        let is_shrunk: Vec<bool> = all.iter().map(since_first).collect();
        let sizes = all.iter().map(|(v, _)| v.len());
        let (least, most) = (sizes.clone().min().unwrap(), sizes.clone().max().unwrap());
        if !(least..=most).contains(&found.len()) {
            let sizes: Vec<_> = sizes.collect();
            return Err(format!("{} bytes, of {sizes:?}", found.len()));
        }
        for (i, got) in found.chunks(sector).enumerate() {
            let begin = i * sector;
            let fits = |((version, _), shrunk): (&(Vec<u8>, bool), &bool)| {
                // Truncated bytes are zeroed up to the end of the last block before the size is
                // recorded.
                let zeros = if *shrunk { version.len().next_multiple_of(BLOCK) } else { 0 };
                let end = version.len().max(zeros);
                begin + got.len() <= end
                    && got
                        .iter()
                        .enumerate()
                        .all(|(j, b)| *b == version.get(begin + j).copied().unwrap_or(0))
            };
            if !all.iter().zip(&is_shrunk).any(fits) {
                let was: Vec<_> =
                    all.iter().map(|(v, s)| (v.len(), v.get(begin).copied(), *s)).collect();
                return Err(format!(
                    "sector {i} of a file of {} bytes begins with {}, of (size, byte, shrunk) {was:?}",
                    found.len(),
                    got[0]
                ));
            }
        }
        Ok(())
    }
}

/// All files and names.
#[derive(Clone, Debug, Default)]
pub(crate) struct Model {
    /// Names after each change, oldest first; the first is durable.
    pub(crate) names: Vec<Names>,
    /// Number of the first of these.
    pub(crate) base: usize,
    /// Number of the last change of a directory's or file's name or entries.
    pub(crate) changed: BTreeMap<Ino, usize>,
    /// Includes files without names.
    pub(crate) files: BTreeMap<Ino, Versions>,
    /// The barriers that may be the last one found.
    pub(crate) barriers: BarrierMarks,
}

impl Model {
    pub(crate) fn new() -> Model {
        let mut model = Model { names: vec![Names::new()], ..Model::default() };
        model.begin_barriers();
        model
    }

    pub(crate) fn now(&self) -> &Names {
        self.names.last().unwrap()
    }

    /// Returns the number of the current state.
    pub(crate) fn number(&self) -> usize {
        self.base + self.names.len() - 1
    }

    /// Changes names, which affects these inodes.
    pub(crate) fn change(&mut self, of: &[Ino], change: impl FnOnce(&mut Names)) {
        let mut names = self.now().clone();
        change(&mut names);
        self.names.push(names);
        for ino in of {
            self.changed.insert(*ino, self.number());
        }
    }

    /// Records that names are durable as of state `number`.
    pub(crate) fn durable(&mut self, number: usize) {
        if number > self.base {
            self.names.drain(..number - self.base);
            self.base = number;
        }
    }

    /// Adopts the state found after a power cut, after checking that it is possible.
    pub(crate) fn settle(
        &mut self,
        names: Names,
        contents: BTreeMap<Ino, Vec<u8>>,
        sector: usize,
    ) -> Result<(), String> {
        if !self.names.contains(&names) {
            return Err(format!("names {names:?}, of {:#?}", self.names));
        }
        for (ino, found) in &contents {
            let versions = self.files.get(ino).ok_or_else(|| format!("{ino} was never made"))?;
            versions.allows(0..usize::MAX, found, sector).map_err(|e| format!("{ino}: {e}"))?;
        }
        self.adopt(names, contents);
        Ok(())
    }

    /// Adopts a state.
    pub(crate) fn adopt(&mut self, names: Names, contents: BTreeMap<Ino, Vec<u8>>) {
        *self = Model::new();
        self.names = vec![names];
        self.files = contents.into_iter().map(|(i, b)| (i, Versions::new(b))).collect();
        self.begin_barriers();
    }
}
