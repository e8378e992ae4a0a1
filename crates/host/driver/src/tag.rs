//! [`Tag`] and [`TagSet`]: the in-flight commands of a hardware queue and their owners.
//!
//! A tag is the command identifier and the index in every table of the host, so a completion finds
//! its command without a search. The block layer uses the driver's tag ([SYSTOR13 §3.2.3]).
//!
//! Invariant: a tag passes through the states free → taken → bound → taken → free. An operation in
//! the wrong state returns [`TagError`] and changes nothing.

use std::any::Any;

use time::Nanos;

/// The identifier of a command on its hardware queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct Tag(pub u16);

/// The state of a tag.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TagState {
    /// Not allocated.
    #[default]
    Free,
    /// Allocated, without a command.
    Taken,
    /// Bound to a command, which the device has from issue to completion.
    Bound,
}

/// An operation on a tag in the wrong state: a command completed twice or was never issued, or the
/// queue does not have the tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TagError {
    /// The queue has no such tag.
    #[error("tag {} is not one of the queue's {count}", .tag.0)]
    OutOfRange {
        /// The tag.
        tag: Tag,
        /// Number of tags of the queue.
        count: u16,
    },
    /// The tag is in the wrong state.
    #[error("tag {} is {found:?}, not {wanted:?}", .tag.0)]
    State {
        /// The tag.
        tag: Tag,
        /// Its state.
        found: TagState,
        /// The state that the operation needs.
        wanted: TagState,
    },
}

/// A command that was detached from its tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Detached {
    /// The owner's tag of the command.
    pub user: u64,
    /// Time at which the command was bound.
    pub bound_at: Nanos,
}

#[derive(Clone, Copy, Debug, Default)]
struct TagEntry {
    user: u64,
    bound_at: Nanos,
    state: TagState,
}

/// The tags of one hardware queue.
#[derive(Debug)]
pub struct TagSet {
    entries: Box<[TagEntry]>,
    /// Stack of free tags; the top is at `free_count - 1`. LIFO order keeps the number of slots in
    /// use small.
    free: Box<[Tag]>,
    free_count: u16,
    bound: u16,
}

impl TagSet {
    /// Creates a set of `count` free tags.
    pub fn new(count: u16) -> TagSet {
        TagSet {
            entries: vec![TagEntry::default(); usize::from(count)].into(),
            free: (0..count).rev().map(Tag).collect(),
            free_count: count,
            bound: 0,
        }
    }

    /// Returns the total number of tags.
    #[inline]
    pub fn count(&self) -> u16 {
        self.entries.len() as u16
    }

    /// Returns the number of free tags.
    #[inline]
    pub fn free(&self) -> u16 {
        self.free_count
    }

    /// Returns the number of tags bound to a command.
    #[inline]
    pub fn bound(&self) -> u16 {
        self.bound
    }

    /// Returns the tag that [`take`](TagSet::take) will return.
    #[inline]
    pub fn peek(&self) -> Option<Tag> {
        let top = usize::from(self.free_count).checked_sub(1)?;
        self.free.get(top).copied()
    }

    /// Allocates a free tag.
    #[inline]
    pub fn take(&mut self) -> Option<Tag> {
        let tag = self.peek()?;
        self.free_count -= 1;
        self.entries.get_mut(usize::from(tag.0))?.state = TagState::Taken;
        Some(tag)
    }

    /// Binds an allocated tag to the command `user`, at `now`.
    ///
    /// # Errors
    /// [`TagError`]
    #[inline]
    pub fn bind(&mut self, tag: Tag, user: u64, now: Nanos) -> Result<(), TagError> {
        let slot = self.entry_mut(tag, TagState::Taken)?;
        *slot = TagEntry { user, bound_at: now, state: TagState::Bound };
        self.bound += 1;
        Ok(())
    }

    /// Detaches the command of a bound tag. The tag stays allocated.
    ///
    /// # Errors
    /// [`TagError`]
    #[inline]
    pub fn detach(&mut self, tag: Tag) -> Result<Detached, TagError> {
        let slot = self.entry_mut(tag, TagState::Bound)?;
        slot.state = TagState::Taken;
        let detached = Detached { user: slot.user, bound_at: slot.bound_at };
        self.bound -= 1;
        Ok(detached)
    }

    /// Frees an allocated tag.
    ///
    /// # Errors
    /// [`TagError`]
    #[inline]
    pub fn release(&mut self, tag: Tag) -> Result<(), TagError> {
        self.entry_mut(tag, TagState::Taken)?.state = TagState::Free;
        // This tag was not on the stack, so the stack has room for it.
        if let Some(top) = self.free.get_mut(usize::from(self.free_count)) {
            *top = tag;
            self.free_count += 1;
        }
        Ok(())
    }

    /// Allocates a free tag and binds it; `None` if all are in use.
    #[inline]
    pub fn take_bound(&mut self, user: u64, now: Nanos) -> Option<Tag> {
        let tag = self.peek()?;
        *self.entries.get_mut(usize::from(tag.0))? =
            TagEntry { user, bound_at: now, state: TagState::Bound };
        self.free_count -= 1;
        self.bound += 1;
        Some(tag)
    }

    /// Detaches the command of a bound tag and frees the tag: [`detach`](TagSet::detach) and
    /// [`release`](TagSet::release) in one step.
    ///
    /// # Errors
    /// [`TagError`]
    #[inline]
    pub fn free_bound(&mut self, tag: Tag) -> Result<Detached, TagError> {
        let slot = self.entry_mut(tag, TagState::Bound)?;
        slot.state = TagState::Free;
        let detached = Detached { user: slot.user, bound_at: slot.bound_at };
        self.bound -= 1;
        // As in `release`.
        if let Some(top) = self.free.get_mut(usize::from(self.free_count)) {
            *top = tag;
            self.free_count += 1;
        }
        Ok(detached)
    }

    /// Calls `look` with the memory behind this struct that allocating, binding, detaching or
    /// freeing `tag` writes.
    pub fn report_cache_lines(&self, tag: Tag, look: &mut dyn FnMut(&dyn Any)) {
        if let Some(slot) = self.entries.get(usize::from(tag.0)) {
            look(slot);
        }
        if let Some(top) = self.free.get(usize::from(self.free_count)) {
            look(top);
        }
    }

    /// Returns a tag's state; `None` if the queue has no such tag.
    #[inline]
    pub fn state(&self, tag: Tag) -> Option<TagState> {
        self.entries.get(usize::from(tag.0)).map(|slot| slot.state)
    }

    /// Returns the bound tags with the times at which they were bound, lowest tag first.
    pub fn bound_tags(&self) -> impl Iterator<Item = (Tag, Nanos)> {
        self.entries
            .iter()
            .enumerate()
            .filter(|(_, slot)| slot.state == TagState::Bound)
            .map(|(i, slot)| (Tag(i as u16), slot.bound_at))
    }

    #[inline]
    fn entry_mut(&mut self, tag: Tag, wanted: TagState) -> Result<&mut TagEntry, TagError> {
        let count = self.count();
        match self.entries.get_mut(usize::from(tag.0)) {
            Some(slot) if slot.state == wanted => Ok(slot),
            Some(slot) => Err(TagError::State { tag, found: slot.state, wanted }),
            None => Err(TagError::OutOfRange { tag, count }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tag_goes_round_in_order_only() {
        let mut tags = TagSet::new(3);
        let taken: Vec<Tag> = (0..3).map(|_| tags.take().unwrap()).collect();
        assert_eq!(taken, [Tag(0), Tag(1), Tag(2)]);
        assert_eq!((tags.take(), tags.peek(), tags.free()), (None, None, 0));
        let not = |found, wanted| TagError::State { tag: Tag(1), found, wanted };
        assert_eq!(tags.detach(Tag(1)), Err(not(TagState::Taken, TagState::Bound)), "not issued");
        tags.bind(Tag(1), 11, Nanos(5)).unwrap();
        assert_eq!(tags.bind(Tag(1), 12, Nanos(6)), Err(not(TagState::Bound, TagState::Taken)));
        assert_eq!(tags.release(Tag(1)), Err(not(TagState::Bound, TagState::Taken)));
        assert_eq!(tags.bound_tags().collect::<Vec<_>>(), [(Tag(1), Nanos(5))]);
        assert_eq!(tags.detach(Tag(1)), Ok(Detached { user: 11, bound_at: Nanos(5) }));
        assert_eq!(tags.detach(Tag(1)), Err(not(TagState::Taken, TagState::Bound)), "twice");
        tags.release(Tag(1)).unwrap();
        assert_eq!(tags.release(Tag(1)), Err(not(TagState::Free, TagState::Taken)));
        assert_eq!(tags.release(Tag(3)), Err(TagError::OutOfRange { tag: Tag(3), count: 3 }));
        assert_eq!((tags.peek(), tags.free(), tags.bound()), (Some(Tag(1)), 1, 0));
        assert_eq!(tags.state(Tag(1)), Some(TagState::Free));
        assert_eq!(tags.state(Tag(9)), None);
    }
    #[test]
    fn taking_and_binding_at_once_is_both() {
        let (mut one, mut two) = (TagSet::new(2), TagSet::new(2));
        for user in [7, 8] {
            let tag = one.take().unwrap();
            one.bind(tag, user, Nanos(user)).unwrap();
            assert_eq!(two.take_bound(user, Nanos(user)), Some(tag));
        }
        assert_eq!(two.take_bound(9, Nanos(9)), None);
        for tag in [Tag(0), Tag(1), Tag(0), Tag(5)] {
            let ended = one.detach(tag);
            if ended.is_ok() {
                one.release(tag).unwrap();
            }
            assert_eq!(two.free_bound(tag), ended);
            assert_eq!(
                (two.peek(), two.free(), two.bound()),
                (one.peek(), one.free(), one.bound())
            );
        }
    }
}
