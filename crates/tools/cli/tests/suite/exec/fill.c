/* Two processes fill the volume with short and long writes to several files, then check that all data reported as
   written is readable. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define FILES 5

static char bytes[200000], back[200000];

static int fill(const char *dir, int me) {
    long sizes[FILES] = {0};
    int fds[FILES];
    char name[512];
    srand(me);
    for (int i = 0; i < FILES; i++) {
        snprintf(name, sizeof name, "%s/%d-%d", dir, me, i);
        fds[i] = open(name, O_RDWR | O_CREAT | (i == 0 ? O_APPEND : 0), 0600);
        if (fds[i] < 0) return 2;
    }
    for (int full = 0; full < 20;) {
        int i = rand() % FILES;
        /* Writes of any length until the volume is full, then short ones only. */
        long len = 1 + rand() % (full == 0 ? sizeof bytes : 5000);
        memset(bytes, 'a' + sizes[i] % 23, len);
        long done = write(fds[i], bytes, len);
        if (done < 0 && errno != ENOSPC) return 3;
        if (done < len) full++;
        if (done > 0) sizes[i] += done;
    }
    for (int i = 0; i < FILES; i++) {
        struct stat of;
        /* fsync must report no error of a posted write. */
        if (fsync(fds[i])) return 4;
        if (fstat(fds[i], &of) || of.st_size != sizes[i]) return 5;
        long read = 0, got;
        while ((got = pread(fds[i], back, sizeof back, read)) > 0) {
            for (long b = 0; b < got; b++) if (back[b] < 'a' || back[b] > 'w') return 6;
            read += got;
        }
        if (read != sizes[i]) return 7;
    }
    return 0;
}

int main(int argc, char **argv) {
    int status, failed = 0;
    if (argc < 2) return 1;
    for (int me = 0; me < 2; me++) {
        pid_t child = fork();
        if (child == 0) _exit(fill(argv[1], me));
    }
    while (wait(&status) > 0) if (status) {
        printf("failed with %d\n", WEXITSTATUS(status));
        failed = 1;
    }
    if (!failed) puts("full, and nothing is missing");
    return failed;
}
