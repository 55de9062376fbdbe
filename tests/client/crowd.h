/* crowd.h - several sessions in one process: a coordinator and one thread per worker, no shards. Fast
 * enough for quick and visible to the thread sanitizer as a whole. */
#ifndef TEST_CLIENT_CROWD_H
#define TEST_CLIENT_CROWD_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "weft/weft.h"

#define CROWD_MAX 8

struct crowd {
    uint32_t workers;
    uint32_t workers_min;          /* the job goes on while so many are left; 0: it does not */
    uint64_t deadline_ms;          /* of the sessions; 0: 20 s */
    const char *secret;            /* of coordinator and sessions; NULL: none */
    char coordinator[64];
    struct weft_session *sessions[CROWD_MAX];
    pthread_barrier_t meet;        /* for workers that want to meet outside weft */
    _Atomic uint32_t failures;     /* CROWD_CHECK that did not hold */
    _Atomic uint32_t found;        /* the test's */
    void *user;
};

/* Join as `rank`, run, finalize (unless it has: sessions[rank] NULL); a failed join counts as a failure.
 * `fn` returns nothing: it uses CROWD_CHECK. */
typedef void (*crowd_fn)(struct crowd *crowd, struct weft_session *session, uint32_t rank);
void crowd_run(struct crowd *crowd, uint32_t workers, crowd_fn fn);

#define CROWD_CHECK(crowd, session, condition) \
    crowd_check(crowd, session, condition, #condition, __FILE__, __LINE__)
bool crowd_check(struct crowd *crowd, struct weft_session *session, bool holds, const char *what,
                 const char *file, int line);
/* status >= 0, or the sentence is printed */
#define CROWD_OK(crowd, session, call) crowd_check(crowd, session, (call) >= 0, #call, __FILE__, __LINE__)
/* The call fails with this status and a sentence that contains these words. */
#define CROWD_REFUSED(crowd, session, call, status, words) \
    crowd_refused(crowd, session, call, status, words, #call, __FILE__, __LINE__)
void crowd_refused(struct crowd *crowd, struct weft_session *session, enum weft_status got,
                   enum weft_status wanted, const char *words, const char *what, const char *file, int line);

/* A link table (collective.links) of one host, with such a link inside it; bytes_per_second 0: with none. */
#define CROWD_RUNS \
    {3, 2, 5100, 900, {{100, 110, 120, 130, 140, 150, 160, 170, 180, 190, 191, 192}, \
                                   {200, 210, 220, 230, 240, 250, 260, 270, 280, 290, 291, 292}, \
                                   {300, 310, 320, 330, 340, 350, 360, 370, 380, 390, 391, 392}, \
                                   {400, 410, 420, 430, 440, 450, 460, 470, 480, 490, 491, 492}, \
                                   {500, 510, 520, 530, 540, 550, 560, 570, 580, 590, 591, 592}}}
void crowd_write_links(const char *path, const char *host, uint64_t latency_ns, uint64_t bytes_per_second);

#endif
