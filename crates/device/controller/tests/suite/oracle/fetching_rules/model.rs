//! [`Model`]: the values that each sector had in each part of the run, and the results of commands that
//! these make possible.
//!
//! Steps number the submissions and the completions that the host sees. A value is in effect from a step
//! between the submission and the completion of its command on, until that of the next one. So a read
//! between two steps may return it if it was submitted before the second one, and if its successor had not
//! completed before the first one.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::rc::Rc;

use nvme::{RuleCommand, RuleReply, Status};
use testkit::oracle::SectorModel;

use super::super::sector::UNREADABLE;
use super::contents::{CLASSES, Contents, NodeStep, RECORD_BYTES, SECTOR_BYTES};
use super::guards::GUARDED_READS;

/// The hops that the rule of lookups has.
pub(super) const HOPS: u32 = 8;

/// A value of a sector.
#[derive(Clone, Debug)]
struct Version {
    /// `None` if the sector is unreadable.
    contents: Option<Rc<Contents>>,
    /// The step at which its command was submitted.
    sent: u64,
    /// The step at which the next one completed.
    replaced: u64,
}

/// The values of a sector since the last power cut, oldest first.
#[derive(Clone, Debug)]
pub(super) struct SectorHistory {
    versions: Vec<Version>,
    /// The values that a power cut may leave.
    pub(super) durable: SectorModel,
    /// Whether a command that changes the sector is in flight.
    pub(super) is_changing: bool,
}

/// Tables of rules, from a step on.
#[derive(Clone, Copy, Debug)]
struct TableEpoch {
    from: u64,
    installation: u64,
    program: usize,
    /// The keys of `wanted`.
    wanted: u64,
}

/// The completion of a command, and the bytes that it returned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct CommandResult {
    pub(super) status: Status,
    pub(super) reply: RuleReply,
    /// The buffer of the host.
    pub(super) data: Vec<u8>,
}

/// The sectors and the rules of a drive.
#[derive(Debug)]
pub(super) struct Model {
    pub(super) sectors: Vec<SectorHistory>,
    /// Sectors that commands of the test address.
    pub(super) area: u64,
    pub(super) has_guards: bool,
    epochs: Vec<TableEpoch>,
    /// The present step.
    pub(super) step: u64,
    contents: BTreeMap<u64, Rc<Contents>>,
}

/// A lookup in progress.
struct LookupSearch<'a> {
    model: &'a Model,
    command: &'a RuleCommand,
    result: &'a CommandResult,
    sent: u64,
    /// Whether a leaf must have the key.
    is_exact: bool,
    /// The fetches that led to nothing: sector, hops, and step.
    visited: HashSet<(u64, u32, u64)>,
}

impl Model {
    /// Creates the model of an empty drive with this number of sectors.
    pub(super) fn new(sectors: u64, area: u64, has_guards: bool) -> Model {
        let mut model = Model {
            sectors: Vec::new(),
            area,
            has_guards,
            epochs: vec![TableEpoch { from: 0, installation: 0, program: 0, wanted: 0 }],
            step: 0,
            contents: BTreeMap::new(),
        };
        model.sectors = (0..sectors).map(|_| model.history(0, sectors)).collect();
        model
    }

    fn history(&mut self, value: u64, sectors: u64) -> SectorHistory {
        let version =
            Version { contents: self.contents_of(value, sectors), sent: 0, replaced: u64::MAX };
        SectorHistory {
            versions: vec![version],
            durable: SectorModel::new(value),
            is_changing: false,
        }
    }

    fn contents_of(&mut self, value: u64, sectors: u64) -> Option<Rc<Contents>> {
        let area = self.area;
        let new = || Contents::new(value, sectors, area);
        (value != UNREADABLE).then(|| self.contents.entry(value).or_insert_with(new).clone())
    }

    /// Returns the bytes of a value.
    pub(super) fn bytes_of(&mut self, value: u64) -> Vec<u8> {
        let sectors = self.sectors.len() as u64;
        self.contents_of(value, sectors).map_or(vec![0; SECTOR_BYTES], |contents| contents.bytes())
    }

    /// Records that the only value of a sector is this one.
    pub(super) fn reset(&mut self, lba: u64, value: u64) {
        let sectors = self.sectors.len() as u64;
        self.sectors[lba as usize] = self.history(value, sectors);
    }

    /// Records that a change is submitted at the present step. Returns its position.
    pub(super) fn send(&mut self, lba: u64, value: u64) -> u64 {
        let (sent, sectors) = (self.step, self.sectors.len() as u64);
        let contents = self.contents_of(value, sectors);
        let sector = &mut self.sectors[lba as usize];
        assert!(!sector.is_changing, "sector {lba}");
        sector.is_changing = true;
        sector.versions.push(Version { contents, sent, replaced: u64::MAX });
        sector.durable.send_next(value)
    }

    /// Records that the change of a sector completed.
    pub(super) fn complete(&mut self, lba: u64, order: u64, is_durable: bool) {
        let (step, sector) = (self.step, &mut self.sectors[lba as usize]);
        sector.is_changing = false;
        if let [.., before, _] = &mut sector.versions[..] {
            before.replaced = step;
        }
        sector.durable.complete_at(order);
        if is_durable {
            sector.durable.set_durable(order);
        }
    }

    /// Records that the change of a sector was not executed.
    pub(super) fn cancel(&mut self, lba: u64) {
        let sector = &mut self.sectors[lba as usize];
        sector.is_changing = false;
        sector.versions.pop();
    }

    fn epoch(&self) -> TableEpoch {
        *self.epochs.last().expect("an epoch")
    }

    /// Records the keys of `wanted` from the present step on.
    pub(super) fn set_wanted(&mut self, wanted: u64) {
        self.epochs.push(TableEpoch { from: self.step, wanted, ..self.epoch() });
    }

    /// Records a program that was installed: its tables have no keys.
    pub(super) fn install(&mut self, program: usize) {
        let installation = self.epoch().installation + 1;
        self.epochs.push(TableEpoch { from: self.step, installation, program, wanted: 0 });
    }

    /// Returns the keys of `wanted`.
    pub(super) fn wanted(&self) -> u64 {
        self.epoch().wanted
    }

    /// Returns the tables and programs since a step.
    fn epochs_since(&self, sent: u64) -> &[TableEpoch] {
        let first = self.epochs.iter().rposition(|epoch| epoch.from < sent).unwrap_or(0);
        &self.epochs[first..]
    }

    /// Returns the programs since a step.
    pub(super) fn programs_since(&self, sent: u64) -> BTreeSet<usize> {
        self.epochs_since(sent).iter().map(|epoch| epoch.program).collect()
    }

    /// Returns the values that a sector had since a step.
    fn versions_since(&self, lba: u64, from: u64) -> impl Iterator<Item = &Version> {
        let versions = &self.sectors[lba as usize].versions;
        versions.iter().filter(move |version| version.replaced >= from)
    }

    /// Returns what a sector had since a step: `None` if it was unreadable.
    pub(super) fn contents_since(
        &self,
        lba: u64,
        from: u64,
    ) -> impl Iterator<Item = Option<&Contents>> {
        self.versions_since(lba, from).map(|version| version.contents.as_deref())
    }

    /// Whether a read of sectors that was submitted at `from` may return this.
    pub(super) fn allows_read(
        &self,
        slba: u64,
        nlb: u32,
        from: u64,
        result: &CommandResult,
    ) -> bool {
        let mut lbas = slba..slba + u64::from(nlb);
        if result.status.is(Status::UNRECOVERED_READ) {
            return lbas
                .any(|lba| self.contents_since(lba, from).any(|contents| contents.is_none()));
        }
        let is_possible = |(lba, bytes): (u64, &[u8])| {
            self.contents_since(lba, from).flatten().any(|contents| contents.bytes() == bytes)
        };
        result.status.is_success() && lbas.zip(result.data.chunks(SECTOR_BYTES)).all(is_possible)
    }

    /// Whether a scan that was submitted at `sent` may have this result.
    pub(super) fn allows_scan(
        &self,
        command: &RuleCommand,
        sent: u64,
        result: &CommandResult,
    ) -> bool {
        let epochs = self.epochs_since(sent);
        let of_installation = epochs.chunk_by(|a, b| a.installation == b.installation);
        of_installation.into_iter().any(|epochs| self.allows_scan_by(epochs, command, sent, result))
    }

    /// Whether a scan by one installation of a program may have this result.
    fn allows_scan_by(
        &self,
        epochs: &[TableEpoch],
        command: &RuleCommand,
        sent: u64,
        result: &CommandResult,
    ) -> bool {
        let (bytes, program) = (result.reply.bytes as usize, epochs[0].program);
        let tables: BTreeSet<u64> = epochs.iter().map(|epoch| epoch.wanted).collect();
        let mut offsets = BTreeSet::from([0]);
        for lba in command.slba..command.slba + u64::from(command.nlb) {
            let mut next = BTreeSet::new();
            for (contents, offset) in self
                .contents_since(lba, sent)
                .flat_map(|contents| offsets.iter().map(move |offset| (contents, *offset)))
            {
                let Some(contents) = contents else {
                    let is_failed = result.status.is(Status::UNRECOVERED_READ);
                    if is_failed && (offset, 0) == (bytes, result.reply.value) {
                        return true;
                    }
                    continue;
                };
                for wanted in &tables {
                    let records = contents.records(|value| {
                        let is_wanted = wanted >> (value % CLASSES) & 1 == 1;
                        let is_in_range = match program {
                            0 => value > command.arg0,
                            _ => value < command.arg0,
                        };
                        is_wanted && is_in_range
                    });
                    match append(&records, offset, command, result) {
                        Appended::At(offset) => {
                            next.insert(offset);
                        }
                        Appended::Full => return true,
                        Appended::Other => {}
                    }
                }
            }
            offsets = next;
        }
        let value = (bytes / RECORD_BYTES + 1_000 * program) as u64;
        result.status.is_success() && offsets.contains(&bytes) && result.reply.value == value
    }

    /// Whether a lookup that was submitted at `sent` may have this result.
    pub(super) fn allows_lookup(
        &self,
        command: &RuleCommand,
        sent: u64,
        result: &CommandResult,
    ) -> bool {
        self.programs_since(sent).into_iter().any(|program| {
            let (is_exact, visited) = (program == 0, HashSet::new());
            let mut search = LookupSearch { model: self, command, result, sent, is_exact, visited };
            search.fetch(command.arg1, 0, sent)
        })
    }
}

/// The result of a sector's records behind those of the sectors before it.
enum Appended {
    /// They are in the buffer up to this byte.
    At(usize),
    /// The buffer is full with those of the result.
    Full,
    /// The result has others.
    Other,
}

fn append(
    records: &[[u8; RECORD_BYTES]],
    mut offset: usize,
    command: &RuleCommand,
    result: &CommandResult,
) -> Appended {
    let bytes = result.reply.bytes as usize;
    for record in records {
        let end = offset + RECORD_BYTES;
        if end > command.buffer_bytes as usize {
            let is_full = result.status == Status::RULE_OUTPUT_FULL.do_not_retry();
            let is_all = (offset, offset as u64) == (bytes, result.reply.value);
            return if is_full && is_all { Appended::Full } else { Appended::Other };
        }
        if end > bytes || result.data[offset..end] != record[..] {
            return Appended::Other;
        }
        offset = end;
    }
    Appended::At(offset)
}

impl LookupSearch<'_> {
    fn has(&self, status: Status) -> bool {
        self.result.status == status.do_not_retry() && self.result.reply == RuleReply::default()
    }

    /// Whether the result is possible if the rules fetch a sector at step `from` or later.
    fn fetch(&mut self, lba: u64, hops: u32, from: u64) -> bool {
        let model = self.model;
        if lba >= model.sectors.len() as u64 {
            return self.has(Status::RULE_BAD_ADDRESS);
        }
        if !self.visited.insert((lba, hops, from)) {
            return false;
        }
        // The sectors of the range of the command may have been read ahead.
        let is_ahead = self.range_of_command().contains(&lba);
        let since = if is_ahead { self.sent } else { from };
        model.versions_since(lba, since).any(|version| {
            let Some(contents) = &version.contents else {
                return self.result.status.is(Status::UNRECOVERED_READ)
                    && self.result.reply == RuleReply::default();
            };
            let from = if is_ahead { from } else { from.max(version.sent) };
            match contents.step(self.command.arg0) {
                NodeStep::None => self.has(Status::RULE_NOT_FOUND),
                NodeStep::Leaf { is_equal: false, .. } if self.is_exact => {
                    self.has(Status::RULE_NOT_FOUND)
                }
                _ if hops == HOPS => self.has(Status::RULE_HOP_LIMIT),
                NodeStep::Child(lba) => self.fetch(lba, hops + 1, from),
                NodeStep::Leaf { child, .. } => self.read(child, from),
            }
        })
    }

    fn range_of_command(&self) -> std::ops::Range<u64> {
        self.command.slba..self.command.slba + u64::from(self.command.nlb)
    }

    /// Whether the result is that of a read of sectors at step `from` or later.
    fn read(&self, slba: u64, from: u64) -> bool {
        let RuleCommand { nlb, buffer_bytes, .. } = *self.command;
        let bytes = nlb as usize * SECTOR_BYTES;
        let is_small = (buffer_bytes as usize) < bytes;
        let (status, end) = (self.result.status, slba.checked_add(nlb.into()));
        // The command is a read, which rules may deny.
        let inputs: &[u64] = if nlb > 1 { &[slba] } else { &[] };
        let ends = self.model.guard_ends(GUARDED_READS, inputs, from);
        let is_unreadable = status.is(Status::UNRECOVERED_READ);
        if ends.denies && self.has(Status::RULE_DENIED) || ends.fails && is_unreadable {
            return true;
        }
        if !ends.permits {
            return false;
        }
        if end.is_none_or(|end| end > self.model.sectors.len() as u64) {
            let outside = [Status::RULE_INDEX, Status::RULE_BAD_ADDRESS, Status::LBA_OUT_OF_RANGE];
            return outside.iter().any(|outside| status.is(*outside))
                || is_small && self.has(Status::RULE_OUTPUT_FULL);
        }
        if is_small {
            return self.has(Status::RULE_OUTPUT_FULL);
        }
        let reply = RuleReply { value: 0, bytes: bytes as u32 };
        (self.result.reply == reply || !status.is_success())
            && self.model.allows_read(slba, nlb, from, self.result)
    }
}
