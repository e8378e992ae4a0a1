//! [`PartitionTable`]: partitions and their access rules ([NVMeDirect16 §3.1]: "the administrator sets which
//! users may use which part").
//!
//! Guarantees: partitions of a drive do not overlap; a user without access is not told that a
//! partition exists; the server's own user may use every partition without rules.

use share_proto::{AclRule, Code, Grant, PartitionSpan, Principal, ProtocolError, ResourceName};

/// A partition of a drive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Partition {
    /// The drive.
    pub device: ResourceName,
    /// Its name.
    pub name: ResourceName,
    /// Its location.
    pub span: PartitionSpan,
    /// Whether another front end of the server uses it.
    pub in_use: bool,
}

/// Why a partition cannot be added.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PartitionError {
    /// Two partitions have the same name.
    #[error("two partitions of {device} are named {name}")]
    Duplicate {
        /// The drive.
        device: ResourceName,
        /// The name.
        name: ResourceName,
    },
    /// Two partitions overlap.
    #[error("partitions {first} and {second} of {device} overlap")]
    Overlap {
        /// The drive.
        device: ResourceName,
        /// One partition.
        first: ResourceName,
        /// The other partition.
        second: ResourceName,
    },
}

/// A user's ids, as the kernel reports them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UserIds {
    /// User id.
    pub uid: u32,
    /// Group id.
    pub gid: u32,
}

/// Partitions and access rules.
#[derive(Clone, Debug)]
pub struct PartitionTable {
    owner: u32,
    partitions: Vec<Partition>,
    rules: Vec<AclRule>,
}

/// Default number of queues of the server's own user.
const OWNER_QUEUES_DEFAULT: u16 = 64;

/// Maximum number of queues of a rule.
const RULE_QUEUES_MAX: u16 = 1024;

fn range(span: PartitionSpan) -> (bool, u64, u64) {
    match span {
        PartitionSpan::Sectors { first, count } => (false, first, first.saturating_add(count)),
        PartitionSpan::ParallelUnits { first, count } => {
            (true, first.into(), u64::from(first) + u64::from(count))
        }
    }
}

impl PartitionTable {
    /// Creates an empty table; `owner` is the server's own user.
    pub fn new(owner: u32) -> PartitionTable {
        PartitionTable { owner, partitions: Vec::new(), rules: Vec::new() }
    }

    /// Returns the server's own user.
    pub fn owner(&self) -> u32 {
        self.owner
    }

    /// Adds a partition.
    ///
    /// # Errors
    /// [`PartitionError`]; the table is unchanged.
    pub fn add(&mut self, new: Partition) -> Result<(), PartitionError> {
        let (kind, first, end) = range(new.span);
        for old in self.partitions.iter().filter(|p| p.device == new.device) {
            if old.name == new.name {
                return Err(PartitionError::Duplicate { device: new.device, name: new.name });
            }
            let (others, from, to) = range(old.span);
            if others == kind && first < to && from < end {
                let (device, first, second) = (new.device, old.name, new.name);
                return Err(PartitionError::Overlap { device, first, second });
            }
        }
        self.partitions.push(new);
        Ok(())
    }

    /// Returns all partitions.
    pub fn partitions(&self) -> &[Partition] {
        &self.partitions
    }

    /// Returns all rules.
    pub fn rules(&self) -> &[AclRule] {
        &self.rules
    }

    /// Removes all rules.
    pub fn clear_rules(&mut self) {
        self.rules.clear();
    }

    fn partition(
        &self,
        device: ResourceName,
        name: ResourceName,
    ) -> Result<&Partition, ProtocolError> {
        let found = self.partitions.iter().find(|p| (p.device, p.name) == (device, name));
        found.ok_or_else(|| {
            let all = self.partitions.iter();
            let text = format!("{device}/{name} is not there; there are: {}", names(all));
            ProtocolError::new(Code::Unknown, text)
        })
    }

    /// Sets a rule, which replaces the rule of its principal for that partition. Returns whether it
    /// replaced one.
    ///
    /// # Errors
    /// [`Code::Unknown`], [`Code::Taken`], [`Code::Rule`]; the table is unchanged.
    pub fn allow(&mut self, rule: AclRule) -> Result<bool, ProtocolError> {
        let partition = self.partition(rule.device, rule.partition)?;
        if partition.in_use {
            return Err(in_use_error(partition));
        }
        if !(1..=RULE_QUEUES_MAX).contains(&rule.grant.queues) {
            let text = format!("{} queues: 1 to {RULE_QUEUES_MAX} are possible", rule.grant.queues);
            return Err(ProtocolError::new(Code::Rule, text));
        }
        if rule.grant.depth < 2 {
            let text = format!("queues of {} entries: 2 at least", rule.grant.depth);
            return Err(ProtocolError::new(Code::Rule, text));
        }
        let key = |r: &AclRule| (r.principal, r.device, r.partition);
        match self.rules.iter_mut().find(|old| key(old) == key(&rule)) {
            Some(old) => {
                *old = rule;
                Ok(true)
            }
            None => {
                self.rules.push(rule);
                Ok(false)
            }
        }
    }

    /// Removes the rules of a principal, for one partition or, without one, for all of a drive.
    /// Returns them.
    ///
    /// # Errors
    /// [`Code::Unknown`].
    pub fn deny(
        &mut self,
        subject: Principal,
        device: ResourceName,
        partition: ResourceName,
    ) -> Result<Vec<AclRule>, ProtocolError> {
        let goes = |r: &AclRule| {
            r.principal == subject
                && r.device == device
                && (partition.is_none() || r.partition == partition)
        };
        let gone: Vec<_> = self.rules.iter().copied().filter(goes).collect();
        if gone.is_empty() {
            let text = format!("there is no rule for {subject} on {device}/{partition}");
            return Err(ProtocolError::new(Code::Unknown, text));
        }
        self.rules.retain(|r| !goes(r));
        Ok(gone)
    }

    /// Returns the rule by which a user may use a partition.
    fn rule_for(&self, user: UserIds, partition: &Partition) -> Option<AclRule> {
        let (device, name) = (partition.device, partition.name);
        let mut given = self.rules.iter().filter(|r| (r.device, r.partition) == (device, name));
        let nobodys = given.clone().next().is_none();
        // The most specific principal is the smallest in the order of `Principal`.
        let best = given
            .by_ref()
            .filter(|r| r.principal.matches(user.uid, user.gid))
            .min_by_key(|r| r.principal);
        let own = AclRule {
            principal: Principal::Uid(self.owner),
            device,
            partition: name,
            grant: Grant::with_queues(OWNER_QUEUES_DEFAULT),
        };
        best.copied().or((nobodys && user.uid == self.owner).then_some(own))
    }

    /// Finds the partition and the rule for a user's request. Empty names are allowed where only
    /// one partition matches.
    ///
    /// # Errors
    /// [`Code::NotAllowed`], [`Code::Taken`].
    pub fn find(
        &self,
        user: UserIds,
        device: ResourceName,
        partition: ResourceName,
    ) -> Result<(Partition, AclRule), ProtocolError> {
        let usable: Vec<_> =
            self.partitions.iter().filter_map(|p| Some((p, self.rule_for(user, p)?))).collect();
        let asked = |p: &Partition| {
            (device.is_none() || p.device == device)
                && if partition.is_none() { !p.in_use } else { p.name == partition }
        };
        let fitting: Vec<_> = usable.iter().filter(|(p, _)| asked(p)).collect();
        let may = || names(usable.iter().map(|(p, _)| *p).filter(|p| !p.in_use));
        match fitting[..] {
            [(partition, _)] if partition.in_use => Err(in_use_error(partition)),
            [(partition, rule)] => Ok((**partition, *rule)),
            // All other partitions are used by NBD.
            [] if partition.is_none()
                && let Some((partition, _)) = usable
                    .iter()
                    .find(|(p, _)| p.in_use && (device.is_none() || p.device == device))
                && usable.iter().all(|(p, _)| p.in_use) =>
            {
                Err(in_use_error(partition))
            }
            [] => {
                let all = |name: ResourceName| if name.is_none() { "anything" } else { "" };
                let slash = if device.is_none() { "" } else { "/" };
                let what = format!("{device}{slash}{partition}{}", all(partition));
                let text = format!("uid {} may not use {what}; it may use: {}", user.uid, may());
                Err(ProtocolError::new(Code::NotAllowed, text))
            }
            _ => {
                let text = format!("say which: uid {} may use {}", user.uid, may());
                Err(ProtocolError::new(Code::NotAllowed, text))
            }
        }
    }
}

fn in_use_error(partition: &Partition) -> ProtocolError {
    let text = format!(
        "{}/{} is served over NBD, and to nobody else: connect with NBD; or give the scenario a [[partition]] with \
         nbd = true for NBD's part, so that the rest is shared",
        partition.device, partition.name
    );
    ProtocolError::new(Code::Taken, text)
}

/// Formats partitions for error messages.
fn names<'p>(partitions: impl Iterator<Item = &'p Partition>) -> String {
    let all: Vec<_> = partitions.map(|p| format!("{}/{}", p.device, p.name)).collect();
    if all.is_empty() { "nothing".into() } else { all.join(", ") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> ResourceName {
        ResourceName::new(text).unwrap()
    }

    fn partition(device: &str, part: &str, first: u64, count: u64) -> Partition {
        let span = PartitionSpan::Sectors { first, count };
        Partition { device: name(device), name: name(part), span, in_use: part == "nbd" }
    }

    fn rule(subject: Principal, part: &str, queues: u16) -> AclRule {
        let (device, partition) = (name("d"), name(part));
        AclRule { principal: subject, device, partition, grant: Grant::with_queues(queues) }
    }

    fn table() -> PartitionTable {
        let mut table = PartitionTable::new(7);
        for (part, first, count) in [("a", 0, 10), ("b", 10, 10), ("nbd", 30, 1)] {
            table.add(partition("d", part, first, count)).unwrap();
        }
        table
    }

    #[test]
    fn partitions_do_not_overlap() {
        let mut table = table();
        let (device, second) = (name("d"), name("c"));
        for (first, count, with) in [(9, 1, "a"), (19, 5, "b"), (0, 100, "a"), (30, 1, "nbd")] {
            let refused = table.add(partition("d", "c", first, count));
            let first = name(with);
            assert_eq!(refused, Err(PartitionError::Overlap { device, first, second }));
        }
        let twice = PartitionError::Duplicate { device, name: name("a") };
        assert_eq!(table.add(partition("d", "a", 50, 1)), Err(twice));
        assert_eq!(table.add(partition("d", "c", 20, 10)), Ok(()));
        assert_eq!(table.add(partition("e", "a", 0, u64::MAX)), Ok(()));
        let other = PartitionSpan::ParallelUnits { first: u32::MAX, count: u32::MAX };
        let other = Partition { span: other, ..partition("f", "a", 0, 1) };
        assert_eq!(table.add(other), Ok(()));
    }

    #[test]
    fn the_most_special_rule_counts_and_the_owner_has_the_rest() {
        let mut table = table();
        let (d, a, b) = (name("d"), name("a"), name("b"));
        let queues = |table: &PartitionTable, (uid, gid): (u32, u32), part| {
            let found = table.find(UserIds { uid, gid }, d, part);
            found.map(|(_, rule)| rule.grant.queues).map_err(|r| r.code)
        };
        let not = Err(Code::NotAllowed);
        assert_eq!(queues(&table, (7, 7), a), Ok(OWNER_QUEUES_DEFAULT));
        assert_eq!(queues(&table, (8, 7), a), not);
        assert_eq!(table.allow(rule(Principal::Anyone, "a", 1)), Ok(false));
        assert_eq!(table.allow(rule(Principal::Gid(9), "a", 2)), Ok(false));
        assert_eq!(table.allow(rule(Principal::Uid(8), "a", 3)), Ok(false));
        assert_eq!(table.allow(rule(Principal::Uid(8), "a", 4)), Ok(true));
        for (user, expected) in [((8, 9), 4), ((5, 9), 2), ((5, 5), 1), ((7, 5), 1)] {
            assert_eq!(queues(&table, user, a), Ok(expected), "{user:?}");
            // This user may use only one partition, so the name may be empty.
            if user.0 != 7 {
                assert_eq!(queues(&table, user, ResourceName::NONE), Ok(expected));
            }
        }
        assert_eq!(queues(&table, (7, 5), ResourceName::NONE), not, "which of two?");
        assert_eq!(queues(&table, (5, 5), b), not);
        assert_eq!(table.deny(Principal::Uid(8), d, ResourceName::NONE).unwrap().len(), 1);
        assert_eq!(queues(&table, (8, 9), a), Ok(2));
        assert_eq!(table.deny(Principal::Uid(8), d, a).unwrap_err().code, Code::Unknown);
        for subject in [Principal::Anyone, Principal::Gid(9)] {
            table.deny(subject, d, a).unwrap();
        }
        assert_eq!(queues(&table, (7, 5), a), Ok(OWNER_QUEUES_DEFAULT), "given to nobody");
    }

    #[test]
    fn errors_say_what_is_allowed_and_nothing_else() {
        let mut table = table();
        table.allow(rule(Principal::Uid(8), "b", 3)).unwrap();
        let d = name("d");
        let text = |(uid, gid): (u32, u32), part| {
            table.find(UserIds { uid, gid }, d, part).unwrap_err().to_string()
        };
        assert_eq!(text((8, 8), name("a")), "uid 8 may not use d/a; it may use: d/b");
        assert_eq!(text((8, 8), name("x")), "uid 8 may not use d/x; it may use: d/b");
        assert_eq!(text((9, 8), name("b")), "uid 9 may not use d/b; it may use: nothing");
        assert_eq!(
            text((9, 8), ResourceName::NONE),
            "uid 9 may not use d/anything; it may use: nothing"
        );
        let refused = table.find(UserIds { uid: 7, gid: 7 }, d, name("nbd")).unwrap_err();
        assert_eq!(refused.code, Code::Taken);
        assert!(refused.text.len() < 240);
        let mut wrong = |rule| table.allow(rule).unwrap_err().code;
        assert_eq!(wrong(rule(Principal::Anyone, "x", 1)), Code::Unknown);
        assert_eq!(wrong(rule(Principal::Anyone, "nbd", 1)), Code::Taken);
        assert_eq!(wrong(rule(Principal::Anyone, "a", 0)), Code::Rule);
        assert_eq!(wrong(rule(Principal::Anyone, "a", 1025)), Code::Rule);
        let shallow = Grant { depth: 1, ..Grant::with_queues(1) };
        assert_eq!(
            wrong(AclRule { grant: shallow, ..rule(Principal::Anyone, "a", 1) }),
            Code::Rule
        );
    }
}
