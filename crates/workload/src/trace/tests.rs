//! Every format, good and bad.

use super::*;
use std::io::Write;

fn replay(text: &str) -> (tempfile::NamedTempFile, Replay) {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(text.as_bytes()).unwrap();
    let path = file.path().to_owned();
    let replay = Replay {
        path,
        format: None,
        time_scale: 100.0,
        no_stall: false,
        device: None,
        redirect: false,
        wrap: false,
    };
    (file, replay)
}

fn read(replay: &Replay) -> Result<(Vec<TraceOp>, TraceFit), TraceError> {
    let mut reader = TraceReader::open(replay, 4096, 1000)?;
    let mut ops = Vec::new();
    while let Some(op) = reader.next_op()? {
        ops.push(op);
    }
    Ok((ops, reader.fit()))
}

fn op(at: u64, direction: Direction, lba: u64, sectors: u32) -> TraceOp {
    TraceOp { at: Nanos(at), action: TraceAction::Access(direction), lba, sectors }
}

#[test]
fn reads_every_format() {
    use Direction::{Read, Trim, Write};
    let v2 = "fio version 2 iolog\n/dev/x add\n/dev/x open\n/dev/x read 0 4096\n/dev/x wait 500 0\n\
              /dev/x write 8192 8192\n/dev/x sync 0 0\n/dev/x trim 4096 4096\n/dev/x close\n";
    let (_f, r) = replay(v2);
    let (ops, _) = read(&r).unwrap();
    let flush = TraceOp { at: Nanos(500_000), action: TraceAction::Flush, lba: 0, sectors: 0 };
    assert_eq!(ops, [op(0, Read, 0, 1), op(500_000, Write, 2, 2), flush, op(500_000, Trim, 1, 1)]);
    let v3 = "fio version 3 iolog\n25 x.0.0 add\n100 x.0.0 open\n112 x.0.0 read 61440 4096\n\
              140 x.0.0 write 491520 4096\n150 x.0.0 sync 839680 0\n292 x.0.0 close\n";
    let (_f, r) = replay(v3);
    assert_eq!(read(&r).unwrap().0[..2], [op(112_000, Read, 15, 1), op(140_000, Write, 120, 1)]);
    let msr = "128166372003061629,hm,1,Read,4096,32768,37151\n\
               128166372013061629,hm,1,Write,512,512,100\n";
    let (_f, mut r) = replay(msr);
    let (ops, fit) = read(&r).unwrap();
    assert_eq!(ops, [op(0, Read, 1, 8), op(1_000_000_000, Write, 0, 1)]);
    assert_eq!(fit.widened, 1);
    r.time_scale = 200.0;
    assert_eq!(read(&r).unwrap().0[1].at, Nanos::from_millis(500));
    let (_f, r) = replay("5000 0 8 8 0\n9000 0 16 16 1\n8000 0 0 8 1\n");
    let (ops, _) = read(&r).unwrap();
    assert_eq!(ops, [op(0, Write, 1, 1), op(4000, Read, 2, 2), op(4000, Read, 0, 1)]);
}

#[test]
fn several_devices_are_never_mixed_silently() {
    let (_f, mut r) = replay("0 0 0 8 1\n1 3 8 8 1\n2 0 16 8 1\n");
    assert!(read(&r).unwrap_err().to_string().contains(":2: a second device, `3` after `0`"));
    r.device = Some(0);
    let (ops, fit) = read(&r).unwrap();
    assert_eq!((ops.len(), fit.left_out), (2, 1));
    r.device = None;
    r.redirect = true;
    assert_eq!(read(&r).unwrap().0.len(), 3);
}

#[test]
fn past_the_end_is_an_error_unless_wrapped() {
    let (_f, mut r) = replay("0 0 7992 16 1\n1 0 16008 8 0\n");
    let error = read(&r).unwrap_err();
    assert!(matches!(error, TraceError::PastEnd { line: 1, .. }), "{error}");
    r.wrap = true;
    let (ops, fit) = read(&r).unwrap();
    assert_eq!(ops, [op(0, Direction::Read, 998, 2), op(1, Direction::Write, 1, 1)]);
    assert_eq!(fit.wrapped, 2);
}

#[test]
fn bad_lines_name_file_and_line() {
    let bad = |text: &str, part: &str| {
        let (file, r) = replay(text);
        let error = read(&r).unwrap_err().to_string();
        assert!(error.contains(&*file.path().to_string_lossy()), "{error}");
        assert!(error.contains(part), "{error} should contain {part}");
    };
    bad("hello\n", ":1: not a fio iolog");
    bad("", "not a fio iolog");
    bad("fio version 2 iolog\nx read 0\n", ":2: the length is missing");
    bad("fio version 2 iolog\nx fly 0 1\n", "unknown action `fly`");
    bad("fio version 2 iolog\n\nx read 0 0\n", ":3: an access of 0 bytes");
    bad("fio version 3 iolog\n1 x wait 5 0\n", "not an action of version 3");
    bad("fio version 3 iolog\nx read 5 0\n", "is not the timestamp");
    bad("1,h,0,Read,0,512,1\n2,h,0,Erase,0,512,1\n", ":2: unknown type `Erase`");
    bad("1,h,0,Read,0,512,1\n2,h,0,Read,-5,512,1\n", "`-5` is not the offset");
    bad("0 0 0 8 1\n0 0 0 8 2\n", "unknown type `2`");
    bad("0 0 18446744073709551615 8 1\n", "sector number over");
    bad("0 0 0 8 1\n0 0 0\n", ":2: the size is missing");
    let (_f, mut r) = replay("0 0 0 8 1\n");
    r.format = Some(TraceFormat::Iolog);
    assert!(read(&r).unwrap_err().to_string().contains("fio version 2"));
    r.path = "/nonexistent/trace".into();
    assert!(matches!(read(&r), Err(TraceError::Unreadable { .. })));
}
