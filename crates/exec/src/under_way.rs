//! [`UnderWay`]: which calls wait for the store. In steady state nothing is allocated for one.

use store::Ino;

use crate::ends::Then;
use crate::images::Effect;
use crate::service::From;

/// Whose a request is, and what it does to a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Asked {
    pub(crate) from: From,
    pub(crate) then: Then,
    pub(crate) effect: Effect,
}

/// Calls that the store has requests for, by the requests' numbers: a place that is free is the next number.
#[derive(Debug, Default)]
pub(crate) struct UnderWay {
    places: Vec<Option<Asked>>,
    free: Vec<u32>,
    /// Of these, writes that nobody waits for.
    left: usize,
}

impl UnderWay {
    /// The number of the next request.
    pub(crate) fn next(&self) -> u64 {
        self.free.last().map_or(self.places.len() as u64, |place| u64::from(*place))
    }

    /// Notes whose the request with the [`next`](UnderWay::next) number is.
    pub(crate) fn put(&mut self, id: u64, asked: Asked) {
        self.left += usize::from(asked.then.is_left());
        match self.free.pop() {
            Some(_) => self.places[id as usize] = Some(asked),
            None => self.places.push(Some(asked)),
        }
    }

    /// Whose a request was that has ended.
    pub(crate) fn take(&mut self, id: u64) -> Option<Asked> {
        let asked = self.places.get_mut(usize::try_from(id).ok()?)?.take()?;
        self.free.push(id as u32);
        self.left -= usize::from(asked.then.is_left());
        Some(asked)
    }

    /// Whether a request is under way that changes a file's bytes.
    pub(crate) fn changes(&self, ino: Ino) -> bool {
        self.places.iter().flatten().any(|asked| asked.effect.changes() == Some(ino))
    }

    /// Whether there is a write that nobody waits for: to a file, or to any.
    pub(crate) fn has_left(&self, ino: Option<Ino>) -> bool {
        let of = |asked: &Asked| {
            asked.then.is_left() && ino.is_none_or(|ino| asked.effect.changes() == Some(ino))
        };
        self.left > 0 && self.places.iter().flatten().any(of)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.free.len() == self.places.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_is_taken_once_and_its_number_is_used_again() {
        let mut calls = UnderWay::default();
        assert!(calls.is_empty());
        let whose = |slot| Asked {
            from: From { session: 0, slot },
            then: Then::Answer,
            effect: Effect::Write(Ino(slot as u64)),
        };
        for slot in 0..3 {
            assert_eq!(calls.next(), slot as u64);
            calls.put(calls.next(), whose(slot));
        }
        assert!(calls.changes(Ino(1)) && !calls.changes(Ino(3)));
        assert_eq!(calls.take(1), Some(whose(1)));
        assert!(!calls.changes(Ino(1)));
        assert_eq!((calls.take(1), calls.take(3), calls.take(u64::MAX)), (None, None, None));
        assert_eq!(calls.next(), 1);
        calls.put(1, whose(7));
        assert_eq!(calls.next(), 3);
        for (id, slot) in [(0, 0), (2, 2), (1, 7)] {
            assert!(!calls.is_empty());
            assert_eq!(calls.take(id), Some(whose(slot)));
        }
        assert!(calls.is_empty());
    }
}
