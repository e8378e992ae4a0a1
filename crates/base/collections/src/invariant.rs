//! [`BrokenInvariant`]: an invariant of a part's state that does not hold, and the checks that
//! return one.

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

    /// Requires a condition. `expected` and `found` describe the values of a violation.
    ///
    /// # Errors
    /// The broken invariant, if the condition does not hold.
    pub fn unless(
        holds: bool,
        part: P,
        invariant: &'static str,
        subject: S,
        expected: impl Display,
        found: impl Display,
    ) -> Result<(), BrokenInvariant<P, S>> {
        if holds {
            return Ok(());
        }
        Err(BrokenInvariant::new(part, invariant, subject, expected, found))
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
}

/// Requires two values to be equal.
///
/// # Errors
/// The broken invariant, if they are not.
pub fn require_eq<P, T: PartialEq + Debug>(
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

/// Defines the macros `require!` and `require_eq!` for a type of violations and its parts. The
/// macros return the violation from the calling function, and evaluate the values of a violation
/// only if there is one. Call sites name a part by its variant alone.
///
/// The arguments are `$`, the alias of [`BrokenInvariant`], the type of its parts, and its
/// constructor: `new` or `of_values`.
///
/// ```
/// mod check {
///     #[derive(Debug)]
///     pub enum Part { Queue }
///     pub type Violation = sluice_collections::BrokenInvariant<Part>;
///     sluice_collections::invariant_macros!($ crate::check::Violation, crate::check::Part, of_values);
///     pub(crate) use {require, require_eq};
/// }
///
/// fn check_length(length: usize) -> Result<(), check::Violation> {
///     check::require!(length < 9, Queue, "the queue is bounded", "all entries", 8, length);
///     check::require_eq!(Queue, "the queue is empty", "all entries", 0, length);
///     Ok(())
/// }
/// # fn main() {
/// assert!(check_length(0).is_ok());
/// assert_eq!(check_length(9).unwrap_err().invariant, "the queue is bounded");
/// assert_eq!(check_length(1).unwrap_err().found, "1");
/// # }
/// ```
// rustfmt indents the inner macros further with each run.
#[rustfmt::skip]
#[macro_export]
macro_rules! invariant_macros {
    ($d:tt $violation:ty, $part:ty, $new:ident) => {
        /// Returns a violation from the calling function unless a condition holds.
        macro_rules! require {
            (
                $d holds:expr, $d part:ident, $d invariant:expr, $d subject:expr,
                $d expected:expr, $d found:expr $d(,)?
            ) => {
                if !$d holds {
                    return Err(<$violation>::$new(
                        <$part>::$d part,
                        $d invariant,
                        $d subject,
                        $d expected,
                        $d found,
                    ));
                }
            };
        }

        /// Returns a violation from the calling function unless two values are equal.
        macro_rules! require_eq {
            (
                $d part:ident, $d invariant:expr, $d subject:expr,
                $d expected:expr, $d found:expr $d(,)?
            ) => {
                let (expected, found) = ($d expected, $d found);
                if !(expected == found) {
                    return Err(<$violation>::$new(
                        <$part>::$d part,
                        $d invariant,
                        $d subject,
                        expected,
                        found,
                    ));
                }
            };
        }
    };
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
        let check = |n| require_eq("queue", "entries are counted", "all", 3, n);
        assert_eq!(check(3), Ok(()));
        let text = "queue: entries are counted is broken for all: expected 3, found 2";
        assert_eq!(check(2).map_err(|broken| broken.to_string()), Err(text.to_string()));
    }
}
