//! [`Tag`] and [`TagSet`]: which commands of a hardware queue are under way, and whose they are.
//!
//! A tag is the command's identifier on the wire and its index in every table of the host, so a
//! completion finds its command without a search (SYSTOR'13 section 3.2.3: the block layer's tag
//! *is* the driver's). Guarantee: a tag goes round free → taken → bound → taken → free, and an
//! operation that is out of turn is a [`TagError`] and changes nothing.

use std::any::Any;

use clock::Nanos;

/// The name of a command on its hardware queue: its command identifier.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct Tag(pub u16);

/// Where a tag is on its way round.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TagState {
    /// Nobody's.
    #[default]
    Free,
    /// Somebody's, without a command.
    Taken,
    /// Bound to a command: the device's, from issue to completion.
    Bound,
}

/// An operation on a tag that is not in the state for it: a command that completes twice or was
/// never issued, or a tag that the queue does not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TagError {
    /// The queue has no such tag.
    #[error("tag {} is not one of the queue's {count}", .tag.0)]
    OutOfRange {
        /// The tag.
        tag: Tag,
        /// Tags of the queue.
        count: u16,
    },
    /// The tag is in another state.
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
    /// The name that its owner bound it under.
    pub user: u64,
    /// When it was bound.
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
    /// Free tags; the top is at `free_count - 1`. Last in first out keeps the slots in use few.
    free: Box<[Tag]>,
    free_count: u16,
    bound: u16,
}

impl TagSet {
    /// `count` free tags.
    pub fn new(count: u16) -> TagSet {
        TagSet {
            entries: vec![TagEntry::default(); usize::from(count)].into(),
            free: (0..count).rev().map(Tag).collect(),
            free_count: count,
            bound: 0,
        }
    }

    /// All tags.
    #[inline]
    pub fn count(&self) -> u16 {
        self.entries.len() as u16
    }

    /// Tags that are free.
    #[inline]
    pub fn free(&self) -> u16 {
        self.free_count
    }

    /// Tags bound to a command.
    #[inline]
    pub fn bound(&self) -> u16 {
        self.bound
    }

    /// The tag that [`take`](TagSet::take) would take.
    #[inline]
    pub fn peek(&self) -> Option<Tag> {
        let top = usize::from(self.free_count).checked_sub(1)?;
        self.free.get(top).copied()
    }

    /// Takes a free tag.
    #[inline]
    pub fn take(&mut self) -> Option<Tag> {
        let tag = self.peek()?;
        self.free_count -= 1;
        self.entries.get_mut(usize::from(tag.0))?.state = TagState::Taken;
        Some(tag)
    }

    /// Binds a taken tag to the command that its owner calls `user`, at `now`.
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

    /// Detaches the command of a bound tag, which stays taken.
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

    /// Gives a taken tag back.
    ///
    /// # Errors
    /// [`TagError`]
    #[inline]
    pub fn release(&mut self, tag: Tag) -> Result<(), TagError> {
        self.entry_mut(tag, TagState::Taken)?.state = TagState::Free;
        // As many tags are free as have been given back, so there is room for this one.
        if let Some(top) = self.free.get_mut(usize::from(self.free_count)) {
            *top = tag;
            self.free_count += 1;
        }
        Ok(())
    }

    /// Takes a free tag and binds it at once; `None` if all are in use.
    #[inline]
    pub fn take_bound(&mut self, user: u64, now: Nanos) -> Option<Tag> {
        let tag = self.peek()?;
        *self.entries.get_mut(usize::from(tag.0))? =
            TagEntry { user, bound_at: now, state: TagState::Bound };
        self.free_count -= 1;
        self.bound += 1;
        Some(tag)
    }

    /// Detaches the command of a bound tag and gives the tag back: [`detach`](TagSet::detach) and
    /// [`release`](TagSet::release) in one.
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

    /// Shows `look` the memory behind this struct that taking, binding, detaching or releasing `tag`
    /// writes to.
    pub fn report_cache_lines(&self, tag: Tag, look: &mut dyn FnMut(&dyn Any)) {
        if let Some(slot) = self.entries.get(usize::from(tag.0)) {
            look(slot);
        }
        if let Some(top) = self.free.get(usize::from(self.free_count)) {
            look(top);
        }
    }

    /// A tag's state; `None` if the queue has no such tag.
    #[inline]
    pub fn state(&self, tag: Tag) -> Option<TagState> {
        self.entries.get(usize::from(tag.0)).map(|slot| slot.state)
    }

    /// The bound tags, lowest first, and when they were bound.
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
