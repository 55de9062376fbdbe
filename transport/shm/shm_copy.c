/* shm_copy.c - copies: by the processor in mapped memory, or by the kernel between two processes (CMA). */
#include <errno.h>
#include <string.h>
#include <sys/uio.h>
#ifdef __SSE2__
#include <emmintrin.h>
#endif

#include "transport/shm/shm.h"

enum { SHM_LINES_MIN = 4096 }; /* fewer bytes are copied by memcpy */

#ifdef __SSE2__
enum { LINES_AT_ONCE = 8 };

/* One line of 64 bytes. stream: past the caches; `to` is aligned then. */
static inline __attribute__((always_inline)) void copy_line(uint8_t *to, const uint8_t *from, bool stream)
{
    __m128i part[4];
    for (int i = 0; i < 4; i++) part[i] = _mm_loadu_si128((const __m128i *)from + i);
    for (int i = 0; i < 4; i++) {
        if (stream) _mm_stream_si128((__m128i *)to + i, part[i]);
        else _mm_storeu_si128((__m128i *)to + i, part[i]);
    }
}

static void stream_lines(uint8_t *to, const uint8_t *from)
{
    for (int line = 0; line < LINES_AT_ONCE; line++) copy_line(to + 64 * line, from + 64 * line, true);
}

/* Non-temporal copy: a large destination would evict other data and need not be read first. Four pages in
 * turn, so that the hardware prefetches in all four. Eight lines of each: with two, the write-combining
 * buffers of some processors (AMD Zen 3) are flushed before they are full. */
static void copy_stream(uint8_t *to, const uint8_t *from, size_t bytes)
{
    enum { PAGE = 4096, PAGES = 4, AT_ONCE = 64 * LINES_AT_ONCE };
    size_t head = (64 - ((uintptr_t)to & 63)) & 63;
    memcpy(to, from, head);
    to += head, from += head, bytes -= head;
    for (; bytes >= PAGES * PAGE; to += PAGES * PAGE, from += PAGES * PAGE, bytes -= PAGES * PAGE)
        for (size_t at = 0; at < PAGE; at += AT_ONCE)
            for (size_t page = 0; page < PAGES * PAGE; page += PAGE)
                stream_lines(to + page + at, from + page + at);
    for (; bytes >= AT_ONCE; to += AT_ONCE, from += AT_ONCE, bytes -= AT_ONCE) stream_lines(to, from);
    memcpy(to, from, bytes);
    _mm_sfence(); /* orders the stores before the cell that announces them */
}

/* Not memcpy: for such sizes the C library uses "rep movsb" on processors that have it, which is several
 * times slower where the lines are in the cache of the peer's processor. */
static void copy_lines(uint8_t *to, const uint8_t *from, size_t bytes)
{
    for (; bytes >= 64; to += 64, from += 64, bytes -= 64) copy_line(to, from, false);
    memcpy(to, from, bytes);
}
#endif

void shm_copy(void *to, const void *from, size_t bytes, bool stream)
{
#ifdef __SSE2__
    if (bytes >= SHM_LINES_MIN) {
        if (stream) copy_stream(to, from, bytes);
        else copy_lines(to, from, bytes);
        return;
    }
#endif
    memcpy(to, from, bytes);
}

void weft_copy_nontemporal(void *to, const void *from, size_t bytes)
{
    shm_copy(to, from, bytes, true);
}

enum { CLAIM_LINES_MIN = 2048 }; /* fewer lines arrive before the writer needs them */

/* ThreadSanitizer works by virtual addresses. If threads of one process are peers, the synchronisation
 * happens at the other mapping of the same memory, which it cannot see. */
__attribute__((no_sanitize("thread"))) void weft_claim_lines(const void *memory, size_t bytes)
{
    /* peer memory, mapped writable */
    volatile uint8_t *at = (volatile uint8_t *)(uintptr_t)memory;
    if (bytes < CLAIM_LINES_MIN) return;
    for (size_t i = 0; i < bytes; i += 64) at[i] = at[i];
    at[bytes - 1] = at[bytes - 1];
}

enum weft_status shm_cma(int32_t pid, void *local, uint64_t remote, size_t bytes, bool write)
{
    for (size_t at = 0; at < bytes;) {
        struct iovec here = {(uint8_t *)local + at, bytes - at},
                     peer_address = {(void *)(uintptr_t)(remote + at), bytes - at};
        ssize_t moved = write ? process_vm_writev(pid, &here, 1, &peer_address, 1, 0)
                              : process_vm_readv(pid, &here, 1, &peer_address, 1, 0);
        if (moved > 0) {
            at += (size_t)moved;
            continue;
        }
        if (moved < 0 && errno == EINTR) continue;
        if (moved == 0 || errno == EFAULT || errno == EINVAL) return WEFT_ERR_INVALID;
        if (errno == ESRCH) return WEFT_ERR_PEER_LOST;
        /* a system call filter may return any errno */
        return errno == ENOMEM ? WEFT_ERR_NO_MEMORY : WEFT_ERR_UNSUPPORTED;
    }
    return WEFT_OK;
}

enum weft_status shm_pair_cma(struct shm_pair *pair, void *local, uint64_t remote, size_t bytes, bool write)
{
    const enum weft_status status = shm_cma(pair->remote.pid, local, remote, bytes, write);
    const int reason = errno;
    if (status != WEFT_ERR_UNSUPPORTED || !pair->flags.read_by_cma) return status;
    const struct weft_transport *transport = pair->endpoint->transport;
    pair->flags.read_by_cma = false;
    weft_log(transport->env, WEFT_LOG_WARN, "transport",
             "endpoint %u peer %u (process %d): %s was allowed at start and is refused now (%s): payloads "
             "from ordinary memory "
             "are staged through shared memory from here on",
             transport->id, pair->peer->id, (int)pair->remote.pid,
             write ? "process_vm_writev" : "process_vm_readv", strerror(reason));
    return status;
}
