//! Invariants of the cache: those of each part, and those between parts.

use std::collections::BTreeSet;

use block::BlockDevice;

use crate::cache::Cache;
use crate::cache::frames::FrameState;
use crate::cache::invariants::{CacheViolation, require, require_eq};
use crate::cache::ops::OpPurpose;

impl<D: BlockDevice> Cache<D> {
    /// Checks the invariants of every part of the cache. May be called between any two calls of its
    /// methods; takes time proportional to the number of frames.
    ///
    /// # Errors
    /// The first invariant that does not hold.
    pub fn check_invariants(&self) -> Result<(), CacheViolation> {
        self.blocks.check_invariants()?;
        self.waiters.check_invariants(&self.blocks.frames)?;
        self.ops.check_invariants()?;
        self.writeback.check_invariants(&self.blocks.frames)?;
        self.check_bypass()?;
        self.check_transfers()?;
        let on_device = self.ops.iter().filter_map(|op| match op.purpose {
            OpPurpose::Bypass { request } => Some(request),
            OpPurpose::Fill | OpPurpose::Write => None,
        });
        let waiting = self.waiters.waiting_parts(&self.blocks.frames);
        let parts = waiting.chain(on_device).chain(self.writeback.flushes());
        self.requests.check_invariants(parts.chain(self.bypass.waiting()))
    }

    fn check_bypass(&self) -> Result<(), CacheViolation> {
        self.bypass.check_invariants()?;
        let Some(sent) = self.bypass.sent() else { return Ok(()) };
        let purposes: Vec<OpPurpose> = self.ops.iter().map(|op| op.purpose).collect();
        require_eq!(
            Bypass,
            "a bypass request is alone on the device",
            format_args!("{sent:?}"),
            vec![OpPurpose::Bypass { request: sent }],
            purposes
        );
        Ok(())
    }

    /// Every frame that is being filled or written has one transfer.
    fn check_transfers(&self) -> Result<(), CacheViolation> {
        let (mut filling, mut writing) = (BTreeSet::new(), BTreeSet::new());
        let in_flight = self.ops.iter().flat_map(|op| op.blocks().map(|at| (op.purpose, at)));
        let retries = self.writeback.single_retries().map(|retry| (retry.purpose, retry.block));
        let to_fill = self.ops.to_fill().map(|at| (OpPurpose::Fill, *at));
        for (purpose, at) in in_flight.chain(retries).chain(to_fill) {
            let frames = if purpose == OpPurpose::Fill { &mut filling } else { &mut writing };
            let is_its_block = self.blocks.frames.get(at.frame).block == at.block;
            require!(
                frames.insert(at.frame) && is_its_block,
                Commands,
                "a frame has one transfer, for its block",
                format_args!("frame {}", at.frame),
                self.blocks.frames.get(at.frame).block,
                at.block
            );
        }
        for frame in 0..self.blocks.frames.count() {
            let state = self.blocks.frames.get(frame).state;
            let found = (filling.contains(&frame), writing.contains(&frame));
            let expected = (state == FrameState::Filling, state == FrameState::Writing);
            let subject = format_args!("frame {frame}");
            require_eq!(Commands, "transfers of a frame", subject, expected, found);
        }
        let writes = self.ops.iter().filter(|op| op.purpose == OpPurpose::Write).count();
        require_eq!(
            Writeback,
            "write commands in flight",
            "the device",
            writes,
            self.writeback.write_commands() as usize
        );
        Ok(())
    }
}
