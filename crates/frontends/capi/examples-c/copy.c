/* Copies a device to another one of the same size or larger: copy FROM TO
 *
 * One buffer cannot serve two devices, so that memory is taken from one and the other is written to by
 * address, which copies. */

#include <stdio.h>
#include <string.h>

#include <sluice.h>

#define CHUNK_BYTES (1u << 20)

struct end {
    struct sluice_device *device;
    struct sluice_queue *queue;
    struct sluice_handle *handle;
    struct sluice_device_info info;
};

static int open_end(const char *what, uint32_t flags, struct end *end)
{
    struct sluice_open_options options;
    int error;

    memset(&options, 0, sizeof options);
    options.size = sizeof options;
    options.flags = flags;
    error = sluice_open(what, &options, &end->device);
    if (!error)
        error = sluice_queue_create(end->device, NULL, &end->queue);
    if (!error)
        error = sluice_handle_create(end->queue, NULL, &end->handle);
    end->info.size = sizeof end->info;
    if (!error)
        error = sluice_device_get_info(end->device, &end->info);
    return error;
}

/* What was not opened is NULL, which is nothing to give back. */
static int close_end(struct end *end)
{
    int error = sluice_handle_destroy(end->handle);
    int closed;

    sluice_queue_destroy(end->queue);
    closed = sluice_close(end->device);
    return error ? error : closed;
}

static int copy(struct end *from, struct end *to)
{
    uint64_t bytes = from->info.sectors * from->info.sector_bytes, at;
    struct sluice_buffer *buffer;
    int error = sluice_buffer_create(from->device, CHUNK_BYTES, &buffer);

    if (error)
        return error;
    for (at = 0; at < bytes && !error; at += CHUNK_BYTES) {
        uint64_t left = bytes - at;
        size_t count = left < CHUNK_BYTES ? (size_t)left : CHUNK_BYTES;
        int64_t moved;

        error = sluice_read(from->handle, at / from->info.sector_bytes,
                            (uint32_t)(count / from->info.sector_bytes), buffer, 0);
        if (error)
            break;
        moved = sluice_pwrite(to->handle, sluice_buffer_data(buffer), count, at);
        if (moved < 0)
            error = (int)moved;
    }
    if (!error)
        error = sluice_flush(to->handle);
    sluice_buffer_destroy(buffer);
    if (!error)
        printf("copied %llu bytes\n", (unsigned long long)bytes);
    return error;
}

int main(int argc, char **argv)
{
    struct end from, to;
    int error, closed;

    if (argc != 3) {
        fprintf(stderr, "usage: copy FROM TO\n");
        return 2;
    }
    memset(&from, 0, sizeof from);
    memset(&to, 0, sizeof to);
    error = open_end(argv[1], SLUICE_OPEN_READ_ONLY, &from);
    if (!error)
        error = open_end(argv[2], 0, &to);
    if (!error)
        error = copy(&from, &to);
    if (error)
        fprintf(stderr, "copy: %s (errno %d)\n", sluice_last_error(), -error);
    close_end(&from);
    closed = close_end(&to);
    return error || closed ? 1 : 0;
}
