//! The state of an idle drive, to be copied or saved: everything that later commands can observe.
//!
//! The configuration, the queues and the features that a host has set up are not part of it: a drive
//! that takes the state over is built and initialized as the other was.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};
use time::{Component, Nanos};

use crate::command::stage::CommandStages;
use crate::controller::{DriveTime, Personality};
use crate::namespaces::management;
use crate::personality::sanitize;
use crate::{Controller, DriveStats, LatenessRecord};

/// The state of an idle drive, lent by it or read from its saved form.
#[derive(Debug, Serialize, Deserialize)]
pub struct SavedDrive<'a> {
    personality: Cow<'a, Personality>,
    stages: Cow<'a, CommandStages>,
    lateness: LatenessRecord,
    stats: DriveStats,
    time: DriveTime,
}

impl<'a> SavedDrive<'a> {
    /// Returns the state of a drive, to be copied or saved. Media in image files are part of it, with
    /// all their data. Returns `None` if the state is not complete without its host: the drive has a
    /// controller memory buffer or a persistent memory region, operations in flight, chunk
    /// notifications that its host knows, or injected faults. Nor is the state of rules part of it.
    pub fn new(drive: &'a Controller) -> Option<SavedDrive<'a>> {
        let is_complete = drive.memory.is_empty()
            && drive.is_idle()
            && drive.deadline() == Nanos::MAX
            && drive.async_events.stats == Default::default()
            && drive.faults.is_empty()
            && drive.commands.rules.is_none()
            && !drive.zero_latency;
        is_complete.then(|| SavedDrive {
            personality: Cow::Borrowed(&drive.personality),
            stages: Cow::Borrowed(&drive.stages),
            lateness: drive.lateness.clone(),
            stats: drive.stats.clone(),
            time: drive.time,
        })
    }

    /// Gives the state to a drive with the same configuration. The queues, registered memory and
    /// features that its host has set up do not change. Returns `false`, and changes nothing, if
    /// that drive's own state is not complete without its host; see [`new`](SavedDrive::new).
    ///
    /// # Panics
    /// If the state is lent, and there is no address space for a copy.
    pub fn restore(self, drive: &mut Controller) -> bool {
        if SavedDrive::new(drive).is_none() {
            return false;
        }
        drive.personality = self.personality.into_owned();
        drive.stages = self.stages.into_owned();
        (drive.lateness, drive.stats, drive.time) = (self.lateness, self.stats, self.time);
        management::update_checks(drive);
        sanitize::restore(drive);
        true
    }
}
