//! [`Pu`]: the state of a parallel unit: its queues, its registers and the running array operation.

use std::collections::VecDeque;

use clock::Nanos;

use crate::operation::{NandOpKind, PuOp};

/// The index that stands for no operation.
pub(crate) const NO_PU_OP: u32 = u32::MAX;

/// The phase of the operation that occupies the array.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ArrayPhase {
    /// The array operation is running.
    Array,
    /// The channel drains the page register, which is in use.
    DataOut,
    /// The data is in the page register, and waits for the cache register to be drained.
    InPageRegister,
    /// The operation is being suspended.
    Suspending,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct ActiveOp {
    pub(crate) pu_op: u32,
    pub(crate) phase: ArrayPhase,
}

#[derive(Clone, Debug)]
pub(crate) struct Pu {
    /// Waiting operations, in order of arrival.
    pub(crate) queue: VecDeque<u32>,
    /// Waiting reads, if reads have priority.
    pub(crate) reads: VecDeque<u32>,
    /// Reads in flight for host commands.
    pub(crate) host_reads: u32,
    pub(crate) active: Option<ActiveOp>,
    /// The program whose data is in the cache register, or is being transferred to it.
    pub(crate) staged: u32,
    pub(crate) staged_ready: bool,
    /// Sectors of its data that remain to be transferred.
    pub(crate) staging: u32,
    /// The read whose data is in the cache register, being transferred out.
    pub(crate) outgoing: u32,
    /// Sectors of outgoing read data, in either register, that remain to be transferred.
    pub(crate) sending: u8,
    /// The suspended operation, and its remaining time.
    pub(crate) suspended: Option<(u32, Nanos)>,
    /// Counts suspensions: an end event of an earlier epoch is stale.
    pub(crate) epoch: u32,
    /// Start of the array operation, or its last resume.
    pub(crate) array_start: Nanos,
    /// End of the array operation.
    pub(crate) array_end: Nanos,
    /// Chunk, page and planes in the page register, and the read retries that it took.
    page_register: Option<(u32, u32, u64, u16)>,
    pub(crate) register_hits: u64,
    /// Time spent on reads (transfers from the page register included), programs and erases.
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

    /// Whether the next operation without priority may start while read data is transferred out: a
    /// read may, and a program if it needs no register that the read data occupies (`programs`).
    pub(crate) fn can_start_during_transfer(&self, parts: &[PuOp], programs: bool) -> bool {
        let what = |part: u32| parts[part as usize].kind;
        let next = match self.suspended {
            Some((part, _)) => Some(what(part)),
            None if self.staged != NO_PU_OP => Some(NandOpKind::Program),
            None => self.queue.front().map(|part| what(*part)),
        };
        next == Some(NandOpKind::Read) || programs && next == Some(NandOpKind::Program)
    }

    /// Returns the read retries of a page if the page register holds it.
    #[inline]
    pub(crate) fn find_in_register(&self, chunk: u32, page: u32, planes: u64) -> Option<u16> {
        match self.page_register {
            Some((c, p, loaded, retries)) if c == chunk && p == page && planes & !loaded == 0 => {
                Some(retries)
            }
            _ => None,
        }
    }

    /// Records that the page register holds a page.
    #[inline]
    pub(crate) fn load_register(&mut self, chunk: u32, page: u32, planes: u64, retries: u16) {
        self.page_register = Some((chunk, page, planes, retries));
    }

    /// Records that the page register was overwritten.
    #[inline]
    pub(crate) fn invalidate_register(&mut self) {
        self.page_register = None;
    }

    /// Discards everything but the counters, at a power cut.
    pub(crate) fn power_cut(&mut self) {
        *self = Pu { busy: self.busy, register_hits: self.register_hits, ..Pu::default() };
    }

    /// Returns the number of operations that wait or run.
    pub(crate) fn depth(&self) -> usize {
        self.queue.len()
            + self.reads.len()
            + usize::from(self.active.is_some())
            + usize::from(self.staged != NO_PU_OP)
            + usize::from(self.outgoing != NO_PU_OP)
            + usize::from(self.suspended.is_some())
    }
}
