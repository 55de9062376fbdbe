/* test_shard_snapshot.c - captured chunks have the bits of the step, whatever the workers do meanwhile. */
#include "shard_check.h"

#include <stdlib.h>
#include <string.h>

#include "server/shard/shard_clock.h"
#include "server/shard/snapshot/shard_snapshot.h"

enum { WORKERS = 3, STEP = 4, LAST = 8, PIECES_MAX = 64 };

static const struct fleet_tensor_spec tensors[] = {
    {.name = "momentum",
     .codec = "dense",
     .optimizer = "sgd:momentum=0.9",
     .dim_count = 1,
     .dims = {5000},
     .chunk_elems = 1000},
    {.name = "small", .codec = "dense", .optimizer = "sgd:momentum=0.5", .dim_count = 1, .dims = {700}},
    {.name = "low", .codec = "powersgd:rank=2", .optimizer = "sgd", .dim_count = 2, .dims = {60, 50}},
    {.name = "mean", .codec = "dense", .optimizer = "none", .dim_count = 1, .dims = {300}},
};

/* The owner of one engine's snapshot, with a pool. */
struct owner {
    size_t used, most, piece_bytes;
    struct weft_piece *pieces[PIECES_MAX];
    uint32_t count, freed; /* captured; of these no longer in the pool */
    uint32_t refused, passed, ended;
    enum weft_status status;
    uint64_t stall_ns;
};

static bool reserve(void *context, size_t bytes)
{
    struct owner *owner = context;
    if (owner->used > 0 && owner->used + bytes > owner->most) {
        owner->refused++;
        return false;
    }
    owner->used += bytes;
    return true;
}

static void unreserve(void *context, size_t bytes)
{
    struct owner *owner = context;
    assert_true(owner->used >= bytes);
    owner->used -= bytes;
}

static void captured(void *context, uint32_t id, struct weft_piece *piece)
{
    struct owner *owner = context;
    assert_int_equal(id, 7);
    assert_int_equal(owner->ended, 0);
    assert_true(owner->count < PIECES_MAX);
    owner->pieces[owner->count++] = piece;
}

static void passed(void *context, uint32_t id)
{
    ((struct owner *)context)->passed++;
}

static void ended(void *context, uint32_t id, enum weft_status status, const char *text, uint64_t stall_ns)
{
    struct owner *owner = context;
    owner->ended++;
    owner->status = status;
    owner->stall_ns = stall_ns;
    assert_true((status == WEFT_OK) == (text[0] == 0));
}

static struct shard_snapshot_ops ops_of(struct owner *owner)
{
    return (struct shard_snapshot_ops){reserve, unreserve, captured,          passed,
                                       ended,   owner,     owner->piece_bytes};
}

static void owner_fini(struct owner *owner)
{
    for (uint32_t i = 0; i < owner->count; i++) weft_piece_free(owner->pieces[i]);
}

static struct fleet *fleet_of(uint32_t shards)
{
    const struct fleet_options options = {.seed = 5,
                                          .shards = shards,
                                          .workers = WORKERS,
                                          .receive_bytes_max = 1 << 20,
                                          .tensors = tensors,
                                          .tensor_count = 4,
                                          .think_ns = WEFT_MS(3),
                                          .round_deadline_ns = WEFT_SECONDS(60)};
    struct fleet *fleet = fleet_create(&options);
    fleet_install(fleet);
    return fleet;
}

/* The owner's disk is slow: it frees one piece every 2 ms. */
static void train_with(struct fleet *fleet, struct owner *owners)
{
    fleet_train_begin(fleet, 1, LAST);
    for (int round = 0; round < 5000 && fleet->training > 0; round++) {
        fleet_settle(fleet, WEFT_MS(2));
        for (uint32_t s = 0; s < fleet->options.shards; s++) {
            struct owner *owner = &owners[s];
            if (owner->freed == owner->count) continue;
            unreserve(owner, owner->pieces[owner->freed++]->bytes);
            weft_shard_engine_snapshot_resume(fleet->shard[s].engine);
        }
    }
    assert_int_equal(fleet->training, 0);
    assert_int_equal(fleet->counts.wrong, 0);
    for (uint32_t s = 0; s < fleet->options.shards; s++)
        for (; owners[s].freed < owners[s].count; owners[s].freed++)
            unreserve(&owners[s], owners[s].pieces[owners[s].freed]->bytes);
}

/* Compares an array with the reference, or with the state of an engine that ended at the step. */
static void check_array(struct fleet *fleet, struct fleet *stopped, const struct weft_piece *piece,
                        uint32_t index)
{
    const struct weft_piece_array *array = &piece->arrays[index];
    float *found = malloc(array->count * sizeof *found);
    const float *wanted = NULL;
    assert_non_null(found);
    weft_piece_values(piece, index, 0, array->count, found);
    assert_int_equal(array->step, STEP);
    assert_string_equal(array->tensor, tensors[array->tensor_id].name);
    if (array->part == WEFT_PIECE_VALUES)
        wanted = reference_values(fleet->reference, array->tensor_id, STEP) + array->offset;
    for (uint32_t c = 0; !wanted && c < stopped->chunk_count; c++) {
        const struct shard_chunk *chunk = fleet_shard_chunk(stopped, c);
        if (chunk->tensor->id == array->tensor_id && chunk->offset <= array->offset &&
            array->offset < chunk->offset + chunk->count)
            wanted = chunk->states[array->part - WEFT_PIECE_STATE] + (array->offset - chunk->offset);
    }
    assert_non_null(wanted);
    assert_memory_equal(found, wanted, array->count * sizeof *found);
    free(found);
}

/* Elements of all arrays: values and states of the tensors with an optimizer. */
#define ELEMENTS_WANTED (5000u * 2 + 700 * 2 + 60 * 50)

static void check_pieces(struct fleet *fleet, struct owner *owners)
{
    struct fleet *stopped = fleet_of(fleet->options.shards);
    uint64_t elements = 0;
    assert_true(fleet_train(stopped, 1, STEP));
    for (uint32_t s = 0; s < fleet->options.shards; s++) {
        for (uint32_t i = 0; i < owners[s].count; i++) {
            for (uint32_t k = 0; k < owners[s].pieces[i]->array_count; k++) {
                check_array(fleet, stopped, owners[s].pieces[i], k);
                elements += owners[s].pieces[i]->arrays[k].count;
            }
        }
        owner_fini(&owners[s]);
    }
    assert_int_equal(elements, ELEMENTS_WANTED);
    fleet_free(stopped);
}

static void check_bits(size_t pool, size_t piece_bytes, uint32_t shards, bool stalls)
{
    struct fleet *fleet = fleet_of(shards);
    struct owner owners[FLEET_SHARDS_MAX] = {{.used = 0}};
    for (uint32_t s = 0; s < shards; s++) {
        owners[s].most = pool;
        owners[s].piece_bytes = piece_bytes;
        const struct shard_snapshot_ops ops = ops_of(&owners[s]);
        uint64_t newest;
        assert_true(weft_shard_engine_snapshot_arm(fleet->shard[s].engine, 7, STEP, &ops, &newest));
        assert_int_equal(newest, 0);
    }
    train_with(fleet, owners);
    for (uint32_t s = 0; s < shards; s++) {
        assert_int_equal(owners[s].passed, 1);
        assert_int_equal(owners[s].ended, 1);
        assert_int_equal(owners[s].status, WEFT_OK);
        assert_int_equal(owners[s].used, 0);
        assert_int_equal(owners[s].stall_ns > 0, stalls);
    }
    check_pieces(fleet, owners);
    fleet_free(fleet);
}

static void has_the_bits(void **state)
{
    check_bits(64 << 20, 16 << 20, 2, false);
}

/* Arrays are split where a piece is full. */
static void splits_chunks(void **state)
{
    check_bits(64 << 20, 1500 * sizeof(float), 2, false);
}

/* The pool has memory for one group, whose pieces are freed late: pushes wait, and no bit changes. */
static void waits_for_the_pool(void **state)
{
    check_bits(1, 2000 * sizeof(float), 1, true);
}

static void too_late(void **state)
{
    struct fleet *fleet = fleet_of(1);
    struct owner owner = {.most = 1 << 20, .piece_bytes = 1 << 20};
    const struct shard_snapshot_ops ops = ops_of(&owner);
    uint64_t newest;
    assert_true(fleet_train(fleet, 1, 3));
    assert_false(weft_shard_engine_snapshot_arm(fleet->shard[0].engine, 7, 2, &ops, &newest));
    assert_int_equal(newest, 3);
    assert_true(weft_shard_engine_snapshot_arm(fleet->shard[0].engine, 7, 3, &ops, &newest));
    /* no worker pushes again, but another shard has seen the end of the step */
    weft_shard_engine_snapshot_passed(fleet->shard[0].engine, 6);
    fleet_settle(fleet, WEFT_SECONDS(1));
    assert_int_equal(owner.passed, 0);
    weft_shard_engine_snapshot_passed(fleet->shard[0].engine, 7);
    fleet_settle(fleet, WEFT_SECONDS(1));
    assert_int_equal(owner.ended, 1);
    assert_int_equal(owner.status, WEFT_OK);
    assert_true(owner.count > 0);
    assert_memory_equal(owner.pieces[0]->data, reference_values(fleet->reference, 0, 3),
                        1000 * sizeof(float));
    owner_fini(&owner);
    fleet_free(fleet);
}

/* A chunk whose last close may still be undone is not captured; without further pushes the snapshot ends. */
static void last_step_may_be_skipped(void **state)
{
    struct fleet *fleet = fleet_of(1);
    struct owner owner = {.most = 1 << 20, .piece_bytes = 1 << 20};
    const struct shard_snapshot_ops ops = ops_of(&owner);
    uint64_t newest;
    assert_true(fleet_train(fleet, 1, 3));
    fleet_shard_chunk(fleet, 2)->backup.valid = true;
    assert_true(weft_shard_engine_snapshot_arm(fleet->shard[0].engine, 7, 3, &ops, &newest));
    weft_shard_engine_snapshot_passed(fleet->shard[0].engine, 7);
    fleet_settle(fleet, WEFT_SECONDS(1));
    assert_int_equal(owner.ended, 0);
    weft_shard_engine_snapshot_finish(fleet->shard[0].engine);
    fleet_settle(fleet, WEFT_SECONDS(1));
    assert_int_equal(owner.ended, 1);
    assert_int_equal(owner.status, WEFT_ERR_ABORTED);
    assert_int_equal(owner.used, 0);
    fleet_shard_chunk(fleet, 2)->backup.valid = false;
    owner_fini(&owner);
    fleet_free(fleet);
}

static void abandoned(void **state)
{
    struct fleet *fleet = fleet_of(1);
    struct owner owner = {.most = 1 << 20, .piece_bytes = 1 << 20};
    const struct shard_snapshot_ops ops = ops_of(&owner);
    uint64_t newest;
    assert_true(weft_shard_engine_snapshot_arm(fleet->shard[0].engine, 7, 2, &ops, &newest));
    weft_shard_engine_release(fleet->shard[0].engine, 1);
    assert_int_equal(owner.ended, 1);
    assert_int_equal(owner.status, WEFT_ERR_ABORTED);
    assert_int_equal(owner.used, 0);
    weft_shard_engine_snapshot_abandon(fleet->shard[0].engine, "again");
    assert_int_equal(owner.ended, 1);
    fleet_free(fleet);
}

static const struct fleet_tensor_spec clock_spec = {.name = "clock",
                                                    .codec = "dense",
                                                    .optimizer = "sgd",
                                                    .dim_count = 1,
                                                    .dims = {4000},
                                                    .consistency = "asp"};
static const struct fleet_options clock_options = {
    .seed = 5, .shards = 2, .workers = 4, .tensors = &clock_spec, .tensor_count = 1, .copies = true};

/* A restored chunk has the values, and clocks that begin anew. */
static void check_restored_clock(const struct weft_piece *piece)
{
    struct fleet *fleet = fleet_create(&clock_options);
    const struct shard_chunk *chunk = fleet_shard_chunk(fleet, 0);
    struct weft_error error = {0};
    float values[4000];
    struct weft_shard_engine *engine = fleet->shard[fleet->chunk[0].shard].engine;
    assert_int_equal(weft_shard_engine_restore(engine, 0, piece, 0, &error), WEFT_OK);
    weft_piece_values(piece, 0, 0, chunk->count, values);
    assert_memory_equal(chunk->values, values, sizeof values);
    assert_true(chunk->initialised);
    assert_int_equal(chunk->closed_step, 0);
    assert_int_equal(chunk->clock->counts->updates, STEP * clock_options.workers);
    assert_int_equal(chunk->clock->counts->clock[0], 0);
    fleet_free(fleet);
}

/* Chunks with clocks are captured between two updates. by_update: before the next one, else on the timer. */
static void check_clocks(bool by_update)
{
    struct fleet *fleet = fleet_create(&clock_options);
    struct owner owner = {.used = by_update, .most = 1, .piece_bytes = 1 << 20};
    const struct shard_snapshot_ops ops = ops_of(&owner);
    uint64_t newest;
    fleet_install(fleet);
    assert_true(fleet_train(fleet, 1, STEP - 1));
    struct shard_chunk *chunk = fleet_shard_chunk(fleet, 0);
    struct weft_shard_engine *engine = fleet->shard[fleet->chunk[0].shard].engine;
    assert_true(weft_shard_engine_snapshot_arm(engine, 7, STEP, &ops, &newest));
    assert_int_equal(newest, 0);
    chunk->work.computing = !by_update; /* an update is under way */
    weft_shard_engine_snapshot_passed(engine, 7);
    fleet_settle(fleet, WEFT_MS(10));
    assert_int_equal(owner.ended, 0);
    assert_int_equal(owner.refused > 0, by_update);
    chunk->work.computing = false;
    owner.used = 0;
    if (by_update) assert_true(fleet_train(fleet, STEP, LAST));
    fleet_settle(fleet, WEFT_SECONDS(1));
    assert_int_equal(fleet->counts.wrong, 0);
    assert_int_equal(owner.ended, 1);
    assert_int_equal(owner.status, WEFT_OK);
    assert_int_equal(owner.count, 1);
    assert_int_equal(owner.pieces[0]->arrays[0].step, STEP);
    float values[4000];
    weft_piece_values(owner.pieces[0], 0, 0, 4000, values);
    assert_memory_equal(values, reference_values(fleet->reference, 0, STEP - 1), sizeof values);
    check_restored_clock(owner.pieces[0]);
    owner_fini(&owner);
    fleet_free(fleet);
}

static void captures_clocks(void **state)
{
    check_clocks(false);
    check_clocks(true);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(has_the_bits),
        cmocka_unit_test(splits_chunks),
        cmocka_unit_test(waits_for_the_pool),
        cmocka_unit_test(too_late),
        cmocka_unit_test(last_step_may_be_skipped),
        cmocka_unit_test(abandoned),
        cmocka_unit_test(captures_clocks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
