/* common.c - usage errors, numbers and the secret of the job, the same for every command. */
#include "tools/common.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/proto.h"

int tool_usage_error(const char *command, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    fprintf(stderr, "%s: ", command);
    vfprintf(stderr, format, args);
    fprintf(stderr, "; see %s --help\n", command);
    va_end(args);
    return TOOL_USAGE;
}

void tool_print_version(const char *command)
{
    printf("%s %s (wire version %d)\n", command, weft_proto_release(), WEFT_WIRE_VERSION);
}

bool tool_parse_number(const char *command, const char *option, const char *text, uint64_t min, uint64_t max,
                       uint64_t *value_out)
{
    uint64_t value;
    if (!weft_whole_parse(text, strlen(text), &value) || value < min || value > max) {
        tool_usage_error(command, "%s is a number from %llu to %llu, not '%s'", option,
                         (unsigned long long)min, (unsigned long long)max, text);
        return false;
    }
    *value_out = value;
    return true;
}

static bool read_file(const char *command, const char *path, char **secret_out)
{
    char secret[WEFT_SECRET_BYTES_MAX + 1];
    struct weft_error error = {0};
    if (weft_secret_file_read(path, secret, &error) != WEFT_OK) {
        fprintf(stderr, "%s: %s\n", command, error.text);
        return false;
    }
    *secret_out = strdup(secret);
    return *secret_out != NULL;
}

bool tool_read_secret(const char *command, const char *path, const struct weft_config *config,
                      char **secret_out)
{
    const char *direct = getenv("WEFT_SECRET"), *file = getenv("WEFT_SECRET_FILE");
    *secret_out = NULL;
    if (path) return read_file(command, path, secret_out);
    if (direct && direct[0]) return (*secret_out = strdup(direct)) != NULL;
    if (file && file[0]) return read_file(command, file, secret_out);
    const char *configured = config ? weft_config_text(config, "job.secret_file") : "";
    return configured[0] ? read_file(command, configured, secret_out) : true;
}

int tool_end_output(const char *command, int status)
{
    errno = 0;
    if (fflush(stdout) == 0 && !ferror(stdout)) return status;
    if (status != 0 || errno == EPIPE) return status;
    fprintf(stderr, "%s: cannot write all of the output: %s\n", command,
            errno ? strerror(errno) : "a write to standard output has failed");
    return 1;
}
