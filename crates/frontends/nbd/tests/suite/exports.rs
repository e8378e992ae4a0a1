//! Several exports at one endpoint: a client reaches the one that it names, from whichever server it was
//! accepted by; names, limits, counters, and the end of all.

// guarantee: B-28

use crate::common;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use common::*;
use event::{IdlePolicy, RealClock, Waker};
use nbd::{Endpoint, NbdConfig, NbdError, NbdExport, NbdServer, NbdStatsReader};
use testkit::PollBudget;

fn export(name: &str, bytes: u64, endpoints: &[Endpoint]) -> NbdExport<MemoryDevice> {
    NbdExport {
        devices: vec![MemoryDevice::new(limits(512, bytes))],
        endpoints: endpoints.to_vec(),
        config: NbdConfig { name: name.into(), ..NbdConfig::default() },
        end_group: 0,
    }
}

/// The servers of several exports, each on its own thread.
struct Exports {
    stats: Vec<NbdStatsReader>,
    stop: Arc<AtomicBool>,
    wakers: Vec<Waker>,
    threads: Vec<JoinHandle<std::io::Result<()>>>,
}

impl Exports {
    fn start(exports: Vec<NbdExport<MemoryDevice>>) -> Exports {
        let groups = NbdServer::exports(exports).unwrap();
        let stats = groups.iter().map(|servers| servers[0].stats_reader()).collect();
        let (clock, stop) = (RealClock::start(), Arc::new(AtomicBool::new(false)));
        let (mut wakers, mut threads) = (Vec::new(), Vec::new());
        for mut server in groups.into_iter().flatten() {
            wakers.push(server.waker());
            let told = stop.clone();
            threads.push(std::thread::spawn(move || {
                server.run(clock, IdlePolicy::default(), &mut NullComponent, &told)
            }));
        }
        Exports { stats, stop, wakers, threads }
    }

    /// Waits until no client is connected.
    fn until_idle(&self) {
        let open = || self.stats.iter().map(|s| s.snapshot().connections_open).sum::<u64>();
        PollBudget::every(Duration::from_millis(2), Duration::from_secs(20))
            .poll_until(|| open() == 0, || format!("{} clients stay", open()));
    }

    fn end(self) {
        self.stop.store(true, Ordering::Relaxed);
        self.wakers.iter().for_each(Waker::wake);
        for thread in self.threads {
            thread.join().unwrap().unwrap();
        }
    }
}

/// Returns the names of the exports at an endpoint.
fn names(path: &Path) -> Vec<String> {
    let mut client = NbdClient::greeted(path);
    let replies = client.option(3, &[]);
    let name = |(_, data): &(u32, Vec<u8>)| {
        let length = be32(data) as usize;
        String::from_utf8(data[4..4 + length].to_vec()).unwrap()
    };
    replies[..replies.len() - 1].iter().map(name).collect()
}

/// Two clients at once, whose data differ at equal offsets; requests follow the handshake without a
/// wait for its reply.
#[test]
fn a_client_reaches_the_export_that_it_names() {
    let dir = tempfile::tempdir().unwrap();
    let (shared, alone) = (dir.path().join("shared"), dir.path().join("alone"));
    let [at_shared, at_alone] = [&shared, &alone].map(|path| Endpoint::Unix(path.clone()));
    let exports = Exports::start(vec![
        export("a", 4 << 20, std::slice::from_ref(&at_shared)),
        export("b", 8 << 20, &[at_shared, at_alone]),
    ]);
    assert_eq!(names(&shared), ["a", "b"]);
    assert_eq!(names(&alone), ["b"]);
    let (mut a, mut b) = (NbdClient::named(&shared, "a"), NbdClient::named(&shared, "b"));
    for sector in 0..2000u64 {
        a.write(sector * 512, &[1 + (sector % 100) as u8; 512]).unwrap();
        b.write(sector * 512, &[101 + (sector % 100) as u8; 512]).unwrap();
    }
    for sector in 0..2000u64 {
        assert_eq!(a.read(sector * 512, 512).unwrap(), [1 + (sector % 100) as u8; 512]);
        assert_eq!(b.read(sector * 512, 512).unwrap(), [101 + (sector % 100) as u8; 512]);
    }
    // The end of "a" is within "b".
    assert!(a.read(4 << 20, 512).is_err() && b.read(4 << 20, 512).is_ok());
    let mut eager = NbdClient::greeted(&shared);
    eager.send_option(7, info_data("b", &[3]).len() as u32, &info_data("b", &[3]));
    let cookie = eager.request(0, 0, 0, 512);
    assert_eq!(eager.option_replies(7).last(), Some(&(ACK, vec![])));
    assert_eq!(eager.result(cookie), Ok(Vec::new()));
    assert_eq!(eager.take(512).unwrap(), [101; 512]);
    let mut default = NbdClient::simple(&shared);
    assert_eq!(default.read(0, 512).unwrap(), [1; 512], "the first export is the default");
    let mut other = NbdClient::simple(&alone);
    assert_eq!(other.read(0, 512).unwrap(), [101; 512]);
    let mut unknown = NbdClient::greeted(&alone);
    assert_ne!(unknown.option(7, &info_data("a", &[3])).last(), Some(&(ACK, vec![])));
    for client in [a, b, eager, default, other] {
        client.disconnect();
    }
    drop(unknown);
    exports.until_idle();
    let counts: Vec<_> = exports.stats.iter().map(NbdStatsReader::snapshot).collect();
    assert_eq!((counts[0].writes, counts[1].writes), (2000, 2000));
    // The two that list or fail belong to the export whose server accepted them.
    assert_eq!((counts[0].connections, counts[1].connections), (3, 5));
    assert_eq!((counts[0].clients_dropped, counts[1].clients_dropped), (0, 0));
    exports.end();
    assert!(!shared.exists() && !alone.exists(), "nothing listens");
}

#[test]
fn the_limit_of_connections_is_that_of_the_export() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let endpoints = [Endpoint::Unix(path.clone())];
    let mut both = vec![export("a", 1 << 20, &endpoints), export("b", 1 << 20, &endpoints)];
    both.iter_mut().for_each(|export| export.config.connections_max = 2);
    let exports = Exports::start(both);
    let full: Vec<_> = ["a", "a", "b"].map(|name| NbdClient::named(&path, name)).into();
    let mut third = NbdClient::greeted(&path);
    third.send_option(7, info_data("a", &[3]).len() as u32, &info_data("a", &[3]));
    assert!(third.is_dropped());
    drop(third);
    let mut last = NbdClient::named(&path, "b");
    assert!(last.write(0, &[7; 512]).is_ok(), "the other export has room");
    drop((full, last));
    exports.until_idle();
    assert_eq!(exports.stats[0].snapshot().connections_refused, 1);
    exports.end();
}

#[test]
fn two_exports_of_one_name_share_no_endpoint() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let endpoints = [Endpoint::Unix(path.clone())];
    let both = vec![export("a", 1 << 20, &endpoints), export("a", 1 << 20, &endpoints)];
    let error = NbdServer::exports(both).unwrap_err();
    assert!(matches!(&error, NbdError::DuplicateName { name, .. } if name == "a"), "{error}");
    assert!(!path.exists(), "nothing listens");
}
