// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// A plugin of QEMU's user-mode emulation. It counts the instructions of every thread, and writes an
// event with the count for each system call, for the first access to the data of a read, and for
// stores to shared mappings. The events go to a ring in a file that the profiler maps
// (src/ring.rs has the layout, and reads it).
//
// The plugin decides nothing about speculation. The profiler writes a word for each system call into
// the file, which says which of its arguments name a file or a buffer.
//
// Programs that the process executes are executed under QEMU with this plugin as well.

#define _GNU_SOURCE
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/uio.h>
#include <sys/vfs.h>
#include <time.h>
#include <unistd.h>

// The interface of QEMU's plugins, version 1, as far as this plugin uses it.
typedef uint64_t plugin_id;
struct qemu_plugin_tb;
struct qemu_plugin_insn;
#define EXPORT __attribute__((visibility("default")))
#define CB_NO_REGS 0
#define MEM_R 1
#define MEM_W 2
EXPORT int qemu_plugin_version = 1;
typedef void (*tb_callback)(plugin_id, struct qemu_plugin_tb *);
typedef void (*exec_callback)(unsigned, void *);
typedef void (*mem_callback)(unsigned, uint32_t, uint64_t, void *);
typedef void (*vcpu_callback)(plugin_id, unsigned);
typedef void (*call_callback)(plugin_id, unsigned, int64_t, uint64_t, uint64_t, uint64_t, uint64_t,
                              uint64_t, uint64_t, uint64_t, uint64_t);
typedef void (*return_callback)(plugin_id, unsigned, int64_t, int64_t);
extern void qemu_plugin_register_vcpu_tb_trans_cb(plugin_id, tb_callback);
extern void qemu_plugin_register_vcpu_tb_exec_cb(struct qemu_plugin_tb *, exec_callback, int, void *);
extern void qemu_plugin_register_vcpu_mem_cb(struct qemu_plugin_insn *, mem_callback, int, int, void *);
extern void qemu_plugin_register_vcpu_init_cb(plugin_id, vcpu_callback);
extern void qemu_plugin_register_vcpu_syscall_cb(plugin_id, call_callback);
extern void qemu_plugin_register_vcpu_syscall_ret_cb(plugin_id, return_callback);
extern size_t qemu_plugin_tb_n_insns(const struct qemu_plugin_tb *);
extern struct qemu_plugin_insn *qemu_plugin_tb_get_insn(const struct qemu_plugin_tb *, size_t);
extern unsigned qemu_plugin_mem_size_shift(uint32_t);
extern const char *qemu_plugin_path_to_binary(void);
// Distance of the program's addresses from those of QEMU: zero for 64-bit programs.
extern uintptr_t guest_base __attribute__((weak));

// Layout of the file (src/ring.rs).
#define MAGIC 0x31525053454d4c53ull
#define EVENTS 32768ull
#define CALLS 512
#define DIRECTORIES_BYTES 16384
#define HEAD 64
#define TAIL 128
#define CONSUMER 192
#define CALL_WORDS 4096
#define DIRECTORIES 8192
#define RING (DIRECTORIES + DIRECTORIES_BYTES)

struct event {
  uint64_t sequence;
  uint16_t kind;
  uint8_t object;
  uint8_t reserved;
  uint32_t number;
  uint32_t process;
  uint32_t thread;
  uint64_t count;
  uint64_t time_ns;
  int64_t result;
  uint64_t arguments[6];
  uint64_t extra;
  char name[24];
};
_Static_assert(sizeof(struct event) == 128, "two cache lines");

enum kind { START = 1, FORK, CALL, CALL_LAST, USE, SHARED_STORE, END, NOT_FOLLOWED, OVERWRITTEN };
enum object { NONE, VOLUME, OUTSIDE_FILE, PIPE_FILE, SOCKET, TERMINAL, DEVICE, NULL_DEVICE, KERNEL, ANONYMOUS };
enum not_followed { OTHER_MACHINE = 1, PRIVILEGED, EXEC_BY_DESCRIPTOR, TOO_DEEP };

// Bits of a call's word, above three bytes with an argument's index plus one: descriptor, directory, path.
#define W_READ (1u << 24)
#define W_WRITE (1u << 25)
#define W_VECTOR (1u << 26)
#define W_RESULT (1u << 27)  // The result is a descriptor: the object is its.
#define W_MAP (1u << 28)
#define W_UNMAP (1u << 29)
#define W_LAST (1u << 30)  // Does not return.
#define W_EXEC (1u << 31)

#define THREADS 65536
#define WATCHES 64
#define VECTORS 16
#define SHARED 64

// Of each virtual CPU. A cache line each, so that threads do not share one.
struct __attribute__((aligned(64))) vcpu {
  uint64_t count;
  uint64_t arguments[6];
  uint8_t object;
  uint8_t armed;  // Reports the next store to shared memory.
};
static struct vcpu vcpus[THREADS];

// A buffer whose data no one has used since a read.
struct watch {
  uint64_t start, end, id;
  unsigned thread;
};
static struct watch watches[WATCHES];
static unsigned watch_count;
static uint64_t watch_next = 1;
struct span {
  uint64_t start, end;
  uint8_t object;
};
static struct span shared[SHARED];
static unsigned shared_count;
// Bounds of all watches, and of all shared mappings, which callbacks compare without the lock.
static uint64_t watch_start = UINT64_MAX, watch_end, shared_start = UINT64_MAX, shared_end;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static char *file;
static size_t directories_bytes;
static uint32_t process;
static uint64_t base_count;
static unsigned threads_max;
static bool is_running, is_stopped;
static char qemu_path[PATH_MAX], plugin_path[PATH_MAX], events_path[PATH_MAX];

static uint64_t now_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (uint64_t)t.tv_sec * 1000000000ull + (uint64_t)t.tv_nsec;
}

static uint64_t *word(size_t offset) { return (uint64_t *)(file + offset); }

// Writes an event. Waits while the ring is full, unless the profiler has ended.
static void send(struct event event) {
  if (is_stopped) return;
  uint64_t at = __atomic_fetch_add(word(HEAD), 1, __ATOMIC_RELAXED);
  for (unsigned turn = 0; at - __atomic_load_n(word(TAIL), __ATOMIC_ACQUIRE) >= EVENTS; turn++) {
    struct timespec wait = {0, 50000};
    nanosleep(&wait, NULL);
    if (turn % 1000 == 999 && kill((pid_t)*word(CONSUMER), 0) != 0 && errno == ESRCH) {
      is_stopped = true;
      return;
    }
  }
  struct event *slot = (struct event *)(file + RING) + at % EVENTS;
  event.process = process;
  event.time_ns = now_ns();
  memcpy((char *)slot + 8, (char *)&event + 8, sizeof event - 8);
  __atomic_store_n(&slot->sequence, at + 1, __ATOMIC_RELEASE);
}

static void set_name(struct event *event, const char *path) {
  const char *slash = strrchr(path, '/');
  snprintf(event->name, sizeof event->name, "%.23s", slash != NULL ? slash + 1 : path);
}

static uint64_t total(void) {
  uint64_t sum = 0;
  for (unsigned i = 0; i <= threads_max; i++) sum += vcpus[i].count;
  return sum - base_count;
}

// Copies from the program's memory. Invalid addresses are an error, not a fault.
static bool copy_from(uint64_t address, void *to, size_t bytes) {
  struct iovec local = {to, bytes}, remote = {(void *)(address + guest_base), bytes};
  return process_vm_readv(getpid(), &local, 1, &remote, 1, 0) == (ssize_t)bytes;
}

static bool copy_string(uint64_t address, char *to, size_t max) {
  size_t done = 0;
  while (done < max) {
    size_t bytes = 256 - (address + done) % 256;
    if (bytes > max - done) bytes = max - done;
    if (!copy_from(address + done, to + done, bytes)) return false;
    if (memchr(to + done, 0, bytes) != NULL) return true;
    done += bytes;
  }
  return false;
}

// Whether a path is below a directory of the volume. Without directories, every path is.
static bool is_on_volume(const char *path) {
  if (directories_bytes == 0) return true;
  const char *directory = file + DIRECTORIES;
  const char *last = directory + directories_bytes;
  while (directory < last) {
    size_t bytes = strnlen(directory, (size_t)(last - directory));
    if (strncmp(path, directory, bytes) == 0 && (path[bytes] == '/' || path[bytes] == 0)) return true;
    directory += bytes + 1;
  }
  return false;
}

static uint8_t object_of(const struct stat *status, int descriptor, const char *path) {
  switch (status->st_mode & S_IFMT) {
    case S_IFREG:
    case S_IFDIR:
    case S_IFLNK: {
      struct statfs system;
      if ((path != NULL ? statfs(path, &system) : fstatfs(descriptor, &system)) == 0 &&
          (system.f_type == 0x9fa0 || system.f_type == 0x62656572 || system.f_type == 0x27e0eb ||
           system.f_type == 0x63677270))
        return KERNEL;  // proc, sysfs, cgroup, cgroup2
      if (path != NULL) return is_on_volume(path) ? VOLUME : OUTSIDE_FILE;
      if (directories_bytes == 0) return VOLUME;
      char link[64], target[PATH_MAX];
      snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
      ssize_t bytes = readlink(link, target, sizeof target - 1);
      if (bytes < 0) return OUTSIDE_FILE;
      target[bytes] = 0;
      return is_on_volume(target) ? VOLUME : OUTSIDE_FILE;
    }
    case S_IFIFO:
      return PIPE_FILE;
    case S_IFSOCK:
      return SOCKET;
    case S_IFCHR: {
      unsigned major_number = major(status->st_rdev);
      if (major_number == 1 && minor(status->st_rdev) == 3) return NULL_DEVICE;
      bool is_terminal = major_number == 4 || major_number == 5 || (major_number >= 136 && major_number <= 143);
      return is_terminal ? TERMINAL : DEVICE;
    }
    case S_IFBLK:
      return DEVICE;
    default:
      return ANONYMOUS;
  }
}

static uint8_t descriptor_object(uint64_t descriptor) {
  struct stat status;
  if (fstat((int)descriptor, &status) != 0) return NONE;
  return object_of(&status, (int)descriptor, NULL);
}

// The object of a path: of the file, or of its directory if there is no such file.
static uint8_t path_object(bool has_directory, uint64_t directory, uint64_t address) {
  char given[PATH_MAX], path[2 * PATH_MAX + 64], real[PATH_MAX];
  if (address == 0) return has_directory ? descriptor_object(directory) : NONE;
  if (!copy_string(address, given, sizeof given)) return NONE;
  if (given[0] == '/' || !has_directory || (int)directory == AT_FDCWD)
    snprintf(path, sizeof path, "%s", given);
  else
    snprintf(path, sizeof path, "/proc/self/fd/%d/%s", (int)directory, given);
  struct stat status;
  if (realpath(path, real) != NULL)
    return stat(real, &status) == 0 ? object_of(&status, -1, real) : NONE;
  char *slash = strrchr(path, '/');
  if (slash == path)
    slash[1] = 0;
  else if (slash != NULL)
    *slash = 0;
  else
    strcpy(path, ".");
  if (realpath(path, real) == NULL || stat(real, &status) != 0) return NONE;
  return object_of(&status, -1, real);
}

static void set_bounds(void) {
  uint64_t start = UINT64_MAX, end = 0;
  for (unsigned i = 0; i < watch_count; i++) {
    if (watches[i].start < start) start = watches[i].start;
    if (watches[i].end > end) end = watches[i].end;
  }
  __atomic_store_n(&watch_start, start, __ATOMIC_RELAXED);
  __atomic_store_n(&watch_end, end, __ATOMIC_RELAXED);
  start = UINT64_MAX, end = 0;
  for (unsigned i = 0; i < shared_count; i++) {
    if (shared[i].start < start) start = shared[i].start;
    if (shared[i].end > end) end = shared[i].end;
  }
  __atomic_store_n(&shared_start, start, __ATOMIC_RELAXED);
  __atomic_store_n(&shared_end, end, __ATOMIC_RELAXED);
}

// Ends all watches with the identifier. The lock is taken.
static void drop_watches(uint64_t id) {
  unsigned kept = 0;
  for (unsigned i = 0; i < watch_count; i++)
    if (watches[i].id != id) watches[kept++] = watches[i];
  watch_count = kept;
}

// Ends the watches that overlap the range, and reports each.
static void end_watches(uint64_t start, uint64_t end, unsigned thread, uint64_t count, uint16_t kind, uint32_t number) {
  pthread_mutex_lock(&lock);
  for (unsigned i = 0; i < watch_count;) {
    struct watch w = watches[i];
    if (w.start >= end || w.end <= start) {
      i++;
      continue;
    }
    drop_watches(w.id);
    struct event event = {.kind = kind, .number = number, .thread = w.thread, .extra = w.id};
    event.count = w.thread == thread ? count : vcpus[w.thread].count;
    send(event);
    i = 0;
  }
  set_bounds();
  pthread_mutex_unlock(&lock);
}

static unsigned index_of(unsigned vcpu) { return vcpu < THREADS ? vcpu : THREADS - 1; }

static void on_block(unsigned vcpu, void *instructions) {
  vcpus[index_of(vcpu)].count += (uintptr_t)instructions;
}

// `left` counts the instructions of the block from this one on. All of them are already counted.
static void on_load(unsigned vcpu, uint32_t info, uint64_t address, void *left) {
  if (__builtin_expect(address + 64 <= watch_start || address >= watch_end, 1)) return;
  uint64_t end = address + (1ull << qemu_plugin_mem_size_shift(info));
  if (end <= watch_start) return;
  end_watches(address, end, index_of(vcpu), vcpus[index_of(vcpu)].count - (uintptr_t)left, USE, 0);
}

static void on_store(unsigned vcpu, uint32_t info, uint64_t address, void *left) {
  on_load(vcpu, info, address, left);
  struct vcpu *cpu = &vcpus[index_of(vcpu)];
  if (__builtin_expect(address < shared_start || address >= shared_end || !cpu->armed, 1)) return;
  int object = -1;
  pthread_mutex_lock(&lock);
  for (unsigned i = 0; i < shared_count; i++)
    if (address >= shared[i].start && address < shared[i].end) object = shared[i].object;
  pthread_mutex_unlock(&lock);
  if (object < 0) return;
  // Anonymous mappings and those of the volume do not stop every rule: one store to them is reported,
  // and the first to others.
  if (object != VOLUME && object != NONE) cpu->armed = 0;
  else if (cpu->armed == 2) return;
  else cpu->armed = 2;
  struct event event = {.kind = SHARED_STORE, .object = (uint8_t)object, .thread = index_of(vcpu)};
  event.count = cpu->count - (uintptr_t)left;
  send(event);
}

// The path of the program is not known before the first block is translated.
static void report_start(void) {
  is_running = true;
  const char *path = qemu_plugin_path_to_binary();
  struct event event = {.kind = START, .extra = (uint64_t)getppid()};
  set_name(&event, path != NULL ? path : "");
  send(event);
}

static void on_translate(plugin_id id, struct qemu_plugin_tb *block) {
  size_t n = qemu_plugin_tb_n_insns(block);
  (void)id;
  if (!is_running) report_start();
  qemu_plugin_register_vcpu_tb_exec_cb(block, on_block, CB_NO_REGS, (void *)n);
  for (size_t i = 0; i < n; i++) {
    struct qemu_plugin_insn *instruction = qemu_plugin_tb_get_insn(block, i);
    qemu_plugin_register_vcpu_mem_cb(instruction, on_load, CB_NO_REGS, MEM_R, (void *)(n - i));
    qemu_plugin_register_vcpu_mem_cb(instruction, on_store, CB_NO_REGS, MEM_W, (void *)(n - i));
  }
}

// Watches the buffers that a read has filled. Returns the identifier; 0 if there is nothing to watch.
static uint64_t watch(unsigned thread, bool is_vector, const uint64_t *arguments, uint64_t bytes) {
  struct iovec vectors[VECTORS] = {{(void *)arguments[1], bytes}};
  size_t n = 1;
  if (is_vector) {
    n = arguments[2] < VECTORS ? arguments[2] : VECTORS;
    if (!copy_from(arguments[1], vectors, n * sizeof vectors[0])) return 0;
  }
  pthread_mutex_lock(&lock);
  uint64_t id = watch_next++;
  for (size_t i = 0; i < n && bytes > 0; i++) {
    uint64_t len = vectors[i].iov_len < bytes ? vectors[i].iov_len : bytes;
    bytes -= len;
    if (len == 0) continue;
    if (watch_count == WATCHES) {
      uint64_t oldest = watches[0].id;
      unsigned of = watches[0].thread;
      drop_watches(oldest);
      send((struct event){.kind = OVERWRITTEN, .object = 1, .thread = of, .extra = oldest, .count = vcpus[of].count});
    }
    uint64_t start = (uint64_t)vectors[i].iov_base;
    watches[watch_count++] = (struct watch){start, start + len, id, thread};
  }
  set_bounds();
  pthread_mutex_unlock(&lock);
  return id;
}

// Ends the watches of buffers that a call reads or fills.
static void end_watches_of_call(unsigned thread, uint32_t bits, const uint64_t *arguments, uint32_t number) {
  struct iovec vectors[VECTORS] = {{(void *)arguments[1], arguments[2]}};
  size_t n = 1;
  if (watch_count == 0) return;
  if (bits & W_VECTOR) {
    n = arguments[2] < VECTORS ? arguments[2] : VECTORS;
    if (!copy_from(arguments[1], vectors, n * sizeof vectors[0])) return;
  }
  for (size_t i = 0; i < n; i++) {
    uint64_t start = (uint64_t)vectors[i].iov_base;
    end_watches(start, start + vectors[i].iov_len, thread, vcpus[thread].count,
                bits & W_READ ? OVERWRITTEN : USE, number);
  }
}

static void add_shared(uint64_t start, uint64_t bytes, uint8_t object) {
  pthread_mutex_lock(&lock);
  // Without room, the last mapping grows to all that lies between: too many stores are reported.
  if (shared_count < SHARED) {
    shared[shared_count++] = (struct span){start, start + bytes, object};
  } else {
    struct span *last = &shared[SHARED - 1];
    if (start < last->start) last->start = start;
    if (start + bytes > last->end) last->end = start + bytes;
    if (object != VOLUME && object != NONE) last->object = object;
  }
  set_bounds();
  pthread_mutex_unlock(&lock);
}

static void remove_shared(uint64_t start, uint64_t bytes) {
  pthread_mutex_lock(&lock);
  unsigned kept = 0;
  for (unsigned i = 0; i < shared_count; i++)
    if (shared[i].start < start || shared[i].end > start + bytes) shared[kept++] = shared[i];
  shared_count = kept;
  set_bounds();
  pthread_mutex_unlock(&lock);
}

static void report_not_followed(unsigned thread, uint8_t why, const char *path) {
  struct event event = {.kind = NOT_FOLLOWED, .object = why, .thread = thread, .count = vcpus[thread].count};
  set_name(&event, path);
  send(event);
}

// Replaces the process by QEMU with this plugin and the program. Returns if that is not possible:
// then QEMU makes the call, which fails as it does without a profiler, or runs the program natively.
static void execute(unsigned thread, uint64_t path_address, uint64_t arguments, uint64_t environment) {
  static char *list[65536];
  char path[PATH_MAX], head[256], interpreters[4][256];
  size_t n = 0;
  if (!copy_string(path_address, path, sizeof path)) return;
  list[n++] = qemu_path;
  list[n++] = (char *)"-plugin";
  static char plugin[3 * PATH_MAX + 64];
  snprintf(plugin, sizeof plugin, "%s,events=%s,plugin=%s", plugin_path, events_path, plugin_path);
  list[n++] = plugin;
  char *script[16];
  size_t scripts = 0;
  const char *file_path = path;
  for (unsigned depth = 0;; depth++) {
    struct stat status;
    int descriptor = open(file_path, O_RDONLY | O_CLOEXEC);
    if (descriptor < 0) return;
    ssize_t bytes = read(descriptor, head, sizeof head - 1);
    bool is_program = fstat(descriptor, &status) == 0 && access(file_path, X_OK) == 0;
    close(descriptor);
    if (!is_program || bytes < 4) return;
    head[bytes] = 0;
    if (memcmp(head, ELFMAG, SELFMAG) == 0) {
      bool gains_user = (status.st_mode & S_ISUID) && status.st_uid != geteuid();
      bool gains_group = (status.st_mode & S_ISGID) && (status.st_mode & S_IXGRP) && status.st_gid != getegid();
      if (gains_user || gains_group) return report_not_followed(thread, PRIVILEGED, file_path);
      if (bytes < 20 || head[EI_CLASS] != ELFCLASS64 || ((Elf64_Ehdr *)head)->e_machine != EM_X86_64)
        return report_not_followed(thread, OTHER_MACHINE, file_path);
      break;
    }
    if (head[0] != '#' || head[1] != '!') return;
    if (depth == 4) return report_not_followed(thread, TOO_DEEP, path);
    char *line = strcpy(interpreters[depth], head + 2);
    line[strcspn(line, "\n")] = 0;
    line += strspn(line, " \t");
    size_t name = strcspn(line, " \t");
    char *option = line + name;
    if (*option != 0) {
      *option++ = 0;
      option += strspn(option, " \t");
      size_t len = strlen(option);
      while (len > 0 && (option[len - 1] == ' ' || option[len - 1] == '\t')) option[--len] = 0;
    }
    if (*line == 0) return;
    // The interpreter of an interpreter comes first.
    size_t added = *option != 0 ? 2 : 1;
    memmove(script + added, script, scripts * sizeof script[0]);
    script[0] = line;
    if (added == 2) script[1] = option;
    scripts += added;
    file_path = line;
  }
  char **given = (char **)(arguments + guest_base);
  uint64_t first = 0;
  size_t from = 0;
  if (arguments != 0 && !copy_from(arguments, &first, sizeof first)) return;
  if (scripts == 0 && first != 0) {
    list[n++] = (char *)"-0";
    list[n++] = given[0];
  }
  if (first != 0) from = 1;
  for (size_t i = 0; i < scripts; i++) list[n++] = script[i];
  list[n++] = path;
  for (uint64_t next = first; next != 0 && arguments != 0 && first != 0; from++) {
    if (!copy_from(arguments + 8 * from, &next, sizeof next)) return;
    if (next == 0) break;
    if (n + 2 > sizeof list / sizeof list[0]) return report_not_followed(thread, TOO_DEEP, path);
    list[n++] = (char *)(next + guest_base);
  }
  list[n] = NULL;
  static char *empty[] = {NULL};
  struct event event = {.kind = END, .object = 1, .thread = thread, .extra = total(), .count = vcpus[thread].count};
  set_name(&event, path);
  send(event);
  // What follows is counted by the plugin in the new image, from zero.
  execve(qemu_path, list, environment != 0 ? (char **)(environment + guest_base) : empty);
  base_count += total();
}

static uint32_t bits_of(int64_t number) {
  return number >= 0 && number < CALLS ? (uint32_t)word(CALL_WORDS)[number] : 0;
}

static struct event call_event(enum kind kind, unsigned thread, int64_t number) {
  struct vcpu *cpu = &vcpus[thread];
  struct event event = {.kind = (uint16_t)kind, .object = cpu->object, .number = (uint32_t)number};
  event.thread = thread;
  event.count = cpu->count;
  memcpy(event.arguments, cpu->arguments, sizeof event.arguments);
  return event;
}

static void on_call(plugin_id id, unsigned vcpu, int64_t number, uint64_t a1, uint64_t a2, uint64_t a3,
                    uint64_t a4, uint64_t a5, uint64_t a6, uint64_t a7, uint64_t a8) {
  unsigned thread = index_of(vcpu);
  struct vcpu *cpu = &vcpus[thread];
  uint32_t bits = bits_of(number);
  uint64_t arguments[6] = {a1, a2, a3, a4, a5, a6};
  (void)id, (void)a7, (void)a8;
  memcpy(cpu->arguments, arguments, sizeof arguments);
  unsigned descriptor = bits & 0xff, directory = bits >> 8 & 0xff, path = bits >> 16 & 0xff;
  cpu->object = NONE;
  if (path != 0 && path <= 6)
    cpu->object = path_object(directory != 0, directory != 0 ? arguments[directory - 1] : 0, arguments[path - 1]);
  else if (descriptor != 0 && descriptor <= 6 && (int)arguments[descriptor - 1] >= 0)
    cpu->object = descriptor_object(arguments[descriptor - 1]);
  if (bits & (W_READ | W_WRITE)) end_watches_of_call(thread, bits, arguments, (uint32_t)number);
  if (bits & W_LAST) {
    struct event event = call_event(CALL_LAST, thread, number);
    send(event);
    if (number == 231) {
      struct event end = {.kind = END, .thread = thread, .count = cpu->count, .extra = total(), .result = (int64_t)a1};
      send(end);
    }
  }
  if (bits & W_EXEC) {
    struct event event = call_event(CALL_LAST, thread, number);
    send(event);
    if (number == 59) execute(thread, a1, a2, a3);
    else report_not_followed(thread, EXEC_BY_DESCRIPTOR, "execveat");
  }
}

static void on_return(plugin_id id, unsigned vcpu, int64_t number, int64_t result) {
  unsigned thread = index_of(vcpu);
  struct vcpu *cpu = &vcpus[thread];
  uint32_t bits = bits_of(number);
  (void)id;
  if (bits & W_EXEC) return;
  if (bits & W_RESULT && result >= 0) cpu->object = descriptor_object((uint64_t)result);
  struct event event = call_event(CALL, thread, number);
  event.result = result;
  if (result > 0 && bits & W_READ && cpu->object == VOLUME)
    event.extra = watch(thread, bits & W_VECTOR, cpu->arguments, (uint64_t)result);
  if (bits & W_MAP && result > 0 && (cpu->arguments[3] & 3) != MAP_PRIVATE && cpu->arguments[2] & PROT_WRITE)
    add_shared((uint64_t)result, cpu->arguments[1], cpu->object);
  if (bits & W_UNMAP && result == 0) remove_shared(cpu->arguments[0], cpu->arguments[1]);
  if (bits & (W_READ | W_WRITE) && cpu->object == VOLUME) cpu->armed = 1;
  send(event);
}

static void on_thread(plugin_id id, unsigned vcpu) {
  unsigned thread = index_of(vcpu);
  (void)id;
  if (thread > threads_max) threads_max = thread;
}

static void before_fork(void) { pthread_mutex_lock(&lock); }
static void after_fork(void) { pthread_mutex_unlock(&lock); }
static void in_child(void) {
  pthread_mutex_unlock(&lock);
  uint32_t parent = process;
  process = (uint32_t)getpid();
  base_count += total();
  watch_count = 0;
  set_bounds();
  struct event event = {.kind = FORK, .extra = parent, .arguments = {base_count}};
  send(event);
}

EXPORT int qemu_plugin_install(plugin_id id, const void *info, int argc, char **argv) {
  (void)info;
  for (int i = 0; i < argc; i++) {
    if (strncmp(argv[i], "events=", 7) == 0) snprintf(events_path, sizeof events_path, "%s", argv[i] + 7);
    if (strncmp(argv[i], "plugin=", 7) == 0) snprintf(plugin_path, sizeof plugin_path, "%s", argv[i] + 7);
  }
  ssize_t bytes = readlink("/proc/self/exe", qemu_path, sizeof qemu_path - 1);
  int descriptor = open(events_path, O_RDWR | O_CLOEXEC);
  size_t len = RING + EVENTS * sizeof(struct event);
  struct stat status;
  if (bytes < 0 || descriptor < 0 || fstat(descriptor, &status) != 0 || (size_t)status.st_size < len) {
    fprintf(stderr, "sluice profile: the plugin cannot open its events: %s\n", events_path);
    return -1;
  }
  file = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
  close(descriptor);
  if (file == MAP_FAILED || *word(0) != MAGIC) {
    fprintf(stderr, "sluice profile: the plugin cannot map its events: %s\n", events_path);
    return -1;
  }
  directories_bytes = *word(8) <= DIRECTORIES_BYTES ? *word(8) : 0;
  process = (uint32_t)getpid();
  pthread_atfork(before_fork, after_fork, in_child);
  qemu_plugin_register_vcpu_init_cb(id, on_thread);
  qemu_plugin_register_vcpu_tb_trans_cb(id, on_translate);
  qemu_plugin_register_vcpu_syscall_cb(id, on_call);
  qemu_plugin_register_vcpu_syscall_ret_cb(id, on_return);
  return 0;
}
