//! Jobs on keys: YCSB and fio's patterns on a key-value target over an emulated drive in virtual
//! time.

mod errors;
mod harness;
mod mixes;
mod options;
mod patterns;
mod properties;
mod verify;
