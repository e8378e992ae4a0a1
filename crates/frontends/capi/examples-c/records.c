/* Records of a header and a body that lie apart in memory: written and read in one request each, before and
 * after the device was closed and opened again.
 *
 *     records DEVICE
 *
 * DEVICE keeps what is written when it is closed: a file, or a scenario whose drive has an image. */

#include <stdio.h>
#include <string.h>

#include <sys/uio.h>

#include <sluice.h>

enum { RECORDS = 64, BODY = 3 };

static int fail(const char *what, long error)
{
    fprintf(stderr, "records: %s: %s (errno %ld)\n", what, sluice_last_error(), -error);
    return 1;
}

struct opened {
    struct sluice_device *device;
    struct sluice_queue *queue;
    struct sluice_handle *handle;
    struct sluice_buffer *buffer;
    size_t sector;
};

static int open_all(struct opened *opened, const char *what)
{
    struct sluice_device_info info;
    int error = sluice_open(what, NULL, &opened->device);

    memset(&info, 0, sizeof(info));
    info.size = sizeof(info);
    if (!error)
        error = sluice_device_get_info(opened->device, &info);
    if (!error)
        error = sluice_queue_create(opened->device, NULL, &opened->queue);
    if (!error)
        error = sluice_handle_create(opened->queue, NULL, &opened->handle);
    opened->sector = info.sector_bytes;
    if (!error)
        error = sluice_buffer_create(opened->device, (RECORDS * (BODY + 1) + 1) * opened->sector,
                                     &opened->buffer);
    return error;
}

/* Gives everything back; the last call returns when the device is closed. */
static int close_all(struct opened *opened)
{
    int error = sluice_handle_destroy(opened->handle);
    int closed;

    sluice_buffer_destroy(opened->buffer);
    closed = sluice_queue_destroy(opened->queue);
    error = error ? error : closed;
    closed = sluice_close(opened->device);
    return error ? error : closed;
}

/* Where a record's pieces are: all headers first, then all bodies, with a sector between them. */
static size_t pieces_of(const struct opened *opened, size_t record, struct iovec *pieces)
{
    char *data = sluice_buffer_data(opened->buffer);

    pieces[0].iov_base = data + record * opened->sector;
    pieces[0].iov_len = opened->sector;
    pieces[1].iov_base = data + (RECORDS + 1 + record * BODY) * opened->sector;
    pieces[1].iov_len = BODY * opened->sector;
    return pieces[0].iov_len + pieces[1].iov_len;
}

int main(int argc, char **argv)
{
    struct opened opened = { 0 };
    struct iovec pieces[2];
    size_t record, bytes, right = 0;
    long long done;
    int error;

    if (argc != 2) {
        fprintf(stderr, "usage: records DEVICE\n");
        return 2;
    }
    error = open_all(&opened, argv[1]);
    if (error)
        return fail("open", error);
    for (record = 0; record < RECORDS; record++) {
        bytes = pieces_of(&opened, record, pieces);
        memset(pieces[0].iov_base, 0x40 + (int)record, pieces[0].iov_len);
        memset(pieces[1].iov_base, 0x80 + (int)record, pieces[1].iov_len);
        done = sluice_pwritev(opened.handle, pieces, 2, record * bytes);
        if (done < 0)
            return fail("write", (long)done);
    }
    error = sluice_flush(opened.handle);
    if (error)
        return fail("flush", error);
    error = close_all(&opened);
    if (error)
        return fail("close", error);

    error = open_all(&opened, argv[1]);
    if (error)
        return fail("open again", error);
    for (record = 0; record < RECORDS; record++) {
        const unsigned char *header, *body;

        bytes = pieces_of(&opened, record, pieces);
        done = sluice_preadv(opened.handle, pieces, 2, record * bytes);
        if (done < 0)
            return fail("read", (long)done);
        header = pieces[0].iov_base;
        body = pieces[1].iov_base;
        if (header[0] == 0x40 + record && header[pieces[0].iov_len - 1] == 0x40 + record &&
            body[0] == 0x80 + record && body[pieces[1].iov_len - 1] == 0x80 + record)
            right++;
    }
    error = close_all(&opened);
    if (error)
        return fail("close", error);
    printf("%s: %zu of %d records are there\n", right == RECORDS ? "kept" : "lost", right, RECORDS);
    return right != RECORDS;
}
