//! Values that take several records or whole chunks.

pub(crate) mod large_value;
