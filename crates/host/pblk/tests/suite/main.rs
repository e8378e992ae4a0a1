//! pblk in one shard, pblk in several shards, rrpc, and rules over pblk: behavior, failures, aging media, and oracles.

mod aging;
mod atomic_writes;
mod managed_drives;
mod open_pblk;
mod real;
mod rrpc;
mod sharded;
mod single_shard;
mod target_rules;
