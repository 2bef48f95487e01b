/* A disk whose every flush takes SLOW_DISK_MICROSECONDS longer: preloaded into whoever commits. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <time.h>

static void wait_for_disk(void)
{
    const char *told = getenv("SLOW_DISK_MICROSECONDS");
    long microseconds = told ? atol(told) : 0;
    struct timespec left = {microseconds / 1000000, microseconds % 1000000 * 1000};
    while (nanosleep(&left, &left))
        ;
}

int fsync(int file)
{
    int (*flush)(int) = (int (*)(int))dlsym(RTLD_NEXT, "fsync");
    wait_for_disk();
    return flush(file);
}

int fdatasync(int file)
{
    int (*flush)(int) = (int (*)(int))dlsym(RTLD_NEXT, "fdatasync");
    wait_for_disk();
    return flush(file);
}
