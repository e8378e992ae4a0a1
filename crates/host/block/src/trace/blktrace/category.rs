//! [`Category`]: the kinds of request and event of a record.
//!
//! The values are those of `enum blktrace_cat` in `linux/blktrace_api.h`. `docs/format/blktrace.md`
//! says which bits a kernel sets for which operation.

use crate::Op;
use crate::trace::Action;

/// The kinds of request and event of a record, one bit each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Category(pub u16);

impl Category {
    /// A read, or no request.
    pub const READ: Category = Category(1 << 0);
    /// An operation that changes the device.
    pub const WRITE: Category = Category(1 << 1);
    /// A flush, or a write with a preceding flush.
    pub const FLUSH: Category = Category(1 << 2);
    /// A request that a task waits for.
    pub const SYNC: Category = Category(1 << 3);
    /// A queueing event.
    pub const QUEUE: Category = Category(1 << 4);
    /// A requeue event.
    pub const REQUEUE: Category = Category(1 << 5);
    /// An issue event.
    pub const ISSUE: Category = Category(1 << 6);
    /// A completion event.
    pub const COMPLETE: Category = Category(1 << 7);
    /// An event of a request, rather than of the caller's submission.
    pub const FS: Category = Category(1 << 8);
    /// A command that passes through the block layer: it has no sectors.
    pub const PC: Category = Category(1 << 9);
    /// A message to the reader of the trace instead of an event.
    pub const NOTIFY: Category = Category(1 << 10);
    /// A discard.
    pub const DISCARD: Category = Category(1 << 13);
    /// Force unit access.
    pub const FUA: Category = Category(1 << 15);

    /// Returns the union of both categories.
    pub const fn union(self, other: Category) -> Category {
        Category(self.0 | other.0)
    }

    /// Returns whether all bits of `other` are set.
    pub const fn contains(self, other: Category) -> bool {
        self.0 & other.0 == other.0
    }

    /// Returns the category of an operation.
    ///
    /// Write Zeroes is a write, as in the kernel. An extent query has no data, so it passes
    /// through.
    fn from_op(op: Op, fua: bool) -> Category {
        let kind = match op {
            Op::Read => Category::READ,
            Op::Write | Op::WriteZeroes => Category::WRITE,
            Op::Flush => Category::WRITE.union(Category::FLUSH).union(Category::SYNC),
            Op::Discard => Category::WRITE.union(Category::DISCARD),
            Op::Extents => Category::READ.union(Category::PC),
        };
        if fua { kind.union(Category::FUA).union(Category::SYNC) } else { kind }
    }

    /// Returns all categories of an event of the block layer. Events from the insertion on are
    /// events of requests. Plugging concerns no request and counts as a read.
    pub(crate) fn from_event(action: Action, op: Op, fua: bool) -> Category {
        let request = Category::from_op(op, fua);
        let fs = if request.contains(Category::PC) { Category::default() } else { Category::FS };
        match action {
            Action::Queued
            | Action::GotRequest
            | Action::Sleep
            | Action::BackMerge
            | Action::FrontMerge => request.union(Category::QUEUE),
            Action::Plug | Action::Unplug => Category::READ.union(Category::QUEUE),
            Action::Split => request,
            Action::Inserted => request.union(Category::QUEUE).union(fs),
            Action::Issued => request.union(Category::ISSUE).union(fs),
            Action::Requeued => request.union(Category::REQUEUE).union(fs),
            Action::Completed => request.union(Category::COMPLETE).union(fs),
        }
    }
}
