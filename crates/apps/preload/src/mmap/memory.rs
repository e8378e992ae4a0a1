//! Mappings of volume files. A private mapping is a copy of the current contents. A shared mapping
//! is of the memory file that the service keeps for a mapped file.

use exec_proto::CallOp;
use libc::{c_int, c_void, off_t, size_t};

use crate::descriptors::data::{FileOffset, read_into};
use crate::mmap::mappings::{
    AddressRange, MappedFileId, MappingSource, MappingsGuard, can_overlap,
};
use crate::session::{call, receive};
use crate::{Errno, descriptors::fd_table, fail, gate, libc_fns, start, status, unsupported_fd};

/// Smallest page size; the kernel enforces a larger one.
const PAGE: usize = 4096;

fn failed(errno: Errno) -> *mut c_void {
    fail(errno);
    libc::MAP_FAILED
}

fn errno() -> Errno {
    // SAFETY: `errno` of this thread.
    unsafe { *libc::__errno_location() }
}

/// Returns the end of a range, rounded up to whole pages.
fn end_of(begin: usize, len: size_t) -> usize {
    begin.saturating_add(len).checked_next_multiple_of(PAGE).unwrap_or(usize::MAX)
}

/// The descriptor of a memory file, and the socket that becomes its mapping reference.
struct MappingDescriptors {
    memory: c_int,
    socket: c_int,
    number: u64,
    ino: u64,
}

impl MappingDescriptors {
    /// Requests the memory file, with a range filled.
    fn request(
        handle: u64,
        offset: u64,
        len: usize,
        writes: bool,
    ) -> Result<MappingDescriptors, Errno> {
        let socket = start::connect(true)?;
        let asked = || {
            let number = start::socket_number(socket).ok_or(libc::EIO)?;
            let args = [offset, len as u64, writes.into(), number];
            let ino = call(CallOp::Mmap, handle, args)? as u64;
            // SAFETY: a connected socket.
            let (_, [memory]) = unsafe { receive::<1, 1>(socket)? };
            Ok(MappingDescriptors { memory, socket, number, ino })
        };
        asked().inspect_err(|_| {
            // SAFETY: a descriptor of this library.
            unsafe { gate::close(socket) };
        })
    }

    fn close(&self) {
        // SAFETY: descriptors of this library.
        unsafe {
            gate::close(self.memory);
            gate::close(self.socket);
        }
    }
}

unsafe fn share(
    at: *mut c_void,
    len: size_t,
    (access, flags): (c_int, c_int),
    (fd, handle): (c_int, u64),
    offset: off_t,
) -> Result<*mut c_void, Errno> {
    if len == 0 || offset < 0 || offset % PAGE as off_t != 0 {
        return Err(libc::EINVAL);
    }
    let writes = access & libc::PROT_WRITE != 0;
    let opened = call(CallOp::Flags, handle, [0; 4])? as u64 & libc::O_ACCMODE as u64;
    let fetched =
        MappingDescriptors::request(handle, offset as u64, len, writes).inspect_err(|errno| {
            if *errno == libc::ENOMEM {
                unsupported_fd("mmap", fd, "there is no memory for what is mapped and shared");
            }
        })?;
    let mut locked = MappingsGuard::lock();
    // A mapping in the middle of another one splits it in two.
    if !locked.has_capacity(1 + usize::from(flags & libc::MAP_FIXED != 0)) {
        fetched.close();
        unsupported_fd("mmap", fd, "the process has too many shared mappings");
        return Err(libc::ENOMEM);
    }
    let base = gate::mmap(at, len, access, flags, fetched.memory, offset);
    if base == libc::MAP_FAILED {
        let errno = errno();
        fetched.close();
        return Err(errno);
    }
    gate::close(fetched.memory);
    let (begin, end) = (base as usize, end_of(base as usize, len));
    // With `MAP_FIXED`, the range may have been mapped.
    locked.remove_range(begin, end);
    let file = MappedFileId { ino: fetched.ino, access: opened };
    let source = MappingSource { socket: fetched.socket, number: fetched.number };
    locked.add(AddressRange { begin, end }, offset as u64, writes, file, source).inspect_err(
        |_| {
            unsupported_fd("mmap", fd, "the process has too many files with shared mappings");
            libc_fns::munmap()(base, len);
        },
    )?;
    Ok(base)
}

/// Calls the kernel's `mmap`, and removes shared mappings in the range.
unsafe fn map_over(
    at: *mut c_void,
    len: size_t,
    access: c_int,
    flags: c_int,
    fd: c_int,
    offset: off_t,
) -> *mut c_void {
    if flags & libc::MAP_FIXED == 0 || !can_overlap(at as usize, len) {
        return libc_fns::mmap()(at, len, access, flags, fd, offset);
    }
    replace_range(
        at as usize,
        len,
        libc::MAP_FAILED,
        |base| base == libc::MAP_FAILED,
        || libc_fns::mmap()(at, len, access, flags, fd, offset),
    )
}

/// Runs an operation that ends all shared mappings in a range.
fn replace_range<T: Copy>(
    begin: usize,
    len: size_t,
    refused: T,
    has_failed: impl FnOnce(T) -> bool,
    work: impl FnOnce() -> T,
) -> T {
    let mut locked = MappingsGuard::lock();
    if locked.cannot_split(begin, end_of(begin, len)) {
        fail(libc::ENOMEM);
        return refused;
    }
    let done = work();
    if !has_failed(done) {
        locked.remove_range(begin, end_of(begin, len));
    }
    done
}

unsafe fn map(
    at: *mut c_void,
    len: size_t,
    access: c_int,
    flags: c_int,
    fd: c_int,
    offset: off_t,
) -> *mut c_void {
    let handle = match fd_table::handle(fd) {
        Some(handle) if flags & libc::MAP_ANONYMOUS == 0 => handle,
        _ => return map_over(at, len, access, flags, fd, offset),
    };
    if flags & libc::MAP_TYPE != libc::MAP_PRIVATE {
        return share(at, len, (access, flags), (fd, handle), offset).unwrap_or_else(failed);
    }
    if offset < 0 || offset % PAGE as off_t != 0 {
        return failed(libc::EINVAL);
    }
    let flags = flags & !libc::MAP_TYPE | libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    let writable = libc::PROT_READ | libc::PROT_WRITE;
    let base = map_over(at, len, writable, flags, -1, 0);
    if base == libc::MAP_FAILED {
        return base;
    }
    let read = read_into(handle, std::iter::once((base.cast(), len)), FileOffset::At(offset));
    let outcome = match read {
        Ok(_) if access == writable || libc_fns::mprotect()(base, len, access) == 0 => Ok(()),
        Ok(_) => Err(errno()),
        Err(errno) => Err(errno),
    };
    match outcome {
        Ok(()) => base,
        Err(errno) => {
            libc_fns::munmap()(base, len);
            failed(errno)
        }
    }
}

/// Makes the read-only shared mappings in a range writable.
unsafe fn make_writable(locked: &mut MappingsGuard, begin: usize, end: usize) -> Result<(), Errno> {
    let mut at = begin;
    while let Some(mapping) = locked.first(at, end) {
        let (from, to) = (mapping.begin.max(at), mapping.end.min(end));
        at = mapping.end;
        if mapping.can_write {
            continue;
        }
        if !locked.has_capacity(2) {
            return Err(libc::ENOMEM);
        }
        let (offset, len) = (mapping.offset_of(from), to - from);
        let fetched = MappingDescriptors::request(locked.number(&mapping), offset, len, true)?;
        let flags = libc::MAP_SHARED | libc::MAP_FIXED;
        let (place, access) = (from as *mut c_void, libc::PROT_READ);
        let base = gate::mmap(place, len, access, flags, fetched.memory, offset as off_t);
        if base == libc::MAP_FAILED {
            let errno = errno();
            fetched.close();
            return Err(errno);
        }
        // The file has a mapping reference already.
        fetched.close();
        locked.set_writable(from, to);
    }
    Ok(())
}

unsafe fn protect(at: *mut c_void, len: size_t, access: c_int) -> c_int {
    if access & libc::PROT_WRITE != 0 && can_overlap(at as usize, len) {
        let mut locked = MappingsGuard::lock();
        if let Err(errno) = make_writable(&mut locked, at as usize, end_of(at as usize, len)) {
            return fail(errno);
        }
    }
    libc_fns::mprotect()(at, len, access)
}

unsafe fn remap(
    old: *mut c_void,
    old_len: size_t,
    len: size_t,
    flags: c_int,
    place: *mut c_void,
) -> *mut c_void {
    let fixed = flags & libc::MREMAP_FIXED != 0;
    let (begin, end) = (old as usize, end_of(old as usize, old_len.max(1)));
    let touches = can_overlap(begin, end - begin) || fixed && can_overlap(place as usize, len);
    if !touches {
        return libc_fns::mremap()(old, old_len, len, flags, place);
    }
    let mut locked = MappingsGuard::lock();
    if !locked.has_capacity(3) {
        return failed(libc::ENOMEM);
    }
    let mapping = locked.first(begin, end).filter(|mapping| mapping.begin <= begin);
    if let Some(mapping) = mapping
        && len > old_len
    {
        // The additional range must be filled.
        let (number, offset) = (locked.number(&mapping), mapping.offset_of(begin));
        match MappingDescriptors::request(number, offset, len, false) {
            Ok(fetched) => fetched.close(),
            Err(errno) => return failed(errno),
        }
    }
    let base = libc_fns::mremap()(old, old_len, len, flags, place);
    if base == libc::MAP_FAILED {
        return base;
    }
    let new = AddressRange { begin: base as usize, end: end_of(base as usize, len) };
    let stays = old_len == 0 || flags & libc::MREMAP_DONTUNMAP != 0;
    match mapping {
        Some(mapping) if stays => {
            locked.remove_range(new.begin, new.end);
            locked.add_like(&mapping, new, mapping.offset_of(begin));
        }
        Some(_) => locked.on_remap(AddressRange { begin, end }, new),
        None => locked.remove_range(new.begin, new.end),
    }
    base
}

/// Makes changes in a mapped range durable.
fn sync(begin: usize, end: usize) -> Result<i64, Errno> {
    let mut at = begin;
    loop {
        let locked = MappingsGuard::lock();
        let Some(mapping) = locked.first(at, end) else { return Ok(0) };
        let number = locked.number(&mapping);
        drop(locked);
        let (from, to) = (mapping.begin.max(at), mapping.end.min(end));
        if mapping.can_write {
            call(CallOp::Sync, number, [1, mapping.offset_of(from), (to - from) as u64, 0])?;
        }
        at = mapping.end;
    }
}

interpose! {
    fn [mmap mmap64]
        (at: *mut c_void, len: size_t, access: c_int, flags: c_int, fd: c_int, offset: off_t)
        -> *mut c_void {
        map(at, len, access, flags, fd, offset)
    }
    fn [munmap] (at: *mut c_void, len: size_t) -> c_int {
        if !can_overlap(at as usize, len) {
            return libc_fns::munmap()(at, len);
        }
        replace_range(at as usize, len, -1, |done| done != 0, || libc_fns::munmap()(at, len))
    }
    fn [mremap]
        (old: *mut c_void, old_len: size_t, len: size_t, flags: c_int, place: *mut c_void)
        -> *mut c_void {
        remap(old, old_len, len, flags, place)
    }
    fn [mprotect] (at: *mut c_void, len: size_t, access: c_int) -> c_int {
        protect(at, len, access)
    }
    fn [madvise] (at: *mut c_void, len: size_t, advice: c_int) -> c_int {
        // MADV_REMOVE would punch holes that a write-back scan does not find, because holes count
        // as untouched.
        if advice == libc::MADV_REMOVE
            && can_overlap(at as usize, len)
            && MappingsGuard::lock().first(at as usize, end_of(at as usize, len)).is_some()
        {
            return fail(libc::EOPNOTSUPP);
        }
        libc_fns::madvise()(at, len, advice)
    }
    fn [msync] (at: *mut c_void, len: size_t, flags: c_int) -> c_int {
        let done = libc_fns::msync()(at, len, flags);
        if done != 0 || flags & libc::MS_SYNC == 0 || !can_overlap(at as usize, len) {
            return done;
        }
        status(sync(at as usize, end_of(at as usize, len)))
    }
}
