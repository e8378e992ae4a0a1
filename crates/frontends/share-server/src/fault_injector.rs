//! [`FaultInjector`]: faults that administrators inject into a drive, on the thread that owns it.

use std::fmt;
use std::sync::Arc;

use controller::FaultError;
use share_proto::{Code, ProtocolError, ResourceName};

use super::owner_call::OwnerStopped;

/// Why a fault is not injected.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum FaultInjectionError {
    /// The text is not a fault.
    #[error("{0}")]
    Text(String),
    /// The drive cannot have the fault.
    #[error(transparent)]
    Refused(#[from] FaultError),
    /// The thread that owns the drive has ended, or does not answer.
    #[error(transparent)]
    Stopped(#[from] OwnerStopped),
}

type InjectFn = dyn Fn(&str) -> Result<(), FaultInjectionError> + Send + Sync;

/// Injects faults into a drive.
#[derive(Clone)]
pub struct FaultInjector(Arc<InjectFn>);

/// A drive, and the injector of its faults.
#[derive(Clone, Debug)]
pub struct NamedFaultInjector {
    /// Name of the drive.
    pub name: ResourceName,
    /// Its injector.
    pub injector: FaultInjector,
}

impl fmt::Debug for FaultInjector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FaultInjector").finish_non_exhaustive()
    }
}

impl FaultInjector {
    /// Creates the injector from a function that reads a fault from its text, as in
    /// [`Message::Fault`](share_proto::Message::Fault), and injects it. Control threads call the
    /// function and wait.
    pub fn new(
        inject: impl Fn(&str) -> Result<(), FaultInjectionError> + Send + Sync + 'static,
    ) -> FaultInjector {
        FaultInjector(Arc::new(inject))
    }
}

impl NamedFaultInjector {
    /// Injects a fault.
    ///
    /// # Errors
    /// A refusal, after which nothing has changed.
    pub(super) fn inject(&self, fault: &str) -> Result<(), ProtocolError> {
        (self.injector.0)(fault).map_err(|error| {
            let code = match error {
                FaultInjectionError::Text(_) | FaultInjectionError::Refused(_) => Code::Fault,
                FaultInjectionError::Stopped(_) => Code::Drive,
            };
            ProtocolError::new(code, format!("{}: {error}", self.name))
        })
    }
}
