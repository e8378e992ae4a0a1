//! The atomics of the block layer: those of the model checker under `--cfg loom`.

#[cfg(loom)]
pub(crate) use loom::sync::atomic;
#[cfg(not(loom))]
pub(crate) use std::sync::atomic;

pub(crate) use platform::{Lock, Native, Platform, Step, ThreadPlatform};
