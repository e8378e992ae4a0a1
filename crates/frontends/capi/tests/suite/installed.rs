//! C programs compiled against the installed library and header, including the examples.

// guarantee: S-14

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

use tempfile::NamedTempFile;

fn here() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// The installed library, which all tests of this file use.
struct Installed {
    folder: PathBuf,
}

/// Returns the folder in which cargo places the library: that of the test binaries.
fn built() -> PathBuf {
    std::env::current_exe().unwrap().parent().unwrap().to_owned()
}

fn installed() -> &'static Installed {
    static INSTALLED: OnceLock<Installed> = OnceLock::new();
    INSTALLED.get_or_init(|| {
        let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("installed");
        let _ = std::fs::remove_dir_all(&folder);
        let script = here().join("../../../scripts/install-capi");
        ok(Command::new(script).arg(&folder).arg(built()).env_remove("DESTDIR"));
        Installed { folder }
    })
}

fn ok(command: &mut Command) -> Output {
    let output = command.output().unwrap_or_else(|e| panic!("{command:?}: {e}"));
    assert!(
        output.status.success(),
        "{command:?}: {}\n{}{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    output
}

fn text(output: &[u8]) -> String {
    String::from_utf8_lossy(output).into_owned()
}

impl Installed {
    fn path(&self) -> &Path {
        &self.folder
    }

    /// Compiles a program with every warning an error.
    fn compile(&self, source: &Path, name: &str, language: &[&str]) -> PathBuf {
        let program = self.path().join(name);
        let mut cc = Command::new(if language.contains(&"c++") { "c++" } else { "cc" });
        cc.args(["-Wall", "-Wextra", "-Werror", "-pedantic", "-O1", "-g"]).args(language);
        cc.arg(source).args(["-x", "none", "-o"]).arg(&program).args(self.flags());
        cc.arg(format!("-Wl,-rpath,{}", self.path().join("lib").display()));
        ok(&mut cc);
        program
    }

    /// Returns the flags that `pkg-config` prints, or would print if it were installed.
    fn flags(&self) -> Vec<String> {
        let path = self.path().join("lib/pkgconfig");
        let asked = Command::new("pkg-config")
            .args(["--cflags", "--libs", "sluice"])
            .env("PKG_CONFIG_PATH", &path)
            .output();
        match asked {
            Ok(output) => {
                assert!(output.status.success(), "{}", text(&output.stderr));
                text(&output.stdout).split_whitespace().map(str::to_owned).collect()
            }
            Err(_) => vec![
                format!("-I{}", self.path().join("include").display()),
                format!("-L{}", self.path().join("lib").display()),
                "-lsluice".into(),
            ],
        }
    }
}

fn example(name: &str) -> PathBuf {
    let source = here().join("examples-c").join(format!("{name}.c"));
    installed().compile(&source, name, &["-std=c11", "-D_POSIX_C_SOURCE=200809L"])
}

fn run(program: &Path, arguments: &[&Path]) -> String {
    let output = ok(Command::new("timeout").arg("60").arg(program).args(arguments));
    text(&output.stdout)
}

/// Creates a file whose blocks of 4 KiB begin with 7 times their number.
fn image(blocks: u64) -> NamedTempFile {
    let file = NamedTempFile::new().unwrap();
    let mut bytes = vec![0u8; blocks as usize * 4096];
    for (block, data) in bytes.chunks_mut(4096).enumerate() {
        data.fill(block as u8);
        data[..8].copy_from_slice(&(block as u64 * 7).to_le_bytes());
    }
    std::fs::write(file.path(), bytes).unwrap();
    file
}

#[test]
fn the_library_exports_the_interface_and_nothing_else_under_its_own_name() {
    let library = installed().path().join("lib/libsluice.so");
    let header = std::fs::read_to_string(installed().path().join("include/sluice.h")).unwrap();
    let dynamic = text(&ok(Command::new("readelf").arg("-d").arg(&library)).stdout);
    assert!(dynamic.contains("[libsluice.so.0]"), "{dynamic}");
    let symbols = ok(Command::new("nm").args(["-D", "--defined-only"]).arg(&library)).stdout;
    let symbols = text(&symbols);
    let names: Vec<_> = symbols.lines().filter_map(|line| line.split(' ').nth(2)).collect();
    assert!(names.len() > 35, "{symbols}");
    for name in names {
        assert!(name.starts_with("sluice_"), "{name} is exported");
        assert!(header.contains(&format!("{name}(")), "{name} is not in the header");
    }
}

#[test]
fn an_example_copies_a_device() {
    let (from, to) = (image(700), NamedTempFile::new().unwrap());
    to.as_file().set_len(800 * 4096).unwrap();
    let copy = example("copy");
    assert_eq!(run(&copy, &[from.path(), to.path()]), "copied 2867200 bytes\n");
    let (a, b) = (std::fs::read(from.path()).unwrap(), std::fs::read(to.path()).unwrap());
    assert!(a == b[..a.len()] && b[a.len()..].iter().all(|byte| *byte == 0));

    let output = Command::new(&copy).arg(from.path()).arg("/nonexistent/to").output().unwrap();
    let says = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1));
    assert!(says.contains("/nonexistent/to") && says.contains("errno 2"), "{says}");

    let small = image(1);
    let output = Command::new(&copy).arg(from.path()).arg(small.path()).output().unwrap();
    let says = text(&output.stderr);
    assert!(says.contains("LBA out of range") && says.contains("errno 34"), "{says}");
}

#[test]
fn an_example_reads_32_at_a_time_in_c_and_in_cpp() {
    let blocks = 1000;
    let image = image(blocks);
    let sum: u64 = (0..blocks).map(|block| block * 7).sum();
    let source = here().join("examples-c/async_read.c");
    let cpp = ["-x", "c++", "-std=c++17"];
    for program in [example("async_read"), installed().compile(&source, "async_read_cpp", &cpp)] {
        let says = run(&program, &[image.path()]);
        assert_eq!(says, format!("read {blocks} blocks, sum {sum}, errors 0\n"));
    }
}

#[test]
fn an_example_has_a_block_cache_and_a_scheduler() {
    let device = NamedTempFile::new().unwrap();
    device.as_file().set_len(16 << 20).unwrap();
    let says = run(&example("cache"), &[device.path()]);
    assert_eq!(
        says,
        "reads 512, writes 512, dirty 0\ntable from memory: yes\nlog written in runs: yes\n"
    );
    let bytes = std::fs::read(device.path()).unwrap();
    for record in 0..512 {
        let at = (8 << 20) + record * 4096;
        assert!(bytes[at..at + 4096].iter().all(|byte| *byte == record as u8), "record {record}");
    }
}

#[test]
fn a_program_for_nvmedirect_runs() {
    let device = NamedTempFile::new().unwrap();
    device.as_file().set_len(1 << 20).unwrap();
    let wanted = "at 8192, read aa\nbegun 64\ncompleted 128, reads apart 64, writes apart 64\nafter \
                  the discard 0\n";
    assert_eq!(run(&example("nvmed"), &[device.path()]), wanted);
    let source = here().join("examples-c/nvmed.c");
    let cpp = installed().compile(&source, "nvmed_cpp", &["-x", "c++", "-std=c++17"]);
    assert_eq!(run(&cpp, &[device.path()]), wanted);
}

/// Without the shared library: links the archive and the libraries of `Libs.private`.
#[test]
fn a_program_is_linked_with_the_archive() {
    let image = image(64);
    let program = installed().path().join("async_read_static");
    let source = here().join("examples-c/async_read.c");
    let prefix = installed().path();
    let pc = std::fs::read_to_string(prefix.join("lib/pkgconfig/sluice.pc")).unwrap();
    assert!(pc.contains(&format!("Version: {}\n", env!("CARGO_PKG_VERSION"))), "{pc}");
    let private = pc.lines().find_map(|line| line.strip_prefix("Libs.private: ")).unwrap();
    let mut cc = Command::new("cc");
    cc.arg("-I").arg(prefix.join("include")).arg(source).arg(prefix.join("lib/libsluice.a"));
    ok(cc.args(private.split(' ')).arg("-o").arg(&program));
    let says = run(&program, &[image.path()]);
    assert!(says.starts_with("read 64 blocks"), "{says}");
}

/// A header of another version is refused with a message that names both versions, whatever the
/// other arguments are.
#[test]
fn a_program_of_another_version_is_refused() {
    let folder = installed().path().join("other");
    std::fs::create_dir_all(&folder).unwrap();
    let header = std::fs::read_to_string(installed().path().join("include/sluice.h")).unwrap();
    let minor = "#define SLUICE_VERSION_MINOR ";
    assert!(header.contains(minor));
    std::fs::write(
        folder.join("sluice.h"),
        header.replace(minor, "#define SLUICE_VERSION_MINOR 77//"),
    )
    .unwrap();
    let source = folder.join("version.c");
    let program = "#include <stdio.h>\n#include <errno.h>\n#include \"sluice.h\"\n\
                   int main(void)\n{\n    struct sluice_device *device = (struct sluice_device *)1;\n    \
                   int error = sluice_open(\"null\", NULL, &device);\n    \
                   printf(\"%d %d %s\\n\", error == -ELIBBAD, device == NULL, sluice_last_error());\n    \
                   return 0;\n}\n";
    std::fs::write(&source, program).unwrap();
    let program = installed().compile(&source, "version", &["-std=c11"]);
    let says = run(&program, &[]);
    assert!(says.starts_with("1 1 "), "{says}");
    let library = env!("CARGO_PKG_VERSION");
    assert!(says.contains("0.77.0") && says.contains(library), "{says}");
}

/// Writes a scenario of a small drive with an image in the same folder.
fn scenario(folder: &Path, keys: &str, rest: &str) -> PathBuf {
    let file = folder.join("drive.toml");
    let text = format!(
        "[drive]\nname = \"d0\"\npreset = \"femu-default\"\ncell = \"mlc\"\npaired_page_distance = 2\n\
         geometry = {{ channels = 2, pus = 4, chunks = 40, pages = 16 }}\n{keys}\
         data = \"file\"\npath = \"drive.img\"\n{rest}"
    );
    std::fs::write(&file, text).unwrap();
    file
}

const PBLK: (&str, &str) =
    ("personality = \"open-channel\"\n", "[target]\nkind = \"pblk\"\nover_provisioning = 0.3\n");

/// A C program opens a drive by the file name of its scenario. The data is still there when this
/// process or the next one opens the drive again.
#[test]
fn a_scenario_keeps_its_data_with_either_ftl() {
    let kept = "kept: 64 of 64 records are there\n";
    let records = example("records");
    for (keys, rest) in [("", ""), PBLK] {
        let folder = tempfile::tempdir().unwrap();
        let what = scenario(folder.path(), keys, rest);
        for _ in 0..2 {
            assert_eq!(run(&records, &[&what]), kept, "{keys}");
        }
        let named = PathBuf::from(format!("{}#d0", what.display()));
        assert_eq!(run(&records, &[&named]), kept, "{keys}");

        let other = PathBuf::from(format!("{}#d1", what.display()));
        let output = Command::new(&records).arg(&other).output().unwrap();
        let says = text(&output.stderr);
        assert!(says.contains("no drive \"d1\"") && says.contains("errno 22"), "{says}");

        // A file that is not an image is never overwritten.
        std::fs::write(folder.path().join("drive.img"), vec![7; 1 << 20]).unwrap();
        let output = Command::new(&records).arg(&what).output().unwrap();
        let says = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{says}");
        assert!(says.contains("records: open: ") && says.contains("drive.img"), "{says}");
    }
    let file = NamedTempFile::new().unwrap();
    file.as_file().set_len(4 << 20).unwrap();
    assert_eq!(run(&records, &[file.path()]), kept);
}

/// A C program uses physical addresses, on erased chunks and on chunks that were written before.
#[test]
fn an_example_keeps_records_by_physical_addresses() {
    let folder = tempfile::tempdir().unwrap();
    let what = scenario(folder.path(), PBLK.0, "");
    let vector = example("vector");
    for _ in 0..2 {
        let says = run(&vector, &[&what]);
        let (units, rest) = says.split_once(" of ").unwrap();
        assert!(units.parse::<u32>().unwrap() > 1, "{says}");
        assert_eq!(rest, format!("{units} units are there\nclosed: yes\n"));
    }
    let output = Command::new(&vector).arg("null:1g").output().unwrap();
    let says = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1));
    assert!(says.contains("no vector commands") && says.contains("errno 95"), "{says}");
}

/// valgrind reports no use of uninitialized memory and no leak.
#[test]
fn valgrind_finds_nothing() {
    if !testkit::has_programs!(&["valgrind"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let target = scenario(folder.path(), PBLK.0, PBLK.1);
    let target = target.to_str().unwrap();
    for (name, device) in [("cache", "null:1g"), ("async_read", "null:4m"), ("records", target)] {
        let mut command = Command::new("timeout");
        command.args(["120", "valgrind", "--quiet", "--error-exitcode=9", "--leak-check=full"]);
        command.args(["--errors-for-leak-kinds=definite", "--show-leak-kinds=definite"]);
        ok(command.arg(example(name)).arg(device));
    }
}
