//! Refresh: lines whose data is relocated for another reason than space. The data is hard to read,
//! a chunk has gone offline, or a chunk with little wear is to take its share of the erases. The
//! host is responsible for the health of the flash [LightNVM17 §4.1, §4.2.3].
//!
//! Guarantees:
//! - One line at a time, after those with a failed program, and only with free space for all of it
//!   above the reserves of the host and of garbage collection: a refresh never makes a request wait
//!   for space.
//! - While no space is needed, one write unit is in flight at a time: at most one parallel unit's
//!   worth of programs. While space is needed, at most one victim in [`VICTIMS_PER_REFRESH`].
//! - An open line is closed first (see `ftl::pipeline::health::finish_line`).
//! - A chunk that has [gone offline](crate::Ftl::chunk_offline) is never used again. Its units in
//!   the write buffer are re-dispatched, and no flush completes before; readable sectors are
//!   relocated; the rest becomes poison, sector by sector.
//! - Static wear leveling relocates a line that was closed at least as many closings ago as there
//!   are lines, to the free chunks with the most wear. It does so for at most one in
//!   [`LINES_PER_WL_CHECK`] reclaimed lines. The data is not mixed with other data there, which
//!   would cause repeated relocation.

use crate::check::{Subject, Violation, require};
use crate::env::Env;
use crate::ids::{LineId, ToIndex};
use crate::space::lines::{LineState, LineTable};
use nvme::PuId;
use serde::{Deserialize, Serialize};

/// Number of victims between two refreshes while space is needed.
const VICTIMS_PER_REFRESH: u32 = 4;

/// Number of reclaimed lines between two searches for cold lines on chunks with little wear.
const LINES_PER_WL_CHECK: u64 = 8;

/// The line being refreshed, and the parallel units with read errors.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Health {
    /// The line being refreshed, until all of it is durable elsewhere.
    line: Option<LineId>,
    /// Whether the line is relocated for static wear leveling.
    is_static_wl: bool,
    /// Other victims since the last refresh.
    victims_since: u32,
    /// Number of reclaimed lines at which cold lines are searched next.
    wl_check_at: u64,
    /// By parallel unit, whether a read there failed.
    pus_with_read_errors: Vec<bool>,
}

impl Health {
    /// Creates the state of flash without errors.
    pub(crate) fn new(env: &Env) -> Health {
        Health {
            line: None,
            is_static_wl: false,
            victims_since: 0,
            wl_check_at: 0,
            pus_with_read_errors: vec![false; env.geometry.pus.index()],
        }
    }

    /// Whether a line is being refreshed.
    pub(crate) fn is_refreshing_any(&self) -> bool {
        self.line.is_some()
    }

    /// Whether this line is being refreshed.
    pub(crate) fn is_refreshing(&self, line: LineId) -> bool {
        self.line == Some(line)
    }

    /// Returns the line that is relocated for static wear leveling.
    pub(crate) fn static_wl_line(&self) -> Option<LineId> {
        self.line.filter(|_| self.is_static_wl)
    }

    /// Begins the refresh of a line.
    pub(crate) fn begin_refresh(&mut self, line: LineId, is_static_wl: bool) {
        (self.line, self.is_static_wl, self.victims_since) = (Some(line), is_static_wl, 0);
    }

    /// Records that all data of a line is durable elsewhere.
    pub(crate) fn on_relocated(&mut self, line: LineId) {
        self.line = self.line.filter(|l| *l != line);
    }

    /// Returns whether a refresh may begin after the other victims; `collects` says whether space is
    /// needed.
    pub(crate) fn is_turn(&self, collects: bool) -> bool {
        self.line.is_none() && (!collects || self.victims_since >= VICTIMS_PER_REFRESH)
    }

    /// Counts a victim that is reclaimed for its space.
    pub(crate) fn count_victim(&mut self) {
        self.victims_since = self.victims_since.saturating_add(1);
    }

    /// Returns whether a search for cold lines is due after `reclaimed` lines.
    #[inline]
    pub(crate) fn is_wl_check_due(&self, env: &Env, reclaimed: u64) -> bool {
        env.config.static_wear_leveling > 0 && reclaimed >= self.wl_check_at
    }

    /// Postpones the next search for cold lines.
    pub(crate) fn defer_wl_check(&mut self, reclaimed: u64) {
        self.wl_check_at = reclaimed + LINES_PER_WL_CHECK;
    }

    /// Records a read error on a parallel unit. Returns whether it is the first one there.
    pub(crate) fn record_read_error(&mut self, pu: PuId) -> bool {
        !std::mem::replace(&mut self.pus_with_read_errors[pu.index()], true)
    }

    /// Checks bad chunks and the line being refreshed, against the lines.
    pub(crate) fn check_invariants(&self, env: &Env, lines: &LineTable) -> Result<(), Violation> {
        for chunk in env.geometry.chunks() {
            let (subject, c) = (Subject::Chunk(chunk), lines.chunk(chunk));
            require!(
                c.bad || !c.offline,
                Health,
                "an offline chunk is bad",
                subject,
                "bad",
                "good"
            );
            let pu = env.geometry.pu_of(chunk).index();
            require!(
                !c.had_read_error || self.pus_with_read_errors[pu],
                Health,
                "a chunk with read errors is on a parallel unit with read errors",
                subject,
                true,
                false
            );
        }
        if let Some(line) = self.line {
            let state = lines.line(line).state;
            require!(
                state != LineState::Free,
                Health,
                "the line being refreshed is in use",
                Subject::Line(line),
                "in use",
                format_args!("{state:?}")
            );
        }
        for (id, line) in lines.iter() {
            require!(
                !line.refresh_requested
                    || line.state != LineState::Closed
                    || lines.is_refresh_queued(id),
                Health,
                "a closed line to be refreshed is queued",
                Subject::Line(id),
                "queued",
                "not queued"
            );
        }
        Ok(())
    }
}
