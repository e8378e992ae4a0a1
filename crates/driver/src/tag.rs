//! [`Tag`] and [`Tags`]: which commands of a queue are outstanding, and whose they are.
//!
//! A tag is the command's identifier on the wire and its index here, so a completion finds its
//! command without a search (thesis chapter 3; SYSTOR'13 section 4: tags generated once).
//! Guarantee: a tag is either free or outstanding, and each turn from free to outstanding is
//! followed by exactly one turn back.

/// The name of an outstanding command on its queue: its command identifier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct Tag(pub u16);

#[derive(Clone, Copy, Debug, Default)]
struct Slot {
    user: u64,
    outstanding: bool,
}

/// The tags of one queue.
#[derive(Debug)]
pub(crate) struct Tags {
    slots: Box<[Slot]>,
    /// Free tags; the top is at `free_count - 1`. Last in first out keeps the slots in use few.
    free: Box<[u16]>,
    free_count: u16,
}

impl Tags {
    /// `count` free tags.
    pub(crate) fn new(count: u16) -> Tags {
        Tags {
            slots: vec![Slot::default(); usize::from(count)].into(),
            free: (0..count).rev().collect(),
            free_count: count,
        }
    }

    /// All tags.
    pub(crate) fn count(&self) -> u16 {
        self.slots.len() as u16
    }

    /// Tags outstanding.
    #[inline]
    pub(crate) fn outstanding(&self) -> u16 {
        self.count() - self.free_count
    }

    /// The tag that [`take`](Tags::take) would take.
    #[inline]
    pub(crate) fn peek(&self) -> Option<Tag> {
        let top = usize::from(self.free_count).checked_sub(1)?;
        self.free.get(top).copied().map(Tag)
    }

    /// Makes a free tag outstanding.
    #[inline]
    pub(crate) fn take(&mut self, user: u64) -> Option<Tag> {
        let tag = self.peek()?;
        let slot = self.slots.get_mut(usize::from(tag.0))?;
        *slot = Slot { user, outstanding: true };
        self.free_count -= 1;
        Some(tag)
    }

    /// Makes an outstanding tag free and returns whose it was; `None` if it is not outstanding.
    #[inline]
    pub(crate) fn put(&mut self, tag: Tag) -> Option<u64> {
        let slot = self.slots.get_mut(usize::from(tag.0))?;
        if !slot.outstanding {
            return None;
        }
        slot.outstanding = false;
        // As many tags are free as have been put back, so there is room for this one.
        *self.free.get_mut(usize::from(self.free_count))? = tag.0;
        self.free_count += 1;
        Some(slot.user)
    }

    /// The lowest outstanding tag.
    pub(crate) fn first_outstanding(&self) -> Option<Tag> {
        self.slots.iter().position(|s| s.outstanding).map(|i| Tag(i as u16))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_tag_once() {
        let mut tags = Tags::new(3);
        let taken: Vec<Tag> = (10..13).map(|u| tags.take(u).unwrap()).collect();
        assert_eq!(taken, [Tag(0), Tag(1), Tag(2)]);
        assert_eq!((tags.take(13), tags.peek(), tags.outstanding()), (None, None, 3));
        assert_eq!(tags.put(Tag(1)), Some(11));
        assert_eq!(tags.put(Tag(1)), None, "a second completion");
        assert_eq!(tags.put(Tag(3)), None, "a tag that never was");
        assert_eq!(tags.put(Tag(u16::MAX)), None);
        assert_eq!(tags.peek(), Some(Tag(1)));
        assert_eq!(tags.take(14), Some(Tag(1)));
        assert_eq!(tags.first_outstanding(), Some(Tag(0)));
        assert_eq!(tags.outstanding(), 3);
    }
}
