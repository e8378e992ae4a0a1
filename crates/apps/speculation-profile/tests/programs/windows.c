// Windows with known numbers of instructions. The blocks are in assembly, so that no compiler changes
// them.
//
//     windows read|write|store|sync|many FILE LOOPS
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

static char buffer[4096];

// A call, one move, LOOPS times two instructions, and one access to the buffer.
static void call_then_load(long number, long fd, long loops) {
  asm volatile("syscall\n\tmov %[loops], %%rcx\n1:\tdec %%rcx\n\tjnz 1b\n\tmovb (%%rsi), %%al"
               : "+&a"(number) : "D"(fd), "S"(buffer), "d"(4096L), [loops] "r"(loops) : "rcx", "r11", "memory");
}

static void call_then_store(long number, long fd, long loops) {
  asm volatile("syscall\n\tmov %[loops], %%rcx\n1:\tdec %%rcx\n\tjnz 1b\n\tmovb %%al, (%%rsi)"
               : "+&a"(number) : "D"(fd), "S"(buffer), "d"(4096L), [loops] "r"(loops) : "rcx", "r11", "memory");
}

// A call, one move, LOOPS times two instructions, one move, and the next call: 2 * LOOPS + 3.
static void call_then_call(long number, long fd, long loops, long next) {
  asm volatile("syscall\n\tmov %[loops], %%rcx\n1:\tdec %%rcx\n\tjnz 1b\n\tmov %[next], %%rax\n\tsyscall"
               : "+&a"(number) : "D"(fd), "S"(buffer), "d"(4096L), [loops] "r"(loops), [next] "r"(next)
               : "rcx", "r11", "memory");
}

static void *other_thread(void *loops) {
  int fd = open("/dev/null", O_RDONLY);
  (void)fd;
  return loops;
}

int main(int argc, char **argv) {
  if (argc < 4) return 2;
  long loops = atol(argv[3]);
  int fd = open(argv[2], O_RDWR);
  if (fd < 0) return 3;
  if (strcmp(argv[1], "read") == 0) {
    call_then_load(0, fd, loops);
  } else if (strcmp(argv[1], "store") == 0) {
    call_then_store(0, fd, loops);
  } else if (strcmp(argv[1], "write") == 0) {
    call_then_call(1, fd, loops, 1);
  } else if (strcmp(argv[1], "sync") == 0) {
    call_then_call(74, fd, loops, 74);
  } else if (strcmp(argv[1], "copy") == 0) {
    call_then_call(0, fd, loops, 1);  // Writes from the buffer that it has read.
  } else if (strcmp(argv[1], "twice") == 0) {
    call_then_call(0, fd, loops, 0);
  } else if (strcmp(argv[1], "pure") == 0) {
    call_then_call(1, fd, loops, 39);  // getpid
  } else if (strcmp(argv[1], "pipe") == 0) {
    int ends[2];
    if (pipe(ends) != 0) return 4;
    if (write(fd, buffer, 10) != 10 || write(ends[1], buffer, 10) != 10) return 5;
  } else if (strcmp(argv[1], "shared") == 0) {
    char *shared = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (write(fd, buffer, 10) != 10) return 4;
    *(volatile char *)shared = 1;
  } else if (strcmp(argv[1], "mapped") == 0) {
    int outside = open("outside", O_RDWR);
    char *shared = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, outside, 0);
    if (shared == MAP_FAILED || write(fd, buffer, 10) != 10) return 4;
    *(volatile char *)shared = 1;
  } else if (strcmp(argv[1], "fork") == 0) {
    pid_t child = fork();
    if (child == 0) {
      call_then_load(0, fd, loops);
      _exit(7);
    }
    int status;
    if (waitpid(child, &status, 0) != child || WEXITSTATUS(status) != 7) return 4;
  } else if (strcmp(argv[1], "exec") == 0) {
    execl(argv[0], "other-name", "read", argv[2], argv[3], NULL);
    return 4;
  } else if (strcmp(argv[1], "threads") == 0) {
    pthread_t threads[8];
    for (int i = 0; i < 8; i++) pthread_create(&threads[i], NULL, other_thread, NULL);
    for (int i = 0; i < 8; i++) pthread_join(threads[i], NULL);
    call_then_load(0, fd, loops);
  } else if (strcmp(argv[1], "killed") == 0) {
    if (write(fd, buffer, 10) != 10) return 4;
    abort();
  } else if (strcmp(argv[1], "io_uring") == 0) {
    if (write(fd, buffer, 10) != 10) return 4;
    syscall(425, 1, NULL);
  } else {
    return 2;
  }
  return 0;
}
