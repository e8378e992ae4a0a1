//! A volume on a device that can be paused, fail, or lose its power, and a program on it that
//! speculates.

use std::collections::VecDeque;
use std::io::{PipeReader, Read as _};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread::{JoinHandle, sleep};
use std::time::{Duration, Instant};

use block::{BlockDevice, Completion, Limits, Op, QueueFull, Request};
use event::{RealClock, Waker};
use exec::{OutboxLimits, OutputSupervisor, Service, ServiceAddress, ServiceError, ServiceStats};
use mem::AddressSpace;
use nvme::Status;
use rng::Rng;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use testkit::volatile_device::VolatileDevice;
use time::{Component, Nanos};
use volume::{BlockingVolume, FormatOptions, Options, format};

use crate::programs::{compiled, library};

/// Longer than any step on a loaded machine.
const TEST_TIMEOUT: Duration = Duration::from_secs(60);

/// Controls a device from another thread.
#[derive(Debug, Default)]
pub(crate) struct DeviceControl {
    is_paused: AtomicBool,
    fails: AtomicBool,
    reads_fail: AtomicBool,
    is_cut: AtomicBool,
    /// Nanoseconds that every request takes.
    latency: AtomicU64,
    waker: Mutex<Option<Waker>>,
    /// The device, when the service has ended.
    left: Mutex<Option<VolatileDevice>>,
}

impl DeviceControl {
    fn set(&self, flag: &AtomicBool, value: bool) {
        flag.store(value, Ordering::SeqCst);
        if let Some(waker) = &*self.waker.lock().unwrap() {
            waker.wake();
        }
    }

    /// Sets the time that every later request takes.
    pub(crate) fn set_latency(&self, latency: Nanos) {
        self.latency.store(latency.0, Ordering::SeqCst);
    }

    /// Completes no request until [`resume`](DeviceControl::resume).
    pub(crate) fn pause(&self) {
        self.set(&self.is_paused, true);
    }

    pub(crate) fn resume(&self) {
        self.set(&self.is_paused, false);
    }

    /// Has every request fail from now on, also those in flight.
    pub(crate) fn fail(&self) {
        self.set(&self.fails, true);
    }

    /// Has every read fail from now on.
    pub(crate) fn fail_reads(&self) {
        self.set(&self.reads_fail, true);
    }

    /// Loses the power: requests in flight may be executed in part, data that was not flushed may
    /// be lost, and every request fails.
    pub(crate) fn cut(&self) {
        self.set(&self.is_cut, true);
    }
}

/// A request that is not executed before a time.
#[derive(Debug)]
struct AcceptedRequest {
    request: Request,
    due: Nanos,
}

/// A device with a volatile cache, under control of a test.
#[derive(Debug)]
pub(crate) struct ControlledDevice {
    inner: VolatileDevice,
    control: Arc<DeviceControl>,
    accepted: VecDeque<AcceptedRequest>,
    completed: VecDeque<Completion>,
    was_cut: bool,
}

impl ControlledDevice {
    pub(crate) fn new(inner: VolatileDevice, control: Arc<DeviceControl>) -> ControlledDevice {
        let (accepted, completed, was_cut) = (VecDeque::new(), VecDeque::new(), false);
        ControlledDevice { inner, control, accepted, completed, was_cut }
    }
}

impl Drop for ControlledDevice {
    /// Leaves the contents: after a power cut, those that it has left.
    fn drop(&mut self) {
        let mut inner = std::mem::replace(&mut self.inner, VolatileDevice::for_volume(4096, 1));
        if !self.was_cut {
            inner.settle();
        }
        inner.forget_memory();
        *self.control.left.lock().unwrap() = Some(inner);
    }
}

impl BlockDevice for ControlledDevice {
    block::answer_block_device!(can_wake: true, enable_sharing: {}, can_wait: false,
        visit_layers: {});

    fn limits(&self) -> &Limits {
        self.inner.limits()
    }

    fn submit(&mut self, now: Nanos, request: Request) -> Result<(), QueueFull> {
        if self.accepted.len() >= self.inner.limits.queue_depth as usize {
            return Err(QueueFull);
        }
        let due = now + Nanos(self.control.latency.load(Ordering::SeqCst));
        self.accepted.push_back(AcceptedRequest { request, due });
        Ok(())
    }

    fn reap(&mut self) -> Option<Completion> {
        self.completed.pop_front().or_else(|| self.inner.reap())
    }

    fn memory(&self) -> &AddressSpace {
        self.inner.memory()
    }

    fn set_waker(&mut self, waker: Waker) {
        *self.control.waker.lock().unwrap() = Some(waker);
    }
}

impl Component for ControlledDevice {
    fn poll(&mut self, now: Nanos) -> bool {
        let flag = |flag: &AtomicBool| flag.load(Ordering::SeqCst);
        if flag(&self.control.is_cut) && !self.was_cut {
            // The host may not have reaped all completions yet. They happened before the cut.
            while let Some(completion) = self.inner.reap() {
                self.completed.push_back(completion);
            }
            for accepted in &self.accepted {
                let _ = self.inner.submit(now, accepted.request);
            }
            self.inner.power_cut();
            self.was_cut = true;
        }
        let failed = |accepted: AcceptedRequest| Completion {
            tag: accepted.request.tag,
            status: Status::INTERNAL,
            result: 0,
        };
        if self.was_cut || flag(&self.control.fails) {
            let has_some = !self.accepted.is_empty();
            self.completed.extend(self.accepted.drain(..).map(failed));
            return has_some;
        }
        if flag(&self.control.is_paused) {
            return false;
        }
        while self.accepted.front().is_some_and(|accepted| accepted.due <= now)
            && let Some(accepted) = self.accepted.pop_front()
        {
            if flag(&self.control.reads_fail) && accepted.request.op == Op::Read {
                self.completed.push_back(failed(accepted));
                continue;
            }
            self.inner.submit(now, accepted.request).unwrap();
        }
        let has_completed = !self.completed.is_empty();
        self.inner.poll(now) || has_completed
    }

    fn deadline(&self) -> Nanos {
        let due = self.accepted.front().map_or(Nanos::MAX, |accepted| accepted.due);
        if self.control.is_paused.load(Ordering::SeqCst) { Nanos::MAX } else { due }
    }
}

/// Creates a device with a new volume, which has space for the reservations of posted writes.
pub(crate) fn new_device(seed: u64) -> VolatileDevice {
    let mut device = VolatileDevice::for_volume(4096, 12_288);
    device.rng = Rng::new(seed);
    let shape = FormatOptions { metadata_blocks: Some(256), ..FormatOptions::default() };
    format(&mut device, &shape, |_| Nanos(1)).unwrap();
    device.settle();
    device
}

/// Writes a file of the volume on a device.
pub(crate) fn with_file(device: VolatileDevice, name: &str, bytes: &[u8]) -> VolatileDevice {
    let tick = |_: &mut VolatileDevice| Nanos(1);
    let mut volume = BlockingVolume::open(device, Options::default(), tick).unwrap();
    let file = volume.create(volume::Ino::ROOT, name).unwrap();
    volume.write(file, 0, bytes).unwrap();
    let mut device = volume.close().unwrap();
    device.settle();
    device.forget_memory();
    device
}

/// Returns the contents of a file of the volume on a device after a recovery, and the device.
pub(crate) fn recovered(device: VolatileDevice, name: &str) -> (Option<Vec<u8>>, VolatileDevice) {
    let mut volume =
        BlockingVolume::open(device, Options::default(), |_: &mut VolatileDevice| Nanos(1))
            .unwrap();
    let found = volume.volume().lookup(volume::Ino::ROOT, name).ok();
    let contents = found.map(|ino| volume.read_all(ino).unwrap());
    let mut device = volume.into_volume().into_device();
    device.settle();
    device.forget_memory();
    (contents, device)
}

/// Whether the program has the filter. Without it nothing waits, which must be noticed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Gate {
    Installed,
    /// It has, and data that it sends is copied to an outbox of this capacity.
    Buffers(OutboxLimits),
    Removed,
}

impl Gate {
    /// The filter, without and with an outbox.
    pub(crate) fn all_installed() -> [Gate; 2] {
        [Gate::Installed, Gate::Buffers(OutboxLimits::default())]
    }
}

type ServiceResult = Result<(ControlledDevice, ServiceStats), ServiceError>;

/// A program that runs on a volume and speculates.
pub(crate) struct Speculating {
    pub(crate) child: Child,
    pub(crate) supervisor: OutputSupervisor,
    pub(crate) control: Arc<DeviceControl>,
    /// Standard output of the program.
    pub(crate) output: PipeReader,
    stop: exec::ServiceStopHandle,
    service: JoinHandle<ServiceResult>,
}

impl Speculating {
    /// Starts a program with these arguments after the directory of the volume.
    pub(crate) fn start(
        device: VolatileDevice,
        gate: Gate,
        at: &Path,
        program: &Path,
        arguments: &[&str],
        configure: impl FnOnce(&mut Command, &DeviceControl),
    ) -> Speculating {
        let never = Nanos::from_secs(1000);
        Speculating::with_interval(never, device, gate, at, program, arguments, configure)
    }

    /// As [`start`](Speculating::start), with a commit interval. Otherwise syncs become durable only
    /// if something waits for them.
    pub(crate) fn with_interval(
        interval: Nanos,
        device: VolatileDevice,
        gate: Gate,
        at: &Path,
        program: &Path,
        arguments: &[&str],
        configure: impl FnOnce(&mut Command, &DeviceControl),
    ) -> Speculating {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let control = Arc::new(DeviceControl::default());
        let device = ControlledDevice::new(device, control.clone());
        let tick = |_: &mut ControlledDevice| Nanos(1);
        let options = Options { barrier_delay: interval, ..Options::default() };
        let store = BlockingVolume::open(device, options, tick).unwrap().into_volume();
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let address = ServiceAddress {
            name: format!("sluice-speculation-test-{}-{number}", std::process::id()),
            token: "0123456789abcdef".repeat(2),
        };
        let (created, handles) = mpsc::channel();
        let to = address.clone();
        let outbox = if let Gate::Buffers(limits) = gate { limits } else { OutboxLimits::NONE };
        // The service stays in its thread.
        let service = std::thread::spawn(move || {
            let mut service = Service::new(store, &to).unwrap();
            created.send((service.speculate(outbox).unwrap(), service.stop())).unwrap();
            service.run(RealClock::start())
        });
        let (supervisor, stop) = handles.recv().unwrap();
        let (output, theirs) = std::io::pipe().unwrap();
        let mut command = Command::new(program);
        command.arg(at).args(arguments).stdin(Stdio::null()).stdout(theirs);
        command.env("LD_PRELOAD", library()).env(exec_proto::ENV_MOUNT, at);
        command.env(exec_proto::ENV_SERVICE, address.environment());
        configure(&mut command, &control);
        match gate {
            Gate::Installed | Gate::Buffers(_) => supervisor.prepare(&mut command),
            Gate::Removed => supervisor.cancel(),
        }
        let child = command.spawn().unwrap();
        Speculating { child, supervisor, control, output, stop, service }
    }

    /// Waits until a condition holds.
    pub(crate) fn until(&mut self, what: &str, mut holds: impl FnMut(&mut Speculating) -> bool) {
        let begun = Instant::now();
        while !holds(self) {
            if begun.elapsed() > TEST_TIMEOUT {
                let _ = self.child.kill();
                panic!("{what}: not within {TEST_TIMEOUT:?}");
            }
            sleep(Duration::from_micros(200));
        }
    }

    /// Returns whether the observer can read something, or sees the end of the output.
    pub(crate) fn has_output(&self) -> bool {
        becomes_readable(&self.output, Duration::ZERO)
    }

    /// Waits until the observer can read something, or sees the end of the output.
    pub(crate) fn await_output(&mut self) {
        if !becomes_readable(&self.output, TEST_TIMEOUT) {
            let _ = self.child.kill();
            panic!("output: not within {TEST_TIMEOUT:?}");
        }
    }

    /// Waits for the end of the program and of the service.
    pub(crate) fn end(mut self) -> Ended {
        match pidfd_open(Pid::from_child(&self.child), PidfdFlags::empty()) {
            Ok(process) if becomes_readable(&process, TEST_TIMEOUT) => {}
            Ok(_) => self.child.kill().unwrap(),
            // The test has waited for it.
            Err(error) => assert_eq!(error, Errno::SRCH),
        }
        let status = self.child.wait().unwrap();
        self.stop.stop();
        let service = self.service.join().unwrap().map(|(device, stats)| {
            drop(device);
            stats
        });
        let device = self.control.left.lock().unwrap().take().unwrap();
        self.supervisor.join().unwrap();
        let mut output = Vec::new();
        self.output.read_to_end(&mut output).unwrap();
        Ended { status, output, service, device }
    }
}

/// Waits until a file is readable, or has an end or an error. Returns whether that was in time.
fn becomes_readable(file: impl AsFd, timeout: Duration) -> bool {
    let timeout = Timespec::try_from(timeout).unwrap();
    let mut events = [PollFd::from_borrowed_fd(file.as_fd(), PollFlags::IN)];
    poll(&mut events, Some(&timeout)).unwrap() > 0
}

/// The end of a program.
pub(crate) struct Ended {
    pub(crate) status: ExitStatus,
    pub(crate) output: Vec<u8>,
    pub(crate) service: Result<ServiceStats, ServiceError>,
    /// The device with what is durable.
    pub(crate) device: VolatileDevice,
}

/// Compiles a program of these tests.
pub(crate) fn compile(name: &str, dir: &Path) -> PathBuf {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/suite/speculation");
    compiled(&folder.join(format!("{name}.c")), dir.join(name))
}
