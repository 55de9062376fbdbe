/* run_launcher.c - detects whether a launcher started this `weft run` as one of several processes.
 *
 *     WEFT_COORDINATOR, WEFT_RANK of another job      refused: this would start a second job
 *     variables of a launcher, incomplete or wrong    refused: every process would train alone
 *     WEFT_RANKS or an index without the other        the same
 *     variables of a launcher                         one worker here; refused with shards
 *     none of these                                   a job of its own
 *
 * With -n, `weft run` always starts a job of its own. */
#include <stdio.h>
#include <stdlib.h>

#include "tools/common.h"
#include "tools/run/run.h"

/* Refuses `weft run` without -n inside an existing job. */
static bool in_another_job(void)
{
    const char *const names[] = {"WEFT_COORDINATOR", "WEFT_RANK"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        const char *value = getenv(names[i]);
        if (!value || !*value) continue;
        tool_usage_error("weft run",
                         "%s=%.60s is set, so this process belongs to a job that exists, and weft run would "
                         "start another one; "
                         "start the trainer without weft run, or unset %s, or give -n",
                         names[i], value, names[i]);
        return true;
    }
    return false;
}

/* Refuses `weft run` without -n where a launcher may have started several processes, but not all of its
 * variables are set: each process would train alone. */
static bool in_half_a_launcher(void)
{
    const char *const names[] = {"WEFT_RANKS", "WEFT_HEADLESS_SERVICE", "JOB_COMPLETION_INDEX"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        const char *value = getenv(names[i]);
        if (!value || !*value) continue;
        tool_usage_error("weft run",
                         "%s=%.60s is set, and the rank of this process or the number of ranks is not; set "
                         "WEFT_RANKS and the rank (JOB_COMPLETION_INDEX, or the variables of a launcher) in "
                         "every process, or unset %s; with -n a job of its own is started here",
                         names[i], value, names[i]);
        return true;
    }
    return false;
}

/* Warns if several processes of one launcher each start a job of their own. */
static void warn_of_many_jobs(uint64_t workers)
{
    struct weft_launcher launcher;
    if (weft_launcher_find(false, &launcher, NULL) == WEFT_OK && launcher.ranks > 1)
        fprintf(stderr,
                "weft run: %s started %u processes of this command, and with -n each of them starts a job of "
                "%llu workers\n",
                launcher.name, launcher.ranks, (unsigned long long)workers);
}

int run_find_launcher(uint64_t workers, uint64_t shards, struct weft_launcher *launcher)
{
    struct weft_error error = {0};
    launcher->name = NULL;
    if (workers > 0) return warn_of_many_jobs(workers), -1;
    if (in_another_job()) return TOOL_USAGE;
    enum weft_status status = weft_launcher_find(false, launcher, &error);
    if (status == WEFT_ERR_NOT_FOUND) return in_half_a_launcher() ? TOOL_USAGE : -1;
    if (status < 0)
        return tool_usage_error("weft run", "%s; with -n a job of its own is started here", error.text);
    if (launcher->ranks == 1 && shards > 0)
        return launcher->name = NULL, -1; /* the only process: it may start a whole job */
    if (shards > 0)
        return tool_usage_error("weft run",
                                "%s started %u processes of this command, and -s would start a job with "
                                "shards in each; start the shards "
                                "by hand (weftd), or give -n in one process",
                                launcher->name, launcher->ranks);
    if (launcher->ranks == 0)
        return tool_usage_error("weft run",
                                "%s started this process as rank %u, and its variables do not contain the "
                                "number of processes; set RANK, "
                                "WORLD_SIZE, MASTER_ADDR and MASTER_PORT in every process, or give -n",
                                launcher->name, launcher->rank);
    if (!launcher->coordinator[0])
        return tool_usage_error("weft run",
                                "%s started this process as rank %u of %u, and its variables do not contain "
                                "the host of rank 0; set "
                                "MASTER_ADDR and MASTER_PORT in every process, or give -n",
                                launcher->name, launcher->rank, launcher->ranks);
    return -1;
}
