//! [`Opening`]: a volume on its way to being a [`Store`].
//!
//! Everything is read and checked, and nothing written if anything is wrong. Then a snapshot is written
//! that takes the journal in, and superblocks that name it and the owner: from then on the store is
//! ready. A power cut before leaves the volume as it was.

use block::Device;
use clock::Nanos;

use crate::core::Core;
use crate::loading::{Loaded, Loader};
use crate::space::Space;
use crate::superblock::Superblock;
use crate::{BLOCK, Ino, OpenError, Options, Owner, Store};

/// A volume that is being opened: poll it until it is ready.
#[derive(Debug)]
pub struct Opening<D> {
    options: Options,
    state: State<D>,
}

#[derive(Debug)]
enum State<D> {
    Loading(Box<Loader>, D),
    First(Box<Store<D>>),
    Over,
}

/// How far it has come.
#[derive(Debug)]
pub enum Opened<D> {
    /// Not yet.
    Opening,
    /// The store.
    Ready(Box<Store<D>>),
}

/// Whether a mark of somebody else stands in the way.
pub(crate) fn in_use(superblock: &Superblock, options: &Options) -> Option<Owner> {
    let Owner { boot, .. } = options.owner;
    superblock
        .owner
        .filter(|o| o.boot == boot && *o != options.owner && Some(*o) != options.take_over)
}

impl<D: Device> Opening<D> {
    /// Begins to open the volume on `device`, with which nobody else does anything meanwhile.
    ///
    /// # Errors
    /// [`OpenError::Unfit`] for options that cannot be, [`OpenError::Memory`].
    pub fn new(device: D, options: Options) -> Result<Opening<D>, OpenError> {
        options.check()?;
        let loader = Box::new(Loader::new(&device, false)?);
        Ok(Opening { options, state: State::Loading(loader, device) })
    }

    /// Goes on.
    ///
    /// # Errors
    /// [`OpenError`]. Nothing was written, unless it is [`OpenError::Io`] of a write.
    pub fn poll(&mut self, now: Nanos) -> Result<Opened<D>, OpenError> {
        match std::mem::replace(&mut self.state, State::Over) {
            State::Loading(mut loader, mut device) => {
                let result = loader.poll(&mut device, now);
                if let Some(owner) = loader.known().and_then(|s| in_use(s, &self.options)) {
                    return Err(OpenError::InUse { owner });
                }
                match result {
                    None => self.state = State::Loading(loader, device),
                    Some(loaded) => {
                        let store = begin(device, self.options, loaded?, now)?;
                        if self.options.read_only {
                            return Ok(Opened::Ready(Box::new(store)));
                        }
                        self.state = State::First(Box::new(store));
                    }
                }
                Ok(Opened::Opening)
            }
            State::First(mut store) => {
                store.poll_device(now);
                if let Some(status) = store.core.wedged {
                    return Err(OpenError::Io { offset: 0, status });
                }
                if store.core.checkpoint.is_idle() {
                    store.core.stats.ready_at = now;
                    return Ok(Opened::Ready(store));
                }
                self.state = State::First(store);
                Ok(Opened::Opening)
            }
            State::Over => {
                let what = "this opening has ended".to_owned();
                Err(OpenError::Unfit { what })
            }
        }
    }

    /// Gives up, and gives the device back, unless it has been given back before.
    pub fn into_device(self) -> Option<D> {
        match self.state {
            State::Loading(_, device) => Some(device),
            State::First(store) => Some(store.into_device()),
            State::Over => None,
        }
    }

    /// When it must be polled even if the device does not move.
    pub fn deadline(&self) -> Nanos {
        match &self.state {
            State::Loading(_, device) => device.deadline(),
            State::First(store) => store.device().deadline(),
            State::Over => Nanos::MAX,
        }
    }

    /// The device, as long as this has it: to poll what is behind it.
    pub fn device_mut(&mut self) -> Option<&mut D> {
        match &mut self.state {
            State::Loading(_, device) => Some(device),
            State::First(store) => Some(store.device_mut()),
            State::Over => None,
        }
    }
}

/// A store of what was read, which begins with a checkpoint.
pub(crate) fn begin<D: Device>(
    device: D,
    options: Options,
    loaded: Loaded,
    now: Nanos,
) -> Result<Store<D>, OpenError> {
    let Loaded { mut superblock, mut tree, transactions, sectors, .. } = loaded;
    superblock.journal_seq += sectors;
    superblock.journal_txn += transactions;
    superblock.epoch += u64::from(!options.read_only);
    // Whoever had them open is gone.
    let orphans: Vec<Ino> = tree.iter().filter(|(_, n)| n.links == 0).map(|(i, _)| i).collect();
    for ino in orphans {
        tree.remove(ino);
    }
    // What was written, but never became part of its file.
    let sizes: Vec<(Ino, u32)> =
        tree.iter().map(|(ino, n)| (ino, n.size.div_ceil(BLOCK as u64) as u32)).collect();
    for (ino, end) in sizes {
        let Some(node) = tree.find(ino) else { continue };
        let beyond: Vec<_> = node.extents.from(end).filter(|e| e.written).collect();
        for extent in beyond {
            tree.unmap(ino, extent.at, extent.count, |_, _| {});
        }
    }
    let mut used: Vec<(u32, u32)> =
        tree.iter().flat_map(|(_, n)| n.extents.iter().map(|e| (e.phys, e.count))).collect();
    used.sort_unstable();
    let layout = superblock.layout;
    let space = Space::new(layout.data(), layout.second(), &used);
    let (limits, memory) = (*device.limits(), device.memory().clone());
    let mut core = Core::new(options, superblock, (tree, space), &limits, &memory)?;
    core.now = now;
    core.stats.recovered = transactions;
    if !options.read_only {
        core.begin_checkpoint();
    }
    Ok(Store { device, core })
}
