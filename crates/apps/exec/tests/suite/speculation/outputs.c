/* Writes to a file of the volume, syncs it, and then makes one output: outputs DIR KIND [FILE].
 * Standard output is a pipe of the observer. Programs that it starts are itself, so that a library with a
 * sanitizer can be loaded in them, too. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/shm.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

/* A system call that no library sees. */
static long raw(long number, long a, long b, long c) {
    long result;
    __asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(a), "S"(b), "d"(c)
                     : "rcx", "r11", "memory");
    return result;
}

static volatile sig_atomic_t handled;

static void handler(int signal) {
    (void)signal;
    raw(SYS_write, 1, (long)"out\n", 4);
    handled = 1;
}

static void *thread(void *none) {
    if (write(1, "out\n", 4) != 4) _exit(90);
    return none;
}

/* Set by the parent after its sync, in memory that only this program has. */
static atomic_int *shared;

int main(int argc, char **argv) {
    const char *kind = argv[2];
    if (!strcmp(kind, "echo")) return printf("out\n") != 4 || fflush(stdout);
    char *echo[] = {argv[0], argv[1], "echo", 0};
    char path[512];
    snprintf(path, sizeof path, "%s/file", argv[1]);
    int null = open("/dev/null", O_WRONLY);
    int locked = open(argv[0], O_RDONLY);
    if (!strcmp(kind, "unlock") && flock(locked, LOCK_SH)) return errno;
    pid_t child = 0;
    if (!strcmp(kind, "child")) {
        shared = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        child = fork();
        if (child == 0) {
            while (!atomic_load(shared)) usleep(100);
            raw(SYS_write, 1, (long)"out\n", 4);
            _exit(0);
        }
    }
    if (!strcmp(kind, "go")) {
        /* FILE is a program that writes when the name of its parent is "synced". */
        char *only[] = {argv[3], 0};
        if (posix_spawn(&child, argv[3], 0, 0, only, environ)) return 96;
    }
    int fd = open(path, O_RDWR | O_CREAT | (strcmp(kind, "o_dsync") ? 0 : O_DSYNC), 0600);
    if (fd < 0 || write(fd, "synced", 6) != 6) return 80;
    if (!strcmp(kind, "o_dsync") || !strcmp(kind, "o_dsync_fdatasync")) kind = "write";
    else if (!strcmp(kind, "msync")) {
        char *at = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        if (at == MAP_FAILED) return 82;
        memcpy(at, "mapped", 6);
        if (msync(at, 4096, MS_SYNC)) return 83;
        kind = "write";
    } else if (!strcmp(kind, "sync")) {
        sync();
        kind = "write";
    } else if (!strcmp(kind, "syncfs")) {
        if (syncfs(fd)) return 84;
        kind = "write";
    } else if (fsync(fd)) return 81;

    if (!strcmp(kind, "write")) { if (write(1, "out\n", 4) != 4) return errno; }
    else if (!strcmp(kind, "printf")) { if (printf("out\n") != 4 || fflush(stdout)) return errno; }
    else if (!strcmp(kind, "raw")) raw(SYS_write, 1, (long)"out\n", 4);
    else if (!strcmp(kind, "writev")) {
        struct iovec parts[2] = {{"ou", 2}, {"t\n", 2}};
        if (writev(1, parts, 2) != 4) return errno;
    } else if (!strcmp(kind, "signal")) {
        struct sigaction action = {.sa_handler = handler};
        struct itimerval soon = {.it_value = {0, 1000}};
        sigaction(SIGALRM, &action, 0);
        setitimer(ITIMER_REAL, &soon, 0);
        while (!handled) usleep(100);
    } else if (!strcmp(kind, "vfork")) {
        if (vfork() == 0) {
            execv(argv[0], echo);
            _exit(91);
        }
        wait(0);
    } else if (!strcmp(kind, "spawn")) {
        if (posix_spawn(&child, argv[0], 0, 0, echo, environ)) return 92;
        waitpid(child, 0, 0);
    } else if (!strcmp(kind, "go")) {
        if (prctl(PR_SET_NAME, "synced")) return 97;
        waitpid(child, 0, 0);
    } else if (!strcmp(kind, "exec")) {
        execv(argv[0], echo);
    } else if (!strcmp(kind, "child")) {
        atomic_store(shared, 1);
        waitpid(child, 0, 0);
    } else if (!strcmp(kind, "thread")) {
        pthread_t id;
        pthread_create(&id, 0, thread, 0);
        pthread_join(id, 0);
    } else if (!strcmp(kind, "rights")) {
        /* Passes the pipe itself to another socket, and writes through the copy. */
        int pair[2], passed[1] = {1};
        if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair)) return 93;
        char space[CMSG_SPACE(sizeof passed)] = {0}, byte = 'x';
        struct iovec part = {&byte, 1};
        struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = space,
                                 .msg_controllen = sizeof space};
        struct cmsghdr *head = CMSG_FIRSTHDR(&message);
        *head = (struct cmsghdr){.cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS,
                                 .cmsg_len = CMSG_LEN(sizeof passed)};
        memcpy(CMSG_DATA(head), passed, sizeof passed);
        if (sendmsg(pair[0], &message, 0) != 1) return errno;
        if (write(1, "out\n", 4) != 4) return errno;
    } else if (!strcmp(kind, "send")) {
        if (send(3, "out\n", 4, 0) != 4) return errno;
    } else if (!strcmp(kind, "file")) {
        int other = open(argv[3], O_WRONLY | O_CREAT, 0600);
        if (other < 0) return errno;
        if (write(1, "out\n", 4) != 4) return errno;
    } else if (!strcmp(kind, "unlink")) {
        if (unlink(argv[3])) return errno;
        if (write(1, "out\n", 4) != 4) return errno;
    } else if (!strcmp(kind, "kill")) {
        if (kill(getppid(), 0)) return errno;
        if (write(1, "out\n", 4) != 4) return errno;
    } else if (!strcmp(kind, "abort")) {
        abort();
    } else if (!strcmp(kind, "close")) {
        if (close(1)) return errno;
    } else if (!strcmp(kind, "unlock")) {
        /* Others may lock the file then. */
        if (close(locked)) return errno;
    } else if (!strcmp(kind, "idle")) {
        for (;;) pause();
    } else if (!strcmp(kind, "writer")) {
        if (close(null)) return errno;
    } else if (!strcmp(kind, "readers")) {
        for (int i = 0; i < 50; i++) {
            int reader = open(argv[0], O_RDONLY);
            if (reader < 0 || close(reader)) return errno;
        }
        if (write(1, "out\n", 4) != 4) return errno;
    } else if (!strcmp(kind, "dup2")) {
        if (dup2(null, 1) != 1) return errno;
    } else if (!strcmp(kind, "exit")) {
        _exit(7);
    } else if (!strcmp(kind, "raw_exit")) {
        raw(SYS_exit, 7, 0, 0);
    } else if (!strcmp(kind, "shared")) {
        /* Others see memory that is stored to later: speculation ends before it is mapped. */
        int other = open(argv[3], O_RDWR);
        if (other < 0) return errno;
        char *at = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, other, 0);
        if (at == MAP_FAILED) return errno;
        if (pwrite(fd, "again", 5, 100) != 5 || fsync(fd)) return 94;
        at[0] = 'o';
        if (write(1, "out\n", 4) != 4) return errno;
    } else if (!strcmp(kind, "none")) {
        for (int i = 0; i < atoi(argv[3]); i++)
            if (pwrite(fd, "again", 5, i % 100) != 5 || fdatasync(fd)) return 95;
        if (write(1, "out\n", 4) != 4) return errno;
    } else return 99;
    return 0;
}
