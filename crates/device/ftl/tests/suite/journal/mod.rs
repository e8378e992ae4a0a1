//! The journal against a flash that fails, tears and forgets, and against an oracle.
//!
//! | file | noun |
//! |---|---|
//! | `flash` | the flash: rules of NAND, failures on cue, power cuts |
//! | `format` | a second reader of the format, written from `docs/format/journal.md` alone |
//! | `model` | what may be found after a power cut |
//! | `oracle` | random owners, failures and power cuts |
//! | `bytes` | changed bytes with correct checksums |
//! | `damage` | flipped bytes, foreign data |
//! | `limits` | capacity, refusals, errors |
//! | `faults` | single faults, one at a time |
//! | `script` | an owner that does the same each time, for them |

// guarantee: D-04, D-06

mod bytes;
mod damage;
mod faults;
mod flash;
mod format;
mod limits;
mod model;
mod oracle;
mod script;
