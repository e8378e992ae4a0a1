//! Registers, and the admin side of a controller, as a host sees them.

mod admin_fields;
pub(crate) mod events;
mod region;
mod registers;
