//! [`BrokenInvariant`]: an invariant of a part's state that does not hold.

use std::error::Error;
use std::fmt::{self, Debug, Display};

/// An invariant that does not hold. `P` names the part whose invariant it is, `S` the item.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BrokenInvariant<P, S = String> {
    /// The part whose invariant it is.
    pub part: P,
    /// The invariant's name.
    pub invariant: &'static str,
    /// The item for which it does not hold.
    pub subject: S,
    /// The value, or the bound, that the invariant requires.
    pub expected: String,
    /// The actual value.
    pub found: String,
}

impl<P, S> BrokenInvariant<P, S> {
    /// Describes an invariant that does not hold.
    #[cold]
    pub fn new(
        part: P,
        invariant: &'static str,
        subject: S,
        expected: impl Display,
        found: impl Display,
    ) -> BrokenInvariant<P, S> {
        let (expected, found) = (expected.to_string(), found.to_string());
        BrokenInvariant { part, invariant, subject, expected, found }
    }
}

impl<P> BrokenInvariant<P> {
    /// Describes an invariant that does not hold, with the debug format of its values.
    #[cold]
    pub fn of_values(
        part: P,
        invariant: &'static str,
        subject: impl Display,
        expected: impl Debug,
        found: impl Debug,
    ) -> BrokenInvariant<P> {
        let (expected, found) = (format_args!("{expected:?}"), format_args!("{found:?}"));
        BrokenInvariant::new(part, invariant, subject.to_string(), expected, found)
    }

    /// Requires two values to be equal.
    ///
    /// # Errors
    /// The broken invariant, if they are not.
    pub fn unless_equal<T: PartialEq + Debug>(
        part: P,
        invariant: &'static str,
        subject: impl Display,
        expected: T,
        found: T,
    ) -> Result<(), BrokenInvariant<P>> {
        if expected == found {
            return Ok(());
        }
        Err(BrokenInvariant::of_values(part, invariant, subject, expected, found))
    }
}

impl<P: Display, S: Display> Display for BrokenInvariant<P, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let BrokenInvariant { part, invariant, subject, expected, found } = self;
        write!(f, "{part}: {invariant} is broken for {subject}: expected {expected}, found {found}")
    }
}

impl<P: Debug + Display, S: Debug + Display> Error for BrokenInvariant<P, S> {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_broken_invariant_is_described_with_its_values() {
        let check = |n| BrokenInvariant::unless_equal("queue", "entries are counted", "all", 3, n);
        assert_eq!(check(3), Ok(()));
        let text = "queue: entries are counted is broken for all: expected 3, found 2";
        assert_eq!(check(2).map_err(|broken| broken.to_string()), Err(text.to_string()));
    }
}
