//! Transactions for the health of the flash.

mod finish_line;
mod refresh;
