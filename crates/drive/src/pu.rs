//! [`Pu`]: a parallel unit's queues, registers and what its array is doing.

use std::collections::VecDeque;

use clock::Nanos;

use crate::operation::{NandOpKind, PuOp};

/// No part.
pub(crate) const NO_PU_OP: u32 = u32::MAX;

/// Where the part that has the array is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ArrayPhase {
    /// In the array.
    Array,
    /// On its way out over the channel; the page register is in use.
    DataOut,
    /// In the page register, while what was read before is in the cache register.
    InPageRegister,
    /// Being interrupted.
    Suspending,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct ActiveOp {
    pub(crate) pu_op: u32,
    pub(crate) phase: ArrayPhase,
}

#[derive(Clone, Debug)]
pub(crate) struct Pu {
    /// Parts that wait, in order of arrival.
    pub(crate) queue: VecDeque<u32>,
    /// Reads that wait, if reads go first.
    pub(crate) reads: VecDeque<u32>,
    /// Reads under way for a command's data.
    pub(crate) host_reads: u32,
    pub(crate) active: Option<ActiveOp>,
    /// The program whose data is in the cache register, or on its way there.
    pub(crate) staged: u32,
    pub(crate) staged_ready: bool,
    /// Sectors of its data that have not been sent yet.
    pub(crate) staging: u32,
    /// The read whose data is in the cache register, on its way out.
    pub(crate) outgoing: u32,
    /// Sectors of what leaves, from either register, that have not been sent yet.
    pub(crate) sending: u8,
    /// The interrupted operation and the time it still needs.
    pub(crate) suspended: Option<(u32, Nanos)>,
    /// Counts interruptions: an end announced before one is void.
    pub(crate) epoch: u32,
    /// When the array operation began, or went on after an interruption.
    pub(crate) array_start: Nanos,
    /// When it ends.
    pub(crate) array_end: Nanos,
    /// Chunk and page in the page register, of which planes, and after how many repetitions.
    page_register: Option<(u32, u32, u64, u16)>,
    pub(crate) register_hits: u64,
    /// Time spent reading (transfers out of the page register included), programming, erasing.
    pub(crate) busy: [Nanos; 3],
}

impl Default for Pu {
    fn default() -> Pu {
        Pu {
            queue: VecDeque::new(),
            reads: VecDeque::new(),
            host_reads: 0,
            active: None,
            staged: NO_PU_OP,
            staged_ready: false,
            staging: 0,
            outgoing: NO_PU_OP,
            sending: 0,
            suspended: None,
            epoch: 0,
            array_start: Nanos::ZERO,
            array_end: Nanos::ZERO,
            page_register: None,
            register_hits: 0,
            busy: [Nanos::ZERO; 3],
        }
    }
}

impl Pu {
    #[inline]
    pub(crate) fn add_busy(&mut self, what: NandOpKind, time: Nanos) {
        self.busy[what as usize] += time;
    }

    /// Whether what is next to have the array, among those that do not go first, may have it while
    /// what has been read leaves: a read, and if that needs nothing of a program, a program.
    pub(crate) fn can_start_during_transfer(&self, parts: &[PuOp], programs: bool) -> bool {
        let what = |part: u32| parts[part as usize].kind;
        let next = match self.suspended {
            Some((part, _)) => Some(what(part)),
            None if self.staged != NO_PU_OP => Some(NandOpKind::Program),
            None => self.queue.front().map(|part| what(*part)),
        };
        next == Some(NandOpKind::Read) || programs && next == Some(NandOpKind::Program)
    }

    /// After how many repetitions a page was read into the page register, if it is there.
    #[inline]
    pub(crate) fn find_in_register(&self, chunk: u32, page: u32, planes: u64) -> Option<u16> {
        match self.page_register {
            Some((c, p, loaded, retries)) if c == chunk && p == page && planes & !loaded == 0 => {
                Some(retries)
            }
            _ => None,
        }
    }

    /// The page register is loaded with a page.
    #[inline]
    pub(crate) fn load_register(&mut self, chunk: u32, page: u32, planes: u64, retries: u16) {
        self.page_register = Some((chunk, page, planes, retries));
    }

    /// The page register has been used for something else.
    #[inline]
    pub(crate) fn invalidate_register(&mut self) {
        self.page_register = None;
    }

    /// Forgets everything but the counters.
    pub(crate) fn power_cut(&mut self) {
        *self = Pu { busy: self.busy, register_hits: self.register_hits, ..Pu::default() };
    }

    /// Parts waiting or running.
    pub(crate) fn depth(&self) -> usize {
        self.queue.len()
            + self.reads.len()
            + usize::from(self.active.is_some())
            + usize::from(self.staged != NO_PU_OP)
            + usize::from(self.outgoing != NO_PU_OP)
            + usize::from(self.suspended.is_some())
    }
}
