/* snapshot.c - `weft snapshot`: list, verify, export and prune the snapshots of a folder. */
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "snapshot/snapshot.h"
#include "tools/cli.h"
#include "tools/commands.h"
#include "tools/common.h"
#include "tools/progress.h"

struct command_line {
    const char *action, *place, *output;
    char folder[1024];
    uint64_t step; /* WEFT_NEVER: not given */
    uint32_t keep, age_s;
    bool json, states;
};

static int fail(const struct weft_error *error)
{
    fprintf(stderr, "weft snapshot: %s\n", error->text);
    return 1;
}

static void print_json(json_t *root)
{
    (void)json_dumpf(root, stdout, JSON_INDENT(2) | JSON_SORT_KEYS);
    putchar('\n');
    json_decref(root);
}

/* ---- list ---- */

static json_t *snapshot_json(const struct weft_snapshot *snapshot)
{
    uint64_t bytes, stored;
    weft_snapshot_sizes(snapshot, &bytes, &stored);
    return json_pack("{s:I, s:I, s:s, s:I, s:I, s:s, s:I, s:I, s:I, s:I}", "step", (json_int_t)snapshot->step,
                     "time", (json_int_t)snapshot->time_s, "job", snapshot->job, "workers",
                     (json_int_t)snapshot->workers, "shards", (json_int_t)snapshot->shards, "weights",
                     weft_piece_dtype_text(snapshot->weights), "tensors", (json_int_t)snapshot->tensor_count,
                     "pieces", (json_int_t)snapshot->piece_count, "bytes", (json_int_t)bytes, "stored_bytes",
                     (json_int_t)stored);
}

static void print_row(const struct weft_snapshot *snapshot)
{
    uint64_t bytes, stored;
    char when[32] = "-";
    const time_t time_s = (time_t)snapshot->time_s;
    struct tm local;
    weft_snapshot_sizes(snapshot, &bytes, &stored);
    if (localtime_r(&time_s, &local)) strftime(when, sizeof when, "%Y-%m-%d %H:%M:%S", &local);
    printf("%12" PRIu64 "  %-19s  %7u  %6u  %-7s  %7u  %6u  %10.1f  %10.1f  %s\n", snapshot->step, when,
           snapshot->workers, snapshot->shards, weft_piece_dtype_text(snapshot->weights),
           snapshot->tensor_count, snapshot->piece_count, (double)bytes / (1 << 20),
           (double)stored / (1 << 20), snapshot->job);
}

/* A manifest that cannot be read does not hide the others. */
static int list_main(const struct command_line *line)
{
    struct weft_env *env = weft_env_system();
    struct weft_error error = {0};
    uint64_t *steps;
    uint32_t count;
    int status = 0;
    if (weft_snapshot_steps(env, line->folder, &steps, &count, &error) < 0) return fail(&error);
    json_t *list = json_array();
    if (!line->json)
        printf("%12s  %-19s  %7s  %6s  %-7s  %7s  %6s  %10s  %10s  %s\n", "step", "time", "workers", "shards",
               "weights", "tensors", "pieces", "MiB", "MiB stored", "job");
    for (uint32_t i = 0; i < count; i++) {
        struct weft_snapshot snapshot;
        error = (struct weft_error){0};
        if (weft_snapshot_load(env, line->folder, steps[i], &snapshot, &error) < 0) {
            status = fail(&error);
            continue;
        }
        if (line->json) (void)json_array_append_new(list, snapshot_json(&snapshot));
        else print_row(&snapshot);
        weft_snapshot_fini(&snapshot);
    }
    weft_free_bytes(env, steps);
    if (line->json) print_json(list);
    else json_decref(list);
    return status;
}

/* ---- verify, export, prune ---- */

static int verify_one(const struct command_line *line, uint64_t step, json_t *list)
{
    struct weft_snapshot snapshot;
    struct weft_error error = {0};
    struct progress_bar bar;
    const struct weft_snapshot_progress progress = {progress_draw, &bar};
    enum weft_status status = weft_snapshot_load(weft_env_system(), line->folder, step, &snapshot, &error);
    if (status == WEFT_OK) {
        step = snapshot.step;
        progress_begin(&bar, "verify", NULL);
        status = weft_snapshot_verify(&snapshot, line->folder, &progress, &error);
        progress_end(&bar);
        weft_snapshot_fini(&snapshot);
    }
    (void)json_array_append_new(list, json_pack("{s:I, s:b, s:s}", "step", (json_int_t)step, "is_whole",
                                                status == WEFT_OK, "error", error.text));
    if (status < 0) return fail(&error);
    if (!line->json) printf("step %" PRIu64 " is whole\n", step);
    return 0;
}

static int verify_main(const struct command_line *line)
{
    struct weft_env *env = weft_env_system();
    struct weft_error error = {0};
    uint64_t *steps = NULL;
    uint32_t count = 0;
    int status = 0;
    if (weft_snapshot_steps(env, line->folder, &steps, &count, &error) < 0) return fail(&error);
    json_t *list = json_array();
    if (line->step != WEFT_NEVER || count == 0) status = verify_one(line, line->step, list);
    else
        for (uint32_t i = 0; i < count; i++) status |= verify_one(line, steps[i], list);
    weft_free_bytes(env, steps);
    if (line->json) print_json(list);
    else json_decref(list);
    return status;
}

static int export_main(const struct command_line *line)
{
    struct weft_snapshot snapshot;
    struct weft_error error = {0};
    struct progress_bar bar;
    const struct weft_snapshot_progress progress = {progress_draw, &bar};
    if (!line->output) return tool_usage_error("weft snapshot", "export needs -o FILE");
    if (weft_snapshot_load(weft_env_system(), line->folder, line->step, &snapshot, &error) < 0)
        return fail(&error);
    progress_begin(&bar, "export", NULL);
    const enum weft_status status =
        weft_snapshot_export(&snapshot, line->folder, line->output, line->states, &progress, &error);
    progress_end(&bar);
    if (status == WEFT_OK && line->json)
        print_json(json_pack("{s:I, s:s, s:I}", "step", (json_int_t)snapshot.step, "file", line->output,
                             "tensors", (json_int_t)snapshot.tensor_count));
    else if (status == WEFT_OK)
        printf("step %" PRIu64 ": %u tensors are in %s\n", snapshot.step, snapshot.tensor_count,
               line->output);
    weft_snapshot_fini(&snapshot);
    return status == WEFT_OK ? 0 : fail(&error);
}

static int prune_main(const struct command_line *line)
{
    struct weft_snapshot_prune_result result;
    struct weft_error error = {0};
    if (weft_snapshot_prune(weft_env_system(), line->folder, line->keep, line->age_s, &result, &error) < 0)
        return fail(&error);
    if (line->json)
        print_json(json_pack("{s:I, s:I, s:I}", "manifests", (json_int_t)result.manifests, "pieces",
                             (json_int_t)result.pieces, "bytes", (json_int_t)result.bytes));
    else
        printf("removed %u snapshots and %u pieces of %.1f MiB\n", result.manifests, result.pieces,
               (double)result.bytes / (1 << 20));
    return 0;
}

static const struct action {
    const char *name;
    int (*main)(const struct command_line *line);
} actions[] = {{"list", list_main}, {"verify", verify_main}, {"export", export_main}, {"prune", prune_main}};
#define ACTION_COUNT (sizeof actions / sizeof actions[0])

int weft_snapshot_main(int argc, char **argv)
{
    struct command_line line = {.keep = 3, .age_s = 3600};
    struct weft_error error = {0};
    int first;
    const struct cli_option table[] = {
        {"json", 0, NULL, "print JSON", CLI_FLAG(&line.json)},
        {"output", 'o', "FILE", "export: the file to write", "", CLI_TEXT(&line.output)},
        {"states", 0, NULL, "export: optimizer states too", CLI_FLAG(&line.states)},
        {"keep", 0, "N", "prune: snapshots that stay", CLI_U32(&line.keep, 0, UINT32_MAX)},
        {"age", 0, "SECONDS", "prune: pieces that were written later stay",
         CLI_U32(&line.age_s, 0, UINT32_MAX)},
    };
    const struct cli_command command = {
        "weft snapshot",
        "weft snapshot list FOLDER\n"
        "       weft snapshot verify FOLDER[:STEP]\n"
        "       weft snapshot export FOLDER[:STEP] -o FILE\n"
        "       weft snapshot prune FOLDER",
        "Snapshots of the shards' weights and optimizer states (snapshot.folder).\n"
        "list: one line for each. verify: reads all pieces and compares their hashes; without STEP of all\n"
        "snapshots. export: one safetensors file; without STEP of the newest. prune: removes old "
        "snapshots.\n",
        CLI_TABLE(table),
        .takes_arguments = true,
        .notes = "Exit status: 0 done, and all is whole; 1 not; 2 wrong usage.\n"};
    const int status = cli_parse(&command, argc, argv, &first);
    if (status >= 0) return status;
    if (first + 2 != argc)
        return tool_usage_error("weft snapshot", first + 2 > argc ? "an action and a folder are needed"
                                                                  : "more than one folder is given");
    if (weft_snapshot_place_parse(argv[first + 1], line.folder, sizeof line.folder, &line.step, &error) < 0)
        return tool_usage_error("weft snapshot", "%s", error.text);
    const char *names[ACTION_COUNT + 1] = {NULL};
    for (size_t i = 0; i < ACTION_COUNT; i++) {
        if (strcmp(actions[i].name, argv[first]) == 0) return actions[i].main(&line);
        names[i] = actions[i].name;
    }
    return cli_unknown_error("weft snapshot", "action", argv[first], names);
}
