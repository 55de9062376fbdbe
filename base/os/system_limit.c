/* system_limit.c - see system_limit.h. */
#include "base/os/system_limit.h"

#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>

#include "base/env.h"

#define NOTE_BYTES 240

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* leaf: no other lock is taken inside */
static char note[NOTE_BYTES];

enum weft_status weft_limit_note(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    pthread_mutex_lock(&lock);
    vsnprintf(note, sizeof note, format, arguments);
    weft_text_one_line(note, sizeof note);
    pthread_mutex_unlock(&lock);
    va_end(arguments);
    return WEFT_ERR_LIMIT;
}

static unsigned long long limit_of(int resource)
{
    struct rlimit limit;
    return getrlimit((__rlimit_resource_t)resource, &limit) == 0 ? (unsigned long long)limit.rlim_cur : 0;
}

enum weft_status weft_limit_status(const char *what, int reason)
{
    switch (reason) {
    case ENOMEM:
    case ENOBUFS: return WEFT_ERR_NO_MEMORY;
    case EMFILE:
        return weft_limit_note(
            "no descriptor for %s: all %llu open files of the process are in use; raise ulimit -n", what,
            limit_of(RLIMIT_NOFILE));
    case ENFILE:
        return weft_limit_note(
            "no descriptor for %s: the open files of the host are used up; raise the sysctl fs.file-max",
            what);
    case EAGAIN:
        return weft_limit_note("no thread for %s: %llu processes and threads are allowed; raise ulimit -u or "
                               "the container's pids limit",
                               what, limit_of(RLIMIT_NPROC));
    case ENOSPC:
        return weft_limit_note("no space for %s: the shared memory or the epoll watches of the host are used "
                               "up; raise the size of /dev/shm, the "
                               "memory limit of the container, or the sysctl fs.epoll.max_user_watches",
                               what);
    case EFBIG:
        return weft_limit_note("%s is longer than a file may be, %llu bytes; raise ulimit -f", what,
                               limit_of(RLIMIT_FSIZE));
    default: return weft_limit_note("%s cannot be made: %s", what, strerror(reason));
    }
}

enum weft_status weft_limit_error(struct weft_error *error, const char *what, int reason, const char *format,
                                  ...)
{
    char text[300];
    va_list arguments;
    const enum weft_status status = weft_limit_status(what, reason);
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    return (enum weft_status)weft_error_set(error, status, "%s: %s", text, weft_reason_text(status));
}

const char *weft_reason_text(enum weft_status status)
{
    static _Thread_local char text[NOTE_BYTES];
    if (status != WEFT_ERR_LIMIT) return weft_status_text(status);
    pthread_mutex_lock(&lock);
    memcpy(text, note, sizeof text);
    pthread_mutex_unlock(&lock);
    return text[0] ? text : "a limit is reached in the process that refused; its log names it";
}
