/* codec_threads.c - see codec_threads.h. */
#include "codec_threads.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#include "compress/compress.h"

enum { KNOWN_MAX = 64 };

static struct {
    const void *of; /* a codec or a combiner */
    uint64_t elems;
} known[KNOWN_MAX];
static unsigned next;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static _Atomic uint64_t longest_step, apart;
static size_t spoilt_at = SIZE_MAX; /* set before the first step */

static void remember(const void *of, const struct weft_shape *shape)
{
    pthread_mutex_lock(&lock);
    unsigned at = 0;
    while (at < KNOWN_MAX && known[at].of != of) at++;
    if (at == KNOWN_MAX) at = next++ % KNOWN_MAX;
    known[at].of = of;
    known[at].elems = weft_shape_elems(shape);
    pthread_mutex_unlock(&lock);
}

static void ran(const void *of)
{
    char name[16] = "";
    uint64_t elems = UINT64_MAX;
    pthread_mutex_lock(&lock);
    for (unsigned i = 0; i < KNOWN_MAX; i++)
        if (known[i].of == of) elems = known[i].elems;
    pthread_mutex_unlock(&lock);
    pthread_getname_np(pthread_self(), name, sizeof name);
    if (strcmp(name, "weft compute") == 0) atomic_fetch_add(&apart, 1);
    else if (elems > atomic_load(&longest_step)) atomic_store(&longest_step, elems);
}

uint64_t codec_threads_longest_step(void) { return atomic_load(&longest_step); }
void codec_threads_spoil(size_t at) { spoilt_at = at; }
uint64_t codec_threads_apart(void) { return atomic_load(&apart); }

/* ---- wrappers of the codec's functions: the program calls __wrap_, which calls __real_ ---- */
enum weft_status __real_weft_codec_create(struct weft_env *env, const struct weft_codec_spec *resolved,
                                          const struct weft_shape *shape, struct weft_codec **codec_out);
enum weft_status __wrap_weft_codec_create(struct weft_env *env, const struct weft_codec_spec *resolved,
                                          const struct weft_shape *shape, struct weft_codec **codec_out);
enum weft_status __wrap_weft_codec_create(struct weft_env *env, const struct weft_codec_spec *resolved,
                                          const struct weft_shape *shape, struct weft_codec **codec_out)
{
    enum weft_status status = __real_weft_codec_create(env, resolved, shape, codec_out);
    if (status == WEFT_OK) remember(*codec_out, shape);
    return status;
}

enum weft_status __real_weft_combiner_create(struct weft_env *env, const struct weft_codec_spec *resolved,
                                             const struct weft_shape *shape, uint32_t ranks,
                                             struct weft_combiner **combiner_out);
enum weft_status __wrap_weft_combiner_create(struct weft_env *env, const struct weft_codec_spec *resolved,
                                             const struct weft_shape *shape, uint32_t ranks,
                                             struct weft_combiner **combiner_out);
enum weft_status __wrap_weft_combiner_create(struct weft_env *env, const struct weft_codec_spec *resolved,
                                             const struct weft_shape *shape, uint32_t ranks,
                                             struct weft_combiner **combiner_out)
{
    enum weft_status status = __real_weft_combiner_create(env, resolved, shape, ranks, combiner_out);
    if (status == WEFT_OK) remember(*combiner_out, shape);
    return status;
}

enum weft_status __real_weft_codec_encode(struct weft_codec *codec, uint32_t round, const float *grad,
                                          float grad_scale, void *out, size_t *bytes_out);
enum weft_status __wrap_weft_codec_encode(struct weft_codec *codec, uint32_t round, const float *grad,
                                          float grad_scale, void *out, size_t *bytes_out);
enum weft_status __wrap_weft_codec_encode(struct weft_codec *codec, uint32_t round, const float *grad,
                                          float grad_scale, void *out, size_t *bytes_out)
{
    ran(codec);
    return __real_weft_codec_encode(codec, round, grad, grad_scale, out, bytes_out);
}

enum weft_status __real_weft_codec_take(struct weft_codec *codec, uint32_t round, const void *aggregate,
                                        size_t bytes, uint32_t ranks);
enum weft_status __wrap_weft_codec_take(struct weft_codec *codec, uint32_t round, const void *aggregate,
                                        size_t bytes, uint32_t ranks);
enum weft_status __wrap_weft_codec_take(struct weft_codec *codec, uint32_t round, const void *aggregate,
                                        size_t bytes, uint32_t ranks)
{
    ran(codec);
    if (spoilt_at < bytes) memset((uint8_t *)(uintptr_t)aggregate + spoilt_at, 0xff, 1);
    return __real_weft_codec_take(codec, round, aggregate, bytes, ranks);
}

enum weft_status __real_weft_codec_finish(struct weft_codec *codec, float scale, float *out);
enum weft_status __wrap_weft_codec_finish(struct weft_codec *codec, float scale, float *out);
enum weft_status __wrap_weft_codec_finish(struct weft_codec *codec, float scale, float *out)
{
    ran(codec);
    return __real_weft_codec_finish(codec, scale, out);
}

enum weft_status __real_weft_combiner_add(struct weft_combiner *combiner, const void *data, size_t bytes);
enum weft_status __wrap_weft_combiner_add(struct weft_combiner *combiner, const void *data, size_t bytes);
enum weft_status __wrap_weft_combiner_add(struct weft_combiner *combiner, const void *data, size_t bytes)
{
    ran(combiner);
    return __real_weft_combiner_add(combiner, data, bytes);
}

enum weft_status __real_weft_combiner_close(struct weft_combiner *combiner, const void **data_out,
                                            size_t *bytes_out);
enum weft_status __wrap_weft_combiner_close(struct weft_combiner *combiner, const void **data_out,
                                            size_t *bytes_out);
enum weft_status __wrap_weft_combiner_close(struct weft_combiner *combiner, const void **data_out,
                                            size_t *bytes_out)
{
    ran(combiner);
    return __real_weft_combiner_close(combiner, data_out, bytes_out);
}
