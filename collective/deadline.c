/* deadline.c - no operation waits for ever, and the error names whom it waited for.
 *
 * A rank that waits for its neighbour seldom waits for the culprit: in a ring everybody waits for the one
 * before him. So the first rank whose deadline passes asks all others how many operations they have posted,
 * waits a moment for the answers, and gives one verdict that ends the group everywhere:
 *
 *     deadline ─► ASK to all ─► ANSWERs (or half a second) ─► "rank 5 has not called it; rank 9 does not answer"
 *
 * A rank that is asked holds its own question back for two such moments: normally one verdict is enough.
 * If nobody is late in posting, the verdict names the peer the oldest step waits for. */
#include "collective/internal.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static struct weft_coll *oldest_running(const struct weft_group *group)
{
    struct weft_list *node, *spare;
    weft_list_foreach(node, spare, &group->active) {
        struct weft_coll *coll = weft_container_of(node, struct weft_coll, link);
        if (coll->phase == COLL_RUNNING && !coll->pairwise) return coll;
    }
    return NULL;
}

/* "host b does not answer; rank 3 has not called it": up to four ranks, then a count. */
static void name_late_ranks(const struct weft_group *group, const struct weft_coll *coll, char *out, size_t out_bytes)
{
    size_t used = 0;
    uint32_t named = 0, more = 0;
    out[0] = 0;
    for (uint32_t rank = 0; rank < group->ranks; rank++) {
        const struct control *control = &group->controls[rank];
        if (rank == group->rank || (control->answered && control->answer_posted > coll->sequence)) continue;
        if (named == 3 || used + 96 > out_bytes) {
            more++;
            continue;
        }
        char name[128];
        group_describe(group, rank, name, sizeof name);
        int n = snprintf(out + used, out_bytes - used, "%s%.60s %s", named ? "; " : "", name,
                         control->answered ? "has not called it" : "does not answer");
        used += (size_t)n;
        named++;
    }
    if (more) snprintf(out + used, out_bytes - used, "; and %u more", more);
    if (named) return;
    const char *phase;
    uint32_t awaited;
    char name[128] = "nobody";
    if (coll_waits(coll, &awaited, &phase)) group_describe(group, awaited, name, sizeof name);
    snprintf(out, out_bytes, "all ranks have called it, and it waits for %.100s", name);
}

static void verdict(struct weft_group *group, const struct weft_coll *coll)
{
    char late[280], call[128];
    const char *phase;
    uint32_t awaited;
    coll_waits(coll, &awaited, &phase);
    name_late_ranks(group, coll, late, sizeof late);
    coll_header_describe(&coll->header, call, sizeof call);
    uint64_t waited_ms = (weft_now_ns(group->env) - coll->posted_ns) / 1000000;
    group_end(group, WEFT_ERR_DEADLINE, true, "operation %" PRIu64 " (%s) waited %" PRIu64 ".%03" PRIu64 " s, phase %s: %s",
              coll->sequence, call, waited_ms / 1000, waited_ms % 1000, phase, late);
}

/* A send or recv waits for one rank only: nobody else needs to be asked. */
static void pair_verdict(struct weft_group *group, const struct weft_coll *coll)
{
    char name[128], call[128];
    group_describe(group, coll->args.root, name, sizeof name);
    coll_header_describe(&coll->header, call, sizeof call);
    uint64_t waited_ms = (weft_now_ns(group->env) - coll->posted_ns) / 1000000;
    group_end(group, WEFT_ERR_DEADLINE, true, "a %s (%s) waited %" PRIu64 ".%03" PRIu64 " s for %.100s, which has not met it",
              weft_coll_kind_name(coll->args.kind), call, waited_ms / 1000, waited_ms % 1000, name);
}

static void ask(struct weft_group *group, const struct weft_coll *coll, uint64_t now_ns)
{
    group->verdict = VERDICT_ASKING;
    group->verdict_sequence = coll->sequence;
    group->verdict_until_ns = now_ns + GROUP_ASK_NS;
    for (uint32_t rank = 0; rank < group->ranks; rank++) group->controls[rank].answered = false;
    control_send_all(&group->ask, group, COLL_MESSAGE_ASK, coll->sequence, WEFT_OK, NULL, 0);
}

void deadline_asked(struct weft_group *group, uint64_t sequence)
{
    if (group->verdict != VERDICT_NONE || group->fail_status < 0) return;
    group->verdict = VERDICT_LISTENING;
    group->verdict_sequence = sequence;
    group->verdict_until_ns = weft_now_ns(group->env) + 2 * GROUP_ASK_NS;
}

void deadline_answered(struct weft_group *group)
{
    for (uint32_t rank = 0; rank < group->ranks; rank++)
        if (rank != group->rank && !group->controls[rank].answered) return;
    group->verdict_until_ns = weft_now_ns(group->env); /* all heard: no need to wait longer */
    group_kick(group);
}

static void warn(struct weft_group *group, struct weft_coll *coll)
{
    const char *phase;
    uint32_t awaited;
    char name[128] = "nobody", call[128];
    if (coll_waits(coll, &awaited, &phase)) group_describe(group, awaited, name, sizeof name);
    coll_header_describe(&coll->header, call, sizeof call);
    coll->warned = true;
    weft_log(group->env, WEFT_LOG_WARN, "collective", "group %u rank %u: operation %" PRIu64 " (%s) waits for %s since %" PRIu64 " s, phase %s",
             group->group_id, group->rank, coll->sequence, call, name, (uint64_t)(GROUP_WARN_NS / WEFT_SECONDS(1)), phase);
}

uint64_t deadline_check(struct weft_group *group, uint64_t now_ns)
{
    if (group->lost) {
        if (now_ns < group->lost_until_ns) return group->lost_until_ns;
        control_end_lost(group);
        return now_ns + GROUP_GRACE_NS;
    }
    if (group->verdict != VERDICT_NONE) {
        if (now_ns < group->verdict_until_ns) return group->verdict_until_ns;
        struct weft_coll *coll = oldest_running(group);
        bool asked = group->verdict == VERDICT_ASKING;
        group->verdict = VERDICT_NONE;
        if (asked && coll && coll->sequence <= group->verdict_sequence && coll->deadline_ns <= now_ns) {
            verdict(group, coll);
            return now_ns + GROUP_GRACE_NS;
        }
    }
    uint64_t next_ns = WEFT_NEVER;
    struct weft_list *node, *spare;
    weft_list_foreach(node, spare, &group->active) {
        struct weft_coll *coll = weft_container_of(node, struct weft_coll, link);
        if (coll->phase != COLL_RUNNING) continue;
        if (!coll->warned && now_ns >= coll->posted_ns + GROUP_WARN_NS) warn(group, coll); /* it may be younger than now_ns */
        if (now_ns >= coll->deadline_ns && coll->pairwise) {
            pair_verdict(group, coll);
            return now_ns + GROUP_GRACE_NS;
        }
        if (now_ns >= coll->deadline_ns) {
            ask(group, coll, now_ns);
            return group->verdict_until_ns;
        }
        if (coll->deadline_ns < next_ns) next_ns = coll->deadline_ns;
    }
    return next_ns;
}
