/* outer_job.c - a worker of tests/system/test_outer.py: trains by outer steps in an elastic job.
 *
 * usage: outer_job STEPS EVERY FRAGMENTS OVERLAP CODEC [KILLED_RANK STEP]
 *
 * The process that began as KILLED_RANK kills itself with SIGKILL at inner step STEP. Each rank does STEPS
 * inner steps, with WAIT_FOR_GROWTH in the environment counted from the arrival of a new rank. It prints
 * "ranks N steps S shrunk A grew B hash H", the hash of the weights after weft_outer_sync. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "weft/weft.h"

enum { PARTS = 3, ELEMS = 4000 };

static float weights[PARTS][ELEMS];

static void die(struct weft_session *session, const char *what)
{
    fprintf(stderr, "%s: %s\n", what, weft_error_text(session));
    exit(1);
}

static void inner_step(uint32_t rank)
{
    for (uint32_t p = 0; p < PARTS; p++)
        for (uint32_t i = 0; i < ELEMS; i++)
            weights[p][i] -= 0.01f * (weights[p][i] - (float)(rank + 1) - (float)i * 0x1p-10f);
}

/* Agrees on the ranks until all have the anchors. */
static void take_anchors(struct weft_session *session, struct weft_outer *outer)
{
    for (;;) {
        enum weft_status status = weft_outer_share(outer);
        if (status == WEFT_OK) return;
        if (status != WEFT_ERR_PEER_LOST) die(session, "outer_share");
        status = weft_shrink(session);
        if (status != WEFT_OK && status != WEFT_ERR_SHRUNK && status != WEFT_ERR_GREW) die(session, "shrink");
    }
}

static struct weft_outer *make(struct weft_session *session, char **argv)
{
    static const char *const names[PARTS] = {"a", "b", "c"};
    const uint64_t dims[1] = {ELEMS};
    struct weft_outer_options options = {.size = sizeof options,
                                         .codec = argv[5],
                                         .every = strtoull(argv[2], NULL, 10),
                                         .fragments = (uint32_t)strtoul(argv[3], NULL, 10),
                                         .overlap = strtoull(argv[4], NULL, 10)};
    struct weft_outer *outer;
    if (weft_outer_create(session, &options, &outer) < 0) die(session, "outer_create");
    for (uint32_t p = 0; p < PARTS; p++)
        if (weft_outer_add(outer, names[p], weights[p], 1, dims) < 0) die(session, "outer_add");
    return outer;
}

int main(int argc, char **argv)
{
    if (argc != 6 && argc != 8) return 2;
    struct weft_session *session;
    if (weft_init(NULL, &session) < 0) die(NULL, "init");
    const uint32_t born = weft_rank(session);
    const bool is_newcomer = weft_newcomer(session);
    const bool dies = argc == 8 && !is_newcomer && born == strtoul(argv[6], NULL, 10);
    uint64_t steps = strtoull(argv[1], NULL, 10), done = 0, shrunk = 0, grew = 0;
    struct weft_outer *outer = make(session, argv);
    if (is_newcomer) take_anchors(session, outer);
    else if (weft_outer_begin(outer, NULL, 0) < 0) die(session, "outer_begin");
    const bool waits = getenv("WAIT_FOR_GROWTH") && !is_newcomer;
    /* after a growth all ranks, old and new, do STEPS inner steps */
    while (done < steps || (waits && grew == 0)) {
        done++;
        if (dies && done == strtoull(argv[7], NULL, 10)) raise(SIGKILL);
        inner_step(weft_rank(session));
        const enum weft_status status = weft_outer_step(outer);
        if (status == WEFT_ERR_SHRUNK) shrunk++;
        else if (status == WEFT_ERR_GREW) {
            grew++;
            done = 0;
            take_anchors(session, outer);
        } else if (status < 0) die(session, "outer_step");
    }
    if (weft_outer_sync(outer) < 0) die(session, "outer_sync");
    uint64_t hash = 14695981039346656037u;
    for (size_t i = 0; i < sizeof weights; i++)
        hash = (hash ^ ((unsigned char *)weights)[i]) * 1099511628211u;
    printf("ranks %u steps %llu shrunk %llu grew %llu hash %016llx\n", weft_ranks(session),
           (unsigned long long)done, (unsigned long long)shrunk, (unsigned long long)grew,
           (unsigned long long)hash);
    if (weft_outer_free(outer) < 0) die(session, "outer_free");
    weft_finalize(session);
    return 0;
}
