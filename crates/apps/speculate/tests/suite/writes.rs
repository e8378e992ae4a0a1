//! Writes and flushes: their order, their buffers, and their failure.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use nvme::Status;
use rng::Rng;
use speculate::{SpeculateError, SpeculativeHandle, Ticket};
use user_io::{IoDevice, IoError, Op};

use crate::late_file::{LateFile, SECTOR, file};

const SECTORS: u64 = 32;

fn buffer(device: &IoDevice, value: u8) -> user_io::Buffer {
    let buffer = device.buffer(SECTOR).unwrap();
    buffer.fill(0, SECTOR, value);
    buffer
}

fn value(buffer: &user_io::Buffer) -> u8 {
    let mut bytes = vec![0; SECTOR];
    buffer.read(0, &mut bytes);
    assert!(bytes.iter().all(|byte| *byte == bytes[0]));
    bytes[0]
}

// guarantee: V-25
#[test]
fn operations_take_effect_in_the_order_of_their_calls() {
    for seed in 0..100 {
        let (device, _file) = file(SECTORS);
        let mut rng = Rng::new(seed);
        let depth = 1 + rng.below(9) as usize;
        let (handle, control) = LateFile::handle(&device, seed, depth);
        let mut handle = SpeculativeHandle::new(handle).unwrap();
        let mut expected = [0u8; SECTORS as usize];
        let mut tickets: Vec<(Ticket, u8)> = Vec::new();
        let (mut writes, mut flushes) = (0, 0);
        // The device checks the order of what it takes (`LateFile::submit`).
        for at in 0..200u32 {
            let (lba, new) = (rng.below(SECTORS), at as u8);
            match rng.below(10) {
                0..6 => {
                    tickets.push((handle.write(lba, buffer(&device, new)).unwrap(), new));
                    expected[lba as usize] = new;
                    writes += 1;
                }
                6 => {
                    handle.flush().unwrap();
                    flushes += 1;
                }
                7 => {
                    let found = buffer(&device, 0xee);
                    handle.read(lba, &found).unwrap();
                    assert_eq!(value(&found), expected[lba as usize], "seed {seed}, block {lba}");
                }
                8 if !tickets.is_empty() => {
                    let (ticket, written) =
                        tickets.swap_remove(rng.below(tickets.len() as u64) as usize);
                    assert_eq!(value(&handle.take(ticket).unwrap()), written);
                }
                8 => {}
                _ => {
                    handle.externalize().unwrap();
                    assert!(!handle.has_pending() && control.inside.borrow().is_empty());
                }
            }
        }
        for (ticket, _) in tickets {
            handle.release(ticket).unwrap();
        }
        handle.externalize().unwrap();
        handle.externalize().unwrap();
        let stats = handle.stats();
        assert_eq!((stats.writes, stats.flushes), (writes, flushes));
        assert!(stats.outputs > stats.outputs_waited, "the last one has nothing to wait for");
        for (lba, expected) in (0..).zip(expected) {
            let found = buffer(&device, 0xee);
            handle.read(lba, &found).unwrap();
            assert_eq!(value(&found), expected, "seed {seed}, block {lba}");
        }
        let taken = control.taken.borrow();
        let sent = taken.iter().filter(|request| request.op == Op::Write).count();
        assert_eq!(sent as u64, writes);
        assert_eq!(handle.into_handle().outstanding(), 0);
    }
}

#[test]
fn a_write_returns_before_the_device_has_done_it() {
    let (device, _file) = file(SECTORS);
    let (handle, control) = LateFile::handle(&device, 1, 64);
    let mut handle = SpeculativeHandle::new(handle).unwrap();
    let first = handle.write(3, buffer(&device, 1)).unwrap();
    handle.flush().unwrap();
    let behind = handle.write(4, buffer(&device, 2)).unwrap();
    assert!(handle.has_pending());
    assert!(control.completed.get() < 3, "the write behind the flush is not there");
    assert!(handle.stats().ordered > 0);
    handle.externalize().unwrap();
    let ops: Vec<Op> = control.taken.borrow().iter().map(|request| request.op).collect();
    assert_eq!(ops, [Op::Write, Op::Flush, Op::Write]);
    assert_eq!(value(&handle.take(behind).unwrap()), 2);
    assert_eq!(value(&handle.take(first).unwrap()), 1);
}

// guarantee: V-25
#[test]
fn after_a_failure_nothing_is_sent_and_there_is_no_output() {
    for seed in 0..50 {
        let (device, _file) = file(SECTORS);
        let (handle, control) = LateFile::handle(&device, seed, 8);
        control.fails_at.set(Some(2));
        let mut handle = SpeculativeHandle::new(handle).unwrap();
        let failures = Arc::new(AtomicU64::new(0));
        let seen = failures.clone();
        handle.on_failure(move |failed| {
            assert_eq!(failed.op, Op::Write);
            seen.fetch_add(1, Ordering::Relaxed);
        });
        let mut tickets = Vec::new();
        for at in 0..4u64 {
            // A failure that is known by now has refused it.
            if let Ok(ticket) = handle.write(at, buffer(&device, at as u8 + 1)) {
                tickets.push((at, ticket));
            }
        }
        // Nothing behind the flush may be written: its writes come before the failed one.
        let is_flushed = handle.flush().is_ok();
        let behind = handle.write(20, buffer(&device, 99));
        assert!(matches!(handle.externalize(), Err(SpeculateError::Failed(_))), "seed {seed}");
        assert_eq!(failures.load(Ordering::Relaxed), 1);
        let failed = handle.failure().expect("a failure").clone();
        assert_eq!(failed.error.status(), Some(Status::WRITE_FAULT));
        let mut refused = 0;
        for (at, ticket) in tickets {
            match handle.take(ticket) {
                Ok(buffer) => assert_eq!(value(&buffer), at as u8 + 1),
                Err(error) => {
                    refused += 1;
                    assert_eq!(value(&error.buffer.expect("the buffer")), at as u8 + 1);
                }
            }
        }
        assert!(refused >= 1, "seed {seed}");
        if let Ok(ticket) = behind {
            assert!(is_flushed);
            assert_eq!(value(&handle.take(ticket).unwrap_err().buffer.unwrap()), 99);
        }
        assert!(control.taken.borrow().iter().all(|request| request.lba != 20), "seed {seed}");
        let later = handle.write(1, buffer(&device, 1)).unwrap_err();
        assert!(matches!(later.error, SpeculateError::Failed(_)) && later.buffer.is_some());
        assert!(matches!(handle.flush(), Err(SpeculateError::Failed(_))));
        assert_eq!(failures.load(Ordering::Relaxed), 1, "the first failure is told once");
    }
}

#[test]
fn requests_that_the_device_does_not_take_are_refused_with_their_buffer() {
    let (device, _file) = file(SECTORS);
    let (handle, _) = LateFile::handle(&device, 1, 8);
    let mut handle = SpeculativeHandle::new(handle).unwrap();
    let odd = device.buffer(SECTOR + 512).unwrap();
    let refused = handle.write(0, odd).unwrap_err();
    assert!(matches!(refused.error, SpeculateError::Io(IoError::Length { .. })));
    assert_eq!(refused.buffer.map(|buffer| buffer.len()), Some(SECTOR + 512));
    assert!(handle.failure().is_none(), "nothing depends on it");
    // A ticket is valid once, and for its handle.
    let ticket = handle.write(0, buffer(&device, 7)).unwrap();
    let (other, _) = LateFile::handle(&device, 2, 8);
    let mut other = SpeculativeHandle::new(other).unwrap();
    let foreign = other.take(ticket).unwrap_err();
    assert!(matches!(foreign.error, SpeculateError::ForeignTicket) && foreign.buffer.is_none());
    handle.externalize().unwrap();
    // A handle with outstanding requests is returned.
    let (mut busy, _) = LateFile::handle(&device, 3, 8);
    let data = buffer(&device, 1);
    busy.submit(user_io::Request::write(0, 1, data.payload(), 1)).unwrap();
    let mut busy = SpeculativeHandle::new(busy).expect_err("a request is outstanding");
    assert!(busy.wait().is_some());
}
