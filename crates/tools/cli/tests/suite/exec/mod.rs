//! `sluice exec`: unmodified programs on a volume. A program must print the same as in a directory
//! of the host.

// guarantee: D-15, D-16

mod bad_volumes;
mod bench;
mod fixture;
mod library;
mod mappings;
mod programs;
mod speculation;
mod whole_writes;

use std::os::unix::process::ExitStatusExt as _;

use fixture::Fixture;

#[test]
fn every_call_is_as_on_the_host() {
    let stage = Fixture::new(64 << 20);
    let program = stage.compile("files");
    let host = stage.path("host");
    std::fs::create_dir(&host).unwrap();
    let wanted = stage.run(&program, &[&host]);
    assert!(wanted.status.success(), "{wanted:?}");
    let at = stage.path("at");
    let got = stage.exec(&[&program, &at]);
    assert!(got.status.success(), "{}", fixture::text(&got.stderr));
    let (wanted, got) = (fixture::text(&wanted.stdout), fixture::text(&got.stdout));
    for (i, (wanted, got)) in wanted.lines().zip(got.lines()).enumerate() {
        assert_eq!(got, wanted, "line {}", i + 1);
    }
    assert_eq!(got.lines().count(), wanted.lines().count());
    assert!(!std::path::Path::new(&at).exists(), "no file may appear on the host");
    stage.is_clean();
    // Another process with another program sees the same files.
    let log = stage.exec(&["cat", &format!("{at}/log")]);
    assert_eq!(log.stdout.len(), 4 * 200 * 64);
}

#[test]
fn a_stream_knows_where_it_is() {
    let stage = Fixture::new(16 << 20);
    let (program, file) = (stage.compile("lines"), stage.path("at") + "/lines");
    let out = stage.exec(&["sh", "-c", &format!("seq 100000 199999 > {file}")]);
    assert!(out.status.success(), "{}", fixture::text(&out.stderr));
    let (disk, at) = (stage.path("disk.img"), stage.path("at"));
    let out =
        stage.sluice(&["exec", "--stats", "--volume", &disk, "--at", &at, "--", &program, &file]);
    assert_eq!(fixture::text(&out.stdout), "100000 lines, 700000 bytes\n");
    let said = fixture::text(&out.stderr);
    let calls = said.split_once("sluice exec: ").and_then(|(_, rest)| rest.split_once(" calls"));
    let calls: u64 = calls.expect(&said).0.parse().unwrap();
    // Calls of 4 KiB each, and not one per line.
    assert!(calls < 300, "{said}");
    let written = said.trim_end().strip_suffix(" bytes written to the device").expect(&said);
    let written: u64 = written.rsplit(' ').next().unwrap().parse().unwrap();
    assert!(written < 700_000, "{said}");
}

#[test]
fn what_a_volume_does_not_have_is_refused_with_a_line() {
    let stage = Fixture::new(16 << 20);
    let program = stage.compile("refused");
    let out = stage.exec(&[&program, &stage.path("at")]);
    let said = fixture::text(&out.stderr);
    assert!(out.status.success(), "{}{said}", fixture::text(&out.stdout));
    for call in
        ["link: f", "symlink: g", "mkfifo: p", "open: ", "execve: f", "freopen: f", "glob: *"]
    {
        let line = said.lines().filter(|l| l.contains(&format!("sluice exec: {call}"))).count();
        assert!(line >= 1, "{call} in {said}");
    }
    assert_eq!(said.lines().count(), 7, "{said}");
}

#[test]
fn a_full_volume_is_enospc_and_says_so_to_the_program() {
    let stage = Fixture::new(8 << 20);
    let at = stage.path("at");
    let script = format!(
        "dd if=/dev/zero of={at}/fill bs=64k count=1000; ls {at} && rm {at}/fill && sync && \
                          echo more > {at}/more && cat {at}/more"
    );
    let out = stage.exec(&["sh", "-c", &script]);
    assert!(fixture::text(&out.stderr).contains("No space left on device"), "{out:?}");
    assert_eq!(fixture::text(&out.stdout), "fill\nmore\n");
    stage.is_clean();
}

/// Fills a volume up with posted writes: every write that `write` reported as successful is
/// readable, and every other one failed with `ENOSPC` in `write`.
#[test]
fn what_fits_is_posted_and_what_does_not_is_enospc_at_once() {
    let stage = Fixture::new(96 << 20);
    let (at, fill) = (stage.path("at"), stage.compile("fill"));
    let out = stage.exec(&[&fill, &at]);
    assert_eq!(fixture::text(&out.stdout), "full, and nothing is missing\n", "{out:?}");
    assert_eq!(fixture::text(&out.stderr), "");
    stage.is_clean();
}

/// Posted writes of a killed program are durable, although no call waited for them.
#[test]
fn a_killed_program_has_written_what_it_posted() {
    let stage = Fixture::new(96 << 20);
    let at = stage.path("at");
    let script = format!(
        "(exec 5>{at}/log; for i in $(seq 100); do echo line $i >&5; done; kill -9 $BASHPID); \
         cat {at}/log"
    );
    let out = stage.exec(&["bash", "-c", &script]);
    let wanted: String = (1..=100).map(|i| format!("line {i}\n")).collect();
    assert_eq!(fixture::text(&out.stdout), wanted, "{}", fixture::text(&out.stderr));
    // The killed program is also the last one of its session; the next session reads its writes.
    let script = format!("for i in $(seq 100); do echo line $i; done > {at}/last; kill -9 $$");
    assert_eq!(stage.exec(&["bash", "-c", &script]).status.signal(), Some(9));
    assert_eq!(fixture::text(&stage.exec(&["cat", &format!("{at}/last")]).stdout), wanted);
    stage.is_clean();
}

#[test]
fn the_program_s_end_is_its_own() {
    let stage = Fixture::new(8 << 20);
    assert_eq!(stage.exec(&["sh", "-c", "exit 7"]).status.code(), Some(7));
    assert_eq!(stage.exec(&["sh", "-c", "kill -TERM $$"]).status.signal(), Some(15));
    assert_eq!(stage.exec(&["true"]).status.code(), Some(0));
    stage.is_clean();
}

#[test]
fn programs_and_volumes_that_cannot_be_used_are_refused() {
    let stage = Fixture::new(8 << 20);
    let at = stage.path("at");
    let refused = |args: &[&str], said: &str| {
        let out = stage.sluice(args);
        let text = fixture::text(&out.stderr);
        assert!(!out.status.success() && text.contains(said), "{args:?}: {text}");
        assert!(out.stdout.is_empty(), "{args:?} must not run");
    };
    let volume = stage.path("disk.img");
    let exec = |volume: &str, at: &str, program: &str, said: &str| {
        refused(&["exec", "--volume", volume, "--at", at, "--", program], said);
    };
    let fixed = stage.compile_static();
    exec(&volume, &at, &fixed, "is linked statically");
    exec(&volume, &at, "no-such-program", "there is no program");
    exec(&volume, "/", "true", "--at");
    exec(&volume, "/usr", "true", "it has files");
    exec(&stage.path("none.img"), &at, "true", "none.img");
    let empty = stage.path("empty.img");
    std::fs::File::create(&empty).unwrap().set_len(8 << 20).unwrap();
    exec(&empty, &at, "true", "not a volume");
    // A set-user-ID program of another user; only root can create it.
    let other = stage.path("other");
    std::fs::copy("/bin/true", &other).unwrap();
    if std::os::unix::fs::chown(&other, Some(12345), None).is_ok() {
        use std::os::unix::fs::PermissionsExt as _;
        std::fs::set_permissions(&other, std::fs::Permissions::from_mode(0o4755)).unwrap();
        exec(&volume, &at, &other, "set-user-ID");
    }
    // The volume is in use by the process of this test's own command.
    let script = format!("{} exec --volume {volume} --at {at} -- true", fixture::SLUICE);
    let out = stage.exec(&["sh", "-c", &script]);
    assert_eq!(out.status.code(), Some(1));
    assert!(fixture::text(&out.stderr).contains("in use by another process"), "{out:?}");
    // Damages the first superblock and the metadata.
    let mut bytes = std::fs::read(&volume).unwrap();
    bytes[..65536].iter_mut().for_each(|byte| *byte ^= 0x5a);
    std::fs::write(&volume, bytes).unwrap();
    let out = stage.exec(&["true"]);
    assert_eq!(out.status.code(), Some(1), "{out:?}");
}

#[test]
fn paths_lead_to_the_volume_and_out_of_it() {
    let stage = Fixture::new(8 << 20);
    let (at, outside, link) = (stage.path("at"), stage.path("outside"), stage.path("link"));
    std::fs::write(&outside, "host\n").unwrap();
    std::os::unix::fs::symlink(&at, &link).unwrap();
    let dir = stage.path("");
    let script = format!(
        "cd {dir} && mkdir at/d && echo one > at/d/f && cat link/d/../d/f && cat {at}/d/../../outside && \
         cd at/d && cat ../../outside && cat ../d/f && cd ../.. && pwd && cat at/./d//f && \
         cp at/d/f copy && cp outside at/in && cat at/in && mv at/in back && cat back && ls at"
    );
    let out = stage.exec(&["bash", "-c", &script]);
    let dir = dir.trim_end_matches('/');
    let wanted = format!("one\nhost\nhost\none\n{dir}\none\nhost\nhost\nd\n");
    assert_eq!(fixture::text(&out.stdout), wanted, "{}", fixture::text(&out.stderr));
    assert_eq!(std::fs::read_to_string(stage.path("copy")).unwrap(), "one\n");
}

#[test]
fn a_killed_program_leaves_nothing_open() {
    let stage = Fixture::new(8 << 20);
    let at = stage.path("at");
    // The blocks of a deleted file become free when the process that has it open is killed.
    // Otherwise the second file does not fit.
    let script = format!(
        "(exec 5>{at}/big; head -c 5000000 /dev/zero >&5; rm {at}/big; kill -9 $BASHPID); sync; sync; \
         head -c 5000000 /dev/zero > {at}/second && ls {at}"
    );
    let out = stage.exec(&["bash", "-c", &script]);
    assert_eq!(fixture::text(&out.stdout), "second\n", "{}", fixture::text(&out.stderr));
    stage.is_clean();
}

/// Installed as by `make install`: the command finds the library relative to itself, and without it
/// reports how to build it.
#[test]
fn the_library_is_found_where_it_is_installed() {
    let stage = Fixture::new(8 << 20);
    let (bin, lib) = (stage.path("usr/bin"), stage.path("usr/lib"));
    [&bin, &lib].iter().for_each(|dir| std::fs::create_dir_all(dir).unwrap());
    let (sluice, library) = (bin + "/sluice", lib + "/libsluice_preload.so");
    std::fs::copy(fixture::SLUICE, &sluice).unwrap();
    let at = stage.path("at");
    let volume = stage.path("disk.img");
    let args = ["exec", "--volume", &volume, "--at", &at, "--", "touch", &format!("{at}/file")];
    let missed = stage.run(&sluice, &args);
    assert_eq!(missed.status.code(), Some(1));
    let said = fixture::text(&missed.stderr);
    assert!(
        said.contains("libsluice_preload.so is neither in") && said.contains("cargo build"),
        "{said}"
    );
    let built =
        std::path::Path::new(fixture::SLUICE).parent().unwrap().join("libsluice_preload.so");
    std::fs::copy(built, library).unwrap();
    let found = stage.run(&sluice, &args);
    assert!(found.status.success(), "{}", fixture::text(&found.stderr));
    assert_eq!(fixture::text(&stage.exec(&["ls", &at]).stdout), "file\n");
}

// guarantee: B-50

#[test]
fn synced_writes_of_a_program_are_in_the_log_of_the_next_one() {
    let dir = tempfile::tempdir().unwrap();
    let (file, at) = (dir.path().join("s.toml"), dir.path().join("at"));
    let image = dir.path().join("disk.img");
    let drive = format!(
        "[drive]\npreset = \"femu-default\"\ngeometry = {{ channels = 2, chunks = 24, pages = 64 }}\n\
         data = \"file\"\npath = {image:?}\npmr = {{ size = \"4M\", persist = \"1us\" }}\n"
    );
    std::fs::write(&file, &drive).unwrap();
    library::build();
    let exec = |options: &[&str], script: &str| {
        let mut command = std::process::Command::new(library::SLUICE);
        command.arg("exec").arg("--volume").arg(&file).args(options).arg("--at").arg(&at);
        command.args(["--", "sh", "-c", &script.replace("AT", at.to_str().unwrap())]);
        command.output().unwrap()
    };
    let write = "for i in 1 2 3; do echo line $i >> AT/f; sync AT/f; done";
    let out = exec(&["--write-log", "pmr", "--format", "--stats"], write);
    let said = library::text(&out.stderr);
    assert!(out.status.success() && said.contains("flushes absorbed"), "{said}");
    let out = exec(&["--write-log", "pmr"], "cat AT/f");
    assert_eq!(library::text(&out.stdout), "line 1\nline 2\nline 3\n", "{out:?}");
    let out = exec(&[], "cat AT/f");
    assert!(!out.status.success());
    let said = library::text(&out.stderr);
    assert!(said.contains("open the device with its own log"), "{said}");
    // Other memory, and a device without a region.
    let said = library::text(&exec(&["--write-log", "ram"], "true").stderr);
    assert!(said.contains("pmr"), "{said}");
    std::fs::write(&file, drive.replace("pmr = {", "# {")).unwrap();
    let said = library::text(&exec(&["--write-log", "pmr"], "true").stderr);
    assert!(said.contains("no persistent memory region for a log"), "{said}");
}

// guarantee: B-112

#[test]
fn with_sync_every_write_is_durable_when_it_returns() {
    let dir = tempfile::tempdir().unwrap();
    let (file, at) = (dir.path().join("s.toml"), dir.path().join("at"));
    let drive = format!(
        "[drive]\npreset = \"femu-default\"\ngeometry = {{ channels = 2, chunks = 24, pages = 64 }}\n\
         data = \"file\"\npath = {:?}\nwrite_buffer = {{ kind = \"volatile\", size = \"1m\" }}\n",
        dir.path().join("disk.img")
    );
    library::build();
    // Power is cut, which kills the service and the drive with it, right after the last write.
    let script = "exec 3>AT/f; for i in 1 2 3; do echo line $i >&3; done; kill -9 $PPID";
    let read_after_cut = |options: &[&str]| {
        let _ = std::fs::remove_file(dir.path().join("disk.img"));
        std::fs::write(&file, &drive).unwrap();
        let exec = |options: &[&str], script: &str| {
            let mut command = std::process::Command::new(library::SLUICE);
            command.arg("exec").arg("--volume").arg(&file).args(options).arg("--at").arg(&at);
            command.args(["--", "sh", "-c", &script.replace("AT", at.to_str().unwrap())]);
            command.output().unwrap()
        };
        assert!(exec(&["--format"], "true").status.success());
        assert_eq!(exec(options, script).status.signal(), Some(9));
        library::text(&exec(&[], "cat AT/f").stdout)
    };
    assert_eq!(read_after_cut(&["--sync"]), "line 1\nline 2\nline 3\n");
    assert_eq!(read_after_cut(&[]), "", "without the option the same writes are lost");
}
