/* trace.c - `weft trace merge`: the trace files of a job's endpoints as one, on one clock.
 *
 * A line of a trace file is one JSON object, so files are merged line by line and may have any length.
 * Processes of one host share a clock. Time stamps of other hosts are shifted by the wall clock that their
 * files record. */
#include <errno.h>
#include <jansson.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/cli.h"
#include "tools/commands.h"
#include "tools/common.h"

struct clock {
    char host[64];
    double ahead_us; /* wall clock minus the clock of the time stamps, microseconds */
};

struct merge {
    FILE *out;
    struct clock first;
    bool known, any;
};

/* The object of a line without its comma; NULL: no object. */
static json_t *parse_line(char *line)
{
    size_t bytes = strlen(line);
    while (bytes > 0 && (line[bytes - 1] == '\n' || line[bytes - 1] == ',' || line[bytes - 1] == '\r'))
        line[--bytes] = 0;
    return json_loadb(line, bytes, 0, NULL);
}

static void read_clock(struct merge *merge, json_t *object, double *shift_us)
{
    json_t *arguments = json_object_get(object, "args");
    const char *host = json_string_value(json_object_get(arguments, "host"));
    struct clock clock;
    snprintf(clock.host, sizeof clock.host, "%s", host ? host : "");
    uint64_t wall_ns = (uint64_t)json_integer_value(json_object_get(arguments, "wall_ns"));
    uint64_t own_ns = (uint64_t)json_integer_value(json_object_get(arguments, "monotonic_ns"));
    /* the file is not trusted: the subtraction must not overflow */
    clock.ahead_us = (double)(int64_t)(wall_ns - own_ns) / 1e3;
    if (!merge->known) merge->first = clock;
    merge->known = true;
    *shift_us = strcmp(clock.host, merge->first.host) == 0 ? 0 : clock.ahead_us - merge->first.ahead_us;
}

static bool write_object(struct merge *merge, json_t *object)
{
    char *text = json_dumps(object, JSON_COMPACT | JSON_REAL_PRECISION(17));
    bool fine = text && fprintf(merge->out, "%s%s", merge->any ? ",\n" : "", text) > 0;
    merge->any = true;
    free(text);
    return fine;
}

static bool merge_file(struct merge *merge, const char *path)
{
    FILE *file = fopen(path, "re");
    if (!file) {
        fprintf(stderr, "weft trace: %s cannot be opened: %s\n", path, strerror(errno));
        return false;
    }
    char line[4096];
    double shift_us = 0;
    bool fine = true;
    for (int number = 1; fine && fgets(line, sizeof line, file); number++) {
        if (line[0] == '[' || line[0] == ']' || line[0] == '\n') continue;
        bool whole = strchr(line, '\n') != NULL;
        json_t *object = parse_line(line), *ts = json_object_get(object, "ts");
        const char *name = json_string_value(json_object_get(object, "name"));
        if (!object && !whole && feof(file)) break; /* the process died while it wrote this line */
        if (!json_is_object(object) || !name) {
            fprintf(stderr, "weft trace: %s:%d: this is no line of a trace of weft\n", path, number);
            fine = false;
        } else {
            if (strcmp(name, "weft_clock") == 0) read_clock(merge, object, &shift_us);
            if (json_is_number(ts) && shift_us != 0)
                json_object_set_new(object, "ts", json_real(json_number_value(ts) + shift_us));
            fine = write_object(merge, object);
            if (!fine) fprintf(stderr, "weft trace: cannot write: %s\n", strerror(errno));
        }
        json_decref(object);
    }
    fclose(file);
    return fine;
}

static int merge_main(const char *output, int count, char **paths)
{
    struct merge merge = {.out = output ? fopen(output, "we") : stdout};
    if (!merge.out) {
        fprintf(stderr, "weft trace: %s cannot be written: %s\n", output, strerror(errno));
        return 1;
    }
    bool fine = fputs("[\n", merge.out) >= 0;
    for (int i = 0; i < count && fine; i++) fine = merge_file(&merge, paths[i]);
    bool ended = fputs("\n]\n", merge.out) >= 0 && fflush(merge.out) == 0;
    if (output && fclose(merge.out) != 0) ended = false;
    if (fine && !ended) fprintf(stderr, "weft trace: cannot write: %s\n", strerror(errno));
    return fine && ended ? 0 : 1;
}

int weft_trace_main(int argc, char **argv)
{
    const char *output = NULL;
    int first;
    const struct cli_option table[] = {
        {"output", 'o', "FILE", "file for the merged trace", "standard output", CLI_TEXT(&output)},
    };
    const struct cli_command command = {
        "weft trace", "weft trace merge [-o FILE] FILE...",
        "Merges the files of the trace wrapper (transport.wrap=\"trace:file=trace-%h-%e.json\") into one\n"
        "for ui.perfetto.dev or chrome://tracing. The wall clocks align processes of different hosts.\n",
        CLI_TABLE(table), .takes_arguments = true};
    if (argc < 2) return tool_usage_error("weft trace", "the action is missing: weft trace merge FILE...");
    int status = cli_parse(&command, argc, argv, &first);
    if (status >= 0) return status;
    if (first >= argc || strcmp(argv[first], "merge") != 0)
        return tool_usage_error("weft trace", "the only action is: weft trace merge FILE...");
    if (first + 1 >= argc) return tool_usage_error("weft trace", "the files to merge are missing");
    for (int i = first + 1; i < argc; i++)
        if (output && strcmp(output, argv[i]) == 0)
            return tool_usage_error("weft trace", "the output %s is one of the files to merge", output);
    return merge_main(output, argc - first - 1, argv + first + 1);
}
