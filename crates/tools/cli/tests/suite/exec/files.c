/* Makes all calls that sluice exec supports below argv[1], and prints the result of each. The output on a volume must
 * equal the output in a directory of the host. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

static char root[256];

static const char *in(const char *name) {
    static char paths[8][512];
    static int next;
    char *path = paths[next++ % 8];
    snprintf(path, 512, "%s/%s", root, name);
    return path;
}

#define SHOW(call) do { errno = 0; long r_ = (long)(call); int e_ = errno; \
    printf("%-60s %ld %s\n", #call, r_, r_ < 0 ? strerror(e_) : ""); } while (0)
/* Prints whether the call returned a descriptor, but not its number. */
#define OPEN(var, call) do { errno = 0; var = (call); \
    printf("%-60s %s\n", #call, var < 0 ? strerror(errno) : "open"); } while (0)

static int by_name(const struct dirent **a, const struct dirent **b) {
    return strcmp((*a)->d_name, (*b)->d_name);
}

static void list(const char *path) {
    struct dirent **names;
    int n = scandir(path, &names, NULL, by_name);
    printf("list:");
    for (int i = 0; i < n; i++) {
        printf(" %s%s", names[i]->d_name, names[i]->d_type == DT_DIR ? "/" : "");
        free(names[i]);
    }
    if (n >= 0) free(names);
    printf(n < 0 ? " %s\n" : "\n", strerror(errno));
}

static void facts(const char *path) {
    struct stat s;
    struct statx x;
    if (stat(path, &s) != 0) {
        printf("stat: %s\n", strerror(errno));
        return;
    }
    int d = S_ISDIR(s.st_mode);
    printf("stat: %o size %ld links %ld\n", s.st_mode, d ? 0L : (long)s.st_size, d ? 0L : (long)s.st_nlink);
    statx(AT_FDCWD, path, 0, STATX_BASIC_STATS, &x);
    printf("statx agrees: %d\n", x.stx_ino == s.st_ino && x.stx_mode == s.st_mode
        && x.stx_mtime.tv_nsec == s.st_mtim.tv_nsec);
}

static void basics(void) {
    int fd, other;
    char buffer[256] = "";
    puts("-- basics");
    OPEN(fd, open(in("none"), O_RDONLY));
    OPEN(fd, open(in("a"), O_RDWR | O_CREAT | O_EXCL, 0640));
    OPEN(other, open(in("a"), O_RDWR | O_CREAT | O_EXCL, 0640));
    SHOW(write(fd, "hello world", 11));
    SHOW(lseek(fd, 6, SEEK_SET));
    SHOW(read(fd, buffer, 100));
    puts(buffer);
    SHOW(read(fd, buffer, 100));
    SHOW(pread(fd, buffer, 5, 0));
    SHOW(pwrite(fd, "J", 1, 0));
    SHOW(pread(fd, buffer, 5, -1));
    SHOW(lseek(fd, -1, SEEK_SET));
    SHOW(lseek(fd, 5, SEEK_END));
    SHOW(write(fd, "!", 1));
    SHOW(lseek(fd, 0, SEEK_CUR));
    SHOW(fsync(fd));
    SHOW(fdatasync(fd));
    facts(in("a"));
    SHOW(ftruncate(fd, 5));
    SHOW(ftruncate(fd, -5));
    facts(in("a"));
    struct iovec parts[3] = {{"one", 3}, {"", 0}, {"three", 5}};
    SHOW(lseek(fd, 0, SEEK_SET));
    SHOW(writev(fd, parts, 3));
    struct iovec back[2] = {{buffer, 4}, {buffer + 10, 100}};
    SHOW(preadv(fd, back, 2, 0));
    printf("%.4s %.4s\n", buffer, buffer + 10);
    SHOW(readv(fd, back, -1));
    SHOW(fcntl(fd, F_GETFL) & (O_ACCMODE | O_APPEND));
    SHOW(fcntl(fd, F_SETFL, O_APPEND));
    SHOW(fcntl(fd, F_GETFL) & (O_ACCMODE | O_APPEND));
    SHOW(lseek(fd, 0, SEEK_SET));
    SHOW(write(fd, "end", 3));
    SHOW(lseek(fd, 0, SEEK_CUR));
    SHOW(fcntl(fd, F_GETFD));
    SHOW(close(fd));
    SHOW(close(fd));
    SHOW(read(fd, buffer, 1));
    OPEN(fd, open(in("a"), O_WRONLY | O_CLOEXEC));
    SHOW(fcntl(fd, F_GETFD));
    SHOW(read(fd, buffer, 1));
    SHOW(close(fd));
    OPEN(fd, open(in("a"), O_RDONLY));
    SHOW(write(fd, "x", 1));
    SHOW(ftruncate(fd, 1));
    SHOW(isatty(fd));
    SHOW(close(fd));
    OPEN(fd, open(in("a"), O_RDWR | O_TRUNC));
    facts(in("a"));
    SHOW(posix_fallocate(fd, 0, 10000));
    SHOW(fallocate(fd, FALLOC_FL_KEEP_SIZE, 10000, 10000));
    SHOW(fallocate(fd, FALLOC_FL_KEEP_SIZE | FALLOC_FL_PUNCH_HOLE, 0, 4096));
    facts(in("a"));
    SHOW(close(fd));
    OPEN(fd, open(in("a/b"), O_RDONLY));
    OPEN(fd, open(in("a/"), O_RDONLY));
    OPEN(fd, open(in("."), O_WRONLY));
    OPEN(fd, creat(in("c"), 0600));
    SHOW(close(fd));
    SHOW(access(in("a"), R_OK | W_OK));
    SHOW(access(in("none"), F_OK));
    SHOW(truncate(in("a"), 3));
    SHOW(chmod(in("a"), 0604));
    facts(in("a"));
    struct timespec times[2] = {{1000, 5}, {2000, 7}};
    SHOW(utimensat(AT_FDCWD, in("a"), times, 0));
    struct stat s;
    SHOW(stat(in("a"), &s));
    printf("%ld.%ld %ld.%ld\n", s.st_atim.tv_sec, s.st_atim.tv_nsec, s.st_mtim.tv_sec, s.st_mtim.tv_nsec);
    char name[300];
    memset(name, 'x', 299);
    name[299] = 0;
    OPEN(fd, open(in(name), O_CREAT | O_RDWR, 0600));
    name[255] = 0;
    OPEN(fd, open(in(name), O_CREAT | O_RDWR, 0600));
    SHOW(close(fd));
    SHOW(unlink(in(name)));
    SHOW(unlink(in(name)));
}

static void names(void) {
    int fd, dir;
    char buffer[300] = "";
    puts("-- names");
    SHOW(mkdir(in("d"), 0750));
    SHOW(mkdir(in("d"), 0750));
    SHOW(mkdir(in("none/d"), 0750));
    facts(in("d"));
    OPEN(fd, open(in("d/f"), O_CREAT | O_WRONLY, 0600));
    SHOW(write(fd, "f", 1));
    SHOW(close(fd));
    SHOW(rmdir(in("d")));
    SHOW(unlink(in("d")));
    SHOW(rename(in("d/f"), in("g")));
    SHOW(rename(in("none"), in("g")));
    SHOW(rename(in("g"), in("d")));
    SHOW(rename(in("d"), in("d/d")));
    SHOW(renameat2(AT_FDCWD, in("a"), AT_FDCWD, in("g"), RENAME_NOREPLACE));
    SHOW(rename(in("a"), in("g")));
    facts(in("g"));
    list(in("."));
    OPEN(dir, open(in("d"), O_RDONLY | O_DIRECTORY));
    OPEN(fd, openat(dir, "x", O_CREAT | O_RDWR, 0600));
    SHOW(close(fd));
    OPEN(fd, openat(dir, "../g", O_RDONLY));
    SHOW(close(fd));
    SHOW(mkdirat(dir, "sub", 0700));
    SHOW(faccessat(dir, "sub", F_OK, 0));
    SHOW(renameat(dir, "x", dir, "sub/y"));
    SHOW(unlinkat(dir, "sub", 0));
    SHOW(unlinkat(dir, "sub", AT_REMOVEDIR));
    SHOW(read(dir, buffer, 1));
    SHOW(fsync(dir));
    SHOW(fchdir(dir));
    OPEN(fd, open("sub/y", O_RDONLY));
    SHOW(close(fd));
    char *cwd = getcwd(buffer, sizeof buffer);
    puts(cwd && strcmp(cwd, in("d")) == 0 ? "in d" : cwd ? cwd : strerror(errno));
    SHOW(chdir(".."));
    SHOW(access("g", F_OK));
    cwd = getcwd(buffer, sizeof buffer);
    puts(cwd && strcmp(cwd, root) == 0 ? "in the root" : cwd ? cwd : strerror(errno));
    SHOW(chdir("g"));
    SHOW(chdir("/"));
    SHOW(close(dir));
    char *path = realpath(in("d/./sub/../sub/y"), NULL);
    puts(path && strcmp(path, in("d/sub/y")) == 0 ? "real" : path ? path : strerror(errno));
    free(path);
    SHOW(remove(in("d/sub/y")));
    SHOW(remove(in("d/sub")));
    list(in("d"));
    list(in("none"));
    OPEN(fd, open(in("open"), O_CREAT | O_RDWR, 0600));
    SHOW(write(fd, "still", 5));
    SHOW(unlink(in("open")));
    SHOW(pread(fd, buffer, 5, 0));
    struct stat s;
    SHOW(fstat(fd, &s));
    printf("links %ld size %ld\n", (long)s.st_nlink, (long)s.st_size);
    SHOW(close(fd));
    SHOW(readlink(in("g"), buffer, 10));
    struct statvfs v;
    SHOW(statvfs(in("g"), &v));
    printf("free: %d\n", v.f_bavail > 0 && v.f_bavail <= v.f_blocks);
    for (int i = 0; i < 300; i++) {
        char name[40];
        snprintf(name, 40, "d/file-%03d", i);
        close(open(in(name), O_CREAT | O_WRONLY, 0600));
    }
    DIR *d = opendir(in("d"));
    int n = 0, again = 0;
    long middle = 0;
    while (readdir(d)) if (++n == 100) middle = telldir(d);
    seekdir(d, middle);
    while (readdir(d)) again++;
    rewinddir(d);
    printf("%d entries, %d behind the 100th, first again %d\n", n, again, readdir(d) != NULL);
    SHOW(closedir(d));
}

static void copies(void) {
    int fd, two;
    char buffer[100] = "";
    puts("-- copies");
    OPEN(fd, open(in("copies"), O_CREAT | O_RDWR | O_TRUNC, 0600));
    OPEN(two, dup(fd));
    SHOW(write(fd, "abc", 3));
    SHOW(lseek(two, 0, SEEK_CUR));
    SHOW(close(fd));
    SHOW(write(two, "def", 3));
    SHOW(dup2(two, 77));
    SHOW(fcntl(77, F_DUPFD_CLOEXEC, 90));
    SHOW(lseek(90, 1, SEEK_SET));
    SHOW(read(two, buffer, 2));
    puts(buffer);
    SHOW(close(77));
    SHOW(close_range(90, 95, 0));
    SHOW(read(90, buffer, 2));
    fflush(stdout);
    if (fork() == 0) {
        write(two, "child", 5);
        int own = open(in("of-child"), O_CREAT | O_WRONLY, 0600);
        write(own, "x", 1);
        _exit(own < 0);
    }
    int status;
    wait(&status);
    printf("child %d\n", WEXITSTATUS(status));
    SHOW(lseek(two, 0, SEEK_CUR));
    SHOW(access(in("of-child"), F_OK));
    SHOW(close(two));
}

static void streams(void) {
    char line[100], *more;
    puts("-- streams");
    FILE *f = fopen(in("stream"), "w");
    printf("%d\n", f != NULL);
    for (int i = 0; i < 20000; i++) fprintf(f, "line %d\n", i);
    SHOW(fflush(f));
    SHOW(fsync(fileno(f)));
    SHOW(ftell(f));
    SHOW(fclose(f));
    f = fopen(in("stream"), "a+");
    fputs("last\n", f);
    SHOW(fseek(f, 7, SEEK_SET));
    more = fgets(line, 100, f);
    printf("%s", more ? more : "none\n");
    SHOW(fseek(f, -5, SEEK_END));
    more = fgets(line, 100, f);
    printf("%s", more ? more : "none\n");
    SHOW(feof(f) || fgetc(f) != EOF);
    SHOW(fclose(f));
    SHOW(fopen(in("none"), "r") == NULL);
    int fd = open(in("stream"), O_RDONLY);
    f = fdopen(fd, "r");
    more = fgets(line, 100, f);
    printf("%s", more ? more : "none\n");
    SHOW(fileno(f) == fd);
    SHOW(fclose(f));
    SHOW(close(fd));
    f = fopen(in("stream"), "r+");
    long at = 0, wrong = 0;
    while (fgets(line, 100, f)) wrong += ftell(f) != (at += strlen(line));
    SHOW(wrong);
    SHOW(at);
    SHOW(fseek(f, 100, SEEK_SET));
    SHOW(ftell(f));
    SHOW(fread(line, 1, 10, f));
    SHOW(fflush(f));
    SHOW(lseek(fileno(f), 0, SEEK_CUR));
    SHOW(lseek(fileno(f), 500, SEEK_SET));
    SHOW(ftell(f));
    SHOW(fgetc(f));
    SHOW(ftell(f));
    SHOW(fseek(f, 0, SEEK_END));
    SHOW(fputs("more", f) >= 0);
    SHOW(ftell(f));
    SHOW(fflush(f));
    SHOW(ftell(f));
    SHOW(fclose(f));
}

static void maps(void) {
    puts("-- maps");
    int fd = open(in("map"), O_CREAT | O_RDWR, 0600);
    for (int i = 0; i < 30000; i++) write(fd, "abcdefgh", 8);
    char *m = mmap(NULL, 240000, PROT_READ, MAP_SHARED, fd, 0);
    printf("%d %.8s\n", m != MAP_FAILED, m + 239992);
    SHOW(munmap(m, 240000));
    m = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 4096);
    m[0] = 'X';
    char c;
    SHOW(pread(fd, &c, 1, 4096));
    printf("%c %c\n", c, m[0]);
    SHOW(munmap(m, 4096));
    SHOW(close(fd));
}

static int locked(int type, int start, int len) {
    int result = 0, status;
    fflush(stdout);
    if (fork() == 0) {
        int fd = open(in("locks"), O_RDWR);
        struct flock l = {.l_type = type, .l_start = start, .l_len = len};
        if (fcntl(fd, F_SETLK, &l) != 0) _exit(1);
        _exit(0);
    }
    wait(&status);
    result = WEXITSTATUS(status);
    return result;
}

static void locks(void) {
    puts("-- locks");
    int fd = open(in("locks"), O_CREAT | O_RDWR, 0600);
    struct flock l = {.l_type = F_WRLCK, .l_start = 10, .l_len = 10};
    SHOW(fcntl(fd, F_SETLK, &l));
    SHOW(locked(F_WRLCK, 0, 10));
    SHOW(locked(F_RDLCK, 0, 11));
    SHOW(locked(F_WRLCK, 19, 0));
    l.l_type = F_UNLCK; l.l_start = 12; l.l_len = 2;
    SHOW(fcntl(fd, F_SETLK, &l));
    SHOW(locked(F_WRLCK, 12, 2));
    SHOW(locked(F_WRLCK, 12, 3));
    int other = open(in("locks"), O_RDWR);
    SHOW(flock(fd, LOCK_EX | LOCK_NB));
    SHOW(flock(other, LOCK_SH | LOCK_NB));
    SHOW(flock(fd, LOCK_UN));
    SHOW(flock(other, LOCK_SH));
    SHOW(close(other));
    SHOW(locked(F_WRLCK, 10, 10)); /* closing any descriptor has released the locks */
    struct flock o = {.l_type = F_WRLCK};
    SHOW(fcntl(fd, F_OFD_SETLK, &o));
    SHOW(locked(F_RDLCK, 0, 0));
    SHOW(close(fd));
    SHOW(locked(F_RDLCK, 0, 0));
}

static void *work(void *arg) {
    long id = (long)arg;
    char name[400], block[5000], back[5000];
    snprintf(name, 400, "%s/thread-%ld", root, id);
    int fd = open(name, O_CREAT | O_RDWR, 0600);
    long bad = fd < 0;
    for (int i = 0; i < 100; i++) {
        memset(block, 'a' + (i + id) % 26, sizeof block);
        bad += pwrite(fd, block, sizeof block, (long)i * 5000) != 5000;
        bad += pread(fd, back, sizeof back, (long)i * 5000) != 5000;
        bad += memcmp(block, back, sizeof block) != 0;
        if (i % 50 == 0) bad += fsync(fd) != 0;
    }
    close(fd);
    return (void *)bad;
}

static void threads(void) {
    puts("-- threads");
    pthread_t all[40];
    for (long i = 0; i < 40; i++) pthread_create(&all[i], NULL, work, (void *)i);
    long bad = 0;
    for (int i = 0; i < 40; i++) {
        void *one;
        pthread_join(all[i], &one);
        bad += (long)one;
    }
    printf("%ld wrong\n", bad);
    /* Appends of several processes do not mix. */
    fflush(stdout);
    for (int p = 0; p < 4; p++) {
        if (fork() == 0) {
            int fd = open(in("log"), O_CREAT | O_WRONLY | O_APPEND, 0600);
            char line[64];
            memset(line, 'a' + p, 63);
            line[63] = '\n';
            for (int i = 0; i < 200; i++) write(fd, line, 64);
            _exit(0);
        }
    }
    while (wait(NULL) > 0) {}
    FILE *f = fopen(in("log"), "r");
    char line[100];
    int whole = 0;
    while (fgets(line, 100, f)) {
        int same = strlen(line) == 64;
        for (int i = 0; i < 63; i++) same &= line[i] == line[0];
        whole += same;
    }
    fclose(f);
    printf("%d whole lines\n", whole);
}

static void large(void) {
    puts("-- large");
    size_t len = 3000001;
    char *data = malloc(len), *back = malloc(len);
    for (size_t i = 0; i < len; i++) data[i] = (char)(i * 7 / 3);
    int fd = open(in("large"), O_CREAT | O_RDWR, 0600);
    SHOW(write(fd, data, len));
    SHOW(lseek(fd, 0, SEEK_SET));
    SHOW(read(fd, back, len));
    printf("same %d\n", memcmp(data, back, len) == 0);
    SHOW(close(fd));
    SHOW(unlink(in("large")));
    free(data);
    free(back);
}

int main(int argc, char **argv) {
    if (argc < 2) return 2;
    snprintf(root, sizeof root, "%s", argv[1]);
    umask(022);
    basics();
    names();
    copies();
    streams();
    maps();
    locks();
    threads();
    large();
    list(root);
    return 0;
}
