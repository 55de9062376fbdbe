/* failover_kill.c - see failover.h. The coordinator names the shards with their hosts and process ids. */
#include "tools/bench/failover/failover.h"

#include <errno.h>
#include <jansson.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "tools/bench/bench_rank.h"
#include "tools/target.h"

static const char name[] = "weft bench failover";

/* A process id of another host or of an ended process may be that of another program here. */
static bool is_weftd(pid_t pid)
{
    char path[48], command[32] = "";
    snprintf(path, sizeof path, "/proc/%d/comm", (int)pid);
    FILE *file = fopen(path, "r");
    if (!file) return false;
    const bool read = fgets(command, sizeof command, file) != NULL;
    fclose(file);
    return read && strcmp(command, "weftd\n") == 0;
}

static bool choose_member(struct failover_kill *kill, const json_t *status, uint32_t index)
{
    char host[256] = "";
    size_t i;
    json_t *member;
    gethostname(host, sizeof host - 1);
    json_array_foreach (json_object_get(status, "members"), i, member) {
        if (strcmp(tool_json_text(member, "role"), "shard") != 0 ||
            tool_json_number(member, "index") != (long long)index)
            continue;
        kill->shard = index;
        kill->pid = (pid_t)tool_json_number(member, "pid");
        if (strcmp(tool_json_text(member, "host"), host) == 0 && is_weftd(kill->pid)) return true;
        fprintf(stderr, "%s: shard %u (%s, pid %d) does not run on this host (%s), so it cannot be killed\n",
                name, index, tool_json_text(member, "host"), (int)kill->pid, host);
        return false;
    }
    fprintf(stderr, "%s: the coordinator lists no shard %u\n", name, index);
    return false;
}

static bool choose(struct failover_kill *kill, const json_t *status, uint64_t seed)
{
    const long long shards = tool_json_number(status, "shards");
    const json_t *slots = json_object_get(status, "slots");
    if (shards < 2 || tool_json_number(slots, "copies") < 1 || tool_json_number(slots, "without_copy") > 0) {
        fprintf(stderr,
                "%s: the loss of a shard would end the job (%lld shards, %lld copies, %lld slots without a "
                "copy); start it with at least 2 shards and server.copies = 1\n",
                name, shards, tool_json_number(slots, "copies"), tool_json_number(slots, "without_copy"));
        return false;
    }
    kill->shards = (uint32_t)shards;
    /* as srand48: one more in the seed changes the high bits of what is drawn */
    unsigned short state[3] = {0x330e, (unsigned short)seed, (unsigned short)(seed >> 16)};
    kill->delay_us = erand48(state);
    return choose_member(kill, status, 1 + (uint32_t)(nrand48(state) % (shards - 1)));
}

bool failover_kill_choose(struct failover_kill *kill, const struct failover_options *options)
{
    struct tool_target target;
    struct weft_error error = {0};
    tool_target_init(&target);
    if (tool_target_resolve(name, &target, 0, NULL, 0) >= 0) return false;
    char *text = tool_target_status(&target, &error);
    tool_target_free(&target);
    json_t *status = text ? json_loads(text, 0, NULL) : NULL;
    free(text);
    kill->signal = options->how == FAILOVER_STOP ? SIGSTOP : SIGKILL;
    if (!status) fprintf(stderr, "%s: no status of the coordinator: %s\n", name, error.text);
    const bool chosen = status && choose(kill, status, options->seed);
    json_decref(status);
    return chosen;
}

static void *run(void *argument)
{
    struct failover_kill *at = argument;
    nanosleep(
        &(struct timespec){(time_t)(at->delay_us / 1e6), (long)((uint64_t)(at->delay_us * 1e3) % 1000000000)},
        NULL);
    at->killed_us = bench_now_us();
    if (kill(at->pid, at->signal) != 0) at->pid = 0;
    return NULL;
}

bool failover_kill_start(struct failover_kill *kill)
{
    const int error = pthread_create(&kill->thread, NULL, run, kill);
    if (error) fprintf(stderr, "%s: cannot start a thread: %s\n", name, strerror(error));
    return error == 0;
}

void failover_kill_wait(struct failover_kill *kill)
{
    pthread_join(kill->thread, NULL);
}

void failover_kill_end(const struct failover_kill *at)
{
    if (at->pid > 0 && at->signal == SIGSTOP && is_weftd(at->pid)) kill(at->pid, SIGKILL);
}
