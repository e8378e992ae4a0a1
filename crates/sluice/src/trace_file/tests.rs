//! The file is JSON however it ends, and its numbers are exact.

use std::sync::{Arc, Mutex};

use super::*;

#[derive(Clone, Default)]
struct Shared(Arc<Mutex<Vec<u8>>>);

impl Write for Shared {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn parsed(shared: &Shared) -> Vec<serde_json::Value> {
    serde_json::from_slice(&shared.0.lock().unwrap()).expect("valid JSON")
}

const PU: Track = Track { process: 1, thread: 17 };

#[test]
fn every_kind_of_event() {
    let shared = Shared::default();
    let mut trace = TraceFile::new(shared.clone());
    trace.name_process(1, "drive \"a\\b\"\n");
    trace.name_track(PU, "channel 2 PU 1");
    trace.span(PU, "program", Nanos(1_234_567), Nanos(2_624_567));
    trace.span_with(PU, "erase", Nanos(0), Nanos(1), ("chunk", 12));
    trace.begin_async(PU, "io", "read", 255, Nanos(5));
    trace.end_async(PU, "io", "read", 255, Nanos(1_005));
    trace.instant(PU, "suspend", Nanos(7));
    trace.counter(1, "WA", Nanos(9), 1.5);
    trace.counter(1, "WA", Nanos(9), f64::NAN);
    assert_eq!(trace.events(), 10);
    trace.finish().unwrap();
    let text = String::from_utf8(shared.0.lock().unwrap().clone()).unwrap();
    assert!(text.contains("\"ts\":1234.567,\"dur\":1390.000"), "{text}");
    let events = parsed(&shared);
    assert_eq!(events.len(), 10);
    assert_eq!(events[0]["args"]["name"], "drive \"a\\b\"\n");
    assert_eq!(events[5]["args"]["chunk"], 12);
    assert_eq!((&events[6]["ph"], &events[6]["id"]), (&"b".into(), &"0xff".into()));
    assert_eq!(events[9]["args"]["value"], 1.5);
    assert!(events.iter().all(|e| e["pid"] == 1 && e["tid"].is_u64()));
}

#[test]
fn an_early_end_and_an_empty_trace_are_json() {
    let shared = Shared::default();
    let mut trace = TraceFile::new(shared.clone());
    trace.span(PU, "read", Nanos(0), Nanos(58_000));
    drop(trace);
    assert_eq!(parsed(&shared).len(), 1);
    let empty = Shared::default();
    TraceFile::new(empty.clone()).finish().unwrap();
    assert_eq!(parsed(&empty).len(), 0);
}

#[test]
fn memory_stays_bounded_and_nothing_is_lost() {
    let shared = Shared::default();
    let mut trace = TraceFile::new(shared.clone());
    for i in 0..100_000u64 {
        trace.span(PU, "read", Nanos(i * 10), Nanos(i * 10 + 5));
        assert!(trace.buffer.len() <= BUFFER_BYTES);
        assert!(trace.buffer.capacity() <= 2 * BUFFER_BYTES);
    }
    trace.finish().unwrap();
    assert_eq!(parsed(&shared).len(), 100_000);
}

#[test]
fn an_error_of_the_file_is_told_at_the_end() {
    struct Full;
    impl Write for Full {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(io::Error::from(io::ErrorKind::StorageFull))
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let mut trace = TraceFile::new(Full);
    for i in 0..20_000u64 {
        trace.instant(PU, "x", Nanos(i));
    }
    assert_eq!(trace.finish().unwrap_err().kind(), io::ErrorKind::StorageFull);
}
