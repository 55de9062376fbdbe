/* fuzz_flight.c - flight records, as weft inspect and weft bench replay read them: any bytes are refused with
 * a sentence, or give operations with numbers in range and calls that can be made. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/fuzz/fuzz.h"
#include "tools/bench/replay/replay_calls.h"

static void check_calls(const struct flight *flight)
{
    struct replay_calls calls;
    char why[300] = "";
    if (!replay_calls_extract(flight, &calls, why, sizeof why)) {
        if (!why[0]) abort();
        return;
    }
    if (calls.count + calls.skipped != flight->operation_count) abort();
    for (uint32_t i = 0; i < calls.count; i++) {
        const struct replay_call *call = &calls.calls[i];
        if (call->group >= calls.group_count || calls.groups[call->group].ranks > calls.ranks) abort();
        const struct replay_group *group = &calls.groups[call->group];
        uint64_t sum = 0;
        /* all of them must be readable */
        for (uint32_t rank = 0; call->lengths && rank < group->ranks; rank++) sum += call->lengths[rank];
        for (uint32_t rank = 0; call->lengths_out && rank < group->ranks; rank++)
            sum -= call->lengths_out[rank];
        if (call->lengths && !call->lengths_out && sum > call->bytes) abort();
        if (call->root >= group->ranks || call->bytes > REPLAY_BYTES_MAX || call->bytes > calls.bytes_max ||
            call->ended_ns < call->posted_ns)
            abort();
        if (i > 0 && (call->posted_ns < calls.calls[i - 1].posted_ns ||
                      call->gap_ns > call->posted_ns - calls.calls[i - 1].posted_ns))
            abort();
    }
    replay_calls_free(&calls);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct flight flight = {0};
    char why[300] = "";
    FILE *file = bytes ? fmemopen((void *)(uintptr_t)data, bytes, "r") : NULL;
    if (!file) return 0;
    if (flight_parse(file, &flight, why, sizeof why)) {
        if (flight.rank >= flight.ranks) abort();
        for (uint32_t i = 0; i < flight.operation_count; i++) {
            const struct flight_operation *operation = &flight.operations[i];
            if (operation->rank >= operation->ranks ||
                (operation->peer != FLIGHT_NO_PEER && operation->peer >= operation->ranks))
                abort();
        }
        check_calls(&flight);
        flight_free(&flight);
    } else if (!why[0]) {
        abort();
    }
    fclose(file);
    return 0;
}

size_t weft_fuzz_seed(uint64_t number, uint8_t *out, size_t capacity)
{
    static const char *const kinds[] = {"all_reduce", "all_gather",     "send",          "recv",
                                        "barrier",    "exchange_bytes", "reduce_scatter"};
    static const char *const lengths[] = {"", ",\"lengths\":[4,0,9]", ",\"lengths\":[7]",
                                          ",\"lengths\":[1,2,3],\"lengths_out\":[3,2,1]"};
    static const char *const dtypes[] = {"f32", "i8", "", "bf16"}, *const ops[] = {"sum", "", "max",
                                                                                   "scaled_sum"};
    char *text = (char *)out;
    if (capacity < 4096) return 0;
    int at = snprintf(text, capacity,
                      "{\"weft_flight\":1,\"job\":\"j\",\"rank\":%d,\"ranks\":3,\"host\":\"h\",\"pid\":7,"
                      "\"now_ns\":99,\"status\":\"WEFT_OK\","
                      "\"text\":\"t\",\"operations\":[",
                      (int)(number % 3));
    for (uint64_t i = 0; i < 4; i++) {
        uint64_t pick = number * 7 + i * 5;
        at +=
            snprintf(text + at, capacity - (size_t)at,
                     "%s{\"group\":1,\"epoch\":1,\"rank\":%d,\"ranks\":3,\"members\":9,\"sequence\":%" PRIu64
                     ",\"kind\":\"%s\",\"count\":%" PRIu64
                     ",\"dtype\":\"%s\",\"op\":\"%s\",\"root\":%d,\"plan\":\"ring\",\"posted_ns\":%" PRIu64
                     ",\"started_ns\":5,\"ended_ns\":%" PRIu64
                     ",\"steps\":1,\"phase\":\"done\"%s,\"status\":\"WEFT_OK\"}",
                     i ? "," : "", (int)(number % 3), i, kinds[pick % 7], pick * 1000, dtypes[pick / 7 % 4],
                     ops[pick / 3 % 4], (int)(pick % 3), 10 + i * 3 + pick % 4, 12 + i * 4 + pick % 3,
                     lengths[number / 2 % 4]);
    }
    at += snprintf(text + at, capacity - (size_t)at, "]}");
    return (size_t)at;
}
