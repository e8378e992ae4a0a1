//! [`Guard`]: rules that fetch a sector for plain commands, and deny them because of it.

use super::model::Model;

/// Commands that rules deny because of the node in this sector: those of blocks with this remainder.
#[derive(Clone, Copy, Debug)]
pub(super) struct Guard {
    pub(super) op: &'static str,
    sector: u64,
    modulus: u64,
    remainder: u64,
}

pub(super) const GUARDED_WRITES: Guard = Guard { op: "write", sector: 0, modulus: 8, remainder: 5 };
pub(super) const GUARDED_READS: Guard = Guard { op: "read", sector: 1, modulus: 8, remainder: 3 };
pub(super) const GUARDED_TRIMS: Guard = Guard { op: "trim", sector: 2, modulus: 4, remainder: 2 };

impl Guard {
    /// Returns the rule of a program.
    pub(super) fn rule(self, program: usize) -> String {
        let Guard { op, sector, modulus, remainder } = self;
        // After a power cut the test reads single sectors.
        let alone = u64::from(op == "read");
        format!(
            "rule guard_{op} priority 2\n  when channel.app == db and header.{op} and \
             header.lba % {modulus} == {remainder} and header.sectors > {alone}\n  do fetch n: Node at {sector}\n     \
             if n.count % 4 == {program} {{ complete denied }}\n     continue\n"
        )
    }

    fn applies(self, lba: u64) -> bool {
        lba % self.modulus == self.remainder
    }
}

/// The ends that a guard may have for a command.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct GuardEnds {
    pub(super) denies: bool,
    pub(super) permits: bool,
    /// The sector cannot be read.
    pub(super) fails: bool,
}

impl Model {
    /// Returns the ends of a guard, since a step, for a command whose inputs begin at these blocks.
    pub(super) fn guard_ends(&self, guard: Guard, inputs: &[u64], since: u64) -> GuardEnds {
        if !self.has_guards || !inputs.iter().any(|lba| guard.applies(*lba)) {
            return GuardEnds { permits: true, ..GuardEnds::default() };
        }
        let (programs, mut ends) = (self.programs_since(since), GuardEnds::default());
        for contents in self.contents_since(guard.sector, since) {
            match contents {
                None => ends.fails = true,
                Some(contents) => {
                    for program in &programs {
                        let is_denied = contents.count() % 4 == *program as u64;
                        ends.denies |= is_denied;
                        ends.permits |= !is_denied;
                    }
                }
            }
        }
        ends
    }
}
