//! Compiles the plugin, which the library has as bytes, with the system's C compiler. The linker of
//! Rust programs is that of the C compiler, so that every machine that builds Sluice has it.

use std::path::PathBuf;
use std::process::Command;
use std::{env, fs};

const SOURCE: &str = "plugin/speculation.c";

fn main() {
    println!("cargo:rerun-if-changed={SOURCE}");
    println!("cargo:rerun-if-env-changed=CC");
    let plugin = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets it")).join("plugin.so");
    let target = |name: &str| env::var(name).unwrap_or_default();
    if target("CARGO_CFG_TARGET_ARCH") != "x86_64" || target("CARGO_CFG_TARGET_OS") != "linux" {
        // Empty: the library returns `ProgramProfileError::OtherHost`.
        fs::write(&plugin, []).expect("the output folder can be written");
        return;
    }
    let compiler = env::var_os("CC").unwrap_or_else(|| "cc".into());
    let status = Command::new(&compiler)
        .args(["-std=gnu11", "-O2", "-shared", "-fPIC", "-fvisibility=hidden", "-pthread", "-o"])
        .arg(&plugin)
        .arg(SOURCE)
        .status();
    match status {
        Ok(status) if status.success() => {}
        Ok(status) => panic!("{}: {SOURCE} cannot be compiled: {status}", compiler.display()),
        Err(error) => panic!("{} (a C compiler, or `CC`): {error}", compiler.display()),
    }
}
