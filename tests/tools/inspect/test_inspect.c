/* test_inspect.c - merged flight records of a job: the right culprit, or one sentence about an invalid
 * file. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/lib/check.h"
#include "tools/inspect/inspect.h"

#define RANKS 5
static char directory[64];
static struct flight flights[RANKS];
static uint32_t flight_count;

/* One operation of a record as text. */
struct row {
    const char *kind, *status, *phase;
    unsigned sequence, count, steps;
    int peer; /* -1: none */
};

static void write_record(const char *path, unsigned rank, const struct row *rows, unsigned count)
{
    FILE *out = fopen(path, "w");
    assert_non_null(out);
    fprintf(out,
            "{\"weft_flight\":1,\"job\":\"j\",\"rank\":%u,\"ranks\":%u,\"host\":\"h\",\"pid\":7,\"now_ns\":"
            "9000000000,\"status\":\"WEFT_ERR_DEADLINE\","
            "\"text\":\"why\",\n\"recorded\":%u,\"capacity\":2000,\"operations\":[",
            rank, RANKS, count);
    for (unsigned i = 0; i < count; i++) {
        fprintf(out,
                "%s\n{\"group\":1,\"epoch\":2,\"rank\":%u,\"ranks\":%u,\"members\":5,\"sequence\":%u,"
                "\"kind\":\"%s\",\"count\":%u,\"dtype\":\"f32\",\"op\":\"sum\","
                "\"root\":0,\"plan\":\"ring\",\"posted_ns\":1000000000,\"started_ns\":1000000001,\"ended_"
                "ns\":0,\"steps\":%u,\"phase\":\"%s\"",
                i ? "," : "", rank, RANKS, rows[i].sequence, rows[i].kind, rows[i].count, rows[i].steps,
                rows[i].phase);
        if (rows[i].peer >= 0) fprintf(out, ",\"peer\":%d", rows[i].peer);
        fprintf(out, ",\"status\":\"%s\"}", rows[i].status);
    }
    fputs("\n]}\n", out);
    assert_int_equal(fclose(out), 0);
}

static void add(unsigned rank, const struct row *rows, unsigned count)
{
    char path[128], why[400] = "";
    snprintf(path, sizeof path, "%s/flight-%u.json", directory, rank);
    write_record(path, rank, rows, count);
    if (!flight_read(path, &flights[flight_count], why, sizeof why)) fail_msg("%s", why);
    flight_count++;
    unlink(path);
}

static const struct row done_row = {.kind = "all_reduce",
                                    .status = "WEFT_OK",
                                    .phase = "done",
                                    .sequence = 0,
                                    .count = 100,
                                    .steps = 9,
                                    .peer = -1};

/* A rank that has completed operation 0 and is in operation 1, at `steps`, waiting for `peer`. */
static void add_waiting(unsigned rank, int peer, unsigned steps, const char *phase)
{
    struct row rows[2] = {done_row, {"all_reduce", "WEFT_IN_PROGRESS", phase, 1, 100, steps, peer}};
    add(rank, rows, 2);
}

static void diagnosed(bool trouble, bool mismatch, const char *expected_text)
{
    struct diagnosis diagnosis;
    assert_true(diagnose_flights(flights, flight_count, &diagnosis));
    assert_int_equal(diagnosis.group_count, 1);
    assert_int_equal(diagnosis.groups[0].has_unfinished, trouble);
    assert_int_equal(diagnosis.groups[0].mismatch, mismatch);
    assert_string_equal(diagnosis.groups[0].diagnosis_text, expected_text);
    diagnosis_free(&diagnosis);
    while (flight_count > 0) flight_free(&flights[--flight_count]);
}

static void all_well(void **state)
{
    for (unsigned r = 0; r < RANKS; r++) add(r, &done_row, 1);
    diagnosed(false, false, "");
}

static void one_left_no_record(void **state)
{
    for (unsigned r = 0; r < RANKS; r++)
        if (r != 3) add_waiting(r, (int)(r + RANKS - 1) % RANKS, 4, "reducing");
    diagnosed(true, false, "rank 3 left no record: killed, stopped, or still running");
}

static void some_have_not_called(void **state)
{
    for (unsigned r = 0; r < RANKS; r++)
        if (r == 0 || r == 1) add(r, &done_row, 1);
        else if (r != 4) add_waiting(r, (int)r - 1, 4, "reducing");
    diagnosed(true, false,
              "rank 4 left no record: killed, stopped, or still running; ranks 0-1 have not called it");
}

/* 0 waits for 4, 4 for 3, 1 for 0, 2 for 1: all waits end at 3, which reduces. */
static void waits_lead_to_one(void **state)
{
    for (unsigned r = 0; r < RANKS; r++)
        add_waiting(r, r == 3 ? -1 : (int)(r + RANKS - 1) % RANKS, r == 3 ? 9 : 4,
                    r == 3 ? "summing" : "reducing");
    diagnosed(true, false, "all have called it, and the waits lead to rank 3");
}

static void waits_form_a_cycle(void **state)
{
    for (unsigned r = 0; r < RANKS; r++)
        add_waiting(r, (int)(r + RANKS - 1) % RANKS, r == 2 ? 3 : 4 + r, "reducing");
    diagnosed(true, false, "all have called it and wait for each other; rank 2 has done the fewest steps");
}

static void calls_differ(void **state)
{
    for (unsigned r = 0; r < RANKS; r++) {
        struct row rows[2] = {done_row,
                              {r == 1 ? "broadcast" : "all_reduce", "WEFT_ERR_MISMATCH", "greeting", 1,
                               r == 2 ? 99 : 100, 0, 0}};
        add(r, rows, 2);
    }
    diagnosed(
        true, true,
        "calls differ: rank 1 called broadcast of 100 f32, sum, plan ring, rank 2 called all_reduce of 99 "
        "f32, sum, plan ring, ranks 0, 3-4 called all_reduce of 100 f32, sum, plan ring");
}

/* Every truncation of a record is refused with a sentence, and so is every missing field. */
static void cut_and_damaged(void **state)
{
    char path[128], why[400], text[4096];
    struct flight flight;
    struct row rows[2] = {done_row, {"all_reduce", "WEFT_IN_PROGRESS", "reducing", 1, 100, 3, 4}};
    snprintf(path, sizeof path, "%s/flight-x.json", directory);
    write_record(path, 0, rows, 2);
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    size_t bytes = fread(text, 1, sizeof text - 1, file);
    fclose(file);
    /* without its last brace; the newline after it is optional */
    for (size_t cut = 0; cut + 2 < bytes; cut++) {
        assert_non_null(file = fopen(path, "w"));
        fwrite(text, 1, cut, file);
        fclose(file);
        why[0] = 0;
        assert_false(flight_read(path, &flight, why, sizeof why));
        assert_true(why[0] && !strchr(why, '\n'));
    }
    text[bytes] = 0;
    /* replaces one character in each name and string */
    for (char *quote = strchr(text, '"'); quote; quote = strchr(quote + 1, '"')) {
        char kept = quote[1];
        if (kept == ',' || kept == ':' || kept == '}') continue;
        quote[1] = '\x01';
        assert_non_null(file = fopen(path, "w"));
        fwrite(text, 1, bytes, file);
        fclose(file);
        why[0] = 0;
        assert_false(flight_read(path, &flight, why, sizeof why)); /* JSON has no raw control characters */
        assert_true(why[0] && !strchr(why, '\n'));
        quote[1] = kept;
    }
    unlink(path);
    assert_false(flight_read("/nonexistent/x.json", &flight, why, sizeof why));
    assert_false(flight_read(directory, &flight, why, sizeof why));
}

static void refused(const char *old, const char *new, const char *words)
{
    char path[128], why[400] = "", text[4096], changed[4200];
    struct flight flight;
    struct row rows[2] = {done_row, {"all_reduce", "WEFT_IN_PROGRESS", "reducing", 1, 100, 3, 4}};
    snprintf(path, sizeof path, "%s/flight-y.json", directory);
    write_record(path, 0, rows, 2);
    FILE *file = fopen(path, "r");
    text[fread(text, 1, sizeof text - 1, file)] = 0;
    fclose(file);
    char *at = strstr(text, old);
    assert_non_null(at);
    snprintf(changed, sizeof changed, "%.*s%s%s", (int)(at - text), text, new, at + strlen(old));
    file = fopen(path, "w");
    fputs(changed, file);
    fclose(file);
    bool taken = flight_read(path, &flight, why, sizeof why);
    if (taken) flight_free(&flight);
    unlink(path);
    if (taken || !strstr(why, words))
        fail_msg("%s instead of %s: %s, '%s'", new, old, taken ? "taken" : "refused", why);
}

static void hostile_fields(void **state)
{
    refused("\"weft_flight\":1", "\"weft_flight\":2", "version 2");
    refused("\"weft_flight\":1", "\"weft\":1", "no flight record");
    refused("\"ranks\":5", "\"ranks\":0", "head");
    refused("\"ranks\":5", "\"ranks\":99999999", "head");
    refused("\"pid\":7", "\"pid\":-1", "head");
    refused("\"peer\":4", "\"peer\":5", "'peer' of its operation 1");
    refused("\"peer\":4", "\"peer\":\"4\"", "'peer' of its operation 1");
    refused("\"sequence\":1", "\"sequence\":-1", "'sequence' of its operation 1");
    refused("\"sequence\":1", "\"sequence\":1e3", "'sequence'");
    refused("\"kind\":\"all_reduce\"", "\"kind\":7", "'kind' of its operation 0");
    refused("\"count\":100", "\"count\":99999999999999999999", "");
    refused("\"operations\":[", "\"operations\":{\"a\":[", "");
    refused("\"group\":1", "\"group\":4294967296", "'group'");
    refused("\"members\":5", "\"members\":-5", "'members'");
}

/* Two groups of a mesh without a common rank: equal ids, and separate diagnoses. */
static void groups_that_share_an_id(void **state)
{
    struct flight_operation operations[4] = {0};
    struct flight four[4] = {0};
    for (uint32_t i = 0; i < 4; i++) {
        operations[i] = (struct flight_operation){.group = 3,
                                                  .members = 70 + i % 2,
                                                  .rank = i / 2,
                                                  .ranks = 2,
                                                  .peer = FLIGHT_NO_PEER,
                                                  .posted_ns = 1};
        snprintf(operations[i].status, sizeof operations[i].status, i == 1 ? "WEFT_IN_PROGRESS" : "WEFT_OK");
        four[i] = (struct flight){
            .rank = i, .ranks = 4, .operations = &operations[i], .operation_count = i == 3 ? 0 : 1};
    }
    struct diagnosis diagnosis;
    assert_true(diagnose_flights(four, 4, &diagnosis));
    assert_int_equal(diagnosis.group_count, 2);
    assert_int_equal(diagnosis.groups[0].member_count, 2);
    assert_false(diagnosis.groups[0].has_unfinished);
    assert_int_equal(diagnosis.groups[1].member_count, 1);
    assert_true(diagnosis.groups[1].has_unfinished);
    assert_string_equal(diagnosis.groups[1].diagnosis_text,
                        "rank 1 left no record: killed, stopped, or still running");
    diagnosis_free(&diagnosis);
}

static void many_ranks_stay_one_line(void **state)
{
    /* A million claimed ranks, two records: memory does not grow with the claim. */
    struct flight_operation operations[2] = {0};
    struct flight two[2] = {0};
    for (uint32_t i = 0; i < 2; i++) {
        operations[i] = (struct flight_operation){
            .rank = i * 4000, .ranks = FLIGHT_RANKS_MAX, .peer = FLIGHT_NO_PEER, .posted_ns = 1};
        snprintf(operations[i].status, sizeof operations[i].status, "WEFT_IN_PROGRESS");
        two[i].operations = &operations[i];
        two[i].operation_count = 1;
    }
    struct diagnosis diagnosis;
    assert_true(diagnose_flights(two, 2, &diagnosis));
    assert_string_equal(diagnosis.groups[0].diagnosis_text,
                        "ranks 1-3999, 4001-1048575 left no record: killed, stopped, or still running");
    diagnosis_free(&diagnosis);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_well),
        cmocka_unit_test(one_left_no_record),
        cmocka_unit_test(some_have_not_called),
        cmocka_unit_test(waits_lead_to_one),
        cmocka_unit_test(waits_form_a_cycle),
        cmocka_unit_test(calls_differ),
        cmocka_unit_test(cut_and_damaged),
        cmocka_unit_test(hostile_fields),
        cmocka_unit_test(groups_that_share_an_id),
        cmocka_unit_test(many_ranks_stay_one_line),
    };
    snprintf(directory, sizeof directory, "/tmp/weft-inspect-XXXXXX");
    if (!mkdtemp(directory)) return 1;
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    rmdir(directory);
    return failed;
}
