//! Registers, and the admin side of a controller, as a host sees them.

mod admin_fields;
mod registers;
