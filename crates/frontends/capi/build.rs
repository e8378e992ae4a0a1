//! The name that programs linked with the shared library look it up by: that of its first version that
//! they may not find replaced by an incompatible one (ELF gABI, `DT_SONAME`).

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libsluice.so.0");
}
