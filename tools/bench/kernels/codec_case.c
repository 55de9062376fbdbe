/* codec_case.c - see codec_case.h. */
#include "tools/bench/kernels/codec_case.h"

#include "compress/compress.h"
#include "kernels/kernels.h"

enum { SIDE_MAX = 4096 };

struct codec_case {
    struct weft_codec *codec;
    size_t rows, elems; /* rows: of the matrix; 0: none */
    void *wire;
};

struct codec_case *codec_case_open(const char *spec_text, bool square, size_t count)
{
    struct codec_case *self = weft_alloc_zero(weft_env_system(), sizeof *self);
    struct weft_codec_spec spec;
    struct weft_error error;
    size_t side = 1;
    if (!self) return NULL;
    while (side < SIDE_MAX && (side + 1) * (side + 1) <= count)
        side++;
    self->rows = square ? side : 0;
    self->elems = square ? side * side : count;
    const struct weft_shape shape =
        square ? (struct weft_shape){2, {side, side}} : (struct weft_shape){1, {count}};
    if (weft_codec_parse(spec_text, &spec, &error) == WEFT_OK) {
        spec = weft_codec_resolve(&spec, &shape);
        self->wire =
            weft_alloc_bytes(weft_env_system(), weft_codec_contribution_bytes_max(&spec, &shape, 0) * 2);
        if (self->wire && weft_codec_create(weft_env_system(), &spec, &shape, &self->codec) == WEFT_OK)
            return self;
    }
    codec_case_close(self);
    return NULL;
}

size_t codec_case_elems(const struct codec_case *codec)
{
    return codec->elems;
}

void codec_case_step(struct codec_case *self, const float *grad, float *out)
{
    const uint32_t rounds = self->rows ? 2 : 1;
    size_t bytes;
    for (uint32_t round = 0; round < rounds; round++) {
        weft_codec_encode(self->codec, round, grad, 1.0f, self->wire, &bytes);
        if (rounds == 2 && round == 0) weft_orthogonalise(self->wire, self->rows, 4, NULL);
        weft_codec_take(self->codec, round, self->wire, bytes, 1);
    }
    if (rounds == 2) weft_codec_finish(self->codec, 1.0f, out);
    weft_codec_commit(self->codec);
}

void codec_case_close(struct codec_case *self)
{
    if (self->codec) weft_codec_free(self->codec);
    weft_free_bytes(weft_env_system(), self->wire);
    weft_free_bytes(weft_env_system(), self);
}
