/* A log beside a table, through one block cache that writes back: cache DEVICE
 *
 * Appends records to a log, reads the same few blocks of a table over and over, and shows what came from
 * memory. The scheduler puts the handle of class 1 before others of the shared queue. */

#include <stdio.h>
#include <string.h>

#include <sluice.h>

#define BLOCK_BYTES 4096
#define RECORDS 512
#define TABLE_BLOCKS 64

static unsigned char block[BLOCK_BYTES];

static int work(struct sluice_handle *handle, uint64_t device_bytes)
{
    uint64_t log = device_bytes / 2 / BLOCK_BYTES * BLOCK_BYTES;
    int i;

    for (i = 0; i < RECORDS; i++) {
        int64_t moved;

        memset(block, i, sizeof block);
        moved = sluice_pwrite(handle, block, sizeof block, log + (uint64_t)i * BLOCK_BYTES);
        if (moved < 0)
            return (int)moved;
        moved = sluice_pread(handle, block, sizeof block,
                             (uint64_t)(i % TABLE_BLOCKS) * BLOCK_BYTES);
        if (moved < 0)
            return (int)moved;
    }
    return sluice_flush(handle);
}

static int report(struct sluice_handle *handle)
{
    struct sluice_handle_stats stats;
    int error;

    memset(&stats, 0, sizeof stats);
    stats.size = sizeof stats;
    error = sluice_handle_get_stats(handle, &stats);
    if (error)
        return error;
    printf("reads %llu, writes %llu, dirty %llu\n", (unsigned long long)stats.reads,
           (unsigned long long)stats.writes, (unsigned long long)stats.cache_dirty);
    printf("table from memory: %s\n",
           stats.cache_hits >= RECORDS - TABLE_BLOCKS ? "yes" : "no");
    printf("log written in runs: %s\n",
           stats.cache_write_commands < stats.cache_written ? "yes" : "no");
    return 0;
}

int main(int argc, char **argv)
{
    struct sluice_device *device = NULL;
    struct sluice_queue *queue = NULL;
    struct sluice_handle *handle = NULL;
    struct sluice_device_info info;
    struct sluice_group group;
    struct sluice_queue_options queue_options;
    struct sluice_handle_options options;
    int error, closed;

    if (argc != 2) {
        fprintf(stderr, "usage: cache DEVICE\n");
        return 2;
    }
    memset(&info, 0, sizeof info);
    memset(&group, 0, sizeof group);
    memset(&queue_options, 0, sizeof queue_options);
    memset(&options, 0, sizeof options);
    info.size = sizeof info;
    queue_options.size = sizeof queue_options;
    options.size = sizeof options;

    group.group = 1;
    group.priority = 1;
    queue_options.flags = SLUICE_QUEUE_SHARED;
    queue_options.scheduler = "priority";
    queue_options.groups = &group;
    queue_options.group_count = 1;
    options.group = 1;
    options.wait = SLUICE_WAIT_EVENT;
    options.cache_bytes = 8 << 20;
    options.cache_flags = SLUICE_CACHE_CLOCK;

    error = sluice_open(argv[1], NULL, &device);
    if (!error)
        error = sluice_device_get_info(device, &info);
    if (!error)
        error = sluice_queue_create(device, &queue_options, &queue);
    if (!error)
        error = sluice_handle_create(queue, &options, &handle);
    if (!error)
        error = work(handle, info.sectors * info.sector_bytes);
    if (!error)
        error = report(handle);
    if (error)
        fprintf(stderr, "cache: %s (errno %d)\n", sluice_last_error(), -error);
    closed = sluice_handle_destroy(handle);
    sluice_queue_destroy(queue);
    closed = sluice_close(device) || closed;
    return error || closed ? 1 : 0;
}
