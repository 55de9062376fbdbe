/* diagnose.c - finds the culprits (stragglers) of each group from the flight records of a job's ranks.
 *
 * The operation in question is the first that ranks called differently, or else the oldest that has not
 * succeeded on every rank. Its culprits are, in this order of evidence,
 *
 *   1. ranks without a record (killed, stopped, or still running), while other ranks wait
 *   2. ranks whose last operation is an earlier one: they have not called it
 *   3. if all have called it: the ranks at the end of the waits. A rank waits for its peer, the peer for its
 *      own peer; a rank that waits for none (it reduces, or has not begun) is the culprit. If the waits form
 *      a cycle, the culprit is the rank with the fewest completed steps. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/inspect/inspect.h"

const char *diagnosis_state_name(enum diagnosis_state state)
{
    static const char *const names[] = {"done", "waiting", "failed", "not called", "unknown"};
    return names[state];
}

static bool ended_well(const struct flight_operation *o)
{
    return strcmp(o->status, "WEFT_OK") == 0;
}
static bool is_open(const struct flight_operation *o)
{
    return strcmp(o->status, "WEFT_IN_PROGRESS") == 0;
}
static bool is_in_group(const struct flight_operation *o, const struct diagnosis_group *g)
{
    return o->group == g->group && o->epoch == g->epoch && o->members == g->digest;
}

/* ---- groups and their members ---- */

static int by_rank(const void *a, const void *b)
{
    const struct diagnosis_member *x = a, *y = b;
    return x->rank < y->rank ? -1 : x->rank > y->rank;
}

static int by_number(const void *a, const void *b)
{
    const struct diagnosis_group *x = a, *y = b;
    if (x->group != y->group) return x->group < y->group ? -1 : 1;
    if (x->epoch != y->epoch) return x->epoch < y->epoch ? -1 : 1;
    return x->digest < y->digest ? -1 : x->digest > y->digest;
}

static struct diagnosis_group *group_of(struct diagnosis *diagnosis, const struct flight_operation *o,
                                        uint32_t *capacity)
{
    for (uint32_t i = diagnosis->group_count; i-- > 0;)
        if (is_in_group(o, &diagnosis->groups[i])) return &diagnosis->groups[i];
    if (diagnosis->group_count == DIAGNOSIS_GROUPS_MAX) return NULL;
    if (diagnosis->group_count == *capacity) {
        *capacity = *capacity ? 2 * *capacity : 8;
        struct diagnosis_group *more = realloc(diagnosis->groups, *capacity * sizeof *more);
        if (!more) return NULL;
        diagnosis->groups = more;
    }
    struct diagnosis_group *group = &diagnosis->groups[diagnosis->group_count++];
    *group = (struct diagnosis_group){
        .group = o->group, .epoch = o->epoch, .digest = o->members, .ranks = o->ranks};
    return group;
}

/* Adds the flight as a member of the group, or updates the newest operation of the member. */
static bool add_operation(struct diagnosis_group *group, const struct flight *flight,
                          const struct flight_operation *o)
{
    struct diagnosis_member *last = group->member_count ? &group->members[group->member_count - 1] : NULL;
    if (!last || last->flight != flight) {
        uint32_t count = group->member_count;
        if ((count & (count - 1)) == 0) {
            struct diagnosis_member *more = realloc(group->members, (count ? 2 * count : 1) * sizeof *more);
            if (!more) return false;
            group->members = more;
        }
        last = &group->members[group->member_count++];
        *last = (struct diagnosis_member){.flight = flight, .rank = o->rank, .operation = o};
    }
    if (o->sequence >= last->operation->sequence) last->operation = o;
    if (o->sequence + 1 > last->called_count) last->called_count = o->sequence + 1;
    if (o->ranks > group->ranks) group->ranks = o->ranks;
    return true;
}

/* If two files claim one rank, the first is used. */
static void drop_duplicates(struct diagnosis_group *group)
{
    uint32_t kept = 0;
    qsort(group->members, group->member_count, sizeof *group->members, by_rank);
    for (uint32_t i = 0; i < group->member_count; i++)
        if (kept == 0 || group->members[kept - 1].rank != group->members[i].rank)
            group->members[kept++] = group->members[i];
    group->member_count = kept;
}

static struct diagnosis_member *member_of(const struct diagnosis_group *group, uint32_t rank)
{
    uint32_t low = 0, high = group->member_count;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (group->members[middle].rank < rank) low = middle + 1;
        else high = middle;
    }
    return low < group->member_count && group->members[low].rank == rank ? &group->members[low] : NULL;
}

static const struct flight_operation *find(const struct diagnosis_group *group,
                                           const struct diagnosis_member *member, uint64_t sequence)
{
    for (uint32_t i = member->flight->operation_count; i-- > 0;) {
        const struct flight_operation *o = &member->flight->operations[i];
        if (o->sequence == sequence && is_in_group(o, group)) return o;
    }
    return NULL;
}

/* ---- lists of ranks ---- */

/* A text such as "ranks 0-4, 7 and 12 more", built range by range. */
struct ranges {
    char text[400];
    size_t used;
    uint32_t count, left_off, first, last; /* [first, last]: the range not yet written */
};

static void write_range(struct ranges *ranges)
{
    char range[32];
    const char *comma = ranges->used ? ", " : "";
    if (ranges->first == ranges->last) snprintf(range, sizeof range, "%s%" PRIu32, comma, ranges->first);
    else snprintf(range, sizeof range, "%s%" PRIu32 "-%" PRIu32, comma, ranges->first, ranges->last);
    size_t bytes = strlen(range);
    if (ranges->used + bytes < sizeof ranges->text)
        memcpy(ranges->text + ranges->used, range, bytes + 1), ranges->used += bytes;
    else ranges->left_off += ranges->last - ranges->first + 1;
}

/* Ranges are added in rising order. */
static void add_range(struct ranges *ranges, uint32_t first, uint32_t last)
{
    if (ranges->count > 0 && first == ranges->last + 1) {
        ranges->last = last;
    } else {
        if (ranges->count > 0) write_range(ranges);
        ranges->first = first, ranges->last = last;
    }
    ranges->count += last - first + 1;
}

static uint32_t end_ranges(struct ranges *ranges, char *out, size_t out_bytes)
{
    if (ranges->count > 0) write_range(ranges);
    int n = snprintf(out, out_bytes, "rank%s %s", ranges->count == 1 ? "" : "s", ranges->text);
    if (ranges->left_off && n > 0 && (size_t)n < out_bytes)
        snprintf(out + n, out_bytes - (size_t)n, " and %" PRIu32 " more", ranges->left_off);
    return ranges->count;
}

static bool has_called(const struct diagnosis_member *member)
{
    return member->state != DIAGNOSIS_NOT_CALLED && member->state != DIAGNOSIS_UNKNOWN;
}
static bool has_not_called(const struct diagnosis_member *member, const struct flight_call *call)
{
    return member->state == DIAGNOSIS_NOT_CALLED;
}
static bool is_culprit_member(const struct diagnosis_member *member, const struct flight_call *call)
{
    return member->is_culprit;
}
static bool has_called_with(const struct diagnosis_member *member, const struct flight_call *call)
{
    return has_called(member) && flight_call_equal(&member->operation->call, call);
}

/* Writes the members for which `is` holds; returns their number. */
static uint32_t list_ranks(const struct diagnosis_group *group,
                           bool (*is)(const struct diagnosis_member *, const struct flight_call *),
                           const struct flight_call *call, char *out, size_t out_bytes)
{
    struct ranges ranges = {0};
    for (uint32_t m = 0; m < group->member_count; m++)
        if (is(&group->members[m], call)) add_range(&ranges, group->members[m].rank, group->members[m].rank);
    return end_ranges(&ranges, out, out_bytes);
}

uint32_t diagnosis_list_missing(const struct diagnosis_group *group, char *out, size_t out_bytes)
{
    struct ranges ranges = {0};
    uint32_t next = 0;
    for (uint32_t m = 0; m < group->member_count; next = group->members[m++].rank + 1)
        if (group->members[m].rank > next) add_range(&ranges, next, group->members[m].rank - 1);
    if (next < group->ranks) add_range(&ranges, next, group->ranks - 1);
    return end_ranges(&ranges, out, out_bytes);
}

/* ---- the operation in question ---- */

/* Finds the oldest operation that has not succeeded on some rank. False: all have succeeded. */
static bool find_oldest_unfinished(struct diagnosis_group *group)
{
    bool found = false;
    for (uint32_t m = 0; m < group->member_count; m++) {
        const struct flight *flight = group->members[m].flight;
        for (uint32_t i = 0; i < flight->operation_count; i++) {
            const struct flight_operation *o = &flight->operations[i];
            if (!is_in_group(o, group) || o->sequence == FLIGHT_NO_SEQUENCE || ended_well(o) ||
                strcmp(o->status, "WEFT_ERR_CANCELLED") == 0)
                continue;
            if (!found || o->sequence < group->sequence) group->sequence = o->sequence;
            found = true;
        }
    }
    return found;
}

/* Finds the record of each rank of the operation in question, and the call that most ranks made. */
static void select_operation(struct diagnosis_group *group)
{
    uint32_t most = 0;
    for (uint32_t m = 0; m < group->member_count; m++) {
        struct diagnosis_member *member = &group->members[m];
        const struct flight_operation *o = find(group, member, group->sequence);
        member->state = o                                         ? (ended_well(o) ? DIAGNOSIS_DONE
                                                                     : is_open(o)  ? DIAGNOSIS_WAITING
                                                                                   : DIAGNOSIS_FAILED)
                        : member->called_count <= group->sequence ? DIAGNOSIS_NOT_CALLED
                                                                  : DIAGNOSIS_UNKNOWN;
        if (o) member->operation = o;
    }
    /* The most frequent call. Only the first 8 different calls are counted. */
    const struct flight_call *seen[8];
    uint32_t voices[8] = {0}, kinds = 0;
    for (uint32_t m = 0; m < group->member_count; m++) {
        const struct diagnosis_member *member = &group->members[m];
        if (!has_called(member)) continue;
        uint32_t k = 0;
        while (k < kinds && !flight_call_equal(seen[k], &member->operation->call)) k++;
        if (k == kinds && kinds < 8) seen[kinds++] = &member->operation->call;
        if (k < 8) voices[k]++;
    }
    for (uint32_t k = 0; k < kinds; k++)
        if (voices[k] > most) most = voices[k], group->call = *seen[k];
    for (uint32_t m = 0; m < group->member_count; m++) {
        struct diagnosis_member *member = &group->members[m];
        member->is_mismatched =
            has_called(member) && !flight_call_equal(&group->call, &member->operation->call);
        group->mismatch |= member->is_mismatched;
    }
}

/* ---- culprits ---- */

/* Follows the waits from each waiting rank and marks the ranks at their ends. Returns whether any end was
 * found. */
static bool follow_waits(struct diagnosis_group *group)
{
    bool found = false;
    for (uint32_t m = 0; m < group->member_count; m++) {
        struct diagnosis_member *member = &group->members[m];
        uint32_t hops = 0;
        if (member->state == DIAGNOSIS_DONE) continue;
        while (member && member->state != DIAGNOSIS_DONE && member->operation->peer != FLIGHT_NO_PEER &&
               hops++ <= group->member_count)
            member = member_of(group, member->operation->peer);
        if (!member || member->state == DIAGNOSIS_DONE || member->operation->peer != FLIGHT_NO_PEER) continue;
        member->is_culprit = found = true;
    }
    return found;
}

static void mark_fewest_steps(struct diagnosis_group *group)
{
    uint64_t fewest = UINT64_MAX;
    for (uint32_t m = 0; m < group->member_count; m++)
        if (group->members[m].state != DIAGNOSIS_DONE && group->members[m].operation->steps < fewest)
            fewest = group->members[m].operation->steps;
    for (uint32_t m = 0; m < group->member_count; m++)
        group->members[m].is_culprit |=
            group->members[m].state != DIAGNOSIS_DONE && group->members[m].operation->steps == fewest;
}

static void diagnose_mismatch(struct diagnosis_group *group)
{
    char names[400], call[160];
    size_t used = (size_t)snprintf(group->diagnosis_text, sizeof group->diagnosis_text, "calls differ: ");
    for (uint32_t m = 0; m < group->member_count; m++) {
        struct diagnosis_member *member = &group->members[m];
        member->is_culprit = member->is_mismatched;
        bool is_listed = !member->is_mismatched;
        for (uint32_t e = 0; e < m && !is_listed; e++)
            is_listed = has_called_with(&group->members[e], &member->operation->call);
        /* the text has space for no further call */
        if (is_listed || used + 300 > sizeof group->diagnosis_text) continue;
        list_ranks(group, has_called_with, &member->operation->call, names, sizeof names);
        flight_call_text(&member->operation->call, call, sizeof call);
        used += (size_t)snprintf(group->diagnosis_text + used, sizeof group->diagnosis_text - used,
                                 "%.100s called %.80s, ", names, call);
    }
    list_ranks(group, has_called_with, &group->call, names, sizeof names);
    flight_call_text(&group->call, call, sizeof call);
    snprintf(group->diagnosis_text + used, sizeof group->diagnosis_text - used, "%.100s called %.80s", names,
             call);
}

static void diagnose_lateness(struct diagnosis_group *group)
{
    char names[480];
    size_t used = 0;
    if (diagnosis_list_missing(group, names, sizeof names) > 0)
        used += (size_t)snprintf(group->diagnosis_text, sizeof group->diagnosis_text,
                                 "%.400s left no record: killed, stopped, or still running", names);
    uint32_t uncalled = list_ranks(group, has_not_called, NULL, names, sizeof names);
    if (uncalled > 0)
        snprintf(group->diagnosis_text + used, sizeof group->diagnosis_text - used,
                 "%s%.400s %s not called it", used ? "; " : "", names, uncalled == 1 ? "has" : "have");
    for (uint32_t m = 0; m < group->member_count; m++)
        group->members[m].is_culprit = group->members[m].state == DIAGNOSIS_NOT_CALLED;
    if (used > 0 || uncalled > 0) return;
    bool end = follow_waits(group);
    if (!end) mark_fewest_steps(group);
    list_ranks(group, is_culprit_member, NULL, names, sizeof names);
    snprintf(group->diagnosis_text, sizeof group->diagnosis_text,
             end ? "all have called it, and the waits lead to %.400s"
                 : "all have called it and wait for each other; %.400s has done the fewest steps",
             names);
}

static void diagnose_group(struct diagnosis_group *group)
{
    drop_duplicates(group);
    group->has_unfinished = find_oldest_unfinished(group);
    if (!group->has_unfinished) return;
    select_operation(group);
    if (group->mismatch) diagnose_mismatch(group);
    else diagnose_lateness(group);
}

bool diagnose_flights(const struct flight *flights, uint32_t count, struct diagnosis *diagnosis_out)
{
    uint32_t capacity = 0;
    memset(diagnosis_out, 0, sizeof *diagnosis_out);
    for (uint32_t f = 0; f < count; f++) {
        for (uint32_t i = 0; i < flights[f].operation_count; i++) {
            if (flights[f].operations[i].sequence == FLIGHT_NO_SEQUENCE) continue;
            struct diagnosis_group *group = group_of(diagnosis_out, &flights[f].operations[i], &capacity);
            if (group && add_operation(group, &flights[f], &flights[f].operations[i])) continue;
            diagnosis_free(diagnosis_out);
            return false;
        }
    }
    if (diagnosis_out->group_count > 0)
        qsort(diagnosis_out->groups, diagnosis_out->group_count, sizeof *diagnosis_out->groups, by_number);
    for (uint32_t g = 0; g < diagnosis_out->group_count; g++) diagnose_group(&diagnosis_out->groups[g]);
    return true;
}

void diagnosis_free(struct diagnosis *diagnosis)
{
    for (uint32_t g = 0; g < diagnosis->group_count; g++) free(diagnosis->groups[g].members);
    free(diagnosis->groups);
    *diagnosis = (struct diagnosis){0};
}
