//! Tests of the table of system calls.

mod documented;

use syscall_table::{
    CALLS_MAX, CallTransfer, Effect, Object, Rule, StopCondition, SystemCall, calls, find,
};

fn named(name: &str) -> &'static SystemCall {
    calls().iter().find(|call| call.name == name).expect(name)
}

fn effect(name: &str, object: Object, arguments: [u64; 6]) -> Effect {
    named(name).effect(object, &arguments, 77)
}

/// guarantee: V-20
#[test]
fn a_call_that_the_table_does_not_have_is_unknown_and_waits() {
    assert_eq!(find(511), None);
    assert_eq!(find(u64::MAX), None);
    assert!(Effect::Unknown.waits() && Effect::Output.waits());
    assert!(!Effect::Pure.waits() && !Effect::Volume.waits());
    for name in ["io_uring_enter", "ptrace", "process_vm_writev", "clone3", "msync"] {
        assert_eq!(effect(name, Object::None, [0; 6]), Effect::Unknown, "{name}");
    }
}

#[test]
fn numbers_ascend_and_names_are_unique() {
    assert!(calls().windows(2).all(|pair| pair[0].number < pair[1].number));
    assert!(calls().iter().all(|call| usize::from(call.number) < CALLS_MAX));
    let mut names: Vec<_> = calls().iter().map(|call| call.name).collect();
    names.sort_unstable();
    assert!(names.windows(2).all(|pair| pair[0] != pair[1]));
}

/// The kernel's header has the numbers, if its package is installed.
#[test]
fn numbers_are_those_of_the_kernels_header() {
    let header = ["/usr/include/x86_64-linux-gnu/asm/unistd_64.h", "/usr/include/asm/unistd_64.h"]
        .into_iter()
        .find_map(|path| std::fs::read_to_string(path).ok());
    let Some(header) = header else {
        testkit::skip!("no asm/unistd_64.h (`scripts/apt-install linux-libc-dev`)");
        return;
    };
    for call in calls() {
        let line = format!("#define __NR_{} {}\n", call.name, call.number);
        assert!(header.contains(&line), "{line}");
    }
}

/// guarantee: V-20
#[test]
fn the_object_decides_whether_a_write_is_output() {
    for name in ["write", "pwrite64", "writev", "fsync", "ftruncate", "flock", "sendfile"] {
        let with = |object| effect(name, object, [0; 6]);
        assert_eq!(with(Object::Volume), Effect::Volume, "{name}");
        assert_eq!(with(Object::Null), Effect::Pure, "{name}");
        assert_eq!(with(Object::None), Effect::Pure, "{name}");
        for object in Object::ALL.into_iter().filter(|object| object.is_outside()) {
            assert_eq!(with(object), Effect::Output, "{name} on {object:?}");
        }
    }
}

#[test]
fn reads_are_never_output() {
    for name in ["read", "pread64", "fstat", "getdents64"] {
        for object in Object::ALL {
            assert!(!effect(name, object, [0; 6]).waits(), "{name} on {object:?}");
        }
    }
}

#[test]
fn closing_a_pipe_or_a_socket_shows_its_end_to_the_peer() {
    assert_eq!(effect("close", Object::Pipe, [0; 6]), Effect::Output);
    assert_eq!(effect("close", Object::Socket, [0; 6]), Effect::Output);
    assert_eq!(effect("close", Object::Volume, [0; 6]), Effect::Volume);
    assert_eq!(effect("close", Object::Anonymous, [0; 6]), Effect::Pure);
}

#[test]
fn an_open_changes_a_file_only_if_it_creates_or_truncates() {
    let open = |object, flags| effect("openat", object, [0, 0, flags, 0, 0, 0]);
    assert_eq!(open(Object::Volume, 0), Effect::Pure);
    assert_eq!(open(Object::OutsideFile, 1), Effect::Pure);
    assert_eq!(open(Object::Volume, 0o101), Effect::Volume);
    assert_eq!(open(Object::OutsideFile, 0o1001), Effect::Output);
    assert_eq!(open(Object::Null, 0o101), Effect::Pure);
}

#[test]
fn arguments_decide_signals_clones_controls_and_mappings() {
    assert_eq!(effect("kill", Object::None, [77, 9, 0, 0, 0, 0]), Effect::Pure);
    assert_eq!(effect("kill", Object::None, [78, 9, 0, 0, 0, 0]), Effect::Output);
    assert_eq!(effect("kill", Object::None, [u64::MAX, 9, 0, 0, 0, 0]), Effect::Output);
    assert_eq!(effect("clone", Object::None, [0x0001_0000, 0, 0, 0, 0, 0]), Effect::Pure);
    assert_eq!(effect("clone", Object::None, [17, 0, 0, 0, 0, 0]), Effect::Output);
    let control = |object, request| effect("ioctl", object, [1, request, 0, 0, 0, 0]);
    assert_eq!(control(Object::Terminal, 0x5401), Effect::Pure);
    assert_eq!(control(Object::Terminal, 0x5402), Effect::Unknown);
    assert_eq!(control(Object::Volume, 0x5402), Effect::Volume);
    let lock = |object, command| effect("fcntl", object, [1, command, 0, 0, 0, 0]);
    assert_eq!(lock(Object::Volume, 6), Effect::Volume);
    assert_eq!(lock(Object::OutsideFile, 6), Effect::Output);
    assert_eq!(lock(Object::OutsideFile, 3), Effect::Pure);
    let map = |object, flags| effect("mmap", object, [0, 4096, 3, flags, 5, 0]);
    assert_eq!(map(Object::OutsideFile, 1), Effect::Unknown);
    assert_eq!(map(Object::OutsideFile, 2), Effect::Pure);
    assert_eq!(map(Object::Volume, 1), Effect::Pure);
    assert_eq!(map(Object::None, 0x21), Effect::Pure);
}

#[test]
fn a_descriptor_that_is_replaced_is_closed() {
    for name in ["dup2", "dup3"] {
        assert_eq!(effect(name, Object::Pipe, [0; 6]), Effect::Output, "{name}");
        assert_eq!(effect(name, Object::None, [0; 6]), Effect::Pure, "{name}");
        assert_eq!(named(name).operands().descriptor, Some(1), "{name}");
    }
    assert_eq!(effect("open", Object::Pipe, [0, 1, 0, 0, 0, 0]), Effect::Output);
    assert_eq!(effect("exit", Object::None, [0; 6]), Effect::Output);
}

/// A filter sees no objects: whatever the object is, no call that waits may pass it.
/// guarantee: B-125
#[test]
fn a_filter_stops_every_call_that_waits() {
    let interesting: Vec<u64> =
        (0..26).map(|bit| 1 << bit).chain([0, 3, 0x21, 0x22, 0x5401]).collect();
    let mut stopped = 0;
    for call in calls() {
        for index in 0..6 {
            for (value, other) in
                interesting.iter().flat_map(|v| interesting.iter().map(move |o| (v, o)))
            {
                let mut arguments = [*other; 6];
                arguments[index] = *value;
                let waits = |object: Object| {
                    object != Object::Volume && call.effect(object, &arguments, 77).waits()
                };
                if Object::ALL.into_iter().any(waits) {
                    assert!(call.stop().stops(&arguments), "{} {arguments:?}", call.name);
                    stopped += 1;
                }
            }
        }
    }
    assert!(stopped > 100_000, "{stopped}");
    let reads = ["read", "pread64", "futex", "epoll_wait", "lseek", "stat", "munmap", "exit"];
    let never = |name: &&str| named(name).stop() == StopCondition::Never;
    assert_eq!(reads.iter().filter(|name| never(name)).count(), reads.len() - 1, "all but exit");
    assert!(!named("openat").stop().stops(&[0; 6]) && !named("mmap").stop().stops(&[2; 6]));
    assert!(named("clone3").is_denied() && !named("clone").is_denied());
}

#[test]
fn calls_that_share_memory_with_others_are_known() {
    assert!(named("vmsplice").shares_memory(&[0; 6]) && named("mmap").shares_memory(&[0; 6]));
    assert!(named("sendto").shares_memory(&[3, 0, 0, 0x0400_4000, 0, 0]));
    assert!(named("sendmsg").shares_memory(&[3, 0, 0x0400_0000, 0, 0, 0]));
    assert!(!named("sendmsg").shares_memory(&[3, 0, 0x4000, 0x0400_0000, 0, 0]));
    assert!(!named("write").shares_memory(&[u64::MAX; 6]));
}

#[test]
fn the_papers_rule_stops_at_lseek_and_close_and_not_at_reads() {
    let stops = |name: &str, effect| named(name).stops_paper_rule(effect);
    assert!(stops("lseek", Effect::Volume) && stops("close", Effect::Volume));
    assert!(stops("write", Effect::Volume) && stops("sendto", Effect::Output));
    assert!(!stops("read", Effect::Volume) && !stops("getpid", Effect::Pure));
    assert!(stops("exit_group", Effect::Output) && stops("ptrace", Effect::Unknown));
}

#[test]
fn operands_are_arguments() {
    for call in calls() {
        let operands = call.operands();
        for of in [operands.descriptor, operands.directory, operands.path].into_iter().flatten() {
            assert!(of < 6, "{}", call.name);
        }
    }
    assert_eq!(named("renameat2").operands().path, Some(3));
    assert_eq!(named("copy_file_range").operands().descriptor, Some(2));
    assert_eq!(named("preadv").transfer(), CallTransfer::ReadVector);
    assert_eq!(named("fdatasync").transfer(), CallTransfer::Sync);
    assert_eq!(named("read").rule, Rule::ReadDescriptor(0));
}
