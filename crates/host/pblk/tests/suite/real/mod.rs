//! pblk on the emulated drive with its media: failures, and problems that users of the kernel's
//! pblk encountered.

mod errors;
mod harness;
mod health;
mod known;
mod matrix;
