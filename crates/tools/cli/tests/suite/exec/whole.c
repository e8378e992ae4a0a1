/* Atomic writes: what statx(2) reports of a file, and each kind of pwritev2(2) with RWF_ATOMIC. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#define ATOMIC 0x40
#define MASK 0x10000u

static unsigned word(const void *stat, int at) {
    unsigned value;
    memcpy(&value, (const char *)stat + at, 4);
    return value;
}

static unsigned report(const char *path, unsigned mask) {
    unsigned char stat[512];
    memset(stat, 0, sizeof stat);
    if (statx(AT_FDCWD, path, 0, mask, (struct statx *)stat) != 0) exit(3);
    printf("%s %x: mask %d attribute %d of %d min %u max %u segments %u\n", path, mask,
        (word(stat, 0) & MASK) != 0, word(stat, 8) >> 22 & 1, word(stat, 0x38) >> 22 & 1,
        word(stat, 0xa8), word(stat, 0xac), word(stat, 0xb0));
    return word(stat, 0xac);
}

static void result(const char *name, long got) {
    // Versions of the C library differ in which of its two names they give this error.
    const char *error = errno == EOPNOTSUPP ? "EOPNOTSUPP" : strerrorname_np(errno);
    printf("%s: %s\n", name, got < 0 ? error : "written");
}

int main(int argc, char **argv) {
    if (argc < 2 || chdir(argv[1]) != 0) return 2;
    int direct = open("f", O_CREAT | O_RDWR | O_DIRECT, 0600);
    int buffered = open("f", O_RDWR), append = open("f", O_RDWR | O_DIRECT | O_APPEND);
    int reader = open("f", O_RDONLY | O_DIRECT);
    if (direct < 0 || buffered < 0 || append < 0 || reader < 0) return 2;
    unsigned max = report("f", STATX_BASIC_STATS | MASK);
    report("f", STATX_BASIC_STATS);
    report(".", STATX_BASIC_STATS | MASK);
    char *data = aligned_alloc(4096, 1 << 18);
    memset(data, 'a', 1 << 18);
    long size = max ? max : 4096;
    struct iovec all = {data, size}, two[] = {{data, size / 2}, {data, size / 2}};
#define WRITE(name, fd, bytes, at) do { struct iovec part = {data, bytes}; \
    result(name, pwritev2(fd, &part, 1, at, ATOMIC)); } while (0)
    WRITE("smallest", direct, 4096, 4096);
    WRITE("longest", direct, size, size);
    WRITE("above the limit", direct, 2 * size, 0);
    WRITE("far above the limit", direct, 1 << 18, 0);
    WRITE("below a block", direct, 2048, 0);
    WRITE("not a power of two", direct, 3 * 4096 <= size ? 3 * 4096 : 5000, 0);
    WRITE("unaligned", direct, 4096, 512);
    WRITE("unaligned for its length", direct, size, 4096 * 5 + 512);
    WRITE("negative offset", direct, 4096, -5);
    WRITE("without O_DIRECT", buffered, 4096, 0);
    WRITE("O_APPEND", append, 4096, 0);
    WRITE("read-only", reader, 4096, 0);
    WRITE("nothing", direct, 0, 0);
    result("two buffers", pwritev2(direct, two, 2, 0, ATOMIC));
    result("too many buffers", pwritev2(direct, two, 5000, 0, ATOMIC));
    result("another flag", pwritev2(direct, &all, 1, 0, ATOMIC | 2));
    result("a read", preadv2(direct, &all, 1, 0, ATOMIC));
    lseek(direct, 8192, SEEK_SET);
    struct iovec block = {data, 4096};
    result("at the offset", pwritev2(direct, &block, 1, -1, ATOMIC));
    printf("offset %ld\n", (long)lseek(direct, 0, SEEK_CUR));
    lseek(direct, 100, SEEK_SET);
    result("at an unaligned offset", pwritev2(direct, &block, 1, -1, ATOMIC));
    struct stat stat;
    fstat(direct, &stat);
    printf("size %ld\n", (long)stat.st_size);
    // With units of a block, these two are apart on the volume.
    int split = open("g", O_CREAT | O_RDWR | O_DIRECT, 0600);
    if (split < 0 || fallocate(split, 0, 4096, 4096) != 0 || fallocate(split, 0, 0, 4096) != 0)
        return 2;
    WRITE("two blocks", split, 8192, 0);
    WRITE("the second block", split, 4096, 4096);
    return 0;
}
