//! [`RunWatcher`]: the rest of a run while a machine runs the jobs: samples, changes, traces and
//! progress.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use machine::{CoreSegment, Device, EngineWatcher, TaskId};
use stack::{EmulatedDevice, SimulatedDevice};
use time::{Component, Nanos};
use tracepoint::EventOrigin;

use super::PROGRESS_MAX;
use crate::sim_run::SimRun;
use crate::{RunParts, SimError};

/// A device that the machine and the rest of the run use in turn: while the latter does, there is
/// none.
#[derive(Clone)]
pub(super) struct SharedDevice(Arc<Mutex<Option<EmulatedDevice>>>);

/// The rest of the run gives a device back before the machine continues.
const PRESENT: &str = "the machine has its devices while it runs";

impl SharedDevice {
    pub(super) fn new(device: EmulatedDevice) -> SharedDevice {
        SharedDevice(Arc::new(Mutex::new(Some(device))))
    }

    fn lock(&self) -> MutexGuard<'_, Option<EmulatedDevice>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Removes the device.
    pub(super) fn take(&self) -> Option<EmulatedDevice> {
        self.lock().take()
    }

    fn with<R>(&self, use_it: impl FnOnce(&mut EmulatedDevice) -> R) -> R {
        use_it(self.lock().as_mut().expect(PRESENT))
    }
}

/// A device of the run on the machine.
pub(super) struct HostedDevice {
    pub(super) device: SharedDevice,
    /// Index of its first drive.
    pub(super) drive: u16,
}

impl Device for HostedDevice {
    fn poll(&mut self, now: Nanos) -> bool {
        tracepoint::set_drive(self.drive);
        self.device.with(|device| device.poll(now))
    }

    fn deadline(&self) -> Nanos {
        self.device.with(|device| device.deadline())
    }

    fn posted(&self) -> u64 {
        self.device.with(|device| device.posted())
    }
}

/// The tasks of the machine, in the order of their creation.
#[derive(Debug, Default)]
pub(super) struct HostedTasks {
    pub(super) names: Vec<String>,
    /// Origin of the events of each task.
    pub(super) origins: Vec<EventOrigin>,
}

impl HostedTasks {
    pub(super) fn push(&mut self, name: String, origin: EventOrigin) {
        self.names.push(name);
        self.origins.push(origin);
    }
}

/// Does what happens in a run besides the jobs.
pub(super) struct RunWatcher<'a, 'r, 's> {
    pub(super) run: &'a mut SimRun,
    pub(super) devices: Vec<SharedDevice>,
    pub(super) tasks: HostedTasks,
    pub(super) parts: RunParts<'r, 's>,
    /// Reports progress; returns whether the run goes on.
    pub(super) tick: &'a mut dyn FnMut(Nanos, f64) -> bool,
    /// The first error, which ends the run.
    pub(super) error: Option<SimError>,
}

impl RunWatcher<'_, '_, '_> {
    /// Calls `use_it` with the run, which has the devices meanwhile.
    pub(super) fn with_devices(
        &mut self,
        use_it: impl FnOnce(&mut SimRun, &mut RunParts<'_, '_>) -> Result<(), SimError>,
    ) {
        self.run.devices.extend(self.devices.iter().filter_map(SharedDevice::take));
        let result = use_it(self.run, &mut self.parts);
        for (shared, device) in self.devices.iter().zip(self.run.devices.drain(..)) {
            *shared.lock() = Some(device);
        }
        if let Err(error) = result {
            self.error.get_or_insert(error);
            machine::stop();
        }
    }
}

impl EngineWatcher for RunWatcher<'_, '_, '_> {
    fn tick(&mut self, now: Nanos) -> bool {
        if self.parts.recording.is_on() {
            self.with_devices(|run, parts| parts.recording.collect(now, run));
        }
        let paths = self.run.paths.iter().filter_map(|path| path.hosted.as_ref());
        let least = paths.map(|path| path.progress()).min().unwrap_or(PROGRESS_MAX);
        (self.tick)(now, f64::from(least) / f64::from(PROGRESS_MAX)) && self.error.is_none()
    }

    fn next_observation(&self) -> Nanos {
        self.parts.sampler.next()
    }

    fn next_change(&self) -> Nanos {
        match self.error {
            Some(_) => Nanos::MAX,
            None => self.parts.changes.deadline(),
        }
    }

    fn at(&mut self, now: Nanos) {
        self.with_devices(|run, RunParts { sampler, changes, .. }| {
            sampler.sample(now, |path| run.ftl_snapshot(path));
            if changes.deadline() <= now {
                changes.apply(now, run)?;
                machine::doorbell();
                machine::notify();
            }
            Ok(())
        });
    }

    fn follows_tasks(&self) -> bool {
        self.parts.recording.explains()
    }

    fn enter_task(&mut self, task: TaskId, now: Nanos) {
        tracepoint::set_origin(self.tasks.origins[task.index()]);
        tracepoint::set_time(now);
    }

    fn leave_task(&mut self, task: TaskId) {
        self.tasks.origins[task.index()] = tracepoint::origin();
    }

    fn segments(&mut self, segments: &[CoreSegment]) {
        self.parts.recording.draw_machine(&self.tasks.names, segments);
    }
}
