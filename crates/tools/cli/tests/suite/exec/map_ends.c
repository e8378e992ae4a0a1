/* Failures of mappings: no space on the volume, no memory, and no service. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define SHOW(call) do { errno = 0; long result_ = (long)(call); \
    const char *error_ = result_ == -1 ? strerror(errno) : ""; \
    printf("%s = %ld %s\n", #call, result_, error_); } while (0)
#define RW (PROT_READ | PROT_WRITE)
#define SIZE (32L << 20)

int main(int argc, char **argv) {
    if (argc < 3 || chdir(argv[1]) != 0) return 2;
    int fd = open("f", O_CREAT | O_RDWR, 0600);
    if (strcmp(argv[2], "full") == 0) {
        /* A hole that is larger than the free space of the volume. */
        SHOW(ftruncate(fd, SIZE));
        char *m = mmap(NULL, SIZE, RW, MAP_SHARED, fd, 0);
        strcpy(m, "the beginning");
        SHOW(fsync(fd));
        memset(m + 8192, 'x', SIZE - 8192);
        SHOW(fsync(fd)); SHOW(msync(m, SIZE, MS_SYNC)); SHOW(msync(m, 4096, MS_SYNC));
        SHOW(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 8192, SIZE));
        strcpy(m + SIZE - 100, "the end");
        SHOW(madvise(m, 4096, MADV_REMOVE));
        SHOW(fsync(fd));
        memset(m + 8192, 'x', SIZE - 8192);
        SHOW(munmap(m, SIZE));
        return 0;
    }
    if (strcmp(argv[2], "large") == 0) {
        SHOW(ftruncate(fd, 10L << 40));
        SHOW(mmap(NULL, 10L << 40, PROT_READ, MAP_SHARED, fd, 0));
        /* A part of the file can be mapped. */
        char *m = mmap(NULL, 4096, RW, MAP_SHARED, fd, 5L << 40);
        strcpy(m, "far");
        SHOW(msync(m, 4096, MS_SYNC));
        char c;
        SHOW(pread(fd, &c, 1, 5L << 40));
        printf("%c\n", c);
        /* As many mappings as allowed, and one more. */
        int count = 0;
        while (mmap(NULL, 4096, PROT_READ, MAP_SHARED, fd, (5L << 40) + count * 4096L) != MAP_FAILED) count++;
        printf("%d more, then %s\n", count, strerror(errno));
        SHOW(munmap(m, 4096));
        SHOW(mmap(NULL, 4096, PROT_READ, MAP_SHARED, fd, 5L << 40) != MAP_FAILED);
        return 0;
    }
    SHOW(ftruncate(fd, 8192));
    char *m = mmap(NULL, 8192, RW, MAP_SHARED, fd, 0);
    SHOW(msync(m, 8192, MS_SYNC));
    SHOW(kill(getppid(), SIGKILL));
    strcpy(m + 4096, "still here");
    SHOW(msync(m, 8192, MS_SYNC)); SHOW(msync(m, 8192, MS_ASYNC));
    SHOW(mmap(NULL, 4096, PROT_READ, MAP_SHARED, fd, 0));
    SHOW(mremap(m, 8192, 4096, 0) == m);
    m = mremap(m, 4096, 8192, MREMAP_MAYMOVE);
    printf("%d\n", m == MAP_FAILED);
    SHOW(close(fd));
    return 0;
}
