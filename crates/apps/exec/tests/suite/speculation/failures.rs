//! Devices that fail, and programs that share memory with others.

// guarantee: B-125, B-126

use std::os::unix::process::ExitStatusExt as _;

use exec::SpeculationStats;

use super::harness::{DeviceControl, Ended, Gate, Speculating, compile, new_device, with_file};

/// A barrier that fails: the output that waits for it never comes, and the program gets `SIGBUS`.
#[test]
fn output_behind_a_failed_barrier_is_never_made() {
    Gate::all_installed().into_iter().for_each(fails_behind_a_barrier);
}

fn fails_behind_a_barrier(gate: Gate) {
    let dir = tempfile::tempdir().unwrap();
    let program = compile("outputs", dir.path());
    let at = dir.path().canonicalize().unwrap().join("at");
    for kind in ["write", "printf", "raw", "exit", "spawn"] {
        let pause = |_: &mut std::process::Command, control: &DeviceControl| control.pause();
        let mut running = Speculating::start(new_device(2), gate, &at, &program, &[kind], pause);
        running.until(kind, |running| running.supervisor.waiting() > 0);
        running.control.fail();
        let Ended { status, output, service, .. } = running.end();
        assert!(output.is_empty(), "{kind}: {}", String::from_utf8_lossy(&output));
        assert!(matches!(status.signal(), Some(7 | 9)), "{kind}: {status}");
        assert!(service.is_err(), "{kind}: the volume was not closed in order");
    }
}

/// A program that handles the signal: its outputs and later syncs fail, and so does its exit.
#[test]
fn a_program_that_survives_the_signal_sees_errors_and_no_exit_status() {
    let dir = tempfile::tempdir().unwrap();
    let program = compile("survivor", dir.path());
    let at = dir.path().canonicalize().unwrap().join("at");
    // A handler may also end its process by a signal.
    for (arguments, ends_by) in [(&[][..], 9), (&["signal"][..], 7)] {
        let pause = |_: &mut std::process::Command, control: &DeviceControl| control.pause();
        let mut running =
            Speculating::start(new_device(3), Gate::Installed, &at, &program, arguments, pause);
        running.until("a wait", |running| running.supervisor.waiting() > 0);
        running.control.fail();
        let Ended { status, output, service, .. } = running.end();
        // The program executes an invalid instruction if anything is not as it should be.
        assert_eq!(status.signal(), Some(ends_by), "{status}");
        assert!(output.is_empty() && service.is_err());
    }
}

/// A write that was posted fails before its sync, which needs no call and so cannot report it: the
/// output behind the sync never comes. If the service finds the failure first, the sync reports it.
#[test]
fn output_behind_a_sync_of_a_failed_write_is_never_made() {
    let dir = tempfile::tempdir().unwrap();
    let program = compile("failed_write", dir.path());
    let at = dir.path().canonicalize().unwrap().join("at");
    for arguments in [&[][..], &["late"]] {
        let device = with_file(new_device(6), "f", &[7; 2 * 4096]);
        let fail_reads = |_: &mut std::process::Command, control: &DeviceControl| {
            control.fail_reads();
        };
        let running =
            Speculating::start(device, Gate::Installed, &at, &program, arguments, fail_reads);
        let Ended { status, output, service, .. } = running.end();
        if arguments.is_empty() {
            assert!(output.is_empty(), "{status}");
            assert!(matches!(status.signal(), Some(7 | 9)), "{status}");
        } else {
            assert!(status.success() && output == b"out\n", "{status}");
        }
        service.unwrap();
    }
}

/// Memory that others see has no calls that could wait, so that syncs wait again before it is
/// mapped.
#[test]
fn a_program_that_shares_memory_does_not_speculate() {
    let dir = tempfile::tempdir().unwrap();
    let program = compile("outputs", dir.path());
    let at = dir.path().canonicalize().unwrap().join("at");
    let other = dir.path().join("other");
    std::fs::write(&other, vec![b'.'; 4096]).unwrap();
    let arguments = ["shared", other.to_str().unwrap()];
    let pause = |_: &mut std::process::Command, control: &DeviceControl| control.pause();
    let mut running =
        Speculating::start(new_device(4), Gate::Installed, &at, &program, &arguments, pause);
    running.until("the mapping", |running| running.supervisor.waiting() > 0);
    running.control.resume();
    let Ended { status, output, service, .. } = running.end();
    let stats = service.unwrap();
    assert!(status.success() && output == b"out\n", "{status}");
    assert_eq!(std::fs::read(&other).unwrap()[0], b'o');
    let SpeculationStats { syncs, barriers, has_ended, .. } = stats.speculation;
    // The second sync waits for the device.
    assert_eq!((syncs, barriers, has_ended), (1, 1, true), "{stats:?}");
    assert_eq!(stats.store.syncs, 1, "{stats:?}");
}

/// The barrier that a mapping of memory of others waits for fails: the program never gets the memory.
#[test]
fn memory_of_others_is_not_mapped_behind_a_failed_barrier() {
    let dir = tempfile::tempdir().unwrap();
    let program = compile("outputs", dir.path());
    let at = dir.path().canonicalize().unwrap().join("at");
    let other = dir.path().join("other");
    std::fs::write(&other, vec![b'.'; 4096]).unwrap();
    let arguments = ["shared", other.to_str().unwrap()];
    let pause = |_: &mut std::process::Command, control: &DeviceControl| control.pause();
    for gate in Gate::all_installed() {
        let mut running = Speculating::start(new_device(4), gate, &at, &program, &arguments, pause);
        running.until("the mapping", |running| running.supervisor.waiting() > 0);
        running.control.fail();
        let Ended { status, output, service, .. } = running.end();
        assert!(output.is_empty() && service.is_err(), "{gate:?}: {status}");
        assert!(matches!(status.signal(), Some(7 | 9)), "{gate:?}: {status}");
        assert_eq!(std::fs::read(&other).unwrap()[0], b'.', "{gate:?}");
    }
}

/// Many syncs and one output at the end: the syncs do not wait, and the output does at most once.
#[test]
fn syncs_do_not_wait_and_outputs_without_pending_syncs_pass() {
    let dir = tempfile::tempdir().unwrap();
    let program = compile("outputs", dir.path());
    let at = dir.path().canonicalize().unwrap().join("at");
    let arguments = ["none", "500"];
    let none = |_: &mut std::process::Command, _: &DeviceControl| {};
    let running =
        Speculating::start(new_device(5), Gate::Installed, &at, &program, &arguments, none);
    let Ended { status, output, service, .. } = running.end();
    let stats = service.unwrap();
    assert!(status.success() && output == b"out\n", "{status}");
    let SpeculationStats { syncs, barriers, .. } = stats.speculation;
    assert_eq!((syncs, barriers, stats.store.syncs), (501, 501, 0), "{stats:?}");
    assert!(stats.store.barrier_commits <= 501 && !stats.speculation.has_ended, "{stats:?}");
}
