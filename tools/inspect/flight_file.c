/* flight_file.c - reads one flight record. The file is not trusted and may be cut anywhere: it is read whole
 * within a limit, parsed by jansson, and every field is checked. The first fault becomes one sentence. */
#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "tools/inspect/inspect.h"

/* A text field, truncated to its space; control characters are replaced. */
static bool parse_text(json_t *object, const char *name, char *out, size_t out_bytes)
{
    const char *value = json_string_value(json_object_get(object, name));
    if (!value) return false;
    snprintf(out, out_bytes, "%s", value);
    for (char *c = out; *c; c++)
        if ((unsigned char)*c < ' ' || (unsigned char)*c > '~') *c = '?';
    return true;
}

static bool parse_number(json_t *object, const char *name, uint64_t max, uint64_t *out)
{
    json_t *value = json_object_get(object, name);
    if (!json_is_integer(value) || json_integer_value(value) < 0 || (uint64_t)json_integer_value(value) > max)
        return false;
    *out = (uint64_t)json_integer_value(value);
    return true;
}

static bool parse_small(json_t *object, const char *name, uint64_t max, uint32_t *out)
{
    uint64_t value;
    if (!parse_number(object, name, max, &value)) return false;
    *out = (uint32_t)value;
    return true;
}

/* At most one length per rank of the group, in and out. False: malformed, or no memory. */
static bool parse_lengths(json_t *object, struct flight_operation *o)
{
    json_t *lists[2] = {json_object_get(object, "lengths"), json_object_get(object, "lengths_out")};
    uint32_t counts[2] = {0, 0};
    for (int i = 0; i < 2; i++) {
        if (!lists[i]) continue;
        if (!json_is_array(lists[i]) || json_array_size(lists[i]) > o->ranks) return false;
        counts[i] = (uint32_t)json_array_size(lists[i]);
    }
    o->lengths_in = counts[0];
    o->lengths_out = counts[1];
    o->lengths = calloc((size_t)counts[0] + counts[1] + 1, sizeof *o->lengths);
    for (uint32_t i = 0; o->lengths && i < counts[0] + counts[1]; i++) {
        json_t *value = i < counts[0] ? json_array_get(lists[0], i) : json_array_get(lists[1], i - counts[0]);
        if (!json_is_integer(value) || json_integer_value(value) < 0) return false;
        o->lengths[i] = (uint64_t)json_integer_value(value);
    }
    return o->lengths != NULL;
}

/* The name of the first missing or wrong field; NULL: none. */
static const char *parse_operation(json_t *object, struct flight_operation *o)
{
    struct flight_call *call = &o->call;
    if (!parse_text(object, "kind", call->kind, sizeof call->kind)) return "kind";
    if (!parse_text(object, "dtype", call->dtype, sizeof call->dtype)) return "dtype";
    if (!parse_text(object, "op", call->op, sizeof call->op)) return "op";
    if (!parse_text(object, "plan", call->plan, sizeof call->plan)) return "plan";
    if (!parse_text(object, "phase", o->phase, sizeof o->phase)) return "phase";
    if (!parse_text(object, "status", o->status, sizeof o->status)) return "status";
    if (!parse_number(object, "count", INT64_MAX, &call->count)) return "count";
    if (!parse_small(object, "root", UINT32_MAX, &call->root)) return "root";
    if (!parse_small(object, "group", UINT32_MAX, &o->group)) return "group";
    if (!parse_small(object, "epoch", UINT32_MAX, &o->epoch)) return "epoch";
    if (!parse_small(object, "members", UINT32_MAX, &o->members)) return "members";
    if (!parse_small(object, "ranks", FLIGHT_RANKS_MAX, &o->ranks) || o->ranks == 0) return "ranks";
    if (!parse_small(object, "rank", o->ranks - 1, &o->rank)) return "rank";
    bool pair = strcmp(call->kind, "send") == 0 || strcmp(call->kind, "recv") == 0;
    o->sequence = FLIGHT_NO_SEQUENCE;
    if (!(pair && !json_object_get(object, "sequence")) &&
        !parse_number(object, "sequence", INT64_MAX, &o->sequence))
        return "sequence";
    if (!parse_number(object, "steps", INT64_MAX, &o->steps)) return "steps";
    if (!parse_number(object, "posted_ns", INT64_MAX, &o->posted_ns)) return "posted_ns";
    if (!parse_number(object, "started_ns", INT64_MAX, &o->started_ns)) return "started_ns";
    if (!parse_number(object, "ended_ns", INT64_MAX, &o->ended_ns)) return "ended_ns";
    if (json_object_get(object, "lengths") && !parse_lengths(object, o)) return "lengths";
    o->peer = FLIGHT_NO_PEER;
    if (json_object_get(object, "peer") && !parse_small(object, "peer", o->ranks - 1, &o->peer))
        return "peer";
    return NULL;
}

static bool parse_flight(json_t *root, struct flight *flight, char *why, size_t why_bytes)
{
    uint64_t version, pid;
    json_t *operations = json_object_get(root, "operations");
    if (!parse_number(root, "weft_flight", UINT32_MAX, &version))
        return snprintf(why, why_bytes, "it is no flight record of weft"), false;
    if (version != 1)
        return snprintf(why, why_bytes,
                        "it has version %" PRIu64
                        ", and this program reads version 1: use that release's weft",
                        version),
               false;
    bool fine = parse_text(root, "job", flight->job, sizeof flight->job) &&
                parse_text(root, "host", flight->host, sizeof flight->host) &&
                parse_text(root, "status", flight->status, sizeof flight->status) &&
                parse_text(root, "text", flight->text, sizeof flight->text) &&
                parse_small(root, "ranks", FLIGHT_RANKS_MAX, &flight->ranks) && flight->ranks > 0 &&
                parse_small(root, "rank", flight->ranks - 1, &flight->rank) &&
                parse_number(root, "pid", INT64_MAX, &pid) &&
                parse_number(root, "now_ns", INT64_MAX, &flight->now_ns) && json_is_array(operations);
    if (!fine) return snprintf(why, why_bytes, "a field of its head is missing or out of range"), false;
    flight->pid = (int64_t)pid;
    size_t count = json_array_size(operations);
    flight->operations = calloc(count ? count : 1, sizeof *flight->operations);
    if (!flight->operations)
        return snprintf(why, why_bytes, "no memory for its %zu operations", count), false;
    /* also on failure: flight_free then frees the lengths read so far */
    flight->operation_count = (uint32_t)count;
    for (size_t i = 0; i < count; i++) {
        const char *wrong = parse_operation(json_array_get(operations, i), &flight->operations[i]);
        if (wrong)
            return snprintf(why, why_bytes, "the field '%s' of its operation %zu is missing or out of range",
                            wrong, i),
                   false;
    }
    return true;
}

bool flight_parse(FILE *file, struct flight *flight_out, char *why, size_t why_bytes)
{
    json_error_t error;
    json_t *root = json_loadf(file, JSON_REJECT_DUPLICATES, &error);
    if (!root) {
        snprintf(why, why_bytes, "it is cut or damaged at line %d: %s", error.line, error.text);
        for (char *c = why; *c; c++) /* jansson quotes bytes of the file */
            if ((unsigned char)*c < ' ' || (unsigned char)*c > '~') *c = '?';
        return false;
    }
    bool fine = parse_flight(root, flight_out, why, why_bytes);
    json_decref(root);
    if (!fine) flight_free(flight_out);
    return fine;
}

bool flight_read(const char *path, struct flight *flight_out, char *why, size_t why_bytes)
{
    struct stat file_stat;
    memset(flight_out, 0, sizeof *flight_out);
    snprintf(flight_out->path, sizeof flight_out->path, "%s", path);
    FILE *file = fopen(path, "re");
    bool fine = false;
    if (!file || fstat(fileno(file), &file_stat) != 0) snprintf(why, why_bytes, "%s", strerror(errno));
    else if (!S_ISREG(file_stat.st_mode)) snprintf(why, why_bytes, "it is no plain file");
    else if (file_stat.st_size > (off_t)FLIGHT_FILE_BYTES_MAX)
        snprintf(why, why_bytes, "it is longer than %u MiB", FLIGHT_FILE_BYTES_MAX >> 20);
    else fine = flight_parse(file, flight_out, why, why_bytes);
    if (file) fclose(file);
    return fine;
}

void flight_free(struct flight *flight)
{
    for (uint32_t i = 0; i < flight->operation_count; i++) free(flight->operations[i].lengths);
    free(flight->operations);
    flight->operations = NULL;
    flight->operation_count = 0;
}

bool flight_call_equal(const struct flight_call *a, const struct flight_call *b)
{
    return strcmp(a->kind, b->kind) == 0 && strcmp(a->dtype, b->dtype) == 0 && strcmp(a->op, b->op) == 0 &&
           strcmp(a->plan, b->plan) == 0 && a->count == b->count && a->root == b->root;
}

void flight_call_text(const struct flight_call *call, char *out, size_t out_bytes)
{
    int n = snprintf(out, out_bytes, "%s", call->kind);
    if (call->count > 0 && n < (int)out_bytes)
        n += snprintf(out + n, out_bytes - (size_t)n, " of %" PRIu64 " %s", call->count,
                      call->dtype[0] ? call->dtype : "bytes");
    if (call->op[0] && n < (int)out_bytes) n += snprintf(out + n, out_bytes - (size_t)n, ", %s", call->op);
    if (call->root > 0 && n < (int)out_bytes)
        n += snprintf(out + n, out_bytes - (size_t)n, ", root %" PRIu32, call->root);
    if (call->plan[0] && n < (int)out_bytes)
        snprintf(out + n, out_bytes - (size_t)n, ", plan %s", call->plan);
}
