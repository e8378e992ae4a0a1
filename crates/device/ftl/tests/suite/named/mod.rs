//! Sectors with names: [`NamedHost`] is a host that keeps the names, as an owner of names does.

mod collection;
mod errors;
mod losses;
mod power_cuts;

use std::collections::{BTreeMap, BTreeSet, HashMap};

use ftl::{
    ChunkReport, FlashGeometry, Ftl, FtlConfig, MovedSector, SectorAddressing, SectorName,
    SectorNameError,
};
use nvme::Status;
use time::Nanos;

use crate::common::{TestFlash, check, geometry};

/// The configuration of the tests.
pub(crate) fn named_config(over_provisioning: f64) -> FtlConfig {
    let addressing = SectorAddressing::Named { unconfirmed_lines_max: 8 };
    FtlConfig { over_provisioning, addressing, ..FtlConfig::default() }
}

/// A small flash: units of 4 sectors, with paired pages.
pub(crate) fn small() -> FlashGeometry {
    FlashGeometry::from_geometry(&geometry(1, 4, 24, 16, 4, 4))
}

/// A sector of the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HostSector {
    pub(crate) tag: u64,
    pub(crate) value: u64,
}

/// A host over a flash, with an index of its sectors.
pub(crate) struct NamedHost {
    pub(crate) ftl: Ftl,
    pub(crate) flash: TestFlash,
    pub(crate) config: FtlConfig,
    requests: u64,
    /// By request, writes that have not completed.
    pub(crate) writing: HashMap<u64, HostSector>,
    /// By request, the names of writes that have not completed.
    named: HashMap<u64, SectorName>,
    /// Completed writes that were not freed.
    pub(crate) sectors: BTreeMap<SectorName, HostSector>,
    /// Writes that failed.
    pub(crate) failed: u64,
    /// Reported moves.
    pub(crate) moves: Vec<MovedSector>,
    /// Whether it confirms each move at once.
    pub(crate) confirms: bool,
    /// All names that there have been: none may be used twice.
    issued: BTreeSet<SectorName>,
    /// Names of sectors that could not be moved.
    pub(crate) lost: BTreeSet<SectorName>,
}

impl NamedHost {
    pub(crate) fn new(
        shape: FlashGeometry,
        config: FtlConfig,
        keeps: bool,
        seed: u64,
    ) -> NamedHost {
        let ftl =
            Ftl::new(shape, config, |_| ChunkReport::Free).expect("the flash is large enough");
        let flash = TestFlash::new(shape, keeps, ftl.slots(), seed);
        NamedHost {
            ftl,
            flash,
            config,
            requests: 0,
            writing: HashMap::new(),
            named: HashMap::new(),
            sectors: BTreeMap::new(),
            failed: 0,
            moves: Vec::new(),
            confirms: true,
            issued: BTreeSet::new(),
            lost: BTreeSet::new(),
        }
    }

    /// Submits a write.
    pub(crate) fn submit(&mut self, sector: HostSector) -> u64 {
        self.requests += 1;
        self.flash.requests.insert(self.requests, vec![sector.value]);
        self.writing.insert(self.requests, sector);
        self.ftl.write_named(self.requests, sector.tag);
        self.requests
    }

    /// Takes everything that the FTL reports.
    pub(crate) fn take_reports(&mut self) {
        while let Some(written) = self.ftl.pop_named_write() {
            assert!(self.issued.insert(written.name), "{written:?}: the name was used before");
            assert!(self.writing.contains_key(&written.request), "{written:?}: the write failed");
            self.named.insert(written.request, written.name);
        }
        while let Some(done) = self.ftl.pop_completion() {
            let sector = self.writing.remove(&done.tag).expect("it is a write");
            self.flash.requests.remove(&done.tag);
            match self.named.remove(&done.tag) {
                Some(name) if done.status.is_success() => {
                    assert_eq!(self.sectors.insert(name, sector), None, "{name:?} is new");
                }
                named => {
                    assert!(done.status.is(Status::CAPACITY_EXCEEDED), "{done:?}");
                    assert_eq!(named, None, "a write that failed has no name");
                    self.failed += 1;
                }
            }
        }
        while let Some(moved) = self.ftl.pop_moved() {
            assert!(self.issued.insert(moved.new), "{moved:?}: the name was used before");
            self.take_move(moved);
        }
        while let Some(name) = self.ftl.pop_lost_name() {
            self.sectors.remove(&name);
            self.lost.insert(name);
        }
    }

    /// Takes the moves that a recovery reports, and confirms none.
    pub(crate) fn take_recovered_moves(&mut self) -> Vec<MovedSector> {
        let confirms = std::mem::replace(&mut self.confirms, false);
        let mut moves = Vec::new();
        while let Some(moved) = self.ftl.pop_moved() {
            self.issued.insert(moved.new);
            self.take_move(moved);
            moves.push(moved);
        }
        self.confirms = confirms;
        moves
    }

    /// Takes the sectors that a recovery found.
    pub(crate) fn take_found(&mut self) -> BTreeMap<SectorName, u64> {
        let found = self.ftl.take_found_names();
        self.issued.extend(found.iter().map(|found| found.name));
        found.into_iter().map(|found| (found.name, found.tag)).collect()
    }

    /// Confirms a move.
    pub(crate) fn confirm(&mut self, old: SectorName) {
        self.ftl.confirm_move(old).expect("it waits for that");
        self.ftl.kick(Nanos(0), &mut self.flash);
    }

    fn take_move(&mut self, moved: MovedSector) {
        self.moves.push(moved);
        if let Some(sector) = self.sectors.remove(&moved.old) {
            assert_eq!(sector.tag, moved.tag);
            self.sectors.insert(moved.new, sector);
        }
        for name in self.named.values_mut().filter(|name| **name == moved.old) {
            *name = moved.new;
        }
        if self.confirms {
            self.confirm(moved.old);
        }
    }

    /// Executes operations until all writes have completed, or no operation is in flight. Returns whether
    /// they have completed.
    pub(crate) fn try_writes(&mut self) -> bool {
        self.ftl.kick(Nanos(0), &mut self.flash);
        self.take_reports();
        while !self.writing.is_empty() && self.flash.outstanding() > 0 {
            self.flash.step(&mut self.ftl);
            self.take_reports();
        }
        self.writing.is_empty()
    }

    /// Completes all writes.
    pub(crate) fn complete_writes(&mut self) {
        assert!(self.try_writes(), "{:?}", self.ftl.explain_stall());
    }

    /// Writes sectors as one batch, and completes them.
    pub(crate) fn write(&mut self, sectors: impl IntoIterator<Item = HostSector>) {
        sectors.into_iter().for_each(|sector| _ = self.submit(sector));
        self.complete_writes();
    }

    /// Executes all operations in flight.
    pub(crate) fn settle(&mut self) {
        self.complete_writes();
        loop {
            let moves = self.moves.len();
            self.flash.settle(&mut self.ftl);
            self.take_reports();
            if self.moves.len() == moves {
                break;
            }
        }
        check(&self.ftl);
    }

    /// Reads a name. The FTL must be idle but for this read.
    pub(crate) fn read(
        &mut self,
        name: SectorName,
        tag: u64,
    ) -> Result<Result<u64, Status>, SectorNameError> {
        self.requests += 1;
        let request = self.requests;
        self.flash.requests.insert(request, vec![u64::MAX]);
        self.ftl.read_named(Nanos(0), request, name, tag, &mut self.flash)?;
        loop {
            let done = self.ftl.pop_completion();
            if let Some(done) = done {
                assert_eq!(done.tag, request);
                let value = self.flash.requests.remove(&request).expect("it is there")[0];
                assert!(done.status.is_success() || value == 0 || value == u64::MAX);
                return Ok(if done.status.is_success() { Ok(value) } else { Err(done.status) });
            }
            self.flash.step(&mut self.ftl);
        }
    }

    /// Checks that every sector can be read by its name, with its data.
    pub(crate) fn verify(&mut self) {
        for (name, sector) in self.sectors.clone() {
            let found = self.read(name, sector.tag);
            assert_eq!(found, Ok(Ok(sector.value)), "{name:?}, tag {}", sector.tag);
        }
    }

    /// Frees a sector of the index.
    pub(crate) fn free(&mut self, name: SectorName) {
        assert!(self.sectors.remove(&name).is_some());
        self.ftl.free_named(name).expect("it is valid");
    }

    /// Returns the name at a position of the index.
    pub(crate) fn name_at(&self, position: u64) -> SectorName {
        let position = position as usize % self.sectors.len();
        *self.sectors.keys().nth(position).expect("there is one")
    }

    /// Cuts power, and recovers. Writes that have not completed are forgotten.
    pub(crate) fn cut(&mut self) {
        self.ftl = self.flash.power_cut(self.config);
        self.writing.clear();
        self.named.clear();
    }

    /// The physical sector of a name.
    pub(crate) fn sector_of(&self, name: SectorName) -> u32 {
        let bits = u64::BITS - self.flash.geometry.total_sectors().leading_zeros();
        (name.0 & ((1 << bits) - 1)) as u32
    }
}
