/**
 * The calls of NVMeDirect (HotStorage 2016, table 1, and its library) over sluice.h.
 *
 * Compile a program written for NVMeDirect with this header in place of `nvmed.h`, and link it with
 * `-lsluice`. `nvmed_open()` opens every device that `sluice_open()` opens. Table 1 and the library name
 * some calls differently (`nvmed_create_queue`, `nvmed_queue_create`); this header has both names. A call
 * that fails sets `errno`; `sluice_last_error()` returns the reason as text.
 *
 * Differences from the library:
 *
 * - Transfers consist of whole sectors, also with the block cache.
 * - Memory that is not from `nvmed_get_buffer()` need not be locked: synchronous transfers copy it.
 *   Asynchronous transfers need memory from `nvmed_get_buffer()`.
 * - The features of a handle can be changed while it has no outstanding requests.
 */

#ifndef SLUICE_NVMED_COMPAT_H
#define SLUICE_NVMED_COMPAT_H

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

#include "sluice.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Results of calls that return neither a pointer nor a count. */
#define NVMED_SUCCESS 0
#define NVMED_FAULT (-1)
#define NVMED_NOENTRY (-2)

/* nvmed_open(): handles have no block cache. */
#define NVMED_NO_CACHE 1

/* nvmed_queue_create(): handles may wait for interrupts. All queues allow this. */
#define QUEUE_INTERRUPT 1

/* Features of a handle: no block cache; write-through block cache; wait for interrupts; transfers use
 * memory from nvmed_get_buffer() (no effect: the library detects it). */
#define HANDLE_DIRECT_IO 1
#define HANDLE_SYNC_IO 2
#define HANDLE_INTERRUPT 4
#define HANDLE_HINT_DMEM 8

/* nvmed_set_param(): wait mode (SLUICE_WAIT_*); polling interval in nanoseconds of a thread that polls the
 * queues for completions, 0 for no thread; size of the block cache in bytes. */
#define NVMED_PARAM_WAIT 1
#define NVMED_PARAM_POLL_PERIOD 2
#define NVMED_PARAM_CACHE_BYTES 3

/* Default size of a handle's block cache in bytes. */
#define NVMED_CACHE_BYTES (64ull << 20)

/* Status of a struct nvmed_aio_ctx: not submitted, submitted, completed. */
#define AIO_INIT 0
#define AIO_PROCESS 1
#define AIO_COMPLETE 2

typedef struct NVMED {
    struct sluice_device *device;
    int flags;
} NVMED;

typedef struct NVMED_QUEUE {
    NVMED *nvmed;
    struct sluice_queue *queue;
    struct sluice_poller *poller;
} NVMED_QUEUE;

typedef struct NVMED_HANDLE {
    NVMED *nvmed;
    struct sluice_handle *handle;
    NVMED_QUEUE **queues;
    int num_queues;
    int flags;
    uint32_t wait;
    uint64_t cache_bytes;
    NVMED_QUEUE *(*select)(struct NVMED_HANDLE *, uint8_t, unsigned long, unsigned int);
    uint32_t sector_bytes;
    uint64_t bytes;
    off_t offset;
    int submitted;
} NVMED_HANDLE;

/* An asynchronous request. The caller sets all members except `status`, `error` and `opcode`, and keeps
 * the struct until the request completes. */
typedef struct nvmed_aio_ctx {
    NVMED_HANDLE *handle;
    unsigned long start_lba; /* offset on the device in bytes */
    unsigned int len;        /* length in bytes */
    void *buf;               /* memory from nvmed_get_buffer() */
    int opcode;
    int status; /* AIO_* */
    int error;  /* when completed: 0, or a negative errno */
    void (*aio_callback)(const struct nvmed_aio_ctx *context, void *userdata);
    void *cb_userdata;
    void *private_data;
} NVMED_AIO_CTX;

static inline int nvmed_compat_fail(int error, int answer)
{
    errno = -error;
    return answer;
}

/**
 * Opens a device.
 *
 * @param path Name of the device, as for `sluice_open()`.
 * @param flags `NVMED_NO_CACHE` or 0.
 *
 * # Returns
 *
 * The device, or `NULL`.
 */
static inline NVMED *nvmed_open(const char *path, int flags)
{
    NVMED *nvmed;
    int error;

    if (flags & ~NVMED_NO_CACHE) {
        errno = EINVAL;
        return NULL;
    }
    nvmed = (NVMED *)calloc(1, sizeof *nvmed);
    if (!nvmed)
        return NULL;
    error = sluice_open(path, NULL, &nvmed->device);
    if (error) {
        free(nvmed);
        errno = -error;
        return NULL;
    }
    nvmed->flags = flags;
    return nvmed;
}

/**
 * Closes a device. Destroy its queues first.
 *
 * @param nvmed The device.
 *
 * # Returns
 *
 * 0, or `NVMED_NOENTRY` if `nvmed` is `NULL`, or `NVMED_FAULT` if the drive was not shut down cleanly (see
 * `sluice_close()`). The device is closed in both cases.
 */
static inline int nvmed_close(NVMED *nvmed)
{
    int error;

    if (!nvmed)
        return nvmed_compat_fail(-EINVAL, NVMED_NOENTRY);
    error = sluice_close(nvmed->device);
    free(nvmed);
    return error ? nvmed_compat_fail(error, NVMED_FAULT) : NVMED_SUCCESS;
}

/**
 * Creates a queue that several handles may share.
 *
 * @param nvmed The device.
 * @param flags `QUEUE_INTERRUPT` or 0.
 *
 * # Returns
 *
 * The queue, or `NULL`.
 */
static inline NVMED_QUEUE *nvmed_queue_create(NVMED *nvmed, int flags)
{
    struct sluice_queue_options options;
    NVMED_QUEUE *queue;
    int error;

    if (!nvmed || (flags & ~QUEUE_INTERRUPT)) {
        errno = EINVAL;
        return NULL;
    }
    queue = (NVMED_QUEUE *)calloc(1, sizeof *queue);
    if (!queue)
        return NULL;
    memset(&options, 0, sizeof options);
    options.size = sizeof options;
    options.flags = SLUICE_QUEUE_SHARED;
    error = sluice_queue_create(nvmed->device, &options, &queue->queue);
    if (error) {
        free(queue);
        errno = -error;
        return NULL;
    }
    queue->nvmed = nvmed;
    return queue;
}

/**
 * Creates a queue; the name in table 1.
 *
 * @param nvmed The device.
 *
 * # Returns
 *
 * The queue, or `NULL`.
 */
static inline NVMED_QUEUE *nvmed_create_queue(NVMED *nvmed)
{
    return nvmed_queue_create(nvmed, QUEUE_INTERRUPT);
}

/* Stops the thread that polls a queue. No handle may be bound to the queue. */
static inline int nvmed_compat_unwatch(NVMED_QUEUE *queue)
{
    int error = 0;

    if (queue->poller) {
        error = sluice_poller_destroy(queue->poller);
        if (!error)
            queue->poller = NULL;
    }
    return error;
}

/**
 * Destroys a queue. Destroy its handles first.
 *
 * @param queue The queue.
 *
 * # Returns
 *
 * 0, or `NVMED_FAULT` if the queue has handles, or `NVMED_NOENTRY` if `queue` is `NULL`.
 */
static inline int nvmed_queue_destroy(NVMED_QUEUE *queue)
{
    int error;

    if (!queue)
        return nvmed_compat_fail(-EINVAL, NVMED_NOENTRY);
    error = nvmed_compat_unwatch(queue);
    if (!error)
        error = sluice_queue_destroy(queue->queue);
    if (error)
        return nvmed_compat_fail(error, NVMED_FAULT);
    free(queue);
    return NVMED_SUCCESS;
}

/**
 * Destroys a queue; the name in table 1.
 *
 * @param queue The queue.
 *
 * # Returns
 *
 * As `nvmed_queue_destroy()`.
 */
static inline int nvmed_destroy_queue(NVMED_QUEUE *queue)
{
    return nvmed_queue_destroy(queue);
}

/* Calls the program's selection function and returns the index of its queue, or 0 for another queue. */
static inline size_t nvmed_compat_select(void *arg, uint32_t op, uint64_t lba, uint32_t sectors,
                                         size_t queues)
{
    NVMED_HANDLE *handle = (NVMED_HANDLE *)arg;
    /* NVMe opcodes of the values of SLUICE_OP_*. */
    static const uint8_t opcodes[] = {0xff, 0x02, 0x01, 0x00, 0x09, 0x08};
    uint8_t opcode = op < sizeof opcodes ? opcodes[op] : 0xff;
    NVMED_QUEUE *chosen = handle->select(handle, opcode, (unsigned long)(lba * handle->sector_bytes),
                                         (unsigned int)(sectors * handle->sector_bytes));
    size_t i;

    for (i = 0; i < queues; i++)
        if (handle->queues[i] == chosen)
            return i;
    return 0;
}

/* Creates the handle's struct sluice_handle with its current features. */
static inline int nvmed_compat_bind(NVMED_HANDLE *handle)
{
    struct sluice_handle_options options;
    struct sluice_queue **queues;
    int error, i;

    memset(&options, 0, sizeof options);
    options.size = sizeof options;
    options.wait = handle->wait;
    if (handle->flags & HANDLE_INTERRUPT || handle->queues[0]->poller)
        options.wait = SLUICE_WAIT_EVENT;
    if (!(handle->flags & HANDLE_DIRECT_IO) && !(handle->nvmed->flags & NVMED_NO_CACHE)) {
        options.cache_bytes = handle->cache_bytes;
        if (handle->flags & HANDLE_SYNC_IO)
            options.cache_flags = SLUICE_CACHE_WRITE_THROUGH;
    }
    if (handle->num_queues == 1)
        return sluice_handle_create(handle->queues[0]->queue, &options, &handle->handle);
    if (handle->select) {
        options.selector = SLUICE_SELECT_CALLBACK;
        options.select = nvmed_compat_select;
        options.select_arg = handle;
    }
    queues = (struct sluice_queue **)malloc((size_t)handle->num_queues * sizeof *queues);
    if (!queues)
        return -ENOMEM;
    for (i = 0; i < handle->num_queues; i++)
        queues[i] = handle->queues[i]->queue;
    error = sluice_handle_create_mq(queues, (size_t)handle->num_queues, &options, &handle->handle);
    free(queues);
    return error;
}

/**
 * Creates a handle over several queues.
 *
 * @param queues The queues, of one device.
 * @param num_queues Number of queues.
 * @param flags Bitwise OR of `HANDLE_DIRECT_IO`, `HANDLE_SYNC_IO`, `HANDLE_INTERRUPT` and `HANDLE_HINT_DMEM`.
 * @param func Returns the queue of a request, given its NVMe opcode, and its offset and length in bytes;
 * `NULL` to use the queues in rotation.
 *
 * # Returns
 *
 * The handle, or `NULL`.
 */
static inline NVMED_HANDLE *nvmed_handle_create_mq(
    NVMED_QUEUE **queues, int num_queues, int flags,
    NVMED_QUEUE *(*func)(NVMED_HANDLE *, uint8_t, unsigned long, unsigned int))
{
    struct sluice_device_info info;
    NVMED_HANDLE *handle;
    int error, i;

    if (!queues || num_queues < 1 || (flags & ~15)) {
        errno = EINVAL;
        return NULL;
    }
    for (i = 0; i < num_queues; i++) {
        if (!queues[i]) {
            errno = EINVAL;
            return NULL;
        }
    }
    handle = (NVMED_HANDLE *)calloc(1, sizeof *handle);
    if (!handle)
        return NULL;
    handle->queues = (NVMED_QUEUE **)malloc((size_t)num_queues * sizeof *queues);
    if (!handle->queues) {
        free(handle);
        return NULL;
    }
    memcpy(handle->queues, queues, (size_t)num_queues * sizeof *queues);
    handle->nvmed = queues[0]->nvmed;
    handle->num_queues = num_queues;
    handle->flags = flags;
    handle->cache_bytes = NVMED_CACHE_BYTES;
    handle->select = func;
    memset(&info, 0, sizeof info);
    info.size = sizeof info;
    error = sluice_device_get_info(handle->nvmed->device, &info);
    handle->sector_bytes = info.sector_bytes;
    handle->bytes = info.sectors * info.sector_bytes;
    if (!error)
        error = nvmed_compat_bind(handle);
    if (error) {
        free(handle->queues);
        free(handle);
        errno = -error;
        return NULL;
    }
    return handle;
}

/**
 * Creates a handle that uses several queues in rotation; the name in table 1.
 *
 * @param queues The queues, of one device.
 * @param num_queues Number of queues.
 *
 * # Returns
 *
 * The handle, or `NULL`.
 */
static inline NVMED_HANDLE *nvmed_create_mq_handle(NVMED_QUEUE **queues, int num_queues)
{
    return nvmed_handle_create_mq(queues, num_queues, 0, NULL);
}

/**
 * Creates a handle over one queue.
 *
 * @param queue The queue.
 * @param flags As for `nvmed_handle_create_mq()`.
 *
 * # Returns
 *
 * The handle, or `NULL`.
 */
static inline NVMED_HANDLE *nvmed_handle_create(NVMED_QUEUE *queue, int flags)
{
    return nvmed_handle_create_mq(&queue, 1, flags, NULL);
}

/**
 * Creates a handle over one queue; the name in table 1.
 *
 * @param queue The queue.
 *
 * # Returns
 *
 * The handle, or `NULL`.
 */
static inline NVMED_HANDLE *nvmed_create_handle(NVMED_QUEUE *queue)
{
    return nvmed_handle_create(queue, 0);
}

/**
 * Destroys a handle. Its block cache is written to the device and flushed.
 *
 * @param handle The handle.
 *
 * # Returns
 *
 * 0, or `NVMED_FAULT` if the cache could not be written or `sluice_handle_destroy()` failed otherwise, or
 * `NVMED_NOENTRY` if `handle` is `NULL`.
 */
static inline int nvmed_handle_destroy(NVMED_HANDLE *handle)
{
    int error;

    if (!handle)
        return nvmed_compat_fail(-EINVAL, NVMED_NOENTRY);
    error = sluice_handle_destroy(handle->handle);
    if (error == -EBUSY)
        return nvmed_compat_fail(error, NVMED_FAULT);
    free(handle->queues);
    free(handle);
    return error ? nvmed_compat_fail(error, NVMED_FAULT) : NVMED_SUCCESS;
}

/**
 * Destroys a handle over several queues.
 *
 * @param handle The handle.
 *
 * # Returns
 *
 * As `nvmed_handle_destroy()`.
 */
static inline int nvmed_handle_destroy_mq(NVMED_HANDLE *handle)
{
    return nvmed_handle_destroy(handle);
}

/**
 * Destroys a handle; the name in table 1.
 *
 * @param handle The handle.
 *
 * # Returns
 *
 * As `nvmed_handle_destroy()`.
 */
static inline int nvmed_destroy_handle(NVMED_HANDLE *handle)
{
    return nvmed_handle_destroy(handle);
}

/* Destroys the handle's struct sluice_handle, so that another one can be bound to its queues. */
static inline int nvmed_compat_unbind(NVMED_HANDLE *handle)
{
    int outstanding = sluice_handle_outstanding(handle->handle);
    int error;

    if (outstanding)
        return outstanding < 0 ? outstanding : -EBUSY;
    error = sluice_handle_destroy(handle->handle);
    if (error != -EBUSY)
        handle->handle = NULL;
    return error;
}

/**
 * Changes features of a handle. The handle must have no outstanding requests.
 *
 * @param handle The handle.
 * @param flags `HANDLE_DIRECT_IO`, `HANDLE_SYNC_IO`, `HANDLE_INTERRUPT` or `HANDLE_HINT_DMEM`.
 * @param value Whether to enable the features.
 *
 * # Returns
 *
 * `value`, or -1.
 */
static inline int nvmed_handle_feature_set(NVMED_HANDLE *handle, int flags, bool value)
{
    int before, error;

    if (!handle || (flags & ~15))
        return nvmed_compat_fail(-EINVAL, -1);
    before = handle->flags;
    error = nvmed_compat_unbind(handle);
    if (error)
        return nvmed_compat_fail(error, -1);
    handle->flags = value ? before | flags : before & ~flags;
    error = nvmed_compat_bind(handle);
    if (error) {
        handle->flags = before;
        nvmed_compat_bind(handle);
        return nvmed_compat_fail(error, -1);
    }
    return value;
}

/**
 * Returns whether a handle has features.
 *
 * @param handle The handle.
 * @param flags As for `nvmed_handle_feature_set()`.
 *
 * # Returns
 *
 * 1 if the handle has all of them, or 0, or -1 if an argument is invalid.
 */
static inline int nvmed_handle_feature_get(NVMED_HANDLE *handle, int flags)
{
    if (!handle || (flags & ~15))
        return nvmed_compat_fail(-EINVAL, -1);
    return (handle->flags & flags) == flags;
}

/* Starts a thread that polls a queue every `period_ns`; stops the thread if that is 0. */
static inline int nvmed_compat_period(NVMED_QUEUE *queue, uint64_t period_ns)
{
    struct sluice_poller_options options;
    int error = nvmed_compat_unwatch(queue);

    if (error || !period_ns)
        return error;
    memset(&options, 0, sizeof options);
    options.size = sizeof options;
    options.period = SLUICE_PERIOD_FIXED;
    options.period_ns = period_ns;
    error = sluice_poller_create(queue->nvmed->device, &options, &queue->poller);
    if (error)
        return error;
    error = sluice_poller_watch(queue->poller, queue->queue);
    if (error)
        nvmed_compat_unwatch(queue);
    return error;
}

/**
 * Sets a parameter of a handle, or of its queues. The handle must have no outstanding requests.
 *
 * @param handle The handle. For `NVMED_PARAM_POLL_PERIOD` it must be the only handle of its queues.
 * @param param `NVMED_PARAM_WAIT`, `NVMED_PARAM_POLL_PERIOD` or `NVMED_PARAM_CACHE_BYTES`.
 * @param val Value of the parameter.
 *
 * # Returns
 *
 * 0, or `NVMED_FAULT`, or `NVMED_NOENTRY` if `handle` is `NULL`.
 */
static inline int nvmed_set_param(NVMED_HANDLE *handle, int param, unsigned long val)
{
    uint64_t cache_bytes;
    uint32_t wait;
    int error, again, i;

    if (!handle)
        return nvmed_compat_fail(-EINVAL, NVMED_NOENTRY);
    if (param < NVMED_PARAM_WAIT || param > NVMED_PARAM_CACHE_BYTES)
        return nvmed_compat_fail(-EINVAL, NVMED_FAULT);
    error = nvmed_compat_unbind(handle);
    if (error)
        return nvmed_compat_fail(error, NVMED_FAULT);
    wait = handle->wait;
    cache_bytes = handle->cache_bytes;
    if (param == NVMED_PARAM_WAIT)
        handle->wait = (uint32_t)val;
    if (param == NVMED_PARAM_CACHE_BYTES)
        handle->cache_bytes = val;
    if (param == NVMED_PARAM_POLL_PERIOD)
        for (i = 0; i < handle->num_queues && !error; i++)
            error = nvmed_compat_period(handle->queues[i], val);
    again = nvmed_compat_bind(handle);
    if (again) {
        handle->wait = wait;
        handle->cache_bytes = cache_bytes;
        nvmed_compat_bind(handle);
    }
    if (!error)
        error = again;
    return error ? nvmed_compat_fail(error, NVMED_FAULT) : NVMED_SUCCESS;
}

/**
 * Allocates memory for transfers.
 *
 * @param nvmed The device.
 * @param num_pages Number of pages of 4096 bytes.
 *
 * # Returns
 *
 * The memory, or `NULL`.
 */
static inline void *nvmed_get_buffer(NVMED *nvmed, unsigned int num_pages)
{
    struct sluice_buffer *buffer;
    int error;

    error = sluice_buffer_create(nvmed ? nvmed->device : NULL, (size_t)num_pages * 4096, &buffer);
    if (error) {
        errno = -error;
        return NULL;
    }
    return sluice_buffer_data(buffer);
}

/**
 * Frees memory.
 *
 * @param nvmed_buf Memory from `nvmed_get_buffer()`.
 */
static inline void nvmed_put_buffer(void *nvmed_buf)
{
    struct sluice_buffer *buffer;

    if (!sluice_buffer_find(nvmed_buf, 1, &buffer, NULL))
        sluice_buffer_destroy(buffer);
}

/**
 * Sets the offset of the next transfer.
 *
 * @param handle The handle.
 * @param offset Offset in bytes.
 * @param whence Reference: `SEEK_SET`, `SEEK_CUR`, or `SEEK_END` for `offset` bytes before the end.
 *
 * # Returns
 *
 * The new offset in bytes from the start of the device, or -1.
 */
static inline off_t nvmed_lseek(NVMED_HANDLE *handle, off_t offset, int whence)
{
    off_t at = -1;

    if (handle && whence == SEEK_SET)
        at = offset;
    else if (handle && whence == SEEK_CUR)
        at = handle->offset + offset;
    else if (handle && whence == SEEK_END)
        at = (off_t)handle->bytes - offset;
    if (at < 0 || (uint64_t)at > handle->bytes)
        return nvmed_compat_fail(-EINVAL, -1);
    handle->offset = at;
    return at;
}

static inline ssize_t nvmed_compat_moved(NVMED_HANDLE *handle, int64_t moved)
{
    if (moved < 0)
        return nvmed_compat_fail((int)moved, -1);
    handle->offset += moved;
    return (ssize_t)moved;
}

/**
 * Reads at the offset of the handle, and advances the offset.
 *
 * @param handle The handle.
 * @param buf Receives the data.
 * @param count Number of bytes, a multiple of the sector size.
 *
 * # Returns
 *
 * `count`, or -1.
 */
static inline ssize_t nvmed_read(NVMED_HANDLE *handle, void *buf, size_t count)
{
    if (!handle)
        return nvmed_compat_fail(-EINVAL, -1);
    return nvmed_compat_moved(handle,
                              sluice_pread(handle->handle, buf, count, (uint64_t)handle->offset));
}

/**
 * Writes at the offset of the handle, and advances the offset.
 *
 * @param handle The handle.
 * @param buf The data.
 * @param count Number of bytes, a multiple of the sector size.
 *
 * # Returns
 *
 * `count`, or -1.
 */
static inline ssize_t nvmed_write(NVMED_HANDLE *handle, const void *buf, size_t count)
{
    if (!handle)
        return nvmed_compat_fail(-EINVAL, -1);
    return nvmed_compat_moved(handle,
                              sluice_pwrite(handle->handle, buf, count, (uint64_t)handle->offset));
}

/**
 * Writes the block cache to the device, and flushes the device.
 *
 * @param handle The handle.
 *
 * # Returns
 *
 * 0, or -1.
 */
static inline int nvmed_flush(NVMED_HANDLE *handle)
{
    int error = sluice_flush(handle ? handle->handle : NULL);

    return error ? nvmed_compat_fail(error, -1) : 0;
}

/**
 * Discards a range of the device.
 *
 * @param handle The handle.
 * @param start Offset in bytes, a multiple of the sector size.
 * @param len Length in bytes, a multiple of the sector size.
 *
 * # Returns
 *
 * 0, or -1.
 */
static inline int nvmed_discard(NVMED_HANDLE *handle, unsigned long start, unsigned int len)
{
    int error;

    if (!handle || start % handle->sector_bytes || len % handle->sector_bytes)
        return nvmed_compat_fail(-EINVAL, -1);
    error = sluice_discard(handle->handle, start / handle->sector_bytes, len / handle->sector_bytes);
    return error ? nvmed_compat_fail(error, -1) : 0;
}

static inline int nvmed_compat_submit(NVMED_AIO_CTX *context, uint32_t op)
{
    struct sluice_request request;
    struct sluice_buffer *buffer;
    NVMED_HANDLE *handle;
    int taken;

    if (!context || !context->handle)
        return nvmed_compat_fail(-EINVAL, -1);
    handle = context->handle;
    if (context->start_lba % handle->sector_bytes || context->len % handle->sector_bytes)
        return nvmed_compat_fail(-EINVAL, -1);
    memset(&request, 0, sizeof request);
    taken = sluice_buffer_find(context->buf, context->len, &buffer, &request.buffer_offset);
    if (taken)
        return nvmed_compat_fail(taken, -1);
    request.op = op;
    request.lba = context->start_lba / handle->sector_bytes;
    request.sectors = context->len / handle->sector_bytes;
    request.buffer = buffer;
    request.user_data = (uint64_t)(uintptr_t)context;
    context->opcode = (int)op;
    context->status = AIO_INIT;
    taken = sluice_submit(handle->handle, &request, 1);
    if (taken < 0)
        return nvmed_compat_fail(taken, -1);
    context->status = AIO_PROCESS;
    handle->submitted++;
    return 0;
}

/**
 * Submits a read.
 *
 * @param context The request.
 *
 * # Returns
 *
 * 0, or -1. If `errno` is `EAGAIN`, the queue is full: complete other requests first.
 */
static inline int nvmed_aio_read(NVMED_AIO_CTX *context)
{
    return nvmed_compat_submit(context, SLUICE_OP_READ);
}

/**
 * Submits a write.
 *
 * @param context The request.
 *
 * # Returns
 *
 * As `nvmed_aio_read()`.
 */
static inline int nvmed_aio_write(NVMED_AIO_CTX *context)
{
    return nvmed_compat_submit(context, SLUICE_OP_WRITE);
}

/**
 * Returns the number of requests submitted since the previous call.
 *
 * @param handle The handle.
 *
 * # Returns
 *
 * The number of requests, or -1.
 */
static inline int nvmed_aio_queue_submit(NVMED_HANDLE *handle)
{
    int submitted;

    if (!handle)
        return nvmed_compat_fail(-EINVAL, -1);
    submitted = handle->submitted;
    handle->submitted = 0;
    return submitted;
}

/**
 * Reaps completions without waiting. For each, sets the status of the request, then calls its callback.
 *
 * @param handle The handle.
 *
 * # Returns
 *
 * The number of completed requests, or -1.
 */
static inline int nvmed_aio_handle_complete(NVMED_HANDLE *handle)
{
    struct sluice_completion completions[32];
    int all = 0, count, i;

    do {
        count = sluice_reap(handle ? handle->handle : NULL, completions, 32);
        if (count < 0)
            return nvmed_compat_fail(count, -1);
        for (i = 0; i < count; i++) {
            NVMED_AIO_CTX *context = (NVMED_AIO_CTX *)(uintptr_t)completions[i].user_data;

            context->error = completions[i].error;
            context->status = AIO_COMPLETE;
            if (context->aio_callback)
                context->aio_callback(context, context->cb_userdata);
        }
        all += count;
    } while (count == 32);
    return all;
}

#ifdef __cplusplus
}
#endif

#endif /* SLUICE_NVMED_COMPAT_H */
