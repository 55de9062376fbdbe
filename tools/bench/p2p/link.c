/* link.c - see link.h. */
#include "tools/bench/p2p/link.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { PROGRESS_BUDGET = 64, POLLS_PER_LOOK = 1024 };

/* The record that every rank has of every other rank. */
struct record {
    int32_t opened;
    uint32_t address_bytes, in_key_bytes, out_key_bytes;
    uint8_t address[WEFT_TRANSPORT_ADDRESS_BYTES_MAX];
    uint8_t in_key[WEFT_WINDOW_KEY_BYTES_MAX], out_key[WEFT_WINDOW_KEY_BYTES_MAX];
};
_Static_assert(sizeof(struct record) <= P2P_RECORD_BYTES_MAX, "a record fits the gather");

uint64_t p2p_now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

bool p2p_link_fail(struct p2p_link *link, const char *format, ...)
{
    if (!link->failed) {
        va_list args;
        char text[600];
        va_start(args, format);
        vsnprintf(text, sizeof text, format, args);
        va_end(args);
        fprintf(stderr, "weft bench p2p: rank %u: %s\n", link->bootstrap->rank, text);
    }
    link->failed = true;
    return false;
}

bool p2p_link_fail_gather(struct p2p_link *link)
{
    if (link->bootstrap->session) return p2p_link_fail(link, "the other processes have ended");
    link->failed = true; /* the rank that ended first prints the reason, or the launcher does */
    return false;
}

static void peer_failed(void *context, uint32_t peer_id, enum weft_status status, const char *text)
{
    p2p_link_fail(context, "peer %u is lost: %s (%s)", peer_id, text, weft_reason_text(status));
}

/* ---- waiting ---- */

static bool wait_polling(struct p2p_link *link, const struct p2p_counter *counter, uint64_t target)
{
    uint64_t limit_ns = 0, seen = counter->finished;
    for (unsigned polls = 1; counter->finished < target && !link->failed; polls++) {
        weft_transport_progress(link->transport, PROGRESS_BUDGET);
        if (polls % POLLS_PER_LOOK != 0) continue;
        uint64_t now_ns = p2p_now_ns();
        if (limit_ns == 0 || counter->finished != seen)
            limit_ns = now_ns + WEFT_SECONDS(link->options->deadline_s);
        seen = counter->finished;
        if (now_ns > limit_ns) return false;
    }
    return counter->finished >= target;
}

static bool wait_sleeping(struct p2p_link *link, const struct p2p_counter *counter, uint64_t target)
{
    uint64_t seen = counter->finished, limit_ns = p2p_now_ns() + WEFT_SECONDS(link->options->deadline_s);
    while (counter->finished < target && !link->failed) {
        link->watched = counter;
        link->target = target;
        link->reached = false;
        /* in slices, so that a lost or stalled peer ends the wait */
        uint64_t slice_ns = p2p_now_ns() + WEFT_MS(500);
        weft_loop_wait(link->loop, &link->reached, slice_ns < limit_ns ? slice_ns : limit_ns);
        link->watched = NULL;
        if (counter->finished != seen) limit_ns = p2p_now_ns() + WEFT_SECONDS(link->options->deadline_s);
        else if (p2p_now_ns() >= limit_ns) return false;
        seen = counter->finished;
    }
    return counter->finished >= target;
}

bool p2p_link_wait(struct p2p_link *link, const struct p2p_counter *counter, uint64_t target,
                   const char *what)
{
    if (counter->finished >= target) return true;
    if (link->loop ? wait_sleeping(link, counter, target) : wait_polling(link, counter, target)) return true;
    return p2p_link_fail(link, "%s: nothing moved for %u s (%llu of %llu done)", what,
                         link->options->deadline_s, (unsigned long long)counter->finished,
                         (unsigned long long)target);
}

void p2p_link_progress(struct p2p_link *link, const struct p2p_counter *counter)
{
    if (!link->loop) {
        weft_transport_progress(link->transport, PROGRESS_BUDGET);
        return;
    }
    link->watched = counter;
    link->target = counter ? counter->finished + 1 : 0;
    link->reached = false;
    weft_loop_wait(link->loop, &link->reached, p2p_now_ns() + WEFT_MS(1));
    link->watched = NULL;
}

/* ---- open ---- */

static bool try_open(struct p2p_link *link, const char *backend, const char *lanes, struct weft_error *error)
{
    const struct p2p_options *given = link->options;
    struct weft_transport_options options;
    weft_transport_options_init(&options);
    options.backend = backend;
    options.id = link->bootstrap->rank + 1;
    options.nonce = 0x70327062656e6368ull;
    if (lanes[0]) options.lanes = lanes;
    if (given->devices) options.devices = given->devices;
    if (given->wrap) options.wrap = given->wrap;
    options.secret = given->secret;
    options.secret_bytes = given->secret ? strlen(given->secret) : 0;
    if (given->eager_bytes != UINT64_MAX) options.eager_bytes_max = given->eager_bytes;
    options.peer_failed = peer_failed;
    options.peer_failed_context = link;
    return weft_transport_open(link->env, &options, &link->transport, error) >= 0;
}

struct open_state {
    uint32_t opened;
    char why_not[sizeof(((struct weft_error *)0)->text)];
};

/* Whether every rank has opened its endpoint. If not, the text is that of the first rank that has not. */
static bool all_opened(struct p2p_link *link, bool mine, const struct weft_error *error, bool *all_out,
                       char *why, size_t capacity)
{
    struct open_state open_state = {.opened = mine}, *all = calloc(link->bootstrap->ranks, sizeof *all);
    uint32_t first = 0;
    if (!mine) snprintf(open_state.why_not, sizeof open_state.why_not, "%s", error->text);
    bool fine = all && p2p_all_gather(link->bootstrap, &open_state, sizeof open_state, all);
    if (!fine) all ? p2p_link_fail_gather(link) : p2p_link_fail(link, "no memory");
    while (fine && first < link->bootstrap->ranks && all[first].opened) first++;
    *all_out = fine && first == link->bootstrap->ranks;
    if (fine && !*all_out)
        snprintf(why, capacity, "%.*s", (int)sizeof open_state.why_not - 1, all[first].why_not);
    free(all);
    return fine;
}

/* A failure that all ranks know: rank 0 prints it. */
static bool fail_by_one(struct p2p_link *link, const char *text)
{
    if (link->bootstrap->rank == 0) return p2p_link_fail(link, "%s", text);
    link->failed = true;
    return false;
}

static bool open_endpoint(struct p2p_link *link)
{
    const struct p2p_transport_spec *spec = &link->options->transport;
    struct weft_error error = {0};
    bool all = false;
    bool mine = try_open(link, spec->backend, spec->lanes, &error);
    char why[sizeof(((struct weft_error *)0)->text)];
    return all_opened(link, mine, &error, &all, why, sizeof why) && (all || fail_by_one(link, why));
}

static bool open_loop(struct p2p_link *link)
{
    struct weft_loop_options options;
    if (link->options->wait == P2P_WAIT_POLL) return true;
    weft_loop_options_init(&options);
    if (link->options->wait == P2P_WAIT_SLEEP) options.spin_us = 0;
    if (weft_loop_create(link->env, &options, &link->loop) < 0)
        return p2p_link_fail(link, "cannot make a loop");
    return weft_transport_attach(link->transport, link->loop) >= 0 ||
           p2p_link_fail(link, "the transport cannot be waited for");
}

static bool take_memory(struct p2p_link *link)
{
    size_t bytes = link->options->sweep.last * link->options->buffers;
    struct weft_error error = {0};
    void *in = NULL, *out = NULL;
    link->buffer_bytes = link->options->sweep.last;
    if (link->options->memory == P2P_MEMORY_MAPPED && weft_memory_alloc(link->env, bytes, &in, &error) >= 0) {
        link->mapped = true;
        if (weft_memory_alloc(link->env, bytes, &out, &error) < 0) weft_memory_free(link->env, in), in = NULL;
    } else {
        in = weft_alloc_bytes(link->env, bytes);
        out = weft_alloc_bytes(link->env, bytes);
    }
    link->in = in;
    link->out = out;
    if (!in || !out)
        return p2p_link_fail(link, "no memory for %u buffers of %zu bytes; make -e smaller",
                             2 * link->options->buffers, link->buffer_bytes);
    memset(in, 1, bytes);
    memset(out, 2, bytes);
    return true;
}

static bool open_window(struct p2p_link *link, uint8_t *memory, unsigned rights, struct weft_window **window)
{
    struct weft_error error = {0};
    struct weft_window_options options = {.size = sizeof options,
                                          .address = memory,
                                          .bytes = link->buffer_bytes * link->options->buffers,
                                          .rights = rights,
                                          .peer_id = WEFT_ANY_PEER};
    if (weft_window_open(link->transport, &options, window, &error) >= 0) return true;
    return p2p_link_fail(link, "cannot open a window: %s", error.text);
}

static bool open_windows(struct p2p_link *link)
{
    if (!(link->options->ops & (P2P_PUT | P2P_GET))) return true;
    if (!(weft_transport_abilities(link->transport) & WEFT_TRANSPORT_WINDOWS)) {
        return p2p_link_fail(link, "%s has no put and get; use --op send",
                             weft_transport_name(link->transport));
    }
    return open_window(link, link->in, WEFT_WINDOW_WRITE, &link->in_window) &&
           open_window(link, link->out, WEFT_WINDOW_READ, &link->out_window);
}

static uint32_t copy_key(const struct weft_window *window, uint8_t *out)
{
    const void *key;
    size_t bytes = 0;
    if (!window) return 0;
    weft_window_key(window, &key, &bytes);
    memcpy(out, key, bytes);
    return (uint32_t)bytes;
}

static bool connect_peer(struct p2p_link *link, uint32_t rank, const struct record *record)
{
    enum weft_status status = weft_transport_connect(link->transport, rank + 1, record->address,
                                                     record->address_bytes, &link->peers[rank]);
    if (status < 0)
        return p2p_link_fail(link, "cannot connect to rank %u: %s%s", rank, weft_reason_text(status),
                             weft_transport_connect_hint(status));
    if (!record->in_key_bytes) return true;
    status = weft_transport_import(link->peers[rank], record->in_key, record->in_key_bytes,
                                   &link->in_remotes[rank]);
    if (status >= 0)
        status = weft_transport_import(link->peers[rank], record->out_key, record->out_key_bytes,
                                       &link->out_remotes[rank]);
    return status >= 0 ||
           p2p_link_fail(link, "cannot import the windows of rank %u: %s", rank, weft_reason_text(status));
}

static bool connect_all(struct p2p_link *link)
{
    uint32_t ranks = link->bootstrap->ranks;
    struct record *mine = calloc(1, sizeof *mine), *all = calloc(ranks, sizeof *all);
    const void *address;
    size_t bytes = 0;
    bool fine = mine && all && weft_transport_address(link->transport, &address, &bytes) >= 0;
    link->peers = calloc(ranks, sizeof *link->peers);
    link->in_remotes = calloc(ranks, sizeof(struct weft_remote *));
    link->out_remotes = calloc(ranks, sizeof(struct weft_remote *));
    fine = fine && link->peers && link->in_remotes && link->out_remotes;
    if (fine) {
        mine->opened = 1;
        mine->address_bytes = (uint32_t)bytes;
        memcpy(mine->address, address, bytes);
        mine->in_key_bytes = copy_key(link->in_window, mine->in_key);
        mine->out_key_bytes = copy_key(link->out_window, mine->out_key);
    }
    if (!fine) p2p_link_fail(link, "no address to give to the others");
    fine = fine && (p2p_all_gather(link->bootstrap, mine, sizeof *mine, all) || p2p_link_fail_gather(link));
    for (uint32_t i = 0; fine && i < ranks; i++) {
        if (i != link->bootstrap->rank) fine = connect_peer(link, i, &all[i]);
    }
    free(mine);
    free(all);
    return fine;
}

bool p2p_link_open(struct p2p_link *link, const struct p2p_options *options, struct p2p_bootstrap *bootstrap)
{
    *link = (struct p2p_link){.options = options, .bootstrap = bootstrap, .env = weft_env_system()};
    return open_endpoint(link) && open_loop(link) && take_memory(link) && open_windows(link) &&
           connect_all(link);
}

/* ---- close ---- */

static void release_remotes(struct weft_remote **remotes, uint32_t count)
{
    for (uint32_t i = 0; remotes && i < count; i++) {
        if (remotes[i]) weft_remote_release(remotes[i]);
    }
    free(remotes);
}

void p2p_link_close(struct p2p_link *link)
{
    release_remotes(link->in_remotes, link->bootstrap->ranks);
    release_remotes(link->out_remotes, link->bootstrap->ranks);
    if (link->transport) {
        uint64_t limit_ns = p2p_now_ns() + WEFT_SECONDS(link->failed ? 1 : 5);
        link->failed = true; /* the end of other ranks is expected now */
        weft_transport_close(link->transport);
        while (!weft_transport_drained(link->transport) && p2p_now_ns() < limit_ns) {
            if (weft_transport_progress(link->transport, PROGRESS_BUDGET) == 0)
                nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
        }
        weft_transport_free(link->transport);
    }
    weft_loop_free(link->loop);
    if (link->mapped) {
        weft_memory_free(link->env, link->in);
        weft_memory_free(link->env, link->out);
    } else {
        weft_free_bytes(link->env, link->in);
        weft_free_bytes(link->env, link->out);
    }
    free(link->peers);
}
