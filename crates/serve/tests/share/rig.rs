//! A share server in this process: a drive on a thread of its own, two partitions, whoever connects.

use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;

use clock::{Component, Idle, Nanos, RealClock, RealRunner, Stopper};
use direct::served::{IntervalStats, Name, RequestCounts, Span};
use drive::{
    ControllerConfig, Drive, DriveConfig, NullConfig, OpenChannelConfig, PersonalityKind, PuPolicy,
    Transfers, WriteBuffer,
};
use ftl::FtlConfig;
use media::MediaConfig;
use sluice_serve::share::{
    Errands, Partition, RulesFile, ShareConfig, ShareError, ShareLimits, ShareServer, SharedDrive,
    StatsSource, Table,
};
use tempfile::TempDir;

/// Sectors of each partition.
pub const COUNT: u64 = 64;

/// A drive, and what others want of it.
struct Shared {
    drive: Drive,
    errands: Arc<Errands>,
}

impl Component for Shared {
    fn poll(&mut self, now: Nanos) -> bool {
        self.errands.carry_out(&mut self.drive) | self.drive.poll(now)
    }

    fn deadline(&self) -> Nanos {
        self.drive.deadline()
    }
}

/// A server, and its drive's thread.
pub struct Server {
    share: Option<ShareServer>,
    errands: Arc<Errands>,
    stopper: Stopper,
    thread: Option<JoinHandle<()>>,
    pub socket: PathBuf,
    _dir: TempDir,
}

fn config() -> DriveConfig {
    DriveConfig {
        name: "d".into(),
        personality: PersonalityKind::Null,
        media: MediaConfig::Null { bytes: 1 << 20, sector_bytes: 4096 },
        controller: ControllerConfig::default(),
        pu_policy: PuPolicy::Fifo,
        page_register: false,
        cache_program: true,
        transfers: Transfers::default(),
        write_buffer: WriteBuffer::None,
        ftl: FtlConfig::default(),
        null: NullConfig { latency: Nanos(1_000), bytes_per_sec: 0 },
        open_channel: OpenChannelConfig::default(),
    }
}

pub fn name(text: &str) -> Name {
    Name::new(text).unwrap()
}

/// The partitions `a` and `b` of the drive `d`, of which nobody has been given any.
pub fn table() -> Table {
    let mut table = Table::new(rustix::process::geteuid().as_raw());
    for (part, first) in [("a", 0), ("b", COUNT)] {
        let span = Span::Sectors { first, count: COUNT };
        let taken = false;
        table.add(Partition { device: name("d"), name: name(part), span, taken }).unwrap();
    }
    table
}

impl Server {
    /// Few connections and little memory, so that limits are met.
    pub fn start(table: Table) -> Server {
        Server::keeping(table, None).unwrap()
    }

    /// The same, with a file of rules.
    pub fn keeping(table: Table, rules: Option<RulesFile>) -> Result<Server, ShareError> {
        let drive = Drive::new(config()).unwrap();
        let io_queues = drive.config().controller.io_queues;
        let runner = RealRunner::new(RealClock::start(), Idle::default()).unwrap();
        let (waker, stopper, errands) = (runner.waker(), runner.stopper(), Errands::new());
        let mut shared = Shared { drive, errands: errands.clone() };
        let thread = std::thread::spawn(move || runner.run(&mut shared).unwrap());
        let dir = tempfile::tempdir().unwrap();
        let limits = ShareLimits {
            connections: 40,
            connections_per_user: 32,
            regions: 8,
            bytes: 64 << 10,
            bytes_per_user: 256 << 10,
        };
        let socket = dir.path().join("s");
        let config = ShareConfig { path: socket.clone(), mode: 0o600, limits, rules };
        // Each interval counts the reads of those before it.
        let stats = Some(StatsSource::new(|| {
            let mut reads = 0;
            Box::new(move || {
                reads += 1;
                let requests = RequestCounts { reads, ..RequestCounts::default() };
                Some(IntervalStats { requests, ..IntervalStats::default() })
            })
        }));
        let drive =
            SharedDrive { name: name("d"), errands: errands.clone(), waker, io_queues, stats };
        let thread = Some(thread);
        let mut server = Server { share: None, errands, stopper, thread, socket, _dir: dir };
        server.share = Some(ShareServer::start(&config, table, vec![drive])?);
        Ok(server)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.share.take());
        self.errands.close();
        self.stopper.stop();
        if let Some(thread) = self.thread.take() {
            thread.join().expect("the drive's thread");
        }
    }
}
