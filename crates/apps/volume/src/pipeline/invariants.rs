//! Invariants of a volume: those of each part, and those between parts.

use std::collections::{BTreeMap, BTreeSet};

use crate::Ino;
use crate::invariants::{VolumeViolation, require, require_eq};
use crate::parts::page_cache::FileBlock;
use crate::parts::requests::OpState;
use crate::pipeline::{Core, TransferPurpose};

impl Core {
    /// Checks all invariants. They hold between any two calls of the volume's methods.
    pub(crate) fn check_invariants(&self) -> Result<(), VolumeViolation> {
        self.lifecycle.check_invariants()?;
        self.requests.check_invariants()?;
        self.transfers.check_invariants()?;
        self.allocator.check_invariants()?;
        self.tree.check_invariants()?;
        self.page_cache.check_invariants()?;
        self.writeback.check_invariants()?;
        self.barriers.check_invariants()?;
        self.log.check_invariants()?;
        self.checkpoint.check_invariants()?;
        self.check_staging()?;
        self.check_pins()?;
        self.check_inode_io()?;
        self.check_pages()?;
        self.check_queues()?;
        self.check_log()?;
        if self.options.read_only {
            return Ok(());
        }
        self.check_promises()?;
        self.check_blocks()
    }

    fn check_staging(&self) -> Result<(), VolumeViolation> {
        let in_use = self.transfers.purposes().filter_map(|purpose| match purpose {
            TransferPurpose::Staged(read) => Some(read.staging),
            TransferPurpose::Writeback(run) => Some(run.staging),
            _ => None,
        });
        self.staging.check_invariants(&in_use.collect::<Vec<_>>())
    }

    /// Requests pin the inodes that they use, and reserve blocks.
    fn check_pins(&self) -> Result<(), VolumeViolation> {
        let mut pins: BTreeMap<Ino, u32> = BTreeMap::new();
        let mut reserved_blocks = 0;
        for (_, op) in self.requests.iter() {
            reserved_blocks += op.reserved_blocks;
            if let Some(ino) = op.pinned_inode {
                *pins.entry(ino).or_default() += 1;
                require!(
                    self.tree.find(ino).is_some(),
                    Requests,
                    "a pinned inode exists",
                    ino,
                    "an inode",
                    "none"
                );
            }
        }
        require!(
            reserved_blocks <= self.allocator.reserved(),
            Requests,
            "blocks of requests are reserved",
            "all requests",
            reserved_blocks,
            self.allocator.reserved()
        );
        for (ino, node) in self.tree.iter() {
            let users = &node.state.users;
            let expected = pins.get(&ino).copied().unwrap_or(0);
            require_eq!(Inodes, "requests that pin an inode", ino, expected, users.pins());
            if let Some(slot) = users.writer() {
                let writer = self.requests.iter().find(|(its_slot, _)| *its_slot == slot);
                require_eq!(
                    Inodes,
                    "the writer of a file pins it",
                    ino,
                    Some(ino),
                    writer.and_then(|(_, op)| op.pinned_inode)
                );
            }
        }
        Ok(())
    }

    fn check_inode_io(&self) -> Result<(), VolumeViolation> {
        let mut in_flight: BTreeMap<Ino, u32> = BTreeMap::new();
        for purpose in self.transfers.purposes() {
            let ino = match purpose {
                TransferPurpose::Load { at, .. } => at.ino,
                TransferPurpose::Direct { ino, .. } => *ino,
                TransferPurpose::Staged(read) => read.ino,
                TransferPurpose::Writeback(run) => run.ino,
                _ => continue,
            };
            *in_flight.entry(ino).or_default() += 1;
        }
        for (ino, node) in self.tree.iter() {
            let expected = in_flight.remove(&ino).unwrap_or(0);
            let found = node.state.io.in_flight();
            require_eq!(Inodes, "transfers in flight of an inode", ino, expected, found);
        }
        require!(
            in_flight.is_empty(),
            Inodes,
            "an inode with transfers in flight exists",
            "all inodes",
            0,
            in_flight
        );
        let is_flushing = self.transfers.purposes().any(|p| matches!(p, TransferPurpose::Flush(_)));
        require_eq!(
            Barriers,
            "a flush in flight is a transfer",
            "the device",
            is_flushing,
            self.barriers.is_flushing()
        );
        Ok(())
    }

    /// The pages of files, and the pages' owners.
    fn check_pages(&self) -> Result<(), VolumeViolation> {
        let mut cached = 0;
        for (ino, node) in self.tree.iter() {
            let pages = &node.state.pages;
            let dirty: BTreeSet<u32> = pages.dirty().iter().copied().collect();
            let journaled: BTreeSet<u32> = pages.journaled().iter().copied().collect();
            for (block, id) in pages.iter() {
                cached += 1;
                let subject = FileBlock { ino, block };
                let page = self.page_cache.get(id);
                require_eq!(
                    Pages,
                    "a cached block owns its page",
                    subject,
                    Some(subject),
                    page.owner
                );
                require!(
                    !page.dirty || dirty.contains(&block),
                    Pages,
                    "a changed block is listed",
                    subject,
                    "in the dirty blocks",
                    page
                );
                require!(
                    !dirty.contains(&block) || page.dirty || page.writing,
                    Pages,
                    "a listed block has changed",
                    subject,
                    "dirty or writing",
                    page
                );
                require!(
                    self.options.read_only
                        || journaled.contains(&block) == (page.journaled_txn > 0),
                    Pages,
                    "a journaled block is listed",
                    subject,
                    page.journaled_txn > 0,
                    journaled.contains(&block)
                );
                require!(
                    page.order.last_epoch <= self.barriers.ordered.issued() + 1,
                    Barriers,
                    "contents are covered by a known barrier or the next one",
                    subject,
                    self.barriers.ordered.issued() + 1,
                    page
                );
                require!(
                    page.journaled_txn <= self.log.running_txn(),
                    Pages,
                    "a block is journaled in a known transaction",
                    subject,
                    self.log.running_txn(),
                    page.journaled_txn
                );
            }
        }
        require_eq!(
            Barriers,
            "pages are counted while a barrier is pending",
            "all pages",
            self.barriers.ordered.is_pending(),
            self.page_cache.is_counting()
        );
        let owned = self.page_cache.iter().filter(|page| page.owner.is_some()).count();
        require_eq!(Pages, "a page with a block is cached", "all pages", owned, cached);
        Ok(())
    }

    fn check_queues(&self) -> Result<(), VolumeViolation> {
        let aging: BTreeSet<Ino> = self.writeback.by_age().collect();
        let due: BTreeSet<Ino> = self.writeback.due().collect();
        for (ino, node) in self.tree.iter() {
            let state = &node.state.writeback;
            require_eq!(
                Writeback,
                "an aging inode is queued",
                ino,
                state.is_aging(),
                aging.contains(&ino)
            );
            require_eq!(
                Writeback,
                "a due inode is queued",
                ino,
                state.is_due(),
                due.contains(&ino)
            );
            require!(
                state.is_aging() || node.state.pages.is_in_place(),
                Writeback,
                "an inode with unwritten data ages",
                ino,
                true,
                state.is_aging()
            );
        }
        Ok(())
    }

    fn check_log(&self) -> Result<(), VolumeViolation> {
        let changed: BTreeSet<Ino> = self.log.inodes().collect();
        for (ino, node) in self.tree.iter() {
            let txns = &node.state.txns;
            require_eq!(
                Log,
                "a changed inode is in the running transaction",
                ino,
                txns.is_in_running(),
                changed.contains(&ino)
            );
            let (last, for_data) = (txns.last(false), txns.last(true));
            require!(
                for_data <= last && last <= self.log.running_txn(),
                Log,
                "an inode is changed by a known transaction",
                ino,
                self.log.running_txn(),
                last
            );
            require!(
                txns.unflushed_seq() <= self.barriers.write_seq(),
                Barriers,
                "a write of an inode has completed",
                ino,
                self.barriers.write_seq(),
                txns.unflushed_seq()
            );
        }
        let extents =
            self.transfers.purposes().filter(|p| matches!(p, TransferPurpose::Writeback(_)));
        require_eq!(
            Log,
            "extents in flight are transfers",
            "the device",
            extents.count(),
            self.log.extents_in_flight()
        );
        Ok(())
    }

    /// Blocks promised to pages and requests.
    fn check_promises(&self) -> Result<(), VolumeViolation> {
        let pages: u64 = self.tree.iter().map(|(_, node)| self.delalloc_blocks(node)).sum();
        let requests: u64 = self
            .requests
            .iter()
            .map(|(_, op)| match op.state {
                OpState::Allocate { delalloc_blocks, .. } => delalloc_blocks,
                _ => 0,
            })
            .sum();
        require!(
            self.allocator.delalloc_blocks() == pages + requests
                // A request that fails because the volume was aborted keeps its promises.
                || self.lifecycle.aborted().is_some(),
            Allocator,
            "blocks promised to pages and requests",
            format_args!("{pages} pages and {requests} blocks of requests"),
            pages + requests,
            self.allocator.delalloc_blocks()
        );
        Ok(())
    }

    /// Every data block is free, part of a file, or becomes one of them.
    fn check_blocks(&self) -> Result<(), VolumeViolation> {
        let layout = self.superblock().layout;
        let mut runs: Vec<_> = self.allocator.iter().chain(self.log.pending_frees()).collect();
        runs.extend(self.tree.iter().flat_map(|(_, node)| node.extents.iter()).map(|e| e.run()));
        runs.extend(self.transfers.purposes().filter_map(|purpose| match purpose {
            TransferPurpose::Discard(blocks) => Some(*blocks),
            TransferPurpose::Writeback(run) => run.allocated.map(|units| units.run()),
            _ => None,
        }));
        runs.sort_unstable();
        let mut at = layout.data();
        for run in runs {
            require_eq!(
                Allocator,
                "every data block has one owner",
                format_args!("block {at}"),
                at,
                run.first_block
            );
            at = run.end_block();
        }
        require_eq!(
            Allocator,
            "every data block has one owner",
            format_args!("block {at}"),
            layout.data_end(),
            at
        );
        Ok(())
    }
}
