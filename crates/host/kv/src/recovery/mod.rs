//! Recovery at power-on.

mod open;
pub(crate) mod power_on_scan;
pub(crate) mod recovered_chunk;
pub(crate) mod scan;
