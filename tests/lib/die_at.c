/* die_at.c - a library for LD_PRELOAD: kills rank DIE_RANK of a job at its DIE_AT-th change of a folder
 * (fopen for writing, rename, remove), before the change or, with DIE_AFTER, after it. */
#include <dlfcn.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool should_die(bool after)
{
    static int changes;
    const char *rank = getenv("WEFT_RANK"), *at = getenv("DIE_AT"), *whose = getenv("DIE_RANK");
    if (!rank || !at || !whose || strcmp(rank, whose) != 0) return false;
    if (!after) changes++;
    return changes == atoi(at) && after == (getenv("DIE_AFTER") != NULL);
}

#define CHANGE(call)                           \
    do {                                       \
        if (should_die(false)) raise(SIGKILL); \
        call;                                  \
        if (should_die(true)) raise(SIGKILL);  \
    } while (0)

static void *next(const char *name)
{
    return dlsym(RTLD_NEXT, name);
}

FILE *fopen(const char *path, const char *mode)
{
    FILE *(*real)(const char *, const char *), *file;
    *(void **)&real = next("fopen");
    if (mode[0] == 'r' || strncmp(path, "/proc", 5) == 0) return real(path, mode);
    CHANGE(file = real(path, mode));
    return file;
}

int rename(const char *from, const char *to)
{
    int (*real)(const char *, const char *), result;
    *(void **)&real = next("rename");
    CHANGE(result = real(from, to));
    return result;
}

int remove(const char *path)
{
    int (*real)(const char *), result;
    *(void **)&real = next("remove");
    CHANGE(result = real(path));
    return result;
}
