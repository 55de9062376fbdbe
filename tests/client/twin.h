/* twin.h - two tensors that are to have the same bits although each has a name of its own. */
#ifndef WEFT_TESTS_CLIENT_TWIN_H
#define WEFT_TESTS_CLIENT_TWIN_H

#include "client/session/session.h"
#include "client/tensor/tensor.h"

/* Rounding is drawn by the tensor's name: `twin` draws what `of` does from here on. Before the first step. */
static inline void twin_draws(struct weft_tensor *twin, const struct weft_tensor *of)
{
    twin->wire.rounding_seed = of->wire.rounding_seed;
    if (twin->codec) weft_codec_set_stream(twin->codec, twin->wire.rounding_seed, twin->session->rank);
}

#endif
