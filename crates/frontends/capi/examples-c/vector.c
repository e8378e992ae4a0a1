/* Keeps records on a chunk of an open-channel drive, one after the other, by physical addresses:
 * vector SCENARIO
 *
 * The chunk is erased, written to its end with as many commands under way as fit, and read again. What the
 * application decides here, where and when to write and erase, is what a translation layer decides
 * otherwise. */

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include <sluice.h>

#define DEPTH 8

static struct sluice_device *device;
static struct sluice_vector_queue *queue;
static struct sluice_buffer *buffer;
static struct sluice_vector_geometry geometry;

/* The addresses of a write unit of the chunk. */
static int unit_of(uint32_t unit, uint64_t *addresses)
{
    uint32_t i;
    int error = 0;

    for (i = 0; i < geometry.ws_min && !error; i++)
        error = sluice_vector_address(device, 0, 0, 3, unit * geometry.ws_min + i, &addresses[i]);
    return error;
}

static size_t unit_bytes(void)
{
    return (size_t)geometry.ws_min * geometry.sector_bytes;
}

/* Takes what has ended; at least `min` of it. */
static int take(size_t min, uint32_t *ended)
{
    struct sluice_vector_completion completions[DEPTH];
    int count = sluice_vector_wait(queue, completions, DEPTH, min, SLUICE_TIMEOUT_INFINITE), i;

    for (i = 0; i < count; i++) {
        if (completions[i].error) {
            fprintf(stderr, "unit %" PRIu64 ": errno %d, failed %#" PRIx64 "\n", completions[i].user_data,
                    -completions[i].error, completions[i].failed);
            return completions[i].error;
        }
    }
    *ended += count > 0 ? (uint32_t)count : 0;
    return count < 0 ? count : 0;
}

static int fill(uint32_t units)
{
    uint32_t next = 0, ended = 0;
    int error = 0;

    while (ended < units && !error) {
        struct sluice_vector_request request;
        uint64_t addresses[64];
        int taken;

        if (next == units || next - ended == DEPTH) {
            error = take(1, &ended);
            continue;
        }
        memset((char *)sluice_buffer_data(buffer) + next % DEPTH * unit_bytes(), (int)(next % 251 + 1),
               unit_bytes());
        error = unit_of(next, addresses);
        if (error)
            break;
        memset(&request, 0, sizeof request);
        request.op = SLUICE_VECTOR_WRITE;
        request.count = geometry.ws_min;
        request.addresses = addresses;
        request.buffer = buffer;
        request.buffer_offset = next % DEPTH * unit_bytes();
        request.user_data = next;
        taken = sluice_vector_submit(queue, &request, 1);
        if (taken < 0)
            error = taken;
        else
            next++;
        /* Units of a chunk are written, and end, in their order: this place of the buffer is free again. */
        if (!error && next - ended == DEPTH)
            error = take(1, &ended);
    }
    return error;
}

static int check(uint32_t units)
{
    const unsigned char *data = sluice_buffer_data(buffer);
    uint32_t unit, right = 0;
    int error = 0;

    for (unit = 0; unit < units && !error; unit++) {
        uint64_t addresses[64], failed;

        error = unit_of(unit, addresses);
        if (!error)
            error = sluice_vector_read(queue, addresses, geometry.ws_min, buffer, 0, &failed);
        if (!error)
            right += data[0] == unit % 251 + 1 && data[unit_bytes() - 1] == unit % 251 + 1;
    }
    if (!error)
        printf("%" PRIu32 " of %" PRIu32 " units are there\n", right, units);
    return error;
}

static int run(const char *what)
{
    struct sluice_vector_queue_options options;
    struct sluice_chunk chunk;
    uint64_t address, failed;
    uint32_t units;
    int error;

    error = sluice_open(what, NULL, &device);
    if (error)
        return error;
    geometry.size = sizeof geometry;
    error = sluice_vector_get_geometry(device, &geometry);
    memset(&options, 0, sizeof options);
    options.size = sizeof options;
    options.depth = DEPTH;
    if (!error)
        error = sluice_vector_queue_create(device, &options, &queue);
    if (!error)
        error = sluice_buffer_create(device, DEPTH * unit_bytes(), &buffer);
    if (!error)
        error = sluice_vector_address(device, 0, 0, 3, 0, &address);
    if (!error)
        error = sluice_vector_get_chunks(device, 3, 1, &chunk);
    if (!error && chunk.state != SLUICE_CHUNK_FREE)
        error = sluice_vector_erase(queue, &address, 1, &failed);
    units = error ? 0 : geometry.sectors / geometry.ws_min;
    if (!error)
        error = fill(units);
    if (!error)
        error = check(units);
    if (!error)
        error = sluice_vector_get_chunks(device, 3, 1, &chunk);
    if (!error)
        printf("closed: %s\n", chunk.state == SLUICE_CHUNK_CLOSED ? "yes" : "no");
    return error;
}

int main(int argc, char **argv)
{
    int error, closed;

    if (argc != 2) {
        fprintf(stderr, "usage: vector SCENARIO\n");
        return 2;
    }
    error = run(argv[1]);
    if (error)
        fprintf(stderr, "vector: %s (errno %d)\n", sluice_last_error(), -error);
    sluice_vector_queue_destroy(queue);
    sluice_buffer_destroy(buffer);
    closed = sluice_close(device);
    return error || closed ? 1 : 0;
}
