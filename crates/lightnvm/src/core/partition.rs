//! [`Subsystem::create`] and [`Subsystem::remove`]: making and removing targets.
//!
//! Everything that can be refused is refused before anything is written.
//!
//! A target is made on clean chunks only: what is dirty on the units of an exclusive target is erased
//! first, and a sharing target is never handed a dirty chunk. So a target that is removed and made
//! again, be it under the same name and on the same units, never finds the old one's data. (A target
//! that recovers its mapping from what is in its chunks would take it for its own.)

use rng::Rng;

use super::registration::random_uid;
use super::{CoreError, NewTarget, Pu, Sharing, Subsystem, TARGETS_MAX, Target, TargetId, is_name};

/// Over-provisioning of at most so many times the capacity.
const OVER_PROVISIONING_MAX: f64 = 100.0;

impl Subsystem {
    /// Makes a target; a blank drive gets its partition table with the first. When this returns the
    /// target is durable.
    ///
    /// # Errors
    /// [`CoreError`]. What is refused changes nothing on the media; after [`CoreError::Journal`],
    /// [`CoreError::Command`] or [`CoreError::Timeout`] the target may be there or not.
    pub fn create(
        &mut self,
        new: NewTarget,
        pump: &mut dyn FnMut(),
    ) -> Result<TargetId, CoreError> {
        self.check(&new)?;
        self.make_writable(pump)?;
        let exclusive = new.sharing == Sharing::Exclusive;
        if exclusive {
            self.pool.clean_all(&new.pus);
            self.touched = true;
            self.settle(pump, |s| s.pool.is_clean(&new.pus))?;
        }
        let id = self.table().next_id();
        let rng = Rng::new(self.config.seed).fork(self.table().uid().0 as u64);
        let uid = random_uid(&mut rng.fork(id.0.into()));
        let created_at = self.table().sequence();
        let target = Target { id, uid, spec: new, created_at };
        self.pool.create(target).map_err(|source| self.damaged(source))?;
        self.write_all(pump)?;
        Ok(id)
    }

    /// Removes a target. Its chunks are nobody's when this returns, and erased before they are
    /// anybody's again; with `factory` they are erased now, and nothing of the target is left in the
    /// partition table's journal either.
    ///
    /// A power cut leaves the target whole or gone; with `factory`, what was not erased yet is
    /// erased later.
    ///
    /// # Errors
    /// [`CoreError::Unknown`] and [`CoreError::InUse`] change nothing on the media; after
    /// [`CoreError::Journal`], [`CoreError::Command`] or [`CoreError::Timeout`] the target may be
    /// there or not.
    pub fn remove(
        &mut self,
        name: &str,
        factory: bool,
        pump: &mut dyn FnMut(),
    ) -> Result<(), CoreError> {
        let target = self.target(name)?;
        let (id, pus) = (target.id, target.spec.pus.clone());
        let opens = self.holding(id).opens;
        if opens > 0 {
            let (drive, name) = (self.drive.clone(), name.to_owned());
            return Err(CoreError::InUse { drive, name, opens });
        }
        self.make_writable(pump)?;
        let held: Vec<u32> = self.table().owned_by(id).collect();
        self.pool.remove(id).map_err(|source| self.damaged(source))?;
        self.touched = true;
        held.into_iter().for_each(|chunk| self.emptied(chunk));
        self.write_all(pump)?;
        if factory {
            self.pool.clean_all(&pus);
            self.touched = true;
            self.settle(pump, |s| s.pool.is_clean(&pus))?;
            self.settle(pump, |s| s.journal().is_none_or(|j| !j.snapshot_is_under_way()))?;
            self.take_snapshot();
            let made = self.pool.made();
            self.settle(pump, |s| s.durable() >= made && s.is_still())?;
        }
        Ok(())
    }

    /// Waits until everything made so far is durable.
    fn write_all(&mut self, pump: &mut dyn FnMut()) -> Result<(), CoreError> {
        let made = self.pool.made();
        self.settle(pump, |s| s.durable() >= made)
    }

    /// Whether a target can be made.
    ///
    /// # Errors
    /// What [`create`](Subsystem::create) would refuse.
    pub fn check(&self, new: &NewTarget) -> Result<(), CoreError> {
        let NewTarget { name, kind, pus, sharing, options, limits } = new;
        let (drive, name) = (self.drive.clone(), name.clone());
        if !is_name(&name) {
            return Err(CoreError::Name { name });
        }
        if let Some(other) = self.table().named(&name) {
            let (kind, pus) = (other.spec.kind, other.spec.pus.to_string());
            return Err(CoreError::Exists { drive, name, kind, pus });
        }
        let total = self.table().pus();
        if pus.is_empty() || pus.last() >= Some(Pu(total)) {
            let pus = if pus.is_empty() { "none".into() } else { pus.to_string() };
            return Err(CoreError::NoSuchUnits { drive, name, pus, last: total - 1 });
        }
        if let Some((other, common)) = self.table().overlap(new) {
            let exclusive = other.spec.sharing == Sharing::Exclusive;
            let (other, common) = (other.spec.name.clone(), common.to_string());
            return Err(CoreError::Overlap { drive, new: name, other, common, exclusive });
        }
        if let Some(option) = options.given().next().filter(|_| !kind.is_block()) {
            return Err(CoreError::NoSuchOption { name, kind: *kind, option });
        }
        let option = |what, value: String, allowed: String| {
            Err(CoreError::Option { name: name.clone(), what, value, allowed })
        };
        if let Some(op) = options.over_provisioning
            && !(op.is_finite() && (0.0..=OVER_PROVISIONING_MAX).contains(&op))
        {
            let allowed = format!("it can be 0 to {OVER_PROVISIONING_MAX}");
            return option("over-provisioning", op.to_string(), allowed);
        }
        if let Some(active) = options.active_pus.filter(|n| u64::from(*n) > pus.len()) {
            let allowed = format!("it has {} of them ({pus})", pus.len());
            return option("active parallel units", active.to_string(), allowed);
        }
        if *sharing == Sharing::Exclusive && !limits.is_none() {
            let allowed = "only targets that share parallel units are rationed";
            return option("limit", "given".into(), allowed.into());
        }
        if limits.max_chunks == Some(0) {
            return option("limit", "0 chunks".into(), "it needs one at least".into());
        }
        let targets = self.table().targets().len();
        if targets >= TARGETS_MAX {
            return Err(CoreError::TooMany { drive, name, targets });
        }
        let any =
            pus.iter().map(|pu| self.pool.free_on(pu.0)).any(|(free, dirty)| free + dirty > 0);
        if *sharing == Sharing::Exclusive && !any {
            return Err(CoreError::NothingFree { drive, name, pus: pus.to_string() });
        }
        self.failed().map_or(Ok(()), |_| Err(CoreError::ReadOnly { drive }))
    }
}
