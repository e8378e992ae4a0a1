/* Appends numbers to a file, syncs it, and tells each number: acknowledges DIR HOW. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* A system call that no library sees. */
static long raw(long number, long a, long b, long c) {
    long result;
    __asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(a), "S"(b), "d"(c)
                     : "rcx", "r11", "memory");
    return result;
}

int main(int argc, char **argv) {
    char path[512];
    const char *how = argv[2];
    snprintf(path, sizeof path, "%s/numbers", argv[1]);
    int fd = open(path, O_RDWR | O_CREAT, 0600);
    if (fd < 0) return 1;
    for (uint64_t number = 1;; number++) {
        if (pwrite(fd, &number, sizeof number, (number - 1) * sizeof number) != sizeof number) return 2;
        if (fdatasync(fd)) return 3;
        /* Several syncs per answer, so that some are pending at its time. */
        if (number % 3) continue;
        if (!strcmp(how, "raw")) {
            if (raw(1, 1, (long)&number, sizeof number) != sizeof number) return 4;
        } else if (!strcmp(how, "stream")) {
            if (fwrite(&number, sizeof number, 1, stdout) != 1 || fflush(stdout)) return 4;
        } else if (!strcmp(how, "child") && number % 30 == 0) {
            if (vfork() == 0) {
                write(1, &number, sizeof number);
                _exit(0);
            }
            if (wait(0) < 0) return 5;
        } else if (write(1, &number, sizeof number) != sizeof number) return 4;
    }
}
