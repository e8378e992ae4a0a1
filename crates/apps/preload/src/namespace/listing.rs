//! Directory listing: `opendir` and its family. A `DIR` of the volume is this library's
//! [`Listing`]. Its first word differs from that of every `DIR` of the C library, which has a
//! descriptor there.

use exec_proto::{CallOp, entry};
use libc::{DIR, c_char, c_int, c_long};

use crate::descriptors::open::{before_close, open_on_volume};
use crate::namespace::paths::{PathTarget, ResolvedPath, resolve};
use crate::session::Slot;
use crate::{Errno, descriptors::fd_table, fail, gate, libc_fns, namespace::stat};

const MAGIC: u64 = 0x5249_4465_6369_756c;

/// An open directory listing.
#[repr(C)]
struct Listing {
    magic: u64,
    fd: c_int,
    /// 0 and 1 for `.` and `..`, else two more than the cookie of the previous entry.
    position: u64,
    /// Entries read from the service.
    bytes: Vec<u8>,
    next: usize,
    entry: libc::dirent,
}

unsafe fn ours<'a>(dir: *mut DIR) -> Option<&'a mut Listing> {
    let listing = dir.cast::<Listing>();
    (!dir.is_null() && (&raw const (*listing).magic).read() == MAGIC).then(|| &mut *listing)
}

fn listing(fd: c_int) -> *mut DIR {
    // SAFETY: all fields are numbers and characters, for which zero is valid.
    let entry = unsafe { std::mem::zeroed() };
    let listing = Listing { magic: MAGIC, fd, position: 0, bytes: Vec::new(), next: 0, entry };
    Box::into_raw(Box::new(listing)).cast()
}

fn null(errno: Errno) -> *mut DIR {
    fail(errno);
    std::ptr::null_mut()
}

impl Listing {
    fn fill(&mut self, cookie: u64) -> Result<(), Errno> {
        let handle = fd_table::handle(self.fd).ok_or(libc::EBADF)?;
        let slot = Slot::claim()?;
        let len = slot.call(CallOp::List, handle, [cookie, 0, 0, 0], 0)? as usize;
        self.bytes.resize(len.min(exec_proto::DATA_BYTES), 0);
        slot.get(0, &mut self.bytes);
        self.next = 0;
        Ok(())
    }

    /// Returns the next entry; `None` at the end.
    fn step(&mut self) -> Result<Option<&mut libc::dirent>, Errno> {
        if self.position < 2 {
            let handle = fd_table::handle(self.fd).ok_or(libc::EBADF)?;
            let ino = stat::stat_handle(handle)?.ino;
            let name: &[u8] = if self.position == 0 { b"." } else { b".." };
            self.position += 1;
            return Ok(Some(self.put(ino, true, name)));
        }
        if self.next == self.bytes.len() {
            self.fill(self.position - 2)?;
        }
        let bytes = std::mem::take(&mut self.bytes);
        let found = entry::decode(&bytes[self.next..]);
        let found = found.map(|((cookie, ino, directory, name), rest)| {
            self.next = bytes.len() - rest.len();
            self.position = cookie + 2;
            self.put(ino, directory, name);
        });
        self.bytes = bytes;
        Ok(found.map(|()| &mut self.entry))
    }

    fn put(&mut self, ino: u64, directory: bool, name: &[u8]) -> &mut libc::dirent {
        let at = self.position;
        let to = &mut self.entry;
        to.d_ino = ino;
        to.d_off = at as i64;
        to.d_type = if directory { libc::DT_DIR } else { libc::DT_REG };
        let len = name.len().min(to.d_name.len() - 1);
        for (to, byte) in to.d_name.iter_mut().zip(&name[..len]) {
            *to = *byte as c_char;
        }
        to.d_name[len] = 0;
        to.d_reclen =
            (std::mem::offset_of!(libc::dirent, d_name) + len + 1).next_multiple_of(8) as u16;
        to
    }

    fn seek(&mut self, at: u64) {
        self.position = at;
        self.bytes.clear();
        self.next = 0;
    }
}

type Filter = Option<unsafe extern "C" fn(*const libc::dirent) -> c_int>;
type Compare =
    Option<unsafe extern "C" fn(*mut *const libc::dirent, *mut *const libc::dirent) -> c_int>;

/// Implements `scandir(3)` with the functions of this module, also for directories of the host.
unsafe fn scan(
    path: *const c_char,
    list: *mut *mut *mut libc::dirent,
    filter: Filter,
    compare: Compare,
) -> c_int {
    let dir = opendir(path);
    if dir.is_null() {
        return -1;
    }
    let mut found: Vec<*mut libc::dirent> = Vec::new();
    loop {
        let entry = readdir(dir);
        if entry.is_null() {
            break;
        }
        if filter.is_none_or(|wanted| wanted(entry) != 0) {
            let len = usize::from((*entry).d_reclen);
            let copy = libc::malloc(len);
            std::ptr::copy_nonoverlapping(entry.cast::<u8>(), copy.cast(), len);
            found.push(copy.cast());
        }
    }
    closedir(dir);
    let bytes = size_of::<*mut libc::dirent>();
    let array = libc::malloc((found.len() * bytes).max(1)).cast::<*mut libc::dirent>();
    std::ptr::copy_nonoverlapping(found.as_ptr(), array, found.len());
    if let Some(compare) = compare {
        type Any = unsafe extern "C" fn(*const libc::c_void, *const libc::c_void) -> c_int;
        let compare = std::mem::transmute::<
            unsafe extern "C" fn(*mut *const libc::dirent, *mut *const libc::dirent) -> c_int,
            Any,
        >(compare);
        libc::qsort(array.cast(), found.len(), bytes, Some(compare));
    }
    *list = array;
    found.len() as c_int
}

interpose! {
    fn [opendir] (path: *const c_char) -> *mut DIR {
        let mut buffer = ResolvedPath::new();
        match resolve(libc::AT_FDCWD, path, true, &mut buffer) {
            Ok(PathTarget::Host(_, path)) => libc_fns::opendir()(path),
            Ok(PathTarget::Volume(base)) => {
                let flags = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_CLOEXEC;
                open_on_volume(base, buffer.bytes(), flags, 0).map_or_else(null, listing)
            }
            Err(errno) => null(errno),
        }
    }
    fn [fdopendir] (fd: c_int) -> *mut DIR {
        match fd_table::handle(fd).map(stat::stat_handle) {
            None => libc_fns::fdopendir()(fd),
            Some(Ok(facts)) if facts.directory => listing(fd),
            Some(Ok(_)) => null(libc::ENOTDIR),
            Some(Err(errno)) => null(errno),
        }
    }
    fn [readdir readdir64] (dir: *mut DIR) -> *mut libc::dirent {
        let Some(listing) = ours(dir) else { return libc_fns::readdir()(dir) };
        match listing.step() {
            Ok(entry) => entry.map_or(std::ptr::null_mut(), |entry| entry),
            Err(errno) => {
                fail(errno);
                std::ptr::null_mut()
            }
        }
    }
    fn [closedir] (dir: *mut DIR) -> c_int {
        let Some(listing) = ours(dir) else { return libc_fns::closedir()(dir) };
        let fd = listing.fd;
        listing.magic = 0;
        drop(Box::from_raw(dir.cast::<Listing>()));
        before_close(fd);
        gate::close(fd)
    }
    fn [rewinddir] (dir: *mut DIR) -> () {
        match ours(dir) {
            Some(listing) => listing.seek(0),
            None => libc_fns::rewinddir()(dir),
        }
    }
    fn [telldir] (dir: *mut DIR) -> c_long {
        match ours(dir) {
            Some(listing) => listing.position as c_long,
            None => libc_fns::telldir()(dir),
        }
    }
    fn [seekdir] (dir: *mut DIR, at: c_long) -> () {
        match ours(dir) {
            Some(listing) => listing.seek(at as u64),
            None => libc_fns::seekdir()(dir, at),
        }
    }
    fn [dirfd] (dir: *mut DIR) -> c_int {
        match ours(dir) {
            Some(listing) => listing.fd,
            None => libc_fns::dirfd()(dir),
        }
    }
    fn [scandir scandir64]
        (path: *const c_char, list: *mut *mut *mut libc::dirent, filter: Filter, compare: Compare)
        -> c_int {
        scan(path, list, filter, compare)
    }
}
