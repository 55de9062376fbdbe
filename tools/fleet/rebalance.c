/* rebalance.c - `weft rebalance`: requests moves of slots until all shards have equal bytes or load. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/cli.h"
#include "tools/commands.h"
#include "tools/common.h"
#include "tools/fleet/watch.h"

struct rebalance {
    struct fleet_watch watch;
    uint64_t distance_before, distance; /* largest less smallest bytes of a shard, led and copied */
    long long moved_bytes;
    bool has_status, by_load, plan;
};

static uint64_t distance_of(const json_t *status)
{
    size_t i;
    json_t *member;
    uint64_t most = 0, least = UINT64_MAX;
    json_array_foreach (json_object_get(status, "members"), i, member) {
        if (strcmp(tool_json_text(member, "role"), "shard") != 0 ||
            strcmp(tool_json_text(member, "state"), "ready") != 0)
            continue;
        const uint64_t bytes =
            (uint64_t)(tool_json_number(member, "weights_bytes") + tool_json_number(member, "copied_bytes"));
        if (bytes > most) most = bytes;
        if (bytes < least) least = bytes;
    }
    return most > least ? most - least : 0;
}

static enum fleet_progress check_status(void *context, const json_t *status, uint64_t *done_out,
                                        uint64_t *total_out)
{
    struct rebalance *rebalance = context;
    const json_t *slots = json_object_get(status, "slots");
    rebalance->distance = distance_of(status);
    rebalance->moved_bytes = tool_json_number(slots, "moved_bytes");
    if (!rebalance->has_status) rebalance->distance_before = rebalance->distance;
    rebalance->has_status = true;
    *total_out = rebalance->distance_before;
    *done_out = rebalance->distance < rebalance->distance_before
                    ? rebalance->distance_before - rebalance->distance
                    : 0;
    if (strcmp(tool_json_text(status, "state"), "running") != 0) {
        fprintf(stderr, "%s: the job has ended: %s\n", rebalance->watch.command,
                tool_json_text(status, "end_text"));
        return FLEET_FAILED;
    }
    return json_is_true(json_object_get(slots, "rebalancing")) ? FLEET_CONTINUES : FLEET_DONE;
}

static void print_plan(const json_t *plan)
{
    size_t i;
    json_t *entry;
    uint64_t bytes = 0;
    const json_t *moves = json_object_get(plan, "moves");
    json_array_foreach (json_object_get(plan, "speeds"), i, entry)
        printf("shard %zu: speed %.2f of the fastest\n", i, (double)json_integer_value(entry) / 1000);
    json_array_foreach (moves, i, entry) {
        bytes += (uint64_t)tool_json_number(entry, "bytes");
        printf("slot %lld: %s from shard %lld to shard %lld, %.1f MiB\n", tool_json_number(entry, "slot"),
               json_is_true(json_object_get(entry, "leads")) ? "its leader" : "its copy",
               tool_json_number(entry, "from"), tool_json_number(entry, "to"),
               (double)tool_json_number(entry, "bytes") / (1 << 20));
    }
    printf("%zu slots would move, %.1f MiB\n", json_array_size(moves), (double)bytes / (1 << 20));
}

/* Prints the plan, and moves no slot. */
static int show_plan(const struct rebalance *rebalance, const Weft__Control__Control *request)
{
    struct weft_error error = {0};
    char *answer = tool_target_request(&rebalance->watch.target, request, &error);
    json_t *plan = answer ? json_loads(answer, 0, NULL) : NULL;
    if (!plan)
        fprintf(stderr, "%s: no plan of the moves: %s\n", rebalance->watch.command,
                !answer     ? error.text
                : answer[0] ? answer
                            : "the coordinator is of a release that cannot plan; it has started the moves "
                              "(see weft status)");
    else if (rebalance->watch.json) puts(answer);
    else print_plan(plan);
    const int status = plan ? 0 : 1;
    json_decref(plan);
    free(answer);
    return status;
}

static int even_shards(struct rebalance *rebalance)
{
    Weft__Control__Rebalance body = WEFT__CONTROL__REBALANCE__INIT;
    Weft__Control__Control request = WEFT__CONTROL__CONTROL__INIT;
    const bool waits = rebalance->watch.wait_s > 0;
    request.body_case = WEFT__CONTROL__CONTROL__BODY_REBALANCE;
    request.rebalance = &body;
    body.by_load = rebalance->by_load;
    body.plan = rebalance->plan;
    if (rebalance->plan) return show_plan(rebalance, &request);
    if (!fleet_request(&rebalance->watch, &request, "no slot moves")) return 1;
    if (waits && fleet_follow(&rebalance->watch, "rebalance", NULL, check_status, rebalance,
                              "the shards are not even") != 0)
        return 1;
    if (rebalance->watch.json)
        printf("{\"state\":\"%s\",\"distance_bytes\":%llu,\"moved_bytes\":%lld}\n", waits ? "even" : "moving",
               (unsigned long long)rebalance->distance, rebalance->moved_bytes);
    else if (waits && rebalance->by_load) puts("the shards are even by their load");
    else if (waits)
        printf("the shards are even: they differ by %.1f MiB at most\n",
               (double)rebalance->distance / (1 << 20));
    else puts("slots move until the shards are even");
    return 0;
}

static int set_by(const struct cli_command *command, const struct cli_option *option, const char *text)
{
    bool *by_load = option->value;
    *by_load = strcmp(text, "load") == 0;
    if (*by_load || strcmp(text, "bytes") == 0) return -1;
    return cli_value_error(command, "--by", text, "bytes or load");
}

int weft_rebalance_main(int argc, char **argv)
{
    struct rebalance rebalance = {0};
    int first;
    fleet_watch_init(&rebalance.watch, "weft rebalance");
    const struct cli_option table[] = {
        {"by", 0, "WHAT",
         "bytes: the shards get equal bytes; load: a shard on a slower link or core gets fewer, by the time "
         "that it has needed for each byte in the last 30 s",
         "bytes", CLI_CALL(set_by, &rebalance.by_load)},
        {"plan", 0, NULL, "print what would move, and move nothing", CLI_FLAG(&rebalance.plan)},
        FLEET_WATCH_OPTIONS(&rebalance.watch)};
    const struct cli_command command = {
        "weft rebalance",
        "weft rebalance [options] [HOST:PORT]",
        "Slots of the running job move until the bytes that its shards have differ by one slot at most, or\n"
        "with --by load are in proportion to the speed of the shards. The job needs copies (server.copies). "
        "HOST:PORT is its coordinator (default WEFT_COORDINATOR).\n",
        CLI_TABLE(table),
        .takes_arguments = true,
        .notes =
            "Exit status: 0 the shards are even (with --wait 0: slots move), 1 with a sentence on stderr.\n"};
    int status = cli_parse(&command, argc, argv, &first);
    if (status < 0)
        status = tool_target_resolve("weft rebalance", &rebalance.watch.target, argc, argv, first);
    if (status >= 0) return status;
    status = even_shards(&rebalance);
    tool_target_free(&rebalance.watch.target);
    return status;
}
