/* fuzz_wrap_options.c - transport.wrap: names and parameters are split as written, parameters of each wrapper
 * are accepted or refused with a sentence, and accepted ones are in range. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/fuzz/fuzz.h"
#include "transport/transport.h"
#include "transport/wrap/wrap_options.h"

static void parse(const char *text, enum wrap_role role)
{
    struct wrap_options options;
    struct weft_error error = {0};
    if (wrap_options_parse(text, role, &options, &error) < 0) {
        if (!error.text[0]) abort();
        return;
    }
    if (!(options.drop >= 0 && options.drop <= 1 && options.breaks >= 0 && options.breaks <= 1)) abort();
    if (role != WRAP_FAULT && (options.drop > 0 || options.breaks > 0 || options.kill_after > 0)) abort();
    if (role == WRAP_TRACE &&
        (!options.file[0] || options.limit_bytes < 65536 || strpbrk(options.file, ",;")))
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    char *text = malloc(bytes + 1), capacity[WEFT_TRANSPORT_BACKEND_BYTES_MAX];
    if (!text) return 0;
    memcpy(text, data, bytes);
    text[bytes] = 0;
    for (enum wrap_role role = WRAP_FAULT; role <= WRAP_TRACE; role++) parse(text, role);
    struct weft_transport_options options;
    weft_transport_options_init(&options);
    if (weft_transport_options_wrap(&options, "sim", text, capacity) == WEFT_OK) {
        if (strlen(capacity) >= sizeof capacity || strcmp(capacity + strlen(capacity) - 3, "sim") != 0)
            abort();
        if (text[0] && (options.wrap < text || options.wrap > text + strlen(text))) abort();
        const char *at = options.wrap;
        for (enum wrap_role role = WRAP_FAULT; at; role = role == WRAP_TRACE ? WRAP_FAULT : role + 1) {
            parse(at, role);
            at = strchr(at, ';');
            if (at) at++;
        }
    }
    free(text);
    return 0;
}

size_t weft_fuzz_seed(uint64_t number, uint8_t *out, size_t capacity)
{
    static const char *const parts[] = {"fault:drop=0.01,break=0.5,seed=7,kill_after=100",
                                        "delay:delay_us=10,jitter_us=2.5,rate_bytes=1e9",
                                        "trace:file=t-%e.json,limit=100000",
                                        "delay",
                                        "fault",
                                        "",
                                        "trace:file=/dev/null"};
    size_t at = 0;
    for (uint64_t rest = number + 1; rest > 0 && at + 100 < capacity; rest /= 7) {
        at += (size_t)snprintf((char *)out + at, capacity - at, "%s%s", at ? ";" : "", parts[rest % 7]);
    }
    return at;
}
