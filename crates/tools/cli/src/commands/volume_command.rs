//! `sluice volume`: creates, checks and reads volumes of files (`docs/format/volume.md`).
//!
//! A process that changes a volume marks it as in use meanwhile. The mark of a process of this boot
//! that has ended is taken over; the mark of a running process is respected. If the device is
//! locked exclusively (`volume_lock`), every existing mark is stale.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use event::IdlePolicy;
use open::{OpenOptions, RegionLog};
use time::Nanos;
use user_io::{Queue, QueueConfig};
use volume::{
    BlockingVolume, FormatOptions, FsckOptions, Ino, InodeKind, InodePermissions, Options, Owner,
    Superblock, Time, Times, Volume, VolumeOpenError,
};

use crate::args::{VolumeArgs, VolumeDevice, VolumeFormatArgs, VolumeFsckArgs};
use crate::volume_lock::VolumeLock;
use crate::{CliError, print};

/// Number of bytes copied at a time.
const CHUNK: usize = 1 << 20;

fn other(error: impl std::fmt::Display) -> CliError {
    CliError::Other(error.to_string())
}

/// Runs `sluice volume …`.
///
/// # Errors
/// [`CliError`] if the device cannot be opened, has no valid volume, or fails.
pub fn run(args: &VolumeArgs) -> Result<(), CliError> {
    match args {
        VolumeArgs::Format(args) => format(args),
        VolumeArgs::Info(device) => {
            let report = run_fsck(device, FsckOptions::default())?;
            print(&report_text(&report))
        }
        VolumeArgs::Fsck(args) => fsck(args),
        VolumeArgs::Ls { device, path } => ls(device, path),
        VolumeArgs::Get { device, path, file } => get(device, path, file),
        VolumeArgs::Put { device, file, path } => put(device, file, path),
    }
}

fn device_queue(
    device: &VolumeDevice,
    drive_idle: IdlePolicy,
) -> Result<(Queue, user_io::IoDevice), CliError> {
    let log = device.write_log.is_some().then_some(RegionLog::Whole);
    let options = OpenOptions { log, drive_idle, ..OpenOptions::default() };
    let opened = open::open(&device.device, &options).map_err(other)?;
    let queue = opened.create_queue(QueueConfig::default()).map_err(other)?;
    Ok((queue, opened))
}

/// Returns a queue of the device, and a function that returns its time. The device's other side
/// runs on its own thread.
fn queue(device: &VolumeDevice) -> Result<(Queue, impl FnMut(&mut Queue) -> Nanos), CliError> {
    let (queue, opened) = device_queue(device, IdlePolicy::default())?;
    Ok((queue, ticker(opened)))
}

fn ticker(opened: user_io::IoDevice) -> impl FnMut(&mut Queue) -> Nanos {
    let clock = opened.clock();
    move |_: &mut Queue| {
        // The clock belongs to the device, which must stay open meanwhile.
        let _ = &opened;
        std::thread::yield_now();
        clock.now()
    }
}

/// Parses the size of a new file: bytes, with an optional suffix as in a scenario.
///
/// # Errors
/// The allowed form, for any other text and for 0.
pub fn size(text: &str) -> Result<u64, String> {
    let allowed = "a size such as 512M, 1G or 400GB";
    scenario::units::size(text).filter(|bytes| *bytes > 0).ok_or_else(|| allowed.to_owned())
}

/// A new file for a volume; it is deleted on drop unless it is kept.
struct NewFile<'a>(Option<&'a Path>);

impl NewFile<'_> {
    /// Creates a sparse file of `bytes` bytes.
    fn create(path: &Path, bytes: u64) -> Result<NewFile<'_>, CliError> {
        let cannot = |e: std::io::Error| match e.kind() {
            std::io::ErrorKind::AlreadyExists => other(format!(
                "{} is there already: remove it, or leave out --size to format it",
                path.display()
            )),
            _ => other(format!("cannot make {} of {bytes} bytes: {e}", path.display())),
        };
        let file = File::create_new(path).map_err(cannot)?;
        let new = NewFile(Some(path));
        file.set_len(bytes).map_err(cannot)?;
        Ok(new)
    }

    fn keep(mut self) {
        self.0 = None;
    }
}

impl Drop for NewFile<'_> {
    fn drop(&mut self) {
        if let Some(path) = self.0 {
            // The caller is already reporting an error.
            let _ = std::fs::remove_file(path);
        }
    }
}

fn format(args: &VolumeFormatArgs) -> Result<(), CliError> {
    let made = args.size.map(|bytes| {
        let device = &args.on.device;
        if device.contains(':') || device.ends_with(".toml") {
            return Err(CliError::Usage(format!("--size makes a file, and {device} is none")));
        }
        NewFile::create(Path::new(device), bytes)
    });
    let file = made.transpose()?;
    let _claim = VolumeLock::acquire_exclusive(&args.on.device)?;
    let (mut queue, tick) = queue(&args.on)?;
    let volume = format_queue(&mut queue, args, tick)?;
    if let Some(file) = file {
        file.keep();
    }
    let bytes = u64::from(volume.layout.data_blocks()) * volume::BLOCK as u64;
    print(&format!("a volume of {bytes} bytes for data, {:032x}\n", volume.uuid))
}

/// Creates an empty volume on the queue of a device.
fn format_queue(
    queue: &mut Queue,
    args: &VolumeFormatArgs,
    tick: impl FnMut(&mut Queue) -> Nanos,
) -> Result<Superblock, CliError> {
    let now = now();
    let options = FormatOptions {
        uuid: hexadecimal("/proc/sys/kernel/random/uuid")?,
        label: args.label.clone(),
        access: InodePermissions { mode: 0o755, ..InodePermissions::default() },
        times: Times { access: now, modify: now, change: now, birth: now },
        unit: args.unit.map(|bytes| u32::try_from(bytes).unwrap_or(u32::MAX)),
        force: args.force,
        discard: true,
        ..FormatOptions::default()
    };
    volume::format(queue, &options, tick).map_err(|error| match error {
        VolumeOpenError::HasVolume => other(format!(
            "{error}: {} is left as it is; --force overwrites all that is on it",
            args.on.device
        )),
        error => other(error),
    })
}

fn run_fsck(device: &VolumeDevice, options: FsckOptions) -> Result<volume::FsckReport, CliError> {
    let (mut queue, tick) = queue(device)?;
    volume::fsck(&mut queue, options, tick).map_err(other)
}

fn report_text(report: &volume::FsckReport) -> String {
    let block = &report.superblock;
    let layout = block.layout;
    let used = match block.owner {
        Some(owner) => format!("process {} of boot {:032x}", owner.process, owner.boot),
        None => "nobody".to_owned(),
    };
    let lines = [
        format!("label        {}", block.label()),
        format!("uuid         {:032x}", block.uuid),
        format!("in use by    {used}"),
        format!("blocks       {} of {} bytes", layout.blocks, volume::BLOCK),
        format!("data         {} blocks, {} used", layout.data_blocks(), report.used_blocks),
        format!("unit         {} bytes", layout.unit_blocks as usize * volume::BLOCK),
        format!("metadata     {} bytes", report.metadata_bytes),
        format!("journal      {} blocks", layout.journal_blocks),
        format!(
            "to recover   {} transactions, with data of {} blocks",
            report.transactions, report.journaled_blocks
        ),
        format!("files        {}", report.files),
        format!("directories  {}", report.directories),
        format!("extents      {}", report.extents),
        format!("opened       {} times for writing", block.epoch - 1),
    ];
    lines.join("\n") + "\n"
}

fn fsck(args: &VolumeFsckArgs) -> Result<(), CliError> {
    let options = FsckOptions { repair: args.repair, clear_owner: args.clear_owner };
    let writes = args.repair || args.clear_owner;
    let claim = if writes { VolumeLock::acquire_exclusive } else { VolumeLock::acquire_shared };
    // Concurrent changes would look like damage.
    let _claim = claim(&args.on.device)?;
    let report = run_fsck(&args.on, options)?;
    let mut text = String::new();
    for finding in &report.problems {
        text += &format!("{finding}\n");
    }
    text += match (report.is_clean(), report.repaired) {
        (_, true) => "repaired\n",
        (true, false) => "clean\n",
        (false, false) => "damaged\n",
    };
    print(&text)?;
    if report.is_clean() || report.repaired {
        return Ok(());
    }
    Err(CliError::Other("the volume is damaged".into()))
}

/// Opens a volume for a caller that polls it, and creates it first with `new`. Also returns its device,
/// whose clock gives the time for the polls, and the lock, which the caller must keep as long as the
/// volume. `idle` is the wait of the threads of emulated drives.
///
/// # Errors
/// [`CliError`] if the device cannot be opened, has no valid volume, or has one and `new` would
/// overwrite it.
pub(crate) fn open_store(
    device: &VolumeDevice,
    new: Option<&VolumeFormatArgs>,
    options: Options,
    idle: IdlePolicy,
) -> Result<(Volume<Queue>, user_io::IoDevice, VolumeLock), CliError> {
    let OpenedVolume { session, device, lock: claim } = opened_session(device, options, idle, new)?;
    Ok((session.into_volume(), device, claim))
}

/// Returns the number whose hexadecimal digits, with dashes, a file contains.
pub(crate) fn hexadecimal(path: &str) -> Result<u128, CliError> {
    let text = std::fs::read_to_string(path).map_err(|e| other(format!("{path}: {e}")))?;
    let digits: String = text.chars().filter(char::is_ascii_hexdigit).collect();
    u128::from_str_radix(&digits, 16).map_err(|e| other(format!("{path}: {e}")))
}

fn now() -> Time {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Time(i64::try_from(since.as_nanos()).unwrap_or(i64::MAX))
}

/// An open volume with its device and its lock, which must be kept as long as the volume.
struct OpenedVolume<T> {
    session: BlockingVolume<Queue, T>,
    device: user_io::IoDevice,
    lock: VolumeLock,
}

/// Opens the volume, which `new` creates first; takes over the mark of a process that has ended.
fn opened_session(
    device: &VolumeDevice,
    options: Options,
    idle: IdlePolicy,
    new: Option<&VolumeFormatArgs>,
) -> Result<OpenedVolume<impl FnMut(&mut Queue) -> Nanos>, CliError> {
    let claim =
        if options.read_only { VolumeLock::acquire_shared } else { VolumeLock::acquire_exclusive };
    let claim = claim(&device.device)?;
    let boot = hexadecimal("/proc/sys/kernel/random/boot_id")?;
    let owner = Owner { boot, process: std::process::id().into() };
    let mut options = Options { owner, ..options };
    let is_gone = |process: u64| {
        claim.is_exclusive()
            || process == owner.process
            || !Path::new(&format!("/proc/{process}")).exists()
    };
    loop {
        // Close the queue before the next attempt: a drive can be opened once.
        let (mut queue, opened) = device_queue(device, idle)?;
        if let Some(args) = new {
            format_queue(&mut queue, args, ticker(opened.clone()))?;
        }
        match BlockingVolume::open(queue, options, ticker(opened.clone())) {
            Ok(mut session) => {
                session.time = now();
                return Ok(OpenedVolume { session, device: opened, lock: claim });
            }
            Err(VolumeOpenError::InUse { owner: mark })
                if options.take_over.is_none() && is_gone(mark.process) =>
            {
                options.take_over = Some(mark);
            }
            Err(error) => return Err(other(error)),
        }
    }
}

fn ls(device: &VolumeDevice, path: &str) -> Result<(), CliError> {
    let read_only = Options { read_only: true, ..Options::default() };
    let OpenedVolume { session, lock: _claim, .. } =
        opened_session(device, read_only, IdlePolicy::default(), None)?;
    let store = session.volume();
    let wrong = |error| other(format!("{path}: {error}"));
    let ino = store.lookup(Ino::ROOT, path).map_err(wrong)?;
    let line = |name: &str, ino| -> Result<String, CliError> {
        let stat = store.stat(ino).map_err(wrong)?;
        let kind = if stat.kind == InodeKind::Directory { 'd' } else { '-' };
        Ok(format!("{kind}{:04o} {:>14} {name}\n", stat.access.mode & 0o7777, stat.size))
    };
    if store.stat(ino).map_err(wrong)?.kind == InodeKind::File {
        return print(&line(path, ino)?);
    }
    let mut text = String::new();
    for entry in store.list(ino, 0).map_err(wrong)? {
        text += &line(&String::from_utf8_lossy(entry.name), entry.ino)?;
    }
    print(&text)
}

fn get(device: &VolumeDevice, path: &str, file: &Path) -> Result<(), CliError> {
    let read_only = Options { read_only: true, ..Options::default() };
    let OpenedVolume { mut session, lock: _claim, .. } =
        opened_session(device, read_only, IdlePolicy::default(), None)?;
    let wrong = |error| other(format!("{path}: {error}"));
    let ino = session.volume().lookup(Ino::ROOT, path).map_err(wrong)?;
    let mut bytes = vec![0; CHUNK];
    let mut len = session.read(ino, 0, &mut bytes).map_err(wrong)?;
    let there = |error: std::io::Error| {
        let full = matches!(
            error.kind(),
            std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded
        );
        let help = if full { ": its disk is full, and the copy is not complete" } else { "" };
        other(format!("cannot write {}: {error}{help}", file.display()))
    };
    let mut out = File::create(file).map_err(there)?;
    let mut offset = 0;
    while len > 0 {
        out.write_all(&bytes[..len]).map_err(there)?;
        offset += len as u64;
        len = session.read(ino, offset, &mut bytes).map_err(wrong)?;
    }
    Ok(())
}

fn put(device: &VolumeDevice, file: &Path, path: &str) -> Result<(), CliError> {
    let there = |error| other(format!("cannot read {}: {error}", file.display()));
    let mut from = File::open(file).map_err(there)?;
    let OpenedVolume { mut session, lock: _claim, .. } =
        opened_session(device, Options::default(), IdlePolicy::default(), None)?;
    let wrong = |error| other(format!("{path}: {error}"));
    let (above, name) = path.rsplit_once('/').unwrap_or(("", path));
    if name.is_empty() {
        let usage = "name the file on the volume, as in /dir/file: a directory is not enough";
        return Err(CliError::Usage(format!("\"{path}\": {usage}")));
    }
    let dir = session.volume().lookup(Ino::ROOT, above).map_err(|error| {
        other(format!("{above}: {error}: `put` copies into a directory that is on the volume"))
    })?;
    let ino = session.create(dir, name).map_err(wrong)?;
    session.run(volume::VolumeOp::Truncate { ino, size: 0 }).map_err(wrong)?;
    let (mut bytes, mut offset) = (vec![0; CHUNK], 0);
    loop {
        let len = from.read(&mut bytes).map_err(there)?;
        if len == 0 {
            break;
        }
        session.write(ino, offset, &bytes[..len]).map_err(wrong)?;
        offset += len as u64;
    }
    session.close().map(drop).map_err(wrong)
}
