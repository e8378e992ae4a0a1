//! [`IoDevice::connect`]: a part of a drive that another process serves (`sluice serve --socket`).

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use clock::{Nanos, RealClock};
use driver::{ControllerHandle, NvmeDeviceError};

use super::liveness::ServerLiveness;
use super::message::{Message, SessionGrant};
use super::name::ResourceName;
use super::protocol_error::RemoteDeviceError;
use super::rpc_client::RpcClient;
use super::session::ClientSession;
use crate::{DirectError, IoDevice};

/// What is opened, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemoteDeviceConfig {
    /// The drive; without, the only one.
    pub device: Option<ResourceName>,
    /// Its part; without, the only one that the user may use.
    pub partition: Option<ResourceName>,
    /// I/O queues, exactly; without, what the user has left, 4 at most.
    pub queues: Option<u16>,
    /// How long the server may take for an answer, and its drive for the commands that make, change or
    /// delete a queue; more than 0. A server that is stopped is waited for no longer, and what it was
    /// asked fails with [`RemoteDeviceError::Timeout`]. Reads and writes have no such limit.
    pub timeout: Nanos,
}

impl Default for RemoteDeviceConfig {
    fn default() -> RemoteDeviceConfig {
        let timeout = RemoteDeviceConfig::REPLY_TIMEOUT_DEFAULT;
        RemoteDeviceConfig { device: None, partition: None, queues: None, timeout }
    }
}

impl RemoteDeviceConfig {
    /// How long a server may take unless it is said otherwise.
    pub const REPLY_TIMEOUT_DEFAULT: Nanos = Nanos::from_secs(5);

    /// From `PARTITION` or `DEVICE/PARTITION`.
    ///
    /// # Errors
    /// [`RemoteDeviceError::Name`].
    pub fn parse(what: &str) -> Result<RemoteDeviceConfig, RemoteDeviceError> {
        let (device, partition) = match what.split_once('/') {
            Some((device, partition)) => (Some(ResourceName::new(device)?), partition),
            None => (None, what),
        };
        let partition = Some(ResourceName::new(partition)?);
        Ok(RemoteDeviceConfig { device, partition, ..RemoteDeviceConfig::default() })
    }
}

/// Where a device came from, to open it again.
#[derive(Debug)]
pub(crate) struct RemoteDevice {
    pub(crate) session: Arc<ClientSession>,
    path: PathBuf,
    config: RemoteDeviceConfig,
}

impl RemoteDevice {
    /// The same error, as the server would tell it: why it is gone, what it refused, or that it did not
    /// answer.
    pub(crate) fn explain(&self, error: DirectError) -> DirectError {
        explain(&self.session, self.config.timeout, error)
    }

    /// What runs while the drive has not answered an admin command.
    pub(crate) fn admin_pump(&self) -> impl FnMut() + '_ {
        admin_pump(self.session.liveness(), self.config.timeout)
    }
}

fn explain(session: &ClientSession, timeout: Nanos, error: DirectError) -> DirectError {
    if let Some(why) = session.liveness().removal_reason() {
        return RemoteDeviceError::Removed(why).into();
    }
    if let Some(error) = session.take_register_error() {
        return error.into();
    }
    match &error {
        DirectError::Drive(driver) | DirectError::Queue(NvmeDeviceError::Driver(driver))
            if driver.is_unresponsive() =>
        {
            RemoteDeviceError::Timeout { what: "an admin command of its drive", timeout }.into()
        }
        _ => error,
    }
}

/// Looks without a sleep.
const SPIN_POLL_LIMIT: u64 = 2_000;
const POLL_PAUSE: Duration = Duration::from_micros(20);

/// Looks for the answer to an admin command before it counts as missing: with a pause between them they
/// last for `timeout` at least.
fn poll_limit(timeout: Nanos) -> u64 {
    SPIN_POLL_LIMIT + timeout.0 / POLL_PAUSE.as_nanos() as u64 + 1
}

/// What runs while the drive has not answered admin commands. When the time is over, or the server is
/// gone, there is no pause between two looks any more, and they are over at once.
fn admin_pump(life: &ServerLiveness, timeout: Nanos) -> impl FnMut() + '_ {
    let clock = RealClock::start();
    let until = Nanos(clock.now().0.saturating_add(timeout.0));
    let mut looks = 0;
    move || {
        looks += 1;
        if life.is_disconnected() {
            return;
        }
        match looks {
            0..SPIN_POLL_LIMIT => std::thread::yield_now(),
            _ if clock.now() < until => std::thread::sleep(POLL_PAUSE),
            _ => {}
        }
    }
}

impl IoDevice {
    /// Opens a part of a drive that the server at `path` shares: `what` is `PARTITION` or
    /// `DEVICE/PARTITION`, or nothing, if there is only one that the user may use. Its sectors count
    /// from 0. Commands, data and doorbells are memory that both processes have: no system call is
    /// made while both are awake.
    ///
    /// When the server goes, everything outstanding ends at once with
    /// [`Status::HOST_PATH_ERROR`](nvme::Status::HOST_PATH_ERROR)
    /// ([`IoError::is_removed`](crate::IoError::is_removed)), [`gone`](IoDevice::removal_reason) says why, and
    /// [`reconnect`](Device::reconnect) opens the same again when the server is back. A server that is
    /// there and does not answer is waited for as long as [`RemoteDeviceConfig::timeout`] says; the device goes
    /// on when the server does.
    ///
    /// # Errors
    /// [`DirectError::Remote`] with what the server refuses, and would not refuse;
    /// [`RemoteDeviceError::Timeout`].
    pub fn connect(path: impl AsRef<Path>, what: Option<&str>) -> Result<IoDevice, DirectError> {
        let config = what.map_or(Ok(RemoteDeviceConfig::default()), RemoteDeviceConfig::parse)?;
        IoDevice::connect_with(path, config)
    }

    /// As [`served`](IoDevice::connect), with a number of queues, and how long the server may take.
    ///
    /// # Errors
    /// [`DirectError::Remote`]; [`DirectError::Config`] for no time at all.
    pub fn connect_with(
        path: impl AsRef<Path>,
        config: RemoteDeviceConfig,
    ) -> Result<IoDevice, DirectError> {
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
        let (session, port) =
            ClientSession::open(RpcClient::connect(&path, timeout)?, open, timeout)?;
        let mut pump = admin_pump(session.liveness(), timeout);
        let controller = ControllerHandle::connect(port, &mut pump, poll_limit(timeout));
        drop(pump);
        let controller = controller.map_err(|error| explain(&session, timeout, error.into()))?;
        let SessionGrant { device, partition, .. } = session.grant;
        let name = format!("{device}/{partition}");
        Ok(IoDevice::from_remote(name, controller, RemoteDevice { session, path, config }))
    }

    /// Opens the same part of the same server's drive again: one attempt. This device stays as it is;
    /// its buffers and queues are not the new one's.
    ///
    /// # Errors
    /// [`DirectError::Remote`], also for a device that is not a served one
    /// ([`RemoteDeviceError::is_disconnected`]: the server is not back yet).
    pub fn reconnect(&self) -> Result<IoDevice, DirectError> {
        let Some(served) = self.inner().remote() else {
            return Err(RemoteDeviceError::NotRemote { device: self.name().to_owned() }.into());
        };
        IoDevice::connect_with(&served.path, served.config)
    }

    /// What the server has given, if it is a served device.
    pub fn session_grant(&self) -> Option<&SessionGrant> {
        Some(&self.inner().remote()?.session.grant)
    }
}
