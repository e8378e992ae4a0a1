//! pblk on the emulated drive with its media: failures, and problems that users of the kernel's
//! pblk encountered.

mod bench;
mod errors;
mod health;
mod known;
mod matrix;
