/* served.c - a worker for tests/system: steps of a job whose tensors are kept by shards, and that goes on
 * when ranks are killed.
 *
 *     served STEPS [KILL_RANK KILL_STEP WHERE]...
 *     served rest ROUNDS DATA [KILL_RANK KILL_STEP WHERE]...
 *     served grow MORE RANKS [KILL_RANK KILL_STEP WHERE]...
 *     served refused
 *     served codec=CODEC ...   the same, with a codec whose sums of the gradients are exact
 *
 * Two tensors of several chunks: one has sgd with momentum at the shards, of the other they give the mean.
 * A rank (of the first membership) kills itself WHERE: "before" its calls, in the "middle" of them, or
 * "after" them, before step_end. A chunk of a step must be what one membership makes of it: that of the
 * ranks which are left, or an earlier one if it was closed when a rank was lost; weights follow a model
 * that does the same here; with a codec it is always the present one. Gradients are whole numbers, so that
 * sums are exact. Every rank prints, at the
 * end, "ranks N steps S shrunk TIMES earlier E hash H"; E: chunks of an earlier membership. `rest`: rank R
 * runs DATA + R steps in each round, then joins. When all have joined, each rank has the weights of the
 * shards and prints that. `grow`: until there are RANKS ranks again, some of them new, and MORE steps. New
 * ranks take the weights of the shards, and print "new". `refused`: what such a job refuses. */
#include <math.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <weft/weft.h>

enum { COUNT = 20000, CHUNK = 1024, RANKS_MAX = 8, MEMBERSHIPS_MAX = 64 };

static float weights[COUNT], grad[COUNT], mean[COUNT];
static double model[COUNT], velocity[COUNT];
static uint32_t born_of[MEMBERSHIPS_MAX][RANKS_MAX], ranks_of[MEMBERSHIPS_MAX], memberships;
static struct weft_tensor *updated, *averaged;
static const char *codec = "";

static void die(struct weft_session *session, const char *what)
{
    fprintf(stderr, "%s: %s\n", what, weft_error_text(session));
    exit(1);
}

static double gradient(uint32_t born, uint64_t step, uint32_t i)
{
    return (double)((born * 37 + step * 11 + i) % 101) - 50;
}

static double mean_of(uint32_t membership, uint64_t step, uint32_t i)
{
    double sum = 0;
    for (uint32_t r = 0; r < ranks_of[membership]; r++) sum += gradient(born_of[membership][r], step, i);
    return sum / ranks_of[membership];
}

static bool near(double a, double b) { return fabs(a - b) <= 1e-3 * (1 + fabs(b)); }

static bool mean_fits(uint32_t membership, uint64_t step, uint32_t first, uint32_t end)
{
    for (uint32_t i = first; i < end; i++)
        if (!near((double)mean[i], mean_of(membership, step, i))) return false;
    return true;
}

static bool is_update_of(uint32_t membership, uint64_t step, uint32_t first, uint32_t end)
{
    for (uint32_t i = first; i < end; i++)
        if (!near((double)weights[i], model[i] - 0.125 * (0.5 * velocity[i] + mean_of(membership, step, i))))
            return false;
    return true;
}

static bool update_fits(uint32_t membership, uint64_t step, uint32_t first, uint32_t end)
{
    if (!is_update_of(membership, step, first, end)) return false;
    for (uint32_t i = first; i < end; i++) {
        velocity[i] = 0.5 * velocity[i] + mean_of(membership, step, i);
        model[i] -= 0.125 * velocity[i];
    }
    return true;
}

/* How many chunks were those of an earlier membership. */
static uint32_t check_chunks(uint64_t step, bool (*fits)(uint32_t, uint64_t, uint32_t, uint32_t),
                             const char *what)
{
    uint32_t earlier = 0;
    for (uint32_t first = 0; first < COUNT; first += CHUNK) {
        uint32_t at = memberships, end = first + CHUNK < COUNT ? first + CHUNK : COUNT;
        while (at > 0 && !fits(at - 1, step, first, end)) at = codec[0] ? 0 : at - 1;
        if (at == 0) {
            fprintf(stderr, "step %llu: %s from element %u on is of no membership\n",
                    (unsigned long long)step, what, first);
            exit(1);
        }
        earlier += at < memberships;
    }
    return earlier;
}

static enum weft_status take_members(struct weft_session *session, uint32_t born)
{
    uint32_t all[RANKS_MAX] = {0};
    struct weft_request request = {{0}};
    enum weft_status status = weft_all_gather(session, &born, all, 1, WEFT_U32, &request);
    if (status >= 0) status = weft_wait(&request, 0);
    if (status < 0) return status;
    memcpy(born_of[memberships], all, sizeof all);
    ranks_of[memberships++] = weft_ranks(session);
    return WEFT_OK;
}

static struct weft_tensor *declare(struct weft_session *session, const char *name, const char *optimizer,
                                   bool skips, enum weft_status *status_out)
{
    struct weft_tensor *tensor = NULL;
    struct weft_tensor_options options;
    weft_tensor_options_init(&options);
    options.name = name;
    options.dim_count = 1;
    options.dims[0] = COUNT;
    options.chunk_bytes = CHUNK * sizeof(float);
    options.mode = WEFT_MODE_SERVER;
    options.optimizer = optimizer;
    options.codec = codec;
    options.skip_nonfinite = skips;
    *status_out = weft_declare(session, &options, &tensor);
    return tensor;
}

struct kill_order {
    unsigned rank, step;
    const char *where;
};
static struct kill_order orders[8];
static int order_count;

static void obey(unsigned born, uint64_t step, const char *where)
{
    for (int i = 0; i < order_count; i++)
        if (orders[i].rank == born && orders[i].step == step && strcmp(orders[i].where, where) == 0)
            kill(getpid(), SIGKILL);
}

static enum weft_status run_step(struct weft_session *session, uint64_t step, unsigned born)
{
    struct weft_request requests[2] = {{{0}}};
    enum weft_status status =
        weft_step_begin(session, &(struct weft_step){.step = step, .lr = 0.125f, .weight = 1});
    if (status < 0) return status;
    for (uint32_t i = 0; i < COUNT; i++) grad[i] = (float)gradient(born, step, i);
    obey(born, step, "before");
    if (weft_push_pull(updated, grad, weights, &requests[0]) < 0) die(session, "push_pull");
    /* one rank waits for the first request; the other ranks have pushed both */
    if (born == 0) weft_wait(&requests[0], 0);
    obey(born, step, "middle");
    if (weft_push_pull(averaged, grad, mean, &requests[1]) < 0) die(session, "push_pull");
    for (int i = 0; i < 2; i++) {
        status = weft_wait(&requests[i], 0);
        if (status < 0 && status != WEFT_ERR_PEER_LOST) die(session, "wait");
    }
    obey(born, step, "after");
    return weft_step_end(session);
}

static uint64_t hash_weights(void)
{
    uint64_t hash = 0xcbf29ce484222325ull;
    const unsigned char *bytes = (const unsigned char *)weights;
    for (size_t i = 0; i < sizeof weights; i++) hash = (hash ^ bytes[i]) * 0x100000001b3ull;
    return hash;
}

/* A chunk that the shards have closed in a step that was discarded is one update further than the model. */
static bool chunk_is_shared(uint64_t step, uint32_t first, uint32_t end)
{
    uint32_t i = first, at = memberships;
    while (i < end && near((double)weights[i], model[i])) i++;
    while (i < end && at > 0 && !is_update_of(at - 1, step, first, end)) at--;
    return i == end || at > 0;
}

/* Ranks are new, or all have rested: the shards have the weights of all steps, and so has the model of the
 * rank that ran the last step. */
static enum weft_status take_shared(struct weft_session *session, uint64_t behind)
{
    uint64_t newest[RANKS_MAX] = {0};
    uint32_t root = 0;
    const struct {
        void *data;
        size_t bytes;
    } kept[] = {{model, sizeof model},
                {velocity, sizeof velocity},
                {born_of, sizeof born_of},
                {ranks_of, sizeof ranks_of},
                {&memberships, sizeof memberships}};
    struct weft_request request = {{0}};
    enum weft_status status = weft_all_gather(session, &behind, newest, 1, WEFT_U64, &request);
    if (status >= 0) status = weft_wait(&request, 0);
    for (uint32_t r = 1; r < RANKS_MAX; r++)
        if (newest[r] > newest[root]) root = r;
    if (status >= 0) status = weft_tensor_share(updated, weights, root);
    for (int i = 0; i < 5 && status >= 0; i++) {
        status = weft_broadcast(session, kept[i].data, kept[i].bytes / 4, WEFT_U32, root, &request);
        if (status >= 0) status = weft_wait(&request, 0);
    }
    for (uint32_t first = 0; first < COUNT && status >= 0; first += CHUNK)
        if (!chunk_is_shared(weft_step_next(session), first, first + CHUNK < COUNT ? first + CHUNK : COUNT)) {
            fprintf(stderr, "step %llu: the shards' weights from element %u on are of no membership\n",
                    (unsigned long long)weft_step_next(session), first);
            exit(1);
        }
    return status;
}

static void rest(struct weft_session *session, unsigned born, unsigned round)
{
    uint32_t last = 0;
    obey(born, weft_step_next(session), "resting");
    const enum weft_status status = weft_join(session, 60000, &last);
    if (status < 0) die(session, "join");
    printf("rested %u: rank %u of %u, last %u, next %llu\n", round, weft_rank(session), weft_ranks(session),
           last, (unsigned long long)weft_step_next(session));
}

static int refused(struct weft_session *session)
{
    enum weft_status status;
    declare(session, "skipped", "none", true, &status);
    if (status != WEFT_ERR_UNSUPPORTED) die(session, "skip_nonfinite was not refused");
    printf("refused: %s\n", weft_error_text(session));
    updated = declare(session, "updated", "sgd:momentum=0.5", false, &status);
    if (weft_join(session, 0, NULL) != WEFT_ERR_STATE) die(session, "join was not refused");
    printf("refused: %s\n", weft_error_text(session));
    weft_finalize(session);
    return 0;
}

int main(int argc, char **argv)
{
    struct weft_session *session;
    enum weft_status status;
    unsigned shrunk = 0, earlier = 0;
    if (argc > 1 && strncmp(argv[1], "codec=", 6) == 0) codec = argv[1] + 6, argv++, argc--;
    if (weft_init(NULL, &session) < 0) die(NULL, "init");
    if (argc > 1 && strcmp(argv[1], "refused") == 0) return refused(session);
    const bool rests = argc > 3 && strcmp(argv[1], "rest") == 0;
    const bool grows = argc > 3 && strcmp(argv[1], "grow") == 0;
    const unsigned rounds = rests ? (unsigned)atoi(argv[2]) : 1, data = rests ? (unsigned)atoi(argv[3]) : 0;
    const unsigned more = grows ? (unsigned)atoi(argv[2]) : 0, wanted = grows ? (unsigned)atoi(argv[3]) : 0;
    const bool is_new = weft_newcomer(session);
    uint64_t steps = grows ? UINT64_MAX : rests || argc < 2 ? 1 : strtoull(argv[1], NULL, 10);
    uint64_t behind = 0, ran = 0;
    unsigned round = 0;
    bool due = is_new;
    for (int a = rests || grows ? 4 : 2; a + 2 < argc && !is_new && order_count < 8; a += 3)
        orders[order_count++] =
            (struct kill_order){(unsigned)atoi(argv[a]), (unsigned)atoi(argv[a + 1]), argv[a + 2]};
    const unsigned born = is_new ? 8 + (unsigned)getpid() % 1000 : weft_rank(session);
    if (is_new) printf("new\n");
    if (is_new && weft_ranks(session) == wanted) steps = weft_step_next(session) - 1 + more;
    updated = declare(session, "updated", "sgd:momentum=0.5", false, &status);
    if (updated) averaged = declare(session, "averaged", "none", false, &status);
    if (status < 0) die(session, "declare");
    for (uint32_t i = 0; i < COUNT; i++) weights[i] = (float)(i % 7);
    for (bool first = true, again = true; rests ? round < rounds : weft_step_next(session) <= steps;) {
        if (rests && !first && ran >= data + born) {
            rest(session, born, ++round);
            ran = 0;
            again = due = true;
            continue;
        }
        const uint64_t step = weft_step_next(session);
        if (again && due) {
            status = take_shared(session, behind);
        } else if (again && first) { /* after a loss every call returns it until a step is good */
            status = weft_tensor_init(updated, weights);
            for (uint32_t i = 0; i < COUNT && status == WEFT_OK; i++) model[i] = (double)weights[i];
        } else {
            status = WEFT_OK;
        }
        if (status == WEFT_OK && again) status = take_members(session, born);
        if (status == WEFT_OK) again = false;
        if (status < 0 && status != WEFT_ERR_PEER_LOST) die(session, "between steps");
        if (step == 1 && first && !again) fprintf(stderr, "the job runs\n");
        status = status < 0 ? weft_shrink(session) : run_step(session, step, born);
        if (status == WEFT_ERR_SHRUNK || status == WEFT_ERR_GREW) {
            fprintf(stderr, "%s\n", weft_error_text(session));
            shrunk += status == WEFT_ERR_SHRUNK;
            if (grows && weft_ranks(session) != wanted) steps = UINT64_MAX;
            if (status == WEFT_ERR_GREW) {
                due = true;
                if (weft_ranks(session) == wanted) steps = weft_step_next(session) - 1 + more;
            }
            again = true;
            continue;
        }
        if (status < 0) die(session, "step");
        first = due = false;
        behind = step;
        ran++;
        earlier += check_chunks(step, update_fits, "the update") + check_chunks(step, mean_fits, "the mean");
    }
    printf("ranks %u steps %llu shrunk %u earlier %u hash %016llx\n", weft_ranks(session),
           (unsigned long long)weft_step_next(session) - 1, shrunk, earlier,
           (unsigned long long)hash_weights());
    weft_finalize(session);
    return 0;
}
