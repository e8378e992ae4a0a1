//! [`RuleMisses`]: the commands that no rule matches, and a record of each class of them
//! ([Thesis15 ch. 7]: what no rule matches goes to the controller).
//!
//! A command that misses is parked until a rule of a new program matches it, the host rejects it, or
//! a timeout ends. The commands that are parked have a limit per submission queue, so that a host that
//! misses takes no memory of others. Invariants: parked commands are in the order of their misses,
//! which is that of their timeouts; and of each class, every command that missed is parked or has
//! ended in one of the ways that its record counts.

use std::collections::{BTreeMap, HashMap};

use nvme::Status;
use rules::InputOp;
use serde::{Deserialize, Serialize};
use time::Nanos;

/// The status of a command that no rule matched in time.
pub(super) const UNMATCHED: Status = Status::RULE_MISS.do_not_retry();

/// The treatment of commands that no rule matches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RuleMissConfig {
    /// Time after which a parked command ends with [`Status::RULE_MISS`] and *do not
    /// retry*. With 0 no command is parked.
    pub timeout: Nanos,
    /// Commands of a submission queue that are parked at most. Further ones end at once with the same
    /// status, without *do not retry*.
    pub parked_max: u32,
}

impl Default for RuleMissConfig {
    /// 1 s, and 1024 commands of a submission queue.
    fn default() -> RuleMissConfig {
        RuleMissConfig { timeout: Nanos(1_000_000_000), parked_max: 1024 }
    }
}

/// A class of commands that no rule matched: those of an operation.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RuleMissRecord {
    /// The operation as the language names it: `read`, `write` …
    pub op: String,
    /// Commands that missed.
    pub misses: u64,
    /// Commands that are parked.
    pub parked: u64,
    /// Commands that a rule of a later program matched.
    pub released: u64,
    /// Commands that ended because the host rejected them.
    pub rejected: u64,
    /// Commands that ended after the timeout.
    pub timed_out: u64,
    /// Commands that ended at once, because their queue had the maximum of parked commands.
    pub refused: u64,
    /// Commands that ended because of an Abort, the deletion of their queue, or a power cut.
    pub aborted: u64,
    /// First block of the command that missed last.
    pub lba: u64,
    /// Blocks of the command that missed last.
    pub blocks: u64,
    /// Time of the first miss.
    pub first_at: Nanos,
    /// Time of the last miss.
    pub last_at: Nanos,
}

/// An input that no rule matches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct MissedInput {
    pub(super) op: InputOp,
    /// The input among those of its command.
    pub(super) at: u32,
}

/// The order of the parked commands: the end of the timeout, and a number that grows.
pub(super) type ParkedKey = (Nanos, u64);

/// A command that is parked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ParkedCommand {
    pub(super) id: u32,
    pub(super) missed: MissedInput,
    /// Its submission queue.
    pub(super) queue: u32,
    /// The first block of the input.
    pub(super) lba: u64,
    /// The number of blocks of the input.
    pub(super) blocks: u64,
}

/// The end of a parked command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MissEnd {
    Released,
    Rejected,
    TimedOut,
    Aborted,
}

/// The commands that no rule matches.
#[derive(Debug)]
pub(super) struct RuleMisses {
    config: RuleMissConfig,
    /// The commands that missed and are still in an engine, with the number of the program.
    inside: HashMap<u32, (MissedInput, u32)>,
    parked: BTreeMap<ParkedKey, ParkedCommand>,
    /// Parked commands, by submission queue.
    by_queue: HashMap<u32, u32>,
    /// By operation.
    records: BTreeMap<InputOp, RuleMissRecord>,
    next_number: u64,
}

impl RuleMisses {
    pub(super) fn new(config: RuleMissConfig) -> RuleMisses {
        RuleMisses {
            config,
            inside: HashMap::new(),
            parked: BTreeMap::new(),
            by_queue: HashMap::new(),
            records: BTreeMap::new(),
            next_number: 0,
        }
    }

    /// Returns the record of each class, in the order of the operations.
    pub(super) fn records(&self) -> Vec<RuleMissRecord> {
        self.records.values().cloned().collect()
    }

    /// Returns the time at which the next timeout ends.
    pub(super) fn next_at(&self) -> Nanos {
        self.parked.first_key_value().map_or(Nanos::MAX, |((due, _), _)| *due)
    }

    /// Records that no rule of a program matches an input of a command, until the command leaves its
    /// engine.
    pub(super) fn enter(&mut self, id: u32, missed: MissedInput, program: u32) {
        self.inside.insert(id, (missed, program));
    }

    /// Removes and returns the input of a command that leaves its engine, and the number of the
    /// program.
    pub(super) fn leave(&mut self, id: u32) -> Option<(MissedInput, u32)> {
        self.inside.remove(&id)
    }

    /// Records a miss, and parks the command.
    ///
    /// # Errors
    /// The status with which the command ends instead.
    pub(super) fn park(&mut self, now: Nanos, command: ParkedCommand) -> Result<(), Status> {
        let ParkedCommand { missed: MissedInput { op, .. }, lba, blocks, .. } = command;
        let empty = || RuleMissRecord { op: op.name().into(), first_at: now, ..Default::default() };
        let record = self.records.entry(op).or_insert_with(empty);
        record.misses += 1;
        (record.lba, record.blocks, record.last_at) = (lba, blocks, now);
        if self.config.timeout == Nanos::ZERO {
            record.timed_out += 1;
            return Err(UNMATCHED);
        }
        let of_queue = self.by_queue.entry(command.queue).or_default();
        if *of_queue >= self.config.parked_max {
            record.refused += 1;
            return Err(Status::RULE_MISS);
        }
        *of_queue += 1;
        record.parked += 1;
        self.parked.insert((now + self.config.timeout, self.next_number), command);
        self.next_number += 1;
        Ok(())
    }

    /// Removes and returns the command whose timeout ended first, if it has ended by `now`.
    pub(super) fn pop_due(&mut self, now: Nanos) -> Option<(Nanos, ParkedCommand)> {
        let (key, command) = self.parked.first_key_value().filter(|((due, _), _)| *due <= now)?;
        let (key, command) = (*key, *command);
        self.end(key, MissEnd::TimedOut);
        Some((key.0, command))
    }

    /// Returns the parked commands in the order of their misses.
    pub(super) fn all(&self) -> impl Iterator<Item = (ParkedKey, ParkedCommand)> + '_ {
        self.parked.iter().map(|(key, command)| (*key, *command))
    }

    /// Returns the number of parked commands.
    pub(super) fn len(&self) -> usize {
        self.parked.len()
    }

    /// Notes at which input a parked command missed again.
    pub(super) fn miss_again(&mut self, key: ParkedKey, missed: MissedInput) {
        let Some(command) = self.parked.get_mut(&key) else { return };
        let (old, new) = (command.missed.op, missed.op);
        command.missed = missed;
        if old == new {
            return;
        }
        // The class that it missed first has been released. It counts in the other one.
        for (op, was) in [(old, 1), (new, 0)] {
            let empty = || RuleMissRecord { op: op.name().into(), ..Default::default() };
            let record = self.records.entry(op).or_insert_with(empty);
            record.parked = record.parked + 1 - 2 * was;
            record.released += was;
            record.misses += 1 - was;
        }
    }

    /// Ends a parked command.
    pub(super) fn end(&mut self, key: ParkedKey, end: MissEnd) {
        let Some(command) = self.parked.remove(&key) else { return };
        if let Some(of_queue) = self.by_queue.get_mut(&command.queue) {
            *of_queue -= 1;
            if *of_queue == 0 {
                self.by_queue.remove(&command.queue);
            }
        }
        let Some(record) = self.records.get_mut(&command.missed.op) else { return };
        record.parked -= 1;
        match end {
            MissEnd::Released => record.released += 1,
            MissEnd::Rejected => record.rejected += 1,
            MissEnd::TimedOut => record.timed_out += 1,
            MissEnd::Aborted => record.aborted += 1,
        }
    }

    /// Loses all parked commands, as a power cut does.
    pub(super) fn power_cut(&mut self) {
        self.inside.clear();
        let keys: Vec<ParkedKey> = self.parked.keys().copied().collect();
        keys.into_iter().for_each(|key| self.end(key, MissEnd::Aborted));
    }

    /// Checks the invariants.
    ///
    /// # Panics
    /// If one does not hold.
    pub(super) fn check_invariants(&self) {
        let of_queues: u32 = self.by_queue.values().sum();
        assert_eq!(of_queues as usize, self.parked.len(), "parked commands of all queues");
        for record in self.records.values() {
            let RuleMissRecord { parked, released, rejected, timed_out, .. } = record;
            let ends = released + rejected + timed_out + record.refused + record.aborted;
            assert_eq!(record.misses, parked + ends, "{record:?}");
            let of_class = |command: &&ParkedCommand| command.missed.op.name() == record.op;
            assert_eq!(*parked as usize, self.parked.values().filter(of_class).count());
        }
    }
}
