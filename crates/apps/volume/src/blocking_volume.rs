//! [`BlockingVolume`]: a volume that waits for each request, for tools and tests; and blocking transfers, for
//! making a volume.

use std::sync::Arc;

use block::{BlockDevice, Op as DeviceOp};
use mem::{Iova, SharedRegion};
use nvme::Status;
use time::{Component, Nanos};

use crate::device_io::{DeviceTransfers, SectorRun};
use crate::{
    Error, Ino, InodePermissions, Mount, MountStatus, Name, OpResult, Options, RequestBuffer, Time,
    Volume, VolumeCompletion, VolumeOp, VolumeOpenError, VolumeRequest,
};

/// Bytes of the buffer.
const BUFFER_BYTES: usize = 1 << 20;

/// A volume, and a function that lets time pass. `tick` polls the drive behind the device if
/// necessary, and returns the time.
#[derive(Debug)]
pub struct BlockingVolume<D, F> {
    volume: Volume<D>,
    tick: F,
    region: Arc<SharedRegion>,
    iova: Iova,
    next_id: u64,
    /// Current time for the times of files.
    pub time: Time,
}

impl<D: BlockDevice, F: FnMut(&mut D) -> Nanos> BlockingVolume<D, F> {
    /// Opens the volume on `device`.
    ///
    /// # Errors
    /// [`VolumeOpenError`].
    pub fn open(
        device: D,
        options: Options,
        mut tick: F,
    ) -> Result<BlockingVolume<D, F>, VolumeOpenError> {
        let mut opening = Mount::new(device, options)?;
        let mut now = Nanos::ZERO;
        let store = loop {
            if let MountStatus::Ready(store) = opening.poll(now)? {
                break *store;
            }
            if let Some(device) = opening.device_mut() {
                now = tick(device);
            }
        };
        Ok(BlockingVolume::new(store, tick)?)
    }

    /// Wraps an open volume.
    ///
    /// # Errors
    /// [`mem::RegisterError`].
    pub fn new(store: Volume<D>, tick: F) -> Result<BlockingVolume<D, F>, mem::RegisterError> {
        let (region, at) = store.memory().allocate_registered(BUFFER_BYTES)?;
        Ok(BlockingVolume { volume: store, tick, region, iova: at, next_id: 0, time: Time(0) })
    }

    /// Returns the volume.
    pub fn volume(&self) -> &Volume<D> {
        &self.volume
    }

    /// Returns the volume, mutably.
    pub fn volume_mut(&mut self) -> &mut Volume<D> {
        &mut self.volume
    }

    /// Returns the volume by value.
    pub fn into_volume(self) -> Volume<D> {
        self.volume
    }

    /// Executes one request.
    ///
    /// # Errors
    /// The error of the request.
    pub fn run(&mut self, op: VolumeOp) -> Result<OpResult, Error> {
        self.next_id += 1;
        let request = VolumeRequest { id: self.next_id, op, time: self.time };
        let mut now = (self.tick)(self.volume.device_mut());
        while self.volume.submit(now, request).is_err() {
            self.volume.poll(now);
            now = (self.tick)(self.volume.device_mut());
        }
        loop {
            self.volume.poll(now);
            while let Some(VolumeCompletion { id, result }) = self.volume.reap() {
                if id == self.next_id {
                    return result;
                }
            }
            now = (self.tick)(self.volume.device_mut());
        }
    }

    /// Creates or finds a file.
    ///
    /// # Errors
    /// [`Error`].
    pub fn create(&mut self, dir: Ino, name: &str) -> Result<Ino, Error> {
        let (name, access) =
            (Name::new(name)?, InodePermissions { mode: 0o644, ..InodePermissions::default() });
        self.inode(VolumeOp::Create { dir, name, access, exclusive: false, open: false })
    }

    /// Creates a directory.
    ///
    /// # Errors
    /// [`Error`].
    pub fn make_directory(&mut self, dir: Ino, name: &str) -> Result<Ino, Error> {
        let (name, access) =
            (Name::new(name)?, InodePermissions { mode: 0o755, ..InodePermissions::default() });
        self.inode(VolumeOp::MakeDirectory { dir, name, access })
    }

    fn inode(&mut self, op: VolumeOp) -> Result<Ino, Error> {
        match self.run(op)? {
            OpResult::Inode(ino) => Ok(ino),
            _ => Err(Error::NotFound),
        }
    }

    fn bytes(&mut self, op: VolumeOp) -> Result<usize, Error> {
        match self.run(op)? {
            OpResult::Bytes { len, .. } => Ok(len as usize),
            _ => Ok(0),
        }
    }

    /// Writes all of `bytes`.
    ///
    /// # Errors
    /// [`Error`]; a part may have been written.
    pub fn write(&mut self, ino: Ino, mut offset: u64, mut bytes: &[u8]) -> Result<(), Error> {
        while !bytes.is_empty() {
            let len = bytes.len().min(BUFFER_BYTES);
            self.region.write(0, &bytes[..len]);
            let data = RequestBuffer { iova: self.iova, len: len as u32 };
            let done = self.bytes(VolumeOp::Write { ino, offset, data })?;
            (offset, bytes) = (offset + done as u64, &bytes[done..]);
        }
        Ok(())
    }

    /// Reads into `bytes`; returns the number of bytes read.
    ///
    /// # Errors
    /// [`Error`].
    pub fn read(&mut self, ino: Ino, offset: u64, bytes: &mut [u8]) -> Result<usize, Error> {
        let mut done = 0;
        while done < bytes.len() {
            let len = (bytes.len() - done).min(BUFFER_BYTES);
            let data = RequestBuffer { iova: self.iova, len: len as u32 };
            let got = self.bytes(VolumeOp::Read { ino, offset: offset + done as u64, data })?;
            self.region.read(0, &mut bytes[done..done + got]);
            done += got;
            if got < len {
                break;
            }
        }
        Ok(done)
    }

    /// Reads a whole file.
    ///
    /// # Errors
    /// [`Error`].
    pub fn read_all(&mut self, ino: Ino) -> Result<Vec<u8>, Error> {
        let size = self.volume.stat(ino)?.size;
        let size = usize::try_from(size).map_err(|_| Error::TooLarge)?;
        let mut bytes = vec![0; size];
        let len = self.read(ino, 0, &mut bytes)?;
        bytes.truncate(len);
        Ok(bytes)
    }

    /// Makes a file durable.
    ///
    /// # Errors
    /// [`Error`].
    pub fn sync(&mut self, ino: Ino) -> Result<(), Error> {
        self.run(VolumeOp::Sync { ino, data_only: false }).map(drop)
    }

    /// Orders all later changes after all earlier ones; returns the barrier's number at once.
    ///
    /// # Errors
    /// [`Error`].
    pub fn barrier(&mut self) -> Result<u64, Error> {
        self.run(VolumeOp::Barrier)?;
        Ok(self.volume.last_barrier())
    }

    /// Waits until a barrier is durable.
    ///
    /// # Errors
    /// [`Error`].
    pub fn await_barrier(&mut self, barrier: u64) -> Result<(), Error> {
        self.run(VolumeOp::AwaitBarrier { barrier }).map(drop)
    }

    /// Closes the volume cleanly, and returns the device.
    ///
    /// # Errors
    /// [`Error`]; the device is dropped in that case.
    pub fn close(mut self) -> Result<D, Error> {
        self.run(VolumeOp::Close)?;
        Ok(self.volume.into_device())
    }
}

/// Sequential transfers from and to a buffer.
pub(crate) struct BlockingTransfers<'a, D, F> {
    pub(crate) device: &'a mut D,
    pub(crate) tick: &'a mut F,
    pub(crate) region: Arc<SharedRegion>,
    pub(crate) iova: Iova,
    transfers: DeviceTransfers<()>,
}

impl<'a, D: BlockDevice, F: FnMut(&mut D) -> Nanos> BlockingTransfers<'a, D, F> {
    pub(crate) fn new(
        device: &'a mut D,
        tick: &'a mut F,
        bytes: usize,
    ) -> Result<Self, VolumeOpenError> {
        let (region, at) = device.memory().allocate_registered(bytes)?;
        let flights = DeviceTransfers::new(device.limits());
        Ok(BlockingTransfers { device, tick, region, iova: at, transfers: flights })
    }

    /// Executes one transfer.
    pub(crate) fn run(
        &mut self,
        op: DeviceOp,
        lba: u64,
        sectors: u64,
    ) -> Result<(), VolumeOpenError> {
        match op {
            DeviceOp::Flush => self.transfers.submit_flush(()),
            _ => {
                self.transfers.submit_sectors((), op, SectorRun { lba, sectors }, self.iova, false)
            }
        }
        let offset = lba * u64::from(self.device.limits().sector_bytes);
        let mut now = (self.tick)(self.device);
        loop {
            self.transfers.send(self.device, now);
            self.device.poll(now);
            while let Some(completion) = self.device.reap() {
                match self.transfers.on_completion(&completion) {
                    Some(((), status)) if status.is_success() => return Ok(()),
                    Some(((), status)) => return Err(io_error(offset, status)),
                    None => {}
                }
            }
            now = (self.tick)(self.device);
        }
    }
}

fn io_error(offset: u64, status: Status) -> VolumeOpenError {
    VolumeOpenError::Io { offset, status }
}
