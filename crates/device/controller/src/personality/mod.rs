//! Personalities: the execution of I/O commands, by kind of drive.

pub(crate) mod block;
pub(crate) mod device_l2p;
pub(crate) mod null;
pub(crate) mod open_channel;
pub(crate) mod pcm;
mod recovery;
mod spare;
