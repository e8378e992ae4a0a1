//! Checks of the repository's own sources: structure, names, prose, citations, links and dependencies.
//!
//! `tests/suite/repository.rs` runs every check of [`checks::CHECKS`] and compares the result with
//! `ratchets.toml`. A result above its ratchet fails the test, and so does a result below it, so that a
//! ratchet never permits more than the tree contains. Settings are in `lint.toml`, banned words in
//! `banned.toml`.
//!
//! * `SLUICE_LINT_UPDATE=1 cargo test -p sluice-lint` lowers ratchets to today's results.
//! * `SLUICE_LINT_UPDATE=move cargo test -p sluice-lint` also accepts new entries of a check, as long as
//!   the sum of all its entries does not grow. Use it after renaming or splitting a crate, type or file.

#![forbid(unsafe_code)]

pub mod checks;
pub mod config;
pub mod lexer;
pub mod markdown;
pub mod ratchet;
pub mod syntax;
pub mod text_block;
pub mod workspace;
