//! [`Frames`]: the memory of the cache, unit by unit, and which is used again next.

use super::Replace;

/// No frame.
pub(super) const NONE: u32 = u32::MAX;

/// What is in a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// Nothing.
    Free,
    /// Nothing yet: it is being read.
    Filling,
    /// What the device has.
    Clean,
    /// Something newer.
    Dirty,
    /// Something newer, on its way to the device: not to be changed until it is there, or the device
    /// might get half of either.
    Writing,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Frame {
    pub(super) unit: u64,
    pub(super) state: State,
    /// It was dirtied before the flush of this number.
    pub(super) epoch: u64,
    /// Somebody waits for it to be written; and for it to be durable then.
    pub(super) wanted: bool,
    pub(super) fua: bool,
    /// Writing it has failed, and is tried again with the next flush.
    pub(super) failed: bool,
    /// Who waits for it: first of a list.
    pub(super) waiting: u32,
    /// Used since the hand passed.
    used: bool,
    /// Neighbours, of clean frames in order of their last use.
    before: u32,
    after: u32,
}

impl Frame {
    const FREE: Frame = Frame {
        unit: 0,
        state: State::Free,
        epoch: 0,
        wanted: false,
        fua: false,
        failed: false,
        waiting: NONE,
        used: false,
        before: NONE,
        after: NONE,
    };
}

/// The frames.
#[derive(Debug)]
pub(super) struct Frames {
    frames: Box<[Frame]>,
    free: Vec<u32>,
    replace: Replace,
    /// The list: least and most recently used.
    oldest: u32,
    newest: u32,
    /// The clock's hand.
    hand: u32,
}

impl Frames {
    pub(super) fn new(count: u32, replace: Replace) -> Frames {
        Frames {
            frames: vec![Frame::FREE; count as usize].into(),
            free: (0..count).rev().collect(),
            replace,
            oldest: NONE,
            newest: NONE,
            hand: 0,
        }
    }

    pub(super) fn count(&self) -> u32 {
        self.frames.len() as u32
    }

    #[inline]
    pub(super) fn get(&self, frame: u32) -> &Frame {
        &self.frames[frame as usize]
    }

    #[inline]
    pub(super) fn get_mut(&mut self, frame: u32) -> &mut Frame {
        &mut self.frames[frame as usize]
    }

    /// A frame that is used.
    #[inline]
    pub(super) fn touch(&mut self, frame: u32) {
        match self.replace {
            Replace::Clock => self.frames[frame as usize].used = true,
            Replace::Lru if self.newest == frame => {}
            Replace::Lru => self.move_to_end(frame),
        }
    }

    /// Makes a clean frame the most recently used; it is not that yet.
    #[inline]
    fn move_to_end(&mut self, frame: u32) {
        let last = self.newest;
        let Some(f) = self.frames.get_mut(frame as usize) else { return };
        let Frame { before, after, .. } = *f;
        if after == NONE {
            // Not listed: the newest alone has nobody behind it.
            return;
        }
        (f.before, f.after) = (last, NONE);
        match before {
            NONE => self.oldest = after,
            before => self.frames[before as usize].after = after,
        }
        self.frames[after as usize].before = before;
        self.frames[last as usize].after = frame;
        self.newest = frame;
    }

    fn list(&mut self, frame: u32) {
        let before = self.newest;
        let f = &mut self.frames[frame as usize];
        (f.before, f.after) = (before, NONE);
        match before {
            NONE => self.oldest = frame,
            before => self.frames[before as usize].after = frame,
        }
        self.newest = frame;
    }

    fn unlist(&mut self, frame: u32) {
        let f = &mut self.frames[frame as usize];
        let (before, after) = (f.before, f.after);
        (f.before, f.after) = (NONE, NONE);
        match before {
            NONE => self.oldest = after,
            before => self.frames[before as usize].after = after,
        }
        match after {
            NONE => self.newest = before,
            after => self.frames[after as usize].before = before,
        }
    }

    /// Changes what is in a frame.
    pub(super) fn set(&mut self, frame: u32, state: State) {
        let old = std::mem::replace(&mut self.frames[frame as usize].state, state);
        if self.replace == Replace::Lru {
            match (old == State::Clean, state == State::Clean) {
                (true, false) => self.unlist(frame),
                (false, true) => self.list(frame),
                _ => {}
            }
        } else if state == State::Clean {
            self.frames[frame as usize].used = true;
        }
        if state == State::Free && old != State::Free {
            self.frames[frame as usize] = Frame::FREE;
            self.free.push(frame);
        }
    }

    /// A frame for a unit: a free one, or one whose clean unit is given up, which the second value
    /// names. `None` if every unit is dirty or on its way, or waited for.
    pub(super) fn take(&mut self) -> Option<(u32, Option<u64>)> {
        if let Some(frame) = self.free.pop() {
            return Some((frame, None));
        }
        let frame = match self.replace {
            Replace::Lru => {
                let mut at = self.oldest;
                while at != NONE && self.frames[at as usize].waiting != NONE {
                    at = self.frames[at as usize].after;
                }
                Some(at).filter(|at| *at != NONE)
            }
            Replace::Clock => self.sweep(),
        }?;
        let unit = self.frames[frame as usize].unit;
        self.set(frame, State::Free);
        // It is the one that was given back just now.
        self.free.pop();
        Some((frame, Some(unit)))
    }

    /// Moves the hand on to a frame that was not used since it last passed.
    fn sweep(&mut self) -> Option<u32> {
        for _ in 0..2 * self.count() {
            let at = self.hand;
            self.hand = if at + 1 == self.count() { 0 } else { at + 1 };
            let f = &mut self.frames[at as usize];
            if f.state != State::Clean || f.waiting != NONE {
                continue;
            }
            if !std::mem::replace(&mut f.used, false) {
                return Some(at);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filled(replace: Replace) -> Frames {
        let mut frames = Frames::new(4, replace);
        for unit in 0..4 {
            let (frame, given_up) = frames.take().unwrap();
            assert_eq!(given_up, None);
            frames.get_mut(frame).unit = unit;
            frames.set(frame, State::Filling);
            frames.set(frame, State::Clean);
        }
        frames
    }

    fn unit_taken(frames: &mut Frames) -> Option<u64> {
        let (frame, unit) = frames.take()?;
        frames.get_mut(frame).unit = 99;
        frames.set(frame, State::Filling);
        unit
    }

    #[test]
    fn what_was_used_last_stays_longest() {
        let mut frames = filled(Replace::Lru);
        frames.touch(0);
        frames.touch(2);
        let order: Vec<_> = std::iter::from_fn(|| unit_taken(&mut frames)).collect();
        assert_eq!(order, [1, 3, 0, 2]);
    }

    #[test]
    fn the_hand_passes_what_was_used() {
        let mut frames = filled(Replace::Clock);
        // All were used when they came: the first round takes that from them.
        assert_eq!(unit_taken(&mut frames), Some(0));
        frames.touch(1);
        assert_eq!(unit_taken(&mut frames), Some(2));
        assert_eq!(unit_taken(&mut frames), Some(3));
        assert_eq!(unit_taken(&mut frames), Some(1));
        assert_eq!(unit_taken(&mut frames), None);
    }

    #[test]
    fn what_is_dirty_on_its_way_or_waited_for_stays() {
        for replace in [Replace::Lru, Replace::Clock] {
            let mut frames = filled(replace);
            frames.set(0, State::Dirty);
            frames.set(1, State::Dirty);
            frames.set(1, State::Writing);
            frames.get_mut(2).waiting = 7;
            assert_eq!(unit_taken(&mut frames), Some(3));
            assert_eq!(unit_taken(&mut frames), None);
            frames.set(1, State::Clean);
            assert_eq!(unit_taken(&mut frames), Some(1));
        }
    }
}
