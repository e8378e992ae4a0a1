//! [`Pu`]: the state of a parallel unit: its queues, its registers and the running array operation.

use std::collections::VecDeque;

use collections::Slab;
use serde::{Deserialize, Serialize};
use time::Nanos;

use crate::check::{DriveCheck, DrivePart, DriveViolation};
use crate::nand_array::operation::{NandOpKind, PuOp};

/// The index that stands for no operation.
pub(crate) const NO_PU_OP: u32 = u32::MAX;

/// The phase of the operation that occupies the array.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
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

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct ActiveOp {
    pub(crate) pu_op: u32,
    pub(crate) phase: ArrayPhase,
}

/// The operation that occupies the array, and the one that was suspended for it.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct ArrayState {
    pub(crate) active: Option<ActiveOp>,
    /// The suspended operation.
    pub(crate) suspended: Option<SuspendedOp>,
    /// Counts suspensions: an end event of an earlier epoch is stale.
    pub(crate) epoch: u32,
    /// Start of the array operation, or its last resume.
    pub(crate) start: Nanos,
    /// End of the array operation.
    pub(crate) end: Nanos,
}

/// A suspended operation.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct SuspendedOp {
    pub(crate) pu_op: u32,
    /// Time for which the array is still to be occupied.
    pub(crate) remaining: Nanos,
}

/// The registers that the channel fills and drains.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct CacheRegister {
    /// The program whose data is in the register, or is being transferred to it.
    pub(crate) staged: u32,
    pub(crate) staged_ready: bool,
    /// Sectors of its data that remain to be transferred.
    pub(crate) staging: u32,
    /// The read whose data is in the register, being transferred out.
    pub(crate) outgoing: u32,
    /// Sectors of outgoing read data, in either register, that remain to be transferred.
    pub(crate) sending: u8,
}

impl Default for CacheRegister {
    fn default() -> CacheRegister {
        CacheRegister {
            staged: NO_PU_OP,
            staged_ready: false,
            staging: 0,
            outgoing: NO_PU_OP,
            sending: 0,
        }
    }
}

/// A page in the page register.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct LoadedPage {
    chunk: u32,
    page: u32,
    planes: u64,
    /// Read retries that it took.
    retries: u16,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Pu {
    /// Waiting operations, in order of arrival.
    pub(crate) queue: VecDeque<u32>,
    /// Waiting reads, if reads have priority.
    pub(crate) reads: VecDeque<u32>,
    /// Reads in flight for host commands.
    pub(crate) host_reads: u32,
    pub(crate) array: ArrayState,
    pub(crate) cache: CacheRegister,
    page_register: Option<LoadedPage>,
    pub(crate) register_hits: u64,
    /// Time spent on reads (transfers from the page register included), programs and erases.
    pub(crate) busy: [Nanos; 3],
}

impl Pu {
    #[inline]
    pub(crate) fn add_busy(&mut self, what: NandOpKind, time: Nanos) {
        self.busy[what as usize] += time;
    }

    /// Whether no operation waits or is being executed.
    #[inline]
    pub(crate) fn is_idle(&self) -> bool {
        self.array.active.is_none()
            && self.array.suspended.is_none()
            && self.cache.staged == NO_PU_OP
            && self.cache.outgoing == NO_PU_OP
            && self.queue.is_empty()
            && self.reads.is_empty()
    }

    /// Whether the next operation without priority may start while read data is transferred out: a
    /// read may, and a program if it needs no register that the read data occupies (`programs`).
    pub(crate) fn can_start_during_transfer(&self, parts: &Slab<PuOp>, programs: bool) -> bool {
        let what = |part: u32| parts[part].kind;
        let next = match self.array.suspended {
            Some(suspended) => Some(what(suspended.pu_op)),
            None if self.cache.staged != NO_PU_OP => Some(NandOpKind::Program),
            None => self.queue.front().map(|part| what(*part)),
        };
        next == Some(NandOpKind::Read) || programs && next == Some(NandOpKind::Program)
    }

    /// Returns the read retries of a page if the page register holds it.
    #[inline]
    pub(crate) fn find_in_register(&self, chunk: u32, page: u32, planes: u64) -> Option<u16> {
        match self.page_register {
            Some(l) if l.chunk == chunk && l.page == page && planes & !l.planes == 0 => {
                Some(l.retries)
            }
            _ => None,
        }
    }

    /// Records that the page register holds a page.
    #[inline]
    pub(crate) fn load_register(&mut self, chunk: u32, page: u32, planes: u64, retries: u16) {
        self.page_register = Some(LoadedPage { chunk, page, planes, retries });
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

    /// Returns all operations of the parallel unit.
    pub(crate) fn pu_ops(&self) -> impl Iterator<Item = u32> {
        let registers = [self.cache.staged, self.cache.outgoing];
        let registers = registers.into_iter().filter(|op| *op != NO_PU_OP);
        // An operation that is being suspended is listed as suspended already.
        let active = self.array.active.filter(|a| a.phase != ArrayPhase::Suspending);
        let array = active.map(|a| a.pu_op).into_iter();
        let array = array.chain(self.array.suspended.map(|s| s.pu_op));
        self.queue.iter().chain(&self.reads).copied().chain(registers).chain(array)
    }

    /// Checks the registers; `pu` is the index of the parallel unit.
    ///
    /// # Errors
    /// The first violation.
    pub(crate) fn check_invariants(&self, pu: u32) -> Result<(), DriveViolation> {
        let CacheRegister { staged, staging, .. } = self.cache;
        let check = DriveCheck { part: DrivePart::NandArray, subject: "parallel unit", index: pu };
        check.require(
            staged != NO_PU_OP || staging == 0,
            "only a staged program has data",
            "0 sectors to transfer",
            staging,
        )?;
        let suspending = self.array.active.filter(|a| a.phase == ArrayPhase::Suspending);
        let suspended = self.array.suspended.map(|s| s.pu_op);
        check.require(
            suspending.is_none_or(|a| suspended == Some(a.pu_op)),
            "an operation that is being suspended is the suspended one",
            format_args!("{suspending:?}"),
            suspended,
        )?;
        check.require(
            self.array.start <= self.array.end,
            "an array operation ends after its start",
            "start before end",
            (self.array.start, self.array.end),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_operation_that_is_being_suspended_counts_once() {
        let mut pu = Pu::default();
        pu.array.active = Some(ActiveOp { pu_op: 3, phase: ArrayPhase::Suspending });
        pu.array.suspended = Some(SuspendedOp { pu_op: 3, remaining: Nanos(5) });
        assert!(pu.pu_ops().eq([3]));
        assert_eq!(pu.check_invariants(0), Ok(()));
        pu.array.suspended = None;
        let found = pu.check_invariants(0).expect_err("nothing is suspended");
        assert_eq!(found.invariant, "an operation that is being suspended is the suspended one");
    }
}
