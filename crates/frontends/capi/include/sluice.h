/**
 * Sluice: user-level I/O to drives, real or simulated. One page for each call is in docs/capi.
 *
 * Open a device, make queues of it, bind handles to queues, and read and write through handles; give back
 * in any order. An open-channel drive without a target takes vector commands of physical addresses instead,
 * on queues of their own.
 *
 * Rules that hold for every call:
 *
 * - Calls return 0 or a count, or a negative errno; `sluice_last_error()` says why in words.
 * - A pointer to an object is one that the library gave out and that was not given back since. `NULL` is
 *   refused with `-EINVAL` where the call does not say otherwise. Other pointers are good for as much as
 *   the call says, until it returns. The use of an object after it was given back is not noticed.
 * - Structs that may grow begin with `size`, which the caller sets to their `sizeof`; zeroed members
 *   mean defaults. A larger struct than the library knows is understood as long as the rest is zero, and
 *   else refused with `-E2BIG`.
 * - Devices, queues, buffers and pollers may be used by any thread, several at a time; a handle, or a
 *   vector queue, by one at a time.
 * - Nothing here may be called after `fork()` in the child on what the parent has opened: open it anew.
 */
/* Made of crates/frontends/capi/src by cbindgen: edit those, then UPDATE=1 cargo test --package sluice-capi. */

#ifndef SLUICE_H
#define SLUICE_H

#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

/* Marks calls under their former names. */
#ifdef __GNUC__
#define SLUICE_DEPRECATED __attribute__((deprecated))
#else
#define SLUICE_DEPRECATED
#endif

/**
 * Open for reading only: everything that would change the device fails with `-EROFS`.
 */
#define SLUICE_OPEN_READ_ONLY 1

/**
 * Go through the host's page cache instead of past it (`O_DIRECT`). Files only.
 */
#define SLUICE_OPEN_BUFFERED 2

/**
 * Open a block device also if something else uses it, such as a mounted file system.
 */
#define SLUICE_OPEN_SHARED 4

/**
 * A device that acknowledges everything at once and has no data.
 */
#define SLUICE_KIND_NULL 0

/**
 * A file or block device of the host.
 */
#define SLUICE_KIND_FILE 1

/**
 * A drive behind queue pairs.
 */
#define SLUICE_KIND_DRIVE 2

/**
 * A target that manages the flash of a drive on the host.
 */
#define SLUICE_KIND_TARGET 3

/**
 * A drive, or a part of one, that another process serves.
 */
#define SLUICE_KIND_REMOTE 4

/**
 * Completed writes need a flush to be durable.
 */
#define SLUICE_HAS_VOLATILE_CACHE 1

/**
 * Writes take `SLUICE_FUA`.
 */
#define SLUICE_HAS_FUA 2

/**
 * Sectors can be discarded.
 */
#define SLUICE_HAS_DISCARD 4

/**
 * Sectors can be zeroed without data.
 */
#define SLUICE_HAS_WRITE_ZEROES 8

/**
 * The drive copies sectors by itself (`SLUICE_VECTOR_COPY`).
 */
#define SLUICE_VECTOR_CAN_COPY 1

/**
 * Nothing is written in the chunk.
 */
#define SLUICE_CHUNK_FREE 1

/**
 * It is full, or takes no more writes until it is erased.
 */
#define SLUICE_CHUNK_CLOSED 2

/**
 * It is written in part; `write_pointer` says where writing goes on.
 */
#define SLUICE_CHUNK_OPEN 4

/**
 * It is not to be used.
 */
#define SLUICE_CHUNK_OFFLINE 8

/**
 * Look for completions all the time: the least latency, and a core.
 */
#define SLUICE_WAIT_POLL 0

/**
 * Sleep until the device says so, or the poller that watches the queue.
 */
#define SLUICE_WAIT_EVENT 1

/**
 * Sleep for part of the time that requests of the kind and size took lately, then look.
 */
#define SLUICE_WAIT_HYBRID 2

/**
 * Queues take turns.
 */
#define SLUICE_SELECT_ROUND_ROBIN 0

/**
 * Reads on the first queue, everything else on the second.
 */
#define SLUICE_SELECT_BY_DIRECTION 1

/**
 * Requests of up to `select_sectors` on the first queue, longer ones on the second.
 */
#define SLUICE_SELECT_BY_SIZE 2

/**
 * `select` says.
 */
#define SLUICE_SELECT_CALLBACK 3

/**
 * Writes are at the device when they complete; without it they are in the cache, and durable after a
 * flush.
 */
#define SLUICE_CACHE_WRITE_THROUGH 1

/**
 * Nearly the least recently used goes first (CLOCK), at less cost per use; without it, exactly that one.
 */
#define SLUICE_CACHE_CLOCK 2

/**
 * Nothing is read ahead.
 */
#define SLUICE_CACHE_NO_READ_AHEAD 4

/**
 * Several handles may be bound to the queue, each from a thread of its own.
 */
#define SLUICE_QUEUE_SHARED 1

/**
 * The device raises no interrupts: completions are polled. Drives only.
 */
#define SLUICE_QUEUE_NO_INTERRUPTS 2

/**
 * It sleeps until enough may have come, by how fast requests ended lately.
 */
#define SLUICE_PERIOD_DYNAMIC 0

/**
 * It sleeps `period_ns` between two looks.
 */
#define SLUICE_PERIOD_FIXED 1

/**
 * It does not sleep while something is on its way.
 */
#define SLUICE_PERIOD_BUSY_POLL 2

/**
 * Sectors to memory.
 */
#define SLUICE_OP_READ 1

/**
 * Memory to sectors.
 */
#define SLUICE_OP_WRITE 2

/**
 * Everything that has completed becomes durable.
 */
#define SLUICE_OP_FLUSH 3

/**
 * The sectors' contents are no longer needed; they read as zeros afterwards.
 */
#define SLUICE_OP_DISCARD 4

/**
 * The sectors read as zeros afterwards.
 */
#define SLUICE_OP_WRITE_ZEROES 5

/**
 * A write completes when it is durable.
 */
#define SLUICE_FUA 1

/**
 * The device may deallocate the sectors that read as zeros.
 */
#define SLUICE_DEALLOCATE 2

/**
 * A timeout without limit.
 */
#define SLUICE_TIMEOUT_INFINITE UINT64_MAX

/**
 * Sectors to memory.
 */
#define SLUICE_VECTOR_READ 1

/**
 * Memory to sectors: whole units of `ws_min`, at the write pointers of their chunks.
 */
#define SLUICE_VECTOR_WRITE 2

/**
 * Erases the chunks that the addresses are in, each in one of its own.
 */
#define SLUICE_VECTOR_ERASE 3

/**
 * Sectors to other sectors inside of the drive, out-of-band bytes included.
 */
#define SLUICE_VECTOR_COPY 4

/**
 * The data needed much error correction, and should be rewritten elsewhere soon.
 */
#define SLUICE_VECTOR_HIGH_ECC 1

/**
 * Major version of the header. Headers of another one are refused.
 */
#define SLUICE_VERSION_MAJOR 0

/**
 * Minor version of the header. While the major version is 0, headers of another one are refused; later,
 * those of a larger one than the library's.
 */
#define SLUICE_VERSION_MINOR 1

/**
 * Patch version of the header. Any will do.
 */
#define SLUICE_VERSION_PATCH 0

/**
 * Version of the header: what `sluice_open()` gives to the library.
 */
#define SLUICE_VERSION (((SLUICE_VERSION_MAJOR << 16) | (SLUICE_VERSION_MINOR << 8)) | SLUICE_VERSION_PATCH)

/**
 * Memory that the device may touch. Any thread may use it, several at a time; what is in it is between
 * them and the device.
 */
typedef struct sluice_buffer sluice_buffer;

/**
 * An opened device. Any thread may use it, several at a time.
 */
typedef struct sluice_device sluice_device;

/**
 * A handle: requests and their ends, for one thread at a time.
 */
typedef struct sluice_handle sluice_handle;

/**
 * A thread that looks for completions. Any thread may use it, several at a time.
 */
typedef struct sluice_poller sluice_poller;

/**
 * A queue. Any thread may use it, several at a time.
 */
typedef struct sluice_queue sluice_queue;

/**
 * A queue for vector commands, for one thread at a time.
 */
typedef struct sluice_vector_queue sluice_vector_queue;

/**
 * How a device is opened. Set `size` to `sizeof(struct sluice_open_options)` and everything else to 0
 * that should be as usual.
 */
typedef struct sluice_open_options {
    /**
     * `sizeof(struct sluice_open_options)`.
     */
    size_t size;
    /**
     * `SLUICE_OPEN_READ_ONLY`, `SLUICE_OPEN_BUFFERED`, `SLUICE_OPEN_SHARED`, or together.
     */
    uint32_t flags;
    /**
     * Requests outstanding per queue, 1 to 65535, of a null device or of a file (up to 32768 there);
     * 0 for 1024 and 128. A drive's queues are as deep as each is made, and a target has its own depth:
     * there so many must be possible, or opening fails.
     */
    uint32_t queue_depth;
    /**
     * Bytes of a sector of a file, a power of two from 512 to 65536; 0 for what the file transfers at
     * least. 0 for everything else, which has sectors of its own: 512 bytes a null device.
     */
    uint32_t sector_bytes;
    /**
     * Queues that can be made, at least, 1 to 65535; 0 for what the device has: a drive as many as its
     * controller grants, a target one, everything else any number. A `pblk` is opened in as many shards,
     * one queue each, and its image is opened with the same number ever after.
     */
    uint32_t queues;
    /**
     * Milliseconds that the server of a drive may take for an answer, and its drive for making or
     * destroying a queue; 0 for 5000. A server that is stopped is waited for no longer: `-ETIMEDOUT`.
     * Reads and writes have no such limit. Of a real controller that this process drives (`vfio:`,
     * `uio:`): milliseconds that a command may take before it is aborted; 0 for 30000. 0 for everything
     * else.
     */
    uint32_t timeout_ms;
    /**
     * 0.
     */
    uint32_t reserved;
} sluice_open_options;

/**
 * Properties of a device. Set `size` to `sizeof(struct sluice_device_info)` before the call.
 */
typedef struct sluice_device_info {
    /**
     * `sizeof(struct sluice_device_info)`.
     */
    size_t size;
    /**
     * `SLUICE_KIND_NULL`, `SLUICE_KIND_FILE`, `SLUICE_KIND_DRIVE`, `SLUICE_KIND_TARGET` or
     * `SLUICE_KIND_REMOTE`.
     */
    uint32_t kind;
    /**
     * `SLUICE_HAS_VOLATILE_CACHE`, `SLUICE_HAS_FUA`, `SLUICE_HAS_DISCARD`, `SLUICE_HAS_WRITE_ZEROES`.
     */
    uint32_t features;
    /**
     * Sectors of the device.
     */
    uint64_t sectors;
    /**
     * Bytes of a sector: requests are of whole sectors.
     */
    uint32_t sector_bytes;
    /**
     * Sectors of one request at most.
     */
    uint32_t max_sectors;
    /**
     * Sectors that the device takes in one go.
     */
    uint32_t optimal_sectors;
    /**
     * Requests outstanding per queue at most.
     */
    uint32_t queue_depth;
    /**
     * Bytes that are registered for buffers.
     */
    uint64_t buffer_bytes;
    /**
     * Bytes of them that are free.
     */
    uint64_t buffer_bytes_free;
} sluice_device_info;

/**
 * The shape of an open-channel drive. Set `size` to `sizeof(struct sluice_vector_geometry)` before asking.
 *
 * The address of a sector is, from the highest bits on, its group, its parallel unit, its chunk and its
 * sector in the chunk, in so many bits each; `sluice_vector_address()` puts it together.
 */
typedef struct sluice_vector_geometry {
    /**
     * `sizeof(struct sluice_vector_geometry)`.
     */
    size_t size;
    /**
     * Groups (channels).
     */
    uint32_t groups;
    /**
     * Parallel units of a group.
     */
    uint32_t pus;
    /**
     * Chunks of a parallel unit.
     */
    uint32_t chunks;
    /**
     * Sectors of a chunk.
     */
    uint32_t sectors;
    /**
     * Bytes of a sector.
     */
    uint32_t sector_bytes;
    /**
     * Out-of-band bytes of a sector.
     */
    uint32_t oob_bytes;
    /**
     * Sectors that are written together at least: a write is of whole such units.
     */
    uint32_t ws_min;
    /**
     * Sectors that are best written together.
     */
    uint32_t ws_opt;
    /**
     * Sectors that must follow in the chunk before a sector can be read.
     */
    uint32_t mw_cunits;
    /**
     * Chunks that may be open at a time; 0 for no limit.
     */
    uint32_t max_open_chunks;
    /**
     * Addresses of a read or write at most: 64, or what the drive transfers at a time if that is less.
     */
    uint32_t max_addresses;
    /**
     * `SLUICE_VECTOR_CAN_COPY`.
     */
    uint32_t flags;
    /**
     * Bits of an address that are the group.
     */
    uint32_t group_bits;
    /**
     * Bits that are the parallel unit.
     */
    uint32_t pu_bits;
    /**
     * Bits that are the chunk.
     */
    uint32_t chunk_bits;
    /**
     * Bits that are the sector, the lowest.
     */
    uint32_t sector_bits;
    /**
     * The first parallel unit that may be used, counted through all groups: another than 0 of a part
     * of a drive that another process serves.
     */
    uint32_t first_pu;
    /**
     * Parallel units from there on that may be used.
     */
    uint32_t pu_count;
} sluice_vector_geometry;

/**
 * Report of a drive about a chunk.
 */
typedef struct sluice_chunk {
    /**
     * The address of its first sector.
     */
    uint64_t address;
    /**
     * Sectors that can be written in it.
     */
    uint64_t sectors;
    /**
     * Sectors from its first on that are written.
     */
    uint64_t write_pointer;
    /**
     * `SLUICE_CHUNK_FREE`, `SLUICE_CHUNK_CLOSED`, `SLUICE_CHUNK_OPEN` or `SLUICE_CHUNK_OFFLINE`.
     */
    uint32_t state;
    /**
     * How worn it is, from 0 to 255.
     */
    uint32_t wear;
} sluice_chunk;

/**
 * Says which of a handle's `queues` a request goes to; an answer of `queues` or more counts from the
 * beginning again. Called on the thread that submits, before the request goes anywhere; it must not use
 * the handle, throw, or jump out.
 */
typedef size_t (*sluice_select)(void *arg,
                                uint32_t op,
                                uint64_t lba,
                                uint32_t sectors,
                                size_t queues);

/**
 * How a handle is made. Set `size` to `sizeof(struct sluice_handle_options)` and everything else to 0
 * that should be as usual: polling, no cache.
 */
typedef struct sluice_handle_options {
    /**
     * `sizeof(struct sluice_handle_options)`.
     */
    size_t size;
    /**
     * How it waits: `SLUICE_WAIT_POLL`, `SLUICE_WAIT_EVENT` or `SLUICE_WAIT_HYBRID`.
     */
    uint32_t wait;
    /**
     * Percent of the expected time that is slept through, 1 to 99; 0 for 50. With `SLUICE_WAIT_HYBRID`
     * only.
     */
    uint32_t hybrid_percent;
    /**
     * How late this machine wakes sleepers; 0 for 60,000. With `SLUICE_WAIT_HYBRID` only.
     */
    uint64_t hybrid_late_ns;
    /**
     * Whose requests these are, for a queue with a scheduler.
     */
    uint32_t group;
    /**
     * With several queues: `SLUICE_SELECT_ROUND_ROBIN`, `SLUICE_SELECT_BY_DIRECTION`,
     * `SLUICE_SELECT_BY_SIZE` or `SLUICE_SELECT_CALLBACK`.
     */
    uint32_t selector;
    /**
     * With `SLUICE_SELECT_BY_SIZE`: sectors of a request that is not long.
     */
    uint32_t select_sectors;
    /**
     * With a cache: `SLUICE_CACHE_WRITE_THROUGH`, `SLUICE_CACHE_CLOCK`, `SLUICE_CACHE_NO_READ_AHEAD`, or
     * together.
     */
    uint32_t cache_flags;
    /**
     * With `SLUICE_SELECT_CALLBACK`: which queue a request goes to.
     */
    sluice_select select;
    /**
     * Given to `select`.
     */
    void *select_arg;
    /**
     * Bytes of the block cache, at least 64 units of 4096 bytes or of a sector; 0 for no cache.
     */
    uint64_t cache_bytes;
    /**
     * Units that are read ahead of who reads one after the other; 0 for 32.
     */
    uint32_t cache_read_ahead;
    /**
     * Requests outstanding at most with a cache; 0 for 1024.
     */
    uint32_t cache_depth;
    /**
     * Percent of the cache that may be dirty, 1 to 90; 0 for 40. Not with `SLUICE_CACHE_WRITE_THROUGH`.
     */
    uint32_t cache_dirty_percent;
    /**
     * Percent from which on it is written in the background; 0 for 10, or the former if that is less.
     * Not with `SLUICE_CACHE_WRITE_THROUGH`.
     */
    uint32_t cache_background_percent;
} sluice_handle_options;

/**
 * Counters of a handle since it was created. Set `size` to `sizeof(struct sluice_handle_stats)`
 * before the call.
 */
typedef struct sluice_handle_stats {
    /**
     * `sizeof(struct sluice_handle_stats)`.
     */
    size_t size;
    /**
     * Reads that were taken.
     */
    uint64_t reads;
    /**
     * Writes that were taken.
     */
    uint64_t writes;
    /**
     * Flushes, discards and zeroes that were taken.
     */
    uint64_t others;
    /**
     * Bytes that those reads asked for.
     */
    uint64_t read_bytes;
    /**
     * Bytes that those writes brought.
     */
    uint64_t written_bytes;
    /**
     * Requests that ended with an error.
     */
    uint64_t errors;
    /**
     * Requests that were not taken because the queue was full.
     */
    uint64_t busy;
    /**
     * Requests that are taken and not reaped.
     */
    uint64_t outstanding;
    /**
     * Times that it slept while it waited.
     */
    uint64_t sleeps;
    /**
     * How long in all.
     */
    uint64_t slept_ns;
    /**
     * Units of 4096 bytes, or of a sector where that is larger, that were asked for and in the cache.
     * This and all that follows is 0 without a cache.
     */
    uint64_t cache_hits;
    /**
     * Units that were asked for and not there.
     */
    uint64_t cache_misses;
    /**
     * Units read from the device.
     */
    uint64_t cache_fills;
    /**
     * Units among them that were read ahead.
     */
    uint64_t cache_read_ahead;
    /**
     * Units written to the device.
     */
    uint64_t cache_written;
    /**
     * Commands that wrote them.
     */
    uint64_t cache_write_commands;
    /**
     * Units given up for others.
     */
    uint64_t cache_evictions;
    /**
     * Writes to the device that failed; what they wrote is still in the cache.
     */
    uint64_t cache_write_errors;
    /**
     * Times that a request waited for a place.
     */
    uint64_t cache_stalls;
    /**
     * Units that the device does not have.
     */
    uint64_t cache_dirty;
    /**
     * Commands of its queues whose data was copied, because lists of pages could not name it. This and all
     * that follows counts a shared queue as a whole, and is 0 for what is no drive of queue pairs.
     */
    uint64_t queue_bounces;
    /**
     * Bytes that were copied.
     */
    uint64_t queue_bounced_bytes;
    /**
     * Times that such a command waited for memory to copy through.
     */
    uint64_t queue_bounce_stalls;
    /**
     * Commands that were refused because there was none.
     */
    uint64_t queue_bounce_refused;
    /**
     * Registers of doorbells in memory that were written; 0, as what follows, where doorbells are
     * registers.
     */
    uint64_t queue_doorbells;
    /**
     * Doorbell writes that were saved.
     */
    uint64_t queue_doorbells_saved;
} sluice_handle_stats;

/**
 * Shares of a queue's scheduler that a group's handles get.
 */
typedef struct sluice_group {
    /**
     * The group that `struct sluice_handle_options` names, 0 to 65535; 0 is everybody's who names none.
     */
    uint32_t group;
    /**
     * Its weight, 1 to 1000, with the scheduler `fair`; 0 for 100.
     */
    uint32_t weight;
    /**
     * Its class, 1 (goes first) to 8, with the scheduler `priority`; 0 for 5.
     */
    uint32_t priority;
    /**
     * 0.
     */
    uint32_t reserved;
    /**
     * Reads per second at most, with any scheduler; 0 for no limit.
     */
    uint64_t reads_per_sec;
    /**
     * Bytes read per second at most; 0 for no limit.
     */
    uint64_t read_bytes_per_sec;
    /**
     * Writes, discards and zeroes per second at most; 0 for no limit.
     */
    uint64_t writes_per_sec;
    /**
     * Bytes written per second at most; 0 for no limit.
     */
    uint64_t write_bytes_per_sec;
} sluice_group;

/**
 * How a queue is made. Set `size` to `sizeof(struct sluice_queue_options)` and everything else to 0
 * that should be as usual.
 */
typedef struct sluice_queue_options {
    /**
     * `sizeof(struct sluice_queue_options)`.
     */
    size_t size;
    /**
     * Requests outstanding at most, 1 to 65534; 0 for 255 on a drive. Elsewhere the device says how
     * deep its queues are, and this is 0 or the same.
     */
    uint32_t depth;
    /**
     * `SLUICE_QUEUE_SHARED`, `SLUICE_QUEUE_NO_INTERRUPTS`, or together.
     */
    uint32_t flags;
    /**
     * The scheduler: `none`, `deadline`, `kyber`, `fair` or `priority`; `NULL` for none at all, unless
     * there are groups.
     */
    const char *scheduler;
    /**
     * Requests that the device has at a time, the others waiting in the scheduler; 0 for 32. Only with
     * a scheduler.
     */
    uint32_t device_depth;
    /**
     * Requests outstanding in all, those in the scheduler included; 0 for 4096. Only with a scheduler.
     */
    uint32_t scheduler_depth;
    /**
     * Shares of the groups; may be `NULL` if there are none.
     */
    const struct sluice_group *groups;
    /**
     * How many, 1024 at most.
     */
    size_t group_count;
} sluice_queue_options;

/**
 * How a poller works. Set `size` to `sizeof(struct sluice_poller_options)` and everything else to 0 that
 * should be as usual.
 */
typedef struct sluice_poller_options {
    /**
     * `sizeof(struct sluice_poller_options)`.
     */
    size_t size;
    /**
     * `SLUICE_PERIOD_DYNAMIC`, `SLUICE_PERIOD_FIXED` or `SLUICE_PERIOD_BUSY_POLL`.
     */
    uint32_t period;
    /**
     * 0.
     */
    uint32_t reserved;
    /**
     * How long it sleeps between two looks, with `SLUICE_PERIOD_FIXED`, or at most, with
     * `SLUICE_PERIOD_DYNAMIC`, where 0 is a millisecond; a second at most.
     */
    uint64_t period_ns;
    /**
     * How late this machine wakes sleepers, with `SLUICE_PERIOD_DYNAMIC`; 0 for 60,000.
     */
    uint64_t late_ns;
} sluice_poller_options;

/**
 * Counters of a poller. Set `size` to `sizeof(struct sluice_poller_stats)` before the call.
 */
typedef struct sluice_poller_stats {
    /**
     * `sizeof(struct sluice_poller_stats)`.
     */
    size_t size;
    /**
     * Looks, each at all its queues.
     */
    uint64_t looks;
    /**
     * Completions that it found.
     */
    uint64_t completions;
    /**
     * Times that it slept with something on its way.
     */
    uint64_t naps;
    /**
     * How long its thread has had a core.
     */
    uint64_t cpu_ns;
} sluice_poller_stats;

/**
 * A request. Zero what does not apply to its operation.
 */
typedef struct sluice_request {
    /**
     * `SLUICE_OP_READ`, `SLUICE_OP_WRITE`, `SLUICE_OP_FLUSH`, `SLUICE_OP_DISCARD` or
     * `SLUICE_OP_WRITE_ZEROES`.
     */
    uint32_t op;
    /**
     * `SLUICE_FUA` with a write, `SLUICE_DEALLOCATE` with zeroes.
     */
    uint32_t flags;
    /**
     * The first sector.
     */
    uint64_t lba;
    /**
     * Sectors: 1 or more, reads and writes up to the device's `max_sectors`; 0 for a flush.
     */
    uint32_t sectors;
    /**
     * 0.
     */
    uint32_t reserved;
    /**
     * Where the data of a read or write is. It must stay until the request has ended.
     */
    const struct sluice_buffer *buffer;
    /**
     * Where in the buffer it begins, a multiple of 512 bytes.
     */
    uint64_t buffer_offset;
    /**
     * Returned with the completion; below 2^63.
     */
    uint64_t user_data;
} sluice_request;

/**
 * How a request ended.
 */
typedef struct sluice_completion {
    /**
     * The request's.
     */
    uint64_t user_data;
    /**
     * 0, or a negative `errno`: `-EIO` for what the medium has lost or did not take, `-ERANGE` past the
     * end, `-EINVAL` for a length that the device does not take, `-EROFS`, `-ENOSPC`, `-EOPNOTSUPP`,
     * `-EFAULT`, `-EBUSY` for a device that is not ready, `-ENODEV` for one that is gone, `-ECANCELED`.
     */
    int32_t error;
    /**
     * The NVMe status field that stands behind it, without its phase tag (NVMe 1.2, section 4.6.1).
     */
    uint16_t status;
    /**
     * 0.
     */
    uint16_t reserved;
} sluice_completion;

/**
 * How a vector queue is made. Set `size` to `sizeof(struct sluice_vector_queue_options)` and everything
 * else to 0 that should be as usual.
 */
typedef struct sluice_vector_queue_options {
    /**
     * `sizeof(struct sluice_vector_queue_options)`.
     */
    size_t size;
    /**
     * Commands outstanding at most, 1 to 65534; 0 for 255.
     */
    uint32_t depth;
    /**
     * How it waits: `SLUICE_WAIT_POLL` or `SLUICE_WAIT_EVENT`.
     */
    uint32_t wait;
} sluice_vector_queue_options;

/**
 * A vector command. Zero what does not apply to its operation.
 */
typedef struct sluice_vector_request {
    /**
     * `SLUICE_VECTOR_READ`, `SLUICE_VECTOR_WRITE`, `SLUICE_VECTOR_ERASE` or `SLUICE_VECTOR_COPY`.
     */
    uint32_t op;
    /**
     * Addresses: 1 to 64, or to the drive's `max_addresses` if data moves and that is less.
     */
    uint32_t count;
    /**
     * Addresses to read or write; for a copy, its sources. Not used after the call returns.
     */
    const uint64_t *addresses;
    /**
     * As many addresses, which a copy writes.
     */
    const uint64_t *targets;
    /**
     * Where the data of a read or write is, sector after sector; `NULL` drops what is read, and writes
     * zeros. It must stay until the command has ended.
     */
    const struct sluice_buffer *buffer;
    /**
     * Where in the buffer it begins, a multiple of 512 bytes.
     */
    uint64_t buffer_offset;
    /**
     * Where the out-of-band bytes of a read or write are, `oob_bytes` for each sector; `NULL` for none:
     * a write writes zeros there. It must stay until the command has ended.
     */
    const struct sluice_buffer *oob;
    /**
     * Where in that buffer they begin, a multiple of 8 bytes.
     */
    uint64_t oob_offset;
    /**
     * Returned with the completion; below 2^63.
     */
    uint64_t user_data;
    /**
     * 0.
     */
    uint32_t flags;
    /**
     * 0.
     */
    uint32_t reserved;
} sluice_vector_request;

/**
 * How a vector command ended.
 */
typedef struct sluice_vector_completion {
    /**
     * The request's.
     */
    uint64_t user_data;
    /**
     * Bit `i` stands for the `i`-th address (of a copy, the `i`-th target), which failed: it was not
     * read, or may not have been written or erased. 0 exactly if `error` is 0.
     */
    uint64_t failed;
    /**
     * 0, or a negative `errno`: those of `struct sluice_completion`, and `-ENODATA` for sectors that are
     * not written, or not readable yet, `-ESPIPE` for a write that is not at a write pointer or not of
     * whole units, `-ERANGE` for addresses that the drive does not have or that may not be used here,
     * `-EINVAL` also for chunks that cannot be erased in the state that they are in.
     */
    int32_t error;
    /**
     * The NVMe status field that stands behind it, without its phase tag.
     */
    uint16_t status;
    /**
     * `SLUICE_VECTOR_HIGH_ECC`, or 0.
     */
    uint16_t flags;
} sluice_vector_completion;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/**
 * Opens a device, for a header of a certain version. Programs call `sluice_open()`, which passes
 * it.
 *
 * `what` is one of:
 *
 * * `null`, `null:SIZE`: acknowledges everything and stores no data. 1 TiB by default; a size is
 *   in whole sectors of 512 bytes: `null:64G`.
 * * `scenario.toml`, `scenario.toml#NAME`: the drive of a scenario; `NAME` selects one of several.
 *   It runs in this process, on a thread of its own, in real time. It is recovered and
 *   preconditioned before the call returns. With `[target]` the call opens the target.
 * * `sluice:///SOCKET`, `sluice:///SOCKET#PARTITION`, `sluice:///SOCKET#DEVICE/PARTITION`: a
 *   partition of a drive that another process serves (`sluice serve --socket`).
 * * `vfio:0000:01:00.0`, `vfio:0000:01:00.0#2`: a real NVMe controller that is bound to vfio-pci
 *   (`sluice device bind`); its first namespace, or the one with that number.
 * * `uio:0000:01:00.0?unsafe=1`, `uio:0000:01:00.0?unsafe=1#2`: a real NVMe controller without an
 *   IOMMU, bound to uio_pci_generic. Unsafe: the controller reaches all memory of the machine. It
 *   raises no interrupts.
 * * anything else: the path of a file or block device of the host; `./null` is a file.
 *
 * @param version `SLUICE_VERSION`.
 * @param what Name of the device to open.
 * @param options Options, or `NULL` for the defaults.
 * @param device Receives the device, or `NULL` if the call fails.
 *
 * # Returns
 *
 * 0, or
 *
 * * `-ELIBBAD`: header and library have incompatible versions.
 * * `-EINVAL`: an invalid argument or option; a file that is empty or not whole sectors; a
 *   scenario that is invalid (`sluice_last_error()` has the line), or has several drives and none
 *   was named.
 * * `-E2BIG`: an option of a later version.
 * * `-ENOENT`, `-EACCES`, ...: the system's error for the path; `-ENOTBLK` for a directory, a pipe
 *   or the like; `-EBUSY` for a block device in use.
 * * `-EACCES`, `-EUSERS`, `-EBUSY`: the server refuses the user, more queues or connections, or
 *   has granted the partition to others; `-ECONNREFUSED`, `-ECONNRESET`: there is no server, or it
 *   stops.
 * * `-ETIMEDOUT`: the server does not reply, because it is stopped or overloaded.
 * * `-EIO`: a scenario's drive cannot be opened, for example because its image is damaged or
 *   belongs to another drive.
 * * `-EOPNOTSUPP`: a controller without IOMMU, or a kernel without VFIO.
 * * `-ENOSYS`, `-EPERM`: io_uring is not available.
 *
 * # Threads
 *
 * Any.
 */
int sluice_open_version(uint32_t version,
                        const char *what,
                        const struct sluice_open_options *options,
                        struct sluice_device **device);

/**
 * Closes a device.
 *
 * Its queues, handles and buffers can still be used. The device goes when its last queue does, and then it
 * is `sluice_queue_destroy()` that waits, and returns what is said here.
 *
 * Nothing is flushed at a file. The drive of a scenario is shut down in order, which is waited for: what was
 * left outstanding ends, a target is flushed and makes a checkpoint, the drive writes its buffer to its
 * media, and its image is synced.
 *
 * @param device The device, not to be used any more; `NULL` is nothing to close.
 *
 * # Returns
 *
 * 0, or `-EIO` if the drive of a scenario was not shut down in order: what was flushed before is there, as
 * after a power cut. The device is gone in any case.
 *
 * # Threads
 *
 * Any, once no other call uses this pointer.
 */
int sluice_close(struct sluice_device *device);

/**
 * Says what a device is called: a drive's serial number, a path, `null`.
 *
 * @param device The device.
 *
 * # Returns
 *
 * The name, valid until the device is closed; an empty one for `NULL`.
 *
 * # Threads
 *
 * Any.
 */
const char *sluice_device_name(const struct sluice_device *device);

/**
 * Says what a device is and can do.
 *
 * @param device The device.
 * @param info Filled in as far as `info->size` reaches.
 *
 * # Returns
 *
 * 0, or `-EINVAL`, also for a `size` that no version had.
 *
 * # Threads
 *
 * Any.
 */
int sluice_device_get_info(const struct sluice_device *device, struct sluice_device_info *info);

/**
 * Takes registered memory: whole pages, at a page's beginning. What is in it is whatever was in it last.
 *
 * @param device The device whose requests it is for.
 * @param bytes How much, at least 1.
 * @param buffer Where the buffer goes; `NULL` goes there if the call fails.
 *
 * # Returns
 *
 * 0, or `-EINVAL`, or `-ENOMEM`.
 *
 * # Threads
 *
 * Any. It takes a lock of the device: take buffers before they are needed.
 */
int sluice_buffer_create(const struct sluice_device *device,
                         size_t bytes,
                         struct sluice_buffer **buffer);

/**
 * Gives memory back to its device's other users.
 *
 * @param buffer The buffer, not to be used any more, and named by no request that has not ended; `NULL`
 * is nothing to give back.
 *
 * # Threads
 *
 * Any, once no other call uses this pointer.
 */
void sluice_buffer_destroy(struct sluice_buffer *buffer);

/**
 * Finds the buffer that memory is in, for programs that know only addresses.
 *
 * @param memory Any address.
 * @param bytes How many bytes from there on must be in the buffer.
 * @param buffer Where the buffer goes; `NULL` goes there if there is none. May be destroyed with what is
 * found here.
 * @param offset Where in the buffer the memory begins. May be `NULL`.
 *
 * # Returns
 *
 * 0, or `-ENOENT` if the memory is in no buffer, or not all of it in one, or `-EINVAL`.
 *
 * # Threads
 *
 * Any. It takes a lock of the process.
 */
int sluice_buffer_find(const void *memory,
                       size_t bytes,
                       struct sluice_buffer **buffer,
                       uint64_t *offset);

/**
 * Says where a buffer is.
 *
 * @param buffer The buffer.
 *
 * # Returns
 *
 * The address of its first byte, a page's; valid until the buffer is destroyed. `NULL` for `NULL`.
 *
 * # Threads
 *
 * Any. While a request names it, its bytes are the device's: written by a read, not to change under a
 * write.
 */
void *sluice_buffer_data(const struct sluice_buffer *buffer);

/**
 * Says how long a buffer is.
 *
 * @param buffer The buffer.
 *
 * # Returns
 *
 * Bytes, as it was asked for; 0 for `NULL`.
 *
 * # Threads
 *
 * Any.
 */
size_t sluice_buffer_size(const struct sluice_buffer *buffer);

/**
 * Says what shape an open-channel drive has.
 *
 * @param device The device.
 * @param geometry Filled in as far as `geometry->size` reaches.
 *
 * # Returns
 *
 * 0, or `-EINVAL`, also for a `size` that no version had, or `-EOPNOTSUPP` for anything but an open-channel
 * drive without a target.
 *
 * # Threads
 *
 * Any.
 */
int sluice_vector_get_geometry(const struct sluice_device *device,
                               struct sluice_vector_geometry *geometry);

/**
 * Puts the address of a sector together.
 *
 * @param device The device, an open-channel drive.
 * @param group Its group.
 * @param pu Its parallel unit in the group.
 * @param chunk Its chunk in the parallel unit.
 * @param sector Its place in the chunk.
 * @param address Where the address goes.
 *
 * # Returns
 *
 * 0, or `-EINVAL`, or `-ERANGE` for a sector that the drive does not have, or `-EOPNOTSUPP` as
 * `sluice_vector_get_geometry()`.
 *
 * # Threads
 *
 * Any.
 */
int sluice_vector_address(const struct sluice_device *device,
                          uint32_t group,
                          uint32_t pu,
                          uint32_t chunk,
                          uint32_t sector,
                          uint64_t *address);

/**
 * Asks an open-channel drive about its chunks.
 *
 * @param device The device.
 * @param first The first chunk, counted through all parallel units of all groups.
 * @param count How many.
 * @param chunks Where they go: as many places.
 *
 * # Returns
 *
 * 0, or `-EINVAL`, `-ERANGE` for chunks that the drive does not have, `-EOPNOTSUPP` as
 * `sluice_vector_get_geometry()`, or `-EIO`, `-ETIMEDOUT`, `-ECONNRESET` where the drive does not answer.
 * What is in `chunks` after a failure means nothing.
 *
 * # Threads
 *
 * Any. It waits for a command of the drive.
 */
int sluice_vector_get_chunks(const struct sluice_device *device,
                             uint64_t first,
                             uint64_t count,
                             struct sluice_chunk *chunks);

/**
 * Says in words why the last call of this thread failed that did.
 *
 * Calls that succeed leave the text alone.
 *
 * # Returns
 *
 * A text in English without a line break, what was wrong and what is allowed; empty if no call of this
 * thread has failed. Valid until the thread's next call that fails; never `NULL`.
 *
 * # Threads
 *
 * Any; each has a text of its own.
 */
const char *sluice_last_error(void);

/**
 * Makes a handle over one queue.
 *
 * @param queue The queue, of no other handle unless it was created with `SLUICE_QUEUE_SHARED`.
 * @param options How it waits, and its policies, or `NULL` for the defaults.
 * @param handle Where the handle goes; `NULL` goes there if the call fails.
 *
 * # Returns
 *
 * 0, or
 *
 * * `-EINVAL`: an argument or option.
 * * `-E2BIG`: an option of a later version.
 * * `-EBUSY`: the queue is another handle's.
 * * `-ENOMEM`, `-EMFILE`: no memory for the cache, no file descriptor.
 *
 * # Threads
 *
 * Any. The handle is for one thread at a time, whichever: a call that comes while another one is inside
 * fails with `-EBUSY`.
 */
int sluice_handle_create(const struct sluice_queue *queue,
                         const struct sluice_handle_options *options,
                         struct sluice_handle **handle);

/**
 * Makes a handle over several queues of one device, such as one for reads and one for writes.
 *
 * Requests on different queues are not ordered. A flush goes to one of them, and makes durable what has
 * completed on any.
 *
 * @param queues The queues, all different.
 * @param count How many, 1 to 65535; 2 or more for `SLUICE_SELECT_BY_DIRECTION` and
 * `SLUICE_SELECT_BY_SIZE`.
 * @param options Which request goes to which queue, and its policies, or `NULL` for the defaults.
 * @param handle Where the handle goes; `NULL` goes there if the call fails.
 *
 * # Returns
 *
 * As `sluice_handle_create()`, and `-EXDEV` for queues of several devices.
 *
 * # Threads
 *
 * As `sluice_handle_create()`.
 */
int sluice_handle_create_mq(struct sluice_queue *const *queues,
                            size_t count,
                            const struct sluice_handle_options *options,
                            struct sluice_handle **handle);

/**
 * Destroys a handle.
 *
 * What is outstanding is waited for, a minute at most, and its ends are thrown away. What is in a cache
 * that writes back is written and flushed. The queues can be bound to other handles afterwards, or
 * destroyed.
 *
 * @param handle The handle, not to be used any more, unless the call fails with `-EBUSY`. `NULL` is
 * nothing to destroy.
 *
 * # Returns
 *
 * 0, or
 *
 * * `-EBUSY`: another call is inside of the handle, which is as it was.
 * * `-EIO`, ...: the cache could not be written. The handle is gone, and what was in its cache. Or this
 *   closed the device, and not in order: see `sluice_close()`.
 * * `-ETIMEDOUT`: the device does not answer. The handle is gone; its queues and memory stay with the
 *   device.
 * * `-ENOTRECOVERABLE`: the library failed inside of it before. As for `-ETIMEDOUT`.
 *
 * # Threads
 *
 * The handle's.
 */
int sluice_handle_destroy(struct sluice_handle *handle);

/**
 * Chooses how a handle waits; nothing may be outstanding.
 *
 * @param handle The handle.
 * @param wait `SLUICE_WAIT_POLL`, `SLUICE_WAIT_EVENT` or `SLUICE_WAIT_HYBRID`.
 * @param hybrid_percent As in `struct sluice_handle_options`.
 * @param hybrid_late_ns As in `struct sluice_handle_options`.
 *
 * # Returns
 *
 * 0, or `-EINVAL`, or `-EBUSY` while another call is inside of the handle.
 *
 * # Threads
 *
 * The handle's.
 */
int sluice_handle_set_wait(struct sluice_handle *handle,
                           uint32_t wait,
                           uint32_t hybrid_percent,
                           uint64_t hybrid_late_ns);

/**
 * Says how many requests a handle has: taken, and not reaped.
 *
 * @param handle The handle.
 *
 * # Returns
 *
 * How many, or `-EINVAL` for `NULL`, or `-EBUSY` while another call is inside of the handle.
 *
 * # Threads
 *
 * The handle's.
 */
int sluice_handle_outstanding(const struct sluice_handle *handle);

/**
 * Says which file descriptor becomes readable when something has come for a handle, for `poll(2)` or
 * `epoll(7)` beside others.
 *
 * The handle must wait for `SLUICE_WAIT_EVENT`. Before each sleep call `sluice_handle_arm()`, after it
 * `sluice_handle_disarm()`; never read from the descriptor or close it.
 *
 * @param handle The handle.
 *
 * # Returns
 *
 * The descriptor, which lasts as long as the handle, or `-EINVAL` for `NULL`, or `-EBUSY` while another
 * call is inside of the handle.
 *
 * # Threads
 *
 * The handle's; the descriptor may be waited for anywhere.
 */
int sluice_handle_fd(const struct sluice_handle *handle);

/**
 * Before sleeping on a handle's descriptor: arms it, and says whether to sleep.
 *
 * @param handle The handle.
 * @param timeout_ns How long to sleep at most, since something falls due then that no device announces;
 * `UINT64_MAX` for any time. May be `NULL`.
 *
 * # Returns
 *
 * 1: sleep, then call `sluice_handle_disarm()`. 0: something has come, and nothing is armed;
 * `sluice_reap()`. Or `-EINVAL`, also for a handle that does not wait for events, or `-EBUSY` while
 * another call is inside of the handle.
 *
 * # Threads
 *
 * The handle's.
 */
int sluice_handle_arm(struct sluice_handle *handle,
                      uint64_t *timeout_ns);

/**
 * Makes a handle's descriptor unreadable after a sleep. The descriptor stays so until it is armed
 * again.
 *
 * @param handle The handle.
 *
 * # Returns
 *
 * 0, or `-EINVAL` for `NULL`, or `-EBUSY` while another call is inside of the handle.
 *
 * # Threads
 *
 * The handle's.
 */
int sluice_handle_disarm(struct sluice_handle *handle);

/**
 * Says what a handle has done.
 *
 * @param handle The handle.
 * @param stats Filled in as far as `stats->size` reaches.
 *
 * # Returns
 *
 * 0, or `-EINVAL`, also for a `size` that no version had, or `-EBUSY` while another call is inside of the
 * handle.
 *
 * # Threads
 *
 * The handle's.
 */
int sluice_handle_get_stats(const struct sluice_handle *handle,
                            struct sluice_handle_stats *stats);

/**
 * Makes a queue.
 *
 * Alone it is owned by the one handle that is bound to it, and no lock is on its path. With
 * `SLUICE_QUEUE_SHARED` several handles use it, each from a thread of its own.
 *
 * @param device The device.
 * @param options How, or `NULL` for the defaults.
 * @param queue Where the queue goes; `NULL` goes there if the call fails.
 *
 * # Returns
 *
 * 0, or
 *
 * * `-EINVAL`: an argument or option, such as an unknown scheduler.
 * * `-E2BIG`: an option of a later version.
 * * `-ENOSPC`: the device has no queue left.
 * * `-EOPNOTSUPP`: an open-channel drive, whose queues take no block requests:
 *   `sluice_vector_queue_create()`.
 * * `-ETIMEDOUT`: a server does not answer.
 * * `-ENOMEM`, `-EMFILE`, ...: what the system says.
 *
 * # Threads
 *
 * Any.
 */
int sluice_queue_create(const struct sluice_device *device,
                        const struct sluice_queue_options *options,
                        struct sluice_queue **queue);

/**
 * Destroys a queue.
 *
 * @param queue The queue; unless the call fails, not to be used any more. `NULL` is nothing to destroy.
 *
 * # Returns
 *
 * 0, or
 *
 * * `-EBUSY`: a handle is bound to it or a poller watches it. The queue is as it was.
 * * `-EIO`: this closed the device, and not in order: see `sluice_close()`. The queue is gone.
 *
 * # Threads
 *
 * Any, once no other call uses this pointer.
 */
int sluice_queue_destroy(struct sluice_queue *queue);

/**
 * Starts a thread that looks for completions of queues on behalf of the handles bound to them.
 *
 * @param device The device whose queues it will watch.
 * @param options How, or `NULL` for the defaults.
 * @param poller Where the poller goes; `NULL` goes there if the call fails.
 *
 * # Returns
 *
 * 0, or `-EINVAL`, `-E2BIG`, or what the system says: `-EAGAIN` without a thread, `-EMFILE` without a
 * descriptor.
 *
 * # Threads
 *
 * Any.
 */
int sluice_poller_create(const struct sluice_device *device,
                         const struct sluice_poller_options *options,
                         struct sluice_poller **poller);

/**
 * Stops the thread.
 *
 * @param poller The poller; unless the call fails, not to be used any more. `NULL` is nothing to stop.
 *
 * # Returns
 *
 * 0, or `-EBUSY` while a handle is bound to a queue that it watches: the poller goes on, and watches those
 * that are left.
 *
 * # Threads
 *
 * Any, once no other call uses this pointer.
 */
int sluice_poller_destroy(struct sluice_poller *poller);

/**
 * Watches a queue from now on. Handles bound to it wait for `SLUICE_WAIT_EVENT`, and the thread wakes them.
 *
 * @param poller The poller.
 * @param queue A queue created with `SLUICE_QUEUE_SHARED`.
 *
 * # Returns
 *
 * 0, or `-EINVAL` for a queue that is not shared, or `-EBUSY` for one that a poller watches.
 *
 * # Threads
 *
 * Any.
 */
int sluice_poller_watch(struct sluice_poller *poller,
                        const struct sluice_queue *queue);

/**
 * Ends the watch of a queue.
 *
 * @param poller The poller.
 * @param queue A queue that it watches, and no handle is bound to.
 *
 * # Returns
 *
 * 0, or `-EINVAL` for `NULL`, or `-EBUSY` for a queue that it does not watch, or with handles.
 *
 * # Threads
 *
 * Any.
 */
int sluice_poller_unwatch(struct sluice_poller *poller, const struct sluice_queue *queue);

/**
 * The former name of `sluice_poller_unwatch()`, for one release.
 *
 * @param poller The poller.
 * @param queue A queue that it watches, and no handle is bound to.
 *
 * # Returns
 *
 * As `sluice_poller_unwatch()`.
 *
 * # Threads
 *
 * Any.
 */
SLUICE_DEPRECATED
int sluice_poller_forget(struct sluice_poller *poller,
                         const struct sluice_queue *queue);

/**
 * Says how long requests take, for who knows better than what has been seen.
 *
 * @param poller The poller, with `SLUICE_PERIOD_DYNAMIC`; others do not care.
 * @param time_ns How long; 0 takes it back.
 *
 * # Returns
 *
 * 0, or `-EINVAL` for `NULL`.
 *
 * # Threads
 *
 * Any.
 */
int sluice_poller_hint(struct sluice_poller *poller, uint64_t time_ns);

/**
 * Says what a poller has done.
 *
 * @param poller The poller.
 * @param stats Filled in as far as `stats->size` reaches.
 *
 * # Returns
 *
 * 0, or `-EINVAL`, also for a `size` that no version had.
 *
 * # Threads
 *
 * Any.
 */
int sluice_poller_get_stats(const struct sluice_poller *poller, struct sluice_poller_stats *stats);

/**
 * Submits requests: they are with the device when the call returns.
 *
 * It takes as many as there is room for, in order, and stops at the first that it cannot take: submit the
 * rest again after reaping. Requests may end in any order, and those that overlap may be carried out in
 * any; who needs an order waits in between.
 *
 * @param handle The handle.
 * @param requests The requests; not looked at after the call.
 * @param count How many.
 *
 * # Returns
 *
 * How many were taken, at least 1 unless `count` is 0; or, if not even the first was,
 *
 * * `-EAGAIN`: the queue is full.
 * * `-EINVAL`: the first request says something that cannot be. What only the device can judge, such as an
 *   address past its end, is in the completion.
 * * `-EXDEV`: its buffer is of another device.
 * * `-EBUSY`: another call is inside of the handle.
 *
 * # Threads
 *
 * The handle's. It neither allocates nor locks, unless a policy or a shared queue does.
 */
int sluice_submit(struct sluice_handle *handle,
                  const struct sluice_request *requests,
                  size_t count);

/**
 * Takes completions, without waiting.
 *
 * @param handle The handle.
 * @param completions Where they go.
 * @param room How many there is room for.
 *
 * # Returns
 *
 * How many there were, 0 if nothing has ended; or `-EINVAL`, or `-EBUSY` while another call is inside of
 * the handle.
 *
 * # Threads
 *
 * The handle's. It neither allocates nor locks, unless a policy or a shared queue does.
 */
int sluice_reap(struct sluice_handle *handle,
                struct sluice_completion *completions,
                size_t room);

/**
 * Waits for completions, as the handle was told to wait.
 *
 * @param handle The handle.
 * @param completions Where they go.
 * @param room How many there is room for, at least 1.
 * @param min How many to wait for; no more than are outstanding, or than there is room for, are waited for
 * in any case. With 0 it is `sluice_reap()`.
 * @param timeout_ns How long at most; `SLUICE_TIMEOUT_INFINITE` for no limit.
 *
 * # Returns
 *
 * How many there were, fewer than `min` if the time has passed, or if no more are outstanding; or
 * `-EINVAL`, or `-EBUSY` while another call is inside of the handle.
 *
 * # Threads
 *
 * The handle's.
 */
int sluice_wait(struct sluice_handle *handle,
                struct sluice_completion *completions,
                size_t room,
                size_t min,
                uint64_t timeout_ns);

/**
 * Reads sectors into a buffer.
 *
 * @param handle The handle.
 * @param lba The first sector.
 * @param sectors How many; more than the device's `max_sectors` are read piece by piece.
 * @param buffer Where to.
 * @param buffer_offset Where in the buffer, a multiple of 512 bytes.
 *
 * # Returns
 *
 * 0, or a negative `errno`: those of `struct sluice_completion`, and `-EINVAL` or `-EXDEV` for a buffer that
 * is too short or another device's, `-EBUSY` while another call is inside of the handle.
 *
 * # Threads
 *
 * The handle's.
 */
int sluice_read(struct sluice_handle *handle,
                uint64_t lba,
                uint32_t sectors,
                struct sluice_buffer *buffer,
                uint64_t buffer_offset);

/**
 * Writes sectors from a buffer.
 *
 * They are durable after the next `sluice_flush()`, or with `SLUICE_FUA` when the call returns, which costs
 * less than a flush where the device has `SLUICE_HAS_FUA`.
 *
 * @param handle The handle.
 * @param lba The first sector.
 * @param sectors How many; more than the device's `max_sectors` are written piece by piece.
 * @param buffer Where from.
 * @param buffer_offset Where in the buffer, a multiple of 512 bytes.
 * @param flags `SLUICE_FUA` or 0.
 *
 * # Returns
 *
 * As `sluice_read()`. After a failure some of the sectors may be written.
 *
 * # Threads
 *
 * The handle's.
 */
int sluice_write(struct sluice_handle *handle,
                 uint64_t lba,
                 uint32_t sectors,
                 const struct sluice_buffer *buffer,
                 uint64_t buffer_offset,
                 uint32_t flags);

/**
 * Makes everything durable that has completed, a cache's contents included.
 *
 * @param handle The handle.
 *
 * # Returns
 *
 * 0, or a negative `errno`: those of `struct sluice_completion`, and `-EINVAL` for `NULL`, `-EBUSY` while
 * another call is inside of the handle.
 *
 * # Threads
 *
 * The handle's.
 */
int sluice_flush(struct sluice_handle *handle);

/**
 * Gives sectors up: their contents are no longer needed, and they read as zeros afterwards.
 *
 * @param handle The handle.
 * @param lba The first sector.
 * @param sectors How many.
 *
 * # Returns
 *
 * As `sluice_flush()`; `-EOPNOTSUPP` where the device does not have `SLUICE_HAS_DISCARD`.
 *
 * # Threads
 *
 * The handle's.
 */
int sluice_discard(struct sluice_handle *handle, uint64_t lba, uint32_t sectors);

/**
 * Makes sectors read as zeros.
 *
 * @param handle The handle.
 * @param lba The first sector.
 * @param sectors How many.
 * @param flags `SLUICE_DEALLOCATE`: the device may deallocate the sectors; or 0.
 *
 * # Returns
 *
 * As `sluice_flush()`; `-EOPNOTSUPP` where the device does not have `SLUICE_HAS_WRITE_ZEROES`.
 *
 * # Threads
 *
 * The handle's.
 */
int sluice_write_zeroes(struct sluice_handle *handle,
                        uint64_t lba,
                        uint32_t sectors,
                        uint32_t flags);

/**
 * Reads bytes into memory, as `pread(2)` does: what programs that used a file are changed to first.
 *
 * Memory inside of one `sluice_buffer` of the device that begins at a multiple of 512 is read into
 * directly, which takes a lock to find out; other memory is copied to.
 *
 * @param handle The handle.
 * @param memory Where to.
 * @param bytes How many, a multiple of the device's sector size.
 * @param offset Where they are on the device, in bytes, a multiple of its sector size.
 *
 * # Returns
 *
 * `bytes`, or a negative `errno` as `sluice_read()`. There are no short reads: past the end it is
 * `-ERANGE`.
 *
 * # Threads
 *
 * The handle's.
 */
int64_t sluice_pread(struct sluice_handle *handle, void *memory, size_t bytes, uint64_t offset);

/**
 * Writes bytes from memory, as `pwrite(2)` does.
 *
 * @param handle The handle.
 * @param memory Where from; see `sluice_pread()`.
 * @param bytes How many, a multiple of the device's sector size.
 * @param offset Where to on the device, in bytes, a multiple of its sector size.
 *
 * # Returns
 *
 * `bytes`, or a negative `errno` as `sluice_write()`. There are no short writes: past the end it is
 * `-ERANGE`.
 *
 * # Threads
 *
 * The handle's.
 */
int64_t sluice_pwrite(struct sluice_handle *handle,
                      const void *memory,
                      size_t bytes,
                      uint64_t offset);

/**
 * Reads bytes into several pieces of memory, one after the other, as `preadv(2)` does.
 *
 * Pieces inside of one `sluice_buffer` of the device each, that begin at a multiple of 512 and are whole
 * sectors, are read into directly, as many in one request as the device takes; drives, files and the null
 * device take 256, targets one. Others are copied to. Which is which is found out with a lock.
 *
 * @param handle The handle.
 * @param pieces Where to: addresses and bytes. Pieces of 0 bytes are passed over.
 * @param count How many pieces, 0 to 1024.
 * @param offset Where the bytes are on the device, a multiple of its sector size, as is the sum of all
 * pieces.
 *
 * # Returns
 *
 * The sum of all pieces, or a negative `errno` as `sluice_read()`. There are no short reads: past the end
 * it is `-ERANGE`. After a failure some of the pieces may be read.
 *
 * # Threads
 *
 * The handle's.
 */
int64_t sluice_preadv(struct sluice_handle *handle,
                      const struct iovec *pieces,
                      int count,
                      uint64_t offset);

/**
 * Writes bytes from several pieces of memory, one after the other, as `pwritev(2)` does.
 *
 * @param handle The handle.
 * @param pieces Where from; see `sluice_preadv()`.
 * @param count How many pieces, 0 to 1024.
 * @param offset Where to on the device, in bytes, a multiple of its sector size, as is the sum of all
 * pieces.
 *
 * # Returns
 *
 * The sum of all pieces, or a negative `errno` as `sluice_write()`. There are no short writes: past the
 * end it is `-ERANGE`. After a failure some of the pieces may be written.
 *
 * # Threads
 *
 * The handle's.
 */
int64_t sluice_pwritev(struct sluice_handle *handle,
                       const struct iovec *pieces,
                       int count,
                       uint64_t offset);

/**
 * Makes a queue for vector commands.
 *
 * @param device The device, an open-channel drive without a target.
 * @param options How, or `NULL` for the defaults.
 * @param queue Where the queue goes; `NULL` goes there if the call fails.
 *
 * # Returns
 *
 * 0, or
 *
 * * `-EINVAL`, `-E2BIG`: an argument or option, or an option of a later version.
 * * `-EOPNOTSUPP`: anything but an open-channel drive, whose targets take no addresses either.
 * * `-ENOSPC`: the device has no queue left.
 * * `-ENOMEM`, `-EMFILE`, ...: what the system says.
 * * `-ETIMEDOUT`, `-ECONNRESET`: a server does not answer, or is gone.
 *
 * # Threads
 *
 * Any.
 */
int sluice_vector_queue_create(const struct sluice_device *device,
                               const struct sluice_vector_queue_options *options,
                               struct sluice_vector_queue **queue);

/**
 * Destroys a vector queue.
 *
 * What is outstanding is waited for, a minute at most, and its ends are thrown away.
 *
 * @param queue The queue; unless the call fails with `-EBUSY`, not to be used any more. `NULL` is nothing to
 * destroy.
 *
 * # Returns
 *
 * 0, or
 *
 * * `-EBUSY`: another call is inside of the queue, which is as it was.
 * * `-ETIMEDOUT`: the device does not answer. The queue is gone; its memory stays with the device.
 * * `-ENOTRECOVERABLE`: the library failed inside of it before. As for `-ETIMEDOUT`.
 * * `-EIO`: this closed the device, and not in order: see `sluice_close()`. The queue is gone.
 *
 * # Threads
 *
 * The queue's.
 */
int sluice_vector_queue_destroy(struct sluice_vector_queue *queue);

/**
 * Says how many commands a vector queue has: taken, and not reaped.
 *
 * @param queue The queue.
 *
 * # Returns
 *
 * How many, or `-EINVAL` for `NULL`, or `-EBUSY` while another call is inside of the queue.
 *
 * # Threads
 *
 * The queue's.
 */
int sluice_vector_outstanding(const struct sluice_vector_queue *queue);

/**
 * Reads 1 to 64 sectors of an open-channel drive into a buffer, and waits for it.
 *
 * @param queue The queue.
 * @param addresses The sectors' addresses.
 * @param count How many.
 * @param buffer Where to, sector after sector; `NULL` drops what is read.
 * @param buffer_offset Where in the buffer, a multiple of 512 bytes.
 * @param failed Where the bits of the addresses go that were not read; may be `NULL`. Not written when the
 * command was not sent.
 *
 * # Returns
 *
 * 0, or a negative `errno`: those of `struct sluice_vector_completion`, with what `failed` does not name
 * read all the same; and `-EINVAL` or `-EXDEV` for an argument that cannot be, `-EBUSY` while another call is
 * inside of the queue.
 *
 * # Threads
 *
 * The queue's.
 */
int sluice_vector_read(struct sluice_vector_queue *queue,
                       const uint64_t *addresses,
                       uint32_t count,
                       struct sluice_buffer *buffer,
                       uint64_t buffer_offset,
                       uint64_t *failed);

/**
 * Writes 1 to 64 sectors of an open-channel drive from a buffer, and waits for it.
 *
 * @param queue The queue.
 * @param addresses The sectors' addresses: whole units of `ws_min`, at the write pointers of their chunks.
 * @param count How many.
 * @param buffer Where from, sector after sector; `NULL` writes zeros.
 * @param buffer_offset Where in the buffer, a multiple of 512 bytes.
 * @param failed Where the bits of the addresses go that may not be written; may be `NULL`. Not written when
 * the command was not sent.
 *
 * # Returns
 *
 * As `sluice_vector_read()`.
 *
 * # Threads
 *
 * The queue's.
 */
int sluice_vector_write(struct sluice_vector_queue *queue,
                        const uint64_t *addresses,
                        uint32_t count,
                        const struct sluice_buffer *buffer,
                        uint64_t buffer_offset,
                        uint64_t *failed);

/**
 * Erases 1 to 64 chunks of an open-channel drive, and waits for it.
 *
 * @param queue The queue.
 * @param addresses An address in each chunk.
 * @param count How many.
 * @param failed Where the bits of the addresses go whose chunks may not be erased; may be `NULL`. Not
 * written when the command was not sent.
 *
 * # Returns
 *
 * As `sluice_vector_read()`.
 *
 * # Threads
 *
 * The queue's.
 */
int sluice_vector_erase(struct sluice_vector_queue *queue,
                        const uint64_t *addresses,
                        uint32_t count,
                        uint64_t *failed);

/**
 * Copies 1 to 64 sectors inside of an open-channel drive, out-of-band bytes included, and waits for it.
 *
 * @param queue The queue.
 * @param addresses The addresses of what is read.
 * @param targets As many addresses of what is written, as for `sluice_vector_write()`.
 * @param count How many.
 * @param failed Where the bits of the targets go that may not be written: all of them, when something
 * cannot be read. May be `NULL`. Not written when the command was not sent.
 *
 * # Returns
 *
 * As `sluice_vector_read()`; `-EOPNOTSUPP` for a drive without `SLUICE_VECTOR_CAN_COPY`.
 *
 * # Threads
 *
 * The queue's.
 */
int sluice_vector_copy(struct sluice_vector_queue *queue,
                       const uint64_t *addresses,
                       const uint64_t *targets,
                       uint32_t count,
                       uint64_t *failed);

/**
 * Executes any vector command, also with out-of-band bytes, and waits for it.
 *
 * @param queue The queue.
 * @param request The command; its `user_data` is returned.
 * @param completion Receives the result. Not written if the command was not sent.
 *
 * # Returns
 *
 * 0 when the command has completed, successfully or not: see `completion->error`. Or `-EINVAL` or
 * `-EXDEV` for an invalid command, `-EOPNOTSUPP` for a copy if the drive supports none, `-EBUSY`
 * while another call is inside of the queue.
 *
 * # Threads
 *
 * The queue's.
 */
int sluice_vector_run(struct sluice_vector_queue *queue,
                      const struct sluice_vector_request *request,
                      struct sluice_vector_completion *completion);

/**
 * Submits vector commands: they are with the drive when the call returns.
 *
 * It takes as many as there is room for, in order, and stops at the first that it cannot take: submit the
 * rest again after reaping. The drive carries out those of one parallel unit in their order, and others in
 * any.
 *
 * @param queue The queue.
 * @param requests The commands; not looked at after the call.
 * @param count How many.
 *
 * # Returns
 *
 * How many were taken, at least 1 unless `count` is 0; or, if not even the first was,
 *
 * * `-EAGAIN`: the queue is full.
 * * `-EINVAL`, `-EXDEV`, `-EOPNOTSUPP`: as `sluice_vector_run()`. What only the drive can judge, such as an
 *   address that it does not have, is in the completion.
 * * `-EBUSY`: another call is inside of the queue.
 *
 * # Threads
 *
 * The queue's. It neither allocates nor locks.
 */
int sluice_vector_submit(struct sluice_vector_queue *queue,
                         const struct sluice_vector_request *requests,
                         size_t count);

/**
 * Takes vector commands that have ended, without waiting.
 *
 * @param queue The queue.
 * @param completions Where they go.
 * @param room How many there is room for.
 *
 * # Returns
 *
 * How many there were, 0 if nothing has ended; or `-EINVAL`, or `-EBUSY` while another call is inside of
 * the queue.
 *
 * # Threads
 *
 * The queue's. It neither allocates nor locks.
 */
int sluice_vector_reap(struct sluice_vector_queue *queue,
                       struct sluice_vector_completion *completions,
                       size_t room);

/**
 * Waits for vector commands to end, as the queue was told to wait.
 *
 * @param queue The queue.
 * @param completions Where they go.
 * @param room How many there is room for, at least 1.
 * @param min How many to wait for; no more than are outstanding, or than there is room for, are waited for
 * in any case. With 0 it is `sluice_vector_reap()`.
 * @param timeout_ns How long at most; `SLUICE_TIMEOUT_INFINITE` for no limit.
 *
 * # Returns
 *
 * How many there were, fewer than `min` if the time has passed, or if no more are outstanding; or
 * `-EINVAL`, or `-EBUSY` while another call is inside of the queue.
 *
 * # Threads
 *
 * The queue's.
 */
int sluice_vector_wait(struct sluice_vector_queue *queue,
                       struct sluice_vector_completion *completions,
                       size_t room,
                       size_t min,
                       uint64_t timeout_ns);

/**
 * Says which version the library has.
 *
 * To be compared with `SLUICE_VERSION`, the header's; `sluice_open()` does it and refuses a header that
 * does not fit.
 *
 * # Returns
 *
 * `major << 16 | minor << 8 | patch`.
 *
 * # Threads
 *
 * Any, at any time.
 */
uint32_t sluice_version(void);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* SLUICE_H */

/* Former names of constants, for one release. Their use is a warning. */
#ifdef __GNUC__
#define SLUICE_PRAGMA_(text) _Pragma(#text)
#else
#define SLUICE_PRAGMA_(text)
#endif
#define SLUICE_FOREVER \
    SLUICE_PRAGMA_(GCC warning "SLUICE_FOREVER is now SLUICE_TIMEOUT_INFINITE") \
    SLUICE_TIMEOUT_INFINITE
#define SLUICE_MAY_UNMAP \
    SLUICE_PRAGMA_(GCC warning "SLUICE_MAY_UNMAP is now SLUICE_DEALLOCATE") SLUICE_DEALLOCATE
#define SLUICE_PERIOD_BUSY \
    SLUICE_PRAGMA_(GCC warning "SLUICE_PERIOD_BUSY is now SLUICE_PERIOD_BUSY_POLL") \
    SLUICE_PERIOD_BUSY_POLL
#define SLUICE_KIND_SERVED \
    SLUICE_PRAGMA_(GCC warning "SLUICE_KIND_SERVED is now SLUICE_KIND_REMOTE") SLUICE_KIND_REMOTE

#ifdef __cplusplus
extern "C" {
#endif

/**
 * Opens a device. As `sluice_open_version()`, with this header's version.
 *
 * @param what What to open.
 * @param options How, or `NULL` for the defaults.
 * @param device Where the device goes; `NULL` goes there if the call fails.
 *
 * # Returns
 *
 * 0, or a negative errno: see `sluice_open_version()`.
 *
 * # Threads
 *
 * Any.
 */
static inline int sluice_open(const char *what,
                              const struct sluice_open_options *options,
                              struct sluice_device **device)
{
    return sluice_open_version(SLUICE_VERSION, what, options, device);
}

#ifdef __cplusplus
}
#endif
