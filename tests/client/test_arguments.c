/* test_arguments.c - every call of weft.h with every argument wrong: a status, a sentence that names the call
 * and the argument, and a session that goes on. After each of them all ranks add something up and get the
 * right sum.
 *
 * check_arguments.py demands that every function of the header is called here. */
#include "tests/lib/check.h"

#include <ctype.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "crowd.h"
#include "fleet.h"

#define RANKS 2u
#define ELEMS 8u
#define COUNT_FAR 64

struct bench {
    struct crowd *crowd;
    struct weft_session *session;
    uint32_t rank;
};

static void complain(struct bench *bench, const char *what, int line, enum weft_status got, const char *text)
{
    atomic_fetch_add(&bench->crowd->failures, 1);
    fprintf(stderr, "%s:%d: rank %u: %s gave %s, \"%s\"\n", __FILE__, line, bench->rank, what,
            weft_status_name(got), text);
}

/* Neither empty nor the name of a status in other words, and on one line. */
static bool is_sentence(const char *text, enum weft_status status)
{
    if (strlen(text) < 12 || strcmp(text, weft_status_text(status)) == 0) return false;
    for (const char *c = text; *c; c++)
        if (iscntrl((unsigned char)*c)) return false;
    return true;
}

/* The session still works. */
static void still_adds(struct bench *bench, const char *what, int line)
{
    struct weft_request request = {{0}};
    float x[3] = {1, 2, 3};
    enum weft_status status = weft_all_reduce(bench->session, x, x, 3, WEFT_F32, WEFT_SUM, &request);
    if (status >= 0) status = weft_wait(&request, 0);
    bool right = status == WEFT_OK && x[0] == RANKS && x[2] == 3 * RANKS;
    if (!right) complain(bench, what, line, status, "and after it an all_reduce was wrong");
}

/* `call` and `argument` must be in the sentence. session NULL: the sentence of this thread. */
static void check_refused(struct bench *bench, struct weft_session *session, enum weft_status got,
                 enum weft_status wanted, const char *call, const char *argument, const char *what, int line)
{
    const char *text = weft_error_text(session);
    if (got != wanted || !is_sentence(text, got) || !strstr(text, call) || !strstr(text, argument)) {
        complain(bench, what, line, got, text);
        fprintf(stderr, "    wanted %s with '%s' and '%s'\n", weft_status_name(wanted), call, argument);
    }
}

static void refused(struct bench *bench, struct weft_session *session, enum weft_status got,
                    enum weft_status wanted, const char *call, const char *argument, const char *what,
                    int line)
{
    check_refused(bench, session, got, wanted, call, argument, what, line);
    still_adds(bench, what, line);
}

#define REFUSED(got, wanted, call, argument) \
    refused(bench, bench->session, got, wanted, call, argument, #got, __LINE__)
#define REFUSED_HERE(got, wanted, call, argument) \
    refused(bench, NULL, got, wanted, call, argument, #got, __LINE__)
/* While a group of calls is open, or if not all ranks call: the following calls show that the session
 * works. */
#define REFUSED_ALONE(got, wanted, call, argument) \
    check_refused(bench, bench->session, got, wanted, call, argument, #got, __LINE__)
#define OK(call) CROWD_OK(bench->crowd, bench->session, call)
#define HOLDS(condition) CROWD_CHECK(bench->crowd, bench->session, condition)

static _Thread_local float a[4 * ELEMS], b[4 * ELEMS]; /* never read for their values */

/* ---- 1: sessions ---- */

static void sessions(struct bench *bench)
{
    struct weft_options options;
    struct weft_session *session = NULL;
    (weft_options_init)(NULL);
    weft_options_init_sized(NULL, 100);
#define JOIN(change, argument)                                                             \
    do {                                                                                   \
        weft_options_init(&options);                                                       \
        options.coordinator = "127.0.0.1:9";                                               \
        change;                                                                            \
        REFUSED_HERE(weft_init(&options, &session), WEFT_ERR_INVALID, "weft_init", argument); \
    } while (0)
    JOIN(options.size = 1, "options");
    JOIN(options.coordinator = "nowhere", "coordinator");
    JOIN(options.coordinator = "host:port", "port");
    JOIN(options.coordinator = ":9", "coordinator");
    JOIN(options.coordinator = "two\nlines:9", "two\\nlines");
    JOIN(options.job = "two\nlines", "two\\nlines");
    JOIN(options.rank = INT_MAX, "rank");
    JOIN(options.lanes = "pigeons\n", "lanes");
    JOIN(options.devices = "lo\n", "devices");
#undef JOIN
    REFUSED_HERE(weft_init(NULL, NULL), WEFT_ERR_INVALID, "weft_init", "session_out");
    HOLDS(session == NULL && weft_finalize(NULL) == WEFT_OK && weft_rank(NULL) == 0 &&
          weft_ranks(NULL) == 0 && weft_shards(NULL) == 0);
    HOLDS(weft_version()[0] != 0);
    HOLDS(weft_struct_bytes(NULL) == 0 && weft_struct_bytes("") == 0 && weft_struct_bytes("weft_calls") == 0);
}

/* ---- 2: tensors ---- */

static void declarations(struct bench *bench)
{
    char long_text[600] = {0};
    struct weft_tensor *tensor = NULL;
    struct weft_tensor_options options;
    (weft_tensor_options_init)(NULL);
    weft_tensor_options_init_sized(NULL, 100);
    memset(long_text, 'x', sizeof long_text - 1);
#define DECLARE(change, status, argument)                                              \
    do {                                                                               \
        weft_tensor_options_init(&options);                                            \
        options.name = "wrong", options.dim_count = 1, options.dims[0] = ELEMS;        \
        change;                                                                        \
        REFUSED(weft_declare(bench->session, &options, &tensor), status, "declare", argument); \
    } while (0)
    DECLARE(options.size = 1, WEFT_ERR_INVALID, "weft_tensor_options_init");
    DECLARE(options.name = NULL, WEFT_ERR_INVALID, "name");
    DECLARE(options.name = "", WEFT_ERR_INVALID, "name");
    DECLARE(options.name = long_text, WEFT_ERR_INVALID, "name");
    DECLARE(options.name = "two\nlines", WEFT_ERR_INVALID, "two\\nlines");
    DECLARE(options.name = "delete\177", WEFT_ERR_INVALID, "control characters");
    DECLARE(options.name = "declared", WEFT_ERR_EXISTS, "'declared'");
    DECLARE(options.dim_count = 0, WEFT_ERR_INVALID, "dim_count is 0");
    DECLARE(options.dim_count = 9, WEFT_ERR_INVALID, "dim_count is 9");
    DECLARE(options.dims[0] = 0, WEFT_ERR_INVALID, "dimensions");
    DECLARE(options.dims[0] = UINT64_MAX, WEFT_ERR_INVALID, "dimensions");
    DECLARE((options.dim_count = 2, options.dims[0] = options.dims[1] = 1ull << 33), WEFT_ERR_INVALID,
            "dimensions");
    DECLARE(options.dtype = (enum weft_dtype)77, WEFT_ERR_INVALID, "dtype 77");
    DECLARE(options.dtype = (enum weft_dtype)-1, WEFT_ERR_INVALID, "dtype -1");
    DECLARE((options.dtype = WEFT_F64, options.optimizer = "sgd"), WEFT_ERR_INVALID, "dtype");
    DECLARE((options.dtype = WEFT_F16, options.optimizer = "sgd"), WEFT_ERR_UNSUPPORTED, "f16");
    DECLARE((options.dtype = WEFT_BF16, options.codec = "int8"), WEFT_ERR_UNSUPPORTED, "bf16");
    DECLARE(options.mode = WEFT_MODE_SERVER, WEFT_ERR_INVALID, "shards");
    DECLARE(options.mode = (enum weft_mode)9, WEFT_ERR_INVALID, "mode 9");
    DECLARE(options.codec = "zip", WEFT_ERR_INVALID, "zip");
    DECLARE(options.codec = "topk:ratio=7", WEFT_ERR_INVALID, "ratio");
    DECLARE(options.codec = "int8\n", WEFT_ERR_INVALID, "int8\\n");
    DECLARE(options.codec = "auto:zip", WEFT_ERR_INVALID, "zip");
    DECLARE(options.codec = long_text, WEFT_ERR_INVALID, "codec");
    DECLARE(options.optimizer = "adamantium", WEFT_ERR_INVALID, "adamantium");
    DECLARE(options.optimizer = "sgd:momentum=nan", WEFT_ERR_INVALID, "momentum");
    DECLARE(options.optimizer = "sgd\r", WEFT_ERR_INVALID, "sgd\\r");
    DECLARE(options.optimizer = long_text, WEFT_ERR_INVALID, "optimizer");
    DECLARE(options.consistency = long_text, WEFT_ERR_INVALID, "its consistency has");
    DECLARE(options.consistency = "as\np", WEFT_ERR_INVALID, "control characters");
    DECLARE(options.consistency = "ssp:1.5", WEFT_ERR_INVALID, "none of bsp, ssp:S");
    DECLARE(options.consistency = "asp", WEFT_ERR_UNSUPPORTED, "needs server mode");
    DECLARE(options.pull_dtype = WEFT_BF16, WEFT_ERR_UNSUPPORTED, "needs server mode");
    DECLARE(options.pull_dtype = WEFT_I64, WEFT_ERR_INVALID, "pull_dtype is f16 or bf16");
    DECLARE(options.chunk_bytes = 3, WEFT_ERR_INVALID, "chunk_bytes is 3");
    DECLARE(options.chunk_bytes = UINT64_MAX, WEFT_ERR_INVALID, "chunk_bytes");
#undef DECLARE
    REFUSED(weft_declare(bench->session, NULL, &tensor), WEFT_ERR_INVALID, "declare",
            "weft_tensor_options_init");
    REFUSED(weft_declare(bench->session, &options, NULL), WEFT_ERR_INVALID, "declare", "tensor_out");
    REFUSED_HERE(weft_declare(NULL, &options, &tensor), WEFT_ERR_INVALID, "declare", "session");
    HOLDS(tensor == NULL);
}

static struct weft_tensor *declare(struct bench *bench, const char *name, const char *optimizer)
{
    struct weft_tensor *tensor = NULL;
    struct weft_tensor_options options;
    weft_tensor_options_init(&options);
    options.name = name;
    options.dim_count = 1;
    options.dims[0] = ELEMS;
    options.optimizer = optimizer;
    OK(weft_declare(bench->session, &options, &tensor));
    return tensor;
}

static void wrong_steps(struct bench *bench)
{
    struct weft_session *session = bench->session;
#define BEGIN(change, argument)                                                                 \
    do {                                                                                        \
        struct weft_step step = {.step = weft_step_next(session), .lr = 1, .weight = 1};        \
        change;                                                                                 \
        REFUSED(weft_step_begin(session, &step), WEFT_ERR_INVALID, "step_begin", argument);     \
    } while (0)
    BEGIN(step.step = 0, "step is 0");
    BEGIN(step.step = UINT64_MAX, "step is 18446744073709551615");
    BEGIN(step.lr = NAN, "lr is nan");
    BEGIN(step.lr = INFINITY, "lr is inf");
    BEGIN(step.weight = NAN, "weight is");
    BEGIN(step.weight = INFINITY, "weight is inf");
    BEGIN(step.weight = -1, "weight is -1");
    BEGIN(step.weight = 3e38f, "weight is 3e+38"); /* of two ranks the sum would be infinite */
    BEGIN(step.weight = 1e-44f, "weight is");
#undef BEGIN
    REFUSED(weft_step_begin(session, NULL), WEFT_ERR_INVALID, "step_begin", "step is NULL");
    REFUSED_HERE(weft_step_begin(NULL, NULL), WEFT_ERR_INVALID, "step_begin", "session");
    REFUSED(weft_step_begin_with(session, NULL), WEFT_ERR_INVALID, "step_begin_with", "options is NULL");
    REFUSED(weft_step_begin_with(session, &(struct weft_step_options){.step = 1}), WEFT_ERR_INVALID,
            "step_begin_with", "options.size is 0");
    REFUSED(weft_step_begin_with(session, WEFT_STEP(.step = 77, .weight = 1)), WEFT_ERR_INVALID, "step_begin",
            "step is 77");
    REFUSED_HERE(weft_step_begin_with(NULL, NULL), WEFT_ERR_INVALID, "step_begin_with", "session");
    REFUSED(weft_step_end(session), WEFT_ERR_STATE, "step_end", "step_begin");
    REFUSED_HERE(weft_step_end(NULL), WEFT_ERR_INVALID, "step_end", "session");
    REFUSED_HERE(weft_step_wait(NULL), WEFT_ERR_INVALID, "step_wait", "session");
    HOLDS(weft_step_wait(session) == WEFT_OK); /* nothing is open */
    HOLDS(weft_step_next(NULL) == 0 && !weft_newcomer(NULL));
}

static void outside_a_step(struct bench *bench, struct weft_tensor *plain, struct weft_tensor *trained)
{
    struct weft_request request = {{0}};
    REFUSED(weft_push_pull(plain, a, b, &request), WEFT_ERR_STATE, "push_pull of tensor 'plain'",
            "outside a step");
    REFUSED(weft_push(plain, a, &request), WEFT_ERR_UNSUPPORTED, "push of tensor 'plain'", "server mode");
    REFUSED(weft_pull(plain, b, &request), WEFT_ERR_UNSUPPORTED, "pull of tensor 'plain'", "server mode");
    REFUSED(weft_push(plain, NULL, &request), WEFT_ERR_INVALID, "push of tensor 'plain'", "NULL");
    REFUSED(weft_pull(plain, NULL, &request), WEFT_ERR_INVALID, "pull of tensor 'plain'", "NULL");
    REFUSED_HERE(weft_push_pull(NULL, a, b, &request), WEFT_ERR_INVALID, "push_pull", "tensor");
    REFUSED_HERE(weft_push(NULL, a, &request), WEFT_ERR_INVALID, "push", "tensor");
    REFUSED_HERE(weft_push_none(NULL), WEFT_ERR_INVALID, "push_none", "tensor");
    REFUSED(weft_push_none(plain), WEFT_ERR_STATE, "push_none of tensor 'plain'", "outside a step");
    REFUSED_HERE(weft_pull(NULL, b, &request), WEFT_ERR_INVALID, "pull", "tensor");
    REFUSED(weft_tensor_memory(plain, (enum weft_memory_kind)9, NULL), WEFT_ERR_INVALID, "tensor_memory",
            "memory 9");
    REFUSED_HERE(weft_tensor_memory(NULL, WEFT_MEMORY_HOST, NULL), WEFT_ERR_INVALID, "tensor_memory",
                 "tensor");
    REFUSED_HERE(weft_tensor_on_stream(NULL, true), WEFT_ERR_INVALID, "tensor_on_stream", "tensor");
    REFUSED(weft_tensor_init(trained, NULL), WEFT_ERR_INVALID, "init of tensor 'trained'", "weights");
    REFUSED_HERE(weft_tensor_init(NULL, a), WEFT_ERR_INVALID, "tensor_init", "tensor");
    REFUSED(weft_tensor_share(trained, NULL, 0), WEFT_ERR_INVALID, "tensor_share", "NULL");
    REFUSED(weft_tensor_share(trained, a, RANKS), WEFT_ERR_INVALID, "tensor_share", "root is 2");
    REFUSED_HERE(weft_tensor_share(NULL, a, 0), WEFT_ERR_INVALID, "tensor_share", "tensor");
    REFUSED_HERE(weft_shrink(NULL), WEFT_ERR_INVALID, "shrink", "session");
    REFUSED(weft_join(bench->session, UINT64_MAX, NULL), WEFT_ERR_STATE, "join", "elastic");
    REFUSED_HERE(weft_join(NULL, 0, NULL), WEFT_ERR_INVALID, "join", "session");
}

static void inside_a_step(struct bench *bench, struct weft_tensor *plain, struct weft_tensor *trained)
{
    struct weft_session *session = bench->session;
    struct weft_tensor *tensor = NULL;
    struct weft_request request = {{0}}, other = {{0}}, dirty;
    struct weft_step step = {.step = weft_step_next(session), .lr = 1, .weight = 1};
    struct weft_tensor_options options;
    uint8_t bytes[8];
    weft_tensor_options_init(&options);
    memset(&dirty, 0x77, sizeof dirty);
    OK(weft_step_begin(session, &step));
    REFUSED(weft_step_begin(session, &step), WEFT_ERR_STATE, "step_begin", "still open");
    REFUSED(weft_declare(session, &options, &tensor), WEFT_ERR_STATE, "weft_declare", "inside step");
    REFUSED(weft_tensor_init(plain, a), WEFT_ERR_STATE, "init of tensor 'plain'", "inside a step");
    REFUSED(weft_tensor_share(plain, a, 0), WEFT_ERR_STATE, "tensor_share of tensor 'plain'", "inside step");
    REFUSED(weft_state_save(plain, bytes, sizeof bytes), WEFT_ERR_STATE, "state_save of tensor 'plain'",
            "inside step");
    REFUSED(weft_state_load(plain, bytes, sizeof bytes), WEFT_ERR_STATE, "state_load of tensor 'plain'",
            "inside step");
    REFUSED(weft_residual_save(plain, bytes, sizeof bytes), WEFT_ERR_STATE, "residual_save of tensor 'plain'",
            "inside step");
    REFUSED(weft_residual_load(plain, bytes, sizeof bytes), WEFT_ERR_STATE, "residual_load of tensor 'plain'",
            "inside step");
    REFUSED(weft_shrink(session), WEFT_ERR_STATE, "shrink", "open");
    REFUSED(weft_push_pull(plain, NULL, b, &request), WEFT_ERR_INVALID, "push_pull of tensor 'plain'",
            "NULL");
    REFUSED(weft_push_pull(plain, a, NULL, &request), WEFT_ERR_INVALID, "push_pull of tensor 'plain'",
            "NULL");
    REFUSED(weft_push_pull(plain, a, a + 1, &request), WEFT_ERR_INVALID, "push_pull of tensor 'plain'",
            "overlap");
    REFUSED(weft_push_pull(plain, a + ELEMS - 1, a, &request), WEFT_ERR_INVALID,
            "push_pull of tensor 'plain'", "overlap");
    REFUSED(weft_push_pull(plain, a, b, NULL), WEFT_ERR_INVALID, "push_pull", "request");
    REFUSED(weft_push_pull(plain, a, b, &dirty), WEFT_ERR_INVALID, "push_pull", "zeroed");
    REFUSED(weft_push_pull(trained, a, b, &request), WEFT_ERR_STATE, "push_pull of tensor 'trained'",
            "weft_tensor_init");
    OK(weft_push_pull(plain, a, b, &request));
    HOLDS(weft_push_pull(plain, a, b, &other) == WEFT_ERR_STATE); /* still open, or twice in the step */
    OK(weft_wait(&request, 0));
    REFUSED(weft_push_pull(plain, a, b, &request), WEFT_ERR_STATE, "push_pull of tensor 'plain'",
            "twice in step");
    OK(weft_group_start(session));
    REFUSED_ALONE(weft_step_end(session), WEFT_ERR_STATE, "step_end", "weft_group_end");
    OK(weft_group_end(session));
    OK(weft_step_end(session));
}

/* ---- 3: collectives ---- */

static void every_collective(struct bench *bench)
{
    struct weft_session *s = bench->session;
    struct weft_request r = {{0}}, dirty;
    const enum weft_dtype none = (enum weft_dtype)77;
    const enum weft_op no_op = (enum weft_op)77;
    const uint64_t counts[RANKS] = {1, 2}, huge[RANKS] = {1, UINT64_MAX}, many = UINT64_MAX;
    const uint32_t peer = 1 - bench->rank, far = RANKS;
    memset(&dirty, 0x77, sizeof dirty);
    bool root = bench->rank == 0;
#define BAD(call, argument) REFUSED(call, WEFT_ERR_INVALID, name, argument)
    const char *name = "all_reduce";
    BAD(weft_all_reduce(s, NULL, b, 4, WEFT_F32, WEFT_SUM, &r), "`in` is NULL");
    BAD(weft_all_reduce(s, a, NULL, 4, WEFT_F32, WEFT_SUM, &r), "`out` is NULL");
    BAD(weft_all_reduce(s, a, b, many, WEFT_F32, WEFT_SUM, &r), "count");
    BAD(weft_all_reduce(s, a, b, 1ull << 60, WEFT_F32, WEFT_SUM, &r), "count");
    BAD(weft_all_reduce(s, a, b, 4, none, WEFT_SUM, &r), "dtype 77");
    BAD(weft_all_reduce(s, a, b, 4, (enum weft_dtype)0, WEFT_SUM, &r), "dtype 0");
    BAD(weft_all_reduce(s, a, b, 4, (enum weft_dtype)-1, WEFT_SUM, &r), "dtype -1");
    BAD(weft_all_reduce(s, a, b, 4, WEFT_F32, no_op, &r), "op 77");
    BAD(weft_all_reduce(s, a, b, 4, WEFT_F32, (enum weft_op)0, &r), "op 0");
    BAD(weft_all_reduce(s, a, b, 4, WEFT_F32, WEFT_SUM, NULL), "request");
    BAD(weft_all_reduce(s, a, b, 4, WEFT_F32, WEFT_SUM, &dirty), "zeroed");
    static const enum weft_op bitwise[] = {WEFT_AND, WEFT_OR, WEFT_XOR};
    static const enum weft_dtype floats[] = {WEFT_F32,  WEFT_F64,     WEFT_F16,
                                             WEFT_BF16, WEFT_F8_E4M3, WEFT_F8_E5M2};
    for (size_t f = 0; f < sizeof floats / sizeof floats[0]; f++)
        for (size_t o = 0; o < 3; o++) {
            const char *type = weft_dtype_name(floats[f]);
            REFUSED(weft_all_reduce(s, a, b, 4, floats[f], bitwise[o], &r), WEFT_ERR_UNSUPPORTED,
                    "all_reduce", type);
            REFUSED(weft_reduce(s, a, b, 4, floats[f], bitwise[o], 0, &r), WEFT_ERR_UNSUPPORTED, "reduce",
                    type);
            REFUSED(weft_reduce_scatter(s, a, b, 2, floats[f], bitwise[o], &r), WEFT_ERR_UNSUPPORTED,
                    "reduce_scatter", type);
            REFUSED(weft_reduce_scatter_v(s, a, b, counts, floats[f], bitwise[o], &r), WEFT_ERR_UNSUPPORTED,
                    "reduce_scatter", type);
        }
    static const enum weft_dtype integers[] = {WEFT_I32, WEFT_I64, WEFT_U8, WEFT_U32};
    for (size_t i = 0; i < sizeof integers / sizeof integers[0]; i++) {
        const char *type = weft_dtype_name(integers[i]);
        REFUSED(weft_all_reduce_scaled(s, a, b, 4, integers[i], 0.5, &r), WEFT_ERR_UNSUPPORTED, "all_reduce",
                type);
        REFUSED(weft_all_reduce_weighted(s, a, b, 4, integers[i], 0.5, &r), WEFT_ERR_UNSUPPORTED,
                "all_reduce", type);
        REFUSED(weft_all_reduce(s, a, b, 4, integers[i], WEFT_SCALED_SUM, &r), WEFT_ERR_UNSUPPORTED,
                "all_reduce", type);
    }
    BAD(weft_all_reduce_scaled(s, a, b, 4, WEFT_F32, NAN, &r), "factor");
    BAD(weft_all_reduce_scaled(s, a, b, 4, WEFT_F32, INFINITY, &r), "factor is inf");
    BAD(weft_all_reduce_scaled(s, NULL, b, 4, WEFT_F32, 1, &r), "`in` is NULL");
    BAD(weft_all_reduce_weighted(s, a, b, 4, WEFT_F32, NAN, &r), "weight is");
    BAD(weft_all_reduce_weighted(s, a, b, 4, WEFT_F32, INFINITY, &r), "weight is inf");
    BAD(weft_all_reduce_weighted(s, a, b, 4, WEFT_F32, -1, &r), "weight is -1");
    BAD(weft_all_reduce_weighted(s, a, NULL, 4, WEFT_F32, 1, &r), "`out` is NULL");
    OK(weft_all_reduce_weighted(s, a, b, 4, WEFT_F32, 0, &r));
    BAD(weft_wait(&r, 0), "weights of all ranks");
    name = "reduce_scatter";
    BAD(weft_reduce_scatter(s, NULL, b, 4, WEFT_F32, WEFT_SUM, &r), "`in` is NULL");
    BAD(weft_reduce_scatter(s, a, b, many / 2, WEFT_F32, WEFT_SUM, &r), "count");
    BAD(weft_reduce_scatter_v(s, a, b, NULL, WEFT_F32, WEFT_SUM, &r), "counts is NULL");
    BAD(weft_reduce_scatter_v(s, a, b, huge, WEFT_F32, WEFT_SUM, &r), "of rank 1");
    BAD(weft_reduce_scatter_v(s, a, NULL, counts, WEFT_F32, WEFT_SUM, &r), "`out` is NULL");
    name = "all_gather";
    BAD(weft_all_gather(s, NULL, b, 4, WEFT_F32, &r), "`in` is NULL");
    BAD(weft_all_gather(s, a, b, 4, none, &r), "dtype 77");
    BAD(weft_all_gather_v(s, a, b, NULL, WEFT_F32, &r), "counts is NULL");
    BAD(weft_all_gather_v(s, a, b, huge, WEFT_F32, &r), "of rank 1");
    name = "broadcast";
    BAD(weft_broadcast(s, NULL, 4, WEFT_F32, 0, &r), "NULL");
    BAD(weft_broadcast(s, a, 4, WEFT_F32, far, &r), "root 2");
    BAD(weft_broadcast(s, a, many, WEFT_F32, 0, &r), "count");
    name = "reduce";
    BAD(weft_reduce(s, NULL, b, 4, WEFT_F32, WEFT_SUM, 0, &r), "`in` is NULL");
    BAD(weft_reduce(s, a, b, 4, WEFT_F32, WEFT_SUM, UINT32_MAX, &r), "root 4294967295");
    BAD(weft_reduce(s, a, b, 4, WEFT_F32, no_op, 0, &r), "op 77");
    name = "gather";
    BAD(weft_gather(s, NULL, b, 4, WEFT_F32, 0, &r), "`in` is NULL");
    BAD(weft_gather(s, a, b, 4, WEFT_F32, far, &r), "root 2");
    BAD(weft_gather(s, a, b, many, WEFT_F32, 0, &r), "count");
    BAD(weft_gather_v(s, a, b, 4, root ? huge : counts, WEFT_F32, root ? 0 : far, &r),
        root ? "of rank 1" : "root 2");
    if (root)
        REFUSED_ALONE(weft_gather_v(s, a, b, 4, NULL, WEFT_F32, 0, &r), WEFT_ERR_INVALID, name,
                      "counts is NULL");
    name = "scatter";
    BAD(weft_scatter(s, a, NULL, 4, WEFT_F32, 0, &r), "`out` is NULL");
    BAD(weft_scatter(s, a, b, 4, WEFT_F32, far, &r), "root 2");
    BAD(weft_scatter_v(s, a, b, 4, root ? huge : counts, WEFT_F32, root ? 0 : far, &r),
        root ? "of rank 1" : "root 2");
    if (root)
        REFUSED_ALONE(weft_scatter_v(s, a, b, 4, NULL, WEFT_F32, 0, &r), WEFT_ERR_INVALID, name,
                      "counts is NULL");
    name = "all_to_all";
    BAD(weft_all_to_all(s, NULL, b, 4, WEFT_F32, &r), "`in` is NULL");
    BAD(weft_all_to_all(s, a, b, many / 4, WEFT_F32, &r), "count");
    BAD(weft_all_to_all_v(s, a, NULL, b, counts, WEFT_F32, &r), "counts is NULL");
    BAD(weft_all_to_all_v(s, a, counts, b, NULL, WEFT_F32, &r), "counts is NULL");
    BAD(weft_all_to_all_v(s, a, counts, b, huge, WEFT_F32, &r), "of rank 1");
    name = "send";
    BAD(weft_send(s, NULL, 4, WEFT_F32, peer, &r), "NULL");
    BAD(weft_send(s, a, 4, WEFT_F32, bench->rank, &r), "this rank");
    BAD(weft_send(s, a, 4, WEFT_F32, far, &r), "rank 2");
    BAD(weft_send(s, a, 4, none, peer, &r), "dtype 77");
    BAD(weft_send(s, a, many, WEFT_F32, peer, &r), "count");
    name = "recv";
    BAD(weft_recv(s, NULL, 4, WEFT_F32, peer, &r), "NULL");
    BAD(weft_recv(s, a, 4, WEFT_F32, bench->rank, &r), "this rank");
    BAD(weft_recv(s, a, 4, WEFT_F32, far, &r), "rank 2");
    name = "barrier";
    BAD(weft_barrier(s, NULL), "request");
    BAD(weft_barrier(s, &dirty), "zeroed");
#undef BAD
}

/* Buffers that overlap but are not in place, for every operation that has two. */
static void overlaps(struct bench *bench)
{
    struct weft_session *s = bench->session;
    struct weft_request r = {{0}};
    float arena[8 * COUNT_FAR] = {0};
    const uint64_t counts[RANKS] = {3, 5};
    const uint32_t rank = bench->rank;
    static const int aparts[] = {1, -1, 2, ELEMS - 1, 1 - (int)ELEMS};
    float *in = arena + 2 * COUNT_FAR;
#define BAD(call, name) REFUSED(call, WEFT_ERR_INVALID, name, "overlap")
    for (size_t i = 0; i < sizeof aparts / sizeof aparts[0]; i++) {
        float *out = in + aparts[i];
        for (int again = 0; again < 2; again++) { /* also where the last call of the kind was right */
            BAD(weft_all_reduce(s, in, out, ELEMS, WEFT_F32, WEFT_SUM, &r), "all_reduce");
            OK(weft_all_reduce(s, in, in, ELEMS, WEFT_F32, WEFT_SUM, &r));
            OK(weft_wait(&r, 0));
        }
        BAD(weft_all_reduce_scaled(s, in, out, ELEMS, WEFT_F32, 2, &r), "all_reduce");
        BAD(weft_all_reduce_weighted(s, in, out, ELEMS, WEFT_F32, 2, &r), "all_reduce");
        BAD(weft_all_to_all(s, in, out, ELEMS / RANKS, WEFT_F32, &r), "all_to_all");
        BAD(weft_all_to_all_v(s, in, counts, out, counts, WEFT_F32, &r), "all_to_all");
        if (rank == 0)
            REFUSED_ALONE(weft_reduce(s, in, out, ELEMS, WEFT_F32, WEFT_SUM, 0, &r), WEFT_ERR_INVALID,
                          "reduce", "overlap");
        BAD(weft_call_start(s,
                            WEFT_CALL(.kind = WEFT_CALL_ALL_REDUCE, .in = in, .out = out, .count = ELEMS,
                                      .dtype = WEFT_F32),
                            &r),
            "all_reduce");
        BAD(weft_call_init(s,
                           WEFT_CALL(.kind = WEFT_CALL_ALL_REDUCE, .in = in, .out = out, .count = ELEMS,
                                     .dtype = WEFT_F32),
                           &r),
            "all_reduce");
        OK(weft_group_start(s));
        REFUSED_ALONE(weft_all_reduce(s, in, out, ELEMS, WEFT_F32, WEFT_SUM, &r), WEFT_ERR_INVALID,
                      "all_reduce", "overlap");
        OK(weft_group_end(s));
    }
    for (int off = -1; off <= 1; off += 2) { /* beside this rank's place */
        BAD(weft_all_gather(s, in + ELEMS * rank + off, in, ELEMS, WEFT_F32, &r), "all_gather");
        BAD(weft_all_gather_v(s, in + (rank ? 3 : 0) + off, in, counts, WEFT_F32, &r), "all_gather");
        BAD(weft_reduce_scatter(s, in, in + ELEMS * rank + off, ELEMS, WEFT_F32, WEFT_SUM, &r),
            "reduce_scatter");
        BAD(weft_reduce_scatter_v(s, in, in + (rank ? 3 : 0) + off, counts, WEFT_F32, WEFT_SUM, &r),
            "reduce_scatter");
        if (rank == 0)
            REFUSED_ALONE(weft_gather(s, in + off, in, ELEMS, WEFT_F32, 0, &r), WEFT_ERR_INVALID, "gather",
                          "overlap");
        if (rank == 0)
            REFUSED_ALONE(weft_scatter(s, in, in + off, ELEMS, WEFT_F32, 0, &r), WEFT_ERR_INVALID, "scatter",
                          "overlap");
    }
    /* in place, and side by side, all is well */
    OK(weft_all_gather(s, in + ELEMS * rank, in, ELEMS, WEFT_F32, &r));
    OK(weft_wait(&r, 0));
    OK(weft_all_gather_v(s, in + (rank ? 3 : 0), in, counts, WEFT_F32, &r));
    OK(weft_wait(&r, 0));
    OK(weft_reduce_scatter(s, in, in + ELEMS * rank, ELEMS, WEFT_F32, WEFT_SUM, &r));
    OK(weft_wait(&r, 0));
    OK(weft_all_reduce(s, in, in + ELEMS, ELEMS, WEFT_F32, WEFT_SUM, &r));
    OK(weft_wait(&r, 0));
    OK(weft_all_reduce(s, in, in - ELEMS, ELEMS, WEFT_F32, WEFT_SUM, &r));
    OK(weft_wait(&r, 0));
    OK(weft_all_to_all(s, in, in, ELEMS, WEFT_F32, &r));
    OK(weft_wait(&r, 0));
    /* `out` is ignored but at the root */
    OK(weft_gather(s, in + 1, rank ? in : in + 1, ELEMS, WEFT_F32, 0, &r));
    OK(weft_wait(&r, 0));
#undef BAD
}

static void without_a_session(struct bench *bench)
{
    struct weft_request r = {{0}};
    const uint64_t counts[RANKS] = {1, 1};
#define BAD(call, name) REFUSED_HERE(call, WEFT_ERR_INVALID, name, "session")
    BAD(weft_all_reduce(NULL, a, b, 4, WEFT_F32, WEFT_SUM, &r), "all_reduce");
    BAD(weft_all_reduce_scaled(NULL, a, b, 4, WEFT_F32, 1, &r), "all_reduce");
    BAD(weft_all_reduce_weighted(NULL, a, b, 4, WEFT_F32, 1, &r), "all_reduce");
    BAD(weft_reduce_scatter(NULL, a, b, 4, WEFT_F32, WEFT_SUM, &r), "reduce_scatter");
    BAD(weft_reduce_scatter_v(NULL, a, b, counts, WEFT_F32, WEFT_SUM, &r), "reduce_scatter");
    BAD(weft_all_gather(NULL, a, b, 4, WEFT_F32, &r), "all_gather");
    BAD(weft_all_gather_v(NULL, a, b, counts, WEFT_F32, &r), "all_gather");
    BAD(weft_broadcast(NULL, a, 4, WEFT_F32, 0, &r), "broadcast");
    BAD(weft_reduce(NULL, a, b, 4, WEFT_F32, WEFT_SUM, 0, &r), "reduce");
    BAD(weft_gather(NULL, a, b, 4, WEFT_F32, 0, &r), "gather");
    BAD(weft_gather_v(NULL, a, b, 4, counts, WEFT_F32, 0, &r), "gather");
    BAD(weft_scatter(NULL, a, b, 4, WEFT_F32, 0, &r), "scatter");
    BAD(weft_scatter_v(NULL, a, b, 4, counts, WEFT_F32, 0, &r), "scatter");
    BAD(weft_all_to_all(NULL, a, b, 4, WEFT_F32, &r), "all_to_all");
    BAD(weft_all_to_all_v(NULL, a, counts, b, counts, WEFT_F32, &r), "all_to_all");
    BAD(weft_send(NULL, a, 4, WEFT_F32, 0, &r), "send");
    BAD(weft_recv(NULL, a, 4, WEFT_F32, 0, &r), "recv");
    BAD(weft_barrier(NULL, &r), "barrier");
    BAD(weft_set_plan(NULL, "auto"), "set_plan");
    BAD(weft_explain(NULL, "barrier", 0, WEFT_F32, (char *)a, sizeof a), "explain");
    BAD(weft_call_start(NULL, NULL, &r), "call_start");
    BAD(weft_call_init(NULL, NULL, &r), "call_init");
    BAD(weft_group_start(NULL), "group_start");
    BAD(weft_group_end(NULL), "group_end");
    BAD(weft_split(NULL, NULL, 0, 0, NULL), "split");
    BAD(weft_comm_create(NULL, NULL, 0, 0, NULL), "comm_create");
    BAD(weft_mesh_create(NULL, NULL, 0, NULL), "mesh_create");
    BAD(weft_event_fd(NULL, NULL), "event_fd");
    BAD(weft_event_clear(NULL), "event_clear");
    BAD(weft_disown(NULL, a), "disown");
    BAD(weft_nccl_open(NULL, 0), "nccl_open");
    BAD(weft_register(NULL, a, 8), "register");
    BAD(weft_unregister(NULL, a), "unregister");
    BAD(weft_stats_get(NULL, NULL), "stats_get");
    BAD(weft_describe_links(NULL, NULL, 0), "describe_links");
    BAD(weft_dump_events(NULL, "x"), "dump_events");
    BAD(weft_abort(NULL, "x"), "abort");
#undef BAD
    HOLDS(strcmp(weft_plan_taken(NULL), "auto") == 0 && weft_alloc(NULL, 8) == NULL);
    weft_free(NULL, a);
}

/* Plans that an operation cannot take are no reason to end. */
static void plans(struct bench *bench)
{
    struct weft_session *s = bench->session;
    struct weft_request r = {{0}};
    float x[4] = {1, 1, 1, 1};
    char text[200];
    REFUSED(weft_set_plan(s, NULL), WEFT_ERR_INVALID, "set_plan", "plan is NULL");
    REFUSED(weft_set_plan(s, "warp"), WEFT_ERR_INVALID, "set_plan", "'warp'");
    REFUSED(weft_set_plan(s, "two\nlines"), WEFT_ERR_INVALID, "set_plan", "two\\nlines");
    REFUSED(weft_set_plan(s, "all_reduce=chain"), WEFT_ERR_UNSUPPORTED, "set_plan", "chain");
    REFUSED(weft_set_plan(s, "all_reduce=one-host"), WEFT_ERR_UNSUPPORTED, "set_plan", "one-host");
    REFUSED(weft_set_plan(s, "send=ring"), WEFT_ERR_UNSUPPORTED, "set_plan", "send");
    static const char *const all[] = {"direct", "ring", "doubling", "halving",   "double_tree",
                                      "bruck",  "pat",  "chain",    "hierarchy", "binomial"};
    for (size_t p = 0; p < sizeof all / sizeof all[0]; p++) { /* reproducible, unequal: by a plan that can */
        OK(weft_set_plan(s, all[p]));
        OK(weft_call_start(s,
                           WEFT_CALL(.kind = WEFT_CALL_ALL_REDUCE, .in = x, .out = x, .count = 4,
                                     .dtype = WEFT_F32, .reproducible = true),
                           &r));
        OK(weft_wait(&r, 0));
        OK(weft_all_gather_v(s, a, b, (const uint64_t[RANKS]){1, 2}, WEFT_F32, &r));
        OK(weft_wait(&r, 0));
        still_adds(bench, all[p], __LINE__);
    }
    OK(weft_set_plan(s, "auto"));
    REFUSED(weft_explain(s, NULL, 4, WEFT_F32, text, sizeof text), WEFT_ERR_INVALID, "explain", "operation");
    REFUSED(weft_explain(s, "two\nlines", 4, WEFT_F32, text, sizeof text), WEFT_ERR_INVALID, "explain",
            "operation");
    REFUSED(weft_explain(s, "all_reduce", 4, WEFT_F32, NULL, 9), WEFT_ERR_INVALID, "explain", "out");
    REFUSED(weft_explain(s, "all_reduce", 4, WEFT_F32, text, 0), WEFT_ERR_INVALID, "explain", "out");
    REFUSED(weft_explain(s, "all_reduce", 4, (enum weft_dtype)77, text, sizeof text), WEFT_ERR_INVALID,
            "explain", "dtype 77");
    REFUSED(weft_explain(s, "all_reduce", UINT64_MAX, WEFT_F32, text, sizeof text), WEFT_ERR_INVALID,
            "explain", "count");
}

/* ---- 4: calls in a struct ---- */

static void structs(struct bench *bench)
{
    struct weft_session *s = bench->session;
    struct weft_request r = {{0}}, dirty, two[2] = {{{0}}};
    const uint64_t counts[RANKS] = {1, 1};
    memset(&dirty, 0x77, sizeof dirty);
    struct weft_call call;
#define CALL(change, status, argument) \
    do { \
        call = *WEFT_CALL(.kind = WEFT_CALL_ALL_REDUCE, .in = a, .out = b, .count = 4, .dtype = WEFT_F32, \
                          .op = WEFT_SUM); \
        change; \
        REFUSED(weft_call_start(s, &call, &r), status, call_name, argument); \
        REFUSED(weft_call_init(s, &call, &r), status, call_name, argument); \
        OK(weft_group_start(s)); \
        enum weft_status grouped = weft_call_start(s, &call, &r); \
        OK(weft_group_end(s)); \
        HOLDS(grouped == (status)); \
    } while (0)
    const char *call_name = "call";
    CALL(call.size = 8, WEFT_ERR_INVALID, "size");
    CALL(call.kind = (enum weft_call_kind)0, WEFT_ERR_INVALID, "kind 0");
    CALL(call.kind = (enum weft_call_kind)6, WEFT_ERR_INVALID, "kind 6");
    CALL(call.kind = (enum weft_call_kind)99, WEFT_ERR_INVALID, "kind 99");
    call_name = "all_reduce";
    CALL(call.in = NULL, WEFT_ERR_INVALID, "`in` is NULL");
    CALL(call.out = NULL, WEFT_ERR_INVALID, "`out` is NULL");
    CALL(call.count = UINT64_MAX, WEFT_ERR_INVALID, "count");
    CALL(call.counts = counts, WEFT_ERR_INVALID, "count");
    CALL(call.counts_out = counts, WEFT_ERR_INVALID, "counts_out");
    CALL(call.unequal = true, WEFT_ERR_INVALID, "unequal");
    CALL(call.dtype = (enum weft_dtype)77, WEFT_ERR_INVALID, "dtype 77");
    CALL(call.op = (enum weft_op)77, WEFT_ERR_INVALID, "op 77");
    CALL(call.op = WEFT_XOR, WEFT_ERR_UNSUPPORTED, "xor");
    CALL((call.op = WEFT_SCALED_SUM, call.factor = NAN), WEFT_ERR_INVALID, "factor");
    CALL((call.op = WEFT_SCALED_SUM, call.factor = 2, call.dtype = WEFT_I32), WEFT_ERR_UNSUPPORTED, "i32");
    CALL((call.op = WEFT_SUM, call.weighted = true, call.weight = 1), WEFT_ERR_INVALID, "weight");
    CALL((call.op = WEFT_AVG, call.weighted = true, call.weight = NAN), WEFT_ERR_INVALID, "weight");
    CALL((call.op = WEFT_AVG, call.weighted = true, call.weight = 1, call.dtype = WEFT_I32),
         WEFT_ERR_UNSUPPORTED, "i32");
    CALL(call.deadline_ms = UINT64_MAX, WEFT_ERR_INVALID, "deadline_ms");
    CALL(call.memory = (enum weft_memory_kind)9, WEFT_ERR_INVALID, "memory 9");
    call_name = "reduce";
    CALL((call.kind = WEFT_CALL_REDUCE, call.root = RANKS), WEFT_ERR_INVALID, "root 2");
    call_name = "gather";
    CALL((call.kind = WEFT_CALL_GATHER, call.root = bench->rank, call.unequal = true), WEFT_ERR_INVALID,
         "counts");
    CALL((call.kind = WEFT_CALL_GATHER, call.root = bench->rank, call.counts = counts), WEFT_ERR_INVALID,
         "unequal");
    call_name = "all_to_all";
    CALL((call.kind = WEFT_CALL_ALL_TO_ALL, call.counts = counts), WEFT_ERR_INVALID, "counts");
#undef CALL
    REFUSED(weft_call_start(s, NULL, &r), WEFT_ERR_INVALID, "call", "size");
    REFUSED(weft_call_init(s, NULL, &r), WEFT_ERR_INVALID, "call", "size");
    call = *WEFT_CALL(.kind = WEFT_CALL_ALL_REDUCE, .in = a, .out = a, .count = 4, .dtype = WEFT_F32,
                      .preserve_input = true);
    REFUSED(weft_call_start(s, &call, &r), WEFT_ERR_STATE, "call", "preserve_input");
    call.preserve_input = false;
    REFUSED(weft_call_start(s, &call, NULL), WEFT_ERR_INVALID, "all_reduce", "request");
    REFUSED(weft_call_init(s, &call, &dirty), WEFT_ERR_INVALID, "all_reduce", "zeroed");
    REFUSED_HERE(weft_start(NULL), WEFT_ERR_INVALID, "start", "request");
    REFUSED_HERE(weft_start(&dirty), WEFT_ERR_INVALID, "start", "weft_call_init");
    REFUSED_HERE(weft_start_all(NULL, 2), WEFT_ERR_INVALID, "start_all", "request");
    REFUSED_HERE(weft_start_all(two, 2), WEFT_ERR_INVALID, "start_all", "weft_call_init");
    HOLDS(weft_start_all(NULL, 0) == WEFT_OK && weft_request_free(NULL) == WEFT_OK);
    REFUSED_HERE(weft_request_free(&dirty), WEFT_ERR_INVALID, "request_free", "zeroed");
    OK(weft_all_reduce(s, a, a, 4, WEFT_F32, WEFT_SUM, &r));
    OK(weft_wait(&r, 0));
    REFUSED(weft_start(&r), WEFT_ERR_STATE, "start", "weft_call_init");
    REFUSED_HERE(weft_wait(NULL, 0), WEFT_ERR_INVALID, "wait", "request");
    REFUSED_HERE(weft_wait(&dirty, 0), WEFT_ERR_INVALID, "wait", "zeroed");
    struct weft_request *several[] = {NULL, &dirty};
    size_t index = 7;
    REFUSED_HERE(weft_wait_all(NULL, 1, 0), WEFT_ERR_INVALID, "wait_all", "requests");
    REFUSED_HERE(weft_wait_all(several, 2, 0), WEFT_ERR_INVALID, "wait", "zeroed");
    REFUSED_HERE(weft_wait_any(NULL, 1, 0, &index), WEFT_ERR_INVALID, "wait_any", "requests");
    REFUSED_HERE(weft_wait_any(several, 2, 0, &index), WEFT_ERR_INVALID, "wait_any", "zeroed");
    REFUSED_HERE(weft_wait_any(several, 2, 0, NULL), WEFT_ERR_INVALID, "wait_any", "index_out");
    REFUSED_HERE(weft_test(NULL), WEFT_ERR_INVALID, "test", "request");
    REFUSED_HERE(weft_test(&dirty), WEFT_ERR_INVALID, "test", "zeroed");
    REFUSED_HERE(weft_cancel(NULL), WEFT_ERR_INVALID, "cancel", "request");
    REFUSED_HERE(weft_cancel(&dirty), WEFT_ERR_INVALID, "cancel", "zeroed");
    REFUSED(weft_cancel(&r), WEFT_ERR_STATE, "cancel", "has ended");
    REFUSED(weft_group_end(s), WEFT_ERR_STATE, "group_end", "group_start");
    /* The table of a persistent request is the caller's, and may be wrong by the time it starts. */
    uint64_t pieces[RANKS] = {1, 1};
    OK(weft_call_init(
        s, WEFT_CALL(.kind = WEFT_CALL_ALL_GATHER, .in = a, .out = b, .counts = pieces, .dtype = WEFT_F32),
        &two[0]));
    pieces[1] = UINT64_MAX;
    REFUSED(weft_start(&two[0]), WEFT_ERR_INVALID, "all_gather", "of rank 1");
    pieces[1] = 1;
    OK(weft_start(&two[0]));
    OK(weft_wait(&two[0], 0));
    OK(weft_request_free(&two[0]));
}

/* What talks to the others by calls of its own cannot be gathered. */
static void in_a_group(struct bench *bench, struct weft_tensor *trained)
{
    struct weft_session *s = bench->session;
    struct weft_comm *comm;
    struct weft_mesh *mesh;
    const struct weft_axis axis = {"dp", 0};
    uint8_t bytes[8];
    OK(weft_group_start(s));
    REFUSED_ALONE(weft_tensor_init(trained, a), WEFT_ERR_STATE, "init of tensor 'trained'", "weft_group_end");
    REFUSED_ALONE(weft_tensor_share(trained, a, 0), WEFT_ERR_STATE, "tensor_share of tensor 'trained'",
                  "weft_group_end");
    REFUSED_ALONE(weft_tensor_free(trained), WEFT_ERR_STATE, "tensor_free of tensor 'trained'",
                  "weft_group_end");
    REFUSED_ALONE(weft_state_load(trained, bytes, 8), WEFT_ERR_STATE, "state_load of tensor 'trained'",
                  "weft_group_end");
    REFUSED_ALONE(weft_split(s, NULL, 0, 0, &comm), WEFT_ERR_STATE, "split", "weft_group_end");
    REFUSED_ALONE(weft_comm_create(s, &(uint32_t){0}, 1, 0, &comm), WEFT_ERR_STATE, "comm_create",
                  "weft_group_end");
    REFUSED_ALONE(weft_mesh_create(s, &axis, 1, &mesh), WEFT_ERR_STATE, "mesh_create", "weft_group_end");
    OK(weft_group_end(s));
    still_adds(bench, "a group without calls", __LINE__);
}

/* ---- 5: groups of ranks ---- */

/* In a job of its own: its group is of no use in another. */
static void foreign_group(struct crowd *crowd, struct weft_session *session, uint32_t rank)
{
    struct bench *bench = crowd->user;
    struct weft_comm *theirs = NULL, *comm = NULL;
    struct weft_request r = {{0}};
    if (!CROWD_OK(crowd, session, weft_split(session, NULL, 0, 0, &theirs))) return;
    REFUSED(weft_split(bench->session, theirs, 0, 0, &comm), WEFT_ERR_INVALID, "split", "another session");
    REFUSED(weft_call_start(bench->session, WEFT_CALL(.kind = WEFT_CALL_BARRIER, .comm = theirs), &r),
            WEFT_ERR_INVALID, "barrier", "another session");
    CROWD_OK(crowd, session, weft_comm_free(theirs));
}

static void groups(struct bench *bench)
{
    struct weft_session *s = bench->session;
    struct weft_comm *comm = NULL;
    struct weft_mesh *mesh = NULL;
    struct weft_request r = {{0}};
    REFUSED(weft_split(s, NULL, 0, 0, NULL), WEFT_ERR_INVALID, "split", "comm_out");
    const uint32_t me = weft_rank(s), own[] = {me, me}, outside[] = {me, RANKS},
                   others[] = {(me + 1) % RANKS};
    REFUSED(weft_comm_create(s, own, 1, 0, NULL), WEFT_ERR_INVALID, "comm_create", "comm_out");
    REFUSED(weft_comm_create(s, NULL, 1, 0, &comm), WEFT_ERR_INVALID, "comm_create", "empty");
    REFUSED(weft_comm_create(s, own, 0, 0, &comm), WEFT_ERR_INVALID, "comm_create", "empty");
    REFUSED(weft_comm_create(s, own, UINT32_MAX, 0, &comm), WEFT_ERR_INVALID, "comm_create", "4294967295");
    REFUSED(weft_comm_create(s, own, 2, 0, &comm), WEFT_ERR_INVALID, "comm_create", "list it once");
    REFUSED(weft_comm_create(s, outside, 2, 0, &comm), WEFT_ERR_INVALID, "comm_create", "place 1");
    REFUSED(weft_comm_create(s, others, 1, 0, &comm), WEFT_ERR_INVALID, "comm_create", "not in the list");
    OK(weft_split(s, NULL, 0, 0, &comm));
    HOLDS(weft_comm_ranks(comm) == RANKS && weft_comm_member(comm, RANKS) == UINT32_MAX);
    REFUSED(weft_call_start(s,
                            WEFT_CALL(.kind = WEFT_CALL_REDUCE, .comm = comm, .in = a, .out = b, .count = 1,
                                      .dtype = WEFT_F32, .root = 9),
                            &r),
            WEFT_ERR_INVALID, "reduce", "root 9");
    REFUSED(weft_call_start(s,
                            WEFT_CALL(.kind = WEFT_CALL_ALL_REDUCE, .comm = comm, .in = a, .out = b,
                                      .count = 1, .dtype = WEFT_F32, .op = WEFT_AND),
                            &r),
            WEFT_ERR_UNSUPPORTED, "all_reduce", "f32");
    struct crowd alone = {.user = bench};
    crowd_run(&alone, 1, foreign_group);
    HOLDS(alone.failures == 0);
    OK(weft_comm_free(comm));
    HOLDS(weft_comm_free(NULL) == WEFT_OK && weft_comm_rank(NULL) == 0 && weft_comm_ranks(NULL) == 0 &&
          weft_comm_id(NULL) == 0);
    HOLDS(weft_comm_member(NULL, 0) == UINT32_MAX);

    static const struct weft_axis good[] = {{"dp", RANKS}, {"tp", 1}}, twice[] = {{"dp", RANKS}, {"dp", 1}},
                                  open[] = {{"dp", 0}, {"tp", 0}}, wide[] = {{"dp", 3}},
                                  vast[] = {{"dp", UINT32_MAX}, {"tp", UINT32_MAX}},
                                  unnamed[] = {{NULL, RANKS}}, empty[] = {{"", RANKS}},
                                  comma[] = {{"a,b", RANKS}}, longer[] = {{"0123456789abcdef", RANKS}},
                                  control[] = {{"a\nb", RANKS}};
#define MESH(axes, count, argument) \
    REFUSED(weft_mesh_create(s, axes, count, &mesh), WEFT_ERR_INVALID, "mesh", argument)
    MESH(NULL, 1, "axes");
    MESH(good, 0, "0 axes");
    MESH(good, 99, "99 axes");
    MESH(twice, 2, "'dp'");
    MESH(open, 2, "size 0");
    MESH(wide, 1, "dp=3");
    MESH(vast, 2, "does not fit");
    MESH(unnamed, 1, "axis 0");
    MESH(empty, 1, "axis 0");
    MESH(comma, 1, "comma");
    MESH(longer, 1, "axis 0");
    MESH(control, 1, "a\\nb");
#undef MESH
    REFUSED(weft_mesh_create(s, good, 2, NULL), WEFT_ERR_INVALID, "mesh", "mesh_out");
    HOLDS(mesh == NULL);
    OK(weft_mesh_create(s, good, 2, &mesh));
    REFUSED(weft_mesh_comm(mesh, "pp", &comm), WEFT_ERR_INVALID, "mesh", "'pp'");
    REFUSED(weft_mesh_comm(mesh, "", &comm), WEFT_ERR_INVALID, "mesh", "''");
    REFUSED(weft_mesh_comm(mesh, "dp,", &comm), WEFT_ERR_INVALID, "mesh", "''");
    REFUSED(weft_mesh_comm(mesh, "dp,dp", &comm), WEFT_ERR_INVALID, "mesh", "twice");
    REFUSED(weft_mesh_comm(mesh, "p\np", &comm), WEFT_ERR_INVALID, "mesh", "p\\np");
    REFUSED(weft_mesh_comm(mesh, NULL, &comm), WEFT_ERR_INVALID, "mesh_comm", "axes");
    REFUSED(weft_mesh_comm(mesh, "dp", NULL), WEFT_ERR_INVALID, "mesh_comm", "comm_out");
    REFUSED_HERE(weft_mesh_comm(NULL, "dp", &comm), WEFT_ERR_INVALID, "mesh_comm", "mesh");
    HOLDS(weft_mesh_size(mesh, "pp") == 0 && weft_mesh_size(mesh, NULL) == 0 &&
          weft_mesh_size(NULL, "dp") == 0);
    HOLDS(weft_mesh_coordinate(mesh, "dp", RANKS) == UINT32_MAX &&
          weft_mesh_coordinate(mesh, NULL, 0) == UINT32_MAX);
    HOLDS(weft_mesh_coordinate(NULL, "dp", 0) == UINT32_MAX && weft_mesh_rank(mesh, NULL) == UINT32_MAX);
    HOLDS(weft_mesh_rank(mesh, (const uint32_t[]){RANKS, 0}) == UINT32_MAX &&
          weft_mesh_rank(NULL, (const uint32_t[]){0, 0}) == UINT32_MAX);
    OK(weft_mesh_free(mesh));
    HOLDS(weft_mesh_free(NULL) == WEFT_OK);
}

/* ---- 11: outer steps; tests/client/outer has calls in a wrong order ---- */

static void outer_steps(struct bench *bench)
{
    struct weft_session *s = bench->session;
    struct weft_outer *outer = NULL;
    const uint64_t dims[1] = {sizeof a / sizeof a[0]};
    uint8_t bytes[64] = {0};
    REFUSED(weft_outer_create(s, &(struct weft_outer_options){.size = 5}, &outer), WEFT_ERR_INVALID,
            "outer_create", "size is 5");
    REFUSED(weft_outer_create(s, NULL, NULL), WEFT_ERR_INVALID, "outer_create", "outer_out");
    REFUSED_HERE(weft_outer_create(NULL, NULL, &outer), WEFT_ERR_INVALID, "outer_create", "session");
    HOLDS(outer == NULL);
    OK(weft_outer_create(s, NULL, &outer));
    REFUSED(weft_outer_add(outer, "outer", NULL, 1, dims), WEFT_ERR_INVALID, "outer_add", "weights");
    REFUSED(weft_outer_add(outer, "outer", a, 9, dims), WEFT_ERR_INVALID, "outer_add", "9 dimensions");
    REFUSED(weft_outer_add(outer, "two\nlines", a, 1, dims), WEFT_ERR_INVALID, "outer/two", "control");
    OK(weft_outer_free(outer));
    HOLDS(weft_outer_bytes(NULL) == 0 && weft_outer_free(NULL) == WEFT_OK);
    REFUSED_HERE(weft_outer_add(NULL, "outer", a, 1, dims), WEFT_ERR_INVALID, "outer_add", "outer");
    REFUSED_HERE(weft_outer_begin(NULL, NULL, 0), WEFT_ERR_INVALID, "outer_begin", "outer");
    REFUSED_HERE(weft_outer_step(NULL), WEFT_ERR_INVALID, "outer_step", "outer");
    REFUSED_HERE(weft_outer_wait(NULL), WEFT_ERR_INVALID, "outer_wait", "outer");
    REFUSED_HERE(weft_outer_sync(NULL), WEFT_ERR_INVALID, "outer_sync", "outer");
    REFUSED_HERE(weft_outer_share(NULL), WEFT_ERR_INVALID, "outer_share", "outer");
    REFUSED_HERE(weft_outer_save(NULL, bytes, 64), WEFT_ERR_INVALID, "outer_save", "outer");
}

/* ---- 6: memory, statistics, recorder, checkpoints ---- */

static void the_rest(struct bench *bench, struct weft_tensor *plain)
{
    struct weft_session *s = bench->session;
    struct weft_stats stats = {.size = 5};
    struct weft_choice choice = {.size = 5};
    uint8_t bytes[512] = {0};
    REFUSED((weft_alloc(s, SIZE_MAX) ? WEFT_OK : WEFT_ERR_NO_MEMORY), WEFT_ERR_NO_MEMORY, "weft_alloc",
            "bytes");
    weft_free(s, a); /* a line in the log */
    REFUSED(weft_disown(s, a), WEFT_ERR_NOT_FOUND, "disown", "memory");
    REFUSED(weft_disown(s, NULL), WEFT_ERR_NOT_FOUND, "disown", "memory");
    REFUSED(weft_event_clear(s), WEFT_ERR_STATE, "event_clear", "weft_event_fd");
    REFUSED(weft_event_fd(s, NULL), WEFT_ERR_INVALID, "event_fd", "fd_out");
    REFUSED(weft_nccl_open(s, -1), WEFT_ERR_INVALID, "nccl_open", "below 0");
    REFUSED(weft_register(s, NULL, 8), WEFT_ERR_INVALID, "register", "memory");
    REFUSED(weft_register(s, a, 0), WEFT_ERR_INVALID, "register", "memory");
    REFUSED(weft_register(s, a, SIZE_MAX), WEFT_ERR_INVALID, "register", "memory");
    REFUSED(weft_unregister(s, a), WEFT_ERR_NOT_FOUND, "unregister", "memory");
    REFUSED(weft_unregister(s, NULL), WEFT_ERR_NOT_FOUND, "unregister", "memory");
    OK(weft_register(s, a, sizeof a));
    REFUSED(weft_register(s, a, 8), WEFT_ERR_EXISTS, "register", "memory");
    OK(weft_unregister(s, a));
    REFUSED(weft_stats_get(s, &stats), WEFT_ERR_INVALID, "stats_get", "size");
    REFUSED(weft_stats_get(s, NULL), WEFT_ERR_INVALID, "stats_get", "size");
    REFUSED(weft_describe_links(s, NULL, 9), WEFT_ERR_INVALID, "describe_links", "out");
    REFUSED(weft_describe_links(s, (char *)bytes, 0), WEFT_ERR_INVALID, "describe_links", "out");
    REFUSED(weft_choice_get(plain, &choice), WEFT_ERR_INVALID, "choice_get", "size");
    REFUSED(weft_choice_get(plain, NULL), WEFT_ERR_INVALID, "choice_get", "size");
    REFUSED_HERE(weft_choice_get(NULL, &choice), WEFT_ERR_INVALID, "choice_get", "tensor");
    REFUSED(weft_dump_events(s, NULL), WEFT_ERR_INVALID, "dump_events", "path");
    REFUSED(weft_dump_events(s, ""), WEFT_ERR_INVALID, "dump_events", "path");
    REFUSED(weft_dump_events(s, "/nowhere/two\nlines"), WEFT_ERR_IO, "dump_events", "/nowhere");
    HOLDS(weft_residual_bytes(NULL) == 0 && weft_state_bytes(NULL) == 0);
    HOLDS(weft_residual_bytes(plain) <= sizeof bytes && weft_state_bytes(plain) <= sizeof bytes);
    REFUSED(weft_residual_save(plain, NULL, weft_residual_bytes(plain)), WEFT_ERR_INVALID, "residual_save",
            "NULL");
    REFUSED(weft_residual_save(plain, bytes, 3), WEFT_ERR_INVALID, "residual_save", "3 bytes");
    REFUSED(weft_residual_load(plain, NULL, 8), WEFT_ERR_INVALID, "residual_load", "NULL");
    REFUSED(weft_residual_load(plain, bytes, 3), WEFT_ERR_MALFORMED, "residual", "plain");
    REFUSED(weft_residual_load(plain, bytes, weft_residual_bytes(plain)), WEFT_ERR_MALFORMED, "residual",
            "plain");
    REFUSED(weft_state_save(plain, NULL, weft_state_bytes(plain)), WEFT_ERR_INVALID, "state_save", "NULL");
    REFUSED(weft_state_save(plain, bytes, 3), WEFT_ERR_INVALID, "state_save", "3 bytes");
    REFUSED_HERE(weft_tensor_free(NULL), WEFT_ERR_INVALID, "tensor_free", "tensor");
    REFUSED_HERE(weft_tensor_wait(NULL, 0), WEFT_ERR_INVALID, "tensor_wait", "tensor");
    REFUSED_HERE(weft_tensor_stats_get(NULL, NULL), WEFT_ERR_INVALID, "tensor_stats_get", "tensor");
    REFUSED_HERE(weft_residual_save(NULL, bytes, 3), WEFT_ERR_INVALID, "residual_save", "tensor");
    REFUSED_HERE(weft_residual_load(NULL, bytes, 3), WEFT_ERR_INVALID, "residual_load", "tensor");
    REFUSED_HERE(weft_state_save(NULL, bytes, 3), WEFT_ERR_INVALID, "state_save", "tensor");
    REFUSED_HERE(weft_state_load(NULL, bytes, 3), WEFT_ERR_INVALID, "state_load", "tensor");
    REFUSED_HERE(weft_snapshot_blob(NULL, bytes, 3), WEFT_ERR_INVALID, "snapshot_blob", "session");
    REFUSED_HERE(weft_snapshot_restored_blob(NULL, 0, bytes, NULL, NULL), WEFT_ERR_INVALID,
                 "snapshot_restored_blob", "session");
}

/* The bytes of rank 0 decide the status on all ranks. */
static void loads(struct bench *bench, struct weft_tensor *plain)
{
    uint8_t bytes[512] = {0};
    uint64_t size = sizeof bytes;
    REFUSED(weft_snapshot_blob(bench->session, NULL, 1), WEFT_ERR_INVALID, "snapshot_blob", "NULL");
    REFUSED(weft_snapshot_blob(bench->session, bytes, ((uint64_t)4 << 30) + 1), WEFT_ERR_LIMIT,
            "snapshot_blob", "4294967297");
    OK(weft_snapshot_blob(bench->session, bytes, sizeof bytes));
    OK(weft_snapshot_blob(bench->session, NULL, 0));
    REFUSED(weft_snapshot_restored_blob(bench->session, 0, bytes, NULL, NULL), WEFT_ERR_INVALID,
            "snapshot_restored_blob", "NULL");
    REFUSED(weft_snapshot_restored_blob(bench->session, 0, bytes, &size, NULL), WEFT_ERR_NOT_FOUND,
            "snapshot_restored_blob", "rank 0");
    REFUSED(weft_state_load(plain, bytes, 3), WEFT_ERR_MALFORMED, "state_load of tensor 'plain'",
            "nothing was changed");
    REFUSED(weft_state_load(plain, bytes, weft_state_bytes(plain)), WEFT_ERR_MALFORMED,
            "state_load of tensor 'plain'", "nothing was changed");
    REFUSED(weft_state_load(plain, NULL, 0), WEFT_ERR_MALFORMED, "state_load of tensor 'plain'", "nothing");
}

static void arguments(struct crowd *crowd, struct weft_session *session, uint32_t rank)
{
    struct bench whole = {.crowd = crowd, .session = session, .rank = rank}, *bench = &whole;
    struct weft_tensor *plain = declare(bench, "plain", "none"), *trained = declare(bench, "trained", "sgd");
    (void)declare(bench, "declared", "none");
    sessions(bench);
    declarations(bench);
    outside_a_step(bench, plain, trained);
    outer_steps(bench);
    outer_steps(bench);
    the_rest(bench, plain);
    loads(bench, plain);
    wrong_steps(bench);
    inside_a_step(bench, plain, trained);
    every_collective(bench);
    overlaps(bench);
    without_a_session(bench);
    plans(bench);
    structs(bench);
    in_a_group(bench, trained);
    groups(bench);
}

static void test_arguments(void **state)
{
    struct crowd crowd = {0};
    crowd_run(&crowd, RANKS, arguments);
    assert_int_equal(crowd.failures, 0);
}

/* ---- with shards: what the coordinator would refuse on all ranks is refused by each of them ---- */

static int declares_at_shards(struct fleet *fleet, uint32_t rank)
{
    struct crowd crowd = {0};
    struct bench whole = {.crowd = &crowd, .rank = rank}, *bench = &whole;
    struct weft_tensor_options options;
    struct weft_tensor *tensor = NULL;
    if (fleet_join(fleet, rank, 20000, &whole.session)) return 1;
    weft_tensor_options_init(&options);
    options.name = "cut", options.dim_count = 1, options.dims[0] = 1ull << 25;
    options.chunk_bytes = 1024;
    REFUSED(weft_declare(whole.session, &options, &tensor), WEFT_ERR_INVALID, "declare", "chunk_bytes");
    options.codec = "auto:bf16,int8", options.dims[0] = 1ull << 23; /* each candidate may be cut */
    REFUSED(weft_declare(whole.session, &options, &tensor), WEFT_ERR_INVALID, "declare", "chunk_bytes");
    options.codec = NULL, options.dims[0] = ELEMS;
    OK(weft_declare(whole.session, &options, &tensor));
    REFUSED(weft_declare(whole.session, &options, &tensor), WEFT_ERR_EXISTS, "declare", "'cut'");
    struct weft_request request = {{0}};
    REFUSED(weft_pull(tensor, b, &request), WEFT_ERR_STATE, "pull of tensor 'cut'", "weights");
    REFUSED(weft_push(tensor, a, &request), WEFT_ERR_STATE, "push of tensor 'cut'", "outside a step");
    REFUSED(weft_tensor_share(tensor, a, 0), WEFT_ERR_UNSUPPORTED, "tensor_share of tensor 'cut'",
            "server mode");
    weft_finalize(whole.session);
    return crowd.failures > 0;
}

static void test_at_shards(void **state)
{
    struct fleet_result result;
    assert_true(fleet_run(RANKS, 1, declares_at_shards, &result, NULL));
}

int main(void)
{
    setenv("UCX_MEM_EVENTS", "n", 0);
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_at_shards), cmocka_unit_test(test_arguments)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
