//! Former names of constants and calls: they have the meaning of the present ones, and the compiler
//! warns about their use.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::ptr::{null, null_mut};

use sluice_c::*;

use crate::support::Stand;

/// Constants: the present name, then the former one.
const CONSTANTS: [[&str; 2]; 4] = [
    ["SLUICE_TIMEOUT_INFINITE", "SLUICE_FOREVER"],
    ["SLUICE_DEALLOCATE", "SLUICE_MAY_UNMAP"],
    ["SLUICE_PERIOD_BUSY_POLL", "SLUICE_PERIOD_BUSY"],
    ["SLUICE_KIND_REMOTE", "SLUICE_KIND_SERVED"],
];

/// Compiles a program against the header. Returns whether it is valid, and the messages.
fn compile(compiler: &str, language: &str, program: &str) -> (bool, String) {
    let include = Path::new(env!("CARGO_MANIFEST_DIR")).join("include");
    let mut child = Command::new(compiler)
        .args(["-Wall", "-Wextra", "-pedantic", "-fsyntax-only", "-x", language, "-"])
        .arg("-I")
        .arg(include)
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap_or_else(|e| panic!("{compiler}: {e}"));
    child.stdin.take().unwrap().write_all(program.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    (output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned())
}

#[test]
fn former_constants_have_the_present_values_and_are_warned_of() {
    for (compiler, language) in [("cc", "c"), ("c++", "c++")] {
        for [now, was] in CONSTANTS {
            let program = |name| {
                format!(
                    "#include <sluice.h>\nint f(unsigned long long x);\nint f(unsigned long long x) {{\n\
                     char same[{name} == {now} ? 1 : -1];\nsame[0] = x == {name};\nreturn same[0];\n}}\n"
                )
            };
            let (valid, messages) = compile(compiler, language, &program(now));
            assert!(valid && messages.is_empty(), "{now}: {messages}");
            let (valid, messages) = compile(compiler, language, &program(was));
            assert!(valid, "{was}: {messages}");
            assert!(messages.contains(&format!("{was} is now {now}")), "{was}: {messages}");
        }
    }
}

#[test]
fn the_former_call_is_warned_of() {
    let program = |name| {
        format!(
            "#include <sluice.h>\nint f(struct sluice_poller *p, struct sluice_queue *q);\n\
             int f(struct sluice_poller *p, struct sluice_queue *q) {{ return {name}(p, q); }}\n"
        )
    };
    for (compiler, language) in [("cc", "c"), ("c++", "c++")] {
        let (valid, messages) = compile(compiler, language, &program("sluice_poller_unwatch"));
        assert!(valid && messages.is_empty(), "{messages}");
        let (valid, messages) = compile(compiler, language, &program("sluice_poller_forget"));
        assert!(valid && messages.contains("deprecated"), "{messages}");
    }
}

#[test]
#[expect(deprecated, reason = "the former name is what is tested")]
fn the_former_call_ends_a_watch() {
    let stand = Stand::new();
    let (mut queue, mut poller) = (null_mut(), null_mut());
    let shared = options!(sluice_queue_options { flags: SLUICE_QUEUE_SHARED });
    ok!(sluice_queue_create(stand.device, &shared, &mut queue));
    ok!(sluice_poller_create(stand.device, null(), &mut poller));
    expect!(sluice_poller_forget(poller, queue), EBUSY, "does not watch");
    ok!(sluice_poller_watch(poller, queue));
    ok!(sluice_poller_forget(poller, queue));
    ok!(sluice_poller_destroy(poller));
    ok!(sluice_queue_destroy(queue));
}
