//! Every format, good and bad.

// guarantee: B-39

use super::*;
use std::io::Write;

use flate2::write::GzEncoder;
use ruzstd::encoding::{CompressionLevel, compress_to_vec};

fn gzip(text: &str) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), flate2::Compression::default());
    encoder.write_all(text.as_bytes()).unwrap();
    encoder.finish().unwrap()
}

fn zstd(text: &str) -> Vec<u8> {
    compress_to_vec(text.as_bytes(), CompressionLevel::Fastest)
}

fn replay(text: &str) -> (tempfile::NamedTempFile, ReplayOptions) {
    replay_bytes(text.as_bytes())
}

fn replay_bytes(bytes: &[u8]) -> (tempfile::NamedTempFile, ReplayOptions) {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(bytes).unwrap();
    let path = file.path().to_owned();
    let replay = ReplayOptions::new(path);
    (file, replay)
}

fn read(replay: &ReplayOptions) -> Result<(Vec<TraceOp>, TraceAdjustments), TraceError> {
    let mut reader = TraceReader::open(replay, 4096, 1000)?;
    let mut ops = Vec::new();
    while let Some(op) = reader.next_op()? {
        ops.push(op);
    }
    Ok((ops, reader.adjustments()))
}

fn after(wait: u64, direction: Direction, lba: u64, sectors: u32) -> TraceOp {
    TraceOp { at: Due::After(Nanos(wait)), ..op(0, direction, lba, sectors) }
}

fn op(at: u64, direction: Direction, lba: u64, sectors: u32) -> TraceOp {
    TraceOp { at: Due::At(Nanos(at)), action: TraceAction::Access(direction), lba, sectors }
}

#[test]
fn reads_every_format() {
    use Direction::{Read, Trim, Write};
    let v2 = "fio version 2 iolog\n/dev/x add\n/dev/x open\n/dev/x read 0 4096\n/dev/x wait 500 0\n\
              /dev/x write 8192 8192\n/dev/x sync 0 0\n/dev/x trim 4096 4096\n/dev/x close\n";
    let (_f, r) = replay(v2);
    let (ops, _) = read(&r).unwrap();
    let flush =
        TraceOp { at: Due::After(Nanos(0)), action: TraceAction::Flush, lba: 0, sectors: 0 };
    let expected = [after(0, Read, 0, 1), after(500_000, Write, 2, 2), flush, after(0, Trim, 1, 1)];
    assert_eq!(ops, expected);
    let v3 = "fio version 3 iolog\n25 x.0.0 add\n100 x.0.0 open\n112 x.0.0 read 61440 4096\n\
              140 x.0.0 write 491520 4096\n150 x.0.0 sync 839680 0\n292 x.0.0 close\n";
    let (_f, r) = replay(v3);
    // Times count from the first stamp that is not zero, as in fio.
    assert_eq!(read(&r).unwrap().0[..2], [op(87_000, Read, 15, 1), op(115_000, Write, 120, 1)]);
    let msr = "128166372003061629,hm,1,Read,4096,32768,37151\n\
               128166372013061629,hm,1,Write,8192,4096,100\n";
    let (_f, mut r) = replay(msr);
    let (ops, _) = read(&r).unwrap();
    assert_eq!(ops, [op(0, Read, 1, 8), op(1_000_000_000, Write, 2, 1)]);
    r.time_scale = 200.0;
    assert_eq!(read(&r).unwrap().0[1].at, Due::At(Nanos::from_millis(500)));
    let (_f, r) = replay("5000 0 8 8 0\n9000 0 16 16 1\n8000 0 0 8 1\n");
    let (ops, _) = read(&r).unwrap();
    assert_eq!(ops, [op(0, Write, 1, 1), op(4000, Read, 2, 2), op(4000, Read, 0, 1)]);
}

/// Requests that are not whole sectors, in every format, and what `replay_align` makes of them.
#[test]
fn requests_that_are_not_whole_sectors_are_refused_or_aligned() {
    use Direction::{Read, Write};
    let msr = "0,hm,1,Read,4096,4096,1\n10,hm,1,Write,512,512,1\n20,hm,1,Read,7680,8192,1\n";
    let mqsim = "0 0 8 8 1\n1000 0 1 1 0\n2000 0 15 16 1\n";
    let v2 = "fio version 2 iolog\nx read 4096 4096\nx write 512 512\nx read 7680 8192\n";
    let v3 = "fio version 3 iolog\n1 x read 4096 4096\n2 x write 512 512\n3 x read 7680 8192\n";
    for (text, line) in [(msr, 2), (mqsim, 2), (v2, 3), (v3, 3)] {
        let (_f, mut r) = replay(text);
        let error = read(&r).unwrap_err();
        let message = error.to_string();
        assert!(matches!(error, TraceError::Unaligned { offset: 512, bytes: 512, .. }), "{error}");
        assert!(message.contains(&format!(":{line}: bytes 512..+512")), "{message}");
        assert!(message.contains("`replay_align=4096`"), "{message}");
        r.align = 4096;
        let (ops, fit) = read(&r).unwrap();
        let seen: Vec<_> = ops.iter().map(|o| (o.action, o.lba, o.sectors)).collect();
        let access = TraceAction::Access;
        assert_eq!(seen, [(access(Read), 1, 1), (access(Write), 0, 1), (access(Read), 1, 2)]);
        assert_eq!(
            (fit.aligned_requests, fit.bytes_requested, fit.bytes_issued),
            (2, 12800, 16384)
        );
        // Aligned, but not to the sectors of this device.
        r.align = 512;
        assert!(matches!(read(&r), Err(TraceError::Unaligned { .. })));
    }
    let (_f, mut r) = replay("fio version 2 iolog\nx read 40960 4096\nx write 16384 4096\n");
    (r.scale, r.align) = (5, 4096);
    let (ops, fit) = read(&r).unwrap();
    assert_eq!(ops, [after(0, Read, 2, 1), after(0, Write, 0, 1)]);
    assert_eq!((fit.aligned_requests, fit.bytes_requested, fit.bytes_issued), (1, 8192, 8192));
}

#[test]
fn kinds_of_requests_can_be_left_out() {
    let v2 = "fio version 2 iolog\nx read 0 4096\nx write 0 4096\nx sync 0 0\nx trim 0 4096\n";
    let (_f, mut r) = replay(v2);
    r.skip.directions[1] = true;
    r.skip.sync = true;
    let (ops, fit) = read(&r).unwrap();
    assert_eq!(ops, [after(0, Direction::Read, 0, 1), after(0, Direction::Trim, 0, 1)]);
    assert_eq!((fit.skipped, fit.bytes_requested), (2, 8192));
}

#[test]
fn several_devices_are_never_mixed_silently() {
    let (_f, mut r) = replay("0 0 0 8 1\n1 3 8 8 1\n2 0 16 8 1\n");
    assert!(read(&r).unwrap_err().to_string().contains(":2: a second device, `3` after `0`"));
    r.device = Some(0);
    let (ops, fit) = read(&r).unwrap();
    assert_eq!((ops.len(), fit.skipped), (2, 1));
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
    bad("1,h,0,Read,0,4096,1\n2,h,0,Erase,0,512,1\n", ":2: unknown type `Erase`");
    bad("1,h,0,Read,0,4096,1\n2,h,0,Read,-5,512,1\n", "`-5` is not the offset");
    bad("0 0 0 8 1\n0 0 0 8 2\n", "unknown type `2`");
    bad("0 0 18446744073709551615 8 1\n", "sector number over");
    bad("0 0 0 8 1\n0 0 0\n", ":2: the size is missing");
    let (_f, mut r) = replay("0 0 0 8 1\n");
    r.format = Some(TraceFormat::Iolog);
    assert!(read(&r).unwrap_err().to_string().contains("fio version 2"));
    r.path = "/nonexistent/trace".into();
    assert!(matches!(read(&r), Err(TraceError::Unreadable { .. })));
}

/// Returns a trace of each format, of several compressed blocks.
fn long_traces() -> [String; 4] {
    let lines = |line: &dyn Fn(u64) -> String| (0..9_000).map(line).collect::<String>();
    let lba = |i: u64| i * 7919 % 999;
    let iolog =
        |i: u64| format!("x {} {} 4096\n", ["read", "write"][(i % 2) as usize], lba(i) * 4096);
    [
        lines(&|i| format!("{},hm,1,Read,{},4096,{}\n", 1000 + i * i, lba(i) * 4096, i * 31)),
        lines(&|i| format!("{} 0 {} 8 {}\n", i * i, lba(i) * 8, i % 2)),
        format!("fio version 2 iolog\n{}", lines(&iolog)),
        format!("fio version 3 iolog\n{}", lines(&|i| format!("{} {}", i * 3, iolog(i)))),
    ]
}

#[test]
fn compressed_traces_are_read_as_plain_ones_in_every_format() {
    for text in long_traces() {
        let (_f, r) = replay(&text);
        let plain = read(&r).unwrap();
        assert_eq!(plain.0.len(), 9_000);
        // Several members or frames in one file, also an empty one.
        let (first, second) = text.split_at(text.len() / 3);
        for compressed in [
            gzip(&text),
            zstd(&text),
            [gzip(first), gzip(""), gzip(second)].concat(),
            [zstd(first), zstd(""), zstd(second)].concat(),
        ] {
            assert!(compressed.len() < text.len());
            let (_f, r) = replay_bytes(&compressed);
            assert_eq!(read(&r).unwrap(), plain);
            let mut reader = TraceReader::open(&r, 4096, 1000).unwrap();
            while reader.next_op().unwrap().is_some() {}
            assert_eq!(reader.progress(), 1.0);
        }
    }
}

/// A file of the `zstd` program: a frame with a checksum, a frame that decoders skip, another frame.
const ZSTD_FILE: [u8; 121] = *b"\
    \x28\xb5\x2f\xfd\x24\x2f\x79\x01\x00fio version 2 iolog\nx add\nx open\nx read 0 4096\n\
    \x0b\x35\x46\x44\
    \x5a\x2a\x4d\x18\x03\x00\x00\x00abc\
    \x28\xb5\x2f\xfd\x24\x25\x29\x01\x00x write 8192 8192\nx sync 0 0\nx close\n\xe9\x1c\x92\x82";

#[test]
fn damaged_or_truncated_compressed_traces_are_refused_with_their_line() {
    let (_f, r) = replay_bytes(&ZSTD_FILE);
    let (ops, _) = read(&r).unwrap();
    assert_eq!(ops.len(), 3);
    let one_gzip = gzip("fio version 2 iolog\nx read 0 4096\nx write 8192 8192\n");
    for (bytes, name) in [(&ZSTD_FILE[..], "zstd"), (&one_gzip, "gzip")] {
        let (_f, r) = replay_bytes(bytes);
        let valid = read(&r).unwrap();
        for end in 4..bytes.len() {
            let (file, r) = replay_bytes(&bytes[..end]);
            match read(&r) {
                // A file that ends with a frame is complete.
                Ok((ops, _)) => assert!([60, 71].contains(&end) && ops.len() == 1, "{name}: {end}"),
                Err(error) => {
                    let message = error.to_string();
                    assert!(matches!(error, TraceError::Damaged { .. }), "{end}: {message}");
                    let place = message.split_once(": the ").unwrap().0;
                    let (path, line) = place.rsplit_once(':').unwrap();
                    assert_eq!(path, file.path().to_str().unwrap());
                    assert!((1..=5).contains(&line.parse().unwrap()), "{message}");
                    assert!(message.contains(&format!("`{name} -t`")), "{message}");
                }
            }
        }
        // No change gives other requests: checksums find it, or it is not in the data.
        for bit in 32..bytes.len() * 8 {
            let mut changed = bytes.to_vec();
            changed[bit / 8] ^= 1 << (bit % 8);
            let (_f, r) = replay_bytes(&changed);
            if let Ok(found) = read(&r) {
                assert_eq!(found, valid, "{name}: bit {bit}");
            }
        }
    }
    // Lines before the damage are valid.
    let long = gzip(&long_traces()[1]);
    let (_f, r) = replay_bytes(&long[..long.len() - 3]);
    let error = read(&r).unwrap_err();
    assert!(matches!(error, TraceError::Damaged { line: 8_000..=9_001, .. }), "{error}");
}

#[test]
fn lines_have_a_maximum_length_and_are_text() {
    let message = |bytes: &[u8]| {
        let (_f, r) = replay_bytes(bytes);
        read(&r).unwrap_err().to_string()
    };
    let long = format!("fio version 2 iolog\nx read 0 4096{}\n", " ".repeat(LINE_BYTES_MAX));
    for bytes in [long.clone().into_bytes(), gzip(&long), zstd(&long)] {
        assert!(message(&bytes).contains(":2: a line of more than 16384 bytes"));
    }
    assert!(message(b"fio version 2 iolog\nx\xff read 0 4096\n").contains(":2: not UTF-8 text"));
    // The magic number of xz.
    let other = message(b"\xfd7zXZ\0 abc");
    assert!(other.contains(":1: not a fio iolog") && other.contains("gzip or zstd"), "{other}");
}
