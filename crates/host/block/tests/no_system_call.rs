//! Verifies that the path of a request makes no system call (ARCHITECTURE.md, R9).
//!
//! The kernel verifies this. A child process enters seccomp's strict mode and then does its work.
//! In this mode, any system call except `read`, `write`, `exit` and `sigreturn` kills it with
//! SIGKILL.

// guarantee: B-06

#[path = "suite/reads/mod.rs"]
mod reads;

use std::process::{Command, ExitStatus};

use driver::{LowLevelDriver, Null};
use reads::{MQ, SQ, layer, work};
use sluice_block::Raw;

/// The environment variable that tells the child process its role.
const ROLE: &str = "SLUICE_STRICT";

fn main() {
    match std::env::var(ROLE).as_deref() {
        Ok("work") => strict(false),
        Ok("stray") => strict(true),
        _ => {
            let ran = child("work");
            assert!(ran.success(), "a request made a system call: {ran}");
            // Control: one additional system call kills the child process.
            let ran = child("stray");
            assert!(!ran.success(), "the kernel did not detect a system call: {ran}");
            println!("no request made a system call");
        }
    }
}

fn child(role: &str) -> ExitStatus {
    let me = std::env::current_exe().expect("the path of this program");
    Command::new(me).env(ROLE, role).status().expect("the child process starts")
}

fn strict(stray: bool) {
    let mut null = Null::default();
    let queue = null.take_queue(0).expect("the null device has one queue");
    let mut raw = [Raw::new(queue, null.limits())];
    let mut layers = [
        layer(MQ, 1, "none", false),
        layer(MQ, 1, "none", true),
        layer(MQ, 2, "none", true),
        layer(SQ, 2, "deadline", true),
        layer(SQ, 2, "fair", true),
    ];
    // Let the queues grow to their final size first.
    work(&mut raw, 200);
    layers.iter_mut().for_each(|queues| assert!(work(queues, 200) > 0));
    // SAFETY: prctl takes plain numbers, and changes which system calls this process may make.
    let entered = unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_STRICT) };
    let mut completed = work(&mut raw, 1000);
    completed += layers.iter_mut().map(|queues| work(queues, 1000)).sum::<u64>();
    if stray {
        // SAFETY: getppid takes no argument and has no side effect.
        let _ = unsafe { libc::getppid() };
    }
    let wrong = entered != 0 || completed != 9 * 32_000;
    // SAFETY: ends this thread, the only one, at once; strict mode permits no other exit.
    unsafe { libc::syscall(libc::SYS_exit, i64::from(wrong)) };
}
