/* codec_tuner_candidates.c - "auto:topk:ratio=0.01,bf16": the candidates of a tensor.
 *
 * Commas separate both candidates and a codec's options. A piece with a '=' and no ':' before it is an
 * option of the candidate before it; so the text is cut in front of every other piece, and each part is an
 * ordinary codec spec. */
#include <stdio.h>
#include <string.h>

#include "compress/compress.h"

bool weft_codec_candidates_requested(const char *text)
{
    return strcmp(text, "auto") == 0 || strncmp(text, "auto:", 5) == 0;
}

/* Bytes of the candidate that begins at `text`. */
static size_t candidate_length(const char *text)
{
    size_t length = strcspn(text, ",");
    while (text[length] == ',') {
        const char *piece = text + length + 1;
        const size_t key = strcspn(piece, ":=,");
        if (piece[key] != '=') break;
        length += 1 + strcspn(piece, ",");
    }
    return length;
}

static bool spec_equal(const struct weft_codec_spec *a, const struct weft_codec_spec *b)
{
    char texts[2][WEFT_CODEC_TEXT_BYTES];
    weft_codec_format(a, texts[0], sizeof texts[0]);
    weft_codec_format(b, texts[1], sizeof texts[1]);
    return strcmp(texts[0], texts[1]) == 0;
}

static bool is_listed(const struct weft_codec_spec *specs, uint32_t count, const struct weft_codec_spec *spec)
{
    for (uint32_t i = 0; i < count; i++)
        if (spec_equal(&specs[i], spec)) return true;
    return false;
}

static enum weft_status candidate_add(const char *text, size_t length, struct weft_codec_spec *specs,
                                      uint32_t *count, struct weft_error *error)
{
    struct weft_codec_spec spec;
    char one[WEFT_CODEC_TEXT_BYTES];
    snprintf(one, sizeof one, "%.*s", (int)(length < sizeof one ? length : sizeof one - 1), text);
    WEFT_TRY(weft_codec_parse(one, &spec, error));
    if (spec.id == WEFT_CODEC_DENSE) return WEFT_OK; /* always a candidate */
    if (spec.momentum != 0)
        return weft_error_set(
            error, WEFT_ERR_INVALID,
            "auto: \"%s\" keeps the optimiser's momentum, which the other candidates would train without; "
            "name it as the tensor's only codec",
            one);
    if (spec.global)
        return weft_error_set(
            error, WEFT_ERR_INVALID,
            "auto: \"%s\" keeps a residual where contributions are summed, which no other candidate "
            "would send; name it as the tensor's only codec",
            one);
    if (is_listed(specs, *count, &spec))
        return weft_error_set(error, WEFT_ERR_INVALID, "auto: the candidate \"%s\" is named twice", one);
    if (*count == WEFT_CODEC_CANDIDATES_MAX)
        return weft_error_set(error, WEFT_ERR_INVALID, "auto: at most %d candidates beside dense",
                              WEFT_CODEC_CANDIDATES_MAX - 1);
    specs[(*count)++] = spec;
    return WEFT_OK;
}

enum weft_status weft_codec_candidates_parse(const char *text, struct weft_codec_candidates *candidates,
                                  struct weft_error *error)
{
    struct weft_codec_candidates found = {.count = 1};
    if (!weft_codec_candidates_requested(text))
        return weft_error_set(error, WEFT_ERR_INVALID,
                              "\"%.60s\" is not \"auto\", with or without candidates (\"auto:topk,bf16\")",
                              text);
    const char *at = text[4] == ':' ? text + 5 : "bf16";
    if (strcmp(at, "lossy") == 0) at = "bf16,int8,powersgd:rank=4";
    WEFT_TRY(weft_codec_parse("dense", &found.specs[0], error));
    for (;;) {
        const size_t length = candidate_length(at);
        WEFT_TRY(candidate_add(at, length, found.specs, &found.count, error));
        if (at[length] == '\0') break;
        at += length + 1;
    }
    for (uint8_t i = 0; i < WEFT_CODEC_CANDIDATES_MAX; i++) found.kinds[i] = i;
    *candidates = found;
    return WEFT_OK;
}

void weft_codec_candidates_resolve(struct weft_codec_candidates *candidates, const struct weft_shape *shape)
{
    uint32_t count = 1;
    for (uint32_t i = 1; i < candidates->count; i++) {
        const struct weft_codec_spec spec = weft_codec_resolve(&candidates->specs[i], shape);
        if (spec.id == WEFT_CODEC_DENSE || is_listed(candidates->specs, count, &spec)) continue;
        candidates->kinds[count] = candidates->kinds[i];
        candidates->specs[count++] = spec;
    }
    candidates->count = count;
}
