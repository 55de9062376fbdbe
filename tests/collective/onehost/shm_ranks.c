/* shm_ranks.c - see shm_ranks.h. */
#include "tests/collective/onehost/shm_ranks.h"

#include <string.h>
#include <unistd.h>

#include "tests/lib/check.h"

enum { FIRST_ID = 100, NOBODY_MS = 20000 };

static uint64_t nonce(void)
{
    return 0x9000 + (uint64_t)getpid();
}

void shm_ranks_group(struct shm_ranks *h, uint32_t group_id, uint64_t deadline_ns)
{
    uint32_t ids[SHM_RANKS_MAX];
    for (uint32_t r = 0; r < h->ranks; r++) ids[r] = FIRST_ID + r;
    for (uint32_t r = 0; r < h->ranks; r++) {
        struct weft_group_options options;
        weft_group_options_init(&options);
        options.transport = h->transports[r];
        options.loop = h->loops[r];
        options.recorder = h->recorders[r];
        options.share = h->shares[r];
        options.rank = r;
        options.ranks = h->ranks;
        options.endpoint_ids = ids;
        options.group_id = group_id;
        options.chunk_bytes = 4096;
        options.modes.opens_onehost_later = h->opens_onehost_later;
        if (deadline_ns) options.deadline_ns = deadline_ns;
        assert_int_equal(
            weft_group_create(h->env ? h->env : weft_env_system(), &options, &h->groups[r], NULL), WEFT_OK);
    }
}

void shm_ranks_open(struct shm_ranks *h, uint32_t ranks, const char *tune, bool rank_0_only,
                    uint64_t deadline_ns)
{
    memset(h, 0, sizeof *h);
    h->ranks = ranks;
    for (uint32_t r = 0; r < ranks; r++) {
        struct weft_transport_options options;
        struct weft_error error = {0};
        weft_transport_options_init(&options);
        options.backend = "shm";
        options.id = FIRST_ID + r;
        options.nonce = nonce();
        options.tune = rank_0_only && r > 0 ? NULL : tune;
        assert_int_equal(weft_loop_create(weft_env_system(), NULL, &h->loops[r]), WEFT_OK);
        if (weft_transport_open(weft_env_system(), &options, &h->transports[r], &error) < 0)
            fail_msg("%s", error.text);
        assert_int_equal(weft_transport_attach(h->transports[r], h->loops[r]), WEFT_OK);
    }
    for (uint32_t a = 0; a < ranks; a++) {
        const void *blob;
        size_t bytes;
        struct weft_peer *peer;
        assert_int_equal(weft_transport_address(h->transports[a], &blob, &bytes), WEFT_OK);
        for (uint32_t b = 0; b < ranks; b++)
            if (a != b)
                assert_int_equal(weft_transport_connect(h->transports[b], FIRST_ID + a, blob, bytes, &peer),
                                 WEFT_OK);
    }
    shm_ranks_group(h, 5, deadline_ns);
}

bool shm_ranks_run(struct shm_ranks *h, const bool *done, uint32_t except)
{
    uint64_t until_ns = weft_now_ns(weft_env_system()) + WEFT_MS((uint64_t)NOBODY_MS);
    while (!*done) {
        int work = 0;
        for (uint32_t r = 0; r < h->ranks; r++)
            if (r != except) work += weft_loop_step(h->loops[r]);
        if (work == 0) usleep(20);
        if (weft_now_ns(weft_env_system()) > until_ns) return false;
    }
    return true;
}

void shm_ranks_close(struct shm_ranks *h)
{
    for (uint32_t r = 0; r < h->ranks; r++) weft_group_free(h->groups[r]);
    for (int i = 0; i < 10; i++)
        for (uint32_t r = 0; r < h->ranks; r++) weft_loop_step(h->loops[r]);
    for (uint32_t r = 0; r < h->ranks; r++) weft_transport_close(h->transports[r]);
    for (int i = 0; i < 10; i++)
        for (uint32_t r = 0; r < h->ranks; r++) weft_transport_progress(h->transports[r], 1000);
    for (uint32_t r = 0; r < h->ranks; r++) {
        weft_transport_free(h->transports[r]);
        weft_loop_free(h->loops[r]);
    }
}
