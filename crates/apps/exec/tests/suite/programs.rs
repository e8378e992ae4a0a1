//! The service and the library without the command: a program runs on a volume in memory, and must
//! print the same as on a directory of the host.
//!
//! With `-Zsanitizer=address` in `RUSTFLAGS` (`make test-sanitizer`) the library is built with it.
//! The sanitizer's runtime is linked into the program, which is loaded first and provides it to the
//! library.

// guarantee: D-15, D-16, D-17

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Once;

use event::RealClock;
use exec::{Service, ServiceAddress, ServiceStats};
use testkit::memory_device::MemoryDevice;
use time::Nanos;
use volume::{BlockingVolume, FormatOptions, FsckOptions, Options, format, fsck};

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn works(command: &mut Command) -> Output {
    let out = command.output().unwrap();
    assert!(out.status.success(), "{command:?}: {}{}", text(&out.stdout), text(&out.stderr));
    out
}

/// Whether the tests and the library have the sanitizer.
pub(crate) fn sanitizes() -> bool {
    std::env::var("RUSTFLAGS").is_ok_and(|flags| flags.contains("sanitizer=address"))
}

/// Returns the target triple; passing it explicitly restricts flags to the library, excluding build
/// scripts.
fn host() -> String {
    format!("{}-unknown-linux-gnu", std::env::consts::ARCH)
}

/// Builds the library once in the tests' folder, because no dependency builds it.
pub(crate) fn library() -> PathBuf {
    static BUILD: Once = Once::new();
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).join("preload");
    BUILD.call_once(|| {
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args(["build", "--quiet", "--package", "sluice-preload", "--target", &host()]);
        cargo.arg("--target-dir").arg(&target).current_dir(env!("CARGO_MANIFEST_DIR"));
        works(&mut cargo);
    });
    let library = target.join(host()).join("debug/libsluice_preload.so");
    let bytes = std::fs::read(&library).unwrap();
    let checks = bytes.windows(13).any(|bytes| bytes == b"__asan_report");
    assert_eq!(
        checks,
        sanitizes(),
        "the library and the test must both be built with the sanitizer, or neither"
    );
    library
}

/// Compiles a program of the command's tests.
fn compile(name: &str, dir: &Path) -> PathBuf {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tools/cli/tests/suite/exec");
    compiled(&folder.join(format!("{name}.c")), dir.join(name))
}

/// Compiles a source file.
pub(crate) fn compiled(source: &Path, program: PathBuf) -> PathBuf {
    let mut cc = Command::new("cc");
    cc.args(["-O1", "-w", "-pthread", "-D_FILE_OFFSET_BITS=64", "-o"]).arg(&program).arg(source);
    if sanitizes() {
        let rustc = works(Command::new("rustc").args(["--print", "target-libdir"]));
        let libraries = text(&rustc.stdout);
        let folder = Path::new(libraries.trim()).read_dir().unwrap();
        let is_runtime = |path: &PathBuf| path.to_string_lossy().ends_with("_rt.asan.a");
        let runtime = folder.map(|entry| entry.unwrap().path()).find(is_runtime);
        let runtime = runtime.expect("the toolchain has the runtime of AddressSanitizer");
        cc.arg("-Wl,--whole-archive").arg(runtime).arg("-Wl,--no-whole-archive");
        cc.args(["-rdynamic", "-lm", "-ldl", "-lrt"]);
    }
    works(&mut cc);
    program
}

/// Runs a program on a new volume; returns its output, the service's counters, and the volume.
fn on_a_volume(
    program: &Path,
    arguments: &[&str],
    at: &Path,
    number: u32,
) -> (Output, ServiceStats, MemoryDevice) {
    on_a_volume_with(program, arguments, at, number, Options::default())
}

fn on_a_volume_with(
    program: &Path,
    arguments: &[&str],
    at: &Path,
    number: u32,
    options: Options,
) -> (Output, ServiceStats, MemoryDevice) {
    let tick = |_: &mut MemoryDevice| Nanos(1);
    let mut device = MemoryDevice::new(16384);
    format(&mut device, &FormatOptions::default(), tick).unwrap();
    let store = BlockingVolume::open(device, options, tick).unwrap().into_volume();
    let address = ServiceAddress {
        name: format!("sluice-exec-test-{}-{number}", std::process::id()),
        token: "0123456789abcdef".repeat(2),
    };
    let service = Service::new(store, &address).unwrap();
    // The environment is not passed to `timeout`.
    let mut command = Command::new("timeout");
    command.args(["-s", "KILL", "100", "env"]);
    command.arg(format!("LD_PRELOAD={}", library().display()));
    command.arg(format!("{}={}", exec_proto::ENV_MOUNT, at.display()));
    command.arg(format!("{}={}", exec_proto::ENV_SERVICE, address.environment()));
    command.arg(program).arg(at).args(arguments);
    let (stop, clock) = (service.stop(), RealClock::start());
    std::thread::scope(|scope| {
        let program = scope.spawn(move || {
            let out = command.output();
            stop.stop();
            out.unwrap()
        });
        let (device, counters) = service.run(clock).unwrap();
        (program.join().unwrap(), counters, device)
    })
}

#[test]
fn a_program_finds_on_a_volume_what_it_finds_on_the_host() {
    let dir = tempfile::tempdir().unwrap();
    let (program, host) = (compile("files", dir.path()), dir.path().join("host"));
    std::fs::create_dir(&host).unwrap();
    let wanted = works(Command::new(&program).arg(&host));
    let at = dir.path().canonicalize().unwrap().join("at");
    let (got, counters, mut device) = on_a_volume(&program, &[], &at, 0);
    assert!(got.status.success(), "{}{}", text(&got.stdout), text(&got.stderr));
    assert_eq!(text(&got.stderr), "", "the program and the library must print nothing to stderr");
    assert_eq!(text(&got.stdout), text(&wanted.stdout));
    assert!(
        counters.calls > 1000 && counters.sessions > 1 && counters.refused == 0,
        "{counters:?}"
    );
    let report = fsck(&mut device, FsckOptions::default(), |_| Nanos(1)).unwrap();
    assert!(report.problems.is_empty() && report.owner().is_none(), "{report:?}");
}

/// Mappings, forks and exits of mapping processes; changes are on the volume after the last one.
#[test]
fn mappings_are_shared_as_on_the_host() {
    let dir = tempfile::tempdir().unwrap();
    let (program, host) = (compile("maps", dir.path()), dir.path().join("host"));
    std::fs::create_dir(&host).unwrap();
    let wanted = works(Command::new(&program).arg(&host));
    let at = dir.path().canonicalize().unwrap().join("at");
    let (got, counters, device) = on_a_volume(&program, &[], &at, 5);
    assert!(got.status.success(), "{}{}", text(&got.stdout), text(&got.stderr));
    assert_eq!(text(&got.stderr), "", "the program and the library must print nothing to stderr");
    assert_eq!(text(&got.stdout), text(&wanted.stdout));
    assert!(counters.mapped > 50 && counters.written_back > 0, "{counters:?}");
    assert_eq!((counters.writeback_failures, counters.refused), (0, 0));
    let mut volume =
        BlockingVolume::open(device, Options::default(), |_: &mut MemoryDevice| Nanos(1)).unwrap();
    for file in std::fs::read_dir(&host).unwrap() {
        let (path, name) = file.map(|file| (file.path(), file.file_name())).unwrap();
        let ino = volume.volume().lookup(volume::Ino::ROOT, name.as_encoded_bytes()).unwrap();
        let wanted = std::fs::read(path).unwrap();
        assert!(volume.read_all(ino).unwrap() == wanted, "{name:?}");
    }
}

/// Random calls and stores to mappings, interleaved in parents and children. `SLUICE_SEED` repeats
/// one.
#[test]
fn random_calls_and_mappings_are_as_on_the_host() {
    let dir = tempfile::tempdir().unwrap();
    let (program, host) = (compile("maps_random", dir.path()), dir.path().join("host"));
    std::fs::create_dir(&host).unwrap();
    let at = dir.path().canonicalize().unwrap().join("at");
    let given = std::env::var("SLUICE_SEED").ok().and_then(|seed| seed.parse().ok());
    for seed in given.map_or(0..8u32, |seed| seed..seed + 1) {
        let arguments = [&seed.to_string(), "1500"];
        let wanted = works(Command::new(&program).arg(&host).args(arguments));
        let (got, _, device) = on_a_volume(&program, &arguments, &at, 100 + seed);
        assert!(got.status.success(), "seed {seed}: {}{}", text(&got.stdout), text(&got.stderr));
        assert_eq!(text(&got.stdout), text(&wanted.stdout), "seed {seed}");
        let mut volume =
            BlockingVolume::open(device, Options::default(), |_: &mut MemoryDevice| Nanos(1))
                .unwrap();
        let name = format!("random-{seed}");
        let ino = volume.volume().lookup(volume::Ino::ROOT, &name).unwrap();
        let wanted = std::fs::read(host.join(name)).unwrap();
        assert!(
            volume.read_all(ino).unwrap() == wanted,
            "seed {seed}: contents of the file on the volume"
        );
    }
}

/// Threads and processes that notify each other of writes through pipes. `SLUICE_SEED` repeats one.
#[test]
fn posted_writes_are_seen_by_every_reader() {
    let dir = tempfile::tempdir().unwrap();
    let (program, host) = (compile("left", dir.path()), dir.path().join("host"));
    let at = dir.path().canonicalize().unwrap().join("at");
    let given = std::env::var("SLUICE_SEED").ok().and_then(|seed| seed.parse().ok());
    // With seed 19, a write waits for the device while its file is read.
    let seeds = given.map_or_else(|| (0..8u32).chain([19]).collect(), |seed| vec![seed]);
    for seed in seeds {
        let arguments = [&seed.to_string(), "1000"];
        std::fs::create_dir(&host).unwrap();
        let wanted = works(Command::new(&program).arg(&host).args(arguments));
        // With a small page cache, writes wait for the device.
        let options = Options { cache_pages: [4096, 16][seed as usize % 2], ..Options::default() };
        let (got, counters, device) =
            on_a_volume_with(&program, &arguments, &at, 200 + seed, options);
        assert!(got.status.success(), "seed {seed}: {:?}{}", got.status, text(&got.stderr));
        assert_eq!(text(&got.stdout), text(&wanted.stdout), "seed {seed}");
        assert!(
            counters.posted_writes > 10_000 && counters.refused + counters.writeback_failures == 0,
            "{counters:?}"
        );
        let mut volume =
            BlockingVolume::open(device, Options::default(), |_: &mut MemoryDevice| Nanos(1))
                .unwrap();
        for file in std::fs::read_dir(&host).unwrap() {
            let (path, name) = file.map(|file| (file.path(), file.file_name())).unwrap();
            let ino = volume.volume().lookup(volume::Ino::ROOT, name.as_encoded_bytes()).unwrap();
            let wanted = std::fs::read(path).unwrap();
            assert!(volume.read_all(ino).unwrap() == wanted, "seed {seed}: {name:?}");
        }
        std::fs::remove_dir_all(&host).unwrap();
    }
}

#[test]
fn what_is_refused_is_refused_in_words_and_breaks_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let program = compile("refused", dir.path());
    let at = dir.path().canonicalize().unwrap().join("at");
    let (got, _, _) = on_a_volume(&program, &[], &at, 1);
    let said = text(&got.stderr);
    assert!(got.status.success(), "{}{said}", text(&got.stdout));
    assert!(said.lines().all(|line| line.starts_with("sluice exec: ")), "{said}");
    assert!(said.lines().count() >= 7, "{said}");
}

/// Writes, syncs and reads a file repeatedly.
const REWRITE_PROGRAM: &str = r#"
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
int main(int argc, char **argv) {
    char path[512], bytes[3000] = "x", back[3000];
    snprintf(path, sizeof path, "%s/file", argv[1]);
    int fd = open(path, O_RDWR | O_CREAT, 0600);
    if (fd < 0) return 1;
    for (int i = 0; i < 40; i++) if (write(fd, bytes, 3000) != 3000) return 2;
    if (fsync(fd)) return 3;
    for (int i = 0; i < atoi(argv[2]); i++) {
        if (pwrite(fd, bytes, 3000, i % 30 * 3000L) != 3000) return 4;
        if (lseek(fd, i % 30 * 3000L, SEEK_SET) < 0 || write(fd, bytes, 100) != 100) return 5;
        if (fdatasync(fd) || pread(fd, back, 3000, i % 7 * 3000L) != 3000) return 6;
    }
    return 0;
}
"#;

/// ARCHITECTURE.md, R9, for service and volume together: a further call does not allocate.
#[test]
fn calls_allocate_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let source = dir.path().join("again.c");
    std::fs::write(&source, REWRITE_PROGRAM).unwrap();
    let program = compiled(&source, dir.path().join("again"));
    let at = dir.path().canonicalize().unwrap().join("at");
    let mut runs = [(300, 0, 0), (3000, 0, 0)];
    for (number, (rounds, calls, allocations)) in (2..).zip(&mut runs) {
        let made = allocation_counter::measure(|| {
            let (out, counters, _) = on_a_volume(&program, &[&rounds.to_string()], &at, number);
            assert!(out.status.success(), "{out:?}");
            *calls = counters.calls + counters.posted_writes;
        });
        *allocations = made.count_total;
    }
    let [(_, few, before), (_, many, after)] = runs;
    assert!(many - few >= 5 * 2700, "{runs:?}");
    // Checkpoints and the interleaving of calls vary.
    assert!(after < before + 100, "{runs:?}");
}
