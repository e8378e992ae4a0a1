//! [`Model`]: files in memory, and what may be there if power fails now.

use std::collections::BTreeMap;

use store::{BLOCK, Ino, Kind};

/// Names: by directory and name, what they stand for.
pub(crate) type Names = BTreeMap<(Ino, Vec<u8>), (Ino, Kind)>;

/// What a file held, oldest first; the last one is what it holds. The first one is durable, or newer.
#[derive(Clone, Debug, Default)]
pub(crate) struct Versions {
    /// With each, whether the file was made shorter since the first.
    pub(crate) all: Vec<(Vec<u8>, bool)>,
    /// The number of the first.
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
        if bytes != self.now() || shrunk {
            self.all.push((bytes, shrunk));
        }
    }

    /// The number of the version that is.
    pub(crate) fn number(&self) -> usize {
        self.base + self.all.len() - 1
    }

    /// Everything up to version `number` is durable.
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

    /// Whether the file may hold `found` after a power cut; if not, why.
    pub(crate) fn allows(&self, found: &[u8], sector: usize) -> Result<(), String> {
        let sizes = self.all.iter().map(|(v, _)| v.len());
        let (least, most) = (sizes.clone().min().unwrap(), sizes.clone().max().unwrap());
        if !(least..=most).contains(&found.len()) {
            let sizes: Vec<_> = sizes.collect();
            return Err(format!("{} bytes, of {sizes:?}", found.len()));
        }
        for (i, got) in found.chunks(sector).enumerate() {
            let begin = i * sector;
            let fits = |(version, shrunk): &(Vec<u8>, bool)| {
                // What is cut off is made zeros, as far as the last block goes, before the size is.
                let zeros = if *shrunk { version.len().next_multiple_of(BLOCK) } else { 0 };
                let end = version.len().max(zeros);
                begin + got.len() <= end
                    && got
                        .iter()
                        .enumerate()
                        .all(|(j, b)| *b == version.get(begin + j).copied().unwrap_or(0))
            };
            if !self.all.iter().any(fits) {
                let was: Vec<_> =
                    self.all.iter().map(|(v, s)| (v.len(), v.get(begin).copied(), *s)).collect();
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

/// All of them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Model {
    /// Names after each change, oldest first; the first is durable.
    pub(crate) names: Vec<Names>,
    /// The number of the first of these.
    pub(crate) base: usize,
    /// The number of the last change of what a directory or file is called, or has.
    pub(crate) changed: BTreeMap<Ino, usize>,
    /// Also of files whose names are gone.
    pub(crate) files: BTreeMap<Ino, Versions>,
}

impl Model {
    pub(crate) fn new() -> Model {
        Model { names: vec![Names::new()], ..Model::default() }
    }

    pub(crate) fn now(&self) -> &Names {
        self.names.last().unwrap()
    }

    /// Number of the state that is.
    pub(crate) fn number(&self) -> usize {
        self.base + self.names.len() - 1
    }

    /// Names have changed, which concerns these.
    pub(crate) fn change(&mut self, of: &[Ino], change: impl FnOnce(&mut Names)) {
        let mut names = self.now().clone();
        change(&mut names);
        self.names.push(names);
        for ino in of {
            self.changed.insert(*ino, self.number());
        }
    }

    /// Names are durable as of state `number`.
    pub(crate) fn durable(&mut self, number: usize) {
        if number > self.base {
            self.names.drain(..number - self.base);
            self.base = number;
        }
    }

    /// What was found after a power cut is what there is, if it may be.
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
            versions.allows(found, sector).map_err(|e| format!("{ino}: {e}"))?;
        }
        *self = Model::new();
        self.names = vec![names];
        self.files = contents.into_iter().map(|(i, b)| (i, Versions::new(b))).collect();
        Ok(())
    }
}
