//! Cost of tracing: recording an event on the path of a request, and writing it to a file later.

use std::io::Sink;

use divan::counter::ItemsCount;
use divan::{Bencher, black_box};
use nvme::Status;
use sluice_block::trace::blktrace::{BlktraceWriter, DeviceNumber, TraceProcess, TracedDevice};
use sluice_block::trace::{Action, TraceEvent, Tracer};
use sluice_block::{Op, Submitter};
use time::Nanos;

fn main() {
    divan::main();
}

/// Events per measurement: a single one is below the resolution of the timer.
const EVENTS: u64 = 100_000;

fn event(at: u64) -> TraceEvent {
    TraceEvent {
        at: Nanos(at),
        action: Action::Issued,
        op: Op::Read,
        fua: false,
        lba: at,
        sectors: 8,
        submitter: Submitter(3),
        core: 3,
        queue: 1,
        status: Status::SUCCESS,
    }
}

/// Into a tracer with free space, in the order of a run. The buffer's memory has been written
/// before, as in a run that is longer than the buffer.
#[divan::bench]
fn record(bencher: Bencher<'_, '_>) {
    let mut tracer = Tracer::new(EVENTS as usize);
    (0..EVENTS).for_each(|at| tracer.record(event(at)));
    bencher.counter(ItemsCount::new(EVENTS)).bench_local(|| {
        tracer.clear();
        for at in 0..EVENTS {
            tracer.record(event(black_box(at)));
        }
        assert_eq!(tracer.events().len() as u64, EVENTS);
    });
}

/// Into a full tracer.
#[divan::bench]
fn record_full(bencher: Bencher<'_, '_>) {
    let mut tracer = Tracer::new(1);
    bencher.counter(ItemsCount::new(EVENTS)).bench_local(|| {
        for at in 0..EVENTS {
            tracer.record(event(black_box(at)));
        }
        black_box(tracer.dropped())
    });
}

/// Into a file without cost, one thousand at a time.
#[divan::bench]
fn write_blktrace(bencher: Bencher<'_, '_>) {
    let process = TraceProcess { submitter: Submitter(3), pid: 7, comm: "bench".into() };
    let traced = TracedDevice {
        name: "bench".into(),
        number: DeviceNumber { major: 259, minor: 0 },
        sector_bytes: 4096,
        cores: 4,
        processes: vec![process],
        started: (0, 0),
    };
    let files = vec![Sink::default(), Sink::default(), Sink::default(), Sink::default()];
    let mut writer = BlktraceWriter::new(files, &traced).expect("a description that fits");
    let events: Vec<TraceEvent> = (0..1000).map(|_| event(5)).collect();
    bencher.counter(ItemsCount::new(events.len())).bench_local(|| {
        writer.write(3, black_box(&events)).expect("a sink takes everything");
    });
}
