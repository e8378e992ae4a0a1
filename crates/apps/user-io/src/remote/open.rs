//! [`IoDevice::connect`]: opens a partition of a drive that another process serves (`sluice serve --socket`).

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use driver::{ControllerHandle, NvmeDeviceError};
use event::RealClock;
use time::Nanos;

use super::error::RemoteDeviceError;
use super::liveness::ServerLiveness;
use super::rpc_client::RpcClient;
use super::session::ClientSession;
use crate::{DirectError, IoDevice};
use share_proto::ResourceName;
use share_proto::{Message, SessionGrant};

/// Configuration of a remote device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemoteDeviceConfig {
    /// The drive; `None` for the only one.
    pub device: Option<ResourceName>,
    /// The partition; `None` for the only one that the user may use.
    pub partition: Option<ResourceName>,
    /// Exact number of I/O queues; `None` for the user's remaining queues, at most 4.
    pub queues: Option<u16>,
    /// Timeout of each reply of the server, and of the drive's commands that create, change or
    /// delete a queue; more than 0. A call that exceeds it fails with
    /// [`RemoteDeviceError::Timeout`]. Reads and writes have no such timeout.
    pub timeout: Nanos,
}

impl Default for RemoteDeviceConfig {
    fn default() -> RemoteDeviceConfig {
        let timeout = RemoteDeviceConfig::REPLY_TIMEOUT_DEFAULT;
        RemoteDeviceConfig { device: None, partition: None, queues: None, timeout }
    }
}

impl RemoteDeviceConfig {
    /// Default timeout of replies.
    pub const REPLY_TIMEOUT_DEFAULT: Nanos = Nanos::from_secs(5);

    /// Parses `PARTITION` or `DEVICE/PARTITION`.
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

/// The connection and its parameters, kept for reconnecting.
#[derive(Debug)]
pub(crate) struct RemoteDevice {
    pub(crate) session: Arc<ClientSession>,
    path: PathBuf,
    config: RemoteDeviceConfig,
}

impl RemoteDevice {
    /// Refines an error with the server's reason: why it was removed, what it refused, or that it
    /// timed out.
    pub(crate) fn explain(&self, error: DirectError) -> DirectError {
        explain(&self.session, self.config.timeout, error)
    }

    /// Returns the function that runs while an admin command is outstanding.
    pub(crate) fn admin_progress(&self) -> impl FnMut() + '_ {
        admin_progress(self.session.liveness(), self.config.timeout)
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

/// Polls without a pause before the first sleep.
const SPIN_POLL_LIMIT: u64 = 2_000;
const POLL_PAUSE: Duration = Duration::from_micros(20);

/// Returns the number of polls after which an admin command has timed out. With the pause between
/// them, they take at least `timeout`.
fn poll_limit(timeout: Nanos) -> u64 {
    SPIN_POLL_LIMIT + timeout.0 / POLL_PAUSE.as_nanos() as u64 + 1
}

/// Returns the function that runs while admin commands are outstanding. After the timeout or a
/// disconnect it does not pause, so that the remaining polls end at once.
fn admin_progress(life: &ServerLiveness, timeout: Nanos) -> impl FnMut() + '_ {
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
    /// Opens a partition of a drive that the server at `path` shares. `what` is `PARTITION` or
    /// `DEVICE/PARTITION`, or `None` if the user may use only one. Its sectors count from 0.
    /// Commands, data and doorbells are shared memory: no system call is made while both sides are
    /// awake.
    ///
    /// If the server ends, everything outstanding completes at once with
    /// [`Status::HOST_PATH_ERROR`](nvme::Status::HOST_PATH_ERROR)
    /// ([`IoError::is_removed`](crate::IoError::is_removed)).
    /// [`removal_reason`](IoDevice::removal_reason) returns the reason, and
    /// [`reconnect`](IoDevice::reconnect) opens the partition again when the server is back. If the
    /// server is present but does not answer, calls time out after [`RemoteDeviceConfig::timeout`];
    /// the device continues when the server does.
    ///
    /// # Errors
    /// [`DirectError::Remote`] if the server refuses, with what it would grant;
    /// [`RemoteDeviceError::Timeout`].
    pub fn connect(path: impl AsRef<Path>, what: Option<&str>) -> Result<IoDevice, DirectError> {
        let config = what.map_or(Ok(RemoteDeviceConfig::default()), RemoteDeviceConfig::parse)?;
        IoDevice::connect_with(path, config)
    }

    /// Opens a partition as [`connect`](IoDevice::connect) does, with a number of queues and a
    /// timeout.
    ///
    /// # Errors
    /// [`DirectError::Remote`]; [`DirectError::Config`] for a timeout of zero.
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
        let mut progress = admin_progress(session.liveness(), timeout);
        let controller = ControllerHandle::connect(port, &mut progress, poll_limit(timeout));
        drop(progress);
        let controller = controller.map_err(|error| explain(&session, timeout, error.into()))?;
        let SessionGrant { device, partition, .. } = session.grant;
        let name = format!("{device}/{partition}");
        Ok(IoDevice::from_remote(name, controller, RemoteDevice { session, path, config }))
    }

    /// Opens the same partition of the same server again, in one attempt. This device stays as it
    /// is; its buffers and queues do not belong to the new one.
    ///
    /// # Errors
    /// [`DirectError::Remote`], also if the device is not remote. If
    /// [`RemoteDeviceError::is_disconnected`], the server is not back yet.
    pub fn reconnect(&self) -> Result<IoDevice, DirectError> {
        let Some(served) = self.inner().remote() else {
            return Err(RemoteDeviceError::NotRemote { device: self.name().to_owned() }.into());
        };
        IoDevice::connect_with(&served.path, served.config)
    }

    /// Returns the resources that the server granted; `None` if the device is not remote.
    pub fn session_grant(&self) -> Option<&SessionGrant> {
        Some(&self.inner().remote()?.session.grant)
    }
}
