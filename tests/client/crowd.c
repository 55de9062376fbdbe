/* crowd.c - see crowd.h. */
#include "tests/lib/check.h"

#include "crowd.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "server/server.h"
#include "transport/probe/link_table.h"

struct place {
    struct crowd *crowd;
    uint32_t rank;
    crowd_fn fn;
};

bool crowd_check(struct crowd *crowd, struct weft_session *session, bool holds, const char *what,
                 const char *file, int line)
{
    if (holds) return true;
    atomic_fetch_add(&crowd->failures, 1);
    fprintf(stderr, "%s:%d: rank %u: does not hold: %s (%s)\n", file, line, weft_rank(session), what,
            weft_error_text(session));
    return false;
}

void crowd_refused(struct crowd *crowd, struct weft_session *session, enum weft_status got,
                   enum weft_status wanted, const char *words, const char *what, const char *file, int line)
{
    if (got == wanted && strstr(weft_error_text(session), words)) return;
    atomic_fetch_add(&crowd->failures, 1);
    fprintf(stderr, "%s:%d: rank %u: %s gave %s, \"%s\"; wanted %s, \"%s\"\n", file, line, weft_rank(session),
            what, weft_status_name(got), weft_error_text(session), weft_status_name(wanted), words);
}

static void *work(void *context)
{
    struct place *place = context;
    struct crowd *crowd = place->crowd;
    struct weft_options options;
    struct weft_session *session = NULL;
    weft_options_init(&options);
    options.coordinator = crowd->coordinator;
    options.job = "crowd";
    options.secret = crowd->secret;
    options.rank = (int)place->rank;
    options.deadline_ms = crowd->deadline_ms ? crowd->deadline_ms : 20000;
    if (!CROWD_OK(crowd, NULL, weft_init(&options, &session))) return NULL;
    crowd->sessions[place->rank] = session;
    place->fn(crowd, session, place->rank);
    weft_finalize(crowd->sessions[place->rank]);
    return NULL;
}

static void job_ended(void *context, enum weft_status status, const char *text) {}

void crowd_run(struct crowd *crowd, uint32_t workers, crowd_fn fn)
{
    struct weft_env *env = weft_env_system();
    struct weft_net *net;
    struct weft_coordinator_server *coordinator;
    struct weft_coordinator_options options;
    struct weft_error error = {0};
    uint16_t port;
    weft_coordinator_options_init(&options);
    options.job = "crowd";
    options.secret = crowd->secret;
    options.workers = workers;
    options.workers_min = crowd->workers_min;
    options.ended = job_ended;
    if (weft_net_create(env, &net) < 0 ||
        weft_coordinator_server_start(env, net, "127.0.0.1", 0, &options, &port, &coordinator, &error) < 0 ||
        weft_net_start(net) < 0) {
        fprintf(stderr, "no coordinator: %s\n", error.text);
        abort();
    }
    snprintf(crowd->coordinator, sizeof crowd->coordinator, "127.0.0.1:%u", port);
    crowd->workers = workers;
    pthread_barrier_init(&crowd->meet, NULL, workers);
    pthread_t threads[CROWD_MAX];
    struct place places[CROWD_MAX];
    for (uint32_t i = 0; i < workers; i++) {
        places[i] = (struct place){crowd, i, fn};
        if (pthread_create(&threads[i], NULL, work, &places[i]) != 0) abort();
    }
    for (uint32_t i = 0; i < workers; i++) pthread_join(threads[i], NULL);
    pthread_barrier_destroy(&crowd->meet);
    weft_net_free(net);
    weft_coordinator_server_free(coordinator);
}

void crowd_write_links(const char *path, const char *host, uint64_t latency_ns, uint64_t bytes_per_second)
{
    struct weft_link_table *table;
    uint32_t index;
    assert_int_equal(weft_link_table_create(weft_env_system(), &table), WEFT_OK);
    assert_int_equal(weft_link_table_host(table, host, 7, &index), WEFT_OK);
    const struct weft_link link = {.from = index,
                                   .to = index,
                                   .state = WEFT_LINK_WORKS,
                                   .latency_ns = latency_ns,
                                   .bytes_per_second = bytes_per_second,
                                   .lane = "shm",
                                   .text = "made up"};
    const struct weft_link_machine machine = {640, 125, 90, 40, 8192};
    const struct weft_link_runs runs = CROWD_RUNS;
    const struct weft_link_memory memory = {370, 480, 260, 12, 51, 2048, 491520};
    if (bytes_per_second > 0) assert_int_equal(weft_link_table_set(table, &link), WEFT_OK);
    if (bytes_per_second > 0) assert_int_equal(weft_link_table_set_machine(table, index, &machine), WEFT_OK);
    if (bytes_per_second > 0) assert_int_equal(weft_link_table_set_memory(table, index, &memory), WEFT_OK);
    if (bytes_per_second > 0) assert_int_equal(weft_link_table_set_runs(table, index, &runs), WEFT_OK);
    assert_int_equal(weft_link_table_save(table, path, NULL), WEFT_OK);
    weft_link_table_free(table);
}
