//! The blktrace format: every byte is at its offset in the kernel's interface, and the reader
//! validates every file.

use std::io::Write;
use std::sync::{Arc, Mutex};

use nvme::Status;
use sluice_block::trace::blktrace::{
    BlktraceReader, BlktraceRecord, BlktraceWriter, Category, DeviceNumber, MAGIC, RECORD_BYTES,
    ReadError, RecordBody, TraceProcess, TracedDevice, VERSION, WriteError, WriterSummary,
};
use sluice_block::trace::{Action, TraceEvent, Tracer, merge_by_time};
use sluice_block::{Op, Submitter};
use time::Nanos;

/// A file in memory that outlives its writer.
#[derive(Clone, Default)]
struct SharedFile(Arc<Mutex<Vec<u8>>>);

impl SharedFile {
    fn bytes(&self) -> Vec<u8> {
        self.0.lock().unwrap().clone()
    }

    fn records(&self) -> Vec<BlktraceRecord> {
        BlktraceReader::new(&self.bytes()[..]).map(|r| r.unwrap()).collect()
    }
}

impl Write for SharedFile {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

fn traced(cores: u16) -> TracedDevice {
    let process = |n: u16, comm: &str| TraceProcess {
        submitter: Submitter(n),
        pid: 1000 + u32::from(n),
        comm: comm.into(),
    };
    TracedDevice {
        name: "sluice0".into(),
        number: DeviceNumber { major: 259, minor: 3 },
        sector_bytes: 4096,
        cores,
        processes: vec![process(0, "reader"), process(2, "fifteen letters")],
        started: (1_700_000_000, 123),
    }
}

fn event(at: u64, action: Action, op: Op, lba: u64, sectors: u32) -> TraceEvent {
    TraceEvent {
        at: Nanos(at),
        action,
        op,
        fua: false,
        lba,
        sectors,
        submitter: Submitter(2),
        core: 1,
        queue: 0,
        status: Status::SUCCESS,
    }
}

/// Offset of times in a file of `traced`: a timestamp and two process names precede the events.
const ORIGIN: u64 = 4;

/// Returns the file that a writer of two cores writes for events of core 1.
fn written(events: &[TraceEvent]) -> (Vec<u8>, WriterSummary) {
    let files = [SharedFile::default(), SharedFile::default()];
    let mut writer = BlktraceWriter::new(files.to_vec(), &traced(2)).unwrap();
    assert_eq!(writer.origin(), Nanos(ORIGIN));
    writer.write(1, events).unwrap();
    let summary = writer.finish().unwrap();
    (files[1].bytes(), summary)
}

#[test]
fn a_record_byte_for_byte() {
    let mut done = event(0x0102_0304_0506_0700, Action::Completed, Op::Write, 0x11_2233_4455, 3);
    done.fua = true;
    done.status = Status::WRITE_FAULT;
    let (bytes, summary) = written(&[done]);
    #[rustfmt::skip]
    let golden = [
        0x07, 0x74, 0x61, 0x65,                         //  0 magic | version
        0x01, 0x00, 0x00, 0x00,                         //  4 sequence
        0x04, 0x07, 0x06, 0x05, 0x04, 0x03, 0x02, 0x01, //  8 time, 4 ns later
        0xa8, 0x22, 0x9a, 0x11, 0x89, 0x00, 0x00, 0x00, // 16 sector: eight times the LBA
        0x00, 0x30, 0x00, 0x00,                         // 24 bytes: 12288
        0x08, 0x00, 0x8a, 0x81,                         // 28 C | WRITE SYNC COMPLETE FS FUA
        0xea, 0x03, 0x00, 0x00,                         // 32 pid 1002
        0x03, 0x00, 0x30, 0x10,                         // 36 device 259,3
        0x01, 0x00, 0x00, 0x00,                         // 40 cpu
        0xc3, 0xff,                                     // 44 error: -61, ENODATA
        0x00, 0x00,                                     // 46 bytes of payload
    ];
    assert_eq!(bytes, golden);
    assert_eq!(summary, WriterSummary { events: 1, clamped: 0 });
}

#[test]
fn payloads_byte_for_byte() {
    let (bytes, _) = written(&[
        event(10, Action::Split, Op::Read, 100, 2),
        event(11, Action::Unplug, Op::Write, 7, 0x0203),
    ]);
    let (split, unplug) = bytes.split_at(RECORD_BYTES + 8);
    assert_eq!(split[28..32], [13, 0, 1, 0], "the only category of a split is its direction");
    assert_eq!(split[46..], [8, 0, 0, 0, 0, 0, 0, 0, 0x03, 0x30], "816, big endian");
    assert_eq!(unplug[16..28], [0; 12], "an unplug has no address");
    assert_eq!(unplug[28..32], [10, 0, 0x11, 0]);
    assert_eq!(unplug[46..], [8, 0, 0, 0, 0, 0, 0, 0, 2, 3], "515 requests, big endian");
}

#[test]
fn what_precedes_the_events() {
    let files = [SharedFile::default(), SharedFile::default()];
    let writer = BlktraceWriter::new(files.to_vec(), &traced(2)).unwrap();
    assert_eq!(writer.finish().unwrap(), WriterSummary::default());
    let bytes = files[0].bytes();
    assert_eq!(bytes.len(), 3 * RECORD_BYTES + 8 + 16 + 16);
    assert_eq!(bytes[28..32], [1, 0, 0, 4], "the first record is a timestamp");
    assert_eq!(
        bytes[46..56],
        [8, 0, 0x00, 0xf1, 0x53, 0x65, 123, 0, 0, 0],
        "1.7 billion seconds, and 123 ns"
    );
    let name = &bytes[RECORD_BYTES + 8..];
    assert_eq!(name[28..36], [0, 0, 0, 4, 0xe8, 3, 0, 0], "the name record of process 1000");
    assert_eq!(name[46..64], *b"\x10\0reader\0\0\0\0\0\0\0\0\0\0");
    assert_eq!(bytes[bytes.len() - 16..], *b"fifteen letters\0");
    assert!(files[1].bytes().is_empty(), "the other file must exist and be empty");
    let times: Vec<_> = files[0].records().iter().map(|r| (r.sequence, r.time.0)).collect();
    assert_eq!(
        times,
        [(1, 1), (2, 2), (3, 3)],
        "all header records precede the first event, at 4 ns"
    );
}

#[test]
fn every_action_and_operation() {
    const Q: u16 = 1 << 4;
    const FS: u16 = 1 << 8;
    let actions = [
        (Action::Queued, 1, Q),
        (Action::BackMerge, 2, Q),
        (Action::FrontMerge, 3, Q),
        (Action::GotRequest, 4, Q),
        (Action::Sleep, 5, Q),
        (Action::Requeued, 6, 1 << 5 | FS),
        (Action::Issued, 7, 1 << 6 | FS),
        (Action::Completed, 8, 1 << 7 | FS),
        (Action::Inserted, 12, Q | FS),
        (Action::Split, 13, 0),
    ];
    let operations = [
        (Op::Read, 1),
        (Op::Write, 2),
        (Op::Flush, 2 | 1 << 2 | 1 << 3),
        (Op::Discard, 2 | 1 << 13),
        (Op::WriteZeroes, 2),
    ];
    for (action, code, kind) in actions {
        for (op, request) in operations {
            let sectors = u32::from(op != Op::Flush);
            let (bytes, _) = written(&[event(1, action, op, 9, sectors)]);
            let word = u32::from_le_bytes(bytes[28..32].try_into().unwrap());
            assert_eq!(word, code | u32::from(kind | request) << 16, "{action:?} {op:?}");
            let record = BlktraceReader::new(&bytes[..]).next().unwrap().unwrap();
            assert_eq!((record.sector, record.bytes), (72, sectors * 4096));
            let zeros_are_writes = if op == Op::WriteZeroes { Op::Write } else { op };
            assert_eq!(record.op(), Some(zeros_are_writes));
        }
        // An extent query passes through with length 0 and without FS.
        let (bytes, _) = written(&[event(1, action, Op::Extents, 9, 1000)]);
        let record = BlktraceReader::new(&bytes[..]).next().unwrap().unwrap();
        assert_eq!(record.categories.0, kind & !FS | 1 | 1 << 9);
        assert_eq!((record.sector, record.bytes, record.op()), (72, 0, None));
    }
    for (action, code) in [(Action::Plug, 9), (Action::Unplug, 10)] {
        let (bytes, _) = written(&[event(1, action, Op::Write, 9, 5)]);
        assert_eq!(bytes[28..32], [code, 0, 0x11, 0]);
    }
    assert!(actions.iter().all(|a| "QMFGSRDCIX".contains(a.0.letter())));
    let fua = Category::WRITE.union(Category::FUA).union(Category::SYNC).union(Category::QUEUE);
    let (bytes, _) =
        written(&[TraceEvent { fua: true, ..event(1, Action::Queued, Op::Write, 9, 1) }]);
    assert_eq!(BlktraceReader::new(&bytes[..]).next().unwrap().unwrap().categories, fua);
}

#[test]
fn statuses_are_the_errors_linux_makes_of_them() {
    for (status, errno) in [
        (Status::SUCCESS, 0i16),
        (Status::SUCCESS.do_not_retry(), 0),
        (Status::UNRECOVERED_READ.do_not_retry(), -61),
        (Status::CAPACITY_EXCEEDED, -28),
        (Status::LBA_OUT_OF_RANGE, -121),
        (Status::INVALID_FIELD, -95),
        (Status::CONFLICTING_ATTRIBUTES, -95),
        (Status::INTERNAL, -5),
    ] {
        let done = TraceEvent { status, ..event(1, Action::Completed, Op::Read, 0, 1) };
        let (bytes, _) = written(&[done]);
        assert_eq!(i16::from_le_bytes([bytes[44], bytes[45]]), errno, "{status}");
        let (bytes, _) = written(&[TraceEvent { action: Action::Issued, ..done }]);
        assert_eq!(bytes[44..46], [0, 0], "only completions have an error code");
    }
}

#[test]
fn what_the_format_cannot_say_is_counted() {
    let (bytes, summary) = written(&[
        event(1, Action::Queued, Op::Discard, 0, u32::MAX),
        event(2, Action::Queued, Op::Read, u64::MAX / 8, 1),
        event(3, Action::Split, Op::Read, u64::MAX, 1),
        event(4, Action::Queued, Op::Read, 0, 1_048_575),
    ]);
    assert_eq!(summary, WriterSummary { events: 4, clamped: 3 });
    let records: Vec<_> = BlktraceReader::new(&bytes[..]).map(|r| r.unwrap()).collect();
    assert_eq!(records[0].bytes, 1_048_575 * 4096, "the length must be clamped to whole sectors");
    assert_eq!(records[1].sector, u64::MAX / 8 * 8);
    assert_eq!(records[2].body, RecordBody::Split { rest: u64::MAX });
    assert_eq!(records[3].bytes, 1_048_575 * 4096);
}

#[test]
fn events_are_written_in_the_order_of_their_times() {
    let files = [SharedFile::default(), SharedFile::default()];
    let mut writer = BlktraceWriter::new(files.to_vec(), &traced(2)).unwrap();
    let at = |at| event(at, Action::Queued, Op::Read, at, 1);
    writer.write(1, &[at(5), at(3), at(9)]).unwrap();
    writer.write(1, &[]).unwrap();
    writer.write(1, &[at(9), at(12)]).unwrap();
    // A rejected call writes nothing and uses no sequence number.
    let backwards = writer.write(1, &[at(20), at(11)]).unwrap_err();
    assert!(matches!(backwards, WriteError::Backwards { core: 1, at: Nanos(11), last: Nanos(12) }));
    let stranger = TraceEvent { submitter: Submitter(1), ..at(20) };
    let unknown = writer.write(1, &[at(20), stranger]).unwrap_err();
    assert!(matches!(unknown, WriteError::UnknownSubmitter { submitter: Submitter(1) }));
    let other = writer.write(0, &[at(20)]).unwrap_err();
    assert!(matches!(other, WriteError::OtherCore { core: 0, found: 1 }));
    let none = writer.write(2, &[]).unwrap_err();
    assert!(matches!(none, WriteError::UnknownCore { core: 2, cores: 2 }));
    assert_eq!(none.to_string(), "events of core 2, but there are 2 cores");
    writer.write(1, &[at(20)]).unwrap();
    assert_eq!(writer.finish().unwrap().events, 6);
    let records = files[1].records();
    let seen: Vec<_> = records.iter().map(|r| (r.sequence, r.time.0 - ORIGIN)).collect();
    assert_eq!(seen, [(1, 3), (2, 5), (3, 9), (4, 9), (5, 12), (6, 20)]);
}

#[test]
fn descriptions_that_do_not_fit() {
    let refused = |change: &dyn Fn(&mut TracedDevice)| {
        let mut traced = traced(1);
        change(&mut traced);
        BlktraceWriter::new(vec![SharedFile::default()], &traced).map(|_| ()).unwrap_err()
    };
    for name in ["", "a/b", "a.blktrace.0"] {
        let error = refused(&|t| t.name = name.into());
        assert!(matches!(error, WriteError::Name { .. }), "{error}");
    }
    for number in
        [DeviceNumber { major: 4096, minor: 0 }, DeviceNumber { major: 0, minor: 1 << 20 }]
    {
        assert!(matches!(refused(&|t| t.number = number), WriteError::Number { .. }));
    }
    for bytes in [0, 520, 256] {
        let error = refused(&|t| t.sector_bytes = bytes);
        assert!(matches!(error, WriteError::SectorBytes { .. }), "{error}");
    }
    for comm in ["sixteen letters!", "nul\0"] {
        let error = refused(&|t| t.processes[0].comm = comm.into());
        assert!(matches!(error, WriteError::Comm { .. }), "{error}");
    }
    let error = refused(&|t| t.processes[0].submitter = Submitter(2));
    assert!(matches!(error, WriteError::TwoProcesses { submitter: Submitter(2) }));
    let error = refused(&|t| t.cores = 2);
    assert!(matches!(error, WriteError::Writers { writers: 1, cores: 2 }));
}

#[test]
fn files_of_an_earlier_trace_are_not_taken_for_this_one() {
    let dir = tempfile::tempdir().unwrap();
    BlktraceWriter::create(dir.path(), &traced(3)).unwrap().finish().unwrap();
    let again = BlktraceWriter::create(dir.path(), &traced(3)).unwrap();
    again.finish().unwrap();
    let error = BlktraceWriter::create(dir.path(), &traced(2)).unwrap_err();
    let stale = dir.path().join("sluice0.blktrace.2");
    assert!(matches!(&error, WriteError::Stale { path } if *path == stale), "{error}");
    std::fs::remove_file(stale).unwrap();
    BlktraceWriter::create(dir.path(), &traced(2)).unwrap().finish().unwrap();
    let first = dir.path().join("sluice0.blktrace.0");
    assert_eq!(BlktraceReader::open(&first).unwrap().count(), 3);
    let nowhere = BlktraceWriter::create(&dir.path().join("no"), &traced(2)).unwrap_err();
    assert!(matches!(nowhere, WriteError::Io { core: 0, .. }));
    let nothing = BlktraceReader::open(&dir.path().join("no")).unwrap_err();
    assert!(matches!(nothing, ReadError::Io { at: 0, .. }));
}

#[test]
fn a_full_disk_is_an_error() {
    struct Full;
    impl Write for Full {
        fn write(&mut self, _: &[u8]) -> std::io::Result<usize> {
            Err(std::io::ErrorKind::StorageFull.into())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let error = BlktraceWriter::new(vec![Full], &traced(1)).map(|_| ()).unwrap_err();
    assert!(matches!(error, WriteError::Io { core: 0, .. }), "{error}");
}

fn record(what: RecordBody) -> BlktraceRecord {
    let notify = matches!(
        what,
        RecordBody::Process(_) | RecordBody::Timestamp { .. } | RecordBody::Message(_)
    );
    BlktraceRecord {
        sequence: 0x1122_3344,
        time: Nanos(0x0102_0304_0506_0708),
        sector: 0xa1a2_a3a4_a5a6_a7a8,
        bytes: 0xb1b2_b3b4,
        body: what,
        categories: if notify { Category::NOTIFY } else { Category::WRITE },
        pid: 0xc1c2_c3c4,
        device: DeviceNumber { major: 0xfff, minor: 0xf_fffe },
        cpu: 0xd1d2_d3d4,
        error: 0xe1e2,
        cgroup: None,
    }
}

fn all_records() -> Vec<BlktraceRecord> {
    let device = DeviceNumber { major: 8, minor: 1 };
    let whats = [
        RecordBody::Queued,
        RecordBody::BackMerge,
        RecordBody::FrontMerge,
        RecordBody::GotRequest,
        RecordBody::Sleep,
        RecordBody::Requeued,
        RecordBody::Issued,
        RecordBody::Completed,
        RecordBody::Plug,
        RecordBody::Inserted,
        RecordBody::Unplug { requests: 1 << 40, timer: false },
        RecordBody::Unplug { requests: 3, timer: true },
        RecordBody::Split { rest: u64::MAX },
        RecordBody::Remapped { from: device, to: DeviceNumber { major: 9, minor: 2 }, sector: 77 },
        RecordBody::Process("kworker/0:1".into()),
        RecordBody::Timestamp { seconds: 5, nanos: 999_999_999 },
        RecordBody::Message("hello".into()),
        RecordBody::Other { code: 17, payload: vec![1; 65535] },
        RecordBody::Other { code: 14, payload: vec![] },
    ];
    let records = whats.into_iter().map(record);
    records.chain([BlktraceRecord { cgroup: Some(0x1234), ..record(RecordBody::Issued) }]).collect()
}

#[test]
fn what_is_encoded_is_decoded() {
    let mut bytes = Vec::new();
    all_records().iter().for_each(|r| r.encode(&mut bytes));
    let back: Result<Vec<_>, _> = BlktraceReader::new(&bytes[..]).collect();
    assert_eq!(back.unwrap(), all_records());
}

#[test]
fn a_trace_of_a_machine_of_the_other_byte_order() {
    let mut bytes = Vec::new();
    record(RecordBody::Unplug { requests: 3, timer: false }).encode(&mut bytes);
    record(RecordBody::Timestamp { seconds: 5, nanos: 6 }).encode(&mut bytes);
    for start in [0, RECORD_BYTES + 8] {
        for (at, width) in [
            (0, 4),
            (4, 4),
            (8, 8),
            (16, 8),
            (24, 4),
            (28, 4),
            (32, 4),
            (36, 4),
            (40, 4),
            (44, 2),
            (46, 2),
        ] {
            bytes[start + at..start + at + width].reverse();
        }
    }
    let payload = 2 * RECORD_BYTES + 8;
    bytes[payload..payload + 4].reverse();
    bytes[payload + 4..payload + 8].reverse();
    let records: Vec<_> = BlktraceReader::new(&bytes[..]).map(|r| r.unwrap()).collect();
    assert_eq!(records[0], record(RecordBody::Unplug { requests: 3, timer: false }));
    assert_eq!(records[1], record(RecordBody::Timestamp { seconds: 5, nanos: 6 }));
}

#[test]
fn hostile_files() {
    let read = |bytes: &[u8]| BlktraceReader::new(bytes).collect::<Result<Vec<_>, _>>();
    let mut good = Vec::new();
    record(RecordBody::Split { rest: 4 }).encode(&mut good);
    let second = good.len() as u64;
    record(RecordBody::Issued).encode(&mut good);
    assert_eq!(read(&good).unwrap().len(), 2);
    assert!(read(&[]).unwrap().is_empty());

    // Truncated at any byte, the reader returns the complete records, then the position and the
    // number of missing bytes.
    for length in 1..good.len() {
        let mut reader = BlktraceReader::new(&good[..length]);
        if length as u64 == second {
            assert_eq!(reader.by_ref().flatten().count(), 1);
            continue;
        }
        let begins = if (length as u64) < second { 0 } else { second };
        let whole = reader.by_ref().take_while(|r| r.is_ok()).count();
        assert_eq!(whole as u64, begins / second);
        assert!(reader.next().is_none(), "the reader must return nothing after an error");
        match read(&good[..length]) {
            Err(ReadError::Truncated { at, missing }) => {
                assert_eq!(at, begins);
                assert!(missing > 0 && missing <= RECORD_BYTES);
            }
            other => panic!("{length}: {other:?}"),
        }
    }

    let changed = |at: usize, bytes: &[u8]| {
        let mut file = good.clone();
        file[at..at + bytes.len()].copy_from_slice(bytes);
        read(&file).unwrap_err()
    };
    assert!(matches!(changed(1, &[0]), ReadError::Magic { at: 0, .. }));
    let magic = changed(second as usize, b"GIF8");
    assert!(matches!(magic, ReadError::Magic { at, found: 0x3846_4947 } if at == second));
    // The byte order must not change within a file.
    let swapped = (MAGIC | u32::from(VERSION)).to_be_bytes();
    assert!(matches!(changed(second as usize, &swapped), ReadError::Magic { .. }));
    let version = changed(0, &[6]);
    assert!(matches!(version, ReadError::Version { at: 0, found: 6 }));
    assert!(version.to_string().contains("only 7 is known"), "{version}");
    // A payload that is too short for its action, with and without a control group id.
    assert!(matches!(changed(46, &[0]), ReadError::Payload { at: 0, bytes: 0 }));
    assert!(matches!(changed(29, &[1]), ReadError::Payload { at: 0, bytes: 8 }));
    // A payload longer than the file.
    let end = changed(46, &[0xff, 0xff]);
    assert!(matches!(end, ReadError::Truncated { at: 0, missing } if missing == 65535 - 8 - 48));

    // Whatever the contents, reading ends with records or an error.
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let mut errors = 0;
    for _ in 0..20_000 {
        let mut file = good.clone();
        for _ in 0..3 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let at = (state >> 33) as usize % file.len();
            file[at] = (state >> 20) as u8;
        }
        errors += u32::from(read(&file).is_err());
    }
    assert!((1000..20_000).contains(&errors), "{errors}");
}

#[test]
fn a_tracer_has_a_limit() {
    let mut tracer = Tracer::new(2);
    for at in 0..5 {
        tracer.record(event(at, Action::Queued, Op::Read, at, 1));
    }
    assert_eq!((tracer.events().len(), tracer.dropped()), (2, 3));
    assert_eq!(tracer.drain().len(), 2);
    tracer.record(event(9, Action::Queued, Op::Read, 9, 1));
    assert_eq!(tracer.events().len(), 1);
    tracer.clear();
    assert!(tracer.events().is_empty());
    assert_eq!(tracer.dropped(), 3);
}

#[test]
fn cores_are_joined_by_time_and_by_cause() {
    let at = |at, action, core| TraceEvent { core, ..event(at, action, Op::Read, 0, 1) };
    let first = [at(5, Action::Issued, 0), at(6, Action::Completed, 0), at(6, Action::Queued, 0)];
    let second = [at(1, Action::Plug, 1), at(5, Action::Queued, 1), at(6, Action::GotRequest, 1)];
    let joined = merge_by_time(&[&first, &[], &second]);
    let letters: String = joined.iter().map(|e| e.action.letter()).collect();
    assert_eq!(
        letters, "PQDGCQ",
        "Q must precede its D, and the C of its core must precede the next Q"
    );
}
