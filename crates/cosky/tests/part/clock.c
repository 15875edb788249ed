/* A wrong wall clock for one process, put before the C library: COSKY_TEST_CLOCK seconds off, or, when that begins with
   "step", another of -10 min, 0 and +10 min every second. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static long off(long now) {
    const char *clock = getenv("COSKY_TEST_CLOCK");
    if (!clock) return 0;
    return strncmp(clock, "step", 4) ? atol(clock) : (now % 3 - 1) * 600;
}

int clock_gettime(clockid_t id, struct timespec *time) {
    int failed = (int)syscall(SYS_clock_gettime, id, time);
    if (!failed && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE)) time->tv_sec += off(time->tv_sec);
    return failed;
}

int gettimeofday(struct timeval *restrict time, void *restrict zone) {
    struct timespec now;
    (void)zone;
    if (clock_gettime(CLOCK_REALTIME, &now)) return -1;
    time->tv_sec = now.tv_sec;
    time->tv_usec = now.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *to) {
    struct timespec now;
    if (clock_gettime(CLOCK_REALTIME, &now)) return -1;
    if (to) *to = now.tv_sec;
    return now.tv_sec;
}
