/* Preloaded into every program of a drill; only the one whose command line names WALL_CLOCK_OF sees another wall clock.

   The shift, in whole seconds, stands in the file WALL_CLOCK_SHIFT and may change at any moment. Monotonic clocks stay what they are. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile int64_t *shift_s;

static int is_meant(const char *whom) {
    char words[8192];
    int file = open("/proc/self/cmdline", O_RDONLY | O_CLOEXEC);
    ssize_t length = file < 0 ? -1 : read(file, words, sizeof words);
    if (file >= 0) close(file);
    return length > 0 && memmem(words, (size_t)length, whom, strlen(whom)) != NULL;
}

__attribute__((constructor)) static void begin(void) {
    const char *whom = getenv("WALL_CLOCK_OF"), *path = getenv("WALL_CLOCK_SHIFT");
    if (whom == NULL || path == NULL || !is_meant(whom)) return;
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0) return;
    void *page = mmap(NULL, sizeof *shift_s, PROT_READ, MAP_SHARED, file, 0);
    close(file);
    if (page != MAP_FAILED) shift_s = page;
}

int clock_gettime(clockid_t clock, struct timespec *at) {
    int failed = (int)syscall(SYS_clock_gettime, clock, at);
    if (!failed && shift_s && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) at->tv_sec += *shift_s;
    return failed;
}

int gettimeofday(struct timeval *restrict at, void *restrict zone) {
    (void)zone;
    struct timespec now;
    int failed = clock_gettime(CLOCK_REALTIME, &now);
    if (!failed) {
        at->tv_sec = now.tv_sec;
        at->tv_usec = now.tv_nsec / 1000;
    }
    return failed;
}

time_t time(time_t *at) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (at) *at = now.tv_sec;
    return now.tv_sec;
}
