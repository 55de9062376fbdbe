/* progress.c - age of the oldest open operation, usual time of operations, and the rank that it waits for.
 * The net thread reads them while the engine works or hangs.
 *
 *     flight recorder, last RECORDS    collectives: age, duration, awaited rank
 *     counters of requests             requests without a record (tensors through shards): time since the
 *                                      last change
 *
 * An operation is stalled if it is open for longer than TIMES the usual time and than a floor. The floor is
 * higher before the first operation has ended: workers that load their data start at different times. */
#include "client/engine/progress.h"

#include <stdio.h>

#include "client/engine/engine.h"
#include "client/engine/group.h"
#include "client/session/session.h"
#include "collective/flight_recorder.h"

#define RECORDS 64u
#define TIMES 3u
#define FLOOR_NS WEFT_SECONDS(2)
#define FIRST_FLOOR_NS WEFT_SECONDS(10)
#define SAMPLE_NS_MAX WEFT_MS(1500)
#define USUAL_FALL 1024u /* a sample lowers the usual time by this part */

struct found {
    struct weft_record oldest; /* the oldest open record; posted_ns 0: none is open */
    uint64_t longest_ns;       /* duration of an ended one */
};

static void take_record(const struct weft_record *record, struct found *found)
{
    const bool is_open = record->status == WEFT_IN_PROGRESS && record->ended_ns == 0;
    if (is_open && (found->oldest.posted_ns == 0 || record->posted_ns < found->oldest.posted_ns))
        found->oldest = *record;
    const uint64_t took_ns = is_open ? 0 : weft_elapsed_ns(record->posted_ns, record->ended_ns);
    if (took_ns > found->longest_ns) found->longest_ns = took_ns;
}

static uint64_t read_records(struct weft_recorder *recorder, struct found *found)
{
    const uint64_t count = recorder ? weft_recorder_count(recorder) : 0;
    for (uint64_t i = count > RECORDS ? count - RECORDS : 0; i < count; i++) {
        struct weft_record record;
        if (weft_recorder_read(recorder, i, &record)) take_record(&record, found);
    }
    return count;
}

static void learn_usual(struct client_progress *progress, uint64_t took_ns)
{
    progress->usual_ns -= progress->usual_ns / USUAL_FALL;
    if (took_ns > progress->usual_ns) progress->usual_ns = took_ns;
}

/* Samples are a second apart: a shorter time is not measured. */
static uint64_t time_of_requests(const struct client_progress *progress, uint64_t now_ns)
{
    const uint64_t gap_ns = weft_elapsed_ns(progress->moved_ns, now_ns);
    return gap_ns > SAMPLE_NS_MAX ? gap_ns : 1;
}

static uint64_t limit_ns(const struct client_progress *progress)
{
    const uint64_t floor_ns = progress->usual_ns > 0 ? FLOOR_NS : FIRST_FLOOR_NS;
    return TIMES * progress->usual_ns > floor_ns ? TIMES * progress->usual_ns : floor_ns;
}

/* The rank in the whole job; other groups number their ranks anew. */
static uint32_t awaited_rank(const struct weft_record *record)
{
    const bool is_known = record->group == CLIENT_GROUP_ID && record->peer < record->ranks;
    return is_known ? record->peer + 1 : 0;
}

void client_progress_sample(struct weft_session *session, Weft__Control__Progress *progress_out)
{
    struct client_engine *engine = session->engine;
    struct client_progress *progress = &engine->progress;
    struct found found = {.longest_ns = 0};
    const uint64_t now_ns = weft_now_ns(session->env);
    const uint64_t records = read_records(session->flight.recorder, &found),
                   requests = atomic_load_explicit(&engine->counters.requests_done, memory_order_relaxed);
    const bool has_request = atomic_load(&session->open_requests) > 0,
               has_moved = records != progress->records || requests != progress->requests_done;
    weft__control__progress__init(progress_out);
    progress_out->call = progress->call;
    progress->call[0] = 0;
    if (found.oldest.posted_ns > 0) {
        progress_out->open_ns = weft_elapsed_ns(found.oldest.posted_ns, now_ns);
        progress_out->waits_for = awaited_rank(&found.oldest);
        snprintf(progress->call, sizeof progress->call, "%s %llu",
                 weft_coll_kind_name((enum weft_coll_kind)found.oldest.kind),
                 (unsigned long long)found.oldest.sequence);
    } else if (has_request && !has_moved) {
        progress_out->open_ns = weft_elapsed_ns(progress->moved_ns, now_ns);
        snprintf(progress->call, sizeof progress->call, "a push or pull of weights");
    }
    learn_usual(progress,
                found.longest_ns > 0 || !has_moved ? found.longest_ns : time_of_requests(progress, now_ns));
    if (has_moved || !has_request) progress->moved_ns = now_ns;
    progress->records = records;
    progress->requests_done = requests;
    progress_out->operations = records + requests;
    progress_out->usual_ns = progress->usual_ns;
    progress_out->is_stalled = progress_out->open_ns > limit_ns(progress);
}
