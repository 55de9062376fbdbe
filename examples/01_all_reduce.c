/* 01_all_reduce.c - the sum of a vector over all workers.
 *
 *     weft run -n 3 -- build/examples/01_all_reduce
 *     weft run -n 3 --min-workers 2 -- build/examples/01_all_reduce       one worker may be lost
 *
 * Shows: an in-place call; the program can compute between the start and weft_wait, which is the only call
 * that blocks; every call returns a status, and weft_error_text returns its sentence. After a loss, outside
 * steps, weft_shrink agrees with the other ranks. */
#include <stdio.h>
#include <weft/weft.h>

static int fail(struct weft_session *session, const char *what)
{
    fprintf(stderr, "%s: %s\n", what, weft_error_text(session));
    weft_finalize(session);
    return 1;
}

int main(void)
{
    struct weft_session *session = NULL;
    if (weft_init(NULL, &session) < 0) return fail(NULL, "joining the job");

    enum { COUNT = 1000 };
    float *values = weft_alloc(session, COUNT * sizeof(float));
    if (!values) return fail(session, "memory");
    uint32_t rank, ranks;
    enum weft_status status;
    do { /* again, if ranks were lost or are new */
        rank = weft_rank(session), ranks = weft_ranks(session);
        for (int i = 0; i < COUNT; i++) values[i] = (float)((int)rank + i);
        struct weft_request request = {{0}};
        status = weft_all_reduce(session, values, values, COUNT, WEFT_F32, WEFT_SUM, &request);
        /* ... compute here; do not touch `values` ... */
        if (status >= 0) status = weft_wait(&request, 0);
        if (status == WEFT_ERR_PEER_LOST) status = weft_shrink(session);
    } while (status == WEFT_ERR_SHRUNK || status == WEFT_ERR_GREW);
    if (status < 0) return fail(session, "all_reduce");

    /* sum over r of (r + i) = ranks * i + ranks * (ranks - 1) / 2 */
    for (int i = 0; i < COUNT; i++) {
        float expected = (float)(ranks * (uint32_t)i + ranks * (ranks - 1) / 2);
        if (values[i] == expected) continue;
        fprintf(stderr, "element %d is %g, not %g\n", i, (double)values[i], (double)expected);
        weft_finalize(session);
        return 1;
    }
    printf("rank %u of %u: element 10 is %g on every worker\n", rank, ranks, (double)values[10]);
    weft_free(session, values);
    weft_finalize(session);
    return 0;
}
