//! The journal over a flash that fails, tears units and loses power, checked against an oracle.
//!
//! | file | contents |
//! |---|---|
//! | `flash` | a flash with the rules of NAND, injected failures, and power cuts |
//! | `format` | a second reader of the format, written from `docs/format/journal.md` alone |
//! | `model` | contents that may be found after a power cut |
//! | `oracle` | random owners, failures and power cuts |
//! | `bytes` | changed bytes with correct checksums |
//! | `damage` | flipped bytes, foreign data |
//! | `limits` | capacity, refusals, errors |
//! | `owner_state` | the state that the owner of an FTL keeps in the journal |
//! | `faults` | single faults, one at a time |
//! | `script` | a deterministic owner for `faults` and `damage` |

// guarantee: D-04, D-06

mod bytes;
mod damage;
mod faults;
mod flash;
mod format;
mod limits;
mod model;
mod oracle;
mod owner_state;
mod script;
