//! A share server in this process: a drive on its own thread, two partitions, any client.

use std::path::PathBuf;
use std::sync::Mutex;
use std::thread::JoinHandle;

use controller::{
    Controller, ControllerConfig, DriveConfig, Fault, NullConfig, OpenChannelConfig,
    PersonalityKind, PmrConfig, PmrStore, PuScheduling, RegionCosts, RegisterConfig,
    TransferConfig, WriteBuffer,
};
use event::{IdlePolicy, RealClock, RealRunner, StopHandle};
use ftl::{
    ActivePusError, ControlChange, ControlError, ControlSettings, FtlConfig, RateLimiterKind,
    VictimPolicyKind,
};
use media::MediaConfig;
use rustix::net::{RecvFlags, SendFlags};
use share_proto::socket::{self, ReceivedPacket};
use share_proto::{IntervalStats, Message, Packet, PartitionSpan, RequestCounts, ResourceName};
use share_server::{
    AclFile, FaultInjectionError, FaultInjector, FtlControl, NamedFaultInjector, NamedFtl,
    NamedNamespaces, NamedStats, NamespaceControl, OwnerCalls, OwnerChannel, Partition,
    PartitionTable, ServedParts, ShareConfig, ShareError, ShareLimits, ShareServer, SharedDrive,
    StatsSource,
};
use tempfile::TempDir;
use time::{Component, Nanos};

/// Sectors of each partition.
pub const COUNT: u64 = 64;

/// A drive and calls to its owner thread.
struct Shared {
    drive: Controller,
    owner_calls: OwnerCalls<Controller>,
}

impl Component for Shared {
    fn poll(&mut self, now: Nanos) -> bool {
        self.owner_calls.run_pending(&mut self.drive) | self.drive.poll(now)
    }

    fn deadline(&self) -> Nanos {
        self.drive.deadline()
    }
}

/// A server and its drive's thread.
pub struct Server {
    share: Option<ShareServer>,
    stopper: StopHandle,
    thread: Option<JoinHandle<()>>,
    pub socket: PathBuf,
    /// Calls to the drive's thread.
    pub owner: OwnerChannel<Controller>,
    _dir: TempDir,
}

fn config() -> DriveConfig {
    DriveConfig {
        name: "d".into(),
        personality: PersonalityKind::Null,
        media: MediaConfig::Null { bytes: 1 << 20, sector_bytes: 4096 },
        controller: ControllerConfig::default(),
        pu_scheduling: PuScheduling::Fifo,
        page_register: false,
        cache_program: true,
        transfers: TransferConfig::default(),
        write_buffer: WriteBuffer::None,
        ftl: FtlConfig::default(),
        null: NullConfig { latency: Nanos(1_000), bytes_per_sec: 0 },
        open_channel: OpenChannelConfig::default(),
        lba_bytes: None,
        protection: None,
        // Clients have no part of it.
        pmr: Some(PmrConfig {
            store: PmrStore::Emulated { bytes: 64 << 10 },
            costs: RegionCosts::default(),
        }),
        rules: None,
    }
}

pub fn name(text: &str) -> ResourceName {
    ResourceName::new(text).unwrap()
}

/// Returns a table with partitions `a` and `b` of drive `d`, without rules.
pub fn table() -> PartitionTable {
    let mut table = PartitionTable::new(rustix::process::geteuid().as_raw());
    for (part, first) in [("a", 0), ("b", COUNT)] {
        let span = PartitionSpan::Sectors { first, count: COUNT };
        let taken = false;
        table.add(Partition { device: name("d"), name: name(part), span, in_use: taken }).unwrap();
    }
    table
}

/// Returns access to an FTL `f` that is a value behind a lock, with at most 8 parallel units, and to
/// that of the drive `d`, which has none.
fn ftls(owner: OwnerChannel<Controller>) -> Vec<NamedFtl> {
    let settings = ControlSettings {
        active_pus: 8,
        active_pus_max: 8,
        rate_limiter: RateLimiterKind::Proportional,
        victim_policy: VictimPolicyKind::Greedy,
    };
    let settings = Mutex::new(settings);
    let value = FtlControl::new(move |change| {
        let mut settings = settings.lock().unwrap();
        match change {
            None => {}
            Some(ControlChange::ActivePus(requested)) if requested > 8 => {
                return Err(ControlError::from(ActivePusError { requested, max: 8 }).into());
            }
            Some(ControlChange::ActivePus(count)) => settings.active_pus = count,
            Some(ControlChange::RateLimiter(kind)) => settings.rate_limiter = kind,
            Some(ControlChange::VictimPolicy(kind)) => settings.victim_policy = kind,
        }
        Ok(vec![*settings])
    });
    let drive = FtlControl::new(move |change| {
        let refused = owner.call(move |drive| match change {
            Some(change) => drive.apply_change(&change),
            None => Err(ControlError::NoFtl),
        });
        refused??;
        Ok(Vec::new())
    });
    let named = [("f", value), ("d", drive)];
    named.map(|(text, control)| NamedFtl { name: name(text), control }).into()
}

/// Returns the injector of the drive `d`, for which the only texts of faults are `cut`, `fatal` and
/// `die`.
fn injector(owner: OwnerChannel<Controller>) -> NamedFaultInjector {
    let injector = FaultInjector::new(move |text| {
        let fault = match text {
            "cut" => Fault::PowerCut { after_ops: 0 },
            "fatal" => Fault::ControllerFatal,
            "die" => Fault::DieFailure { pu: media::PuId(9_999) },
            _ => return Err(FaultInjectionError::Text(format!("no fault {text}"))),
        };
        Ok(owner.call(move |drive| drive.inject_fault(Nanos::ZERO, fault))??)
    });
    NamedFaultInjector { name: name("d"), injector }
}

impl Server {
    /// Starts a server with few connections and little memory, so that limits are reached.
    pub fn start(table: PartitionTable) -> Server {
        Server::keeping(table, None).unwrap()
    }

    /// Starts a server with a rules file.
    pub fn keeping(table: PartitionTable, rules: Option<AclFile>) -> Result<Server, ShareError> {
        let limits = ShareLimits {
            connections: 40,
            connections_per_user: 32,
            regions: 8,
            bytes: 64 << 10,
            bytes_per_user: 256 << 10,
        };
        Server::of_drive(config(), table, rules, limits)
    }

    /// Starts a server whose drive has registers.
    pub fn with_registers() -> Server {
        let mut drive = config();
        drive.controller.registers = Some(RegisterConfig::default());
        Server::of_drive(drive, table(), None, ShareLimits::default()).unwrap()
    }

    fn of_drive(
        drive: DriveConfig,
        table: PartitionTable,
        rules: Option<AclFile>,
        limits: ShareLimits,
    ) -> Result<Server, ShareError> {
        let drive = Controller::new(drive).unwrap();
        let io_queues = drive.config().controller.max_io_queues;
        let has_registers = drive.config().controller.registers.is_some();
        let clock = RealClock::start();
        let runner = RealRunner::new(clock, IdlePolicy::default()).unwrap();
        let (stopper, owner_calls) = (runner.stop_handle(), OwnerCalls::default());
        let owner = owner_calls.channel(runner.waker());
        let mut shared = Shared { drive, owner_calls };
        let thread = std::thread::spawn(move || runner.run(&mut shared).unwrap());
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("s");
        let config = ShareConfig { path: socket.clone(), mode: 0o600, limits, acl_file: rules };
        // Each interval counts one more read than the previous one.
        let source = StatsSource::new(|| {
            let mut reads = 0;
            Box::new(move || {
                reads += 1;
                let requests = RequestCounts { reads, ..RequestCounts::default() };
                Some(IntervalStats { requests, ..IntervalStats::default() })
            })
        });
        let stats = vec![NamedStats { name: name("d"), source }];
        let calls = owner.clone();
        let drives =
            vec![SharedDrive { name: name("d"), owner: owner.clone(), io_queues, has_registers }];
        let injectors = vec![injector(owner.clone())];
        let control = NamespaceControl::new(owner.clone(), clock);
        let namespaces = vec![NamedNamespaces { name: name("d"), control }];
        let parts = ServedParts {
            drives,
            stats,
            ftls: ftls(owner),
            injectors,
            namespaces,
            rules: Vec::new(),
        };
        let thread = Some(thread);
        let mut server = Server { share: None, stopper, thread, socket, owner: calls, _dir: dir };
        server.share = Some(ShareServer::start(&config, table, parts)?);
        Ok(server)
    }
}

impl Server {
    /// Sends messages on a connection of their own; returns the reply to the last one.
    pub fn ask(&self, messages: &[Message]) -> Message {
        let client = socket::connect(&self.socket).unwrap();
        let mut last = None;
        for (serial, message) in (1..).zip(messages) {
            let packet = Packet { serial, message: message.clone() };
            socket::send(&client, &packet, &[], SendFlags::empty()).unwrap();
            last = match socket::receive(&client, 0, RecvFlags::empty()).unwrap() {
                ReceivedPacket::Packet(packet, _) => Some(packet.message),
                other => panic!("{other:?}"),
            };
        }
        last.unwrap()
    }

    /// Ends the drive's thread.
    pub fn stop_drive(&mut self) {
        self.stopper.stop();
        if let Some(thread) = self.thread.take() {
            thread.join().expect("the drive's thread");
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.share.take());
        self.stop_drive();
    }
}
