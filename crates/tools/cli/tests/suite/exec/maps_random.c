/* Two processes take turns with random calls and stores to mappings of one file. The output must be equal on a volume
   and on the host. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGE 4096L
#define PAGES 64L
#define MAPS 8
#define FDS 3

static uint64_t state;
static uint64_t draw(uint64_t n) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (state >> 33) % n;
}

static struct { char *at; long first, pages; int writes; } maps[MAPS];
static int fds[FDS];
static char path[512];

static long size(void) { struct stat s; fstat(fds[0], &s); return s.st_size; }

/* Hashes the file as read by calls, and every mapped byte. */
static uint64_t hash(void) {
    static char bytes[PAGES * PAGE];
    uint64_t h = 14695981039346656037u;
    long end = size();
    for (int i = 0; i < FDS; i++) {
        memset(bytes, 0xee, sizeof bytes);
        long got = pread(fds[i], bytes, sizeof bytes, 0);
        for (long b = 0; b < got; b++) h = (h ^ (unsigned char)bytes[b]) * 1099511628211u;
    }
    for (int i = 0; i < MAPS; i++)
        for (long b = 0; maps[i].at && b < maps[i].pages * PAGE && maps[i].first * PAGE + b < end; b++)
            h = (h ^ (unsigned char)maps[i].at[b]) * 1099511628211u;
    return h ^ end;
}

static void store(void) {
    int i = draw(MAPS);
    long end = size();
    if (!maps[i].at || !maps[i].writes) return;
    long first = maps[i].first * PAGE, begin = draw(maps[i].pages * PAGE), len = 1 + draw(5000);
    if (first + begin + len > end) len = end - first - begin;
    if (begin + len > maps[i].pages * PAGE) len = maps[i].pages * PAGE - begin;
    if (len > 0) memset(maps[i].at + begin, 1 + draw(255), len);
}

static void step(void) {
    static char bytes[20000];
    int i = draw(MAPS), fd = fds[draw(FDS)];
    long at = draw(PAGES * PAGE), len = 1 + draw(9000);
    if (at + len > PAGES * PAGE) len = PAGES * PAGE - at;
    memset(bytes, 1 + draw(255), len);
    switch (draw(16)) {
    case 0: case 1:
        if (maps[i].at) { munmap(maps[i].at, maps[i].pages * PAGE); maps[i].at = NULL; break; }
        maps[i].first = draw(PAGES); maps[i].pages = 1 + draw(PAGES - maps[i].first);
        maps[i].writes = draw(3) > 0;
        maps[i].at = mmap(NULL, maps[i].pages * PAGE, maps[i].writes ? PROT_READ | PROT_WRITE : PROT_READ,
                          MAP_SHARED, fd, maps[i].first * PAGE);
        if (maps[i].at == MAP_FAILED) { perror("mmap"); exit(3); }
        break;
    case 2:
        if (!maps[i].at || maps[i].pages < 2) break;
        if (draw(2)) {
            munmap(maps[i].at + (maps[i].pages - 1) * PAGE, PAGE);
        } else {
            munmap(maps[i].at, PAGE);
            maps[i].at += PAGE; maps[i].first++;
        }
        maps[i].pages--;
        break;
    case 3:
        if (!maps[i].at || maps[i].first + maps[i].pages >= PAGES) break;
        maps[i].at = mremap(maps[i].at, maps[i].pages * PAGE, (maps[i].pages + 1) * PAGE, MREMAP_MAYMOVE);
        if (maps[i].at == MAP_FAILED) { perror("mremap"); exit(3); }
        maps[i].pages++;
        break;
    case 4:
        if (!maps[i].at || maps[i].writes) break;
        if (mprotect(maps[i].at, maps[i].pages * PAGE, PROT_READ | PROT_WRITE)) { perror("mprotect"); exit(3); }
        maps[i].writes = 1;
        break;
    case 5: ftruncate(fd, draw(4) ? at : 0); break;
    case 6: fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, at, len); break;
    case 7: fallocate(fd, 0, at, len); break;
    case 8: if (draw(2)) fsync(fd); else fdatasync(fd); break;
    case 9: if (maps[i].at) msync(maps[i].at, maps[i].pages * PAGE, draw(2) ? MS_SYNC : MS_ASYNC); break;
    case 10: i = draw(FDS); close(fds[i]); fds[i] = open(path, O_RDWR); break;
    case 11: case 12: if (pwrite(fd, bytes, len, at) != len) { perror("pwrite"); exit(3); } break;
    default: store();
    }
}

int main(int argc, char **argv) {
    if (argc < 4) return 2;
    state = strtoull(argv[2], NULL, 10);
    int steps = atoi(argv[3]);
    snprintf(path, sizeof path, "%s/random-%s", argv[1], argv[2]);
    for (int i = 0; i < FDS; i++) fds[i] = open(path, O_RDWR | O_CREAT, 0600);
    for (int i = 0; i < steps; i++) {
        step();
        if (draw(100) == 0) {
            /* A child continues with inherited mappings and descriptors, while its parent waits. */
            fflush(stdout);
            int status, process = fork();
            if (process == 0) { for (int j = 0; j < 20; j++) step(); _exit(0); }
            waitpid(process, &status, 0);
            if (status) return 4;
        }
        if (i % 25 == 0) printf("%d: %016llx\n", i, (unsigned long long)hash());
    }
    return 0;
}
