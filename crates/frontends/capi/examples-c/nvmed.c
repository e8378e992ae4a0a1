/* A program as one wrote it for NVMeDirect: nvmed DEVICE
 *
 * Buffered and direct handles, asynchronous I/O with callbacks, reads and writes on queues of their own,
 * and a thread that looks for completions. */

#include <stdio.h>
#include <string.h>

#include <nvmed_compat.h>

#define PAGE 4096
#define REQUESTS 64

static NVMED_QUEUE *queues[2];
static int completed;
static int asked[2];

/* NVMe's opcode of a read is 2. */
static NVMED_QUEUE *reads_apart(NVMED_HANDLE *handle, uint8_t opcode, unsigned long offset,
                                unsigned int length)
{
    (void)handle;
    (void)offset;
    (void)length;
    asked[opcode == 2 ? 0 : 1]++;
    return queues[opcode == 2 ? 0 : 1];
}

static void on_complete(const struct nvmed_aio_ctx *context, void *userdata)
{
    if (context->status == AIO_COMPLETE && !context->error)
        ++*(int *)userdata;
}

static int fail(const char *what)
{
    fprintf(stderr, "%s: %s (errno %d)\n", what, sluice_last_error(), errno);
    return 1;
}

/* Waits until all have ended. */
static int complete(NVMED_HANDLE *handle, int count)
{
    int done = 0;

    while (done < count) {
        int some = nvmed_aio_handle_complete(handle);

        if (some < 0)
            return -1;
        done += some;
    }
    return 0;
}

int main(int argc, char **argv)
{
    static NVMED_AIO_CTX contexts[REQUESTS];
    NVMED *nvmed;
    NVMED_HANDLE *handle;
    unsigned char *memory;
    int i;

    if (argc != 2) {
        fprintf(stderr, "usage: nvmed DEVICE\n");
        return 2;
    }
    nvmed = nvmed_open(argv[1], 0);
    if (!nvmed)
        return fail("nvmed_open");
    for (i = 0; i < 2; i++) {
        queues[i] = i ? nvmed_create_queue(nvmed) : nvmed_queue_create(nvmed, QUEUE_INTERRUPT);
        if (!queues[i])
            return fail("nvmed_queue_create");
    }
    memory = (unsigned char *)nvmed_get_buffer(nvmed, REQUESTS);
    if (!memory)
        return fail("nvmed_get_buffer");

    /* Through the block cache, one after the other. */
    handle = nvmed_handle_create(queues[0], 0);
    if (!handle)
        return fail("nvmed_handle_create");
    memset(memory, 'a', PAGE);
    for (i = 0; i < REQUESTS; i++)
        if (nvmed_write(handle, memory, PAGE) != PAGE)
            return fail("nvmed_write");
    if (nvmed_lseek(handle, 0, SEEK_SET) != 0 || nvmed_read(handle, memory, 2 * PAGE) != 2 * PAGE)
        return fail("nvmed_read");
    printf("at %ld, read %c%c\n", (long)nvmed_lseek(handle, 0, SEEK_CUR), memory[0],
           memory[2 * PAGE - 1]);
    if (nvmed_flush(handle) || nvmed_handle_destroy(handle))
        return fail("nvmed_flush");

    /* Past it, asynchronously, reads and writes on different queues. */
    handle = nvmed_handle_create_mq(queues, 2, HANDLE_DIRECT_IO, reads_apart);
    if (!handle)
        return fail("nvmed_handle_create_mq");
    for (i = 0; i < REQUESTS; i++) {
        NVMED_AIO_CTX *context = &contexts[i];

        context->handle = handle;
        context->start_lba = (unsigned long)i * PAGE;
        context->len = PAGE;
        context->buf = memory + (size_t)i * PAGE;
        context->aio_callback = on_complete;
        context->cb_userdata = &completed;
        memset(context->buf, 'A' + i % 26, PAGE);
        if (nvmed_aio_write(context))
            return fail("nvmed_aio_write");
    }
    printf("begun %d\n", nvmed_aio_queue_submit(handle));
    if (complete(handle, REQUESTS))
        return fail("nvmed_aio_handle_complete");
    memset(memory, 0, REQUESTS * PAGE);
    for (i = 0; i < REQUESTS; i++)
        if (nvmed_aio_read(&contexts[i]))
            return fail("nvmed_aio_read");
    if (complete(handle, REQUESTS))
        return fail("nvmed_aio_handle_complete");
    for (i = 0; i < REQUESTS; i++)
        if (memory[(size_t)i * PAGE + 17] != 'A' + i % 26)
            return fail("what was read");
    printf("completed %d, reads apart %d, writes apart %d\n", completed, asked[0], asked[1]);

    /* With a thread that looks for completions every 50 us. */
    if (nvmed_set_param(handle, NVMED_PARAM_POLL_PERIOD, 50000))
        return fail("nvmed_set_param");
    if (nvmed_lseek(handle, PAGE, SEEK_END) < 0 || nvmed_write(handle, memory, PAGE) != PAGE)
        return fail("nvmed_write");
    if (nvmed_set_param(handle, NVMED_PARAM_POLL_PERIOD, 0))
        return fail("nvmed_set_param");
    if (nvmed_handle_feature_set(handle, HANDLE_INTERRUPT, true) != 1 ||
        nvmed_handle_feature_get(handle, HANDLE_INTERRUPT | HANDLE_DIRECT_IO) != 1)
        return fail("nvmed_handle_feature_set");
    if (nvmed_discard(handle, 0, PAGE) || nvmed_lseek(handle, 0, SEEK_SET) ||
        nvmed_read(handle, memory, PAGE) != PAGE)
        return fail("nvmed_discard");
    printf("after the discard %d\n", memory[0]);
    if (nvmed_queue_destroy(queues[0]) != NVMED_FAULT || errno != EBUSY)
        return fail("nvmed_queue_destroy");
    if (nvmed_handle_destroy_mq(handle) || nvmed_queue_destroy(queues[0]) ||
        nvmed_destroy_queue(queues[1]))
        return fail("nvmed_handle_destroy");
    nvmed_put_buffer(memory);
    return nvmed_close(nvmed) ? fail("nvmed_close") : 0;
}
