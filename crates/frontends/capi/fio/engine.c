/* libfio_sluice.so: fio on any device that sluice_open() opens, built by `make fio-engine`.
 *
 *     fio --ioengine=external:/path/to/libfio_sluice.so --sluice_device=null:64g ...
 *
 * Every job has a queue and a handle of its own, and its buffers are registered memory. Jobs that are
 * threads (--thread) share one opened device; jobs that are processes open it each for itself, which
 * something that one process has for itself, a scenario or a controller, cannot stand: that is refused.
 *
 * fio's interfaces are those of its own source package, which this is compiled against. */

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "config-host.h"

#include "fio.h"
#include "optgroup.h"

#include "sluice.h"

enum { WAIT_POLL, WAIT_EVENT, WAIT_HYBRID };

/* Where a job's options go; fio wants the first place for itself. */
struct sluice_fio_options {
    void *td;
    char *device;
    unsigned int wait;
    unsigned int buffered;
    unsigned int cache_bytes;
    unsigned int queues;
    unsigned int atomic;
};

static struct fio_option options[] = {
    {
        .name = "sluice_device",
        .lname = "Sluice device",
        .type = FIO_OPT_STR_STORE,
        .off1 = offsetof(struct sluice_fio_options, device),
        .help = "What to open, as sluice_open() takes it; the job's filename unless said",
        .category = FIO_OPT_C_ENGINE,
        .group = FIO_OPT_G_INVALID,
    },
    {
        .name = "sluice_wait",
        .lname = "Sluice wait",
        .type = FIO_OPT_STR,
        .off1 = offsetof(struct sluice_fio_options, wait),
        .help = "How completions are waited for",
        .def = "poll",
        .posval =
            {
                { .ival = "poll", .oval = WAIT_POLL, .help = "Look all the time" },
                { .ival = "event", .oval = WAIT_EVENT, .help = "Sleep until the device says so" },
                { .ival = "hybrid", .oval = WAIT_HYBRID, .help = "Sleep for part of the time" },
            },
        .category = FIO_OPT_C_ENGINE,
        .group = FIO_OPT_G_INVALID,
    },
    {
        .name = "sluice_buffered",
        .lname = "Sluice buffered",
        .type = FIO_OPT_BOOL,
        .off1 = offsetof(struct sluice_fio_options, buffered),
        .help = "Open a file through the page cache; direct= does not matter here",
        .def = "0",
        .category = FIO_OPT_C_ENGINE,
        .group = FIO_OPT_G_INVALID,
    },
    {
        .name = "sluice_cache",
        .lname = "Sluice cache",
        .type = FIO_OPT_INT,
        .off1 = offsetof(struct sluice_fio_options, cache_bytes),
        .help = "Bytes of a block cache for each job; 0 for none",
        .def = "0",
        .category = FIO_OPT_C_ENGINE,
        .group = FIO_OPT_G_INVALID,
    },
    {
        .name = "sluice_queues",
        .lname = "Sluice queues",
        .type = FIO_OPT_INT,
        .off1 = offsetof(struct sluice_fio_options, queues),
        .help = "Queues that a scenario is opened with, at least; shards of a pblk; 0 for what it has",
        .def = "0",
        .category = FIO_OPT_C_ENGINE,
        .group = FIO_OPT_G_INVALID,
    },
    {
        .name = "sluice_atomic",
        .lname = "Sluice atomic",
        .type = FIO_OPT_BOOL,
        .off1 = offsetof(struct sluice_fio_options, atomic),
        .help = "Writes must be atomic; they fail where the device cannot keep them whole",
        .def = "0",
        .category = FIO_OPT_C_ENGINE,
        .group = FIO_OPT_G_INVALID,
    },
    { .name = NULL },
};

/* A device that threads share. It is opened once, and closed when fio lets go of the engine. */
struct shared {
    struct shared *next;
    char *what;
    struct sluice_device *device;
};

static struct shared *shared_devices;
static pthread_mutex_t shared_lock = PTHREAD_MUTEX_INITIALIZER;

/* What a job has. */
struct job {
    struct sluice_device *device;
    struct sluice_queue *queue;
    struct sluice_handle *handle;
    struct sluice_buffer *buffer;
    struct sluice_device_info info;
    /* Whether the device is the job's own. */
    bool own;
    /* Flags of each write. */
    uint32_t write_flags;
    /* Requests that fio has queued and not committed; as many places as its iodepth. */
    struct sluice_request *staged;
    unsigned int staged_count;
    /* Completions that fio has not asked for; as many places. */
    struct sluice_completion *came;
    unsigned int came_count;
    /* Those that it was told of last. */
    struct io_u **events;
};

static const char *device_of(struct thread_data *td)
{
    const struct sluice_fio_options *o = td->eo;

    if (o->device)
        return o->device;
    return td->files_index ? td->files[0]->file_name : NULL;
}

/* Whether the first `length` characters end as the name of a scenario does. */
static bool is_scenario(const char *what, size_t length)
{
    return length > 5 && !strncasecmp(what + length - 5, ".toml", 5);
}

/* Whether a device is driven by a user-space driver of this process: `vfio:ADDRESS`, `uio:ADDRESS?unsafe=1`. */
static bool is_controller(const char *what)
{
    return !strncmp(what, "vfio:", 5) || !strncmp(what, "uio:", 4);
}

/* Whether one process has a device for itself: `scenario.toml`, `scenario.toml#NAME`, a controller. */
static bool in_process(const char *what)
{
    const char *name = strrchr(what, '#');

    return is_controller(what) || is_scenario(what, strlen(what)) ||
           (name && is_scenario(what, (size_t)(name - what)));
}

static int fail(struct thread_data *td, int error, const char *what)
{
    log_err("fio: sluice: %s: %s\n", what, sluice_last_error());
    td_verror(td, -error, "sluice");
    return 1;
}

static int refuse(struct thread_data *td, int error, const char *what, const char *why)
{
    log_err("fio: sluice: %s: %s\n", what, why);
    td_verror(td, error, "sluice");
    return 1;
}

static int open_device(struct thread_data *td, const char *what, struct sluice_device **device)
{
    const struct sluice_fio_options *o = td->eo;
    struct sluice_open_options open;
    bool null = !strcmp(what, "null") || !strncmp(what, "null:", 5);
    bool file = !null && !in_process(what) && strncmp(what, "sluice:", 7);

    memset(&open, 0, sizeof(open));
    open.size = sizeof(open);
    open.queues = o->queues;
    if (file) {
        /* Several jobs on one block device are the point of a benchmark. */
        open.flags = SLUICE_OPEN_SHARED | (o->buffered ? SLUICE_OPEN_BUFFERED : 0);
        open.queue_depth = td->o.iodepth > 128 ? td->o.iodepth : 0;
    } else if (null) {
        open.queue_depth = td->o.iodepth > 1024 ? td->o.iodepth : 0;
    }
    return sluice_open(what, &open, device);
}

/* The device that threads share, opened by the first that asks. */
static int share_device(struct thread_data *td, const char *what, struct sluice_device **device)
{
    struct shared *shared;
    int error = 0;

    pthread_mutex_lock(&shared_lock);
    for (shared = shared_devices; shared; shared = shared->next)
        if (!strcmp(shared->what, what))
            break;
    if (!shared) {
        shared = calloc(1, sizeof(*shared));
        error = -ENOMEM;
        if (shared) {
            shared->what = strdup(what);
            if (shared->what)
                error = open_device(td, what, &shared->device);
            if (error) {
                free(shared->what);
                free(shared);
            } else {
                shared->next = shared_devices;
                shared_devices = shared;
            }
        }
    }
    if (!error)
        *device = shared->device;
    pthread_mutex_unlock(&shared_lock);
    return error;
}

__attribute__((destructor)) static void close_shared(void)
{
    while (shared_devices) {
        struct shared *shared = shared_devices;

        shared_devices = shared->next;
        /* fio's own log may be gone by now. */
        if (sluice_close(shared->device))
            fprintf(stderr, "fio: sluice: %s: %s\n", shared->what, sluice_last_error());
        free(shared->what);
        free(shared);
    }
}

/* Before jobs begin, in fio's own process: how large is the device? What is not shared is closed again, so
 * that nothing crosses fork(). */
static int fio_sluice_setup(struct thread_data *td)
{
    struct sluice_device *device = NULL;
    struct sluice_device_info info;
    const struct sluice_fio_options *o = td->eo;
    const char *what = device_of(td);
    int error;

    if (!what)
        return refuse(td, EINVAL, "no device", "say which with sluice_device= or filename=");
    if (td->o.nr_files > 1 || td->files_index > 1)
        return refuse(td, EINVAL, what,
                      "a job has one device: names with colons are for sluice_device=, and nrfiles is 1");
    if (!td->o.use_thread && in_process(what))
        return refuse(td, EINVAL, what,
                      is_controller(what)
                          ? "one process has a controller at a time: use --thread"
                          : "a scenario lives in one process: use --thread, or serve it and open what is served");
    if (!td->files_index) {
        add_file(td, o->device, 0, 0);
        td->o.nr_files = 1;
        td->o.open_files++;
    }
    error = td->o.use_thread ? share_device(td, what, &device) : open_device(td, what, &device);
    if (error)
        return fail(td, error, what);
    memset(&info, 0, sizeof(info));
    info.size = sizeof(info);
    error = sluice_device_get_info(device, &info);
    if (!td->o.use_thread)
        sluice_close(device);
    if (error)
        return fail(td, error, what);
    td->files[0]->real_file_size = info.sectors * info.sector_bytes;
    return 0;
}

static void fio_sluice_cleanup(struct thread_data *td)
{
    struct job *job = td->io_ops_data;

    if (!job)
        return;
    /* The handle first: nothing is on its way afterwards. */
    if (sluice_handle_destroy(job->handle))
        log_err("fio: sluice: %s\n", sluice_last_error());
    sluice_queue_destroy(job->queue);
    sluice_buffer_destroy(job->buffer);
    if (job->own && sluice_close(job->device))
        log_err("fio: sluice: %s\n", sluice_last_error());
    free(job->staged);
    free(job->came);
    free(job->events);
    free(job);
    td->io_ops_data = NULL;
}

static int fio_sluice_init(struct thread_data *td)
{
    static const uint32_t waits[] = { SLUICE_WAIT_POLL, SLUICE_WAIT_EVENT, SLUICE_WAIT_HYBRID };
    const struct sluice_fio_options *o = td->eo;
    struct sluice_queue_options queue;
    struct sluice_handle_options handle;
    const char *what = device_of(td);
    struct job *job = calloc(1, sizeof(*job));
    int error;

    if (!job)
        return refuse(td, ENOMEM, what, strerror(ENOMEM));
    td->io_ops_data = job;
    job->write_flags = o->atomic ? SLUICE_ATOMIC : 0;
    job->staged = calloc(td->o.iodepth, sizeof(*job->staged));
    job->came = calloc(td->o.iodepth, sizeof(*job->came));
    job->events = calloc(td->o.iodepth, sizeof(*job->events));
    if (!job->staged || !job->came || !job->events)
        return refuse(td, ENOMEM, what, strerror(ENOMEM));

    job->own = !td->o.use_thread;
    error = job->own ? open_device(td, what, &job->device) : share_device(td, what, &job->device);
    memset(&queue, 0, sizeof(queue));
    queue.size = sizeof(queue);
    job->info.size = sizeof(job->info);
    if (!error)
        error = sluice_device_get_info(job->device, &job->info);
    if (!error && job->info.kind == SLUICE_KIND_DRIVE)
        queue.depth = td->o.iodepth;
    if (!error)
        error = sluice_queue_create(job->device, &queue, &job->queue);

    memset(&handle, 0, sizeof(handle));
    handle.size = sizeof(handle);
    handle.wait = waits[o->wait];
    handle.cache_bytes = o->cache_bytes;
    if (!error)
        error = sluice_handle_create(job->queue, &handle, &job->handle);
    if (error)
        return fail(td, error, what);
    return 0;
}

static int fio_sluice_iomem_alloc(struct thread_data *td, size_t bytes)
{
    struct job *job = td->io_ops_data;
    int error = sluice_buffer_create(job->device, bytes, &job->buffer);

    if (error)
        return fail(td, error, device_of(td));
    td->orig_buffer = sluice_buffer_data(job->buffer);
    return 0;
}

/* The memory goes with the handle that may still use it. */
static void fio_sluice_iomem_free(struct thread_data *td)
{
    td->orig_buffer = NULL;
}

/* What fio asks for, as the library takes it; 0, or what is wrong with it. */
static int request_of(struct job *job, struct io_u *io_u, struct sluice_request *request)
{
    uint32_t sector = job->info.sector_bytes;
    char *base = sluice_buffer_data(job->buffer);
    char *data = io_u->xfer_buf;

    memset(request, 0, sizeof(*request));
    request->user_data = (uint64_t)(uintptr_t)io_u;
    if (ddir_sync(io_u->ddir)) {
        request->op = SLUICE_OP_FLUSH;
        return 0;
    }
    if (io_u->offset % sector || io_u->xfer_buflen % sector || !io_u->xfer_buflen)
        return EINVAL;
    request->lba = io_u->offset / sector;
    request->sectors = (uint32_t)(io_u->xfer_buflen / sector);
    if (io_u->ddir == DDIR_TRIM) {
        request->op = SLUICE_OP_DISCARD;
        return 0;
    }
    if (request->sectors > job->info.max_sectors)
        return EINVAL;
    if (data < base || (size_t)(data - base) > sluice_buffer_size(job->buffer))
        return EFAULT;
    request->op = io_u->ddir == DDIR_READ ? SLUICE_OP_READ : SLUICE_OP_WRITE;
    request->flags = io_u->ddir == DDIR_READ ? 0 : job->write_flags;
    request->buffer = job->buffer;
    request->buffer_offset = (uint64_t)(data - base);
    return 0;
}

static enum fio_q_status fio_sluice_queue(struct thread_data *td, struct io_u *io_u)
{
    struct job *job = td->io_ops_data;
    int error;

    fio_ro_check(td, io_u);
    if (job->staged_count == td->o.iodepth)
        return FIO_Q_BUSY;
    error = request_of(job, io_u, &job->staged[job->staged_count]);
    if (error) {
        if (error == EINVAL)
            log_err("fio: sluice: %llu bytes at %llu: a request is of whole sectors of %u bytes, %u at most\n",
                    (unsigned long long)io_u->xfer_buflen, (unsigned long long)io_u->offset,
                    job->info.sector_bytes, job->info.max_sectors);
        io_u->error = error;
        return FIO_Q_COMPLETED;
    }
    job->staged_count++;
    return FIO_Q_QUEUED;
}

/* Tells fio when its requests went to the device. */
static void issued(struct thread_data *td, const struct sluice_request *requests, unsigned int count)
{
    struct timespec now;
    unsigned int i;

    if (fio_fill_issue_time(td)) {
        fio_gettime(&now, NULL);
        for (i = 0; i < count; i++) {
            struct io_u *io_u = (struct io_u *)(uintptr_t)requests[i].user_data;

            memcpy(&io_u->issue_time, &now, sizeof(now));
            io_u_queued(td, io_u);
        }
    }
    io_u_mark_submit(td, count);
}

static int fio_sluice_commit(struct thread_data *td)
{
    struct job *job = td->io_ops_data;
    unsigned int done = 0;

    while (done < job->staged_count) {
        unsigned int count = job->staged_count - done;
        int taken = sluice_submit(job->handle, job->staged + done, count);

        if (taken == -EAGAIN) {
            /* The queue is less deep than the job: room is where something ended. */
            int came = sluice_wait(job->handle, job->came + job->came_count,
                                   td->o.iodepth - job->came_count, 1, SLUICE_TIMEOUT_INFINITE);

            if (came < 0)
                return came;
            job->came_count += (unsigned int)came;
            continue;
        }
        if (taken < 0) {
            log_err("fio: sluice: %s\n", sluice_last_error());
            return taken;
        }
        issued(td, job->staged + done, (unsigned int)taken);
        done += (unsigned int)taken;
    }
    job->staged_count = 0;
    return 0;
}

static int fio_sluice_getevents(struct thread_data *td, unsigned int min, unsigned int max,
                                const struct timespec *t)
{
    struct job *job = td->io_ops_data;
    uint64_t timeout = SLUICE_TIMEOUT_INFINITE;
    unsigned int room, wanted, i;
    int came;

    if (t)
        timeout = (uint64_t)t->tv_sec * 1000000000ull + (uint64_t)t->tv_nsec;
    if (max > td->o.iodepth)
        max = td->o.iodepth;
    if (job->came_count < max) {
        room = max - job->came_count;
        wanted = min > job->came_count ? min - job->came_count : 0;
        came = sluice_wait(job->handle, job->came + job->came_count, room, wanted, timeout);
        if (came < 0)
            return came;
        job->came_count += (unsigned int)came;
    }
    if (max > job->came_count)
        max = job->came_count;
    for (i = 0; i < max; i++) {
        struct io_u *io_u = (struct io_u *)(uintptr_t)job->came[i].user_data;

        io_u->error = -job->came[i].error;
        job->events[i] = io_u;
    }
    job->came_count -= max;
    memmove(job->came, job->came + max, job->came_count * sizeof(*job->came));
    return (int)max;
}

static struct io_u *fio_sluice_event(struct thread_data *td, int event)
{
    struct job *job = td->io_ops_data;

    return job->events[event];
}

/* Files are opened by the library; fio only has to believe that they are. */
static int fio_sluice_open_file(struct thread_data *td, struct fio_file *f)
{
    return 0;
}

static int fio_sluice_close_file(struct thread_data *td, struct fio_file *f)
{
    return 0;
}

static int fio_sluice_invalidate(struct thread_data *td, struct fio_file *f)
{
    return 0;
}

struct ioengine_ops ioengine = {
    .name = "sluice",
    .version = FIO_IOOPS_VERSION,
    .flags = FIO_DISKLESSIO | FIO_NOEXTEND | FIO_NODISKUTIL | FIO_RAWIO | FIO_ASYNCIO_SETS_ISSUE_TIME,
    .setup = fio_sluice_setup,
    .init = fio_sluice_init,
    .queue = fio_sluice_queue,
    .commit = fio_sluice_commit,
    .getevents = fio_sluice_getevents,
    .event = fio_sluice_event,
    .cleanup = fio_sluice_cleanup,
    .open_file = fio_sluice_open_file,
    .close_file = fio_sluice_close_file,
    .invalidate = fio_sluice_invalidate,
    .iomem_alloc = fio_sluice_iomem_alloc,
    .iomem_free = fio_sluice_iomem_free,
    .option_struct_size = sizeof(struct sluice_fio_options),
    .options = options,
};
