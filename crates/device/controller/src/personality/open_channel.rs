//! The open-channel personality: physical addresses; the host manages the flash ([LightNVM17 §3],
//! [OC20 §4]).
//!
//! The drive checks a write when it accepts it, against the writes accepted before. The media check
//! it again when they program it (ARCHITECTURE.md, R5). An address in a hole of the address format
//! fails like any other address, with its own status bit.

use std::ops::Range;

use media::{ChunkId, ChunkState, DataStore, PhysSector};
use nvme::{
    Address, ChunkDescriptor, DeviceL2pLog, Geometry, IoCommand, Ppa, PpaFormat, PpaList, Status,
    VectorHints, log_page,
};
use serde::{Deserialize, Serialize};
use time::Nanos;

use crate::command::table::Commands;
use crate::nand_array::operation::SectorAddress;
use crate::nand_array::{NandArray, NandOpCompletion, NandOpKind, OpOwner};
use crate::personality::device_l2p::DeviceL2pTable;

/// Maximum number of sectors in a command by logical block address, which executes as a vector.
const MAX_SECTORS: u32 = 64;

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct OpenChannelDrive {
    pub(crate) array: NandArray,
    pub(crate) geometry: Geometry,
    pub(crate) format: PpaFormat,
    /// The device L2P, if the drive keeps one.
    pub(crate) device_l2p: Option<DeviceL2pTable>,
    /// Sectors accepted for writing, per chunk.
    accepted: Vec<u32>,
    stores_data: bool,
    scratch: Vec<u8>,
    /// Parallel units that the command being started may access; empty for all.
    allowed_pus: Range<u32>,
}

impl OpenChannelDrive {
    pub(crate) fn new(
        array: NandArray,
        map: Option<DeviceL2pTable>,
    ) -> Result<OpenChannelDrive, nvme::GeometryError> {
        let geometry = array.nand.config().host_geometry();
        let format = PpaFormat::from_geometry(&geometry)?;
        let accepted = array.nand.chunks().map(|(_, info)| info.write_pointer).collect();
        let keeps = array.nand.config().data != DataStore::None;
        let (scratch, allowed) = (Vec::new(), 0..0);
        Ok(OpenChannelDrive {
            array,
            geometry,
            format,
            device_l2p: map,
            accepted,
            stores_data: keeps,
            scratch,
            allowed_pus: allowed,
        })
    }

    /// Returns the address of a sector in the host's format.
    pub(crate) fn ppa(&self, phys: PhysSector) -> Ppa {
        self.format.pack(self.array.nand.layout().address(phys))
    }

    /// Returns the parallel unit of the n-th chunk, in address order.
    pub(crate) fn pu_of_chunk(&self, chunk: u64) -> u32 {
        (chunk / u64::from(self.geometry.chunks)) as u32
    }

    /// Returns the chunk log's descriptor of the n-th chunk, in address order.
    pub(crate) fn descriptor(&self, chunk: u64) -> ChunkDescriptor {
        let mut d = ChunkDescriptor::default();
        let Some(info) = self.array.nand.chunk_info(ChunkId(chunk as u32)) else { return d };
        let first = self.array.nand.layout().phys(ChunkId(chunk as u32), 0);
        let address = self.array.nand.layout().address(first);
        let cycles = self.array.nand.config().errors.endurance;
        let rated = if cycles > 0 { cycles } else { self.array.nand.config().cell.rated_cycles() };
        d.state = info.state.to_bits();
        d.kind = ChunkDescriptor::SEQUENTIAL;
        // Wear relative to the rating, rounded up so that any wear is visible.
        let wear = (u64::from(info.wear) * 255).div_ceil(u64::from(rated.max(1)));
        d.wear_index = wear.min(255) as u8;
        d.slba = self.format.pack(address).0.into();
        d.cnlb = u64::from(self.geometry.sectors).into();
        d.wp = u64::from(info.write_pointer).into();
        d
    }

    /// Returns the device L2P entry of a logical address, in the format of the log page.
    pub(crate) fn l2p_entry(&self, lba: u32) -> u64 {
        let phys = self.device_l2p.as_ref().and_then(|map| map.lookup(lba));
        phys.map_or(log_page::UNMAPPED, |phys| self.ppa(phys).0)
    }

    /// Returns the counters of the device L2P, in the format of the log page.
    pub(crate) fn l2p_totals(&self) -> DeviceL2pLog {
        self.device_l2p.as_ref().map_or(DeviceL2pLog::default(), |map| map.totals(&self.array.nand))
    }

    /// Resolves a physical address of a command: it must exist, on a parallel unit of the host.
    fn address(&self, ppa: Ppa) -> Option<Address> {
        let address = self.geometry.address(&self.format, ppa).ok()?;
        let pu = address.group * self.geometry.pus + address.pu;
        (self.allowed_pus.is_empty() || self.allowed_pus.contains(&pu)).then_some(address)
    }

    /// Starts a command of a host that may access the parallel units `pus`, or all if that is
    /// empty.
    pub(crate) fn start(
        &mut self,
        now: Nanos,
        id: u32,
        commands: &mut Commands,
        pus: Option<&Range<u32>>,
    ) {
        self.allowed_pus = pus.cloned().unwrap_or(0..0);
        let io = commands.get(id).io;
        if let Some(planes) = io.hints().planes.planes()
            && planes > self.array.nand.config().geometry.planes
        {
            commands.get_mut(id).location = VectorHints::ERROR_LOCATION;
            return commands.complete(id, Status::INVALID_FIELD.do_not_retry());
        }
        let result = match io {
            IoCommand::Flush => {
                // Nothing is cached: a completed write is programmed.
                commands.complete(id, Status::SUCCESS);
                return;
            }
            IoCommand::Read { slba, nlb, .. } => self
                .resolve_run(id, slba, nlb, commands)
                .and_then(|()| self.read(now, id, commands)),
            IoCommand::Write { slba, nlb, .. } => self
                .resolve_run(id, slba, nlb, commands)
                .and_then(|()| self.write(now, id, commands)),
            IoCommand::VectorRead { addresses, .. } => self
                .resolve(id, addresses, commands, false)
                .and_then(|()| self.read(now, id, commands)),
            IoCommand::VectorWrite { addresses, .. } => self
                .resolve(id, addresses, commands, false)
                .and_then(|()| self.write(now, id, commands)),
            IoCommand::VectorReset { addresses, .. } => self
                .resolve(id, addresses, commands, false)
                .and_then(|()| self.reset(now, id, commands)),
            IoCommand::VectorCopy { from, to, .. } => self
                .resolve(id, to, commands, true)
                .and_then(|()| self.resolve(id, from, commands, false))
                .and_then(|()| self.check_writes(id, true, commands))
                .and_then(|()| self.read(now, id, commands)),
            IoCommand::DatasetManagement { deallocate, .. } => {
                self.reset_ranges(now, id, deallocate, commands)
            }
            IoCommand::DeviceTrim { sequence, .. } => self.device_trim(id, sequence, commands),
            IoCommand::WriteZeroes { .. }
            | IoCommand::Compare { .. }
            | IoCommand::Verify { .. }
            | IoCommand::WriteUncorrectable { .. }
            | IoCommand::Copy { .. }
            | IoCommand::LbaStatus { .. }
            | IoCommand::Rule(_)
            | IoCommand::Named(_) => Err((Status::INVALID_OPCODE, 0)),
        };
        if let Err((status, failed)) = result {
            commands.get_mut(id).result = failed;
            commands.complete(id, status);
        }
    }

    /// Resolves the addresses of a vector command. Sets the status bits of invalid addresses.
    fn resolve(
        &self,
        id: u32,
        list: PpaList,
        commands: &mut Commands,
        target: bool,
    ) -> Result<(), (Status, u64)> {
        let command = commands.get_mut(id);
        let mut phys_sectors = std::mem::take(if target {
            &mut command.target_sectors
        } else {
            &mut command.source_sectors
        });
        phys_sectors.clear();
        let mut failed = 0;
        for i in 0..list.count() {
            let ppa = match list {
                PpaList::One(ppa) => ppa,
                PpaList::List { at, .. } => {
                    let mut word = [0; 8];
                    let at = mem::Iova(at).offset(u64::from(i) * 8);
                    command
                        .port
                        .memory()
                        .read(at, &mut word)
                        .map_err(|_| (Status::DATA_TRANSFER_ERROR, 0))?;
                    Ppa(u64::from_le_bytes(word))
                }
            };
            match self.address(ppa) {
                Some(address) => phys_sectors.push(self.array.nand.layout().phys_at(address).0),
                None => failed |= 1 << i,
            }
        }
        if target {
            command.target_sectors = phys_sectors;
        } else {
            command.source_sectors = phys_sectors;
        }
        if failed == 0 { Ok(()) } else { Err((Status::LBA_OUT_OF_RANGE, failed)) }
    }

    /// Resolves a range of sectors in one chunk, given by logical block address.
    fn resolve_run(
        &self,
        id: u32,
        slba: u64,
        nlb: u32,
        commands: &mut Commands,
    ) -> Result<(), (Status, u64)> {
        let address = self.address(Ppa(slba)).ok_or((Status::LBA_OUT_OF_RANGE, 1))?;
        if nlb > MAX_SECTORS {
            return Err((Status::INVALID_FIELD, 0));
        }
        if address.sector + nlb > self.geometry.sectors {
            return Err((Status::LBA_OUT_OF_RANGE, 0));
        }
        let first = self.array.nand.layout().phys_at(address).0;
        let phys_sectors = &mut commands.get_mut(id).source_sectors;
        phys_sectors.clear();
        phys_sectors.extend(first..first + nlb);
        Ok(())
    }

    fn read(&mut self, now: Nanos, id: u32, commands: &mut Commands) -> Result<(), (Status, u64)> {
        let command = commands.get_mut(id);
        command.ops_left = 1;
        let sectors = command.source_sectors.iter().enumerate();
        let addresses =
            sectors.map(|(i, &phys)| SectorAddress { phys: PhysSector(phys), position: i as u32 });
        self.array.read(now, OpOwner::Command(id), command.io.hints(), addresses);
        Ok(())
    }

    /// Checks that the addresses are whole write units, each at the accepted write pointer of its
    /// chunk, and accepts them.
    fn check_writes(
        &mut self,
        id: u32,
        copy: bool,
        commands: &Commands,
    ) -> Result<(), (Status, u64)> {
        let command = commands.get(id);
        let phys_sectors = if copy { &command.target_sectors } else { &command.source_sectors };
        let unit = self.geometry.ws_min as usize;
        if !phys_sectors.len().is_multiple_of(unit) {
            return Err((Status::INVALID_FIELD, 0));
        }
        let layout = *self.array.nand.layout();
        let undo = |accepted: &mut [u32], until: usize| {
            for first in phys_sectors[..until].iter().step_by(unit) {
                let (chunk, sector) = layout.split(PhysSector(*first));
                accepted[chunk.0 as usize] = accepted[chunk.0 as usize].min(sector);
            }
        };
        for (i, run) in phys_sectors.chunks_exact(unit).enumerate() {
            let (chunk, sector) = layout.split(PhysSector(run[0]));
            let bits = (u64::MAX >> (64 - unit)) << (i * unit);
            let state = self.array.nand.chunk_info(chunk).map(|c| c.state);
            let status = match state {
                Some(ChunkState::Offline) | None => Status::OFFLINE_CHUNK,
                _ if self.accepted[chunk.0 as usize] != sector => Status::OUT_OF_ORDER_WRITE,
                _ if !run.windows(2).all(|w| w[0] + 1 == w[1]) => Status::OUT_OF_ORDER_WRITE,
                _ if sector + unit as u32 > self.geometry.sectors => Status::LBA_OUT_OF_RANGE,
                _ => {
                    self.accepted[chunk.0 as usize] += unit as u32;
                    continue;
                }
            };
            undo(&mut self.accepted, i * unit);
            return Err((status, bits));
        }
        Ok(())
    }

    fn write(&mut self, now: Nanos, id: u32, commands: &mut Commands) -> Result<(), (Status, u64)> {
        self.check_writes(id, false, commands)?;
        self.program(now, id, commands, false);
        Ok(())
    }

    /// Stages and programs accepted units.
    fn program(&mut self, now: Nanos, id: u32, commands: &mut Commands, copy: bool) {
        let unit = self.geometry.ws_min as usize;
        let command = commands.get_mut(id);
        let hints = command.io.hints();
        let phys_sectors = std::mem::take(if copy {
            &mut command.target_sectors
        } else {
            &mut command.source_sectors
        });
        command.ops_left = (phys_sectors.len() / unit) as u32;
        let layout = *self.array.nand.layout();
        for (u, run) in phys_sectors.chunks_exact(unit).enumerate() {
            let (chunk, sector) = layout.split(PhysSector(run[0]));
            let staged = (0..unit).try_for_each(|i| match (self.stores_data, copy) {
                (false, _) => Ok(()),
                (true, false) => self.stage(commands, id, u * unit + i, run[i]),
                (true, true) => {
                    let from = commands.get(id).source_sectors[u * unit + i];
                    let to = PhysSector(run[i]);
                    let staged = self.array.nand.stage_copy(PhysSector(from), to);
                    staged.and_then(|()| self.stage_oob(commands, id, u * unit + i, to))
                }
            });
            let owner = OpOwner::Command(id);
            match staged {
                Ok(()) => self.array.program(now, owner, hints, chunk.0, sector),
                Err(e) => self.array.fail(owner, NandOpKind::Program, e.status()),
            }
            self.array.set_last_unit(u as u32);
        }
        let command = commands.get_mut(id);
        if copy {
            command.target_sectors = phys_sectors;
        } else {
            command.source_sectors = phys_sectors;
        }
    }

    /// Copies a sector and its out-of-band bytes from the host to the media.
    fn stage(
        &mut self,
        commands: &Commands,
        id: u32,
        index: usize,
        phys: u32,
    ) -> Result<(), media::MediaError> {
        let command = commands.get(id);
        let (size, oob) = (self.geometry.sector_bytes as usize, self.geometry.oob_bytes as usize);
        let memory = command.port.memory();
        let mut result = Ok(());
        let mut whole = false;
        command.data_buffer.for_each_segment(
            memory,
            (index * size) as u64,
            size,
            |region, at, _, n| {
                if n == size {
                    whole = true;
                    result = self.array.nand.stage(PhysSector(phys), region, at);
                }
            },
        );
        result?;
        if !whole {
            self.scratch.clear();
            self.scratch.resize(size, 0);
            command.data_buffer.read(memory, (index * size) as u64, &mut self.scratch);
            self.array.nand.stage_bytes(PhysSector(phys), &self.scratch)?;
        }
        if oob > 0 && command.metadata == 0 {
            self.scratch.clear();
            self.scratch.resize(oob, 0);
            return self.array.nand.set_oob(PhysSector(phys), &self.scratch);
        }
        self.stage_oob(commands, id, index, PhysSector(phys))
    }

    /// Copies the out-of-band bytes of a command's sector from the host to the media, if the command
    /// has any.
    fn stage_oob(
        &mut self,
        commands: &Commands,
        id: u32,
        index: usize,
        phys: PhysSector,
    ) -> Result<(), media::MediaError> {
        let (command, oob) = (commands.get(id), self.geometry.oob_bytes as usize);
        if oob == 0 || command.metadata == 0 {
            return Ok(());
        }
        self.scratch.clear();
        self.scratch.resize(oob, 0);
        let at = mem::Iova(command.metadata).offset((index * oob) as u64);
        // The range was checked when the command was fetched.
        let _ = command.port.memory().read(at, &mut self.scratch);
        self.array.nand.set_oob(phys, &self.scratch)
    }

    fn reset(&mut self, now: Nanos, id: u32, commands: &mut Commands) -> Result<(), (Status, u64)> {
        let command = commands.get_mut(id);
        let layout = *self.array.nand.layout();
        for (i, phys) in command.source_sectors.iter().enumerate() {
            let chunk = layout.chunk_of(PhysSector(*phys));
            let info = self.array.nand.chunk_info(chunk);
            if info.is_none_or(|c| c.state == ChunkState::Offline) {
                return Err((Status::OFFLINE_CHUNK, 1 << i));
            }
            if command.source_sectors[..i].iter().any(|p| layout.chunk_of(PhysSector(*p)) == chunk)
            {
                return Err((Status::INVALID_RESET, 1 << i));
            }
        }
        command.ops_left = command.source_sectors.len() as u32;
        for (i, phys) in command.source_sectors.iter().enumerate() {
            let chunk = layout.chunk_of(PhysSector(*phys));
            self.array.erase(now, OpOwner::Command(id), command.io.hints(), chunk.0);
            self.array.set_last_unit(i as u32);
        }
        Ok(())
    }

    /// Executes Dataset Management: deallocating a range that is a chunk resets the chunk [OC20 §4].
    fn reset_ranges(
        &mut self,
        now: Nanos,
        id: u32,
        deallocate: bool,
        commands: &mut Commands,
    ) -> Result<(), (Status, u64)> {
        if !deallocate {
            commands.complete(id, Status::SUCCESS);
            return Ok(());
        }
        let command = commands.get_mut(id);
        if command.ranges.len() > MAX_SECTORS as usize {
            return Err((Status::INVALID_FIELD, 0));
        }
        command.source_sectors.clear();
        for range in &command.ranges {
            let address =
                self.address(Ppa(range.slba.get())).ok_or((Status::LBA_OUT_OF_RANGE, 0))?;
            if address.sector != 0 || range.nlb.get() != self.geometry.sectors {
                return Err((Status::INVALID_FIELD, 0));
            }
            command.source_sectors.push(self.array.nand.layout().phys_at(address).0);
        }
        self.reset(now, id, commands)
    }

    /// Executes a device trim: removes logical addresses from the device L2P.
    fn device_trim(
        &mut self,
        id: u32,
        sequence: u64,
        commands: &mut Commands,
    ) -> Result<(), (Status, u64)> {
        let Some(map) = &mut self.device_l2p else { return Err((Status::INVALID_OPCODE, 0)) };
        let list = &commands.get(id).ranges;
        map.trim(&self.array.nand, list, sequence).map_err(|status| (status, 0))?;
        commands.complete(id, Status::SUCCESS);
        Ok(())
    }

    /// Handles the completion of a flash operation.
    pub(crate) fn on_op_complete(
        &mut self,
        now: Nanos,
        done: NandOpCompletion,
        commands: &mut Commands,
    ) {
        let OpOwner::Command(id) = done.owner else { return };
        let unit = self.geometry.ws_min;
        let copies = matches!(commands.get(id).io, IoCommand::VectorCopy { .. });
        match done.kind {
            NandOpKind::Read => {
                commands.get_mut(id).result |= done.failed;
                if copies && done.failed == 0 {
                    return self.program(now, id, commands, true);
                }
                if copies {
                    // The accepted sectors of the destination will not be written.
                    self.revoke_accepted(id, commands);
                } else {
                    self.copy_to_host(&done, id, commands);
                }
            }
            NandOpKind::Program => {
                if !done.status.is_success() {
                    let bits = (u64::MAX >> (64 - unit)) << (done.unit * unit);
                    commands.get_mut(id).result |= bits;
                } else if let Some(map) = &mut self.device_l2p {
                    let command = commands.get(id);
                    let phys_sectors =
                        if copies { &command.target_sectors } else { &command.source_sectors };
                    map.on_program(
                        &self.array.nand,
                        phys_sectors[(done.unit * unit) as usize],
                        unit,
                    );
                }
            }
            NandOpKind::Erase => {
                let chunk = {
                    let phys = commands.get(id).source_sectors[done.unit as usize];
                    self.array.nand.layout().chunk_of(PhysSector(phys))
                };
                if let Some(map) = &mut self.device_l2p {
                    map.on_reset(&self.array.nand, chunk);
                }
                if done.status.is_success() {
                    self.accepted[chunk.0 as usize] = 0;
                } else {
                    commands.get_mut(id).result |= 1 << done.unit;
                }
                let command = commands.get(id);
                if command.metadata != 0 {
                    let bytes = self.descriptor(chunk.0.into()).to_bytes();
                    let offset = u64::from(done.unit) * ChunkDescriptor::BYTES as u64;
                    let at = mem::Iova(command.metadata).offset(offset);
                    // The range was checked when the command was fetched.
                    let _ = command.port.memory().write(at, &bytes);
                }
            }
        }
        commands.complete_op(id, done.status);
    }

    fn revoke_accepted(&mut self, id: u32, commands: &Commands) {
        let unit = self.geometry.ws_min as usize;
        for first in commands.get(id).target_sectors.iter().step_by(unit) {
            let (chunk, sector) = self.array.nand.layout().split(PhysSector(*first));
            let accepted = &mut self.accepted[chunk.0 as usize];
            *accepted = (*accepted).min(sector);
        }
    }

    /// Copies read data and its out-of-band bytes to the host.
    fn copy_to_host(&mut self, done: &NandOpCompletion, id: u32, commands: &Commands) {
        let command = commands.get(id);
        let (size, oob) = (self.geometry.sector_bytes as usize, self.geometry.oob_bytes as usize);
        let memory = command.port.memory();
        for (i, phys) in command.source_sectors.iter().enumerate() {
            if done.failed >> i & 1 != 0 {
                continue;
            }
            if command.data_buffer.has_data() {
                let mut whole = false;
                command.data_buffer.for_each_segment(
                    memory,
                    (i * size) as u64,
                    size,
                    |region, at, _, n| {
                        if n == size {
                            whole = true;
                            self.array.nand.copy_out(PhysSector(*phys), region, at);
                        }
                    },
                );
                if !whole {
                    self.scratch.clear();
                    self.scratch.resize(size, 0);
                    self.array.nand.read_bytes(PhysSector(*phys), &mut self.scratch);
                    command.data_buffer.write(memory, (i * size) as u64, &self.scratch);
                }
            }
            if command.metadata != 0 && oob > 0 {
                self.scratch.clear();
                self.scratch.resize(oob, 0);
                self.array.nand.oob(PhysSector(*phys), &mut self.scratch);
                let at = mem::Iova(command.metadata).offset((i * oob) as u64);
                let _ = memory.write(at, &self.scratch);
            }
        }
    }

    /// Returns the metadata bytes that a command transfers, for the check when it is fetched.
    pub(crate) fn metadata_bytes(&self, io: &IoCommand) -> u64 {
        let oob = u64::from(self.geometry.oob_bytes);
        match *io {
            IoCommand::Read { nlb, .. } | IoCommand::Write { nlb, .. } => u64::from(nlb) * oob,
            IoCommand::VectorRead { addresses, .. } | IoCommand::VectorWrite { addresses, .. } => {
                u64::from(addresses.count()) * oob
            }
            IoCommand::VectorCopy { from, .. } => u64::from(from.count()) * oob,
            IoCommand::VectorReset { addresses, .. } => {
                u64::from(addresses.count()) * ChunkDescriptor::BYTES as u64
            }
            _ => 0,
        }
    }

    /// Discards accepted writes, at a power cut.
    pub(crate) fn power_cut(&mut self) {
        self.array.power_cut();
        self.accepted = self.array.nand.chunks().map(|(_, info)| info.write_pointer).collect();
    }
}
