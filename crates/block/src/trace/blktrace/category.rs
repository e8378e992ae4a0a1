//! [`Category`]: which kinds of request and of event a record is of.
//!
//! Facts: `enum blktrace_cat` of `linux/blktrace_api.h`, and which bits a kernel sets for which
//! operation (`docs/format/blktrace.md`).

use crate::Op;
use crate::trace::Action;

/// A category: what kind of request and what kind of event, one bit each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Category(pub u16);

impl Category {
    /// Of a read, or of no request.
    pub const READ: Category = Category(1 << 0);
    /// Of anything that changes the device.
    pub const WRITE: Category = Category(1 << 1);
    /// Of a flush, or of a write with one before it.
    pub const FLUSH: Category = Category(1 << 2);
    /// Somebody waits for it.
    pub const SYNC: Category = Category(1 << 3);
    /// The event is one of queueing.
    pub const QUEUE: Category = Category(1 << 4);
    /// The event is a requeue.
    pub const REQUEUE: Category = Category(1 << 5);
    /// The event is an issue.
    pub const ISSUE: Category = Category(1 << 6);
    /// The event is a completion.
    pub const COMPLETE: Category = Category(1 << 7);
    /// The event is of a request, rather than of what the caller submitted.
    pub const FS: Category = Category(1 << 8);
    /// Of a command that passes the block layer through: no sectors.
    pub const PC: Category = Category(1 << 9);
    /// Not an event: a message to the reader.
    pub const NOTIFY: Category = Category(1 << 10);
    /// Of a discard.
    pub const DISCARD: Category = Category(1 << 13);
    /// With force unit access.
    pub const FUA: Category = Category(1 << 15);

    /// Both.
    pub const fn union(self, other: Category) -> Category {
        Category(self.0 | other.0)
    }

    /// Whether all bits of `other` are in it.
    pub const fn contains(self, other: Category) -> bool {
        self.0 & other.0 == other.0
    }

    /// What is asked of the device.
    ///
    /// Zeros are writes, as in the kernel. A query for extents has no data: it passes through.
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

    /// All categories of an event of the block layer. Events of requests, which begin with the
    /// insertion, are marked as such; plugging concerns no request and counts as a read.
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
