/* interleave.c - see interleave.h. */
#include "tools/bench/lib/interleave.h"

#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>

static double now_seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static bool number_in_line(const char *line, const char *key, double *value_out)
{
    json_t *object = json_loads(line, 0, NULL);
    json_t *value = json_object_get(object, key); /* NULL if the object is NULL */
    bool found = json_is_number(value);
    if (found) *value_out = json_number_value(value);
    json_decref(object);
    return found;
}

bool bench_run_command(const char *command, const char *key, double *value_out, char *error,
                       size_t error_bytes)
{
    double started = now_seconds();
    FILE *output = popen(command, "r");
    if (!output) {
        snprintf(error, error_bytes, "cannot start '%s': %s", command, strerror(errno));
        return false;
    }
    char *line = NULL;
    size_t capacity = 0;
    bool found = false;
    while (getline(&line, &capacity, output) > 0) {
        if (key && number_in_line(line, key, value_out)) found = true;
    }
    free(line);
    int status = pclose(output);
    if (!key) *value_out = now_seconds() - started;
    if (status == -1 || !WIFEXITED(status) || WEXITSTATUS(status) != 0) {
        snprintf(error, error_bytes, "'%s' failed (%s %d)", command,
                 status != -1 && WIFSIGNALED(status) ? "signal" : "status",
                 status == -1          ? errno
                 : WIFSIGNALED(status) ? WTERMSIG(status)
                                       : WEXITSTATUS(status));
        return false;
    }
    if (key && !found)
        snprintf(error, error_bytes, "'%s' printed no JSON line with the number '%s'", command, key);
    return !key || found;
}

bool bench_interleave(const char *command_a, const char *command_b, const char *key, size_t pairs, double *a,
                      double *b, char *error, size_t error_bytes)
{
    for (size_t i = 0; i < pairs; i++) {
        if (!bench_run_command(command_a, key, &a[i], error, error_bytes)) return false;
        if (!bench_run_command(command_b, key, &b[i], error, error_bytes)) return false;
    }
    return true;
}
