/* Makes every sync of one process slower: load it with LD_PRELOAD.
 *
 *   SLOW_DISK_SYNC_MS  additional milliseconds
 *   SLOW_DISK_WHILE    only while this file exists
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

static void delay(void) {
    const char *file = getenv("SLOW_DISK_WHILE"), *time_ms = getenv("SLOW_DISK_SYNC_MS");
    int before = errno;
    if (file && time_ms && access(file, F_OK) == 0) {
        long ms = atol(time_ms);
        struct timespec time = {ms / 1000, ms % 1000 * 1000000};
        nanosleep(&time, NULL);
    }
    errno = before;
}

int fsync(int file) {
    static int (*real)(int);
    if (!real) real = dlsym(RTLD_NEXT, "fsync");
    delay();
    return real(file);
}

int fdatasync(int file) {
    static int (*real)(int);
    if (!real) real = dlsym(RTLD_NEXT, "fdatasync");
    delay();
    return real(file);
}
