//! [`OpenPblk`]: opens the test drive as pblk, in one shard or several.

use ftl::{FtlConfig, Lba, Oob};
use pblk::{Pblk, PblkError, Sharded, ShardedConfig, ShardedError};
use testkit::open_channel_drive::MockOpenChannelDrive;

pub(crate) trait OpenPblk {
    /// Opens the drive as a sharded device through a new port, with a queue pair per shard.
    fn open_sharded(&mut self, config: ShardedConfig, depth: u16) -> Result<Sharded, ShardedError>;

    /// Opens the drive through a new port.
    fn open(&mut self, config: FtlConfig, depth: u16) -> Result<Pblk, PblkError>;

    /// Returns every copy of a logical sector on the media, readable or not, for panic messages.
    fn copies(&self, lba: u32) -> String;
}

impl OpenPblk for MockOpenChannelDrive {
    fn open_sharded(&mut self, config: ShardedConfig, depth: u16) -> Result<Sharded, ShardedError> {
        let (port, queues) = self.connect_many(depth, config.shards.clamp(1, 40) as u16);
        let (info, chunks, keeps) = (self.info(), self.descriptors(), self.stores_data());
        Sharded::open(&info, &chunks, queues, port, config, &mut || self.progress(), keeps)
    }

    fn open(&mut self, config: FtlConfig, depth: u16) -> Result<Pblk, PblkError> {
        let (port, queue) = self.connect(depth);
        let (info, chunks, keeps) = (self.info(), self.descriptors(), self.stores_data());
        Pblk::open(&info, &chunks, queue, port, config, &mut || self.progress(), keeps)
    }

    fn copies(&self, lba: u32) -> String {
        let has_lba = |o: &Oob| o.lba == Some(Lba(lba));
        self.list_sectors(|bytes| Oob::decode(bytes).filter(has_lba).map(|o| format!("{o:?}")))
    }
}
