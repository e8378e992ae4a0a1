//! The programs of `demo/rules` and the templates on the engine.

mod btree;
pub(crate) mod compiled;
mod drive;
mod join;
mod nameless;
mod page;
