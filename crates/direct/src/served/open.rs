//! [`Device::served`]: a part of a drive that another process serves (`sluice serve --socket`).

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use clock::{Nanos, RealClock};
use driver::{Controller, EmulatedError};

use super::ask::Asker;
use super::life::Life;
use super::message::{Granted, Message};
use super::name::Name;
use super::refusal::ServedError;
use super::session::Session;
use crate::{Device, DirectError};

/// What is opened, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServedConfig {
    /// The drive; without, the only one.
    pub device: Option<Name>,
    /// Its part; without, the only one that the user may use.
    pub partition: Option<Name>,
    /// I/O queues, exactly; without, what the user has left, 4 at most.
    pub queues: Option<u16>,
    /// How long the server may take for an answer, and its drive for the commands that make, change or
    /// delete a queue; more than 0. A server that is stopped is waited for no longer, and what it was
    /// asked fails with [`ServedError::Unanswered`]. Reads and writes have no such limit.
    pub timeout: Nanos,
}

impl Default for ServedConfig {
    fn default() -> ServedConfig {
        let timeout = ServedConfig::TIMEOUT;
        ServedConfig { device: None, partition: None, queues: None, timeout }
    }
}

impl ServedConfig {
    /// How long a server may take unless it is said otherwise.
    pub const TIMEOUT: Nanos = Nanos::from_secs(5);

    /// From `PARTITION` or `DEVICE/PARTITION`.
    ///
    /// # Errors
    /// [`ServedError::Name`].
    pub fn of(what: &str) -> Result<ServedConfig, ServedError> {
        let (device, partition) = match what.split_once('/') {
            Some((device, partition)) => (Some(Name::new(device)?), partition),
            None => (None, what),
        };
        let partition = Some(Name::new(partition)?);
        Ok(ServedConfig { device, partition, ..ServedConfig::default() })
    }
}

/// Where a device came from, to open it again.
#[derive(Debug)]
pub(crate) struct Served {
    pub(crate) session: Arc<Session>,
    path: PathBuf,
    config: ServedConfig,
}

impl Served {
    /// The same error, as the server would tell it: why it is gone, what it refused, or that it did not
    /// answer.
    pub(crate) fn explain(&self, error: DirectError) -> DirectError {
        explain(&self.session, self.config.timeout, error)
    }

    /// What runs while the drive has not answered an admin command.
    pub(crate) fn pump(&self) -> impl FnMut() + '_ {
        pump(self.session.life(), self.config.timeout)
    }
}

fn explain(session: &Session, timeout: Nanos, error: DirectError) -> DirectError {
    if let Some(why) = session.life().why() {
        return ServedError::Gone(why).into();
    }
    if let Some(error) = session.take_untaken() {
        return error.into();
    }
    match &error {
        DirectError::Drive(driver) | DirectError::Queue(EmulatedError::Driver(driver))
            if driver.is_unresponsive() =>
        {
            ServedError::Unanswered { what: "an admin command of its drive", timeout }.into()
        }
        _ => error,
    }
}

/// Looks without a sleep.
const EAGER: u64 = 2_000;
const PAUSE: Duration = Duration::from_micros(20);

/// Looks for the answer to an admin command before it counts as missing: with a pause between them they
/// last for `timeout` at least.
fn looks(timeout: Nanos) -> u64 {
    EAGER + timeout.0 / PAUSE.as_nanos() as u64 + 1
}

/// What runs while the drive has not answered admin commands. When the time is over, or the server is
/// gone, there is no pause between two looks any more, and they are over at once.
fn pump(life: &Life, timeout: Nanos) -> impl FnMut() + '_ {
    let clock = RealClock::start();
    let until = Nanos(clock.now().0.saturating_add(timeout.0));
    let mut looks = 0;
    move || {
        looks += 1;
        if life.is_over() {
            return;
        }
        match looks {
            0..EAGER => std::thread::yield_now(),
            _ if clock.now() < until => std::thread::sleep(PAUSE),
            _ => {}
        }
    }
}

impl Device {
    /// Opens a part of a drive that the server at `path` shares: `what` is `PARTITION` or
    /// `DEVICE/PARTITION`, or nothing, if there is only one that the user may use. Its sectors count
    /// from 0. Commands, data and doorbells are memory that both processes have: no system call is
    /// made while both are awake.
    ///
    /// When the server goes, everything outstanding ends at once with
    /// [`Status::HOST_PATH_ERROR`](nvme::Status::HOST_PATH_ERROR)
    /// ([`IoError::is_gone`](crate::IoError::is_gone)), [`gone`](Device::gone) says why, and
    /// [`reconnect`](Device::reconnect) opens the same again when the server is back. A server that is
    /// there and does not answer is waited for as long as [`ServedConfig::timeout`] says; the device goes
    /// on when the server does.
    ///
    /// # Errors
    /// [`DirectError::Served`] with what the server refuses, and would not refuse;
    /// [`ServedError::Unanswered`].
    pub fn served(path: impl AsRef<Path>, what: Option<&str>) -> Result<Device, DirectError> {
        let config = what.map_or(Ok(ServedConfig::default()), ServedConfig::of)?;
        Device::served_with(path, config)
    }

    /// As [`served`](Device::served), with a number of queues, and how long the server may take.
    ///
    /// # Errors
    /// [`DirectError::Served`]; [`DirectError::Config`] for no time at all.
    pub fn served_with(
        path: impl AsRef<Path>,
        config: ServedConfig,
    ) -> Result<Device, DirectError> {
        let path = path.as_ref().to_path_buf();
        let (device, partition, timeout) = (config.device, config.partition, config.timeout);
        if timeout == Nanos::ZERO {
            let allowed = "more than 0 ns for an answer";
            return Err(DirectError::Config { key: "timeout", value: 0, allowed });
        }
        let open = Message::Open {
            device: device.unwrap_or_default(),
            partition: partition.unwrap_or_default(),
            queues: config.queues.unwrap_or(0),
        };
        let (session, port) = Session::open(Asker::connect(&path, timeout)?, open, timeout)?;
        let mut pump = pump(session.life(), timeout);
        let controller = Controller::attach(port, &mut pump, looks(timeout));
        drop(pump);
        let controller = controller.map_err(|error| explain(&session, timeout, error.into()))?;
        let Granted { device, partition, .. } = session.granted;
        let name = format!("{device}/{partition}");
        Ok(Device::of_server(name, controller, Served { session, path, config }))
    }

    /// Opens the same part of the same server's drive again: one attempt. This device stays as it is;
    /// its buffers and queues are not the new one's.
    ///
    /// # Errors
    /// [`DirectError::Served`], also for a device that is not a served one
    /// ([`ServedError::is_gone`]: the server is not back yet).
    pub fn reconnect(&self) -> Result<Device, DirectError> {
        let Some(served) = self.opened().served() else {
            return Err(ServedError::NotServed { device: self.name().to_owned() }.into());
        };
        Device::served_with(&served.path, served.config)
    }

    /// What the server has given, if it is a served device.
    pub fn granted(&self) -> Option<&Granted> {
        Some(&self.opened().served()?.session.granted)
    }
}
