/* Reads every block of 4 KiB of a device once, in random order, 32 at a time: async_read DEVICE
 *
 * Prints how many, and the sum of their first words, modulo 2^64. C11, and C++ as well. */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <sluice.h>

#define DEPTH 32
#define BLOCK_BYTES 4096u

/* Fisher and Yates, by a generator that is good enough for an order. */
static void shuffle(uint64_t *order, uint64_t count)
{
    uint64_t state = 88172645463325252ull, i;

    for (i = count; i > 1; i--) {
        uint64_t other, kept;

        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        other = state % i;
        kept = order[i - 1];
        order[i - 1] = order[other];
        order[other] = kept;
    }
}

static int read_all(struct sluice_handle *handle, struct sluice_buffer *buffer,
                    const uint64_t *order, uint64_t count, uint32_t block_sectors)
{
    const unsigned char *data = (const unsigned char *)sluice_buffer_data(buffer);
    struct sluice_completion done[DEPTH];
    struct sluice_request requests[DEPTH];
    uint32_t idle[DEPTH];
    uint32_t idle_count = 0, i;
    uint64_t begun = 0, ended = 0, errors = 0, sum = 0;

    /* Which place of the buffer a request reads into is its name. */
    for (i = 0; i < DEPTH; i++)
        idle[idle_count++] = i;
    while (ended < count) {
        int taken, came, n = 0;

        while (n < (int)idle_count && begun + (uint64_t)n < count) {
            uint32_t place = idle[idle_count - 1 - (uint32_t)n];
            struct sluice_request *request = &requests[n];

            memset(request, 0, sizeof *request);
            request->op = SLUICE_OP_READ;
            request->lba = order[begun + (uint64_t)n] * block_sectors;
            request->sectors = block_sectors;
            request->buffer = buffer;
            request->buffer_offset = (uint64_t)place * BLOCK_BYTES;
            request->user_data = place;
            n++;
        }
        taken = sluice_submit(handle, requests, (size_t)n);
        if (taken < 0)
            return taken;
        idle_count -= (uint32_t)taken;
        begun += (uint64_t)taken;

        came = sluice_wait(handle, done, DEPTH, 1, SLUICE_TIMEOUT_INFINITE);
        if (came < 0)
            return came;
        for (n = 0; n < came; n++) {
            uint32_t place = (uint32_t)done[n].user_data;
            uint64_t word;

            if (done[n].error) {
                errors++;
            } else {
                memcpy(&word, data + (size_t)place * BLOCK_BYTES, sizeof word);
                sum += word;
            }
            idle[idle_count++] = place;
        }
        ended += (uint64_t)came;
    }
    printf("read %llu blocks, sum %llu, errors %llu\n", (unsigned long long)ended,
           (unsigned long long)sum, (unsigned long long)errors);
    return 0;
}

int main(int argc, char **argv)
{
    struct sluice_device *device = NULL;
    struct sluice_queue *queue = NULL;
    struct sluice_handle *handle = NULL;
    struct sluice_buffer *buffer = NULL;
    struct sluice_device_info info;
    uint64_t *order = NULL, count = 0, i;
    int error;

    if (argc != 2) {
        fprintf(stderr, "usage: async_read DEVICE\n");
        return 2;
    }
    memset(&info, 0, sizeof info);
    info.size = sizeof info;
    error = sluice_open(argv[1], NULL, &device);
    if (!error)
        error = sluice_device_get_info(device, &info);
    if (!error)
        error = sluice_queue_create(device, NULL, &queue);
    if (!error)
        error = sluice_handle_create(queue, NULL, &handle);
    if (!error)
        error = sluice_buffer_create(device, DEPTH * BLOCK_BYTES, &buffer);
    if (!error) {
        count = info.sectors * info.sector_bytes / BLOCK_BYTES;
        order = (uint64_t *)malloc((size_t)(count ? count : 1) * sizeof *order);
        if (!order)
            return 1;
        for (i = 0; i < count; i++)
            order[i] = i;
        shuffle(order, count);
        error = read_all(handle, buffer, order, count, BLOCK_BYTES / info.sector_bytes);
    }
    if (error)
        fprintf(stderr, "async_read: %s (errno %d)\n", sluice_last_error(), -error);
    free(order);
    /* The handle first: what is outstanding after an error ends before its memory goes. */
    sluice_handle_destroy(handle);
    sluice_queue_destroy(queue);
    sluice_buffer_destroy(buffer);
    sluice_close(device);
    return error ? 1 : 0;
}
