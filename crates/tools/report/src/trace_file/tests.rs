//! The file is valid JSON however it ends, and its numbers are exact.

use std::sync::{Arc, Mutex};

use super::*;

#[derive(Clone, Default)]
struct SharedBuffer(Arc<Mutex<Vec<u8>>>);

impl Write for SharedBuffer {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn parsed(shared: &SharedBuffer) -> Vec<serde_json::Value> {
    serde_json::from_slice(&shared.0.lock().unwrap()).expect("valid JSON")
}

const PU: Track = Track { process: 1, thread: 17 };

#[test]
fn every_kind_of_event() {
    let shared = SharedBuffer::default();
    let mut trace = TraceFile::new(shared.clone());
    trace.name_process(1, "drive \"a\\b\"\n");
    trace.name_track(PU, "channel 2 PU 1");
    trace.span(PU, "program", Nanos(1_234_567), Nanos(2_624_567));
    trace.span_with(
        PU,
        "erase",
        Nanos(0),
        Nanos(1),
        &[Argument::number("chunk", 12), Argument::text("cause", "gc")],
    );
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
    let shared = SharedBuffer::default();
    let mut trace = TraceFile::new(shared.clone());
    trace.span(PU, "read", Nanos(0), Nanos(58_000));
    drop(trace);
    assert_eq!(parsed(&shared).len(), 1);
    let empty = SharedBuffer::default();
    TraceFile::new(empty.clone()).finish().unwrap();
    assert_eq!(parsed(&empty).len(), 0);
}

#[test]
fn memory_stays_bounded_and_nothing_is_lost() {
    let shared = SharedBuffer::default();
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

mod block {
    //! Requests of the block layer are reconstructed from its events, whatever their outcome.

    use ::block::trace::{Action, TraceEvent};
    use ::block::{Op, Submitter};
    use nvme::Status;

    use super::*;

    fn event(at: u64, action: Action, op: Op, lba: u64, sectors: u32) -> TraceEvent {
        TraceEvent {
            at: Nanos(at),
            action,
            op,
            fua: false,
            lba,
            sectors,
            submitter: Submitter(1),
            core: 0,
            queue: 0,
            status: Status::SUCCESS,
        }
    }

    /// A span or an instant: name, request, start and end.
    type Drawn = (String, Option<u64>, u64, u64);

    struct DrawnTrace {
        drawn: Vec<Drawn>,
        counters: Vec<(String, u64, f64)>,
        open: usize,
        unmatched: u64,
    }

    /// Draws events; checks that the spans of a request nest, as Perfetto requires.
    fn draw(events: &[TraceEvent]) -> DrawnTrace {
        let shared = SharedBuffer::default();
        let mut file = TraceFile::new(shared.clone());
        let mut tracks = BlockTracks::new(
            &mut file,
            9,
            "block",
            &[NamedSubmitter { submitter: Submitter(1), name: "db" }],
        );
        tracks.draw(&mut file, events);
        file.finish().unwrap();
        let (mut drawn, mut counters) = (Vec::new(), Vec::new());
        let mut stacks = std::collections::BTreeMap::<u64, Vec<(String, u64)>>::new();
        for e in parsed(&shared) {
            assert_eq!(e["pid"], 9);
            let name = e["name"].as_str().unwrap().to_owned();
            let at = (e["ts"].as_f64().unwrap_or(0.0) * 1000.0).round() as u64;
            let id = || u64::from_str_radix(&e["id"].as_str().unwrap()[2..], 16).unwrap();
            match e["ph"].as_str().unwrap() {
                "b" => stacks.entry(id()).or_default().push((name, at)),
                "e" => {
                    let (begun, start) = stacks.get_mut(&id()).unwrap().pop().unwrap();
                    assert_eq!(begun, name, "spans nest");
                    assert_eq!((&e["tid"], &e["cat"]), (&2.into(), &"request".into()));
                    drawn.push((name, Some(id()), start, at));
                }
                "i" => drawn.push((name, None, at, at)),
                "C" => counters.push((name, at, e["args"]["value"].as_f64().unwrap())),
                _ => {}
            }
        }
        let open = stacks.values().filter(|s| !s.is_empty()).count();
        assert_eq!(open, tracks.open());
        DrawnTrace { drawn, counters, open, unmatched: tracks.unmatched() }
    }

    fn span(name: &str, id: u64, start: u64, end: u64) -> Drawn {
        (name.into(), Some(id), start, end)
    }

    fn instant(name: &str, at: u64) -> Drawn {
        (name.into(), None, at, at)
    }

    #[test]
    fn a_request_is_staged_then_at_the_device() {
        let read = |at, action| event(at, action, Op::Read, 100, 8);
        let picture = draw(&[
            read(10, Action::Queued),
            read(11, Action::GotRequest),
            read(12, Action::Inserted),
            read(30, Action::Issued),
            read(90, Action::Completed),
        ]);
        let expected =
            [span("staged", 0, 10, 30), span("device", 0, 30, 90), span("read", 0, 10, 90)];
        assert_eq!(picture.drawn, expected);
        let counted = [("staged", 10, 1.0), ("staged", 30, 0.0), ("in flight", 30, 1.0)];
        let counted = counted.into_iter().chain([("in flight", 90, 0.0)]);
        let counted: Vec<_> = counted.map(|(n, at, v)| (n.to_owned(), at, v)).collect();
        assert_eq!(picture.counters, counted);
        assert_eq!((picture.open, picture.unmatched), (0, 0));
    }

    #[test]
    fn merged_requests_go_and_come_together() {
        let write = |at, action, lba, n| event(at, action, Op::Write, lba, n);
        let picture = draw(&[
            write(1, Action::Queued, 100, 8),
            write(2, Action::Queued, 108, 4),
            write(3, Action::BackMerge, 108, 4),
            write(4, Action::Queued, 92, 8),
            write(5, Action::FrontMerge, 92, 8),
            write(10, Action::Issued, 92, 20),
            write(50, Action::Completed, 92, 20),
        ]);
        for (id, queued) in [(0, 1), (1, 2), (2, 4)] {
            assert!(picture.drawn.contains(&span("staged", id, queued, 10)));
            assert!(picture.drawn.contains(&span("device", id, 10, 50)));
            assert!(picture.drawn.contains(&span("write", id, queued, 50)));
        }
        assert!(picture.drawn.contains(&instant("merge behind", 3)));
        assert!(picture.drawn.contains(&instant("merge before", 5)));
        assert_eq!((picture.open, picture.unmatched, picture.drawn.len()), (0, 0, 11));
    }

    #[test]
    fn a_requeued_request_is_staged_again_and_may_fail() {
        let read = |at, action| event(at, action, Op::Read, 7, 1);
        let failed = TraceEvent { status: Status::UNRECOVERED_READ, ..read(9, Action::Completed) };
        let picture = draw(&[
            read(1, Action::Queued),
            read(2, Action::Issued),
            read(5, Action::Requeued),
            read(6, Action::Issued),
            failed,
        ]);
        let expected = [
            span("staged", 0, 1, 2),
            instant("requeue", 5),
            span("device", 0, 2, 5),
            span("staged", 0, 5, 6),
            instant("failed", 9),
            span("device", 0, 6, 9),
            span("read", 0, 1, 9),
        ];
        assert_eq!(picture.drawn, expected);
    }

    #[test]
    fn a_split_request_completes_with_its_last_fragment() {
        let read = |at, action, lba, n| event(at, action, Op::Read, lba, n);
        // Both fragments are issued. The first is requeued and issued again; the second completes
        // first.
        let picture = draw(&[
            read(1, Action::Queued, 0, 8),
            read(2, Action::Split, 0, 4),
            read(3, Action::Issued, 0, 4),
            read(4, Action::Issued, 4, 4),
            read(5, Action::Requeued, 0, 4),
            read(6, Action::Completed, 4, 4),
            read(7, Action::Issued, 0, 4),
            read(9, Action::Completed, 0, 4),
        ]);
        let expected = [
            instant("split", 2),
            span("staged", 0, 1, 3),
            instant("requeue", 5),
            span("device", 0, 3, 6),
            span("staged", 0, 6, 7),
            span("device", 0, 7, 9),
            span("read", 0, 1, 9),
        ];
        let mut drawn = picture.drawn;
        drawn.sort_by_key(|d| d.3);
        assert_eq!(drawn, expected);
        assert_eq!((picture.open, picture.unmatched), (0, 0));
    }

    #[test]
    fn equal_requests_and_flushes_are_told_apart_by_age() {
        let read = |at, action| event(at, action, Op::Read, 5, 1);
        let flush = |at, action| event(at, action, Op::Flush, 0, 0);
        let picture = draw(&[
            flush(1, Action::Queued),
            read(2, Action::Queued),
            read(3, Action::Queued),
            read(4, Action::Issued),
            flush(5, Action::Issued),
            read(6, Action::Completed),
            read(7, Action::Issued),
            read(8, Action::Completed),
            flush(9, Action::Completed),
        ]);
        assert!(picture.drawn.contains(&span("flush", 0, 1, 9)));
        assert!(picture.drawn.contains(&span("read", 1, 2, 6)));
        assert!(picture.drawn.contains(&span("read", 2, 3, 8)));
        assert_eq!((picture.open, picture.unmatched, picture.drawn.len()), (0, 0, 9));
    }

    #[test]
    fn what_ends_without_a_command_was_staged_all_the_time() {
        let flush = |at, action| event(at, action, Op::Flush, 0, 0);
        let refused = TraceEvent {
            status: Status::LBA_OUT_OF_RANGE,
            ..event(7, Action::Completed, Op::Read, 40, 5)
        };
        let picture = draw(&[
            flush(1, Action::Queued),
            flush(2, Action::Queued),
            event(3, Action::Queued, Op::Read, 40, 3),
            event(4, Action::Queued, Op::Read, 43, 2),
            flush(5, Action::Issued),
            flush(6, Action::Completed),
            flush(6, Action::Completed),
            refused,
        ]);
        let expected = [
            span("staged", 0, 1, 5),
            span("device", 0, 5, 6),
            span("flush", 0, 1, 6),
            span("staged", 1, 2, 6),
            span("flush", 1, 2, 6),
            instant("failed", 7),
            span("staged", 3, 4, 7),
            span("read", 3, 4, 7),
            span("staged", 2, 3, 7),
            span("read", 2, 3, 7),
        ];
        assert_eq!(picture.drawn, expected);
        assert_eq!(picture.counters.last().unwrap(), &("staged".to_owned(), 7, 0.0));
        assert_eq!((picture.open, picture.unmatched), (0, 0));
    }

    #[test]
    fn what_began_before_the_trace_is_counted() {
        let picture = draw(&[
            event(1, Action::Completed, Op::Read, 5, 1),
            event(2, Action::Issued, Op::Write, 6, 1),
            event(3, Action::Completed, Op::Write, 6, 1),
            event(4, Action::Queued, Op::Read, u64::MAX, u32::MAX),
        ]);
        assert_eq!((picture.open, picture.unmatched), (1, 2));
        assert_eq!(picture.drawn, []);
        assert_eq!(picture.counters.last().unwrap().2, 1.0);
    }
}
