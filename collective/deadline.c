/* deadline.c - no operation waits for ever, and the error names whom it waited for.
 *
 * A rank that waits for its neighbour seldom waits for the culprit: in a ring everybody waits for the one
 * before him. So the first rank whose deadline passes asks all others how many operations they have posted,
 * waits a moment for the answers, and gives one verdict that ends the group everywhere:
 *
 *     deadline ─► ASK to all ─► ANSWERs (or half a second) ─► "rank 5 has not called it; rank 9 does not answer"
 *
 * A rank that is asked holds its own question back for two such moments: normally one verdict is enough. An answer also
 * says whom that rank itself waits for, and how far it is, in this operation or, where it has not called that, in its oldest, or else in its oldest of
 * another group: if nobody is late by himself, the verdict follows the waits to their end. So it does for a send or recv, from the rank that has not met it on. All late ranks are named: a few with their hosts, many by their numbers.
 * A rank of whom nobody hears (and there are several) cannot know whether they are gone or it is; it says both. */
#include "collective/internal.h"

#include <inttypes.h>
#include <stdarg.h>
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

static struct weft_coll *late_pair(const struct weft_group *group, uint64_t now_ns)
{
    struct weft_list *node, *spare;
    weft_list_foreach(node, spare, &group->active) {
        struct weft_coll *coll = weft_container_of(node, struct weft_coll, link);
        if (coll->phase == COLL_RUNNING && coll->pairwise && coll->deadline_ns <= now_ns) return coll;
    }
    return NULL;
}

/* ---- who is late ---- */
enum lateness { NOT_LATE, NOT_CALLED, NO_ANSWER };

static enum lateness lateness_of(const struct weft_group *group, const struct weft_coll *coll, uint32_t rank)
{
    const struct note note = roster_noted(group, rank);
    if (rank == group->rank) return NOT_LATE;
    if (!note.answered) return NO_ANSWER;
    return note.answer_posted > coll->sequence ? NOT_LATE : NOT_CALLED;
}

static size_t put(char *out, size_t out_bytes, size_t used, const char *format, ...) __attribute__((format(printf, 4, 5)));
static size_t put(char *out, size_t out_bytes, size_t used, const char *format, ...)
{
    va_list list;
    va_start(list, format);
    int n = used < out_bytes ? vsnprintf(out + used, out_bytes - used, format, list) : 0;
    va_end(list);
    return used + (n > 0 ? (size_t)n : 0);
}

/* A few, by their whole names: "host b does not answer; rank 3 has not called it". */
static void name_few(const struct weft_group *group, const struct weft_coll *coll, char *out, size_t out_bytes)
{
    size_t used = 0;
    for (uint32_t rank = 0; rank < group->ranks; rank++) {
        enum lateness late = lateness_of(group, coll, rank);
        char name[128];
        if (late == NOT_LATE) continue;
        group_describe(group, rank, name, sizeof name);
        used = put(out, out_bytes, used, "%s%.60s %s", used ? "; " : "", name, late == NOT_CALLED ? "has not called it" : "does not answer");
    }
}

/* It has not called this, but waits in an earlier operation: then it is not the one that is late. One of another group
 * need not be what keeps it from calling this: then it is named, and so is the one it waits for. */
static bool waits_before(const struct weft_group *group, const struct weft_coll *coll, uint32_t rank)
{
    return lateness_of(group, coll, rank) == NOT_CALLED && roster_noted(group, rank).answer_peer != GROUP_NOBODY;
}
static bool waits_elsewhere(const struct weft_group *group, const struct weft_coll *coll, uint32_t rank)
{
    return waits_before(group, coll, rank) && roster_noted(group, rank).answer_steps == ANSWER_NOT_THERE;
}

/* Of many late ranks most only wait for an earlier operation: whoever has called the fewest holds them up. */
static size_t name_furthest_behind(const struct weft_group *group, const struct weft_coll *coll, char *out, size_t out_bytes)
{
    uint32_t behind = GROUP_NOBODY, count = 0;
    char name[128];
    for (uint32_t rank = 0; rank < group->ranks; rank++) {
        if (lateness_of(group, coll, rank) != NOT_CALLED) continue;
        uint64_t posted = roster_noted(group, rank).answer_posted, fewest = behind == GROUP_NOBODY ? UINT64_MAX : roster_noted(group, behind).answer_posted;
        if (posted < fewest) behind = rank, count = 0;
        count += posted <= fewest;
    }
    if (behind == GROUP_NOBODY || count > 3) return 0;
    size_t used = put(out, out_bytes, 0, "furthest behind: ");
    for (uint32_t rank = behind, named = 0; named < count; rank++) {
        if (lateness_of(group, coll, rank) != NOT_CALLED || roster_noted(group, rank).answer_posted != roster_noted(group, behind).answer_posted) continue;
        group_describe(group, rank, name, sizeof name);
        used = put(out, out_bytes, used, "%s%.40s", named++ ? ", " : "", name);
    }
    return used;
}

static uint32_t count_late(const struct weft_group *group, const struct weft_coll *coll, enum lateness kind, uint32_t *last_out)
{
    uint32_t count = 0;
    for (uint32_t rank = 0; rank < group->ranks; rank++)
        if (lateness_of(group, coll, rank) == kind) *last_out = rank, count++;
    return count;
}

/* Many, by number: "ranks 3, 7-90 have not called it; ranks 1, 2 and 40 more do not answer"; of one: "rank 3 does not answer". */
static void name_many(const struct weft_group *group, const struct weft_coll *coll, char *out, size_t out_bytes)
{
    size_t used = name_furthest_behind(group, coll, out, out_bytes);
    for (int kind = NOT_CALLED; kind <= NO_ANSWER; kind++) {
        uint32_t listed = 0, more = 0, only;
        if (count_late(group, coll, (enum lateness)kind, &only) == 1) {
            used = put(out, out_bytes, used, "%srank %" PRIu32 " %s", used ? "; " : "", only,
                       kind == NOT_CALLED ? "has not called it" : "does not answer");
            continue;
        }
        size_t room = used + (out_bytes - used) / (kind == NOT_CALLED ? 2 : 1) - 48;
        for (uint32_t rank = 0; rank < group->ranks; rank++) {
            if (lateness_of(group, coll, rank) != (enum lateness)kind) continue;
            uint32_t first = rank;
            while (rank + 1 < group->ranks && lateness_of(group, coll, rank + 1) == (enum lateness)kind) rank++;
            if (used + 24 > room) more += rank - first + 1;
            else if (first == rank) used = put(out, out_bytes, used, "%s%" PRIu32, listed++ ? ", " : used ? "; ranks " : "ranks ", first);
            else used = put(out, out_bytes, used, "%s%" PRIu32 "-%" PRIu32, listed++ ? ", " : used ? "; ranks " : "ranks ", first, rank);
        }
        if (more && listed) used = put(out, out_bytes, used, " and %" PRIu32 " more", more);
        else if (more) used = put(out, out_bytes, used, "%s%" PRIu32 " ranks", used ? "; " : "", more);
        if (listed || more) used = put(out, out_bytes, used, kind == NOT_CALLED ? " have not called it" : " do not answer");
    }
}

/* How far a rank is. */
struct progress {
    uint64_t operation, steps;
};
static bool is_behind(struct progress a, struct progress b) { return a.operation < b.operation || (a.operation == b.operation && a.steps < b.steps); }

/* A rank waits for its neighbour, and he for his: whoever waits for nobody holds all up; where the
 * waits go round (a link that lost something) it is who has done the fewest steps, of the earliest operation, of those that are in the round: others
 * only wait for one of them. `before`: it is what they wait for that have not called this. */
static void name_end_of_waits(const struct weft_group *group, const struct weft_coll *coll, uint32_t from, const char *before, char *out, size_t out_bytes)
{
    const char *phase;
    uint32_t at = from, own_peer;
    if (!coll_waits(coll, &own_peer, &phase)) own_peer = GROUP_NOBODY;
    uint32_t next = at == group->rank ? own_peer : roster_noted(group, at).answer_peer, least = at;
    struct progress fewest = {UINT64_MAX, UINT64_MAX};
    char name[128], other[128];
    for (uint32_t hops = 0; hops <= 2 * group->ranks && next != GROUP_NOBODY; hops++) {
        at = next;
        next = at == group->rank ? own_peer : roster_noted(group, at).answered ? roster_noted(group, at).answer_peer : GROUP_NOBODY;
        const struct note note = roster_noted(group, at);
        const struct progress done = at == group->rank ? (struct progress){coll->sequence, coll->tail} : (struct progress){note.answer_operation, note.answer_steps};
        if (hops >= group->ranks && is_behind(done, fewest)) fewest = done, least = at; /* by now it goes round */
    }
    if (next == GROUP_NOBODY) {
        group_describe(group, at, name, sizeof name);
        snprintf(out, out_bytes, "%s, %s for %.100s", before ? before : "all ranks have called it", before ? "waiting" : "and it waits", name);
        return;
    }
    group_describe(group, least, name, sizeof name);
    group_describe(group, least == group->rank ? own_peer : roster_noted(group, least).answer_peer, other, sizeof other);
    snprintf(out, out_bytes, "%s and wait for each other; %.80s has done the fewest steps and waits for %.80s", before ? before : "all ranks have called it", name, other);
}

static void name_late_ranks(const struct weft_group *group, const struct weft_coll *coll, char *out, size_t out_bytes)
{
    uint32_t late = 0, before = 0, elsewhere = 0, silent = 0, first = GROUP_NOBODY;
    for (uint32_t rank = 0; rank < group->ranks; rank++) {
        const enum lateness lateness = lateness_of(group, coll, rank);
        late += lateness != NOT_LATE;
        silent += lateness == NO_ANSWER;
        if (!waits_before(group, coll, rank)) continue;
        before++;
        elsewhere += waits_elsewhere(group, coll, rank);
        if (first == GROUP_NOBODY || roster_noted(group, rank).answer_posted < roster_noted(group, first).answer_posted) first = rank;
    }
    if (late == 0) {
        name_end_of_waits(group, coll, group->rank, NULL, out, out_bytes);
    } else if (late == before) {
        char who[240];
        if (elsewhere) name_many(group, coll, who, sizeof who);
        else snprintf(who, sizeof who, "%" PRIu32 " %s not called it, being at operation %" PRIu64 " or before it", before, before > 1 ? "ranks have" : "rank has",
                 roster_noted(group, first).answer_posted - 1);
        name_end_of_waits(group, coll, first, who, out, out_bytes);
    } else if (late <= 3) {
        name_few(group, coll, out, out_bytes);
    } else {
        name_many(group, coll, out, out_bytes);
    }
    if (silent >= 2 && silent == group->ranks - 1) {
        char name[128];
        size_t used = strlen(out);
        group_describe(group, group->rank, name, sizeof name);
        put(out, out_bytes, used, "; or it is %.80s that is cut off from all of them", name);
    }
}

/* The oldest operation under way in another group that has waited for half its time: younger ones may be what hides behind a computation. */
struct elsewhere {
    const struct weft_group *group;
    const struct weft_coll *oldest;
};
static void look_elsewhere(void *context, const struct weft_group *group)
{
    struct elsewhere *elsewhere = context;
    const struct weft_coll *coll = group != elsewhere->group && group->fail_status == WEFT_OK ? oldest_running(group) : NULL;
    if (!coll || weft_now_ns(group->env) < coll->posted_ns + (coll->deadline_ns - coll->posted_ns) / 2) return;
    if (!elsewhere->oldest || coll->posted_ns < elsewhere->oldest->posted_ns) elsewhere->oldest = coll;
}

/* Whom this rank waits for there, as a rank of `group`; GROUP_NOBODY: it is not in it. */
static uint32_t awaited_elsewhere(const struct weft_group *group)
{
    struct elsewhere elsewhere = {group, NULL};
    const char *phase;
    uint32_t awaited;
    news_each_group(group, look_elsewhere, &elsewhere);
    if (!elsewhere.oldest || !coll_waits(elsewhere.oldest, &awaited, &phase)) return GROUP_NOBODY;
    const struct weft_peer *peer = elsewhere.oldest->group->roster->peers[awaited];
    for (uint32_t rank = 0; peer && rank < group->ranks; rank++)
        if (group->roster->peers[rank] && weft_peer_id(group->roster->peers[rank]) == weft_peer_id(peer)) return rank;
    return GROUP_NOBODY;
}

void deadline_answer(const struct weft_group *group, uint64_t sequence, struct coll_header *header)
{
    const struct weft_coll *found = NULL;
    struct weft_list *node, *spare;
    weft_list_foreach(node, spare, &group->active) {
        const struct weft_coll *coll = weft_container_of(node, struct weft_coll, link);
        if (coll->sequence == sequence && !coll->pairwise) found = coll;
    }
    if (!found && sequence >= group->sequence) found = oldest_running(group); /* not called yet, perhaps because of that one */
    const char *phase;
    uint32_t awaited;
    if (found) header->root = coll_waits(found, &awaited, &phase) ? awaited : GROUP_NOBODY;
    else header->root = sequence >= group->sequence ? awaited_elsewhere(group) : GROUP_NOBODY;
    header->chunk = found ? found->sequence : sequence;
    header->lanes = !found ? ANSWER_NOT_THERE : found->tail < UINT32_MAX ? (uint32_t)found->tail : UINT32_MAX - 1; /* not there: it is over */
}

/* ---- the verdict ---- */
static void verdict(struct weft_group *group, const struct weft_coll *coll)
{
    char late[360], call[COLL_CALL_BYTES];
    const char *phase;
    uint32_t awaited;
    coll_waits(coll, &awaited, &phase);
    name_late_ranks(group, coll, late, sizeof late);
    group_describe_call(group, &coll->header, call, sizeof call);
    uint64_t waited_ms = weft_since_ns(coll->posted_ns, weft_now_ns(group->env)) / 1000000;
    group_end(group, WEFT_ERR_DEADLINE, true, "operation %" PRIu64 " (%s) waited %" PRIu64 ".%03" PRIu64 " s, phase %s: %s",
              coll->sequence, call, waited_ms / 1000, waited_ms % 1000, phase, late);
}

/* A send or recv waits for one rank, which may itself wait in an operation of all, and so may whom it waits for: to their end. */
static uint32_t end_of_waits_before(const struct weft_group *group, uint32_t rank)
{
    for (uint32_t hops = 0; hops < group->ranks; hops++) {
        const struct note note = roster_noted(group, rank);
        if (rank == group->rank || !note.answered || note.answer_peer == GROUP_NOBODY) break;
        rank = note.answer_peer;
    }
    return rank;
}

static void pair_verdict(struct weft_group *group, const struct weft_coll *coll)
{
    const uint32_t other = coll->args.root, end = end_of_waits_before(group, other);
    const struct note note = roster_noted(group, other);
    char name[128], last[128], call[COLL_CALL_BYTES], why[240];
    group_describe(group, other, name, sizeof name);
    group_describe(group, end, last, sizeof last);
    group_describe_call(group, &coll->header, call, sizeof call);
    if (!note.answered) snprintf(why, sizeof why, "does not answer");
    else if (end == other) snprintf(why, sizeof why, "has not met it");
    else if (note.answer_steps == ANSWER_NOT_THERE || note.answer_posted == 0) snprintf(why, sizeof why, "has not met it, and waits for %.100s in an operation of another group", last);
    else snprintf(why, sizeof why, "has not met it, being at operation %" PRIu64 " or before it, where it waits for %.100s", note.answer_posted - 1, last);
    uint64_t waited_ms = weft_since_ns(coll->posted_ns, weft_now_ns(group->env)) / 1000000;
    group_end(group, WEFT_ERR_DEADLINE, true, "a %s (%s) waited %" PRIu64 ".%03" PRIu64 " s for %.100s, which %s",
              weft_coll_kind_name(coll->args.kind), call, waited_ms / 1000, waited_ms % 1000, name, why);
}

/* Of a pair: for the operation of all that this rank would call next, so that whoever waits in one that this one has called says so. */
static void ask(struct weft_group *group, const struct weft_coll *coll, uint64_t now_ns)
{
    group->verdict = VERDICT_ASKING;
    group->verdict_pairwise = coll->pairwise;
    group->verdict_sequence = coll->pairwise ? group->sequence : coll->sequence;
    group->verdict_until_ns = now_ns + GROUP_ASK_NS;
    for (uint32_t rank = 0; group->notes && rank < group->ranks; rank++) group->notes[rank].answered = false;
    control_send_all(&group->ask, group, COLL_MESSAGE_ASK, group->verdict_sequence, WEFT_OK);
}

void deadline_asked(struct weft_group *group, uint64_t sequence)
{
    if (group->verdict != VERDICT_NONE || group->fail_status < 0) return;
    group->verdict = VERDICT_LISTENING;
    group->verdict_sequence = sequence;
    group->verdict_until_ns = weft_now_ns(group->env) + 2 * GROUP_ASK_NS;
}

/* UNTRUSTED: the rank that answers is known, what it says of others may be anything. Without memory to note it, it counts as silent. */
void deadline_answered(struct weft_group *group, uint32_t rank, const struct coll_header *header)
{
    if (group->verdict != VERDICT_ASKING || header->sequence != group->verdict_sequence) return;
    struct note *note = roster_note(group, rank);
    if (!note) return;
    note->answered = true;
    note->answer_posted = header->count;
    note->answer_peer = header->root < group->ranks ? header->root : GROUP_NOBODY;
    note->answer_operation = header->chunk;
    note->answer_steps = header->lanes;
    for (uint32_t other = 0; other < group->ranks; other++)
        if (other != group->rank && !group->notes[other].answered) return;
    group->verdict_until_ns = weft_now_ns(group->env); /* all heard: no need to wait longer */
    group_kick(group);
}

static void warn(struct weft_group *group, struct weft_coll *coll)
{
    const char *phase;
    uint32_t awaited;
    char name[128] = "nobody", call[COLL_CALL_BYTES], title[48];
    if (coll_waits(coll, &awaited, &phase)) group_describe(group, awaited, name, sizeof name);
    group_describe_call(group, &coll->header, call, sizeof call);
    coll->warned = true;
    weft_log(group->env, WEFT_LOG_WARN, "collective", "group %u rank %u: %s (%s) waits for %s since %" PRIu64 " s, phase %s",
             group->group_id, group->rank, coll_title(coll, coll->sequence, title), call, name, (uint64_t)(GROUP_WARN_NS / WEFT_SECONDS(1)), phase);
}

/* When this rank asks. Ranks that post together expire together: a little later by rank, and the first one's question
 * finds the others still listening. */
static uint64_t due_ns(const struct weft_coll *coll)
{
    uint64_t rank = coll->group->rank, later_ns = rank < 20000 ? rank * 10000 : WEFT_MS(200);
    return weft_later_ns(coll->deadline_ns, later_ns);
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
        const bool asked = group->verdict == VERDICT_ASKING, pairwise = asked && group->verdict_pairwise;
        struct weft_coll *coll = pairwise ? late_pair(group, now_ns) : oldest_running(group);
        group->verdict = VERDICT_NONE;
        if (pairwise && coll) {
            pair_verdict(group, coll);
            return now_ns + GROUP_GRACE_NS;
        }
        if (asked && !pairwise && coll && coll->sequence <= group->verdict_sequence && coll->deadline_ns <= now_ns) {
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
        if (now_ns >= due_ns(coll)) {
            ask(group, coll, now_ns);
            return group->verdict_until_ns;
        }
        if (due_ns(coll) < next_ns) next_ns = due_ns(coll);
    }
    return next_ns;
}
