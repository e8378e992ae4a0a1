//! [`Device::served`]: a part of a drive that another process serves (`sluice serve --socket`).

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use driver::Controller;

use super::ask::Asker;
use super::life::Life;
use super::message::{Granted, Message};
use super::name::Name;
use super::refusal::{Gone, ServedError};
use super::session::Session;
use crate::{Device, DirectError};

/// What is opened, and how.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ServedConfig {
    /// The drive; without, the only one.
    pub device: Option<Name>,
    /// Its part; without, the only one that the user may use.
    pub partition: Option<Name>,
    /// I/O queues, exactly; without, what the user has left, 4 at most.
    pub queues: Option<u16>,
}

impl ServedConfig {
    /// From `PARTITION` or `DEVICE/PARTITION`.
    ///
    /// # Errors
    /// [`ServedError::Name`].
    pub fn of(what: &str) -> Result<ServedConfig, ServedError> {
        let (device, partition) = match what.split_once('/') {
            Some((device, partition)) => (Some(Name::new(device)?), partition),
            None => (None, what),
        };
        Ok(ServedConfig { device, partition: Some(Name::new(partition)?), queues: None })
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
    /// The same error, as the server would tell it: why it is gone, or what it refused.
    pub(crate) fn explain(&self, error: DirectError) -> DirectError {
        if let Some(why) = self.session.life().why() {
            return ServedError::Gone(why).into();
        }
        match self.session.take_refusal() {
            Some(refusal) => ServedError::Refused(refusal).into(),
            None => error,
        }
    }
}

/// Looks for the answer to an admin command before it counts as missing: a minute at least. When the
/// server is gone there is no pause between them, and they are over at once.
const PATIENCE: u64 = 1_000_000;
/// Looks without a sleep.
const EAGER: u64 = 2_000;
const PAUSE: Duration = Duration::from_micros(20);

/// What runs while the drive has not answered an admin command.
pub(crate) fn pump(life: &Life) -> impl FnMut() + '_ {
    let mut looks = 0;
    move || {
        looks += 1;
        if life.is_over() {
            return;
        }
        match looks {
            0..EAGER => std::thread::yield_now(),
            _ => std::thread::sleep(PAUSE),
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
    /// [`reconnect`](Device::reconnect) opens the same again when the server is back.
    ///
    /// # Errors
    /// [`DirectError::Served`] with what the server refuses, and would not refuse.
    pub fn served(path: impl AsRef<Path>, what: Option<&str>) -> Result<Device, DirectError> {
        let config = what.map_or(Ok(ServedConfig::default()), ServedConfig::of)?;
        Device::served_with(path, config)
    }

    /// As [`served`](Device::served), with a number of queues.
    ///
    /// # Errors
    /// [`DirectError::Served`].
    pub fn served_with(
        path: impl AsRef<Path>,
        config: ServedConfig,
    ) -> Result<Device, DirectError> {
        let path = path.as_ref().to_path_buf();
        let (device, partition) = (config.device, config.partition);
        let open = Message::Open {
            device: device.unwrap_or_default(),
            partition: partition.unwrap_or_default(),
            queues: config.queues.unwrap_or(0),
        };
        let (session, port) = Session::open(Asker::connect(&path)?, open)?;
        let life = session.life().clone();
        let controller = Controller::attach(port, &mut pump(&life), PATIENCE);
        let controller = controller.map_err(|error| match life.why() {
            Some(why) => DirectError::Served(ServedError::Gone(why)),
            None => error.into(),
        })?;
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

    /// Why a served device is not there any more, if it is not. To be asked by who submits vector
    /// commands, and gives them up then
    /// ([`VectorQueue::abandon`](lightnvm::vector::VectorQueue::abandon)).
    pub fn gone(&self) -> Option<Gone> {
        self.opened().served()?.session.life().why()
    }

    /// What the server has given, if it is a served device.
    pub fn granted(&self) -> Option<&Granted> {
        Some(&self.opened().served()?.session.granted)
    }
}
