//! Bring-up of a real controller by its registers (NVMe sections 3.1, 7.6.1 and 7.6.2): stopped, told
//! where its admin queues are, started; and stopped in order when it is let go.
//!
//! Guarantee: what waits for a controller ends, in the time that the controller itself says it may
//! take at most (CAP.TO); a controller that is gone (all registers read as ones, or its bus
//! has lost it: then they are not looked at) or that has failed (CSTS.CFS) is told from one that is
//! slow.

use clock::Nanos;
use nvme::register::{ACQ, AQA, ASQ, CAP, CC, CSTS, admin_queue_sizes};
use nvme::{Cap, Cc, Csts, Sqe};
use ring::{ControllerOwnership, NotRegistered, Port};

use crate::DriverError;
use crate::admin::ProgressFn;

/// Bytes of a completion queue entry.
const CQE_BYTES: usize = 16;
/// How long a shutdown may take at most: the longest that CAP.TO could say.
const SHUTDOWN_TIMEOUT: Nanos = Nanos::from_millis(127_500);
/// What a controller is given at least: some say that it takes no time.
const READY_TIMEOUT_MIN: Nanos = Nanos::from_millis(500);

/// The value of a register of 64 bits.
fn read64(port: &Port, offset: usize) -> u64 {
    let low = u64::from(port.register(offset));
    low | u64::from(port.register(offset + 4)) << 32
}

fn write64(port: &Port, offset: usize, value: u64) {
    port.set_register(offset, value as u32);
    port.set_register(offset + 4, (value >> 32) as u32);
}

/// How the controller is.
///
/// # Errors
/// [`DriverError::Removed`].
fn status(port: &Port) -> Result<Csts, DriverError> {
    match port.ownership() {
        ControllerOwnership::Lost => None,
        ControllerOwnership::Owned | ControllerOwnership::ReleaseRequested => {
            Csts::from_value(port.register(CSTS))
        }
    }
    .ok_or(DriverError::Removed)
}

/// Whether a real controller is not there any more.
pub(crate) fn is_removed(port: &Port) -> bool {
    port.is_real_controller() && status(port).is_err()
}

/// Pumps until `done`, for `patience` at most; `pump_time` is what one takes at least.
fn wait_until(
    port: &Port,
    (step, patience): (&'static str, Nanos),
    pump: ProgressFn<'_>,
    pump_time: Nanos,
    mut done: impl FnMut(Csts) -> Result<bool, DriverError>,
) -> Result<(), DriverError> {
    let polls = patience.0 / pump_time.0.max(1);
    for _ in 0..=polls {
        if done(status(port)?)? {
            return Ok(());
        }
        pump();
    }
    Err(DriverError::InitTimeout { step, waited: patience })
}

/// How long the controller may take to become ready or to stop.
fn ready_timeout(capabilities: &Cap) -> Nanos {
    READY_TIMEOUT_MIN.max(Nanos::from_millis(500 * u64::from(capabilities.timeout_500ms)))
}

/// What the controller can do, if that is enough.
///
/// # Errors
/// [`DriverError::Removed`], [`DriverError::Unsupported`].
pub(crate) fn capabilities(port: &Port) -> Result<Cap, DriverError> {
    status(port)?;
    let capabilities = Cap::from_value(read64(port, CAP));
    if !capabilities.nvm_commands {
        return Err(DriverError::Unsupported { what: "NVM command set" });
    }
    // Pages are 4096 bytes here.
    if capabilities.page_min > 0 {
        return Err(DriverError::Unsupported { what: "memory pages of 4096 bytes" });
    }
    if capabilities.max_entries < 2 {
        return Err(DriverError::Implausible { what: "that queues have 1 entry".into() });
    }
    Ok(capabilities)
}

/// Whether a controller that was told to stop or to start has done so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum InitState {
    Stopped,
    Ready,
    Failed,
}

/// How far the controller is.
///
/// # Errors
/// [`DriverError::Removed`].
pub(crate) fn init_state(port: &Port) -> Result<InitState, DriverError> {
    let status = status(port)?;
    Ok(match (status.ready, status.fatal) {
        (true, _) => InitState::Ready,
        (false, true) => InitState::Failed,
        (false, false) => InitState::Stopped,
    })
}

/// Tells the controller to stop, and says how long it may take.
///
/// # Errors
/// [`DriverError::Removed`].
pub(crate) fn begin_stop(port: &Port) -> Result<Nanos, DriverError> {
    let limit = ready_timeout(&capabilities(port)?);
    port.set_register(CC, Cc::default().to_value());
    Ok(limit)
}

/// Zeroes the port's admin queues, tells the controller, which is stopped, to start on them, and
/// says how long it may take.
///
/// # Errors
/// [`DriverError::Removed`]; [`DriverError::Ring`] for queues that are not registered.
pub(crate) fn begin_start(port: &Port) -> Result<Nanos, DriverError> {
    let limit = ready_timeout(&capabilities(port)?);
    let ((submission, entries), (completion, _)) =
        (port.admin_submission(), port.admin_completion());
    for (at, entry_bytes) in [(submission, size_of::<Sqe>()), (completion, CQE_BYTES)] {
        let bytes = usize::from(entries) * entry_bytes;
        let found = port.memory().find(at, bytes as u64)?;
        found.region.fill(found.offset, bytes, 0);
    }
    let wire = |at, entry_bytes: usize| {
        let len = u64::from(entries) * entry_bytes as u64;
        port.memory().contiguous_bus_address(at, len).ok_or(NotRegistered { iova: at, len })
    };
    let (submission, completion) =
        (wire(submission, size_of::<Sqe>())?, wire(completion, CQE_BYTES)?);
    port.set_register(AQA, admin_queue_sizes(entries));
    write64(port, ASQ, submission);
    write64(port, ACQ, completion);
    port.set_register(CC, Cc { enabled: true, shut_down: false }.to_value());
    Ok(limit)
}

/// Stops the controller: it forgets its queues, and everything that was outstanding there.
///
/// # Errors
/// [`DriverError::InitTimeout`], [`DriverError::Removed`].
pub(crate) fn stop(port: &Port, pump: ProgressFn<'_>, pump_time: Nanos) -> Result<(), DriverError> {
    let limit = ready_timeout(&capabilities(port)?);
    let enabled = Cc::from_value(port.register(CC)).enabled;
    // One that is on its way to be ready may not be stopped before it is (NVMe section 3.1.5); if
    // it does not get there, it is stopped all the same.
    if enabled {
        let ready = |s: Csts| Ok(s.ready || s.fatal);
        match wait_until(port, ("become ready", limit), pump, pump_time, ready) {
            Ok(()) | Err(DriverError::InitTimeout { .. }) => {}
            Err(error) => return Err(error),
        }
    }
    begin_stop(port)?;
    wait_until(port, ("stop", limit), pump, pump_time, |s| Ok(!s.ready))
}

/// Starts a controller that was stopped, on the port's admin queues.
///
/// # Errors
/// [`DriverError::InitTimeout`], [`DriverError::Failed`], [`DriverError::Removed`].
pub(crate) fn start(
    port: &Port,
    pump: ProgressFn<'_>,
    pump_time: Nanos,
) -> Result<(), DriverError> {
    let limit = begin_start(port)?;
    wait_until(port, ("become ready", limit), pump, pump_time, |s| {
        if s.fatal { Err(DriverError::Failed) } else { Ok(s.ready) }
    })
}

/// Tells the controller that it will be let go, waits until it has put in order what it must, and
/// stops it.
///
/// # Errors
/// [`DriverError::InitTimeout`], [`DriverError::Removed`].
pub(crate) fn shut_down(
    port: &Port,
    pump: ProgressFn<'_>,
    pump_time: Nanos,
) -> Result<(), DriverError> {
    status(port)?;
    if !Cc::from_value(port.register(CC)).enabled {
        return Ok(());
    }
    port.set_register(CC, Cc { enabled: true, shut_down: true }.to_value());
    let told = wait_until(port, ("shut down", SHUTDOWN_TIMEOUT), pump, pump_time, |s| {
        Ok(s.shut_down || s.fatal)
    });
    let stopped = stop(port, pump, pump_time);
    told.and(stopped)
}
