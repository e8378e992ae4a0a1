/* Operations that volumes do not support: each call fails with ENOTSUP and prints one line. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

int main(int argc, char **argv) {
    if (argc < 2 || chdir(argv[1]) != 0) return 2;
    int fd = open("f", O_CREAT | O_RDWR, 0600);
    int wrong = fd < 0 || write(fd, "12345678", 8) != 8;
#define REFUSED(call) do { errno = 0; if ((call) == 0 || errno != ENOTSUP) { \
    wrong++; printf("%s: %s\n", #call, strerror(errno)); } } while (0)
    REFUSED(link("f", "g"));
    REFUSED(symlink("f", "g"));
    REFUSED(mkfifo("p", 0600));
    REFUSED(open(".", O_TMPFILE | O_RDWR, 0600) >= 0 ? 0 : -1);
    char *args[] = {"f", NULL};
    REFUSED(execv("f", args));
    REFUSED(freopen("f", "r", stdin) != NULL ? 0 : -1);
    glob_t g;
    REFUSED(glob("*", 0, NULL, &g) == GLOB_ABORTED ? -1 : 0);
    char name[] = "tmp-XXXXXX", other[] = "dir-XXXXXX", bad[] = "tmp";
    int t = mkstemp(name);
    wrong += t < 0 || access(name, F_OK) != 0 || write(t, "x", 1) != 1;
    wrong += mkdtemp(other) == NULL || access(other, F_OK) != 0;
    wrong += mkstemp(bad) != -1 || errno != EINVAL;
    return wrong;
}
