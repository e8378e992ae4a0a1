//! The maps: logical to physical (L2P), physical to logical (P2L), and translation pages on flash.

pub(crate) mod cache;
pub(crate) mod l2p;
pub(crate) mod p2l;
pub(crate) mod p2l_reader;
pub(crate) mod reconcile;
pub(crate) mod translation_page;
