//! [`SchedError`]: why a scheduler cannot be made.

/// A scheduler's configuration makes no sense.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SchedError {
    /// There is no scheduler of this name.
    #[error(
        "no scheduler is called `{0}`: use none, deadline (or mq-deadline), kyber, fair or priority"
    )]
    Unknown(String),
    /// There is no such class.
    #[error("class {class}: there are 8, from 0 to 7")]
    Class {
        /// The class.
        class: u8,
    },
    /// A group has several classes.
    #[error("group {group} has more than one class")]
    TwoClasses {
        /// Which group.
        group: u16,
    },
    /// A value that must be at least 1 is 0.
    #[error("`{what}` must not be zero")]
    Zero {
        /// Its name.
        what: &'static str,
    },
    /// A value is too large to mean anything.
    #[error("`{what}` is {value}, more than {max}")]
    TooLarge {
        /// Its name, with its unit.
        what: &'static str,
        /// What it is.
        value: u64,
        /// What it may be at most.
        max: u64,
    },
    /// A submitter or group would get nothing at all.
    #[error("the weight of {flow} must not be zero: it would wait forever")]
    ZeroWeight {
        /// Which submitter or group.
        flow: u16,
    },
    /// A weight is too large.
    #[error("the weight of {flow} is {weight}, more than {max}")]
    WeightTooLarge {
        /// Which submitter or group.
        flow: u16,
        /// Its weight.
        weight: u16,
        /// What it may be at most.
        max: u16,
    },
    /// A submitter or group has several weights.
    #[error("{flow} has more than one weight")]
    TwoWeights {
        /// Which submitter or group.
        flow: u16,
    },
    /// A group's rate would let nothing through.
    #[error(
        "the limit `{what}` of group {group} must not be zero: its requests would wait forever"
    )]
    ZeroRate {
        /// Which group.
        group: u16,
        /// Which rate or burst.
        what: &'static str,
    },
    /// A group's rate or burst is too large to be a limit.
    #[error("the limit `{what}` of group {group} is {value}, more than {max}: leave it out")]
    RateTooLarge {
        /// Which group.
        group: u16,
        /// Which rate or burst.
        what: &'static str,
        /// What it is.
        value: u64,
        /// What it may be at most.
        max: u64,
    },
    /// A group has several limits.
    #[error("group {group} has its limits given more than once")]
    TwoLimits {
        /// Which group.
        group: u16,
    },
}

/// `value`, which must be in `1..=max`.
pub(super) fn within(what: &'static str, value: u64, max: u64) -> Result<(), SchedError> {
    match value {
        0 => Err(SchedError::Zero { what }),
        value if value > max => Err(SchedError::TooLarge { what, value, max }),
        _ => Ok(()),
    }
}
