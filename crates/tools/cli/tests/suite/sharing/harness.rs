//! A server in a process of its own, its clients, and their resource usage.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::time::{Duration, Instant};

use rng::Rng;
use rustix::net::{RecvFlags, SendFlags};
use rustix::process::{Pid, Signal, kill_process};
use share_proto::socket::{self, ReceivedPacket};
use share_proto::{
    Code, Message, NamespaceAction, Packet, ProtocolError, ResourceName, SettingChange,
};
use user_io::remote::Admin;
use user_io::{Handle, IoDevice, IoError, Queue, QueueConfig, Request, WaitMode};

pub const SECTOR: usize = 4096;
/// Sectors of each partition.
pub const COUNT: u64 = 2000;
/// Number of 4096-byte pages of the drive's medium.
pub const MEDIUM_PAGES: u64 = 16 * 24 * 64 * 4;
/// Longer than any operation on a loaded machine.
pub const TEST_TIMEOUT: Duration = Duration::from_secs(60);
/// A user number and group number without an account.
pub const OTHER: u32 = 43_210;

/// A small, fast drive with three partitions.
pub const SCENARIO: &str = "[drive]\npreset = \"femu-default\"\n\
    geometry = { channels = 2, chunks = 24, pages = 64 }\n\
    timing = { read = \"10us\", program = \"30us\", erase = \"100us\" }\n\
    [[partition]]\nname = \"left\"\nfirst = 0\nsectors = 2000\n\
    [[partition]]\nname = \"right\"\nfirst = 2000\nsize = \"8000k\"\n\
    [[partition]]\nname = \"net\"\nfirst = 4000\nsectors = 2000\nnbd = true\n";

/// Returns the scenario with the drive's data in a file.
pub fn in_file(scenario: &str) -> String {
    scenario.replace("[drive]\n", "[drive]\ndata = \"file\"\npath = \"drive.img\"\n")
}

/// A server; killed when dropped.
pub struct Server {
    pub child: Child,
    pub socket: PathBuf,
    dir: PathBuf,
}

impl Server {
    /// Serves a scenario from `dir`, and waits until clients can connect.
    pub fn start(dir: &Path, scenario: &str, extra: &[&str]) -> Server {
        let mut server = Server::launch(dir, scenario, extra);
        let start = Instant::now();
        while !server.stdout().contains("sharing ") {
            if let Some(status) = server.child.try_wait().unwrap() {
                panic!("the server ended with {status}: {}", server.stderr());
            }
            assert!(start.elapsed() < TEST_TIMEOUT, "not ready: {}", server.stderr());
            std::thread::sleep(Duration::from_millis(5));
        }
        server
    }

    pub fn launch(dir: &Path, scenario: &str, extra: &[&str]) -> Server {
        use std::os::unix::fs::PermissionsExt;
        // Other users must be able to reach the socket.
        std::fs::set_permissions(dir, std::fs::Permissions::from_mode(0o755)).unwrap();
        let (path, socket) = (dir.join("scenario.toml"), dir.join("share.sock"));
        std::fs::write(&path, scenario).unwrap();
        let file = |name| File::create(dir.join(name)).unwrap();
        let child = Command::new(env!("CARGO_BIN_EXE_sluice"))
            .arg("serve")
            .arg(&path)
            .arg("--socket")
            .arg(&socket)
            .args(["--socket-mode", "666"])
            .args(extra)
            .stdout(file("stdout"))
            .stderr(file("stderr"))
            .spawn()
            .unwrap();
        Server { child, socket, dir: dir.to_path_buf() }
    }

    pub fn stdout(&self) -> String {
        std::fs::read_to_string(self.dir.join("stdout")).unwrap()
    }

    pub fn stderr(&self) -> String {
        std::fs::read_to_string(self.dir.join("stderr")).unwrap()
    }

    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Kills the server, which is a power cut for the drive.
    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Stops the server, which must shut down cleanly.
    pub fn stop(mut self) {
        self.signal(Signal::TERM);
        let start = Instant::now();
        let status = loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                break status;
            }
            assert!(start.elapsed() < TEST_TIMEOUT, "the server does not end: {}", self.stderr());
            std::thread::sleep(Duration::from_millis(5));
        };
        assert!(status.success(), "{status}: {}", self.stderr());
        assert!(!self.socket.exists(), "a clean shutdown must remove the socket");
    }

    /// Stops all threads of the server with SIGSTOP.
    pub fn freeze(&self) {
        self.signal(Signal::STOP);
        let stopped = |path: PathBuf| {
            let stat = std::fs::read_to_string(path.join("stat")).unwrap();
            stat.rsplit(')').next().unwrap().trim().starts_with('T')
        };
        let tasks = || std::fs::read_dir(self.proc("task")).unwrap().map(|t| t.unwrap().path());
        while !tasks().all(stopped) {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    pub fn admin(&self) -> Admin {
        Admin::connect(&self.socket).unwrap()
    }

    /// Runs `sluice admin`.
    pub fn sluice_admin(&self, args: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_sluice"));
        command.args(["admin", "--socket"]).arg(&self.socket).args(args).output().unwrap()
    }

    fn proc(&self, what: &str) -> PathBuf {
        PathBuf::from(format!("/proc/{}/{what}", self.child.id()))
    }

    /// Returns the number of open descriptors, and the numbers of mapped and resident pages.
    pub fn holdings(&self) -> (usize, u64, u64) {
        let descriptors = std::fs::read_dir(self.proc("fd")).unwrap().count();
        let statm = std::fs::read_to_string(self.proc("statm")).unwrap();
        let mut pages = statm.split(' ').map(|n| n.trim().parse().unwrap());
        (descriptors, pages.next().unwrap(), pages.next().unwrap())
    }

    /// Returns the CPU time used, in ticks.
    pub fn ticks(&self) -> u64 {
        let stat = std::fs::read_to_string(self.proc("stat")).unwrap();
        let fields: Vec<_> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
        fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
    }

    /// Waits until the server has at most `most` clients.
    pub fn wait_for_clients(&self, most: usize) {
        let start = Instant::now();
        loop {
            let list = self.admin().list().unwrap();
            let clients = list.iter().filter(|e| matches!(e, share_proto::ListEntry::Client(_)));
            let clients = clients.count();
            if clients <= most {
                return;
            }
            assert!(start.elapsed() < TEST_TIMEOUT, "{clients} clients remain");
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Opens a partition, and a handle on a new queue.
pub fn client(socket: &Path, partition: &str) -> (IoDevice, Handle<Queue>) {
    let device = IoDevice::connect(socket, Some(partition)).unwrap();
    let handle = handle(&device, WaitMode::Poll);
    (device, handle)
}

pub fn handle(device: &IoDevice, wait: WaitMode) -> Handle<Queue> {
    let config = QueueConfig { depth: 64, interrupts: true };
    let queue = device.create_queue(config).unwrap();
    let mut handle = Handle::new(device, queue).unwrap();
    handle.set_wait(wait).unwrap();
    handle
}

/// Returns words that identify a sector, its version and its writer.
pub fn content(who: u64, lba: u64, version: u64) -> Vec<u8> {
    let word = (lba << 32 | version).wrapping_mul(2 * who + 1);
    (0..SECTOR as u64 / 8).flat_map(|i| (word ^ i).to_le_bytes()).collect()
}

/// Writes and reads at random with many requests in flight, and verifies every byte. The data
/// stays. Returns the version of each sector.
pub fn verify(socket: &Path, partition: &str, who: u64, rounds: u64) -> Vec<u64> {
    const BATCH: u64 = 32;
    let device = IoDevice::connect(socket, Some(partition)).unwrap();
    assert_eq!(device.limits().sectors, COUNT);
    let waits = [WaitMode::Poll, WaitMode::Interrupt];
    let mut handles: Vec<_> = waits.into_iter().map(|wait| handle(&device, wait)).collect();
    let buffer = device.buffer(BATCH as usize * SECTOR).unwrap();
    let mut rng = Rng::new(who);
    let mut versions = vec![0u64; COUNT as usize];
    handles[0].write_zeroes(0, COUNT as u32, false).unwrap();
    for round in 0..rounds {
        let h = &mut handles[round as usize % 2];
        let first = rng.below(COUNT - BATCH);
        let writes = rng.chance(0.5);
        for slot in 0..BATCH {
            let (lba, offset) = (first + slot, slot as usize * SECTOR);
            let at = block::Payload::Contiguous(buffer.iova().offset(offset as u64));
            h.submit(if writes {
                let version = &mut versions[lba as usize];
                *version += 1;
                buffer.write(offset, &content(who, lba, *version));
                Request::write(lba, 1, at, slot)
            } else {
                buffer.fill(offset, SECTOR, 0xee);
                Request::read(lba, 1, at, slot)
            })
            .unwrap();
        }
        for _ in 0..BATCH {
            let done = h.wait().unwrap();
            assert!(done.status.is_success(), "{done:?}");
        }
        if !writes {
            for slot in 0..BATCH {
                let (lba, mut bytes) = (first + slot, vec![0; SECTOR]);
                buffer.read(slot as usize * SECTOR, &mut bytes);
                let version = versions[lba as usize];
                let zeros = version == 0 && bytes.iter().all(|b| *b == 0);
                assert!(zeros || bytes == content(who, lba, version), "sector {lba} of {who}");
            }
        }
    }
    handles[0].flush().unwrap();
    versions
}

/// Verifies the data that [`verify`] wrote.
pub fn verify_again(socket: &Path, partition: &str, who: u64, versions: &[u64]) {
    let (device, mut h) = client(socket, partition);
    let buffer = device.buffer(SECTOR).unwrap();
    for (lba, version) in (0..).zip(versions).filter(|(_, version)| **version > 0) {
        h.read(lba, &buffer).unwrap();
        let mut bytes = vec![0; SECTOR];
        buffer.read(0, &mut bytes);
        assert!(bytes == content(who, lba, *version), "sector {lba} of {who}");
    }
}

// The client process.

const ROLE: &str = "SLUICE_SHARING_ROLE";

/// A client in a process of its own.
pub struct ChildClient {
    pub child: Child,
    lines: BufReader<ChildStdout>,
}

impl ChildClient {
    /// Starts a client process, as another user if the test can change users.
    pub fn start(role: &str, server: &Server, partition: &str, user: Option<u32>) -> ChildClient {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command
            .args(["--exact", testkit::test_path!(child), "--nocapture", "--test-threads=1"])
            .env(ROLE, role)
            .env("SOCKET", &server.socket)
            .env("PARTITION", partition)
            .current_dir("/")
            .stdout(Stdio::piped());
        if let Some(user) = user {
            command.uid(user).gid(user);
        }
        let mut child = command.spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap());
        ChildClient { child, lines }
    }

    /// Returns the next line that the client prints for the test.
    pub fn line(&mut self) -> String {
        loop {
            let mut line = String::new();
            let read = self.lines.read_line(&mut line).unwrap();
            assert!(read > 0, "the client process has ended: {:?}", self.child.wait());
            if let Some(at) = line.find("> ") {
                return line[at + 2..].trim().to_owned();
            }
        }
    }

    pub fn finish(mut self) {
        let status = self.child.wait().unwrap();
        assert!(status.success(), "{status}");
    }
}

impl Drop for ChildClient {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns whether the test can start processes of another user.
pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

#[test]
fn child() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let signal = rustix::process::Signal::KILL;
    rustix::process::set_parent_process_death_signal(Some(signal)).unwrap();
    let socket = PathBuf::from(std::env::var("SOCKET").unwrap());
    let partition = std::env::var("PARTITION").unwrap();
    match role.as_str() {
        "verify" => drop(verify(&socket, &partition, 1, 200)),
        "write" => write(&socket, &partition),
        "refused" => {
            let error = IoDevice::connect(&socket, Some(&partition)).unwrap_err();
            println!("> {error}");
            println!("> {}", Admin::connect(&socket).unwrap_err());
            // A client that does not heed that.
            println!("> {}", ask_to_administrate(&socket).text);
        }
        other => panic!("{other}"),
    }
}

/// Sends requests of administrators, which must be refused. Returns the last refusal.
fn ask_to_administrate(socket: &Path) -> ProtocolError {
    let client = socket::connect(socket).unwrap();
    let (device, change) = (ResourceName::new("drive0").unwrap(), SettingChange::ActivePus(1));
    let action = NamespaceAction::Delete(None);
    let requests = [
        Message::Hello,
        Message::ChangeNamespaces { device, action },
        Message::ListNamespaces { device, index: 0 },
        Message::Fault { device, fault: "power-cut".into() },
        Message::Set { device, change },
    ];
    let mut last = None;
    for (serial, message) in (1..).zip(requests) {
        let packet = Packet { serial, message };
        socket::send(&client, &packet, &[], SendFlags::empty()).unwrap();
        let answer = socket::receive(&client, 0, RecvFlags::empty()).unwrap();
        if serial == 1 {
            continue;
        }
        match answer {
            ReceivedPacket::Packet(Packet { message: Message::Refused(refused), .. }, _) => {
                assert_eq!(refused.code, Code::NotAdmin);
                last = Some(refused);
            }
            other => panic!("{other:?}"),
        }
    }
    last.unwrap()
}

/// Sectors that are written and flushed first.
pub const FLUSHED: u64 = 8;

/// Writes 100,000 times; the test kills the process meanwhile.
fn write(socket: &Path, partition: &str) {
    let (device, mut h) = client(socket, partition);
    let buffer = device.buffer(SECTOR).unwrap();
    let who = u64::from(std::process::id());
    for lba in 0..FLUSHED {
        buffer.write(0, &content(who, lba, 1));
        h.write(lba, &buffer, false).unwrap();
    }
    h.flush().unwrap();
    for n in 0..100_000u64 {
        let request = Request::write(FLUSHED + n % 500, 1, buffer.payload(), n);
        while let Err(IoError::Busy(_)) = h.submit(request) {
            let done = h.wait().unwrap();
            assert!(done.status.is_success());
        }
        if n == 40 {
            println!("> begun");
        }
    }
    // The process was not killed during the writes: wait for the signal.
    std::thread::sleep(Duration::from_secs(100));
}
