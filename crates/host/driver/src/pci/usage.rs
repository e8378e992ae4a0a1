//! [`DeviceUser`]: the users of a controller's namespaces and their partitions.
//!
//! Users are mounts, swap, holders (device mapper, md) and open files. A mount in another mount
//! namespace appears as a block device that cannot be opened exclusively.

// guarantee: C-13

use std::fmt;
use std::fs;
use std::path::PathBuf;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use super::{PciAddress, SysfsPci};

/// A user of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceUser {
    /// The used device, such as `nvme0n1p2`, or the file of an IOMMU group.
    pub device: String,
    /// The use.
    pub usage: DeviceUsage,
}

/// The use of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeviceUsage {
    /// Mounted.
    Mounted(PathBuf),
    /// Used as swap space.
    Swap,
    /// Part of another device: device mapper or RAID.
    Holder(String),
    /// Open in a process.
    Open {
        /// Process number.
        pid: u32,
        /// Process name.
        name: String,
    },
    /// In exclusive use that was not found otherwise.
    Exclusive,
}

impl fmt::Display for DeviceUser {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let device = &self.device;
        match &self.usage {
            DeviceUsage::Mounted(at) => write!(f, "{device} is mounted at {}", at.display()),
            DeviceUsage::Swap => write!(f, "{device} is swapped to"),
            DeviceUsage::Holder(name) => write!(f, "{name} is made of {device}"),
            DeviceUsage::Open { pid, name } => {
                write!(f, "process {pid} ({name}) has {device} open")
            }
            DeviceUsage::Exclusive => write!(f, "something has {device} for itself"),
        }
    }
}

/// Returns the sorted names in a directory; none if it does not exist.
fn list_names(folder: PathBuf) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries.filter_map(|e| e.file_name().into_string().ok()).collect();
    names.sort_unstable();
    names
}

/// Returns the block device of a namespace's entry below its controller. It is `nvme0n1`, also for
/// `nvme0c1n1` below one of several paths.
fn block_device(entry: &str) -> Option<String> {
    let rest = entry.strip_prefix("nvme")?;
    let digits = |text: &str| text.bytes().take_while(u8::is_ascii_digit).count();
    let (subsystem, rest) = rest.split_at(digits(rest));
    let rest = match rest.strip_prefix('c') {
        Some(path) => &path[digits(path)..],
        None => rest,
    };
    let number = rest.strip_prefix('n')?;
    let whole = !number.is_empty() && digits(number) == number.len() && !subsystem.is_empty();
    whole.then(|| format!("nvme{subsystem}n{number}"))
}

/// Decodes a path of `/proc`, which has blanks and the like as three octal digits.
fn unescape(text: &str) -> String {
    let mut out = Vec::new();
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        let code = after.get(..3).and_then(|d| std::str::from_utf8(d).ok());
        match code.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(byte) if *first == b'\\' => {
                out.push(byte);
                rest = &after[3..];
            }
            _ => {
                out.push(*first);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

impl SysfsPci {
    /// Returns the block devices of a controller: namespaces and partitions.
    pub fn block_devices(&self, address: PciAddress) -> Vec<String> {
        let nvme = self.device_dir(address).join("nvme");
        let below =
            list_names(nvme.clone()).into_iter().flat_map(|name| list_names(nvme.join(name)));
        let mut devices: Vec<String> = below.filter_map(|entry| block_device(&entry)).collect();
        devices.dedup();
        let class = self.sys.join("class/block");
        let with_partitions = devices.into_iter().flat_map(|device| {
            let partitions = list_names(class.join(&device)).into_iter();
            let is_partition =
                |name: &String| class.join(&device).join(name).join("partition").exists();
            let partitions: Vec<String> = partitions.filter(is_partition).collect();
            std::iter::once(device).chain(partitions)
        });
        with_partitions.collect()
    }

    /// Returns all users that were found of a controller's namespaces.
    pub fn users(&self, address: PciAddress) -> Vec<DeviceUser> {
        let devices = self.block_devices(address);
        let mounts = fs::read_to_string(self.proc.join("self/mountinfo")).unwrap_or_default();
        let swaps = fs::read_to_string(self.proc.join("swaps")).unwrap_or_default();
        let mut users = Vec::new();
        for device in &devices {
            let folder = self.sys.join("class/block").join(device);
            let number = fs::read_to_string(folder.join("dev")).unwrap_or_default();
            let path = format!("/dev/{device}");
            let before = users.len();
            let mut push = |usage| users.push(DeviceUser { device: device.clone(), usage });
            for line in mounts.lines() {
                let Some((fields, rest)) = line.split_once(" - ") else { continue };
                let mut fields = fields.split(' ').skip(2);
                let (dev, at) = (fields.next(), fields.nth(1));
                let source = rest.split(' ').nth(1).map(unescape);
                if dev == Some(number.trim()) || source.as_deref() == Some(&path) {
                    push(DeviceUsage::Mounted(unescape(at.unwrap_or_default()).into()));
                }
            }
            if swaps.lines().skip(1).any(|l| l.split_whitespace().next() == Some(&path)) {
                push(DeviceUsage::Swap);
            }
            for holder in list_names(folder.join("holders")) {
                push(DeviceUsage::Holder(holder));
            }
            for (pid, name) in self.openers(&path) {
                push(DeviceUsage::Open { pid, name });
            }
            let flags = OFlags::RDONLY | OFlags::EXCL | OFlags::CLOEXEC | OFlags::NONBLOCK;
            let opened = rustix::fs::open(self.dev.join(device), flags, Mode::empty());
            if matches!(opened, Err(Errno::BUSY)) && users.len() == before {
                users.push(DeviceUser { device: device.clone(), usage: DeviceUsage::Exclusive });
            }
        }
        users
    }

    /// Returns the processes that have the file of an IOMMU group open.
    pub(super) fn openers_of_group(&self, group: u32) -> Vec<DeviceUser> {
        self.users_of_file(&format!("/dev/vfio/{group}"))
    }

    /// Returns the processes that have the file of the generic driver open.
    pub(super) fn openers_of_uio(&self, name: &str) -> Vec<DeviceUser> {
        self.users_of_file(&format!("/dev/{name}"))
    }

    fn users_of_file(&self, path: &str) -> Vec<DeviceUser> {
        let users = self.openers(path).into_iter();
        users
            .map(|(pid, name)| DeviceUser {
                device: path.to_owned(),
                usage: DeviceUsage::Open { pid, name },
            })
            .collect()
    }

    /// Returns the processes that have `path` open, as far as this process may inspect them.
    fn openers(&self, path: &str) -> Vec<(u32, String)> {
        let pids =
            list_names(self.proc.clone()).into_iter().filter_map(|name| name.parse::<u32>().ok());
        let has = |pid: &u32| {
            let folder = self.proc.join(format!("{pid}/fd"));
            let files = fs::read_dir(folder).into_iter().flatten().flatten();
            files
                .into_iter()
                .any(|e| fs::read_link(e.path()).is_ok_and(|to| to.as_os_str() == path))
        };
        let name = |pid: u32| {
            let comm = fs::read_to_string(self.proc.join(format!("{pid}/comm")));
            (pid, comm.unwrap_or_default().trim().to_owned())
        };
        pids.filter(has).map(name).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::super::system::tests::sample_sysfs;
    use super::super::{PciDriver, PciError, SysfsPci};
    use super::*;

    fn with_namespaces(system: &SysfsPci) -> PciAddress {
        let folder = system.sys.join("bus/pci/devices/0000:01:00.0/nvme/nvme0");
        for name in ["nvme0n1", "nvme0c0n2", "ng0n1", "power", "hwmon1"] {
            fs::create_dir_all(folder.join(name)).unwrap();
        }
        let class = system.sys.join("class/block");
        for (name, number) in [("nvme0n1", "259:0"), ("nvme0n2", "259:5")] {
            fs::create_dir_all(class.join(name).join("holders")).unwrap();
            fs::write(class.join(name).join("dev"), format!("{number}\n")).unwrap();
        }
        fs::create_dir_all(class.join("nvme0n1/nvme0n1p1")).unwrap();
        fs::write(class.join("nvme0n1/nvme0n1p1/partition"), "1\n").unwrap();
        fs::create_dir_all(class.join("nvme0n1p1/holders")).unwrap();
        fs::write(class.join("nvme0n1p1/dev"), "259:1\n").unwrap();
        fs::create_dir_all(system.proc.join("self")).unwrap();
        "01:00.0".parse().unwrap()
    }

    #[test]
    fn namespaces_and_partitions_are_found() {
        let root = tempfile::tempdir().unwrap();
        let system = sample_sysfs(root.path());
        let address = with_namespaces(&system);
        assert_eq!(system.block_devices(address), ["nvme0n2", "nvme0n1", "nvme0n1p1"]);
        assert_eq!(system.users(address), []);
        for no in ["nvme0", "ng0n1", "nvme0c0", "nvmexn1", "nvme0n1p1", "nvme0n", "power"] {
            assert_eq!(block_device(no), None, "{no}");
        }
    }

    #[test]
    fn a_controller_in_use_is_not_bound_and_its_users_are_named() {
        let root = tempfile::tempdir().unwrap();
        let system = sample_sysfs(root.path());
        let address = with_namespaces(&system);
        let refused = |says: &str| {
            let error = system.bind(address, PciDriver::VfioPci).unwrap_err();
            assert!(matches!(error, PciError::InUse { .. }), "{error}");
            assert!(error.to_string().contains(says), "{error}");
            assert!(!system.sys.join("bus/pci/drivers_probe").exists(), "nothing was touched");
        };
        let mounts = system.proc.join("self/mountinfo");
        let ext4 = "30 1 259:1 / /data\\040set rw,relatime shared:1 - ext4 /dev/root rw\n";
        fs::write(&mounts, ext4).unwrap();
        refused("nvme0n1p1 is mounted at /data set");
        // A file system on several devices has its own device number.
        fs::write(&mounts, "31 1 0:44 / /pool rw - btrfs /dev/nvme0n2 rw\n").unwrap();
        refused("nvme0n2 is mounted at /pool");
        fs::write(&mounts, "31 1 8:1 / / rw - ext4 /dev/sda1 rw\nnonsense\n").unwrap();
        let swaps = system.proc.join("swaps");
        fs::write(&swaps, "Filename Type Size\n/dev/nvme0n2  partition 1 0 -2\n").unwrap();
        refused("nvme0n2 is swapped to");
        fs::remove_file(&swaps).unwrap();
        fs::create_dir(system.sys.join("class/block/nvme0n1p1/holders/dm-0")).unwrap();
        refused("dm-0 is made of nvme0n1p1");
        fs::remove_dir(system.sys.join("class/block/nvme0n1p1/holders/dm-0")).unwrap();
        let process = system.proc.join("42");
        fs::create_dir_all(process.join("fd")).unwrap();
        fs::write(process.join("comm"), "mkfs\n").unwrap();
        symlink("/dev/nvme0n1", process.join("fd/3")).unwrap();
        refused("process 42 (mkfs) has nvme0n1 open");
        fs::remove_dir_all(process).unwrap();
        assert_eq!(system.users(address), []);
    }

    #[test]
    fn a_controller_that_a_process_drives_is_not_given_back() {
        let root = tempfile::tempdir().unwrap();
        let system = sample_sysfs(root.path());
        let process = system.proc.join("7");
        fs::create_dir_all(process.join("fd")).unwrap();
        fs::write(process.join("comm"), "bench\n").unwrap();
        symlink("/dev/vfio/8", process.join("fd/9")).unwrap();
        let error = system.unbind("02:00.0".parse().unwrap()).unwrap_err();
        assert!(error.to_string().contains("process 7 (bench) has /dev/vfio/8 open"), "{error}");
    }
}
