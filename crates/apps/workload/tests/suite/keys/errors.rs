//! Jobs that do not fit their device, and one device type for both addressings.

use block::{Completion, QueueFull};
use mem::AddressSpace;
use sluice_workload::{
    Addressing, IoCpuCosts, JobDevice, JobLimits, JobOperation, JobRunner, KeyLimits,
    KeyValueDevice, RunError, check_jobs, check_jobs_on,
};
use time::{Component, Nanos};

use super::harness::{open, run_on, small_kv};
use crate::common::{Ram, jobs};

const YCSB: &str = "[y]\nycsb=c\nrecordcount=10\noperationcount=5\n";

/// The device of a scenario that has both kinds.
enum EitherDevice {
    Blocks(Box<Ram>),
    Keys(Box<KeyValueDevice>),
}

impl Component for EitherDevice {
    fn poll(&mut self, now: Nanos) -> bool {
        match self {
            EitherDevice::Blocks(device) => device.poll(now),
            EitherDevice::Keys(device) => device.poll(now),
        }
    }
    fn deadline(&self) -> Nanos {
        match self {
            EitherDevice::Blocks(device) => device.deadline(),
            EitherDevice::Keys(device) => device.deadline(),
        }
    }
}

impl JobDevice for EitherDevice {
    fn addressing(&self) -> Addressing {
        match self {
            EitherDevice::Blocks(device) => device.addressing(),
            EitherDevice::Keys(device) => device.addressing(),
        }
    }
    fn limits(&self) -> JobLimits {
        match self {
            EitherDevice::Blocks(device) => JobDevice::limits(&**device),
            EitherDevice::Keys(device) => device.limits(),
        }
    }
    fn memory(&self) -> &AddressSpace {
        match self {
            EitherDevice::Blocks(device) => JobDevice::memory(&**device),
            EitherDevice::Keys(device) => device.memory(),
        }
    }
    fn submit(&mut self, now: Nanos, operation: JobOperation) -> Result<(), QueueFull> {
        match self {
            EitherDevice::Blocks(device) => JobDevice::submit(&mut **device, now, operation),
            EitherDevice::Keys(device) => device.submit(now, operation),
        }
    }
    fn reap(&mut self) -> Option<Completion> {
        match self {
            EitherDevice::Blocks(device) => JobDevice::reap(&mut **device),
            EitherDevice::Keys(device) => device.reap(),
        }
    }
}

fn refused<D: JobDevice>(device: D, text: &str) -> String {
    match JobRunner::new(device, jobs(text), IoCpuCosts::default(), 1) {
        Ok(_) => panic!("{text} runs"),
        Err(error) => error.to_string(),
    }
}

#[test]
fn a_job_needs_a_device_of_its_addressing() {
    let message = refused(Ram::new(64, Nanos(10)), YCSB);
    assert_eq!(
        message,
        "job `y` is addressed by keys, but the device by blocks; allowed on it are jobs without \
         `ycsb`, `recordcount` and `pus`"
    );
    let mixed = format!("{YCSB}[b]\nrw=randread\n");
    let message = refused(open(small_kv()).1, &mixed);
    assert_eq!(
        message,
        "job `b` is addressed by blocks, but the device by keys; allowed on it are jobs with \
         `ycsb` or `recordcount`"
    );
    let ram = Ram::new(64, Nanos(10));
    let error = check_jobs(&jobs(YCSB), block::BlockDevice::limits(&ram)).unwrap_err();
    assert!(matches!(error, RunError::WrongAddressing { .. }), "{error}");
    let limits = JobLimits::Keys(KeyLimits { value_bytes_max: 999, queue_depth: 8 });
    let error = check_jobs_on(&jobs("[b]\nrw=read"), &limits).unwrap_err();
    assert!(matches!(error, RunError::WrongAddressing { .. }), "{error}");
    let error = check_jobs_on(&jobs(YCSB), &limits).unwrap_err().to_string();
    assert!(error.contains("values of 1000 bytes exceed the device's 999 bytes"), "{error}");
    check_jobs_on(&jobs(&format!("{YCSB}bs=999")), &limits).unwrap();
}

#[test]
fn an_enum_of_devices_runs_jobs_of_either_addressing() {
    let (drive, device) = open(small_kv());
    let mut drive = drive.drive.into_inner();
    let device = EitherDevice::Keys(Box::new(device));
    let text = format!("[load]\nycsb=load\nrecordcount=10\n{YCSB}stonewall\n");
    let (runner, _) = run_on(&mut drive, device, &text, 1).unwrap();
    let (device, result) = runner.finish_with_device();
    assert_eq!(result.unwrap().jobs[1].requests.operations, [5, 0, 0, 0, 0]);
    let (runner, _) = run_on(&mut drive, device, YCSB, 1).unwrap();
    assert_eq!(runner.finish().unwrap().jobs[0].requests.failed, 0, "the records are still there");
    let blocks = EitherDevice::Blocks(Box::new(Ram::new(64, Nanos(10))));
    let (runner, _) = run_on(&mut drive, blocks, "[b]\nrw=write\nverify=crc32c", 1).unwrap();
    let result = runner.finish().unwrap();
    assert_eq!((result.jobs[0].requests.completed, result.jobs[0].requests.verified), (128, 64));
}
