/* test_event_ring.c - wrap-around, both dumps parsed as JSON, and a dump during writes. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "base/base.h"
#include "tests/lib/check.h"

static struct weft_event_ring *new_ring(uint32_t capacity)
{
    struct weft_event_ring *ring;
    assert_int_equal(weft_event_ring_create(weft_env_system(), capacity, &ring), WEFT_OK);
    return ring;
}

static json_t *dump(struct weft_event_ring *ring, bool is_perfetto)
{
    char *text = NULL;
    size_t bytes = 0;
    FILE *out = open_memstream(&text, &bytes);
    json_error_t error;
    assert_int_equal(is_perfetto ? weft_event_ring_dump_perfetto(ring, "engine \"0\"", 42, out)
                                 : weft_event_ring_dump_json(ring, "engine \"0\"", out), WEFT_OK);
    fclose(out);
    json_t *json = json_loads(text, JSON_REJECT_DUPLICATES, &error);
    if (!json) fail_msg("line %d: %s in %s", error.line, error.text, text);
    free(text);
    return json;
}

static json_int_t number(json_t *object, const char *key)
{
    json_t *value = json_object_get(object, key);
    assert_true(json_is_integer(value));
    return json_integer_value(value);
}

static void the_last_events_are_kept(void **state)
{
    struct weft_event_ring *ring = new_ring(8);
    json_t *json = dump(ring, false);
    assert_int_equal(json_array_size(json_object_get(json, "events")), 0);
    json_decref(json);
    for (uint64_t i = 0; i < 21; i++)
        weft_event_ring_add(ring, "push", WEFT_EVENT_MARK, i, (uint32_t)i, i * 10, WEFT_OK);
    json = dump(ring, false);
    assert_string_equal(json_string_value(json_object_get(json, "engine")), "engine \"0\"");
    assert_int_equal(number(json, "added"), 21);
    json_t *events = json_object_get(json, "events");
    assert_int_equal(json_array_size(events), 8);
    for (size_t i = 0; i < 8; i++) {
        json_t *event = json_array_get(events, i);
        assert_int_equal(number(event, "id"), 13 + i);
        assert_int_equal(number(event, "peer"), 13 + i);
        assert_int_equal(number(event, "bytes"), (13 + i) * 10);
        assert_string_equal(json_string_value(json_object_get(event, "phase")), "mark");
        if (i > 0) assert_true(number(event, "time_ns") >= number(json_array_get(events, i - 1), "time_ns"));
    }
    json_decref(json);
    weft_event_ring_free(ring);
}

static void both_dumps_are_equal(void **state)
{
    struct weft_event_ring *ring = new_ring(100);
    weft_event_ring_add(ring, "all_reduce", WEFT_EVENT_BEGIN, 7, UINT32_MAX, 4096, WEFT_OK);
    weft_event_ring_add(ring, "peer_lost", WEFT_EVENT_MARK, 0, 3, 0, WEFT_OK);
    weft_event_ring_add(ring, "all_reduce", WEFT_EVENT_END, 7, UINT32_MAX, 4096, WEFT_ERR_PEER_LOST);
    json_t *flight = dump(ring, false), *trace = dump(ring, true);
    json_t *last = json_array_get(json_object_get(flight, "events"), 2);
    assert_string_equal(json_string_value(json_object_get(last, "status")), "WEFT_ERR_PEER_LOST");
    assert_null(json_object_get(last, "peer"));

    json_t *events = json_object_get(trace, "traceEvents");
    assert_int_equal(json_array_size(events), 4); /* and the process name */
    static const char *const kinds[] = {"M", "b", "i", "e"};
    for (size_t i = 0; i < 4; i++) {
        json_t *event = json_array_get(events, i);
        assert_string_equal(json_string_value(json_object_get(event, "ph")), kinds[i]);
        assert_int_equal(number(event, "pid"), 42);
        assert_int_equal(json_is_real(json_object_get(event, "ts")), i > 0);
    }
    json_t *begin = json_array_get(events, 1), *end = json_array_get(events, 3);
    assert_true(json_equal(json_object_get(begin, "id"), json_object_get(end, "id")));
    assert_true(json_equal(json_object_get(begin, "name"), json_object_get(end, "name")));
    json_decref(flight);
    json_decref(trace);
    weft_event_ring_free(ring);
    weft_event_ring_add(NULL, "x", WEFT_EVENT_MARK, 0, 0, 0, WEFT_OK); /* no ring: no effect */
}

/* One entry is two events in either dump. */
static void what_began_and_ended_at_once_is_dumped_as_both(void **state)
{
    struct weft_event_ring *ring = new_ring(1);
    weft_event_ring_add_at(ring, 5000, "broadcast", WEFT_EVENT_BOTH, 9, UINT32_MAX, 8, WEFT_OK);
    json_t *flight = dump(ring, false), *trace = dump(ring, true);
    json_t *reported = json_object_get(flight, "events"), *traced = json_object_get(trace, "traceEvents");
    static const char *const phases[] = {"begin", "end"}, *const kinds[] = {"b", "e"};
    assert_int_equal(json_array_size(reported), 2);
    assert_int_equal(json_array_size(traced), 3);
    for (size_t i = 0; i < 2; i++) {
        json_t *event = json_array_get(reported, i);
        assert_string_equal(json_string_value(json_object_get(event, "phase")), phases[i]);
        assert_string_equal(json_string_value(json_object_get(event, "name")), "broadcast");
        assert_int_equal(number(event, "id"), 9);
        assert_int_equal(number(event, "time_ns"), 5000);
        assert_string_equal(json_string_value(json_object_get(json_array_get(traced, i + 1), "ph")),
                            kinds[i]);
    }
    assert_null(json_object_get(json_array_get(reported, 0), "status"));
    assert_string_equal(json_string_value(json_object_get(json_array_get(reported, 1), "status")), "WEFT_OK");
    json_decref(flight);
    json_decref(trace);
    weft_event_ring_free(ring);
}

static void a_full_disk_is_a_status(void **state)
{
    struct weft_event_ring *ring = new_ring(10);
    struct weft_event_ring *none;
    FILE *full = fopen("/dev/full", "w");
    assert_non_null(full);
    assert_int_equal(weft_event_ring_dump_json(ring, "e", full), WEFT_ERR_IO);
    fclose(full);
    weft_event_ring_free(ring);
    assert_int_equal(weft_event_ring_create(weft_env_system(), 0, &none), WEFT_ERR_INVALID);
}

static bool writer_stops;
static void *write_events(void *argument)
{
    for (uint64_t i = 0; !__atomic_load_n(&writer_stops, __ATOMIC_RELAXED); i++)
        weft_event_ring_add(argument, "event", WEFT_EVENT_MARK, i, (uint32_t)(i % 1000), i * 3, WEFT_OK);
    return NULL;
}

static void check_whole(struct weft_event_ring *ring)
{
    static char text[4096];
    FILE *out = fmemopen(text, sizeof text, "w");
    assert_non_null(out);
    assert_int_equal(weft_event_ring_dump_json(ring, "e", out), WEFT_OK);
    fclose(out);
    for (const char *at = text; (at = strstr(at, "\"id\":")); at++) {
        unsigned long long id, bytes, peer;
        assert_int_equal(sscanf(at, "\"id\":%llu,\"bytes\":%llu,\"peer\":%llu", &id, &bytes, &peer), 3);
        assert_true(bytes == id * 3 && peer == id % 1000);
    }
}

/* Every event in a dump during writes is complete. */
static void a_dump_sees_no_half_written_event(void **state)
{
    struct weft_event_ring *ring = new_ring(2);
    pthread_t writer;
    __atomic_store_n(&writer_stops, false, __ATOMIC_RELAXED);
    assert_int_equal(pthread_create(&writer, NULL, write_events, ring), 0);
    for (int round = 0; round < 100000; round++) check_whole(ring);
    __atomic_store_n(&writer_stops, true, __ATOMIC_RELAXED);
    pthread_join(writer, NULL);
    check_whole(ring);
    weft_event_ring_free(ring);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_last_events_are_kept),
        cmocka_unit_test(both_dumps_are_equal),
        cmocka_unit_test(what_began_and_ended_at_once_is_dumped_as_both),
        cmocka_unit_test(a_full_disk_is_a_status),
        cmocka_unit_test(a_dump_sees_no_half_written_event),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
