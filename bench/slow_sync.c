/* Makes every sync of a process take a given time, without a disk: preloaded by run.py --sync-us, over a folder in memory. */
#include <stdlib.h>
#include <time.h>

static int slow(void) {
    static long long wanted = -1;
    struct timespec begun, now;
    if (wanted < 0) {
        const char *us = getenv("BENCH_SYNC_US");
        wanted = us ? atoll(us) * 1000 : 0;
    }
    clock_gettime(CLOCK_MONOTONIC, &begun);
    do
        clock_gettime(CLOCK_MONOTONIC, &now);
    while ((now.tv_sec - begun.tv_sec) * 1000000000LL + (now.tv_nsec - begun.tv_nsec) < wanted);
    return 0;
}

int fsync(int fd) { (void)fd; return slow(); }
int fdatasync(int fd) { (void)fd; return slow(); }
