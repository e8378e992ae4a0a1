//! [`SchedError`]: an invalid scheduler configuration.

/// An invalid scheduler configuration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SchedError {
    /// No scheduler has this name.
    #[error(
        "no scheduler is called `{0}`: use none, deadline (or mq-deadline), kyber, fair or priority"
    )]
    Unknown(String),
    /// The class does not exist.
    #[error("class {class} does not exist: classes are 0 to 7")]
    Class {
        /// The class.
        class: u8,
    },
    /// A group has several classes.
    #[error("group {group} has more than one class")]
    TwoClasses {
        /// The group.
        group: u16,
    },
    /// A value that must be at least 1 is 0.
    #[error("`{what}` must not be zero")]
    Zero {
        /// The parameter's name.
        what: &'static str,
    },
    /// A value exceeds its maximum.
    #[error("`{what}` is {value}, more than {max}")]
    TooLarge {
        /// The parameter's name, with its unit.
        what: &'static str,
        /// The value.
        value: u64,
        /// The maximum.
        max: u64,
    },
    /// A submitter or group has the weight 0, so its requests would never be dispatched.
    #[error("the weight of {flow} must not be zero: it would wait forever")]
    ZeroWeight {
        /// The submitter or group.
        flow: u16,
    },
    /// A weight exceeds its maximum.
    #[error("the weight of {flow} is {weight}, more than {max}")]
    WeightTooLarge {
        /// The submitter or group.
        flow: u16,
        /// The weight.
        weight: u16,
        /// The maximum.
        max: u16,
    },
    /// A submitter or group has several weights.
    #[error("{flow} has more than one weight")]
    TwoWeights {
        /// The submitter or group.
        flow: u16,
    },
    /// A rate or burst of a group is 0, so its requests would wait forever.
    #[error(
        "the limit `{what}` of group {group} must not be zero: its requests would wait forever"
    )]
    ZeroRate {
        /// The group.
        group: u16,
        /// The name of the rate or burst.
        what: &'static str,
    },
    /// A group's rate or burst exceeds its maximum.
    #[error("the limit `{what}` of group {group} is {value}, more than {max}: leave it out")]
    RateTooLarge {
        /// The group.
        group: u16,
        /// The name of the rate or burst.
        what: &'static str,
        /// The value.
        value: u64,
        /// The maximum.
        max: u64,
    },
    /// The scheduler shares the device among cores, or has no weights at all.
    #[error("groups have no weights here: use the scheduler `fair` by `group`")]
    NoWeights,
    /// The group does not have the limit whose rate is to change.
    #[error(
        "group {group} has no limit `{what}` that could change: give it one in the path's limits"
    )]
    NoLimit {
        /// The group.
        group: u16,
        /// The name of the limit.
        what: &'static str,
    },
    /// A group has several sets of limits.
    #[error("group {group} has its limits given more than once")]
    TwoLimits {
        /// The group.
        group: u16,
    },
}

/// Checks that `value` is in `1..=max`.
pub(super) fn within(what: &'static str, value: u64, max: u64) -> Result<(), SchedError> {
    match value {
        0 => Err(SchedError::Zero { what }),
        value if value > max => Err(SchedError::TooLarge { what, value, max }),
        _ => Ok(()),
    }
}
