//! Nameless writes by the rules of a drive (`demo/rules/nameless.rules`): the host keeps the names of its
//! sectors.

mod amplification;
mod applications;
mod commands;
mod power_cuts;

use std::collections::BTreeMap;

use controller::{Controller, DriveConfig};
use media::{MediaConfig, NandConfig};
use mem::PAGE_BYTES;
use nvme::{
    AdminCommand, FoundNameEntry, NamedCommand, RuleCommand, RuleCommandKind, RuleEvent,
    RuleEventLog, Status, log_page,
};
use rng::Rng;

use super::harness::demo_on;
use crate::block_commands::harness::config as block_config;
use crate::hostile::host::{Host, MEMORY};

const NOT_FOUND: Status = Status::RULE_NOT_FOUND.do_not_retry();
/// Pages of the host's memory for the data of commands.
const DATA_PAGES: usize = 32;
/// First page for the data of admin commands.
const ADMIN_PAGE: usize = DATA_PAGES;

/// Returns a drive with write units of 4 sectors, and memory for durable tables.
fn base() -> DriveConfig {
    let mut config = block_config();
    config.ftl.owner_bytes = 1 << 18;
    let nand = nand_of(&mut config);
    (nand.geometry.planes, nand.geometry.page_bytes) = (2, 8192);
    (nand.geometry.chunks, nand.geometry.pages) = (12, 8);
    config
}

fn nand_of(config: &mut DriveConfig) -> &mut NandConfig {
    match &mut config.media {
        MediaConfig::Nand(nand) => nand,
        media => panic!("{media:?}"),
    }
}

fn config() -> DriveConfig {
    demo_on(base(), "nameless.rules")
}

fn check(drive: &Controller) {
    drive.check_invariants().unwrap_or_else(|violation| panic!("{violation}"));
}

/// A sector of the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct NamedSector {
    name: u64,
    value: u8,
}

/// A host that keeps the names of its sectors.
struct NamingHost {
    host: Host,
    /// By tag. A tag is that of one write.
    sectors: BTreeMap<u64, NamedSector>,
    next_tag: u64,
    /// Events about moves.
    moved: u64,
}

impl NamingHost {
    fn new(host: Host) -> NamingHost {
        NamingHost { host, sectors: BTreeMap::new(), next_tag: 1, moved: 0 }
    }

    fn run(&mut self, drive: &mut Controller, command: NamedCommand) -> (Status, u64) {
        let bytes = if command.op.has_data() { PAGE_BYTES } else { 0 };
        let mut sqe = command.to_sqe(1);
        sqe.set_sgl(self.host.block(0, bytes as u32));
        let cqe = self.host.io(drive, sqe);
        (cqe.status, cqe.result)
    }

    /// Writes a sector with a new tag. Returns the tag, which is not kept.
    fn try_write(&mut self, drive: &mut Controller) -> (Status, u64, NamedSector) {
        let tag = self.next_tag;
        self.next_tag += 1;
        self.host.memory.fill(0, PAGE_BYTES, tag as u8);
        let (status, name) = self.run(drive, NamedCommand::write(tag));
        (status, tag, NamedSector { name, value: tag as u8 })
    }

    fn write(&mut self, drive: &mut Controller) -> u64 {
        let (status, tag, sector) = self.try_write(drive);
        assert_eq!(status, Status::SUCCESS);
        self.sectors.insert(tag, sector);
        tag
    }

    fn fill(&mut self, drive: &mut Controller, sectors: u64) {
        for _ in 0..sectors {
            self.write(drive);
        }
    }

    fn read(&mut self, drive: &mut Controller, name: u64, tag: u64) -> Result<u8, Status> {
        self.host.memory.fill(0, PAGE_BYTES, 0xee);
        let (status, _) = self.run(drive, NamedCommand::read(name, tag));
        let mut page = [0; PAGE_BYTES];
        self.host.memory.read(0, &mut page);
        assert!(page.iter().all(|byte| *byte == page[0]), "a sector has two values");
        if status != Status::SUCCESS {
            assert!(matches!(page[0], 0 | 0xee), "{status}: data of a sector");
            return Err(status);
        }
        Ok(page[0])
    }

    fn free(&mut self, drive: &mut Controller, tag: u64) {
        let NamedSector { name, .. } = self.sectors.remove(&tag).expect("a sector");
        assert_eq!(self.run(drive, NamedCommand::free(name)).0, Status::SUCCESS, "tag {tag}");
    }

    fn log(&mut self, drive: &mut Controller, lid: u8, bytes: usize, offset: u64) -> Vec<u8> {
        let (nsid, retain) = (u32::MAX, false);
        let command = AdminCommand::GetLogPage { lid, nsid, bytes: bytes as u64, offset, retain };
        let mut sqe = command.to_sqe();
        sqe.set_sgl(self.host.block(ADMIN_PAGE as u64, bytes as u32));
        assert!(ADMIN_PAGE * PAGE_BYTES + bytes <= MEMORY);
        assert_eq!(self.host.admin(drive, sqe).status, Status::SUCCESS);
        let mut data = vec![0; bytes];
        self.host.memory.read(ADMIN_PAGE * PAGE_BYTES, &mut data);
        data
    }

    /// Takes events, until there is none.
    fn take_events(&mut self, drive: &mut Controller) -> Vec<RuleEvent> {
        let mut taken = Vec::new();
        loop {
            let page = self.log(drive, log_page::RULE_EVENTS, RuleEventLog::BYTES, 0);
            let log = RuleEventLog::from_bytes(page.as_slice().try_into().unwrap());
            assert_eq!(log.lost, 0);
            if log.events.is_empty() {
                return taken;
            }
            taken.extend(log.events);
        }
    }

    fn acknowledge(&mut self, drive: &mut Controller, old: u64) -> Status {
        let ack = RuleCommand::new(RuleCommandKind::Ack, 0, 1);
        self.host.io(drive, RuleCommand { arg0: old, ..ack }.to_sqe(1)).status
    }

    /// Takes the new names of moved sectors from the log page; acknowledges them if `acknowledges`.
    fn take_moves(&mut self, drive: &mut Controller, acknowledges: bool) {
        for event in self.take_events(drive) {
            assert_eq!(event.kind.get(), RuleEvent::MIGRATED);
            let [old, new, tag] = event.values.map(|value| value.get());
            self.moved += 1;
            if let Some(sector) = self.sectors.get_mut(&tag) {
                assert_eq!(sector.name, old, "events come in order");
                sector.name = new;
            }
            if acknowledges {
                assert_eq!(self.acknowledge(drive, old), Status::SUCCESS);
            }
        }
    }

    /// Checks that every sector can be read.
    fn check(&mut self, drive: &mut Controller) {
        check(drive);
        for (tag, NamedSector { name, value }) in self.sectors.clone() {
            assert_eq!(self.read(drive, name, tag), Ok(value), "tag {tag}");
        }
    }

    /// Returns the tag of a sector.
    fn any(&self, rng: &mut Rng) -> u64 {
        let at = rng.below(self.sectors.len() as u64) as usize;
        *self.sectors.keys().nth(at).expect("a sector")
    }

    /// Frees sectors and writes others.
    fn churn(&mut self, drive: &mut Controller, rng: &mut Rng, writes: u64) {
        for _ in 0..writes {
            let tag = self.any(rng);
            self.free(drive, tag);
            self.write(drive);
        }
    }

    /// Returns the names that the drive has found, by their tags.
    fn take_found(&mut self, drive: &mut Controller) -> BTreeMap<u64, u64> {
        let mut found = BTreeMap::new();
        for at in 0.. {
            let bytes = FoundNameEntry::BYTES;
            let page = self.log(drive, log_page::FOUND_NAMES, bytes, bytes as u64 * at);
            let entry = FoundNameEntry::from_bytes(*page.first_chunk().unwrap());
            if entry.name.get() == u64::MAX {
                return found;
            }
            assert_eq!(found.insert(entry.tag.get(), entry.name.get()), None, "a tag twice");
        }
        unreachable!("the page has an end");
    }

    /// Takes the names of its sectors from what the drive has found, and frees other sectors. Returns the
    /// number of those that were found.
    fn rebuild(&mut self, drive: &mut Controller) -> usize {
        let found = self.take_found(drive);
        for (tag, sector) in &mut self.sectors {
            sector.name =
                *found.get(tag).unwrap_or_else(|| panic!("tag {tag} is lost: {sector:?}"));
        }
        for (tag, name) in &found {
            if !self.sectors.contains_key(tag) {
                assert_eq!(self.run(drive, NamedCommand::free(*name)).0, Status::SUCCESS);
            }
        }
        found.len()
    }
}
