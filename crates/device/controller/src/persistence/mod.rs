//! Where the state of a drive outlives its power or its process: the drive after a power cut, files
//! beside its image, and the state that is saved.

pub(crate) mod nonvolatile;
pub(crate) mod power;
pub(crate) mod saved_state;
pub(crate) mod sidecar;
