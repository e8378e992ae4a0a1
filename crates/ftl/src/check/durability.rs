//! Invariants of barriers, trims and checkpoints.

use super::{Subject, Violation, require, require_eq};
use crate::Ftl;
use crate::durability::flush::BarrierOwner;
use crate::ftl::HOST;
use crate::space::lines::LineState;

impl Ftl {
    pub(super) fn check_durability(&self) -> Result<(), Violation> {
        let (mut host, mut position) = (0, 0);
        let head = self.rings[HOST].head_pos();
        let mut waits = vec![0u32; self.lines.lines.len()];
        for (i, barrier) in (0..).zip(&self.barriers) {
            let subject = Subject::Index(i);
            require!(
                (position..=head).contains(&barrier.position),
                Durability,
                "barriers are in order of their positions",
                subject,
                format_args!("{position} to {head}"),
                barrier.position
            );
            require!(
                barrier.trim_epoch <= self.trim_epoch,
                Durability,
                "a barrier waits for trims that have been",
                subject,
                format_args!("at most {}", self.trim_epoch),
                barrier.trim_epoch
            );
            position = barrier.position;
            match barrier.owner {
                BarrierOwner::Host(_) => host += 1,
                BarrierOwner::Erase(line) => waits[line as usize] += 1,
            }
        }
        require_eq!(
            Durability,
            "requests that wait for durability",
            Subject::Part,
            host + self.deferred_flushes.len() as u32,
            self.host_barriers
        );
        for (id, (line, &found)) in (0..).zip(self.lines.lines.iter().zip(&waits)) {
            let drained = line.state == LineState::Draining
                && line.relocations_in_flight == 0
                && line.erasing == 0;
            require_eq!(
                Durability,
                "a drained line waits to be erased",
                Subject::Line(id),
                u32::from(drained),
                found
            );
        }
        require!(
            self.map_pages_pos <= head,
            Durability,
            "translation pages are in the write buffer",
            Subject::Part,
            format_args!("at most {head}"),
            self.map_pages_pos
        );
        self.check_trims()?;
        self.checkpoint.check(self.sequencer.low_watermark())?;
        if let Some(map) = &self.device_l2p {
            map.check(self.sequencer.next_seq())?;
        }
        Ok(())
    }

    /// The pages with trims that no flush has written.
    fn check_trims(&self) -> Result<(), Violation> {
        let mut listed = vec![0u32; self.trim_page_epoch.len()];
        let cursor = self.device_l2p.as_ref().and_then(|m| m.cursor_page());
        for &page in self.trim_dirty_pages.iter().chain(&self.trim_redirtied_pages).chain(&cursor) {
            listed[page as usize] += 1;
        }
        for (page, (&at, &found)) in (0..).zip(self.trim_page_epoch.iter().zip(&listed)) {
            require_eq!(
                Durability,
                "a page with trims is listed",
                Subject::Page(page),
                u32::from(at != 0),
                found
            );
        }
        Ok(())
    }
}
