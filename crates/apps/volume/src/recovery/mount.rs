//! [`Mount`]: opens a volume.
//!
//! All metadata is read and checked; nothing is written if it is damaged. Then journaled data is
//! written in place, followed by a snapshot that includes the journal, and superblocks that name
//! the snapshot and the owner. The volume is ready after that. A power cut before that point leaves
//! the files unchanged.

use block::BlockDevice;
use time::Nanos;

use crate::on_media::superblock::Superblock;
use crate::pipeline::{Core, StartState};
use crate::recovery::metadata_reader::{LoadedMetadata, MetadataReader};
use crate::recovery::replay::{JournalReplay, ReplayedVolume};
use crate::{Options, Owner, Volume, VolumeOpenError};

/// A volume being opened: poll it until it is ready.
#[derive(Debug)]
pub struct Mount<D> {
    options: Options,
    state: MountState<D>,
}

#[derive(Debug)]
enum MountState<D> {
    Loading(Box<MetadataReader>, D),
    Replaying(Box<JournalReplay>, D),
    FirstCheckpoint(Box<Volume<D>>),
    Finished,
}

/// Progress of a mount.
#[derive(Debug)]
pub enum MountStatus<D> {
    /// In progress.
    Pending,
    /// The open volume.
    Ready(Box<Volume<D>>),
}

/// Returns an owner that prevents opening the volume.
pub(crate) fn conflicting_owner(superblock: &Superblock, options: &Options) -> Option<Owner> {
    let Owner { boot, .. } = options.owner;
    superblock
        .owner
        .filter(|o| o.boot == boot && *o != options.owner && Some(*o) != options.take_over)
}

impl<D: BlockDevice> Mount<D> {
    /// Starts to open the volume on `device`, which must have no other user meanwhile.
    ///
    /// # Errors
    /// [`VolumeOpenError::Unfit`] for invalid options, [`VolumeOpenError::Memory`].
    pub fn new(device: D, options: Options) -> Result<Mount<D>, VolumeOpenError> {
        options.check()?;
        let loader = Box::new(MetadataReader::new(&device, false)?);
        Ok(Mount { options, state: MountState::Loading(loader, device) })
    }

    /// Advances the mount.
    ///
    /// # Errors
    /// [`VolumeOpenError`]. Nothing was written, unless it is [`VolumeOpenError::Io`] of a write.
    pub fn poll(&mut self, now: Nanos) -> Result<MountStatus<D>, VolumeOpenError> {
        match std::mem::replace(&mut self.state, MountState::Finished) {
            MountState::Loading(mut loader, mut device) => {
                let result = loader.poll(&mut device, now);
                if let Some(owner) =
                    loader.known_superblock().and_then(|s| conflicting_owner(s, &self.options))
                {
                    return Err(VolumeOpenError::InUse { owner });
                }
                match result {
                    None => self.state = MountState::Loading(loader, device),
                    Some(loaded) => {
                        let replay = JournalReplay::new(&device, loaded?, self.options.read_only)?;
                        self.state = MountState::Replaying(Box::new(replay), device);
                    }
                }
                Ok(MountStatus::Pending)
            }
            MountState::Replaying(mut replay, mut device) => {
                match replay.poll(&mut device, now) {
                    None => self.state = MountState::Replaying(replay, device),
                    Some(replayed) => {
                        let store = start_volume(device, self.options, replayed?, now)?;
                        if self.options.read_only {
                            return Ok(MountStatus::Ready(Box::new(store)));
                        }
                        self.state = MountState::FirstCheckpoint(Box::new(store));
                    }
                }
                Ok(MountStatus::Pending)
            }
            MountState::FirstCheckpoint(mut store) => {
                store.poll_device(now);
                if let Some(status) = store.core.lifecycle().aborted() {
                    return Err(VolumeOpenError::Io { offset: 0, status });
                }
                if store.core.is_checkpoint_idle() {
                    store.core.set_ready(now);
                    return Ok(MountStatus::Ready(store));
                }
                self.state = MountState::FirstCheckpoint(store);
                Ok(MountStatus::Pending)
            }
            MountState::Finished => {
                let what = "this opening has ended".to_owned();
                Err(VolumeOpenError::Unfit { what })
            }
        }
    }

    /// Cancels the mount and returns the device, unless it was returned before.
    pub fn into_device(self) -> Option<D> {
        match self.state {
            MountState::Loading(_, device) | MountState::Replaying(_, device) => Some(device),
            MountState::FirstCheckpoint(store) => Some(store.into_device()),
            MountState::Finished => None,
        }
    }

    /// Returns when it must be polled even without events of the device.
    pub fn deadline(&self) -> Nanos {
        match &self.state {
            MountState::Loading(_, device) | MountState::Replaying(_, device) => device.deadline(),
            MountState::FirstCheckpoint(store) => store.device().deadline(),
            MountState::Finished => Nanos::MAX,
        }
    }

    /// Returns the device, while the mount owns it, to poll the drive behind it.
    pub fn device_mut(&mut self) -> Option<&mut D> {
        match &mut self.state {
            MountState::Loading(_, device) | MountState::Replaying(_, device) => Some(device),
            MountState::FirstCheckpoint(store) => Some(store.device_mut()),
            MountState::Finished => None,
        }
    }
}

/// Creates a volume from loaded metadata, and starts its first checkpoint.
pub(crate) fn start_volume<D: BlockDevice>(
    device: D,
    options: Options,
    replayed: ReplayedVolume,
    now: Nanos,
) -> Result<Volume<D>, VolumeOpenError> {
    let ReplayedVolume { loaded, allocator: space, unwritten_blocks: kept, blocks } = replayed;
    let LoadedMetadata { mut superblock, tree, transactions, sectors, .. } = loaded;
    superblock.journal_seq += sectors;
    superblock.journal_txn += transactions;
    superblock.epoch += u64::from(!options.read_only);
    let (limits, memory) = (*device.limits(), device.memory().clone());
    // Pinned blocks need pages in addition to those configured.
    let frames = options.cache_pages.saturating_add(kept.len() as u32);
    let options = Options { cache_pages: frames, ..options };
    let start = StartState { superblock, tree, allocator: space };
    let mut core = Core::new(options, start, &limits, &memory)?;
    core.set_now(now);
    core.set_recovered(transactions, blocks);
    for whole in &kept {
        core.pin_journaled_block(whole);
    }
    if !options.read_only {
        // The flush of its segments also makes replayed data durable.
        core.begin_checkpoint();
    }
    Ok(Volume { device, core })
}
