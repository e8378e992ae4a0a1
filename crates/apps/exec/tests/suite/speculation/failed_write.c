// Posts a write that fails, as its block cannot be read, then syncs and makes an output. With the
// argument `late`, the service finds the failure before the sync.
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int main(int argc, char **argv) {
    char path[4096], byte;
    snprintf(path, sizeof path, "%s/f", argv[1]);
    int late = argc > 2 && !strcmp(argv[2], "late");
    int fd = open(path, O_RDWR);
    // The reply says that later writes may be posted.
    if (fd < 0 || pwrite(fd, "a", 1, 2 * 4096) != 1) abort();
    if (pwrite(fd, "b", 1, 4096 + 5) != 1) abort();
    // A call waits for the posted write.
    if (late && pread(fd, &byte, 1, 2 * 4096) != 1) abort();
    int synced = fsync(fd);
    if (late ? synced != -1 || errno != EIO : synced != 0) abort();
    if (late && fsync(fd)) abort();
    return write(1, "out\n", 4) == 4 ? 0 : 3;
}
