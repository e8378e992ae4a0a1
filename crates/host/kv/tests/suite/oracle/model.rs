//! [`Model`]: the possible values of every key.

use std::collections::BTreeMap;

/// A version of a key: a value, identified by a number, with its length; or none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Version {
    /// Position in the order of submission.
    pub(crate) order: u64,
    pub(crate) value: Option<(u64, usize)>,
    /// The batch that it belongs to.
    pub(crate) batch: Option<u64>,
}

/// The versions of one key, oldest first; the first is durable.
#[derive(Clone, Debug, Default)]
pub(crate) struct History {
    pub(crate) versions: Vec<Version>,
    /// Older versions were overwritten durably.
    pub(crate) floor: u64,
}

#[derive(Debug, Default)]
pub(crate) struct Model {
    pub(crate) keys: BTreeMap<Vec<u8>, History>,
}

impl Model {
    /// Returns the value of the key just before `order`.
    pub(crate) fn before(&self, key: &[u8], order: u64) -> Option<(u64, usize)> {
        let versions = &self.keys.get(key)?.versions;
        versions.iter().rfind(|v| v.order < order)?.value
    }

    pub(crate) fn push(&mut self, key: &[u8], version: Version) {
        self.keys.entry(key.to_vec()).or_default().versions.push(version);
    }

    /// Removes a mutation that had no effect.
    pub(crate) fn remove(&mut self, key: &[u8], order: u64) {
        if let Some(history) = self.keys.get_mut(key) {
            history.versions.retain(|v| v.order != order);
        }
    }

    /// Marks all versions up to `order` as durable.
    pub(crate) fn durable(&mut self, key: &[u8], order: u64) {
        if let Some(history) = self.keys.get_mut(key)
            && let Some(last) = history.versions.iter().rfind(|v| v.order <= order)
        {
            history.floor = history.floor.max(last.order);
        }
    }

    pub(crate) fn all_durable(&mut self, order: u64) {
        let keys: Vec<Vec<u8>> = self.keys.keys().cloned().collect();
        for key in keys {
            self.durable(&key, order);
        }
    }

    /// Returns the versions that a power cut may leave.
    pub(crate) fn possible(&self, key: &[u8]) -> Vec<Version> {
        let nothing = Version { order: 0, value: None, batch: None };
        let Some(history) = self.keys.get(key) else { return vec![nothing] };
        let mut possible: Vec<Version> =
            history.versions.iter().filter(|v| v.order >= history.floor).copied().collect();
        if history.floor == 0 {
            possible.insert(0, nothing);
        }
        possible
    }

    /// Resolves the model to the values found after a power cut, given as number and length by key.
    /// Panics if they are impossible.
    pub(crate) fn resolve(&mut self, found: &BTreeMap<Vec<u8>, (u64, usize)>) {
        for key in found.keys() {
            assert!(self.keys.contains_key(key), "{} was never put", key.escape_ascii());
        }
        // For every key, the orders that the found value may have.
        let mut orders: BTreeMap<&[u8], Vec<Version>> = BTreeMap::new();
        for key in self.keys.keys() {
            let value = found.get(key).copied();
            let possible = self.possible(key);
            let matching: Vec<Version> =
                possible.iter().filter(|v| v.value == value).copied().collect();
            let name = key.escape_ascii();
            assert!(!matching.is_empty(), "{name} is {value:?}, but may be {possible:?}");
            orders.insert(key, matching);
        }
        // If one mutation of a batch was certainly found, the whole batch must be.
        let mut batches: BTreeMap<u64, Vec<(&[u8], u64)>> = BTreeMap::new();
        for (key, history) in &self.keys {
            for version in history.versions.iter().filter(|v| v.order >= history.floor) {
                if let Some(batch) = version.batch {
                    batches.entry(batch).or_default().push((key, version.order));
                }
            }
        }
        for (batch, members) in batches {
            let certain = |(key, order): &(&[u8], u64)| matches!(orders[key][..], [only] if only.order == *order);
            let missing =
                |(key, order): &(&[u8], u64)| orders[key].iter().all(|v| v.order < *order);
            if members.iter().any(certain) && members.iter().any(missing) {
                let show = |(key, order): &(&[u8], u64)| {
                    let (possible, name) = (self.possible(key), key.escape_ascii());
                    format!("\n{name} {order}: one of {:?} of {possible:?}", orders[key])
                };
                let members: String = members.iter().map(show).collect();
                panic!("batch {batch} is there in part: {members}");
            }
        }
        self.keys.retain(|key, _| found.contains_key(key));
        for (key, history) in &mut self.keys {
            let value = found.get(key).copied();
            let version = Version { order: 1, value, batch: None };
            *history = History { versions: vec![version], floor: 1 };
        }
    }
}
