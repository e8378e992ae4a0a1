//! [`Writer`]: a client that writes growing numbers, so that the contents of a drive after its server's end can be
//! compared with what was answered and flushed.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Stdio;
use std::sync::Mutex;
use std::time::Duration;

use rustix::process::Signal;
use testkit::nbd_client::{self, NbdClient};

use super::{DRIVE, Server, fio_at, fio_ok_at, in_file};

pub const SECTOR: usize = 4096;
/// The writer uses the sectors below this one.
const SPAN: u64 = 4000;

/// State of each sector as its writers know it: the last number acknowledged, and the last one that
/// a flush or FUA covered. Numbers grow.
pub struct Known {
    acknowledged: Vec<u64>,
    flushed: Vec<u64>,
    flushes: u64,
}

impl Known {
    /// Creates the state of a drive with these numbers after a clean shutdown.
    pub fn from_numbers(numbers: Vec<u64>) -> Mutex<Known> {
        Mutex::new(Known { acknowledged: numbers.clone(), flushed: numbers, flushes: 0 })
    }
}

/// Returns a sector filled with its address and a number.
pub fn sector(lba: u64, number: u64) -> Vec<u8> {
    let words = (0..SECTOR / 16).flat_map(|_| [lba.to_le_bytes(), number.to_le_bytes()]);
    words.flatten().collect()
}

/// Returns the number in a sector, which must not be torn; 0 if it was never written.
fn number_in(lba: u64, data: &[u8]) -> u64 {
    if data.iter().all(|b| *b == 0) {
        return 0;
    }
    let n = u64::from_le_bytes(data[8..16].try_into().unwrap());
    assert!(data == sector(lba, n), "sector {lba} is torn, or has the data of another sector");
    n
}

/// Sends requests one at a time, with simple replies. Requests fail when the server ends.
pub struct Writer(UnixStream);

impl Writer {
    pub fn connect(path: &Path) -> io::Result<Writer> {
        Writer::connect_to(path, "")
    }

    /// Connects to the export of this name.
    pub fn connect_to(path: &Path, export: &str) -> io::Result<Writer> {
        let mut socket = UnixStream::connect(path)?;
        let mut greeting = [0; 18];
        socket.read_exact(&mut greeting)?;
        let go = nbd_client::info_data(export, &[3]);
        let mut out = 3u32.to_be_bytes().to_vec();
        out.extend_from_slice(b"IHAVEOPT");
        out.extend_from_slice(&7u32.to_be_bytes());
        out.extend_from_slice(&(go.len() as u32).to_be_bytes());
        out.extend_from_slice(&go);
        socket.write_all(&out)?;
        loop {
            let mut head = [0; 20];
            socket.read_exact(&mut head)?;
            let [.., a, b, c, d, e, f, g, h] = head;
            let mut data = vec![0; u32::from_be_bytes([e, f, g, h]) as usize];
            socket.read_exact(&mut data)?;
            if u32::from_be_bytes([a, b, c, d]) == nbd_client::ACK {
                return Ok(Writer(socket));
            }
        }
    }

    pub fn ask(&mut self, kind: u16, flags: u16, offset: u64, data: &[u8]) -> io::Result<()> {
        let mut out = nbd_client::request(kind, flags, 1, offset, data.len() as u32);
        out.extend_from_slice(data);
        self.0.write_all(&out)?;
        let mut reply = [0; 16];
        self.0.read_exact(&mut reply)?;
        assert_eq!(reply[4..8], [0; 4], "the server must not report an error");
        Ok(())
    }

    /// Writes numbers from `first` on, and flushes, until the server ends. Of `lanes` writers each has
    /// the sectors of one lane.
    fn run(mut self, first: u64, lane: u64, lanes: u64, known: &Mutex<Known>) -> io::Result<()> {
        let mut x = first + lane;
        for n in first.. {
            x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let lba = (x >> 33) % (SPAN / lanes) * lanes + lane;
            let fua = if n % 7 == 0 { nbd_client::FUA } else { 0 };
            self.ask(nbd_client::WRITE, fua, lba * SECTOR as u64, &sector(lba, n))?;
            {
                let mut known = known.lock().unwrap();
                known.acknowledged[lba as usize] = n;
                if fua != 0 {
                    known.flushed[lba as usize] = n;
                }
            }
            if n % 50 == 0 {
                // The flush covers what was answered to any writer before it was sent.
                let covered = known.lock().unwrap().acknowledged.clone();
                self.ask(nbd_client::FLUSH, 0, 0, &[])?;
                let mut known = known.lock().unwrap();
                for (flushed, covered) in known.flushed.iter_mut().zip(covered) {
                    *flushed = covered.max(*flushed);
                }
                known.flushes += 1;
            }
        }
        Ok(())
    }
}

/// Reads the number of every sector from the drive.
pub fn numbers(server: &Server) -> Vec<u64> {
    numbers_at(server, "")
}

/// Reads the number of every sector from an export.
pub fn numbers_at(server: &Server, export: &str) -> Vec<u64> {
    let mut client = NbdClient::named(&server.socket, export);
    let step = 50;
    let mut numbers = Vec::new();
    for first in (0..SPAN).step_by(step) {
        let data = client.read(first * SECTOR as u64, (step * SECTOR) as u32).unwrap();
        let each = data.chunks(SECTOR).zip(first..).map(|(data, lba)| number_in(lba, data));
        numbers.extend(each);
    }
    client.disconnect();
    numbers
}

/// Ends a server under the load of `writers` connections with `signal`, starts it again, and
/// compares; three rounds on one image. fio overwrites the rest of the drive at the same time, so that garbage is collected.
pub fn ends_under_load(scenario: &str, writers: u64, signal: Signal) {
    exports_end_under_load(&in_file(scenario), &[""], writers, signal);
}

/// Ends a server of a scenario with images as [`ends_under_load`], with `writers` connections to each
/// of its exports.
pub fn exports_end_under_load(scenario: &str, exports: &[&str], writers: u64, signal: Signal) {
    let dir = tempfile::tempdir().unwrap();
    let mut on_drives = vec![vec![0; SPAN as usize]; exports.len()];
    for round in 0..3u64 {
        let mut server = Server::start(dir.path(), scenario);
        let known: Vec<_> = on_drives.into_iter().map(Known::from_numbers).collect();
        std::thread::scope(|scope| {
            for (export, known) in exports.iter().zip(&known) {
                for lane in 0..writers {
                    let writer = Writer::connect_to(&server.socket, export).unwrap();
                    scope.spawn(move || writer.run(1 + (round << 32), lane, writers, known));
                }
            }
            let job = "--rw=randwrite --bs=16k --iodepth=8 --offset=20m --size=30m --norandommap \
                       --time_based --runtime=30";
            let job: Vec<_> = job.split_whitespace().collect();
            let load = exports.iter().map(|export| {
                let mut load = fio_at(&server, export, &job);
                load.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
            });
            let load: Vec<_> = load.collect();
            std::thread::sleep(Duration::from_millis(900 + 150 * round));
            server.signal(signal);
            let status = server.wait();
            assert_eq!(status.success(), signal != Signal::KILL, "{}", server.stderr());
            for mut load in load {
                // fio ends by itself when its server does; its exit code is irrelevant.
                let _ = load.wait();
            }
        });
        let again = Server::start(dir.path(), scenario);
        on_drives = Vec::new();
        for (export, known) in exports.iter().zip(known) {
            let known = known.into_inner().unwrap();
            assert!(known.flushes > 5, "the writers must have flushed before the signal");
            let found = numbers_at(&again, export);
            // After a clean shutdown, all acknowledged data must be there; after a kill, all flushed
            // data.
            let promised = match signal {
                Signal::KILL => &known.flushed,
                _ => &known.acknowledged,
            };
            for (lba, (found, promised)) in found.iter().zip(promised).enumerate() {
                let at = format!("sector {lba} of \"{export}\"");
                assert!(found >= promised, "{at} has {found}, expected {promised} or later");
            }
            // The drive accepts requests as before.
            let job =
                ["--rw=randwrite", "--bs=4k", "--offset=20m", "--size=16m", "--verify=crc32c"];
            fio_ok_at(&again, export, &job);
            on_drives.push(found);
        }
        again.stop_all();
    }
}

/// A drive with a volatile write buffer.
pub fn volatile() -> String {
    DRIVE.to_owned() + "write_buffer = { kind = \"volatile\", size = \"2M\" }\n"
}
