/* Handles SIGBUS, and checks that nothing works any more: survivor DIR. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

static volatile sig_atomic_t handled;

static const char *how;

/* Ends as the crash handlers of servers do, if it is told to. */
static void handler(int number) {
    handled = number;
    if (how) {
        write(1, "out\n", 4);
        signal(SIGBUS, SIG_DFL);
        kill(getpid(), SIGBUS);
    }
}

int main(int argc, char **argv) {
    char path[512];
    how = argv[2];
    struct sigaction action = {.sa_handler = handler};
    sigaction(SIGBUS, &action, 0);
    snprintf(path, sizeof path, "%s/file", argv[1]);
    int fd = open(path, O_RDWR | O_CREAT, 0600);
    if (fd < 0 || write(fd, "synced", 6) != 6 || fsync(fd)) __builtin_trap();
    if (write(1, "out\n", 4) != -1 || errno != EIO) __builtin_trap();
    while (!handled) usleep(100);
    if (write(1, "out\n", 4) != -1 || errno != EIO) __builtin_trap();
    if (fsync(fd) != -1 || errno != EIO) __builtin_trap();
    if (fork() != -1 || errno != EIO) __builtin_trap();
    _exit(0);
}
