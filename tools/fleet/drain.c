/* drain.c - `weft drain SHARD`: a shard leaves the job after its slots have moved to the others. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/cli.h"
#include "tools/commands.h"
#include "tools/common.h"
#include "tools/fleet/watch.h"

struct drain {
    struct fleet_watch watch;
    uint32_t shard;
    char host[256];
    uint64_t slots_before; /* that it had in the first status */
    bool has_status;
};

/* ---- which shard ---- */

static bool is_shard(const json_t *member)
{
    return strcmp(tool_json_text(member, "role"), "shard") == 0;
}

/* The member that the word names: a number, or the host of one shard that is in the job. NULL: the sentence
 * is on stderr. */
static const json_t *find_shard(const struct drain *drain, const json_t *status, const char *word)
{
    size_t i;
    json_t *member;
    const json_t *found = NULL;
    char *end;
    const unsigned long number = strtoul(word, &end, 10);
    const bool is_number = word[0] >= '0' && word[0] <= '9' && *end == 0;
    uint32_t count = 0;
    json_array_foreach (json_object_get(status, "members"), i, member) {
        const char *state = tool_json_text(member, "state");
        const bool is_in = strcmp(state, "left") != 0 && strcmp(state, "lost") != 0;
        if (!is_shard(member) || (is_number ? tool_json_number(member, "index") != (long long)number
                                            : !is_in || strcmp(tool_json_text(member, "host"), word) != 0))
            continue;
        found = member;
        count++;
    }
    if (count == 1 || (is_number && found)) return found;
    if (count > 1)
        fprintf(stderr,
                "%s: %u shards are on host %.200s: give the number of one, as weft status prints it\n",
                drain->watch.command, count, word);
    else
        fprintf(stderr, "%s: job %s has no shard %.200s: weft status lists its members\n",
                drain->watch.command, tool_json_text(status, "job"), word);
    return NULL;
}

/* ---- progress ---- */

static const json_t *own_member(const struct drain *drain, const json_t *status)
{
    size_t i;
    json_t *member;
    const json_t *found = NULL; /* an earlier one with its number was lost before it had joined */
    json_array_foreach (json_object_get(status, "members"), i, member)
        if (is_shard(member) && tool_json_number(member, "index") == drain->shard) found = member;
    return found;
}

static enum fleet_progress check_status(void *context, const json_t *status, uint64_t *done_out,
                                        uint64_t *total_out)
{
    struct drain *drain = context;
    const json_t *member = own_member(drain, status);
    const char *state = tool_json_text(member, "state");
    const uint64_t slots =
        (uint64_t)(tool_json_number(member, "slots_led") + tool_json_number(member, "slots_copied"));
    if (!drain->has_status) drain->slots_before = slots;
    drain->has_status = true;
    *total_out = drain->slots_before;
    *done_out = slots < drain->slots_before ? drain->slots_before - slots : 0;
    if (strcmp(state, "left") == 0) return FLEET_DONE;
    if (strcmp(state, "lost") == 0 || strcmp(tool_json_text(status, "state"), "running") != 0) {
        fprintf(
            stderr, "%s: shard %u (%s) was lost before it had left%s%s\n", drain->watch.command, drain->shard,
            drain->host, strcmp(tool_json_text(status, "state"), "ended") == 0 ? ": the job has ended: " : "",
            strcmp(tool_json_text(status, "state"), "ended") == 0 ? tool_json_text(status, "end_text") : "");
        return FLEET_FAILED;
    }
    return FLEET_CONTINUES;
}

static void print_end(const struct drain *drain, bool has_left)
{
    const char *state = has_left ? "left" : "draining";
    if (drain->watch.json)
        printf("{\"shard\":%u,\"state\":\"%s\",\"slots\":%llu}\n", drain->shard, state,
               (unsigned long long)drain->slots_before);
    else if (has_left) printf("shard %u (%s) has left the job\n", drain->shard, drain->host);
    else printf("shard %u (%s) is to leave the job; its slots move\n", drain->shard, drain->host);
}

/* ---- the command ---- */

static int drain_shard(struct drain *drain, const char *word)
{
    Weft__Control__Drain body = WEFT__CONTROL__DRAIN__INIT;
    Weft__Control__Control request = WEFT__CONTROL__CONTROL__INIT;
    char what[300], late[300];
    json_t *status = fleet_status(&drain->watch);
    const json_t *member = status ? find_shard(drain, status, word) : NULL;
    if (!member) {
        json_decref(status);
        return 1;
    }
    drain->shard = body.shard = (uint32_t)tool_json_number(member, "index");
    snprintf(drain->host, sizeof drain->host, "%s", tool_json_text(member, "host"));
    json_decref(status);
    request.body_case = WEFT__CONTROL__CONTROL__BODY_DRAIN;
    request.drain = &body;
    snprintf(what, sizeof what, "shard %u (%.200s) cannot leave", drain->shard, drain->host);
    if (!fleet_request(&drain->watch, &request, what)) return 1;
    if (drain->watch.wait_s > 0) {
        snprintf(late, sizeof late, "shard %u (%.200s) still has slots", drain->shard, drain->host);
        if (fleet_follow(&drain->watch, "drain", "slots", check_status, drain, late) != 0) return 1;
    }
    print_end(drain, drain->watch.wait_s > 0);
    return 0;
}

int weft_drain_main(int argc, char **argv)
{
    struct drain drain = {0};
    int first;
    fleet_watch_init(&drain.watch, "weft drain");
    const struct cli_option table[] = {FLEET_WATCH_OPTIONS(&drain.watch)};
    const struct cli_command command = {"weft drain",
                                        "weft drain [options] SHARD [HOST:PORT]",
                                        "The shard leaves the running job: its slots move to the others, "
                                        "then its process ends with status 0.\n"
                                        "The job needs copies (server.copies). SHARD is its number, or its "
                                        "host. HOST:PORT is the coordinator\n"
                                        "of the job (default WEFT_COORDINATOR).\n",
                                        CLI_TABLE(table),
                                        .takes_arguments = true,
                                        .notes = "Exit status: 0 it has left (with --wait 0: it leaves), 1 "
                                                 "it has not, with a sentence on stderr.\n"};
    int status = cli_parse(&command, argc, argv, &first);
    if (status >= 0) return status;
    if (first >= argc) return tool_usage_error("weft drain", "SHARD is missing: its number, or its host");
    status = tool_target_resolve("weft drain", &drain.watch.target, argc, argv, first + 1);
    if (status >= 0) return status;
    status = drain_shard(&drain, argv[first]);
    tool_target_free(&drain.watch.target);
    return status;
}
