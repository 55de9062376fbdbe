/* operations.c - a worker that does every operation of weft.h once and checks it, for
 * tests/system/test_operations.py.
 *
 * Prints "bits HASH" of an all_reduce of random f32 of mixed magnitudes (another order of sums shows in
 * it), so that plans, transports and chunk sizes can be compared. An argument: so many all_reduces more.
 * Exit status 0: everything was right. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "weft/weft.h"

#define COUNT 5003u
#define RANKS_MAX 16u

static struct weft_session *session;
static uint32_t rank, ranks, wrong;
static int32_t in[RANKS_MAX * COUNT], out[RANKS_MAX * COUNT];

static void finish(const char *what, enum weft_status status, struct weft_request *request)
{
    if (status == WEFT_IN_PROGRESS) status = weft_wait(request, 0);
    if (status == WEFT_OK) return;
    printf("%s: %s: %s\n", what, weft_status_name(status), weft_error_text(session));
    exit(2);
}

static void expect(bool right, const char *what)
{
    if (right) return;
    printf("rank %u: %s is wrong\n", rank, what);
    wrong++;
}

static int32_t value(uint32_t of, uint64_t i) { return (int32_t)(of * 1000003u + i * 7u) % 9973; }
static void fill(void)
{
    for (uint64_t i = 0; i < (uint64_t)ranks * COUNT; i++) in[i] = value(rank, i);
    memset(out, 0xff, sizeof out);
}

static bool is_sum(const int32_t *data, uint64_t first, uint64_t count)
{
    for (uint64_t i = 0; i < count; i++) {
        int32_t sum = 0;
        for (uint32_t r = 0; r < ranks; r++) sum += value(r, first + i);
        if (data[i] != sum) return false;
    }
    return true;
}
static bool is_of(const int32_t *data, uint32_t of, uint64_t first, uint64_t count)
{
    for (uint64_t i = 0; i < count; i++)
        if (data[i] != value(of, first + i)) return false;
    return true;
}

static void reductions(struct weft_request *request)
{
    uint32_t root = ranks / 2;
    fill();
    finish("all_reduce", weft_all_reduce(session, in, out, COUNT, WEFT_I32, WEFT_SUM, request), request);
    expect(is_sum(out, 0, COUNT), "all_reduce");
    finish("reduce_scatter", weft_reduce_scatter(session, in, out, COUNT, WEFT_I32, WEFT_SUM, request),
           request);
    expect(is_sum(out, (uint64_t)rank * COUNT, COUNT), "reduce_scatter");
    finish("reduce",
           weft_reduce(session, in, rank == root ? out : NULL, COUNT, WEFT_I32, WEFT_SUM, root, request),
           request);
    expect(rank != root || is_sum(out, 0, COUNT), "reduce");
    double parts[2] = {1.5, -3}, total[2];
    finish("all_reduce_scaled",
           weft_all_reduce_scaled(session, parts, total, 2, WEFT_F64, rank + 0.5, request), request);
    double factors = ranks * (ranks - 1) / 2.0 + 0.5 * ranks;
    expect(total[0] == 1.5 * factors && total[1] == -3 * factors, "all_reduce_scaled");
    uint8_t bits[3] = {(uint8_t)(1u << rank % 8), 0xf0, (uint8_t)rank};
    finish("or", weft_all_reduce(session, bits, bits, 3, WEFT_U8, WEFT_OR, request), request);
    expect(bits[0] == (ranks >= 8 ? 0xff : (1u << ranks) - 1) && bits[1] == 0xf0, "or");
}

static void movements(struct weft_request *request)
{
    uint32_t root = ranks - 1;
    fill();
    finish("all_gather", weft_all_gather(session, in, out, COUNT, WEFT_I32, request), request);
    for (uint32_t r = 0; r < ranks; r++) expect(is_of(out + (uint64_t)r * COUNT, r, 0, COUNT), "all_gather");
    finish("gather", weft_gather(session, in, rank == root ? out : NULL, COUNT, WEFT_I32, root, request),
           request);
    for (uint32_t r = 0; r < ranks && rank == root; r++)
        expect(is_of(out + (uint64_t)r * COUNT, r, 0, COUNT), "gather");
    finish("scatter", weft_scatter(session, rank == root ? in : NULL, out, COUNT, WEFT_I32, root, request),
           request);
    expect(is_of(out, root, (uint64_t)rank * COUNT, COUNT), "scatter");
    finish("all_to_all", weft_all_to_all(session, in, out, COUNT, WEFT_I32, request), request);
    for (uint32_t r = 0; r < ranks; r++)
        expect(is_of(out + (uint64_t)r * COUNT, r, (uint64_t)rank * COUNT, COUNT), "all_to_all");
    if (rank == 0) memcpy(out, in, COUNT * sizeof *in);
    finish("broadcast", weft_broadcast(session, out, COUNT, WEFT_I32, 0, request), request);
    expect(is_of(out, 0, 0, COUNT), "broadcast");
    finish("barrier", weft_barrier(session, request), request);
}

static void unequal(struct weft_request *request)
{
    uint64_t counts[RANKS_MAX], to[RANKS_MAX], from[RANKS_MAX], firsts[RANKS_MAX + 1] = {0};
    for (uint32_t r = 0; r < ranks; r++) {
        counts[r] = r % 3 == 1 ? 0 : 100 * r + 7;
        firsts[r + 1] = firsts[r] + counts[r];
        to[r] = rank * 20 + r;
        from[r] = r * 20 + rank;
    }
    fill();
    finish("all_gather_v", weft_all_gather_v(session, in, out, counts, WEFT_I32, request), request);
    for (uint32_t r = 0; r < ranks; r++) expect(is_of(out + firsts[r], r, 0, counts[r]), "all_gather_v");
    finish("reduce_scatter_v", weft_reduce_scatter_v(session, in, out, counts, WEFT_I32, WEFT_SUM, request),
           request);
    expect(is_sum(out, firsts[rank], counts[rank]), "reduce_scatter_v");
    finish("gather_v",
           weft_gather_v(session, in, out, counts[rank], rank == 0 ? counts : NULL, WEFT_I32, 0, request),
           request);
    for (uint32_t r = 0; r < ranks && rank == 0; r++)
        expect(is_of(out + firsts[r], r, 0, counts[r]), "gather_v");
    finish("scatter_v",
           weft_scatter_v(session, in, out, counts[rank], rank == 0 ? counts : NULL, WEFT_I32, 0, request),
           request);
    expect(is_of(out, 0, firsts[rank], counts[rank]), "scatter_v");
    finish("all_to_all_v", weft_all_to_all_v(session, in, to, out, from, WEFT_I32, request), request);
    uint64_t at = 0;
    for (uint32_t r = 0; r < ranks; r++) {
        uint64_t first = 0;
        for (uint32_t q = 0; q < rank; q++) first += r * 20 + q;
        expect(is_of(out + at, r, first, from[r]), "all_to_all_v");
        at += from[r];
    }
}

/* Sends to and recvs from all ranks at once: no order of calls is needed. */
static void pairs(void)
{
    static struct weft_request sends[RANKS_MAX], recvs[RANKS_MAX];
    fill();
    for (uint32_t r = 0; r < ranks; r++) {
        if (r == rank) continue;
        weft_send(session, in + r, COUNT, WEFT_I32, r, &sends[r]);
        weft_recv(session, out + (uint64_t)r * COUNT, COUNT, WEFT_I32, r, &recvs[r]);
    }
    for (uint32_t r = 0; r < ranks; r++) {
        if (r == rank) continue;
        finish("send", WEFT_IN_PROGRESS, &sends[r]);
        finish("recv", WEFT_IN_PROGRESS, &recvs[r]);
        expect(is_of(out + (uint64_t)r * COUNT, r, rank, COUNT), "recv");
    }
}

/* f32 of mixed magnitudes and signs. */
static void fill_floats(float *values, size_t count)
{
    uint64_t random = rank * 7919 + 12345;
    for (size_t i = 0; i < count; i++) {
        random = random * 6364136223846793005ull + 1442695040888963407ull;
        uint32_t bits = (uint32_t)(random >> 40) & 0x7fffffu, exponent = 107 + (uint32_t)(random >> 33) % 40;
        bits |= exponent << 23 | (uint32_t)(random >> 32 & 1) << 31;
        memcpy(&values[i], &bits, 4);
    }
}

static void print_hash(const char *name, const float *values, size_t count)
{
    uint64_t hash = 0xcbf29ce484222325ull;
    for (size_t i = 0; i < count * sizeof *values; i++)
        hash = (hash ^ ((const uint8_t *)values)[i]) * 0x100000001b3ull;
    printf("%s %016" PRIx64 "\n", name, hash);
}

/* Of an all_reduce, and of the same sum as a reduce_scatter and an all_gather. */
static void print_bits(struct weft_request *request)
{
    static float values[100003], pieces[100003];
    fill_floats(values, 100003);
    finish("bits", weft_all_reduce(session, values, values, 100003, WEFT_F32, WEFT_SUM, request), request);
    print_hash("bits", values, 100003);
    uint64_t piece = 100003 / ranks;
    fill_floats(values, 100003);
    finish("reduce_scatter", weft_reduce_scatter(session, values, pieces, piece, WEFT_F32, WEFT_SUM, request),
           request);
    finish("all_gather", weft_all_gather(session, pieces, values, piece, WEFT_F32, request), request);
    print_hash("pieces", values, piece * ranks);
}

/* Long enough that plans are re-tuned, where they are (collective.retune). */
static void repeat(uint32_t times, struct weft_request *request)
{
    for (uint32_t i = 0; i < times; i++) {
        fill();
        finish("all_reduce", weft_all_reduce(session, in, out, COUNT, WEFT_I32, WEFT_SUM, request), request);
        expect(is_sum(out, 0, COUNT), "all_reduce, again and again");
    }
}

int main(int argc, char **argv)
{
    struct weft_request request = {{0}};
    if (weft_init(NULL, &session) < 0) {
        printf("%s\n", weft_error_text(NULL));
        return 2;
    }
    rank = weft_rank(session);
    ranks = weft_ranks(session);
    if (ranks > RANKS_MAX) return 2;
    reductions(&request);
    movements(&request);
    unequal(&request);
    pairs();
    print_bits(&request);
    if (argc > 1) repeat((uint32_t)atoi(argv[1]), &request);
    char text[1024];
    if (rank == 0 && weft_explain(session, "all_reduce", 1000, WEFT_F32, text, sizeof text) == WEFT_OK)
        printf("%s\n", text);
    if (weft_finalize(session) < 0) return 2;
    return wrong > 0;
}
