//! `Drive`: a drive in real time.
//!
//! Invariant: a drive that has been closed, or that belongs to the parent process, is not accessed;
//! calls on it end with [`CallFailure::Closed`] or [`CallFailure::Forked`].

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};

use pyo3::prelude::*;
use pyo3::types::{PyBool, PyBytes, PyDict};
use sluice::controller::NamespaceRequest;
use sluice::driver::{PersistentRegion, RegionError};
use sluice::nvme::{NamedCommand, RuleCommand, RuleEvent};
use sluice::open::{CloseError, DriveControl, DriveControlError};
use sluice::scenario::FaultValue;
use sluice::user_io::{
    DeviceKind, DirectError, Handle, IoDevice, Limits, QueueConfig, RuleQueue, WaitMode,
};

use crate::buffer::{IoMemory, PyDriveBuffer};
use crate::errors::{CallFailure, scenario_error};
use crate::queue::{OpenQueue, PyQueue, QueueShared, parse_wait};
use crate::rules::{self, EndedRuleCommand, KindAndValues};
use crate::stats::{drive_stats, namespace_listing, one_drive, rule_report};
use crate::transfers::{BlockingCalls, WriteFlags, bytes_of};

/// An open drive.
struct OpenedDrive {
    device: IoDevice,
    control: DriveControl,
    /// Receives an error if the drive is not closed cleanly.
    closed: Receiver<CloseError>,
    queues: Vec<Weak<QueueShared>>,
    /// Queue for commands to rules, which the first of them creates.
    rules: Option<RuleQueue>,
}

/// A drive, open or closed. It is closed when the object and all of its queues are dropped.
pub(crate) struct DriveShared {
    /// Number of the drive in this process.
    id: u64,
    /// Process that opened the drive: the drive's threads are there.
    opener: u32,
    name: String,
    kind: DeviceKind,
    limits: Limits,
    /// `None` after it was closed.
    open: Mutex<Option<OpenedDrive>>,
}

impl std::fmt::Debug for DriveShared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DriveShared").field("name", &self.name).finish_non_exhaustive()
    }
}

impl DriveShared {
    fn new(
        device: IoDevice,
        control: DriveControl,
        closed: Receiver<CloseError>,
    ) -> Arc<DriveShared> {
        static NEXT_ID: AtomicU64 = AtomicU64::new(0);
        Arc::new(DriveShared {
            id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
            opener: std::process::id(),
            name: device.name().to_owned(),
            kind: device.kind(),
            limits: *device.limits(),
            open: Mutex::new(Some(OpenedDrive {
                device,
                control,
                closed,
                queues: Vec::new(),
                rules: None,
            })),
        })
    }

    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    pub(crate) fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Checks that the drive's threads are in this process.
    pub(crate) fn check_process(&self) -> Result<(), CallFailure> {
        match std::process::id() {
            here if here == self.opener => Ok(()),
            here => Err(CallFailure::Forked { opener: self.opener, here }),
        }
    }

    /// Runs `body` on the open drive. Without the interpreter's lock.
    fn with<T>(
        &self,
        body: impl FnOnce(&mut OpenedDrive) -> Result<T, CallFailure>,
    ) -> Result<T, CallFailure> {
        self.check_process()?;
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        body(open.as_mut().ok_or(CallFailure::Closed("drive"))?)
    }

    /// Executes a command on a sector with a name.
    fn named(&self, command: NamedCommand, data: &[u8]) -> Result<EndedRuleCommand, CallFailure> {
        self.with(|open| rules::run_named(&open.device, &mut open.rules, command, data))
    }

    /// Allocates memory for I/O.
    pub(crate) fn allocate(&self, bytes: usize) -> Result<Arc<IoMemory>, CallFailure> {
        if bytes == 0 {
            return Err(CallFailure::Value("bytes = 0: 1 or more".into()));
        }
        let buffer = self.with(|open| Ok(open.device.buffer(bytes)?))?;
        Ok(Arc::new(IoMemory { buffer, drive: self.id }))
    }

    /// Creates a queue. Without a wait mode it waits as the scenario says, else by events.
    fn create_queue(
        self: &Arc<DriveShared>,
        config: QueueConfig,
        wait: Option<WaitMode>,
    ) -> Result<Arc<QueueShared>, CallFailure> {
        self.with(|open| {
            let default = QueueConfig::default();
            let own_depth = open.device.limits().queue_depth;
            let has_depths = matches!(
                open.device.kind(),
                DeviceKind::Drive | DeviceKind::Remote | DeviceKind::Controller
            );
            if !has_depths && config.depth != default.depth {
                let text = format!(
                    "depth = {}: queues of this device have its depth, {own_depth}; give `depth` to open()",
                    config.depth - 1
                );
                return Err(CallFailure::Value(text));
            }
            let queue = open.device.create_queue(config)?;
            let mut handle = Handle::new(&open.device, queue)?;
            let is_given = wait.is_some() || open.device.completion().is_some();
            let by_default = match is_given {
                true => wait,
                false => open.device.has_interrupts().then_some(WaitMode::Interrupt),
            };
            if let Some(wait) = by_default {
                handle.set_wait(wait)?;
            }
            let queue = OpenQueue::new(handle, open.device.clock());
            let queue = Arc::new(QueueShared::new(self.clone(), queue));
            open.queues.retain(|queue| queue.strong_count() > 0);
            open.queues.push(Arc::downgrade(&queue));
            Ok(queue)
        })
    }

    /// Closes the drive, and its queues first. Waits for its threads.
    fn close(&self) -> Result<(), CallFailure> {
        self.check_process()?;
        let open = self.open.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(open) = open else { return Ok(()) };
        let OpenedDrive { device, closed, queues, rules, .. } = open;
        drop(rules);
        let mut first = Ok(());
        for queue in queues.iter().filter_map(Weak::upgrade) {
            first = first.and(queue.close());
        }
        drop(device);
        match closed.try_recv() {
            Ok(error) => first.and(Err(error.into())),
            // It was closed cleanly.
            Err(_) => first,
        }
    }
}

impl Drop for DriveShared {
    fn drop(&mut self) {
        if self.close().is_err() {
            // The drive's threads are in the other process, so that they cannot be waited for.
            let open = self.open.get_mut().unwrap_or_else(PoisonError::into_inner).take();
            std::mem::forget(open);
        }
    }
}

/// A drive.
#[pyclass(name = "Drive", module = "sluice", frozen, weakref)]
pub(crate) struct PyDrive {
    drive: Arc<DriveShared>,
    /// Queue of the drive's own calls, which the first of them creates.
    own_queue: OnceLock<Arc<QueueShared>>,
}

/// Returns the exception for a refused fault or change of namespaces.
fn control_failure(py: Python<'_>, error: &DriveControlError) -> PyErr {
    CallFailure::Value(error.to_string()).into_exception(py)
}

impl PyDrive {
    /// Creates the object of a drive that was opened.
    pub(crate) fn new(
        device: IoDevice,
        control: DriveControl,
        closed: Receiver<CloseError>,
    ) -> PyDrive {
        PyDrive { drive: DriveShared::new(device, control, closed), own_queue: OnceLock::new() }
    }

    /// Runs `body` without the interpreter's lock.
    fn call<T: Send>(
        &self,
        py: Python<'_>,
        body: impl FnOnce(&Arc<DriveShared>) -> Result<T, CallFailure> + Send,
    ) -> PyResult<T> {
        py.detach(|| body(&self.drive)).map_err(|failure| failure.into_exception(py))
    }

    /// Runs `body` on the persistent memory region, without the interpreter's lock.
    fn region<T: Send>(
        &self,
        py: Python<'_>,
        body: impl FnOnce(&PersistentRegion) -> Result<T, RegionError> + Send,
    ) -> PyResult<T> {
        let region =
            self.call(py, |drive| drive.with(|open| Ok(open.device.persistent_region()?.clone())))?;
        self.call(py, |_| {
            body(&region).map_err(|error| match error {
                RegionError::OutOfBounds { .. } => CallFailure::Value(error.to_string()),
                RegionError::NotReady | RegionError::Removed => DirectError::from(error).into(),
            })
        })
    }

    /// Returns the way to the threads of the emulated drives.
    fn control(&self, py: Python<'_>) -> PyResult<DriveControl> {
        self.call(py, |drive| drive.with(|open| Ok(open.control.clone())))
    }

    fn change_namespaces(
        &self,
        py: Python<'_>,
        drive: Option<&str>,
        request: NamespaceRequest,
    ) -> PyResult<u32> {
        let control = self.control(py)?;
        let changed = py.detach(|| control.change_namespaces(drive, request));
        changed.map_err(|error| control_failure(py, &error))
    }

    /// Runs a blocking call on the drive's own queue.
    fn blocking<T>(
        &self,
        py: Python<'_>,
        body: impl FnOnce(BlockingCalls<'_>) -> PyResult<T>,
    ) -> PyResult<T> {
        self.call(py, |drive| {
            if self.own_queue.get().is_some() {
                return drive.with(|_| Ok(()));
            }
            // If another thread creates one at the same time, one of both is dropped.
            let created = drive.create_queue(QueueConfig::default(), None)?;
            self.own_queue.get_or_init(|| created);
            Ok(())
        })?;
        let Some(queue) = self.own_queue.get() else {
            return Err(CallFailure::Closed("drive").into_exception(py));
        };
        body(BlockingCalls { queue, in_turn: true })
    }
}

#[pymethods]
impl PyDrive {
    /// Name of the drive, or path of the file.
    #[getter]
    fn name(&self) -> &str {
        &self.drive.name
    }

    /// Kind: `null`, `file`, `drive`, `target`, `remote`, `controller` or `passthrough`.
    #[getter]
    fn kind(&self) -> &'static str {
        match self.drive.kind {
            DeviceKind::Null => "null",
            DeviceKind::File => "file",
            DeviceKind::Drive => "drive",
            DeviceKind::Target => "target",
            DeviceKind::Remote => "remote",
            DeviceKind::Controller => "controller",
            DeviceKind::Passthrough => "passthrough",
        }
    }

    /// Capacity in bytes.
    #[getter]
    fn nbytes(&self) -> u64 {
        self.drive.limits.bytes()
    }

    /// Size of a sector in bytes.
    #[getter]
    fn sector_bytes(&self) -> u32 {
        self.drive.limits.sector_bytes
    }

    /// Maximum length of one request in bytes; longer transfers are several requests.
    #[getter]
    fn request_bytes_max(&self) -> u64 {
        u64::from(self.drive.limits.max_sectors) * u64::from(self.drive.limits.sector_bytes)
    }

    /// Maximum number of outstanding requests of a queue.
    #[getter]
    fn queue_depth_max(&self) -> u32 {
        self.drive.limits.queue_depth
    }
    /// Allocates zeroed memory that the drive reads and writes without a copy.
    ///
    /// It has the buffer protocol: `memoryview(buffer)`, `numpy.frombuffer(buffer, "u1")`. The drive accesses it
    /// while a request is outstanding: do not access it then.
    fn buffer(&self, py: Python<'_>, bytes: usize) -> PyResult<PyDriveBuffer> {
        let memory = self.call(py, |drive| {
            let memory = drive.allocate(bytes)?;
            // The memory may have data of an earlier buffer.
            memory.buffer.fill(0, bytes, 0);
            Ok(memory)
        })?;
        Ok(PyDriveBuffer { memory })
    }

    /// Creates a queue for one thread.
    ///
    /// `depth` is the maximum number of outstanding requests. `wait` is `"event"` (sleep until the device
    /// wakes the thread), `"poll"` (lowest latency, occupies a core) or `"hybrid"`; by default it is that of the
    /// scenario's `path.completion`, else `"event"`.
    #[pyo3(signature = (*, depth=None, wait=None))]
    fn queue(&self, py: Python<'_>, depth: Option<u16>, wait: Option<&str>) -> PyResult<PyQueue> {
        let queue = self.call(py, |drive| {
            let mut config = QueueConfig::default();
            if let Some(depth) = depth {
                // The rings have one entry more than requests.
                let entries = depth.checked_add(1).filter(|entries| *entries >= 2);
                let text = || CallFailure::Value(format!("depth = {depth}: 1 to 65534"));
                config.depth = entries.ok_or_else(text)?;
            }
            drive.create_queue(config, wait.map(parse_wait).transpose()?)
        })?;
        Ok(PyQueue { queue })
    }
    /// Reads `length` bytes from `offset`, both in whole sectors.
    ///
    /// Raises `ValueError`, `IoError`, `ClosedError`, `ForkedError`, as all calls that transfer data.
    fn read<'py>(
        &self,
        py: Python<'py>,
        offset: u64,
        length: usize,
    ) -> PyResult<Bound<'py, PyBytes>> {
        self.blocking(py, |calls| calls.read(py, offset, length))
    }

    /// Reads into a `Buffer` without a copy, or into a writable object with the buffer protocol.
    ///
    /// Of a `Buffer`, `at` (a multiple of 512) and `length` select a part; other memory is filled. Returns the
    /// number of bytes.
    #[pyo3(signature = (offset, into, *, at=0, length=None))]
    fn read_into(
        &self,
        py: Python<'_>,
        offset: u64,
        into: &Bound<'_, PyAny>,
        at: usize,
        length: Option<usize>,
    ) -> PyResult<usize> {
        self.blocking(py, |calls| calls.read_into(offset, into, at, length))
    }

    /// Writes a `Buffer` without a copy, or an object with the buffer protocol, to `offset`.
    ///
    /// `at` and `length` select a part of it, in bytes. The data is durable after `flush()`, or on return with
    /// `fua`. A power cut does not tear a write that is `atomic`; `ValueError` if it cannot be. Returns the number
    /// of bytes.
    #[pyo3(signature = (offset, data, *, at=0, length=None, fua=false, atomic=false))]
    #[allow(clippy::too_many_arguments, reason = "the arguments of a Python method have names")]
    fn write(
        &self,
        py: Python<'_>,
        offset: u64,
        data: &Bound<'_, PyAny>,
        at: usize,
        length: Option<usize>,
        fua: bool,
        atomic: bool,
    ) -> PyResult<usize> {
        self.blocking(py, |calls| calls.write(offset, data, at, length, WriteFlags { fua, atomic }))
    }
    /// Makes all completed writes durable.
    fn flush(&self, py: Python<'_>) -> PyResult<()> {
        self.blocking(py, |calls| calls.flush(py))
    }
    /// Deallocates `length` bytes from `offset`; they read as zeros afterwards.
    fn trim(&self, py: Python<'_>, offset: u64, length: usize) -> PyResult<()> {
        self.blocking(py, |calls| calls.trim(py, offset, length))
    }
    /// Size of the drive's persistent memory region in bytes. Raises `OpenError` without one, as all calls on it.
    #[getter]
    fn pmr_nbytes(&self, py: Python<'_>) -> PyResult<u64> {
        self.region(py, |region| Ok(region.bytes()))
    }
    /// Reads from the persistent memory region, also what is not persistent.
    fn pmr_read<'py>(
        &self,
        py: Python<'py>,
        offset: u64,
        length: usize,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let bytes = self.region(py, |region| {
            // A length outside of the region needs no memory.
            let mut bytes = vec![0; length.min(region.bytes() as usize + 1)];
            region.read(offset, &mut bytes).map(|()| bytes)
        })?;
        Ok(PyBytes::new(py, &bytes))
    }
    /// Stores an object with the buffer protocol to the persistent memory region.
    ///
    /// It is visible at once, and survives a power cut after `pmr_persist`. Takes the configured time for each
    /// cache line of 64 bytes.
    fn pmr_store(&self, py: Python<'_>, offset: u64, data: &Bound<'_, PyAny>) -> PyResult<()> {
        let data = bytes_of(data)?.to_vec(py)?;
        self.region(py, |region| region.store(offset, &data).map(|_| ()))
    }
    /// Persists the cache lines of a range of the persistent memory region.
    fn pmr_persist(&self, py: Python<'_>, offset: u64, length: u64) -> PyResult<()> {
        self.region(py, |region| region.persist(offset, length).map(|_| ()))
    }
    /// Makes an emulated NVMe drive behind it fail, now: `drive.inject("die-failure", pu=3)`.
    ///
    /// The kinds and keys are those of `[[fault]]` in a scenario (docs/faults.md). `drive` names one
    /// of several drives. Raises `ScenarioError` for a kind, key or value that a scenario would not
    /// accept, and `ValueError` for a fault that the drive cannot have.
    #[pyo3(signature = (kind, /, *, drive=None, **keys))]
    fn inject(
        &self,
        py: Python<'_>,
        kind: &str,
        drive: Option<&str>,
        keys: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<()> {
        let mut values = Vec::new();
        for (key, value) in keys.into_iter().flatten() {
            let text = match value.cast::<PyBool>() {
                // As in a scenario.
                Ok(value) => value.is_true().to_string(),
                Err(_) => value.str()?.extract()?,
            };
            values.push((key.extract::<String>()?, text));
        }
        let values = values.iter().map(|(key, value)| FaultValue { key, value });
        let values: Vec<FaultValue<'_>> = values.collect();
        let read = sluice::scenario::read_fault(kind, &values);
        let fault = read.map_err(|error| scenario_error(py, &error))?;
        let control = self.control(py)?;
        let injected = py.detach(|| control.inject_fault(drive, fault));
        injected.map_err(|error| control_failure(py, &error))
    }
    /// Namespaces of an emulated NVMe drive behind it, as `sluice admin namespace list --json` prints
    /// them: `unallocated_bytes`, and a list `namespaces`.
    ///
    /// `drive` names one of several drives. Raises `ValueError` if there is no such drive.
    #[pyo3(signature = (*, drive=None))]
    fn namespaces(&self, py: Python<'_>, drive: Option<&str>) -> PyResult<Py<PyAny>> {
        let control = self.control(py)?;
        let listing = py.detach(|| control.namespaces(drive));
        let listing = listing.map_err(|error| control_failure(py, &error))?;
        namespace_listing(py, &listing)
    }
    /// Rules of an emulated NVMe drive behind it, as `sluice rules` prints them with `--json`: what a
    /// program may use, and `stats` with the rules and the classes of commands that no rule matched.
    ///
    /// `drive` names one of several drives. Raises `ValueError` if the drive has no rules.
    #[pyo3(signature = (*, drive=None))]
    fn rules(&self, py: Python<'_>, drive: Option<&str>) -> PyResult<Py<PyAny>> {
        let control = self.control(py)?;
        let report = py.detach(|| control.rules(drive));
        let report = report.map_err(|error| control_failure(py, &error))?;
        rule_report(py, &report)
    }
    /// Compiles a rule program for a drive with `personality = "rules"`, and installs it. Returns the
    /// number of commands that no rule of it matches.
    ///
    /// `drive` names one of several drives. Raises `ValueError` if the program is not accepted.
    #[pyo3(signature = (source, /, *, drive=None))]
    fn install_rules(&self, py: Python<'_>, source: &str, drive: Option<&str>) -> PyResult<u64> {
        let control = self.control(py)?;
        let installed = py.detach(|| control.install_rules(drive, "program", source.as_bytes()));
        installed.map_err(|error| control_failure(py, &error))
    }
    /// Ends the commands that no rule matches: those of an operation such as `"write"`, or all of them.
    /// Returns their number. As for `install_rules()`.
    #[pyo3(signature = (op=None, /, *, drive=None))]
    fn reject_misses(
        &self,
        py: Python<'_>,
        op: Option<&str>,
        drive: Option<&str>,
    ) -> PyResult<u64> {
        let control = self.control(py)?;
        let rejected = py.detach(|| control.reject_misses(drive, op));
        rejected.map_err(|error| control_failure(py, &error))
    }
    /// Values of `count` consecutive keys of a table of the rules of a drive, from `first` on: the
    /// elements of an array, the values of a map (0 of an absent key), or 1 for each key that a set has.
    ///
    /// `drive` names one of several drives. Raises `ValueError` for a table that the rules do not have,
    /// and for indices past the end of an array.
    #[pyo3(signature = (table, first=0, count=1, /, *, drive=None))]
    fn rule_table(
        &self,
        py: Python<'_>,
        table: &str,
        first: u64,
        count: u32,
        drive: Option<&str>,
    ) -> PyResult<Vec<u64>> {
        let control = self.control(py)?;
        let values = py.detach(|| control.rule_table_values(drive, table, first, count));
        values.map_err(|error| control_failure(py, &error))
    }
    /// Changes a table of the rules of a drive, in this order: `remove` removes keys from a set or a map,
    /// `add` adds keys to a set, and `values` stores values in an array, or as those of keys of a map.
    ///
    /// `drive` names one of several drives. Raises `ValueError` if the table does not take an entry; those
    /// before it are stored.
    #[pyo3(signature = (table, /, *, values=None, add=Vec::new(), remove=Vec::new(), drive=None))]
    fn edit_rule_table(
        &self,
        py: Python<'_>,
        table: &str,
        values: Option<BTreeMap<u64, u64>>,
        add: Vec<u64>,
        remove: Vec<u64>,
        drive: Option<&str>,
    ) -> PyResult<()> {
        let edits = rules::edits(values.unwrap_or_default(), add, remove);
        let control = self.control(py)?;
        let edited = py.detach(|| control.edit_rule_table(drive, table, edits));
        edited.map_err(|error| control_failure(py, &error))
    }
    /// Sends a command to the rules of an NVMe drive: `op` is `scan`, `get`, `ack`, `user0`, `user1`,
    /// `user2` or `user3`. Returns its status (type in bits 10:8, code in bits 7:0; 0 for success), the
    /// value of the rule, and what the rules return, `nbytes` at most.
    ///
    /// Raises `ValueError` for an unknown operation, and for `nbytes` of one that returns no data;
    /// `sluice.IoError` if the device is not an NVMe drive, or does not answer.
    #[pyo3(signature = (op, lba, sectors=1, /, *, arg0=0, arg1=0, nbytes=0))]
    #[allow(clippy::too_many_arguments, reason = "the arguments of a Python function have names")]
    fn rule_command<'py>(
        &self,
        py: Python<'py>,
        op: &str,
        lba: u64,
        sectors: u32,
        arg0: u64,
        arg1: u64,
        nbytes: usize,
    ) -> PyResult<(u16, u64, Bound<'py, PyBytes>)> {
        let done = self.call(py, |drive| {
            let command = RuleCommand { arg0, arg1, ..rules::command(op, lba, sectors, nbytes)? };
            drive.with(|open| rules::run(&open.device, &mut open.rules, command, nbytes))
        })?;
        Ok((done.status, done.value, PyBytes::new(py, &done.data)))
    }
    /// Writes a sector that gets a name, with a tag of the host beside it, on a drive whose rules have names.
    /// Returns the status (0 for success) and the name. Raises `ValueError` if `data` is not one sector.
    #[pyo3(signature = (data, tag, /))]
    fn named_write(
        &self,
        py: Python<'_>,
        data: &Bound<'_, PyAny>,
        tag: u64,
    ) -> PyResult<(u16, u64)> {
        let data = bytes_of(data)?.to_vec(py)?;
        let done = self.call(py, |drive| drive.named(NamedCommand::write(tag), &data))?;
        Ok((done.status, done.value))
    }
    /// Reads the sector with a name, whose tag must be this one. Returns the status (0 for success) and the
    /// data. As for `named_write()`.
    #[pyo3(signature = (name, tag, /))]
    fn named_read<'py>(
        &self,
        py: Python<'py>,
        name: u64,
        tag: u64,
    ) -> PyResult<(u16, Bound<'py, PyBytes>)> {
        let done = self.call(py, |drive| drive.named(NamedCommand::read(name, tag), &[]))?;
        Ok((done.status, PyBytes::new(py, &done.data)))
    }
    /// Frees the sector with a name. Returns the status.
    #[pyo3(signature = (name, /))]
    fn named_free(&self, py: Python<'_>, name: u64) -> PyResult<u16> {
        Ok(self.call(py, |drive| drive.named(NamedCommand::free(name), &[]))?.status)
    }
    /// Takes events that rules of an NVMe drive have posted for this application, the oldest first. Returns
    /// the number of lost ones, and of each its kind and values: 1 and the old name, the new name and the tag
    /// of a sector that was moved; 2 and the name of one that could not be read.
    fn rule_events(&self, py: Python<'_>) -> PyResult<(u64, Vec<KindAndValues>)> {
        let log =
            self.call(py, |drive| drive.with(|open| Ok(open.device.take_rule_events()?)))?;
        let event = |event: &RuleEvent| (event.kind.get(), event.values.map(|value| value.get()));
        Ok((log.lost, log.events.iter().map(event).collect()))
    }
    /// Names and tags of valid sectors that an NVMe drive found when it was powered on, `count` at most from
    /// `first` on. Fewer are the last ones, and the drive discards all of them then.
    #[pyo3(signature = (first=0, count=1 << 20, /))]
    fn found_names(&self, py: Python<'_>, first: u64, count: usize) -> PyResult<Vec<(u64, u64)>> {
        let found =
            self.call(py, |drive| drive.with(|open| Ok(open.device.found_names(first, count)?)))?;
        Ok(found.iter().map(|found| (found.name.get(), found.tag.get())).collect())
    }
    /// Creates a namespace of `nbytes`, rounded up to whole blocks, or of the whole unallocated
    /// capacity. Returns its identifier. It is not attached.
    ///
    /// `drive` names one of several drives. Raises `ValueError` if the drive refuses it.
    #[pyo3(signature = (nbytes=None, /, *, drive=None))]
    fn create_namespace(
        &self,
        py: Python<'_>,
        nbytes: Option<u64>,
        drive: Option<&str>,
    ) -> PyResult<u32> {
        self.change_namespaces(py, drive, NamespaceRequest::Create { bytes: nbytes })
    }
    /// Deletes a namespace with its contents; all of them for `None`. As for `create_namespace()`.
    #[pyo3(signature = (nsid, /, *, drive=None))]
    fn delete_namespace(
        &self,
        py: Python<'_>,
        nsid: Option<u32>,
        drive: Option<&str>,
    ) -> PyResult<()> {
        self.change_namespaces(py, drive, NamespaceRequest::Delete { nsid }).map(|_| ())
    }
    /// Attaches a namespace, so that hosts can address it. As for `create_namespace()`.
    #[pyo3(signature = (nsid, /, *, drive=None))]
    fn attach_namespace(&self, py: Python<'_>, nsid: u32, drive: Option<&str>) -> PyResult<()> {
        self.change_namespaces(py, drive, NamespaceRequest::Attach { nsid }).map(|_| ())
    }
    /// Detaches a namespace, whose contents stay. As for `create_namespace()`.
    #[pyo3(signature = (nsid, /, *, drive=None))]
    fn detach_namespace(&self, py: Python<'_>, nsid: u32, drive: Option<&str>) -> PyResult<()> {
        self.change_namespaces(py, drive, NamespaceRequest::Detach { nsid }).map(|_| ())
    }
    /// Counters of the emulated drives behind it, at most 0.2 s old, and its registered memory.
    fn stats(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let (control, (bytes, free)) = self.call(py, |drive| {
            drive.with(|open| Ok((open.control.clone(), open.device.buffer_bytes())))
        })?;
        let drives = py.detach(|| control.all_stats()).unwrap_or_default();
        let drives: Vec<_> = drives.iter().map(|(name, of)| one_drive(name, of)).collect();
        drive_stats(py, &drives, bytes, free)
    }

    /// Whether it has been closed.
    #[getter]
    fn closed(&self) -> bool {
        // A thread that has locked the state uses an open drive.
        match self.drive.open.try_lock() {
            Ok(open) => open.is_none(),
            Err(_) => false,
        }
    }
    /// Closes the queues and the drive, and waits for its threads. Raises `CloseError`.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        self.call(py, |drive| drive.close())
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    fn __exit__(
        &self,
        py: Python<'_>,
        _kind: &Bound<'_, PyAny>,
        _value: &Bound<'_, PyAny>,
        _traceback: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        self.close(py)
    }

    fn __repr__(&self) -> String {
        let state = if self.closed() { ", closed" } else { "" };
        format!("<sluice.Drive {:?}, {} bytes{state}>", self.drive.name, self.drive.limits.bytes())
    }
}
