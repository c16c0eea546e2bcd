/* A disk that fails, for one process: LD_PRELOAD it, and it stands between the process and the files of a directory.
 *
 *   DISK_DIRECTORY  the files below it are concerned
 *   DISK_CALL       write (also at an offset), sync, or truncate (also fallocate)
 *   DISK_AT         the how manieth such call, from 1
 *   DISK_FAULT      EIO or ENOSPC: this call fails
 *                   short: half of it is written, and that is said
 *                   torn: half of it is written, then it and all later calls of any kind fail with EIO
 *                   slow: this and all later calls take DISK_DELAY_MS longer
 *   DISK_LASTING    if set, all later calls of this kind fail, too
 *   DISK_MARK       this file gets a line when the fault has happened: call, file
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

static atomic_long calls;
static atomic_int is_torn;

enum verdict { GO, FAIL, HALF, TORN };

static const char *setting(const char *name) {
    const char *value = getenv(name);
    return value ? value : "";
}

static int is_concerned(int file, char *path, size_t size) {
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    ssize_t length = readlink(link, path, size - 1);
    if (length < 0) return 0;
    path[length] = 0;
    const char *directory = setting("DISK_DIRECTORY");
    return *directory && strncmp(path, directory, strlen(directory)) == 0;
}

static void mark(const char *call, const char *path) {
    static atomic_int is_marked;
    if (atomic_exchange(&is_marked, 1)) return;
    char line[512];
    int length = snprintf(line, sizeof line, "%s %s\n", call, path);
    int file = open(setting("DISK_MARK"), O_WRONLY | O_CREAT | O_APPEND, 0600);
    if (file < 0) return;
    ssize_t (*plain_write)(int, const void *, size_t) = dlsym(RTLD_NEXT, "write");
    if (plain_write(file, line, length) < 0) perror("DISK_MARK");
    close(file);
}

/* What becomes of this call; errno is set if it fails. */
static enum verdict judge(const char *call, int file) {
    char path[400];
    int before = errno;
    if (!is_concerned(file, path, sizeof path)) {
        errno = before;
        return GO;
    }
    errno = EIO;
    if (atomic_load(&is_torn)) return FAIL;
    errno = before;
    if (strcmp(call, setting("DISK_CALL")) != 0) return GO;
    long number = atomic_fetch_add(&calls, 1) + 1, at = atol(setting("DISK_AT"));
    const char *fault = setting("DISK_FAULT");
    int is_slow = strcmp(fault, "slow") == 0;
    if (number < at || (number > at && !is_slow && !*setting("DISK_LASTING"))) return GO;
    mark(call, path);
    if (is_slow) {
        long delay_ms = atol(setting("DISK_DELAY_MS"));
        struct timespec delay = {delay_ms / 1000, delay_ms % 1000 * 1000000};
        nanosleep(&delay, NULL);
        errno = before;
        return GO;
    }
    if (strcmp(fault, "short") == 0) return HALF;
    if (strcmp(fault, "torn") == 0) {
        atomic_store(&is_torn, 1);
        return TORN;
    }
    errno = strcmp(fault, "ENOSPC") == 0 ? ENOSPC : EIO;
    return FAIL;
}

/* How much of a write is done. */
static size_t share(enum verdict verdict, size_t bytes) { return verdict == GO || bytes < 2 ? bytes : bytes / 2; }

/* A torn write says that it failed. */
static ssize_t told(enum verdict verdict, ssize_t written) {
    if (verdict != TORN) return written;
    errno = EIO;
    return -1;
}

#define REAL(type, name, ...) \
    static type (*real)(__VA_ARGS__); \
    if (!real) real = dlsym(RTLD_NEXT, name)

ssize_t write(int file, const void *data, size_t bytes) {
    REAL(ssize_t, "write", int, const void *, size_t);
    enum verdict verdict = judge("write", file);
    return verdict == FAIL ? -1 : told(verdict, real(file, data, share(verdict, bytes)));
}

ssize_t pwrite64(int file, const void *data, size_t bytes, off64_t offset) {
    REAL(ssize_t, "pwrite64", int, const void *, size_t, off64_t);
    enum verdict verdict = judge("write", file);
    return verdict == FAIL ? -1 : told(verdict, real(file, data, share(verdict, bytes), offset));
}

ssize_t pwrite(int file, const void *data, size_t bytes, off_t offset) { return pwrite64(file, data, bytes, offset); }

/* Of a vector only the first element is written when half of it is asked for: that is a short write, too. */
ssize_t writev(int file, const struct iovec *parts, int count) {
    REAL(ssize_t, "writev", int, const struct iovec *, int);
    enum verdict verdict = judge("write", file);
    return verdict == FAIL ? -1 : told(verdict, real(file, parts, verdict == GO ? count : 1));
}

ssize_t pwritev64(int file, const struct iovec *parts, int count, off64_t offset) {
    REAL(ssize_t, "pwritev64", int, const struct iovec *, int, off64_t);
    enum verdict verdict = judge("write", file);
    return verdict == FAIL ? -1 : told(verdict, real(file, parts, verdict == GO ? count : 1, offset));
}

ssize_t pwritev(int file, const struct iovec *parts, int count, off_t offset) {
    return pwritev64(file, parts, count, offset);
}

int fsync(int file) {
    REAL(int, "fsync", int);
    return judge("sync", file) == FAIL ? -1 : real(file);
}

int fdatasync(int file) {
    REAL(int, "fdatasync", int);
    return judge("sync", file) == FAIL ? -1 : real(file);
}

int ftruncate64(int file, off64_t length) {
    REAL(int, "ftruncate64", int, off64_t);
    return judge("truncate", file) == FAIL ? -1 : real(file, length);
}

int ftruncate(int file, off_t length) { return ftruncate64(file, length); }

int fallocate64(int file, int mode, off64_t offset, off64_t length) {
    REAL(int, "fallocate64", int, int, off64_t, off64_t);
    return judge("truncate", file) == FAIL ? -1 : real(file, mode, offset, length);
}

int fallocate(int file, int mode, off_t offset, off_t length) { return fallocate64(file, mode, offset, length); }

int posix_fallocate64(int file, off64_t offset, off64_t length) {
    REAL(int, "posix_fallocate64", int, off64_t, off64_t);
    return judge("truncate", file) == FAIL ? errno : real(file, offset, length);
}

int posix_fallocate(int file, off_t offset, off_t length) { return posix_fallocate64(file, offset, length); }
