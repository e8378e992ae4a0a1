//! pblk in one shard: behavior, controls, and random requests compared with an oracle.

mod behavior;
mod control;
mod oracle;
