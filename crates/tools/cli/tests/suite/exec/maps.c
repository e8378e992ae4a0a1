/* Mappings shared between threads, descriptors and processes. Prints the results, which must be equal on a volume and
   on the host. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static char path[512];
static const char *dir, *self;
static const char *in(const char *name) { snprintf(path, sizeof path, "%s/%s", dir, name); return path; }

#define SHOW(call) do { errno = 0; long result_ = (long)(call); \
    const char *error_ = result_ == -1 ? strerror(errno) : ""; \
    printf("%s = %ld %s\n", #call, result_, error_); } while (0)
#define RW (PROT_READ | PROT_WRITE)
#define PAGE 4096L

static char *map(int fd, size_t len, int access, off_t at) {
    char *m = mmap(NULL, len, access, MAP_SHARED, fd, at);
    if (m == MAP_FAILED) printf("mmap: %s\n", strerror(errno));
    return m;
}

static int made(const char *name, long bytes) {
    int fd = open(in(name), O_CREAT | O_RDWR | O_TRUNC, 0600);
    char line[64];
    for (long at = 0; at < bytes; at += 16) {
        snprintf(line, sizeof line, "line at %07ld\n", at);
        if (write(fd, line, bytes - at < 16 ? bytes - at : 16) < 0) exit(3);
    }
    return fd;
}

static void show(int fd, off_t at, int len) {
    char bytes[65] = {0};
    ssize_t got = pread(fd, bytes, len, at);
    for (int i = 0; i < got; i++) if (bytes[i] == 0) bytes[i] = '0';
    for (int i = 0; i < got; i++) if (bytes[i] == '\n') bytes[i] = '$';
    printf("%ld at %ld: %s\n", (long)got, (long)at, bytes);
}

/* Runs a function in a child process, and returns its status. */
static int child(void (*work)(void)) {
    fflush(stdout);
    int status, process = fork();
    if (process == 0) { work(); _exit(0); }
    waitpid(process, &status, 0);
    return WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
}

static sigjmp_buf back;
static void caught(int signal) { siglongjmp(back, signal); }
/* Returns the signal that reading a byte raises, or 0. */
static int look(volatile char *at) {
    signal(SIGBUS, caught); signal(SIGSEGV, caught);
    int got = sigsetjmp(back, 1);
    if (got == 0) (void)*at;
    signal(SIGBUS, SIG_DFL); signal(SIGSEGV, SIG_DFL);
    return got;
}

static void calls_and_mappings(void) {
    puts("-- calls and mappings");
    int fd = made("both", 20000), again = open(in("both"), O_RDWR);
    char *m = map(fd, 20000, RW, 0), *r = map(again, 8192, PROT_READ, 4096);
    memcpy(m + 4094, "MAPPED", 6);
    show(fd, 4090, 16); show(again, 4090, 16);
    printf("%.4s\n", r);
    SHOW(pwrite(again, "WRITTEN", 7, 8190));
    printf("%.9s %.2s\n", m + 8189, r + 4094);
    SHOW(lseek(fd, 100, SEEK_SET)); SHOW(write(fd, "here", 4));
    printf("%.6s\n", m + 99);
    SHOW(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 5000, 3000));
    printf("%d %d %d %d\n", m[4999] != 0, m[5000], m[7999], m[8000] != 0);
    int end = open(in("both"), O_WRONLY | O_APPEND);
    SHOW(write(end, "appended", 8));
    printf("%.10s\n", m + 19998);
    SHOW(close(end));
    struct stat s;
    fstat(fd, &s);
    printf("%ld bytes\n", (long)s.st_size);
    memcpy(m + 20004, "ENDS", 4);
    show(again, 19998, 20);
    SHOW(msync(m, 4096, MS_SYNC)); SHOW(msync(m, 20000, MS_ASYNC)); SHOW(msync(r, 8192, MS_SYNC));
    SHOW(fsync(fd)); SHOW(fdatasync(again));
    SHOW(msync(m + 1, 10, MS_SYNC)); SHOW(munmap(m, 20000));
    SHOW(msync(m, 4096, MS_SYNC));
    printf("%.4s\n", r);
    SHOW(munmap(r, 8192)); SHOW(close(fd));
    show(again, 4090, 16); show(again, 19998, 20);
    SHOW(close(again));
    char *t = map(made("trunc", 5000), 5000, RW, 0);
    SHOW(close(open(in("trunc"), O_RDWR | O_TRUNC)) );
    SHOW(look(t) == SIGBUS); SHOW(munmap(t, 5000));
}

static void refusals(void) {
    puts("-- refusals");
    int fd = made("refused", 5000), r = open(in("refused"), O_RDONLY), w = open(in("refused"), O_WRONLY);
    map(r, 4096, RW, 0); map(w, 4096, PROT_READ, 0); map(w, 4096, RW, 0);
    map(fd, 4096, RW, 100); map(fd, 0, RW, 0); map(open(dir, O_RDONLY), 4096, PROT_READ, 0);
    SHOW(mmap(NULL, 4096, RW, MAP_PRIVATE | MAP_SHARED | 4, fd, 0));
    char *m = map(r, 4096, PROT_READ, 0);
    SHOW(mprotect(m, 4096, RW));
    printf("%.4s\n", m);
    SHOW(munmap(m, 4096));
    /* Mapped read-only, made writable later. */
    m = map(fd, 8192, PROT_READ, 0);
    SHOW(mprotect(m, 4096, RW));
    memcpy(m, "LATE", 4);
    SHOW(look(m + 4096)); printf("%.4s\n", m + 4096);
    show(r, 0, 8);
    SHOW(msync(m, 4096, MS_SYNC));
    SHOW(munmap(m, 8192));
    show(r, 0, 8);
    close(fd); close(r); close(w);
}

static void sizes(void) {
    puts("-- sizes");
    int fd = made("sizes", 6000);
    char *m = map(fd, 5 * PAGE, RW, 0);
    SHOW(look(m + 6000)); SHOW(look(m + 2 * PAGE) == SIGBUS);
    SHOW(ftruncate(fd, 3 * PAGE + 100));
    SHOW(look(m + 3 * PAGE)); SHOW(look(m + 4 * PAGE) == SIGBUS);
    printf("%d\n", m[6001]);
    memcpy(m + 3 * PAGE, "grown", 5);
    show(fd, 3 * PAGE - 2, 10);
    SHOW(pwrite(fd, "far", 3, 4 * PAGE + 50)); SHOW(look(m + 4 * PAGE)); printf("%.3s\n", m + 4 * PAGE + 50);
    SHOW(ftruncate(fd, PAGE + 10));
    SHOW(look(m + PAGE)); SHOW(look(m + 2 * PAGE) == SIGBUS);
    printf("%d %d\n", m[PAGE + 9] != 0, m[PAGE + 10]);
    SHOW(truncate(in("sizes"), 4 * PAGE));
    printf("%d\n", m[3 * PAGE]);
    /* The file grows into a range that was mapped before. */
    char *far = map(fd, PAGE, RW, 100 * PAGE);
    SHOW(look(far) == SIGBUS);
    SHOW(ftruncate(fd, 101 * PAGE)); SHOW(look(far));
    strcpy(far, "end"); show(fd, 100 * PAGE, 4);
    SHOW(pwrite(fd, "between", 7, 50 * PAGE)); show(fd, 50 * PAGE, 8);
    SHOW(munmap(far, PAGE)); SHOW(munmap(m, 5 * PAGE));
    show(fd, 100 * PAGE, 4); show(fd, 50 * PAGE, 8);
    close(fd);
}

static void places(void) {
    puts("-- places");
    int fd = made("places", 40000);
    char *m = map(fd, 8 * PAGE, RW, 0);
    SHOW(munmap(m + 2 * PAGE, 2 * PAGE));
    SHOW(look(m + 2 * PAGE) == SIGSEGV);
    m[PAGE] = 'A'; m[4 * PAGE] = 'B';
    char *n = mremap(m + 4 * PAGE, 4 * PAGE, 5 * PAGE, MREMAP_MAYMOVE);
    printf("%.3s %.3s\n", n, n + 4 * PAGE);
    n[4 * PAGE] = 'C';
    n = mremap(n, 5 * PAGE, 2 * PAGE, 0);
    SHOW(look(n + PAGE)); SHOW(look(n + 2 * PAGE) == SIGSEGV);
    SHOW(mmap(m, PAGE, RW, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == m);
    m[0] = 'N';
    SHOW(mmap(n, PAGE, RW, MAP_SHARED | MAP_FIXED, fd, 7 * PAGE) == n);
    n[0] = 'D';
    SHOW(close(fd));
    SHOW(msync(m, PAGE, MS_SYNC)); SHOW(munmap(m, 2 * PAGE)); SHOW(munmap(n, 2 * PAGE));
    fd = open(in("places"), O_RDONLY);
    show(fd, 0, 4); show(fd, PAGE, 4); show(fd, 4 * PAGE, 4); show(fd, 7 * PAGE, 4); show(fd, 8 * PAGE, 4);
    close(fd);
    /* Maps region by region, as SQLite does. */
    fd = open(in("regions"), O_CREAT | O_RDWR, 0600);
    char *regions[40];
    for (int i = 0; i < 40; i++) {
        ftruncate(fd, (i + 1) * 32768);
        regions[i] = map(fd, 32768, RW, i * 32768);
        sprintf(regions[i], "region %d", i);
    }
    show(fd, 0, 10); show(fd, 39 * 32768, 10);
    for (int i = 0; i < 40; i++) munmap(regions[i], 32768);
    show(fd, 0, 10); show(fd, 39 * 32768, 10);
    close(fd);
}

static char *shared;
static int to_child[2], to_parent[2];
static void say(int fd) { if (write(fd, "", 1) != 1) _exit(9); }
static void hear(int fd) { char c; if (read(fd, &c, 1) != 1) _exit(9); }

static void partner(void) {
    int fd = open(in("partners"), O_RDWR);
    char *m = map(fd, 8192, RW, 0);
    for (int i = 0; i < 50; i++) {
        hear(to_child[0]);
        if (m[i] != 'a' + i % 26) _exit(1);
        m[4096 + i] = 'A' + i % 26;
        say(to_parent[1]);
    }
    hear(to_child[0]);
    char c;
    if (pread(fd, &c, 1, 60) != 1 || c != '!') _exit(2);
    /* The mapping and the descriptor end with the process. */
    m[100] = '?';
}
static void inherits(void) { strcpy(shared + 300, "by the child"); }
static void writes_late(void) { hear(to_child[0]); strcpy(shared + 400, "late"); say(to_parent[1]); }
static void is_killed(void) { strcpy(shared + 500, "its last word"); kill(getpid(), SIGKILL); }
static void closes_all(void) {
    closefrom(3);
    close_range(3, ~0u, 0);
    for (int i = 3; i < 3000; i++) close(i);
    dup2(1, 500); dup2(1, 501);
    strcpy(shared + 600, "without descriptors");
    sync();
    close(500); close(501);
    strcpy(shared + 700, "and again");
}
static void becomes_another(void) {
    int fd = made("exec", 5000);
    char *m = map(fd, 5000, RW, 0);
    memcpy(m, "before exec\n", 12);
    execl(self, self, dir, "what", NULL);
    _exit(8);
}

static void processes(void) {
    puts("-- processes");
    int fd = made("partners", 8192);
    char *m = map(fd, 8192, RW, 0);
    pipe(to_child); pipe(to_parent);
    fflush(stdout);
    int process = fork(), status;
    if (process == 0) { partner(); _exit(0); }
    for (int i = 0; i < 50; i++) {
        m[i] = 'a' + i % 26;
        say(to_child[1]);
        hear(to_parent[0]);
        if (m[4096 + i] != 'A' + i % 26) exit(4);
    }
    SHOW(pwrite(fd, "!", 1, 60));
    say(to_child[1]);
    waitpid(process, &status, 0);
    SHOW(status);
    show(fd, 4096, 60); show(fd, 100, 1);
    shared = m;
    SHOW(child(inherits)); printf("%s\n", m + 300); show(fd, 300, 12);
    /* The last process with the mapping is a child that makes no calls. */
    fflush(stdout);
    process = fork();
    if (process == 0) { writes_late(); _exit(0); }
    SHOW(munmap(m, 8192)); SHOW(close(fd));
    say(to_child[1]); hear(to_parent[0]);
    fd = open(in("partners"), O_RDWR);
    show(fd, 400, 4);
    waitpid(process, &status, 0);
    show(fd, 400, 4);
    shared = map(fd, 8192, RW, 0);
    SHOW(child(is_killed)); show(fd, 500, 13);
    SHOW(child(closes_all)); show(fd, 600, 19); show(fd, 700, 9);
    SHOW(unlink(in("partners")));
    strcpy(shared, "no name"); show(fd, 0, 7);
    SHOW(close(fd)); printf("%s\n", shared); SHOW(munmap(shared, 8192));
    SHOW(child(becomes_another));
}

/* A process with the last mapping is killed: the next process must find its stores. */
static void dies(void) {
    int fd = made("dies", 9000);
    char *m = map(fd, 9000, RW, 0);
    close(fd);
    memcpy(m + 8990, "the end", 7);
    kill(getpid(), SIGKILL);
}

int main(int argc, char **argv) {
    if (argc < 2) return 2;
    self = argv[0]; dir = argv[1];
    if (argc > 2) { show(open(in("exec"), O_RDONLY), 0, 24); return 0; }
    calls_and_mappings();
    refusals();
    sizes();
    places();
    processes();
    puts("-- death");
    SHOW(child(dies));
    int fd = open(in("dies"), O_RDONLY);
    show(fd, 8980, 30);
    close(fd);
    return 0;
}
