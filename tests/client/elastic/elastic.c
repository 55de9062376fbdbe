/* elastic.c - a worker for tests/system: steps of an elastic all-reduce job whose ranks are killed.
 *
 *     elastic STEPS [KILL_RANK KILL_STEP WHERE]... [from FILE STEP] [save DIRECTORY STEP]
 *     elastic plain KILL_RANK
 *     elastic created KILL_RANK
 *     elastic coded KILL_RANK
 *     elastic late KILL_RANK WHERE
 *     elastic auto KILL_RANK RANKS
 *     elastic abort RANK
 *     elastic grow MORE RANKS DIRECTORY [KILL_RANK KILL_STEP]...
 *     elastic join STEPS EPOCHS [KILL_RANK KILL_STEP]
 *
 * The state is a vector. Each step adds the mean of the ranks' gradients, reproducibly. A rank of the first
 * membership kills itself WHERE: "before" its calls, in the "middle" of them, or "after" them, before
 * step_end; "stopped": it stops itself in the middle. `from` starts with a saved state at that step. `save`
 * writes the state at the start of that step. Every rank prints at the end "ranks N steps S shrunk TIMES hash
 * H".
 *
 *     plain    no steps: weft_shrink, with a group before and after
 *     created  no steps: a rank is killed while the others make a group with it; the ranks that are left make
 *              groups
 *     coded    a tensor with top-k: a rank is killed in the third step, residuals are scaled
 *     late     a tensor with sgd and steps with deliver_late: in the third step a rank is killed "before" its
 *              push, or "after" its step_end. The others lose the step while its delivery is open
 *     auto     a tensor with codec auto: a rank is killed in the third step. 20 steps after RANKS ranks are
 *              there, each prints "auto: rank of ranks, hash H"
 *     grow     as without a name, until there are RANKS ranks again, one of them new, and MORE steps. New
 *              ranks receive the state from rank 0, which writes it to DIRECTORY/state-STEP. Prints
 *              "grew STEP" each time
 *     join     EPOCHS times each rank runs STEPS steps, plus one for each lower rank, then joins. A rank
 *              kills itself in a step or, with KILL_STEP 0, while it rests: the other ranks run steps until
 *              it is lost
 *     abort    all ranks wait for operations that never complete; one aborts the job from another thread */
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <weft/weft.h>

enum { TENSORS = 6, COUNT = 20000 };

struct kill_order {
    unsigned rank, step;
    const char *where;
};

static float state[TENSORS][COUNT], grad[TENSORS][COUNT];

static void die(struct weft_session *session, const char *what)
{
    fprintf(stderr, "%s: %s\n", what, weft_error_text(session));
    exit(1);
}

/* Gradients of mixed magnitudes, different for each rank and step. */
static void make_gradients(uint32_t rank, uint64_t step)
{
    uint64_t random = step * 1000003 + rank * 7919 + 1;
    for (int t = 0; t < TENSORS; t++)
        for (int i = 0; i < COUNT; i++) {
            random = random * 6364136223846793005ull + 1442695040888963407ull;
            float noise = (float)(int32_t)(random >> 32) * 0x1p-31f;
            grad[t][i] = state[t][i] * 0.01f * noise + noise * (random & 8 ? 1e-4f : 3.0f);
        }
}

static uint64_t hash_state(void)
{
    uint64_t hash = 0xcbf29ce484222325ull;
    const unsigned char *bytes = (const unsigned char *)state;
    for (size_t i = 0; i < sizeof state; i++) hash = (hash ^ bytes[i]) * 0x100000001b3ull;
    return hash;
}

static void obey(const struct kill_order *orders, int count, unsigned rank, uint64_t step, const char *where)
{
    for (int i = 0; i < count; i++)
        if (orders[i].rank == rank && orders[i].step == step && strcmp(orders[i].where, where) == 0)
            kill(getpid(), strcmp(where, "stopped") == 0 ? SIGSTOP : SIGKILL);
}

/* One attempt. */
static enum weft_status run_step(struct weft_session *session, uint64_t step, const struct kill_order *orders,
                                 int order_count, unsigned born)
{
    struct weft_request requests[TENSORS];
    enum weft_status status =
        weft_step_begin(session, &(struct weft_step){.step = step, .lr = 1, .weight = 1});
    if (status < 0) return status;
    obey(orders, order_count, born, step, "before");
    memset(requests, 0, sizeof requests);
    for (int t = 0; t < TENSORS; t++) {
        if (t == TENSORS / 2)
            obey(orders, order_count, born, step, "middle"), obey(orders, order_count, born, step, "stopped");
        status = weft_call_start(session,
                                 WEFT_CALL(.kind = WEFT_CALL_ALL_REDUCE, .in = grad[t], .out = grad[t],
                                           .count = COUNT, .dtype = WEFT_F32, .op = WEFT_AVG,
                                           .reproducible = true, .preserve_input = true),
                                 &requests[t]);
        if (status < 0) die(session, "all_reduce");
        if (t < 2) weft_wait(&requests[t], 0); /* some have completed when the step fails, some have not */
    }
    for (int t = 0; t < TENSORS; t++) {
        status = weft_wait(&requests[t], 0);
        if (status < 0 && status != WEFT_ERR_PEER_LOST) die(session, "wait");
    }
    obey(orders, order_count, born, step, "after");
    return weft_step_end(session);
}

static int64_t count_ranks(struct weft_session *session, struct weft_comm *comm, enum weft_status *status_out)
{
    struct weft_request request = {{0}};
    int64_t one = 1, ranks = 0;
    *status_out = weft_call_start(session,
                                  WEFT_CALL(.kind = WEFT_CALL_ALL_REDUCE, .comm = comm, .in = &one,
                                            .out = &ranks, .count = 1, .dtype = WEFT_I64),
                                  &request);
    if (*status_out >= 0) *status_out = weft_wait(&request, 0);
    return ranks;
}

static int plain(unsigned killed)
{
    struct weft_session *session;
    struct weft_comm *comm = NULL, *again = NULL;
    enum weft_status status;
    if (weft_init(NULL, &session) < 0) die(NULL, "init");
    if (weft_shrink(session) != WEFT_OK) die(session, "shrink of nothing");
    if (weft_split(session, NULL, 0, -(int)weft_rank(session), &comm) < 0) die(session, "split");
    uint32_t before = weft_ranks(session), rounds = 0;
    while (count_ranks(session, comm, &status) == before)
        if (++rounds == 20 && weft_rank(session) == killed) kill(getpid(), SIGKILL);
    /* the 20th may fail by the death of a rank that had completed it */
    if (rounds < 19) die(session, "group");
    if (status != WEFT_ERR_PEER_LOST) die(session, "not lost");
    fprintf(stderr, "%s\n", weft_error_text(session));
    if (weft_shrink(session) != WEFT_ERR_SHRUNK) die(session, "shrink");
    fprintf(stderr, "%s\n", weft_error_text(session));
    count_ranks(session, comm, &status);
    if (status != WEFT_ERR_STATE) die(session, "old group");
    if (weft_split(session, NULL, 0, 0, &again) < 0) die(session, "split again");
    if (count_ranks(session, again, &status) != before - 1 ||
        count_ranks(session, NULL, &status) != before - 1)
        die(session, "after");
    if (weft_comm_free(comm) < 0 || weft_comm_free(again) < 0) die(session, "free");
    printf("plain: %u of %u\n", weft_rank(session), weft_ranks(session));
    weft_finalize(session);
    return 0;
}

/* A group of all ranks, the last rank first. */
static enum weft_status create_reversed(struct weft_session *session, struct weft_comm **comm_out)
{
    uint32_t list[64], ranks = weft_ranks(session);
    for (uint32_t r = 0; r < ranks; r++) list[r] = ranks - 1 - r;
    return weft_comm_create(session, list, ranks, 1, comm_out);
}

static int created(unsigned killed)
{
    struct weft_session *session;
    struct weft_comm *old = NULL, *again = NULL, *pair = NULL;
    struct weft_request request = {{0}};
    enum weft_status status;
    if (weft_init(NULL, &session) < 0) die(NULL, "init");
    const uint32_t before = weft_ranks(session);
    if (create_reversed(session, &old) < 0) die(session, "create");
    if (count_ranks(session, old, &status) != before) die(session, "old group");
    status = weft_barrier(session, &request);
    if (status >= 0) status = weft_wait(&request, 0);
    if (status < 0 || weft_rank(session) == killed) kill(getpid(), SIGKILL);
    if (create_reversed(session, &again) != WEFT_ERR_PEER_LOST) die(session, "not lost");
    fprintf(stderr, "%s\n", weft_error_text(session));
    if (weft_shrink(session) != WEFT_ERR_SHRUNK) die(session, "shrink");
    count_ranks(session, old, &status);
    if (status != WEFT_ERR_STATE) die(session, "old group");
    if (create_reversed(session, &again) < 0) die(session, "create again");
    if (count_ranks(session, again, &status) != before - 1) die(session, "after");
    /* one rank takes no part */
    const uint32_t list[] = {1, 0};
    if (weft_rank(session) < 2 &&
        (weft_comm_create(session, list, 2, 2, &pair) < 0 || count_ranks(session, pair, &status) != 2))
        die(session, "pair");
    if (weft_comm_free(old) < 0 || weft_comm_free(again) < 0 || weft_comm_free(pair) < 0)
        die(session, "free");
    printf("created: %u of %u\n", weft_rank(session), weft_ranks(session));
    weft_finalize(session);
    return 0;
}

static void residual_of(struct weft_session *session, struct weft_tensor *tensor, float *residual)
{
    uint64_t bytes = weft_residual_bytes(tensor);
    unsigned char *saved = malloc(bytes);
    if (!saved || bytes < COUNT * sizeof *residual || weft_residual_save(tensor, saved, bytes) < 0)
        die(session, "residual_save");
    /* the hash follows */
    memcpy(residual, saved + bytes - 8 - COUNT * sizeof *residual, COUNT * sizeof *residual);
    free(saved);
}

static int coded(unsigned killed)
{
    static float before[COUNT], after[COUNT], sum[COUNT];
    struct weft_session *session;
    struct weft_tensor *tensor;
    struct weft_tensor_options options;
    if (weft_init(NULL, &session) < 0) die(NULL, "init");
    weft_tensor_options_init(&options);
    options.name = "coded";
    options.dim_count = 1;
    options.dims[0] = COUNT;
    options.mode = WEFT_MODE_ALL_REDUCE;
    options.codec = "topk:ratio=0.01";
    if (weft_declare(session, &options, &tensor) < 0) die(session, "declare");
    uint32_t ranks = weft_ranks(session);
    for (uint64_t step = 1; step <= 5;) {
        struct weft_request request = {{0}};
        enum weft_status status =
            weft_step_begin(session, &(struct weft_step){.step = step, .lr = 1, .weight = 1});
        if (status == WEFT_ERR_SHRUNK) continue; /* the rank was killed before this rank began the step */
        if (status < 0) die(session, "step_begin");
        make_gradients(weft_rank(session), step);
        if (step == 3 && ranks == weft_ranks(session) && weft_rank(session) == killed)
            kill(getpid(), SIGKILL);
        if (weft_push_pull(tensor, grad[0], sum, &request) < 0) die(session, "push_pull");
        weft_wait(&request, 0);
        status = weft_step_end(session);
        if (status == WEFT_ERR_SHRUNK) {
            residual_of(session, tensor, after);
            const float factor = (float)weft_ranks(session) / (float)ranks;
            for (int i = 0; i < COUNT; i++)
                if (after[i] != before[i] * factor)
                    die(session, "the residual did not follow the number of ranks");
            continue;
        }
        if (status < 0) die(session, "step_end");
        residual_of(session, tensor, before);
        step++;
    }
    printf("coded: %u of %u\n", weft_rank(session), weft_ranks(session));
    weft_finalize(session);
    return 0;
}

/* Waits as the forward pass of step `step` does. Returns whether the rank is lost. */
static bool results_are_lost(struct weft_session *session, struct weft_tensor *tensor)
{
    const enum weft_status status = weft_tensor_wait(tensor, 0);
    if (status < 0 && status != WEFT_ERR_PEER_LOST) die(session, "tensor_wait");
    return status == WEFT_ERR_PEER_LOST;
}

static int late(unsigned killed, const char *where)
{
    static float before[COUNT], weights[COUNT];
    struct weft_session *session;
    struct weft_tensor *tensor;
    struct weft_tensor_options options;
    struct weft_request request = {{0}};
    bool lost = false, shrunk = false;
    if (weft_init(NULL, &session) < 0) die(NULL, "init");
    weft_tensor_options_init(&options);
    options.name = "late";
    options.dim_count = 1;
    options.dims[0] = COUNT;
    options.mode = WEFT_MODE_ALL_REDUCE;
    options.optimizer = "sgd:momentum=0.5";
    if (weft_declare(session, &options, &tensor) < 0 || weft_tensor_init(tensor, weights) < 0)
        die(session, "declare");
    const bool dies = weft_rank(session) == killed;
    for (uint64_t step = 1; step <= 5; step = weft_step_next(session)) {
        lost |= results_are_lost(session, tensor);
        const enum weft_status begun = weft_step_begin_with(
            session, WEFT_STEP(.step = step, .lr = 0.5f, .weight = 1, .deliver_late = true));
        if (begun == WEFT_ERR_SHRUNK) { /* of step 3, which is discarded */
            if (weft_step_next(session) != 3 || memcmp(before, weights, sizeof before) != 0)
                die(session, "the weights are not those before the lost step");
            shrunk = true;
            continue;
        }
        if (begun < 0) die(session, "step_begin");
        memcpy(before, weights, sizeof before);
        /* every rank has begun step 3: otherwise the loss may discard step 2 */
        struct weft_request begun_by_all = {{0}};
        if (step == 3 && weft_barrier(session, &begun_by_all) >= 0) (void)weft_wait(&begun_by_all, 0);
        if (dies && step == 3 && strcmp(where, "before") == 0) kill(getpid(), SIGKILL);
        for (int i = 0; i < COUNT; i++) grad[0][i] = (float)(i % 7) + (float)step + (float)weft_rank(session);
        if (weft_push_pull(tensor, grad[0], weights, &request) < 0) die(session, "push_pull");
        if (weft_step_end(session) < 0) die(session, "step_end");
        if (dies && step == 3) kill(getpid(), SIGKILL);
    }
    if (weft_step_wait(session) < 0) die(session, "step_wait");
    uint64_t hash = 0xcbf29ce484222325ull;
    for (size_t i = 0; i < sizeof weights; i++)
        hash = (hash ^ ((unsigned char *)weights)[i]) * 0x100000001b3ull;
    printf("late: %u of %u, shrunk %d, lost %d, hash %016llx\n", weft_rank(session), weft_ranks(session),
           shrunk, lost, (unsigned long long)hash);
    weft_finalize(session);
    return 0;
}

static enum weft_status auto_codec_step(struct weft_session *session, struct weft_tensor *tensor, bool dies)
{
    static float sum[COUNT];
    struct weft_request request = {{0}};
    uint64_t step = weft_step_next(session);
    enum weft_status status =
        weft_step_begin(session, &(struct weft_step){.step = step, .lr = 1, .weight = 1});
    if (status < 0) return status;
    make_gradients(weft_rank(session), step);
    if (step == 3 && dies) kill(getpid(), SIGKILL);
    if (weft_push_pull(tensor, grad[0], sum, &request) < 0) die(session, "push_pull");
    weft_wait(&request, 0);
    status = weft_step_end(session);
    for (int i = 0; i < COUNT && status == WEFT_OK; i++) state[0][i] += sum[i];
    return status;
}

static int auto_codec(unsigned killed, uint32_t ranks)
{
    struct weft_session *session;
    struct weft_tensor *tensor;
    struct weft_tensor_options options;
    struct weft_request request = {{0}};
    if (weft_init(NULL, &session) < 0) die(NULL, "init");
    weft_tensor_options_init(&options);
    options.name = "auto";
    options.dim_count = 1;
    options.dims[0] = COUNT;
    options.mode = WEFT_MODE_ALL_REDUCE;
    options.codec = "auto:topk:ratio=0.01,min_count=0,randomk:ratio=0.01,min_count=0";
    if (weft_declare(session, &options, &tensor) < 0) die(session, "declare");
    /* not the rank that has its number when step 3 is repeated */
    bool take = weft_newcomer(session), dies = !take && weft_rank(session) == killed;
    uint64_t until = 0;
    while (!until || weft_step_next(session) <= until) {
        if (take) { /* it also receives the step number */
            enum weft_status status = weft_broadcast(session, state[0], COUNT, WEFT_F32, 0, &request);
            if (status >= 0) status = weft_wait(&request, 0);
            if (status < 0) die(session, "broadcast");
            until = 0;
        }
        take = false;
        enum weft_status status = auto_codec_step(session, tensor, dies);
        if (status < 0 && status != WEFT_ERR_SHRUNK && status != WEFT_ERR_GREW) die(session, "a step");
        take = status == WEFT_ERR_GREW;
        if (status == WEFT_OK && !until && weft_ranks(session) == ranks && (weft_step_next(session) > 4))
            until = weft_step_next(session) + 20;
    }
    printf("auto: %u of %u, hash %016llx\n", weft_rank(session), weft_ranks(session),
           (unsigned long long)hash_state());
    weft_finalize(session);
    return 0;
}

/* Copies rank 0's state to all ranks; rank 0 writes it to a file. */
static enum weft_status take_state(struct weft_session *session, const char *directory)
{
    struct weft_request request = {{0}};
    enum weft_status status = weft_broadcast(session, state, TENSORS * COUNT, WEFT_F32, 0, &request);
    if (status >= 0) status = weft_wait(&request, 0);
    if (status < 0) return status;
    if (weft_rank(session) == 0) {
        char path[512];
        snprintf(path, sizeof path, "%s/state-%llu", directory, (unsigned long long)weft_step_next(session));
        FILE *file = fopen(path, "wb");
        if (!file || fwrite(state, sizeof state, 1, file) != 1 || fclose(file) != 0) die(session, path);
    }
    printf("grew %llu of %u\n", (unsigned long long)weft_step_next(session), weft_ranks(session));
    fflush(stdout);
    return WEFT_OK;
}

static int grows(uint64_t more, uint32_t ranks, const char *directory, const struct kill_order *orders,
                 int order_count)
{
    struct weft_session *session;
    if (weft_init(NULL, &session) < 0) die(NULL, "init");
    unsigned born = weft_rank(session);
    bool is_newcomer = weft_newcomer(session), take = is_newcomer;
    uint64_t end = UINT64_MAX;
    fprintf(stderr, "the job runs, step %llu\n", (unsigned long long)weft_step_next(session));
    while (weft_step_next(session) <= end) {
        if (take) {
            enum weft_status status = take_state(session, directory);
            if (status < 0 && status != WEFT_ERR_PEER_LOST) die(session, "take_state");
            take = status < 0; /* a rank was lost meanwhile: step_begin reports it, then repeat */
            if (status == WEFT_OK && weft_ranks(session) == ranks) end = weft_step_next(session) + more - 1;
        }
        make_gradients(weft_rank(session), weft_step_next(session));
        enum weft_status status =
            run_step(session, weft_step_next(session), orders, is_newcomer ? 0 : order_count, born);
        if (status < 0) fprintf(stderr, "%s\n", weft_error_text(session));
        take |= status == WEFT_ERR_GREW;
        if (status == WEFT_ERR_SHRUNK || status == WEFT_ERR_GREW) continue;
        if (status < 0) die(session, "step");
        for (int t = 0; t < TENSORS; t++)
            for (int i = 0; i < COUNT; i++) state[t][i] += grad[t][i];
    }
    printf("ranks %u steps %llu shrunk 0 hash %016llx\n", weft_ranks(session),
           (unsigned long long)weft_step_next(session) - 1, (unsigned long long)hash_state());
    weft_finalize(session);
    return 0;
}

static uint32_t reported_ranks; /* number of ranks in the last report of a call; 0: none yet */

/* A step of `join`: the mean of the ranks' numbers, in place and preserved, and a tensor with random-k. 0:
 * repeat it. */
static int join_step(struct weft_session *session, struct weft_tensor *tensor, unsigned born, uint64_t *runs)
{
    static float drawn[COUNT];
    float mean = (float)(born + 1);
    struct weft_request requests[2] = {{{0}}};
    enum weft_status status =
        weft_step_begin(session, &(struct weft_step){.step = weft_step_next(session), .lr = 1, .weight = 1});
    uint32_t ranks = weft_ranks(session); /* ranks of the step: after its good end a rank may be lost */
    if (status == WEFT_ERR_SHRUNK) reported_ranks = ranks;
    if (status == WEFT_ERR_SHRUNK) return 0;
    if (status < 0) die(session, "step_begin");
    if (reported_ranks == 0) reported_ranks = ranks;
    if (ranks != reported_ranks) die(session, "the number of ranks changed, and no call reported it");
    make_gradients(born, *runs);
    if (weft_call_start(session,
                        WEFT_CALL(.kind = WEFT_CALL_ALL_REDUCE, .in = &mean, .out = &mean, .count = 1,
                                  .dtype = WEFT_F32, .op = WEFT_AVG, .preserve_input = true),
                        &requests[0]) < 0)
        die(session, "all_reduce");
    if (weft_push_pull(tensor, grad[0], drawn, &requests[1]) < 0) die(session, "push_pull");
    status = weft_step_end(session);
    if (status == WEFT_ERR_SHRUNK) {
        fprintf(stderr, "%s\n", weft_error_text(session));
        reported_ranks = weft_ranks(session);
        return 0;
    }
    if (status < 0) die(session, "step_end");
    /* Ranks with more data have larger numbers: the last ones are left, without those that were killed. */
    if (ranks == 1 ? mean != (float)(born + 1) : mean < 1 || mean > 8)
        die(session, "the mean is not that of the ranks left");
    printf("mean %g\n", (double)mean);
    for (int i = 0; i < COUNT; i++) state[0][i] += drawn[i];
    ++*runs;
    return 1;
}

static int joins(uint64_t steps, int epochs, unsigned killed, uint64_t kill_step)
{
    struct weft_session *session;
    struct weft_tensor *tensor;
    struct weft_tensor_options options;
    uint32_t last = 99;
    uint64_t runs = 1;
    int64_t pids[64] = {0}, pid = getpid();
    struct weft_request request = {{0}};
    if (weft_init(NULL, &session) < 0) die(NULL, "init");
    unsigned born = weft_rank(session);
    weft_tensor_options_init(&options);
    options.name = "drawn";
    options.dim_count = 1;
    options.dims[0] = COUNT;
    options.codec = "randomk:ratio=0.1";
    if (weft_declare(session, &options, &tensor) < 0) die(session, "declare");
    enum weft_status gathered = weft_all_gather(session, &pid, pids, 1, WEFT_I64, &request);
    if (gathered < 0 || weft_wait(&request, 0) < 0) die(session, "all_gather");
    for (int epoch = 1; epoch <= epochs; epoch++) {
        bool waits = epoch == 1 && killed < 64 && kill_step == 0 && born != killed;
        for (uint64_t step = 0; step < steps + born || (waits && kill((pid_t)pids[killed], 0) == 0);) {
            if (epoch == 1 && born == killed && step > 0 && step == kill_step) kill(getpid(), SIGKILL);
            step += (uint64_t)join_step(session, tensor, born, &runs);
        }
        enum weft_status status;
        while ((status = weft_join(session, 50, &last)) == WEFT_ERR_DEADLINE) {
            if (weft_barrier(session, &request) != WEFT_ERR_STATE) die(session, "a rank that rests may call");
            if (epoch == 1 && born == killed) kill(getpid(), SIGKILL);
        }
        if (status < 0) die(session, "join");
        reported_ranks = weft_ranks(session);
        /* All ranks are back, and receive the newest state. */
        status = weft_broadcast(session, state[0], COUNT, WEFT_F32, last, &request);
        if (status >= 0) status = weft_wait(&request, 0);
        if (status < 0) die(session, "broadcast");
        if (count_ranks(session, NULL, &status) != weft_ranks(session)) die(session, "together");
        printf("joined %d: rank %u of %u, last %u, next %llu, hash %016llx\n", epoch, weft_rank(session),
               weft_ranks(session), last, (unsigned long long)weft_step_next(session),
               (unsigned long long)hash_state());
    }
    weft_finalize(session);
    return 0;
}

static void *abort_soon(void *context)
{
    usleep(100000);
    weft_abort(context, "the loss is not finite");
    return NULL;
}

static int aborted(unsigned by)
{
    struct weft_session *session;
    struct weft_comm *comm = NULL;
    struct weft_request requests[2] = {{{0}}};
    pthread_t thread;
    float data[1000] = {0}, one = 0;
    if (weft_init(NULL, &session) < 0) die(NULL, "init");
    uint32_t rank = weft_rank(session);
    if (weft_split(session, NULL, (int)(rank / 2), 0, &comm) < 0) die(session, "split");
    if (rank == by && pthread_create(&thread, NULL, abort_soon, session) != 0) return 2;
    enum weft_status first = WEFT_ERR_ABORTED; /* if this process is slow, the call itself returns it */
    if (rank % 2 == 0)
        first = weft_call_start(session,
                                WEFT_CALL(.kind = WEFT_CALL_ALL_REDUCE, .comm = comm, .in = data, .out = data,
                                          .count = 1000, .dtype = WEFT_F32),
                                &requests[0]);
    enum weft_status second = weft_recv(session, &one, 1, WEFT_F32, rank == 0 ? 1 : 0, &requests[1]);
    if (first >= 0) first = weft_wait(&requests[0], 0);
    if (second >= 0) second = weft_wait(&requests[1], 0);
    if (first != WEFT_ERR_ABORTED || second != WEFT_ERR_ABORTED) die(session, "not aborted");
    fprintf(stderr, "aborted: %s\n", weft_error_text(session));
    if (rank == by) pthread_join(thread, NULL);
    weft_finalize(session);
    return 0;
}

int main(int argc, char **argv)
{
    if (argc == 3 && strcmp(argv[1], "abort") == 0) return aborted((unsigned)atoi(argv[2]));
    if (argc == 3 && strcmp(argv[1], "plain") == 0) return plain((unsigned)atoi(argv[2]));
    if (argc == 3 && strcmp(argv[1], "created") == 0) return created((unsigned)atoi(argv[2]));
    if (argc == 3 && strcmp(argv[1], "coded") == 0) return coded((unsigned)atoi(argv[2]));
    if (argc == 4 && strcmp(argv[1], "late") == 0) return late((unsigned)atoi(argv[2]), argv[3]);
    if (argc == 4 && strcmp(argv[1], "auto") == 0)
        return auto_codec((unsigned)atoi(argv[2]), (uint32_t)atoi(argv[3]));
    if (argc >= 4 && strcmp(argv[1], "join") == 0)
        return joins(strtoull(argv[2], NULL, 10), atoi(argv[3]), argc > 4 ? (unsigned)atoi(argv[4]) : 99,
                     argc > 5 ? strtoull(argv[5], NULL, 10) : 0);
    struct kill_order orders[8];
    int order_count = 0;
    if (argc >= 5 && strcmp(argv[1], "grow") == 0) {
        for (int a = 5; a + 1 < argc && order_count < 8; a += 2)
            orders[order_count++] =
                (struct kill_order){(unsigned)atoi(argv[a]), (unsigned)atoi(argv[a + 1]), "middle"};
        return grows(strtoull(argv[2], NULL, 10), (uint32_t)atoi(argv[3]), argv[4], orders, order_count);
    }
    uint64_t steps = argc > 1 ? strtoull(argv[1], NULL, 10) : 1, first = 1, save_step = 0, shrunk = 0;
    const char *directory = NULL;
    for (int a = 2; a + 2 < argc; a += 3) {
        if (strcmp(argv[a], "from") == 0) {
            FILE *file = fopen(argv[a + 1], "rb");
            if (!file || fread(state, sizeof state, 1, file) != 1) return 2;
            fclose(file);
            first = strtoull(argv[a + 2], NULL, 10);
        } else if (strcmp(argv[a], "save") == 0) {
            directory = argv[a + 1];
            save_step = strtoull(argv[a + 2], NULL, 10);
        } else if (order_count < 8) {
            orders[order_count++] =
                (struct kill_order){(unsigned)atoi(argv[a]), (unsigned)atoi(argv[a + 1]), argv[a + 2]};
        }
    }
    struct weft_session *session;
    if (weft_init(NULL, &session) < 0) die(NULL, "init");
    unsigned born = weft_rank(session);
    fprintf(stderr, "the job runs\n");
    for (uint64_t step = first, number = 1; step <= steps;) {
        if (directory && step == save_step && weft_rank(session) == 0 && !shrunk) {
            char path[512];
            snprintf(path, sizeof path, "%s/state", directory);
            FILE *file = fopen(path, "wb");
            if (!file || fwrite(state, sizeof state, 1, file) != 1 || fclose(file) != 0) return 2;
        }
        /* Preserved inputs are restored after a failed step. They depend on the rank, so they are compared,
         * then made again. */
        make_gradients(weft_rank(session), step);
        float before = grad[0][17], last = grad[TENSORS - 1][COUNT - 1];
        enum weft_status status = run_step(session, number, orders, order_count, born);
        if (status == WEFT_ERR_SHRUNK) {
            if (grad[0][17] != before || grad[TENSORS - 1][COUNT - 1] != last)
                die(session, "the input was not preserved");
            fprintf(stderr, "step %llu: %s\n", (unsigned long long)step, weft_error_text(session));
            shrunk++;
            continue;
        }
        if (status < 0) die(session, "step_end");
        for (int t = 0; t < TENSORS; t++)
            for (int i = 0; i < COUNT; i++) state[t][i] += grad[t][i];
        step++, number++;
    }
    printf("ranks %u steps %llu shrunk %llu hash %016llx\n", weft_ranks(session), (unsigned long long)steps,
           (unsigned long long)shrunk, (unsigned long long)hash_state());
    weft_finalize(session);
    return 0;
}
