/* test_declare.c - declarations: comparison, refusal, placement. */
#include <stdio.h>

#include "tests/coordinator/coordinator_harness.h"

#define BODY(name) WEFT__CONTROL__CONTROL__BODY_##name

/* Rank 0 declares the default, rank 1 a changed one; both get the same sentence. */
static void differ(void (*change)(struct harness_declare *), enum weft_status status, const char *text)
{
    for (int order = 0; order < 2; order++) {
        uint64_t c[3];
        struct harness *h = harness_create(2, 1, NULL);
        struct harness_declare declare[2];
        harness_run(h, c, 1);
        harness_declare_init(&declare[0], 0, "fc1");
        declare[1] = declare[0];
        change(&declare[1]);
        harness_declare(h, c[order], &declare[order]);
        harness_declare(h, c[!order], &declare[!order]);
        for (int i = 0; i < 3; i++) harness_expect_abort(h, c[i], status, text, false);
        assert_int_equal(h->ended_count, 1);
        assert_int_equal(h->end_status, status);
        harness_free(h);
    }
}

static void change_shape(struct harness_declare *d) { d->dims[0] = 512; }
static void change_rank(struct harness_declare *d) { d->declare.n_dims = 1, d->dims[0] = 802816; }
static void change_dtype(struct harness_declare *d)
{
    d->declare.dtype = WEFT_BF16, d->declare.optimizer = (char *)"none";
}
static void change_codec(struct harness_declare *d) { d->declare.codec = (char *)"topk:ratio=0.02"; }
static void change_optimizer(struct harness_declare *d) { d->declare.optimizer = (char *)"sgd"; }
static void change_mode(struct harness_declare *d) { d->declare.mode = WEFT_WIRE_MODE_ALL_REDUCE; }
static void change_skip(struct harness_declare *d) { d->declare.skip_nonfinite = true; }
static void change_pull_dtype(struct harness_declare *d)
{
    d->declare.pull_dtype = WEFT_BF16;
}
static void change_priority(struct harness_declare *d) { d->declare.priority = -3; }
static void change_alone(struct harness_declare *d) { d->declare.alone = true; }
static void change_consistency(struct harness_declare *d)
{
    d->declare.consistency = (char *)"ssp:4";
}
static void change_chunk(struct harness_declare *d) { d->declare.chunk_bytes = 4096; }
static void change_name(struct harness_declare *d) { d->declare.name = (char *)"fc2"; }

static void differences(void **state)
{
    differ(change_shape, WEFT_ERR_MISMATCH,
           "rank 1 declares tensor 'fc1' with shape 512x784, rank 0 with 1024x784");
    differ(change_rank, WEFT_ERR_MISMATCH,
           "rank 1 declares tensor 'fc1' with shape 802816, rank 0 with 1024x784");
    differ(change_dtype, WEFT_ERR_MISMATCH, "rank 1 declares tensor 'fc1' with dtype bf16, rank 0 with f32");
    differ(change_optimizer, WEFT_ERR_MISMATCH,
           "rank 1 declares tensor 'fc1' with optimizer sgd, rank 0 with sgd:momentum=0.9");
    differ(change_mode, WEFT_ERR_MISMATCH,
           "rank 1 declares tensor 'fc1' with mode all_reduce, rank 0 with server");
    differ(change_skip, WEFT_ERR_MISMATCH,
           "rank 1 declares tensor 'fc1' with skip_nonfinite true, rank 0 with false");
    differ(change_pull_dtype, WEFT_ERR_MISMATCH,
           "rank 1 declares tensor 'fc1' with pull_dtype bf16, rank 0 with f32");
    differ(change_priority, WEFT_ERR_MISMATCH,
           "rank 1 declares tensor 'fc1' with priority -3, rank 0 with 0");
    differ(change_alone, WEFT_ERR_MISMATCH,
           "rank 1 declares tensor 'fc1' with alone true, rank 0 with false");
    differ(change_consistency, WEFT_ERR_MISMATCH,
           "rank 1 declares tensor 'fc1' with consistency ssp:4, rank 0 with bsp");
    differ(change_chunk, WEFT_ERR_MISMATCH,
           "rank 1 declares tensor 'fc1' with chunk_bytes 4096, rank 0 with 1048576");
    differ(change_name, WEFT_ERR_MISMATCH,
           "rank 1 declares tensor 'fc2' as its number 0, rank 0 declares 'fc1': "
           "declare the same tensors in the same order");
    differ(change_codec, WEFT_ERR_MISMATCH,
           "rank 1 declares tensor 'fc1' with codec topk:ratio=0.02,min_count=1024, rank 0 with dense");
}

/* One rank's declaration that cannot be served. */
static void refused(uint32_t shards, void (*change)(struct harness_declare *), enum weft_status status,
                    const char *text_start)
{
    uint64_t c[2];
    struct harness *h = harness_create(1, shards, NULL);
    struct harness_declare declare;
    harness_run(h, c, 1);
    harness_declare_init(&declare, 0, "fc1");
    change(&declare);
    harness_declare(h, c[0], &declare);
    Control *message = harness_expect(h, c[0], BODY(ABORT));
    if (strncmp(message->abort->text, text_start, strlen(text_start)) != 0)
        fail_msg("'%s'", message->abort->text);
    assert_int_equal(message->abort->status, status);
    harness_free(h);
}

static void bad_codec(struct harness_declare *d) { d->declare.codec = (char *)"zip"; }
static void bad_optimizer(struct harness_declare *d) { d->declare.optimizer = (char *)"lion"; }
static void bf16_with_codec(struct harness_declare *d)
{
    d->declare.dtype = WEFT_BF16;
    d->declare.codec = (char *)"int8";
}
static void bf16_between_workers(struct harness_declare *d)
{
    d->declare.dtype = WEFT_BF16;
    d->declare.mode = WEFT_WIRE_MODE_ALL_REDUCE;
}
static void rounded_between_workers(struct harness_declare *d)
{
    d->declare.pull_dtype = WEFT_BF16;
    d->declare.mode = WEFT_WIRE_MODE_ALL_REDUCE;
}
static void rounded_twice(struct harness_declare *d)
{
    d->declare.dtype = WEFT_BF16;
    d->declare.pull_dtype = WEFT_F16;
}
static void whole_numbers(struct harness_declare *d)
{
    d->declare.dtype = WEFT_I64;
    d->declare.codec = (char *)"dense";
}
static void tiny_chunks(struct harness_declare *d) { d->dims[0] = 1 << 20, d->declare.chunk_bytes = 1024; }
static void unchanged(struct harness_declare *d) {}

static void refusals(void **state)
{
    refused(1, bad_codec, WEFT_ERR_INVALID, "rank 0, tensor 'fc1': ");
    refused(1, bad_optimizer, WEFT_ERR_INVALID, "rank 0, tensor 'fc1': optimizer 'lion' is not known");
    refused(1, bf16_with_codec, WEFT_ERR_UNSUPPORTED,
            "rank 0, tensor 'fc1': shards exchange bf16 with dense tensors of consistency bsp only");
    refused(1, bf16_between_workers, WEFT_ERR_UNSUPPORTED,
            "rank 0, tensor 'fc1': codecs and optimizers need dtype f32, not bf16");
    refused(1, rounded_between_workers, WEFT_ERR_UNSUPPORTED,
            "rank 0, tensor 'fc1': pull_dtype is the dtype of what shards send: it needs server mode");
    refused(
        1, rounded_twice, WEFT_ERR_INVALID,
        "rank 0, tensor 'fc1': pull_dtype is f16 or bf16 and belongs to a tensor of f32; it is f16, of bf16");
    refused(1, whole_numbers, WEFT_ERR_UNSUPPORTED,
            "rank 0, tensor 'fc1': shards serve f32, f16 and bf16, not i64");
    refused(0, unchanged, WEFT_ERR_UNSUPPORTED, "rank 0, tensor 'fc1': server mode needs shards");
    refused(1, tiny_chunks, WEFT_ERR_LIMIT,
            "tensor 'fc1' would be cut into 3211264 chunks of 1024 bytes, at most 65536 are allowed");

    uint64_t c[3];
    struct harness *h = harness_create(1, 1, NULL);
    struct harness_declare declare;
    harness_run(h, c, 1);
    harness_declare_init(&declare, 0, "fc1");
    harness_declare(h, c[0], &declare);
    declare.declare.ordinal = 1;
    harness_declare(h, c[0], &declare);
    harness_expect_abort(h, c[0], WEFT_ERR_EXISTS,
                         "rank 0 declares tensor 'fc1' twice: names are unique in a job", false);
    harness_free(h);

    h = harness_create(2, 1, NULL);
    harness_run(h, c, 1);
    declare.declare.ordinal = 0;
    harness_leave(h, c[1], "");
    harness_declare(h, c[0], &declare);
    harness_expect_abort(h, c[0], WEFT_ERR_MISMATCH,
                         "rank 1 left without declaring tensor 'fc1', which rank 0 declares", false);
    harness_free(h);
}

/* Specs with equal meaning are equal: the codec's canonical text is compared. */
static void canonical_codecs(void **state)
{
    uint64_t c[2];
    struct harness *h = harness_create(2, 0, NULL);
    struct harness_declare declare;
    harness_run(h, c, 1);
    harness_declare_init(&declare, 0, "fc1");
    declare.declare.mode = WEFT_WIRE_MODE_ALL_REDUCE;
    declare.declare.codec = (char *)"powersgd";
    harness_declare(h, c[0], &declare);
    declare.declare.codec = (char *)"powersgd:rank=4";
    harness_declare(h, c[1], &declare);
    for (int i = 0; i < 2; i++) {
        Weft__Control__Declared *declared = harness_expect(h, c[i], BODY(DECLARED))->declared;
        assert_int_equal(declared->n_chunks, 0);
        assert_non_null(strstr(declared->declare->codec, "rank=4"));
    }
    harness_free(h);
}

/* Bytes per endpoint after some declarations, for any order of the two workers. */
static void placement(void **state)
{
    uint64_t first_load[64] = {0};
    for (int order = 0; order < 2; order++) {
        uint64_t c[5], load[64] = {0};
        struct harness *h = harness_create(2, 3, NULL);
        harness_run(h, c, 2);
        for (uint32_t n = 0; n < 6; n++) {
            struct harness_declare declare;
            char name[8];
            snprintf(name, sizeof name, "t%u", n);
            harness_declare_init(&declare, n, name);
            declare.dims[0] = 100 + 300 * n;
            declare.declare.chunk_bytes = 65536;
            if (n == 5) declare.declare.codec = (char *)"powersgd:rank=2";
            harness_declare(h, c[order], &declare);
            harness_declare(h, c[!order], &declare);
            bool reply_pending[3] = {false};
            for (int s = 0; s < 3; s++) {
                Control *message = harness_next(h, c[2 + s]);
                reply_pending[s] = message != NULL;
                if (message) assert_int_equal(message->body_case, BODY(DECLARED));
            }
            for (int s = 0; s < 3; s++)
                if (reply_pending[s]) harness_declared_ok(h, c[2 + s], n);
            Weft__Control__Declared *declared = harness_expect(h, c[0], BODY(DECLARED))->declared;
            harness_expect(h, c[1], BODY(DECLARED));
            if (n == 5) assert_int_equal(declared->n_chunks, 1);
            else assert_int_equal(declared->n_chunks, (declare.dims[0] * 784 * 4 + 65535) / 65536);
            for (size_t i = 0; i < declared->n_chunks && n < 5; i++)
                load[declared->chunks[i]->endpoint] += declared->chunks[i]->count * 4;
        }
        uint64_t least = UINT64_MAX, most = 0;
        for (int endpoint = 2; endpoint < 8; endpoint++) { /* 0 and 1 are the workers' endpoints */
            if (load[endpoint] < least) least = load[endpoint];
            if (load[endpoint] > most) most = load[endpoint];
        }
        assert_true(least > 0 && most - least <= 65536);
        assert_true(load[0] == 0 && load[1] == 0);
        if (order == 0) memcpy(first_load, load, sizeof load);
        else assert_memory_equal(first_load, load, sizeof load);
        harness_free(h);
    }
}

/* Where a codec's tensor may be cut. */
static void codecs_are_cut(void **state)
{
    static const struct {
        const char *codec, *optimizer;
        uint64_t dims[2], chunk_bytes, chunks, elems;
    } plans[] = {
        {"bf16", "none", {100, 784}, 65536, 5, 16384},
        {"int8", "adam", {100, 784}, 66000, 5, 16384}, /* between blocks of 256 */
        {"int4", "sgd", {1, 1500}, 1024, 6, 256},
        {"e4m3", "sgd", {1, 1500}, 3000, 3, 512},
        {"e5m2", "sgd", {1, 1024}, 4096, 1, 1024},
        {"int8", "sgd", {1, 700}, 1024, 3, 256}, /* below its min_count: dense */
        {"bf16", "lamb", {100, 784}, 65536, 1, 78400},
        {"f16", "none", {100, 784}, 65536, 1, 78400},
        {"sign", "none", {100, 784}, 65536, 1, 78400},
        {"topk:ratio=0.1", "none", {100, 784}, 65536, 1, 78400},
        {"randomk:ratio=0.1", "none", {100, 784}, 65536, 1, 78400},
        {"powersgd:rank=2", "none", {100, 784}, 65536, 1, 78400},
    };
    uint64_t c[4];
    bool used[4] = {false};
    struct harness *h = harness_create(1, 2, NULL);
    harness_run(h, c, 1);
    for (uint32_t n = 0; n < sizeof plans / sizeof plans[0]; n++) {
        struct harness_declare declare;
        char name[8];
        snprintf(name, sizeof name, "t%u", n);
        harness_declare_init(&declare, n, name);
        declare.dims[0] = plans[n].dims[0], declare.dims[1] = plans[n].dims[1];
        declare.declare.codec = (char *)(uintptr_t)plans[n].codec,
        declare.declare.optimizer = (char *)(uintptr_t)plans[n].optimizer;
        declare.declare.chunk_bytes = plans[n].chunk_bytes;
        harness_declare(h, c[0], &declare);
        for (int s = 0; s < 2; s++)
            if (harness_next(h, c[1 + s])) harness_declared_ok(h, c[1 + s], n);
        const Weft__Control__Declared *declared = harness_expect(h, c[0], BODY(DECLARED))->declared;
        assert_int_equal(declared->n_chunks, plans[n].chunks);
        for (size_t i = 0; i < declared->n_chunks; i++) {
            const Weft__Control__Chunk *chunk = declared->chunks[i];
            if (i + 1 < declared->n_chunks) assert_int_equal(chunk->count, plans[n].elems);
            if (n == 0) used[chunk->endpoint] = true;
        }
    }
    assert_true(used[1] && used[2]); /* endpoint 0 is the worker's */
    harness_free(h);
}

/* Members that read runs of chunks get the same chunks in a shorter message; others get a list. */
static void equal_chunks_travel_as_runs(void **state)
{
    size_t bytes[2] = {0};
    Weft__Control__Chunk seen[2][101];
    for (int has_runs = 0; has_runs < 2; has_runs++) {
        struct harness *h = harness_create(1, 2, NULL);
        struct harness_declare declare;
        uint64_t c[4];
        h->has_no_chunk_runs = !has_runs;
        harness_run(h, c, 1);
        harness_declare_init(&declare, 0, "t0");
        declare.dims[0] = 100 * 128 + 1, declare.dims[1] = 2;
        declare.declare.chunk_bytes = 1024;
        harness_declare(h, c[0], &declare);
        for (int s = 0; s < 2; s++) {
            assert_int_equal(harness_expect(h, c[1 + s], BODY(DECLARED))->declared->n_chunks, 101);
            harness_declared_ok(h, c[1 + s], 0);
        }
        const Weft__Control__Declared *declared = harness_expect(h, c[0], BODY(DECLARED))->declared;
        assert_int_equal(declared->n_chunks, 101);
        assert_int_equal(declared->n_runs, 0);
        for (size_t i = 0; i < 101; i++) seen[has_runs][i] = *declared->chunks[i];
        bytes[has_runs] = h->connections[c[0]].frame_bytes;
        harness_free(h);
    }
    for (size_t i = 0; i < 101; i++) {
        assert_int_equal(seen[0][i].offset, seen[1][i].offset);
        assert_int_equal(seen[0][i].count, seen[1][i].count);
        assert_int_equal(seen[0][i].endpoint, seen[1][i].endpoint);
    }
    assert_true(bytes[1] * 4 < bytes[0]);
}

/* Codec "auto": candidates that can be cut are placed like the dense chunks, the others on one endpoint. */
static void candidates_are_cut(void **state)
{
    uint64_t c[3];
    uint32_t home[5] = {0};
    struct harness *h = harness_create(1, 2, NULL);
    struct harness_declare declare;
    harness_run(h, c, 1);
    harness_declare_init(&declare, 0, "t0");
    declare.dims[0] = 100;
    declare.declare.codec = (char *)"auto:topk:ratio=0.1,bf16,int8";
    declare.declare.chunk_bytes = 66000;
    harness_declare(h, c[0], &declare);
    for (int s = 0; s < 2; s++) {
        harness_expect(h, c[1 + s], BODY(DECLARED));
        harness_declared_ok(h, c[1 + s], 0);
    }
    const Weft__Control__Declared *declared = harness_expect(h, c[0], BODY(DECLARED))->declared;
    assert_int_equal(declared->n_chunks, 5 + 1 + 5 + 5);
    for (uint32_t i = 0; i < 16; i++) {
        const Weft__Control__Chunk *chunk = declared->chunks[i];
        const uint32_t candidate = i < 5 ? 0 : i < 6 ? 1 : i < 11 ? 2 : 3, piece = i < 6 ? i : (i - 6) % 5;
        assert_int_equal(chunk->candidate, candidate);
        assert_int_equal(chunk->offset, candidate == 1 ? 0 : piece * 16384);
        assert_int_equal(chunk->count, candidate == 1 ? 78400 : piece < 4 ? 16384 : 78400 - 4 * 16384);
        if (candidate == 0) home[piece] = chunk->endpoint;
        else if (candidate > 1) assert_int_equal(chunk->endpoint, home[piece]);
    }
    assert_int_not_equal(home[0], home[1]);
    harness_free(h);

    h = harness_create(1, 2, NULL); /* too many chunks in total */
    harness_run(h, c, 1);
    declare.dims[0] = 1 << 14;
    declare.declare.chunk_bytes = 1024;
    harness_declare(h, c[0], &declare);
    harness_expect_abort(h, c[0], WEFT_ERR_LIMIT,
                         "tensor 't0' would be cut into 150529 chunks of 1024 bytes, at most 65536 are "
                         "allowed: declare a larger chunk_bytes",
                         false);
    harness_free(h);
}

/* A tensor on both shards: each gets the hash of its own chunks. A hash for an endpoint without chunks breaks
 * the protocol. */
static void weight_hash_of_each_home(void **state)
{
    uint64_t c[3];
    struct harness *h = harness_create(1, 2, NULL);
    struct harness_declare declare;
    harness_run(h, c, 1);
    harness_declare_init(&declare, 0, "t0");
    declare.declare.codec = (char *)"bf16";
    declare.declare.chunk_bytes = 65536;
    harness_declare(h, c[0], &declare);
    for (int s = 0; s < 2; s++) {
        harness_expect(h, c[1 + s], BODY(DECLARED));
        harness_declared_ok(h, c[1 + s], 0);
    }
    harness_expect(h, c[0], BODY(DECLARED));
    Weft__Control__WeightHash hash = WEFT__CONTROL__WEIGHT_HASH__INIT;
    Control message = WEFT__CONTROL__CONTROL__INIT;
    message.body_case = BODY(WEIGHT_HASH);
    message.weight_hash = &hash;
    hash.step = 50;
    for (uint32_t home = 0; home < 3; home++) {
        /* the worker is endpoint 0, so it would be 1; 0: the first chunk's endpoint */
        hash.home = home == 0 ? 0 : home + 1;
        hash.hash = 90 + home;
        harness_deliver(h, c[0], &message);
        const int there = home == 2 ? 2 : 1;
        const Weft__Control__WeightHash *got = harness_expect(h, c[there], BODY(WEIGHT_HASH))->weight_hash;
        assert_int_equal(got->hash, 90 + home);
        assert_int_equal(got->home, there + 1); /* always set: the process may have several engines */
        harness_expect_nothing(h, c[there == 1 ? 2 : 1]);
    }
    hash.home = 1;
    harness_deliver(h, c[0], &message);
    assert_non_null(strstr(harness_expect(h, c[1], BODY(MEMBER_LOST))->member_lost->text, "weight hash"));
    harness_free(h);
}

static void deliver_free(struct harness *h, uint64_t connection, uint32_t tensor)
{
    Weft__Control__TensorFree freed = WEFT__CONTROL__TENSOR_FREE__INIT;
    Control message = WEFT__CONTROL__CONTROL__INIT;
    freed.tensor = tensor;
    message.body_case = BODY(TENSOR_FREE);
    message.tensor_free = &freed;
    harness_deliver(h, connection, &message);
}

static void declare_on_both(struct harness *h, const uint64_t *c, uint32_t ordinal, bool second_frees)
{
    struct harness_declare declare;
    harness_declare_init(&declare, ordinal, "t");
    harness_declare(h, c[0], &declare);
    if (second_frees) deliver_free(h, c[1], ordinal - 1); /* arrives after the other rank's declaration */
    if (second_frees)
        assert_int_equal(harness_expect(h, c[2], BODY(TENSOR_FREE))->tensor_free->tensor, ordinal - 1);
    harness_declare(h, c[1], &declare);
    assert_int_equal(harness_expect(h, c[2], BODY(DECLARED))->declared->tensor, ordinal);
    harness_declared_ok(h, c[2], ordinal);
    for (int i = 0; i < 2; i++) harness_expect(h, c[i], BODY(DECLARED));
}

/* The last worker's message reaches the shard. The name may be declared again after the first message. Load
 * and status follow. */
static void freed_tensors(void **state)
{
    (void)state;
    uint64_t c[3];
    struct harness *h = harness_create(2, 1, NULL);
    harness_run(h, c, 1);
    declare_on_both(h, c, 0, false);
    for (uint32_t n = 1; n < 5; n++) {
        deliver_free(h, c[0], n - 1);
        harness_expect_nothing(h, c[2]);
        declare_on_both(h, c, n, true);
    }
    char *json = weft_coordinator_status_json(h->coordinator), load[64];
    snprintf(load, sizeof load, "\"weights_bytes\":%d", 1024 * 784 * 4);
    char plain[8192]; /* without blanks */
    size_t length = 0;
    for (const char *at = json; *at && length + 1 < sizeof plain; at++)
        if (*at != ' ' && *at != '\n') plain[length++] = *at;
    plain[length] = 0;
    assert_non_null(strstr(plain, load)); /* the load of the remaining tensor */
    assert_non_null(strstr(plain, "\"freed\":true"));
    weft_free_bytes(weft_env_system(), json);
    harness_free(h);
}

/* The status has the name of the tensor of a worker's last report. */
static void status_has_exposed_tensor(void **state)
{
    (void)state;
    uint64_t c[3];
    struct harness *h = harness_create(2, 1, NULL);
    harness_run(h, c, 1);
    declare_on_both(h, c, 0, false);
    Weft__Control__Heartbeat beat = WEFT__CONTROL__HEARTBEAT__INIT;
    Weft__Control__Report report = WEFT__CONTROL__REPORT__INIT;
    Weft__Control__Control message = WEFT__CONTROL__CONTROL__INIT;
    message.body_case = BODY(HEARTBEAT);
    message.heartbeat = &beat;
    beat.report = &report;
    for (uint32_t tensor = 0; tensor < 3; tensor++) { /* 0: none; 2 is not declared */
        report.steps = 7;
        report.step_ns = 9000000;
        report.exposed_ns = 5000000;
        report.exposed_peers_ns = 1000000;
        report.exposed_tensor = tensor;
        report.exposed_tensor_ns = 3000000;
        harness_deliver(h, c[0], &message);
        char *json = weft_coordinator_status_json(h->coordinator);
        assert_non_null(strstr(json, "\"steps\":7,\"step_ns\":9000000,"
                                     "\"exposed_ns\":5000000,\"exposed_peers_ns\":1000000"));
        assert_true((strstr(json, "\"exposed_tensor_ns\":3000000") != NULL) == (tensor == 1));
        assert_true((strstr(json, "\"exposed_tensor\":") != NULL) == (tensor == 1));
        assert_null(strstr(strstr(json, "\"steps\"") + 1, "\"steps\"")); /* the other worker ran none */
        weft_free_bytes(weft_env_system(), json);
    }
    harness_free(h);
}

/* Many names: each is found, and a second use is refused. Declared to all workers is sent as one message. */
static void many_names(void **state)
{
    enum { NAMES = 200 };
    struct harness *h = harness_create(2, 0, NULL);
    uint64_t c[2];
    static char names[NAMES][16];
    struct harness_declare declare;
    harness_run(h, c, 1);
    for (uint32_t i = 0; i < NAMES; i++) {
        snprintf(names[i], sizeof names[i], "t%u", i * 7919 % NAMES);
        harness_declare_init(&declare, i, names[i]);
        declare.declare.mode = WEFT_WIRE_MODE_ALL_REDUCE;
        for (uint32_t rank = 0; rank < 2; rank++) {
            const uint32_t before = h->sends_of_same;
            harness_declare(h, c[rank], &declare);
            assert_int_equal(h->sends_of_same - before, rank == 1 ? 2 : 0);
        }
    }
    assert_int_equal(h->ended_count, 0);
    harness_declare_init(&declare, NAMES, names[123]);
    declare.declare.mode = WEFT_WIRE_MODE_ALL_REDUCE;
    harness_declare(h, c[0], &declare);
    assert_int_equal(h->end_status, WEFT_ERR_EXISTS);
    harness_free(h);
}

/* The status of more text than its limit has fewer tensors, and their number. Quotation marks are
 * two bytes each in JSON. */
static void status_fits(void **state)
{
    enum { WORKERS = 450, NAMES = 4900, LENGTH = WEFT_LIMIT_NAME_BYTES, OPEN = 1000 };
    (void)state;
    struct harness *h = harness_create(WORKERS, 0, NULL);
    static uint64_t c[WORKERS];
    char name[LENGTH + 1], open[OPEN + 1];
    struct harness_declare declare;
    Weft__Control__Heartbeat beat = WEFT__CONTROL__HEARTBEAT__INIT;
    Weft__Control__Report report = WEFT__CONTROL__REPORT__INIT;
    Weft__Control__Control message = WEFT__CONTROL__CONTROL__INIT;
    message.body_case = WEFT__CONTROL__CONTROL__BODY_HEARTBEAT;
    message.heartbeat = &beat;
    beat.report = &report;
    report.open = open;
    memset(open, '"', OPEN);
    memset(name, '"', LENGTH);
    open[OPEN] = name[LENGTH] = 0;
    harness_run(h, c, 1);
    for (uint32_t i = 0; i < NAMES; i++) {
        name[snprintf(name, sizeof name, "%u", i)] = '"';
        harness_declare_init(&declare, i, name);
        declare.declare.mode = WEFT_WIRE_MODE_ALL_REDUCE;
        harness_declare(h, c[0], &declare);
    }
    for (uint32_t rank = 0; rank < WORKERS; rank++) harness_deliver(h, c[rank], &message);
    char *json = weft_coordinator_status_json(h->coordinator);
    assert_non_null(json);
    assert_in_range(strlen(json), WEFT_LIMIT_STATUS_BYTES / 4, WEFT_LIMIT_STATUS_BYTES);
    assert_non_null(strstr(json, "\"tensor_count\":4900"));
    assert_non_null(strstr(json, "\"tensor\":0,"));
    assert_null(strstr(json, "\"tensor\":4899,"));
    assert_non_null(strstr(json, "\"index\":449,"));
    weft_free_bytes(weft_env_system(), json);
    harness_free(h);
}

/* Freed twice, a tensor that does not exist, one that is not declared by all, and by a shard. */
static void bad_frees(void **state)
{
    (void)state;
    for (int which = 0; which < 4; which++) {
        uint64_t c[3];
        struct harness *h = harness_create(2, 1, NULL);
        struct harness_declare declare;
        harness_run(h, c, 1);
        if (which == 2) {
            harness_declare_init(&declare, 0, "t");
            harness_declare(h, c[0], &declare);
        } else {
            declare_on_both(h, c, 0, false);
        }
        if (which == 0) deliver_free(h, c[0], 0);
        deliver_free(h, which == 3 ? c[2] : c[0], which == 1 ? 1 : 0);
        assert_int_equal(h->ended_count, 1);
        assert_int_equal(h->end_status, WEFT_ERR_PEER_LOST);
        assert_non_null(
            strstr(h->end_text, which == 3 ? "TensorFree" : "freed a tensor that it does not have"));
        harness_free(h);
    }
}

static void weight_hash_goes_home(void **state)
{
    uint64_t c[3];
    struct harness *h = harness_create(1, 2, NULL);
    struct harness_declare declare;
    harness_run(h, c, 1);
    for (uint32_t n = 0; n < 2; n++) { /* t0 fills shard 0, so t1 is placed on shard 1 */
        harness_declare_init(&declare, n, n ? "t1" : "t0");
        declare.declare.codec = (char *)"topk:ratio=0.01";
        harness_declare(h, c[0], &declare);
        harness_expect(h, c[1 + n], BODY(DECLARED));
        harness_declared_ok(h, c[1 + n], n);
        harness_expect(h, c[0], BODY(DECLARED));
    }
    Weft__Control__WeightHash hash = WEFT__CONTROL__WEIGHT_HASH__INIT;
    Control message = WEFT__CONTROL__CONTROL__INIT;
    hash.tensor = 1, hash.step = 50, hash.hash = 99;
    message.body_case = BODY(WEIGHT_HASH);
    message.weight_hash = &hash;
    harness_deliver(h, c[0], &message);
    assert_int_equal(harness_expect(h, c[2], BODY(WEIGHT_HASH))->weight_hash->hash, 99);
    harness_expect_nothing(h, c[1]);
    harness_free(h);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(differences),           cmocka_unit_test(refusals),
        cmocka_unit_test(canonical_codecs),      cmocka_unit_test(placement),
        cmocka_unit_test(codecs_are_cut),        cmocka_unit_test(candidates_are_cut),
        cmocka_unit_test(weight_hash_goes_home), cmocka_unit_test(weight_hash_of_each_home),
        cmocka_unit_test(equal_chunks_travel_as_runs),
        cmocka_unit_test(freed_tensors),         cmocka_unit_test(bad_frees),
        cmocka_unit_test(many_names),            cmocka_unit_test(status_has_exposed_tensor),
        cmocka_unit_test(status_fits)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
