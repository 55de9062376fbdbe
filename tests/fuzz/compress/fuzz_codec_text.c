/* fuzz_codec_text.c - codec specs: a valid one has a canonical text that parses to the same spec. */
#include <stdlib.h>
#include <string.h>

#include "compress/compress.h"
#include "tests/fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct weft_codec_spec spec, again;
    struct weft_error error = {0};
    char text[200], canonical[WEFT_CODEC_TEXT_BYTES], second[WEFT_CODEC_TEXT_BYTES];
    if (bytes >= sizeof text) return 0;
    memcpy(text, data, bytes);
    text[bytes] = '\0';
    if (weft_codec_parse(text, &spec, &error) != WEFT_OK) {
        if (error.text[0] == '\0') abort();
        return 0;
    }
    weft_codec_format(&spec, canonical, sizeof canonical);
    if (weft_codec_parse(canonical, &again, NULL) != WEFT_OK) abort();
    weft_codec_format(&again, second, sizeof second);
    if (strcmp(canonical, second) != 0 || memcmp(&spec, &again, sizeof spec) != 0) abort();
    return 0;
}

size_t weft_fuzz_seed(uint64_t number, uint8_t *out, size_t capacity)
{
    static const char *const texts[] = {"dense",
                                        "f16",
                                        "bf16",
                                        "powersgd",
                                        "powersgd:rank=4,min_ratio=2.5,seed=7",
                                        "topk:ratio=0.01",
                                        "topk:ratio=1e-3,min_count=10",
                                        "powersgd:min_ratio=1e3",
                                        "int8",
                                        "int4:seed=9,min_count=0",
                                        "sign",
                                        "e4m3:min_count=9",
                                        "e5m2",
                                        "randomk:ratio=0.1,seed=3,min_count=7",
                                        "powersgd:iterations=3",
                                        "topk:momentum=.9,nesterov=1,masking=0,clip=2,warmup_steps=9",
                                        "topk:clip=0013200E22",
                                        "topk:clip=999999999999999e15"};
    const char *text = texts[number % (sizeof texts / sizeof texts[0])];
    memcpy(out, text, strlen(text));
    return strlen(text);
}
