/* Two threads and another process take turns with bursts of random calls, and pass a token through pipes. Each must
   find the data that the previous one has written, with any call. The output must be equal on a volume and on the host.
   */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#define WORKERS 3
#define FILES 4
#define LONGEST 600000L

/* Kills the process; the others then wait until their alarm. */
static void fail(int line) {
    fprintf(stderr, "line %d\n", line);
    raise(SIGKILL);
}

static const char *dir;
static int pipes[WORKERS][2];
/* Opened before the fork, so that the processes share offsets. The last one is opened with O_APPEND. */
static int shared[FILES];
/* Opened by each process itself. */
static int own[FILES];

/* A file of fixed length, which processes map temporarily. */
#define FIXED 65536L
static int fixed;
static unsigned char *seen;

static uint64_t hash_of(const unsigned char *bytes, long len) {
    uint64_t hash = 14695981039346656037u;
    for (long b = 0; b < len; b++) hash = (hash ^ bytes[b]) * 1099511628211u;
    return hash;
}

static struct { uint64_t state; int rounds; } *turn;

static uint64_t draw(uint64_t n) {
    turn->state = turn->state * 6364136223846793005u + 1442695040888963407u;
    return (turn->state >> 33) % n;
}

static const char *path(int i) {
    static __thread char name[512];
    snprintf(name, sizeof name, "%s/f%d", dir, i);
    return name;
}

static int reopen(int i, int flags) {
    int fd = open(path(i), O_RDWR | O_CREAT | flags, 0600);
    if (fd < 0) fail(__LINE__);
    return fd;
}

static void check(int i) {
    static __thread char bytes[LONGEST + 200000];
    struct stat of;
    long got = -1;
    int fd = -1;
    switch (draw(5)) {
    case 0: got = pread(own[i], bytes, sizeof bytes, 0); break;
    case 1: got = pread(shared[i], bytes, sizeof bytes, 0); break;
    case 2:
        fd = open(path(i), O_RDONLY);
        got = read(fd, bytes, sizeof bytes);
        break;
    case 3: {
        if (fstat(own[i], &of)) fail(__LINE__);
        got = of.st_size;
        void *at = got ? mmap(0, got, PROT_READ, draw(2) ? MAP_SHARED : MAP_PRIVATE, own[i], 0) : 0;
        if (at == MAP_FAILED) fail(__LINE__);
        if (got) { memcpy(bytes, at, got); munmap(at, got); }
        break;
    }
    default:
        /* Transfers no data: prints size and offsets. */
        if (fstat(own[i], &of)) fail(__LINE__);
        printf("%d is %ld, at %ld and %ld\n", i, (long)of.st_size, (long)lseek(own[i], 0, SEEK_CUR),
               (long)lseek(shared[i], 0, SEEK_CUR));
        return;
    }
    if (fd >= 0) close(fd);
    printf("%d has %ld, %016lx\n", i, got, (unsigned long)hash_of((unsigned char *)bytes, got));
}

static void step(void) {
    static __thread char bytes[300000];
    int i = draw(FILES), fd = draw(2) ? own[i] : shared[i];
    long len = draw(20) ? 1 + draw(200) : draw(6) ? 1 + draw(20000) : 1 + draw(sizeof bytes);
    struct stat of;
    switch (draw(40)) {
    case 0: check(i); break;
    case 1: if (lseek(fd, draw(LONGEST / 2), SEEK_SET) < 0) fail(__LINE__); break;
    case 2: if (ftruncate(fd, draw(LONGEST / 4))) fail(__LINE__); break;
    case 3: if (fsync(fd)) fail(__LINE__); break;
    case 4: close(own[i]); own[i] = reopen(i, draw(8) ? 0 : O_DSYNC); break;
    case 5: {
        /* Renames the file over another one, which stays open in other processes. */
        char to[512];
        int j = draw(FILES - 1);
        strcpy(to, path(j));
        if (rename(path(i), to)) fail(__LINE__);
        close(reopen(i, 0));
        break;
    }
    case 6: close(dup2(fd, 100)); break;
    case 7: {
        struct iovec parts[2] = {{bytes, len / 2}, {bytes + len / 2, len - len / 2}};
        memset(bytes, draw(256), len);
        if (writev(fd, parts, 2) != len) fail(__LINE__);
        break;
    }
    default:
        /* Truncates a long file, because whole files are read at times. */
        if (fstat(fd, &of)) fail(__LINE__);
        if (of.st_size > LONGEST && ftruncate(fd, 0)) fail(__LINE__);
        memset(bytes, draw(256), len);
        if (draw(2)) {
            long at = lseek(fd, 0, SEEK_CUR);
            if (at > LONGEST && lseek(fd, 0, SEEK_SET)) fail(__LINE__);
            if (write(fd, bytes, len) != len) fail(__LINE__);
        } else if (pwrite(fd, bytes, len, draw(LONGEST / 2)) != len) {
            fail(__LINE__);
        }
    }
}

/* Only consecutive short writes, most of which the library posts. */
static void burst(void) {
    char bytes[300];
    int i = draw(FILES), fd = draw(2) ? own[i] : shared[i];
    struct stat of;
    if (fstat(fd, &of)) fail(__LINE__);
    if (of.st_size > LONGEST && ftruncate(fd, 0)) fail(__LINE__);
    for (int n = 1 + draw(60); n > 0; n--) {
        long len = 1 + draw(sizeof bytes);
        memset(bytes, draw(256), len);
        if (draw(2) ? write(fd, bytes, len) != len : pwrite(fd, bytes, len, draw(LONGEST / 2)) != len)
            fail(__LINE__);
    }
}

/* Reads through the mapping, without a call to the service. */
static void look(void) {
    char bytes[100];
    if (seen) printf("seen %016lx\n", (unsigned long)hash_of(seen, FIXED));
    if (seen && !draw(5)) {
        munmap(seen, FIXED);
        seen = 0;
    } else if (!seen && !draw(60)) {
        seen = mmap(0, FIXED, PROT_READ, MAP_SHARED, fixed, 0);
        if (seen == MAP_FAILED) fail(__LINE__);
    }
    for (int n = draw(6); n > 0; n--) {
        memset(bytes, draw(256), sizeof bytes);
        if (pwrite(fixed, bytes, sizeof bytes, draw(FIXED - sizeof bytes)) != sizeof bytes) fail(__LINE__);
    }
}

static void *work(void *number) {
    int me = (int)(long)number, next;
    char token;
    alarm(60);
    while (read(pipes[me][0], &token, 1) == 1 && turn->rounds > 0) {
        turn->rounds--;
        look();
        if (draw(3)) burst();
        else for (int n = draw(20); n > 0; n--) step();
        next = draw(WORKERS);
        fflush(stdout);
        if (write(pipes[next][1], &token, 1) != 1) fail(__LINE__);
    }
    /* Passes the token to the other workers, so that they end. */
    for (int other = 0; other < WORKERS; other++)
        if (other != me && write(pipes[other][1], &token, 1) != 1) fail(__LINE__);
    return 0;
}

int main(int argc, char **argv) {
    pthread_t thread;
    int status;
    if (argc < 4) return 1;
    dir = argv[1];
    turn = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (turn == MAP_FAILED) return 2;
    turn->state = atol(argv[2]) * 2 + 1;
    turn->rounds = atoi(argv[3]);
    for (int i = 0; i < WORKERS; i++) if (pipe(pipes[i])) return 3;
    for (int i = 0; i < FILES; i++) {
        shared[i] = reopen(i, i == FILES - 1 ? O_APPEND : 0);
        own[i] = reopen(i, 0);
    }
    fixed = open(path(FILES), O_RDWR | O_CREAT, 0600);
    if (fixed < 0 || ftruncate(fixed, FIXED)) return 7;
    pid_t child = fork();
    if (child == 0) {
        work((void *)2L);
        return 0;
    }
    if (pthread_create(&thread, 0, work, (void *)1L)) return 4;
    if (write(pipes[0][1], "x", 1) != 1) return 5;
    work(0);
    pthread_join(thread, 0);
    if (waitpid(child, &status, 0) != child || status) return 6;
    for (int i = 0; i < FILES; i++) for (int n = 0; n < 8; n++) check(i);
    return 0;
}
