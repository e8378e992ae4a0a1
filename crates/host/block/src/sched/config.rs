//! Configuration of a staging queue's scheduler ([`Scheduling`]): the policy, and the rate limits
//! in front of it.

use std::str::FromStr;

use time::Nanos;

use super::{
    Deadline, DeadlineConfig, Fair, FairConfig, GroupChange, Kyber, KyberConfig, NoneScheduler,
    Priority, PriorityConfig, SchedError, Scheduler, ThrottleConfig, Throttled,
};
use crate::Group;

/// The scheduling policy and its parameters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum SchedulerConfig {
    /// [`NoneScheduler`].
    #[default]
    None,
    /// [`Deadline`].
    Deadline(DeadlineConfig),
    /// [`Kyber`].
    Kyber(KyberConfig),
    /// [`Fair`].
    Fair(FairConfig),
    /// [`Priority`].
    Priority(PriorityConfig),
}

impl SchedulerConfig {
    /// Returns the name of the scheduler on the command line.
    pub fn name(&self) -> &'static str {
        match self {
            SchedulerConfig::None => "none",
            SchedulerConfig::Deadline(_) => "deadline",
            SchedulerConfig::Kyber(_) => "kyber",
            SchedulerConfig::Fair(_) => "fair",
            SchedulerConfig::Priority(_) => "priority",
        }
    }

    /// Returns whether the scheduler is FIFO and delays no request. A request then may bypass it
    /// while it is empty.
    pub fn is_plain(&self) -> bool {
        *self == SchedulerConfig::None
    }

    /// Returns the scheduler's name if it needs one staging queue for all submitters of a hardware
    /// queue.
    ///
    /// `fair` divides the device among submitters, `kyber` throttles the writes of one for the
    /// reads of another, and `priority` prefers some submitters to others.
    pub fn per_submitter_policy(&self) -> Option<&'static str> {
        match self {
            SchedulerConfig::None | SchedulerConfig::Deadline(_) => None,
            SchedulerConfig::Kyber(_) | SchedulerConfig::Fair(_) | SchedulerConfig::Priority(_) => {
                Some(self.name())
            }
        }
    }

    /// Checks the parameters.
    ///
    /// # Errors
    /// Those of the scheduler's own configuration.
    pub fn validate(&self) -> Result<(), SchedError> {
        match self {
            SchedulerConfig::None => Ok(()),
            SchedulerConfig::Deadline(config) => config.validate(),
            SchedulerConfig::Kyber(config) => config.validate(),
            SchedulerConfig::Fair(config) => config.validate(),
            SchedulerConfig::Priority(config) => config.validate(),
        }
    }

    /// Creates an empty scheduler for hardware with a queue depth of `depth`.
    ///
    /// # Errors
    /// Those of [`validate`](SchedulerConfig::validate), and [`SchedError::Zero`] for a `depth` of
    /// 0.
    pub fn build(&self, depth: u16) -> Result<Box<dyn Scheduler>, SchedError> {
        super::error::within("depth", depth.into(), u16::MAX.into())?;
        Ok(match self {
            SchedulerConfig::None => Box::new(NoneScheduler::new()),
            SchedulerConfig::Deadline(config) => Box::new(Deadline::new(*config)?),
            SchedulerConfig::Kyber(config) => Box::new(Kyber::new(*config, depth)?),
            SchedulerConfig::Fair(config) => Box::new(Fair::new(config.clone(), depth)?),
            SchedulerConfig::Priority(config) => Box::new(Priority::new(config)?),
        })
    }
}

impl FromStr for SchedulerConfig {
    type Err = SchedError;

    /// Returns the scheduler with this name, with its default parameters. `mq-deadline` is Linux's
    /// name for `deadline`.
    fn from_str(name: &str) -> Result<SchedulerConfig, SchedError> {
        match name {
            "none" => Ok(SchedulerConfig::None),
            "deadline" | "mq-deadline" => Ok(SchedulerConfig::Deadline(DeadlineConfig::default())),
            "kyber" => Ok(SchedulerConfig::Kyber(KyberConfig::default())),
            "fair" => Ok(SchedulerConfig::Fair(FairConfig::default())),
            "priority" => Ok(SchedulerConfig::Priority(PriorityConfig::default())),
            _ => Err(SchedError::Unknown(name.to_owned())),
        }
    }
}

/// A scheduler and the rate limits in front of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Scheduling {
    /// The scheduler.
    pub scheduler: SchedulerConfig,
    /// The rate limits, if any.
    pub limits: Option<ThrottleConfig>,
}

impl Scheduling {
    /// Returns whether requests are dispatched in FIFO order without delay. A request then may
    /// bypass the scheduler while it is empty.
    pub fn is_plain(&self) -> bool {
        self.scheduler.is_plain() && self.limits.is_none()
    }

    /// Returns the name of the part that needs one staging queue for all submitters, if any.
    ///
    /// That is [`SchedulerConfig::per_submitter_policy`], or `limits`, which each of several
    /// staging queues would grant separately.
    pub fn per_submitter_policy(&self) -> Option<&'static str> {
        self.limits.as_ref().map(|_| "limits").or_else(|| self.scheduler.per_submitter_policy())
    }

    /// Checks the parameters.
    ///
    /// # Errors
    /// Those of [`SchedulerConfig::validate`] and [`ThrottleConfig::validate`].
    pub fn validate(&self) -> Result<(), SchedError> {
        self.scheduler.validate()?;
        self.limits.as_ref().map_or(Ok(()), ThrottleConfig::validate)
    }

    /// Checks a change of a group that [`Scheduler::change_group`] is to make later.
    ///
    /// # Errors
    /// Those of [`Scheduler::change_group`] and [`build`](Scheduling::build).
    pub fn check_change(&self, group: Group, change: GroupChange) -> Result<(), SchedError> {
        self.build(1)?.change_group(Nanos::ZERO, group, change)
    }

    /// Creates an empty scheduler for hardware with a queue depth of `depth`. Each staging queue
    /// has its own scheduler, and applies a group's limits by itself.
    ///
    /// # Errors
    /// Those of [`SchedulerConfig::build`] and [`ThrottleConfig::validate`].
    pub fn build(&self, depth: u16) -> Result<Box<dyn Scheduler>, SchedError> {
        let inner = self.scheduler.build(depth)?;
        match &self.limits {
            None => Ok(inner),
            Some(limits) => Ok(Box::new(Throttled::new(limits, inner)?)),
        }
    }
}

impl From<SchedulerConfig> for Scheduling {
    fn from(scheduler: SchedulerConfig) -> Scheduling {
        Scheduling { scheduler, limits: None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Group;
    use crate::sched::{DirectionThrottle, GroupThrottle, RateLimit};

    #[test]
    fn names_lead_to_schedulers_and_back() {
        for name in ["none", "deadline", "kyber", "fair", "priority"] {
            let config: SchedulerConfig = name.parse().unwrap();
            assert_eq!(config.name(), name);
            assert_eq!(config.validate(), Ok(()));
            assert!(config.build(1).unwrap().is_empty());
            assert_eq!(config.build(0).unwrap_err(), SchedError::Zero { what: "depth" });
            let weighs = ["kyber", "fair", "priority"].contains(&name).then_some(name);
            let scheduling = Scheduling::from(config);
            assert_eq!(
                (scheduling.is_plain(), scheduling.per_submitter_policy()),
                (name == "none", weighs)
            );
        }
        assert_eq!("mq-deadline".parse(), Ok(SchedulerConfig::Deadline(DeadlineConfig::default())));
        let unknown = "bfq".parse::<SchedulerConfig>().unwrap_err();
        assert!(unknown.to_string().contains("`bfq`"), "{unknown}");
    }

    #[test]
    fn shares_that_make_no_sense_are_refused() {
        let error = |change: fn(&mut FairConfig)| {
            let mut config = FairConfig::default();
            change(&mut config);
            SchedulerConfig::Fair(config).build(32).unwrap_err()
        };
        assert_eq!(error(|c| c.default_weight = 0), SchedError::Zero { what: "default_weight" });
        assert_eq!(error(|c| c.weights = vec![(3, 0)]), SchedError::ZeroWeight { flow: 3 });
        let large = SchedError::WeightTooLarge { flow: 3, weight: 1001, max: 1000 };
        assert_eq!(error(|c| c.weights = vec![(3, 1001)]), large);
        let two = error(|c| c.weights = vec![(3, 1), (4, 1), (3, 2)]);
        assert_eq!(two, SchedError::TwoWeights { flow: 3 });
        assert!(matches!(error(|c| c.request_cost_sectors = 0), SchedError::Zero { .. }));
        assert!(matches!(error(|c| c.request_cost_sectors = 1 << 30), SchedError::TooLarge { .. }));
    }

    #[test]
    fn targets_that_make_no_sense_are_refused() {
        let error = |change: fn(&mut KyberConfig)| {
            let mut config = KyberConfig::default();
            change(&mut config);
            SchedulerConfig::Kyber(config).build(32).unwrap_err()
        };
        assert!(matches!(error(|c| c.target.read.0 = 0), SchedError::Zero { .. }));
        assert!(matches!(error(|c| c.target.write.0 = u64::MAX), SchedError::TooLarge { .. }));
        assert!(matches!(error(|c| c.batch.discard = 0), SchedError::Zero { .. }));
        assert!(matches!(error(|c| c.depth_percent.other = 101), SchedError::TooLarge { .. }));
        assert!(matches!(error(|c| c.window.0 = 0), SchedError::Zero { .. }));
    }

    #[test]
    fn changes_that_make_no_sense_are_refused() {
        use crate::sched::{FairBy, LimitKind};
        let read = DirectionThrottle { operations: Some(RateLimit::per_sec(10)), bytes: None };
        let groups = vec![(Group(5), GroupThrottle { read, ..Default::default() })];
        let limits = Some(ThrottleConfig { sector_bytes: 512, groups });
        let fair = |by| FairConfig { by, ..FairConfig::default() };
        let scheduling = |scheduler, limits| Scheduling { scheduler, limits };
        let rate = |of, per_sec| GroupChange::Rate { of, per_sec };
        let reads = |per_sec| rate(LimitKind::ReadOperations, per_sec);
        let by_group = scheduling(SchedulerConfig::Fair(fair(FairBy::Group)), limits.clone());
        let error = |change| by_group.check_change(Group(5), change).unwrap_err();
        assert_eq!(by_group.check_change(Group(5), GroupChange::Weight(7)), Ok(()));
        assert_eq!(by_group.check_change(Group(5), reads(7)), Ok(()));
        assert_eq!(error(GroupChange::Weight(0)), SchedError::ZeroWeight { flow: 5 });
        assert!(matches!(error(GroupChange::Weight(1001)), SchedError::WeightTooLarge { .. }));
        assert!(matches!(error(reads(0)), SchedError::ZeroRate { group: 5, .. }));
        assert!(matches!(error(reads(u64::MAX)), SchedError::RateTooLarge { group: 5, .. }));
        for of in [LimitKind::ReadBytes, LimitKind::WriteOperations, LimitKind::WriteBytes] {
            let none = SchedError::NoLimit { group: 5, what: of.name() };
            assert_eq!(error(rate(of, 7)), none);
        }
        let other = by_group.check_change(Group(6), reads(7));
        assert_eq!(other, Err(SchedError::NoLimit { group: 6, what: "read operations" }));
        for name in ["none", "deadline", "kyber", "fair", "priority"] {
            let without = scheduling(name.parse().unwrap(), None);
            let weight = without.check_change(Group(5), GroupChange::Weight(7));
            assert_eq!(weight, Err(SchedError::NoWeights), "{name}");
            let rate = without.check_change(Group(5), reads(7));
            assert!(matches!(rate, Err(SchedError::NoLimit { group: 5, .. })), "{name}");
            let limited = scheduling(name.parse().unwrap(), limits.clone());
            assert_eq!(limited.check_change(Group(5), reads(7)), Ok(()), "{name}");
        }
    }

    #[test]
    fn limits_that_make_no_sense_are_refused() {
        let error = |sector_bytes, groups| {
            let limits = Some(ThrottleConfig { sector_bytes, groups });
            let scheduling = Scheduling { scheduler: SchedulerConfig::None, limits };
            assert!(!scheduling.is_plain());
            assert_eq!(scheduling.per_submitter_policy(), Some("limits"));
            assert_eq!(scheduling.validate().err(), scheduling.build(32).err());
            scheduling.validate().unwrap_err()
        };
        let reads = |per_sec, burst| {
            let operations = Some(RateLimit { per_sec, burst });
            let read = DirectionThrottle { operations, bytes: None };
            (Group(5), GroupThrottle { read, ..Default::default() })
        };
        assert_eq!(error(0, vec![]), SchedError::Zero { what: "sector_bytes" });
        let zero = SchedError::ZeroRate { group: 5, what: "read operations" };
        assert_eq!(error(512, vec![reads(0, 1)]), zero);
        assert_eq!(error(512, vec![reads(1, 0)]), zero);
        assert!(matches!(error(512, vec![reads(u64::MAX, 1)]), SchedError::RateTooLarge { .. }));
        let twice = vec![reads(1, 1), reads(2, 2)];
        assert_eq!(error(512, twice), SchedError::TwoLimits { group: 5 });
    }
}
