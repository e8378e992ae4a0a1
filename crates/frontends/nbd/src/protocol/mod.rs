//! The protocol: negotiation, requests, replies, and their encoding.

pub(crate) mod command;
pub(crate) mod handshake;
pub(crate) mod reply;
pub(crate) mod wire;
