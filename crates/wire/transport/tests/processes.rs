//! A port between two processes: commands and data in both directions, sleeping and waking on both
//! sides, and the release of memory when the host dies.

// guarantee: S-01

use std::sync::Arc;
use std::time::Duration;

use event::Parker;
use mem::Iova;
use nvme::{Cqe, Sqe};
use sluice_transport::{
    CqConsumer, CqProducer, DOORBELL_STRIDE, MAX_QUEUES, Port, PortLimits, SqConsumer, SqProducer,
};
use testkit::{test_path, two_processes};
use time::Nanos;

const ROUNDS: u64 = 3_000;

/// The host's process.
#[test]
fn child() {
    match std::env::var(two_processes::ROLE).as_deref() {
        Ok("ping") => ping(),
        Ok("register") => register(),
        Ok("linger") => {
            let _port = two_processes::join();
            two_processes::send(std::io::stdin(), two_processes::kind::NOTE, b"here", &[]).unwrap();
            std::thread::sleep(std::time::Duration::from_secs(60));
        }
        // Started as a normal test: there is no other process.
        _ => {}
    }
}

/// Sends one command at a time, whose data is a counter, and sleeps until each completes.
fn ping() {
    let port = two_processes::join();
    let parker = Parker::new().unwrap();
    port.set_vector(0, parker.waker()).unwrap();
    let ((sq, depth), (cq, _)) = (port.admin_submission(), port.admin_completion());
    let mut sq = SqProducer::open(&port, 0, sq, depth).unwrap();
    let mut cq = CqConsumer::open(&port, 0, cq, depth).unwrap();
    let (data, at) = port.memory().allocate_registered(4096).unwrap();
    for round in 0..ROUNDS {
        data.write(0, &round.to_le_bytes());
        let mut sqe = Sqe::new(1, 1);
        sqe.cid = (round as u16).into();
        sqe.set_prp(at.0, 0);
        sq.push(&sqe).unwrap();
        sq.ring();
        let cqe = loop {
            if let Some(cqe) = cq.pop() {
                break cqe;
            }
            parker.prepare();
            if cq.has_completion() {
                parker.unpark();
            } else {
                park(&parker);
            }
        };
        assert_eq!((cqe.cid, cqe.result), (round as u16, round + 1));
        cq.release();
        sq.update_head(cqe.sq_head);
        let mut back = [0; 8];
        data.read(8, &mut back);
        assert_eq!(u64::from_le_bytes(back), !round, "what the drive wrote");
    }
}

/// Parks until it is woken, without a time-out.
fn park(parker: &Parker) {
    let before = std::time::Instant::now();
    parker.park(&[], Nanos::from_secs(20)).unwrap();
    assert!(before.elapsed().as_secs() < 19, "nobody wakes us");
}

/// Registers more memory than its limits allow.
fn register() {
    let port = two_processes::join();
    let registered =
        (0..20).take_while(|_| port.memory().allocate_registered(4096).is_ok()).count();
    assert_eq!(registered, 4);
    assert!(port.memory().register(&mem::SharedRegion::anonymous(1).unwrap()).is_err());
}

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

#[test]
fn two_processes_ping_and_wake_each_other() {
    let port = Port::shared(PortLimits { vectors: 2, ..PortLimits::default() }).unwrap();
    let parker = Parker::new().unwrap();
    port.set_drive_waker(parker.waker()).unwrap();
    let ((sq, depth), (cq, _)) = (port.admin_submission(), port.admin_completion());
    let mut sq = SqConsumer::open(&port, 0, sq, depth).unwrap();
    let mut cq = CqProducer::open(&port, 0, cq, depth, Some(0)).unwrap();
    let (mut child, socket) = two_processes::spawn(test_path!(child), "ping", |_| {});
    two_processes::send_port(&socket, &port);
    let theirs = port.clone();
    let control = std::thread::spawn(move || two_processes::serve(&socket, &theirs, |_| {}));
    let (mut done, mut slept) = (0, 0);
    while done < ROUNDS {
        sq.read_tail().unwrap();
        while let Some(sqe) = sq.fetch() {
            let nvme::DataPointer::Prp(at, _) = sqe.data() else { panic!("{sqe:?}") };
            let mut word = [0; 8];
            port.memory().read(Iova(at), &mut word).unwrap();
            let round = u64::from_le_bytes(word);
            port.memory().write(Iova(at).offset(8), &(!round).to_le_bytes()).unwrap();
            let (result, cid) = (round + 1, sqe.cid.get());
            cq.post(Cqe { result, cid, sq_head: sq.head(), ..Cqe::default() }).unwrap();
            done += 1;
        }
        cq.raise_interrupt();
        parker.prepare();
        if done == ROUNDS || sq.read_tail().unwrap() > 0 {
            parker.unpark();
        } else {
            park(&parker);
            slept += 1;
        }
    }
    assert!(child.wait().unwrap().success());
    control.join().unwrap();
    assert!(slept < 3 * ROUNDS, "wakes without cause: {slept}");
}

#[test]
fn a_host_registers_no_more_than_it_may() {
    let limits = PortLimits { vectors: 0, regions: 9, bytes: 4 * 4096 };
    let port = Port::shared(limits).unwrap();
    let (mut child, socket) = two_processes::spawn(test_path!(child), "register", |_| {});
    two_processes::send_port(&socket, &port);
    assert!(port.take_descriptor().is_err(), "given out once");
    two_processes::serve(&socket, &port, |_| {});
    assert!(child.wait().unwrap().success());
    assert_eq!(port.memory().remaining_bytes(), 0);
}

#[test]
fn a_host_that_dies_leaves_nothing() {
    let parker = Parker::new().unwrap();
    let before = descriptors();
    for _ in 0..5 {
        let port = Port::shared(PortLimits::default()).unwrap();
        port.set_drive_waker(parker.waker()).unwrap();
        let (mut child, socket) = two_processes::spawn(test_path!(child), "linger", |_| {});
        two_processes::send_port(&socket, &port);
        assert!(matches!(two_processes::receive(&socket), Some((two_processes::kind::NOTE, ..))));
        child.kill().unwrap();
        assert!(two_processes::receive(&socket).is_none(), "the socket says so");
        child.wait().unwrap();
        // Interrupts to a dead host do not block, and are discarded.
        (0..1_000).for_each(|_| port.interrupt(0));
        parker.unpark();
    }
    // Concurrent tests open descriptors of their own.
    assert!(descriptors() < before + 60, "{before} descriptors became {}", descriptors());
}

#[test]
fn parts_that_do_not_fit_are_refused() {
    let message = || {
        let port = Port::shared(PortLimits { vectors: 1, ..PortLimits::default() }).unwrap();
        port.take_descriptor().unwrap().into_message()
    };
    #[derive(Debug)]
    struct NoExport;
    impl mem::RegistrationExporter for NoExport {
        fn export_region(&self, _: usize, _: &mem::SharedRegion) -> std::io::Result<()> {
            Ok(())
        }
    }
    let join = |swap: &[(usize, usize)]| {
        let (header, mut fds) = message();
        for (a, b) in swap {
            fds.swap(*a, *b);
        }
        Port::join(
            sluice_transport::PortDescriptor::from_message(header, fds).unwrap(),
            Box::new(NoExport),
        )
        .map(drop)
    };
    assert!(join(&[]).is_ok());
    // A read-only doorbell memory, registers in place of doorbells, a socket in place of memory.
    for swap in [(0, 1), (1, 2), (2, 3), (0, 4)] {
        assert!(join(&[swap]).is_err(), "{swap:?}");
    }
    let port = Port::shared(PortLimits { vectors: 129, ..PortLimits::default() });
    assert_eq!(port.unwrap_err().kind(), std::io::ErrorKind::InvalidInput);
    assert!(Port::new().unwrap().take_descriptor().is_err(), "a port within a process has none");
}

#[test]
fn the_drives_side_shows_and_the_hosts_side_sees() {
    #[derive(Debug)]
    struct NoExport;
    impl mem::RegistrationExporter for NoExport {
        fn export_region(&self, _: usize, _: &mem::SharedRegion) -> std::io::Result<()> {
            Ok(())
        }
    }
    let drive = Port::shared(PortLimits::default()).unwrap();
    let host = Port::join(drive.take_descriptor().unwrap(), Box::new(NoExport)).unwrap();
    assert!(drive.has_drive() && drive.is_shared() && host.is_shared() && !host.has_drive());
    assert_eq!((drive.vectors(), host.vectors()), (16, 16));
    drive.set_register(0x14, 7);
    assert_eq!(host.register(0x14), 7);
    let last = 2 * usize::from(MAX_QUEUES) * DOORBELL_STRIDE - DOORBELL_STRIDE;
    host.doorbells().atomic_u32(last).store(9, std::sync::atomic::Ordering::Release);
    assert_eq!(drive.doorbells().atomic_u32(last).load(std::sync::atomic::Ordering::Acquire), 9);
    // Vectors: rebound from one runner to another, and woken when the drive closes the port.
    let (one, two) = (Parker::new().unwrap(), Parker::new().unwrap());
    host.set_vector(3, one.waker()).unwrap();
    host.set_vector(3, two.waker()).unwrap();
    one.unpark();
    two.unpark();
    // Returns whether the parker is woken before the limit. No sleep ends before its limit without a wake-up.
    let is_woken = |parker: &Parker, limit: Duration, wake: &dyn Fn()| {
        parker.prepare();
        wake();
        let before = std::time::Instant::now();
        parker.park(&[], Nanos(limit.as_nanos() as u64)).unwrap();
        before.elapsed() < limit
    };
    let (long, short) = (Duration::from_secs(20), Duration::from_millis(30));
    assert!(is_woken(&two, long, &|| drive.interrupt(3)));
    assert!(!is_woken(&one, short, &|| drive.interrupt(3)));
    two.unpark();
    assert!(!is_woken(&two, short, &|| drive.interrupt(4)));
    assert!(is_woken(&two, long, &|| drive.close()));
    assert!(drive.set_vector(3, Arc::new(two).waker()).is_err(), "vectors are the host's");
}
