/* Syncs a file of the volume, and sends: buffered DIR KIND. Standard input and standard error are
 * sockets of the observer. Exits with 0 if each call had the result that it must have. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum { FIRST = 0, SECOND = 2 };

static int file;

/* Makes a barrier pending. */
static void sync_file(void) {
    static off_t at;
    if (pwrite(file, "synced", 6, at++) != 6 || fsync(file)) _exit(81);
}

static void sends(int to, const char *text) {
    if (send(to, text, strlen(text), 0) != (ssize_t)strlen(text)) _exit(82);
}

/* Sends a byte with a copy of a descriptor. */
static int pass(int to, char byte, int descriptor) {
    char space[CMSG_SPACE(sizeof descriptor)] = {0};
    struct iovec part = {&byte, 1};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = space,
                             .msg_controllen = sizeof space};
    struct cmsghdr *head = CMSG_FIRSTHDR(&message);
    *head = (struct cmsghdr){.cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS,
                             .cmsg_len = CMSG_LEN(sizeof descriptor)};
    memcpy(CMSG_DATA(head), &descriptor, sizeof descriptor);
    return sendmsg(to, &message, 0) == 1;
}

static volatile sig_atomic_t handled;

static void handler(int number) { handled = number; }

static void *sends_in_thread(void *text) {
    sends(FIRST, text);
    return 0;
}

int main(int argc, char **argv) {
    char path[512];
    const char *kind = argv[2];
    signal(SIGPIPE, SIG_IGN);
    snprintf(path, sizeof path, "%s/file", argv[1]);
    file = open(path, O_RDWR | O_CREAT, 0600);
    if (file < 0) return 80;
    sync_file();
    if (!strcmp(kind, "kinds")) {
        /* Each call that only sends data. */
        struct iovec parts[2] = {{"ri", 2}, {"tev,", 4}};
        struct msghdr message = {.msg_iov = parts, .msg_iovlen = 2};
        pthread_t id;
        if (write(FIRST, "write,", 6) != 6 || writev(FIRST, parts, 2) != 6) return 82;
        sends(FIRST, "send,");
        if (sendmsg(FIRST, &message, MSG_NOSIGNAL) != 6) return 82;
        if (syscall(SYS_sendto, FIRST, "raw,", 4, MSG_DONTWAIT, 0, 0) != 4) return 82;
        if (write(1, "pipe", 4) != 4) return 82;
        pthread_create(&id, 0, sends_in_thread, "thread,");
        /* The thread's end waits. */
        pthread_join(id, 0);
    } else if (!strcmp(kind, "invalid")) {
        /* The kernel's own errors. */
        if (write(-1, "a", 1) != -1 || errno != EBADF) return 83;
        if (write(FIRST, (void *)1, 1) != -1 || errno != EFAULT) return 84;
        if (writev(FIRST, (void *)1, 1) != -1 || errno != EFAULT) return 85;
        if (sendmsg(FIRST, (void *)1, 0) != -1 || errno != EFAULT) return 86;
        int lone = socket(AF_UNIX, SOCK_STREAM, 0);
        if (send(lone, "a", 1, MSG_NOSIGNAL) != -1 || errno != ENOTCONN) return 87;
        int ends[2];
        if (pipe(ends) || write(ends[0], "a", 1) != -1 || errno != EBADF) return 88;
        if (write(FIRST, "", 0) != 0) return 89;
        sends(FIRST, "out");
    } else if (!strcmp(kind, "full")) {
        /* The outbox has room for 16 bytes. */
        sends(FIRST, "12345678");
        sends(FIRST, "abcdefgh");
        sends(FIRST, "+");
        sends(SECOND, "other");
    } else if (!strcmp(kind, "gone")) {
        /* The observer closes its socket meanwhile. The first send is lost; the next one fails. */
        sends(FIRST, "lost");
        sends(SECOND, "sent");
        struct pollfd end = {.fd = FIRST};
        while (!(end.revents & POLLHUP)) poll(&end, 1, 10);
        if (send(FIRST, "a", 1, 0) != -1 || errno != EPIPE) return 90;
        sends(SECOND, "again");
    } else if (!strcmp(kind, "fails")) {
        struct sigaction action = {.sa_handler = handler};
        sigaction(SIGBUS, &action, 0);
        sends(FIRST, "lost");
        while (!handled) usleep(100);
        if (send(FIRST, "a", 1, 0) != -1 || errno != EIO) return 91;
        if (fsync(file) != -1 || errno != EIO) return 92;
    } else if (!strcmp(kind, "rights")) {
        /* The observer writes to its copy of SECOND as soon as it has it. */
        sends(SECOND, "before,");
        sends(FIRST, "a");
        if (!pass(FIRST, 'b', SECOND)) return errno;
        sync_file();
        sends(FIRST, "c");
    } else if (!strcmp(kind, "reads_nothing")) {
        /* The peer of FIRST reads nothing before the program ends; that of SECOND does. */
        char *big = calloc(1, 60000);
        int accepted = 0;
        for (int round = 0; round < 100; round++) {
            sync_file();
            ssize_t sent = send(FIRST, big, 60000, MSG_DONTWAIT);
            if (sent < 0 && errno == EAGAIN) break;
            if (sent <= 0) return 93;
            accepted += sent;
            if (round % 10 == 0) sends(SECOND, ".");
        }
        if (send(FIRST, big, 1, MSG_DONTWAIT) != -1 || errno != EAGAIN) return 94;
        sends(SECOND, "done");
        printf("%d", accepted);
        close(FIRST);
    } else if (!strcmp(kind, "order")) {
        /* Some outputs are buffered, and some are made when nothing is pending. */
        for (uint32_t number = 0; number < 20000; number++) {
            if (number % 7 == 0) sync_file();
            if (number % 1000 == 999) usleep(3000);
            if (write(1, &number, sizeof number) != sizeof number) return 95;
        }
    } else return 99;
    return 0;
}
