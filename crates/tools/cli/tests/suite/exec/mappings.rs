//! Shared mappings: the same results as on the host, and failures.

use super::fixture::{Fixture, text};

#[test]
fn mappings_are_shared_between_processes_as_on_the_host() {
    let stage = Fixture::new(64 << 20);
    let program = stage.compile("maps");
    let host = stage.path("host");
    std::fs::create_dir(&host).unwrap();
    let wanted = stage.run(&program, &[&host]);
    assert!(wanted.status.success(), "{wanted:?}");
    let at = stage.path("at");
    let got = stage.exec(&[&program, &at]);
    assert!(got.status.success(), "{}", text(&got.stderr));
    assert_eq!(text(&got.stdout), text(&wanted.stdout));
    assert_eq!(text(&got.stderr), "");
    stage.is_clean();
    // Another process reads the files that the mappings have changed.
    for file in std::fs::read_dir(&host).unwrap() {
        let file = file.unwrap();
        let got = stage.exec(&["cat", &format!("{at}/{}", file.file_name().to_str().unwrap())]);
        assert!(got.stdout == std::fs::read(file.path()).unwrap(), "{file:?}");
    }
}

/// Runs `map_ends`; returns its standard output and standard error.
fn run_map_ends(stage: &Fixture, how: &str) -> (String, String) {
    let program = stage.compile("map_ends");
    let out = stage.exec(&[&program, &stage.path("at"), how]);
    (text(&out.stdout), text(&out.stderr))
}

#[test]
fn changes_by_mappings_without_space_are_reported() {
    let stage = Fixture::new(16 << 20);
    let (said, errors) = run_map_ends(&stage, "full");
    let wanted = "ftruncate(fd, SIZE) = 0 \nfsync(fd) = 0 \nfsync(fd) = -1 No space left on device\n\
        msync(m, SIZE, MS_SYNC) = -1 No space left on device\nmsync(m, 4096, MS_SYNC) = 0 \n\
        fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 8192, SIZE) = 0 \n\
        madvise(m, 4096, MADV_REMOVE) = -1 Operation not supported\nfsync(fd) = 0 \nmunmap(m, SIZE) = 0 \n";
    assert_eq!(said, wanted, "{errors}");
    assert_eq!(
        errors,
        "sluice exec: changes by mappings that had no room or no device: of 1 files\n"
    );
    stage.is_clean();
    let out = stage.exec(&["head", "-c", "13", &(stage.path("at") + "/f")]);
    assert_eq!(text(&out.stdout), "the beginning");
}

#[test]
fn mappings_without_memory_are_refused_with_a_line() {
    let stage = Fixture::new(16 << 20);
    let (said, errors) = run_map_ends(&stage, "large");
    let wanted = "ftruncate(fd, 10L << 40) = 0 \n\
        mmap(NULL, 10L << 40, PROT_READ, MAP_SHARED, fd, 0) = -1 Cannot allocate memory\n\
        msync(m, 4096, MS_SYNC) = 0 \npread(fd, &c, 1, 5L << 40) = 1 \nf\n\
        1023 more, then Cannot allocate memory\nmunmap(m, 4096) = 0 \n\
        mmap(NULL, 4096, PROT_READ, MAP_SHARED, fd, 5L << 40) != MAP_FAILED = 1 \n";
    assert_eq!(said, wanted, "{errors}");
    let lines: Vec<&str> = errors.lines().collect();
    assert_eq!(lines.len(), 2, "{errors}");
    assert!(
        lines.iter().all(|line| line.starts_with("sluice exec: mmap: descriptor ")),
        "{errors}"
    );
    stage.is_clean();
}

/// A process with a mapping continues after the service has stopped; calls that need the service
/// fail.
#[test]
fn mappings_outlive_the_service() {
    let stage = Fixture::new(16 << 20);
    let (said, errors) = run_map_ends(&stage, "service");
    let wanted = "ftruncate(fd, 8192) = 0 \nmsync(m, 8192, MS_SYNC) = 0 \nkill(getppid(), SIGKILL) = 0 \n\
        msync(m, 8192, MS_SYNC) = -1 Input/output error\nmsync(m, 8192, MS_ASYNC) = 0 \n\
        mmap(NULL, 4096, PROT_READ, MAP_SHARED, fd, 0) = -1 Input/output error\n\
        mremap(m, 8192, 4096, 0) == m = 1 \n1\nclose(fd) = 0 \n";
    assert_eq!(said, wanted, "{errors}");
    assert!(!errors.contains("sluice exec:"), "{errors}");
    assert!(stage.exec(&["true"]).status.success());
    stage.is_clean();
}
