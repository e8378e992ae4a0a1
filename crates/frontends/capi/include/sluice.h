/**
 * Sluice: user-level I/O to drives, real or simulated. Each call has a page in docs/capi.
 *
 * Open a device, create queues of the device, bind handles to the queues, and read and write through the
 * handles. The page of each destroy call states when the object may be destroyed. An open-channel drive
 * without a target takes vector commands of physical addresses instead, on vector queues.
 *
 * Rules that hold for every call:
 *
 * - A call returns 0 or a count, or a negative errno; `sluice_last_error()` returns the reason as text.
 *   `-ENOTRECOVERABLE` is an internal error of the library: the handle or vector queue of the call can only
 *   be destroyed.
 * - A pointer to an object was returned by the library and not destroyed yet. A call with `NULL` fails with
 *   `-EINVAL` unless its page says otherwise. Any other pointer must be valid, until the call returns, for
 *   the length that the page of the call states. The library does not detect the use of a destroyed object.
 * - A struct that may grow begins with `size`, which the caller sets to its `sizeof`. A member that is 0
 *   selects its default. If the struct of the caller is larger than the library's, its additional bytes
 *   must be 0, or the call fails with `-E2BIG`.
 * - Several threads may use a device, queue, buffer or poller at the same time. A handle or a vector queue
 *   is for one thread at a time.
 * - After `fork()`, the child must not use objects that the parent created; it opens the device again.
 */
/* Generated from crates/frontends/capi/src by cbindgen: edit the sources, then run UPDATE=1 cargo test --package sluice-capi. */

#ifndef SLUICE_H
#define SLUICE_H

#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

/* Marks the former names of calls. */
#ifdef __GNUC__
#define SLUICE_DEPRECATED __attribute__((deprecated))
#else
#define SLUICE_DEPRECATED
#endif

/**
 * Open the file or block device read-only. Requests that would change it fail with `-EROFS`.
 */
#define SLUICE_OPEN_READ_ONLY 1

/**
 * Use the host's page cache instead of direct I/O (`O_DIRECT`). Files and block devices only.
 */
#define SLUICE_OPEN_BUFFERED 2

/**
 * Open a block device even if it is in use, for example by a mounted file system.
 */
#define SLUICE_OPEN_SHARED 4

/**
 * A log in the whole persistent memory region of the drive.
 */
#define SLUICE_LOG_WHOLE_REGION UINT64_MAX

/**
 * A null device: completes every request at once and stores no data.
 */
#define SLUICE_KIND_NULL 0

/**
 * A file or block device of the host.
 */
#define SLUICE_KIND_FILE 1

/**
 * An NVMe drive, simulated or real, with queue pairs.
 */
#define SLUICE_KIND_DRIVE 2

/**
 * A target, which manages the flash of an open-channel drive on the host.
 */
#define SLUICE_KIND_TARGET 3

/**
 * A drive, or a partition of one, that another process serves.
 */
#define SLUICE_KIND_REMOTE 4

/**
 * The device has a volatile write cache: a completed write is durable after a flush.
 */
#define SLUICE_HAS_VOLATILE_CACHE 1

/**
 * The device supports writes with force unit access (`SLUICE_FUA`).
 */
#define SLUICE_HAS_FUA 2

/**
 * The device supports discards.
 */
#define SLUICE_HAS_DISCARD 4

/**
 * The device supports Write Zeroes.
 */
#define SLUICE_HAS_WRITE_ZEROES 8

/**
 * The drive supports copy (`SLUICE_VECTOR_COPY`).
 */
#define SLUICE_VECTOR_CAN_COPY 1

/**
 * The chunk is free: no sector is written.
 */
#define SLUICE_CHUNK_FREE 1

/**
 * The chunk is full, or accepts no writes until it is erased.
 */
#define SLUICE_CHUNK_CLOSED 2

/**
 * The chunk is partially written; the next write goes to `write_pointer`.
 */
#define SLUICE_CHUNK_OPEN 4

/**
 * The chunk is offline: it must not be used.
 */
#define SLUICE_CHUNK_OFFLINE 8





/**
 * All namespaces of a drive.
 */
#define SLUICE_NAMESPACE_ALL 4294967295

/**
 * The whole capacity that no namespace has.
 */
#define SLUICE_NAMESPACE_REST 18446744073709551615ull

/**
 * Stores values in an array, or as those of keys of a map.
 */
#define SLUICE_RULE_TABLE_SET 0

/**
 * Adds keys to a set.
 */
#define SLUICE_RULE_TABLE_ADD 1

/**
 * Removes keys from a set or a map.
 */
#define SLUICE_RULE_TABLE_REMOVE 2

/**
 * Busy-poll for completions: lowest latency, occupies a core. A new handle over a target of a
 * scenario that sets `path.completion` waits as that says instead.
 */
#define SLUICE_WAIT_POLL 0

/**
 * Sleep until the device, or the poller that watches the queue, wakes the handle.
 */
#define SLUICE_WAIT_EVENT 1

/**
 * Sleep for a part of the expected latency, then busy-poll. The expected latency is the recent
 * mean of requests of the same operation and size.
 */
#define SLUICE_WAIT_HYBRID 2

/**
 * Use the queues in rotation.
 */
#define SLUICE_SELECT_ROUND_ROBIN 0

/**
 * Use the first queue for reads, and the second for all other requests.
 */
#define SLUICE_SELECT_BY_DIRECTION 1

/**
 * Use the second queue for reads and writes of more than `select_sectors` sectors, and the first
 * for all other requests.
 */
#define SLUICE_SELECT_BY_SIZE 2

/**
 * Call `select` for each request.
 */
#define SLUICE_SELECT_CALLBACK 3

/**
 * A write completes after the device has completed it. Without this flag, a write completes in the
 * cache and is durable after a flush.
 */
#define SLUICE_CACHE_WRITE_THROUGH 1

/**
 * Evict by the CLOCK algorithm, which approximates LRU at less cost per access. Without this flag,
 * evict the least recently used block.
 */
#define SLUICE_CACHE_CLOCK 2

/**
 * Disable read-ahead.
 */
#define SLUICE_CACHE_NO_READ_AHEAD 4

/**
 * Several handles, each of its own thread, may be bound to the queue.
 */
#define SLUICE_QUEUE_SHARED 1

/**
 * The queue raises no interrupts; the host polls for completions. Drives only.
 */
#define SLUICE_QUEUE_NO_INTERRUPTS 2

/**
 * The poller adapts its polling interval to the recent rate of completions: it sleeps until enough
 * requests should have completed while the device still has work.
 */
#define SLUICE_PERIOD_DYNAMIC 0

/**
 * The poller sleeps `period_ns` between two polls.
 */
#define SLUICE_PERIOD_FIXED 1

/**
 * The poller busy-polls while requests are outstanding.
 */
#define SLUICE_PERIOD_BUSY_POLL 2

/**
 * Read sectors into a buffer.
 */
#define SLUICE_OP_READ 1

/**
 * Write sectors from a buffer.
 */
#define SLUICE_OP_WRITE 2

/**
 * Make all completed writes durable.
 */
#define SLUICE_OP_FLUSH 3

/**
 * Discard sectors: the device may drop their contents, and they read as zeros afterwards.
 */
#define SLUICE_OP_DISCARD 4

/**
 * Write zeros to sectors without transferring data.
 */
#define SLUICE_OP_WRITE_ZEROES 5

/**
 * Force unit access: the write completes when it is durable.
 */
#define SLUICE_FUA 1

/**
 * The device may deallocate the sectors of a Write Zeroes.
 */
#define SLUICE_DEALLOCATE 2

/**
 * Atomic: a power cut does not tear the write, or the Write Zeroes without `SLUICE_DEALLOCATE`. It has
 * at most `atomic_sectors` sectors and crosses no boundary (`struct sluice_device_info`); otherwise it
 * is refused, and nothing is written.
 */
#define SLUICE_ATOMIC 4

/**
 * Wait without a time limit.
 */
#define SLUICE_TIMEOUT_INFINITE UINT64_MAX

/**
 * Read sectors into a buffer.
 */
#define SLUICE_VECTOR_READ 1

/**
 * Write sectors from a buffer: whole units of `ws_min` sectors, at the write pointers of their
 * chunks.
 */
#define SLUICE_VECTOR_WRITE 2

/**
 * Erase chunks. Each address selects a different chunk.
 */
#define SLUICE_VECTOR_ERASE 3

/**
 * Copy sectors inside the drive. Without `oob`, their out-of-band bytes are copied as well.
 */
#define SLUICE_VECTOR_COPY 4

/**
 * The data needed much error correction. It should be rewritten at another location soon.
 */
#define SLUICE_VECTOR_HIGH_ECC 1

/**
 * Major version of the header. The library refuses headers with another major version.
 */
#define SLUICE_VERSION_MAJOR 0

/**
 * Minor version of the header. While the major version is 0, the library refuses headers with
 * another minor version; later, headers with a larger one than its own.
 */
#define SLUICE_VERSION_MINOR 1

/**
 * Patch version of the header. It does not affect compatibility.
 */
#define SLUICE_VERSION_PATCH 0

/**
 * Version of the header, which `sluice_open()` passes to the library.
 */
#define SLUICE_VERSION (((SLUICE_VERSION_MAJOR << 16) | (SLUICE_VERSION_MINOR << 8)) | SLUICE_VERSION_PATCH)

/**
 * Memory that is registered with a device. Several threads may use it at the same time; the
 * application synchronizes accesses to its contents.
 */
typedef struct sluice_buffer sluice_buffer;

/**
 * An opened device. Several threads may use it at the same time.
 */
typedef struct sluice_device sluice_device;

/**
 * A handle: submits and reaps requests, for one thread at a time.
 */
typedef struct sluice_handle sluice_handle;

/**
 * A thread that polls for completions. Several threads may use the object at the same time.
 */
typedef struct sluice_poller sluice_poller;

/**
 * A hardware queue, optionally behind a scheduler. Several threads may use it at the same time.
 */
typedef struct sluice_queue sluice_queue;

/**
 * A queue for vector commands, for one thread at a time.
 */
typedef struct sluice_vector_queue sluice_vector_queue;

/**
 * Options of `sluice_open()`. Set `size` to `sizeof(struct sluice_open_options)`. A member that is
 * 0 selects its default.
 */
typedef struct sluice_open_options {
    /**
     * `sizeof(struct sluice_open_options)`.
     */
    size_t size;
    /**
     * Bitwise OR of `SLUICE_OPEN_READ_ONLY`, `SLUICE_OPEN_BUFFERED` and `SLUICE_OPEN_SHARED`. All
     * three apply to files and block devices only.
     */
    uint32_t flags;
    /**
     * Maximum number of outstanding requests per queue. Null device: 1 to 65535, default 1024.
     * File or block device: 1 to 32768, default 128. Other devices have depths of their own; there
     * it is the minimum depth that the device must support, or opening fails with `-EINVAL`.
     */
    uint32_t queue_depth;
    /**
     * Sector size of a file in bytes, a power of two from 512 to 65536; 0 for the smallest size
     * that the file supports. Must be 0 for all other devices, which define their sector size
     * (null device: 512).
     */
    uint32_t sector_bytes;
    /**
     * Minimum number of queues that can be created, 1 to 65535; 0 for what the device has. A drive
     * has as many as its controller grants, a target has one, and other devices have any number. A
     * `pblk` target is opened with this many shards of one queue each. Its image stores the
     * number, and can only be opened with the same number afterwards.
     */
    uint32_t queues;
    /**
     * Timeout in milliseconds. For a served drive: time within which the server must reply, and
     * within which its drive must create or destroy a queue; default 5000. A call that exceeds it
     * fails with `-ETIMEDOUT`. Reads and writes have no timeout. For a real controller (`vfio:`,
     * `uio:`): time after which the library aborts a command; default 30000. Must be 0 for all
     * other devices.
     */
    uint32_t timeout_ms;
    /**
     * Reserved; must be 0.
     */
    uint32_t reserved;
    /**
     * Size in bytes of a log for small writes in the persistent memory region of a scenario's drive
     * (`docs/scenario.md`): a multiple of 64, from 131328 to the size of the region, or
     * `SLUICE_LOG_WHOLE_REGION`. 0 for the log that the scenario gives the path, if any; if it gives
     * one, another size fails with `-EINVAL`. Must be 0 for all other devices.
     */
    uint64_t log_bytes;
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
     * Bitwise OR of `SLUICE_HAS_VOLATILE_CACHE`, `SLUICE_HAS_FUA`, `SLUICE_HAS_DISCARD` and
     * `SLUICE_HAS_WRITE_ZEROES`.
     */
    uint32_t features;
    /**
     * Capacity in sectors.
     */
    uint64_t sectors;
    /**
     * Sector size in bytes. Requests consist of whole sectors.
     */
    uint32_t sector_bytes;
    /**
     * Maximum number of sectors of a request.
     */
    uint32_t max_sectors;
    /**
     * Number of sectors that the media programs at once.
     */
    uint32_t optimal_sectors;
    /**
     * Maximum number of outstanding requests per queue.
     */
    uint32_t queue_depth;
    /**
     * Bytes of memory registered for buffers.
     */
    uint64_t buffer_bytes;
    /**
     * Bytes of `buffer_bytes` that are free.
     */
    uint64_t buffer_bytes_free;
    /**
     * Maximum number of sectors of a write that a power cut does not tear; 0 if the device promises
     * nothing.
     */
    uint32_t atomic_sectors;
    /**
     * A write across a multiple of this many sectors is not atomic; 0 for no boundary.
     */
    uint32_t atomic_boundary_sectors;
} sluice_device_info;

/**
 * Geometry of an open-channel drive. Set `size` to `sizeof(struct sluice_vector_geometry)` before
 * the call.
 *
 * The address of a sector consists of, from the highest bits to the lowest: group, parallel unit,
 * chunk, and sector in the chunk. The members `*_bits` are the widths of these fields.
 * `sluice_vector_address()` builds an address.
 */
typedef struct sluice_vector_geometry {
    /**
     * `sizeof(struct sluice_vector_geometry)`.
     */
    size_t size;
    /**
     * Number of groups (channels).
     */
    uint32_t groups;
    /**
     * Number of parallel units per group.
     */
    uint32_t pus;
    /**
     * Number of chunks per parallel unit.
     */
    uint32_t chunks;
    /**
     * Number of sectors per chunk.
     */
    uint32_t sectors;
    /**
     * Sector size in bytes.
     */
    uint32_t sector_bytes;
    /**
     * Number of out-of-band bytes per sector.
     */
    uint32_t oob_bytes;
    /**
     * Minimum write size in sectors: a write consists of whole units of this size.
     */
    uint32_t ws_min;
    /**
     * Optimal write size in sectors.
     */
    uint32_t ws_opt;
    /**
     * Number of sectors that must be written after a sector in its chunk before that sector can be
     * read.
     */
    uint32_t mw_cunits;
    /**
     * Maximum number of open chunks; 0 for no limit.
     */
    uint32_t max_open_chunks;
    /**
     * Maximum number of addresses of a read or write: 64, or less if the drive's maximum transfer
     * size is smaller.
     */
    uint32_t max_addresses;
    /**
     * `SLUICE_VECTOR_CAN_COPY`, or 0.
     */
    uint32_t flags;
    /**
     * Width of the group field of an address, in bits.
     */
    uint32_t group_bits;
    /**
     * Width of the parallel unit field, in bits.
     */
    uint32_t pu_bits;
    /**
     * Width of the chunk field, in bits.
     */
    uint32_t chunk_bits;
    /**
     * Width of the sector field, in bits.
     */
    uint32_t sector_bits;
    /**
     * First parallel unit that may be used, counted through all groups. Nonzero only for a
     * partition of a drive that another process serves.
     */
    uint32_t first_pu;
    /**
     * Number of parallel units from `first_pu` on that may be used.
     */
    uint32_t pu_count;
} sluice_vector_geometry;

/**
 * A drive's report about a chunk.
 */
typedef struct sluice_chunk {
    /**
     * Address of its first sector.
     */
    uint64_t address;
    /**
     * Number of sectors that can be written.
     */
    uint64_t sectors;
    /**
     * Number of sectors that are written, from the first one on.
     */
    uint64_t write_pointer;
    /**
     * `SLUICE_CHUNK_FREE`, `SLUICE_CHUNK_CLOSED`, `SLUICE_CHUNK_OPEN` or `SLUICE_CHUNK_OFFLINE`.
     */
    uint32_t state;
    /**
     * Wear index, 0 to 255.
     */
    uint32_t wear;
} sluice_chunk;

/**
 * The result of a command to the rules of a drive.
 */
typedef struct sluice_rule_reply {
    /**
     * The value of the rule. Of a command with a buffer, values above 4294967295 are 4294967295.
     */
    uint64_t value;
    /**
     * Bytes that the drive wrote to the begin of the buffer.
     */
    uint32_t bytes;
    /**
     * NVMe status without its *do not retry* bit, type in bits 10:8 and code in bits 7:0; 0 for success.
     * Rules of a drive (`docs/rules.md`) lists the codes of rules.
     */
    uint32_t status;
} sluice_rule_reply;

/**
 * An event that rules of a drive have posted.
 */
typedef struct sluice_rule_event {
    /**
     * `SLUICE_RULE_EVENT_MIGRATED` or `SLUICE_RULE_EVENT_LOST`.
     */
    uint32_t kind;
    /**
     * Its values.
     */
    uint64_t values[3];
} sluice_rule_event;

/**
 * A valid sector that the drive found when it was powered on.
 */
typedef struct sluice_found_name {
    /**
     * The name of the sector.
     */
    uint64_t name;
    /**
     * The host's tag.
     */
    uint64_t tag;
} sluice_found_name;

/**
 * A namespace of a drive.
 */
typedef struct sluice_namespace {
    /**
     * Size in logical blocks.
     */
    uint64_t blocks;
    /**
     * Number of mapped blocks.
     */
    uint64_t used_blocks;
    /**
     * Capacity in bytes that is allocated to it.
     */
    uint64_t allocated_bytes;
    /**
     * Namespace identifier.
     */
    uint32_t nsid;
    /**
     * Bytes of a logical block.
     */
    uint32_t block_bytes;
    /**
     * 1 if it is attached, so that hosts can address it; else 0.
     */
    uint32_t attached;
    /**
     * 0.
     */
    uint32_t reserved;
    /**
     * Globally unique identifier.
     */
    uint8_t nguid[16];
} sluice_namespace;

/**
 * A command to the rules of a drive.
 */
typedef struct sluice_rule_request {
    /**
     * First sector, `header.lba`.
     */
    uint64_t lba;
    /**
     * Number of sectors, `header.sectors`, 1 to 65536.
     */
    uint64_t sectors;
    /**
     * First argument, `header.arg0`.
     */
    uint64_t arg0;
    /**
     * Second argument, `header.arg1`.
     */
    uint64_t arg1;
} sluice_rule_request;

/**
 * The commands of an operation that no rule of a drive matched.
 */
typedef struct sluice_rule_misses {
    /**
     * The operation as the language of rules names it, such as `read` or `write`, with zeros behind it.
     */
    char op[16];
    /**
     * Commands that missed.
     */
    uint64_t misses;
    /**
     * Commands that are parked.
     */
    uint64_t parked;
    /**
     * Commands that a rule of a later program matched.
     */
    uint64_t released;
    /**
     * Commands that were rejected.
     */
    uint64_t rejected;
    /**
     * Commands that ended after the timeout.
     */
    uint64_t timed_out;
    /**
     * Commands that ended at once, because too many of their queue were parked.
     */
    uint64_t refused;
    /**
     * Commands that ended because of an Abort, the deletion of their queue, or a power cut.
     */
    uint64_t aborted;
    /**
     * First block of the command that missed last.
     */
    uint64_t lba;
} sluice_rule_misses;

/**
 * Counters of an application of the rules of a drive.
 */
typedef struct sluice_rule_app {
    /**
     * Its name as the program declares it, with zeros behind it; of a longer name the first 63 bytes.
     */
    char name[64];
    /**
     * Inputs of its commands.
     */
    uint64_t inputs;
    /**
     * Its commands that no rule matched.
     */
    uint64_t misses;
    /**
     * Operations of its inputs and polls.
     */
    uint64_t ops;
    /**
     * Polls of its background rules for a victim.
     */
    uint64_t polls;
    /**
     * Polls of its background rules by an idle drive.
     */
    uint64_t idle_polls;
    /**
     * Runs of its periodic rules.
     */
    uint64_t periodic;
    /**
     * Victims that its rules chose.
     */
    uint64_t victims;
    /**
     * Lines that were relocated although no space was needed.
     */
    uint64_t relocated;
    /**
     * Victims of the policy of its FTL, because the host waited for space and no rule chose one.
     */
    uint64_t policy_victims;
    /**
     * Sectors of writes that its rules placed in the stream `hot`.
     */
    uint64_t hot_sectors;
} sluice_rule_app;

/**
 * Callback that returns the index of a request's queue, 0 to `queues - 1`; larger values wrap
 * around (modulo `queues`). The library calls it on the submitting thread before it submits the
 * request. The callback must not call functions on the handle, throw an exception, or call
 * `longjmp(3)`.
 */
typedef size_t (*sluice_select)(void *arg,
                                uint32_t op,
                                uint64_t lba,
                                uint32_t sectors,
                                size_t queues);

/**
 * Options of a handle. Set `size` to `sizeof(struct sluice_handle_options)`. A member that is 0
 * selects its default: busy-polling, no cache.
 */
typedef struct sluice_handle_options {
    /**
     * `sizeof(struct sluice_handle_options)`.
     */
    size_t size;
    /**
     * Wait mode: `SLUICE_WAIT_POLL`, `SLUICE_WAIT_EVENT` or `SLUICE_WAIT_HYBRID`.
     */
    uint32_t wait;
    /**
     * Percent of the expected latency after which busy-polling begins, 1 to 99; 0 for 50. With
     * `SLUICE_WAIT_HYBRID` only.
     */
    uint32_t hybrid_percent;
    /**
     * Wakeup latency of this machine in nanoseconds; 0 for 60,000. Busy-polling begins that much
     * earlier. With `SLUICE_WAIT_HYBRID` only.
     */
    uint64_t hybrid_late_ns;
    /**
     * Group of the handle's requests, 0 to 65535. Other values than 0 need a queue with a
     * scheduler.
     */
    uint32_t group;
    /**
     * Selection among several queues: `SLUICE_SELECT_ROUND_ROBIN`, `SLUICE_SELECT_BY_DIRECTION`,
     * `SLUICE_SELECT_BY_SIZE` or `SLUICE_SELECT_CALLBACK`.
     */
    uint32_t selector;
    /**
     * With `SLUICE_SELECT_BY_SIZE`: maximum number of sectors of a request on the first queue, at
     * least 1.
     */
    uint32_t select_sectors;
    /**
     * With a cache: bitwise OR of `SLUICE_CACHE_WRITE_THROUGH`, `SLUICE_CACHE_CLOCK` and
     * `SLUICE_CACHE_NO_READ_AHEAD`.
     */
    uint32_t cache_flags;
    /**
     * With `SLUICE_SELECT_CALLBACK`: the callback.
     */
    sluice_select select;
    /**
     * Passed to `select` as `arg`.
     */
    void *select_arg;
    /**
     * Size of the block cache in bytes, at least 64 blocks; 0 for no cache. A block is 4096 bytes,
     * or one sector if that is larger.
     */
    uint64_t cache_bytes;
    /**
     * Maximum number of blocks that are read ahead of a sequential reader, at most a quarter of
     * the cache; 0 for 32, or a quarter of the cache if that is less.
     */
    uint32_t cache_read_ahead;
    /**
     * Maximum number of outstanding requests with a cache; 0 for 1024.
     */
    uint32_t cache_depth;
    /**
     * Maximum percent of the cache that may be dirty, 1 to 90; 0 for 40. Writes beyond it wait.
     * Not with `SLUICE_CACHE_WRITE_THROUGH`.
     */
    uint32_t cache_dirty_percent;
    /**
     * Percent of dirty blocks at which background writeback starts, 1 to `cache_dirty_percent`; 0
     * for 10, or `cache_dirty_percent` if that is less. Not with `SLUICE_CACHE_WRITE_THROUGH`.
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
     * Number of reads submitted.
     */
    uint64_t reads;
    /**
     * Number of writes submitted.
     */
    uint64_t writes;
    /**
     * Number of flushes, discards and Write Zeroes submitted.
     */
    uint64_t others;
    /**
     * Bytes of the reads submitted.
     */
    uint64_t read_bytes;
    /**
     * Bytes of the writes submitted.
     */
    uint64_t written_bytes;
    /**
     * Number of requests that completed with an error.
     */
    uint64_t errors;
    /**
     * Number of submissions rejected because the queue was full.
     */
    uint64_t busy;
    /**
     * Number of requests submitted and not reaped.
     */
    uint64_t outstanding;
    /**
     * Number of sleeps while waiting for completions.
     */
    uint64_t sleeps;
    /**
     * Total time of these sleeps, in nanoseconds.
     */
    uint64_t slept_ns;
    /**
     * Number of blocks requested that were in the cache. A block is 4096 bytes, or one sector if
     * that is larger. The `cache_*` counters are 0 without a cache.
     */
    uint64_t cache_hits;
    /**
     * Number of blocks requested that were absent or still being filled.
     */
    uint64_t cache_misses;
    /**
     * Number of blocks read from the device, including read-ahead.
     */
    uint64_t cache_fills;
    /**
     * Number of blocks of `cache_fills` that were read ahead.
     */
    uint64_t cache_read_ahead;
    /**
     * Number of blocks written to the device.
     */
    uint64_t cache_written;
    /**
     * Number of commands that wrote these blocks.
     */
    uint64_t cache_write_commands;
    /**
     * Number of blocks evicted.
     */
    uint64_t cache_evictions;
    /**
     * Number of blocks whose write to the device failed; their data is still in the cache.
     */
    uint64_t cache_write_errors;
    /**
     * Number of times that a request waited for a free block of the cache.
     */
    uint64_t cache_stalls;
    /**
     * Number of blocks that are newer in the cache than on the device.
     */
    uint64_t cache_dirty;
    /**
     * Number of commands whose data was copied, because PRP lists could not address it. The
     * `queue_*` counters include all handles of a shared queue, and are 0 for devices without
     * queue pairs.
     */
    uint64_t queue_bounces;
    /**
     * Bytes copied for these commands.
     */
    uint64_t queue_bounced_bytes;
    /**
     * Number of times that such a command was rejected as busy because too little bounce memory
     * was free.
     */
    uint64_t queue_bounce_stalls;
    /**
     * Number of such commands that failed because bounce memory could not be allocated.
     */
    uint64_t queue_bounce_refused;
    /**
     * Number of doorbell registers written with shadow doorbells (a doorbell buffer in memory). 0
     * without shadow doorbells.
     */
    uint64_t queue_doorbells;
    /**
     * Number of register writes that shadow doorbells saved. 0 without shadow doorbells.
     */
    uint64_t queue_doorbells_saved;
} sluice_handle_stats;

/**
 * Weight, priority and rate limits of a group, which apply to all handles of the group together.
 * For each rate limit, a group may save up a burst of a tenth of a second.
 */
typedef struct sluice_group {
    /**
     * Group number as in `struct sluice_handle_options`, 0 to 65535. Group 0 is the default.
     */
    uint32_t group;
    /**
     * Weight with the scheduler `fair`, 1 to 1000; 0 for 100. Must be 0 with other schedulers.
     */
    uint32_t weight;
    /**
     * Priority class with the scheduler `priority`, 1 (highest) to 8; 0 for 5. Must be 0 with
     * other schedulers.
     */
    uint32_t priority;
    /**
     * Reserved; must be 0.
     */
    uint32_t reserved;
    /**
     * Maximum number of reads per second, with any scheduler; 0 for no limit.
     */
    uint64_t reads_per_sec;
    /**
     * Maximum number of bytes read per second; 0 for no limit.
     */
    uint64_t read_bytes_per_sec;
    /**
     * Maximum number of writes, discards and Write Zeroes per second; 0 for no limit.
     */
    uint64_t writes_per_sec;
    /**
     * Maximum number of bytes written per second; 0 for no limit.
     */
    uint64_t write_bytes_per_sec;
} sluice_group;

/**
 * Options of a queue. Set `size` to `sizeof(struct sluice_queue_options)`. A member that is 0 or
 * `NULL` selects its default.
 */
typedef struct sluice_queue_options {
    /**
     * `sizeof(struct sluice_queue_options)`.
     */
    size_t size;
    /**
     * Queue depth: maximum number of outstanding requests. Drive: 1 to 65534; 0 for 255. Other
     * devices define the depth of their queues; there it must be 0 or the `queue_depth` of
     * `struct sluice_device_info`.
     */
    uint32_t depth;
    /**
     * Bitwise OR of `SLUICE_QUEUE_SHARED` and `SLUICE_QUEUE_NO_INTERRUPTS`.
     */
    uint32_t flags;
    /**
     * Name of the scheduler: `none`, `deadline`, `kyber`, `fair` or `priority`. `NULL` means no
     * scheduler, or `none` if there are groups.
     */
    const char *scheduler;
    /**
     * Maximum number of requests in the device, 1 to 65535; 0 for 32. Other requests wait in the
     * scheduler. Must be 0 without a scheduler.
     */
    uint32_t device_depth;
    /**
     * Maximum number of outstanding requests, including those in the scheduler; 0 for 4096. Must
     * be 0 without a scheduler.
     */
    uint32_t scheduler_depth;
    /**
     * Array of the groups; may be `NULL` if `group_count` is 0.
     */
    const struct sluice_group *groups;
    /**
     * Number of groups, at most 1024.
     */
    size_t group_count;
} sluice_queue_options;

/**
 * Options of a poller. Set `size` to `sizeof(struct sluice_poller_options)`. A member that is 0
 * selects its default.
 */
typedef struct sluice_poller_options {
    /**
     * `sizeof(struct sluice_poller_options)`.
     */
    size_t size;
    /**
     * Polling mode: `SLUICE_PERIOD_DYNAMIC`, `SLUICE_PERIOD_FIXED` or `SLUICE_PERIOD_BUSY_POLL`.
     */
    uint32_t period;
    /**
     * Reserved; must be 0.
     */
    uint32_t reserved;
    /**
     * Polling interval in nanoseconds, at most 1,000,000,000. With `SLUICE_PERIOD_FIXED`: the
     * sleep between two polls, at least 1. With `SLUICE_PERIOD_DYNAMIC`: the longest sleep; 0 for
     * 1,000,000. Must be 0 with `SLUICE_PERIOD_BUSY_POLL`.
     */
    uint64_t period_ns;
    /**
     * With `SLUICE_PERIOD_DYNAMIC`: initial estimate of the machine's wakeup latency in
     * nanoseconds; 0 for 60,000. The poller then measures it. Must be 0 with other modes.
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
     * Number of polls, each of all watched queues.
     */
    uint64_t looks;
    /**
     * Number of completions found.
     */
    uint64_t completions;
    /**
     * Number of sleeps while requests were outstanding.
     */
    uint64_t naps;
    /**
     * CPU time of the poller's thread, in nanoseconds.
     */
    uint64_t cpu_ns;
} sluice_poller_stats;

/**
 * A request. Members that do not apply to the operation must be 0 or `NULL`.
 */
typedef struct sluice_request {
    /**
     * `SLUICE_OP_READ`, `SLUICE_OP_WRITE`, `SLUICE_OP_FLUSH`, `SLUICE_OP_DISCARD` or
     * `SLUICE_OP_WRITE_ZEROES`.
     */
    uint32_t op;
    /**
     * `SLUICE_FUA` for a write, `SLUICE_DEALLOCATE` for a Write Zeroes, `SLUICE_ATOMIC` for either; or 0.
     */
    uint32_t flags;
    /**
     * First sector.
     */
    uint64_t lba;
    /**
     * Number of sectors, at least 1; at most the device's `max_sectors` for reads and writes. 0
     * for a flush.
     */
    uint32_t sectors;
    /**
     * Reserved; must be 0.
     */
    uint32_t reserved;
    /**
     * Buffer of a read or write. It must not be destroyed before the request completes.
     */
    const struct sluice_buffer *buffer;
    /**
     * Offset of the data in the buffer, in bytes; a multiple of 512.
     */
    uint64_t buffer_offset;
    /**
     * Value that the completion returns; below 2^63.
     */
    uint64_t user_data;
} sluice_request;

/**
 * Completion of a request.
 */
typedef struct sluice_completion {
    /**
     * `user_data` of the request.
     */
    uint64_t user_data;
    /**
     * 0, or a negative `errno`: `-EIO` for a media error, `-EILSEQ` for data that does not match its
     * protection information, `-ERANGE` for sectors beyond the end of the device, `-EINVAL` for an invalid length or field, `-EROFS`, `-ENOSPC`, `-EOPNOTSUPP`,
     * `-EFAULT` for a failed data transfer, `-EBUSY` if the device is not ready, `-ENODEV` if it
     * was removed, `-ECONNRESET` if its server has ended, `-ECANCELED`.
     */
    int32_t error;
    /**
     * NVMe status field without the phase tag (NVMe 1.2, section 4.6.1), from which `error`
     * derives.
     */
    uint16_t status;
    /**
     * 0.
     */
    uint16_t reserved;
} sluice_completion;

/**
 * Options of a vector queue. Set `size` to `sizeof(struct sluice_vector_queue_options)`. A member
 * that is 0 selects its default.
 */
typedef struct sluice_vector_queue_options {
    /**
     * `sizeof(struct sluice_vector_queue_options)`.
     */
    size_t size;
    /**
     * Queue depth: maximum number of outstanding commands, 1 to 65534; 0 for 255.
     */
    uint32_t depth;
    /**
     * Wait mode: `SLUICE_WAIT_POLL` or `SLUICE_WAIT_EVENT`.
     */
    uint32_t wait;
} sluice_vector_queue_options;

/**
 * A vector command. Members that do not apply to the operation must be 0 or `NULL`.
 */
typedef struct sluice_vector_request {
    /**
     * `SLUICE_VECTOR_READ`, `SLUICE_VECTOR_WRITE`, `SLUICE_VECTOR_ERASE` or `SLUICE_VECTOR_COPY`.
     */
    uint32_t op;
    /**
     * Number of addresses: 1 to 64; for reads and writes at most the drive's `max_addresses`.
     */
    uint32_t count;
    /**
     * Array of `count` addresses: sectors to read or write, a sector of each chunk to erase, or
     * the sources of a copy. The library does not access the array after the call.
     */
    const uint64_t *addresses;
    /**
     * Targets of a copy: array of `count` addresses. The library does not access it after the
     * call.
     */
    const uint64_t *targets;
    /**
     * Buffer of a read or write, with the sectors in the order of the addresses. With `NULL` the
     * drive discards the data of a read, and writes zeros. The buffer must not be destroyed before
     * the command completes.
     */
    const struct sluice_buffer *buffer;
    /**
     * Offset of the data in `buffer`, in bytes; a multiple of 512.
     */
    uint64_t buffer_offset;
    /**
     * Buffer for the out-of-band bytes of a read or write, or of the targets of a copy on drives of
     * Sluice, `oob_bytes` per sector. With `NULL` the drive transfers none, and writes zeros, or
     * copies those of the sources. The buffer must not be destroyed before the command completes.
     */
    const struct sluice_buffer *oob;
    /**
     * Offset of the out-of-band bytes in `oob`, in bytes; a multiple of 8.
     */
    uint64_t oob_offset;
    /**
     * Value that the completion returns; below 2^63.
     */
    uint64_t user_data;
    /**
     * Reserved; must be 0.
     */
    uint32_t flags;
    /**
     * Reserved; must be 0.
     */
    uint32_t reserved;
} sluice_vector_request;

/**
 * Completion of a vector command.
 */
typedef struct sluice_vector_completion {
    /**
     * `user_data` of the request.
     */
    uint64_t user_data;
    /**
     * Failed addresses: bit `i` stands for the `i`-th address, or for the `i`-th target of a copy.
     * The sector was not read, or may not have been written or erased. 0 if and only if `error` is
     * 0.
     */
    uint64_t failed;
    /**
     * 0, or a negative `errno` as in `struct sluice_completion`, and: `-ENODATA` for sectors that
     * are not written or not readable yet; `-ESPIPE` for a write that is not at a write pointer or
     * not of whole units; `-ERANGE` for addresses that the drive does not have or the application
     * may not use; `-EINVAL` also for chunks that cannot be erased in their state.
     */
    int32_t error;
    /**
     * NVMe status field without the phase tag (NVMe 1.2, section 4.6.1), from which `error`
     * derives.
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
 * Opens a device for a program compiled with a header of version `version`. Programs call
 * `sluice_open()`, which passes `SLUICE_VERSION`.
 *
 * `what` is one of:
 *
 * * `null`, `null:SIZE`: acknowledges everything and stores no data. 1 TiB by default; a size is
 *   in whole sectors of 512 bytes: `null:64G`.
 * * `scenario.toml`, `scenario.toml#NAME`: the drive of a scenario, or the path if it names paths;
 *   `NAME` selects one of several.
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
 * Any thread.
 */
int sluice_open_version(uint32_t version,
                        const char *what,
                        const struct sluice_open_options *options,
                        struct sluice_device **device);

/**
 * Closes a device.
 *
 * Queues, handles and buffers of the device remain usable. If queues exist, the device stays open
 * until the last queue or vector queue is destroyed; the call that destroys it then waits for the
 * shutdown and returns its result.
 *
 * A file is not flushed. The drive of a scenario is shut down cleanly, and the call waits for
 * that: outstanding requests complete, a target is flushed and writes a checkpoint, the drive
 * writes its write buffer to the media, and its image is synced.
 *
 * @param device The device; it must not be used after the call. `NULL` has no effect.
 *
 * # Returns
 *
 * 0, or `-EIO` if the drive of a scenario was not shut down cleanly; data flushed before is
 * durable, as after a power cut. The device is closed in both cases.
 *
 * # Threads
 *
 * Any thread. No other call may use the pointer at the same time.
 */
int sluice_close(struct sluice_device *device);

/**
 * Returns the name of a device: the serial number or name of a drive, the path of a file, or
 * `null`.
 *
 * @param device The device.
 *
 * # Returns
 *
 * The name, valid until the device is closed; an empty string if `device` is `NULL`.
 *
 * # Threads
 *
 * Any thread.
 */
const char *sluice_device_name(const struct sluice_device *device);

/**
 * Returns the properties of a device.
 *
 * @param device The device.
 * @param info Receives the properties, up to `info->size` bytes.
 *
 * # Returns
 *
 * 0, or `-EINVAL` if an argument is `NULL` or `info->size` is not a size of any version, or
 * `-E2BIG` if it is larger than 4096.
 *
 * # Threads
 *
 * Any thread.
 */
int sluice_device_get_info(const struct sluice_device *device, struct sluice_device_info *info);

/**
 * Allocates registered memory: whole pages, page-aligned. The initial contents are unspecified;
 * they may be data of an earlier buffer.
 *
 * @param device The device whose requests will use the buffer.
 * @param bytes Size in bytes, at least 1.
 * @param buffer Receives the buffer, or `NULL` if the call fails.
 *
 * # Returns
 *
 * 0, or `-EINVAL` if a pointer is `NULL` or `bytes` is 0, or `-ENOMEM`.
 *
 * # Threads
 *
 * Any thread. The call takes a lock of the device: allocate buffers in advance.
 */
int sluice_buffer_create(const struct sluice_device *device,
                         size_t bytes,
                         struct sluice_buffer **buffer);

/**
 * Frees a buffer; its memory stays registered, for other buffers of the device.
 *
 * @param buffer The buffer; it must not be used after the call, and no outstanding request may
 * refer to it. `NULL` has no effect.
 *
 * # Threads
 *
 * Any thread. No other call may use the pointer at the same time.
 */
void sluice_buffer_destroy(struct sluice_buffer *buffer);

/**
 * Returns the buffer that contains a memory range, for programs that only know addresses.
 *
 * @param memory Address of the first byte.
 * @param bytes Size of the range in bytes; the buffer must contain all of it.
 * @param buffer Receives the buffer, or `NULL` if the call fails. The caller may pass it to
 * `sluice_buffer_destroy()`.
 * @param offset Receives the offset of `memory` in the buffer, in bytes. May be `NULL`.
 *
 * # Returns
 *
 * 0, or `-ENOENT` if no buffer contains the whole range, or `-EINVAL` if `buffer` is `NULL`.
 *
 * # Threads
 *
 * Any thread. The call takes a lock of the process.
 */
int sluice_buffer_find(const void *memory,
                       size_t bytes,
                       struct sluice_buffer **buffer,
                       uint64_t *offset);

/**
 * Returns the address of a buffer.
 *
 * @param buffer The buffer.
 *
 * # Returns
 *
 * The page-aligned address of the first byte, valid until the buffer is destroyed; `NULL` if
 * `buffer` is `NULL`.
 *
 * # Threads
 *
 * Any thread. While a request that uses the buffer is outstanding, the device accesses its data:
 * the application must neither access the data of a read nor change the data of a write.
 */
void *sluice_buffer_data(const struct sluice_buffer *buffer);

/**
 * Returns the size of a buffer.
 *
 * @param buffer The buffer.
 *
 * # Returns
 *
 * The size in bytes that was passed to `sluice_buffer_create()`; 0 if `buffer` is `NULL`.
 *
 * # Threads
 *
 * Any thread.
 */
size_t sluice_buffer_size(const struct sluice_buffer *buffer);

/**
 * Returns the geometry of an open-channel drive.
 *
 * @param device The device.
 * @param geometry Receives the geometry, up to `geometry->size` bytes.
 *
 * # Returns
 *
 * 0, or `-EINVAL` if an argument is `NULL` or `geometry->size` is not a size of any version, or
 * `-E2BIG` if it is larger than 4096, or `-EOPNOTSUPP` if the device is not an open-channel drive
 * without a target.
 *
 * # Threads
 *
 * Any thread.
 */
int sluice_vector_get_geometry(const struct sluice_device *device,
                               struct sluice_vector_geometry *geometry);

/**
 * Builds the address of a sector.
 *
 * @param device The device, an open-channel drive.
 * @param group Group.
 * @param pu Parallel unit in the group.
 * @param chunk Chunk in the parallel unit.
 * @param sector Sector in the chunk.
 * @param address Receives the address.
 *
 * # Returns
 *
 * 0, or `-EINVAL` if a pointer is `NULL`, or `-ERANGE` if the drive has no such sector, or
 * `-EOPNOTSUPP` if the device is not an open-channel drive without a target.
 *
 * # Threads
 *
 * Any thread.
 */
int sluice_vector_address(const struct sluice_device *device,
                          uint32_t group,
                          uint32_t pu,
                          uint32_t chunk,
                          uint32_t sector,
                          uint64_t *address);

/**
 * Reads the chunk information of an open-channel drive.
 *
 * @param device The device.
 * @param first Index of the first chunk, counted through all parallel units of all groups.
 * @param count Number of chunks.
 * @param chunks Receives the reports: an array of `count` elements.
 *
 * # Returns
 *
 * 0, or `-EINVAL` if a pointer is `NULL`, or `-ERANGE` if the drive does not have all of these
 * chunks, or `-EOPNOTSUPP` if the device is not an open-channel drive without a target, or `-EIO`,
 * `-ETIMEDOUT` or `-ECONNRESET` if the drive does not answer. After a failure the contents of
 * `chunks` are undefined.
 *
 * # Threads
 *
 * Any thread. The call waits for admin commands of the drive.
 */
int sluice_vector_get_chunks(const struct sluice_device *device,
                             uint64_t first,
                             uint64_t count,
                             struct sluice_chunk *chunks);

/**
 * Makes an emulated NVMe drive behind a device fail, now. The device is a drive of a scenario that
 * this program has opened; `sluice admin fault` reaches drives of `sluice serve`.
 *
 * `fault` is the kind of fault, then `key=value` for each of its keys, separated by spaces:
 * `die-failure pu=3`, `slow-die pu=3 factor=10 duration=2s`. The kinds and keys are those of
 * `[[fault]]` in a scenario.
 *
 * @param device The device.
 * @param drive Name of the drive, or `NULL` if there is only one behind the device.
 * @param fault The fault.
 *
 * # Returns
 *
 * 0, or a negative errno after which nothing has changed:
 *
 * * `-EINVAL`: an invalid argument; a kind, key or value that a scenario would not accept; a fault
 *   that the drive cannot have; no drive of this name, or several and none was named.
 * * `-EOPNOTSUPP`: no drive behind the device is an emulated NVMe drive of this process.
 * * `-ENODEV`: the drive's thread has ended.
 *
 * # Threads
 *
 * Any thread. The call waits for the drive's thread, which injects the fault between two commands.
 */
int sluice_fault_inject(const struct sluice_device *device, const char *drive, const char *fault);

/**
 * Executes a command on a sector with a name, and waits for its end. The sectors of the drive must have names:
 * its rule program uses them.
 *
 * @param device The device.
 * @param op The operation: `write`, `read` or `free`.
 * @param arg0 First argument, `header.arg0`: the tag of a write, the name of a read or a free.
 * @param arg1 Second argument, `header.arg1`: the tag of a read.
 * @param buffer The data of a write, or the memory for that of a read: one sector at its begin. `NULL` for
 *     `free`.
 * @param reply Receives the result; `value` is the name of a sector that was written.
 *
 * # Returns
 *
 * 0 if the drive has completed the command, also with an error: `reply->status` says which. Otherwise a
 * negative errno:
 *
 * * `-EINVAL`: an invalid argument.
 * * `-EOPNOTSUPP`: the device is not an NVMe drive.
 * * `-ENOSPC`: the drive has no queue left.
 * * `-EIO`: the drive does not answer.
 *
 * # Threads
 *
 * Any thread. A device has one such command, or command to rules, at a time; others wait for its end.
 */
int sluice_named_command(const struct sluice_device *device,
                         const char *op,
                         uint64_t arg0,
                         uint64_t arg1,
                         const struct sluice_buffer *buffer,
                         struct sluice_rule_reply *reply);

/**
 * Takes events that the rules of an NVMe drive have posted for the application of the device, the oldest
 * first. They are gone from the drive then.
 *
 * @param device The device; as for `sluice_rule_command()`.
 * @param events Receives the events.
 * @param capacity Elements of `events`: at least 126.
 * @param lost Receives the number of events that the host did not take in time, since the drive was powered
 *     on. May be `NULL`.
 *
 * # Returns
 *
 * The number of events, or a negative errno. With 0 there are no more:
 *
 * * `-EINVAL`: an invalid argument.
 * * `-EOPNOTSUPP`: the device is not an NVMe drive.
 * * `-EIO`: the drive has no rules. `sluice_last_error()` has the status.
 *
 * # Threads
 *
 * Any thread. The call waits for the drive.
 */
int sluice_rule_events(const struct sluice_device *device,
                       struct sluice_rule_event *events,
                       size_t capacity,
                       uint64_t *lost);

/**
 * Reads the names and tags of valid sectors that an NVMe drive found when it was powered on, in the order of
 * their locations.
 *
 * @param device The device; as for `sluice_rule_command()`.
 * @param first The first one, from 0 on.
 * @param names Receives them.
 * @param capacity Elements of `names`, 1 to 2147483647. Fewer names than that are the last ones, and the drive discards
 *     all of them then.
 *
 * # Returns
 *
 * The number of names, or a negative errno:
 *
 * * `-EINVAL`: an invalid argument.
 * * `-EOPNOTSUPP`: the device is not an NVMe drive.
 * * `-EIO`: the drive has no rules, or `first` is past the end. `sluice_last_error()` has the status.
 *
 * # Threads
 *
 * Any thread. The call waits for the drive.
 */
int sluice_found_names(const struct sluice_device *device,
                       uint64_t first,
                       struct sluice_found_name *names,
                       size_t capacity);

/**
 * Lists the namespaces of an emulated NVMe drive behind a device. The device is a drive of a
 * scenario that this program has opened; `sluice admin namespace` reaches drives of
 * `sluice serve`.
 *
 * @param device The device.
 * @param drive Name of the drive, or `NULL` if there is only one behind the device.
 * @param namespaces Receives the first `count` namespaces, in the order of their identifiers. May
 * be `NULL` if `count` is 0.
 * @param count Number of elements of `namespaces`. A drive has at most 32.
 *
 * # Returns
 *
 * The number of namespaces of the drive, which may be larger than `count`, or a negative errno:
 *
 * * `-EINVAL`: an invalid argument; no drive of this name, or several and none was named.
 * * `-EOPNOTSUPP`: no drive behind the device is an emulated NVMe drive of this process.
 * * `-ENODEV`: the drive's thread has ended.
 *
 * # Threads
 *
 * Any thread. The call waits for the drive's thread.
 */
int sluice_namespace_list(const struct sluice_device *device,
                          const char *drive,
                          struct sluice_namespace *namespaces,
                          size_t count);

/**
 * Creates a namespace of an emulated NVMe drive behind a device. It is not attached.
 *
 * @param device The device; as for `sluice_namespace_list()`.
 * @param drive Name of the drive, or `NULL` if there is only one behind the device.
 * @param bytes Size in bytes, rounded up to whole blocks, or `SLUICE_NAMESPACE_REST`.
 * @param nsid Receives the identifier of the namespace, the smallest free one.
 *
 * # Returns
 *
 * 0, or a negative errno:
 *
 * * `-EINVAL`: an invalid argument; no bytes; no drive of this name, or several and none was named.
 * * `-ENOSPC`: the unallocated capacity is too small, or the drive has 32 namespaces.
 * * `-EBUSY`: a format, Sanitize or another change of namespaces has not ended.
 * * `-EOPNOTSUPP`: the drive has no FTL of its own on flash, or no drive behind the device is an
 *   emulated NVMe drive of this process.
 * * `-ETIMEDOUT`: the drive has not ended the change within 20 s, and goes on.
 * * `-ECANCELED`: the drive lost power during the change.
 * * `-EIO`: the drive has failed, or its Sanitize has.
 * * `-ENODEV`: the drive's thread has ended.
 *
 * Nothing has changed after an error other than `-ETIMEDOUT`.
 *
 * # Threads
 *
 * Any thread. The call waits for the drive's thread, which makes the change between two commands.
 */
int sluice_namespace_create(const struct sluice_device *device,
                            const char *drive,
                            uint64_t bytes,
                            uint32_t *nsid);

/**
 * Deletes a namespace of an emulated NVMe drive behind a device, with its contents. Requests of the
 * device fail if it has opened this namespace.
 *
 * @param device The device; as for `sluice_namespace_list()`.
 * @param drive Name of the drive, or `NULL` if there is only one behind the device.
 * @param nsid Identifier of the namespace, or `SLUICE_NAMESPACE_ALL`.
 *
 * # Returns
 *
 * 0, or a negative errno as for `sluice_namespace_create()`; `-ENOENT` if the drive has no such
 * namespace.
 *
 * # Threads
 *
 * Any thread. The call waits for the drive's thread, and for commands in flight of the namespace.
 */
int sluice_namespace_delete(const struct sluice_device *device, const char *drive, uint32_t nsid);

/**
 * Attaches a namespace of an emulated NVMe drive behind a device, so that hosts can address it.
 *
 * @param device The device; as for `sluice_namespace_list()`.
 * @param drive Name of the drive, or `NULL` if there is only one behind the device.
 * @param nsid Identifier of the namespace.
 *
 * # Returns
 *
 * 0, or a negative errno as for `sluice_namespace_create()`; `-ENOENT` if the drive has no such
 * namespace, `-EALREADY` if it is attached already.
 *
 * # Threads
 *
 * Any thread. The call waits for the drive's thread.
 */
int sluice_namespace_attach(const struct sluice_device *device, const char *drive, uint32_t nsid);

/**
 * Detaches a namespace of an emulated NVMe drive behind a device. Its contents stay. Requests of the
 * device fail if it has opened this namespace.
 *
 * @param device The device; as for `sluice_namespace_list()`.
 * @param drive Name of the drive, or `NULL` if there is only one behind the device.
 * @param nsid Identifier of the namespace.
 *
 * # Returns
 *
 * 0, or a negative errno as for `sluice_namespace_create()`; `-ENOENT` if the drive has no such
 * namespace, `-EALREADY` if it is not attached.
 *
 * # Threads
 *
 * Any thread. The call waits for the drive's thread.
 */
int sluice_namespace_detach(const struct sluice_device *device,
                            const char *drive,
                            uint32_t nsid);

/**
 * Returns the size of the persistent memory region of a drive.
 *
 * A region is memory of the drive that this program stores to without commands. A store is visible
 * at once, and survives a loss of the drive's power after `sluice_pmr_persist()`. Of stores that
 * were not persisted, each aligned word of 8 bytes survives or not.
 *
 * @param device The device: an emulated drive of a scenario with `pmr`, or a target on one.
 * @param bytes Receives the size in bytes.
 *
 * # Returns
 *
 * 0, or `-EINVAL` if an argument is `NULL`, or `-EOPNOTSUPP` if the device has no region for this
 * program: there is none, several drives behind the device have one, or the program is confined to
 * a partition.
 *
 * # Threads
 *
 * Any thread.
 */
int sluice_pmr_size(const struct sluice_device *device, uint64_t *bytes);

/**
 * Reads from the persistent memory region of a drive, also what is not persistent.
 *
 * @param device The device.
 * @param offset Offset in the region, in bytes.
 * @param into Receives the data.
 * @param bytes Number of bytes.
 *
 * # Returns
 *
 * 0, or a negative errno after which nothing was read:
 *
 * * `-EINVAL`: `device` or `into` is `NULL`.
 * * `-EOPNOTSUPP`: as for `sluice_pmr_size()`.
 * * `-ERANGE`: the range is outside of the region.
 * * `-EBUSY`: the region is disabled, or the drive sanitizes it.
 * * `-ECONNRESET`: the drive was removed or powered off.
 *
 * # Threads
 *
 * Any thread. The application orders accesses to the same bytes.
 */
int sluice_pmr_read(const struct sluice_device *device, uint64_t offset, void *into, size_t bytes);

/**
 * Stores to the persistent memory region of a drive. The call takes the time that the drive is
 * configured with, for each cache line of 64 bytes.
 *
 * @param device The device.
 * @param offset Offset in the region, in bytes.
 * @param data The data.
 * @param bytes Number of bytes.
 *
 * # Returns
 *
 * 0, or a negative errno after which nothing was stored: as for `sluice_pmr_read()`.
 *
 * # Threads
 *
 * Any thread. The application orders accesses to the same bytes.
 */
int sluice_pmr_store(const struct sluice_device *device,
                     uint64_t offset,
                     const void *data,
                     size_t bytes);

/**
 * Persists the cache lines of a range: what was stored to them survives a loss of the drive's
 * power.
 *
 * @param device The device.
 * @param offset Offset in the region, in bytes.
 * @param bytes Number of bytes.
 *
 * # Returns
 *
 * 0, or a negative errno: as for `sluice_pmr_read()`. After `-ECONNRESET` it is not known what is
 * persistent.
 *
 * # Threads
 *
 * Any thread.
 */
int sluice_pmr_persist(const struct sluice_device *device, uint64_t offset, uint64_t bytes);

/**
 * Sends a command to the rules of an NVMe drive, and waits for its end. The rules must be those of a
 * drive with `personality = "rules"`, on which the device has all sectors.
 *
 * @param device The device.
 * @param op The operation: `scan`, `get`, `ack`, `user0`, `user1`, `user2` or `user3`.
 * @param request The fields of the command.
 * @param buffer Receives what the rules return, or `NULL`. Must be `NULL` for `ack`, `user2` and `user3`.
 * @param reply Receives the result.
 *
 * # Returns
 *
 * 0 if the drive has completed the command, also with an error: `reply->status` says which. Otherwise a
 * negative errno:
 *
 * * `-EINVAL`: an invalid argument.
 * * `-EOPNOTSUPP`: the device is not an NVMe drive.
 * * `-ENOSPC`: the drive has no queue left.
 * * `-EIO`: the drive does not answer.
 *
 * # Threads
 *
 * Any thread. A device has one such command at a time; others wait for its end.
 */
int sluice_rule_command(const struct sluice_device *device,
                        const char *op,
                        const struct sluice_rule_request *request,
                        const struct sluice_buffer *buffer,
                        struct sluice_rule_reply *reply);

/**
 * Reads the values of consecutive keys of a table of the rules of an NVMe drive, or of a target with
 * rules that this process has opened: the elements of an array,
 * the values of a map (0 of an absent key), or 1 for each key that a set has.
 *
 * @param device The device; as for `sluice_rule_command()`.
 * @param table Number of the table in the program, from 0 on.
 * @param first The first key, or index.
 * @param values Receives the values.
 * @param count Number of keys.
 *
 * # Returns
 *
 * 0, or a negative errno:
 *
 * * `-EINVAL`: an invalid argument; a target has no such table, or an index is past its end.
 * * `-EOPNOTSUPP`: the device is neither an NVMe drive nor a target with rules.
 * * `-EIO`: the drive has no rules, or no such table; an index is past the end of an array.
 *   `sluice_last_error()` has the status.
 *
 * # Threads
 *
 * Any thread. The call waits for the drive.
 */
int sluice_rule_table_read(const struct sluice_device *device,
                           uint32_t table,
                           uint64_t first,
                           uint64_t *values,
                           size_t count);

/**
 * Changes entries of a table of the rules of an NVMe drive, or of a target with rules that this process
 * has opened, in order.
 *
 * @param device The device; as for `sluice_rule_command()`.
 * @param table Number of the table in the program, from 0 on.
 * @param action `SLUICE_RULE_TABLE_SET`, `SLUICE_RULE_TABLE_ADD` or `SLUICE_RULE_TABLE_REMOVE`.
 * @param keys The keys, or indices.
 * @param values The values, for `SLUICE_RULE_TABLE_SET`; otherwise `NULL`.
 * @param count Number of keys.
 *
 * # Returns
 *
 * 0, or a negative errno; the entries before the one that failed are stored:
 *
 * * `-EINVAL`: an invalid argument; the table of a target does not take an entry.
 * * `-EOPNOTSUPP`: the device is neither an NVMe drive nor a target with rules.
 * * `-EIO`: the table does not take an entry, or the drive has no rules. `sluice_last_error()` has the
 *   status.
 *
 * # Threads
 *
 * Any thread. The call waits for the drive.
 */
int sluice_rule_table_edit(const struct sluice_device *device,
                           uint32_t table,
                           uint32_t action,
                           const uint64_t *keys,
                           const uint64_t *values,
                           size_t count);

/**
 * Compiles a rule program for an emulated NVMe drive behind a device, and installs it. The drive has
 * `personality = "rules"` in the scenario that this program has opened, or a target with
 * `kind = "rules"`, which then is meant wherever a drive with rules is.
 *
 * @param device The device.
 * @param drive Name of the drive, or `NULL` if there is only one behind the device.
 * @param source The source text of the program.
 * @param parked Receives the number of commands that no rule of it matches. May be `NULL`.
 *
 * # Returns
 *
 * 0, or a negative errno; nothing has changed then:
 *
 * * `-EINVAL`: an invalid argument; no drive of this name, or several and none was named; the program
 *   is not accepted. `sluice_last_error()` has its line and column.
 * * `-EOPNOTSUPP`: the drive has no rules, or no drive behind the device is an emulated NVMe drive of
 *   this process.
 * * `-ENODEV`: the drive's thread has ended.
 *
 * # Threads
 *
 * Any thread. The call waits for the drive's thread, which installs the program between two commands. The
 * program of a target is replaced between two calls of handles of the device.
 */
int sluice_rules_install(const struct sluice_device *device,
                         const char *drive,
                         const char *source,
                         uint64_t *parked);

/**
 * Lists the commands that no rule of an emulated NVMe drive behind a device matched, by operation.
 *
 * @param device The device; as for `sluice_rules_install()`.
 * @param drive Name of the drive, or `NULL` if there is only one behind the device.
 * @param misses Receives the first `count` operations. May be `NULL` if `count` is 0.
 * @param count Number of elements of `misses`. There are at most 11 operations.
 *
 * # Returns
 *
 * The number of operations with misses, which may be larger than `count`, or a negative errno as for
 * `sluice_rules_install()`.
 *
 * # Threads
 *
 * Any thread. The call waits for the drive's thread.
 */
int sluice_rules_misses(const struct sluice_device *device,
                        const char *drive,
                        struct sluice_rule_misses *misses,
                        size_t count);

/**
 * Reads the counters of each application of the rules of an emulated NVMe drive behind a device.
 *
 * @param device The device; as for `sluice_rules_install()`.
 * @param drive Name of the drive, or `NULL` if there is only one behind the device.
 * @param apps Receives the first `count` applications, in the order of the program. May be `NULL` if
 *   `count` is 0.
 * @param count Number of elements of `apps`.
 *
 * # Returns
 *
 * The number of applications, which may be larger than `count`, or a negative errno as for
 * `sluice_rules_install()`.
 *
 * # Threads
 *
 * Any thread. The call waits for the drive's thread.
 */
int sluice_rules_apps(const struct sluice_device *device,
                      const char *drive,
                      struct sluice_rule_app *apps,
                      size_t count);

/**
 * Ends commands that no rule of an emulated NVMe drive behind a device matches. Their requests fail.
 *
 * @param device The device; as for `sluice_rules_install()`.
 * @param drive Name of the drive, or `NULL` if there is only one behind the device.
 * @param op The operation of the commands, such as `write`, or `NULL` for all of them.
 * @param ended Receives the number of the commands. May be `NULL`.
 *
 * # Returns
 *
 * 0, or a negative errno as for `sluice_rules_install()`.
 *
 * # Threads
 *
 * Any thread. The call waits for the drive's thread.
 */
int sluice_rules_reject(const struct sluice_device *device,
                        const char *drive,
                        const char *op,
                        uint64_t *ended);

/**
 * Returns the text of the calling thread's last error.
 *
 * A successful call does not change the text.
 *
 * # Returns
 *
 * One line of English text that says what is wrong and what is allowed; an empty string if no call
 * of this thread has failed. The string is valid until the thread's next call that fails. Never
 * `NULL`.
 *
 * # Threads
 *
 * Any thread. Each thread has its own text.
 */
const char *sluice_last_error(void);

/**
 * Creates a handle over one queue.
 *
 * @param queue The queue. No other handle may be bound to it, unless it was created with
 * `SLUICE_QUEUE_SHARED`.
 * @param options Wait mode, group and block cache, or `NULL` for the defaults.
 * @param handle Receives the handle, or `NULL` if the call fails.
 *
 * # Returns
 *
 * 0, or
 *
 * * `-EINVAL`: an invalid argument or option.
 * * `-E2BIG`: an option of a later version.
 * * `-EBUSY`: another handle is bound to the queue.
 * * `-ENOMEM`, `-EMFILE`: no memory for the cache, no file descriptor.
 *
 * # Threads
 *
 * Any thread. The handle is not bound to a thread, but is for one thread at a time: a call on the
 * handle during another call on it fails with `-EBUSY`.
 */
int sluice_handle_create(const struct sluice_queue *queue,
                         const struct sluice_handle_options *options,
                         struct sluice_handle **handle);

/**
 * Creates a handle over several queues of one device, for example one for reads and one for
 * writes.
 *
 * Requests on different queues are not ordered. A flush goes to one queue, and makes all completed
 * writes durable, on whichever queue they completed.
 *
 * @param queues The queues, each at most once.
 * @param count Number of queues, 1 to 65535; at least 2 for `SLUICE_SELECT_BY_DIRECTION` and
 * `SLUICE_SELECT_BY_SIZE`.
 * @param options Queue selection, wait mode, group and block cache, or `NULL` for the defaults.
 * @param handle Receives the handle, or `NULL` if the call fails.
 *
 * # Returns
 *
 * As `sluice_handle_create()`, and `-EXDEV` if the queues belong to different devices.
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
 * The call waits up to 60 seconds for the outstanding requests, and discards their completions. A
 * write-back cache is written to the device and flushed. Afterwards the queues can be bound to
 * other handles, or destroyed.
 *
 * @param handle The handle; unless the call fails with `-EBUSY`, it must not be used after the
 * call. `NULL` has no effect.
 *
 * # Returns
 *
 * 0, or
 *
 * * `-EBUSY`: another call uses the handle; the handle is unchanged.
 * * `-EIO`, ...: the cache could not be written. The handle is destroyed and the contents of its
 *   cache are lost. `-EIO` also if this call closed the device and the drive was not shut down
 *   cleanly; see `sluice_close()`.
 * * `-ETIMEDOUT`: the device does not complete the requests. The handle is destroyed; its queues
 *   stay bound and its memory stays allocated.
 * * `-ENOTRECOVERABLE`: an earlier call on the handle failed with an internal error. Otherwise as
 *   `-ETIMEDOUT`.
 *
 * # Threads
 *
 * One thread at a time for each handle.
 */
int sluice_handle_destroy(struct sluice_handle *handle);

/**
 * Sets the wait mode of a handle. The handle must have no outstanding requests.
 *
 * @param handle The handle.
 * @param wait `SLUICE_WAIT_POLL`, `SLUICE_WAIT_EVENT` or `SLUICE_WAIT_HYBRID`.
 * @param hybrid_percent As in `struct sluice_handle_options`.
 * @param hybrid_late_ns As in `struct sluice_handle_options`, in nanoseconds.
 *
 * # Returns
 *
 * 0, or `-EINVAL` if an argument is invalid, requests are outstanding, or neither the device nor a
 * poller can wake the handle (`SLUICE_WAIT_EVENT`), or `-EBUSY` if another call uses the handle.
 *
 * # Threads
 *
 * One thread at a time for each handle.
 */
int sluice_handle_set_wait(struct sluice_handle *handle,
                           uint32_t wait,
                           uint32_t hybrid_percent,
                           uint64_t hybrid_late_ns);

/**
 * Returns the number of outstanding requests of a handle: submitted and not reaped.
 *
 * @param handle The handle.
 *
 * # Returns
 *
 * The number of requests, or `-EINVAL` if `handle` is `NULL`, or `-EBUSY` if another call uses the
 * handle.
 *
 * # Threads
 *
 * One thread at a time for each handle.
 */
int sluice_handle_outstanding(const struct sluice_handle *handle);

/**
 * Returns a file descriptor that becomes readable when the handle has completions, for `poll(2)`
 * or `epoll(7)` together with other descriptors.
 *
 * The handle must be in mode `SLUICE_WAIT_EVENT`. Call `sluice_handle_arm()` before each sleep and
 * `sluice_handle_disarm()` after it. The application must neither read from the descriptor nor
 * close it.
 *
 * @param handle The handle.
 *
 * # Returns
 *
 * The descriptor, valid until the handle is destroyed, or `-EINVAL` if `handle` is `NULL`, or
 * `-EBUSY` if another call uses the handle.
 *
 * # Threads
 *
 * One thread at a time for each handle. Any thread may wait for the descriptor.
 */
int sluice_handle_fd(const struct sluice_handle *handle);

/**
 * Arms a handle's descriptor before a sleep, and returns whether the caller may sleep.
 *
 * @param handle The handle.
 * @param timeout_ns Receives the maximum time to sleep, in nanoseconds: the time until the handle
 * must be polled although the device raises no event, for example because a rate limit ends;
 * `UINT64_MAX` for no limit; 0 if the call returns 0. May be `NULL`.
 *
 * # Returns
 *
 * 1: the descriptor is armed; sleep, then call `sluice_handle_disarm()`. 0: completions are
 * available and the descriptor is not armed; call `sluice_reap()`. Or `-EINVAL` if `handle` is
 * `NULL` or not in mode `SLUICE_WAIT_EVENT`, or `-EBUSY` if another call uses the handle.
 *
 * # Threads
 *
 * One thread at a time for each handle.
 */
int sluice_handle_arm(struct sluice_handle *handle, uint64_t *timeout_ns);

/**
 * Disarms a handle's descriptor after a sleep. The descriptor is not readable until it is armed
 * again.
 *
 * @param handle The handle.
 *
 * # Returns
 *
 * 0, or `-EINVAL` if `handle` is `NULL`, or `-EBUSY` if another call uses the handle.
 *
 * # Threads
 *
 * One thread at a time for each handle.
 */
int sluice_handle_disarm(struct sluice_handle *handle);

/**
 * Returns the counters of a handle.
 *
 * @param handle The handle.
 * @param stats Receives the counters, up to `stats->size` bytes.
 *
 * # Returns
 *
 * 0, or `-EINVAL` if an argument is `NULL` or `stats->size` is not a size of any version, or
 * `-E2BIG` if it is larger than 4096, or `-EBUSY` if another call uses the handle.
 *
 * # Threads
 *
 * One thread at a time for each handle.
 */
int sluice_handle_get_stats(const struct sluice_handle *handle, struct sluice_handle_stats *stats);

/**
 * Creates a queue.
 *
 * By default one handle at a time is bound to the queue and accesses it without a lock. With
 * `SLUICE_QUEUE_SHARED` several handles, each of its own thread, share the queue under a lock.
 *
 * @param device The device.
 * @param options Options, or `NULL` for the defaults.
 * @param queue Receives the queue, or `NULL` if the call fails.
 *
 * # Returns
 *
 * 0, or
 *
 * * `-EINVAL`: an invalid argument or option, for example an unknown scheduler.
 * * `-E2BIG`: an option of a later version.
 * * `-ENOSPC`: the device has no free queue.
 * * `-EOPNOTSUPP`: the device is an open-channel drive, which supports vector commands only; see
 *   `sluice_vector_queue_create()`.
 * * `-ETIMEDOUT`, `-ECONNRESET`: the server of the drive does not answer, or has ended.
 * * `-ENOMEM`, `-EMFILE`, ...: the system's error.
 *
 * # Threads
 *
 * Any thread.
 */
int sluice_queue_create(const struct sluice_device *device,
                        const struct sluice_queue_options *options,
                        struct sluice_queue **queue);

/**
 * Destroys a queue.
 *
 * @param queue The queue; unless the call fails with `-EBUSY`, it must not be used after the call.
 * `NULL` has no effect.
 *
 * # Returns
 *
 * 0, or
 *
 * * `-EBUSY`: a handle is bound to the queue, or a poller watches it. The queue is unchanged.
 * * `-EIO`: this call closed the device, and the drive was not shut down cleanly; see
 *   `sluice_close()`. The queue is destroyed.
 *
 * # Threads
 *
 * Any thread. No other call may use the pointer at the same time.
 */
int sluice_queue_destroy(struct sluice_queue *queue);

/**
 * Starts a thread that polls for completions on behalf of the handles bound to the watched queues.
 * The poller watches no queue until `sluice_poller_watch()` is called.
 *
 * @param device The device whose queues the poller will watch.
 * @param options Options, or `NULL` for the defaults.
 * @param poller Receives the poller, or `NULL` if the call fails.
 *
 * # Returns
 *
 * 0, or `-EINVAL` if an argument or option is invalid, or `-E2BIG` for an option of a later
 * version, or the system's error: `-EAGAIN` if no thread can be created, `-EMFILE` if no file
 * descriptor is left.
 *
 * # Threads
 *
 * Any thread.
 */
int sluice_poller_create(const struct sluice_device *device,
                         const struct sluice_poller_options *options,
                         struct sluice_poller **poller);

/**
 * Stops a poller's thread and destroys the poller.
 *
 * @param poller The poller; unless the call fails, it must not be used after the call. `NULL` has
 * no effect.
 *
 * # Returns
 *
 * 0, or `-EBUSY` if a handle is bound to a watched queue. The poller then keeps running and keeps
 * watching that queue; it may have stopped watching others.
 *
 * # Threads
 *
 * Any thread. No other call may use the pointer at the same time.
 */
int sluice_poller_destroy(struct sluice_poller *poller);

/**
 * Starts watching a queue. Handles bound to the queue should be in mode `SLUICE_WAIT_EVENT`; the
 * poller wakes them.
 *
 * @param poller The poller.
 * @param queue A queue created with `SLUICE_QUEUE_SHARED`.
 *
 * # Returns
 *
 * 0, or `-EINVAL` if an argument is `NULL` or the queue is not shared, or `-EBUSY` if a poller
 * already watches the queue.
 *
 * # Threads
 *
 * Any thread.
 */
int sluice_poller_watch(struct sluice_poller *poller, const struct sluice_queue *queue);

/**
 * Stops watching a queue.
 *
 * @param poller The poller.
 * @param queue A queue that the poller watches and no handle is bound to.
 *
 * # Returns
 *
 * 0, or `-EINVAL` if an argument is `NULL`, or `-EBUSY` if the poller does not watch the queue or
 * a handle is bound to it.
 *
 * # Threads
 *
 * Any thread.
 */
int sluice_poller_unwatch(struct sluice_poller *poller, const struct sluice_queue *queue);

/**
 * Former name of `sluice_poller_unwatch()`, for one release.
 *
 * @param poller The poller.
 * @param queue A queue that the poller watches and no handle is bound to.
 *
 * # Returns
 *
 * As `sluice_poller_unwatch()`.
 *
 * # Threads
 *
 * Any thread.
 */
SLUICE_DEPRECATED
int sluice_poller_forget(struct sluice_poller *poller,
                         const struct sluice_queue *queue);

/**
 * Sets the expected latency of requests, which replaces the measured one.
 *
 * @param poller The poller. The hint has an effect with `SLUICE_PERIOD_DYNAMIC` only.
 * @param time_ns Expected latency in nanoseconds; 0 returns to the measured latency.
 *
 * # Returns
 *
 * 0, or `-EINVAL` if `poller` is `NULL`.
 *
 * # Threads
 *
 * Any thread.
 */
int sluice_poller_hint(struct sluice_poller *poller, uint64_t time_ns);

/**
 * Returns the counters of a poller.
 *
 * @param poller The poller.
 * @param stats Receives the counters, up to `stats->size` bytes.
 *
 * # Returns
 *
 * 0, or `-EINVAL` if an argument is `NULL` or `stats->size` is not a size of any version, or
 * `-E2BIG` if it is larger than 4096.
 *
 * # Threads
 *
 * Any thread.
 */
int sluice_poller_get_stats(const struct sluice_poller *poller, struct sluice_poller_stats *stats);

/**
 * Submits requests. The call passes all accepted requests to the device before it returns.
 *
 * The call accepts requests in order, and stops at the first one that it cannot accept, for
 * example because the queue is full. Reap completions and submit the remaining requests again.
 * Requests may complete in any order, and the device may execute overlapping requests in any
 * order. To order two requests, wait for the first before submitting the second.
 *
 * @param handle The handle.
 * @param requests The requests. The library does not access the array after the call.
 * @param count Number of requests.
 *
 * # Returns
 *
 * The number of accepted requests, at least 1 unless `count` is 0. If the call accepts none,
 *
 * * `-EAGAIN`: the queue is full.
 * * `-EINVAL`: an argument is `NULL`, or a member of the first request is invalid. The device
 *   checks the address; that error is in the completion.
 * * `-EXDEV`: the buffer of the first request belongs to another device.
 * * `-EBUSY`: another call uses the handle.
 *
 * # Threads
 *
 * One thread at a time for each handle. The call neither allocates memory nor takes a lock, unless
 * a shared queue, scheduler, callback or cache does.
 */
int sluice_submit(struct sluice_handle *handle,
                  const struct sluice_request *requests,
                  size_t count);

/**
 * Reaps completions without waiting.
 *
 * @param handle The handle.
 * @param completions Receives the completions.
 * @param room Capacity of `completions`, in elements.
 *
 * # Returns
 *
 * The number of completions, 0 if none is available; or `-EINVAL` if a pointer is `NULL`, or
 * `-EBUSY` if another call uses the handle.
 *
 * # Threads
 *
 * One thread at a time for each handle. The call neither allocates memory nor takes a lock, unless
 * a shared queue, scheduler or cache does.
 */
int sluice_reap(struct sluice_handle *handle, struct sluice_completion *completions, size_t room);

/**
 * Waits for completions in the handle's wait mode, and reaps them.
 *
 * @param handle The handle.
 * @param completions Receives the completions.
 * @param room Capacity of `completions`, in elements; at least 1.
 * @param min Number of completions to wait for. The call does not wait for more than are
 * outstanding or than `room`. With 0 it does not wait, as `sluice_reap()`.
 * @param timeout_ns Maximum time to wait, in nanoseconds; `SLUICE_TIMEOUT_INFINITE` for no limit.
 *
 * # Returns
 *
 * The number of completions; less than `min` if the time has passed or no more requests are
 * outstanding. Or `-EINVAL` if a pointer is `NULL` or `room` is 0, or `-EBUSY` if another call
 * uses the handle.
 *
 * # Threads
 *
 * One thread at a time for each handle.
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
 * @param lba First sector.
 * @param sectors Number of sectors. A transfer of more than the device's `max_sectors` is split
 * into several requests.
 * @param buffer Receives the data.
 * @param buffer_offset Offset of the data in the buffer, in bytes; a multiple of 512.
 *
 * # Returns
 *
 * 0, or
 *
 * * a negative `errno` as in `struct sluice_completion`: the device failed the request.
 * * `-EINVAL`: an argument is `NULL` or invalid, or the data does not fit into the buffer.
 * * `-EXDEV`: the buffer belongs to another device.
 * * `-EBUSY`: another call uses the handle.
 *
 * # Threads
 *
 * One thread at a time for each handle.
 */
int sluice_read(struct sluice_handle *handle,
                uint64_t lba,
                uint32_t sectors,
                struct sluice_buffer *buffer,
                uint64_t buffer_offset);

/**
 * Writes sectors from a buffer.
 *
 * The data is durable after the next `sluice_flush()`, or on return with `SLUICE_FUA`. The latter
 * costs less than a flush if the device has `SLUICE_HAS_FUA`.
 *
 * @param handle The handle.
 * @param lba First sector.
 * @param sectors Number of sectors. A transfer of more than the device's `max_sectors` is split
 * into several requests.
 * @param buffer The data.
 * @param buffer_offset Offset of the data in the buffer, in bytes; a multiple of 512.
 * @param flags `SLUICE_FUA`, `SLUICE_ATOMIC`, both or 0. An atomic transfer is not split.
 *
 * # Returns
 *
 * As `sluice_read()`. After a failure some of the sectors may have been written.
 *
 * # Threads
 *
 * One thread at a time for each handle.
 */
int sluice_write(struct sluice_handle *handle,
                 uint64_t lba,
                 uint32_t sectors,
                 const struct sluice_buffer *buffer,
                 uint64_t buffer_offset,
                 uint32_t flags);

/**
 * Makes all completed writes durable, including those in a block cache.
 *
 * @param handle The handle.
 *
 * # Returns
 *
 * 0, or a negative `errno` as in `struct sluice_completion`, or `-EINVAL` if `handle` is `NULL`,
 * or `-EBUSY` if another call uses the handle.
 *
 * # Threads
 *
 * One thread at a time for each handle.
 */
int sluice_flush(struct sluice_handle *handle);

/**
 * Discards sectors: the device may drop their contents, and they read as zeros afterwards.
 *
 * @param handle The handle.
 * @param lba First sector.
 * @param sectors Number of sectors.
 *
 * # Returns
 *
 * As `sluice_flush()`; `-EOPNOTSUPP` if the device does not have `SLUICE_HAS_DISCARD`.
 *
 * # Threads
 *
 * One thread at a time for each handle.
 */
int sluice_discard(struct sluice_handle *handle, uint64_t lba, uint32_t sectors);

/**
 * Writes zeros to sectors without transferring data.
 *
 * @param handle The handle.
 * @param lba First sector.
 * @param sectors Number of sectors.
 * @param flags `SLUICE_DEALLOCATE` if the device may deallocate the sectors; or 0.
 *
 * # Returns
 *
 * As `sluice_flush()`; `-EOPNOTSUPP` if the device does not have `SLUICE_HAS_WRITE_ZEROES`.
 *
 * # Threads
 *
 * One thread at a time for each handle.
 */
int sluice_write_zeroes(struct sluice_handle *handle,
                        uint64_t lba,
                        uint32_t sectors,
                        uint32_t flags);

/**
 * Reads bytes into memory, as `pread(2)` does. Programs written for files need the fewest changes
 * with this call.
 *
 * The device reads directly into memory that is inside one `sluice_buffer` of the device and
 * aligned to 512 bytes; the call takes a lock of the process to find the buffer. Otherwise the
 * call copies the data through a buffer of the handle.
 *
 * @param handle The handle.
 * @param memory Receives the data.
 * @param bytes Number of bytes, a multiple of the device's sector size.
 * @param offset Offset on the device in bytes, a multiple of its sector size.
 *
 * # Returns
 *
 * `bytes`, or a negative `errno` as `sluice_read()`, or `-ENOMEM` if memory for the copy cannot be
 * allocated. There are no short reads: a read beyond the end of the device fails with `-ERANGE`.
 *
 * # Threads
 *
 * One thread at a time for each handle.
 */
int64_t sluice_pread(struct sluice_handle *handle, void *memory, size_t bytes, uint64_t offset);

/**
 * Writes bytes from memory, as `pwrite(2)` does.
 *
 * @param handle The handle.
 * @param memory The data; see `sluice_pread()` for when it is copied.
 * @param bytes Number of bytes, a multiple of the device's sector size.
 * @param offset Offset on the device in bytes, a multiple of its sector size.
 *
 * # Returns
 *
 * `bytes`, or a negative `errno` as `sluice_write()`, or `-ENOMEM` if memory for the copy cannot
 * be allocated. There are no short writes: a write beyond the end of the device fails with
 * `-ERANGE`.
 *
 * # Threads
 *
 * One thread at a time for each handle.
 */
int64_t sluice_pwrite(struct sluice_handle *handle,
                      const void *memory,
                      size_t bytes,
                      uint64_t offset);

/**
 * Reads bytes into several fragments of memory in order, as `preadv(2)` does.
 *
 * The device reads directly into a fragment that is inside one `sluice_buffer` of the device,
 * aligned to 512 bytes and a multiple of the sector size. One request transfers as many of these
 * as the device supports: drives, files and the null device up to 256, targets one. The call
 * copies all other fragments through a buffer of the handle. It takes a lock of the process to
 * find the buffers.
 *
 * @param handle The handle.
 * @param pieces The fragments: addresses and lengths in bytes. Empty fragments are skipped.
 * @param count Number of fragments, 0 to 1024.
 * @param offset Offset on the device in bytes. It, and the total length of the fragments, must be
 * multiples of the device's sector size.
 *
 * # Returns
 *
 * The total length in bytes, or a negative `errno` as `sluice_read()`, or `-ENOMEM` if memory for
 * the copy cannot be allocated. There are no short reads: a read beyond the end of the device
 * fails with `-ERANGE`. After a failure some fragments may have been read.
 *
 * # Threads
 *
 * One thread at a time for each handle.
 */
int64_t sluice_preadv(struct sluice_handle *handle,
                      const struct iovec *pieces,
                      int count,
                      uint64_t offset);

/**
 * Writes bytes from several fragments of memory in order, as `pwritev(2)` does.
 *
 * @param handle The handle.
 * @param pieces The fragments; see `sluice_preadv()` for which are copied.
 * @param count Number of fragments, 0 to 1024.
 * @param offset Offset on the device in bytes. It, and the total length of the fragments, must be
 * multiples of the device's sector size.
 *
 * # Returns
 *
 * The total length in bytes, or a negative `errno` as `sluice_write()`, or `-ENOMEM` if memory for
 * the copy cannot be allocated. There are no short writes: a write beyond the end of the device
 * fails with `-ERANGE`. After a failure some fragments may have been written.
 *
 * # Threads
 *
 * One thread at a time for each handle.
 */
int64_t sluice_pwritev(struct sluice_handle *handle,
                       const struct iovec *pieces,
                       int count,
                       uint64_t offset);

/**
 * Creates a queue for vector commands.
 *
 * @param device The device, an open-channel drive without a target.
 * @param options Options, or `NULL` for the defaults.
 * @param queue Receives the queue, or `NULL` if the call fails.
 *
 * # Returns
 *
 * 0, or
 *
 * * `-EINVAL`: an invalid argument or option.
 * * `-E2BIG`: an option of a later version.
 * * `-EOPNOTSUPP`: the device is not an open-channel drive without a target.
 * * `-ENOSPC`: the device has no free queue.
 * * `-ENOMEM`, `-EMFILE`, ...: the system's error.
 * * `-ETIMEDOUT`, `-ECONNRESET`: the server of the drive does not answer, or has ended.
 *
 * # Threads
 *
 * Any thread.
 */
int sluice_vector_queue_create(const struct sluice_device *device,
                               const struct sluice_vector_queue_options *options,
                               struct sluice_vector_queue **queue);

/**
 * Destroys a vector queue.
 *
 * The call waits up to 60 seconds for the outstanding commands, and discards their completions.
 *
 * @param queue The queue; unless the call fails with `-EBUSY`, it must not be used after the call.
 * `NULL` has no effect.
 *
 * # Returns
 *
 * 0, or
 *
 * * `-EBUSY`: another call uses the queue; the queue is unchanged.
 * * `-ETIMEDOUT`: the device does not complete the commands. The queue is destroyed; its memory
 *   stays allocated.
 * * `-ENOTRECOVERABLE`: an earlier call on the queue failed with an internal error. Otherwise as
 *   `-ETIMEDOUT`.
 * * `-EIO`: this call closed the device, and the drive was not shut down cleanly; see
 *   `sluice_close()`. The queue is destroyed.
 *
 * # Threads
 *
 * One thread at a time for each vector queue.
 */
int sluice_vector_queue_destroy(struct sluice_vector_queue *queue);

/**
 * Returns the number of outstanding commands of a vector queue: submitted and not reaped.
 *
 * @param queue The queue.
 *
 * # Returns
 *
 * The number of commands, or `-EINVAL` if `queue` is `NULL`, or `-EBUSY` if another call uses the
 * queue.
 *
 * # Threads
 *
 * One thread at a time for each vector queue.
 */
int sluice_vector_outstanding(const struct sluice_vector_queue *queue);

/**
 * Reads 1 to 64 sectors of an open-channel drive into a buffer, and waits for the completion.
 *
 * @param queue The queue.
 * @param addresses Addresses of the sectors.
 * @param count Number of addresses.
 * @param buffer Receives the sectors in the order of the addresses; with `NULL` the drive discards
 * the data.
 * @param buffer_offset Offset of the data in the buffer, in bytes; a multiple of 512.
 * @param failed Receives the bits of the addresses that were not read; may be `NULL`. Not written
 * if the command was not submitted.
 *
 * # Returns
 *
 * 0, or
 *
 * * a negative `errno` as in `struct sluice_vector_completion`: the drive failed the command.
 *   Addresses that are not in `failed` were executed.
 * * `-EINVAL`: an argument is `NULL` or invalid, or the data does not fit into the buffer.
 * * `-EXDEV`: the buffer belongs to another device.
 * * `-EBUSY`: another call uses the queue.
 *
 * # Threads
 *
 * One thread at a time for each vector queue.
 */
int sluice_vector_read(struct sluice_vector_queue *queue,
                       const uint64_t *addresses,
                       uint32_t count,
                       struct sluice_buffer *buffer,
                       uint64_t buffer_offset,
                       uint64_t *failed);

/**
 * Writes 1 to 64 sectors of an open-channel drive from a buffer, and waits for the completion.
 *
 * @param queue The queue.
 * @param addresses Addresses of the sectors: whole units of `ws_min` sectors, at the write
 * pointers of their chunks.
 * @param count Number of addresses.
 * @param buffer The sectors in the order of the addresses; with `NULL` the drive writes zeros.
 * @param buffer_offset Offset of the data in the buffer, in bytes; a multiple of 512.
 * @param failed Receives the bits of the addresses that may not have been written; may be `NULL`.
 * Not written if the command was not submitted.
 *
 * # Returns
 *
 * As `sluice_vector_read()`.
 *
 * # Threads
 *
 * One thread at a time for each vector queue.
 */
int sluice_vector_write(struct sluice_vector_queue *queue,
                        const uint64_t *addresses,
                        uint32_t count,
                        const struct sluice_buffer *buffer,
                        uint64_t buffer_offset,
                        uint64_t *failed);

/**
 * Erases 1 to 64 chunks of an open-channel drive, and waits for the completion.
 *
 * @param queue The queue.
 * @param addresses An address in each chunk.
 * @param count Number of addresses.
 * @param failed Receives the bits of the addresses whose chunks may not have been erased; may be
 * `NULL`. Not written if the command was not submitted.
 *
 * # Returns
 *
 * As `sluice_vector_read()`.
 *
 * # Threads
 *
 * One thread at a time for each vector queue.
 */
int sluice_vector_erase(struct sluice_vector_queue *queue,
                        const uint64_t *addresses,
                        uint32_t count,
                        uint64_t *failed);

/**
 * Copies 1 to 64 sectors inside an open-channel drive, including their out-of-band bytes, and
 * waits for the completion.
 *
 * @param queue The queue.
 * @param addresses Addresses of the source sectors.
 * @param targets Addresses of the target sectors; the rules are those of `sluice_vector_write()`.
 * @param count Number of addresses in each array.
 * @param failed Receives the bits of the targets that may not have been written: all of them if a
 * source could not be read. May be `NULL`. Not written if the command was not submitted.
 *
 * # Returns
 *
 * As `sluice_vector_read()`; `-EOPNOTSUPP` if the drive does not have `SLUICE_VECTOR_CAN_COPY`.
 *
 * # Threads
 *
 * One thread at a time for each vector queue.
 */
int sluice_vector_copy(struct sluice_vector_queue *queue,
                       const uint64_t *addresses,
                       const uint64_t *targets,
                       uint32_t count,
                       uint64_t *failed);

/**
 * Executes any vector command, also with out-of-band bytes, and waits for the completion.
 *
 * @param queue The queue.
 * @param request The command. The completion returns its `user_data`.
 * @param completion Receives the completion. Not written if the command was not submitted.
 *
 * # Returns
 *
 * 0 if the command has completed, successfully or not: see `completion->error`. Or
 *
 * * `-EINVAL`: an argument is `NULL`, or a member of the request is invalid.
 * * `-EXDEV`: a buffer belongs to another device.
 * * `-EOPNOTSUPP`: a copy, and the drive does not have `SLUICE_VECTOR_CAN_COPY`.
 * * `-EBUSY`: another call uses the queue.
 *
 * # Threads
 *
 * One thread at a time for each vector queue.
 */
int sluice_vector_run(struct sluice_vector_queue *queue,
                      const struct sluice_vector_request *request,
                      struct sluice_vector_completion *completion);

/**
 * Submits vector commands. The call passes all accepted commands to the drive before it returns.
 *
 * The call accepts commands in order, and stops at the first one that it cannot accept, for
 * example because the queue is full. Reap completions and submit the remaining commands again. The
 * drive executes the commands of one parallel unit in order, and commands of different parallel
 * units in any order.
 *
 * @param queue The queue.
 * @param requests The commands. The library does not access the array after the call.
 * @param count Number of commands.
 *
 * # Returns
 *
 * The number of accepted commands, at least 1 unless `count` is 0. If the call accepts none,
 *
 * * `-EAGAIN`: the queue is full.
 * * `-EINVAL`, `-EXDEV`, `-EOPNOTSUPP`: as `sluice_vector_run()`, for the first command. The drive
 *   checks the addresses; that error is in the completion.
 * * `-EBUSY`: another call uses the queue.
 *
 * # Threads
 *
 * One thread at a time for each vector queue. The call neither allocates memory nor takes a lock.
 */
int sluice_vector_submit(struct sluice_vector_queue *queue,
                         const struct sluice_vector_request *requests,
                         size_t count);

/**
 * Reaps completions of vector commands without waiting.
 *
 * @param queue The queue.
 * @param completions Receives the completions.
 * @param room Capacity of `completions`, in elements.
 *
 * # Returns
 *
 * The number of completions, 0 if none is available; or `-EINVAL` if a pointer is `NULL`, or
 * `-EBUSY` if another call uses the queue.
 *
 * # Threads
 *
 * One thread at a time for each vector queue. The call neither allocates memory nor takes a lock.
 */
int sluice_vector_reap(struct sluice_vector_queue *queue,
                       struct sluice_vector_completion *completions,
                       size_t room);

/**
 * Waits for completions of vector commands in the queue's wait mode, and reaps them.
 *
 * @param queue The queue.
 * @param completions Receives the completions.
 * @param room Capacity of `completions`, in elements; at least 1.
 * @param min Number of completions to wait for. The call does not wait for more than are
 * outstanding or than `room`. With 0 it does not wait, as `sluice_vector_reap()`.
 * @param timeout_ns Maximum time to wait, in nanoseconds; `SLUICE_TIMEOUT_INFINITE` for no limit.
 *
 * # Returns
 *
 * The number of completions; less than `min` if the time has passed or no more commands are
 * outstanding. Or `-EINVAL` if a pointer is `NULL` or `room` is 0, or `-EBUSY` if another call
 * uses the queue.
 *
 * # Threads
 *
 * One thread at a time for each vector queue.
 */
int sluice_vector_wait(struct sluice_vector_queue *queue,
                       struct sluice_vector_completion *completions,
                       size_t room,
                       size_t min,
                       uint64_t timeout_ns);

/**
 * Returns the version of the library.
 *
 * `SLUICE_VERSION` is the version of the header. `sluice_open()` compares the two, and refuses an
 * incompatible header with `-ELIBBAD`.
 *
 * # Returns
 *
 * `major << 16 | minor << 8 | patch`.
 *
 * # Threads
 *
 * Any thread.
 */
uint32_t sluice_version(void);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* SLUICE_H */

/* Former names of constants, for one release. The compiler warns about their use. */
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
 * Opens a device.
 *
 * Calls `sluice_open_version()` with the version of this header.
 *
 * @param what Name of the device; see `sluice_open_version()`.
 * @param options Options, or `NULL` for the defaults.
 * @param device Receives the device, or `NULL` if the call fails.
 *
 * # Returns
 *
 * 0, or a negative errno: see `sluice_open_version()`.
 *
 * # Threads
 *
 * Any thread.
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
