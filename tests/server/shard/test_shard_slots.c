/* test_shard_slots.c - the receive memory's arena: no overlap, no leak, neighbours merge. */
#include "shard_check.h"

#include <stdlib.h>
#include <string.h>

struct piece {
    uint8_t *memory;
    size_t bytes;
    uint8_t mark;
};

static void random_pieces(void **state)
{
    for (uint64_t seed = 1; seed <= 20; seed++) {
        struct shard_arena arena;
        struct piece pieces[32] = {{0}};
        uint64_t random = seed;
        size_t held = 0;
        assert_int_equal(shard_arena_init(&arena, weft_env_system(), 64 * 200, false), WEFT_OK);
        for (int turn = 0; turn < 2000; turn++) {
            random = fleet_mix(random);
            struct piece *piece = &pieces[random % 32];
            if (piece->memory) {
                for (size_t i = 0; i < piece->bytes; i++) assert_int_equal(piece->memory[i], piece->mark);
                shard_arena_release(&arena, piece->memory, piece->bytes);
                held -= (piece->bytes + 63) / 64 * 64;
                piece->memory = NULL;
            } else {
                piece->bytes = 1 + (random >> 8) % 2000;
                piece->memory = shard_arena_reserve(&arena, piece->bytes);
                if (!piece->memory) continue;
                piece->mark = (uint8_t)turn;
                assert_int_equal((uintptr_t)piece->memory % 64, 0);
                memset(piece->memory, piece->mark, piece->bytes);
                held += (piece->bytes + 63) / 64 * 64;
            }
            assert_int_equal(arena.used_bytes, held);
        }
        for (int i = 0; i < 32; i++)
            if (pieces[i].memory) shard_arena_release(&arena, pieces[i].memory, pieces[i].bytes);
        void *all = shard_arena_reserve(&arena, arena.bytes); /* everything has merged */
        assert_non_null(all);
        assert_null(shard_arena_reserve(&arena, 1));
        shard_arena_fini(&arena, weft_env_system());
    }
}

static void slots_are_apart(void **state)
{
    struct shard_arena arena;
    struct shard_slots slots = {0};
    struct shard_slot *taken[5];
    assert_int_equal(shard_arena_init(&arena, weft_env_system(), shard_slots_bytes(5, 100), false), WEFT_OK);
    assert_true(shard_slots_open(&slots, &arena, 5, 100));
    for (int i = 0; i < 5; i++) {
        taken[i] = shard_slots_alloc(&slots);
        memset(shard_slot_data(taken[i]), i, 100);
        assert_ptr_equal(shard_slot_of(shard_slot_data(taken[i])), taken[i]);
    }
    for (int i = 0; i < 5; i++)
        for (int j = 0; j < 100; j++) assert_int_equal(((uint8_t *)shard_slot_data(taken[i]))[j], i);
    assert_int_equal(slots.used, 5);
    for (int i = 0; i < 5; i++) shard_slots_free(&slots, taken[i]);
    assert_int_equal(slots.used, 0);
    struct shard_slots other = {0};
    assert_false(shard_slots_open(&other, &arena, 1, 1));
    shard_slots_close(&slots, &arena);
    assert_int_equal(arena.used_bytes, 0);
    assert_true(shard_slots_open(&other, &arena, 1, 1));
    shard_slots_close(&other, &arena);
    shard_arena_fini(&arena, weft_env_system());
}

/* An arena in mapped memory takes pages as rounds need them, in steps, and keeps them. */
static void pages_are_taken_in_steps(void **state)
{
    const size_t step = WEFT_MEMORY_STEP_BYTES, bytes = 3 * step + step / 2;
    struct shard_arena arena;
    uint64_t offset;
    assert_int_equal(shard_arena_init(&arena, weft_env_system(), bytes, true), WEFT_OK);
    assert_true(weft_memory_locate(arena.memory, bytes, &offset));
    assert_int_equal(arena.committed_bytes, step);
    void *first = shard_arena_reserve(&arena, step - 64), *second = shard_arena_reserve(&arena, step);
    memset(first, 1, step - 64);
    memset(second, 2, step);
    assert_int_equal(arena.committed_bytes, 2 * step);
    shard_arena_release(&arena, second, step);
    shard_arena_release(&arena, first, step - 64);
    first = shard_arena_reserve(&arena, bytes);
    assert_non_null(first);
    assert_int_equal(arena.committed_bytes, bytes);
    memset(first, 3, bytes);
    shard_arena_release(&arena, first, bytes);
    shard_arena_fini(&arena, weft_env_system());
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(random_pieces), cmocka_unit_test(slots_are_apart),
                                       cmocka_unit_test(pages_are_taken_in_steps)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
