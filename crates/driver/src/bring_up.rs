//! Bring-up of a real controller by its registers (NVMe sections 3.1, 7.6.1 and 7.6.2): stopped, told
//! where its admin queues are, started; and stopped in order when it is let go.
//!
//! Guarantee: what waits for a controller ends, in the time that the controller itself says it may
//! take at most (CAP.TO); a controller that is gone (all registers read as ones, or its bus
//! has lost it: then they are not looked at) or that has failed (CSTS.CFS) is told from one that is
//! slow.

use clock::Nanos;
use nvme::register::{ACQ, AQA, ASQ, CAP, CC, CSTS, admin_queue_sizes};
use nvme::{Capabilities, Configuration, ControllerStatus, Sqe};
use ring::{Hold, Port, Unregistered};

use crate::DriverError;
use crate::admin::Pump;

/// Bytes of a completion queue entry.
const CQE_BYTES: usize = 16;
/// How long a shutdown may take at most: the longest that CAP.TO could say.
const SHUTDOWN: Nanos = Nanos::from_millis(127_500);
/// What a controller is given at least: some say that it takes no time.
const LEAST: Nanos = Nanos::from_millis(500);

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
/// [`DriverError::Gone`].
fn status(port: &Port) -> Result<ControllerStatus, DriverError> {
    match port.hold() {
        Hold::Lost => None,
        Hold::Ours | Hold::CalledBack => ControllerStatus::from_value(port.register(CSTS)),
    }
    .ok_or(DriverError::Gone)
}

/// Whether a real controller is not there any more.
pub(crate) fn is_gone(port: &Port) -> bool {
    port.is_device() && status(port).is_err()
}

/// Pumps until `done`, for `patience` at most; `pump_time` is what one takes at least.
fn until(
    port: &Port,
    (step, patience): (&'static str, Nanos),
    pump: Pump<'_>,
    pump_time: Nanos,
    mut done: impl FnMut(ControllerStatus) -> Result<bool, DriverError>,
) -> Result<(), DriverError> {
    let polls = patience.0 / pump_time.0.max(1);
    for _ in 0..=polls {
        if done(status(port)?)? {
            return Ok(());
        }
        pump();
    }
    Err(DriverError::BringUp { step, waited: patience })
}

/// How long the controller may take to become ready or to stop.
fn patience(capabilities: &Capabilities) -> Nanos {
    LEAST.max(Nanos::from_millis(500 * u64::from(capabilities.timeout_500ms)))
}

/// What the controller can do, if that is enough.
///
/// # Errors
/// [`DriverError::Gone`], [`DriverError::Lacks`].
pub(crate) fn capabilities(port: &Port) -> Result<Capabilities, DriverError> {
    status(port)?;
    let capabilities = Capabilities::from_value(read64(port, CAP));
    if !capabilities.nvm_commands {
        return Err(DriverError::Lacks { what: "NVM command set" });
    }
    // Pages are 4096 bytes here.
    if capabilities.page_min > 0 {
        return Err(DriverError::Lacks { what: "memory pages of 4096 bytes" });
    }
    if capabilities.max_entries < 2 {
        return Err(DriverError::Implausible { what: "that queues have 1 entry".into() });
    }
    Ok(capabilities)
}

/// Whether a controller that was told to stop or to start has done so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Progress {
    Stopped,
    Ready,
    Failed,
}

/// How far the controller is.
///
/// # Errors
/// [`DriverError::Gone`].
pub(crate) fn progress(port: &Port) -> Result<Progress, DriverError> {
    let status = status(port)?;
    Ok(match (status.ready, status.fatal) {
        (true, _) => Progress::Ready,
        (false, true) => Progress::Failed,
        (false, false) => Progress::Stopped,
    })
}

/// Tells the controller to stop, and says how long it may take.
///
/// # Errors
/// [`DriverError::Gone`].
pub(crate) fn begin_to_stop(port: &Port) -> Result<Nanos, DriverError> {
    let limit = patience(&capabilities(port)?);
    port.set_register(CC, Configuration::default().to_value());
    Ok(limit)
}

/// Zeroes the port's admin queues, tells the controller, which is stopped, to start on them, and
/// says how long it may take.
///
/// # Errors
/// [`DriverError::Gone`]; [`DriverError::Ring`] for queues that are not registered.
pub(crate) fn begin_to_start(port: &Port) -> Result<Nanos, DriverError> {
    let limit = patience(&capabilities(port)?);
    let ((submission, entries), (completion, _)) =
        (port.admin_submission(), port.admin_completion());
    for (at, entry_bytes) in [(submission, size_of::<Sqe>()), (completion, CQE_BYTES)] {
        let bytes = usize::from(entries) * entry_bytes;
        let found = port.memory().find(at, bytes as u64)?;
        found.region.fill(found.offset, bytes, 0);
    }
    let wire = |at, entry_bytes: usize| {
        let len = u64::from(entries) * entry_bytes as u64;
        port.memory().wire_run(at, len).ok_or(Unregistered { iova: at, len })
    };
    let (submission, completion) =
        (wire(submission, size_of::<Sqe>())?, wire(completion, CQE_BYTES)?);
    port.set_register(AQA, admin_queue_sizes(entries));
    write64(port, ASQ, submission);
    write64(port, ACQ, completion);
    port.set_register(CC, Configuration { enabled: true, shut_down: false }.to_value());
    Ok(limit)
}

/// Stops the controller: it forgets its queues, and everything that was outstanding there.
///
/// # Errors
/// [`DriverError::BringUp`], [`DriverError::Gone`].
pub(crate) fn stop(port: &Port, pump: Pump<'_>, pump_time: Nanos) -> Result<(), DriverError> {
    let limit = patience(&capabilities(port)?);
    let enabled = Configuration::from_value(port.register(CC)).enabled;
    // One that is on its way to be ready may not be stopped before it is (NVMe section 3.1.5); if
    // it does not get there, it is stopped all the same.
    if enabled {
        let ready = |s: ControllerStatus| Ok(s.ready || s.fatal);
        match until(port, ("become ready", limit), pump, pump_time, ready) {
            Ok(()) | Err(DriverError::BringUp { .. }) => {}
            Err(error) => return Err(error),
        }
    }
    begin_to_stop(port)?;
    until(port, ("stop", limit), pump, pump_time, |s| Ok(!s.ready))
}

/// Starts a controller that was stopped, on the port's admin queues.
///
/// # Errors
/// [`DriverError::BringUp`], [`DriverError::Failed`], [`DriverError::Gone`].
pub(crate) fn start(port: &Port, pump: Pump<'_>, pump_time: Nanos) -> Result<(), DriverError> {
    let limit = begin_to_start(port)?;
    until(port, ("become ready", limit), pump, pump_time, |s| {
        if s.fatal { Err(DriverError::Failed) } else { Ok(s.ready) }
    })
}

/// Tells the controller that it will be let go, waits until it has put in order what it must, and
/// stops it.
///
/// # Errors
/// [`DriverError::BringUp`], [`DriverError::Gone`].
pub(crate) fn shut_down(port: &Port, pump: Pump<'_>, pump_time: Nanos) -> Result<(), DriverError> {
    status(port)?;
    if !Configuration::from_value(port.register(CC)).enabled {
        return Ok(());
    }
    port.set_register(CC, Configuration { enabled: true, shut_down: true }.to_value());
    let told =
        until(port, ("shut down", SHUTDOWN), pump, pump_time, |s| Ok(s.shut_down || s.fatal));
    let stopped = stop(port, pump, pump_time);
    told.and(stopped)
}
