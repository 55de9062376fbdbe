/* copy.c - a copy with non-temporal stores: the second kind of "copy bandwidth". */
#include <string.h>

#include "tools/bench/kernels/kernelbench.h"

#ifdef __SSE2__
#include <emmintrin.h>

void kernelbench_stream_copy(void *to, const void *from, size_t bytes)
{
    __m128i *out = to;
    const __m128i *in = from;
    for (size_t i = 0; i + 4 <= bytes / 16; i += 4) {
        const __m128i a = _mm_load_si128(in + i), b = _mm_load_si128(in + i + 1);
        const __m128i c = _mm_load_si128(in + i + 2), d = _mm_load_si128(in + i + 3);
        _mm_stream_si128(out + i, a);
        _mm_stream_si128(out + i + 1, b);
        _mm_stream_si128(out + i + 2, c);
        _mm_stream_si128(out + i + 3, d);
    }
    _mm_sfence();
}
#else
void kernelbench_stream_copy(void *to, const void *from, size_t bytes)
{
    memcpy(to, from, bytes);
}
#endif
