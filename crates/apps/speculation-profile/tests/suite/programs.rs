//! Programs of Debian, pipelines and scripts, and programs that cannot be profiled.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use speculation_profile::{ProfileOptions, ProgramProfileError, find_program, run};

use crate::{TestPrograms, has_program, words};

fn options(directory: &Path) -> ProfileOptions {
    ProfileOptions { current_dir: Some(directory.to_path_buf()), ..ProfileOptions::default() }
}

/// guarantee: V-22
#[test]
fn all_programs_of_a_pipeline_are_profiled() {
    let Some(programs) = TestPrograms::compile("windows.c", &[]) else { return };
    let directory = programs.folder.path();
    let script = "dd if=data bs=4k 2>/dev/null | cat | dd of=copy bs=4k 2>/dev/null; exit 3";
    let found = run(&words(&["/bin/sh", "-c", script]), &options(directory)).expect("profiled");
    assert_eq!(found.status.code(), Some(3));
    assert_eq!(std::fs::read(directory.join("copy")).expect("read"), vec![7; 65536]);
    assert_eq!(found.profile.not_followed().count(), 0);
    assert_eq!((found.profile.dropped_events(), found.profile.killed_processes()), (0, 0));
    let [read, write, _] = found.profile.io(Some("dd"));
    assert!(read.bytes >= 65536 && write.bytes == 65536, "{read:?} {write:?}");
    assert!(found.profile.processes() >= 4);
}

/// guarantee: V-22
#[test]
fn scripts_with_interpreters_run_as_without_a_profiler() {
    let Some(programs) = TestPrograms::compile("windows.c", &[]) else { return };
    let directory = programs.folder.path();
    let write = |name: &str, text: &str| {
        let path = directory.join(name);
        std::fs::write(&path, text).expect("written");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).expect("set");
        path
    };
    let inner = write("inner", "#! /bin/sh -e\nprintf '%s,' \"$0\" \"$@\" > out\nfalse\nexit 9\n");
    let outer = write("outer", "#!/bin/sh\n./inner 'a b' '' c\nexit $(( $? + 10 ))\n");
    let outer = outer.to_str().expect("UTF-8");
    let found = run(&words(&[outer]), &options(directory)).expect("profiled");
    assert_eq!(found.status.code(), Some(11));
    assert_eq!(std::fs::read_to_string(directory.join("out")).expect("read"), "./inner,a b,,c,");
    let search = "/bin";
    let found = find_program(inner.to_str().expect("UTF-8"), search).expect("found");
    assert_eq!(found.interpreters, ["/bin/sh", "-e"]);
}

#[test]
fn programs_that_cannot_be_profiled_are_named() {
    let Some(programs) = TestPrograms::compile("windows.c", &[]) else { return };
    let directory = programs.folder.path();
    let path = directory.join("foreign");
    let set = |bytes: &[u8], mode: u32| {
        let _ = std::fs::remove_file(&path);
        std::fs::write(&path, bytes).expect("written");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).expect("set");
    };
    let name = path.to_str().expect("UTF-8");
    let attempt = || run(&words(&[name]), &ProfileOptions::default());
    assert!(matches!(attempt(), Err(ProgramProfileError::NotFound { .. })));
    let mut elf = std::fs::read(programs.program()).expect("read");
    set(&elf, 0o644);
    assert!(matches!(attempt(), Err(ProgramProfileError::NotFound { .. })));
    elf[18] = 183;
    set(&elf, 0o755);
    let error = attempt().expect_err("another machine");
    assert!(matches!(error, ProgramProfileError::OtherMachine { .. }), "{error}");
    set(b"#!/no/such/interpreter\n", 0o755);
    assert!(matches!(attempt(), Err(ProgramProfileError::NotFound { .. })));
    set(b"#!", 0o755);
    assert!(matches!(attempt(), Err(ProgramProfileError::NotFound { .. })));
    set(b"", 0o755);
    assert!(matches!(attempt(), Err(ProgramProfileError::OtherMachine { .. })));
    set(format!("#!{name}\n").as_bytes(), 0o755);
    assert!(matches!(attempt(), Err(ProgramProfileError::NotFound { .. })));
    assert!(matches!(
        run(&[], &ProfileOptions::default()),
        Err(ProgramProfileError::NotFound { .. })
    ));
}

/// Only root can give a program to another user.
#[test]
fn a_set_user_id_program_is_named() {
    let Some(programs) = TestPrograms::compile("windows.c", &[]) else { return };
    let path = programs.program();
    if std::os::unix::fs::chown(&path, Some(65534), None).is_err() {
        testkit::skip!("not root: a set-user-ID program of another user cannot be made");
        return;
    }
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o4755)).expect("set");
    let name = path.to_str().expect("UTF-8");
    let error = run(&words(&[name]), &ProfileOptions::default()).expect_err("set-user-ID");
    assert!(matches!(error, ProgramProfileError::Privileged { .. }), "{error}");
    // As a child it runs, without being profiled.
    let script = format!("{name} read {} 1", programs.data().display());
    let found =
        run(&words(&["/bin/sh", "-c", &format!("{script}; exit 5")]), &ProfileOptions::default());
    let found = found.expect("profiled");
    assert_eq!(found.status.code(), Some(5));
    let skipped: Vec<_> = found.profile.not_followed().collect();
    assert_eq!(skipped, [("program", "it is set-user-ID or set-group-ID")]);
}

#[test]
fn without_an_emulator_or_its_plugins_the_error_names_the_package() {
    let Some(programs) = TestPrograms::compile("windows.c", &[]) else { return };
    let with = |emulator: &Path| {
        let options =
            ProfileOptions { emulator: Some(emulator.into()), ..ProfileOptions::default() };
        run(&words(&["/bin/true"]), &options).expect_err("no emulator").to_string()
    };
    let missing = with(Path::new("/nonexistent/qemu-x86_64"));
    assert!(missing.contains("scripts/apt-install qemu-user"), "{missing}");
    let other = programs.folder.path().join("qemu");
    std::fs::write(&other, "#!/bin/sh\necho usage\nexit 1\n").expect("written");
    std::fs::set_permissions(&other, std::fs::Permissions::from_mode(0o755)).expect("set");
    let without = with(&other);
    assert!(without.contains("loads no plugins"), "{without}");
}

#[test]
fn a_directory_that_does_not_exist_is_named() {
    let Some(_) = TestPrograms::compile("windows.c", &[]) else { return };
    let directories = vec!["/nonexistent".into()];
    let options = ProfileOptions { directories, ..ProfileOptions::default() };
    let error = run(&words(&["/bin/true"]), &options).expect_err("no directory");
    assert!(error.to_string().contains("/nonexistent"), "{error}");
}

/// guarantee: V-22
#[test]
fn a_database_with_synced_commits_is_profiled() {
    let Some(programs) = TestPrograms::compile("windows.c", &[]) else { return };
    if !has_program("sqlite3") {
        testkit::skip!("no sqlite3 (`scripts/apt-install sqlite3`)");
        return;
    }
    let script = "create table t(x); insert into t values(1); insert into t values(2); \
                  select count(*) from t;";
    let found = run(&words(&["sqlite3", "db", script]), &options(programs.folder.path()));
    let found = found.expect("profiled");
    assert!(found.status.success());
    let [_, write, sync] = found.profile.io(Some("sqlite3"));
    assert!(write.calls >= 6 && sync.calls >= 3, "{write:?} {sync:?}");
    assert!(sync.sluice.mean > 10.0 * sync.paper.mean, "{sync:?}");
    let json = serde_json::to_value(found.profile.json()).expect("JSON");
    assert_eq!(json["programs"][0]["program"], "sqlite3");
    assert_eq!(json["io"][2]["kind"], "sync");
    assert!(found.profile.table().contains("fdatasync") || found.profile.table().contains("fsync"));
}
