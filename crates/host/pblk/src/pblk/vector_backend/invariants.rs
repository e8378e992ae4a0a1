//! Invariants of [`VectorBackend`].

use std::collections::BTreeMap;

use ftl::ReadDest;

use super::{CommandTag, DeferredCommand, VectorBackend};
use crate::invariants::{PblkViolation, require, require_eq};

impl VectorBackend {
    /// Checks the commands and the parts that they refer to.
    ///
    /// # Errors
    /// The first invariant that does not hold.
    pub(crate) fn check_invariants(&self) -> Result<(), PblkViolation> {
        self.requests.check_invariants()?;
        self.split_reads.check_invariants()?;
        self.read_tracker.as_ref().map_or(Ok(()), |tracker| tracker.check_invariants())?;
        let on_drive = usize::from(self.queue.outstanding());
        require!(
            self.deferred.is_empty() || on_drive > 0,
            Commands,
            "commands are deferred only while others are on the drive",
            "the queue",
            "commands on the drive",
            on_drive
        );
        self.check_deferred()?;
        if let Some(copies) = &self.drive_copies {
            let consistent = copies.is_consistent();
            require!(
                consistent,
                Commands,
                "a chunk has at most one copy",
                "all copies",
                true,
                false
            );
            let commands = on_drive + self.deferred.len();
            require!(
                copies.in_progress() <= commands,
                Commands,
                "a copy has a command",
                "all copies",
                format_args!("at most {commands}"),
                copies.in_progress()
            );
        }
        // Programs and erases count as well, so that the commands bound the reads.
        let commands = on_drive + self.deferred.len();
        let fragments = self.split_reads.fragments();
        require!(
            fragments <= commands,
            SplitReads,
            "a fragment has a command",
            "all fragments",
            format_args!("at most {commands}"),
            fragments
        );
        let tracked = self.read_tracker.as_ref().map_or(0, |tracker| tracker.reads());
        require!(
            tracked <= commands,
            ReadTracker,
            "a tracked read has a command",
            "all reads",
            format_args!("at most {commands}"),
            tracked
        );
        Ok(())
    }

    fn check_deferred(&self) -> Result<(), PblkViolation> {
        let (mut addresses, mut trims) = (0, 0);
        let mut fragments: BTreeMap<u32, u32> = BTreeMap::new();
        for (at, command) in self.deferred.iter().enumerate() {
            let DeferredCommand::Read { tag, count, target } = *command else {
                trims += u32::from(matches!(command, DeferredCommand::Trim { .. }));
                continue;
            };
            addresses += count;
            if let CommandTag::ReadFragment { split, .. } = tag {
                *fragments.entry(split).or_default() += 1;
            }
            let is_asked = match target {
                ReadDest::Host(request) => self.requests.is_outstanding(request),
                ReadDest::Buffer => true,
            };
            let subject = format_args!("deferred command {at}");
            require!(is_asked, Commands, "a read has its request", subject, true, command);
        }
        let listed = self.deferred_addresses.len();
        require_eq!(Commands, "addresses of deferred reads", "all reads", addresses, listed);
        require!(trims <= 1, Commands, "one trim at a time", "all trims", 1, trims);
        for (split, deferred) in fragments {
            let remaining = self.split_reads.remaining_fragments(split);
            require!(
                deferred <= remaining,
                SplitReads,
                "a deferred fragment remains",
                format_args!("read {split}"),
                format_args!("at most {remaining}"),
                deferred
            );
        }
        Ok(())
    }
}
